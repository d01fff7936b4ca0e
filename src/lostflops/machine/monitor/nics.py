"""InfiniBand, RoCE and EFA ports, from /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostflops.machine.monitor.host import content, number
from lostflops.machine.monitor.metrics import HARDWARE_COUNTERS, PORT_COUNTERS, MetricValue

WORD = 4  # InfiniBand counts data in these
EFA_BYTES = {
    "tx_bytes": "nic_sent",
    "rx_bytes": "nic_received",
    "rdma_read_bytes": "nic_rdma_read",
    "rdma_write_bytes": "nic_rdma_written",
    "rdma_write_recv_bytes": "nic_rdma_write_received",
    "retrans_bytes": "nic_retransmitted",
}


@dataclass(frozen=True)
class Port:
    """A port, and the files that were there when the monitor started: (metric, file, factor)."""

    name: str
    folder: Path
    data: tuple[tuple[str, Path, int], ...]
    events: tuple[tuple[str, Path, int], ...]


class Nics:
    """The ports of a node; `root` stands for `/` in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.ports = [
            _port(folder)
            for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*"))
            if folder.is_dir()
        ]

    def facts(self) -> Iterator[Mapping[str, Any]]:
        for port in self.ports:
            device = port.folder.parent.parent / "device"
            node = number(device / "numa_node")
            yield {
                "kind": "port",
                "port": port.name,
                "state": _state(port),
                "rate": content(port.folder / "rate").decode(errors="replace").strip(),
                "link_layer": content(port.folder / "link_layer").decode(errors="replace").strip(),
                "interfaces": sorted(path.name for path in (device / "net").glob("*")),
                "numa_node": node if node is not None and node >= 0 else None,
            }

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        for port in self.ports:
            # Asking for some of the events asks the card's firmware.
            for metric, path, factor in (*port.data, *(port.events if thorough else ())):
                value = number(path)
                if value is not None:
                    yield MetricValue(metric, None, port.name, value * factor)
            if thorough:
                state, rate = _state(port), content(port.folder / "rate").split()
                if state:
                    yield MetricValue("nic_active", None, port.name, int(state == "ACTIVE"))
                if rate and rate[0].replace(b".", b"", 1).isdigit():
                    yield MetricValue("nic_speed", None, port.name, float(rate[0]))


def _port(folder: Path) -> Port:
    name = f"{folder.parent.parent.name}:{folder.name}"
    counters, hardware = folder / "counters", folder / "hw_counters"
    data = [
        ("nic_sent", counters / "port_xmit_data", WORD),
        ("nic_received", counters / "port_rcv_data", WORD),
    ]
    if not data[0][1].exists():
        data = [(metric, hardware / file, 1) for file, metric in EFA_BYTES.items()]
    events = [
        *((f"nic_{file}", counters / file, 1) for file in PORT_COUNTERS),
        *((f"nic_{file}", hardware / file, 1) for file in HARDWARE_COUNTERS),
    ]
    return Port(
        name,
        folder,
        tuple(entry for entry in data if entry[1].exists()),
        tuple(entry for entry in events if entry[1].exists()),
    )


def _state(port: Port) -> str:
    """'ACTIVE' of '4: ACTIVE'."""
    return content(port.folder / "state").decode(errors="replace").partition(":")[2].strip()
