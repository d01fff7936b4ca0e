"""A job as its traces show it: what each rank does itself, and the operations in which ranks meet.

A rank is a chain of points, cut where one of its operations of communication begins or ends and where a step
begins. From a point to the next passes what the rank does itself: computing, copying, idling for a cause of
its own. An operation begins at a point of each member's chain, its transfer when the last of them is there;
a rank that does nothing until its part ends goes on from there. With the times that were measured, replay
gives every point the time that it has in the trace.

A pipeline is a set of ranks that send to each other, in which the first sends before it has received
anything, and every other only after. Ranks that are in none are a pipeline of one stage each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals

from ..dependencies.transfer_waits import LATE, LATEST, MOSTLY, RETURNS_WITHIN, WAITED_AT_LEAST
from ..graph import Graph, Int

Flags = npt.NDArray[np.bool_]

PAIR = ("send", "receive")
BLOCKING = 5_000  # ns; a shorter rest of communication before an operation ends is a gap between two kernels
ON_THREADS = ("gloo", "MPI")  # libraries whose operations host threads carry and wait for
QUEUED = 20_000  # ns; an operation that begins so soon after the one before it on its stream waited for that
LOST = -10_000_000  # ns; a transfer that ends so long before its last member starts was measured wrongly
STRAY = 0.1  # of the median: computing that is so short is no pass of a microbatch
OF_EXPERTS = " of experts"  # kinds of computing that are long on ranks with many tokens for their experts
COMPUTED = (
    *("forward", "backward", "recompute", "optimizer", "compute"),
    *(f"{phase}{OF_EXPERTS}" for phase in ("forward", "backward", "recompute", "optimizer")),
)
START, GAPS, EARLY = "start", "gaps", "not waited for"
FIXED = (EARLY,)
"""Kinds that stay as they are, whatever is asked."""
P2P = "send and receive"
RANKS_AT_ONCE = 32  # whose segments are held against their pieces at a time
USUAL_VARIANTS = 16  # of the lags: one for each kind, stage and pipeline, and two for most
AT_ONCE = 1 << 23  # lags held at once when many variants are replayed


@dataclass(frozen=True, eq=False)
class RankChains:
    """The graph of a recorded job and the parts of which its lags are made.

    `parts` has `edge`, `rank`, `step`, `kind`, `own` and `ideal`, ns; the parts of an edge add up to its lag.
    `ranks` has `rank`, `pipeline` (the lowest rank of the one that it belongs to) and `stage`. `segments` are
    the chains: rank, step, start, end, `blocked` and `run`, a number for what lies between two messages.
    `operations` has what each rank takes part in, its `transfer` and what is `usual` for its like. `fixed` is
    what the lag of an edge is beside its parts. `first` and `last` are the points where each rank begins and
    ends.
    """

    ranks: pl.DataFrame
    parts: pl.DataFrame
    segments: pl.DataFrame
    operations: pl.DataFrame
    graph: Graph
    fixed: Int
    first: Int
    last: Int
    steps: int

    def lags(self, own: Int) -> Int:
        """The lag of each edge where its parts are as long as `own`."""
        lags = self.fixed.copy()
        edges, sums = self.sums(own)
        lags[edges] += sums
        return lags

    def sums(self, own: Int, chosen: Int | slice = slice(None)) -> tuple[Int, Int]:
        """The edges of the parts at `chosen`, and what those add up to on each where they are as long as
        `own`."""
        edge, own = self.parts["edge"].to_numpy()[chosen], own[chosen]
        if not len(edge):
            return edge, own
        begins = np.flatnonzero(intervals.changes_of(edge))  # the parts of an edge stand side by side
        return edge[begins], np.add.reduceat(own, begins)

    def step(self, lags: Int) -> npt.NDArray[np.float64]:
        """The mean step, ns, for each column of the edges' lags.

        From where the last rank begins to where the last one ends: how late it was before is no part of
        these steps.
        """
        times = self.graph.times(lags)
        lengths = times[self.last].max(axis=0) - times[self.first].max(axis=0)
        return lengths / self.steps


def chains(
    steps: pl.DataFrame, pieces: pl.DataFrame, matches: pl.DataFrame, before: pl.DataFrame | None = None
) -> RankChains | None:
    """The job of `steps` (rank, step, start, end: the same, one after the other, on all ranks).

    `pieces` (rank, start, end, kind) say what each rank does at every instant of them, null where it does
    nothing but communicate; `matches` are rows as `intervals.matching` gives them; `before`, as
    `computed_before` tells it, is what operations wait for. None where no operation joins two ranks.
    """
    windows = steps.group_by("rank").agg(pl.col("start").min(), pl.col("end").max()).sort("rank")
    operations = _operations(_while_threads_wait(matches, pieces), windows)
    if before is not None and operations.height:
        operations = _ready(operations, before)
    if not operations.height or operations["rank"].n_unique() < 2:
        return None
    places = _places(operations, windows["rank"])
    segments = _segments(steps, windows, pieces, operations)
    return _graph(windows, places, segments, own_work(segments, pieces), operations)


def _while_threads_wait(matches: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """The same, where operations of host threads end no later than the thread that waits for them goes on.

    On a busy processor the thread that carries one may note its end after the other has been woken: all that
    this one waited would else be a gap of its own.
    """
    carried = matches.with_row_index("_row").filter(
        pl.col("library").cast(pl.String).is_in(ON_THREADS), pl.col("instance").is_not_null()
    )
    if carried.is_empty():
        return matches
    quiet = intervals.union(pieces.filter(pl.col("kind").is_null()).lazy(), ["rank"]).collect()
    quiet = quiet.filter(pl.col("end") - pl.col("start") >= WAITED_AT_LEAST)
    quiet = quiet.select("rank", "end", goes_on="end", waits=pl.col("end") - pl.col("start")).sort("end")
    late, waits = pl.col("late"), pl.col("waits")
    near = late <= pl.max_horizontal(pl.lit(RETURNS_WITHIN), (LATE * waits).clip(None, LATEST))
    told = (
        carried.select("_row", "rank", "kind", "bytes_in", until="end", since=pl.col("last_arrival") + 1)
        .sort("since")
        # The first stretch that ends after the last rank came: the thread waits in it, if in any.
        .join_asof(
            quiet, left_on="since", right_on="end", by="rank", strategy="forward", check_sortedness=False
        )
        .with_columns(late=pl.col("until") - pl.col("goes_on"))
        .with_columns(near=near.fill_null(False))
        .with_columns(mostly=pl.col("near").mean().over("rank", "kind", "bytes_in") > MOSTLY)
        .filter(late > 0, pl.col("near") | (pl.col("mostly") & (late <= waits)))
        .select("_row", "goes_on")
    )
    return (
        matches.with_row_index("_row")
        .join(told, on="_row", how="left", maintain_order="left")
        .with_columns(end=pl.coalesce("goes_on", "end"))
        .drop("_row", "goes_on")
    )


def _operations(matches: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Parts of ranks in operations that were matched and that lie within the steps on all members."""
    members = pl.len().over("instance")  # a rank takes part in one once
    return (
        matches.filter(pl.col("instance").is_not_null())
        .with_columns(_all=members)
        .join(windows.select("rank", _from="start", _to="end"), on="rank")
        .filter((pl.col("arrival") >= pl.col("_from")) & (pl.col("end") <= pl.col("_to")))
        .filter((members == pl.col("_all")) & (members > 1))
        .with_columns(kind=pl.col("kind").cast(pl.String))
        .with_columns(
            type=pl.when(pl.col("kind").is_in(PAIR)).then(pl.lit(P2P)).otherwise("kind"),
            size=pl.when(pl.col("kind") == "receive").then("bytes_out").otherwise("bytes_in"),
        )
        .sort("rank", "arrival", "end", "instance")
        .with_columns(start="arrival")
        .select(
            *("rank", "start", "end", "kind", "type", "stream", "instance", "peer", "last_arrival"),
            *("members", "size", "wait", "correlation"),
            ready=pl.col("start"),
        )
        .with_row_index("operation")
        .with_columns(
            pl.col("operation").cast(pl.Int64),
            ahead=pl.col("operation").cast(pl.Int64).shift().over("rank", "stream"),
            gap=pl.col("start") - pl.col("end").shift().over("rank", "stream"),
        )
        .with_columns(
            queued=pl.col("gap").is_between(0, QUEUED).fill_null(False),
            # Each all-to-all sends as many tokens as were routed.
            _alike=pl.when(pl.col("type") == "all-to-all").then(None).otherwise("size"),
        )
    )


def computed_before(kernels: pl.DataFrame) -> pl.DataFrame:
    """When what was launched before each kernel of communication had been computed: rank, stream,
    correlation, start, done (null where nothing was).

    `kernels` are rank, start, end, stream, correlation, family and launch_start of some ranks.
    """
    communication = pl.col("family") == "communication"
    launched = kernels.filter(communication & pl.col("launch_start").is_not_null())
    computed = (
        kernels.filter(~communication & pl.col("launch_start").is_not_null())
        .sort("rank", "launch_start")
        .select("rank", "launch_start", done=pl.col("end").cum_max().over("rank"))
        .sort("launch_start")
    )
    one = ["rank", "stream", "correlation", "start"]
    return (
        launched.select(*one, "launch_start")
        .unique(one)
        .sort("launch_start")
        .join_asof(computed, on="launch_start", by="rank", check_sortedness=False)
        .drop("launch_start")
    )


def _ready(operations: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """The operations with `ready`: when what was launched before them had been computed.

    An operation reads what was computed until it was launched, so it waits for that and for its own stream.
    One that begins long after both was launched late: then it is the host that it waited for.
    """
    found = operations.join(
        before, on=["rank", "stream", "correlation", "start"], how="left", maintain_order="left"
    )
    soon = pl.col("start") - pl.col("done") <= QUEUED
    told = (pl.col("done") <= pl.col("start")) & (soon | pl.col("queued"))
    return found.with_columns(ready=pl.when(told.fill_null(False)).then("done").otherwise("start")).drop(
        "done"
    )


def _places(operations: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Which pipeline each rank belongs to, and which stage of it the rank is."""
    pipeline = {rank: rank for rank in ranks.to_list()}
    pairs = operations.filter(pl.col("kind").is_in(PAIR) & pl.col("peer").is_not_null())
    for one, other in pairs.select("rank", "peer").unique().sort("rank", "peer").iter_rows():
        if other in pipeline:
            low, high = sorted((pipeline[one], pipeline[other]))
            pipeline = {rank: low if of == high else of for rank, of in pipeline.items()}
    known = pl.DataFrame(
        {"rank": list(pipeline), "pipeline": list(pipeline.values())},
        schema={"rank": ranks.dtype, "pipeline": ranks.dtype},
    )
    sends, receives = pairs.filter(kind="send"), pairs.filter(kind="receive")
    order = (
        known.join(sends.group_by("rank").agg(sent=pl.col("start").min()), on="rank", how="left")
        .join(receives.group_by("rank").agg(received=pl.col("end").min()), on="rank", how="left")
        .with_columns(
            _first=(pl.col("received").is_null() | (pl.col("sent") < pl.col("received")))
            .sum()
            .over("pipeline"),
            _ranks=pl.len().over("pipeline"),
        )
        .with_columns(_is=(pl.col("_ranks") > 1) & (pl.col("_first") == 1))
        # Whoever sends for the first time has just been reached by the first microbatch.
        .with_columns(stage=pl.coalesce("sent", "received").rank("ordinal").over("pipeline") - 1)
    )
    return order.select(
        "rank",
        pipeline=pl.when("_is").then("pipeline").otherwise("rank"),
        stage=pl.when("_is").then("stage").otherwise(0).cast(pl.Int64),
        stages=pl.when("_is").then("_ranks").otherwise(1).cast(pl.Int64),
    ).sort("rank")


def _segments(
    steps: pl.DataFrame, windows: pl.DataFrame, pieces: pl.DataFrame, operations: pl.DataFrame
) -> pl.DataFrame:
    """The chains of all ranks, cut at operations and steps, with what each segment holds of each kind."""
    cut = pl.concat(
        [
            steps.select("rank", at="start"),
            windows.select("rank", at="end"),
            operations.select("rank", at="start"),
            operations.select("rank", at="end"),
            operations.select("rank", at="ready"),
        ]
    )
    within = windows.select("rank", _from="start", _to="end")
    cut = cut.join(within, on="rank").select("rank", at=pl.col("at").clip(pl.col("_from"), pl.col("_to")))
    order = intervals.row_order(cut, ["rank", "at"])
    # Chains stand rank by rank in the order of time, in which rows are joined to what came last.
    chain = (
        cut[order[intervals.changes(cut, ["rank", "at"], order)]]
        .with_columns(end=pl.col("at").shift(-1).over("rank"))
        .drop_nulls("end")
        .rename({"at": "start"})
        .join_asof(
            steps.select("rank", "step", "start").sort("start"), on="start", by="rank", check_sortedness=False
        )
        .with_row_index("segment")
    )
    ended = operations.select("rank", "end", _ends=pl.lit(True)).unique()
    pairs = operations.filter(type=P2P)
    sent = pairs.filter(kind="send").select("rank", start="ready", _sends=pl.lit(True)).unique()
    got = pairs.filter(kind="receive").select("rank", "end", _receives=pl.lit(True)).unique()
    tail = pieces.filter(pl.col("end") > pl.col("start")).sort("rank", "start")
    quiet = tail.with_columns(_quiet=pl.col("kind").is_null())
    run = (pl.col("_quiet").ne_missing(pl.col("_quiet").shift())) | (pl.col("rank") != pl.col("rank").shift())
    quiet = (
        quiet.with_columns(_run=run.fill_null(True).cum_sum())
        .group_by("_run")
        .agg(pl.col("rank").first(), pl.col("start").min(), pl.col("_quiet").first())
    )
    return (
        chain.join(ended, on=["rank", "end"], how="left", maintain_order="left")
        .join(sent, on=["rank", "start"], how="left", maintain_order="left")
        .join(got, on=["rank", "end"], how="left", maintain_order="left")
        .with_columns(_before=pl.col("end") - 1)
        .join_asof(
            quiet.sort("start").select("rank", "_quiet", _since="start", _at="start"),
            left_on="_before",
            right_on="_at",
            by="rank",
            check_sortedness=False,
        )
        .with_columns(
            blocked=pl.when(
                pl.col("_ends").fill_null(False)
                & pl.col("_quiet").fill_null(False)
                & (pl.col("end") - pl.col("_since") >= BLOCKING)
            )
            .then(pl.col("end") - pl.max_horizontal("_since", "start"))
            .otherwise(0)
        )
        .with_columns(
            # A pass ends where its message leaves, and begins where one arrives that was waited for.
            run=(
                pl.col("_sends").fill_null(False)
                | (pl.col("_receives").fill_null(False) & (pl.col("blocked") > 0))
                .shift()
                .over("rank")
                .fill_null(False)
                | (pl.col("step") != pl.col("step").shift()).over("rank").fill_null(True)
            )
            .cum_sum()
            .over("rank")
        )
        .select("segment", "rank", "step", "start", "end", "blocked", "run")
    )


def own_work(segments: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """What each segment holds of each kind: segment, rank, step, run, kind, own; all but blocking adds up."""
    kinds = sorted(pieces["kind"].drop_nulls().unique().to_list())
    ranks = segments["rank"].unique().sort().to_list()
    told = list[pl.DataFrame]()
    # A column for each kind, most of them zero, is many times what remains of it.
    for at in range(0, len(ranks), RANKS_AT_ONCE):
        some = pl.col("rank").is_in(ranks[at : at + RANKS_AT_ONCE])
        told.append(_held(segments.filter(some), pieces.filter(some), kinds))
    return pl.concat(told)


def _held(segments: pl.DataFrame, pieces: pl.DataFrame, kinds: Sequence[str]) -> pl.DataFrame:
    """The same of some ranks and of these kinds."""
    held = intervals.inside(
        segments.lazy(),
        pieces.filter(pl.col("end") > pl.col("start")).sort("rank", "start").lazy(),
        {f"={kind}": pl.col("kind").eq_missing(pl.lit(kind)) for kind in kinds},
    ).collect()
    columns = [f"={kind}" for kind in kinds]
    rest = pl.col("end") - pl.col("start") - pl.col("blocked") - pl.sum_horizontal(columns or [pl.lit(0)])
    return (
        held.with_columns(rest.alias(f"={GAPS}"))
        .unpivot(
            sorted([*columns, f"={GAPS}"]),
            index=["segment", "rank", "step", "run"],
            variable_name="kind",
            value_name="own",
        )
        .filter(pl.col("own") != 0)
        .with_columns(pl.col("kind").str.slice(1))
        .sort("segment", maintain_order=True)  # kinds stand in order
    )


def _even(parts: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """The parts with `ideal`: what each would be if all ranks and stages had as much of its kind in a step,
    and between two operations in which all stop.

    What all do in some steps, such as a checkpoint, stays in those. A rank's computing keeps its shape.
    Passes of microbatches all become as long as their mean where all stages have as many; with backward
    passes in two parts, what a step has in all is evened out.
    """
    passes = _passes(parts) if places["stages"].max() != 1 else []
    unit = ["rank", "step", "place", "_pass", "kind"]
    place = ["step", "place"]
    parts = parts.with_columns(_pass=pl.when(pl.col("kind").is_in(passes)).then("run").otherwise(-1))
    units = parts.group_by(unit).agg(_whole=pl.col("own").sum())
    several = pl.col("_pass") >= 0
    stray = several & _stray("_whole")
    # All ranks count, those that have none of it too.
    units = units.with_columns(_stray=stray).with_columns(
        _mean=pl.when(several)
        .then(pl.col("_whole").filter(~pl.col("_stray")).mean().over("kind"))
        .otherwise(pl.col("_whole").sum().over("kind", *place) / places.height)
    )
    none = (
        parts.select("rank", *place)
        .unique()
        .join(units.filter(~several).select(*place, "kind", "_mean").unique([*place, "kind"]), on=place)
        .join(units, on=["rank", *place, "kind"], how="anti")
        .join(parts.group_by("rank", *place).agg(pl.col("edge").min()), on=["rank", *place])
        .select("edge", "rank", "step", "kind", own=pl.lit(0, pl.Int64), ideal="_mean")
    )
    share = pl.col("own") / pl.col("_whole")
    even = parts.join(units, on=unit, how="left", maintain_order="left").select(
        *("edge", "rank", "step", "kind", "own"),
        ideal=pl.when("_stray").then("own").otherwise(share * pl.col("_mean")),
    )
    return pl.concat([even, none.select(even.columns)]).with_columns(pl.col("ideal").round().cast(pl.Int64))


def _passes(parts: pl.DataFrame) -> list[str]:
    """The kinds of computing that all ranks have in as many passes of a step: those of microbatches."""
    kinds = [kind for kind in COMPUTED if kind != "optimizer"]
    each = (
        parts.filter(pl.col("kind").is_in(kinds))
        .group_by("rank", "step", "run", "kind")
        .agg(pl.col("own").sum())
        .filter(~_stray("own"))
        .group_by("rank", "step", "kind")
        .len()
        .group_by("kind")
        .agg(pl.col("len").n_unique())
    )
    return each.filter(pl.col("len") == 1)["kind"].to_list()


def _stray(column: str) -> pl.Expr:
    return pl.col(column) < STRAY * pl.col(column).median().over("kind")


def _graph(
    windows: pl.DataFrame,
    places: pl.DataFrame,
    segments: pl.DataFrame,
    work: pl.DataFrame,
    operations: pl.DataFrame,
) -> RankChains:
    """Points: one before each segment and one after each chain; arrivals, ends and joins of operations."""
    ranks, many = windows.height, operations.height
    # A chain has one point more than it has segments.
    number = pl.int_range(pl.len(), dtype=pl.Int64) + pl.col("rank").rank("dense").cast(pl.Int64) - 1
    numbered = segments.with_columns(point=number)
    before = numbered["point"].to_numpy()
    ends = numbered.group_by("rank", maintain_order=True).agg(
        first=pl.col("point").first(), last=pl.col("point").last() + 1
    )
    points = segments.height + ranks
    arrive, end = points + np.arange(many), points + many + np.arange(many)
    joined = operations["instance"].rank("dense").cast(pl.Int64).to_numpy() - 1
    join = points + 2 * many + joined
    origin = points + 2 * many + int(joined.max()) + 1
    placed = _placed(numbered, operations)
    waits = placed["wait"].is_not_null().to_numpy()
    blocks = placed["blocks"].to_numpy()
    ahead = placed["ahead"].fill_null(-1).to_numpy()
    follows = ahead >= 0
    # One that waited for its stream begins as soon after the one before as it did, whatever was computed.
    queued = placed["queued"].to_numpy()
    gap = np.where(queued, placed["gap"].fill_null(0), placed["gap"].fill_null(0).clip(None, 0))
    late = np.where(queued, 0, (placed["start"] - placed["ready"]).to_numpy())
    after, released = placed["after"].to_numpy(), placed["released"].fill_null(-1).to_numpy()
    edges = (
        (before, before + 1),
        (np.full(ranks, origin), ends["first"].to_numpy()),
        (join[waits], end[waits]),
        (arrive[~waits], end[~waits]),
        (after, arrive),
        (arrive, join),
        (end[blocks], released[blocks]),
        (end[ahead[follows]], arrive[follows]),
    )
    begins: list[int] = np.cumsum([0, *(len(source) for source, _ in edges)]).tolist()
    fixed = np.zeros(begins[-1], np.int64)
    fixed[begins[4] : begins[5]] = late
    fixed[begins[-2] :] = gap[follows]
    moved = np.empty(many, np.int64)
    moved[waits] = begins[2] + np.arange(int(waits.sum()))
    moved[~waits] = begins[3] + np.arange(int((~waits).sum()))
    step = segments.select("rank", "step", "start").sort("start")
    transfers = (
        operations.with_columns(edge=pl.Series(moved))
        .join_asof(step, on="start", by="rank", check_sortedness=False)
        .select(
            *("operation", "edge", "rank", "step", "members", "_alike"),
            kind=pl.when(pl.col("wait").is_not_null()).then("type").otherwise(pl.lit(EARLY)),
            own=pl.when(pl.col("wait").is_null())
            .then(pl.col("end") - pl.col("start"))
            .otherwise(pl.col("end") - pl.col("last_arrival")),
        )
        .with_columns(own=pl.when(pl.col("own") > LOST).then("own").otherwise(0))
    )
    median = pl.col("own").median().round().cast(pl.Int64)
    transfers = transfers.with_columns(ideal=median.over("kind", "members", "_alike"))
    operations = operations.join(
        transfers.select("operation", transfer="own", usual="ideal"), on="operation", maintain_order="left"
    )
    begun = (
        windows.join(places, on="rank", maintain_order="left")
        .with_columns(edge=begins[1] + pl.int_range(pl.len(), dtype=pl.Int64))
        .with_columns(own=pl.col("start") - pl.col("start").min(), kind=pl.lit(START))
        .with_columns(ideal=pl.col("own").median().over("stage").round().cast(pl.Int64))
        .with_columns(step=pl.lit(segments["step"].min(), pl.Int64))
    )
    columns = ("edge", "rank", "step", "kind", "own", "ideal")
    stops = _between_stops(segments, operations, blocks, ranks)
    work = work.join(stops, on="segment", how="left", maintain_order="left").rename({"segment": "edge"})
    even = _even(work.with_columns(pl.col("edge").cast(pl.Int64)), places)
    parts = pl.concat([even.select(columns), transfers.select(columns), begun.select(columns)])
    source, target = (np.concatenate([edge[n] for edge in edges]) for n in (0, 1))
    return RankChains(
        ranks=places,
        parts=parts.sort("edge", "kind"),
        segments=segments,
        operations=operations,
        graph=Graph.of(origin + 1, source, target, variants=USUAL_VARIANTS),
        fixed=fixed,
        first=ends["first"].to_numpy(),
        last=ends["last"].to_numpy(),
        steps=segments["step"].n_unique(),
    )


def _between_stops(
    segments: pl.DataFrame, operations: pl.DataFrame, blocks: Flags, ranks: int
) -> pl.DataFrame:
    """How many operations in which every rank stops come before each segment: segment, place.

    What a rank alone does after one of them, others would not do before it.
    """
    here = operations.select("instance", "rank", "end", blocks=pl.Series(blocks))
    all_stop = pl.col("blocks").all().over("instance") & (pl.len().over("instance") == ranks)
    stops = here.filter(all_stop).select("rank", "end", stops=pl.lit(1)).unique()
    passed = pl.col("stops").fill_null(0).cum_sum().shift(fill_value=0).over("rank", order_by="start")
    return segments.join(stops, on=["rank", "end"], how="left").select("segment", place=passed)


def _placed(chains: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Operations with the points of their rank's chain: `after` which they begin, and that they release.

    `blocks` says that the rank did nothing until it ended.
    """
    first = pl.col("start").min().over("rank")
    return (
        operations.join(
            chains.select("rank", "start", after="point", _first=first),
            left_on=["rank", "ready"],
            right_on=["rank", "start"],
            how="left",
            maintain_order="left",
        )
        .join(
            chains.group_by("rank").agg(_begin=pl.col("point").first()),
            on="rank",
            how="left",
            maintain_order="left",
        )
        .join(
            chains.select("rank", "end", blocks=pl.col("blocked") > 0, released=pl.col("point") + 1),
            on=["rank", "end"],
            how="left",
            maintain_order="left",
        )
        .with_columns(
            pl.col("blocks").fill_null(False),
            # What was computed before the first step is there when that begins.
            after=pl.col("after").fill_null(pl.col("_begin")),
        )
    )
