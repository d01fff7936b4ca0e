"""2b: communication that runs beside the backward pass, and that does not."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed


def _hidden(seen: Observed) -> float:
    """The share of communication time that compute hides."""
    table = seen.ask("communication_exposed")
    hidden, exposed = int(table["hidden"].sum()), int(table["exposed"].sum())
    return hidden / max(1, hidden + exposed)


def _check(faulty: Observed, fixed: Observed) -> list[Check]:
    none, some = _hidden(faulty), _hidden(fixed)
    return [
        Check("where every bucket is waited for, no communication is hidden", f"{none:.1%}", none == 0),
        Check("with DDP's overlap at least a third of it is", f"{some:.1%}", some >= 1 / 3),
    ]


EXERCISE = Exercise(
    name="2b",
    title="Communication without overlap",
    question="Gradients can be reduced while the backward pass goes on: what if they are not?",
    see="the account 'exposed communication', and the share that is hidden",
    expected=(
        "none of the communication is hidden where each bucket is waited for",
        "with overlap all but the last bucket can be",
    ),
    fix="remove the hook that waits, and `torch.cuda.synchronize()` from the backward pass",
    ranks=2,
    steps=14,
    words=("--model", "mistral-tiny", "--layer-ms", "3", "--micro-batch-size", "2"),
    sides=(ExerciseSide("a hook waits for each bucket", ("--no-overlap",)), ExerciseSide("DDP overlaps")),
    check=_check,
)
