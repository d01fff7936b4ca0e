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
    device = setting.engine_device()
    with optimize.offload(model, plan="everything", threshold=256, device=device) as engine:
        for _ in range(STEPS):
            step()
        setting.synchronize()
        report = engine.report()
    return [report.to_json()]


def page(rows: list[dict[str, Any]]) -> str:
    (report,) = rows
    wanted = (
        ("kept", "keep_ns", 5.0),
        ("moved: pack", "pack_ns", 30.0),
        ("moved: unpack", "unpack_ns", 30.0),
    )
    return table(
        ("per saved tensor", "µs of the host", "target"),
        [
            (what, None if report[name] is None else report[name] / 1e3, target)
            for what, name, target in wanted
        ],
    )
