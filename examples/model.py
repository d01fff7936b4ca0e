"""A small decoder-only transformer in plain PyTorch, the model of every example."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Predicts the next token; `forward` returns the mean loss of the batch."""

    def __init__(self, vocabulary: int = 2048, width: int = 128, depth: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class LowRank(nn.Module):
    """A frozen linear layer and the low-rank update that is trained in its place (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + linear(linear(x, self.a), self.b)


def add_lora(model: Transformer, rank: int = 8) -> list[nn.Parameter]:
    """Freeze the model, give its attention and feed-forward layers low-rank updates, return those."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, LowRank(getattr(block, name), rank))
    return [p for p in model.parameters() if p.requires_grad]
