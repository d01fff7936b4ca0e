"""Intervals that lie within each other: which is whose parent, and which is innermost at a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.intervals.order import Int, at_most, running_most, sorted_by

SHORT = 2**15  # above all integers of 16 bits
MANY_GROUPS = 1000  # above which they are ranked together, not one after the other
NEAR = 32  # rows to look back at one by one, before a whole tree is worth its making


@dataclass(frozen=True)
class Forest:
    """Intervals of many groups nested into trees, as arrays over the intervals sorted by group, start, -end.

    `order` gives the sorted position's original index; `parent` is a sorted position, or -1 for a root.
    `end` is cut to the parent's end where an interval sticks out of its parent; `repaired` counts those.
    """

    order: Int
    group: Int
    start: Int
    end: Int
    parent: Int
    depth: Int
    repaired: int


def nest(start: Int, end: Int, group: Int) -> Forest:
    """Nest intervals by containment within their group.

    An interval that begins inside another and outlives it is cut at the other's end, for nesting only: real
    traces have a few such among proper trees.
    """
    # Sorting by (group, start, -end) puts every parent before its children.
    order = sorted_by(group, start, -end)
    group, start, end = group[order], start[order], end[order].copy()
    end = np.maximum(end, start)
    repaired = 0
    for _ in range(8):
        parent, depth = _parents(start, end, group)
        inner = np.flatnonzero(parent >= 0)
        out = inner[end[inner] > end[parent[inner]]]
        if len(out) == 0:
            return Forest(order, group, start, end, parent, depth, repaired)
        # One that sticks out is counted as open for too long, so the parents of whatever begins before it
        # ends are in doubt. Its own is not, if none that sticks out reaches it.
        out = out[start[out] >= _reach_before(end[out], group[out])]
        end[out] = end[parent[out]]
        repaired += len(out)
    return _nest_one_by_one(order, start, end, group, repaired)


def _reach_before(end: Int, group: Int) -> Int:
    """For each row the latest end of those before it in its group; rows stand group by group."""
    reach = np.full(len(end), np.iinfo(np.int64).min)
    reach[1:] = np.where(group[1:] == group[:-1], running_most(end, group)[:-1], reach[1:])
    return reach


def _nest_one_by_one(order: Int, start: Int, end: Int, group: Int, repaired: int) -> Forest:
    """The same with a stack, for input so entangled that cutting in rounds does not settle it."""
    ends = end.tolist()
    parents: list[int] = []
    depths: list[int] = []
    stack: list[int] = []
    current: int | None = None
    for i, (s, g) in enumerate(zip(start.tolist(), group.tolist(), strict=True)):
        if g != current:
            stack.clear()
            current = g
        while stack and ends[stack[-1]] <= s:
            stack.pop()
        if stack and ends[i] > ends[stack[-1]]:
            ends[i] = ends[stack[-1]]
            repaired += 1
        parents.append(stack[-1] if stack else -1)
        depths.append(len(stack))
        stack.append(i)
    return Forest(
        order,
        group,
        start,
        np.array(ends, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(depths, dtype=np.int64),
        repaired,
    )


def _parents(start: Int, end: Int, group: Int) -> tuple[Int, Int]:
    """Parent and depth of intervals sorted by (group, start, -end)."""
    n = len(start)
    position = np.arange(n, dtype=np.int64)
    if n == 0:
        return position, position
    # Depth = begun before me in my group, less ended by the time I begin.
    depth = position - _ended(start, end, group)
    # An interval of no length ends as it begins, and has then been counted as ended before itself.
    zero = (end == start).astype(np.int64)
    if zero.any():
        same = np.r_[True, (start[1:] != start[:-1]) | (group[1:] != group[:-1])]
        total = np.r_[0, np.cumsum(zero)]
        last = np.r_[np.flatnonzero(same)[1:], n]
        stop = np.repeat(last, np.diff(np.r_[np.flatnonzero(same), n]))
        depth = depth + total[stop] - total[position]
    # The parent is the nearest earlier interval that is one level up. It is of my group, which begins at
    # depth 0 and goes down one level at a time.
    parent = np.full(n, -1, dtype=np.int64)
    # Sorting short integers is counting them.
    rows = np.argsort(depth.astype(np.int16) if depth.max() < SHORT else depth, kind="stable")
    levels = depth[rows]
    deep = int(levels[-1])
    bounds = np.searchsorted(levels, np.arange(deep + 2))
    for level in range(1, deep + 1):
        mine = rows[bounds[level] : bounds[level + 1]]
        above = rows[bounds[level - 1] : bounds[level]]
        parent[mine] = above[np.searchsorted(above, mine) - 1]
    return parent, depth


def _ended(start: Int, end: Int, group: Int) -> Int:
    """For each row, how many of earlier groups, and of its own those that end by its start."""
    bounds = np.r_[0, np.flatnonzero(np.diff(group)) + 1, len(group)]
    if len(bounds) > MANY_GROUPS:
        closes = sorted_by(group, end)
        return at_most(group[closes], end[closes], group, start)
    ended = np.empty(len(start), dtype=np.int64)
    for first, last in pairwise(bounds.tolist()):
        ends = np.sort(end[first:last], kind="stable")
        ended[first:last] = first + np.searchsorted(ends, start[first:last], side="right")
    return ended


def innermost_at(forest: Forest, point: Int, group: Int) -> Int:
    """The sorted position of the deepest interval that contains each point, or -1.

    The latest interval begun at or before the point is it, or one of that interval's ancestors is.
    """
    n = len(forest.start)
    if n == 0 or len(point) == 0:
        return np.full(len(point), -1, dtype=np.int64)
    at = at_most(forest.group, forest.start, group, point) - 1
    at[forest.group[np.maximum(at, 0)] != group] = -1
    active = np.flatnonzero(at >= 0)
    while len(active):
        here = at[active]
        over = forest.end[here] <= point[active]
        active = active[over]
        at[active] = forest.parent[here[over]]
        active = active[at[active] >= 0]
    return at


def innermost(points: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str], column: str) -> pl.Series:
    """The value of `column` in the innermost of `rows` that covers the `start` of each of `points`.

    Null where none does. `by` are grouping columns without nulls in `points`.
    """
    keys = list(by)
    groups = points.select(keys).unique().with_row_index("_group")
    group = points.join(groups, on=keys, how="left", maintain_order="left")["_group"].to_numpy()
    rows = rows.join(groups, on=keys)
    order = sorted_by(*(rows[c].to_numpy() for c in ("_group", "start")), -rows["end"].to_numpy())
    of, start, end = (rows[c].to_numpy()[order] for c in ("_group", "start", "end"))
    at, found = points["start"].to_numpy(), np.empty(points.height, dtype=np.int64)
    first = np.searchsorted(of, np.arange(groups.height + 1))
    by_group = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[by_group], np.arange(groups.height + 1))
    for value in range(groups.height):
        mine = by_group[bounds[value] : bounds[value + 1]]
        ours = start[first[value] : first[value + 1]]
        found[mine] = first[value] + np.searchsorted(ours, at[mine], side="right") - 1
    # Going back from the last row begun by then, the first that has not ended is it.
    begins = first[group]
    over = np.flatnonzero(found >= begins)
    for _ in range(NEAR):
        over = over[end[found[over]] <= at[over]]
        found[over] -= 1
        over = over[found[over] >= begins[over]]
    over = over[end[found[over]] <= at[over]]
    found[found < begins] = -1
    if len(over):  # far back: a tree, of the few rows that cover these points
        near = np.flatnonzero(_covering(start, end, first, at[over], group[over]))
        forest = nest(start[near], end[near], of[near].astype(np.int64))
        deep = innermost_at(forest, at[over], group[over].astype(np.int64))
        found[over] = -1
        found[over[deep >= 0]] = near[forest.order[deep[deep >= 0]]]
    place = np.where(found >= 0, order[found] if len(order) else -1, -1)
    return rows[column].gather(pl.Series(place).replace({-1: None}))


def _covering(start: Int, end: Int, first: Int, at: Int, group: Int) -> npt.NDArray[np.bool_]:
    """Which intervals cover any point of their group. Those of group g stand from `first[g]` on."""
    covering = np.zeros(len(start), dtype=np.bool_)
    for value in np.unique(group):
        mine = slice(first[value], first[value + 1])
        ours = np.sort(at[group == value])
        covering[mine] = np.searchsorted(ours, start[mine]) < np.searchsorted(ours, end[mine])
    return covering


def less_children(forest: Forest, amount: Int) -> Int:
    """What of each interval's amount, such as its length, is not its children's; by sorted position."""
    child = forest.parent >= 0
    inner = np.zeros_like(amount)
    np.add.at(inner, forest.parent[child], amount[child])
    return amount - inner


def self_pieces(forest: Forest) -> tuple[Int, Int, Int]:
    """The time of each interval outside its children: sorted position, start and end, by group and time.

    Pieces of one group never overlap; together they cover exactly the group's union.
    """
    n = len(forest.start)
    position = np.arange(n, dtype=np.int64)
    # At its start an interval takes over; at its end its parent does. Deeper ends come before shallower ones.
    at = np.r_[forest.start, forest.end]
    owner = np.r_[position, forest.parent]
    group = np.r_[forest.group, forest.group]
    closing = np.r_[np.zeros(n, np.bool_), np.ones(n, np.bool_)]
    # At one instant: ends before starts, except that an interval of no length must begin before it ends.
    empty = forest.end == forest.start
    keep = np.r_[~empty, ~empty]
    at, owner, group, closing = at[keep], owner[keep], group[keep], closing[keep]
    level: Int = np.r_[forest.depth, forest.depth][keep]
    order = sorted_by(group, at, ~closing, np.where(closing, -level, level))
    at, owner, group = at[order], owner[order], group[order]
    begin, stop, owner = at[:-1], at[1:], owner[:-1]
    good = (stop > begin) & (group[1:] == group[:-1]) & (owner >= 0)
    return owner[good], begin[good], stop[good]
