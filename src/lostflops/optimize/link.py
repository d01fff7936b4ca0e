"""How fast host and device exchange bytes: measured here, and written down as a card that the planner reads.

    card = optimize.measure_link()
    Path("link.json").write_text(json.dumps(card))      # lostflops plan train --link link.json ...

A card is a JSON object. `device_to_host` and `host_to_device` hold a rate per kind of host memory (pinned,
pageable); `both_directions` and `under_gemm` hold the same two again, measured while the other direction ran
and while the device multiplied matrices, and `by_node` for host memory on other memory nodes. A rate is the
line t = launch_ns + bytes / bytes_per_second that lies nearest to the times, `spread` how far they lie from
it, and `sizes` the times themselves. `lostflops bench links --card FILE` writes the same.
"""

from __future__ import annotations

import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch

from lostflops.copies.link_card import DIRECTIONS, ENOUGH, line
from lostflops.optimize.amounts import written
from lostflops.optimize.device import numa
from lostflops.optimize.device.devices import Device, Event, Stream, device_named
from lostflops.optimize.refused import Refused
from lostflops.optimize.unified.migration import CudaPages, migrations

KIND = "link card"
SIZES = tuple(4096 * 4**n for n in range(9))  # 4 KiB to 256 MiB
MEMORY = ("pinned", "pageable", "managed")
MATRIX = {"cuda": 4096}  # rows of the matrices that are multiplied meanwhile; on a CPU fewer
SENT, FETCHED = 0x5A, 0xA5  # bytes that tell whether a copy took place


def measure_link(
    device: Device | torch.device | str | int | None = None,
    sizes: Sequence[int] = SIZES,
    repeats: int = 7,
    *,
    memory: Sequence[str] = ("pinned", "pageable"),
    under_gemm: bool = True,
    sysfs: Path = Path("/sys"),
) -> dict[str, Any]:
    """Copies of each size, each way, and the card of them, a dict for JSON.

    Takes seconds, and twice the largest size in the memory of each side. The host memory is taken on the
    GPU's own memory node, by running on that node's CPUs meanwhile; when its pages lie elsewhere all the
    same, a warning says so and the card remarks it. Times are of copies that are queued one after the other,
    the median of `repeats`. Refuses when a copy leaves other bytes than it should.
    `device`: a GPU, or any `Device`, such as a ThreadedDevice to try it out. memory: with "managed" how fast
    pages of unified memory migrate when they are touched is measured too, which takes a C compiler.
    """
    if repeats < 1 or len(set(sizes)) < ENOUGH or min(sizes) < 1:
        raise Refused(
            f"{len(set(sizes))} sizes and {repeats} repeats make no line",
            f"give {ENOUGH} sizes or more, of at least a byte, and 1 repeat or more",
        )
    if unknown := set(memory) - set(MEMORY):
        raise Refused(f"host memory is not '{sorted(unknown)[0]}'", f"choose from {', '.join(MEMORY)}")
    where = _device(device)
    if "managed" in memory and where.torch_device.type != "cuda":
        raise Refused("migration of managed memory needs a GPU", "leave 'managed' out")
    node = numa.node_of_gpu(where.torch_device, sysfs)
    remarks: list[str] = []
    card = _about(where, node, sysfs)
    with numa.on_node(node, sysfs):
        ways = _Ways(where, max(sizes))
        for kind in memory:
            if kind == "managed":
                moved = migrations(CudaPages(where.torch_device, max(sizes)), sizes, repeats)
                for way in DIRECTIONS:
                    card[way][kind] = _rate(sizes, moved[way])
                continue
            down, up = ways.host(kind)
            if kind == "pinned" and (far := numa.elsewhere(down, node)):
                remarks.append(far)
                warnings.warn(far, stacklevel=2)
            times = {way: [ways.alone(way, n, down, up, repeats) for n in sizes] for way in DIRECTIONS}
            for way in DIRECTIONS:
                card[way][kind] = _rate(sizes, times[way])
            if kind != "pinned":
                continue
            card["both_directions"] = _directions(sizes, [ways.both(n, down, up, repeats) for n in sizes])
            if under_gemm:
                busy = [
                    [ways.alone(way, n, down, up, repeats, busy=True) for way in DIRECTIONS] for n in sizes
                ]
                card["under_gemm"] = _directions(sizes, busy)
    if where.coherent:
        remarks.append("this device shares the host's memory: moving bytes frees none")
    card["remarks"] = remarks
    return card


def described(card: Mapping[str, Any]) -> str:
    """The card for people, a line per rate."""
    node = card.get("numa_node")
    lines = [f"{card.get('gpu')}, {card.get('host')}, measured on {card.get('measured_on')}"]
    lines[0] += "" if node is None else f", memory node {node}"
    places = (
        ("", card),
        (", both ways at once", card.get("both_directions")),
        (", under matrix products", card.get("under_gemm")),
    )
    for said, part in places:
        for way in DIRECTIONS:
            for kind, found in (part or {}).get(way, {}).items():
                text = f"  {kind} {way.replace('_', ' ')}{said}: {found['bytes_per_second'] / 1e9:.2f} GB/s"
                if found["launch_ns"] is not None:
                    text += f" + {found['launch_ns'] / 1e3:.1f} us, spread {found['spread']:.1%}"
                lines.append(text)
    return "\n".join([*lines, *(f"  {remark}" for remark in card.get("remarks", ()))])


def _device(given: Device | torch.device | str | int | None) -> Device:
    if given is not None and not isinstance(given, torch.device | str | int):
        return given
    return device_named("cuda" if given is None else given)


def _about(device: Device, node: int | None, sysfs: Path) -> dict[str, Any]:
    """What was measured on, without the names of machines."""
    cuda = device.torch_device.type == "cuda"
    nodes = sum(bool(cpus) for cpus in numa.nodes(sysfs).values()) or 1
    return {
        "kind": KIND,
        "format": 1,
        "gpu": torch.cuda.get_device_name(device.torch_device) if cuda else "no GPU: copies by threads",
        "host": f"{platform.machine()}, {nodes} memory node{'s' if nodes > 1 else ''}",
        "numa_node": node,
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
        "tool": "lostflops.optimize.measure_link",
        "torch": str(torch.__version__),
        "driver": _driver(),
        **{way: {} for way in DIRECTIONS},
        "both_directions": None,
        "under_gemm": None,
        "by_node": [],
    }


def _driver(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    try:
        found = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", file.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _rate(sizes: Sequence[int], times: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A rate as cards hold it; without a line the best that was measured, and no launch time."""
    medians = [statistics.median(each) for each in times]
    fitted: dict[str, Any] | None = line(sizes, medians)
    if fitted is None:
        best = max(1e9 * n / max(1, t) for n, t in zip(sizes, medians, strict=True))
        fitted = {"launch_ns": None, "bytes_per_second": best, "spread": None, "half_size_bytes": None}
    rows = zip(sizes, medians, times, strict=True)
    fitted["sizes"] = [{"bytes": n, "median_ns": round(t), "repeats": len(each)} for n, t, each in rows]
    return fitted


def _directions(sizes: Sequence[int], found: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Rates of pinned copies from the times of each size and direction."""
    return {way: {"pinned": _rate(sizes, [each[d] for each in found])} for d, way in enumerate(DIRECTIONS)}


def overlapping(ends: Sequence[int], others_end: int) -> list[int]:
    """Durations between successive ends, of those that ended while the other direction still ran.

    `ends` begins with the end of the copy before the first. The first duration is kept in any case: it began
    with the other direction.
    """
    spans = [(end, end - start) for start, end in pairwise(ends)]
    return [spans[0][1], *(span for end, span in spans[1:] if end <= others_end)]


class _Ways:
    """Buffers and streams of a device, and the timing of copies between them."""

    def __init__(self, device: Device, largest: int) -> None:
        self.device = device
        self.streams: list[Stream] = [device.new_stream() for _ in DIRECTIONS]
        self.far, self.near = device.allocate(largest), device.allocate(largest)
        self.largest = largest
        rows = MATRIX.get(device.torch_device.type, 256)
        self.a, self.b = (torch.ones(rows, rows, device=device.torch_device) for _ in range(2))
        if device.torch_device.type == "cuda":
            self.a, self.b = self.a.bfloat16(), self.b.bfloat16()

    def host(self, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """What is sent, and where to fetch to. Written here, so that the pages lie where this thread runs."""
        make: Callable[[int], torch.Tensor] = (
            self.device.host_memory if kind == "pinned" else lambda n: torch.zeros(n, dtype=torch.uint8)
        )
        down, up = make(self.largest), make(self.largest)
        down.fill_(SENT)
        up.zero_()
        return down, up

    def alone(
        self, way: str, n: int, down: torch.Tensor, up: torch.Tensor, repeats: int, busy: bool = False
    ) -> list[int]:
        """Nanoseconds of each copy, one direction."""
        self._prepare(n, up)
        d = DIRECTIONS.index(way)
        if busy:
            self._multiply()  # the first one ever is slow
            torch.mm(self.a, self.b)  # runs while the first copies do
        marks = self._queue(d, n, down, up, repeats)
        while busy and not self.device.is_done(marks[-1]):
            self._multiply()
        self.device.synchronize(marks[-1])
        self._check(d, n, up, marks[-1])
        return [self._between(a, b) for a, b in pairwise(marks)]

    def both(self, n: int, down: torch.Tensor, up: torch.Tensor, repeats: int) -> list[list[int]]:
        """Nanoseconds of each copy of both directions, of those that ran while the other did."""
        zero = self._prepare(n, up)
        queued: list[list[Event]] = [[], []]
        for _ in range(repeats + 1):  # in turns, so that neither is ahead
            for d in range(2):
                queued[d] += self._queue(d, n, down, up, 0)
        for marks in queued:
            self.device.synchronize(marks[-1])
        ends = [[self.device.elapsed(zero, mark) for mark in marks] for marks in queued]
        for d in range(2):
            self._check(d, n, up, queued[d][-1])
        return [[max(1, t) for t in overlapping(ends[d], ends[1 - d][-1])] for d in range(2)]

    def _queue(self, d: int, n: int, down: torch.Tensor, up: torch.Tensor, repeats: int) -> list[Event]:
        """Events after each copy. A copy goes before the first event: a stream that was idle has no time."""
        target, source = (up, self.far) if d == 0 else (self.near, down)
        marks: list[Event] = []
        for _ in range(repeats + 1):
            self.device.copy(target[:n], source[:n], self.streams[d])
            marks.append(self.device.record(self.streams[d]))
        return marks

    def _prepare(self, n: int, up: torch.Tensor) -> Event:
        up[:n].zero_()
        self.near[:n].zero_()
        self.far[:n].fill_(FETCHED)
        ready = self.device.record(self.device.current_stream())
        for stream in self.streams:
            self.device.wait(stream, ready)
        self.device.synchronize(ready)
        return ready

    def _between(self, start: Event, end: Event) -> int:
        return max(1, self.device.elapsed(start, end))

    def _multiply(self) -> None:
        torch.mm(self.a, self.b)
        self.device.synchronize(self.device.record(self.device.current_stream()))

    def _check(self, d: int, n: int, up: torch.Tensor, done: Event) -> None:
        self.device.wait(self.device.current_stream(), done)
        target, wanted = (up, FETCHED) if d == 0 else (self.near, SENT)
        if not bool(cast("Any", (target[:n] == wanted).all())):
            raise Refused(
                f"a copy of {written(n)} {DIRECTIONS[d].replace('_', ' ')} left other bytes than it should",
                "do not trust this device's copies: run its vendor's diagnostics",
            )
