"""What a page says of predicted gains: the number, what it lies between, its bound, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lostflops import causes
from lostflops.causes.gains import MOST_EDITS, MOST_EVENTS
from lostflops.errors import LostflopsError
from lostflops.finding import Finding, PredictedGain
from lostflops.report.terminal import about_gains, gain, whatif

MS = 1_000_000
STEP = 100 * MS
TWENTY = "predicted 20.0 ms per step (20.0 %)"
EITHER = "a replay cannot tell: between a loss of"
LOSS = "predicted a loss of 5.00 ms per step (5.0 %)"
WHOLE: Any = SimpleNamespace(ns=2 * STEP, num_windows=2)  # what is read of a Budget


def a_finding(edit: str = "even-work", ns: int = 30 * MS, **more: Any) -> Finding:
    return Finding("slow", "It is slow.", "at most", ("why",), "mend it", ns_per_step=ns, edit=edit, **more)


class Replays:
    """A session whose replays gain as asked, and that keeps what it was asked."""

    def __init__(self, gains: dict[str, PredictedGain] | None, num_events: int = 1000) -> None:
        self.trace = SimpleNamespace(manifest=SimpleNamespace(num_events=num_events))
        self.asked: list[str] = []
        self._gains = gains

    def predicted(self, edits: Sequence[str]) -> dict[str, PredictedGain]:
        self.asked += edits
        if self._gains is None:
            raise LostflopsError("nothing to replay")
        return {e: self._gains.get(e, PredictedGain(ns=25 * MS, high_ns=25 * MS)) for e in edits}


def predicted(findings: Sequence[Finding], session: Any) -> tuple[Finding, ...]:
    return causes.predicted(tuple(findings), session, STEP)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (PredictedGain(20 * MS, 15 * MS, 24 * MS), f"{TWENTY}, between 15.0 ms and 24.0 ms; "),
        (PredictedGain(20 * MS, -3 * MS, 24 * MS), f"{EITHER} 3.00 ms and a gain of 24.0 ms; "),
        (PredictedGain(20 * MS, -100, 24 * MS), f"{TWENTY}, between nothing and 24.0 ms; "),
        (PredictedGain(20 * MS, 100, 24 * MS), f"{TWENTY}, between nothing and 24.0 ms; "),
        (PredictedGain(100, -2 * MS, 3 * MS), f"{EITHER} 2.00 ms and a gain of 3.00 ms; "),
        (PredictedGain(0, 0, 0), "predicted no gain; "),
        (PredictedGain(-5 * MS, -6 * MS, -MS), f"{LOSS}, between a loss of 6.00 ms and a loss of 1.00 ms; "),
        (PredictedGain(-5 * MS, -6 * MS, 4 * MS), f"{EITHER} 6.00 ms and a gain of 4.00 ms; "),
        (PredictedGain(refused="no"), ""),
        (PredictedGain(refused="no", of_edit=True), ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_gain_is_told_with_what_it_lies_between_and_its_bound(
    known: PredictedGain | None, expected: str
) -> None:
    told = gain(a_finding(predicted=known), WHOLE)
    after = "; not predicted: no" if known is not None and known.of_edit else ""
    assert told == f"{expected}at most 30.0 ms per step (30.0 %){after}"


def test_a_rank_whose_replay_gains_nothing_is_not_late_alone() -> None:
    """Both ranks of a stage copy: the one that comes last is told as late, and to mend it alone is no use."""
    claim = "Rank 1 is 30.0 ms late per step (30.0 %): 31.0 ms of copies; the others wait 30.0 ms for it."
    late = replace(a_finding(edit="even-ranks:1", rank=1), claim=claim)
    for high, says in (
        (0.9, "Ranks wait 30.0 ms per step (30.0 %), most of it for rank 1: 31.0"),
        (1.1, claim),
    ):
        found = Replays({"even-ranks:1": PredictedGain(0, -MS, round(high * MS))})
        (told,) = predicted([late], found)
        assert told.claim.startswith(says)
    assert told.evidence == ("why",)


def test_a_rank_that_surely_costs_less_than_it_is_late_by_is_told_by_what_it_costs() -> None:
    """A stage of a pipeline is late by 30 ms, half of which the others wait for the schedule anyway."""
    claim = (
        "Rank 1 is 30.0 ms late per step (30.0 %): 31.0 ms of data loading; the others wait 30.0 ms for it."
    )
    late = replace(a_finding(edit="even-ranks:1", rank=1), claim=claim)
    surely = PredictedGain(14 * MS, 12 * MS, 15 * MS)
    waits = replace(a_finding("", 20 * MS), name="pipeline-bubble")
    bubble, told = predicted([late, waits], Replays({late.edit: surely}))
    assert told.claim == "Rank 1 makes a step 14.0 ms longer (14.0 %): 31.0 ms of data loading."
    assert told.evidence[0].startswith("it comes 30.0 ms late, but the others wait for each other too")
    assert (told.size, bubble.size) == (14 * MS, 20 * MS)
    for gains in (PredictedGain(14 * MS, 12 * MS, 29 * MS), PredictedGain(5 * MS, 4 * MS, 6 * MS)):
        assert claim in {f.claim for f in predicted([late, waits], Replays({late.edit: gains}))}
    assert predicted([late], Replays({late.edit: surely}))[0].claim == claim


def test_a_gain_of_an_unknown_bound_is_predicted_or_unknown() -> None:
    unknown = Finding("slow", "It is slow.", "unknown", ("why",), "mend it", edit="even-work")
    assert gain(unknown, WHOLE) == "unknown"
    known = Finding("slow", "It.", "unknown", (), "", predicted=PredictedGain(MS, MS, MS))
    assert gain(known, WHOLE) == "predicted 1.00 ms per step (1.0 %), between 1.00 ms and 1.00 ms"


def test_the_foot_says_what_the_replay_misses_or_why_it_is_refused() -> None:
    sure = a_finding(predicted=PredictedGain(MS, MS, MS, error=0.0034))
    refused = a_finding(predicted=PredictedGain(refused="launches are missing", error=0.2))
    off = "Predicted by replay, which is 0.3 % off on the unchanged job."
    adding = "Gains of several findings do not add up."
    assert about_gains([sure]) == off
    assert about_gains([refused]) == "No gain is predicted: launches are missing."
    assert about_gains([refused, refused]) == f"No gain is predicted: launches are missing. {adding}"
    of_edit = a_finding(predicted=PredictedGain(refused="nothing to overlap", of_edit=True))
    assert about_gains([of_edit]) == ""
    assert about_gains([sure, of_edit]) == f"{off} {adding}"
    assert (
        about_gains([a_finding(predicted=PredictedGain(MS, -2 * MS, 3 * MS))]) == ""
    )  # nothing is predicted
    assert about_gains([a_finding()]) == ""
    assert about_gains([a_finding(), a_finding()]) == adding


def test_what_is_refused_is_not_offered() -> None:
    assert whatif(a_finding(), "run") == "lostflops whatif run even-work"
    assert whatif(a_finding(predicted=PredictedGain(refused="no")), "run") == ""


def test_the_costliest_edits_are_replayed_once_and_told_at_the_first_finding() -> None:
    edits = [f"no-cause:{n}" for n in range(MOST_EDITS + 2)]
    findings = [a_finding(edit) for edit in edits[:1] + edits]
    session = Replays({edits[0]: PredictedGain(20 * MS, MS, 30 * MS)})
    told = predicted(findings, session)
    assert session.asked == edits[:MOST_EDITS]
    assert told[0].predicted == PredictedGain(20 * MS, MS, 30 * MS)
    assert told[1].predicted is None
    assert [f.predicted is not None for f in told[2:]] == [True] * (MOST_EDITS - 1) + [False] * 2


@pytest.mark.parametrize(
    ("replayed", "bound"), [(20 * MS, 30 * MS), (45 * MS, 45 * MS), (2 * STEP, STEP), (-MS, 30 * MS)]
)
def test_a_bound_below_the_replay_yields_to_it_within_the_step(replayed: int, bound: int) -> None:
    (told,) = predicted([a_finding()], Replays({"even-work": PredictedGain(replayed, replayed, replayed)}))
    assert told.ns_per_step == bound


def test_no_prediction_reaches_above_the_bound() -> None:
    (told,) = predicted([a_finding()], Replays({"even-work": PredictedGain(20 * MS, MS, 35 * MS)}))
    assert told.predicted == PredictedGain(20 * MS, MS, 30 * MS)


def test_a_refusal_or_an_unknown_leave_the_bound_alone() -> None:
    (told,) = predicted([a_finding()], Replays({"even-work": PredictedGain(refused="no")}))
    assert told.ns_per_step == 30 * MS
    assert told.predicted is not None
    unknown = Finding("slow", "It.", "unknown", (), "", edit="even-work", cost_per_step=30 * MS)
    (told,) = predicted([unknown], Replays({"even-work": PredictedGain(MS, MS, MS)}))
    assert told.ns_per_step == 0


def test_nothing_is_replayed_for_little_for_nothing_or_for_too_much() -> None:
    little = a_finding(ns=MS // 2)
    for findings, session in (
        ([little], Replays({})),
        ([a_finding(edit="")], Replays({})),
        ([a_finding()], Replays({}, num_events=MOST_EVENTS + 1)),
        ([], Replays({})),
    ):
        assert predicted(findings, session) == tuple(findings)
        assert session.asked == []
    assert predicted([a_finding()], Replays(None)) == (a_finding(),)


def test_what_gains_far_less_than_it_costs_comes_after_what_gains_more() -> None:
    """A cost that no edit removes is no reason to read it first; near misses keep the order of cost."""

    def order(*gains: tuple[int, int | None]) -> list[int]:
        findings = [a_finding(f"no-cause:{n}", cost * MS) for n, (cost, _) in enumerate(gains)]
        known = {
            f"no-cause:{n}": PredictedGain(refused="no") if gain is None else PredictedGain(gain * MS)
            for n, (_, gain) in enumerate(gains)
        }
        told = predicted(findings, Replays(known))
        return [int(f.edit.partition(":")[2]) for f in told]

    assert order((17, 0), (13, 12)) == [1, 0]
    assert order((17, 9), (13, 12)) == [0, 1]
    assert order((17, -3), (13, None)) == [1, 0]
    assert order((17, None), (13, 40)) == [0, 1]
    assert order((40, 10), (30, 12), (20, 8)) == [1, 0, 2]
    assert order((5, 5), (40, 3), (30, 28)) == [0, 2, 1]
    assert order((17, 0), (13, 0)) == [0, 1]
