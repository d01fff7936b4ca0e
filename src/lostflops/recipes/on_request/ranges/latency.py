"""How long the stages of a service or a staged pipeline take, and whether all replicas take equally long."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Ratio, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Ranges

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
WHOLE = "whole request"
# Ranges that the recorder or the profiler writes, which are no stage of anybody's.
NOT_STAGES = ("overhead", "synchronisation")
MARKS = r"^ProfilerStep#|_data: .*compile_id="
STAGE = ["domain", "stage"]


def _ranges(rank: int, *rows: tuple[str, int, int]) -> list[dict[str, object]]:
    return [
        {"rank": rank, "domain": "serve", "name": name, "start": start, "end": start + ns, "complete": True}
        for name, start, ns in rows
    ]


@recipe(
    question="How long does each stage of a request take, from p50 to p99, and do all replicas agree?",
    scope="job",
    plot=Bars(x="stage", y=("p50", "p99")),
    columns={
        "domain": Name("NVTX domain, or 'user' for the profiler's annotations"),
        "stage": Name("text of the ranges, with # for numbers; or 'whole request'"),
        "rank": Id("replica; null for all of them together"),
        "count": Count("ranges that were seen whole"),
        "p50": Typical("duration that half of them do not exceed"),
        "p90": Typical("that 90 % do not exceed"),
        "p95": Typical("that 95 % do not exceed"),
        "p99": Typical("that 99 % do not exceed"),
        "longest": Typical("the longest"),
        "tail": Ratio("p99 / p50: how much worse the worst requests fare"),
        "of_replicas": Ratio(
            "of a replica: its p50 / median p50 of all; of all: the slowest replica's p50 / the fastest's; "
            "null for one replica"
        ),
    },
    examples=[
        Example(
            "two replicas embed and rank; ranking takes the second one twice as long",
            given={
                "ranges": _ranges(0, ("embed 1", 0, 10), ("embed 2", 100, 12), ("rank 1", 10, 20))
                + _ranges(1, ("embed 3", 0, 11), ("rank 3", 11, 40))
            },
            expect=[
                {"domain": "serve", "stage": "embed #", "rank": None, "count": 3, "p50": 11, "p90": 12}
                | {"p95": 12, "p99": 12, "longest": 12, "tail": 12 / 11, "of_replicas": 1.0},
                {"domain": "serve", "stage": "embed #", "rank": 0, "count": 2, "p50": 11, "p90": 12}
                | {"p95": 12, "p99": 12, "longest": 12, "tail": 12 / 11, "of_replicas": 1.0},
                {"domain": "serve", "stage": "embed #", "rank": 1, "count": 1, "p50": 11, "p90": 11}
                | {"p95": 11, "p99": 11, "longest": 11, "tail": 1.0, "of_replicas": 1.0},
                {"domain": "serve", "stage": "rank #", "rank": None, "count": 2, "p50": 30, "p90": 38}
                | {"p95": 39, "p99": 40, "longest": 40, "tail": 40 / 30, "of_replicas": 2.0},
                {"domain": "serve", "stage": "rank #", "rank": 0, "count": 1, "p50": 20, "p90": 20}
                | {"p95": 20, "p99": 20, "longest": 20, "tail": 1.0, "of_replicas": 20 / 30},
                {"domain": "serve", "stage": "rank #", "rank": 1, "count": 1, "p50": 40, "p90": 40}
                | {"p95": 40, "p99": 40, "longest": 40, "tail": 1.0, "of_replicas": 40 / 30},
            ],
        ),
        Example(
            "a hundred requests of 1 to 100 ns: the last one takes a hundred",
            given={"ranges": _ranges(4, *((f"score {n}", 200 * n, n) for n in range(1, 101)))},
            expect=[
                {"domain": "serve", "stage": "score #", "rank": rank, "count": 100, "p50": 50, "p90": 90}
                | {"p95": 95, "p99": 99, "longest": 100, "tail": 99 / 50, "of_replicas": None}
                for rank in (None, 4)
            ],
        ),
        Example(
            "ranges of one number are one request: from its first to its last",
            given={"ranges": _ranges(2, ("fetch 7", 0, 5), ("score 7", 9, 8), ("fetch 8", 20, 6))},
            options={"by_number": True},
            expect=[
                {"domain": "serve", "stage": stage, "rank": rank, "count": count, "p50": p50}
                for stage, count, p50 in (("fetch #", 2, 6), ("score #", 1, 8), (WHOLE, 2, 12))
                for rank in (None, 2)
            ],
        ),
    ],
)  # fmt: skip
def request_latency(
    ranges: Ranges,
    *,
    by_number: Annotated[
        bool, "take ranges of one domain, replica and first number as one request, and add its whole time"
    ] = False,
) -> pl.LazyFrame:
    """Tell how long each stage of a service takes, on each replica and over all of them.

    A stage is a text of ranges in an NVTX domain, with numbers left out, so that `rank 17` and `rank 18` are
    one stage. A replica is a rank.

    How to read it: promise by `p99`, tune by `p50`. A `tail` above 3 has a cause of its own in few requests:
    a pause, a cold cache, a queue. `of_replicas` of a replica above 1.2 names a slow machine or an uneven
    load; where all replicas agree, the stage itself is slow.

    Limits: host time: a range that only launches ends before the GPU has done the work. Percentiles lie
    between what was recorded, so p99 of fewer than 100 ranges is close to the longest. Time that a request
    waits between its stages shows in `whole request` alone, which needs numbers in the ranges' texts.

    What to try: `range-gpu-projection-pace` for the GPU's side of each stage, `range-pace` for drift,
    `idle-summary` for what the GPU waits for, `gpu-gaps` for pauses.
    """
    text = pl.col("name").cast(pl.String)
    domain = pl.col("domain").cast(pl.String)
    rows = (
        ranges.filter(
            pl.col("complete").fill_null(True),
            ~domain.is_in(NOT_STAGES).fill_null(False),
            ~text.str.contains(MARKS),
        )
        .select("rank", "start", "end", domain=domain, stage=text.str.replace_all(r"\d+", "#"),
                _number=text.str.extract(r"(\d+)", 1))
        .collect()
    )  # fmt: skip
    if by_number:
        requests = (
            rows.drop_nulls("_number")
            .group_by("rank", "domain", "_number")
            .agg(pl.col("start").min(), pl.col("end").max())
            .select("rank", "start", "end", "domain", pl.lit(WHOLE).alias("stage"), "_number")
        )
        rows = pl.concat([rows, requests])
    length = rows.with_columns(ns=pl.col("end") - pl.col("start"))
    told = {name: pl.col("ns").quantile(q, "linear").round().cast(pl.Int64) for name, q in QUANTILES.items()}
    amounts = {"count": pl.len().cast(pl.Int64), **told, "longest": pl.col("ns").max()}
    single = length.group_by("rank", *STAGE).agg(**amounts)
    spread = single.group_by(STAGE).agg(
        _many=pl.len(),
        _typical=pl.col("p50").median(),
        _range=pl.when(pl.col("p50").min() > 0).then(pl.col("p50").max() / pl.col("p50").min()),
    )
    several = pl.col("_many") > 1
    own = pl.when(several & (pl.col("_typical") > 0)).then(pl.col("p50") / pl.col("_typical"))
    replicas = single.join(spread, on=STAGE, nulls_equal=True).with_columns(of_replicas=own)
    together = (
        length.group_by(STAGE)
        .agg(**amounts)
        .join(spread, on=STAGE, nulls_equal=True)
        .with_columns(rank=pl.lit(None, dtype=pl.Int32), of_replicas=pl.when(several).then("_range"))
    )
    return (
        pl.concat([replicas, together], how="diagonal")
        .with_columns(tail=pl.when(pl.col("p50") > 0).then(pl.col("p99") / pl.col("p50")))
        .select(*request_latency.columns)
        .sort("domain", "stage", "rank", nulls_last=[True, True, False])
        .lazy()
    )
