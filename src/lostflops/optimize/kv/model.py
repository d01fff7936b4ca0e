"""Whose keys and values these are: a name for a model's configuration, weights and adapters, as they are now.

A cache of another model, or of the same one after training, has the right shape and the wrong numbers.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn

from lostflops.copies.kv_resume import config_of as config_of
from lostflops.optimize.model_parts import named
from lostflops.optimize.own_hooks import OwnHook
from lostflops.optimize.refused import Refused
from lostflops.optimize.training.precision import SAID

SAMPLES = 8  # elements of every parameter
WATCHED = 64  # parameters, of which one element is read at each turn
# These say where a model came from, or how it is run, and not what it computes.
NEUTRAL = (
    "_name_or_path",
    "transformers_version",
    "use_cache",
    "_attn_implementation",
    "torch_dtype",
    "dtype",
)
# Rotations of these depend on how long the dialogue was when a key was computed.
CHANGING_ROPE = ("dynamic", "longrope")


class Identity:
    """Names a model, and notices when it changes, without reading all its weights anew each time.

    Writes to `parameter.data` count as none; so an element of some parameters is read, too.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._marks: int | None = None
        self._name = ""

    def of(self, model: nn.Module | str) -> str:
        """The name: a digest. A string names itself: for weights that cannot be read at any time."""
        if isinstance(model, str):
            return model
        marks = hash(tuple(_marks(model)))
        if self._model is None or self._model() is not model or self._marks != marks:
            self._name = _digest(model)
            self._model, self._marks = weakref.ref(model), marks
        return self._name + _autocast(model)


def _autocast(model: nn.Module) -> str:
    """Around the call: the same weights compute other keys in it."""
    kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return ""
    return f" in {torch.get_autocast_dtype(kind)}"


def refuse_changing_keys(config: Mapping[str, Any]) -> None:
    """Refuses models whose keys of a prefix are not a matter of the prefix alone."""
    if config.get("is_encoder_decoder"):
        raise Refused(
            "an encoder-decoder model attends to its encoder's input too", "use a decoder-only model"
        )
    for kind in _rope_types({k: v for k, v in config.items() if k.startswith("rope")}):
        if kind in CHANGING_ROPE:
            raise Refused(
                f"this model's rotary embedding is '{kind}': keys depend on how long the dialogue was",
                "keep its cache on the GPU, or set a fixed rope_type such as 'llama3' or 'yarn'",
            )


def _digest(model: nn.Module) -> str:
    config = {k: v for k, v in config_of(model).items() if k not in NEUTRAL}
    refuse_changing_keys(config)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    samples: list[torch.Tensor] = []
    for name, module in named(model):
        kind = type(module).__name__  # an FP8 layer has the parameters of the one that it stands for
        if kind != "OptimizedModule":  # of torch.compile
            where = ".".join(part for part in name.split(".") if part != "_orig_mod")
            digest.update(f"{where} {kind};".encode())
    for name, parameter in _tensors(model):
        name = name.replace("_orig_mod.", "")  # of torch.compile
        digest.update(f"{name} {list(parameter.shape)} {parameter.dtype};".encode())
        if _is_plain(parameter):
            flat = parameter.detach().flatten()
            step = max(1, flat.numel() // SAMPLES)
            samples.append(flat[::step][:SAMPLES].to(torch.float32))
    for device in sorted({str(sample.device) for sample in samples}):
        together = torch.cat([sample for sample in samples if str(sample.device) == device])
        digest.update(cast("Any", together.cpu()).numpy().tobytes())
    digest.update(repr([*_adapters(model), *_changed_forwards(model)]).encode())
    return digest.hexdigest()


def _marks(model: nn.Module) -> Iterator[Any]:
    """What changes when a parameter is replaced or written, or an adapter is switched."""
    yield id(model)
    yield from (type(module) for module in model.modules())
    for _, parameter in _tensors(model):
        yield parameter.data_ptr() if type(parameter) in (nn.Parameter, torch.Tensor) else id(parameter)
        yield 0 if parameter.is_inference() else parameter._version
    yield from _watched(model)
    yield from _adapters(model)
    yield from _changed_forwards(model)


def _watched(model: nn.Module) -> Iterator[float]:
    """An element of each of some parameters, spread unevenly over the model: in even steps adapters, say,
    could be left out."""
    plain = [parameter for _, parameter in _tensors(model) if _is_plain(parameter)]
    chosen = sorted(range(len(plain)), key=lambda n: (n * 0.6180339887498949) % 1)[:WATCHED]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for number in chosen:
        element = plain[number].detach()
        while element.ndim:
            element = element[element.shape[0] // 2]
        by_device.setdefault(element.device, []).append(element.to(torch.float32))
    for some in by_device.values():
        yield from cast("list[float]", cast("Any", torch.stack(some)).tolist())


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers of floating point, such as rotary frequencies: others count, or are masks."""
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def _is_plain(parameter: torch.Tensor) -> bool:
    """Whether its elements can be read here."""
    known = type(parameter) in (nn.Parameter, torch.Tensor)
    return known and parameter.device.type != "meta" and parameter.numel() > 0


def _adapters(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        if hasattr(module, "merged_adapters"):  # a layer of PEFT's
            layer = cast("Any", module)
            scaling = getattr(layer, "scaling", "")
            yield f"{layer.active_adapters} {layer.disable_adapters} {layer.merged_adapters} {scaling}"


def _changed_forwards(model: nn.Module) -> Iterator[str]:
    """What runs in place of a module's forward, or before and after it, and may change what comes out.

    A hook is told from others in this process only: what it does may depend on what it refers to. So a
    model with hooks resumes nothing of another process.
    """
    for name, module in named(model):
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            for hook in module.__dict__.get(kind, {}).values():
                if not isinstance(hook, OwnHook):
                    yield f"{name} {kind} {_token(hook)}"
        replaced = module.__dict__.get("forward")
        if replaced is not None:  # wrapped, by us or by Accelerate, it has the name of what it wraps
            yield f"{name} {getattr(replaced, '__module__', '')}.{getattr(replaced, '__qualname__', '')}"
        if said := module.__dict__.get(SAID):
            yield f"{name} {said.dtype}"


_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _token(hook: Any) -> str:
    """Of this hook alone, for as long as it lives."""
    owner = getattr(hook, "__self__", None)  # a method is made anew whenever it is asked for
    if owner is not None:
        return f"{getattr(hook, '__qualname__', '')} of {_token(owner)}"
    try:
        return _tokens.setdefault(hook, uuid.uuid4().hex)
    except TypeError:  # nobody can refer to it weakly, or compare it
        return uuid.uuid4().hex


def _rope_types(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for name, inner in cast("Mapping[str, Any]", value).items():
        if name in ("rope_type", "type") and isinstance(inner, str):
            yield inner
        else:
            yield from _rope_types(inner)
