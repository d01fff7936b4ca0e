"""How a model and its batch are spread over GPUs, and what each rank then holds.

Data parallelism is what the other dimensions leave: gpus = data x tensor x pipeline x context. Experts are
spread over the data and context ranks, as Megatron, DeepSpeed and torchtitan do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from lostflops.errors import ImpossibleLayout
from lostflops.plan.shape import Shape, Weight

Sharding = Literal["none", "zero-1", "zero-2", "zero-3", "fsdp2"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "dualpipe"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True)
class Layout:
    """Sizes of the dimensions. `chunks` is how many pieces of the model an interleaved stage has."""

    gpus: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    schedule: Schedule = "1f1b"
    chunks: int = 1
    expert: int = 1
    context: int = 1
    sharding: Sharding = "none"

    @property
    def data(self) -> int:
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights, over which ZeRO and FSDP shard."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        return self.replicas // self.expert

    @property
    def copies(self) -> int:
        """Of each stage among its replicas: DualPipe has every stage twice in a pipeline."""
        return 2 if self.schedule == "dualpipe" and self.pipeline > 1 else 1

    @property
    def splits(self) -> bool:
        """Whether ranks share the model or a sequence, and do not only process sequences of their own."""
        return self.tensor * self.pipeline * self.context * self.expert > 1

    @property
    def keeps_gathered(self) -> bool:
        """Whether sharded weights are gathered once per step: pipelines keep them for all microbatches."""
        return self.stage >= 3 and self.pipeline > 1

    @property
    def by_pytorch(self) -> bool:
        """Whether PyTorch's own tensor and pipeline parallelism run it, as torchtitan does."""
        return self.sharding == "fsdp2"

    @property
    def whole_inputs(self) -> bool:
        """Whether products keep what was gathered for them; Megatron and compilers gather it again."""
        return self.by_pytorch and self.sequence_parallel and self.tensor > 1

    @property
    def stage(self) -> int:
        """ZeRO's stage; FSDP2 shards what stage 3 does."""
        return {"none": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3, "fsdp2": 3}[self.sharding]


MOST_NAMED = 16  # ranks that a hint names


def check(shape: Shape, layout: Layout, sequence: int) -> None:
    """Raise ImpossibleLayout where something does not come out even."""
    product = layout.tensor * layout.pipeline * layout.context
    if layout.gpus % product:
        raise ImpossibleLayout(
            f"{layout.gpus} GPU{'s' * (layout.gpus > 1)} cannot be split into tensor {layout.tensor} x "
            f"pipeline {layout.pipeline} x context {layout.context} = {product}.",
            f"choose a number of GPUs that {product} divides, or smaller dimensions.",
        )
    _even(layout.tensor, "--tensor", shape.heads, "attention heads", shape)
    if layout.tensor > shape.kv_heads:
        if not shape.latent:
            _even(shape.kv_heads, "key-value heads", layout.tensor, "tensor ranks", shape)
    else:
        _even(layout.tensor, "--tensor", shape.kv_heads, "key-value heads", shape)
    for width, what in (
        (shape.feed_forward, "feed-forward width"),
        (shape.expert_width, "expert width"),
        (shape.shared_width, "shared expert's width"),
    ):
        _even(layout.tensor, "--tensor", width, what, shape)
    _even(layout.context, "--context", sequence, "tokens of a sequence")
    if layout.sequence_parallel:
        _even(layout.tensor, "--tensor", sequence // layout.context, "tokens of a rank's sequence")
    pieces = layout.pipeline * layout.chunks
    if pieces > shape.layers:
        raise ImpossibleLayout(
            f"{shape.name} has {shape.layers} layers, fewer than the {pieces} pieces of this pipeline.",
            "choose a smaller `--pipeline` or `--chunks`.",
        )
    if layout.chunks > 1 and (layout.schedule != "interleaved" or layout.pipeline == 1):
        raise ImpossibleLayout(
            "`--chunks` is of an interleaved pipeline.", "add `--schedule interleaved --pipeline N`."
        )
    if layout.expert > 1:
        if not shape.experts:
            raise ImpossibleLayout(f"{shape.name} has no experts to spread.", "leave out `--expert`.")
        _even(layout.expert, "--expert", shape.experts, "experts", shape)
        _even(layout.expert, "--expert", layout.replicas, "data-parallel ranks")


def _even(few: int, what: str, many: int, of: str, shape: Shape | None = None) -> None:
    if many % few:
        whose = f" of {shape.name}" if shape else ""
        fitting = [str(n) for n in range(1, min(many, MOST_NAMED) + 1) if many % n == 0]
        hint = f"choose a number that divides {many:,}: {', '.join(fitting)}." if what[0] == "-" else ""
        raise ImpossibleLayout(f"The {many} {of}{whose} cannot be shared evenly by {what} {few}.", hint)


def stage_layers(shape: Shape, layout: Layout, stage: int) -> range:
    """The layers of a pipeline stage: as even as they come.

    Where they come out uneven the last stages and the first, which have the head and the embedding beside
    their layers, have one less: first the last, then the first, and so on inwards.
    """
    sizes = stage_sizes(shape.layers, layout.pipeline)
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


@lru_cache(maxsize=64)
def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage has."""
    most = -(-layers // stages)
    sizes = [most] * stages
    for turn in range(most * stages - layers):
        sizes[turn // 2 if turn % 2 else stages - 1 - turn // 2] -= 1
    return tuple(sizes)


def stage_weights(shape: Shape, layout: Layout, stage: int) -> Iterator[Weight]:
    """What one rank of a pipeline stage holds before ZeRO or FSDP shards it.

    DualPipe fills the pipeline from both ends: a rank has the stage at its place from either end.
    """
    yield from _of_stage(shape, layout, stage)
    if layout.copies == 2:
        yield from _of_stage(shape, layout, layout.pipeline - 1 - stage)


def stage_ends(shape: Shape, layout: Layout, stage: int) -> tuple[list[Weight], list[Weight]]:
    """What of a stage is before the first layer and behind the last, as one tensor rank holds it."""
    last = stage == layout.pipeline - 1
    # A tied head is the embedding once more; positions and what else is there are for the first stage.
    before = shape.before() if stage == 0 else shape.before()[:1] if last and shape.tied else ()
    behind = shape.after() if last else ()
    mine = ([held(weight, layout.tensor, layout.expert) for weight in some] for some in (before, behind))
    return next(mine), next(mine)


def _of_stage(shape: Shape, layout: Layout, stage: int) -> Iterator[Weight]:
    before, behind = stage_ends(shape, layout, stage)
    yield from before
    for number in stage_layers(shape, layout, stage):
        yield from held_layer(shape, layout, number)
    yield from behind


def held_layer(shape: Shape, layout: Layout, number: int) -> tuple[Weight, ...]:
    """A layer's weights as one rank holds them."""
    return _held_layer(shape, shape.like(number), layout.tensor, layout.expert)


@lru_cache(maxsize=64)
def _held_layer(shape: Shape, like: int, tensor: int, expert: int) -> tuple[Weight, ...]:
    return tuple(held(weight, tensor, expert) for weight in shape.layer(like))


def held(weight: Weight, tensor: int, expert: int) -> Weight:
    """The piece of a weight that one tensor- and expert-parallel rank holds; padded up where it must be."""
    pieces = min(tensor, weight.at_most or tensor)
    if weight.expert:
        weight = replace(weight, copies=weight.copies // expert)
    if weight.split == "outputs":
        return replace(weight, outputs=-(-weight.outputs // pieces))
    if weight.split == "inputs":
        return replace(weight, inputs=-(-weight.inputs // pieces))
    return weight


def microbatches_alive(layout: Layout, stage: int, microbatches: int) -> int:
    """Microbatches whose activations a stage holds at once, for schedules without chunks."""
    if layout.schedule == "gpipe":
        return microbatches
    if layout.schedule == "dualpipe":  # from both ends: every stage holds what two of them would
        return min(microbatches, layout.pipeline + 1)
    return min(microbatches, layout.pipeline - stage)


def layers_alive(shape: Shape, layout: Layout, stage: int, microbatches: int) -> int:
    """How many layers' activations a stage holds at its fullest, over all microbatches in flight."""
    layers = len(stage_layers(shape, layout, stage))
    if layout.schedule != "interleaved" or layout.pipeline == 1:
        return layers * microbatches_alive(layout, stage, microbatches)
    # Megatron's warm-up: chunks run forward before the first backward, and the one that turns around.
    chunks = 2 * (layout.pipeline - stage - 1) + (layout.chunks - 1) * layout.pipeline + 1
    return -(-min(chunks, microbatches * layout.chunks) * layers // layout.chunks)
