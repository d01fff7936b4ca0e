"""Which part of a run is exported: ranks, steps, and a window of time at which rows are cut exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from lostflops import units
from lostflops.errors import BadOption, NothingExported, shown
from lostflops.session import Session, Skipped
from lostflops.store.trace import ON_HOST, Trace
from lostflops.tables import TABLES


@dataclass
class RunPart:
    """Some ranks of a run, each between edges of its own."""

    trace: Trace
    ranks: tuple[int, ...]
    edges: pl.DataFrame | None  # rank; from and to, of the host and not; None where nothing bounds the time
    windowed: bool  # whether a window bounds it
    session: Session
    cuts: dict[tuple[str, int | None], int] = field(default_factory=dict[tuple[str, int | None], int])
    origin: int = field(default=0)  # what is taken off each time, so that none is negative

    def table(
        self, name: str, rank: int | None = None, columns: list[str] | None = None
    ) -> pl.LazyFrame | None:
        """The rows of a table inside the selection, cut at its edges; None where the run does not have it."""
        frame = (self.trace if rank is None else self._of_rank(rank)).table(name)
        if frame is None:
            return None
        frame = self._of(frame, rank, name in ON_HOST)
        return frame if columns is None else frame.select(columns)

    def rows(self, name: str, rank: int, columns: list[str] | None = None) -> pl.DataFrame | None:
        """The same of one rank, read; None also where no row is left. Counts what the edges cut."""
        frame = self.table(name, rank)
        if frame is None:
            return None
        with self.trace.reading():
            found = frame.collect() if columns is None else frame.select([*columns, *self._mark()]).collect()
        found = self.counted(found, name, rank)
        return found if found.height else None

    def answer(self, recipe: str, rank: int | None = None) -> pl.DataFrame | None:
        """The rows of a recipe's answer inside the selection; None where the trace cannot answer."""
        said = self.session.run(recipe)
        if isinstance(said, Skipped):
            return None
        found = self._of(said.table.lazy(), rank).drop("_cut", strict=False).collect()
        return found if found.height else None

    @cached_property
    def recorded(self) -> pl.LazyFrame:
        """What is known of each rank, read once."""
        ranks = self.trace.table("ranks")
        assert ranks is not None
        return ranks.collect().lazy()

    def _of_rank(self, rank: int) -> Trace:
        """The run seen through one rank, whose files alone are then opened."""
        return self.trace.select(frozenset((rank,)))

    def _mark(self) -> list[str]:
        return [] if self.edges is None else ["_cut"]

    @property
    def cut(self) -> int:
        """How many rows an edge cut, of those that were read."""
        return sum(self.cuts.values())

    def counted(self, found: pl.DataFrame, name: str, rank: int | None = None) -> pl.DataFrame:
        """Rows that `table` gave of a table; what the edges cut is counted, once."""
        if "_cut" in found.columns:
            if name != "ranks":  # whose row only says from when to when it was recorded
                self.cuts[name, rank] = int(found["_cut"].sum())
            found = found.drop("_cut")
        return found

    def inside(self, answer: pl.DataFrame, name: str) -> pl.DataFrame:
        """The rows of a recipe's answer that are about what is selected; what the edges cut is counted."""
        return self.counted(self._of(answer.lazy(), None).collect(), name)

    def _of(self, frame: pl.LazyFrame, rank: int | None, on_host: bool = False) -> pl.LazyFrame:
        known = frame.collect_schema().names()
        wanted = list(self.ranks) if rank is None else [rank]
        if "rank" in known:
            frame = frame.filter(pl.col("rank").is_in(wanted))
        if self.edges is None or not {"rank", "start", "end"} <= set(known):
            return frame
        start, end, low, high = (pl.col(c) for c in ("start", "end", "_from", "_to"))
        inside = (start < high) & ((end > low) | (start >= low))
        limits = ("opened", "closed") if on_host else ("_from", "_to")
        edges = self.edges.lazy().select("rank", _from=limits[0], _to=limits[1]).filter(low < high)
        return (
            frame.join(edges, on="rank", how="inner", maintain_order="left")
            .filter(inside)
            .with_columns(
                start=pl.max_horizontal(start, low),
                end=pl.min_horizontal(end, high),
                _cut=(start < low) | (end > high),
            )
            .drop("_from", "_to")
        )


def selected(
    trace: Trace,
    *,
    steps: tuple[int, int] | None = None,
    ranks: frozenset[int] | None = None,
    window: tuple[int, int] | None = None,
) -> RunPart:
    """What was asked for. Raises NoSuchStep, BadOption or NothingExported where that is nothing."""
    whole = trace.whole
    if steps is None:
        steps = trace.steps
    with trace.reading():
        chosen = whole if steps is None else whole.select(steps=steps)
        known = whole.table("ranks")
        assert known is not None
        present = sorted(known.select("rank").collect()["rank"].unique().to_list())
        asked = present if ranks is None else sorted(ranks)
        if absent := sorted(set(asked) - set(present)):
            raise BadOption(f"This run has no rank {absent[0]}.", f"it has {units.written_spans(present)}.")
        edges = _edges(chosen, steps, window, asked)
        selection = RunPart(chosen, tuple(asked), edges, window is not None, Session(chosen))
        extents = _extents(selection)
    if extents is None:
        raise NothingExported(_where(whole, asked, window))
    selection.origin = min(0, extents[0])
    return selection


def window(text: str) -> tuple[int, int]:
    """'1.2s-1.5s' as nanoseconds on the run's clock. Raises BadOption."""
    first, dash, last = text.partition("-")
    if not dash:
        raise BadOption(
            f"`--window` is '{shown(text)}', which is no stretch of time.",
            "write when it begins and ends, as in `--window 1.2s-1.5s`.",
        )
    low, high = (round(units.seconds(part, "--window") * 1e9) for part in (first, last))
    if high == low:
        raise BadOption(f"The window '{shown(text)}' takes no time.", "write a later end.")
    if high < low:
        raise BadOption(
            f"The window '{shown(text)}' ends before it begins.", f"write `--window {last}-{first}`."
        )
    return low, high


def _edges(
    trace: Trace, steps: tuple[int, int] | None, window: tuple[int, int] | None, ranks: list[int]
) -> pl.DataFrame | None:
    if steps is None and window is None:
        return None
    low, high = window or (-(2**62), 2**62)
    of_ranks = pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int32})
    if steps is None or trace.table("steps") is None:
        limits = {"_from": low, "_to": high, "opened": low, "closed": high}
        return of_ranks.with_columns(pl.lit(at, dtype=pl.Int64).alias(name) for name, at in limits.items())
    on_host = trace.extent(on_host=True).rename({"_from": "opened", "_to": "closed"})
    return (
        of_ranks.join(trace.extent(), on="rank", how="inner")
        .join(on_host, on="rank", how="inner")
        .with_columns(pl.col("_from", "opened").clip(low), pl.col("_to", "closed").clip(None, high))
        .filter(pl.col("_from") < pl.col("_to"))
    )


def _extents(selection: RunPart) -> tuple[int, int] | None:
    """The earliest start and the latest end of what is selected, apart from the ranks themselves."""
    found: list[tuple[int, int]] = []
    for name, table in TABLES.items():
        if name == "ranks" or not {"start", "end"} <= set(table.times):
            continue
        frame = selection.table(name)
        if frame is not None:
            low, high = frame.select(pl.col("start").min(), pl.col("end").max()).collect().row(0)
            if low is not None:
                found.append((low, high))
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def _where(trace: Trace, ranks: list[int], window: tuple[int, int] | None) -> str:
    known = trace.table("ranks")
    assert known is not None
    low, high = (
        known.filter(pl.col("rank").is_in(ranks))
        .select(pl.col("start").min(), pl.col("end").max())
        .collect()
        .row(0)
    )
    if window is None or low is None:
        return "choose other ranks or steps."
    return f"these ranks were recorded from {low / 1e9:.6f}s to {high / 1e9:.6f}s of the run's clock."
