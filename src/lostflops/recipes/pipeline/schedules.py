"""What another schedule, more chunks or other microbatches would make of a pipeline's step."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Name, Ratio, Text, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.replay.pipeline.bubble import windows
from lostflops.replay.pipeline.predicted import APART, HALVES, LARGER, SMALLER, predictions
from lostflops.tables import Kernels

from .made_pipeline import MS, two_microbatches


@recipe(
    question="How long would a step take with another pipeline schedule, more chunks or other microbatches?",
    scope="job",
    whole=True,
    plot=Bars(x="schedule", y=("predicted",)),
    columns={
        "schedule": Name("gpipe, 1f1b, interleaved or zb (zero bubble, ZB-H1)"),
        "chunks": Count("chunks of layers per stage (v)"),
        "microbatches": Count("microbatches per step (m); the batch stays what it is"),
        "pipeline": Time("recorded, from the first pass to the last, in a mean step of all pipelines"),
        "replayed": Time("the same, with the recorded schedule replayed from each stage's mean passes"),
        "predicted": Typical("replayed with this schedule; null where `error` is more than 5 %"),
        "change": Ratio("predicted / replayed - 1"),
        "error": Ratio("replayed / pipeline - 1: how far replay misses the recorded schedule"),
        "assumes": Text("what has to hold for that, and is not known from the recording"),
    },
    examples=[
        Example(
            "stages of 12 and 30 ms a pass: replay gives 148 ms where 150 were recorded, and then others",
            given=two_microbatches(),
            expect=[
                {"schedule": schedule, "chunks": chunks, "microbatches": many, "predicted": predicted * MS}
                | {"pipeline": 150 * MS, "replayed": 148 * MS, "change": predicted / 148 - 1}
                | {"error": 148 / 150 - 1, "assumes": assumes}
                for schedule, chunks, many, predicted, assumes in (
                    ("1f1b", 1, 2, 148, "as recorded"),
                    ("interleaved", 2, 2, 136, HALVES),
                    ("interleaved", 4, 2, 130, HALVES),
                    ("zb", 1, 2, 134, APART),
                    ("1f1b", 1, 4, 134, SMALLER),
                    ("1f1b", 1, 1, 176, LARGER),
                )
            ],
        ),
        Example("without a pipeline there is none to change", given={"ranks": [{"rank": 0}]}, expect=[]),
    ],
)
def pipeline_schedules(pipeline_passes: pl.LazyFrame, kernels: Kernels) -> pl.LazyFrame:
    """Replay the pipeline with the recorded schedule and with others, from each stage's mean passes.

    The predictions leave out what only another run can tell: what chunks cost, whether smaller microbatches
    keep the GPU as busy, and memory. What lies around the pipeline, such as the optimizer, stays.
    """
    found = pipeline_passes.collect()
    kinds = {"chunks": pl.Int64, "microbatches": pl.Int64, "pipeline": pl.Int64, "replayed": pl.Int64}
    kinds |= {"predicted": pl.Int64, "change": pl.Float64, "error": pl.Float64, "assumes": pl.String}
    schema = {"schedule": pl.String, **kinds}
    if found.is_empty() or found["schedule"][0] == "unknown":
        return pl.LazyFrame(schema=schema)
    links = found.drop_nulls("after").select(before="after", after="number", transfer="transfer")
    schedule, microbatches, chunks = found.select("schedule", "microbatches", "chunks").row(0)
    told = predictions(found, windows(found, links), schedule, microbatches, chunks, _products(kernels))
    return (
        told.with_columns(change=pl.col("predicted") / pl.col("replayed") - 1)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .lazy()
    )


def _products(kernels: pl.LazyFrame) -> float:
    """How much of the backward passes is matrix products, 0 to 1."""
    length = pl.col("end") - pl.col("start")
    backward = kernels.filter(
        pl.col("phase").is_in(["backward", "recompute"]) & (pl.col("family") != "communication")
    )
    gemm = (pl.col("family") == "gemm") & (pl.col("phase") == "backward")
    products, whole = backward.select(length.filter(gemm).sum(), whole=length.sum()).collect().row(0)
    return products / whole if whole else 0.0
