"""The first page: what it displays adds up, says what it does not know, and takes nothing for markup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from lostflops import recipe as recipes_module
from lostflops.finding import Finding
from lostflops.recipe import Bars, HeatMap, Points, Recipe, Session, recipe
from lostflops.report.page import LEDGER, Page, page
from lostflops.tables import TABLES, Ranks, Steps
from lostflops.trace import FORMAT, Manifest, Quality, Source, Trace, write_manifest, write_part

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "[bold red]x[/] & 'quotes' \"double\"",
    "line\nbreak\r\ttab \x1b[31mred\x1b[0m \u202egnp.exe",
    "<!--<script>",
)


def stored(folder: Path, tables: dict[str, pl.DataFrame], quality: Sequence[Quality] = ()) -> Trace:
    """A run on disk with those rows, whose times count from the run's origin."""
    manifest = Manifest(
        format=FORMAT,
        lostflops="0",
        clock="nanoseconds since 1970",
        origin_ns=1_700_000_000_000_000_000,
        sources=[Source(name, 100, "0f3a", "kineto") for name in HOSTILE[:2]],
        tables=list(tables),
        num_events=12_345,
        quality=list(quality),
    )
    for name, frame in tables.items():
        (folder / name).mkdir(parents=True)
        full = TABLES[name].conform(frame)
        full = full.with_columns(pl.col(c) + manifest.origin_ns for c in TABLES[name].times)
        for (rank,), part in full.group_by("rank"):
            write_part(folder, name, int(str(rank)), part)
    write_manifest(folder, manifest)
    return Trace.open(folder)


def ledger_of(num_ranks: int, num_steps: int) -> pl.DataFrame:
    """A ledger of unequal numbers: rank 1 computes longer and the others wait for it."""
    rank, step = pl.col("rank").cast(pl.Int64), pl.col("step")
    late = pl.when(rank == 1).then(31_000_007).otherwise(0) + (rank * 7919 + step * 104_729) % 3_000_017
    accounts = {
        "compute": 240_000_001 + late,
        "communication.wait": 61_000_003 - late,
        "communication.transfer": 42_000_013 + 11 * rank,
        "copy": 1_300_021 + rank,
        "idle.data_loading": pl.when(step % 4 == 0).then(21_000_017).otherwise(900_001),
        "idle.launch_bound": pl.lit(14_000_003, dtype=pl.Int64),
        "idle.unexplained": 5_000_009 + step,
    }
    windows = (
        pl.DataFrame({"rank": range(num_ranks)}, schema={"rank": pl.Int32})
        .join(pl.DataFrame({"step": range(10, 10 + num_steps)}, schema={"step": pl.Int64}), how="cross")
        .with_columns(**accounts, start=(step - 10) * 420_000_011)
        .with_columns(end=pl.col("start") + pl.sum_horizontal(*accounts))
    )
    return windows.unpivot(
        list(accounts), index=["rank", "step", "start", "end"], variable_name="account", value_name="ns"
    ).select(pl.col(c).cast(t) for c, t in LEDGER.items())


def made(ledger: pl.DataFrame, names: Sequence[str] = ("ncclDevKernel_AllReduce", "gemm")) -> dict[str, Recipe]:
    """Recipes that answer with given tables, under names of ours."""
    kernels = pl.DataFrame(
        {
            "name": [f"{names[i % len(names)]} {i}" for i in range(60)],
            "count": range(1, 61),
            "total": [10**9 // (i + 1) for i in range(60)],
            "longest": [10**7 // (i + 2) for i in range(60)],
            "share": [1 / (i + 2) for i in range(59)] + [float("nan")],
        }
    )
    per_rank = ledger.group_by("rank").agg(
        hidden=pl.col("ns").filter(pl.col("account") == "compute").sum() // 4,
        exposed=pl.col("ns").filter(pl.col("account").str.starts_with("communication")).sum(),
    ).sort("rank")

    @recipe(
        question="Where did the time of each step go?",
        scope="rank",
        columns={"rank": "rank", "step": "step", "start": "start, ns", "end": "end, ns", "account": "account", "ns": "time, ns"},
        examples=[],
        plot=None,
    )
    def step_ledger(steps: Steps) -> pl.LazyFrame:
        """Split every step of every rank into accounts that add up to it.

        What cannot be explained is an account of its own.
        """
        return ledger.lazy()

    @recipe(
        question="Which kernels take the time?",
        scope="rank",
        columns={"name": "kernel", "count": "number of runs", "total": "summed duration, ns", "longest": "longest run, ns", "share": "share of all"},
        examples=[],
        plot=Bars(x="name", y=("total",)),
    )
    def kernel_summary(ranks: Ranks) -> pl.LazyFrame:
        """Count and time every kernel."""
        return kernels.lazy()

    @recipe(
        question="How much communication time was not hidden behind compute?",
        scope="rank",
        columns={"rank": "rank", "hidden": "hidden, ns", "exposed": "exposed, ns"},
        examples=[],
        plot=Bars(x="rank", y=("hidden", "exposed"), stacked=True),
    )
    def communication_exposed(ranks: Ranks) -> pl.LazyFrame:
        """Split each rank's communication time into hidden and exposed."""
        return per_rank.lazy()

    @communication_exposed.finding
    def communication_is_exposed(table: pl.DataFrame):  # pyright: ignore[reportUnusedFunction]
        yield Finding(
            "communication-is-exposed",
            f"All-gathers start after the matmul that could hide them: {names[0]}",
            61_000_003,
            "at most",
            ("exposed communication is 88.3 ms of the 412.6 ms step", f"the longest is {names[-1]}"),
            "set prefetching one layer ahead: `fully_shard(..., reshard_after_forward=False)`",
            doubt="the waiting part is no fault of this rank",
        )
        yield Finding(
            "transfer-is-slow", "The transfer rate is below the link's", 7_000_003, "predicted", (), "look at the link"
        )
        yield Finding("cannot-tell", "Something is odd", 0, "unknown", ("one fact",), "record with stacks")

    @recipe(
        question="Does bandwidth grow with size?",
        scope="job",
        columns={"bytes": "size, bytes", "bandwidth": "bus bandwidth, GB/s", "kind": "kind of collective"},
        examples=[],
        plot=Points(x="bytes", y="bandwidth", log=True),
    )
    def communication_summary(ranks: Ranks) -> pl.LazyFrame:
        """Group collectives by kind and size."""
        return pl.LazyFrame(
            {
                "bytes": [4**i for i in range(2, 16)],
                "bandwidth": [190 * 4**i / (4**i + 3e6) for i in range(2, 16)],
                "kind": ["all-reduce", "all-gather"] * 7,
            }
        )

    @recipe(
        question="Which families run when?",
        scope="rank",
        columns={"rank": "rank", "family": "family", "total": "time, ns"},
        examples=[],
        plot=HeatMap(x="rank", y="family", value="total"),
    )
    def kernel_families(ranks: Ranks) -> pl.LazyFrame:
        """Sum kernels by family."""
        return pl.LazyFrame(
            {
                "rank": [r for r in range(8) for _ in range(3)],
                "family": ["gemm", "attention", "norm"] * 8,
                "total": [(i * 7919) % 97 * 1_000_003 for i in range(24)],
            }
        )

    @recipe(
        question="How well were the pages pinned?",
        scope="rank",
        columns={"rank": "rank"},
        examples=[],
    )
    def page_faults_by_cause(page_faults: Steps) -> pl.LazyFrame:
        """Never runs: the table it needs is not there."""
        raise AssertionError

    every = [step_ledger, kernel_summary, communication_exposed, communication_summary, kernel_families, page_faults_by_cause]
    return {r.name: r for r in every}


def example_page(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    num_ranks: int = 8,
    num_steps: int = 5,
    names: Sequence[str] = ("ncclDevKernel_AllReduce", "gemm"),
    device_kind: str = "gpu",
    step_source: str = "profiler",
    world_size: int | None = None,
    quality: Sequence[Quality] = (),
) -> Page:
    ledger = ledger_of(num_ranks, num_steps)
    windows = ledger.select("rank", "step", "start", "end").unique(maintain_order=True)
    trace = stored(
        folder,
        {
            "ranks": pl.DataFrame({"rank": range(num_ranks), "start": 0, "end": 10**9}).with_columns(
                device_kind=pl.lit(device_kind), gpu=pl.lit(names[0]), world_size=world_size or num_ranks
            ),
            "steps": windows.with_columns(source=pl.lit(step_source), complete=pl.lit(True)),
            "kernels": pl.DataFrame(
                [
                    {"rank": 0, "start": 0, "end": 987, "name": "k", "family": "gemm"},
                    {"rank": 0, "start": 987, "end": 1000, "name": names[0], "family": "unclassified"},
                ]
            ),
        },
        quality,
    )
    known = made(ledger, names)
    monkeypatch.setattr(recipes_module, "recipes", lambda: known)
    return page(trace, Session(trace))
