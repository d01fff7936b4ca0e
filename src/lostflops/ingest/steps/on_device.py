"""Make steps as long as their work: move boundaries that the host marked to where the device gets there.

The host runs ahead. Its mark of step k lies at H(k); the device may then still be busy with steps before. So
step k begins at

    b(k) = max(H(k), E(k)),    E(k): when the work that was launched before H(k) has ended,

and ends where the next begins, the last one when its own work has ended. Both H and E rise with k, so the
boundaries do, and the steps tile.

The *main stream*, the one that computes longest, decides E(k): it runs in the order of launches, so it is at
step k from the end of the work before on. What other streams run may reach over a boundary and is then cut
there. Their kernels (communication among them) decide as long as the main stream has not begun step k: where
it waits for them they belong to the step that launched them, where it does not they are hidden. Copies on
streams of their own decide nothing: a checkpoint that drains for half a second makes no step longer.

Work without a recorded launch was launched when its predecessor on its stream was, or, where nothing ran for
long before it or calls were no longer recorded, when it began; without a predecessor, on the main stream
before the recording. Where most work has no launch, though the recording had begun, the host's marks stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.naming.classification import moves_by_itself

Int = npt.NDArray[np.int64]

EARLIEST, LATEST = -(2**62), 2**62
# Launched work that does not begin for so long, while nothing runs, waits for work that was not recorded.
LONG = 1_000_000  # ns
# What was queued begins within microseconds of the end of what it waits for, and not on a device that did
# nothing for so long.
IDLE = 100_000  # ns
# So much work without a launch after all calls, and this share of all, says that calls are missing there.
MANY_UNTOLD, MUCH_UNTOLD = 16, 0.05
SEVERAL = 3  # steps, from which on one row that computes longer than all others is none of theirs
MOST_COMPARED = 16  # steps with the first
FEWEST_LAUNCHED = 0.5  # of the device's rows: with fewer launches, boundaries stay where the host marked them
# From this share of a step on, the device was behind when the recording began.
WORTH_TELLING = 0.01
# A first step in which the host gets ahead by this share of a step more than in at least so many others, and
# by no more than the main stream waits longer in it. Less is 3 % of a mean of five.
FILLS, FEWEST_OTHERS, WAITED = 0.15, 2, 1.02
NOISE = 0.02  # of a step, by which its kernels may be longer or shorter than in another
# A last step at whose end nothing begins for twice as long as in any other, and longer by this share of their
# median length, was cut: the job hung, or the profiler was stopping.
WAITING_END, TWICE = 0.1, 2
# A last step is a stub when it holds less work than these shares of the least of the others: the first where
# their work is the same to a tenth and there are two, the second where it differs. A single other one may
# have done more than a step does, to warm up.
SAME, LESS, MUCH_LESS, OF_ONE = 1.1, 0.9, 0.5, 0.2


@dataclass(frozen=True)
class DeviceWork:
    """What one rank's device ran, in the order of its starts."""

    start: Int
    end: Int
    launch: Int  # when it was launched, or taken to be: EARLIEST before the recording
    returned: Int  # when the launching call returned; LATEST where it was not recorded
    is_launched: npt.NDArray[np.bool_]
    is_backlog: npt.NDArray[np.bool_]  # without a recorded launch, as that came before the recording
    is_copy: npt.NDArray[np.bool_]
    is_main: npt.NDArray[np.bool_]
    is_beside: npt.NDArray[np.bool_]  # a kernel, or a copy that carries a collective, on another stream

    @property
    def is_attributed(self) -> bool:
        """Whether enough of it says when it was launched, of what was launched while recording."""
        told = self.is_launched[~self.is_backlog]
        return len(told) > 0 and float(told.mean()) >= FEWEST_LAUNCHED


def work(kernels: pl.DataFrame | None, copies: pl.DataFrame | None, steps: int = 1) -> DeviceWork:
    """The device's rows of one rank, in so many steps. Columns that a table lacks say nothing."""
    if copies is not None and {"direction", "launch_start"} <= set(copies.columns):
        copies = copies.filter(~moves_by_itself())  # no step's, and not for lack of a launch
    rows = pl.concat(
        [
            *([_rows(kernels, is_kernel=True)] if kernels is not None else []),
            *([_rows(copies, is_kernel=False)] if copies is not None else []),
            _rows(pl.DataFrame({"start": [], "end": []}, schema={"start": pl.Int64, "end": pl.Int64}), True),
        ]
    ).filter(pl.col("end") > pl.col("start"))
    length = pl.col("end") - pl.col("start")
    # Of several streams that compute equally long, the first in order, wherever its rows stand.
    # What alone computes longer than all else in several steps is no step's work.
    of_no_step = (2 * pl.col("longest") > pl.col("computing").sum()) & (steps >= SEVERAL)
    ranked = (
        rows.group_by("device", "stream")
        .agg(
            length.filter("computes").sum().alias("computing"),
            length.sum().alias("busy"),
            length.filter("computes").max().fill_null(0).alias("longest"),
        )
        .sort("device", "stream", nulls_last=True)
        .with_columns(in_steps=pl.col("computing") - pl.when(of_no_step).then("longest").otherwise(0))
        .sort(["in_steps", "computing", "busy"], descending=True, maintain_order=True)
    )
    main = pl.lit(False)
    if ranked.height:
        device, stream = ranked.select("device", "stream").row(0)
        main = pl.col("device").eq_missing(pl.lit(device, pl.Int64)) & pl.col("stream").eq_missing(
            pl.lit(stream, pl.Int64)
        )
    # A predecessor is the row before it on the stream; launches on one stream are in the order of its rows.
    known = pl.col("launch_start")
    rows = rows.sort("start", "end", "launch_start", nulls_last=True)
    if rows["launch_start"].null_count():
        idle = pl.col("start") - pl.col("end").cum_max().shift(1) >= IDLE
        seen = pl.col("launch_start").is_not_null().cum_max().over("device", "stream")
        known = pl.coalesce(known, pl.when((idle | _after_calls(rows)) & seen).then("start"))
        known = known.forward_fill().over("device", "stream")
    rows = rows.with_columns(
        main=main, launched=pl.col("launch_start").is_not_null(), launch=known
    ).with_columns(beside=~pl.col("main") & pl.col("decides"))
    is_main = rows["main"].to_numpy()
    # Beside the main stream a row without launch and predecessor belongs to the step in which it runs; so it
    # does on a main stream whose launches all lack.
    follows = pl.col("launched").any().over("device", "stream") & pl.col("main")
    alone = pl.when(follows).then(pl.lit(EARLIEST, pl.Int64)).otherwise("start")
    launch = rows.select(pl.col("launch").fill_null(alone)).to_series()
    # A stream runs in the order of launches: what it runs after it was given the first row whose launch is
    # known, and before that row, it was given earlier.
    first = pl.col("launch_start").drop_nulls().first().over("device", "stream")
    backlog = rows.select((pl.col("launch").is_null() & (pl.col("start") >= first)).fill_null(False))
    return DeviceWork(
        rows["start"].to_numpy(),
        rows["end"].to_numpy(),
        launch.to_numpy(),
        rows["launch_end"].fill_null(LATEST).to_numpy(),
        rows["launched"].to_numpy(),
        backlog.to_series().to_numpy(),
        ~rows["is_kernel"].to_numpy(),
        is_main,
        rows["beside"].to_numpy(),
    )


def _after_calls(rows: pl.DataFrame) -> pl.Expr:
    """Whether work begins when calls were no longer recorded: much of it after all of them has no launch."""
    last = rows["launch_start"].max()
    ended = pl.col("launch_start").is_null() & (pl.col("start") > pl.lit(last, pl.Int64))
    behind = pl.col("launch_start").is_not_null().cum_max(reverse=True).over("device", "stream")
    tail = ended & ~behind
    return (tail & (tail.sum() >= MANY_UNTOLD) & (tail.sum() >= MUCH_UNTOLD * pl.len())).fill_null(False)


def _rows(table: pl.DataFrame, is_kernel: bool) -> pl.DataFrame:
    have = set(table.columns)
    whole = [
        (pl.col(c) if c in have else pl.lit(None)).cast(pl.Int64).alias(c)
        for c in ("start", "end", "device", "stream", "launch_start", "launch_end")
    ]
    talks = pl.lit(False)
    if is_kernel and "family" in have:
        talks = (pl.col("family").cast(pl.String) == "communication").fill_null(False)
    elif "communication" in have:
        talks = pl.col("communication").fill_null(False)
    return table.select(
        *whole,
        computes=~talks if is_kernel else pl.lit(False),
        decides=pl.lit(True) if is_kernel else talks,
        is_kernel=pl.lit(is_kernel),
    )


@dataclass(frozen=True)
class _Ends:
    """When work launched before some instants ends, and when work launched from then on begins."""

    main: Int
    beside: Int
    first: Int  # the main stream's first start of work launched at the instant or later; LATEST without

    @property
    def deciding(self) -> Int:
        return np.maximum(self.main, np.minimum(self.beside, self.first))


def _ends(done: DeviceWork, at: Int) -> _Ends:
    main, beside = done.is_main, done.is_beside
    return _Ends(
        _last_end(done.launch[main], done.end[main], at),
        _last_end(done.launch[beside], done.end[beside], at),
        _first_start(done.launch[main], done.start[main], at),
    )


def _last_end(launch: Int, end: Int, at: Int) -> Int:
    order = np.argsort(launch, kind="stable")
    reach = np.r_[EARLIEST, np.maximum.accumulate(end[order])] if len(end) else np.array([EARLIEST])
    return reach[np.searchsorted(launch[order], at, side="left")]


def _first_start(launch: Int, start: Int, at: Int) -> Int:
    order = np.argsort(launch, kind="stable")
    follows = np.minimum.accumulate(start[order][::-1])[::-1] if len(start) else start
    return np.r_[follows, LATEST][np.searchsorted(launch[order], at, side="left")]


def moved(steps: pl.DataFrame, done: DeviceWork) -> pl.DataFrame:
    """Steps as the host marked them with the device's boundaries in place of the host's, and two flags.

    `steps` are disjoint, in order, and `begins` says whether the host's beginning of one is known. `behind`
    says that the device was busy with what was launched before the recording when the host began the first,
    `fills` that it had no work then, as it has in the others.
    """
    host, until = steps["start"].to_numpy(), steps["end"].to_numpy()
    nobody = np.zeros(len(host), dtype=bool)
    if not done.is_attributed or not len(host):
        return steps.with_columns(behind=pl.Series(nobody), fills=pl.Series(nobody))
    done = _after_pauses(done, host, until)
    before = _ends(done, host)
    begin = np.maximum(host, before.deciding)
    behind = nobody
    if steps["begins"][0]:
        known = max(int(host[0]), _launched_end(done, int(host[0])))
        seems = _unrecorded_end(done, host, until)
        if seems is not None and not seems.is_blocked:
            begin[0] = max(int(begin[0]), seems.start)
        late = max(int(begin[0]) - known, 0 if seems is None else seems.waits)
        behind[0] = late > 0
    else:
        late, begin[0] = 0, host[0]
    begin = np.maximum.accumulate(begin)
    after = _ends(done, until)
    # What runs beside the main stream under the next step is hidden there, and would be after the last one.
    hidden = len(host) > 1 and float(np.median((before.beside - before.first)[1:])) > 0
    end = np.maximum(until, after.main if hidden else np.maximum(after.main, after.beside))
    end = np.maximum(end, begin)
    end[:-1] = np.minimum(end[:-1], begin[1:])
    follows = np.r_[until[:-1] == host[1:], False]
    end = np.where(follows, np.r_[begin[1:], 0], end)
    fills = _fills(done, host, until, begin, end)
    if behind[0]:
        behind[0] = late >= WORTH_TELLING * (end[0] - begin[0])
    return steps.with_columns(
        start=pl.Series(begin, dtype=pl.Int64),
        end=pl.Series(end, dtype=pl.Int64),
        behind=pl.Series(behind),
        fills=pl.Series(fills),
    )


def _fills(done: DeviceWork, host: Int, until: Int, begin: Int, end: Int) -> npt.NDArray[np.bool_]:
    """Which steps are a recording's first, and longer for it: the device had no work yet when the host began
    them and waits, and in the others the host is ahead, so that what it does between launches costs nothing.

    Of three steps the last is one of the others where it is as long as the second: its end is less sure.
    """
    first = np.r_[True, until[:-1] != host[1:]]
    followed = np.r_[~first[1:], False]
    length = end - begin
    alike = (length <= SAME * length[-2:].min()) & (begin > host) & ~first
    inner = ~first & (followed | (alike & (len(host) == FEWEST_OTHERS + 1)))
    if inner.sum() < FEWEST_OTHERS:
        return np.zeros(len(host), dtype=bool)
    # A step is longer on the device than on the host by as much as the host gets ahead in it.
    gets_ahead = length - (until - host)
    longer = gets_ahead - np.median(gets_ahead[inner])
    idle = length - _busy(done, begin, end)
    waits = idle - np.median(idle[inner])
    usual = float(np.median(length[inner]))
    most = WAITED * waits + NOISE * usual
    fills = (longer >= FILLS * usual) & (longer <= most)
    # Where the host is ahead of all others by more than that, they hide it, however long the host takes.
    longer = length - np.median(length[inner])
    hidden = longer <= (begin - host)[inner].min()
    fills |= (longer >= FILLS * usual) & (longer <= most) & hidden
    return first & followed & (begin == host) & fills


def _busy(done: DeviceWork, begin: Int, end: Int) -> Int:
    """For how long the main stream runs in some spans."""
    start, reach = done.start[done.is_main], done.end[done.is_main]
    first, reach = intervals.united([np.zeros(len(start), np.int64)], start, reach)
    start = start[first]
    before = np.r_[0, np.cumsum(reach - start)]
    return np.diff([_busy_until(at, start, reach, before) for at in (begin, end)], axis=0)[0]


def _busy_until(at: Int, start: Int, reach: Int, before: Int) -> Int:
    n = np.searchsorted(start, at)
    return before[n] - np.where(n > 0, np.maximum(reach[n - 1] - at, 0), 0)


def _after_pauses(done: DeviceWork, host: Int, until: Int) -> DeviceWork:
    """The work with none taken to be launched before a pause of the recording that it ran after.

    Several recordings may lie in one file: what begins without a launch later than a step's length after the
    last step before the pause was launched when it began, as far as that recording tells.
    """
    launch = done.launch.copy()
    length = int(np.median(until - host))
    for last in until[:-1][until[:-1] != host[1:]]:
        launch = np.where(
            ~done.is_launched & (launch < last) & (done.start > last + length), done.start, launch
        )
    return replace(done, launch=launch)


def _launched_end(done: DeviceWork, host: int) -> int:
    """When the main stream's work ends whose launch was seen before the first mark."""
    seen = done.is_main & done.is_launched & (done.launch < host)
    return int(done.end[seen].max(initial=EARLIEST))


def _unrecorded_end(done: DeviceWork, host: Int, until: Int) -> _First | None:
    """The first step's first work, where the device seems busy until then with what was not recorded.

    A call that copies from pageable memory returns when the copy has run, so what it takes for itself is told
    by the other steps. When the device became free is not known then: the host may have called late.
    """
    spans = zip(host[: 1 + MOST_COMPARED], until[: 1 + MOST_COMPARED], strict=True)
    own = (_first_work(done, int(a), int(b)) for a, b in spans)
    first = next(own)
    if first is None:
        return None
    others = [work.waits for work in own if work is not None]
    usual = 0
    if first.is_blocked:
        usual = max(others, default=first.waits)
    elif others and (waits := int(np.median(others))) >= LONG:  # in every step: for pages that move, say
        usual = waits
    return first if first.waits - usual >= LONG else None


@dataclass(frozen=True)
class _First:
    start: int
    waits: int  # how long it had been launched while nothing ran
    is_blocked: bool  # the call that launched it returned after it began


def _first_work(done: DeviceWork, host: int, until: int) -> _First | None:
    """The first of the main stream's work that was launched in a step."""
    launched = done.is_main & done.is_launched & (done.launch >= host) & (done.launch < until)
    own = np.flatnonzero(launched)
    if not len(own):
        return None
    first = own[np.argmin(done.start[own])]
    starts = int(done.start[first])
    running = int(done.end[done.start < starts].max(initial=EARLIEST))
    is_blocked = bool(done.is_copy[first] and done.returned[first] > starts)
    asked = done.launch[first] if is_blocked else done.returned[first]
    return _First(starts, starts - max(int(asked), running), is_blocked)


def amounts(host: Int, until: Int, began: Int) -> Int:
    """How many of the moments in `began` lie in each of some disjoint spans that are in order."""
    ordered = np.sort(began)
    return np.searchsorted(ordered, until) - np.searchsorted(ordered, host)


def quiet_ends(start: Int, end: Int, began: Int) -> Int:
    """For how long nothing has begun when each step ends, of the moments in `began`."""
    ordered = np.r_[EARLIEST, np.sort(began)]
    last = ordered[np.searchsorted(ordered, end) - 1]
    return end - np.maximum(last, start)


def is_winding_down(length: Int, quiet: Int) -> bool:
    """Whether the last of some steps waits at its end for longer than the others do, by far."""
    if len(length) < 2:
        return False
    return int(quiet[-1]) > TWICE * int(quiet[:-1].max()) + WAITING_END * float(np.median(length[:-1]))


def is_stub(amount: Int) -> bool:
    """Whether the last of some steps holds less work than a step does."""
    if len(amount) < 2 or not amount[:-1].max():
        return False
    least, most = int(amount[:-1].min()), int(amount[:-1].max())
    share = OF_ONE if len(amount) == 2 else LESS if most <= SAME * least else MUCH_LESS
    return int(amount[-1]) < share * least
