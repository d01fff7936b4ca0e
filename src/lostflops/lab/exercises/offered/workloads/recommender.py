"""recommender: three stages in processes of their own, one of which is slower than requests arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted, near

REQUESTS, EVERY_MS = 120, 25.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least that share does not exceed."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def slowest(seen: Observed) -> str:
    """The stage in front of which requests wait the longest."""
    stages: dict[str, dict[str, list[float]]] = seen.truth["stages"]
    return max(stages, key=lambda name: percentile(stages[name]["waited"], 0.5))


def _table(seen: Observed) -> str:
    stages: dict[str, Any] = seen.truth["stages"]
    told = [
        f"{name} waits {percentile(one['waited'], 0.5):.0f}, works {percentile(one['worked'], 0.5):.0f}"
        for name, one in stages.items()
    ]
    whole = seen.truth["whole"]
    return (
        f"{'; '.join(told)} ms (medians); all {percentile(whole, 0.5):.0f}, p99 {percentile(whole, 0.99):.0f}"
    )


def _growth(seen: Observed) -> float:
    """By how much each request waits longer than the one before, from the first quarter to the last."""
    waited = seen.truth["stages"]["candidates"]["waited"]
    quarter = len(waited) // 4
    first, last = sum(waited[:quarter]) / quarter, sum(waited[-quarter:]) / quarter
    return (last - first) / (len(waited) - quarter)


def _excess(seen: Observed) -> float:
    """What the stage takes beyond the time between two requests: the growth that follows, by the law."""
    worked = seen.truth["stages"]["candidates"]["worked"]
    return sum(worked) / len(worked) - EVERY_MS


def _check(scan: Observed, index: Observed) -> list[Check]:
    same = scan.truth["ranked"] == index.truth["ranked"]
    waits = [percentile(seen.truth["stages"]["candidates"]["waited"], 0.5) for seen in (scan, index)]
    return [
        counted("requests answered", REQUESTS, len(scan.truth["whole"])),
        Check("both answer the same", "every list" if same else "they differ", same),
        Check("requests wait in front of the candidates", _table(scan), slowest(scan) == "candidates"),
        Check(
            f"each waits {_excess(scan):.1f} ms longer there than the one before: what the stage takes "
            f"beyond the {EVERY_MS:.0f} ms between two requests (±25 %)",
            f"{_growth(scan):.1f} ms",
            near(_growth(scan), _excess(scan), 0.25),
        ),
        Check(
            "with an index they wait less than a tenth of it", _table(index), waits[1] < waits[0] / 10
        ),
    ]  # fmt: skip


EXERCISE = Exercise(
    name="recommender",
    title="A recommender of three processes",
    question="Requests arrive every 25 ms and a stage takes 30: which one, and where does their time go?",
    see="time in front of each stage beside time in it; the median and the 99th percentile of the whole",
    expected=(
        "a stage that is slower than requests arrive makes each wait longer than the one before",
        "the other stages wait for it, however fast they are",
    ),
    fix="an index in the place of a scan over all items; or a second process for that stage",
    script="workloads.recommender",
    sides=(
        ExerciseSide("candidates are found by a scan over all items"),
        ExerciseSide("an index finds them in a third of the time", ("--index",)),
    ),
    check=_check,
    recorded=False,
)
