"""The passes of a recorded pipeline: which stage works on which microbatch, and when.

A pass is what a stage computes between two messages, forward or back. A backward pass that begins after a
message left, where stages have more of them than forward ones, is the second part of one: W, the gradients of
weights. In which order a stage of a known schedule works says which microbatch a pass is of.
"""

from __future__ import annotations

import polars as pl

from lostflops import intervals

from ..stragglers.chains import OF_EXPERTS, P2P, RANKS_AT_ONCE, STRAY, RankChains
from .schedules import ORDERS, StagePass, passes

BACK = ("backward", "recompute")
CLOSE = 1_000  # ns; a message leaves when its pass has ended, within what clocks of one device differ by
UNKNOWN = "unknown"

SCHEMA = pl.Schema(
    {
        "pipeline": pl.Int32,
        "step": pl.Int64,
        "rank": pl.Int32,
        "stage": pl.Int64,
        "kind": pl.String,
        "microbatch": pl.Int64,
        "chunk": pl.Int64,
        "start": pl.Int64,
        "end": pl.Int64,
        "busy": pl.Int64,
    }
)


def stage_passes(job: RankChains, pieces: pl.DataFrame) -> pl.DataFrame:
    """Every pass of every stage in order: the columns of `SCHEMA`, with `microbatch` and `chunk` null.

    `busy` is how long it computes. Empty where no ranks are a pipeline, or phases are not known.
    """
    places = job.ranks.filter(pl.col("stages") > 1)
    passing = [f"{phase}{of}" for phase in ("forward", *BACK) for of in ("", OF_EXPERTS)]
    computing = pieces.filter(pl.col("kind").is_in(passing)).lazy()
    computing = computing.with_columns(pl.col("kind").str.strip_suffix(OF_EXPERTS))
    sends = job.operations.filter(pl.col("kind") == "send")
    sent = sends.select("rank", start="ready", _sent=True).unique()
    runs = (
        job.segments.join(sent, on=["rank", "start"], how="left")
        .join(places.select("rank", "pipeline", "stage"), on="rank")
        .with_columns(_after_message=pl.col("_sent").sort_by("start").first().over("rank", "run"))
        .with_columns(pl.col("_after_message").fill_null(False))
    )
    ranks = places["rank"].to_list()
    told = [_computed(runs.clear(), computing)]
    for at in range(0, len(ranks), RANKS_AT_ONCE):
        some = pl.col("rank").is_in(ranks[at : at + RANKS_AT_ONCE])
        told.append(_computed(runs.filter(some), computing.filter(some)))
    found = pl.concat(told).filter(pl.col("busy") >= STRAY * pl.col("busy").median().over("kind"))
    own = ["rank", "step"]
    forward = (pl.col("kind") == "F").sum().over(own)
    split = (pl.len().over(own) - forward > forward).any()
    return (
        found.with_columns(_split=split)
        .with_columns(
            kind=pl.when(pl.col("_split") & (pl.col("kind") == "B") & pl.col("_after_message"))
            .then(pl.lit("W"))
            .otherwise("kind")
        )
        .sort("rank", "start")
        .with_columns(microbatch=None, chunk=None)
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
    )


def _computed(runs: pl.DataFrame, computing: pl.LazyFrame) -> pl.DataFrame:
    """From where to where each run of segments computes forwards, and backwards, and for how long."""
    layers = {"F": computing.filter(kind="forward"), "B": computing.filter(pl.col("kind").is_in(BACK))}
    return (
        intervals.paint(runs.drop("_sent").lazy(), layers, by=["rank"], account="kind")
        .drop_nulls("kind")
        .group_by("pipeline", "step", "rank", "stage", "run", "kind")
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("_after_message").first(),
            busy=(pl.col("end") - pl.col("start")).sum(),
        )
        .collect()
    )


def numbered(found: pl.DataFrame, received: pl.DataFrame) -> tuple[pl.DataFrame, str, int, int]:
    """The passes with their microbatches and chunks, the schedule's name, its microbatches and its chunks.

    `received` (rank, step, messages) counts what each rank receives. Raises ValueError, with the reason,
    where stages do not go through as many passes.
    """
    stages = int(found["stage"].n_unique())
    forward = found.filter(kind="F").group_by("rank", "step").len()["len"].unique().to_list()
    backward = found.filter(kind="B").group_by("rank", "step").len()["len"].unique().to_list()
    if len(forward) != 1 or forward != backward:
        low, high = min([*forward, *backward], default=0), max([*forward, *backward], default=0)
        raise ValueError(f"its stages go through between {low} and {high} passes per step")
    count = int(forward[0])
    first = found.filter(stage=0).select("rank", "step").unique()
    messages = received.join(first, on=["rank", "step"])["messages"].unique().to_list()
    # The first stage gets every gradient, and what comes back for its other chunks.
    microbatches = 2 * count - int(messages[0]) if len(messages) == 1 else count
    if not 0 < microbatches <= count or count % microbatches:
        microbatches = count
    chunks = count // microbatches
    orders = _orders(found)
    name = next(
        (
            each
            for each in ORDERS
            if (chunks > 1) == (each == "interleaved")
            and (each == "zb") == ("W" in found["kind"])
            and not (chunks > 1 and microbatches % stages)
            and all(
                order == "".join(p.kind for p in _passes(each, stages, stage, microbatches, chunks))
                for stage, order in orders
            )
        ),
        UNKNOWN,
    )
    told = [
        {"stage": stage, "kind": kind, "_nth": nth, "microbatch": one.microbatch, "chunk": one.chunk}
        for stage in range(stages)
        for kind in "FBW"
        for nth, one in enumerate(_of_kind(name, stages, stage, microbatches, chunks, kind))
    ]
    schema = {
        "stage": pl.Int64,
        "kind": pl.String,
        "_nth": pl.Int64,
        "microbatch": pl.Int64,
        "chunk": pl.Int64,
    }
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "step", "kind")
    return (
        found.drop("microbatch", "chunk")
        .with_columns(_nth=nth)
        .join(
            pl.DataFrame(told, schema=schema), on=["stage", "kind", "_nth"], how="left", maintain_order="left"
        )
        .select(list(SCHEMA)),
        name,
        microbatches,
        chunks,
    )


def _orders(found: pl.DataFrame) -> list[tuple[int, str]]:
    """The orders of forward and backward passes that each stage has in some step."""
    each = (
        found.filter(pl.col("kind") != "W")
        .group_by("rank", "step", "stage", maintain_order=True)
        .agg(pl.col("kind").str.join(""))
    )
    return list(each.select("stage", "kind").unique().sort("stage", "kind").iter_rows())


def _passes(name: str, stages: int, stage: int, microbatches: int, chunks: int) -> list[StagePass]:
    return [p for p in passes(name, stages, stage, microbatches, chunks) if p.kind != "W"]


def _of_kind(
    name: str, stages: int, stage: int, microbatches: int, chunks: int, kind: str
) -> list[StagePass]:
    if name == UNKNOWN:
        return []
    return [p for p in passes(name, stages, stage, microbatches, chunks) if p.kind == kind]


def messages(job: RankChains, found: pl.DataFrame) -> pl.DataFrame:
    """Which pass each message leaves and which it reaches, as rows of `found`: before, after, transfer."""
    rows = found.with_row_index("row").filter(pl.col("kind") != "W")
    pairs = job.operations.filter(pl.col("type") == P2P)
    left = (
        pairs.filter(kind="send")
        .with_columns(at=pl.col("ready") + CLOSE)
        .sort("at")
        .join_asof(
            rows.select("rank", "end", before="row").sort("end"),
            left_on="at",
            right_on="end",
            by="rank",
            check_sortedness=False,
        )
    )
    reached = (
        pairs.filter(kind="receive")
        .with_columns(at=pl.col("end") - CLOSE)
        .sort("at")
        .join_asof(
            rows.select("rank", after="row", _start="start").sort("_start"),
            left_on="at",
            right_on="_start",
            by="rank",
            strategy="forward",
            check_sortedness=False,
        )
    )
    return (
        left.select("instance", "before")
        .join(reached.select("instance", "after", "transfer"), on="instance")
        .drop_nulls()
        .join(rows.select(before="row", _step="step"), on="before")
        .join(rows.select(after="row", _other="step"), on="after")
        .filter(pl.col("_step") == pl.col("_other"))
        .select(pl.col("before", "after").cast(pl.Int64), "transfer")
    )
