"""Pauses of a CPU in PyTorch's own code, between operators on tensors that glibc cannot keep."""

from __future__ import annotations

import polars as pl

from lostflops.naming.classification import NODE
from lostflops.recipes.accounting import LONG, OTHER_HOST
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.operators.traffic import largest_tensor
from lostflops.store.trace import Trace

# glibc maps blocks from this size on by themselves, whatever it has learnt, and unmaps each that is freed.
MAPPED = 32 << 20
OTHER_ALLOCATORS = r"\b(?:jemalloc|tcmalloc|mimalloc) \d"
# For each operator of all steps, from which on it is no Python of PyTorch's, which runs around each of them.
BEYOND_PYTHON = 10_000  # ns
# Code of PyTorch's own: its functions, its optimizers, and nodes of autograd.
OPTIMIZERS = (
    r"Adam|AdamW|SGD|NAdam|RAdam|SparseAdam|Adamax|Adagrad|Adadelta|ASGD|RMSprop|Rprop|Adafactor|Muon"
)
THEIRS = rf"{NODE}|^Optimizer\.(?:step|zero_grad)#(?:{OPTIMIZERS})\.|^torch/"
GIVEN_BACK = pl.Schema({"rank": pl.Int32, "name": pl.String, "ns": pl.Int64, "bytes": pl.Int64})


def given_back(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> pl.DataFrame:
    """How long a CPU pauses between operators in PyTorch's own code, by name, ns, in pauses that are too long
    for what it runs there, where tensors are so large that freed memory goes back to Linux; and the bytes of
    the largest of these.

    Nothing where another allocator takes glibc's place, as far as `lostflops record` saw one. `stretches` is
    the table of `idle_causes`, `counted` has rank and step of the steps that count.
    """
    operators, steps, ranks = (trace.table(name) for name in ("operators", "steps", "ranks"))
    if operators is None or steps is None or ranks is None or stretches is None:
        return GIVEN_BACK.to_frame()
    length, name = pl.col("end") - pl.col("start"), pl.col("name").cast(pl.String)
    what = name.str.replace(r" in \S+\(\d+\): .+$", "")
    pauses = (
        stretches.filter(pl.col("account") == OTHER_HOST, length >= LONG, what.str.contains(THEIRS))
        .join(counted, on=["rank", "step"], how="semi")
        .group_by("rank", name)
        .agg(ns=length.sum())
    )
    if pauses.is_empty():
        return GIVEN_BACK.to_frame()
    other = pl.col("versions").str.contains(OTHER_ALLOCATORS).fill_null(False)
    main = ranks.filter(pl.col("device_kind").cast(pl.String) == "cpu", ~other)
    rows = operators.select("rank", "start", pl.col("shapes", "dtypes").cast(pl.String)).join(
        main, on="rank", how="semi"
    )
    here = in_host_steps(rows, host_steps(steps, counted.lazy()))
    kinds = here.group_by("rank", "shapes", "dtypes").agg(operators=pl.len()).collect()
    sizes = [largest_tensor(*row) for row in kinds.select("shapes", "dtypes").iter_rows()]
    kinds = kinds.with_columns(bytes=pl.Series(sizes, dtype=pl.Int64))
    largest = kinds.group_by("rank").agg(pl.col("bytes").max(), operators=pl.col("operators").sum())
    too_long = pl.col("ns").sum().over("rank") >= BEYOND_PYTHON * pl.col("operators")
    return (
        pauses.join(largest.filter(pl.col("bytes") >= MAPPED), on="rank")
        .filter(too_long)
        .select(pl.col(c).cast(t) for c, t in GIVEN_BACK.items())
        .sort("rank", "ns", "name", descending=[False, True, False])
    )
