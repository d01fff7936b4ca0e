"""The parallel efficiency of a job as a product of factors, in the classic and the accelerator's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import polars as pl

from lostflops.columns import Flag, Name, Ratio, Text
from lostflops.recipe import Bars, Example, Rows, recipe
from lostflops.tables import Ranks, Steps

CLASSIC, ACCELERATOR, TALP = "classic", "accelerator", "accelerator, communication is useful"
MEANINGS: Mapping[str, str] = {
    "parallel efficiency": "mean useful / T: the product of the factors below",
    "load balance": "mean useful / most useful of a rank",
    "communication efficiency": "most useful / T",
    "serialisation": "most useful / T with instant transfers: what ranks wait for each other, and idle",
    "transfer": "T with instant transfers / T",
    "device communication": "most useful / most active of a rank",
    "orchestration": "most active / T: what the CPU leaves idle on the busiest GPU",
}
# What is in place of a replay leaves the waits as they are, of which instant transfers would end some.
BOUNDS: Mapping[str, str] = {"serialisation": "at least", "transfer": "at most"}
ACCEPTABLE = 0.8  # POP calls less than this a loss worth looking at
NO_TRANSFER = "transfer cannot be separated from waiting: record all ranks of the job"


CLASSIC_FACTORS = (
    "parallel efficiency",
    "load balance",
    "communication efficiency",
    "serialisation",
    "transfer",
)
DEVICE_FACTORS = ("parallel efficiency", "load balance", "device communication", "orchestration")


def _expect(
    values: Sequence[Sequence[float | None]], bounds: Mapping[str, str] = MappingProxyType({})
) -> Rows:
    """Rows of the three hierarchies with these values; None where it is unknown."""
    return [
        {"hierarchy": hierarchy, "factor": factor, "value": value, "bound": bounds.get(factor)}
        | {"low": None if value is None else value < ACCEPTABLE, "meaning": MEANINGS[factor]}
        | {"unknown": NO_TRANSFER if value is None else None}
        for hierarchy, of_it in zip((CLASSIC, ACCELERATOR, TALP), values, strict=True)
        for factor, value in zip(
            CLASSIC_FACTORS if hierarchy == CLASSIC else DEVICE_FACTORS, of_it, strict=True
        )
    ]


def _steps(*lengths: int) -> Rows:
    return [{"rank": rank, "start": 0, "end": end, "complete": True} for rank, end in enumerate(lengths)]


@recipe(
    question="How efficient is the parallel job: what do imbalance, communication and the CPU cost?",
    scope="job",
    plot=Bars(x="factor", y=("value",)),
    columns={
        "hierarchy": Name(
            "classic (POP), accelerator, or accelerator where communication kernels count as useful (TALP)"
        ),
        "factor": Name("factor; those below a parallel efficiency multiply to it"),
        "value": Ratio("the factor, 1 is perfect; null when unknown"),
        "bound": Name("'at most' or 'at least' where the value bounds the true one; null where it is exact"),
        "low": Flag("below 0.8, from where on a factor is worth a look"),
        "meaning": Text("what it is; T is the longest rank's time in steps that count"),
        "unknown": Text("why it is not known; null where it is"),
    },
    examples=[
        Example(
            "two GPUs for 30,000 ns: useful 18,000 and 9,000, copies 2,000 and 4,000 (arXiv 2603.26576)",
            given={
                "steps": _steps(30_000, 30_000),
                "kernels": [{"rank": 0, "start": 0, "end": 18_000}, {"rank": 1, "start": 0, "end": 9_000}],
                "copies": [
                    {"rank": 0, "start": 18_000, "end": 20_000},
                    {"rank": 1, "start": 9_000, "end": 13_000},
                ],
                "ranks": [{"rank": rank, "device_kind": "gpu"} for rank in range(2)],
            },
            expect=_expect(((0.45, 0.75, 0.6, 0.6, 1.0), (0.45, 0.75, 0.9, 2 / 3), (0.45, 0.75, 0.9, 2 / 3))),
        ),
        Example(
            "an all-reduce that cannot be matched: communication is useful or not, transfer is unknown",
            given={
                "steps": _steps(100),
                "kernels": [
                    {"start": 0, "end": 60, "family": "gemm"},
                    {"start": 60, "end": 90, "family": "communication"},
                ],
                "collectives": [{"start": 60, "end": 90, "kind": "all-reduce", "group_size": 4}],
                "ranks": [{"device_kind": "gpu", "world_size": 4}],
            },
            expect=_expect(((0.6, 1.0, 0.6, None, None), (0.6, 1.0, 60 / 90, 0.9), (0.9, 1.0, 1.0, 0.9))),
        ),
        Example(
            "rank 1 arrives 20 ns after rank 0, and the transfer takes both 15 ns",
            given={
                "steps": _steps(100, 100),
                "kernels": [
                    {"rank": rank, "start": start, "end": end, "family": family}
                    for rank, at in ((0, 60), (1, 80))
                    for start, end, family in ((0, at, "gemm"), (at, 95, "communication"))
                ],
                "collectives": [
                    {"rank": rank, "start": at, "end": 95, "kind": "all-reduce", "group_size": 2}
                    for rank, at in ((0, 60), (1, 80))
                ],
                "ranks": [
                    {"rank": rank, "device_kind": "gpu", "world_size": 2, "clock_error": 0}
                    for rank in range(2)
                ],
            },
            expect=_expect(
                ((0.7, 0.875, 0.8, 80 / 85, 0.85), (0.7, 0.875, 80 / 95, 0.95), (0.95, 1.0, 1.0, 0.95)),
                bounds=BOUNDS,
            ),
        ),
    ],
)
def parallel_efficiency(
    step_ledger: pl.LazyFrame, counted_steps: pl.LazyFrame, steps: Steps, ranks: Ranks
) -> pl.LazyFrame:
    """Write the job's parallel efficiency as a product of factors, the smallest of which costs most.

    Useful is the time in which a rank computes, active that in which its GPU does anything. T is the longest
    rank's time in steps that count; where no step was marked, the time from the first to the last GPU work of
    all ranks. Classic: parallel efficiency = load balance x communication efficiency, which is serialisation
    x transfer. Accelerator: parallel efficiency = load balance x device communication x orchestration. Both
    give the same efficiency.

    How to read it: the lowest factor is where to look first, below 0.8 it is worth it. Load balance: ranks
    have unequal work. Device communication: exposed communication and copies. Orchestration: the CPU launches
    late. Serialisation: ranks wait for each other. Transfer: bytes on the way. The third hierarchy counts
    communication kernels as useful, as TALP does: a rank that waits inside a collective looks busy there.

    Limits: transfer takes the longest rank without its exposed transfers in place of a replay, so it is at
    most that efficient and serialisation at least. Pipeline stages that differ count as imbalance. Of one
    rank of many, load balance is not that of the job.

    What to try: `rank-imbalance` for load balance, `communication-exposed` for communication, `idle-summary`
    for orchestration, `communication-waited-for` for serialisation, `mfu-waterfall` for what the useful time
    is worth.
    """
    account, ns = pl.col("account").cast(pl.String), pl.col("ns")
    talk = account.str.starts_with("communication.")
    whole = counted_steps.group_by("rank").agg(_whole=(pl.col("end") - pl.col("start")).sum())
    each = (
        step_ledger.join(counted_steps.select("rank", "step"), on=["rank", "step"], how="semi")
        .group_by("rank")
        .agg(
            useful=ns.filter(account == "compute").sum(),
            talk=ns.filter(talk).sum(),
            copy=ns.filter(account == "copy").sum(),
            transfer=ns.filter(account == "communication.transfer").sum(),
            unmatched=ns.filter(account == "communication.exposed").sum(),
        )
        .join(whole, on="rank", how="right")
        .with_columns(pl.col("useful", "talk", "copy", "transfer", "unmatched").fill_null(0))
        .with_columns(_instant=pl.col("_whole") - pl.col("transfer"))
    )
    job = each.select(
        T=pl.col("_whole").max(),
        mean=pl.col("useful").sum() / pl.len(),
        most=pl.col("useful").max(),
        active=(pl.col("useful") + pl.col("talk") + pl.col("copy")).max(),
        mean_talp=(pl.col("useful") + pl.col("talk")).sum() / pl.len(),
        most_talp=(pl.col("useful") + pl.col("talk")).max(),
        instant=pl.col("_instant").max(),
        told=pl.col("unmatched").sum() == 0,
    )
    # Where no step was marked, the ranks' windows are parts of one region.
    aligned = ranks.select(_aligned=pl.col("clock_error").is_not_null().all())
    region = (
        steps.join(counted_steps.select("rank", "step"), on=["rank", "step"], how="semi")
        .select(
            _region=pl.col("end").max() - pl.col("start").min(),
            _unmarked=(pl.col("source").cast(pl.String) == "whole trace").fill_null(False).all(),
        )
        .join(aligned, how="cross")
    )
    job = (
        job.join(region, how="cross")
        .with_columns(
            _more=pl.when(pl.col("_unmarked") & pl.col("_aligned")).then(pl.col("_region") - pl.col("T"))
        )
        .with_columns(pl.col("T", "instant") + pl.col("_more").fill_null(0))
        .filter(pl.col("T") > 0)
    )
    mean, most, active, t, instant = (pl.col(c) for c in ("mean", "most", "active", "T", "instant"))
    mean_talp, most_talp = pl.col("mean_talp"), pl.col("most_talp")
    factors: list[tuple[str, str, pl.Expr]] = [
        (CLASSIC, "parallel efficiency", mean / t),
        (CLASSIC, "load balance", mean / most),
        (CLASSIC, "communication efficiency", most / t),
        (CLASSIC, "serialisation", pl.when("told").then(most / instant)),
        (CLASSIC, "transfer", pl.when("told").then(instant / t)),
        *_of_accelerator(ACCELERATOR, mean, most, active, t),
        *_of_accelerator(TALP, mean_talp, most_talp, active, t),
    ]
    rows = [
        job.select(
            hierarchy=pl.lit(hierarchy),
            factor=pl.lit(factor),
            value=value,
            bound=pl.when(pl.col("told") & (pl.col("instant") < pl.col("T"))).then(
                pl.lit(BOUNDS.get(factor), dtype=pl.String)
            ),
            meaning=pl.lit(MEANINGS[factor]),
        )
        for hierarchy, factor, value in factors
    ]
    finite = pl.when(pl.col("value").is_finite()).then("value")
    nothing = pl.lit("nothing computes in the steps that count")
    split = pl.col("factor").is_in(["serialisation", "transfer"])
    return (
        pl.concat(rows)
        .with_columns(value=finite)
        .with_columns(
            low=pl.col("value") < ACCEPTABLE,
            unknown=pl.when(pl.col("value").is_null()).then(
                pl.when(split).then(pl.lit(NO_TRANSFER)).otherwise(nothing)
            ),
        )
        .select(*parallel_efficiency.columns)
    )


def _of_accelerator(
    hierarchy: str, mean: pl.Expr, most: pl.Expr, active: pl.Expr, t: pl.Expr
) -> list[tuple[str, str, pl.Expr]]:
    """The factors of one device hierarchy, whose product is the first of them."""
    return [
        (hierarchy, "parallel efficiency", mean / t),
        (hierarchy, "load balance", mean / most),
        (hierarchy, "device communication", most / active),
        (hierarchy, "orchestration", active / t),
    ]
