"""What of the steps an evaluation takes that a training framework makes inside them."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

# What stands around all that a framework does for one: the Hugging Face Trainer, Lightning.
TRAINER, LIGHTNING = "Trainer", "Lightning"
FRAMES = {
    TRAINER: r"(?:^|/)transformers/trainer(?:_seq2seq)?\.py\(\d+\): evaluate$",
    LIGHTNING: r"(?:^|/)(?:lightning/pytorch|pytorch_lightning)/loops/evaluation_loop\.py\(\d+\): run$",
}
COMPUTE, HOST = "compute", "host"
EVALUATIONS = pl.Schema(
    {"rank": pl.Int32, "account": pl.String, "name": pl.String, "ns": pl.Int64, "steps": pl.Int64}
)


def in_evaluations(trace: Trace, stretches: pl.DataFrame | None, counted: pl.DataFrame) -> pl.DataFrame:
    """What the evaluations inside steps that count take, by account and name, ns; each instant once.

    `stretches` is the table of `idle_causes`: of those it holds what lies inside an evaluation. A row of the
    account 'compute' says for how long a device runs what was launched there, and one of 'host' how long the
    CPU is at it, device idle or not; its `steps` are those that evaluate, its `name` is the framework.
    """
    frames, kernels, steps = (trace.table(name) for name in ("frames", "kernels", "steps"))
    if frames is None or kernels is None or steps is None or stretches is None:
        return EVALUATIONS.to_frame()
    name = pl.col("name").cast(pl.String)
    names = frames.select(name.unique()).collect()["name"].drop_nulls()
    by = {framework: names.filter(names.str.contains(frame)) for framework, frame in FRAMES.items()}
    asked = [frame for frames_of in by.values() for frame in frames_of]
    if not asked:
        return EVALUATIONS.to_frame()
    framework = next(framework for framework, frames_of in by.items() if len(frames_of))
    cover = intervals.union(frames.filter(name.is_in(asked)), ["rank"]).collect()
    spans = in_host_steps(cover.lazy(), host_steps(steps, counted.lazy())).collect()
    length = pl.col("end") - pl.col("start")
    host = spans.group_by("rank").agg(ns=length.sum(), steps=pl.col("step").n_unique())
    inside = spans.select("rank", "start", "end").lazy()
    idle = intervals.inside(
        stretches.join(counted, on=["rank", "step"], how="semi").lazy(), inside, {"ns": pl.lit(True)}
    )
    by_name = idle.filter(pl.col("ns") > 0).group_by("rank", "account", name).agg(pl.col("ns").sum())
    launched = (
        kernels.filter(pl.col("launch_start").is_not_null())
        .select("rank", "start", "end", at="launch_start")
        .sort("at")
        .collect()
        .join_asof(
            spans.select("rank", at="start", until="end").sort("at"),
            on="at",
            by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("at") < pl.col("until"))
    )
    busy = intervals.union(launched.select("rank", "start", "end").lazy(), ["rank"])
    told = [
        by_name.collect(),
        busy.group_by("rank").agg(ns=length.sum()).with_columns(account=pl.lit(COMPUTE)).collect(),
        host.with_columns(account=pl.lit(HOST), name=pl.lit(framework)),
    ]
    return (
        pl.concat(told, how="diagonal_relaxed")
        .select(pl.col(c).cast(t) for c, t in EVALUATIONS.items())
        .sort("rank", "account", "ns", "name", descending=[False, False, True, False])
    )
