"""How long a step of a DualPipe takes, in which microbatches pass the stages from both ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..graph import Graph, Int
from .schedules.dual_pipe import WayPass, order


def both_ways_time(durations: Mapping[str, Int], *, hop: int = 0) -> int:
    """The end of the last pass of a step that begins at 0, ns.

    `durations` holds how long passes F, B (of inputs) and W take, in ns: stages in rows, microbatches in
    columns, of which the second half goes from the last stage's rank to the first's. Passes that run beside
    each other take as long as one after the other. `hop` is how long a microbatch takes to the next rank, ns.
    """
    stages, microbatches = durations["F"].shape
    # A point is the end of what a rank does at once.
    point = dict[tuple[int, WayPass], int]()
    does = list[tuple[int, tuple[WayPass, ...]]]()
    for rank in range(stages):
        for together in order(stages, rank, microbatches):
            point.update({(rank, one): len(does) for one in together})
            does.append((rank, together))
    source, target, lags, before = list[int](), list[int](), list[int](), dict[int, int]()
    for number, (rank, together) in enumerate(does):
        length = sum(_length(durations, rank, one) for one in together)
        waits = [
            (before.get(rank, len(does)), 0),
            *(w for one in together for w in _needs(point, rank, stages, one, hop)),
        ]
        source += [wait for wait, _ in waits]
        target += [number] * len(waits)
        lags += [length + way for _, way in waits]
        before[rank] = number
    times = Graph.of(len(does) + 1, source, target).times(np.array(lags, np.int64))
    return int(times.max())


def _length(durations: Mapping[str, Int], rank: int, one: WayPass) -> int:
    stages, microbatches = durations["F"].shape
    # Of the way back a rank holds the stage that is as far from the other end.
    place = (stages - 1 - rank if one.way else rank), one.way * (microbatches // 2) + one.microbatch
    kinds = {"B": "BW", "I": "B"}.get(one.kind, one.kind)
    return sum(int(durations[kind][place]) for kind in kinds)


def _needs(
    point: Mapping[tuple[int, WayPass], int], rank: int, stages: int, one: WayPass, hop: int
) -> list[tuple[int, int]]:
    """What a pass waits for beside the one before it on its rank, each with the way from there."""
    if one.kind == "W":
        return [(point[rank, one._replace(kind="I")], 0)]
    ahead = -1 if one.way else 1
    if one.kind == "F":
        there = rank - ahead
        return [(point[there, one], hop)] if 0 <= there < stages else []
    there = rank + ahead
    if not 0 <= there < stages:
        return [(point[rank, one._replace(kind="F")], 0)]
    back = next(k for k in "BI" if (there, one._replace(kind=k)) in point)
    return [(point[there, one._replace(kind=back)], hop)]
