"""What a layer is given in lists, dictionaries and the like: as it was, when the layer is computed again.

torch keeps the tensors that a layer is given themselves, and raises when one was written since. What lies
inside of a container it passes on as it is then: a list that the layer, or one after it, has added to, a
mask in a dictionary that was written for the next microbatch. A generator of random numbers has gone on.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, cast

import torch

from lostflops.optimize.activations.layer.attributes import CHANGING
from lostflops.optimize.activations.layer.state import fill, version_of
from lostflops.optimize.activations.random_numbers import Ways, bring_back, states_of, ways_of
from lostflops.optimize.refused import Refused


class LayerArguments:
    """Of one forward, when it begins."""

    def __init__(self, values: Iterable[Any], name: str) -> None:
        self._name = name
        self._held: list[tuple[Any, Any]] = []  # containers, and copies of them
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self._draws: list[Ways] = []  # from generators that it is given
        seen: set[int] = set()
        for value in values:
            if not isinstance(value, torch.Tensor):
                self._look_into(value, seen)
        self._numbers = states_of(self._draws)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those in lists and the like."""
        return (tensor for tensor, _ in self._tensors)

    def _look_into(self, value: Any, seen: set[int]) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors.append((value, version_of(value)))
            return
        inside = _inside(value)
        if inside is None:
            if (ways := ways_of(value)) is not None:
                self._draws.append(ways)
            return
        if id(inside) in seen:
            return
        seen.add(id(inside))
        if type(inside) in CHANGING:
            self._held.append((inside, inside.copy()))
        for each in inside.values() if issubclass(type(inside), dict) else inside:
            self._look_into(each, seen)

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
