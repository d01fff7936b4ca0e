"""The accounts of GPU time: every nanosecond of every step of every rank lands in exactly one.

An instant belongs to the first of these that applies: a kernel that is not communication runs (compute); a
communication runs (exposed, split into wait and transfer where the last arrival is known); a copy runs;
nothing runs, and the instant is idle by its cause.

The cause of a gap is sought on the host thread that launched the work that ended it. From the gap's start to
that launch the host was late, and each instant goes to what the thread was doing then; from the launch on
the work was queued behind other streams' work or its own launch. A host row claims only the instants it
covers, so the causes of a gap add up to the gap, and what no row covers stays unexplained.

On a CPU-only rank host operators stand in for kernels and nothing is launched. The operators that cover a gap
there are calls of communication, in which the thread waits, and the framework's own frame around others.
"""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.classification import operator_facts
from lostflops.host_causes import Row, cause_of

COMPUTE = "compute"
WAIT = "communication.wait"
TRANSFER = "communication.transfer"
EXPOSED = "communication.exposed"
COPY = "copy"
# Host causes in the order in which they claim an instant that several rows cover.
HOST_CAUSES = (
    "data_loading",
    "checkpoint_logging",
    "garbage_collection",
    "compilation",
    "memory_allocator",
    "pipeline_bubble",
    "host_synchronisation",
)
LAUNCH_BOUND = "idle.launch_bound"
SYNCHRONISED = "idle.host_synchronisation"
DEPENDENCY = "idle.dependency"
OTHER_HOST = "idle.other_host_work"
UNEXPLAINED = "idle.unexplained"
IDLE = (*(f"idle.{cause}" for cause in HOST_CAUSES), LAUNCH_BOUND, DEPENDENCY, OTHER_HOST, UNEXPLAINED)
ACCOUNTS = (COMPUTE, WAIT, TRANSFER, EXPOSED, COPY, *IDLE)

Frame = pl.LazyFrame | None


def busy_and_gaps(
    steps: pl.LazyFrame, kernels: Frame, copies: Frame, collectives: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Each step of each rank as maximal runs of one account, null where the device is idle.

    `collectives` carries `wait` where the ranks could be matched (as `communication_matches` gives it) or not
    at all. Columns: rank, step, start, end, account. The runs of a step add up to it exactly.
    """
    layers: dict[str, pl.LazyFrame] = {}
    if kernels is not None:
        layers[COMPUTE] = kernels.filter(pl.col("family").ne_missing("communication")).select(
            "rank", "start", "end"
        )
    if collectives is not None:
        layers |= _communication(collectives)
    if copies is not None:
        layers[COPY] = copies.filter(~pl.col("communication")).select("rank", "start", "end")
    return intervals.paint(steps.select("rank", "step", "start", "end"), layers, by=["rank"])


def _communication(collectives: pl.LazyFrame) -> dict[str, pl.LazyFrame]:
    if "wait" not in collectives.collect_schema().names():
        return {EXPOSED: collectives.select("rank", "start", "end")}
    until = pl.col("arrival") + pl.col("wait")
    known = collectives.filter(pl.col("wait").is_not_null())
    # Moving data anywhere is progress: where one operation transfers while another waits, it is transfer.
    return {
        TRANSFER: known.select("rank", "end", start=pl.max_horizontal("start", until)),
        WAIT: known.select("rank", "start", end=pl.min_horizontal("end", until)),
        EXPOSED: collectives.filter(pl.col("wait").is_null()).select("rank", "start", "end"),
    }


def idle_by_cause(
    gaps: pl.LazyFrame,
    ranks: pl.LazyFrame,
    kernels: Frame,
    copies: Frame,
    launches: Frame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
) -> pl.LazyFrame:
    """Split each idle gap by cause: rank, step, start, end, account and gap (its number). They add up to it.

    `gaps` has rank, step, start and end. A gap that ends with its step is ended by the next work after it.
    """
    numbered = (
        gaps.filter(pl.col("end") > pl.col("start")).sort("rank", "start").with_row_index("gap").collect()
    )
    columns = ("rank", "step", "start", "end", "account", "gap")
    if numbered.is_empty():
        return numbered.lazy().with_columns(account=pl.lit("", dtype=pl.String)).select(columns)
    ended = _drained(_ended_by(numbered, ranks, kernels, copies), launches, _work(kernels, copies))
    # Before the launch the host is late; after it the work is on its way.
    launch = pl.col("launch_start").clip(pl.col("start"), pl.col("end"))
    on_its_way = ended.filter(pl.col("launch_start").is_not_null()).with_columns(
        start=launch, account=pl.lit(DEPENDENCY)
    )
    # Work whose launch is not in the trace tells nothing of the host.
    orphaned = ended.filter(pl.col("orphan")).with_columns(account=pl.lit(UNEXPLAINED))
    late = ended.filter(~pl.col("orphan")).with_columns(end=launch.fill_null(pl.col("end")))
    painted = intervals.paint(
        late.select("rank", "thread", "start", "end", "step", "gap", "drained").lazy(),
        _host_rows(launches, operators, ranges, frames, late),
        by=["rank", "thread"],
    ).collect()
    # The queue was empty because the host had waited for the device: what it does next to refill the queue,
    # unless that has a name of its own, is the price of the wait.
    nameless = pl.col("account").is_null() | pl.col("account").is_in([LAUNCH_BOUND, OTHER_HOST])
    painted = painted.with_columns(
        account=pl.when(pl.col("drained") & nameless)
        .then(pl.lit(SYNCHRONISED))
        .otherwise(pl.col("account").fill_null(UNEXPLAINED))
    )
    return (
        pl.concat([part.select(columns) for part in (painted, on_its_way, orphaned)])
        .lazy()
        .filter(pl.col("end") > pl.col("start"))
        .sort("rank", "start")
    )


def _ended_by(gaps: pl.DataFrame, ranks: pl.LazyFrame, kernels: Frame, copies: Frame) -> pl.DataFrame:
    """Each gap with the launch of the work that ends it: launch_start, thread, orphan and host_only.

    Where nothing follows, or host operators stand in for kernels (`host_only`), the launch is null and the
    thread is the one that works next, or the rank's main thread. `orphan` says that work follows whose launch
    was not recorded.
    """
    facts = (
        ranks.select("rank", "main_thread", host_only=pl.col("device_kind").eq_missing(pl.lit("cpu")))
        .unique("rank", keep="first")
        .collect()
    )
    work = _work(kernels, copies)
    none = pl.lit(None, dtype=pl.Int64)
    if work is None:
        gaps = gaps.with_columns(_begins=none, launch_start=none, thread=none)
    else:
        following = (
            work.rename({"start": "_begins"})
            .sort("_begins", "rank", "launch_start", "thread", nulls_last=True)
            .unique(["rank", "_begins"], keep="first", maintain_order=True)
            .collect()
        )
        gaps = gaps.sort("end").join_asof(
            following,
            left_on="end",
            right_on="_begins",
            by="rank",
            strategy="forward",
            check_sortedness=False,
        )
    return (
        gaps.join(facts, on="rank", how="left", maintain_order="left")
        .with_columns(pl.col("host_only").fill_null(False))
        .with_columns(
            orphan=pl.col("_begins").is_not_null() & pl.col("launch_start").is_null() & ~pl.col("host_only"),
            thread=pl.coalesce("thread", "main_thread", pl.lit(-1)),
        )
    )


def _work(kernels: Frame, copies: Frame) -> Frame:
    """What ran on the devices for any time, and who launched it."""
    columns = ("rank", "start", "launch_start", "thread")
    holding = pl.col("end") > pl.col("start")
    work = [table.filter(holding).select(columns) for table in (kernels, copies) if table is not None]
    return pl.concat(work) if work else None


def _drained(gaps: pl.DataFrame, launches: Frame, work: Frame) -> pl.DataFrame:
    """Whether a thread that launches was inside a call that waits for the device when each gap began.

    A gap cut in two by a step's end began where its first piece began.
    """
    if launches is None or work is None:
        return gaps.with_columns(drained=pl.lit(False))
    names = launches.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
    waits = cause_of(names, "launch").filter(pl.col("cause") == "host_synchronisation")["name"].to_list()
    feeding = work.select("rank", "thread").unique()
    calls = (
        intervals.union(
            launches.filter(pl.col("name").is_in(waits)).join(feeding, on=["rank", "thread"], how="semi"),
            by=["rank"],
        )
        .select("rank", _called=pl.col("start"), _returned=pl.col("end"))
        .sort("_called")
        .collect()
    )
    began = (
        gaps.sort("start")
        .join_asof(
            calls, left_on="start", right_on="_called", by="rank", strategy="backward", check_sortedness=False
        )
        .sort("rank", "start")
    )
    new = (pl.col("start") != pl.col("end").shift(1)) | (pl.col("rank") != pl.col("rank").shift(1))
    return (
        began.with_columns(_run=new.fill_null(True).cum_sum(), drained=pl.col("_returned") >= pl.col("start"))
        .with_columns(drained=pl.col("drained").first().over("_run").fill_null(False))
        .drop("_run", "_called", "_returned")
    )


def _host_rows(
    launches: Frame, operators: Frame, ranges: Frame, frames: Frame, late: pl.DataFrame
) -> dict[str, pl.LazyFrame]:
    """What host threads did, as layers in the order in which they claim an instant."""
    claims: dict[str, list[pl.LazyFrame]] = {f"idle.{cause}": [] for cause in HOST_CAUSES}
    claims |= {LAUNCH_BOUND: [], OTHER_HOST: []}
    columns = ("rank", "thread", "start", "end")
    near = late.select("rank", "thread", "host_only").unique().lazy()
    tables: tuple[tuple[Frame, Row], ...] = (
        (ranges, "range"),
        (operators, "operator"),
        (frames, "frame"),
        (launches, "launch"),
    )
    for table, row in tables:
        if table is None:
            continue
        here = table.select(*columns, "name").join(near, on=["rank", "thread"])
        names = here.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
        by_cause = cause_of(names, row).filter(pl.col("cause").is_not_null()).group_by("cause").agg("name")
        for cause, proving in by_cause.iter_rows():
            claims[f"idle.{cause}"].append(here.filter(pl.col("name").is_in(proving)))
        if row == "launch":
            claims[LAUNCH_BOUND].append(here)
        elif row == "operator":
            claims[LAUNCH_BOUND].append(here.filter(~pl.col("host_only")))
            if late["host_only"].any():
                on_host = here.filter("host_only")
                talk = operator_facts(names).filter(pl.col("family") == "communication")["name"].to_list()
                claims[SYNCHRONISED].append(on_host.filter(pl.col("name").is_in(talk)))
                claims[OTHER_HOST].append(on_host)
        else:
            claims[OTHER_HOST].append(here.filter(~pl.col("name").cat.starts_with("ProfilerStep")))
    return {
        account: pl.concat([rows.select(columns) for rows in some])
        for account, some in claims.items()
        if some
    }
