"""Samples and memory events that an Nsight Systems export holds only in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops.ingest.nsys import reader as nsys
from lostflops.ingest.part import Part
from nsys_exports import call, kernel, process, sqlite

KERNEL, USAGE = "CUPTI_ACTIVITY_KIND_KERNEL", "CUDA_GPU_MEMORY_USAGE_EVENTS"
GIVEN, FREED, PINNED = 0, 1, 1
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


def test_a_sample_after_lost_ones_does_not_hold_for_their_time(read: Read) -> None:
    sample = {"typeId": 256, "metricId": 3}
    times = ((100, 10), (200, 20), (300, 30), (9300, 90), (9400, 40))
    part = read(
        {
            "TARGET_INFO_GPU_METRICS": [{**sample, "metricName": "SMs Active [Throughput %]"}],
            "GPU_METRICS": [{**sample, "timestamp": t, "value": v} for t, v in times],
        }
    )
    assert rows(part, "counters", "start", "end", "value") == [
        (0, 100, 10.0), (100, 200, 20.0), (200, 300, 30.0), (9200, 9300, 90.0), (9300, 9400, 40.0),
    ]  # fmt: skip


def test_switches_of_two_kinds_have_numbers_of_their_own(read: Read) -> None:
    sample = {"start": 10, "end": 20, "portId": 1, "metricsListId": 1, "metricsIdx": 0}
    part = read(
        {
            "NET_IB_SWITCH_METRIC": [
                sample | {"globalId": 5, "value": 3},
                sample | {"globalId": 9, "value": 4},
            ],
            "NET_ETH_SWITCH_METRIC": [sample | {"globalId": 5, "value": 70}],
        }
    )
    assert sorted(rows(part, "counters", "instance", "value")) == [
        ("switch0 port 1", 3.0), ("switch1 port 1", 4.0), ("switch2 port 1", 70.0),
    ]  # fmt: skip


def memory(start: int, size: int, operation: int, address: int = 4096, kind: int = 2) -> dict[str, Any]:
    return {"start": start, "globalPid": process(7), "deviceId": 0, "address": address, "memKind": kind,
            "bytes": size, "memoryOperationType": operation}  # fmt: skip


def test_memory_that_was_given_out_before_the_recording_makes_totals_unknown(read: Read) -> None:
    part = read(
        {
            USAGE: [
                memory(10, 500, FREED),
                memory(20, 70, GIVEN, 9000),
                memory(30, 7, GIVEN, 5, PINNED),
                memory(40, 0, FREED, 9000),
            ]
        }
    )
    assert rows(part, "allocations", "start", "device", "bytes", "allocated") == [
        (10, 0, -500, None), (20, 0, 70, None), (30, None, 7, 7), (40, 0, -70, None),
    ]  # fmt: skip
    assert {q.name: q.count for q in part.quality}["memory events without totals"] == 3


def test_a_device_that_works_before_its_first_allocation_has_older_memory(read: Read) -> None:
    part = read({USAGE: [memory(150, 70, GIVEN)]})
    assert rows(part, "allocations", "bytes", "allocated") == [(70, None)]


def test_memory_is_given_back_once(read: Read) -> None:
    part = read(
        {
            USAGE: [
                memory(10, 500, GIVEN),
                memory(15, 30, GIVEN, 9000),
                memory(20, 500, FREED),
                memory(25, 500, FREED),
                memory(30, 60, GIVEN),
            ]
        }
    )
    assert rows(part, "allocations", "start", "bytes", "allocated") == [
        (10, 500, 500), (15, 30, 530), (20, -500, 30), (30, 60, 90),
    ]  # fmt: skip


def test_a_message_from_any_rank_is_of_no_rank(read: Read) -> None:
    tid = process(7) | 8
    part = read(
        {
            "StringIds": [{"id": 30, "value": "MPI_Recv"}],
            "MPI_P2P_EVENTS": [
                {"start": 10, "end": 14, "globalTid": tid, "textId": 30, "remoteRank": -1, "size": 64},
                {"start": 20, "end": 24, "globalTid": tid, "textId": 30, "remoteRank": 0, "size": 64},
            ],
        }
    )
    assert rows(part, "library_calls", "start", "peer", "received") == [(10, None, 64), (20, 0, 64)]
