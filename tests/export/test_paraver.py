"""Paraver traces: the golden values of public views, from the file; and a validator that can fail."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from compared import REAL
from lostflops.cli import main
from lostflops.export.formats.paraver import values as v
from lostflops.export.formats.paraver.check import check
from lostflops.export.formats.paraver.reading import read
from lostflops.store.trace import Trace
from paraver_views import Gaps, Views
from stored_runs import made

CALLS = {0: [(80, 90, 1), (92, 99, 1), (200, 210, 1), (400, 412, 2), (690, 697, 1)],
         1: [(30, 40, 1), (300, 310, 1), (410, 420, 1), (700, 712, 2)]}  # fmt: skip
BEGUN = {0: [100, 300, 250, 620, 700], 1: [50, 450, 600, 950]}
WORK = {
    0: [(100, 300, 7, "gemm"), (300, 500, 7, "softmax attention"), (620, 680, 7, ""), (700, 900, 7, "gemm"),
        (250, 650, 20, "ncclDevKernel_AllReduce")],
    1: [(50, 400, 7, "gemm"), (600, 950, 7, "softmax attention"), (950, 960, 7, ""),
        (450, 640, 20, "ncclDevKernel_AllReduce")],
}  # fmt: skip
RANGES = {0: [(60, 950, "one"), (100, 400, "two"), (400, 900, "zzz")], 1: [(20, 980, "one")]}
FIRST_LINES = """\
2:2:1:2:1:20:9600:1
2:2:1:2:1:30:63000000:1:9200:11
3:2:1:2:1:30:30:2:1:2:2:50:50:0:55001
2:2:1:2:1:40:63000000:0:9200:0
2:2:1:2:2:50:63000006:4:9101:8:9102:1:9103:1:9104:128:9105:1:9106:1:9200:11
2:1:1:1:1:60:9600:1""".splitlines()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def two_ranks(tmp_path: Path) -> Trace:
    """Two ranks on two nodes, in which every number differs on purpose."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("ranks", "kernels", "copies", "launches", "ranges", "collectives")
    }
    api = {1: "cudaLaunchKernel", 2: "cudaMemcpyAsync"}
    for rank in (0, 1):
        at = {"rank": rank}
        tables["ranks"].append(
            {**at, "start": 0, "end": 1000, "host": rank, "device": 0, "device_kind": "gpu", "main_thread": 5}
        )
        link = {begin: 10 * rank + n for n, begin in enumerate(BEGUN[rank], 1)}
        launched = dict(zip(BEGUN[rank], CALLS[rank], strict=True))
        for number, (start, end, name) in enumerate(CALLS[rank], 1):
            tables["launches"].append(
                {**at, "start": start, "end": end, "thread": 5, "name": api[name],
                 "correlation": 10 * rank + number}
            )  # fmt: skip
        for start, end, stream, name in WORK[rank]:
            row = {
                **at, "start": start, "end": end, "device": 0, "stream": stream, "thread": 5,
                "correlation": link[start], "launch_start": launched[start][0],
            }  # fmt: skip
            if not name:
                tables["copies"].append(
                    {**row, "name": "HtoD", "direction": "host to device", "bytes": 4096,
                     "host_memory": "pinned", "communication": False}
                )  # fmt: skip
                continue
            talks = name.startswith("nccl")
            family = "communication" if talks else name.removeprefix("softmax ")
            tables["kernels"].append(
                {**row, "name": name, "grid": 8, "block": 128, "family": family, "continued": False}
            )
            if talks:
                tables["collectives"].append(
                    {**at, "start": start, "end": end, "arrival": start, "kind": "all-reduce",
                     "group": "0 [0, 1]", "evidence": 1, "stream": stream, "correlation": link[start],
                     "name": name}
                )  # fmt: skip
        for start, end, name in RANGES[rank]:
            tables["ranges"].append(
                {
                    **at,
                    "start": start,
                    "end": end,
                    "thread": 5,
                    "name": name,
                    "nested": True,
                    "complete": True,
                }
            )
    # The trace ends at 1,000, as a start/end range says that takes 1 ns.
    tables["ranges"].append(
        {"rank": 0, "start": 999, "end": 1000, "thread": 5, "name": "end", "nested": False, "complete": True}
    )
    tables["ranges"].append(
        {"rank": 1, "start": 0, "end": 1, "thread": 5, "name": "end", "nested": False, "complete": True}
    )
    (tmp_path / "run").mkdir()
    return made(tmp_path / "run", tables)


def public(line: str) -> str:
    """A line without types of our own."""
    head, pairs = line.split(":")[:6], line.split(":")[6:]
    if not line.startswith("2:"):
        return line
    kept = [p for a, b in zip(pairs[::2], pairs[1::2], strict=True) if int(a) < 96_000_000 for p in (a, b)]
    return ":".join([*head, *kept]) if kept else ""


def test_two_ranks_give_the_golden_trace_and_values(two_ranks: Trace, tmp_path: Path) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv", bare=True)
    lines = (tmp_path / "x.prv").read_text().splitlines()
    assert lines[0].split("):", 1)[1] == "1000_ns:2(1,1):1:2(3:1,3:2),1"
    assert lines[1] == "c:1:1:2:1:2"
    written = [said for line in lines[2:] if ":9004:" not in line and (said := public(line))]
    assert written[: len(FIRST_LINES)] == FIRST_LINES
    assert check(tmp_path / "x.prv") == []
    trace = read(tmp_path / "x.prv")
    zero, one = Views(trace, 1), Views(trace, 2)
    assert [(w.active(), w.active(v.KERNEL)) for w in (zero, one)] == [(780, 600), (860, 700)]
    assert zero.gaps() == Gaps(3, 220, 100)
    assert one.gaps() == Gaps(3, 140, 50)
    # At 1 also copies under a kernel count, as public views have it: here none do.
    assert [(w.overlap(1), w.overlap(2)) for w in (zero, one)] == [(150, 250), (150, 40)]
    assert [w.in_flight()[::2] for w in (zero, one)] == [(288, 2), (360, 2)]
    assert [w.talks() for w in (zero, one)] == [1, 1]
    shares = [
        [w.share(k, n) for k, n in ((v.KERNEL, 4), (v.KERNEL, 5), (v.COMMUNICATION, 6))] for w in (zero, one)
    ]
    assert shares == [[40, 20, 40], [35, 35, 19]]
    assert [w.threads() for w in (zero, one)] == [1024 * (600 + 400), 1024 * (700 + 190)]


def test_the_ledger_covers_the_trace_without_a_hole(tmp_path: Path) -> None:
    run = lostflops.open(Path(__file__).parents[2] / "examples" / "runs" / "ddp")
    lostflops.write(run, tmp_path / "x.prv")
    assert check(tmp_path / "x.prv") == []
    trace = read(tmp_path / "x.prv")
    accounts = trace.events.filter(pl.col("type") == v.ACCOUNT).with_columns(
        end=pl.col("time").shift(-1).over("task", "thread")
    )
    length = accounts.group_by("task", "value").agg((pl.col("end") - pl.col("time")).sum().alias("ns"))
    assert length.group_by("task").agg(pl.col("ns").sum())["ns"].to_list() == [trace.end] * 4
    names = {number: name for name, number in _accounts().items()}
    ledger = lostflops.ask(run, "step_ledger")
    for task in range(1, 5):
        for value, ns in (
            length.filter((pl.col("task") == task) & (pl.col("value") != 0)).select("value", "ns").rows()
        ):
            if names[value] != v.OUTSIDE:
                rows = ledger.filter((pl.col("rank") == task - 1) & (pl.col("account") == names[value]))
                assert rows["ns"].sum() == ns


def _accounts() -> dict[str, int]:
    return {name: at for at, name in enumerate([*v.LEDGER, v.OUTSIDE], 1)}


GOLDEN: dict[str, tuple[int, list[tuple[Any, ...]]]] = {
    "fastvideo_train_2xH100_before": (
        299_986_072,
        [
            (273_817_787, 253_690_832, 253_703_274, 17_172_652, Gaps(2_636, 26_168_285, 4_492_845), 33,
             (1_765_803_888, 264_492_306, 28), 822_765_013_345_792, (1_067_039_098_609_964, 7_867_677),
             269_679_678),
            (267_275_916, 256_095_624, 256_095_624, 8_229_100, Gaps(2_664, 32_710_156, 1_241_744), 33,
             (1_485_003_639, 251_721_169, 26), 835_487_489_571_840, (1_073_205_911_625_794, 7_867_915),
             276_920_265),
        ],
    ),
    "fastvideo_train_2xH100_after": (
        299_272_477,
        [
            (240_108_749, 227_484_352, 227_484_352, None, Gaps(2_366, 59_163_728, 6_587_753), 31,
             (1_083_336_412, None, 17), 747_291_404_927_360, None, 273_990_947),
            (254_000_754, 227_608_953, 227_608_953, None, Gaps(2_367, 45_271_723, 1_658_778), 31,
             (1_354_798_803, None, 17), 748_332_237_758_592, None, 276_133_488),
        ],
    ),
    "fastvideo_sp2_2xH100_1s": (
        969_447_605,
        [
            (962_890_247, 22_385_163, None, None, Gaps(2_183, 6_557_358, 761_862), *(None,) * 5),
            (962_810_705, 22_444_359, None, None, Gaps(2_185, 6_636_900, 731_904), *(None,) * 5),
        ],
    ),
}  # fmt: skip
LINES = {v.API: 14_932, v.KERNEL: 7_888, v.COMMUNICATION: 132, v.COPY: 2_578}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_real_export_gives_the_golden_values(name: str, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = REAL / "nsys" / f"{name}.sqlite.zst"
    if not packed.exists():
        pytest.skip("the shared traces are not here")
    with packed.open("rb") as source, (tmp_path / f"{name}.sqlite").open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    lostflops.write(tmp_path / f"{name}.sqlite", tmp_path / "x.prv", bare=True)
    assert check(tmp_path / "x.prv") == []
    trace = read(tmp_path / "x.prv")
    end, ranks = GOLDEN[name]
    assert trace.end == end
    for task, expected in enumerate(ranks, 1):
        w = Views(trace, task)
        found = (w.active(), w.active(v.KERNEL), w.useful(), w.active(v.COMMUNICATION), w.gaps(), w.talks(),
                 w.in_flight(), w.threads(), w.squares(), w.in_ranges())  # fmt: skip
        for said, known in zip(found, expected, strict=True):
            if isinstance(known, tuple):
                said, known = zip(
                    *((s, k) for s, k in zip(said, known, strict=True) if k is not None), strict=True
                )  # pyright: ignore[reportArgumentType]
            assert known is None or said == known
    if name.endswith("before"):
        begun = trace.events.unique("line", keep="first", maintain_order=True).group_by("type").len()
        counts = dict(begun.iter_rows())
        assert {kind: counts[kind] for kind in LINES} == LINES
        tags = dict(trace.sent.group_by("tag").len().iter_rows())
        assert tags == {v.LAUNCHED: 3_986, v.COPIED: 1_282}


def broken() -> Iterator[tuple[str, str, str]]:
    """What is changed in the golden trace, into what, and what the validator then says."""
    yield "1000_ns", "1000_xs", "does not have Paraver's form"
    yield "1000_ns", "1000_us", "times are not in ns"
    yield "1000_ns", "999_ns", "behind the header's end"
    yield "1000_ns", "1001_ns", "the last record lies at 1000"
    yield "(3:1,3:2)", "(3:1,3:3)", "there are 2"
    yield "),1\n", "),2\n", "2 communicators are announced"
    yield "c:1:1:2:1:2", "c:1:1:2:1:3", "names tasks that are not there"
    yield "2:2:1:2:1:40:63000000:0:9200:0", "2:2:1:2:1:40:63000000", "fields of its kind"
    yield "2:2:1:2:1:40:63000000:0:9200:0", "2:2:1:2:1:4.5:63000000:0:9200:0", "not all whole numbers"
    yield "2:2:1:2:1:40:63000000:0:9200:0", "2:2:1:2:9:40:63000000:0:9200:0", "no such task or row"
    yield "2:2:1:2:1:40:63000000:0:9200:0", "2:1:1:2:1:40:63000000:0:9200:0", "not on the task's node"
    yield "2:2:1:2:1:40:63000000:0:9200:0", "2:2:1:2:1:10:63000000:0:9200:0", "earlier than the line before"
    yield (
        "3:2:1:2:1:30:30:2:1:2:2:50:50:0:55001",
        "3:2:1:2:1:30:30:2:1:2:2:29:29:0:55001",
        "no later than it leaves",
    )
    yield (
        "3:2:1:2:1:30:30:2:1:2:2:50:50:0:55001",
        "3:2:1:2:1:30:30:2:1:2:2:51:51:0:55001",
        "nothing begins where",
    )
    yield ":0:55001", ":0:55009", "its tag is unknown"
    yield "2:1:1:1:1:60:9600:1", "2:1:1:1:1:60:9600:0", "a range ends that had not begun"
    yield "2:1:1:1:1:60:9600:1", "2:1:1:1:1:60:9600:1:9600:1", "a range never ends"
    yield "2:1:1:1:1:60:9600:1", "2:1:1:1:1:60:9600:77", "its value has no name"
    yield "2:1:1:1:1:60:9600:1", "2:1:1:1:1:60:123456:1", "no label in the .pcf"
    yield "2:1:1:1:1:60:9600:1", "2:1:1:1:1:60:9101:5", "an attribute stands by itself"
    huge = "9" * 30
    yield "2:1:1:1:1:60:9600:1", f"2:1:1:1:1:60:9600:{huge}", "whole numbers of at most 18 digits"
    yield "1000_ns:2(1,1)", f"{huge}_ns:2(1,1)", "does not have Paraver's form"
    yield "2:1:1:1:1:60:9600:1", "2:1:2:1:1:60:9600:1", "no such task or row"
    yield "2:1:1:1:1:60:9600:1", "1:1:1:9:1:60:61:1", "no such task or row"
    yield "2:1:1:1:1:60:9600:1", "1:1:1:1:1:60:59:1", "a state ends before it begins"
    yield "2:1:1:1:1:60:9600:1", "1:1:1:1:1:60:2000:1", "behind the header's end"
    # Equal times, in the order in which a stack closes the wrong one.
    yield (
        "2:1:1:1:1:400:9600:0",
        "2:1:1:1:1:400:9600:1\n2:1:1:1:1:400:9600:0:9600:0",
        "the wrong one is closed",
    )


@pytest.mark.parametrize(("old", "new", "said"), list(broken()))
def test_the_validator_fails_on_each_broken_rule(
    two_ranks: Trace, tmp_path: Path, old: str, new: str, said: str
) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv", bare=True)
    good = (tmp_path / "x.prv").read_text()
    assert good.count(old) >= 1
    (tmp_path / "x.prv").write_text(good.replace(old, new, 1))
    assert said in "\n".join(map(str, check(tmp_path / "x.prv")))


def test_labels_of_rows_and_values_may_be_anything(two_ranks: Trace, tmp_path: Path) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv", bare=True)
    names = (tmp_path / "x.pcf").read_text()
    (tmp_path / "x.pcf").write_text(names + f"EVENT_TYPE\n0 {'9' * 30} what\nVALUES\n{'9' * 30} who\n")
    assert ["32 bits" in str(problem) for problem in check(tmp_path / "x.prv")] == [True]
    (tmp_path / "x.pcf").write_text(names)
    (tmp_path / "x.row").write_text("LEVEL\nLEVEL THREAD SIZE six\n")
    (said,) = check(tmp_path / "x.prv")
    assert said.warning and "no labels of level THREAD" in str(said)


def test_a_long_name_has_three_files_of_its_own(two_ranks: Trace, tmp_path: Path) -> None:
    """Their endings are beyond what the names of files that are being written keep of it."""
    lostflops.write(two_ranks, tmp_path / "short.prv")
    long = "a-run-whose-name-is-as-long-as-those-that-a-scheduler-and-a-profiler-make"
    lostflops.write(two_ranks, tmp_path / f"{long}.prv")
    for ending in ("prv", "pcf", "row"):
        assert (tmp_path / f"{long}.{ending}").read_bytes() == (tmp_path / f"short.{ending}").read_bytes()


def test_a_gzip_file_of_several_streams_is_read_whole(two_ranks: Trace, tmp_path: Path) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv", bare=True)
    data = (tmp_path / "x.prv").read_bytes()
    (tmp_path / "x.prv.gz").write_bytes(gzip.compress(data[:300]) + gzip.compress(data[300:]))
    assert check(tmp_path / "x.prv.gz") == []


def test_a_folder_to_check_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--check"]) == 2
    assert "give the .prv file of a trace" in capsys.readouterr().err


def test_two_intervals_on_one_row_are_told(two_ranks: Trace, tmp_path: Path) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv", bare=True)
    lines = (tmp_path / "x.prv").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("2:2:1:2:2:400:63000006:0"))
    (tmp_path / "x.prv").write_text("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n")
    said = "\n".join(map(str, check(tmp_path / "x.prv")))
    assert "the second one's time is lost" in said


def test_the_command_checks_and_fails(
    two_ranks: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lostflops.write(two_ranks, tmp_path / "x.prv.gz", bare=True)
    assert main(["export", str(tmp_path / "x.prv.gz"), "--check"]) == 0
    assert "every rule holds" in capsys.readouterr().out
    data = (tmp_path / "x.prv.gz").read_bytes()
    (tmp_path / "x.prv.gz").write_bytes(data[:-30])
    assert main(["export", str(tmp_path / "x.prv.gz"), "--check"]) == 2
    said = capsys.readouterr()
    assert "cut off: its gzip stream ends too early" in said.out
    assert "would show wrong" in said.err


def test_work_that_overlaps_on_a_stream_has_lanes(tmp_path: Path) -> None:
    kernel = {"rank": 0, "device": 0, "stream": 7, "name": "k", "family": "gemm", "continued": False}
    copy = {"rank": 0, "device": 0, "stream": 7, "name": "c", "direction": "memset", "host_memory": "none",
            "communication": False}  # fmt: skip
    (tmp_path / "run").mkdir()
    trace = made(
        tmp_path / "run",
        {
            "ranks": [{"rank": 0, "start": 0, "end": 500, "device_kind": "gpu"}],
            "kernels": [{**kernel, "start": 0, "end": 300}, {**kernel, "start": 300, "end": 300}],
            "copies": [{**copy, "start": 100, "end": 500}],
        },
    )
    said = lostflops.write(trace, tmp_path / "x.prv", bare=True)
    assert check(tmp_path / "x.prv") == []
    assert Views(read(tmp_path / "x.prv"), 1).active() == 500
    assert "CUDA-D0.S7+1" in (tmp_path / "x.row").read_text().splitlines()
    assert said.notes == ["1 row takes no time and is left out: Paraver cannot show such rows"]
