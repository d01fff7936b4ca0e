"""What a reader waits for in the browser: the first picture, and the picture that a key changes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Played:
    """Seconds until each key shows, of processor time of the page's main thread until then, and of processor
    time of the whole browser per key, with what it draws afterwards."""

    waits: list[float]
    worked: list[float]
    spent: float


COMPLETE = ".timeline canvas[data-complete=true]"


def browser(repeat: int, big: bool, say: Say) -> Found:
    """What a reader of the viewer waits for in a browser."""
    rows: list[list[str]] = []
    firsts: list[float] = []
    slowest = busiest = 0.0
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
            first, keys = found
            rows.append([what, f"{first:.2f}", *of_keys(keys)])
            firsts.append(first)
            slowest = max(slowest, float(np.quantile(keys.waits, 0.95)))
            busiest = max(busiest, float(np.quantile(keys.worked, 0.95)))
            shutil.rmtree(run)
    script = len(gzip.compress((files("lostflops.viewer") / "assets" / "viewer.js").read_bytes(), 9))
    return Found(
        ("", "first picture, s", *OF_KEYS),
        rows,
        f"{verdict(firsts[1] <= MOST_FIRST, 'first picture of 1,024 ranks in 1.5 s')} "
        f"{verdict(slowest <= MOST_TO_PAINT, 'p95 of 50 ms from a key to its picture')} "
        f"Of that the page itself works {busiest * 1e3:.0f} ms of processor time (p95); the rest is waiting "
        "for a frame and for a processor. "
        f"The viewer's script is {script / 1024:.1f} KiB packed. "
        f"{verdict(script <= MOST_SCRIPT, '60 KiB')}",
        f"lostflops {version('lostflops')}, playwright {version('playwright')}",
    )


OF_KEYS = (
    "key to picture p50, ms",
    "p95, ms",
    "page's own work until then p50, ms",
    "p95, ms",
    "browser's work per key, ms",
)


def of_keys(keys: Played) -> list[str]:
    """The cells under `OF_KEYS`."""
    shares = [
        float(np.quantile(values, share)) for values in (keys.waits, keys.worked) for share in (0.5, 0.95)
    ]
    return [f"{value * 1e3:.0f}" for value in (*shares, keys.spent)]


@contextmanager
def address(run: Path, store: Path | None = None) -> Generator[str]:
    """Where `lostflops view` serves a run or a trace, imported into that store."""
    command = [sys.executable, "-m", "lostflops", "view", str(run), "--no-browser"]
    environment = os.environ | ({"LOSTFLOPS_CACHE": str(store)} if store else {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


def in_browser(run: Path, hash_: str = "", presses: int = PRESSES) -> tuple[float, Played] | None:
    """Seconds until the page is drawn whole, and what keys take then. None without Chromium."""
    if CHROMIUM is None:
        return None
    from playwright.sync_api import sync_playwright

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
        found = played(browser, page, presses)
        browser.close()
    return first, found


def played(browser: Any, page: Any, presses: int) -> Played:
    """What keys take in a page: W, A, S and D are pressed at random, as fast as somebody plays with them."""
    random = np.random.default_rng(5)
    page.mouse.move(1000, 500)
    page.evaluate(WATCH)
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    spent = _processor_time()
    for key in random.choice(list("wasd"), presses, p=[0.3, 0.2, 0.3, 0.2]):
        page.keyboard.press(str(key))
        page.wait_for_timeout(40)
    spent = _processor_time() - spent
    worked = _worked(json.loads(browser.stop_tracing())["traceEvents"])
    waits: list[Any] = page.evaluate("window.waits")
    quick = [16.0] * (presses - len(waits))
    return Played([wait / 1e3 for wait in (*quick, *waits)], worked, spent / presses)


def _worked(events: list[dict[str, Any]]) -> list[float]:
    """Seconds of processor time of a page's main thread from each key to the frame that shows it."""
    timed = [event for event in events if event["ph"] == "X" and "tdur" in event]
    keys = [event for event in timed if event.get("args", {}).get("data", {}).get("type") == "keydown"]
    page = {(key["pid"], key["tid"]) for key in keys}
    mine = sorted((e for e in timed if (e["pid"], e["tid"]) in page), key=lambda event: event["ts"])
    found: list[float] = []
    for key in keys:
        total, until, drew = 0, 0, False
        for event in mine[bisect_left(mine, key["ts"], key=lambda event: event["ts"]) :]:
            if event["ts"] < until:  # it is part of the one before
                continue
            until = event["ts"] + event["dur"]
            total += event["tdur"]
            drew = drew or event["name"] == "FireAnimationFrame"
            if drew and event["name"] == "Layerize":
                found.append(total / 1e6)
                break
    return found


def _processor_time() -> float:
    """Of the browser's processes, which are this one's children."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "chrom" in process.name():
                times = process.cpu_times()
                total += times.user + times.system
    return total
