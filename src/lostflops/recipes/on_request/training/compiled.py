"""What `torch.compile` compiled, how often it did so again, and how much of the work its code launches."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.tables import Copies, Kernels, Operators, Ranges

# What PyTorch records: around each call of compiled code, around each node of its backward pass, around
# compiling, and as the name of a mark inside that, what is compiled.
REGION = r"^Torch-Compiled Region: (\d+/\d+)$"
BACKWARD = r"^CompiledFunctionBackward$"
COMPILES = r"\(dynamo_timed\)$|^dynamo$|^entire_(?:frame|backward)_compile$"
MARK = r"_data: .*\bcompile_id=!?(?:\d+/)?(\d+/\d+)\b"
OF_BACKWARD = "backward of regions"
LANE = ["rank", "thread"]

T = {"thread": 7}


@recipe(
    question="What did torch.compile compile, how often again, and how much of the work is its code's?",
    scope="rank",
    plot=Bars(x="region", y=("device", "compile_time")),
    columns={
        "rank": Id("rank"),
        "region": Name(
            "frame/recompilation of the compiled code, as PyTorch counts them; 'backward of regions' for its "
            "backward passes; null for all else"
        ),
        "frame": Id("number of the compiled function, or piece of one after a graph break"),
        "again": Flag("the frame was compiled before: a recompilation; null where that makes no sense"),
        "calls": Count("how often its code ran; null for all else"),
        "continued": Count("calls inside a call of other compiled code: it goes on after a graph break"),
        "compilations": Count("times it was compiled in the recording, forward and backward apart"),
        "compile_time": Time("host time of compiling it; of all else, of what names no region"),
        "compile_in_steps": Time("the part of it inside steps that count"),
        "host": Time("host time of its calls, without other regions and compiling inside them"),
        "device": Time("kernels and copies that its calls launched; on a CPU its operators"),
        "device_share": Share("device / all such work of the rank"),
    },
    examples=[
        Example(
            "a function with a graph break is compiled in two pieces, then for another shape again",
            given={
                "steps": [
                    {"step": 1, "start": 0, "end": 100, "host_start": 0, "host_end": 100},
                    {"step": 2, "start": 100, "end": 200, "host_start": 100, "host_end": 200},
                ],
                "operators": [
                    T | {"start": s, "end": e, "name": name}
                    for s, e, name in (
                        (0, 30, "entire_frame_compile"),
                        (2, 29, "_compile.compile_inner (dynamo_timed)"),
                        (30, 80, "Torch-Compiled Region: 0/0"),
                        (40, 60, "entire_frame_compile"),
                        (61, 70, "Torch-Compiled Region: 1/0"),
                        (85, 91, "CompiledFunctionBackward"),
                        (100, 117, "entire_frame_compile"),
                        (120, 140, "Torch-Compiled Region: 0/1"),
                        (125, 130, "Torch-Compiled Region: 1/0"),
                    )
                ],
                "ranges": [
                    T | {"start": s, "end": s + 1, "name": f"entire_frame_compile_data: compile_id={which}"}
                    for s, which in ((1, "0/0"), (41, "1/0"), (101, "0/1"))
                ],
                "kernels": [
                    T | {"launch_start": at, "launch_end": at + 1, "start": at + 5, "end": at + 5 + n}
                    for at, n in ((35, 10), (64, 6), (86, 16), (121, 11), (126, 7), (150, 30))
                ],
            },
            expect=[
                {"rank": 0, "region": "0/0", "frame": 0, "again": False, "calls": 1, "continued": 0}
                | {"compilations": 1, "compile_time": 30, "compile_in_steps": 30, "host": 21}
                | {"device": 10, "device_share": 0.125},
                {"rank": 0, "region": "0/1", "frame": 0, "again": True, "calls": 1, "continued": 0}
                | {"compilations": 1, "compile_time": 17, "compile_in_steps": 17, "host": 15}
                | {"device": 11, "device_share": 0.1375},
                {"rank": 0, "region": "1/0", "frame": 1, "again": False, "calls": 2, "continued": 2}
                | {"compilations": 1, "compile_time": 20, "compile_in_steps": 20, "host": 14}
                | {"device": 13, "device_share": 0.1625},
                {"rank": 0, "region": OF_BACKWARD, "frame": None, "again": None, "calls": 1, "continued": 0}
                | {"compilations": 0, "compile_time": 0, "compile_in_steps": 0, "host": 6}
                | {"device": 16, "device_share": 0.2},
                {"rank": 0, "region": None, "frame": None, "again": None, "calls": None, "continued": None}
                | {"compilations": 0, "compile_time": 0, "compile_in_steps": 0, "host": None}
                | {"device": 30, "device_share": 0.375},
            ],
        ),
        Example(
            "compiling that names no region, of which 5 ns lie outside the step",
            given={
                "steps": [{"start": 20, "end": 90, "host_start": 20, "host_end": 90}],
                "operators": [T | {"start": 15, "end": 28, "name": "compile_fx_inner (dynamo_timed)"}],
                "kernels": [T | {"launch_start": 40, "start": 45, "end": 54}],
            },
            expect=[
                {"rank": 0, "region": None, "frame": None, "again": None, "calls": None, "continued": None}
                | {"compilations": 1, "compile_time": 13, "compile_in_steps": 8, "host": None, "device": 9}
                | {"device_share": 1.0}
            ],
        ),
    ],
)  # fmt: skip
def compile_summary(
    operators: Operators, ranges: Ranges | None, kernels: Kernels | None, copies: Copies | None,
    counted_steps: pl.LazyFrame,
) -> pl.LazyFrame:  # fmt: skip
    """List what `torch.compile` made of the model: compiled regions, their compilations and their work.

    How to read it: each row with `again` is a recompilation: a shape, a type or a value has changed. After 8
    of them the function runs eagerly. Calls that are `continued` are graph breaks, at least so many. A large
    `device_share` of the row without a region is work that was not compiled. `compile_in_steps` is lost in
    steps that count.

    Limits: only what PyTorch records counts: calls of regions since 2.1, compiling and its ids in newer ones.
    Code that a region calls eagerly between its pieces counts to the region around it. Nobody records where
    a graph breaks or why: `TORCH_LOGS=graph_breaks,recompiles` prints that. A job without `torch.compile` has
    no rows.

    What to try: `mark_dynamic` or padding against recompilations, removing prints and `.item()` against
    breaks, `fullgraph=True` to be told of them; `lostflops explain compilation-inside-step`.
    """
    from_compiling = _compiling(operators, ranges, counted_steps)
    spans = _calls(operators)
    known = pl.concat([spans.select("rank"), from_compiling.select("rank")]).unique()
    table = _work(spans, from_compiling, kernels, copies)
    totals = _totals(spans, from_compiling)
    compiled = from_compiling.group_by("rank", "region").agg(
        compilations=pl.len().cast(pl.Int64),
        compile_time=(pl.col("end") - pl.col("start")).sum(),
        compile_in_steps=pl.col("_in").sum(),
    )
    keys = ["rank", "region"]
    rows = pl.concat([t.select(keys) for t in (totals, compiled, table)]).unique()
    joined = rows
    for part in (totals, compiled, table):
        joined = joined.join(part, on=keys, how="left", nulls_equal=True)
    whole = table.group_by("rank").agg(_all=pl.col("device").sum())
    number = pl.col("region").str.extract(r"^(\d+)/", 1).cast(pl.Int64)
    turn = pl.col("region").str.extract(r"/(\d+)$", 1).cast(pl.Int64)
    amounts = ("compilations", "compile_time", "compile_in_steps", "device")
    return (
        joined.join(known, on="rank", how="semi")
        .join(whole, on="rank", how="left")
        .with_columns(
            pl.col(*amounts).fill_null(0),
            pl.when(pl.col("region").is_not_null()).then(pl.col("calls", "continued", "host").fill_null(0)),
            frame=number,
            again=turn > 0,
        )
        .with_columns(device_share=pl.when(pl.col("_all") > 0).then(pl.col("device") / pl.col("_all")))
        .sort("rank", number, turn, "region", nulls_last=True)
        .select(*compile_summary.columns)
        .lazy()
    )


def _calls(operators: pl.LazyFrame) -> pl.DataFrame:
    """Each call of compiled code: rank, thread, start, end, region."""
    name = pl.col("name").cast(pl.String)
    region = pl.coalesce(
        name.str.extract(REGION, 1), pl.when(name.str.contains(BACKWARD)).then(pl.lit(OF_BACKWARD))
    )
    rows = operators.filter(name.str.contains(f"{REGION}|{BACKWARD}") & pl.col("thread").is_not_null())
    return rows.select(*LANE, "start", "end", region=region).sort(*LANE, "start", "end").collect()


def _compiling(operators: pl.LazyFrame, ranges: pl.LazyFrame | None, steps: pl.LazyFrame) -> pl.DataFrame:
    """Each stretch of compiling with the region that a mark in it names, and `_in`: its time inside steps."""
    name = pl.col("name").cast(pl.String)
    columns = [*LANE, "start", "end"]
    tables = [operators] if ranges is None else [operators, ranges]
    found = pl.concat([t.filter(name.str.contains(COMPILES)).select(columns) for t in tables])
    spans = intervals.union(found.drop_nulls("thread"), LANE).collect().sort("start")
    marks = pl.DataFrame(schema={**spans.schema, "region": pl.String}).drop("end")
    if ranges is not None:
        told = ranges.with_columns(region=name.str.extract(MARK, 1)).drop_nulls(["region", "thread"])
        marks = told.select(*LANE, "start", "region").collect()
    named = spans.join_asof(
        marks.sort("start", "region").with_columns(_at="start"),
        on="start", by=LANE, strategy="forward", check_sortedness=False,
    ).with_columns(region=pl.when(pl.col("_at") < pl.col("end")).then("region"))  # fmt: skip
    within = intervals.inside(named.drop("_at").lazy(), while_on_host(steps), {"_in": pl.lit(True)})
    return within.collect()


def _totals(spans: pl.DataFrame, compiling: pl.DataFrame) -> pl.DataFrame:
    """Calls, those inside others, and host time of each region, without regions and compiling inside."""
    before = spans.with_columns(pl.col("start") - 1)
    around = (
        intervals.innermost(before, spans, LANE, "end") if spans.height else pl.Series([], dtype=pl.Int64)
    )
    nobody = compiling.select(
        *LANE, "start", "end", region=pl.lit(None, pl.String), _row=pl.lit(-1, pl.Int64)
    )
    inner = pl.concat([spans.with_columns(_row=pl.int_range(pl.len())), nobody])
    forest = intervals.nest(
        inner["start"].to_numpy(), inner["end"].to_numpy(), intervals.group_ids(inner, LANE)
    )
    at, start, end = intervals.self_pieces(forest)
    own = (
        inner[forest.order[at]]
        .select("rank", "region", "_row", ns=pl.Series(end - start))
        .filter(pl.col("_row") >= 0)
        .group_by("rank", "region")
        .agg(host=pl.col("ns").sum())
    )
    inside = (around >= spans["end"]).fill_null(False)
    return (
        spans.with_columns(_inside=inside)
        .group_by("rank", "region")
        .agg(calls=pl.len().cast(pl.Int64), continued=pl.col("_inside").sum().cast(pl.Int64))
        .join(own, on=["rank", "region"], how="left")
    )


def _work(
    spans: pl.DataFrame, compiling: pl.DataFrame, kernels: pl.LazyFrame | None, copies: pl.LazyFrame | None
) -> pl.DataFrame:
    """Time of kernels and copies by the innermost region whose call launched them, without what compiles."""
    # On a CPU alone nothing is launched, and a row's stream is its thread.
    on_host = pl.col("launch_start").is_null().all().over("rank")
    ran = [] if kernels is None else [kernels.select(
        "rank", "start", "end", at=pl.coalesce("launch_start", "start"),
        thread=pl.when(on_host).then("stream").otherwise("thread"))]  # fmt: skip
    moved = (
        [] if copies is None else [copies.select("rank", "start", "end", at="launch_start", thread="thread")]
    )
    if not ran and not moved:
        return pl.DataFrame(schema={"rank": pl.Int32, "region": pl.String, "device": pl.Int64})
    rows = pl.concat([*ran, *moved]).with_columns(pl.col("thread").fill_null(-1)).collect()
    points = rows.select("rank", "thread", start=pl.col("at").fill_null(-(2**62)))
    marks = pl.concat([spans, compiling.select(*LANE, "start", "end").with_columns(region=pl.lit(""))])
    where = intervals.innermost(points, marks, LANE, "region")
    named = rows.with_columns(region=where).filter(pl.col("region").fill_null("-") != "")
    return named.group_by("rank", "region").agg(device=(pl.col("end") - pl.col("start")).sum())
