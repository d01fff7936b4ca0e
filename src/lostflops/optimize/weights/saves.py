"""What autograd saves of a weight that travels: where in its layer it is, never the memory where it lay.

The gradient of a layer's input needs the layer's weight, so autograd keeps a view of it until the backward.
The slot holds another layer by then, and nothing would tell: the gradient would be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from lostflops.optimize import claims
from lostflops.optimize.memory_layout import view_of
from lostflops.optimize.subclasses import Rebuilt, apart
from lostflops.optimize.weights.layers import Layer, Leaf

Bring = Callable[[Layer, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor | None]


class SavedWeight:
    """A saved view of a weight: which layer's, and how it looked at it.

    `bring(layer, look)` is what `look` sees in the memory that the layer lies in, from then on; None when its
    weights are back in the model.
    """

    __slots__ = ("_at", "_bring", "_dtype", "_layer", "_leaf", "_shape", "_stride", "_version")

    def __init__(
        self,
        bring: Bring,
        layer: Layer,
        leaf: Leaf,
        at: int,
        view: torch.Tensor,
    ) -> None:
        self._bring, self._layer, self._leaf, self._at = bring, layer, leaf, at
        self._dtype, self._shape, self._stride = view.dtype, view.shape, view.stride()
        self._version = leaf.version()

    def unpack(self) -> torch.Tensor:
        leaf = self._leaf
        if leaf.version() != self._version:  # autograd's own check is off while there are hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: '{leaf.name}' is at version {leaf.version()}; "
                f"expected version {self._version} instead."
            )
        found = self._bring(self._layer, self._look)
        return self._seen(leaf.tensor.data, 0) if found is None else found

    def _look(self, memory: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return self._seen(memory, self._leaf.offset)
        # A backward that is itself differentiated: its operations save what they are given, for later.
        first = self._leaf.offset
        return self._seen(memory[first : first + self._leaf.nbytes].clone(), 0)

    def _seen(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        return view_of(memory, offset + self._at, self._dtype, self._shape, self._stride)


def rebuilt(tensor: torch.Tensor, claim: claims.Claim) -> Rebuilt | None:
    """A tensor that is made of others, if any of them is claimed."""
    whole = apart(tensor)
    taken = {name: claim(value) for name, value in whole.tensors.items()}
    if not any(taken.values()):
        return None
    parts = {name: each or claims.Kept(whole.tensors[name]) for name, each in taken.items()}
    return Rebuilt(tensor, whole, parts)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Tells what we packed from what the hooks outside of ours did."""

    packed: claims.Packed


@dataclass(frozen=True, slots=True)
class _Through:
    """A weight as it comes out of hooks of the job's own, which may round what they pack."""

    packed: claims.Packed
    pack: Callable[[torch.Tensor], Any]
    give: Callable[[Any], torch.Tensor]

    def unpack(self) -> torch.Tensor:
        return self.give(self.pack(self.packed.unpack()))


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None)).split(".")[0]


def _innermost() -> tuple[Any, Any]:
    return cast("Any", torch)._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)


def asked_first(claim: claims.Claim) -> bool:
    """Whether what autograd saves now goes to `claim` before others, or nowhere."""
    if not torch.is_grad_enabled():
        return True
    pack, _ = _innermost()
    return pack is claims.packed or getattr(pack, "asks", None) == claim


@contextmanager
def asking(claim: claims.Claim) -> Generator[None]:
    """Tensors that autograd saves inside go to `claim` first, and then to whoever would have had them.

    Of nested hooks only the innermost run. Those of a checkpoint around a layer would keep views of a slot,
    so ours go inside of them and pass on what is not ours: in the forward and in the recomputation alike, so
    that the checkpoint counts the same tensors in both.
    """
    if asked_first(claim):
        yield
        return
    pack, unpack = _innermost()
    # Those of torch, of a checkpoint say, give back what they were given.
    of_the_job = pack is not None and _package(pack) not in ("torch", "lostflops")

    def take(tensor: torch.Tensor) -> Any:
        taken = claim(tensor)
        if taken is None:
            if pack is not None:
                return pack(tensor)
            taken = claims.Kept(tensor)
        elif of_the_job:
            taken = _Through(taken, cast("Any", pack), unpack)
        return _Taken(taken)

    def give(taken: Any) -> torch.Tensor:
        return taken.packed.unpack() if isinstance(taken, _Taken) else unpack(taken)

    take.asks = claim  # pyright: ignore[reportFunctionMemberAccess]
    take.passes_on_to = pack  # pyright: ignore[reportFunctionMemberAccess]
    with torch.autograd.graph.saved_tensors_hooks(take, give):
        yield
