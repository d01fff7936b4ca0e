"""2a: fully sharded against weights that stay gathered, with FSDP2 in the place of ZeRO-3 and ZeRO-2."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

PARAMETERS = 1_902_720
ROOT = 131_200  # embedding, norm and output layer, which stay gathered until after backward


def _check(stage3: Observed, stage2: Observed) -> list[Check]:
    (calls, _, gathered), (fewer, _, once) = (
        stage3.collectives("all-gather"),
        stage2.collectives("all-gather"),
    )
    return [
        counted("elements gathered per step by stage 3: 2P - P_root", 2 * PARAMETERS - ROOT, gathered),
        counted("elements gathered per step by stage 2: P", PARAMETERS, once),
        counted(
            "elements in reduce-scatters, stage 3: P", PARAMETERS, stage3.collectives("reduce-scatter")[1]
        ),
        counted(
            "elements in reduce-scatters, stage 2: P", PARAMETERS, stage2.collectives("reduce-scatter")[1]
        ),
        Check("stage 3 gathers its 8 layers twice", f"{calls:g} and {fewer:g} gathers", calls == fewer + 8),
    ]


EXERCISE = Exercise(
    name="2a",
    title="ZeRO-2 against ZeRO-3, with FSDP2",
    question="What does it cost to free gathered weights after the forward pass?",
    see="all-gathers in forward and in backward, against forward alone",
    expected=(
        "stage 3 gathers each layer twice a step, stage 2 once; both reduce and scatter each gradient once",
        "stage 3 is worth it where stage 2 does not fit, or where its memory buys a larger microbatch",
    ),
    fix="fully_shard(block, reshard_after_forward=False)",
    ranks=2,
    steps=12,
    words=("--model", "mistral-tiny", "--parallel", "fsdp2", "--micro-batch-size", "4"),
    sides=(
        ExerciseSide("stage 3: weights are freed after forward"),
        ExerciseSide("stage 2: they stay", ("--stage2",)),
    ),
    check=_check,
)
