"""Which steps compute longer than the others."""

from __future__ import annotations

import polars as pl

FEWEST = 4  # steps
LONGER = 1.1  # times the longest computing of the other steps: the shortest of the slow ones
WITHIN = 0.5  # of the distance between both kinds: how far steps of one are apart


def slow_steps(ledger: pl.DataFrame) -> list[int]:
    """Steps that follow each other and compute longer than all others; empty where there are none."""
    computing = pl.col("ns").filter(pl.col("account") == "compute").sum()
    of_rank = ledger.group_by("rank", "step").agg(computing)
    each = of_rank.group_by("step").agg(pl.col("ns").mean()).sort("ns", "step")
    if each.height < FEWEST:
        return []
    lengths: list[float] = each["ns"].to_list()
    at = max(range(1, len(lengths)), key=lambda n: (lengths[n] - lengths[n - 1], n))
    gap = lengths[at] - lengths[at - 1]
    apart = max(lengths[at - 1] - lengths[0], lengths[-1] - lengths[at])
    slow = sorted(each["step"][at:].to_list())
    every = sorted(each["step"].to_list())
    first = every.index(slow[0])
    in_a_row = every[first : first + len(slow)] == slow
    if at < 2 or lengths[at] < LONGER * lengths[at - 1] or apart > WITHIN * gap or not in_a_row:
        return []
    return slow
