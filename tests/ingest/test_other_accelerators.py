"""Accelerators that are no GPU: their rows are read, or the page says that it cannot tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kineto_files import Event, operator, span, step
from lostflops.ingest import job
from lostflops.report.first_page.page import page
from lostflops.session import Session
from lostflops.store.trace import DEVICE_UNKNOWN, GPU_WORK_LOST

STEPS = 3


def on_device(cat: str, name: str, ts: float, dur: float, stream: int = 3, **args: Any) -> Event:
    return {**span(cat, name, ts, dur, stream, stream=stream, **args), "pid": 0}


def written(folder: Path, events: Sequence[Event], **frame: Any) -> Path:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], **frame, "traceEvents": events}))
    return path


def opened(path: Path) -> Session:
    return Session(job.open(path))


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def table(session: Session, name: str) -> pl.DataFrame:
    found = session.trace.table(name)
    assert found is not None, f"no table {name}"
    return found.collect()


def steps(of_one: Any) -> list[Event]:
    """The events of some steps of 100 µs; `of_one` gives those of one from its start and its number."""
    return [
        event for k in range(STEPS) for event in [step(k, 1000 + 100 * k, 100), *of_one(1000 + 100 * k, k)]
    ]


def ledger(session: Session) -> dict[str, int]:
    """Mean time by account, ns."""
    spent = session.run("step_ledger").table
    return {
        account: ns // STEPS for account, ns in spent.group_by("account").agg(pl.col("ns").sum()).iter_rows()
    }


def linked(kernels: str, calls: str, call: str, **kernel: Any) -> list[Event]:
    """A launch at 10 µs of each step, returning at 15, and its kernel from 20 to 70, in these categories."""

    def one(at: float, k: int) -> list[Event]:
        return [
            operator("aten::mm", at + 5, 12),
            span(calls, call, at + 10, 5, correlation=k + 1),
            on_device(kernels, "gemm_kernel", at + 20, 50, correlation=k + 1, **kernel),
        ]

    return steps(one)


@pytest.mark.parametrize(
    ("kernels", "calls", "call"),
    [
        ("kernel", "xpu_runtime", "urEnqueueKernelLaunch"),
        ("xpu_kernel", "xpu_driver", "zeCommandListAppendLaunchKernel"),
        ("kernel", "privateuse1_runtime", "Launch"),
        ("privateuse1_kernel", "privateuse1_driver", "launchKernel"),
        ("hpu_op", "hpu_runtime", "synLaunch"),
        ("mtia_ccp_events", "mtia_runtime", "runFunction - job_prep_and_submit_for_execution"),
        ("npu_kernel", "npu_runtime", "aclrtLaunchKernel"),
        ("of_the_year_2030", "of_the_year_2030_runtime", "go"),
    ],
)
@pytest.mark.parametrize("listed", [[], [{"id": 0, "name": "An accelerator"}]])
def test_the_rows_of_a_device_are_kernels_whatever_the_device_is(
    tmp_path: Path, kernels: str, calls: str, call: str, listed: list[Any]
) -> None:
    session = opened(written(tmp_path, linked(kernels, calls, call), deviceProperties=listed))
    assert table(session, "ranks")["device_kind"].to_list() == ["gpu"]
    found = table(session, "kernels")
    assert found.select("name", "stream", "family").unique().rows() == [("gemm_kernel", 3, "gemm")]
    assert found["launch_start"].null_count() == 0 and set(found["operator"]) == {"aten::mm"}
    assert ledger(session)["compute"] == 50_000
    quality = {fact.name for fact in session.trace.manifest.quality}
    assert not quality & {DEVICE_UNKNOWN, GPU_WORK_LOST}


def test_a_row_without_a_stream_is_a_device_s_when_a_call_has_its_correlation(tmp_path: Path) -> None:
    events = linked("privateuse1_compute", "privateuse1_runtime", "Launch")
    for event in events:
        if event["cat"] == "privateuse1_compute":
            del event["args"]["stream"]
    session = opened(written(tmp_path, events))
    assert ledger(session)["compute"] == 50_000
    assert set(table(session, "kernels")["stream"]) == {3}


def test_a_device_that_waits_does_not_work_and_its_copies_are_copies(tmp_path: Path) -> None:
    def one(at: float, k: int) -> list[Event]:
        return [
            span("mtia_runtime", "enqueueCommand memcpyHtoDAsync", at + 1, 2, correlation=k + 1),
            on_device("mtia_ccp_events", "dma_request", at + 5, 15, correlation=k + 1,
                      direction="HOST_TO_DEVICE", size=4096),
            on_device("mtia_ccp_events", "event_wait", at + 5, 80, 4, wait_on_stream=3),
            span("mtia_runtime", "runFunction", at + 4, 2, correlation=100 + k),
            on_device("mtia_ccp_events", "merge", at + 20, 40, 5, correlation=100 + k),
            on_device("mtia_ccp_events", "event_record", at + 60, 1, 5),
        ]  # fmt: skip

    session = opened(written(tmp_path, steps(one)))
    spent = ledger(session)
    assert (spent["compute"], spent["copy"]) == (40_000, 15_000)
    copies = table(session, "copies")
    assert copies.select("direction", "bytes").unique().rows() == [("host to device", 4096)]
    assert set(table(session, "kernels")["name"]) == {"merge"}


def test_an_ascend_trace_without_categories_is_read(tmp_path: Path) -> None:
    def row(name: str, ts: float, dur: float, pid: int, tid: int, **args: Any) -> Event:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": str(ts), "dur": dur, "args": args}

    def one(at: float, k: int) -> list[Event]:
        return [
            operator("aten::mm", at + 5, 12),
            row("AscendCL@aclnnMatmul", at + 8, 6, 900, 1, connection_id=k + 1),
            row("aclnnMatmul_MatMulCommon_MatMulV2", at + 20, 50, 901, 7,
                **{"Task Type": "AI_CORE", "Stream Id": 7, "connection_id": k + 1}),
            row("EVENT_WAIT", at + 20, 75, 901, 8, **{"Task Type": "EVENT_WAIT", "Stream Id": 8}),
            row("hcom_allReduce__503_0_1", at + 60, 20, 902, 2, connection_id=99),
            row("MEMCPY_ASYNC", at + 85, 5, 901, 7, **{"Task Type": "MEMCPY_ASYNC", "Stream Id": 7}),
            row("Computing", at + 20, 50, 903, 0),
        ]  # fmt: skip

    session = opened(written(tmp_path, steps(one)))
    spent = ledger(session)
    assert spent["compute"] == 50_000 and spent["copy"] == 5_000
    assert sum(ns for account, ns in spent.items() if account.startswith("communication.")) == 10_000
    kernels = table(session, "kernels").filter(pl.col("family") == "gemm")
    assert set(kernels["thread"]) == {1} and set(kernels["operator"]) == {"aten::mm"}


@pytest.mark.parametrize("listed", [[], [{"id": 0, "name": "An accelerator"}]])
@pytest.mark.parametrize("category", ["hpu_op", "mtia_insight", "npu_task"])
def test_device_rows_that_nothing_places_leave_no_verdict(
    tmp_path: Path, category: str, listed: list[Any]
) -> None:
    def one(at: float, k: int) -> list[Event]:
        rows = [span(category, "a_task", at + 10 * n, 9, 5) for n in range(10)]
        return [operator("aten::mm", at, 98), *rows]

    session = opened(written(tmp_path, steps(one), deviceProperties=listed))
    told = {fact.name: fact.count for fact in session.trace.manifest.quality}
    assert told[DEVICE_UNKNOWN] == 10 * STEPS
    assert table(session, "ranges").filter(pl.col("domain") == category).height == 10 * STEPS
    verdict = page(session.trace, session).verdict
    assert "ompute-bound" not in verdict and "30 rows" in verdict


def test_the_host_s_own_rows_of_an_unknown_kind_make_no_device(tmp_path: Path) -> None:
    """A plugin of the host's, in a job without any device."""

    def one(at: float, k: int) -> list[Event]:
        return [operator("aten::mm", at, 98), span("my_plugin", "checkpoint", at + 10, 5)]

    session = opened(written(tmp_path, steps(one)))
    assert DEVICE_UNKNOWN not in {fact.name for fact in session.trace.manifest.quality}
    assert table(session, "ranks")["device_kind"].to_list() == ["cpu"]


def test_calls_of_a_device_s_runtime_without_its_work_are_told(tmp_path: Path) -> None:
    events = [e for e in linked("kernel", "xpu_runtime", "urEnqueueKernelLaunch") if e["cat"] != "kernel"]
    told = {fact.name: fact.count for fact in opened(written(tmp_path, events)).trace.manifest.quality}
    assert told[GPU_WORK_LOST] == STEPS
