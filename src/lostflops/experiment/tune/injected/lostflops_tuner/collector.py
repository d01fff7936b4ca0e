"""Garbage is collected seldom, in the same step on all ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

EVERY = 500  # steps


def freeze(module: Any, note: Callable[[str], None]) -> None:
    """After the first step what lives is no garbage any more; then collections come at fixed steps."""
    made = 0

    def after_step(*_: Any) -> None:
        nonlocal made
        if made == 0:
            gc.collect()
            gc.freeze()
            gc.disable()
            note(f"gc.freeze() after the first step, gc.collect(1) every {EVERY} steps")
        elif made % EVERY == 0:
            gc.collect(1)
        made += 1

    module.register_optimizer_step_post_hook(after_step)
