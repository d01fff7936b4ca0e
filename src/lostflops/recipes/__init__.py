"""One file per question, each with its recipe, in sections by what is asked about.

They are found by walking the sections, and other packages' in the entry-point group `lostflops.recipes`.
What lies below `on_request` answers when it is asked by name: `lostflops why` neither runs nor loads it, and
it has no findings.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module

from lostflops.errors import NoSuchRecipe
from lostflops.recipe import Declared, Recipe
from lostflops.store.installation import entry_points

ON_REQUEST = f"{__name__}.on_request"


@cache
def recipes() -> Mapping[str, Recipe]:
    """All recipes by name: ours, then those that installed packages offer."""
    return _with_others(dict(sorted({**_below(__name__, __path__), **asked_by_name()}.items())))


@cache
def of_the_page() -> Mapping[str, Recipe]:
    """The recipes that the first page may ask, by name: all but those on request."""
    return _with_others(dict(sorted(_below(__name__, __path__).items())))


@cache
def asked_by_name() -> Mapping[str, Recipe]:
    """The recipes that answer only when they are asked by name."""
    return _below(ON_REQUEST, import_module(ON_REQUEST).__path__)


def _below(package: str, path: Iterable[str]) -> dict[str, Recipe]:
    """The recipes in the modules of a package; those on request only where it is theirs."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(path, f"{package}."):
        if module.name == ON_REQUEST:
            continue
        loaded = import_module(module.name)
        if module.ispkg:
            found |= _below(module.name, loaded.__path__)
        for made in vars(loaded).values():
            if isinstance(made, Recipe) and made.function.__module__ == module.name:
                found[made.name] = made
    return found


def _with_others(found: dict[str, Recipe]) -> Mapping[str, Recipe]:
    for point in entry_points(group="lostflops.recipes"):
        made = point.load()
        if isinstance(made, Recipe):
            found.setdefault(made.name, made)
    return found


def named(name: str) -> Recipe:
    """The recipe of that name, with dashes or underscores. Raises NoSuchRecipe with a suggestion."""
    wanted = name.replace("-", "_")
    known = of_the_page()
    if wanted not in known:
        known = recipes()
    if wanted not in known:
        raise NoSuchRecipe(name, known)
    return known[wanted]


def declared() -> Mapping[str, tuple[Recipe, Declared]]:
    """Every finding that a recipe of the page declares, by its name.

    Raises ValueError where two recipes share one.
    """
    known: dict[str, tuple[Recipe, Declared]] = {}
    for recipe in of_the_page().values():
        for name, finding in recipe.declared.items():
            if name in known:
                raise ValueError(
                    f"The recipes '{known[name][0].name}' and '{recipe.name}' declare one finding: '{name}'."
                )
            known[name] = recipe, finding
    return known
