"""What each GPU does at every instant: pieces of time, over which questions about overlap are sums."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Instant
from lostflops.recipe import Example, recipe
from lostflops.tables import Collectives, Copies, Kernels


@recipe(
    question="How many kernels, collectives and copies run on each rank at every instant?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "start": Instant("start of a piece of time in which nothing begins or ends"),
        "end": Instant("its end"),
        "compute": Count("kernels running that are not communication"),
        "communication": Count("communication operations running"),
        "copies": Count("copies running that carry no communication"),
        "in_step": Count("1 inside a step that counts in means, else 0"),
    },
    examples=[
        Example(
            "an all-reduce and a copy reach beyond a matmul",
            given={
                "kernels": [
                    {"start": 0, "end": 10, "family": "gemm"},
                    {"start": 4, "end": 17, "family": "communication"},
                ],
                "collectives": [{"start": 4, "end": 17}],
                "copies": [{"start": 17, "end": 20}, {"start": 18, "end": 19}],
                "steps": [{"start": 2, "end": 30}],
            },
            expect=[
                {"rank": 0, "start": a, "end": b, "compute": k, "communication": c, "copies": m, "in_step": s}
                for a, b, k, c, m, s in (
                    (0, 2, 1, 0, 0, 0),
                    (2, 4, 1, 0, 0, 1),
                    (4, 10, 1, 1, 0, 1),
                    (10, 17, 0, 1, 0, 1),
                    (17, 18, 0, 0, 1, 1),
                    (18, 19, 0, 0, 2, 1),
                    (19, 20, 0, 0, 1, 1),
                    (20, 30, 0, 0, 0, 1),
                )
            ],
        ),
    ],
)
def gpu_activity(
    kernels: Kernels, counted_steps: pl.LazyFrame, collectives: Collectives | None, copies: Copies | None
) -> pl.LazyFrame:
    """Cut each rank's time at every edge of its work and its steps, and count what runs in each piece.

    Communication is what `collectives` says, whatever carried it: its kernels do not count as compute, nor
    its copies as copies. Pieces in which nothing runs are listed only inside steps
    that count.
    """
    return overlaid(counted_steps, kernels, collectives, copies)


def overlaid(
    counted_steps: pl.LazyFrame,
    kernels: Kernels | None,
    collectives: Collectives | None,
    copies: Copies | None,
) -> pl.LazyFrame:
    """What `gpu_activity` gives, also where no kernels were recorded."""
    nothing = counted_steps.select("rank", "start", "end").clear()
    return intervals.overlay(
        {
            "compute": nothing if kernels is None else kernels.filter(pl.col("family") != "communication"),
            "communication": nothing if collectives is None else collectives,
            "copies": nothing if copies is None else copies.filter(~pl.col("communication")),
            "in_step": intervals.union(counted_steps, ["rank"]),
        },
        by=["rank"],
    )
