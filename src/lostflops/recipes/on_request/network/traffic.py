"""How many bytes each rank sent to each other, as far as operations tell."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Time
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.tables import Collectives

SENDS = ("send", "send-receive")


@recipe(
    question="How many bytes did each rank send to each other rank?",
    scope="rank",
    plot=HeatMap(x="rank", y="peer", value="bytes"),
    columns={
        "rank": Id("rank that sends"),
        "peer": Id("rank that receives; null for operations of a group, whose ways the library chooses"),
        "kind": Name("operation"),
        "group": Name("process group; null when unknown"),
        "operations": Count("how many"),
        "bytes": Bytes(
            "bytes of this rank's input buffers, as far as they were recorded; null when none were"
        ),
        "unknown": Count("operations whose bytes were not recorded"),
        "time": Time("durations added up, waiting included"),
    },
    examples=[
        Example(
            "a pipeline stage sends activations on; all-reduces go to the group",
            given={
                "collectives": [
                    {"start": 0, "end": 10, "kind": "send", "peer": 3, "bytes_in": 64, "group": "pp"},
                    {"start": 20, "end": 29, "kind": "send", "peer": 3, "bytes_in": 32, "group": "pp"},
                    {"start": 30, "end": 34, "kind": "receive", "peer": 3, "bytes_out": 7, "group": "pp"},
                    {"start": 40, "end": 60, "kind": "all-reduce", "group": "dp", "bytes_in": 1000},
                    {"start": 60, "end": 63, "kind": "all-reduce", "group": "dp"},
                ]
            },
            expect=[
                {"rank": 0, "peer": 3, "kind": "send", "group": "pp", "operations": 2, "bytes": 96}
                | {"unknown": 0, "time": 19},
                {"rank": 0, "peer": None, "kind": "all-reduce", "group": "dp", "operations": 2, "bytes": 1000}
                | {"unknown": 1, "time": 23},
            ],
        ),
    ],
)
def traffic_map(collectives: Collectives) -> pl.LazyFrame:
    """Add up the bytes that each rank gives to operations, by receiver where there is one.

    How to read it: the map of `peer` rows shows pipeline neighbours and other point-to-point traffic; rows
    without a peer are collectives, by group.

    Limits: how a collective's bytes travel is up to the library (ring, tree, switch), so they are not spread
    over pairs of ranks. What is received is listed by its sender.

    What to try: `communication-summary` for bandwidths; place ranks that talk most on one machine.
    """
    kind = pl.col("kind").cast(pl.String)
    pair = kind.is_in(SENDS) & pl.col("peer").is_not_null()
    kinds = ["rank", "peer", "kind", "group"]
    known = pl.col("bytes_in").is_not_null()
    return (
        collectives.filter(kind != "receive")
        .with_columns(pl.col("kind", "group").cast(pl.String), peer=pl.when(pair).then("peer"))
        .group_by(kinds)
        .agg(
            operations=pl.len().cast(pl.Int64),
            bytes=pl.when(known.any()).then(pl.col("bytes_in").sum()),
            unknown=(~known).sum().cast(pl.Int64),
            time=(pl.col("end") - pl.col("start")).sum(),
        )
        .sort(kinds, nulls_last=True)
    )
