"""What a remedy runs itself, in the middle of a layer: whoever counts the layer's operators leaves it out.

Selective checkpointing counts operators in the forward and again in the recomputation. How many copies bring
a streamed layer's weights differs between the two; and autocast casts a weight once for as long as it is on,
so that a second forward finds the cast weight, and its recomputation casts it anew.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore

_LENGTH: Any = cast("Any", torch)._C._len_torch_dispatch_stack
_CASTS: Any = cast("Any", torch.ops).aten._to_copy.default


class _Depth(threading.local):
    value = 0


_depth = _Depth()


@contextmanager
def own_operators() -> Generator[None]:
    """What runs inside on this thread is a remedy's own, and no dispatch mode sees it."""
    _depth.value += 1
    try:
        with _disable_current_modes() if _LENGTH() else nullcontext():
            yield
    finally:
        _depth.value -= 1


def running_own() -> bool:
    """Whether what runs now on this thread is."""
    return _depth.value > 0


def blind_to_own(mode: Any) -> Any:
    """A dispatch mode that is not shown them any more, nor casts."""
    mode.__class__ = _blind(cast("type[Any]", type(mode)))
    return mode


@cache
def _blind(kind: type[Any]) -> type[Any]:
    sees: Any = cast("Any", kind).__torch_dispatch__

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _depth.value or func is _CASTS:
            return func(*args, **(kwargs or {}))
        return sees(self, func, types, args, kwargs)

    return type(kind.__name__, (kind,), {"__torch_dispatch__": dispatched})
