"""`lostflops trigger`: a window of a job that runs already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import lostflops
from lostflops.capture.record import on_demand, trigger
from lostflops.errors import BadOption, LostflopsError, NothingThere
from recorded import TRAIN, Recorded, environment

FIVE = on_demand.Request(duration=None, steps=None)


@contextmanager
def running(folder: Path, script: str, *options: str, **more: str) -> Generator[subprocess.Popen[str]]:
    """A recorded job, ended at the end if it has not ended by itself."""
    (folder / "train.py").write_text(TRAIN + script)
    before = [sys.executable, "-m", "lostflops", "record", *options, "--output", str(folder / "run"), "--"]
    job = subprocess.Popen(
        [*before, sys.executable, "train.py"],
        env=environment(**more),
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield job
    finally:
        job.terminate()
        job.communicate(timeout=60)


def until(true: object, job: subprocess.Popen[str]) -> None:
    assert callable(true)
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)


def test_a_job_that_trains_is_recorded_now_by_its_folder_or_its_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = "while not os.path.exists('stop'): train(1); time.sleep(.01)"
    run = tmp_path / "run"
    recorded = Recorded(run, 0, "", "")
    with running(tmp_path, script, "--steps", "9999999") as job:
        until(lambda: list(run.glob("node-*/steps-*.jsonl")) and len(recorded.steps()) > 5, job)
        answer = trigger.record(str(run), FIVE, None, None)
        first = recorded.windows()[0]
        assert first["last"] - first["first"] == 4
        assert answer.lines == [f"recorded steps {first['first']}-{first['last']} on 1 rank -> {run}"]
        assert lostflops.open(run).table("steps") is not None
        process = recorded.lines()[0]["pid"]
        trigger.record(str(process), on_demand.Request(duration=0.1, steps=None), None, None)
        second = recorded.windows()[1]
        assert second["first"] > first["last"] and second["request"] != first["request"]
        trigger.record(str(job.pid), on_demand.Request(duration=None, steps=2), None, None)
        third = recorded.windows()[2]
        assert third["first"] > second["last"], "the id of `record` is as good as that of its job"
        with pytest.raises(BadOption, match="None of these ranks runs on this machine"):
            trigger.record(str(run), FIVE, ((7, 9),), None)
        (tmp_path / "stop").touch()
        assert job.wait(60) == 0
    assert not (run / "boot" / "request.jsonl").exists()
    with pytest.raises(BadOption, match=r"No running process of .* has finished a step"):
        trigger.record(str(run), FIVE, None, None)


def test_a_job_without_steps_is_asked_by_pytorch_and_may_end_meanwhile(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Without the guard at its end the process crashes: it ends in the middle of the window.
    script = """
open('up', 'w').close()
while not os.path.exists('stop'): model(torch.randn(4, 8)); time.sleep(.001)
"""
    run = tmp_path / "run"
    with running(tmp_path, script, "--on-demand") as job:
        until((tmp_path / "up").exists, job)
        (sockets,) = on_demand.folders(run)
        ending = subprocess.Popen(["/bin/sh", "-c", f"sleep 4.5; touch {tmp_path / 'stop'}"])
        answer = trigger.record(str(run), on_demand.Request(duration=3.0, steps=None), None, None)
        ending.wait()
        assert answer.lines == [f"recorded 1 process -> {run / 'on-demand'}"]
        _, said = job.communicate(timeout=60)
        assert job.returncode == 0, said
    assert said.startswith(f"recorded 1 trace on demand -> {run / 'on-demand'}\n")
    assert not sockets.exists()
    operators = lostflops.open(run).table("operators")
    assert operators is not None
    assert "aten::addmm" in operators.select("name").unique().collect()["name"].to_list()


def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingThere, match="give the folder that `lostflops record` made, or the id"):
        trigger.record(str(tmp_path / "none"), FIVE, None, None)
    with pytest.raises(BadOption, match="not the folder of a job recorded"):
        trigger.record(str(tmp_path), FIVE, None, None)
    with pytest.raises(BadOption, match="There is no process"):
        trigger.record(str(2**22 + 1), FIVE, None, None)
    sleeping = subprocess.Popen(["sleep", "60"], env={"NOTHING": "set"})
    deaf = subprocess.Popen(
        ["sleep", "60"], env={"KINETO_USE_DAEMON": "", "KINETO_IPC_SOCKET_DIR": str(tmp_path)}
    )
    try:
        while not all(on_demand.environment_of(p.pid) for p in (sleeping, deaf)):
            time.sleep(0.01)  # they are still being started
        with pytest.raises(BadOption, match="was started without lostflops and without KINETO_USE_DAEMON=1"):
            trigger.record(str(sleeping.pid), FIVE, None, None)
        with pytest.raises(BadOption, match="This window is too long"):
            trigger.record(str(deaf.pid), on_demand.Request(3.0, None), None, None)
    finally:
        for process in (sleeping, deaf):
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_questions_are_answered_once_and_only_by_processes_that_are_free(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()

    def client(name: str, able: int, *pids: int) -> socket.socket:
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        mine.bind(str(folder / name))
        mine.settimeout(5)
        body = on_demand.QUESTION.pack(able, len(pids), 0) + b"".join(p.to_bytes(4, "little") for p in pids)
        mine.sendto(on_demand.HEADER.pack(len(body), b"req") + body, str(folder / "dynolog"))
        return mine

    with on_demand.Agent(folder) as agent:
        with pytest.raises(BadOption, match="Another profiling agent"), on_demand.Agent(folder):
            pass
        free, busy = client("free", 3, 40, 30), client("busy", 1, 41)
        free.sendto(b"short", str(folder / "dynolog"))
        first, second = agent.question(1), agent.question(1)
        assert first is not None and (first.pids, first.idle) == ((40, 30), True)
        assert second is not None and (second.pids, second.idle) == ((41,), False)
        assert agent.question(1) is None
        agent.answer(first, on_demand.Request(0.5, None).settings(tmp_path / "x.json", 1000.25))
        agent.answer(second)
        told = free.recv(4096)
        assert on_demand.HEADER.unpack_from(told)[0] == len(told) - on_demand.HEADER.size
        assert b"PROFILE_START_TIME=1000250\n" in told and b"ACTIVITIES_DURATION_MSECS=500\n" in told
        assert busy.recv(4096)[8:] == b"req".ljust(32, b"\0")
    assert not (folder / "dynolog").exists()
    (folder / "dynolog").unlink(missing_ok=True)
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(folder / "dynolog"))
    stale.close()
    with on_demand.Agent(folder):
        pass


class Late(threading.Thread):
    """A process whose profiler misses the first `misses` starts, and writes a trace at the next."""

    def __init__(self, folder: Path, pid: int, misses: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.pid, self.misses, self.starts = folder, pid, misses, list[float]()

    def run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
            mine.bind(str(self.folder / f"client-{self.pid}"))
            mine.settimeout(5)
            question = on_demand.QUESTION.pack(3, 1, 0) + self.pid.to_bytes(4, "little")
            message = on_demand.HEADER.pack(len(question), b"req") + question
            while not (self.folder / "dynolog").exists():
                time.sleep(0.01)
            with suppress(OSError):  # the agent has ended
                while True:
                    mine.sendto(message, str(self.folder / "dynolog"))
                    told = mine.recv(4096)[on_demand.HEADER.size :].decode()
                    keys = dict(line.split("=", 1) for line in told.splitlines())
                    if keys:
                        answered = time.time()
                        self.starts.append(int(keys["PROFILE_START_TIME"]) / 1000 - answered)
                        trace = Path(keys["ACTIVITIES_LOG_FILE"].replace(".json", f"_{self.pid}.json"))
                        trace.with_name(f"{trace.name}.tmp").touch()
                        if len(self.starts) > self.misses:
                            trace.with_name(f"{trace.name}.tmp").rename(trace)
                    time.sleep(0.1)


@pytest.mark.parametrize(("misses", "processes", "asked"), [(1, 1, [2]), (9, 1, [3]), (1, 2, [1, 1])])
def test_a_start_that_pytorch_missed_is_asked_for_again(
    tmp_path: Path, misses: int, processes: int, asked: list[int]
) -> None:
    """Of several processes it is only said: a later window would not be the one of the others."""
    folder = tmp_path / "s"
    folder.mkdir()
    alive = [os.getpid(), os.getppid()][:processes]
    clients = [Late(folder, pid, misses if pid == os.getpid() else 0) for pid in alive]
    for client in clients:
        client.start()
    answer = on_demand.ask(folder, on_demand.Request(0.2, None), tmp_path / "out", lead=0.3)
    assert [len(client.starts) for client in clients] == asked
    assert all(start > on_demand.LOOK for client in clients for start in client.starts)
    recorded = {client.pid for client in clients if len(client.starts) > client.misses}
    assert set(answer.traces) == recorded
    assert answer.lost == {
        client.pid: "PyTorch missed the start of the window; run `lostflops trigger` again"
        for client in clients
        if client.pid not in recorded
    }


def test_nobody_asks(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    with pytest.raises(LostflopsError, match="No process of the job asked for instructions"):
        on_demand.ask(folder, FIVE, tmp_path / "out", lead=0.1)
    assert list(folder.iterdir()) == []
