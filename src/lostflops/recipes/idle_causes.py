"""Why the GPU was idle, gap by gap."""

from __future__ import annotations

import polars as pl

from lostflops.ledger import idle_by_cause
from lostflops.recipe import Example, recipe
from lostflops.tables import Copies, Frames, Kernels, Launches, Operators, Ranges, Ranks

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@recipe(
    question="Why was the GPU idle?",
    scope="job",
    page=False,
    whole=True,
    columns={
        "rank": "rank",
        "step": "step number",
        "start": "start of the stretch, ns",
        "end": "end of the stretch, ns",
        "account": "cause: an account of the ledger",
        "gap": "number of the gap it is part of; the stretches of a gap add up to it",
    },
    examples=[
        Example(
            "before the launch the host loads data, then dispatches; after it the kernel is on its way",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 90, "end": 100, "launch_start": 77, "launch_end": 81, "thread": 7},
                ],
                "ranges": [{"start": 18, "end": 61, "thread": 7, "name": LOADER}],
                "operators": [{"start": 64, "end": 85, "thread": 7, "name": "aten::mm"}],
                "launches": [{"start": 77, "end": 81, "thread": 7, "name": "cudaLaunchKernel"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 20, "end": 61, "account": "idle.data_loading", "gap": 0},
                {"start": 61, "end": 64, "account": "idle.unexplained", "gap": 0},
                {"start": 64, "end": 77, "account": "idle.launch_bound", "gap": 0},
                {"start": 77, "end": 90, "account": "idle.dependency", "gap": 0},
            ],
        ),
        Example(
            "a host that waited for the device pays for it until the next launch",
            given={
                "steps": [{"step": 1, "start": 0, "end": 50}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 39, "end": 50, "launch_start": 36, "launch_end": 38, "thread": 7},
                ],
                "operators": [{"start": 26, "end": 38, "thread": 7, "name": "aten::mm"}],
                "launches": [
                    {"start": 2, "end": 23, "thread": 7, "name": "cudaStreamSynchronize"},
                    {"start": 36, "end": 38, "thread": 7, "name": "cudaLaunchKernel"},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 20, "end": 23, "account": "idle.host_synchronisation", "gap": 0},
                {"start": 23, "end": 26, "account": "idle.host_synchronisation", "gap": 0},
                {"start": 26, "end": 36, "account": "idle.host_synchronisation", "gap": 0},
                {"start": 36, "end": 39, "account": "idle.dependency", "gap": 0},
            ],
        ),
        Example(
            "work whose launch was not recorded says nothing of the host",
            given={
                "steps": [{"step": 1, "start": 0, "end": 30}],
                "kernels": [{"start": 13, "end": 30}],
                "operators": [{"start": 0, "end": 9, "thread": 7, "name": "aten::mm"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[{"start": 0, "end": 13, "account": "idle.unexplained", "gap": 0}],
        ),
    ],
)
def idle_causes(
    device_runs: pl.LazyFrame,
    ranks: Ranks,
    kernels: Kernels | None,
    copies: Copies | None,
    launches: Launches | None,
    operators: Operators | None,
    ranges: Ranges | None,
    frames: Frames | None,
) -> pl.LazyFrame:
    """Split every idle gap of every step by what the host was doing.

    From the gap's start to the launch of the work that ended it the host was late, and each instant goes to
    what the launching thread did then. From the launch on, the work itself was late: its launch latency, or
    another stream's work that it had to wait for. Where no host row covers an instant it stays unexplained.
    """
    gaps = device_runs.filter(pl.col("account").is_null()).drop("account")
    return idle_by_cause(gaps, ranks, kernels, copies, launches, operators, ranges, frames)
