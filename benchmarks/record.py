"""What `lostflops record` costs a training job.

CPU time is compared, because wall time of a busy machine swings more than what is measured. One process has
the step log switched on and off every few steps, and a window opened every few steps, so that whatever else
the machine does meets both; what is compared are neighbours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median

BLOCK = 5  # steps with the log, then as many without
BLOCKS = 160
WINDOW, EVERY, WINDOWS = 5, 15, 12
WARM_UP = 20
STEP_MS = 20  # CPU time; the job takes as many layers as that needs here
JOB = f"""
import json, sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
clock = sys.modules["lostflops_recorder.clock"].CLOCK
steps, cpu = [], time.process_time_ns

def network(layers):
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(layers)])

def cost(model):
    costs = []
    for _ in range(15):
        began = cpu()
        model(torch.randn(256, 256)).square().mean().backward()
        costs.append(cpu() - began)
    return sorted(costs)[7]

model = network(max(1, round(24 * {STEP_MS}e6 / cost(network(24)))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
# Called when the optimizer has finished, before lostflops does anything.
optimizer.register_step_post_hook(lambda *_: steps[-1].append(cpu()))

def step():
    steps.append([clock.on, clock.window is not None and clock.window.recording, cpu()])
    optimizer.zero_grad()
    model(torch.randn(256, 256)).square().mean().backward()
    optimizer.step()
    steps[-1].append(cpu())

for _ in range({WARM_UP}): step()
for block in range({BLOCKS}):
    clock.on = block % 2 == 0
    for _ in range({BLOCK}): step()
clock.on = True
for _ in range({EVERY * WINDOWS + WINDOW}): step()
print(json.dumps(steps))
"""
# The step after which the second part of the job begins, as the log counts.
FIRST_WINDOW = WARM_UP + BLOCK * BLOCKS // 2 + EVERY - WINDOW


@dataclass
class Measured:
    """Ratios of neighbours, and seconds."""

    step: list[float] = field(default_factory=list)  # CPU time without anything
    log: list[float] = field(default_factory=list)
    window: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)  # what the log says of itself
    command: list[float] = field(default_factory=list)  # `lostflops record -- true`, less `true`
    start: list[float] = field(default_factory=list)  # a Python that imports PyTorch, with less without
    writing: list[float] = field(default_factory=list)  # a window


def measure(into: Measured) -> None:
    """One turn."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        steps = ["--steps", f"{FIRST_WINDOW}-{FIRST_WINDOW + WINDOW - 1}", "--every", str(EVERY)]
        command = [sys.executable, "-m", "lostflops", "record", *steps, "--output", str(run), "--"]
        done = subprocess.run([*command, sys.executable, "-c", JOB], capture_output=True, check=True)
        lines = json.loads(done.stdout)[WARM_UP:]
        logged = [(line[0], line[-1] - line[2]) for line in lines[: BLOCK * BLOCKS]]
        inside = [(line[1], line[3] - line[2]) for line in lines[BLOCK * BLOCKS :]]
        into.step.append(median(cost for on, cost in logged if not on) / 1e9)
        into.log += _against_neighbours(logged)
        into.window += _against_neighbours(inside)
        log = next(run.glob("node-*/steps-*.jsonl")).read_text().splitlines()
        entries = [json.loads(line) for line in log]
        into.between.append(median(e["own"] for e in entries if e.get("step", 0) in range(5, WARM_UP)) / 1e9)
        into.writing += [e["took"] / 1e9 for e in entries if e.get("file")]
        with_boot = {**os.environ, "PYTHONPATH": str(run / "boot")}
        importing = [sys.executable, "-c", "import torch"]
        into.start.append(_seconds(importing, with_boot) - _seconds(importing, os.environ))
        recording = ["-m", "lostflops", "record", "--output", str(Path(folder, "none")), "--", "true"]
        into.command.append(
            _seconds([sys.executable, *recording], os.environ) - _seconds(["true"], os.environ)
        )


def _against_neighbours(steps: Sequence[tuple[bool, int]]) -> Iterator[float]:
    """How much more a block of steps with something costs than the blocks without around it."""
    blocks = [(state, [cost for _, cost in of]) for state, of in groupby(steps, key=lambda step: step[0])]
    for before, (state, costs), after in zip(blocks, blocks[1:], blocks[2:], strict=False):
        if state:
            yield median(costs) / median([*before[1], *after[1]]) - 1


def _seconds(command: Sequence[str], environment: os._Environ[str] | dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
