"""The steps of a job that are replayed, operation by operation, and what each rank does in them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock

import polars as pl

from lostflops import intervals
from lostflops.finding import percent
from lostflops.recipes.layout.seen import GROUPED
from lostflops.replay.graph import Circle
from lostflops.replay.stragglers.chains import OF_EXPERTS, RankChains, chains, computed_before

PHASES = ("forward", "backward", "recompute", "optimizer")
SPLIT = ("communication.wait", "communication.transfer")
MOST_STEPS = 8
MOST_OPERATIONS = 1_000_000  # parts of ranks in collectives and messages that are replayed at once
RANKS_AT_ONCE = 32  # whose instants are told at a time
UNKNOWN = 0.05  # of the steps: with more in operations whose other ranks are not known, nothing is told


@dataclass(frozen=True)
class ReplayedSteps:
    """The graph, and the steps (rank, step, start, end) and pieces (rank, start, end, kind) behind it."""

    job: RankChains
    steps: pl.DataFrame
    pieces: pl.DataFrame


Key = tuple[int, ...]


@dataclass
class _Known:
    """What was replayed in a block, and a lock, since two recipes may ask at a time."""

    steps: dict[Key, ReplayedSteps | str] = field(default_factory=dict[Key, ReplayedSteps | str])
    lock: Lock = field(default_factory=Lock)


_known: ContextVar[_Known | None] = ContextVar("known", default=None)


@contextmanager
def replayed_once() -> Generator[None]:
    """Replay the same steps of one trace once in this block, however many recipes ask for them."""
    before = _known.set(_Known())
    try:
        yield
    finally:
        _known.reset(before)


def replayed_steps(
    counted_steps: pl.LazyFrame,
    device_runs: pl.LazyFrame,
    idle_stretches: pl.LazyFrame,
    communication_matches: pl.LazyFrame,
    kernels: pl.LazyFrame,
) -> ReplayedSteps | str:
    """The last steps that all ranks have, or why they cannot be replayed; '' where no ranks meet."""
    steps, matches = _last_steps(counted_steps.collect(), communication_matches.collect())
    if steps["rank"].n_unique() < 2 or not matches["instance"].count():
        return ""

    def replayed() -> ReplayedSteps | str:
        windows = steps.group_by("rank").agg(pl.col("start").min(), pl.col("end").max()).sort("rank")
        work = kernels.select(
            *("rank", "start", "end", "stream", "correlation", "family", "launch_start", "phase", "name")
        )
        pieces, before = list[pl.DataFrame](), list[pl.DataFrame]()
        # What a rank does at every instant takes many times the memory of what comes of it.
        for some in windows.iter_slices(RANKS_AT_ONCE):
            mine = pl.col("rank").is_in(some["rank"].to_list())
            given = [within(rows.filter(mine), some) for rows in (device_runs, idle_stretches, work)]
            runs, idle, computed = pl.collect_all(given)
            pieces.append(_pieces(runs.lazy(), idle.lazy(), _by_expert(computed).lazy()))
            before.append(computed_before(computed))
        return _replayed(steps, matches, pl.concat(pieces), pl.concat(before))

    known = _known.get()
    if known is None:
        return replayed()
    key = _key(steps, matches)
    with known.lock:
        if key not in known.steps:
            known.steps[key] = replayed()
        return known.steps[key]


def _key(steps: pl.DataFrame, matches: pl.DataFrame) -> Key:
    """What tells the steps of one trace from others, and with them all that happens in them.

    Joins give rows in any order.
    """
    times = matches.select(pl.col("start", "end").cast(pl.Int128).sum()).row(0)
    hashes = steps.hash_rows().to_numpy()
    return steps.height, int(hashes.sum()), int((hashes * hashes).sum()), matches.height, *times


def _replayed(
    steps: pl.DataFrame, matches: pl.DataFrame, pieces: pl.DataFrame, before: pl.DataFrame
) -> ReplayedSteps | str:
    untold = _untold(steps, pieces)
    if untold:
        return untold
    try:
        job = chains(steps, pieces, matches, before)
    except Circle:
        return "the ranks' clocks contradict each other"
    return "" if job is None else ReplayedSteps(job, steps, pieces)


def _last_steps(counted: pl.DataFrame, matches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The last steps that all ranks have, one after the other, and the operations in them."""
    ranks = counted["rank"].n_unique()
    shared = (
        counted.group_by("step")
        .agg(_on=pl.col("rank").n_unique())
        .filter(pl.col("_on") == ranks)
        .sort("step")
        .with_columns(_run=(pl.col("step").diff() != 1).fill_null(True).cum_sum())
        .filter(pl.col("_run") == pl.col("_run").max())
    )
    each = max(1, matches.height // max(1, counted["step"].n_unique()))
    steps = shared["step"].tail(max(1, min(MOST_STEPS, MOST_OPERATIONS // each)))
    chosen = counted.filter(pl.col("step").is_in(steps.to_list()))
    return chosen.sort("rank", "start"), matches


def within(rows: pl.LazyFrame, windows: pl.DataFrame) -> pl.LazyFrame:
    """What lies, at least in part, within the windows of its rank."""
    bounds = windows.lazy().select("rank", _from="start", _to="end")
    return (
        rows.join(bounds, on="rank")
        .filter((pl.col("end") > pl.col("_from")) & (pl.col("start") < pl.col("_to")))
        .drop("_from", "_to")
    )


def _by_expert(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels with `experts`: whether their name, of which there are few, is that of many products."""
    names = kernels["name"].unique()
    grouped = names.filter(names.cast(pl.String).str.contains(GROUPED).fill_null(False))
    return kernels.with_columns(experts=pl.col("name").is_in(grouped.implode()).fill_null(False))


def _pieces(runs: pl.LazyFrame, idle: pl.LazyFrame, kernels: pl.LazyFrame) -> pl.DataFrame:
    """What each rank does at every instant of its window: rank, start, end, kind.

    Computing by phase, that of experts apart, which are long on ranks that get many tokens; idle time and
    copies by account; null while it waits for others or transfers.
    """
    computing = kernels.filter(pl.col("family") != "communication")
    of_experts = computing.filter("experts")
    phases = intervals.paint(
        runs.filter(pl.col("account") == "compute").select("rank", "start", "end"),
        {phase + OF_EXPERTS: of_experts.filter(pl.col("phase") == phase) for phase in PHASES}
        | {phase: computing.filter(pl.col("phase") == phase) for phase in PHASES},
        by=["rank"],
        account="kind",
    ).with_columns(pl.col("kind").fill_null("compute"))
    others = runs.filter(pl.col("account").ne_missing("compute") & pl.col("account").is_not_null())
    kind = pl.when(~pl.col("account").is_in(SPLIT)).then("account")
    columns = ("rank", "start", "end", "kind")
    parts = [
        phases.select(columns),
        others.with_columns(kind=kind).select(columns),
        idle.with_columns(kind="account").select(columns),
    ]
    return pl.concat(parts).sort("rank", "start").collect()


def _untold(steps: pl.DataFrame, pieces: pl.DataFrame) -> str:
    """Why ranks cannot be held against each other; empty where they can."""
    length = pl.col("end") - pl.col("start")
    whole = int(steps.select(length.sum()).item())
    unknown = int(pieces.filter(kind="communication.exposed").select(length.sum()).item() or 0)
    if unknown <= UNKNOWN * whole:
        return ""
    return f"{percent(unknown, whole)} of the steps pass in communication with ranks that are not known"
