"""What can be held of a module's attributes for as long as a graph lives: nothing that has a graph itself.

An attribute of a graph's tensor would hold the graph, which holds the recomputation, which holds what it is
to bring back. So tensors are held without their graphs, and lists, dictionaries and the like as copies.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast
from weakref import ref

import torch

from lostflops.optimize.activations.layer.elsewhere import is_object

CHANGING = frozenset((list, dict, set, deque, OrderedDict, defaultdict, Counter))  # containers
CONTAINERS = CHANGING | {tuple, frozenset, torch.Size}
MOST = 4096  # values of a list, dictionary, set or array: of longer ones nothing is held
MOST_OBJECTS = 256  # that are looked into
_NOT_HELD: Any = object()
_PLAINEST = frozenset((bool, int, float, str, type(None)))  # as nearly all are: found sooner
_PLAIN: Any = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    range,
    slice,
    torch.dtype,
    torch.device,
)


Place = Any  # dict[str, Any], or Names that are looked up elsewhere
Values = list[tuple[Place, str, Any]]


@dataclass
class Held:
    """What there was: values that can be held, the tensors among them, and places of objects found inside."""

    values: Values
    tensors: list[torch.Tensor]
    objects: list[Any]


def held(
    places: list[Any], but: frozenset[str], attributes: Callable[[Any], Any], given: Iterable[Any] = ()
) -> Held:
    """Attributes whose values can be held, without graphs. `attributes` of an object are another place, also
    of those in what is `given`."""
    making = _Making()
    values: Values = []
    for value in given:
        making.made_of(value)
    waiting, done = list(places), 0
    for place in waiting:
        for key, value in place.items():
            if key not in but and (one := making.made_of(value)) is not _NOT_HELD:
                values.append((place, key, one))
        waiting += [attributes(thing) for thing in making.objects[done:MOST_OBJECTS]]
        done = len(making.objects)
    tensors = [one for one in making.known.values() if isinstance(one, torch.Tensor)]
    return Held(values, tensors, waiting[len(places) :])


def anew(values: Values) -> Values:
    """What was held, with containers of their own: what writes to them does not change what is held."""
    making = _Making()
    made = [one if type(one[2]) in _PLAINEST else (one[0], one[1], making.made_of(one[2])) for one in values]
    return [one for one in made if one[2] is not _NOT_HELD]


def without_graph(tensor: torch.Tensor) -> torch.Tensor | None:
    """None for a part of FSDP1's flat parameter, which comes and goes. Torch refuses to say of some."""
    try:
        if tensor.grad_fn is None:
            return tensor
    except RuntimeError:
        return None
    return None if type(tensor._base).__name__ == "FlatParameter" else detached(tensor)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    return plain.requires_grad_() if tensor.requires_grad else plain


class _Weakly:
    """An object that may have a graph, for as long as somebody else holds it."""

    def __init__(self, value: Any) -> None:
        self.there = ref(value)


class _Making:
    """`known` is what was made of the same before: what two attributes share, they share again."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.objects: list[Any] = []

    def made_of(self, value: Any) -> Any:
        kind = cast("Any", type(value))
        if kind in _PLAINEST or isinstance(value, _PLAIN) or _is_function(value):
            return value
        if kind is _Weakly:
            found = value.there()
            return _NOT_HELD if found is None else found
        if id(value) not in self.known:
            self.known[id(value)] = _NOT_HELD  # of a container that holds itself
            self.known[id(value)] = self._made_of(value, kind)
        return self.known[id(value)]

    def _made_of(self, value: Any, kind: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensor = without_graph(value)
            return _NOT_HELD if tensor is None else tensor
        if kind in CONTAINERS or _is_named_tuple(value):
            return self._copied(value, kind) if len(value) <= MOST else _NOT_HELD
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return value.copy() if value.size <= MOST and not value.dtype.hasobject else _NOT_HELD
        if is_object(value):
            self.objects.append(value)
        try:
            return _Weakly(value)
        except TypeError:
            return value if kind is object else _NOT_HELD

    def _copied(self, container: Any, kind: Any) -> Any:
        of_pairs = issubclass(kind, dict)
        made = [self.made_of(one) for one in (container.values() if of_pairs else container)]
        if any(one is _NOT_HELD for one in made):
            return _NOT_HELD
        if kind not in CHANGING and all(map(is_, container, made)):
            return container
        if of_pairs:
            filled: Any = copy.copy(container)
            filled.clear()
            for key, one in zip(container, made, strict=True):  # what `update` does differs
                filled[key] = one
            return filled
        if issubclass(kind, deque):
            return deque(made, container.maxlen)
        of_kind: Any = kind
        return of_kind(*made) if _is_named_tuple(container) else of_kind(made)


def _is_named_tuple(value: Any) -> bool:
    return issubclass(type(value), tuple) and hasattr(value, "_fields")


def _is_function(value: Any) -> bool:
    """One that refers to nothing but its module."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    return isinstance(value, BuiltinFunctionType)
