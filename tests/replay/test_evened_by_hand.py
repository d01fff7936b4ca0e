"""What a step of two ranks takes where both do as much, held against a pencil."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops.replay.stragglers.blame import blame
from lostflops.replay.stragglers.chains import chains

MS = 1_000_000
Pieces = Sequence[tuple[int, int, str | None]]
Operation = tuple[tuple[int, int], tuple[int, int]]  # of each rank: from its arrival to its end, ms


def even(ranks: Sequence[Pieces], operations: Sequence[Operation]) -> tuple[float, float]:
    """The step as it is and evened out, ms. Null pieces are waits and transfers."""
    columns = {"start": pl.Int64, "end": pl.Int64, "kind": pl.String}
    pieces = pl.concat(
        pl.DataFrame([(a * MS, b * MS, kind) for a, b, kind in own], columns, orient="row").with_columns(
            rank=pl.lit(rank, pl.Int32)
        )
        for rank, own in enumerate(ranks)
    )
    steps = pieces.group_by("rank").agg(pl.col("start").min(), pl.col("end").max())
    rows = [
        {
            "rank": rank, "start": a * MS, "end": b * MS, "arrival": a * MS, "instance": instance,
            "last_arrival": max(a for a, _ in members) * MS, "stream": 9, "library": "gloo",
            "kind": "all-reduce", "members": 2, "bytes_in": 8 + instance,
        }
        for instance, members in enumerate(operations)
        for rank, (a, b) in enumerate(members)
    ]  # fmt: skip
    matches = pl.DataFrame(rows).with_columns(
        pl.col("rank").cast(pl.Int32),
        wait=pl.col("last_arrival") - pl.col("arrival"),
        bytes_out="bytes_in",
        peer=pl.lit(None, pl.Int32),
        correlation=pl.lit(None, pl.Int64),
    )
    job = chains(steps.with_columns(step=pl.lit(3, pl.Int64)), pieces, matches)
    assert job is not None
    own, best = blame(job).select("own", "even").row(0)
    return own / MS, best / MS


def test_what_one_rank_does_between_two_stops_is_shared_there() -> None:
    """After the all-reduce rank 0 evaluates for 60 ms, and rank 1 waits at a barrier: shared, each has 30. It
    was added to what rank 1 computes before, and rank 0 began its half after that: nothing was gained."""
    first = [(0, 10, "compute"), (10, 12, None), (12, 72, "compute"), (72, 73, None)]
    other = [(0, 10, "compute"), (10, 12, None), (12, 73, None)]
    assert even([first, other], [((10, 12), (10, 12)), ((72, 73), (12, 73))]) == (73, 43)


def test_a_thread_that_goes_on_before_the_end_of_its_transfer_is_noted_waited_for_it() -> None:
    """Rank 0 sleeps for 50 ms; rank 1 goes on after 52, which its transfer's thread notes after 54."""
    first = [(0, 50, "idle.unexplained"), (50, 52, None), (52, 62, "compute")]
    other = [(0, 52, None), (52, 62, "compute")]
    assert even([first, other], [((50, 52), (0, 54))]) == (62, 37)
