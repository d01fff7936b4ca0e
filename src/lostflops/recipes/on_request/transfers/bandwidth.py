"""How fast copies were over time."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Instant, Name, Number, Share
from lostflops.recipe import Example, HeatMap, recipe
from lostflops.recipes.on_request.time_buckets import Buckets, time_buckets
from lostflops.tables import Copies


@recipe(
    question="How fast are copies over time, in each direction?",
    scope="job",
    plot=HeatMap(x="start", y="direction", value="bandwidth"),
    columns={
        "rank": Id("rank"),
        "direction": Name("from where to where"),
        "start": Instant("start of the stretch"),
        "bandwidth": Number("bytes moved in the stretch / its length (a GB is 10⁹ bytes)", unit="GB/s"),
        "while_copying": Number("the same bytes / the time of the copies in it", unit="GB/s"),
        "copying": Share("share of the stretch in which a copy of that direction runs"),
    },
    examples=[
        Example(
            "a copy across both stretches is spread by time",
            given={
                "copies": [
                    {"start": 0, "end": 4, "bytes": 40, "direction": "host to device"},
                    {"start": 8, "end": 20, "bytes": 60, "direction": "host to device"},
                ]
            },
            options={"buckets": 2},
            expect=[
                {"rank": 0, "direction": "host to device", "start": s, "bandwidth": b, "while_copying": w}
                | {"copying": c}
                for s, b, w, c in ((0, 5.0, 50 / 6, 0.6), (10, 5.0, 5.0, 1.0))
            ],
        ),
    ],
)
def copy_bandwidth(copies: Copies, *, buckets: Buckets = 60) -> pl.LazyFrame:
    """Cut the run into equal stretches, and spread the bytes of each copy over its time.

    How to read it: `while_copying` is what the link gives when it is used; `bandwidth` is what the run makes
    of it. A stretch in which no copy runs has no row.

    Limits: copies without known bytes are left out. Concurrent copies share the link: each looks slower.

    What to try: `link-bandwidth` compares with the link's nominal speed.
    """
    timed = copies.filter(
        pl.col("bytes").is_not_null(), ~pl.col("communication"), pl.col("end") > pl.col("start")
    ).select(
        "rank",
        "start",
        "end",
        pl.col("direction").cast(pl.String),
        _rate=pl.col("bytes") / (pl.col("end") - pl.col("start")),
    )
    seen = time_buckets(timed, buckets).with_columns(_from=pl.col("start"), _until=pl.col("end"))
    parts = intervals.cut(timed.collect(), seen.collect(), "rank")
    ns, width = pl.col("end") - pl.col("start"), pl.col("_until") - pl.col("_from")
    keys = ["rank", "direction", "_from", "_until"]
    busy = intervals.union(parts.lazy(), keys).group_by(keys).agg(_busy=ns.sum())
    return (
        parts.lazy()
        .group_by(keys)
        .agg(_bytes=(pl.col("_rate") * ns).sum(), _time=ns.sum())
        .join(busy, on=keys)
        .select(
            "rank",
            "direction",
            start="_from",
            bandwidth=pl.col("_bytes") / width,
            while_copying=pl.col("_bytes") / pl.col("_time"),
            copying=pl.col("_busy") / width,
        )
        .sort("rank", "direction", "start")
    )
