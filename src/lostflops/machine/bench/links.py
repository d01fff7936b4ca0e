"""How fast copies are here: measured with torch, and by nvbandwidth where that is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.errors import LostflopsError, Unreadable, shown
from lostflops.machine.bench import collectives
from lostflops.machine.bench.collectives import Collectives as Measured
from lostflops.machine.bench.fit import fits
from lostflops.machine.topology import sysfs as topology_sysfs
from lostflops.machine.topology import texts
from lostflops.machine.topology.tools import said
from lostflops.version import __version__

SIZES = tuple(4096 * 4**n for n in range(10))  # 4 KiB to 1 GiB
WARM_UP = 3
SECONDS = 1.0  # for one size of one link, as far as fewer repeats allow
PATIENCE = 1800
LINK = ["tool", "operation", "device", "peer", "host_memory", "numa", "both"]

# nvbandwidth's tests by copy engine: the direction of the copy, and whether the other one runs as well.
TESTS = {
    "host_to_device_memcpy_ce": ("host to device", False),
    "device_to_host_memcpy_ce": ("device to host", False),
    "host_to_device_bidirectional_memcpy_ce": ("host to device", True),
    "device_to_host_bidirectional_memcpy_ce": ("device to host", True),
    "device_to_device_memcpy_read_ce": ("peer to peer", False),
    "device_to_device_memcpy_write_ce": ("peer to peer", False),
}


def settings(sizes: Sequence[int], repeats: int, sysfs: Path = Path("/sys")) -> dict[str, Any]:
    """What the script is told: with memory nodes only where there are several."""
    nodes = [
        (row["numa"], sorted(texts.numbers(row["cpus"] or "") or ()))
        for row in topology_sysfs.read(sysfs).devices
        if row["kind"] == "numa"
    ]
    return {
        "sizes": list(sizes),
        "repeats": repeats,
        "warm_up": WARM_UP,
        "seconds": SECONDS,
        "nodes": nodes if len(nodes) > 1 else [],
    }


def measured(lines: Sequence[Mapping[str, Any]]) -> Measured:
    """What the script wrote down of copies that had the GPU to themselves."""
    found = collectives.measured([line for line in lines if "load" not in line])
    remarks = list(found.remarks)
    if found.about.get("gpus") == "0":
        remarks.append("this Python's torch sees no GPU: only copies inside host memory were timed")
    return Measured(found.bandwidths.with_columns(backend=pl.lit(None, pl.String)), found.about, remarks)


def under_load(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Copies that ran while the GPU multiplied matrices, as `bandwidths`."""
    return collectives.measured([line for line in lines if "load" in line]).bandwidths


def nvbandwidth() -> Measured:
    """What nvbandwidth measures, where it is on the PATH."""
    program = shutil.which("nvbandwidth")
    if program is None:
        return Measured(collectives.table([]))
    try:
        done = subprocess.run(
            [program, "-j", "-t", *TESTS], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Measured(collectives.table([]), remarks=[f"nvbandwidth: {type(error).__name__}"])
    try:
        return read_nvbandwidth(done.stdout.decode(errors="replace"), "nvbandwidth")
    except LostflopsError as error:
        return Measured(collectives.table([]), remarks=[f"status {done.returncode}: {error.message}"])


def recorded(files: Iterable[Path]) -> Measured:
    """What `nvbandwidth -j` printed into files."""
    found: list[Measured] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError as error:
            raise Unreadable(file, error) from error
        found.append(read_nvbandwidth(text, file.name))
    return collectives.together(found)


def read_nvbandwidth(text: str, name: str) -> Measured:
    """The JSON that nvbandwidth prints. Its bidirectional numbers are of the one direction that they name."""
    try:
        content: Any = json.loads(text[text.index("{") : text.rindex("}") + 1])
        top = content["nvbandwidth"]
        tests: list[dict[str, Any]] = [test for test in top["testcases"] if isinstance(test, dict)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LostflopsError(
            f"{shown(name)} is not what `nvbandwidth -j` prints.",
            "run it with `-j`; its plain table is not read.",
        ) from error
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for test in tests:
        called = str(test.get("name"))
        matrix = test.get("bandwidth_matrix")
        if called not in TESTS:
            continue
        if not isinstance(matrix, list):
            remarks.append(f"{called}: {shown(str(test.get('error') or test.get('status')))}")
            continue
        size = test.get("bufferSize")
        bytes_copied = size << 20 if isinstance(size, int) and 0 < size < 1 << 30 else None
        cells = [[_rate(cell) for cell in line] for line in map(_list, matrix)]  # pyright: ignore[reportUnknownArgumentType]
        against = "<-" in str(test.get("bandwidth_description"))
        for r, line in enumerate(cells):
            for c, rate in enumerate(line):
                if rate is None:
                    continue
                row: dict[str, Any] = {"operation": TESTS[called][0], "both": TESTS[called][1]}
                if row["operation"] == "peer to peer":
                    a, b = (c, r) if against else (r, c)
                    row |= {"device": f"GPU{a}", "peer": f"GPU{b}"}
                else:
                    row |= {"device": f"GPU{c}", "host_memory": "pinned"}
                    row |= {"numa": r} if len(cells) > 1 else {}
                rows.append(
                    {**row, "tool": "nvbandwidth", "bytes": bytes_copied, "algorithm_bandwidth": rate}
                )
    if not rows and not remarks:
        raise LostflopsError(f"{shown(name)} holds none of the tests {', '.join(TESTS)}.")
    about = {"nvbandwidth": str(top.get("version", "")), "driver": str(top.get("Driver Version", ""))}
    return Measured(collectives.table(rows), {k: v for k, v in about.items() if v}, remarks)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _rate(cell: Any) -> float | None:
    """GB/s of '55.6'; 'N/A' and zero stand for no measurement."""
    if not re.fullmatch(r"\d{1,9}(\.\d*)?(e[+-]?\d{1,2})?", str(cell)):
        return None
    return float(cell) or None


def cards(bandwidths: pl.DataFrame) -> list[dict[str, Any]]:
    """The machine card: per link a latency t0 and a bandwidth B of t = t0 + bytes / B, as a planner reads it.

    Where there are too few sizes for a line, the best bandwidth that was measured, and no latency.
    """
    lines = fits(bandwidths, LINK)
    best = (
        bandwidths.filter(pl.col("algorithm_bandwidth").is_not_null())
        .group_by(LINK, maintain_order=True)
        .agg(best=pl.col("algorithm_bandwidth").max(), measured_at=pl.col("measured_at").max())
    )
    return (
        best.join(lines, on=LINK, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(bandwidth=pl.coalesce("bandwidth", "best"))
        .select(*LINK, "latency", "bandwidth", "half_size", "spread", "best", "measured_at")
        .to_dicts()
    )


def link_cards(found: Measured, loaded: pl.DataFrame | None = None) -> dict[str, dict[str, Any]]:
    """Per GPU the link card that the planner reads, as `lostflops.optimize.measure_link` makes it.

    Rates are of the memory node whose pinned copies are fastest; the other nodes' stand in `by_node`.
    Measured by torch, or where that saw no GPU by nvbandwidth, which tells no launch time and no sizes.
    """
    tools = found.bandwidths["tool"].unique().to_list()
    tool = "torch" if found.about.get("gpus", "0") != "0" or tools == ["torch"] else "nvbandwidth"
    rows = found.bandwidths.filter(pl.col("tool") == tool, pl.col("algorithm_bandwidth").is_not_null())
    made: dict[str, dict[str, Any]] = {}
    for device in rows["device"].drop_nulls().unique().sort().to_list():
        own = rows.filter(pl.col("device") == device)
        nodes = [_node(own.filter(pl.col("numa").eq_missing(n))) for n in own["numa"].unique().to_list()]
        nodes = sorted((n for n in nodes if _slowest(n) > 0), key=_slowest, reverse=True)
        if not nodes:
            continue
        best, *others = nodes
        both = _node(own.filter(pl.col("numa").eq_missing(best["numa_node"])), both=True)
        under = None
        if loaded is not None and loaded.height:
            here = pl.col("numa").eq_missing(best["numa_node"]) & (pl.col("device") == device)
            under = _node(loaded.filter(here))
        made[device] = {
            "kind": "link card",
            "format": 1,
            "gpu": found.about.get("gpu", device),
            "host": f"{found.about.get('machine', 'unknown')}, "
            f"{len(nodes)} memory node{'s' if len(nodes) > 1 else ''} measured",
            "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
            "tool": f"lostflops bench links {__version__}, by {tool}",
            "torch": found.about.get("torch"),
            "driver": found.about.get("driver"),
            **best,
            "both_directions": _ways(both),
            "under_gemm": _ways(under),
            "by_node": others,
            "remarks": [],
        }
    return made


def slowest(made: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The card of the GPU that the others wait for. Raises an error when there is none."""
    if not made:
        raise LostflopsError(
            "There is no link card: no pinned copies between host and GPU were measured both ways.",
            "run it where this Python's torch sees a GPU (`--python` names another Python).",
        )
    device = min(made, key=lambda each: _slowest(made[each]))
    card = made[device]
    return card if len(made) == 1 else {**card, "remarks": [f"{device}, the slowest of {len(made)} GPUs"]}


WAYS = {"device_to_host": "device to host", "host_to_device": "host to device"}


def _slowest(card: Mapping[str, Any]) -> float:
    """Bytes per second of pinned copies in the slower direction, 0 when one is unknown."""
    return min(card[way].get("pinned", {}).get("bytes_per_second", 0.0) for way in WAYS)


def _ways(node: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Both directions alone; None when nothing was measured."""
    return {way: node[way] for way in WAYS} if node and any(node[way] for way in WAYS) else None


def _node(rows: pl.DataFrame, both: bool = False) -> dict[str, Any]:
    """Rates of one GPU's copies with the memory of one node, by direction and kind of memory."""
    rows = rows.filter(pl.col("both").fill_null(False) == both)
    node: dict[str, Any] = {"numa_node": rows["numa"].first() if rows.height else None}
    for way, operation in WAYS.items():
        node[way] = {}
        for kind in ("pinned", "pageable"):
            copies = rows.filter(pl.col("operation") == operation, pl.col("host_memory") == kind).sort(
                "bytes"
            )
            if copies.height:
                node[way][kind] = _rate_of(copies)
    return node


def _rate_of(copies: pl.DataFrame) -> dict[str, Any]:
    """A rate as link cards hold it: the line through the times, else the best that was measured."""
    (line,) = cards(copies)
    timed = copies.filter(pl.col("time").is_not_null())
    return {
        "launch_ns": line["latency"],
        "bytes_per_second": line["bandwidth"] * 1e9,
        "spread": line["spread"],
        "half_size_bytes": line["half_size"],
        "sizes": timed.select("bytes", median_ns="time", repeats="repeats").to_dicts(),
    }


def document(found: Measured, loaded: pl.DataFrame | None = None) -> dict[str, Any]:
    """The machine card, as one JSON object."""
    return {
        "kind": "links",
        "format": 1,
        "lostflops": __version__,
        "measured_at": time.time_ns(),
        "about": dict(found.about),
        "remarks": list(found.remarks),
        "cards": cards(found.bandwidths),
        "link_cards": link_cards(found, loaded),
        "bandwidths": said(found.bandwidths),
    }
