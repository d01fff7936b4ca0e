"""The ways to make a training job fit, each predicted as a whole: memory, time, and what it costs.

Combined remedies are planned together, gains are never added. A job that fits is told so first: memory is
then no reason to change anything. A combination is left out where fewer changes fit and are as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import log
from typing import Any

from lostflops.plan.modules import quantisable

from . import layout_search
from .job import Prediction, Training, free
from .layout import stage_layers
from .static_memory import OPTIMIZERS, Lora, adapters
from .timeline import KEEP

Change = Mapping[str, Any]

DOUBLINGS = 5  # of the number of GPUs, where it does not fit on those that were asked for
EQUAL = 1.01  # times as long counts as equally fast
# Times as long is worth the optimizer that was asked for, Adam before others, and a model that is not split;
# a job that may run out of memory is worth little.
WORTH, ROOM_WORTH = 1.10, 1.5
TIGHT = 0.95  # of a GPU's memory: what is freed in pieces may not fit into the rest
OTHER_OPTIMIZERS = {"8-bit Adam": "adam-8bit", "Adafactor": "factored"}
OTHER_LAYOUT = "Tensor or pipeline parallelism"
OTHER_LOSS = "another optimizer: check the loss"

# What applies a change to a model as it is. The others are settings of the job, or of its framework.
APPLY = {
    "checkpoint all but attention": "lostflops.optimize.checkpoint",
    "checkpoint every layer": "lostflops.optimize.checkpoint",
    "offload activations": "lostflops.optimize.offload",
    "offload what is free": "lostflops.optimize.offload",
    "stream frozen weights": "lostflops.optimize.stream_frozen",
    "unified memory": "lostflops.optimize.managed",
    "FP8": "lostflops.optimize.to_fp8",
}


@dataclass(frozen=True)
class Way:
    """The job with some changes. `changes` are in words and empty for the job as it was asked."""

    changes: tuple[str, ...]
    prediction: Prediction
    remark: str = ""

    @property
    def name(self) -> str:
        return " + ".join(self.changes) or "as asked"

    @property
    def apply(self) -> tuple[str, ...]:
        """Functions that make those of the changes that are made by a call."""
        return tuple(dict.fromkeys(APPLY[change] for change in self.changes if change in APPLY))


@dataclass(frozen=True)
class Ranking:
    """Each remedy `alone`; the fastest `layouts`; all `ways` that fit, fastest first; a `verdict`."""

    asked: Way
    alone: tuple[Way, ...]
    layouts: tuple[Way, ...]
    ways: tuple[Way, ...]
    verdict: str

    @property
    def headline(self) -> Way:
        """The way that the verdict names: the job as asked where it fits, or nothing does."""
        return _headline(self.asked, self.ways)


def rank(training: Training, most: int = 8) -> Ranking:
    """Plan the job as asked, with each remedy alone, and with combinations of them.

    Where none of them fits, more GPUs are added, twice as many at a time.
    """
    if training.unified and not Prediction(training).excess:
        training = replace(training, unified=False)  # nothing migrates
    asked = Way((), Prediction(training))
    alone = tuple(_alone(training, asked))
    combined = list(_combined(training))
    layouts = _layouts(training)
    kept = _kept((asked, *alone, *combined, *layouts))
    larger = _with_more_gpus(training) if not any(_explicit(way) for way in kept) else ()
    ways = (*larger, *kept)
    best = _headline(asked, ways)
    shown = ways[:most] if best in ways[:most] or best is asked else (*ways[: most - 1], best)
    return Ranking(asked, alone, layouts, shown, _verdict(asked, alone, layouts, ways, combined))


def _layouts(training: Training) -> tuple[Way, ...]:
    return tuple(Way(found.changes, found.prediction) for found in layout_search.search(training))


def _kept(found: Sequence[Way]) -> list[Way]:
    """Those that fit and have no needless change: fastest first, unified memory behind all others."""
    fitting = [way for way in found if way.prediction.fits]
    kept: list[Way] = []
    for way in sorted(fitting, key=lambda way: len(way.changes)):
        if not any(_needless(way, other) for other in kept):
            kept.append(way)
    fastest = min((_per_token(way) for way in kept), default=1.0)
    return sorted(
        kept,
        key=lambda way: (
            not _explicit(way),
            int(log(_per_token(way) / fastest) / log(EQUAL)),  # as fast: then by what it asks for
            _preference(way),
            _per_token(way),
            len(way.changes),
        ),
    )


def _preference(way: Way) -> int:
    """The optimizer that was asked for comes before another one, and Adam's before others."""
    return next((n for n, name in enumerate(OTHER_OPTIMIZERS, 1) if name in way.changes), 0)


def _explicit(way: Way) -> bool:
    """Whether it fits without leaving it to the driver what is in the GPU's memory."""
    return not way.prediction.training.unified


def _needless(way: Way, other: Way) -> bool:
    """Whether `other` does with a part of the changes what `way` does, or all but a hundredth of it."""
    fewer = set(other.changes) < set(way.changes) and (_roomy(other) or not _roomy(way))
    return fewer and _explicit(other) and _per_token(other) <= 1.01 * _per_token(way)


def _per_token(way: Way) -> float:
    t = way.prediction.training
    return way.prediction.step_ns * t.layout.gpus / way.prediction.tokens


def _with_more_gpus(training: Training) -> tuple[Way, ...]:
    """The job on the fewest GPUs, doubled, on which some combination fits with room; nothing if none fits."""
    gpus, tight = training.layout.gpus, ()
    for _ in range(DOUBLINGS):
        gpus *= 2
        larger = replace(training, layout=replace(training.layout, gpus=gpus))
        first = Way((f"{gpus} GPUs",), Prediction(larger))
        more = (*_alone(larger, first), *_combined(larger), *_layouts(larger))
        found = [first, *(_joined(first, way) for way in more)]
        kept = tuple(way for way in _kept(found) if _explicit(way))
        if any(map(_roomy, kept)):
            return kept
        tight = tight or kept
    return tight


def _joined(first: Way, way: Way) -> Way:
    return Way((*first.changes, *way.changes), way.prediction, way.remark)


def _choices(training: Training) -> list[dict[str, Change]]:
    """Per dimension, the changes that can be made to it, by name."""
    t = training
    checkpoint: dict[str, Change] = {}
    if t.checkpointing == "none":
        checkpoint["checkpoint all but attention"] = {"checkpointing": "selective"}
    if t.checkpointing != "full":
        checkpoint["checkpoint every layer"] = {"checkpointing": "full"}
    offload: dict[str, Change] = {}
    if not t.offloaded:
        offload = {"offload activations": {"offloaded": "all"}, "offload what is free": {"offloaded": "free"}}
    sharding: dict[str, Change] = {}
    if t.layout.replicas > 1:
        here = t.layout
        for name, stage in (("zero-1", 1), ("zero-2", 2), ("zero-3", 3)):
            # Megatron shards states, torchtitan weights too; neither shards gradients alone.
            if stage > here.stage and not (here.splits and stage == 2):
                sharding[f"ZeRO stage {stage}"] = {"layout": replace(t.layout, sharding=name)}
    batch: dict[str, Change] = {}
    size = t.microbatch
    while size % 2 == 0:
        size //= 2
        more = t.microbatches * (t.microbatch // size)
        batch[f"microbatch {size}"] = {"microbatch": size, "microbatches": more}
    loss: dict[str, Change] = {} if t.fused_loss else {"fused loss": {"fused_loss": True}}
    optimizer: dict[str, Change] = {}
    away: dict[str, Change] = {}
    if t.optimizer.master and not t.optimizer_away and not t.lora:
        for name, kind in OTHER_OPTIMIZERS.items():
            optimizer[name] = {"optimizer": OPTIMIZERS[kind]}
        away["offload the optimizer"] = {"optimizer_away": True}
    stream: dict[str, Change] = {}
    if t.lora and not t.streamed and t.layout.stage < 3:
        stream["stream frozen weights"] = {"streamed": True}
    return [checkpoint, offload, stream, sharding, optimizer | away, batch, loss]


def _others(training: Training) -> dict[str, Change]:
    """Changes that are tried alone: the last resort, and one that is not for memory."""
    found: dict[str, Change] = {}
    if not training.unified:
        found["unified memory"] = {"unified": True}
    if training.gpu.fp8_gain and not training.fp8 and not (training.lora and training.lora.base_bits == 4):
        found["FP8"] = {"fp8": True}
    if training.kernels == "eager" and training.gpu.matmul:
        found["compile the layers"] = {"kernels": "fused"}
    return found


def changed(training: Training, change: Change) -> Training:
    """The job with a change, where 'all' and 'free' stand for numbers of layers."""
    kind = change.get("offloaded")
    new = replace(training, **{name: value for name, value in change.items() if name != "offloaded"})
    if kind is None:
        return new
    return replace(new, offloaded=_all(new) if kind == "all" else free(new))


def _all(training: Training) -> int:
    """As many layers of a stage as can be offloaded at all."""
    last = training.layout.pipeline - 1  # the last stage has fewest
    return max(len(stage_layers(training.shape, training.layout, last)) - KEEP, 0)


def _alone(training: Training, asked: Way) -> Iterator[Way]:
    for name, change in chain(*(choice.items() for choice in [*_choices(training), _others(training)])):
        prediction = Prediction(changed(training, change))
        if change.get("offloaded") != "free" or prediction.training.offloaded < _all(training):
            yield Way((name,), prediction, _remark(name, prediction, asked.prediction))


def _remark(name: str, now: Prediction, before: Prediction) -> str:
    if name == "unified memory":
        return "the last resort: migration is slower than copies" if before.excess else "nothing is over"
    if name == "FP8":
        return "for speed: memory stays as it is; check the loss"
    if name == "compile the layers":
        return "`torch.compile`: the first steps take longer"
    if name in OTHER_OPTIMIZERS:
        return OTHER_LOSS
    if now.peak.bytes >= before.peak.bytes:
        if "offload" in name and not now.training.offloaded:
            return "no layer can travel without making the step longer"
        largest = sorted(now.peak.parts, key=lambda part: -part.bytes)[:2]
        return f"no help: the peak is {' and '.join(part.name for part in largest)}"
    if now.host_bytes > now.training.gpu.host_memory:
        return "host memory is too small"
    return ""


def _combined(training: Training) -> Iterator[Way]:
    """Every combination of two or more changes of different dimensions."""
    nothing: tuple[str, Change] = ("", {})
    dimensions = [[nothing, *choice.items()] for choice in _choices(training)]
    for picked in product(*dimensions):
        names = tuple(name for name, _ in picked if name)
        if len(names) > 1:
            merged: dict[str, Any] = {}
            for _, change in picked:
                merged |= change
            if merged.get("streamed") and merged.get("layout", training.layout).stage >= 3:
                continue  # a sharded weight is gathered from the other ranks, not from the host
            new = changed(training, merged)
            # What is free may be all, which has a name of its own, or nothing.
            if merged.get("offloaded") != "free" or 0 < new.offloaded < _all(new):
                yield Way(names, Prediction(new), OTHER_LOSS if set(names) & set(OTHER_OPTIMIZERS) else "")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _headline(asked: Way, ways: Sequence[Way]) -> Way:
    """The fastest way, or one little slower that leaves room, keeps the optimizer or splits no model."""
    explicit = [way for way in ways if _explicit(way)]
    if not explicit or (asked.prediction.fits and _explicit(asked)):
        return asked
    fastest = _per_token(explicit[0])
    wishes = (
        (_roomy, ROOM_WORTH), (_same_optimizer, WORTH), (_adam, WORTH), (_replicated, WORTH)
    )  # fmt: skip
    for wanted, worth in wishes:
        found = list(filter(wanted, explicit))
        if found and _per_token(found[0]) <= worth * fastest:
            explicit = found
    return explicit[0]


def _adam(way: Way) -> bool:
    return _preference(way) <= 1


def _same_optimizer(way: Way) -> bool:
    return not _preference(way)


def _roomy(way: Way) -> bool:
    return way.prediction.peak.bytes <= TIGHT * way.prediction.training.gpu.memory


def _replicated(way: Way) -> bool:
    """Whether nothing is split but the states that ZeRO and FSDP shard."""
    here = way.prediction.training.layout
    return not here.splits


def _faster(asked: Way, layouts: Sequence[Way]) -> str:
    times = max((_per_token(asked) / _per_token(way) for way in layouts), default=1.0)
    if times < WORTH:
        return ""
    best = min(layouts, key=_per_token)
    return f" Another layout is {times:.1f} times as fast: {best.name}, {_gigabytes(best)} per GPU."


def _gigabytes(way: Way) -> str:
    return f"{way.prediction.peak.bytes / 1e9:,.1f} GB"


def _but(fastest: Way, best: Way) -> str:
    """Why the fastest way is not the one to take."""
    if not _roomy(fastest):
        return f", but leaves only {_left(fastest)}"
    return "" if _replicated(fastest) or not _replicated(best) else ", but splits the model"


def _verdict(
    asked: Way, alone: tuple[Way, ...], layouts: Sequence[Way], ways: Sequence[Way], combined: list[Way]
) -> str:
    now = asked.prediction
    if now.fits and _explicit(asked):
        room = now.training.gpu.memory - now.peak.bytes
        return (
            f"It fits as it is, with {room / 1e9:,.1f} GB to spare. You need not change anything for memory."
            + _faster(asked, layouts)
        )
    explicit = [way for way in ways if _explicit(way)]
    if not explicit:
        closest = min((asked, *alone, *combined), key=lambda way: way.prediction.peak.bytes)
        over = closest.prediction.excess
        reason = f"{over / 1e9:,.1f} GB over" if over else "but host memory is too small"
        last = " Unified memory would, slowly." if ways else ""
        return (
            f"Nothing that was tried makes it fit; the closest is '{closest.name}', {reason}. "
            f"{'More GPUs' if layout_search.searchable(now.training) else OTHER_LAYOUT}"
            f"{_method(now.training)} need less.{_with_adapters(now.training)}{last}"
        )
    best = _headline(asked, explicit)
    said = f"It does not fit as it is: {now.excess / 1e9:,.1f} GB over."
    if now.training.unified and now.fits:
        said = f"It fits only in unified memory: {now.excess / 1e9:,.1f} GB are over."
    elif not now.excess:
        said = "It does not fit as it is: host memory is too small."
    more = best.prediction.training.layout.gpus - now.training.layout.gpus
    said += f" Nothing that was tried fits on {_gpus(now.training.layout.gpus)}." if more else ""
    fastest = explicit[0]
    slower = _per_token(best) / _per_token(fastest)
    but = _but(fastest, best)
    which = "fastest way"
    if slower > EQUAL and (but or _preference(best)):
        which = "way to take"
    elif slower > EQUAL:
        which = "fastest way with the same optimizer"
    said += f" The {which}: {best.name}, {_gigabytes(best)} per GPU"
    if slower > EQUAL:
        said += f"; {fastest.name} is {1 - 1 / slower:.1%} faster{but}"
    same = next((way for way in explicit if not _preference(way)), None)
    if _preference(best) and same:
        longer = _per_token(same) / _per_token(best)
        shown = f"{longer:,.{0 if longer >= 10 else 1}f}"
        said += f"; with the same optimizer: {same.name}, {shown} times as long"
        said += "" if _roomy(same) else f", which leaves only {_left(same)}"
    return f"{said}.{_with_adapters(now.training) if more else ''}"


def _method(training: Training) -> str:
    """What trains less than is trained here, or keeps it in fewer bits."""
    if not training.lora:
        return " or `--method lora`"
    return " or `--method qlora`" if training.lora.base_bits == 16 and quantisable(training.shape) else ""


def _left(way: Way) -> str:
    return f"{(way.prediction.training.gpu.memory - way.prediction.peak.bytes) / 1e9:,.1f} GB"


def _with_adapters(training: Training) -> str:
    """Whether adapters would fit on the GPUs that were asked for."""
    if training.lora:
        return ""
    for method, bits in (("lora", 16), ("qlora", 4)):
        new = replace(training, lora=Lora(base_bits=bits), optimizer_away=False)
        if not adapters(new.shape.layer(0), new.lora or Lora()):
            return ""
        if bits == 4 and not quantisable(new.shape):
            return ""
        fitting = (
            Way((), Prediction(replace(new, checkpointing=kind))) for kind in ("none", "selective", "full")
        )
        for way in fitting:
            if way.prediction.fits and _roomy(way):
                return (
                    f" On {_gpus(training.layout.gpus)} `--method {method} --checkpoint "
                    f"{way.prediction.training.checkpointing}` fits, {_gigabytes(way)} per GPU."
                )
    return ""
