# pyright: basic
"""A Llama-like model with random weights, in the shapes of public models, and small ones for processors."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class ModelShape(NamedTuple):
    """Sizes of a model. `tied`: the output layer shares the embedding's weights."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    tied: bool

    @property
    def parameters(self) -> int:
        h, h_kv = self.hidden, self.hidden // self.heads * self.kv_heads
        layer = 2 * h * h + 2 * h * h_kv + 3 * h * self.ffn + 2 * h
        return self.vocabulary * h * (1 if self.tied else 2) + self.layers * layer + h


MODELS = {
    "llama-tiny": ModelShape(512, 128, 4, 4, 2, 352, True),
    "mistral-tiny": ModelShape(512, 128, 8, 4, 2, 448, False),
    "llama-1b": ModelShape(128256, 2048, 16, 32, 8, 8192, True),
    "mistral-7b": ModelShape(32000, 4096, 32, 32, 8, 14336, False),
    "llama-7b": ModelShape(32000, 4096, 32, 32, 32, 11008, False),
    "llama-13b": ModelShape(32000, 5120, 40, 40, 40, 13824, False),
}


class Wait(torch.autograd.Function):
    """Takes a fixed time forward and backward, on a machine of any speed and load."""

    @staticmethod
    def forward(ctx, x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
        ctx.ms = backward_ms
        time.sleep(forward_ms / 1000)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        time.sleep(ctx.ms / 1000)
        return gradient, None, None


class Block(nn.Module):
    """Attention and a gated feed-forward; `wait_ms` of fixed time forward, twice that backward."""

    def __init__(self, shape: ModelShape, wait_ms: float) -> None:
        super().__init__()
        h, head = shape.hidden, shape.hidden // shape.heads
        self.heads, self.kv_heads, self.wait_ms = shape.heads, shape.kv_heads, wait_ms
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
        self.q, self.k = nn.Linear(h, h, bias=False), nn.Linear(h, head * shape.kv_heads, bias=False)
        self.v, self.o = nn.Linear(h, head * shape.kv_heads, bias=False), nn.Linear(h, h, bias=False)
        self.gate, self.up = nn.Linear(h, shape.ffn, bias=False), nn.Linear(h, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return Wait.apply(x, self.wait_ms, 2 * self.wait_ms) if self.wait_ms else x  # pyright: ignore


class Transformer(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, shape: ModelShape, wait_ms: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, wait_ms) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained update of low rank."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def add_lora(model: Transformer, rank: int = 16) -> None:
    """Freeze the model, and put trained updates beside the query and value weights."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.q, block.v = LoraLinear(block.q, rank), LoraLinear(block.v, rank)  # pyright: ignore
