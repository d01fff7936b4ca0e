"""What a program does with the graph around checkpointed layers is as without, or refused in words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from lostflops import optimize
from lostflops.optimize.refused import Refused

SIDE = 8


class Layer(nn.Module):
    """`hook` does something with the graph in the forward."""

    hook: Callable[..., Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.hook is not None and x.requires_grad:
            self.hook(self, x)
        return x + self.second(self.first(x).sigmoid())


def layers(hook: Callable[..., Any] | None = None) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIDE, SIDE), *(Layer() for _ in range(3)))
    for layer in model:
        layer.hook = hook
    return model


def checkpointed(model: Any, **more: Any) -> Any:
    return optimize.checkpoint(model, layers=list(model)[1:], **{"keep": (), **more})


def gradients(model: Any, loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> Any:
    x = torch.linspace(-1, 1, 3 * SIDE).view(3, SIDE)
    found = model(x).square().mean() if loss is None else loss(model, x)
    found.backward()
    return [found.item(), *(None if p.grad is None else p.grad.tolist() for p in model.parameters())]


def test_hooks_on_nodes_of_the_graph_run_once() -> None:
    """Of the input's node, and of the one that adds up a weight's gradient."""
    calls = Counter[str]()

    def halved(given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        calls["before"] += 1
        return tuple(each * 0.5 for each in given)

    def hook(layer: Any, x: Any) -> None:
        x.grad_fn.register_prehook(halved)
        x.grad_fn.register_hook(lambda *_: calls.update(["after"]))
        weight = layer.first.weight
        layer.adds_up = weight.view_as(weight).grad_fn.next_functions[0][0]
        layer.adds_up.register_prehook(halved)

    expected = gradients(layers(hook))
    counted = calls.copy()
    calls.clear()
    model = layers(hook)
    own = vars(torch.autograd.Function).copy()
    with checkpointed(model):
        assert gradients(model) == expected
    assert calls == counted == {"before": 6, "after": 3}
    assert vars(torch.autograd.Function) == own


def test_a_gradient_is_retained_where_hooks_around_the_model_made_the_input_anew() -> None:
    def hook(layer: Any, x: torch.Tensor) -> None:
        layer.had = x
        x.retain_grad()

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x).square().mean()

    model, other = layers(hook), layers(hook)
    with checkpointed(model):
        assert gradients(model, loss) == gradients(other, loss)
    assert [one.had.grad.tolist() for one in model[1:]] == [one.had.grad.tolist() for one in other[1:]]


def test_weights_that_are_parametrized_once_are_so_in_the_recomputation() -> None:
    """In the forward that computes them, in another that finds them, and in a backward inside or after."""

    def within(model: Any, x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached():
            loss = model(x).square().mean() + model(x + 1).square().mean()
            loss.backward(retain_graph=True)
        return loss

    def expected(remedy: bool) -> Any:
        model = layers()
        for layer in model[1:]:
            parametrizations.weight_norm(layer.first)
        with checkpointed(model) if remedy else parametrize.cached():
            return gradients(model, within)

    assert expected(remedy=True) == expected(remedy=False)
    assert not parametrize._cache_enabled


def test_within_a_checkpoint_that_draws_anew_what_draws_nothing_is_the_same() -> None:
    model = layers()
    expected = gradients(model, _within_another)
    model.zero_grad()
    with checkpointed(model, verify=None):
        assert gradients(model, _within_another) == expected


def _forward_mode(model: Any, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))).tangent.sum()


def _within_another(model: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False, preserve_rng_state=False).sum()  # type: ignore[no-any-return]


def _draws(layer: Layer, x: torch.Tensor) -> None:
    torch.rand(1)


def _second_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).sum()
    torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return loss


def _takes_a_gradient(layer: Layer, x: torch.Tensor) -> None:
    torch.autograd.grad(layer.first(x).sum(), layer.first.weight)


class _Doubled(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is nn.functional.linear else made


def _under_a_mode(model: Any, x: torch.Tensor) -> torch.Tensor:
    model(x).sum().backward()  # compared, without one
    with _Doubled():
        return model(x).sum()


def _runs_out() -> Callable[..., None]:
    numbers = iter(range(3))
    return lambda *_: next(numbers)


def _later(hook: Callable[..., None], first: int) -> Callable[..., None]:
    """Not yet in the first forward of each layer, which is watched."""
    calls = Counter[int]()

    def hooked(layer: Layer, x: torch.Tensor) -> None:
        calls[id(layer)] += 1
        if calls[id(layer)] > first:
            hook(layer, x)

    return hooked


def _adds_up_gradients(layer: Layer, x: torch.Tensor) -> None:
    layer.first(x.detach()).sigmoid().sum().backward()


def _twice(model: Any, x: torch.Tensor) -> torch.Tensor:
    model(x).sum().backward()
    return model(x).sum()


def _until(count: int) -> Callable[..., None]:
    """In so many calls. Iterators are read as they are when a layer is computed again."""
    calls = itertools.count()

    def hook(layer: Layer, x: torch.Tensor) -> None:
        if next(calls) < count:
            layer.first(x).sigmoid()

    return hook


@pytest.mark.parametrize(
    ("keep", "hook", "loss", "words"),
    [
        ((), None, _forward_mode, "inside torch.autograd.forward_ad.dual_level"),
        (("first",), None, _forward_mode, "inside torch.autograd.forward_ad.dual_level"),
        (("first",), None, _second_backward, r"a second backward goes through '3'.*keep=\(\)"),
        ((), _draws, _within_another, r"'1' draws random numbers within .* \(preserve_rng_state=False\)"),
        ((), _takes_a_gradient, None, "'1' takes a gradient in its forward"),
        ((), _later(_adds_up_gradients, 1), _twice, "'3' adds up gradients in its forward"),
        ((), None, _under_a_mode, "something else the second time.*ran under _Doubled"),
        ((), _runs_out(), None, "'3' raises StopIteration when it is computed again"),
        ((), _until(3), None, "saves fewer tensors for its backward when it is"),
    ],
)  # fmt: skip
def test_what_cannot_be_the_same_is_refused_and_undone(keep: Any, hook: Any, loss: Any, words: str) -> None:
    model = layers(hook)
    checkpointed(model, keep=keep, verify="first step" if loss is _under_a_mode else None)
    with pytest.raises(Refused, match=f"(?s){words}"):
        gradients(model, loss)
    assert "forward" not in vars(model[1])
