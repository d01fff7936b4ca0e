"""1c: gradient accumulation with and without `no_sync`."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

PARAMETERS, MICRO = 803_968, 4


def _check(faulty: Observed, fixed: Observed) -> list[Check]:
    name = "gradients-exchanged-per-microbatch"
    said, still = faulty.finding(name), fixed.finding(name)
    calls, elements, _ = faulty.collectives("all-reduce")
    fewer, fewest, _ = fixed.collectives("all-reduce")
    return [
        counted(f"elements reduced per step, {MICRO} times the parameters", MICRO * PARAMETERS, elements),
        counted("elements with `no_sync`, the parameters once", PARAMETERS, fewest),
        counted(f"all-reduces per step, {MICRO} times those with `no_sync`", MICRO * fewer, calls),
        Check(
            "a finding says that gradients are reduced in every microbatch",
            said.claim if said else "no such finding",
            said is not None,
        ),
        Check("with `no_sync` there is none", still.claim if still else "none", still is None),
    ]


EXERCISE = Exercise(
    name="1c",
    title="Gradient accumulation",
    question="One optimizer step takes four microbatches: how often are gradients reduced?",
    see="all-reduces in every backward pass, against the last one alone",
    expected=("without `no_sync` the traffic is four times as large; three quarters of it are not needed",),
    fix="with model.no_sync(): … around all microbatches but the last",
    ranks=2,
    steps=12,
    words=("--gradient-accumulation-steps", str(MICRO)),
    sides=(
        ExerciseSide("gradients are reduced in every microbatch", ("--sync-every-microbatch",)),
        ExerciseSide("reduced in the last microbatch"),
    ),
    check=_check,
)
