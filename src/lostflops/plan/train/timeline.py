"""When the layers of one step run and when their activations travel: three resources, simulated.

Compute, copies out and copies in each do one thing at a time and in order. Layers are equal; the first
`offloaded` of them are copied out after their forward and back in before their backward, with `sets` layers'
buffers in flight. Contention for GPU memory, launch cost and sharing of the link are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

SETS = 2  # layers whose copies may be under way
KEEP = 2  # last layers that stay: their backward comes before a copy could return


@dataclass(frozen=True)
class Timeline:
    """Seconds of one pass forward and backward, and which share of the copies ran beside compute."""

    total: float
    compute: float
    copies: float

    @property
    def exposed(self) -> float:
        return self.total - self.compute

    @property
    def hidden(self) -> float:
        return 1 - self.exposed / self.copies if self.copies else 1.0


def simulate(
    layers: int,
    forward: float,
    backward: float,
    copy_out: float,
    copy_in: float,
    offloaded: int | None = None,
    sets: int = SETS,
) -> Timeline:
    """One microbatch forward and backward; all but the last two layers travel unless `offloaded` is given."""
    travelling = max(layers - KEEP, 0) if offloaded is None else min(offloaded, layers)
    out: list[float] = []
    now = 0.0
    for number in range(layers):
        waits = out[number - sets] if sets <= number < travelling else 0.0
        now = max(now, waits) + forward
        if number < travelling:
            out.append(max(out[-1] if out else 0.0, now) + copy_out)
    after_forward = now
    ends = [0.0] * layers
    back = 0.0
    for number in reversed(range(layers)):
        if number < travelling:
            freed = ends[number + sets] if number + sets < layers else after_forward
            back = max(back, freed, out[number]) + copy_in
            now = max(now, back)
        now += backward
        ends[number] = now
    compute = layers * (forward + backward)
    return Timeline(now, compute, travelling * (copy_out + copy_in))


def free_layers(layers: int, forward: float, backward: float, copy_out: float, copy_in: float) -> int:
    """The most layers that can travel without making the step longer than a thousandth."""
    low, high = 0, max(layers - KEEP, 0)
    while low < high:
        middle = (low + high + 1) // 2
        line = simulate(layers, forward, backward, copy_out, copy_in, middle)
        low, high = (middle, high) if line.exposed <= line.compute / 1000 else (low, middle - 1)
    return low
