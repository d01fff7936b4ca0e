"""Checkpointing recomputes what it says, changes no gradient, and refuses what would switch it off."""

from __future__ import annotations

import copy
import inspect
import itertools
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize import Refused, claims
from lostflops.optimize.activations.random_numbers import RandomNumbers
from lostflops.optimize.model_parts import repeated_layers
from simulated_devices import LazyDevice

torch.set_num_threads(1)


def gradients_of(model: Any, batch: Any, seed: int = 5) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    tiny_models.loss_of(model, batch).backward()
    return tiny_models.gradients(model)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Encoder(nn.Module):
    """Plain torch: its layers are in `nn.TransformerEncoder`, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


class Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float()


def case(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    if name == "llama":
        return tiny_models.llama(), tiny_models.llama_batch()
    if name == "llama in bf16 with attention dropout":
        return tiny_models.llama(attention_dropout=0.3).bfloat16(), tiny_models.llama_batch()
    if name == "lora with dropout":
        return tiny_models.lora(dropout=0.2), tiny_models.llama_batch()
    if name == "plain torch":
        return tiny_models.transformer(), tiny_models.transformer_batch()
    if name == "TransformerEncoder with dropout":
        return Encoder(), tiny_models.transformer_batch()
    if name == "autocast":
        return Autocast(tiny_models.transformer()), tiny_models.transformer_batch()
    raise ValueError(name)


CASES = (
    "llama",
    "llama in bf16 with attention dropout",
    "lora with dropout",
    "plain torch",
    "TransformerEncoder with dropout",
    "autocast",
)


@pytest.mark.parametrize("how", [{"keep": ()}, {"keep": ("*",)}, {"every": 2, "keep": ()}, {}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_equal_to_the_bit(name: str, how: dict[str, Any]) -> None:
    model, batch = case(name)
    plain = gradients_of(model, batch)
    if not how and "dropout" in name and "lora" not in name:
        how = {"keep": ("*",)}  # on a CPU attention with dropout is no fused operator
    with optimize.checkpoint(model, **how) as checkpointed:
        assert equal(gradients_of(model, batch), plain)
        assert checkpointed.recomputed == len(checkpointed.layers) == checkpointed.forwards
    assert equal(gradients_of(model, batch), plain)
    assert checkpointed.recomputed == len(checkpointed.layers), "still recomputing after the end"


def test_undo_leaves_no_trace() -> None:
    model = tiny_models.llama()
    before = [dict(module.__dict__) for module in model.modules()]
    keys = list(model.state_dict())
    checkpointed = optimize.checkpoint(model, keep=("attention", "o_proj"))
    assert list(model.state_dict()) == keys
    assert "forward" in model.model.layers[0].__dict__
    checkpointed.undo()
    for module, was in zip(model.modules(), before, strict=True):
        assert module.__dict__.keys() == was.keys()
    optimize.checkpoint(model).undo()


def test_an_exception_between_forward_and_backward_leaves_no_trace() -> None:
    model, batch = case("plain torch")
    with pytest.raises(ZeroDivisionError), optimize.checkpoint(model, keep=()):
        tiny_models.loss_of(model, batch)
        raise ZeroDivisionError
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_forward_that_somebody_replaced_before_is_run_and_put_back() -> None:
    model, batch = case("plain torch")
    block = model.blocks[1]
    original = block.forward

    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * original(x)

    block.forward = twice
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model, keep=()):
        assert equal(gradients_of(model, batch), plain)
        assert str(inspect.signature(block.forward)) == "(x: 'torch.Tensor') -> 'torch.Tensor'"
    assert block.forward is twice


def test_undone_under_a_forward_that_somebody_put_over_it_nothing_is_recomputed() -> None:
    model, batch = case("plain torch")
    checkpointed = optimize.checkpoint(model, keep=())
    ours = model.blocks[1].forward
    model.blocks[1].forward = theirs = lambda x: ours(x)
    checkpointed.undo()
    gradients_of(model, batch)
    assert model.blocks[1].forward is theirs and checkpointed.forwards == 0


def test_a_copy_of_the_model_runs_its_own_layers() -> None:
    model, batch = case("plain torch")
    with optimize.checkpoint(model, keep=()):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.5)
        assert not equal(gradients_of(other, batch), gradients_of(model, batch))
        assert inspect.signature(model.blocks[0].forward) == inspect.signature(
            tiny_models.Block(8, 2).forward
        )


def test_the_measurement_counts_saved_bytes_once_and_recomputed_products() -> None:
    model, batch = case("llama")
    step = lambda: tiny_models.loss_of(model, batch)  # noqa: E731
    full = optimize.checkpoint(model, keep=())
    measured = full.measure(step)
    full.undo()
    seen: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: seen.append(t.detach()) or t.detach(), lambda t: t
    ):
        step()
    of_parameters = {parameter.data_ptr() for parameter in model.parameters()}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in seen}
    once = sum(size for address, size in storages.items() if address not in of_parameters)
    assert measured.saved_bytes_before == once < 0.9 * sum(t.nbytes for t in seen)
    tokens, hidden = 48, 32
    layers, head = 4 * tokens * hidden * 4, measured.saved_bytes_after
    assert measured.saved_bytes_after < measured.saved_bytes_before / 2
    assert measured.layers_recomputed == 4 and measured.gradients_differing == ()
    # Seven products per layer, but the last one's result is not needed again: torch stops before it.
    assert measured.gemms_recomputed == 4 * 6
    assert measured.peak_bytes_after < measured.peak_bytes_before
    assert "equal to the bit" in str(measured) and measured.record()["gemms_recomputed"] == 24

    attention = optimize.checkpoint(model)
    kept = attention.measure(step)
    attention.undo()
    sums = 4 * tokens * 4 * 4  # log-sum-exp: layers, tokens, heads, fp32
    assert kept.of_these_kept_bytes == layers + sums
    assert kept.saved_bytes_after == head + layers + sums

    # Gate and up: their products are not made again.
    products = optimize.checkpoint(model, keep=("attention", "gate_proj", "up_proj"))
    both = products.measure(step)
    products.undo()
    assert both.gemms_recomputed == 4 * 4
    assert both.of_these_kept_bytes == layers + sums + 2 * 3 * layers

    half = optimize.checkpoint(model, every=2, keep=())
    assert half.measure(step).layers_recomputed == 2
    assert half.measured and head < half.measured.saved_bytes_after < half.measured.saved_bytes_before
    half.undo()


def test_a_measurement_changes_nothing() -> None:
    model, batch = case("llama")
    gradients = gradients_of(model, batch)
    grads = [parameter.grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    with optimize.checkpoint(model) as checkpointed:
        checkpointed.measure(lambda: tiny_models.loss_of(model, batch))
        assert all(parameter.grad is was for parameter, was in zip(model.parameters(), grads, strict=True))
        assert equal(tiny_models.gradients(model), gradients)
        assert torch.equal(torch.get_rng_state(), state)
        assert "so far         0 forwards, 0 recomputed" in str(checkpointed.report())


def test_a_peak_that_lies_elsewhere_is_said_not_to_fall() -> None:
    model, batch = case("plain torch")
    # The last layer is recomputed right when the backward begins: less is saved, and as much is alive.
    with optimize.checkpoint(model, keep=(), layers=[model.blocks[3]]) as checkpointed:
        measured = checkpointed.measure(lambda: tiny_models.loss_of(model, batch))
    assert measured.saved_bytes_after < 0.8 * measured.saved_bytes_before
    assert measured.peak_bytes_after >= measured.peak_bytes_before
    assert "THE PEAK DID NOT FALL" in str(checkpointed.report())


def test_checkpointing_that_saves_nothing_is_refused_and_undone() -> None:
    class Identity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # saves its input, and nothing else

    model = nn.Sequential(*[Identity() for _ in range(3)])
    checkpointed = optimize.checkpoint(model, keep=())
    with pytest.raises(Refused, match="saves nothing here"):
        checkpointed.measure(lambda: model(torch.randn(4, 8)).sum())
    assert all("forward" not in module.__dict__ for module in model.modules())


class HooksInside(tiny_models.Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


def test_torch_itself_recomputes_nothing_when_hooks_are_inside() -> None:
    """What the next test guards against: torch says nothing."""
    block, runs = HooksInside(32, 4), 0

    def run(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return block(x)

    from torch.utils.checkpoint import checkpoint

    checkpoint(run, tiny_models.transformer_batch(), use_reentrant=False).sum().backward()
    assert runs == 1


@pytest.mark.parametrize("keep", [(), ("attention",)])
def test_hooks_inside_a_layer_are_refused_and_everything_undone(keep: tuple[str, ...]) -> None:
    model, batch = case("plain torch")
    model.blocks[2] = HooksInside(32, 4)
    checkpointed = optimize.checkpoint(
        model, keep=keep, layers="blocks.*" if not keep else list(model.blocks)
    )
    with pytest.raises(Refused, match=r"saved-tensor hooks are opened inside 'blocks\.2'"):
        tiny_models.loss_of(model, batch)
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert checkpointed.recomputed == 0


@pytest.mark.parametrize("keep", [(), ("attention",)])
def test_hooks_around_the_model_see_the_inputs_of_layers_only(keep: tuple[str, ...]) -> None:
    model, batch = case("plain torch")
    plain = gradients_of(model, batch)
    seen: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(tensor.shape))
        return tensor.detach()

    with optimize.checkpoint(model, keep=keep), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        assert equal(gradients_of(model, batch), plain)
    assert seen[:4] == [(2, 24, 32)] * 4 and len(seen) <= 8


def test_a_model_that_already_checkpoints_is_refused() -> None:
    model = tiny_models.llama()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.gradient_checkpointing_enable()
        with pytest.raises(Refused, match="already checkpoints"):
            optimize.checkpoint(model)
        model.gradient_checkpointing_disable()
        checkpointed = optimize.checkpoint(model)
        with pytest.raises(Refused, match="is already checkpointed"):
            optimize.checkpoint(model)
        model.gradient_checkpointing_enable()
    with pytest.raises(Refused, match="meanwhile checkpoints by itself"):
        tiny_models.loss_of(model, tiny_models.llama_batch())
    assert "forward" not in model.model.layers[0].__dict__
    checkpointed.undo()


def test_what_cannot_be_recomputed_is_refused() -> None:
    model = tiny_models.transformer()
    with pytest.raises(Refused, match="takes no layer"):
        optimize.checkpoint(model, every=0)
    with pytest.raises(Refused, match="no layers to checkpoint"):
        optimize.checkpoint(model, layers="decoder.*")
    for other, said in ((1, "1 is no module"), (torch.nn.ReLU(), r"ReLU\(\) is no module")):
        with pytest.raises(Refused, match=said):
            optimize.checkpoint(model, layers=[model.blocks[0], other])  # pyright: ignore[reportArgumentType]
    with pytest.raises(Refused, match=r"both 'blocks\.0' and 'mlp' in it"):
        optimize.checkpoint(model, layers=[model.blocks[0], model.blocks[0].mlp])
    with pytest.raises(Refused, match="no repeated layers"):
        optimize.checkpoint(nn.Linear(3, 3))
    with pytest.raises(Refused, match="has no 'o_proj' to keep"):
        optimize.checkpoint(model, keep=("o_proj",))
    model.blocks[1].compile(backend="eager")
    with pytest.raises(Refused, match=r"'blocks\.1' is compiled"):
        optimize.checkpoint(model)
    model = tiny_models.transformer()
    model.blocks[3].mlp.append(nn.BatchNorm1d(24))
    with pytest.raises(Refused, match="count every batch twice"):
        optimize.checkpoint(model)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_inside_torch_func_it_is_refused_and_undone() -> None:
    model, x = tiny_models.transformer(), tiny_models.transformer_batch()
    optimize.checkpoint(model, keep=())
    with pytest.raises(Refused, match=r"'blocks\.0' runs inside torch\.func\.vmap"):
        torch.func.vmap(model)(x.unsqueeze(0))
    assert "forward" not in model.blocks[0].__dict__


def test_a_layer_that_writes_to_a_buffer_is_refused() -> None:
    class Counting(tiny_models.Block):
        def __init__(self) -> None:
            super().__init__(32, 4)
            self.register_buffer("tokens_seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.tokens_seen += x.shape[1]
            return super().forward(x)

    model = nn.Sequential(Counting(), Counting())
    optimize.checkpoint(model, keep=())
    with pytest.raises(Refused, match="writes to its tensor 'tokens_seen'"):
        model(tiny_models.transformer_batch())
    assert "forward" not in model[0].__dict__


def test_a_layer_that_writes_to_what_it_is_given_is_refused() -> None:
    class AddsInPlace(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += 0.1
            return super().forward(x)

    model = nn.Sequential(*(AddsInPlace(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))
    optimize.checkpoint(model, keep=())
    with pytest.raises(Refused, match=r"'0' writes in place to what it is given \(shape \[2, 8\]\)"):
        model(torch.ones(2, 8))
    assert "forward" not in model[0].__dict__


def test_a_layer_that_makes_nested_tensors_is_refused_in_words() -> None:
    class Nests(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nested = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 3, len(x)]))
            return super().forward(nested).values()

    model = nn.Sequential(*(Nests(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))
    optimize.checkpoint(model, keep=())
    loss = model(torch.ones(5, 8)).sum()
    with pytest.raises(Refused, match=r"'1' saved float32 \[2, j\d+, 8\] in its forward, and float32"):
        loss.backward()
    assert "forward" not in model[0].__dict__


def test_memory_of_recurrent_kernels_is_not_compared() -> None:
    """oneDNN runs a frozen one, and saves memory of which it has not written each byte."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.out = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.out(self.cells(x)[0])

    def gradients() -> list[torch.Tensor]:
        model(x).square().sum().backward()
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return found

    torch.manual_seed(0)
    model, x = nn.Sequential(Recurrent(), Recurrent()), torch.randn(2, 5, 16, requires_grad=True)
    for layer in model:
        layer.get_submodule("cells").requires_grad_(False)
    expected = gradients()
    rubbish = [torch.full((size,), float(size)) for size in range(1, 3000, 7)]
    del rubbish
    with optimize.checkpoint(model, keep=()) as checkpointed:
        assert all(map(torch.equal, gradients(), expected))
        assert checkpointed.compared > 0


def test_nothing_to_keep_is_refused() -> None:
    model = tiny_models.llama(attn_implementation="eager")
    optimize.checkpoint(model)
    with pytest.raises(Refused, match="fused attention operator"):
        tiny_models.loss_of(model, tiny_models.llama_batch())
    optimize.checkpoint(model, keep=()).undo()


def test_an_empty_cache_is_dropped_and_a_filled_one_refused() -> None:
    model = tiny_models.llama(use_cache=True)
    batch = tiny_models.llama_batch()
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model) as checkpointed:
        with pytest.warns(UserWarning, match="use_cache=False"):
            assert equal(gradients_of(model, batch), plain)
        assert checkpointed.caches_dropped == 4 and "caches dropped 4" in str(checkpointed.report())
        with torch.no_grad():
            generated = model.generate(batch["input_ids"][:, :5], max_new_tokens=4, do_sample=False)
            cache = model(batch["input_ids"], use_cache=True).past_key_values
        assert generated.shape == (2, 9)
        with pytest.raises(Refused, match="reads a DynamicCache of 24 tokens"):
            model(batch["input_ids"], past_key_values=cache)


def test_the_empty_caches_of_encoder_and_decoder_are_dropped() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 2, "d_kv": 8}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)).train()
    batch = tiny_models.llama_batch(8)
    with optimize.checkpoint(model, keep=()) as checkpointed:
        with pytest.warns(UserWarning, match="use_cache=False"):
            gradients_of(model, batch)
        assert len(checkpointed.layers) == 4 and checkpointed.recomputed == 4
        assert checkpointed.measure(lambda: tiny_models.loss_of(model, batch)).gradients_differing == ()


@pytest.mark.filterwarnings("ignore:checkpointed layers fill no key-value cache")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("sequence", [6, 9, 12])
def test_layers_that_are_given_a_cache_round_as_they_do_with_it(sequence: int, dropout: float) -> None:
    """Keys that went through one are joined in one piece; without, attention gets them as they were cut."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8}
    config = T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, dropout_rate=dropout)
    model = T5ForConditionalGeneration(config).train()
    batch = tiny_models.llama_batch(sequence)
    torch.manual_seed(1)
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model, keep=()):
        torch.manual_seed(1)
        assert equal(gradients_of(model, batch), plain)


def test_a_layer_that_runs_twice_is_recomputed_twice() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([tiny_models.Block(32, 4), tiny_models.Block(32, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                for block in self.blocks:
                    x = block(x)
            return x

    model, batch = Shared(), tiny_models.transformer_batch()
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model) as checkpointed:
        assert equal(gradients_of(model, batch), plain)
        assert checkpointed.forwards == checkpointed.recomputed == 6


def test_compiling_a_checkpointed_model_is_refused() -> None:
    model = tiny_models.transformer()
    with optimize.checkpoint(model, keep=()), pytest.raises(Refused, match="is being compiled"):
        torch.compile(model, backend="eager")(tiny_models.transformer_batch())
    torch._dynamo.reset()


def test_accumulation_and_two_backwards_are_equal_to_the_bit() -> None:
    model, batch = case("llama")

    def twice() -> dict[str, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        loss = tiny_models.loss_of(model, batch)
        loss.backward(retain_graph=True)
        loss.backward()
        tiny_models.loss_of(model, tiny_models.llama_batch(seed=9)).backward()
        return tiny_models.gradients(model)

    plain = twice()
    with optimize.checkpoint(model, keep=()) as checkpointed:
        assert equal(twice(), plain)
        assert checkpointed.recomputed == 3 * 4
    with optimize.checkpoint(model), pytest.raises(Refused, match="a second backward"):
        twice()


def test_layers_are_found_outermost_and_most_parameters_first() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([tiny_models.mlp(2, 8) for _ in range(6)])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList([tiny_models.Block(8, 2) for _ in range(2)])
            self.decoder = nn.Sequential(nn.Linear(8, 8), Experts(), Experts(), Experts())
            self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    model = Model()
    assert repeated_layers(model) == [list(model.encoder), list(model.decoder)[1:]]
    assert len(repeated_layers(tiny_models.llama())[0]) == 4


@pytest.mark.parametrize("only", ["mlp", "layer"])
def test_a_plan_recomputes_whole_modules(only: str) -> None:
    model, batch = case("llama")
    plain = gradients_of(model, batch)
    rest = {"mlp": "offload", "layer": "recompute"}[only]
    plan = {
        "classes": {
            "model.layers.*.mlp.act_fn/MmBackward0": "recompute",
            "model.layers.*.mlp/SiluBackward0": "recompute",
            "model.layers.*.mlp.down_proj/MulBackward0": "recompute",
            "model.layers.*.mlp.down_proj/leaf": "keep",  # the weight, which no plan moves
            "model.layers.*.self_attn/AddBackward0": rest,
            "lm_head/MulBackward0": "keep",
        }
    }
    with optimize.checkpoint(model, plan=plan) as checkpointed:
        assert equal(gradients_of(model, batch), plain)
        kinds = {type(layer).__name__ for layer in checkpointed.layers}
        assert kinds == {"mlp": {"LlamaMLP"}, "layer": {"LlamaDecoderLayer"}}[only]
        assert checkpointed.recomputed == 4
        measured = checkpointed.measure(lambda: tiny_models.loss_of(model, batch))
        assert measured.saved_bytes_after < measured.saved_bytes_before


def test_the_planners_plan_is_followed_and_its_peak_is_met() -> None:
    import msgspec

    from lostflops.plan.hardware import LINKS
    from lostflops.plan.offload import class_decisions, saved_profile

    model, batch = case("llama")
    profile = msgspec.convert(optimize.saved_tensors(model, batch), saved_profile.Profile)
    link = next(iter(LINKS.values()))
    found = class_decisions.plan(profile, int(0.8 * profile.peak_bytes), link, may=("recompute",))
    plan = class_decisions.record(found)
    with optimize.checkpoint(model, plan=plan) as checkpointed:
        measured = checkpointed.measure(lambda: tiny_models.loss_of(model, batch))
    assert measured.peak_bytes_after < 0.8 * measured.peak_bytes_before
    assert plan["predicted"]["peak_bytes"] == pytest.approx(measured.peak_bytes_after, rel=0.01)


@pytest.mark.parametrize(
    ("classes", "match"),
    [
        ({"model.layers.*.mlp/SiluBackward0": "drop"}, "the plan says"),
        ({"model.layers.*.mlp/SiluBackward0": "keep"}, "recomputes nothing"),
        ({"decoder.*.mlp/SiluBackward0": "recompute"}, "no module around it"),
        (
            {
                "model.layers.*.mlp/SiluBackward0": "recompute",
                "model.layers.*.mlp.down_proj/MulBackward0": "keep",
            },
            "no module around it",
        ),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(classes: dict[str, str], match: str) -> None:
    with pytest.raises(Refused, match=match):
        optimize.checkpoint(tiny_models.llama(), plan={"classes": classes})


def test_checkpointing_stays_when_another_remedy_refuses() -> None:
    model, batch = case("llama")
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model, keep=()) as checkpointed:

        def refusing(tensor: torch.Tensor) -> torch.Tensor:
            if checkpointed.forwards == 2:  # in a layer: its input is being saved
                raise Refused("this cannot move", "leave it")
            return tensor

        with (
            pytest.raises(Refused, match="this cannot move"),
            torch.autograd.graph.saved_tensors_hooks(refusing, lambda tensor: tensor),
        ):
            gradients_of(model, batch)
        model.zero_grad()
        assert equal(gradients_of(model, batch), plain)
        assert checkpointed.recomputed == 4


def test_random_numbers_of_a_device_are_kept_when_tensors_come_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch saves the state of the devices that it sees among the positional arguments, and of no others."""
    from torch.utils import checkpoint as torch_checkpointing

    seen: list[Any] = []
    monkeypatch.setattr(
        torch_checkpointing, "_infer_device_type", lambda *args: seen.append(args) or "cpu", raising=True
    )

    class Layer(tiny_models.Block):
        def forward(self, *, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden)

    layers = nn.ModuleList([Layer(32, 4), Layer(32, 4)])
    with optimize.checkpoint(layers, keep=()):
        layers[1](hidden=layers[0](hidden=tiny_models.transformer_batch())).sum().backward()
    assert any(isinstance(value, torch.Tensor) for value in seen[0])


def test_without_gradients_nothing_is_checkpointed() -> None:
    model, batch = case("plain torch")
    with optimize.checkpoint(model) as checkpointed, torch.no_grad():
        model(batch)
    assert checkpointed.forwards == 0


class Chance(nn.Module):
    """A block whose forward draws random numbers that are not torch's default ones, or counts its calls."""

    def __init__(self, draws: str) -> None:
        super().__init__()
        self.inner = tiny_models.Block(32, 4)
        self.draws, self.calls, self.beside, self.elsewhere = draws, 0, [0], SimpleNamespace(calls=0)
        self.generator = torch.Generator().manual_seed(3)
        self.own, self.array = random.Random(4), np.random.default_rng(5)
        self.old, self.counting = np.random.RandomState(6), itertools.count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        self.calls += 1
        self.beside[0] += 1
        self.elsewhere.calls += 1
        if self.draws == "python's, to skip":
            return y * y if random.random() < 0.5 else y.sin()
        factor: Any = {
            "python's": random.random,
            "numpy's": np.random.rand,
            "its generator's": lambda: torch.rand(y.shape, generator=self.generator),
            "its own of python": self.own.random,
            "its own of numpy": self.array.random,
            "its old one of numpy": self.old.rand,
            "none, but counts": lambda: 1 + self.calls,
            "none, but counts in a list": lambda: 1 + self.beside[0],
            "none, but counts in an object": lambda: 1 + self.elsewhere.calls,
            "none, but counts by an iterator": lambda: next(self.counting),
            "none, and counts to no effect": lambda: 2,
        }[self.draws]()
        return (y * y * factor).sin()


def of_chance(draws: str) -> Any:
    torch.manual_seed(0)
    random.seed(1)
    np.random.seed(2)
    return nn.Sequential(*[Chance(draws) for _ in range(3)])


def test_numpy_s_random_numbers_may_be_imported_between_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the backward does that imports torch._dynamo, in a program that did not ask numpy for any."""
    block = Chance("its own of numpy")
    numbers = RandomNumbers(block)
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "numpy")
        states = numbers.states()
    drawn: list[float] = []
    for _ in range(2):
        with numbers.as_they_were(states):
            drawn.append(block.array.random())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "draws",
    [
        "python's",
        "python's, to skip",
        "numpy's",
        "its generator's",
        "its own of python",
        "its own of numpy",
        "its old one of numpy",
        "none, but counts",
        "none, but counts in a list",
        "none, but counts in an object",
        "none, and counts to no effect",
    ],
)
def test_random_numbers_of_any_source_come_again_in_the_recomputation(draws: str) -> None:
    """torch brings back its own only; with others the gradients would be wrong without an error."""
    batch = tiny_models.transformer_batch()
    model = of_chance(draws)
    plain = [gradients_of(model, batch) for _ in range(3)]
    model = of_chance(draws)
    with optimize.checkpoint(model, layers=list(model), keep=()) as checkpointed:
        for step in plain:
            assert equal(gradients_of(model, batch), step)
    assert checkpointed.recomputed == 9


class Given(nn.Module):
    """Layers that draw from a generator which they are given, by itself or in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Draws(32, 4) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torchs, own = torch.Generator().manual_seed(3), random.Random(4)
        for layer in self.layers:
            x = layer(x, torchs, {"own": own})
        return x * torch.rand(x.shape, generator=torchs) * own.random()


class Draws(tiny_models.Block):
    def forward(self, x: torch.Tensor, torchs: torch.Generator, others: dict[str, random.Random]) -> Any:
        y = super().forward(x)
        return (y * y * torch.rand(y.shape, generator=torchs) * others["own"].random()).sin()


@pytest.mark.parametrize("verify", ["first step", None])
def test_a_generator_that_a_layer_is_given_draws_the_same_again(verify: Any) -> None:
    batch = tiny_models.transformer_batch()
    torch.manual_seed(0)
    model = Given()
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model, keep=(), verify=verify) as checkpointed:
        assert equal(gradients_of(model, batch), plain)
    assert checkpointed.recomputed == 3


class Mixes(tiny_models.Block):
    """Saves a sparse matrix and complex numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        first = torch.sparse.mm(torch.eye(y.shape[1]).to_sparse(), y[0])
        return torch.stack([first, *y[1:]]) + torch.complex(y, x).conj().abs()


def test_sparse_and_complex_tensors_may_be_saved_inside() -> None:
    torch.manual_seed(0)
    batch, model = tiny_models.transformer_batch(), nn.Sequential(*[Mixes(32, 4) for _ in range(2)])
    plain = gradients_of(model, batch)
    with optimize.checkpoint(model, layers=list(model), keep=()):
        for _ in range(2):
            assert equal(gradients_of(model, batch), plain)


def test_threads_may_run_a_layer_at_the_same_time() -> None:
    batch, model = tiny_models.transformer_batch(), tiny_models.transformer()
    plain, met = gradients_of(model, batch), threading.Barrier(2, timeout=20)

    def meet(*_: Any) -> None:
        met.wait()

    with optimize.checkpoint(model, keep=()), ThreadPoolExecutor(2) as threads:
        hook = model.blocks[1].mlp.register_forward_pre_hook(meet)
        losses = list(threads.map(lambda _: tiny_models.loss_of(model, batch), range(2)))
        hook.remove()
        for loss in losses:
            model.zero_grad()
            loss.backward()
            assert equal(tiny_models.gradients(model), plain)


class WritesOver(tiny_models.Block):
    """Writes to what sigmoid has saved, from the second step on."""

    writes = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = super().forward(x).sigmoid()
        if self.writes:
            gate.mul_(2)
        return (gate * gate).sin()


@pytest.mark.parametrize("verify", ["first step", None])
@pytest.mark.parametrize("keep", [(), ("mlp.*",)], ids=str)
def test_a_layer_that_writes_to_what_it_has_saved_raises_as_without(keep: Any, verify: Any) -> None:
    """torch's own checkpointing gives wrong gradients there without an error."""
    claims._NOTHING.clear()  # as in the first backward of a process
    torch.manual_seed(0)
    batch, model = tiny_models.transformer_batch(), nn.Sequential(*[WritesOver(32, 4) for _ in range(2)])
    with optimize.checkpoint(model, layers=list(model), keep=keep, verify=verify):
        gradients_of(model, batch)
        model[0].writes = True
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients_of(model, batch)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients_of(model, batch)


@pytest.mark.parametrize("keep", [(), ("inner.mlp.*",)], ids=str)
def test_a_layer_that_computes_something_else_the_second_time_is_refused_in_its_backward(keep: Any) -> None:
    model, batch = of_chance("none, but counts by an iterator"), tiny_models.transformer_batch()
    checkpointed = optimize.checkpoint(model, layers=list(model), keep=keep)
    with pytest.raises(Refused, match="'2' computed something else the second time"):
        gradients_of(model, batch)
    assert "forward" not in model[0].__dict__, "still checkpointed"
    assert checkpointed.recomputed
    model = of_chance("none, but counts by an iterator")
    with optimize.checkpoint(model, layers=list(model), keep=keep, verify=None):
        gradients_of(model, batch)


def test_the_first_backward_of_each_layer_is_compared_and_no_later_one() -> None:
    model, batch = case("llama in bf16 with attention dropout")
    with optimize.checkpoint(model, keep=()) as checkpointed:
        gradients_of(model, batch)
        compared = checkpointed.compared
        assert compared > 4 * len(checkpointed.layers)
        assert f"compared       {compared} saved tensors" in str(checkpointed.report())
        gradients_of(model, batch)
        assert checkpointed.compared == compared


class Rounds(nn.Module):
    """A kernel that adds up in another order each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.counting = tiny_models.Block(32, 4), itertools.count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return (y * (1 + next(self.counting) * torch.finfo(y.dtype).eps)).sin()


def test_what_differs_by_rounding_only_is_told_and_not_refused() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(Rounds(), Rounds())
    with optimize.checkpoint(model, layers=list(model), keep=()) as checkpointed:
        gradients_of(model, tiny_models.transformer_batch())
    assert "by rounding" in str(checkpointed.report())


@pytest.mark.parametrize("checkpointed_first", [True, False])
def test_what_streaming_does_is_none_of_the_operators_of_a_layer_that_keeps_its_attention(
    checkpointed_first: bool,
) -> None:
    """Selective checkpointing counts operators, and streaming copies more in the one than in the other."""
    model, batch = tiny_models.lora(), tiny_models.llama_batch()
    plain = gradients_of(model, batch)
    made: list[Any] = [
        optimize.checkpoint,
        lambda model: optimize.stream_frozen(model, device=LazyDevice()),
    ]
    with ExitStack() as stack:
        for remedy in made if checkpointed_first else reversed(made):
            stack.enter_context(remedy(model))
        for _ in range(2):
            model.zero_grad()
            assert equal(gradients_of(model, batch), plain)


def test_a_second_forward_under_one_autocast_finds_weights_that_are_cast_already() -> None:
    """As where a policy sees what was chosen, then what was rejected: its recomputation casts them anew."""
    torch.manual_seed(0)
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()

    def gradients() -> list[Any]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(batch) - model(batch.flip(0))).float().square().mean()
        loss.backward()
        return [p.grad for p in model.parameters()]

    plain = gradients()
    with optimize.checkpoint(model):
        assert all(map(torch.equal, gradients(), plain))


def test_a_copy_of_a_model_under_two_remedies_runs_its_own_layers() -> None:
    """The second replaces a forward that the first has put there."""
    model, batch = tiny_models.lora(), tiny_models.llama_batch()
    plain = gradients_of(model, batch)
    device = optimize.ThreadedDevice()
    with optimize.stream_frozen(model, device=device), optimize.checkpoint(model, keep=()):
        model.zero_grad()
        other = copy.deepcopy(model)
        assert equal(gradients_of(other, batch), plain)
        assert tiny_models.gradients(model) == {}
