"""bf16 against FP8 matrix products with bf16 around them, each compiled and not; and the losses of both."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from page import gb, ms, share, table
from setting import Case, Setting, in_turns, middle, trained

TITLE = "FP8 against bf16"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    tokens = setting.tokens[0]

    def of(recipe: str | None, compiled: bool) -> Case:
        def case(undo: ExitStack) -> Any:
            model = setting.model()
            batch = setting.batch(tokens, model.config.vocab_size)
            if recipe:
                optimize.to_fp8(model, recipe=recipe, small=setting.threads)
            return trained(torch.compile(model) if compiled else model, batch)

        return case

    cases = {"bf16": of(None, False)}
    if not setting.threads:
        cases |= {"bf16, compiled": of(None, True)}
        cases |= {f"FP8 {recipe}, compiled": of(recipe, True) for recipe in ("tensorwise", "rowwise")}
    else:
        cases |= {"FP8 tensorwise, emulated": of("tensorwise", False)}
    return [*in_turns(setting, cases), _parity(setting)]


def _parity(setting: Setting) -> dict[str, Any]:
    """Losses of FP8 beside those of bf16 over the same steps."""
    from lostflops import optimize

    tokens = min(setting.tokens[0], 1024)

    def make_step(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(number: int) -> Any:
            made = torch.Generator().manual_seed(number)
            ids = torch.randint(model.config.vocab_size, (1, tokens), generator=made).to(setting.device)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return step

    found = optimize.loss_parity(
        lambda: setting.model(layers=4),
        make_step,
        {"FP8 rowwise": lambda model: optimize.to_fp8(model, small=setting.threads)},
        steps=4 if setting.threads else 50,
    )
    return {
        "case": "loss parity",
        "step_ns": [],
        "peak_bytes": None,
        "parity": found.record(),
        "said": str(found),
    }


def page(rows: list[dict[str, Any]]) -> str:
    said = [row["said"] for row in rows if "said" in row]
    rows = [row for row in rows if "said" not in row]
    base = middle(rows[0]["step_ns"])
    timed = table(
        ("", "step, ms", "over bf16", "peak, GB", "failed"),
        [
            (
                row["case"],
                ms(middle(row["step_ns"])),
                share(middle(row["step_ns"]), base),
                gb(row["peak_bytes"]),
                row.get("failed"),
            )
            for row in rows
        ],
    )
    return "\n\n".join([timed, *(f"```text\n{text}\n```" for text in said)])
