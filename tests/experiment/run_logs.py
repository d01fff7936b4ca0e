"""Writes run folders as `record` does, for tests of what is read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MS = 1_000_000


def run(
    folder: Path,
    times: Sequence[float],
    *,
    rank: int = 0,
    world: int = 1,
    command: Sequence[str] = (),
    end: Mapping[str, Any] | None = {},
    wall: int = 1_700_000_000_000_000_000,
    **columns: Sequence[Any],
) -> Path:
    """A run of steps that take `times` ms. A column has a value per step; a loss may be text."""
    node = folder / "node-0000"
    node.mkdir(parents=True, exist_ok=True)
    who = {"kind": "rank", "rank": rank, "world": world, "host": "h", "python": "3.11.7", "torch": "2.13.0"}
    lines: list[dict[str, Any]] = [{**who, "monotonic": 0, "wall": wall}]
    now = 0
    for n, ms in enumerate(times):
        now += round(ms * MS)
        step = {"step": n, "end": now, "duration": round(ms * MS) if n else None, "own": 0, "micro_steps": 1}
        step |= {name: values[n] for name, values in columns.items() if name not in ("loss", "tokens")}
        lines.append(step)
        told = {name: columns[name][n] for name in ("loss", "tokens") if name in columns}
        if told:
            lines.append({"kind": "told", "of": n, **told})
    if end is not None:
        lines.append({"kind": "end", "steps": len(times), "lines_lost": 0, **end})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (node / f"steps-{rank:05d}-a0.jsonl").write_text(text)
    if command:
        start = {"kind": "start", "command": list(command), "time": "2026-11-01T00:00:00Z"}
        (folder / "recording.jsonl").write_text(json.dumps(start) + "\n")
    return folder
