"""g1: LoRA fine-tuning with and without loader workers."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.lab.exercises.offered.slow_data import WORKERS, waiting

LAYERS, HIDDEN, KV, RANK = 4, 128, 64, 16
# A query's update has a matrix of rank x hidden and one back, a value's one back to its own width.
TRAINED = LAYERS * RANK * (HIDDEN + HIDDEN + HIDDEN + KV)


def _check(faulty: Observed, fixed: Observed) -> list[Check]:
    return [
        counted("parameters that are trained", TRAINED, faulty.truth["trained"]),
        *waiting(faulty, fixed),
    ]


EXERCISE = Exercise(
    name="g1",
    title="LoRA and loader workers",
    question="LoRA trains less than 4 % of a small model's weights: does that make the input cheaper, too?",
    see="a shorter optimizer, the same wait for data",
    expected=(
        f"{TRAINED:,} weights are trained: rank 16 beside queries and values of 4 layers",
        "the wait for data follows the same law as in 1a",
    ),
    fix="DataLoader(num_workers=4, persistent_workers=True)",
    words=("--lora", "--input-ms", "10", "--layer-ms", "4", "--seq", "16"),
    sides=(
        ExerciseSide("no workers"),
        ExerciseSide(f"{WORKERS} workers", ("--dataloader-workers", str(WORKERS))),
    ),
    check=_check,
)
