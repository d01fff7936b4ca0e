"""Which framework a recorded job trains with, and which changes it has made already.

Frames and ranges that frameworks leave tell; what is merely installed does not. A trainer stands on others
(the Hugging Face Trainer on Accelerate, Megatron-Bridge on Megatron), so the first that is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl

from lostflops.naming.gpus import matrix_units
from lostflops.store.trace import Trace

from .remedy import Setting, Version

MARKS: Mapping[str, str] = {
    "torchtitan": r"(?:^|/)torchtitan/",
    "bridge": r"(?:^|/)(?:megatron/bridge|nemo/(?:collections|lightning))/",
    "megatron": r"(?:^|/)megatron/(?:core|training|legacy)/|^(?:forward|backward)-compute$",
    "hf": r"(?:^|/)(?:transformers/trainer\w*\.py|trl/trainer/)|Trainer\.training_step$",
    "lightning": r"(?:^|/)(?:lightning/(?:pytorch|fabric)|pytorch_lightning|lightning_fabric)/"
    r"|^\[(?:pl|_TrainingEpochLoop|Strategy|LightningModule|LightningDataModule|Callback)\]",
    "accelerate": r"(?:^|/)accelerate/\w+\.py",
    "deepspeed": r"(?:^|/)deepspeed/|^DeepSpeed(?:Engine|ZeroOptimizer)\w*\.",
}
SHARDED = r"^FSDP::|FullyShardedDataParallel|torch/distributed/(?:fsdp|_composable/fsdp)/"
REPLICATED = r"^DistributedDataParallel\.|torch/nn/parallel/distributed\.py"
# What a recording shows of changes that were made, by the table whose names tell.
EFFECTS: Mapping[str, tuple[str, str]] = {
    "workers": ("ranges", r"_MultiProcessingDataLoaderIter"),
    "fused optimizer": ("kernels", r"(?i)fused_?adam|FusedAdamMathFunctor|FusedSgdMathFunctor|_fused_adamw_"),
    "compiled": ("kernels", r"^triton_"),
    "graphs": ("launches", r"^(?:cuda|hip|cu)GraphLaunch"),
}
LONGEST = 400
# Calls of a wrapped model, and the share of the bytes of gradients that may be sent before the last of them.
FORWARD = r"^DistributedDataParallel\.forward$|^FSDP::root_pre_forward|FullyShardedDataParallel\.forward$"
EARLY = 0.1
VERSION = re.compile(r"\b(torch|transformers|accelerate|deepspeed|lightning|torchtitan) (\d+(?:\.\d+){1,2})")


def setting(trace: Trace) -> Setting:
    """How the job trains, as far as the names in its recording tell."""
    hosts = [name for table in ("frames", "ranges", "operators") for name in _names(trace, table)]
    told = _told(trace)
    found = [framework for framework, mark in MARKS.items() if framework in told or _any(mark, hosts)]
    on = {effect for effect, (table, mark) in EFFECTS.items() if _any(mark, _names(trace, table))}
    if _any(r"_fused_(?:adamw?|sgd|adagrad)_?$", hosts):
        on.add("fused optimizer")
    if _any(r"CompiledFunction|Torch-Compiled Region", hosts):
        on.add("compiled")
    if _sends_once(trace):
        on.add("no_sync")
    gpu, versions = _installed(trace)
    return Setting(
        framework=found[0] if found else "pytorch",
        deepspeed="deepspeed" in found[1:],
        sharding="fsdp" if _any(SHARDED, hosts) else "ddp" if _any(REPLICATED, hosts) else "",
        on=frozenset(on),
        units=matrix_units(gpu),
        versions=versions,
    )


def _told(trace: Trace) -> set[str]:
    """The frameworks that `lostflops record` saw at work."""
    ranks = trace.table("ranks")
    if ranks is None:
        return set()
    said = ranks.select(pl.col("frameworks").cast(pl.String).unique()).collect().to_series().drop_nulls()
    return {name for text in said for name in text.split()}


def _installed(trace: Trace) -> tuple[str | None, dict[str, Version]]:
    """The GPU, where all ranks have one kind, and the versions of packages that the recording names."""
    ranks = trace.table("ranks")
    if ranks is None:
        return None, {}
    rows = ranks.select("gpu", "versions").unique().collect()
    gpus = rows["gpu"].drop_nulls().unique()
    found = {
        package: tuple(map(int, number.split(".")))
        for text in rows["versions"].drop_nulls()
        for package, number in VERSION.findall(text)
    }
    return (gpus[0] if gpus.len() == 1 else None), found


def _sends_once(trace: Trace) -> bool:
    """Whether steps have several micro-batches, of which only the last sends gradients.

    Then no gradient is reduced before the last call of the wrapped model's forward pass.
    """
    steps, ranges, collectives = (trace.table(t) for t in ("steps", "ranges", "collectives"))
    if steps is None or ranges is None or collectives is None:
        return False
    named = pl.col("name").cast(pl.String).str.contains(FORWARD)
    passes = ranges.filter(named).select("rank", "start").sort("rank", "start").collect()
    sent = (
        collectives.filter(pl.col("kind").cast(pl.String).is_in(["all-reduce", "reduce-scatter"]))
        .select("rank", start="arrival", size=pl.max_horizontal("bytes_in", "bytes_out").fill_null(1))
        .sort("rank", "start")
        .collect()
    )
    if passes.is_empty() or sent.is_empty():
        return False
    place = steps.select("rank", "step", "start").sort("rank", "start").collect()
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


def _names(trace: Trace, table: str) -> list[str]:
    rows = trace.table(table)
    if rows is None or "name" not in rows.collect_schema().names():
        return []
    names = rows.select(pl.col("name").unique().cast(pl.String)).collect()["name"]
    return [name[:LONGEST] for name in names.drop_nulls()]


def _any(mark: str, names: Iterable[str]) -> bool:
    seen = re.compile(mark)
    return any(seen.search(name) for name in names)
