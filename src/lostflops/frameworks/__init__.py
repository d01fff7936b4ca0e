"""Which framework a recorded job trains with, and which changes it has made already.

What the job itself leaves tells, the surest first: objects that `lostflops record` saw, names of functions
and ranges, the command line, imported packages. What is merely installed does not. Where nothing tells, the
framework is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import polars as pl

from lostflops.errors import shown
from lostflops.naming.gpus import matrix_units
from lostflops.naming.makers import WITH_GRAPHS, maker
from lostflops.remedies import FRAMEWORKS, UNKNOWN, Setting
from lostflops.remedies.snippet import Version
from lostflops.store.trace import Trace

from . import command_line, effects, names

__all__ = ["setting"]

# A trainer stands on others (the Hugging Face Trainer on Accelerate, Megatron-Bridge on Megatron), so the
# first that is found counts.
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
# Frameworks that have no words of their own: their jobs are not those of plain PyTorch either.
OTHERS = (
    r"(?:^|/)(?:vllm|sglang|composer|fairseq2?|mmengine|detectron2|fastai|torchtune|colossalai|xfuser|keras"
    r"|llamafactory|nanotron|olmo_core|levanter|maxtext|ray/train|tensorrt_llm)/"
)
Kept = Callable[[str, Callable[[], pl.DataFrame]], pl.DataFrame]
PYTHON = re.compile(r"\.py\(\d+\): ")
VERSION = re.compile(r"\b(torch|transformers|accelerate|deepspeed|lightning|torchtitan) (\d+(?:\.\d+){1,2})")
# A job that imports one of them trains with it; others are also imported for their models or their tools.
IMPORTED = ("torchtitan", "lightning")


def _anew(name: str, made: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    return made()


def setting(trace: Trace, kept: Kept = _anew) -> Setting:
    """How the job trains, as far as its recording and its run folder tell.

    `kept` gives what was made of the recording before under a name, or makes it and keeps it.
    """
    told = kept("page_all_names", lambda: names.of(trace))
    named = {str(table): rows["name"].to_list() for (table,), rows in told.group_by("table")}
    hosts = [name for table in ("frames", "ranges", "operators") for name in named.get(table, ())]
    once = kept("page_sends_once", lambda: pl.DataFrame({"once": [effects.sends_once(trace)]})).item()
    alone = kept("page_loads_alone", lambda: pl.DataFrame({"alone": [effects.loads_alone(trace, named)]}))
    halves = kept("page_reduces_halves", lambda: pl.DataFrame({"halves": [effects.reduces_halves(trace)]}))
    gpu, versions = _installed(trace)
    found = _found(trace, hosts, versions)
    made_by = maker([gpu or ""], named.get("launches", ()))
    first, told_by = next(iter(found.items()), (UNKNOWN, ""))
    return Setting(
        framework=first,
        deepspeed="deepspeed" in list(found)[1:],
        sharding="fsdp"
        if names.any_has(SHARDED, hosts)
        else "ddp"
        if names.any_has(REPLICATED, hosts)
        else "",
        on=effects.on(named, hosts, once, alone.item(), halves.item()),
        units=matrix_units(gpu),
        fitting=str if made_by is None else made_by.spelled,
        replays_graphs=made_by is None or made_by.name in WITH_GRAPHS,
        versions=versions,
        told_by=told_by,
        trains=effects.trains(named, hosts),
    )


def _found(trace: Trace, hosts: Iterable[str], versions: Mapping[str, Version]) -> dict[str, str]:
    """The frameworks that tell of themselves, that which leads first, each with what told it."""
    hosts = list(hosts)
    told: dict[str, str] = dict.fromkeys(_seen_at_work(trace), "`lostflops record` saw it at work")
    for framework, mark in MARKS.items():
        if framework not in told and (name := names.first_that_has(mark, hosts)):
            told[framework] = f"'{shown(name)}' is in the recording"
    if not told and (typed := command_line.framework(trace.given)):
        told[typed] = "its command line names it"
    if not told:
        told.update((name, "the job imports it") for name in IMPORTED if name in versions)
    if not told and (name := names.first_that_has(OTHERS, hosts)):
        return {UNKNOWN: f"'{shown(name)}' is of a framework that has no words of its own here"}
    if not told and "torch" in versions:
        told["pytorch"] = "`lostflops record` saw no other framework at work"
    if not told and any(map(PYTHON.search, hosts)):
        told["pytorch"] = "no function of another framework is in the recording"
    return {framework: told[framework] for framework in FRAMEWORKS if framework in told}


def _seen_at_work(trace: Trace) -> set[str]:
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
