"""What exports cost: a made-up run of many events to each format of other tools.

python benchmarks/exports.py            prints the table; `run.py --only exports` writes it into the README
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from processes import lostflops
from sections import Found, Say, spread, verdict

from lostflops.store.parts import write_part
from lostflops.store.trace import FORMAT, Manifest, write_manifest
from lostflops.tables import TABLES
from lostflops.version import __version__

RANKS = 8
TO_PERFETTO, TO_PARAVER = 10_000_000, 250_000  # events of all ranks; kernels
LEAST_A_SECOND, MOST_MEMORY, MOST_SECONDS = 2_000_000, 1 << 30, 5.0
NAMES = [f"void kernel_{n}<float, {n}>(float const*, float*, int)" for n in range(200)]


def exports(repeat: int, big: bool, say: Say) -> Found:
    """Ten million events to Perfetto, and a quarter of a million kernels to Paraver."""
    rows: list[list[str]] = []
    met: list[bool] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for to, events, ending, more in (
            ("perfetto", TO_PERFETTO, "pftrace", ["--bare"]),
            ("chrome", TO_PERFETTO // 10, "folder", ["--bare"]),
            ("paraver", 2 * TO_PARAVER, "prv", ["--bare"]),
        ):
            run = made(folder / f"{to}.run", events)
            output = folder / f"out.{ending}"
            walls, peak, size = list[float](), 0, 0
            for turn in range(repeat):
                say(f"{to}, turn {turn + 1} of {repeat}")
                words = ("export", str(run), "--to", to, *more, "--output", str(output))
                cost = lostflops(*words, memory=True)
                walls.append(cost.wall)
                peak = max(peak, cost.tree_peak)
                size = _emptied(folder, "out")
            speed = events / min(walls)
            rows.append(
                [to, f"{events:,}", spread(walls), f"{speed / 1e6:.2f}", f"{peak / 2**20:,.0f}",
                 f"{size / 1e6:,.0f}", f"{size / events:.0f}"]
            )  # fmt: skip
            if to == "perfetto":
                met.append(speed >= LEAST_A_SECOND and peak <= MOST_MEMORY)
            if to == "paraver":
                met.append(min(walls) <= MOST_SECONDS)
    return Found(
        ("to", "events", "s (from, to)", "million events/s", "peak MiB", "MB", "bytes an event"),
        rows,
        verdict(met[0], "2 million events/s in 1 GiB to Perfetto")
        + " "
        + verdict(met[1], "250,000 kernels to Paraver in 5 s"),
    )


def _emptied(folder: Path, name: str) -> int:
    """The bytes of what was written, which is removed."""
    size = 0
    for file in sorted(folder.rglob("*"), reverse=True):
        if file.relative_to(folder).parts[0].startswith(name):
            if file.is_file():
                size += file.stat().st_size
                file.unlink()
            else:
                file.rmdir()
    return size


def made(run: Path, events: int) -> Path:
    """A run of `RANKS` ranks: kernels on two streams, and the calls that launched them."""
    run.mkdir()
    each = events // 2 // RANKS
    rng = np.random.default_rng(20)
    name = pl.Series(NAMES, dtype=pl.String).cast(TABLES["kernels"].schema["name"])
    for rank in range(RANKS):
        start = np.cumsum(rng.integers(2_000, 20_000, each))
        length = rng.integers(1_000, 30_000, each)
        correlation = np.arange(1, each + 1)
        # Two streams take turns, so that a kernel may last until the next but one begins.
        end = np.minimum(start + length, np.append(start[2:], [start[-1] + 40_000] * 2))
        which = name.gather(rng.integers(0, len(NAMES), each))
        tables = {
            "kernels": pl.DataFrame(
                {
                    "start": start, "end": end, "device": rank % 8, "stream": 7 + 13 * (correlation % 2),
                    "name": which, "grid": rng.integers(1, 4096, each), "block": 256, "registers": 64,
                    "shared_memory": 49152, "correlation": correlation, "family": "gemm",
                    "precision": "bf16", "continued": False, "launch_start": start - 6_000,
                    "launch_end": start - 3_000, "thread": 4242, "operator": "aten::mm", "phase": "forward",
                }
            ),
            "launches": pl.DataFrame(
                {
                    "start": start - 1_900, "end": start - 100, "thread": 4242, "name": "cudaLaunchKernel",
                    "correlation": correlation,
                }
            ),
            "steps": pl.DataFrame({"start": [0], "end": [int(end[-1])], "step": [1], "complete": [True]}),
            "ranks": pl.DataFrame(
                {"start": [0], "end": [int(end[-1])], "device": [rank % 8], "device_kind": ["gpu"],
                 "world_size": [RANKS], "main_thread": [4242], "host": [0]}
            ),
        }  # fmt: skip
        kernels = tables["kernels"].with_columns(
            launch_start=pl.col("start") - 1_900, launch_end=pl.col("start") - 100
        )
        tables["kernels"] = kernels
        for table, rows in tables.items():
            full = rows.with_columns(rank=pl.lit(rank, dtype=pl.Int32))
            write_part(run, table, rank, TABLES[table].conform(full))
    manifest = Manifest(FORMAT, __version__, "made up", 0, [], sorted(tables), events, [])
    write_manifest(run, manifest)
    return run


def main() -> int:
    found = exports(1, False, lambda what: print(what, file=sys.stderr, flush=True))
    for row in (found.header, *found.rows):
        print("  ".join(f"{cell:>18}" for cell in row))
    print(found.summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
