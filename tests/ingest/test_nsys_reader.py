"""What the Nsight Systems reader makes of exports: golden values of real ones, and every quirk in a small
one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from lostflops import ingest, intervals
from lostflops.errors import ExportFailed, LostflopsError, NotATrace, NsysNotFound, Truncated, UnknownSchema
from lostflops.ingest import job
from lostflops.ingest.nsys import reader as nsys
from lostflops.ingest.part import Part
from lostflops.store.trace import ONE_PER_DEVICE
from lostflops.tables import TABLES
from nsys_exports import DEFINITIONS, STRINGS, call, columns, copy, folder, kernel, process, push, sqlite

REAL = Path(__file__).parents[3] / "shared" / "traces" / "nsys"
KERNEL, MEMCPY, MEMSET = (f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET"))
RUNTIME, GRAPH = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
Made = Callable[..., list[Part]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Write an export with these tables, and read it."""
    count = 0

    def make(tables: dict[str, Any], minor: int = 25, **more: Any) -> list[Part]:
        nonlocal count
        count += 1
        export = sqlite(tmp_path / f"made{count}.sqlite", tables, minor, **more)
        return nsys.read(export, tmp_path / f"parts{count}")

    return make


def table(part: Part, name: str) -> pl.DataFrame:
    return pl.read_parquet(Path(part.folder) / f"{name}.parquet")


def rows(part: Part, name: str, *names: str) -> list[tuple[Any, ...]]:
    return table(part, name).select(names).rows()


def notes(part: Part) -> dict[str, int]:
    return {q.name: q.count for q in part.quality}


# real exports


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Part]]:
    """Read one of the shared exports, once."""
    done: dict[str, list[Part]] = {}

    def read(name: str) -> list[Part]:
        packed = REAL / f"{name}.sqlite.zst"
        if not packed.is_file():
            pytest.skip("the shared traces are not here")
        if name not in done:
            zstandard = pytest.importorskip("zstandard")
            place = tmp_path_factory.mktemp(name)
            export = place / f"{name}.sqlite"
            with packed.open("rb") as source, export.open("wb") as target:
                zstandard.ZstdDecompressor().copy_stream(source, target)
            done[name] = nsys.read(export, place / "parts")
        return done[name]

    return read


def union_length(*frames: pl.DataFrame) -> int:
    every = pl.concat([f.select("start", "end") for f in frames]).lazy()
    return intervals.union(every).select((pl.col("end") - pl.col("start")).sum()).collect().item()


BEFORE, AFTER, SP2 = (
    "fastvideo_train_2xH100_before",
    "fastvideo_train_2xH100_after",
    "fastvideo_sp2_2xH100_1s",
)
# Span, kernels, communication, copies (rows); sum of kernel durations, kernel union; compute, communication
# exposed, copies exposed, idle: all ns, recomputed from the files by two independent programs.
GOLDEN = [
    (BEFORE, 0, 299848812, 1993, 33, 643, 270875926, 270863484, 253690832, 17172652, 2954303, 26031025),
    (BEFORE, 1, 298661551, 2017, 33, 646, 264324724, 264324724, 256095624, 8229100, 2951192, 31385635),
    (AFTER, 0, 299251215, 1793, 31, 573, 237473368, 237473368, 227484352, 9989016, 2635381, 59142466),
    (AFTER, 1, 299269422, 1794, 31, 573, 251362038, 251362038, 227608953, 23753085, 2638716, 45268668),
    (SP2, 0, 969447605, 1721, 0, 463, 22385163, 22385163, 22385163, 0, 940505084, 6557358),
    (SP2, 1, 969258578, 1721, 0, 463, 22444359, 22444359, 22444359, 0, 940366346, 6447873),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g[0]}-{g[1]}")
def test_the_accounts_of_a_real_export_are_exact(
    golden: tuple[Any, ...], real: Callable[[str], list[Part]]
) -> None:
    name, device, *expected = golden
    part = real(name)[device]
    every, copies = table(part, "kernels"), table(part, "copies")
    talk = table(part, "collectives") if "collectives" in part.tables else every.clear()
    work = every.filter(pl.col("family") != "communication")
    span = max(t["end"].max() for t in (every, copies)) - min(t["start"].min() for t in (every, copies))
    compute, communicating, active = (
        union_length(work),
        union_length(work, talk),
        union_length(work, talk, copies),
    )
    assert [
        span,
        every.height,
        talk.height,
        copies.height,
        (every["end"] - every["start"]).sum(),
        union_length(every),
        compute,
        communicating - compute,
        active - communicating,
        span - active,
    ] == expected


@pytest.mark.parametrize(
    ("name", "active", "useful", "overlapping"),
    [
        (BEFORE, (273817787, 267275916), (253690832, 256095624), (12442, 0)),
        (AFTER, (240108749, 254000754), (227484352, 227608953), (0, 0)),
        (SP2, (962890247, 962810705), (22385163, 22444359), (0, 0)),
    ],
)
def test_gpu_active_and_gpu_useful_are_those_of_paraver(
    name: str,
    active: tuple[int, int],
    useful: tuple[int, int],
    overlapping: tuple[int, int],
    real: Callable[[str], list[Part]],
) -> None:
    for part, busy, computing, twice in zip(real(name), active, useful, overlapping, strict=True):
        every, copies = table(part, "kernels"), table(part, "copies")
        work = every.filter(pl.col("family") != "communication")
        assert union_length(every, copies) == busy
        assert union_length(work) == computing
        assert (work["end"] - work["start"]).sum() - computing == twice


def test_the_copies_of_a_real_export_are_exact(real: Callable[[str], list[Part]]) -> None:
    copies = table(real(SP2)[0], "copies").with_columns(pl.col("direction", "host_memory").cast(pl.String))
    into = copies.filter(pl.col("direction") == "host to device")
    taken = (into["end"] - into["start"]).sum()
    assert (into.height, into["bytes"].sum(), taken) == (225, 25_475_253_792, 920_872_841)
    assert round(into["bytes"].sum() / taken, 2) == 27.66
    assert into.filter(pl.col("host_memory") == "pinned").height == 223


def test_two_windows_of_one_length_hold_different_work(real: Callable[[str], list[Part]]) -> None:
    """Sums of kernel times over them prove nothing: there are fewer kernels, and they take as long."""
    sides: list[tuple[int, int, float]] = []
    for name in (BEFORE, AFTER):
        kernels = pl.concat([table(part, "kernels") for part in real(name)])
        copies = pl.concat([table(part, "copies") for part in real(name)])
        between = copies.filter(pl.col("direction").cast(pl.String) == "device to device")
        attention = pl.col("family").cast(pl.String) == "attention"
        times = kernels.filter(attention).select(t=pl.col("end") - pl.col("start"), n=pl.col("name"))
        middle = times.group_by("n").agg(pl.col("t").median(), sum=pl.col("t").sum()).sort("sum")["t"][-1]
        sides.append((kernels.height, between["bytes"].sum(), round(middle / 1e6, 3)))
    assert sides == [(4010, 8_046_134_272, 3.978), (3587, 7_195_376_640, 4.011)]


@pytest.mark.parametrize(
    ("name", "matched", "all_kernels"), [(BEFORE, 3986, 4010), (AFTER, 3577, 3587), (SP2, 1632, 3442)]
)
def test_kernels_of_a_real_export_find_their_launch_by_process_and_id(
    name: str, matched: int, all_kernels: int, real: Callable[[str], list[Part]]
) -> None:
    kernels = pl.concat([table(part, "kernels") for part in real(name)])
    assert (kernels["launch_start"].count(), kernels.height) == (matched, all_kernels)
    early = kernels.filter(pl.col("start") < pl.col("launch_end")).height
    assert early == {BEFORE: 79, AFTER: 295, SP2: 3}[name]
    assert kernels.filter(pl.col("start") < pl.col("launch_start")).is_empty()


def test_grouped_sends_of_a_real_export_are_the_all_to_all_that_pytorch_calls_them(
    real: Callable[[str], list[Part]],
) -> None:
    for part in real(BEFORE):
        kinds = table(part, "collectives").group_by("kind", "evidence").len().sort("len")
        # One kernel was launched before the window: nothing tells what its sends and receives were for.
        assert kinds.cast({"kind": pl.String}).rows() == [("unknown", 4, 1), ("all-to-all", 3, 32)]


def test_operators_of_a_real_export_are_apart_from_ranges_and_lose_their_ids(
    real: Callable[[str], list[Part]],
) -> None:
    part = real(BEFORE)[0]
    operators, ranges = table(part, "operators"), table(part, "ranges")
    names = operators["name"].cast(pl.String)
    assert not names.str.contains("seq = |op_id = ").any()
    assert {"aten::addmm", "FlashAttnFunc", "record_param_comms"} <= set(names)
    assert operators["sequence"].count() > 0
    by_domain = ranges.group_by(pl.col("domain").cast(pl.String)).len().rows()
    nvtx = operators.height + sum(n for d, n in by_domain if d in ("user", "NCCL", "default"))
    assert nvtx == 9219 + 224
    assert any(n.startswith("FSDP::pre_forward (") for n in ranges["name"].cast(pl.String))


def test_ranks_of_a_real_export_come_in_the_order_of_their_devices(real: Callable[[str], list[Part]]) -> None:
    parts = real(BEFORE)
    assert [(p.rank, p.rank_source, p.facts["device"]) for p in parts] == [
        (None, "device order", d) for d in (0, 1)
    ]
    assert {p.epoch_ns for p in parts} == {1779782330176752435}
    assert parts[0].facts["gpu"] is None  # this export has no table of GPUs: the name stays unknown
    assert (
        parts[0]
        .facts["versions"]
        .startswith("Nsight Systems 2026.2.1.210, export schema 3.25.0, CUDA driver API 13.0")
    )
    assert notes(parts[0])["window cut from a longer recording"] == 1


# forms and versions

SMALL = {
    KERNEL: [kernel(100, 105, correlationId=1), kernel(107, 120, correlationId=2)],
    MEMCPY: [copy(121, 124, correlationId=3)],
    RUNTIME: [
        call(90, 92, correlationId=1),
        call(93, 96, correlationId=2),
        call(97, 98, correlationId=3, nameId=21),
    ],
}


@pytest.mark.parametrize("minor", [4, 7, 20, 24, 25, 28, 30])
def test_every_schema_version_gives_the_same_tables(minor: int, made: Made) -> None:
    (part,) = made(SMALL, minor)
    assert rows(
        part, "kernels", "start", "end", "launch_start", "grid", "block", "shared_memory", "family"
    ) == [
        (100, 105, 90, 30, 128, 124, "gemm"),
        (107, 120, 93, 30, 128, 124, "gemm"),
    ]
    assert rows(part, "copies", "name", "direction", "host_memory", "bytes", "launch_start") == [
        ("Memcpy HtoD (Pinned -> Device)", "host to device", "pinned", 64, 97)
    ]
    assert rows(part, "launches", "name", "thread", "return_code") == [
        ("cudaLaunchKernel", 8, 0), ("cudaLaunchKernel", 8, 0), ("cudaMemcpyAsync", 8, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [None, "file", "stream"])
def test_parquet_and_arrow_directories_give_what_sqlite_gives(
    form: str | None, tmp_path: Path, made: Made
) -> None:
    # A hardware id that makes the ids negative in SQLite, where every integer is signed.
    owner = process(7, hardware=0x91)
    tables = {
        KERNEL: [kernel(100, 105, correlationId=1, globalPid=owner)],
        MEMCPY: [copy(121, 124, correlationId=3, globalPid=owner)],
        RUNTIME: [call(90, 92, correlationId=1, globalTid=owner | 8)],
        "NVTX_EVENTS": [push(80, 130, "forward", globalTid=owner | 8)],
    }
    (expected,) = made(tables)
    name = "report_pqtdir" if form is None else "report_arwdir"
    (part,) = nsys.read(folder(tmp_path / name, tables, arrow=form), tmp_path / "out")
    assert ingest.nsys.recognises(tmp_path / name, b"")
    assert part.tables == expected.tables
    for each in part.tables:
        assert table(part, each).equals(table(expected, each), null_equal=True)


def test_an_unknown_major_version_is_refused(made: Made) -> None:
    with pytest.raises(UnknownSchema, match=r"export schema 4\.0\.1; this lostflops reads schema 3\.x"):
        made(SMALL, schema="4.0.1")


def test_nothing_is_written_beside_the_export(tmp_path: Path) -> None:
    place = tmp_path / "read only"
    place.mkdir()
    export = sqlite(place / "rank #1? 100%41.sqlite", SMALL)
    before = export.read_bytes()
    place.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert len(nsys.read(export, tmp_path / "out")) == 1
        assert [f.name for f in place.iterdir()] == [export.name]
    finally:
        place.chmod(stat.S_IRWXU)
    assert export.read_bytes() == before


# what is not an export


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", NotATrace, "it is empty"),
        (b"hello" * 1000, NotATrace, "not a SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 5000, NotATrace, "damaged|not a SQLite database"),
    ],
)
def test_a_file_that_is_no_database_is_refused(
    content: bytes, error: type[LostflopsError], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        nsys.read(path, tmp_path / "out")


def test_a_database_that_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    database.close()
    with pytest.raises(NotATrace, match="none of its tables is an Nsight Systems table"):
        nsys.read(path, tmp_path / "out")
    empty = tmp_path / "empty.sqlite"
    with sqlite3.connect(empty) as database:
        database.execute("CREATE TABLE t (a)")
        database.execute("DROP TABLE t")
    database.close()
    with pytest.raises(NotATrace, match="it has no tables"):
        nsys.read(empty, tmp_path / "out")


def test_a_truncated_export_says_where_it_ends(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "cut.sqlite", {KERNEL: [kernel(i, i + 1) for i in range(2000)]})
    whole = path.stat().st_size
    os.truncate(path, whole - 4096)
    with pytest.raises(Truncated, match=f"ends after {whole - 4096:,} of {whole:,} bytes"):
        nsys.read(path, tmp_path / "out")


def test_an_export_with_changes_waiting_beside_it_is_refused(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "busy.sqlite", SMALL)
    (tmp_path / "busy.sqlite-wal").write_bytes(b"x")
    with pytest.raises(Truncated, match=r"changes wait in 'busy\.sqlite-wal'"):
        nsys.read(path, tmp_path / "out")


def test_a_damaged_page_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "bad.sqlite", {KERNEL: [kernel(i, i + 1) for i in range(5000)]})
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40_000] = b"\xa5" * 40_000
    path.write_bytes(content)
    with pytest.raises(NotATrace, match="damaged"):
        nsys.read(path, tmp_path / "out")


def test_an_export_without_gpu_work_gives_an_empty_answer(made: Made) -> None:
    (part,) = made(
        {"OSRT_API": [{"start": 5, "end": 9, "globalTid": process(3) | 4, "nameId": 22, "nestingLevel": 0}]}
    )
    assert part.tables == ["os_calls"]
    assert part.facts["device"] is None
    assert part.absent["kernels"] == "this export holds no GPU kernels of this process"
    # Not recorded is not idle: without steps there is no time to account for.
    assert part.absent["steps"] == "this export holds no GPU work to account for"
    (nothing,) = made({})
    assert (nothing.tables, nothing.start, nothing.end) == ([], 0, 0)


def test_a_rank_without_kernels_that_used_nccl_is_found_by_its_ranges(made: Made) -> None:
    parts = made(
        {"NVTX_EVENTS": [push(5, 9, "ncclAllReduce", domainId=1), push(6, 7, "x", globalTid=process(5) | 5)]}
    )
    assert [p.tables for p in parts] == [["ranges"]] * 2
    assert [p.facts["backend"] for p in parts] == [None, "nccl"]


def test_a_rank_whose_gpu_work_was_lost_still_counts_when_it_called_nccl(made: Made) -> None:
    lost, silent = process(8) | 8, process(9) | 9
    parts = made(
        {
            KERNEL: [kernel(100, 105)],
            "NVTX_EVENTS": [
                push(5, 9, "ncclAllReduce", domainId=1, globalTid=lost),
                push(5, 9, "parse arguments", globalTid=silent),
            ],
        }
    )
    assert sorted(("kernels" in p.tables, p.facts["backend"]) for p in parts) == [
        (False, "nccl"),
        (True, None),
    ]


# identity


def test_ids_collide_across_processes_and_contexts(made: Made) -> None:
    tables = {
        KERNEL: [
            kernel(100, 110, correlationId=1, deviceId=1),
            kernel(110, 130, correlationId=2, deviceId=1, contextId=2),
            kernel(200, 250, correlationId=1, globalPid=process(9)),
        ],
        RUNTIME: [
            call(90, 91, correlationId=1),
            call(92, 94, correlationId=2),
            call(150, 153, correlationId=1, globalTid=process(9) | 3),
        ],
        "NVTX_EVENTS": [
            push(1, 1, "NCCL", eventType=75, domainId=1),
            push(1, 1, "solver", eventType=75, domainId=1, globalTid=process(9) | 3),
            push(80, 95, "ncclAllReduce", domainId=1),
            push(80, 95, "sweep", domainId=1, globalTid=process(9) | 3),
        ],
        "PROCESSES": [{"globalPid": process(p), "pid": p, "name": "python"} for p in (1, 2, 7, 9)],
    }
    first, second = made(tables)
    assert first.facts["device"] == 0 and rows(first, "kernels", "start", "launch_start") == [(200, 150)]
    assert rows(second, "kernels", "start", "launch_start") == [(100, 90), (110, 92)]
    # Two streams, though both are called 7.
    assert table(second, "kernels")["stream"].n_unique() == 2
    assert rows(first, "ranges", "domain", "name") == [("solver", "sweep")]
    assert rows(second, "ranges", "domain", "name") == [("NCCL", "ncclAllReduce")]


def test_a_process_that_keeps_two_devices_busy_becomes_two_ranks(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 150), kernel(100, 170, deviceId=1), kernel(180, 181, deviceId=2)],
        RUNTIME: [call(90, 91)],
    }
    first, second = made(tables)
    assert rows(first, "kernels", "start", "end") == [(100, 150)]
    # Device 2 is only touched: its millisecond is counted with the busiest device.
    assert rows(second, "kernels", "end", "device") == [(170, 1), (181, 2)]
    assert (first.num_events > 0, second.num_events) == (True, 0)
    assert notes(first)["devices with little work"] == 1
    assert "launches" in first.tables and "launches" in second.tables
    assert {first.rank_source, second.rank_source} == {ONE_PER_DEVICE}


def test_calls_that_launch_on_one_device_are_not_the_others(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 150, correlationId=1), kernel(100, 170, deviceId=1, correlationId=2)],
        RUNTIME: [
            call(90, 91, correlationId=1),
            call(92, 93, correlationId=2),
            call(94, 95, correlationId=3),
        ],
    }
    first, second = made(tables)
    assert rows(first, "launches", "start") == [(90,), (94,)]
    assert rows(second, "launches", "start") == [(92,), (94,)]


def test_ranks_follow_the_machines_devices_where_every_process_sees_its_own_as_device_0(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 150), kernel(100, 170, globalPid=process(8))],
        "TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": 3, "cudaId": 0, "pid": 7, "numMultiprocessors": 132},
            {"gpuId": 2, "cudaId": 0, "pid": 8, "numMultiprocessors": 114},
        ],
        "TARGET_INFO_GPU": [
            {"id": 2, "name": "NVIDIA A", "totalMemory": 5, "smCount": 114},
            {"id": 3, "name": "NVIDIA B", "totalMemory": 6, "smCount": 132},
        ],
    }
    parts = made(tables)
    assert [(p.facts["gpu"], p.facts["num_sms"], p.facts["memory_bytes"]) for p in parts] == [
        ("NVIDIA A", 114, 5), ("NVIDIA B", 132, 6),
    ]  # fmt: skip
    assert [p.end for p in parts] == [170, 150]


def test_rows_that_name_no_process_belong_to_the_only_one(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 150, correlationId=1, globalPid=None)],
        RUNTIME: [call(90, 91, correlationId=1)],
    }
    (part,) = made(tables)
    assert rows(part, "kernels", "start", "launch_start") == [(100, 90)]
    (without_host,) = made({KERNEL: tables[KERNEL]})
    assert rows(without_host, "kernels", "start", "launch_start") == [(100, None)]


def test_an_operator_that_names_no_thread_is_read(made: Made) -> None:
    (part,) = made({"NVTX_EVENTS": [push(80, 130, "aten::mm", globalTid=None)]})
    assert rows(part, "operators", "start", "end", "thread", "phase") == [(80, 130, None, None)]


@pytest.mark.parametrize("pid", ["NULL", "'none'", "x'00ff'"])
def test_gpu_work_that_names_no_process_is_missed_aloud(pid: str, tmp_path: Path) -> None:
    path = sqlite(
        tmp_path / "x.sqlite",
        {
            KERNEL: [kernel(100, 150), kernel(200, 270, globalPid=process(8))],
            MEMCPY: [copy(100, 103), copy(200, 205, globalPid=process(8))],
        },
    )
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE untyped AS SELECT * FROM {KERNEL}")
        database.execute(f"DROP TABLE {KERNEL}")
        database.execute(f"ALTER TABLE untyped RENAME TO {KERNEL}")
        database.execute(f"UPDATE {KERNEL} SET globalPid = {pid}")
    database.close()
    parts = nsys.read(path, tmp_path / "out")
    assert [part.tables for part in parts] == [["copies"]] * 2
    assert notes(parts[0])["GPU work that names no process"] == 2
    # The copies alone would make an account of a rank that computed nothing.
    assert {p.absent[t] for p in parts for t in ("kernels", "steps")} == {
        "much GPU work in this export names no process"
    }


def test_processes_that_called_nccl_are_no_ranks_beside_work_that_names_no_process(made: Made) -> None:
    talk = [push(80, 95, "ncclAllReduce", globalTid=process(p) | 3) for p in (7, 8)]
    domain = [push(1, 1, "NCCL", eventType=75, domainId=1, globalTid=process(p) | 3) for p in (7, 8)]
    calls = [call(90, 91, globalTid=process(p) | 3) for p in (7, 8)]
    work = [kernel(100, 150, globalPid=None), kernel(100, 150, globalPid=None, deviceId=1)]
    parts = made(
        {KERNEL: work, RUNTIME: calls, "NVTX_EVENTS": [*domain, *({**t, "domainId": 1} for t in talk)]}
    )
    assert [table(part, "kernels").height for part in parts] == [1, 1]


def test_a_few_rows_that_name_no_process_cost_no_account(made: Made) -> None:
    mine = [kernel(10 * i, 10 * i + 5) for i in range(1, 15)]
    others = [kernel(10 * i, 10 * i + 5, globalPid=process(8)) for i in range(1, 15)]
    parts = made({KERNEL: [*mine, *others, kernel(200, 205, globalPid=None)]})
    assert [table(part, "kernels").height for part in parts] == [14, 14]
    assert all("steps" in part.tables for part in parts)
    assert notes(parts[0])["GPU work that names no process"] == 1


def test_rows_whose_process_is_a_text_belong_to_the_only_one(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 5)], MEMCPY: [copy(7, 9)]})
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE {KERNEL} SET globalPid = 'seven'")
    database.close()
    (part,) = nsys.read(path, tmp_path / "out")
    assert rows(part, "kernels", "start", "end") == [(1, 5)]


def test_a_view_of_somebody_elses_is_passed_over(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "x.sqlite", {KERNEL: [kernel(100, 150)], MEMCPY: [copy(100, 103)]})
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE gone (a)")
        database.execute('CREATE VIEW "of a user\'s" AS SELECT a FROM gone')
        database.execute("DROP TABLE gone")
    database.close()
    (part,) = nsys.read(path, tmp_path / "out")
    assert rows(part, "kernels", "start", "end") == [(100, 150)]


def test_a_table_file_of_no_bytes_is_refused(tmp_path: Path) -> None:
    export = folder(tmp_path / "x_pqtdir", SMALL)
    (export / f"{KERNEL}.parquet").write_bytes(b"")
    with pytest.raises(NotATrace, match=rf"its table '{KERNEL}\.parquet' is empty"):
        nsys.read(export, tmp_path / "out")


@pytest.mark.parametrize("arrow", [None, "file", "stream"])
def test_files_that_are_no_tables_of_the_export_refuse_nothing(arrow: str | None, tmp_path: Path) -> None:
    export = folder(tmp_path / "x_dir", SMALL, arrow=arrow)
    suffix = ".parquet" if arrow is None else ".arrow"
    for name in (f"._{KERNEL}", "foo", "EMPTY", ""):
        (export / f"{name}{suffix}").write_bytes(b"" if name == "EMPTY" else b"junk")
    (part,) = nsys.read(export, tmp_path / "out")
    assert table(part, "kernels").height == len(SMALL[KERNEL])


def test_many_reports_become_one_job_on_one_clock(tmp_path: Path) -> None:
    exports = [
        sqlite(
            tmp_path / f"node{rank}.sqlite",
            {
                KERNEL: [kernel(100 + rank, 150 + rank)],
                "MPI_RANKS": [{"globalTid": process(7) | 7, "rank": rank}],
                "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18 + 1000 * rank}],
                "META_DATA_CAPTURE": [{"name": "PROFILING_SESSION_UUID", "value": f"0000-{rank}"}],
            },
        )
        for rank in (1, 0)
    ]
    run = job.open(exports, output=tmp_path / "run")
    kernels = run.table("kernels")
    assert kernels is not None
    assert kernels.select("rank", "start", "end").sort("rank").collect().rows() == [
        (0, 0, 50),
        (1, 1001, 1051),
    ]


def test_two_exports_of_one_session_are_refused(tmp_path: Path) -> None:
    session = {"META_DATA_CAPTURE": [{"name": "PROFILING_SESSION_UUID", "value": "0000-ABC"}]}
    exports = [sqlite(tmp_path / f"{n}.sqlite", {**SMALL, **session}) for n in ("one", "two")]
    with pytest.raises(LostflopsError, match="exports of one recording session"):
        job.open(exports, output=tmp_path / "run")


def test_mpi_ranks_number_the_processes(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 150), kernel(100, 170, globalPid=process(8))],
        "MPI_RANKS": [{"globalTid": process(7) | 7, "rank": 5}, {"globalTid": process(8) | 8, "rank": 4}],
    }
    assert [(p.rank, p.rank_source) for p in made(tables)] == [(5, "MPI_RANKS"), (4, "MPI_RANKS")]
    tables["MPI_RANKS"][0]["rank"] = 4
    assert [(p.rank, p.rank_source) for p in made(tables)] == [(None, "device order")] * 2


# rows that need care


def test_two_exports_of_one_run_with_different_shifts_agree(made: Made) -> None:
    session = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_000_000}]}
    moved = {
        KERNEL: [{**r, "start": r["start"] + 40, "end": r["end"] + 40} for r in SMALL[KERNEL]],
        MEMCPY: [{**r, "start": r["start"] + 40, "end": r["end"] + 40} for r in SMALL[MEMCPY]],
        RUNTIME: [{**r, "start": r["start"] + 40, "end": r["end"] + 40} for r in SMALL[RUNTIME]],
    }
    absolute = []
    for tables, told in (
        ({**SMALL, **session}, {}),
        ({**moved, **session}, {"EXPORT_PARAM_TIME_SHIFT": "40", "EXPORT_CONFIG_TIME_SHIFT": "40"}),
        ({**moved, **session}, {"EXPORT_CONFIG_TIME_SHIFT": "40", "EXPORT_PARAM_TIME_SHIFT": "0"}),
    ):
        (part,) = made(tables, **told)
        assert part.epoch_ns is not None
        frames = [
            table(part, t).with_columns(pl.col(c) + part.epoch_ns for c in TABLES[t].times)
            for t in part.tables
        ]
        absolute.append([part.start + part.epoch_ns, part.end + part.epoch_ns, part.tables, frames])
    for other in absolute[1:]:
        assert other[:3] == absolute[0][:3]
        assert all(a.equals(b) for a, b in zip(other[3], absolute[0][3], strict=True))
    (normalised,) = made({**SMALL, **session}, EXPORT_PARAM_TIME_NORMALIZE="true")
    assert normalised.epoch_ns == 0
    (unclear,) = made({**SMALL, **session}, EXPORT_PARAM_TIME_SHIFT="1", EXPORT_CONFIG_TIME_SHIFT="2")
    assert unclear.epoch_ns is None and "two time shifts" in notes(unclear)


def test_times_before_the_session_and_backwards_and_beyond_measure(made: Made) -> None:
    (part,) = made(
        {
            KERNEL: [
                kernel(-50, -20),
                kernel(10, 10),
                kernel(30, 25),
                kernel(None, 40),
                kernel(41, 2**63 - 1),
                kernel(-(2**63), 2**63 - 1),
            ]
        }
    )
    assert rows(part, "kernels", "start", "end") == [(-50, -20), (10, 10), (30, 30)]
    assert (part.start, part.end) == (-50, 30)
    assert notes(part)["kernels without usable times"] == 3
    assert notes(part)["kernels with a negative duration"] == 1


LATER = 155 * 10**9  # a recording that begins some minutes after its session, as real ones do


@pytest.mark.parametrize("form", ["sqlite", "folder"])
@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (0, 0, "kernels without usable times"),
        (0, LATER + 30, "kernels without a start"),
        (LATER + 20, LATER + 315_360_000 * 10**9, "kernels longer than ten days"),
        (-(2**62), 2**62, "kernels without usable times"),
        (-(2**62), 2**62 - 1, "kernels without usable times"),
        (-(2**61), 2**61, "kernels longer than ten days"),
        (2**60, 2**60 + 5, "rows more than ten days from the others"),
    ],
)
def test_one_row_with_a_broken_time_is_left_out_aloud(
    form: str, start: int, end: int, said: str, tmp_path: Path
) -> None:
    tables = {
        KERNEL: [kernel(LATER + 10 * i, LATER + 10 * i + 7, correlationId=i) for i in range(9)],
        MEMCPY: [copy(LATER + 100, LATER + 140)],
        "NVTX_EVENTS": [push(LATER - 5, LATER + 150, "all"), push(LATER + 4, None, "left open")],
    }
    tables[KERNEL][2] |= {"start": start, "end": end}
    export = (sqlite if form == "sqlite" else folder)(tmp_path / f"x.{form}", tables)
    (part,) = nsys.read(export, tmp_path / "parts")
    assert (part.start, part.end) == (LATER - 5, LATER + 150)
    assert table(part, "kernels").height == 8
    assert rows(part, "ranges", "end") == [(LATER + 150,)] * 2
    warned = {(q.name, q.count) for q in part.quality if q.level == "warning"}
    lost = ("kernels without their launch", 8)
    assert warned == {(said, 1), ("ranges left open", 1), lost}


def test_a_broken_range_call_or_metric_does_not_stretch_the_recording(made: Made) -> None:
    (part,) = made(
        {
            KERNEL: [kernel(LATER, LATER + 7), kernel(LATER + 10, LATER + 17)],
            RUNTIME: [call(2**60, 2**60 + 1), call(LATER - 2, LATER - 1), call(LATER, LATER + 1)],
            "NVTX_EVENTS": [
                push(LATER, LATER + 4, "x"),
                push(LATER, 2**60, "y"),
                push(-(2**60), 5 - 2**60, "z"),
            ],
            "GPU_METRICS": [
                {"timestamp": t, "typeId": 0, "metricId": 1, "value": 50}
                for t in (LATER, LATER + 5, LATER + 10, 2**60)
            ],
        }
    )
    assert (part.start, part.end) == (LATER - 2, LATER + 17)
    assert rows(part, "ranges", "name") == [("x",)]
    assert table(part, "counters")["end"].max() == LATER + 10
    assert notes(part)["rows more than ten days from the others"] == 2
    assert notes(part)["NVTX ranges longer than ten days"] == 1
    assert notes(part)["GPU metrics more than ten days from the others"] == 1


def test_an_export_whose_times_were_shifted_may_begin_at_zero(made: Made) -> None:
    (part,) = made({KERNEL: [kernel(0, 40), kernel(50, 70), kernel(90, 120)], MEMCPY: [copy(5, 9)]})
    assert (part.start, part.end, table(part, "kernels").height) == (0, 120, 3)


def test_a_broken_time_does_not_decide_which_devices_count(made: Made) -> None:
    parts = made(
        {KERNEL: [kernel(LATER, LATER + 7), kernel(0, LATER), kernel(LATER, LATER + 9, deviceId=1)]},
    )
    assert [rows(part, "kernels", "start", "end") for part in parts] == [
        [(LATER, LATER + 7)],
        [(LATER, LATER + 9)],
    ]


def test_nulls_first_and_values_after_a_batch_keep_their_types(made: Made) -> None:
    many = 70_000  # more than one batch of the driver
    (part,) = made(
        {
            KERNEL: [kernel(i, i + 1) for i in range(many)] + [kernel(many, many + 2, graphNodeId=3)],
            "NVTX_EVENTS": [push(i, i + 1, None, textId=30) for i in range(many)]
            + [push(many, many + 1, "late")],
            "StringIds": [{"id": 30, "value": "registered"}],
        }
    )
    assert table(part, "kernels")["graph_node"].drop_nulls().to_list() == [3]
    names = table(part, "ranges")["name"].cast(pl.String)
    assert (names.n_unique(), names[-1]) == (2, "late")


def test_texts_where_numbers_belong_become_null(made: Made) -> None:
    (part,) = made({KERNEL: [kernel(1, 3, registersPerThread="many"), kernel(4, 9, streamId=1.5)]})
    assert rows(part, "kernels", "start", "registers", "stream") == [(1, None, 7), (4, 40, None)]


def test_numbers_too_large_for_their_column_become_null(made: Made) -> None:
    (part,) = made(
        {
            KERNEL: [kernel(1, 3, registersPerThread=2**40, gridX=2**62, correlationId=1)],
            RUNTIME: [call(0, 1, returnValue=2**40, correlationId=1)],
        }
    )
    assert rows(part, "kernels", "registers", "grid", "block") == [(None, None, 128)]
    assert rows(part, "launches", "return_code") == [(None,)]


def test_counts_below_0_become_null(made: Made) -> None:
    odd = [kernel(1, 3, registersPerThread=-8), kernel(4, 9, staticSharedMemory=-100, dynamicSharedMemory=2)]
    (part,) = made({KERNEL: odd})
    assert rows(part, "kernels", "registers", "shared_memory") == [(None, 124), (40, None)]


def test_names_that_are_no_utf8_or_full_of_markup_survive(made: Made, tmp_path: Path) -> None:
    export = sqlite(
        tmp_path / "odd.sqlite", {**SMALL, "NVTX_EVENTS": [push(80, 130, "a'b\n<script>\"\x00tail")]}
    )
    with sqlite3.connect(export) as database:
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId, text) "
            f"VALUES (81, 99, 59, {process(7) | 8}, 0, CAST(x'66ff6f' AS TEXT))"
        )
    database.close()
    (part,) = nsys.read(export, tmp_path / "out")
    assert [n for (n,) in rows(part, "ranges", "name")] == ["a'b\n<script>\"\x00tail", "f\ufffdo"]


def test_kernel_names_fall_back_and_missing_ones_are_counted(made: Made) -> None:
    strings = [{"id": 40, "value": "short"}, {"id": 41, "value": "_Zmangled"}]
    (part,) = made(
        {
            "StringIds": strings,
            KERNEL: [
                kernel(1, 2, demangledName=999, shortName=40),
                kernel(3, 4, demangledName=None, mangledName=41),
                kernel(5, 6, demangledName=999),
            ],
        }
    )
    assert [n for (n,) in rows(part, "kernels", "name")] == [
        "short",
        "_Zmangled",
        "kernel (its name is not in this export)",
    ]
    assert notes(part)["kernels without a name"] == 1


def test_a_launch_that_begins_after_its_kernel_is_counted_against_the_clock(made: Made) -> None:
    (part,) = made(
        {
            KERNEL: [kernel(100, 105, correlationId=1)],
            RUNTIME: [call(102, 103, correlationId=1), call(104, 106, correlationId=1)],
        }
    )
    assert notes(part)["kernels that start before their launch"] == 1
    assert any("by up to 2 ns" in q.text for q in part.quality)
    assert notes(part)["launches that share a correlation id"] == 1


def test_the_correlation_id_0_is_none(made: Made) -> None:
    """Calls that launch nothing share it, and none of them launched a page that moves by itself."""
    (part,) = made(
        {
            KERNEL: [kernel(100, 105, correlationId=3)],
            MEMCPY: [copy(110, 120, copyKind=11, correlationId=0)],
            RUNTIME: [call(90, 95, correlationId=3), *(call(n, n + 1, correlationId=0) for n in (96, 98))],
        }
    )
    assert rows(part, "copies", "correlation", "launch_start") == [(None, None)]
    assert "launches that share a correlation id" not in notes(part)


@pytest.mark.parametrize(
    ("given", "name", "direction", "host_memory"),
    [
        ({"copyKind": 1, "srcKind": 0}, "Memcpy HtoD (Pageable -> Device)", "host to device", "pageable"),
        (
            {"copyKind": 2, "srcKind": 2, "dstKind": 1},
            "Memcpy DtoH (Device -> Pinned)", "device to host", "pinned",
        ),
        ({"copyKind": 8, "srcKind": 2}, "Memcpy DtoD (Device -> Device)", "device to device", "none"),
        (
            {"copyKind": 8, "srcKind": 2, "srcDeviceId": 0, "dstDeviceId": 1},
            "Memcpy PtoP (Device -> Device)", "peer to peer", "none",
        ),
        ({"copyKind": 10, "srcKind": 2}, "Memcpy PtoP (Device -> Device)", "peer to peer", "none"),
        ({"copyKind": 3, "srcKind": None}, "Memcpy HtoA (Unknown -> Device)", "host to device", "unknown"),
        ({"copyKind": 11}, "Memcpy HtoD, managed", "migration to device", "managed"),
        ({"copyKind": 13}, "Memcpy DtoD, managed", "migration between devices", "managed"),
        ({"copyKind": 99}, "Memcpy of unknown kind (Pinned -> Device)", "unknown", "unknown"),
    ],
)  # fmt: skip
def test_copies_say_from_where_to_where(
    given: dict[str, Any], name: str, direction: str, host_memory: str, made: Made
) -> None:
    (part,) = made({MEMCPY: [copy(1, 4, **given)]})
    assert rows(part, "copies", "name", "direction", "host_memory", "bytes") == [
        (name, direction, host_memory, 64)
    ]


def test_the_exports_own_enumerations_win_over_the_documented_ones(made: Made) -> None:
    own = [{"id": 1, "name": "CUDA_MEMCPY_KIND_DTOH", "label": "Device-to-Host"}]
    (part,) = made({MEMCPY: [copy(1, 4)], "ENUM_CUDA_MEMCPY_OPER": own})
    assert rows(part, "copies", "direction") == [("device to host",)]


def test_a_row_may_stand_for_many_copies(made: Made) -> None:
    (part,) = made(
        {MEMCPY: [copy(1, 4, copyCount=1000), copy(5, 6)], MEMSET: [copy(7, 9, memKind=2, bytes=17)]}
    )
    assert notes(part)["rows that stand for several copies"] == 1
    assert rows(part, "copies", "name", "direction", "bytes")[2] == ("Memset (Device)", "memset", 17)


def test_a_graph_traced_whole_is_busy_and_unclassified(made: Made) -> None:
    tables = {
        KERNEL: [kernel(100, 110, correlationId=1)],
        GRAPH: [copy(120, 190, correlationId=2, graphId=4), copy(100, 110, correlationId=1, graphId=4)],
        RUNTIME: [call(90, 91, correlationId=1), call(92, 95, correlationId=2)],
    }
    (part,) = made(tables)
    assert rows(part, "kernels", "start", "end", "name", "family", "launch_start") == [
        (100, 110, STRINGS[10], "gemm", 90),
        (120, 190, "CUDA graph (contents not recorded)", "unclassified", 92),
    ]
    assert notes(part)["CUDA graphs of unknown content"] == 1
    assert any("--cuda-graph-trace=node" in q.text for q in part.quality)


# NVTX


def test_messages_stand_in_text_or_in_the_string_table(made: Made) -> None:
    (part,) = made(
        {
            **SMALL,
            "StringIds": [{"id": 50, "value": "registered"}],
            "NVTX_EVENTS": [
                push(80, 90, "spoken"),
                push(91, 95, None, textId=50),
                push(96, 99),
                push(70, 75, "frame", eventType=60, color=255),
                push(60, None, "here", eventType=34),
                push(65, None, "still open"),
            ],
        }
    )
    found = sorted(rows(part, "ranges", "start", "end", "name", "domain", "nested", "complete", "color"))
    assert found == [
        (60, 60, "here", "default", False, True, None),
        (65, 124, "still open", "default", True, False, None),
        (70, 75, "frame", "default", False, True, 255),
        (80, 90, "spoken", "default", True, True, None),
        (91, 95, "registered", "default", True, True, None),
        (96, 99, "(unnamed range)", "default", True, True, None),
    ]
    assert notes(part)["ranges left open"] == 1


def test_pytorch_ranges_become_operators_with_their_phase(made: Made) -> None:
    backward = process(7) | 9
    (part,) = made(
        {
            "StringIds": [{"id": 60, "value": "pt_autograd_0"}],
            "ThreadNames": [{"nameId": 60, "globalTid": backward}],
            KERNEL: [
                kernel(100, 110, correlationId=1),
                kernel(120, 140, correlationId=2),
                kernel(150, 155, correlationId=3),
            ],
            RUNTIME: [
                call(13, 14, correlationId=1),
                call(33, 34, correlationId=2, globalTid=backward),
                call(53, 54, correlationId=3),
            ],
            "NVTX_EVENTS": [
                push(9, 60, "train", domainId=0),
                push(
                    10,
                    20,
                    "aten::linear, seq = 4, op_id = 77, sizes = [[2, 3], [5, 3]], input_op_ids = [(1,0)]",
                ),
                push(12, 15, "aten::addmm, op_id = 78"),
                push(
                    30,
                    40,
                    "autograd::engine::evaluate_function: AddmmBackward0, op_id = 79",
                    globalTid=backward,
                ),
                push(31, 39, "AddmmBackward0, seq = 4, op_id = 80", globalTid=backward),
                push(32, 38, "aten::mm, op_id = 81", globalTid=backward),
                push(50, 58, "Optimizer.step#AdamW.step, op_id = 82"),
                push(51, 57, "aten::_fused_adamw_, op_id = 83"),
            ],
        }
    )
    assert rows(part, "operators", "start", "name", "sequence", "shapes", "phase") == [
        (10, "aten::linear", 4, "[[2, 3], [5, 3]]", "forward"),
        (12, "aten::addmm", None, None, "forward"),
        (30, "autograd::engine::evaluate_function: AddmmBackward0", None, None, "backward"),
        (31, "AddmmBackward0", 4, None, "backward"),
        (32, "aten::mm", None, None, "backward"),
        (51, "aten::_fused_adamw_", None, None, "optimizer"),
    ]
    assert sorted(rows(part, "ranges", "name", "domain")) == [
        ("Optimizer.step#AdamW.step", "user"), ("train", "default"),
    ]  # fmt: skip
    assert rows(part, "kernels", "operator", "phase", "thread") == [
        ("aten::addmm", "forward", 8), ("aten::mm", "backward", 9), ("aten::_fused_adamw_", "optimizer", 8),
    ]  # fmt: skip


def test_ranges_that_were_filtered_out_are_missed_aloud(made: Made) -> None:
    (part,) = made(
        {
            **SMALL,
            "NVTX_EVENTS": [
                push(1, None, "CCCL", eventType=75, domainId=2),
                push(2, None, "io", eventType=33),
            ],
        }
    )
    assert "ranges" not in part.tables
    assert notes(part)["NVTX without ranges"] == 2


# collectives


def nccl(start: int, end: int, name: str, payload: str | None = None) -> dict[str, Any]:
    return push(start, end, name, domainId=1, jsonText=payload)


NCCL_DOMAIN = push(0, 0, "NCCL", eventType=75, domainId=1)


def test_legacy_payloads_give_kind_bytes_group_and_rank(made: Made) -> None:
    communicator = '"NCCL communicator ID": "1234567890123456789"'
    (part,) = made(
        {
            KERNEL: [
                kernel(100, 130, correlationId=1, demangledName=11, streamId=9),
                kernel(140, 150, correlationId=2, demangledName=12, streamId=9),
                kernel(160, 190, correlationId=3, demangledName=11, streamId=9),
            ],
            RUNTIME: [
                call(13, 14, correlationId=1),
                call(41, 42, correlationId=2),
                call(51, 52, correlationId=3),
            ],
            "NVTX_EVENTS": [
                NCCL_DOMAIN,
                nccl(
                    1,
                    9,
                    "ncclCommInitRank",
                    f'{{{communicator}, "No. of ranks": 4, "Rank": 2, "CUDA device": 0}}',
                ),
                nccl(
                    10,
                    20,
                    "ncclAllReduce",
                    f'{{{communicator}, "Message size [bytes]": 1024, "Reduction operation": "Sum"}}',
                ),
                nccl(30, 31, "ncclGroupStart"),
                nccl(
                    32, 33, "ncclSend", f'{{{communicator}, "Message size [bytes]": "2,048", "Peer rank": 1}}'
                ),
                nccl(34, 35, "ncclRecv", f'{{{communicator}, "Message size [bytes]": 512, "Peer rank": 3}}'),
                nccl(40, 43, "ncclGroupEnd"),
                nccl(50, 53, "ncclReduceScatter", f'{{{communicator}, "Message size [bytes]": 64}}'),
            ],
        }
    )
    assert (part.rank, part.rank_source, part.world_size) == (2, "NCCL communicator", 4)
    assert part.facts["groups"] == [
        {"name": "NCCL communicator 1234567890123456789", "description": "4 ranks", "ranks": []}
    ]
    assert rows(
        part, "collectives", "start", "kind", "group_size", "bytes_in", "bytes_out", "evidence", "library"
    ) == [
        (100, "all-reduce", 4, 1024, 1024, 2, "NCCL"),
        (140, "send-receive", 4, 2048, 512, 2, "NCCL"),
        (160, "reduce-scatter", 4, 256, 64, 2, "NCCL"),
    ]
    assert set(table(part, "collectives")["group"].cast(pl.String)) == {
        "NCCL communicator 1234567890123456789"
    }
    assert set(table(part, "kernels")["family"]) == {"communication"}


def test_operation_ids_of_advanced_tracing_are_the_best_evidence(made: Made) -> None:
    said = '{"Communicator hash": "0xdeadbeef", "Count": 100, "Datatype": "ncclBfloat16", "operationId": 41}'
    (part,) = made(
        {
            KERNEL: [kernel(100, 130, correlationId=1, demangledName=11)],
            RUNTIME: [call(13, 14, correlationId=1)],
            "NVTX_EVENTS": [NCCL_DOMAIN, nccl(10, 20, "AllReduce", said)],
        }
    )
    assert rows(part, "collectives", "kind", "bytes_in", "dtype", "sequence", "evidence", "group") == [
        ("all-reduce", 200, "bfloat16", 41, 1, "NCCL communicator 0xdeadbeef")
    ]


def test_without_payloads_the_kind_comes_from_operator_call_or_kernel(made: Made) -> None:
    (part,) = made(
        {
            KERNEL: [
                kernel(100, 101, correlationId=1, demangledName=12),
                kernel(102, 104, correlationId=2, demangledName=12),
                kernel(105, 108, correlationId=3, demangledName=11),
                kernel(109, 114, correlationId=4, demangledName=12),
                kernel(115, 121, correlationId=5, demangledName=10),
            ],
            RUNTIME: [call(10 * i, 10 * i + 1, correlationId=i) for i in range(1, 6)],
            "NVTX_EVENTS": [
                push(8, 12, "nccl:all_to_all, op_id = 5"),
                nccl(18, 19, "ncclSend"),
                nccl(19, 23, "ncclGroupEnd"),
                push(48, 55, "record_param_comms, op_id = 6"),
            ],
        }
    )
    assert rows(part, "collectives", "start", "kind", "evidence", "bytes_in") == [
        (100, "all-to-all", 3, None),
        (102, "unknown", 4, None),
        (105, "all-reduce", 4, None),
        (109, "unknown", 4, None),
    ]
    # The group's start lies before the window: what it began with is not known, so the one send says nothing.
    assert rows(part, "kernels", "family")[4] == ("gemm",)
    assert notes(part)["collectives without bytes"] == 4


def test_a_stream_that_serves_nothing_but_communication_tells_what_a_name_does_not(made: Made) -> None:
    strings = [{"id": 70, "value": "zqxj_vlw"}]
    (part,) = made(
        {
            "StringIds": strings,
            KERNEL: [
                kernel(100, 101, demangledName=11, streamId=20),
                kernel(102, 104, demangledName=70, streamId=20),
                kernel(105, 108, demangledName=11, streamId=30),
                kernel(109, 113, demangledName=70, streamId=30),
                kernel(114, 119, demangledName=10, streamId=30),
            ],
        }
    )
    assert [f for (f,) in rows(part, "kernels", "family")] == [
        "communication", "communication", "communication", "unclassified", "gemm",
    ]  # fmt: skip
    assert rows(part, "collectives", "start", "kind", "evidence")[1] == (102, "unknown", 5)


def test_copies_between_devices_inside_a_collective_are_communication(made: Made) -> None:
    peer = {"copyKind": 10, "srcKind": 2, "bytes": 4096}
    (part,) = made(
        {
            KERNEL: [kernel(90, 95)],
            MEMCPY: [copy(100, 150, correlationId=1, **peer), copy(160, 170, correlationId=2, **peer)],
            RUNTIME: [call(10, 11, correlationId=1, nameId=21), call(30, 31, correlationId=2, nameId=21)],
            "NVTX_EVENTS": [push(8, 12, "nccl:_all_gather_base, op_id = 5")],
        }
    )
    assert rows(part, "copies", "start", "communication") == [(100, True), (160, False)]
    assert rows(part, "collectives", "start", "end", "kind", "library", "bytes_in", "evidence") == [
        (100, 150, "all-gather", "copy engine", 4096, 3)
    ]


# what else was sampled


def test_host_tables_metrics_memory_and_faults(made: Made) -> None:
    memory = {"globalPid": process(7), "deviceId": 0, "address": 4096, "memKind": 2}
    sample = {"typeId": 256, "metricId": 3}
    (part,) = made(
        {
            **SMALL,
            "OSRT_API": [
                {"start": 5, "end": 9, "globalTid": process(7) | 8, "nameId": 22, "nestingLevel": 0},
                {"start": 6, "end": 8, "globalTid": process(7) | 8, "nameId": 22, "nestingLevel": 1},
                {"start": 6, "end": 8, "globalTid": process(1) | 1, "nameId": 22, "nestingLevel": 0},
            ],
            "CUPTI_ACTIVITY_KIND_OVERHEAD": [
                {"start": 1, "end": 2, "globalTid": process(7) | 8, "overheadType": 7}
            ],
            "CUPTI_ACTIVITY_KIND_JIT": [{"start": 2, "end": 4, "globalTid": process(7) | 8}],
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
                {"start": 97, "end": 98, "globalPid": process(7), "correlationId": 3, "syncType": 3}
            ],
            "TARGET_INFO_GPU_METRICS": [{**sample, "metricName": "SMs Active [Throughput %]"}],
            "GPU_METRICS": [
                {**sample, "timestamp": t, "value": v} for t, v in ((100, 10), (130, 20), (160, 30))
            ],
            "CUDA_GPU_MEMORY_USAGE_EVENTS": [
                {**memory, "start": 10, "bytes": 100, "memoryOperationType": 0},
                {**memory, "start": 20, "bytes": 0, "memoryOperationType": 1},
                {**memory, "start": 30, "bytes": 70, "memoryOperationType": 0},
                {**memory, "start": 35, "bytes": 7, "memoryOperationType": 0, "memKind": 1, "address": 5},
            ],
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS": [{"start": 3, "globalPid": process(7), "address": 9}],
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [
                {
                    "start": 4,
                    "end": 6,
                    "globalPid": process(7),
                    "deviceId": 0,
                    "address": 8,
                    "numberOfPageFaults": 12,
                    "faultAccessType": 2,
                }
            ],
        }
    )
    assert rows(part, "os_calls", "start", "end", "name", "thread") == [
        (5, 9, "cudaStreamSynchronize_v3020", 8)
    ]
    assert sorted(rows(part, "ranges", "domain", "name", "thread")) == [
        ("overhead", "Driver Compiler", 8),
        ("overhead", "Lazy Function Loading", 8),
        ("synchronisation", "Stream Sync", 8),
    ]
    assert rows(part, "counters", "start", "end", "metric", "unit", "value", "device") == [
        (70, 100, "SMs Active", "Throughput %", 10.0, 0),
        (100, 130, "SMs Active", "Throughput %", 20.0, 0),
        (130, 160, "SMs Active", "Throughput %", 30.0, 0),
    ]
    assert rows(part, "allocations", "start", "device", "bytes", "allocated") == [
        (10, 0, 100, 100), (20, 0, -100, 0), (30, 0, 70, 70), (35, None, 7, 7),
    ]  # fmt: skip
    assert rows(part, "page_faults", "start", "end", "device", "faults", "access") == [
        (3, 3, None, 1, None), (4, 6, 0, 12, "write"),
    ]  # fmt: skip


def test_metrics_of_a_gpu_that_may_be_another_ranks_are_left_out(made: Made) -> None:
    sample = {"typeId": 256, "metricId": 3}
    parts = made(
        {
            KERNEL: [kernel(100, 150), kernel(100, 170, globalPid=process(8))],
            "TARGET_INFO_GPU_METRICS": [{**sample, "metricName": "SMs Active"}],
            "GPU_METRICS": [{**sample, "timestamp": t, "value": 1} for t in (100, 130)],
        }
    )
    assert all("counters" not in p.tables and "which rank's GPU" in p.absent["counters"] for p in parts)


def test_only_a_setting_that_says_off_lets_us_say_that_nothing_was_recorded(made: Made) -> None:
    off = {"META_DATA_CAPTURE": [{"name": "COLLECT_GPU_MEMORY_USAGE", "value": "false"}]}
    (part,) = made({**SMALL, **off})
    assert part.absent["allocations"] == "device memory use was not recorded"
    assert part.absent["page_faults"] == "not in this export"
    (cut,) = made(SMALL, EXPORT_PARAM_TIMES_TO_EXPORT="1s-2s")
    assert cut.absent["os_calls"] == "not in this export, which is a part of a recording"


def test_nsyss_own_warnings_are_counted_but_not_repeated(made: Made) -> None:
    said = [
        {"severity": 2, "text": "lost events in /home/me"},
        {"severity": 1, "text": "fine"},
        {"severity": 3, "text": "x"},
    ]
    (part,) = made({**SMALL, "DIAGNOSTIC_EVENT": said})
    assert (notes(part)["nsys warnings"], notes(part)["nsys errors"]) == (1, 1)
    assert "/home" not in str(part.quality)


# privacy

# What may leave an export: texts that recipes show, and the values of a few keys.
MAY_LEAVE = {
    ("NVTX_EVENTS", "text"),
    ("TARGET_INFO_GPU", "name"),
    ("TARGET_INFO_GPU_METRICS", "metricName"),
    ("TARGET_INFO_NETWORK_METRICS", "name"),
    ("TARGET_INFO_NETWORK_METRICS", "unit"),
    ("ENUM_SCHEDULING_THREAD_BLOCK", "name"),
    ("ENUM_OSRT_FILE_ACCESS_EVENT_TYPE", "name"),
}
# Functions of sampled stacks, which recipes show, unlike those of other stacks.
SHOWN_STACKS = "SAMPLING_CALLCHAINS"


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_nothing_that_is_not_on_the_allow_list_leaves_the_export(form: str, tmp_path: Path) -> None:
    canary = "CANARY_s3cr3t"
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in DEFINITIONS:
        types = columns(name, 25)
        row: dict[str, Any] = {c: 1 if t == "INTEGER" else f"{canary}_{name}_{c}" for c, t in types.items()}
        for allowed_table, allowed in MAY_LEAVE:
            if allowed_table == name:
                row[allowed] = "shown"
        row |= {"globalPid": process(7)} if "globalPid" in row else {}
        row |= {"globalTid": process(7) | 8} if "globalTid" in row else {}
        row |= {"end": 5} if "end" in row else {}
        tables[name] = [row]
    # Strings that only the private columns point to; and every setting but the few that are read.
    private = {
        column: 100 + i
        for i, column in enumerate(("filenameId", "contentId", "symbol", "module", "CpuInstruction"))
    }
    tables["StringIds"] = [{"id": i, "value": f"{canary}_{c}"} for c, i in private.items()]
    tables["StringIds"].append({"id": 1, "value": "shown"})
    for name, rows_ in tables.items():
        for row in rows_ if name != SHOWN_STACKS else ():
            row.update({c: i for c, i in private.items() if c in row})
    tables["ThreadNames"][0]["nameId"] = 100
    tables["OSRT_API"][0]["nestingLevel"] = 0
    tables["GPU_METRICS"].append({**tables["GPU_METRICS"][0], "timestamp": 3})
    tables["NVTX_EVENTS"][0] |= {"eventType": 59, "domainId": 0, "textId": None}
    for name in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        secret = (
            "PROCESS_0:ENVIRONMENT_VARIABLE_3",
            "EXPORT_HOST",
            "PROFILING_SESSION_UUID",
            "Hostname",
            "CudaDriverVersion",
        )
        tables[name] = [{"name": key, "value": f"{canary}_{key}"} for key in secret]
    write = sqlite if form == "sqlite" else folder
    export = write(tmp_path / ("x.sqlite" if form == "sqlite" else "x_pqtdir"), tables)
    parts = nsys.read(export, tmp_path / "out")
    assert {"kernels", "copies", "ranges", "os_calls", "counters"} <= {t for p in parts for t in p.tables}
    assert canary.encode() not in msgspec.json.encode(parts)
    run = job.open(export, output=tmp_path / "run")
    assert canary.encode() not in (run.path / "run.json").read_bytes()
    written = [f for place in ("out", "run") for f in (tmp_path / place).rglob("*.parquet")]
    assert written
    for file in written:
        frame = pl.read_parquet(file)
        texts = frame.select(pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String))
        assert not any(canary in str(v) for column in texts for v in column.unique()), file.name
        assert canary.encode() not in file.read_bytes()


# reports

FAKE_NSYS = """#!/bin/sh
if [ "$1" = "--version" ]; then echo "NVIDIA Nsight Systems version 2024.6.1.90-246135264466v0"; exit 0; fi
for word in "$@"; do case "$word" in --output=*) out="${word#--output=}";; esac; done
echo "$@" >> "%(log)s"
%(act)s
"""


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put an nsys on the PATH that does only what it is told; gives the log of its calls."""

    def fake(act: str) -> Path:
        log = tmp_path / "calls"
        tool = tmp_path / "bin" / "nsys"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(FAKE_NSYS % {"log": log, "act": act})
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
        return log

    return fake


def test_a_report_is_exported_by_the_users_own_nsys(tmp_path: Path, fake_nsys: Callable[[str], Path]) -> None:
    ready = sqlite(tmp_path / "ready.sqlite", SMALL)
    log = fake_nsys(f'cp "{ready}" "$out"')
    report = tmp_path / "my run.nsys-rep"
    report.write_bytes(b"opaque")
    (part,) = nsys.read(report, tmp_path / "out")
    assert rows(part, "kernels", "start") == [(100,), (107,)]
    (said,) = log.read_text().splitlines()
    assert said.startswith("export --type=sqlite --include-json=true --force-overwrite=true --output=")
    assert not list((tmp_path / "out").rglob("*.sqlite"))


def test_an_old_nsys_that_does_not_know_an_option_is_asked_without_it(
    tmp_path: Path, fake_nsys: Callable[[str], Path]
) -> None:
    ready = sqlite(tmp_path / "ready.sqlite", SMALL)
    log = fake_nsys(
        'case "$*" in *include-json*) echo "unrecognised option --include-json" >&2; exit 1;; esac\n'
        f'cp "{ready}" "$out"'
    )
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"opaque")
    assert len(nsys.read(report, tmp_path / "out")) == 1
    assert len(log.read_text().splitlines()) == 2


def test_a_report_newer_than_nsys_names_both_versions(
    tmp_path: Path, fake_nsys: Callable[[str], Path]
) -> None:
    fake_nsys('echo "The report was created with version 2026.5.1.3, which is not supported." >&2; exit 1')
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"opaque")
    with pytest.raises(
        ExportFailed, match=r"nsys 2024\.6\.1\.90 could not export.*written by nsys 2026\.5\.1\.3"
    ):
        nsys.read(report, tmp_path / "out")


def test_without_nsys_the_error_says_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("nsys") is None
    report = tmp_path / "my run.nsys-rep"
    report.write_bytes(b"opaque")
    with pytest.raises(NsysNotFound) as caught:
        nsys.read(report, tmp_path / "out")
    expected = "`nsys export --type=sqlite --include-json=true '--output=my run.sqlite' 'my run.nsys-rep'`"
    assert expected in caught.value.hint


def test_what_is_recognised() -> None:
    assert ingest.nsys.recognises(Path("a.sqlite"), b"")
    assert ingest.nsys.recognises(Path("renamed"), b"SQLite format 3\x00more")
    assert ingest.nsys.recognises(Path("a.nsys-rep"), b"whatever")
    assert not ingest.nsys.recognises(Path("a.json"), b"{}")


def test_an_export_whose_gpu_work_has_no_length_is_refused(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "job.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(5, 5), kernel(9, 9)]})
    with pytest.raises(NotATrace, match="none of its 2 rows of GPU work has a duration"):
        nsys.read(path, tmp_path / "out")
