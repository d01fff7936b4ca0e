"""Find the optimizer steps of a rank, from the best mark there is.

In order: the profiler's own step markers, ranges that name a step, those of engines that serve models, the
ends of optimizer ranges, bursts of optimizer kernels, the period of the kernel sequence; failing all, the
time from the first to the last GPU work is one step. Which one was used is recorded with every step. What is
marked on the host is then moved to where the device gets there (`device_steps`); where the host's marks lay
is kept beside it. What the device did outside of the steps is in no account, and told.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.ingest.steps import on_device
from lostflops.naming.step_marks import PROFILER_STEP, SERVING_STEP, STEP_RANGE
from lostflops.store.trace import Quality
from lostflops.tables import LEFT_OUT, STEP_SOURCE

Codes = npt.NDArray[np.int64]
Moments = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OPTIMIZER_RANGE = r"^Optimizer\.step#.*\.step$|(?i:^opt(?:imi[sz]er)?[ _.:/-]+step$)"

# Periods are only looked for in sequences that could show three of them, and accepted when 19 of 20 kernels
# repeat.
FEWEST_PERIODS = 3
SAME_SHARE = 0.95
# Optimizers of one class that take turns: at most so many, each with as much work as in its other turns (a
# share), and one with so much less than another.
MOST_OPTIMIZERS, SAME_WORK, APART = 4, 0.02, 0.1
# GPU work that only reaches out of the steps is told from this share of their time on.
WORTH_TELLING = 0.01
# From this share of a step's operators on, the host was at another step, and did not just stop.
AS_MUCH = 0.5


def find_steps(
    ranges: pl.DataFrame | None,
    operators: pl.DataFrame | None,
    kernels: pl.DataFrame | None,
    start: int,
    end: int,
    copies: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The steps of one rank, as `tables.STEPS` says. `start` and `end` bound what was recorded.

    Steps are disjoint and sorted. A step lasts from its mark to the next one's; the last to its own end. A
    mark that runs beyond the recording is cut there and its step marked incomplete. On a device each begins
    when the work before it has ended, and the last one ends with its work.
    """
    launching: list[int] = []
    if kernels is not None and "thread" in kernels.columns:
        launching = kernels["thread"].drop_nulls().unique().to_list()
    launched = _launched(kernels, operators)
    # Each is looked for only where those before it are not there.
    for look, on_host in (
        (lambda: _marked(ranges, PROFILER_STEP, "profiler", launching, at_least=1), True),
        (lambda: _marked(ranges, STEP_RANGE, "range", launching, at_least=2), True),
        (lambda: _marked(ranges, SERVING_STEP, "range", launching, at_least=2), True),
        (
            lambda: _between_optimizers(
                _last_of_each_round(_optimizer_range_ends(ranges, operators, launching), launched), start, end
            ),
            True,
        ),
        (lambda: _between_optimizers(_optimizer_burst_ends(kernels), start, end), False),
        (lambda: _periods(kernels), False),
    ):
        found = look()
        if found is not None:
            steps = _inside(found, start, end)
            if steps.height:
                done = on_device.work(kernels, copies, steps.height)
                marked = _finished(steps, on_host, done, operators, start, end)
                # Marks outside of which all work was launched mark no steps.
                if not (done.is_attributed and len(done.start) and not _hold_work(marked)):
                    return marked
    work = [t.select("start", "end") for t in (kernels, copies) if t is not None and t.height]
    first, last = start, end
    if work:
        rows = pl.concat(work)
        first, last = _bound(rows["start"].min()), _bound(rows["end"].max())
    whole = _table([first], [last], [0], "whole trace", [False]).filter(pl.col("end") > pl.col("start"))
    return whole.with_columns(
        host_start=pl.lit(None, pl.Int64),
        host_end=pl.lit(None, pl.Int64),
        amount=pl.lit(None, pl.Int64),
        left_out=pl.lit(None, LEFT_OUT),
    )


def _hold_work(steps: pl.DataFrame) -> bool:
    """Whether anything was launched in the steps."""
    return bool(steps["amount"].sum() > 0)


def _finished(
    steps: pl.DataFrame,
    on_host: bool,
    done: on_device.DeviceWork,
    operators: pl.DataFrame | None,
    start: int,
    end: int,
) -> pl.DataFrame:
    """Marked steps with their place on the device, how much they hold, and why one is partial."""
    by_device = len(done.start) > 0
    began = done.start
    if by_device and on_host and done.is_attributed:
        began = done.launch
    elif not by_device and operators is not None:
        began = operators["start"].to_numpy()
    nowhere = pl.lit(None, pl.Int64)
    marked = steps.with_columns(
        host_start=pl.col("start") if on_host else nowhere,
        host_end=pl.col("end") if on_host else nowhere,
        amount=pl.Series(on_device.amounts(steps["start"].to_numpy(), steps["end"].to_numpy(), began)),
        # The first of those between optimizers' ends begins with the recording, wherever the step began.
        begins=pl.col("complete") | (pl.int_range(pl.len()) > 0),
    )
    moved = (
        on_device.moved(marked, done)
        if on_host
        else marked.with_columns(behind=pl.lit(False), fills=pl.lit(False))
    )
    moved = moved.with_columns(pl.col("end").clip(None, end))
    # A step that the device never came to while it lasted on the host, and in which nothing was launched.
    there = pl.col("end") > pl.col("start")
    if by_device and on_host and operators is not None:
        ran = moved.select(there & (pl.col("amount") > 0)).to_series().to_numpy()
        stuck = _never_reached(moved, ran, operators)
        moved = moved.with_columns(pl.col("complete") & ~pl.Series(stuck))
    moved = moved.filter(there)
    cut = pl.when(~pl.col("begins")).then(pl.lit("recording began in it"))
    reason = cut.when(~pl.col("complete")).then(pl.lit("recording ended in it"))
    reason = reason.when("behind").then(pl.lit("device was behind"))
    reason = reason.when("fills").then(pl.lit("device had no work yet"))
    moved = moved.with_columns(left_out=reason.otherwise(None).cast(LEFT_OUT))
    seen = done.start if by_device else began
    return _with_stubs(moved, seen).drop("begins", "behind", "fills")


def _never_reached(steps: pl.DataFrame, ran: Flags, operators: pl.DataFrame) -> Flags:
    """Marks the last step of the device's where the host had launched another: it hung in the one before."""
    stuck = np.zeros(len(ran), dtype=bool)
    reached = np.flatnonzero(ran)
    if not len(reached) or reached[-1] == len(ran) - 1:
        return stuck
    last = int(reached[-1])
    host, until = steps["host_start"].to_numpy(), steps["host_end"].to_numpy()
    many = on_device.amounts(host, until, operators["start"].to_numpy())
    stuck[last] = many[last + 1 :].max() >= AS_MUCH * np.median(many[: last + 1]) > 0
    return stuck


def _with_stubs(steps: pl.DataFrame, began: Moments) -> pl.DataFrame:
    """The steps with those told apart in which the job ended or the profiler stopped: a recording's last."""
    starts, ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    whole = steps["complete"].to_numpy()
    lasts = np.r_[ends[:-1] != starts[1:], True] & whole
    quiet = on_device.quiet_ends(starts, ends, began)
    amount = steps["amount"].to_numpy()
    others = np.flatnonzero(whole & ~lasts)
    found: dict[int, str] = {}
    for last in np.flatnonzero(lasts):  # one, unless the recording pauses between steps
        compared = np.r_[others, last]
        if on_device.is_stub(amount[compared]):
            found[int(last)] = "job ended in it"
        elif on_device.is_winding_down((ends - starts)[compared], quiet[compared]):
            found[int(last)] = "waits at its end"
    if not found:
        return steps
    at = pl.int_range(pl.len())
    return steps.with_columns(
        complete=pl.col("complete") & ~at.is_in(list(found)),
        left_out=at.replace_strict(found, default=None, return_dtype=pl.String)
        .cast(LEFT_OUT)
        .fill_null(pl.col("left_out")),
    )


def outside(steps: pl.DataFrame, *work: pl.DataFrame) -> list[Quality]:
    """What the device did before the first step and after the last: the host runs ahead by whole steps."""
    rows = [t.select("start", "end") for t in work if t.height]
    if steps.is_empty() or not rows:
        return []
    every = pl.concat(rows)
    start, end = _bound(steps["start"].min()), _bound(steps["end"].max())
    said: list[Quality] = []
    for name, wholly, there in (
        (
            "before the first step",
            pl.col("end") <= start,
            every.with_columns(pl.col("end").clip(None, start)),
        ),
        ("after the last step", pl.col("start") >= end, every.with_columns(pl.col("start").clip(end))),
    ):
        count, busy = every.filter(wholly).height, _covered(there)
        if count or busy >= WORTH_TELLING * (end - start):
            text = f"with the ends of others the device is busy there for {busy / 1e6:,.2f} ms, in no account"
            said.append(Quality(None, f"GPU work {name}", count, text, of=every.height))
    return said


def _bound(value: Any) -> int:
    return int(value)


def _covered(rows: pl.DataFrame) -> int:
    """How much time some rows cover together, ns."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    first, reach = intervals.united([np.zeros(len(start), np.int64)], start, end)
    return int((reach - start[first]).sum())


def _table(
    start: list[int], end: list[int], step: list[int], source: str, complete: list[bool]
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "start": pl.Series(start, dtype=pl.Int64),
            "end": pl.Series(end, dtype=pl.Int64),
            "step": pl.Series(step, dtype=pl.Int64),
            "source": pl.Series([source] * len(start), dtype=STEP_SOURCE),
            "complete": pl.Series(complete, dtype=pl.Boolean),
        }
    )


def _inside(steps: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Steps cut to what was recorded, and flagged where the cut took something."""
    whole = (pl.col("start") >= start) & (pl.col("end") <= end)
    return steps.with_columns(
        pl.col("start").clip(start, end),
        pl.col("end").clip(start, end),
        complete=pl.col("complete") & whole,
    ).filter(pl.col("end") > pl.col("start"))


def _launched(kernels: pl.DataFrame | None, operators: pl.DataFrame | None) -> Moments:
    """When the host launched kernels, in order; without launches, when operators began."""
    for table, column in ((kernels, "launch_start"), (operators, "start")):
        if table is not None and column in table.columns:
            moments = table[column].drop_nulls()
            if moments.len():
                return np.sort(moments.to_numpy())
    return np.zeros(0, dtype=np.int64)


def _last_of_each_round(ends: list[int], launched: Moments) -> list[int]:
    """The updates that end steps: where several optimizers of one class take turns, the last of each round.

    A generator and a discriminator launch different amounts of work, in strict turn. So do no rounds that
    one optimizer makes.
    """
    work = np.diff(np.searchsorted(launched, ends))
    for many in range(2, MOST_OPTIMIZERS + 1):
        if len(work) < FEWEST_PERIODS * many:
            break
        rounds = work[len(work) % many :].reshape(-1, many)
        most, least = rounds.max(axis=0), rounds.min(axis=0)
        steady = bool(least.min() > 0) and bool((most - least <= SAME_WORK * least).all())
        if steady and int(most.min()) < (1 - APART) * int(least.max()):
            return ends[(len(ends) - 1) % many :: many]
    return ends


def _marked(
    ranges: pl.DataFrame | None, pattern: str, source: str, launching: list[int], at_least: int
) -> pl.DataFrame | None:
    if ranges is None or ranges.is_empty():
        return None
    names = ranges["name"].unique().cast(pl.String)
    names = names.filter(names.str.contains(pattern).fill_null(False))
    if names.is_empty():
        return None
    marks = (
        ranges.filter(pl.col("name").cast(pl.String).is_in(names.to_list()))
        .with_columns(text=pl.col("name").cast(pl.String))
        .with_columns(step=pl.col("text").str.extract(pattern, 1).cast(pl.Int64, strict=False))
    )
    marks = _of_one_thread(marks, launching)
    marks = marks.sort("start") if _are_numbered_in_a_row(marks) else _outermost(marks)
    if marks.height < at_least:
        return None
    numbers = marks["step"]
    step = (
        numbers
        if numbers.null_count() == 0 and numbers.is_sorted() and numbers.is_unique().all()
        else pl.Series(range(marks.height), dtype=pl.Int64)
    )
    until, tails = _next_marks(marks, pauses=source == "profiler")
    whole = marks["complete"].fill_null(True) if "complete" in marks.columns else [True] * marks.height
    # How long the last one's tail is nobody knows.
    whole = [*list(whole)[:-1], bool(whole[-1]) and not tails]
    return _table(marks["start"].to_list(), until.to_list(), step.to_list(), source, whole)


def _next_marks(marks: pl.DataFrame, pauses: bool) -> tuple[pl.Series, bool]:
    """Until when each step lasts, given its marks: what happens between two belongs to the step before.

    A long pause between two recordings of one rank does not, nor does an evaluation. But what comes after
    most marks is of every step, such as loading its batch, unless steps follow each other wherever the
    recording does not pause (`pauses`). Whether that is so is told as well.
    """
    until = marks["start"].shift(-1).fill_null(marks["end"][-1])
    usual = int((marks["end"] - marks["start"]).median() or 0)  # pyright: ignore[reportArgumentType]
    far = (until - marks["end"]) > usual
    tails = not pauses and int(far.sum()) >= FEWEST_PERIODS and 2 * int(far.sum()) > marks.height - 1
    if not usual or tails:  # marks of no length are points in time, and say nothing of a pause
        return until, bool(usual) and tails
    return pl.select(pl.when(far).then(marks["end"]).otherwise(until)).to_series(), False


def _of_one_thread(marks: pl.DataFrame, launching: list[int]) -> pl.DataFrame:
    """Marks of several threads would give overlapping steps: those of the thread with most time in them.

    Threads that launch the device's work come first: each device of a process can have its own.
    """
    own = marks.filter(pl.col("thread").is_in(launching))
    marks = own if own.height else marks
    thread = (
        marks.group_by("thread")
        .agg(time=(pl.col("end") - pl.col("start")).sum(), many=pl.len())
        .sort("time", "many", "thread", descending=[True, True, False], nulls_last=True)
        .row(0)[0]
    )
    return marks.filter(pl.col("thread").eq_missing(thread))


def _outermost(marks: pl.DataFrame) -> pl.DataFrame:
    """Marks of one thread without those that lie inside another; of two that cross, both begin a step."""
    marks = marks.sort("start", pl.col("end"), descending=[False, True])
    reach = pl.col("end").cum_max().shift(1).fill_null(pl.lit(-(2**62)))
    return marks.filter((pl.col("start") >= reach) | (pl.col("end") > reach))


def _are_numbered_in_a_row(marks: pl.DataFrame) -> bool:
    """Whether marks of one text count up: then one that holds the next ends later than is true."""
    numbers = marks.sort("start")["step"]
    alike = marks["text"].str.replace_all(r"\d+", "").n_unique() == 1
    return alike and numbers.null_count() == 0 and bool((numbers.diff().drop_nulls() == 1).all())


def _optimizer_range_ends(
    ranges: pl.DataFrame | None, operators: pl.DataFrame | None, launching: list[int]
) -> list[int]:
    for rows in (ranges, operators):
        if rows is None or rows.is_empty():
            continue
        names = rows["name"].unique().cast(pl.String)
        names = names.filter(names.str.contains(OPTIMIZER_RANGE).fill_null(False)).to_list()
        if names:
            found = rows.filter(pl.col("name").cast(pl.String).is_in(names))
            found = _of_one_thread(found, launching).sort("start", pl.col("end"), descending=[False, True])
            # One that another calls, as `super().step` does, is a part of it.
            reach = pl.col("end").cum_max().shift(1).fill_null(pl.lit(-(2**62)))
            updates = (
                found.with_columns(update=(pl.col("start") >= reach).cum_sum())
                .group_by("update", maintain_order=True)
                .agg(pl.col("name").first(), pl.col("end").max())
            )
            # Several optimizers in one step: the one that comes last ends it.
            last = updates["name"][-1]
            return updates.filter(pl.col("name") == last)["end"].unique().sort().to_list()
    return []


def _optimizer_burst_ends(kernels: pl.DataFrame | None) -> list[int]:
    if kernels is None or kernels.is_empty() or "family" not in kernels.columns:
        return []
    order = kernels.sort("start", maintain_order=True).select(
        "end", optimizer=pl.col("family") == "optimizer"
    )
    bursts = (
        order.with_columns(run=pl.col("optimizer").rle_id())
        .group_by("run", maintain_order=True)
        .agg(pl.col("optimizer").first(), pl.len(), pl.col("end").max())
    )
    # A burst goes on over a few foreign kernels: weight decay, norms and copies between fused updates.
    bursts = (
        bursts.with_columns(break_=~pl.col("optimizer") & (pl.col("len") >= 16))
        .with_columns(burst=pl.col("break_").cum_sum())
        .filter(pl.col("optimizer"))
        .group_by("burst", maintain_order=True)
        .agg(pl.col("end").max())
    )
    return bursts["end"].to_list() if bursts.height >= 2 else []


def _between_optimizers(ends: list[int], start: int, end: int) -> pl.DataFrame | None:
    ends = [at for at in ends if start < at <= end]
    if not ends:
        return None
    bounds = [start, *ends]
    complete = [False, *([True] * (len(ends) - 1))]
    if ends[-1] < end:  # what follows the last update belongs to a step that was not recorded to its end
        bounds.append(end)
        complete.append(False)
    return _table(bounds[:-1], bounds[1:], list(range(len(bounds) - 1)), "optimizer", complete)


def _periods(kernels: pl.DataFrame | None) -> pl.DataFrame | None:
    """Steps from the period of the kernel sequence, where the sequence shows that it is the step's.

    The layers of a model repeat as well as its steps do. Tokens are looked up in an embedding once a step and
    never once a layer, so a period counts only when an embedding kernel marks each of its beginnings.
    """
    if kernels is None or kernels.height < 4 * FEWEST_PERIODS or bool(kernels["continued"].any()):
        return None
    order = kernels.sort("start", maintain_order=True)
    codes = order["name"].to_physical().to_numpy().astype(np.int64)
    period = _period(codes)
    if period is None:
        return None
    marks = _marks(order, codes, period)
    if marks is None:
        return None
    begins = order["start"].to_numpy()
    bounds = begins[marks].tolist()
    complete = [True] * (len(marks) - 1) + [len(codes) - int(marks[-1]) == period]
    numbers = list(range(len(marks)))
    if marks[0] > 0:  # what runs before the first mark belongs to a step whose beginning was not recorded
        bounds, complete, numbers = [int(begins[0]), *bounds], [False, *complete], [*numbers, len(numbers)]
    bounds.append(int(order["end"].max()))  # pyright: ignore[reportArgumentType]
    return _table(bounds[:-1], bounds[1:], numbers, "period", complete)


def _marks(order: pl.DataFrame, codes: Codes, period: int) -> Codes | None:
    """Where an embedding kernel that runs once a period runs, or None when there is none."""
    looked_up = (order["family"].cast(pl.String) == "embedding").to_numpy()
    for code in np.unique(codes[looked_up]):
        at = np.flatnonzero(codes == code)
        if len(at) >= FEWEST_PERIODS and (np.diff(at) == period).all():
            return at
    return None


def _period(codes: Codes) -> int | None:
    """The shift after which the sequence repeats best, when it repeats well enough."""
    n = len(codes)
    longest = n // FEWEST_PERIODS
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    rare = np.flatnonzero(counts >= FEWEST_PERIODS)
    if len(rare) == 0:
        return None
    # A kernel that runs once a step is among the rarest; distances between its runs are the candidates.
    candidates: set[int] = set()
    for name in rare[np.argsort(counts[rare])][:8]:
        distances = np.diff(np.flatnonzero(inverse == name))
        candidates.update(int(d) for d in np.unique(distances)[:16])
    best, share = None, SAME_SHARE
    for period in sorted(c for c in candidates if 4 <= c <= longest):
        same = np.count_nonzero(codes[:-period] == codes[period:]) / (n - period)
        if same > share or (best is None and same >= share):
            best, share = period, same
    return best
