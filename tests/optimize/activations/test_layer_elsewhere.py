"""A layer that is computed again sees what its forward saw elsewhere: in objects, globals, closures, classes.

What it writes there counts once; memory of others that it writes in place, and memory that is written before
its backward, is refused.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from lostflops import optimize
from lostflops.optimize.refused import Refused

torch.set_num_threads(1)

SIDE = 6
CALLS = 0
LOSSES: list[Any] = []
STATES: dict[str, Any] = {}
GENERATOR, CHANCE = torch.Generator(), random.Random(0)
CONTEXT = ContextVar("CONTEXT", default=0)
THREAD = threading.local()


class Counts:
    def __init__(self) -> None:
        self.calls, self.losses, self.inner = 0, list[Any](), SimpleNamespace(calls=0, odd=object())

    def count(self) -> int:
        self.calls += 1
        self.inner.calls += 2
        return self.calls + self.inner.calls


@dataclass(slots=True)
class Slotted:
    calls: int = 0


@dataclass(frozen=True)
class Frozen:
    calls: list[int]


class Pair(NamedTuple):
    calls: list[int]
    odd: Any


class Beside(nn.Module):
    """A module of nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.ones(SIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.mean * self.calls


def in_a_global(layer: Any, given: Any) -> int:
    global CALLS
    CALLS += 1
    return CALLS


def in_a_list_and_a_dictionary_of_all(layer: Any, given: Any) -> int:
    LOSSES.append(object())
    STATES.setdefault("seen", []).append(len(LOSSES))
    return len(LOSSES) + len(STATES["seen"])


def in_its_class(layer: Any, given: Any) -> int:
    type(layer).calls += 1
    return type(layer).calls


def by_generators_of_all(layer: Any, given: Any) -> float:
    return float(torch.rand(1, generator=GENERATOR)) + CHANCE.random()


def in_a_variable_of_the_context(layer: Any, given: Any) -> int:
    return CONTEXT.get()


def in_a_variable_of_the_thread(layer: Any, given: Any) -> int:
    THREAD.calls = getattr(THREAD, "calls", 0) + 1
    return THREAD.calls


def in_an_object(layer: Any, given: Any) -> int:
    layer.counts.losses.append(object())
    if not hasattr(layer.counts, "later"):
        layer.counts.later = 0
    layer.counts.later += 1
    return layer.counts.count() + len(layer.counts.losses) + layer.counts.later


def in_objects_without_a_dictionary(layer: Any, given: Any) -> int:
    layer.slotted.calls += 1
    layer.frozen.calls.append(1)
    layer.pair.calls.append(1)
    return layer.slotted.calls + len(layer.frozen.calls) + len(layer.pair.calls)


def in_containers_of_all_kinds(layer: Any, given: Any) -> int:
    layer.counter["calls"] += 1
    layer.default["calls"] += 1
    layer.ordered["calls"] = layer.ordered.get("calls", 0) + 1
    layer.array[0] += 1
    layer.deep["here"]["calls"] += 1
    of_these = (layer.counter, layer.default, layer.ordered, layer.deep["here"])
    return sum(each["calls"] for each in of_these) + int(layer.array[0])


def in_what_it_is_given(layer: Any, given: Any) -> int:
    given.seen.calls += 1
    given.losses.append(1)
    return given.seen.calls + len(given.losses)


def in_a_module_of_nobody(layer: Any, given: Any) -> torch.Tensor:
    return layer.hidden[0](torch.ones(SIDE)) + layer.hidden[0].calls


@lru_cache
def cached(number: int) -> Any:
    return SimpleNamespace(number=number)


def in_a_module_of_python(layer: Any, given: Any) -> int:
    sys.modules[__name__].__dict__["CALLS"] += 1
    return CALLS + cached(3).number


def in_a_function(layer: Any, given: Any, seen: list[int] = []) -> int:  # noqa: B006
    seen.append(1)
    in_a_function.calls += 1  # type: ignore[attr-defined]
    return in_a_function.calls + len(seen)  # type: ignore[attr-defined]


in_a_function.calls = 0  # type: ignore[attr-defined]


def by_a_function_of_its_own(layer: Any, given: Any) -> int:
    return sum(one(layer, given) for one in layer.own)


WAYS: tuple[Callable[[Any, Any], Any], ...] = (
    in_a_global, in_a_list_and_a_dictionary_of_all, in_its_class, by_generators_of_all, in_an_object,
    in_a_variable_of_the_context, in_a_variable_of_the_thread, in_objects_without_a_dictionary,
    in_containers_of_all_kinds, in_what_it_is_given, in_a_module_of_nobody, in_a_module_of_python,
    in_a_function, by_a_function_of_its_own,
)  # fmt: skip


def decorated(forward: Any) -> Any:
    calls = 0

    @wraps(forward)
    def counted(layer: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return forward(layer, x * calls, given)

    return counted


def layers_of(way: Callable[[Any, Any], Any]) -> nn.ModuleList:
    class Layer(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(SIDE, SIDE)
            self.counts, self.slotted, self.hidden = Counts(), Slotted(), [Beside()]
            self.frozen, self.pair = Frozen([]), Pair([], object())
            self.counter, self.default = Counter[str](), defaultdict[str, int](int)
            self.ordered, self.array = OrderedDict[str, int](), np.zeros(2)
            self.own = [partial(in_a_global), in_an_object]
            self.deep = {"here": {"calls": 0}, "odd": object()}

        @decorated
        def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
            factor = way(self, given)
            return (self.linear(x) * factor).sin() * factor

    return nn.ModuleList(Layer() for _ in range(2))


def trained(way: Any, checkpointed: bool, verify: Any = None) -> Any:
    """Two microbatches, then their backwards, twice: what can be seen of them."""
    global CALLS
    CALLS, in_a_function.calls = 0, 0  # type: ignore[attr-defined]
    (in_a_function.__defaults__ or ([],))[0].clear()
    LOSSES.clear(), STATES.clear(), GENERATOR.manual_seed(0), CHANCE.seed(0), vars(THREAD).clear()
    torch.manual_seed(0)
    layers: Any = layers_of(way)
    remedy = (
        optimize.checkpoint(layers, layers=list(layers), keep=(), verify=verify) if checkpointed else None
    )
    given = SimpleNamespace(seen=Counts(), losses=[])
    found: list[Any] = []
    for step in range(2):
        losses: list[Any] = []
        for number in range(2):
            token = CONTEXT.set(step + number)
            x = torch.ones(2, SIDE)
            for layer in layers:
                x = layer(x, given)
            losses.append(x.square().mean())
            CONTEXT.reset(token)
        for loss in losses:
            loss.backward()
        found += [loss.item() for loss in losses] + [p.grad.tolist() for p in layers.parameters()]
    if remedy:
        assert remedy.recomputed == 8
        remedy.undo()
    given.factors = [float(torch.as_tensor(way(layer, given)).sum()) for layer in layers]
    return [*found, CALLS, len(LOSSES), {**STATES}, vars(THREAD), given.factors, CHANCE.random()]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_layer_counts_elsewhere_is_counted_once_and_read_as_it_was(way: Any) -> None:
    plain = str(trained(way, checkpointed=False))
    assert str(trained(way, checkpointed=True)) == plain
    assert str(trained(way, checkpointed=True, verify="first step")) == plain


class Neighbour(nn.Module):
    """Reads, or writes to, what another one has."""

    def __init__(self, beside: Any, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.hidden, self.does = nn.Linear(SIDE, SIDE), [beside], does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self.hidden[0], self.linear(x)).sin()


def in_place(beside: Any, x: torch.Tensor) -> torch.Tensor:
    beside.mean.mul_(0.5)
    return x * beside.mean


def through_data(beside: Any, x: torch.Tensor) -> torch.Tensor:
    beside.mean.data += 1
    return x


def a_view(beside: Any, x: torch.Tensor) -> torch.Tensor:
    torch.add(beside.mean[:2], 1, out=beside.mean[2:4])
    return x


def statistics(beside: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(x, beside.mean, beside.mean.clone(), training=beside.training)


@pytest.mark.parametrize("does", [in_place, through_data, a_view, statistics])
def test_a_layer_that_writes_to_memory_of_another_module_is_refused_before_it_does(does: Any) -> None:
    beside = Beside().eval() if does is statistics else Beside()
    layers = nn.Sequential(*(Neighbour(beside, does) for _ in range(2)))
    if does is statistics:  # in training only
        with optimize.checkpoint(layers.eval(), layers=list(layers), keep=()):
            layers(torch.randn(4, SIDE)).sum().backward()
        layers.train(), beside.train()
    with (
        optimize.checkpoint(layers, layers=list(layers), keep=()),
        pytest.raises(Refused, match=r"writes in place to a tensor that it has not made \(shape \[[26]\]\)"),
    ):
        layers(torch.randn(4, SIDE))
    assert beside.mean.tolist() == [1.0] * SIDE


def test_memory_that_a_layer_made_or_gets_from_a_list_may_be_written() -> None:
    def writes(_: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([1.0] * SIDE)
        made[0] = 2
        y = x * made
        y[:, 1:3] += 1
        torch.mul(x, 2, out=torch.empty(0)) if not x.requires_grad else None
        return y

    layers = nn.Sequential(*(Neighbour(Beside(), writes) for _ in range(2)))
    with optimize.checkpoint(layers, layers=list(layers), keep=()):
        layers(torch.randn(4, SIDE)).sum().backward()


def test_memory_of_another_module_that_is_written_before_the_backward_is_refused() -> None:
    beside = Beside()
    layers = nn.Sequential(*(Neighbour(beside, lambda beside, x: x * beside.mean) for _ in range(2)))
    with optimize.checkpoint(layers, layers=list(layers), keep=()):
        for late in (False, True):
            loss = layers(torch.randn(4, SIDE)).sum()
            if late:
                beside.mean += 1
                with pytest.raises(Refused, match=r"or that it reads .* was written between the forward and"):
                    loss.backward()
            else:
                loss.backward()
