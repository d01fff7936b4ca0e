"""Ranges and lists of whole numbers, as people type them: 3-7, or 0,2-4."""

from __future__ import annotations

import re

from lostflops.errors import BadOption, shown


def span(text: str) -> tuple[int, int]:
    """'3-7' as (3, 7) and '3' as (3, 3). Raises BadOption for anything else."""
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    if not match:
        raise BadOption(f"'{shown(text)}' is not a range of numbers.", "write '3-7', or '3' for one.")
    low = int(match[1])
    high = int(match[2]) if match[2] else low
    if low > high:
        raise BadOption(f"'{shown(text)}' ends before it begins.", f"write '{high}-{low}'.")
    return low, high


def numbers(text: str) -> frozenset[int]:
    """'0,2-4' as {0, 2, 3, 4}. Raises BadOption for anything else, or more than a million numbers."""
    spans = [span(part) for part in text.split(",")]
    if sum(high - low for low, high in spans) > 10**6:
        raise BadOption(f"'{shown(text)}' names more than a million numbers.")
    return frozenset(n for low, high in spans for n in range(low, high + 1))
