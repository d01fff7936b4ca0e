"""The links of a machine as text: its devices, the matrices between them, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from lostflops.recipes.machine.topology_faults import topology_faults
from lostflops.report.words.safe import one_line

WIDEST_CELL = 72
TITLES = {
    "path": "path between devices",
    "read": "P2P read",
    "write": "P2P write",
    "nvlink": "P2P over NVLink",
    "atomics": "P2P atomics",
    "pcie": "P2P over PCIe",
    "distance": "distance of memory nodes (10: itself)",
}
LEGEND = {
    "path": (
        ("NV#", "# bonded NVLinks"),
        ("XGMI", "AMD's link between GPUs"),
        ("PIX", "at most one PCIe bridge"),
        ("PXB", "several PCIe bridges, not the CPU's"),
        ("PHB", "through the CPU's PCIe host bridge"),
        ("NODE", "between host bridges of one memory node"),
        ("SYS", "between memory nodes"),
    ),
    "peer": (
        ("OK", "works"),
        ("NS", "not supported"),
        ("CNS", "not supported by the chipset"),
        ("GNS", "not supported by the GPU"),
        ("TNS", "not supported by where the cards sit"),
        ("DR", "disabled in the driver"),
        ("U", "unknown"),
    ),
}
COLUMNS = {
    "gpu": {
        "GPU": "name",
        "model": "model",
        "memory node": "numa",
        "CPUs": "cpus",
        "PCI address": "address",
        "PCIe lanes": "lanes",
        "at most": "most_lanes",
        "Gb/s": "rate",
    },
    "nic": {
        "network card": "name",
        "state": "state",
        "Gb/s": "rate",
        "memory node": "numa",
        "PCI address": "address",
    },
    "port": {
        "port": "name",
        "": "port",
        "layer": "layer",
        "state": "state",
        "physical": "physical",
        "Gb/s": "rate",
        "interface": "network",
    },
    "numa": {"memory node": "name", "CPUs": "cpus", "GB": "bytes"},
    "process": {"process": "name", "GPU": "port", "may run on CPUs": "cpus"},
}


def lines(devices: pl.DataFrame, links: pl.DataFrame, expected_rate: int = 0) -> Iterator[str]:
    """The machine's devices, its matrices with a legend, and what is wrong."""
    for kind, columns in COLUMNS.items():
        rows = devices.filter(pl.col("kind") == kind)
        if rows.height:
            yield from _devices(rows, columns)
            yield ""
        elif kind in ("gpu", "port"):
            yield "no GPU was found" if kind == "gpu" else "no InfiniBand or RoCE port was found"
            yield ""
    yield from _nvlinks(devices.filter(pl.col("kind") == "nvlink"))
    legend: dict[str, str] = {}
    for matrix, title in TITLES.items():
        rows = links.filter(pl.col("matrix") == matrix)
        if rows.height:
            yield from _matrix(rows, title)
            yield ""
            legend |= dict(LEGEND["path" if matrix == "path" else "peer"]) if matrix != "distance" else {}
    codes = {_kind_of(code) for code in links["code"]}
    legend = {code: meaning for code, meaning in legend.items() if code in codes}
    if legend:
        yield from (f"{code:4}  {meaning}" for code, meaning in legend.items())
        yield ""
    yield from _warnings(devices, links, expected_rate)


def _kind_of(code: str) -> str:
    return "NV#" if code.startswith("NV") else code


def _devices(rows: pl.DataFrame, columns: Mapping[str, str]) -> Iterator[str]:
    shown = [(title, name) for title, name in columns.items() if rows[name].drop_nulls().len()]
    ordered = sorted(rows.iter_rows(named=True), key=lambda row: (natural(row["name"]), row["port"] or 0))
    yield from grid(
        [title for title, _ in shown], [[_cell(row[name], name) for _, name in shown] for row in ordered]
    )


def _cell(value: object, column: str) -> str:
    if value is None:
        return "–"
    if column == "bytes" and isinstance(value, int):
        return f"{value / 1e9:.1f}"
    return f"{value:g}" if isinstance(value, float) else one_line(str(value), WIDEST_CELL)


def _matrix(rows: pl.DataFrame, title: str) -> Iterator[str]:
    yield title
    codes = {(row["device"], row["peer"]): row["code"] for row in rows.iter_rows(named=True)}
    names = sorted({name for pair in codes for name in pair}, key=natural)
    across = [name for name in names if any(peer == name for _, peer in codes)]
    down = [name for name in names if any(device == name for device, _ in codes)]
    body = [
        [name, *("·" if name == other else codes.get((name, other), "–") for other in across)]
        for name in down
    ]
    yield from grid(["", *across], body)


def _nvlinks(rows: pl.DataFrame) -> Iterator[str]:
    active = pl.col("state") == "active"
    of_gpus = rows.group_by("name", maintain_order=True).agg(
        pl.len(), active=active.sum(), total=pl.col("rate").filter(active).sum() / 8
    )
    for row in of_gpus.iter_rows(named=True):
        many = f"{row['active']} of {row['len']} NVLinks active"
        yield f"{row['name']}: {many}, {row['total']:.1f} GB/s together"
    if rows.height:
        yield ""


def grid(header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, each column as wide as its widest cell."""
    widths = [max(len(row[n]) for row in [header, *body]) for n in range(len(header))]
    for row in [header, *body]:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _warnings(devices: pl.DataFrame, links: pl.DataFrame, expected_rate: int) -> Iterator[str]:
    table = topology_faults(devices.lazy(), links.lazy(), expected_rate=expected_rate).collect()
    for finding in topology_faults.findings(table):
        yield f"warning: {finding.claim}"
        yield from (f"  {one_line(fact)}" for fact in finding.evidence)
        yield f"  next: {finding.next}"
        if finding.doubt:
            yield f"  but {finding.doubt}"
    if not table.height:
        found = devices.height or links.height
        yield "no fault was found in the devices and links above" if found else "no device was found"


def left_out(remarks: Iterable[str], absent: Mapping[str, str]) -> Iterator[str]:
    """What could not be understood, and who could not be asked."""
    yield from (f"not read: {one_line(remark)}" for remark in remarks)
    yield from (f"{name}: {why}" for name, why in absent.items())


def natural(name: str) -> tuple[Any, ...]:
    """A key that sorts GPU10 after GPU9."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
