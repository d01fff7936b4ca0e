"""Hooks on the modules of a user's model that are in no file of the model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class OwnHook:
    """A copy of the model (`copy.deepcopy`) calls the same hook. In compiled code it does nothing.

    A file of it, and a process that the model is sent to, have a hook in its place that does nothing, and
    that the standard library has: what is loaded is the model without the remedy, and needs nothing of ours.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        # Compiled in, it would guard what the remedy has in it, which changes and is gone after undo().
        return None if torch.compiler.is_compiling() else self._call(*given)

    def __copy__(self) -> OwnHook:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnHook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes any arguments and returns None
