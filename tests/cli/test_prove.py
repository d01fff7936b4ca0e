"""`lostflops prove`: whole experiments with real starts, those that fail half-way, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lostflops import run_folder
from lostflops.cli import main
from lostflops.experiment.proof.running import command

LOOP = """
import sys, time
import lostflops

def step(ms):
    time.sleep(ms / 1000)

def job(ms, steps=30, loss=0.0, fails_at=None):
    import loop
    for n in range(steps):
        if n == fails_at:
            print("cannot go on")
            sys.exit(3)
        loop.step(ms)
        lostflops.log(loss=1 / (n + 1) + loss)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def job(arguments: str) -> str:
    return f"{sys.executable} -c 'import loop; loop.job({arguments})'"


def prove(*words: str, before: str = "2", after: str = "2", pairs: int = 3) -> int:
    asked = ["--before", job(before), "--after", job(after), "--step-on", "loop:step", "--pairs", str(pairs)]
    return status("prove", *asked, "--output", "out", "--no-rehearsal", *words)


def status(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as left:
        return int(left.code or 0)


def document(path: str = "f.json") -> dict[str, Any]:
    return json.loads(Path(path).read_text())


# A busy machine makes each sleep some ms longer: 20 against 100 ms stay apart in each start.
def test_a_planted_slowdown_is_found_and_all_of_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        prove(
            "--json",
            "f.json",
            "--html",
            "p.html",
            before="20, steps=15",
            after="100, steps=15, loss=0.5",
            pairs=6,
        )
        == 0
    )
    said, told = capsys.readouterr()
    assert said.startswith("Slower: ") and "more time per step" in said
    assert "95 % interval, 6 interleaved pairs" in said and "LOSS APART from step 0 on" in said
    assert "pair 6 of 6: " in told
    found = document()
    assert found["verdict"] == "slower" and found["pairs"] == 6 and found["stopped"] is None
    assert 1.2 < found["low"] < found["ratio"] < found["high"] and found["resolution"] > 0
    assert found["loss"]["parity"] == "apart" and found["memory"][0]["peak"] == "peak_resident"
    assert len(found["values"]["before_ns"]) == 6
    page = Path("p.html").read_text()
    assert page.count("<circle") == 7 and "<script" not in page and "Slower" in page
    # Nothing is recorded in full, and PyTorch was not needed.
    assert not list(Path("out").rglob("window-*"))
    assert main(["prove", "out"]) == 0
    again = capsys.readouterr().out
    assert said.startswith(again.rstrip()) and "Results: out" in said and "Results" not in again
    (plan, *pairs, end) = [json.loads(x) for x in (Path("out") / run_folder.PROOF).read_text().splitlines()]
    assert (plan["kind"], [p["pair"] for p in pairs], end["kind"]) == ("plan", [*range(1, 7)], "end")


def test_pairs_run_in_the_drawn_order_and_more_can_be_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove("--seed", "1", "--json", "f.json", pairs=2) == 0
    assert document()["order"] == {"seed": 1, "first": ["before", "after"]}
    assert "fewer than 6 pairs have too few orders of starts" in capsys.readouterr().err
    began = [
        json.loads(next(Path("out").glob(f"{name}/node-*/steps-*")).read_text().splitlines()[0])["wall"]
        for name in ("pair-001-before", "pair-001-after", "pair-002-after", "pair-002-before")
    ]
    assert began == sorted(began)
    assert main(["prove", "out", "--more", "1", "--no-rehearsal", "--json", "f.json"]) == 0
    found = document()
    assert (found["pairs"], found["planned_pairs"], found["finished_pairs"]) == (3, 3, 3)
    assert "pair 3 of 3" in capsys.readouterr().err


def test_what_is_expected_and_not_shown_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove("--expect", "faster", before="2", after="6", pairs=2) == 1
    assert "--expect faster is not shown" in capsys.readouterr().err
    slow, fast = "out/pair-001-after", "out/pair-001-before"
    assert main(["prove", slow, fast, "--expect", "faster"]) == 0
    assert main(["prove", slow, fast, "--expect", "not-slower"]) == 0
    with pytest.raises(SystemExit) as left:
        main(["prove", fast, slow, "--expect", "not-slower", "--at-most", "5%"])
    assert left.value.code == 1


def test_a_gain_with_a_loss_that_is_no_number_is_not_what_was_expected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert prove("--expect", "faster", before="40", after="2, loss=1e999 * 0", pairs=6) == 1
    said = capsys.readouterr()
    assert said.out.startswith("Faster") and "LOSS DIVERGED" in said.out
    assert "--expect faster is not shown: the loss diverged" in said.err


def test_a_command_that_fails_is_said_with_what_it_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(after="2, fails_at=5") == 2
    said = capsys.readouterr().err
    assert "once more" in said
    assert "The command after the change ended with status 3, after it printed: cannot go on." in said
    assert "out/pair-001-after-again holds what it printed" in said


@pytest.mark.parametrize("seed", ["4", "2"], ids=["before first", "after first"])
def test_where_both_commands_fail_the_change_is_not_blamed(
    seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove("--seed", seed, before="2, fails_at=5", after="2, fails_at=5") == 2
    assert "The command before the change ended with status 3, after it printed: cannot go on" in (
        capsys.readouterr().err
    )


def test_pairs_before_a_failure_stay_and_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    # The third start of this side fails, twice.
    Path("count.py").write_text(
        "import pathlib, loop\n"
        "f = pathlib.Path('starts'); f.write_text('x' + (f.read_text() if f.exists() else ''))\n"
        "loop.job(2, fails_at=4 if len(f.read_text()) > 2 else None)\n"
    )
    asked = ["--before", f"{sys.executable} count.py", "--after", job("2"), "--step-on", "loop:step"]
    assert (
        status("prove", *asked, "--pairs", "5", "--output", "out", "--no-rehearsal", "--json", "f.json") == 2
    )
    found = document()
    assert found["finished_pairs"] == 2 and found["verdict"] == "cannot tell"
    assert found["low"] is None and found["resolution"] is None
    assert found["stopped"].startswith(
        "Stopped after 2 pairs. The command before the change ended with status 3"
    )
    assert "2 pairs finished, too few for an interval" in capsys.readouterr().out


def test_a_rehearsal_says_why_no_step_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["prove", "--before", "true", "--after", "true", "--pairs", "3", "--output"]
    assert main([*asked, "a"]) == 2
    assert "No step of the command before the change was seen" in capsys.readouterr().err
    python = f"{sys.executable} -c pass"
    assert main(["prove", "--before", python, "--after", python, "--output", "b"]) == 2
    assert "no process of it imported torch.optim" in capsys.readouterr().err
    failing = f"{sys.executable} -c 'import nothing_like_it'"
    assert main(["prove", "--before", failing, "--after", python, "--output", "c"]) == 2
    said = capsys.readouterr().err
    assert "ended with status 1, after it printed:" in said and "ModuleNotFoundError" in said


def test_an_interrupted_experiment_tells_what_it_has() -> None:
    asked = [
        "--before",
        job("2"),
        "--after",
        job("2"),
        "--step-on",
        "loop:step",
        "--pairs",
        "50",
        "--output",
        "out",
    ]
    running = subprocess.Popen(
        [sys.executable, "-m", "lostflops", "prove", *asked, "--no-rehearsal"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    assert running.stderr is not None
    for line in running.stderr:
        if "pair 2 of 50" in line:
            break
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 2 and "Interrupted by SIGTERM after 2 pairs" in said
    assert "2 pairs finished, too few for an interval" in said


def test_an_experiment_that_was_killed_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(before="2", after="6") == 0
    results = Path("out") / run_folder.PROOF
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:3]) + lines[3][:20])  # the kill tore the third pair's line
    capsys.readouterr()
    assert status("prove", "out", "--json", "f.json") == 2
    assert "It was killed, or still runs, after 2 pairs." in capsys.readouterr().out
    found = document()
    assert found["verdict"] == "cannot tell" and found["finished_pairs"] == 2
    # What goes on after the torn line is a line of its own.
    assert main(["prove", "out", "--more", "3", "--no-rehearsal", "--json", "f.json"]) == 0
    assert document()["finished_pairs"] == 6 and document()["planned_pairs"] == 6
    capsys.readouterr()
    assert main(["prove", "out", "--json", "f.json"]) == 0
    assert document()["finished_pairs"] == 6 and document()["low"] is not None
    results.write_text("\x00{}")
    assert main(["prove", "out"]) == 2
    assert "does not say what was asked for" in capsys.readouterr().err


def test_a_full_disk_stops_it_and_keeps_what_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, made = command.new_run.write, []

    def full(recording: Any, member: Any = None) -> bool:
        made.append(recording.run)
        if len(made) > 4:
            raise command.CannotWrite(recording.run, OSError(28, "No space left on device"))
        return write(recording, member)

    monkeypatch.setattr(command.new_run, "write", full)
    assert prove("--seed", "4") == 2  # which starts each pair with the command before
    assert "Stopped after 2 pairs: 'out/pair-003-before' could not be written: No space left on device." in (
        capsys.readouterr().out
    )


def test_a_start_without_steps_ends_it_and_is_no_pair(capsys: pytest.CaptureFixture[str]) -> None:
    Path("count.py").write_text(
        "import pathlib, loop\n"
        "f = pathlib.Path('starts'); f.write_text('x' + (f.read_text() if f.exists() else ''))\n"
        "loop.job(2, steps=0 if len(f.read_text()) > 1 else 30)\n"
    )
    asked = ["--before", f"{sys.executable} count.py", "--after", job("2"), "--step-on", "loop:step"]
    assert status("prove", *asked, "--pairs", "3", "--output", "out", "--no-rehearsal") == 2
    said = capsys.readouterr().out
    assert "Stopped after 1 pair. Pair 2 is not whole: 'out/pair-002-before' holds no step log" in said


def test_each_start_can_be_ended_after_so_many_steps() -> None:
    began = time.monotonic()
    assert (
        prove("--steps", "20", "--json", "f.json", before="10, steps=9000", after="10, steps=9000", pairs=1)
        == 0
    )
    assert time.monotonic() - began < 30
    found = document()
    assert found["values"]["steps_per_start"] >= 8 and found["low"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Nothing to compare is named"),
        (["a", "b", "c"], "3 paths are named"),
        (["a", "b", "--before", "x"], "Both runs and commands are named"),
        (["--before", "x"], "One of the two commands is missing"),
        (["--before", "x", "--after", "y", "--pairs", "0"], "--pairs takes a number from 1"),
        (["--before", "x", "--after", "y", "--see", "much"], "--see 'much' is no share"),
        (["a", "b", "--edit", "x"], "--edit chooses among predictions"),
        (["a", "--more", "3"], "'a' is no experiment"),
        (["a", "b"], "There is no file or folder at 'a'"),
        (["a", "b", "--json", ""], "--json names no file"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prove", *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_no_secret_of_a_command_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "--api-key hunter2hunter2"
    asked = [
        "--before",
        job("2") + f" {secret}",
        "--after",
        job("2"),
        "--step-on",
        "loop:step",
        "--pairs",
        "1",
    ]
    assert main(["prove", *asked, "--output", "out", "--no-rehearsal"]) == 0
    kept = [p for p in Path("out").rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert kept == []
    capsys.readouterr()
    assert main(["prove", "out", "--more", "1"]) == 2
    assert "held a secret" in capsys.readouterr().err
