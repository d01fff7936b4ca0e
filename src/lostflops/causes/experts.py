"""Whether a rank has more to do than the others because more tokens come to its experts."""

from __future__ import annotations

import polars as pl

from .given import Given
from .lateness import GROUPED

MOST = 0.5  # of what a rank computes longer, that is in kernels of experts
ADVICE = (
    "Even out the tokens per expert: the router's auxiliary loss or bias, a capacity per expert, or busy "
    "experts on ranks of their own."
)

IF_EXPERTS = f"Where it is the experts, {ADVICE[0].lower()}{ADVICE[1:]}"


def has_experts(given: Given) -> bool:
    """Whether the ranks run kernels of experts at all."""
    return bool(given.work["kernel"].str.contains(GROUPED).any())


def of_experts(rank: int, given: Given) -> bool:
    """Whether most of what the rank computes longer than the others is in kernels of its experts.

    Those multiply one matrix per expert, and so for as long as they are given tokens: sequences of one length
    do not make them even.
    """
    steps = given.steps
    each = pl.col("time") / pl.col("rank").replace_strict(dict(steps), default=1, return_dtype=pl.Int64)
    spent = given.work.with_columns(each=each, experts=pl.col("kernel").str.contains(GROUPED))
    beside = [r for r in steps if r != rank]
    more: dict[bool, float] = {}
    for experts in (True, False):
        sums = spent.filter(experts=experts).group_by("rank").agg(pl.col("each").sum())
        by_rank = dict(sums.iter_rows())
        usual = pl.Series([by_rank.get(r, 0.0) for r in beside]).median() or 0.0
        more[experts] = max(0.0, by_rank.get(rank, 0.0) - float(usual))  # pyright: ignore[reportArgumentType]
    return bool(beside) and more[True] > MOST * sum(more.values())
