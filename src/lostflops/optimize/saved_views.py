"""Which bytes of its storage a saved tensor needs, and how to make the tensor again from their copy.

A tensor that covers at least half of its storage takes the whole storage along: other views of it then share
the copy. Of a smaller part only that part travels, gathered if it lies scattered: a view may be the only one
that keeps a large storage alive. Expanded dimensions (stride 0) travel once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class View:
    """A tensor without its memory. `offset` and `stride` are in elements, of the bytes that travel."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    first_byte: int  # of what travels, in the storage
    nbytes: int
    gathered: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells parts of one storage from each other; the same for all who take the whole of it."""
        return (self.dtype, self.size, self.stride, self.first_byte, self.nbytes, self.gathered)


def whole_view(tensor: torch.Tensor) -> View:
    nbytes = tensor.untyped_storage().nbytes()
    return View(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), 0, nbytes)


def view_of(tensor: torch.Tensor) -> View | None:
    """The part that travels, or None where it is the whole storage."""
    unique, extent = 1, 1  # elements; both are at least as many as there are
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            unique *= size
            extent += (size - 1) * stride
    unique = min(unique, extent)  # windows overlap
    width = tensor.element_size()
    if 2 * unique * width >= tensor.untyped_storage().nbytes():
        return None
    shape, stride = tuple(tensor.shape), tensor.stride()
    first = int(tensor.storage_offset()) * width
    if 2 * unique >= extent:
        return View(tensor.dtype, shape, stride, 0, first, extent * width)
    step, dense = 1, list[int]()
    for size, old in zip(reversed(shape), reversed(stride), strict=True):
        dense.append(step if old else 0)
        step *= size if old else 1
    return View(tensor.dtype, shape, tuple(reversed(dense)), 0, first, unique * width, gathered=True)


def bytes_of(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """uint8[nbytes]: an alias of the storage, or what was gathered from it on the current stream."""
    if view.gathered:
        tensor = tensor.detach()
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dimension] > 1:
                tensor = tensor.narrow(dimension, 0, 1)
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    alias = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    first = 0 if view.gathered else view.first_byte
    return alias.set_(tensor.untyped_storage(), first, (view.nbytes,), (1,))


def restored(view: View, memory: torch.Tensor) -> torch.Tensor:
    """The tensor, as a view of the bytes."""
    tensor = torch.empty(0, dtype=view.dtype, device=memory.device)
    first = int(memory.storage_offset()) // tensor.element_size() + view.offset
    return tensor.set_(memory.untyped_storage(), first, view.size, view.stride)
