"""What a layer writes to its own weights in its forward: they lie in a slot by then, and would be lost.

Weights are clamped, masked, rounded or rotated in a forward, in place, through `.data`, or by binding other
memory. Torch counts the first kind. The second is found by a checksum before and after, in the first forward
of each kind (to train, to evaluate, with gradients or without); a layer that did it is believed to do it in
every forward from then on. What was written goes back to host memory, and the host waits for it.
"""

from __future__ import annotations

from typing import cast

import torch

from lostflops.optimize.activations.checksum import checksum
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.layers import Layer, plainly


class OwnWrites:
    """From its making, when the layer's weights are views of a slot, to `taken`."""

    def __init__(self, layer: Layer, memory: torch.Tensor) -> None:
        self._layer, self._memory = layer, memory
        self._places = [_place(leaf.tensor.data) for leaf in layer.leaves]
        self._version = layer.version()
        kind = (layer.module.training, torch.is_grad_enabled())
        self._sum: torch.Tensor | None = None
        if kind not in layer.watched:
            layer.watched.add(kind)
            self._sum = checksum(memory[: layer.nbytes])

    def taken(self, whole: bool) -> bool:
        """Whether anything was written, which is in host memory then. `whole`: all of the layer was in the
        slot."""
        layer = self._layer
        bound = [_place(leaf.tensor.data) for leaf in layer.leaves] != self._places
        with plainly():
            if self._sum is not None and not bound and self._version == layer.version():
                layer.writes_unseen |= not torch.equal(checksum(self._memory[: layer.nbytes]), self._sum)
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


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
