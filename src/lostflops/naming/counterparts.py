"""By which name something of one run is found again in another: without ids, places and vendors.

A name is kept where nothing in it changes from run to run, so most stay as they are. The numbers in the names
of library kernels are tile sizes, by which two kernels differ: they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Volatile:
    """Part of a name that differs between runs of one job, and what stands in its place."""

    expression: str
    instead: str
    example: str
    found_again: str


VOLATILE: Sequence[Volatile] = (
    Volatile(
        r"^.*/(?:site|dist)-packages/", "",
        "/opt/env/lib/python3.12/site-packages/torch/nn/functional.py(12): linear",
        "torch/nn/functional.py: linear",
    ),
    Volatile(r"\.py\(\d+\): ", ".py: ", "train.py(31): step", "train.py: step"),
    Volatile(r" at 0x[0-9a-fA-F]+", "", "<function loss at 0x7f31c0a2>", "<function loss>"),
    Volatile(r"\b0x[0-9a-fA-F]{5,}\b", "0x…", "graph 0x55aa10", "graph 0x…"),
    Volatile(r", (?:seq|op_id) = \d+", "", "aten::mm, seq = 5, op_id = 7", "aten::mm"),
    Volatile(r"^autograd::engine::evaluate_function: ", "",
             "autograd::engine::evaluate_function: MmBackward0", "MmBackward0"),
    Volatile(r"^(ProfilerStep)[#*]\d*$", "${1}", "ProfilerStep#12", "ProfilerStep"),
    Volatile(r"^(nn\.Module: \w+?)_\d+( in .*)?$", "${1}${2}", "nn.Module: Linear_3", "nn.Module: Linear"),
    Volatile(r"^(triton_\w*?)_\d+$", "${1}", "triton_poi_fused_add_3", "triton_poi_fused_add"),
    # A loader with workers does what one without does, elsewhere.
    Volatile(
        r"#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.", "#",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "enumerate(DataLoader)#__next__",
    ),
    # A vendor's name of a call that both have: hipLaunchKernel is cudaLaunchKernel.
    Volatile(r"^(?:cuda|hip)(?:Ext)?([A-Z])", "${1}", "hipStreamSynchronize", "StreamSynchronize"),
    Volatile(r"^(?:ModuleLaunchKernel|LaunchKernelExC)\b", "LaunchKernel",
             "hipModuleLaunchKernel", "LaunchKernel"),
)  # fmt: skip


def counterpart(name: pl.Expr) -> pl.Expr:
    """The name by which what bears `name` is found again in another run; null stays null."""
    found = name.cast(pl.String)
    for part in VOLATILE:
        found = found.str.replace_all(part.expression, part.instead)
    return found
