"""Matrix products of types that a CPU need not multiply so slowly."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

# Operators that multiply matrices themselves, on a CPU.
PRODUCTS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution",
    "aten::convolution_backward", "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward",
)  # fmt: skip
FP32, FP64 = "fp32", "fp64"
CALLED = {"float": FP32, "double": FP64}
SLOW_PRODUCTS = pl.Schema({"precision": pl.String, "name": pl.String, "ns": pl.Int64, "calls": pl.Int64})


def slow_products(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long operators multiply matrices of fp32 and fp64 in all steps and ranks, by name, and how often.

    fp32 is left out where the CPU of a rank has no instructions for bf16, or is not known; `lostflops record`
    knows.
    """
    none = SLOW_PRODUCTS.to_frame()
    operators, steps, ranks = (trace.table(name) for name in ("operators", "steps", "ranks"))
    if operators is None or steps is None or ranks is None:
        return none
    units = not ranks.select(pl.col("bf16_units").is_null().any()).collect().item()
    types = list(CALLED) if units else ["double"]
    of = pl.col("dtypes").cast(pl.String).str.extract(r'^\["(\w+)"')
    rows = operators.filter(pl.col("name").cast(pl.String).is_in(PRODUCTS) & of.is_in(types)).select(
        "rank", "thread", "start", "end", pl.col("name").cast(pl.String), precision=of.replace_strict(CALLED)
    )
    here = in_host_steps(rows, host_steps(steps, counted.lazy())).collect()
    by = ["precision", "name"]
    calls = here.group_by(by).agg(calls=pl.len().cast(pl.Int64))
    lanes = intervals.union(here.lazy(), ["rank", "thread", *by])
    spent = lanes.group_by(by).agg(ns=(pl.col("end") - pl.col("start")).sum()).collect()
    return pl.concat([none, spent.join(calls, on=by).select(*SLOW_PRODUCTS)]).sort(
        "ns", *by, descending=[True, False, False]
    )
