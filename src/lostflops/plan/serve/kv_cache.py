"""The keys and values that inference keeps, and whether fetching them beats computing them again."""

from __future__ import annotations

from lostflops.plan.shape import Shape


def per_token(shape: Shape, bytes_each: int = 2) -> int:
    """Bytes that one token takes in all layers; latent attention keeps the compressed form once.

    Layers with a window let go of tokens behind it: `Shape.seen` counts those that are kept.
    """
    if shape.latent:
        return shape.caching * (shape.latent.key_value + shape.latent.rotary) * bytes_each
    return 2 * shape.caching * shape.kv_heads * shape.head_size * bytes_each


def reload_seconds(shape: Shape, tokens: int, into: float) -> float:
    """Time to bring the cache of `tokens` tokens back over a link of `into` bytes per second."""
    return tokens * per_token(shape) / into


def recompute_seconds(shape: Shape, tokens: int, flops: float) -> float:
    """Time to compute it again: 2 x active parameters per token, without attention's quadratic term."""
    active = sum(shape.active(number) for number in range(shape.layers)) + shape.vocabulary * shape.hidden
    return 2 * active * tokens / flops
