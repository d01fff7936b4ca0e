"""What makes a recorded job slower than an even one: which kind of operation, which stage, which rank.

The same questions as in `slowdown`, asked of the ranks that were recorded: a worker is one rank, its
data-parallel rank the pipeline that it belongs to. Launch delays stay: a slow host is a cause like another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import polars as pl

from ..graph import Int
from .chains import AT_ONCE, COMPUTED, FIXED, START, RankChains
from .slowdown import SLOWEST_WORKERS, Chosen

MOST_PIPELINES = 64  # that are replayed each on its own: those with most work beyond the mean
NOTHING_LOST = 0.01  # of the step: below it the shares of what is lost are chance
IN_A_ROW = 3  # steps
STEADY = 0.5  # of its mean excess, that a rank has in every step from the one on since which it is slow
BEFORE = 0.25  # of the later excess, that it has at most in the steps before
OF_STAGE = 0.5  # of a rank's excess, from which on that is its stage's
SLOW_LINK = 1.3  # times as long as usual, that a rank's transfers take with whomever it has any
COMPUTE = "compute"
WORTH = 0.01  # of the step: less that a rank has beyond its equals needs no cause
STAGE, SLOW, UNEVEN, LINK = "stage imbalance", "slow compute", "uneven work", "slow link"

SCHEMA = pl.Schema(
    {
        "part": pl.String,
        "name": pl.String,
        "rank": pl.Int32,
        "stage": pl.Int64,
        "own": pl.Int64,
        "even": pl.Int64,
        "slowdown": pl.Float64,
        "removal": pl.Float64,
        "addition": pl.Float64,
        "cause": pl.String,
        "since": pl.Int64,
        "steps": pl.Int64,
    }
)


@dataclass(frozen=True)
class _Set:
    """Parts that are asked about together, and what the row about them says."""

    part: str
    name: str
    chosen: Chosen
    rank: int | None = None
    stage: int | None = None


def blame(job: RankChains) -> pl.DataFrame:
    """A row for the job and for each kind of operation, stage, pipeline and rank.

    `slowdown` is S, S_t, S_stage, S_dp, and for a rank S_w: the smaller of its pipeline's and its stage's.
    `own` is the time per step and rank, `even` what it would be; of the job, from where the last rank begins
    to where the last one ends, over its `steps`. For 'slowest ranks' and 'last stage',
    `removal` is M_W and M_S.
    """
    parts = job.parts
    own, even = parts["own"].to_numpy(), parts["ideal"].to_numpy()
    kind = parts["kind"]
    even = np.where(kind.is_in(FIXED).to_numpy(), own, even)
    row = parts.select("rank").join(job.ranks, on="rank", how="left", maintain_order="left")
    pipeline, stage = row["pipeline"].to_numpy(), row["stage"].to_numpy()
    kinds = [each for each in kind.unique().sort() if each not in (*FIXED, START)]
    asked = [_Set("kind", each, (kind == each).to_numpy()) for each in kinds]
    if job.ranks["stages"].max() != 1:
        asked += [_Set("stage", f"stage {s}", stage == s, stage=int(s)) for s in np.unique(stage)]
    asked += [
        _Set("pipeline", _called(job, p), pipeline == p, rank=p) for p in _heaviest(job, own - even, pipeline)
    ]
    replayed = job.step(np.stack([job.lags(own), job.lags(even)], axis=1))
    measured, best = replayed.tolist()
    rows = [_row("job", "", own=measured, even=best, slowdown=measured / best, steps=job.steps)]
    told = _told(job, own, even, asked, measured, best)
    ranks = _workers(job, told, own, even)
    # A pipeline of one stage is its rank.
    alone = set(job.ranks.filter(pl.col("stages") == 1)["pipeline"].to_list())
    rows += [each for each in told if each["part"] != "pipeline" or each["rank"] not in alone]
    slowest = [r["rank"] for r in ranks[: ceil(SLOWEST_WORKERS * job.ranks.height)] if r["rank"] is not None]
    both = [_Set("slowest ranks", ", ".join(map(str, slowest)), parts["rank"].is_in(slowest).to_numpy())]
    last = _last_stage(job)
    if last is not None:
        both.append(_Set("last stage", f"stage {last}", stage == last, stage=last))
    rows += _told(job, own, even, both, measured, best)
    return pl.DataFrame(rows + ranks, schema=SCHEMA)


def _row(part: str, name: str, **values: object) -> dict[str, object]:
    row = dict[str, object]()
    row |= dict.fromkeys(SCHEMA)
    for column, value in values.items():
        row[column] = round(value) if column in ("own", "even") and isinstance(value, float) else value
    return row | {"part": part, "name": name}


def _told(
    job: RankChains, own: Int, even: Int, asked: Sequence[_Set], measured: float, best: float
) -> list[dict[str, object]]:
    """Replays each set both ways: alone as it was, and alone evened out."""
    if not asked:
        return []
    lost = measured - best
    whole = lost >= NOTHING_LOST * measured
    added, removed = list[float](), list[float]()
    as_it_was, evened = job.lags(own), job.lags(even)
    rows_of, beyond = [np.flatnonzero(each.chosen) for each in asked], own - even
    at_once = max(1, AT_ONCE // len(evened))  # so that memory does not grow with how many are asked
    for first in range(0, len(asked), at_once):
        some = rows_of[first : first + at_once]
        kept = np.repeat(evened[:, None], len(some), axis=1)
        for variant, rows in enumerate(some):
            edges, more = job.sums(beyond, rows)
            kept[edges, variant] += more
        added += job.step(kept).tolist()
        if whole:
            removed += job.step((as_it_was + evened)[:, None] - kept).tolist()
    removed = removed or added
    rank_of = job.parts["rank"].to_numpy()

    def each_step(ns: Int, each: _Set, rows: Int) -> int:
        ranks = job.ranks.height if each.part == "kind" else np.count_nonzero(np.bincount(rank_of[rows]))
        return int(ns[rows].sum()) // (job.steps * max(1, int(ranks)))

    return [
        _row(
            each.part,
            each.name,
            rank=each.rank,
            stage=each.stage,
            own=each_step(own, each, rows),
            even=each_step(even, each, rows),
            slowdown=float(with_it) / best,
            removal=(measured - float(without)) / lost if whole else None,
            addition=(float(with_it) - best) / lost if whole else None,
        )
        for each, rows, with_it, without in zip(asked, rows_of, added, removed, strict=True)
    ]


def _called(job: RankChains, pipeline: int) -> str:
    members = job.ranks.filter(pipeline=pipeline)["rank"].to_list()
    return ", ".join(map(str, members[:4])) + (", …" if len(members) > 4 else "")


def _heaviest(job: RankChains, excess: Int, pipeline: Int) -> list[int]:
    """The pipelines with most time of their own beyond the mean, all where there are not too many."""
    beyond = pl.DataFrame({"pipeline": pipeline, "ns": excess}).group_by("pipeline").agg(pl.col("ns").sum())
    most = beyond.sort("ns", "pipeline", descending=[True, False]).head(MOST_PIPELINES)
    return sorted(most["pipeline"].to_list())


def _last_stage(job: RankChains) -> int | None:
    stages = max(job.ranks["stages"].to_list())
    return stages - 1 if stages > 1 else None


def _workers(
    job: RankChains,
    told: Sequence[dict[str, object]],
    own: Int,
    even: Int,
) -> list[dict[str, object]]:
    """Every rank with S_w and its cause, the slowest first. What was not replayed comes last."""
    by_pipeline = {r["rank"]: r for r in told if r["part"] == "pipeline"}
    by_stage = {r["stage"]: r["slowdown"] for r in told if r["part"] == "stage"}
    causes = {rank: (cause, since) for rank, cause, since in causes_of(job).iter_rows()}
    excess = job.parts.with_columns(even=pl.Series(even)).group_by("rank").agg(pl.col("own", "even").sum())
    sums = {rank: (mine, share) for rank, mine, share in excess.iter_rows()}
    ranks: list[dict[str, object]] = []
    for rank, pipeline, stage, stages in job.ranks.select("rank", "pipeline", "stage", "stages").iter_rows():
        mine, its_stage = by_pipeline.get(pipeline), by_stage.get(stage) if stages > 1 else None
        slow = [s for s in (mine and mine["slowdown"], its_stage) if isinstance(s, float)] if mine else []
        shares = {c: mine[c] for c in ("removal", "addition")} if mine and stages == 1 else {}
        cause, since = causes.get(rank, (None, None))
        own_of, even_of = sums[rank]
        ranks.append(
            _row(
                "rank",
                f"rank {rank}",
                rank=rank,
                stage=stage if stages > 1 else None,
                own=own_of // job.steps,
                even=even_of // job.steps,
                slowdown=min(slow) if slow else None,
                cause=cause,
                since=since,
                **shares,
            )
        )

    def order(row: dict[str, object]) -> tuple[float, int]:
        slow, rank = row["slowdown"], row["rank"]
        return (-slow if isinstance(slow, float) else 0.0, rank if isinstance(rank, int) else 0)

    return sorted(ranks, key=order)


def causes_of(job: RankChains) -> pl.DataFrame:
    """Of each rank that does more of its own than its equals: what, and since which step.

    Columns: rank, cause, since (null where it was so from the first step on). A rank's equals are the ranks
    of its stage; where all of those have it, the stage has more to do than others.
    """
    lengths = job.segments.select(pl.col("end") - pl.col("start")).sum().item()
    worth = WORTH * lengths / job.ranks.height
    meets = set(job.operations["type"].unique().to_list())
    work = (
        job.parts.filter(~pl.col("kind").is_in([*meets, *FIXED, START]))
        .with_columns(kind=pl.when(pl.col("kind").is_in(COMPUTED)).then(pl.lit(COMPUTE)).otherwise("kind"))
        .group_by("rank", "step", "kind")
        .agg(pl.col("own").sum())
    )
    whole = (
        job.ranks.select("rank", "stage")
        .join(work.select("step").unique(), how="cross")
        .join(work.select("kind").unique(), how="cross")
        .join(work, on=["rank", "step", "kind"], how="left")
        .with_columns(pl.col("own").fill_null(0))
        .with_columns(_equal=pl.col("own").median().over("stage", "step", "kind"))
        .with_columns(
            _stage=pl.col("_equal") - pl.col("_equal").median().over("step", "kind"),
            _self=pl.col("own") - pl.col("_equal"),
        )
        .with_columns(beyond=pl.col("_self") + pl.col("_stage"))
    )
    # A stage's kinds are told with its computing: a stage with more layers also idles more between kernels.
    main = (
        whole.group_by("rank", "kind")
        .agg(pl.col("beyond").sum(), pl.col("_stage").sum(), pl.col("own").sum())
        .sort("rank", "beyond", "kind", descending=[False, True, False])
        .group_by("rank", maintain_order=True)
        .first()
        .filter(pl.col("beyond") >= worth)
    )
    series = (
        whole.join(main.select("rank", "kind"), on=["rank", "kind"])
        .sort("rank", "step")
        .group_by("rank", maintain_order=True)
        .agg("step", "beyond")
    )
    steady = pl.DataFrame(
        [
            {"rank": rank, "_since": since, "_steady": steady}
            for rank, steps, beyond in series.iter_rows()
            for since, steady in [_since(steps, beyond)]
        ],
        schema={"rank": pl.Int32, "_since": pl.Int64, "_steady": pl.Boolean},
    )
    # Whoever is longer at each stage has other microbatches; a slow device would be so at one.
    shared = main.join(job.ranks.select("rank", "pipeline"), on="rank", how="right").with_columns(
        beyond=pl.when(pl.col("kind") == COMPUTE).then(pl.col("beyond") - pl.col("_stage")).otherwise(0)
    )
    least = pl.col("beyond").fill_null(0).min()
    main = main.join(
        shared.group_by("pipeline")
        .agg("rank", _all=pl.when(pl.len() > 1).then(least).otherwise(0))
        .explode("rank"),
        on="rank",
        how="left",
    )
    cause = (
        pl.when((pl.col("kind") == COMPUTE) & (pl.col("_stage") >= OF_STAGE * pl.col("beyond")))
        .then(pl.lit(STAGE))
        .when((pl.col("kind") == COMPUTE) & (pl.col("_all") >= OF_STAGE * pl.col("beyond")))
        .then(pl.lit(UNEVEN))
        .when((pl.col("kind") == COMPUTE) & pl.col("_steady"))
        .then(pl.lit(SLOW))
        .when(pl.col("kind") == COMPUTE)
        .then(pl.lit(UNEVEN))
        .otherwise("kind")
    )
    found = main.join(steady, on="rank").select(
        pl.col("rank").cast(pl.Int32), cause=cause, since="_since", beyond="beyond"
    )
    slow = _slow_links(job, worth)
    slower = found.join(slow, on="rank", how="full", coalesce=True).with_columns(
        _link=pl.col("more").fill_null(0) > pl.col("beyond").fill_null(0)
    )
    return slower.select(
        "rank",
        cause=pl.when("_link").then(pl.lit(LINK)).otherwise("cause"),
        since=pl.when("_link").then(None).otherwise("since"),
    )


def _since(steps: Sequence[int], beyond: Sequence[int]) -> tuple[int | None, bool]:
    """Since which step a rank has what it has beyond the others, and whether in every step from there on.

    None where it has it from the first step on, or by turns. Two steps in a row may come by chance.
    """
    best: tuple[float, int] | None = None
    for at in range(max(1, len(steps) - IN_A_ROW + 1)):
        later = beyond[at:]
        mean = sum(later) / len(later)
        before = sum(map(abs, beyond[:at])) / at if at else 0.0
        if mean > 0 and min(later) >= STEADY * mean and before <= BEFORE * mean:
            best = max(best or (0.0, 0), (mean - before, -at))
    if best is None:
        return None, False
    return (steps[-best[1]] if best[1] else None), True


def _slow_links(job: RankChains, worth: float) -> pl.DataFrame:
    """Ranks whose transfers take long with whomever they have any: rank, `more` than usual, ns in all.

    Their partners' take as long with them, but not with others. Where a rank has one group only, nothing
    tells it from the others there.
    """
    rank = pl.col("rank")
    lane = [rank.min().over("instance").alias("_low"), rank.max().over("instance").alias("_high")]
    alike = ["type", "members", "_alike"]
    return (
        job.operations.filter(pl.col("wait").is_not_null())
        .with_columns(lane)
        # Operations that only one group does have no others to be held against.
        .filter(pl.struct("_low", "_high").n_unique().over(alike) > 1)
        .group_by("rank", "_low", "_high", *alike)
        .agg(pl.col("transfer", "usual").sum())
        .group_by("rank", "_low", "_high", "members")
        .agg(pl.col("transfer", "usual").sum())
        .group_by("rank")
        .agg(
            ratio=(pl.col("transfer") / pl.col("usual").clip(1)).min(),
            more=(pl.col("transfer") - pl.col("usual")).sum(),
            lanes=pl.len(),
        )
        .filter((pl.col("ratio") >= SLOW_LINK) & (pl.col("lanes") > 1) & (pl.col("more") >= worth))
        .select(rank.cast(pl.Int32), "more")
    )
