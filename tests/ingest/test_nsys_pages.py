"""First pages of Nsight Systems exports: what they lack is not taken for something else."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.errors import LostflopsError
from nsys_exports import call, copy, kernel, push, sqlite

MS, US = 1_000_000, 1000


def test_a_job_in_graphs_that_were_recorded_as_a_whole_is_not_called_compute_bound(tmp_path: Path) -> None:
    """Nsight's own default: kernels of a graph, and so its communication, are not in the recording."""
    graph = {key: value for key, value in kernel(0, 0).items() if key.endswith("Id") or key == "globalPid"}
    begins = [30 * MS * n for n in range(3)]
    page = lostflops.why(
        sqlite(
            tmp_path / "job.sqlite",
            {
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
                    {**graph, "start": at + 50 * US, "end": at + 28 * MS, "correlationId": at + 1}
                    for at in begins
                ],
                "CUPTI_ACTIVITY_KIND_KERNEL": [
                    kernel(at + 28 * MS, at + 29 * MS, correlationId=at + 2) for at in begins
                ],
                "CUPTI_ACTIVITY_KIND_RUNTIME": [
                    call(at + n * 20 * US, at + n * 20 * US + 9 * US, correlationId=at + n)
                    for at in begins
                    for n in (1, 2)
                ],
                "NVTX_EVENTS": [push(at, at + 29 * MS, f"step {at}") for at in begins],
            },
        )
    )
    assert page.verdict == (
        "What bounds this job is not in the recording: 96.5 % of kernel time is in CUDA graphs that list no "
        "kernels."
    )
    assert page.findings[0].name == "graphs-unlisted"


def test_reports_that_one_process_writes_one_after_the_other_are_of_one_rank(tmp_path: Path) -> None:
    """`nsys profile --capture-range-end=repeat:2`: they were told as two ranks."""

    def report(name: str, epoch: int, **gpu: int) -> Path:
        return sqlite(
            tmp_path / name,
            {
                "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(100, 150)],
                "NVTX_EVENTS": [push(90, 150, "step 3")],
                "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18 + epoch}],
                "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": "a"}],
                "TARGET_INFO_CUDA_DEVICE": [{"cudaId": 0, "pid": 7, "gpuId": 0, **gpu}],
                "META_DATA_CAPTURE": [{"name": "PROFILING_SESSION_UUID", "value": "0000-ABC"}],
            },
        )

    first, later = report("job.1.sqlite", 0), report("job.2.sqlite", 1000)
    other = report("job.3.sqlite", 1000, gpuId=1)  # containers number their processes alike
    for reports, ranks in (([first, later], [0, 0]), ([first, other], [0, 1])):
        steps = lostflops.open(reports).table("steps")
        assert steps is not None and steps.collect()["rank"].to_list() == ranks
    with pytest.raises(LostflopsError, match="exports of one recording session"):
        lostflops.open([first, report("job.4.sqlite", 20)])


def test_a_range_without_a_text_names_no_idle_time(tmp_path: Path) -> None:
    """Registered strings may be missing in an export."""
    tables: dict[str, list[dict[str, object]]] = {
        "NVTX_EVENTS": [], "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": []
    }  # fmt: skip
    for n, at in enumerate(range(0, 40 * MS, 10 * MS)):
        tables["NVTX_EVENTS"] += [push(at, at + 10 * MS, f"step {n}"), push(at + US, at + 4 * MS)]
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            call(at + 4 * MS, at + 4 * MS + 9 * US, correlationId=n + 1)
        )
        tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            kernel(at + 4 * MS + 9 * US, at + 10 * MS, correlationId=n + 1)
        )
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", tables))
    assert "unnamed" not in "".join(f.claim + f.next + "".join(f.evidence) for f in page.findings)
    assert page.findings[0].name == "idle-unexplained"


def test_what_if_of_an_export_without_gpu_work_predicts_nothing(tmp_path: Path) -> None:
    steps = {"NVTX_EVENTS": [push(10 * MS * n, 10 * MS * n + 9 * MS, f"step {n}") for n in range(4)]}
    asked = lostflops.whatif(sqlite(tmp_path / "job.sqlite", steps), "no-sync")
    assert asked.trust.reason == "no step was recorded"


def test_graphs_that_list_no_kernels_are_not_computed_for_what_is_read(tmp_path: Path) -> None:
    """A graph per layer and a wait after each: the bound of leaving the waits out held the layers as well."""
    whole = {key: value for key, value in kernel(0, 0).items() if key.endswith("Id") or key == "globalPid"}
    graphs, calls = list[dict[str, object]](), list[dict[str, object]]()
    for n, at in enumerate(range(MS, 24 * 1500 * US, 1500 * US), 1):
        graphs.append({**whole, "start": at + 20 * US, "end": at + MS, "correlationId": n})
        calls += [
            call(at, at + 9 * US, correlationId=n),
            call(at + 10 * US, at + MS, nameId=22, correlationId=99 + n),
        ]
    steps = [push(MS + n * 6 * MS, MS + (n + 1) * 6 * MS, f"step {n}") for n in range(6)]
    named = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": graphs, "CUPTI_ACTIVITY_KIND_RUNTIME": calls}
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", {**named, "NVTX_EVENTS": steps}))
    (waits,) = [
        finding for finding in page.findings if finding.accounts[:1] == ("idle.host_synchronisation",)
    ]
    assert waits.ns_per_step <= 4 * 520 * US
    assert not any("kernels between" in fact for fact in waits.evidence)


def test_steps_whose_kernels_the_profiler_lost_at_the_end_are_not_idle(tmp_path: Path) -> None:
    """The CPU waited for them: the page told to wait less, as if the GPU had idled meanwhile."""
    tables: dict[str, list[dict[str, object]]] = {
        "NVTX_EVENTS": [], "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": []
    }  # fmt: skip
    for n, at in enumerate(range(MS, 80 * MS, 10 * MS)):
        tables["NVTX_EVENTS"].append(push(at, at + 10 * MS, f"step {n}"))
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"] += [
            call(at, at + 9 * US, correlationId=n + 1),
            call(at + 10 * US, at + 10 * MS - 10 * US, nameId=22, correlationId=100 + n),
        ]
        if n < 6:
            tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                kernel(at + 20 * US, at + 10 * MS - 20 * US, correlationId=n + 1)
            )
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", tables))
    assert page.verdict == "Incompletely recorded: the GPU seems idle for 25.3 % of the 10.0 ms step."
    assert page.findings[0].accounts == ("idle.unrecorded",)


def test_copies_alone_have_no_kernels_to_hide_behind(tmp_path: Path) -> None:
    """98 % of each step, and 100 µs from the call until its copy begins."""
    starts = range(MS, 60 * MS, 10 * MS)
    tables = {
        "NVTX_EVENTS": [push(at, at + 10 * MS, f"step {n}") for n, at in enumerate(starts)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            copy(at + 200 * US, at + 10 * MS, correlationId=at) for at in starts
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(at + 100 * US, at + 109 * US, nameId=21, correlationId=at) for at in starts
        ],
    }  # fmt: skip
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", tables))
    assert page.findings[0].name == "copies-exposed" and page.findings[0].size == 9_900_000
    assert page.findings[0].next.startswith("No kernels are here to hide them")


def test_files_read_by_short_calls_after_a_wait_are_no_part_of_the_wait(tmp_path: Path) -> None:
    """A loader reads for 6 ms, 0.95 ms a call: the page told to take `.item()` out of the step."""
    tables: dict[str, list[dict[str, object]]] = {
        "NVTX_EVENTS": [], "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": [], "OSRT_API": []
    }  # fmt: skip
    for n, at in enumerate(range(MS, 161 * MS, 16 * MS)):
        tables["NVTX_EVENTS"].append(push(at, at + 16 * MS, f"step {n}"))
        tables["OSRT_API"] += [
            call(at + part * MS, at + part * MS + 950 * US, nameId=30, eventClass=27) for part in range(6)
        ]
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"] += [
            call(at + 6 * MS, at + 6 * MS + 9 * US, correlationId=n + 1),
            call(at + 6 * MS + 10 * US, at + 16 * MS, nameId=22, correlationId=100 + n),
        ]
        tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            kernel(at + 6 * MS + 9 * US, at + 16 * MS - 2 * US, correlationId=n + 1)
        )
    page = lostflops.why(
        sqlite(tmp_path / "job.sqlite", {**tables, "StringIds": [{"id": 30, "value": "read"}]})
    )
    assert page.findings[0].claim == (
        "The GPU idles 5.70 ms per step (35.6 %) while the CPU reads or writes files, pipes or sockets: "
        "`read` (5.70 ms)."
    )


def test_copies_between_devices_have_no_memory_of_the_host(tmp_path: Path) -> None:
    """The page said "peer to peer, host memory none"."""
    starts = range(MS, 60 * MS, 10 * MS)
    tables = {
        "NVTX_EVENTS": [push(at, at + 10 * MS, f"step {n}") for n, at in enumerate(starts)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            copy(at + 20 * US, at + 8 * MS, correlationId=at, copyKind=10, srcKind=2) for at in starts
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(at, at + 9 * US, nameId=21, correlationId=at) for at in starts
        ],
    }  # fmt: skip
    (finding, *_) = lostflops.why(sqlite(tmp_path / "job.sqlite", tables)).findings
    assert any(fact.startswith("peer to peer: 6 copies, 384 bytes") for fact in finding.evidence)
