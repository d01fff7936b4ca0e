"""How nsys will be put around the ranks of a job: what the job's processes are told, and what the user is."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops import run_folder
from lostflops.capture.nsys import options as nsys_options
from lostflops.capture.nsys import tool as nsys_tool
from lostflops.capture.nsys.tool import Nsys
from lostflops.errors import BadOption, shown

if TYPE_CHECKING:
    from lostflops.capture.record.recording import Ranges, Steps


@dataclass(frozen=True)
class Wrapping:
    """The nsys that was found, and what it is started with."""

    tool: Nsys
    lean: Sequence[str]  # for every rank
    node: Sequence[str]  # in addition, for local rank 0 of each node
    ranges: Mapping[str, Sequence[str]]  # how recording begins and ends, by method
    left_out: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def write(self, boot: Path, ranks: Ranges | None) -> None:
        """Leave word for the job's processes."""
        settings = {
            "nsys": str(self.tool.path),
            "version": self.tool.version,
            "lean": self.lean,
            "node": self.node,
            "ranges": self.ranges,
            "ranks": ranks,
            "id": secrets.token_hex(4),
            "parent": os.getpid(),
        }
        (boot / run_folder.NSYS).write_text(json.dumps(settings) + "\n")

    def said(self) -> list[str]:
        """What the user should know before the start."""
        return [*self.left_out, *self.warnings]

    def shell(self, run: Path) -> list[str]:
        """The commands that the ranks will start, as comments."""
        target = f"--output={shlex.quote(str(run.absolute()))}/node-NNNN/nsys-RRRRR-aN-wNNN"
        started = f"PYTHONUNBUFFERED=1 {shlex.quote(str(self.tool.path))} profile"
        where = {"cuda": ", where there is CUDA", "session": ", where there is none", "time": ""}
        roles = {"local rank 0": [*self.lean, *self.node]} if self.node else {}
        lines: list[str] = []
        for method, range_words in self.ranges.items():
            for who, words in (roles | {"each rank": self.lean}).items():
                options = shlex.join(w.format(session="NAME") for w in [*words, *range_words])
                lines.append(f"# {who}{where[method]}: {started} {options} {target} python ...")
        return [*lines, *(f"# {line}" for line in self.said())]


def translated(
    given: Path | None,
    what: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    steps: Steps,
    every: int,
    delay: float | None,
    duration: float | None,
) -> Wrapping:
    """Find nsys, ask it, and translate. Raises BadOption, NoNsys, NsysTooOld or NsysUnusable."""
    if environment.get("NSYS_PROFILING_SESSION_ID"):
        raise BadOption("This already runs under nsys.", "leave out `--with nsys`, or the outer nsys.")
    if Path(command[0]).name == "nsys":
        raise BadOption(
            "The command itself starts nsys.",
            f"give `--with nsys` the command that nsys starts: `{shown(shlex.join(command[-2:]))}`?",
        )
    tool = nsys_tool.ask(nsys_tool.find(given, environment))
    made = nsys_options.switches(tool, what, environment, duration=duration)
    # With a delay in place of steps there is one window.
    windows = 1 if delay is not None else None if every else len(steps)
    ranges = nsys_options.range_switches(windows, delay, duration)
    cuda = "cuda" in what
    if "session" in ranges:
        lacking = [f"--{s}" for s in ("start-later", "session-new") if not tool.knows(s)]
        lacking += [f"{c} --session" for c in ("start", "stop") if tool.missing(c, "session")]
        if lacking and cuda:
            del ranges["session"]
            made.warnings.append(
                f"nsys {tool.version} records only ranks that use CUDA: it lacks {', '.join(lacking)}"
            )
        elif lacking:
            raise BadOption(
                (
                    f"nsys {tool.version} can record steps only through CUDA calls: it lacks "
                    f"{', '.join(lacking)}."
                ),
                "add `cuda` to `--what`, or give `--delay` and `--duration`.",
            )
    if "cuda" in ranges and not cuda:
        del ranges["cuda"]
    return Wrapping(tool, made.lean, made.node, ranges, made.left_out, made.warnings)
