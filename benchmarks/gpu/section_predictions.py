"""What `lostflops plan offload` predicts from a profile and the measured link, beside what steps then take.

Budgets are shares of the peak of the step as it is. The plan of the last one is to decline: everything fits.
Gates: the peak within 5 %, the step within 10 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from page import gb, ms, table
from setting import Case, Setting, in_turns, middle, trained

TITLE = "Predicted and measured"
BUDGETS = (0.75, 0.9, 1.1)


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    card = optimize.measure_link(setting.engine_device(), [1 << n for n in (16, 20, 24)], under_gemm=False)
    found: list[dict[str, Any]] = []
    for tokens in setting.tokens:
        model = setting.model()
        batch = setting.batch(tokens, model.config.vocab_size)
        trained(model, batch)()
        profile = optimize.saved_tensors(model, batch)
        plans = {share: planned(profile, card, int(share * profile["peak_bytes"])) for share in BUDGETS}

        def of(plan: dict[str, Any] | None, model: Any = model, batch: Any = batch) -> Case:
            def case(undo: ExitStack) -> Any:
                engine = None
                decisions = set(plan["classes"].values()) if plan else set()
                if "recompute" in decisions and "offload" not in decisions:
                    undo.enter_context(optimize.checkpoint(model, plan=plan))
                if plan and "offload" in decisions:  # which also recomputes what the plan says
                    given: dict[str, Any] = {"plan": plan, "device": setting.engine_device()}
                    engine = undo.enter_context(
                        optimize.offload(model, threshold=plan["threshold_bytes"], **given)
                    )
                return trained(model, batch, remedy=engine)

            return case

        followed = {share: plan for share, plan in plans.items() if not plan["refused"]}
        cases = {"as it is": of(None)} | {str(share): of(plan) for share, plan in followed.items()}
        turns = in_turns(setting.part(tokens), cases)
        measured = {row["case"]: row for row in turns}
        for share, plan in plans.items():
            row = measured.get(str(share), measured["as it is"])
            found.append({"tokens": tokens, "budget_share": share, "plan": plan, **row})
        setting.save(found)
        del model, batch, cases
        setting.clear()
    return found


def planned(profile: dict[str, Any], card: dict[str, Any], budget: int) -> dict[str, Any]:
    """By the command that a user would type."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        (there / "profile.json").write_text(json.dumps(profile))
        (there / "link.json").write_text(json.dumps(card))
        command = [sys.executable, "-m", "lostflops", "plan", "offload", "--budget", str(budget)]
        for option in ("profile", "link"):
            command += [f"--{option}", str(there / f"{option}.json")]
        done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)


def page(rows: list[dict[str, Any]]) -> str:
    found: list[tuple[Any, ...]] = []
    for row in rows:
        plan, step, peak = row["plan"], middle(row["step_ns"]), row["peak_bytes"]
        predicted = plan["predicted"]["without"] if plan["refused"] else plan["predicted"]
        found.append(
            (
                row["tokens"],
                f"{row['budget_share']:.0%}",
                plan["refused"] or f"moves {predicted['bytes_out'] / 1e9:.2f} GB",
                ms(predicted["step_ns"]),
                ms(step),
                None if not step else f"{predicted['step_ns'] / step - 1:+.1%}",
                gb(predicted["peak_bytes"]),
                gb(peak),
                None if not peak else f"{predicted['peak_bytes'] / peak - 1:+.1%}",
                row.get("failed", ""),
            )
        )
    header = (
        "tokens",
        "budget",
        "plan",
        "step, ms: predicted",
        "measured",
        "",
        "peak, GB: predicted",
        "measured",
    )
    return table((*header, "", "failed"), found)
