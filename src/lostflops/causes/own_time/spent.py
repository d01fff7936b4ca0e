"""What ranks spend on their own work, and what a step gains at most when they are like each other."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from lostflops.causes.given import COMMUNICATION, Given
from lostflops.causes.one_rank.late import SYNCHRONISING

NOT_OWN = (*COMMUNICATION, "idle.pipeline_bubble", "idle.other_device")
# What a rank may spend on others beside: its host waits for its device, which waits for them.
MAY_WAIT = (*NOT_OWN, SYNCHRONISING, "idle.dependency")


def like_others_at_most(given: Given, *ranks: int) -> int:
    """What a mean step can gain at most if these ranks become like any of the others, ns.

    No other rank gets shorter than its own work: all that it communicates may come to be hidden, for the
    transfers that follow a late rank's arrival would otherwise run beside computing. And a late rank keeps
    the work of the one that has least, and at best hides its communication.
    """
    each_spent = spent(given)
    beside = [each for each in each_spent if each not in ranks]
    if not beside or not ranks or any(rank not in each_spent for rank in ranks):
        return 0
    own, waiting = ({each: parts[i] for each, parts in each_spent.items()} for i in (0, 1))
    least = min(own[each] for each in beside)
    return min(
        *(waiting[each] for each in beside), *(max(0, own[rank] - least) + waiting[rank] for rank in ranks)
    )


def shared_at_most(given: Given) -> int:
    """What a mean step can gain at most if all ranks share their work evenly, ns: the mean of it remains."""
    waiting = [waiting for _, waiting in spent(given).values()]
    return sum(waiting) // max(1, len(waiting))


def like_the_least_at_most(given: Given) -> int:
    """What a mean step can gain at most if all ranks become like the one with least of its own in it, ns."""
    may_wait = pl.col("ns").filter(pl.col("account").is_in(MAY_WAIT)).sum()
    each = given.ledger.group_by("rank", "step").agg(may_wait=may_wait, all=pl.col("ns").sum())
    least = each.group_by("step").agg(
        own=(pl.col("all") - pl.col("may_wait")).min(), all=pl.col("all").mean()
    )
    return int(least.select((pl.col("all") - pl.col("own")).mean()).item() or 0)


def faster_links_at_most(given: Given) -> int:
    """What a mean step can gain at most if transfers get faster, ns: every rank keeps its own work."""
    return min((waiting for _, waiting in spent(given).values()), default=0)


def spent(given: Given) -> dict[int, tuple[int, int]]:
    """What a mean step of each rank holds of its own work, and of what it may spend on others, ns."""
    may_wait = pl.col("ns").filter(pl.col("account").is_in(MAY_WAIT)).sum()
    sums = given.ledger.group_by("rank").agg(may_wait=may_wait, all=pl.col("ns").sum())
    return {
        rank: ((whole - waiting) // given.steps[rank], waiting // given.steps[rank])
        for rank, waiting, whole in sums.iter_rows()
    }


def beyond_the_others(sums: pl.DataFrame, key: str, rank: int, steps: Mapping[int, int]) -> dict[str, int]:
    """Per key what a mean step of the rank holds more than the median of the others."""
    found: dict[str, dict[int, int]] = {}
    for at, of, ns in sums.select("rank", key, "ns").iter_rows():
        if at in steps:
            found.setdefault(of, {})[at] = ns // steps[at]
    others = [r for r in steps if r != rank]
    return {
        of: per_rank.get(rank, 0) - int(pl.Series([per_rank.get(r, 0) for r in others]).median() or 0)  # pyright: ignore[reportArgumentType]
        for of, per_rank in found.items()
    }


def own_by_step(given: Given) -> pl.DataFrame:
    """Each rank's own time in each step that at least two ranks have: rank, step, own.

    Of ranks that meet: others may have parts of their own in the job.
    """
    here = given.ledger.filter(pl.col("rank").is_in([*given.most_waiting]))
    own = (
        here.with_columns(own=pl.when(pl.col("account").is_in(NOT_OWN)).then(0).otherwise("ns"))
        .group_by("rank", "step")
        .agg(pl.col("own").sum())
        .filter(pl.len().over("step") > 1)
    )
    return own.sort("step", "rank")


def beyond_by_step(rank: int, given: Given) -> pl.DataFrame:
    """How much more of its own each step of the rank holds than the median of the others: by step."""
    own = own_by_step(given)
    beside = own.filter(pl.col("rank") != rank).group_by("step").agg(beside=pl.col("own").median())
    mine = own.filter(pl.col("rank") == rank).join(beside, on="step", maintain_order="left")
    return mine.select("step", late=(pl.col("own") - pl.col("beside")).clip(0))


def excess_by_step(rank: int, given: Given) -> list[int]:
    return [int(late) for late in beyond_by_step(rank, given)["late"]]
