"""How much exposed communication began late because the host waited for its device."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Time
from lostflops.naming.host_causes import cause_of
from lostflops.recipe import Example, recipe
from lostflops.tables import Collectives, Kernels, Launches

PROMPT = 100_000  # ns from its launch, within which an operation begins that waited for nothing else
OF = ["rank", "group", "size"]


def _kernel(start: int, end: int, launched: int, **more: object) -> dict[str, object]:
    launch = {"launch_start": launched, "launch_end": launched + 2, "thread": 7}
    return {"start": start, "end": end, "correlation": start, "family": "gemm", "stream": 7} | launch | more


def _gather(start: int, end: int, launched: int) -> dict[str, object]:
    return _kernel(start, end, launched, family="communication", stream=9)


GATHERS = ((3, 13, 0), (28, 48, 5), (90, 130, 84), (150, 170, 136))


@recipe(
    question="How much exposed communication began late because the CPU waited for the GPU?",
    scope="job",
    page=False,
    whole=True,
    apart=True,
    columns={
        "rank": Id("rank"),
        "step": Id("step number"),
        "time": Time(
            "exposed time of gathers that could have run while the CPU waited for the GPU before their launch"
        ),
    },
    examples=[
        Example(
            "the third gather is exposed for 30 ns; the host waited 25 ns for the device before it issued it",
            given={
                "steps": [{"step": 2, "start": 0, "end": 200}],
                "kernels": [
                    *(_gather(*at) for at in GATHERS),
                    _kernel(13, 31, 2),
                    _kernel(48, 80, 9),
                    _kernel(120, 149, 88),
                    _kernel(170, 190, 138),
                ],
                "collectives": [
                    {"start": start, "end": end, "correlation": start, "kind": "all-gather", "group": "dp"}
                    | {"bytes_out": 64, "stream": 9}
                    for start, end, _ in GATHERS
                ],
                "launches": [{"start": 57, "end": 82, "thread": 7, "name": "cudaStreamSynchronize"}],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[{"rank": 0, "step": 2, "time": 25}],
        ),
    ],
)
def communication_held_back(
    device_runs: pl.LazyFrame, kernels: Kernels, collectives: Collectives, launches: Launches
) -> pl.LazyFrame:
    """Add up what gathers expose that could have run earlier, had the host not waited before it issued them.

    A gather counts where it begins as soon as it is launched, so that only the host was late, and for no more
    than the host waited for the device since the operation before it on its stream, in the same step. It must
    not need what the device computed meanwhile: others like it have to begin before computation that was
    launched earlier has ended, and no optimizer may write what it gathers.
    """
    runs = device_runs.filter(pl.col("account").is_not_null()).collect()
    work = (
        kernels.filter(pl.col("launch_start").is_not_null())
        .select(
            "rank", "start", "end", "stream", "correlation", "launch_start", "launch_end", "thread", "family"
        )
        .collect()
    )
    talks = pl.col("family") == "communication"
    computes = work.filter(~talks).select("rank", "launch_start", _until="end")
    before = (
        work.filter(talks)
        .sort("rank", "stream", "start")
        .with_columns(previous=pl.col("end").shift(1).over("rank", "stream"))
    )
    windows = (
        device_runs.group_by("rank", "step").agg(opens=pl.col("start").min(), closes=pl.col("end").max())
    ).collect()
    gathers = (
        collectives.filter(pl.col("kind").cast(pl.String) == "all-gather")
        .select("rank", "correlation", "group", size=pl.max_horizontal("bytes_in", "bytes_out"))
        .collect()
        .drop_nulls("correlation")
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
        .join(before, on=["rank", "correlation"])
        .sort("start")
        .join_asof(
            windows.sort("opens"), left_on="start", right_on="opens", by="rank", check_sortedness=False
        )
        .filter(pl.col("start") < pl.col("closes"))
        .sort("launch_start")
        .join_asof(computes.sort("launch_start"), on="launch_start", by="rank", check_sortedness=False)
        .sort("rank", "start")
        .with_columns(beside=(pl.col("_until") > pl.col("start")).fill_null(False).any().over(OF))
        .filter(
            "beside",
            pl.col("previous") > pl.col("opens"),
            pl.col("start") - pl.max_horizontal("launch_end", "previous") <= PROMPT,
        )
    )
    bare = runs.filter(
        pl.col("account").cast(pl.String).is_in(["communication.transfer", "communication.exposed"])
    )
    names = launches.select(pl.col("name").unique()).collect()["name"].cast(pl.String).drop_nulls().to_list()
    waits = cause_of(names, "launch").filter(pl.col("cause") == "host_synchronisation")["name"].to_list()
    calls = launches.filter(pl.col("name").cast(pl.String).is_in(waits))
    calls = calls.join(gathers.lazy().select("rank", "thread").unique(), on=["rank", "thread"], how="semi")
    writes = kernels.filter(pl.col("family") == "optimizer")
    yes = pl.lit(True)
    exposed = intervals.inside(gathers.lazy(), intervals.union(bare.lazy(), ["rank"]), {"exposed": yes})
    earlier = exposed.with_columns(start="previous", end=pl.max_horizontal("previous", "launch_start"))
    held = intervals.inside(earlier, intervals.union(calls, ["rank"]), {"held": yes})
    free = intervals.inside(held, intervals.union(writes, ["rank"]), {"written": yes})
    return (
        free.filter(pl.col("written") == 0)
        .group_by("rank", "step")
        .agg(time=pl.min_horizontal("exposed", "held").sum())
        .filter(pl.col("time") > 0)
        .sort("rank", "step")
    )
