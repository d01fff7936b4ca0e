"""Hooks that a layer's forward puts on gradients of what is not its own result: once, and not once more.

A recomputation runs the same lines, on the same input and weights, whose gradients are still to come: a hook
that halves the gradient of the layer's input would halve it twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch

_KINDS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def no_more_hooks(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """Those that are put on these tensors inside are taken away at the end."""
    had = [(tensor, [frozenset(getattr(tensor, kind) or ()) for kind in _KINDS]) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, before in had:
            for kind, were in zip(_KINDS, before, strict=True):
                hooks: dict[int, Any] = getattr(tensor, kind) or {}
                for number in hooks.keys() - were:
                    del hooks[number]
