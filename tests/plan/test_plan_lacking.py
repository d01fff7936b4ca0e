"""A configuration that lacks a field is the model that transformers makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lostflops.errors import BadModel
from lostflops.plan import model_config
from test_plan_adapters import FAMILIES, LANGUAGE, USUAL

# Sizes that a plan cannot do without; other names of what is in `USUAL`; and what no size hangs on.
NEEDED = {
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "pad_token_id", "n_embd"),
    *("n_layer", "n_head", "d_model", "d_ff", "num_layers", "num_heads"),
}
REFUSED = {
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
OTHERS = {
    "gpt2": {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "num_key_value_heads",
    },
    "opt": {"intermediate_size", "num_key_value_heads"},
    "falcon": {"intermediate_size", "num_key_value_heads"},
    "bert": {"num_key_value_heads"},
    "vit": {"num_key_value_heads"},
    "gpt_neox": {"num_key_value_heads"},
}
OTHERS["t5"] = OTHERS["gpt2"]


def written(family: str) -> dict[str, Any]:
    said = {name: value for name, value in USUAL.items() if name not in OTHERS.get(family, ())}
    return said | FAMILIES[family]


CASES = [(family, name) for family in FAMILIES for name in sorted(written(family).keys() - NEEDED)]


@pytest.mark.parametrize(("family", "lacking"), CASES)
def test_it_has_as_many_parameters(family: str, lacking: str) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    said = {name: value for name, value in written(family).items() if name != lacking}
    try:
        here = model_config.from_config(msgspec.json.encode({"model_type": family} | said), family)
    except BadModel:
        assert lacking in REFUSED or lacking in ("intermediate_size", "num_key_value_heads")
        return
    if lacking == "num_key_value_heads":  # where heads do not come in the usual groups it has none
        said["num_key_value_heads"] = here.kv_heads
    config = transformers.AutoConfig.for_model(family, **said)
    with torch.device("meta"):
        model = getattr(transformers, LANGUAGE.get(family, "AutoModelForCausalLM")).from_config(config)
    assert here.parameters() == sum(weight.numel() for weight in model.parameters())


def test_t5_has_no_groups_of_heads() -> None:
    """Its configuration knows no number of key-value heads, whatever one from hand says."""
    said = {"model_type": "t5"} | written("t5") | {"vocab_size": 128}
    alone, strange = (
        model_config.from_config(msgspec.json.encode(said | more), "t5")
        for more in ({}, {"num_key_value_heads": 2})
    )
    assert alone == strange and alone.kv_heads == 4


def test_of_a_model_of_text_and_images_the_text_is_planned() -> None:
    text = {"model_type": "mistral", "head_dim": 16, **written("mistral")}
    both = {"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 9}}
    alone, inside = (model_config.from_config(msgspec.json.encode(each), "small") for each in (text, both))
    assert alone == inside
    other = both | {"text_config": text | {"model_type": "ministral"}}
    with pytest.raises(BadModel, match="model_type is 'mistral3'"):
        model_config.from_config(msgspec.json.encode(other), "small")


def test_a_configuration_that_python_wrote_is_refused_by_its_family() -> None:
    """Infinity is no JSON, and Mamba's configurations have it."""
    mamba = b'{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}'
    with pytest.raises(BadModel, match="model_type is 'mamba2'"):
        model_config.from_config(mamba, "codestral")
    for broken in (b'{"a": Infinity', b"[Infinity]", b'{"a": Infinity, "b": \xff}'):
        with pytest.raises(BadModel):
            model_config.from_config(broken, "broken")


@pytest.mark.parametrize(
    ("family", "ignored"),
    [("qwen3_moe", {"shared_expert_intermediate_size": 48}), ("falcon", {"num_kv_heads": 2})],
)
def test_what_a_familys_model_does_not_read_adds_no_weights(family: str, ignored: dict[str, int]) -> None:
    """transformers' Qwen3 has no shared expert, and its first Falcons have as many keys as queries."""
    said: dict[str, Any] = {
        "model_type": family, "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "multi_query": False, "new_decoder_architecture": False,
    }  # fmt: skip
    plain, more = (
        model_config.from_config(msgspec.json.encode(each), "x") for each in (said, said | ignored)
    )
    assert plain.parameters() == more.parameters() and plain.kv_heads == more.kv_heads
