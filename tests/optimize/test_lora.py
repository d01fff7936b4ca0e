"""Adapters: what they save is what is predicted, merging keeps what they learnt, and undoing leaves no
trace."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize import Refused
from lostflops.optimize.activations.checkpoint_measured import Storages
from lostflops.optimize.training.adapters import saved_bytes_per_token

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")

TOKENS, LAYERS = 32, 2
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama(**changes: Any) -> Any:
    return tiny_models.llama(layers=LAYERS, hidden=64, **changes)


def saved_bytes(model: Any) -> int:
    """Of one forward whose input needs a gradient, as that of every layer but the first does."""
    torch.manual_seed(3)
    parameters = list(model.parameters())
    inputs = torch.randn(2, TOKENS // 2, 64, dtype=parameters[0].dtype, requires_grad=True)
    storages = Storages(parameters)
    with torch.autograd.graph.saved_tensors_hooks(storages.pack, lambda tensor: tensor):
        model(inputs_embeds=inputs)
    return storages.nbytes


@pytest.mark.parametrize("dtype", [None, torch.float32], ids=["as the base", "fp32"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "targets", [("q_proj", "v_proj"), ("o_proj",), ("up_proj", "down_proj"), ALL], ids=str
)
def test_adapters_save_as_many_bytes_as_predicted(
    targets: tuple[str, ...], dropout: float, dtype: torch.dtype | None
) -> None:
    model = llama().bfloat16()
    frozen = saved_bytes(model.requires_grad_(False))
    with optimize.lora(model, rank=6, targets=targets, dropout=dropout, dtype=dtype) as adapters:
        assert saved_bytes(model) - frozen == TOKENS * adapters.saved_bytes_per_token()


def test_the_closed_forms_of_a_llama_layer_on_a_gpu() -> None:
    """In hidden states of 16 bits: 1 for q, k and v together, 0 for o, 1 for gate and up, phi for down."""
    hidden, rank, phi = 1024, 16, 3
    widths = {name: hidden * (phi if name == "down_proj" else 1) for name in ALL}

    def states(names: tuple[str, ...], dropout: float, size: int) -> float:
        chosen = {f"layers.0.{name}": widths[name] for name in names}
        rest = saved_bytes_per_token(chosen, rank, dropout, 2, size, True) - rank * size * len(names)
        return rest / (2 * hidden)

    assert states(ALL, 0.0, 2) == 1 + 0 + 1 + phi
    assert states(("q_proj", "v_proj"), 0.0, 2) == 1
    assert states(ALL, 0.1, 2) == 1.5 * (6 + phi)
    assert states(ALL, 0.0, 4) == 2 * (6 + phi)
    assert states(ALL, 0.1, 4) == 2.5 * (6 + phi)


def test_costly_adapters_save_more_than_full_fine_tuning_and_cheap_ones_less() -> None:
    model = llama().bfloat16()
    full = saved_bytes(model)
    with optimize.lora(model, rank=2, targets="all-linear", dropout=0.1, dtype=torch.float32):
        assert saved_bytes(model) > 1.3 * full
    with optimize.lora(model, rank=2, targets="all-linear"):
        assert saved_bytes(model) < full


def test_the_report_says_what_the_defaults_of_peft_would_cost() -> None:
    plain = str(optimize.lora(llama().bfloat16(), rank=4, targets="all-linear").report())
    assert "rank 4 on 14 modules" in plain and "in bfloat16" in plain and "WARNING" not in plain
    costly = optimize.lora(llama().bfloat16(), 4, "all-linear", dropout=0.1, dtype=torch.float32).report()
    assert "dropout=0.1 and float32 adapters on a bfloat16 base" in str(costly)


def test_adapters_have_the_dtype_of_the_base_where_peft_alone_makes_them_fp32() -> None:
    model = llama().bfloat16()
    adapters = optimize.lora(model, targets=["q_proj"])
    trained = {parameter.dtype for parameter in adapters.model.parameters() if parameter.requires_grad}
    assert trained == {torch.bfloat16}
    adapters.undo()
    import peft

    naive = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert {p.dtype for p in naive.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("kind", ["llama", "plain"])
def test_undo_leaves_no_trace(kind: str) -> None:
    model: Any = llama() if kind == "llama" else tiny_models.transformer()
    batch = tiny_models.llama_batch() if kind == "llama" else tiny_models.transformer_batch()
    if kind == "llama":
        model.gradient_checkpointing_enable()
    model.head = nn.Identity() if kind == "llama" else model.head.requires_grad_(False)
    before = {
        name: (id(module), set(module.__dict__), set(module._forward_hooks))
        for name, module in model.named_modules()
    }
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    loss = tiny_models.loss_of(model, batch)
    adapters = optimize.lora(model, targets="all-linear")
    assert [p.requires_grad for p in model.parameters()] != trainable
    hook = model.register_forward_hook(lambda *_: None)  # somebody else's, which stays
    adapters.undo()
    hook.remove()
    after = {
        name: (id(module), set(module.__dict__), set(module._forward_hooks))
        for name, module in model.named_modules()
    }
    assert after == before
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable
    assert torch.equal(tiny_models.loss_of(model, batch), loss)
    adapters.undo()


def test_undo_leaves_alone_what_others_did_meanwhile() -> None:
    model = llama()
    adapters = optimize.lora(model)
    with optimize.checkpoint(model) as checkpointed:
        seen: list[int] = []
        model.register_forward_hook(lambda *_: seen.append(1))
        adapters.undo()
        tiny_models.loss_of(model, tiny_models.llama_batch()).backward()
        assert seen == [1] and checkpointed.recomputed == LAYERS


def test_targets() -> None:
    model = llama()
    with optimize.lora(model) as adapters:
        assert {name.rpartition(".")[2] for name in adapters.targets} == {
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
        }
        assert adapters.model.peft_config["default"].target_modules == {
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
        }
    with optimize.lora(model, targets=["layers.0.mlp.*"]) as adapters:
        assert {name.split(".")[2] for name in adapters.targets} == {"0"} and len(adapters.targets) == 3
    with optimize.lora(model, targets="all-linear") as adapters:
        assert len(adapters.targets) == LAYERS * 7


def test_gpt2s_convolutions_are_linear_layers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapters = optimize.lora(model, rank=2)
    assert {name.rpartition(".")[2] for name in adapters.targets} == {"c_attn", "c_proj"}
    assert len(adapters.targets) == 4, "c_proj of the mlp is no attention"
    tiny_models.loss_of(model, tiny_models.llama_batch()).backward()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"targets": ["query"]}, "no linear layer 'query'"),
        ({"rank": 0}, "make no adapters"),
        ({"dropout": 1.0}, "make no adapters"),
    ],
)
def test_what_makes_no_adapters_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        optimize.lora(llama(), **options)


def test_projections_that_nobody_calls_are_refused() -> None:
    model = tiny_models.transformer()
    with pytest.raises(Refused, match="used by its weight, not by its forward"):
        optimize.lora(model, targets=["out_proj"])
    with pytest.raises(Refused, match="no linear layers for targets='attention'"):
        optimize.lora(model)
    with optimize.lora(model, targets="all-linear") as adapters:
        assert not any("out_proj" in name for name in adapters.targets)
        assert not any(name == "head" for name in adapters.targets)
    with optimize.lora(llama()) as adapters, pytest.raises(Refused, match="has adapters already"):
        optimize.lora(adapters.base)


def random_b(adapters: Any) -> None:
    torch.manual_seed(4)
    with torch.no_grad():
        for name, parameter in adapters.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_merging_keeps_the_outputs_and_gives_back_the_model(dtype: torch.dtype) -> None:
    model = llama().to(dtype)
    kinds = [type(module) for module in model.modules()]
    ids = tiny_models.llama_batch()["input_ids"]
    plain = model(ids).logits
    adapters = optimize.lora(model, targets="all-linear", dropout=0.3)
    random_b(adapters)
    model.eval()
    wanted = model(ids).logits
    model.train()
    merged = adapters.merge(lambda: model(ids).logits)
    assert merged is model and [type(module) for module in model.modules()] == kinds
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    found = model(ids).logits
    assert (found - wanted).norm() < 8 * torch.finfo(dtype).eps * wanted.norm() < (plain - wanted).norm()
    with pytest.raises(Refused, match="adapters are gone"):
        adapters.merge(lambda: model(ids).logits)


@pytest.mark.parametrize("how", ["wrong scale", "an exception", "rounded away"])
def test_a_merge_that_fails_puts_the_weights_back_to_the_bit(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama().bfloat16()
    ids = tiny_models.llama_batch()["input_ids"]
    weights = [parameter.clone() for parameter in model.parameters()]
    adapters = optimize.lora(model)
    random_b(adapters)
    if how == "wrong scale":
        real = adapters.model.merge_adapter

        def merge_adapter(**options: Any) -> None:
            for module in model.modules():
                if hasattr(module, "lora_B"):
                    module.lora_B["default"].weight.data.mul_(8)
            real(**options)
            for module in model.modules():
                if hasattr(module, "lora_B"):
                    module.lora_B["default"].weight.data.div_(8)

        monkeypatch.setattr(adapters.model, "merge_adapter", merge_adapter, raising=False)
    elif how == "rounded away":
        # Below the spacing of most bf16 weights: the sum is the weight as it was.
        with torch.no_grad():
            for name, parameter in adapters.model.named_parameters():
                if "lora_B" in name:
                    parameter.mul_(2**-8)
    calls = 0

    def check() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if how == "an exception" and calls == 4:
            raise ZeroDivisionError
        return model(ids).logits

    before = check()
    kind = ZeroDivisionError if how == "an exception" else Refused
    with pytest.raises(kind):
        adapters.merge(check)
    assert model.training
    assert torch.equal(model(ids).logits, before)
    adapters.undo()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))


@pytest.mark.parametrize("tied", ["head", "layers"])
def test_a_merge_into_a_weight_that_another_module_has_too_says_so(tied: str) -> None:
    """It said to merge in fp32, of a model in fp32."""
    model = llama(tie_word_embeddings=tied == "head")
    down = [layer.mlp.down_proj for layer in model.model.layers]
    if tied == "layers":
        down[1].weight = down[0].weight
    ids = tiny_models.llama_batch()["input_ids"]
    weights = [parameter.clone() for parameter in model.parameters()]
    adapters = optimize.lora(model, targets=["lm_head"] if tied == "head" else ["q_proj", "down_proj"])
    random_b(adapters)
    both = (
        "'lm_head' has its weight in common with 'model.embed_tokens'"
        if tied == "head"
        else "'model.layers.0.mlp.down_proj' has its weight in common with 'model.layers.1.mlp.down_proj'"
    )
    with pytest.raises(Refused, match=both):
        adapters.merge(lambda: model(ids).logits)
    adapters.undo()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))


def test_a_merge_loses_no_adapter_of_the_users_and_puts_back_its_weights_too() -> None:
    """One that was not active was gone, and a merge that failed left the other's layers rounded."""
    import peft

    model = llama().bfloat16()
    ids = tiny_models.llama_batch()["input_ids"]
    adapters = optimize.lora(model, targets=["q_proj"])
    adapters.model.add_adapter("more", peft.LoraConfig(r=2, target_modules=["up_proj"]))
    random_b(adapters)
    with pytest.raises(Refused, match="'more' is among the adapters and not active"):
        adapters.merge(lambda: model(ids).logits)
    adapters.model.base_model.set_adapter(["default", "more"])
    weights = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(Refused, match="of itself away"):
        adapters.merge(lambda: model(ids).logits, tolerance=0.0)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))
    adapters.merge(lambda: model(ids).logits, tolerance=0.1)


def test_undo_makes_trainable_what_a_state_dict_put_in_the_place_of_weights() -> None:
    model = llama()
    adapters = optimize.lora(model)
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()}, assign=True)
    adapters.undo()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_gradients_that_would_go_on_to_change_frozen_weights_are_refused() -> None:
    model = llama()
    tiny_models.loss_of(model, tiny_models.llama_batch()).backward()
    with pytest.raises(Refused, match="has a gradient"):
        optimize.lora(model)


def test_what_peft_has_merged_is_taken_out_again_and_counts_once() -> None:
    model = llama()
    ids = tiny_models.llama_batch()["input_ids"]
    weights = [parameter.clone() for parameter in model.parameters()]
    adapters = optimize.lora(model)
    random_b(adapters)
    adapters.model.merge_adapter()
    adapters.undo()
    for one, other in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    adapters = optimize.lora(model)
    random_b(adapters)
    wanted = model(ids).logits
    adapters.model.merge_adapter()
    torch.testing.assert_close(adapters.merge(lambda: model(ids).logits)(ids).logits, wanted)


def test_modules_that_peft_trained_as_a_whole_are_as_they_were_after_undo() -> None:
    """An adapter that the user adds may train a copy of a module, which PEFT leaves in its place."""
    import peft

    model = llama()
    norm, before = model.model.norm, {name: each.clone() for name, each in model.state_dict().items()}
    adapters = optimize.lora(model)
    config = peft.LoraConfig(r=2, target_modules=["up_proj"], modules_to_save=["norm"])
    adapters.model.add_adapter("more", config)
    adapters.model.set_adapter("more")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1)
    adapters.undo()
    assert model.model.norm is norm and norm.weight.requires_grad
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], each) for name, each in before.items())


def test_the_report_is_of_the_dtypes_now_and_of_the_adapters_when_they_are_gone() -> None:
    model = llama()
    adapters = optimize.lora(model)
    assert adapters.report().to_json()["dtype"] == "float32"
    model.to(torch.bfloat16)
    said = adapters.report()
    assert "in bfloat16" in str(said) and said.to_json()["base_dtype"] == "bfloat16"
    adapters.undo()
    assert adapters.report() == said
    merging = optimize.lora(model.float())
    random_b(merging)
    said = merging.report()
    merging.merge(lambda: model(tiny_models.llama_batch()["input_ids"]).logits)
    assert merging.report() == said


@pytest.mark.parametrize("reentrant", [True, False, "ours"])
def test_the_first_layers_adapters_learn_with_checkpointing_and_a_frozen_embedding(reentrant: Any) -> None:
    """Reentrant checkpointing gives no gradients at all when its input needs none."""
    model = llama()
    batch = tiny_models.llama_batch()

    def gradients(adapters: Any) -> list[torch.Tensor]:
        random_b(adapters)
        tiny_models.loss_of(model, batch).backward()
        found = list(tiny_models.gradients(adapters.model).values())
        model.zero_grad(set_to_none=True)
        return found

    torch.manual_seed(8)
    with optimize.lora(model, targets=["q_proj"]) as adapters:
        wanted = gradients(adapters)
    if reentrant != "ours":
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    torch.manual_seed(8)
    with optimize.lora(model, targets=["q_proj"]) as adapters:
        if reentrant == "ours":
            optimize.checkpoint(model)
        found = gradients(adapters)
    assert len(found) == 2 * LAYERS
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
