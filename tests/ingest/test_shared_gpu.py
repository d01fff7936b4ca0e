"""A process that works on the same GPU is no rank where another surely is one, and what it does is told."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.ingest.nsys import reader as nsys
from lostflops.store.trace import GPU_SHARED
from nsys_exports import call, kernel, process, push, sqlite

MS = 1_000_000
JOB, OTHER = process(100), process(200)


def export(
    path: Path,
    gpus: tuple[int, int] = (0, 0),
    sms: int = 132,
    marked: bool = False,
    turns: bool = False,
    unit: int = MS,
) -> Path:
    """Four steps of ten times `unit`, in which the GPU computes from 2 to 8; another process runs from 7 to
    9. With `turns` they take turns, and all that is from 2 to 9 is launched at 2."""
    tables: dict[str, list[dict[str, Any]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": [], "NVTX_EVENTS": [],
        "TARGET_INFO_GPU": [{"id": gpu, "name": "H100", "smCount": 132} for gpu in sorted({*gpus})],
        "TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": gpu, "cudaId": 0, "pid": pid, "numMultiprocessors": sms}
            for gpu, pid in zip(gpus, (100, 200), strict=True)
        ],
    }  # fmt: skip
    for step in range(4):
        at = 10 * unit * step
        works = [(JOB, 2, 8), (OTHER, 7, 9)]
        if turns:
            works = [(JOB, 2, 3), (OTHER, 3, 5), (JOB, 5, 6), (OTHER, 6, 8), (JOB, 8, 9)]
        for owner, since, until in works:
            ids = {"correlationId": 10 * step + since}
            kernels, calls = tables["CUPTI_ACTIVITY_KIND_KERNEL"], tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
            kernels.append(kernel(at + since * unit, at + until * unit, globalPid=owner, **ids))
            called = at + (2 if turns else since) * unit + (10 * since if turns else 0)
            calls.append(call(called - 9, called - 5, globalTid=owner | 8, **ids))
        for owner in (JOB, OTHER)[: 1 + marked]:
            tables["NVTX_EVENTS"].append(push(at, at + 10 * unit, f"step {step}", globalTid=owner | 8))
    return sqlite(path, tables)


def test_work_of_another_process_on_the_gpu_is_no_rank_and_is_told_above_the_numbers(tmp_path: Path) -> None:
    page = lostflops.why(export(tmp_path / "job.sqlite"))
    assert page.run.ranks == (0,)
    assert (
        "Another process works on this GPU: its work runs for 8.00 ms of the steps, 4.00 ms of them while "
        "this rank's GPU is called idle; where both run, each may take longer." in page.notes
    )


def test_time_in_which_launched_work_waits_may_be_the_other_process_s(tmp_path: Path) -> None:
    """It was recorded: to look for what was not recorded is no advice."""
    page = lostflops.why(export(tmp_path / "job.sqlite", turns=True))
    assert page.verdict.startswith("Not alone on its GPU: ")
    (one,) = (f for f in page.findings if f.name == "recording-incomplete")
    assert "or does other work, as of the process that shares it." in one.claim
    assert one.next.startswith("Give each process a GPU of its own")


def test_work_that_waits_behind_the_other_process_waits_for_no_stream(tmp_path: Path) -> None:
    """For less than a millisecond at a time: "Dependency-bound", with CUDA graphs as the remedy."""
    page = lostflops.why(export(tmp_path / "job.sqlite", turns=True, unit=MS // 10))
    assert page.verdict.startswith("Not alone on its GPU: the GPU seems idle for ")
    (one,) = (f for f in page.findings if f.name == "late-after-launch")
    assert (
        "or does other work, as of the process that shares it, after its next work was launched" in one.claim
    )
    assert one.next.startswith("Give each process a GPU of its own") and not one.remedies


@pytest.mark.parametrize(
    ("of", "ranks", "told"),
    [
        ({"gpus": (0, 1)}, 2, 0),  # GPUs of their own
        ({"sms": 66}, 2, 0),  # slices of their own
        ({"marked": True}, 2, 2),  # two ranks of a job, or two jobs
    ],
)
def test_who_may_be_a_rank_stays_one(tmp_path: Path, of: dict[str, Any], ranks: int, told: int) -> None:
    parts = nsys.read(export(tmp_path / "job.sqlite", **of), tmp_path / "out")
    assert len(parts) == ranks
    assert sum(fact.name == GPU_SHARED for part in parts for fact in part.quality) == told


@pytest.mark.parametrize("facts", [True, False])
def test_processes_may_share_a_gpu_that_nothing_tells_apart(tmp_path: Path, facts: bool) -> None:
    """Each process numbers the GPUs that it sees. Without facts about devices, 0 and 0 may be one."""
    path = export(tmp_path / "job.sqlite", gpus=(0, 1), marked=True)
    if not facts:
        with sqlite3.connect(path) as connection:
            connection.executescript("DROP TABLE TARGET_INFO_GPU; DROP TABLE TARGET_INFO_CUDA_DEVICE")
    page = lostflops.why(path)
    assert page.run.ranks == (0, 1)
    assert any("whether they have one each" in note for note in page.notes) is not facts
