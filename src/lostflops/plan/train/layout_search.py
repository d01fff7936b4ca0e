"""The fastest layouts of a job that fit: tensor, pipeline and expert ranks, and what they need besides.

The step stays what it is: as many sequences, shared by fewer data-parallel ranks in more microbatches. Tensor
ranks stay within a node, as everybody trains, and share the sequence too. Of checkpointing the least that
fits is taken. Pipelines shard optimizer states (ZeRO stage 1, Megatron's distributed optimizer); without
a pipeline FSDP2 is tried beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from lostflops.errors import ImpossibleLayout

from .job import CONTEXT, Prediction, Training
from .layout import Layout, Sharding, check
from .static_memory import parts

# Of a GPU's memory: the published pipelines took 10 to 20 % more than is counted (docs/planning.md).
PIPELINE_ROOM = 0.85
LONGEST_PIPELINE = 32
LARGEST_MICROBATCH = 8
LONG = 32_768  # tokens from which sequences are shared by context ranks
NARROWEST_EXPERT = 1024  # columns of an expert's piece, below which its products are too small for a GPU
CHECKPOINTINGS = ("none", "selective", "full")


@dataclass(frozen=True)
class FoundLayout:
    """A layout that fits, and how it differs from the job as asked. `per_token` is GPU-nanoseconds."""

    changes: tuple[str, ...]
    prediction: Prediction

    @property
    def per_token(self) -> float:
        return self.prediction.step_ns * self.prediction.training.layout.gpus / self.prediction.tokens


def searchable(training: Training) -> bool:
    """Whether layouts are worth a search: a whole decoder is trained on several GPUs, and none was given."""
    here, shape = training.layout, training.shape
    return (
        here.gpus > 1 and not here.splits and not training.lora and shape.causal and not shape.encoder_layers
    )


def search(training: Training, most: int = 3) -> tuple[FoundLayout, ...]:
    """The fastest, at most one for each split into tensor, pipeline and expert ranks."""
    if not searchable(training):
        return ()
    best: dict[tuple[int, int, int, int], FoundLayout] = {}
    for here in _layouts(training):
        key = here.tensor, here.pipeline, here.expert, here.context
        for found in _of(training, here):
            if key not in best or found.per_token < best[key].per_token:
                best[key] = found
    return tuple(sorted(best.values(), key=lambda found: found.per_token)[:most])


def _sizes(largest: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: what numbers of GPUs are made of."""
    size = 1
    while size <= largest:
        yield size
        if size > 1 and size * 3 // 2 <= largest:
            yield size * 3 // 2
        size *= 2


def _layouts(training: Training) -> Iterator[Layout]:
    t, gpus = training, training.layout.gpus
    tensors = [size for size in (1, 2, 4, 8) if size <= min(t.gpu.node, gpus)]
    if t.shape.experts:
        tensors = [size for size in tensors if size == 1 or t.shape.expert_width // size >= NARROWEST_EXPERT]
    contexts = [size for size in (1, 2, 4, 8) if size <= gpus] if t.sequence >= LONG else [1]
    for tensor, context in product(tensors, contexts):
        for pipeline in _sizes(min(LONGEST_PIPELINE, gpus // (tensor * context), t.shape.layers)):
            replicas = gpus // (tensor * pipeline)
            for expert in _sizes(min(t.shape.experts, replicas) if t.shape.experts else 1):
                if tensor * context * pipeline * expert == 1:
                    continue
                together = tensor > 1 and t.sequence // context % tensor == 0
                for sharding in _shardings(pipeline, replicas):
                    here = Layout(
                        gpus, tensor, together, pipeline, expert=expert, context=context, sharding=sharding
                    )
                    try:
                        check(t.shape, here, t.sequence)
                    except ImpossibleLayout:
                        continue
                    yield here


def _shardings(pipeline: int, replicas: int) -> tuple[Sharding, ...]:
    if replicas == 1:
        return ("none",)
    return ("zero-1",) if pipeline > 1 else ("zero-1", "fsdp2")


def _of(training: Training, here: Layout) -> Iterator[FoundLayout]:
    t = training
    sequences = t.microbatch * t.microbatches * t.layout.data
    if sequences % here.data:
        return
    static = parts(t.shape, here, 0, t.optimizer)
    if sum(part.bytes for part in static) > t.gpu.memory and not t.optimizer_away:
        return
    mine = sequences // here.data
    for microbatch in (size for size in (1, 2, 4, LARGEST_MICROBATCH) if mine % size == 0):
        for schedule in _schedules(t, here, mine // microbatch):
            now = replace(t, layout=schedule, microbatch=microbatch, microbatches=mine // microbatch)
            for checkpointing in CHECKPOINTINGS[CHECKPOINTINGS.index(_least(t)) :]:
                if checkpointing == "selective" and here.stage < 3:
                    continue  # Megatron computes whole layers again, or little of attention
                prediction = Prediction(replace(now, checkpointing=checkpointing))
                if _fits(prediction):
                    yield FoundLayout(_changes(t, prediction.training), prediction)
                    break


def _fits(prediction: Prediction) -> bool:
    memory = prediction.training.gpu.memory
    room = PIPELINE_ROOM * memory if prediction.training.layout.pipeline > 1 else memory
    return prediction.fits and max(prediction.reserved + CONTEXT, prediction.peak.bytes) <= room


def _least(training: Training) -> str:
    return "selective" if training.checkpointing == "alternate" else training.checkpointing


def _schedules(training: Training, here: Layout, microbatches: int) -> Iterator[Layout]:
    yield here
    pieces = 2 * here.pipeline
    if here.pipeline > 1 and pieces <= training.shape.layers and microbatches % here.pipeline == 0:
        yield replace(here, schedule="interleaved", chunks=2)


def _changes(before: Training, now: Training) -> tuple[str, ...]:
    here = now.layout
    named = [
        f"{name} {size}"
        for name, size in (
            ("tensor", here.tensor),
            ("pipeline", here.pipeline),
            ("expert", here.expert),
            ("context", here.context),
        )
        if size > 1
    ]
    changes = [" x ".join(named) + (" in two pieces" if here.chunks > 1 else "")]
    if here.sharding != before.layout.sharding and here.sharding != "none":
        changes.append({"zero-1": "ZeRO stage 1", "fsdp2": "FSDP2"}[here.sharding])
    if now.checkpointing != before.checkpointing:
        whole = now.checkpointing == "full"
        changes.append("checkpoint every layer" if whole else "checkpoint all but attention")
    if now.microbatch != before.microbatch:
        changes.append(f"microbatch {now.microbatch}")
    return tuple(changes)
