"""1b: fp32 against bf16 under autocast."""

from __future__ import annotations

import polars as pl

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

PARAMETERS = 803_968


def products(seen: Observed, dtype: str) -> tuple[int, int]:
    """Matrix products with an operand of that type, and all of them, in the recorded steps."""
    name = pl.col("name").cast(pl.String)
    rows = seen.table("operators").filter(name.is_in(["aten::mm", "aten::addmm", "aten::bmm"]))
    return rows.filter(pl.col("dtypes").cast(pl.String).str.contains(dtype)).height, rows.height


def casts(seen: Observed) -> int:
    """Operators that make another type of a tensor, in the recorded steps."""
    return seen.table("operators").filter(pl.col("name").cast(pl.String) == "aten::_to_copy").height


def _check(full: Observed, half: Observed) -> list[Check]:
    (none, of), (some, of_half) = products(full, "BFloat16"), products(half, "BFloat16")
    return [
        Check("in fp32 no matrix product is bf16", f"{none} of {of}", none == 0 and of > 0),
        Check("under autocast at least 95 % are", f"{some} of {of_half}", some >= 0.95 * of_half > 0),
        Check("casts are added", f"{casts(full)} became {casts(half)}", casts(half) > casts(full)),
        counted("elements reduced per step in fp32", PARAMETERS, full.collectives("all-reduce")[1]),
        counted("elements of four bytes under autocast, too", PARAMETERS, half.collectives("all-reduce")[1]),
        Check(
            "speed on a processor depends on its instructions: not graded",
            f"{full.step_ms:.0f} ms and {half.step_ms:.0f} ms",
            passed=True,
        ),
    ]


EXERCISE = Exercise(
    name="1b",
    title="fp32 against bf16",
    question="What does bf16 autocast change, and what does it leave as it was?",
    see="the types of matrix products, the casts, and the bytes of the all-reduces",
    expected=(
        "matrix products run in bf16; weights, gradients and their traffic stay fp32",
        "with tensor cores matrix products become 8 to 14 times as fast (formula, not measured here)",
    ),
    fix='with torch.autocast("cuda", torch.bfloat16): … around the forward pass',
    ranks=2,
    steps=14,
    sides=(ExerciseSide("fp32"), ExerciseSide("bf16 autocast", ("--mixed-precision", "bf16"))),
    check=_check,
)
