"""What the reader makes of host threads, libraries, files, network counters and graph nodes of an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops.ingest.nsys import reader as nsys
from lostflops.ingest.part import Part
from nsys_exports import call, copy, kernel, process, push, sqlite

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
TID, OTHER = process(7) | 8, process(9) | 8
Read = Callable[[dict[str, Any]], Part]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The rank of an export with these tables beside one kernel and its call."""

    def of(tables: dict[str, Any]) -> Part:
        every = {
            KERNEL: [kernel(100, 200, correlationId=1)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [call(50, 60, correlationId=1)],
            **tables,
        }
        (part,) = nsys.read(sqlite(tmp_path / "made.sqlite", every), tmp_path / "parts")
        return part

    return of


def rows(part: Part, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return pl.read_parquet(Path(part.folder) / f"{name}.parquet").select(columns).rows()


def test_a_thread_is_on_a_core_from_one_event_to_its_next(read: Read) -> None:
    events = [
        (10, 3, 1, TID, 0, 0),
        (40, 3, 0, TID, 2, 5),
        (70, 4, 1, TID, 0, 5),  # what a row that comes onto a core says of blocking is stale
        (90, 4, 0, TID, 1, 5),
        (95, 4, 1, TID, 0, 0),
        (20, 9, 1, OTHER, 0, 0),
    ]
    names = ("start", "cpu", "isSchedIn", "globalTid", "threadState", "threadBlock")
    part = read(
        {
            "SCHED_EVENTS": [dict(zip(names, event, strict=True)) for event in events],
            "ENUM_SAMPLING_THREAD_STATE": [{"id": 1, "name": "Running"}, {"id": 2, "name": "Interruptible"}],
            "ENUM_SCHEDULING_THREAD_BLOCK": [{"id": 5, "name": "Futex"}],
            "StringIds": [{"id": 40, "value": "pt_autograd_0"}, {"id": 41, "value": "somebody's own"}],
            "ThreadNames": [{"nameId": 40, "globalTid": TID}, {"nameId": 41, "globalTid": TID + 1}],
        }
    )
    assert set(rows(part, "thread_states", "role")) == {("autograd",)}
    assert rows(part, "thread_states", "start", "end", "thread", "core", "state", "reason") == [
        (10, 40, 8, 3, "running", None),
        (40, 70, 8, None, "blocked", "Futex"),
        (70, 90, 8, 4, "running", None),
        (90, 95, 8, None, "ready", "Futex"),
    ]


def test_periodic_samples_keep_their_stack_and_no_folder(read: Read) -> None:
    strings = {30: "main", 31: "memcpy", 32: "/home/someone/lib/libc.so.6", 33: "python3"}
    part = read(
        {
            "StringIds": [{"id": i, "value": v} for i, v in strings.items()],
            "COMPOSITE_EVENTS": [
                {"id": 1, "start": 20, "cpu": 3, "globalTid": TID, "cpuCycles": 1},
                {"id": 2, "start": 30, "cpu": 3, "globalTid": TID, "cpuCycles": 0},  # as it left its core
                {"id": 3, "start": 25, "cpu": 3, "globalTid": OTHER, "cpuCycles": 1},
            ],
            "SAMPLING_CALLCHAINS": [
                {"id": 1, "stackDepth": 1, "symbol": 30, "module": 33},
                {"id": 1, "stackDepth": 0, "symbol": 31, "module": 32},
                {"id": 2, "stackDepth": 0, "symbol": 30, "module": 33},
                {"id": 3, "stackDepth": 0, "symbol": 30, "module": 33},
            ],
        }
    )
    assert rows(part, "samples", "start", "thread", "core", "function", "library", "stack") == [
        (20, 8, 3, "memcpy", "libc.so.6", "main;memcpy")
    ]


def test_calls_of_mpi_and_cublas_are_one_table(read: Read) -> None:
    strings = {30: "MPI_Send", 31: "MPI_Recv", 32: "MPI_Allreduce", 33: "cublasGemmEx"}
    end = {"globalTid": TID, "commUid": 5}
    part = read(
        {
            "StringIds": [{"id": i, "value": v} for i, v in strings.items()],
            "MPI_P2P_EVENTS": [
                {"start": 10, "end": 14, "textId": 30, "remoteRank": 3, "size": 64, **end},
                {"start": 20, "end": 25, "textId": 31, "remoteRank": 2, "size": 32, **end},
                {"start": 90, "textId": 30, "remoteRank": 3, "size": 64, **end},
            ],
            "MPI_COLLECTIVES_EVENTS": [
                {"start": 30, "end": 39, "textId": 32, "rootRank": None, "size": 8, "recvSize": 16, **end}
            ],
            "CUBLAS_EVENTS": [{"start": 40, "end": 41, "globalTid": TID, "nameId": 33}],
        }
    )
    columns = ("start", "library", "kind", "name", "peer", "communicator", "sent", "received")
    assert rows(part, "library_calls", *columns) == [
        (10, "MPI", "point to point", "MPI_Send", 3, 5, 64, None),
        (20, "MPI", "point to point", "MPI_Recv", 2, 5, None, 32),
        (30, "MPI", "collective", "MPI_Allreduce", None, 5, 8, 16),
        (40, "cuBLAS", "other", "cublasGemmEx", None, None, None, None),
    ]
    assert {q.name: q.count for q in part.quality}["MPI calls without an end"] == 1


def test_files_are_numbers_and_their_names_stay_out(read: Read) -> None:
    part = read(
        {
            "OSRT_FILE_ACCESS_EVENTS": [
                {"fileAccessId": 4, "threadId": TID, "startedAt": 10, "endedAt": 13, "eventType": 2}
                | {"bytesProcessed": 512, "filePath": "/data/secret"},
                {"fileAccessId": 5, "threadId": OTHER, "startedAt": 11, "endedAt": 12, "eventType": 2},
            ],
            "ENUM_OSRT_FILE_ACCESS_EVENT_TYPE": [{"id": 2, "name": "Read"}],
        }
    )
    columns = ("start", "end", "thread", "file", "operation", "bytes")
    assert rows(part, "file_accesses", *columns) == [(10, 13, 8, 4, "read", 512)]
    stored = b"".join(file.read_bytes() for file in Path(part.folder).glob("*.parquet"))
    assert b"secret" not in stored


def test_network_counters_are_of_numbered_ports_and_levels_only_where_the_unit_is_a_rate(read: Read) -> None:
    part = read(
        {
            "NET_NIC_METRIC": [
                {"start": 10, "end": 20, "globalId": 900, "portId": 1, "metricsListId": 1, "metricsIdx": 0}
                | {"value": 640},
                {"start": 10, "end": 20, "globalId": 77, "portId": 1, "metricsListId": 1, "metricsIdx": 1}
                | {"value": 5},
            ],
            "NET_IB_SWITCH_METRIC": [
                {"start": 20, "end": 30, "globalId": 5, "portId": 40, "metricsListId": 1, "metricsIdx": 0}
                | {"value": 3}
            ],
            "TARGET_INFO_NETWORK_METRICS": [
                {"metricsListId": 1, "metricsIdx": 0, "name": "Bytes sent", "unit": "bytes"},
                {"metricsListId": 1, "metricsIdx": 1, "name": "Send wait", "unit": "ticks/ms"},
            ],
        }
    )
    columns = ("start", "end", "metric", "instance", "value", "unit", "added", "device")
    assert sorted(rows(part, "counters", *columns)) == [
        (10, 20, "Bytes sent", "nic1 port 1", 640.0, "bytes", True, None),
        (10, 20, "Send wait", "nic0 port 1", 5.0, "ticks/ms", False, None),
        (20, 30, "Bytes sent", "switch0 port 40", 3.0, "bytes", True, None),
    ]


@pytest.mark.parametrize(
    ("unit", "added"),
    [
        ("ticks per millisecond", False),
        ("Gbps", False),
        ("% of the link", False),
        ("packets", True),
        (None, None),
    ],
)
def test_what_no_unit_calls_an_amount_is_not_divided_by_time(
    read: Read, unit: str | None, added: bool | None
) -> None:
    sample = {"start": 10, "end": 20, "globalId": 9, "portId": 1, "metricsListId": 1, "metricsIdx": 0}
    told = {"metricsListId": 1, "metricsIdx": 0, "name": "Send wait", "unit": unit}
    part = read({"NET_NIC_METRIC": [sample | {"value": 5}], "TARGET_INFO_NETWORK_METRICS": [told]})
    assert rows(part, "counters", "value", "unit", "added") == [(5.0, unit, added)]


def test_a_replayed_kernel_leads_to_the_capture_of_its_node(read: Read) -> None:
    part = read(
        {
            KERNEL: [kernel(100, 200, correlationId=1, graphNodeId=22), kernel(300, 310)],
            "CUDA_GRAPH_NODE_EVENTS": [
                {"start": 12, "end": 13, "globalTid": TID, "graphNodeId": 21},
                {"start": 40, "end": 41, "globalTid": TID + 1, "graphNodeId": 22, "originalGraphNodeId": 21},
            ],
            "NVTX_EVENTS": [push(10, 15, "attention")],
        }
    )
    assert rows(part, "kernels", "start", "graph_node", "node_made", "node_thread") == [
        (100, 22, 12, 8),
        (300, None, None, None),
    ]


def test_a_migration_says_why(read: Read) -> None:
    part = read({MEMCPY: [copy(10, 20, copyKind=11, migrationCause=4), copy(20, 30)]})
    assert rows(part, "copies", "direction", "cause") == [
        ("migration to device", "eviction"),
        ("host to device", None),
    ]


def test_system_calls_are_told_from_those_of_the_c_library(read: Read) -> None:
    strings = {30: "poll", 31: "futex"}
    part = read(
        {
            "StringIds": [{"id": i, "value": v} for i, v in strings.items()],
            "OSRT_API": [{"start": 10, "end": 19, "globalTid": TID, "nameId": 30, "nestingLevel": 0}],
            "SYSCALL": [{"start": 11, "end": 18, "globalTid": TID, "nameId": 31}],
        }
    )
    assert sorted(rows(part, "os_calls", "start", "name", "system_call")) == [
        (10, "poll", False),
        (11, "futex", True),
    ]
