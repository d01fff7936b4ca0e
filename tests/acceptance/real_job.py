"""A small training job on the processor, with one fault or none; it writes how long steps and fault took.

python real_job.py --fault sleep --times times.json
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 22
OUTLIER = 12
EACH_STEP = ("sleep", "loop", "gc", "save", "logging")


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random samples; making one takes `ms` of Python."""

    def __init__(self, shape: tuple[int, ...], ms: float) -> None:
        self.shape, self.ms = shape, ms

    def __len__(self) -> int:
        return 8 * STEPS + 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        spin(self.ms)
        return torch.full(self.shape, 0.01 * index), torch.tensor(index % 10)


def spin(ms: float) -> None:
    """Python that computes for a while."""
    until = time.perf_counter() + ms / 1000
    total = 0
    while time.perf_counter() < until:
        total += sum(range(20_000))


def mlp(width: int = 1024) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), (width,)


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    channels = (3, 24, 32, 32)
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), (3, 48, 48)


class Job:
    """Trains, and notes when each step ended and what the fault took of it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.fault: str = given.fault
        self.rank = int(os.environ.get("RANK", 0))
        self.faulty = given.rank is None or given.rank == self.rank
        self.name: str = given.function
        self.ends: list[float] = []
        self.busy: list[float] = []  # processor time and planned sleep so far, at each step's end
        self.slept = 0.0
        self.lost: list[float] = []
        self.heap: list[Any] = []
        self.kept = Path(given.times).with_suffix(".pt")

    def planted(self, ms: float) -> None:
        """The fault of this step, under the name of a function that the page cannot know."""
        begun = time.perf_counter()
        made_up: dict[str, Any] = {"self": self, "ms": ms}
        code = f"def {self.name}(job, ms):\n    return job.pause(ms)\n"
        exec(compile(code, "lessons.py", "exec"), made_up)
        made_up[self.name](self, ms)
        self.lost.append(time.perf_counter() - begun)

    def pause(self, ms: float) -> None:
        if self.fault == "sleep":
            time.sleep(ms / 1000)
            self.slept += ms / 1000
        elif self.fault in ("loop", "outlier"):
            spin(ms)
        elif self.fault == "gc":
            gc.collect()
        elif self.fault == "save":
            # One file, as the last checkpoint is: to delete a file takes longer here than to write it.
            until = time.perf_counter() + ms / 1000
            torch.save(self.model.state_dict(), self.kept)
            while time.perf_counter() < until:
                torch.save(self.model.state_dict(), self.kept)
        elif self.fault == "logging":
            for number in range(int(8 * ms)):
                logging.info("step %d, loss %f", number, ms)

    def train(self, given: argparse.Namespace) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.model, shape = cnn() if given.model == "cnn" else mlp()
        if self.fault == "gc":
            self.heap = [{"number": [n]} for n in range(150_000)]
        log = Path(given.times).with_suffix(".log")
        logging.basicConfig(filename=log, level=logging.INFO)
        wrapped: nn.Module = self.model
        if "WORLD_SIZE" in os.environ:
            torch.distributed.init_process_group("gloo")
            wrapped = nn.parallel.DistributedDataParallel(self.model)
        if self.fault == "compile":
            torch._dynamo.config.recompile_limit = 1000
            torch._dynamo.config.accumulated_recompile_limit = 1000
            wrapped = torch.compile(wrapped, backend="aot_eager", dynamic=False)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        slow = given.ms if self.fault == "loader" and self.faulty else 0.0
        batch = 8
        data = torch.utils.data.DataLoader(Samples(shape, slow / batch), batch_size=batch)
        for step, (inputs, labels) in enumerate(data):
            if step == STEPS:
                break
            if given.model == "mlp":
                inputs, labels = inputs.repeat(12, 1), labels.repeat(12)
            if self.fault == "compile":
                inputs, labels = inputs[: 96 - step], labels[: 96 - step]
            if self.faulty and (self.fault in EACH_STEP or (self.fault == "outlier" and step == OUTLIER)):
                self.planted(given.ms)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(inputs), labels)
            loss.backward()
            optimizer.step()
            self.ends.append(time.perf_counter())
            self.busy.append(time.process_time() + self.slept)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--model", default="mlp", choices=("mlp", "cnn"))
    parser.add_argument("--ms", type=float, default=60.0)
    parser.add_argument("--rank", type=int, help="the only rank with the fault")
    parser.add_argument("--function", default="teach")
    parser.add_argument("--times", required=True, help="where each rank writes what its steps took")
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(given)
    job.train(given)
    took = {"ends": job.ends, "lost": job.lost, "busy": job.busy}
    Path(f"{given.times}.{job.rank}").write_text(json.dumps(took))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
