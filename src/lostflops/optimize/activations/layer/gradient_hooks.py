"""Hooks that a layer's forward puts on gradients of what is not its own result: once, and not once more.

A recomputation runs the same lines, on the same input and weights, whose gradients are still to come: a hook
that halves the gradient of the layer's input would halve it twice. So it would on the node of the graph that
made the input, or on the one that adds up a weight's gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch

from lostflops.optimize.own_operators import own_operators
from lostflops.optimize.refused import Refused

_KINDS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_NODES: Any = torch.autograd.Function  # whom torch asks to put a hook on a node of any kind
_put_plainly: Any = _NODES._register_hook
_lock = threading.Lock()
_open = 0  # how many recomputations there are, on all threads


class _Put(threading.local):
    on_nodes: list[Any] | None = None


_put = _Put()


@contextmanager
def no_more_hooks(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """Those that are put on these tensors, and on nodes of any graph, inside are taken away at the end."""
    had = [(tensor, [frozenset(getattr(tensor, kind) or ()) for kind in _KINDS]) for tensor in tensors]
    outer, _put.on_nodes = _put.on_nodes, []
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        for handle in _put.on_nodes:
            handle.remove()
        _put.on_nodes = outer
        for tensor, before in had:
            for kind, were in zip(_KINDS, before, strict=True):
                hooks: dict[int, Any] = getattr(tensor, kind) or {}
                for number in hooks.keys() - were:
                    del hooks[number]


def _count(more: int) -> None:
    global _open
    with _lock:
        _open += more
        if more > 0 and _open == 1:
            _NODES._register_hook = staticmethod(_noted)
        elif not _open:
            del _NODES._register_hook  # it is of a class above


def _noted(hooks: Any, hook: Any) -> Any:
    made = _put_plainly(hooks, hook)
    if _put.on_nodes is not None:
        _put.on_nodes.append(made[1])
    return made


class GradientsOnce:
    """Within a recomputation that takes gradients itself: none may be added up, as it was in the forward."""

    def __init__(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        self._name, self._tensors = name, tensors
        self._had: list[tuple[torch.Tensor, torch.Tensor | None, int]] | None = None

    def begin(self) -> None:
        """One is taken. What is added up comes last."""
        if self._had is None:
            leaves = (tensor for tensor in self._tensors if tensor.is_leaf and tensor.requires_grad)
            self._had = [(leaf, leaf.grad, _version(leaf.grad)) for leaf in leaves]

    def __enter__(self) -> GradientsOnce:
        return self

    def __exit__(self, *_: Any) -> None:
        for leaf, gradient, version in self._had or ():
            if leaf.grad is not gradient or _version(gradient) != version:
                raise Refused(
                    f"'{self._name}' adds up gradients in its forward (`.backward()`): computing it again "
                    "has done so a second time",
                    "take them with torch.autograd.grad, or do not checkpoint this layer: layers=...",
                )


def _version(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None else gradient._version


def themselves(values: Iterable[Any]) -> list[Any]:
    """References to the tensors that a layer is given, as `with_own_gradients` wants them."""
    return [ref(one) if isinstance(one, torch.Tensor) and one.grad_fn is not None else None for one in values]


def with_own_gradients(values: Iterable[Any], given: list[Any]) -> tuple[Any, ...]:
    """What saved-tensor hooks around a layer have made anew of what it was given, as views.

    The gradient of such a twin is that of the tensor itself, which would not be told its own any more if
    the layer asked for that of the twin (`retain_grad`).
    """
    originals = [None if there is None else there() for there in given]
    with own_operators():
        return tuple(
            one if original is None or one is original else one.view_as(one)
            for one, original in zip(values, originals, strict=True)
        )
