"""Train adapters on a model larger than the GPU: its frozen weights come from host memory, layer by layer.

    with optimize.stream_frozen(model, resident="20 GiB") as streamed:
        for batch in batches:
            model(**batch).loss.backward()
            optimizer.step(); optimizer.zero_grad()
        print(streamed.report())

The frozen weights are copied to the device before a layer's forward, and again, in reverse, before its
backward; they do not change, so they are never copied back. What is trained stays on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lostflops.optimize.device.devices import Device
from lostflops.optimize.weights.streaming import TRAINING, Streaming


def stream_frozen(
    model: torch.nn.Module,
    resident: int | str | None = None,
    *,
    device: Device | torch.device | str | None = None,
    link: Mapping[str, Any] | None = None,
    layers: Iterable[torch.nn.Module] | None = None,
    look_ahead: int = 1,
) -> Streaming:
    """Streams the model's frozen weights until `close`, or the end of a `with`. Same results, bit by bit.

    `resident`: what frozen weights may take on the device, at most: those that stay, and `look_ahead` + 1
    slots of the largest layer that travels; without it, the least that works. As many layers stay as fit,
    evenly between those that travel. Weights outside of the layers, such as embeddings, stay, and so does
    everything that is trained.

    The model may lie on the GPU, or on the CPU when it does not fit: then `device` says which GPU (the
    current one), whatever does not travel is moved there, and back on leaving. Host memory of the size of the
    travelling layers is pinned once. `layers` are the modules that are called in turn, the members of the
    model's lists of modules if not given. `link`: a card of `measure_link`, to report against.

    Raises `Refused` when the budget is too small (with the smallest that works), when nothing is frozen, for
    weights on the meta device or sharded over processes. Not verified on a GPU yet.
    """
    return Streaming(model, TRAINING, resident, device, link, layers, look_ahead)
