"""Bytes that a rank holds, added up from published formulas: ends of pipelines, adapters' states, buckets,
heads that are gathered, key-value heads that several tensor ranks share, caches without an encoder's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lostflops.errors import BadOption
from lostflops.plan import hardware, model_config
from lostflops.plan.models import named
from lostflops.plan.serve import inference, kv_cache
from lostflops.plan.shape import elements
from lostflops.plan.train import activation_memory, calibration, exchanged, static_memory
from lostflops.plan.train.job import Prediction, Training
from lostflops.plan.train.layout import Layout, Sharding, stage_weights
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora
from planned import job

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


@pytest.mark.parametrize(
    ("model", "lora", "width"),
    [
        # fp32 copy of the final norm's input, what is normalised, and the head's input.
        ("llama-3-8b", None, 4 + 2 + 2),
        # A frozen norm and head need neither of the last two: measured on transformers' Llama with PEFT.
        ("llama-3-8b", Lora(), 4),
        # LayerNorm reads its 16-bit input again.
        ("gpt2", None, 2 + 2),
        ("gpt2", Lora(), 2),
    ],
)
def test_before_the_head_is_saved_what_its_gradients_need(model: str, lora: Lora | None, width: int) -> None:
    shape = named(model)
    assert activation_memory.head_saved(shape, 10, Layout(), lora) == 10 * width * shape.hidden


def test_a_gelu_of_single_operations_saves_five_tensors() -> None:
    """transformers' GPT-2: x, its cube's input, tanh, half of x, and the product (measured: 5 x 4h)."""
    shape, fused = named("gpt2"), replace(named("gpt2"), composed=False)
    more = activation_memory.layer_bytes(shape, 0, 10, Layout()) - activation_memory.layer_bytes(
        fused, 0, 10, Layout()
    )
    assert more == 10 * 3 * 2 * 4 * 768
    compiled = activation_memory.Kernels(fused=True)
    assert activation_memory.layer_bytes(shape, 0, 10, Layout(), None, compiled) == (
        activation_memory.layer_bytes(fused, 0, 10, Layout(), None, compiled)
    )
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 8, "vocab_size": 320}
    for activation, composed in (({}, True), ({"activation_function": "gelu"}, False)):
        read = model_config.from_config(json.dumps(config | activation).encode(), "x")
        assert read.composed is composed


def test_tensor_ranks_that_share_a_key_value_head_each_keep_it() -> None:
    """Llama-3-70B has 8 of 64: on 16 ranks a rank keeps one of keys and one of values, 2 x 128 x 2 bytes."""
    shape = named("llama-3-70b")
    each = {s.name: s for s in activation_memory.layer(shape, 0)}
    kept = activation_memory.layer_bytes(shape, 0, 10, Layout(16, 16))
    split = sum(s.per_token for s in each.values() if s.split) - 2 * 2 * 8 * 128
    whole = sum(s.per_token for s in each.values() if not s.split)
    assert kept == 10 * (whole + split // 16 + 2 * 2 * 128)


@pytest.mark.parametrize(
    ("model", "size"),
    # Cross attention caches the encoder's tokens and the decoder's own theirs, on 12 layers each.
    [("t5-base", 2 * 12 * 768 * 2), ("bert-base", 0), ("vit-base", 0), ("gpt2", 2 * 12 * 768 * 2)],
)
def test_an_encoder_caches_nothing(model: str, size: int) -> None:
    assert kv_cache.per_token(named(model)) == size


def test_an_encoder_alone_is_not_served() -> None:
    asked = inference.Serving(
        named("bert-base"), hardware.gpu("h100"), hardware.link("pcie5"), Layout(), 5, 7
    )
    with pytest.raises(BadOption, match="bert-base is an encoder, which generates no tokens"):
        inference.Served(asked)


def test_the_bytes_of_a_logit_are_the_ones_that_are_counted() -> None:
    """PyTorch's loss_parallel needs 18 bytes a word where tensor ranks split the logits, others 14."""
    each: list[tuple[Sharding, int]] = [("fsdp2", 18), ("zero-1", 14)]
    for sharding, size in each:
        asked = job("llama-3-8b", layout=Layout(4, 2, sharding=sharding), sequence=64)
        loss = next(moment for moment in Prediction(asked).moments if moment.name == "loss")
        part = next(part for part in loss.parts if part.name == "logits and loss")
        assert part.bytes == size * 64 * 128_256 // 2
        assert part.why == f"64 tokens, {size} bytes per word of 128,256"


@pytest.mark.parametrize("checkpointing", activation_memory.CHECKPOINTINGS)
def test_every_way_of_checkpointing_takes_the_rate_of_a_run(
    checkpointing: activation_memory.Checkpointing,
) -> None:
    asked = job("llama-3-8b", checkpointing=checkpointing)
    done = calibration.operations(asked)
    none = calibration.operations(replace(asked, checkpointing="none"))
    assert (done > none) is (checkpointing != "none")
    full = calibration.operations(replace(asked, checkpointing="full"))
    assert done <= full


def test_fsdp2_has_gradients_whole_before_it_reduces_them() -> None:
    """Of Llama 3 8B a layer has 218,112,000 weights, the head 525,336,576; gradients are reduced in fp32."""
    layer, head = 218_112_000, 128_256 * 4096
    asked = job(layout=Layout(gpus=8, sharding="fsdp2"))

    def reduced(moment: str) -> int:
        (found,) = (m for m in Prediction(asked).moments if m.name == moment)
        return sum(part.bytes for part in found.parts if part.name == "gradients to be reduced")

    assert reduced("backward begins") == 4 * layer + 2 * head
    # Behind the last layer embedding, head and norm are reduced, and no layer is there any more.
    assert reduced("backward ends") == 6 * (2 * head + 4096) - 6 * layer
    assert reduced("loss") == reduced("update") == 0


@pytest.mark.parametrize("sharding", ["zero-3", "fsdp2"])
def test_fp32_weights_are_gathered_in_sixteen_bits_by_memory_and_time_alike(sharding: Sharding) -> None:
    """No engine that is named gathers them in fp32: FSDP2 casts its shards before it gathers."""
    layout = Layout(gpus=8, sharding=sharding)
    wide, narrow = (job(layout=layout, optimizer=OPTIMIZERS[name]) for name in ("adam-fp32", "adam-16bit"))
    assert exchanged.work(wide, 0).gathered_bytes == exchanged.work(narrow, 0).gathered_bytes


def test_autocast_copies_fp32_weights_in_sixteen_bits() -> None:
    """All weights of Llama 3 8B but the table and 65 norms, from the forward to their backward."""
    layer = 218_112_000 - 2 * 4096
    for checkpointing, begins in (("none", 2 * (32 * layer + 128_256 * 4096)), ("full", 2 * layer)):
        asked = job(optimizer=OPTIMIZERS["adam-fp32"], checkpointing=checkpointing)

        def copies(moment: str, asked: Training = asked) -> int:
            (found,) = (m for m in Prediction(asked).moments if m.name == moment)
            return sum(part.bytes for part in found.parts if part.name == "16-bit copies of weights")

        assert copies("loss") == 2 * (32 * layer + 128_256 * 4096)
        assert copies("backward begins") == begins
        assert (copies("backward ends"), copies("update")) == (2 * layer, 0)
    sharded = job(optimizer=OPTIMIZERS["adam-fp32"], layout=Layout(gpus=8, sharding="fsdp2"))
    assert not any(
        part.name == "16-bit copies of weights" and part.bytes for part in Prediction(sharded).peak.parts
    )


def test_context_ranks_have_each_other_s_keys_and_values_in_a_layer() -> None:
    """Llama 3 8B, 16,384 tokens over 4 ranks: 8 key-value heads of 128 in a ring, all 32 under PyTorch."""
    kinds: list[tuple[Sharding, int]] = [("zero-1", 8), ("fsdp2", 32)]
    for sharding, heads in kinds:
        asked = job(layout=Layout(gpus=4, context=4, sharding=sharding), sequence=16_384)
        for moment in Prediction(asked).moments:
            found = sum(part.bytes for part in moment.parts if part.name == "keys of other ranks")
            within = moment.name.startswith("backward")
            assert found == within * 2 * 2 * 16_384 * heads * 128
    alone = Prediction(job(sequence=16_384)).moments
    assert not any(part.bytes for m in alone for part in m.parts if part.name == "keys of other ranks")


def test_sequence_parallel_ranks_may_be_widest_where_the_whole_sequence_is() -> None:
    """One sequence of 8,192 tokens of 16,384 over 8 ranks, 53,248 / 8 of the feed-forward on each."""
    model, tokens = named("llama-3.1-405b"), 8192
    whole, one = 2 * tokens * 16_384, 2 * tokens * 53_248 // 8

    def counted(sharding: Sharding, *, fused: bool) -> int:
        here = Layout(8, 8, sequence_parallel=True, sharding=sharding)
        kernels = activation_memory.Kernels(fused=fused)
        return activation_memory.gradient_bytes(model, 0, tokens, here, None, kernels) - whole // 8

    # Beside the buffer: Megatron has the gradient of one product, PyTorch those of two, or their sum as well.
    # Three pieces that the feed-forward saved are gone, or four.
    assert counted("zero-1", fused=True) == max(whole + 2 * one - 3 * one, 2 * one)
    assert counted("fsdp2", fused=True) == whole + 2 * one - 3 * one
    assert counted("fsdp2", fused=False) == 2 * whole + 2 * one - 4 * one


def test_a_compiler_writes_one_gradient_over_another() -> None:
    eager, fused = (activation_memory.Kernels(fused=each) for each in (False, True))
    model, one = named("llama-3-8b"), 2 * 4096 * 14_336
    both = [activation_memory.gradient_bytes(model, 0, 4096, Layout(), None, how) for how in (eager, fused)]
    assert both[0] - both[1] == one


def test_experts_are_told_their_gradients_of_a_token_each() -> None:
    """Of Mixtral two experts of 14,336 have a token: before their last matrix both have what came for it."""
    here = activation_memory.gradient_bytes(named("mixtral-8x7b"), 0, 4096, Layout())
    assert here == 2 * 4096 * (4096 + max(14_336 * 2 + 2 * 4096, 2 * 2 * 14_336))
