"""Where steps fall apart into shorter and longer ones."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

FEWEST = 4  # steps
WITHIN = 0.5  # of the distance between both kinds: how far steps of one are apart
LONGER = 1.1  # times the longest computing of the other steps: the shortest of those that compute longer


def longer_from(lengths: Sequence[float], longer: float) -> int | None:
    """Where the longer ones begin in sorted lengths; None where there are not two kinds, or few of both.

    The shortest of the longer ones is `longer` times the longest of the others, or more.
    """
    if len(lengths) < FEWEST:
        return None
    at = max(range(1, len(lengths)), key=lambda n: (lengths[n] - lengths[n - 1], n))
    gap = lengths[at] - lengths[at - 1]
    apart = max(lengths[at - 1] - lengths[0], lengths[-1] - lengths[at])
    return None if lengths[at] < longer * lengths[at - 1] or apart > WITHIN * gap else at


def slow_steps(ledger: pl.DataFrame) -> list[int]:
    """Steps that follow each other and compute longer than all others; empty where there are none."""
    computing = pl.col("ns").filter(pl.col("account") == "compute").sum()
    of_rank = ledger.group_by("rank", "step").agg(computing)
    each = of_rank.group_by("step").agg(pl.col("ns").mean()).sort("ns", "step")
    at = longer_from(each["ns"].to_list(), LONGER)
    if at is None or at < 2:
        return []
    slow = sorted(each["step"][at:].to_list())
    every = sorted(each["step"].to_list())
    first = every.index(slow[0])
    return slow if every[first : first + len(slow)] == slow else []
