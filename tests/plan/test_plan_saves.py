"""What transformers' own layers save for their backward, beside what the planner counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lostflops.plan import model_config
from lostflops.plan.modules import adapted
from lostflops.plan.train import activation_memory
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import Lora
from test_plan_adapters import FAMILIES, LANGUAGE, USUAL

TOKENS = 64
# Of latent attention heads' sizes are equal, as flash attention on a CPU wants them.
LATENT = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 0}


def written(family: str, layers: int) -> dict[str, Any]:
    said = {"model_type": family, "head_dim": 16} | USUAL | FAMILIES[family] | {"num_hidden_layers": layers}
    if family.startswith("deepseek"):
        said |= LATENT
    if family.startswith("deepseek") or family in ("falcon", "opt", "gpt_neox"):
        said.pop("head_dim")
    if family == "llama4_text":
        said |= {"interleave_moe_layer_step": 1, "use_qk_norm": False}
    return said


def saved(
    family: str, layers: int, lora: Lora | None, attention: str = "sdpa", sequences: int = 1, **more: Any
) -> int:
    """Bytes that all layers save, each storage once; nothing of weights and buffers."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    said = written(family, layers) | more
    config = transformers.AutoConfig.for_model(said.pop("model_type"), **said)
    kind = getattr(transformers, LANGUAGE.get(family, "AutoModelForCausalLM"))
    model = kind.from_config(config, attn_implementation=attention)
    model = model.to(torch.bfloat16).train()
    if lora:
        peft: Any = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=lora.rank, target_modules=list(lora.modules)))
        model.enable_input_require_grads()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    ids = torch.randint(0, USUAL["vocab_size"], (sequences, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = model(input_ids=ids, labels=ids, use_cache=False)
    assert out.loss.requires_grad
    return sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in own)


# As a share: what the layer saves beside of indices of experts, and of its own weights in fp32.
OFF = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "granite", "smollm3", "phi3", "mistral"), 0.0),
    **dict.fromkeys(("gemma", "gemma3_text", "gpt_neox"), 0.007),
    **dict.fromkeys(("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"), 0.045),
    **dict.fromkeys(("llama4_text", "falcon"), 0.007),
}


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["full", "adapters"])
@pytest.mark.parametrize("family", OFF)
def test_a_layer_of_transformers_saves_what_is_counted(family: str, lora: Lora | None) -> None:
    said = written(family, 2)
    if family == "gpt_neox":
        said.pop("num_key_value_heads")
    shape = model_config.from_config(msgspec.json.encode(said), family)
    beside = adapted(shape, lora) if lora else None
    really = saved(family, 3, beside) - saved(family, 2, beside)
    kernels = activation_memory.kernels_of(shape, Layout(), TOKENS, fused=False, scores=False)
    counted = activation_memory.layer_bytes(shape, 1, TOKENS, Layout(), beside, kernels)
    assert counted == pytest.approx(really, rel=OFF[family], abs=0)


@pytest.mark.parametrize("norms", [None, 1], ids=["two norms", "one norm"])
def test_the_newer_falcon_saves_keys_and_values_of_all_heads(norms: int | None) -> None:
    more: dict[str, Any] = {
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": norms,
    }
    shape = model_config.from_config(msgspec.json.encode(written("falcon", 2) | more), "falcon")
    assert (shape.kv_heads, shape.norms) == (2, norms or 2)
    really = saved("falcon", 3, None, **more) - saved("falcon", 2, None, **more)
    assert activation_memory.layer_bytes(shape, 1, TOKENS, Layout()) == pytest.approx(really, rel=0.007)


# As a share: statistics of norms in 16 bits, where a GPU has 32, and indices of experts.
EAGER = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "granite", "smollm3", "phi3", "mistral"), 0.0),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gpt_neox", "llama4_text"), 0.007),
    **dict.fromkeys(("gpt_oss", "mixtral", "qwen3_moe"), 0.045),
}


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["full", "adapters"])
@pytest.mark.parametrize("family", EAGER)
def test_attention_without_a_kernel_saves_its_scores(family: str, lora: Lora | None) -> None:
    said = written(family, 2)
    if family == "gpt_neox":
        said.pop("num_key_value_heads")
    shape = model_config.from_config(msgspec.json.encode(said), family)
    beside = adapted(shape, lora) if lora else None
    really = saved(family, 3, beside, "eager") - saved(family, 2, beside, "eager")
    kernels = activation_memory.kernels_of(shape, Layout(), TOKENS, fused=False, scores=True)
    counted = activation_memory.layer_bytes(shape, 1, TOKENS, Layout(), beside, kernels)
    assert counted == pytest.approx(really, rel=EAGER[family], abs=0)


@pytest.mark.parametrize("sequences", [1, 2])
def test_falcon_has_keys_of_all_heads_where_it_has_several_sequences(sequences: int) -> None:
    """PyTorch's attention without a kernel takes a view of the one head only where that is one matrix."""
    shape = model_config.from_config(msgspec.json.encode(written("falcon", 2)), "falcon")
    really = saved("falcon", 3, None, sequences=sequences) - saved("falcon", 2, None, sequences=sequences)
    kernels = activation_memory.kernels_of(
        shape, Layout(), TOKENS, fused=False, scores=False, sequences=sequences
    )
    counted = activation_memory.layer_bytes(shape, 1, sequences * TOKENS, Layout(), None, kernels)
    assert counted == pytest.approx(really, rel=0.007, abs=0)


@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
def test_a_layer_of_t5_saves_what_is_counted(activation: str) -> None:
    """A CPU keeps masks of dropout in 16 bits, a GPU in 8."""
    more: dict[str, Any] = {"feed_forward_proj": activation, "decoder_start_token_id": 0}
    few, many = (saved("t5", n, None, "eager", num_layers=n, num_decoder_layers=n, **more) for n in (2, 3))
    shape = model_config.from_config(msgspec.json.encode(written("t5", 2) | more), "t5")
    kernels = activation_memory.kernels_of(shape, Layout(), TOKENS, fused=False, scores=True)
    layers = [activation_memory.layer(shape, number, None, kernels) for number in (0, 2)]
    pairs = 3 * shape.heads * TOKENS  # one attention of the encoder, two of the decoder
    masks = pairs + sum(one.per_token for layer in layers for one in layer if "mask" in one.name)
    assert TOKENS * (sum(one.per_token for layer in layers for one in layer) + masks) == many - few


def test_a_kernel_is_given_t5s_position_biases() -> None:
    """16 bits for each two tokens and head in each layer, whatever the microbatch; a mask in a decoder's."""
    shape = model_config.from_config(msgspec.json.encode(written("t5", 2)), "t5")
    for sequences, biases, mask in ((1, 2 * 4 * TOKENS, TOKENS), (3, 171, 22)):  # a third, rounded up
        kernels = activation_memory.kernels_of(
            shape, Layout(), TOKENS, fused=False, scores=False, sequences=sequences
        )
        encoder, decoder = (
            {one.name: one.per_token for one in activation_memory.layer(shape, n, None, kernels)}
            for n in (0, 2)
        )
        assert encoder["position biases"] == decoder["position biases"] == biases
        assert decoder["mask of position biases"] == mask
        assert "mask of position biases" not in encoder
    shared = activation_memory.positions(shape, TOKENS, 2)
    assert (shared.name, shared.bytes) == ("position biases", (2 * 2 * 4 // 2 + 16) * TOKENS**2)
