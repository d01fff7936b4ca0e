"""A link card, which says how fast host and device exchange bytes: its lines, and the rates that it gives.

A card is a JSON object: per direction and kind of host memory a rate, which is the line
t = launch_ns + bytes / bytes_per_second. `optimize.measure_link` and `lostflops bench links --card` make one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from lostflops.copies.link import Link
from lostflops.errors import Refused

DIRECTIONS = ("device_to_host", "host_to_device")
ENOUGH = 3  # sizes that make a line
FLAT = 1e-6  # of the start: what the line rises up to the largest size is less than the arithmetic can tell
UNMEASURED_MIGRATION = 0.2  # of pinned copies' rate, at which pages of unified memory move on demand


def rate(card: Mapping[str, Any], direction: str, memory: str = "pinned") -> tuple[int, float]:
    """Launch time in ns and bytes per second of 'device_to_host' or 'host_to_device' copies on a card."""
    try:
        found = card[direction][memory]
        launch, per_second = int(found.get("launch_ns") or 0), float(found["bytes_per_second"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise Refused(
            f"this link card has no rate for {memory} copies {direction.replace('_', ' ')}",
            "give what optimize.measure_link() returned, or what `lostflops bench links --card FILE` wrote",
        ) from error
    if not (per_second > 0 and isfinite(per_second)):
        raise Refused(f"this link card's rate {direction.replace('_', ' ')} is {per_second}", "measure again")
    return launch, per_second


def link(card: Mapping[str, Any]) -> Link:
    """The link of a card: pinned copies."""
    (out_launch, out), (in_launch, into) = (rate(card, direction) for direction in DIRECTIONS)
    return Link(out, into, max(out_launch, in_launch))


def migration(card: Mapping[str, Any]) -> tuple[float, str]:
    """Bytes per second at which pages of unified memory move on demand, and where that is from."""
    kinds: Any = card.get("host_to_device")
    if kinds and kinds.get("managed"):
        return rate(card, "host_to_device", "managed")[1], "measured"
    slowest = min(rate(card, direction)[1] for direction in DIRECTIONS)
    return UNMEASURED_MIGRATION * slowest, "assumed, a fifth of pinned copies"


def line(sizes: Sequence[int], times: Sequence[float]) -> dict[str, Any] | None:
    """The line t = launch_ns + bytes / bytes_per_second nearest to the times by relative error.

    Least squares with weights 1/t², so that 10 us and 10 ms count alike; a line that would start below zero
    starts at zero. `spread` is the median relative distance of the times from it, `half_size_bytes` where
    half of the rate is reached. None with fewer than three sizes, or when larger copies take no longer.
    """
    rows = [(float(n), float(t)) for n, t in zip(sizes, times, strict=True) if n > 0 and t > 0]
    if len({n for n, _ in rows}) < ENOUGH:
        return None
    # Around the weighted means: sums of squares that nearly cancel would leave nothing but rounding.
    weights = [1 / t**2 for _, t in rows]
    all_weight = sum(weights)
    x = sum(w * n for w, (n, _) in zip(weights, rows, strict=True)) / all_weight
    y = sum(w * t for w, (_, t) in zip(weights, rows, strict=True)) / all_weight
    xy = sum(w * (n - x) * (t - y) for w, (n, t) in zip(weights, rows, strict=True))
    xx = sum(w * (n - x) ** 2 for w, (n, _) in zip(weights, rows, strict=True))
    if not xx:
        return None
    slope = xy / xx
    start = y - slope * x
    if start < 0:
        start, slope = 0.0, sum(n / t for n, t in rows) / sum((n / t) ** 2 for n, t in rows)
    if slope * max(n for n, _ in rows) <= FLAT * start:
        return None
    return {
        "launch_ns": round(start),
        "bytes_per_second": 1e9 / slope,
        "spread": statistics.median(abs((start + slope * n) / t - 1) for n, t in rows),
        "half_size_bytes": round(start / slope),
    }
