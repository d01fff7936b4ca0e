"""How long a pass takes of a model whose weights come over the link, layer by layer, for every budget.

A pass fetches all that does not stay, for the whole batch at once; what computes as long as it travels hides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lostflops.errors import Refused
from lostflops.units import bytes_of

FLOPS = 450e12  # per second that whole layers of 16-bit products sustain; assumed, take a trace's


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
