"""In which precision the matrix work runs, and whether on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe

from .step_totals import added_up, mean_share, per_step

MATRIX_WORK = ("gemm", "attention", "convolution")
# Share of the step from which slow arithmetic is worth a finding.
WORTH_SAYING = 0.05


@recipe(
    question="In which precision does matrix work run, and does it use tensor cores?",
    scope="rank",
    plot=Bars(x="precision", y=("time",)),
    columns={
        "rank": "rank",
        "family": "gemm, attention or convolution",
        "precision": "precision of the arithmetic; null when the kernel's name does not say",
        "tensor_cores": "whether matrix units were used; null when unknown",
        "calls": "number of executions",
        "time": "their durations added up, ns",
        "time_share": "time / all matrix work of the rank",
        "in_steps": "time inside steps, ns",
        "per_step": "time in a mean step, ns",
        "step_share": "time inside steps / step time",
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
                }
                for family, precision, tensor_cores, calls, time, in_steps in (
                    ("gemm", "fp32", False, 1, 60, 40),
                    ("attention", None, None, 1, 30, 30),
                    ("gemm", "bf16", True, 2, 10, 10),
                )
            ],
        ),
    ],
)
def precision_mix(kernel_work: pl.LazyFrame, step_totals: pl.LazyFrame) -> pl.LazyFrame:
    """Add up each rank's matmul, attention and convolution time by precision and use of tensor cores.

    Both are read from kernel names: null is not 'no'.
    """
    kinds = ["rank", "family", "precision", "tensor_cores"]
    summed = (
        kernel_work.filter(pl.col("family").is_in(MATRIX_WORK))
        .group_by(kinds)
        .agg(pl.col("calls", "time", "in_steps").sum())
        .with_columns(_all=pl.col("time").sum().over("rank"))
        .with_columns(time_share=pl.when(pl.col("_all") > 0).then(pl.col("time") / pl.col("_all")))
    )
    return (
        per_step(summed, step_totals, "in_steps")
        .select(*kinds, "calls", "time", "time_share", "in_steps", "per_step", "step_share")
        .sort("rank", "time", *kinds[1:], descending=[False, True, False, False, False])
    )


@precision_mix.finding
def matrix_work_off_tensor_cores(table: pl.DataFrame) -> Iterator[Finding]:
    matrix, unknown = table.select(
        pl.col("in_steps").sum(), unknown=pl.col("in_steps").filter(pl.col("precision").is_null()).sum()
    ).row(0)
    for precision, advice in (
        (
            "fp32",
            (
                "Train in bf16 under `torch.autocast` (before Ampere in fp16, with a gradient scaler), or, "
                "from Ampere on, let fp32 matmuls use TF32 with "
                "`torch.set_float32_matmul_precision('high')`; compare the loss before you keep it."
            ),
        ),
        ("fp64", "Find the tensor that is float64: PyTorch makes them from NumPy arrays by default."),
    ):
        slow = table.filter((pl.col("precision") == precision) & ~pl.col("tensor_cores"))
        if mean_share(slow, table) < WORTH_SAYING:
            continue
        time = int(slow["in_steps"].sum())
        doubt = (
            f"{percent(unknown, matrix)} of this matrix work does not say its precision." if unknown else ""
        )
        yield Finding(
            name=f"{precision}-without-tensor-cores",
            claim=f"{percent(time, matrix)} of the matrix work inside steps runs in {precision} without "
            "tensor cores.",
            ns_in_steps=time,
            shared=True,
            gain="at most",
            evidence=(*_by_family(slow), *added_up(slow)),
            next=advice,
            doubt=doubt,
        )


def _by_family(rows: pl.DataFrame) -> Iterator[str]:
    by = rows.group_by("family").agg(pl.col("in_steps").sum()).filter(pl.col("in_steps") > 0).sort("family")
    for family, time in by.iter_rows():
        yield f"{family}: {milliseconds(time)} inside steps"
