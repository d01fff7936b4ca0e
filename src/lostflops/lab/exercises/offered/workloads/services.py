"""services: a gateway, replicas of a model and a collector; one replica becomes slower and slower."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed
from lostflops.watch.job import Happened, Watch

DRIFTS = 2


def watched(seen: Observed) -> list[Happened]:
    """What a watch tells of the replicas' logs: which of them became slower."""
    watch = Watch(Path(seen.run))
    return [one for one in watch.look() + watch.finish() if one.kind in ("rank", "job") and one.bad]


def _told(found: list[Happened]) -> str:
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
            bool(found) and {one.rank for one in found} == {DRIFTS},
        ),
        Check(
            f"it dates the change within 40 requests of {since}, from which on each takes longer",
            "nothing found" if first is None else f"request {first.step}",
            first is not None and first.step is not None and since <= first.step <= since + 40,
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
