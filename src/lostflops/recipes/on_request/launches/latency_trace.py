"""Every launch: call, queue and kernel."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Flag, Id, Instant, Name, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import Kernels


@recipe(
    question="How long did each launch take: in its call, in the queue, as a kernel?",
    scope="rank",
    plot=Points(x="launch_start", y="queue", log=True),
    columns={
        "rank": Id("rank"),
        "launch_start": Instant("start of the launching call"),
        "thread": Id("thread of the call"),
        "device": Id("GPU of the kernel"),
        "stream": Id("stream of the kernel"),
        "name": Name("kernel name"),
        "correlation": Id("id shared by call and kernel"),
        "api": Time("duration of the call"),
        "queue": Time("from the call's end to the kernel's start; 0 where the kernel begins before that"),
        "kernel": Time("duration of the kernel"),
        "total": Time("from the call's start to the end of both"),
        "before_launch": Flag("the kernel seems to begin before its call: the clocks disagree"),
    },
    examples=[
        Example(
            "one kernel waits in the queue, one begins while its call returns, one has no call",
            given={
                "kernels": [
                    {
                        "start": 30,
                        "end": 50,
                        "launch_start": 4,
                        "launch_end": 9,
                        "thread": 1,
                        "stream": 7,
                        "device": 2,
                    }
                    | {"name": "mm", "correlation": 61},
                    {"start": 62, "end": 73, "launch_start": 60, "launch_end": 64, "thread": 1, "stream": 7}
                    | {"name": "norm", "correlation": 65},
                    {"start": 80, "end": 90, "name": "lost"},
                ]
            },
            expect=[
                {"rank": 0, "launch_start": 4, "thread": 1, "device": 2, "stream": 7, "name": "mm"}
                | {"correlation": 61}
                | {"api": 5, "queue": 21, "kernel": 20, "total": 46, "before_launch": False},
                {"rank": 0, "launch_start": 60, "thread": 1, "stream": 7, "name": "norm", "correlation": 65}
                | {"api": 4, "queue": 0, "kernel": 11, "total": 13, "before_launch": False},
            ],
        ),
    ],
)
def launch_latency_trace(kernels: Kernels) -> pl.LazyFrame:
    """List every kernel whose launch was recorded, in the order of the launches.

    How to read it: a long queue is good: the host is ahead. Queues near zero for many rows are a host that
    cannot keep up.

    Limits: kernels of one CUDA graph share their launch, so their queue holds the kernels before them.

    What to try: `launch-latency` for medians, `gpu-gaps` for what short queues cost.
    """
    begin, end = pl.col("launch_start"), pl.col("launch_end")
    return (
        kernels.filter(begin.is_not_null() & end.is_not_null())
        .with_columns(
            api=end - begin,
            queue=(pl.col("start") - end).clip(0),
            kernel=pl.col("end") - pl.col("start"),
            total=pl.max_horizontal("end", end) - begin,
            before_launch=pl.col("start") < begin,
        )
        .select(*launch_latency_trace.columns)
        .sort("rank", "launch_start", "correlation", "device", "stream", "name", "kernel", "queue")
    )
