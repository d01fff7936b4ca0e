"""A link over which transfers changed unlike those of the same size among other ranks."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lostflops.recipes.transfers import ALIKE, SLOWER

from .ranks_apart import LEAST, LEAST_OF_CHANGE

OF = ("among", *ALIKE)


@dataclass(frozen=True)
class LinkApart:
    """Operations of one kind and size among these ranks: how long one takes before and after, ns, and what is
    usual for the same among other ranks. It costs a step `cost_ns` more. `more` are other links that changed
    unlike the rest."""

    among: str
    kind: str
    bytes: int
    before_ns: int
    after_ns: int
    others_before_ns: int
    others_after_ns: int
    more: int = 0
    cost_ns: int = 0


def link_apart(before: pl.DataFrame, after: pl.DataFrame, step: int, change: int) -> LinkApart | None:
    """The link whose transfers changed most beyond those of others; None if none is apart.

    Given are the tables of the recipe `communication_slow_links` of both runs, the mean step before, and what
    it changed by, ns. A link is apart where its transfers grew to twice as long as those of others did, or to
    half as long, and what it costs changed by 1 % of the step and a tenth of the step's change.
    """
    known = ("latency", "usual", "lost_per_step")
    both = before.select(*OF, *known).join(
        after.select(*OF, *known), on=OF, suffix="_after", nulls_equal=True, maintain_order="left"
    )
    grown = pl.col("latency_after") / pl.col("latency").clip(1)
    usual = pl.col("usual_after") / pl.col("usual").clip(1)
    least = max(LEAST * step, LEAST_OF_CHANGE * abs(change))
    apart = (
        both.with_columns(ratio=grown / usual, cost=(pl.col("lost_per_step_after") - pl.col("lost_per_step")))
        .filter((pl.col("ratio") >= SLOWER) | (pl.col("ratio") <= 1 / SLOWER), pl.col("cost").abs() >= least)
        .sort(pl.col("cost").abs(), "among", descending=[True, False])
    )
    if apart.is_empty():
        return None
    most = apart.row(0, named=True)
    return LinkApart(
        among=most["among"],
        kind=str(most["kind"]),
        bytes=int(most["bytes"]),
        before_ns=int(most["latency"]),
        after_ns=int(most["latency_after"]),
        others_before_ns=int(most["usual"]),
        others_after_ns=int(most["usual_after"]),
        more=apart["among"].n_unique() - 1,
        cost_ns=int(most["cost"]),
    )
