"""Where a layer's code looks besides its modules' attributes: globals, closures, classes, other objects.

Only the names that its code has are looked at, of what is neither Python's, nor torch's or numpy's, nor ours.
What a function is given, or computes, leads no further: a name that is made up at run time is not found.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch

_OTHERS = frozenset({*sys.stdlib_module_names, "torch", "numpy", "lostflops"}) - {"__main__"}
_MOST = 1000  # functions that are looked through
_MOST_INSIDE = 64  # of a list or the like
_NO_STATE = (FunctionType, MethodType, ModuleType, type, property, staticmethod, classmethod)
_CACHED = type(functools.lru_cache(lambda: None))
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Names:
    """Some names with their values, to read and to write like a dictionary."""

    def __init__(
        self,
        names: frozenset[str],
        there: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        write: Callable[[str, Any], None],
        remove: Callable[[str], None],
    ) -> None:
        self._names, self._there = names, there
        self._write, self._remove = write, remove

    def all(self) -> Mapping[str, Any]:
        """Others, too."""
        there = self._there
        return there() if callable(there) else there

    def copy(self) -> dict[str, Any]:
        there, names = self.all(), self._names
        if len(names) < len(there):
            return {name: there[name] for name in names if name in there}
        return {name: value for name, value in there.items() if name in names}

    def keys(self) -> frozenset[str]:
        return self._names & self.all().keys()

    def values(self) -> list[Any]:
        return [*self.copy().values()]

    def items(self) -> list[tuple[str, Any]]:
        return [*self.copy().items()]

    def get(self, name: str, default: Any = None) -> Any:
        return self.all().get(name, default)

    def pop(self, name: str, default: Any = None) -> None:
        if name in self.all():
            self._remove(name)

    def __getitem__(self, name: str) -> Any:
        return self.all()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._write(name, value)

    def __delitem__(self, name: str) -> None:
        self._remove(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.keys())


def _in_dictionary(there: dict[str, Any], names: frozenset[str]) -> Names:
    """Of a module's globals, or an object's attributes."""
    return Names(names, there, there.__setitem__, there.__delitem__)


def _in_cells(cells: dict[str, CellType]) -> Names:
    def there() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, cell in cells.items():
            try:
                found[name] = cell.cell_contents
            except ValueError:  # nothing yet
                continue
        return found

    def write(name: str, value: Any) -> None:
        cells[name].cell_contents = value

    def remove(name: str) -> None:
        del cells[name].cell_contents

    return Names(frozenset(cells), there, write, remove)


def _in_defaults(function: FunctionType) -> Names:
    """Values of arguments that are not given."""

    def there() -> dict[str, Any]:
        return {str(number): value for number, value in enumerate(function.__defaults__ or ())}

    def write(number: str, value: Any) -> None:
        values = list(function.__defaults__ or ())
        values[int(number)] = value
        function.__defaults__ = tuple(values)

    return Names(frozenset(there()), there, write, lambda name: None)


def _in_class(kind: type[Any], names: frozenset[str]) -> Names:
    return Names(names, vars(kind), functools.partial(setattr, kind), functools.partial(delattr, kind))


def _in_object(thing: Any, names: frozenset[str]) -> Names:
    """Attributes of the object's own: in its dictionary, which differs by thread for some, or its slots."""
    slots = names & _slots(cast("type[Any]", type(thing)))
    if isinstance(thing, threading.local):
        by = functools.partial(setattr, thing), functools.partial(delattr, thing)
        return Names(names, lambda: thing.__dict__, *by)
    if not slots:
        return _in_dictionary(getattr(thing, "__dict__", {}), names)

    def there() -> Mapping[str, Any]:
        held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        return held | getattr(thing, "__dict__", {})

    # Not by what the class makes of it, which may be frozen.
    by = functools.partial(object.__setattr__, thing), functools.partial(object.__delattr__, thing)
    return Names(names, there, *by)


@functools.cache
def _slots(kind: type[Any]) -> frozenset[str]:
    return frozenset(name for each in kind.__mro__ for name in _as_names(vars(each).get("__slots__", ())))


@dataclass
class Elsewhere:
    """What the code of a layer names: `places` with values, and `names` of attributes of any object."""

    places: list[Names] = field(default_factory=list[Names])
    names: set[str] = field(default_factory=set[str])
    _named_by: dict[type[Any], frozenset[str]] = field(default_factory=dict[type[Any], frozenset[str]])

    def attributes(self, thing: Any) -> Names:
        """Those of an object that the layer's code, or the object's own, names."""
        kind = cast("type[Any]", type(thing))
        if kind not in self._named_by:
            by_methods = (_names_in(function.__code__) for function in _functions_of(kind))
            self._named_by[kind] = frozenset(self.names.union(*by_methods))
        return _in_object(thing, self._named_by[kind])


def elsewhere(layer: torch.nn.Module) -> Elsewhere:
    """Of all functions that its modules' forwards name, directly or not."""
    found = Elsewhere()
    kinds = {each: None for m in layer.modules() for each in type(m).__mro__ if _is_users(each.__module__)}
    ours = {_package(kind.__module__) for kind in kinds}

    def is_followed(module: Any) -> bool:
        return _is_users(module) and (_package(module) in ours or not _is_installed(_package(module)))

    waiting: list[Any] = [vars(module).get("forward") for module in layer.modules()]
    waiting += [vars(kind).get("forward") for kind in kinds]
    waiting += [one for module in layer.modules() for one in _code_in(vars(module).values())]
    seen: set[int] = set()
    classes = dict(kinds)
    namespaces: dict[int, tuple[dict[str, Any], set[str]]] = {}
    while waiting and len(seen) < _MOST:
        function = _function(waiting.pop())
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        waiting.append(getattr(function, "__wrapped__", None))
        if not is_followed(function.__globals__.get("__name__")):
            continue
        names = _names_in(function.__code__)
        found.names |= names
        values: list[Any] = []
        if vars(function).keys() & names:
            found.places.append(_in_dictionary(vars(function), names))
        if any(type(one) in (list, dict, set) for one in function.__defaults__ or ()):
            found.places.append(_in_defaults(function))
        if function.__closure__:
            cells = _in_cells(dict(zip(function.__code__.co_freevars, function.__closure__, strict=True)))
            found.places.append(cells)
            values += cells.values()
        for place in (function.__globals__, *_modules(function.__globals__, names, is_followed)):
            here = {name: place[name] for name in names & place.keys()}
            state = {name for name, value in here.items() if not isinstance(value, _NO_STATE)}
            namespaces.setdefault(id(place), (place, set()))[1].update(state)
            values += here.values()
        values += [vars(kind)[name] for kind in kinds for name in names & vars(kind).keys()]
        for value in values:
            if isinstance(value, type):
                if is_followed(value.__module__) and value not in classes:
                    classes[value] = None
                    waiting += _functions_of(value)
            else:
                waiting += _code_in([value])
    found.places += [_in_dictionary(place, frozenset(names)) for place, names in namespaces.values() if names]
    for kind in classes:
        here = {name for name in found.names & vars(kind).keys() if not _is_descriptor(vars(kind)[name])}
        if here:
            found.places.append(_in_class(kind, frozenset(here)))
    return found


@contextmanager
def context_as_it_was(had: dict[ContextVar[Any], Any]) -> Generator[None]:
    """Inside, context variables are as they were when `context_variables` told them."""
    set_now = [
        (variable, variable.set(value)) for variable, value in had.items() if variable.get(_MISSING) != value
    ]
    try:
        yield
    finally:
        for variable, token in reversed(set_now):
            variable.reset(token)


_MISSING: Any = object()


def context_variables() -> dict[ContextVar[Any], Any]:
    """Those that are numbers, texts and the like now: others may hold a graph."""
    return {variable: value for variable, value in copy_context().items() if isinstance(value, _PLAIN)}


def is_object(value: Any) -> bool:
    """Whether it is of a class of the user's that is no tensor, function or class."""
    kind = cast("type[Any]", type(value))
    if kind.__name__ in ("SimpleNamespace", "Namespace", "_local"):
        return True
    return _is_users(kind.__module__) and not isinstance(value, (torch.Tensor, *_NO_STATE))


def _is_users(module: Any) -> bool:
    return isinstance(module, str) and _package(module) not in _OTHERS


def _package(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def _is_installed(package: str) -> bool:
    """Of somebody else, who need not be followed unless the layer is of them."""
    paths: list[str] = list(getattr(sys.modules.get(package), "__path__", ()))
    paths.append(getattr(sys.modules.get(package), "__file__", None) or "")
    return any("site-packages" in path or "dist-packages" in path for path in paths)


def _is_descriptor(value: Any) -> bool:
    return isinstance(value, _NO_STATE) or hasattr(value, "__get__")


def _code_in(values: Iterable[Any]) -> Iterator[Any]:
    """Functions, those of objects, and those in lists and the like."""
    for value in values:
        if _function(value) is not None:
            yield value
        elif issubclass(type(value), list | tuple | dict):
            inner: Iterable[Any] = value.values() if issubclass(type(value), dict) else value
            yield from (one for one in islice(inner, _MOST_INSIDE) if _function(one) is not None)
        elif is_object(value):
            yield from _functions_of(cast("type[Any]", type(value)))


def _function(value: Any) -> FunctionType | None:
    while value is not None and not isinstance(value, FunctionType):
        if isinstance(value, MethodType | staticmethod | classmethod):
            value = cast("Any", value).__func__
        elif isinstance(value, functools.partial | functools.cached_property):
            value = cast("Any", value).func
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, _CACHED):
            value = cast("Any", value).__wrapped__
        else:
            return None
    return value


def _functions_of(kind: type[Any]) -> list[FunctionType]:
    values = (value for each in kind.__mro__ if _is_users(each.__module__) for value in vars(each).values())
    return [function for value in values if (function := _function(value)) is not None]


def _modules(
    here: dict[str, Any], names: frozenset[str], is_followed: Callable[[Any], bool]
) -> list[dict[str, Any]]:
    """The globals of modules that are named."""
    named = [here[name] for name in names & here.keys()]
    return [vars(one) for one in named if isinstance(one, ModuleType) and is_followed(one.__name__)]


@functools.cache
def _names_in(code: CodeType) -> frozenset[str]:
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset({*code.co_names, *code.co_freevars}.union(*inner))


def _as_names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
