"""Models known by name, and whatever a name or a path given by a user stands for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from lostflops.errors import NoSuchModel, Unreadable
from lostflops.plan.model_config import from_config
from lostflops.plan.shape import BIASES, PLAIN, Latent, Shape, whole_every


def _gpt(name: str, h: int, layers: int, heads: int, vocabulary: int, positions: int) -> Shape:
    """GPT as OpenAI and Megatron have it: LayerNorm, biases, learned positions, a tied head, dropout.

    Those of transformers, which are called `gpt2`, have a GELU of single operations.
    """
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, vocabulary, tied=True, **BIASES, **PLAIN,
        dropout=True, positions=positions, longest=positions, composed=name.startswith("gpt2"), family="gpt2",
    )  # fmt: skip


def _bert(name: str, h: int, layers: int, heads: int, vocabulary: int = 30522) -> Shape:
    """An encoder with the head that fills in masked words, as it is trained."""
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, vocabulary, tied=True, **BIASES, **PLAIN,
        dropout=True, positions=512, longest=512, causal=False, segments=2, embedding_norm=True,
        final_norms=0, transform=True, family="bert",
    )  # fmt: skip


def _opt(name: str, h: int, layers: int, heads: int) -> Shape:
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, 50272, tied=True, **BIASES, **PLAIN, relu=True,
        dropout=True, positions=2050, longest=2048, family="opt",
    )  # fmt: skip


def _neox(name: str, h: int, layers: int, heads: int, vocabulary: int) -> Shape:
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, vocabulary, **BIASES, **PLAIN, parallel=True,
        longest=2048, family="gpt_neox",
    )  # fmt: skip


def _falcon(name: str, h: int, layers: int, heads: int, kv: int, norms: int) -> Shape:
    return Shape(
        name, h, 4 * h, layers, heads, kv, 64, 65024, tied=True, **PLAIN, parallel=True, norms=norms,
        longest=2048, family="falcon",
    )  # fmt: skip


def _gpt_oss(name: str, layers: int, experts: int) -> Shape:
    """Every second layer sees everything, the others 128 tokens."""
    return Shape(
        name, 2880, 2880, layers, 64, 8, 64, 201088, attention_bias=True, output_bias=True, sinks=True,
        experts=experts, experts_per_token=4, expert_width=2880, router_bias=True, expert_bias=True,
        longest=131072, window=128, unwindowed=whole_every(2, layers), family="gpt_oss",
    )  # fmt: skip


def _llama4(name: str, experts: int, every: int, longest: int) -> Shape:
    """The text part: three of four layers see a chunk of 8,192 tokens."""
    return Shape(
        name, 5120, 16384, 48, 40, 8, 128, 202048, experts=experts, experts_per_token=1, expert_width=8192,
        shared_width=8192, expert_every=every, longest=longest, window=8192, chunked=True,
        unwindowed=whole_every(4, 48), family="llama4_text",
    )  # fmt: skip


def _t5(name: str, h: int, f: int, layers: int, heads: int, size: int, *, gated: bool) -> Shape:
    """`layers` of an encoder and as many of a decoder; version 1.1 has a gate and a head of its own."""
    return Shape(
        name, h, f, 2 * layers, heads, heads, size, 32128, tied=not gated, gated=gated, dropout=True,
        encoder_layers=layers, buckets=32, final_norms=2, longest=512, family="t5",
    )  # fmt: skip


def _vit(name: str, h: int, layers: int, heads: int, patch: int, image: int) -> Shape:
    """Vision Transformer: an encoder over patches of an image, and a head for 1,000 classes."""
    tokens = (image // patch) ** 2 + 1
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, 1000, attention_bias=True, output_bias=True,
        gated=False, layer_norm=True, mlp_bias=True, positions=tokens, longest=tokens, causal=False,
        patch=3 * patch * patch, family="vit",
    )  # fmt: skip


def _gemma(name: str, h: int, f: int, layers: int, heads: int, kv: int, size: int, **more: Any) -> Shape:
    vocabulary = int(more.pop("vocabulary", 256000))
    if every := int(more.pop("whole_every", 0)):
        more["unwindowed"] = whole_every(every, layers)
    family = {2: "gemma", 4: "gemma3_text" if more.get("query_key_norm") else "gemma2"}[more.get("norms", 2)]
    return Shape(name, h, f, layers, heads, kv, size, vocabulary, tied=True, family=family, **more)


def _gemma3(
    name: str, h: int, f: int, layers: int, heads: int, kv: int, size: int, vocabulary: int, **more: Any
) -> Shape:
    """The text part: every sixth layer sees everything, the others a window."""
    usual = {"norms": 4, "query_key_norm": True, "whole_every": 6, "window": 1024, "longest": 131072}
    return _gemma(name, h, f, layers, heads, kv, size, vocabulary=vocabulary, **(usual | more))


def _llama(
    name: str, h: int, f: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> Shape:
    size = int(more.pop("head_size", h // heads))
    return Shape(name, h, f, layers, heads, kv, size, vocabulary, **more)


def _qwen2(name: str, h: int, f: int, layers: int, heads: int, kv: int, vocabulary: int, tied: bool) -> Shape:
    return _llama(name, h, f, layers, heads, kv, vocabulary, tied=tied, attention_bias=True, family="qwen2")


def _qwen3(name: str, h: int, f: int, layers: int, heads: int, kv: int, **more: Any) -> Shape:
    family = "qwen3_moe" if more.get("experts") else "qwen3"
    usual = {"head_size": 128, "query_key_norm": True, "family": family}
    return _llama(name, h, f, layers, heads, kv, 151936, **usual, **more)


def _mixtral(name: str, h: int, f: int, layers: int, heads: int, vocabulary: int) -> Shape:
    experts = {"experts": 8, "experts_per_token": 2, "expert_width": f, "family": "mixtral"}
    return _llama(name, h, f, layers, heads, 8, vocabulary, **experts)


def _deepseek(name: str, h: int, f: int, layers: int, heads: int, vocabulary: int, **more: Any) -> Shape:
    family = "deepseek_v3" if name.endswith("v3") else "deepseek_v2"
    return Shape(name, h, f, layers, heads, heads, 128, vocabulary, family=family, **more)


# Tokens of the longest sequence, as the model cards say.
LONGEST = {
    **dict.fromkeys(("llama-2-7b", "llama-2-13b", "llama-2-70b"), 4096),
    **dict.fromkeys(("llama-3-8b", "llama-3-70b"), 8192),
    **dict.fromkeys(
        (
            "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b",
            "llama-3.3-70b",
        ),
        131072,
    ),
    "mistral-7b": 32768,
    "mixtral-8x7b": 32768,
    "mixtral-8x22b": 65536,
    **dict.fromkeys(("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b"), 32768),
    **dict.fromkeys(("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b"), 131072),
    **dict.fromkeys(("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"), 40960),
    **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b-a22b"), 40960),
    **dict.fromkeys(("deepseek-llm-7b", "deepseek-llm-67b"), 4096),
    "deepseek-v2-lite": 163840,
    "deepseek-v3": 163840,
}  # fmt: skip

ALTERNATING: dict[str, int] = {"window": 4096, "whole_every": 2}  # layers of Gemma 2

KNOWN = {
    shape.name: replace(shape, longest=LONGEST.get(shape.name, shape.longest))
    for shape in (
        _gpt("gpt2", 768, 12, 12, 50257, 1024),
        _gpt("gpt2-medium", 1024, 24, 16, 50257, 1024),
        _gpt("gpt2-large", 1280, 36, 20, 50257, 1024),
        _gpt("gpt2-xl", 1600, 48, 25, 50257, 1024),
        _gpt("gpt-22b", 6144, 48, 64, 51200, 2048),
        _gpt("gpt-175b", 12288, 96, 96, 51200, 2048),
        _gpt("gpt-530b", 20480, 105, 128, 51200, 2048),
        _gpt("gpt-1t", 25600, 128, 160, 51200, 2048),
        _t5("t5-small", 512, 2048, 6, 8, 64, gated=False),
        _t5("t5-base", 768, 3072, 12, 12, 64, gated=False),
        _t5("t5-large", 1024, 4096, 24, 16, 64, gated=False),
        _t5("flan-t5-xl", 2048, 5120, 24, 32, 64, gated=True),
        _t5("flan-t5-xxl", 4096, 10240, 24, 64, 64, gated=True),
        _bert("bert-base", 768, 12, 12),
        _bert("bert-large", 1024, 24, 16),
        _opt("opt-125m", 768, 12, 12),
        _opt("opt-1.3b", 2048, 24, 32),
        _opt("opt-2.7b", 2560, 32, 32),
        _opt("opt-6.7b", 4096, 32, 32),
        _opt("opt-13b", 5120, 40, 40),
        _opt("opt-30b", 7168, 48, 56),
        _opt("opt-66b", 9216, 64, 72),
        _neox("gpt-neox-20b", 6144, 44, 64, 50432),
        _neox("pythia-1.4b", 2048, 24, 16, 50304),
        _neox("pythia-2.8b", 2560, 32, 32, 50304),
        _neox("pythia-6.9b", 4096, 32, 32, 50432),
        _neox("pythia-12b", 5120, 36, 40, 50688),
        _falcon("falcon-7b", 4544, 32, 71, 1, 1),
        _falcon("falcon-40b", 8192, 60, 128, 8, 2),
        _gpt_oss("gpt-oss-20b", 24, 32),
        _gpt_oss("gpt-oss-120b", 36, 128),
        _llama4("llama-4-scout", 16, 1, 10485760),
        _llama4("llama-4-maverick", 128, 2, 1048576),
        _vit("vit-base", 768, 12, 12, 16, 224),
        _vit("vit-large", 1024, 24, 16, 16, 224),
        _vit("vit-huge", 1280, 32, 16, 14, 224),
        _gemma("gemma-2b", 2048, 16384, 18, 8, 1, 256, longest=8192),
        _gemma("gemma-7b", 3072, 24576, 28, 16, 16, 256, longest=8192),
        _gemma("gemma-2-2b", 2304, 9216, 26, 8, 4, 256, norms=4, longest=8192, **ALTERNATING),
        _gemma("gemma-2-9b", 3584, 14336, 42, 16, 8, 256, norms=4, longest=8192, **ALTERNATING),
        _gemma("gemma-2-27b", 4608, 36864, 46, 32, 16, 128, norms=4, longest=8192, **ALTERNATING),
        _gemma3("gemma-3-1b", 1152, 6912, 26, 4, 1, 256, 262144, longest=32768, window=512),
        _gemma3("gemma-3-4b", 2560, 10240, 34, 8, 4, 256, 262208),
        _gemma3("gemma-3-12b", 3840, 15360, 48, 16, 8, 256, 262208),
        _gemma3("gemma-3-27b", 5376, 21504, 62, 32, 16, 128, 262208),
        _llama("llama-2-7b", 4096, 11008, 32, 32, 32, 32000),
        _llama("llama-2-13b", 5120, 13824, 40, 40, 40, 32000),
        _llama("llama-2-70b", 8192, 28672, 80, 64, 8, 32000),
        _llama("llama-3-8b", 4096, 14336, 32, 32, 8, 128256),
        _llama("llama-3-70b", 8192, 28672, 80, 64, 8, 128256),
        _llama("llama-3.1-8b", 4096, 14336, 32, 32, 8, 128256),
        _llama("llama-3.1-70b", 8192, 28672, 80, 64, 8, 128256),
        _llama("llama-3.1-405b", 16384, 53248, 126, 128, 8, 128256),
        _llama("llama-3.2-1b", 2048, 8192, 16, 32, 8, 128256, tied=True),
        _llama("llama-3.2-3b", 3072, 8192, 28, 24, 8, 128256, tied=True),
        _llama("llama-3.3-70b", 8192, 28672, 80, 64, 8, 128256),
        _llama("mistral-7b", 4096, 14336, 32, 32, 8, 32000, family="mistral"),
        _mixtral("mixtral-8x7b", 4096, 14336, 32, 32, 32000),
        _mixtral("mixtral-8x22b", 6144, 16384, 56, 48, 32000),
        _qwen2("qwen2.5-0.5b", 896, 4864, 24, 14, 2, 151936, True),
        _qwen2("qwen2.5-1.5b", 1536, 8960, 28, 12, 2, 151936, True),
        _qwen2("qwen2.5-3b", 2048, 11008, 36, 16, 2, 151936, True),
        _qwen2("qwen2.5-7b", 3584, 18944, 28, 28, 4, 152064, False),
        _qwen2("qwen2.5-14b", 5120, 13824, 48, 40, 8, 152064, False),
        _qwen2("qwen2.5-32b", 5120, 27648, 64, 40, 8, 152064, False),
        _qwen2("qwen2.5-72b", 8192, 29568, 80, 64, 8, 152064, False),
        _qwen3("qwen3-0.6b", 1024, 3072, 28, 16, 8, tied=True),
        _qwen3("qwen3-1.7b", 2048, 6144, 28, 16, 8, tied=True),
        _qwen3("qwen3-4b", 2560, 9728, 36, 32, 8, tied=True),
        _qwen3("qwen3-8b", 4096, 12288, 36, 32, 8),
        _qwen3("qwen3-14b", 5120, 17408, 40, 40, 8),
        _qwen3("qwen3-32b", 5120, 25600, 64, 64, 8),
        _qwen3("qwen3-30b-a3b", 2048, 6144, 48, 32, 4, experts=128, experts_per_token=8, expert_width=768),
        _qwen3(
            "qwen3-235b-a22b", 4096, 12288, 94, 64, 4, experts=128, experts_per_token=8, expert_width=1536
        ),
        _llama("deepseek-llm-7b", 4096, 11008, 30, 32, 32, 102400),
        _llama("deepseek-llm-67b", 8192, 22016, 95, 64, 8, 102400),
        _deepseek(
            "deepseek-v2-lite",
            2048,
            10944,
            27,
            16,
            102400,
            experts=64,
            experts_per_token=6,
            expert_width=1408,
            shared_width=2816,
            dense_layers=1,
            latent=Latent(0, 512, 128, 64, 128),
        ),
        _deepseek(
            "deepseek-v3",
            7168,
            18432,
            61,
            128,
            129280,
            experts=256,
            experts_per_token=8,
            expert_width=2048,
            shared_width=2048,
            dense_layers=3,
            latent=Latent(1536, 512, 128, 64, 128),
            expert_nodes=4,
            ahead=1,
        ),
    )
}

_ENDINGS = r"-(hf|instruct|chat|base|it|uncased|17b-16e|17b-128e|v\d(\.\d)?|\d{4})$"


def named(name: str) -> Shape:
    """The model called `name`, or that of a `config.json` or of the folder it lies in."""
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.is_file() or path.suffix == ".json":
        try:
            name = path.parent.name if path.name == "config.json" else path.stem
            return from_config(path.read_bytes(), name or path.stem)
        except OSError as error:
            raise Unreadable(path, error) from error
    short = name.rpartition("/")[2].lower().removeprefix("meta-").replace("_", "-")
    while short not in KNOWN and (shorter := re.sub(_ENDINGS, "", short)) != short:
        short = shorter
    if short not in KNOWN:
        raise NoSuchModel(name, KNOWN)
    return KNOWN[short]
