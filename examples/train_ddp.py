"""Data-parallel training on four ranks, one of which draws longer documents than the others.

Documents are dealt out by shard and not by length, so rank 2 computes longer in every step and the other
three wait for it in the all-reduce.

    torchrun --nproc-per-node 4 examples/train_ddp.py --output examples/runs/ddp
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from model import Transformer
from recording import NUM_STEPS, recording
from torch.nn.parallel import DistributedDataParallel

LENGTHS = (96, 104, 320, 112)  # mean tokens in a document of each rank's shard
VOCABULARY = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(Transformer(VOCABULARY, depth=2), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with recording(output, rank) as profiler:
        for _ in range(NUM_STEPS):
            tokens = torch.randint(VOCABULARY, (8, LENGTHS[rank % len(LENGTHS)]))
            optimizer.zero_grad()
            model(tokens).backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
