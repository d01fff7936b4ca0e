"""Two ways to inflate and two to decode: the fast ones say what the careful ones say."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from kineto_files import call, head, kernel, one_step, operator, span, trace, written
from lostflops.errors import Damaged, Truncated
from lostflops.ingest.kineto import events, parallel, stream
from lostflops.ingest.kineto import reader as kineto

REAL = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
SMALL = [p for p in sorted(REAL.glob("*/*.json.gz")) if p.stat().st_size < 300_000] if REAL.is_dir() else []

WITHOUT_CATEGORY = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1012,
     "args": {"Device Type": 1, "Device Id": 0, "Bytes": 4096, "Addr": 7, "Total Allocated": 5,
              "Total Reserved": 6}},
]  # fmt: skip
COLLECTIVE = {
    "Collective name": "allreduce", "In msg nelems": 31, "dtype": "Float", "Group size": 2,
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip
EVENTS = [
    *one_step(),
    *WITHOUT_CATEGORY,
    operator("aten::addmm", 1040, 3, 2,
             more={"Input Dims": [[3, 5]], "Input type": ["float"], "Fwd thread id": 1}),
    operator("record_param_comms", 1044, 2, more=COLLECTIVE),
    call(1046, 2, 2, "hipLaunchKernel"),
    kernel(1080, 7, 2, "ncclDevKernel_AllReduce", 9, more=COLLECTIVE),
    span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1090, 4, 7, device=0, stream=7, correlation=3,
         bytes=77),
    span("gpu_memset", "Memset (Device)", 1095, 1, "stream 7", device=0, correlation=4, bytes=78),
    span("python_function", "train.py(3): step", 1000, 60),
    span("overhead", "Instrumentation", 1061, 1),
    span("Trace", "PyTorch Profiler (0)", 990, 130),
]  # fmt: skip


def tables(path: Path, folder: Path) -> dict[str, pl.DataFrame]:
    kineto.read(path, folder)
    return {str(p.relative_to(folder)): pl.read_parquet(p) for p in sorted(folder.rglob("*.parquet"))}


def same(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = tables(path, folder / "fast")
    monkeypatch.setattr(events, "MOST_MISSES", 0)
    careful = tables(path, folder / "careful")
    assert fast.keys() == careful.keys()
    for name, table in careful.items():
        assert_frame_equal(fast[name], table, categorical_as_str=True)


@pytest.mark.parametrize("layout", ["torch", "lines", "line"])
def test_events_decoded_by_category_give_the_tables_of_events_decoded_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    path = written(tmp_path / "trace.json", trace(EVENTS, head(), layout=layout))
    same(path, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name[:40])
def test_so_they_do_for_real_traces(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same(path, tmp_path, monkeypatch)


def test_most_events_are_decoded_by_category() -> None:
    decoder = events.Decoder()
    found = decoder.chunk(b'[{"ph": "X", "cat": "kernel", "name": "a"}, {"ph": "M", "name": "process_name"}]')
    assert all(type(event) in events.CATEGORY for event in found)


def test_an_unknown_category_is_decoded_in_full_with_all_that_stand_beside_it() -> None:
    decoder = events.Decoder()
    found = decoder.chunk(b'[{"cat": "kernel", "name": "a"}, {"cat": "of 2030", "name": "b", "ph": "X"}]')
    assert [(event.cat, event.name) for event in found] == [("kernel", "a"), ("of 2030", "b")]


@pytest.mark.parametrize("fast", [True, False])
def test_members_and_padding_are_inflated_with_and_without_isal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(stream, "FAST", None)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two") + bytes(512))
    blocks = stream.ReadAhead(path)
    assert b"".join(blocks) == b"one two"
    assert blocks.whole


@pytest.mark.parametrize("wrong", [0.4, 0.7])
def test_damage_is_found_at_the_same_byte_with_and_without_isal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    packed = bytearray(gzip.compress(trace([e for i in range(400) for e in one_step(i * 100.25)], head())))
    place = int(len(packed) * wrong)
    packed[place : place + 8] = b"\xff" * 8
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    said: list[str] = []
    for fast in (stream.FAST, None):
        monkeypatch.setattr(stream, "FAST", fast)
        with pytest.raises((Damaged, Truncated)) as found:
            kineto.read(path, tmp_path / "out")
        said.append(str(found.value))
    assert said[0] == said[1]


# --- where chunks of a plain file lie
# ------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=30), chunk=st.integers(40, 400))
def test_chunks_of_a_plain_file_are_events_one_after_the_other(sizes: list[int], chunk: int) -> None:
    texts = [b'{\n    "name": "' + b"x" * size + b'"\n  }' for size in sizes]
    head = b'{"traceEvents": [\n  '
    file = io.BytesIO(head + b",\n  ".join(texts) + b'\n  ], "a": 1}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK", chunk)
        places = list(stream.ranges(file, len(head)))
    content = file.getvalue()
    found: list[object] = []
    for begin, end in places:
        assert end - begin <= chunk
        found += json.loads(b"[" + content[begin:end] + b"]")
    assert found == [json.loads(text) for text in texts[: len(found)]]
    assert [begin for begin, _ in places[:1]] in ([], [len(head)])
    assert all(content[end:begin] == b",\n  " for (_, end), (begin, _) in itertools.pairwise(places))
    rest = content[places[-1][1] if places else len(head) :]
    if max(map(len, texts)) + 8 < chunk:  # else no event may end within a chunk
        assert rest.index(b"\n  ]") <= 2 * chunk


def test_a_plain_file_that_has_become_shorter_is_read_again_with_care(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(b"{}")
    done = subprocess.run(
        [sys.executable, "-m", "lostflops.ingest.kineto.parallel", str(tmp_path / "out"), str(source)],
        input=parallel.RANGE.pack(0, 3),
        check=False,
    )
    assert done.returncode == 1
    assert not (tmp_path / "out" / "state").exists()
