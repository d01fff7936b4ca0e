"""How long a layer and the rest of a step take, by resource; the largest resource bounds it.

Operations are counted exactly, attention causally, so half of the square. Time is operations over the rate
that whole layers sustain, or bytes over the bandwidth of what carries them, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lostflops.plan.hardware import Gpu
from lostflops.plan.shape import Shape, elements

from .activation_memory import layer_bytes
from .layout import Layout, held_layer
from .static_memory import Lora, adapters

COLLECTIVE = 0.8  # of the network's bandwidth is what collectives of this size reach (assumed)
FLASH_BACKWARD = 2.5  # of the forward's operations


@dataclass(frozen=True)
class Work:
    """What one rank does for one layer and microbatch."""

    linear: float  # floating-point operations of matrices, forward
    attention: float  # of attention, which stays in 16 bits
    linear_backward: float  # without recomputation
    memory: int  # bytes moved in GPU memory, forward
    tensor_bytes: float  # between tensor ranks, that compute waits for, forward; as many backward
    expert_bytes: float  # between expert ranks, likewise
    gathered_bytes: float  # on the network, beside compute, per pass
    reduced_bytes: float  # gradients on the network, beside the backward, per step or per microbatch


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

    @property
    def bound(self) -> str:
        longest = max(self.compute, self.memory, self.network, self.exposed)
        names = {"network": max(self.network, self.exposed), "memory": self.memory, "compute": self.compute}
        return next(name for name, seconds in reversed(names.items()) if seconds == longest)


def linear_operations(shape: Shape, number: int, tokens: int) -> int:
    """Of one layer's matrices, forward."""
    return 2 * shape.active(number) * tokens


def attention_operations(shape: Shape, sequence: int, sequences: int) -> int:
    """Of scores and weighted values over whole causal sequences, forward."""
    return sequence * sequence * sequences * (shape.query_width + shape.value_width)


@lru_cache(maxsize=1024)
def work(
    shape: Shape, number: int, layout: Layout, sequence: int, sequences: int, lora: Lora | None = None
) -> Work:
    """What a rank does for layer `number` and one microbatch of `sequences`."""
    share = layout.tensor * layout.context
    tokens = -(-sequence * sequences // layout.context)
    linear = linear_operations(shape, number, sequence * sequences) / share
    attention = attention_operations(shape, sequence, sequences) / share
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
        expert = 2 * hidden * shape.experts_per_token * (layout.expert - 1) / layout.expert
    gathered = reduced = 0.0
    for of_experts, ranks in ((False, layout.replicas), (True, layout.expert_replicas)):
        some = [weight for weight in mine if weight.expert == of_experts]
        ring = (ranks - 1) / ranks
        trained = elements(adapters(some, lora)) if lora else elements(some)
        gathered += 2 * elements(some) * ring if layout.stage >= 3 else 0.0
        reduced += 2 * trained * ring * (1 if layout.stage >= 2 else 2)
    if layout.context > 1:  # keys and values travel round the ring
        gathered += 4 * tokens * (layout.context - 1) * shape.kv_heads * shape.head_size / layout.tensor
    return Work(
        linear=linear + adapted,
        attention=attention,
        linear_backward=linear * (1 if lora else 2) + 2 * adapted,
        memory=2 * count + 2 * layer_bytes(shape, number, tokens, layout, lora),
        tensor_bytes=tensor,
        expert_bytes=expert,
        gathered_bytes=gathered,
        reduced_bytes=reduced,
    )


def seconds(linear: float, attention: float, gpu: Gpu, *, fp8: bool) -> float:
    """Of operations at the sustained rate; FP8 speeds up matrix products only."""
    gain = gpu.fp8_gain or 1.0 if fp8 else 1.0
    return (linear / gain + attention) / gpu.sustained


def bandwidth(gpu: Gpu, ranks: int, gpus: int) -> float:
    """Bytes per second that a collective over `ranks` of a job with `gpus` reaches.

    Tensor ranks are neighbours; anything that is larger than a node crosses the network.
    """
    inside = gpus <= gpu.node or ranks <= gpu.node
    return COLLECTIVE * (gpu.node_bandwidth if inside else gpu.network)


def forward(work: Work, gpu: Gpu, layout: Layout, *, fp8: bool) -> Cost:
    """Of one layer and microbatch."""
    far = between_replicas(gpu, layout)
    return Cost(
        seconds(work.linear, work.attention, gpu, fp8=fp8),
        work.memory / gpu.memory_bandwidth,
        work.gathered_bytes / far,
        _exposed(work, gpu, layout),
    )


def backward(work: Work, gpu: Gpu, layout: Layout, *, fp8: bool, reduces: bool) -> Cost:
    """Of one layer and microbatch; `reduces` says whether its gradients are reduced beside it."""
    far = between_replicas(gpu, layout)
    return Cost(
        seconds(work.linear_backward, FLASH_BACKWARD * work.attention, gpu, fp8=fp8),
        2 * work.memory / gpu.memory_bandwidth,
        (work.gathered_bytes + (work.reduced_bytes if reduces else 0)) / far,
        _exposed(work, gpu, layout),
    )


def _exposed(work: Work, gpu: Gpu, layout: Layout) -> float:
    tensor = bandwidth(gpu, layout.tensor, layout.gpus)
    return work.tensor_bytes / tensor + work.expert_bytes / bandwidth(
        gpu, layout.tensor * layout.expert, layout.gpus
    )


def between_replicas(gpu: Gpu, layout: Layout) -> float:
    """Of data-parallel collectives, whose ranks on one node use all of their network cards together."""
    if layout.gpus <= gpu.node:
        return COLLECTIVE * gpu.node_bandwidth
    members = max(1, gpu.node // layout.tensor)
    return COLLECTIVE * min(gpu.node_bandwidth, members * gpu.network)
