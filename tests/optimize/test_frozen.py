"""Frozen weights that travel leave every result as it is, and the device's memory within the budget."""

from __future__ import annotations

import copy
import gc
import json
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import tiny_models
from lostflops import optimize
from lostflops.optimize import claims
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights import slots, streamable
from lostflops.optimize.weights.frozen import stream_frozen
from lostflops.optimize.weights.layers import Layer, Leaf, placed
from lostflops.optimize.weights.slots import LayerOrder, Slots
from lostflops.optimize.weights.streaming import Streaming
from no_host import NoHost
from simulated_devices import ClockDevice, LazyDevice, RaceDevice, bytes_over

torch.set_num_threads(1)
LAYER = 44_544  # bytes of a block of `adapted` without what is trained, each weight aligned


class Counting(ThreadedDevice):
    """Knows what host and device memory was given out, and the bytes that went each way."""

    def __init__(self) -> None:
        super().__init__()
        self.host: list[tuple[int, int]] = []
        self.allocated = self.bytes_in = self.bytes_out = 0

    def is_host(self, tensor: torch.Tensor) -> bool:
        return any(start <= tensor.data_ptr() < end for start, end in self.host)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        memory = super().host_memory(nbytes)
        self.host.append((memory.data_ptr(), memory.data_ptr() + nbytes))
        return memory

    def allocate(self, nbytes: int) -> torch.Tensor:
        memory = super().allocate(nbytes)
        self.allocated += nbytes
        weakref.finalize(memory.untyped_storage(), self._freed, nbytes)
        return memory

    def _freed(self, nbytes: int) -> None:
        self.allocated -= nbytes

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        if self.is_host(target):
            self.bytes_out += target.numel()
        else:
            self.bytes_in += target.numel()
        super().copy(target, source, stream)


def adapted(layers: int = 6) -> nn.Module:
    """Frozen but for one bias in each block, which is trained."""
    model = tiny_models.transformer(layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("mlp.1.bias"))
    return model


def steps(
    model: nn.Module, many: int = 3, backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward
) -> Any:
    """Losses and gradients, and with them the weights that an optimizer leaves."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    found: list[Any] = []
    for number in range(many):
        optimizer.zero_grad()
        x = tiny_models.transformer_batch(sequence=6, seed=number).requires_grad_()
        with NoHost() if number == 0 else nullcontext():  # it is slow
            loss = tiny_models.loss_of(model, x)
            backward(loss)
        found.append({"loss": loss.detach(), "x": x.grad, **tiny_models.gradients(model)})
        optimizer.step()
    return found


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert torch.equal(got[name], wanted[name]), name


def small(model: nn.Module, stay: int = 0, **more: Any) -> Any:
    """Streamed with two slots, and as many layers that stay."""
    more.setdefault("device", ThreadedDevice())
    return stream_frozen(model, (2 + stay) * LAYER + 200, **more)


def twice(loss: torch.Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


class Checkpointed(nn.Module):
    """Recomputes blocks, `every` of them together."""

    def __init__(self, model: Any, every: int, reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.head, self.every, self.reentrant = model.blocks, model.head, every, reentrant

    def part(self, first: int, x: torch.Tensor) -> torch.Tensor:
        for block in list(self.blocks)[first : first + self.every]:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first in range(0, len(self.blocks), self.every):
            x = checkpoint(partial(self.part, first), x, use_reentrant=self.reentrant)
        return self.head(x)


# Results


@pytest.mark.parametrize("stay", [0, 2])
@pytest.mark.parametrize("backward", [torch.Tensor.backward, twice])
def test_training_is_the_same_bit_by_bit(stay: int, backward: Any) -> None:
    expected = steps(adapted(), backward=backward)
    missed = list[int]()
    for _ in range(3):  # results hold each time; on a busy processor a layer may come too late for its turn
        model = adapted()
        with small(model, stay) as streamed:
            assert_same(steps(model, backward=backward), expected)
        report = streamed.report()
        assert report.layers_streamed == 6 - stay and report.layers_never_used == []
        assert report.bytes_in >= 2 * 3 * (6 - stay - 2) * LAYER > 0
        assert report.bytes_out == 0
        assert report.stalls["first use"] == 1
        missed.append(report.stalls["order missed"])
        if missed[-1] <= (backward is twice):
            break
    assert min(missed) <= (backward is twice)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_checkpointed_layers_are_recomputed_from_their_own_weights(every: int, reentrant: bool) -> None:
    expected = steps(Checkpointed(adapted(), every, reentrant))
    model = Checkpointed(adapted(), every, reentrant)
    with small(model) as streamed:
        assert_same(steps(model), expected)
    assert streamed.report().bytes_in > 0


def _keeps_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keeps = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def test_selective_checkpointing_inside_of_a_layer_counts_none_of_the_operators_that_bring_it() -> None:
    """It counts a layer's operators in the forward and in the recomputation, which a part of it begins."""
    found: list[Any] = []
    for streams in (False, True):
        model = adapted(4)
        for block in model.blocks:
            contexts = partial(create_selective_checkpoint_contexts, _keeps_products)
            run = partial(checkpoint, block.mlp.forward, use_reentrant=False, context_fn=contexts)
            inside: Any = nn.Identity()
            inside.mlp, inside.forward = block.mlp, run
            block.mlp = nn.Sequential(inside)
        with small(model) if streams else nullcontext():
            found.append(steps(model))
    assert_same(found[1], found[0])


def test_hooks_of_a_layer_that_round_what_is_saved_round_its_weights_too() -> None:
    found: list[Any] = []
    for streams in (False, True):
        model = adapted(4)
        for block in model.blocks:

            def rounded(x: torch.Tensor, forward: Any = block.forward) -> torch.Tensor:
                with saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
                    return forward(x)

            block.forward = rounded
        with small(model) if streams else nullcontext():
            found.append(steps(model))
    assert_same(found[1], found[0])


def test_checkpointing_still_recomputes() -> None:
    """Hooks inside of a checkpoint would switch it off."""
    model = Checkpointed(adapted(), 1, False)
    calls = [0]
    model.blocks[2].mlp[2].register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    with small(model):
        steps(model, 1)
    assert calls == [2]


def test_gradients_add_up_over_microbatches_and_under_autocast() -> None:
    def run(model: nn.Module) -> Any:
        for seed in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = tiny_models.loss_of(model, tiny_models.transformer_batch(seed=seed))
            loss.backward()
        return [tiny_models.gradients(model)]

    expected = run(adapted())
    model = adapted()
    with small(model, 1):
        assert_same(run(model), expected)


def with_adapters(checkpointed: bool) -> Any:
    model = tiny_models.lora(tiny_models.llama(6), dropout=0.1)
    if checkpointed:
        model.enable_input_require_grads()
        model.base_model.model.activation_checkpointing_enable()
    return model


def adapter_steps(model: Any) -> Any:
    found: list[Any] = []
    torch.manual_seed(3)
    for seed in range(3):
        model.zero_grad()
        with NoHost() if seed == 1 else nullcontext():
            loss = tiny_models.loss_of(model, tiny_models.llama_batch(sequence=8, seed=seed))
            loss.backward()
        found.append({"loss": loss.detach(), **tiny_models.gradients(model)})
    return found


@cache
def adapter_steps_without(checkpointed: bool) -> Any:
    return adapter_steps(with_adapters(checkpointed))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_adapters_of_peft_train_the_same(checkpointed: bool) -> None:
    """Transformers' checkpoint is inside the layer's forward: its recomputation enters the parts."""
    model = with_adapters(checkpointed)
    with stream_frozen(model, "150 KiB", device=ThreadedDevice()) as streamed:
        assert_same(adapter_steps(model), adapter_steps_without(checkpointed))
    report = streamed.report()
    assert report.layers_streamed >= 4 and report.bytes_in > 0 and report.stalls["order missed"] == 0


@pytest.mark.parametrize(("checkpointed", "outer"), [(False, "offload"), (True, "stream")])
def test_weights_and_activations_travel_together(checkpointed: bool, outer: str) -> None:
    before = [*claims._claims], {*claims.travelling}  # of models that other tests left to be collected
    model = with_adapters(checkpointed)
    device = ThreadedDevice()
    with ExitStack() as stack:
        if outer == "stream":
            streamed = stack.enter_context(stream_frozen(model, "150 KiB", device=device))
        engine = stack.enter_context(optimize.offload(model, plan="everything", device=device, threshold=1))
        if outer == "offload":
            streamed = stack.enter_context(stream_frozen(model, "150 KiB", device=device))
        assert_same(adapter_steps(model), adapter_steps_without(checkpointed))
        assert streamed.report().bytes_in > 0 and streamed.report().stalls["order missed"] == 0
    assert engine.report().out.bytes > 0
    assert set(claims._claims) <= set(before[0]) and claims.travelling <= before[1]


def test_layers_that_are_compiled_are_streamed_and_a_compiled_model_is_refused() -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).requires_grad_(False)

    def input_gradient(model: Any) -> torch.Tensor:
        x = torch.linspace(0, 1, 64).view(2, 32).requires_grad_()
        model(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    model = nn.Sequential(*(torch.compile(each, backend="aot_eager") for each in made()))  # pyright: ignore
    with stream_frozen(model, 2 * 4608, device=ThreadedDevice()) as streamed:
        for _ in range(2):
            assert torch.equal(input_gradient(model), input_gradient(made()))
    assert streamed.report().layers_streamed == 4
    whole = made()
    with (
        stream_frozen(whole, 2 * 4608, device=ThreadedDevice()),
        pytest.raises(Refused, match="is being compiled"),
    ):
        torch.compile(whole, backend="aot_eager")(torch.ones(2, 32))


# Memory


def test_a_model_several_times_the_budget_trains_within_it() -> None:
    layers = 12
    plain, model = adapted(layers), adapted(layers)
    for module in plain.modules():
        module.register_full_backward_hook(lambda *_: None)
    expected = steps(plain, 2)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    whole = sum(p.numel() * p.element_size() for p in frozen)
    device = Counting()
    seen: list[int] = []

    def look(*_: Any) -> None:
        on_device = {p.untyped_storage().data_ptr(): p for p in frozen if not device.is_host(p)}
        slots = {slot.memory.untyped_storage().data_ptr() for slot in streamed._slots.slots}
        resident = sum(p.numel() * p.element_size() for at, p in on_device.items() if at not in slots)
        seen.append(resident + device.allocated)

    with small(model, 1, device=device) as streamed:
        for module in model.modules():
            module.register_forward_hook(look)
            module.register_full_backward_hook(look)
        assert_same(steps(model, 2), expected)
        assert len(seen) > 100
        assert max(seen) == streamed.report().device_bytes_max <= 3 * LAYER + 200
        assert whole > 3.8 * max(seen)
    assert device.allocated == 0


def test_frozen_weights_are_never_copied_back() -> None:
    """Axolotl's layer offloading did, which doubled its traffic."""
    device = Counting()
    with small(adapted(), device=device) as streamed:
        steps(streamed.model, 2)
    assert device.bytes_in == streamed.report().bytes_in > 0
    assert device.bytes_out == streamed.report().bytes_out == 0


def test_copying_back_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Slots._fetch

    def evict_first(self: Any, layer: int, cause: str, slot: Any) -> Any:
        slot = slot or self._free({layer})
        if slot.holds is not None:
            source = self._sources.get(slot.holds)
            self._device.copy(source, slot.memory[: source.numel()], self._copies)
        return fetch(self, layer, cause, slot)

    monkeypatch.setattr(Slots, "_fetch", evict_first)
    device = Counting()
    with small(adapted(), device=device) as streamed:
        steps(streamed.model, 2)
    assert device.bytes_out > 0


def test_the_layers_that_stay_lie_evenly_between_those_that_travel() -> None:
    names = [[str(n) for n in range(9)][n] for n in range(9)]
    layers = [Layer(name, nn.Identity(), [], 1000) for name in names]
    for layer in layers:
        weight = torch.empty(250)
        layer.leaves.append(Leaf(layer.name, layer.module, "w", weight, weight, 1000))
    place = placed(layers, 10, 2 * 1000 + 6 * 1000 + 10, 1, "resident")
    assert [layer.name for layer in place.travelling] == ["1", "4", "7"]
    assert place.device_bytes == 8010


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    budget=st.integers(0, 700),
    look_ahead=st.integers(1, 3),
)
@settings(deadline=None, max_examples=150)
def test_what_is_placed_fits_and_a_larger_budget_never_streams_more(
    sizes: list[int], budget: int, look_ahead: int
) -> None:
    layers = [Layer(str(n), nn.Identity(), [], size) for n, size in enumerate(sizes)]
    for layer in layers:
        weight = torch.empty(0)
        layer.leaves.append(Leaf(layer.name, layer.module, "w", weight, weight, layer.nbytes))
    try:
        place = placed(layers, 7, budget, look_ahead, "resident")
    except Refused as refused:
        smallest = int(refused.hint.split()[5])
        assert budget < smallest
        assert placed(layers, 7, smallest, look_ahead, "resident").device_bytes == smallest
        return
    assert place.device_bytes <= budget
    assert len(place.travelling) + len(place.staying) == len(sizes)
    more = placed(layers, 7, budget + 13, look_ahead, "resident")
    assert len(more.travelling) <= len(place.travelling)
    assert place.travelling or sum(sizes) + 7 <= budget


def test_nothing_travels_when_everything_fits() -> None:
    model = adapted()
    device = Counting()
    with stream_frozen(model, "1 GiB", device=device) as streamed:
        steps(model, 1)
    assert device.bytes_in == 0 and device.host == []
    assert streamed.report().layers_streamed == 0
    assert "nothing is streamed" in str(streamed.report())


# What autograd saves of a slot


def forget_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is saved keeps the memory that it has then, be it that of a slot."""
    monkeypatch.setattr(Streaming, "_claim", lambda self, tensor: claims.Kept(tensor.detach()))


def test_a_slot_that_autograd_still_looks_at_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_saves(monkeypatch)
    with small(adapted()) as streamed, pytest.raises(Refused, match="still looked at after its forward"):
        steps(streamed.model, 1)


def test_without_either_the_gradient_would_be_wrong_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive version, and that these tests would see it."""
    expected = steps(adapted(), 1)
    forget_saves(monkeypatch)
    monkeypatch.setattr(slots, "_references", lambda memory: 1)
    with small(adapted()) as streamed:
        found = steps(streamed.model, 1)
    assert torch.equal(found[0]["loss"], expected[0]["loss"])
    assert not torch.equal(found[0]["x"], expected[0]["x"])


class KeepsItself(torch.autograd.Function):
    """Keeps its weight on ctx, as some quantised layers do, where hooks do not see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.weight = weight.t()
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] @ ctx.weight, None


class Keeps(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, hidden), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return KeepsItself.apply(x, self.weight)


def test_a_function_that_keeps_a_weight_on_its_context_is_refused() -> None:
    model = nn.Sequential(*(Keeps(32) for _ in range(5)))
    x = torch.randn(3, 32, requires_grad=True)
    with stream_frozen(model, 3 * 4096, device=ThreadedDevice()), pytest.raises(Refused, match="on `ctx`"):
        model(x).sum().backward()
    model(x).sum().backward()  # as it was


def test_a_backward_after_leaving_uses_the_weights_that_came_back() -> None:
    expected = steps(adapted(), 1)
    model = adapted()
    x = tiny_models.transformer_batch(sequence=6, seed=0).requires_grad_()
    with small(model):
        loss = tiny_models.loss_of(model, x)
    loss.backward()
    assert torch.equal(x.grad, expected[0]["x"])  # pyright: ignore[reportArgumentType]


def test_forward_derivatives_are_taken_through_streamed_layers() -> None:
    """Tangents that are zero have no memory."""
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(4)))
    for layer in model:
        layer[1].weight.requires_grad_(False)
    x = torch.linspace(-1, 1, 64).view(2, 32)

    def slopes() -> Any:
        model.zero_grad()
        with forward_ad.dual_level():
            made = forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x))))
            made.tangent.square().sum().backward()
        return [{"tangent": made.tangent, **tiny_models.gradients(model)}]

    expected = slopes()
    with stream_frozen(model, 15_000, layers=list(model), device=ThreadedDevice()) as streaming:
        assert_same(slopes(), expected)
    assert streaming.report().slots


def test_a_weight_written_between_forward_and_backward_is_an_error() -> None:
    model = adapted()
    with small(model):
        loss = tiny_models.loss_of(model, tiny_models.transformer_batch())
        with torch.no_grad():
            model.blocks[1].mlp[1].weight.mul_(2)
        with pytest.raises(
            RuntimeError, match=r"'blocks\.1\.mlp\.1\.weight' is at version \d; expected version"
        ):
            loss.backward()


# The order


def test_the_order_is_followed_once_it_is_known() -> None:
    there = [(n, "training") for n in range(5)]
    back = [(n, "backward") for n in reversed(range(5))]
    again = [(n, "training") for n in (2, 4)]
    validation = [(n, "inference") for n in range(5)]
    for path in (there + back, there + back + back, there + there + back, there + again + back, validation):
        order = LayerOrder(5)
        for number in range(4):
            for place, now in enumerate(path):
                order.saw(*now)
                following = next(layer for layer, _ in (path + path)[place + 1 :] if layer != now[0])
                assert number < 2 or order.ahead(1) == [following], (path, place)


def test_what_is_remembered_of_the_order_is_bounded() -> None:
    order = LayerOrder(3)
    for number in range(5000):
        order.saw(number % 3, "inference")
    assert order.ahead(2) == [(4999 + 1) % 3, (4999 + 2) % 3]
    assert len(order._path) <= 32 * 3 + 1000


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["training", "backward", "inference"])),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=100)
def test_no_order_of_use_is_too_strange(path: list[tuple[int, Any]], many: int) -> None:
    order = LayerOrder(5)
    for now in path:
        order.saw(*now)
        ahead = order.ahead(many)
        assert now[0] not in ahead and len(set(ahead)) == len(ahead) <= many
        assert all(0 <= layer < 5 for layer in ahead)


def test_inference_begins_again_at_the_first_layer() -> None:
    order = LayerOrder(3)
    for layer in (0, 1, 2):
        order.saw(layer, "inference")
    assert order.ahead(2) == [0, 1]


class Routed(nn.Module):
    """Its layers run in the order that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = adapted(6).blocks
        self.order = [0, 1, 2, 3, 4, 5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            x = self.blocks[number](x)
        return x


@pytest.mark.parametrize("order", [[5, 2, 0, 4, 1, 3], [0, 1, 2, 0, 1, 2, 3, 4, 5], [0, 0, 3, 3, 5], [2]])
def test_another_order_is_right_and_counted(order: list[int]) -> None:
    expected_model = Routed()
    expected = steps(expected_model, 2)
    expected_model.order = order
    expected += steps(expected_model, 3)
    model = Routed()
    with small(model) as streamed:
        found = steps(model, 2)
        assert streamed.report().stalls["order missed"] == 0
        model.order = order
        found += steps(model, 1)
        missed = streamed.report().stalls["order missed"]
        found += steps(model, 2)
        assert_same(found[:2], expected[:2])
        assert len(order) < 3 or missed > 0
        assert streamed.report().stalls["order missed"] <= missed + 1  # where the new order began again
    fresh = Routed()
    steps(fresh, 2)
    fresh.order = order
    assert_same(found[2:3], steps(fresh, 1))


def test_a_layer_called_twice_in_one_forward_and_shared_weights() -> None:
    def made() -> nn.Module:
        model = Routed()
        model.order = [0, 1, 0, 2, 3, 4, 5, 5]
        model.blocks[3].mlp[1].weight = model.blocks[4].mlp[1].weight  # tied: stays
        return model

    expected = steps(made())
    model = made()
    with small(model, 1) as streamed:
        travelling = {leaf.name for layer in streamed.placement.travelling for leaf in layer.leaves}
        assert "blocks.0.mlp.1.weight" in travelling
        assert not travelling & {"blocks.3.mlp.1.weight", "blocks.4.mlp.1.weight"}
        assert_same(steps(model), expected)


def test_a_weight_that_an_attribute_or_a_buffer_is_a_view_of_stays_and_so_does_what_torch_quantised() -> None:
    def made() -> nn.Module:
        model = Routed()
        model.blocks[1].first_row = model.blocks[1].mlp[1].weight.data[0]
        model.blocks[2].register_buffer("bias", model.blocks[2].mlp[3].bias.data[:1])
        quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        model.blocks[3].eighths = nn.Parameter(quantised, requires_grad=False)
        for block in list(model.blocks)[1:3]:
            block.register_forward_hook(
                lambda block, _, y: y + getattr(block, "first_row", block._buffers.get("bias")).sum()
            )
        model.blocks[3].register_forward_hook(lambda block, _, y: y * block.eighths.dequantize().sum())
        return model

    def written(model: nn.Module) -> Any:
        found = steps(model, 1)
        with torch.no_grad():
            model.blocks[1].mlp[1].weight.mul_(0.5)
            model.blocks[2].mlp[3].bias.mul_(0.5)
        return [*found, *steps(model, 1)]

    expected, model = written(made()), made()
    with small(model, 1) as streamed:
        travelling = {leaf.name for layer in streamed.placement.travelling for leaf in layer.leaves}
        stay = {"blocks.1.mlp.1.weight", "blocks.2.mlp.3.bias", "blocks.3.eighths"}
        assert "blocks.2.mlp.1.weight" in travelling and not travelling & stay
        assert_same(written(model), expected)


def test_more_slots_look_further_ahead() -> None:
    expected = steps(adapted())
    model = adapted()
    with stream_frozen(model, 4 * LAYER + 200, device=ThreadedDevice(), look_ahead=3) as streamed:
        assert_same(steps(model), expected)
        assert streamed.report().slots == 4 and streamed.report().layers_streamed == 6


# Streams


@pytest.mark.parametrize("done", ["never", "always", 5])
def test_no_copy_races_with_what_computes(done: Any) -> None:
    device = RaceDevice(done=done)
    model = adapted(5)
    with device, small(model, device=device) as streamed:
        steps(model, 2)
        with torch.no_grad():
            model(tiny_models.transformer_batch())
    assert device.races == [] and device.disagreements == []
    assert device.copies == streamed.report().bytes_in // LAYER > 10


@pytest.mark.parametrize("wait", ["free", "ready"])
def test_a_wait_that_is_left_out_is_a_race(wait: str) -> None:
    class Careless(RaceDevice):
        def wait(self, stream: Any, event: Any) -> None:
            if (stream is self.current_stream()) != (wait == "ready"):
                super().wait(stream, event)

    device = Careless()
    with device, small(adapted(5), device=device) as streamed:
        steps(streamed.model, 1)
    assert device.races


def test_copies_that_run_as_late_as_they_may_are_in_time() -> None:
    expected = steps(adapted())
    model = adapted()
    device = LazyDevice()
    with device, small(model, device=device):
        assert_same(steps(model), expected)
    assert device.copies > 10 and device.lost == []


def test_layers_on_several_streams_free_their_slot_on_each() -> None:
    device = RaceDevice()
    streams = [device.compute, device.new_stream()]
    model = Routed()

    def alternate(module: nn.Module, _: Any) -> None:
        device.switch(streams[list(model.blocks).index(module) % 2])

    for block in model.blocks:
        block.register_forward_pre_hook(alternate)
    with device, small(model, device=device), torch.no_grad():
        for seed in range(3):
            model(tiny_models.transformer_batch(seed=seed))
    assert [race for race in device.races if "copy in" in race] == [] and device.copies > 10


# The model meanwhile, and afterwards


def test_the_state_is_whole_and_can_be_loaded() -> None:
    other = adapted()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    expected = steps(other, 2)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), adapted().parameters(), strict=True):
            mine.copy_(theirs * 1.5)
    model = adapted()
    with small(model, 1):
        steps(model, 1)
        model.load_state_dict(other.state_dict())
        assert_same(steps(model, 2), expected)
        state = model.state_dict()
        for name, value in adapted().state_dict().items():
            if not name.endswith("mlp.1.bias"):
                assert torch.equal(state[name], value * 1.5), name
    assert_same([model.state_dict()], [state])


def test_values_given_through_data_count() -> None:
    model, other = adapted(), adapted()
    with small(model) as streamed:
        assert_same(steps(model, 1), steps(other, 1))
        for each in (model, other):
            each.blocks[0].mlp[3].weight.data = each.blocks[0].mlp[3].weight.data * 2
        assert_same(steps(model, 1), steps(other, 1))
        for number in (0, 1, 2, 3):  # one of them is in a slot
            for each in (model, other):
                each.blocks[number].mlp[3].weight.data.mul_(3)
            assert_same(steps(model, 1), steps(other, 1))
        for each in (model, other):
            for block in each.blocks:  # small weights are compared as a whole
                block.norm.weight.data[0] *= 2
        assert_same(steps(model, 1), steps(other, 1))
        for each in (model, other):
            each.blocks[1].mlp[3].weight.data[0, 0] *= 3  # too few to be seen
        streamed.refresh()
        assert_same(steps(model, 1), steps(other, 1))


class Late(ThreadedDevice):
    """Copies that are still under way when the next layer is asked for."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        stream.put(lambda: time.sleep(0.01))
        super().copy(target, source, stream)


@pytest.mark.parametrize("device", [ThreadedDevice, Late])
def test_what_peft_merges_meanwhile_is_what_is_computed(device: type[ThreadedDevice]) -> None:
    """It writes to all of the weights through `.data`, in both directions."""
    found: list[Any] = []
    for streams in (True, False):
        model = tiny_models.lora(tiny_models.llama(4), rank=2)
        batch = tiny_models.llama_batch()
        streamed = stream_frozen(model, device=device()) if streams else nullcontext()
        with streamed, torch.no_grad():
            for turn in (model.eval, model.merge_adapter, model.unmerge_adapter, model.merge_adapter):
                turn()
                found.append(model(**batch).logits)
    for one, other in zip(found[:4], found[4:], strict=True):
        assert torch.equal(one, other)


def test_a_weight_written_while_its_layer_is_the_last_that_was_used_counts() -> None:
    model = Routed()
    model.order = [2]
    x = tiny_models.transformer_batch()
    with small(model), torch.no_grad():
        before = model(x)
        model.blocks[2].mlp[3].weight.mul_(2)
        after = model(x)
    assert not torch.equal(before, after)
    with torch.no_grad():
        assert torch.equal(model(x), after)


def test_leaving_restores_everything_also_by_an_exception() -> None:
    claimed, others = [*claims._claims], {*streamable.STREAMED}  # of models that wait to be collected
    model = adapted()
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    values = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    with pytest.raises(ZeroDivisionError), small(model) as streamed:
        steps(model, 1)
        assert model.blocks[0].__dict__["forward"]
        raise ZeroDivisionError
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    for name, value in model.state_dict().items():
        assert name.endswith("mlp.1.bias") or torch.equal(value, values[name])
    assert set(claims._claims) <= set(claimed) and {*streamable.STREAMED} <= others
    streamed.close()
    assert streamed.report().bytes_in > 0


def test_a_streaming_that_is_forgotten_is_collected() -> None:
    claimed = [*claims._claims]
    streamed = small(adapted())
    gone = weakref.ref(streamed)
    del streamed
    gc.collect()
    assert gone() is None and set(claims._claims) <= set(claimed)


def test_an_exception_in_a_layer_and_one_before_the_backward_leave_nothing_behind() -> None:
    expected = steps(adapted())
    model = adapted()
    fails = [True]

    def fail(*_: Any) -> None:
        if fails[0]:
            raise KeyboardInterrupt

    model.blocks[3].mlp.register_forward_pre_hook(fail)
    with small(model) as streamed:
        with pytest.raises(KeyboardInterrupt):
            steps(model, 1)
        fails[0] = False
        tiny_models.loss_of(model, tiny_models.transformer_batch())  # and no backward
        assert all(slot.pins == 0 for slot in streamed._slots.slots)
        assert_same(steps(model), expected)


def test_moving_the_model_passes_by_what_is_streamed() -> None:
    model = adapted()
    expected = steps(adapted(), 1)
    with small(model) as streamed:
        host = model.blocks[0].mlp[1].weight.data_ptr()
        model.to("cpu").cpu()
        assert model.blocks[0].mlp[1].weight.data_ptr() == host
        with pytest.raises(Refused, match=r"is torch\.float32 and is to be made torch\.bfloat16"):
            model.bfloat16()
        assert [name for name, _ in model.named_parameters()] == [n for n, _ in adapted().named_parameters()]
        model.float()
        assert_same(steps(model, 1), expected)
    assert streamed.report().bytes_in > 0
    model.double()
    assert model.blocks[0].mlp[1].weight.dtype == torch.float64


def test_a_copy_of_a_streamed_model_runs_by_itself() -> None:
    model = adapted()
    x = tiny_models.transformer_batch()
    with small(model) as streamed:
        twin = copy.deepcopy(model)
        used = list(streamed._slots.used)
        found = twin(x)
        assert streamed._slots.used == used
        assert torch.equal(found, model(x))
        twin.double()


def test_quantised_weights_travel_in_their_own_bytes() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    def made() -> nn.Module:
        model = adapted()
        quantize_(model, Int8WeightOnlyConfig(), lambda module, name: name.endswith(("mlp.1", "mlp.3")))
        return model

    x = tiny_models.transformer_batch()
    expected = made()(x)
    model = made()
    whole = stream_frozen(adapted(), "1 GiB", device=ThreadedDevice()).report().resident_bytes
    with stream_frozen(model, "60 KiB", device=ThreadedDevice()) as streamed:
        for _ in range(2):
            y = x.clone().requires_grad_()
            assert torch.equal(model(y), expected)
            model(y).square().mean().backward()
        report = streamed.report()
        assert report.bytes_in > 0 and report.layers_streamed == 6
        assert report.streamed_bytes < 0.7 * whole
    z = x.clone().requires_grad_()
    made()(z).square().mean().backward()
    assert torch.equal(y.grad, z.grad)  # pyright: ignore[reportArgumentType]


class Two(torch.Tensor):
    """A tensor that is made of two, as quantised ones are of values and scales."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)  # pyright: ignore

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Two(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default), func
        return Two(func(args[0].a), func(args[0].b))


class SavesPair(torch.autograd.Function):
    """Saves a weight that is made of two tensors, whole."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return x @ weight.a + x @ weight.b.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weight,) = ctx.saved_tensors
        return grads[0] @ weight.a.t() + grads[0] @ weight.b, None


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole: Any = Two(torch.randn(32, 32), torch.randn(32, 32))
        self.weight = nn.Parameter(whole, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SavesPair.apply(x, self.weight) / 8


def test_a_saved_weight_that_is_made_of_others_is_rebuilt() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Pair() for _ in range(5)))

    def input_gradient() -> torch.Tensor:
        x = torch.linspace(0, 1, 64).view(2, 32).requires_grad_()
        model(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    expected = input_gradient()
    with stream_frozen(model, device=ThreadedDevice()) as streamed:
        for _ in range(2):
            assert torch.equal(input_gradient(), expected)
        assert streamed.report().streamed_bytes == 5 * 2 * 4096
        assert streamed.report().device_bytes_max == 2 * 2 * 4096
    assert torch.equal(input_gradient(), expected)


class Nested(nn.Module):
    """A layer with layers inside: its own weight is used before, between and after theirs."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32), requires_grad=False)
        self.parts = nn.ModuleList([nn.Linear(32, 32, bias=False) for _ in range(inner)]).requires_grad_(
            False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = torch.tanh(part(x @ self.weight / 8) @ self.weight / 8)
        return x


def test_layers_inside_of_layers_travel_by_themselves() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Nested(3) for _ in range(3)))
    layers = [*model, *(part for each in model for part in each.parts)]  # pyright: ignore

    def input_gradient() -> torch.Tensor:
        x = torch.linspace(0, 1, 64).view(2, 32).requires_grad_()
        with NoHost():
            model(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    expected = input_gradient()
    with stream_frozen(model, device=ThreadedDevice(), layers=layers) as streamed:
        for _ in range(3):
            assert torch.equal(input_gradient(), expected)
        assert streamed.report().layers_streamed == 12 and streamed.report().slots == 2
    deeper = [model, *layers]
    model.register_parameter("extra", nn.Parameter(torch.zeros(3, 3), requires_grad=False))
    with (
        stream_frozen(model, device=ThreadedDevice(), layers=deeper),
        pytest.raises(Refused, match="2 layers run inside one another, and there are 2 slots"),
    ):
        input_gradient()
    with stream_frozen(model, device=ThreadedDevice(), layers=deeper, look_ahead=2):
        assert torch.equal(input_gradient(), expected)


# Refusals


def test_too_small_a_budget_says_the_smallest_that_works() -> None:
    with pytest.raises(Refused) as refused:
        stream_frozen(adapted(), "10 KiB", device=ThreadedDevice())
    assert "each of 2 slots takes 43.5 KiB for 'blocks.0'" in refused.value.reason
    smallest = int(refused.value.hint.split()[5])
    assert smallest == 2 * LAYER + 33 * 4  # the head stays
    for resident in (smallest, None):  # without one, the least that works
        with stream_frozen(adapted(), resident, device=ThreadedDevice()) as streamed:
            report = streamed.report()
            assert (report.device_bytes_max, report.budget_bytes) == (smallest, smallest)
            assert report.layers_streamed == 6


class DTensor:
    """Its name is what counts."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.requires_grad_(True), "no list of layers with frozen weights"),
        (lambda m: m.to("meta"), "'blocks.0.norm.weight' is on the meta device"),
        (
            lambda m: setattr(m, "__class__", type("FullyShardedDataParallel", (type(m),), {})),
            "sharded by FSDP",
        ),
        (lambda m: setattr(m.head.weight, "_local_tensor", None), "'head.weight' is a DTensor"),
        (lambda m: m.add_module("parallel", nn.DataParallel(nn.Identity())), "DataParallel copies"),
    ],
)
def test_what_would_break_is_refused_and_nothing_changed(change: Any, said: str) -> None:
    model = adapted()
    change(model)
    before = [(p.data_ptr(), p.requires_grad) for p in model.parameters()]
    with pytest.raises(Refused, match=said):
        stream_frozen(model, "200 KiB", device=ThreadedDevice())
    assert [(p.data_ptr(), p.requires_grad) for p in model.parameters()] == before


def test_other_refusals() -> None:
    model = adapted()
    device = ThreadedDevice()
    with pytest.raises(Refused, match="no GPU memory to spare"):
        stream_frozen(model, "200 KiB")
    with pytest.raises(Refused, match="cpu is no GPU"):
        stream_frozen(model, "200 KiB", device="cpu")
    with pytest.raises(Refused, match="look_ahead=0"):
        stream_frozen(model, "200 KiB", device=device, look_ahead=0)
    with pytest.raises(Refused, match="a Linear among the layers is not part of the model"):
        stream_frozen(model, "200 KiB", device=device, layers=[nn.Linear(2, 2)])
    with small(model), pytest.raises(Refused, match="streamed already"):
        small(model)
    device.coherent = True
    with pytest.raises(Refused, match="shares the host's memory"):
        stream_frozen(model, "200 KiB", device=device)


def test_what_torch_func_wraps_is_refused_but_for_vmap() -> None:
    model, x = adapted(), tiny_models.transformer_batch()
    plain = model(x)
    with small(model):
        with pytest.raises(Refused, match=r"runs inside torch\.func\.jvp"):
            torch.func.jvp(model, (x,), (x,))
        with torch.no_grad():
            assert torch.equal(torch.func.vmap(model)(x.unsqueeze(0))[0], plain)


def test_a_backward_that_comes_after_the_streaming_is_refused_where_layers_are_computed_again() -> None:
    """Streamed weights are saved elsewhere than others: their places would be mixed up."""
    model = adapted()
    with optimize.checkpoint(model, keep=()):
        with small(model):
            loss = model(tiny_models.transformer_batch()).square().mean()
        with pytest.raises(Refused, match="were streamed in its forward or are streamed in its backward"):
            loss.backward()


def test_changes_to_a_streamed_weight_are_refused() -> None:
    x = tiny_models.transformer_batch()
    for change, said in (
        (lambda layer: layer.weight.requires_grad_(True), "is to be trained"),
        (lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight, False)), "is to be replaced"),
        (lambda layer: setattr(layer.weight, "data", torch.zeros(2, 2)), r"was made torch\.float32\[2, 2\]"),
    ):
        model = adapted()
        with small(model):
            change(model.blocks[1].mlp[1])
            with pytest.raises(Refused, match=said):
                model(x)


def test_a_model_that_runs_without_its_layers_is_an_error() -> None:
    """A plan that moves bytes, and none moved: the layers were called by another name."""

    class Inlined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(5)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = nn.functional.linear(x, block.weight, block.bias)
            return x

    model = Inlined().requires_grad_(False)
    with (
        stream_frozen(model, 10_000, device=ThreadedDevice()),
        pytest.raises(Refused, match="none of its 5 streamed layers was called"),
    ):
        model(torch.randn(2, 32))


def test_too_little_host_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable.host_share, "memory", lambda: 1000)
    with pytest.raises(Refused, match=r"take 43\.5 KiB of host memory, and 1,000 B are left"):
        small(adapted())


def test_what_fails_halfway_is_undone() -> None:
    class Fails(ThreadedDevice):
        left = 3

        def host_memory(self, nbytes: int) -> torch.Tensor:
            self.left -= 1
            if not self.left:
                raise Refused("locked memory is short", "ulimit -l")
            return super().host_memory(nbytes)

    model = adapted()
    expected = steps(adapted(), 1)
    with pytest.raises(Refused, match="locked memory"):
        small(model, device=Fails())
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert_same(steps(model, 1), expected)


# The report


def test_hidden_and_waited_add_up_in_virtual_time() -> None:
    """44,544 bytes at 10 bytes per ns take 4,454 ns to copy, and a layer computes longer."""
    card = {"host_to_device": {"pinned": {"launch_ns": 0, "bytes_per_second": 1e10}}}
    fast = ClockDevice(bytes_over(1.0), 10.0, 10.0)
    slow = ClockDevice(bytes_over(1.0), 0.02, 0.02)
    found: list[Any] = []
    for device in (fast, slow):
        with device, small(adapted(), device=device, link=card) as streamed:
            steps(streamed.model, 2)
            found.append(streamed.report())
    hides, waits = found
    assert hides.stalled_ns["late"] == 0 and hides.stalls["late"] == 0
    assert hides.stalled_ns["first use"] == 4454 and hides.stalls["first use"] == 1
    assert hides.hidden_share == pytest.approx(1 - 1 / hides.copies)
    assert hides.predicted_hidden_share == pytest.approx(hides.hidden_share, abs=1e-3)
    assert hides.bytes_per_second == pytest.approx(1e10, rel=1e-3) and hides.link_share == pytest.approx(
        1, rel=1e-3
    )
    assert waits.stalls["late"] > waits.copies / 2
    assert waits.hidden_share is not None and hides.hidden_share is not None
    assert waits.hidden_share < 0.5 < hides.hidden_share
    assert waits.link_share == pytest.approx(0.002, rel=1e-3)


def test_predicted_waits_are_the_measured_ones_when_the_card_is_right() -> None:
    card = {"host_to_device": {"pinned": {"launch_ns": 0, "bytes_per_second": 2e7}}}
    device = ClockDevice(bytes_over(1.0), 0.02, 0.02)
    with device, small(adapted(), device=device, link=card) as streamed:
        steps(streamed.model, 3)
        report = streamed.report()
    assert report.predicted_stalled_ns == pytest.approx(sum(report.stalled_ns.values()), rel=0.05)


def test_the_report_is_plain_and_readable() -> None:
    with small(adapted(), 1) as streamed:
        steps(streamed.model, 2)
        report = streamed.report()
    record = json.loads(json.dumps(report.to_json()))
    assert record["kind"] == "streaming report"
    assert record["bytes_in"] > 0 and record["bytes_out"] == 0
    assert record["pinned_held_bytes"] >= record["pinned_requested_bytes"] > 0
    text = str(report)
    for said in ("5 of 6 layers streamed", "2 slots of 43.5 KiB", "0 B out", "hidden", "1 first use"):
        assert said in text


def test_it_is_there_by_name() -> None:
    assert optimize.stream_frozen is stream_frozen
    assert optimize.Streaming is Streaming
