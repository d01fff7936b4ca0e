"""Facts about the recording as sentences, each told once for all the ranks that it holds for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from lostflops.finding import milliseconds
from lostflops.store.trace import Quality
from lostflops.units import written_ranks

MOST_RANKS = 6


@dataclass(frozen=True)
class QualityNote:
    """One fact. `where` lists the ranks, or is 'run' when it is about all of it."""

    level: str
    where: str
    text: str

    @property
    def said(self) -> str:
        """The fact with the ranks it holds for."""
        return self.text if self.where == "run" else f"{self.where}: {self.text}"

    @property
    def is_warning(self) -> bool:
        return self.level == "warning"


def facts(quality: Sequence[Quality]) -> list[QualityNote]:
    """Warnings first. Facts that differ only in their numbers are told with one rank as the example."""
    alike: dict[tuple[bool, str, str], list[Quality]] = {}
    for fact in quality:
        key = (fact.level != "warning", fact.name, re.sub(r"\d[\d,.]*", "#", fact.text))
        alike.setdefault(key, []).append(fact)
    return [_told(found) for _, found in sorted(alike.items())]


def _told(found: Sequence[Quality]) -> QualityNote:
    ranks = sorted({fact.rank for fact in found if fact.rank is not None})
    where = "run"
    if ranks:
        where = f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks[:MOST_RANKS]))
        where += f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    first = max(found, key=lambda fact: fact.count)
    text = stated(first)
    if len({(fact.count, fact.meaning) for fact in found}) > 1 and first.rank is not None:
        text = f"{text} (numbers of rank {first.rank})"
    return QualityNote(first.level, where, text)


def stated(fact: Quality) -> str:
    """The fact in one sentence: its name, how often, and what it means."""
    if fact.of is not None:
        return f"{fact.name}: {fact.count:,} {fact.meaning}"
    if fact.count > 1 and f"{fact.count:,}" not in fact.text:
        return f"{fact.name}: {fact.count:,}, {fact.text}"
    return f"{fact.name}: {fact.text}"


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
    listed = [
        f"{milliseconds(error)} ({written_ranks(of)})" for error, of in errors.head(MOST_LISTED).iter_rows()
    ]
    better = errors[MOST_LISTED:]["rank"].explode().to_list()
    bars = ", ".join([*listed, *([f"less on {written_ranks(better)}"] if better else [])])
    apart = int(moved.max()) - int(moved.min())  # pyright: ignore[reportArgumentType]
    said = f"Clocks were up to {milliseconds(apart)} apart; aligned," if is_moved else "Clocks agree;"
    least = milliseconds(2 * int(errors["clock_error"][0]))
    yield (
        f"{said} they are right to within {bars}: the {milliseconds(waited)} of waiting per step may be off "
        f"by {milliseconds(uncertain)}, and a wait of less than {least} is within their error."
    )
