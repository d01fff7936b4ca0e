"""From a run's tables to tracks of lanes: which rows are drawn where, and in which colour.

A track is a row with a title: what each instant of a rank counts as, a stream, a process group, a thread.
Rows of a track that overlap stand in lanes below each other: kernels in the first lane that is free, calls
below the operators that made them. Nothing is left out, and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.export import lanes as packing
from lostflops.intervals import Int, nest
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace

from .pyramid import Array

Progress = Callable[[str, float], None]
OUTSIDE = "account:outside"
# Tables of host threads: what is further out comes first.
ON_THREADS = (
    ("frames", "host:frame"),
    ("ranges", "host:range"),
    ("operators", "host:operator"),
    ("launches", "host:call"),
    ("os_calls", "host:system call"),
)
# Ranks that are read at once have about so many events together.
BATCH_EVENTS, BATCH_RANKS = 4_000_000, 64
MOST_ROUNDS = 16


@dataclass(frozen=True)
class LaidTrack:
    """A track of one rank: its events by lane and start. `key` names it within its rank and kind."""

    rank: int
    kind: str
    title: str
    key: tuple[Any, ...]
    lane: Int
    start: Int
    length: Int
    name: Array
    category: Array
    group: str | None = None


def called(key: str) -> str:
    """A category for readers."""
    name = key.partition(":")[2]
    if key == OUTSIDE:
        return "outside steps"
    return ACCOUNTS[name].label if key.startswith("account:") and name in ACCOUNTS else name


class Numbers:
    """Texts numbered in the order in which they are met."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._known: dict[str, int] = {}

    def of(self, text: str) -> int:
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = len(self.texts)
            self.texts.append(text)
        return number

    def each(self, values: pl.Series, prefix: str = "", otherwise: str = "(no name)") -> Int:
        """The number of each value; one number where all are the same is found once."""
        if values.dtype != pl.Categorical and not isinstance(values.dtype, pl.Enum):
            values = values.cast(pl.Categorical)
        known = values.unique()
        codes = known.to_physical().fill_null(0).to_numpy().astype(np.int64)
        texts = known.cast(pl.String).to_list()
        table = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
        for code, text in zip(codes.tolist(), texts, strict=True):
            if text is not None:
                table[code] = self.of(prefix + text)
        found = table[values.to_physical().fill_null(0).to_numpy()]
        if values.null_count():
            found[values.is_null().to_numpy()] = self.of(prefix + otherwise)
        return found


class RunLayout:
    """The tracks of a run, rank by rank. `names` and `categories` grow as tracks are laid out."""

    def __init__(self, trace: Trace, session: Session) -> None:
        self._trace = trace.whole
        self._session = session
        self.names = Numbers()
        self.categories = Numbers()
        self.warnings: list[str] = []
        ranks = self._trace.table("ranks")
        assert ranks is not None
        self.ranks = ranks.sort("rank", "device").collect()
        self.numbers: list[int] = self.ranks["rank"].unique().sort().to_list()

    def states(self) -> Iterator[LaidTrack]:
        """One track per rank, in the order of ranks: what each instant counts as in the ledger.

        It covers the rank's recording without a gap; what lies in no step is `outside`.
        """
        parts: list[pl.DataFrame] = []
        for recipe in ("device_runs", "idle_stretches"):
            said = self._session.run(recipe)
            if isinstance(said, Skipped):
                self.warnings.append(f"What the GPU's time counts as is not drawn: {said.reason}")
                parts = []
                break
            parts.append(said.table.select("rank", "start", "end", pl.col("account").cast(pl.String)))
        rows = pl.concat(parts, how="vertical_relaxed") if parts else _NO_STATE.to_frame()
        rows = rows.filter(pl.col("account").is_not_null() & (pl.col("end") > pl.col("start")))
        by_rank = rows.sort("rank", "start").partition_by("rank", as_dict=True)
        for rank in self.numbers:
            mine = by_rank.get((rank,))
            yield self._state(rank, _NO_STATE.to_frame() if mine is None else mine)

    def _state(self, rank: int, rows: pl.DataFrame) -> LaidTrack:
        account = self.categories.each("account:" + rows["account"])
        named = rows["account"].unique()
        label = {account: called(f"account:{account}") for account in named}
        name = self.names.each(rows["account"].replace_strict(label, return_dtype=pl.String))
        start, end = _times(rows)
        if len(start):
            extent = self.ranks.filter(pl.col("rank") == rank).select(
                pl.col("start").min(), pl.col("end").max()
            )
            low, high = extent.row(0)
            gaps = _gaps(start, end, min(low, int(start[0])), max(high, int(end[-1])))
            count = len(gaps[0])
            start, end = np.append(start, gaps[0]), np.append(end, gaps[1])
            account = np.append(account, np.full(count, self.categories.of(OUTSIDE)))
            name = np.append(name, np.full(count, self.names.of(called(OUTSIDE))))
        return _laid(
            rank,
            "state",
            "GPU time by account",
            (),
            start,
            end,
            name,
            account,
            np.zeros(len(start), np.int64),
        )

    def tracks(self, progress: Progress | None = None) -> Iterator[LaidTrack]:
        """All other tracks, rank by rank, from top to bottom."""
        each = max(1, self._trace.manifest.num_events // max(1, len(self.numbers)))
        size = max(1, min(BATCH_RANKS, BATCH_EVENTS // each))
        for at in range(0, len(self.numbers), size):
            batch = self.numbers[at : at + size]
            if progress:
                progress(f"rank {batch[0]:,} of {len(self.numbers):,}", at / len(self.numbers))
            tables = _Batch(self._trace.select(ranks=frozenset(batch)), self.ranks)
            for rank in batch:
                yield from self._of_rank(rank, tables)

    def _of_rank(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        yield from self._steps(rank, tables)
        yield from self._streams(rank, tables)
        yield from self._collectives(rank, tables)
        yield from self._threads(rank, tables)
        yield from self._spans(rank, tables)

    def _steps(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        rows = tables.rows("steps", rank, "step")
        if rows is None:
            return
        name = self.names.each("step " + rows["step"].cast(pl.String))
        kinds = np.array([self.categories.of(f"step:{kind}") for kind in ("even", "odd")])
        category = kinds[(rows["step"].fill_null(0) % 2).to_numpy()]
        start, end = _times(rows)
        lane = packing.flat(start, end, np.zeros(len(start), np.int64))
        yield _laid(rank, "steps", "steps", (), start, end, name, category, lane)

    def _streams(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        """Kernels and copies; not where host operators stand in for kernels, which are drawn themselves."""
        if tables.on_host(rank):
            return
        parts = [
            rows.select("device", "stream", "start", "end", _name=name, _category=category)
            for table, what, prefix in (("kernels", "family", "family:"), ("copies", "direction", "copy:"))
            if (rows := tables.rows(table, rank, "device", "stream", "name", what)) is not None
            for name, category in [(self._names(rows), self._categories(rows[what], prefix))]
        ]
        if not parts:
            return
        rows = pl.concat(parts, how="vertical_relaxed")
        several = rows["device"].n_unique() > 1
        for (device, stream), mine in _parted(rows, "device", "stream"):
            title = "no stream" if stream is None else f"stream {stream}"
            yield self._flat(
                rank, "stream", f"GPU {device} {title}" if several else title, (device, stream), mine
            )

    def _collectives(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        rows = tables.rows("collectives", rank, "group", "kind")
        if rows is None:
            return
        rows = rows.with_columns(
            _name=self._names(rows, "kind"), _category=self._categories(rows["kind"], "collective:")
        )
        for (group,), mine in _parted(rows, "group"):
            title = f"collectives of {'an unknown group' if group is None else f'group {group}'}"
            yield self._flat(rank, "collectives", title, (group,), mine, group)

    def _threads(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        parts: list[pl.DataFrame] = []
        for table, category in ON_THREADS:
            rows = tables.rows(table, rank, "thread", "name", *(["nested"] if table == "ranges" else []))
            if rows is not None and table == "ranges":
                rows = rows.filter(_ON_THREAD)
            if rows is not None and rows.height:
                number = pl.lit(self.categories.of(category), dtype=pl.Int64)
                parts.append(rows.select("thread", "start", "end", _name=self._names(rows), _category=number))
        if not parts:
            return
        main = tables.main_thread(rank)
        threads = _parted(pl.concat(parts, how="vertical_relaxed"), "thread")
        for (thread,), mine in sorted(threads, key=lambda found: found[0][0] != main):
            title = "thread unknown" if thread is None else f"thread {thread}"
            shown = f"{title} (main)" if thread is not None and thread == main else title
            yield self._stacked(rank, "thread", shown, (thread,), mine)

    def _spans(self, rank: int, tables: _Batch) -> Iterator[LaidTrack]:
        rows = tables.rows("ranges", rank, "thread", "domain", "nested", "name")
        apart = None if rows is None else rows.filter(~_ON_THREAD)
        if apart is not None and apart.height:
            number = pl.lit(self.categories.of("host:range"), dtype=pl.Int64)
            apart = apart.with_columns(_name=self._names(apart), _category=number)
            for (domain,), mine in _parted(apart, "domain"):
                yield self._stacked(rank, "spans", f"ranges: {domain or 'others'}", ("ranges", domain), mine)
        faults = tables.rows("page_faults", rank)
        if faults is not None:
            name, number = self.names.of("page faults"), self.categories.of("host:page fault")
            faults = faults.with_columns(
                _name=pl.lit(name, dtype=pl.Int64), _category=pl.lit(number, dtype=pl.Int64)
            )
            yield self._stacked(rank, "spans", "page faults", ("page_faults",), faults)

    def _names(self, rows: pl.DataFrame, column: str = "name") -> pl.Series:
        return pl.Series(self.names.each(rows[column]))

    def _categories(self, values: pl.Series, prefix: str) -> pl.Series:
        return pl.Series(self.categories.each(values, prefix, "unknown"))

    def _flat(
        self,
        rank: int,
        kind: str,
        title: str,
        key: tuple[Any, ...],
        rows: pl.DataFrame,
        group: str | None = None,
    ) -> LaidTrack:
        start, end = _times(rows)
        lane = packing.flat(start, end, np.zeros(len(start), np.int64))
        name, category = rows["_name"].to_numpy(), rows["_category"].to_numpy()
        return _laid(rank, kind, title, key, start, end, name, category, lane, group)

    def _stacked(
        self, rank: int, kind: str, title: str, key: tuple[Any, ...], rows: pl.DataFrame
    ) -> LaidTrack:
        start, end = _times(rows)
        name, category = rows["_name"].to_numpy(), rows["_category"].to_numpy()
        return _laid(rank, kind, title, key, start, end, name, category, stacked(start, end))


_NO_STATE = pl.Schema({"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64, "account": pl.String})
_ON_THREAD = pl.col("nested").fill_null(False) & pl.col("thread").is_not_null()


class _Batch:
    """The tables of some ranks, each read once and parted by rank."""

    def __init__(self, trace: Trace, ranks: pl.DataFrame) -> None:
        self._trace = trace
        self._ranks = ranks
        self._read: dict[tuple[str, ...], dict[tuple[Any, ...], pl.DataFrame]] = {}

    def rows(self, table: str, rank: int, *columns: str) -> pl.DataFrame | None:
        """A rank's rows with these columns and their times; None where there are none."""
        asked = (table, *columns)
        if asked not in self._read:
            frame = self._trace.table(table)
            found: dict[tuple[Any, ...], pl.DataFrame] = {}
            if frame is not None:
                with self._trace.reading():
                    rows = frame.select("rank", "start", "end", *columns).collect()
                found = rows.partition_by("rank", as_dict=True)
            self._read[asked] = found
        rows = self._read[asked].get((rank,))
        return rows if rows is not None and rows.height else None

    def on_host(self, rank: int) -> bool:
        """Whether host operators stand in for kernels."""
        return "cpu" in self._ranks.filter(pl.col("rank") == rank)["device_kind"].to_list()

    def main_thread(self, rank: int) -> int | None:
        known = self._ranks.filter(pl.col("rank") == rank)["main_thread"].drop_nulls()
        return int(known[0]) if len(known) else None


def stacked(start: Int, end: Int) -> Int:
    """The lane of each interval: as deep as it is nested. What crosses another gets a lane further down."""
    lane = np.zeros(len(start), np.int64)
    left, below = np.arange(len(start)), 0
    for _ in range(MOST_ROUNDS):
        if not len(left):
            break
        forest = nest(start[left], end[left], np.zeros(len(left), np.int64))
        whole = forest.end >= np.maximum(end, start)[left][forest.order]
        rows = left[forest.order]
        lane[rows[whole]] = below + forest.depth[whole]
        below += int(forest.depth.max(initial=-1)) + 1
        left = np.sort(rows[~whole])
    if len(left):
        lane[left] = below + packing.flat(start[left], end[left], np.zeros(len(left), np.int64))
    # A lane in which only such rows would stand stays empty, and is left out.
    used = np.bincount(lane) > 0
    return (np.cumsum(used) - 1)[lane] if len(lane) else lane


def _laid(
    rank: int, kind: str, title: str, key: tuple[Any, ...], start: Int, end: Int, name: Array,
    category: Array, lane: Int, group: str | None = None,
) -> LaidTrack:  # fmt: skip
    length = np.maximum(end - start, 0)
    order = np.lexsort((length, start, lane))
    columns = (values[order] for values in (lane, start, length, name, category))
    return LaidTrack(rank, kind, title, key, *columns, group=group)


def _times(rows: pl.DataFrame) -> tuple[Int, Int]:
    start, end = (rows[column].to_numpy() for column in ("start", "end"))
    return start, np.maximum(start, end)


def _gaps(start: Int, end: Int, low: int, high: int) -> tuple[Int, Int]:
    """What disjoint intervals, in order, leave of a stretch."""
    begins, ends = np.append(low, end), np.append(start, high)
    left = ends > begins
    return begins[left], ends[left]


def _parted(rows: pl.DataFrame, *by: str) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Rows by the values of some columns, in the order of those; null comes last."""
    parts = rows.partition_by(by, as_dict=True)
    return sorted(parts.items(), key=lambda part: _place(part[0]))


def _place(key: Sequence[Any]) -> tuple[tuple[bool, Any], ...]:
    return tuple((v is None, v if v is not None else 0) for v in key)
