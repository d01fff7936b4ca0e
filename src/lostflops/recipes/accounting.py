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
where no host thread was recorded. Where a profiler lost kernels, the device may have run one that was
launched between the works around a gap: that launched work waits there, or the host for the device, is then
`unrecorded` as well. Managed memory moves without a launch, when a page is missing: that ends no gap.

On a CPU-only rank host operators stand in for kernels and nothing is launched. The operators that cover a gap
there are calls of communication, in which the thread waits, and the framework's own frame around others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import accounts, intervals
from lostflops.intervals import NEVER, Int, by_name, filled
from lostflops.naming.classification import operator_facts
from lostflops.naming.host_causes import CAPTURE as CAPTURE_CALL
from lostflops.naming.host_causes import Row, captures, cause_of, causes_of
from lostflops.naming.step_marks import says_nothing
from lostflops.recipes.backward_threads import NODE, lanes, with_doers
from lostflops.recipes.dispatching import dispatching
from lostflops.recipes.first_calls import FIRST_CALL, first_calls
from lostflops.recipes.launched_work import blocking_reads, launched_work
from lostflops.recipes.lost_kernels import lost, lost_between
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
EVERY = pl.Enum(ACCOUNTS)
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

Frame = pl.LazyFrame | None
Bool = npt.NDArray[np.bool_]


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
    engines: pl.DataFrame,
    operators: Frame = None,
    ranges: Frame = None,
    frames: Frame = None,
) -> pl.LazyFrame:
    """Split each idle gap by cause: rank, step, start, end, account, gap and thread.

    They add up to the gap. `gaps` is what the recipe `idle_gaps` gives, of all ranks or of some, `spans` what
    `host_by_cause` gives and `engines` what `backward_threads.engines` does. A gap that ends with its step is
    ended by the next work after it. `thread` is the one that the cause was sought on, null where none was:
    the one that launched the work, or that does its work in a backward pass.
    """
    known = gaps.collect()
    rank, start, end = (known[c].to_numpy() for c in ("rank", "start", "end"))
    lasting = np.flatnonzero(end > start)
    order = lasting[intervals.sorted_by(rank[lasting], start[lasting])]
    rank, start, end = rank[order], start[order], end[order]
    work = launched_work(kernels, copies)
    done = None if work is None else work.collect()
    ended = _ended_by(rank, end, ranks, done)
    began = _beginnings(rank, start, end)
    at_causes = spans.collect()
    refilled = _refilled(rank, began, _waits_for_devices(at_causes, ranks), done)
    # Until the call that launches has returned the host is late; after it the work is.
    returned = np.maximum(ended.launch_start, ended.launch_end)
    launched, orphaned = np.flatnonzero(returned > NEVER), np.flatnonzero(ended.orphan)
    waited = ended.begins[launched] - np.maximum(returned, began)[launched]
    # Where nothing follows, what was launched until the gap ends may have run.
    following = np.where(ended.begins > NEVER, ended.launch_start, end)
    may_run = lost_between(rank, ended.before, following, lost(launches, kernels))
    known_idle = (waited < LONG) & ~may_run[launched]
    late = np.where(known_idle, NAMED.index(DEPENDENCY), NAMED.index(UNRECORDED))
    # Work whose launch is not in the trace tells nothing of the host, nor does a trace without the host.
    launch = np.clip(returned, start, end)
    until = np.where(returned > NEVER, launch, end)
    sought = np.flatnonzero(~ended.orphan & (until > start))
    asked = {
        "rank": rank[sought].astype(np.int32),
        "thread": ended.thread[sought],
        "start": start[sought],
        "end": until[sought],
        "gap": sought,
    }
    doers = with_doers(pl.DataFrame(asked), engines, launches, operators, ranges, frames)
    charged = _charged(doers, at_causes, refilled, may_run)
    gap, start, end, account = (
        np.concatenate(parts)
        for parts in (
            (charged.gap, launched, orphaned),
            (charged.start, launch[launched], start[orphaned]),
            (charged.end, end[launched], until[orphaned]),
            (charged.account, late, np.full(len(orphaned), NAMED.index(UNRECORDED))),
        )
    )
    nobody = pl.repeat(None, len(launched) + len(orphaned), dtype=pl.Int64, eager=True)
    held = np.flatnonzero(end > start)
    rows = held[intervals.sorted_by(rank[gap[held]], start[held])]
    every = {
        "rank": rank[gap[rows]],
        "step": known["step"][order[gap[rows]]],
        "start": start[rows],
        "end": end[rows],
        "account": pl.Series(NAMED, dtype=pl.String)[account[rows]],
        "gap": known["gap"][order[gap[rows]]],
        "thread": pl.concat([pl.Series(charged.thread), nobody])[rows],
    }
    return _in_turn(pl.LazyFrame(every), ranks, kernels, copies)


LAST = 2**63 - 1
# What a stretch may be charged to, numbered: what host rows claim, then the rest.
NAMED = (*CLAIMING, UNEXPLAINED, DEPENDENCY, UNRECORDED)
# In these no thread refills a queue.
CALLS_NOTHING = (NAMED.index(OTHER_HOST), NAMED.index(UNEXPLAINED))


def places(account: pl.Series, among: Sequence[str]) -> Int:
    """The place of each account among some, -1 for others."""
    code = account.cast(EVERY, strict=False).to_physical()
    code = code.fill_null(len(ACCOUNTS)) if code.null_count() else code
    number = {name: place for place, name in enumerate(among)}
    place = np.array([*(number.get(name, -1) for name in ACCOUNTS), -1])
    return place[code.to_numpy()]


class _Charged(NamedTuple):
    """Stretches with the account that the host's rows give them, as its place in `NAMED`."""

    gap: Int
    thread: Int
    start: Int
    end: Int
    account: Int


def _charged(doers: pl.DataFrame, spans: pl.DataFrame, refilled: Int, may_run: Bool) -> _Charged:
    """What the threads of these stretches did in them.

    A call that waits for the device in a gap that `may_run` what was lost waits for just that.

    The queue was empty because the host had waited for the device: what it does next to refill the queue,
    unless that has a name of its own, is the price of the wait. A frame or a range that runs for long and
    calls nothing is no part of that: it would idle the device as long if nobody had waited. Nor is as long a
    time of which nothing was recorded, in which no queue is refilled.
    """
    layer = places(spans["account"], CLAIMING)
    rank, thread, start, end = (spans[c].to_numpy() for c in TIMES)
    first, reach = intervals.united((rank, thread, layer), start, end)
    layers = (rank[first], thread[first], start[first], reach)
    runs = intervals.painted([doers[c].to_numpy() for c in TIMES], layers, layer[first], len(CLAIMING))
    gap, thread = (doers[c].to_numpy()[runs.window] for c in ("gap", "thread"))
    start, end, account = runs.start, runs.end, runs.layer
    waits_for_lost = (account == NAMED.index(SYNCHRONISED)) & may_run[gap]
    account = np.where(waits_for_lost, NAMED.index(UNRECORDED), account)
    at = refilled[gap]
    # A step's end may have cut them, and short calls what calls nothing else.
    busy_elsewhere = np.where(np.isin(account, CALLS_NOTHING), CALLS_NOTHING[0], account)
    keys = (doers["rank"].to_numpy()[runs.window], thread, busy_elsewhere)
    nameless = _nameless(account, intervals.touching_lengths(keys, start, end))
    cut = np.flatnonzero(nameless & (start < at) & (at < end))
    # The first part of what is cut stays in its place.
    gap, thread, account, nameless = (np.r_[c, c[cut]] for c in (gap, thread, account, nameless))
    start, end = np.r_[start, at[cut]], np.r_[end, end[cut]]
    end[cut] = at[cut]
    account = np.where(nameless & (end <= refilled[gap]), NAMED.index(SYNCHRONISED), account)
    return _Charged(gap, thread, start, end, account)


def _nameless(account: Int, length: Int) -> npt.NDArray[np.bool_]:
    """Whether stretches charged to these accounts have no name of their own."""
    launches = account == NAMED.index(LAUNCH_BOUND)
    return launches | (np.isin(account, CALLS_NOTHING) & (length < LONG))


def _in_turn(idle: pl.LazyFrame, ranks: pl.LazyFrame, kernels: Frame, copies: Frame) -> pl.LazyFrame:
    """The stretches, those that another device of the process is the reason of in an account of their own.

    A process that drives several devices waits for all of them in one place: a call that waits while this
    device has long been idle waits for another. And so does work that was launched and does not begin.
    """
    of = ["host", "main_thread"]
    source = pl.col("rank_source").cast(pl.String)
    facts = ranks.filter(source == ONE_PER_DEVICE).select("rank", *of).collect()
    facts = facts.unique("rank", keep="first") if facts.height else facts
    if facts.height < 2:
        return idle
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
    return pl.concat([idle.filter(~may), told]).sort("rank", "start")


def with_names(
    idle: pl.LazyFrame,
    launches: Frame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
    os_calls: Frame = None,
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
    rows, in_calls = (
        [
            table.select(columns)
            .join(lanes, on=["rank", "thread"], how="semi", maintain_order="left")
            .collect()
            for table in tables
            if table is not None
        ]
        for tables in ((ranges, *_nodes_first(operators, frames), launches), (os_calls,))
    )
    capture, other = pl.col("account") == CAPTURE, pl.col("account") == OTHER_HOST
    parts = [rest]
    # What proves a cause is called by that, not by the call of the system in which it waits.
    for which, among in ((~capture & ~other, rows), (other, rows + in_calls)):
        parts += [named(some, among)] if (some := here.filter(which)).height else []
    if (some := here.filter(capture)).height:  # all that a thread does there it does for the capture
        parts.append(named(some, [_captures_beside(some, launches).select(columns)]))
    return pl.concat(parts).lazy().drop("thread").sort("rank", "start")


def _captures_beside(stretches: pl.DataFrame, launches: Frame) -> pl.DataFrame:
    """The captures of graphs of these ranks, each on all threads of the stretches: a backward pass that is
    captured runs on a thread of its own."""
    assert launches is not None
    names = launches.select(pl.col("name").unique().cast(pl.String)).collect()["name"].drop_nulls()
    lanes = stretches.select("rank", "thread").unique()
    return captures(launches, names.to_list()).drop("thread").collect().join(lanes, on="rank")


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
    engines: pl.DataFrame,
    operators: Frame,
    ranges: Frame,
    frames: Frame,
    os_calls: Frame = None,
) -> pl.LazyFrame:
    """What the host threads that matter did: rank, thread, account, start, end, disjoint and in order.

    The threads are those that launch work, each rank's main one, and those of backward passes. What a row
    names counts for all that it and those inside it name, so stretches of two causes may overlap. Long calls,
    dispatching and other work, which have no name, are what the others leave of steps, the first of the three
    that applies.
    """
    threads = [ranks.select("rank", thread="main_thread").collect()]
    if (work := launched_work(kernels, copies)) is not None:
        threads.append(work.select("rank", "thread").collect())
    near = _lanes(*threads, *(engines.select("rank", thread=role) for role in ("caller", "engine")))
    tables: dict[Row, Frame] = {"range": ranges, "operator": operators, "frame": frames, "launch": launches}
    *claims, layer = _host_claims(steps, ranks, tables, os_calls, near, engines, blocking_reads(copies))
    rank, thread, start, end = claims
    first, reach = intervals.united((rank, thread, layer), start, end)
    rank, thread, start, layer = (column[first] for column in (rank, thread, start, layer))
    windows = _windows(steps, near)
    runs = intervals.painted(windows, (rank, thread, start, reach), layer, len(CLAIMING))
    unnamed = CLAIMING.index(UNNAMED[0])
    rest, named = (runs.layer >= unnamed) & (runs.layer < len(CLAIMING)), layer < unnamed
    of = runs.window[rest]
    others = (windows[0][of], windows[1][of], runs.start[rest], runs.end[rest], runs.layer[rest])
    rank, thread, start, end, code = (
        np.concatenate(both)
        for both in zip(
            _without_computing(others, kernels, ranks),
            (rank[named], thread[named], start[named], reach[named], layer[named]),
            strict=True,
        )
    )
    alphabetical = np.argsort(np.argsort(np.array(CLAIMING)))
    order = intervals.sorted_by(rank, thread, alphabetical[code], start)
    account = pl.Series(CLAIMING, dtype=pl.String)[code[order]]
    return pl.LazyFrame(
        {
            "rank": rank[order].astype(np.int32),
            "thread": thread[order],
            "account": account,
            "start": start[order],
            "end": end[order],
        }
    )


def _without_computing(stretches: Sequence[Int], kernels: Frame, ranks: pl.LazyFrame) -> Sequence[Int]:
    """Stretches of threads (rank, thread, start, end, layer) without operators that stand in for kernels:
    where there is no GPU, they are what the job does, and no cause of idleness."""
    hosts = ranks.filter(HOST_ONLY).select("rank").unique()
    if kernels is None or not hosts.collect().height:
        return stretches
    computing = kernels.select(*TIMES).drop_nulls("thread").join(hosts, on="rank", how="semi").collect()
    *windows, layer = stretches
    busy = [computing[c].to_numpy() for c in TIMES]
    runs = intervals.painted(windows, busy, np.zeros(computing.height, np.int64), 1)
    rest = runs.layer > 0
    of = runs.window[rest]
    return windows[0][of], windows[1][of], runs.start[rest], runs.end[rest], layer[of]


def _lanes(*some: pl.DataFrame) -> tuple[Int, Int]:
    """The distinct threads of these frames, in order: their ranks and the threads."""
    rank, thread, _ = lanes(
        *(frame.drop_nulls() if frame["thread"].null_count() else frame for frame in some)
    )
    return rank, thread


def _windows(steps: pl.LazyFrame, lanes: tuple[Int, Int]) -> tuple[Int, Int, Int, Int]:
    """The steps of each thread: rank, thread, start, end."""
    known = steps.select("rank", "start", "end").collect()
    rank, start, end = (known[c].to_numpy() for c in known.columns)
    of = np.argsort(rank, kind="stable")
    low, high = (np.searchsorted(rank[of], lanes[0], side=side) for side in ("left", "right"))
    lane, at = intervals.each_of(low, high)
    return lanes[0][lane], lanes[1][lane], start[of[at]], end[of[at]]


def _beginnings(rank: Int, start: Int, end: Int) -> Int:
    """Where the first piece began of each gap, which steps' ends may have cut; sorted by rank and start."""
    opens = np.r_[True, (start[1:] != end[:-1]) | (rank[1:] != rank[:-1])][: len(start)]
    return start[np.maximum.accumulate(np.where(opens, np.arange(len(start)), 0))]


class _Ended(NamedTuple):
    """The launch of the work that ends each gap; `NEVER` is what is not known."""

    begins: Int  # when that work begins
    launch_start: Int
    launch_end: Int
    thread: Int
    orphan: Bool
    before: Int  # the last launch of all work that began before


def _ended_by(rank: Int, end: Int, ranks: pl.LazyFrame, work: pl.DataFrame | None) -> _Ended:
    """What ends each gap of a rank.

    Where nothing follows, or host operators stand in for kernels, the launch is not known and the thread is
    the one that works next, or the rank's main thread. `orphan` says that work follows whose launch was not
    recorded, or that no thread is known.
    """
    facts = ranks.select("rank", "main_thread", host_only=HOST_ONLY).collect()
    main_thread, begins, launch_start, launch_end, thread, before = (
        np.full(len(rank), NEVER) for _ in range(6)
    )
    host_only = np.zeros(len(rank), np.bool_)
    if facts.height:
        known, first = np.unique(facts["rank"].to_numpy(), return_index=True)
        place, there = _found(np.searchsorted(known, rank), known, rank)
        main_thread = np.where(there, filled(facts, ["main_thread"])[0][first[place]], NEVER)
        host_only = there & facts["host_only"].to_numpy()[first[place]]
    if work is not None and work.height:
        times = filled(work, ("start", "launch_start", "launch_end", "thread"))
        of = work["rank"].to_numpy()
        order = intervals.sorted_by(of, *(np.where(column == NEVER, LAST, column) for column in times))
        of, times = of[order], [column[order] for column in times]
        starts, ends = intervals.one_axis((of, times[0]), (rank, end))
        next_ = np.searchsorted(starts, ends)
        place, there = _found(next_, of, rank)
        begins, launch_start, launch_end, thread = (np.where(there, c[place], NEVER) for c in times)
        # Of all that began earlier on the rank: streams need not run in the order of their launches.
        known = times[1] > NEVER
        lowest = int(times[1][known].min()) if known.any() else 0
        latest = intervals.running_most(np.where(known, times[1], lowest), of)
        before = np.where((next_ > 0) & (of[next_ - 1] == rank), latest[next_ - 1], NEVER)
    thread = np.where(thread == NEVER, main_thread, thread)
    orphan = ((thread == NEVER) | ((begins > NEVER) & (launch_start == NEVER))) & ~host_only
    return _Ended(begins, launch_start, launch_end, np.where(thread == NEVER, -1, thread), orphan, before)


def _found(place: Int, groups: Int, group: Int) -> tuple[Int, npt.NDArray[np.bool_]]:
    """Places among the rows of `groups`, those outside moved to an end, and which hold a row of the group."""
    inside = np.clip(place, 0, len(groups) - 1)
    return inside, (inside == place) & (groups[inside] == group)


def _waits_for_devices(spans: pl.DataFrame, ranks: pl.LazyFrame) -> pl.DataFrame:
    """When threads are in calls or operators that wait for a device."""
    hosts = ranks.filter(HOST_ONLY).select("rank").collect()
    waits = spans.filter(pl.col("account") == SYNCHRONISED).select(TIMES)
    return waits.join(hosts, on="rank", how="anti") if hosts.height else waits


def _refilled(rank: Int, began: Int, waits: pl.DataFrame, work: pl.DataFrame | None) -> Int:
    """Until when the host may refill the queue at the expense of having waited, for each gap.

    That is the case where a thread that launches was in a wait for the device when the gap began. Without it
    the host would have been there sooner by as long as it took, so no more of the gap is due to it than that.
    `NEVER` where nothing waited.
    """
    never = np.full(len(rank), NEVER)
    if work is None:
        return never
    calls = _of_lanes(waits, _lanes(work.select("rank", "thread")))
    of, called, returned = (calls[c].to_numpy() for c in ("rank", "start", "end"))
    first, returned = intervals.united((of,), called, returned)
    of, called = of[first], called[first]
    if not len(of):
        return never
    starts, at = intervals.one_axis((of, called), (rank, began))
    call, there = _found(np.searchsorted(starts, at, side="right") - 1, of, rank)
    return np.where(there & (returned[call] >= began), began + returned[call] - called[call], NEVER)


def _host_claims(
    steps: pl.LazyFrame,
    ranks: pl.LazyFrame,
    tables: Mapping[Row, Frame],
    os_calls: Frame,
    lanes: tuple[Int, Int],
    engines: pl.DataFrame,
    reads: pl.DataFrame,
) -> tuple[Int, ...]:
    """What these host threads did: rank, thread, start, end, and the place of the account in `CLAIMING`; one
    row of the host may be in several.

    What an engine does while its caller captures a graph becomes part of that.
    """
    parts: list[tuple[Int, ...]] = []

    def claim(code: str | Int, rows: Sequence[Int]) -> None:
        of = np.full(len(rows[0]), CLAIMING.index(code)) if isinstance(code, str) else code
        parts.append((*rows, of))

    def claim_rows(account: str, some: pl.DataFrame) -> None:
        claim(account, [some[c].to_numpy() for c in TIMES])

    facts = ranks.select("rank", host_only=HOST_ONLY).collect()
    known, first = np.unique(facts["rank"].to_numpy(), return_index=True)
    hosts = known[facts["host_only"].to_numpy()[first]]
    launches = tables["launch"]
    for row, table in tables.items():
        if table is None:
            continue
        here = _of_lanes(table.select(*TIMES, "name").collect(), lanes)
        times = [here[c].to_numpy() for c in TIMES]
        length = times[3] - times[2]
        names, named = by_name(here["name"])
        causes = causes_of(names, row)
        of = np.array([CLAIMING.index(f"idle.{cause}") if cause else -1 for cause in causes], np.int64)[named]
        # What waits for a device waits for nothing where there is none.
        of[(of == CLAIMING.index(SYNCHRONISED)) & np.isin(times[0], hosts)] = CLAIMING.index(OTHER_HOST)
        proven = np.flatnonzero(of >= 0)
        claim(of[proven], [column[proven] for column in times])
        if row == "launch":
            if (length >= FIRST_CALL).any():
                claim_rows(INITIALISATION, first_calls(steps, here, cause_of(names, row)))
            if any(map(CAPTURE_CALL.match, names)):
                claim_rows(CAPTURE, during := captures(here.lazy(), names).collect())
                beside = during.join(engines, left_on=["rank", "thread"], right_on=["rank", "caller"])
                claim_rows(CAPTURE, beside.with_columns(thread="engine"))
            claim(LONG_CALL, [column[length >= LONG] for column in times])
            claim(LAUNCH_BOUND, times)
        elif row == "operator":
            served = np.isin(times[0], hosts)
            if ((length >= LONG) & ~served).any():
                launching, computing = dispatching(here.filter(~served), launches, LONG)
                claim_rows(LAUNCH_BOUND, launching)
                claim_rows(OTHER_HOST, computing)
            else:
                claim(LAUNCH_BOUND, [column[~served] for column in times])
            if served.any():
                talk = operator_facts(names).filter(pl.col("family") == "communication")["name"].to_list()
                talks = np.array([name in talk for name in names])[named] & served
                claim(SYNCHRONISED, [column[talks] for column in times])
                claim(OTHER_HOST, [column[served] for column in times])
        else:
            marks = np.array([says_nothing(name) for name in names], np.bool_)[named]
            claim(OTHER_HOST, [column[~marks] for column in times])
    claim_rows(SYNCHRONISED, _of_lanes(reads, lanes))
    if os_calls is not None:  # a call of the system proves no cause: why it is made, other rows tell
        claim_rows(OTHER_HOST, _of_lanes(os_calls.select(*TIMES).collect(), lanes))
    nothing = (np.zeros(0, np.int64),) * (len(TIMES) + 1)
    return tuple(np.concatenate(columns) for columns in zip(nothing, *parts, strict=True))


TIMES = ("rank", "thread", "start", "end")


def _of_lanes(rows: pl.DataFrame, lanes: tuple[Int, Int]) -> pl.DataFrame:
    """The rows of these threads."""
    if rows["thread"].null_count():
        rows = rows.filter(pl.col("thread").is_not_null())
    columns = [rows[c].to_numpy() for c in ("rank", "thread")]
    among, asked = intervals.one_axis(lanes, (columns[0], columns[1]))
    place = np.searchsorted(among, asked)
    there = among.take(place, mode="clip") == asked if len(among) else np.zeros(rows.height, np.bool_)
    return rows if there.all() else rows.filter(there)
