"""What is asked of some ranks at a time, which processes tell beside the recipes of these ranks."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from lostflops import intervals
from lostflops.causes.given import CHECKPOINT, NAMES, OTHER_HOST
from lostflops.recipes.accounting import UNEXPLAINED
from lostflops.recipes.compute.of_ranks import flops_in_steps
from lostflops.recipes.host.launching_threads import launches_beside
from lostflops.recipes.host.saving import held_up_by_async, with_proofs
from lostflops.recipes.idle.evaluations import in_evaluations
from lostflops.recipes.idle.gaps import after_late_launches, between_nodes
from lostflops.recipes.idle.made_tensors import made_on_cpu
from lostflops.recipes.idle.read_values import reads_after_passes
from lostflops.recipes.idle.updates import in_updates_of_some
from lostflops.recipes.layout.micro_batches import micro_batches
from lostflops.recipes.needless.given_back import given_back
from lostflops.recipes.needless.run_again import run_again_on_device
from lostflops.recipes.operators.loss_work import loss_work
from lostflops.recipes.operators.weight_casts import weight_casts
from lostflops.session import Fold
from lostflops.store.trace import Trace

LONG = 1_000_000  # ns: a framework takes microseconds between two operators
IDLE = ("idle_causes",)


def named_idle(
    trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """How long idle time of steps that count has each name, but for checkpoints, and the stretches of those:
    what proves that a checkpoint is saved is sought among all ranks."""
    if stretches is None:
        return NAMES.to_frame(), NAMES.to_frame()
    here = stretches.join(counted, on=["rank", "step"], how="semi")
    saving = here.filter(account=CHECKPOINT).with_columns(pl.col("name").cast(pl.String))
    return summed(here.filter(pl.col("account") != CHECKPOINT)), saving


def summed(stretches: pl.DataFrame) -> pl.DataFrame:
    return (
        stretches.group_by("rank", "account", "name")
        .agg(ns=(pl.col("end") - pl.col("start")).sum())
        .select(pl.col(c).cast(t) for c, t in NAMES.items())
    )


def names_of(trace: Trace, told: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> pl.DataFrame:
    """How long the idle time of each rank has each name."""
    saving = [rows for _, rows in told if rows.height]
    proven = [summed(with_proofs(pl.concat(saving), trace))] if saving else []
    return pl.concat([NAMES.to_frame(), *(by_name for by_name, _ in told), *proven])


def in_long_pauses(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    """How much of the host's other work comes in stretches of a millisecond or more, ns."""
    return _in_long(OTHER_HOST, counted, stretches)


def in_long_unexplained(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    """How much of what nothing explains comes in stretches of a millisecond or more, ns."""
    return _in_long(UNEXPLAINED, counted, stretches)


def _in_long(account: str, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    if stretches is None:
        return 0
    other = stretches.filter(pl.col("account") == account).join(counted, on=["rank", "step"], how="semi")
    length = pl.col("end") - pl.col("start")
    pauses = intervals.union(other.lazy(), ["rank"]).filter(length >= LONG)
    return int(pauses.select(length.sum()).collect().item() or 0)


def pauses_between_nodes(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    """As `between_nodes` tells it."""
    kernels = trace.table("kernels")
    return 0 if stretches is None or kernels is None else between_nodes(stretches, kernels, counted)


def latency_of_late_launches(trace: Trace, counted: pl.DataFrame, stretches: pl.DataFrame | None) -> int:
    """As `after_late_launches` tells it."""
    return 0 if stretches is None else after_late_launches(stretches, counted)


NAMED = Fold(named_idle, IDLE)
LONG_PAUSES = Fold(in_long_pauses, IDLE)
LONG_UNEXPLAINED = Fold(in_long_unexplained, IDLE)
BETWEEN_NODES = Fold(pauses_between_nodes, IDLE)
LATE_LAUNCHES = Fold(latency_of_late_launches, IDLE)
UPDATED = Fold(in_updates_of_some, IDLE)
EVALUATED = Fold(in_evaluations, IDLE)
MADE_ON_CPU = Fold(made_on_cpu, IDLE)
LAUNCHED_BESIDE = Fold(launches_beside, IDLE)
GIVEN_BACK = Fold(given_back, IDLE)
FLOPS = Fold(flops_in_steps)
MICRO_BATCHES = Fold(micro_batches)
READ_AFTER_PASSES = Fold(reads_after_passes)
LOSS_WORK = Fold(loss_work)
WEIGHT_CASTS = Fold(weight_casts)
HELD_BY_ASYNC = Fold(held_up_by_async)
RUN_AGAIN = Fold(run_again_on_device)
ALL = (
    *(NAMED, LONG_PAUSES, BETWEEN_NODES, LATE_LAUNCHES, UPDATED, EVALUATED, MADE_ON_CPU, LAUNCHED_BESIDE),
    *(FLOPS, MICRO_BATCHES, READ_AFTER_PASSES, LOSS_WORK, WEIGHT_CASTS, HELD_BY_ASYNC),
    *(RUN_AGAIN, GIVEN_BACK, LONG_UNEXPLAINED),
)
