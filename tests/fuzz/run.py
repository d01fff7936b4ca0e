"""`make fuzz`: break recordings for an hour on every core, and keep those that lostflops did not stand.

python -m fuzz.run [--seconds N] [--workers N] [--seed N] [--first N] [--keep FILE] [--only N] [--write]

A mutant fails when it ends in anything but an error of ours or an answer that adds up, takes more than 20 s
by the clock, or more than 1 GB of memory. It is worked on in a process that serves many; the ledgers of
several are asked for at once, as if they were ranks of one job. Where that fails each is asked by itself, and
where it ends the process each is tried in one of its own, with damaged tables in a further one, as users have
it. `--only` makes one mutant again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
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
from typing import IO, Any, NamedTuple

TESTS = Path(__file__).resolve().parents[1]
README = TESTS.parent / "benchmarks" / "README.md"
SLOWEST = 20.0  # seconds
STUCK = 2 * SLOWEST  # by then it is ended, and its stack is told
MOST_MEMORY = 1 << 30  # bytes
ENDS = 4 << 30  # bytes; a process that wants more is refused them
EVERY = 32  # of so many mutants one is asked by itself, and for its page, which costs four times as much,
EVERY_RECIPE = 128  # of so many one for every recipe,
EVERY_COMMAND = 512  # and of so many one as users do: with the command line, in a process of its own.
# The others are asked for their ledger so many at a time: each makes the same hundreds of Polars' plans.
TOGETHER = 24
# A process is replaced after so many: what a mutant left in it must not hide what another does.
SERVES = 2000


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


class _Serving:
    """Works on mutants in this process, and prints a line when it begins one and when that has ended."""

    def __init__(self, seed: int, home: Path, alone: bool) -> None:
        self.seed, self.home, self.alone = seed, home, alone
        self.waiting: list[_Waiting] = []  # opened, and not asked for their ledger yet

    def work_on(self, number: int) -> None:
        """Make a mutant and open it. Those that are asked for the ledger alone are asked together, later."""
        from fuzz import mutants, oracle

        folder, store = self.home / f"{number}", self.home / f"{number}-store"
        folder.mkdir()
        os.environ["LOSTFLOPS_CACHE"] = str(store)
        print(json.dumps({"begun": number}), flush=True)
        made = mutants.mutant(number, self.seed, folder)
        spent = _Spent(number, made.kind)
        page = number % EVERY == 0
        trace = None
        with spent:
            trace = oracle.opened(made.paths, store, salvage=made.salvage)
            if trace is None:
                spent.outcome = oracle.REFUSED
            elif page or self.alone or not trace.has("steps"):
                every = number % EVERY_RECIPE == 0
                spent.outcome = oracle.answered(trace, page=page, recipes=every)
            if number % EVERY_COMMAND == 0:
                oracle.commanded(made.paths, salvage=made.salvage)
        if spent.ended or trace is None:
            self._tell(spent)
        else:
            self.waiting.append(_Waiting(spent, trace))
        if len(self.waiting) >= TOGETHER:
            self.ask()

    def ask(self) -> None:
        """Ask those that wait for their ledger: together, and where that fails each by itself."""
        from fuzz import oracle
        from fuzz.together import together

        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        folder = self.home / "together"
        said = _Spent(waiting[0].spent.number, "together")
        with said:
            said.outcome = oracle.answered(together([w.trace for w in waiting], folder), page=False)
        alone = said.outcome != oracle.ANSWERED
        for spent, trace in waiting:
            if alone:
                with spent:
                    spent.outcome = oracle.answered(trace, page=False)
            else:
                spent.outcome = oracle.ANSWERED
                # Of what all took it counts as having taken the whole.
                spent.seconds += said.seconds
                spent.memory = max(spent.memory, said.memory)
        if said.failure and not any(w.spent.failure for w in waiting):
            numbers = [w.spent.number for w in waiting]
            waiting[0].spent.failure = f"only together with {numbers[1:]}: {said.failure}"
            waiting[0].spent.traceback = said.traceback
        for spent, _ in waiting:
            self._tell(spent)
        shutil.rmtree(folder, ignore_errors=True)

    def _tell(self, spent: _Spent) -> None:
        print(json.dumps(spent.told()), flush=True)
        shutil.rmtree(self.home / f"{spent.number}", ignore_errors=True)
        shutil.rmtree(self.home / f"{spent.number}-store", ignore_errors=True)


@dataclass
class _Spent:
    """What a mutant took, and how it ended. As a context it measures, and takes down what is raised."""

    number: int
    kind: str
    outcome: str = ""
    failure: str = ""
    traceback: str = ""
    seconds: float = 0.0
    memory: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.outcome or self.failure)

    def __enter__(self) -> _Spent:
        faulthandler.dump_traceback_later(STUCK, exit=True)
        _forget_peak()
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self.seconds += time.monotonic() - self._began
        self.memory = max(self.memory, _peak())
        faulthandler.cancel_dump_traceback_later()
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        # Polars' panics are no Exceptions.
        self.failure = f"{type(error).__name__}: {error}"[:2000]
        self.traceback = "".join(traceback.format_exception(error))[-3000:]
        return True

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = {"number": self.number, "seconds": self.seconds, "memory": self.memory}
        if self.failure:
            return {**told, "failure": f"{self.kind}: {self.failure}", "traceback": self.traceback}
        return {**told, "outcome": f"{self.kind}: {self.outcome}"}


class _Waiting(NamedTuple):
    spent: _Spent
    trace: Any


def serve(seed: int, first: int, stride: int, until: float, count: int, alone: bool) -> None:
    """Work on mutants `first`, `first + stride`, …, and print how each ended."""
    for place in (TESTS, TESTS / "ingest"):
        sys.path.insert(0, str(place))
    import gc

    from fuzz import mutants
    from lostflops.ingest import sources

    if not alone:  # starting a process costs more than reading such a small export
        sources._needs_a_process = _never
    resource.setrlimit(resource.RLIMIT_DATA, (ENDS, ENDS))
    home = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        mutants.prepared(home / "runs")
        gc.freeze()
        serving = _Serving(seed, home, alone)
        for number in range(first, first + stride * count, stride):
            if time.time() > until:
                break
            serving.work_on(number)
        serving.ask()
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
        last, left, _ = _served(
            tally, f"{seed},{following},{workers},{until},{SERVES},0", following - workers
        )
        # Those that a process left behind are tried once more, each in its own and as users have it.
        for number in left:
            _, again, how = _served(tally, f"{seed},{number},1,{time.time() + STUCK},1,1", number)
            if again:
                print(f"{number}: {how}", file=sys.stderr, flush=True)
                tally.failures.append({"number": number, "failure": how[:80], "traceback": how[-3000:]})
        following = last + workers


def _served(tally: Tally, words: str, last: int) -> tuple[int, list[int], str]:
    """Run one process and take down what it tells: its last mutant, those it left open, and how it ended."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.run", "--serve", words],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        last, left = _followed(tally, process.stdout, last)
        status = process.wait()
        said.seek(0)
        text = said.read()
    if status and not left:
        raise RuntimeError(text[-3000:])
    how = f"took more than {STUCK:.0f} s" if "Timeout (" in text else f"ended the process ({status})"
    return last, left, f"{how}\n{text}"


def _followed(tally: Tally, lines: IO[str] | None, last: int) -> tuple[int, list[int]]:
    """Take down what a process prints: the mutant that it began last, and those that it did not finish."""
    left: list[int] = []
    assert lines is not None
    for line in lines:
        told = json.loads(line)
        if "begun" in told:
            last = told["begun"]
            left.append(last)
            continue
        left.remove(told["number"])
        tally.slowest = max(tally.slowest, told["seconds"])
        if told["seconds"] > SLOWEST:
            told.setdefault("failure", f"took {told['seconds']:.0f} s")
        if told["memory"] > MOST_MEMORY:
            told.setdefault("failure", f"took {told['memory'] >> 20} MB")
        tally.memory = max(tally.memory, told["memory"])
        if "failure" in told:
            print(f"{told['number']}: {told['failure']}", file=sys.stderr, flush=True)
            tally.failures.append(told)
        else:
            tally.outcomes[told["outcome"]] += 1
    return last, left


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
        seed, first, stride, until, count, alone = given.serve.split(",")
        serve(int(seed), int(first), int(stride), float(until), int(count), alone == "1")
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
    mutants.prepared(home / "runs")
    made = mutants.mutant(number, seed, home / "job")
    print(f"{made.kind}, salvage {made.salvage}: {', '.join(map(str, made.paths))}", flush=True)
    trace = oracle.opened(made.paths, home / "store", salvage=made.salvage)
    print(oracle.REFUSED if trace is None else oracle.answered(trace, page=True, recipes=True))
    oracle.commanded(made.paths, salvage=made.salvage)


if __name__ == "__main__":
    main()
