"""How much of device memory a batch leaves, and how many times as large it could be at most."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Bytes, Id, Number, Ratio, Text
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.tables import Allocations, Ranks

GIB = 2**30
# Below this part of the memory that something needs at its peak, what grows is noise of the allocator.
GROWS = 0.01

CURVE = ((0, 400, 512), (10, 900, 1000), (20, 380, 1000), (30, 420, 1000), (40, 1000, 1200), (50, 400, 1200))
NO_DEVICE = "the memory of the device is not known: --memory-gib gives it"
NO_TOTALS = "the recording does not say how much is allocated in all, only what comes and goes"
OF_DRIVER = (
    "Nsight Systems records what the driver gives out, and a framework's allocator keeps it: the PyTorch "
    "profiler records what is used (`profile_memory=True`)"
)
NO_GROWTH = "nothing grows and shrinks in a step: the peak is not the batch's"


@recipe(
    question="Is the batch right for the memory: how many times as large could it be at most?",
    scope="rank",
    plot=Bars(x="rank", y=("stays", "grows", "unused", "free"), stacked=True),
    columns={
        "rank": Id("rank"),
        "device": Id("GPU"),
        "memory": Bytes("memory of the device; null when unknown"),
        "stays": Bytes("least that is allocated in steps: weights, optimizer states; null when not recorded"),
        "grows": Bytes("most that is allocated in steps beyond that: activations, gradients, temporaries"),
        "unused": Bytes("most that the allocator holds, less both; null when not recorded"),
        "free": Bytes("the rest of the device: the context, other libraries, and what is free"),
        "peak_share": Ratio("(stays + grows) / memory"),
        "reserved_share": Ratio("(stays + grows + unused) / memory: what the allocator holds"),
        "at_most": Number("times the batch fits: (memory - stays) / grows", unit="times"),
        "with_unused": Number(
            "times it fits where as large a part of what is reserved stays unused as now", unit="times"
        ),
        "unknown": Text("why nothing is said of a larger batch; null where it is"),
    },
    examples=[
        Example(
            "of 3,000 bytes 380 always stay and 620 come and go: the batch fits at most 4.2 times",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 3, "bytes": 8, "allocated": a, "reserved": r}
                    for t, a, r in CURVE
                ],
                "steps": [{"start": 5, "end": 45, "complete": True}],
                "ranks": [{"device": 3, "memory_bytes": 3000}],
            },
            expect=[
                {"rank": 0, "device": 3, "memory": 3000, "stays": 380, "grows": 620, "unused": 200}
                | {"free": 1800, "peak_share": 1 / 3, "reserved_share": 0.4, "at_most": 2620 / 620}
                | {"with_unused": (3000 * 1000 / 1200 - 380) / 620, "unknown": None}
            ],
        ),
        Example(
            "a device whose memory is not known, and one whose peak does not move",
            given={
                "allocations": [
                    {"rank": rank, "start": t, "end": t, "device": rank, "bytes": 8, "allocated": a}
                    for rank, t, a in ((1, 3, 70), (1, 6, 110), (2, 3, 5000), (2, 6, 5004))
                ],
                "ranks": [{"rank": 1, "device": 1}, {"rank": 2, "device": 2, "memory_bytes": 9000}],
            },
            expect=[
                {"rank": 1, "device": 1, "memory": None, "stays": 70, "grows": 40, "unused": None}
                | {"free": None, "peak_share": None, "reserved_share": None, "at_most": None}
                | {"with_unused": None, "unknown": NO_DEVICE},
                {"rank": 2, "device": 2, "memory": 9000, "stays": 5000, "grows": 4, "unused": None}
                | {"free": 3996, "peak_share": 5004 / 9000, "reserved_share": None, "at_most": None}
                | {"with_unused": None, "unknown": NO_GROWTH},
            ],
        ),
        Example(
            "a recording of 2021, with sizes of allocations and no totals",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 6, "bytes": b}
                    for t, b in ((1, 30), (2, 41), (3, -71), (4, 50))
                ],
                "ranks": [{"device": 6, "memory_bytes": 7000}],
            },
            expect=[
                {"rank": 0, "device": 6, "memory": 7000, "stays": None, "grows": 71, "unused": None}
                | {"free": None, "peak_share": None, "at_most": None, "unknown": NO_TOTALS}
            ],
        ),
        Example(
            "what the driver gave to an allocator may be in use or not",
            given={
                "allocations": [
                    {"start": t, "end": t, "device": 5, "bytes": 8, "allocated": a}
                    for t, a in ((2, 600), (5, 640))
                ],
                "ranks": [{"device": 5, "memory_bytes": 800, "source": "nsys"}],
            },
            expect=[
                {"device": 5, "stays": 600, "grows": 40, "free": 160, "at_most": None, "unknown": OF_DRIVER}
            ],
        ),
    ],
)  # fmt: skip
def batch_headroom(
    allocations: Allocations,
    ranks: Ranks,
    counted_steps: pl.LazyFrame | None,
    *,
    memory_gib: Annotated[float | None, "memory of each GPU in GiB, where the recording does not say"] = None,
) -> pl.LazyFrame:
    """Divide each GPU's memory into what stays, what a batch adds, what is unused and what is free.

    How to read it: `at_most` of 2.5 says that two and a half times the batch is the most that can fit; below
    1.2 the batch is as large as the memory allows. `with_unused` is the same with the allocator's present
    fragmentation, and nearer to what will happen. Where `grows` is small beside `stays`, weights and
    optimizer states fill the memory, and sharding helps more than a smaller batch.

    Limits: it assumes that all of `grows` grows in proportion to the batch. Gradients that are freed between
    steps and temporaries of the optimizer do not, so more may fit; longer sequences, an evaluation or memory
    outside the framework's allocator can bring less. Without steps the whole recording is looked at. The
    GPU's own context is part of `free` and cannot be used.

    What to try: a batch of `with_unused` times the present one, or fewer gradient accumulation steps; below
    1.2 `selective-checkpointing` and `PYTORCH_ALLOC_CONF=expandable_segments:True`; `memory-peak-owners` for
    what fills the memory; `lostflops plan` for other models and cards.
    """
    known = _with_levels(allocations)
    level = pl.col("stays") + pl.col("grows")
    least = pl.min_horizontal(pl.col("_level", "_before").min())
    told = (
        _inside_steps(known, counted_steps)
        .group_by("rank", "device")
        .agg(
            stays=pl.when(pl.col("allocated").null_count() == 0).then(least),
            grows=pl.max_horizontal(pl.col("_level", "_before").max()) - least,
            _reserved=pl.col("reserved").max(),
        )
        .join(
            ranks.group_by("rank", "device").agg(
                memory=pl.col("memory_bytes").max(),
                _of_driver=(pl.col("source").cast(pl.String) == "nsys").any(),
            ),
            on=["rank", "device"],
            how="left",
        )
    )
    given = None if memory_gib is None else round(memory_gib * GIB)
    nothing_grows = pl.col("grows") <= GROWS * level
    held = pl.max_horizontal(pl.col("_reserved"), level)
    return (
        told.with_columns(memory=pl.lit(given, dtype=pl.Int64) if given else pl.col("memory"))
        .with_columns(
            unused=pl.when(pl.col("_reserved").is_not_null()).then(held - level),
            unknown=pl.when(pl.col("memory").is_null() | (pl.col("memory") <= 0))
            .then(pl.lit(NO_DEVICE))
            .when("_of_driver")
            .then(pl.lit(OF_DRIVER))
            .when(pl.col("stays").is_null())
            .then(pl.lit(NO_TOTALS))
            .when(nothing_grows)
            .then(pl.lit(NO_GROWTH)),
        )
        .with_columns(memory=pl.when(pl.col("memory") > 0).then("memory"))
        .with_columns(
            free=(pl.col("memory") - level - pl.col("unused").fill_null(0)).clip(0),
            peak_share=level / pl.col("memory"),
            reserved_share=(level + pl.col("unused")) / pl.col("memory"),
            at_most=pl.when(pl.col("unknown").is_null()).then(
                (pl.col("memory") - pl.col("stays")) / pl.col("grows")
            ),
            with_unused=pl.when(pl.col("unknown").is_null() & (pl.col("unused") >= 0)).then(
                (pl.col("memory") * (level / held) - pl.col("stays")) / pl.col("grows")
            ),
        )
        .select(*batch_headroom.columns)
        .sort("rank", "device")
    )  # fmt: skip


def _with_levels(allocations: pl.LazyFrame) -> pl.LazyFrame:
    """The events of GPUs with `_level`: what is allocated after each, from some level on; and before it."""
    place = ["rank", "device"]
    events = allocations.filter(pl.col("device").is_not_null()).sort(*place, "start", "bytes")
    untold = pl.col("allocated").is_null().any().over(place)
    levels = events.with_columns(
        _level=pl.when(untold).then(pl.col("bytes").cum_sum().over(place)).otherwise("allocated")
    )
    return levels.with_columns(_before=pl.col("_level").shift().over(place))


def _inside_steps(rows: pl.LazyFrame, steps: pl.LazyFrame | None) -> pl.LazyFrame:
    """The events inside steps that count, of a rank that has any there; else all of its events.

    `_before` is what was allocated before an event, where that was inside as well.
    """
    if steps is None:
        return rows
    windows = while_on_host(steps).select("rank", "start", _since="start", _until="end").collect()
    events = rows.sort("start").collect()
    within = events.join_asof(
        windows.sort("start"),
        on="start",
        by="rank",
        strategy="backward",
        check_sortedness=False,
    ).with_columns(_in=(pl.col("start") < pl.col("_until")).fill_null(False))
    held = pl.col("_in") & (pl.col("start") > pl.col("_since"))
    return (
        within.filter(pl.col("_in") | ~pl.col("_in").any().over("rank"))
        .with_columns(_before=pl.when(held).then("_before"))
        .drop("_in", "_since", "_until")
        .lazy()
    )
