"""Random layers, checkpointed or offloaded: the same losses, gradients, counts and random numbers to the bit.

LOSTFLOPS_RANDOM_PROGRAMS=2000 runs as many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice

torch.set_num_threads(1)

PROGRAMS = int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "8"))
SIDE = 8
CALLS, GENERATOR, CHANCE = 0, torch.Generator(), random.Random(0)  # of all layers


@dataclass
class Given:
    """What a layer is given besides its input."""

    mask: torch.Tensor
    flag: bool
    bag: dict[str, Any]
    seen: Any


@dataclass
class Result:
    x: torch.Tensor
    more: torch.Tensor


class Scaled(torch.autograd.Function):
    """Keeps a random number beside what it saves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = float(torch.rand(1))
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.factor + 0 * x


def in_place(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    y = x * 2
    return y.add_(layer.own).sin_()


def under_autocast(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (layer.linear(x) @ layer.linear.weight).float()


def without_autocast(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return layer.linear(x.float())


def bag(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    given.bag["count"] += 1
    given.bag["seen"].append(x.detach().mean())
    return x * given.bag["count"]


def buffer(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    layer.mean = layer.mean * 0.9 + x.detach().flatten(0, -2).mean(0) * 0.1
    return x - layer.mean


def counted(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    layer.calls += 1
    return x * (1 + layer.calls % 3)


def hooked(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return y


def hooks_from_outside(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    """On gradients of what comes into the layer, and of a weight."""
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 0.5)
    handle = layer.own.register_hook(lambda gradient: gradient * 0.75)
    layer.handles.append(handle)
    return x * layer.own


def counts_everywhere(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    global CALLS
    CALLS += 1
    layer.state.calls += 1
    layer.array[0] += 1
    layer.deep["more"][0]["calls"] += 1
    given.seen.losses.append(x.square().mean())
    factor = 1 + (CALLS + layer.state.calls + layer.array[0] + layer.deep["more"][0]["calls"]) % 5
    return (x * float(factor + len(given.seen.losses) % 3)).sin()


def draws_from_all(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    if CHANCE.random() < 0.2:
        return x
    if torch.rand(1, generator=GENERATOR).item() < 0.2:
        return x.sin()
    return x.cos() * torch.randn(x.shape, generator=layer.state.generator)


def beside(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    """Another module that is none of the layer's."""
    return layer.hidden[0](x).tanh()


def slope(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    """Saves views and an integer alias, and keeps a number on its context."""
    y = x.unflatten(-1, (2, -1))
    return (y.transpose(-1, -2) @ y).flatten(-2)[..., :SIDE] + y[..., ::2].repeat_interleave(2, -1).flatten(
        -2
    )


def attention(layer: Any, x: torch.Tensor, given: Given) -> torch.Tensor:
    x, p = x[:, None], layer.p if layer.training else 0.0
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=p)[:, 0]


Operation = Callable[[Any, torch.Tensor, Given], torch.Tensor]
OPERATIONS: tuple[Operation, ...] = (
    in_place, under_autocast, without_autocast, bag, buffer, counted, hooked, attention, slope,
    hooks_from_outside, counts_everywhere, draws_from_all, beside,
    lambda layer, x, given: layer.linear(x),
    lambda layer, x, given: layer.norm(x),
    lambda layer, x, given: layer.normed(x),
    lambda layer, x, given: layer.recurrent(x)[0],
    lambda layer, x, given: functional.dropout(x, layer.p, layer.training),
    lambda layer, x, given: x * torch.rand_like(x) + torch.randn(SIDE),
    lambda layer, x, given: x.masked_fill(given.mask, 0.0),
    lambda layer, x, given: torch.relu(x) if given.flag else torch.tanh(x),
    lambda layer, x, given: x * 2 if layer.training else x,
    lambda layer, x, given: x * x.detach().softmax(-1),
    lambda layer, x, given: x.reshape(-1, SIDE // 2, 2).transpose(1, 2).reshape(x.shape),
    lambda layer, x, given: Scaled.apply(x),
)  # fmt: skip


class Layer(nn.Module):
    def __init__(self, choice: random.Random) -> None:
        super().__init__()
        self.operations = tuple(choice.choices(OPERATIONS, k=choice.randrange(1, 5)))
        self.linear, self.norm = nn.Linear(SIDE, SIDE), nn.LayerNorm(SIDE)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(SIDE, SIDE))
        self.recurrent = nn.GRU(SIDE, SIDE, batch_first=True)
        self.own = nn.Parameter(torch.randn(SIDE))
        self.register_buffer("mean", torch.zeros(SIDE))
        self.state = SimpleNamespace(calls=0, generator=torch.Generator().manual_seed(5))
        self.array, self.deep = np.zeros(2), {"more": [{"calls": 0}], "odd": object()}
        self.hidden, self.handles = [nn.Linear(SIDE, SIDE)], list[Any]()
        self.p, self.calls, self.gives = choice.choice([0.0, 0.3]), 0, choice.randrange(4)

    def forward(self, x: torch.Tensor, *, given: Given) -> Any:
        for operation in self.operations:
            x = operation(self, x, given)
        return [x, (x, 3), Result(x, x.mean()), {"x": x, "n": None}][self.gives]


def tensor_of(result: Any) -> torch.Tensor:
    if isinstance(result, tuple | dict):
        return result[0] if isinstance(result, tuple) else result["x"]
    return result.x if isinstance(result, Result) else result


def lived(seed: int, remedies: tuple[str, ...]) -> list[Any]:
    """Three steps of two microbatches; all that can be seen of them."""
    global CALLS
    choice = random.Random(seed)
    torch.manual_seed(seed), GENERATOR.manual_seed(seed), CHANCE.seed(seed)
    CALLS, seen = 0, SimpleNamespace(losses=[])
    layers = nn.ModuleList(Layer(choice) for _ in range(choice.randrange(1, 4)))
    runs = [*layers, layers[0]] if choice.random() < 0.2 else list(layers)
    verify = choice.choice(["first step", None])
    applied: list[Any] = []
    if "checkpoint" in remedies:
        applied.append(optimize.checkpoint(layers, layers=list(layers), keep=(), verify=verify))
    if "offload" in remedies:
        device = ThreadedDevice()
        applied.append(optimize.offload(layers, plan="everything", threshold=1, device=device).apply())
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    outside, late, twice, evaluated = (choice.random() < 0.25 for _ in range(4))
    found: list[Any] = []
    for _ in range(3):
        losses: list[torch.Tensor] = []
        for _ in range(2):
            x = torch.randn(2, 3, SIDE, requires_grad=choice.random() < 0.5)
            given = Given(torch.rand(2, 3, SIDE) < 0.3, choice.random() < 0.5, {"count": 0, "seen": []}, seen)
            with torch.autocast("cpu", torch.bfloat16, enabled=outside):
                for layer in runs:
                    x = tensor_of(layer(x, given=given))
            losses.append(x.float().square().mean() + layers[0].own.sum())
            if seen.losses and choice.random() < 0.7:
                losses[-1] = losses[-1] + torch.stack(seen.losses).float().mean()
            seen.losses.clear()
            found.append((losses[-1].item(), given.bag["count"], len(given.bag["seen"])))
            layers.train(not evaluated)
            for loss in () if late else losses[-1:]:
                loss.backward(retain_graph=twice)
                if twice:
                    loss.backward()
            layers.train()
        for loss in losses if late else ():
            loss.backward()
        found.append([None if each.grad is None else each.grad.tolist() for each in layers.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        found.append([*(b.tolist() for b in layers.buffers()), *(layer.calls for layer in layers)])
        found.append(
            (torch.rand(1).item(), CHANCE.random(), torch.rand(1, generator=GENERATOR).item(), CALLS)
        )
        found.append([(layer.state.calls, layer.array.tolist(), str(layer.deep["more"])) for layer in layers])
        found.append(len(seen.losses))
        for layer in layers:
            while layer.handles:
                layer.handles.pop().remove()
    for remedy in reversed(applied):
        remedy.undo()
    return [*found, [each.tolist() for each in layers.parameters()]]


def test_random_layers_have_the_same_gradients_counts_and_random_numbers() -> None:
    for seed in range(PROGRAMS):
        expected = lived(seed, ())
        assert lived(seed, ("checkpoint",)) == expected, seed
        both = ("checkpoint", "offload")
        assert lived(seed, both if seed % 2 else ("offload",)) == expected, seed
