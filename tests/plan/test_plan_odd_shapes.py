"""Shapes at the edges, worked out by hand: one key-value head, tied tables, odd vocabularies, uneven stages,
shared experts, images, a single token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lostflops.errors import ImpossibleLayout
from lostflops.plan import hardware, pages
from lostflops.plan.models import named
from lostflops.plan.serve import inference
from lostflops.plan.shape import elements
from lostflops.plan.train import activation_memory
from lostflops.plan.train.job import Prediction, Training
from lostflops.plan.train.layout import Layout, stage_layers, stage_weights
from lostflops.plan.train.ranking import rank
from planned import job


def held(model: str, layout: Layout, stage: int = 0) -> int:
    """Parameters that a rank of a stage holds."""
    return elements(list(stage_weights(named(model), layout, stage)))


def parts(asked: Training) -> dict[str, int]:
    """Of the moment at which the loss is computed."""
    loss = next(moment for moment in Prediction(asked).moments if moment.name == "loss")
    return {part.name: part.bytes for part in loss.parts if part.bytes}


def test_one_key_value_head_is_whole_on_every_tensor_rank() -> None:
    """Gemma-2B on 8: q and o 2,048 x 2,048 / 8, k and v 2,048 x 256 whole, three of 2,048 x 16,384 / 8."""
    layer = 2 * 524_288 + 2 * 524_288 + 3 * 4_194_304 + 2 * 2_048
    table = 256_000 * 2_048 // 8
    assert held("gemma-2b", Layout(8, 8)) == 18 * layer + table + 2_048 == 329_852_928


def test_a_vocabulary_that_does_not_divide_is_padded_up() -> None:
    """GPT-2 on 4: 50,257 words become 12,565 a rank; biases of what is split are split."""
    attention = 768 * 2_304 // 4 + 2_304 // 4 + 768 * 768 // 4 + 768
    mlp = 2 * (768 * 3_072 // 4) + 3_072 // 4 + 768
    layer = attention + mlp + 4 * 768
    assert held("gpt2", Layout(4, 4)) == 12_565 * 768 + 1_024 * 768 + 12 * layer + 2 * 768 == 31_742_976


def test_a_tied_table_is_on_the_first_and_on_the_last_stage() -> None:
    """Llama 3.2 1B in two stages of 8 layers of 60,821,504; the table has 128,256 x 2,048."""
    layer = 2 * 2_048**2 + 2 * 2_048 * 512 + 3 * 2_048 * 8_192 + 2 * 2_048
    half = 8 * layer + 128_256 * 2_048
    two = Layout(2, pipeline=2)
    assert [held("llama-3.2-1b", two, stage) for stage in range(2)] == [half, half + 2_048]
    assert half == 749_240_320


def test_uneven_stages_spare_the_ends() -> None:
    """32 layers over 5: three stages have 6, the last, the first, and the last but one."""
    five = Layout(5, pipeline=5)
    assert [len(stage_layers(named("llama-3-8b"), five, stage)) for stage in range(5)] == [6, 7, 7, 6, 6]


def test_shared_experts_are_on_every_expert_rank() -> None:
    """DeepSeek-V2-Lite on 8: 8 of 64 experts of 3 x 2,048 x 1,408, and the shared ones whole."""
    attention = 2_048 * 3_072 + 2_048 * 576 + 512 + 512 * 4_096 + 2_048**2
    moe = attention + 2_048 * 64 + 8 * 3 * 2_048 * 1_408 + 3 * 2_048 * 2_816 + 2 * 2_048
    dense = attention + 3 * 2_048 * 10_944 + 2 * 2_048
    whole = 26 * moe + dense + 2 * 102_400 * 2_048 + 2_048
    assert held("deepseek-v2-lite", Layout(8, expert=8)) == whole == 3_110_989_312


def test_every_second_layer_has_experts_wherever_a_stage_begins() -> None:
    """Llama 4 Maverick in 16 stages of three layers: two dense and one of 128 experts, or the reverse."""
    h, wide, narrow = 5_120, 16_384, 8_192
    attention = h * (40 + 8 + 8) * 128 + 40 * 128 * h + 2 * h
    dense = attention + 3 * h * wide
    mixed = attention + 3 * h * narrow * 129 + 128 * h
    stages = Layout(16, pipeline=16)
    assert held("llama-4-maverick", stages, 2) == 2 * dense + mixed
    assert held("llama-4-maverick", stages, 3) == dense + 2 * mixed
    asked = job("llama-4-maverick", "h200", sequence=512, layout=stages)
    kinds = [
        activation_memory.layer_bytes(asked.shape, number, 512, asked.layout, None, asked.executed)
        for number in (0, 47)
    ]
    for stage, (few, many) in ((2, (2, 1)), (3, (1, 2))):
        begins = next(
            m for m in Prediction(asked).moments if m.stage == stage and m.name == "backward begins"
        )
        saved = next(part.bytes for part in begins.parts if part.name == "activations")
        assert saved == few * kinds[0] + many * kinds[1]


def test_an_image_has_one_answer_and_no_rotary_table() -> None:
    """ViT-Huge: 588 numbers of a patch, 257 positions, 32 layers of 19,677,440, 1,000 classes."""
    layer = 4 * (1_280**2 + 1_280) + 2 * 1_280 * 5_120 + 5_120 + 1_280 + 4 * 1_280
    beside = 588 * 1_280 + 2 * 1_280 + 257 * 1_280 + 2 * 1_280 + 1_280 * 1_000 + 1_000
    assert named("vit-huge").parameters() == 32 * layer + beside == 632_045_800
    for tokens in (257, 300):
        asked = job("vit-huge", "a100", sequence=tokens, microbatch=64)
        found = parts(asked)
        assert found["logits and loss"] == 14 * 64 * 1_000
        assert "rotary table" not in found
    loss = next(moment for moment in Prediction(asked).moments if moment.name == "loss")
    assert "64 images, 14 bytes per class of 1,000" in {part.why for part in loss.parts}


@pytest.mark.parametrize(("model", "table"), [("gpt2", 0), ("t5-large", 0), ("llama-3-8b", 2 * 128 * 2)])
def test_only_rotary_models_have_a_rotary_table(model: str, table: int) -> None:
    """Sines and cosines of a head's 128 numbers, in 16 bits, for one token."""
    assert parts(job(model, sequence=1)).get("rotary table", 0) == table


def test_a_single_token_is_a_job() -> None:
    found = Prediction(job("llama-3-8b", "h200", sequence=1))
    assert found.tokens == 1 and found.step_ns > 0
    assert parts(found.training)["logits and loss"] == 14 * 128_256


def test_a_token_of_gemma_on_eight_is_latency_not_bandwidth() -> None:
    """659.7 MB of weights and 80.2 MB of cache at 0.83 of 3.35 TB/s are 0.266 ms; 18 layers of 55 us are
    0.990; 36 all-reduces of 5 us 0.180, and their bytes 0.0007."""
    card = hardware.gpu("h100")
    asked = inference.Serving(
        shape=named("gemma-2b"), gpu=card, link=hardware.link("pcie5"), layout=Layout(8, 8),
        prompt=4_096, generated=256, batch=1,
    )  # fmt: skip
    served = inference.Served(asked)
    assert served.cache_per_token == 2 * 256 * 2 * 18 == 18_432
    read = 2 * 329_852_928 + 4_352 * 18_432
    by_hand = (
        read / (0.83 * 3.35e12) + 18 * 55e-6 + 36 * 5e-6 + 2 * 2 * 2_048 * 18 * 2 * 7 / 8 / (0.8 * 450e9)
    )
    assert served.paces[1].ns == pytest.approx(1e9 * by_hand, rel=1e-3)
    assert 1e3 * by_hand == pytest.approx(1.437, abs=5e-4)


def test_shared_experts_are_in_the_working_memory() -> None:
    """4,096 tokens of 2 x 2,048 + 16 x (192 + 128) numbers, and three times 6 x 1,408 + 2,816."""
    asked = inference.Serving(
        shape=named("deepseek-v2-lite"), gpu=hardware.gpu("h100"), link=hardware.link("pcie5"),
        layout=Layout(), prompt=4_096, generated=1, batch=1,
    )  # fmt: skip
    working = next(part for part in inference.Served(asked).parts if part.name == "working memory")
    each = 2 * (2 * 2_048 + 16 * 192 + 16 * 128) + 3 * 2 * (6 * 1_408 + 2_816)
    assert working.bytes == 4_096 * each + 6 * 102_400


@pytest.mark.parametrize(
    ("model", "layout", "hint"),
    [
        ("llama-3-8b", Layout(gpus=3, tensor=3), "choose a number that divides 32: 1, 2, 4, 8, 16."),
        ("gpt2", Layout(gpus=8, tensor=8), "choose a number that divides 12: 1, 2, 3, 4, 6, 12."),
        ("deepseek-v2-lite", Layout(gpus=7, expert=7), "choose a number that divides 64: 1, 2, 4, 8, 16."),
        ("llama-3-8b", Layout(gpus=3, context=3), "choose a number that divides 4,096: 1, 2, 4, 8, 16."),
    ],
)
def test_what_does_not_come_out_even_says_what_does(model: str, layout: Layout, hint: str) -> None:
    with pytest.raises(ImpossibleLayout) as refused:
        Prediction(job(model, layout=layout))
    assert refused.value.hint == hint


def test_a_page_says_one_sequence_and_times_without_exponents() -> None:
    card = hardware.gpu("h100")
    asked = inference.Serving(
        shape=named("llama-3-8b"), gpu=card, link=hardware.link("pcie5"), layout=Layout(),
        prompt=10, generated=1, batch=1,
    )  # fmt: skip
    found = inference.options(inference.Served(asked).serving)
    assert "; 1 sequence of 10 + 1 tokens" in pages.serving(found, inference.verdict(found))[0]
    tiny = replace(job("llama-3-8b", "h100", sequence=1), gpu=card)
    said = rank(tiny).verdict
    assert "times as long" in said and "e+" not in said


def test_a_layer_that_is_shorter_than_its_starts_is_said() -> None:
    """Its kernels take 316 us to start and end, its products of one token 1 us."""
    tiny, usual = (
        "\n".join(pages.training(rank(replace(job(sequence=tokens), gpu=hardware.gpu("h100")))))
        for tokens in (1, 4096)
    )
    assert (
        "the forward of a layer takes 317 µs: a host that starts its kernels one by one may take 1.00 ms"
        in tiny
    )
    assert "one by one" not in usual
