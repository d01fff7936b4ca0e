"""16-bit and FP8 training: one call each, undone exactly, and compared with bf16 step by step."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import sys
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize import Refused
from lostflops.optimize.activations.checkpoint_measured import Storages
from lostflops.optimize.training.parity import Parity

torch.set_num_threads(1)
RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")


def batch_of(number: int) -> dict[str, torch.Tensor]:
    """Each next word follows from the last one: something to learn."""
    torch.manual_seed(1000 + number)
    first = torch.randint(0, 61, (2, 1))
    ids = (first + 7 * torch.arange(16)) % 61
    return {"input_ids": ids, "labels": ids.clone()}


def trained(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> torch.Tensor:
        loss = model(**batch_of(number)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def small_llama(**changes: Any) -> Any:
    return tiny_models.llama(layers=2, hidden=64, **changes)


# bf16


def test_bf16_halves_the_bytes_and_leaves_rotary_frequencies() -> None:
    model = small_llama(max_position_embeddings=8192)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    parameters = list(model.parameters())
    before = sum(parameter.nbytes for parameter in parameters)
    converted = optimize.to_bf16(model)
    assert sum(parameter.nbytes for parameter in model.parameters()) == before / 2
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters], "an optimizer would lose them"
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    assert converted.kept == ["model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]
    # What `model.bfloat16()` does to them: at the end of the context the angle is off by radians.
    assert (8191 * (frequencies - frequencies.bfloat16().float()).abs()).max() > 1
    assert "fp32 weights and buffers are" in str(converted.report())
    said = converted.report()
    model(**tiny_models.llama_batch()).loss.backward()
    converted.undo()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert all(parameter.grad is None for parameter in parameters), "bf16 gradients of fp32 weights"
    assert converted.report() == said and said.figures["bytes_now"] == before / 2


def test_undoing_bf16_keeps_what_was_trained_meanwhile_and_what_somebody_cast_themselves() -> None:
    torch.manual_seed(0)
    model = tiny_models.mlp()
    rounded = [parameter.bfloat16().float() for parameter in model.parameters()]
    converted = optimize.to_bf16(model)
    first, *rest = model.parameters()
    with torch.no_grad():
        first.add_(1)
    second = rest[0]
    second.data = second.data.double()  # no longer ours
    converted.undo()
    converted.undo()
    assert torch.equal(first, (rounded[0].bfloat16() + 1).float())
    assert second.dtype == torch.float64
    assert all(torch.equal(now, was) for now, was in zip(rest[1:], rounded[2:], strict=True))
    with pytest.raises(Refused, match="has been undone"):
        converted.apply()


class Averages(nn.Module):
    """A buffer that each forward binds anew."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.mean = self.mean * 0.9 + y.mean(0) * 0.1
        return y


def test_undoing_bf16_takes_what_was_bound_anew_meanwhile() -> None:
    model = Averages()
    with optimize.to_bf16(model):
        weight = model.linear.weight.detach().clone()
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        model(torch.ones(2, 4, dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert torch.equal(model.linear.weight, weight.float()) and model.mean.any()


def test_no_optimizer_steps_by_gradients_or_states_of_the_dtype_that_weights_had() -> None:
    """SGD went on with bf16 momentum after `undo()`, and by bf16 gradients of a forward before it."""
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = model(x)
    converted = optimize.to_bf16(model)
    before.sum().backward()
    with pytest.raises(Refused, match="fp32 gradients of bf16 weights: their forward ran before"):
        optimizer.step()
    optimizer.zero_grad()
    model(x.bfloat16()).sum().backward()
    optimizer.step()
    before = model(x.bfloat16())
    converted.undo()
    before.sum().backward()
    with pytest.raises(Refused, match="bf16 gradients of fp32 weights"):
        optimizer.step()
    optimizer.zero_grad()
    model(x).sum().backward()
    weight, momentum = model.weight.detach().clone(), optimizer.state[model.weight]["momentum_buffer"]
    with pytest.raises(Refused, match=r"'momentum_buffer' is bf16 from before undo\(\), .* fp32 now"):
        optimizer.step()
    assert torch.equal(model.weight, weight)
    optimizer.load_state_dict(optimizer.state_dict())  # as is advised
    optimizer.step()
    momentum = momentum.float().mul_(0.9).add_(model.weight.grad)
    assert torch.equal(model.weight, weight.add_(momentum, alpha=-0.1))
    another = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    another.step()
    another.state[model.weight]["momentum_buffer"] = momentum.bfloat16()  # whoever wants that may have it
    another.step()


def test_tied_weights_stay_tied_and_batch_norm_stays_fp32() -> None:
    model = tiny_models.llama(tie_word_embeddings=True)
    with optimize.to_bf16(model):
        assert model.lm_head.weight is model.model.embed_tokens.weight
        tiny_models.loss_of(model, tiny_models.llama_batch()).backward()
    convolution = nn.Sequential(nn.Conv1d(3, 5, 2), nn.BatchNorm1d(5))
    converted = optimize.to_bf16(convolution)
    assert convolution[1].running_mean.dtype == convolution[1].weight.dtype == torch.float32
    assert convolution[0].weight.dtype == torch.bfloat16
    assert "1.weight" in converted.kept


def test_bf16_refuses_tensors_in_the_same_memory_and_takes_parts_of_one_memory() -> None:
    """A weight that is another's transposed had memory of its own, without a word."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    with pytest.raises(Refused, match=r"'0\.weight' and '1\.weight' are two tensors in the same memory"):
        optimize.to_bf16(model)
    assert model[0].weight.dtype == torch.float32
    whole = torch.zeros(32)
    for number in range(2):
        model[number].weight = nn.Parameter(whole[16 * number : 16 * number + 16].view(4, 4))
    optimize.to_bf16(model)
    model[0].register_buffer("row", model[0].weight.data[0])
    optimize.to_bf16(nn.Sequential(nn.Linear(4, 4), model))  # in bf16 already: stays


def test_bf16_refuses_gradients_and_what_is_bf16_already() -> None:
    model = tiny_models.mlp()
    model(tiny_models.mlp_batch()).sum().backward()
    with pytest.raises(Refused, match="has a gradient"):
        optimize.to_bf16(model)
    with pytest.raises(Refused, match="no fp32 weights"):
        optimize.to_bf16(tiny_models.mlp().bfloat16())


# autocast


def test_autocast_computes_in_bf16_and_keeps_weights_and_signature() -> None:
    model = small_llama()
    signature = inspect.signature(model.forward)
    batch = batch_of(0)
    plain = tiny_models.loss_of(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = tiny_models.loss_of(model, batch)
    with optimize.autocast(model) as casting:
        outputs = model(**batch)
        assert outputs.logits.dtype == torch.bfloat16 and torch.equal(outputs.loss, wanted)
        outputs.loss.backward()
        # The Trainer drops the columns that are not in the signature.
        assert inspect.signature(model.forward) == signature
        assert "bfloat16" in str(casting.report())
    assert not torch.equal(plain, wanted)
    assert torch.equal(tiny_models.loss_of(model, batch), plain) and "forward" not in model.__dict__
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_autocast_follows_a_model_that_moves() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    optimize.autocast(model)
    model.to_empty(device="cpu")
    assert model(torch.ones(2, 4)).dtype == torch.bfloat16


def test_autocast_refuses_fp16_and_16_bit_weights() -> None:
    with pytest.raises(Refused, match="loss scaled"):
        optimize.autocast(tiny_models.mlp(), torch.float16)
    with pytest.raises(Refused, match="no fp32 weights"):
        optimize.autocast(tiny_models.mlp().bfloat16())
    with pytest.raises(Refused, match="is none"):
        optimize.autocast(tiny_models.mlp(), torch.float64)


# FP8


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_swaps_layers_keeps_parameters_and_is_undone(recipe: str) -> None:
    model, batch = small_llama().bfloat16(), batch_of(0)
    parameters, keys = list(model.parameters()), list(model.state_dict())
    modules = list(model.modules())
    plain = tiny_models.loss_of(model, batch)
    with optimize.to_fp8(model, recipe, small=True) as converted:
        assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
        assert list(model.state_dict()) == keys
        assert len(converted.converted) == 2 * 7
        assert list(converted.skipped) == ["lm_head"]
        loss = tiny_models.loss_of(model, batch)
        loss.backward()
        assert not torch.equal(loss, plain) and abs(loss - plain) < 0.01 * plain
        report = str(converted.report())
        assert ("gradients E5M2" in report) == (recipe == "tensorwise")
        assert "E4M3" in report and "emulated" in report and "no FP8" in report
        model.eval()
    assert all(one is other for one, other in zip(model.modules(), modules, strict=True))
    assert not any(module.training for module in model.modules())
    assert torch.equal(tiny_models.loss_of(model, batch), plain)


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_computes_the_same_in_inference_mode(recipe: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    optimize.to_fp8(model, recipe, emulate=True, small=True)
    x = tiny_models.transformer_batch(hidden=16)
    with torch.inference_mode():
        found = model(x)
    assert torch.equal(found, model(x))


def test_hooks_that_come_meanwhile_stay_when_fp8_is_undone_and_can_be_taken_away() -> None:
    model = tiny_models.mlp(2, 32)
    told: list[str] = []
    converted = optimize.to_fp8(model, small=True)
    layer = model.get_submodule(converted.converted[0])
    handles = [
        layer.register_forward_hook(lambda *_: told.append("forward")),
        layer.register_full_backward_hook(lambda *_: told.append("backward")),
    ]
    x = torch.randn(16, 32, requires_grad=True)
    model(x).sum().backward()
    converted.undo()
    model(x).sum().backward()
    assert told == ["forward", "backward"] * 2
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert len(told) == 4


def test_undoing_fp8_takes_the_parameters_that_were_bound_anew_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    with optimize.to_fp8(model, emulate=True, small=True):
        loaded = {name: torch.full_like(value, 3) for name, value in model.state_dict().items()}
        model.load_state_dict(loaded, assign=True)
    assert type(model[0]) is nn.Linear and all(bool((p == 3).all()) for p in model.parameters())


def test_fp8_is_undone_below_adapters_that_came_later() -> None:
    """Their layer held the one in FP8, and gave it back as they went."""
    model = small_llama().bfloat16()
    modules, converted = list(model.modules()), optimize.to_fp8(model, small=True)
    adapters = optimize.lora(model, targets=["q_proj"])
    converted.undo()
    adapters.undo()
    assert all(one is other for one, other in zip(model.modules(), modules, strict=True))


def test_fp8_says_why_a_layer_is_left_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Linear(24, 4096)
            self.short = nn.Linear(1024, 2048)
            self.hooked = nn.Linear(2048, 4112)
            self.hooked.register_forward_hook(lambda *_: None)
            self.frozen = nn.Linear(2048, 4112).requires_grad_(False)
            self.attention = nn.MultiheadAttention(16, 2)
            self.named = nn.Linear(2048, 4112)
            self.large = nn.Linear(2048, 4112)
            self.lm_head = nn.Linear(2048, 4112)

    model = Model().to("meta")
    skipped = optimize.to_fp8(model, skip=("named",)).skipped
    assert {name: reason.partition(":")[0].split(",")[0] for name, reason in skipped.items()} == {
        "narrow": "4096 x 24",
        "short": "small (2048 x 1024)",
        "hooked": "with hooks or a forward of its own",
        "frozen": "frozen",
        "attention.out_proj": "a NonDynamicallyQuantizableLinear",
        "named": "named in `skip`",
        "lm_head": "the output head",
    }
    assert type(model.large).__name__ == "Float8Linear"


def test_fp8_refuses_when_nothing_is_left() -> None:
    with pytest.raises(Refused, match=r"no layer is left to run in FP8: 'model\.layers\.0.*' is small"):
        optimize.to_fp8(small_llama())
    with pytest.raises(Refused, match="frozen"):
        optimize.to_fp8(small_llama().requires_grad_(False))
    with pytest.raises(Refused, match="no recipe 'blockwise'"):
        optimize.to_fp8(small_llama(), "blockwise")
    with pytest.raises(Refused, match="no engine"):
        optimize.to_fp8(small_llama(), engine="triton")


def test_a_tied_head_is_a_head() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(64, 32)
            self.body = nn.Linear(32, 32)
            self.out = nn.Linear(32, 64, bias=False)
            self.out.weight = self.words.weight

    model = Model().eval()
    assert list(optimize.to_fp8(model, small=True).skipped) == ["out"]
    assert not any(module.training for module in model.modules()), "converted in evaluation, it stays there"


def test_a_layer_with_two_parents_stays_one_layer() -> None:
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict({"first": nn.Sequential(shared), "second": nn.Sequential(shared)})
    with optimize.to_fp8(model, small=True):
        assert model["first"][0] is model["second"][0] is not shared
    assert model["first"][0] is model["second"][0] is shared


def saved_bytes(model: Any, batch: Any) -> int:
    storages = Storages(list(model.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(storages.pack, lambda tensor: tensor):
        tiny_models.loss_of(model, batch)
    return storages.nbytes


def test_fp8_saves_as_many_bytes_as_before_and_more_where_weights_are_frozen() -> None:
    model, batch = small_llama().bfloat16(), batch_of(0)
    before = saved_bytes(model, batch)
    with optimize.to_fp8(model, small=True):
        assert saved_bytes(model, batch) == before
    # Why frozen layers are left out: torchao's layer saves its input whether or not its weight is trained.
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    layer = nn.Linear(32, 32).requires_grad_(False)
    x = torch.randn(16, 32, requires_grad=True)
    assert saved_bytes(layer, x) == 4 * 16 * 32  # the output, for the square
    config = replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    converted = convert_to_float8_training(layer, config=config)
    assert saved_bytes(converted, x) == 2 * 4 * 16 * 32


def test_transformer_engine_is_refused_in_words_where_it_is_absent() -> None:
    with pytest.raises(Refused, match="needs 'transformer-engine'"):
        optimize.to_fp8(small_llama(), engine="transformer-engine", small=True)


def test_transformer_engines_layers_take_the_parameters_and_run_in_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for the library: what is tested is what we do with it."""
    inside: list[Any] = []

    class Linear(nn.Linear):
        def __init__(self, inputs: int, outputs: int, bias: bool, params_dtype: Any, device: Any) -> None:
            super().__init__(inputs, outputs, bias, device, params_dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert inside, "called outside of FP8"
            return super().forward(x)

    @contextlib.contextmanager
    def fp8_autocast(enabled: bool, fp8_recipe: Any) -> Any:
        inside.append(fp8_recipe)
        yield
        inside.pop()

    library, common = types.ModuleType("transformer_engine.pytorch"), types.ModuleType("common")
    library.Linear, library.fp8_autocast = Linear, fp8_autocast
    common.recipe = types.SimpleNamespace(
        Float8CurrentScaling=lambda fp8_format: fp8_format, Format=types.SimpleNamespace(HYBRID="hybrid")
    )
    for name, module in (("", types.ModuleType("te")), (".pytorch", library), (".common", common)):
        monkeypatch.setitem(sys.modules, f"transformer_engine{name}", module)
    sys.modules["transformer_engine"].pytorch = library
    model, batch = small_llama(), batch_of(0)
    options = {"engine": "transformer-engine", "small": True}
    with pytest.raises(Refused, match="needs FP8 hardware"):
        optimize.to_fp8(model, "tensorwise", **options)
    with pytest.raises(Refused, match="no recipe 'rowwise'"):
        optimize.to_fp8(model, **options)
    monkeypatch.setattr(
        sys.modules["lostflops.optimize.training.fp8"], "hardware_lacks_fp8", lambda model: None
    )
    plain, modules, parameters = (
        tiny_models.loss_of(model, batch),
        list(model.modules()),
        list(model.parameters()),
    )
    with optimize.to_fp8(model, "tensorwise", **options) as converted:
        assert isinstance(model.model.layers[1].mlp.up_proj, Linear) and converted.emulated is None
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert torch.equal(tiny_models.loss_of(model, batch), plain)
    assert all(one is other for one, other in zip(model.modules(), modules, strict=True))


# Loss parity


def broken(model: Any) -> None:
    """What a wrong scale in a conversion does."""
    optimize.to_bf16(model)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
        model.lm_head.weight.mul_(1.1)


def fp8_of_bf16(model: Any) -> None:
    optimize.to_bf16(model)
    optimize.to_fp8(model, "rowwise", small=True)


def test_fp8_stays_within_one_percent_of_bf16_and_a_broken_variant_does_not() -> None:
    model = small_llama()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(77)
    random_state = torch.get_rng_state()
    parity = optimize.loss_parity(
        model,
        trained,
        {
            "fp8": fp8_of_bf16,
            "broken": broken,
            "bf16 again": optimize.to_bf16,
            "not a number": lambda model: (
                optimize.to_bf16(model) and model.lm_head.weight.data.fill_(torch.nan)
            ),
        },
        steps=12,
    )
    assert parity.baseline[-1] < 0.9 * parity.baseline[0], "it should learn"
    assert parity.verdict("fp8") == "within 1 % of bf16 over 12 steps" and max(parity.gaps("fp8")) > 0
    assert not parity.passes("broken") and parity.verdict("broken").startswith("NOT within 1 % of bf16:")
    assert parity.verdict("bf16 again") == "equal to bf16 to the bit over 12 steps"
    assert parity.verdict("not a number") == "NOT within 1 % of bf16: the loss is nan at step 0"
    assert not parity.ok and parity.record()["variants"]["fp8"]["passes"]
    assert "fp8: within 1 %" in str(parity)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_the_verdict_is_on_the_worst_step() -> None:
    losses = {"strays": (4.0, 3.5, 2.0), "near": (4.02, 2.99, 2.01), "fails": (4.0, float("nan"), 2.0)}
    parity = Parity(3, 0.01, (4.0, 3.0, 2.0), losses)
    assert parity.verdict("strays") == "NOT within 1 % of bf16: 16.7 % above at step 1"
    assert parity.verdict("near") == "within 1 % of bf16 over 3 steps"
    assert parity.verdict("fails") == "NOT within 1 % of bf16: the loss is nan at step 1"
    assert [parity.passes(name) for name in losses] == [False, True, False] and not parity.ok
    record = parity.record()["variants"]
    assert record["near"]["worst_gap_fraction"] == pytest.approx(0.005)
    assert record["strays"]["final_gap_fraction"] == 0


def test_dropout_and_data_are_the_same_for_every_variant() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def make_step(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> torch.Tensor:
            data = torch.randn(4, 8) * np.random.rand() * random.random()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    state, numpys = random.getstate(), np.random.get_state()[1].tolist()
    parity = optimize.loss_parity(
        make, make_step, {"same": lambda model: model}, steps=5, baseline=lambda m: m
    )
    assert random.getstate() == state and np.random.get_state()[1].tolist() == numpys
    assert parity.verdict("same") == "equal to bf16 to the bit over 5 steps"
    assert len(set(parity.baseline)) == 5


def test_parity_refuses_what_proves_nothing() -> None:
    model = tiny_models.mlp(2, 8)

    def constant(_: Any) -> Any:
        return lambda number: 1.0

    with pytest.raises(Refused, match="nothing trains"):
        optimize.loss_parity(model, constant, {"same": lambda m: m}, steps=3)
    with pytest.raises(Refused, match="compare nothing"):
        optimize.loss_parity(model, constant, {}, steps=3)
    with pytest.raises(Refused, match="compare nothing"):
        optimize.loss_parity(model, constant, {"bf16": lambda m: m}, steps=3)
    with pytest.raises(Refused, match="the loss of bf16 is inf at step 1"):
        optimize.loss_parity(
            model, lambda _: lambda number: [1.0, float("inf")][number], {"same": lambda m: m}, steps=2
        )


def test_optimize_imports_no_optional_library_by_itself() -> None:
    import subprocess

    code = (
        "import sys; from lostflops.optimize import to_fp8, to_fp16, loss_parity, checkpoint;"
        "print([name for name in ('torchao', 'transformers', 'peft') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
