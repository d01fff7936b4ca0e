"""Rows in the order of their group and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def row_order(rows: pl.DataFrame, by: list[str]) -> Int:
    """The positions of rows sorted by some columns; equal rows stay in the order in which they stand.

    Starts and ends are mostly in order already. NumPy's sort merges such runs, in a fifth of the time that
    Polars takes for several keys.
    """
    keys = [plain(rows[c]) for c in reversed(by)]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        position = pl.int_range(pl.len(), dtype=pl.Int64).sort_by(by, maintain_order=True)
        return rows.select(position).to_series().to_numpy()
    return np.lexsort(known)


def changes(rows: pl.DataFrame, by: Sequence[str]) -> Bool:
    """Where a row begins another group than the row before it; the first row begins one."""
    begins = np.zeros(rows.height, dtype=np.bool_)
    begins[:1] = True
    for name in by:
        column = rows[name]
        key = plain(column)
        if key is None:
            begins[1:] |= column.ne_missing(column.shift()).to_numpy()[1:]
        else:
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
    if isinstance(column.dtype, (pl.Boolean, pl.Enum)):
        return column.to_physical().to_numpy()
    return None


def group_ids(frame: pl.DataFrame, by: Sequence[str]) -> Int:
    """A dense integer per distinct combination of `by`, in no particular order."""
    if not by:
        return np.zeros(frame.height, dtype=np.int64)
    ids: Any = frame.select(pl.struct(list(by)).rank("dense")).to_series().cast(pl.Int64).to_numpy()
    return ids
