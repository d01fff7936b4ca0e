"""services: a gateway, replicas of a model and a collector; one replica becomes slower and slower."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from lostflops.errors import LostflopsError, shown
from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed
from lostflops.lab.exercises.running import OURS

DRIFTS = 2


class BecameSlower(NamedTuple):
    """A change that the watch tells of: whose, from which request on, and in its words."""

    replica: int | None  # None: of all together
    request: int
    text: str


def watched(seen: Observed) -> list[BecameSlower]:
    """What `lostflops watch` tells of the replicas' logs: which of them became slower."""
    done = subprocess.run(
        [*OURS, "watch", str(seen.run), "--once"],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    if done.returncode > 1:
        raise LostflopsError(f"`lostflops watch` failed: {shown(done.stderr.strip())}")
    found = re.finditer(r"(?:rank (\d+) \(|the job).* slower since step ([\d,]+).*", done.stdout)
    return [
        BecameSlower(int(one[1]) if one[1] else None, int(one[2].replace(",", "")), one[0].rstrip())
        for one in found
    ]


def _told(found: Sequence[BecameSlower]) -> str:
    return "; ".join(one.text for one in found) or "nothing"


def _check(drifting: Observed, steady: Observed) -> list[Check]:
    found, other = watched(drifting), watched(steady)
    first = found[0] if found else None
    since: int = drifting.truth["since"]
    same = drifting.truth["answers"] == steady.truth["answers"]
    late = drifting.truth["ms"][str(DRIFTS)]
    return [
        Check("both answer the same", "every request" if same else "they differ", same),
        Check(
            f"`lostflops watch` names replica {DRIFTS} and no other",
            _told(found),
            bool(found) and {one.replica for one in found} == {DRIFTS},
        ),
        Check(
            f"it dates the change within 40 requests of {since}, from which on each takes longer",
            "nothing found" if first is None else f"request {first.request}",
            first is not None and since <= first.request <= since + 40,
        ),
        Check(
            "its last 20 requests take a good third longer than its first 100 (medians)",
            f"{median(late[:100]):.1f} ms, then {median(late[-20:]):.1f} ms",
            median(late[-20:]) > 1.33 * median(late[:100]),
        ),
        Check("it names none where no replica drifts", _told(other), not other),
    ]


EXERCISE = Exercise(
    name="services",
    title="Three services, and a replica that drifts",
    question="A model has four replicas, and answers become later: which replica is it, and since when?",
    see="`lostflops watch` of the folder recording/: replicas stand there as ranks, requests as steps",
    expected=(
        f"replica {DRIFTS} takes 1 % longer with each request, up to half as long again",
        "the other replicas are as fast as before, so that a mean over all hides three quarters of it",
    ),
    fix="restart the replica that the watch names (--when-slow COMMAND), then look for what grows in it",
    script="workloads.services",
    sides=(
        ExerciseSide("one replica becomes slower", ("--drift", str(DRIFTS))),
        ExerciseSide("none does"),
    ),
    check=_check,
    recorded=False,
)
