"""A pixel of the timeline shows what the events say, at any zoom: from recorded rows to the canvas."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lostflops.viewer.server.guard import Keys
from viewed import at_work, browsing, stored

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FAMILIES = ("gemm", "attention", "norm", "elementwise")
EVENTS, ZERO = 6000, 1 << 45  # nine hours on the run's clock
LEFT, WIDTH, TOP, HEIGHT = 196, 1000, 34 + 26 + 2, 16  # of the stream's row in the canvas
# Shares come in 255 parts and a pixel covers up to five buckets; a colour is cut to whole levels.
NEAR = 4.0  # levels of 255
WINDOWS = 12


def _events() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(11)
    length = np.clip(random.lognormal(3.5, 1, EVENTS), 0, 400).astype(np.int64)  # some take no time
    gap = random.integers(0, 60, EVENTS) * (random.random(EVENTS) < 0.5)
    start = ZERO + np.cumsum(length + gap) - length
    return start, start + length, random.integers(0, len(FAMILIES), EVENTS)


def _shares(at: tuple[Any, Any, Any], begin: float, per_pixel: float, bucket: float) -> Any:
    """Of each pixel and family the share of time, from the events alone.

    A tile's buckets are at most a pixel wide: what an edge of a pixel cuts is the bucket, not its events.
    """
    start, end, family = at
    found = np.zeros((WIDTH, len(FAMILIES)))
    pixel = begin - ZERO + per_pixel * np.arange(WIDTH + 1)
    first, last = int(pixel[0] // bucket), int(-(-pixel[-1] // bucket))
    edge = bucket * np.arange(first, last + 1)
    for number in range(len(FAMILIES)):
        mine = family == number
        # Busy time before each edge: whole events, and the part of the one that the edge cuts.
        a, b = start[mine] - ZERO, end[mine] - ZERO
        before = np.array([np.clip(at - a, 0, b - a).sum() for at in edge])
        found[:, number] = np.diff(np.interp(pixel, edge, before)) / per_pixel
    return found


def test_any_pixel_s_colours_are_the_shares_of_the_raw_events(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    at = _events()
    rank = {"rank": 0, "start": ZERO, "end": int(at[1][-1]), "device": 0, "device_kind": "gpu", "host": 0}
    kernels = [
        {
            "rank": 0,
            "device": 0,
            "stream": 7,
            "start": a,
            "end": b,
            "name": FAMILIES[f],
            "family": FAMILIES[f],
        }
        for a, b, f in zip(*(column.tolist() for column in at), strict=True)
    ]
    stored(tmp_path / "base", {"ranks": [rank], "kernels": kernels})
    known = browsing(tmp_path / "base")[1]
    zero, whole = known["zero"], known["end"] - known["zero"]
    keys = Keys(8000)
    with at_work(keys, tmp_path / "base") as port, playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": LEFT + WIDTH, "height": 600})
        page.set_default_timeout(60_000)
        page.goto(f"http://localhost:{port}/run/{known['id']}?token={keys.token()}#drawer=0&open=0")
        _drawn(page)
        colors = np.array(page.evaluate(COLORS, list(FAMILIES)))

        # From pixels of many events to pixels narrower than most: to zoom in reads raw events, not sums.
        @settings(max_examples=WINDOWS, deadline=None, database=None, derandomize=True)
        @given(st.floats(0.03, 1), st.floats(0, 1), st.booleans())
        @example(1.0, 0.0, False)
        @example(0.05, 0.5, True)
        def shows_what_was_recorded(zoom: float, place: float, moved: bool) -> None:
            span = round(whole * zoom)
            begin = zero + round(place * (whole - span))
            page.evaluate("to => { location.hash = to }", f"drawer=0&open=0&from={begin}&to={begin + span}")
            page.wait_for_timeout(30)
            _drawn(page)
            if moved and begin + 1.15 * span <= zero + whole:  # most pixels are copied, some are drawn
                page.mouse.move(LEFT + 10, TOP + 100)
                page.keyboard.press("d")
                page.wait_for_timeout(30)
                _drawn(page)
                begin += 0.15 * span
                page.mouse.move(LEFT + 10, TOP + 400)
            paper, *pixels = (np.array(part, float) for part in page.evaluate(PIXELS, [LEFT, TOP, HEIGHT]))
            shares = _shares(at, begin, span / WIDTH, _bucket(known, span / WIDTH))
            wanted = shares @ colors + (1 - shares.sum(axis=1, keepdims=True)) * paper
            # Above events that are three pixels wide or more stands a line of paper where each begins.
            line = _edges(at, begin, span / WIDTH)
            off = np.abs(np.array(pixels) - wanted).max(axis=1)
            off[line] = 0
            worst = int(off.argmax())
            assert off.max() < NEAR, (worst, pixels[worst], wanted[worst])
            assert line.mean() < 0.5

        shows_what_was_recorded()
        opened.close()


def _bucket(known: dict[str, Any], per_pixel: float) -> float:
    """The width of the coarsest buckets that are at most a pixel wide."""
    levels = known["levels"]
    widths = [levels["base_width"] * 4.0**n for n in range(levels["finest"], levels["coarsest"] + 1)]
    return max([width for width in widths if width <= per_pixel], default=widths[0])


def _edges(at: tuple[Any, Any, Any], begin: float, per_pixel: float) -> Any:
    start, end, _ = at
    marked = np.zeros(WIDTH, bool)
    for a, b in zip(start, end, strict=True):
        x, wide = (a - begin) / per_pixel, (b - a) / per_pixel
        if wide >= 2.9 and 0 <= x < WIDTH:
            # The line, and a name where there is room.
            marked[int(x) : int(x + (2 if wide < 18 else wide + 1))] = True
    return marked


def _drawn(page: Any) -> None:
    page.wait_for_selector("body[data-settled=true]", state="attached")
    page.wait_for_selector(".timeline canvas[data-complete=true]")


COLORS = """families => families.map((family) => {
    const probe = document.body.appendChild(document.createElement('i'));
    probe.className = `k-family k-${family}`;
    const found = getComputedStyle(probe).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number);
    probe.remove();
    return found;
})"""
# The paper's colour, and the mean colour of each column of a row.
PIXELS = """([left, top, height]) => {
    const canvas = document.querySelector('.timeline canvas');
    const context = canvas.getContext('2d');
    const width = canvas.width - left;
    const { data } = context.getImageData(left, top, width, height);
    const paper = [...context.getImageData(left + 5, canvas.height - 5, 1, 1).data].slice(0, 3);
    const columns = Array.from({ length: width }, (_, x) => [0, 1, 2].map((part) => {
        let sum = 0;
        for (let y = 0; y < height; y++) sum += data[4 * (y * width + x) + part];
        return sum / height;
    }));
    return [paper, ...columns];
}"""


def test_a_name_ends_where_its_event_ends(tmp_path: Path) -> None:
    """Letters were taken to be alike: wide ones stood in the next event, over its name."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    rank = {"rank": 0, "start": 0, "end": 1000, "device": 0, "device_kind": "gpu", "host": 0}
    kernels = [
        {"rank": 0, "device": 0, "stream": 7, "start": a, "end": b, "name": name, "family": "gemm"}
        for a, b, name in ((0, 100, "M" * 40), (100, 1000, "."))
    ]
    stored(tmp_path / "base", {"ranks": [rank], "kernels": kernels})
    known = browsing(tmp_path / "base")[1]
    keys = Keys(8000)
    with at_work(keys, tmp_path / "base") as port, playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": LEFT + WIDTH, "height": 600})
        page.goto(f"http://localhost:{port}/run/{known['id']}?token={keys.token()}#drawer=0&open=0")
        _drawn(page)
        _, *pixels = (np.array(part, float) for part in page.evaluate(PIXELS, [LEFT, TOP, HEIGHT]))
        opened.close()
    plain = pixels[600]
    named, beside = np.array(pixels[4:98]), np.array(pixels[110:190])  # its own name is a full stop
    assert np.abs(named - plain).max() > 20 and np.abs(beside - plain).max() < 1
