"""Activation checkpointing of a model as it is: what to recompute, what to keep, and what that measured.

    checkpointed = optimize.checkpoint(model)              # every layer; the output of attention is kept
    print(checkpointed.measure(lambda: model(**batch).loss))
    ...                                                    # train as before
    checkpointed.undo()

Memory falls from what every layer saves to each layer's input, what is kept, and one live layer; the price is
the forward of the recomputed part once more in every backward. Nothing here predicts the peak: `measure`
compares a step with and one without, because a peak that lies elsewhere (logits, the recomputation itself)
does not fall.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch.autograd import forward_ad
from torch.utils import checkpoint as torch_checkpointing
from torch.utils._pytree import tree_leaves

from lostflops.errors import shown
from lostflops.optimize.activations.checkpoint_choice import planned_modules
from lostflops.optimize.activations.checkpoint_measured import (
    GEMMS,
    CheckpointingMeasured,
    Gemms,
    Step,
    Storages,
    differing,
    state_put_back,
)
from lostflops.optimize.activations.checkpoint_repeats import AsRefusals, Repeats
from lostflops.optimize.activations.layer.arguments import LayerArguments, emptied
from lostflops.optimize.activations.layer.gradient_hooks import (
    GradientsOnce,
    no_more_hooks,
    themselves,
    with_own_gradients,
)
from lostflops.optimize.activations.layer.state import Before, LayerState
from lostflops.optimize.activations.layer.watched_forward import (
    DO_NOT,
    Impossible,
    WatchedForward,
    top_hooks,
)
from lostflops.optimize.activations.random_numbers import RandomNumbers, drawn_anew
from lostflops.optimize.activations.unwritten_saves import unwritten_saves
from lostflops.optimize.amounts import written
from lostflops.optimize.device import peak
from lostflops.optimize.forwards import Forwards
from lostflops.optimize.model_parts import ends_like, named, refuse_lazy, repeated_layers
from lostflops.optimize.own_operators import blind_to_own
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy, TextReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ATTENTION = "attention"
THE_LAYERS = 'pass layers="blocks.*", or the modules themselves'
_torch = cast("Any", torch_checkpointing)  # its annotations are incomplete
_FUNCTORCH: Any = cast("Any", torch)._C._functorch
_FORWARD_MODE: Any = forward_ad
_OURS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def checkpoint(
    model: torch.nn.Module,
    every: int = 1,
    keep: str | Sequence[str] = (_ATTENTION,),
    plan: Mapping[str, Any] | None = None,
    layers: str | Sequence[torch.nn.Module] | None = None,
    verify: Literal["first step"] | None = "first step",
) -> Checkpointed:
    """Recomputes layers in the backward instead of keeping what they save, until `undo()`; also a context.

    `every=k` takes layers 0, k, 2k, ... and leaves the others as they are. `keep` names what is not
    recomputed: "attention" is the output of the fused attention operators, anything else are modules of a
    layer ("o_proj", "mlp.*"), whose matrix products are kept; `keep=()` recomputes all. `layers` are modules,
    or a pattern of names ("model.layers.*"), where the repeated layers are not found by themselves.

    `plan` is an offload plan, {"classes": {"model.layers.*.mlp/MulBackward0": "recompute", ...}}: modules all
    of whose classes are to be recomputed are, and nothing else; `every` and `keep` do not apply.

    Gradients are equal to the bit, with dropout, autocast, and random numbers of Python, of numpy and of
    generators that a layer has as attributes. A key-value cache that training does not need is not filled by
    these layers. Refuses what would be switched off or wrong: a model that already checkpoints, saved-tensor
    hooks inside a layer, compiled layers, BatchNorm and other buffers that a second forward would change
    again. What only shows when a layer runs (hooks, buffers, something to keep that is not there) is refused
    in its first forward, and everything undone. With something kept, a graph allows one backward.

    With `verify`, a layer's first backward compares what it computes again with what the forward had saved. A
    layer that reads a count of calls kept elsewhere, say, would get wrong gradients: `backward()` itself
    raises Refused, before an optimizer sees them, and everything is undone. Later steps pay nothing.

    A layer that writes in place to what one of its operations has saved raises in the backward, as it does
    without.

    Each recomputation sees the numbers, `training` and tensors that its modules had as attributes in the
    forward, lists and dictionaries of such as it had them and was given them, the modules and hooks that were
    inside, and the attention backends and default dtype then chosen; so it does the attributes of other
    objects, globals, variables of closures and of classes that the layer's code names, and generators of
    random numbers there. Afterwards all are as before it, so that counts and loads are not added up twice,
    and a hook that the layer puts on a gradient runs once. What its code does not name, such as
    `getattr(config, name)`, and iterators are read as they are then.

    Refused: a layer that writes in place to a tensor that it did not make, its own, one that it is given or
    another module's, also through `.data`, in its first forward to train or to evaluate; a weight, buffer or
    other tensor that it reads and that is written between the forward and the backward; a hook that changed
    something and is removed between the two; a buffer that gets other memory (`.data = ...`). Between the
    forward and the backward, writes in place through `.data` count as none: after the first backward they
    give wrong gradients, as `weight.data = ...` there does.
    """
    if every < 1:
        raise Refused(f"every={every} takes no layer", "every=1 takes all of them, every=2 every second one")
    _refuse_what_checkpoints(model)
    if plan is not None:
        if every != 1 or layers is not None:
            raise Refused("a plan says by itself what is recomputed", "leave out `every` and `layers`")
        return Checkpointed(model, planned_modules(model, plan), (), verify is not None)
    if layers is None:
        found = repeated_layers(model)
    elif isinstance(layers, str):
        depth = layers.count(".")
        found = [
            [part for name, part in named(model) if name.count(".") == depth and ends_like(name, layers)]
        ]
    else:
        found = [list(layers)]
    inside = {id(module) for module in model.modules()}
    if others := [layer for group in found for layer in group if id(layer) not in inside]:
        raise Refused(f"{shown(repr(others[0]))} is no module of the model", THE_LAYERS)
    chosen = [layer for group in found for layer in group[::every]]
    if not chosen:
        raise Refused(
            f"there are no layers to checkpoint for {layers!r}"
            if layers
            else "no repeated layers were found",
            THE_LAYERS,
        )
    kept = (keep,) if isinstance(keep, str) else tuple(keep)
    return Checkpointed(model, chosen, kept, verify is not None)


class Checkpointed(AppliedRemedy):
    """A model whose layers are recomputed in the backward, until `undo()` or the end of the `with` block."""

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Sequence[torch.nn.Module],
        keep: tuple[str, ...],
        verify: bool = True,
    ) -> None:
        self.model = model
        self.layers = list(layers)
        self.keep = keep
        self.forwards = 0  # of checkpointed layers, with gradients
        self.recomputed = 0
        self.caches_dropped = 0
        self.measured: CheckpointingMeasured | None = None
        self._names = {id(module): name for name, module in named(model)}
        self._bypassed = False
        self._unchecked = {id(layer) for layer in self.layers}
        self._watched: set[tuple[int, bool]] = set()  # forwards, to train or not
        self._kept: dict[str, int] = dict.fromkeys(keep, 0)  # how many operators each name has kept
        self._cached: Storages | None = None
        self._running = threading.local()  # which modules named in keep are running
        self._forwards = Forwards()
        self._repeats = Repeats(self.undo) if verify else None
        # By the id of a layer that has run.
        self._drawn_on: dict[int, tuple[RandomNumbers, LayerState]] = {}
        for layer in self.layers:
            _refuse_layer(self._name(layer), layer, self._unchecked)
        for layer in self.layers:
            self._watch_kept_modules(layer)
        for layer in self.layers:
            self._forwards.replace(layer, self._run)
            _OURS.add(layer)

    def _take_back(self) -> None:
        """The layers' forwards are what they were. Graphs made before may still be used."""
        self._forwards.restore()
        for layer in self.layers:
            _OURS.discard(layer)

    def measure(self, step: Callable[[], torch.Tensor]) -> CheckpointingMeasured:
        """One step without and one with checkpointing, from the same state: bytes, products, gradients.

        `step` runs the forward and returns the loss; the backward is run here. Each side runs twice, once to
        count what is saved and once for the peak. Gradients, buffers and random numbers are put back
        afterwards. Refuses, and undoes, when nothing is saved.
        """
        before, after = self._measured(step, bypassed=True), self._measured(step, bypassed=False)
        names = [name for name, _ in self.model.named_parameters()]
        different = differing(names, before.gradients, after.gradients)
        repeatable = True
        if different:  # by our doing, or because no two steps are equal here?
            again = self._measured(step, bypassed=True)
            repeatable = not differing(names, before.gradients, again.gradients)
        self.measured = CheckpointingMeasured(
            saved_bytes_before=before.saved_bytes,
            saved_bytes_after=after.saved_bytes,
            of_these_kept_bytes=after.kept_bytes,
            peak_bytes_before=before.peak_bytes,
            peak_bytes_after=after.peak_bytes,
            gemms_before=before.gemms,
            gemms_recomputed=after.gemms - before.gemms,
            layers_recomputed=after.recomputed,
            gradients_differing=tuple(different),
            gradients_repeatable=repeatable,
            peak_by=(
                f"the allocator of {self._device()}"
                if self._device().type == "cuda"
                else "tensors alive on the CPU"
            ),
        )
        if after.saved_bytes >= before.saved_bytes or not after.recomputed:
            self.undo()
            raise Refused(
                f"checkpointing saves nothing here: {written(before.saved_bytes)} without,"
                f" {written(after.saved_bytes)} with it, {after.recomputed} layers recomputed",
                "the layers save little besides their input, or keep too much; it has been undone",
            )
        return self.measured

    def report(self) -> TextReport:
        """What is checkpointed, what has been recomputed so far, and what was measured."""
        first, last = self._name(self.layers[0]), self._name(self.layers[-1])
        lines = [
            f"checkpointed   {len(self.layers)} modules, {first} to {last}",
            f"kept           {', '.join(self.keep) or 'nothing'}",
            f"so far         {self.forwards} forwards, {self.recomputed} recomputed",
        ]
        if self.caches_dropped:
            lines.append(f"caches dropped {self.caches_dropped}: use_cache=False avoids making them")
        if self.forwards and self._unchecked:
            lines.append(f"not yet run    {len(self._unchecked)} of the modules")
        if self._repeats:
            lines.append(f"compared       {self.compared} saved tensors with those computed again")
            if self._repeats.rounded:
                some = ", ".join(sorted(self._repeats.rounded)[:3])
                lines.append(
                    f"not repeatable {len(self._repeats.rounded)} modules differ by rounding: {some}"
                )
        measured = str(self.measured) if self.measured else "not measured: call measure(step)"
        figures = {
            "modules": [self._name(layer) for layer in self.layers],
            "keep": self.keep,
            "forwards": self.forwards,
            "recomputed": self.recomputed,
            "caches_dropped": self.caches_dropped,
            "not_yet_run": len(self._unchecked),
            "compared": self.compared,
            "differ_by_rounding": sorted(self._repeats.rounded) if self._repeats else [],
            "measured": self.measured,
        }
        return TextReport("checkpointing", (*lines, measured), figures)

    @property
    def compared(self) -> int:
        """How many saved tensors were compared with those computed again."""
        return self._repeats.compared if self._repeats else 0

    def _measured(self, step: Callable[[], torch.Tensor], bypassed: bool) -> Step:
        self._bypassed = bypassed
        forwards, recomputed = self.forwards, self.recomputed  # in training: these do not count
        parameters = list(self.model.parameters())
        try:
            with state_put_back(self.model):
                saved, self._cached = Storages(parameters), Storages(parameters)
                with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
                    loss = step()
                kept_bytes, saved_bytes = self._cached.nbytes, saved.nbytes
                self._cached = None
                del loss, saved  # what is held here would count in the peak below
            with state_put_back(self.model), Gemms() as gemms:
                with peak.measured(self._device(), existing=parameters) as meter:
                    cast("Any", step()).backward()
                gradients = [None if p.grad is None else p.grad.to("cpu", copy=True) for p in parameters]
            done = self.recomputed - recomputed
        finally:
            self.forwards, self.recomputed = forwards, recomputed
            self._bypassed, self._cached = False, None
        saved_bytes += kept_bytes
        return Step(saved_bytes, kept_bytes, meter.peak_bytes, gemms.count, done, gradients)

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _name(self, module: torch.nn.Module) -> str:
        return self._names.get(id(module)) or type(module).__name__

    def _run(self, forward: Callable[..., Any], layer: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(layer, *args, **kwargs)
        try:
            caches = {id(value) for value in (*args, *kwargs.values()) if self._is_cache(layer, value)}
            if kwargs.get("use_cache") and not caches:
                kwargs["use_cache"] = False

            def with_own(_: Any, *values: Any, **named_values: Any) -> Any:
                own = [emptied(value) if id(value) in caches else value for value in values]
                named_own = {
                    name: emptied(value) if id(value) in caches else value
                    for name, value in named_values.items()
                }
                return forward(layer, *own, **named_own)

            run = with_own if caches else forward
            if self._bypassed:
                return run(layer, *args, **kwargs)
            return self._checkpointed(run, layer, args, kwargs)
        except Impossible:
            self.undo()
            raise

    def _checkpointed(
        self,
        forward: Callable[..., Any],
        layer: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if torch.compiler.is_compiling():
            raise Impossible(
                f"'{self._name(layer)}' is being compiled, and checkpointing here is eager",
                "compile without optimize.checkpoint: the compiler recomputes what is cheap by itself",
            )
        if _FUNCTORCH.peek_interpreter_stack() is not None:
            raise Impossible(
                f"'{self._name(layer)}' runs inside torch.func.vmap, jvp or grad, where nothing can be "
                "computed again",
                "leave out optimize.checkpoint, or use torch.autograd",
            )
        if _FORWARD_MODE._current_level >= 0:
            raise Impossible(
                f"'{self._name(layer)}' runs inside torch.autograd.forward_ad.dual_level, whose tangents are "
                "gone when it is computed again",
                "leave out optimize.checkpoint, or take the derivative outside of it",
            )
        if layer.training and getattr(layer, "gradient_checkpointing", False):
            raise Impossible(f"'{self._name(layer)}' meanwhile checkpoints by itself", _SWITCH_OFF)
        names, count = list(kwargs), len(args)
        first = id(layer) in self._unchecked
        self.forwards += 1
        numbers, state = self._drawn_on.get(id(layer), (None, None))
        if numbers is None or state is None or not state.is_of_now():
            state = LayerState(layer, self._name(layer))
            numbers = RandomNumbers(layer, state.random_sources())
            if first or id(layer) in self._drawn_on:  # of a copy of the model, each time
                self._drawn_on[id(layer)] = numbers, state
        states = numbers.states()
        every: tuple[Any, ...] = (*args, *kwargs.values())
        given = LayerArguments(every, self._name(layer))
        originals, handed = themselves(every), given.without_containers(every)
        as_given: tuple[Any, ...] = every
        before: Before | None = None

        # Every tensor is handed over by position: torch looks there, and nowhere else, for the devices whose
        # random numbers it has to bring back, and transformers passes most by name.
        def run(*values: Any) -> Any:
            nonlocal before, as_given
            if before is None:
                values, as_given = as_given, ()  # with the lists themselves, which are not held
                named_values = dict(zip(names, values[count:], strict=True))
                with state.forward(values) as before:
                    if (id(layer), layer.training) in self._watched:
                        return forward(layer, *values[:count], **named_values)
                    with WatchedForward(self._name(layer), layer, values) as watched:
                        result = forward(layer, *values[:count], **named_values)
                    self._watched.add((id(layer), layer.training))
                    state.reads(watched.read, before)
                    return result
            self.recomputed += 1
            values = given.with_containers(with_own_gradients(values, originals))
            tensors = [
                *(one for one in values if isinstance(one, torch.Tensor)),
                *given.tensors(),
                *before.tensors(),
            ]
            try:
                with (
                    numbers.as_they_were(states),
                    given.again(),
                    state.again(before),
                    no_more_hooks(tensors),
                    GradientsOnce(self._name(layer), tensors) as gradients,
                    unwritten_saves(gradients.begin),
                    AsRefusals(self._name(layer)),
                ):
                    forward(layer, *values[:count], **dict(zip(names, values[count:], strict=True)))
            except Refused:
                self.undo()
                raise
            return None

        more: dict[str, Any] = {"context_fn": self._contexts} if self.keep else {}
        comparing = self._repeats.comparing(self._name(layer), layer) if self._repeats else nullcontext(more)
        around = top_hooks()
        drawn = torch.get_rng_state() if around is not None and drawn_anew(around) else None
        with comparing as compared:
            result = _torch.checkpoint(run, *handed, use_reentrant=False, **(more | compared))
        if drawn is not None and not torch.equal(drawn, torch.get_rng_state()):
            raise Impossible(
                f"'{self._name(layer)}' draws random numbers within a checkpoint that draws others when it "
                "computes again (preserve_rng_state=False)",
                f"leave preserve_rng_state out there, or {DO_NOT}",
            )
        if first:
            self._unchecked.discard(id(layer))
            self._check_kept()
        return result

    def _is_cache(self, layer: torch.nn.Module, value: Any) -> bool:
        """Whether a layer is given a cache, which the recomputation would write a second time: an empty one
        is of no use in training, and the layer gets one of its own each time."""
        if not (hasattr(value, "get_seq_length") and hasattr(value, "update")):
            return False
        indices = (getattr(module, "layer_idx", None) for module in layer.modules())
        index = next((one for one in indices if isinstance(one, int)), 0)
        filled = int(value.get_seq_length(index))
        parts = (getattr(value, part, None) for part in ("self_attention_cache", "cross_attention_cache"))
        kinds = {type(part).__name__ for part in parts if part is not None} or {type(value).__name__}
        if filled or kinds != {"DynamicCache"}:  # others are of their final size from the start
            raise Impossible(
                f"'{self._name(layer)}' reads a {type(value).__name__} of {filled} tokens, which recomputing"
                " would change",
                "call the model with use_cache=False and without past_key_values, or under torch.no_grad()",
            )
        if not self.caches_dropped:
            warnings.warn(
                "checkpointed layers fill no key-value cache; pass use_cache=False in training", stacklevel=2
            )
        self.caches_dropped += 1
        return True

    def _contexts(self) -> Any:
        modes = _torch.create_selective_checkpoint_contexts(self._policy)
        return tuple(blind_to_own(mode) for mode in modes)

    def _policy(self, context: Any, operator: Any, *_: Any, **__: Any) -> Any:
        name: str = operator.name().partition(".")[0]
        keeps: list[str] = []
        if _ATTENTION in self.keep and ("attention" in name or "flash_attn" in name):
            keeps.append(_ATTENTION)
        if name in GEMMS:
            keeps += getattr(self._running, "names", [])
        if not keeps:
            return _torch.CheckpointPolicy.PREFER_RECOMPUTE
        for one in keeps:
            self._kept[one] += 1
        if self._cached is not None:
            for tensor in tree_leaves(context.op_output):
                self._cached.pack(tensor)
        return _torch.CheckpointPolicy.MUST_SAVE

    def _watch_kept_modules(self, layer: torch.nn.Module) -> None:
        """Notes, while a module that `keep` names runs, that it does."""
        for wanted in self.keep:
            if wanted == _ATTENTION:
                continue
            found = [module for name, module in named(layer) if name and ends_like(name, wanted)]
            if not found:
                self._forwards.restore()
                inside = ", ".join(sorted({name for name, _ in named(layer) if name})[:12])
                raise Refused(
                    f"'{self._name(layer)}' has no '{wanted}' to keep",
                    f"name 'attention', or modules of the layer: {inside}",
                )
            for module in found:
                self._forwards.replace(module, self._noting(wanted))

    def _noting(self, name: str) -> Callable[..., Any]:
        def run(forward: Callable[..., Any], module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            names: list[str] = self._running.__dict__.setdefault("names", [])
            names.append(name)
            try:
                return forward(module, *args, **kwargs)
            finally:
                names.remove(name)

        return run

    def _check_kept(self) -> None:
        if self._unchecked:
            return
        for name, count in self._kept.items():
            if count:
                continue
            what = "fused attention operator" if name == _ATTENTION else f"matrix product inside '{name}'"
            raise Impossible(
                f"no layer ran any {what}, so nothing of it could be kept",
                "attn_implementation='sdpa' makes attention one operator (with dropout on a GPU only);"
                " keep=() recomputes everything",
            )


_SWITCH_OFF = "model.gradient_checkpointing_disable(), or leave out optimize.checkpoint"


def _refuse_what_checkpoints(model: torch.nn.Module) -> None:
    for name, module in named(model):
        where = f"'{name}'" if name else "the model"
        if getattr(module, "gradient_checkpointing", False):
            raise Refused(f"{where} already checkpoints (gradient_checkpointing is on)", _SWITCH_OFF)
        if any(base.__name__ == "CheckpointWrapper" for base in type(module).__mro__):
            raise Refused(f"{where} already checkpoints (CheckpointWrapper)", "take one of the two away")
        if module in _OURS:
            raise Refused(f"{where} is already checkpointed", "undo() the first one, or use it")
    _refuse_compiled("the model", model)


def _refuse_compiled(where: str, module: torch.nn.Module) -> None:
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        raise Refused(
            f"{where} is compiled, and checkpointing here is eager",
            "leave it out: the compiler recomputes what is cheap by itself",
        )


def _refuse_layer(where: str, layer: torch.nn.Module, chosen: set[int]) -> None:
    refuse_lazy(layer, f"{where}.")
    for name, module in named(layer):
        _refuse_compiled(f"'{where}.{name}'" if name else f"'{where}'", module)
        if name and id(module) in chosen:
            raise Refused(
                f"both '{where}' and '{name}' in it are to be checkpointed",
                "take the outer or the inner ones",
            )
        if hasattr(module, "running_mean") and getattr(module, "track_running_stats", False):
            raise Refused(
                f"'{where}' has running statistics ('{name}', {type(module).__name__}): recomputing would"
                " count every batch twice",
                "checkpoint other layers (layers=...), or use a norm without running statistics",
            )
