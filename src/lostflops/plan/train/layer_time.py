"""How long a layer and the rest of a step take, by resource; the largest resource bounds it.

Operations are counted exactly, attention causally, so half of the square. On a card that knows them apart,
matrix products and attention each take their operations over their own rate, and what lies between them
takes the bytes that its kernels read and write over the memory's bandwidth: eager kernels several times what
fused ones move. A pass has a fixed part as well, which makes many small microbatches slower than few large
ones. On a card with one rate, a measured one, everything of a layer is in that rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from lostflops.plan.hardware import STREAMED, Gpu
from lostflops.plan.shape import Shape, Weight, elements

from .activation_memory import EAGER, Kernels, layer_bytes
from .layout import Layout, held_layer
from .static_memory import Lora, adapters, base_bytes, in_four_bits

COLLECTIVE = 0.8  # of the network's bandwidth: 235 of 300 GB/s on eight A100 (nccl-tests)
FLASH_BACKWARD = 2.5  # of the forward's operations
SCORES_BACKWARD = 2.0  # where they are kept
FINE = 0.34  # of FP8's gain is left with a scale per row or block: +10 against +25 % of a step (torchao)
EXPERT_SMS = 20 / 132  # of the processors move tokens to experts while the others compute (DeepSeek-V3)
RING = 0.37  # more time for blocks of attention that come round the ring (torchtitan's context parallelism)
# Seconds of a layer's forward in which its kernels start and end and small products leave processors idle,
# whatever the microbatch; twice that backward. Calibrated: GPT of width 2,048 on one node of A100 (vTrain).
STARTS = 316e-6
DEQUANTISED = 3  # bytes written and read again for each weight of a 4-bit base, in 16 bits, beside its half


@dataclass(frozen=True)
class Exchanged:
    """Bytes of a number on the network: of a weight that is gathered, and of a gradient that is reduced."""

    weight: int = 2
    gradient: int = 2


SIXTEEN_BITS = Exchanged()


@dataclass(frozen=True)
class LayerWork:
    """What one rank does for one layer and microbatch."""

    linear: float  # floating-point operations of matrices, forward
    attention: float  # of attention, which stays in 16 bits
    linear_backward: float  # without recomputation
    memory: int  # bytes moved in GPU memory, forward
    tensor_bytes: float  # between tensor ranks, that compute waits for, forward; as many backward
    expert_bytes: float  # between expert ranks, likewise
    gathered_bytes: float  # on the network, beside compute, per pass
    reduced_bytes: float  # gradients on the network, beside the backward, per step or per microbatch
    moved: float = 0.0  # by the kernels between matrix products, forward; twice as much backward
    gathered_once: float = 0.0  # on the network per step, where gathered weights are kept
    # Likewise of experts: ranks with the same ones are farther apart, and share a network card with fewer.
    experts_gathered: float = 0.0
    experts_reduced: float = 0.0
    experts_gathered_once: float = 0.0
    context_bytes: float = 0.0  # keys and values round a ring, forward; with their gradients twice that back
    dequantised: float = 0.0  # to make 16-bit weights of 4-bit ones, in each pass
    scores: bool = False


@dataclass(frozen=True)
class Cost:
    """Seconds of one pass by resource. `exposed` communication comes on top of the longest of the others."""

    compute: float
    memory: float
    network: float
    exposed: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory, self.network) + self.exposed

    def overlapped(self) -> Cost:
        """With what was exposed beside compute instead."""
        return replace(self, network=self.network + self.exposed, exposed=0.0)

    @property
    def bound(self) -> str:
        longest = max(self.compute, self.memory, self.network, self.exposed)
        names = {"network": max(self.network, self.exposed), "memory": self.memory, "compute": self.compute}
        return next(name for name, seconds in reversed(names.items()) if seconds == longest)


def linear_operations(shape: Shape, number: int, tokens: int) -> int:
    """Of one layer's matrices, forward."""
    return 2 * shape.active(number) * tokens


def attention_operations(shape: Shape, sequence: int, sequences: int) -> int:
    """Of scores and weighted values over whole sequences, forward: causal ones need half of the square.

    Of the mean layer, where some see a window only: of the triangle a band is left.
    """
    half = 1 if shape.causal else 2
    square = half * sequence * sequence
    if shape.window and sequence > shape.window:
        if shape.chunked:  # triangles along the diagonal are left
            whole, rest = divmod(sequence, shape.window)
            beyond = (square // half - whole * shape.window**2 - rest**2) * shape.windowed
        else:
            beyond = (sequence - shape.window) ** 2 * shape.windowed
        square -= half * beyond // shape.layers
    return square * sequences * (shape.query_width + shape.value_width)


def layer_attention(shape: Shape, number: int, sequence: int, sequences: int, kernels: Kernels) -> float:
    """Of one layer. Kept scores are the whole square; an encoder and its decoder see each other whole."""
    if kernels.scores and shape.causal:
        once = 2 * attention_operations(replace(shape, window=0), sequence, sequences)
    else:
        once = attention_operations(shape, sequence, sequences)
    if shape.crosses(number):
        return 3 * once  # its own half, and all of the encoder's
    return 2 * once if shape.encoder_layers else once


def moved_bytes(shape: Shape, number: int, kernels: Kernels) -> tuple[int, int]:
    """Bytes per token that kernels between matrix products read and write, forward: whole, and tensor-split.

    A fused norm reads two hidden states and writes two; an eager one of Llama casts, squares, averages and
    scales in fp32, 38 bytes an element. A rotary embedding is one pass or five, a gate one or two.
    """
    h, norms = shape.hidden, shape.norms + shape.crosses(number)
    kv = shape.kv_heads * shape.head_size
    heads = shape.query_width + (0 if shape.latent else kv)
    width = shape.feed_forward
    whole = 0
    if not shape.is_dense(number):
        width = shape.expert_width * shape.experts_per_token + shape.shared_width
        whole += 8 * h * shape.experts_per_token + 8 * shape.experts  # tokens sorted, and joined again
    if shape.layer_norm:
        whole += norms * 4 * h + (2 * 7 * h if kernels.fused else 2 * (5 + 6) * h)
        split = 0
    else:
        whole += norms * (8 if kernels.fused else 38 + 6) * h
        split = (4 if kernels.fused else 20) * heads
    gate = (6 if kernels.fused else 10) if shape.gated else 4
    split += gate * width
    if kernels.scores:
        split += 9 * shape.heads * kernels.scores + 4 * (heads + kv + shape.value_width)
    return whole, split


@lru_cache(maxsize=4096)
def work(
    shape: Shape,
    number: int,
    layout: Layout,
    sequence: int,
    sequences: int,
    lora: Lora | None = None,
    kernels: Kernels = EAGER,
    *,
    fp8: bool = False,
    exchanged: Exchanged = SIXTEEN_BITS,
) -> LayerWork:
    """What a rank does for layer `number` and one microbatch of `sequences`."""
    shape = kernels.run(shape)
    share = layout.tensor * layout.context
    tokens = -(-sequence * sequences // layout.context)
    linear = linear_operations(shape, number, sequence * sequences) / share
    attention = layer_attention(shape, number, sequence, sequences, kernels) / share
    attention *= 1 + RING * (layout.context - 1) / layout.context
    beside = adapters(shape.layer(number), lora) if lora else []
    small = sum(shape.reached(weight) for weight in beside)
    adapted = 2 * small * sequence * sequences / share
    mine = held_layer(shape, layout, number)
    count = elements(mine)
    hidden = 2 * tokens * shape.hidden
    tensor = expert = 0.0
    if layout.tensor > 1:  # two all-reduces, or as much in all-gathers and reduce-scatters
        tensor = 2 * 2 * hidden * (layout.tensor - 1) / layout.tensor
    if layout.expert > 1 and not shape.is_dense(number):
        # A token goes once to each node that holds experts of it; FP8 halves the way there.
        copies = shape.experts_per_token
        if shape.expert_nodes:
            copies = min(copies, shape.expert_nodes)
        expert = (1.5 if fp8 else 2) * hidden * copies * (layout.expert - 1) / layout.expert
        if layout.sequence_parallel:
            expert /= layout.tensor
    own = [w for w in mine if not w.expert]
    gathered, once, reduced = exchange(own, layout, layout.replicas, lora, exchanged)
    experts = [w for w in mine if w.expert]
    of_experts = exchange(experts, layout, layout.expert_replicas, lora, exchanged)
    whole, split = moved_bytes(shape, number, kernels)
    if layout.sequence_parallel:
        whole, split = 0, whole + split
    quantised = [w for w in mine if in_four_bits(w, lora)] if lora else []
    return LayerWork(
        linear=linear + adapted,
        attention=attention,
        linear_backward=linear * (1 if lora else 2) + 2 * adapted,
        memory=2 * count + 2 * layer_bytes(shape, number, tokens, layout, lora, kernels),
        tensor_bytes=tensor,
        expert_bytes=expert,
        gathered_bytes=gathered,
        reduced_bytes=reduced,
        gathered_once=once,
        experts_gathered=of_experts[0],
        experts_gathered_once=of_experts[1],
        experts_reduced=of_experts[2],
        moved=tokens * (whole + split / layout.tensor),
        dequantised=DEQUANTISED * elements(quantised),
        context_bytes=2 * tokens * (layout.context - 1) * _keys_and_values(shape, layout),
        scores=kernels.scores > 0,
    )


def _keys_and_values(shape: Shape, layout: Layout) -> float:
    """How wide a token's keys and values are on one tensor rank."""
    if shape.latent:
        return (shape.query_width + shape.value_width) / layout.tensor
    return 2 * shape.kv_heads * shape.head_size / min(layout.tensor, shape.kv_heads)


def exchange(
    weights: list[Weight], layout: Layout, ranks: int, lora: Lora | None, exchanged: Exchanged
) -> tuple[float, float, float]:
    """Bytes between ranks with the same weights: gathered per pass, gathered per step, gradients reduced.

    An all-reduce is a reduce-scatter and an all-gather. ZeRO's stages 1 and 2 scatter gradients, and gather
    the weights that were updated: once per step, as a pipeline with sharded weights does.
    """
    ring = (ranks - 1) / ranks
    learning = adapters(weights, lora) if lora else weights
    trained = elements(learning) * ring
    reduced = exchanged.gradient * trained * (1 if layout.stage else 2)
    if layout.stage < 3:
        return 0.0, exchanged.weight * trained if layout.stage else 0.0, reduced
    whole = exchanged.weight * trained
    if lora:
        whole += base_bytes(weights, lora) * ring
    return (0.0, whole, reduced) if layout.keeps_gathered else (whole, 0.0, reduced)


def fp8_gain(gpu: Gpu, *, fp8: bool, fine: bool = False) -> float:
    """How much faster matrix products are than in 16 bits."""
    gain = gpu.fp8_gain or 1.0
    return (1 + FINE * (gain - 1) if fine else gain) if fp8 else 1.0


def seconds(linear: float, attention: float, gpu: Gpu, *, fp8: bool, fine: bool = False) -> float:
    """Of operations; FP8 speeds up matrix products only."""
    gain = fp8_gain(gpu, fp8=fp8, fine=fine)
    return linear / gain / (gpu.matmul or gpu.sustained) + attention / (gpu.attention or gpu.sustained)


def between(bytes_moved: float, gpu: Gpu) -> float:
    """Seconds of the kernels between matrix products; in one rate for everything they are already."""
    return bytes_moved / (STREAMED * gpu.memory_bandwidth) if gpu.matmul else 0.0


def starts(gpu: Gpu) -> float:
    """Seconds of a layer's forward that no microbatch makes longer; in one rate for everything they are."""
    return STARTS if gpu.matmul else 0.0


def unpacked(done: LayerWork, gpu: Gpu) -> float:
    """Seconds to make 16-bit weights of 4-bit ones, which each pass does before it multiplies."""
    return done.dequantised / (STREAMED * gpu.memory_bandwidth)


def _attention(done: LayerWork, gpu: Gpu) -> float:
    """Operations in attention's own rate; where scores are kept it is made of matrix products."""
    ratio = (gpu.attention or gpu.sustained) / (gpu.matmul or gpu.sustained) if done.scores else 1.0
    return done.attention * ratio


def bandwidth(gpu: Gpu, ranks: int, gpus: int) -> float:
    """Bytes per second that a collective over `ranks` of a job with `gpus` reaches.

    Tensor ranks are neighbours; anything that is larger than a node crosses the network.
    """
    if gpus <= gpu.node or ranks <= gpu.node:
        return COLLECTIVE * gpu.node_bandwidth
    # Of a ring over whole nodes all network cards of a node carry a part.
    return COLLECTIVE * min(gpu.node_bandwidth, gpu.node * gpu.network)


def forward(work: LayerWork, gpu: Gpu, layout: Layout, *, fp8: bool, fine: bool = False) -> Cost:
    """Of one layer and microbatch."""
    compute = seconds(work.linear, _attention(work, gpu), gpu, fp8=fp8, fine=fine)
    compute += between(work.moved, gpu) + unpacked(work, gpu)
    compute = compute / _computing(work, layout) + starts(gpu)
    return Cost(
        compute,
        work.memory / gpu.memory_bandwidth,
        gathered_seconds(work, gpu, layout),
        _exposed(work, gpu, layout, compute),
    )


def backward(
    work: LayerWork, gpu: Gpu, layout: Layout, *, fp8: bool, reduces: bool, fine: bool = False
) -> Cost:
    """Of one layer and microbatch; `reduces` says whether its gradients are reduced beside it."""
    times = SCORES_BACKWARD if work.scores else FLASH_BACKWARD
    compute = seconds(work.linear_backward, times * _attention(work, gpu), gpu, fp8=fp8, fine=fine)
    compute += 2 * between(work.moved, gpu) + unpacked(work, gpu)
    compute = compute / _computing(work, layout) + 2 * starts(gpu)
    return Cost(
        compute,
        2 * work.memory / gpu.memory_bandwidth,
        gathered_seconds(work, gpu, layout)
        + work.context_bytes / between_replicas(gpu, layout)
        + (reduced_seconds(work, gpu, layout) if reduces else 0),
        _exposed(work, gpu, layout, compute),
    )


def _exposed(work: LayerWork, gpu: Gpu, layout: Layout, compute: float) -> float:
    tensor = bandwidth(gpu, layout.tensor, layout.gpus)
    return work.tensor_bytes / tensor + _waiting_for_experts(work, gpu, layout, compute)


def _computing(work: LayerWork, layout: Layout) -> float:
    """The share of a GPU that computes: DualPipe's kernels for expert traffic run beside the others."""
    return 1 - EXPERT_SMS if layout.schedule == "dualpipe" and work.expert_bytes else 1.0


def _waiting_for_experts(work: LayerWork, gpu: Gpu, layout: Layout, compute: float) -> float:
    """Tokens on their way to experts and back; DualPipe hides them behind what another pass computes."""
    ranks = layout.tensor * layout.expert
    near = layout.gpus <= gpu.node or ranks <= gpu.node
    seconds_ = work.expert_bytes / (COLLECTIVE * (gpu.node_bandwidth if near else gpu.network))
    return max(0.0, seconds_ - compute) if layout.schedule == "dualpipe" else seconds_


def gathered_seconds(work: LayerWork, gpu: Gpu, layout: Layout) -> float:
    """Of sharded weights in each pass, and of keys and values forward."""
    mine = (work.gathered_bytes + work.context_bytes) / between_replicas(gpu, layout)
    return mine + work.experts_gathered / between_replicas(gpu, layout, layout.expert)


def reduced_seconds(work: LayerWork, gpu: Gpu, layout: Layout) -> float:
    """Of gradients."""
    return work.reduced_bytes / between_replicas(gpu, layout) + work.experts_reduced / between_replicas(
        gpu, layout, layout.expert
    )


def gathered_once_seconds(work: LayerWork, gpu: Gpu, layout: Layout) -> float:
    """Of weights that are gathered once per step."""
    return work.gathered_once / between_replicas(gpu, layout) + work.experts_gathered_once / between_replicas(
        gpu, layout, layout.expert
    )


def between_replicas(gpu: Gpu, layout: Layout, expert: int = 1) -> float:
    """Of data-parallel collectives, whose ranks on one node use all of their network cards together."""
    if layout.gpus <= gpu.node:
        return COLLECTIVE * gpu.node_bandwidth
    members = max(1, gpu.node // (layout.tensor * expert))
    return COLLECTIVE * min(gpu.node_bandwidth, members * gpu.network)
