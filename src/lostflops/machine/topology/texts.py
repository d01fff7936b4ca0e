"""What the tools of a GPU machine print about its links, read into rows.

Every reader takes the whole text of one tool and never guesses: what it cannot place is left out and named in
`remarks`. Rows hold the columns of `topology_devices` and `topology_links`; the machine's name, GUIDs and MAC
addresses are not read.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lostflops import units
from lostflops.errors import BadOption, shown

Row = dict[str, Any]

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
DEVICE = re.compile(r"(GPU|NIC)\d+$|[a-z][a-z0-9]*_(bond_)?\d+$")
PATH_CODE = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|XGMI|PCIE")
PEER_CODE = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
MATRICES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}


@dataclass
class ToolOutput:
    """What one tool told."""

    devices: list[Row] = field(default_factory=list[Row])
    links: list[Row] = field(default_factory=list[Row])
    remarks: list[str] = field(default_factory=list[str])


Reader = Callable[[str], ToolOutput]


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in ESCAPES.sub("", text).replace("\r", "").split("\n")]


@dataclass(frozen=True)
class _Line:
    """A line of a matrix: whose it is, a code per column, and the words after those."""

    name: str
    codes: Sequence[str]
    rest: Sequence[str]


def _matrix(
    lines: Sequence[str], remarks: list[str], itself: str = "X"
) -> tuple[list[str], list[str], list[_Line]]:
    """Names of the columns' devices, titles after those, and lines of the first matrix of devices in a text.

    A line that lacks a cell is left out: which one is not known. `itself` stands in the diagonal.
    """
    names: list[str] = []
    titles: list[str] = []
    read: list[_Line] = []
    for line in lines:
        words = line.split()
        if not names:
            head = line
            places = [place for title in AFFINITIES if (place := line.find(title)) >= 0]
            if places:
                head = line[: min(places)]
                titles = sorted((t for t in AFFINITIES if t in line), key=line.find)
            words = head.split()
            if words and all(DEVICE.match(word) for word in words):
                names = words
        elif words and DEVICE.match(words[0]):
            if "\t" in line:  # an empty cell can be seen
                cells = [cell.strip() for cell in line.lstrip(" ").split("\t")]
                codes, rest = cells[1 : 1 + len(names)], [cell for cell in cells[1 + len(names) :] if cell]
            else:
                codes, rest = words[1 : 1 + len(names)], words[1 + len(names) :]
            codes = ["X" if code == itself else code for code in codes]
            if len(codes) < len(names) or any(re.fullmatch(r"[\d,-]*", code) for code in codes):
                remarks.append(
                    f"left out a line without a code for each of {len(names)} devices: "
                    f"'{shown(line.strip())}'"
                )
            else:
                read.append(_Line(words[0], codes, rest))
        elif read:
            break
    return names, titles, read


def _links(
    names: Sequence[str],
    lines: Sequence[_Line],
    matrix: str,
    known: re.Pattern[str],
    tool: str,
    remarks: list[str],
    called: Mapping[str, str] | None = None,
) -> list[Row]:
    called = called or {}
    rows: list[Row] = []
    for line in lines:
        for name, code in zip(names, line.codes, strict=True):
            if not known.fullmatch(code):
                remarks.append(f"the code '{shown(code)}' between {line.name} and {name} is not known")
            if code == "X" or name == line.name:
                continue
            rows.append(
                {
                    "matrix": matrix,
                    "device": called.get(line.name, line.name),
                    "peer": called.get(name, name),
                    "code": code,
                    "num_links": int(code[2:]) if re.fullmatch(r"NV\d{1,4}", code) else None,
                    "tool": tool,
                }
            )
    return rows


def nvidia_paths(text: str) -> ToolOutput:
    """`nvidia-smi topo -m`"""
    tool = "nvidia-smi topo -m"
    found = ToolOutput()
    lines = lines_of(text)
    names, titles, read = _matrix(lines, found.remarks)
    if not names:
        found.remarks.append("no matrix of devices was found")
        return found
    legend = (re.fullmatch(r"\s*(NIC\d+)\s*:\s*(\S+)", line) for line in lines)
    called = {match[1]: match[2] for match in legend if match}
    found.links = _links(names, read, "path", PATH_CODE, tool, found.remarks, called)
    missing = [name for name in names if name not in {line.name for line in read}]
    if missing:
        found.remarks.append(f"the matrix has no line for {', '.join(missing)}")
    for line in read:
        row: Row = {"tool": tool, "name": called.get(line.name, line.name)}
        row["kind"] = "gpu" if line.name.startswith("GPU") else "nic"
        if line.rest and len(line.rest) == len(titles):
            said = dict(zip(titles, line.rest, strict=True))
            row["cpus"] = _cpus(said.get("CPU Affinity", ""))
            row["numa"] = _number(said.get("NUMA Affinity", ""))
        elif line.rest:
            found.remarks.append(
                f"{line.name} has {len(line.rest)} of {len(titles)} affinities: left out, as it is not known "
                "which"
            )
        found.devices.append(row)
    return found


def nvidia_peers(letter: str) -> Reader:
    """`nvidia-smi topo -p2p` with that letter."""

    def read(text: str) -> ToolOutput:
        found = ToolOutput()
        names, _, lines = _matrix(lines_of(text), found.remarks)
        if not names:
            found.remarks.append("no matrix of devices was found")
        tool = f"nvidia-smi topo -p2p {letter}"
        found.links = _links(names, lines, MATRICES[letter], PEER_CODE, tool, found.remarks)
        return found

    return read


def nvidia_nvlinks(text: str) -> ToolOutput:
    """`nvidia-smi nvlink -s`: each NVLink of each GPU, with its rate."""
    found = ToolOutput()
    gpu: str | None = None
    for line in lines_of(text):
        if head := re.match(r"GPU (\d+):", line):
            gpu = f"GPU{head[1]}"
        elif match := re.fullmatch(r"\s*Link (\d+):\s*(.+)", line):
            rate = re.fullmatch(r"([\d.]+)\s*GB/s", match[2])
            row: Row = {"kind": "nvlink", "name": gpu, "port": int(match[1]), "tool": "nvidia-smi nvlink -s"}
            if gpu is None or (rate is None and match[2] != "<inactive>"):
                found.remarks.append(f"left out: '{shown(line.strip())}'")
                continue
            row["state"] = "active" if rate else "inactive"
            row["rate"] = 8 * float(rate[1]) if rate else None
            found.devices.append(row)
    return found


NVIDIA_GPUS = (
    "index",
    "name",
    "pci.bus_id",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pcie.link.gen.max",
)
PER_LANE = {1: 2.0, 2: 4.0, 3: 7.877, 4: 15.754, 5: 31.508, 6: 60.5}  # Gb/s in one direction, by generation


def nvidia_gpus(text: str) -> ToolOutput:
    """`nvidia-smi --query-gpu=` with NVIDIA_GPUS, as csv without header and units."""
    found = ToolOutput()
    for line in filter(None, lines_of(text)):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(NVIDIA_GPUS) or not cells[0].isdecimal():
            found.remarks.append(f"left out: '{shown(line)}'")
            continue
        lanes, per_lane = _number(cells[3]), PER_LANE.get(_number(cells[5]) or 0)
        found.devices.append(
            {
                "kind": "gpu",
                "name": f"GPU{int(cells[0])}",
                "model": cells[1],
                "address": address(cells[2]),
                "lanes": lanes,
                "most_lanes": _number(cells[4]),
                # By the highest generation that card and slot share; an idle link runs at a lower one.
                "rate": lanes * per_lane if lanes and per_lane else None,
                "tool": "nvidia-smi --query-gpu",
            }
        )
    return found


def address(text: str) -> str:
    """A PCI address as the kernel writes it; nvidia-smi writes eight digits of domain and capitals."""
    match = re.fullmatch(r"0*([0-9a-fA-F]{4}):([0-9a-fA-F:.]+)", text)
    return f"{match[1]}:{match[2]}".lower() if match else text.lower()


def ibstat(text: str) -> ToolOutput:
    """`ibstat`: cards with their ports. `ibv_devinfo` is another layout."""
    found = ToolOutput()
    card: str | None = None
    port: Row | None = None
    for line in lines_of(text):
        if head := re.match(r"\s*CA '([^']+)'", line):
            card, port = head[1], None
            found.devices.append({"kind": "nic", "name": card, "tool": "ibstat"})
        elif card and (match := re.fullmatch(r"\s*Port (\d+):", line)):
            port = {"kind": "port", "name": card, "port": int(match[1]), "tool": "ibstat"}
            found.devices.append(port)
        elif card and (match := re.fullmatch(r"\s*CA type:\s*(.+)", line)):
            found.devices[-1]["model"] = match[1]
        elif port is not None and (
            match := re.fullmatch(r"\s*(State|Physical state|Link layer):\s*(.*)", line)
        ):
            said = match[2].strip()
            match match[1]:
                case "State":
                    port["state"] = said.lower() or None
                case "Physical state":
                    port["physical"] = said.lower() or None
                case _:
                    port["layer"] = said or None
        elif port is not None and (match := re.fullmatch(r"\s*Rate:\s*(.*)", line)):
            port["rate"] = _rate(match[1], line, found.remarks)
    return found


def _rate(text: str, line: str, remarks: list[str]) -> float | None:
    match = re.match(r"(\d+(?:\.\d+)?)", text.strip())
    if not match:
        remarks.append(f"no rate can be read from '{shown(line.strip())}'")
        return None
    return float(match[1])


def ibdev2netdev(text: str) -> ToolOutput:
    """`ibdev2netdev`: which network interface belongs to which port."""
    found = ToolOutput()
    for line in filter(str.strip, lines_of(text)):
        match = re.search(r"(\S+) port (\d+)(?: \(.*?\))? ==> (\S+) \((\w+)\)", line)
        if not match:
            found.remarks.append(f"left out: '{shown(line)}'")
            continue
        row: Row = {"kind": "port", "name": match[1], "port": int(match[2]), "network": match[3]}
        found.devices.append({**row, "tool": "ibdev2netdev"})
    return found


def numactl(text: str) -> ToolOutput:
    """`numactl --hardware`"""
    found = ToolOutput()
    tool = "numactl --hardware"
    nodes: dict[int, Row] = {}
    columns: list[int] | None = None
    for line in lines_of(text):
        if match := re.match(r"node (\d+) cpus:\s*(.*)", line):
            node = int(match[1])
            cpus = [int(word) for word in match[2].split() if word.isdecimal()]
            nodes[node] = {"kind": "numa", "name": f"node {node}", "numa": node, "tool": tool}
            nodes[node]["cpus"] = units.written_spans(cpus) or None
        elif match := re.match(r"node (\d+) size:\s*(\d+) MB", line):
            nodes.setdefault(int(match[1]), {})["bytes"] = int(match[2]) << 20
        elif line.startswith("node distances"):
            columns = []
        elif columns is not None and (match := re.match(r"node((?:\s+\d+)+)$", line)):
            columns = [int(word) for word in match[1].split()]
        elif columns and (match := re.match(r"\s*(\d+):((?:\s+\d+)+)$", line)):
            found.links += distances(int(match[1]), columns, match[2].split(), tool, found.remarks)
    found.devices = [row for row in nodes.values() if "kind" in row]
    return found


def distances(
    node: int, nodes: Sequence[int], said: Sequence[str], tool: str, remarks: list[str]
) -> list[Row]:
    if len(nodes) != len(said):
        remarks.append(f"node {node} has {len(said)} distances to {len(nodes)} nodes")
        return []
    return [
        {"matrix": "distance", "device": f"node {node}", "peer": f"node {other}", "code": code, "tool": tool}
        for other, code in zip(nodes, said, strict=True)
        if other != node
    ]


def rocm_paths(text: str) -> ToolOutput:
    """`rocm-smi --showtopo`: the type of link of each pair of GPUs, and their memory nodes."""
    found = ToolOutput()
    tool = "rocm-smi --showtopo"
    lines = lines_of(text)
    start = next((n for n, line in enumerate(lines) if "Link Type between two GPUs" in line), None)
    if start is not None:
        names, _, read = _matrix(lines[start + 1 :], found.remarks, itself="0")
        found.links = _links(names, read, "path", PATH_CODE, tool, found.remarks)
    gpus = {row["device"] for row in found.links}
    for line in lines:
        if match := re.match(r"GPU\[(\d+)\]\s*: \(Topology\) Numa Node:\s*(-?\d+)", line):
            gpus.discard(f"GPU{match[1]}")
            numa = int(match[2])
            row: Row = {"kind": "gpu", "name": f"GPU{match[1]}", "numa": numa if numa >= 0 else None}
            found.devices.append({**row, "tool": tool})
    found.devices += [{"kind": "gpu", "name": name, "tool": tool} for name in sorted(gpus)]
    return found


NETWORK, OPEN_FABRICS = "2", "3"  # osdev_type of hwloc 2
DEEPEST = 100  # machines nest their objects about ten deep


def lstopo(text: str) -> ToolOutput:
    """`lstopo --of xml` of hwloc 2: memory nodes, and which of them cards and GPUs are attached to."""
    found = ToolOutput()
    if "<!ENTITY" in text:
        found.remarks.append("not read: it declares XML entities, which lstopo never writes")
        return found
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        found.remarks.append(f"it is not a complete XML document: {error}")
        return found
    if not root.get("version", "").startswith("2"):
        found.remarks.append("not read: only the XML of hwloc 2 is supported")
        return found
    found.devices = list(_objects(root, None, None))
    return found


def _objects(
    element: ElementTree.Element, numa: int | None, pci: str | None, depth: int = 0
) -> Iterator[Row]:
    """Devices below an element; `numa` is the one memory node of what contains it, `pci` its PCI device."""
    if depth > DEEPEST:
        return
    for child in element.iterfind("object"):
        here, at = numa, pci
        kind, name = child.get("type", ""), child.get("name", "")
        if child.get("nodeset"):
            nodes = _bits(child.get("nodeset", ""))
            here = nodes[0] if len(nodes) == 1 else None
        if kind == "NUMANode" and (node := _number(child.get("os_index", ""))) is not None:
            yield {
                "kind": "numa",
                "name": f"node {node}",
                "numa": node,
                "cpus": units.written_spans(_bits(child.get("cpuset", ""))) or None,
                "bytes": _number(child.get("local_memory", "")),
                "tool": "lstopo",
            }
        elif kind == "PCIDev":
            at = child.get("pci_busid")
        elif kind == "OSDev" and at is not None:
            gpu = re.fullmatch(r"(?:nvml|rsmi|cuda)(\d+)", name)
            wired = child.get("osdev_type") in (NETWORK, OPEN_FABRICS)
            if gpu or wired:
                row: Row = {"kind": "gpu", "name": f"GPU{gpu[1]}"} if gpu else {"kind": "nic", "name": name}
                yield {**row, "numa": here, "address": at, "tool": "lstopo"}
        yield from _objects(child, here, at, depth + 1)


def _bits(mask: str) -> list[int]:
    """The numbers of the bits of hwloc's '0x00000001,0xffffffff'; an empty word stands for zeros."""
    if not re.fullmatch(r"(0x[0-9a-fA-F]{1,8}|0x0)?(,(0x[0-9a-fA-F]{1,8})?)*", mask):
        return []
    value = 0
    for word in mask.split(","):
        value = value << 32 | int(word or "0", 16)
    return [n for n in range(value.bit_length()) if value >> n & 1]


def numbers(text: str) -> frozenset[int] | None:
    """'0-2,8' as {0, 1, 2, 8}; None when it is anything else."""
    try:
        return units.numbers(text)
    except BadOption:
        return None


def _cpus(text: str) -> str | None:
    return text if numbers(text) is not None else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,15}", text.strip()) else None
