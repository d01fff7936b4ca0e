"""Time to the first token of a dialogue's next turn: reloaded from host memory, recomputed, and never gone.

As `benchmarks/kv_cache.py`, which also runs on its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from page import gb, table
from setting import Setting

TITLE = "KV cache: reload against recompute"


def rows(setting: Setting) -> list[dict[str, Any]]:
    sys.path.append(str(Path(__file__).parents[1]))
    import kv_cache

    from lostflops import optimize

    model = setting.model(words=kv_cache.WORDS).eval()
    cache = optimize.DialogueCache("64 MiB" if setting.threads else "4 GiB", device=setting.engine_device())
    found: list[dict[str, Any]] = []
    for tokens in setting.tokens:
        found.append(kv_cache.measured(model, cache, tokens, 5))
        setting.save(found)
    return found


def page(rows: list[dict[str, Any]]) -> str:
    return table(
        ("tokens held", "GB", "recompute, ms", "reload, ms", "stayed, ms", "times as fast as recompute"),
        [
            (
                row["prefix_tokens"],
                gb(row["bytes"]),
                row["recompute_ms"],
                row["reload_ms"],
                row["stayed_ms"],
                row["recompute_ms"] / row["reload_ms"],
            )
            for row in rows
        ],
    )
