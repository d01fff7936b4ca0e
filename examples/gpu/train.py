"""A small language model on one GPU: as it is, under DDP with NCCL, in CUDA graphs, or compiled.

lostflops record --steps 8-10 -- python train.py --how graph
lostflops record --steps 8-10 -- torchrun --nproc-per-node 1 train.py --how ddp
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))
from model import Transformer

VOCABULARY, WIDTH, DEPTH, BATCH, LENGTH, STEPS = 16_384, 1024, 6, 8, 512, 14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=("plain", "ddp", "graph", "compiled"), default="plain")
    how = parser.parse_args().how

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.manual_seed(0)
    model: Any = Transformer(VOCABULARY, WIDTH, DEPTH, WIDTH // 64).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if how == "ddp":
        dist.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model)
    elif how == "compiled":
        model = torch.compile(model)
    made = torch.randint(VOCABULARY, (STEPS, BATCH, LENGTH)).pin_memory()
    held = torch.empty((BATCH, LENGTH), dtype=torch.int64, device="cuda")
    replay = captured(model, held) if how == "graph" else None
    for tokens in made:
        held.copy_(tokens, non_blocking=True)
        if replay:
            replay()
        else:
            optimizer.zero_grad()
            model(held).backward()
        optimizer.step()
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.destroy_process_group()


def captured(model: nn.Module, tokens: Tensor) -> Any:
    """Forward and backward as one graph, which reads `tokens` and writes the gradients in place."""
    tokens.zero_()
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(tokens).backward()
    torch.cuda.current_stream().wait_stream(beside)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(tokens).backward()
    return graph.replay


if __name__ == "__main__":
    main()
