"""Run a model that is larger than the memory given to it: its weights come from host memory, layer by layer.

    with optimize.stream_weights(model, budget="64 GiB") as streamed:
        model.generate(**inputs)
        print(streamed.report())

Every pass of the model fetches all that does not stay, so a generated token takes at least that many bytes
over the link's rate, for the whole batch at once: `streaming_prediction` says how long, and `streaming_sweep`
for every budget. Where a server runs the model, its own weight streaming knows more: TensorRT-LLM's budget,
vLLM's prefetch offloader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from lostflops.optimize.amounts import bytes_of
from lostflops.optimize.device.devices import Device
from lostflops.optimize.weights.streaming import INFERENCE, Streaming


def stream_weights(
    model: torch.nn.Module,
    budget: int | str | None = None,
    *,
    device: Device | torch.device | str | None = None,
    link: Mapping[str, Any] | None = None,
    layers: Iterable[torch.nn.Module] | None = None,
    look_ahead: int = 1,
    files: str | os.PathLike[str] | None = None,
    host: int | str | None = None,
    experts: bool = False,
) -> Streaming:
    """Streams the model's weights until `close`, or the end of a `with`. Same results, bit by bit.

    `budget`: what weights and buffers may take on the device, at most, as in `stream_frozen`, and without
    it the least that works; the KV cache and the activations come on top. Nothing can be trained meanwhile:
    run it under `torch.no_grad()`, as `generate` does. The slots stay where they are on the device. Modules
    that are called or not (experts, given as `layers`) are fetched when they are called, which is counted.

    `files`: a folder of .safetensors files, or one; the model was made in `optimize.without_weights()`. Of
    its layers as many are kept in host memory as `host` has room for (none without it), and the others are
    read from their files in their turn. Dtypes are the files'. Undone, the model has no weights again.

    `experts`: of a mixture only those are fetched that the router has chosen, when it has. Fewer bytes where
    a pass is of few tokens, and a wait in each layer: they cannot be asked for ahead. Takes a slot more.

    Raises `Refused` as `stream_frozen` does. Not verified on a GPU yet.
    """
    return Streaming(model, INFERENCE, budget, device, link, layers, look_ahead, files, host, experts)


def measured_sweep(
    model: torch.nn.Module,
    run: Callable[[], Any],
    budgets: Iterable[int | str],
    *,
    repeats: int = 3,
    **more: Any,
) -> list[dict[str, Any]]:
    """Seconds of `run()` under each budget: the median of `repeats` after one to learn the order.

    `more` goes to `stream_weights`. Each row is JSON: `budget_bytes`, `seconds`, and the budget's report.
    """
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        with stream_weights(model, budget, **more) as streamed, torch.no_grad():
            run()
            times = sorted(_seconds(run, streamed) for _ in range(repeats))
            report = streamed.report().to_json()
        rows.append({"budget_bytes": bytes_of(budget), "seconds": times[len(times) // 2], "report": report})
    return rows


def _seconds(run: Callable[[], Any], streamed: Streaming) -> float:
    start = time.perf_counter()
    run()
    streamed.synchronize()
    return time.perf_counter() - start
