"""A transformer's dimensions, and from them every weight it has, counted exactly.

Known by name, or read from the `config.json` of a Hugging Face model. Counts are exact, never nominal:
Llama-2-70B is 68,976,648,192 parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

Split = Literal["outputs", "inputs", "whole"]

# What families that are no Llama have in common: biases of all matrices; norms and feed-forward as GPT's.
BIASES: dict[str, Any] = {"attention_bias": True, "output_bias": True, "mlp_bias": True}
PLAIN: dict[str, Any] = {"gated": False, "layer_norm": True}


def whole_every(every: int, layers: int) -> tuple[int, ...]:
    """Layers that see everything, where all others have a window: the last of each `every`."""
    return tuple(range(every - 1, layers, every))


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
    expert_every: int = 1  # behind those, the last of each so many layers has experts
    expert_bias: bool = False
    router_bias: bool = False
    latent: Latent | None = None
    expert_nodes: int = 0  # at most so many nodes hold a token's experts; 0 where nothing limits it
    gated: bool = True  # a gate beside the feed-forward's first matrix
    layer_norm: bool = False  # norms with mean and bias
    mlp_bias: bool = False
    composed: bool = False  # a GELU of single operations, each of which saves what it reads
    relu: bool = False  # in place of GELU: its result is all that it saves
    dropout: bool = False  # behind attention and feed-forward, as GPT was trained
    norms: int = 2  # of a layer's hidden states
    parallel: bool = False  # attention and feed-forward read the same hidden states
    sinks: bool = False  # a number per head, which takes a share of attention from all tokens
    positions: int = 0  # learned position embeddings
    segments: int = 0  # learned embeddings of the part of a text that a token is in
    embedding_norm: bool = False  # behind the embeddings
    transform: bool = False  # a matrix and a norm before the head, and a bias in it
    longest: int = 0  # tokens that the model was made for; 0 where nobody says
    encoder_layers: int = 0  # of an encoder and decoder
    causal: bool = True
    patch: int = 0  # of an image: numbers in a patch, which the embedding multiplies
    buckets: int = 0  # of relative positions, per head, in the first layer of each stack
    final_norms: int = 1
    window: int = 0  # tokens back that a layer's attention sees; 0 where all layers see all of them
    chunked: bool = False  # windows do not move along: a token sees its own, from where that begins
    unwindowed: tuple[int, ...] = ()  # of a model with a window: layers that see everything
    ahead: int = 0  # tokens beyond the next that training predicts, each with a layer and a pass of the head
    family: str = "llama"  # `model_type` of the configuration: how transformers names its modules

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
        behind = layer + 1 - self.dense_layers
        return not self.experts or behind <= 0 or behind % self.expert_every != 0

    def crosses(self, layer: int) -> bool:
        """Whether a layer reads an encoder's states."""
        return 0 < self.encoder_layers <= layer

    @property
    def caching(self) -> int:
        """How many layers cache keys and values: a decoder's, which caches an encoder's tokens across."""
        return self.layers - self.encoder_layers if self.causal else 0

    @property
    def windowed(self) -> int:
        """How many layers see a window only."""
        return self.layers - len(self.unwindowed) if self.window else 0

    def seen(self, tokens: int) -> int:
        """How many of the last `tokens` the attention of all layers sees at most, added up over layers."""
        near = min(tokens, self.window or tokens)
        return near * self.layers + (tokens - near) * len(self.unwindowed)

    def like(self, layer: int) -> int:
        """The first layer or the last, whichever has the weights of this one: there are two kinds at most."""
        first = self.is_dense(layer) and not self.crosses(layer)
        return 0 if first else self.layers - 1

    def kinds(self, layers: range) -> Mapping[int, int]:
        """The kinds among some layers, by what each is `like`, and how many of each there are."""
        return _kinds(self, layers)

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
        if self.segments:
            first += (Weight("segments", self.segments, self.hidden),)
        if self.embedding_norm:
            first += (*_norms("embedding_norm", self, 1),)
        if self.buckets:
            stacks = 1 + (self.encoder_layers > 0)
            first += (Weight("relative_positions", self.buckets, self.heads, copies=stacks),)
        return first

    def after(self) -> tuple[Weight, ...]:
        """What stands behind the last layer; a tied head is the embedding and no weight of its own."""
        found = [*_norms("final_norm", self, self.final_norms)]
        if self.transform:
            found += [Weight("transform", self.hidden, self.hidden), Weight("transform.bias", self.hidden)]
            found += _norms("transform_norm", self, 1)
        if not self.tied:
            found.append(Weight("head", self.vocabulary, self.hidden, "outputs"))
        if self.patch or self.transform:
            found.append(Weight("head.bias", self.vocabulary))
        return tuple(found)

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


@lru_cache(maxsize=4096)
def _kinds(shape: Shape, layers: range) -> Mapping[int, int]:
    return Counter(sorted(map(shape.like, layers)))


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
    if shape.sinks:
        yield Weight("sinks", shape.heads, 0, "outputs")
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
    else:
        yield Weight("up", f, h, "outputs")
        yield Weight("down", h, f, "inputs")
    if shape.mlp_bias:
        if shape.gated:
            yield Weight("gate.bias", f, 0, "outputs")
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
    if shape.expert_bias:
        for name in ("gate", "up"):
            yield Weight(f"expert.{name}.bias", shape.expert_width, 0, "outputs", shape.experts)
        yield Weight("expert.down.bias", shape.hidden, copies=shape.experts)
    if shape.shared_width:
        yield from _mlp(shape.shared_width, shape.hidden, "shared.")
    if shape.shared_gate:
        yield Weight("shared_gate", 1, shape.hidden)
