"""Who sends to whom, and in which group, in Nsight Systems exports: NCCL numbers the members of each
communicator for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops.ingest import job
from lostflops.store.trace import Trace
from nsys_exports import call, kernel, push, sqlite

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
NCCL_DOMAIN = push(0, 0, "NCCL", eventType=75, domainId=1)
WORLD, STAGES = 900, 77


def nccl(start: int, end: int, name: str, **told: Any) -> dict[str, Any]:
    """A call with its payload, as NCCL 2.24 writes it."""
    names = {
        "communicator": "NCCL communicator ID", "size": "Message size [bytes]", "peer": "Peer rank",
        "ranks": "No. of ranks", "rank": "Rank", "bytes": "Bytes",
    }  # fmt: skip
    said = ", ".join(f'"{names[key]}": {value}' for key, value in told.items())
    return push(start, end, name, domainId=1, jsonText=f"{{{said}}}" if told else None)


def joins(communicator: int, ranks: int, rank: int) -> dict[str, Any]:
    return nccl(1, 2, "ncclCommInitRank", communicator=communicator, ranks=ranks, rank=rank)


def export(file: Path, *calls: dict[str, Any], at: tuple[int, ...] = (14,)) -> Path:
    """A file of one process, with a kernel of NCCL for each launch."""
    kernels = [kernel(100 + 10 * n, 109 + 10 * n, correlationId=n + 1, demangledName=12, streamId=9)
               for n in range(len(at))]  # fmt: skip
    launches = [call(start, start + 1, correlationId=n + 1) for n, start in enumerate(at)]
    return sqlite(file, {KERNEL: kernels, RUNTIME: launches, "NVTX_EVENTS": [NCCL_DOMAIN, *calls]})


def collectives(trace: Trace, *names: str) -> list[tuple[Any, ...]]:
    table = trace.table("collectives")
    assert table is not None
    text = [
        pl.col(name).cast(pl.String) if name in ("kind", "group", "dtype") else pl.col(name) for name in names
    ]
    return table.sort("rank", "start").select(text).collect().rows()


def ranks(trace: Trace, *names: str) -> list[tuple[Any, ...]]:
    table = trace.table("ranks")
    assert table is not None
    return table.sort("rank").select(names).collect().rows()


def of_four(folder: Path, rank: int, *calls: dict[str, Any], place: int | None = None) -> Path:
    """The file of one of four ranks; with a `place` it is one of the two stages of a pipeline, too."""
    stages = [] if place is None else [joins(STAGES, 2, place)]
    return export(folder / f"{'dbca'[rank]}.sqlite", joins(WORLD, 4, rank), *stages, *calls)


def test_a_peer_is_a_place_in_its_communicator_and_the_files_say_whose_it_is(tmp_path: Path) -> None:
    sent = nccl(10, 20, "ncclSend", communicator=STAGES, size=64, peer=1)
    got = nccl(10, 20, "ncclRecv", communicator=STAGES, size=64, peer=0)
    of_four(tmp_path, 0)
    of_four(tmp_path, 1, sent, place=0)
    of_four(tmp_path, 2)
    of_four(tmp_path, 3, got, place=1)
    trace = job.open(tmp_path)
    assert collectives(trace, "rank", "kind", "peer", "group", "group_size", "bytes_in", "bytes_out")[
        1::2
    ] == [
        (1, "send", 3, "NCCL communicator 77 [1, 3]", 2, 64, None),
        (3, "receive", 1, "NCCL communicator 77 [1, 3]", 2, None, 64),
    ]
    assert [{group["name"]: group["ranks"] for group in groups} for (groups,) in ranks(trace, "groups")] == [
        {"NCCL communicator 900": [0, 1, 2, 3]} | ({"NCCL communicator 77": [1, 3]} if rank % 2 else {})
        for rank in range(4)
    ]


def test_of_one_file_alone_a_place_is_a_rank_only_in_the_communicator_of_all(tmp_path: Path) -> None:
    file = export(
        tmp_path / "one.sqlite",
        joins(WORLD, 4, 2),
        joins(STAGES, 2, 0),
        nccl(10, 20, "ncclSend", communicator=WORLD, size=64, peer=3),
        nccl(30, 40, "ncclSend", communicator=STAGES, size=32, peer=1),
        at=(14, 34),
    )
    trace = job.open(file)
    assert collectives(trace, "rank", "kind", "peer", "bytes_in") == [
        (2, "send", 3, 64),
        (2, "send", None, 32),
    ]


def test_where_no_call_shows_who_joined_a_communicator_its_places_are_not_taken_for_ranks(
    tmp_path: Path,
) -> None:
    file = export(tmp_path / "rank0.sqlite", nccl(10, 20, "ncclSend", communicator=STAGES, size=64, peer=1))
    assert collectives(job.open(file), "kind", "peer", "bytes_in") == [("send", None, 64)]


def test_a_send_of_older_nccl_is_a_group_of_its_own_and_has_bytes_without_a_communicator(
    tmp_path: Path,
) -> None:
    file = export(
        tmp_path / "one.sqlite",
        nccl(10, 30, "ncclSend", bytes=4096, peer=1),
        nccl(11, 12, "ncclGroupStart"),
        nccl(13, 29, "ncclGroupEnd"),
        nccl(30, 50, "ncclRecv", bytes=512, peer=1),
        nccl(31, 32, "ncclGroupStart"),
        nccl(33, 49, "ncclGroupEnd"),
        at=(14, 40),
    )
    assert collectives(job.open(file), "kind", "bytes_in", "bytes_out", "peer", "group") == [
        ("send", 4096, None, None, None),
        ("receive", None, 512, None, None),
    ]


def test_messages_of_a_group_that_go_to_several_ranks_have_no_one_peer(tmp_path: Path) -> None:
    file = export(
        tmp_path / "one.sqlite",
        joins(WORLD, 4, 1),
        nccl(8, 9, "ncclGroupStart"),
        nccl(10, 11, "ncclSend", communicator=WORLD, size=7, peer=0),
        nccl(11, 12, "ncclSend", communicator=WORLD, size=5, peer=2),
        nccl(13, 20, "ncclGroupEnd"),
        nccl(28, 29, "ncclGroupStart"),
        nccl(30, 31, "ncclSend", communicator=WORLD, size=7, peer=2),
        nccl(31, 32, "ncclRecv", communicator=WORLD, size=5, peer=2),
        nccl(33, 40, "ncclGroupEnd"),
        at=(14, 34),
    )
    assert collectives(job.open(file), "kind", "peer", "bytes_in", "bytes_out") == [
        ("send", None, 12, None),
        ("send-receive", None, 7, 5),
    ]


def test_an_all_to_all_is_as_large_as_its_parts_and_a_rank_may_send_nothing(tmp_path: Path) -> None:
    around = push(7, 60, "nccl:all_to_all, op_id = 5")
    file = export(
        tmp_path / "one.sqlite",
        joins(WORLD, 2, 1),
        around,
        nccl(8, 9, "ncclGroupStart"),
        nccl(10, 11, "ncclRecv", communicator=WORLD, size=300, peer=0),
        nccl(11, 12, "ncclRecv", communicator=WORLD, size=20, peer=1),
        nccl(13, 20, "ncclGroupEnd"),
        nccl(30, 40, "ncclAlltoAll", communicator=WORLD, size=64),
        at=(14, 34),
    )
    assert collectives(job.open(file), "kind", "bytes_in", "bytes_out", "peer") == [
        ("all-to-all", 0, 320, None),
        ("all-to-all", 128, 128, None),
    ]


def test_an_all_to_all_without_payloads_has_no_bytes(tmp_path: Path) -> None:
    file = export(
        tmp_path / "one.sqlite", push(7, 60, "nccl:all_to_all, op_id = 5"), nccl(8, 20, "ncclGroupEnd")
    )
    assert collectives(job.open(file), "kind", "bytes_in", "bytes_out") == [("all-to-all", None, None)]


@pytest.mark.parametrize("named", [True, False])
def test_places_in_communicators_of_parts_of_the_job_are_no_ranks(named: bool, tmp_path: Path) -> None:
    """Two stages of two ranks each: no communicator holds all four."""
    for rank in range(4):
        name = f"rank{rank}" if named else "wxyz"[rank]
        tensor, place = divmod(rank, 2)
        export(tmp_path / f"{name}.sqlite", joins(50 + tensor, 2, place),
               nccl(10, 20, "ncclAllReduce", communicator=50 + tensor, size=64))  # fmt: skip
    trace = job.open(tmp_path)
    source = "file name" if named else "device order"
    assert ranks(trace, "rank", "rank_source", "world_size") == [(rank, source, None) for rank in range(4)]
    assert [group for (group,) in collectives(trace, "group")] == [
        f"NCCL communicator {50 + rank // 2} {[rank - rank % 2, rank - rank % 2 + 1]}" for rank in range(4)
    ]


def test_a_file_that_names_a_rank_outside_its_largest_communicator_tells_that_the_job_is_larger(
    tmp_path: Path,
) -> None:
    for rank in (4, 5):
        export(tmp_path / f"rank{rank}.sqlite", joins(50, 2, rank - 4))
    trace = job.open(tmp_path)
    assert ranks(trace, "rank", "rank_source", "world_size") == [(rank, "file name", None) for rank in (4, 5)]


def stage(folder: Path, rank: int, place: int, to: tuple[int, ...], of: tuple[int, ...]) -> Path:
    """A file without a trace of how the communicator was joined: only messages to and from places."""
    calls = [("ncclSend", peer) for peer in to] + [("ncclRecv", peer) for peer in of]
    starts = [10 + 20 * n for n in range(len(calls))]
    said = [nccl(start, start + 10, name, communicator=STAGES, size=64, peer=peer)
            for start, (name, peer) in zip(starts, calls, strict=True)]  # fmt: skip
    return export(folder / f"rank{rank}.sqlite", *said, at=tuple(start + 4 for start in starts))


def peers(folder: Path) -> set[tuple[int, int | None]]:
    return set(collectives(job.open(folder), "rank", "peer"))  # type: ignore[arg-type]


def test_a_recording_that_began_later_tells_the_stages_of_a_pipeline_by_their_messages(
    tmp_path: Path,
) -> None:
    for place, rank in enumerate((0, 2, 4, 6)):
        others = tuple(other for other in (place - 1, place + 1) if 0 <= other < 4)
        stage(tmp_path, rank, place, others, others)
    assert peers(tmp_path) == {(0, 2), (2, 0), (2, 4), (4, 2), (4, 6), (6, 4)}
    assert {group for (group,) in collectives(job.open(tmp_path), "group")} == {
        "NCCL communicator 77 [0, 2, 4, 6]"
    }


def test_two_ranks_that_talk_to_each_other_alone_are_each_other_s_peers(tmp_path: Path) -> None:
    stage(tmp_path, 3, 1, (), (0,))
    stage(tmp_path, 1, 0, (1,), ())
    assert peers(tmp_path) == {(1, 3), (3, 1)}


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_with_a_stage_missing_the_others_places_are_not_known(missing: int, tmp_path: Path) -> None:
    for place in range(4):
        if place != missing:
            others = tuple(other for other in (place - 1, place + 1) if 0 <= other < 4)
            stage(tmp_path, place, place, others, others)
    assert {peer for _, peer in peers(tmp_path)} == {None}


def test_a_ring_looks_alike_from_every_place(tmp_path: Path) -> None:
    for place in range(4):
        stage(tmp_path, place, place, ((place + 1) % 4,), ((place - 1) % 4,))
    assert {peer for _, peer in peers(tmp_path)} == {None}


def test_a_window_that_ends_early_on_one_stage_tells_no_places(tmp_path: Path) -> None:
    stage(tmp_path, 0, 0, (1,), (1,))
    stage(tmp_path, 1, 1, (0, 2), (0, 2))
    stage(tmp_path, 2, 2, (1,), ())
    assert {peer for _, peer in peers(tmp_path)} == {None}


def test_calls_that_say_who_makes_them_tell_the_places(tmp_path: Path) -> None:
    """A ring, whose messages alone tell no places."""
    for place, rank in enumerate((6, 4, 2, 0)):
        to = nccl(10, 20, "ncclSend", communicator=STAGES, size=64, peer=(place + 1) % 4, rank=place)
        export(tmp_path / f"rank{rank}.sqlite", to)
    assert peers(tmp_path) == {(6, 4), (4, 2), (2, 0), (0, 6)}


@pytest.mark.parametrize(
    ("kernel_name", "element"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "bfloat16"),
        ("ncclDevKernel_AllReduce_SumPostDiv_u32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "float32"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "float16"),
        ("ncclKernel_AllReduce_TREE_SIMPLE_Sum___nv_bfloat16(ncclDevComm*, unsigned long)", "bfloat16"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", None),
    ],
)
def test_a_kernel_that_adds_up_tells_its_element_type(
    kernel_name: str, element: str | None, tmp_path: Path
) -> None:
    tables = {
        "StringIds": [{"id": 70, "value": kernel_name}],
        KERNEL: [kernel(100, 110, demangledName=70, streamId=9)],
    }
    assert collectives(job.open(sqlite(tmp_path / "one.sqlite", tables)), "dtype") == [(element,)]


def test_a_communicator_of_more_ranks_than_there_are_in_the_world_costs_no_time(tmp_path: Path) -> None:
    sent = nccl(10, 20, "ncclSend", communicator=WORLD, size=64, peer=2**62)
    file = export(tmp_path / "one.sqlite", joins(WORLD, 10**15, 0), sent)
    assert collectives(job.open(file), "kind", "peer", "bytes_in") == [("send", None, 64)]
