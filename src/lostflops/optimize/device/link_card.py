"""A link card, which says how fast host and device exchange bytes: the rate that it gives for a way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lostflops.optimize.refused import Refused


def rate(card: Mapping[str, Any], direction: str, memory: str = "pinned") -> tuple[int, float]:
    """Launch time in ns and bytes per second of 'device_to_host' or 'host_to_device' copies on a card."""
    try:
        found = card[direction][memory]
        launch, per_second = found["launch_ns"], float(found["bytes_per_second"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"this link card has no rate for {memory} copies {direction.replace('_', ' ')}",
            "give what optimize.measure_link() returned, or what `lostflops bench links --card FILE` wrote",
        ) from error
    if not per_second > 0:
        raise Refused(f"this link card's rate {direction.replace('_', ' ')} is {per_second}", "measure again")
    return int(launch or 0), per_second
