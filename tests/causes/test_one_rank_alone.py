"""Sentences of the page of one rank that were false: of pauses inside graphs, of copies behind work, of kernels
without a length, of another process on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lostflops
from made_runs import made

US = 1_000
THREAD = 7


def decoding(copies: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Four tokens: a graph of 20 kernels of 8 µs with pauses of 2 µs, and a value of 4 bytes that is read."""
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [{"rank": 0, "end": 4 * 260 * US, "device_kind": "gpu", "main_thread": THREAD}],
        "steps": [], "kernels": [], "copies": [], "launches": [],
    }  # fmt: skip
    for token in range(4):
        at = 260 * US * token
        tables["steps"].append({"step": token, "start": at, "end": at + 260 * US, "source": "range"})
        graph = {"start": at, "end": at + 5 * US, "thread": THREAD}
        tables["launches"].append({**graph, "name": "cudaGraphLaunch", "correlation": 10 * token})
        launched = {"launch_start": at, "launch_end": at + 5 * US, "thread": THREAD, "stream": 7}
        for number in range(20):
            start = at + (10 + 10 * number) * US
            tables["kernels"].append(
                {"start": start, "end": start + 8 * US, "family": "gemm", "correlation": 10 * token}
                | launched
            )
        if copies:
            asked = {"launch_start": at + 6 * US, "launch_end": at + 8 * US, "thread": THREAD, "stream": 7}
            start = at + 210 * US
            tables["copies"].append(
                {"start": start, "end": start + 2 * US, "bytes": 4, "direction": "device to host"}
                | {"host_memory": "pageable", "correlation": 10 * token + 1}
                | asked
            )
    return tables


def test_pauses_of_work_before_a_copy_are_not_what_the_copy_costs(tmp_path: Path) -> None:
    """The copy waits behind the graph for 202 µs, of which the GPU does nothing for 40: only 2 are its own."""
    page = lostflops.why(made(tmp_path, decoding()))
    (answer,) = (a for a in page.answers if a.recipe.name == "copy_summary_by_time")
    assert answer.table["idle_in_calls"].to_list() == [4 * 2 * US]
    assert not any("ageable" in finding.claim for finding in page.findings if finding.size > 10 * US)
