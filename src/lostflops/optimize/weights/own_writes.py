"""What a layer writes to its own weights in its forward: they lie in a slot by then, and would be lost.

Weights are clamped, masked, rounded or rotated in a forward, in place, through `.data`, or by binding other
memory. Torch counts the first kind. The second is found by sums before and after. On a GPU the host would
have to wait for those, so it does in the first forward of each kind (to train, to evaluate, with gradients
or without) only, and believes a layer that did it to do it always; of later forwards it looks at the sums
when the layer is used again, and refuses then. What was written goes back to host memory, and the host waits
for it.
"""

from __future__ import annotations

from typing import cast

import torch

from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.layers import Layer, plainly

KNOWN_AT_ONCE = ("cpu",)  # devices that the host need not wait for
_SIDE = 1021  # words: what changes places by a multiple of a prime is not noticed


class OwnWrites:
    """From its making, when the layer's weights are views of a slot, to `taken`."""

    def __init__(self, layer: Layer, memory: torch.Tensor) -> None:
        self._layer, self._memory = layer, memory
        self._places = [_place(leaf.tensor.data) for leaf in layer.leaves]
        self._version = layer.version()
        kind = (layer.module.training, torch.is_grad_enabled())
        self._waits = kind not in layer.watched or memory.device.type in KNOWN_AT_ONCE
        layer.watched.add(kind)
        self._sums = None if layer.writes_unseen else _sums(memory[: layer.nbytes])

    def taken(self, whole: bool) -> bool:
        """Whether anything was written, which is in host memory then. `whole`: all of the layer was in the
        slot."""
        layer = self._layer
        bound = [_place(leaf.tensor.data) for leaf in layer.leaves] != self._places
        with plainly():
            if self._sums is not None and not bound and self._version == layer.version():
                differs = (_sums(self._memory[: layer.nbytes]) != self._sums).any()
                if self._waits:
                    layer.writes_unseen |= bool(differs)
                else:
                    layer.maybe_lost = differs
            if not (bound or layer.writes_unseen or layer.version() != self._version):
                return False
            if not whole:
                raise Refused(
                    f"'{layer.name}' writes to its own weights in its forward, and not all of its experts "
                    "are there",
                    "leave out experts=True, so that its weights are fetched as a whole",
                )
            for leaf in layer.leaves:
                host = cast("torch.Tensor", leaf.host)
                if (leaf.tensor.shape, leaf.tensor.dtype) != (host.shape, host.dtype):
                    raise Refused(
                        f"'{leaf.name}' is streamed, and was made {leaf.tensor.dtype}"
                        f"{list(leaf.tensor.shape)} in the forward of its layer",
                        "keep that layer out (layers=...)",
                    )
            for leaf in layer.leaves:
                cast("torch.Tensor", leaf.host).copy_(leaf.tensor.data)
        return True


def refuse_lost(layer: Layer) -> None:
    """The layer's last forward wrote to its weights, and they have been given away since."""
    lost, layer.maybe_lost = layer.maybe_lost, None
    if lost is None:
        return
    with plainly():
        if not bool(lost):
            return
    raise Refused(
        f"'{layer.name}' wrote to its own weights through `.data` in its last forward, and not in its first: "
        "what it wrote is lost, and what was computed since is wrong",
        "write to the weight itself, under torch.no_grad(), or keep that layer out (layers=...)",
    )


def _sums(memory: torch.Tensor) -> torch.Tensor:
    """int64[n] of uint8[8 m], by one look at it: two values that differ have other sums."""
    words = memory.view(torch.int64)
    rows = len(words) // _SIDE
    square = words[: rows * _SIDE].view(rows, _SIDE)
    return torch.cat([square.sum(0), words[rows * _SIDE :]])


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
