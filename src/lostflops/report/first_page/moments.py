"""Where in time a finding can be seen: one step of the ranks that it is about, as shares of accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.finding import Finding
from lostflops.recipe import Recipe
from lostflops.session import Session, Skipped

from .budget import in_order

COLUMNS = 400
LEVELS = 20  # heights that a share is rounded to where it is drawn
MOST_MOMENTS = 10
MOST_ROWS = 6
# What each rank did at every instant is not kept beside a run. For pictures it is computed of so many events.
MOST_EVENTS = 5_000_000
OF_ALL_RANKS = "communication_matches"  # what a rank waited for is known from the others
Shares = npt.NDArray[np.float64]  # [account, column], 0 to 1


@dataclass(frozen=True)
class Strip:
    """A rank's time from the step's start to its end; where it is recorded, a column's shares add up to 1."""

    rank: int
    accounts: tuple[str, ...]
    shares: Shares


@dataclass(frozen=True)
class ShownStep:
    """The step of a rank in which the accounts that a finding is `about` take the most time, `ns`."""

    about: tuple[str, ...]
    rank: int
    step: int
    start: int
    end: int
    ns: int
    num_ranks: int
    strips: tuple[Strip, ...]

    @property
    def accounts(self) -> list[str]:
        return in_order({name for strip in self.strips for name in strip.accounts})


@dataclass(frozen=True)
class Moments:
    """The moments of findings by their names, and in `missing` why some that have one are not among them."""

    shown: Mapping[str, ShownStep]
    missing: str = ""


def moments(session: Session, ledger: pl.DataFrame, findings: Sequence[Finding]) -> Moments:
    """The moment of each finding that has one, as far as reading them is bounded: of so many findings and
    ranks as have `MOST_EVENTS` together."""
    places = {finding.name: found for finding in findings if (found := _most(ledger, finding))}
    if not places:
        return Moments({})
    all_ranks: list[int] = ledger["rank"].unique().sort().to_list()
    each = max(1, session.trace.manifest.num_events // _num_ranks(session))
    chosen = _chosen(all_ranks, dict(list(places.items())[:MOST_MOMENTS]), MOST_EVENTS // each)
    if not chosen:
        why = f"each rank recorded about {each:,} events, and pictures are drawn of {MOST_EVENTS:,} at most"
        return Moments({}, f"No pictures: {why}. `lostflops view` shows where to look.")
    # Of a run that is small enough the session knows it already.
    is_small = session.trace.manifest.num_events <= MOST_EVENTS
    read = frozenset(rank for ranks in chosen.values() for rank in ranks)
    known = _known(session if is_small else _OfSomeRanks(session, read))
    if known is None:
        return Moments({})
    about = {finding.name: finding.accounts for finding in findings}
    shown = {
        name: ShownStep(about[name], *places[name], len(all_ranks), _strips(known, ranks, *places[name][2:4]))
        for name, ranks in chosen.items()
    }
    few = "" if len(chosen) == len(places) else not_all(len(chosen), len(places))
    return Moments(shown, few)


def _num_ranks(session: Session) -> int:
    recorded = session.trace.whole.table("ranks")
    return 1 if recorded is None else max(1, recorded.select(pl.col("rank").n_unique()).collect().item())


def not_all(drawn: int, of: int) -> str:
    return f"{drawn} of {of} findings have a picture; `lostflops view` shows where to look for the others."


def _chosen(
    all_ranks: Sequence[int], places: Mapping[str, tuple[int, ...]], most: int
) -> dict[str, list[int]]:
    """The ranks that each moment shows: at most so many different ones together."""
    read: set[int] = set()
    chosen: dict[str, list[int]] = {}
    for name, (rank, *_) in places.items():
        wanted = _shown(all_ranks, rank)
        if len(read | set(wanted)) > most:
            room = most - len(read | {rank})
            others = (
                sorted(read & set(wanted) - {rank}) or [one for one in wanted if one != rank][: max(room, 0)]
            )
            wanted = sorted({rank, *others})
        if len(read | set(wanted)) <= most:
            chosen[name] = wanted
            read |= set(wanted)
    return chosen


def _known(session: Session) -> pl.DataFrame | None:
    """What the ranks did at every instant; None where that is not known."""
    runs, idle = session.run("device_runs"), session.run("idle_stretches")
    if isinstance(runs, Skipped) or isinstance(idle, Skipped):
        return None
    return pl.concat(
        [
            said.table.select("rank", "start", "end", pl.col("account").cast(pl.String))
            for said in (runs, idle)
        ]
    ).filter(pl.col("account").is_not_null(), pl.col("end") > pl.col("start"))


class _OfSomeRanks(Session):
    """Reads some ranks only, also for recipes that are of the whole job, but what needs all ranks."""

    def __init__(self, whole: Session, ranks: frozenset[int]) -> None:
        super().__init__(whole.trace.whole.select(ranks=ranks))
        self._job = whole
        self._unsliced = self

    def _compute(self, wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        if wanted.name != OF_ALL_RANKS:
            return self._made(wanted, options)  # nothing of a part is kept as if it were of the whole
        said = self._job.run(wanted.name)
        return said if isinstance(said, Skipped) else self.trace.cut(said.table.lazy()).collect()


def _most(ledger: pl.DataFrame, finding: Finding) -> tuple[int, int, int, int, int] | None:
    """Rank, step, start, end and time of the accounts that the finding is about, where that is most."""
    about = ledger.filter(pl.col("account").is_in(list(finding.accounts)))
    blamed = about.filter(pl.col("rank") == finding.rank) if finding.rank is not None else about
    rows = (
        (about if blamed.is_empty() else blamed)
        .group_by("rank", "step", "start", "end")
        .agg(pl.col("ns").sum())
        .sort("ns", "rank", "step", descending=[True, False, False])
    )
    return rows.row(0) if rows.height and rows["ns"][0] else None


def _shown(ranks: Sequence[int], rank: int) -> list[int]:
    """The rank and others, evenly spread, in order."""
    if len(ranks) <= MOST_ROWS:
        return list(ranks)
    others = [one for one in ranks if one != rank]
    places: list[int] = np.linspace(0, len(others) - 1, MOST_ROWS - 1).round().astype(int).tolist()
    return sorted({rank, *(others[at] for at in places)})


def _strips(known: pl.DataFrame, ranks: Sequence[int], start: int, end: int) -> tuple[Strip, ...]:
    inside = known.filter(pl.col("rank").is_in(list(ranks)), pl.col("start") < end, pl.col("end") > start)
    by_rank = inside.sort("rank", "start").partition_by("rank", as_dict=True)
    edges = np.linspace(0, end - start, COLUMNS + 1)
    made: list[Strip] = []
    for rank in ranks:
        mine = by_rank.get((rank,))
        if mine is None:
            continue
        names = in_order(mine["account"].unique().to_list())
        shares = np.zeros((len(names), COLUMNS))
        for row, name in enumerate(names):
            own = mine.filter(pl.col("account") == name)
            busy = _until(own["start"].to_numpy() - start, own["end"].to_numpy() - start, edges)
            shares[row] = np.diff(busy) * COLUMNS / (end - start)
        made.append(Strip(rank, tuple(names), shares))
    return tuple(made)


def _until(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], edges: Shares) -> Shares:
    """How much of some intervals, sorted and apart, lies before each edge."""
    lengths = ends - starts
    before = np.concatenate([[0], np.cumsum(lengths)])
    last = np.searchsorted(starts, edges, side="right") - 1
    at = np.maximum(last, 0)
    partial = np.clip(edges - starts[at], 0, lengths[at])
    return np.where(last >= 0, before[at] + partial, 0.0)


def rectangles(strip: Strip) -> Mapping[str, list[tuple[int, int, int, int]]]:
    """Per account its rectangles (column, from above, columns wide, high), stacked upwards in page order.

    Heights are rounded to `LEVELS` so that neighbours that look the same are one rectangle.
    """
    tops = np.rint(np.clip(strip.shares.cumsum(axis=0), 0, 1) * LEVELS).astype(int)
    lows = np.concatenate([np.zeros((1, COLUMNS), dtype=int), tops[:-1]])
    made: dict[str, list[tuple[int, int, int, int]]] = {}
    for row, name in enumerate(strip.accounts):
        low, top = lows[row], tops[row]
        cuts = np.flatnonzero((np.diff(low) != 0) | (np.diff(top) != 0)) + 1
        for first, last in zip([0, *cuts], [*cuts, COLUMNS], strict=True):
            if top[first] > low[first]:
                made.setdefault(name, []).append(
                    (int(first), int(LEVELS - top[first]), int(last - first), int(top[first] - low[first]))
                )
    return made
