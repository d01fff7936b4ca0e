"""A transformer's dimensions, and from them every weight it has, counted exactly.

Known by name, or read from the `config.json` of a Hugging Face model. Counts are exact, never nominal:
Llama-2-70B is 68,976,648,192 parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lostflops.errors import BadModel, NoSuchModel, Unreadable, shown

Split = Literal["outputs", "inputs", "whole"]


@dataclass(frozen=True)
class Weight:
    """`copies` equal matrices of outputs x inputs, or vectors where `inputs` is 0.

    Tensor parallelism cuts along `split`, into `at_most` pieces where that is set: ranks beyond them hold
    a piece twice, as with fewer key-value heads than ranks.
    """

    name: str
    outputs: int
    inputs: int = 0
    split: Split = "whole"
    copies: int = 1
    at_most: int = 0

    @property
    def elements(self) -> int:
        return self.copies * self.outputs * max(self.inputs, 1)

    @property
    def expert(self) -> bool:
        return self.name.startswith("expert.")


@dataclass(frozen=True)
class Latent:
    """Sizes of latent attention (DeepSeek V2 and V3). `query` is 0 where queries are not compressed."""

    query: int
    key_value: int
    plain: int  # of a head's query and key, the part without positions
    rotary: int
    value: int


@dataclass(frozen=True)
class Shape:
    """A transformer's dimensions. `feed_forward` is the width of dense layers, `expert_width` of an expert.

    `layers` counts an encoder's layers too; they come first, and the decoder's behind them read what they
    give by cross attention. An encoder alone is a model that is not `causal`.
    """

    name: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    query_key_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0
    shared_gate: bool = False
    dense_layers: int = 0  # of a mixture of experts: how many layers have none
    router_bias: bool = False
    latent: Latent | None = None
    expert_nodes: int = 0  # at most so many nodes hold a token's experts; 0 where nothing limits it
    gated: bool = True  # a gate beside the feed-forward's first matrix
    layer_norm: bool = False  # norms with mean and bias
    mlp_bias: bool = False
    dropout: bool = False  # behind attention and feed-forward, as GPT was trained
    norms: int = 2  # of a layer's hidden states
    positions: int = 0  # learned position embeddings
    longest: int = 0  # tokens that the model was made for; 0 where nobody says
    encoder_layers: int = 0  # of an encoder and decoder
    causal: bool = True
    patch: int = 0  # of an image: numbers in a patch, which the embedding multiplies
    buckets: int = 0  # of relative positions, per head, in the first layer of each stack
    final_norms: int = 1
    ahead: int = 0  # tokens beyond the next that training predicts, each with a layer and a pass of the head

    @property
    def query_width(self) -> int:
        """What all heads' queries are together, per token."""
        if self.latent:
            return self.heads * (self.latent.plain + self.latent.rotary)
        return self.heads * self.head_size

    @property
    def value_width(self) -> int:
        """What all heads' outputs are together, per token."""
        return self.heads * (self.latent.value if self.latent else self.head_size)

    def is_dense(self, layer: int) -> bool:
        return not self.experts or layer < self.dense_layers

    def crosses(self, layer: int) -> bool:
        """Whether a layer reads an encoder's states."""
        return 0 < self.encoder_layers <= layer

    def like(self, layer: int) -> int:
        """The first layer or the last, whichever has the weights of this one: there are two kinds at most."""
        first = self.is_dense(layer) and not self.crosses(layer)
        return 0 if first else self.layers - 1

    def layer(self, number: int) -> tuple[Weight, ...]:
        """The weights of one layer."""
        mixer = _mlp_of(self) if self.is_dense(number) else _mixture(self)
        attention = [*_attention(self)]
        if self.crosses(number):
            attention += [replace(weight, name=f"cross.{weight.name}") for weight in _attention(self)]
        count = self.norms + self.crosses(number)
        return (*attention, *mixer, *_norms("norm", self, count))

    def before(self) -> tuple[Weight, ...]:
        """What stands before the first layer."""
        if self.patch:
            first = (Weight("embedding", self.hidden, self.patch), Weight("embedding.bias", self.hidden))
            first += (Weight("class_token", self.hidden),)
        else:
            first = (Weight("embedding", self.vocabulary, self.hidden, "outputs"),)
        if self.positions:
            first += (Weight("positions", self.positions, self.hidden),)
        if self.buckets:
            stacks = 1 + (self.encoder_layers > 0)
            first += (Weight("relative_positions", self.buckets, self.heads, copies=stacks),)
        return first

    def after(self) -> tuple[Weight, ...]:
        """What stands behind the last layer; a tied head is the embedding and no weight of its own."""
        norm = _norms("final_norm", self, self.final_norms)
        if self.tied:
            return (*norm,)
        head = (Weight("head", self.vocabulary, self.hidden, "outputs"),)
        return (*norm, *head, *((Weight("head.bias", self.vocabulary),) if self.patch else ()))

    def weights(self) -> Iterator[Weight]:
        """All of them."""
        yield from self.before()
        for number in range(self.layers):
            yield from self.layer(number)
        yield from self.after()

    def parameters(self) -> int:
        """The exact count."""
        return sum(weight.elements for weight in self.weights())

    def active(self, number: int) -> int:
        """Elements of a layer's matrices that one token is multiplied with."""
        return sum(self.reached(weight) for weight in self.layer(number) if weight.inputs)

    def reached(self, weight: Weight) -> int:
        """Elements of a weight that one token reaches: of experts, only those it is given to."""
        return weight.elements * self.experts_per_token // self.experts if weight.expert else weight.elements


def _norms(name: str, shape: Shape, count: int) -> Iterator[Weight]:
    yield Weight(name, shape.hidden, copies=count)
    if shape.layer_norm:
        yield Weight(f"{name}.bias", shape.hidden, copies=count)


def elements(weights: Sequence[Weight]) -> int:
    """How many numbers they hold."""
    return sum(weight.elements for weight in weights)


def _attention(shape: Shape) -> Iterator[Weight]:
    h = shape.hidden
    if shape.latent:
        yield from _latent_attention(shape, shape.latent)
        return
    q, kv = shape.query_width, shape.kv_heads * shape.head_size
    for name, width, pieces in (("q", q, 0), ("k", kv, shape.kv_heads), ("v", kv, shape.kv_heads)):
        yield Weight(name, width, h, "outputs", at_most=pieces)
        if shape.attention_bias:
            yield Weight(f"{name}.bias", width, 0, "outputs", at_most=pieces)
    yield Weight("o", h, q, "inputs")
    if shape.output_bias:
        yield Weight("o.bias", h)
    if shape.query_key_norm:
        yield Weight("q_norm", shape.head_size)
        yield Weight("k_norm", shape.head_size)


def _latent_attention(shape: Shape, latent: Latent) -> Iterator[Weight]:
    h, queries = shape.hidden, shape.query_width
    if latent.query:
        yield Weight("q_a", latent.query, h)
        yield Weight("q_a_norm", latent.query)
        yield Weight("q_b", queries, latent.query, "outputs")
    else:
        yield Weight("q", queries, h, "outputs")
    yield Weight("kv_a", latent.key_value + latent.rotary, h)
    yield Weight("kv_a_norm", latent.key_value)
    yield Weight("kv_b", shape.heads * (latent.plain + latent.value), latent.key_value, "outputs")
    yield Weight("o", h, shape.value_width, "inputs")


def _mlp_of(shape: Shape) -> Iterator[Weight]:
    h, f = shape.hidden, shape.feed_forward
    if shape.gated:
        yield from _mlp(f, h)
        return
    yield Weight("up", f, h, "outputs")
    yield Weight("down", h, f, "inputs")
    if shape.mlp_bias:
        yield Weight("up.bias", f, 0, "outputs")
        yield Weight("down.bias", h)


def _mlp(width: int, hidden: int, prefix: str = "", copies: int = 1) -> Iterator[Weight]:
    yield Weight(f"{prefix}gate", width, hidden, "outputs", copies)
    yield Weight(f"{prefix}up", width, hidden, "outputs", copies)
    yield Weight(f"{prefix}down", hidden, width, "inputs", copies)


def _mixture(shape: Shape) -> Iterator[Weight]:
    yield Weight("router", shape.experts, shape.hidden)
    if shape.router_bias:
        yield Weight("router.bias", shape.experts)
    yield from _mlp(shape.expert_width, shape.hidden, "expert.", shape.experts)
    if shape.shared_width:
        yield from _mlp(shape.shared_width, shape.hidden, "shared.")
    if shape.shared_gate:
        yield Weight("shared_gate", 1, shape.hidden)


def _gpt(name: str, h: int, layers: int, heads: int, vocabulary: int, positions: int) -> Shape:
    """GPT as OpenAI and Megatron have it: LayerNorm, biases, learned positions, a tied head, dropout."""
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, vocabulary, tied=True, attention_bias=True,
        output_bias=True, gated=False, layer_norm=True, mlp_bias=True, dropout=True, positions=positions,
        longest=positions,
    )  # fmt: skip


def _t5(name: str, h: int, f: int, layers: int, heads: int, size: int, *, gated: bool) -> Shape:
    """`layers` of an encoder and as many of a decoder; version 1.1 has a gate and a head of its own."""
    return Shape(
        name, h, f, 2 * layers, heads, heads, size, 32128, tied=not gated, gated=gated, dropout=True,
        encoder_layers=layers, buckets=32, final_norms=2, longest=512,
    )  # fmt: skip


def _vit(name: str, h: int, layers: int, heads: int, patch: int, image: int) -> Shape:
    """Vision Transformer: an encoder over patches of an image, and a head for 1,000 classes."""
    tokens = (image // patch) ** 2 + 1
    return Shape(
        name, h, 4 * h, layers, heads, heads, h // heads, 1000, attention_bias=True, output_bias=True,
        gated=False, layer_norm=True, mlp_bias=True, positions=tokens, longest=tokens, causal=False,
        patch=3 * patch * patch,
    )  # fmt: skip


def _gemma(name: str, h: int, f: int, layers: int, heads: int, kv: int, size: int, **more: Any) -> Shape:
    vocabulary = int(more.pop("vocabulary", 256000))
    return Shape(name, h, f, layers, heads, kv, size, vocabulary, tied=True, **more)


def _llama(
    name: str, h: int, f: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> Shape:
    size = int(more.pop("head_size", h // heads))
    return Shape(name, h, f, layers, heads, kv, size, vocabulary, **more)


def _qwen2(name: str, h: int, f: int, layers: int, heads: int, kv: int, vocabulary: int, tied: bool) -> Shape:
    return _llama(name, h, f, layers, heads, kv, vocabulary, tied=tied, attention_bias=True)


def _qwen3(name: str, h: int, f: int, layers: int, heads: int, kv: int, **more: Any) -> Shape:
    return _llama(name, h, f, layers, heads, kv, 151936, head_size=128, query_key_norm=True, **more)


def _mixtral(name: str, h: int, f: int, layers: int, heads: int, vocabulary: int) -> Shape:
    experts = {"experts": 8, "experts_per_token": 2, "expert_width": f}
    return _llama(name, h, f, layers, heads, 8, vocabulary, **experts)


def _deepseek(name: str, h: int, f: int, layers: int, heads: int, vocabulary: int, **more: Any) -> Shape:
    return Shape(name, h, f, layers, heads, heads, 128, vocabulary, **more)


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
        _vit("vit-base", 768, 12, 12, 16, 224),
        _vit("vit-large", 1024, 24, 16, 16, 224),
        _vit("vit-huge", 1280, 32, 16, 14, 224),
        _gemma("gemma-2b", 2048, 16384, 18, 8, 1, 256, longest=8192),
        _gemma("gemma-7b", 3072, 24576, 28, 16, 16, 256, longest=8192),
        _gemma("gemma-2-2b", 2304, 9216, 26, 8, 4, 256, norms=4, longest=8192),
        _gemma("gemma-2-9b", 3584, 14336, 42, 16, 8, 256, norms=4, longest=8192),
        _gemma("gemma-2-27b", 4608, 36864, 46, 32, 16, 128, norms=4, longest=8192),
        _gemma(
            "gemma-3-1b",
            1152,
            6912,
            26,
            4,
            1,
            256,
            norms=4,
            query_key_norm=True,
            vocabulary=262144,
            longest=32768,
        ),
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
        _llama("mistral-7b", 4096, 14336, 32, 32, 8, 32000),
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
            router_bias=True,
            latent=Latent(1536, 512, 128, 64, 128),
            expert_nodes=4,
            ahead=1,
        ),
    )
}

FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "t5",
    "vit",
)
_ENDINGS = r"-(hf|instruct|chat|base|it|v\d(\.\d)?|\d{4})$"

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Perhaps = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class Config(msgspec.Struct):
    """What is read of a `config.json`; the rest of it does not change memory or time."""

    model_type: str
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    num_local_experts: Perhaps | None = None
    num_experts: Perhaps | None = None
    n_routed_experts: Perhaps | None = None
    num_experts_per_tok: Perhaps | None = None
    moe_intermediate_size: Perhaps | None = None
    shared_expert_intermediate_size: Perhaps | None = None
    n_shared_experts: Perhaps | None = None
    first_k_dense_replace: Perhaps | None = None
    decoder_sparse_step: Perhaps | None = None
    mlp_only_layers: list[Perhaps] | None = None
    moe_layer_freq: Perhaps | None = None
    q_lora_rank: Perhaps | None = None
    kv_lora_rank: Perhaps | None = None
    qk_nope_head_dim: Perhaps | None = None
    qk_rope_head_dim: Perhaps | None = None
    v_head_dim: Perhaps | None = None
    topk_group: Perhaps | None = None
    num_nextn_predict_layers: Perhaps | None = None
    max_position_embeddings: Perhaps | None = None
    num_decoder_layers: Perhaps | None = None
    feed_forward_proj: str = "relu"
    relative_attention_num_buckets: Perhaps = 32
    image_size: Count = 224
    patch_size: Count = 16
    num_channels: Count = 3
    qkv_bias: bool = True
    id2label: dict[str, Any] | None = None


# What the families call the fields of `Config`, and what their configurations leave out.
ALIASES = {
    "gpt2": {
        "n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
    },
    "t5": {
        "d_model": "hidden_size", "d_ff": "intermediate_size", "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "d_kv": "head_dim", "n_positions": "max_position_embeddings",
    },
}  # fmt: skip
TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "t5")  # unless the configuration says otherwise


def _known_names(written: dict[str, Any]) -> dict[str, Any]:
    kind = written.get("model_type")
    aliases = ALIASES.get(kind, {}) if isinstance(kind, str) else {}
    found = {aliases.get(name, name): value for name, value in written.items()}
    if kind in TIED:
        found.setdefault("tie_word_embeddings", True)
    if kind == "gpt2" and isinstance(found.get("hidden_size"), int):
        found["intermediate_size"] = found.get("intermediate_size") or 4 * found["hidden_size"]
    if kind == "t5" and found.get("num_hidden_layers") is not None:
        found["num_decoder_layers"] = found.get("num_decoder_layers") or found["num_hidden_layers"]
    if kind == "vit":
        found["vocab_size"] = len(found.get("id2label") or "no") or 2
    return found


def named(name: str) -> Shape:
    """The model called `name`, or that of a `config.json` or of the folder it lies in."""
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.is_file() or path.suffix == ".json":
        try:
            return from_config(path.read_bytes(), path.parent.name or path.stem)
        except OSError as error:
            raise Unreadable(path, error) from error
    short = name.rpartition("/")[2].lower().removeprefix("meta-").replace("_", "-")
    while short not in KNOWN and (shorter := re.sub(_ENDINGS, "", short)) != short:
        short = shorter
    if short not in KNOWN:
        raise NoSuchModel(name, KNOWN)
    return KNOWN[short]


def from_config(content: bytes, name: str) -> Shape:
    """The model that a Hugging Face `config.json` describes."""
    try:
        config = msgspec.convert(_known_names(msgspec.json.decode(content, type=dict[str, Any])), Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadModel(name, str(error)) from error
    kind = config.model_type
    if kind not in FAMILIES:
        raise BadModel(name, f"its model_type is '{shown(kind)}', and this knows {', '.join(FAMILIES)}")
    if config.head_dim is None and config.kv_lora_rank is None:
        _divides(name, "num_attention_heads", config.num_attention_heads, "hidden_size", config.hidden_size)
    kv = config.num_key_value_heads or config.num_attention_heads
    _divides(name, "num_key_value_heads", kv, "num_attention_heads", config.num_attention_heads)
    if config.mlp_only_layers or (config.decoder_sparse_step or 1) != 1 or (config.moe_layer_freq or 1) != 1:
        raise BadModel(name, "its expert layers are not all the layers behind the first dense ones")
    return _shape(config, kind, name, kv)


def _as_gpt(config: Config, kind: str, name: str) -> Shape:
    """GPT-2, and ViT, whose layers are the same."""
    vit = kind == "vit"
    tokens = (config.image_size // config.patch_size) ** 2 + 1 if vit else config.max_position_embeddings
    return Shape(
        name=name,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings and not vit,
        attention_bias=config.qkv_bias or not vit,
        output_bias=True,
        gated=False,
        layer_norm=True,
        mlp_bias=True,
        dropout=not vit,
        positions=tokens or 1024,
        longest=tokens or 1024,
        causal=not vit,
        patch=config.num_channels * config.patch_size**2 if vit else 0,
    )


def _divides(name: str, a: str, few: int, b: str, many: int) -> None:
    if many % few:
        raise BadModel(name, f"its {b} ({many}) is not divisible by its {a} ({few})")


def _shape(config: Config, kind: str, name: str, kv: int) -> Shape:
    experts = config.n_routed_experts or config.num_experts or config.num_local_experts or 0
    width = config.moe_intermediate_size or config.intermediate_size
    per_token = config.num_experts_per_tok or 0
    if experts and not 1 <= per_token <= experts:
        raise BadModel(name, f"it has {experts} experts and gives each token to {per_token}")
    latent = None
    if kind in ("deepseek_v2", "deepseek_v3"):
        sizes = (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)
        if not all(sizes):
            raise BadModel(
                name, "its kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim or v_head_dim is absent"
            )
        latent = Latent(config.q_lora_rank or 0, *(size or 0 for size in sizes))
    if kind in ("gpt2", "vit"):
        return _as_gpt(config, kind, name)
    decoder = config.num_decoder_layers or 0
    return Shape(
        name=name,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        layers=config.num_hidden_layers + (decoder if kind == "t5" else 0),
        heads=config.num_attention_heads,
        kv_heads=kv,
        head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
        attention_bias=config.attention_bias or kind in ("qwen2", "qwen2_moe"),
        output_bias=config.attention_bias and kind == "llama",
        query_key_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        norms=4 if kind in ("gemma2", "gemma3_text") else 2,
        gated=kind != "t5" or config.feed_forward_proj.startswith("gated"),
        dropout=kind == "t5",
        encoder_layers=config.num_hidden_layers if kind == "t5" else 0,
        buckets=config.relative_attention_num_buckets if kind == "t5" else 0,
        final_norms=2 if kind == "t5" else 1,
        longest=config.max_position_embeddings or 0,
        expert_nodes=(config.topk_group or 0) if kind == "deepseek_v3" else 0,
        ahead=(config.num_nextn_predict_layers or 0) if kind == "deepseek_v3" else 0,
        experts=experts,
        experts_per_token=per_token if experts else 0,
        expert_width=width if experts else 0,
        shared_width=(config.n_shared_experts or 0) * width
        if config.n_shared_experts
        else config.shared_expert_intermediate_size or 0,
        shared_gate=kind == "qwen2_moe",
        dense_layers=min(config.first_k_dense_replace or 0, config.num_hidden_layers) if experts else 0,
        router_bias=kind == "deepseek_v3" and experts > 0,
        latent=latent,
    )
