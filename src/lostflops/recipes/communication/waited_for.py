"""What the ranks that others wait for do meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Flag, Id, Name, Time
from lostflops.intervals.matching import PAIR
from lostflops.recipe import Example, recipe
from lostflops.recipes.accounting import WAIT

# A pipeline of so many stages passes waiting on from its last to its first.
LONGEST_CHAIN = 128
AT_ONCE = 4_000_000  # runs of the device that are looked at together


@recipe(
    question="What do the ranks that others wait for do meanwhile?",
    scope="job",
    page=False,
    whole=True,
    columns={
        "rank": Id("rank that waits"),
        "step": Id("step number"),
        "on": Id("rank that it waits for in the end"),
        "account": Name("what that rank does meanwhile: an account of the ledger"),
        "in_pair": Flag("whether the rank waits in a send or receive"),
        "time": Time("how long, with nothing computed or transferred"),
    },
    examples=[
        Example(
            "rank 0 waits 32 ns for rank 1, which waits for 12 of them for rank 2's loader, then computes",
            given={
                "steps": [{"rank": rank, "step": 4, "start": 0, "end": 70} for rank in range(3)],
                "kernels": [
                    {"rank": 0, "start": 0, "end": 10, "family": "gemm"},
                    {"rank": 1, "start": 0, "end": 9, "family": "gemm"},
                    {"rank": 1, "start": 26, "end": 42, "family": "gemm"},
                    {"rank": 2, "start": 22, "end": 70, "launch_start": 20, "launch_end": 22, "thread": 7},
                ],
                "collectives": [
                    {"rank": 0, "start": 10, "end": 45, "kind": "receive", "peer": 1, "group": "pp"},
                    {"rank": 1, "start": 42, "end": 45, "kind": "send", "peer": 0, "group": "pp"},
                    {"rank": 1, "start": 9, "end": 26, "kind": "receive", "peer": 2, "group": "pp"},
                    {"rank": 2, "start": 22, "end": 26, "kind": "send", "peer": 1, "group": "pp"},
                ],
                "ranges": [{"rank": 2, "start": 0, "end": 22, "thread": 7, "name": "dataloader"}],
                "ranks": [
                    {"rank": rank, "world_size": 3, "clock_error": 1, "device_kind": "gpu", "main_thread": 7}
                    for rank in range(3)
                ],
            },
            expect=[
                {"rank": 0, "step": 4, "on": 1, "account": "communication.transfer", "time": 4},
                {"rank": 0, "step": 4, "on": 1, "account": "compute", "time": 16},
                {"rank": 0, "step": 4, "on": 2, "account": "idle.data_loading", "in_pair": True, "time": 12},
                {"rank": 1, "step": 4, "on": 2, "account": "idle.data_loading", "in_pair": True, "time": 13},
            ],
        ),
    ],
)
def communication_waited_for(
    device_runs: pl.LazyFrame, idle_stretches: pl.LazyFrame, communication_matches: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Follow each wait to the rank that everybody waits for at that instant, and say what it does then.

    A rank in a collective waits for the one that arrives last. If that one waits as well, it is late because
    of another, so the wait is followed further until a rank does something of its own. Where a rank waits in
    several operations at a time, it is the earliest of those that bring it something; a send brings nothing.
    """
    runs, idle = pl.collect_all(
        [device_runs.filter(pl.col("account").is_not_null()), idle_stretches.drop("gap", "thread")]
    )
    waiting = pl.col("account") == WAIT
    waits = _waits(runs.filter(waiting), communication_matches)
    nobody = pl.lit(None, dtype=pl.Int32)
    does = [
        waits.select("start", "end", on="rank", account=pl.lit(WAIT), _then="on"),
        *(
            rows.select("start", "end", on="rank", account="account", _then=nobody)
            for rows in (runs.filter(~waiting), idle)
        ),
    ]
    of = ("rank", "step", "on", "account", "in_pair")
    length = pl.col("end") - pl.col("start")
    told = [waits.clear().select(*of[:3], account=pl.lit(""), in_pair="in_pair", time=length)]
    for since, until in _spans_of_time(does):
        meanwhile = pl.concat([_during(rows, since, until) for rows in does])
        ends = _followed(_during(waits, since, until), meanwhile)
        told += [met.group_by(of).agg(time=length.sum()) for met in ends]
    return pl.concat(told).group_by(of).agg(pl.col("time").sum()).sort(of).lazy()


def _followed(waits: pl.DataFrame, does: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What the ranks that are waited for do in the end: first those that do not wait themselves."""
    does = intervals.in_order(does, "on")
    for _ in range(LONGEST_CHAIN):
        met = intervals.cut(waits.filter(pl.col("on").is_not_null()), does, "on")
        further = pl.col("_then").is_not_null()
        yield met.filter(~further)
        waits = met.filter(further).with_columns(on="_then").drop("account", "_then")
        if waits.is_empty():
            return


def _spans_of_time(rows: Sequence[pl.DataFrame]) -> list[tuple[int, int]]:
    """All time in spans, in each of which about `AT_ONCE` of the rows begin: memory follows the span, not the
    job."""
    starts = np.concatenate([each["start"].to_numpy() for each in rows])
    if not len(starts):
        return []
    places = np.arange(AT_ONCE, len(starts), AT_ONCE)
    inner: list[int] = np.unique(np.partition(starts, places)[places]).tolist()
    last = max(int(each["end"].max()) for each in rows if each.height)  # type: ignore[arg-type]
    return list(itertools.pairwise([int(starts.min()), *inner, last]))


def _during(rows: pl.DataFrame, since: int, until: int) -> pl.DataFrame:
    """What lies in that span of time, cut at its ends."""
    here = rows.filter((pl.col("end") > since) & (pl.col("start") < until))
    return here.with_columns(pl.col("start").clip(since), pl.col("end").clip(None, until))


def _waits(waits: pl.DataFrame, matches: pl.LazyFrame | None) -> pl.DataFrame:
    """Waits cut wherever an operation begins or ends to wait, each with the rank that its own waits for.

    Columns: rank, step, start, end, on, in_pair.
    """
    until = pl.min_horizontal("end", pl.col("arrival") + pl.col("wait"))
    kind = pl.col("kind").cast(pl.String)
    if matches is None:
        waiting = waits.clear().select("rank", "start", "end", on="rank", in_pair=pl.lit(True), _idly=True)
    else:
        waiting = (
            matches.filter(pl.col("wait") > 0)
            .select(
                "rank",
                "start",
                end=until,
                on=pl.col("last_rank").cast(pl.Int32),
                in_pair=kind.is_in(PAIR).fill_null(False),
                _idly=kind.eq_missing("send"),
            )
            .filter((pl.col("end") > pl.col("start")) & (pl.col("on") != pl.col("rank")))
            .collect()
        )
    edges = [rows.select("rank", at=side) for rows in (waiting, waits) for side in ("start", "end")]
    pieces = (
        pl.concat(edges)
        .unique()
        .sort("rank", "at")
        .select("rank", start="at", end=pl.col("at").shift(-1).over("rank"))
        .drop_nulls("end")
    )
    inside = intervals.cut(pieces, waits.select("rank", "step", "start", "end"), "rank")
    # The operations are not disjoint, the pieces are: operations are cut by them, then one for each is kept.
    return (
        intervals.cut(waiting.with_columns(_began="start"), inside, "rank")
        .sort("rank", "start", "_idly", "_began", "on", "in_pair")
        .unique(["rank", "start"], keep="first", maintain_order=True)
        .select("rank", "step", "start", "end", "on", "in_pair")
    )
