"""All exercises, found in the files of `offered/`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from . import offered
from .exercise import Exercise


def exercises() -> Mapping[str, Exercise]:
    """All exercises by name, in their order."""
    modules = (import_module(f"{offered.__name__}.{m.name}") for m in pkgutil.iter_modules(offered.__path__))
    found: list[Exercise] = [module.EXERCISE for module in modules]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}
