"""What a node's own kernel counts: cores, memory, pressure, disks, network, from /proc and /sys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lostflops.machine.monitor.metrics import MetricValue

SECTOR = 512  # /proc/diskstats counts in these, whatever the disk's own are
NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # their traffic is a disk's, or memory's
MEMORY = {
    b"MemTotal": "memory_total",
    b"MemAvailable": "memory_available",
    b"Cached": "memory_cached",
}


def content(path: Path) -> bytes:
    """What a file of the kernel's says now; nothing where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            parts: list[bytes] = []
            while part := file.read(1 << 16):
                parts.append(part)
    except OSError:
        return b""
    return b"".join(parts)


def number(path: Path) -> int | None:
    """The integer in a file of one, or None."""
    try:
        return int(content(path))
    except ValueError:
        return None


class Host:
    """The node; `root` stands for `/` in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.proc = root / "proc"
        self.frequencies = sorted(
            (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        )
        self.groups = _control_group(root)

    def facts(self) -> Iterable[Mapping[str, Any]]:
        return ()

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        for source in (self._cores, self._memory, self._pressure, self._group, self._disks, self._network):
            # A line of another form than known costs its file, not the others.
            with suppress(ValueError, IndexError):
                yield from source()
        if thorough:  # reading a core's clock may wake it
            for path in self.frequencies:
                kilohertz = number(path)
                if kilohertz is not None:
                    yield MetricValue("cpu_frequency", None, path.parts[-3][3:], kilohertz / 1000)
        yield MetricValue("monitor_cpu", None, None, time.process_time_ns())

    def _cores(self) -> Iterator[MetricValue]:
        # Counted in hundredths of a second, which is part of the kernel's interface and no setting.
        for line in content(self.proc / "stat").splitlines():
            if line.startswith(b"cpu"):
                name, *fields = line.split()
                user, nice, system, _, iowait, interrupts, soft, steal = (int(field) for field in fields[:8])
                if name == b"cpu":
                    yield MetricValue("cpu_user", None, None, user + nice)
                    yield MetricValue("cpu_system", None, None, system + interrupts + soft)
                    yield MetricValue("cpu_iowait", None, None, iowait)
                    yield MetricValue("cpu_steal", None, None, steal)
                else:
                    busy = user + nice + system + interrupts + soft
                    yield MetricValue("cpu_busy", None, name[3:].decode(), busy)
            elif line.startswith(b"ctxt"):
                yield MetricValue("context_switches", None, None, int(line.split()[1]))

    def _memory(self) -> Iterator[MetricValue]:
        found: dict[bytes, int] = {}
        for line in content(self.proc / "meminfo").splitlines():
            name, _, rest = line.partition(b":")
            if name in MEMORY or name in (b"SwapTotal", b"SwapFree"):
                found[name] = int(rest.split()[0]) * 1024
        for name, metric in MEMORY.items():
            if name in found:
                yield MetricValue(metric, None, None, found[name])
        if b"SwapTotal" in found and b"SwapFree" in found:
            yield MetricValue("swap_used", None, None, found[b"SwapTotal"] - found[b"SwapFree"])

    def _pressure(self) -> Iterator[MetricValue]:
        for resource in ("cpu", "memory", "io"):
            for line in content(self.proc / "pressure" / resource).splitlines():
                kind, *fields = line.split()
                if kind in (b"some", b"full"):
                    total = int(fields[-1].partition(b"=")[2])
                    yield MetricValue(f"pressure_{kind.decode()}", None, resource, total)

    def _group(self) -> Iterator[MetricValue]:
        if self.groups is None:
            return
        for file, metric in (
            ("memory.current", "cgroup_memory"),
            ("memory.peak", "cgroup_memory_peak"),
            ("memory.max", "cgroup_memory_limit"),
        ):
            held = number(self.groups / file)
            if held is not None:
                yield MetricValue(metric, None, None, held)
        for line in content(self.groups / "cpu.stat").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"usage_usec":
                yield MetricValue("cgroup_cpu", None, None, int(value))
            elif name == b"throttled_usec":
                yield MetricValue("cgroup_cpu_throttled", None, None, int(value))

    def _disks(self) -> Iterator[MetricValue]:
        whole = self.root / "sys/block"
        for line in content(self.proc / "diskstats").splitlines():
            fields = line.split()
            disk = fields[2].decode()
            # Partitions stand there too; only whole disks have a folder of their own.
            if disk.startswith(NOT_DISKS) or not (whole / disk.replace("/", "!")).exists():
                continue
            yield MetricValue("disk_read", None, disk, int(fields[5]) * SECTOR)
            yield MetricValue("disk_written", None, disk, int(fields[9]) * SECTOR)
            yield MetricValue("disk_busy", None, disk, int(fields[12]))

    def _network(self) -> Iterator[MetricValue]:
        for line in content(self.proc / "net/dev").splitlines()[2:]:
            name, _, rest = line.partition(b":")
            interface = name.strip().decode(errors="replace")
            fields = [int(field) for field in rest.split()]
            if interface == "lo":
                continue
            for metric, place in (
                ("network_received", 0),
                ("network_receive_errors", 2),
                ("network_receive_drops", 3),
                ("network_sent", 8),
                ("network_send_errors", 10),
                ("network_send_drops", 11),
            ):
                yield MetricValue(metric, None, interface, fields[place])


def _control_group(root: Path) -> Path | None:
    """The folder of the control group that this process is in; None without version 2 of them."""
    for line in content(root / "proc/self/cgroup").splitlines():
        if line.startswith(b"0::"):
            inside = line[3:].decode(errors="replace").strip("/")
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                folder = root / mount / inside
                if (folder / "cpu.stat").exists() or (folder / "memory.current").exists():
                    return folder
    return None
