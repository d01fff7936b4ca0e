"""Steps of two runs beside each other: the first that counts beside the first that counts, and so on."""

from __future__ import annotations

from typing import Any

import polars as pl

from .timeline import RunTimeline


def aligned(before: RunTimeline, after: RunTimeline) -> dict[str, Any]:
    """Pairs of steps of the lowest rank that both have; each run's times are on its own clock."""
    ranks = sorted(set(before.kept.ranks) & set(after.kept.ranks))
    notes: list[str] = []
    if len(before.kept.ranks) != len(after.kept.ranks):
        notes.append(f"A has {len(before.kept.ranks):,} ranks, B {len(after.kept.ranks):,}.")
    first, second = (_counted(timeline, ranks[0]) if ranks else [] for timeline in (before, after))
    if not first or not second:
        notes.append("No rank of both runs has whole steps: their beginnings are put side by side.")
    elif len(first) != len(second):
        notes.append(f"A has {len(first):,} steps that count, B {len(second):,}.")
    pairs = [
        {"step_a": a[0], "step_b": b[0], "a": [a[1], a[2]], "b": [b[1], b[2]]}
        for a, b in zip(first, second, strict=False)
    ]
    rank = ranks[0] if ranks else None
    return {"steps": pairs, "rank_a": rank, "rank_b": rank, "notes": notes}


def _counted(timeline: RunTimeline, rank: int) -> list[tuple[int, int, int]]:
    table = timeline.trace.whole.table("steps")
    if table is None:
        return []
    with timeline.trace.reading():
        rows = table.filter(pl.col("rank") == rank).sort("start").collect()
    counts = rows.filter(pl.col("left_out").is_null())
    rows = counts if counts.height else rows
    return list(rows.select("step", "start", "end").iter_rows())
