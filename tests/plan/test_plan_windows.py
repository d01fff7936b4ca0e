"""Attention that sees a window: what is cached, what is computed, and how configurations say it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lostflops.plan import hardware
from lostflops.plan.model_config import from_config
from lostflops.plan.models import named
from lostflops.plan.serve import inference
from lostflops.plan.shape import Shape
from lostflops.plan.train.activation_memory import Kernels
from lostflops.plan.train.job import Prediction
from lostflops.plan.train.layer_time import attention_operations, layer_attention
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import parts
from planned import job

# Five layers, of which the second and the fourth see everything; the others three tokens.
SMALL = Shape("small", 64, 128, 5, 4, 4, 16, 100, window=3, unwindowed=(1, 3))


def served(shape: Shape, prompt: int, generated: int, tensor: int = 1) -> inference.Served:
    asked = inference.Serving(
        shape,
        hardware.gpu("h100"),
        hardware.link("pcie5"),
        Layout(tensor, tensor),
        prompt,
        generated,
        batch=2,
    )
    return inference.Served(asked)


def cache(now: inference.Served) -> int:
    return next(part.bytes for part in now.parts if part.name == "KV cache")


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 50])
def test_layers_with_a_window_keep_no_more_than_that(tokens: int) -> None:
    layer = 2 * 4 * 16 * 2  # bytes of a token
    kept = sum(tokens if number in (1, 3) else min(3, tokens) for number in range(5))
    assert SMALL.seen(tokens) == kept
    assert cache(served(SMALL, tokens, 0 if tokens == 1 else 1)) == 2 * layer * SMALL.seen(
        tokens + (0 if tokens == 1 else 1)
    )


@pytest.mark.parametrize("tokens", [1, 3, 4, 9])
def test_operations_are_those_of_the_pairs_that_see_each_other(tokens: int) -> None:
    """A triangle is counted as half of its square, so a band as the square less that of what is not seen."""
    band = tokens**2 - max(0, tokens - 3) ** 2
    assert 5 * attention_operations(SMALL, tokens, 1) // (64 + 64) == pytest.approx(
        2 * tokens**2 + 3 * band, abs=5
    )


def test_kept_scores_are_the_whole_square_whatever_is_masked() -> None:
    open_ = replace(SMALL, window=0, unwindowed=())
    scores = Kernels(scores=50)
    assert layer_attention(SMALL, 0, 50, 1, scores) == layer_attention(open_, 0, 50, 1, scores)
    assert layer_attention(SMALL, 0, 50, 1, Kernels()) < layer_attention(open_, 0, 50, 1, Kernels())


def test_a_model_without_a_window_is_planned_as_before() -> None:
    gemma = named("gemma-2-9b")
    whole = replace(gemma, window=0, unwindowed=())
    for tokens in (100, 4096):  # within the window
        assert Prediction(job(shape=gemma, sequence=tokens)).step_ns == (
            Prediction(job(shape=whole, sequence=tokens)).step_ns
        )
    long = [Prediction(job(shape=shape, sequence=8192)) for shape in (gemma, whole)]
    assert long[0].step_ns < long[1].step_ns and long[0].peak.bytes == long[1].peak.bytes


def test_gemma_3_caches_a_sixth_of_its_layers_in_full() -> None:
    """26 layers, 4 of them whole: 32,768 tokens of 1,024 bytes each, and 22 times 512 of them."""
    now = served(named("gemma-3-1b"), 32_000, 768)
    assert cache(now) == 2 * 1_024 * (4 * 32_768 + 22 * 512)
    why = next(part.why for part in now.parts if part.name == "KV cache")
    assert why.endswith("; 22 of 26 layers keep the last 512")
    assert "keep the last" not in next(p.why for p in served(named("llama-3-8b"), 9_000, 1).parts if p.bytes)


FOUR = {"num_local_experts": 4, "num_experts_per_tok": 1}
LLAMA = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "window", "unwindowed"),
    [
        ({"model_type": "mistral", "sliding_window": 7}, 7, ()),
        ({"model_type": "mistral", "sliding_window": None}, 0, ()),
        ({"model_type": "gemma2", "sliding_window": 7}, 7, (1, 3, 5)),
        ({"model_type": "gemma3_text", "sliding_window": 7, "sliding_window_pattern": 3}, 7, (2, 5)),
        ({"model_type": "gemma3_text", "sliding_window": 7}, 7, (5,)),
        ({"model_type": "qwen2", "sliding_window": 7}, 0, ()),
        (
            {"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2},
            7,
            (0, 1),
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["full_attention", *["sliding_attention"] * 5],
            },
            7,
            (0,),
        ),
        ({"model_type": "gpt_oss", "sliding_window": 7, **FOUR}, 7, (1, 3, 5)),
        ({"model_type": "llama4_text", **FOUR, "attention_chunk_size": 7}, 7, (3,)),
        (
            {
                "model_type": "llama4_text",
                **FOUR,
                "attention_chunk_size": 7,
                "no_rope_layers": [0, 1, 1, 1, 0, 1],
            },
            7,
            (0, 4),
        ),
    ],
)
def test_a_configuration_says_which_layers_have_a_window(
    said: dict[str, Any], window: int, unwindowed: tuple[int, ...]
) -> None:
    found = from_config(json.dumps(LLAMA | said).encode(), "it")
    assert (found.window, found.unwindowed) == (window, unwindowed)


def test_the_text_of_gemma_3_is_read_of_its_whole_configuration() -> None:
    """As it is published for 4B: what it leaves out is transformers' default."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "sliding_window": 1024,
    }  # fmt: skip
    content = json.dumps(
        {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    )
    found, known = from_config(content.encode(), "gemma-3-4b"), named("gemma-3-4b")
    assert found.parameters() == known.parameters() and found.unwindowed == known.unwindowed


@pytest.mark.parametrize("model", ["mixtral-8x7b", "mixtral-8x22b", "deepseek-v2-lite", "qwen3-30b-a3b"])
def test_a_larger_batch_never_gets_its_tokens_sooner(model: str) -> None:
    """Picking experts by their index is slow, but no slower than reading all of them."""
    times = [
        inference.Served(
            inference.Serving(
                named(model), hardware.gpu("mi325x"), hardware.link("pcie5"), Layout(), 16, 1, batch=batch
            )
        )
        .paces[1]
        .ns
        for batch in range(1, 40)
    ]
    assert times == sorted(times)


def test_a_rank_of_dualpipe_has_a_stage_from_either_end() -> None:
    """Weights and gradients twice; states once, because twice as many ranks share them."""
    plain = job(layout=Layout(16, pipeline=4, sharding="zero-1"), microbatches=16)
    both = replace(plain, layout=replace(plain.layout, schedule="dualpipe"))
    sizes = [
        {part.name: part.bytes for part in parts(asked.shape, asked.layout, 0, asked.optimizer)}
        for asked in (plain, both)
    ]
    ends = [parts(plain.shape, plain.layout, stage, plain.optimizer) for stage in (0, 3)]
    for name in ("weights", "gradients"):
        assert sizes[1][name] == sum(p.bytes for held in ends for p in held if p.name == name)
    states = [p.bytes for held in ends for p in held if p.name == "optimizer states"]
    assert sizes[1]["optimizer states"] == sum(states) // 2


def test_a_longer_sequence_never_shortens_the_step() -> None:
    """Gradients are reduced beside a backward that waits for memory, too."""
    layout = Layout(16, context=4)
    asked = job("deepseek-v3", layout=layout, sequence=1000, microbatch=2, gpu="b200")
    asked = replace(asked, gpu=hardware.gpu("b200"))
    steps = [Prediction(replace(asked, sequence=1000 * times)).step_ns for times in (1, 2, 4, 8)]
    assert steps == sorted(steps)


def test_chunks_leave_triangles_where_windows_leave_a_band() -> None:
    """20 tokens in chunks of 8: 8 x 8 + 8 x 8 + 4 x 4 of 20 x 20, in three of four layers."""
    sizes = {"window": 8, "unwindowed": (3,), "chunked": True}
    shape = replace(named("llama-3-8b"), layers=4, **sizes)
    width = shape.query_width + shape.value_width
    assert attention_operations(shape, 20, 1) == (400 - 256 * 3 // 4) * width
    assert attention_operations(shape, 8, 1) == 64 * width
    assert shape.seen(20) == 3 * 8 + 20
