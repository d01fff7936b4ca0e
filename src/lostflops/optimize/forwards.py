"""Replace the forward of modules, and put it back exactly.

The replacement is an attribute of the instance: the module's class, its parameters and its hooks are not
touched, hooks stay outside of it, a copy of the model (`copy.deepcopy`) calls its own layers, and whoever
reads the signature of `model.forward` (the Trainer drops the columns that are not in it) finds the original
one.
"""

from __future__ import annotations

import functools
import inspect
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


_OF_NOBODY: Any = (lambda: None, None, None)


class Forwards:
    """Modules whose forward is replaced, until `restore`."""

    def __init__(self) -> None:
        self._active = True
        self._replaced: list[tuple[torch.nn.Module, Any, Any]] = []

    def replace(self, module: torch.nn.Module, around: Callable[..., Any]) -> None:
        """From now on the module runs `around(forward, module, *args, **kwargs)`; `forward(module, ...)` is
        the one that it had."""
        had = module.__dict__.get("forward")
        forward: Any = type(module).forward if had is None else _unbound(had, module)

        @functools.wraps(forward)
        def replacement(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return forward(module, *args, **kwargs)
            return around(forward, module, *args, **kwargs)

        replacement.__dict__["_lostflops"] = ref(replacement), self, had
        ours = MethodType(replacement, module)
        module.__dict__["forward"] = ours
        self._replaced.append((module, had, ours))

    def restore(self) -> None:
        """Everything as it was. What somebody else put over ours meanwhile stays, and ours does nothing in
        it."""
        self._active = False
        for module, had, ours in reversed(self._replaced):
            if module.__dict__.get("forward") is not ours:
                continue
            had = _still_there(had)
            if had is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = had
        self._replaced.clear()


def _still_there(had: Any) -> Any:
    """What a replacement stood in the place of, without those that were taken back while it lay over them."""
    while had is not None:
        function = getattr(had, "__func__", had)
        of, owner, below = getattr(function, "_lostflops", _OF_NOBODY)
        if of() is not function or owner._active:  # a wrapper of it has a copy of what it says of itself
            break
        had = below
    return had


def _unbound(had: Any, module: torch.nn.Module) -> Any:
    """For a forward that somebody replaced before us, on the instance. A method of it, such as one of ours,
    is that of each copy."""
    if getattr(had, "__self__", None) is module:
        return had.__func__

    @functools.wraps(had)
    def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return had(*args, **kwargs)

    there = inspect.signature(had)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__dict__["__signature__"] = there.replace(parameters=[first, *there.parameters.values()])
    return forward
