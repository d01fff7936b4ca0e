"""What the forward pass keeps for the backward, per layer and for the head: exact for Llama-type layers.

The closed form of an eager 16-bit layer with flash attention and no mask is compared with what autograd
saves, storage by storage and byte for byte. Experts and latent attention are counted by the same rules, and
were not compared. Everything is bytes per token first: a token of a 16-bit hidden state is 2 x hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from lostflops.plan.shape import Shape

from .layout import Layout
from .static_memory import Lora

Checkpointing = Literal["none", "selective", "full"]
CHECKPOINTINGS: tuple[Checkpointing, ...] = get_args(Checkpointing)

LOGITS_PEAK = 14  # bytes per token and word: 16-bit logits, their fp32 copy, log-softmax, and its gradient
LOGITS_SAVED = 4


@dataclass(frozen=True)
class Saved:
    """One storage that the backward needs: bytes per token, and whether tensor parallelism splits it."""

    name: str
    per_token: int
    split: bool


def layer(shape: Shape, number: int, lora: Lora | None = None) -> list[Saved]:
    """The storages of one layer."""
    return [*_norms(shape, lora), *_attention(shape, lora), *_mixer(shape, number, lora)]


def _norms(shape: Shape, lora: Lora | None) -> Iterator[Saved]:
    h = shape.hidden
    yield Saved("fp32 copies of the norms' inputs", 2 * 4 * h, False)
    if not lora:
        yield Saved("normalised hidden states", 2 * 2 * h, False)
    yield Saved("row statistics", 2 * 4, False)


def _attention(shape: Shape, lora: Lora | None) -> Iterator[Saved]:
    h, q, value = shape.hidden, shape.query_width, shape.value_width
    yield from _inputs("q, k, v", 2 * h, ("q", "k", "v"), lora, False)
    if shape.latent:
        latent = shape.latent
        yield Saved("compressed queries, keys and values", 6 * (latent.query + latent.key_value), False)
        yield Saved("keys and values of all heads", 2 * (q + value), True)
    else:
        kv = shape.kv_heads * shape.head_size
        if shape.query_key_norm:
            yield Saved("fp32 copies of queries and keys", 4 * (q + kv), True)
            yield Saved("statistics of queries and keys", 4 * (shape.heads + shape.kv_heads), True)
            if not lora:
                yield Saved("normalised queries and keys", 2 * (q + kv), True)
        yield Saved("keys and values", 2 * 2 * kv, True)
    yield Saved("queries", 2 * q, True)
    yield Saved("attention output", 2 * value, True)
    yield Saved("log-sum-exp", 4 * shape.heads, True)
    yield from _inputs("o", 2 * value, ("o",), lora, True, saved=True)


def _mixer(shape: Shape, number: int, lora: Lora | None) -> Iterator[Saved]:
    if shape.is_dense(number):
        yield from _mlp(shape.hidden, shape.feed_forward, lora)
        return
    yield Saved("router scores", (2 + 4) * shape.experts, False)
    if shape.shared_width:
        yield from _mlp(shape.hidden, shape.shared_width, lora)
    for saved in _mlp(shape.hidden, shape.expert_width, lora):
        yield Saved(f"experts' {saved.name}", saved.per_token * shape.experts_per_token, saved.split)
    yield Saved("experts' outputs", 2 * shape.hidden * shape.experts_per_token, False)


def _mlp(h: int, width: int, lora: Lora | None) -> Iterator[Saved]:
    yield from _inputs("gate, up", 2 * h, ("gate", "up"), lora, False)
    yield Saved("gate, its SiLU, up", 3 * 2 * width, True)
    yield from _inputs("down", 2 * width, ("down",), lora, True)


def _inputs(
    of: str, width: int, names: tuple[str, ...], lora: Lora | None, split: bool, *, saved: bool = False
) -> Iterator[Saved]:
    """The input of projections: for the weight's gradient, or for the adapters that read it.

    16-bit adapters without dropout share the input; dropout and fp32 give each adapter its own copy of it.
    `saved` says that the input is kept anyway.
    """
    if lora is None:
        if not saved:
            yield Saved(f"input of {of}", width, split)
        return
    reading = [name for name in names if name in lora.targets]
    for name in reading:
        yield Saved(f"output of {name}'s A", (4 if lora.fp32 else 2) * lora.rank, False)
        if lora.fp32:
            copy = width * 5 // 2 if lora.dropout else width * 2
            yield Saved(f"fp32 input of {name}'s adapter", copy, split)
        elif lora.dropout:
            yield Saved(f"dropped input of {name}'s adapter and its mask", width * 3 // 2, split)
    if reading and not lora.fp32 and not lora.dropout and not saved:
        yield Saved(f"input of {of}", width, split)


def layer_bytes(shape: Shape, number: int, tokens: int, layout: Layout, lora: Lora | None = None) -> int:
    """Bytes that one layer keeps of `tokens` tokens on one tensor-parallel rank."""
    return sum(_local(s.per_token, tokens, layout, split=s.split) for s in layer(shape, number, lora))


def _local(per_token: int, tokens: int, layout: Layout, *, split: bool) -> int:
    ranks = layout.tensor if split or layout.sequence_parallel else 1
    return -(-per_token * tokens // ranks)


def kept_bytes(
    shape: Shape, number: int, tokens: int, layout: Layout, lora: Lora | None, checkpointing: Checkpointing
) -> int:
    """What stays of a layer between its forward and its backward."""
    if checkpointing == "none":
        return layer_bytes(shape, number, tokens, layout, lora)
    kept = _local(2 * shape.hidden, tokens, layout, split=False)
    if checkpointing == "selective":
        kept += _local(2 * shape.value_width + 4 * shape.heads, tokens, layout, split=True)
    return kept


def recomputed_bytes(
    shape: Shape, number: int, tokens: int, layout: Layout, lora: Lora | None, checkpointing: Checkpointing
) -> int:
    """What one layer's backward brings back for as long as it lasts."""
    return 0 if checkpointing == "none" else layer_bytes(shape, number, tokens, layout, lora)


def head_saved(shape: Shape, tokens: int, layout: Layout) -> int:
    """The final norm and the input of the head: fp32 copy, normalised, result."""
    return _local(4 * 2 * shape.hidden, tokens, layout, split=False)


def logits(shape: Shape, tokens: int, layout: Layout, *, fused: bool) -> int:
    """The loss at its worst moment, with the logits split over tensor ranks.

    A fused loss makes the logits a slice of 1024 tokens at a time.
    """
    some = min(tokens, 1024) if fused else tokens
    return -(-LOGITS_PEAK * some * shape.vocabulary // layout.tensor)


def rotary(shape: Shape, sequence: int) -> int:
    """The table of sines and cosines that all layers share."""
    size = shape.latent.rotary if shape.latent else shape.head_size
    return 2 * sequence * size * 2
