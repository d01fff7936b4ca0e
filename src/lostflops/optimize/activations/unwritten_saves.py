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


@contextmanager
def unwritten_saves(asked_for: Callable[[], None]) -> Generator[None]:
    """Within a recomputation by torch's checkpoint: raises at its end what autograd raises without hooks.

    `asked_for` is called when the layer itself asks for something saved, as it takes a gradient.
    """
    pack, unpack = cast("Any", torch)._C._autograd._top_saved_tensors_default_hooks(True)
    saved: list[Version] = []
    over = False

    @untraced
    def take(tensor: torch.Tensor) -> Any:
        saved.append(Version(tensor))
        return pack(tensor)

    @untraced
    def give(packed: Any) -> torch.Tensor:
        if not over:
            asked_for()
        return unpack(packed)

    take.passes_on_to = pack  # pyright: ignore[reportFunctionMemberAccess]
    try:
        with torch.autograd.graph.saved_tensors_hooks(take, give):
            yield
    except ENOUGH:
        _check(saved)
        raise
    finally:
        over = True
    _check(saved)


def _check(saved: list[Version]) -> None:
    for version in saved:
        version.check()
