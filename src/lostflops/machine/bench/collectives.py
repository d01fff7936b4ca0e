"""How fast collectives are: measured with torch.distributed, or by nccl-tests where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from lostflops import run_folder, units
from lostflops.errors import BadOption, LostflopsError, Unreadable, shown
from lostflops.machine.bench.fit import fits
from lostflops.machine.topology.tools import said
from lostflops.recipes.communication.bandwidth import bus_factor
from lostflops.tables import BANDWIDTHS
from lostflops.version import __version__

OPERATIONS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "all-to-all-uneven",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send-receive",
    "barrier",
)
# nccl-tests' programs.
PERF = {
    "all_reduce_perf": "all-reduce",
    "all_gather_perf": "all-gather",
    "reduce_scatter_perf": "reduce-scatter",
    "alltoall_perf": "all-to-all",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
    "gather_perf": "gather",
    "scatter_perf": "scatter",
    "sendrecv_perf": "send-receive",
}
CHOICE = ("all-gather", "reduce-scatter")  # whose result may lie in their input's buffer or elsewhere
SMALLEST, LARGEST, STEP = 8, {"nccl": 1 << 30, "gloo": 64 << 20}, 4
PATIENCE = 1800  # seconds for one program of nccl-tests


@dataclass(frozen=True)
class Wanted:
    """What to measure. Without sizes the backend's usual ones."""

    operations: Sequence[str] = OPERATIONS
    sizes: Sequence[int] = ()
    backend: str = ""
    warm_up: int = 5
    repeats: int = 20
    seconds: float = 5.0  # for one size of one operation, as far as fewer repeats allow

    def settings(self) -> dict[str, Any]:
        return {
            "operations": list(self.operations),
            "sizes": list(self.sizes) or _steps(SMALLEST, LARGEST["nccl"]),
            "largest": {} if self.sizes else LARGEST,
            "backend": self.backend,
            "meet": "",
            "warm_up": self.warm_up,
            "repeats": self.repeats,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Collectives:
    """Rows of `bandwidths`, what they were measured on, and what went wrong."""

    bandwidths: pl.DataFrame
    about: Mapping[str, str] = field(default_factory=dict[str, str])
    remarks: Sequence[str] = ()


def sizes(text: str) -> tuple[int, ...]:
    """'8,1K' as (8, 1024); '8-1K' from one to the other in steps of four."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            ends = units.size(low), units.size(high if dash else low)
        except BadOption:
            ends = 0, 0
        if not 0 < ends[0] <= ends[1] <= 1 << 40:
            raise BadOption(f"'{shown(text)}' is not a list of sizes.", "write `8-64M` or `8,4K,1M`.")
        found += _steps(*ends)
    return tuple(sorted(set(found)))


def _steps(low: int, high: int) -> list[int]:
    steps = [low]
    while steps[-1] * STEP <= high:
        steps.append(steps[-1] * STEP)
    return steps if steps[-1] == high or low == high else [*steps, high]


def operations(text: str) -> tuple[str, ...]:
    """Names of 'all-reduce,barrier', with underscores or dashes."""
    asked = tuple(word.strip().replace("_", "-") for word in text.split(",") if word.strip())
    for word in asked:
        if word not in OPERATIONS:
            raise BadOption(
                f"There is no collective '{shown(word)}'.", f"choose from {', '.join(OPERATIONS)}."
            )
    return asked


def measured(lines: Sequence[Mapping[str, Any]]) -> Collectives:
    """What the ranks' script wrote down."""
    about: dict[str, str] = {}
    remarks: list[str] = []
    rows: list[dict[str, Any]] = []
    for line in lines:
        if line.get("kind") == "job":
            about = {k: str(v) for k, v in line.items() if k not in ("kind", "planned")}
            continue
        if line.get("kind") == "failed":
            remarks.append(f"the measurement ended early: {line['remark']}")
            continue
        times = sorted(line.get("times", ()))
        row = {name: value for name, value in line.items() if name in BANDWIDTHS.schema}
        if times:
            row |= {"time": _median(times), "fastest": times[0], "slowest": times[-1], "repeats": len(times)}
        rows.append({**row, "tool": "torch", "backend": about.get("backend")})
    return Collectives(table(rows), about, remarks)


def _median(ordered: Sequence[int]) -> int:
    return round((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as `bandwidths`, with both bandwidths as far as they follow from time and size."""
    frame = pl.DataFrame(
        [{"rank": 0, "measured_at": time.time_ns(), **row} for row in rows],
        schema=BANDWIDTHS.schema,
        strict=False,
    )
    kind = pl.col("operation").str.strip_suffix("-uneven")
    rate = pl.when((pl.col("time") > 0) & (pl.col("bytes") > 0)).then(pl.col("bytes") / pl.col("time"))
    factor = bus_factor(kind, pl.col("group_size").cast(pl.Int64))
    return frame.with_columns(
        algorithm_bandwidth=pl.coalesce(rate, "algorithm_bandwidth"), bus_bandwidth=rate * factor
    )


def nccl_tests(wanted: Wanted, num_ranks: int) -> Collectives:
    """What the programs of nccl-tests that are on the PATH say of this machine's GPUs."""
    asked = wanted.settings()["sizes"]
    found: list[Collectives] = []
    for program, operation in PERF.items():
        path = shutil.which(program)
        if path is None or operation not in wanted.operations:
            continue
        words = [path, "-b", str(asked[0]), "-e", str(asked[-1]), "-f", str(STEP)]
        words += ["-g", str(num_ranks), "-w", str(wanted.warm_up), "-n", str(wanted.repeats)]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            found.append(Collectives(table([]), remarks=[f"{program}: {type(error).__name__}"]))
            continue
        one = read_nccl_tests(done.stdout.decode(errors="replace"), program, operation)
        if done.returncode:
            one = Collectives(
                one.bandwidths, one.about, [*one.remarks, f"{program}: status {done.returncode}"]
            )
        found.append(one)
    return together(found)


def together(found: Sequence[Collectives]) -> Collectives:
    return Collectives(
        pl.concat([table([]), *(one.bandwidths for one in found)]),
        {k: v for one in reversed(found) for k, v in one.about.items()},
        [remark for one in found for remark in one.remarks],
    )


def recorded(files: Iterable[Path]) -> Collectives:
    """What nccl-tests printed into files. Raises an error for a file of another program."""
    found: list[Collectives] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError as error:
            raise Unreadable(file, error) from error
        named = re.search(r"Collective test starting: (\w+)", text) or re.search(
            rf"\b({'|'.join(PERF)})(?:_mpi)?\b", text + " " + file.name
        )
        program = (named[1] if named else "").removesuffix("_mpi")
        if program not in PERF:
            raise LostflopsError(
                f"{shown(file.name)} does not say which program of nccl-tests printed it.",
                "name the file after it, as in all_reduce_perf.txt.",
            )
        one = read_nccl_tests(text, file.name, PERF[program])
        if not one.bandwidths.height:
            raise LostflopsError(f"{shown(file.name)} holds no table of nccl-tests.")
        found.append(one)
    return together(found)


def read_nccl_tests(text: str, name: str, operation: str) -> Collectives:
    """The table of a program of nccl-tests: a line per size, its halves out of place and in place."""
    ranks: dict[int, str] = {}
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for line in text.replace("\r", "").split("\n"):
        if match := re.match(r"#?\s*Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device", line):
            ranks[int(match[1])] = match[2]
            continue
        words = line.split()
        if not words or not words[0].isdecimal():
            continue
        # size count type [redop] [root], then time algbw busbw wrong, twice
        if len(words) < 11 or not words[1].isdecimal():
            remarks.append(f"{name}: left out a line that could not be read: '{shown(line.strip())}'")
            continue
        for in_place, part in ((False, words[-8:-4]), (True, words[-4:])):
            microseconds = _float(part[0])
            if microseconds is None:
                continue
            wrong = _float(part[3])
            row: dict[str, Any] = {"operation": operation, "bytes": int(words[0]), "tool": "nccl-tests"}
            row |= {"backend": "nccl", "time": round(1000 * microseconds)}
            row["correct"] = None if wrong is None else wrong < 1e-3  # older ones print the largest error
            # Torch leaves no choice for the others: there both halves are the same measurement.
            rows.append(row | ({"in_place": in_place} if operation in CHOICE else {}))
    size = {"group_size": len(ranks) or None, "hosts": len(set(ranks.values())) or None}
    if ranks and max(ranks) + 1 != len(ranks):
        remarks.append(
            f"{name}: it lists {len(ranks)} ranks and the highest is {max(ranks)}, so bus bandwidth "
            "is not known"
        )
        size = {"group_size": None, "hosts": None}
    if rows and not ranks:
        remarks.append(f"{name}: it does not list its ranks, so bus bandwidth is not known")
    best = _fastest({**row, **size} for row in rows)
    return Collectives(table(list(best)), {}, remarks)


def _fastest(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per size and buffer choice: the faster half where torch has no choice, wrong if either was."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        other = known.get(key := (row["bytes"], row.get("in_place")), row)
        checked = {row["correct"], other["correct"]} - {None}
        faster = min(row, other, key=lambda half: half["time"])
        known[key] = {**faster, "correct": all(checked) if checked else None}
    yield from known.values()


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e15 else None


def document(found: Collectives) -> dict[str, Any]:
    """What is kept in a run, as one JSON object."""
    return {
        "kind": "collectives",
        "format": 1,
        "lostflops": __version__,
        "measured_at": time.time_ns(),
        "about": dict(found.about),
        "remarks": list(found.remarks),
        "fits": fits(
            found.bandwidths, ["tool", "backend", "operation", "group_size", "hosts", "in_place"]
        ).to_dicts(),
        "bandwidths": said(found.bandwidths),
    }


def file_name(found: Collectives) -> str:
    """One file per backend and number of ranks: a repeated measurement takes the older one's place."""
    sizes = found.bandwidths["group_size"].drop_nulls()
    backend = found.bandwidths["backend"].drop_nulls()
    many = "unknown" if sizes.is_empty() else str(sizes.max())
    return run_folder.collectives(backend[0] if backend.len() else "unknown", many)
