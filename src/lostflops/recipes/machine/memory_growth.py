"""Whether tensors pile up from step to step, by the allocator's own totals."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Bytes, Count, Flag, Id
from lostflops.finding import Finding
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.tables import Allocations, Ranks, Steps
from lostflops.units import written

from .log_memory_growth import KEPT, KEPT_TENSORS

FEWEST = 4  # steps, each of which keeps more than the one before
ALIKE = 2  # times the mean growth, at most, and no less than one by that
LEAST, WORTH_SAYING = 1 << 20, 0.001  # bytes per step, or of what is held
MAY_BE_CACHE = "A cache that still fills, such as keys and values of a generation, grows like this too."


def _events(*levels: int, device: int | None = 3) -> list[dict[str, int | None]]:
    """In each step of 10 ns 400 bytes come and go above these levels."""
    told = [
        (10 * n + at, level + more, more or -400)
        for n, level in enumerate(levels)
        for at, more in ((2, 400), (7, 0))
    ]
    at = {"device": device}
    return [{"start": t, "end": t, "allocated": level, "bytes": size} | at for t, level, size in told]


def _steps(number: int) -> list[dict[str, int | bool]]:
    return [
        {"step": 5 + n, "start": 10 * n + 4, "end": 10 * n + 14, "complete": True}
        | {"host_start": 10 * n, "host_end": 10 * n + 9}
        for n in range(number)
    ]


@recipe(
    question="Do tensors pile up in memory from step to step?",
    scope="rank",
    plot=Bars(x="rank", y=("per_step",)),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU; null for memory of the host"),
        "steps": Count("whole steps with events of the allocator; of the host without the first"),
        "first": Bytes("least that was allocated in the first of them"),
        "last": Bytes("least that was allocated in the last"),
        "most": Bytes("most that was allocated in the last"),
        "per_step": Bytes("growth of the least per step; negative where it shrinks"),
        "steady": Flag("it grows in each step, by about as much"),
        "memory": Bytes("memory of the device; null when unknown"),
        "left": Count("steps after the last until that growth fills the device; null when unknown"),
    },
    examples=[
        Example(
            "8 bytes more in each step, on a device of 2,000 bytes of which 1,424 were allocated at last",
            given={
                "allocations": _events(1000, 1007, 1016, 1024),
                "steps": _steps(4),
                "ranks": [{"device": 3, "memory_bytes": 2000}],
            },
            expect=[
                {"rank": 0, "device": 3, "steps": 4, "first": 1000, "last": 1024, "most": 1424}
                | {"per_step": 8, "steady": True, "memory": 2000, "left": 72}
            ],
        ),
        Example(
            "states that the optimizer makes in the first step",
            given={
                "allocations": _events(1000, 1600, 1600, 1600, 1600),
                "steps": _steps(5),
                "ranks": [{"device": 3}],
            },
            expect=[
                {"rank": 0, "device": 3, "steps": 5, "first": 1000, "last": 1600, "most": 2000}
                | {"per_step": 150, "steady": False, "memory": None, "left": None}
            ],
        ),
        Example(
            "too few steps of the host to tell",
            given={"allocations": _events(10, 20, 30, device=None), "steps": _steps(3), "ranks": [{}]},
            expect=[
                {"rank": 0, "device": None, "steps": 2, "first": 20, "last": 30, "most": 430}
                | {"per_step": 10, "steady": False, "memory": None, "left": None}
            ],
        ),
        Example(
            "the host's totals begin with the recording: what is kept all along is in them from step 2 on",
            given={
                "allocations": _events(1, 70, 74, 79, 82, device=None),
                "steps": _steps(5),
                "ranks": [{}],
            },
            expect=[
                {"rank": 0, "device": None, "steps": 4, "first": 70, "last": 82, "most": 482}
                | {"per_step": 4, "steady": True, "memory": None, "left": None}
            ],
        ),
    ],
)
def memory_growth(allocations: Allocations, steps: Steps, ranks: Ranks) -> pl.LazyFrame:
    """Compare the least that is allocated in each whole step with that of the step before.

    What is kept from step to step raises it; what one step needs, and gives back, does not. Memory that the
    allocator reserves and cannot use is not counted. Of the host's memory PyTorch counts what was allocated
    since the recording began, so that the first step lacks what the others hold all along.
    """
    place = ["rank", "device"]
    windows = host_steps(steps, steps.filter(pl.col("complete").fill_null(True)))
    events = allocations.filter(pl.col("allocated").is_not_null()).select(*place, "allocated", at="start")
    inside = in_host_steps(events, windows, "at").collect()
    levels = inside.group_by(*place, "step").agg(
        least=pl.col("allocated").min(), most=pl.col("allocated").max()
    )
    per_step = (pl.col("last") - pl.col("first")) / pl.col("_over")
    mean = pl.col("_mean")
    left = (pl.col("memory") - pl.col("most")) // mean
    steady = (pl.col("steps") >= FEWEST) & (mean > 0)
    return (
        levels.lazy()
        .filter(pl.col("device").is_not_null() | (pl.col("step") > pl.col("step").min().over(place)))
        .sort(*place, "step")
        .with_columns(_more=pl.col("least").diff().over(place))
        .group_by(place)
        .agg(
            steps=pl.len().cast(pl.Int64),
            first=pl.col("least").first(),
            last=pl.col("least").last(),
            most=pl.col("most").last(),
            _over=(pl.col("step").last() - pl.col("step").first()).clip(1),
            _lowest=pl.col("_more").min(),
            _highest=pl.col("_more").max(),
        )
        .with_columns(_mean=per_step)
        .with_columns(
            per_step=mean.cast(pl.Int64),
            steady=(steady & (ALIKE * pl.col("_lowest") >= mean) & (pl.col("_highest") <= ALIKE * mean)),
        )
        .join(
            ranks.group_by(place).agg(memory=pl.col("memory_bytes").max()),
            on=place,
            how="left",
        )
        .with_columns(memory=pl.when(pl.col("device").is_not_null() & (pl.col("memory") > 0)).then("memory"))
        .with_columns(left=pl.when("steady").then(left.clip(0)).cast(pl.Int64))
        .with_columns(pl.col("steady").fill_null(False))
        .select(*memory_growth.columns)
        .sort(place)
    )


def _row(device: int | None, per_step: int, memory: int | None = None) -> dict[str, object]:
    held = {"first": 3000 << 20, "last": (3000 << 20) + 4 * per_step, "most": 8000 << 20}
    left = None if memory is None else (memory - (8000 << 20)) // per_step
    return {"rank": 0, "device": device, "steps": 5, **held, "per_step": per_step, "steady": True,
            "memory": memory, "left": left}  # fmt: skip


@memory_growth.finding(
    name="tensors-pile-up",
    none_known="What keeps the tensors is in the job's own code.",
    examples=[
        Shows(
            "100 MiB more in each step, on a GPU of 80 GiB",
            rows=[_row(0, 100 << 20, 80 << 30)],
            claim="Tensors on the GPU grow by 100 MiB per step, from 2.93 GiB to 3.32 GiB in 5 steps; the "
            "GPU is full after at most 739 more.",
        ),
        Shows(
            "3 MiB more in each step, in memory of which only what came while recording is known",
            rows=[_row(None, 3 << 20)],
            claim="Tensors in host memory grow by 3 MiB per step, over 5 steps.",
        ),
    ],
)
def tensors_pile_up(table: pl.DataFrame) -> Iterator[Finding]:
    """Of the ranks, the one that grows most; of the GPU's and the host's memory, each.

    How much of the host's is held is not known: only what was allocated since the recording began is.
    """
    held = pl.when(pl.col("device").is_null()).then("most").otherwise("first")
    worth = pl.max_horizontal(pl.lit(1), pl.min_horizontal(pl.lit(LEAST), WORTH_SAYING * held))
    growing = table.filter("steady", pl.col("per_step") >= worth)
    for on_gpu, what, advice in ((True, "on the GPU", KEPT_TENSORS), (False, "in host memory", KEPT)):
        mine = growing.filter(pl.col("device").is_not_null() == on_gpu)
        if mine.is_empty():
            continue
        by = ["per_step", "rank", "device"]
        row = mine.sort(by, descending=[True, False, False]).row(0, named=True)
        full = "" if row["left"] is None else f"; the GPU is full after at most {row['left']:,} more"
        where = f" (rank {row['rank']})" if table["rank"].n_unique() > 1 else ""
        levels = f"from {written(row['first'])} to {written(row['last'])} in" if on_gpu else "over"
        yield Finding(
            name="tensors-pile-up",
            claim=f"Tensors {what} grow by {written(row['per_step'])} per step, {levels} "
            f"{row['steps']:,} steps{where}{full}.",
            gain="unknown",
            evidence=(
                "each step keeps about as much more than the one before, at its least",
                *((f"so on {mine['rank'].n_unique():,} ranks",) * (mine["rank"].n_unique() > 1)),
            ),
            next=advice,
            doubt=MAY_BE_CACHE,
        )
