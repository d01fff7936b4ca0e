"""`make fuzz`: break recordings for an hour on every core, and keep those that lostflops did not stand.

python -m fuzz.run [--seconds N] [--workers N] [--seed N] [--keep FOLDER] [--only NUMBER] [--write]

A mutant fails when it ends in anything but an error of ours or an answer that adds up, takes more than 20 s
by the clock, or more than 1 GB of memory. It is worked on in a process that serves many, so that a crash
costs that process alone; one that ended its process is tried once more as users have it, with tables on which
Polars can abort in a process of their own. `--only` makes one mutant again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

TESTS = Path(__file__).resolve().parents[1]
README = TESTS.parent / "benchmarks" / "README.md"
SLOWEST = 20.0  # seconds
STUCK = 2 * SLOWEST  # by then it is ended, and its stack is told
MOST_MEMORY = 1 << 30  # bytes
EVERY = 8  # of so many mutants one is asked for its page too, which costs as much as the rest,
EVERY_RECIPE = 64  # and of so many one for every recipe
# A process is replaced after so many: what a mutant left in it must not hide what another does.
SERVES = 2000


STUCK_SAID = "took more than"


@dataclass
class Tally:
    """What became of the mutants."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    slowest: float = 0.0
    memory: int = 0

    @property
    def tried(self) -> int:
        return self.outcomes.total() + len(self.failures)


def serve(seed: int, first: int, stride: int, until: float, count: int, apart: bool) -> None:
    """Work on mutants `first`, `first + stride`, …, and print a line for each."""
    for place in (TESTS, TESTS / "ingest"):
        sys.path.insert(0, str(place))
    import gc

    from fuzz import mutants, oracle
    from lostflops.ingest import sources

    if not apart:  # starting a process costs more than reading such a small export
        sources._needs_a_process = _never
    gc.freeze()
    home = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    os.environ["LOSTFLOPS_CACHE"] = str(home / "store")
    try:
        for number in range(first, first + stride * count, stride):
            if time.time() > until:
                return
            folder = home / "job"
            folder.mkdir()
            print(json.dumps({"begun": number}), flush=True)
            faulthandler.dump_traceback_later(STUCK, exit=True)
            told: dict[str, Any] = {"number": number}
            made = mutants.mutant(number, seed, folder)
            began = time.monotonic()
            _forget_peak()
            try:
                told["outcome"] = f"{made.kind}: " + oracle.checked(
                    made.paths,
                    home / "store",
                    salvage=made.salvage,
                    page=number % EVERY == 0,
                    recipes=number % EVERY_RECIPE == 0,
                )
            except BaseException as error:  # Polars' panics are no Exceptions
                told["failure"] = f"{made.kind}: {type(error).__name__}: {error}"[:2000]
                told["traceback"] = traceback.format_exc()[-3000:]
            faulthandler.cancel_dump_traceback_later()
            told["seconds"] = time.monotonic() - began
            told["memory"] = _peak()
            print(json.dumps(told), flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(home / "store", ignore_errors=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _never(path: Path) -> bool:
    return False


def _forget_peak() -> None:
    """Have the kernel count the most memory of this process from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The most memory that this process had since, in bytes."""
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _watched(tally: Tally, seed: int, worker: int, workers: int, first: int, until: float) -> None:
    """Run processes one after the other until the time is up, and take down how each mutant ended."""
    following = first + worker
    while time.time() < until:
        last, ended = _served(tally, f"{seed},{following},{workers},{until},{SERVES},0", following - workers)
        if (
            ended
        ):  # once more, with what Polars can abort on in a process of its own; stuck, it would be so again
            again = ended if STUCK_SAID in ended else ""
            if not again:
                _, again = _served(tally, f"{seed},{last},1,{time.time() + STUCK},1,1", last)
            if again:
                tally.failures.append({"number": last, "failure": again[:80], "traceback": again[-3000:]})
        following = last + workers


def _served(tally: Tally, words: str, last: int) -> tuple[int, str]:
    """Run one process and take down what it tells: its last mutant, and how that ended it, where it did."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.run", "--serve", words],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        last, finished = _followed(tally, process.stdout, last)
        status = process.wait()
        said.seek(0)
        text = said.read()
    if finished and status:
        raise RuntimeError(text[-3000:])
    if finished:
        return last, ""
    how = f"{STUCK_SAID} {STUCK:.0f} s" if "Timeout (" in text else f"ended the process ({status})"
    return last, f"{how}\n{text}"


def _followed(tally: Tally, lines: IO[str] | None, last: int) -> tuple[int, bool]:
    """Take down what a process prints: the mutant that it began last, and whether it finished that."""
    finished = True
    assert lines is not None
    for line in lines:
        told = json.loads(line)
        finished = "begun" not in told
        if not finished:
            last = told["begun"]
            continue
        tally.slowest = max(tally.slowest, told["seconds"])
        if told["seconds"] > SLOWEST:
            told.setdefault("failure", f"took {told['seconds']:.0f} s")
        if told["memory"] > MOST_MEMORY:
            told.setdefault("failure", f"took {told['memory'] >> 20} MB")
        tally.memory = max(tally.memory, told["memory"])
        if "failure" in told:
            tally.failures.append(told)
        else:
            tally.outcomes[told["outcome"]] += 1
    return last, finished


def fuzzed(seconds: float, workers: int, seed: int, first: int = 0) -> Tally:
    """What became of as many mutants as fit into the time."""
    tally, until = Tally(), time.time() + seconds
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(_watched, tally, seed, w, workers, first, until) for w in range(workers)]:
            done.result()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write failures into this file, as JSON")
    parser.add_argument("--only", type=int, help="make this mutant, ask about it, and leave it there")
    parser.add_argument("--write", action="store_true", help="write the count into benchmarks/README.md")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        seed, first, stride, until, count, apart = given.serve.split(",")
        serve(int(seed), int(first), int(stride), float(until), int(count), apart == "1")
        return
    if given.only is not None:
        _again(given.seed, given.only)
        return
    began = time.time()
    tally = fuzzed(given.seconds, given.workers, given.seed, given.first)
    lines = told(tally, time.time() - began, given.workers, given.seed)
    print("\n".join(lines))
    for failure in tally.failures[:20]:
        print(f"\n{failure['number']}: {failure['failure']}\n{failure.get('traceback', '')[-1500:]}")
    if given.keep:
        given.keep.write_text(json.dumps(tally.failures, indent=1))
    if given.write:
        _write(lines)
    sys.exit(1 if tally.failures else 0)


def told(tally: Tally, seconds: float, workers: int, seed: int) -> list[str]:
    """The outcome as lines of Markdown."""
    lines = [
        (
            f"{tally.tried:,} mutants in {seconds / 60:.0f} min, processes: {workers}, seed {seed}; failed: "
            f"{len(tally.failures)}; slowest {tally.slowest:.1f} s, most memory {tally.memory >> 20} MB."
        ),
        "",
        "| input | refused in words | no ledger, and why | answered, adds up |",
        "| --- | --- | --- | --- |",
    ]
    kinds = sorted({name.partition(": ")[0] for name in tally.outcomes})
    ends = ("refused", "no ledger", "answered")
    return lines + [
        f"| {kind} | " + " | ".join(f"{tally.outcomes[f'{kind}: {end}']:,}" for end in ends) + " |"
        for kind in kinds
    ]


def _write(lines: list[str]) -> None:
    """Put the lines between their marks in benchmarks/README.md."""
    begin, end = "<!-- fuzz -->", "<!-- /fuzz -->"
    before, _, rest = README.read_text().partition(begin)
    _, _, after = rest.partition(end)
    README.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")


def _again(seed: int, number: int) -> None:
    for place in (TESTS, TESTS / "ingest"):
        sys.path.insert(0, str(place))
    from fuzz import mutants, oracle

    home = Path(tempfile.mkdtemp(prefix=f"mutant-{number}-"))
    os.environ["LOSTFLOPS_CACHE"] = str(home / "store")
    (home / "job").mkdir()
    made = mutants.mutant(number, seed, home / "job")
    print(f"{made.kind}, salvage {made.salvage}: {', '.join(map(str, made.paths))}", flush=True)
    print(oracle.checked(made.paths, home / "store", salvage=made.salvage, page=True, recipes=True))


if __name__ == "__main__":
    main()
