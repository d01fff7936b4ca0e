"""Which begin and which end make one slice, where a trace holds the two apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.uint64]

BEGIN, END = 1, 2  # as Perfetto's schema numbers them


def matched(track: Values, kind: Values) -> tuple[Ints, Ints]:
    """For each slice the places of its begin and its end, by begins.

    On a track slices nest. Behind a begin as many are open as before its end, so begins and ends of one depth
    take turns.
    """
    edges = np.flatnonzero((kind == BEGIN) | (kind == END))
    order = edges[np.argsort(track[edges], kind="stable")]
    opens = kind[order] == BEGIN
    first = np.r_[True, track[order][1:] != track[order][:-1]] if len(order) else np.zeros(0, np.bool_)
    depth = np.cumsum(np.where(opens, 1, -1))
    starts = np.flatnonzero(first)
    lengths = np.diff(np.r_[starts, len(order)])
    depth = depth - np.repeat((depth - np.where(opens, 1, -1))[starts], lengths)
    level = np.where(opens, depth, depth + 1)
    keyed = np.lexsort((np.arange(len(order)), level, track[order]))
    a, b = keyed[:-1], keyed[1:]
    pair = opens[a] & ~opens[b] & (level[a] == level[b]) & (track[order[a]] == track[order[b]])
    begun, ended = order[a[pair]], order[b[pair]]
    by_begin = np.argsort(begun, kind="stable")
    return begun[by_begin], ended[by_begin]
