"""3a-tp-pp: two stages of two ranks each, and what of a step is bubble and what all-reduces."""

from __future__ import annotations

from typing import Any

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.lab.exercises.offered.parallel.pipeline import FEW, MANY, bubble, formula

LAYERS = 2  # of a stage
PER_LAYER = 4  # all-reduces of a layer and microbatch
TP, PP = 2, 2


def _layout(seen: Observed) -> dict[str, dict[str, Any]]:
    return {row["strategy"].partition(",")[0]: row for row in seen.ask("parallelism").iter_rows(named=True)}


def _check(few: Observed, many: Observed) -> list[Check]:
    layouts = [_layout(seen) for seen in (few, many)]
    told = [f"{name} of degree {row['degree']}" for name, row in sorted(layouts[0].items())]
    moved = [row for layout in layouts for row in layout.values()]
    exact = sum(row["seen"] == row["expected"] for row in moved)
    calls = [layout.get("TP", {}).get("calls", 0.0) for layout in layouts]
    return [
        Check(
            f"`parallelism` names the layout: PP of degree {PP}, TP of degree {TP}",
            ", ".join(told) or "nothing",
            told == [f"PP of degree {PP}", f"TP of degree {TP}"],
        ),
        counted(
            f"all-reduces per step with {FEW} microbatches, {PER_LAYER} a layer",
            PER_LAYER * LAYERS * FEW,
            calls[0],
        ),
        counted(f"and with {MANY}", PER_LAYER * LAYERS * MANY, calls[1]),
        Check(
            "each moves the bytes that its layout needs, and no more",
            f"{exact} of {len(moved)} dimensions",
            exact == len(moved) == 4,
        ),
        *(
            Check(
                f"with {count} microbatches a stage works for no more than the formula's "
                f"{1 - formula(count):.1%} of a step",
                f"{1 - bubble(seen):.1%} by the job's clock",
                bubble(seen) >= formula(count) - 0.01,
            )
            for count, seen in ((FEW, few), (MANY, many))
        ),
    ]


EXERCISE = Exercise(
    name="3a-tp-pp",
    title="Tensor and pipeline parallelism together",
    question="Two stages of two ranks: which collectives are whose, and how much of a step is bubble?",
    see="`lostflops recipe parallelism`: each dimension with its groups; waiting in sends and receives",
    expected=(
        "tensor ranks add up 4 times a layer and microbatch; stages send each microbatch there and back",
        f"(p-1)/(m+p-1) of a step is bubble: 20 % with {FEW} microbatches, 5.9 % with {MANY}",
        "four processes on fewer cores also wait for those, so that only the least is graded",
    ),
    fix="more microbatches per step for the bubble; tensor ranks inside a node for their all-reduces",
    script="pipeline",
    ranks=TP * PP,
    words=("--tp", str(TP), "--stage-ms", "20"),
    steps=12,
    sides=(
        ExerciseSide(f"{FEW} microbatches", ("--microbatches", str(FEW))),
        ExerciseSide(f"{MANY} microbatches", ("--microbatches", str(MANY))),
    ),
    check=_check,
)
