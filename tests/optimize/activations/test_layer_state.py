"""A layer that is computed again sees what its forward saw, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused

torch.set_num_threads(1)

SIDE = 16


class Layer(nn.Module):
    """`forward` leaves behind a count, a load, an appended value, and a rate that depends on `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE, 2 * SIDE), nn.Linear(2 * SIDE, SIDE)
        self.calls, self.temperature = 0, 1.0
        self.load, self.mask = torch.zeros(2 * SIDE), torch.ones(2 * SIDE)
        self.register_buffer("mean", torch.zeros(2 * SIDE))
        self.register_buffer("scale", torch.ones(2 * SIDE))
        self.seen: list[float] = []
        self.by_size: dict[str, int] = {}
        self.sizes = {0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.later = getattr(self, "later", 0) + 2
        wide = self.first(x).sigmoid() * self.scale
        self.load = self.load + (wide.detach() > 0.5).sum(0)
        self.mean = 0.9 * self.mean + 0.1 * wide.detach().mean(0)
        self.seen.append(float(wide.detach().sum()))
        self.by_size["all"] = self.by_size.get("all", 0) + len(x)
        self.sizes.add(self.calls)
        self.balance = wide.square().mean()
        wide = wide * (self.temperature if self.training else 0.5) * (1 + 0.1 * self.calls) + self.mean
        return x + self.second(functional.dropout(wide.sin(), 0.2, self.training))


class Model(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer() for _ in range(3)]
        self.layers = nn.ModuleList([*layers, layers[0]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def left_behind(model: Model) -> Any:
    return [
        (
            layer.calls,
            layer.later,
            layer.load.tolist(),
            layer.mean.tolist(),
            list(layer.seen),
            dict(layer.by_size),
            set(layer.sizes),
            layer.training,
            layer.temperature,
        )
        for layer in model.layers
        if isinstance(layer, Layer)
    ]


def trained(model: Model, steps: int = 4) -> Any:
    """What is left behind is part of what is trained: a bias follows the load."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = []
    for step in range(steps):
        model.train()
        loss = model(torch.randn(8, SIDE, generator=torch.Generator().manual_seed(step))).square().mean()
        loss = loss + sum(layer.balance for layer in model.layers)  # type: ignore[misc]
        model.eval()
        for layer in model.layers:
            layer.temperature *= 0.9  # type: ignore[operator]
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for layer in model.layers:
                layer.first.bias -= 0.001 * layer.load.sign() * layer.calls  # type: ignore[union-attr,operator]
        rows.append((loss.item(), [g.tolist() for g in gradients], left_behind(model)))
    return rows


@pytest.mark.parametrize("verify", ["first step", None])
def test_what_a_layer_counts_is_counted_once_and_read_as_it_was(verify: Any) -> None:
    expected = trained(Model())
    model = Model()
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=(), verify=verify) as checkpointed:
        assert trained(model) == expected
    assert checkpointed.recomputed == 16


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(SIDE, 3 * SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x[None]).unflatten(-1, (3, 2, SIDE // 2)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).flatten(-2)[0] * torch.tensor([1 / 3]).to(x.dtype)


def test_backends_and_dtypes_chosen_around_the_forward_are_those_of_the_recomputation() -> None:
    def gradients(model: Model) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                loss = model(torch.ones(8, SIDE, dtype=torch.float32).cumsum(0)).square().mean()
        finally:
            torch.set_default_dtype(torch.float32)
        loss.backward()
        assert torch.backends.cuda.flash_sdp_enabled() and torch.get_default_dtype() == torch.float32
        return [p.grad.tolist() for p in model.parameters() if p.grad is not None]

    expected, model = gradients(Model(Attends)), Model(Attends)
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=()):
        assert gradients(model) == expected


def test_kernels_chosen_around_the_forward_are_those_of_the_recomputation() -> None:
    def gradients(checkpointed: bool) -> Any:
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Sequential(nn.Conv1d(64, 64, 3), nn.Tanh()) for _ in range(2)))
        if checkpointed:
            optimize.checkpoint(layers, layers=list(layers), keep=())
        torch._C._set_mkldnn_enabled(False)
        try:
            loss = layers(torch.randn(2, 64, 30)).square().mean()
        finally:
            torch._C._set_mkldnn_enabled(True)
        loss.backward()
        assert torch._C._get_mkldnn_enabled()
        return [p.grad.tolist() for p in layers.parameters() if p.grad is not None]

    assert gradients(True) == gradients(False)


@pytest.mark.parametrize("which", ["bias", "buffer", "attribute"])
def test_a_weight_written_before_the_backward_is_refused_and_everything_undone(which: str) -> None:
    """Without checkpointing nobody saved it, and the gradient is right."""
    model = Model()
    optimize.checkpoint(model, layers=list(model.layers)[:3], keep=())
    loss = model(torch.ones(8, SIDE)).square().mean()
    layer: Any = model.layers[1]
    with torch.no_grad():
        {"bias": layer.first.bias, "buffer": layer.scale, "attribute": layer.mask}[which].mul_(0.5)
    with pytest.raises(Refused, match=r"of 'layers\.1' .* was written between the forward"):
        loss.backward()
    assert "forward" not in vars(layer)


class Given(nn.Module):
    """Reads a mask in a dictionary, and the mean of what the layers before it have put into a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(SIDE, SIDE), torch.ones(SIDE)

    def forward(self, x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        y = self.linear(x) * self.mask + given["mask"]
        given["seen"].append(y)
        return torch.stack(given["seen"]).mean(0).softmax(-1) * x


class GivenTo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Given() for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        given = {"mask": mask, "seen": []}
        for layer in self.layers:
            x = layer(x, given)
        given["seen"].clear()
        return x.square().sum()


def test_a_layer_is_given_again_what_lists_and_dictionaries_held_and_reads_the_tensor_that_was_there() -> (
    None
):
    def gradients(model: GivenTo) -> list[Any]:
        found: list[Any] = []
        for step in range(3):
            model.zero_grad()
            loss = model(torch.linspace(-1, 1, SIDE).repeat(4, 1), torch.full((SIDE,), float(step)))
            for layer in model.layers:
                layer.mask = layer.mask * 1.5  # another tensor
            loss.backward()
            found += [p.grad.tolist() for p in model.parameters() if p.grad is not None]
        return found

    expected, model = gradients(GivenTo()), GivenTo()
    with optimize.checkpoint(model, layers="layers.*", keep=()) as checkpointed:
        assert gradients(model) == expected
    assert checkpointed.recomputed == 9


def test_a_tensor_given_in_a_dictionary_and_written_before_the_backward_is_refused() -> None:
    """Nobody saves a mask that is added, so without checkpointing the gradient is right."""
    model, mask = GivenTo(), torch.zeros(SIDE)
    optimize.checkpoint(model, layers="layers.*", keep=(), verify=None)
    loss = model(torch.ones(4, SIDE), mask)
    mask.fill_(9)
    with pytest.raises(Refused, match=r"'layers\.2' was given in a list or the like .* was written between"):
        loss.backward()


class PutsAside(nn.Linear):
    """Reads what the last one has put into the list that it is given twice, and puts its own there."""

    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        (done, by_name), count = given["both"], len(given["both"][0])
        assert by_name["done"] is done
        before = done[-1] if done else x
        done.append(torch.tanh(super().forward(before + count)))
        return done[-1]


@pytest.mark.parametrize("backward", [False, True])
def test_lists_that_a_layer_puts_its_outputs_into_are_given_again_and_not_held(backward: bool) -> None:
    def step(layers: nn.ModuleList) -> tuple[list[Any], Any]:
        layers.zero_grad()
        x, done = torch.ones(2, SIDE, requires_grad=True), list[Any]()
        given: dict[str, Any] = {"both": (done, {"done": done})}
        for layer in layers:
            layer(x, given)
        if backward:
            torch.stack(done).square().sum().backward()
        assert len(done) == len(layers)
        return [None if p.grad is None else p.grad.tolist() for p in (x, *layers.parameters())], weakref.ref(
            x
        )

    torch.manual_seed(0)
    layers = nn.ModuleList(PutsAside(SIDE, SIDE) for _ in range(3))
    expected, _ = step(layers)
    with optimize.checkpoint(layers, layers=list(layers), keep=()) as checkpointed:
        found, x = step(layers)
        gc.collect()
        assert (found, x()) == (expected, None)
        assert checkpointed.recomputed == 3 * backward


class WritesItsOwn(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.load.add_(x.detach().sum())
        return super().forward(x)


class WritesLater(Layer):
    """Not in its first forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.calls > 1:
            self.total.add_(1)
        else:
            self.total = torch.zeros(())
        return super().forward(x)


def test_a_tensor_attribute_that_is_written_in_place_is_refused() -> None:
    model = Model(WritesItsOwn)
    optimize.checkpoint(model, layers=list(model.layers)[1:3], keep=())
    with pytest.raises(Refused, match="writes to its tensor 'load'"):
        model(torch.ones(8, SIDE))
    model = Model(WritesLater)
    optimize.checkpoint(model, layers=list(model.layers)[1:3], keep=())
    for _ in range(2):
        model(torch.ones(8, SIDE)).sum().backward()
    loss = model(torch.ones(8, SIDE)).sum()
    with pytest.raises(Refused, match="writes to its tensor 'total'"):
        loss.backward()


class GetsOtherMemory(nn.Linear):
    """As a scale is updated every so many calls. Autograd counts no such write."""

    def __init__(self) -> None:
        super().__init__(SIDE, SIDE)
        self.register_buffer("scale", torch.ones(1))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            self.scale.data = self.scale.data * 1.5
        return super().forward(x).sin() * self.scale


def test_a_buffer_that_is_given_other_memory_is_refused_when_that_happens() -> None:
    model = Model(GetsOtherMemory)
    optimize.checkpoint(model, layers=list(model.layers)[1:3], keep=())
    for _ in range(2):
        model(torch.ones(8, SIDE)).sum().backward()
    loss = model(torch.ones(8, SIDE)).sum()
    with pytest.raises(Refused, match=r"buffer or other tensor of 'layers\.2' .* was given other memory"):
        loss.backward()
    assert "forward" not in model.layers[1].__dict__


def test_no_graph_is_held_by_what_is_brought_back() -> None:
    """`balance` has a graph, which has the recomputation, which has what it brings back."""
    model = Model()
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=()):
        gc.disable()
        try:
            gone = []
            for _ in range(3):
                x = torch.ones(8, SIDE)
                gone.append(weakref.ref(x))
                (model(x).sum() + sum(layer.balance for layer in model.layers)).backward()  # type: ignore[misc]
                del x
                for layer in model.layers:
                    layer.balance = None  # type: ignore[assignment]
            assert [one() for one in gone] == [None] * 3
        finally:
            gc.enable()


def with_other_weights(model: Any, x: torch.Tensor) -> torch.Tensor:
    """A step of gradient descent, and the loss with the weights that it leads to, as in meta-learning."""
    weights = dict(model.named_parameters())
    loss = torch.func.functional_call(model, weights, (x,)).square().mean()
    steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    other = {name: weight - step for (name, weight), step in zip(weights.items(), steps, strict=True)}
    return loss + torch.func.functional_call(model, other, (x,)).square().mean()


def with_weights_frozen_meanwhile(model: Any, x: torch.Tensor) -> torch.Tensor:
    """As a discriminator's are between its step and the generator's."""
    loss = model(x).square().mean()
    for weight in model[1].parameters():
        weight.requires_grad_(not weight.requires_grad)
    return loss


@pytest.mark.parametrize("verify", ["first step", None])
@pytest.mark.parametrize("loss", [with_other_weights, with_weights_frozen_meanwhile])
def test_a_layer_is_computed_again_with_the_weights_that_it_was_given(loss: Any, verify: Any) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        *[nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)]
    )
    x = torch.randn(4, 8)

    def trained() -> list[Any]:
        for weight in model.parameters():
            weight.requires_grad_(True)
            weight.grad = None
        loss(model, x).backward()
        flags = [weight.requires_grad for weight in model.parameters()]
        gradients = (weight.grad for weight in model.parameters())
        return [*flags, *(each if each is None else each.tolist() for each in gradients)]

    plain = trained()
    with optimize.checkpoint(model, layers=list(model), keep=(), verify=verify) as checkpointed:
        for _ in range(2):
            assert trained() == plain
    assert checkpointed.recomputed >= 6


class Steered(nn.Module):
    """Reads a condition that others have computed, which adapter is in use, and factors of all kinds."""

    condition: torch.Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)
        self.active, self.factors, self.powers = ["first"], {"scale": 1.0}, (1,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.first if self.active == ["first"] else self.second)(x) * self.factors["scale"]
        if self.condition is not None:
            y = (y * self.condition).sin()
        return x + self.second((y ** self.powers[0]).sin())


class SteeredBy(Model):
    def __init__(self) -> None:
        super().__init__(Steered)
        self.condition = nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            layer.condition = self.condition(x.flip(0)) * number if x.mean() > 0 else None  # type: ignore[assignment]
            x = layer(x)
        return x


def replaced(layer: Any) -> None:
    layer.active, layer.factors, layer.powers = ["second"], {"scale": 2.0}, (2,)


def written(layer: Any) -> None:
    layer.active[0] = "second"
    layer.factors["scale"] = 3.0


def another_inside(layer: Any) -> None:
    layer.first = nn.Linear(SIDE, SIDE)


def another_forward(layer: Any) -> None:
    layer.first.forward = lambda x: 2 * x


def another_hook(layer: Any) -> None:
    layer.first.register_forward_hook(lambda _, args, y: 2 * y)


def nothing(layer: Any) -> None: ...


@pytest.mark.parametrize("verify", ["first step", None])
@pytest.mark.parametrize(
    "meanwhile", [nothing, replaced, written, another_inside, another_forward, another_hook]
)
def test_a_layer_is_steered_as_it_was_whatever_comes_before_the_backward(
    meanwhile: Callable[[Any], None], verify: Any
) -> None:
    """Only the first backward is compared: what comes later would be wrong without an error."""

    def gradients(model: SteeredBy) -> list[Any]:
        x = torch.linspace(-1, 2, 8 * SIDE).reshape(8, SIDE)
        (-model(-x)).square().mean().backward()
        losses = [model(x + 1).square().mean(), model(x).square().mean()]
        torch.manual_seed(1)
        meanwhile(model.layers[1])
        for loss in losses:
            loss.backward()
        return [p.grad.tolist() for p in model.parameters() if p.grad is not None]

    expected, model = gradients(SteeredBy()), SteeredBy()
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=(), verify=verify):
        assert gradients(model) == expected


def test_a_hook_that_changed_something_and_is_gone_before_the_backward_is_refused() -> None:
    def loss_of(hook: Callable[..., Any]) -> torch.Tensor:
        handle = model.layers[1].first.register_forward_hook(hook)  # type: ignore[union-attr]
        loss = model(torch.ones(8, SIDE)).square().mean()
        handle.remove()
        return loss

    model, seen = SteeredBy(), list[Any]()
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=()):
        loss_of(lambda _, args, y: seen.append(y)).backward()  # only looks
        assert len(seen) == 1
    for hook in (lambda _, args, y: 2 * y, lambda _, args, y: [y.mul_(2)].clear()):
        model = SteeredBy()
        optimize.checkpoint(model, layers=list(model.layers)[:3], keep=())
        model(torch.ones(8, SIDE)).square().mean().backward()
        loss = loss_of(hook)
        with pytest.raises(Refused, match=r"a hook inside 'layers\.1' .* was removed between"):
            loss.backward()


def test_hooks_on_all_modules_are_those_of_the_forward() -> None:
    def gradients_of(removed: bool, checkpointed: bool) -> Any:
        model = SteeredBy()
        handles: list[Any] = []

        def hook(module: Any, args: Any, y: Any) -> Any:
            return 2 * y if isinstance(module, nn.Linear) else None

        if removed:
            handles.append(torch.nn.modules.module.register_module_forward_hook(hook))
        if checkpointed:
            optimize.checkpoint(model, layers=list(model.layers)[:3], keep=(), verify=None)
        loss = model(torch.ones(8, SIDE)).square().mean()
        if removed:
            handles.pop().remove()
        else:  # one that has come since is left out
            handles.append(torch.nn.modules.module.register_module_forward_hook(hook))
        try:
            loss.backward()
        finally:
            [handle.remove() for handle in handles]
        return [p.grad.tolist() for p in model.parameters() if p.grad is not None]

    assert gradients_of(removed=False, checkpointed=True) == gradients_of(removed=False, checkpointed=False)
    with pytest.raises(Refused, match=r"a hook inside .* was removed between"):
        gradients_of(removed=True, checkpointed=True)


def test_modules_that_have_come_to_a_layer_are_watched_too() -> None:
    model = SteeredBy()
    optimize.checkpoint(model, layers=list(model.layers)[:3], keep=())
    model(torch.ones(8, SIDE)).square().mean().backward()
    added = nn.Linear(SIDE, SIDE)
    model.layers[1].first = nn.Sequential(model.layers[1].first, added)  # type: ignore[arg-type]
    loss = model(torch.ones(8, SIDE)).square().mean()
    with torch.no_grad():
        added.bias.add_(1)
    with pytest.raises(Refused, match=r"of 'layers\.1' .* was written between the forward"):
        loss.backward()


class KeepsItsOutput(Steered):
    """In an attribute, and in a list, a new one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.all: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        self.all = [self.last, {"x": self.last}]
        return self.last


def test_what_a_layer_keeps_of_its_last_graph_is_let_go_without_a_backward() -> None:
    model, gone = Model(KeepsItsOutput), []
    with optimize.checkpoint(model, layers=list(model.layers)[:3], keep=()):
        gc.disable()
        try:
            for _ in range(4):
                x = torch.ones(8, SIDE)
                gone.append(weakref.ref(x))
                model(x)
                del x
            assert [one() for one in gone[:2]] == [None] * 2
        finally:
            gc.enable()


def test_a_lazy_layer_is_refused_before_its_first_forward() -> None:
    model: Any = nn.Sequential(*[nn.Sequential(nn.LazyLinear(SIDE), nn.Tanh()) for _ in range(2)])
    with pytest.raises(Refused, match=r"'0\.0\.weight' has no shape yet"):
        optimize.checkpoint(model, layers=list(model), keep=())
    with pytest.raises(Refused, match=r"'0\.0\.weight' has no shape yet"):
        optimize.stream_weights(model, device=ThreadedDevice(), layers=list(model))
    with pytest.raises(Refused, match=r"'0\.0\.weight' has no shape yet"):
        optimize.offload(model, plan="everything", device=ThreadedDevice()).apply()
    model(torch.ones(2, SIDE))
    optimize.checkpoint(model, layers=list(model), keep=()).undo()


class HooksGradients(Steered):
    """Of its input, of what it is given in a dictionary, and of its weights."""

    def forward(self, x: torch.Tensor, *, more: Any = None) -> torch.Tensor:
        weight: Any = self.first.weight
        weight.register_hook(lambda gradient: gradient * 0.5)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.5)
        if more is None:
            self.first.bias.register_post_accumulate_grad_hook(_halves_what_is_accumulated)
        else:
            more["x"].register_hook(lambda gradient: gradient * 0.5)
            x = x + more["x"]
        return super().forward(x)


def _halves_what_is_accumulated(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad *= 0.5


def test_hooks_that_a_layer_puts_on_gradients_are_put_once() -> None:
    def gradients_of(checkpointed: bool) -> Any:
        model = Model(HooksGradients)
        remedy = optimize.checkpoint(model, layers=list(model.layers)[:3], keep=()) if checkpointed else None
        x = torch.ones(8, SIDE, requires_grad=True)
        more = torch.full((8, SIDE), 2.0, requires_grad=True)
        y = model.layers[1](model(x), more={"x": more * 1})
        y.square().mean().backward()
        if remedy:
            remedy.undo()
        weight: Any = model.layers[0].first.weight
        weight.grad = None
        model(x).sum().backward()  # with all hooks that are there by now
        gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
        return gradients, x.grad, more.grad

    assert str(gradients_of(True)) == str(gradients_of(False))
