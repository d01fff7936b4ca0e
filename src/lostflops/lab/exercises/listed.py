"""All exercises, found in the files of `offered/` and of its folders."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from . import offered
from .exercise import Exercise


def exercises() -> Mapping[str, Exercise]:
    """All exercises by name, in their order."""
    below = pkgutil.walk_packages(offered.__path__, f"{offered.__name__}.")
    modules = (import_module(module.name) for module in below if not module.ispkg)
    found: list[Exercise] = [module.EXERCISE for module in modules]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}
