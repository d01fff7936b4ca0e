"""Activations are kept instead of computed again in the backward pass."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
LEAST_FREE = 0.1  # of the memory
FULL = "kept activations leave less than a tenth of the memory free"
DRAWN = "a part draws random numbers, and others when it is computed again (preserve_rng_state=False)"
WRITTEN = "a part writes to its buffers, and once more when it is computed again (running statistics, say)"


def kept(module: Any, note: Callable[[str], None]) -> None:
    """`checkpoint(function, ...)` is a plain call, until a tenth of the memory is left: then it is an error.

    All ranks keep alike: layers that exchange something would wait for ever for a rank that computes nothing
    again. A reentrant checkpoint without a tensor that needs gradients trains nothing, and stays. So do those
    that add up gradients in another order, and those with contexts of their own. What cannot be the same to
    the bit, and shows only when it has run, is an error.
    """
    checkpoint = module.checkpoint
    waiting: set[int] = set()  # parameters of reentrant ones, by id, whose backward is to come

    @functools.wraps(checkpoint)
    def changed(function: Any, *args: Any, **given: Any) -> Any:
        if not sys.modules["torch"].is_grad_enabled():
            return checkpoint(function, *args, **given)
        reentrant = given.get("use_reentrant") is not False
        modules = list(_modules(function, args))
        weights = {id(each) for one in modules for each in one.parameters()}
        needed = [getattr(one, "requires_grad", False) is True for one in args]
        if reentrant:
            # Each backward of its own adds to `.grad`, so that a second use of a weight rounds otherwise.
            if not any(needed) or weights & waiting:
                return checkpoint(function, *args, **given)
        elif not _is_selective(given, given.get("context_fn")):
            return checkpoint(function, *args, **given)
        if _free() < LEAST_FREE:
            raise RuntimeError(f"lostflops tune: {FULL}")
        if reentrant:
            # Gradients of the input are added up here before those of its other uses.
            args = tuple(one.view_as(one) if need else one for one, need in zip(args, needed, strict=True))
            waiting.update(weights)

            def has_come(_: Any) -> None:
                waiting.difference_update(weights)

            args[needed.index(True)].register_hook(has_come)
        note("checkpoint(function, ...) -> function(...)")
        numbers = _numbers() if given.get("preserve_rng_state") is False else None
        buffers = [(each, each._version) for one in modules for each in one.buffers()]
        made = function(*args, **{name: value for name, value in given.items() if name not in OWN})
        if numbers is not None and _numbers() != numbers:
            raise RuntimeError(f"lostflops tune: {DRAWN}")
        if any(each._version != version for each, version in buffers):
            raise RuntimeError(f"lostflops tune: {WRITTEN}")
        return made

    module.checkpoint = changed


def _modules(function: Any, args: Any) -> Iterator[Any]:
    """Those that a function is of, holds or is given."""
    kind = sys.modules["torch"].nn.Module
    while isinstance(function, functools.partial):
        args = (*args, *function.args, *function.keywords.values())
        function = function.func
    cells: list[Any] = []
    held: Any = getattr(function, "__closure__", None) or ()
    for cell in held:
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # nothing yet
            continue
    found: list[Any] = [function, getattr(function, "__self__", None), *cells, *args]
    for one in found:
        if isinstance(one, kind):
            yield one


def _is_selective(given: dict[str, Any], contexts: Any) -> bool:
    """Whether a forward runs under nothing that changes it. Those that were made go on to the checkpoint."""
    if contexts is None:
        return True
    made = contexts()
    given["context_fn"] = lambda: made
    return type(made[0]).__name__ in ("nullcontext", "_CachingTorchDispatchMode")


def _numbers() -> tuple[bytes, ...]:
    """Where torch's random numbers are."""
    torch = sys.modules["torch"]
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return tuple(bytes(state.numpy()) for state in states)


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
