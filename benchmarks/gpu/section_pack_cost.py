"""What the engine costs the host for each saved tensor that it keeps, and for each that it moves."""

from __future__ import annotations

from typing import Any

from page import table
from setting import Setting, trained

TITLE = "Cost of a hook"
STEPS = 12


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    model = setting.model("tiny" if setting.threads else "1b")
    step = trained(model, setting.batch(setting.tokens[0], model.config.vocab_size))
    found: list[dict[str, Any]] = []
    for name, threshold in (("moved", 256), ("kept", 1 << 50)):
        device = setting.engine_device()
        with optimize.offload(
            model, plan="everything" if name == "moved" else None, threshold=threshold, device=device
        ) as engine:
            for _ in range(STEPS):
                step()
            setting.synchronize()
            report = engine.report()
        found.append(
            {
                "case": name,
                "pack_ns": report.pack_ns,
                "keep_ns": report.keep_ns,
                "unpack_ns": report.unpack_ns,
            }
        )
    return found


def page(rows: list[dict[str, Any]]) -> str:
    kept = next(row["keep_ns"] for row in rows if row["case"] == "kept")
    moved = next(row for row in rows if row["case"] == "moved")
    wanted = (
        ("kept", kept, 5.0),
        ("moved: pack", moved["pack_ns"], 30.0),
        ("moved: unpack", moved["unpack_ns"], 30.0),
    )
    return table(
        ("per saved tensor", "µs of the host", "target"),
        [(name, None if ns is None else ns / 1e3, target) for name, ns, target in wanted],
    )
