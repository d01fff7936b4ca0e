"""Memory that a training step starts with: weights, gradients, optimizer states, and how they are sharded.

Bytes per parameter, after the ZeRO paper: 16-bit Adam with fp32 master weights is 2 + 2 + 12. A count is a
whole number of bytes; a shard is rounded up, so that N shards hold at least what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lostflops.plan.modules import SIXTEEN_BITS
from lostflops.plan.shape import Shape, Weight, elements

from .layout import Layout, held, held_layer, stage_layers, stage_weights

TABLES = ("embedding", "positions", "relative_positions", "segments")  # whose rows are looked up
BLOCK_8BIT = 256  # elements that share one fp32 scale in 8-bit optimizer states (bitsandbytes)
BLOCK_4BIT = 64  # and in 4-bit weights
BLOCK_DOUBLE = 256  # first-level scales that share one fp32 scale of the second level
BUCKET = 500_000_000  # elements; DeepSpeed's reduce_bucket_size and allgather_bucket_size by default


@dataclass(frozen=True)
class MemoryPart:
    """One line of a memory table: predicted bytes, and how they come about."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Optimizer:
    """Bytes per parameter of a way to train. `moments` are Adam's two, or what stands for them."""

    name: str
    weights: int
    gradients: int
    master: int
    moments: int
    meaning: str
    quantised: bool = False
    factored: bool = False


OPTIMIZERS = {
    o.name: o
    for o in (
        Optimizer("adam", 2, 2, 4, 8, "16-bit weights and gradients, fp32 master weights and moments"),
        Optimizer("adam-fp32-gradients", 2, 4, 4, 8, "the same with fp32 gradients, as Megatron keeps them"),
        Optimizer("adam-16bit", 2, 2, 0, 4, "16-bit weights, gradients and moments, no master weights"),
        Optimizer("adam-fp32", 4, 4, 0, 8, "everything in fp32"),
        Optimizer("adam-8bit", 2, 2, 0, 2, "16-bit weights, moments of one byte with scales", quantised=True),
        Optimizer("factored", 2, 2, 0, 0, "Adafactor without momentum: fp32 rows and columns", factored=True),
    )
}


@dataclass(frozen=True)
class Lora:
    """Adapters on some projections of every layer. `base_bits` 4 is QLoRA: matrices of layers in 4 bits.

    Adapters are fp32 where `fp32` says so, which is PEFT's default on a 16-bit base. Either way they take
    16 bytes per parameter with Adam: 4 + 4 + 8 or 2 + 2 + 12. Of `joined` projections, which are one module,
    all have an adapter together. `kept` are the names of matrices that stay in 16 bits where others have 4.
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q", "v")
    fp32: bool = True
    dropout: bool = False
    base_bits: int = 16
    double_quantised: bool = True
    modules: tuple[str, ...] = ()  # what the model calls what `targets` are
    joined: tuple[tuple[str, ...], ...] = ()
    kept: tuple[str, ...] = SIXTEEN_BITS

    def leads(self, target: str) -> bool:
        """Whether the adapter that stands beside a target is counted with it: of a module with its first."""
        return all(target == module[0] for module in self.joined if target in module)


PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")


def states(count: int, optimizer: Optimizer, stage: int = 0, ranks: int = 1) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer states of `count` parameters, ZeRO's `stage` over `ranks`."""
    weights, gradients = count * optimizer.weights, count * optimizer.gradients
    moments = count * (optimizer.master + optimizer.moments) + _scales(count, optimizer)
    return _sharded((weights, gradients, moments), stage, ranks)


def _sharded(parts: tuple[int, int, int], stage: int, ranks: int) -> tuple[int, int, int]:
    weights, gradients, moments = parts
    return (
        shard(weights, ranks if stage >= 3 else 1),
        shard(gradients, ranks if stage >= 2 else 1),
        shard(moments, ranks if stage >= 1 else 1),
    )


def shard(size: int, ranks: int) -> int:
    """What one of `ranks` holds of `size`, the fullest of them."""
    return -(-size // ranks)


def _scales(count: int, optimizer: Optimizer) -> int:
    return 2 * 4 * shard(count, BLOCK_8BIT) if optimizer.quantised else 0


def factored_states(weights: Iterable[Weight]) -> int:
    """Adafactor's second moments: a number per row and column of a matrix, per element of a vector."""
    return sum(4 * w.copies * (w.outputs + w.inputs if w.inputs else w.outputs) for w in weights)


def adapters(weights: Iterable[Weight], lora: Lora) -> list[Weight]:
    """The two matrices of each adapted projection."""
    found: list[Weight] = []
    for weight in weights:
        prefix, _, name = weight.name.rpartition(".")
        if name in lora.targets and weight.inputs and not weight.expert:
            beside = f"{prefix}." if prefix else ""
            if lora.leads(name):
                found.append(Weight(f"{beside}{name}.A", lora.rank, weight.inputs, copies=weight.copies))
            found.append(Weight(f"{beside}{name}.B", weight.outputs, lora.rank, copies=weight.copies))
    return found


def in_four_bits(weight: Weight, lora: Lora) -> bool:
    """Whether a weight of the frozen base is in 4 bits: vectors never are, nor what stays as it is."""
    return lora.base_bits == 4 and weight.inputs > 0 and weight.name not in lora.kept


def base_bytes(weights: Iterable[Weight], lora: Lora) -> int:
    """The frozen base. In 4 bits only the matrices of layers are: not embeddings, head, norms and router."""
    total = 0
    for weight in weights:
        if not in_four_bits(weight, lora):
            total += 2 * weight.elements
            continue
        scales = shard(weight.elements, BLOCK_4BIT)
        constants = scales + 4 * shard(scales, BLOCK_DOUBLE) if lora.double_quantised else 4 * scales
        total += shard(weight.elements, 2) + constants
    return total


def trained(shape: Shape, layout: Layout, stage: int, lora: Lora | None) -> list[Weight]:
    """The weights of a stage that are trained: all, or the adapters."""
    weights = list(stage_weights(shape, layout, stage))
    return adapters(weights, lora) if lora else weights


@lru_cache(maxsize=1024)
def parts(
    shape: Shape, layout: Layout, stage: int, optimizer: Optimizer, lora: Lora | None = None
) -> tuple[MemoryPart, ...]:
    """A rank's static memory on one pipeline stage, by component."""
    frozen = list(stage_weights(shape, layout, stage)) if lora else []
    training = trained(shape, layout, stage, lora)
    weights = gradients = moments = base = 0
    for of_experts, own in ((False, layout.replicas), (True, layout.expert_replicas)):
        ranks = own * layout.copies
        some = [w for w in training if w.expert == of_experts]
        w, g, m = _of(some, optimizer, layout, ranks, lora)
        weights, gradients, moments = weights + w, gradients + g, moments + m
        if lora:
            still = base_bytes((w for w in frozen if w.expert == of_experts), lora)
            base += shard(still, ranks if layout.stage >= 3 else 1)
    count = elements(training)
    found = [
        MemoryPart("weights", weights, f"{count:,} trained here" + _over(layout, 3)),
        MemoryPart("gradients", gradients, f"of {count:,}" + _over(layout, 2)),
        MemoryPart("optimizer states", moments, _meaning(optimizer, lora) + _over(layout, 1)),
    ]
    if lora:
        how = "16 bits" if lora.base_bits == 16 else "4 bits and scales; embedding, head, norms in 16"
        found.insert(0, MemoryPart("frozen base", base, f"{elements(frozen):,} in {how}" + _over(layout, 3)))
        found[1] = MemoryPart(
            "adapters", weights, f"rank {lora.rank} on {', '.join(lora.modules or lora.targets)}: {count:,}"
        )
    return tuple(found)


def _meaning(optimizer: Optimizer, lora: Lora | None) -> str:
    if not lora or not lora.fp32:
        return optimizer.meaning
    if optimizer.factored:
        return "fp32 rows and columns of fp32 adapters"
    kind = "moments of one byte with scales" if optimizer.quantised else "fp32 moments"
    return f"{kind} of fp32 adapters"


def _over(layout: Layout, from_stage: int) -> str:
    ranks = layout.replicas * layout.copies
    return f", over {ranks}" if layout.stage >= from_stage and ranks > 1 else ""


def _of(
    weights: Sequence[Weight], optimizer: Optimizer, layout: Layout, ranks: int, lora: Lora | None
) -> tuple[int, int, int]:
    count = elements(weights)
    if lora and lora.fp32:  # PEFT's fp32 adapters are their own master weights
        kept = optimizer.moments * count + _scales(count, optimizer) if optimizer.quantised else 8 * count
        kept = factored_states(weights) if optimizer.factored else kept
        return _sharded((4 * count, 4 * count, kept), layout.stage, ranks)
    if layout.sharding == "fsdp2" and optimizer.master and lora is None:
        # FSDP2 shards fp32 weights, which are the master, and reduces gradients into fp32.
        moments = optimizer.moments * count
        return _sharded((4 * count, 4 * count, moments), 3, ranks)
    weights_, gradients, moments = states(count, optimizer)
    if optimizer.factored:
        moments = factored_states(weights)
    return _sharded((weights_, gradients, moments), layout.stage, ranks)


@lru_cache(maxsize=1024)
def communication(
    shape: Shape,
    layout: Layout,
    stage: int,
    optimizer: Optimizer,
    tokens: int,
    lora: Lora | None = None,
    microbatches: int = 1,
) -> MemoryPart:
    """Buffers that communication fills: unsharded layers, buckets, gathered hidden states."""
    total, said = 0, list[str]()
    if layout.replicas > 1:
        if layout.stage == 0 and not layout.splits:  # without gradient_as_bucket_view, as it is by default
            total += gradient_bytes(optimizer, layout, lora) * elements(trained(shape, layout, stage, lora))
            said.append("DDP's buckets, a copy of all gradients")
        elif layout.keeps_gathered:
            held = elements(list(stage_weights(shape, layout, stage)))
            # With no more microbatches than stages a piece's backwards all come before the next piece's.
            pieces = layout.chunks if microbatches <= layout.pipeline else 1
            total += 2 * held + 4 * elements(trained(shape, layout, stage, lora)) // pieces
            one = " of one piece" if pieces > 1 else ""
            said.append(f"all gathered layers, and fp32 gradients{one} until they are reduced")
        elif layout.stage >= 3:
            unsharded, what = _unsharded(shape, layout, stage, lora)
            total += unsharded
            said.append(what)
            if layout.by_pytorch:  # what no layer has is one group, which stays gathered
                total += 2 * elements(ends(shape, layout))
                said.append("embedding and head")
        elif layout.stage > 1 or (layout.stage and optimizer.gradients < 4):
            # Megatron's distributed optimizer reduces fp32 gradients where they lie.
            each = gradient_bytes(optimizer, layout, lora)
            total += 2 * min(BUCKET, elements(trained(shape, layout, stage, lora))) * each
            said.append("two buckets of at most 5e8 elements")
    if layout.tensor > 1 and layout.sequence_parallel:
        total += 2 * tokens * shape.hidden
        said.append("one gathered hidden state")
    if layout.pipeline > 1:
        total += 4 * tokens * shape.hidden // (layout.tensor if layout.sequence_parallel else 1)
        said.append("a sent and a received hidden state")
    return MemoryPart("communication buffers", total, ", ".join(said) or "none")


def ends(shape: Shape, layout: Layout) -> list[Weight]:
    """What stands before and behind the layers, as one tensor rank holds it."""
    return [held(weight, layout.tensor, layout.expert) for weight in (*shape.before(), *shape.after())]


def cast(
    shape: Shape, layout: Layout, stage: int, optimizer: Optimizer, lora: Lora | None
) -> tuple[int, int]:
    """Bytes of 16-bit copies that autocast makes of fp32 weights: of all matrices, and of one layer's.

    FSDP2 gathers 16-bit weights instead, and runs all sharded jobs without master weights.
    """
    if lora or optimizer.weights == 2 or layout.stage:
        return 0, 0
    matrices = [w for w in stage_weights(shape, layout, stage) if w.inputs and w.name not in TABLES]
    layers = shape.kinds(stage_layers(shape, layout, stage))
    most = max(elements([w for w in held_layer(shape, layout, number) if w.inputs]) for number in layers)
    tied = elements([w for w in stage_weights(shape, layout, stage) if w.name == "embedding"]) * shape.tied
    return 2 * (elements(matrices) + tied), 2 * most


def stage3_bucket(shape: Shape) -> int:
    """Elements of the bucket that ZeRO's stage 3 fills, as the Trainer sets it; larger gradients pass by.

    It and one gradient that arrives are less than a layer's gradients, which is what is counted.
    """
    return shape.hidden * shape.hidden


def _unsharded(shape: Shape, layout: Layout, stage: int, lora: Lora | None) -> tuple[int, str]:
    """What is whole at a time, at most: two layers, or the head beside one, and gradients of what is trained.

    FSDP2 gathers the head with all else that no layer has, and that is counted apart.
    """
    layer = 0
    for number in shape.kinds(stage_layers(shape, layout, stage)):
        weights = held_layer(shape, layout, number)
        layer = max(layer, base_bytes(weights, lora) if lora else 2 * elements(weights))
    layers = (2 if lora else 3) * layer
    head = 0 if layout.by_pytorch else 2 * max(weight.elements for weight in ends(shape, layout))
    beside = (1 if lora else 2) * head + layer
    if head and beside > layers:
        return beside, f"the gathered head{'' if lora else ', its gradients'} and one gathered layer"
    return layers, "two gathered layers" + ("" if lora else " and one layer's gradients")


def on_their_way(
    shape: Shape, layout: Layout, stage: int, optimizer: Optimizer, lora: Lora | None, *, last: bool
) -> MemoryPart:
    """Gradients that FSDP2 has whole in the backward beside the layer's own, and the copy that it reduces.

    The head's are there from the loss on, until its group is reduced: behind the `last` layer, with the
    embedding's.
    """
    if not layout.by_pytorch or layout.replicas == 1 or layout.keeps_gathered:
        return MemoryPart("gradients to be reduced", 0, "none")
    each, layer, own = gradient_bytes(optimizer, layout, lora), 0, 0
    for number in shape.kinds(stage_layers(shape, layout, stage)):
        weights = held_layer(shape, layout, number)
        layer = max(layer, elements(adapters(weights, lora) if lora else weights))
        own = max(own, (4 if lora else 6) * elements(weights))
    if lora:
        return MemoryPart("gradients to be reduced", each * layer, "a layer's, copied")
    outside = ends(shape, layout)
    head = max(weight.elements for weight in outside)
    found = each * layer + 2 * head, "a layer's, copied, and the head's"
    if last:  # the layers' own are gone by then
        found = max(found, ((2 + each) * elements(outside) - own, "embedding's and head's, copied"))
    return MemoryPart("gradients to be reduced", *found)


def gathered_bytes(optimizer: Optimizer, layout: Layout) -> int:
    """Bytes of a weight's number where ranks gather it: FSDP2 casts its shards first, ZeRO gathers as kept.

    Without master weights FSDP2 runs ZeRO's stages as well.
    """
    return 2 if layout.by_pytorch or not optimizer.master else optimizer.weights


def gradient_bytes(optimizer: Optimizer, layout: Layout, lora: Lora | None) -> int:
    """Bytes of a gradient's number where ranks reduce it: fp32 of fp32 adapters, and where FSDP2 reduces."""
    if lora:
        return 4 if lora.fp32 else optimizer.gradients
    return 4 if layout.sharding == "fsdp2" and optimizer.master else optimizer.gradients
