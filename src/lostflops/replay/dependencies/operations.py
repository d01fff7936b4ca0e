"""The operations of one rank: what its host threads did, in their order, and what its device ran.

Host operations are calls of the runtime and driver, and marks without length where a step or an outermost
operator begins or ends. What a thread does between two of them is its own time, and stays so in every replay.
Threads that only ask whether work is done, such as NCCL's watchdog, take no part: nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
ON_THREADS = r"^(gloo|mpi|ucc):"  # backends that carry what is on the host
STREAM_WAIT = r"^(cuda|cu|hip)StreamWaitEvent"
WAITS_FOR = {
    "device": r"^(cuda|cu|hip)(Device|Ctx|Context)Synchronize",
    "stream": r"^(cuda|cu|hip)StreamSynchronize",
    # What they wait for is told by what ends in them, and so it is for other vendors' calls.
    "event": r"^(cuda|cu|hip)EventSynchronize"
    r"|^ze\w*Synchronize$|^(ur|pi)(Event|Events|EventsAnd)Wait$|^(ur|pi)QueueFinish$"
    r"|^(AscendCL@)?aclrtSynchronize|^(syn|mu|musa)(Stream|Event|Device|Ctx)Synchronize$",
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
STEPS = ("step", "start", "end", "host_start", "host_end", "source")
TEXTS = ("name", "operator", "family", "precision", "phase", "direction", "host_memory", "source")
THREAD = ["rank", "thread"]
NUMBER = pl.int_range(pl.len(), dtype=pl.Int64).over("rank")
"""The place of each row among those of its rank."""


def operations(trace: Trace, ranks: Sequence[int], *, cpu: bool) -> Iterator[RankOperations]:
    """What some ranks did, as far as the trace holds it, rank by rank.

    Their rows are put together in one go: a small rank takes less than planning its queries does.
    """
    seen = trace.select(frozenset(ranks))

    def rows(name: str, *columns: str) -> pl.DataFrame | None:
        frame = seen.table(name)
        if frame is None:
            return None
        known = frame.collect_schema()
        return frame.select(
            "rank",
            *(
                pl.col(column).cast(pl.String) if column in TEXTS else column
                for column in columns
                if column in known
            ),
        ).collect()

    operators, steps = rows("operators", "thread", "start", "end", "name"), rows("steps", *STEPS)
    kernels = rows("kernels", *DEVICE)
    stretches = kernels if cpu else None
    device = _device(
        _transfers(rows("collectives", *DEVICE), operators) if cpu else kernels,
        None if cpu else rows("copies", *DEVICE),
    )
    calls = _calls(rows("launches", "start", "end", "thread", "name", "correlation"))
    working = _working(calls, device, operators, stretches)
    if cpu:  # what a thread does that carries transfers is part of them
        carries = device.filter(pl.col("name").str.contains(ON_THREADS)).select("rank", thread="stream")
        carries = carries.join(_main_threads(trace), on=THREAD, how="anti")
        working = working.join(carries, on=THREAD, how="anti")
    host = _host(
        calls, operators, _step_marks(rows("ranges", "thread", "start", "end"), steps), stretches, working
    )
    called = _with_starts(device, host) if cpu else _with_calls(device, host)
    parts = [_by_rank(frame) for frame in (host, called, _steps(steps), working.sort(THREAD))]
    for rank in ranks:
        of_host, of_device, of_steps, threads = (part(rank) for part in parts)
        yield RankOperations(rank, cpu, of_host, of_device, of_steps, tuple(threads["thread"].to_list()))


def _by_rank(frame: pl.DataFrame) -> Callable[[int], pl.DataFrame]:
    """What gives each rank's rows of a frame."""
    parts = frame.partition_by("rank", as_dict=True, include_key=False, maintain_order=True)
    nothing = frame.clear().drop("rank")
    return lambda rank: parts.get((rank,), nothing)


def _transfers(collectives: pl.DataFrame | None, operators: pl.DataFrame | None) -> pl.DataFrame | None:
    """What CPUs' communication threads carried, as rows of a device, each with the operator that asked.

    The k-th transfer of a rank belongs to its k-th operator of `c10d`, where there are as many of both.
    """
    if collectives is None or not collectives.height:
        return None
    rows = collectives.sort("rank", "start", "end", maintain_order=True).with_columns(
        family=pl.lit("communication")
    )
    if operators is None:
        return rows
    number = pl.int_range(pl.len()).over("rank")
    asked = operators.filter(pl.col("name").str.starts_with("c10d::")).sort(
        "rank", "start", maintain_order=True
    )
    asked = asked.select(
        "rank", launch_start="start", thread="thread", _number=number, _asked=pl.len().over("rank")
    )
    # Each transfer has its operator, none is left over, and none was carried before it was asked for.
    fits = (pl.len() == pl.col("_asked")) & (pl.col("launch_start") <= pl.col("start"))
    return (
        rows.drop("launch_start", "thread", strict=False)
        .with_columns(_number=number)
        .join(asked, on=["rank", "_number"], how="left", maintain_order="left")
        .with_columns(_fits=fits.fill_null(False).all().over("rank"))
        .with_columns(pl.when("_fits").then(pl.col("launch_start", "thread")))
        .drop("_number", "_asked", "_fits")
    )


def _device(kernels: pl.DataFrame | None, copies: pl.DataFrame | None) -> pl.DataFrame:
    frames = list[pl.DataFrame]()
    for frame, copy in ((kernels, False), (copies, True)):
        if frame is None:
            continue
        is_communication = pl.col("communication") if copy else pl.col("family") == "communication"
        held = frame.with_columns(copy=pl.lit(copy), communication=is_communication)
        frames.append(
            held.select(
                "rank",
                *(
                    (pl.col(name) if name in held.columns else pl.lit(None)).cast(dtype).alias(name)
                    for name, dtype in DEVICE.items()
                ),
            )
        )
    if not frames:
        return pl.DataFrame(schema={"rank": pl.Int32, **DEVICE, "lane": pl.Int64})
    every = pl.concat(frames).sort("rank", "start", "end", "device", "stream", maintain_order=True)
    lane = pl.struct("device", "stream").rank("dense").over("rank")
    return every.with_columns(lane=lane.cast(pl.Int64) - 1)


def _calls(launches: pl.DataFrame | None) -> pl.DataFrame:
    if launches is None:
        launches = pl.DataFrame(
            schema={
                "rank": pl.Int32,
                "start": pl.Int64,
                "end": pl.Int64,
                "thread": pl.Int64,
                "name": pl.String,
                "correlation": pl.Int64,
            }
        )
    name = pl.col("name")
    # A name is looked at once, however often it was called.
    kinds = launches.select(name.unique()).with_columns(
        record=name.str.contains(RECORD),
        stream_wait=name.str.contains(STREAM_WAIT),
        **{f"wait_{what}": name.str.contains(pattern) for what, pattern in WAITS_FOR.items()},
        mapping=name.str.contains(MAPPING) & ~name.str.contains(LAUNCH_OR_COPY),
    )
    return launches.join(kinds, on="name", how="left", maintain_order="left", nulls_equal=True)


def _working(
    calls: pl.DataFrame,
    device: pl.DataFrame,
    operators: pl.DataFrame | None,
    stretches: pl.DataFrame | None,
) -> pl.DataFrame:
    """Threads that launch work or run operators: rank, thread."""
    found = [
        device.select(THREAD),
        calls.join(device, on=["rank", "correlation"], how="semi").select(THREAD),
    ]
    if operators is not None:
        found.append(operators.select(THREAD))
    if stretches is not None:
        found.append(stretches.select("rank", thread="stream"))
    return pl.concat(found, how="vertical_relaxed").drop_nulls().unique()


def _main_threads(trace: Trace) -> pl.DataFrame:
    """The threads that run the job's script, where known: where they carry transfers, they also compute."""
    ranks = trace.table("ranks")
    assert ranks is not None
    return ranks.select("rank", thread="main_thread").drop_nulls().collect()


def _step_marks(ranges: pl.DataFrame | None, steps: pl.DataFrame | None) -> pl.DataFrame | None:
    """When the host began and left its steps, on the thread that said so: that of the ranges which mark them.

    A mark on another thread would look like a wait of that thread.
    """
    if steps is None or ranges is None:
        return None
    begun = steps.select("rank", "host_end", start="host_start").drop_nulls("start")
    at = ["rank", "start"]
    # Of ranges that begin together the longest is the step's.
    longest = (
        ranges.join(begun, on=at, how="semi")
        .sort("end", descending=True, maintain_order=True)
        .unique(at, keep="first", maintain_order=True)
    )
    says = (
        longest.group_by(THREAD)
        .len()
        .sort("rank", "len", "thread", descending=[False, True, False])
        .unique("rank", keep="first", maintain_order=True)
    )
    found = longest.join(says, on=THREAD, how="semi").join(begun, on=at)
    return found.select("rank", "thread", "start", end="host_end", name=pl.lit("step"))


def _host(
    calls: pl.DataFrame,
    operators: pl.DataFrame | None,
    steps: pl.DataFrame | None,
    stretches: pl.DataFrame | None,
    working: pl.DataFrame,
) -> pl.DataFrame:
    """What the working threads did, in their order. At one instant what ends comes before what begins."""
    flags = [pl.lit(False).alias(kind) for kind in KINDS_OF_CALL]
    nothing = pl.lit(None, pl.Int64).alias("correlation")

    def marks(frame: pl.DataFrame, at: str, what: int, order: int) -> pl.DataFrame:
        return frame.filter(pl.col(at).is_not_null()).select(
            "rank",
            "thread",
            pl.col(at).alias("start"),
            pl.col(at).alias("end"),
            pl.lit(what).alias("what"),
            "name",
            nothing,
            *flags,
            pl.lit(order).alias("order"),
        )

    held = [
        calls.select(
            "rank", "thread", "start", "end", pl.lit(CALL).alias("what"), "name", "correlation",
            *KINDS_OF_CALL, pl.lit(3).alias("order"),
        )
    ]  # fmt: skip
    if operators is not None and stretches is None:
        outer = _outermost(operators)
        held += [marks(outer, "end", ENDS, 0), marks(outer, "start", BEGINS, 2)]
    if stretches is not None:
        held.append(
            stretches.select(
                "rank", pl.col("stream").alias("thread"), "start", "end", pl.lit(STRETCH).alias("what"),
                "name", nothing, *flags, pl.lit(3).alias("order"), "family", "phase",
            )
        )  # fmt: skip
        if operators is not None:  # asking for communication takes the host's time, too
            asked = operators.filter(pl.col("name").str.starts_with("c10d::"))
            held.append(
                asked.select(
                    "rank", "thread", "start", "end", pl.lit(STRETCH).alias("what"), "name",
                    nothing, *flags, pl.lit(2).alias("order"),
                )
            )  # fmt: skip
    if steps is not None:
        held += [marks(steps, "start", STEP, 1), marks(steps, "end", STEP, 1)]
    return (
        pl.concat(held, how="diagonal_relaxed")
        .join(working, on=THREAD, how="semi")
        .sort("rank", "thread", "start", "order", "end", maintain_order=True)
    )


def _outermost(operators: pl.DataFrame) -> pl.DataFrame:
    ordered = operators.sort(
        "rank", "thread", "start", "end", descending=[False, False, False, True], maintain_order=True
    )
    before = pl.col("end").cum_max().shift(1).over(THREAD)
    return ordered.filter((before <= pl.col("start")).fill_null(True))


def _with_calls(device: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """The device's rows, each with the outermost call of its rank that launched it."""
    calls = (
        host.with_columns(call=NUMBER)
        .filter((pl.col("what") == CALL) & pl.col("correlation").is_not_null())
        .sort("start", "call", maintain_order=True)
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
        .select("rank", "correlation", "call", _called="start")
    )
    found = device.join(calls, on=["rank", "correlation"], how="left", maintain_order="left")
    # Numbers come again in long recordings: what began before it was called was not started by that call.
    is_its = pl.col("_called").is_not_null() & (pl.col("_called") <= pl.col("start") + CLOCKS_DIFFER)
    return found.with_columns(
        call=pl.when(is_its).then(pl.col("call")).otherwise(NONE),
        launch_start=pl.when(is_its).then("_called").otherwise("launch_start"),
    ).drop("_called", "correlation", "thread")


def _with_starts(device: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """CPUs' transfers, each with the stretch in which its operator began."""
    begun = (
        host.with_columns(call=NUMBER)
        .filter(pl.col("what") == STRETCH)
        .select("rank", "thread", "call", launch_start="start")
        .unique(["rank", "thread", "launch_start"], keep="first", maintain_order=True)
    )
    found = device.join(begun, on=["rank", "thread", "launch_start"], how="left", maintain_order="left")
    return found.with_columns(pl.col("call").fill_null(NONE)).drop("correlation", "thread")


def _steps(steps: pl.DataFrame | None) -> pl.DataFrame:
    if steps is None:
        return pl.DataFrame(
            schema={
                "rank": pl.Int32, **dict.fromkeys(STEPS, pl.Int64), "source": pl.String
            }
        )  # fmt: skip
    return steps
