"""Ranks that wait for all others, as they have less of their own to do than those."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lostflops.causes.given import has_stages
from lostflops.causes.lateness import in_words, replayed_even
from lostflops.causes.longer_compute import asks_alike, other_gpu, slow_device
from lostflops.causes.names import called
from lostflops.causes.own_time.spent import own_by_step, shared_at_most
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds

from .several import EVEN_WORK, EXPLAINED, waiting_for

STEADY = 0.5  # of its mean, that a rank has less than the others in each step
COMPUTE = 0.8  # of what it has less, that is computing
MORE_TO_DO = (
    "Give {} more of the work, such as a larger share of the batch (with gradients weighted by tokens). A "
    "faster network does not help."
)


def with_less_to_do(page: PageFindings, waited: int, waits: Finding | None) -> int:
    """A few ranks compute less than the others in every step, and wait: how much of `waited` that explains,
    ns of a mean step and rank."""
    given = page.given
    own = own_by_step(given)
    if has_stages(given) or own.is_empty():
        return 0
    less = (
        own.with_columns(less=pl.col("own").median().over("step") - pl.col("own"))
        .group_by("rank")
        .agg(pl.col("less").mean(), least=pl.col("less").min())
        .filter(pl.col("less") > 0, pl.col("least") >= STEADY * pl.col("less"))
    )
    few = less.filter(2 * pl.col("less") >= pl.col("less").max()).sort("rank")
    explained = round(float(few["less"].sum())) // max(1, len(given.steps))
    if few.is_empty() or 2 * few.height >= len(given.steps) or explained < EXPLAINED * waited:
        return 0
    ranks = few["rank"].to_list()
    computes = given.by_rank("compute")
    beside = [computes.get(rank, 0) for rank in given.steps if rank not in ranks]
    usual = float(pl.Series(beside).median() or 0)  # pyright: ignore[reportArgumentType]
    shorter = [round(usual - computes.get(rank, 0)) for rank in ranks]
    mean = sum(shorter) // len(ranks)
    if sum(shorter) < COMPUTE * float(few["less"].sum()):
        return 0
    evidence: list[str] = []
    who, one = called(ranks), len(ranks) == 1
    gpus, remedy, edit = other_gpu(ranks[0], given), MORE_TO_DO.format(who), EVEN_WORK
    if gpus:
        evidence.append(f"{'it runs' if one else 'they run'} on {gpus[0]}, the others on {gpus[1]}")
        remedy, edit = slow_device(given), ""
    elif asks_alike(given):
        evidence.append("the operators of all ranks ask for the same FLOPs")
        remedy, edit = slow_device(given), ""
    elif steps := replayed_even(given):
        evidence.append(in_words(steps, given))
    does = f"it computes {milliseconds(mean)} less" if one else f"they compute {milliseconds(mean)} less"
    told = waiting_for(
        waited,
        None,
        at_most=shared_at_most(given),
        claim=f"Ranks wait {page.share(waited)}, nearly all of it {who} for the others: {does} than they in "
        "every step.",
        evidence=(*evidence, *(waits.evidence[1:2] if waits else ())),
        remedy=remedy,
        named=(),
        account="compute",
        doubt=waits.doubt if waits else "",
    )
    page.put(replace(told, edit=edit))
    return waited
