"""A thread that Nsight Systems saw in a call of the operating system is named by that call."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lostflops
from nsys_exports import call, kernel, process, push, sqlite

MS, US = 1_000_000, 1000
THREAD = process(7) | 8


def export(path: Path, name: str | None, lasts: int = 3 * MS, inside: bool = False) -> Path:
    """Five steps: the thread is in a call of the system, launches kernels of 4 ms, and waits for them.

    With `inside` that wait is what makes the call.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        "StringIds": [{"id": 31, "value": name or "-"}], "CUPTI_ACTIVITY_KIND_KERNEL": [],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [], "NVTX_EVENTS": [], "OSRT_API": [],
    }  # fmt: skip
    at = 0
    for number in range(5):
        begin = at
        at += lasts
        launched = at
        for place in range(4):
            ids = {"correlationId": 10 * number + place + 1}
            start = launched + 20 * US + place * MS
            tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(call(at, at + 5 * US, **ids))
            tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(kernel(start, start + MS, **ids))
            at += 10 * US
        until = launched + 20 * US + 4 * MS + 5 * US
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            call(at, until, nameId=22, correlationId=10 * number + 9)
        )
        if name is not None:
            start, end = (at, until) if inside else (begin, begin + lasts)
            row = {"start": start, "end": end, "eventClass": 27, "globalTid": THREAD, "nameId": 31}
            tables["OSRT_API"].append({**row, "returnValue": 0, "nestingLevel": 0})
        at = until
        tables["NVTX_EVENTS"].append(push(begin, at, f"step {number}"))
    return sqlite(path, tables)


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("pthread_cond_wait", "while the CPU waits for another thread or process: `pthread_cond_wait`"),
        ("epoll_wait", "while the CPU waits for another thread or process: `epoll_wait`"),
        ("clock_nanosleep", "while the CPU sleeps: `clock_nanosleep`"),
        ("fsync", "while the CPU reads or writes files: `fsync`"),
        ("read", "while the CPU reads or writes files, pipes or sockets: `read`"),
        ("ioctl", "while the CPU runs other code: `ioctl`"),
    ],
)
def test_a_thread_that_is_blocked_after_a_wait_for_the_gpu_does_not_refill_its_queue(
    tmp_path: Path, name: str, does: str
) -> None:
    (first, *_) = lostflops.why(export(tmp_path / "job.sqlite", name)).findings
    assert first.claim == f"The GPU idles 3.00 ms per step (42.7 %) {does} (3.00 ms)."
    # Whether what is waited for could come sooner is not known; a sleep and files can go elsewhere.
    assert (first.edit != "") == (name in ("clock_nanosleep", "fsync"))


def test_a_thread_that_waits_in_mpi_is_named_by_that_call(tmp_path: Path) -> None:
    """The recording was said to show no reason."""
    path = export(tmp_path / "job.sqlite", "MPI_Barrier")
    with closing(sqlite3.connect(path)) as file, file:
        columns = "start, end, globalTid, nameId AS textId"
        file.execute(f"CREATE TABLE MPI_COLLECTIVES_EVENTS AS SELECT {columns} FROM OSRT_API")
        file.execute("DROP TABLE OSRT_API")
    (first, *_) = lostflops.why(path).findings
    assert first.claim == (
        "The GPU idles 3.00 ms per step (42.7 %) while the CPU waits for another thread or process: "
        "`MPI_Barrier` (3.00 ms)."
    )
    assert first.next.startswith("Find which process comes last to `MPI_Barrier`: all others wait for it.")


def test_a_thread_that_could_run_and_has_no_core_is_told_so(tmp_path: Path) -> None:
    """Context switches are in Nsight's default recording; it was said to show no reason."""
    path = export(tmp_path / "job.sqlite", "-")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE ENUM_SAMPLING_THREAD_STATE (id INTEGER, name TEXT)")
        file.execute("INSERT INTO ENUM_SAMPLING_THREAD_STATE VALUES (3, 'SAMPLING_THREAD_STATE_RUNNING')")
        columns = "0 AS cpu, globalTid, 3 AS threadState, NULL AS threadBlock"
        file.execute(
            f"CREATE TABLE SCHED_EVENTS AS SELECT start, 0 AS isSchedIn, {columns} FROM OSRT_API "
            f"UNION ALL SELECT end, 1, {columns} FROM OSRT_API"
        )
        file.execute("DROP TABLE OSRT_API")
    (first, *_) = lostflops.why(path).findings
    assert first.claim == (
        "The GPU idles 3.00 ms per step (42.7 %) while the CPU waits for a free core: `runnable` (3.00 ms)."
    )
    assert first.next.startswith("Give this thread a core of its own")


def test_without_that_call_only_call_stacks_would_tell(tmp_path: Path) -> None:
    (first, *_) = lostflops.why(export(tmp_path / "job.sqlite", None)).findings
    assert first.name == "idle-unexplained" and first.next.startswith("Record call stacks: ")
    assert first.claim.startswith("The GPU idles 3.00 ms per step (42.7 %) for reasons that")


def test_what_a_wait_for_the_gpu_calls_is_that_wait(tmp_path: Path) -> None:
    page = lostflops.why(export(tmp_path / "job.sqlite", "poll", lasts=400 * US, inside=True))
    assert not any("`poll`" in str(finding) for finding in page.findings)
    assert page.verdict.startswith("Mostly compute") or page.verdict.startswith("Compute-bound")
