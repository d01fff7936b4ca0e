"""Which functions threads were in when they were sampled."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Share
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Samples


@recipe(
    question="Which functions do CPU threads spend their time in?",
    scope="rank",
    plot=Bars(x="function", y=("self_share", "share")),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "function": Name("function"),
        "samples": Count("samples whose stack holds it"),
        "share": Share("samples / samples of the thread"),
        "self_samples": Count("samples in which it is innermost"),
        "self_share": Share("self_samples / samples of the thread"),
    },
    examples=[
        Example(
            "main calls itself, and memcpy; three samples",
            given={
                "samples": [
                    {"start": t, "end": t, "thread": 7, "function": f, "stack": s}
                    for t, f, s in (
                        (1, "memcpy", "main;main;memcpy"),
                        (2, "memcpy", "main;memcpy"),
                        (3, "main", "main"),
                    )
                ]
                + [{"start": 1, "end": 1, "thread": 9, "function": "poll"}]
            },
            expect=[
                {"rank": 0, "thread": t, "function": f, "samples": n, "share": n / w, "self_samples": s}
                | {"self_share": s / w}
                for t, f, n, s, w in ((7, "main", 3, 1, 3), (7, "memcpy", 2, 2, 3), (9, "poll", 1, 1, 1))
            ],
        ),
    ],
)
def host_hotspots(
    samples: Samples, *, at_least: Annotated[float, "least share of the thread's samples to list"] = 0.01
) -> pl.LazyFrame:
    """Count for each thread how many samples hold each function, and how many it is innermost in.

    A function that calls itself counts once per sample.

    How to read it: `self_share` is where the processor is; `share` is what asked for it. Read one thread at a
    time: `thread-state-summary` says which one matters.

    Limits: only threads on a core are sampled: waiting does not show. Stacks are cut at a depth that nsys
    sets, so outer functions may be missing. Optimised code without frame pointers is unwound in part.

    What to try: `export --format flamegraph` draws stacks of ranges and operators.
    """
    words = samples.select(
        "rank",
        "thread",
        pl.col("function").cast(pl.String),
        stack=pl.coalesce(pl.col("stack").cast(pl.String), pl.col("function").cast(pl.String)),
    ).with_row_index("_sample")
    all_of = words.group_by("rank", "thread").agg(_all=pl.len().cast(pl.Int64))
    kinds = ["rank", "thread", "function"]
    inner = words.group_by(kinds).agg(self_samples=pl.len().cast(pl.Int64))
    holds = (
        words.select("rank", "thread", "_sample", function=pl.col("stack").str.split(";"))
        .explode("function")
        .unique(["_sample", "function"])
        .group_by(kinds)
        .agg(samples=pl.len().cast(pl.Int64))
    )
    return (
        holds.join(inner, on=kinds, how="left", nulls_equal=True)
        .join(all_of, on=["rank", "thread"], how="left", nulls_equal=True)
        .with_columns(pl.col("self_samples").fill_null(0))
        .with_columns(
            share=pl.col("samples") / pl.col("_all"), self_share=pl.col("self_samples") / pl.col("_all")
        )
        .filter(pl.col("share") >= at_least)
        .select(*host_hotspots.columns)
        .sort(
            "rank",
            "thread",
            "samples",
            "self_samples",
            "function",
            descending=[False, False, True, True, False],
        )
    )
