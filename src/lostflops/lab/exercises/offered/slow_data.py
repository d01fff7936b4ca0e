"""1a: the model waits for its input."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, near

DATA = ("data-loading-starves-device", "data-wait-outside-window")
WORKERS = 4


def waiting(faulty: Observed, fixed: Observed) -> list[Check]:
    """What holds of every job that waits for its loader, and no longer does with workers."""
    truth = faulty.input_ms
    first, page = faulty.first, faulty.account("idle.data_loading")
    law = max(faulty.step_ms - truth, truth / WORKERS)
    gain = faulty.step_ms - fixed.step_ms
    predicted = first.predicted.ns / 1e6 if first is not None and first.predicted is not None else None
    left = fixed.account("idle.data_loading")
    return [
        Check(
            "without workers the first finding is the data loader",
            first.claim if first else "no finding",
            first is not None and first.name in DATA,
        ),
        Check(
            f"the page says that the job waits {truth:.0f} ms per step for it, as it measured itself (±10 %)",
            f"{page:.1f} ms",
            near(page, truth, 0.1),
        ),
        Check(
            f"with {WORKERS} workers a step takes max(compute, input / {WORKERS}) = {law:.0f} ms (±25 %)",
            f"{faulty.step_ms:.0f} ms became {fixed.step_ms:.0f} ms",
            near(fixed.step_ms, law, 0.25),
        ),
        Check(
            "the predicted gain is within 25 % of the measured one",
            "no prediction" if predicted is None else f"predicted {predicted:.0f} ms, measured {gain:.0f} ms",
            predicted is not None and near(predicted, gain, 0.25),
        ),
        Check(
            "with workers less than 2 % of a step waits for data",
            f"{100 * left / fixed.page_step_ms:.1f} %",
            left < 0.02 * fixed.page_step_ms,
        ),
    ]


EXERCISE = Exercise(
    name="1a",
    title="Slow data loading",
    question="What does a job look like whose model waits for its input, and what do loader workers gain?",
    see="the account 'data loading', and the finding with its remedy; with workers both are gone",
    expected=(
        "without workers a step takes input + compute; with W workers max(compute, input / W)",
        "only loading during which nothing computes is lost time",
    ),
    fix="DataLoader(num_workers=4, persistent_workers=True)",
    words=("--input-ms", "10", "--layer-ms", "4", "--seq", "16"),
    sides=(
        ExerciseSide("no workers: samples are made between the steps"),
        ExerciseSide(f"{WORKERS} workers make samples ahead", ("--dataloader-workers", str(WORKERS))),
    ),
    check=waiting,
)
