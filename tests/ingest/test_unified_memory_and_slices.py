"""Exports in which more happens than ranks do: managed memory that moves by itself, slices of a GPU (MIG),
other processes, ranges that only count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops.ingest import job
from lostflops.naming.cards import peak
from lostflops.session import Session, Skipped
from nsys_exports import call, copy, kernel, process, push, sqlite

MS = 1_000_000
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
Tables = Mapping[str, Sequence[Mapping[str, Any]]]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def asked(path: Path, *several: Tables) -> Session:
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for some in several:
        for name, rows in some.items():
            tables.setdefault(name, []).extend(rows)
    return Session(job.open(sqlite(path / "report.sqlite", tables)))


def two_steps(pid: int = 7, mark: str = "step {}") -> Tables:
    """Two steps of 10 ms; in each the host launches a kernel of 4 ms at once, and a second one 8 ms later."""
    at = [(1 + n) * 10 * MS for n in range(2)]
    calls = [(t + d * MS, t + d * MS + 5000) for t in at for d in (0, 8)]
    # CUDA counts its calls from 1; what nobody called has 0.
    ran = [(start + 8000, start + (4 if n % 2 == 0 else 1) * MS) for n, (start, _) in enumerate(calls)]
    tid = process(pid) | 8
    return {
        KERNEL: [kernel(*span, correlationId=n, globalPid=process(pid)) for n, span in enumerate(ran, 1)],
        RUNTIME: [call(*span, correlationId=n, globalTid=tid) for n, span in enumerate(calls, 1)],
        "NVTX_EVENTS": [push(t, t + 10 * MS - 1, mark.format(n), globalTid=tid) for n, t in enumerate(at)],
    }


def ledger(session: Session) -> dict[str, int]:
    answer = session.run("step_ledger")
    assert not isinstance(answer, Skipped), answer.reason
    return dict(answer.table.group_by("account").agg(pl.col("ns").sum()).iter_rows())


def test_pages_that_move_by_themselves_hide_no_cause_of_idle_time(tmp_path: Path) -> None:
    moved = [
        copy((1 + n) * 10 * MS + d * MS, (1 + n) * 10 * MS + d * MS + MS // 2, copyKind=11, srcKind=0,
             dstKind=4, streamId=0, contextId=0, correlationId=0, migrationCause=2)
        for n in range(2) for d in (5, 6)
    ]  # fmt: skip
    pages = ledger(asked(tmp_path, two_steps(), {"CUPTI_ACTIVITY_KIND_MEMCPY": moved}))
    (tmp_path / "without").mkdir()
    plain = ledger(asked(tmp_path / "without", two_steps()))
    assert pages.pop("copy") == 2 * MS
    assert "idle.unrecorded" not in pages and "idle.unrecorded" not in plain
    assert plain["idle.unexplained"] - pages["idle.unexplained"] == 2 * MS


def test_a_range_that_counts_steps_is_no_work_of_the_host(tmp_path: Path) -> None:
    found: list[dict[str, int]] = []
    for mark in ("ProfilerStep#{}", "step {}", "iteration {}"):
        (tmp_path / mark).mkdir()
        found.append(ledger(asked(tmp_path / mark, two_steps(mark=mark))))
    assert found[0] == found[1] == found[2]
    assert "idle.other_host_work" not in found[0]


def test_steps_follow_the_device_however_many_pages_move(tmp_path: Path) -> None:
    """The host runs ahead by a step: without launches of their own, pages must not keep its marks."""
    tables: dict[str, Any] = {
        KERNEL: [kernel(10 * MS * n, 10 * MS * (n + 1), correlationId=n) for n in range(1, 4)],
        RUNTIME: [call(10 * MS + 1000 * n, 10 * MS + 1000 * n + 50, correlationId=n) for n in range(1, 4)],
        "NVTX_EVENTS": [push(10 * MS + 1000 * n, 10 * MS + 1000 * n + 999, f"step {n}") for n in range(1, 4)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            copy(11 * MS + 1000 * n, 11 * MS + 1000 * n + 500, copyKind=11, streamId=0, correlationId=0)
            for n in range(50)
        ],
    }
    trace = asked(tmp_path, tables).trace
    steps, kernels = trace.table("steps"), trace.table("kernels")
    assert steps is not None and kernels is not None
    assert steps.collect()["end"].to_list() == kernels.collect()["end"].to_list()


def test_a_process_with_hardly_any_gpu_work_is_no_rank(tmp_path: Path) -> None:
    tried = [kernel(12 * MS + n, 12 * MS + n + 1, globalPid=process(99)) for n in (1, 5)]
    session = asked(tmp_path, two_steps(), two_steps(8), {KERNEL: tried})
    ranks = session.trace.table("ranks")
    assert ranks is not None and ranks.collect()["rank"].to_list() == [0, 1]
    told = {q.name: q.count for q in session.trace.manifest.quality}
    assert told["GPU work of processes that are no ranks"] == 2


def test_a_kernel_with_a_broken_time_makes_no_other_process_a_helper(tmp_path: Path) -> None:
    """A kernel of rank 0 seems to run for three hours."""
    broken = kernel(31 * MS, 31 * MS + 3 * 3600 * 1000 * MS, globalPid=process(7))
    session = asked(tmp_path, two_steps(), two_steps(8), {KERNEL: [broken]})
    ranks = session.trace.table("ranks")
    assert ranks is not None and ranks.collect()["rank"].to_list() == [0, 1]


def test_a_process_that_talks_to_ranks_is_one_however_little_it_computes(tmp_path: Path) -> None:
    tried = [kernel(12 * MS + n, 12 * MS + n + 1, globalPid=process(99)) for n in (1, 5)]
    talks = [push(12 * MS, 12 * MS + 1, "ncclAllReduce", domainId=1, globalTid=process(99) | 3)]
    session = asked(tmp_path, two_steps(), {KERNEL: tried, "NVTX_EVENTS": talks})
    ranks = session.trace.table("ranks")
    assert ranks is not None and ranks.collect().height == 2


def test_a_slice_of_a_gpu_has_neither_its_peak_nor_its_memory(tmp_path: Path) -> None:
    name = "NVIDIA H100 80GB HBM3"
    gpus = [{"vmId": 1, "id": 0, "name": name, "totalMemory": 80 << 30, "smCount": 132}]
    slices = [
        {"gpuId": 0, "cudaId": 0, "pid": pid, "uuid": f"MIG-{pid}", "numMultiprocessors": 60}
        for pid in (7, 8)
    ]
    tables = {"TARGET_INFO_GPU": gpus, "TARGET_INFO_CUDA_DEVICE": slices}
    ranks = asked(tmp_path, two_steps(), two_steps(8), tables).trace.table("ranks")
    assert ranks is not None
    told = ranks.select("gpu", "num_sms", "memory_bytes").collect().rows()
    assert told == [(f"{name}, 60 of 132 SMs", 60, None)] * 2
    assert peak(name, "bf16") is not None and peak(told[0][0], "bf16") is None


@pytest.mark.parametrize(("kind", "told"), [(11, True), (1, False)])
def test_pages_that_move_while_kernels_run_are_told(tmp_path: Path, kind: int, told: bool) -> None:
    """Each kernel of 4 ms waits for pages for 3 of them, hidden as these are. It waits for no pinned copy."""
    moved = [
        copy((1 + n) * 10 * MS + (1 + d) * MS, (1 + n) * 10 * MS + (2 + d) * MS, copyKind=kind,
             srcKind=4 if kind == 11 else 1, dstKind=4, correlationId=0, migrationCause=2)
        for n in range(2) for d in range(3)
    ]  # fmt: skip
    session = asked(tmp_path, two_steps(), {"CUPTI_ACTIVITY_KIND_MEMCPY": moved})
    answer = session.run("copy_summary_by_time")
    assert not isinstance(answer, Skipped), answer.reason
    claims = [finding.claim for finding in answer.findings if finding.name == "pages-move-beside-kernels"]
    said = (
        "Managed memory moves while kernels run, for 30.0 % of step time: a kernel that misses a page waits."
    )
    assert claims == [said] * told
