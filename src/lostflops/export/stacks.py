"""The host's rows as stacks of names, with the time that each stack takes.

A stack is what lies around a row on its thread: Python frames, ranges, operators and calls. Equal stacks of a
thread are one, so that there are few of them however many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.intervals import Int, innermost_at, nest
from lostflops.tables import NAME

from . import lanes
from .asked import ExportRequest
from .selection import RunPart
from .timeline import Drawn, without_device

HOST, DEVICE, EXPOSED = WEIGHTS = ("host", "device", "exposed")
TABLES = ("frames", "ranges", "operators", "launches")


@dataclass(frozen=True)
class HostRows:
    """A rank's rows that nest, sorted so that each stands behind what it lies in."""

    frame: pl.DataFrame  # thread, start, end, name
    forest: intervals.Forest
    lane: Int  # of each place of the forest's group, its thread and lane
    threads: list[int | None]


@dataclass(frozen=True)
class Stacks:
    """Stacks of a rank: each is its parent's (-1: none) with one name more, and has a weight in ns."""

    parent: Int
    name: list[str]
    thread: list[int | None]  # of the stacks without a parent
    weight: Int

    def written(self) -> list[tuple[list[str], int]]:
        """Each stack that weighs something as its names, the outermost first."""
        paths: list[list[str]] = []
        for at, name in enumerate(self.name):
            above = int(self.parent[at])
            if above >= 0:
                paths.append([*paths[above], name])
            else:
                thread = self.thread[at]
                paths.append(["thread unknown" if thread is None else f"thread {thread}", name])
        return [(paths[at], int(self.weight[at])) for at in np.flatnonzero(self.weight > 0)]


def host_rows(selection: RunPart, rank: int, drawn: Drawn) -> HostRows | None:
    """The rows of a rank's threads; None where it has none."""
    found: list[pl.DataFrame] = []
    for table in TABLES:
        more = ["nested"] if table == "ranges" else []
        rows = selection.rows(table, rank, ["rank", "thread", "start", "end", "name", *more])
        if rows is not None and more:
            rows = rows.filter(pl.col("nested").fill_null(False))
        if rows is not None and rows.height:
            drawn.count(table, rows.height)
            found.append(rows.select("thread", "start", "end", pl.col("name").cast(NAME)))
    if not found:
        return None
    frame = pl.concat(found)
    threads = frame["thread"].unique().sort(nulls_last=True).to_list()
    place = {thread: at for at, thread in enumerate(threads)}
    group = np.fromiter((place[t] for t in frame["thread"].to_list()), np.int64, frame.height)
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    lane = lanes.nested(start, end, group)
    number = group + len(threads) * lane
    return HostRows(frame, nest(start, end, number), number, threads)


def stacks(asked: ExportRequest, rank: int, weight: str) -> Stacks | None:
    """The stacks of a rank's threads: by their own time on the host, or by the time of the work on the
    device that they launched, or by how much of that ran alone."""
    rows = host_rows(asked.selection, rank, Drawn())
    if rows is None:
        return None
    of_row, parent, name, group = _paths(rows)
    forest = rows.forest
    if weight == HOST:
        own = forest.end - forest.start
        inner = np.flatnonzero(forest.parent >= 0)
        np.subtract.at(own, forest.parent[inner], (forest.end - forest.start)[inner])
    else:
        own = _launched(asked.selection, rank, rows, weight)
    weights = np.zeros(len(parent), np.int64)
    np.add.at(weights, of_row, own)
    thread = [rows.threads[int(g) % len(rows.threads)] for g in group]
    return Stacks(parent, name, thread, weights)


def _paths(rows: HostRows) -> tuple[Int, Int, list[str], Int]:
    """The stack of each place of the forest; and of each stack its parent, last name and thread."""
    forest = rows.forest
    codes = rows.frame["name"].to_physical().to_numpy()[forest.order].astype(np.int64)
    texts = rows.frame["name"].cast(pl.String)
    thread = forest.group % len(rows.threads)
    of_row = np.empty(len(codes), np.int64)
    parents: list[Int] = []
    names: list[str] = []
    groups: list[Int] = []
    order = np.argsort(forest.depth, kind="stable")
    count = 0
    for level in np.split(order, np.flatnonzero(np.diff(forest.depth[order])) + 1):
        above = forest.parent[level]
        known = np.where(above >= 0, of_row[np.maximum(above, 0)], -1 - thread[level])
        keys = np.stack((known, codes[level]), axis=1)
        distinct, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        of_row[level] = count + inverse.reshape(-1)
        parents.append(np.maximum(distinct[:, 0], -1))
        names += texts[forest.order[level[first]]].to_list()
        groups.append(thread[level[first]])
        count += len(distinct)
    return of_row, np.concatenate(parents), names, np.concatenate(groups)


def _launched(selection: RunPart, rank: int, rows: HostRows, weight: str) -> Int:
    """For each place of the forest the time on the device of what was launched right in it."""
    total = np.zeros(len(rows.forest.start), np.int64)
    if without_device(selection, rank):
        return total
    columns = ["rank", "start", "end", "thread", "launch_start"]
    found = [w for t in ("kernels", "copies") if (w := selection.rows(t, rank, columns)) is not None]
    if not found:
        return total
    work = pl.concat(found)
    if weight == EXPOSED:
        pieces = intervals.overlay({"all": work.lazy()}, by=["rank"])
        alone = intervals.inside(work.lazy(), pieces, {"time": pl.col("all") == 1})
        work = alone.collect()
    else:
        work = work.with_columns(time=pl.col("end") - pl.col("start"))
    work = work.drop_nulls(["thread", "launch_start"])
    place = {thread: at for at, thread in enumerate(rows.threads)}
    known = work["thread"].is_in(rows.threads)
    work = work.filter(known)
    group = np.fromiter((place[t] for t in work["thread"].to_list()), np.int64, work.height)
    at = innermost_at(rows.forest, work["launch_start"].to_numpy(), group)
    good = at >= 0
    np.add.at(total, at[good], work["time"].to_numpy()[good])
    return total
