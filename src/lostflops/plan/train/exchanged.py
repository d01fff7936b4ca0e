"""What ranks of a training job exchange, and what of that compute waits for: gradients, sharded weights.

Layers exchange beside their own compute, as `layer_time` has it. Here is what that does not hide: what
comes once per step, and the embedding and head, which have no compute to hide behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lostflops.plan.shape import Weight

from . import layer_time, layout, static_memory

if TYPE_CHECKING:
    from .job import Training


def once_per_step(training: Training, stage: int) -> Iterator[tuple[str, float, str]]:
    """What is exchanged once per step, as far as the last microbatch's backward does not hide it."""
    t, here = training, training.layout
    if here.replicas == 1 or (here.stage >= 3 and not here.keeps_gathered):
        return
    of_layers, hidden, again = 0.0, 0.0, 0.0
    for number in layout.stage_layers(t.shape, here, stage):
        done = work(t, number)
        of_layers += layer_time.reduced_seconds(done, t.gpu, here)
        again += layer_time.gathered_once_seconds(done, t.gpu, here)
        back = layer_time.backward(done, t.gpu, here, fp8=t.fp8, fine=t.fine, reduces=False)
        hidden += max(back.compute, back.memory)
    hidden *= t.overlapped
    first, last = layout.stage_ends(t.shape, here, stage)
    embedding, once = _ends_seconds(t, first)
    head, more = _ends_seconds(t, last)
    again += once + more
    # A pipeline gathers while others compute; without one, weights are gathered behind the update.
    behind = here.stage in (1, 2) and not here.splits
    if here.stage != 2 or here.keeps_gathered:
        reduced = of_layers + embedding + head + (0.0 if behind else again)
        # The first layer's gradients come last, or the embedding's, and hide behind nothing.
        layers = len(layout.stage_layers(t.shape, here, stage))
        least = max(of_layers / layers, embedding)
        yield "gradients reduced", max(reduced - hidden, least), "network"
    if behind or (here.stage == 2 and here.splits):
        yield "weights gathered", again, "network"


def _ends_seconds(training: Training, weights: list[Weight]) -> tuple[float, float]:
    """Of what no layer has: its gradients reduced, or weights and gradients in each pass; once per step."""
    t = training
    exchanged = layer_time.exchange(weights, t.layout, t.layout.replicas, t.lora, _numbers(t))
    gathered, once, reduced = (size / layer_time.between_replicas(t.gpu, t.layout) for size in exchanged)
    return gathered + reduced, once


def of_ends(training: Training, stage: int) -> Iterator[tuple[str, float, str]]:
    """Of each microbatch, what hides behind nothing: the embedding, and FSDP2's group of it and the head."""
    t, here = training, training.layout
    if here.replicas == 1 or here.stage < 2 or here.keeps_gathered:
        return
    first, last = layout.stage_ends(t.shape, here, stage)
    together = here.by_pytorch
    seconds, _ = _ends_seconds(t, [*first, *last] if together else first)
    yield f"embedding{' and head' if together else ''} exchanged", seconds, "network"


def _numbers(training: Training) -> layer_time.Exchanged:
    """How wide weights and gradients travel."""
    t = training
    gradient = static_memory.gradient_bytes(t.optimizer, t.layout, t.lora)
    if t.lora:
        return layer_time.Exchanged(4 if t.lora.fp32 else 2, gradient)
    return layer_time.Exchanged(static_memory.gathered_bytes(t.optimizer, t.layout), gradient)


def work(training: Training, number: int) -> layer_time.LayerWork:
    t = training
    like = t.shape.like(number)
    return layer_time.work(
        t.shape,
        like,
        t.layout,
        t.sequence,
        t.microbatch,
        t.lora,
        t.executed,
        fp8=t.fp8,
        exchanged=_numbers(t),
    )
