"""When the layers of one step run and when their activations travel: three resources, simulated.

Compute, copies out and copies in each do one thing at a time and in order. Layers are equal; the first
`offloaded` of them are copied out after their forward and back in before their backward, with `sets` layers'
buffers in flight. Contention for GPU memory, launch cost and sharing of the link are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lostflops.copies.link import Link
from lostflops.copies.simulation import Limits, Recorded, Storage, play

SETS = 2  # layers whose copies may be under way
TICK = 1e-12  # seconds: the simulator counts in whole numbers, and a small layer takes few nanoseconds
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


@lru_cache(4096)
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
    step, ahead = _equal(layers, _ticks(forward), _ticks(backward)), sets - 1
    link = Link(1e9 / max(1, _ticks(copy_out)), 1e9 / max(1, _ticks(copy_in)))
    played = play(
        step, link, range(travelling), limits=Limits(ahead, ahead * _ticks(backward), as_layers=True)
    )
    compute = layers * (forward + backward)
    exposed = (played.step_ns - step.compute) * TICK
    return Timeline(compute + exposed, compute, travelling * (copy_out + copy_in))


def _ticks(seconds: float) -> int:
    return round(seconds / TICK)


def _equal(layers: int, forward: int, backward: int) -> Recorded:
    """Each layer saves one storage at its end and asks for it when its backward begins."""
    end = layers * forward
    return Recorded(
        end,
        layers * backward,
        [Storage(1, (n + 1) * forward, end + (layers - 1 - n) * backward) for n in range(layers)],
    )


def free_layers(layers: int, forward: float, backward: float, copy_out: float, copy_in: float) -> int:
    """The most layers that can travel without making the step longer than a thousandth."""
    low, high = 0, max(layers - KEEP, 0)
    while low < high:
        middle = (low + high + 1) // 2
        line = simulate(layers, forward, backward, copy_out, copy_in, middle)
        low, high = (middle, high) if line.exposed <= line.compute / 1000 else (low, middle - 1)
    return low
