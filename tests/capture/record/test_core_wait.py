"""A training thread that has to share its processor core: the step log counts it, and the page says so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import lostflops
from lostflops.capture.record.injected.lostflops_recorder.steps import core_wait
from lostflops.capture.record.injected.lostflops_recorder.steps.core_wait import COUNTS, CoreWait
from recorded import record_script

counted = pytest.mark.skipif(not Path(COUNTS).exists(), reason="this system does not count it")
HOG = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass\n"
CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


@pytest.fixture
def crowded_core() -> Generator[None]:
    """Two programs that never rest on one core."""
    environment = {**os.environ, "CORE": str(CORE)}
    hogs = [subprocess.Popen([sys.executable, "-c", HOG], env=environment) for _ in range(2)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


# They begin with the training and end with it: importing torch among them would take three times as long.
CROWDED = """
import subprocess
hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
try:
    train(37, iter(lambda: torch.randn(256, 256), None))
finally:
    for hog in hogs:
        hog.kill()
"""
LIMITS = {
    "cpu.cfs_quota_us": "20000",
    "cpu.max": "20000 100000",
}  # a fifth of a core, in both kinds of groups


@pytest.fixture
def fifth_of_a_core() -> Generator[Path]:
    """A control group whose processes have the CPU limit of a small pod."""
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = root / f"lostflops-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        files = [(group / name, limit) for name, limit in LIMITS.items() if (group / name).exists()]
        for file, limit in files:
            file.write_text(limit)
        if files:
            yield group
        group.rmdir()
        if files:
            return
    pytest.skip("no control group can be made here")


def spin(seconds: float) -> float:
    """Processor time that this thread used until so much real time passed."""
    began, used = time.monotonic(), time.thread_time()
    while time.monotonic() < began + seconds:
        pass
    return time.thread_time() - used


@counted
def test_waiting_for_a_core_is_time_without_one(crowded_core: None) -> None:
    everywhere = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {CORE})
        wait = CoreWait()
        began = wait.begin()
        used = spin(0.5)
        counted = wait.end()
        without = (time.monotonic_ns() - began) / 1e9 - used
        assert without > 0.1
        assert counted is not None and counted[1] == pytest.approx(1e9 * without, rel=0.1)
    finally:
        os.sched_setaffinity(0, everywhere)


@counted
def test_sleeping_is_no_waiting_and_another_threads_count_is_its_own() -> None:
    wait = CoreWait()
    wait.begin()
    time.sleep(0.2)
    slept = wait.end()
    assert slept is not None and max(slept) < 0.1e9
    wait.begin()
    used = spin(0.1)
    spun = wait.end()
    assert spun is not None and spun[0] == pytest.approx(1e9 * used, abs=0.02e9)
    wait.begin()
    other: list[tuple[int, int] | None] = []
    thread = threading.Thread(target=lambda: other.append(wait.end()))
    thread.start()
    thread.join()
    assert other == [None], "a step that another thread ends has no count"


@counted
def test_a_thread_that_runs_all_the_time_was_not_blocked_in_a_step_of_a_millisecond() -> None:
    """What Linux counts as run changes at ticks of its clock, which lie 1 to 10 ms apart."""
    wait = CoreWait()
    for _ in range(7):
        wait.begin()
        used = spin(0.001)
        counted = wait.end()
        assert counted is not None and counted[0] == pytest.approx(1e9 * used, abs=0.3e6)


def test_a_system_that_does_not_count_it_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CoreWait.__module__}.COUNTS", "/proc/no-such-file")
    wait = CoreWait()
    assert wait.end() is None, "nobody saw the first step begin"
    wait.begin()
    assert wait.end() is None


@counted
def test_a_pause_by_a_cpu_limit_lies_in_a_step_that_it_is_counted_in(fifth_of_a_core: Path) -> None:
    """Linux pauses a thread that is over its limit where it asks for its processor time: at the ends of
    steps, and that is where these would otherwise be counted in a step of a few milliseconds."""
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path(core_wait.__file__).parent)!r})
from core_wait import CoreWait
open("{fifth_of_a_core}/cgroup.procs", "w").write(str(os.getpid()))
wait, steps, end = CoreWait(), [], time.monotonic_ns()
for _ in range(200):
    began = wait.begin()
    assert began - end < 50_000_000
    while time.monotonic_ns() < began + 3_000_000:
        pass
    ran, waited = wait.end()
    end = time.monotonic_ns()
    steps.append((end - began, ran, waited))
print(steps)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    steps: list[tuple[int, int, int]] = ast.literal_eval(said.stdout)
    off = [whole - ran - waited for whole, ran, waited in steps]
    assert sum(waited > 20e6 for _, _, waited in steps) > 3, "it was paused"
    assert all(waited <= whole for whole, _, waited in steps)
    assert sum(map(abs, off)) < 0.1 * sum(whole for whole, _, _ in steps)


@counted
def test_a_job_that_shares_its_core_is_told_so_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = f"""
os.sched_setaffinity(0, {{{CORE}}})
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{CROWDED}"""
    recorded = record_script(tmp_path, script, options=("--steps", "20-35"))
    waits = [step["core_wait"] for step in recorded.steps()[1:]]
    whole = sum(step["duration"] for step in recorded.steps()[1:])
    assert sum(waits) > 0.3 * whole
    page = lostflops.why(recorded.run)
    assert page.findings[0].name == "waits-for-a-core", str(page)
    said = re.match(r"The training thread waits [\d.]+ m?s per step \(([\d.]+) %\)", page.findings[0].claim)
    assert page.verdict.startswith("Short of processor cores: ")
    assert said and float(said[1]) > 30


@counted
def test_a_job_that_a_cpu_limit_holds_back_is_told_so_first(tmp_path: Path, fifth_of_a_core: Path) -> None:
    pytest.importorskip("torch")
    script = f"""
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
open("{fifth_of_a_core}/cgroup.procs", "w").write(str(os.getpid()))
train(31, iter(lambda: torch.randn(256, 256), None))
"""
    recorded = record_script(tmp_path, script, options=("--steps", "10-29"))
    page = lostflops.why(recorded.run)
    assert page.findings[0].name == "waits-for-a-core", str(page)
    assert "a CPU limit holds it back" in page.findings[0].claim
    share = float(page.findings[0].claim.split("(")[1].split(" %")[0])
    assert share > 50
