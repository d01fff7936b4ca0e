"""Profiles of saved tensors with round numbers, for tests of plans: some layers, each with some classes."""

from __future__ import annotations

from typing import Any

# Per layer: class, bytes, and when in the layer it is saved, in per cent of the layer's forward.
LAYER = (
    ("input_layernorm/AddBackward0", 100, 2),
    ("self_attn/MulBackward0", 300, 30),
    ("self_attn.o_proj/MmBackward0", 110, 50),
    ("mlp/SiluBackward0", 470, 70),
    ("mlp.down_proj/MulBackward0", 430, 72),
)


def profile(
    layers: int = 6,
    forward: int = 1_000_000,
    backward: int = 1_900_000,
    scale: int = 1000,
    static: int = 50_000,
    head: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """Times per layer in ns. `head` is transient memory between forward and backward, as of logits."""
    rows: list[dict[str, Any]] = []
    end = layers * forward
    for layer in range(layers):
        for name, size, share in LAYER:
            module, operator = name.split("/")
            rows.append(
                {
                    "storage": len(rows),
                    "order": len(rows),
                    "bytes": size * scale,
                    "dtype": "bfloat16",
                    "covered_fraction": 1.0,
                    "saves": 1,
                    "module": f"model.layers.{layer}.{module}",
                    "tensor_class": f"model.layers.*.{module}/{operator}",
                    "operator": operator,
                    "is_output": False,
                    "kept_reason": None,
                    "pack_ns": layer * forward + share * forward // 100,
                    "unpack_ns": end + (layers - 1 - layer) * backward + (100 - share) * backward // 100,
                    "recompute_ns": 1000,
                }
            )
    return {
        "schema": 1,
        "kind": "saved-tensor profile",
        "model": "Layers",
        "torch": "2.13.0",
        "device": "made up",
        "forward_ns": end,
        "backward_ns": layers * backward,
        "static_bytes": static,
        "peak_bytes": static + head + sum(row["bytes"] for row in rows),
        "highs": _highs(rows, static, head, end, layers * backward),
        "rows": rows,
    } | more


def _highs(
    rows: list[dict[str, Any]], static: int, head: int, forward: int, backward: int
) -> list[list[int]]:
    """At every save and request: what was there just before."""
    at = sorted({row[which] for row in rows for which in ("pack_ns", "unpack_ns")} | {forward + 1})
    highs: list[list[int]] = []
    for instant in [*at, forward + backward]:
        alive = sum(row["bytes"] for row in rows if row["pack_ns"] < instant <= row["unpack_ns"])
        highs.append([instant, static + alive + (head if instant == forward + 1 else 0)])
    return highs
