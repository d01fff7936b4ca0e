"""Calls functions when a module has been executed; a name stays armed until then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Hooks = Sequence[Callable[[Any], None]]


class ChangeLoader:
    """The loader that would have loaded the module, with the hooks called afterwards."""

    def __init__(self, loader: Any, finder: ChangeFinder, name: str) -> None:
        self._loader, self._finder, self._name = loader, finder, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._loader, attribute)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        # The recorder's loader may be around us or inside: whoever finds itself in the module leaves.
        for holder, attribute in ((getattr(module, "__spec__", None), "loader"), (module, "__loader__")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        self._finder.executed(self._name, module)


class ChangeFinder:
    """First on `sys.meta_path`, or behind the recorder's, which asks it."""

    def __init__(self, waited: Mapping[str, Hooks]) -> None:
        self._waited = dict(waited)
        self._asked: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        # Finders like this one ask each other: none is asked again while it asks.
        if name not in self._waited or name in self._asked:
            return None
        self._asked.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = ChangeLoader(spec.loader, self, name)
                    return spec
        finally:
            self._asked.discard(name)
        return None

    def executed(self, name: str, module: Any) -> None:
        for hook in self._waited.pop(name, ()):
            hook(module)


def arm(waited: Mapping[str, Hooks]) -> None:
    """Wait for each module of `waited`."""
    finder = ChangeFinder(waited)
    sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
    for name in waited:
        if name in sys.modules:
            finder.executed(name, sys.modules[name])
