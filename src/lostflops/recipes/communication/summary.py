"""Which collectives a job runs, how large they are, and which bandwidth they reach."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Name, Number, Ratio, Text, Time, Typical
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Example, Points, recipe
from lostflops.recipes.means import quotient

from .bandwidth import bus_factor, counted_bytes, with_bandwidth

# What counts as small: far below the size from which links reach their bandwidth.
SMALL_BYTES = 1 << 20
# How many of them in a step of a rank, and which share of the step, are worth a finding.
MANY = 10
WORTH_SAYING = 0.01


@recipe(
    question="Which collectives run, in which groups and sizes, and at which bandwidth?",
    scope="job",
    plot=Points(x="bytes", y="bus_bandwidth", log=True),
    columns={
        "group": Name("process group; null when unknown"),
        "kind": Name("operation"),
        "library": Name("library that ran it"),
        "dtype": Name("element type; null when unknown"),
        "bytes": Bytes(
            "size as nccl-tests counts it: one rank's buffer, or all ranks' for gather and scatter"
        ),
        "group_size": Count("ranks that take part"),
        "calls": Count("executions, each rank's counted"),
        "matched": Count("different operations whose participants were found"),
        "time": Time("from arrival to end over all executions; mostly waiting, maybe"),
        "min_stay": Typical("shortest time from arrival to end on any rank"),
        "median_stay": Typical("median time from arrival to end"),
        "latency": Typical(
            "median over operations of their shortest stay on any rank; needs no common clock"
        ),
        "algorithm_bandwidth": Number("bytes / latency (a GB is 10⁹ bytes)", unit="GB/s"),
        "bus_bandwidth": Number(
            "the same times nccl-tests' factor for the operation, to compare with a link's", unit="GB/s"
        ),
        "no_bandwidth": Text("why there is none"),
        "calls_per_step": Number("executions per step, mean of ranks"),
        "per_step": Time("transfer per step, mean of ranks; null when the split from waiting is not known"),
        "step_share": Ratio("the same as a share of step time"),
    },
    examples=[
        Example(
            "an all-reduce over three ranks; its early ranks' durations say nothing",
            given={
                "collectives": [
                    {"rank": rank, "start": start, "end": 70, "kind": "all-reduce", "bytes_in": 1200}
                    | {"group": "dp", "group_size": 3, "dtype": "bf16", "library": "NCCL"}
                    for rank, start in ((0, 10), (1, 30), (2, 50))
                ],
                "ranks": [{"rank": rank, "world_size": 3} for rank in range(3)],
                "steps": [{"rank": rank, "start": 0, "end": 100} for rank in range(3)],
            },
            expect=[
                {
                    "group": "dp",
                    "kind": "all-reduce",
                    "library": "NCCL",
                    "dtype": "bf16",
                    "bytes": 1200,
                    "group_size": 3,
                    "calls": 3,
                    "matched": 1,
                    "time": 120,
                    "min_stay": 20,
                    "median_stay": 40,
                    "latency": 20,
                    "algorithm_bandwidth": 60.0,
                    "bus_bandwidth": 80.0,
                    "no_bandwidth": None,
                    "calls_per_step": 1.0,
                    "per_step": 20,
                    "step_share": 0.2,
                }
            ],
        ),
        Example(
            "an all-gather counts what all ranks gather; without sizes there is no bandwidth",
            given={
                "collectives": [
                    {"rank": rank, "start": start, "end": end, "kind": kind, "bytes_in": sent, "group": "dp"}
                    | {"group_size": 2}
                    for rank, start, end, kind, sent in (
                        (0, 10, 30, "all-gather", 50),
                        (1, 10, 35, "all-gather", 50),
                        (0, 40, 48, "broadcast", None),
                        (1, 40, 49, "broadcast", None),
                    )
                ],
                "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
            },
            expect=[
                {
                    "kind": "all-gather",
                    "bytes": 100,
                    "latency": 20,
                    "algorithm_bandwidth": 5.0,
                    "bus_bandwidth": 2.5,
                    "no_bandwidth": None,
                    "per_step": None,
                },
                {
                    "kind": "broadcast",
                    "bytes": None,
                    "latency": 8,
                    "algorithm_bandwidth": None,
                    "bus_bandwidth": None,
                    "no_bandwidth": "its size was not recorded",
                    "per_step": None,
                },
            ],
        ),
        Example(
            "one rank alone cannot tell transfer from waiting",
            given={
                "collectives": [
                    {"start": 10, "end": 30, "kind": "all-reduce", "bytes_in": 50, "group_size": 2}
                ],
                "ranks": [{"world_size": 2}],
            },
            expect=[
                {
                    "kind": "all-reduce",
                    "matched": 0,
                    "latency": None,
                    "bus_bandwidth": None,
                    "no_bandwidth": "only one rank was recorded: its waiting and its transfer look alike",
                }
            ],
        ),
        Example(
            "a dozen all-reduces of 8 bytes in one step",
            given={
                "collectives": [
                    {"rank": rank, "start": 10 * i + rank, "end": 10 * i + 6, "kind": "all-reduce"}
                    | {"bytes_in": 8, "group": "dp", "group_size": 2}
                    for i in range(12)
                    for rank in range(2)
                ],
                "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
                "steps": [{"rank": rank, "start": 0, "end": 200} for rank in range(2)],
            },
            expect=[{"calls": 24, "matched": 12, "calls_per_step": 12.0, "per_step": 60, "step_share": 0.3}],
        ),
    ],
)
def communication_summary(
    communication_matches: pl.LazyFrame, counted_steps: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up communication by group, operation, size and type, the most time first.

    Bandwidth is bytes over the shortest stay of any participant, the one that waits for nobody. In-network
    reduction would make bus bandwidth mean less; traces do not say whether it is used.
    """
    size = pl.coalesce("group_size", "members").cast(pl.Int64)
    kind = pl.col("kind").cast(pl.String)
    matched = pl.col("wait").is_not_null()
    uneven = matched & (kind == "all-to-all")
    rows = (
        intervals.inside(
            communication_matches, intervals.union(counted_steps, ["rank"]), {"_inside": pl.lit(True)}
        )
        .with_columns(
            bytes=counted_bytes(kind, size),
            _factor=bus_factor(kind, size),
            group_size=size,
            _stay=pl.col("end") - pl.col("arrival"),
        )
        # Ranks may send different amounts in an all-to-all: the largest decides how long it takes.
        .with_columns(
            bytes=pl.when(uneven).then(pl.col("bytes").max().over("instance")).otherwise("bytes"),
            _in_steps=pl.col("_inside") > 0,
        )
    )
    kinds = ["group", "kind", "library", "dtype", "bytes", "group_size"]
    totals = step_totals.select(_steps=pl.col("steps").sum(), _time=pl.col("step_time").sum())
    moving = pl.col("transfer").filter(pl.col("_in_steps"))
    return (
        rows.group_by(kinds)
        .agg(
            calls=pl.len().cast(pl.Int64),
            matched=pl.col("instance").drop_nulls().n_unique().cast(pl.Int64),
            time=pl.col("_stay").sum(),
            min_stay=pl.col("_stay").min(),
            median_stay=pl.col("_stay").median().round().cast(pl.Int64),
            latency=pl.col("latency").median().round().cast(pl.Int64),
            _factor=pl.col("_factor").first(),
            _reason=pl.col("reason").filter(~matched).mode().sort().first(),
            _calls=pl.col("_in_steps").sum(),
            _moving=pl.when(moving.is_not_null().any()).then(moving.sum()),
        )
        .pipe(with_bandwidth)
        .join(totals, how="cross")
        .with_columns(
            calls_per_step=pl.when(pl.col("_steps") > 0).then(quotient(pl.col("_calls"), pl.col("_steps"))),
            per_step=pl.when(pl.col("_steps") > 0).then(pl.col("_moving") // pl.col("_steps")),
            step_share=pl.when(pl.col("_time") > 0).then(quotient(pl.col("_moving"), pl.col("_time"))),
        )
        .select(*communication_summary.columns)
        .sort("time", *kinds, descending=[True] + [False] * len(kinds))
    )


@communication_summary.finding(name="collectives-small", remedies=("bucket-size",))
def collectives_are_small(table: pl.DataFrame) -> Iterator[Finding]:
    small = (
        table.filter((pl.col("bytes") <= SMALL_BYTES) & (pl.col("kind").cast(pl.String) != "barrier"))
        .group_by("group", "kind")
        .agg(
            pl.col("calls_per_step", "per_step", "step_share").sum(),
            high=pl.col("bytes").max(),
        )
        .filter((pl.col("calls_per_step") >= MANY) & (pl.col("step_share") >= WORTH_SAYING))
        .sort("step_share", "kind", "group", descending=[True, False, False])
    )
    for row in small.head(3).to_dicts():
        where = f" in group {row['group']}" if row["group"] else ""
        # Those that are sent at once wait for each other: their times add up to more than the step.
        cost = (
            f"queue up: {row['step_share']:.0f} of them are under way at any time"
            if row["step_share"] > 1
            else f"cost {milliseconds(row['per_step'])} of transfer per step "
            f"({percent(row['step_share'], 1)})"
        )
        yield Finding(
            name="collectives-small",
            claim=f"{row['calls_per_step']:.0f} small {row['kind']} operations of at most "
            f"{row['high']:,} bytes{where} {cost}.",
            ns_per_step=row["per_step"],
            gain="at most",
            evidence=(
                "sizes this small pay for latency, not for bytes: ten in one cost little more than one",
            ),
            next="Join them: larger buckets (DDP: `bucket_cap_mb`), coarser wrapping where there are no "
            "buckets (FSDP2), flattened tensors.",
            accounts=("communication.transfer", "communication.exposed"),
        )
