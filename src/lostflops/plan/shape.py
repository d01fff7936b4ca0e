"""A decoder's dimensions, and from them every weight it has, counted exactly.

Known by name, or read from the `config.json` of a Hugging Face model. Counts are exact, never nominal:
Llama-2-70B is 68,976,648,192 parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """A decoder's dimensions. `feed_forward` is the width of dense layers, `expert_width` of an expert."""

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

    def layer(self, number: int) -> tuple[Weight, ...]:
        """The weights of one layer."""
        mixer = _mlp(self.feed_forward, self.hidden) if self.is_dense(number) else _mixture(self)
        norms = (Weight("input_norm", self.hidden), Weight("post_attention_norm", self.hidden))
        return (*_attention(self), *mixer, *norms)

    def before(self) -> tuple[Weight, ...]:
        """What stands before the first layer."""
        return (Weight("embedding", self.vocabulary, self.hidden, "outputs"),)

    def after(self) -> tuple[Weight, ...]:
        """What stands behind the last layer; a tied head is the embedding and no weight of its own."""
        head = () if self.tied else (Weight("head", self.vocabulary, self.hidden, "outputs"),)
        return (Weight("final_norm", self.hidden), *head)

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


KNOWN = {
    shape.name: shape
    for shape in (
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
        config = msgspec.json.decode(content, type=Config)
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
    return Shape(
        name=name,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=kv,
        head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
        attention_bias=config.attention_bias or kind in ("qwen2", "qwen2_moe"),
        output_bias=config.attention_bias and kind == "llama",
        query_key_norm=kind in ("qwen3", "qwen3_moe"),
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
