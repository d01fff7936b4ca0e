"""What is measured, one function a section of `benchmarks/README.md`.

Things that are compared run in turns, A B A B, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

import record
import traces
from processes import Cost, cost, loader, lostflops

from lostflops.privacy import text as any_text
from lostflops.privacy.cleaner import Cleaner

PEER = Path(__file__).resolve().parents[1] / ".venv-hta" / "bin" / "python"
OURS = (sys.executable, "load_with_lostflops.py")
MOST_TIMES_GZIP = 4
LEAST_TIMES_PEER = 20
BASE = 300_000_000  # bytes of memory that do not grow with the trace
MOST_PER_EVENT = 120  # bytes
MOST_COLD, MOST_AGAIN, MOST_HELP = 4.0, 0.5, 0.2  # seconds
MOST_LOG, MOST_WINDOW, MOST_START = 0.01, 0.15, 0.5  # shares of a step, seconds

LEAST_SCRUBBED = 20  # MB/s

Say = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """A section's table, what it comes to, and who was measured."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str
    versions: str = ""


def gzip_floor(repeat: int, big: bool, say: Say) -> Found:
    """Import against unpacking."""
    rows: list[list[str]] = []
    medians: list[float] = []
    files = traces.recorded()
    with loader(*OURS) as ours, tempfile.TemporaryDirectory() as folder:
        ours.load(files[0])  # the first load of a process meets cold code
        for number, file in enumerate(files):
            say(f"{number + 1} of {len(files)}: {file.name}")
            unpacked, imported, whole, events = [], [], [], 0
            for _ in range(repeat):
                unpacked.append(cost(["gzip", "-dc", file]).wall)
                loaded = ours.load(file)
                imported.append(loaded.seconds)
                whole.append(lostflops("import", file, "--output", Path(folder, "run")).wall)
                events = loaded.events
            times = ratios(imported, unpacked)
            medians.append(median(times))
            rows.append(
                [
                    traces.name(file),
                    f"{file.stat().st_size / 1e6:.1f}",
                    f"{events:,}",
                    f"{median(unpacked):.3f}",
                    f"{median(imported):.3f}",
                    spread(times),
                    f"{median(whole):.3f}",
                ]
            )
    result = median(medians)
    return Found(
        ("trace", "MB", "events", "`gzip -dc`, s", "import, s", "import / gzip", "whole command, s"),
        rows,
        f"Median over the {len(files)} traces: **{result:.2f}** times `gzip -dc`, from {min(medians):.2f} to "
        f"{max(medians):.2f}. {verdict(result <= MOST_TIMES_GZIP, 'at most 4')}",
    )


def peer(repeat: int, big: bool, say: Say) -> Found:
    """Import against Holistic Trace Analysis."""
    rows: list[list[str]] = []
    medians: list[float] = []
    floors: list[float] = []
    large: list[float] = []
    sums = [0.0, 0.0]
    files = [(file, repeat) for file in traces.recorded()] + [(traces.large(), repeat)] * big
    with loader(*OURS) as ours, loader(PEER, "load_with_hta.py") as theirs:
        ours.load(files[0][0])
        theirs.load(files[0][0])
        for number, (file, times) in enumerate(files):
            say(f"{number + 1} of {len(files)}: {file.name}")
            packed = file.suffix == ".gz"
            floor_of = ("gzip", "-dc") if packed else ("cat",)
            turns = [(theirs.load(file), ours.load(file), cost([*floor_of, file])) for _ in range(times)]
            slow, fast = [t.seconds for t, _, _ in turns], [o.seconds for _, o, _ in turns]
            floor = [f.wall for _, _, f in turns]
            events, error = turns[0][1].events, turns[0][0].error
            quicker = [] if error else ratios(slow, fast)
            if not packed:
                large = quicker
            elif quicker:
                medians.append(median(quicker))
                floors.append(median(ratios(slow, floor)))
                sums = [sums[0] + median(slow), sums[1] + median(fast)]
            rows.append(
                [
                    traces.name(file),
                    f"{events:,}",
                    f"fails: {error.partition(':')[0]}" if error else rate(events, slow),
                    rate(events, fast),
                    rate(events, floor) if packed else "",
                    spread(quicker) if quicker else "",
                ]
            )
        versions = f"{ours.versions}; {theirs.versions}"
    result, together = median(medians), sums[0] / sums[1]
    summary = (
        f"Median over the {len(medians)} recorded traces that both load: **{result:.1f}** times the events "
        f"per second, from {min(medians):.1f} to {max(medians):.1f}; {together:.1f} times over all of them "
        f"together. {verdict(result >= LEAST_TIMES_PEER, 'at least 20')} Unpacking them with `gzip -dc` and "
        f"reading nothing: {median(floors):.1f} times, from {min(floors):.1f} to {max(floors):.1f}."
    )
    if large:
        summary += f" The trace of 1 GB: **{spread(large)}** times. "
        summary += verdict(median(large) >= LEAST_TIMES_PEER, "at least 20")
    header = (
        "trace",
        "events",
        "HTA, events/s",
        "lostflops, events/s",
        "`gzip -dc`, events/s",
        "times as fast",
    )
    return Found(header, rows, summary, versions)


def memory(repeat: int, big: bool, say: Say) -> Found:
    """Memory of a large import."""
    plain = traces.large()
    rows: list[list[str]] = []
    worst = 0.0
    with loader(*OURS) as ours:
        events = ours.load(plain).events
    for file in (plain, traces.packed(plain)):
        for what in ("import", "why"):
            together, largest = 0, 0
            for turn in range(repeat):
                say(f"{what} {file.name}, {turn + 1} of {repeat}")
                with tempfile.TemporaryDirectory() as folder:
                    output = ("--output", Path(folder, "run")) if what == "import" else ()
                    used = lostflops(what, file, *output, store=Path(folder), memory=True)
                together, largest = max(together, used.tree_peak), max(largest, used.largest_peak)
            per_event = (together - BASE) / events
            if what == "import":
                worst = max(worst, per_event)
            rows.append(
                [
                    f"`lostflops {what}`",
                    "".join(file.suffixes),
                    f"{file.stat().st_size / 1e6:,.0f}",
                    f"{events:,}",
                    f"{together / 1e6:.0f}",
                    f"{largest / 1e6:.0f}",
                    f"{per_event:.0f}",
                ]
            )
    return Found(
        ("command", "file", "MB", "events", "all processes, MB", "largest, MB", "bytes an event over 300 MB"),
        rows,
        f"Importing takes at most **{worst:.0f}** bytes an event over a base of 300 MB. "
        f"{verdict(worst <= MOST_PER_EVENT, 'at most 120')}",
    )


def first_page(repeat: int, big: bool, say: Say) -> Found:
    """The first page of a large trace."""
    plain = traces.large()
    rows: list[list[str]] = []
    for file, reading in ((plain, "cat"), (traces.packed(plain), "gzip -dc")):
        floor: list[Cost] = []
        cold: list[Cost] = []
        again: list[Cost] = []
        for turn in range(repeat):
            say(f"{file.name}, {turn + 1} of {repeat}")
            floor.append(cost([*reading.split(), file]))
            with tempfile.TemporaryDirectory() as folder:
                cold.append(lostflops("why", file, store=Path(folder)))
                again.append(lostflops("why", file, store=Path(folder)))
        form = f"1 GB of {''.join(file.suffixes)}"
        rows.append(_timed(f"`lostflops why`, {form}, from cold", cold, MOST_COLD))
        rows.append(_timed(f"`lostflops why`, {form}, again", again, MOST_AGAIN))
        rows.append(_timed(f"`{reading}`, {form}", floor))
    rows.append(_timed("`lostflops --help`", [lostflops("--help") for _ in range(2 * repeat)], MOST_HELP))
    missed = sum(row[-1] == "missed" for row in rows)
    return Found(
        ("command", "wall, s", "processor, s", "target, s", ""),
        rows,
        f"Missed targets: {missed}." if missed else "All targets are met.",
    )


def recording(repeat: int, big: bool, say: Say) -> Found:
    """What recording costs the job."""
    found = record.Measured()
    for turn in range(repeat):
        say(f"turn {turn + 1} of {repeat}")
        record.measure(found)
    rows = [
        _share("step log, share of a step's CPU time", found.log, MOST_LOG),
        _share("inside a window, share of a step's CPU time", found.window, MOST_WINDOW),
        _took("`lostflops record -- true`, more than `true`, s", found.command, MOST_START),
        _took(
            "`python -c 'import torch'` inside a recorded job, more than outside, s", found.start, MOST_START
        ),
        _took("writing a window of five steps, s", found.writing),
        _took("between two steps, as the log says, µs", [s * 1e6 for s in found.between]),
    ]
    missed = sum(row[-1] == "missed" for row in rows)
    return Found(
        ("what", "median (middle half)", "target", ""),
        rows,
        f"A step takes {median(found.step) * 1e3:.1f} ms of CPU time. "
        + (f"Missed targets: {missed}." if missed else "All targets are met."),
        f"lostflops {version('lostflops')}, torch {version('torch')}",
    )


def scrubbing(repeat: int, big: bool, say: Say) -> Found:
    """Taking out what is private."""
    files = traces.recorded()[-6:]
    rows: list[list[str]] = []
    slowest = float("inf")
    for number, file in enumerate(files):
        say(f"{number + 1} of {len(files)}: {file.name}")
        pieces = list(any_text.pieces(file))
        whole: list[float] = []
        quick: list[float] = []
        for _ in range(repeat):
            whole.append(_speed(pieces[:1], Cleaner().whole))
            quick.append(_speed(pieces, Cleaner().text))
        slowest = min(slowest, median(quick))
        size = f"{sum(map(len, pieces)) / 1e6:.0f}"
        rows.append([traces.name(file), size, f"{median(whole):.1f}", spread(quick)])
    return Found(
        ("trace", "MB of text", "every expression on all of it, MB/s", "`scrub`, MB/s (from, to)"),
        rows,
        f"The slowest: **{slowest:.0f} MB/s**. {verdict(slowest >= LEAST_SCRUBBED, 'at least 20 MB/s')}",
    )


def _speed(texts: Sequence[bytes], clean: Callable[[bytes], bytes]) -> float:
    """MB per second of processor time."""
    began = time.process_time()
    for text in texts:
        clean(text)
    return sum(map(len, texts)) / 1e6 / (time.process_time() - began)


def _share(what: str, shares: Sequence[float], target: float) -> list[str]:
    low, _, high = quantiles(shares, n=4)
    met = "met" if median(shares) <= target else "missed"
    return [what, f"{median(shares):+.2%} ({low:+.2%} to {high:+.2%})", f"{target:.0%}", met]


def _took(what: str, seconds: Sequence[float], target: float | None = None) -> list[str]:
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    aim = ["", ""] if target is None else [f"{target:g}", "met" if median(seconds) <= target else "missed"]
    return [what, f"{median(seconds):.3g} ({low:.3g} to {high:.3g})", *aim]


def _timed(what: str, costs: Sequence[Cost], target: float | None = None) -> list[str]:
    wall, cpu = [c.wall for c in costs], [c.cpu for c in costs]
    aim = ["", ""] if target is None else [f"{target:g}", "met" if median(wall) <= target else "missed"]
    return [what, spread(wall), f"{median(cpu):.2f}", *aim]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median, and between what it lies."""
    digits = 1 if median(values) >= 10 else 2
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def rate(events: int, seconds: Sequence[float]) -> str:
    return f"{events / median(seconds):,.0f}"


def verdict(met: bool, target: str) -> str:
    return f"Target {target}: {'met' if met else 'missed'}."
