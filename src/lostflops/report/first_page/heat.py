"""The ledger as a picture: one number per account, rank and step, packed small enough for one page."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from .budget import color, in_order, words

MOST_RANKS = 1024  # rows of the picture: at least a pixel each
MOST_STEPS = 1000
MOST_BYTES = 700_000
DIGITS_KEPT = 6  # of the longest step, when the picture would be too large
Planes = npt.NDArray[np.int64]  # [account, rank, step], ns


@dataclass(frozen=True)
class Heat:
    """A picture of the ledger, its rows and columns labelled.

    `cells` is base64 of gzip of little-endian uint32 `[account, rank, step]`, in units of `quantum` ns; a
    (rank, step) that is zero in every account was not recorded. `notices` say what was given up for size.
    """

    ranks: list[str]
    steps: list[str]
    accounts: list[dict[str, str]]
    quantum: int
    cells: str
    notices: list[str]


def heat(ledger: pl.DataFrame, on_host: bool = False) -> Heat | None:
    """The picture of a step ledger, or None when it is empty."""
    if not ledger.height:
        return None
    planes, names, ranks, steps = _planes(ledger)
    notices: list[str] = []
    by_rank, by_step = -(-len(ranks) // MOST_RANKS), -(-len(steps) // MOST_STEPS)
    longest = int(planes.sum(axis=0).max())
    quantum = 10 ** max(0, len(str(longest // 2**32)) if longest >= 2**32 else 0)
    packed = _packed(_binned(planes, by_rank, by_step), quantum)
    if len(packed) > MOST_BYTES:
        if sum(name.startswith("idle.") for name in names) > 1:
            planes, names = _with_idle_as_one(planes, names)
            notices.append("the causes of idle time are shown as one")
        quantum = max(quantum, 10 ** max(0, len(str(longest)) - DIGITS_KEPT))
        packed = _packed(_binned(planes, by_rank, by_step), quantum)
    while len(packed) > MOST_BYTES:
        fewer = 1 + len(packed) // MOST_BYTES
        if by_step < len(steps):
            by_step = min(by_step * fewer, len(steps))
        else:
            by_rank *= fewer
        packed = _packed(_binned(planes, by_rank, by_step), quantum)
    if quantum > 1:
        notices.append(f"times are rounded to {quantum:,} ns")
    if by_rank > 1:
        notices.append(f"a row is the mean of {by_rank} ranks")
    if by_step > 1:
        notices.append(f"a column is the mean of {by_step} steps")
    return Heat(
        _bin_labels(ranks, by_rank),
        _bin_labels(steps, by_step),
        [_described(name, on_host) for name in names],
        quantum,
        packed,
        notices,
    )


def _planes(ledger: pl.DataFrame) -> tuple[Planes, list[str], list[int], list[int]]:
    names = in_order(ledger["account"].unique().to_list())
    ranks: list[int] = ledger["rank"].unique().sort().to_list()
    steps: list[int] = ledger["step"].unique().sort().to_list()
    where = (
        ledger["account"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy(),
        np.searchsorted(ranks, ledger["rank"].to_numpy()),
        np.searchsorted(steps, ledger["step"].to_numpy()),
    )
    planes = np.zeros((len(names), len(ranks), len(steps)), dtype=np.int64)
    np.add.at(planes, where, ledger["ns"].to_numpy())
    return planes, names, ranks, steps


def _with_idle_as_one(planes: Planes, names: list[str]) -> tuple[Planes, list[str]]:
    is_idle = np.array([name.partition(".")[0] == "idle" for name in names])
    rest = [name for name in names if name.partition(".")[0] != "idle"]
    return np.concatenate([planes[~is_idle], planes[is_idle].sum(axis=0, keepdims=True)]), [*rest, "idle"]


def _binned(planes: Planes, by_rank: int, by_step: int) -> Planes:
    """Means over blocks of ranks and steps; what was not recorded counts for nothing."""
    if by_rank == by_step == 1:
        return planes
    rows: npt.NDArray[np.int64] = np.arange(0, planes.shape[1], by_rank, dtype=np.int64)
    columns: npt.NDArray[np.int64] = np.arange(0, planes.shape[2], by_step, dtype=np.int64)
    sums = np.add.reduceat(np.add.reduceat(planes, rows, axis=1), columns, axis=2)
    recorded = (planes.sum(axis=0) > 0).astype(np.int64)
    counts = np.add.reduceat(np.add.reduceat(recorded, rows, axis=0), columns, axis=1)
    return sums // np.maximum(counts, 1)


def _bin_labels(numbers: list[int], by: int) -> list[str]:
    blocks = [numbers[i : i + by] for i in range(0, len(numbers), by)]
    return [str(b[0]) if len(b) == 1 else f"{b[0]} to {b[-1]}" for b in blocks]


def _packed(planes: Planes, quantum: int) -> str:
    cells = ((planes + quantum // 2) // quantum).astype("<u4").tobytes()
    return base64.b64encode(gzip.compress(cells, compresslevel=6, mtime=0)).decode()


def _described(name: str, on_host: bool) -> dict[str, str]:
    group = name.partition(".")[0]
    label = words(name, on_host).label
    if name != group:
        label = f"{words(group, on_host).label}: {label}"
    return {"name": name, "group": group, "label": label, "color": color(name)}
