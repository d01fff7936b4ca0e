"""What a recording shows of changes that were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from lostflops.store.trace import OPENED, Trace

from . import names

WITH_WORKERS, WITHOUT = r"_MultiProcessingDataLoaderIter", r"_SingleProcessDataLoaderIter"
# By the table whose names tell.
EFFECTS: Mapping[str, tuple[str, str]] = {
    "workers": ("ranges", WITH_WORKERS),
    "fused optimizer": ("kernels", r"(?i)fused_?adam|FusedAdamMathFunctor|FusedSgdMathFunctor|_fused_adamw_"),
    "compiled": ("kernels", r"^triton_"),
    "graphs": ("launches", r"^(?:cuda|hip|cu)GraphLaunch"),
}
# Calls of a wrapped model, and the share of the bytes of gradients that may be sent before the last of them.
FORWARD = r"^DistributedDataParallel\.forward$|^FSDP::root_pre_forward|FullyShardedDataParallel\.forward$"
EARLY = 0.1
HALVES = r"(?i)^(?:c10::|torch\.|nccl)?(?:bf16|bfloat16|fp16|f16|float16|half)$"


def on(
    named: Mapping[str, Sequence[str]],
    hosts: Sequence[str],
    sends_once: bool,
    loads_alone: bool = False,
    in_halves: bool = False,
) -> frozenset[str]:
    """The effects that show; `named` are the names in each table, `hosts` those of what ran on the host."""
    found = {effect for effect, (table, mark) in EFFECTS.items() if names.any_has(mark, named.get(table, ()))}
    if names.any_has(r"_fused_(?:adamw?|sgd|adagrad)_?$", hosts):
        found.add("fused optimizer")
    if names.any_has(r"CompiledFunction|Torch-Compiled Region", hosts):
        found.add("compiled")
    if sends_once:
        found.add("no_sync")
    if in_halves:
        found.add("bf16 gradients")
    if loads_alone:
        found.discard("workers")
    return frozenset(found)


# What only a job that trains runs: on the host, and on the device where a graph holds the whole step.
GRADIENTS = r"^autograd::|Backward\d*$|^Optimizer\.step#"
ON_DEVICE = r"(?i)back?ward|bwd|dgrad|wgrad|multi_tensor_apply|adam|sgd"


def trains(named: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> bool:
    """Whether the job computes gradients, or may: where no operators were recorded nothing tells."""
    operators = named.get("operators", ())
    return (
        not operators or names.any_has(GRADIENTS, hosts) or names.any_has(ON_DEVICE, named.get("kernels", ()))
    )


def loads_alone(trace: Trace, named: Mapping[str, Sequence[str]]) -> bool:
    """Whether of several loaders those without workers take longer: adding workers is what helps them."""
    ranges = trace.table("ranges")
    here = named.get("ranges", ())
    if ranges is None or not (names.any_has(WITHOUT, here) and names.any_has(WITH_WORKERS, here)):
        return False
    name, length = pl.col("name").cast(pl.String), (pl.col("end") - pl.col("start")).clip(0)
    alone, with_workers = (
        ranges.select(
            length.filter(name.str.contains(mark)).sum().alias(mark) for mark in (WITHOUT, WITH_WORKERS)
        )
        .collect()
        .row(0)
    )
    return alone > with_workers


def sends_once(trace: Trace) -> bool:
    """Whether steps have several micro-batches, of which only the last sends gradients.

    Then none is asked to be reduced before the last call of the wrapped model's forward pass.
    """
    steps, ranges, collectives = (trace.table(t) for t in ("steps", "ranges", "collectives"))
    if steps is None or ranges is None or collectives is None:
        return False
    named = pl.col("name").cast(pl.String).str.contains(FORWARD)
    passes = ranges.filter(named).select("rank", "start").sort("rank", "start").collect()
    if passes.is_empty():
        return False
    sent = (
        _asked(collectives, trace.table("kernels"))
        .filter(pl.col("kind").cast(pl.String).is_in(["all-reduce", "reduce-scatter"]))
        .select("rank", "start", size=pl.max_horizontal("bytes_in", "bytes_out").fill_null(1))
        .sort("rank", "start")
        .collect()
    )
    if sent.is_empty():
        return False
    place = steps.select("rank", "step", start=OPENED).sort("rank", "start").collect()
    of = {
        name: rows.with_columns(at="start").join_asof(
            place, on="start", by="rank", strategy="backward", check_sortedness=False
        )
        for name, rows in (("passes", passes), ("sent", sent))
    }
    last = of["passes"].group_by("rank", "step").agg(last=pl.col("at").max(), passes=pl.len())
    each = of["sent"].join(last, on=["rank", "step"])
    several = last.filter(pl.col("passes") > 1)
    early, whole = each.select(
        pl.col("size").filter(pl.col("at") < pl.col("last")).sum(), all=pl.col("size").sum()
    ).row(0)
    return 2 * several.height > last.height and bool(whole) and early < EARLY * whole


def reduces_halves(trace: Trace) -> bool:
    """Whether nearly all that is reduced is of 16 bits already."""
    collectives = trace.table("collectives")
    if collectives is None:
        return False
    size = pl.max_horizontal("bytes_in", "bytes_out").fill_null(0).cast(pl.Int64)
    reduced = collectives.filter(pl.col("kind").cast(pl.String).is_in(["all-reduce", "reduce-scatter"]))
    in_halves = pl.col("dtype").cast(pl.String).str.contains(HALVES).fill_null(False)
    halves, whole = reduced.select(size.filter(in_halves).sum(), all=size.sum()).collect().row(0)
    return bool(whole) and halves > (1 - EARLY) * whole


def _asked(collectives: pl.LazyFrame, kernels: pl.LazyFrame | None) -> pl.LazyFrame:
    """Operations, with `start` when the host asked for them: the device may be passes behind."""
    if kernels is None:
        return collectives.with_columns(start="arrival")
    launched = (
        kernels.drop_nulls(["launch_start", "correlation"])
        .group_by("rank", "correlation")
        .agg(_launched=pl.col("launch_start").min())
    )
    rows = collectives.join(launched, on=["rank", "correlation"], how="left")
    return rows.with_columns(start=pl.coalesce("_launched", "arrival"))
