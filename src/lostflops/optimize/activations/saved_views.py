"""Which bytes of its storage a saved tensor needs, and how to make the tensor again from their copy.

A tensor that covers at least half of its storage takes the whole storage along: other views of it then share
the copy. Of a smaller part only that part travels, gathered if it lies scattered: a view may be the only one
that keeps a large storage alive. Expanded dimensions (stride 0) travel once.

Two views may share a copy only if each finds its own elements in it. The whole of a storage and an unbroken
part of it hold the bytes as they lie, so where a view begins and how far it reaches is enough. What was
gathered holds the elements in the order of one view's strides: another with the same size and beginning, such
as the transpose of a square, has other elements at each place, or other elements altogether.

What lies scattered is gathered also where it turns out to stay on the device. The copy lets the storage go,
which is more than twice as large; keeping the storage instead would need memory that no plan has counted, and
what was learned in the first step, where everything is gathered, would not be true of the second. The price:
of such a view, a write that autograd does not see (`.data`) does not reach what was saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(eq=False, slots=True)
class View:
    """A tensor without its memory. `offset` and `stride` are in elements, of the bytes that travel.

    Made for every tensor that is saved, and never changed: to have Python watch over that takes longer than
    all the rest of making one.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    first_byte: int  # of what travels, in the storage
    nbytes: int
    gathered_from: tuple[int, ...] | None = None  # the strides in the storage, of what lies scattered there

    @property
    def gathered(self) -> bool:
        return self.gathered_from is not None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells parts of one storage from each other; the same for all who take the whole of it."""
        if self.gathered_from is None:
            return (self.first_byte, self.nbytes)
        return (self.first_byte, self.nbytes, self.dtype, self.size, self.gathered_from)


def whole_view(tensor: torch.Tensor) -> View:
    nbytes = tensor.untyped_storage().nbytes()
    return View(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), 0, nbytes)


def view_of(tensor: torch.Tensor) -> View | None:
    """The part that travels, or None where it is the whole storage."""
    if 2 * tensor.nbytes >= tensor.untyped_storage().nbytes() and tensor.is_contiguous():
        return None  # as most are: the same as below, sooner
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
    step, dense = 1, [0] * len(shape)
    for dimension in reversed(
        by_stride(tensor)
    ):  # in the order of the source: kernels add up in the same order
        if stride[dimension]:
            dense[dimension] = step
            step *= shape[dimension]
    return View(tensor.dtype, shape, tuple(dense), 0, first, unique * width, gathered_from=stride)


def by_stride(tensor: torch.Tensor) -> list[int]:
    """The dimensions from the one that steps farthest through memory to the one that steps least."""
    stride = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dimension: -stride[dimension])


def without_expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Each element of memory once, where expanding repeats it."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def bytes_of(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """uint8[nbytes]: an alias of the storage, or what was gathered from it on the current stream."""
    if view.gathered:
        order = by_stride(tensor)
        tensor = without_expanded(tensor.detach()).permute(order)
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    alias = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    first = 0 if view.gathered else view.first_byte
    return alias.set_(tensor.untyped_storage(), first, (view.nbytes,), (1,))


def restored(view: View, memory: torch.Tensor) -> torch.Tensor:
    """The tensor, as a view of the bytes."""
    tensor = torch.empty(0, dtype=view.dtype, device=memory.device)
    first = int(memory.storage_offset()) // tensor.element_size() + view.offset
    tensor = tensor.set_(memory.untyped_storage(), first, view.size, view.stride)
    return tensor if view.gathered_from is None else _as_it_lay(tensor, view.gathered_from)


def _as_it_lay(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """With the strides of the source: by them kernels choose the order in which they add up, so that other
    strides give other last bits. For as long as the backward uses it, it takes the room that it spans."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True))
    placed = torch.empty(extent, dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, stride)
    # Where windows overlap an element is written more than once, each time the same.
    without_expanded(placed).copy_(without_expanded(tensor))
    return placed
