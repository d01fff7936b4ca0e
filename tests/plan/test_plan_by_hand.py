"""Tables worked out by hand for a model small enough for it: every number here was added up on paper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lostflops.plan import hardware
from lostflops.plan.models import named
from lostflops.plan.serve import inference, kv_cache
from lostflops.plan.shape import Shape, Weight
from lostflops.plan.train import activation_memory, apply, layer_time, layout, static_memory
from lostflops.plan.train.activation_memory import Kernels
from lostflops.plan.train.job import Prediction, Training
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.ranking import rank
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora
from planned import job

# Hidden 64, feed-forward 128, six layers, eight heads of 8, four of keys and values, 96 words:
# q and o 4,096 weights each, k and v 2,048, gate, up and down 8,192, two norms 64: 36,992 a layer;
# embedding and head 6,144 each, the last norm 64.
SMALL = Shape("small", 64, 128, 6, 8, 4, 8, 96)
COUNT = 6 * 36_992 + 2 * 6_144 + 64
# Four experts of width 32, two for each token.
EXPERTS = replace(SMALL, name="experts", experts=4, experts_per_token=2, expert_width=32)
GPT = replace(SMALL, name="gpt", gated=False, layer_norm=True, dropout=True, kv_heads=8)

# Bytes per token of one layer: what tensor ranks do not split, and what they do.
PER_TOKEN = [
    # fp32 norms 512, normalised 256, statistics 8, inputs 128 + 128; keys, values, queries, output 3 x 128,
    # log-sum-exp 32, gate, SiLU and up 768, product 256.
    (SMALL, Kernels(), 1032, 1440),
    # norms' inputs 256, statistics 8, inputs 128 + 128; 3 x 128, 32, gate and up 512, product 256.
    (SMALL, Kernels(fused=True), 520, 1184),
    # norms 776, input 128, the router's 128, its scores 24, two copies of the input 256, two outputs 256;
    # 3 x 128, 32, two experts' gate, SiLU and up 384 and products 128.
    (EXPERTS, Kernels(), 1568, 928),
    # norms' inputs 256, statistics 16, masks 128, inputs 128 + 128; keys and values 256, queries and output
    # 256, log-sum-exp 32, the activation's input 256 and output 256.
    (GPT, Kernels(fused=True), 656, 1056),
    # the same with scores of 16 tokens: 5 x 8 heads x 16 in place of 32.
    (GPT, Kernels(fused=True, scores=16), 656, 1664),
]


@pytest.mark.parametrize(("shape", "kernels", "whole", "split"), PER_TOKEN)
@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_activations_are_split_where_tensor_ranks_split_them(
    shape: Shape, kernels: Kernels, whole: int, split: int, tensor: int, sequence_parallel: bool
) -> None:
    here = Layout(gpus=tensor, tensor=tensor, sequence_parallel=sequence_parallel)
    expected = 16 * ((whole + split) // tensor if sequence_parallel else whole + split // tensor)
    # Keys and values are 2 x 2 x 8 bytes a head: of four heads, each of eight ranks keeps a whole one.
    heads = shape.kv_heads
    expected += 16 * 32 * (heads // min(tensor, heads)) - 16 * 32 * heads // tensor
    assert activation_memory.layer_bytes(shape, 0, 16, here, None, kernels) == expected


def test_korthikanti_s_bytes_of_a_gpt_layer() -> None:
    """34 per token and width, 5 per token, head and score; statistics of rows come on top."""
    gpt, tokens = named("gpt-175b"), 2048
    unit = tokens * gpt.hidden
    flash = activation_memory.layer_bytes(gpt, 0, tokens, Layout(), None, Kernels(fused=True))
    assert flash == 34 * unit + tokens * (16 + 4 * gpt.heads)
    kept = activation_memory.layer_bytes(gpt, 0, tokens, Layout(), None, Kernels(fused=True, scores=tokens))
    assert kept == 34 * unit + 5 * gpt.heads * tokens * tokens + tokens * 16
    units = activation_memory.layer_bytes(named("llama-2-70b"), 0, 4096, Layout(), None, Kernels(fused=True))
    assert units / (2 * 4096 * 8192) == pytest.approx(16.766, abs=0.001)


# Weights of a layer on one of so many tensor ranks; beyond the key-value heads each holds a whole one.
HELD = {1: 36_992, 2: 2048 + 1024 + 1024 + 2048 + 3 * 4096 + 128, 8: 512 + 512 + 512 + 512 + 3 * 1024 + 128}


@pytest.mark.parametrize("tensor", HELD)
def test_a_tensor_rank_holds_its_piece_of_a_layer(tensor: int) -> None:
    here = Layout(gpus=tensor, tensor=tensor)
    assert sum(w.elements for w in layout.held_layer(SMALL, here, 0)) == HELD[tensor]


# Bytes of weights, gradients and optimizer states for the whole model.
STATES = {
    "adam": (2 * COUNT, 2 * COUNT, 12 * COUNT),
    "adam-fp32-gradients": (2 * COUNT, 4 * COUNT, 12 * COUNT),
    "adam-16bit": (2 * COUNT, 2 * COUNT, 4 * COUNT),
    "adam-fp32": (4 * COUNT, 4 * COUNT, 8 * COUNT),
    # 234,304 numbers in 916 blocks of 256, two moments of a byte, two fp32 scales a block.
    "adam-8bit": (2 * COUNT, 2 * COUNT, 2 * COUNT + 8 * 916),
    # fp32 rows and columns: 128 + 96 + 96 + 128 + 3 x 192 of a layer's matrices, 2 x 64 of its norms, 160 of
    # the embedding, 160 of the head, 64 of the last norm.
    "factored": (2 * COUNT, 2 * COUNT, 4 * (6 * 1152 + 160 + 160 + 64)),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize(("sharding", "shared"), [("none", ()), ("zero-1", (2,)), ("zero-2", (1, 2))])
def test_static_memory_of_every_optimizer(
    name: str, sharding: layout.Sharding, shared: tuple[int, ...]
) -> None:
    assert COUNT == SMALL.parameters() == 234_304
    parts = static_memory.parts(SMALL, Layout(gpus=2, sharding=sharding), 0, OPTIMIZERS[name])
    expected = [size // 2 if at in shared else size for at, size in enumerate(STATES[name])]
    assert [part.bytes for part in parts] == expected


@pytest.mark.parametrize(("name", "half"), [("adam", (2, 2, 4)), ("adam-8bit", (1, 1, 1))])
def test_fsdp2_shards_fp32_weights_that_are_the_master(name: str, half: tuple[int, int, int]) -> None:
    parts = static_memory.parts(SMALL, Layout(gpus=2, sharding="fsdp2"), 0, OPTIMIZERS[name])
    scales = 8 * 916 // 2 if name == "adam-8bit" else 0
    assert [part.bytes for part in parts] == [half[0] * COUNT, half[1] * COUNT, half[2] * COUNT + scales]


def test_a_shard_is_rounded_up_and_the_fullest() -> None:
    assert [static_memory.shard(10, ranks) for ranks in (1, 3, 5, 11)] == [10, 4, 2, 1]
    adam = OPTIMIZERS["adam"]
    assert static_memory.states(5, adam) == (10, 10, 60)
    assert static_memory.states(5, adam, 1, 4) == (10, 10, 15)
    assert static_memory.states(5, adam, 2, 4) == (10, 3, 15)
    assert static_memory.states(5, adam, 3, 4) == (3, 3, 15)


# Adapters of rank 2 on q and v of six layers: 2 x (64 + 64) and 2 x (64 + 32) numbers.
ADAPTED = 6 * (2 * 128 + 2 * 96)


@pytest.mark.parametrize(
    ("lora", "sizes"),
    [
        (Lora(rank=2), (2 * COUNT, 4 * ADAPTED, 4 * ADAPTED, 8 * ADAPTED)),
        (Lora(rank=2, fp32=False), (2 * COUNT, 2 * ADAPTED, 2 * ADAPTED, 12 * ADAPTED)),
    ],
)
@pytest.mark.parametrize(
    ("sharding", "shared"),
    [("none", ()), ("zero-1", (3,)), ("zero-2", (2, 3)), ("zero-3", (0, 1, 2, 3)), ("fsdp2", (0, 1, 2, 3))],
)
def test_adapters_are_trained_beside_a_frozen_base(
    lora: Lora, sizes: tuple[int, ...], sharding: layout.Sharding, shared: tuple[int, ...]
) -> None:
    parts = static_memory.parts(SMALL, Layout(gpus=2, sharding=sharding), 0, OPTIMIZERS["adam"], lora)
    assert [part.name for part in parts] == ["frozen base", "adapters", "gradients", "optimizer states"]
    assert [part.bytes for part in parts] == [n // 2 if at in shared else n for at, n in enumerate(sizes)]
    meaning = "fp32 moments of fp32 adapters" if lora.fp32 else OPTIMIZERS["adam"].meaning
    assert parts[3].why.startswith(meaning)


@pytest.mark.parametrize(
    ("optimizer", "moments", "meaning"),
    [
        # 2,688 numbers in 11 blocks of 256, two moments of a byte, two fp32 scales a block.
        ("adam-8bit", 2 * ADAPTED + 8 * 11, "moments of one byte with scales of fp32 adapters"),
        ("factored", 4 * 6 * (66 + 66 + 66 + 34), "fp32 rows and columns of fp32 adapters"),
    ],
)
def test_adapters_have_the_moments_of_their_optimizer(optimizer: str, moments: int, meaning: str) -> None:
    states = static_memory.parts(SMALL, Layout(), 0, OPTIMIZERS[optimizer], Lora(rank=2))[3]
    assert (states.bytes, states.why) == (moments, meaning)


def test_what_is_not_said_of_adapters_is_as_in_peft() -> None:
    assert Lora() == Lora(16, ("q", "v"), fp32=True, dropout=False, base_bits=16, double_quantised=True)
    assert static_memory.states(COUNT, OPTIMIZERS["factored"]) == (2 * COUNT, 2 * COUNT, 0)
    assert static_memory.states(COUNT, OPTIMIZERS["adam"], 3) == static_memory.states(
        COUNT, OPTIMIZERS["adam"]
    )


@pytest.mark.parametrize(
    ("double", "scales"),
    [(True, 64 + 64 + 32 + 32 + 3 * 128 + 7 * 4), (False, 4 * (64 + 64 + 32 + 32 + 384))],
)
def test_a_4_bit_base_has_scales_for_blocks_of_64(double: bool, scales: int) -> None:
    lora = Lora(rank=2, base_bits=4, double_quantised=double)
    base = static_memory.parts(SMALL, Layout(), 0, OPTIMIZERS["adam"], lora)[0]
    assert base.bytes == 6 * (36_864 // 2 + scales + 2 * 128) + 2 * (2 * 6_144 + 64)
    mixed = static_memory.base_bytes([Weight("router", 4, 64), Weight("norm", 64)], lora)
    assert mixed == 2 * (4 * 64 + 64)
    tables = ("embedding", "head", "router", "positions", "relative_positions", "segments", "transform")
    assert static_memory.base_bytes([Weight(name, 4, 64) for name in tables], lora) == 2 * 4 * 64 * 7
    # 256 scales are one block of them, and one more is two.
    for rows, blocks in ((256, 1), (257, 2)):
        whole = static_memory.base_bytes([Weight("q", rows, 64)], lora)
        assert whole == 32 * rows + (rows + 4 * blocks if double else 4 * rows)
    odd = static_memory.base_bytes([Weight("q", 13, 5)], lora)  # 65 elements: 33 bytes, two scales
    assert odd == 33 + (2 + 4 if double else 8)


def test_every_projection_can_have_an_adapter() -> None:
    weights = [Weight(name, 3, 5) for name in static_memory.PROJECTIONS] + [Weight("norm", 4)]
    every = static_memory.adapters(weights, Lora(rank=2, targets=static_memory.PROJECTIONS))
    assert static_memory.PROJECTIONS == ("q", "k", "v", "o", "gate", "up", "down")
    assert [(w.name, w.outputs, w.inputs) for w in every[:2]] == [("q.A", 2, 5), ("q.B", 3, 2)]
    assert len(every) == 14
    vector = static_memory.adapters([Weight("q", 4), Weight("cross.v", 3, 5, copies=2)], Lora(rank=2))
    assert [(w.name, w.copies) for w in vector] == [("cross.v.A", 2), ("cross.v.B", 2)]


def test_experts_are_shared_by_the_ranks_that_hold_the_same_ones() -> None:
    """Of 4 ranks each holds half of the experts, so two hold the same; the rest is on all four."""
    experts = 6 * 2 * 3 * 64 * 32
    dense = EXPERTS.parameters() - 2 * experts
    here = Layout(gpus=4, expert=2, sharding="zero-1")
    moments = static_memory.parts(EXPERTS, here, 0, OPTIMIZERS["adam"])[2].bytes
    assert moments == 12 * dense // 4 + 12 * experts // 2
    sharded = Layout(gpus=4, expert=2, sharding="fsdp2")
    base = static_memory.parts(EXPERTS, sharded, 0, OPTIMIZERS["adam"], Lora(rank=2))[0]
    assert (base.name, base.bytes) == ("frozen base", 2 * dense // 4 + 2 * experts // 2)


def test_gradients_are_reduced_in_fp32_by_fsdp2_and_of_fp32_adapters() -> None:
    def each(optimizer: str, sharding: layout.Sharding, lora: Lora | None = None) -> int:
        return static_memory.gradient_bytes(OPTIMIZERS[optimizer], Layout(gpus=2, sharding=sharding), lora)

    assert [each("adam", sharding) for sharding in ("none", "zero-2", "fsdp2")] == [2, 2, 4]
    assert [each("adam-16bit", "fsdp2"), each("adam-fp32", "fsdp2"), each("adam-fp32", "none")] == [2, 4, 4]
    assert [each("adam", "none", Lora()), each("adam", "fsdp2", Lora(fp32=False))] == [4, 2]


def buffers(optimizer: str = "adam", lora: Lora | None = None, **more: Any) -> static_memory.MemoryPart:
    return static_memory.communication(SMALL, Layout(**more), 0, OPTIMIZERS[optimizer], 16, lora)


def test_buffers_of_communication() -> None:
    """Two buckets of all gradients; two gathered layers and one's gradients; hidden states of 16 tokens."""
    assert buffers() == static_memory.MemoryPart("communication buffers", 0, "none")
    assert buffers(gpus=2).bytes == 2 * COUNT  # DDP's
    assert buffers(gpus=2, sharding="zero-1").bytes == 2 * 2 * COUNT
    assert buffers("adam-fp32-gradients", gpus=2, sharding="zero-2").bytes == 2 * 4 * COUNT
    assert buffers(gpus=1, sharding="zero-1").bytes == 0
    assert buffers(gpus=2, sharding="zero-3").bytes == 3 * 2 * 36_992
    lora = Lora(rank=2)
    assert buffers(lora=lora, gpus=2, sharding="zero-3").bytes == 2 * 2 * 36_992
    # Two stages keep what they gather: the first has three layers and the embedding.
    held = 3 * 36_992 + 6_144
    states = 2 * 2 * 16 * 64
    assert buffers(gpus=4, pipeline=2, sharding="fsdp2").bytes == 2 * held + 4 * held + states
    adapted = buffers(lora=lora, gpus=4, pipeline=2, sharding="fsdp2").bytes
    assert adapted == 2 * held + 4 * ADAPTED // 2 + states
    assert buffers(gpus=2, pipeline=2).bytes == states
    assert buffers(gpus=4, pipeline=2, tensor=2).bytes == states
    assert buffers(gpus=4, pipeline=2, tensor=2, sequence_parallel=True).bytes == states // 2 + 2 * 16 * 64
    assert buffers(gpus=2, tensor=2).bytes == 0
    assert buffers(gpus=2, tensor=2, sequence_parallel=True).bytes == 2 * 16 * 64
    large = static_memory.communication(
        named("llama-3-8b"), Layout(gpus=2, sharding="zero-1"), 0, OPTIMIZERS["adam"], 1
    )
    assert large.bytes == 2 * 500_000_000 * 2


@pytest.mark.parametrize(("width", "largest"), [(32, 12_288 + 128 + 4 * 64 + 24_576), (16, 36_992)])
def test_the_largest_layer_is_gathered_be_it_the_first_or_the_last(width: int, largest: int) -> None:
    """The first layer is dense, the others have four experts: 4 x 3 x 64 x 32 weights, or half as many."""
    mixed = replace(EXPERTS, dense_layers=1, expert_width=width)
    here = Layout(gpus=2, sharding="zero-3")
    found = static_memory.communication(mixed, here, 0, OPTIMIZERS["adam"], 16)
    assert found.bytes == 3 * 2 * largest
    single = static_memory.communication(replace(SMALL, layers=1), here, 0, OPTIMIZERS["adam"], 16)
    assert single.bytes == 3 * 2 * 36_992


def test_a_head_that_is_larger_than_a_layer_is_gathered_beside_one() -> None:
    """3,000 words of 64 numbers: 384,000 bytes, and gradients where they are trained; a layer has 73,984."""
    wide, here = replace(SMALL, vocabulary=3000), Layout(gpus=2, sharding="zero-3")
    adam, lora = OPTIMIZERS["adam"], Lora(rank=2)
    assert static_memory.communication(wide, here, 0, adam, 16).bytes == 2 * 384_000 + 73_984
    assert static_memory.communication(wide, here, 0, adam, 16, lora).bytes == 384_000 + 73_984


def test_only_half_gradients_are_reduced_in_buckets_before_they_are_sharded() -> None:
    """fp32 gradients of ZeRO's stage 1 are reduced where they lie."""
    assert buffers("adam-fp32-gradients", gpus=2, sharding="zero-1").bytes == 0
    assert buffers(gpus=1, sequence_parallel=True).bytes == 0


def test_fsdp2_keeps_what_no_layer_has_gathered() -> None:
    """Embedding, head and last norm, as a tensor rank holds them: the norm whole."""
    one = buffers(gpus=2, sharding="fsdp2")
    assert one.bytes == 3 * 2 * 36_992 + 2 * (2 * 6_144 + 64)
    assert one.why == "two gathered layers and one layer's gradients, embedding and head"
    assert buffers(gpus=4, tensor=2, sharding="fsdp2").bytes == 3 * 2 * HELD[2] + 2 * (6_144 + 64)
    adapted = buffers(lora=Lora(rank=2), gpus=2, sharding="fsdp2")
    assert adapted.why == "two gathered layers, embedding and head"


@pytest.mark.parametrize(("microbatches", "pieces", "one"), [(2, 2, " of one piece"), (3, 1, "")])
def test_gradients_of_a_piece_are_reduced_before_the_next_piece_s(
    microbatches: int, pieces: int, one: str
) -> None:
    """With no more microbatches than stages; the first of two stages has three layers and the embedding."""
    here = Layout(gpus=4, pipeline=2, schedule="interleaved", chunks=2, sharding="zero-3")
    found = static_memory.communication(SMALL, here, 0, OPTIMIZERS["adam"], 16, None, microbatches)
    held = 3 * 36_992 + 6_144
    assert found.bytes == 2 * held + 4 * held // pieces + 2 * 2 * 16 * 64
    gathered = f"all gathered layers, and fp32 gradients{one} until they are reduced"
    assert found.why == f"{gathered}, a sent and a received hidden state"


def test_a_frozen_base_says_in_how_many_bits() -> None:
    whys = [
        static_memory.parts(SMALL, Layout(), 0, OPTIMIZERS["adam"], Lora(base_bits=bits))[0].why
        for bits in (16, 4)
    ]
    in_four = "234,304 in 4 bits and scales; embedding, head, norms in 16"
    assert whys == ["234,304 in 16 bits", in_four]
    sharded = [
        static_memory.parts(SMALL, Layout(gpus=2, sharding=sharding), 0, OPTIMIZERS["adam"], Lora())[0].why
        for sharding in ("zero-2", "zero-3")
    ]
    assert sharded == ["234,304 in 16 bits", "234,304 in 16 bits, over 2"]


def test_the_lines_say_over_how_many_ranks() -> None:
    def said(sharding: layout.Sharding, gpus: int = 2) -> list[bool]:
        parts = static_memory.parts(SMALL, Layout(gpus=gpus, sharding=sharding), 0, OPTIMIZERS["adam"])
        return [part.why.endswith(f", over {gpus}") for part in parts]

    assert said("none") == [False, False, False]
    assert said("zero-1") == [False, False, True]
    assert said("zero-2") == [False, True, True]
    assert said("zero-3") == [True, True, True]
    assert said("zero-3", 1) == [False, False, False]


def served(shape: Shape = SMALL, gpus: int = 1, tensor: int = 1, **more: object) -> inference.Served:
    asked = inference.Serving(
        shape, hardware.gpu("h100"), hardware.link("pcie5"), Layout(gpus=gpus, tensor=tensor), 5, 7, batch=3
    )
    return inference.Served(replace(asked, **more))  # pyright: ignore[reportArgumentType]


def test_one_sequence_of_16_bits_is_served_where_nothing_else_is_said() -> None:
    asked = inference.Serving(SMALL, hardware.gpu("h100"), hardware.link("pcie5"), Layout(), 5, 7)
    assert (asked.batch, asked.weight_bits, asked.cache_bits, asked.streamed, asked.group) == (
        1,
        16,
        16,
        0,
        0,
    )


def test_a_cache_is_divided_by_tensor_ranks_as_far_as_it_has_heads() -> None:
    """Two times 6 layers, 4 heads of 8 and 2 bytes is 768 a token; 3 sequences of 12 tokens."""
    for tensor, per_token in ((1, 768), (2, 384), (4, 192), (8, 192)):
        now = served(gpus=tensor, tensor=tensor)
        assert now.cache_per_token == per_token
        assert next(part.bytes for part in now.parts if part.name == "KV cache") == 36 * per_token


@pytest.mark.parametrize(("window", "said"), [(11, True), (12, False), (13, False)])
def test_layers_with_a_window_are_told_where_a_sequence_is_longer(window: int, said: bool) -> None:
    """Sequences have 5 tokens of the prompt and 7 that are generated."""
    now = served(replace(SMALL, window=window))
    why = next(part.why for part in now.parts if part.name == "KV cache")
    assert (f"keep the last {window}" in why) is said


def working(now: inference.Served) -> int:
    return next(part.bytes for part in now.parts if part.name == "working memory")


def test_working_memory_is_of_a_chunk_of_prompts_and_of_logits() -> None:
    """A token has 2 x (2 x 64 + 64 + 64) whole and 3 x 2 x 128 split; logits 6 bytes a word."""
    assert working(served()) == 15 * (512 + 768) + 6 * 3 * 96
    assert working(served(gpus=2, tensor=2)) == 15 * (512 + 384) + 3 * 3 * 96
    assert working(served(replace(EXPERTS, expert_width=96))) == 15 * (512 + 3 * 2 * 192) + 6 * 3 * 96
    assert working(served(batch=3000)) == 8192 * (512 + 768) + 6 * 3000 * 96


def test_a_served_model_takes_its_weights_cache_working_memory_and_context() -> None:
    now = served(streamed=1000)
    context = now.parts[3].bytes
    assert [part.bytes for part in now.parts] == [2 * COUNT - 1000, 36 * 768, working(now), context]
    assert now.bytes == 2 * COUNT - 1000 + 36 * 768 + working(now) + context
    assert now.parts[1].why == "36 tokens of 768 bytes"  # three sequences of 5 and 7
    assert now.parts[0].why == "16 bits, 0.00 GB more in host memory"
    assert served().parts[0].why == "16 bits"
    assert now.host_bytes == 1000
    nothing = msgspec.structs.replace(now.serving.gpu, memory=COUNT)
    assert served(gpu=nothing).largest_batch == 0
    full = msgspec.structs.replace(now.serving.gpu, memory=now.bytes, host_memory=1000)
    assert served(streamed=1000, gpu=full).fits
    assert not served(streamed=1001, gpu=full).fits
    short = served(streamed=1000, gpu=msgspec.structs.replace(full, memory=now.bytes - 3))
    assert not short.fits and short.excess == 3
    assert served(streamed=1000, gpu=full).excess == 0


@pytest.mark.parametrize("batch", [1, 2, 7, 8])
def test_the_largest_batch_fits_to_the_byte(batch: int) -> None:
    exactly = msgspec.structs.replace(served().serving.gpu, memory=served(batch=batch).bytes)
    assert served(gpu=exactly).largest_batch == batch
    less = msgspec.structs.replace(exactly, memory=exactly.memory - 1)
    assert served(gpu=less).largest_batch == batch - 1


def test_bytes_of_weights_in_fewer_bits() -> None:
    """8 bits leave embedding and head as they are. NF4: 6 x 36,864 elements of matrices, scales of scales."""
    assert served(weight_bits=8).weight_bytes == COUNT + 2 * 6_144
    # Per layer: q and o 4,096 (64 scales each), k and v 2,048 (32), three of 8,192 (128): each has one block
    # of 256 scales, so 4 bytes more.
    layer = 36_864 // 2 + (2 * 64 + 2 * 32 + 3 * 128) + 7 * 4
    assert served(weight_bits=4).weight_bytes == 6 * (layer + 2 * 128) + 2 * (2 * 6_144 + 64)


def test_a_cache_of_8_bits_is_half_as_large() -> None:
    assert served(cache_bits=8).cache_per_token == 384


# Nothing but what is asked about takes time.
FAST = msgspec.structs.replace(
    hardware.gpu("h100"), matmul=1e30, attention=1e30, memory_bandwidth=1e30, node_bandwidth=1e30, layer_ns=0
)


def test_each_resource_can_bound_a_pass() -> None:
    """Prompts read every weight but the embedding once; a token reads the cache of 36 tokens besides."""
    memory = served(gpu=msgspec.structs.replace(FAST, memory_bandwidth=1e6)).paces
    read = 2 * (COUNT - 6_144) / (hardware.STREAMED * 1e6)
    assert [pace.bound for pace in memory] == ["memory", "memory"]
    assert memory[0].ns == round(read * 1e9)
    assert memory[1].ns == round((read + 36 * 768 / (hardware.STREAMED * 1e6)) * 1e9)

    # Per layer 36,864 weights of matrices; the head once for each sequence.
    compute = served(gpu=msgspec.structs.replace(FAST, matmul=1e6)).paces
    assert [pace.bound for pace in compute] == ["compute", "compute"]
    assert compute[0].ns == round((2 * 6 * 36_864 * 15 + 2 * 6_144 * 3) / 1e6 * 1e9)
    assert compute[1].ns == round(2 * (6 * 36_864 + 6_144) * 3 / 1e6 * 1e9)

    # Causal scores and values: 5 x 5 x 3 x 128 a layer; of a token 2 x 128 for each of 36 in the cache.
    attention = served(gpu=msgspec.structs.replace(FAST, attention=1e6)).paces
    assert attention[0].ns == round(6 * 5 * 5 * 3 * 128 / 1e6 * 1e9)
    assert attention[1].ns == round(6 * 2 * 128 * 36 / 1e6 * 1e9)

    link = served(gpu=FAST, streamed=400_000).paces
    assert [pace.bound for pace in link] == ["link", "link"]
    assert link[0].ns == round(400_000 / hardware.link("pcie5").into * 1e9)

    # Two all-reduces a layer of 64 x 2 bytes a token, a ring of two sends half of them twice.
    slow = msgspec.structs.replace(FAST, node_bandwidth=1e6)
    network = served(gpu=slow, gpus=2, tensor=2).paces
    assert [pace.bound for pace in network] == ["network", "network"]
    ring = 2 * 6 * 64 * 2 * 15 * 2 * (1 / 2) / layer_time.bandwidth(slow, 2, 2)
    assert network[0].ns == round((ring + 12 * inference.ALL_REDUCE) * 1e9)
    four = served(gpu=slow, gpus=4, tensor=4).paces[0].ns
    ring = 2 * 6 * 64 * 2 * 15 * 2 * (3 / 4) / layer_time.bandwidth(slow, 4, 4)
    assert four == round((ring + 12 * inference.ALL_REDUCE) * 1e9)


def test_what_bits_cost_to_unpack_is_read_more_slowly() -> None:
    slow = msgspec.structs.replace(FAST, memory_bandwidth=1e6)
    read = (COUNT - 6_144 + 6_144) / 0.85
    assert served(gpu=slow, weight_bits=8).paces[0].ns == round(read / (hardware.STREAMED * 1e6) * 1e9)
    four = served(gpu=slow, weight_bits=4)
    read = (four.weight_bytes - 2 * 6_144) / 0.73  # all but the embedding
    assert four.paces[0].ns == round(read / (hardware.STREAMED * 1e6) * 1e9)


def named_options(asked: inference.Served) -> list[str]:
    return [option.name for option in inference.options(asked.serving)]


def test_only_what_changes_something_is_an_option() -> None:
    exactly = msgspec.structs.replace(served().serving.gpu, memory=served().bytes)
    fewer = ["8-bit weights", "4-bit weights", "8-bit KV cache"]
    assert named_options(served(gpu=exactly)) == ["as asked", *fewer]
    assert named_options(served(gpu=exactly, weight_bits=8))[:2] == ["as asked", "4-bit weights"]
    assert "4-bit weights" not in named_options(served(gpu=exactly, weight_bits=4))
    assert "8-bit KV cache" not in named_options(served(gpu=exactly, cache_bits=8))
    less = msgspec.structs.replace(exactly, memory=exactly.memory - 1)
    assert named_options(served(gpu=less)) == ["as asked", *fewer, "batch 2", "stream weights"]
    assert "stream weights" not in named_options(served(gpu=less, streamed=1))
    found = {option.name: option for option in inference.options(served(gpu=less).serving)}
    assert found["stream weights"].served.serving.streamed == 1
    assert found["stream weights"].served.fits
    assert found["stream weights"].apply == ("lostflops.optimize.stream_weights",)
    assert found["as asked"].apply == found["batch 2"].apply == ()
    halves = {name: option.served.serving for name, option in found.items()}
    assert (halves["8-bit weights"].weight_bits, halves["4-bit weights"].weight_bits) == (8, 4)
    assert halves["8-bit KV cache"].cache_bits == 8 and halves["batch 2"].batch == 2
    numbers = {name for name, option in found.items() if option.remark == inference.OTHER_NUMBERS}
    assert numbers == set(fewer)


def test_the_cache_comes_back_over_the_link_or_is_computed_again() -> None:
    assert kv_cache.per_token(SMALL) == 768 and kv_cache.per_token(SMALL, 1) == 384
    assert kv_cache.reload_seconds(SMALL, 10, 768.0) == 10
    again = 2 * (6 * 36_864 + 6_144) * 10
    assert kv_cache.recompute_seconds(SMALL, 10, again / 4) == 4


def test_a_latent_cache_is_whole_on_every_tensor_rank() -> None:
    model = named("deepseek-v2-lite")
    assert served(model, 2, 2).cache_per_token == served(model).cache_per_token == 27 * (512 + 64) * 2


def test_tokens_per_second_are_linear_in_replicas() -> None:
    one = served().tokens_per_second
    assert served(gpus=4).tokens_per_second == pytest.approx(4 * one)
    pair = served(gpus=2, tensor=2)
    two = pair.tokens_per_second
    prompts, each = (pace.ns / 1e9 for pace in pair.paces)
    assert two == pytest.approx(3 * 7 / (prompts + 7 * each))
    assert served(gpus=8, tensor=2).tokens_per_second == pytest.approx(4 * two)


def test_experts_that_a_batch_reaches() -> None:
    """Of four experts, two a token: one token reaches half, two 3/4, three 7/8; a dense model has none."""
    assert [inference.touched(EXPERTS, tokens) for tokens in (1, 2, 3)] == [0.5, 0.75, 0.875]
    assert inference.touched(SMALL, 5) == 0.0


def test_a_token_reads_what_its_batch_reaches() -> None:
    """A layer's experts are 4 x 3 x 64 x 32 weights; the rest is read whole but the embedding."""
    experts = 2 * 6 * 4 * 3 * 64 * 32
    plain = 2 * (6 * (12_288 + 4 * 64 + 128) + 6_144 + 64)
    assert served(EXPERTS).read(1) == pytest.approx(plain + 0.5 * experts / 0.6)
    assert served(EXPERTS).read(2) == plain + experts, "0.75 / 0.6 is more than reading all of them"
    assert served(EXPERTS).read(5000) == pytest.approx(plain + experts)
    assert served(SMALL).read(1) == 2 * (COUNT - 6_144)
    tied = replace(SMALL, tied=True)
    assert served(tied).read(1) == 2 * (COUNT - 6_144)  # the table is the head, and read as such


def test_four_bit_groups_have_a_scale_and_a_zero() -> None:
    """All matrices but the embedding in 4 bits, 32 of them sharing 4 bytes."""
    matrices = COUNT - 6_144 - 6 * 128 - 64
    now = served(weight_bits=4, group=32)
    assert now.weight_bytes == 2 * (6_144 + 6 * 128 + 64) + matrices // 2 + 4 * (matrices // 32)


def test_tensor_ranks_share_what_is_computed() -> None:
    """Only products take time, and the twelve all-reduces of two ranks."""
    slow = msgspec.structs.replace(FAST, matmul=1e9)
    alone, two = (served(gpus=n, tensor=n, gpu=slow).paces for n in (1, 2))
    assert [pace.bound for pace in (*alone, *two)] == ["compute"] * 4
    for one, half in zip(alone, two, strict=True):
        assert one.ns > 10**6
        assert half.ns == pytest.approx(one.ns / 2 + 12 * 5_000, abs=1)


def test_all_reduces_cost_a_latency_each() -> None:
    """With a wire and a memory that cost nothing, twelve all-reduces and six layers are left."""
    fast = msgspec.structs.replace(
        hardware.gpu("h100"), node_bandwidth=1e18, memory_bandwidth=1e18, matmul=1e18, attention=1e18
    )
    alone, two = (served(gpus=n, tensor=n, gpu=fast).paces[1].ns for n in (1, 2))
    assert alone == 6 * 55_000
    assert two - alone == 12 * 5_000
    pairs = msgspec.structs.replace(fast, node=2)
    assert served(gpus=2, tensor=2, gpu=pairs).paces[1].ns == two
    small_nodes = msgspec.structs.replace(fast, node=1, network=1e18)
    far = served(gpus=2, tensor=2, gpu=small_nodes).paces[1].ns
    assert far - alone == 12 * 30_000


# One sentence a branch.
BIG = msgspec.structs.replace(hardware.gpu("h100"), host_memory=10**9)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (served(), "It fits as it is, with "),
        (
            served(named("llama-3-70b")),
            "It does not fit as it is: 56.7 GB over. The fastest way: 4-bit weights; without other",
        ),
        (served(named("llama-3-70b"), weight_bits=4), "It fits as it is, with "),
        (served(named("llama-3.1-405b"), weight_bits=4, gpu=BIG), "Nothing that was tried makes it fit"),
        (
            served(named("llama-3-70b"), gpu=BIG),
            "It does not fit as it is: 56.7 GB over. The fastest way: 4-bit weights.",
        ),
    ],
)
def test_each_verdict_on_serving(asked: inference.Served, says: str) -> None:
    assert inference.verdict(inference.options(asked.serving)).startswith(says)


def test_without_other_numbers_the_fastest_that_fits_is_named() -> None:
    asked = inference.options(served(named("llama-3-70b")).serving)
    streamed = next(option for option in asked if option.name == "stream weights")
    faster = replace(
        streamed, name="faster", served=served(named("llama-3-70b"), weight_bits=8), remark="the same numbers"
    )
    for options in ((*asked, faster), (asked[0], faster, *asked[1:])):
        assert inference.verdict(options).endswith(
            "4-bit weights; without other numbers in the model: faster."
        )


def test_room_is_what_the_gpu_has_beyond() -> None:
    now = served()
    room = (now.serving.gpu.memory - now.bytes) / 1e9
    assert f"It fits as it is, with {room:.1f} GB to spare" in inference.verdict(
        inference.options(now.serving)
    )
    assert 70 < room < 85.9


def test_experts_that_all_tokens_reach_and_shared_ones_are_counted() -> None:
    """Prompts of 15 tokens; of 64 experts each is given to one. A shared one takes 6 bytes a token."""
    many = replace(EXPERTS, experts=64, experts_per_token=1)
    now = served(many, gpu=msgspec.structs.replace(FAST, memory_bandwidth=1e6))
    assert now.paces[0].ns == round(now.read(15) / (hardware.STREAMED * 1e6) * 1e9)
    assert now.read(15) > now.read(8)
    wide, wider = (served(replace(EXPERTS, shared_width=width)).parts[2].bytes for width in (100, 200))
    assert wider - wide == 15 * 6 * 100


def test_the_whole_batch_that_fits_is_in_the_verdict() -> None:
    asked = served(named("llama-3-8b")).serving
    batch = inference.Served(asked).largest_batch
    assert inference.verdict(inference.options(asked)).endswith(f"; up to {batch:,} sequences.")


def verdict(asked: Training) -> str:
    return rank(asked).verdict


EIGHT = job("llama-3-70b", "h100", layout=Layout(gpus=8))


def test_each_verdict_on_training() -> None:
    assert verdict(job("llama-3-8b", layout=Layout(gpus=8, sharding="fsdp2"))).startswith(
        "It fits as it is, with"
    )
    assert verdict(EIGHT).startswith("It does not fit as it is: 1,187.7 GB over. The fastest way: ")
    assert "8-bit Adam, 62.3 GB per GPU; with the same optimizer: " in verdict(EIGHT)
    assert "offload the optimizer" in verdict(EIGHT).partition("same optimizer")[2]
    one = verdict(replace(EIGHT, layout=Layout()))
    assert "Nothing that was tried fits on 1 GPU. The fastest way: 4 GPUs + " in one
    assert "times as long" in verdict(EIGHT)
    poor = msgspec.structs.replace(EIGHT.gpu, host_memory=10**9)
    full = replace(EIGHT, gpu=poor, layout=Layout(gpus=8, sharding="zero-3"), checkpointing="full")
    assert "same optimizer" not in verdict(full)
    stuffed = job("llama-3-8b", "h100", layout=Layout(gpus=8, sharding="fsdp2"), offloaded=30)
    stuffed = replace(stuffed, gpu=msgspec.structs.replace(stuffed.gpu, host_memory=10**10))
    assert verdict(stuffed).startswith(
        "It does not fit as it is: host memory is too small. The fastest way with the same optimizer: "
    )
    tiny = msgspec.structs.replace(EIGHT.gpu, memory=2 * 10**9, host_memory=10**9)
    nothing = verdict(replace(EIGHT, gpu=tiny))
    assert nothing.startswith("Nothing that was tried makes it fit; the closest is '")
    assert "Unified memory" not in nothing
    roomy = msgspec.structs.replace(tiny, host_memory=10**15)
    assert verdict(replace(EIGHT, gpu=roomy)).endswith("Unified memory would, slowly.")


def test_another_optimizer_is_the_headline_only_where_it_saves_much() -> None:
    eight = job("mixtral-8x7b", "mi300x", layout=Layout(gpus=8))
    mixtral = rank(replace(eight, gpu=hardware.gpu("mi300x")))
    assert mixtral.headline.changes == ("ZeRO stage 3",)
    assert "The fastest way with the same optimizer: ZeRO stage 3, 139.1 GB per GPU; " in mixtral.verdict
    assert mixtral.verdict.endswith("ZeRO stage 3 + 8-bit Adam is 2.9% faster.")
    first, second = mixtral.ways[:2]  # as fast within a hundredth: Adam's before Adafactor
    assert first.changes[-1] == "8-bit Adam" and second.changes[-1] == "Adafactor"
    assert first.prediction.step_ns > second.prediction.step_ns
    assert {way.remark for way in (first, second)} == {"another optimizer: check the loss"}
    assert (
        rank(EIGHT).headline is rank(EIGHT).ways[0] or rank(EIGHT).headline.name == rank(EIGHT).ways[0].name
    )


def test_unified_memory_is_never_the_headline() -> None:
    ample = msgspec.structs.replace(hardware.gpu("gh200"), host_memory=10**13)
    asked = job("llama-2-70b", "gh200", lora=Lora())
    for one in (asked, replace(asked, gpu=ample), replace(asked, gpu=ample, unified=True)):
        found = rank(one)
        assert not found.headline.prediction.training.unified or not found.headline.changes
        assert "fastest way: unified" not in found.verdict
        explicit = [not way.prediction.training.unified for way in found.ways]
        assert explicit == sorted(explicit, reverse=True)


def test_eight_h100_train_70b_with_zero_3_checkpointing_and_8_bit_adam() -> None:
    """6 bytes of 70,553,706,496 parameters over 8 are 52.9 GB, moments' scales 0.28, gradients of activations
    4,096 x (4 x 28,672 + 2 x 8,192) bytes, 0.54; the peak is 62.4 GB."""
    asked = replace(
        EIGHT,
        layout=Layout(gpus=8, sharding="zero-3"),
        optimizer=OPTIMIZERS["adam-8bit"],
        checkpointing="full",
    )
    now = Prediction(asked)
    assert now.fits and now.peak.bytes / 1e9 == pytest.approx(62.41, abs=0.05)
    static = sum(part.bytes for part in static_memory.parts(asked.shape, asked.layout, 0, asked.optimizer))
    assert static / 1e9 == pytest.approx(6 * 70.553706 / 8 + 70.553706 / 8 / 32, rel=1e-4)
    names = {frozenset(way.changes) for way in rank(EIGHT, most=100).ways}
    assert {"checkpoint every layer", "ZeRO stage 3", "8-bit Adam"} in names


def test_an_offloaded_optimizer_waits_in_host_memory() -> None:
    """Of 8 ranks each updates 1/8: 12 bytes of states and 4 of gradients there, 28 touched at 12 GB/s."""
    asked = job("llama-3-8b", "h100", layout=Layout(gpus=8, sharding="zero-3"), optimizer_away=True)
    now, mine = Prediction(asked), 8_030_261_248 // 8
    assert now.host_bytes == 16 * mine
    assert not {"gradients", "optimizer states"} & {part.name for m in now.moments for part in m.parts}
    spans = {span.name: span.ns / 1e9 for span in now.spans}
    assert spans["optimizer update on the CPU"] == pytest.approx(28 * mine / 12e9)
    assert spans["gradients out, weights in"] == pytest.approx(2 * 2 * mine / 55e9)


def test_405b_is_accepted_as_it_was_trained() -> None:
    """Tensor 8, pipeline 16, 8K tokens, no checkpointing: the first stage has 7 layers of 16 microbatches."""
    here = Layout(8192, 8, sequence_parallel=True, pipeline=16, sharding="fsdp2")
    model = named("llama-3.1-405b")
    assert [len(layout.stage_layers(model, here, stage)) for stage in (0, 1, 14, 15)] == [7, 8, 8, 7]
    for sharding in ("zero-1", "zero-2", "fsdp2"):
        asked = job(
            "llama-3.1-405b", "h100", sequence=8192, microbatches=32, kernels="fused",
            layout=replace(here, sharding=sharding),
        )  # fmt: skip
        assert Prediction(asked).fits, sharding
        assert not Prediction(replace(asked, kernels="eager")).fits


def test_stages_have_as_many_layers_as_come_out_even() -> None:
    shape = replace(SMALL, layers=10)
    sizes = [[len(layout.stage_layers(shape, Layout(pipeline=p), s)) for s in range(p)] for p in (2, 3, 4)]
    assert sizes == [[5, 5], [3, 4, 3], [2, 3, 3, 2]]
    assert [layout.stage_layers(shape, Layout(pipeline=3), s) for s in range(3)] == [
        range(3),
        range(3, 7),
        range(7, 10),
    ]


def test_kernels_between_matrix_products_move_what_their_passes_move() -> None:
    """Eager: two norms with a residual 44 bytes an element, rotary 20, gate 10. Fused: 8, 4 and 6."""
    assert layer_time.moved_bytes(SMALL, 0, Kernels()) == (2 * 44 * 64, 20 * (64 + 32) + 10 * 128)
    assert layer_time.moved_bytes(SMALL, 0, Kernels(fused=True)) == (2 * 8 * 64, 4 * (64 + 32) + 6 * 128)
    sizes = (2 * 4 * 64 + 14 * 64, 4 * 128)
    assert layer_time.moved_bytes(GPT, 0, Kernels(fused=True)) == sizes


def test_small_microbatches_take_longer_by_the_starts_of_their_passes() -> None:
    """Eight of one sequence instead of one of eight: seven more passes of 32 layers, thrice 316 us each."""
    asked = job("llama-3-8b", "h100", layout=Layout(gpus=64, sharding="zero-1"))
    few, many = (
        Prediction(replace(asked, gpu=hardware.gpu("h100"), microbatch=size, microbatches=8 // size))
        for size in (8, 1)
    )
    passes = (sum(span.ns for span in found.spans if span.name.startswith("layers")) for found in (many, few))
    assert next(passes) - next(passes) == pytest.approx(7 * 32 * 3 * 316_000, rel=1e-6)


def test_a_4_bit_base_is_dequantised_in_every_pass() -> None:
    asked = job("llama-3-8b", "h100", lora=Lora(base_bits=4))
    plain = replace(asked, lora=Lora())
    matrices = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336
    extra = layer_time.DEQUANTISED * matrices / (0.83 * 3.35e12)
    times = [
        layer_time.forward(
            layer_time.work(t.shape, 0, t.layout, t.sequence, 1, t.lora), t.gpu, t.layout, fp8=False
        ).compute
        for t in (asked, plain)
    ]
    assert times[0] - times[1] == pytest.approx(extra)


def test_fewer_bits_stream_as_large_a_part_of_the_weights() -> None:
    """80 GiB of 141.1 GB are more than 8-bit weights have altogether."""
    card = hardware.gpu("gh200")
    asked = inference.Serving(
        named("llama-3-70b"), card, hardware.link(card.link), Layout(), 4096, 256, streamed=80 << 30
    )
    part = asked.streamed / inference.Served(asked).weight_bytes
    for found in inference.options(asked)[1:3]:
        assert found.name in ("8-bit weights", "4-bit weights")
        assert found.served.serving.streamed / found.served.weight_bytes == pytest.approx(part)
        assert 0 < found.served.parts[0].bytes < found.served.weight_bytes


def test_changes_that_no_framework_makes_are_not_ranked() -> None:
    """Gradients alone are not sharded beside tensor or pipeline ranks; FP8 is not for a base in 4 bits."""
    split = job(layout=Layout(gpus=64, tensor=8, pipeline=2), microbatches=8)
    tried = [set(way.changes) for way in (*rank(split).alone, *rank(split).ways)]
    assert {"ZeRO stage 1"} in tried and not any("ZeRO stage 2" in changes for changes in tried)
    assert {"ZeRO stage 2"} in [set(way.changes) for way in rank(job(layout=Layout(gpus=8))).alone]
    for lora, offered in ((Lora(), True), (Lora(base_bits=4), False)):
        names = [way.name for way in rank(job("llama-3-8b", "h100", lora=lora)).alone]
        assert ("FP8" in names) is offered
    here = Layout(128, pipeline=16, expert=8, schedule="dualpipe", sharding="zero-1")
    (said,) = apply.lines(job("deepseek-v3", "h800", layout=here, microbatches=32))
    assert said.startswith("  none of HF Trainer, Accelerate, DeepSpeed, torchtitan, Megatron-LM is known to")


def test_a_model_in_a_file_is_called_by_its_name_or_by_its_folder_s(tmp_path: Path) -> None:
    content = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 16,
        "vocab_size": 9,
    }
    for name, called in (("mine/config.json", "mine"), ("tiny-gpt.json", "tiny-gpt")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        assert named(str(path)).name == called


def test_a_context_beyond_the_model_s_is_said() -> None:
    from lostflops.plan import pages

    long = "\n".join(pages.training(rank(job("llama-3-8b", sequence=16384))))
    assert "llama-3-8b was made for 8,192 tokens: 16,384 need rotary scaling or more training." in long
    assert "was made for" not in "\n".join(pages.training(rank(job("llama-3-8b", sequence=8192))))
