"""Which pipeline stage works on which microbatch, and when."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Instant, Name, Text, Time
from lostflops.recipe import Example, recipe
from lostflops.recipes.replayed_steps import replayed_steps
from lostflops.replay.pipeline.passes import SCHEMA, messages, numbered, stage_passes
from lostflops.replay.stragglers.chains import PAIR
from lostflops.tables import Kernels

from .made_pipeline import two_stages

MS = 1_000_000
MORE = {
    "number": pl.Int64,
    "after": pl.Int64,
    "transfer": pl.Int64,
    "schedule": pl.String,
    "microbatches": pl.Int64,
    "chunks": pl.Int64,
    "untold": pl.String,
}


@recipe(
    question="Which pipeline stage works on which microbatch, and when?",
    scope="job",
    page=False,
    whole=True,
    columns={
        "pipeline": Id("lowest rank of the pipeline"),
        "step": Id("step number"),
        "rank": Id("rank"),
        "stage": Id("pipeline stage, counted from 0"),
        "kind": Name("F forward, B backward, W gradients of weights where they are computed apart"),
        "microbatch": Id("microbatch, counted from 0; null where the schedule is not known"),
        "chunk": Id("chunk of the stage's layers, counted from 0; null likewise"),
        "start": Instant("start of its first kernel"),
        "end": Instant("end of its last kernel"),
        "busy": Time("time in between in which it computes"),
        "number": Id("number of the pass"),
        "after": Id("number of the pass whose message it waits for; null where it waits for none"),
        "transfer": Time("how long that message takes once both sides are there"),
        "schedule": Name("gpipe, 1f1b, interleaved, zb, or unknown"),
        "microbatches": Count("microbatches per step"),
        "chunks": Count("chunks of layers per stage"),
        "untold": Text("why the passes say nothing of microbatches; null where they do"),
    },
    examples=[
        Example(
            "one microbatch goes through two stages and back",
            given=two_stages(),
            expect=[
                {
                    "pipeline": 0,
                    "step": 3,
                    "rank": rank,
                    "stage": rank,
                    "kind": kind,
                    "microbatch": 0,
                    "chunk": 0,
                }
                | {"start": start * MS, "end": end * MS, "busy": (end - start) * MS, "number": number}
                | {"after": after, "transfer": transfer, "schedule": "gpipe", "microbatches": 1, "chunks": 1}
                | {"untold": None}
                for rank, kind, start, end, number, after, transfer in (
                    (0, "F", 0, 10, 0, None, None),
                    (0, "B", 74, 84, 1, 3, 2 * MS),
                    (1, "F", 12, 42, 2, 0, 2 * MS),
                    (1, "B", 42, 72, 3, None, None),
                )
            ],
        ),
        Example("without stages there are no passes", given={"ranks": [{"rank": 0}]}, expect=[]),
    ],
)
def pipeline_passes(
    counted_steps: pl.LazyFrame,
    device_runs: pl.LazyFrame,
    idle_stretches: pl.LazyFrame,
    communication_matches: pl.LazyFrame,
    kernels: Kernels,
) -> pl.LazyFrame:
    """Cut what the stages compute at their messages, and tell microbatches by the order of the schedule.

    Of the last steps that all ranks have, eight at most. It needs matched messages and phases of kernels.
    """
    schema = {**SCHEMA, **MORE}
    pairs = pl.col("kind").cast(pl.String).is_in(PAIR) & pl.col("peer").is_not_null()
    if communication_matches.filter(pairs).head(1).collect().is_empty():
        return pl.LazyFrame(schema=schema)  # without messages there are no stages
    told = replayed_steps(counted_steps, device_runs, idle_stretches, communication_matches, kernels)
    found = SCHEMA.to_frame() if isinstance(told, str) else stage_passes(told.job, told.pieces)
    if isinstance(told, str) or found.is_empty():
        return pl.LazyFrame(schema=schema)
    step = told.steps.select("rank", "step", "start").sort("start")
    received = (
        told.job.operations.filter(kind="receive")
        .sort("start")
        .join_asof(step, on="start", by="rank", check_sortedness=False)
        .group_by("rank", "step")
        .agg(messages=pl.len().cast(pl.Int64))
    )
    schedule, microbatches, chunks, untold = "unknown", None, None, None
    try:
        found, schedule, microbatches, chunks = numbered(found, received)
    except ValueError as error:
        untold = str(error)
    links = messages(told.job, found).rename({"before": "after", "after": "number"})
    return (
        found.with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64))
        .join(links.unique("number", keep="first"), on="number", how="left", maintain_order="left")
        .with_columns(
            schedule=pl.lit(schedule, pl.String),
            microbatches=pl.lit(microbatches, pl.Int64),
            chunks=pl.lit(chunks, pl.Int64),
            untold=pl.lit(untold, pl.String),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .lazy()
    )
