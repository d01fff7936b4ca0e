"""Where the peak goes: from all that the GPU could compute in a step to what the model uses of it."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Share, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.flops import MATRIX_WORK
from lostflops.recipes.means import quotient
from lostflops.recipes.operators.model_flops import BF16, PRODUCT, WORK
from lostflops.tables import Kernels

# In the order of the page: what the model uses comes first, then where the rest went.
PARTS = (
    "model FLOPs at the peak",
    "recomputation at the peak",
    "matrix kernels below the peak",
    "other kernels",
    "exposed communication",
    "exposed copies",
    "idle",
)
OF_GROUP = {"communication": PARTS[4], "copy": PARTS[5], "idle": PARTS[6]}


@recipe(
    question="Where does the GPU's peak go, from what it could compute to what the model uses?",
    scope="job",
    plot=Bars(x="part", y=("time",)),
    columns={
        "rank": Id("rank"),
        "part": Name("what takes the time"),
        "order": Count("place in the waterfall: the model's own FLOPs are first"),
        "time": Time("time inside steps; the parts of a rank add up to its step time"),
        "per_step": Time("the same per step"),
        "share": Share("time / step time: the share of the peak that goes here; of the first part, MFU"),
    },
    examples=[
        Example(
            "a product at half its peak, another kernel beside and after it, a copy, and idle time",
            given={
                "operators": [{"start": 0, "end": 9, "phase": "forward"} | PRODUCT],
                "kernels": [
                    {"start": 0, "end": 384_616, "launch_start": 5} | WORK,
                    {"start": 380_000, "end": 392_308, "family": "norm", "device": 0},
                ],
                "copies": [{"start": 392_308, "end": 395_308}],
                "steps": [{"step": 0, "start": 0, "end": 600_000}],
                "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA A100-SXM4-80GB"}],
            },
            expect=[
                {"rank": 0, "part": part, "order": order, "time": time, "per_step": time}
                | {"share": time / 600_000}
                for part, order, time in (
                    (PARTS[0], 0, 192_308),
                    (PARTS[1], 1, 0),
                    (PARTS[2], 2, 192_308),
                    (PARTS[3], 3, 7_692),
                    (PARTS[4], 4, 0),
                    (PARTS[5], 5, 3_000),
                    (PARTS[6], 6, 204_692),
                )
            ],
        ),
        Example(
            "two steps of half the length: per step, half",
            given={
                "operators": [{"start": 0, "end": 9, "phase": "forward"} | PRODUCT | {"dtypes": BF16}],
                "kernels": [{"start": 0, "end": 384_616, "launch_start": 5} | WORK],
                "steps": [
                    {"step": 0, "start": 0, "end": 300_000},
                    {"step": 1, "start": 300_000, "end": 600_000},
                ],
                "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA A100-SXM4-80GB"}],
            },
            expect=[
                {"part": part, "time": time, "per_step": time // 2}
                for part, time in zip(PARTS, (192_308, 0, 192_308, 0, 0, 0, 215_384), strict=True)
            ],
        ),
    ],
)  # fmt: skip
def mfu_waterfall(
    model_flops: pl.LazyFrame,
    step_ledger: pl.LazyFrame,
    kernels: Kernels,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
) -> pl.LazyFrame:
    """Divide each rank's step time by what keeps it from computing the model at the peak.

    The first part is the time that the model's FLOPs would take at the peak, so its share is MFU; the second
    is HFU's excess. Matrix kernels count once where several run at a time. The parts add up exactly. A rank
    whose MFU is not known is left out; `lostflops recipe model-flops` says why it is not.
    """
    known = model_flops.filter(pl.col("at_peak").is_not_null()).select(
        "rank", "at_peak", again=pl.col("again_at_peak").fill_null(0)
    )
    inside = step_ledger.join(counted_steps.select("rank", "step"), on=["rank", "step"], how="semi")
    group = pl.col("account").cast(pl.String).str.split(".").list.first()
    accounts = inside.group_by("rank", group=group).agg(pl.col("ns").sum()).collect()
    matrix = kernels.filter(pl.col("family").cast(pl.String).is_in(MATRIX_WORK))
    steps = intervals.union(counted_steps, ["rank"])
    busy = intervals.inside(intervals.union(matrix, ["rank"]), steps, {"inside": pl.lit(True)})
    products = busy.group_by("rank").agg(products=pl.col("inside").sum())

    def of(group: str) -> pl.LazyFrame:
        return accounts.lazy().filter(pl.col("group") == group).select("rank", pl.col("ns").alias(group))

    row = known.join(step_totals.filter(pl.col("step_time") > 0), on="rank")
    for part in (products, of("compute"), *map(of, OF_GROUP)):
        row = row.join(part, on="rank", how="left")
    row = row.with_columns(pl.col("products", "compute", *OF_GROUP).fill_null(0).clip(0)).with_columns(
        below=pl.col("products") - pl.col("at_peak") - pl.col("again"),
        other=pl.col("compute") - pl.col("products"),
    )
    # Kernels that hold less than their FLOPs at the peak contradict it: there is no such waterfall.
    row = row.filter((pl.col("below") >= 0) & (pl.col("other") >= 0))
    columns = ("at_peak", "again", "below", "other", *OF_GROUP)
    named = dict(zip(columns, PARTS, strict=True))
    return (
        row.unpivot(columns, index=["rank", "steps", "step_time"], variable_name="part", value_name="time")
        .with_columns(pl.col("part").replace_strict(named, return_dtype=pl.String))
        .select(
            "rank",
            "part",
            order=pl.col("part").replace_strict(
                {part: i for i, part in enumerate(PARTS)}, return_dtype=pl.Int64
            ),
            time="time",
            per_step=pl.col("time") // pl.col("steps"),
            share=quotient(pl.col("time"), pl.col("step_time")),
        )
        .sort("rank", "order")
    )
