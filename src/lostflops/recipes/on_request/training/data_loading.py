"""Whether the GPU waits for the data loader, and on which rank."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.accounts.idle.data_loading import DATA_LOADING
from lostflops.columns import Count, Flag, Id, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.accounting import HOST_ONLY
from lostflops.recipes.host_steps import while_on_host
from lostflops.tables import Ranks

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
# From this share of the step on the page has a finding: the threshold of that finding.
STARVES = DATA_LOADING.loss.from_share if DATA_LOADING.loss else 0.05


@recipe(
    question="Is the GPU starving: what share of each step does it wait for the data loader, on which rank?",
    scope="job",
    plot=Bars(x="rank", y=("waits", "hidden"), stacked=True),
    columns={
        "rank": Id("rank"),
        "steps": Count("steps that count"),
        "loading": Time("CPU time per step in which the training thread is at its loader"),
        "waits": Time("the part of it per step in which the GPU is idle for that reason"),
        "hidden": Time("loading - waits: the GPU has work meanwhile, or is idle for another reason"),
        "waits_share": Share("waits / step time"),
        "longest": Typical("most of `waits` in one step"),
        "starved_steps": Count("steps of which the GPU waits for the loader in at least a twentieth"),
        "makes_late": Time(
            "most that other ranks wait for this loader per step: waits beyond those of the rank with the "
            "least in the same step; null for one rank"
        ),
        "starves": Flag("waits_share is at least a twentieth"),
        "on_host": Flag("no GPU was recorded: the CPU's operators stand in for its kernels"),
    },
    examples=[
        Example(
            "loading takes 30 ns of step 1 and 12 of step 2; 10 and 5 of them pass under a kernel",
            given={
                "steps": [
                    {"step": 1, "start": 0, "end": 100, "complete": True},
                    {"step": 2, "start": 100, "end": 150, "complete": True},
                    {"step": 3, "start": 150, "end": 210, "complete": True},
                ],
                "kernels": [
                    {"start": s, "end": e, "launch_start": at, "launch_end": at + 1, "thread": 7}
                    for s, e, at in ((0, 30, 0), (51, 105, 50), (113, 150, 112), (150, 210, 149))
                ],
                "ranges": [
                    {"start": s, "end": e, "thread": 7, "name": LOADER} for s, e in ((20, 50), (100, 112))
                ],
                "ranks": [{"device_kind": "gpu", "main_thread": 7}],
            },
            expect=[
                {"rank": 0, "steps": 3, "loading": 14, "waits": 9, "hidden": 5, "waits_share": 27 / 210}
                | {"longest": 20, "starved_steps": 2, "makes_late": None, "starves": True}
                | {"on_host": False}
            ],
        ),
        Example(
            "the loader of rank 2 takes 60 ns, those of ranks 0 and 1 take 8: both wait at most 52 ns for it",
            given={
                "steps": [{"rank": r, "start": 0, "end": 200, "complete": True} for r in range(3)],
                "kernels": [
                    {"rank": r, "start": ns + 1, "end": 200, "launch_start": ns, "launch_end": ns + 1}
                    | {"thread": 7}
                    for r, ns in ((0, 8), (1, 8), (2, 60))
                ],
                "ranges": [
                    {"rank": r, "start": 0, "end": ns, "thread": 7, "name": LOADER}
                    for r, ns in ((0, 8), (1, 8), (2, 60))
                ],
                "ranks": [{"rank": r, "device_kind": "gpu", "main_thread": 7} for r in range(3)],
            },
            expect=[
                {"rank": r, "loading": ns, "waits": ns, "makes_late": late, "starves": late > 0}
                for r, ns, late in ((0, 8, 0), (1, 8, 0), (2, 60, 52))
            ],
        ),
    ],
)
def data_loading(
    step_ledger: pl.LazyFrame,
    host_spans: pl.LazyFrame,
    counted_steps: pl.LazyFrame,
    ranks: Ranks,
) -> pl.LazyFrame:
    """Tell for each rank how long it loads data, and for how much of that its GPU has nothing to do.

    How to read it: `waits` is lost on this rank, `hidden` costs nothing. `starves` marks a share from which
    it is worth a remedy. A rank with `makes_late` has a slower loader than the others, who wait for it in
    their next collective, at most that long.

    Limits: only loaders that the names of ranges, operators and frames show count (`lostflops explain
    idle.data_loading` lists them). A loader that works in processes of its own shows as waiting for it only.
    On a CPU alone nothing hides the loader: all its time counts as waiting.

    What to try: `num_workers` and `persistent_workers` of the loader; `step-log-summary` for the share of the
    steps that were not recorded; `lostflops whatif loader=0ms` for what a perfect loader would save.
    """
    length = pl.col("end") - pl.col("start")
    window = ["rank", "step"]
    here = counted_steps.select(*window, "start", "end")
    whole = here.group_by("rank").agg(steps=pl.len().cast(pl.Int64), _whole=length.sum())
    starving = (
        here.join(
            step_ledger.filter(pl.col("account") == DATA_LOADING.name).select(*window, "ns"),
            on=window,
            how="left",
        )
        .with_columns(pl.col("ns").fill_null(0))
        .with_columns(_beyond=pl.col("ns") - pl.col("ns").min().over("step"))
        .group_by("rank")
        .agg(
            pl.col("_beyond").sum(),
            _waits=pl.col("ns").sum(),
            longest=pl.col("ns").max(),
            starved_steps=((pl.col("ns") >= STARVES * length) & (pl.col("ns") > 0)).sum().cast(pl.Int64),
        )
    )
    return (
        whole.join(starving, on="rank")
        .join(_at_it(host_spans, counted_steps, ranks), on="rank", how="left")
        .join(ranks.group_by("rank").agg(on_host=HOST_ONLY.all()), on="rank", how="left")
        # Waiting that no thread is seen loading in cannot be: what the ledger says is the least.
        .with_columns(_loading=pl.max_horizontal(pl.col("_loading").fill_null(0), "_waits"))
        .with_columns(
            loading=pl.col("_loading") // pl.col("steps"),
            waits=pl.col("_waits") // pl.col("steps"),
            waits_share=pl.when(pl.col("_whole") > 0).then(pl.col("_waits") / pl.col("_whole")),
        )
        .with_columns(
            hidden=pl.col("loading") - pl.col("waits"),
            starves=pl.col("waits_share") >= STARVES,
            makes_late=pl.when(pl.len() > 1).then(pl.col("_beyond") // pl.col("steps")),
        )
        .select(*data_loading.columns)
        .sort("rank")
    )


def _at_it(spans: pl.LazyFrame, steps: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """How long each rank's main thread is at its loader inside steps that count."""
    main = ranks.select("rank", thread="main_thread").drop_nulls().unique()
    rows = (
        spans.filter(pl.col("account") == DATA_LOADING.name)
        .join(main, on=["rank", "thread"], how="semi")
        .select("rank", "start", "end")
    )
    inside = intervals.inside(rows, while_on_host(steps), {"_loading": pl.lit(True)})
    return inside.group_by("rank").agg(pl.col("_loading").sum())
