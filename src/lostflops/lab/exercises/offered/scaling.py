"""g4: fp16 with a scaled loss, and the steps that it skips."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.lab.exercises.offered.precision import products

SCALE = 2.0**40  # far too large, so that the search for a scale can be seen
STEPS = 44


def _check(full: Observed, half: Observed) -> list[Check]:
    (none, of), (some, of_half) = products(full, "Half"), products(half, "Half")
    report = half.truth["remedy"]
    skipped: list[int] = report["skipped_steps"]
    logged = float(half.ask("step_log_summary")["steps"].sum())
    losses = half.truth["losses"]
    return [
        Check("in fp32 no matrix product is fp16", f"{none} of {of}", none == 0 and of > 0),
        Check("under autocast at least 95 % are", f"{some} of {of_half}", some >= 0.95 * of_half > 0),
        Check(
            "the search for a scale begins with skipped steps, and ends",
            f"{len(skipped)} of {STEPS}, the last is step {skipped[-1]}" if skipped else "none",
            skipped[:1] == [1] and skipped[-1] < STEPS,
        ),
        counted("each halves the scale: first / 2^skipped", SCALE / 2.0 ** len(skipped), report["scale"]),
        Check(
            "an overflow never reaches the weights: no loss is NaN",
            f"{sum(loss == loss for loss in losses)} of {len(losses)} losses are numbers",
            all(loss == loss for loss in losses),
        ),
        counted("the step log counts skipped steps, too", STEPS, logged),
    ]


EXERCISE = Exercise(
    name="g4",
    title="fp16 and its loss scale",
    question="fp16 halves the operands, but its range is small: what does the scaled loss cost?",
    see="the types of matrix products, and the steps that an overflow skips",
    expected=(
        "matrix products run in fp16; weights stay fp32",
        "an overflow skips the optimizer and halves the scale; bf16 has fp32's range and needs no scale",
    ),
    fix="optimize.to_fp16(model, optimizer), then scaled.backward(loss) and scaled.step(); or bf16",
    steps=STEPS,
    sides=(
        ExerciseSide("fp32"),
        ExerciseSide("fp16, from a scale of 2^40", ("--mixed-precision", "fp16", "--loss-scale", str(SCALE))),
    ),
    check=_check,
)
