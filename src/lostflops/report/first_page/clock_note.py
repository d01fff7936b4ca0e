"""How well the ranks' clocks are known, where what ranks wait for each other depends on it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.finding import milliseconds
from lostflops.units import written_spans

SAME_HOST = 10_000  # ns, to which the clock of one host is converted: better than that none is known
MATTERS = 0.1  # of the waiting, from which on its error is told
MOST_LISTED = 3  # errors


def clocks(ranks: pl.DataFrame, waits: pl.DataFrame, steps: int) -> Iterator[str]:
    """A sentence with the error bar of each rank's clock, and of the waiting per step that rests on them.

    `ranks` has rank, clock_offset and clock_error, ns; `waits` is the table of `communication_wait`, `steps`
    how many steps of all ranks it is about. Nothing where ranks share a clock, or where what they wait is
    long beside the error.
    """
    known = ranks.drop_nulls("clock_error")
    moved = known["clock_offset"].fill_null(0)
    is_moved = bool((moved != 0).any())
    told = waits.drop_nulls("per_step")
    if known.height < 2 or not steps or told.is_empty():
        return
    if not is_moved and not (known["clock_error"] > SAME_HOST).any():
        return
    waited = int(told["per_step"].sum()) // told.height
    uncertain = min(waited, int(told["uncertain"].sum()) // steps)
    if not waited or uncertain < MATTERS * waited:
        return
    errors = known.group_by("clock_error").agg("rank").sort("clock_error", descending=True)
    listed = [f"{milliseconds(error)} ({_named(of)})" for error, of in errors.head(MOST_LISTED).iter_rows()]
    better = errors[MOST_LISTED:]["rank"].explode().to_list()
    bars = ", ".join([*listed, *([f"less on {_named(better)}"] if better else [])])
    apart = int(moved.max()) - int(moved.min())  # pyright: ignore[reportArgumentType]
    said = f"Clocks were up to {milliseconds(apart)} apart; aligned," if is_moved else "Clocks agree;"
    least = milliseconds(2 * int(errors["clock_error"][0]))
    yield (
        f"{said} they are right to within {bars}: the {milliseconds(waited)} of waiting per step may be off "
        f"by {milliseconds(uncertain)}, and a wait of less than {least} is not told from clock error."
    )


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {written_spans(ranks)}"
