"""A long step that the mean leaves out, and that the step log knows to come back, is told once."""

from __future__ import annotations

import polars as pl
import pytest

from by_hand import SAVING, finding, page
from lostflops.causes.between_steps.recurring import joins_pauses
from lostflops.recipes.steps.log_core_waits import REMEDY

LONG = "Step 13 took 77.4 ms, 2.5 times the others; its training thread waited 39.1 ms for a processor core."
PAUSE = "Every 10th step is 30.0 ms longer (saving a checkpoint): 3.00 ms per step."


@pytest.mark.parametrize(
    ("first", "cause", "joined"), [(3, "checkpoint", True), (4, None, False), (3, "data", False)]
)
@pytest.mark.parametrize("then", [REMEDY, "Save less often."])
def test_a_pause_and_the_recorded_step_that_has_it_are_one(
    first: int, cause: str | None, joined: bool, then: str
) -> None:
    """Cores for the step would not keep the pause from coming back; what else is advised for it would."""
    pause = finding("pause-left-out", "", 3, PAUSE, accounts=(), next="`--steps 13` shows one.")
    step = finding("outlier-step", SAVING, 0, LONG, next=then)
    rows = {"rank": [0], "step": [13], "account": [SAVING]}
    log = {"rank": [0], "period": [10], "first_step": [first], "cause": [cause]}
    tables = {
        "outlier_steps": pl.DataFrame(rows),
        "step_log_pauses": pl.DataFrame(log, schema_overrides={"cause": pl.String}),
    }
    told = page(pause, step, join=joins_pauses, tables=tables)
    if not joined:
        assert told == [pause, step]
        return
    (one,) = told
    assert one.claim == PAUSE and LONG.rstrip(".") in one.evidence
    assert one.next == ("`--steps 13` shows one." if then == REMEDY else f"{then} `--steps 13` shows one.")


def test_another_long_step_of_the_same_account_stays_apart() -> None:
    pause = finding("pause-left-out", "", 3, PAUSE, accounts=())
    step = finding("outlier-step", SAVING, 0, LONG)
    rows = pl.DataFrame({"rank": [0, 0], "step": [13, 15], "account": [SAVING, SAVING]})
    log = pl.DataFrame({"rank": [0], "period": [10], "first_step": [3], "cause": ["checkpoint"]})
    told = page(pause, step, join=joins_pauses, tables={"outlier_steps": rows, "step_log_pauses": log})
    assert told == [pause, step]
