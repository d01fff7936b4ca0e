"""The step logs of a recorded job beside its traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lostflops
from lostflops.ingest.step_log import reader as step_logs
from lostflops.report.first_page import page, sentences
from lostflops.session import Answer, Session


def log(rank: int, steps: int, world: int = 2, window: tuple[int, ...] = ()) -> str:
    who = {"kind": "rank", "rank": rank, "world": world}
    lines = [
        {"step": n, "end": n, "duration": 1000 + n if n else None, "own": 7, "data": 10 * n}
        | {"optimizer": 3, "checkpoint": 0, "gc": 0, "micro_steps": 2, "window": int(n in window)}
        for n in range(steps)
    ]
    clock = {"kind": "clock", "monotonic": 1, "wall": 2}
    return "".join(json.dumps(line) + "\n" for line in (who, *lines, clock))


def run(folder: Path, **logs: str) -> Path:
    node = folder / "node-0000"
    node.mkdir()
    for name, text in logs.items():
        (node / f"steps-{name.replace('_', '-')}.jsonl").write_text(text)
    return folder


def test_logs_become_a_table(tmp_path: Path) -> None:
    found = step_logs.documents([run(tmp_path, _00000_a0=log(0, 3), _00001_a0=log(1, 2, window=(1,)))])
    assert found == []
    (tmp_path / "other").mkdir()
    folder = run(tmp_path / "other", **{"00000_a0": log(0, 3), "00001_a0": log(1, 2, window=(1,))})
    logs, notes = step_logs.logged(step_logs.documents([folder]))
    tables = step_logs.tables(logs)
    assert notes == []
    table = tables["step_log"].select("rank", "world_size", "step", "duration", "data", "recorded")
    assert table.rows() == [
        (0, 2, 0, None, 0, False),
        (0, 2, 1, 1001, 10, False),
        (0, 2, 2, 1002, 20, False),
        (1, 2, 0, None, 0, False),
        (1, 2, 1, 1001, 10, True),
    ]


def test_a_folder_of_step_logs_goes_beside_the_traces(tmp_path: Path) -> None:
    folder = run(tmp_path, **{f"0000{rank}_a0": log(rank, 3 + rank, world=2) for rank in range(2)})
    ddp = Path(__file__).parents[2] / "examples" / "runs" / "ddp"
    trace = lostflops.open([ddp, folder])
    table = trace.table("step_log")
    assert table is not None and table.collect().height == 7
    alone = lostflops.open(folder).table("ranks")
    assert alone is not None
    assert alone.sort("rank").select("rank", "source", "world_size").collect().rows() == [
        (0, "step log", 2),
        (1, "step log", 2),
    ]
    with pytest.raises(lostflops.LostflopsError, match="holds no trace"):
        lostflops.open(folder / "node-0000")


def test_of_a_restarted_job_the_last_attempt_counts(tmp_path: Path) -> None:
    folder = run(tmp_path, **{"00000_a0": log(0, 9), "00000_a2": log(0, 2), "00001_a1": log(1, 4)})
    assert [path.name for path in step_logs.documents([folder])] == ["steps-00000-a2.jsonl"]


@pytest.mark.parametrize(
    "first",
    ["", "{", "[]", '{"kind":"rank","rank":-1}', '{"kind":"rank","rank":"0"}', '{"rank":99999999999}'],
)
def test_what_is_no_log_is_left_out_and_said(first: str, tmp_path: Path) -> None:
    folder = run(tmp_path, **{"00000_a0": first + "\n", "00001_a0": log(1, 2)})
    logs, notes = step_logs.logged(step_logs.documents([folder]))
    tables = step_logs.tables(logs)
    assert tables["step_log"]["rank"].to_list() == [1, 1]
    assert [note.name for note in notes] == ["step log left out"]


def test_torn_lines_are_counted_and_cost_no_other(tmp_path: Path) -> None:
    torn = (
        log(0, 2) + '{"step":2,"dur\n\n{"step":1e999}\n{"step":99999999999999999999}\n' + '{"step":3}\n{"st'
    )
    folder = run(tmp_path, **{"00000_a0": torn, "00000_a0-p77": log(0, 5)})
    logs, notes = step_logs.logged(step_logs.documents([folder]))
    tables = step_logs.tables(logs)
    assert tables["step_log"]["step"].to_list() == [0, 1, 3]
    assert tables["step_log"]["micro_steps"].to_list() == [2, 2, None]
    assert [(note.name, note.count) for note in notes] == [("step log left out", 1), ("steps not logged", 4)]


def test_times_that_no_step_takes_cost_their_line_and_parts_end_with_their_step(tmp_path: Path) -> None:
    """A clock that jumps, a machine that slept in a step, a loader that is timed on a thread of its own."""
    ten_days = 10 * 24 * 3600 * 10**9
    who, *lines = log(0, 5, world=1).splitlines()[:6]
    changed = [json.loads(line) for line in lines]
    changed[1]["duration"] = -3
    changed[2]["duration"] = ten_days + 1
    changed[3]["duration"] = ten_days
    parts = ("own", "optimizer", "data", "checkpoint", "gc", "core_wait", "on_core")
    changed[4] |= {"duration": 1000, **dict.fromkeys(parts, 1001)}
    text = "".join(json.dumps(line) + "\n" for line in (json.loads(who), *changed))
    logs, notes = step_logs.logged(step_logs.documents([run(tmp_path, **{"00000_a0": text})]))
    table = step_logs.tables(logs)["step_log"]
    assert table.select("step", "duration").rows() == [(0, None), (3, ten_days), (4, 1000)]
    assert table.select(*(p if p != "gc" else "garbage" for p in parts)).row(2) == (1000,) * 7
    assert [(note.name, note.count) for note in notes] == [("steps not logged", 2)]
    assert "impossible times" in notes[0].text


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "line", [b'{"kind":"e\xeed"}', b'{"step":"\xff"}', DEEP], ids=["key", "text", "deep"]
)
def test_bytes_that_are_no_text_cost_their_line(line: bytes, tmp_path: Path) -> None:
    folder = run(tmp_path, **{"00000_a0": "", "00001_a0": ""})
    first, whole = log(0, 2, world=1).encode(), log(1, 2).encode()
    (folder / "node-0000" / "steps-00000-a0.jsonl").write_bytes(line + b"\n" + whole)
    (folder / "node-0000" / "steps-00001-a0.jsonl").write_bytes(first + line + b"\n")
    (folder / "recording.jsonl").write_bytes(b'{"kind":"start"}\n' + line + b'\n{"kind":"end","status":3}\n')
    (folder / "node-0000" / "failed-00000.jsonl").write_bytes(line)
    logs, notes = step_logs.logged(step_logs.documents([folder]))
    assert [(log.who.rank, len(log.steps), log.torn) for log in logs] == [(0, 2, 1)]
    assert [note.name for note in notes] == ["step log left out", "steps not logged"]
    assert step_logs.tables(logs)["rank_ends"]["job_status"].to_list() == [3]


def test_the_first_page_says_how_the_recorded_steps_compare(tmp_path: Path) -> None:
    folder = run(tmp_path, **{"00000_a0": log(0, 40, world=3, window=(10, 11, 12))})
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
        for cat, name, ts, dur in (
            ("user_annotation", "ProfilerStep#10", 0, 50),
            ("cpu_op", "aten::mm", 5, 30),
        )
    ]
    trace = {"distributedInfo": {"rank": 0, "world_size": 3}, "traceEvents": events}
    (folder / "node-0000" / "window-00000-a0-w000.pt.trace.json").write_text(json.dumps(trace))
    opened = lostflops.open(folder)
    shown = page.page(opened, Session(opened))
    assert (
        "The step log has 40 steps; the median outside warm-up and recording is 1.02 µs (rank 0), that of "
        "recorded steps 1.01 µs."
    ) in shown.notes
    (absent,) = [f for f in shown.findings if f.name == "ranks-never-reported"]
    assert absent.claim == "2 of 3 ranks never finished a step that was seen: 1, 2."
    assert absent.evidence == ("1 rank has a step log",) and "parameter server" in absent.next
    (folder / "node-0000" / "steps-00001-a0.jsonl").write_text(log(1, 3))
    table = lostflops.open(folder).table("step_log")
    assert table is not None and table.collect().height == 43, "a log that grows is read again"


def test_recorded_steps_that_are_as_long_as_many_others_are_not_called_slower(tmp_path: Path) -> None:
    """Every second step validates: the median of five recorded steps may be one that does."""
    lines = [json.loads(line) for line in log(0, 40, world=1, window=(10, 11, 12)).splitlines()]
    for line in lines:
        if line.get("step"):
            line["duration"] = (900, 20)[line["step"] % 2] * 10**6
    text = "".join(json.dumps(line) + "\n" for line in lines)
    answer = Session(lostflops.open(run(tmp_path, **{"00000_a0": text}))).run("step_log_summary")
    assert isinstance(answer, Answer)
    (told,) = list(sentences.steps({"step_log_summary": answer}))
    (alone,) = list(sentences.steps({"step_log_summary": answer}, log_alone=True))
    assert told.startswith(alone.rstrip(".")) and "recorded steps" not in alone  # their window was lost
    assert told == (
        "The step log has 40 steps; the median outside warm-up and recording is 20.0 ms (rank 0), that of "
        "recorded steps 900 ms: 48.5 % of the others are as long."
    )
    assert answer.findings == ()


def test_steps_that_are_shorter_after_the_recording_are_told_apart(tmp_path: Path) -> None:
    """As memory is there and caches are warm by then: the median of both is that of neither."""
    lines = [json.loads(line) for line in log(0, 40, world=1, window=(10, 11, 12)).splitlines()]
    for line in lines:
        if line.get("step") is not None:
            line["duration"] = (76 if line["step"] < 10 else 80 if line["step"] < 13 else 44) * 10**6
    text = "".join(json.dumps(line) + "\n" for line in lines)
    answer = Session(lostflops.open(run(tmp_path, **{"00000_a0": text}))).run("step_log_summary")
    assert isinstance(answer, Answer)
    (told,) = list(sentences.steps({"step_log_summary": answer}))
    assert told == (
        "The step log has 40 steps; the median outside warm-up and recording is 44.0 ms (rank 0): 76.0 ms "
        "before the recording and 44.0 ms after it, that of recorded steps 80.0 ms. Its steps changed "
        "meanwhile: read shares with care."
    )
    (found,) = answer.findings
    assert found.claim == (
        "Recorded steps were 80.0 ms long, those before them 76.0 ms and those after 44.0 ms; read shares "
        "with care."
    )
