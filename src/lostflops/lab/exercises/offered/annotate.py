"""1a-annotate: your own ranges say what the input spends its time on."""

from __future__ import annotations

import polars as pl

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

BATCH = 8
OWN = ("zero_grad", "input", "forward")


def _times(seen: Observed, name: str) -> float:
    """How often a range of that name occurs per step."""
    ranges = seen.table("ranges")
    if not ranges.height:
        return 0
    steps = seen.table("steps").height or 1
    return ranges.filter(pl.col("name").cast(pl.String) == name).height / steps


def _check(without: Observed, marked: Observed) -> list[Check]:
    first = marked.first
    said = " ".join((first.claim, *first.contributors)) if first else "no finding"
    return [
        counted("ranges `tokenise` per step without marks", 0, _times(without, "tokenise")),
        *(counted(f"ranges `{name}` per step", 1, _times(marked, name)) for name in OWN),
        counted("ranges `tokenise` per step, one a sample", BATCH, _times(marked, "tokenise")),
        Check("the first finding names `tokenise`", said, "`tokenise`" in said),
    ]


EXERCISE = Exercise(
    name="1a-annotate",
    title="Annotate your own ranges (optional)",
    question="The page says that the job waits for its loader: what in the loader takes the time?",
    see="the finding's line 'why': with marks it names your function",
    expected=("with ranges the finding names the part of the input that takes the time",),
    fix='with torch.profiler.record_function("tokenise"): … or lostflops.range("tokenise")',
    words=("--input-ms", "10", "--layer-ms", "4", "--seq", "16"),
    sides=(
        ExerciseSide("nothing is marked", ("--no-ranges",)),
        ExerciseSide("zero_grad, input, forward and tokenise are marked"),
    ),
    check=_check,
)
