# pyright: basic
"""The model with each layer split over all ranks: tensor parallelism with DTensor."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

COLUMNS, ROWS = ("q", "k", "v", "gate", "up"), ("o", "down")


def split(model: nn.Module, device: str, shared: bool) -> nn.Module:
    """A part of the columns of q, k, v, gate and up, and of the rows of o and down, on each rank.

    Embedding, norms and head stay whole. `shared`: the projections of one input add their gradients up before
    they are reduced. Otherwise each reduces its own: 5 all-reduces in the backward of a layer for 2.
    """
    blocks: nn.Module = model.blocks  # pyright: ignore
    split_blocks(blocks, init_device_mesh(device, (dist.get_world_size(),)), shared)
    return model


def split_blocks(blocks: nn.Module, mesh: DeviceMesh, shared: bool) -> None:
    """Split each of these blocks over the ranks of a mesh."""
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in COLUMNS}
    plan |= {name: RowwiseParallel() for name in ROWS}
    if shared:
        whole = {"output_layouts": (Replicate(),), "desired_output_layouts": (Replicate(),)}
        plan |= {norm: PrepareModuleOutput(**whole, use_local_output=False) for norm in ("norm1", "norm2")}
    for block in blocks.children():
        block.heads, block.kv_heads = block.heads // mesh.size(), block.kv_heads // mesh.size()  # pyright: ignore
        parallelize_module(block, mesh, plan)
