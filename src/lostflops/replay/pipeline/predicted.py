"""How long a recorded pipeline's step would take with another schedule, more chunks or smaller microbatches.

The recorded schedule is replayed in the same way: by how much that misses is the error of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from ..graph import Int
from .both_ways import both_ways_time
from .step import step_time

TRUSTED = 0.05  # of the recorded time: a replay that misses more says nothing of other schedules
HALF = 0.5  # of the matrix products of a backward pass are gradients of weights
CHUNKS = (2, 4)
UNCHANGED = "as recorded"
HALVES = "chunks take an even part of their stage, and cost nothing more"
SMALLER = "a microbatch of half the size takes half as long"
LARGER = "a microbatch of twice the size takes twice as long, and fits into memory"
APART = "gradients of weights are half of a backward pass's matrix products"
SAME = "passes take as long as they did"
BOTH_WAYS = (
    f"{APART}; two passes side by side take as long as one after the other, so what their overlap hides "
    "comes on top; each rank holds the weights of two stages"
)
DUAL = "dualpipe"
IN_PARTS = ("zb", DUAL)  # schedules that put off the gradients of weights


class Variant(NamedTuple):
    """A schedule to replay, by how much a microbatch is divided, and what has to hold for the answer."""

    schedule: str
    chunks: int
    microbatches: int
    divided: float
    assumes: str


def predictions(
    found: pl.DataFrame,
    known: pl.DataFrame,
    schedule: str,
    microbatches: int,
    chunks: int,
    products: float,
) -> pl.DataFrame:
    """Rows: schedule, chunks, microbatches, pipeline, replayed, predicted, error, assumes; ns.

    `pipeline` is the mean recorded time from the first pass to the last, `replayed` the same replayed. Where
    replay misses by more than `TRUSTED`, `predicted` is null. `products` is how much of backward passes is
    matrix products.
    """
    stages = int(found["stage"].n_unique())
    recorded = round(float((known["end"] - known["start"]).to_numpy().mean()))
    hop = int(np.median(found["transfer"].drop_nulls().to_numpy())) if found["transfer"].count() else 0
    times = stage_times(found, known.height, HALF * products)
    own = Variant(schedule, chunks, microbatches, 1, UNCHANGED)
    replayed = replayed_variant(times, own, hop)
    error = replayed / recorded - 1
    trusted = abs(error) <= TRUSTED
    return pl.DataFrame(
        [
            {
                "schedule": each.schedule,
                "chunks": each.chunks,
                "microbatches": each.microbatches,
                "pipeline": recorded,
                "replayed": replayed,
                "predicted": replayed_variant(times, each, hop) if trusted else None,
                "error": error,
                "assumes": each.assumes,
            }
            for each in (own, *_variants(own, stages))
        ]
    )


def _variants(own: Variant, stages: int) -> Iterator[Variant]:
    many = own.microbatches
    if own.schedule not in ("1f1b", "gpipe"):
        yield Variant("1f1b", 1, many, 1, SAME)
    for chunks in CHUNKS:
        if (own.schedule, own.chunks) != ("interleaved", chunks) and many % stages == 0:
            yield Variant("interleaved", chunks, many, 1, HALVES)
    if own.schedule != "zb":
        yield Variant("zb", 1, many, 1, APART)
    yield own._replace(microbatches=2 * many, divided=2, assumes=SMALLER)
    if many % 2 == 0 and (own.chunks == 1 or many // 2 % stages == 0):
        yield own._replace(microbatches=many // 2, divided=0.5, assumes=LARGER)


def stage_times(found: pl.DataFrame, steps: int, weights: float) -> pl.DataFrame:
    """What each stage does in a mean step, ns: F, B for all of the backward pass, and W of it.

    `steps` is how many steps of pipelines `found` holds. Without any W, that is the share `weights` of B.
    """
    span = pl.col("end") - pl.col("start")
    sums = (
        found.group_by("stage")
        .agg(
            F=span.filter(pl.col("kind") == "F").sum() / steps,
            B=span.filter(pl.col("kind") != "F").sum() / steps,
            W=span.filter(pl.col("kind") == "W").sum() / steps,
        )
        .sort("stage")
    )
    apart = sums.filter(pl.col("W") > 0)
    part = float((apart["W"] / apart["B"]).to_numpy().mean()) if apart.height else weights
    return sums.with_columns(W=pl.when(pl.col("W") > 0).then("W").otherwise(part * pl.col("B")))


def replayed_variant(times: pl.DataFrame, variant: Variant, hop: int) -> int:
    """How long a pipeline takes with a schedule, from what `stage_times` gives and the time of a hop, ns."""

    def each(ns: pl.Series) -> Int:
        one = (ns / variant.microbatches).round().cast(pl.Int64).to_numpy()
        return np.repeat(one[:, None], variant.microbatches, axis=1)

    in_parts = variant.schedule in IN_PARTS
    back = times["B"] - times["W"] if in_parts else times["B"]
    durations = {"F": each(times["F"]), "B": each(back)}
    if in_parts:
        durations["W"] = each(times["W"])
    way = round(hop / variant.divided)
    if variant.schedule == DUAL:
        return both_ways_time(durations, hop=way)
    return step_time(variant.schedule, durations, hop=way, chunks=variant.chunks)


def busiest(times: pl.DataFrame, schedule: str) -> int:
    """What the busiest rank computes in a step, ns: no order makes a pipeline shorter than that."""
    each = (times["F"] + times["B"]).to_numpy()
    return int(np.max((each + each[::-1]) / 2 if schedule == DUAL else each))
