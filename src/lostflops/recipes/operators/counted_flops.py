"""FLOPs that each rank's matrix work asks for inside its steps, and the peak they are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from lostflops import intervals
from lostflops.finding import percent
from lostflops.naming.cards import peak
from lostflops.recipes.compute.flops import FLOPS, GROUPED, MATRIX_WORK, flops_of, launch_counted
from lostflops.recipes.operators.traffic import precision_of

# Of the matrix work's time so much must have FLOPs that are known, and be of one precision where only the
# kernels' names tell it.
ALL_KNOWN, ONE_PRECISION = 0.95, 0.9
WORTH_NAMING = 0.01  # of the FLOPs: less of a precision weighs, and is not named
KINDS = ["rank", "name", "shapes", "dtypes", "precision", "phase"]
FORWARD_NAMES = ("aten::linear", "aten::conv2d", "aten::scaled_dot_product_attention", "aten::layer_norm")


@dataclass(frozen=True)
class Work:
    """FLOPs inside the steps of a rank: the model's, what ran again, and all of it by precision."""

    model: float = 0.0
    again: float = 0.0
    by_precision: Mapping[str | None, float] = field(default_factory=dict[str | None, float])
    hidden: bool = False  # the backward pass computes again what no phase tells apart
    missing: int = 0  # calls whose shapes do not tell
    covered: float = 0.0  # share of the time of matrix kernels whose FLOPs are counted


@dataclass(frozen=True)
class Rate:
    """FLOP/s that a GPU can do of some work, and in which precision; None where it is not known."""

    flops: float | None
    precision: str | None
    why: str = ""


def counted(
    operator_times: pl.LazyFrame | None,
    kernels: pl.LazyFrame | None,
    counted_steps: pl.LazyFrame,
    causal: bool,
) -> dict[int, Work]:
    """Per rank what matrix products and attention ask for inside steps, as far as shapes tell.

    Where launches are known, each call of an operator counts as far as its kernels lie inside steps; else all
    kinds count as far as the kernels of all of them do.
    """
    if operator_times is None or kernels is None:
        return {}
    calls = operator_times.group_by(KINDS).agg(pl.col("calls", "device_total", "calls_in_steps").sum())
    rows = calls.sort(KINDS, nulls_last=True).collect()
    matrix = _matrix_time(kernels, counted_steps)
    return {
        rank: _of_rank(mine, matrix.filter(pl.col("rank") == rank), causal)
        for (rank,), mine in rows.partition_by("rank", as_dict=True, maintain_order=True).items()
    }


def _matrix_time(kernels: pl.LazyFrame, counted_steps: pl.LazyFrame) -> pl.DataFrame:
    """Time of matrix kernels by rank, launching operator and precision, and the part of it inside steps."""
    words = pl.col("operator", "precision").cast(pl.String)
    those = kernels.filter(pl.col("family").cast(pl.String).is_in(MATRIX_WORK)).select(
        "rank", "start", "end", words, time=pl.col("end") - pl.col("start")
    )
    inside = intervals.inside(those, intervals.union(counted_steps, ["rank"]), {"in_steps": pl.lit(True)})
    return inside.group_by("rank", "operator", "precision").agg(pl.col("time", "in_steps").sum()).collect()


def _of_rank(rows: pl.DataFrame, matrix: pl.DataFrame, causal: bool) -> Work:
    launched = int(rows["device_total"].sum()) > 0
    time, in_steps = (int(matrix[c].sum()) for c in ("time", "in_steps"))
    again = (pl.col("phase") == "backward") & pl.col("name").is_in(FORWARD_NAMES)
    usual, work, missing = _usual(matrix), Work(), 0
    only_call = GROUPED.difference(matrix["operator"])
    totals = dict[str | None, float]()
    for name, shapes, dtypes, said, phase, calls, device, inside in rows.select(
        *KINDS[1:], "calls", "device_total", "calls_in_steps"
    ).iter_rows():
        ran = (inside if device else 0.0) if launched else calls * in_steps / time if time else 0.0
        if name not in FLOPS or name in only_call or not ran:
            continue
        each = flops_of(name, shapes, dtypes)
        if each is None:
            missing += calls
            continue
        flops = each * ran / (2 if causal and "attention" in name else 1)
        which = "again" if phase == "recompute" else "model"
        work = replace(work, **{which: getattr(work, which) + flops})
        precision = precision_of(dtypes) or said or usual
        totals[precision] = totals.get(precision, 0.0) + flops
    named = dict(rows.group_by("name").agg(pl.col("calls").sum()).iter_rows())
    told = matrix.filter(pl.col("operator").is_in(launch_counted(named)))
    return replace(
        work,
        by_precision=totals,
        hidden=not rows.filter(again).is_empty(),
        missing=missing,
        covered=int(told["in_steps"].sum()) / in_steps if in_steps else 0.0,
    )


def _usual(matrix: pl.DataFrame) -> str | None:
    """The precision of nearly all matrix kernels of a rank that say theirs."""
    said = matrix.filter(pl.col("precision").is_not_null())
    time = said.group_by("precision").agg(pl.col("in_steps").sum())
    whole = int(time["in_steps"].sum())
    if not whole or 2 * whole < int(matrix["in_steps"].sum()):
        return None
    name, most = time.sort("in_steps", "precision", descending=[True, False]).row(0)
    return name if most >= ONE_PRECISION * whole else None


def gap(work: Work) -> str:
    """What is not known of the FLOPs that ran, in words; empty where all is."""
    if work.missing:
        return f"{work.missing:,} matrix products or attentions have no shapes"
    if not work.model + work.again:
        return "no shapes of matrix products were recorded: record with `--what cuda,shapes`"
    if work.covered < ALL_KNOWN:
        return f"shapes tell the FLOPs of {percent(work.covered, 1)} of the matrix work's time"
    return ""


def weighted(gpu: str, work: Work) -> Rate:
    """The peak of the precisions that the work is in, weighted by its FLOPs."""
    if not work.by_precision:
        return Rate(None, None, "no matrix work tells its precision")
    whole = sum(work.by_precision.values())
    names = sorted(str(p) for p, flops in work.by_precision.items() if p and flops >= WORTH_NAMING * whole)
    said = " and ".join(names) or None
    seconds = 0.0
    for precision, flops in work.by_precision.items():
        if precision is None:
            return Rate(None, said, "neither types nor kernels tell the precision of all matrix work")
        rate = peak(gpu, precision)
        if rate is None:
            card = f"'{gpu}'" if gpu else "a GPU whose name was not recorded"
            return Rate(None, said, f"the peak of {card} in {precision} is not known: --peak-tflops gives it")
        seconds += flops / rate
    return Rate(whole / seconds, said) if seconds else Rate(None, said, "no FLOPs were counted")
