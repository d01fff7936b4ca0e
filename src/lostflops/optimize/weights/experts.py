"""Experts of a mixture that travel one by one: only those that the router has chosen for this pass's tokens.

Models of transformers keep all experts of a layer as one tensor, whose first dimension numbers them, in a
module that is told which are chosen. Its slot is shaped like all of them; what was not chosen is not copied
there, and the module does not read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch

from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.layers import Layer

CHOSEN = "top_k_index"  # what modules of experts call the numbers of those that are chosen
ALWAYS = -1  # the number of what is copied whichever are chosen

Parts = list[tuple[int, int]]  # first byte and number of bytes, in a layer's memory


def modules_of_experts(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Refuses a model that has none."""
    found = [
        module
        for module in model.modules()
        if _number(module) and CHOSEN in inspect.signature(type(module).forward).parameters
    ]
    if not found:
        raise Refused(
            "the model has no module that has all experts of a layer in one tensor and is told the chosen",
            "leave experts out: layers are streamed as a whole; or give single experts as layers=[...]",
        )
    return found


def _number(module: torch.nn.Module) -> int:
    """How many experts it has; 0 for other modules."""
    sizes = {weight.shape[0] for weight in module.parameters(recurse=False) if weight.dim() == 3}
    return sizes.pop() if len(sizes) == 1 else 0


class Experts:
    """Where each expert of a layer lies in its memory."""

    def __init__(self, layer: Layer) -> None:
        self._many = _number(layer.module)
        self._signature = inspect.signature(type(layer.module).forward)
        self._parts: dict[int, Parts] = {ALWAYS: []}
        for leaf in layer.leaves:
            shape, stride = leaf.tensor.shape, leaf.tensor.stride()
            each = leaf.nbytes // self._many
            by_expert = shape and shape[0] == self._many and stride[0] * leaf.tensor.itemsize == each
            if not by_expert:
                self._parts[ALWAYS].append((leaf.offset, leaf.nbytes))
                continue
            for number in range(self._many):
                self._parts.setdefault(number, []).append((leaf.offset + number * each, each))

    def chosen(self, module: torch.nn.Module, args: Any, kwargs: Any) -> dict[int, Parts]:
        """Those of this call, and where they lie. The host waits for the router."""
        given = self._signature.bind(module, *args, **kwargs).arguments[CHOSEN]
        return {number: self._parts[number] for number in self._numbers(given)}

    def _numbers(self, given: torch.Tensor) -> Iterator[int]:
        yield ALWAYS
        # One beyond the last stands for "nobody", where experts are on other ranks.
        numbers: list[int] = cast("Any", given).unique().tolist()
        yield from (number for number in numbers if 0 <= number < self._many)
