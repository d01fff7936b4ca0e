"""Sends and receives that are asked for one by one and launched together; backends beside NCCL and gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written

CARRIES = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def message(ts: float, what: str, source: int, destination: int) -> Event:
    about = {
        "Collective name": what, "In msg nelems": 512, "Out msg nelems": 512, "dtype": "BFloat16",
        "Group size": 4, "Process Group Name": "7", "Process Group Description": "pp",
        "Process Group Ranks": "[0, 1, 2, 3]", "Src Rank": source, "Dst Rank": destination,
    }  # fmt: skip
    return operator("record_param_comms", ts, 2, more=about)


def launched(ts: float, correlation: int) -> list[Event]:
    coalesced = span("user_annotation", "nccl:coalesced", ts, 8)
    return [coalesced, call(ts + 2, 5, correlation), kernel(ts + 10, 20, correlation, CARRIES, 20)]


def collectives(folder: Path, events: list[Event], about: dict[str, Any] | None = None) -> pl.DataFrame:
    written(folder / "rank1.json", trace([step(0, 0, 900), *events], about or head(1, 4)))
    table = lostflops.open(folder).table("collectives")
    assert table is not None
    told = "kind", "peer", "group", "bytes_in"
    return table.sort("start").select(pl.col(c).cast(pl.String) for c in told).collect()


def test_a_launch_after_one_message_carries_it_and_after_two_both(tmp_path: Path) -> None:
    """The third launch follows no message that it could carry."""
    one = [message(10, "recv", 0, 1), *launched(20, 1)]
    two = [message(100, "send", 1, 2), message(110, "recv", 0, 1), *launched(120, 2)]
    assert collectives(tmp_path, [*one, *two, *launched(200, 3)]).rows() == [
        ("receive", "0", "7 [0, 1, 2, 3]", "1024"),
        ("send-receive", None, "7 [0, 1, 2, 3]", None),
        ("unknown", None, None, None),
    ]


def test_a_message_with_a_launch_of_its_own_is_in_no_other(tmp_path: Path) -> None:
    own: list[Any] = [message(10, "send", 1, 2), call(10.5, 1, 1), kernel(20, 5, 1, CARRIES, 20)]
    assert collectives(tmp_path, [*own, *launched(50, 2)])["kind"].to_list() == ["send", "unknown"]


def test_what_calls_itself_coalesced_has_no_size(tmp_path: Path) -> None:
    about = {"Collective name": "coalesced", "In msg nelems": 0, "Out msg nelems": 0, "dtype": "Byte"}
    events = [call(20, 5, 1), {**kernel(30, 20, 1, CARRIES, 20, **about)}]
    assert collectives(tmp_path, events).rows() == [("unknown", None, None, None)]


@pytest.mark.parametrize(("backend", "library"), [("mpi", "MPI"), ("ucc", "UCC"), ("gloo", "gloo")])
def test_host_collectives_are_of_the_backend_that_they_name(
    tmp_path: Path, backend: str, library: str
) -> None:
    events = [
        operator("c10d::allreduce_", 20, 5),
        span(
            "user_annotation",
            f"{backend}:all_reduce",
            30,
            40,
            2,
            more={"Input Dims": [[]], "Input type": ["float"]},  # one number, as of a loss
        ),
        operator("aten::mm", 80, 90),
    ]
    written(
        tmp_path / "rank0.json", trace([step(0, 0, 900), *events], {**head(0, 2), "deviceProperties": []})
    )
    table = lostflops.open(tmp_path).table("collectives")
    assert table is not None
    rows = table.select(pl.col("kind", "library").cast(pl.String), "bytes_in").collect().rows()
    assert rows == [("all-reduce", library, 4)]


@pytest.mark.parametrize(
    ("threads", "groups"),
    [
        ((52, 61, 51, 62), ["0 [0, 1]", "3 [0]", "0 [0, 1]", "3 [0]"]),
        ((52, 61, 51), [None, None, None]),  # 52 may be of either
        ((52, 51, 52), ["0 [0, 1]"] * 3),
    ],
)
def test_operations_of_gloo_are_of_the_group_whose_threads_run_them(
    tmp_path: Path, threads: tuple[int, ...], groups: list[str | None]
) -> None:
    """A group of one rank waits for nobody: its operations are none of the group of all ranks."""
    listed = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "3", "pg_desc": "tp", "pg_size": 1, "ranks": [0]},
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": listed}
    events = [
        event
        for n, thread in enumerate(threads)
        for event in (
            operator("c10d::allreduce_", 20 * n, 5),
            span("user_annotation", "gloo:all_reduce", 20 * n + 5, 9, thread),
        )
    ]
    assert collectives(tmp_path, events, {"distributedInfo": info})["group"].to_list() == groups


def test_messages_of_a_monitored_barrier_are_the_barrier(tmp_path: Path) -> None:
    """Rank 0 hears from all, then answers; a message beside it is one. They were stages of a pipeline."""
    one = {"Input Dims": [[1]], "Input type": ["int"]}
    events = [
        operator("c10d::monitored_barrier_", 20, 400),
        *(span("user_annotation", "gloo:recv", 30 + n, 380, more=one) for n in range(2)),
        *(span("user_annotation", "gloo:send", 412 + n, 2, more=one) for n in range(2)),
        operator("c10d::send", 500, 5),
        span("user_annotation", "gloo:send", 501, 40, more=one),
    ]
    written(
        tmp_path / "rank0.json", trace([step(0, 0, 900), *events], {**head(0, 3), "deviceProperties": []})
    )
    table = lostflops.open(tmp_path).table("collectives")
    assert table is not None
    told = pl.col("kind").cast(pl.String), pl.col("end") - pl.col("arrival"), "bytes_in"
    rows = table.sort("start").select(told).collect().rows()
    assert rows == [("barrier", 400_000, None), ("send", 41_000, 4)]
