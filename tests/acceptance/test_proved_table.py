"""The table of proven faults says what was predicted beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .grading import Page
from .proved import Measured, promised, summary, table
from .real import SCRIPT
from .tuned import CASES, row

TUNED: dict[str, Any] = {
    "kept": ["gc-freeze"], "headline": "x", "seconds": 90.0, "runs": 9,
    "trials": [
        {"remedy": "gc-freeze", "kept": True, "predicted": {"gain": 0.8}, "at_most": None,
         "measured": {"ratio": 0.2, "low": 0.1, "high": 0.25, "pairs": 4, "loss": "bit-identical"}}
    ],
}  # fmt: skip
GOOD = Measured("a loader", True, 0.6, "", 0.62, 0.55, 0.67, 3, "faster")


def page(**predicted: Any) -> Page:
    told = {"ns": 30, "refused": "", **predicted}
    ledger = [{"rank": 0, "step": step, "ns": ns} for step in (1, 2) for ns in (40, 10)]
    return Page({"findings": [{"predicted": told}], "ledger": ledger}, "")


def test_the_predicted_gain_is_a_share_of_the_mean_step() -> None:
    assert promised(page()) == (0.6, "")
    assert promised(page(refused="the replay is off")) == (None, "the replay is off")
    assert promised(Page({"findings": []}, "")) == (None, "no finding")


def test_a_row_has_the_prediction_and_the_interval() -> None:
    assert table([GOOD])[-1] == (
        "| a loader | yes | 60.0 % | 62.0 % (faster) | 55.0 % to 67.0 % | 3 | within a quarter |"
    )
    assert "**further off**" in table([replace(GOOD, predicted=0.3)])[-1]
    assert "| **no** | none: why |" in table([replace(GOOD, named=False, predicted=None, why_not="why")])[-1]


def test_the_summary_counts_what_could_be_judged() -> None:
    found = [
        GOOD,
        replace(GOOD, named=None, predicted=None),
        replace(GOOD, named=False, predicted=0.1, gain=0.9),
    ]
    said = summary(found)
    assert "names the fault in 1 of 2 jobs" in said
    assert "measured one in 1 of 2; guessing that all of the step goes, in 1 of 3" in said


def test_a_tuned_job_is_right_if_the_remedy_of_its_fault_stayed() -> None:
    cases = {case.name: case for case in CASES}
    line, right = row(cases["gc"], TUNED)
    assert right and line == (
        "| gc.collect() in each step | gc-freeze | yes | 80.0 % | 80.0 % (75.0 to 90.0), 4 pairs | "
        "bit-identical | 1.5 min, 9 starts |"
    )
    assert not row(cases["loader"], TUNED)[1] and not row(cases["healthy"], TUNED)[1]
    assert row(cases["healthy"], {**TUNED, "kept": [], "trials": []})[1]


def test_the_job_of_the_suite_knows_the_faults_that_are_tuned() -> None:
    source = SCRIPT.read_text()
    for case in CASES:
        if case.remedy:
            assert f'"{case.options[1]}"' in source
