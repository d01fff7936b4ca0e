"""What `lostflops watch` finds, how fast, how often it is wrong, and what it costs.

python benchmarks/watching.py [--steps N] [--seed N] [--write]

Noise is of the logarithm of step times, alike on all ranks, 2 % where not said otherwise, on top of noise of
the whole job. A change makes one of the ranks 5 % slower after 600 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from run import as_text, record
from sections import Found

from lostflops.watch.detection import Detector
from lostflops.watch.job import Watch
from lostflops.watch.steps import ROWS, StepRing

RANKS = 64
CHANGED_AT = 600
WITHIN = 30
Noise = npt.NDArray[np.float64]


def correlated(z: Noise, rho: float) -> Noise:
    """Noise of unit variance with that autocorrelation, from independent noise of unit variance."""
    found = z * np.sqrt(1 - rho * rho)
    found[0] = z[0]
    for step in range(1, len(found)):
        found[step] += rho * found[step - 1]
    return found


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Noise:
    return rng.standard_t(3, shape) / np.sqrt(3)


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Noise]] = {
    "normal, 1 %": lambda rng, shape: 0.01 * rng.standard_normal(shape),
    "normal": lambda rng, shape: 0.02 * rng.standard_normal(shape),
    "heavy tails (t3)": lambda rng, shape: 0.02 * heavy(rng, shape),
    "autocorrelation 0.5, 1 %": lambda rng, shape: 0.01 * correlated(rng.standard_normal(shape), 0.5),
    "autocorrelation 0.5": lambda rng, shape: 0.02 * correlated(rng.standard_normal(shape), 0.5),
    "autocorrelation 0.5, heavy tails": lambda rng, shape: 0.02 * correlated(heavy(rng, shape), 0.5),
    "autocorrelation 0.8": lambda rng, shape: 0.02 * correlated(rng.standard_normal(shape), 0.8),
    "one step of 100 takes three times as long": lambda rng, shape: (
        0.02 * rng.standard_normal(shape) + np.log(3) * (rng.random(shape) < 0.01)
    ),
}


def found(logs: Noise) -> list[tuple[int, int | None]]:
    """Step of the alarm and rank of every change that the watch finds in these logarithms of durations."""
    steps, detector = StepRing(), Detector()
    steps.reserve(list(range(logs.shape[1])))
    steps.first = 0
    alarms: list[tuple[int, int | None]] = []
    for step, row in enumerate(1e8 * np.exp(logs)):
        steps.duration[step % ROWS] = row
        alarms += [(step, change.column) for change in detector.take(steps, steps.take())]
    return alarms


def examined(kind: str, healthy: int, trials: int, seed: int) -> list[str]:
    """A row: alarms in so many healthy steps, and after how many steps the change is found."""
    rng = np.random.default_rng(seed)
    make = KINDS[kind]
    false = 0
    for _ in range(max(1, healthy // 100_000)):
        job = 0.02 * correlated(rng.standard_normal((min(healthy, 100_000), 1)), 0.5)
        false += len(found(make(rng, (len(job), RANKS)) + job))
    after: list[float] = []
    for _ in range(trials):
        logs = make(rng, (CHANGED_AT + 200, RANKS))
        logs[CHANGED_AT:, 5] += np.log(1.05)
        right = [step for step, rank in found(logs) if rank == 5 and step >= CHANGED_AT]
        after.append(right[0] - CHANGED_AT + 1 if right else np.inf)
    in_time = sum(steps <= WITHIN for steps in after)
    ordered = sorted(after)
    nine = ordered[max(0, int(0.9 * len(after)) - 1)]
    middle = ordered[len(after) // 2]
    return [kind, str(false), f"{middle:.0f}", f"{nine:.0f}", f"{in_time} of {trials}"]


def cost(ranks: int, looks: int) -> tuple[float, float]:
    """Processor seconds per look, and the slowest look, where each finds one more step of every rank."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        files = []
        for rank in range(ranks):
            node = run / f"node-{rank // 8:04d}"
            node.mkdir(exist_ok=True)
            path = node / f"steps-{rank:05d}-a0.jsonl"
            who = {
                "kind": "rank",
                "format": 1,
                "rank": rank,
                "world": ranks,
                "monotonic": 0,
                "wall": time.time_ns(),
            }
            path.write_text(json.dumps(who) + "\n")
            files.append(path)
        watch = Watch(run)
        spent: list[float] = []
        for step in range(looks):
            for path, duration in zip(
                files, (1e9 * np.exp(0.02 * rng.standard_normal(ranks))).tolist(), strict=True
            ):
                line = (
                    f'{{"step":{step},"end":{(step + 1) * 10**9},"duration":{int(duration)},"core_wait":0,'
                    f'"own":1000,"micro_steps":1,"optimizer":1000,"data":0,"checkpoint":0,"gc":0,"window":0}}\n'
                )
                with path.open("a") as file:
                    file.write(line)
            before = time.process_time()
            watch.look(now=float(step))
            watch.now()
            spent.append(time.process_time() - before)
    settled = spent[looks // 3 :]
    return float(np.mean(settled)), max(settled)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000, help="healthy steps of each kind of noise")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--looks", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    header = (
        f"noise of {RANKS} ranks", f"alarms in {given.steps:,} healthy steps",
        "steps until 5 % is found, median", "nine of ten", f"within {WITHIN} steps",
    )  # fmt: skip
    rows: list[list[str]] = []
    for kind in KINDS:
        rows.append(examined(kind, given.steps, given.trials, given.seed))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    mean, most = cost(1024, given.looks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    said = (
        f"At 1,024 ranks and one step per second, one look a second takes {100 * mean:.1f} % of a core on "
        f"average and {1e3 * most:.0f} ms at most (processor time)."
    )
    print(f"{peak:.0f} MiB at most in this process", file=sys.stderr)
    text = as_text(Found(header, rows, said, f"lostflops {version('lostflops')}"), 1, load)
    print(text)
    if given.write:
        record("watching", text)


if __name__ == "__main__":
    main()
