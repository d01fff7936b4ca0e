"""What the first page says of a job as a whole: how it ended, how its steps went, and what to record next."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.cli import main
from lostflops.report.first_page import page
from lostflops.report.first_page.sentences import ending, unlike
from lostflops.tables import RANK_ENDS
from recorded import Recorded, record, record_script


def ends(job: int | None, *ranks: dict[str, Any]) -> list[str]:
    rows = [
        {"rank": rank, "last_step": 11, "finished": False, "job_status": job, **told}
        for rank, told in enumerate(ranks)
    ]
    return list(ending(RANK_ENDS.conform(pl.DataFrame(rows, schema_overrides=RANK_ENDS.schema))))


def test_a_job_that_went_well_or_runs_still_has_no_story() -> None:
    assert ends(0, {"finished": True}, {"finished": True}) == []
    assert ends(None, {}, {}) == []


@pytest.mark.parametrize("job", [130, -2])
def test_a_job_that_its_user_stops_has_not_failed(job: int) -> None:
    stopped = {"status": -2, "exception": "KeyboardInterrupt"}
    assert ends(job, stopped) == ["The job was interrupted (Ctrl-C) in step 12."]
    assert ends(job, stopped, {"status": -15}) == ["The job was interrupted (Ctrl-C) in step 12."]
    # One that failed before is told.
    assert "ValueError" in ends(130, stopped, {"status": 1, "exception": "ValueError: x", "last_step": 9})[0]


def test_the_rank_that_a_signal_ended_failed_first() -> None:
    told = ends(
        1,
        {"status": -15},
        {"status": 1, "exception": "DistBackendError", "finished": True, "last_step": 12},
        {"status": -9},
        {"status": -15, "last_step": 12},
    )
    assert told == [
        "The job failed: rank 2 was ended by SIGKILL (often sent when memory ran out) in step 12.",
        "Ranks 0, 1 and 3 finished no step after step 12. Steps cut short by the end are left out of means.",
    ]


def test_where_no_launcher_told_the_rank_without_a_last_word_failed() -> None:
    raised = {"finished": True, "exception": "RuntimeError"}
    told = ends(137, raised, {}, raised)
    assert told[0] == "The job failed: rank 1 was killed in step 12."


def test_the_rank_that_raised_is_named_with_what_it_raised() -> None:
    told = ends(1, {"status": -15}, {"status": 1, "finished": True, "exception": "ValueError"})
    assert told[0] == "The job failed: rank 1 raised ValueError in step 12."


def test_of_ranks_that_all_raised_the_one_behind_failed_first() -> None:
    lost = {"finished": True, "exception": "RuntimeError", "status": 1}
    told = ends(1, {**lost, "last_step": 12}, lost, {**lost, "last_step": 12})
    assert told[0] == "The job failed: rank 1 raised RuntimeError in step 12."


def test_a_job_of_one_process_tells_its_own_status() -> None:
    assert ends(3, {"finished": True, "status": 3}) == [
        "The job failed: it ended with exit status 3 in step 12."
    ]
    assert ends(-15, {"status": -15}) == ["The job failed: it was ended by SIGTERM in step 12."]
    assert ends(1, {"finished": True, "status": 1, "exception": "OutOfMemoryError", "last_step": None}) == [
        "The job failed: it raised OutOfMemoryError in step 0."
    ]


def shown(run: Path) -> page.Page:
    return lostflops.why(lostflops.open(run))


def why(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["why", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("raise ValueError('token=abc')", 1, "it raised ValueError in step 6."),
        ("sys.exit(3)", 3, "it ended with exit status 3 in step 6."),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, "it was ended by SIGTERM in step 6."),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "it was ended by SIGKILL"),
    ],
)
def test_a_job_that_fails_outside_of_a_window_says_how(
    end: str, status: int, said: str, tmp_path: Path
) -> None:
    recorded = record_script(tmp_path, f"train(6); {end}\n", options=("--steps", "2-4"))
    assert recorded.status == status
    first = shown(recorded.run)
    assert first.notes[0].startswith("The job failed:") and said in first.notes[0]
    # A step that a busy machine held up, at its end perhaps, is in no mean, and that is said.
    held_up = [finding for finding in first.findings if finding.name == "outlier-step"]
    held_up += [
        note for note in first.notes if note.startswith("Left out of the mean: step 4 (nothing starts")
    ]
    assert first.run.num_counted_steps == 3 - len(held_up), str(first)
    assert "abc" not in (recorded.run / "recording.jsonl").read_text() + str(first.notes)


def test_of_two_ranks_the_killed_one_is_named_and_the_others_last_step_counts_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(
        "import os, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "rank = torch.distributed.get_rank()\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
        "for step in range(20):\n"
        "    if (rank, step) == (1, 7): os.kill(os.getpid(), 9)\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    recorded = record(tmp_path, *launcher, "ranks.py", options=("--steps", "3-9"))
    assert recorded.status == 1
    first = shown(recorded.run)
    assert first.notes[0].startswith("The job failed: rank 1 was ended by SIGKILL")
    assert first.notes[0].endswith("in step 7.")
    assert first.notes[1].startswith("Rank 0 finished no step after step 6")
    counted = first.ledger.filter(pl.col("rank") == 0)["step"].unique().to_list()
    whole = first.steps.filter("complete")["step"].to_list()
    assert set(whole) == {3, 4, 5, 6} and 7 in counted


@pytest.fixture(scope="module")
def eight_steps(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A job of eight steps, recorded as it is without options."""
    return record_script(tmp_path_factory.mktemp("eight"), "train(8)\n", options=())


@pytest.mark.parametrize(
    ("steps", "advice"), [(1, "needs at least two steps"), (3, "--steps 2-2"), (8, "--steps 4-7")]
)
def test_a_job_that_ends_before_the_window_has_a_page_with_the_next_command(
    steps: int, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], eight_steps: Recorded
) -> None:
    recorded = eight_steps
    if steps != 8:
        recorded = record_script(tmp_path, f"train({steps})\n", options=())
    assert recorded.said.splitlines()[-1] == f"next: lostflops why {recorded.run}"
    text = why(capsys, str(recorded.run))
    assert advice in text and "not answered" not in text
    if steps > 1:
        assert f"{advice} -- {sys.executable} train.py" in text, "the line can be pasted"
    if steps == 8:
        assert "The median step takes" in text and "steps/s" in text


def test_a_secret_of_the_command_line_is_not_echoed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], eight_steps: Recorded
) -> None:
    run = shutil.copytree(eight_steps.run, tmp_path / "run")
    file = run / "recording.jsonl"
    start, end = (json.loads(line) for line in file.read_text().splitlines())
    start["command"] = ["python", "train.py", "--token", "<removed>"]
    file.write_text(json.dumps(start) + "\n" + json.dumps(end) + "\n")
    text = why(capsys, str(run))
    assert "-- COMMAND" in text and "removed" not in text


def test_the_samples_of_a_monitor_alone_make_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record_script(tmp_path, "train(8); time.sleep(3)\n", options=("--monitor",))
    alone = tmp_path / "alone"
    shutil.copytree(next(recorded.run.glob("node-*/monitor")), alone / "node-0000" / "monitor")
    text = why(capsys, str(alone))
    assert "Only a monitor's samples" in text and "lostflops record -- COMMAND" in text
    assert "busy" in text and "not answered" not in text
    beside = why(capsys, str(recorded.run))
    assert "The median step takes" in beside and "busy" in beside


def log_of(folder: Path, durations: list[int], recorded: range) -> Recorded:
    """A run folder with nothing but the step log of a process."""
    node = folder / "node-0000"
    node.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"kind": "rank", "rank": 0, "world": None, "source": "assumed", "pid": 5}]
    lines += [
        {"step": k, "end": sum(durations[: k + 1]), "duration": ns, "window": int(k in recorded),
         "checkpoint": max(0, ns - 50_000_000), "data": 0, "optimizer": 0, "gc": 0}
        for k, ns in enumerate(durations)
    ]  # fmt: skip
    lines.append({"kind": "end"})
    (node / "steps-00000-a0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Recorded(folder, 0, "", "")


def test_a_pause_that_no_recorded_step_shows_is_a_finding(tmp_path: Path) -> None:
    durations = [40_000_000 + (k % 3) * 100_000 + (k % 10 == 9) * 300_000_000 for k in range(100)]
    first = shown(log_of(tmp_path, durations, range(10, 15)).run)
    (pause,) = (finding for finding in first.findings if finding.name == "pause-not-recorded")
    assert pause.claim.startswith("Every 10th step is 300 ms longer (saving a checkpoint): 30.0 ms per step")
    assert "`lostflops record --steps 18-20 -- COMMAND`" in pause.next
    assert pause.cost_per_step == 30_000_000 and pause.gain == "unknown"
    assert any("saving checkpoints" in note for note in first.notes)


def test_a_pause_of_a_job_without_recorded_steps_is_told(tmp_path: Path) -> None:
    durations = [40_000_000 + (k % 3) * 100_000 + (k % 10 == 9) * 300_000_000 for k in range(100)]
    first = shown(log_of(tmp_path, durations, range(0)).run)
    assert not first.findings
    (note,) = (note for note in first.notes if note.startswith("Every 10th step"))
    assert "300 ms longer (saving a checkpoint): 30.0 ms per step" in note
    (rate,) = first.facts.numbers
    mean = 40.1e6 + 10 * 300e6 / 97
    assert rate.name == "steps_per_second" and rate.value == pytest.approx(1e9 / mean, rel=1e-3)


def test_a_job_whose_own_profiler_runs_is_not_told_to_record_the_same_again(tmp_path: Path) -> None:
    recorded = log_of(tmp_path, [40_000_000] * 30, range(0))
    (log,) = recorded.run.glob("node-*/steps-*.jsonl")
    reason = "the job's own profiler was running"
    with log.open("a") as file:
        file.write(json.dumps({"kind": "window", "number": 0, "state": "lost", "reason": reason}) + "\n")
    first = shown(recorded.run)
    assert any("remove it from the script" in note for note in first.notes)
    assert not any("Record five steps" in note for note in first.notes)
    assert any(fact.text == reason and fact.level == "warning" for fact in first.quality)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (15.0, "were 50.0 % slower"),
        (5.0, "were 50.0 % faster"),
        (55.0, "took 5.5 times as long"),
        (99_000.0, "took 9,900 times as long"),
    ],
)
def test_how_recorded_steps_compare_is_a_number_one_can_picture(kept: float, said: str) -> None:
    assert unlike(kept, 10.0) == said
