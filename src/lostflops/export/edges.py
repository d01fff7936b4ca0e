"""The order in which slices of one lane begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lostflops.intervals import Int, nest


@dataclass(frozen=True)
class SliceEdges:
    """Begins and ends in the order of the wire: which row each belongs to, and whether it begins it."""

    row: Int
    begins: npt.NDArray[np.bool_]


def edges(start: Int, end: Int) -> SliceEdges:
    """Of rows that nest. Before a row begins stand the begins of those before it, and the ends of all of
    these but its ancestors'; before it ends also the begins and ends inside it."""
    count = len(start)
    forest = nest(start, end, np.zeros(count, np.int64))
    size = _sizes(forest.parent, forest.depth)
    place = np.arange(count)
    row = np.empty(2 * count, np.int64)
    begins = np.zeros(2 * count, np.bool_)
    begin = 2 * place - forest.depth
    row[begin] = forest.order
    begins[begin] = True
    row[begin + 2 * size - 1] = forest.order
    return SliceEdges(row, begins)


def _sizes(parent: Int, depth: Int) -> Int:
    """How many rows each has in it, itself included."""
    size = np.ones(len(parent), np.int64)
    deepest = np.argsort(-depth, kind="stable")
    for level in np.split(deepest, np.flatnonzero(np.diff(depth[deepest])) + 1):
        inner = level[parent[level] >= 0]
        np.add.at(size, parent[inner], size[inner])
    return size
