"""The sums behind the offload report, kept while the engine runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lostflops.copies.link import Link
from lostflops.optimize.device.devices import over

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.schedule import Cause, CopySchedule, Direction
    from lostflops.optimize.device.devices import Device, Event

LAUNCH_NS = 10_000  # of one copy, where no link card says
ASSUMED_RATE = 55e9  # bytes per second over PCIe 5, where no link card says


@dataclass
class OneWaySum:
    bytes: int = 0
    copies: int = 0
    nanoseconds: int = 0


@dataclass
class OffloadTally:
    microbatches: int = 0
    moved: int = 0
    shared_bytes: int = 0
    kept_bytes: dict[str, int] = field(default_factory=dict[str, int])
    ways: dict[Direction, OneWaySum] = field(default_factory=lambda: {"out": OneWaySum(), "in": OneWaySum()})
    stalls_ns: dict[Cause, int] = field(default_factory=dict["Cause", int])
    host_ns: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # how often, and the sum
    steps: list[tuple[Event, Event]] = field(default_factory=list["tuple[Event, Event]"])  # begin, end
    _steps: tuple[int, int] = (0, 0)  # how many, sum of nanoseconds

    def keeps(self, reason: str, nbytes: int) -> None:
        self.kept_bytes[reason] = self.kept_bytes.get(reason, 0) + nbytes

    def took(self, what: str, nanoseconds: int) -> None:
        sums = self.host_ns.get(what)
        if sums is None:
            sums = self.host_ns[what] = [0, 0]
        sums[0] += 1
        sums[1] += nanoseconds

    def mean_ns(self, what: str) -> float | None:
        count, total = self.host_ns.get(what, (0, 0))
        return total / count if count else None

    def harvest(self, schedule: CopySchedule, device: Device, *, wait: bool) -> None:
        """Adds up copies and stalls that are over; with `wait`, the host waits until all are."""
        copies, schedule.copies = over(device, schedule.copies, lambda copy: copy.end, wait=wait)
        for copy in copies:
            way = self.ways[copy.direction]
            way.bytes += copy.nbytes
            way.copies += 1
            way.nanoseconds += device.elapsed(copy.start, copy.end)
        steps, self.steps = over(device, self.steps, lambda step: step[1], wait=wait)
        for begin, end in steps:
            count, total = self._steps
            self._steps = count + 1, total + device.elapsed(begin, end)
        stalls, schedule.stalls = over(device, schedule.stalls, lambda stall: stall.end, wait=wait)
        for stall in stalls:
            lasted = device.elapsed(stall.start, stall.end)
            self.stalls_ns[stall.cause] = self.stalls_ns.get(stall.cause, 0) + lasted

    def step_ns(self) -> int | None:
        """The mean from the begin of a microbatch to its last asking."""
        return self._steps[1] // self._steps[0] if self._steps[0] else None

    def measured_link(self, schedule: CopySchedule, device: Device) -> Link:
        """The rates so far; PCIe 5 where nothing was copied."""
        self.harvest(schedule, device, wait=True)
        out, into = self.ways["out"], self.ways["in"]
        if not (out.nanoseconds and into.nanoseconds):
            return Link(ASSUMED_RATE, ASSUMED_RATE, LAUNCH_NS)
        return Link(1e9 * out.bytes / out.nanoseconds, 1e9 * into.bytes / into.nanoseconds, 0)
