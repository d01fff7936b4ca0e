"""What holds for all tests: on a machine that others use too, a slow example is no failure."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Jobs of tests compete for the cores with other tests. Threads of theirs that spin while they wait would hold
# up what they wait for: a step on a busy machine takes five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# What tests start imports torch in half the processor time.
QUICK_TORCH = str(Path(__file__).parent / "quick_torch")
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":  # the mutants have one of their own
    settings.load_profile("shared machine")


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
IN_MEMORY = Path("/dev/shm")
ROOM = 8 << 30  # bytes: several times what all tests write


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Files of tests lie in memory where there is room: a disk takes longer for thousands of small ones.

    A shell starts what runs behind it with Ctrl-C ignored, and so would be what tests interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if IN_MEMORY.is_mount() and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is there
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores: some tests sleep, or wait for jobs that do."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Each worker begins with other modules of tests, so that no two compile the same ones.

    In a fresh clone pytest compiles assertions with their explanations, which costs more than all else of
    collecting, and keeps the result for whoever comes next.
    """
    worker = getattr(session.config, "workerinput", None)  # absent without pytest-xdist
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    gc.disable()  # until all is collected: most of it stays, and would be gone through dozens of times
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    number, of = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[len(files) * number // of : len(files) * (number + 1) // of]:
        with suppress(Exception, pytest.skip.Exception):  # told when it is collected
            _ = pytest.Module.from_parent(session, path=file).obj  # pyright: ignore[reportUnknownMemberType]


# Their processes are forks, which take five times as long of a pytest that has grown with thousands of tests.
FORKING = ("test_data_loader.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork come first."""
    items.sort(key=lambda item: item.path.name not in FORKING)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # A collection after each 700 objects takes a twentieth of the processor time of tests that build models.
    gc.set_threshold(10_000, 20, 20)
    # Not before, or the workers of pytest-xdist would import it so as well.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [QUICK_TORCH, os.environ.get("PYTHONPATH")]))


_looked_at: Path | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a module of tests imports late, such as transformers, stays as well."""
    global _looked_at
    if item.path != _looked_at:
        _looked_at = item.path
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system; tests that need it are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
