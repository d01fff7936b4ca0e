"""Fully sharded training (FSDP2) on four ranks: each layer's weights are gathered just before they are used.

torchrun --nproc-per-node 4 examples/train_fsdp2.py --output examples/runs/fsdp2
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from model import Transformer
from recording import NUM_STEPS, recording
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer(VOCABULARY, depth=3)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with recording(output, dist.get_rank()) as profiler:
        for _ in range(NUM_STEPS):
            tokens = torch.randint(VOCABULARY, (8, 128))
            optimizer.zero_grad()
            model(tokens).backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
