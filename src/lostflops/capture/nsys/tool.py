"""The user's own nsys: where it is, and which switches it knows.

Releases differ in their switches, and an nsys that is given one it does not know exits without starting the
program. So it is asked: its `--help` is read, and nothing is used that does not stand there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lostflops.errors import NoNsys, NsysTooOld, NsysUnusable

PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
)
OLDEST = (2021, 5)  # what it writes can be exported in the layout that lostflops reads
# Without these a recording would end the job, overwrite another rank's or take hours of events.
NEEDED = ("trace", "sample", "output", "capture-range", "capture-range-end", "kill", "wait")
PATIENCE = 20  # seconds for an answer

_VERSION = re.compile(r"\b(20\d\d)\.(\d+)(?:\.\d+)?")
_SWITCH = re.compile(r"--([a-z][\w-]*)=?")
# A line of switches: '-c, --capture-range=', possibly with several spellings.
_HEADING = re.compile(r"\s*(?:-\w,?\s*)?(?:--[a-z][\w-]*=,?\s*)+$")
_VALUES = re.compile(r"possible values are:?((?:[\s,]|\bor\b|\band\b|'[^']*')+)", re.IGNORECASE)
_QUOTED = re.compile(r"'([^'<>\s]+)'")


@dataclass(frozen=True)
class Nsys:
    """An nsys that was asked. `switches` are those of `nsys profile`, with the values it lists for them."""

    path: Path
    version: str
    switches: Mapping[str, frozenset[str]]

    def knows(self, switch: str, value: str = "") -> bool:
        """Whether it has that switch, and lists that value or lists none."""
        values = self.switches.get(switch)
        return values is not None and (not value or not values or value in values)

    def missing(self, subcommand: str, *switches: str) -> list[str]:
        """Which of these switches another of its commands lacks."""
        known = _help(str(self.path), subcommand)[0]
        return [switch for switch in switches if switch not in known]


def find(given: Path | None, environment: Mapping[str, str], places: Sequence[str] = PLACES) -> Path:
    """The nsys that was named, else the one on the PATH, in the CUDA toolkit, or installed, newest first.

    Raises NoNsys.
    """
    if given is not None:
        for path in (given, given / "nsys", given / "bin" / "nsys"):
            if path.is_file() and os.access(path, os.X_OK):
                return path.resolve()
        raise NoNsys(str(given))
    on_path = shutil.which("nsys", path=environment.get("PATH"))
    if on_path:
        return Path(on_path).resolve()
    toolkits = [
        Path(environment[name], "bin", "nsys") for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)
    ]
    installed = [found for place in places for found in Path("/").glob(place.lstrip("/"))]
    for path in [*toolkits, *sorted(installed, key=_newest, reverse=True)]:
        if path.is_file() and os.access(path, os.X_OK):
            return path.resolve()
    raise NoNsys("")


def ask(path: Path) -> Nsys:
    """What the nsys at `path` knows. Raises NsysTooOld or NsysUnusable."""
    said = _said([str(path), "--version"])
    version = _VERSION.search(said)
    if version is None:
        raise NsysUnusable(path, "`--version`", said)
    if (int(version[1]), int(version[2])) < OLDEST:
        raise NsysTooOld(path, version[0], f"lostflops needs {OLDEST[0]}.{OLDEST[1]} or later")
    switches, said = _help(str(path), "profile")
    if not switches:
        raise NsysUnusable(path, "`profile --help`", said)
    lacking = [f"--{switch}" for switch in NEEDED if switch not in switches]
    if lacking:
        raise NsysTooOld(path, version[0], f"it does not know {', '.join(lacking)}")
    return Nsys(path, version[0], switches)


def switches(text: str) -> dict[str, frozenset[str]]:
    """The switches of a help text and the values that it lists, read block by block.

    A block begins with the line of its switch; other blocks mention other switches' values.
    """
    blocks: dict[str, list[str]] = {}
    current: list[list[str]] = []
    for line in text.splitlines():
        if _HEADING.match(line):
            names = _SWITCH.findall(line)
            current = [blocks.setdefault(name, []) for name in names]
        else:
            for block in current:
                block.append(line.strip())
    return {name: _listed(" ".join(lines)) for name, lines in blocks.items()}


def _listed(text: str) -> frozenset[str]:
    found = _VALUES.search(text)
    return frozenset(_QUOTED.findall(found[1])) if found else frozenset()


@cache
def _help(path: str, subcommand: str) -> tuple[dict[str, frozenset[str]], str]:
    said = _said([path, subcommand, "--help"])
    return switches(said), said


def _said(words: Sequence[str]) -> str:
    """What a command printed on both of its channels; its exit status tells nothing here."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PATIENCE} s"
    except OSError as error:
        return str(error.strerror)
    return done.stdout


def _newest(path: Path) -> tuple[int, ...]:
    found = _VERSION.search(str(path))
    return tuple(map(int, re.findall(r"\d+", found[0]))) if found else ()
