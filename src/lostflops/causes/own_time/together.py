"""Ranks that are late together in nearly every step, or in turn."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lostflops.causes.given import Given, has_stages
from lostflops.causes.names import NAMED_FROM, called
from lostflops.causes.one_rank.late import FIRST_ALONE, MOST_CAUSES, Late

from .spent import NOT_OWN, beyond_the_others, own_by_step

AS_A_RULE = 0.8  # of the steps, in which ranks are late that are so together


@dataclass(frozen=True)
class LateTogether:
    """Ranks that are late together in nearly every step, and the account in which they have most more."""

    ranks: tuple[int, ...]
    more: int  # ns beyond the median of the others
    account: str
    main: int  # how much of that is in the account, ns
    # Each rank's own account with most beyond the others, and how much that is, ns; where these differ.
    apart: tuple[tuple[int, str, int], ...] = ()

    @property
    def called(self) -> str:
        return called(self.ranks)


def late_together(given: Given) -> LateTogether | None:
    """The ranks, half of all at most, that have more time of their own than every other, step by step.

    None where there are none, or where one of them has more of no account than the others.
    """
    own = own_by_step(given).pivot("rank", index="step").drop_nulls()
    ranks = sorted((int(r) for r in own.columns if r != "step"), key=lambda r: -float(own[str(r)].sum()))
    if own.is_empty() or len(ranks) < 4:
        return None
    means = [float(own[str(r)].sum()) / own.height for r in ranks]
    many = max(range(2, len(ranks) // 2 + 1), key=lambda n: means[n - 1] - means[n])
    gap = means[many - 1] - means[many]
    if gap <= max(means[0] - means[many - 1], means[many] - means[-1]):
        return None
    late, others = ([str(r) for r in some] for some in (ranks[:many], ranks[many:]))
    apart = own.select(pl.min_horizontal(late) > pl.max_horizontal(others)).to_series()
    if int(apart.sum()) < AS_A_RULE * own.height:
        return None
    spent = (
        given.ledger.filter(~pl.col("account").is_in(NOT_OWN))
        .group_by("rank", "account")
        .agg(pl.col("ns").sum())
    )
    beyond: dict[str, list[int]] = {}
    each: dict[int, dict[str, int]] = {}
    for rank in sorted(ranks[:many]):
        beside = {r: given.steps[r] for r in (rank, *ranks[many:])}
        each[rank] = beyond_the_others(spent, "account", rank, beside)
        for account, ns in each[rank].items():
            beyond.setdefault(account, []).append(ns)
    account, most = max(beyond.items(), key=lambda part: (sum(part[1]), part[0]))
    own_most = tuple((rank, *max(parts.items(), key=lambda p: (p[1], p[0]))) for rank, parts in each.items())
    if min(ns for _, _, ns in own_most) <= 0:
        return None  # medians of accounts may add up to more than any other rank has
    apart = own_most if len({name for _, name, _ in own_most}) > 1 else ()
    return LateTogether(tuple(sorted(ranks[:many])), round(gap), account, sum(most) // many, apart)


@dataclass(frozen=True)
class Turns:
    """Ranks that are late in turn: how much of the waiting their own work explains, and by what account."""

    explained: int  # ns in a mean step
    account: str
    share: float  # of the lateness that is in that account
    ranks: tuple[int, ...]  # those with most of their own in some step
    # Of few ranks each one's account with most beyond the others in its steps, and how much of that there is
    # in all steps, ns; where these differ.
    apart: tuple[tuple[int, str, int], ...] = ()
    # What ranks wait because of other accounts: the rank with most of each, and ns in a mean step and rank.
    beside: tuple[tuple[int, str, int], ...] = ()


def turns(given: Given) -> Turns | None:
    """What makes ranks wait for each other where none is late as a rule; None where nothing tells."""
    own = own_by_step(given)
    if own.is_empty():
        return None
    spread = own.group_by("step").agg(
        spread=pl.col("own").max() - pl.col("own").mean(), rank=pl.col("rank").sort_by("own", "rank").last()
    )
    explained = int(spread["spread"].sum() / spread.height)
    accounts = (
        given.ledger.filter(~pl.col("account").is_in(NOT_OWN))
        .group_by("rank", "step", "account")
        .agg(pl.col("ns").sum())
        .pivot("account", index=["rank", "step"])
        .fill_null(0)
        .unpivot(index=["rank", "step"], variable_name="account", value_name="ns")
    )
    last = spread.select("step", "rank")
    beside = (
        accounts.join(last, on=["step", "rank"], how="anti")
        .group_by("step", "account")
        .agg(beside=pl.col("ns").median())
    )
    beyond = (
        accounts.join(last, on=["step", "rank"])
        .join(beside, on=["step", "account"])
        .with_columns(ns=(pl.col("ns") - pl.col("beside")).clip(0))
    )
    more = beyond.group_by("account").agg(pl.col("ns").sum())
    more = more.sort("ns", "account", descending=[True, False])
    if more.is_empty() or not more["ns"][0]:
        return None
    ranks = tuple(spread["rank"].unique().sort())
    share = more["ns"][0] / more["ns"].sum()
    apart: list[tuple[int, str, int]] = []
    if share < FIRST_ALONE:
        sums = beyond.group_by("rank", "account").agg(pl.col("ns").sum())
        own_most = sums.sort("ns", "account", descending=[True, False]).unique("rank", keep="first")
        each = own_most.filter(pl.col("ns") >= NAMED_FROM * pl.col("ns").sum()).sort("rank")
        if each["account"].n_unique() > 1 and each.height <= MOST_CAUSES:
            apart = each.select("rank", "account", "ns").rows()
    main = more["account"][0]
    return Turns(explained, main, share, ranks, tuple(apart), _due_to_others(beyond, spread, main))


def _due_to_others(beyond: pl.DataFrame, spread: pl.DataFrame, main: str) -> tuple[tuple[int, str, int], ...]:
    """The waiting per step that is due to other accounts than the main one: rank with most, account, ns.

    A step's waiting is due to the accounts by which its last rank is late, as much as each of them is.
    """
    due = beyond.join(spread, on=["step", "rank"]).with_columns(
        ns=pl.col("spread") * pl.col("ns") / pl.col("ns").sum().over("step")
    )
    by_rank = due.fill_nan(0).group_by("account", "rank").agg(pl.col("ns").sum()).sort("ns", "rank")
    each = by_rank.group_by("account").agg(pl.col("rank").last(), pl.col("ns").sum() // spread.height)
    others = each.filter(pl.col("account") != main, pl.col("ns") > 0)
    ranked = others.sort("ns", "rank", descending=[True, False])
    return tuple(ranked.select("rank", "account", "ns").cast({"ns": pl.Int64}).rows())


def explained_by_own(given: Given) -> int:
    """By how much the rank with most of its own exceeds the mean in a mean step, ns."""
    found = turns(given)
    return found.explained if found else 0


def takes_turns(late: Late, given: Given) -> bool:
    """Whether others are late in the steps in which this rank is not, half as much as it in all or more.

    Of those that come after it in a step, only what they come later counts: ranks would wait for it as well.
    """
    own = own_by_step(given)
    if own.is_empty() or has_stages(given):
        return False
    usual, mine = pl.col("own").median(), pl.col("own").filter(rank=late.rank).max()
    last = pl.col("rank").sort_by("own", "rank").last()
    longest = own.group_by("step").agg(
        late=pl.col("own").max()
        - pl.when(last == late.rank).then(usual).otherwise(pl.max_horizontal(usual, mine)),
        rank=last,
    )
    mine, whole = longest.select(pl.col("late").filter(rank=late.rank).sum(), all=pl.col("late").sum()).row(0)
    return bool(2 * (whole - mine) >= mine)
