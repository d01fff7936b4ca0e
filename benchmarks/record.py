"""What `lostflops record` costs a step: run with and without it in turn, CPU time compared.

    python benchmarks/record.py [PAIRS]

Wall time of a busy machine swings more than what is measured, so the job's CPU time per step is compared, of
steps of about 20 ms with one thread. The interval is the middle half of the pairs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = range(20, 140)
WINDOW = range(200, 205)
JOB = f"""
import json, os, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(256, 256) for _ in range(24)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
marks = []
for step in range({WINDOW.stop + 10}):
    optimizer.zero_grad()
    model(torch.randn(256, 256)).square().mean().backward()
    optimizer.step()
    marks.append(time.process_time_ns())
print(json.dumps(marks))
"""


def job(before: list[str]) -> list[int]:
    """The process's CPU time at the end of each step."""
    done = subprocess.run([*before, sys.executable, "-c", JOB], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def per_step(marks: list[int], steps: range) -> float:
    return statistics.median(marks[n] - marks[n - 1] for n in steps) / 1e6


def start_up(environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return time.perf_counter() - began


def main(pairs: int) -> None:
    log: list[float] = []
    window: list[float] = []
    starts: list[float] = []
    own: list[float] = []
    step = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            run = Path(folder) / f"run-{pair}"
            steps = f"{WINDOW.start}-{WINDOW.stop - 1}"
            recording = ["lostflops", "record", "--steps", steps, "--output", str(run), "--"]
            order = [[], [sys.executable, "-m", *recording]]
            found = {bool(before): job(before) for before in (order if pair % 2 else order[::-1])}
            step = per_step(found[False], STEPS)
            log.append(per_step(found[True], STEPS) / step - 1)
            window.append(per_step(found[True], WINDOW) / per_step(found[False], WINDOW) - 1)
            (steps_log,) = run.glob("node-*/steps-*.jsonl")
            lines = [json.loads(line) for line in steps_log.read_text().splitlines()]
            own += [line["own"] / 1e3 for line in lines if line.get("step") in STEPS]
            with_boot = {**os.environ, "PYTHONPATH": str(run / "boot")}
            starts.append(start_up(with_boot) - start_up(dict(os.environ)))
    print(f"CPU time of a step: {step:.1f} ms; {pairs} interleaved pairs, median (middle half)")
    for name, shares in (("step log", log), ("inside the window", window)):
        low, middle, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
        print(f"{name:18} {middle:+7.2%}  ({low:+.2%} to {high:+.2%})")
    print(f"between two steps  {statistics.median(own):7.1f} us, as the log says of itself")
    print(f"start of Python    {statistics.median(starts) * 1e3:+7.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
