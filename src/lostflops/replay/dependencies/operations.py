"""The operations of one rank: what its host threads did, in their order, and what its device ran.

Host operations are calls of the runtime and driver, and marks without length where a step or an outermost
operator begins or ends. What a thread does between two of them is its own time, and stays so in every replay.
Threads that only ask whether work is done, such as NCCL's watchdog, take no part: nothing waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.store.trace import Trace

Int = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NONE = -1
"""Where an index names no row."""

# Runtime and driver calls by what they do, whichever vendor's: `cudaStreamSynchronize`,
# `hipStreamSynchronize`, `cuStreamSynchronize`, each maybe with a version after it.
RECORD = r"^(cuda|cu|hip)EventRecord"
STREAM_WAIT = r"^(cuda|cu|hip)StreamWaitEvent"
WAITS_FOR = {
    "device": r"^(cuda|cu|hip)(Device|Ctx|Context)Synchronize",
    "stream": r"^(cuda|cu|hip)StreamSynchronize",
    "event": r"^(cuda|cu|hip)EventSynchronize",
}
# Calls that wait for all work when they have to: they change what memory or code is mapped.
MAPPING = (
    r"^(cuda|cu|hip)(Free|Malloc|HostAlloc|HostRegister|HostUnregister|Mem|Module|Library|Graph.*Instantiate)"
)
LAUNCH_OR_COPY = r"Launch|Mem(cpy|set)"
AUTOGRAD = "autograd::engine"

CLOCKS_DIFFER = 20_000
"""ns by which a synchronising call may return before the device's clock says that its work ended."""

COPY_RETURNS = 1_000
"""ns by which the call of a copy that blocks may return before the copy ends."""

CALL, BEGINS, ENDS, STEP, STRETCH = range(5)
"""A host operation: a call, the begin or end of an outermost operator or step, a CPU-only stretch."""
KINDS_OF_CALL = ("record", "stream_wait", "wait_device", "wait_stream", "wait_event", "mapping")


@dataclass(frozen=True, eq=False)
class RankOperations:
    """One rank's operations. Times are ns on the run's clock; `cpu` says that the host stood in for a device.

    `host` is in the order of each thread, thread by thread: thread, start, end, what (one of those below),
    name, correlation, and a flag for each of KINDS_OF_CALL. `device` is in the order of starts: start, end,
    lane (its stream), copy, communication, call (row of `host` that launched it, or NONE), launch_start,
    direction, host_memory, bytes, and what edits select by: name, family, precision, operator, phase.
    """

    rank: int
    cpu: bool
    host: pl.DataFrame
    device: pl.DataFrame
    steps: pl.DataFrame
    working: tuple[int, ...]

    @property
    def first(self) -> int:
        starts = [frame["start"].min() for frame in (self.host, self.device) if frame.height]
        return min((int(s) for s in starts if isinstance(s, int)), default=0)


DEVICE = {
    "start": pl.Int64,
    "end": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "name": pl.String,
    "correlation": pl.Int64,
    "launch_start": pl.Int64,
    "thread": pl.Int64,
    "operator": pl.String,
    "family": pl.String,
    "precision": pl.String,
    "phase": pl.String,
    "direction": pl.String,
    "host_memory": pl.String,
    "bytes": pl.Int64,
    "copy": pl.Boolean,
    "communication": pl.Boolean,
}


def operations(trace: Trace, rank: int, *, cpu: bool) -> RankOperations:
    """What one rank did, as far as the trace holds it."""

    def rows(name: str) -> pl.DataFrame | None:
        frame = trace.table(name)
        return None if frame is None else frame.filter(pl.col("rank") == rank).collect()

    launches, operators, steps = rows("launches"), rows("operators"), rows("steps")
    stretches = rows("kernels") if cpu else None
    device = _device(
        _transfers(rows("collectives"), operators) if cpu else rows("kernels"),
        None if cpu else rows("copies"),
    )
    calls = _calls(launches)
    working = _working(calls, device, operators, stretches)
    if cpu:  # what a thread does that carries transfers is part of them
        carries = device.filter(pl.col("name").str.starts_with("gloo:"))["stream"].drop_nulls().to_list()
        working -= set(carries) - _main_threads(trace, rank)
    host = _host(calls, operators, _step_marks(trace, rank, steps), stretches, working)
    called = _with_starts(device, host) if cpu else _with_calls(device, host)
    return RankOperations(rank, cpu, host, called, _steps(steps), tuple(sorted(working)))


def _transfers(collectives: pl.DataFrame | None, operators: pl.DataFrame | None) -> pl.DataFrame | None:
    """What a CPU's communication threads carried, as rows of a device, each with the operator that asked.

    The k-th transfer belongs to the k-th operator of `c10d`, where there are as many of both.
    """
    if collectives is None or not collectives.height:
        return None
    rows = collectives.sort("start", "end").with_columns(family=pl.lit("communication"))
    if operators is None:
        return rows
    asked = operators.filter(pl.col("name").cast(pl.String).str.starts_with("c10d::")).sort("start")
    if asked.height != rows.height:
        return rows
    begins = asked["start"].to_numpy()
    possible = bool((begins <= rows["start"].to_numpy()).all())
    return rows.with_columns(launch_start=pl.Series(begins), thread=asked["thread"]) if possible else rows


def _device(kernels: pl.DataFrame | None, copies: pl.DataFrame | None) -> pl.DataFrame:
    frames = list[pl.DataFrame]()
    for frame, copy in ((kernels, False), (copies, True)):
        if frame is None:
            continue
        is_communication = pl.col("communication") if copy else pl.col("family") == "communication"
        held = frame.with_columns(copy=pl.lit(copy), communication=is_communication)
        frames.append(
            held.select(
                (pl.col(name) if name in held.columns else pl.lit(None)).cast(dtype).alias(name)
                for name, dtype in DEVICE.items()
            )
        )
    if not frames:
        return pl.DataFrame(schema={**DEVICE, "lane": pl.Int64})
    every = pl.concat(frames).sort("start", "end", "device", "stream", maintain_order=True)
    return every.with_columns(lane=pl.struct("device", "stream").rank("dense").cast(pl.Int64) - 1)


def _calls(launches: pl.DataFrame | None) -> pl.DataFrame:
    if launches is None:
        launches = pl.DataFrame(
            schema={
                "start": pl.Int64,
                "end": pl.Int64,
                "thread": pl.Int64,
                "name": pl.String,
                "correlation": pl.Int64,
            }
        )
    name = pl.col("name").cast(pl.String)
    frame = launches.select("start", "end", "thread", name, "correlation")
    # A name is looked at once, however often it was called.
    kinds = frame.select(pl.col("name").unique()).with_columns(
        record=name.str.contains(RECORD),
        stream_wait=name.str.contains(STREAM_WAIT),
        **{f"wait_{what}": name.str.contains(pattern) for what, pattern in WAITS_FOR.items()},
        mapping=name.str.contains(MAPPING) & ~name.str.contains(LAUNCH_OR_COPY),
    )
    return frame.join(kinds, on="name", how="left", maintain_order="left", nulls_equal=True)


def _working(
    calls: pl.DataFrame,
    device: pl.DataFrame,
    operators: pl.DataFrame | None,
    stretches: pl.DataFrame | None,
) -> set[int]:
    """Threads that launch work or run operators."""
    found = set[int](device["thread"].drop_nulls().to_list())
    started = calls.filter(pl.col("correlation").is_in(device["correlation"].drop_nulls().unique().implode()))
    found |= set(started["thread"].drop_nulls().to_list())
    if operators is not None:
        found |= set(operators["thread"].drop_nulls().to_list())
    if stretches is not None:
        found |= set(stretches["stream"].drop_nulls().to_list())
    return found


def _main_threads(trace: Trace, rank: int) -> set[int]:
    """The thread that runs the job's script, if it is known: where it carries transfers, it also computes."""
    ranks = trace.table("ranks")
    assert ranks is not None
    known = ranks.filter(pl.col("rank") == rank).select("main_thread").collect()["main_thread"]
    return set(known.drop_nulls().to_list())


def _step_marks(trace: Trace, rank: int, steps: pl.DataFrame | None) -> pl.DataFrame | None:
    """When the host began and left its steps, on the thread that said so: that of the ranges which mark them.

    A mark on another thread would look like a wait of that thread.
    """
    ranges = trace.table("ranges")
    if steps is None or ranges is None:
        return None
    begun = steps.select("host_start").drop_nulls().unique()
    if not begun.height:
        return None
    marks = (
        ranges.filter(pl.col("rank") == rank, pl.col("start").is_in(begun["host_start"].implode()))
        .select("thread", "start", "end")
        .collect()
    )
    # Of ranges that begin together the longest is the step's.
    longest = marks.sort("end", descending=True).unique("start", keep="first")
    of_steps = longest.group_by("thread").len().sort("len", "thread", descending=[True, False])
    if not of_steps.height:
        return None
    own = longest.filter(pl.col("thread") == of_steps["thread"][0])
    found = own.join(steps.select("host_start", "host_end"), left_on="start", right_on="host_start")
    return found.select("thread", "start", end="host_end", name=pl.lit("step"))


def _host(
    calls: pl.DataFrame,
    operators: pl.DataFrame | None,
    steps: pl.DataFrame | None,
    stretches: pl.DataFrame | None,
    working: set[int],
) -> pl.DataFrame:
    """What the working threads did, in their order. At one instant what ends comes before what begins."""
    flags = [pl.lit(False).alias(kind) for kind in KINDS_OF_CALL]
    nothing = pl.lit(None, pl.Int64).alias("correlation")

    def marks(frame: pl.DataFrame, at: str, what: int, order: int) -> pl.DataFrame:
        return frame.filter(pl.col(at).is_not_null()).select(
            "thread",
            pl.col(at).alias("start"),
            pl.col(at).alias("end"),
            pl.lit(what).alias("what"),
            pl.col("name").cast(pl.String),
            nothing,
            *flags,
            pl.lit(order).alias("order"),
        )

    held = [
        calls.select(
            "thread", "start", "end", pl.lit(CALL).alias("what"), "name", "correlation", *KINDS_OF_CALL,
            pl.lit(3).alias("order"),
        )
    ]  # fmt: skip
    if operators is not None and stretches is None:
        outer = _outermost(operators)
        held += [marks(outer, "end", ENDS, 0), marks(outer, "start", BEGINS, 2)]
    if stretches is not None:
        held.append(
            stretches.select(
                pl.col("stream").alias("thread"), "start", "end", pl.lit(STRETCH).alias("what"),
                pl.col("name").cast(pl.String), nothing, *flags, pl.lit(3).alias("order"),
                pl.col("family").cast(pl.String), pl.col("phase").cast(pl.String),
            )
        )  # fmt: skip
        if operators is not None:  # asking for communication takes the host's time, too
            asked = operators.filter(pl.col("name").cast(pl.String).str.starts_with("c10d::"))
            held.append(
                asked.select(
                    "thread", "start", "end", pl.lit(STRETCH).alias("what"), pl.col("name").cast(pl.String),
                    nothing, *flags, pl.lit(2).alias("order"),
                )
            )  # fmt: skip
    if steps is not None:
        held += [marks(steps, "start", STEP, 1), marks(steps, "end", STEP, 1)]
    return (
        pl.concat(held, how="diagonal_relaxed")
        .filter(pl.col("thread").is_in(sorted(working)))
        .sort("thread", "start", "order", "end", maintain_order=True)
    )


def _outermost(operators: pl.DataFrame) -> pl.DataFrame:
    ordered = operators.select("thread", "start", "end", "name").sort(
        "thread", "start", "end", descending=[False, False, True], maintain_order=True
    )
    before = pl.col("end").cum_max().shift(1).over("thread")
    return ordered.filter((before <= pl.col("start")).fill_null(True))


def _with_calls(device: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """The device's rows, each with the outermost call that launched it."""
    calls = (
        host.with_row_index("call")
        .filter((pl.col("what") == CALL) & pl.col("correlation").is_not_null())
        .sort("start", "call")
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", pl.col("call").cast(pl.Int64), _called="start")
    )
    found = device.join(calls, on="correlation", how="left", maintain_order="left")
    # Numbers come again in long recordings: what began before it was called was not started by that call.
    is_its = pl.col("_called").is_not_null() & (pl.col("_called") <= pl.col("start") + CLOCKS_DIFFER)
    return found.with_columns(
        call=pl.when(is_its).then(pl.col("call")).otherwise(NONE),
        launch_start=pl.when(is_its).then("_called").otherwise("launch_start"),
    ).drop("_called", "correlation", "thread")


def _with_starts(device: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """A CPU's transfers, each with the stretch in which its operator began."""
    begun = (
        host.with_row_index("call")
        .filter(pl.col("what") == STRETCH)
        .select("thread", launch_start="start", call=pl.col("call").cast(pl.Int64))
        .unique(["thread", "launch_start"], keep="first", maintain_order=True)
    )
    found = device.join(begun, on=["thread", "launch_start"], how="left", maintain_order="left")
    return found.with_columns(pl.col("call").fill_null(NONE)).drop("correlation", "thread")


def _steps(steps: pl.DataFrame | None) -> pl.DataFrame:
    if steps is None:
        return pl.DataFrame(
            schema={"step": pl.Int64, "start": pl.Int64, "end": pl.Int64, "source": pl.String}
        )
    return steps.select("step", "start", "end", "host_start", "host_end", pl.col("source").cast(pl.String))
