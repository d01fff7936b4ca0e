"""What `lostflops export` wrote for Perfetto is read back as the run that it was; nothing else is."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lostflops
from lostflops.errors import LostflopsError, NotATrace, Truncated
from lostflops.export.formats.perfetto import wire as writing
from lostflops.ingest.perfetto import wire
from lostflops.ingest.times.begun_and_ended import BEGIN, END, matched
from same_tables import differences
from stored_runs import made

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"
KERNELS = [
    {"rank": 3, "device": 1, "stream": 7, "start": 100 * n, "end": 100 * n + 70, "name": f"k{n % 3}",
     "correlation": n, "family": "gemm", "precision": "bf16", "grid": 5 * n, "continued": False,
     "launch_start": 100 * n - 9, "launch_end": 100 * n - 4, "thread": 41}
    for n in range(1, 9)
]  # fmt: skip
TABLES = {
    "ranks": [
        {"rank": 3, "start": 0, "end": 900, "host": 2, "device": 1, "device_kind": "gpu", "world_size": 8,
         "gpu": "A <b>GPU</b>", "main_thread": 41, "rank_source": "the file", "source": "kineto"}
    ],
    "kernels": KERNELS,
    "launches": [
        {"rank": 3, "start": k["launch_start"], "end": k["launch_end"], "thread": 41,
         "name": "cudaLaunchKernel", "correlation": k["correlation"], "return_code": 0}
        for k in KERNELS
    ],
    "steps": [{"rank": 3, "start": 0, "end": 850, "step": 12, "source": "profiler", "complete": True}],
    "ranges": [
        {"rank": 3, "start": 5, "end": 805, "thread": 41, "name": "whole", "domain": "mine", "nested": True},
        {"rank": 3, "start": 5, "end": 95, "thread": 41, "name": "inner", "nested": True},
        {"rank": 3, "start": 9, "end": 990, "thread": 44, "name": "apart", "nested": False},
    ],
    "collectives": [
        {"rank": 3, "start": 40, "end": 55, "arrival": 40, "kind": "all-reduce", "group": "0 [3, 4]",
         "stream": 9, "bytes_in": 77, "name": "nccl", "evidence": 0}
    ],
    "counters": [
        {"rank": 3, "start": at, "end": at + 10, "device": 1, "metric": "SM Active", "value": at / 4,
         "unit": "%"}
        for at in (10, 20, 30)
    ],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> lostflops.Trace:
    (tmp_path / "run").mkdir()
    return made(tmp_path / "run", TABLES, origin=1_700_000_000_000_000_005)


@pytest.mark.parametrize("ending", ["pftrace", "pftrace.gz"])
def test_a_run_comes_back_with_its_tables(run: lostflops.Trace, tmp_path: Path, ending: str) -> None:
    lostflops.write(run, tmp_path / f"run.{ending}")
    again = lostflops.open(tmp_path / f"run.{ending}")
    assert differences(run, again) == []
    ranks, counters = again.table("ranks"), again.table("counters")
    assert ranks is not None and counters is not None
    row = ranks.collect().row(0, named=True)
    assert (row["rank"], row["device"], row["gpu"], row["world_size"], row["main_thread"]) == (
        3,
        1,
        "A <b>GPU</b>",
        8,
        41,
    )
    told = counters.select("start", "end", "device", pl.col("metric").cast(pl.String), "value").collect()
    assert told.rows() == [
        (10, 20, 1, "SM Active", 2.5),
        (20, 30, 1, "SM Active", 5.0),
        (30, 30, 1, "SM Active", 7.5),
    ]


@pytest.mark.parametrize("name", ["ddp", "lora-workers-0"])
def test_a_recorded_run_has_the_same_page(tmp_path: Path, name: str) -> None:
    run = lostflops.open(EXAMPLES / name)
    lostflops.write(run, tmp_path / "run.pftrace")
    again = lostflops.open(tmp_path / "run.pftrace")
    assert differences(run, again) == []
    before, after = lostflops.why(run), lostflops.why(again)
    assert after.verdict == before.verdict
    assert [finding.claim for finding in after.findings] == [finding.claim for finding in before.findings]


def test_ranks_and_a_part_of_a_run_are_read_as_they_were_cut(tmp_path: Path) -> None:
    run = lostflops.open(EXAMPLES / "ddp")
    lostflops.write(run, tmp_path / "part.pftrace", ranks=[1, 2], steps=(4, 5))
    again = lostflops.open(tmp_path / "part.pftrace", allow_missing_ranks=True)
    ranks, steps = again.table("ranks"), again.table("steps")
    assert ranks is not None and steps is not None
    assert sorted(ranks.collect()["rank"]) == [1, 2]
    assert steps.sort("rank", "step").select("rank", "step").collect().rows() == [
        (1, 4),
        (1, 5),
        (2, 4),
        (2, 5),
    ]


def test_traces_of_other_tools_are_refused_in_words(tmp_path: Path) -> None:
    packet = writing.message(1, writing.number(8, 5) + writing.number(10, 1))
    (tmp_path / "other.pftrace").write_bytes(packet)
    with pytest.raises(NotATrace, match="of another tool"):
        lostflops.open(tmp_path / "other.pftrace")
    (tmp_path / "empty.pftrace").write_bytes(b"")
    with pytest.raises(NotATrace, match="empty"):
        lostflops.open(tmp_path / "empty.pftrace")


def test_a_file_that_ends_early_or_was_changed_is_an_error_in_words(
    run: lostflops.Trace, tmp_path: Path
) -> None:
    lostflops.write(run, tmp_path / "run.pftrace")
    whole = (tmp_path / "run.pftrace").read_bytes()
    broken = tmp_path / "broken.pftrace"
    broken.write_bytes(whole[:-3])
    with pytest.raises(Truncated, match="middle of a packet"):
        lostflops.open(broken)
    packed = tmp_path / "broken.pftrace.gz"
    packed.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(Truncated, match="gzip"):
        lostflops.open(packed)
    chance = random.Random(5)
    for _ in range(40):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        broken.write_bytes(changed)
        try:
            lostflops.why(lostflops.open(broken))
        except LostflopsError:
            continue


@given(
    st.lists(st.tuples(st.integers(1, 300), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))))
)
def test_fields_are_read_as_they_were_written(written: list[tuple[int, int | bytes]]) -> None:
    content = b"".join(
        writing.number(field, value) if isinstance(value, int) else writing.message(field, value)
        for field, value in written
    )
    data = np.frombuffer(content + bytes(wire.PADDING), np.uint8)
    found = wire.fields(data, np.array([0]), np.array([len(content)]))
    assert [
        (number, value if not stop > begin or isinstance(said, int) else content[begin:stop])
        for number, value, begin, stop, (_, said) in zip(
            found.number.tolist(), found.value.tolist(), found.begin.tolist(), found.stop.tolist(), written,
            strict=True,
        )
    ] == [(field, value if value != b"" else 0) for field, value in written]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_begins_and_ends_find_each_other_as_on_a_stack(edges: list[tuple[int, bool]]) -> None:
    stacks: dict[int, list[int]] = {}
    expected: list[tuple[int, int]] = []
    kept: list[tuple[int, bool]] = []
    for track, begins in edges:
        stack = stacks.setdefault(track, [])
        if not begins and not stack:
            continue  # no exporter ends what it did not begin
        if begins:
            stack.append(len(kept))
        else:
            expected.append((stack.pop(), len(kept)))
        kept.append((track, begins))
    tracks = np.array([track for track, _ in kept], np.uint64)
    kinds = np.array([BEGIN if begins else END for _, begins in kept], np.uint64)
    begun, ended = matched(tracks, kinds)
    assert list(zip(begun.tolist(), ended.tolist(), strict=True)) == sorted(expected)
