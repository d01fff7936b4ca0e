"""PyTorch profiler traces as they should not be: each is refused with a message that helps, or answered with
the right numbers and a note of what is missing, and a refused one leaves nothing behind."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kineto_files import call, event_text, head, kernel, one_step, operator, span, step, trace, written
from lostflops.errors import (
    Damaged,
    LostflopsError,
    NotATrace,
    NothingRecorded,
    RanksMissing,
    SameRankTwice,
    Truncated,
)
from lostflops.ingest import job, sources
from lostflops.ingest.kineto import reader as kineto
from lostflops.ingest.kineto import stream
from lostflops.ingest.kineto.columns import frame_name
from lostflops.ingest.kineto.events import Args
from lostflops.ingest.times.microseconds import CoarseTimesError, nanoseconds
from lostflops.session import Session, Skipped

ONE_STEP = {"compute": 40_250, "idle": 59_750}
Asked = Callable[..., Session]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def asked(tmp_path: Path, store: Path) -> Asked:
    """Write some files, and open them as a job."""

    def ask(*contents: bytes, names: tuple[str, ...] = (), **options: Any) -> Session:
        folder = tmp_path / "traces"
        folder.mkdir(exist_ok=True)
        names = names or tuple(f"trace{i}.json" for i in range(len(contents)))
        paths = [written(folder / name, content) for name, content in zip(names, contents, strict=True)]
        return Session(job.open(paths, **options))

    return ask


def ledger(session: Session) -> dict[str, int]:
    """The accounts of all steps, idle as one; they add up to the steps."""
    answer = session.run("step_ledger")
    assert not isinstance(answer, Skipped), answer.reason
    table = answer.table
    sums = table.group_by("rank", "step", "start", "end").agg(pl.col("ns").sum())
    assert ((sums["end"] - sums["start"]) == sums["ns"]).all()
    account = pl.col("account").str.replace(r"^idle\..*", "idle")
    return dict(table.group_by(account).agg(pl.col("ns").sum()).iter_rows())


def rows(session: Session, name: str) -> pl.DataFrame:
    frame = session.trace.table(name)
    assert frame is not None, session.trace.absence(name)
    return frame.collect()


def notes(session: Session) -> dict[str, int]:
    return {q.name: q.count for q in session.trace.manifest.quality}


def left(store: Path) -> list[Path]:
    return [p for p in store.rglob("*") if p.is_file()]


# --- what is no trace
# ------------------------------------------------------------------------------------------

GOOD = trace(one_step())
META = {"ph": "M", "name": "process_name", "ts": 1, "pid": 1, "tid": 0, "args": {"name": "python"}}
DEEP = b"[" * 100_000 + b"]" * 100_000

REFUSED: dict[str, tuple[bytes, type[LostflopsError], str]] = {
    "an empty file": (b"", NotATrace, "it is empty"),
    "blanks": (b" \n\t ", NotATrace, "it is empty"),
    "text": (b"hello", NotATrace, "does not begin as a JSON object"),
    "a number": (b"5", NotATrace, "does not begin as a JSON object"),
    "other JSON": (b'{"name": "x", "version": 3}', NotATrace, "without 'traceEvents'"),
    "an execution trace": (
        b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [' + b'{"id": 2},' * 3_000_000,
        NotATrace,
        "operators and tensors, without the times",
    ),
    "events that are a number": (b'{"traceEvents": 3}', NotATrace, "'traceEvents' is not a list"),
    "events that are nothing": (b'{"traceEvents": null}', NotATrace, "'traceEvents' is not a list"),
    "events that are an object": (b'{"traceEvents": {"a": []}}', NotATrace, "'traceEvents' is not a list"),
    "events deeper down": (b'{"a": {"traceEvents": [{"ph": "X"}]}}', NotATrace, "without 'traceEvents'"),
    "their name inside a string": (b'{"a": "\\"traceEvents\\": [{}]"}', NotATrace, "without 'traceEvents'"),
    "a list of numbers": (b"[1, 2, 3]", NotATrace, "holds something that is not an event"),
    "a list of texts": (b'["a", "b"]', NotATrace, "holds something that is not an event"),
    "a list of lists": (
        b'[[-1, 1, 5, 6], [7, "x", 0, 1]]',
        NotATrace,
        ("holds something that is not an event"),
    ),
    "events that are lists": (
        b'{"traceEvents": [[1, 2], [3]]}',
        NotATrace,
        ("holds something that is not an event"),
    ),
    "nothing but depth": (DEEP, NotATrace, "holds something that is not an event"),
    "no events": (trace([]), NothingRecorded, "there are no events"),
    "an empty list": (b"[]", NothingRecorded, "there are no events"),
    "metadata only": (trace([META, META]), NothingRecorded, "no event is work"),
    "empty events": (trace([{}, {}]), NothingRecorded, "no event is work"),
    "no usable time": (trace([kernel("x", 3, 1), kernel(None, 4, 2)]), NothingRecorded, "no event is work"),
    "no GPU row with a duration": (
        trace([*one_step()[:3], *(kernel(1030 + at, 0, 1) for at in range(20))]),
        NotATrace,
        "none of its 20 rows of GPU work has a duration",
    ),
    "few GPU rows, none with a duration": (
        trace([*one_step()[:3], *(kernel(1030.25 + at, 0, 1) for at in range(3))]),
        NotATrace,
        "none of its 3 rows of GPU work has a duration",
    ),
    "kernels without a duration beside a copy that has one": (
        trace(
            [*one_step()[:3], kernel(1030.5, 0, 1), {**span("gpu_memcpy", "Memcpy HtoD", 1040, 3), "pid": 0}]
        ),
        NotATrace,
        "none of its 1 rows of GPU work has a duration",
    ),
    "UTF-32": (GOOD.decode().encode("utf-32"), NotATrace, "its text is UTF-32"),
    "two objects": (GOOD + GOOD, NotATrace, "something else follows where it ends"),
    "an object and a line": (GOOD + b"\nkilled", NotATrace, "something else follows where it ends"),
    "a list and an object": (
        b"[" + event_text(kernel(1, 2, 3)).encode() + b"]{}",
        NotATrace,
        "something else",
    ),
    "two lists of events": (trace(one_step(), after={"traceEvents": []}), NotATrace, "'traceEvents' twice"),
    "a cut in the head": (GOOD[:30], Truncated, "ends before its events begin"),
    "a cut in the tail": (
        trace(one_step(), after={"a": 1})[:-3],
        Truncated,
        "in the metadata behind its events",
    ),
    "a cut after a comma": (GOOD[: GOOD.index(b"},\n  {") + 2], Truncated, "ends between two events"),
    "a cut in an event": (
        GOOD[: GOOD.rindex(b'"dur"')],
        Truncated,
        "in the middle of an event, after event 3",
    ),
    "a cut in a string": (
        GOOD[: GOOD.rindex(b"sgemm")],
        Truncated,
        "in the middle of an event, after event 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_what_is_no_trace_is_refused_with_the_reason(
    case: str, packed: bool, asked: Asked, store: Path
) -> None:
    content, error, message = REFUSED[case]
    name = "rank-0.json.gz" if packed else "rank-0.json"
    with pytest.raises(error) as caught:
        asked(content, names=(name,))
    assert message in caught.value.message
    assert name in caught.value.message and "/" not in caught.value.message.replace(name, "")
    assert caught.value.hint
    assert left(store) == []


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.97])
def test_a_gzip_cut_in_the_middle_is_truncated(
    kept: float, asked: Asked, store: Path, tmp_path: Path
) -> None:
    packed = gzip.compress(trace([*one_step(), *(kernel(1200 + i, 0.5, 10 + i) for i in range(500))]))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: int(kept * len(packed))])
    with pytest.raises(Truncated, match="ends"):
        job.open(path)
    assert left(store) == []


def test_a_gzip_cut_in_its_trailer_has_all_its_events(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(GOOD)[:-5])
    session = Session(job.open(path))
    assert ledger(session) == ONE_STEP
    assert notes(session)["truncated gzip trailer"] == 1


def test_content_that_does_not_match_its_checksum_is_damaged(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "flipped.json.gz"
    packed = bytearray(gzip.compress(GOOD))
    packed[-8] ^= 1  # the checksum instead of the content: what was read cannot be told from what was written
    path.write_bytes(packed)
    with pytest.raises(Damaged, match="damaged"):
        job.open(path)
    assert left(store) == []
    session = Session(job.open(path, salvage=True))
    assert ledger(session) == ONE_STEP
    assert notes(session)["damaged file"] == 1


def test_a_file_of_several_gzip_members_is_one_trace(store: Path, tmp_path: Path) -> None:
    for padding in (b"", b"\0" * 100):
        path = tmp_path / f"members{len(padding)}.json.gz"
        parts = [GOOD[:100], GOOD[100:101], b"", GOOD[101:]]
        path.write_bytes(b"".join(gzip.compress(p) for p in parts) + padding)
        assert ledger(Session(job.open(path))) == ONE_STEP


def test_a_file_the_profiler_has_not_renamed_yet_is_read_when_it_is_named(asked: Asked) -> None:
    assert ledger(asked(GOOD, names=("trace.json.tmp",))) == ONE_STEP


# --- salvage
# ------------------------------------------------------------------------------------------


def test_salvage_keeps_the_whole_events_before_the_cut(asked: Asked) -> None:
    events = [*one_step(), *(kernel(1072 + 2 * i, 1, 10 + i) for i in range(9))]
    whole = trace(events)
    begins = [whole.index(event_text(e).strip().encode()) for e in events]
    first_kernel = begins[4]
    for at in range(first_kernel, len(whole) - 1, 97):
        with pytest.raises(Truncated) as caught:
            asked(whole[:at])
        kept = sum(begin + len(event_text(e).strip()) <= at for begin, e in zip(begins, events, strict=True))
        if kept < len(events):
            assert f"after event {kept}" in caught.value.message
            assert f"keeps the {kept} whole events" in caught.value.hint
        session = asked(whole[:at], salvage=True)
        assert rows(session, "kernels").height == kept - 3
        assert ledger(session)["compute"] == 40_250 + 1000 * (kept - 4)
        assert notes(session)["truncated file"] == 1
        # Without the end of the list nobody can know that nothing is missing.
        assert rows(session, "steps")["complete"].to_list() == [b"\n  ]" in whole[:at]]


def test_salvage_says_that_any_step_may_lack_work(asked: Asked) -> None:
    session = asked(trace([*one_step(), kernel(1080, 3, 2)])[:-30], salvage=True)
    (note,) = [q for q in session.trace.manifest.quality if q.name == "truncated file"]
    assert note.level == "warning"
    assert "any step may lack some of its work" in note.text


def test_salvage_refuses_a_gpu_trace_cut_before_its_gpu_work(asked: Asked, store: Path) -> None:
    cut = GOOD[: GOOD.index(b'"cat": "kernel"')]
    with pytest.raises(Truncated, match="before any GPU work"):
        asked(cut, salvage=True)
    assert left(store) == []


def test_salvage_of_nothing_is_refused(asked: Asked) -> None:
    with pytest.raises(Truncated) as caught:
        asked(GOOD[: GOOD.index(b"ProfilerStep")], salvage=True)
    assert "record again" in caught.value.hint


# --- broken JSON that torch writes
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["torch", "lines"])
@pytest.mark.parametrize(
    "name",
    ['a"b', '"', '""', 'say "hi", "you"', 'f("x", "y")', 'end"', '"begin', 'tab\there "q"', "a\nb"],
)
def test_names_that_torch_did_not_escape_are_repaired(name: str, layout: str, asked: Asked) -> None:
    bad = event_text(span("user_annotation", "NAME", 1072, 5), layout).replace("NAME", name)
    first, second, *others = one_step()
    session = asked(trace([bad, first, second, bad, *others, bad], layout=layout))
    assert ledger(session) == ONE_STEP
    shown = name.replace("\n", " ").replace("\t", " ")
    assert rows(session, "ranges")["name"].cast(pl.String).to_list().count(shown) == 3
    assert notes(session)["event names repaired"] == 3
    assert rows(session, "operators").height == 1


def test_thousands_of_bad_names_lose_no_event(asked: Asked) -> None:
    bad = [event_text(operator(f"NAME{i}", 1100 + i, 0.5)).replace("NAME", 'x"') for i in range(2000)]
    session = asked(trace([*one_step(), *bad]))
    assert rows(session, "operators").height == 2001
    assert notes(session)["event names repaired"] == 2000


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
def test_metadata_with_a_bare_quote_is_read_around(after: bool, asked: Asked) -> None:
    plain = head(rank=3, world=8, baseTimeNanoseconds=5_000_000_000)
    if after:
        broken = trace(one_step(), {}, {"note": "NOTE", **plain})
    else:
        broken = trace(one_step(), {"note": "NOTE", **plain})
    session = asked(broken.replace(b"NOTE", b'a"b'))
    assert ledger(session) == ONE_STEP
    assert notes(session)["damaged metadata"] == 1
    assert rows(session, "ranks")["rank"].to_list() == [3]
    assert session.trace.manifest.origin_ns == 5_001_000_000


@pytest.mark.parametrize(
    ("find", "put"),
    [
        (b"aten::mm", b"aten\x01\x1f::mm"),
        (b"aten::mm", b"aten\xff\xfe::mm"),
        (b"aten::mm", b"aten\\ud800::mm"),
        (b"aten::mm", b"\\udc00aten::mm"),
        (b'"correlation": 1}', b'"correlation": NaN}'),
        (b'"stream": 7', b'"stream": -Infinity'),
        (b'"stream": 7', b'"stream": [NaN]'),
    ],
)
@pytest.mark.parametrize("layout", ["torch", "line"])
def test_text_that_is_no_json_is_mended_event_by_event(
    find: bytes, put: bytes, layout: str, asked: Asked
) -> None:
    content = trace(one_step(), layout=layout)
    if find not in content:
        find, put = find.rstrip(b"}"), put.rstrip(b"}")
    session = asked(content.replace(find, put, 1))
    assert ledger(session) == ONE_STEP
    told = notes(session)
    assert told.get("events with text that is no JSON", 0) + told.get("event names repaired", 0) == 1


def test_a_name_of_two_surrogates_is_a_name(asked: Asked) -> None:
    session = asked(GOOD.replace(b"aten::mm", b"\\ud83d\\ude00"))
    assert rows(session, "operators")["name"].to_list() == ["😀"]
    assert "events with text that is no JSON" not in notes(session)


@pytest.mark.parametrize("tail", [b",\n  ]", b", ]", b",]"])
def test_a_comma_behind_the_last_event_does_no_harm(tail: bytes, asked: Asked) -> None:
    at = GOOD.rindex(b"\n  ]")
    session = asked(GOOD[:at] + tail + GOOD[at + 4 :])
    assert ledger(session) == ONE_STEP


@pytest.mark.parametrize("layout", ["torch", "lines", "line"])
@pytest.mark.parametrize("change", [b"\r\n", b"\n\n", b"\n        ", b"", b"\xef\xbb\xbf"])
def test_white_space_does_not_matter(layout: str, change: bytes, asked: Asked) -> None:
    content = trace(one_step(), layout=layout)
    content = change + content if change == b"\xef\xbb\xbf" else content.replace(b"\n", change)
    assert ledger(asked(content)) == ONE_STEP


def test_a_bare_list_of_events_is_a_trace(asked: Asked) -> None:
    content = "[" + ",".join(map(event_text, one_step())) + "\n]"
    assert ledger(asked(content.encode())) == ONE_STEP


# --- chunks
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["torch", "lines", "line"])
@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_it_does_not_matter_where_chunks_are_cut(
    layout: str, broken: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = [
        *one_step(),
        *(kernel(1072 + i, 0.5, 9 + i, grid=[i, {"a": [{}]}]) for i in range(20)),
    ]
    if broken:
        bad = event_text(span("user_annotation", "NAME", 1001, 5), layout).replace("NAME", 'a"b')
        events[5:5] = [] if layout == "line" else [bad]
        events += [event_text(operator("o", "NAN", 1), layout).replace('"NAN"', "NaN")]
    content = trace(events, layout=layout)
    for size in (1, 60, 333, 1000, len(content) - 1):
        monkeypatch.setattr(stream, "CHUNK", size)
        monkeypatch.setattr(stream, "BLOCK", max(20, size // 3))
        for name in ("trace.json", "trace.json.gz"):
            session = asked(content, names=(name,))
            assert rows(session, "kernels").height == 21
            assert ledger(session)["compute"] == 50_250
            assert notes(session).get("events with text that is no JSON", 0) == broken


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize(
    "fault", ["a quote", "a wrong type", "a cut", "coarse times", "a wrong checksum", "a list behind"]
)
def test_what_processes_cannot_decode_is_read_with_care(
    fault: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (fault, name) == ("a wrong checksum", "trace.json"):
        return
    monkeypatch.setattr(stream, "CHUNK", 2000)
    monkeypatch.setattr(kineto, "WORTH_PROCESSES", 0)
    shift = 1_712_345_678_900_000 if fault == "coarse times" else 0
    events = [*one_step(shift), *(kernel(shift + 1072 + i / 8, 0.125, 9 + i) for i in range(100))]
    content = trace(events)
    if fault == "a quote":
        content = content.replace(b"ampere", b'am"pere', 1)
    elif fault == "a wrong type":
        content = content.replace(b'"stream": 7', b'"stream": true', 1)
    elif fault == "a cut":
        content = content[:-50]
    elif fault == "a list behind":  # that looks as if the events ended with it
        end = content.rindex(b"\n  ]") + len(b"\n  ]")
        content = content[:end] + b',\n  "more": [\n    {\n  },\n  {\n  }\n  ]' + content[end:]
    path = written(tmp_path / name, content)
    if fault == "a wrong checksum":
        packed = bytearray(path.read_bytes())
        packed[-8] ^= 1
        path.write_bytes(packed)
    if fault in ("a cut", "a wrong checksum"):
        with pytest.raises((Truncated, Damaged)):
            kineto.read(path, tmp_path / "refused", processes=2)
    (part,) = kineto.read(path, tmp_path / "parts", processes=2, salvage=True)
    kernels = pl.read_parquet(Path(part.folder) / "kernels.parquet")
    assert kernels.height == (100 if fault == "a cut" else 101)
    last = {"a cut": 1_084_250, "coarse times": 1_084_500}.get(fault, 1_084_375)  # as Python writes doubles
    assert kernels["start"].max() == shift * 1000 + last
    assert not (tmp_path / "parts" / "chunks").exists()


# --- depth, length, keys
# ------------------------------------------------------------------------------------------


def test_depth_of_a_hundred_thousand_loses_one_event_or_the_key(asked: Asked) -> None:
    deep = event_text(operator("deep", 1030, 1, more={"x": "DEEP"})).replace('"DEEP"', DEEP.decode())
    session = asked(trace([*one_step(), deep]))
    assert ledger(session) == ONE_STEP
    assert notes(session)["events that could not be decoded"] == 1
    for place in ({"before": head(note="DEEP")}, {"after": {"note": "DEEP"}}):
        content = trace(one_step(), **place).replace(b'"DEEP"', DEEP)
        assert ledger(asked(content)) == ONE_STEP


def test_names_are_kept_whatever_they_are(asked: Asked) -> None:
    names = ["<script>alert(1)</script>", 'a "quoted" name', "two\nlines", "\x1b[31mred", "zero\0", "x" * 100]
    session = asked(trace([*one_step(), *(operator(n, 1030 + i, 0.5) for i, n in enumerate(names))]))
    assert rows(session, "operators")["name"].cast(pl.String).to_list() == ["aten::mm", *names]
    assert ledger(session) == ONE_STEP


def test_a_name_of_a_million_characters_is_cut(asked: Asked) -> None:
    session = asked(trace([*one_step(), operator("long" * 250_000, 1030, 1)]))
    longest = rows(session, "operators")["name"].cast(pl.String).str.len_chars().max()
    assert longest == 65_536
    assert ledger(session) == ONE_STEP


def test_an_event_larger_than_a_chunk_is_an_event(asked: Asked) -> None:
    big = operator("big", 1030, 1, more={"note": "y" * 9_000_000})
    assert rows(asked(trace([big, *one_step(), big])), "operators").height == 3


def test_of_two_equal_keys_the_last_counts(asked: Asked) -> None:
    text = event_text(kernel(1080, 3, 2)).replace('"dur": 3', '"dur": 300, "dur": 3')
    assert ledger(asked(trace([*one_step(), text])))["compute"] == 43_250


# --- times
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ts", ["x", None, [], {}, True, 2**53, 1e300, -(2**53), "1e999", 10**400])
def test_a_time_that_is_none_leaves_its_row_out_and_says_so(ts: Any, asked: Asked) -> None:
    session = asked(trace([*one_step(), kernel(ts, 3, 2)]))
    assert ledger(session) == ONE_STEP
    assert notes(session)["rows without usable times"] == 1


@pytest.mark.parametrize("dur", ["x", None, [], 1e300, 10**25, "missing"])
def test_a_duration_that_is_none_leaves_its_row_out(dur: Any, asked: Asked) -> None:
    bad = kernel(1080, dur, 2)
    if dur == "missing":
        del bad["dur"]
    session = asked(trace([*one_step(), bad]))
    assert ledger(session) == ONE_STEP
    assert notes(session)["rows without usable times"] == 1


def test_a_duration_of_centuries_leaves_its_row_out(asked: Asked) -> None:
    session = asked(trace([*one_step(), kernel(1080, 1e15, 2)]))
    assert ledger(session) == ONE_STEP
    assert notes(session)["rows longer than ten days"] == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda e: [{**{k: v for k, v in e.items() if k != "dur"}, "ph": "B"}, {"ph": "i", "ts": e["ts"] + 1}],
        lambda e: [{**e, "ts": (e["ts"] + 1.8e15) * 1000}],
    ],
    ids=["beginnings without ends", "nanoseconds since 1970"],
)
def test_events_without_a_duration_or_a_time_are_said_to_be_so(change: Any, tmp_path: Path) -> None:
    events = [half for event in one_step() for half in change(event)]
    path = written(tmp_path / "rank0.json", trace(events, layout="line"))
    with pytest.raises(
        NothingRecorded, match=r"[48] do not tell when they began or how long they took"
    ) as said:
        kineto.read(path, tmp_path / "out")
    assert "microseconds" in said.value.hint


def test_a_negative_duration_counts_as_none(asked: Asked) -> None:
    session = asked(trace([*one_step(), kernel(1080, -3, 2)]))
    assert ledger(session) == ONE_STEP
    assert notes(session)["rows with a negative duration"] == 1
    assert notes(session)["GPU rows with a negative duration"] == 1
    assert (rows(session, "kernels")["end"] >= rows(session, "kernels")["start"]).all()


@pytest.mark.parametrize("base", [0, 1_790_857_026_000_000_000])
def test_a_row_at_time_zero_is_not_the_beginning_of_the_recording(base: int, asked: Asked) -> None:
    events = [e for e in one_step(shift=1_700_000_000_000_000) if e["cat"] != "user_annotation"]
    session = asked(trace([kernel(0, 3, 2), *events], head(baseTimeNanoseconds=base)))
    assert notes(session)["rows more than ten days from the others"] == 1
    (start, end), *none = rows(session, "steps").select("start", "end").rows()
    assert not none and end - start < 200_000


def test_numbers_as_text_are_numbers(asked: Asked) -> None:
    bad = kernel("1080.5", "3.25", "2", stream="stream 7")
    bad["args"]["device"] = "0"
    session = asked(trace([*one_step(), bad]))
    assert ledger(session)["compute"] == 43_500
    assert rows(session, "kernels")["stream"].to_list() == [7, 7]


def test_microseconds_since_1970_with_decimals_are_exact(asked: Asked) -> None:
    """A double holds them to a quarter of a microsecond."""
    at = Decimal("1712345678901234.567")
    texts = [
        event_text(e).replace('"ts": 0', f'"ts": {at + offset}')
        for e, offset in (
            (step(7, 0, 100), Decimal("0.001")),
            (kernel(0, 0.003, 1), Decimal("10.009")),
            (kernel(0, 40.1, 2), Decimal("20.1")),
        )
    ]
    session = asked(trace(texts))
    assert session.trace.manifest.origin_ns == 1712345678901234568
    kernels = rows(session, "kernels").select("start", "end").rows()
    assert kernels == [(10_008, 10_011), (20_099, 60_199)]
    assert ledger(session) == {"compute": 40_103, "idle": 59_897}


def test_exact_times_are_read_through_every_way(asked: Asked) -> None:
    """As text, as broken JSON and beside fields of wrong types, too."""
    late = 1_712_345_678_900_000
    events = one_step(shift=late)
    odd = kernel(0, 1, 9)
    odd["args"]["stream"] = True
    quoted = (
        event_text(kernel(0, 1, 8, name="NAME"))
        .replace("NAME", 'a"b')
        .replace('"ts": 0', f'"ts": {late}1090.125')
    )
    texts = [
        *(event_text(e) for e in events),
        event_text(odd).replace('"ts": 0', f'"ts": {late + 1080}.375'),
        quoted.replace(f"{late}1090", f"{late + 1090}"),
        event_text(kernel(0, 1, 7)).replace('"ts": 0', f'"ts": "{late + 1095}.625"'),
    ]
    session = asked(trace(texts))
    origin = session.trace.manifest.origin_ns
    begins = sorted(rows(session, "kernels")["start"] + origin - late * 1000)
    assert begins == [1_030_500, 1_080_375, 1_090_125, 1_095_625]


@given(st.integers(0, 2**43 * 1000 - 1))
@settings(max_examples=300, deadline=None)
def test_relative_times_convert_exactly(ns: int) -> None:
    written_as = float(f"{ns // 1000}.{ns % 1000:03d}")
    found, good = nanoseconds([written_as])
    assert (found.tolist(), good.tolist()) == ([ns], [True])


@given(st.integers(2**43 * 1000, 2**62 - 2000))
@settings(max_examples=300, deadline=None)
def test_late_times_are_exact_or_refused(ns: int) -> None:
    digits = f"{ns // 1000}.{ns % 1000:03d}"
    found, good = nanoseconds([Decimal(digits)], exact=True)
    assert (found.tolist(), good.tolist()) == ([ns], [True])
    with pytest.raises(CoarseTimesError):
        nanoseconds([float(digits)])
    whole, _ = nanoseconds([ns // 1000])
    assert whole.tolist() == [ns // 1000 * 1000]


def test_the_base_is_added_wherever_it_stands(asked: Asked) -> None:
    base = 1_790_857_026_000_000_000
    before = asked(trace(one_step(), head(baseTimeNanoseconds=base)))
    assert before.trace.manifest.origin_ns == base + 1_000_000
    behind = asked(trace(one_step(), head(), {"baseTimeNanoseconds": base}), names=("other.json",))
    assert behind.trace.manifest.origin_ns == base + 1_000_000


@pytest.mark.parametrize("base", ["x", None, -5, 2**70, 1.5, [], {}, True])
def test_a_base_that_is_none_is_not_added(base: Any, asked: Asked) -> None:
    session = asked(trace(one_step(), head(baseTimeNanoseconds=base)))
    assert ledger(session) == ONE_STEP


# --- arguments
# ------------------------------------------------------------------------------------------

WRONG = [
    None,
    True,
    "",
    "text",
    "-7",
    "0x0",
    -1,
    0.5,
    2**31,
    2**63,
    2**64 + 3,
    10**40,
    1e308,
    [],
    [[1, "a"]],
    {},
]


def test_arguments_of_any_type_move_no_time(asked: Asked) -> None:
    """Every argument that is read, with every wrong value, on every kind of row."""
    keys = [f.encode_name for f in __import__("msgspec").structs.fields(Args)]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation", "overhead")
    kinds += ("cpu_instant_event", "python_function", "cuda_sync")
    keys.remove("device")  # which says whose time it is
    odd = []
    for n, value in enumerate(WRONG):
        for key in keys:
            for kind in kinds:
                event = span(kind, "c10d::allreduce_" if kind == "cpu_op" else "[memory]", 1031, 0.25, 1)
                odd.append({**event, "pid": 0, "args": {key: value}})
        odd += [{**e, "args": value} for e in one_step()[1:] if not isinstance(value, dict) and n]
    session = asked(trace([*one_step(), *odd]))
    assert ledger(session) == ONE_STEP
    for name in ("kernels", "operators", "launches", "ranges", "copies"):
        assert rows(session, name).height


@pytest.mark.parametrize("key", ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
def test_fields_of_any_type_or_none_make_no_wrong_number(key: str, asked: Asked) -> None:
    """All of them lie where a kernel runs already, or outside the step."""
    odd: list[dict[str, Any]] = []
    events = [kernel(1031, 2, 9), call(1031, 1, 9), operator("aten::add", 1031, 3), step(7, 1031, 5)]
    values = [*WRONG, "gone"]
    if key in ("ts", "dur"):  # numbers would be true
        events, values = events[:-1], [v for v in values if not isinstance(v, (int, float)) or v < 0]
    for event in events:
        for value in values:
            odd.append({**event, key: value})
            if value == "gone":
                del odd[-1][key]
    assert ledger(asked(trace([*one_step(), *odd]))) == ONE_STEP


@pytest.mark.parametrize(
    "info",
    [
        [], 3, "x", {"rank": "x"}, {"rank": -1}, {"rank": 2**40}, {"rank": None}, {"rank": [0]},
        {"rank": True, "world_size": True}, {"rank": False, "pg_config": [{"ranks": [True, False]}]},
        {"rank": 1.5e300}, {"world_size": 2**40}, {"world_size": "many"}, {"world_size": 0},
        {"backend": ["a"]}, {"pg_config": 5},
        {"pg_config": [5, {"ranks": "[0, 1"}, {"ranks": "x"}, {"ranks": [None, -1, 2**40]}, {"pg_name": {}}]},
    ],
)  # fmt: skip
def test_distributed_info_of_any_type_is_survived(info: Any, asked: Asked) -> None:
    session = asked(trace(one_step(), {**head(None), "distributedInfo": info}))
    assert ledger(session) == ONE_STEP
    assert rows(session, "ranks")["rank"].to_list() in ([0], [1])


@pytest.mark.parametrize(
    "devices",
    [
        [],
        3,
        "x",
        {},
        [3, {}, None],
        [{"id": "x", "name": 5, "numSms": "many"}],
        [{"id": 0, "name": "\ud800"}],
    ],
)
def test_device_properties_of_any_type_are_survived(devices: Any, asked: Asked) -> None:
    session = asked(trace(one_step(), {**head(), "deviceProperties": devices}))
    assert ledger(session) == ONE_STEP


def test_records_that_the_profiler_dropped_are_counted(asked: Asked) -> None:
    lines = ["Dropped 12 activity records", "[x] dropped 30 activity records.", "other", 5]
    session = asked(trace(one_step(), head(), {"WARNING": lines}))
    assert notes(session)["activity records dropped by the profiler"] == 42


def test_unknown_categories_are_kept_as_ranges_and_counted(asked: Asked) -> None:
    odd = [span("brand\nnew", "x", 1031, 1), span("brand\nnew", "y", 1033, 1), span("", "z", 1035, 1)]
    session = asked(trace([*one_step(), *odd]))
    assert notes(session)["rows of category 'brand\\nnew'"] == 2
    assert rows(session, "ranges").filter(pl.col("name").cast(pl.String).is_in(["x", "y"])).height == 2


def test_threads_that_are_no_numbers_are_threads(asked: Asked) -> None:
    events = [{**e, "tid": "main"} if e["cat"] != "kernel" else e for e in one_step()]
    assert ledger(asked(trace(events)))["compute"] == 40_250


# --- ranks
# ------------------------------------------------------------------------------------------


def test_two_files_of_one_rank_are_refused_by_name(asked: Asked, store: Path) -> None:
    contents = [trace(one_step(shift), head(3, 4)) for shift in (0, 50)]
    with pytest.raises(SameRankTwice) as caught:
        asked(*contents, names=("first.json", "second.json"))
    assert "first.json and second.json both hold rank 3" in caught.value.message
    assert left(store) == []


def test_two_recordings_of_one_rank_one_after_the_other_are_one_rank(asked: Asked) -> None:
    later = [{**e, "name": "ProfilerStep#11"} if "Step" in e["name"] else e for e in one_step(500)]
    session = asked(trace(one_step(), head(0)), trace(later, head(0)))
    assert rows(session, "steps").select("rank", "step").sort("step").rows() == [(0, 7), (0, 11)]
    assert rows(session, "ranks").height == 1
    assert ledger(session) == {account: 2 * ns for account, ns in ONE_STEP.items()}


def test_recordings_that_count_from_one_number_are_renumbered(asked: Asked) -> None:
    session = asked(trace(one_step(), head(0)), trace(one_step(500), head(0)))
    assert rows(session, "steps")["step"].sort().to_list() == [7, 8]
    assert notes(session)["steps renumbered"] == 1


def test_recordings_may_be_given_in_any_order(asked: Asked) -> None:
    session = asked(trace(one_step(500), head(0)), trace(one_step(), head(0)))
    steps = rows(session, "steps").sort("start")
    assert steps["step"].is_sorted() and steps["step"].n_unique() == 2
    assert ledger(session) == {account: 2 * ns for account, ns in ONE_STEP.items()}


def test_ranks_that_are_missing_are_asked_for(asked: Asked, store: Path) -> None:
    contents = [trace(one_step(), head(rank, 5)) for rank in (0, 3)]
    with pytest.raises(RanksMissing, match="Missing: 1, 2, 4"):
        asked(*contents)
    read = left(store)
    session = asked(*contents, allow_missing_ranks=True)
    assert rows(session, "ranks")["rank"].to_list() == [0, 3]
    assert read and set(read) <= set(left(store)), "what was read is not read again"


def test_ranks_that_files_do_not_tell_are_told_apart(asked: Asked) -> None:
    session = asked(*(trace(one_step(), head(None)) for _ in range(3)))
    assert sorted(rows(session, "ranks")["rank"]) == [0, 1, 2]
    assert set(rows(session, "ranks")["rank_source"]) == {"assigned"}
    told = [q for q in session.trace.manifest.quality if q.name == "rank not recorded"]
    assert [q.level for q in told] == ["warning"] * 3


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-12.json", 12), ("rank_3.json", 3), ("worker5.json", 5), ("rank007.pt.trace.json", 7),
        ("num_workers_0__worker4.json", 4), ("rank2_worker9.json", 2), ("RANK1.json", 1),
        ("rank1_of_rank2.json", None), ("frank.json", None), ("rank99999999.json", None),
    ],
)  # fmt: skip
def test_a_file_without_a_rank_takes_it_from_its_name(name: str, rank: int | None, asked: Asked) -> None:
    session = asked(trace(one_step(), head(None)), names=(name,))
    source = "assigned" if rank is None else "file name"
    assert rows(session, "ranks").select("rank", "rank_source").rows() == [(rank or 0, source)]


def test_the_content_names_the_rank_not_the_file(asked: Asked) -> None:
    session = asked(trace(one_step(), head(6, 8)), names=("rank-2.json",))
    assert rows(session, "ranks")["rank"].to_list() == [6]
    (note,) = [q for q in session.trace.manifest.quality if q.name == "rank in the file's name"]
    assert "2" in note.text and "6" in note.text


@pytest.mark.parametrize(
    "group",
    [
        {"Process Group Ranks": "[6, 7, 8, 9]"},
        {"Process Group Ranks": "[6, 7, ...]", "Global rank start": 6, "Global rank stride": 1},
        {"Global rank start": 2, "Global rank stride": 3},
    ],
)
def test_the_rank_that_an_operation_names_counts_within_its_group(
    group: dict[str, Any], asked: Asked
) -> None:
    said = {"Collective name": "allreduce", "Rank": 2, "Group size": 4, **group}
    events = [*one_step(), operator("record_param_comms", 1012, 2, more=said)]
    session = asked(trace(events, before=head(None)), names=("rank8.json",))
    assert rows(session, "ranks")["rank"].to_list() == [8]
    assert "rank in the file's name" not in notes(session)


def test_one_process_on_two_devices_is_shown_as_two_ranks(asked: Asked) -> None:
    other, little, unknown = (kernel(at, length, 2) for at, length in ((1040, 20), (1080, 0.5), (1082, 0.25)))
    other["args"]["device"], little["args"]["device"] = 5, 3
    del unknown["args"]["device"], unknown["pid"]
    session = asked(trace([*one_step(), other, little, unknown], head(None)))
    assert rows(session, "ranks").select("rank", "device").sort("rank").rows() == [(0, 0), (1, 5)]
    kernels = rows(session, "kernels").sort("rank", "start").select("rank", "device").rows()
    assert kernels == [(0, 0), (0, 3), (0, None), (1, 5)]
    assert ledger(session)["compute"] == 40_250 + 500 + 250 + 20_000
    assert notes(session)["devices with little work"] == 1


def test_one_bad_file_of_many_refuses_the_job_and_leaves_nothing(asked: Asked, store: Path) -> None:
    contents = [trace(one_step(), head(r, 3)) for r in range(3)]
    contents[1] = contents[1][:-40]
    with pytest.raises(Truncated, match=r"trace1\.json"):
        asked(*contents)
    assert left(store) == []


def test_the_same_job_is_read_by_processes_of_its_own(
    asked: Asked, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    contents = [trace(one_step(), head(r, 2)) for r in range(2)]
    session = asked(*contents)
    assert rows(session, "ranks")["rank"].to_list() == [0, 1]
    assert ledger(session) == {account: 2 * ns for account, ns in ONE_STEP.items()}
    with pytest.raises(Truncated, match=r"trace0\.json"):
        asked(contents[0][:-60], contents[1])


# --- privacy
# ------------------------------------------------------------------------------------------

SECRET = "canary4711"


def test_what_nobody_asked_for_is_stored_nowhere(asked: Asked) -> None:
    """One word in every place that a trace may give away; no file of the run holds it."""
    args = {
        "kernel_file": f"/home/{SECRET}/k.py", "kernel_hash": SECRET, "src": SECRET, "dst": SECRET,
        "ptr": SECRET, "Call stack": f"/home/{SECRET}.py(3): f;g", "Module Hierarchy": SECRET,
        "Input Tensors start": SECRET, "Output Tensors start": SECRET, "kernel": SECRET,
        "kernel_kwargs": SECRET, "Addr": SECRET,
        "Concrete Inputs": [SECRET], "Comms Id": SECRET, SECRET: 1, "hsa_queue": SECRET,
        "External id": SECRET, "nested": {"a": [SECRET]},
    }  # fmt: skip
    address = 0xCA9A12345678
    events = [{**e, "args": {**args, **e["args"]}} for e in one_step()]
    events += [
        span("python_function", f"/home/{SECRET}/job/train.py(12): step", 1001, 50),
        span("python_function", f"/opt/{SECRET}/lib/python3.12/site-packages/torch/nn/a.py(1): f", 1002, 40),
        span("python_function", f"C:\\Users\\{SECRET}\\train.py(13): step", 1003, 30),
        span("python_function", f"<built-in method run of Engine object at {hex(address)}>", 1004, 20),
        operator("c10d::allreduce_", 1062, 2, **args),
        {**META, "args": {"name": SECRET, "labels": SECRET}},
        {**META, "name": "thread_name", "args": {"name": f"thread 1 ({SECRET})"}},
        {
            "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1020,
            "args": {"Addr": address, "Bytes": 512, "Device Type": 1, "Device Id": 0, "Total Allocated": 512},
        },
        {"ph": "s", "cat": "ac2g", "name": SECRET, "id": 1, "pid": 1, "tid": 1, "ts": 1},
    ]  # fmt: skip
    before = head(
        0, 1, host_name=SECRET, trace_id=SECRET, username=SECRET, PT_PROFILER_JOB_NAME=SECRET,
        tw_job=SECRET, INFO=[SECRET], WARNING=[f"Dropped 3 activity records on {SECRET}"],
        env={"TOKEN": SECRET}, HOME=SECRET,
    )  # fmt: skip
    before["distributedInfo"]["nccl_comm"] = SECRET
    before["distributedInfo"]["pg_config"] = [{"pg_name": "0", "backend_config": SECRET, "ranks": [0]}]
    before["deviceProperties"][0]["uuid"] = SECRET
    after = {"traceName": f"/tmp/{SECRET}.json", "metadata": {"a": SECRET}, "user": SECRET}
    for names in (("rank-0.json",), ("rank-0.json.gz",)):
        session = asked(trace(events, before, after), names=names)
        assert ledger(session)["compute"] == 40_250
        frames = rows(session, "frames")["name"].cast(pl.String).to_list()
        assert frames == [
            "train.py(12): step",
            "torch/nn/a.py(1): f",
            "train.py(13): step",
            "<built-in method run of Engine object>",
        ]
        assert rows(session, "allocations")["address"].to_list() == [1]
        files = [p for p in session.trace.path.rglob("*") if p.is_file()]
        assert len(files) > 7
        for file in files:
            content = file.read_bytes()
            if file.suffix == ".parquet":
                pl.read_parquet(file).write_ndjson(file.with_suffix(".txt"))
                content += file.with_suffix(".txt").read_bytes()
                file.with_suffix(".txt").unlink()
            assert SECRET.encode() not in content, file
            assert str(address).encode() not in content and b"ca9a1234" not in content.lower(), file


@pytest.mark.parametrize(
    ("written_as", "kept"),
    [
        ("/home/me/job/train.py(12): step", "train.py(12): step"),
        ("torch/optim/adamw.py(220): step", "torch/optim/adamw.py(220): step"),
        ("/usr/lib/python3.12/multiprocessing/queues.py(98): get", "multiprocessing/queues.py(98): get"),
        ("/v/lib/python3.11/site-packages/torch/x.py(3): <lambda>", "torch/x.py(3): <lambda>"),
        ("/home/me (work)/a.py(3): f", "a.py(3): f"),
        ("../me/a.py(3): f", "a.py(3): f"),
        ("~/me/a.py(3): f", "a.py(3): f"),
        ("C:\\Users\\me\\a.py(3): f", "a.py(3): f"),
        ("<frozen importlib._bootstrap>(241): _call", "<frozen importlib._bootstrap>(241): _call"),
        ("nn.Module: Linear_3", "nn.Module: Linear_3"),
        ("<built-in method to of Tensor object at 0x7f01>", "<built-in method to of Tensor object>"),
    ],
)
def test_frames_keep_what_tells_the_code_and_lose_where_it_lay(written_as: str, kept: str) -> None:
    assert frame_name(written_as) == kept


def test_a_trace_whose_only_operator_is_a_profiler_step_is_answered(asked: Asked) -> None:
    """Profilers before 1.11 wrote their steps among the operators."""
    marks = operator("ProfilerStep#7", 1000, 100)
    session = asked(trace([marks, call(1015, 5, 1), kernel(1030.5, 40.25, 1)]))
    assert ledger(session)["compute"] == 40_250


@pytest.mark.parametrize("odd", ["[]", "[{}]", "7", '"x"', "null", '[{"ph": "X"}, []]'])
def test_an_event_that_is_none_loses_itself_alone(odd: str, asked: Asked) -> None:
    session = asked(trace([odd, *one_step()]))
    assert ledger(session)["compute"] == 40_250


@pytest.mark.parametrize("before", ["[]", "[[], []]", "[{}]", "[]\n", "7", "null"])
@pytest.mark.parametrize("bare", [True, False])
def test_a_list_among_the_events_is_no_event(before: str, bare: bool, asked: Asked) -> None:
    texts = [event_text(event, "line") for event in one_step()]
    text = f"[{before},{','.join(texts)}]"
    session = asked((text if bare else f'{{"traceEvents": {text}}}').encode())
    assert ledger(session) == ONE_STEP


def test_counts_below_0_become_null(asked: Asked) -> None:
    odd = {"registers per thread": -8, "shared memory": -2}
    kernels = rows(asked(trace([*one_step(), kernel(1080, 3, 2, **odd)])), "kernels").sort("start")
    assert kernels.select("registers", "shared_memory").row(-1) == (None, None)
