"""Where the repeated blocks of a pass end: the layers of a model, told by the names of its kernels alone."""

from __future__ import annotations

import numpy as np

from .dependencies.edges import Int

LEAST_ALIKE = 0.9  # of the rows of a block that are called like those of the next


def block_ends(names: Int) -> Int:
    """The last row of each block of rows that follow each other, `names` as numbers; none where none repeat.

    Blocks follow each other at the distance at which a name returns that each holds once. What stands before
    the first or after the last of a run of blocks is in none.
    """
    found = list[int]()
    for at, distance in _runs(names):
        before = _same(names, at[0], at[1], -1, distance - 1)
        found += (at + distance - 1 - before).tolist()
    return np.minimum(np.array(found, np.int64), len(names) - 1)


def _runs(names: Int) -> list[tuple[Int, int]]:
    """Runs of a name that each block holds once: where it stands, and at which distance; two at least."""
    number, counts = np.unique(names, return_counts=True)
    for count in np.unique(counts[counts > 1]).tolist():
        for name in number[counts == count].tolist():
            at = np.flatnonzero(names == name)
            distances, times = np.unique(np.diff(at), return_counts=True)
            distance = int(distances[np.argmax(times)])
            parts = np.split(at, np.flatnonzero(np.diff(at) != distance) + 1)
            runs = [(part, distance) for part in parts if len(part) > 1]
            if runs and all(_alike(names, part, distance) for part, _ in runs):
                return runs
        if count > 1 and counts[counts == count].sum() > len(names) // 2:
            break
    return []


def _alike(names: Int, at: Int, distance: int) -> bool:
    """Whether what lies between one place and the next is called alike from each to the next."""
    whole = names[at[0] : at[-1]]
    if len(whole) <= distance:
        return True
    return float((whole[distance:] == whole[:-distance]).mean()) >= LEAST_ALIKE


def _same(names: Int, one: int, other: int, way: int, most: int) -> int:
    """How many rows before (`way` -1) or after both places are called the same, `most` at most."""
    for n in range(1, most + 1):
        if one + way * n < 0 or names[one + way * n] != names[other + way * n]:
            return n - 1
    return most
