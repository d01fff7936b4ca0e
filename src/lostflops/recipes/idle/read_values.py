"""What the CPU waits to read, and what the GPU computes only for that: the kernels between two waits."""

from __future__ import annotations

import polars as pl

from lostflops.recipes.compute.flops import MATRIX_WORK
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace
from lostflops.tables import UNLISTED_GRAPH

# Calls that wait for the device: HIP reads values with copies that return when done.
WAITS = (
    r"(?i)synchronize|^(?:cuda|hip)Memcpy(?:2D|3D|WithStream|HtoD|DtoH|(?:To|From)Symbol)?(?:_v\d+)?$"
    r"|^cuMemcpy(?:HtoD|DtoH)(?:_v\d+)?$"
    r"|^(?:ur|pi)(?:Event|Events|EventsAnd)Wait$|^(?:ur|pi)QueueFinish$|^cnrt(?:Queue|Device)Sync$|^cnrtWait"
)
FEW = 16  # kernels between two waits: a value needs no more, and a layer takes more
AT_ONCE = 20_000  # ns from the end of a copy's call, up to which a wait that begins is for the copy
MOSTLY = 0.9  # of the waits: the others come with a batch


def reads_values(trace: Trace, counted: pl.DataFrame) -> bool:
    """Whether nearly all waits in steps that count are for values that come from the GPU.

    A copy of pageable memory to the GPU waits as well, and reads nothing.
    """
    launches, copies, steps = (trace.table(name) for name in ("launches", "copies", "steps"))
    if launches is None or copies is None or steps is None:
        return False
    windows = host_steps(steps, counted.lazy())
    waits = launches.filter(pl.col("name").cast(pl.String).str.contains(WAITS)).select("rank", "start")
    back = copies.filter(pl.col("direction").cast(pl.String) == "device to host").select(
        "rank", start=pl.coalesce("launch_start", "start")
    )
    often, read = (in_host_steps(rows, windows).collect().height for rows in (waits, back))
    return read > 0 and read >= MOSTLY * often


def awaits_batches(trace: Trace, counted: pl.DataFrame) -> bool:
    """Whether the CPU waits for copies from the host's memory in steps that count, or may.

    `.to(device)` waits without `non_blocking=True`, for a pinned batch as well: in the call that copies, or
    in the one after it.
    """
    launches, copies, steps = (trace.table(name) for name in ("launches", "copies", "steps"))
    if launches is None or copies is None or steps is None:
        return True
    of = ["rank", "thread"]
    there = copies.filter(pl.col("direction").cast(pl.String) == "host to device").select(
        *of, "end", "launch_end", start=pl.coalesce("launch_start", "start"), at="launch_end"
    )
    mine = in_host_steps(there, host_steps(steps, counted.lazy())).collect()
    if mine["at"].null_count():
        return True
    name = pl.col("name").cast(pl.String)  # a wait for the whole device is no copy's
    waits = launches.filter(name.str.contains(WAITS), ~name.str.contains("DeviceSync|CtxSync"))
    followed = mine.sort("at").join_asof(
        waits.select(*of, at="start", until="end").sort("at").collect(),
        on="at", by=of, strategy="forward", tolerance=AT_ONCE, check_sortedness=False,
    )  # fmt: skip
    waited = (pl.col("launch_end") >= pl.col("end")) | pl.col("until").is_not_null()
    return bool(followed.select(waited.any()).item())


def computed_to_be_read(trace: Trace, counted: pl.DataFrame) -> int:
    """How long kernels run, in all steps that count, of which few were launched between two waits, ns.

    They may be there for the value that is read and nothing else, such as `isnan(x).any()`.
    """
    launches, kernels, steps = (trace.table(name) for name in ("launches", "kernels", "steps"))
    if launches is None or kernels is None or steps is None:
        return 0
    of = ["rank", "thread"]
    waits = (
        launches.filter(pl.col("name").cast(pl.String).str.contains(WAITS))
        .select(*of, at="start")
        .sort("at")
        .with_row_index("wait")
        .collect()
    )
    placed = steps.join(counted.lazy(), on=["rank", "step"], how="semi").select("rank", "end", at="start")
    launched = (
        kernels.filter(
            pl.col("launch_start").is_not_null(), pl.col("family").cast(pl.String) != "communication"
        )
        .select(*of, "start", "family", "name", at="launch_start", ns=pl.col("end") - pl.col("start"))
        .sort("start")
        .collect()
        .join_asof(
            placed.sort("at").collect(), left_on="start", right_on="at", by="rank", check_sortedness=False
        )
        .filter(pl.col("start") < pl.col("end"))
        .sort("at")
    )
    before = launched.join_asof(waits, on="at", by=of, check_sortedness=False).drop_nulls("wait")
    after = before.join_asof(waits, on="at", by=of, strategy="forward", check_sortedness=False)
    # A graph that lists no kernels may hold a whole model.
    unlisted = pl.col("name").cast(pl.String) == UNLISTED_GRAPH
    of_model = (pl.col("family").cast(pl.String).is_in(MATRIX_WORK) | unlisted).any()
    each = after.drop_nulls("wait_right").group_by("wait")
    told = each.agg(pl.col("ns").sum(), kernels=pl.len(), of_model=of_model)
    return int(told.filter(pl.col("kernels") <= FEW, ~pl.col("of_model"))["ns"].sum())


def reads_after_passes(trace: Trace, counted: pl.DataFrame) -> int:
    """How many waits in steps that count come after a pass of the model without gradients, as each token does
    that is generated: since the wait before, its thread launched the kernels of several layers, and autograd
    numbered none of their operators. 0 where no operators were recorded."""
    launches, kernels, steps, operators = (
        trace.table(name) for name in ("launches", "kernels", "steps", "operators")
    )
    if launches is None or kernels is None or steps is None or operators is None:
        return 0
    of = ["rank", "thread"]
    waits = (
        launches.filter(pl.col("name").cast(pl.String).str.contains(WAITS))
        .select(*of, start="start", at="start")
        .pipe(in_host_steps, host_steps(steps, counted.lazy()))
        .sort("at")
        .with_row_index("wait")
        .collect()
    )
    launched = kernels.drop_nulls("launch_start").select(*of, "family", "phase", at="launch_start").collect()
    each = (
        launched.sort("at")
        .join_asof(waits, on="at", by=of, strategy="forward", check_sortedness=False)
        .drop_nulls("wait")
        .group_by("wait")
        .agg(
            pl.len(),
            of_model=pl.col("family").cast(pl.String).is_in(MATRIX_WORK).any(),
            numbered=pl.col("phase").is_not_null().any(),
        )
    )
    return each.filter(pl.col("len") > FEW, "of_model", ~pl.col("numbered")).height
