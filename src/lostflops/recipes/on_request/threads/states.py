"""Whether host threads ran, waited for a core, or were blocked, and on what."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Share, Time, Typical
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Kernels, Ranks, ThreadStates

# The order in which threads are listed.
ROLES = ("main", "autograd", "launches", "loader", "NCCL", "other")


@recipe(
    question="Do the threads that matter run, wait for a core, or wait for something else?",
    scope="rank",
    plot=Bars(x="state", y=("time", "gpu_idle")),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "role": Name(
            "'main' runs the script; 'autograd', 'loader' and 'NCCL' are PyTorch's; 'launches' gives the GPU "
            "work; 'other' none of these"
        ),
        "state": Name("running, ready (it has no core), blocked, waiting for I/O or off core"),
        "reason": Name("what it is blocked on, where the source says"),
        "stretches": Count("how often"),
        "time": Time("lengths added up"),
        "thread_share": Share("time / time in which the thread's state is known"),
        "longest": Typical("longest stretch"),
        "gpu_idle": Time("time of it inside steps in which the GPU runs nothing; null without GPU work"),
    },
    examples=[
        Example(
            "the main thread is preempted while the GPU idles; a thread of autograd waits for it",
            given={
                "thread_states": [
                    {"start": s, "end": e, "thread": t, "state": a, "reason": r, "role": o}
                    for s, e, t, a, r, o in (
                        (0, 60, 7, "running", None, None),
                        (60, 75, 7, "ready", None, None),
                        (75, 95, 7, "running", None, None),
                        (0, 50, 9, "blocked", "futex", "autograd"),
                        (50, 58, 9, "running", None, "autograd"),
                    )
                ],
                "ranks": [{"main_thread": 7}],
                "kernels": [
                    {"start": 0, "end": 40, "thread": 9},
                    {"start": 44, "end": 63, "thread": 7},
                    {"start": 80, "end": 100, "thread": 7},
                ],
                "steps": [{"start": 0, "end": 100}],
            },
            expect=[
                {"rank": 0, "thread": t, "role": o, "state": s, "reason": r, "stretches": n, "time": d}
                | {"thread_share": d / w, "longest": x, "gpu_idle": i}
                for t, o, s, r, n, d, w, x, i in (
                    (7, "main", "running", None, 2, 80, 95, 60, 9),
                    (7, "main", "ready", None, 1, 15, 95, 15, 12),
                    (9, "autograd", "blocked", "futex", 1, 50, 58, 50, 4),
                    (9, "autograd", "running", None, 1, 8, 58, 8, 0),
                )
            ],
        ),
    ],
)
def thread_state_summary(
    thread_states: ThreadStates, ranks: Ranks, kernels: Kernels | None, gpu_activity: pl.LazyFrame | None
) -> pl.LazyFrame:
    """Add up each thread's time by state and reason: the main thread first, then those that launch work.

    How to read it: `ready` on the main or a launching thread is time that other processes took its core for:
    too few cores, or loader workers on the same ones. It costs step time as far as `gpu_idle` goes. `waiting
    for I/O` there is reading in the wrong place.

    Limits: what a thread did before its first and after its last change is not known. Loader workers are
    processes of their own: of them only the thread that pins memory is here.

    What to try: pin ranks to cores near their GPU (`--cpu-bind`, `numactl`), fewer loader workers or threads
    (`OMP_NUM_THREADS`).
    """
    place = ["rank", "thread"]
    mains = ranks.select("rank", thread="main_thread", _main=pl.lit(True)).drop_nulls().unique(place)
    launching = (
        mains.clear().rename({"_main": "_launches"})
        if kernels is None
        else kernels.drop_nulls("thread").select(*place, _launches=pl.lit(True)).unique()
    )
    rows = thread_states.select(
        *place,
        "start",
        "end",
        pl.col("state", "reason").cast(pl.String),
        _role=pl.col("role").cast(pl.String),
    )
    if gpu_activity is None:
        timed = rows.with_columns(gpu_idle=pl.lit(None, dtype=pl.Int64))
    else:
        runs = pl.any_horizontal(pl.col("compute", "communication", "copies") > 0)
        timed = intervals.inside(rows, gpu_activity, {"gpu_idle": ~runs & (pl.col("in_step") > 0)})
    length = pl.col("end") - pl.col("start")
    idle = pl.col("gpu_idle")
    order = pl.col("role").replace_strict({name: at for at, name in enumerate(ROLES)}, default=len(ROLES))
    return (
        timed.group_by(*place, "state", "reason")
        .agg(
            pl.col("_role").max(),
            stretches=pl.len().cast(pl.Int64),
            time=length.sum(),
            longest=length.max(),
            gpu_idle=pl.when(idle.is_not_null().any()).then(idle.sum()),
        )
        .join(mains, on=place, how="left")
        .join(launching, on=place, how="left")
        .with_columns(
            role=pl.when("_main")
            .then(pl.lit("main"))
            .when(pl.col("_role").is_not_null())
            .then("_role")
            .when("_launches")
            .then(pl.lit("launches"))
            .otherwise(pl.lit("other")),
            _known=pl.col("time").sum().over(place),
        )
        .with_columns(
            thread_share=pl.when(pl.col("_known") > 0).then(pl.col("time") / pl.col("_known")), _order=order
        )
        .sort(
            "rank",
            "_order",
            "thread",
            "time",
            "state",
            "reason",
            descending=[False, False, False, True, False, False],
        )
        .select(*thread_state_summary.columns)
    )
