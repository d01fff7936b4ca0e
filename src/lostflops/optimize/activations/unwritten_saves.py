"""A layer that writes to what one of its operations has saved: found when the layer is computed again.

Autograd notices that by itself, by a count of writes, but not where hooks take what is saved: then the
gradients would be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.utils import checkpoint as torch_checkpointing

from lostflops.optimize.claims import Version
from lostflops.optimize.untraced import untraced

# Ends a recomputation as soon as all is there that the backward asks for.
ENOUGH: Any = getattr(torch_checkpointing, "_StopRecomputationError", ())


class _Hooks:
    """Between autograd and the hooks of torch's checkpoint."""

    __slots__ = ("_give", "asked_for", "passes_on_to", "saved")

    def __init__(self, take: Any, give: Any, asked_for: Callable[[], None]) -> None:
        self.passes_on_to, self._give = take, give
        self.asked_for: Callable[[], None] | None = asked_for
        self.saved: list[Version] = []

    @untraced
    def __call__(self, tensor: torch.Tensor) -> Any:
        self.saved.append(Version(tensor))
        return self.passes_on_to(tensor)

    @untraced
    def give(self, packed: Any) -> torch.Tensor:
        if self.asked_for is not None:
            self.asked_for()
        return self._give(packed)

    def check(self) -> None:
        for version in self.saved:
            version.check()


@contextmanager
def unwritten_saves(asked_for: Callable[[], None]) -> Generator[None]:
    """Within a recomputation by torch's checkpoint: raises at its end what autograd raises without hooks.

    `asked_for` is called when the layer itself asks for something saved, as it takes a gradient.
    """
    take, give = cast("Any", torch)._C._autograd._top_saved_tensors_default_hooks(True)
    hooks = _Hooks(take, give, asked_for)
    try:
        with torch.autograd.graph.saved_tensors_hooks(hooks, hooks.give):
            yield
    except ENOUGH:
        hooks.check()
        raise
    finally:
        hooks.asked_for = None  # it holds what the layer was given
    hooks.check()
