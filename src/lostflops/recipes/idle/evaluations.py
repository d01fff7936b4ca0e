"""What of the steps an evaluation takes that a training framework or the job itself makes inside them."""

from __future__ import annotations

import re

import polars as pl

from lostflops import intervals
from lostflops.recipes.compute.flops import MATRIX_WORK
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.stretch_names import is_users
from lostflops.run_folder import EVALUATION
from lostflops.store.trace import Trace

# What stands around all that a framework does for one, as frames or as a range of `lostflops record`.
TRAINER, LIGHTNING = "Trainer", "Lightning"
FRAMES = {
    TRAINER: rf"(?:^|/)transformers/trainer(?:_seq2seq)?\.py\(\d+\): evaluate$|^{EVALUATION}$",
    LIGHTNING: r"(?:^|/)(?:lightning/pytorch|pytorch_lightning)/loops/evaluation_loop\.py\(\d+\): run$",
}
# What jobs call a function of their own, or a range, that evaluates: where it runs the model and no backward
# pass follows, in a job that has some.
OWN = re.compile(
    r"(?i)(?:^|[^a-z])(?:eval|evals|evaluate|evaluates|evaluation|val|valid|validate|validation|validating"
    r"|estimate_loss)(?:[^a-z]|$)"
)
GOES_BACK = 0.5  # of the operators in it that autograd numbered, from which on it trains
COMPUTE, HOST, KEEPS = "compute", "host", "autograd"
EVALUATIONS = pl.Schema(
    {"rank": pl.Int32, "account": pl.String, "name": pl.String, "ns": pl.Int64, "step": pl.Int64}
)
SPANS = ("rank", "thread", "start", "end")


def in_evaluations(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> pl.DataFrame:
    """What the evaluations inside steps that count take, by account and name, ns; each instant once.

    `stretches` is the table of `idle_causes`: of those it holds what lies inside an evaluation. A row of the
    account 'compute' says for how long a device runs what was launched there, or a CPU its operators. One of
    'host' says how long the CPU is at it in a `step`, device idle or not; its `name` is the framework, or the
    job's own function or range. One of 'autograd' says how long operators take in it that are recorded for a
    backward pass, where none follows.
    """
    kernels, steps = trace.table("kernels"), trace.table("steps")
    if kernels is None or steps is None or stretches is None:
        return EVALUATIONS.to_frame()
    windows, name = host_steps(steps, counted.lazy()), pl.col("name").cast(pl.String)
    framework, spans = _of_frameworks(trace, windows)
    if framework is None:
        framework, spans = _of_its_own(trace, windows, kernels)
    if framework is None:
        return EVALUATIONS.to_frame()
    length = pl.col("end") - pl.col("start")
    host = spans.group_by("rank", "step").agg(ns=length.sum())
    inside = spans.select("rank", "start", "end").sort("rank", "start").lazy()
    idle = intervals.inside(
        stretches.join(counted, on=["rank", "step"], how="semi").lazy(), inside, {"ns": pl.lit(True)}
    )
    by_name = idle.filter(pl.col("ns") > 0).group_by("rank", "account", name).agg(pl.col("ns").sum())
    busy = intervals.union(_launched(trace, kernels, spans).select("rank", "start", "end").lazy(), ["rank"])
    told = [
        by_name.collect(),
        busy.group_by("rank").agg(ns=length.sum()).with_columns(account=pl.lit(COMPUTE)).collect(),
        host.with_columns(account=pl.lit(HOST), name=pl.lit(framework)),
        _kept_for_nothing(trace, spans),
    ]
    return (
        pl.concat(told, how="diagonal_relaxed")
        .select(pl.col(c).cast(t) for c, t in EVALUATIONS.items())
        .sort("rank", "account", "ns", "name", "step", descending=[False, False, True, False, False])
    )


def _of_frameworks(trace: Trace, windows: pl.LazyFrame) -> tuple[str | None, pl.DataFrame]:
    """The framework that evaluates, and when in these steps: rank, step, start, end."""
    for table in (trace.table("frames"), trace.table("ranges")):
        names = _names(table)
        for framework, row in FRAMES.items():
            asked = names.filter(names.str.contains(row))
            if table is not None and len(asked):
                rows = table.filter(pl.col("name").cast(pl.String).is_in(asked.implode()))
                cover = intervals.union(rows.select("rank", "start", "end"), ["rank"]).collect()
                return framework, in_host_steps(cover.lazy(), windows).collect()
    return None, pl.DataFrame()


def _of_its_own(
    trace: Trace, windows: pl.LazyFrame, kernels: pl.LazyFrame
) -> tuple[str | None, pl.DataFrame]:
    """The job's own function or range that evaluates most, and when it does: rank, step, start, end.

    A name alone proves nothing: it has to run the model, and no backward pass may follow, in a job with some.
    """
    operators, ranks = trace.table("operators"), trace.table("ranks")
    found: list[pl.LazyFrame] = []
    for table, called in ((trace.table("frames"), _function), (trace.table("ranges"), _range)):
        asked = [name for name in _names(table) if OWN.search(called(name))]
        if table is not None and asked:
            found.append(table.filter(pl.col("name").cast(pl.String).is_in(asked)).select(*SPANS, "name"))
    if operators is None or ranks is None or not found:
        return None, pl.DataFrame()
    main = ranks.select("rank", thread="main_thread")
    rows = pl.concat(found).join(main, on=["rank", "thread"], how="semi")
    within = in_host_steps(rows, windows).filter(pl.col("end") <= pl.col("closed")).collect()
    cover = intervals.union(within.lazy(), ["rank"]).collect()
    spans = in_host_steps(cover.lazy(), windows).collect()
    numbered = operators.filter(pl.col("sequence") >= 0).select("rank", "sequence", "phase", at="start")
    back = numbered.filter(pl.col("phase").cast(pl.String) == "backward").select("rank", "sequence").collect()
    products = kernels.filter(pl.col("family").cast(pl.String).is_in(MATRIX_WORK))
    product = _launched(trace, products, spans)
    if back.is_empty() or product.is_empty():
        return None, pl.DataFrame()
    inside = _at(numbered.collect(), spans).select("rank", "sequence").unique()
    if inside.join(back, on=["rank", "sequence"], how="semi").height > GOES_BACK * inside.height:
        return None, pl.DataFrame()
    length = (pl.col("end") - pl.col("start")).sum()
    longest = within.group_by(pl.col("name").cast(pl.String)).agg(length).sort("end", "name")
    return str(longest["name"][-1]), spans


def _kept_for_nothing(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """How long operators in these spans take that autograd numbers; nothing where one of them goes back."""
    operators = trace.table("operators")
    if operators is None:
        return EVALUATIONS.to_frame()
    of = ["rank", "sequence"]
    numbered = operators.filter(pl.col("sequence") >= 0)
    back = numbered.filter(pl.col("phase").cast(pl.String) == "backward").select(of).unique().collect()
    rows = numbered.select(*of, "start", "end", at="start").collect()
    inside = _at(rows, spans)
    if inside.join(back, on=of, how="semi").height:
        return EVALUATIONS.to_frame()
    cover = intervals.union(inside.select("rank", "start", "end").lazy(), ["rank"]).collect()
    spent = cover.group_by("rank").agg(ns=(pl.col("end") - pl.col("start")).sum())
    return spent.with_columns(account=pl.lit(KEEPS))


def _names(table: pl.LazyFrame | None) -> pl.Series:
    if table is None:
        return pl.Series(dtype=pl.String)
    return table.select(pl.col("name").unique().cast(pl.String)).collect()["name"].drop_nulls()


def _function(frame: str) -> str:
    """What a function of the user's is called; empty for a library's."""
    return frame.rpartition("): ")[2] if is_users(frame) else ""


def _range(name: str) -> str:
    """What a range is called, unless PyTorch does so, as 'autograd::engine::evaluate_function: …'."""
    return "" if "::" in name else name


def _at(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The rows whose instant `at` lies in one of these spans of their rank."""
    limits = spans.select("rank", at="start", until="end").sort("at")
    return (
        rows.sort("at")
        .join_asof(limits, on="at", by="rank", check_sortedness=False)
        .filter(pl.col("at") < pl.col("until"))
    )


def _launched(trace: Trace, kernels: pl.LazyFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The kernels launched in these spans; on a CPU, the operators that the main thread runs there."""
    ranks, known = trace.table("ranks"), kernels.filter(pl.col("launch_start").is_not_null())
    rows = known.select("rank", "start", "end", at="launch_start")
    if ranks is not None:
        main = ranks.filter(pl.col("device_kind").cast(pl.String) == "cpu").select(
            "rank", thread="main_thread"
        )
        own = kernels.join(main, on=["rank", "thread"], how="semi").select("rank", "start", "end", at="start")
        rows = pl.concat([rows, own])
    return _at(rows.collect(), spans)
