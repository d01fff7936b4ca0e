"""Ranks beside a slow link wait for those on it, wherever they meet next: that is the link's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lostflops
from made_runs import made

US = 10_000  # ns: one unit of the times below
STEP, STEPS = 660, 4


def test_waiting_for_the_ranks_on_a_slow_link_is_part_of_its_loss(tmp_path: Path) -> None:
    """Ranks 1 and 3 exchange gradients for 100 units, 0 and 2 for 10: each pair then meets in the forward pass."""
    tables: dict[str, Any] = {"ranks": [], "steps": [], "kernels": [], "collectives": []}
    for rank in range(4):
        tables["ranks"].append(
            {"rank": rank, "end": STEPS * STEP * US, "device_kind": "gpu", "world_size": 4, "clock_error": 1}
        )
        moves = 100 if rank % 2 else 10
        pairs = {"dp": (rank % 2, rank % 2 + 2), "tp": (rank // 2 * 2, rank // 2 * 2 + 1)}
        for step in range(STEPS):
            at = step * STEP
            tables["steps"].append({"rank": rank, "step": step, "start": at * US, "end": (at + STEP) * US})
            for start, length in ((0, 500), (500 + moves, 50)):
                tables["kernels"].append(
                    {"rank": rank, "start": (at + start) * US, "end": (at + start + length) * US}
                    | {"family": "gemm"}
                )
            for name, start, end in (("dp", 500, 500 + moves), ("tp", 550 + moves, STEP)):
                row = {"rank": rank, "start": (at + start) * US, "end": (at + end) * US, "stream": 9}
                group = f"{name}{pairs[name][0]} {list(pairs[name])}"
                tables["kernels"].append({**row, "family": "communication"})
                tables["collectives"].append(
                    {**row, "arrival": (at + start) * US, "kind": "all-reduce", "bytes_in": 1 << 20}
                    | {"group": group, "group_size": 2, "sequence": step}
                )
    findings = lostflops.why(made(tmp_path, tables)).findings
    first = findings[0]
    assert first.name == "slow-link" and first.size == 90 * US
    assert not any(f.name == "communication-waits" for f in findings)
