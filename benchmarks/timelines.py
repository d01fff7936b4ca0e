"""What the viewer costs: its pyramid, its tiles, and the overview of a thousand ranks, over made-up columns.

python benchmarks/timelines.py           prints the table; `run.py --only viewer` writes it into the README
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles

import httpx
import numpy as np
import polars as pl
from sections import Found, Say, verdict

from lostflops.session import Session
from lostflops.store.parts import write_part
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest
from lostflops.tables import TABLES
from lostflops.version import __version__
from lostflops.viewer import timeline
from lostflops.viewer.pyramid import BUCKETS
from lostflops.viewer.timeline import DrawnTrack, KeptTimeline

LEAST_A_SECOND, MOST_BYTES = 10_000_000, 8  # events a core; of the pyramid per event
MOST_TILE, MOST_PAINT, MOST_MEMORY = 0.1, 1.5, 4 << 30  # seconds, bytes
TRACKS = (64, 20_000_000)
RANKS = (1024, 100_000_000)
REQUESTS = 400
PIXELS = 2048
ACCOUNTS = ("compute", "communication.transfer", "communication.wait", "copy", "idle.launch_bound")
FAMILIES = ("gemm", "attention", "norm", "elementwise", "reduction", "optimizer", "other", "unclassified")
NAMES = [f"void kernel_{n}<float, {n}>(float const*, float*, int)" for n in range(500)]


def viewer(repeat: int, big: bool, say: Say) -> Found:
    """The pyramid, tiles of 64 tracks, and the overview of 1,024 ranks."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as place:
        say("64 tracks, 20 million events")
        small = Path(place, "tracks")
        speeds, size, exact = made(small, *TRACKS, streams=7, repeat=repeat)
        rows.append(["pyramid of 64 tracks, events/s of processor time", *_three(speeds, 1e6, " M")])
        rows.append(["pyramid, bytes per event", f"{size:.1f}", "", ""])
        with serving(small) as (browser, _):
            tiles = asked(browser, "0-63", say)
        rows.append(["tile of 64 tracks, 256 px, ms", *_three(tiles, 1e-3)])
        say("1,024 ranks, 100 million events")
        large = Path(place, "ranks")
        wide, _, also_exact = made(large, *RANKS, streams=2, repeat=1)
        rows.append(["pyramid of 1,024 ranks, events/s of processor time", *_three(wide, 1e6, " M")])
        with serving(large) as (browser, process):
            opening, paints = zip(*(painted(browser) for _ in range(3)), strict=True)
            peak, own = memory(process)
        rows.append(["overview of 1,024 ranks: what the page must know, ms", *_three(opening, 1e-3)])
        rows.append([f"overview of 1,024 ranks: {PIXELS:,} px of tiles, ms", *_three(paints, 1e-3)])
        rows.append(
            [
                "server's memory, GiB: most, and of that its own",
                f"{peak / 2**30:.2f}",
                f"{own / 2**30:.2f}",
                "",
            ]
        )
    slowest = quantiles(tiles, n=100)[98]
    first = max(o + p for o, p in zip(opening, paints, strict=True))
    return Found(
        ("", "median", "least", "most"),
        rows,
        f"Sums exact: {'yes' if exact and also_exact else '**no**'}. "
        f"{verdict(min(speeds) >= LEAST_A_SECOND, '10 million events/s a core')} "
        f"{verdict(size <= MOST_BYTES, '8 bytes per event')} Tiles p99 {slowest * 1e3:.0f} ms. "
        f"{verdict(slowest <= MOST_TILE, 'p99 of 100 ms')} Overview at most {first:.2f} s. "
        f"{verdict(first <= MOST_PAINT, '1.5 s, without the browser')} "
        f"{verdict(peak <= MOST_MEMORY, '4 GiB in the server')}",
        ", ".join(f"{package} {version(package)}" for package in ("numpy", "starlette", "uvicorn")),
    )


def _three(values: object, unit: float, behind: str = "") -> list[str]:
    found = sorted(float(value) / unit for value in values)  # type: ignore[attr-defined]
    return [f"{value:,.1f}{behind}" for value in (found[len(found) // 2], found[0], found[-1])]


def made(run: Path, ranks: int, events: int, *, streams: int, repeat: int) -> tuple[list[float], float, bool]:
    """A run whose timeline is there already: a state lane and some streams per rank, kernels log-normal.

    With how many events a second its pyramid was built, its bytes per event, and whether the sums are exact.
    """
    row = {"rank": 0, "start": 0, "end": 1, "device": 0, "device_kind": "gpu", "host": 0}
    table = TABLES["ranks"]
    for rank in range(ranks):
        full = {column: {**row, "rank": rank, "host": rank // 8}.get(column) for column in table.stored}
        schema = {column: table.schema[column] for column in table.stored}
        write_part(run, "ranks", rank, table.conform(pl.DataFrame([full], schema=schema)))
    write_manifest(run, Manifest(FORMAT, __version__, "made up", 0, [], ["ranks"], events, []))
    trace = Trace.open(run)
    folder = run / timeline.FOLDER / timeline.content_hash(trace)
    folder.mkdir(parents=True)
    kept, busy = columns(folder, ranks, events, streams)
    speeds: list[float] = []
    for _ in range(repeat):
        before = time.process_time()
        timeline.finish(folder, kept)
        speeds.append(events / (time.process_time() - before))
    opened = timeline.opened(trace, Session(trace))
    levels = opened.pyramid.levels
    exact = all(int(level.sum(dtype=np.uint64)) == busy for level in levels)
    return speeds, sum(level.nbytes for level in levels) / events, exact


def columns(folder: Path, ranks: int, events: int, streams: int) -> tuple[KeptTimeline, int]:
    """Columns of the state lanes and of each rank's streams, as the viewer writes them; and all busy time."""
    random = np.random.default_rng(7)
    each = events // (ranks * (streams + 1))
    categories = [*(f"account:{a}" for a in ACCOUNTS), *(f"family:{f}" for f in FAMILIES)]
    tracks: list[DrawnTrack] = []
    first, end, busy = [0], 0, 0
    files = {name: (folder / f"{name}.bin").open("wb") for name in ("start", "length", "name", "category")}
    for lane in range(ranks * (streams + 1)):
        state = lane < ranks
        rank = lane if state else (lane - ranks) // streams
        kind, title = ("state", "GPU time by account") if state else ("stream", f"stream {lane % streams}")
        tracks.append(DrawnTrack(rank, kind, title, (), lane, 1))
        count = each + (events - each * ranks * (streams + 1) if lane == 0 else 0)
        length = np.clip(random.lognormal(9.5, 1, count), 500, 1e8).astype(np.uint32)
        gap = np.zeros(count, np.int64) if state else random.integers(0, 8000, count)
        stop = np.cumsum(length + gap)
        low, high = (0, len(ACCOUNTS)) if state else (len(ACCOUNTS), len(categories))
        for name, values in (
            ("start", stop - length),
            ("length", length),
            ("name", random.integers(0, len(NAMES), count).astype(np.uint32)),
            ("category", random.integers(low, high, count).astype(np.uint16)),
        ):
            values.tofile(files[name])
        first.append(first[-1] + count)
        end, busy = max(end, int(stop[-1])), busy + int(length.sum(dtype=np.uint64))
    for file in files.values():
        file.close()
    np.array(first, np.int64).tofile(folder / "first.bin")
    kinds = {"start": "<i8", "length": "<u4", "name": "<u4", "category": "<u2"}
    shapes = {name: (kind, (events,)) for name, kind in kinds.items()}
    shapes["first"] = ("<i8", (len(first),))
    for name, kind in (("sample_start", "<i8"), ("sample_end", "<i8"), ("sample_value", "<f8")):
        (folder / f"{name}.bin").touch()
        shapes[name] = (kind, (0,))
    return KeptTimeline(0, end, 0, list(range(ranks)), tracks, categories, NAMES, [], [], shapes), busy


@contextmanager
def serving(run: Path) -> Generator[tuple[httpx.Client, int]]:
    """`lostflops view` of a run, and a client with a session."""
    command = [sys.executable, "-m", "lostflops", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        place = process.stdout.readline().strip()
        with httpx.Client(base_url=place.partition("/?")[0], timeout=120, follow_redirects=True) as browser:
            browser.get(place)
            try:
                yield browser, process.pid
            finally:
                process.send_signal(signal.SIGINT)


def known(browser: httpx.Client) -> dict[str, object]:
    run = browser.get("/api/runs").json()["runs"][0]["id"]
    while (answer := browser.get(f"/api/run/{run}")).status_code == 202:
        time.sleep(0.02)
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(browser: httpx.Client, lanes: str, say: Say) -> list[float]:
    """Seconds of single tiles, panned and zoomed at random from the whole run to some hundred events."""
    run = known(browser)
    levels, span = run["levels"], run["end"] - run["zero"]  # type: ignore[index,operator]
    random = np.random.default_rng(3)
    found: list[float] = []
    for turn in range(REQUESTS + 20):
        level = int(random.integers(-4, levels["coarsest"] + 1))  # type: ignore[index]
        width = int(levels["base_width"] * 4.0**level) * BUCKETS  # type: ignore[index]
        index = int(random.integers(0, max(1, span // width)))
        before = time.perf_counter()
        answer = browser.get(f"/data/{run['id']}/{run['hash']}/tile/{level}/{index}?lanes={lanes}")
        if turn >= 20:  # the first ones read the files
            found.append(time.perf_counter() - before)
        assert answer.status_code == 200, answer.text
    return found


def painted(browser: httpx.Client) -> tuple[float, float]:
    """Seconds until the page knows the run, and until it has the tiles of all ranks' states."""
    before = time.perf_counter()
    run = known(browser)
    opened = time.perf_counter()
    levels, span = run["levels"], run["end"] - run["zero"]  # type: ignore[index,operator]
    level, width = levels["coarsest"], levels["base_width"] * 4 ** levels["coarsest"]  # type: ignore[index]
    while width > span / PIXELS:
        level, width = level - 1, width // 4
    level, width = level + 1, width * 4  # the coarsest of which a bucket is at most two pixels
    for index in range(-(-span // (width * BUCKETS))):
        answer = browser.get(f"/data/{run['id']}/{run['hash']}/tile/{level}/{index}?lanes=0-1023&top=1")
        assert answer.status_code == 200, answer.text
    return opened - before, time.perf_counter() - opened


def memory(process: int) -> tuple[int, int]:
    """The most that a process held, pages of files included, and what it holds of its own now."""
    text = Path(f"/proc/{process}/status").read_text()
    peak, own = (int(re.search(rf"^{name}:\s+(\d+) kB", text, re.M)[1]) for name in ("VmHWM", "RssAnon"))  # type: ignore[index]
    return peak * 1024, own * 1024


if __name__ == "__main__":
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    found = viewer(1, False, lambda what: print(what, file=sys.stderr, flush=True))
    for line in (found.header, *found.rows):
        print(" | ".join(line))
    print(found.summary)
