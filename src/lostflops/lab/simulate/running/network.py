"""How long a transfer takes once everybody is there: start-ups and bytes over the slowest link on the way.

A ring over n ranks takes n - 1 turns for an all-gather, a reduce-scatter or an all-to-all, in each of which
every rank passes on an nth of the bytes; an all-reduce is two of them one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NVLINK_START, NETWORK_START = 3_000, 8_000  # ns for a turn


@dataclass(frozen=True)
class Network:
    """Bytes per second and ns for a start: within a node of `node` ranks, and of a card between nodes."""

    node: int
    near: float
    far: float
    near_start: int = NVLINK_START
    far_start: int = NETWORK_START
    slow: Mapping[int, float] = field(default_factory=dict[int, float])  # times as long with this rank in it

    def duration(self, kind: str, ranks: Sequence[int], size: int) -> int:
        """Of a collective: `size` is the bytes of the whole tensor, for send and receive of the message."""
        count = len(ranks)
        together = Counter(rank // self.node for rank in ranks)
        rate, start = self.near, self.near_start
        if len(together) > 1:  # the members on one node share the way out over all of their network cards
            rate, start = min(self.near, min(together.values()) * self.far), self.far_start
        turns, moved = (count - 1, size * (count - 1) / count) if kind != "send" else (1, size)
        if kind == "all-reduce":
            turns, moved = 2 * turns, 2 * moved
        ns = turns * start + 1e9 * moved / rate
        if self.slow:
            ns *= max(self.slow.get(rank, 1.0) for rank in ranks)
        return round(ns)
