"""Algebra on sets of half-open intervals of integers; knows nothing of traces.

Everything rests on one sweep. Each interval becomes two edges, +1 at its start and -1 at its end; sorted by
time, the running sum is the number of intervals open between one edge and the next. Every set of intervals
returns its count to zero after its last edge, so one running sum over frames sorted by group and time serves
all groups at once, and nothing loops over rows. All results are exact integers.

Frames have int64 columns `start` and `end`; intervals with `end <= start` hold no time and count for nothing.
`by` names the grouping columns: intervals of different groups never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Int = npt.NDArray[np.int64]
NEAR = 32  # rows to look back at one by one, before a whole tree is worth its making


def union(frame: pl.LazyFrame, by: Sequence[str] = ()) -> pl.LazyFrame:
    """The instants covered by any interval, as disjoint intervals that do not touch, sorted."""
    keys = list(by)

    def united(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.is_empty():
            return rows
        rows = rows[_order(rows, [*keys, "start"])]
        start, reach = rows["start"].to_numpy(), rows["end"].to_numpy().copy()
        opens = np.zeros(len(start), dtype=bool)
        opens[0] = True
        if keys:
            opens[1:] = rows.select(
                pl.any_horizontal(pl.col(keys).ne_missing(pl.col(keys).shift()))
            ).to_series()[1:]
        groups = np.flatnonzero(opens)
        # In the order of their starts, an interval opens a new one when none before it reaches its start.
        for first, last in zip(groups, np.r_[groups[1:], len(start)], strict=True):
            np.maximum.accumulate(reach[first:last], out=reach[first:last])
        opens[1:] |= start[1:] > reach[:-1]
        at = np.flatnonzero(opens)
        closes = np.r_[at[1:], len(start)] - 1
        return rows[at].with_columns(end=reach[closes])

    return (
        frame.filter(pl.col("end") > pl.col("start"))
        .select(*keys, "start", "end")
        .map_batches(united, predicate_pushdown=False, projection_pushdown=False)
    )


def paint(
    windows: pl.LazyFrame,
    layers: Mapping[str, pl.LazyFrame],
    by: Sequence[str] = (),
    account: str = "account",
) -> pl.LazyFrame:
    """Split every window into maximal runs by the first layer that covers each instant.

    The windows of one group must be disjoint. The result has the columns of `windows`, with `start` and
    `end` of the run, and `account`: the layer's name, or null where none covers. For every window the runs
    add up to its length, exactly.
    """
    keys = list(by)
    names = list(layers)
    # In a fixed order, so that windows keep their numbers wherever this frame is computed again.
    numbered = (
        windows.filter(pl.col("end") > pl.col("start"))
        .sort(*keys, "start")
        .with_row_index("_window", offset=1)
        .with_columns(pl.col("_window").cast(pl.Int64))
    )
    edges = [_edges(numbered, keys, "_window", pl.col("_window"))]
    # Rows of one layer nest: united first, a stack of frames is one interval.
    edges += [
        _edges(union(frame, keys), keys, f"_layer{i}", pl.lit(1, dtype=pl.Int64))
        for i, frame in enumerate(layers.values())
    ]
    counts = ["_window", *(f"_layer{i}" for i in range(len(names)))]
    covering = pl.lit(None, dtype=pl.Int16)
    for i in reversed(range(len(names))):
        covering = pl.when(pl.col(f"_layer{i}") > 0).then(pl.lit(i, dtype=pl.Int16)).otherwise(covering)
    window, code = pl.col("_window"), pl.col("_code")
    begins = window.ne_missing(window.shift()) | code.ne_missing(code.shift())
    runs = (
        _in_order(pl.concat(edges, how="diagonal").with_columns(pl.col(counts).fill_null(0)), keys)
        # One window of a group is open at a time, so the running sum of their numbers is its number. All
        # counts return to zero after a group's last edge, so one running sum serves all groups.
        .with_columns(pl.col(counts).cum_sum(), _next=pl.col("_at").shift(-1))
        .filter((window > 0) & (pl.col("_next") > pl.col("_at")))
        .select("_window", "_at", "_next", _code=covering)
        .with_columns(_begins=begins)
        .with_columns(_ends=pl.col("_begins").shift(-1, fill_value=True))
        .select(
            window.filter("_begins"),
            code.filter("_begins"),
            start=pl.col("_at").filter("_begins"),
            end=pl.col("_next").filter("_ends"),
        )
    )
    named = code.replace_strict(dict(enumerate(names)), default=None, return_dtype=pl.String)
    return (
        runs.with_columns((named if names else pl.lit(None, dtype=pl.String)).alias(account))
        .join(numbered.drop("start", "end"), on="_window", how="left", maintain_order="left")
        .drop("_window", "_code")
    )


def _edges(frame: pl.LazyFrame, keys: list[str], column: str, delta: pl.Expr) -> pl.LazyFrame:
    opening = frame.select(*keys, _at=pl.col("start"), **{column: delta})
    closing = frame.select(*keys, _at=pl.col("end"), **{column: -delta})
    return pl.concat([opening, closing])


def _in_order(edges: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """Edges by group and time; those at one instant stay in the order in which they stand."""
    return edges.map_batches(
        lambda frame: frame[_order(frame, [*keys, "_at"])],
        predicate_pushdown=False,
        projection_pushdown=False,
    )


def _order(rows: pl.DataFrame, by: list[str]) -> Int:
    """The positions of rows sorted by some columns; equal rows stay in the order in which they stand.

    Starts and ends are mostly in order already. NumPy's sort merges such runs, in a fifth of the time that
    Polars takes for several keys.
    """
    columns = [rows[c] for c in reversed(by)]
    if any(
        c.null_count() or not (c.dtype.is_integer() or isinstance(c.dtype, (pl.Boolean, pl.Enum)))
        for c in columns
    ):
        position = pl.int_range(pl.len(), dtype=pl.Int64).sort_by(by, maintain_order=True)
        return rows.select(position).to_series().to_numpy()
    return np.lexsort([c.to_physical().to_numpy() for c in columns])


def coverage(a: pl.LazyFrame, b: pl.LazyFrame, by: Sequence[str] = ()) -> pl.LazyFrame:
    """Per group, the time in which only `a`, only `b`, and both have something open.

    Columns: `by`, `only_a`, `only_b`, `both`. Groups that appear in neither are absent.
    """
    keys = list(by)
    in_a, in_b, length = pl.col("_a") > 0, pl.col("_b") > 0, pl.col("end") - pl.col("start")
    sums = [
        length.filter(in_a & ~in_b).sum().alias("only_a"),
        length.filter(in_b & ~in_a).sum().alias("only_b"),
        length.filter(in_a & in_b).sum().alias("both"),
    ]
    pieces = overlay({"_a": a, "_b": b}, keys)
    return pieces.group_by(keys, maintain_order=True).agg(sums) if keys else pieces.select(sums)


def overlay(sets: Mapping[str, pl.LazyFrame], by: Sequence[str] = ()) -> pl.LazyFrame:
    """How many intervals of each set are open, as pieces between one edge and the next, sorted.

    Columns: `by`, `start`, `end`, and a count per set. Pieces in which nothing is open are left out. Whatever
    is asked about the sets' unions and overlaps is a sum over some of these pieces.
    """
    keys, names = list(by), list(sets)
    edges = [
        _edges(frame.filter(pl.col("end") > pl.col("start")), keys, name, pl.lit(1, dtype=pl.Int32))
        for name, frame in sets.items()
    ]
    return (
        _in_order(pl.concat(edges, how="diagonal").with_columns(pl.col(names).fill_null(0)), keys)
        # Only the last of the edges at one instant has a piece after it, and by then all of them are counted.
        # After a group's last edge nothing is open, so the jump to the next group is left out too.
        .with_columns(pl.col(names).cum_sum(), end=pl.col("_at").shift(-1))
        .filter((pl.col("end") > pl.col("_at")) & pl.any_horizontal(pl.col(names) > 0))
        .select(*keys, pl.col("_at").alias("start"), "end", *names)
    )


def inside(
    frame: pl.LazyFrame, pieces: pl.LazyFrame, parts: Mapping[str, pl.Expr], by: str = "rank"
) -> pl.LazyFrame:
    """`frame` with a column per part: how much of a row's time lies in the pieces where that part is true.

    `pieces` are disjoint and sorted by group and time, as `union` and `overlay` give them; a part is a
    boolean over their columns. The time of such pieces up to an instant is a function that rises inside them
    and rests outside; a row's share is its rise from `start` to `end`. So a row costs two binary searches,
    however many pieces it meets. `by` is one integer column.
    """
    chosen = pieces.select(by, "start", "end", **{f"_{name}": part for name, part in parts.items()})
    rows, cover = pl.collect_all([frame, chosen])
    order = np.argsort(rows[by].to_numpy(), kind="stable")
    group, start, end = (rows[c].to_numpy()[order] for c in (by, "start", "end"))
    of, opens, closes = (cover[c].to_numpy() for c in (by, "start", "end"))
    shares = {name: np.zeros(rows.height, dtype=np.int64) for name in parts}
    for value in np.intersect1d(of, group):
        mine = slice(*np.searchsorted(group, [value, value + 1]))
        ours = slice(*np.searchsorted(of, [value, value + 1]))
        first, last = opens[ours], closes[ours]
        at_start, at_end = (np.searchsorted(last, t[mine], side="right") for t in (start, end))
        for name, share in shares.items():
            counted = cover[f"_{name}"].to_numpy()[ours]
            before = np.r_[0, np.cumsum((last - first) * counted)]
            rise = before[at_end] - before[at_start]
            for sign, t, at in ((1, end[mine], at_end), (-1, start[mine], at_start)):
                within = np.minimum(at, len(first) - 1)
                rise += sign * np.where(
                    at < len(first), np.maximum(t - first[within], 0) * counted[within], 0
                )
            share[order[mine]] = np.maximum(rise, 0)
    return rows.with_columns(pl.Series(name, share) for name, share in shares.items()).lazy()


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
    order = np.lexsort((-end, start, group)).astype(np.int64, copy=False)
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
    for rows in np.split(np.arange(len(end)), np.flatnonzero(np.diff(group)) + 1):
        reach[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
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
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    base = np.repeat(first, np.diff(np.r_[first, n]))
    # Depth = begun before me in my group, less ended by the time I begin. Ends are ranked within the group.
    closes = np.lexsort((end, group))
    ended = _count_at_most(end[closes], group[closes], start, group)
    depth = position - ended
    # An interval of no length ends as it begins, and has then been counted as ended before itself.
    zero = (end == start).astype(np.int64)
    if zero.any():
        same = np.r_[True, (start[1:] != start[:-1]) | (group[1:] != group[:-1])]
        run = np.maximum.accumulate(np.where(same, position, 0))
        total = np.r_[0, np.cumsum(zero)]
        last = np.r_[np.flatnonzero(same)[1:], n]
        stop = np.repeat(last, np.diff(np.r_[np.flatnonzero(same), n]))
        depth = depth + (total[stop] - total[run]) - (total[position] - total[run])
    depth = np.maximum(depth, 0)
    # The parent is the nearest earlier interval of my group that is one level up.
    parent = np.full(n, -1, dtype=np.int64)
    rows = np.lexsort((position, depth))
    levels = depth[rows]
    deep = int(levels[-1])
    bounds = np.searchsorted(levels, np.arange(deep + 2))
    for level in range(1, deep + 1):
        mine = rows[bounds[level] : bounds[level + 1]]
        above = rows[bounds[level - 1] : bounds[level]]
        if len(mine) == 0 or len(above) == 0:
            continue
        at = np.searchsorted(above, mine) - 1
        found = above[np.maximum(at, 0)]
        valid = (at >= 0) & (found >= base[mine])
        parent[mine[valid]] = found[valid]
    return parent, depth


def _count_at_most(values: Int, value_group: Int, query: Int, query_group: Int) -> Int:
    """For each query, how many values of all earlier groups, and of its own up to and including it."""
    merged = np.lexsort(
        (
            np.r_[np.zeros(len(values), np.int8), np.ones(len(query), np.int8)],
            np.r_[values, query],
            np.r_[value_group, query_group],
        )
    )
    is_value = merged < len(values)
    running = np.cumsum(is_value)
    counts = np.empty(len(query), dtype=np.int64)
    asked = ~is_value
    counts[merged[asked] - len(values)] = running[asked]
    return counts


def innermost_at(forest: Forest, point: Int, group: Int) -> Int:
    """The sorted position of the deepest interval that contains each point, or -1.

    The latest interval begun at or before the point is it, or one of that interval's ancestors is.
    """
    n = len(forest.start)
    if n == 0 or len(point) == 0:
        return np.full(len(point), -1, dtype=np.int64)
    at = _count_at_most(forest.start, forest.group, point, group) - 1
    at[(at >= 0) & (forest.group[np.maximum(at, 0)] != group)] = -1
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
    rows = rows.filter(pl.col("end") > pl.col("start")).join(groups, on=keys)
    order = np.lexsort([-rows["end"].to_numpy(), *(rows[c].to_numpy() for c in ("start", "_group"))])
    of, start, end = (rows[c].to_numpy()[order] for c in ("_group", "start", "end"))
    at, found = points["start"].to_numpy(), np.full(points.height, -1, dtype=np.int64)
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
    closing = np.r_[np.zeros(n, np.int8), np.ones(n, np.int8)]
    # At one instant: ends before starts, except that an interval of no length must begin before it ends.
    empty = forest.end == forest.start
    keep = np.r_[~empty, ~empty]
    at, owner, group, closing = at[keep], owner[keep], group[keep], closing[keep]
    level: Int = np.r_[forest.depth, forest.depth][keep]
    order = np.lexsort((np.where(closing == 1, -level, level), 1 - closing, at, group))
    at, owner, group = at[order], owner[order], group[order]
    if len(at) == 0:
        return at, at, at
    stop = np.r_[at[1:], at[-1]]
    same = np.r_[group[1:] == group[:-1], False]
    good = (stop > at) & same & (owner >= 0)
    return owner[good], at[good], stop[good]


def group_ids(frame: pl.DataFrame, by: Sequence[str]) -> Int:
    """A dense integer per distinct combination of `by`, in no particular order."""
    if not by:
        return np.zeros(frame.height, dtype=np.int64)
    ids: Any = frame.select(pl.struct(list(by)).rank("dense")).to_series().cast(pl.Int64).to_numpy()
    return ids
