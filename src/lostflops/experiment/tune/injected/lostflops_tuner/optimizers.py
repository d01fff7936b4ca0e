"""Optimizers update many parameters with one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KNOW_IT = {"Adam", "AdamW", "SGD"}


def fused(module: Any, note: Callable[[str], None]) -> None:
    """Optimizers that have a fused form, and whose script chose none, use it."""
    cls = module.Optimizer
    init = cls.__init__

    def changed(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        # `fused` is a default of those that know it; `foreach`, where chosen, excludes it.
        asked = type(self).__name__ in KNOW_IT and defaults.get("fused", False) is None
        if asked and not any(defaults.get(name) for name in ("foreach", "differentiable", "capturable")):
            defaults = {**defaults, "fused": True}
            note(f"{type(self).__name__}(fused=True)")
        init(self, params, defaults)

    cls.__init__ = changed
