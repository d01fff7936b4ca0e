"""Rows in the order of their group and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

# Rows of a group that stand so many in a row are found in memory as fast as all of them in a row.
IN_ROWS = 64

NEVER = -(2**63)  # in place of a whole number that is not known

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def row_order(rows: pl.DataFrame, by: list[str]) -> Int:
    """The positions of rows sorted by some columns; equal rows stay in the order in which they stand.

    Starts and ends are mostly in order already within their group. NumPy's sort merges such runs: key by key
    in a fifth of the time that Polars takes, by one number that holds all keys in a fifth of that.
    """
    order = positions([plain(rows[c]) for c in by])
    if order is not None:
        return order
    position = pl.int_range(pl.len(), dtype=pl.Int64).sort_by(by, maintain_order=True)
    return rows.select(position).to_series().to_numpy()


def positions(keys: Sequence[npt.NDArray[Any] | None]) -> Int | None:
    """The positions of rows sorted by some keys, the first counting most; None where one of them is None."""
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        return None
    return sorted_by(*known)


def sorted_by(*keys: npt.NDArray[Any]) -> Int:
    """The positions of rows sorted by keys, the first of which counts most; equal rows stay as they stand."""
    for many in range(len(keys), 0, -1):
        if (key := _one_key(keys[:many])) is not None:
            break
    else:
        return np.lexsort(keys[::-1])
    order = np.argsort(key, kind="stable")
    if many < len(keys):
        # The others decide among rows that the first ones leave equal, which are few.
        same, tied = key[order[1:]] == key[order[:-1]], np.zeros(len(order), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        rows = order[at]
        order[at] = rows[np.lexsort((*(each[rows] for each in keys[: many - 1 : -1]), key[rows]))]
    return order


def changes(rows: pl.DataFrame, by: Sequence[str], order: Int | None = None) -> Bool:
    """Where a row begins another group than the row before it; the first row begins one. With `order`, of the
    rows in that order."""
    begins = np.zeros(rows.height, dtype=np.bool_)
    begins[:1] = True
    for name in by:
        column = rows[name]
        key = plain(column)
        if key is None:
            column = column if order is None else column[order]
            begins[1:] |= column.ne_missing(column.shift()).to_numpy()[1:]
        else:
            key = key if order is None else key[order]
            begins[1:] |= key[1:] != key[:-1]
    return begins


def plain(column: pl.Series) -> npt.NDArray[Any] | None:
    """The numbers that stand for a column's values, in their order; None where these are not whole numbers.

    Small frames are answered by the hundred, and a call of Polars costs them more than their rows do.
    """
    if column.null_count():
        return None
    if column.dtype.is_integer():
        return column.to_numpy()
    if isinstance(column.dtype, pl.Boolean):
        return column.to_numpy()
    if isinstance(column.dtype, pl.Enum):
        return column.to_physical().to_numpy()
    return None


def _one_key(keys: Sequence[npt.NDArray[Any]]) -> Int | None:
    """One number for each row, in the order of its keys, the first of which counts most; None where no 63
    bits hold them."""
    if not len(keys[0]) or any(each.dtype == np.uint64 for each in keys):
        return None
    lowest = [int(each.min()) for each in keys]
    widths = [int(each.max()) - low + 1 for each, low in zip(keys, lowest, strict=True)]
    if math.prod(widths) > np.iinfo(np.int64).max:
        return None
    whole: Int = np.zeros(len(keys[0]), np.int64)
    for each, low, width in zip(keys, lowest, widths, strict=True):
        whole *= width
        whole += each.astype(np.int64) - low
    return whole


def group_ids(frame: pl.DataFrame, by: Sequence[str]) -> Int:
    """A dense integer per distinct combination of `by`, in no particular order."""
    if not by:
        return np.zeros(frame.height, dtype=np.int64)
    ids: Any = frame.select(pl.struct(list(by)).rank("dense")).to_series().cast(pl.Int64).to_numpy()
    return ids


def runs(*keys: Int) -> list[Int]:
    """The positions of each run of rows that have the same keys, in order; none where there are no rows."""
    if not len(keys[0]):
        return []
    return np.split(np.arange(len(keys[0])), np.flatnonzero(changes_of(*keys))[1:])


def numbered(*keys: npt.NDArray[Any]) -> tuple[Int, Int]:
    """The distinct combinations of keys, in order: a row that has each, and which of them each row has.

    >>> [column.tolist() for column in numbered(np.array([7, 3, 7]), np.array([1, 2, 1]))]
    [[1, 0], [1, 0, 1]]
    """
    # Rows of one combination stand in a row: few of them are sorted.
    opens = changes_of(*keys)
    run = np.flatnonzero(opens)
    order = sorted_by(*(key[run] for key in keys))
    of_its_own = changes_of(*(key[run[order]] for key in keys))
    of = np.zeros(len(order), np.int64)
    of[order] = np.cumsum(of_its_own) - 1
    return run[order[of_its_own]], of[np.cumsum(opens) - 1]


def filled(rows: pl.DataFrame, columns: Sequence[str]) -> list[Int]:
    """The whole numbers of some columns, `NEVER` for null."""
    lacking = [c for c in columns if rows[c].null_count()]
    rows = rows.with_columns(pl.col(lacking).cast(pl.Int64).fill_null(NEVER)) if lacking else rows
    return [rows[c].to_numpy().astype(np.int64, copy=False) for c in columns]


def by_name(column: pl.Series) -> tuple[list[str], Int]:
    """The distinct names in a column, '' for null, and which of them each row has."""
    numbered = (
        column if isinstance(column.dtype, (pl.Categorical, pl.Enum)) else column.cast(pl.Categorical())
    )
    code = numbered.to_physical().to_numpy()
    if column.null_count():  # NumPy has no null among whole numbers
        code = np.nan_to_num(code + 1).astype(np.int64)
    # Codes are small numbers: counting them takes a fifth of the time that sorting takes.
    first = np.full(int(code.max(initial=0)) + 1, -1)
    first[code[::-1]] = np.arange(len(code))[::-1]
    used = first >= 0
    place = np.cumsum(used) - 1
    return [name or "" for name in column[first[used]].cast(pl.String).to_list()], place[code]


def changes_of(*keys: npt.NDArray[Any]) -> Bool:
    """Where a row has other keys than the row before it; the first has."""
    other = np.ones(len(keys[0]), np.bool_)
    other[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return other


def each_of(low: Int, high: Int) -> tuple[Int, Int]:
    """Every place from `low` up to `high` of each row, one behind the other: the row, and the place.

    >>> [column.tolist() for column in each_of(np.array([4, 9]), np.array([6, 10]))]
    [[0, 0, 1], [4, 5, 9]]
    """
    many = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(many)), many)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(many) - many - low, many)


def scattered(group: Int) -> bool:
    """Whether the rows of a group stand apart."""
    return bool(np.count_nonzero(group[1:] != group[:-1]) > len(group) // IN_ROWS)


def running_most(values: Int, group: npt.NDArray[Any]) -> Int:
    """The largest value so far in each row's group; rows stand group by group."""
    if not len(values):
        return values.copy()
    begins = np.r_[True, group[1:] != group[:-1]]
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width * int(np.count_nonzero(begins)) < np.iinfo(np.int64).max:
        # Group behind group on one axis, one running maximum serves all.
        place = (np.cumsum(begins) - 1) * width
        return np.maximum.accumulate(values - low + place) - place + low
    most = values.copy()
    for rows in runs(group):
        most[rows] = np.maximum.accumulate(values[rows])
    return most


def one_axis(*sides: tuple[Int, Int]) -> list[Int]:
    """Instants of many groups on one axis, on which all of a group lie behind all of the group before.

    Each side is a column of groups, integers in which order counts, and one of instants. On the axis one
    binary search serves all groups, and groups never meet.
    """
    filled = [side for side in sides if len(side[0])]
    if not filled:
        return [side[1] for side in sides]
    least, low = (min(int(side[n].min()) for side in filled) for n in (0, 1))
    most, high = (max(int(side[n].max()) for side in filled) for n in (0, 1))
    width = high - low + 1
    if width * (most - least + 1) < np.iinfo(np.int64).max:
        return [(group.astype(np.int64) - least) * width + (at - low) for group, at in sides]
    groups, instants = (np.concatenate([side[n] for side in sides]) for n in (0, 1))
    known = np.unique(groups)
    if width * len(known) < np.iinfo(np.int64).max:
        return [np.searchsorted(known, group) * width + (at - low) for group, at in sides]
    # Too long for one axis of nanoseconds: their order is enough to search by.
    places = np.unique(instants)
    return [np.searchsorted(known, g) * len(places) + np.searchsorted(places, at) for g, at in sides]


def at_most(groups: Int, values: Int, group: Int, query: Int) -> Int:
    """How many pairs of a group and a value stand at or below each pair of a group and a query.

    The pairs stand in order: by group, then by value.
    """
    known, asked = one_axis((groups, values), (group, query))
    return np.searchsorted(known, asked, side="right")


class RowGroups:
    """Rows by a group each, and what each group's rows are together; groups are numbered from 0 on."""

    def __init__(self, of: Int) -> None:
        self.of = of
        self._order = np.argsort(of, kind="stable")
        self._first = np.flatnonzero(changes_of(of[self._order]))
        self.num = len(self._first)

    def most(self, values: Int) -> Int:
        return np.maximum.reduceat(values[self._order], self._first) if self.num else values[:0]

    def least(self, values: Int) -> Int:
        return np.minimum.reduceat(values[self._order], self._first) if self.num else values[:0]

    def count(self, which: Bool | None = None) -> Int:
        return np.bincount(self.of if which is None else self.of[which], minlength=self.num)

    def every(self, which: Bool) -> Bool:
        return self.count(~which) == 0

    def some(self, which: Bool) -> Bool:
        return self.count(which) > 0

    def distinct(self, values: Int, which: Bool | None = None) -> Int:
        of = self.of if which is None else self.of[which]
        first, _ = numbered(of, values if which is None else values[which])
        return np.bincount(of[first], minlength=self.num)
