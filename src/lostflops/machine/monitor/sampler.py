"""The process that samples a node: `python -m lostflops.machine.monitor.sampler SETTINGS`.

One per node, and as small as can be: the standard library and, where there are NVIDIA GPUs, NVML's binding.
It ends when its standard input does, so it never outlives whoever started it. On standard output it says one
line of JSON when it has read everything once, and one when it ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lostflops import node, run_folder
from lostflops.machine.monitor.amd import Amd
from lostflops.machine.monitor.dcgm import Dcgm
from lostflops.machine.monitor.host import Host
from lostflops.machine.monitor.log import FORMAT, AlreadyRunning, MonitorLog
from lostflops.machine.monitor.metrics import MetricSource, MetricValue
from lostflops.machine.monitor.nics import Nics
from lostflops.machine.monitor.nvidia import Nvidia
from lostflops.machine.monitor.openmetrics import exposition, replace, serve
from lostflops.machine.monitor.ranks import Ranks
from lostflops.version import __version__

THOROUGH_EVERY = 10.0  # s
STALE = 30.0  # s after which a reading is no longer shown to Prometheus


class Sampler:
    """Reads all sources of a node at a steady pace."""

    def __init__(self, run: Path, interval: float, sources: list[MetricSource]) -> None:
        self.run = run
        self.interval = interval
        self.sources = sources
        self.log = MonitorLog(run / node.folder() / run_folder.MONITOR)
        self.samples = 0
        self.textfile: Path | None = None
        self._latest: dict[tuple[str, int | None, str | None], tuple[float, MetricValue]] = {}
        self._thorough_due = 0.0
        self._faults: set[str] = set()
        self.log.tell(
            [
                {
                    "kind": "monitor",
                    "format": FORMAT,
                    "lostflops": __version__,
                    "host": node.host(),
                    "interval": int(interval * 1e9),
                    "pid": os.getpid(),
                    "monotonic": time.monotonic_ns(),
                    "wall": time.time_ns(),
                }
            ]
        )

    def sample(self, thorough: bool = False) -> None:
        now = time.monotonic()
        thorough = thorough or now >= self._thorough_due
        if thorough:
            self._thorough_due = now + THOROUGH_EVERY
        monotonic, wall = time.monotonic_ns(), time.time_ns()
        readings = [reading for source in self.sources for reading in self._read(source, thorough)]
        self.log.add(monotonic, wall, readings)
        self._latest.update({reading[:3]: (now, reading) for reading in readings})
        self.samples += 1
        if self.textfile is not None:
            self._write(self.textfile)
        if thorough:
            for source in self.sources:
                try:
                    self.log.tell(source.facts())
                except Exception as error:
                    self._fault(type(source).__name__, error)

    def _write(self, textfile: Path) -> None:
        try:
            replace(textfile, exposition(self.latest(), textfile=True))
        except OSError as error:
            self._fault("textfile", error)

    def latest(self) -> list[MetricValue]:
        now = time.monotonic()
        patience = max(STALE, 3 * self.interval)
        return [reading for at, reading in list(self._latest.values()) if now - at < patience]

    def until(self, end: float, asked: Sequence[int]) -> None:
        """Sample until standard input ends, one of `asked` can be read, or `end` of the monotonic clock."""
        due = time.monotonic()
        while True:
            due += self.interval
            left = min(due, end) - time.monotonic()
            if left < 0 and due < end:  # beats that were missed are left out, not made up for
                due = time.monotonic()
                left = 0.0
            if select.select([sys.stdin, *asked], [], [], max(0.0, left))[0] or time.monotonic() >= end:
                return
            self.sample()

    def _read(self, source: MetricSource, thorough: bool) -> Iterator[MetricValue]:
        try:
            yield from source.read(thorough)
        except Exception as error:  # costs the rest of this source's values, this time
            self._fault(type(source).__name__, error)

    def _fault(self, where: str, error: Exception) -> None:
        text = f"monitor: {where}: {type(error).__name__}: {error}"
        if text not in self._faults and len(self._faults) < 20:
            self._faults.add(text)
            self.say(text)

    def say(self, text: str) -> None:
        """A line for whoever looks for what went wrong."""
        try:
            with (self.run / run_folder.MESSAGES).open("a") as file:
                file.write(f"{text}\n")
        except OSError:
            pass


def sources(settings: Mapping[str, Any]) -> list[MetricSource]:
    root = Path(settings.get("root") or "/")
    found: list[MetricSource] = [Host(root), Nics(root), Ranks(Path(settings["run"]), node.host(), root)]
    nvidia, amd = Nvidia(root, gpm=not settings.get("dcgm")), Amd(root)
    found += [
        source for source, there in ((nvidia, nvidia.devices or nvidia.missing), (amd, amd.cards)) if there
    ]
    if settings.get("dcgm"):
        found.append(Dcgm(settings["dcgm"], beside=bool(nvidia.devices)))
    return found


def missing(of: Iterable[MetricSource]) -> list[str]:
    """What could not be read though it should be there."""
    return [text for source in of if (text := getattr(source, "missing", ""))]


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        read = sources(settings)
        sampler = Sampler(Path(settings["run"]), settings["interval"], read)
        if settings.get("textfile"):
            sampler.textfile = Path(settings["textfile"])
    except AlreadyRunning:
        return _say(running=True)
    except OSError as error:
        return _say(error=error.strerror or str(error), number=error.errno)
    port = None
    try:
        if settings.get("port") is not None:
            port = serve(settings["address"], settings["port"], lambda: exposition(sampler.latest()))
    except (OSError, OverflowError) as error:
        return _say(port_error=getattr(error, "strerror", None) or str(error))
    asked, ask = os.pipe()

    def stop(number: int, frame: FrameType | None) -> None:
        os.write(ask, b"!")

    signal.signal(signal.SIGTERM, stop)
    sampler.sample(thorough=True)
    series = sampler.log.num_series
    _say(ready=True, port=port, folder=str(sampler.log.folder), missing=missing(read), series=series)
    began, started = time.monotonic(), time.process_time()
    duration = settings.get("duration")
    sampler.until(began + duration if duration else float("inf"), [asked])
    sampler.sample(thorough=True)
    told = missing(read)
    took, cpu = time.monotonic() - began, time.process_time() - started
    sampler.log.close()
    _say(ended=True, samples=sampler.samples, took=took, cpu=cpu, lost=sampler.log.lost, missing=told)
    return None


def _say(**what: Any) -> None:
    try:
        print(json.dumps(what), flush=True)
    except OSError:  # nobody listens any more
        os._exit(0)


if __name__ == "__main__":
    main()
