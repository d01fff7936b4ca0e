"""What a layer is given in lists, dictionaries and the like: as it was, when the layer is computed again.

torch keeps the tensors that a layer is given themselves, and raises when one was written since. What lies
inside of a container it passes on as it is then: a list that the layer, or one after it, has added to, a
mask in a dictionary that was written for the next microbatch. A generator of random numbers has gone on.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from operator import is_
from typing import Any, cast

import torch

from lostflops.optimize.activations.layer.attributes import CHANGING
from lostflops.optimize.activations.layer.state import fill, version_of
from lostflops.optimize.activations.random_numbers import Ways, bring_back, states_of, ways_of
from lostflops.optimize.refused import Refused


class LayerArguments:
    """Of one forward, when it begins.

    Lists and the like are not held themselves: what the layer puts into one that it is given has a graph,
    which holds the recomputation. Those inside of objects are, as are the objects.
    """

    def __init__(self, values: Sequence[Any], name: str) -> None:
        self._name = name
        self._held: list[tuple[Any, Any]] = []  # containers inside of objects, and copies of them
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self._draws: list[Ways] = []  # from generators that it is given
        seen: set[tuple[int, bool]] = set()
        for value in values:
            if not isinstance(value, torch.Tensor):
                self._look_into(value, seen, of_object=False)
        self._numbers = states_of(self._draws)
        self._stay = frozenset(id(each) for each, _ in self._held)
        had = _copied(values, self._stay)
        self._had = {n: own for n, (own, one) in enumerate(zip(had, values, strict=True)) if own is not one}

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those in lists and the like."""
        return (tensor for tensor, _ in self._tensors)

    def without_containers(self, values: Sequence[Any]) -> list[Any]:
        """In the place of lists and the like the tensors in them, whose devices torch looks at."""
        inside = tuple(self.tensors())
        return [inside if number in self._had else value for number, value in enumerate(values)]

    def with_containers(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Lists and the like anew, with what they held: what writes to them reaches nobody else."""
        made = dict(zip(self._had, _copied([*self._had.values()], self._stay), strict=True))
        return tuple(made.get(number, value) for number, value in enumerate(values))

    def _look_into(self, value: Any, seen: set[tuple[int, bool]], of_object: bool) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors.append((value, version_of(value)))
            return
        inside = _inside(value)
        if inside is None:
            if (ways := ways_of(value)) is not None:
                self._draws.append(ways)
            return
        of_object |= inside is not value or not _is_plain(value)
        if (id(inside), of_object) in seen:
            return
        seen.add((id(inside), of_object))
        if type(inside) in CHANGING and of_object:
            self._held.append((inside, inside.copy()))
        for each in inside.values() if issubclass(type(inside), dict) else inside:
            self._look_into(each, seen, of_object)

    @contextmanager
    def again(self) -> Generator[None]:
        """Inside containers hold what they held at the forward, and afterwards what they hold now."""
        for tensor, version in self._tensors:
            if version_of(tensor) != version:
                raise Refused(
                    f"a tensor that '{self._name}' was given in a list or the like (shape "
                    f"{list(tensor.shape)}) was written between the forward and the backward, which would "
                    "compute the layer again with another one",
                    "make a new tensor instead of writing to it, or do not checkpoint this layer: layers=...",
                )
        now, numbers = [(each, each.copy()) for each, _ in self._held], states_of(self._draws)
        for each, were in self._held:
            fill(each, were)
        bring_back(self._numbers)
        try:
            yield
        finally:
            bring_back(numbers)
            for each, were in now:
                fill(each, were)


def _inside(value: Any) -> Any:
    """What holds the parts of a value; None for what has none."""
    if is_dataclass(value) and hasattr(value, "__dict__"):
        return None if isinstance(value, type) else cast("Any", vars(cast("Any", value)))
    return cast("Any", value) if isinstance(value, (*CHANGING, tuple)) else None


def _is_plain(value: Any) -> bool:
    """Whether it is a container of which a copy is as good."""
    kind = cast("Any", type(value))
    return kind in CHANGING or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields"))


def _copied(values: Iterable[Any], stay: frozenset[int]) -> list[Any]:
    """Lists and the like, and those in them, as copies, but for some by id; what is the same one stays so."""
    known: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        kind = cast("Any", type(value))
        if id(value) in known:
            return known[id(value)]
        if id(value) in stay or not _is_plain(value):
            return value
        if kind not in CHANGING:
            parts = [copied(one) for one in value]
            new = tuple(parts) if kind is tuple else kind(*parts)
            known[id(value)] = value if all(map(is_, parts, value)) else new
            return known[id(value)]
        known[id(value)] = own = value.copy()
        pairs: list[tuple[Any, Any]] = [*(own.items() if issubclass(kind, dict) else enumerate(own))]
        for key, one in () if kind is set else pairs:  # of a set no member changes
            own[key] = copied(one)
        return own

    return [copied(value) for value in values]


def emptied(cache: Any) -> Any:
    """An empty key-value cache like this one, for one layer to fill: with it a layer computes as it does
    with the model's, whose keys lie in memory otherwise than without any, and round otherwise."""
    own: Any = copy.copy(cache)
    for name in ("self_attention_cache", "cross_attention_cache"):
        if (part := getattr(cache, name, None)) is not None:
            setattr(own, name, emptied(part))
    held = cast("dict[str, Any]", vars(own))
    for name, value in held.items():
        if isinstance(value, list):  # of layers, or of keys and of values
            held[name] = [copy.copy(each) for each in cast("list[Any]", value)]
        elif isinstance(value, dict):
            held[name] = dict(cast("dict[Any, Any]", value))
    return own
