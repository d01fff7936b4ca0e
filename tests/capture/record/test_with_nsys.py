"""`lostflops record --with nsys`, with a stand-in for nsys of two versions: nsys itself is never run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lostflops
import nsys_exports
from lostflops import run_folder
from lostflops.capture.nsys import options as nsys_options
from lostflops.capture.nsys import tool as nsys_tool
from lostflops.capture.nsys import wrapping
from lostflops.capture.record import new_run
from lostflops.errors import BadOption, NoNsys, NsysTooOld, NsysUnusable
from recorded import QUICK_TORCH, TRAIN, Recorded, environment

FAKE = Path(__file__).parent / "fake_nsys.py"
RECORD = [sys.executable, "-m", "lostflops", "record", "--with", "nsys"]
NOTHING_ELSE = "/usr/bin:/bin"


def installed(folder: Path) -> Path:
    """A folder with the stand-in as `nsys`. It must not read our folder on PYTHONPATH: nsys is no Python."""
    program = folder / "bin" / "nsys"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{FAKE}" "$@"\n')
        program.chmod(0o755)
    return program


def record(folder: Path, *command: str, options: Sequence[str] = ("--steps", "3-5"), **more: str) -> Recorded:
    nsys = installed(folder)
    done = subprocess.run(
        [*RECORD, *options, "--output", str(folder / "run"), "--", *command],
        env=environment(
            PATH=f"{nsys.parent}:{Path(sys.executable).parent}:{NOTHING_ELSE}",
            FAKE_NSYS_LOG=str(folder / "calls"),
            **more,
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
    )
    return Recorded(folder / "run", done.returncode, done.stdout, done.stderr)


def calls(folder: Path, command: str = "profile") -> list[dict[str, Any]]:
    log = folder / "calls"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line["command"] == command]


def asked(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> nsys_tool.Nsys:
    monkeypatch.setenv("FAKE_NSYS", version)
    nsys_tool._help.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return nsys_tool.ask(installed(folder))


def test_a_help_text_is_read_block_by_block() -> None:
    text = """usage: nsys profile
\t-c, --capture-range=

\t   Possible values are 'none', 'cudaProfilerApi',
\t   'nvtx' or 'hotkey'. The others are 'not values'.
\t-t, --trace=

\t   Select what to trace. Possible values are 'cuda', 'nvtx', '<api>-annotations' or
\t   'none'. See --sample=none for samples.
\t--gpu-metrics-devices=, --gpu-metrics-device=

\t   Devices.
\t-h, --help
"""
    assert nsys_tool.switches(text) == {
        "capture-range": {"none", "cudaProfilerApi", "nvtx", "hotkey"},
        "trace": {"cuda", "nvtx", "none"},
        "gpu-metrics-devices": set(),
        "gpu-metrics-device": set(),
    }


def test_the_same_wishes_become_each_versions_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = ("cuda", "nvtx", "shapes", "os", "python", "memory", "metrics", "nic")
    old = nsys_options.switches(asked(tmp_path, "2023.4", monkeypatch), what, {}, parameters=tmp_path / "no")
    new = nsys_options.switches(asked(tmp_path, "2026.2", monkeypatch), what, {}, parameters=tmp_path / "no")
    always = ["--sample=none", "--cpuctxsw=none", "--resolve-symbols=false"]
    assert old.lean == [
        "--trace=cuda,nvtx,osrt", "--cuda-graph-trace=node", "--osrt-threshold=10000",
        "--python-sampling=true", "--cuda-memory-usage=true", *always, "--kill=none", "--wait=primary",
    ]  # fmt: skip
    assert old.node == ["--gpu-metrics-device=all", "--nic-metrics=true"]
    assert old.left_out == ["shapes is not recorded: nsys 2023.4.1 cannot make ranges of PyTorch's operators"]
    assert "whole environment, tokens included" in old.warnings[0]
    assert new.lean == [
        "--trace=cuda,nvtx,nccl,osrt", "--cuda-graph-trace=node", "--cuda-event-trace=false",
        "--pytorch=autograd-shapes-nvtx", "--osrt-threshold=10000", "--python-sampling=true",
        "--cuda-memory-usage=true", *always, "--show-source-info=false", "--kill=none", "--wait=primary",
        "--discard-environment=true",
    ]  # fmt: skip
    assert new.node == ["--gpu-metrics-devices=all", "--nic-metrics=lf"]
    assert new.left_out == new.warnings == []


def test_what_the_machine_does_not_allow_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = asked(tmp_path, "2026.2", monkeypatch)
    (tmp_path / "params").write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    given: dict[str, Any] = {"parameters": tmp_path / "params"}
    made = nsys_options.switches(tool, ["metrics"], {}, administrator=False, **given)
    assert (made.lean[0], made.node) == ("--trace=none", [])
    assert made.left_out == [
        (
            "metrics is not recorded: the driver lets only administrators read GPU counters "
            "(RmProfilingAdminOnly: 1)"
        )
    ]
    assert nsys_options.switches(tool, ["metrics"], {}, administrator=True, **given).node
    shared = nsys_options.switches(tool, ["cuda"], {"CUDA_VISIBLE_DEVICES": "MIG-1"}, duration=400.0)
    assert shared.lean[0] == "--trace=cuda-sw,nvtx,nccl"
    assert "--cuda-flush-interval=10000" in shared.lean
    assert shared.warnings == ["NVIDIA supports recordings of up to 5 minutes; --duration asks for more"]


def test_windows_become_ranges() -> None:
    assert nsys_options.range_switches(1, None, None)["cuda"][1] == "--capture-range-end=stop"
    assert nsys_options.range_switches(3, None, None)["cuda"][1] == "--capture-range-end=repeat:3"
    assert nsys_options.range_switches(None, None, None)["cuda"][1] == "--capture-range-end=repeat"
    assert nsys_options.range_switches(1, 60.0, 2.5) == {"time": ["--delay=60", "--duration=2.5"]}


def test_nsys_is_found_where_it_usually_is_the_newest_first(tmp_path: Path) -> None:
    for version in ("2023.4.1", "2024.10.1", "2024.9.2"):
        program = tmp_path / version / "bin" / "nsys"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    place = [f"{tmp_path}/*/bin/nsys"]
    assert nsys_tool.find(None, {"PATH": ""}, place) == tmp_path / "2024.10.1" / "bin" / "nsys"
    toolkit = {"PATH": "", "CUDA_HOME": str(tmp_path / "2023.4.1")}
    assert nsys_tool.find(None, toolkit, place) == tmp_path / "2023.4.1" / "bin" / "nsys"
    assert nsys_tool.find(tmp_path / "2024.9.2", {}, []) == tmp_path / "2024.9.2" / "bin" / "nsys"
    with pytest.raises(NoNsys, match="There is no nsys on the PATH"):
        nsys_tool.find(None, {"PATH": ""}, [])
    with pytest.raises(NoNsys, match="There is no nsys at"):
        nsys_tool.find(tmp_path / "nowhere", {}, place)


def test_an_nsys_that_will_not_do_is_said_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NsysTooOld, match=r"nsys 2020.1.1 .* is too old"):
        asked(tmp_path, "2020.1", monkeypatch)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no license server'\n")
    broken.chmod(0o755)
    with pytest.raises(NsysUnusable, match="'no license server'"):
        nsys_tool.ask(broken)
    too_old = record(tmp_path, "touch", "started", FAKE_NSYS="2020.1")
    assert too_old.status == 2
    assert too_old.said.startswith("nsys 2020.1.1 (")
    none = record(tmp_path, "touch", "started", options=("--nsys", "nowhere"))
    assert (none.status, none.said.splitlines()[0]) == (2, "There is no nsys at 'nowhere'.")
    both = record(tmp_path, "touch", "started", options=("--on-demand",))
    assert (both.status, both.said.split(",")[0]) == (2, "--on-demand uses the PyTorch profiler")
    assert not (tmp_path / "started").exists()
    assert not none.run.exists()


def test_a_job_that_has_waited_for_its_nodes_trains_without_nsys(tmp_path: Path) -> None:
    given = {"options": ("--nsys", "nowhere"), "SLURM_JOB_ID": "7"}
    recorded = record(tmp_path, "sh", "-c", "echo trained; exit 4", **given)
    assert (recorded.status, recorded.out) == (4, "trained\n")
    assert recorded.said.startswith("There is no nsys at 'nowhere'.\nHint: ")
    assert recorded.said.endswith("lostflops: training goes on and is not recorded.\n")


def test_nsys_within_nsys_is_refused(tmp_path: Path) -> None:
    what: dict[str, Any] = {"steps": ((10, 14),), "every": 0, "delay": None, "duration": None}
    with pytest.raises(BadOption, match="already runs under nsys"):
        wrapping.translated(None, (), ["python"], {"NSYS_PROFILING_SESSION_ID": "1"}, **what)
    with pytest.raises(BadOption, match="The command itself starts nsys"):
        wrapping.translated(None, (), ["/opt/nsys", "profile", "python", "x.py"], {}, **what)


def test_print_shows_every_command_and_starts_nothing(tmp_path: Path) -> None:
    options = ("--print", "--what", "cuda,metrics")
    shown = record(tmp_path, "python", "x.py", options=options, FAKE_NSYS="2023.4", PYTHONPATH="")
    first, *others = shown.out.splitlines()
    assert first == f"PYTHONPATH={shown.run}/boot python x.py"
    nsys = str(installed(tmp_path))
    assert others[0].startswith(
        f"# local rank 0, where there is CUDA: PYTHONUNBUFFERED=1 {nsys} profile --trace=cuda,nvtx "
    )
    assert "--gpu-metrics-device=all --capture-range=cudaProfilerApi --capture-range-end=stop " in others[0]
    assert others[0].endswith(f"--output={shown.run}/node-NNNN/nsys-RRRRR-aN-wNNN python ...")
    assert others[1].startswith(f"# each rank, where there is CUDA: PYTHONUNBUFFERED=1 {nsys} profile ")
    assert "--start-later=true --session-new=NAME" in others[3]
    assert "tokens included" in others[4]
    assert not shown.run.exists()
    assert calls(tmp_path) == []


class TestJobs:
    """Real jobs under the stand-in."""

    @pytest.fixture(autouse=True)
    def torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_rank_starts_and_stops_its_session_at_the_steps(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(TRAIN + "train(8); print('trained', sys.argv[1:]); sys.exit(5)")
        recorded = record(tmp_path, sys.executable, "-u", "train.py", "a b")
        assert (recorded.status, recorded.out) == (5, "trained ['a b']\n")
        assert recorded.said.startswith("recorded steps 3-5 on 1 rank with nsys 2026.2.1 -> ")
        (profile,) = calls(tmp_path)
        python, *words = profile["words"][profile["words"].index(sys.executable) :]
        assert (python, words) == (sys.executable, ["-u", "train.py", "a b"])
        assert profile["cwd"] == str(tmp_path)
        assert profile["environment"]["PYTHONUNBUFFERED"] == "1"
        session = next(w for w in profile["words"] if w.startswith("--session-new=")).partition("=")[2]
        assert [c["words"] for c in calls(tmp_path, "start")] == [[f"--session={session}"]]
        assert [c["words"] for c in calls(tmp_path, "stop")] == [[f"--session={session}"]]
        (report,) = recorded.run.glob("node-*/nsys-00000-a0-w000.nsys-rep")
        assert report.read_text() == "a report of nsys 2026.2"
        assert [s["step"] for s in recorded.steps() if s["window"]] == [3, 4, 5]
        assert not list(recorded.run.glob("node-*/window-*")), "two profilers at once"

    def test_ranks_of_torchrun_have_reports_and_only_the_chosen(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(TRAIN + "train(6)")
        options = ("--steps", "2-3", "--ranks", "1-7", "--what", "cuda,metrics")
        run = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
        recorded = record(tmp_path, sys.executable, *run, options=options)
        assert recorded.status == 0, recorded.said
        assert sorted(c["environment"]["RANK"] for c in calls(tmp_path)) == ["1"]
        names = sorted(p.name for p in recorded.run.glob("node-*/*.nsys-rep"))
        assert names == ["nsys-00001-a0-w000.nsys-rep"]
        assert not any("metrics" in w for c in calls(tmp_path) for w in c["words"])
        assert "recorded steps 2-3 on 1 rank" in recorded.said
        assert (
            "no counters were recorded: local rank 0 reads them, and --ranks leaves it out"
        ) in recorded.said


def test_a_range_that_was_never_opened_is_noticed(tmp_path: Path) -> None:
    recorded = record(tmp_path, sys.executable, "-c", "pass")
    assert len(calls(tmp_path)) == 1
    assert calls(tmp_path, "start") == []
    why = "its window was never opened: it made 0 steps, and recording starts at step 3"
    hint = "Hint: a job without optimizer steps can be recorded by time, with `--delay S --duration S`"
    assert f"rank 0 has no report: {why}\n{hint}\n" in recorded.said


BY_TIME = ("--delay", "0", "--duration", "1")  # which needs no steps, and so no PyTorch


def test_by_time_nsys_itself_begins_and_ends(tmp_path: Path) -> None:
    recorded = record(tmp_path, sys.executable, "-c", "print('ran')", options=BY_TIME)
    assert (recorded.status, recorded.out) == (0, "ran\n")
    (profile,) = calls(tmp_path)
    assert {"--delay=0", "--duration=1", "--kill=none"} <= set(profile["words"])
    assert recorded.said.startswith("recorded on 1 rank with nsys 2026.2.1 -> ")


def test_why_explains_the_ranks_that_were_recorded(tmp_path: Path) -> None:
    export = nsys_exports.sqlite(
        tmp_path / "theirs.sqlite",
        {"CUPTI_ACTIVITY_KIND_KERNEL": [nsys_exports.kernel(100, 150), nsys_exports.kernel(170, 200)]},
    )
    placed = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6"}
    recorded = record(tmp_path, sys.executable, "-c", "pass", options=BY_TIME, **placed)
    said = recorded.said.splitlines()[-1]
    assert said == f"next: lostflops why {recorded.run}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}/bin:{NOTHING_ELSE}")
        patch.setenv("FAKE_NSYS_EXPORT", str(export))
        ranks = lostflops.open(recorded.run).table("ranks")
    assert ranks is not None
    assert ranks.collect().select("rank", "rank_source").rows() == [(5, "file name")]


def test_a_refusal_costs_the_recording_and_not_the_rank(tmp_path: Path) -> None:
    nsys = installed(tmp_path)
    # It answers, but does not start anything.
    refusing = '[ "$1$2" != "profile--help" ] && [ $1 = profile ] && exit 3\nexec'
    nsys.write_text(nsys.read_text().replace("exec", refusing))
    recorded = record(tmp_path, sys.executable, "-c", "print('ran')", options=BY_TIME)
    assert (recorded.status, recorded.out) == (0, "ran\n")
    assert "lostflops: nsys did not start rank 0 (it ended with status 3" in recorded.said
    assert "rank 0 has no report: nsys ended with status 3 before the program started" in recorded.said


def test_counters_that_are_refused_are_left_out(tmp_path: Path) -> None:
    options = (*BY_TIME, "--what", "cuda,metrics")
    recorded = record(tmp_path, sys.executable, "-c", "pass", options=options, FAKE_NSYS_FAULT="device")
    with_counters, without = calls(tmp_path)
    assert "--gpu-metrics-devices=all" in with_counters["words"]
    assert "--gpu-metrics-devices=all" not in without["words"]
    assert "recorded on 1 rank" in recorded.said
    assert "no counters were recorded: nsys refused to start with them" in recorded.said


@pytest.mark.parametrize(
    ("fault", "why"), [("lost", "nsys wrote none and ended with status 0"), ("empty", "its report is empty")]
)
def test_a_report_that_is_lost_is_noticed(tmp_path: Path, fault: str, why: str) -> None:
    recorded = record(tmp_path, sys.executable, "-c", "pass", options=BY_TIME, FAKE_NSYS_FAULT=fault)
    assert recorded.status == 0
    assert f"nothing was recorded by nsys\nrank 0 has no report: {why}\n" in recorded.said


def job(folder: Path, script: str, **settings: Any) -> tuple[dict[str, str], list[str]]:
    """What `record` leaves for a job and its environment, without `record` itself."""
    from lostflops.capture.record import new_run, recording

    nsys = installed(folder)
    tool = nsys_tool.Nsys(nsys, "2026.2.1", {})
    ranges = nsys_options.range_switches(1, None, None)
    planned = recording.Recording(
        ["python"],
        folder / "run",
        steps=((2, 3), (6, 7)),
        nsys=wrapping.Wrapping(tool, ["--kill=none"], [], ranges),
    )
    new_run.write(planned)
    settings_file = planned.boot / run_folder.NSYS
    written = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps({**written, **settings}))
    (folder / "job.py").write_text(script)
    given = environment(
        PYTHONPATH=os.pathsep.join([str(planned.boot), QUICK_TORCH]),
        FAKE_NSYS_LOG=str(folder / "calls"),
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
    )
    return given, [sys.executable, str(folder / "job.py")]


def test_with_cuda_the_rank_opens_the_range_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = TRAIN + (
        "torch.cuda.profiler.start = lambda: print('start')\n"
        "torch.cuda.profiler.stop = lambda: print('stop')\n"
        "for n in range(9): train(1); print(n)\n"
    )
    given, command = job(tmp_path, script, gpu="/dev/null")
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*"0", "start", *"12", "stop", *"345678"], done.stderr
    (log,) = (tmp_path / "run").glob("node-*/steps-*.jsonl")
    said = [json.loads(line) for line in log.read_text().splitlines() if '"nsys"' in line]
    assert [(s["state"], s["first"], s.get("last")) for s in said] == [
        ("open", 2, None), ("complete", 2, 3), ("lost", 6, None),
    ]  # fmt: skip
    assert said[1]["file"] == "nsys-00000-a0-w000.nsys-rep"
    assert said[2]["reason"] == "the windows of --steps are over, and nsys was started for those only"
    (profile,) = calls(tmp_path)
    assert "--capture-range=cudaProfilerApi" in profile["words"]


def test_ranks_that_share_an_nsys_open_its_range_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(new_run.PAYLOAD))
    from lostflops_recorder.windows import nsys  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv(nsys.MARKER, str(tmp_path / ".nsys-00000-a0-w000.started"))
    assert (nsys.leads(), nsys.leads()) == (True, False)


def test_a_signal_reaches_the_program_and_its_status_comes_back(tmp_path: Path) -> None:
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print('up', flush=True)
while True: time.sleep(.05)
"""
    given, command = job(tmp_path, script)
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(30) == 9


def test_nsys_and_the_program_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    script = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(.05)\n"
    given, command = job(tmp_path, script)
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        for _ in range(100):
            if not Path(f"/proc/{program}").exists():
                return
            time.sleep(0.05)
        os.kill(program, signal.SIGKILL)
        pytest.fail("the program outlived its supervisor")


def test_an_nsys_that_hangs_does_not_hang_the_job(tmp_path: Path) -> None:
    given, command = job(tmp_path, "import sys; sys.exit(0)", patience=0.5)
    began = time.monotonic()
    done = subprocess.run(command, env={**given, "FAKE_NSYS_FAULT": "hang"}, timeout=60)
    assert done.returncode == 0
    assert time.monotonic() - began < 20
    (notes,) = (tmp_path / "run").glob("node-*/nsys-*.jsonl")
    assert '"kind": "hung"' in notes.read_text()


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("python train.py", True),
        ("python -m torch.distributed.run x.py", False),
        ("python /usr/bin/torchrun x.py", False),
        ("python -u -m deepspeed.launcher.launch", False),
        ("python -X dev -W ignore -m train", True),
        ("python -m pip list", False),
        ("python -c code", False),
        ("python", False),
    ],
)
def test_launchers_and_helpers_are_no_ranks(words: str, rank: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(new_run.PAYLOAD))
    from lostflops_recorder.rank import Rank  # pyright: ignore[reportMissingImports]
    from lostflops_recorder.windows import nsys  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(sys, "orig_argv", words.split())
    monkeypatch.setattr(nsys, "_name_of", lambda pid: "srun")  # these tests may be run by a shell
    one: Any = Rank(3, None, None, "node-0000", 0, "Open MPI")
    assert (not nsys._launches() and nsys._is_rank(one, 0)) is rank
