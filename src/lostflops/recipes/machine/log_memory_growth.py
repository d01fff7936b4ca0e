"""Whether a job keeps more memory from step to step, by its step log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from lostflops.columns import Bytes, Count, Flag, Id, Name
from lostflops.finding import Finding
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.tables import StepLog
from lostflops.units import written

WARM_UP = 3  # first steps, in which a job still builds its caches
FEWEST = 9  # samples, of which each third has three
STEADY = 0.3  # of the growth, that each half of the time has at least
WORTH_SAYING, LEAST = 0.1, 64 << 20  # of what was held at first, and bytes
KINDS = {"resident": "host", "allocated": "GPU, tensors", "reserved": "GPU, reserved"}
KEPT = (
    "Find what the job keeps: losses with their graphs (append `loss.item()` or `loss.detach()`), batches "
    "and results in a list, a cache without a limit; `tracemalloc` compares two steps."
)
KEPT_TENSORS = (
    "Find what keeps tensors: losses or outputs with their graphs (append `loss.item()` or `loss.detach()`), "
    "`retain_graph=True`, a key-value cache; `torch.cuda.memory._record_memory_history()` tells who "
    "allocated them."
)
GAPS = (
    "Its tensors do not grow as much: blocks of many sizes leave gaps. Set "
    "`PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: "
    "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`), and pad inputs to a few shapes."
)
MAPPED = "Pages of files that are mapped into memory count too, and can be given up."
SAYS = {
    "host": ("Host memory", KEPT, MAPPED),
    "GPU, tensors": ("GPU memory that tensors hold", KEPT_TENSORS, ""),
    "GPU, reserved": ("GPU memory that PyTorch reserves", GAPS, ""),
}


def _log(*held: int, name: str = "resident") -> list[dict[str, Any]]:
    return [{"rank": 1, "step": 3 + n, name: amount, "recorded": False} for n, amount in enumerate(held)]


@recipe(
    question="Does the job's memory grow from step to step?",
    scope="rank",
    plot=Bars(x="rank", y=("per_step",)),
    columns={
        "rank": Id("rank"),
        "memory": Name("of the host, of tensors on the GPU, or reserved there"),
        "samples": Count("steps after the first three whose lines tell it: about one per second"),
        "first": Bytes("held in the first third of them, median"),
        "last": Bytes("held in the last third of them, median"),
        "steps": Count("steps between the middles of the two"),
        "per_step": Bytes("growth per step; negative where it shrinks"),
        "steady": Flag("it grows in the first half of that time and in the second"),
    },
    examples=[
        Example(
            "30 bytes more in 6 steps, then as much again at another pace",
            given={"step_log": _log(10, 12, 14, 20, 22, 30, 40, 41, 44)},
            expect=[
                {"rank": 1, "memory": "host", "samples": 9, "first": 12, "last": 41, "steps": 6}
                | {"per_step": 4, "steady": True}
            ],
        ),
        Example(
            "a cache that fills in the first half",
            given={"step_log": _log(10, 12, 14, 38, 40, 40, 40, 41, 44)},
            expect=[
                {"rank": 1, "memory": "host", "samples": 9, "first": 12, "last": 41, "steps": 6}
                | {"per_step": 4, "steady": False}
            ],
        ),
        Example(
            "what is added while steps are recorded is the profiler's",
            given={
                "step_log": [
                    row | {"recorded": row["step"] in (6, 7), "resident": row["resident"] + more}
                    for row, more in zip(_log(*[30] * 12), [0, 0, 0, 40, 80, *[70] * 7], strict=True)
                ]
            },
            expect=[
                {"rank": 1, "memory": "host", "samples": 10, "first": 30, "last": 30, "steps": 8}
                | {"per_step": 0, "steady": False}
            ],
        ),
        Example("too few samples", given={"step_log": _log(10, 20, 30, 40, 50, 60, 70, 80)}, expect=[]),
    ],
)
def step_log_memory_growth(step_log: StepLog) -> pl.LazyFrame:
    """Compare what each rank holds early and late in its log.

    What grows all the time ends in swapping or out of memory, however fast the recorded steps were. What
    recording steps in full adds is the profiler's, and left out.
    """
    recorded = pl.col("recorded").fill_null(False)
    windows = recorded.cast(pl.Int64).cum_sum().over("rank", order_by="step")
    steps = step_log.with_columns(_recorded=recorded, _windows=windows)
    lanes = [
        steps.select("rank", "step", "_recorded", "_windows", held=name, memory=pl.lit(memory))
        for name, memory in KINDS.items()
    ]
    of = ["rank", "memory"]
    more = pl.when(pl.col("_windows").diff() == 0).then(pl.col("held").diff()).otherwise(0).cum_sum().over(of)
    samples = (
        pl.concat(lanes)
        .filter(pl.col("step") >= WARM_UP, pl.col("held").is_not_null(), ~pl.col("_recorded"))
        .sort(*of, "step", "held")
        .with_columns(held=pl.col("held").first().over(of) + more)
        .with_columns(_third=(pl.int_range(pl.len()) * 3 // pl.len()).over(of))
    )
    held = [pl.col("held").filter(pl.col("_third") == third).median() for third in range(3)]
    at = [pl.col("step").filter(pl.col("_third") == third).median() for third in (0, 2)]
    grew = pl.col("last") - pl.col("first")
    least = STEADY * grew
    return (
        samples.group_by(of)
        .agg(
            samples=pl.len().cast(pl.Int64), first=held[0], _middle=held[1], last=held[2], steps=at[1] - at[0]
        )
        .filter(pl.col("samples") >= FEWEST, pl.col("steps") > 0)
        .with_columns(
            per_step=(grew / pl.col("steps")).cast(pl.Int64),
            steady=(grew > 0)
            & (pl.col("_middle") - pl.col("first") >= least)
            & (pl.col("last") - pl.col("_middle") >= least),
        )
        .with_columns(pl.col("first", "last", "steps").cast(pl.Int64))
        .select(*step_log_memory_growth.columns)
        .sort(of)
    )


def _row(memory: str, first: int, last: int, rank: int = 0, steady: bool = True) -> dict[str, object]:
    return {"rank": rank, "memory": memory, "samples": 30, "first": first << 20, "last": last << 20,
            "steps": 200, "per_step": (last - first << 20) // 200, "steady": steady}  # fmt: skip


@step_log_memory_growth.finding(
    name="memory-grows",
    none_known="What keeps the memory is in the job's own code.",
    examples=[
        Shows(
            "200 MiB more in 200 steps",
            rows=[_row("host", 600, 800), _row("host", 600, 700, rank=1)],
            claim="Host memory grows by 1 MiB per step, from 600 MiB to 800 MiB in 200 steps (rank 0).",
        ),
    ],
)
def memory_grows(table: pl.DataFrame) -> Iterator[Finding]:
    """Of ranks that all grow, the one that grows most is told; of the GPU's memory what its tensors hold."""
    grown = pl.col("last") - pl.col("first")
    growing = table.filter("steady", grown >= LEAST, grown >= WORTH_SAYING * pl.col("first"))
    tensors = growing.filter(pl.col("memory") == "GPU, tensors")["rank"].implode()
    growing = growing.filter((pl.col("memory") != "GPU, reserved") | ~pl.col("rank").is_in(tensors))
    for memory, (what, advice, doubt) in SAYS.items():
        of_kind = growing.filter(pl.col("memory") == memory).sort(
            "per_step", "rank", descending=[True, False]
        )
        if of_kind.is_empty():
            continue
        row = of_kind.row(0, named=True)
        yield Finding(
            name="memory-grows",
            claim=f"{what} grows by {written(row['per_step'])} per step, from {written(row['first'])} to "
            f"{written(row['last'])} in {row['steps']:,} steps (rank {row['rank']}).",
            gain="unknown",
            evidence=(
                f"{row['samples']:,} samples in the step log: it grows in the first half and in the second",
                *((f"so on {of_kind['rank'].n_unique():,} ranks",) * (of_kind.height > 1)),
            ),
            next=advice,
            doubt=doubt,
        )
