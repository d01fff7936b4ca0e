"""What a replay is asked, and its answer believed, where one rank pauses and the others wait for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from by_hand import EVEN, MS, finding
from lostflops.causes import findings, predicted
from lostflops.causes.given import Given
from lostflops.finding import Finding, PredictedGain


@pytest.mark.parametrize(
    ("low", "high", "first"), [(-40, 100, "saves"), (0, 100, "sends"), (-40, 99, "sends")]
)
def test_a_replay_that_may_gain_all_or_lose_leaves_a_cause_in_its_place(
    low: int, high: int, first: str
) -> None:
    """A checkpoint of one rank stood behind the communication that it delays."""
    gain = PredictedGain(ns=15, low_ns=low, high_ns=high)
    session: Any = SimpleNamespace(
        trace=SimpleNamespace(manifest=SimpleNamespace(num_events=9)),
        predicted=lambda edits: dict.fromkeys(edits, gain),
    )
    asked = [
        Finding("saves", "Saves.", "at most", (), "", ns_per_step=100, edit="host:checkpoint-logging=0ms"),
        Finding("sends", "Sends.", "at most", (), "", ns_per_step=60),
    ]
    assert predicted(tuple(asked), session, 500)[0].name == first


@pytest.mark.parametrize(
    ("name", "account", "edit"),
    [
        ("checkpoint-inside-step", "idle.checkpoint_logging", "host:checkpoint-logging=0ms"),
        ("x", "compute", "even-ranks:1"),
    ],
)
def test_what_one_rank_pauses_for_is_what_a_replay_takes_away(name: str, account: str, edit: str) -> None:
    """A late rank made like the others has less to compute, too: more than its checkpoint."""
    fault = finding(name, account, 9, rank=1, recipe="x" if name == "x" else "idle_summary")
    ledger = pl.DataFrame(EVEN, ["rank", "step", "account", "ns"], orient="row")
    answers: Any = {"x": SimpleNamespace(findings=(fault,), table=pl.DataFrame())}
    (found,) = findings(Given(answers, ledger.with_columns(pl.col("ns") * MS, start=1000 * pl.col("step"))))
    assert found.edit == edit
