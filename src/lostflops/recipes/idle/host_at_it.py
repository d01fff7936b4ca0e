"""How long of each step the host is at each cause of idle time, on the step's own rank and on any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.accounts import IDLE
from lostflops.intervals import Int
from lostflops.recipes.accounting import LAUNCH_BOUND, REFILLING, places
from lostflops.recipes.backward_threads import BETWEEN_NODES, lanes


def host_at_it(
    asked: pl.DataFrame,
    idle_stretches: pl.DataFrame,
    host_spans: pl.DataFrame,
    ranks: pl.DataFrame,
    engines: pl.DataFrame,
) -> pl.DataFrame:
    """Each step and account with how long its rank's host is at it, and how long any rank's of the job.

    The device being idle for a cause counts as the host being at it. What a rank did while others were
    recorded and it was not may have been anything, and they may have waited for it. `anywhere` is null where
    ranks are missing or their clocks cannot be compared. `engines` are the threads that run backward passes
    for others.
    """
    rank, start, end = (asked[c].to_numpy() for c in TIMES)
    of = _codes(asked)
    by_host = _Spans.of(host_spans)
    spans = _Spans(*map(np.concatenate, zip(_Spans.of(idle_stretches), by_host, strict=True)))
    lane, lanes_of = rank * len(CODES) + of, spans.rank * len(CODES) + spans.cause
    host = covered((lane, start, end), (lanes_of, spans.start, spans.end))
    some, (unknown_start, unknown_end) = np.unique(of), _unrecorded(ranks)
    anywhere = covered(
        (of, start, end),
        (
            np.r_[spans.cause, np.tile(some, len(unknown_start))],
            np.r_[spans.start, np.repeat(unknown_start, len(some))],
            np.r_[spans.end, np.repeat(unknown_end, len(some))],
        ),
    )
    named = _named((rank, start, end), host_spans, by_host, engines)
    launching = of == CODES[LAUNCH_BOUND]
    host = np.where(launching, np.maximum(host, end - start - named), host)
    told = pl.Series(~launching & _compared(ranks))
    nowhere = pl.repeat(None, len(of), dtype=pl.Int64, eager=True)
    return asked.hstack([pl.Series("host", host), pl.Series("anywhere", anywhere).zip_with(told, nowhere)])


TIMES = ("rank", "start", "end")
CODES = {account.name: code for code, account in enumerate(IDLE)}


def _codes(rows: pl.DataFrame) -> Int:
    """The place of each row's account among those of idle time; -1 for one that is none of them."""
    return places(rows["account"], [*CODES])


class _Spans(NamedTuple):
    """When hosts were at causes of idle time, those as their places in `CODES`."""

    rank: Int
    start: Int
    end: Int
    cause: Int

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Self:
        code = _codes(rows)
        held = code >= 0
        rank, start, end = (rows[c].to_numpy()[held].astype(np.int64) for c in TIMES)
        return cls(rank, start, end, code[held])


def covered(rows: Sequence[Int], spans: Sequence[Int]) -> Int:
    """How much of each row (group, start, end) any span of its group covers."""
    group, start, end = spans
    first, reach = intervals.united((group,), start, end)
    (found,) = intervals.within(rows, (group[first], start[first], reach))
    return found


def _compared(ranks: pl.DataFrame) -> bool:
    """Whether all ranks are here, and their clocks can be compared."""
    num = ranks["rank"].n_unique()
    world = ranks["world_size"].max()
    if not isinstance(world, int) or num < world:
        return False
    return num == 1 or ranks["clock_error"].null_count() == 0


def _unrecorded(ranks: pl.DataFrame) -> tuple[Int, Int]:
    """When others were recorded and a rank not yet, or no more: the starts and the ends."""
    held = ranks.filter(pl.col("end") > pl.col("start"))
    start, end = (held[c].to_numpy() for c in ("start", "end"))
    if held.is_empty():
        return start, end
    return np.array([start.min(), end.min()]), np.array([start.max(), end.max()])


def _named(rows: Sequence[Int], host_spans: pl.DataFrame, spans: _Spans, engines: pl.DataFrame) -> Int:
    """How much of each row (rank, start, end) its host is at a cause that launching is no part of, on all of
    its threads.

    Of several threads the others may launch meanwhile; only a rank with one is known not to. The engine of a
    backward pass launches while its thread waits for it, and from one pass to the next does nothing.
    """
    of_host = host_spans.filter(_codes(host_spans) >= 0)
    lane = engines.select("rank", thread="engine").with_columns(is_engine=pl.lit(True))
    is_engine = of_host.join(lane, on=["rank", "thread"], how="left", maintain_order="left")["is_engine"]
    runs_backward = is_engine.fill_null(False).to_numpy()
    ranks, _, _ = lanes(host_spans.join(lane, on=["rank", "thread"], how="anti"))
    distinct, num = np.unique(ranks, return_counts=True)
    held = np.isin(spans.rank, distinct[num == 1]) & ~runs_backward
    held &= ~np.isin(spans.cause, [CODES[account] for account in REFILLING])
    passes, until = intervals.united((spans.rank[runs_backward],), *_bridged(spans, runs_backward))
    busy = tuple(column[runs_backward][passes] for column in (spans.rank, spans.start))
    sessions = (*busy, until - BETWEEN_NODES)
    both = (np.r_[spans.rank[held], sessions[0]], np.r_[spans.start[held], sessions[1]],
            np.r_[spans.end[held], sessions[2]])  # fmt: skip
    return covered(rows, both) - covered(rows, sessions)


def _bridged(spans: _Spans, some: npt.NDArray[np.bool_]) -> tuple[Int, Int]:
    """These spans, each as much longer as an engine may pause within one backward pass."""
    return spans.start[some], spans.end[some] + BETWEEN_NODES


def waiting(steps: pl.DataFrame, matches: pl.LazyFrame | None) -> pl.Series:
    """How long of each step a collective of its rank waits for others, or may: what is hidden counts as well.

    Where its last participant comes earlier it ends earlier, and the computation that hid the wait hides the
    transfer.
    """
    if matches is None:
        return pl.Series("waits", np.zeros(steps.height, np.int64))
    until = pl.min_horizontal("end", pl.col("arrival") + pl.col("wait"))
    others = matches.select("rank", "start", end=until).collect()
    of, spans = (tuple(rows[c].to_numpy() for c in TIMES) for rows in (steps, others))
    return pl.Series("waits", covered(of, spans))
