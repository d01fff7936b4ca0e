"""The first page: what it displays adds up, says what it does not know, and takes nothing for markup."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import lostflops
from lostflops import accounts as ledger_accounts
from lostflops import cli
from lostflops import recipes as recipes_module
from lostflops.columns import Bytes, Count, Id, Instant, Name, Number, Ratio, Share, Time, Typical
from lostflops.errors import BadOption
from lostflops.finding import Finding, percent
from lostflops.recipe import Bars, HeatMap, Points, Recipe, recipe
from lostflops.report import terminal
from lostflops.report.document import document
from lostflops.report.first_page import heat as heat_module
from lostflops.report.first_page.budget import budget, mean
from lostflops.report.first_page.heat import heat
from lostflops.report.first_page.page import LEDGER, Page, page
from lostflops.report.first_page.quality import facts
from lostflops.report.html import html
from lostflops.report.words.amounts import apportion, unit_for
from lostflops.report.words.cells import cells
from lostflops.session import Answer, Session, Skipped
from lostflops.store.parts import write_part
from lostflops.store.trace import (
    DEVICE_UNKNOWN,
    FORMAT,
    GPU_WORK_LOST,
    Manifest,
    Quality,
    Source,
    Trace,
    write_manifest,
)
from lostflops.tables import TABLES, Ranks, Steps

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
NODE = shutil.which("node")

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


def made(
    ledger: pl.DataFrame, names: Sequence[str] = ("ncclDevKernel_AllReduce", "gemm")
) -> dict[str, Recipe]:
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
    per_rank = (
        ledger.group_by("rank")
        .agg(
            hidden=pl.col("ns").filter(pl.col("account") == "compute").sum() // 4,
            exposed=pl.col("ns").filter(pl.col("account").str.starts_with("communication")).sum(),
        )
        .with_columns(total_in_steps=pl.col("hidden") + pl.col("exposed"))
        .sort("rank")
    )

    @recipe(
        question="Where did the time of each step go?",
        scope="rank",
        columns={
            "rank": Id("rank"),
            "step": Id("step"),
            "start": Instant("start"),
            "end": Instant("end"),
            "account": Name("account"),
            "ns": Time("time", label="time"),
        },
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
        columns={
            "name": Name("kernel"),
            "count": Count("number of runs"),
            "total": Time("summed duration"),
            "longest": Typical("longest run"),
            "share": Share("share of all"),
        },
        examples=[],
        plot=Bars(x="name", y=("total",)),
    )
    def kernel_summary(ranks: Ranks) -> pl.LazyFrame:
        """Count and time every kernel."""
        return kernels.lazy()

    @recipe(
        question="How much communication time is not hidden behind compute?",
        scope="rank",
        columns={"rank": Id("rank")} | {name: Time(name) for name in ("hidden", "exposed", "total_in_steps")},
        examples=[],
        plot=Bars(x="rank", y=("hidden", "exposed"), stacked=True),
    )
    def communication_exposed(ranks: Ranks) -> pl.LazyFrame:
        """Split each rank's communication time into hidden and exposed."""
        return per_rank.lazy()

    @communication_exposed.finding(name="communication-is-exposed")
    def communication_is_exposed(table: pl.DataFrame):  # pyright: ignore[reportUnusedFunction]
        yield Finding(
            "communication-is-exposed",
            f"All-gathers start after the matmul that could hide them: {names[0]}",
            "at most",
            ("exposed communication is 88.3 ms of the 412.6 ms step", f"the longest is {names[-1]}"),
            "set prefetching one layer ahead: `fully_shard(..., reshard_after_forward=False)`",
            ns_per_step=61_000_003,
            doubt="the waiting part is no fault of this rank",
        )
        yield Finding(
            "transfer-is-slow",
            "The transfer rate is below the link's",
            "predicted",
            (),
            "look at the link",
            ns_per_step=7_000_003,
        )
        yield Finding("cannot-tell", "Something is odd", "unknown", ("one fact",), "record with stacks")

    @recipe(
        question="Does bandwidth grow with size?",
        scope="job",
        columns={
            "bytes": Bytes("size"),
            "bandwidth": Number("bus bandwidth", unit="GB/s"),
            "kind": Name("kind of collective"),
        },
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
        columns={"rank": Id("rank"), "family": Name("family"), "total": Time("time")},
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
        columns={"rank": Id("rank")},
        examples=[],
    )
    def page_faults_by_cause(page_faults: Steps) -> pl.LazyFrame:
        """Never runs: the table it needs is not there."""
        raise AssertionError

    every = [
        step_ledger,
        kernel_summary,
        communication_exposed,
        communication_summary,
        kernel_families,
        page_faults_by_cause,
    ]
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
    monkeypatch.setattr(recipes_module, "of_the_page", lambda: known)
    return page(trace, Session(trace))


# Amounts


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=12), st.integers(1, 10**9))
def test_displayed_parts_add_up_to_the_displayed_whole(parts: list[int], size: int) -> None:
    quanta = apportion(parts, size)
    assert sum(quanta) == (2 * sum(parts) + size) // (2 * size)
    assert all(abs(q * size - part) < size for q, part in zip(quanta, parts, strict=True))
    assert all(q == 0 for q, part in zip(quanta, parts, strict=True) if part == 0)


@given(
    st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 10**6),
)
def test_parts_of_parts_add_up_too(groups: list[list[int]], size: int) -> None:
    outer = apportion([sum(group) for group in groups], size)
    for group, total in zip(groups, outer, strict=True):
        inner = apportion(group, size, total)
        assert sum(inner) == total
        assert all(abs(q * size - part) < size for q, part in zip(inner, group, strict=True))


def test_a_table_has_one_unit_with_five_digits_of_its_whole() -> None:
    units = {ns: unit_for(ns) for ns in (7, 8_123, 129_012_345, 9_876_543_210, 45_678_901_234)}
    assert [f"{u.show(round(ns / u.quantum))} {u.name}" for ns, u in units.items()] == [
        "7 ns",
        "8.123 µs",
        "129.01 ms",
        "9876.5 ms",
        "45.679 s",
    ]


@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=3))
def test_a_share_is_the_exact_one_rounded_half_up(parts: list[int]) -> None:
    part, whole = parts[0], sum(parts)
    exact = Fraction(100 * part, whole)
    tenths = int(exact * 10 + Fraction(1, 2))
    assert percent(part, whole) == f"{Decimal(tenths) / 10:.1f} %"


def test_shares_of_nothing_are_no_shares_and_halves_go_up() -> None:
    assert percent(0, 0) == "–"
    assert [percent(1, 3), percent(5, 8), percent(59, 100_000), percent(1, 2000)] == [
        "33.3 %",
        "62.5 %",
        "0.1 %",
        "0.1 %",
    ]
    assert percent(0.36138, 1) == "36.1 %"


# The mean step

ACCOUNTS = (
    "compute",
    "communication.wait",
    "communication.transfer",
    "communication.exposed",
    "copy",
    "idle.data_loading",
    "idle.launch_bound",
    "idle.unexplained",
    "idle",
    "something.new",
)


@given(
    st.dictionaries(st.sampled_from(ACCOUNTS), st.integers(1, 10**10), min_size=1),
    st.integers(1, 60),
)
def test_the_mean_of_any_ledger_adds_up_as_displayed(sums: dict[str, int], num_windows: int) -> None:
    found = mean(sums, num_windows)
    assert found is not None
    assert sum(Decimal(line.shown) for line in found.groups) == Decimal(found.shown)
    assert all(line.share == percent(line.ns, sum(sums.values())) for line in found.lines)
    assert sum(line.ns for line in found.groups) == found.ns
    for group in found.groups:
        parts = found.parts(group.account)
        if parts:
            assert sum(Decimal(line.shown) for line in parts) == Decimal(group.shown)
            assert sum(line.ns for line in parts) == group.ns
        quantum = found.unit.quantum * num_windows
        shown = Decimal(group.shown) * found.unit.ns * num_windows
        assert abs(shown - group.ns) < quantum


def test_the_mean_step_is_all_time_by_the_number_of_steps() -> None:
    found = budget(ledger_of(2, 3))
    assert found is not None
    assert found.num_windows == 6 and found.ns == ledger_of(2, 3)["ns"].sum()
    assert [line.label for line in found.groups] == [
        "compute",
        "exposed communication",
        "exposed copies",
        "idle",
    ]


def test_a_ledger_without_time_has_no_budget() -> None:
    assert budget(LEDGER.to_frame()) is None


def spent(**parts: int) -> pl.DataFrame:
    total = sum(parts.values())
    return pl.DataFrame(
        [
            {"rank": 0, "step": 0, "start": 0, "end": total, "account": a.replace("__", "."), "ns": ns}
            for a, ns in parts.items()
        ],
        schema=LEDGER,
    )


# The page


def unlike_steps(folder: Path, complete: Sequence[bool], lengths: Sequence[int], **selected: Any) -> Page:
    """The page of a rank that computes for 3 ns of each step and idles for the rest of it."""
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    trace = stored(
        folder,
        {
            "ranks": pl.DataFrame([{"rank": 0, "start": 0, "end": ends[-1], "device_kind": "gpu"}]),
            "steps": pl.DataFrame(
                {"rank": 0, "step": range(4, 4 + len(ends)), "start": starts, "end": ends}
            ).with_columns(source=pl.lit("profiler"), complete=pl.Series(complete)),
            "kernels": pl.DataFrame(
                {"rank": 0, "start": starts, "end": [a + 3 for a in starts], "name": "k", "family": "gemm"}
            ),
        },
    ).select(**selected)
    return page(trace, Session(trace))


def test_steps_that_the_recording_cuts_are_left_out_of_the_mean_and_told(tmp_path: Path) -> None:
    shown = unlike_steps(tmp_path, [False, True, True, True, False], [90, 10, 11, 12, 5])
    assert shown.budget is not None and shown.budget.mean == 11
    assert "72.7 % of the 11 ns step" in shown.verdict
    assert (
        "Left out of the mean: steps 4 and 8 (not recorded from end to end). `--steps 4-8` counts them."
    ) in shown.notes
    assert shown.run.extent == "1 rank · 5 steps" and shown.run.windows == "of 3 steps on 1 rank"
    assert shown.ledger["step"].n_unique() == shown.steps.height == 5  # nothing of it is dropped


def test_steps_that_were_asked_for_count_whole_or_not(tmp_path: Path) -> None:
    shown = unlike_steps(tmp_path, [False, True, True, True, False], [90, 10, 11, 12, 5], steps=(4, 8))
    assert shown.budget is not None and shown.budget.mean == 128 / 5
    assert (
        "In the mean because `--steps` asks for them: steps 4 and 8 (not recorded from end to end)."
    ) in shown.notes


def test_figures_per_step_are_of_the_same_steps_as_the_page(tmp_path: Path) -> None:
    shown = unlike_steps(tmp_path, [False, True, True, True, False], [90, 10, 11, 12, 5])
    kernels = next(a.table for a in shown.answers if a.recipe.name == "kernel_summary")
    assert kernels.select("calls", "time", "per_step", "step_share").rows() == [(5, 15, 3, 9 / 33)]


@pytest.mark.parametrize(("lengths", "median"), [([10, 11, 60], "11 ns"), ([10, 11, 12], None)])
def test_a_median_unlike_the_mean_stands_beside_it(
    tmp_path: Path, lengths: list[int], median: str | None
) -> None:
    text = printed(unlike_steps(tmp_path, [True] * 3, lengths), 100)
    assert re.findall(r"^median +(.*)$", text, re.M) == ([median] if median else [])


def whole_trace(folder: Path, extents: Sequence[tuple[int, int, int, int]], kind: str = "gpu") -> Page:
    """The page of ranks that work from the second to the third of their times, of all that was recorded."""
    trace = stored(
        folder,
        {
            "ranks": pl.DataFrame(
                [
                    {"rank": n, "start": a, "end": d, "device_kind": kind}
                    for n, (a, _, _, d) in enumerate(extents)
                ]
            ),
            "steps": pl.DataFrame(
                [
                    {"rank": n, "step": 0, "start": b, "end": c, "complete": False, "source": "whole trace"}
                    for n, (_, b, c, _) in enumerate(extents)
                ]
            ),
            "kernels": pl.DataFrame(
                [
                    {"rank": n, "start": b, "end": c, "name": "k", "family": "gemm"}
                    for n, (_, b, c, _) in enumerate(extents)
                ]
            ),
        },
    )
    return page(trace, Session(trace))


def test_what_is_recorded_around_the_gpu_work_is_told_with_its_length(tmp_path: Path) -> None:
    shown = whole_trace(tmp_path, [(0, 251, 411, 415)])
    assert shown.verdict == (
        "Compute-bound: kernels run for 100.0 % of the 160 ns from the first to the last GPU work."
    )
    assert (
        "Of the 415 ns recorded, 251 ns lie before the first GPU work and 4 ns after the last: they are in "
        "no account."
    ) in shown.notes
    text = printed(shown, 100)
    assert text.startswith("1 rank · from the first to the last GPU work · ")
    assert re.search(r"^first to last GPU work +160 ns +100\.0 %", text, re.M)
    assert "Every nanosecond from the first to the last GPU work is in exactly one account" in html(shown)


def test_of_several_ranks_the_one_with_most_outside_is_told(tmp_path: Path) -> None:
    shown = whole_trace(tmp_path, [(0, 10, 100, 100), (0, 30, 100, 107)])
    assert any(
        note
        == "Of the 107 ns recorded on rank 1, 30 ns lie before the first GPU work and 7 ns after the last, "
        "the most of any rank: they are in no account."
        for note in shown.notes
    )
    assert "mean of 2 ranks" in printed(shown, 100)


def test_less_than_a_hundredth_outside_is_not_told(tmp_path: Path) -> None:
    assert not any("in no account" in n for n in whole_trace(tmp_path, [(0, 5, 999, 1000)]).notes)


def test_a_recording_of_the_host_alone_counts_as_a_whole(tmp_path: Path) -> None:
    shown = whole_trace(tmp_path, [(0, 0, 100, 100)], "cpu")
    assert shown.run.extent == "1 rank · whole recording" and "100 ns recording" in shown.verdict
    assert "No GPU in this recording: CPU operators are counted instead of kernels." in shown.notes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (GPU_WORK_LOST, "the CPU launched GPU work and copies 104 times, but none of it was recorded"),
        (DEVICE_UNKNOWN, "104 rows look like work of a device that lostflops does not know"),
    ],
)
def test_device_work_that_was_not_recorded_leads_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, said: str
) -> None:
    lost = [Quality(0, name, 100, "text", "warning"), Quality(1, name, 4, "text", "warning")]
    shown = example_page(monkeypatch, tmp_path, device_kind="cpu", quality=lost)
    assert shown.verdict.startswith(
        f"What bounds this job is not in the recording: {said}. On the CPU, operators "
    )
    assert "CPU operators are counted instead of kernels." in shown.notes
    assert not any("No GPU in this recording" in note for note in shown.notes)


def test_the_page_holds_answers_findings_skips_and_quality(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    quality = [
        Quality(0, "lost", 3, "not recorded", of=310),
        Quality(1, "lost", 5, "not recorded", of=290),
        Quality(None, "cut", 1, "it ends", "warning"),
    ]
    shown = example_page(monkeypatch, tmp_path, quality=quality)
    assert [f.ns_per_step for f in shown.findings] == [61_000_003, 7_000_003, 0]
    assert [s.recipe for s in shown.skipped] == ["page_faults_by_cause"]
    assert shown.skipped[0].reason.startswith("needs ")
    assert shown.verdict.startswith("Waiting for late ranks: 26.6 % of the 368 ms step")
    assert shown.run.ranks == tuple(range(8)) and shown.run.num_windows == 40
    assert [(f.level, f.where, f.text) for f in facts(shown.quality)] == [
        ("warning", "run", "cut: it ends"),
        ("note", "ranks 0, 1", "lost: 5 of 290; not recorded (numbers of rank 1)"),
    ]
    assert {f.label: f.value for f in shown.figures}["unclassified"] == "1.3 %"
    assert any("1.3 % of the kernel time" in note for note in shown.notes)
    trace = Trace.open(tmp_path)
    page(trace, Session(trace), lambda name, done, of: asked.append(f"{name} {done}/{of}"))
    assert asked[0] == "communication_exposed 0/6" and len(asked) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"device_kind": "cpu"},
            "No GPU in this recording: CPU operators are counted instead of kernels.",
        ),
        (
            {"step_source": "whole trace", "device_kind": "cpu"},
            "marks no steps: each rank's whole recording counts as one step",
        ),
        (
            {"step_source": "whole trace"},
            "marks no steps: each rank's time from the first to the last GPU work counts as one step",
        ),
        ({"step_source": "period"}, "a step is taken to begin where the work repeats"),
        (
            {"world_size": 64},
            "8 of the job's 64 ranks are here: time spent waiting for the others is not reported",
        ),
    ],
)
def test_what_a_reader_must_know_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    shown = example_page(monkeypatch, tmp_path, **given)
    assert any(said in note for note in shown.notes), shown.notes
    assert said in " ".join(printed(shown, 100).split())
    assert said.replace("'", "&#x27;") in html(shown)


def test_an_empty_trace_is_called_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = stored(tmp_path, {})
    known = made(LEDGER.to_frame())
    monkeypatch.setattr(recipes_module, "of_the_page", lambda: known)
    shown = page(trace, Session(trace))
    assert (
        shown.verdict
        == "This recording holds neither GPU work nor operators: there is nothing to account for."
    )
    assert shown.budget is None
    assert len(shown.skipped) == 6
    assert "no rank" in printed(shown, 80)
    assert json.loads(document(shown))["ledger"] == []
    assert "nothing to account for" in html(shown)


def test_a_recipe_that_cannot_answer_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = example_page(monkeypatch, tmp_path)
    trace = Trace.open(tmp_path)
    run = Session.run

    def failing(self: Session, name: str, **options: Any) -> Answer | Skipped:
        if name == "kernel_summary":
            raise BadOption("cannot")
        return run(self, name, **options)

    monkeypatch.setattr(Session, "run", failing)
    again = page(trace, Session(trace))
    assert Skipped("kernel_summary", "cannot") in again.skipped
    assert again.findings == shown.findings


# The terminal


def printed(
    shown: Page,
    width: int,
    encoding: str = "utf-8",
    color: bool = False,
    paths: str = "",
    everything: bool = False,
) -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
    terminal.show(
        shown,
        Console(file=out, width=width, force_terminal=color, color_system="truecolor" if color else None),
        paths,
        everything,
    )
    out.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [24, 40, 80, 100, 300])
def test_the_terminal_page_never_breaks_its_width(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    lines = printed(example_page(monkeypatch, tmp_path), width).splitlines()
    commands = [line for line in lines if "   show     lostflops recipe " in line]
    assert len(commands) == 3, "commands stand whole on their lines, so that they can be copied"
    assert max(len(line) for line in lines if line not in commands) <= min(width, 120)
    assert not any(line.endswith(" ") for line in lines)


def test_the_terminal_page_shows_the_ledger_the_findings_and_the_skips(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = printed(example_page(monkeypatch, tmp_path), 100)
    assert "step                         368.22 ms  100.0 %  mean of 5 steps on 8 ranks" in text
    assert "    waiting for other ranks   55.84 ms   15.2 %  █" in text
    assert "gain     at most 61.0 ms per step (16.6 %)" in text
    assert "gain     unknown" in text
    assert "show     lostflops recipe communication-exposed PATH" in text


def test_what_a_page_only_counts_one_flag_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quality = [
        Quality(0, "lost", 3, "not recorded", of=310),
        Quality(None, "cut", 1, "it ends early", "warning"),
    ]
    shown = example_page(monkeypatch, tmp_path, quality=quality)
    text = printed(shown, 100)
    assert "warning  cut: it ends early" in text
    assert text.endswith(
        "Not shown: 1 question not answered, 1 fact about the recording. Add `--all` to see them.\n"
    )
    assert "page-faults-by-cause" not in text and "3 of 310" not in text
    text = printed(shown, 100, everything=True)
    assert "page-faults-by-cause" in text and "rank 0: lost: 3 of 310; not recorded" in text
    assert "Not shown" not in text


def test_smaller_findings_are_counted_and_one_flag_lists_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = example_page(monkeypatch, tmp_path)
    many = tuple(replace(shown.findings[0], claim=f"cause number {n}") for n in range(7))
    text = printed(replace(shown, findings=many), 100)
    assert "cause number 4" in text and "cause number 5" not in text
    assert "Not shown: 2 smaller findings, 1 question not answered." in text
    assert "cause number 6" in printed(replace(shown, findings=many), 100, everything=True)


def test_a_line_that_shows_no_time_is_left_out_of_the_page_and_not_of_the_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = spent(compute=900_000_000, idle__data_loading=99_000_000, idle__dependency=300, copy=200)
    shown = replace(example_page(monkeypatch, tmp_path), ledger=ledger, budget=budget(ledger))
    text = printed(shown, 100)
    assert "data loading" in text and "dependency" not in text and "exposed copies" not in text
    assert not re.search(r" 0\.0+ (s|ms|µs)", text)
    drawn = re.search(r'<table class="waterfall">.*?</table>', html(shown), re.S)
    assert drawn is not None and re.findall('<th scope="row">([^<]*)', drawn[0]) == [
        "compute",
        "idle",
        "data loading",
        "step",
    ]
    told = {row["account"]: row["ns"] for row in json.loads(document(shown))["ledger"]}
    assert told["idle.dependency"] == 300 and told["copy"] == 200


def a_finding(**more: Any) -> Finding:
    return Finding(
        **{
            "name": "starved",
            "claim": "The GPU idles 47.6 ms per step (36.1 %) waiting for the data loader",
            "gain": "at most",
            "evidence": ("one", "two", "three", "four"),
            "next": "More workers.",
            "ns_per_step": 50_200_000,
            "cost_per_step": 47_612_345,
            "recipe": "kernel_summary",
            **more,
        }
    )


def test_a_finding_reads_cost_cause_remedy_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contributors = ("`decode` 31.0 ms", "`resize` 9.10 ms", "`collate` 4.20 ms", "`pad` 1.00 ms")
    found = replace(example_page(monkeypatch, tmp_path), findings=(a_finding(contributors=contributors),))
    text = printed(found, 100, color=True)
    assert "The GPU idles \x1b[1m47.6 ms\x1b[0m per step (36.1 %)" in text
    text = printed(found, 100, paths="runs/base")
    assert text.split("\n 1. ")[1].split("\n\n")[0].splitlines() == [
        "The GPU idles 47.6 ms per step (36.1 %) waiting for the data loader",
        "    why      mostly `decode` 31.0 ms, `resize` 9.10 ms, `collate` 4.20 ms",
        "             one",
        "             two",
        "    next     More workers.",
        "    gain     at most 50.2 ms per step (13.6 %)",
        "    show     lostflops recipe kernel-summary runs/base",
    ]


@pytest.mark.parametrize(
    ("claim", "first"),
    [
        ("It idles 47.6 ms", "It idles \x1b[1m47.6 ms\x1b[0m\n"),
        ("It idles 147.6 ms, 47.6 ms of it here", "It idles 147.6 ms, \x1b[1m47.6 ms\x1b[0m of it here\n"),
        ("It idles", "\x1b[1m47.6 ms\x1b[0m per step: It idles\n"),
        ("It idles 147.6 ms", "\x1b[1m47.6 ms\x1b[0m per step: It idles 147.6 ms\n"),
    ],
)
def test_what_a_finding_costs_now_stands_bold_in_its_first_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, claim: str, first: str
) -> None:
    shown = replace(example_page(monkeypatch, tmp_path), findings=(a_finding(claim=claim),))
    assert f" 1. {first}" in printed(shown, 100, color=True)


def test_commands_in_advice_are_whole_and_name_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "`lostflops recipe idle-causes PATH --format csv` names it, `lostflops recipe gpu-gaps` where."
    shown = replace(example_page(monkeypatch, tmp_path), findings=(a_finding(next=told),))
    paths = shlex.join(["a run", "it's.json"]) + " --steps 3-4"
    for width in (30, 80):
        lines = printed(shown, width, paths=paths).splitlines()
        assert sum(f"`lostflops recipe idle-causes {paths} --format csv`" in line for line in lines) == 1
        assert sum(f"`lostflops recipe gpu-gaps {paths}`" in line for line in lines) == 1
    assert "PATH" not in printed(shown, 80, paths=paths)


def test_a_number_and_its_unit_stay_on_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = replace(example_page(monkeypatch, tmp_path), verdict="It loses 44.1 % of 132 ms in all. " * 5)
    for width in range(30, 60):
        assert not re.search(r"^(%|ms)", printed(shown, width), re.M)


def test_printing_the_page_prints_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    run = str(ROOT / "examples" / "runs" / "lora-workers-0")
    assert cli.main(["why", run]) == 0
    said = capsys.readouterr().out
    print(lostflops.why(run), end="")
    assert capsys.readouterr().out == said
    shown = lostflops.why(lostflops.open(run))
    assert repr(shown) == str(shown) == said
    assert "<iframe" in shown._repr_html_() and run in shown._repr_html_()


def test_a_terminal_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = printed(example_page(monkeypatch, tmp_path), 80, encoding="ascii")
    assert "waiting for other ranks   55.84 ms   15.2 %  #" in text


@pytest.mark.parametrize("color", [False, True])
def test_no_name_is_markup_or_a_control_character_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, color: bool
) -> None:
    shown = example_page(monkeypatch, tmp_path, names=(HOSTILE[1], HOSTILE[2]))
    text = printed(shown, 120, color=color)
    assert "[bold red]x[/] & 'quotes'" in re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "line\\nbreak\\r\\ttab \\x1b[31mred" in re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "\x1b[31m" not in text and "\u202e" not in text and "\r" not in text and "\t" not in text


# The JSON document


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_document_is_json_and_its_ledger_adds_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path, names=HOSTILE)
    made = json.loads(document(shown), parse_constant=refuse)
    sums: dict[tuple[int, int], int] = {}
    for row in made["ledger"]:
        assert list(row) == ["rank", "step", "account", "ns"]
        sums[row["rank"], row["step"]] = sums.get((row["rank"], row["step"]), 0) + row["ns"]
    assert sums == {(s["rank"], s["step"]): s["end"] - s["start"] for s in made["steps"]}
    assert made["schema"] == 1
    assert made["run"]["clock_origin_ns"] == 1_700_000_000_000_000_000
    assert made["recipes"]["kernel_summary"]["rows"][-1]["share"] is None
    assert made["findings"][0]["recipe"] == "communication_exposed"


def test_every_key_of_the_document_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = json.loads(document(example_page(monkeypatch, tmp_path, quality=[Quality(1, "n", 2, "t")])))
    text = (ROOT / "docs" / "reference/json.md").read_text()
    described = set(re.findall(r"`(\w+)`", text))
    keys = {*made, *made["run"], *made["recipes"]["kernel_summary"]}
    for table in ("steps", "ledger", "findings", "skipped", "quality"):
        keys |= set(made[table][0])
    assert keys <= described
    top = re.findall(r"^\| `(\w+)` \|", text.split("## `run`")[0], re.M)
    assert top == list(made)


def test_long_tables_are_cut_in_the_document_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = example_page(monkeypatch, tmp_path)
    answer = shown.answers[1]
    longer = replace(answer, table=pl.concat([answer.table] * 200))
    made = json.loads(document(replace(shown, answers=(longer,))))["recipes"][answer.recipe.name]
    assert made["num_rows"] == longer.table.height > 1000 and len(made["rows"]) == 1000


def test_files_are_not_named_in_what_may_be_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quality = [Quality(0, "rank not recorded", 1, f"{HOSTILE[0]} does not say which rank it is")]
    shown = example_page(monkeypatch, tmp_path, quality=quality)
    made = json.loads(document(shown))
    assert made["quality"][0]["text"] == "source 1 does not say which rank it is"
    assert "source 1 does not say" in html(shown)
    assert "onerror" not in html(shown)


# The HTML file


class Elements(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_no_name_is_markup_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path, names=HOSTILE)
    plain = Elements(html(example_page(monkeypatch, tmp_path / "plain")))
    hostile = Elements(html(shown))
    assert set(hostile.tags) <= set(plain.tags) | {"span"}
    assert hostile.tags.count("script") == 2 and hostile.tags.count("style") == 1
    assert "img" not in hostile.tags
    assert not [name for name, _ in hostile.attributes if name.startswith("on") or name == "style"]
    text = "".join(hostile.text)
    assert HOSTILE[0] in text and HOSTILE[1] in text
    assert "\x1b" not in text and "\u202e" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html(shown), re.S)
    assert data is not None and not set("<>&\u2028") & set(data[1])
    assert HOSTILE[0] in str(json.loads(data[1]))


def test_the_file_asks_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Elements(html(example_page(monkeypatch, tmp_path)))
    links = [value for name, value in found.attributes if name in ("src", "href", "action", "srcset", "data")]
    assert links and all(link and link.startswith("#") for link in links)
    anchors = {value for name, value in found.attributes if name == "id"}
    assert {link[1:] for link in links if link} <= anchors
    policy = next(
        value for name, value in found.attributes if name == "content" and "default-src" in str(value)
    )
    assert "default-src 'none'" in str(policy) and "unsafe" not in str(policy)


def test_the_file_is_complete_without_scripts_up_to_the_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = example_page(monkeypatch, tmp_path)
    text = "".join(Elements(re.sub(r"<script.*", "", html(shown), flags=re.S)).text)
    assert shown.verdict in text.replace("\xa0", " ")
    for line in shown.budget.lines if shown.budget else ():
        assert f"{line.shown} ms" in text and line.share in text
    for finding in shown.findings:
        assert finding.claim in text
    assert "8 of 60 rows shown" in text


def test_bars_in_the_file_are_as_long_as_their_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path)
    whole = re.search(r'<div class="whole".*?</div>', html(shown))
    assert whole is not None and shown.budget is not None
    widths = [float(w) for w in re.findall(r'width="([\d.]+)%" height', whole[0].split("<rect", 1)[1])]
    compute = next(line for line in shown.budget.lines if line.account == "compute")
    assert widths[0] == pytest.approx(100 * compute.ns / shown.budget.ns, abs=1e-3)
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_a_thousand_ranks_fit_into_a_small_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ledger = ledger_of(1000, 50)
    shown = replace(example_page(monkeypatch, tmp_path), ledger=ledger, budget=budget(ledger))
    assert len(html(shown).encode()) < 1_000_000


def test_no_run_makes_a_huge_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path)
    rng = np.random.default_rng(7)
    ledger = ledger_of(2000, 60).with_columns(ns=pl.lit(rng.integers(1, 10**9, 2000 * 60 * 7)))
    finding = replace(shown.findings[0], claim="x" * 10**6, evidence=("y" * 10**5,) * 30)
    quality = tuple(Quality(r, f"n{r}", 1, "z" * 10**4) for r in range(2000))
    large = replace(shown, ledger=ledger, findings=(finding,) * 500, quality=quality)
    text = html(large)
    assert len(text.encode()) < 5_000_000
    assert "100 of 500 findings are shown" in text
    assert "100 of 2000 facts shown" in text


# The heat map


def unpacked(picture: heat_module.Heat) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(gzip.decompress(base64.b64decode(picture.cells)), dtype="<u4")
    shape = (len(picture.accounts), len(picture.ranks), len(picture.steps))
    return raw.reshape(shape).astype(np.int64) * picture.quantum


def test_the_heat_map_holds_the_exact_ledger() -> None:
    ledger = ledger_of(3, 2)
    picture = heat(ledger)
    assert picture is not None and picture.notices == [] and picture.quantum == 1
    planes = unpacked(picture)
    names = [account["name"] for account in picture.accounts]
    assert planes.sum() == ledger["ns"].sum()
    for row in ledger.iter_rows(named=True):
        at = (
            names.index(row["account"]),
            picture.ranks.index(str(row["rank"])),
            picture.steps.index(str(row["step"])),
        )
        assert planes[at] == row["ns"]


def test_steps_longer_than_the_integers_of_the_picture_are_rounded_and_say_so() -> None:
    picture = heat(spent(compute=7 * 10**9, idle__unexplained=3))
    assert picture is not None and picture.notices == ["times are rounded to 10 ns"]
    assert unpacked(picture).tolist() == [[[7 * 10**9]], [[0]]]


def test_a_picture_that_grows_too_large_loses_detail_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_module, "MOST_BYTES", 2000)
    monkeypatch.setattr(heat_module, "MOST_RANKS", 40)
    ledger = ledger_of(100, 30)
    picture = heat(ledger)
    assert picture is not None and len(picture.cells) <= 2000
    assert "the causes of idle time are shown as one" in picture.notices
    assert any("a row is the mean of" in notice for notice in picture.notices)
    assert picture.ranks[0].startswith("0 to ")
    mean = ledger["ns"].sum() / 3000
    assert unpacked(picture).sum() / len(picture.ranks) / len(picture.steps) == pytest.approx(mean, rel=0.05)


# Columns


def test_columns_are_shown_in_units_that_fit() -> None:
    table = pl.DataFrame(
        {
            "rank": [0, 1],
            "time": [1_234_000, 2_345_600],
            "bytes": [1_500, 2_000_000],
            "share": [0.25, float("nan")],
            "rate": [12.3456, 1e9],
            "calls": [1_234_567, None],
            "big": [2**60, 1],
        }
    )
    types = {
        "rank": Id("rank"),
        "time": Time("how long"),
        "bytes": Bytes("size"),
        "share": Share("of all"),
        "rate": Number("bus bandwidth", unit="GB/s"),
        "calls": Count("calls"),
        "big": Count("more than JavaScript can count"),
    }
    shown = {c.name: (c.unit, [c.show(v) for v in c.values]) for c in cells(table, types)}
    assert shown == {
        "rank": ("", ["0", "1"]),
        "time": ("ms", ["1.234", "2.346"]),
        "bytes": ("", ["1.50 kB", "2.00 MB"]),
        "share": ("%", ["25.0", "–"]),
        "rate": ("GB/s", ["12.3", "1.000e+09"]),
        "calls": ("", ["1,234,567", "–"]),
        "big": ("", [str(2**60), "1"]),
    }


def test_a_unit_is_what_the_column_declares_whatever_its_name_and_meaning_say() -> None:
    table = pl.DataFrame({"share_ns": [0.9], "busy_share": [1.5], "bytes": [3], "rank": [1_234]})
    types = {
        "share_ns": Number("mean share of multiprocessors busy, ns", unit="%"),
        "busy_share": Ratio("time / time in which anything runs"),
        "bytes": Count("how many bytes objects"),
        "rank": Time("GB/s"),
    }
    shown = {c.name: (c.unit, c.show(c.values[0])) for c in cells(table, types)}
    assert shown == {
        "share_ns": ("%", "0.900"),
        "busy_share": ("%", "150.0"),
        "bytes": ("", "3"),
        "rank": ("µs", "1.234"),
    }


# In a browser


def test_the_file_works_in_a_browser_offline(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(html(example_page(monkeypatch, tmp_path / "run", names=HOSTILE)), encoding="utf-8")
    tab = browser.new_context(offline=True).new_page()
    said: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: said.append(dialog.message))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector("canvas")
    tab.wait_for_timeout(100)
    assert tab.locator("img").count() == 0
    assert not tab.locator("#recipe-kernel-summary table").is_visible()
    for name in ("kernel-summary", "communication-exposed"):
        tab.locator(f"#recipe-{name} summary").click()
    assert tab.locator("#recipe-kernel-summary tbody tr").count() == 8
    tab.locator("#recipe-kernel-summary").get_by_role("button", name="show all").click()
    assert tab.locator("#recipe-kernel-summary tbody tr").count() == 60
    tab.locator("#recipe-kernel-summary input").fill("nothing has this name")
    assert tab.locator("#recipe-kernel-summary tbody tr").count() == 0
    # A choice in the heat map filters the tables that have ranks.
    tab.locator("canvas").click(position={"x": 66, "y": 46 + 24 + 12})
    assert tab.locator(".detail h3").inner_text().startswith("rank 1, step 10")
    assert tab.locator("#recipe-communication-exposed tbody tr").count() == 1
    assert tab.locator("#recipe-communication-exposed .row").count() == 8
    assert said == []
    assert requests == [file.as_uri()]


def test_the_file_can_be_read_without_scripts(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    shown = example_page(monkeypatch, tmp_path / "run")
    file.write_text(html(shown), encoding="utf-8")
    tab = browser.new_context(java_script_enabled=False, viewport={"width": 400, "height": 800}).new_page()
    tab.goto(file.as_uri())
    tab.locator("#recipe-kernel-summary summary").click()
    assert tab.locator("#recipe-kernel-summary tbody tr").last.is_visible()
    assert tab.locator("h1").inner_text().replace("\xa0", " ") == shown.verdict
    assert tab.locator("#ledger .waterfall tbody tr").count() == len(
        shown.budget.lines if shown.budget else ()
    )
    assert tab.locator("#findings li h3").count() == 3


def test_the_narrow_page_does_not_scroll_sideways(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(html(example_page(monkeypatch, tmp_path / "run", names=HOSTILE)), encoding="utf-8")
    tab = browser.new_context(viewport={"width": 380, "height": 800}).new_page()
    tab.goto(file.as_uri())
    tab.wait_for_selector("canvas")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380
    tab.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380


def opened_page(browser: Any, folder: Path, shown: Page, **how: Any) -> Any:
    """The page in a tab, with its map drawn."""
    file = folder / "page.html"
    file.write_text(html(shown), encoding="utf-8")
    tab = browser.new_context(**how).new_page()
    tab.goto(file.as_uri())
    tab.wait_for_selector("canvas")
    return tab


SHADES = """() => [...document.querySelectorAll('.whole rect, .waterfall .bar rect')].map(
    (one) => [one.getAttribute('class'), getComputedStyle(one).fill])"""


def test_a_cause_has_one_grey_in_the_bar_and_in_its_row(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = example_page(monkeypatch, tmp_path / "run")
    for scheme in ("light", "dark"):
        tab = opened_page(browser, tmp_path, shown, color_scheme=scheme)
        shades: dict[str, set[str]] = {}
        for name, shade in tab.evaluate(SHADES):
            shades.setdefault(name, set()).add(shade)
        causes = [name for name in shades if name.startswith("c-idle p-")]
        assert len(causes) == 3 and all(len(found) == 1 for found in shades.values())
        assert len({shade for name in causes for shade in shades[name]}) == 3


def test_every_cause_of_idle_time_has_a_grey_of_its_own() -> None:
    style = (WEB / "shared" / "palette.css").read_text()
    greys = dict(re.findall(r"\.p-([\w-]+) \{\n  --grey: (\d+);", style))
    causes = [
        name.partition(".")[2].replace("_", "-") for name in ledger_accounts.ACCOUNTS if "idle." in name
    ]
    assert set(causes) <= set(greys) and len(set(greys.values())) == len(greys)


@pytest.mark.parametrize(
    ("blamed", "opens"),
    [
        (("idle.data_loading",), "idle: data loading"),
        (("communication.wait", "compute"), "exposed communication: waiting for other ranks"),
        (("idle.memory_allocator",), "idle"),
        (("copy",), "exposed copies"),
        ((), "compute"),
    ],
)
def test_the_map_opens_on_the_account_that_the_first_finding_blames(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blamed: tuple[str, ...], opens: str
) -> None:
    shown = example_page(monkeypatch, tmp_path / "run")
    shown = replace(shown, findings=(a_finding(accounts=blamed), *shown.findings))
    tab = opened_page(browser, tmp_path, shown)
    assert tab.locator(".map select").first.evaluate("(one) => one.selectedOptions[0].text") == opens


def test_steps_that_differ_by_little_are_drawn_alike(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """10 µs of 24.4 ms had the strongest colour, and a line that named the step."""
    shown = example_page(monkeypatch, tmp_path / "run", num_ranks=1, num_steps=4)
    alike = shown.ledger.with_columns(pl.col("ns").first().over("rank", "account"))
    longer = pl.when(pl.col("step") == pl.col("step").min()).then(40_000).otherwise(0)
    shown = replace(shown, ledger=alike.with_columns(pl.col("ns") + longer))
    tab = opened_page(browser, tmp_path, shown)
    tab.locator(".map select").first.select_option(label="step")
    assert "Furthest out" not in tab.locator("#map").inner_text()


def test_a_phone_is_not_told_to_point(browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path / "run")
    phone = opened_page(
        browser, tmp_path, shown, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    assert phone.locator(".hint").inner_text().startswith("Tap a cell")
    assert "oint at" not in phone.inner_text("body") and "hover" not in phone.inner_text("body")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened_page(browser, tmp_path, shown).locator(".hint").inner_text().startswith("Point at a cell")


def test_a_link_to_what_is_folded_opens_it(
    browser: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tab = opened_page(browser, tmp_path, example_page(monkeypatch, tmp_path / "run"))
    table = tab.locator("#recipe-communication-exposed table")
    assert not table.is_visible()
    tab.locator("#findings a").first.click()
    table.wait_for(state="visible")
    tab.locator("#recipe-communication-exposed summary").click()
    assert not table.is_visible()
    tab.locator("#findings a").first.click()
    table.wait_for(state="visible")


def test_tables_skipped_questions_and_notes_are_folded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quality = [Quality(0, "lost", 3, "not recorded", of=310), Quality(None, "cut", 1, "it ends", "warning")]
    text = html(example_page(monkeypatch, tmp_path, quality=quality))
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    assert "<details open" not in body
    unfolded = re.sub(r"<details.*?</details>", "", body, flags=re.S)
    assert "page-faults-by-cause" in body and "page-faults-by-cause" not in unfolded
    assert "3 of 310" in body and "3 of 310" not in unfolded and "cut: it ends" in unfolded
    assert 'class="answer"' in body and 'class="answer"' not in unfolded
    assert "1 question that this recording cannot answer" in body


def test_the_tab_is_called_after_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = example_page(monkeypatch, tmp_path / "run")
    folder = tmp_path / "base <b>"
    folder.mkdir()
    file = tmp_path / "host-4711.json"
    file.touch()

    def title(*paths: str) -> str:
        found = re.search(r"<title>(.*?)</title>", html(replace(shown, given=paths)))
        assert found is not None
        return found[1]

    assert title(str(folder)) == "lostflops: base &lt;b&gt;"
    assert title(str(file)) == title() == title("a", "b") == "lostflops: 8 ranks · 5 steps"


def test_commands_in_the_file_name_the_run_unless_that_tells_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "base").mkdir(parents=True)
    (tmp_path / "host.json").touch()
    told = a_finding(next="`lostflops recipe gpu-gaps` says more.")
    shown = replace(example_page(monkeypatch, tmp_path / "stored"), findings=(told,))
    for path, named in (
        ("runs/base", "runs/base"),
        (str(tmp_path / "runs" / "base"), "PATH"),
        ("host.json", "PATH"),
        ("runs/../runs/base", "PATH"),
    ):
        text = html(replace(shown, given=(path,)))
        assert f"<code>lostflops recipe gpu-gaps {named}</code>" in text
        assert "host.json" not in text and str(tmp_path) not in text


def test_one_step_of_one_rank_has_no_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 'id="map"' not in html(example_page(monkeypatch, tmp_path / "one", num_ranks=1, num_steps=1))
    assert 'id="map"' in html(example_page(monkeypatch, tmp_path / "two", num_ranks=1, num_steps=2))


def test_the_cost_of_a_finding_is_bold_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = replace(
        example_page(monkeypatch, tmp_path), findings=(a_finding(contributors=("`decode` 31.0 ms",)),)
    )
    text = html(shown).replace("&nbsp;", " ")
    assert "<h3>The GPU idles <b>47.6 ms</b> per step" in text
    order = ["<b>47.6 ms</b>", "<code>decode</code> 31.0 ms", "More workers.", "at most 50.2 ms per step"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


@pytest.mark.skipif(
    NODE is None or not (WEB / "node_modules").is_dir(), reason="needs Node and `npm ci` in web/"
)
def test_the_bundle_is_what_the_sources_build_to() -> None:
    assert NODE is not None
    built = subprocess.run(
        [NODE, "build.mjs", "--check"], cwd=WEB, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
