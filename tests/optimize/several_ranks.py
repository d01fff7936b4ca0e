"""Runs a function on several ranks of one machine, which talk through gloo, and gathers what they return."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported once, in the process from which the ranks of all tests are forked: that takes longer than they do.
PRELOADED = ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"]


def on_ranks(work: Callable[..., Any], *arguments: Any, ranks: int = 2) -> list[Any]:
    """What `work(rank, *arguments)` returns on each rank. A function of a module, as it is sent there."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _rank, (work, arguments, ranks, folder), nprocs=ranks, start_method="forkserver"
        )
        return [pickle.loads((Path(folder) / f"{rank}").read_bytes()) for rank in range(ranks)]


def _rank(rank: int, work: Callable[..., Any], arguments: Any, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    try:
        found = work(rank, *arguments)
        (Path(folder) / f"{rank}").write_bytes(pickle.dumps(found))
        dist.barrier()
    finally:
        dist.destroy_process_group()
