"""What Linux itself tells about memory nodes, network cards and their ports, below `/sys`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lostflops.machine.topology.texts import Row, ToolOutput, address, distances

TOOL = "sysfs"
GPU_CLASSES = ("0x0300", "0x0302", "0x0380")
GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}


def read(root: Path) -> ToolOutput:
    """All of it below `root`, which is `/sys` or a copy of it."""
    found = ToolOutput()
    nodes = _numbered(root / "devices/system/node", r"node(\d+)")
    for number, folder in nodes.items():
        found.devices.append(
            {
                "kind": "numa",
                "name": f"node {number}",
                "numa": number,
                "cpus": _text(folder / "cpulist") or None,
                "bytes": _memory(folder / "meminfo"),
                "tool": TOOL,
            }
        )
        if said := _text(folder / "distance").split():
            found.links += distances(number, list(nodes), said, TOOL, found.remarks)
    of_rdma: set[str] = set()
    for card in _folders(root / "class/infiniband"):
        interfaces = sorted(folder.name for folder in _folders(card / "device/net"))
        of_rdma.update(interfaces)
        found.devices.append({"kind": "nic", "name": card.name, **_place(card / "device")})
        for number, folder in _numbered(card / "ports", r"(\d+)").items():
            found.devices.append(_port(card.name, number, folder, interfaces))
    for interface in _folders(root / "class/net"):
        if interface.name not in of_rdma and (interface / "device").exists():
            found.devices.append(_interface(interface))
    return found


def gpus(root: Path) -> dict[str, int]:
    """How many GPUs of which maker are on the PCI bus, whether or not a driver is there."""
    many: dict[str, int] = {}
    for device in _folders(root / "bus/pci/devices"):
        maker = GPU_VENDORS.get(_text(device / "vendor"))
        if maker and _text(device / "class")[:6] in GPU_CLASSES:
            many[maker] = many.get(maker, 0) + 1
    return many


def _port(card: str, number: int, folder: Path, interfaces: list[str]) -> Row:
    rate = re.match(r"([\d.]+) Gb/sec", _text(folder / "rate"))
    return {
        "kind": "port",
        "name": card,
        "port": number,
        "network": interfaces[0] if len(interfaces) == 1 else None,
        "layer": _text(folder / "link_layer") or None,
        # '4: ACTIVE', '5: LinkUp'
        "state": _text(folder / "state").partition(":")[2].strip().lower() or None,
        "physical": _text(folder / "phys_state").partition(":")[2].strip().lower() or None,
        "rate": float(rate[1]) if rate else None,
        "tool": TOOL,
    }


def _interface(folder: Path) -> Row:
    speed = _text(folder / "speed")  # Mb/s; -1, or an error, where there is no carrier
    return {
        "kind": "nic",
        "name": folder.name,
        "layer": "Ethernet" if _text(folder / "type") == "1" else None,
        "state": _text(folder / "operstate").lower() or None,
        "rate": int(speed) / 1000 if speed.isdecimal() and int(speed) else None,
        **_place(folder / "device"),
    }


def _place(device: Path) -> Row:
    """Memory node and PCI address of a device; on machines with one node the kernel may say -1."""
    numa = _text(device / "numa_node")
    name = device.resolve().name
    return {
        "numa": int(numa) if numa.isdecimal() else None,
        "address": address(name)
        if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", name)
        else None,
        "tool": TOOL,
    }


def _memory(file: Path) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+) kB", _text(file))
    return int(match[1]) << 10 if match else None


def _numbered(folder: Path, pattern: str) -> dict[int, Path]:
    found = ((re.fullmatch(pattern, entry.name), entry) for entry in _folders(folder))
    return dict(sorted((int(match[1]), entry) for match, entry in found if match))


def _folders(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return


def _text(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return content.read(1 << 16).decode(errors="replace").strip()
    except OSError:  # also what a port without carrier answers
        return ""
