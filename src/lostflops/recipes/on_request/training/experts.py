"""Whether ranks of a mixture of experts get equally many tokens, and compute equally long for them."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Ratio, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.layout.seen import CONTROL, EXPERTS, GROUPED, Groups
from lostflops.tables import Kernels, Ranks

OURS = {"ep", "expert", "moe"}
OTHERS = {"cp", "ulysses", "sp", "sequence", "context"}
BY_KERNELS, BY_NAME = "kernels of expert parallelism", "the group's name"
UNTOLD = "all-to-alls, which may be of something else than experts"
LANE = ["rank", "group"]

EP = {"name": "3", "description": "mesh_ep", "ranks": [0, 1]}
A2A = {"kind": "all-to-all", "group": "3 [0, 1]", "group_size": 2}


@recipe(
    question="Do all ranks get equally many tokens for their experts, and compute equally long for them?",
    scope="job",
    plot=Bars(x="rank", y=("expert_time", "waits")),
    columns={
        "rank": Id("rank"),
        "group": Name("process group that exchanges tokens; null when unknown"),
        "exchanges": Count("dispatches of tokens in steps that count, each with its combine"),
        "received": Bytes("tokens that come for this rank's experts, per step; null when unknown"),
        "of_mean": Ratio("received / mean of the group's ranks: 1 is balanced; null for one rank alone"),
        "expert_time": Time("compute per step from dispatch to combine; null where dispatches overlap"),
        "time_of_mean": Ratio("expert_time / mean of the group's ranks; null for one rank alone"),
        "grouped": Time("kernels per step whose names say that they are products of several experts"),
        "waits": Time("in those exchanges, waiting for other ranks per step; null when unknown"),
        "told_by": Name("what says that these are experts"),
    },
    examples=[
        Example(
            "rank 1 gets three times the tokens of rank 0 and computes 16 ns longer, and rank 0 waits",
            given={
                "steps": [{"rank": r, "start": 0, "end": 100, "complete": True} for r in range(2)],
                "ranks": [
                    {"rank": r, "device_kind": "gpu", "world_size": 2, "clock_error": 0, "groups": [EP]}
                    for r in range(2)
                ],
                "collectives": [
                    A2A | {"rank": r, "start": s, "arrival": s, "end": e, "bytes_in": i, "bytes_out": o}
                    for r, s, e, i, o in (
                        (0, 10, 20, 8000, 4000),
                        (1, 10, 20, 8000, 12000),
                        (0, 31, 60, 4000, 8000),
                        (1, 53, 60, 12000, 8000),
                    )
                ],
                "kernels": [
                    {"rank": r, "start": s, "end": e, "family": "gemm", "name": n}
                    for r, s, e, n in (
                        (0, 0, 10, "router"),
                        (1, 0, 10, "router"),
                        (0, 21, 29, "grouped_gemm"),
                        (0, 29, 31, "silu"),
                        (1, 20, 44, "grouped_gemm"),
                        (1, 44, 46, "silu"),
                    )
                ],
            },
            expect=[
                {"rank": 0, "group": "3 [0, 1]", "exchanges": 1, "received": 4000, "of_mean": 0.5}
                | {"expert_time": 10, "time_of_mean": 10 / 18, "grouped": 8, "waits": 22, "told_by": BY_NAME},
                {"rank": 1, "group": "3 [0, 1]", "exchanges": 1, "received": 12000, "of_mean": 1.5}
                | {"expert_time": 26, "time_of_mean": 26 / 18, "grouped": 24, "waits": 0, "told_by": BY_NAME},
            ],
        ),
        Example(
            "kernels of DeepEP on one rank of many, twice in a step: no volumes, no other rank",
            given={
                "steps": [{"rank": 5, "start": 0, "end": 99, "complete": True}],
                "ranks": [{"rank": 5, "device_kind": "gpu", "world_size": 64}],
                "collectives": [
                    {"rank": 5, "start": s, "end": s + 5, "kind": kind, "library": "DeepEP"}
                    for s, kind in ((10, "dispatch"), (30, "combine"), (50, "dispatch"), (80, "combine"))
                ],
                "kernels": [{"rank": 5, "start": s, "end": s + 9, "family": "gemm"} for s in (0, 20, 60)],
            },
            expect=[
                {"rank": 5, "group": None, "exchanges": 2, "received": None, "of_mean": None}
                | {"expert_time": 18, "time_of_mean": None, "grouped": 0, "waits": None}
                | {"told_by": BY_KERNELS}
            ],
        ),
    ],
)  # fmt: skip
def expert_balance(
    communication_matches: pl.LazyFrame, kernels: Kernels, ranks: Ranks, counted_steps: pl.LazyFrame
) -> pl.LazyFrame:
    """Compare the ranks of each group that exchanges tokens: what they receive, and how long they compute.

    An exchange is a pair: a dispatch sends each token to its experts' ranks, a combine brings the results
    back. Of all-to-alls two that follow each other are a pair where one gives back exactly what the other
    took. Groups that are named for sequences or contexts are left out.

    How to read it: `of_mean` of 1.3 says that a rank gets 30 % more tokens than the mean; the whole group
    waits as long as the fullest rank computes. Where `time_of_mean` differs and `of_mean` does not, a GPU is
    slower. `told_by` says how sure it is that these are experts.

    Limits: `expert_time` is all compute between the two, so what overlaps with it from another microbatch
    counts too. It compares ranks, not the experts of one rank. Kernels inside CUDA graphs and volumes
    of DeepEP are not recorded. Where dispatches of two microbatches overlap, `expert_time` is not reported.

    What to try: a larger load-balancing loss or bias updates, a capacity factor, more experts per rank;
    `communication-waited-for` for what the waiting costs, `rank-imbalance` for all compute.
    """
    names = _groups(communication_matches, ranks)
    kind = pl.col("kind")
    rows = (
        communication_matches.with_columns(pl.col("kind", "group").cast(pl.String))
        .filter(kind.is_in(EXPERTS) | ((kind == "all-to-all") & (pl.col("bytes_in") >= CONTROL)))
        .select(*LANE, "start", "end", "kind", "bytes_in", "bytes_out", "wait")
    )
    inside = intervals.union(counted_steps, ["rank"])
    rows = intervals.inside(rows, inside, {"_in": pl.lit(True)}).filter(pl.col("_in") > 0)
    pairs = _paired(rows.collect()).lazy()
    computes = intervals.union(kernels.filter(pl.col("family") != "communication"), ["rank"])
    between = pairs.select(*LANE, start="end", end=pl.max_horizontal("end", "next_start"))
    busy = (
        intervals.inside(between, computes, {"busy": pl.lit(True)}).group_by(LANE).agg(pl.col("busy").sum())
    )
    grouped = kernels.filter(pl.col("name").cast(pl.String).str.contains(GROUPED)).select(
        "rank", "start", "end"
    )
    named = (
        intervals.inside(grouped, inside, {"grouped": pl.lit(True)})
        .group_by("rank")
        .agg(pl.col("grouped").sum())
    )
    steps = counted_steps.group_by("rank").agg(steps=pl.len().cast(pl.Int64))
    told = pl.col("bytes_out").null_count() == 0
    each = pl.col("steps")
    table = (
        pairs.group_by(LANE)
        .agg(
            exchanges=pl.len().cast(pl.Int64),
            received=pl.when(told).then(pl.col("bytes_out").sum()),
            waits=pl.when(pl.col("wait").count() > 0).then(pl.col("wait").sum() + pl.col("next_wait").sum()),
            overlap=pl.col("next_start").is_null().any(),
            kernels=pl.col("kind").is_in(EXPERTS).any(),
        )
        .join(busy, on=LANE, how="left", nulls_equal=True)
        .join(named, on="rank", how="left")
        .join(steps, on="rank")
        .join(names.lazy(), on=LANE, how="left", nulls_equal=True)
        .with_columns(
            received=pl.col("received") // each,
            waits=pl.col("waits") // each,
            expert_time=pl.when(~pl.col("overlap")).then(pl.col("busy").fill_null(0) // each),
            grouped=pl.col("grouped").fill_null(0) // each,
            told_by=pl.when("kernels")
            .then(pl.lit(BY_KERNELS))
            .otherwise(pl.col("told_by").fill_null(UNTOLD)),
        )
        .filter(pl.col("told_by") != "")
    )
    means = table.group_by("group").agg(
        _many=pl.len(), _tokens=pl.col("received").mean(), _time=pl.col("expert_time").mean()
    )
    return (
        table.join(means, on="group", nulls_equal=True)
        .with_columns(
            of_mean=pl.when((pl.col("_tokens") > 0) & (pl.col("_many") > 1)).then(
                pl.col("received") / pl.col("_tokens")
            ),
            time_of_mean=pl.when((pl.col("_time") > 0) & (pl.col("_many") > 1)).then(
                pl.col("expert_time") / pl.col("_time")
            ),
        )
        .select(*expert_balance.columns)
        .sort("group", "rank", nulls_last=True)
    )


def _groups(matches: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.DataFrame:
    """Each rank's groups with `told_by`: BY_NAME of experts, empty of another dimension, else UNTOLD."""
    told: list[tuple[int, str | None, str]] = []
    known = dict(ranks.select("rank", "groups").unique("rank", keep="first").collect().iter_rows())
    pairs = matches.select("rank", pl.col("group").cast(pl.String)).unique().collect()
    for rank, group in pairs.iter_rows():
        words = set(Groups(rank, None, known.get(rank) or ()).described(group).replace("-", "_").split("_"))
        told.append((rank, group, BY_NAME if words & OURS else "" if words & OTHERS else UNTOLD))
    schema = {"rank": pl.Int32, "group": pl.String, "told_by": pl.String}
    return pl.DataFrame(told, schema=schema, orient="row")


def _paired(rows: pl.DataFrame) -> pl.DataFrame:
    """Dispatches with `next_start` and `next_wait` of their combines, null of a kernel that has none.

    In a run of operations that could each be the dispatch of the next, every other one is.
    """
    after = {
        f"next_{c}": pl.col(c).shift(-1).over(LANE)
        for c in ("kind", "start", "bytes_in", "bytes_out", "wait")
    }
    returns = (pl.col("bytes_in") == pl.col("next_bytes_out")) & (
        pl.col("bytes_out") == pl.col("next_bytes_in")
    )
    exchange = (pl.col("kind") == "all-to-all") & (pl.col("next_kind") == "all-to-all")
    may = ((pl.col("kind") == "dispatch") & (pl.col("next_kind") == "combine")) | (exchange & returns)
    ordered = rows.sort(*LANE, "start", "end", nulls_last=True).with_columns(**after)
    marked = ordered.with_columns(_may=may.fill_null(False)).with_columns(
        _run=(~pl.col("_may")).cum_sum().over(LANE)
    )
    place = pl.int_range(pl.len()).over(*LANE, "_run", "_may")
    pairs = pl.col("_may") & (place % 2 == 0)
    alone = (pl.col("kind") == "dispatch") & ~pairs
    return marked.with_columns(pl.when(pairs).then(pl.col("next_start", "next_wait"))).filter(pairs | alone)
