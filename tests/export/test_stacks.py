"""Flame graphs: whose time a stack has, and that speedscope's profiles are well formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lostflops

HOST, DEVICE = {"pid": 9, "tid": 9}, {"pid": 0, "tid": 7}


def event(category: str, name: str, ts: int, dur: int, where: dict[str, int], **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **where, "args": args}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An annotation with an operator that launches two kernels, which overlap, and a copy of its own."""
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    events = [
        event("user_annotation", "a;b", 0, 100, HOST),
        event("cpu_op", "aten::mm", 10, 60, HOST),
        event("cuda_runtime", "cudaLaunchKernel", 20, 5, HOST, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 30, 7, HOST, correlation=2),
        event("cuda_runtime", "cudaMemcpyAsync", 80, 4, HOST, correlation=3),
        event("kernel", "k1", 40, 30, DEVICE, correlation=1, device=0, stream=7),
        event("kernel", "k2", 60, 50, {"pid": 0, "tid": 20}, correlation=2, device=0, stream=20),
        event(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 120, 9, DEVICE, correlation=3, device=0, stream=7
        ),
    ]
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (
            "host",
            {
                "rank 0;thread 9;a,b": 36_000,
                "rank 0;thread 9;a,b;aten::mm": 48_000,
                "rank 0;thread 9;a,b;aten::mm;cudaLaunchKernel": 12_000,
                "rank 0;thread 9;a,b;cudaMemcpyAsync": 4_000,
            },
        ),
        (
            "device",
            {
                "rank 0;thread 9;a,b;aten::mm;cudaLaunchKernel": 80_000,
                "rank 0;thread 9;a,b;cudaMemcpyAsync": 9_000,
            },
        ),
        (
            "exposed",
            {
                "rank 0;thread 9;a,b;aten::mm;cudaLaunchKernel": 60_000,
                "rank 0;thread 9;a,b;cudaMemcpyAsync": 9_000,
            },
        ),
    ],
)
def test_a_stack_has_its_own_time_or_that_of_what_it_launched(
    run: Path, tmp_path: Path, weight: Any, expected: dict[str, int]
) -> None:
    lostflops.write(run, tmp_path / "out.folded", weight=weight)
    lines = (tmp_path / "out.folded").read_text().splitlines()
    assert {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines} == expected


def test_a_profile_opens_and_closes_frames_in_order(run: Path, tmp_path: Path) -> None:
    lostflops.write(run, tmp_path / "out.speedscope.json")
    document = json.loads((tmp_path / "out.speedscope.json").read_text())
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (profile,) = document["profiles"]
    assert profile["name"] == "rank 0, thread 9"
    assert (profile["startValue"], profile["endValue"]) == (0, 100_000)
    opened: list[int] = []
    closed: list[tuple[str, int]] = []
    at = 0
    began: dict[int, int] = {}
    for one in profile["events"]:
        assert one["at"] >= at
        at = one["at"]
        if one["type"] == "O":
            began[len(opened)] = at
            opened.append(one["frame"])
        else:
            assert opened.pop() == one["frame"]
            closed.append((frames[one["frame"]], at - began[len(opened)]))
    assert opened == []
    assert sorted(closed) == [
        ("a;b", 100_000),
        ("aten::mm", 60_000),
        ("cudaLaunchKernel", 5_000),
        ("cudaLaunchKernel", 7_000),
        ("cudaMemcpyAsync", 4_000),
    ]


def test_too_many_events_keep_their_stacks_time(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lostflops.export.formats.speedscope.MOST_EVENTS", 9)
    said = lostflops.write(run, tmp_path / "out.speedscope.json")
    assert "10 events on one thread" in said.notes[0]
    (profile,) = json.loads((tmp_path / "out.speedscope.json").read_text())["profiles"]
    assert profile["type"] == "sampled"
    assert sorted(profile["weights"]) == [4_000, 12_000, 36_000, 48_000]
    assert profile["endValue"] == 100_000
