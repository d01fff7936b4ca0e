"""One file per question, each with its recipe, in sections by what is asked about.

They are found by walking the sections, and other packages' in the entry-point group `lostflops.recipes`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from lostflops.errors import NoSuchRecipe
from lostflops.recipe import Declared, Recipe


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes by name: ours, then those that installed packages offer."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        for made in vars(import_module(module.name)).values():
            if isinstance(made, Recipe) and made.function.__module__ == module.name:
                found[made.name] = made
    found = dict(sorted(found.items()))
    for point in entry_points(group="lostflops.recipes"):
        made = point.load()
        if isinstance(made, Recipe):
            found.setdefault(made.name, made)
    return found


def named(name: str) -> Recipe:
    """The recipe of that name, with dashes or underscores. Raises NoSuchRecipe with a suggestion."""
    known = recipes()
    wanted = name.replace("-", "_")
    if wanted not in known:
        raise NoSuchRecipe(name, known)
    return known[wanted]


def declared() -> Mapping[str, tuple[Recipe, Declared]]:
    """Every finding that a recipe declares, by its name. Raises ValueError where two recipes share one."""
    known: dict[str, tuple[Recipe, Declared]] = {}
    for recipe in recipes().values():
        for name, finding in recipe.declared.items():
            if name in known:
                raise ValueError(
                    f"The recipes '{known[name][0].name}' and '{recipe.name}' declare one finding: '{name}'."
                )
            known[name] = recipe, finding
    return known
