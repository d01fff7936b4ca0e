"""Which memory node a GPU hangs on, how to take host memory there, and where memory lies in fact.

Host memory on another node than the GPU's costs most of the link: on GB200 pinned copies fell from about 330
to 120 GB/s (torchtitan#3489, pytorch#160420, published).
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch

from lostflops.errors import BadOption
from lostflops.units import numbers

SYSFS = Path("/sys")
MAPS = Path("/proc/self/numa_maps")


def nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """The CPUs of each memory node. A node without CPUs (a Grace Hopper's GPU memory is one) has none."""
    found: dict[int, frozenset[int]] = {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        cpus = _text(folder / "cpulist")
        if cpus is not None and folder.name[4:].isdecimal():
            found[int(folder.name[4:])] = _numbers(cpus)
    return dict(sorted(found.items()))


def node_of_gpu(device: torch.device | int, sysfs: Path = SYSFS) -> int | None:
    """The memory node of the GPU's slot, from sysfs. None when the machine does not say, or has one node."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    if device.type != "cuda":
        return None
    slot = _slot(device)
    return None if slot is None else node_at(slot, sysfs)


def node_at(slot: str, sysfs: Path = SYSFS) -> int | None:
    """The memory node of a PCIe address, such as 0000:17:00.0."""
    text = _text(sysfs / "bus/pci/devices" / slot.lower() / "numa_node")
    known = [number for number, cpus in nodes(sysfs).items() if cpus]  # host memory, not a GPU's own
    node = int(text) if text is not None and re.fullmatch(r"-?\d{1,9}", text) else -1
    return node if node in known and len(known) > 1 else None


@contextmanager
def on_node(node: int | None, sysfs: Path = SYSFS) -> Generator[bool]:
    """Runs the calling thread on the node's CPUs, so that memory which it first touches lies there.

    Yields whether it could: not without such a CPU among those that this process may use. None: stay. torch
    uses one thread meanwhile: its others stay on the CPUs on which they began, and would put memory there.
    """
    before = os.sched_getaffinity(0)
    wanted = (nodes(sysfs).get(node, frozenset()) if node is not None else frozenset[int]()) & before
    threads = torch.get_num_threads()
    try:
        if wanted:
            os.sched_setaffinity(0, wanted)
            torch.set_num_threads(1)
        yield bool(wanted)
    finally:
        if wanted:
            os.sched_setaffinity(0, before)
            torch.set_num_threads(threads)


def pages(tensor: torch.Tensor, maps: Path = MAPS) -> dict[int, int]:
    """How many pages of the mapping that holds the tensor lie on each node. Empty where the kernel is silent.

    A mapping may hold more than the tensor; large tensors have one of their own.
    """
    text = _text(maps)
    start, found = -1, ""
    for row in (text or "").splitlines():
        address = row.split(" ", 1)[0]
        if re.fullmatch(r"[0-9a-f]{1,16}", address) and start < int(address, 16) <= tensor.data_ptr():
            start, found = int(address, 16), row
    return {int(node): int(many) for node, many in re.findall(r"\bN(\d+)=(\d+)", found)}


def elsewhere(tensor: torch.Tensor, node: int | None, maps: Path = MAPS) -> str | None:
    """A warning in words when most of the tensor's pages lie on another node than `node`; else None."""
    if node is None or tensor.device.type != "cpu":
        return None
    lie = pages(tensor, maps)
    there, everywhere = lie.get(node, 0), sum(lie.values())
    if not everywhere or 2 * there >= everywhere:
        return None
    most = max(lie, key=lambda each: lie[each])
    return (
        f"host memory for the GPU lies on memory node {most}, the GPU hangs on node {node}: "
        f"copies will be slower. Start the process with `numactl --cpunodebind={node} --membind={node}`"
    )


def _slot(device: torch.device) -> str | None:
    about = cast("Any", torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType]
    if not hasattr(about, "pci_domain_id"):
        return None  # an older torch
    return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def _numbers(text: str) -> frozenset[int]:
    """'0-2,8' as {0, 1, 2, 8}; none of what is anything else, such as a node without CPUs."""
    with suppress(BadOption):
        return numbers(text)
    return frozenset()
