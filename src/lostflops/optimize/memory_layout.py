"""Many tensors in one memory, so that they travel in one copy: where each begins, and a view of it there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostflops.optimize.subclasses import apart

ALIGNMENT = 512  # bytes, of every tensor in a memory


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def parts_of(tensor: torch.Tensor, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors that a tensor is made of, by the names of attributes; a plain one is its own."""
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    for attribute, inner in apart(tensor).tensors.items():
        yield from parts_of(inner, f"{name}.{attribute}")


def dense(tensor: torch.Tensor) -> bool:
    """Whether it fills its memory without gaps or overlaps, in any order of dimensions. A `torch.qint8`
    one has its scale elsewhere."""
    if tensor.layout != torch.strided or tensor.is_quantized or not tensor.numel():
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def view_of(
    memory: torch.Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """The memory from an offset in bytes after where the tensor `memory` begins, typed and shaped."""
    at = int(memory.storage_offset()) * memory.itemsize + offset
    view = cast("Any", torch.empty(0, dtype=dtype, device=memory.device))
    return view.set_(memory.untyped_storage(), at // dtype.itemsize, shape, stride)
