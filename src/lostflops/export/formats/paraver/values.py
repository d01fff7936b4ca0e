"""What the numbers in a Paraver trace stand for: types of events, and the names that their values have."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from lostflops.accounts import ACCOUNTS as LEDGER
from lostflops.export.selection import RunPart
from lostflops.tables import FAMILIES, PRECISIONS, UNLISTED_GRAPH

# Types that public views read.
API, COPY, COPY_BYTES, KERNEL, COMMUNICATION, GRAPH, GRAPH_NODE = (
    63000000, 63000001, 63000002, 63000006, 63000007, 63000008, 63000102,
)  # fmt: skip
GRID, GRID_Y, GRID_Z, BLOCK, BLOCK_Y, BLOCK_Z = range(9101, 9107)
REGISTERS, CORRELATION, NCCL_BYTES, SPAN, RANGE, NEXT_DOMAIN = 9110, 9200, 9501, 9004, 9600, 100
LAUNCHED, COPIED = 55001, 55002  # tags of records that lead from a call to its work
# Our own: no other tool is known to use these.
STEP, ACCOUNT, FAMILY, PRECISION = 96000000, 96000010, 96000011, 96000012
COLLECTIVE, GROUP, BYTES, SEQUENCE, PROGRESS, COUNTER = (
    96000020, 96000021, 96000022, 96000023, 96000024, 96000030,
)  # fmt: skip
INTERVALS = (COPY, KERNEL, COMMUNICATION, GRAPH)
SHARED = (API, *INTERVALS)  # their values share one space: views tell rows apart by value alone
NUMBERS = {
    COPY_BYTES: "CUDA memcpy bytes", GRAPH_NODE: "CUDA graph node", GRID: "Grid size x",
    GRID_Y: "Grid size y", GRID_Z: "Grid size z", BLOCK: "Block size x", BLOCK_Y: "Block size y",
    BLOCK_Z: "Block size z",
    REGISTERS: "Registers per thread", CORRELATION: "Correlation", NCCL_BYTES: "NCCL bytes",
    BYTES: "Collective bytes", SEQUENCE: "Collective sequence number in its group + 1",
}  # fmt: skip
CODED = {
    API: "CUDA API call", COPY: "CUDA copy", KERNEL: "CUDA kernel", COMMUNICATION: "Communication kernel",
    GRAPH: "CUDA graph", SPAN: "NVTX start/end range", STEP: "Step", ACCOUNT: "Account of the ledger",
    FAMILY: "Kernel family", PRECISION: "Kernel precision", COLLECTIVE: "Collective", GROUP: "Process group",
    PROGRESS: "Collective waits or transfers",
}  # fmt: skip
OUTSIDE = "outside of steps"
WAITS, TRANSFERS = 1, 2
DIRECTIONS = {
    "host to device": "CUDA memcpy Host-to-Device",
    "device to host": "CUDA memcpy Device-to-Host",
    "device to device": "CUDA memcpy Device-to-Device",
    "peer to peer": "CUDA memcpy Peer-to-Peer",
    "host to host": "CUDA memcpy Host-to-Host",
    "memset": "CUDA memset",
    "unknown": "CUDA memcpy",
}
PRECISE = 3  # decimals of counters


@dataclass
class EventValues:
    """The names of each type's values, numbered from 1; `domains` are the types of ranges."""

    names: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    domains: dict[str | None, int] = field(default_factory=dict[str | None, int])
    counters: dict[str, int] = field(default_factory=dict[str, int])

    def coded(self, kind: int, names: pl.Expr) -> pl.Expr:
        """Names as numbers; 0 where there is none."""
        known = self.names.get(kind, {})
        return names.cast(pl.String).replace_strict(known, default=0, return_dtype=pl.Int64)


def values_of(selection: RunPart, *, bare: bool) -> EventValues:
    """The values of everything that is selected, the same on all ranks."""
    found = EventValues()
    kernel = pl.col("family").cast(pl.String) != "communication"
    graph = pl.col("name").cast(pl.String) == UNLISTED_GRAPH
    number = 1
    for kind, table, name, chosen in (
        (API, "launches", pl.col("name"), pl.lit(True)),
        (COPY, "copies", direction(), pl.lit(True)),
        (KERNEL, "kernels", pl.col("name"), kernel & ~graph),
        (COMMUNICATION, "kernels", pl.col("name"), ~kernel),
        (GRAPH, "kernels", pl.col("name"), kernel & graph),
    ):
        names = _distinct(selection, table, name, chosen)
        found.names[kind] = {name: at for at, name in enumerate(names, number)}
        number += len(names)
    _ranges(selection, found)
    steps = selection.table("steps")
    numbers = (
        [] if steps is None else steps.select(pl.col("step").unique().sort()).collect()["step"].to_list()
    )
    found.names[STEP] = {f"step {step}": at for at, step in enumerate(numbers, 1)}
    found.names[FAMILY] = _numbered(FAMILIES)
    found.names[PRECISION] = _numbered(PRECISIONS)
    for kind, column in ((COLLECTIVE, "kind"), (GROUP, "group")):
        found.names[kind] = _numbered(_distinct(selection, "collectives", pl.col(column), pl.lit(True)))
    found.names[PROGRESS] = {"waits for the last arrival": WAITS, "transfers": TRANSFERS}
    if not bare:
        found.names[ACCOUNT] = _numbered([*LEDGER, OUTSIDE])
        named = _distinct(selection, "counters", counter(), pl.lit(True))
        found.counters = {name: COUNTER + at for at, name in enumerate(named)}
    return found


def direction() -> pl.Expr:
    """What a copy is called there."""
    said = pl.col("direction").cast(pl.String)
    return said.replace_strict(DIRECTIONS, default="CUDA " + said, return_dtype=pl.String)


def counter() -> pl.Expr:
    """What a counter is called there, with its device and unit."""
    parts = [pl.col(c).cast(pl.String) for c in ("metric", "instance", "unit")]
    device = "GPU " + pl.col("device").cast(pl.String)
    return pl.concat_str([parts[0], device, *parts[1:]], separator=" ", ignore_nulls=True)


def operators_are_ranges(selection: RunPart) -> bool:
    """Whether operators were recorded as NVTX ranges, as Nsight Systems does."""
    ranks = selection.recorded.filter(pl.col("rank").is_in(selection.ranks))
    return "nsys" in ranks.select("source").collect()["source"].to_list()


def _ranges(selection: RunPart, found: EventValues) -> None:
    nested = pl.col("nested").fill_null(False)
    domains = _distinct(selection, "ranges", pl.col("domain"), nested)
    default = "user" if "user" in domains else None
    found.domains = {None: RANGE, default: RANGE}
    for domain in domains:
        if domain != default:
            found.domains[domain] = RANGE + NEXT_DOMAIN * (len(set(found.domains.values())))
    for domain, kind in found.domains.items():
        same = pl.col("domain").cast(pl.String).eq_missing(pl.lit(domain, dtype=pl.String))
        names = _distinct(selection, "ranges", pl.col("name"), nested & same)
        known = found.names.setdefault(kind, {})
        for name in names:
            known.setdefault(name, len(known) + 1)
    if operators_are_ranges(selection):
        known = found.names.setdefault(RANGE, {})
        for name in _distinct(selection, "operators", pl.col("name"), pl.lit(True)):
            known.setdefault(name, len(known) + 1)
    found.names[SPAN] = _numbered(_distinct(selection, "ranges", pl.col("name"), ~nested))


def _distinct(selection: RunPart, table: str, name: pl.Expr, chosen: pl.Expr) -> list[str]:
    frame = selection.table(table)
    if frame is None:
        return []
    names = frame.filter(chosen & (pl.col("end") > pl.col("start")) if table != "counters" else chosen)
    return (
        names.select(name.cast(pl.String).alias("n")).unique().drop_nulls().sort("n").collect()["n"].to_list()
    )


def _numbered(names: list[str] | tuple[str, ...]) -> dict[str, int]:
    return {name: at for at, name in enumerate(names, 1)}
