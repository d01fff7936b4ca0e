"""streaming: inference with weights that are larger than the device's budget, budget after budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed
from lostflops.plan.hardware import link

# 140 GB of weights, a model of 70 billion parameters in 16 bits, of which 100 GB travel per token.
TRAVELS = 100e9
PCIE5, C2C = (link(name).into for name in ("pcie5", "c2c"))


def _budgets(seen: Observed) -> Sequence[Mapping[str, Any]]:
    return seen.truth["budgets"]


def _moved(seen: Observed) -> list[Check]:
    """Per budget: what travelled is the layers that are not resident, once per pass."""
    checks: list[Check] = []
    for one in _budgets(seen):
        report = one["report"]
        due = seen.truth["passes"] * report["streamed_bytes"]
        # A copy that was asked for ahead when the last pass ended has travelled, too.
        right = due <= report["bytes_in"] <= due + report["slots"] * report["slot_bytes"]
        checks.append(
            Check(
                f"within {report['budget_bytes'] / 1e6:.1f} MB {report['layers_streamed']} layers travel "
                f"once per pass: {due / 1e6:.1f} MB, and at most what is asked for ahead",
                f"{report['bytes_in'] / 1e6:.1f} MB, {one['ms']:.0f} ms per pass",
                right and report["device_bytes_max"] <= report["budget_bytes"],
            )
        )
    return checks


def _check(least: Observed, larger: Observed) -> list[Check]:
    rows = [*_budgets(least), *_budgets(larger)]
    same = sum(bool(row["same"]) for row in rows)
    moved = [row["report"]["bytes_in"] for row in rows]
    return [
        Check("outputs are equal to the bit with every budget", f"{same} of {len(rows)}", same == len(rows)),
        *_moved(least),
        *_moved(larger),
        Check(
            "the larger the budget, the less travels; nothing once all weights fit",
            ", ".join(f"{size / 1e6:.1f} MB" for size in moved),
            moved == sorted(moved, reverse=True) and moved[-1] == 0,
        ),
    ]


EXERCISE = Exercise(
    name="streaming",
    title="Weight streaming over budgets",
    question="The weights are larger than the device: what does each budget cost per pass?",
    see="bytes per pass by budget, and the share of the copies that computation hides",
    expected=(
        "each layer that is not resident travels once per pass, however many tokens the pass has",
        (
            f"100 GB that travel take {TRAVELS / PCIE5:.1f} s over PCIe 5, "
            f"{TRAVELS / C2C:.2f} s over NVLink-C2C (formula)"
        ),
    ),
    fix="lostflops.optimize.stream_weights(model, budget=...): more of it, or more sequences per pass",
    script="workloads.streaming",
    sides=(
        ExerciseSide("the least budget that works", ("--budgets", "0")),
        ExerciseSide("half, three quarters and all of the weights", ("--budgets", "0.5,0.75,1")),
    ),
    check=_check,
    recorded=False,
)
