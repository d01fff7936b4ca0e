"""Several files of one process are recordings of one rank."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.ingest import processes
from lostflops.report.first_page import page
from lostflops.session import Session
from lostflops.store.trace import Trace
from recorded import record_script

MS = 1000


def trace_of(
    file: Path, *, at: int, pid: int, step: int | None = None, host: str | None = None, **more: object
) -> None:
    """A trace of a millisecond at `at` ms, of one operator in one step."""
    start = at * MS
    rows = [("cpu_op", "aten::mm", start + 100, 700)]
    if step is not None:
        rows.append(("user_annotation", f"ProfilerStep#{step}", start, 1000))
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": {}}
        for cat, name, ts, dur in rows
    ]
    head = {"baseTimeNanoseconds": 1790857026000000000} | ({"host_name": host} if host else {})
    file.write_text(json.dumps({**head, **more, "traceEvents": events}))


def ranks(*paths: Path) -> list[int]:
    trace = lostflops.open(list(paths))
    table = trace.table("ranks")
    assert table is not None
    return table.collect()["rank"].sort().to_list()


def test_two_files_of_one_process_and_host_are_one_rank(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=7, host="alpha")
    trace_of(tmp_path / "b.json", at=9, pid=7, host="alpha")
    assert ranks(tmp_path) == [0]


def test_the_same_number_on_two_hosts_is_two_processes(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=1, host="alpha", step=3)
    trace_of(tmp_path / "b.json", at=9, pid=1, host="beta", step=4)
    assert ranks(tmp_path) == [0, 1]


def test_two_processes_of_one_host_are_two_ranks(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=7, host="alpha")
    trace_of(tmp_path / "b.json", at=9, pid=8, host="alpha")
    assert ranks(tmp_path) == [0, 1]


def test_what_was_recorded_at_one_time_is_of_two_processes(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=1, host="alpha")
    trace_of(tmp_path / "b.json", at=0, pid=1, host="alpha")
    assert ranks(tmp_path) == [0, 1]


def test_the_worker_in_a_files_name_stands_for_the_host(tmp_path: Path) -> None:
    """A schedule that repeats leaves a file each time, called by host, process and time."""
    for number, at in enumerate((0, 9, 20)):
        trace_of(tmp_path / f"alpha_7.16231430898{at:02d}.pt.trace.json", at=at, pid=7, step=10 * number)
    trace_of(tmp_path / "beta_7.1623143089899.pt.trace.json", at=40, pid=7, step=50)
    assert ranks(tmp_path) == [0, 1]


def test_without_a_host_the_steps_must_go_on(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=1, step=5)
    trace_of(tmp_path / "b.json", at=9, pid=1, step=6)
    assert ranks(tmp_path) == [0]
    other = tmp_path / "other"
    other.mkdir()
    trace_of(other / "a.json", at=0, pid=1, step=5)
    trace_of(other / "b.json", at=9, pid=1, step=5)
    assert ranks(other) == [0, 1], "two runs, each in a container of its own"


def test_a_rank_that_one_file_of_a_process_names_is_that_of_its_other_files(tmp_path: Path) -> None:
    trace_of(tmp_path / "a.json", at=0, pid=7, host="alpha")
    trace_of(tmp_path / "b.json", at=9, pid=7, host="alpha", distributedInfo={"rank": 3, "world_size": 4})
    assert ranks(tmp_path) == [3]


def test_the_pause_between_files_of_a_rank_is_in_no_step(tmp_path: Path) -> None:
    for number, at in enumerate((0, 500)):
        trace_of(tmp_path / f"{number}.json", at=at, pid=7, step=1 + number, host="alpha")
    trace = lostflops.open(tmp_path)
    table = trace.table("steps")
    assert table is not None
    steps = table.sort("step").select("step", length=pl.col("end") - pl.col("start")).collect()
    assert steps["step"].to_list() == [1, 2]
    assert steps["length"].max() <= 1_000_000  # pyright: ignore[reportOperatorIssue]


def first_page(trace: Trace) -> page.Page:
    return page.page(trace, Session(trace))


def test_windows_of_one_process_are_recordings_of_one_rank(tmp_path: Path) -> None:
    recorded = record_script(tmp_path, "train(30)\n", options=("--steps", "3-4", "--every", "8"))
    assert len(recorded.windows()) >= 3
    shown = first_page(lostflops.open(recorded.run))
    assert shown.run.ranks == (0,) and shown.run.world_size == 1
    assert sorted(set(shown.steps["step"].to_list())) == [3, 4, 11, 12, 19, 20, 27, 28]
    assert not [fact for fact in shown.quality if fact.name == "rank not recorded"]
    (first, *_) = sorted(recorded.run.glob("node-*/window-*"))
    alone = tmp_path / "copied.json.gz"
    alone.write_bytes(first.read_bytes())
    assert not [fact for fact in lostflops.open(alone).manifest.quality if fact.name == "rank not recorded"]


def test_two_processes_that_no_launcher_numbered_stay_two(tmp_path: Path) -> None:
    script = (
        "import subprocess\n"
        "if len(sys.argv) < 2:\n"
        "    other = subprocess.Popen([sys.executable, 'train.py', 'other'])\n"
        "train(8)\n"
        "if len(sys.argv) < 2:\n    other.wait()\n"
    )
    recorded = record_script(tmp_path, script)
    shown = first_page(lostflops.open(recorded.run))
    assert shown.run.ranks == (0, 1) and shown.run.world_size is None
    assert [fact.name for fact in shown.quality].count("rank not recorded") == 2


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("worker0_rank_3.pt.trace.json.gz", 3),
        ("worker7.1694128201545.pt.trace.json", 7),
        ("report_rank0.sqlite", 0),
        ("report.rank.12.nsys-rep", 12),
        ("globalrank-5_localrank-1.json", 5),
        ("train-procid_4.sqlite", 4),
        ("rank=2.json", 2),
        ("global_rank_5_local_rank_1.json", 5),
        ("step_rank3_of_tmp_rank3.json", 3),
        ("node_rank_1_rank_12.json", 12),
        # Ranks of a node or of a group are none of the job.
        ("node_rank_1_gpu_3.json", None),
        ("tp_rank1.json", None),
        ("mp_rank_03.json", None),
        # A pod's number is not its process's: the master is rank 0, and a node has several.
        ("llama-worker-3_77.1694128201545.pt.trace.json", None),
        ("llama-worker-3_rank4_77.1694128201545.pt.trace.json", 4),
        # Two ranks, or none: a number alone may count anything.
        ("rank1-of-rank8.json", None),
        ("report1.sqlite", None),
        ("frank3.json", None),
        ("microprocessor9.json", None),
    ],
)
def test_a_rank_is_read_from_the_word_before_it_in_the_files_name(name: str, rank: int | None) -> None:
    assert processes.rank_in_name(name) == rank
