"""What a CPU computes outside of passes that train and of the optimizer: data, metrics, averages."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps
from lostflops.recipes.stretch_names import is_users
from lostflops.store.trace import Trace

FORWARD = "forward#"  # before the class of a model, around a call of it: `lostflops record` marks them
# Ranges in which operators serve training, or have an account of their own.
TRAINS = r"^(?:backward$|Optimizer\.|enumerate\(DataLoader\)#)"
PASS, UPDATE = ("backward", "recompute", "optimizer"), "Optimizer.step#"
OPERATOR, MODEL, FUNCTION, BOUND, STEP = "operator", "model", "function", "bound", "step"
UNMARKED = "unmarked"
GRAPH = "graph"  # of passes of a model that made a graph of autograd which no backward pass follows
OUTSIDE = pl.Schema({"rank": pl.Int32, "kind": pl.String, "name": pl.String, "ns": pl.Int64})
LANE = ["rank", "thread"]
TIMES = [*LANE, "start", "end"]


def outside_passes(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long operators of the main thread of a CPU run outside of forward passes with gradients, backward
    passes and the optimizer, in all steps that count, by operator, ns.

    Rows of the kind 'model' say how long of that passes of a model are that no backward pass follows, 'graph'
    those among them that made a graph of autograd all the same, 'function' in which functions of the user's
    it is, and 'bound' how long the stretches are, pauses and all, between what trains that have such
    operators. 'step' says how much of it is in each step, by its number.

    Where `lostflops record` did not mark the passes of a model, a row of the kind 'unmarked' says so: then a
    pass begins with the first operator of its step through which a gradient flows, and what comes before that
    may be layers that are frozen. Nothing where there is no backward pass, as where a model generates.
    """
    tables = (trace.table(name) for name in ("ranks", "steps", "ranges", "operators", "kernels"))
    ranks, steps, ranges, operators, kernels = tables
    if ranks is None or steps is None or ranges is None or operators is None or kernels is None:
        return OUTSIDE.to_frame()
    on_cpu = pl.col("device_kind").cast(pl.String) == "cpu"
    main = ranks.filter(on_cpu).select("rank", thread="main_thread").drop_nulls()
    name = pl.col("name").cast(pl.String)
    marks = ranges.select(*TIMES, name).join(main, on=LANE, how="semi").collect()
    models = marks.filter(pl.col("name").str.starts_with(FORWARD)).sort("end")
    rows = operators.join(main, on=LANE, how="semi")
    makers = _make_nodes(rows)
    phase = pl.col("phase").cast(pl.String)
    passes = rows.filter(phase.is_in(PASS)).select(*TIMES, phase, back=phase == "backward").collect()
    if makers.is_empty() and (models.is_empty() or not passes["back"].any()):
        return OUTSIDE.to_frame()
    windows = host_steps(steps, counted.lazy()).select("rank", "step", start="opened", end="closed")
    windows = windows.join(main.select("rank"), on="rank", how="semi")
    trained = models.join_asof(
        makers.select(*LANE, "start", made="start").sort("start"),
        left_on="end", right_on="start", by=LANE, check_sortedness=False,
    ).with_columns(trains=(pl.col("made") >= pl.col("start")).fill_null(False))  # fmt: skip
    training = pl.concat(
        [
            trained.filter("trains").select(TIMES),
            marks.filter(pl.col("name").str.contains(TRAINS)).select(TIMES),
            makers.select(TIMES),
            passes.select(TIMES),
        ]
    )
    if models.is_empty():
        back = passes.filter("back").drop("phase")
        flows = pl.concat([makers.select(*TIMES, back=pl.lit(False)), back])
        updates = "optimizer" in passes["phase"] or marks["name"].str.starts_with(UPDATE).any()
        training = pl.concat([training, _whole_passes(flows, windows.collect(), bool(updates))])
    between = (
        intervals.paint(windows, {"trains": training.lazy()}, ["rank"])
        .filter(pl.col("account").is_null(), pl.col("end") > pl.col("start"))
        .select("rank", "step", "start", "end")
        .sort("start")
        .collect()
    )
    work = kernels.join(main, on=LANE, how="semi").select(*TIMES, name).collect().sort("start")
    outside = work.join_asof(
        between.select("rank", "step", "start", opened="start", until="end"),
        on="start", by="rank", check_sortedness=False,
    ).filter(pl.col("start") < pl.col("until"))  # fmt: skip
    length = pl.col("end") - pl.col("start")
    held = outside.select("rank", "opened", "until").unique()
    bound = held.select("rank", ns=pl.col("until") - pl.col("opened"), name=pl.lit(""))
    alone = _with_graphs(trained.filter(~pl.col("trains")), rows)
    of_model, makes_graph = (intervals.innermost(outside, alone, LANE, c) for c in ("name", "graph"))
    told = {
        OPERATOR: outside.select("rank", "name", ns=length),
        MODEL: outside.select("rank", ns=length, name=of_model),
        GRAPH: outside.select("rank", ns=length, name=of_model).filter(makes_graph),
        FUNCTION: outside.select("rank", ns=length, name=_functions(trace, outside)),
        BOUND: bound,
        STEP: outside.select("rank", ns=length, name=pl.col("step").cast(pl.String)),
    }
    if models.is_empty():
        told[UNMARKED] = outside.select("rank", ns=length, name=pl.lit(""))
    return pl.concat(
        rows.drop_nulls("name")
        .group_by("rank", "name")
        .agg(pl.col("ns").sum())
        .with_columns(kind=pl.lit(kind))
        .select(pl.col(c).cast(t) for c, t in OUTSIDE.items())
        .sort("rank", "ns", "name", descending=[False, True, False])
        for kind, rows in told.items()
    )


def _make_nodes(operators: pl.LazyFrame) -> pl.DataFrame:
    """The outermost operators that made a node which a backward pass runs: rank, thread, start, end.

    Autograd numbers each operator with the node that is made next, so that of several with one number the
    last made it.
    """
    of, phase = ["rank", "sequence"], pl.col("phase").cast(pl.String)
    numbered = operators.filter(pl.col("sequence") >= 0)
    back = numbered.filter(phase == "backward").select(of).unique()
    made = (
        numbered.filter(phase != "backward")
        .join(back, on=of, how="semi")
        .group_by(*LANE, "sequence")
        .agg(pl.col("start").max())
        .sort("start")
    )
    outermost = intervals.union(operators.select(TIMES), LANE).select(*TIMES, begun="start").sort("start")
    within = made.join_asof(outermost, on="start", by=LANE, check_sortedness=False)
    return within.select(*LANE, start="begun", end="end").drop_nulls().unique().collect()


def _whole_passes(flows: pl.DataFrame, windows: pl.DataFrame, updates: bool) -> pl.DataFrame:
    """From the first operator of a pass through which a gradient flows to the end of the pass back.

    Of several passes in a step, one begins with the first such operator after the one before has come back.
    Where nothing is known that `updates` weights, what comes after the last of a step may do so.
    """
    within = flows.sort("start").join_asof(
        windows.select("rank", "step", opened="start", until="end").sort("opened"),
        left_on="start", right_on="opened", by="rank", check_sortedness=False,
    ).filter(pl.col("start") < pl.col("until"))  # fmt: skip
    of, back = [*LANE, "step"], pl.col("back")
    begins = ~back & back.shift().over(of).fill_null(False)
    spans = within.with_columns(number=begins.cum_sum().over(of)).group_by(*of, "number")
    passes = spans.agg(pl.col("start").min(), pl.col("end").max()).select(TIMES)
    after = within.group_by(of).agg(pl.col("end").max().alias("start"), pl.col("until").first().alias("end"))
    return passes if updates else pl.concat([passes, after.select(TIMES)])


def _with_graphs(passes: pl.DataFrame, operators: pl.LazyFrame) -> pl.DataFrame:
    """Passes with the column `graph`: whether autograd made more than one node in them.

    It counts on with each node, and numbers no operator at all where gradients are off.
    """
    numbered = operators.filter(pl.col("sequence") >= 0).select(*LANE, "start", "sequence").collect()
    many = numbered.sort("start").join_asof(
        passes.select(*LANE, "start", "end", begun="start").sort("start"),
        on="start", by=LANE, check_sortedness=False,
    ).filter(pl.col("start") < pl.col("end"))  # fmt: skip
    counts = many.group_by(*LANE, start="begun").agg(graph=pl.col("sequence").n_unique() > 1)
    return passes.join(counts, on=[*LANE, "start"], how="left").with_columns(pl.col("graph").fill_null(False))


def _functions(trace: Trace, outside: pl.DataFrame) -> pl.Series:
    """The innermost function of the user's around each row; null where none is known."""
    frames = trace.table("frames")
    if frames is None:
        return pl.Series([None] * outside.height, dtype=pl.String)
    names = frames.select(pl.col("name").cast(pl.String).unique()).collect()["name"].drop_nulls()
    own = [name for name in names if is_users(name)]
    rows = frames.select(*TIMES, pl.col("name").cast(pl.String)).filter(pl.col("name").is_in(own))
    return intervals.innermost(outside, rows.collect(), LANE, "name").cast(pl.String)
