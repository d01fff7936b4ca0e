"""The accounts of GPU time: every nanosecond of every step of every rank lands in exactly one.

An instant belongs to the first of these that applies: a kernel that is not communication runs (compute); a
communication runs (exposed, split into wait and transfer where the last arrival is known); a copy runs;
nothing runs, and the instant is idle by its cause.

The cause of a gap is sought on the host thread that launched the work that ended it; in a backward pass on
the autograd engine's while the caller waits for it, and between two passes on the caller's. Until the call
that launched it returned the host was late, and each instant goes to what the thread was doing then; from
there on the work itself was late. A host row claims only the instants it covers, so the causes of a gap add
up to the gap, and what no row covers stays unexplained.

A recording does not hold all that a device does: what was launched before it began, what other processes
run, and nodes of graphs that are not listed leave no rows. Work that was launched and still does not begin
for `LONG` while nothing else runs had to wait for something of the kind, so that time does not count as
known to be idle for a cause: it is `unrecorded`, as is a gap whose end has no recorded launch, and every gap
where no host thread was recorded.

On a CPU-only rank host operators stand in for kernels and nothing is launched. The operators that cover a gap
there are calls of communication, in which the thread waits, and the framework's own frame around others.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import accounts, intervals
from lostflops.intervals import Int
from lostflops.naming.classification import operator_facts
from lostflops.naming.host_causes import CAPTURE as CAPTURE_CALL
from lostflops.naming.host_causes import Row, captures, cause_of, causes_of
from lostflops.recipes.backward_threads import NODE, engines, with_doers
from lostflops.recipes.stretch_names import named
from lostflops.store.trace import ONE_PER_DEVICE
from lostflops.tables import NAME

COMPUTE = "compute"
WAIT = "communication.wait"
TRANSFER = "communication.transfer"
EXPOSED = "communication.exposed"
COPY = "copy"
# Host causes in the order in which they claim an instant that several rows cover.
HOST_CAUSES = tuple(account.name.removeprefix("idle.") for account in accounts.IDLE if account.proven)
LAUNCH_BOUND = "idle.launch_bound"
CAPTURE = "idle.graph_capture"
INITIALISATION = "idle.initialisation"
SYNCHRONISED = "idle.host_synchronisation"
LONG_CALL = "idle.long_call"
DEPENDENCY = "idle.dependency"
OTHER_DEVICE = "idle.other_device"
OTHER_HOST = "idle.other_host_work"
UNRECORDED = "idle.unrecorded"
UNEXPLAINED = "idle.unexplained"
ACCOUNTS = tuple(accounts.ACCOUNTS)
# What a thread does that proves no cause by its name; after a wait, all but long calls and what else lasts
# `LONG` without a call or an operator refill the queue.
REFILLING = (LAUNCH_BOUND, OTHER_HOST)
UNNAMED = (LONG_CALL, *REFILLING)
# All that host rows claim, in the order in which they do.
CLAIMING = (*(f"idle.{cause}" for cause in HOST_CAUSES), *UNNAMED)
HOST_ONLY = pl.col("device_kind").eq_missing(pl.lit("cpu"))  # host operators stand in for kernels
# A call that launches returns after some microseconds, and what it launched begins some microseconds later. A
# hundred times that is no launch latency, on any device and driver: then there is another cause, which the
# rows here do not tell.
LONG = 1_000_000  # ns

# A first call that sets something up takes ten milliseconds to minutes, and at least so many times as long as
# the usual one. A job starts within its first steps; a single step leaves nothing to compare with, and then
# only a call that is too long for anything else counts.
FIRST_CALL = 10_000_000  # ns
FIRST_CALL_ALONE = 1_000_000_000  # ns
TIMES_THE_USUAL, TIMES_THE_LONGEST = 100, 10
LAST_OF_THE_FIRST_STEPS = 2

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
    spans: pl.LazyFrame,
    operators: Frame = None,
    ranges: Frame = None,
    frames: Frame = None,
) -> pl.LazyFrame:
    """Split each idle gap by cause: rank, step, start, end, account, gap (its number) and thread.

    They add up to the gap. `gaps` has rank, step, start and end, `spans` is what `host_by_cause` gives. A gap
    that ends with its step is ended by the next work after it. `thread` is the one that the cause was sought
    on, null where none was: the one that launched the work, or that does its work in a backward pass.
    """
    numbered = (
        gaps.filter(pl.col("end") > pl.col("start")).sort("rank", "start").with_row_index("gap").collect()
    )
    columns = ("rank", "step", "start", "end", "account", "gap", "thread")
    nowhere = pl.lit(None, dtype=pl.Int64)
    if numbered.is_empty():
        empty = numbered.lazy().with_columns(account=pl.lit("", dtype=pl.String), thread=nowhere)
        return empty.select(columns)
    began = _with_beginnings(numbered)
    ended = _drained(_ended_by(began.lazy(), ranks, kernels, copies), launches, _work(kernels, copies))
    moment = _ends_of_gaps()
    on_its_way, orphaned, sought = pl.collect_all(
        [
            (found := ended.collect().lazy()).with_columns(*moment.on_its_way).filter(moment.launched),
            found.with_columns(moment.until).filter("orphan").with_columns(*moment.orphaned),
            found.with_columns(moment.until)
            .filter(~pl.col("orphan") & (pl.col("end") > pl.col("start")))
            .select("rank", "thread", "start", "end", "step", "gap", "refilled"),
        ]
    )
    doers = with_doers(sought, engines(operators, ranges), launches, operators, ranges, frames)
    painted = intervals.paint_stacked(doers.lazy(), spans, CLAIMING, by=["rank", "thread"])
    refills = _refills()
    charged = _cut(painted, refills.until).with_columns(refills.account)
    every = pl.concat([part.select(columns) for part in (charged, on_its_way.lazy(), orphaned.lazy())])
    return (
        _in_turn(every, ranks, kernels, copies).filter(pl.col("end") > pl.col("start")).sort("rank", "start")
    )


class _EndsOfGaps(NamedTuple):
    """Expressions on gaps with what ends them."""

    launched: pl.Expr
    on_its_way: tuple[pl.Expr, ...]
    until: pl.Expr
    orphaned: tuple[pl.Expr, ...]


@cache
def _ends_of_gaps() -> _EndsOfGaps:
    nowhere = pl.lit(None, dtype=pl.Int64).alias("thread")
    # Until the call that launches has returned the host is late; after it the work is.
    returned = pl.max_horizontal("launch_start", "launch_end")
    launch = returned.clip(pl.col("start"), pl.col("end"))
    waited = pl.col("_begins") - pl.max_horizontal(returned, "began")
    account = pl.when(waited < LONG).then(pl.lit(DEPENDENCY)).otherwise(pl.lit(UNRECORDED))
    return _EndsOfGaps(
        launched=returned.is_not_null(),
        on_its_way=(launch.alias("start"), account.alias("account"), nowhere),
        # Work whose launch is not in the trace tells nothing of the host, nor does a trace without the host.
        until=launch.fill_null(pl.col("end")).alias("end"),
        orphaned=(pl.lit(UNRECORDED).alias("account"), nowhere),
    )


class _Refills(NamedTuple):
    """Expressions on stretches with the account that the host's rows give them."""

    until: pl.Expr
    account: pl.Expr


@cache
def _refills() -> _Refills:
    """Until when a stretch is the price of a wait, and its account then.

    The queue was empty because the host had waited for the device: what it does next to refill the queue,
    unless that has a name of its own, is the price of the wait. A frame or a range that runs for long and
    calls nothing is no part of that: it would idle the device as long if nobody had waited.
    """
    other_work = (pl.col("account") == OTHER_HOST) & (pl.col("end") - pl.col("start") >= LONG)
    nameless = pl.col("account").is_null() | (pl.col("account").is_in(REFILLING) & ~other_work)
    account = (
        pl.when(nameless & (pl.col("end") <= pl.col("refilled")))
        .then(pl.lit(SYNCHRONISED))
        .otherwise(pl.col("account").fill_null(UNEXPLAINED))
    )
    return _Refills(pl.when(nameless).then("refilled"), account.alias("account"))


def _in_turn(idle: pl.LazyFrame, ranks: pl.LazyFrame, kernels: Frame, copies: Frame) -> pl.LazyFrame:
    """The stretches, those that another device of the process is the reason of in an account of their own.

    A process that drives several devices waits for all of them in one place: a call that waits while this
    device has long been idle waits for another. And so does work that was launched and does not begin.
    """
    of = ["host", "main_thread"]
    each = ranks.filter(pl.col("rank_source").cast(pl.String) == ONE_PER_DEVICE).select("rank", *of)
    facts = each.unique("rank", keep="first").collect()
    if facts.height < 2:
        return idle
    idle = idle.collect().lazy()
    pairs = facts.join(facts.rename({"rank": "beside"}), on=of, nulls_equal=True)
    others = pairs.filter(pl.col("rank") != pl.col("beside")).select("rank", "beside").lazy()
    ends = [t.select("rank", "start", "end") for t in (kernels, copies) if t is not None]
    busy = pl.concat(ends).rename({"rank": "beside"}).join(others, on="beside").select("rank", "start", "end")
    may = pl.col("account").is_in([SYNCHRONISED, UNEXPLAINED, UNRECORDED])
    own = idle.filter(may).rename({"account": "own"})
    cut = intervals.paint(own, {OTHER_DEVICE: busy}, by=["rank"])
    told = cut.with_columns(
        account=pl.coalesce("account", "own"), thread=pl.when(pl.col("account").is_null()).then("thread")
    ).select(idle.collect_schema().names())
    return pl.concat([idle.filter(~may), told])


def with_names(
    idle: pl.LazyFrame, launches: Frame, operators: Frame, ranges: Frame, frames: Frame
) -> pl.LazyFrame:
    """What `idle_by_cause` gives, with `name` in place of `thread`, cut where that takes several names.

    A stretch is named by the deepest row of its thread that covers at least half of it, whatever it proves,
    and the user's function around that; null where no row covers it (`stretch_names` says all).
    """
    stretches = idle.collect()
    here = stretches.filter(pl.col("thread").is_not_null())
    rest = stretches.filter(pl.col("thread").is_null()).with_columns(name=pl.lit(None, dtype=NAME))
    lanes = here.select("rank", "thread").unique().lazy()
    # The outer ones of two with the same times first.
    columns = ("rank", "thread", "start", "end", "name")
    rows = [
        table.select(columns).join(lanes, on=["rank", "thread"], how="semi", maintain_order="left").collect()
        for table in (ranges, *_nodes_first(operators, frames), launches)
        if table is not None
    ]
    capture = pl.col("account") == CAPTURE
    parts = [rest, *([named(some, rows)] if (some := here.filter(~capture)).height else [])]
    if (some := here.filter(capture)).height:  # all that a thread does there it does for the capture
        calls = rows[-1]
        names = calls["name"].unique().cast(pl.String).drop_nulls().to_list()
        parts.append(named(some, [captures(calls.lazy(), names).select(columns).collect()]))
    return pl.concat(parts).lazy().drop("thread").sort("rank", "start")


def _nodes_first(operators: Frame, frames: Frame) -> list[Frame]:
    """Nodes of autograd, then frames, then the other operators: a hook may last as long as its node."""
    if operators is None:
        return [frames]
    is_node = pl.col("name").cast(pl.String).str.starts_with(NODE)
    return [operators.filter(is_node), frames, operators.filter(~is_node)]


def host_by_cause(
    steps: pl.LazyFrame,
    ranks: pl.LazyFrame,
    kernels: Frame,
    copies: Frame,
    launches: Frame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
) -> pl.LazyFrame:
    """What the host threads that matter did: rank, thread, account, start, end, disjoint and in order.

    The threads are those that launch work, each rank's main one, and those of backward passes. What a row
    names counts for all that it and those inside it name, so stretches of two causes may overlap. Long calls,
    dispatching and other work, which have no name, are what the others leave of steps, the first of the three
    that applies.
    """
    lanes = ["rank", "thread"]
    threads = [ranks.select("rank", thread="main_thread")]
    work = _work(kernels, copies)
    if work is not None:
        threads.append(work.select(lanes))
    pairs = engines(operators, ranges)
    threads += [pairs.lazy().select("rank", thread=role) for role in ("caller", "engine")]
    near = pl.concat(threads, how="vertical_relaxed").drop_nulls().unique().collect()
    claims = intervals.union(
        _host_claims(steps, ranks, launches, operators, ranges, frames, near).lazy(), [*lanes, "_layer"]
    ).collect()
    windows = near.lazy().join(steps.select("rank", "start", "end"), on="rank")
    unnamed, left = intervals.paint_numbered(windows, claims, len(CLAIMING), by=lanes)
    first = CLAIMING.index(UNNAMED[0])
    rest, nameless = (left >= first) & (left < len(CLAIMING)), claims["_layer"].to_numpy() >= first
    columns = (*lanes, "start", "end")
    parts = (unnamed, np.flatnonzero(rest)), (claims, np.flatnonzero(~nameless))
    rows = pl.concat([some.select(columns)[which] for some, which in parts])
    code = np.concatenate((left[rest], claims["_layer"].to_numpy()[~nameless]))
    alphabetical = np.argsort(np.argsort(np.array(CLAIMING)))
    keys = ("start", alphabetical[code], "thread", "rank")
    order = np.lexsort([rows[key].to_numpy() if isinstance(key, str) else key for key in keys])
    account = pl.Series("account", CLAIMING, dtype=pl.String).gather(code[order])
    return rows[order].insert_column(2, account).lazy()


def _with_beginnings(gaps: pl.DataFrame) -> pl.DataFrame:
    """Gaps sorted by rank and start, with `began`: where the first piece began of one cut by steps' ends."""
    rank, start, end = (gaps[c].to_numpy() for c in ("rank", "start", "end"))
    opens = np.r_[True, (start[1:] != end[:-1]) | (rank[1:] != rank[:-1])][: len(start)]
    began = start[np.maximum.accumulate(np.where(opens, np.arange(len(start)), 0))]
    return gaps.with_columns(pl.Series("began", began))


def _ended_by(gaps: pl.LazyFrame, ranks: pl.LazyFrame, kernels: Frame, copies: Frame) -> pl.LazyFrame:
    """Each gap with the launch of the work that ends it: launch_start, launch_end, thread, orphan, host_only.

    `_begins` is when that work begins. Where nothing follows, or host operators stand in for kernels
    (`host_only`), the launch is null and the thread is the one that works next, or the rank's main thread.
    `orphan` says that work follows whose launch was not recorded, or that no thread is known.
    """
    facts = ranks.select("rank", "main_thread", host_only=HOST_ONLY).unique("rank", keep="first")
    work = _work(kernels, copies)
    none = pl.lit(None, dtype=pl.Int64)
    if work is None:
        gaps = gaps.with_columns(_begins=none, launch_start=none, launch_end=none, thread=none)
    else:
        following = (
            work.rename({"start": "_begins"})
            .sort("_begins", "rank", "launch_start", "launch_end", "thread", nulls_last=True)
            .unique(["rank", "_begins"], keep="first", maintain_order=True)
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
        .with_columns(thread=pl.coalesce("thread", "main_thread"))
        .with_columns(
            orphan=(
                pl.col("thread").is_null()
                | (pl.col("_begins").is_not_null() & pl.col("launch_start").is_null())
            )
            & ~pl.col("host_only"),
            thread=pl.col("thread").fill_null(-1),
        )
    )


def _work(kernels: Frame, copies: Frame) -> Frame:
    """What ran on the devices for any time, and who launched it."""
    columns = ("rank", "start", "launch_start", "launch_end", "thread")
    holding = pl.col("end") > pl.col("start")
    work = [table.filter(holding).select(columns) for table in (kernels, copies) if table is not None]
    return pl.concat(work) if work else None


def _drained(gaps: pl.LazyFrame, launches: Frame, work: Frame) -> pl.LazyFrame:
    """Each gap with `refilled`: until when the host may refill the queue at the expense of having waited.

    That is the case where a thread that launches was inside a call that waits for the device when the gap
    began. Without the call the host would have been there sooner by as long as the call took, so no more of
    the gap is due to it than that. Null where no call waited.
    """
    if launches is None or work is None:
        return gaps.with_columns(refilled=pl.lit(None, dtype=pl.Int64))
    names = launches.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
    proven = zip(names, causes_of(names, "launch"), strict=True)
    waits = [name for name, cause in proven if cause == "host_synchronisation"]
    feeding = work.select("rank", "thread").unique()
    calls = (
        intervals.union(
            launches.filter(pl.col("name").is_in(waits)).join(feeding, on=["rank", "thread"], how="semi"),
            by=["rank"],
        )
        .select("rank", _called=pl.col("start"), _returned=pl.col("end"))
        .sort("_called")
    )
    return (
        gaps.sort("began")
        .join_asof(
            calls, left_on="began", right_on="_called", by="rank", strategy="backward", check_sortedness=False
        )
        .with_columns(
            refilled=pl.when(pl.col("_returned") >= pl.col("began")).then(
                pl.col("began") + pl.col("_returned") - pl.col("_called")
            )
        )
        .drop("_called", "_returned")
    )


def _cut(pieces: pl.LazyFrame, at: pl.Expr) -> pl.LazyFrame:
    """The pieces, those in two that hold the instant `at`."""
    pieces = pieces.collect().lazy()
    inside = ((pl.col("start") < at) & (at < pl.col("end"))).fill_null(False)
    cut = pieces.filter(inside)
    return pl.concat([pieces.filter(~inside), cut.with_columns(end=at), cut.with_columns(start=at)])


def _dispatching(operators: pl.DataFrame, names: list[str], launches: Frame) -> pl.DataFrame:
    """The operators, without the time in which a node of autograd runs none and no call, for `LONG` or more.

    A node takes microseconds around what it runs. What takes longer is a hook, or a wait.
    """
    nodes = [name for name in names if name.startswith(NODE)]
    is_node, long = pl.col("name").is_in(nodes), pl.col("end") - pl.col("start") >= LONG
    if not nodes or operators.filter(is_node & long).is_empty():
        return operators
    around, rest = operators.filter(is_node), operators.filter(~is_node)
    lane = ["rank", "thread"]
    inner = [rest.lazy(), *([] if launches is None else [launches])]
    within = pl.concat([rows.select(*lane, "start", "end") for rows in inner])
    pieces = intervals.paint(intervals.union(around.lazy(), lane), {"inner": within}, lane).collect()
    short = pieces.filter(
        pl.col("account").is_not_null() | (pl.col("end") - pl.col("start") < LONG)
    ).with_columns(name=pl.lit(None, dtype=NAME))
    return pl.concat([rest, short.select(rest.columns)])


def _first_calls(steps: pl.LazyFrame, calls: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """The calls that set up what all later ones use: the context, a library, the first memory.

    Such a call lies in the first step of a job that has just begun, frees or allocates memory or proves no
    cause, and later ones of its name are over at once. `names` is what `cause_of` says of the calls.
    """
    length = pl.col("end") - pl.col("start")
    may = names.filter(pl.col("cause").is_null() | (pl.col("cause") == "memory_allocator"))["name"]
    may = may.filter(~may.str.contains("(?i)memcpy|wait|query|synchron")).to_list()
    first = (
        steps.sort("start")
        .group_by("rank", maintain_order=True)
        .agg(_until=pl.col("end").first(), _number=pl.col("step").first(), _steps=pl.len())
        .filter(pl.col("_number") <= LAST_OF_THE_FIRST_STEPS)
        .collect()
    )
    long = calls.filter(pl.col("name").is_in(may) & (length >= FIRST_CALL)).join(first, on="rank")
    early = long.filter(pl.col("start") < pl.col("_until"))
    if early.is_empty():
        return calls.clear()
    later = (
        calls.join(early.select("rank", "name", "_until").unique(), on=["rank", "name"])
        .filter(pl.col("start") >= pl.col("_until"))
        .group_by("rank", "name")
        .agg(_usual=length.median(), _longest=length.max())
    )
    alone = pl.col("_longest").is_null()
    unlike = (length >= TIMES_THE_USUAL * pl.col("_usual")) & (
        length >= TIMES_THE_LONGEST * pl.col("_longest")
    )
    enough = pl.when(pl.col("_steps") > 1).then(FIRST_CALL).otherwise(FIRST_CALL_ALONE)
    return (
        early.join(later, on=["rank", "name"], how="left")
        .filter((length >= enough) & (alone | unlike))
        .select(calls.columns)
    )


def _host_claims(
    steps: pl.LazyFrame,
    ranks: pl.LazyFrame,
    launches: Frame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
    threads: pl.DataFrame,
) -> pl.DataFrame:
    """What these host threads did: rank, thread, start, end and `_layer`, the place of the account in
    `CLAIMING`; one row of the host may be in several."""
    parts: list[pl.DataFrame] = []
    codes: list[npt.NDArray[np.int16]] = []

    def claim(account: str, some: pl.DataFrame) -> None:
        parts.append(some.select(columns))
        codes.append(np.full(some.height, CLAIMING.index(account), np.int16))

    columns = ("rank", "thread", "start", "end")
    tables: dict[Row, Frame] = {"range": ranges, "operator": operators, "frame": frames, "launch": launches}
    known: dict[Row, pl.LazyFrame] = {row: table for row, table in tables.items() if table is not None}
    lanes = threads.lazy()
    on_host, *found = pl.collect_all(
        [
            ranks.unique("rank", keep="first").filter(HOST_ONLY).select("rank"),
            *(
                t.select(*columns, "name").join(lanes, on=["rank", "thread"], how="semi")
                for t in known.values()
            ),
        ]
    )
    for row, here in zip(known, found, strict=True):
        times, length = here.drop("name"), (here["end"] - here["start"]).to_numpy()
        names, named = _by_name(here)
        causes = causes_of(names, row)
        of = np.array([CLAIMING.index(f"idle.{cause}") if cause else -1 for cause in causes], np.int16)[named]
        proven = np.flatnonzero(of >= 0)
        parts.append(times[proven])
        codes.append(of[proven])
        if row == "launch":
            if (length >= FIRST_CALL).any():
                claim(INITIALISATION, _first_calls(steps, here, cause_of(names, row)))
            if any(map(CAPTURE_CALL.match, names)):
                claim(CAPTURE, captures(here.lazy(), names).collect())
            claim(LONG_CALL, times[np.flatnonzero(length >= LONG)])
            claim(LAUNCH_BOUND, times)
        elif row == "operator":
            on_device = here.join(on_host, on="rank", how="anti") if on_host.height else here
            claim(LAUNCH_BOUND, _dispatching(on_device, names, launches))
            if on_host.height:
                served = here.join(on_host, on="rank", how="semi")
                talk = operator_facts(names).filter(pl.col("family") == "communication")["name"].to_list()
                claim(SYNCHRONISED, served.filter(pl.col("name").is_in(talk)))
                claim(OTHER_HOST, served)
        else:
            marks = np.array([name.startswith("ProfilerStep") for name in names], np.bool_)
            claim(OTHER_HOST, times[np.flatnonzero(~marks[named])] if marks.any() else times)
    zero = pl.lit(0, dtype=pl.Int64)
    parts.append(threads.clear().with_columns(start=zero, end=zero))
    numbered = pl.Series("_layer", np.concatenate([*codes, np.zeros(0, np.int16)]))
    return pl.concat(parts, how="vertical_relaxed").with_columns(numbered)


def _by_name(rows: pl.DataFrame) -> tuple[list[str], Int]:
    """The distinct names of rows, and for each row which it has."""
    code = rows["name"].to_physical().to_numpy()
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return [name or "" for name in rows["name"][first].cast(pl.String).to_list()], which
