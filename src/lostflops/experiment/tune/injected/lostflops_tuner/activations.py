"""Activations are kept instead of computed again in the backward pass."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
LEAST_FREE = 0.1  # of the memory
FULL = "kept activations leave less than a tenth of the memory free"


def kept(module: Any, note: Callable[[str], None]) -> None:
    """`checkpoint(function, ...)` is a plain call, until a tenth of the memory is left: then it is an error.

    All ranks keep alike: layers that exchange something would wait for ever for a rank that computes nothing
    again. A reentrant checkpoint without a tensor that needs gradients trains nothing, and stays.
    """
    checkpoint = module.checkpoint

    @functools.wraps(checkpoint)
    def changed(function: Any, *args: Any, **given: Any) -> Any:
        if given.get("use_reentrant") is not False and not any(
            getattr(one, "requires_grad", False) for one in args
        ):
            return checkpoint(function, *args, **given)
        if _free() < LEAST_FREE:
            raise RuntimeError(f"lostflops tune: {FULL}")
        note("checkpoint(function, ...) -> function(...)")
        return function(*args, **{name: value for name, value in given.items() if name not in OWN})

    module.checkpoint = changed


def _free() -> float:
    """The share of the device's memory, or without a GPU of the machine's, that is free."""
    cuda = sys.modules["torch"].cuda
    if cuda.is_available() and cuda.is_initialized():
        free, whole = cuda.mem_get_info()
        unused = cuda.memory_reserved() - cuda.memory_allocated()
        return float((free + unused) / whole)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            told = dict(line.split(":", 1) for line in file)
        return float(told["MemAvailable"].split()[0]) / float(told["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        return 1.0
