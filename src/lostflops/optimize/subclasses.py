"""Tensors that are made of others, such as quantised weights and DTensors: taken apart, and put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from lostflops.optimize.claims import Packed


@dataclass(frozen=True, slots=True)
class TensorParts:
    """What a tensor is made of, by the names of attributes, and what it takes to put it together again."""

    tensors: dict[str, torch.Tensor]
    others: dict[str, Any]  # a DTensor lists its mesh, too
    context: Any


def apart(tensor: torch.Tensor) -> TensorParts:
    """For tensors that have `__tensor_flatten__`."""
    names, context = cast("Any", tensor).__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    tensors = {name: value for name, value in inner.items() if isinstance(value, torch.Tensor)}
    return TensorParts(tensors, {name: inner[name] for name in inner if name not in tensors}, context)


class Rebuilt:
    """A saved tensor whose parts are kept each on its own."""

    __slots__ = ("_context", "_kind", "_others", "_parts", "_size", "_stride")

    def __init__(self, tensor: torch.Tensor, whole: TensorParts, parts: Mapping[str, Packed]) -> None:
        self._kind = cast("Any", type(tensor))
        self._size, self._stride = tensor.size(), tensor.stride()
        self._others, self._context = whole.others, whole.context
        self._parts = parts

    def unpack(self) -> torch.Tensor:
        inner = self._others | {name: part.unpack() for name, part in self._parts.items()}
        return self._kind.__tensor_unflatten__(inner, self._context, self._size, self._stride)
