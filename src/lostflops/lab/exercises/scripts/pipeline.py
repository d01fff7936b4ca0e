# pyright: basic
"""A model in two stages with microbatches in the order 1F1B: the bubble can be seen and counted.

torchrun --nproc-per-node 2 -m lostflops.lab.exercises.scripts.pipeline --microbatches 4

With `--tp 2`, on four ranks, each stage has layers that are split over two ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from lostflops.lab.exercises.scripts.model import MODELS, Block, Wait
from lostflops.lab.exercises.scripts.tensor import split_blocks

WIDTH = 64
SHAPE, LENGTH, LAYERS = MODELS["llama-tiny"], 32, 2  # of a stage whose layers are split


class Stage(nn.Module):
    """A linear layer, and a fixed time: `ms` forward, twice that backward."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.linear, self.ms = nn.Linear(WIDTH, WIDTH), ms

    def forward(self, x: Tensor) -> Tensor:
        return Wait.apply(torch.tanh(self.linear(x)), self.ms, 2 * self.ms)  # pyright: ignore


class SplitStage(nn.Module):
    """Some layers of a Transformer over the ranks of a mesh, and a fixed time as in `Stage`."""

    def __init__(self, mesh: DeviceMesh, ms: float) -> None:
        super().__init__()
        self.blocks, self.ms = nn.ModuleList(Block(SHAPE, 0.0) for _ in range(LAYERS)), ms
        split_blocks(self.blocks, mesh, shared=True)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return Wait.apply(x, self.ms, 2 * self.ms)  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--tp", type=int, default=1, help="ranks of each stage")
    parser.add_argument("--stage-ms", type=float, default=15.0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--truth", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size() // given.tp
    mesh = init_device_mesh("cpu", (stages, given.tp), mesh_dim_names=("pp", "tp"))
    at = mesh.get_local_rank("pp")
    module = SplitStage(mesh["tp"], given.stage_ms) if given.tp > 1 else Stage(given.stage_ms)
    group = mesh["pp"].get_group() if given.tp > 1 else None
    stage = PipelineStage(module, at, stages, torch.device("cpu"), group=group)
    of_one = (LENGTH, SHAPE.hidden) if given.tp > 1 else (WIDTH,)
    schedule = Schedule1F1B(stage, given.microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    times: list[float] = []
    for _ in range(given.steps):
        began = time.perf_counter()
        x = torch.randn(2 * given.microbatches, *of_one)
        first, last = at == 0, at == stages - 1
        given_to_last = {"target": torch.zeros_like(x)} if last else {}
        schedule.step(*((x,) if first else ()), **given_to_last)  # pyright: ignore
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    if given.truth is not None and rank == 0:
        steps = sorted(times[2:])
        said = {
            "world": dist.get_world_size(),
            "microbatches": given.microbatches,
            "work_ms": 3 * given.stage_ms * given.microbatches,
            "step_ms": 1000 * steps[len(steps) // 2],
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }
        with given.truth.open("a") as file:
            file.write(json.dumps(said) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
