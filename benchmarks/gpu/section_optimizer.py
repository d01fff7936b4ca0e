"""Full training with AdamW whose states lie on the GPU, in host memory, and half of them on a disk."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import Any

import torch
from page import gb, ms, share, table
from setting import Case, Setting, in_turns, middle, trained

TITLE = "Optimizer states in host memory"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    size = "tiny" if setting.threads else "1b"
    model = setting.model(size)
    batch = setting.batch(min(setting.tokens), model.config.vocab_size)
    states = 2 * sum(p.numel() * p.element_size() for p in model.parameters())

    def case_of(**way: Any) -> Case:
        def case(undo: ExitStack) -> Any:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
            offloaded = None
            if way:
                folder = {"disk": undo.enter_context(tempfile.TemporaryDirectory())} if "host" in way else {}
                offloaded = undo.enter_context(
                    optimize.optimizer_offload(optimizer, device=setting.engine_device(), **{**way, **folder})
                )
            return trained(model, batch, optimizer, offloaded)

        return case

    small = {"chunk": "64 KiB", "least": 1} if setting.threads else {"chunk": "64 MiB"}
    cases = {
        "on the GPU": case_of(),
        "in host memory": case_of(**small),
        "half on a disk": case_of(**small, host=states // 2),
    }
    return in_turns(setting, cases, 2, 2, {"states_bytes": states})


def page(rows: list[dict[str, Any]]) -> str:
    base = middle(rows[0]["step_ns"])
    found: list[tuple[Any, ...]] = []
    for row in rows:
        step, report = middle(row["step_ns"]), row.get("report") or {}
        hidden = (report.get("into") or {}).get("hidden")
        found.append(
            (
                row["case"],
                ms(step),
                share(step, base),
                gb(row["peak_bytes"]),
                gb(report.get("host_bytes")),
                gb(report.get("disk_bytes")),
                None if hidden is None else f"{hidden:.1%}",
                row.get("failed", ""),
            )
        )
    header = (
        "",
        "step, ms",
        "over all",
        "peak, GB",
        "GB in host",
        "GB on disk",
        "copies in hidden",
        "failed",
    )
    return table(header, found)
