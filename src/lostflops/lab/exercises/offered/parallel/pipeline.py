"""3a: the bubble of a pipeline, by the number of microbatches."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed

STAGES, FEW, MANY = 2, 4, 16


def formula(microbatches: int) -> float:
    """The share of a step in which a stage of equal cost idles, with 1F1B."""
    return (STAGES - 1) / (microbatches + STAGES - 1)


def bubble(seen: Observed) -> float:
    """The same as the job measured it: what of its step its own stage does not work."""
    return 1 - seen.truth["work_ms"] / seen.truth["step_ms"]


def _waiting(seen: Observed) -> float:
    return seen.account("communication.wait", "idle.pipeline_bubble") / seen.page_step_ms


def _check(few: Observed, many: Observed) -> list[Check]:
    first = few.first
    waits = (_waiting(few), _waiting(many))
    return [
        Check(
            f"with {FEW} microbatches stages idle for at least {formula(FEW):.0%} of a step, by the formula",
            f"{bubble(few):.1%} by the job's clock",
            bubble(few) >= formula(FEW) - 0.01,
        ),
        Check(
            "the first finding is that stages wait for each other",
            first.claim if first else "no finding",
            first is not None and "tages wait" in first.claim,
        ),
        Check(
            f"with {MANY} the page shows less than half of that waiting (formula: {formula(MANY):.1%})",
            f"{waits[0]:.1%} became {waits[1]:.1%}",
            waits[1] < waits[0] / 2,
        ),
    ]


EXERCISE = Exercise(
    name="3a",
    title="The bubble of a pipeline",
    question="Two stages, 1F1B: how much of a step do they wait for each other?",
    see="waiting in sends and receives; where messages take time it is more than the formula",
    expected=(f"(p-1)/(m+p-1) of a step: 20 % with {FEW} microbatches, 5.9 % with {MANY}",),
    fix="more microbatches per step: a larger global batch, or smaller microbatches",
    script="pipeline",
    ranks=STAGES,
    words=(),
    steps=12,
    sides=(
        ExerciseSide(f"{FEW} microbatches", ("--microbatches", str(FEW))),
        ExerciseSide(f"{MANY} microbatches", ("--microbatches", str(MANY))),
    ),
    check=_check,
)
