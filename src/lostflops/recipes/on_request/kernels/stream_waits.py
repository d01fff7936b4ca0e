"""What each stream waits for between the kernels and copies that run on it."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies, Kernels

LANE = ("rank", "device", "stream")


@recipe(
    question="What does each stream wait for between its kernels?",
    scope="rank",
    plot=Bars(x="waits_for", y=("time",)),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "stream": Id("stream"),
        "waits_for": Name(
            "host: the next launch began when the stream had nothing left to do; next kernel: it was queued "
            "and the gap is short; other: it was queued and something held it back; unknown: its launch was "
            "not recorded"
        ),
        "gaps": Count("gaps between the kernels and copies of the stream"),
        "time": Time("their durations added up"),
        "stream_share": Share("time / all gaps of the stream"),
        "median": Typical("median gap"),
        "longest": Typical("longest gap"),
    },
    examples=[
        Example(
            "two kernels are launched too late, one waits in the queue, a copy follows at once",
            given={
                "kernels": [
                    {"start": a, "end": b, "device": 3, "stream": 7, "launch_start": launched}
                    for a, b, launched in (
                        (0, 1_000, -9),
                        (6_000, 7_000, 3_000),
                        (17_000, 18_000, 4_000),
                        (20_000, 21_000, 19_500),
                    )
                ],
                "copies": [{"start": 18_500, "end": 19_000, "device": 3, "stream": 7, "launch_start": 4_500}],
            },
            expect=[
                {"rank": 0, "device": 3, "stream": 7, "waits_for": what, "gaps": gaps, "time": ns}
                | {"stream_share": ns / 16_500, "median": median, "longest": longest}
                for what, gaps, ns, median, longest in (
                    ("other", 1, 10_000, 10_000, 10_000),
                    ("host", 2, 6_000, 3_000, 5_000),
                    ("next kernel", 1, 500, 500, 500),
                )
            ],
        ),
    ],
)
def stream_waits(
    kernels: Kernels,
    copies: Copies | None,
    *,
    short_ns: Annotated[
        int, "longest gap before queued work that one kernel needs to follow another, ns"
    ] = 2_000,
) -> pl.LazyFrame:
    """Add up the gaps of each stream over the whole recording by what the next piece of work waited for.

    How to read it: a stream that waits for the host is starved: `idle-summary` names what the host was at.
    One that waits for something else waits for another stream's event, or for room on the GPU.

    Limits: a stream may wait while others work, so the times of all streams together are several times what
    the GPU idles; `idle-summary` tells that. Holistic Trace Analysis compares its limit of 30 ns with
    microseconds: `--short-ns 30000` gives its figures.

    What to try: `launch-latency` for how far the host is ahead; `gpu-overlap` for which streams run together.
    """
    columns = (*LANE, "start", "end", "launch_start")
    work = [table.select(columns) for table in (kernels, copies) if table is not None]
    free = pl.col("end").cum_max().shift().over(LANE)
    gap, launched = pl.col("start") - pl.col("_free"), pl.col("launch_start")
    waits_for = (
        pl.when(launched.is_null())
        .then(pl.lit("unknown"))
        .when(launched > pl.col("_free"))
        .then(pl.lit("host"))
        .when(pl.col("time") < short_ns)
        .then(pl.lit("next kernel"))
        .otherwise(pl.lit("other"))
    )
    time = pl.col("time")
    return (
        pl.concat(work)
        .sort(*LANE, "start", "end")
        .with_columns(_free=free)
        .with_columns(time=gap)
        .filter(time > 0)
        .group_by(*LANE, waits_for=waits_for)
        .agg(
            gaps=pl.len().cast(pl.Int64),
            median=time.median().round().cast(pl.Int64),
            longest=time.max(),
            time=time.sum(),
        )
        .with_columns(stream_share=time / time.sum().over(LANE))
        .select(*stream_waits.columns)
        .sort(*LANE, "time", "waits_for", descending=[False, False, False, True, False])
    )
