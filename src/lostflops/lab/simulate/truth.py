"""What is true of a simulated job, by the clock that all its ranks share: steps, accounts, waits, the cause.

Worked out from what the ranks did, not from what was recorded of it, and by counting alone: it is what pages
are held against.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lostflops.lab.simulate.engine import RankSteps
from lostflops.lab.simulate.jitter import Times
from lostflops.lab.simulate.running.recorder import CallPart, Recorder

ACCOUNTS = ("compute", "transfer", "wait", "copies", "idle")  # the first that applies
NO_SPANS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True)
class Culprit:
    """What was planted: the fault's name, the ranks that have it (none: all), and from which step on."""

    fault: str
    ranks: tuple[int, ...] = ()
    since: int | None = None
    says: Mapping[str, Any] = field(default_factory=dict[str, Any])


def rank_truth(rank: int, recorder: Recorder, steps: RankSteps) -> dict[str, list[Any]]:
    """The recorded steps of a rank, and into what their time went: each instant into one account."""
    kept = [n for n, step in enumerate(steps.step) if step >= recorder.first]
    bounds = np.array([steps.start[n] for n in kept] + [steps.end[kept[-1]]], dtype=np.int64)
    sums = _accounts(recorder, bounds)
    found: dict[str, list[Any]] = {
        "rank": [rank] * len(kept),
        "step": [steps.step[n] for n in kept],
        "start": bounds[:-1].tolist(),
        "end": bounds[1:].tolist(),
    }
    for account, ns in zip(ACCOUNTS, sums, strict=True):
        found[account] = ns.tolist()
    return found


def _accounts(recorder: Recorder, bounds: Times) -> list[Times]:
    """By account, ns in each of the steps between the bounds."""
    waits = [(call.start, min(call.end, call.last)) for call in recorder.calls]
    moves = [(max(call.start, call.last), call.end) for call in recorder.calls]
    computed = np.concatenate([np.stack(both, axis=1) for both in recorder.computed] or [NO_SPANS])
    edges = [bounds]
    deltas = [np.zeros((4, len(bounds)), dtype=np.int64)]
    for number, spans in enumerate((computed, moves, waits, recorder.copied)):
        ends = np.array(spans, dtype=np.int64).reshape(-1, 2)
        edges.append(ends.T.reshape(-1))
        delta = np.zeros((4, 2 * len(ends)), dtype=np.int64)
        delta[number, : len(ends)], delta[number, len(ends) :] = 1, -1
        deltas.append(delta)
    at, delta = np.concatenate(edges), np.concatenate(deltas, axis=1)
    order = np.argsort(at, kind="stable")
    at, open_ = at[order], np.cumsum(delta[:, order], axis=1) > 0
    length = np.diff(at)
    place = np.searchsorted(bounds, at[:-1], side="right") - 1
    inside = (place >= 0) & (place < len(bounds) - 1)
    sums: list[Times] = []
    left = np.ones(len(length), dtype=bool)
    for number in range(len(ACCOUNTS)):
        here = left & open_[number, :-1] if number < 4 else left
        left = left & ~here
        chosen = inside & here
        sums.append(np.bincount(place[chosen], length[chosen], len(bounds) - 1).astype(np.int64))
    return sums


def call_line(rank: int, calls: Sequence[CallPart]) -> str:
    """All calls of a rank that were recorded, as one line of JSON."""
    columns = {name: [getattr(call, name) for call in calls] for name in CallPart.__slots__}
    columns["wait"] = [min(call.end, call.last) - call.start for call in calls]
    columns["transfer"] = [call.end - max(call.start, min(call.end, call.last)) for call in calls]
    columns["ranks"] = [list(call.ranks) for call in calls]
    return json.dumps({"rank": rank, **columns})


def waits_by_kind(rank: int, calls: Sequence[CallPart], first: int) -> Iterator[dict[str, Any]]:
    """Sums of a rank's waiting and transfer by kind and group."""
    sums: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        if call.step >= first:
            found = sums.setdefault((call.kind, call.group), [0, 0, 0])
            wait = min(call.end, call.last) - call.start
            found[0] += 1
            found[1] += wait
            found[2] += call.end - call.start - wait
    for (kind, group), (count, wait, transfer) in sums.items():
        yield {"rank": rank, "kind": kind, "group": group, "calls": count, "wait": wait, "transfer": transfer}


def together(parts: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """The steps of all ranks."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
