"""Runs small training jobs for the tests of `record`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# What every script begins with: a model so small that a step is over in a millisecond. What imports leave is
# never garbage: without collections torch and its compiler are there in a fifth less time, and frozen it is
# not looked through again where Python ends, for half a second.
_TORCH = """
import gc
gc.disable()
import os, signal, sys, time
import torch
"""
# Torch loads its compiler for the first optimizer and the first profiler, even where nothing is compiled, and
# for itself what that asks of each operator's shapes. Without them a job is over in a third of the processor
# time, and does and records the same.
_WITHOUT_SHAPES = """
import sys, types
sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
"""
_WITHOUT_COMPILER = """
for name, holds in {
    "torch._dynamo": {"disable": lambda called, *_, **__: called, "graph_break": lambda *_, **__: None},
    "torch._inductor": {},
    "torch._inductor.config": {"triton": types.SimpleNamespace(cudagraphs=False)},
}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(holds)
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, sys.modules[name])
"""
_MODEL = """
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
gc.freeze()
gc.enable()

def train(steps, batches=None):
    batches = batches or iter(lambda: torch.randn(4, 8), None)
    for _, batch in zip(range(steps), batches):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""
TRAIN = _TORCH + _MODEL
TRAIN_PLAINLY = _WITHOUT_SHAPES + _TORCH + _WITHOUT_COMPILER + _MODEL


@dataclass(frozen=True)
class Recorded:
    """What a recorded job left."""

    run: Path
    status: int
    out: str
    said: str

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        (file,) = self.run.glob(f"node-*/steps-{rank:05d}-a0.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.lines(rank) if "step" in line]

    def windows(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.lines(rank) if line.get("kind") == "window"]

    def window(self, rank: int = 0) -> dict[str, Any]:
        (window,) = self.windows(rank)
        return window


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOSTFLOPS", "PYTHONPATH", "SLURM_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def record(folder: Path, *command: str, options: Sequence[str] = ("--steps", "3-5"), **more: str) -> Recorded:
    run = folder / "run"
    before = [sys.executable, "-m", "lostflops", "record", *options, "--output", str(run), "--"]
    done = subprocess.run(
        [*before, *command], env=environment(**more), capture_output=True, text=True, timeout=120, cwd=folder
    )
    return Recorded(run, done.returncode, done.stdout, done.stderr)


def record_script(folder: Path, script: str, compiler: bool = False, **given: Any) -> Recorded:
    """Record a script that begins as `TRAIN`, with torch's compiler only where it has to do with that."""
    pytest.importorskip("torch")
    path = folder / "train.py"
    path.write_text((TRAIN if compiler else TRAIN_PLAINLY) + script)
    return record(folder, sys.executable, "train.py", **given)
