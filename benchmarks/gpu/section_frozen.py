"""LoRA with frozen weights streamed from host memory: all resident, half of them, and as few as can be.

The longer the sequence, the more compute there is to hide the copies behind; the knee is predicted near
F / B_in tokens, from the rates that are measured here.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from page import gb, ms, share, table
from setting import Case, Setting, in_turns, middle, trained

TITLE = "Frozen weights streamed during LoRA"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    found: list[dict[str, Any]] = []
    for tokens in setting.tokens:
        model = setting.model()
        optimize.lora(model)
        model.train()
        batch = setting.batch(tokens, model.config.vocab_size)
        frozen = sum(p.numel() * p.element_size() for p in model.parameters() if not p.requires_grad)
        least = least_resident(model, setting)

        def case_of(resident: int | None, model: Any = model, batch: Any = batch) -> Case:
            def case(undo: ExitStack) -> Any:
                streaming = None
                if resident is not None:
                    device = setting.engine_device()
                    streaming = undo.enter_context(
                        optimize.stream_frozen(model, resident=resident, device=device)
                    )
                return trained(model, batch, remedy=streaming)

            return case

        cases = {
            "all resident": case_of(None),
            "half resident": case_of(max(least, frozen // 2)),
            "least resident": case_of(least),
        }
        found += [
            {"tokens": tokens, "frozen_bytes": frozen, **row}
            for row in in_turns(setting.part(tokens), cases, 2, 2, {"tokens": tokens}, found)
        ]
        del model, batch, cases
        setting.clear()
    return found


def least_resident(model: Any, setting: Setting) -> int:
    """The smallest budget that works, as the refusal of a smaller one says."""
    import re

    from lostflops import optimize

    try:
        optimize.stream_frozen(model, resident=0, device=setting.engine_device()).close()
    except optimize.Refused as error:
        numbers = [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]{3,}", error.hint)]
        if numbers:
            return max(numbers)
        raise
    return 0


def page(rows: list[dict[str, Any]]) -> str:
    bases = {row["tokens"]: row for row in rows if row["case"] == "all resident"}
    found: list[tuple[Any, ...]] = []
    for row in rows:
        step, report = middle(row["step_ns"]), row.get("report") or {}
        hidden = report.get("hidden_share")
        found.append(
            (
                row["tokens"],
                row["case"],
                ms(step),
                share(step, middle(bases[row["tokens"]]["step_ns"])),
                gb(row["peak_bytes"]),
                gb(report.get("bytes_in")),
                gb(report.get("bytes_out")),
                None if hidden is None else f"{hidden:.1%}",
                row.get("failed", ""),
            )
        )
    header = ("tokens", "", "step, ms", "over all", "peak, GB", "GB in", "GB out", "hidden", "failed")
    return table(header, found)
