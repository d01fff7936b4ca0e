"""When the host was at what could leave the GPU idle, whether it did or not."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id, Instant, Name
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import host_by_cause
from lostflops.recipes.outside_calls import outside_calls
from lostflops.tables import (
    Copies,
    Frames,
    Kernels,
    Launches,
    LibraryCalls,
    Operators,
    OsCalls,
    Ranges,
    Ranks,
    Steps,
    ThreadStates,
)

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@recipe(
    question="When did the CPU do what can leave the GPU idle?",
    scope="rank",
    page=False,
    whole=True,
    columns={
        "rank": Id("rank"),
        "thread": Id("thread that launches work, or the rank's main thread"),
        "account": Name("cause: an account of the ledger"),
        "start": Instant("start of a stretch in which the thread is at it"),
        "end": Instant("its end"),
    },
    examples=[
        Example(
            "the loader runs beside a kernel, then the host dispatches with a wait for the device in between",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [
                    {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7},
                    {"start": 90, "end": 100, "launch_start": 77, "launch_end": 81, "thread": 7},
                ],
                "ranges": [
                    {"start": 3, "end": 61, "thread": 7, "name": LOADER},
                    {"start": 3, "end": 61, "thread": 8, "name": "gc.collect"},
                ],
                "operators": [{"start": 64, "end": 85, "thread": 7, "name": "aten::mm"}],
                "launches": [
                    {"start": 66, "end": 70, "thread": 7, "name": "cudaStreamSynchronize"},
                    {"start": 77, "end": 81, "thread": 7, "name": "cudaLaunchKernel"},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"thread": 7, "account": "idle.data_loading", "start": 3, "end": 61},
                {"thread": 7, "account": "idle.host_synchronisation", "start": 66, "end": 70},
                {"thread": 7, "account": "idle.launch_bound", "start": 64, "end": 66},
                {"thread": 7, "account": "idle.launch_bound", "start": 70, "end": 85},
            ],
        ),
        Example(
            "what is inside another counts for both, and each thread that launches by itself",
            given={
                "steps": [{"step": 1, "start": 0, "end": 100}],
                "kernels": [{"start": 90, "end": 100, "launch_start": 77, "launch_end": 81, "thread": 9}],
                "ranges": [
                    {"start": 10, "end": 40, "thread": 7, "name": LOADER},
                    {"start": 20, "end": 25, "thread": 7, "name": "gc.collect"},
                    {"start": 35, "end": 50, "thread": 9, "name": LOADER},
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"thread": 7, "account": "idle.data_loading", "start": 10, "end": 40},
                {"thread": 7, "account": "idle.garbage_collection", "start": 20, "end": 25},
                {"thread": 9, "account": "idle.data_loading", "start": 35, "end": 50},
            ],
        ),
    ],
)
def host_spans(
    steps: Steps,
    ranks: Ranks,
    kernels: Kernels | None,
    copies: Copies | None,
    launches: Launches | None,
    backward_engines: pl.LazyFrame,
    operators: Operators | None,
    ranges: Ranges | None,
    frames: Frames | None,
    os_calls: OsCalls | None,
    library_calls: LibraryCalls | None,
    thread_states: ThreadStates | None,
) -> pl.LazyFrame:
    """List when the threads that launch work, and each rank's main thread, were at each cause of idleness.

    What has a name counts for all that it and the rows inside it name. What has none is long calls,
    dispatching or other work, as far as steps go.

    Idle time says what the device paid for a cause. What the host spends on it while the device is busy costs
    nothing by itself, but without it the host would run further ahead, and that hides other gaps.
    """
    engines = backward_engines.collect()
    outside = outside_calls(os_calls, library_calls, thread_states)
    return host_by_cause(steps, ranks, kernels, copies, launches, engines, operators, ranges, frames, outside)
