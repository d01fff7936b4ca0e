"""What `lostflops record` says before a job starts, and after one that did not train."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lostflops.capture.record import new_run, outcome, recording
from lostflops.capture.record.injected.lostflops_recorder.rank import launched
from lostflops.errors import BadOption, OutputExists
from lostflops.privacy.secrets import without_secrets
from recorded import environment, record


def job(folder: Path, script: str, **more: str):
    return record(folder, sys.executable, "-c", script, **more)


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    recorded = record(tmp_path, "no-such-command")
    assert recorded.status == 2
    assert recorded.said.startswith("There is no command 'no-such-command' on the PATH.\nHint: ")
    assert not recorded.run.exists()


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("python -E x.py", "-E"),
        ("/usr/bin/python3.12 -uI -m x", "-I"),
        ("python -W ignore -S x.py", "-S"),
        ("python -X dev x.py -I", ""),
        ("python -cE", ""),
        ("python -m x -E", ""),
        ("torchrun -E", ""),
        ("python -Wignore::E x.py", ""),
    ],
)
def test_flags_that_keep_us_out_are_seen(words: str, flag: str) -> None:
    assert recording.deaf(words.split()) == flag


def test_a_script_is_read_for_such_flags_too(tmp_path: Path) -> None:
    script = tmp_path / "launch"
    script.write_text("#!/usr/bin/python3 -I\n")
    script.chmod(0o755)
    with pytest.raises(BadOption, match="`/usr/bin/python3 -I` makes Python ignore PYTHONPATH"):
        recording.check([str(script)])


def test_steps_and_ranks_are_read_as_typed() -> None:
    assert recording.steps("10-14") == ((10, 14),)
    assert recording.steps("100-104, 7") == ((7, 7), (100, 104))
    assert recording.steps("10-") == ((10, None),)
    assert [recording.seconds("--delay", text) for text in ("90", "1.5s", "2m", "20ms")] == [
        90,
        1.5,
        120,
        0.02,
    ]
    assert recording.ranks("0,8-15") == ((0, 0), (8, 15))
    assert recording.what("memory, cuda,memory") == ("memory", "cuda")
    for wrong in ("", "-3", "5-4", "0-4", "a", "3,", "3-5,6", "3-,9"):
        with pytest.raises(BadOption):
            recording.steps(wrong)
    for wrong in ("", "3-1", "1,,2"):
        with pytest.raises(BadOption):
            recording.ranks(wrong)
    with pytest.raises(BadOption, match="not recorded by the PyTorch profiler"):
        recording.what("nvtx")


def test_print_shows_the_command_and_starts_nothing(tmp_path: Path) -> None:
    recorded = record(tmp_path, "python", "a b.py", options=("--print",), PYTHONPATH="theirs")
    assert recorded.out == f"PYTHONPATH={recorded.run}/boot:theirs python 'a b.py'\n"
    assert not recorded.run.exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(OutputExists):
        new_run.write(recording.Recording(["true"], tmp_path))


def test_an_output_that_cannot_be_written_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    recorded = record(tmp_path, "touch", "started", options=())
    assert recorded.status == 2
    assert "already exists" in recorded.said
    assert not (tmp_path / "started").exists()


def test_input_and_output_are_the_jobs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lostflops", "record", "--output", str(tmp_path / "run"), "--", "cat"],
        input="typed",
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (0, "typed")
    assert "nothing was recorded: no Python process of the job started with PYTHONPATH=" in done.stderr


def test_a_fault_of_ours_after_the_job_keeps_its_status(tmp_path: Path) -> None:
    script = """
import sys
from lostflops import cli
from lostflops.capture.record import outcome
outcome.summary = lambda *_: 1 / 0
sys.argv[1:] = ["record", "--output", "run", "--", "sh", "-c", "exit 5"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr.endswith("could not be read: ZeroDivisionError: division by zero\n")


def test_a_job_without_torch_and_one_that_crashes_in_its_import(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    said = job(tmp_path / "a", "pass").said
    assert "nothing was recorded: no Python process of it imported torch.optim\n" in said
    assert "Hint: only PyTorch is recorded: give the command that starts it" in said
    crashed = job(tmp_path / "b", "import no_such_module")
    assert crashed.status == 1
    assert "No module named 'no_such_module'" in crashed.said
    assert (
        "nothing was recorded: the job ended with status 1, and no Python process of it imported"
    ) in crashed.said
    assert "Hint: the job's own output, above, says why it ended" in crashed.said


def test_a_job_that_makes_no_step_or_too_few(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    begin = "import gc, torch; gc.freeze(); "  # what torch holds is not looked through as Python ends
    none = job(tmp_path / "a", begin + "torch.rand(3)")
    assert "no `torch.optim` optimizer finished a step" in none.said
    script = "o = torch.optim.SGD([torch.zeros(1)]); [o.step() for _ in range(2)]"
    few = job(tmp_path / "b", begin + script)
    assert "nothing was recorded: the job ended before a whole step was recorded" in few.said
    assert "`--steps 1-1`" in few.said


def test_signals_reach_the_job_and_end_us_alike(tmp_path: Path) -> None:
    script = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: print('seen', flush=True))
print('up', flush=True)
while True: time.sleep(.05)
"""
    command = ["record", "--output", str(tmp_path / "run"), "--", sys.executable, "-c", script]
    with subprocess.Popen(
        [sys.executable, "-m", "lostflops", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "seen\n"
        process.terminate()
        began = time.monotonic()
        process.communicate(timeout=30)
        assert time.monotonic() - began < 20
        assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("told", "placed"),
    [
        ("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", (5, 1, 8, "RANK")),
        ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3",
         (3, 1, 4, "Open MPI")),
        ("PMI_RANK=2 MPI_LOCALRANKID=0 PMI_SIZE=4", (2, 0, 4, "MPICH")),
        ("PMIX_RANK=6", (6, None, None, "PMIx")),
        ("SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=4", (3, 1, 4, "Slurm")),
        ("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1", (0, None, None, "assumed")),
        ("RANK=2 WORLD_SIZE=4 JOB_COMPLETION_INDEX=2", (2, None, None, "index of the pod")),
        ("RANK=x LOCAL_RANK= WORLD_SIZE=-1", (0, None, None, "assumed")),
    ],
)  # fmt: skip
def test_a_rank_is_what_its_launcher_says(told: str, placed: tuple[object, ...]) -> None:
    assert launched(dict(word.split("=") for word in told.split())) == placed


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    given = [
        "train.py",
        "--hf-token",
        "abc",
        "--api_key=xyz",
        "--url",
        "https://me:pw@host/x",
        "hf_0123456789abcd",
        "--lr",
        "1",
    ]
    kept = without_secrets(given)
    assert kept == [
        "train.py",
        "--hf-token",
        "<removed>",
        "--api_key=<removed>",
        "--url",
        "https://<removed>@host/x",
        "<removed>",
        "--lr",
        "1",
    ]


def test_the_slowdown_is_measured_around_the_window() -> None:
    def step(n: int, duration: int | None, window: int = 0):
        return {"step": n, "duration": duration, "window": window}

    plain = [step(0, None), step(1, 900), step(2, 900), *(step(n, 100) for n in range(3, 9)), step(9, 500)]
    recorded = [step(n, 130, 1) for n in (10, 11, 12)]
    log = outcome.RankLog(Path("x"), {}, [*plain, *recorded, step(13, 100)], [])
    assert outcome.slowdown([log]) == pytest.approx(0.3)
    assert outcome.slowdown([outcome.RankLog(Path("x"), {}, recorded, [])]) is None


def test_too_few_steps_are_said_with_how_many_there_were(tmp_path: Path) -> None:
    steps = [{"step": n, "duration": 1, "window": 0} for n in range(5)]
    log = outcome.RankLog(Path("x"), {"rank": 0}, steps, [])
    said = outcome.summary(outcome.Outcome(recording.Recording(["job"], tmp_path), 0, [log]))
    first = "before step 10, where recording starts"
    assert said == [
        f"nothing was recorded: the job ended with status 0 after 5 steps, {first}",
        "Hint: `--steps 2-4`",
        f"next: lostflops why {tmp_path}",
    ]


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("own_profiler", ["Hint: record other steps with `--steps`, or remove the profiler from the script"]),
        ("disk_full", ["Hint: free some space, or choose an --output on another disk"]),
        ("job_ended", ["Hint: `--steps 10-20`"]),
        ("fault", []),
    ],
)
def test_windows_that_were_lost_are_said_with_what_to_do_by_their_code(
    code: str, hint: list[str], tmp_path: Path
) -> None:
    window = {"kind": "window", "state": "lost", "reason": "it rained", "code": code}
    log = outcome.RankLog(Path("x"), {"rank": 0}, [{"step": 20}], [window])
    said = outcome.summary(outcome.Outcome(recording.Recording(["job"], tmp_path), 0, [log]))
    assert said == ["nothing was recorded: it rained", *hint, f"next: lostflops why {tmp_path}"]


def test_the_log_of_a_recorder_without_codes_is_still_said(tmp_path: Path) -> None:
    window = {"kind": "window", "state": "lost", "reason": "the job's own profiler was running"}
    log = outcome.RankLog(Path("x"), {"rank": 0}, [{"step": 20}], [window])
    said = outcome.summary(outcome.Outcome(recording.Recording(["job"], tmp_path), 0, [log]))
    assert said[0] == "nothing was recorded: the job's own profiler was running"
