"""What a set of intervals covers, and how often: union, paint, coverage, overlay, cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.intervals.order import (
    Bool,
    Int,
    changes,
    changes_of,
    each_of,
    one_axis,
    plain,
    positions,
    row_order,
    running_most,
    scattered,
    sorted_by,
)


def union(frame: pl.LazyFrame, by: Sequence[str] = ()) -> pl.LazyFrame:
    """The instants covered by any interval, as disjoint intervals that do not touch, sorted."""
    keys = list(by)
    return (
        frame.filter(pl.col("end") > pl.col("start"))
        .select(*keys, "start", "end")
        .map_batches(lambda rows: _united(rows, keys), predicate_pushdown=False, projection_pushdown=False)
    )


def _united(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    if rows.is_empty():
        return rows
    order = row_order(rows, [*keys, "start"])
    start, end = rows["start"].to_numpy()[order], rows["end"].to_numpy()[order]
    first, reach = _joined(start, end, changes(rows, keys, order))
    return rows[order[first]].replace_column(rows.width - 1, pl.Series("end", reach))


def united(keys: Sequence[Int], start: Int, end: Int) -> tuple[Int, Int]:
    """What `union` gives, of columns: for each interval a row that begins it, and its end."""
    held = np.flatnonzero(end > start)
    keys, start, end = [key[held] for key in keys], start[held], end[held]
    if not len(held):
        return held, end
    order = sorted_by(*keys, start)
    first, reach = _joined(start[order], end[order], changes_of(*(key[order] for key in keys)))
    return held[order[first]], reach


def touching_lengths(keys: Sequence[Int], start: Int, end: Int) -> Int:
    """How long each interval is with those of equal keys before and behind it that it touches.

    Intervals of equal keys must not overlap.
    """
    order = sorted_by(*keys, start)
    if not len(order):
        return np.zeros(0, np.int64)
    began, ended = start[order], end[order]
    opens = changes_of(*(key[order] for key in keys))
    opens[1:] |= began[1:] != ended[:-1]
    at = np.flatnonzero(opens)
    whole = ended[np.append(at[1:], len(order)) - 1] - began[at]
    length = np.empty(len(order), np.int64)
    length[order] = whole[np.cumsum(opens) - 1]
    return length


def _joined(start: Int, end: Int, opens: Bool) -> tuple[Int, Int]:
    """The first rows of intervals that touch none before them, and where they end.

    Rows stand in the order of their starts, and `opens` says where a group begins.
    """
    # In the order of their starts, an interval opens a new one when none before it reaches its start.
    reach = running_most(end, np.cumsum(opens, dtype=np.int64))
    opens[1:] |= start[1:] > reach[:-1]
    at = np.flatnonzero(opens)
    return at, reach[np.append(at[1:], len(start)) - 1]


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
    keys, names = list(by), list(layers)
    layered = (layer.select(*keys, "start", "end") for layer in layers.values())
    under, *over = pl.collect_all([windows, *layered])
    painted = _in_numbers(under, over, keys)
    if painted is None:
        layers = dict(zip(names, (rows.lazy() for rows in over), strict=True))
        return _painted(under.lazy(), _stacked(layers, under.lazy(), keys), names, keys, account)
    return _named(under, painted, names, account)


def _in_numbers(under: pl.DataFrame, over: Sequence[pl.DataFrame], keys: list[str]) -> Runs | None:
    """The runs of windows by a frame for each layer; None where a key is no whole number."""
    columns: list[Int] = []
    for key in (*keys, "start", "end"):
        sides = [plain(side[key]) for side in (under, *over)]
        if any(side is None for side in sides):
            return None
        columns.append(np.concatenate([side for side in sides if side is not None]))
    of = np.repeat(np.arange(len(over)), [rows.height for rows in over])
    height = under.height
    layers = [column[height:] for column in columns]
    # Rows of one layer nest: united first, a stack of frames is one interval.
    first, reach = united([*layers[:-2], of], *layers[-2:])
    layers = [*(column[first] for column in layers[:-1]), reach]
    return painted([column[:height] for column in columns], layers, of[first], len(over))


def _named(under: pl.DataFrame, runs: Runs, names: Sequence[str], account: str) -> pl.LazyFrame:
    """The runs as rows: start, end, the name of the layer, then the other columns of their windows."""
    named = pl.Series(account, [*names, None], dtype=pl.String)[runs.layer]
    pieces = pl.DataFrame({"start": runs.start, "end": runs.end, account: named})
    return pieces.hstack(under.drop("start", "end")[runs.window]).lazy()


def paint_stacked(
    windows: pl.LazyFrame, layers: pl.LazyFrame, names: Sequence[str], by: Sequence[str]
) -> pl.LazyFrame:
    """What `paint` gives, of layers in one frame: `account` names the layer of a row, `names` is their order.

    Many layers of few rows are painted in less time so. Rows of other names count for nothing.
    """
    keys = list(by)
    code = pl.col("account").replace_strict(
        {name: i for i, name in enumerate(names)}, default=None, return_dtype=pl.Int16
    )
    numbered = layers.select(*keys, "start", "end", _layer=code).filter(pl.col("_layer").is_not_null())
    return _painted(windows, union(numbered, [*keys, "_layer"]), list(names), keys, "account")


def _in_windows(windows: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    return windows.filter(pl.col("end") > pl.col("start")).sort(*keys, "start")


def _painted(
    windows: pl.LazyFrame, layers: pl.LazyFrame, names: list[str], keys: list[str], account: str
) -> pl.LazyFrame:
    """`windows` painted with the union of each layer, which `_layer` numbers."""
    under = _in_windows(windows, keys).collect()
    return _named(under, _pieces(under, layers.collect(), len(names), keys), names, account)


def _pieces(under: pl.DataFrame, over: pl.DataFrame, count: int, keys: list[str]) -> Runs:
    """The runs of the windows `under` by the layers `over`."""
    sides = (under, over)
    start, end = (np.concatenate([side[c].to_numpy() for side in sides]) for c in ("start", "end"))
    edges = np.concatenate((start, end))
    groups = [_both(under[key], over[key]) for key in keys]
    order = positions([*(None if group is None else np.tile(group, 2) for group in groups), edges])
    if order is None:
        rows = pl.concat([side.select(keys) for side in sides])
        order = row_order(pl.concat([rows, rows]).with_columns(pl.Series("_at", edges)), [*keys, "_at"])
    return _runs(edges, order, under.height, over["_layer"].to_numpy(), count)


class Runs(NamedTuple):
    """Maximal runs of windows by the first layer that covers them: from where to where, in which window, and
    of which layer."""

    start: Int
    end: Int
    window: Int
    layer: Int


def painted(windows: Sequence[Int], layers: Sequence[Int], of: Int, count: int) -> Runs:
    """What `paint` gives, of columns: those that group, the start and the end.

    `of` numbers the layers, up to `count`, which is the number of runs that none covers. Rows of one layer
    are united. Windows that hold no time have no runs.
    """
    held = np.flatnonzero(windows[-1] > windows[-2])
    windows = [column[held] for column in windows]
    *keys, start, end = (np.concatenate(both) for both in zip(windows, layers, strict=True))
    edges = np.concatenate((start, end))
    order = sorted_by(*(np.tile(key, 2) for key in keys), edges)
    runs = _runs(edges, order, len(held), of, count)
    return runs._replace(window=held[runs.window])


def _runs(edges: Int, order: Int, windows: int, of: npt.NDArray[Any], count: int) -> Runs:
    """`edges` are those of so many windows, then those of the layers: both open, then both close."""
    at = edges[order]
    height = len(order) // 2
    opens = order < height
    sign, row = np.where(opens, 1, -1), np.where(opens, order, order - height)
    # One window of a group is open at a time, so the running sum of their numbers is its number. All counts
    # return to zero after a group's last edge, so one running sum serves all groups.
    window = np.cumsum(sign * np.where(row < windows, row + 1, 0))
    # Of a layer one interval is open at a time: small numbers do, and take less memory.
    layer = np.concatenate([np.full(windows, -1), of]).astype(np.int16)[row]
    code, step = np.full(len(at), count), sign.astype(np.int8)
    for i in np.unique(of)[::-1]:
        code[np.cumsum(step * (layer == i), dtype=np.int8) > 0] = i
    # Only the last of the edges at one instant has a piece after it, and by then all of them are counted.
    pieces = np.flatnonzero((window[:-1] > 0) & (at[1:] > at[:-1]))
    window, code, start, end = window[pieces], code[pieces], at[pieces], at[pieces + 1]
    begins = changes_of(window, code)
    ends = np.r_[begins[1:], True][: len(pieces)]
    return Runs(start[begins], end[ends], window[begins] - 1, code[begins])


def _both(one: pl.Series, other: pl.Series) -> npt.NDArray[Any] | None:
    """The numbers that stand for the values of two columns alike; None where `plain` has none."""
    first, second = plain(one), plain(other)
    return None if first is None or second is None else np.concatenate((first, second))


def _stacked(layers: Mapping[str, pl.LazyFrame], windows: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """The union of each layer, all in one frame: `_layer` is its number."""
    # Rows of one layer nest: united first, a stack of frames is one interval.
    numbered = [
        frame.select(*keys, "start", "end", _layer=pl.lit(i, dtype=pl.Int16))
        for i, frame in enumerate(layers.values())
    ]
    none = windows.clear().select(*keys, "start", "end", _layer=pl.lit(0, dtype=pl.Int16))
    return union(pl.concat([none, *numbered]), [*keys, "_layer"])


def _edges(frame: pl.LazyFrame, keys: list[str], column: str, delta: pl.Expr) -> pl.LazyFrame:
    opening = frame.select(*keys, _at=pl.col("start"), **{column: delta})
    closing = frame.select(*keys, _at=pl.col("end"), **{column: -delta})
    return pl.concat([opening, closing])


def _in_order(edges: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    """Edges by group and time; those at one instant stay in the order in which they stand."""
    return edges.map_batches(
        lambda frame: frame[row_order(frame, [*keys, "_at"])],
        predicate_pushdown=False,
        projection_pushdown=False,
    )


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
    asked, known = ([side[c].to_numpy() for c in (by, "start", "end")] for side in (rows, cover))
    shares = within(asked, known, [cover[f"_{name}"].to_numpy() for name in parts])
    return rows.with_columns(map(pl.Series, parts, shares)).lazy()


def within(rows: Sequence[Int], pieces: Sequence[Int], parts: Sequence[Bool] | None = None) -> list[Int]:
    """What `inside` gives, of columns: group, start and end. Without `parts` all pieces are one."""
    (group, start, end), (of, opens, closes) = rows, pieces
    parts = [np.ones(len(of), np.bool_)] if parts is None else parts
    if not len(opens):
        return [np.zeros(len(group), np.int64) for _ in parts]
    # Neighbours ask about neighbours, which memory serves faster.
    order = np.argsort(group, kind="stable") if scattered(group) else None
    if order is not None:
        group, start, end = group[order], start[order], end[order]
    begins, stops, ended = one_axis((group, start), (group, end), (of, closes))
    # For each end of a row: how many pieces end before it, the next one, and how far it lies in that.
    meets: list[tuple[int, Int, Int, Int]] = []
    for sign, t, key in ((1, end, stops), (-1, start, begins)):
        at = np.searchsorted(ended, key, side="right")
        piece = np.minimum(at, len(opens) - 1)
        begun = (of[piece] == group) & (at < len(opens))
        meets.append((sign, at, piece, np.where(begun, np.maximum(t - opens[piece], 0), 0)))
    shares: list[Int] = []
    for counted in parts:
        before = np.r_[0, np.cumsum((closes - opens) * counted)]
        rise = np.zeros(len(group), np.int64)
        for sign, at, piece, begun in meets:
            rise += sign * (before[at] + begun * counted[piece])
        share = np.maximum(rise, 0)
        if order is not None:
            share[order] = share.copy()
        shares.append(share)
    return shares


def cut(rows: pl.DataFrame, pieces: pl.DataFrame, by: str) -> pl.DataFrame:
    """The parts of each row that lie in a piece of its group, with the columns of both; those of `rows` win.

    They stand in the order of the rows, those of one row in the order of the pieces.
    `pieces` of one group are disjoint, `rows` need not be. In the order of their ends the pieces that a row
    meets stand side by side: they are those that end after it begins, up to the last that begins before it
    ends. `by` is one integer column.
    """
    pieces = in_order(pieces, by)
    own = [c for c in pieces.columns if c not in rows.columns]
    group, of = rows[by].to_numpy(), pieces[by].to_numpy()
    begins, stops, opens, closes = one_axis(
        (group, rows["start"].to_numpy()), (group, rows["end"].to_numpy()),
        (of, pieces["start"].to_numpy()), (of, pieces["end"].to_numpy()),
    )  # fmt: skip
    first = np.searchsorted(closes, begins, side="right")
    # Each row's pieces, counted on from its first.
    each, at = each_of(first, np.searchsorted(opens, stops))
    met, piece = rows[each], pieces[at]
    return met.with_columns(
        piece.select(own),
        start=pl.max_horizontal("start", piece["start"]),
        end=pl.min_horizontal("end", piece["end"]),
    ).filter(pl.col("end") > pl.col("start"))


def in_order(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """The rows by group and start; as they are where they stand in that order already."""
    order = row_order(rows, [by, "start"])
    return rows if (order[1:] > order[:-1]).all() else rows[order]
