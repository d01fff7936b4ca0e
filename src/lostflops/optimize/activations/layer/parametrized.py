"""Weights that `torch.nn.utils.parametrize` computes once while `parametrize.cached()` is entered.

A recomputation finds cached what its forward had found, and no more: else it would save other tensors. What
it computes itself is let go with it, since its graph is nobody's.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn.utils import parametrize

from lostflops.optimize.activations.layer.attributes import detached

_parametrize: Any = cast("Any", parametrize)
Weights = dict[Any, "torch.Tensor | None"] | None  # None: caching is off


def cached_weights() -> Weights:
    """Without their graphs, which would be held."""
    if not _parametrize._cache_enabled:
        return None
    return {key: None if one is None else detached(one) for key, one in _parametrize._cache.items()}


@contextmanager
def cached_as_they_were(weights: Weights) -> Generator[None]:
    if weights is None and not _parametrize._cache_enabled:
        yield
        return
    now = _parametrize._cache_enabled, _parametrize._cache
    _parametrize._cache_enabled, _parametrize._cache = int(weights is not None), dict(weights or {})
    try:
        yield
    finally:
        _parametrize._cache_enabled, _parametrize._cache = now
