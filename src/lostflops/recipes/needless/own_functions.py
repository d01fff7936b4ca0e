"""Functions of autograd that are written in Python, on a CPU: what they take outside of operators."""

from __future__ import annotations

import polars as pl

from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.store.trace import Trace

# A node of a `torch.autograd.Function` has its class's name; one of PyTorch's in C++ ends with a number.
# Those of compiled programs compute by themselves, and PyTorch's own are no functions of the job's.
NODE = r"^[A-Za-z]\w*Backward$"
NOT_OWN = r"^(?:Compiled|Checkpoint|RegisterPost|DDP)"
OWN_FUNCTIONS = pl.Schema({"rank": pl.Int32, "name": pl.String, "ns": pl.Int64})


def own_functions(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long a CPU is in functions of autograd in Python, and in no operator that they call, in all steps
    that count, by the name of the function or its node, ns."""
    kernels, steps, ranks = trace.table("kernels"), trace.table("steps"), trace.table("ranks")
    if kernels is None or steps is None or ranks is None:
        return OWN_FUNCTIONS.to_frame()
    name = pl.col("name").cast(pl.String)
    names = kernels.select(name.unique()).collect()["name"].drop_nulls()
    nodes = names.filter(names.str.contains(NODE) & ~names.str.contains(NOT_OWN))
    asked = [*nodes, *nodes.str.strip_suffix("Backward")]
    main = ranks.filter(pl.col("device_kind").cast(pl.String) == "cpu").select("rank", thread="main_thread")
    rows = kernels.filter(name.is_in(asked)).select("rank", "thread", "start", "end", name)
    here = in_host_steps(
        rows.join(main, on=["rank", "thread"], how="semi"), host_steps(steps, counted.lazy())
    )
    return (
        here.group_by("rank", "name")
        .agg(ns=(pl.col("end") - pl.col("start")).sum())
        .select(pl.col(c).cast(t) for c, t in OWN_FUNCTIONS.items())
        .sort("rank", "ns", "name", descending=[False, True, False])
        .collect()
    )
