"""What public Paraver views compute, from the records of a file alone: an interval sweep over its rows."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lostflops import intervals
from lostflops.export.formats.paraver import values as v
from lostflops.export.formats.paraver.reading import Prv

ALL = (v.COPY, v.KERNEL, v.COMMUNICATION, v.GRAPH)


@dataclass(frozen=True)
class Gaps:
    number: int
    sum: int
    longest: int


class Views:
    """One task of a trace, from 0 to `end`."""

    def __init__(self, trace: Prv, task: int) -> None:
        self.end = trace.end
        self.sent = trace.sent.filter(pl.col("task") == task)
        self.events = trace.events.filter(pl.col("task") == task)

    def rows(self, *kinds: int) -> pl.DataFrame:
        """Intervals of flat types: each begin with the next event of its row, among all flat types."""
        events = self.events.filter(pl.col("type").is_in([*ALL] if set(kinds) <= set(ALL) else list(kinds)))
        ended = events.with_columns(end=pl.col("time").shift(-1).over("thread"))
        begun = ended.filter(pl.col("type").is_in(list(kinds)) & (pl.col("value") != 0))
        return begun.select("thread", "line", "value", start="time", end="end")

    def covered(self, *kinds: int) -> pl.DataFrame:
        return intervals.union(self.rows(*kinds).lazy()).collect()

    def active(self, *kinds: int) -> int:
        return _length(self.covered(*(kinds or ALL)))

    def level(self, *kinds: int) -> pl.DataFrame:
        """How many run at once, in pieces."""
        return intervals.overlay({"n": self.rows(*kinds).lazy()}).collect()

    def useful(self) -> int:
        """∫ of the number of kernels."""
        pieces = self.level(v.KERNEL)
        return int(((pieces["end"] - pieces["start"]) * pieces["n"].cast(pl.Int64)).sum())

    def overlap(self, column: int) -> int:
        """Time in which so many of kernels, communication and graphs run while one talks or copies."""
        run = self.rows(v.KERNEL, v.COMMUNICATION, v.GRAPH).lazy()
        talk = self.rows(v.COMMUNICATION, v.COPY).lazy()
        pieces = intervals.overlay({"run": run, "talk": talk}).collect()
        return _length(pieces.filter((pl.col("talk") > 0) & (pl.col("run") == column)))

    def gaps(self, least: int = 1) -> Gaps:
        busy = self.covered(*ALL)
        starts = [0, *busy["end"].to_list()]
        ends = [*busy["start"].to_list(), self.end]
        found = [b - a for a, b in zip(starts, ends, strict=True) if b - a >= least]
        return Gaps(len(found), sum(found), max(found, default=0))

    def in_flight(self) -> tuple[int, int, int]:
        """∫ of the launches on their way, the time with any, and the most at once."""
        sent = self.sent.filter(pl.col("tag") == v.LAUNCHED).select(start="time", end="at")
        pieces = intervals.overlay({"n": sent.lazy()}).collect().with_columns(pl.col("n").cast(pl.Int64))
        length = pieces["end"] - pieces["start"]
        return int((length * pieces["n"]).sum()), int(length.sum()), int(pieces["n"].max() or 0)  # pyright: ignore[reportArgumentType]

    def talks(self) -> int:
        return self.rows(v.COMMUNICATION).height

    def squares(self) -> tuple[int, int]:
        """Σ duration² of kernels that compute, and the longest."""
        rows = self.rows(v.KERNEL)
        length = rows["end"] - rows["start"]
        return int((length * length).sum()), int(length.max() or 0)  # pyright: ignore[reportArgumentType]

    def threads(self) -> int:
        """∫ of the number of threads of the running kernels."""
        sizes = self.events.filter(pl.col("type").is_between(v.GRID, v.BLOCK_Z))
        product = sizes.group_by("line").agg(pl.col("value").product())
        rows = self.rows(v.KERNEL, v.COMMUNICATION).join(product, on="line", suffix="_threads")
        return int(((rows["end"] - rows["start"]) * rows["value_threads"]).sum())

    def in_ranges(self) -> int:
        """Time inside any range of the main thread."""
        kinds = pl.col("type") % v.NEXT_DOMAIN == 0
        ranges = self.events.filter(pl.col("type").is_between(v.RANGE, v.RANGE + 2_000) & kinds)
        step = pl.when(pl.col("value") != 0).then(1).otherwise(-1)
        found = ranges.with_columns(open=step.cum_sum().over("thread")).with_columns(
            end=pl.col("time").shift(-1).over("thread")
        )
        inside = found.filter((pl.col("open") > 0) & pl.col("end").is_not_null())
        return _length(intervals.union(inside.select(start="time", end="end").lazy()).collect())

    def share(self, kind: int, value: int) -> float:
        """Percent of the time that a name takes on its rows."""
        rows = self.rows(kind).filter(pl.col("value") == value)
        return 100 * _length(rows) / self.end


def _length(rows: pl.DataFrame) -> int:
    return int((rows["end"] - rows["start"]).sum())
