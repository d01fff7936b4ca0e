"""What can be held of a module's attributes for as long as a graph lives: nothing that has a graph itself.

An attribute of a graph's tensor would hold the graph, which holds the recomputation, which holds what it is
to bring back. So tensors are held without their graphs, and lists, dictionaries and the like as copies.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import torch

CONTAINERS = (list, dict, set, deque)
MOST = 4096  # values of a list, dictionary or set: of longer ones nothing is held
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


Place = dict[str, Any]
Values = list[tuple[Place, str, Any]]


def held(places: list[Place], but: frozenset[str]) -> tuple[Values, list[torch.Tensor]]:
    """Attributes whose values can be held, without graphs, and the tensors among those."""
    known: dict[int, Any] = {}
    values: Values = []
    for place in places:
        for key, value in place.items():
            if key not in but and (one := _made_of(value, known)) is not _NOT_HELD:
                values.append((place, key, one))
    return values, [one for one in known.values() if isinstance(one, torch.Tensor)]


def anew(values: Values) -> Values:
    """What was held, with containers of their own: what writes to them does not change what is held."""
    known: dict[int, Any] = {}
    return [one if type(one[2]) in _PLAINEST else (one[0], one[1], _made_of(one[2], known)) for one in values]


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


def _made_of(value: Any, known: dict[int, Any]) -> Any:
    """`known` is what was made of the same before: what two attributes share, they share again."""
    if type(value) in _PLAINEST or isinstance(value, _PLAIN) or _is_function(value):
        return value
    if id(value) not in known:
        known[id(value)] = _NOT_HELD  # of a container that holds itself
        if isinstance(value, torch.Tensor):
            tensor = without_graph(value)
            known[id(value)] = _NOT_HELD if tensor is None else tensor
        elif type(value) in (*CONTAINERS, tuple, frozenset, torch.Size) and len(value) <= MOST:
            known[id(value)] = _copied(value, known)
    return known[id(value)]


def _copied(container: Any, known: dict[int, Any]) -> Any:
    kind = cast("Any", type(container))
    made = [_made_of(one, known) for one in (container.values() if kind is dict else container)]
    if any(one is _NOT_HELD for one in made):
        return _NOT_HELD
    if kind is dict:
        return dict(zip(cast("dict[Any, Any]", container), made, strict=True))
    if kind is deque:
        return deque(made, cast("deque[Any]", container).maxlen)
    return cast("Any", type(container))(made)


def _is_function(value: Any) -> bool:
    """One that refers to nothing but its module."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    return isinstance(value, BuiltinFunctionType)
