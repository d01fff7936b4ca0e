"""From what a monitor left behind to the table `counters`: values, times, ranks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import kineto_files as kineto
import lostflops
import nsys_exports as nsys
from lostflops.errors import NotATrace, NoTraces
from lostflops.ingest.monitor import reader as monitor
from lostflops.ingest.monitor.files import readings
from lostflops.machine.monitor import log as monitor_log
from lostflops.machine.monitor import segment
from lostflops.machine.monitor.metrics import MetricValue
from lostflops.store.trace import Trace
from monitored import Named, left

POWER, ENERGY = ("gpu_power", 0, None), ("gpu_energy", 0, None)
T = 1_000_000_000
UTC = 1_795_000_000 * T


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def sample(second: float, values: dict[Named, float | None], *, clock: int = UTC) -> tuple[int, int, Any]:
    return int(second * T), clock + int(second * T), values


def rows(folder: Path) -> pl.DataFrame:
    return pl.concat([read.rows for read in readings(folder)])


def counters(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    table = trace.table("counters")
    assert table is not None
    return table.select(*columns).collect().rows()


def facts(trace: Trace) -> dict[str, int]:
    return {fact.name: fact.count for fact in trace.manifest.quality}


def test_totals_become_differences_and_levels_hold_since_the_reading_before(tmp_path: Path) -> None:
    samples = [
        sample(s, {POWER: p, ENERGY: e}) for s, p, e in ((1, 90, 5000), (2, 410, 5250), (4, 430, 6000))
    ]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    assert counters(trace, "start", "end", "device", "metric", "value", "unit", "added") == [
        (0, T, 0, "gpu_power", 410.0, "W", False),
        (0, T, 0, "gpu_energy", 0.25, "J", True),
        (T, 3 * T, 0, "gpu_power", 430.0, "W", False),
        (T, 3 * T, 0, "gpu_energy", 0.75, "J", True),
    ]
    assert trace.manifest.origin_ns == UTC + T


def test_a_total_that_became_smaller_is_a_gap_and_not_a_value(tmp_path: Path) -> None:
    samples = [sample(s, {ENERGY: e}) for s, e in ((1, 9000), (2, 9500), (3, 100), (4, 700))]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    assert counters(trace, "start", "value") == [(0, 0.5), (2 * T, 0.6)]


def test_totals_beyond_a_float_keep_every_unit(tmp_path: Path) -> None:
    sent = ("nic_sent", None, "mlx5_0:1")
    samples = [sample(s, {sent: n}) for s, n in ((1, 2**63 + 1), (2, 2**63 + 4))]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    assert counters(trace, "value", "instance") == [(3.0, "mlx5_0:1")]


def test_a_reading_that_failed_leaves_one_longer_row(tmp_path: Path) -> None:
    samples = [sample(s, {ENERGY: e, POWER: 1}) for s, e in ((1, 1000), (2, None), (3, 4000))]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    energy = [row[1:] for row in counters(trace, "metric", "start", "end", "value") if row[0] == "gpu_energy"]
    assert energy == [(0, 2 * T, 3.0)]


def test_a_clock_that_was_set_leaves_the_samples_their_length(tmp_path: Path) -> None:
    hour = 3600 * T
    samples = [
        sample(1, {POWER: 1}),
        sample(2, {POWER: 2}, clock=UTC + hour),
        sample(3, {POWER: 3}, clock=UTC + hour),
    ]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    assert counters(trace, "start", "end", "value") == [(0, T, 2.0), (T, 2 * T, 3.0)]
    assert trace.manifest.origin_ns == UTC + hour + T
    assert facts(trace)["clock set"] == 1


def test_a_clock_that_is_slewed_leaves_neither_gap_nor_overlap(tmp_path: Path) -> None:
    samples = [(s * T, UTC + s * T + s * 400_000, {POWER: s}) for s in (1, 2, 3)]
    trace = lostflops.open(left(tmp_path / "monitor", samples))
    assert counters(trace, "start", "end") == [(0, T + 400_000), (T + 400_000, 2 * T + 800_000)]
    assert "clock set" not in facts(trace)


def test_no_row_reaches_from_one_monitor_to_the_next(tmp_path: Path) -> None:
    folder = left(
        tmp_path / "monitor",
        [sample(s, {ENERGY: e}) for s, e in ((1, 10), (2, 20))],
        name="segment-0000.jsonl",
    )
    left(folder, [sample(s, {ENERGY: e}) for s, e in ((8, 500), (9, 600))], session=1)
    trace = lostflops.open(folder)
    assert counters(trace, "start", "end") == [(0, T), (7 * T, 8 * T)]


def test_packing_changes_no_reading(tmp_path: Path) -> None:
    values = [
        {POWER: 90.5, ENERGY: 2**63, ("gpu_clock_reason", 0, "power cap"): 1},
        {POWER: None, ENERGY: 2**63 + 9},
    ]
    samples = [sample(s, v) for s, v in enumerate(values)]
    folder = left(tmp_path / "monitor", samples, name="segment-0000.jsonl")
    before = rows(folder)
    segment.pack(folder / "segment-0000.jsonl")
    assert [file.name for file in folder.glob("segment*")] == ["segment-0000.parquet"]
    assert rows(folder).equals(before) and before.height == 4


def test_a_segment_counts_once_while_its_tail_is_still_there(tmp_path: Path) -> None:
    samples = [sample(s, {POWER: s}) for s in (1, 2, 3)]
    folder = left(tmp_path / "monitor", samples, name="segment-0000.jsonl")
    tail = (folder / "segment-0000.jsonl").read_bytes()
    segment.pack(folder / "segment-0000.jsonl")
    (folder / "segment-0000.jsonl").write_bytes(tail)
    assert rows(folder).height == 3


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    folder = left(tmp_path / "monitor", [sample(s, {POWER: s}) for s in (1, 2, 3)])
    with (folder / "tail.jsonl").open("a") as file:
        file.write('{"m":4000000000,"w":17950000040000')
    trace = lostflops.open(folder)
    assert len(counters(trace, "value")) == 2 and facts(trace)["samples lost"] == 1


def test_series_whose_line_was_torn_are_left_out_and_the_others_stay_in_place(tmp_path: Path) -> None:
    folder = left(tmp_path / "monitor", [])
    named = {"device": 0, "instance": None, "unit": "W", "counts": False, "per": 1}
    lines = [
        '{"from":0,"series":[{"metric":"torn"',
        json.dumps({"from": 1, "series": [{"metric": "gpu_power", **named}]}),
        json.dumps({"m": T, "w": T, "v": [7, 100]}),
        json.dumps({"m": 2 * T, "w": 2 * T, "v": [8, 200]}),
    ]
    (folder / "tail.jsonl").write_text("\n".join(lines) + "\n")
    assert counters(lostflops.open(folder), "metric", "value") == [("gpu_power", 200.0)]


@pytest.mark.parametrize("content", [b"", b"PAR1 no PAR1", b"\xff" * 100])
def test_a_damaged_segment_costs_its_own_samples_only(tmp_path: Path, content: bytes) -> None:
    folder = left(tmp_path / "monitor", [sample(s, {POWER: s}) for s in (1, 2)])
    (folder / "segment-0000.parquet").write_bytes(content)
    trace = lostflops.open(folder)
    assert counters(trace, "value") == [(2.0,)] and facts(trace)["segments damaged"] == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"m":1e999,"w":0,"v":[1]}',
        '{"m":99999999999999999999,"w":0,"v":[1]}',
        '{"from":0,"series":[{"metric":"a","device":-1,"instance":null,"unit":null,"counts":true,"per":0}]}',
        '{"m":3000000000,"w":3000000000,"v":[1e999]}',
        '{"m":3000000000,"w":3000000000,"v":[' + "9" * 400 + "]}",
        '{"m":3000000000,"w":3000000000,"v":["x"]}',
        "[" * 2000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_hostile_lines_are_passed_over(tmp_path: Path, line: str) -> None:
    folder = left(tmp_path / "monitor", [sample(s, {POWER: s}, clock=0) for s in (1, 2)])
    with (folder / "tail.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    (folder / "facts.jsonl").write_text(
        '{"kind":7}\n{"kind":"device","device":"0"}\n{"kind":"processes","device":0,"pids":7}\n[]\n{"kind":"monitor","host":7}\n'
    )
    assert counters(lostflops.open(folder), "value") == [(2.0,)]


def test_one_sample_is_too_few(tmp_path: Path) -> None:
    folder = left(tmp_path / "monitor", [sample(1, {POWER: 1})])
    with pytest.raises(NotATrace, match="fewer than two samples"):
        lostflops.open(folder)
    (folder / "facts.jsonl").unlink()
    (folder / "tail.jsonl").unlink()
    with pytest.raises(NoTraces, match="holds no trace"):
        lostflops.open(tmp_path)


def log(run: Path, rank: int, pid: int, local: int, node: str = "node-0000", host: str = "abc") -> None:
    (run / node).mkdir(parents=True, exist_ok=True)
    line = {"kind": "rank", "format": 1, "rank": rank, "local": local, "pid": pid, "host": host}
    (run / node / f"steps-{rank:05d}-a0.jsonl").write_text(json.dumps(line) + "\n")


def test_a_gpu_belongs_to_the_rank_whose_process_ran_on_it(tmp_path: Path) -> None:
    for local, (rank, pid) in enumerate(((4, 70), (5, 71), (6, 72))):
        log(tmp_path, rank, pid, local)
    # All ranks touch GPU 0, as they do by mistake; 3 is used by a stranger.
    pids = {0: [70, 71, 72], 1: [71], 2: [72, 99], 3: [99]}
    told = [{"kind": "processes", "device": d, "pids": p} for d, p in pids.items()]
    values: dict[Named, float | None] = {("gpu_power", d, None): 100 + d for d in pids}
    samples = [sample(s, {**values, ("memory_total", None, None): 7}) for s in (1, 2)]
    parts = monitor.read(left(tmp_path / "node-0000" / "monitor", samples, facts=told), tmp_path / "parts")
    found = {
        part.rank: pl.read_parquet(f"{part.folder}/counters.parquet").select("device", "value").rows()
        for part in parts
    }
    assert found == {4: [(0, 100.0), (3, 103.0), (None, 7.0)], 5: [(1, 101.0)], 6: [(2, 102.0)]}
    told = [(fact.rank, fact.name, fact.count) for part in parts for fact in part.quality]
    assert told == [(4, "GPU without rank", 1)], "the stranger's GPU"


def test_what_a_process_takes_stands_at_its_own_rank(tmp_path: Path) -> None:
    log(tmp_path, 3, 70, 0)
    log(tmp_path, 4, 71, 1)
    values: dict[Named, float | None] = {("rank_resident", None, "4"): 8, ("rank_resident", None, "9"): 7}
    folder = left(tmp_path / "node-0000" / "monitor", [sample(s, values) for s in (1, 2)])
    parts = monitor.read(folder, tmp_path / "parts")
    found = {
        part.rank: pl.read_parquet(f"{part.folder}/counters.parquet")["value"].to_list() for part in parts
    }
    assert found == {4: [8.0], 3: [7.0]}, "a rank that no log names is not made up"


def test_ranks_are_those_of_the_same_host_whatever_the_node_is_called(tmp_path: Path) -> None:
    log(tmp_path, 3, 70, 0, node="node-0000")
    log(tmp_path, 0, 70, 0, node="node-0001", host="another")
    folder = left(tmp_path / "node-0001" / "monitor", [sample(s, {POWER: s}) for s in (1, 2)])
    assert [part.rank for part in monitor.read(folder, tmp_path / "parts")] == [3]
    log(tmp_path, 3, 70, 0, node="node-0000", host="a third")
    assert [part.rank for part in monitor.read(folder, tmp_path / "more")] == [None]


def one_rank(run: Path, **more: Any) -> Path:
    """A run whose rank 0 was traced for 100 µs from the second 10 on."""
    content = kineto.trace(kineto.one_step(), {**kineto.head(), "baseTimeNanoseconds": UTC + 10 * T, **more})
    (run / "node-0000").mkdir(parents=True)
    return kineto.written(run / "node-0000" / "window.pt.trace.json.gz", content)


def test_samples_stand_beside_the_trace_at_the_same_time(tmp_path: Path) -> None:
    one_rank(tmp_path)
    log(tmp_path, 0, 70, 0)
    samples = [sample(s, {POWER: s}) for s in (9, 10, 11)]
    seen = [{"kind": "processes", "device": 0, "pids": [70]}]
    left(tmp_path / "node-0000" / "monitor", samples, facts=seen)
    trace = lostflops.open(tmp_path)
    # The trace begins 1 ms after its base.
    assert trace.manifest.origin_ns == UTC + 10 * T + 1_000_000
    assert counters(trace, "rank", "start", "end", "value") == [
        (0, -T - 1_000_000, -1_000_000, 10.0),
        (0, -1_000_000, T - 1_000_000, 11.0),
    ]
    ranks = trace.table("ranks")
    assert ranks is not None
    assert ranks.select("source", "start", "end").collect().rows() == [("kineto", 0, 100_000)]
    assert facts(trace) == {}
    assert lostflops.why(trace).run.ranks == (0,)


def test_samples_of_another_time_are_kept_with_a_warning(tmp_path: Path) -> None:
    one_rank(tmp_path)
    log(tmp_path, 0, 70, 0)
    left(tmp_path / "node-0000" / "monitor", [sample(s, {POWER: s}) for s in (90, 91)])
    assert "monitor elsewhere" in facts(lostflops.open(tmp_path))


def test_samples_find_their_node_by_the_hash_of_its_name(tmp_path: Path) -> None:
    one_rank(tmp_path / "run", host_name="here")
    for name, text in (("mine", "here"), ("other", "elsewhere")):
        host = {"kind": "monitor", "host": hashlib.sha256(text.encode()).hexdigest()}
        samples = [sample(s, {POWER: s}) for s in (9, 10, 11)]
        left(tmp_path / name / "node-x" / "monitor", samples, facts=[host])
    trace = lostflops.open([tmp_path / "run", tmp_path / "mine"])
    assert len(counters(trace, "value")) == 2
    trace = lostflops.open([tmp_path / "run", tmp_path / "other"])
    assert trace.table("counters") is None and facts(trace) == {"monitor left out": 1}


@pytest.mark.parametrize("dated", [True, False])
def test_samples_stand_beside_a_report_that_says_when_its_clock_began(tmp_path: Path, dated: bool) -> None:
    (tmp_path / "node-0000").mkdir()
    start = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": UTC + 10 * T}]} if dated else {}
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [nsys.kernel(2_000, 7_000)],
        "MPI_RANKS": [{"globalTid": nsys.process(1) + 1, "rank": 0}],
        **start,
    }
    nsys.sqlite(tmp_path / "node-0000" / "report.sqlite", tables)
    log(tmp_path, 0, 70, 0)
    left(tmp_path / "node-0000" / "monitor", [sample(s, {POWER: s}) for s in (10, 11)])
    trace = lostflops.open(tmp_path)
    if dated:
        assert counters(trace, "start", "end") == [(-2_000, T - 2_000)]
    else:
        assert trace.table("counters") is None and "clocks unrelated" in facts(trace)
    kernels = trace.table("kernels")
    assert kernels is not None and kernels.select("start", "end").collect().rows() == [(0, 5_000)]


def test_a_folder_without_samples_costs_the_traces_beside_it_nothing(tmp_path: Path) -> None:
    one_rank(tmp_path)
    left(tmp_path / "node-0000" / "monitor", [])
    trace = lostflops.open(tmp_path)
    assert facts(trace) == {"file left out": 1} and trace.has("kernels")


def test_a_full_disk_costs_the_samples_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = monitor_log.MonitorLog(tmp_path / "monitor")
    log.tell([{"kind": "monitor"}])
    whole = os.write

    def sampled(second: int) -> None:
        log.add(second * T, UTC + second * T, [MetricValue(*POWER, 100 + second)])

    def half(file: int, data: bytes) -> int:
        if len(data) == 1:
            return whole(file, data)
        return whole(file, data[: len(data) // 2])

    def none(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    sampled(1)
    for second, write in ((2, half), (3, none)):
        monkeypatch.setattr(os, "write", write)
        sampled(second)
    monkeypatch.setattr(os, "write", whole)
    sampled(4)
    assert log.lost == 2
    trace = lostflops.open(tmp_path / "monitor")
    assert counters(trace, "start", "end", "value") == [(0, 3 * T, 104.0)]
    assert facts(trace) == {"samples lost": 1}  # a node's samples are of no rank, so none is missing


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_disk_without_room_for_another_file_costs_no_more_than_the_samples_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the tail can get no other name, then none can be begun."""
    monkeypatch.setattr(monitor_log.subprocess, "Popen", full)  # so that nothing is packed
    log = monitor_log.MonitorLog(tmp_path / "monitor")

    def sampled(second: int) -> None:
        log.add(second * T, UTC + second * T, [MetricValue(*POWER, 100 + second)])

    sampled(1)
    with monkeypatch.context() as patch:
        patch.setattr(monitor_log, "PACK_EVERY", -1.0)
        patch.setattr(Path, "rename", full)
        sampled(2)
    sampled(3)
    with monkeypatch.context() as patch:
        patch.setattr(monitor_log, "PACK_EVERY", -1.0)
        patch.setattr(monitor_log, "_appending", full)
        sampled(4)
        sampled(5)
    sampled(6)
    sampled(7)
    assert log.lost == 1
    log.close()
    assert sorted(file.name for file in (tmp_path / "monitor").iterdir()) == [
        "facts.jsonl", "segment-0000.jsonl", "segment-0001.jsonl",
    ]  # fmt: skip
    log = monitor_log.MonitorLog(tmp_path / "monitor")
    log.tell([{"kind": "monitor"}])
    log.close()
    trace = lostflops.open(tmp_path / "monitor")
    assert [row[0] for row in counters(trace, "value")] == [102.0, 103.0, 104.0, 106.0, 107.0]


def test_what_did_not_fit_of_the_facts_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = monitor_log.MonitorLog(tmp_path / "monitor")
    fact = {"kind": "device", "device": 3}
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.tell([fact])
    log.tell([fact])
    log.tell([fact])
    log.close()
    assert (tmp_path / "monitor" / "facts.jsonl").read_text().count('"device":3') == 1
