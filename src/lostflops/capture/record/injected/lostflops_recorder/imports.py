"""Calls a hook when a module has been executed.

A finder that gave up its place when a module was looked up would never see it run: `find_spec("torch")`, by
which libraries ask whether torch is there, looks it up. So a name stays armed until its module has executed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from . import log


class Loader:
    """The loader that would have loaded the module, with the hook called afterwards."""

    def __init__(self, loader: Any, finder: Finder, name: str) -> None:
        self._loader, self._finder, self._name = loader, finder, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._loader, attribute)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        # Nobody is to find us in the finished module: pickling and reloading look at its loader.
        for holder, attribute in ((getattr(module, "__spec__", None), "loader"), (module, "__loader__")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        self._finder.executed(self._name, module)


class Finder:
    """First on `sys.meta_path`; every import that is not waited for costs it one dictionary lookup."""

    def __init__(self, waited: dict[str, tuple[str, ...]]) -> None:
        self._waited = waited

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name not in self._waited:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, self, name)
                return spec
        return None

    def executed(self, name: str, module: Any) -> None:
        for hook in self._waited.pop(name, ()):
            file, _, function = hook.rpartition(".")
            try:
                getattr(import_module(f".{file}", __package__), function)(module)
            except Exception as error:
                log.fault(f"hooking {name}", error)


def arm(waited: Mapping[str, Sequence[str]]) -> None:
    """Wait for each module of `waited`; its values are our functions, as in 'steps.hooks.saving'."""
    finder = Finder({name: tuple(hooks) for name, hooks in waited.items()})
    sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
    for name in waited:
        if name in sys.modules:
            finder.executed(name, sys.modules[name])
