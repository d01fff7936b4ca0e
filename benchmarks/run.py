"""Measure speed and memory against the targets, and write what was found into `benchmarks/README.md`.

python benchmarks/run.py                       everything, in five turns: about a quarter of an hour
python benchmarks/run.py --only gzip_floor     one section; the others' results stay in the README
python benchmarks/run.py --big                 loads the 1 GB trace with the peer too: 5 GB of memory; and
                                               asks it about 8 ranks of 420 MB
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import analyses
import beside_perfetto
import exports
import painting
import reports
import sections
import timelines
import traces
from processes import lostflops

README = Path(__file__).parent / "README.md"
SECTIONS = (
    sections.gzip_floor,
    sections.peer,
    analyses.analyses,
    analyses.recipes,
    sections.memory,
    sections.first_page,
    sections.recording,
    sections.scrubbing,
    exports.exports,
    timelines.viewer,
    painting.browser,
    beside_perfetto.perfetto,
    reports.report,
)
CORES = 2


def main() -> int:
    given = arguments()
    if given.only != "recording" and not traces.recorded():
        print("No recorded traces lie in ../shared/traces beside this repository.", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # children inherit it
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    tempfile.tempdir = str(traces.KEPT)  # stores lie on one file system, whatever /tmp is
    traces.KEPT.mkdir(parents=True, exist_ok=True)
    lostflops("--help")
    for section in SECTIONS:
        if given.only in (None, section.__name__):
            say(section.__doc__ or "")
            load = os.getloadavg()[0]
            text = as_text(
                section(given.repeat, given.big, lambda what: say(f"  {what}")), given.repeat, load
            )
            print(text, flush=True)
            record(section.__name__, text)
    return 0


def arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[section.__name__ for section in SECTIONS])
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns (default: %(default)s)")
    parser.add_argument("--big", action="store_true", help="load the large traces with the peer too")
    return parser.parse_args()


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def as_text(found: sections.Found, repeat: int, load: float) -> str:
    align = ["---"] + ["---:"] * (len(found.header) - 1)
    table = "\n".join("| " + " | ".join(row) + " |" for row in (found.header, align, *found.rows))
    return f"{table}\n\n{found.summary}\n\n*{machine(repeat, load, found.versions)}*"


def machine(repeat: int, load: float, versions: str = "") -> str:
    """When, on what and with which versions something was measured."""
    turns = f"{repeat} turn{'s' * (repeat != 1)}"
    cores = len(os.sched_getaffinity(0))
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {turns}, {cores} cores of {_processor()} with {gib:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}, {versions or _versions()}; "
        f"load of the machine before: {load:.1f}."
    )


def _versions() -> str:
    return ", ".join(
        f"{package} {version(package)}" for package in ("lostflops", "polars", "msgspec", "isal")
    )


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def record(name: str, text: str) -> None:
    """Put a section's result between its marks in the README."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
    before, found, rest = README.read_text().partition(begin)
    assert found, f"{README.name} has no mark for {name}"
    README.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    sys.exit(main())
