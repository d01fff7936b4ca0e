"""Starts and ends the process that samples a node, beside a job or by itself."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lostflops import units
from lostflops.errors import BadOption, CannotWrite, LostflopsError, shown

SHORTEST = 0.1
DEFAULT_INTERVAL = 1.0
JOB_WAITS = 10.0  # s that a job's end waits for the last sample
PATIENCE = 30.0  # s; the driver may have to wake up first


@dataclass(frozen=True)
class Sampling:
    """What to sample, how often, into which run."""

    run: Path
    interval: float = DEFAULT_INTERVAL
    duration: float | None = None
    address: str = "127.0.0.1"
    port: int | None = None
    textfile: Path | None = None
    dcgm: str | None = None
    root: Path = Path("/")  # another in tests


@dataclass
class Monitor:
    """A sampler that runs. `beginning` and `ending` are what it says of itself."""

    process: subprocess.Popen[bytes]
    wanted: Sampling
    beginning: dict[str, Any] = field(default_factory=dict[str, Any])
    ending: dict[str, Any] = field(default_factory=dict[str, Any])

    def wait_ready(self, patience: float = PATIENCE) -> None:
        """Wait for the first sample.

        Raises BadOption, CannotWrite or LostflopsError where there will be none.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], patience)[0]:
            self.process.kill()
            raise LostflopsError(
                f"The monitor did not read the node once within {patience:.0f} s.",
                "a GPU driver may hang: try again.",
            )
        self.beginning = _said(self.process.stdout.readline())
        self._check()

    def _check(self) -> None:
        said, wanted = self.beginning, self.wanted
        if said.get("ready"):
            return
        self.process.wait()
        if said.get("running"):
            raise LostflopsError(
                f"Another monitor of this node writes into '{shown(wanted.run)}'.", "choose another --output."
            )
        if "port_error" in said:
            raise BadOption(
                f"{shown(wanted.address)}:{wanted.port} cannot be used: {shown(said['port_error'])}.",
                "choose another --port.",
            )
        if "error" in said:
            raise CannotWrite(wanted.run, OSError(said.get("number") or 0, said["error"]))
        raise LostflopsError(
            "The monitor ended before its first sample.", "set LOSTFLOPS_DEBUG=1 and run it again to see why."
        )

    def stop(self, patience: float = PATIENCE) -> None:
        """Take a last sample, pack, and end. Never raises."""
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            assert self.process.stdout is not None
            if select.select([self.process.stdout], [], [], patience)[0]:
                lines = self.process.stdout.read().splitlines()
                if not self.beginning and lines:
                    self.beginning = _said(lines.pop(0))
                self.ending = _said(lines[-1]) if lines else {}
            self.process.wait(patience)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def lines(self) -> list[str]:
        """What there is to say when it has ended."""
        if not self.ending.get("ended"):
            if self.beginning.get("running"):
                return []  # another task of the node has it
            return ["monitor: it stopped early; the samples it wrote are kept"]
        took, samples = self.ending["took"], self.ending["samples"]
        said = f"took {samples} samples in {took:.1f} s, using {self.ending['cpu'] / took:.2%} of a core"
        lost = self.ending.get("lost")
        return [
            said.replace("%", " %") + f" -> {shown(self.wanted.run)}",
            *([f"monitor: {lost} lines of samples could not be written"] if lost else []),
            *(f"monitor: {text}" for text in self.ending.get("missing", [])),
        ]


def start(wanted: Sampling) -> Monitor:
    """Start sampling. Raises LostflopsError where the process cannot be started."""
    settings = {
        "run": str(wanted.run),
        "interval": wanted.interval,
        "duration": wanted.duration,
        "address": wanted.address,
        "port": wanted.port,
        "textfile": None if wanted.textfile is None else str(wanted.textfile),
        "dcgm": wanted.dcgm,
        "root": str(wanted.root),
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "lostflops.machine.monitor.sampler", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LOSTFLOPS_DEBUG") else subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the job
        )
    except OSError as error:
        raise LostflopsError(f"The monitor could not be started: {error.strerror}.") from error
    return Monitor(process, wanted)


@contextmanager
def beside(run: Path, *, wanted: bool) -> Generator[list[str]]:
    """Sample while the block runs, if `wanted`. What there is to say of it is in the list when it has ended.

    A monitor that cannot start costs its samples only.
    """
    said: list[str] = []
    if not wanted:
        yield said
        return
    try:
        sampler = start(Sampling(run))
    except LostflopsError as error:
        said.append(f"monitor: {error.message}")
        yield said
        return
    try:
        yield said
    finally:
        sampler.stop(JOB_WAITS)
        said += sampler.lines()


def interval(text: str) -> float:
    """Seconds between two samples, of '1', '0.5' or '200ms'. Raises BadOption."""
    value = units.seconds(text, "--interval")
    if value < SHORTEST:
        raise BadOption(f"{shown(text)} is too short: the shortest interval is {SHORTEST} s.")
    return value


def duration(text: str) -> float:
    """Seconds to run, of '90', '2m' or '1h'. Raises BadOption."""
    value = units.seconds(text, "--duration")
    if not value:
        raise BadOption(
            "`--duration` is 0: nothing would be sampled.", "write `--duration 90`, or leave it out."
        )
    return value


def listening(text: str) -> tuple[str, int]:
    """Address and port of '9400' or '0.0.0.0:9400'. Without an address nobody from outside can ask."""
    found = re.fullmatch(r"(?:([\w.-]+|\[[0-9a-fA-F:]+\]):)?(\d{1,5})", text)
    if not found or int(found[2]) > 65535:
        raise BadOption(f"'{shown(text)}' is not a port.", "write `--port 9400`, or `--port 0.0.0.0:9400`.")
    return (found[1] or "127.0.0.1").strip("[]"), int(found[2])


def exporter(text: str) -> str:
    """The address of a DCGM exporter. Raises BadOption."""
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise BadOption(
            f"'{shown(text)}' is not the address of an exporter.",
            "write `--dcgm http://127.0.0.1:9400/metrics`.",
        )
    return text


def _said(line: bytes) -> dict[str, Any]:
    try:
        said: Any = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}  # pyright: ignore[reportUnknownVariableType]
