"""Every gap in the work of a rank's device, with a number."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant
from lostflops.recipe import Example, recipe


@recipe(
    question="When was each rank's GPU idle, in which step?",
    scope="job",
    page=False,
    whole=True,
    apart=True,
    numbers="gap",
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the gap"),
        "end": Instant("end of the gap"),
        "gap": Id("its number, in the order of ranks and time"),
    },
    examples=[
        Example(
            "before a kernel and after it; then a gap of another rank",
            given={
                "steps": [
                    {"step": 3, "start": 0, "end": 30},
                    {"rank": 2, "step": 4, "start": 1, "end": 9},
                ],
                "kernels": [
                    {"start": 5, "end": 12, "family": "gemm"},
                    {"rank": 2, "start": 1, "end": 7, "family": "gemm"},
                ],
            },
            expect=[
                {"rank": 0, "step": 3, "start": 0, "end": 5, "gap": 0},
                {"rank": 0, "step": 3, "start": 12, "end": 30, "gap": 1},
                {"rank": 2, "step": 4, "start": 7, "end": 9, "gap": 2},
            ],
        ),
    ],
)
def idle_gaps(device_runs: pl.LazyFrame) -> pl.LazyFrame:
    """List the gaps; one that crosses the end of a step is one for each step."""
    idle = device_runs.filter(pl.col("account").is_null(), pl.col("end") > pl.col("start"))
    numbered = idle.select("rank", "step", "start", "end").sort("rank", "start").with_row_index("gap")
    return numbered.select(*idle_gaps.columns)
