"""Every idle gap, split by cause."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import idle_by_cause
from lostflops.tables import Copies, Frames, Kernels, Launches, Operators, Ranges, Ranks

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@recipe(
    question="What was the cause of each idle stretch of the GPU?",
    scope="job",
    page=False,
    whole=True,
    apart=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "start": Instant("start of the stretch"),
        "end": Instant("end of the stretch"),
        "account": Name("cause: an account of the ledger"),
        "gap": Id("number of the gap it is part of; the stretches of a gap add up to it"),
        "thread": Id("host thread that the cause was sought on; null where none was"),
    },
    examples=[
        Example(
            "until the launch returns the host loads data, then nothing; then the kernel is on its way",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 90, "end": 100, "launch_start": 77, "launch_end": 81, "thread": 7},
                ],
                "ranges": [{"start": 18, "end": 61, "thread": 7, "name": LOADER}],
                "launches": [{"start": 77, "end": 81, "thread": 7, "name": "cudaLaunchKernel"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 20, "end": 61, "account": "idle.data_loading", "gap": 0, "thread": 7},
                {"start": 61, "end": 77, "account": "idle.unexplained", "gap": 0, "thread": 7},
                {"start": 77, "end": 81, "account": "idle.launch_bound", "gap": 0, "thread": 7},
                {"start": 81, "end": 90, "account": "idle.dependency", "gap": 0, "thread": None},
            ],
        ),
    ],
)
def idle_stretches(
    idle_gaps: pl.LazyFrame,
    host_spans: pl.LazyFrame,
    backward_engines: pl.LazyFrame,
    ranks: Ranks,
    kernels: Kernels | None,
    copies: Copies | None,
    launches: Launches | None,
    operators: Operators | None,
    ranges: Ranges | None,
    frames: Frames | None,
) -> pl.LazyFrame:
    """Split every idle gap of every step by what the host was doing.

    `idle_causes` says how, and adds names.
    """
    engines = backward_engines.collect()
    return idle_by_cause(
        idle_gaps, ranks, kernels, copies, launches, host_spans, engines, operators, ranges, frames
    )
