"""What ranks wait for among each other: nobody's collective moves data before the last rank is there."""

from __future__ import annotations

import numpy as np
import polars as pl

from .edges import Edges, Int, Kind, ends, joined, starts

PLACE = ("rank", "stream", "start", "end")


def collectives(
    operations: pl.DataFrame, matched: pl.DataFrame | None, points: int
) -> tuple[Edges, Int, Int]:
    """Edges of the job's matched collectives; `operations` are all ranks', with their number `operation`.

    Each has a join, one of the points from `points` on, at which all members have arrived. A member that
    waited ends `transfer` ns after that. Also given: the joins' measured times, and the operations whose own
    length is replaced by that.
    """
    nothing = np.zeros(0, np.int64)
    if matched is None or not matched["instance"].drop_nulls().len():
        return joined([]), nothing, nothing
    rows = (
        matched.filter(pl.col("instance").is_not_null())
        .select(*PLACE, "instance", "arrival", "last_arrival", "transfer", "members")
        .join(
            operations.filter(pl.col("communication").fill_null(False))
            .select(*PLACE, "operation")
            .unique(PLACE, keep="first", maintain_order=True),
            on=PLACE,
            how="inner",
            nulls_equal=True,
        )
        # An instance counts only when all its members are operations of the graph.
        .with_columns(_here=pl.len().over("instance"))
        .filter((pl.col("_here") == pl.col("members")) & (pl.col("members") > 1))
        .sort("instance", "operation")
    )
    if not rows.height:
        return joined([]), nothing, nothing
    join = points + rows["instance"].rank("dense").cast(pl.Int64).to_numpy() - 1
    operation, transfer = rows["operation"].to_numpy(), rows["transfer"].fill_null(-1).to_numpy()
    begins, last = rows["start"].to_numpy(), rows["last_arrival"].to_numpy()
    waited = transfer >= 0
    # The one who comes last may start a little after it arrived, so the join is where all have started.
    at = np.zeros(join.max() - points + 1, np.int64)
    np.maximum.at(at, join - points, np.maximum(begins, last))
    arrive = Edges(starts(operation), join, at[join - points] * 0, np.full(len(join), Kind.ARRIVE, np.int8))
    member_end = rows["end"].to_numpy()
    lag = member_end - at[join - points]
    waited &= lag >= 0
    leave = Edges(
        join[waited], ends(operation[waited]), lag[waited], np.full(int(waited.sum()), Kind.TRANSFER, np.int8)
    )
    return joined([arrive, leave]), at, operation[waited]
