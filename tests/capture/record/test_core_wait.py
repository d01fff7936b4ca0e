"""A training thread that has to share its processor core: the step log counts it, and the page says so."""

from __future__ import annotations

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
        assert wait.since_last() is None
        began = time.monotonic()
        used = spin(0.5)
        without = time.monotonic() - began - used
        assert without > 0.1
        assert wait.since_last() == pytest.approx(1e9 * without, rel=0.1)
    finally:
        os.sched_setaffinity(0, everywhere)


@counted
def test_sleeping_is_no_waiting_and_another_threads_count_is_its_own() -> None:
    wait = CoreWait()
    assert wait.since_last() is None
    time.sleep(0.2)
    slept = wait.since_last()
    assert slept is not None and slept < 0.1e9
    other: list[int | None] = []
    thread = threading.Thread(target=lambda: other.append(wait.since_last()))
    thread.start()
    thread.join()
    assert other == [None], "the first count of a thread has nothing before it"


def test_a_system_that_does_not_count_it_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CoreWait.__module__}.COUNTS", "/proc/no-such-file")
    wait = CoreWait()
    assert [wait.since_last(), wait.since_last()] == [None, None]


@counted
def test_a_job_that_shares_its_core_is_told_so_first(tmp_path: Path, crowded_core: None) -> None:
    pytest.importorskip("torch")
    script = f"""
os.sched_setaffinity(0, {{{CORE}}})
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(40, iter(lambda: torch.randn(256, 256), None))
"""
    recorded = record_script(tmp_path, script, options=("--steps", "20-35"))
    waits = [step["core_wait"] for step in recorded.steps()[1:]]
    whole = sum(step["duration"] for step in recorded.steps()[1:])
    assert sum(waits) > 0.3 * whole
    page = lostflops.why(recorded.run)
    assert page.findings[0].name == "waits-for-a-core", str(page)
    said = re.match(r"The training thread waits [\d.]+ m?s per step \(([\d.]+) %\)", page.findings[0].claim)
    assert page.verdict.startswith("Short of processor cores: ")
    assert said and float(said[1]) > 30
