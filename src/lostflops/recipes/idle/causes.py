"""Why the GPU was idle, gap by gap."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import with_names
from lostflops.recipes.outside_calls import outside_calls
from lostflops.tables import Frames, Launches, LibraryCalls, Operators, OsCalls, Ranges, ThreadStates

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SYNCHRONISE = "cudaStreamSynchronize"


@recipe(
    question="Why was the GPU idle?",
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
        "name": Name(
            "what the thread was at: the deepest range, operator, frame or call that covers at least "
            "half of the stretch, and the user's function around it; null where nothing does"
        ),
    },
    examples=[
        Example(
            "until the launch returns the host loads data, then dispatches; then the kernel is on its way",
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
                {"start": 20, "end": 61, "account": "idle.data_loading", "gap": 0, "name": LOADER},
                {"start": 61, "end": 64, "account": "idle.unexplained", "gap": 0, "name": None},
                {"start": 64, "end": 81, "account": "idle.launch_bound", "gap": 0, "name": "aten::mm"},
                {"start": 81, "end": 90, "account": "idle.dependency", "gap": 0, "name": None},
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
                    {"start": 2, "end": 23, "thread": 7, "name": SYNCHRONISE},
                    {"start": 36, "end": 38, "thread": 7, "name": "cudaLaunchKernel"},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 20, "end": 23, "account": "idle.host_synchronisation", "name": SYNCHRONISE},
                {"start": 23, "end": 26, "account": "idle.host_synchronisation", "name": None},
                {"start": 26, "end": 38, "account": "idle.host_synchronisation", "name": "aten::mm"},
                {"start": 38, "end": 39, "account": "idle.dependency", "name": None},
            ],
        ),
        Example(
            "a graph is captured: what the host launches meanwhile runs only when the graph does",
            given={
                "steps": [{"step": 1, "start": 0, "end": 50}],
                "kernels": [{"start": 43, "end": 50, "launch_start": 35, "launch_end": 41, "thread": 7}],
                "launches": [
                    {"start": 2, "end": 5, "thread": 7, "name": "hipStreamBeginCapture"},
                    {"start": 9, "end": 13, "thread": 7, "name": "hipLaunchKernel"},
                    {"start": 24, "end": 26, "thread": 7, "name": "hipStreamEndCapture"},
                    {"start": 35, "end": 41, "thread": 7, "name": "hipGraphLaunch"},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 0, "end": 2, "account": "idle.unexplained", "name": None},
                {"start": 2, "end": 26, "account": "idle.graph_capture", "name": "hipStreamBeginCapture"},
                {"start": 26, "end": 35, "account": "idle.unexplained", "name": None},
                {"start": 35, "end": 41, "account": "idle.launch_bound", "name": "hipGraphLaunch"},
                {"start": 41, "end": 43, "account": "idle.dependency", "name": None},
            ],
        ),
        Example(
            "a call of 1 ms is no mere launch, and a kernel that waits 1 ms waits for what is not recorded",
            given={
                "steps": [{"step": 1, "start": 0, "end": 3_000_000}],
                "kernels": [
                    {
                        "start": 2_500_000,
                        "end": 3_000_000,
                        "launch_start": 9,
                        "launch_end": 1_000_009,
                        "thread": 7,
                    },
                ],
                "launches": [{"start": 9, "end": 1_000_009, "thread": 7, "name": "cudaLaunchKernel"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"start": 0, "end": 9, "account": "idle.unexplained"},
                {"start": 9, "end": 1_000_009, "account": "idle.long_call", "name": "cudaLaunchKernel"},
                {"start": 1_000_009, "end": 2_500_000, "account": "idle.unrecorded"},
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
            expect=[{"start": 0, "end": 13, "account": "idle.unrecorded", "gap": 0}],
        ),
    ],
)
def idle_causes(
    idle_stretches: pl.LazyFrame,
    launches: Launches | None,
    operators: Operators | None,
    ranges: Ranges | None,
    frames: Frames | None,
    os_calls: OsCalls | None,
    library_calls: LibraryCalls | None,
    thread_states: ThreadStates | None,
) -> pl.LazyFrame:
    """Split every idle gap of every step by what the host was doing, with the name of the row that says so.

    Until the call that launched the work which ended the gap returned, the host was late, and each instant
    goes to what the launching thread did then. From there on the work itself was late: by its launch latency
    or another stream's work. That takes microseconds; from 1 ms on, what it waited for was not recorded.
    Where no host row covers an instant it stays unexplained.
    """
    outside = outside_calls(os_calls, library_calls, thread_states)
    return with_names(idle_stretches, launches, operators, ranges, frames, outside)
