"""How much threads wait for Python's global lock."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Share
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Samples

# What CPython calls while it waits for the lock, and what it calls to run Python.
WAITS = r"(?:^|;)_?(?:Py_)?take_gil(?:;|$)"
PYTHON = r"(?:^|;)_?Py(?:Eval_EvalFrame|Object_|Function_|Run_)|(?:^|;)run_eval"


@recipe(
    question="Do threads wait for Python's global interpreter lock?",
    scope="rank",
    plot=Bars(x="thread", y=("waits", "python"), stacked=True),
    columns={
        "rank": Id("rank"),
        "thread": Id("host thread"),
        "samples": Count("samples of the thread"),
        "python": Count("samples inside the Python interpreter that do not wait for the lock"),
        "waits": Count("samples that wait for the lock"),
        "wait_share": Share("waits / (waits + python); null where the thread runs no Python"),
    },
    examples=[
        Example(
            "a loader thread waits for the lock that the main thread holds",
            given={
                "samples": [
                    {"start": t, "end": t, "thread": n, "function": s.rpartition(";")[2], "stack": s}
                    for t, n, s in (
                        (1, 7, "_PyEval_EvalFrameDefault;memcpy"),
                        (2, 7, "_PyEval_EvalFrameDefault"),
                        (3, 7, "start_thread;poll"),
                        (1, 9, "_PyEval_EvalFrameDefault;take_gil;pthread_cond_timedwait"),
                        (2, 9, "_PyEval_EvalFrameDefault"),
                        (3, 9, "PyEval_RestoreThread;take_gil"),
                        (4, 9, "PyEval_RestoreThread;take_gil;futex"),
                    )
                ]
            },
            expect=[
                {"rank": 0, "thread": 7, "samples": 3, "python": 2, "waits": 0, "wait_share": 0.0},
                {"rank": 0, "thread": 9, "samples": 4, "python": 1, "waits": 3, "wait_share": 0.75},
            ],
        ),
    ],
)
def gil_wait(samples: Samples) -> pl.LazyFrame:
    """Count for each thread the samples whose stack waits for the lock (`take_gil` of CPython).

    How to read it: a high `wait_share` on the thread that launches GPU work means that other Python threads
    (prefetching, logging, metrics) hold the host up.

    Limits: a thread that sleeps on the lock has no core and is seldom sampled: the true share is at least
    this. Names need CPython's symbols.

    What to try: processes instead of threads for loading (`num_workers`), or a free-threaded Python.
    """
    stack = pl.coalesce(pl.col("stack").cast(pl.String), pl.col("function").cast(pl.String))
    waits = stack.str.contains(WAITS)
    python = stack.str.contains(PYTHON) & ~waits
    return (
        samples.group_by("rank", "thread")
        .agg(
            samples=pl.len().cast(pl.Int64),
            python=python.sum().cast(pl.Int64),
            waits=waits.sum().cast(pl.Int64),
        )
        .with_columns(_both=pl.col("python") + pl.col("waits"))
        .with_columns(wait_share=pl.when(pl.col("_both") > 0).then(pl.col("waits") / pl.col("_both")))
        .drop("_both")
        .sort("rank", "thread")
    )
