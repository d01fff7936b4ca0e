"""What may be wrong with a recording, one check each: rows of `recording_lint`."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.steps.counted import BEHIND, EMPTY, FEWEST
from lostflops.store.trace import CLOSED, OPENED

SLOWER = 1.5  # than the slowest of the others: a first step that does something else than the others
MANY = 20  # steps, from which on fewer could have been enough
CLOSE = 0.01  # of the mean step: no account is further from what it is over all steps
SPARED = 4  # times fewer steps
HALF = 0.5
# Clocks of traces tell microseconds: ranges that cross by less do not.
CROSSING = 1_000

FEW, SLOW_FIRST, LONG, OPEN, CROSSED, UNCOVERED = CHECKS = (
    "few whole steps",
    "slow first step",
    "longer than needed",
    "left open",
    "crossing",
    "little covered",
)
# Ranges that PyTorch, its communication and `lostflops record` set themselves.
NOT_OWN = (
    r"^(?:ProfilerStep[#*]|Optimizer\.|enumerate\(|DistributedDataParallel|FSDP|(?:nccl|gloo|mpi|ucc):"
    r"|forward#|backward$)"
)
# Domains in which libraries and profilers mark their own calls.
OF_LIBRARIES = r"(?i)^(?:nccl|rccl|cccl|cublas|cudnn|cufft|cusparse|cusolver|overhead|synchronisation)"
# The profiler's mark ends in `step()`, which a range of the job's own may go around.
UNORDERED = r"^(?:ProfilerStep[#*]|(?:nccl|gloo|mpi|ucc|c10d)[:_])"
NULL = pl.lit(None, dtype=pl.Int64)
SCHEMA = {
    "rank": pl.Int32,
    "check": pl.String,
    "name": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
    "found": pl.Int64,
    "of": pl.Int64,
    "ns": pl.Int64,
    "beside_ns": pl.Int64,
}


def _rows(frame: pl.DataFrame, check: str, **values: pl.Expr) -> pl.DataFrame:
    """Rows of a check: those columns that it has nothing to say in are null."""
    none = {c: pl.lit(None, dtype=t) for c, t in SCHEMA.items() if c not in values and c not in frame.columns}
    return frame.with_columns(**none, **values).with_columns(check=pl.lit(check))


def few(steps: pl.DataFrame) -> pl.DataFrame:
    by_rank = steps.group_by("rank").agg(
        pl.col("start").min(), pl.col("end").max(), found=pl.col("complete").sum(), of=pl.len()
    )
    return _rows(by_rank.filter(pl.col("found") < FEWEST), FEW)


def slow_first(steps: pl.DataFrame) -> pl.DataFrame:
    """First steps that take longer than all whole ones after them, themselves whole or not: the recording may
    begin inside a step that warms up.

    What a device has still to do of steps before the recording is in the step in which that begins: of this
    one counts no more than its host took.
    """
    of_host = pl.when(~pl.col("complete")).then(pl.col("host_end") - pl.col("host_start"))
    length = pl.min_horizontal(pl.col("end") - pl.col("start"), of_host)
    # Outliers are told as such; on a device that was behind, the first step holds work of the one before, and
    # on one that had none yet, it waits where the others do not.
    told = pl.col("left_out").cast(pl.String).is_in(["outlier", BEHIND, EMPTY]).fill_null(False)
    steps = steps.filter(~told)
    first = pl.col("start") == pl.col("start").min().over("rank")
    compared = steps.filter(pl.col("complete") | first).sort("rank", "start").with_columns(ns=length)
    by_rank = compared.group_by("rank", maintain_order=True).agg(
        pl.col("start", "end", "ns").first(),
        slowest=pl.col("ns").slice(1).max(),
        beside_ns=pl.col("ns").slice(1).median().round(),
        of=pl.len(),
    )
    slow = (pl.col("of") >= FEWEST) & (pl.col("ns") > SLOWER * pl.col("slowest"))
    return _rows(by_rank.filter(slow), SLOW_FIRST, found=pl.lit(1))


def long_enough(ledger: pl.DataFrame) -> pl.DataFrame:
    """How many steps would have said the same: from then on, no mean of an account leaves its final value."""
    steps = ledger.group_by("rank", "step", "start").agg(pl.col("end").first(), pl.col("ns").sum())
    steps = steps.sort("rank", "start").with_columns(
        n=pl.int_range(1, pl.len() + 1).over("rank"), of=pl.len().over("rank")
    )
    steps = steps.filter(pl.col("of") >= MANY)
    accounts = ledger.select("rank", "account").unique()
    spent = (
        steps.select("rank", "step", "start", "n", "of")
        .join(accounts, on="rank")
        .join(
            ledger.select("rank", "step", "start", "account", "ns"),
            on=["rank", "step", "start", "account"],
            how="left",
        )
        .with_columns(pl.col("ns").fill_null(0))
        .sort("rank", "account", "n")
        .with_columns(mean=pl.col("ns").cum_sum().over("rank", "account") / pl.col("n"))
        .with_columns(off=(pl.col("mean") - pl.col("mean").last().over("rank", "account")).abs())
    )
    whole = steps.group_by("rank").agg(
        pl.col("start").min(), pl.col("end").max(), pl.col("of").first(), mean_step=pl.col("ns").mean()
    )
    last_off = (
        spent.join(whole.select("rank", "mean_step"), on="rank")
        .filter(pl.col("off") > CLOSE * pl.col("mean_step"))
        .group_by("rank")
        .agg(last=pl.col("n").max())
    )
    enough = whole.join(last_off, on="rank", how="left").with_columns(
        found=pl.max_horizontal(pl.col("last").fill_null(0) + 1, pl.lit(FEWEST))
    )
    return _rows(enough.filter(SPARED * pl.col("found") <= pl.col("of")), LONG)


def left_open(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges of one text that are open more than once on a thread when the recording ends."""
    left = ranges.group_by("rank", "thread", "domain", "name").agg(
        pl.col("start").filter(~pl.col("complete")).min(),
        pl.col("end").filter(~pl.col("complete")).max(),
        found=(~pl.col("complete")).sum(),
        of=pl.len(),
    )
    return _rows(left.filter(pl.col("found") > 1), OPEN)


def crossing(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges that begin inside another of their thread and end after it: those that nesting has to cut.

    What crosses only such a range, beyond where it was cut, is not among them.
    """
    ranges = ranges.filter(pl.col("complete"), ~pl.col("name").str.contains(UNORDERED))
    if ranges.is_empty():
        return _rows(ranges.select("rank", "name", "start", "end"), CROSSED, found=NULL, of=NULL)
    threads = intervals.group_ids(ranges, ["rank", "thread"])
    forest = intervals.nest(ranges["start"].to_numpy(), ranges["end"].to_numpy(), threads)
    rows = ranges[forest.order].with_columns(cut=pl.Series(forest.end))
    beyond = (pl.col("end") - pl.col("cut") > CROSSING) & (pl.col("cut") - pl.col("start") > CROSSING)
    by_name = rows.group_by("rank", "name").agg(
        pl.col("start").filter(beyond).min(),
        pl.col("end").filter(beyond).max(),
        found=beyond.sum(),
        of=pl.len(),
    )
    return _rows(by_name.filter(pl.col("found") > 0), CROSSED)


def uncovered(ranges: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """How much of the whole steps the code's own ranges cover, on the thread that has most of them."""
    of_library = pl.col("domain").cast(pl.String).str.contains(OF_LIBRARIES).fill_null(False)
    own = ranges.filter(~pl.col("name").str.contains(NOT_OWN), ~of_library)
    whole = steps.filter("complete").select("rank", start=OPENED, end=CLOSED).lazy()
    own = intervals.union(own.lazy(), ["rank", "thread"])
    covered = (
        intervals.inside(own, intervals.union(whole, ["rank"]), {"ns": pl.lit(True)})
        .group_by("rank", "thread")
        .agg(pl.col("ns").sum())
        .group_by("rank")
        .agg(pl.col("ns").max())
    )
    length = (pl.col("end") - pl.col("start")).sum()
    by_rank = (
        whole.group_by("rank")
        .agg(pl.col("start").min(), pl.col("end").max(), beside_ns=length, of=pl.len())
        .join(covered, on="rank")
        .collect()
    )
    little = pl.col("ns") < HALF * pl.col("beside_ns")
    return _rows(by_rank.filter(little), UNCOVERED, found=pl.col("of"))
