"""Matrix products in fp32 on CPUs that multiply bf16."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

# Operators that multiply matrices themselves, on a CPU.
PRODUCTS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution",
    "aten::convolution_backward",
)  # fmt: skip
FLOAT = '["float"'
FP32_PRODUCTS = pl.Schema({"name": pl.String, "ns": pl.Int64, "calls": pl.Int64})


def fp32_products(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long operators of each name multiply matrices of fp32 in all steps and ranks, and how often.

    Nothing where the CPU of a rank has no instructions for bf16, or is not known; `lostflops record` knows.
    """
    none = FP32_PRODUCTS.to_frame()
    operators, steps, ranks = (trace.table(name) for name in ("operators", "steps", "ranks"))
    if operators is None or steps is None or ranks is None:
        return none
    if ranks.select(pl.col("bf16_units").is_null().any()).collect().item():
        return none
    in_fp32 = pl.col("dtypes").cast(pl.String).str.starts_with(FLOAT).fill_null(False)
    rows = operators.filter(pl.col("name").cast(pl.String).is_in(PRODUCTS) & in_fp32).select(
        "rank", "thread", "start", "end", pl.col("name").cast(pl.String)
    )
    here = in_host_steps(rows, host_steps(steps, counted.lazy())).collect()
    calls = here.group_by("name").agg(calls=pl.len().cast(pl.Int64))
    lanes = intervals.union(here.lazy(), ["rank", "thread", "name"])
    spent = lanes.group_by("name").agg(ns=(pl.col("end") - pl.col("start")).sum()).collect()
    return pl.concat([none, spent.join(calls, on="name").select(*FP32_PRODUCTS)]).sort(
        "ns", "name", descending=[True, False]
    )
