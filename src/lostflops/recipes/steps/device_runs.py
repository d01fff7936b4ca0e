"""Each step as runs of one account: what the ledger adds up, before idle time has a cause."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import busy_and_gaps
from lostflops.tables import Copies, Kernels, Steps


@recipe(
    question="What did each rank's GPU do at every instant of every step?",
    scope="job",
    page=False,
    whole=True,
    apart=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the run"),
        "end": Instant("end of the run"),
        "account": Name("account of the ledger; null while the device is idle"),
    },
    examples=[
        Example(
            "compute first, then what communication and copies add to it",
            given={
                "steps": [{"step": 3, "start": 0, "end": 30}],
                "kernels": [
                    {"start": 4, "end": 9, "family": "gemm"},
                    {"start": 7, "end": 12, "family": "communication"},
                ],
                "copies": [{"start": 11, "end": 19}],
                "collectives": [{"start": 7, "end": 12}],
                "ranks": [{}],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 0, "end": 4, "account": None},
                {"rank": 0, "step": 3, "start": 4, "end": 9, "account": "compute"},
                {"rank": 0, "step": 3, "start": 9, "end": 12, "account": "communication.exposed"},
                {"rank": 0, "step": 3, "start": 12, "end": 19, "account": "copy"},
                {"rank": 0, "step": 3, "start": 19, "end": 30, "account": None},
            ],
        ),
        Example(
            "what a rank waits for another is apart from the transfer",
            given={
                "steps": [{"step": 3, "start": 0, "end": 30}, {"rank": 1, "step": 3, "start": 12, "end": 29}],
                "kernels": [],
                "collectives": [
                    {"start": 5, "end": 25, "kind": "all-reduce", "bytes_in": 8},
                    {"rank": 1, "start": 18, "end": 26, "kind": "all-reduce", "bytes_in": 8},
                ],
                "ranks": [{"world_size": 2}, {"rank": 1, "world_size": 2}],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 0, "end": 5, "account": None},
                {"rank": 0, "step": 3, "start": 5, "end": 18, "account": "communication.wait"},
                {"rank": 0, "step": 3, "start": 18, "end": 25, "account": "communication.transfer"},
                {"rank": 0, "step": 3, "start": 25, "end": 30, "account": None},
                {"rank": 1, "step": 3, "start": 12, "end": 18, "account": None},
                {"rank": 1, "step": 3, "start": 18, "end": 26, "account": "communication.transfer"},
                {"rank": 1, "step": 3, "start": 26, "end": 29, "account": None},
            ],
        ),
    ],
)
def device_runs(
    steps: Steps,
    kernels: Kernels | None,
    copies: Copies | None,
    communication_matches: pl.LazyFrame | None,
) -> pl.LazyFrame:
    """Cut every step into maximal runs of one account, the first that applies to each instant."""
    return busy_and_gaps(steps, kernels, copies, communication_matches)
