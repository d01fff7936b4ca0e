"""Bytes that a rank holds, added up from published formulas: ends of pipelines, adapters' states, buckets,
heads that are gathered, key-value heads that several tensor ranks share, caches without an encoder's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lostflops.plan import model_config
from lostflops.plan.models import named
from lostflops.plan.shape import elements
from lostflops.plan.train import static_memory
from lostflops.plan.train.layout import Layout, stage_weights
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora

ADAM = OPTIMIZERS["adam"]


@pytest.mark.parametrize(
    ("model", "table"),
    [("gpt2", 50_257 * 768), ("bert-base", 30_522 * 768), ("t5-base", 32_128 * 768)],
)
def test_the_last_stage_has_of_what_is_before_the_layers_only_the_tied_table(model: str, table: int) -> None:
    """Positions, segments and relative positions are read on the first stage alone."""
    shape = named(model)
    two = [elements(list(stage_weights(shape, Layout(2, pipeline=2), stage))) for stage in range(2)]
    assert sum(two) == shape.parameters() + table
    assert elements(list(stage_weights(shape, Layout(), 0))) == shape.parameters()


def test_the_router_s_bias_of_deepseek_is_no_parameter() -> None:
    """transformers registers `e_score_correction_bias` as a buffer: neither gradient nor states."""
    tiny = {
        "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 320, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "topk_group": 1,
    }  # fmt: skip
    attention = 64 * 24 + 24 + 24 * 8 * 12 + 64 * (16 + 4) + 16 + 16 * 8 * 16 + 8 * 8 * 64 + 2 * 64
    layers = 4 * attention + 3 * 64 * 160 + 3 * (8 * 64 + 9 * 3 * 64 * 32)
    shape = model_config.from_config(json.dumps(tiny).encode(), "tiny")
    assert shape.parameters() == layers + 2 * 320 * 64 + 64 == 284_896  # as transformers' class has them


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ("adam", 8 * 3_407_872),
        ("adam-fp32", 8 * 3_407_872),
        # Two moments of a byte, and two fp32 scales for each 256 of 3,407,872 numbers.
        ("adam-8bit", 2 * 3_407_872 + 2 * 4 * 13_312),
        # A: 8 x 4,096, B: 4,096 or 1,024 x 8; rows and columns in fp32, on 32 layers.
        ("factored", 32 * 4 * ((8 + 4096) + (4096 + 8) + (8 + 4096) + (1024 + 8))),
    ],
)
def test_fp32_adapters_have_the_states_of_their_optimizer(optimizer: str, states: int) -> None:
    found = static_memory.parts(named("llama-3-8b"), Layout(), 0, OPTIMIZERS[optimizer], Lora(rank=8))
    sizes = {part.name: part.bytes for part in found}
    assert (sizes["adapters"], sizes["gradients"]) == (4 * 3_407_872, 4 * 3_407_872)
    assert sizes["optimizer states"] == states
    said = {"adam-8bit": "moments of one byte with scales", "factored": "fp32 rows and columns"}
    assert found[3].why.startswith(said.get(optimizer, "fp32 moments of fp32 adapters"))


@pytest.mark.parametrize(
    ("optimizer", "lora", "size"),
    [("adam", None, 2), ("adam-fp32-gradients", None, 4), ("adam-fp32", None, 4), ("adam", Lora(), 4)],
)
def test_ddp_has_buckets_as_large_as_all_gradients(optimizer: str, lora: Lora | None, size: int) -> None:
    """Without `gradient_as_bucket_view`, which nothing sets by default, buckets are copies (torch's DDP)."""
    shape = named("llama-3.2-1b")
    trained = elements(static_memory.trained(shape, Layout(), 0, lora))
    found = static_memory.communication(shape, Layout(2), 0, OPTIMIZERS[optimizer], 1, lora)
    assert (found.bytes, found.why) == (size * trained, "DDP's buckets, a copy of all gradients")
    # Megatron and torchtitan reduce gradients where they lie.
    assert static_memory.communication(shape, Layout(4, 2), 0, OPTIMIZERS[optimizer], 1, lora).bytes == 0


def test_zero_3_gathers_a_head_that_is_larger_than_layers() -> None:
    """Qwen2.5-0.5B: 151,936 x 896 in the table, 14,912,384 in a layer: the head, its gradients, a layer."""
    shape, here = named("qwen2.5-0.5b"), Layout(2, sharding="zero-3")
    found = static_memory.communication(shape, here, 0, ADAM, 1)
    assert found.bytes == 2 * 2 * 151_936 * 896 + 2 * 14_912_384
    assert found.why == "the gathered head, its gradients and one gathered layer"
    frozen = static_memory.communication(shape, here, 0, ADAM, 1, Lora())
    assert frozen.bytes == 2 * 151_936 * 896 + 2 * 14_912_384
    # Llama-3-70B's head has 1,050,673,152 weights and a layer 855,654,400: three times those is more.
    large = static_memory.communication(replace(named("llama-3-70b")), here, 0, ADAM, 1)
    assert large.bytes == max(4 * 1_050_673_152 + 2 * 855_654_400, 6 * 855_654_400)
