"""The link card: pinned and pageable copies each way, both ways at once, and under matrix products."""

from __future__ import annotations

from typing import Any

from page import table
from setting import Setting

TITLE = "Link"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    sizes = [1 << n for n in ((12, 16, 20) if setting.threads else (12, 16, 20, 22, 24, 26, 28, 30))]
    return [optimize.measure_link(setting.engine_device(), sizes)]


def page(rows: list[dict[str, Any]]) -> str:
    found: list[tuple[Any, ...]] = []
    for path, card in _rates(rows[0]):
        found.append((path, card["bytes_per_second"] / 1e9, card["launch_ns"] / 1e3))
    return table(("", "GB/s", "start, µs"), found)


def _rates(card: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(card, dict):
        return []
    if "bytes_per_second" in card:
        return [(path, card)] if card["bytes_per_second"] else []
    return [rate for name, inner in card.items() for rate in _rates(inner, f"{path} {name}".strip())]
