"""g5: FP8 against bf16."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.lab.exercises.offered.precision import casts

LAYERS, LINEAR = 4, 7  # q, k, v, o, gate, up, down


def _check(bf16: Observed, fp8: Observed) -> list[Check]:
    report = fp8.truth["remedy"]
    a, b = bf16.truth["losses"], fp8.truth["losses"]
    apart = max(abs(x - y) / abs(x) for x, y in zip(a, b, strict=True))
    return [
        counted("linear layers in FP8: 7 in each of 4 layers", LAYERS * LINEAR, len(report["converted"])),
        Check(
            "the output head is left out, with a reason", str(report["skipped"]), "head" in report["skipped"]
        ),
        Check("casts are added", f"{casts(bf16)} became {casts(fp8)}", casts(fp8) > casts(bf16)),
        counted(
            "parameters are as many and as large as before", bf16.truth["parameters"], fp8.truth["parameters"]
        ),
        Check("losses stay within 1 % of bf16's", f"{apart:.2%} apart at most", 0 < apart < 0.01),
        Check(
            "a processor rounds as FP8 does and multiplies in bf16: speed is not graded",
            str(report["emulated"]),
            passed=True,
        ),
    ]


EXERCISE = Exercise(
    name="g5",
    title="FP8",
    question="FP8 products run at twice the rate of bf16's: what of a step is that, and what is added?",
    see="FP8 products and casts; small layers that do not gain",
    expected=(
        "weights, gradients and saved tensors stay as they were: FP8 does not halve memory",
        "the gain is what products save less what casts add (10 to 25 % for an 8B model: published)",
    ),
    fix="lostflops.optimize.to_fp8(model), and torch.compile, which fuses the casts",
    needs=("torchao",),
    steps=14,
    sides=(
        ExerciseSide("bf16", ("--mixed-precision", "bf16-weights")),
        ExerciseSide("FP8, a scale per tensor", ("--mixed-precision", "fp8")),
    ),
    check=_check,
)
