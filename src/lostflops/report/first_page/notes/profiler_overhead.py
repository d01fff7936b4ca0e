"""That the profiler itself is at work while the GPU idles: the job does not have those pauses without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from lostflops import intervals
from lostflops.causes.declared import PROFILER
from lostflops.finding import Finding, milliseconds, percent

# What CUPTI does for itself. Compiling, and loading of modules, which it tells of too, are the job's own.
OWN = ("Buffer Flush", "Instrumentation", "Resource", "Activity Buffer Request", "Profiler Overhead")
WORTH_TELLING = 0.03  # of a step's time
MOST_NAMED = 2
IN_STEP = "In step "
AT_WORK = "The profiler itself is at work in much of this time, and may be all that is the matter."


def own_work(ranges: pl.LazyFrame | None) -> pl.DataFrame:
    """When the profiler itself was at work: rank, start, end, name."""
    if ranges is None:
        return pl.DataFrame(schema={"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64, "name": pl.String})
    name = pl.col("name").cast(pl.String)
    own = ranges.filter(pl.col("domain").cast(pl.String) == "overhead", name.is_in(OWN))
    return own.select("rank", "start", "end", name).collect()


def profiler_at_work(rows: pl.DataFrame, gaps: pl.DataFrame, steps: pl.DataFrame) -> Iterator[str]:
    """`rows` are those of `own_work`, `gaps` has rank, step, start and end of idle time, `steps` those of the
    steps, and whether each is `counted`."""
    spans = intervals.union(rows.lazy(), ["rank"])
    idle = intervals.inside(gaps.lazy(), spans, {"ns": pl.lit(True)}).collect()
    each = idle.group_by("rank", "step").agg(pl.col("ns").sum())
    known = steps.with_columns(whole=pl.col("end") - pl.col("start")).join(each, on=["rank", "step"])
    lasts = rows.group_by("name").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    named = ", ".join(lasts.sort("ns", "name", descending=[True, False])["name"].head(MOST_NAMED))
    counted = steps.filter("counted")
    spent = int(known.filter("counted")["ns"].sum())
    whole = int((counted["end"] - counted["start"]).sum())
    if whole and spent >= WORTH_TELLING * whole:
        yield (
            f"The profiler itself works ({named}) for {milliseconds(spent / counted.height)} per step "
            f"({percent(spent, whole)}) in which the GPU idles: without it the job idles less, whatever "
            "these pauses are charged to below."
        )
    apart = known.filter(~pl.col("counted"), 2 * pl.col("ns") >= pl.col("whole"))
    for step, ns in apart.sort("ns", "step", descending=[True, False]).select("step", "ns").head(1).rows():
        yield (
            f"{IN_STEP}{step} the profiler itself works ({named}) for {milliseconds(ns)} while the GPU "
            "idles: the job does not have that pause."
        )


def doubting(findings: Iterable[Finding], told: Sequence[str]) -> tuple[Finding, ...]:
    """The findings, those doubted in whose time the profiler may be at work.

    Where a finding is about just that, the others are about the rest.
    """
    all_of_them = tuple(findings)
    apart = any(finding.name == PROFILER.name for finding in all_of_them)
    noted = [note for note in told if note.startswith(IN_STEP) or not apart]
    return tuple(with_profiler(finding, noted) for finding in all_of_them)


def with_profiler(finding: Finding, told: Sequence[str]) -> Finding:
    """A finding about idle time in which the profiler was at work, doubted."""
    idles = finding.is_of_idle_time
    once = next((note for note in told if note.startswith(IN_STEP)), "")
    of_step = finding.claim.startswith(f"Step {once.removeprefix(IN_STEP).partition(' ')[0]} ")
    if not idles or not (of_step if finding.name == "outlier-step" else len(told) > bool(once)):
        return finding
    return finding.with_doubt(AT_WORK)
