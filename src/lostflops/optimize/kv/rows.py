"""How keys and values lie in memory while they travel: a row per token, all its keys, then all its values.

Host memory, and the memory that a cache returns in, have the same rows, so that any run of tokens of a layer
is one contiguous copy, and the first rows of a block are as good as the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lostflops.copies.kv_resume import block_tokens
from lostflops.optimize.refused import Refused

ALIGNMENT = 512
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}


@dataclass(frozen=True)
class LayerShape:
    """Of one layer with keys and values; `window` is 0 where it attends to everything."""

    heads: int
    key_size: int
    value_size: int
    dtype: str
    window: int = 0

    @property
    def row_bytes(self) -> int:
        return self.heads * (self.key_size + self.value_size) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        sizes = (
            f"{self.key_size}" if self.key_size == self.value_size else f"{self.key_size}+{self.value_size}"
        )
        window = f", window {self.window}" if self.window else ""
        return f"{self.heads} heads of {sizes} {self.dtype}{window}"


@dataclass(frozen=True)
class BlockLayout:
    """Of a block in its slot: the rows of each layer, one layer after the other. None: a layer that keeps
    nothing.
    """

    layers: tuple[LayerShape | None, ...]
    block_tokens: int

    @property
    def offsets(self) -> list[int]:
        """Of each layer in a slot, and at the end the size of a slot."""
        found = [0]
        for layer in self.layers:
            nbytes = self.block_tokens * layer.row_bytes if layer else 0
            found.append(found[-1] + -(-nbytes // ALIGNMENT) * ALIGNMENT)
        return found

    @property
    def token_bytes(self) -> int:
        return sum(layer.row_bytes for layer in self.layers if layer)

    @property
    def window(self) -> int:
        """Of the layers that have one; they have the same."""
        return max((layer.window for layer in self.layers if layer), default=0)

    def differs(self, other: Sequence[LayerShape | None]) -> str | None:
        """In words, how other layers differ from these; None when they do not."""
        if len(other) != len(self.layers):
            return f"{len(other)} layers, and here are {len(self.layers)}"
        for number, (theirs, ours) in enumerate(zip(other, self.layers, strict=True)):
            if theirs != ours:
                return f"layer {number} with {theirs or 'nothing'}, and here are {ours or 'nothing'}"
        return None

    def to_json(self) -> dict[str, Any]:
        layers = [asdict(layer) if layer else None for layer in self.layers]
        return {"block_tokens": self.block_tokens, "layers": layers}


def layout_of(json: Mapping[str, Any]) -> BlockLayout:
    """What `to_json` wrote; raises ValueError, KeyError or TypeError for anything else."""
    layers: list[LayerShape | None] = []
    for each in json["layers"]:
        if each is None:
            layers.append(None)
            continue
        numbers = [each[name] for name in ("heads", "key_size", "value_size", "window")]
        if (
            each["dtype"] not in DTYPES
            or not all(type(n) is int and n >= 0 for n in numbers)
            or 0 in numbers[:3]
        ):
            raise ValueError(f"no layer: {each}")
        layers.append(LayerShape(numbers[0], numbers[1], numbers[2], each["dtype"], numbers[3]))
    tokens = json["block_tokens"]
    if type(tokens) is not int or tokens < 1 or not any(layers):
        raise ValueError(f"blocks of {tokens} tokens in {len(layers)} layers")
    return BlockLayout(tuple(layers), tokens)


def fitting_block(layers: Sequence[LayerShape | None]) -> int:
    """Tokens per block: as many as the widest layer wants."""
    return block_tokens(max(layer.row_bytes for layer in layers if layer))


def dtype_named(dtype: torch.dtype) -> str:
    """Refuses what no key or value is kept in here: a quantised cache is more than its numbers."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Refused(
            f"keys and values in {name} are not handled", f"keep the cache in one of {', '.join(DTYPES)}"
        )
    return name


def gather(
    target: torch.Tensor, shape: LayerShape, keys: torch.Tensor, values: torch.Tensor, first: int
) -> None:
    """Writes the rows from token `first` on into uint8[rows * row_bytes], on the current stream.

    keys, values: [1, heads, tokens, size], with any strides.
    """
    into_keys, into_values = views(target, shape)
    rows = into_keys.shape[2]
    with torch.no_grad():
        into_keys.copy_(keys[:, :, first : first + rows])
        into_values.copy_(values[:, :, first : first + rows])


def views(rows: torch.Tensor, shape: LayerShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [1, heads, tokens, size] as they lie in uint8[tokens * row_bytes]: no copy, strided."""
    tokens = rows.numel() // shape.row_bytes
    numbers = rows.view(DTYPES[shape.dtype]).view(tokens, -1)
    split = shape.heads * shape.key_size
    keys = numbers[:, :split].view(tokens, shape.heads, shape.key_size)
    values = numbers[:, split:].view(tokens, shape.heads, shape.value_size)
    return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]


def checksums(rows: torch.Tensor, shape: LayerShape) -> torch.Tensor:
    """int64[tokens]: a checksum of each row, by which any changed, moved or missing word shows."""
    row = shape.row_bytes
    words = rows.view(-1, row)
    words = words.view(torch.int64) if row % 8 == 0 else words.to(torch.int64) + 1
    # Odd factors, different for each word; integers wrap around, and an odd factor loses nothing in that.
    place = torch.arange(1, words.shape[1] + 1, device=rows.device, dtype=torch.int64)
    factors = (place * 0x1E3779B97F4A7C15) | 1
    return (words * factors).sum(1) + factors.numel()
