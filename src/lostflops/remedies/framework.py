"""Which framework a recorded job trains with, and which changes it has made already.

Frames and ranges that frameworks leave tell; what is merely installed does not. A trainer stands on others
(the Hugging Face Trainer on Accelerate, Megatron-Bridge on Megatron), so the first that is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl

from lostflops.store.trace import Trace

from .remedy import Setting

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


def setting(trace: Trace) -> Setting:
    """How the job trains, as far as the names in its recording tell."""
    hosts = [name for table in ("frames", "ranges", "operators") for name in _names(trace, table)]
    found = [framework for framework, mark in MARKS.items() if _any(mark, hosts)]
    on = {effect for effect, (table, mark) in EFFECTS.items() if _any(mark, _names(trace, table))}
    if _any(r"_fused_(?:adamw?|sgd|adagrad)_?$", hosts):
        on.add("fused optimizer")
    if _any(r"CompiledFunction|Torch-Compiled Region", hosts):
        on.add("compiled")
    return Setting(
        framework=found[0] if found else "pytorch",
        deepspeed="deepspeed" in found[1:],
        sharding="fsdp" if _any(SHARDED, hosts) else "ddp" if _any(REPLICATED, hosts) else "",
        on=frozenset(on),
    )


def _names(trace: Trace, table: str) -> list[str]:
    rows = trace.table(table)
    if rows is None or "name" not in rows.collect_schema().names():
        return []
    names = rows.select(pl.col("name").unique().cast(pl.String)).collect()["name"]
    return [name[:LONGEST] for name in names.drop_nulls()]


def _any(mark: str, names: Iterable[str]) -> bool:
    seen = re.compile(mark)
    return any(seen.search(name) for name in names)
