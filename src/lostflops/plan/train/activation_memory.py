"""What the forward pass keeps for the backward, per layer and for the head: exact for Llama-type layers.

The closed form of an eager 16-bit layer with flash attention and no mask is compared with what autograd
saves, storage by storage and byte for byte, also of transformers' own layers. Experts are within a few
percent of that. Everything is bytes per token first: a token of a 16-bit hidden state is 2 x hidden.

Fused kernels, as `torch.compile` makes them and Megatron has them, keep the inputs of norms in 16 bits and
no product of an activation that they can compute again. A GPT layer of fused kernels is Korthikanti's: 34
bytes per token and width, and 5 per token, token and head where scores are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lostflops.plan.modules import modules
from lostflops.plan.shape import Latent, Shape, Weight

from .layout import Layout
from .static_memory import Lora, MemoryPart

Checkpointing = Literal["none", "alternate", "selective", "full"]
CHECKPOINTINGS: tuple[Checkpointing, ...] = get_args(Checkpointing)

LOGITS_PEAK = 14  # bytes per token and word: 16-bit logits, their fp32 copy, log-softmax, and its gradient
# Under PyTorch's loss_parallel: 16-bit logits, and in fp32 their log-softmax, the loss's gradient, the
# exponential, and the sum of the two.
LOSS_PARALLEL_PEAK = 18
LOGITS_SAVED = 4
LOSS_SLICE = 1024  # tokens whose logits a fused loss makes at a time


@dataclass(frozen=True)
class Kernels:
    """How a layer is executed: with `fused` kernels or eagerly, and whether attention's `scores` are kept."""

    fused: bool = False
    scores: int = 0  # tokens of a sequence, where attention keeps scores; 0 is flash attention
    wide_scores: bool = (
        False  # scores, queries, keys and values in fp32: PyTorch's attention without a kernel
    )
    every_expert: bool = False  # each token goes through all experts, whatever the router says
    sequences: int = 1  # of a microbatch
    biased: int = 0  # tokens of a sequence, where a kernel is given T5's position biases for each two

    def run(self, shape: Shape) -> Shape:
        """The model with as many experts per token as compute it."""
        return replace(shape, experts_per_token=shape.experts) if self.every_expert else shape


EAGER = Kernels()

# Of eager layers as transformers has them. Values that are a view of one product with queries and keys keep
# all of it. Where a head's rotary part is joined with its rest, attention's output comes head by head, and
# the projection behind it reads a copy. Gemma's norms scale in fp32.
JOINED = ("phi3", "gpt_neox")
REJOINED = ("phi3", "gpt_neox", "falcon", "deepseek_v2", "deepseek_v3")
WIDE_NORMS = ("gemma", "gemma2", "gemma3_text", "gpt_oss")
MIXED_NORMS = ("t5",)  # which multiply the 16-bit input by fp32 statistics, and so keep it as well
# Bytes that they keep per token, head and token of the sequence, with scores: softmax in fp32 and its result
# in 16 bits, or one of the two; caps on scores 2, dropout 3.
SCORES = {"gemma2": 8, "gpt_oss": 2, "falcon": 2, "llama4_text": 2, "gpt2": 5, "bert": 5, "t5": 5}
USUAL_SCORES = 6
# Which transformers sends through all experts, with a weight of nothing for those not chosen; others, which
# split the model over ranks, do not.
EVERY_EXPERT = ("llama4_text",)
WIDE_ROUTERS = ("deepseek_v2", "deepseek_v3")  # which multiply in fp32


def kernels_of(
    shape: Shape, layout: Layout, sequence: int, *, fused: bool, scores: bool, sequences: int = 1
) -> Kernels:
    """How a job's layers are executed: what is not split over ranks, as transformers does it.

    PyTorch's attention has no kernel for one head of keys that many heads of queries share, as Falcon-7B
    calls it.
    """
    alone = not layout.splits
    shared = shape.family == "falcon" and shape.kv_heads == 1 < shape.heads
    wide = alone and shared and not scores and not fused
    every = alone and shape.family in EVERY_EXPERT
    return Kernels(
        fused,
        sequence if scores or wide else 0,
        wide_scores=wide,
        every_expert=every,
        sequences=sequences,
        biased=sequence if shape.buckets and not scores else 0,
    )


@dataclass(frozen=True)
class SavedTensor:
    """One storage that the backward needs: bytes per token, and whether tensor parallelism splits it."""

    name: str
    per_token: int
    split: bool
    at_most: int = 0  # into so many pieces, where ranks beyond them hold one twice
    gathered: bool = False  # from all tensor ranks, for a product whose weight is split along its outputs


def layer(shape: Shape, number: int, lora: Lora | None = None, kernels: Kernels = EAGER) -> list[SavedTensor]:
    """The storages of one layer."""
    shape = kernels.run(shape)
    mixer = _mixer(shape, number, lora, kernels)
    across = [*_across(shape, lora, kernels)] if shape.crosses(number) else []
    norms, attention = _norms(shape, number, lora, kernels), _attention(shape, lora, kernels)
    return [*norms, *attention, *_biases(shape, number, kernels), *across, *mixer]


def _biases(shape: Shape, number: int, kernels: Kernels) -> Iterator[SavedTensor]:
    """What an attention kernel adds to the scores of T5: each layer gives it a copy, for all sequences one.

    A decoder's is masked by truth values of its own. Attention to the encoder has one of zeros for all.
    """
    if kernels.biased:
        each = 2 * shape.heads * kernels.biased
        yield SavedTensor("position biases", -(-each // kernels.sequences), True)
        if shape.crosses(number):
            yield SavedTensor("mask of position biases", -(-kernels.biased // kernels.sequences), False)


def _norms(shape: Shape, number: int, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    h, count = shape.hidden, shape.norms + shape.crosses(number)
    if kernels.fused or shape.layer_norm:  # one kernel that reads its 16-bit input again
        yield SavedTensor("inputs of the norms", (1 if shape.parallel else count) * 2 * h, False)
        yield SavedTensor("row statistics", count * (8 if shape.layer_norm else 4), False)
        if shape.dropout:
            yield SavedTensor("dropout masks", (2 + shape.crosses(number)) * h, False)
        extra = count - 2  # norms behind attention and feed-forward; the others' results are inputs below
        if extra > 0 and not lora and not kernels.fused:
            yield SavedTensor("normalised hidden states", extra * 2 * h, False)
        return
    yield SavedTensor("fp32 copies of the norms' inputs", count * 4 * h, False)
    if not lora:
        yield SavedTensor("normalised hidden states", count * _scaled(shape) * h, False)
    yield SavedTensor("row statistics", count * 4, False)
    if shape.family in MIXED_NORMS:
        yield SavedTensor("inputs of the norms", count * 2 * h, False)
    if shape.dropout:
        yield SavedTensor("dropout masks", (2 + shape.crosses(number)) * h, False)


def _scaled(shape: Shape) -> int:
    """Bytes of a normalised number as it is scaled, outside of fused kernels."""
    return 4 if shape.family in WIDE_NORMS else 2


def _latent(shape: Shape, latent: Latent, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    """Compressed states are normalised as hidden states are; values are part of what they are expanded to."""
    q, value = shape.query_width, shape.value_width
    if kernels.fused:
        width = 2 * (latent.query + latent.key_value)
        yield SavedTensor("compressed queries, keys and values", width, False)
        yield SavedTensor("keys and values of all heads", 2 * (q + value), True)
        return
    parts = (("q_b", latent.query), ("kv_b", latent.key_value))
    for name, size in parts:
        if size:
            yield SavedTensor(f"fp32 copy of the input of {name}'s norm", (4 if lora else 6) * size, False)
            yield SavedTensor("row statistics", 4, False)
            yield from _inputs(name, 2 * size, (name,), lora, False)
    expanded = shape.heads * latent.plain + value
    yield SavedTensor("keys and values of all heads", 2 * (q + expanded), True)


def _attention(shape: Shape, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    h, q, value = shape.hidden, shape.query_width, shape.value_width
    each = 4 if kernels.wide_scores else 2
    yield from _inputs("q, k, v", 2 * h, ("q", "k", "v", "q_a", "kv_a"), lora, False)
    if shape.latent:
        yield from _latent(shape, shape.latent, lora, kernels)
    else:
        kv = shape.kv_heads * shape.head_size
        if shape.query_key_norm:
            for name, heads, width, pieces in (
                ("queries", shape.heads, q, 0), ("keys", shape.kv_heads, kv, shape.kv_heads)
            ):  # fmt: skip
                yield SavedTensor(f"statistics of {name}", 4 * heads, True, pieces)
                if kernels.fused:
                    yield SavedTensor(f"{name} before their norm", 2 * width, True, pieces)
                else:
                    yield SavedTensor(f"fp32 copies of {name}", 4 * width, True, pieces)
                    if not lora:
                        yield SavedTensor(f"normalised {name}", _scaled(shape) * width, True, pieces)
        if _repeated(shape, kernels):
            yield SavedTensor("keys and values of all heads", 2 * 2 * q, True)
        elif kernels.wide_scores and kernels.sequences > 1:  # of one sequence a view serves all heads
            yield SavedTensor("keys and values of all heads", each * 2 * q, True)
        else:
            yield SavedTensor("keys and values", each * 2 * kv, True, shape.kv_heads)
        if shape.family in JOINED and not kernels.fused and not _repeated(shape, kernels):
            yield SavedTensor("queries and keys before rotation", 2 * (q + kv), True)
    yield SavedTensor("queries", each * q, True)
    alone = kernels.scores > 0 and not kernels.fused  # then only the projection behind it reads its output
    if not alone:
        yield SavedTensor("attention output", 2 * value, True)
    if kernels.scores:
        yield from _scores(shape, kernels)
    else:
        yield SavedTensor("log-sum-exp", 4 * shape.heads, True)
    copied = shape.family in REJOINED and not kernels.fused
    yield from _inputs("o", 2 * value, ("o",), lora, True, saved=not copied and not alone)


def _repeated(shape: Shape, kernels: Kernels) -> bool:
    """Whether each head has keys and values of its own, copies of those of its group."""
    if kernels.fused or kernels.wide_scores or shape.kv_heads == shape.heads:
        return False
    return kernels.scores > 0 or (shape.family == "falcon" and shape.kv_heads > 1)


def _scores(shape: Shape, kernels: Kernels) -> Iterator[SavedTensor]:
    pairs = shape.heads * kernels.scores
    if kernels.wide_scores:
        yield SavedTensor("scores in fp32", 4 * pairs, True)
    elif kernels.fused:
        yield SavedTensor("scores, their dropout and its mask", (5 if shape.dropout else 2) * pairs, True)
    else:
        each = SCORES.get(shape.family, USUAL_SCORES)
        yield SavedTensor("scores and what became of them", each * pairs, True)
        if shape.sinks:
            yield SavedTensor("scores of sinks", each * shape.heads, True)


def _across(shape: Shape, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    """Of attention to an encoder, whose states all layers of a decoder share."""
    for saved in _attention(shape, lora, kernels):
        yield replace(saved, name=f"cross attention's {saved.name}", gathered=False)


def _mixer(shape: Shape, number: int, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    if shape.is_dense(number):
        yield from _mlp(shape, shape.feed_forward, lora, kernels)
        return
    wide = shape.family in WIDE_ROUTERS and not kernels.fused
    if not lora and wide:
        yield SavedTensor("fp32 input of the router", 4 * shape.hidden, False)
    elif not lora and not shape.shared_width:  # a shared expert saves it too
        yield SavedTensor("input of the router", 2 * shape.hidden, False)
    yield SavedTensor("router scores", (2 + 4) * shape.experts, False)
    if shape.shared_width:
        yield from _mlp(shape, shape.shared_width, lora, kernels)
    for saved in _mlp(shape, shape.expert_width, lora, kernels):
        yield SavedTensor(f"experts' {saved.name}", saved.per_token * shape.experts_per_token, saved.split)
    yield SavedTensor("experts' outputs", 2 * shape.hidden * shape.experts_per_token, False)


def _mlp(shape: Shape, width: int, lora: Lora | None, kernels: Kernels) -> Iterator[SavedTensor]:
    alone = not (shape.parallel and shape.norms == 1)  # else it is the input of q, k, v
    yield from _inputs("gate, up", 2 * shape.hidden if alone else 0, ("gate", "up"), lora, False)
    if shape.relu:  # it saves its result, which is the input of down
        pass
    elif shape.family == "t5" and not kernels.fused:
        # A GELU of single operations and a gate, or a ReLU; dropout behind it.
        yield SavedTensor("gate, up, steps of the GELU", (6 if shape.gated else 1) * 2 * width, True)
        if shape.dropout:
            yield SavedTensor("dropout mask", width, True)
    elif not shape.gated:
        count = 4 if shape.composed and not kernels.fused else 1
        yield SavedTensor("input of the activation", count * 2 * width, True)
    elif kernels.fused:
        yield SavedTensor("gate, up", 2 * 2 * width, True)
    elif shape.family == "gpt_oss":
        yield SavedTensor("gate, up, both clamped, a sigmoid and its product", 6 * 2 * width, True)
    else:
        yield SavedTensor("gate, its SiLU, up", 3 * 2 * width, True)
    yield from _inputs("down", 2 * width, ("down",), lora, True)


def _inputs(
    of: str, width: int, names: tuple[str, ...], lora: Lora | None, split: bool, *, saved: bool = False
) -> Iterator[SavedTensor]:
    """The input of projections: for the weight's gradient, or for the adapters that read it.

    16-bit adapters without dropout share the input; dropout and fp32 give each adapter its own copy of it.
    `saved` says that the input is kept anyway.
    """
    if lora is None:
        if not saved:
            yield SavedTensor(f"input of {of}", width, split, gathered=not split)
        return
    reading = [name for name in names if name in lora.targets and lora.leads(name)]
    for name in reading:
        yield SavedTensor(f"output of {name}'s A", (4 if lora.fp32 else 2) * lora.rank, False)
        if lora.fp32:
            copy = width * 5 // 2 if lora.dropout else width * 2
            yield SavedTensor(f"fp32 input of {name}'s adapter", copy, split)
        elif lora.dropout:
            yield SavedTensor(f"dropped input of {name}'s adapter and its mask", width * 3 // 2, split)
    if reading and not lora.fp32 and not lora.dropout and not saved:
        yield SavedTensor(f"input of {of}", width, split, gathered=not split)


def layer_bytes(
    shape: Shape,
    number: int,
    tokens: int,
    layout: Layout,
    lora: Lora | None = None,
    kernels: Kernels = EAGER,
) -> int:
    """Bytes that one layer keeps of `tokens` tokens on one tensor-parallel rank."""
    saved = layer(shape, number, lora, kernels)
    return sum(
        _local(
            s.per_token,
            tokens,
            layout,
            split=s.split,
            gathered=s.gathered and not kernels.fused,
            at_most=s.at_most,
        )
        for s in saved
    )


def _local(
    per_token: int,
    tokens: int,
    layout: Layout,
    *,
    split: bool,
    gathered: bool = False,
    at_most: int = 0,
) -> int:
    whole = gathered and layout.whole_inputs
    ranks = layout.tensor if (split or layout.sequence_parallel) and not whole else 1
    ranks = min(ranks, at_most or ranks)
    return -(-per_token * tokens // ranks)


def kept_bytes(
    shape: Shape,
    number: int,
    tokens: int,
    layout: Layout,
    lora: Lora | None,
    checkpointing: Checkpointing,
    kernels: Kernels = EAGER,
) -> int:
    """What stays of a layer between its forward and its backward."""
    if checkpointing == "none":
        return layer_bytes(shape, number, tokens, layout, lora, kernels)
    shape = kernels.run(shape)
    kept = _local(2 * shape.hidden, tokens, layout, split=False)
    if checkpointing != "full":
        kept += _attended(shape, tokens, layout)
    if checkpointing == "alternate":
        # Of the last one a backward reads nothing: a compiler leaves it out, eager layers keep it.
        for weight in _alternate(shape, number):
            split = weight.split == "outputs"
            each = shape.experts_per_token if weight.expert else 1
            if not (kernels.fused and weight.name.rpartition(".")[2] == "down"):
                kept += _local(2 * weight.outputs * each, tokens, layout, split=split)
    return kept


def _attended(shape: Shape, tokens: int, layout: Layout) -> int:
    """Attention's output and its log-sum-exp."""
    return _local(2 * shape.value_width + 4 * shape.heads, tokens, layout, split=True)


def _alternate(shape: Shape, number: int) -> list[Weight]:
    """The matrices whose products are kept where every second one is computed again: first, third, ...

    What is one module has one product.
    """
    matrices = [w for w in shape.layer(number) if w.inputs and w.name != "router"]
    picked = {w.name for w in matrices[::2]}
    for _, members in modules(shape):
        if len(members) > 1 and picked & {*members}:
            picked |= {*members}
    return [w for w in matrices if w.name in picked]


def alternate(shape: Shape, number: int) -> list[str]:
    """Names of the matrices whose products are kept where every second one is computed again."""
    return [weight.name for weight in _alternate(shape, number)]


def recomputed_share(shape: Shape, number: int, kernels: Kernels = EAGER) -> float:
    """Of a layer's matrix products, what is computed again where every second one is kept."""
    shape = kernels.run(shape)
    kept = sum(shape.reached(weight) for weight in _alternate(shape, number))
    return 1 - kept / shape.active(number)


def recomputed_bytes(
    shape: Shape,
    number: int,
    tokens: int,
    layout: Layout,
    lora: Lora | None,
    checkpointing: Checkpointing,
    kernels: Kernels = EAGER,
) -> int:
    """What one layer's backward brings back for as long as it lasts: what was kept is there already."""
    if checkpointing == "none":
        return 0
    there = _attended(shape, tokens, layout) if checkpointing == "selective" else 0
    return layer_bytes(shape, number, tokens, layout, lora, kernels) - there


def gradient_bytes(
    shape: Shape, number: int, tokens: int, layout: Layout, lora: Lora | None = None, kernels: Kernels = EAGER
) -> int:
    """Gradients of activations at the widest moment of a layer's backward, less what it let go of by then.

    That is behind the feed-forward: before its last matrix, or behind the activation, whose result and inputs
    have one then; a compiler writes one of these over another. What the last matrix alone reads is let go of
    in between. Sequence-parallel ranks may be wider at the first matrices, each of which gives a gradient of
    the whole sequence; PyTorch's tensors of tensors are then added up beside both. One hidden state of the
    whole sequence is counted as a buffer of communication.
    """
    shape = kernels.run(shape)
    each = 1 if shape.is_dense(number) else shape.experts_per_token
    width = shape.feed_forward if shape.is_dense(number) else shape.expert_width
    read = 1 + shape.gated
    one = -(-2 * width * each * tokens // layout.tensor)
    arrived = _local(2 * shape.hidden, tokens, layout, split=False)
    of_experts = 0 if shape.is_dense(number) else arrived * each
    compiled = kernels.fused and (layout.by_pytorch or not layout.splits)
    alone = not shape.relu and any(_inputs("down", 2 * width, ("down",), lora, True))
    points = [one + of_experts, (1 + read - alone - compiled) * one]
    if layout.sequence_parallel and layout.tensor > 1:
        more = 0
        if layout.by_pytorch:
            more = read - 1 if compiled else 2 * (read - 1)
        gone = sum(s.per_token for s in _mlp(shape, width, lora, kernels) if s.split) * each * tokens
        whole = 2 * shape.hidden * tokens * (more if layout.by_pytorch else 1)
        points.append(whole + read * one - gone // layout.tensor)
    return arrived + max(points)


def other_ranks_keys(shape: Shape, tokens: int, layout: Layout) -> int:
    """Keys and values of all context ranks: PyTorch gathers them, of all heads, and a ring keeps its buffers.

    Both let go of them behind each layer's attention, and fetch them again in its backward.
    """
    if layout.context == 1:
        return 0
    heads, pieces = shape.kv_heads, min(layout.tensor, shape.kv_heads)
    if layout.by_pytorch or shape.latent:
        heads, pieces = shape.heads, layout.tensor
    width = (shape.query_width + shape.value_width) // shape.heads * heads
    return 2 * tokens * layout.context * width // pieces


def in_a_backward(
    shape: Shape,
    numbers: Iterable[int],
    tokens: int,
    layout: Layout,
    lora: Lora | None,
    checkpointing: Checkpointing,
    kernels: Kernels,
) -> list[MemoryPart]:
    """What is there for as long as one layer's backward runs, of the layers whose kinds are given."""
    again = gradients = 0
    for n in numbers:
        again = max(again, recomputed_bytes(shape, n, tokens, layout, lora, checkpointing, kernels))
        gradients = max(gradients, gradient_bytes(shape, n, tokens, layout, lora, kernels))
    return [
        MemoryPart("one layer recomputed", again, "while its backward runs"),
        MemoryPart("gradients of activations", gradients, "behind the feed-forward of one layer"),
        MemoryPart(
            "keys of other ranks", other_ranks_keys(shape, tokens, layout), "of one layer, and values"
        ),
    ]


def head_saved(shape: Shape, tokens: int, layout: Layout, lora: Lora | None = None) -> int:
    """The final norm and the input of the head: fp32 copy, normalised, result. Frozen, they need the first.

    LayerNorm reads its 16-bit input again. A head with a transform saves what each step of that reads.
    """
    if lora:
        return _local((2 if shape.layer_norm else 4) * shape.hidden, tokens, layout, split=False)
    if layout.whole_inputs:
        return _local(6 * shape.hidden, tokens, layout, split=False) + 2 * shape.hidden * tokens
    plain = shape.layer_norm and not shape.transform
    return _local((2 if plain else 4) * 2 * shape.hidden, tokens, layout, split=False)


def logit_bytes(layout: Layout) -> int:
    """Bytes per token and word of the loss at its worst moment."""
    return LOSS_PARALLEL_PEAK if layout.by_pytorch and layout.tensor > 1 else LOGITS_PEAK


def logits(shape: Shape, tokens: int, layout: Layout, *, fused: bool) -> int:
    """The loss at its worst moment, with the logits of these tokens split over tensor ranks.

    A fused loss makes the logits a slice of `LOSS_SLICE` tokens at a time.
    """
    some = min(tokens, LOSS_SLICE) if fused else tokens
    return -(-logit_bytes(layout) * some * shape.vocabulary // layout.tensor)


def positions(shape: Shape, sequence: int, tensor: int) -> MemoryPart:
    """What all layers share for positions: the table of sines and cosines; none where they are learned.

    Of T5's biases the zeros for attention to the encoder, the gradient of one stack's, and which bucket each
    pair of tokens is in, in both stacks.
    """
    if shape.buckets:
        size = (2 * 2 * shape.heads // tensor + 2 * 8) * sequence**2
        return MemoryPart("position biases", size, "shared by all layers")
    width = shape.latent.rotary if shape.latent else shape.head_size
    size = 0 if shape.positions else 2 * sequence * width * 2
    return MemoryPart("rotary table", size, "shared by all layers")
