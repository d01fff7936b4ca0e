"""When DDP sends gradients, and in how large pieces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Note = Callable[[str], None]


def buckets(module: Any, note: Note, mb: int) -> None:
    """Gradients travel in buckets of so many MiB, where the script asks for smaller ones or says nothing."""
    _capped(module, note, mb, lambda has: has is None or has < mb)


def in_pieces(module: Any, note: Note, mb: int) -> None:
    """Gradients travel in buckets of at most so many MiB, so that they are sent while backward runs."""
    _capped(module, note, mb, lambda has: has is None or has > mb)


def _capped(module: Any, note: Note, mb: int, applies: Callable[[Any], bool]) -> None:
    cls = module.DistributedDataParallel
    init = cls.__init__

    @functools.wraps(init)
    def changed(self: Any, *args: Any, **given: Any) -> None:
        if len(args) < 6 and applies(given.get("bucket_cap_mb")):
            given["bucket_cap_mb"] = mb
            note(f"bucket_cap_mb={mb}")
        init(self, *args, **given)

    cls.__init__ = changed


def sent_once(module: Any, note: Note, passes: int) -> None:
    """Of so many micro-batches per step, the last one sends the gradients, of each model by itself.

    A step that was made of another number of them would use gradients that were not sent: it is an error.
    A static graph is left alone: DDP learns it from a first pass that sends, and asserts or hangs without.
    """
    cls = module.DistributedDataParallel
    forward = cls.forward
    made: dict[int, int] = {}  # forward passes since the last step, by the id of a model
    armed = False

    @functools.wraps(forward)
    def changed(self: Any, *args: Any, **given: Any) -> Any:
        nonlocal armed
        if getattr(self, "static_graph", False):
            return forward(self, *args, **given)
        if not armed:  # optimizers are not there yet when DDP is imported
            sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(before_step)
            armed = True
        if sys.modules["torch"].is_grad_enabled() and self.training:
            made[id(self)] = made.get(id(self), 0) + 1
            self.require_backward_grad_sync = made[id(self)] >= passes
            note(f"no_sync in {passes - 1} of {passes} micro-batches")
        return forward(self, *args, **given)

    def before_step(*_: Any) -> None:
        for found in made.values():
            if found != passes:
                raise RuntimeError(
                    f"lostflops tune: a step of {found} micro-batches in the place of {passes}"
                )
        made.clear()

    cls.forward = changed
