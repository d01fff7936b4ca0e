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

from lostflops.capture import bench_collectives, topology_sysfs, topology_texts
from lostflops.capture.bench_collectives import Collectives as Measured
from lostflops.capture.bench_fit import fits
from lostflops.capture.topology import said
from lostflops.errors import LostflopsError, Unreadable, shown
from lostflops.version import __version__

FILE = "links.jsonl"
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
        (row["numa"], sorted(topology_texts.numbers(row["cpus"] or "") or ()))
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
    """What the script wrote down."""
    found = bench_collectives.measured(lines)
    remarks = list(found.remarks)
    if found.about.get("gpus") == "0":
        remarks.append("this Python's torch sees no GPU: only copies inside host memory were timed")
    return Measured(found.bandwidths.with_columns(backend=pl.lit(None, pl.String)), found.about, remarks)


def nvbandwidth() -> Measured:
    """What nvbandwidth measures, where it is on the PATH."""
    program = shutil.which("nvbandwidth")
    if program is None:
        return Measured(bench_collectives.table([]))
    try:
        done = subprocess.run(
            [program, "-j", "-t", *TESTS], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Measured(bench_collectives.table([]), remarks=[f"nvbandwidth: {type(error).__name__}"])
    try:
        return read_nvbandwidth(done.stdout.decode(errors="replace"), "nvbandwidth")
    except LostflopsError as error:
        return Measured(bench_collectives.table([]), remarks=[f"status {done.returncode}: {error.message}"])


def recorded(files: Iterable[Path]) -> Measured:
    """What `nvbandwidth -j` printed into files."""
    found: list[Measured] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError as error:
            raise Unreadable(file, error) from error
        found.append(read_nvbandwidth(text, file.name))
    return bench_collectives.together(found)


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
    return Measured(bench_collectives.table(rows), {k: v for k, v in about.items() if v}, remarks)


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


def document(found: Measured) -> dict[str, Any]:
    """The machine card, as one JSON object."""
    return {
        "kind": "links",
        "format": 1,
        "lostflops": __version__,
        "measured_at": time.time_ns(),
        "about": dict(found.about),
        "remarks": list(found.remarks),
        "cards": cards(found.bandwidths),
        "bandwidths": said(found.bandwidths),
    }
