"""How long a pipelined step takes with a schedule, from how long each stage takes for a microbatch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lostflops.errors import BadOption

from ..graph import Graph, Int
from .schedules import StagePass, passes


def step_time(schedule: str, durations: Mapping[str, Int], *, hop: int = 0, chunks: int = 1) -> int:
    """The end of the last pass of a step that begins at 0, ns.

    `durations` holds how long a pass takes, by kind and in ns: stages in rows, microbatches in columns; one
    of several `chunks` takes its part of that. With "W" beside "F" and "B" the backward is in two parts, as
    zero-bubble schedules need it. `hop` is how long a microbatch takes from a stage to the next, ns.
    """
    stages, microbatches = durations["F"].shape
    if chunks > 1 and microbatches % stages:
        raise BadOption(
            f"{microbatches} microbatches do not go through {stages} interleaved stages in whole groups",
            f"take a multiple of {stages} microbatches",
        )
    number = dict[tuple[int, StagePass], int]()
    for stage in range(stages):
        for one in passes(schedule, stages, stage, microbatches, chunks):
            number[stage, one] = len(number)
    source, target, lags, first = list[int](), list[int](), list[int](), len(number)
    before = dict[int, int]()
    for (stage, one), point in number.items():
        lag = int(durations[one.kind][stage, one.microbatch]) // chunks
        for wait, extra in ((before.get(stage, first), 0), *_needs(number, stage, stages, one, chunks, hop)):
            source.append(wait)
            target.append(point)
            lags.append(lag + extra)
        before[stage] = point
    times = Graph.of(len(number) + 1, source, target).times(np.array(lags, np.int64))
    return int(times.max())


def _needs(
    number: Mapping[tuple[int, StagePass], int],
    stage: int,
    stages: int,
    one: StagePass,
    chunks: int,
    hop: int,
) -> list[tuple[int, int]]:
    """The passes that one waits for beside the one before it on its stage, each with the way from there."""
    place = one.chunk * stages + stage
    if one.kind == "W":
        return [(number[stage, one._replace(kind="B")], 0)]
    if one.kind == "B" and place == stages * chunks - 1:
        return [(number[stage, one._replace(kind="F")], 0)]
    there = place - 1 if one.kind == "F" else place + 1
    if there < 0:
        return []
    chunk, other = divmod(there, stages)
    return [(number[other, one._replace(chunk=chunk)], hop if other != stage else 0)]
