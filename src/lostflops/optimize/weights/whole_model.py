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
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lostflops.optimize.amounts import bytes_of
from lostflops.optimize.device.devices import Device
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.streaming import INFERENCE, Streaming

FLOPS = 450e12  # per second that whole layers of 16-bit products sustain; assumed, take a trace's


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
) -> Streaming:
    """Streams the model's weights until `close`, or the end of a `with`. Same results, bit by bit.

    `budget`: what weights and buffers may take on the device, at most, as in `stream_frozen`, and without
    it the least that works; the KV cache and the activations come on top. Nothing can be trained meanwhile:
    run it under `torch.no_grad()`, as `generate` does. The slots stay where they are on the device. Modules
    that are called or not (experts, given as `layers`) are fetched when they are called, which is counted.

    `files`: a folder of .safetensors files, or one; the model was made in `optimize.without_weights()`. Of
    its layers as many are kept in host memory as `host` has room for (none without it), and the others are
    read from their files in their turn. Dtypes are the files'. Undone, the model has no weights again.

    Raises `Refused` as `stream_frozen` does. Not verified on a GPU yet.
    """
    return Streaming(model, INFERENCE, budget, device, link, layers, look_ahead, files, host)


@dataclass(frozen=True)
class StreamingPrediction:
    """One pass of a model whose weights are streamed: a generated token for every sequence of the batch."""

    budget_bytes: int
    streamed_bytes: int
    seconds: float
    link_seconds: float
    compute_seconds: float
    bound_by: str  # "link" or "compute"
    tokens_per_second: float
    break_even_tokens: float  # per pass, from which on the copies hide behind compute

    def to_json(self) -> dict[str, Any]:
        return {"kind": "streaming prediction", **asdict(self)}


def streaming_prediction(
    weight_bytes: int | str,
    budget: int | str,
    bytes_per_second: float,
    *,
    compute_seconds: float,
    fixed_seconds: float = 0.0,
    batch: int = 1,
    slot_bytes: int = 0,
    flops_per_second: float = FLOPS,
    bytes_per_parameter: float = 2,
) -> StreamingPrediction:
    """t_step = max(t_compute, (W - budget + slots) / B_in) + t_fixed.

    `weight_bytes` W of the whole model; `bytes_per_second` B_in of the link, host to device;
    `compute_seconds` of a pass with all weights on the device, `fixed_seconds` what runs in neither's shadow.
    `slot_bytes`: of all slots together, the part of the budget that holds no weights for good.
    Break-even tokens per pass: F / B_in * bytes per parameter / 2, as a parameter costs two FLOPs per token.
    """
    whole, given = bytes_of(weight_bytes), bytes_of(budget)
    if not bytes_per_second > 0:
        raise Refused(f"a link of {bytes_per_second} bytes per second moves nothing", "use measure_link()")
    streamed = 0 if given >= whole else min(whole, whole - given + slot_bytes)
    link = streamed / bytes_per_second
    seconds = max(compute_seconds, link) + fixed_seconds
    return StreamingPrediction(
        given,
        streamed,
        seconds,
        link,
        compute_seconds,
        "link" if link > compute_seconds else "compute",
        batch / seconds if seconds else float("inf"),
        break_even_tokens(bytes_per_second, flops_per_second, bytes_per_parameter),
    )


def break_even_tokens(
    bytes_per_second: float, flops_per_second: float = FLOPS, bytes_per_parameter: float = 2
) -> float:
    """Tokens per pass from which on a layer computes as long as its weights travel: F / B_in * bytes / 2.

    Neither the model's size nor its depth matters: both the products and the copy grow with the parameters.
    """
    return flops_per_second / bytes_per_second * bytes_per_parameter / 2


def streaming_knee(
    weight_bytes: int | str, bytes_per_second: float, *, compute_seconds: float, slot_bytes: int = 0
) -> int:
    """The budget in bytes above which more makes a pass no faster: the rest travels while it computes."""
    whole = bytes_of(weight_bytes)
    hidden = int(compute_seconds * bytes_per_second)
    return max(0, min(whole, whole + slot_bytes - hidden))


def streaming_sweep(
    weight_bytes: int | str, bytes_per_second: float, *, compute_seconds: float, points: int = 9, **more: Any
) -> list[StreamingPrediction]:
    """Predictions from no budget to all of the weights, in equal steps, and at the knee."""
    whole = bytes_of(weight_bytes)
    knee = streaming_knee(
        whole,
        bytes_per_second,
        compute_seconds=compute_seconds,
        slot_bytes=more.get("slot_bytes", 0),
    )
    budgets = sorted({knee, *(whole * i // (points - 1) for i in range(points))})
    return [
        streaming_prediction(whole, budget, bytes_per_second, compute_seconds=compute_seconds, **more)
        for budget in budgets
    ]


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
