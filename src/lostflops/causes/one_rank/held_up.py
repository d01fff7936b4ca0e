"""A thread that runs Python while the one that launches pauses: on which ranks, and what it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from lostflops.causes.given import BETWEEN, OTHER_HOST, Given
from lostflops.causes.names import spoken

# Of pauses between operators, in which another thread runs Python, from which on it holds them up.
RUNS_BESIDE = 0.8
PAUSES = (*BETWEEN, OTHER_HOST)
NEARLY_ALL = 0.9  # of the pauses of all ranks, that are those of the ranks with such a thread


@dataclass(frozen=True)
class HeldUp:
    """`name` is what the other thread runs, `ran` for how long of the `pauses` it does, ns on these ranks."""

    name: str
    ran: int
    pauses: int


def held_up(given: Given, ranks: Sequence[int]) -> HeldUp | None:
    """What holds up the threads that launch on these ranks; None where not all of them have such a thread,
    or where what launches runs one thing, which takes its time anyway."""
    asked = pl.col("rank").is_in(ranks)
    beside = given.beside.filter(asked).sort("time", "rank", descending=[True, False])
    ran, pauses = (int(beside[column].sum()) for column in ("time", "pauses"))
    if beside.height < len(ranks) or not ran or ran < RUNS_BESIDE * pauses:
        return None
    pausing = pl.col("account").is_in(PAUSES)
    whole = int(given.ledger.filter(asked, pausing)["ns"].sum())
    names = given.names.filter(asked, pausing).drop_nulls("name")
    longest = names.group_by("name").agg(pl.col("ns").sum())["ns"].max() or 0
    if 2 * longest >= whole:  # pyright: ignore[reportOperatorIssue]
        return None
    return HeldUp(spoken(beside["name"][0]), ran, pauses)


def ranks_held_up(given: Given) -> list[int]:
    """The ranks with nearly all of the pauses, if another thread runs Python in those of each; else all."""
    every = list(given.steps)
    runs = given.beside.filter(pl.col("time") >= RUNS_BESIDE * pl.col("pauses"))["rank"].to_list()
    spent = given.ledger.filter(pl.col("account").is_in(PAUSES)).group_by("rank").agg(pl.col("ns").sum())
    each: dict[int, int] = dict(spent.iter_rows())
    theirs = sum(each.get(rank, 0) for rank in runs)
    return runs if runs and theirs >= NEARLY_ALL * sum(each.values()) else every


def away(name: str) -> str:
    """What to do about a thread that runs this."""
    return (
        f"Move {name} to a process of its own, which has its own Python lock, or let it wait while a step "
        "runs."
    )
