"""Random numbers that a forward draws from elsewhere than torch's default generators.

torch brings those back, and no others, when it computes a part of the forward again: Python's and numpy's
global numbers, and generators that a module has as attributes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch

Ways = tuple["Callable[[], Any]", "Callable[[Any], Any]"]  # to read a state, and to write it
State = tuple["Callable[[Any], Any]", Any]  # what to write it with: numpy may be imported in between


class RandomNumbers:
    """All that a module can draw from, found when it is made; an attribute may get another value later."""

    def __init__(self, module: torch.nn.Module, more: Iterable[Any] = ()) -> None:
        """`more`: places beside the modules' attributes."""
        self._owned = [
            (place, key)
            for place in (*map(vars, module.modules()), *more)
            for key, value in place.items()
            if ways_of(value) is not None
        ]

    def states(self) -> list[State]:
        return states_of(self._ways())

    @contextmanager
    def as_they_were(self, states: list[State]) -> Generator[None]:
        """Inside they come again from `states` on; afterwards they go on from where they are now."""
        now = self.states()
        bring_back(states)
        try:
            yield
        finally:
            bring_back(now)

    def _ways(self) -> list[Ways]:
        # numpy imports its random numbers when they are first asked for: now, and not within a forward.
        numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
        ways = [(random.getstate, random.setstate)]
        if numpy is not None:
            ways.append((numpy.get_state, numpy.set_state))
        owned = [ways_of(place.get(key)) for place, key in self._owned]
        return [*ways, *(each or (_nothing, _nothing) for each in owned)]


def states_of(ways: list[Ways]) -> list[State]:
    return [(write, read()) for read, write in ways]


def bring_back(states: list[State]) -> None:
    for write, state in states:
        write(state)


def drawn_anew(pack: Any) -> bool:
    """Whether these hooks on saved tensors are of a checkpoint of torch's that draws random numbers anew
    (preserve_rng_state=False)."""
    frame = _held(pack, "frame") if getattr(pack, "__module__", None) == "torch.utils.checkpoint" else None
    return _held(getattr(frame, "recompute_fn", None), "preserve_rng_state") is False


def _held(function: Any, name: str) -> Any:
    """A variable in a function's closure; None where it has no such."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _nothing(_: Any = None) -> None: ...


def ways_of(source: Any) -> Ways | None:
    """How to read and write the state of a generator; None for what is none."""
    numpy: Any = sys.modules.get("numpy.random")
    if isinstance(source, torch.Generator):
        return source.get_state, source.set_state
    if isinstance(source, random.Random):
        return source.getstate, source.setstate
    if numpy is not None and isinstance(source, numpy.RandomState):
        state: Any = source
        return state.get_state, state.set_state
    if numpy is not None and isinstance(source, numpy.Generator):
        bits: Any = source.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None
