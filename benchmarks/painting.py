"""What a reader waits for in the browser: the first picture, and the picture that a key changes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

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
