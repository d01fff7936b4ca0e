"""What a layer's forward reads and leaves behind besides its result: brought back when it is computed again.

A recomputation is to see what the forward saw, and to leave nothing behind. A layer that counts its calls, a
load that a router adds up, dropout after `model.eval()`, a list of the adapters in use, a condition that the
model has computed and put there, an attention backend chosen around the forward: each is as it was, and
afterwards as it is. So are weights that were given for one call (`functional_call`), which weights are
trained, and which modules and hooks are inside. What cannot be brought back is refused: a weight or a tensor
that was written in place, and a hook that changed something and was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import is_
from typing import Any, cast
from weakref import ref

import torch

from lostflops.optimize import claims
from lostflops.optimize.activations.layer.attributes import (
    CHANGING,
    Place,
    Values,
    anew,
    detached,
    held,
    without_graph,
)
from lostflops.optimize.activations.layer.elsewhere import (
    Names,
    context_as_it_was,
    context_variables,
    elsewhere,
)
from lostflops.optimize.activations.layer.hooks import KINDS, Hooks, RanHooks, watched
from lostflops.optimize.activations.layer.parametrized import (
    Weights,
    cached_as_they_were,
    cached_weights,
)
from lostflops.optimize.refused import Refused

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_MISSING: Any = object()
_TORCHS = frozenset(vars(torch.nn.Module())) - {"training"}  # its own bookkeeping
_NOT_HELD = _TORCHS | {"forward"}
# How torch chooses a kernel, or a dtype: how to read it, and how to set it.
_CHOICES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    (_C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    (_C._get_math_sdp_enabled, _C._set_sdp_use_math),
    (_C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_default_dtype, torch.set_default_dtype),
)


@dataclass(slots=True)
class Before:
    """As it was when a forward began. Holds no tensor of a graph: that would hold the graph, and itself."""

    weights: list[tuple[torch.Tensor, int]]  # and buffers and other tensors, with their versions
    places: list[tuple[torch.Tensor, int]]  # in memory, of buffers and other tensors: `.data = ` gives others
    choices: list[Any]
    parameters: list[tuple[Place, str, torch.Tensor, bool]]  # and whether they are trained
    travelling: set[int]  # of those, by id, whose memory comes and goes
    keys: list[frozenset[str]]  # of attributes and buffers
    values: Values  # of attributes and buffers, of those that can be held
    forwards: list[tuple[Place, Any]]  # in the place of the class's
    objects: list[Place]  # attributes of objects that the layer has or its code names
    context: dict[ContextVar[Any], Any]
    parametrized: Weights
    hooks: list[RanHooks] = field(default_factory=list[RanHooks])

    def tensors(self) -> Iterator[torch.Tensor]:
        """Weights, buffers and other tensors of the layer."""
        return (tensor for tensor, _ in self.weights)


class LayerState:
    """Of one layer, whose modules are found when it is made."""

    def __init__(self, layer: torch.nn.Module, name: str) -> None:
        self._name = name
        self._code = elsewhere(layer)
        modules = list(layer.modules())
        self._attributes: list[Place] = [vars(module) for module in modules]
        self._places: list[Place] = [*self._attributes, *(place["_buffers"] for place in self._attributes)]
        self._places += self._code.places
        self._parameters: list[Place] = [place["_parameters"] for place in self._attributes]
        self._modules: list[Place] = [place["_modules"] for place in self._attributes]
        self._had_modules = [place.copy() for place in self._modules]
        # Those of the layer itself run around what is computed again; those of all modules run inside, too.
        self._hooks: list[Hooks] = [place[kind] for place in self._attributes[1:] for kind in KINDS]
        self._hooks += [getattr(torch.nn.modules.module, f"_global{kind}") for kind in KINDS]
        self._by_fsdp = set(_by_fsdp(modules))
        self._keys: list[frozenset[str]] = [frozenset()] * len(self._places)
        self._elsewhere: dict[int, ref[torch.Tensor]] = {}  # tensors that it reads and does not have, by id

    def is_of_now(self) -> bool:
        """Whether the layer still has the modules that it had."""
        return not any(map(_replaced, self._modules, self._had_modules))

    def random_sources(self) -> list[Any]:
        """Where generators of random numbers may be that are none of its modules' attributes."""
        return [*self._code.places, *held(self._places, _NOT_HELD, self._code.attributes).objects]

    def reads(self, tensors: Iterable[torch.Tensor], before: Before) -> None:
        """These are nobody's that it has or was given: they are watched from now on like its own."""
        self._elsewhere |= {id(tensor): ref(tensor) for tensor in tensors}
        before.weights += [(_bare(tensor), version_of(tensor)) for tensor in tensors]

    @contextmanager
    def forward(self, given: Iterable[Any]) -> Generator[Before]:
        """Notes what is there before a forward, also of objects that it is given."""
        parameters = [
            (place, key, weight if weight.is_leaf else detached(weight), weight.requires_grad)
            for place in self._parameters
            for key, weight in place.items()
            if weight is not None
        ]
        self._keys = [
            keys if keys == place.keys() else frozenset(place)
            for keys, place in zip(self._keys, self._places, strict=True)
        ]
        objects = (value for value in given if not isinstance(value, torch.Tensor))
        there = held(self._places, _NOT_HELD, self._code.attributes, objects)
        tensors = there.tensors
        others = [tensor for one in self._elsewhere.values() if (tensor := one()) is not None]
        if len(others) < len(self._elsewhere):
            self._elsewhere = {id(tensor): ref(tensor) for tensor in others}
        before = Before(
            [(weight, version_of(weight)) for _, _, weight, _ in parameters]
            + [(_bare(tensor), version_of(tensor)) for tensor in others],
            [(tensor, tensor.data_ptr()) for tensor in tensors if _is_plain(tensor)],
            _choices(),
            parameters,
            _travelling(parameters),
            [*self._keys, *(frozenset(place.keys()) for place in there.objects)],
            there.values,
            [(place, place["forward"]) for place in self._attributes if "forward" in place],
            there.objects,
            context_variables(),
            cached_weights(),
        )
        with watched(self._hooks) as before.hooks:
            yield before
        # What the forward itself writes in place is found when it writes a second time.
        before.weights += [(tensor, version_of(tensor)) for tensor in tensors]

    @contextmanager
    def again(self, before: Before) -> Generator[None]:
        """Inside it is as it was before the forward, and afterwards as it is now."""
        self._refuse_written_weights(before)
        if _travelling(before.parameters) != before.travelling:
            raise Refused(
                f"the weights of '{self._name}' were streamed in its forward or are streamed in its "
                "backward, and not in both: it would save other tensors when it is computed again",
                "run the backward before streaming begins or ends",
            )
        self._refuse_gone_hooks(before)
        places = [*self._places, *before.objects]
        had = [place.copy() for place in places]
        tensors = [
            (key, value, version_of(value))
            for place in places
            for key, value in place.items()
            if isinstance(value, torch.Tensor)
        ]
        containers: list[Any] = [
            value
            for place in places
            for key, value in place.items()
            if type(value) in CHANGING and key not in _TORCHS
        ]
        changed = () if self.is_of_now() else self._modules
        contents = [(each, each.copy()) for each in (*containers, *changed, *filter(None, self._hooks))]
        choices = _choices()
        _choose(before.choices)
        replaced = [
            (place, key, weight)
            for place, key, weight, _ in before.parameters
            if place.get(key) is not weight
            and not _is_freed(weight)
            and (id(place), key) not in self._by_fsdp
        ]
        others = [(place, key, place.get(key, _MISSING)) for place, key, _ in replaced]
        turned = {
            id(weight): weight for _, _, weight, was in before.parameters if weight.requires_grad != was
        }
        for place, key, weight in replaced:
            _put(place, key, weight)
        _turn(turned.values())
        for place, were in zip(changed, self._had_modules, strict=False):
            fill(place, were)
        for hooks, were in zip(self._hooks, before.hooks, strict=False):
            if hooks:
                were.leave_out_others(hooks)
        try:
            self._put_back(before)
            with context_as_it_was(before.context), cached_as_they_were(before.parametrized):
                yield
        finally:
            _choose(choices)
            _turn(turned.values())
            for place, key, weight in others:
                _put(place, key, weight)
            for place, were in zip(places, had, strict=True):
                for key in _replaced(place, were):
                    _put(place, key, were.get(key, _MISSING))
            for each, were in contents:
                fill(each, were)
            for key, tensor, version in tensors:
                if version_of(tensor) != version:
                    raise _written_twice(self._name, key)

    def _put_back(self, before: Before) -> None:
        """Attributes and buffers as they were: those that have come since are left out."""
        for place, keys in zip([*self._places, *before.objects], before.keys, strict=True):
            for key in place.keys() - keys:
                value = place[key]
                of_fsdp = isinstance(value, torch.Tensor) and without_graph(value) is None
                if (id(place), key) not in self._by_fsdp and not of_fsdp:
                    del place[key]
        for place, forward in before.forwards:
            _put(place, "forward", forward)
        for place, key, value in anew(before.values):
            if (id(place), key) not in self._by_fsdp:
                _put(place, key, value)

    def _refuse_gone_hooks(self, before: Before) -> None:
        if any(
            were.changing and were.changing - hooks.keys()
            for hooks, were in zip(self._hooks, before.hooks, strict=False)
        ):
            raise Refused(
                f"a hook inside '{self._name}' that changed what a module was given or gave was removed "
                "between the forward and the backward, which would compute the layer again without it",
                "remove it after the backward, or do not checkpoint this layer: layers=...",
            )

    def _refuse_written_weights(self, before: Before) -> None:
        for weight, version in before.weights:
            if version_of(weight) != version:
                raise Refused(
                    f"a weight, buffer or other tensor of '{self._name}' or that it reads (shape "
                    f"{list(weight.shape)}) was written between the forward and the backward, which would "
                    "compute the layer again with another one",
                    "step the optimizer after the backward, or do not checkpoint this layer: layers=...",
                )
        for tensor, address in before.places:
            if tensor.data_ptr() != address:
                raise Refused(
                    f"a buffer or other tensor of '{self._name}' (shape {list(tensor.shape)}) was given "
                    "other memory in the forward or since (`.data = ...`), with which the layer would be "
                    "computed again",
                    "write `self.name = ...` instead, or do not checkpoint this layer: layers=...",
                )


def _is_freed(tensor: torch.Tensor) -> bool:
    """Whether it is a weight of FSDP2's, of which other ranks have the memory now."""
    return tensor.layout == torch.strided and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it says where its memory is. That of weights comes and goes, with FSDP and streaming."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested


def _by_fsdp(modules: Iterable[torch.nn.Module]) -> Iterator[tuple[int, str]]:
    """Attributes and parameters that FSDP1 puts in their places itself, a part of a flat one each."""
    for module in modules:
        flat: Any = getattr(getattr(module, "_handle", None), "flat_param", None)
        for kind in ("_param_infos", "_shared_param_infos") if flat is not None else ():
            for info in cast("list[Any]", getattr(flat, kind, None) or []):
                attributes: Place = vars(cast("torch.nn.Module", info.module))
                yield id(attributes), info.param_name
                yield id(attributes["_parameters"]), info.param_name


def _written_twice(name: str, key: str) -> Refused:
    return Refused(
        f"the forward of '{name}' writes to its tensor '{key}': recomputing writes twice",
        "do not checkpoint this layer: layers=..., or keep the statistic outside of it",
    )


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """Without its graph; counts the same writes."""
    return tensor if tensor.is_leaf else tensor.detach()


def version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _replaced(place: Place, had: Place) -> list[str]:
    place = place.copy() if isinstance(place, Names) else place
    if len(place) == len(had) and all(map(is_, place.values(), had.values())):
        return []
    return [key for key in {**had, **place} if place.get(key, _MISSING) is not had.get(key, _MISSING)]


def _travelling(parameters: list[tuple[Place, str, torch.Tensor, bool]]) -> set[int]:
    return claims.travelling.intersection(id(weight) for _, _, weight, _ in parameters)


def _turn(weights: Iterable[torch.Tensor]) -> None:
    """Those that are trained are not, and the reverse."""
    for weight in weights:
        weight.requires_grad_(not weight.requires_grad)


def _put(place: Place, key: str, value: Any) -> None:
    if value is _MISSING:
        place.pop(key, None)
    elif place.get(key, _MISSING) is not value:
        place[key] = value


def fill(container: Any, had: Any) -> None:
    if issubclass(type(container), dict):
        if _replaced(container, had):
            container.clear()
            for key, value in had.items():  # what `update` does differs
                container[key] = value
    elif type(container) is set:
        members = cast("set[Any]", container)
        members.intersection_update(had)
        members.update(had)
    elif len(container) != len(had) or not all(map(is_, container, had)):
        container.clear()
        container.extend(had)


def _choices() -> list[Any]:
    return [_read(read) for read, _ in _CHOICES]


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError:  # torch has two ways to choose a precision, and refuses the one after the other
        return None


def _choose(choices: list[Any]) -> None:
    for (read, choose), value in zip(_CHOICES, choices, strict=True):
        if _read(read) != value and value is not None:
            choose(value)
