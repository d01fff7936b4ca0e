"""Steps of two lengths, as where every fourth one updates weights or evaluates: a mean is of neither."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import polars as pl

from lostflops.finding import milliseconds
from lostflops.recipes.steps.beside_usual import num_kernels
from lostflops.recipes.steps.two_kinds import longer_from
from lostflops.report.first_page.run import Run
from lostflops.report.first_page.step_notes import HOW_OFTEN, MUCH_LONGER, evaluate, numbers
from lostflops.store.trace import Trace

LONGER = 1.15  # times the longest of the shorter kind: the shortest of the longer one
LEAST_TURNS = 3  # of a kind that does no more or less than the others
OTHER_WORK = 1.05  # times as many kernels


def of_two_kinds(
    trace: Trace,
    run: Run,
    steps: pl.DataFrame,
    counted: pl.DataFrame,
    evaluations: pl.DataFrame | None = None,
) -> Iterator[str]:
    """That counted steps are of two lengths, where one is at most twice the other: which, and what they do.

    Steps that do as much as the others are of another kind only if they come back after as many others, or
    every machine that is busy with something else would make two kinds. `evaluations` is the table of
    `in_evaluations`.
    """
    length = (pl.col("end") - pl.col("start")).alias("length")
    mine = steps.join(counted, on=["rank", "step"], how="semi").select("rank", "step", "start", "end", length)
    each = mine.group_by("step").agg(pl.col("length").mean()).sort("length", "step")
    lengths: list[float] = each["length"].to_list()
    at = None if run.is_whole else longer_from(lengths, LONGER)
    if at is None or lengths[-1] > MUCH_LONGER * median(lengths):
        return
    short, long = each.head(at), each.tail(each.height - at)
    kernels = trace.table("kernels")
    many = num_kernels(mine.lazy(), kernels, counted.lazy()).group_by("step").agg(pl.col("kernels").mean())
    work = {step: n or 0.0 for step, n in many.collect().iter_rows()}
    less, more = (_mean([work.get(n, 0.0) for n in kind["step"]]) for kind in (short, long))
    # Where the longer ones do less, as where one rank does more in the step before, that is not why.
    differ = kernels is not None and more >= OTHER_WORK * less and more >= less + 1
    few, others = (short, long) if short.height < long.height else (long, short)
    if not differ and not _returns(few["step"].sort().to_list(), each["step"].to_list()):
        return
    which, one = numbers(few["step"].sort().to_list()), few.height == 1
    did = ["", ""]
    if differ:
        what = "operators" if run.on_host else "kernels"
        did = [
            f" for {_mean([work.get(n, 0.0) for n in kind['step']]):,.0f} {what}" for kind in (few, others)
        ]
    many = "are of two kinds" if differ else "have two lengths"
    why = evaluate(few, _mean(short["length"].to_list()), evaluations) if few is long else ""
    took, otherwise = (milliseconds(_mean(kind["length"].to_list())) for kind in (few, others))
    yield (
        f"Steps {many}: {which} take{'s' * one} {took}{did[0]}, the others {otherwise}{did[1]}{why}. "
        f"The mean is over both{' kinds' if differ else ''}{f': {HOW_OFTEN}' if why else '.'}"
    )


def _returns(few: list[int], every: list[int]) -> bool:
    """Whether `few` come back after as many others each time, throughout a recording."""
    apart = {b - a for a, b in pairwise(few)}
    if len(few) < LEAST_TURNS or len(apart) != 1:
        return False
    (period,) = apart
    return period > 1 and few[0] - min(every) < period and max(every) - few[-1] < period


def _mean(of: list[float]) -> float:
    return sum(of) / max(1, len(of))
