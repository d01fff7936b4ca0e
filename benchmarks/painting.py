"""What a reader waits for in the browser: the first picture, and the picture that a key changes."""

from __future__ import annotations

import gzip
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import timelines
from sections import Found, Say, verdict

MOST_TO_PAINT, MOST_FIRST, MOST_SCRIPT = 0.05, 1.5, 60 * 1024  # seconds, and bytes when packed
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PRESSES = 250
# From a key to the next picture, as browsers report it: in steps of 8 ms, and nothing below 16.
WATCH = """() => {
    window.waits = [];
    new PerformanceObserver((list) => {
        for (const one of list.getEntries()) if (one.name === 'keydown') window.waits.push(one.duration);
    }).observe({ type: 'event', durationThreshold: 16 });
}"""
COMPLETE = ".timeline canvas[data-complete=true]"


def browser(repeat: int, big: bool, say: Say) -> Found:
    """What a reader of the viewer waits for in a browser."""
    rows: list[list[str]] = []
    firsts: list[float] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        for what, size, streams, opened, presses in (
            ("64 tracks, 20 million events", timelines.TRACKS, 7, "open=0,1,2,3,4,5,6,7", PRESSES),
            ("1,024 ranks, 100 million events", timelines.RANKS, 2, "", PRESSES // 2),
        ):
            say(what)
            run = Path(place, str(size[0]))
            timelines.made(run, *size, streams=streams, repeat=1)
            found = in_browser(run, opened, presses)
            if found is None:
                return Found(("",), [], "Not measured: there is no Chromium here.")
            first, waits, spent = found
            middle, most = (float(np.quantile(waits, share)) for share in (0.5, 0.95))
            rows.append(
                [what, f"{first:.2f}", f"{middle * 1e3:.0f}", f"{most * 1e3:.0f}", f"{spent * 1e3:.0f}"]
            )
            firsts.append(first)
            slowest = max(slowest, most)
            shutil.rmtree(run)
    script = len(gzip.compress((files("lostflops.viewer") / "assets" / "viewer.js").read_bytes(), 9))
    return Found(
        ("", "first picture, s", "key to picture p50, ms", "p95, ms", "processor time of a key, ms"),
        rows,
        f"{verdict(firsts[1] <= MOST_FIRST, 'first picture of 1,024 ranks in 1.5 s')} "
        f"{verdict(slowest <= MOST_TO_PAINT, 'p95 of 50 ms from a key to its picture')} "
        f"The viewer's script is {script / 1024:.1f} KiB packed. "
        f"{verdict(script <= MOST_SCRIPT, '60 KiB')}",
        f"lostflops {version('lostflops')}, playwright {version('playwright')}",
    )


@contextmanager
def address(run: Path) -> Generator[str]:
    """Where `lostflops view` serves a run."""
    command = [sys.executable, "-m", "lostflops", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


def in_browser(run: Path, hash_: str = "", presses: int = PRESSES) -> tuple[float, list[float], float] | None:
    """Seconds until the page is drawn whole, and until each of so many keys shows; and seconds of processor
    time that the browser spends on a key. None without Chromium.

    W, A, S and D are pressed at random, as fast as somebody plays with them.
    """
    if CHROMIUM is None:
        return None
    from playwright.sync_api import sync_playwright

    random = np.random.default_rng(5)
    with address(run) as place, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(120_000)
        # The server has read its files once before: what is measured is warm.
        page.goto(place)
        page.wait_for_selector(COMPLETE)
        before = time.perf_counter()
        page.goto(page.url.partition("#")[0] + (f"#{hash_}" if hash_ else ""))
        page.wait_for_selector(COMPLETE)
        first = time.perf_counter() - before
        page.mouse.move(1000, 500)
        page.evaluate(WATCH)
        spent = _processor_time()
        for key in random.choice(list("wasd"), presses, p=[0.3, 0.2, 0.3, 0.2]):
            page.keyboard.press(str(key))
            page.wait_for_timeout(40)
        spent = _processor_time() - spent
        waits: list[Any] = page.evaluate("window.waits")
        browser.close()
    quick = [16.0] * (presses - len(waits))
    return first, [wait / 1e3 for wait in (*quick, *waits)], spent / presses


def _processor_time() -> float:
    """Of the browser's processes, which are this one's children."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "chrom" in process.name():
                times = process.cpu_times()
                total += times.user + times.system
    return total
