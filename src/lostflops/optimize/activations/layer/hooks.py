"""Hooks on the modules inside of a layer: which of them ran in its forward, and which changed something.

A recomputation runs those that were there: others are left out of it. One that was removed meanwhile is
missing, which matters where it had given back, or written to, what a module was given or gave.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import torch
from torch.utils._pytree import tree_leaves

from lostflops.optimize.own_hooks import OwnHook

KINDS = ("_forward_pre_hooks", "_forward_hooks")
Hooks = dict[int, "Callable[..., Any]"]  # by torch's number, which no other hook gets

_changing: WeakSet[Any] = WeakSet()  # hooks that have changed something, of all layers


class RanHooks:
    """Of a module and a kind: the numbers of its hooks in a forward. Holds none: they may hold its graph."""

    __slots__ = ("changing", "numbers")

    def __init__(self, hooks: Hooks) -> None:
        self.numbers = frozenset(hooks)
        self.changing = frozenset(number for number, hook in hooks.items() if _changes(hook))

    def leave_out_others(self, hooks: Hooks) -> None:
        for number in hooks.keys() - self.numbers:
            if not isinstance(hooks[number], OwnHook):
                del hooks[number]


_NONE = RanHooks({})


@contextmanager
def watched(every: list[Hooks]) -> Generator[list[RanHooks]]:
    """While a forward runs: who changes something. What ran is in the list afterwards."""
    ran: list[RanHooks] = []
    had = [dict(hooks) for hooks in every]
    for hooks in every:
        for number, hook in hooks.items():
            if not isinstance(hook, OwnHook | _Watched):
                hooks[number] = _Watched(hook)
    try:
        yield ran
    finally:
        for hooks in every:
            for number, hook in hooks.items():
                if isinstance(hook, _Watched):
                    hooks[number] = hook.hook
        ran += [RanHooks(hooks) if hooks else _NONE for hooks in map(_unwatched, had)]


def _unwatched(hooks: Hooks) -> Hooks:
    """Another thread may watch the same layer."""
    return {number: hook.hook if isinstance(hook, _Watched) else hook for number, hook in hooks.items()}


class _Watched:
    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *given: Any) -> Any:
        tensors = [one for one in tree_leaves(given[1:]) if isinstance(one, torch.Tensor)]
        versions = [_version(tensor) for tensor in tensors]
        result = self.hook(*given)
        if result is not None or versions != [_version(tensor) for tensor in tensors]:
            with suppress(TypeError):  # nobody can refer to it weakly, or compare it
                _changing.add(self.hook)
        return result


def _changes(hook: Any) -> bool:
    if isinstance(hook, OwnHook):
        return False
    try:
        return hook in _changing
    except TypeError:
        return True


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
