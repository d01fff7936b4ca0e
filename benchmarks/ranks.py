"""How what `lostflops why` takes grows with the ranks of a job.

    .venv/bin/python benchmarks/ranks.py --ranks 8 64 256 1024 [--steps 15] [--layers 8] [--jobs FOLDER]

Jobs of two tensor-parallel ranks, four stages and replicas are simulated, a trace of about 100,000 events per
rank. That takes about a second of processor time a rank, and is not measured. Each job is asked for its page
from an empty store, then again from what was kept. Processor time is that of the command with all processes
that it starts: a busy machine changes it least. Memory is added up over the processes that live at one time.
With `--jobs`, simulated jobs are kept in that folder, and taken from there. `--write` puts the table into
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import Cost, lostflops

from lostflops.ingest import job
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.run_folder import TRUTH

COMPARED_WITH = 64  # ranks, whose cost per rank is 1
MOST_PER_RANK = 1.3  # times that
MOST_COLD, MOST_AGAIN, MOST_BYTES = 300.0, 10.0, 8 << 30  # of 1,024 ranks
LARGEST = 1024
GIB = 1 << 30
HEADER = (
    "ranks", "events", "from cold: processor, s", "by the clock, s", "memory at most, GiB",
    "processor per rank, s", "of that at 64 ranks", "again: processor, s", "by the clock, s", "load before",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What one job took."""

    ranks: int
    events: int
    cold: Cost
    again: Cost
    load: float

    @property
    def per_rank(self) -> float:
        return self.cold.cpu / self.ranks


def measured(ranks: int, traces: Path) -> Measured:
    with tempfile.TemporaryDirectory(dir=traces.parent) as folder:
        store, load = Path(folder), os.getloadavg()[0]
        cold = lostflops("why", traces, store=store, memory=True)
        again = lostflops("why", traces, store=store)
        os.environ["LOSTFLOPS_CACHE"] = folder
        events = job.open(traces).manifest.num_events
    return Measured(ranks, events, cold, again, load)


def simulated(ranks: int, steps: int, layers: int, folder: Path) -> Path:
    """The traces of a job of so many ranks; what lies there already is taken."""
    place = folder / f"ranks-{ranks}-steps-{steps}-layers-{layers}"
    if not (place / TRUTH).exists():
        made = SimulatedJob(strategy(f"tp2-pp4-dp{ranks // 8}", ranks), steps=steps, layers=layers)
        simulate(made, place)
    return place


def row(found: Measured, whole: Measured | None) -> list[str]:
    return [
        f"{found.ranks:,}",
        f"{found.events:,}",
        f"{found.cold.cpu:.1f}",
        f"{found.cold.wall:.0f}",
        f"{found.cold.tree_peak / GIB:.2f}",
        f"{found.per_rank:.3f}",
        f"{found.per_rank / whole.per_rank:.2f}" if whole else "",
        f"{found.again.cpu:.1f}",
        f"{found.again.wall:.1f}",
        f"{found.load:.0f}",
    ]


def summary(found: list[Measured], whole: Measured | None) -> str:
    """Which targets are met: those of 1,024 ranks are asked of 1,024 ranks."""
    largest = found[-1]
    if largest.ranks != LARGEST or whole is None:
        return f"The targets are those of {LARGEST:,} ranks beside {COMPARED_WITH}: not measured here."
    held = {
        f"{MOST_COLD:.0f} s from cold": largest.cold.wall <= MOST_COLD,
        f"{MOST_BYTES / GIB:.0f} GiB": largest.cold.tree_peak <= MOST_BYTES,
        f"{MOST_AGAIN:.0f} s again": largest.again.wall <= MOST_AGAIN,
        f"{MOST_PER_RANK} times the cost per rank of {COMPARED_WITH} ranks": (
            largest.per_rank <= MOST_PER_RANK * whole.per_rank
        ),
    }
    return " ".join(f"Target {what}: {'met' if met else 'missed'}." for what, met in held.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 256], help="multiples of 8")
    parser.add_argument("--steps", type=int, default=15, help="15: about 100,000 events a rank")
    parser.add_argument("--layers", type=int, default=8, help="of the model")
    parser.add_argument("--jobs", type=Path, help="keep simulated jobs here")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder: Path = given.jobs or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
        lostflops("--help")  # the first start meets code that is not compiled yet
        found = list[Measured]()
        for ranks in sorted(given.ranks):
            print(f"{ranks} ranks", file=sys.stderr, flush=True)
            found.append(measured(ranks, simulated(ranks, given.steps, given.layers, folder)))
            print(row(found[-1], None), file=sys.stderr, flush=True)
    whole = next((one for one in found if one.ranks == COMPARED_WITH), None)
    align = ["---:"] * len(HEADER)
    rows = [HEADER, align, *(row(one, whole) for one in found)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    import run

    text = f"{table}\n\n{summary(found, whole)}\n\n*{run.machine(1, max(one.load for one in found))}*"
    print(text)
    if given.write:
        run.record("ranks", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
