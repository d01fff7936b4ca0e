"""Adapters as PEFT makes them: the modules that are named are there, and hold as many numbers as counted."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from lostflops.errors import BadOption
from lostflops.plan import model_config
from lostflops.plan.modules import adapted, modules
from lostflops.plan.train import apply, static_memory
from lostflops.plan.train.job import Prediction, check
from lostflops.plan.train.static_memory import PROJECTIONS, Lora, adapters
from planned import job

LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
ROUTED = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
# Of each family what its smallest configuration says beside the usual sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen2_moe": ROUTED | {"shared_expert_intermediate_size": 48},
    "qwen3": {},
    "qwen3_moe": ROUTED,
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT | {"q_lora_rank": 24},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "phi3": {"pad_token_id": 0},
    "granite": {},
    "smollm3": {"pad_token_id": 0},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "llama4_text": {
        "num_local_experts": 4,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "head_dim": 16,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96},
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "falcon": {"ffn_hidden_size": 96, "multi_query": True},
    "bert": {},
    "t5": {"d_model": 64, "d_ff": 96, "num_layers": 2, "num_heads": 4, "d_kv": 16},
    "vit": {},
}
USUAL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
LANGUAGE = {
    "bert": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}


def shape(family: str) -> Any:
    written = {"model_type": family, "head_dim": 16} | USUAL | FAMILIES[family]
    if family in ("gpt2", "bert", "vit", "opt", "t5", "gpt_neox"):
        written.pop("num_key_value_heads", None)
    return model_config.from_config(msgspec.json.encode(written), family)


def real(family: str) -> Any:
    """The model that transformers makes of it, without memory for its weights."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    given = ({} if family == "falcon" else {"head_dim": 16}) | USUAL | FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **given)
    kind = getattr(transformers, LANGUAGE.get(family, "AutoModelForCausalLM"))
    with torch.device("meta"):
        return kind.from_config(config)


def printed(family: str, lora: Lora) -> list[str]:
    """What the page tells PEFT to adapt."""
    asked = job(shape=shape(family), lora=lora)
    (line,) = (more for more in next(iter(apply.settings(asked))).besides if "LoraConfig" in more)
    found = re.search(r"target_modules=\[(.*)\]", line)
    assert found
    return [name.strip('" ') for name in found[1].split(",")]


TARGETS = [("q", "v"), PROJECTIONS, ("o",), ("k", "down")]


@pytest.mark.parametrize("targets", TARGETS, ids=["q,v", "all", "o", "k,down"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_makes_the_adapters_that_are_counted(family: str, targets: tuple[str, ...]) -> None:
    peft: Any = pytest.importorskip("peft")
    lora = Lora(rank=4, targets=targets)
    model = peft.get_peft_model(real(family), peft.LoraConfig(r=4, target_modules=printed(family, lora)))
    made = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    here = shape(family)
    counted = adapters(here.weights(), adapted(here, lora))
    assert made == sum(weight.elements for weight in counted)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_targets_pefts_own_mapping_is_followed(family: str) -> None:
    peft: Any = pytest.importorskip("peft")
    mapping = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    if family in mapping:
        assert sorted(printed(family, Lora())) == sorted(mapping[family])
    else:
        usual = {"phi3": ["qkv_proj"], "deepseek_v2": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj"]}
        usual["deepseek_v3"] = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
        assert printed(family, Lora()) == usual.get(family, ["q_proj", "v_proj"])


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"falcon"}))
def test_bitsandbytes_quantises_the_matrices_that_are_counted_in_four_bits(family: str) -> None:
    """Experts are parameters in transformers 5, which no quantised module takes the place of."""
    torch: Any = pytest.importorskip("torch")
    base: Any = pytest.importorskip("transformers.quantizers.base")
    names: Any = pytest.importorskip("transformers.quantizers.quantizers_utils")
    conv: Any = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model = real(family)
    left = base.get_keys_to_not_convert(model) + list(model._keep_in_fp32_modules or ())
    found = [
        module
        for name, module in model.named_modules()
        if names.should_convert_module(name, left)
        and (type(module) is torch.nn.Linear or isinstance(module, conv))
    ]
    quantised = sum(module.weight.numel() for module in found)
    here = shape(family)
    lora = adapted(here, Lora(base_bits=4))
    counted = [w for w in here.weights() if static_memory.in_four_bits(w, lora)]
    assert sum(weight.elements for weight in counted) == quantised


def test_falcon_has_no_matrix_that_bitsandbytes_quantises() -> None:
    """Its matrices are a class of its own, which the exact type that is looked for leaves out."""
    with pytest.raises(BadOption, match="falcon-7b stays in 16 bits"):
        check(job("falcon-7b", lora=Lora(base_bits=4)))
    check(job("falcon-7b", lora=Lora()))


def test_a_module_with_queries_keys_and_values_has_one_adapter() -> None:
    """GPT-2's c_attn: A reads 768 columns once, B writes 2,304; q and v alone would have two of each."""
    asked = job("gpt2", lora=Lora(rank=8), sequence=1024)
    part = next(p for p in Prediction(asked).peak.parts if p.name == "adapters")
    assert part.bytes == 4 * 12 * 8 * (768 + 3 * 768)
    assert "on c_attn" in part.why


def test_routed_experts_have_no_adapters() -> None:
    """PEFT adapts them by making all of a layer's experts anew in each pass, which nothing here counts."""
    assert [name for name, _ in modules(shape("qwen3_moe"))] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    asked = job("qwen3-30b-a3b", lora=Lora(targets=("gate", "up")))
    with pytest.raises(BadOption, match="none of the projections gate, up"):
        check(asked)
