"""In which precision the matrix work runs, and whether on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Name, Ratio, Share, Time
from lostflops.finding import Finding, Verdict
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.recipes.steps.totals import nothing_elsewhere, per_step, time_shares
from lostflops.tables import Kernels

from .slow_arithmetic import slow_matrix_work

MATRIX_WORK = ("gemm", "attention", "convolution")
SORTS = ("precision", "tensor_cores")
FIND_FP64 = "Find the tensor that is float64: PyTorch makes them from NumPy arrays by default."


def _third_in_fp64(tensor_cores: bool) -> dict[str, object]:
    return {
        "rank": 0,
        "family": "gemm",
        "precision": "fp64",
        "tensor_cores": tensor_cores,
        "in_steps": 6_000_000,
        "per_step": 3_000_000,
        "step_share": 0.33,
        "span": 5_000_000,
    }


@recipe(
    question="In which precision does matrix work run, and does it use tensor cores?",
    scope="rank",
    plot=Bars(x="precision", y=("time",)),
    columns={
        "rank": Id("rank"),
        "family": Name("gemm, attention or convolution"),
        "precision": Name("precision of the arithmetic; null when the kernel's name does not say"),
        "tensor_cores": Flag("whether matrix units were used; null when unknown"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "time_share": Share("time / all matrix work of the rank"),
        "in_steps": Time("time inside steps"),
        "per_step": Time("time per step"),
        "step_share": Ratio("time inside steps / step time"),
        "span": Time(
            "time inside steps in which at least one kernel of this precision and use of matrix units "
            "runs, of whatever family"
        ),
    },
    examples=[
        Example(
            "most of the matmul time is plain fp32",
            given={
                "kernels": [
                    {"start": 0, "end": 60, "family": "gemm", "precision": "fp32", "tensor_cores": False},
                    {"start": 60, "end": 66, "family": "gemm", "precision": "bf16", "tensor_cores": True},
                    {"start": 66, "end": 70, "family": "gemm", "precision": "bf16", "tensor_cores": True},
                    {"start": 70, "end": 100, "family": "attention"},
                    {"start": 100, "end": 300, "family": "elementwise", "precision": "fp32"},
                ],
                "steps": [{"start": 20, "end": 200}, {"start": 200, "end": 350}],
            },
            expect=[
                {
                    "rank": 0,
                    "family": family,
                    "precision": precision,
                    "tensor_cores": tensor_cores,
                    "calls": calls,
                    "time": time,
                    "time_share": time / 100,
                    "in_steps": in_steps,
                    "per_step": in_steps // 2,
                    "step_share": in_steps / 330,
                    "span": in_steps,
                }
                for family, precision, tensor_cores, calls, time, in_steps in (
                    ("gemm", "fp32", False, 1, 60, 40),
                    ("attention", None, None, 1, 30, 30),
                    ("gemm", "bf16", True, 2, 10, 10),
                )
            ],
        ),
        Example(
            "kernels on two streams at a time: their time adds up to more than the step, their span does not",
            given={
                "kernels": [
                    {"start": s, "end": 90, "stream": s, "precision": "fp32", "tensor_cores": False}
                    | {"family": ("gemm", "convolution")[s % 2]}
                    for s in (2, 9, 20)
                ],
                "steps": [{"start": 0, "end": 100}],
            },
            expect=[
                {"family": "gemm", "in_steps": 158, "step_share": 1.58, "span": 88},
                {"family": "convolution", "in_steps": 81, "step_share": 0.81, "span": 88},
            ],
        ),
    ],
)
def precision_mix(
    kernel_work: pl.LazyFrame, kernels: Kernels, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's matmul, attention and convolution time by precision and use of tensor cores.

    Both are read from kernel names: null is not 'no'. Kernels that run at the same time each count, except
    in `span`, which no change of precision can save more than. A rank with steps and without such work has
    one row, without a family.
    """
    kinds = ["rank", "family", "precision", "tensor_cores"]
    summed = (
        kernel_work.filter(pl.col("family").is_in(MATRIX_WORK))
        .group_by(kinds)
        .agg(pl.col("calls", "time", "in_steps").sum())
        .pipe(time_shares)
    )
    return (
        per_step(
            nothing_elsewhere(summed, step_totals, ("calls", "time", "in_steps")), step_totals, "in_steps"
        )
        .join(_spans(kernels, counted_steps), on=["rank", *SORTS], how="left", nulls_equal=True)
        .with_columns(pl.col("span").fill_null(0))
        .select(*precision_mix.columns)
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )


def _spans(kernels: pl.LazyFrame, counted: pl.LazyFrame) -> pl.LazyFrame:
    """How long inside steps at least one kernel of a precision runs: rank, precision, tensor_cores, span."""
    rows = kernels.filter(pl.col("family").cast(pl.String).is_in(MATRIX_WORK)).select(
        "rank", "start", "end", *SORTS
    )
    sorts = rows.select("rank", *SORTS).unique().collect()
    lanes = sorts.sort("rank", *SORTS).with_row_index("_lane").with_columns(pl.col("_lane").cast(pl.Int64))
    runs = intervals.union(rows.join(lanes.lazy(), on=["rank", *SORTS], nulls_equal=True), ["_lane"])
    steps = intervals.union(counted, ["rank"])
    at = runs.join(lanes.lazy(), on="_lane")
    return (
        intervals.inside(at, steps, {"span": pl.lit(True)}).group_by("rank", *SORTS).agg(pl.col("span").sum())
    )


@precision_mix.finding(
    name="fp32-without-tensor-cores",
    remedies=("bf16", "fp16-scaling", "tf32"),
    verdict=Verdict("Bound by fp32 compute", "matrix work in fp32 without tensor cores"),
)
def fp32_off_tensor_cores(table: pl.DataFrame) -> Iterator[Finding]:
    return slow_matrix_work(
        table,
        "fp32",
        "Train in bf16 under `torch.autocast` (before Ampere in fp16, with a gradient scaler), or, from "
        "Ampere on, let fp32 matmuls use TF32 with `torch.set_float32_matmul_precision('high')` (in one "
        "way only: once `fp32_precision` is set, reading `allow_tf32` raises); compare the loss before you "
        "keep it.",
    )


@precision_mix.finding(
    name="fp32-matrix-work",
    remedies=("bf16", "fp16-scaling"),
    verdict=Verdict("Bound by fp32 matrix work", "matrix work in fp32"),
    examples=[
        Shows(
            "two thirds of the step is fp32 matrix work, some of it perhaps on matrix units",
            rows=[
                {
                    "rank": 0,
                    "family": family,
                    "precision": "fp32",
                    "tensor_cores": units,
                    "in_steps": 2 * ns,
                    "per_step": ns,
                    "step_share": ns / 4_545_454,
                    "span": ns,
                }
                for family, units, ns in (("gemm", True, 2_000_000), ("convolution", None, 1_000_000))
            ],
            claim="Matrix work in fp32 takes 3.00 ms per step (66.0 %).",
        )
    ],
)
def fp32_matrix_work(table: pl.DataFrame) -> Iterator[Finding]:
    then = "Train in bf16 under `torch.autocast`: matrix units run it many times as fast as fp32."
    return slow_matrix_work(table, "fp32", then, off=False)


@precision_mix.finding(
    name="fp64-without-tensor-cores",
    remedies=("no-float64",),
    verdict=Verdict("Bound by fp64 compute", "matrix work in fp64 without tensor cores"),
    examples=[
        Shows(
            "a third of the step is fp64 matrix work outside tensor cores",
            rows=[_third_in_fp64(tensor_cores=False)],
            claim="Matrix work in fp64 without tensor cores takes 3.00 ms per step (33.0 %).",
        )
    ],
)
def fp64_off_tensor_cores(table: pl.DataFrame) -> Iterator[Finding]:
    return slow_matrix_work(table, "fp64", FIND_FP64)


@precision_mix.finding(
    name="fp64-matrix-work",
    remedies=("no-float64",),
    verdict=Verdict("Bound by fp64 matrix work", "matrix work in fp64"),
    examples=[
        Shows(
            "a third of the step is fp64 matrix work on tensor cores",
            rows=[_third_in_fp64(tensor_cores=True)],
            claim="Matrix work in fp64 takes 3.00 ms per step (33.0 %).",
        )
    ],
)
def fp64_matrix_work(table: pl.DataFrame) -> Iterator[Finding]:
    return slow_matrix_work(table, "fp64", FIND_FP64, off=False)
