"""Algebra on sets of half-open intervals of integers; knows nothing of traces.

Everything rests on one sweep. Each interval becomes two edges, +1 at its start and -1 at its end; sorted by
time, the running sum is the number of intervals open between one edge and the next. Every set of intervals
returns its count to zero after its last edge, so one running sum over frames sorted by group and time serves
all groups at once, and nothing loops over rows. All results are exact integers.

Frames have int64 columns `start` and `end`; intervals with `end <= start` hold no time and count for nothing.
`by` names the grouping columns: intervals of different groups never meet.
"""

from __future__ import annotations

from lostflops.intervals.nesting import Forest, innermost, innermost_at, less_children, nest, self_pieces
from lostflops.intervals.order import (
    NEVER,
    Int,
    at_most,
    by_name,
    changes,
    changes_of,
    each_of,
    filled,
    group_ids,
    numbered,
    one_axis,
    row_order,
    running_most,
    runs,
    sorted_by,
)
from lostflops.intervals.sets import (
    coverage,
    cut,
    in_order,
    inside,
    overlay,
    paint,
    paint_stacked,
    painted,
    touching_lengths,
    union,
    united,
    within,
)

__all__ = [
    "NEVER",
    "Forest",
    "Int",
    "at_most",
    "by_name",
    "changes",
    "changes_of",
    "coverage",
    "cut",
    "each_of",
    "filled",
    "group_ids",
    "in_order",
    "innermost",
    "innermost_at",
    "inside",
    "less_children",
    "nest",
    "numbered",
    "one_axis",
    "overlay",
    "paint",
    "paint_stacked",
    "painted",
    "row_order",
    "running_most",
    "runs",
    "self_pieces",
    "sorted_by",
    "touching_lengths",
    "union",
    "united",
    "within",
]
