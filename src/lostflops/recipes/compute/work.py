"""Kernel time by name and everything a name is classified by: what the other kernel questions add up."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Flag, Id, Name, Time
from lostflops.recipe import Example, recipe
from lostflops.tables import Kernels


@recipe(
    question="How often did each kind of kernel run, for how long, and how much of that inside steps?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "name": Name("kernel name"),
        "family": Name("what kind of work it is"),
        "precision": Name("precision of its arithmetic; null when the name does not say"),
        "tensor_cores": Flag("whether matrix units were used; null when unknown"),
        "phase": Name("forward, backward, recompute or optimizer; null when unknown"),
        "calls": Count("number of executions"),
        "time": Time("their durations added up"),
        "in_steps": Time("the part of it inside steps"),
    },
    examples=[
        Example(
            "a kernel that reaches over the end of a step, and one in two phases",
            given={
                "kernels": [
                    {"start": 0, "end": 7, "name": "gemm", "family": "gemm", "phase": "forward"},
                    {"start": 8, "end": 19, "name": "gemm", "family": "gemm", "phase": "backward"},
                    {"start": 30, "end": 41, "name": "gemm", "family": "gemm", "phase": "backward"},
                ],
                "steps": [{"start": 2, "end": 10}, {"start": 10, "end": 33}],
            },
            expect=[
                {
                    "rank": 0,
                    "name": "gemm",
                    "family": "gemm",
                    "precision": None,
                    "tensor_cores": None,
                    "phase": phase,
                    "calls": calls,
                    "time": time,
                    "in_steps": in_steps,
                }
                for phase, calls, time, in_steps in (("forward", 1, 7, 5), ("backward", 2, 22, 14))
            ],
        ),
        Example(
            "on a CPU, an operator that goes on after its child is one call",
            given={
                "kernels": [
                    {
                        "start": 0,
                        "end": 3,
                        "name": "aten::linear",
                        "precision": "fp32",
                        "tensor_cores": False,
                    },
                    {"start": 3, "end": 9, "name": "aten::addmm", "precision": "fp32", "tensor_cores": False},
                    {
                        "start": 9,
                        "end": 10,
                        "name": "aten::linear",
                        "precision": "fp32",
                        "tensor_cores": False,
                    }
                    | {"continued": True},
                ],
                "steps": [{"start": 1, "end": 12}],
            },
            expect=[
                {
                    "rank": 0,
                    "name": name,
                    "family": "other",
                    "precision": "fp32",
                    "tensor_cores": False,
                    "phase": None,
                    "calls": 1,
                    "time": time,
                    "in_steps": in_steps,
                }
                for name, time, in_steps in (("aten::addmm", 6, 6), ("aten::linear", 4, 3))
            ],
        ),
    ],
)
def kernel_work(kernels: Kernels, counted_steps: pl.LazyFrame) -> pl.LazyFrame:
    """Add up kernels by name, family, precision, use of tensor cores and phase.

    Kernels that run at the same time each count: the sum is no busy time.
    """
    kinds = ["rank", "name", "family", "precision", "tensor_cores", "phase"]
    rows = intervals.inside(
        kernels.select(*kinds, "start", "end", "continued"),
        intervals.union(counted_steps, ["rank"]),
        {"in_steps": pl.lit(True)},
    )
    return (
        rows.group_by(kinds)
        .agg(
            calls=executions(),
            time=(pl.col("end") - pl.col("start")).sum(),
            in_steps=pl.col("in_steps").sum(),
        )
        .sort(kinds)
    )


def executions() -> pl.Expr:
    """How many kernels, or on a CPU how many operators whatever their number of stretches, some rows are."""
    return (~pl.col("continued").fill_null(False)).sum().cast(pl.Int64)


def all_whole() -> pl.Expr:
    """Whether each of some rows is all of its execution: only then they have a shortest and a longest."""
    return ~pl.col("continued").fill_null(False).any()


def mean_time() -> pl.Expr:
    """`time` / `calls`. A slice of the trace may hold only the later stretches of an operator."""
    return pl.when(pl.col("calls") > 0).then((pl.col("time") / pl.col("calls")).round().cast(pl.Int64))
