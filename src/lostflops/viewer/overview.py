"""What the page needs to know of a run before it draws: ranks, tracks, lanes, steps, orders of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.causes.purposes import BY_DESCRIPTION, CONTEXT, EXPERTS, GRADIENTS, SHARDS, STAGES, TENSOR
from lostflops.errors import LostflopsError
from lostflops.recipe import Recipe
from lostflops.recipes import named, recipes
from lostflops.report.first_page.page import page
from lostflops.session import Skipped
from lostflops.store.trace import REPLAYED, SIMULATED

from .layout import OUTSIDE, called
from .pyramid import BUCKETS, FACTOR
from .timeline import RunTimeline

MOST_WINDOWS = 3  # of one finding's evidence
GROUPED_BY = {
    CONTEXT: "context group",
    TENSOR: "tensor group",
    STAGES: "pipeline",
    GRADIENTS: "data-parallel group",
    SHARDS: "shard group",
    EXPERTS: "expert group",
}


def described(timeline: RunTimeline, run: str, title: str) -> dict[str, Any]:
    """The answer to `/api/run/ID`."""
    kept, planes = timeline.kept, timeline.planes
    totals = planes.total.tolist()
    category = planes.category.tolist()
    spans = [planes.of(lane) for lane in range(timeline.num_lanes)]
    each = [totals[span.start : span.stop] for span in spans]
    stages = _stages(timeline)
    return {
        "id": run,
        "title": title,
        "hash": timeline.hash,
        "zero": kept.zero,
        "end": kept.end,
        "num_events": int(timeline.events.first[-1]),
        "busy_ns": sum(totals),
        "warnings": [*_what_it_is(timeline), *kept.warnings],
        "levels": {
            "finest": timeline.pyramid.finest,
            "base": 0,
            "coarsest": timeline.pyramid.coarsest,
            "base_width": 1 << kept.base_bits,
            "factor": FACTOR,
            "buckets": BUCKETS,
        },
        "categories": [_category(key) for key in kept.categories],
        "ranks": {**_ranks(timeline), "stage": stages},
        "groupings": list(_groupings(timeline, stages)),
        "tracks": {
            name: [getattr(track, name) for track in kept.tracks]
            for name in ("rank", "kind", "title", "first_lane", "num_lanes", "group")
        },
        "lanes": {
            "track": timeline.lane_track.tolist(),
            "num_events": np.diff(timeline.events.first).tolist(),
            "busy_ns": [sum(mine) for mine in each],
            "categories": [category[span.start : span.stop] for span in spans],
            "totals_ns": each,
        },
        "steps": _steps(timeline),
        "counters": {
            **{n: [getattr(c, n) for c in kept.counters] for n in ("rank", "title", "metric", "unit")},
            "min": [counter.least for counter in kept.counters],
            "max": [counter.most for counter in kept.counters],
            "num_samples": [counter.last - counter.first for counter in kept.counters],
        },
        "sortings": [
            {
                "key": f"{recipe.name}.{column}",
                "title": _heading(recipe, column),
                "unit": recipe.columns[column].unit,
            }
            for recipe, column in _sortable()
        ],
    }


def _what_it_is(timeline: RunTimeline) -> Iterator[str]:
    """Where times were never measured, that they were not."""
    for fact in timeline.trace.manifest.quality:
        if fact.name == REPLAYED:
            yield f"Predicted: replayed with `{fact.text}`. These times were not measured."
        elif fact.name == SIMULATED:
            yield "Simulated: this job never ran."


def _category(key: str) -> dict[str, str]:
    account = ACCOUNTS.get(key.partition(":")[2]) if key.startswith("account:") else None
    outside = "Outside of the recorded steps." if key == OUTSIDE else ""
    return {"key": key, "name": called(key), "meaning": outside if account is None else account.meaning}


def _ranks(timeline: RunTimeline) -> dict[str, list[Any]]:
    table = timeline.trace.whole.table("ranks")
    assert table is not None
    with timeline.trace.reading():
        rows = table.sort("rank", "device").unique("rank", keep="first", maintain_order=True).collect()
    kept = rows.select("rank", "host", "device", "gpu", "start", "end", clock_error_ns="clock_error")
    return kept.to_dict(as_series=False)


def _stages(timeline: RunTimeline) -> list[int | None]:
    """The pipeline stage of each rank, where ranks send each other activations."""
    ranks = timeline.kept.ranks
    none: list[int | None] = [None] * len(ranks)
    if not {"collective:send", "collective:receive", "collective:send-receive"} & set(
        timeline.kept.categories
    ):
        return none
    said = timeline.session.run("pipeline_passes")
    if isinstance(said, Skipped) or not {"rank", "stage"} <= set(said.table.columns):
        return none
    known = dict(said.table.group_by("rank").agg(pl.col("stage").min()).iter_rows())
    return [known.get(rank) for rank in ranks]


def _groupings(timeline: RunTimeline, stages: list[int | None]) -> Iterator[dict[str, Any]]:
    table = timeline.trace.whole.table("ranks")
    assert table is not None
    with timeline.trace.reading():
        rows = table.select("rank", "host", "groups").unique("rank", keep="first").sort("rank").collect()
    hosts = rows["host"].to_list()
    if any(host is not None for host in hosts):
        yield _grouping("host", "node", ["unknown node" if h is None else f"node {h}" for h in hosts])
    if any(stage is not None for stage in stages):
        yield _grouping(
            "stage", "pipeline stage", ["no stage" if s is None else f"stage {s}" for s in stages]
        )
    groups: list[list[dict[str, Any]] | None] = rows["groups"].to_list()
    for purpose, title in GROUPED_BY.items():
        of = [_group_of(mine or [], purpose) for mine in groups]
        if len({ranks for ranks in of if ranks}) > 1:
            yield _grouping(purpose, title, [f"{title} {ranks}" if ranks else f"no {title}" for ranks in of])


def _group_of(groups: list[dict[str, Any]], purpose: str) -> str:
    """The ranks of a rank's group for a purpose, in words; empty where it has none."""
    for group in groups:
        said = f"{group['description'] or ''}"
        if re.search(BY_DESCRIPTION[purpose], said) and len(group["ranks"] or []) > 1:
            ranks = sorted(group["ranks"])
            some = ", ".join(map(str, ranks[:8]))
            return f"{some}, …" if len(ranks) > 8 else some
    return ""


def _grouping(key: str, title: str, each: list[str]) -> dict[str, Any]:
    names = list(dict.fromkeys(each))
    number = {name: at for at, name in enumerate(names)}
    return {"key": key, "title": title, "of": [number[name] for name in each], "names": names}


def _steps(timeline: RunTimeline) -> dict[str, list[Any]]:
    table = timeline.trace.whole.table("steps")
    if table is None:
        return {"rank": [], "step": [], "start": [], "end": [], "counts": []}
    with timeline.trace.reading():
        rows = table.sort("rank", "start").collect()
    counts = pl.col("left_out").is_null() & pl.col("complete").fill_null(True)
    return rows.select("rank", "step", "start", "end", counts=counts).to_dict(as_series=False)


def _sortable() -> Iterator[tuple[Recipe, str]]:
    """Columns of recipes that can be added up over a rank's rows."""
    for name in sorted(recipes()):
        recipe = recipes()[name]
        if recipe.page and "rank" in recipe.columns:
            for column, holds in recipe.columns.items():
                if holds.adds_up:
                    yield recipe, column


def _heading(recipe: Recipe, column: str) -> str:
    label = recipe.columns[column].label or column.replace("_", " ")
    return f"{recipe.name.replace('_', ' ')}: {label}"


def sorting(timeline: RunTimeline, key: str) -> dict[str, Any] | None:
    """A recipe's column by rank, added up; None where no recipe has it. Raises NoSuchRecipe."""
    name, _, column = key.partition(".")
    recipe = named(name)
    if column not in recipe.columns or not recipe.columns[column].adds_up:
        return None
    said = timeline.session.run(name)
    known: dict[int, int] = {}
    if not isinstance(said, Skipped) and {"rank", column} <= set(said.table.columns):
        rows = said.table.filter(pl.col(column).is_not_null()).group_by("rank").agg(pl.col(column).sum())
        known = dict(rows.iter_rows())
    return {
        "key": key,
        "title": _heading(recipe, column),
        "unit": recipe.columns[column].unit,
        "values": [known.get(rank) for rank in timeline.kept.ranks],
        "why_not": said.reason if isinstance(said, Skipped) else "",
    }


def findings(timeline: RunTimeline) -> dict[str, Any]:
    """The first page's verdict and findings, each with the windows in which its evidence lies."""
    try:
        shown = page(timeline.trace.whole, timeline.session)
    except LostflopsError as error:
        return {"verdict": "", "findings": [], "why_not": str(error)}
    return {
        "verdict": shown.verdict,
        "findings": [
            {
                "name": finding.name,
                "claim": shown.nameless(finding.claim),
                "cost_ns": finding.size,
                "gain": finding.gain,
                "gain_ns": finding.ns_per_step,
                "evidence": [shown.nameless(fact) for fact in finding.evidence],
                "next": shown.nameless(finding.next),
                "doubt": shown.nameless(finding.doubt),
                "rank": finding.rank,
                "recipe": finding.recipe,
                "accounts": list(finding.accounts),
                "windows": list(_windows(timeline, finding.accounts, finding.rank)),
            }
            for finding in shown.findings
        ],
        "why_not": "",
    }


def _windows(timeline: RunTimeline, accounts: tuple[str, ...], rank: int | None) -> Iterator[dict[str, Any]]:
    """The longest stretches of the accounts that a finding is about, of the rank that it blames if there are
    any, each in a step of its own."""
    keys = timeline.kept.categories
    meant = [keys.index(f"account:{account}") for account in accounts if f"account:{account}" in keys]
    if not meant:
        return
    lanes = np.arange(len(timeline.kept.ranks))
    blamed = [timeline.state_lane(rank)] if rank is not None and rank in timeline.kept.ranks else []
    for some in (blamed, lanes):
        found = _longest(timeline, some, np.array(meant))
        if found:
            for lane, start, end, name in found:
                of = timeline.kept.ranks[lane]
                text = f"rank {of}: {name}"
                yield {"rank": of, "start": start, "end": end, "lane": lane, "text": text}
            return


def _longest(timeline: RunTimeline, lanes: Any, meant: Any) -> list[tuple[int, int, int, str]]:
    events = timeline.events
    each: list[tuple[int, int, int]] = []  # length, lane, place
    for lane in lanes:
        low, high = int(events.first[lane]), int(events.first[lane + 1])
        places = low + np.flatnonzero(np.isin(events.category[low:high], meant))
        length = events.length[places].astype(np.int64)
        longest = np.argsort(-length, kind="stable")[:MOST_WINDOWS]
        each += [(-int(length[at]), int(lane), int(places[at])) for at in longest]
    each.sort()
    found: list[tuple[int, int, int, str]] = []
    for length, lane, at in each[:MOST_WINDOWS]:
        start = int(events.start[at])
        key = timeline.kept.categories[int(events.category[at])].removeprefix("account:")
        label = ACCOUNTS[key].label if key in ACCOUNTS else key
        found.append((lane, start, start - length, label))
    return found
