"""Models of a few thousand random numbers, the same at every call, for the tests of `lostflops.optimize`.

Each `*_batch` is what its model is called with; `loss_of` runs either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

HIDDEN, LAYERS, HEADS, VOCABULARY = 32, 4, 4, 61


def llama(layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0, **changes: Any) -> Any:
    """A Llama for causal language modelling, in fp32, eager, in training mode, without dropout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS // 2,
            "max_position_embeddings": 128,
            "attn_implementation": "sdpa",
            "use_cache": False,
            **changes,
        }
    )
    return LlamaForCausalLM(config).train()


def llama_batch(sequence: int = 24, batch: int = 2, seed: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (batch, sequence))
    return {"input_ids": ids, "labels": ids.clone()}


def lora(
    model: Any = None,
    rank: int = 4,
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    dropout: float = 0.0,
    seed: int = 2,
    fp32: bool = True,
    **changes: Any,
) -> Any:
    """The Llama with PEFT's adapters; B is random, for a zero B would hide wrong gradients of A."""
    from peft import LoraConfig, get_peft_model

    base = llama() if model is None else model
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=list(targets), **changes
    )
    adapted: Any = get_peft_model(base, config, autocast_adapter_dtype=fp32)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return adapted.train()


class Block(nn.Module):
    """One pre-norm transformer block, of plain torch."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden), nn.GELU(), nn.Linear(3 * hidden, hidden)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, layers: int = LAYERS, hidden: int = HIDDEN, heads: int = HEADS) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(hidden, heads) for _ in range(layers)])
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def transformer(layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(layers, hidden)


def transformer_batch(
    sequence: int = 24, batch: int = 2, hidden: int = HIDDEN, seed: int = 1
) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(batch, sequence, hidden)


def mlp(layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> nn.Sequential:
    """Linear and GELU in turns."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(hidden, hidden), nn.GELU()]
    return nn.Sequential(*parts)


def mlp_batch(rows: int = 48, hidden: int = HIDDEN, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(rows, hidden)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """A scalar: the model's own loss, or the mean square of its output."""
    if isinstance(batch, dict):
        return model(**batch).loss
    return model(batch).square().mean()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies, by name, of those there are."""
    return {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}
