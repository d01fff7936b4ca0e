"""2a: ZeRO-3 against ZeRO-2, by DeepSpeed where it is installed, else by FSDP2."""

from __future__ import annotations

from importlib.util import find_spec

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

PARAMETERS = 1_902_720
ROOT = 131_200  # embedding, norm and output layer, which stay gathered until after backward


BACKEND = "fsdp2" if find_spec("deepspeed") is None else "deepspeed"


def _check(stage3: Observed, stage2: Observed) -> list[Check]:
    backend = stage3.truth["options"]["parallel"]
    deepspeed = backend == "deepspeed"
    gathers = [seen.collectives("all-gather") for seen in (stage3, stage2)]
    # FSDP2 leaves the root gathered until after backward; DeepSpeed gathers it twice, too.
    twice = 2 * PARAMETERS - (0 if deepspeed else ROOT)
    # DeepSpeed's stage 2 reduces by all-reduce, unless it is told otherwise.
    reduced = stage2.collectives("all-reduce" if deepspeed else "reduce-scatter")[1]
    return [
        Check(
            "sharded by DeepSpeed where it is installed, else by FSDP2",
            f"{'DeepSpeed' if deepspeed else 'FSDP2'}, torch {stage3.truth['torch']}",
            passed=True,
        ),
        counted(
            f"elements gathered per step by stage 3: 2P{'' if deepspeed else ' - P_root'}",
            twice,
            gathers[0][2],
        ),
        counted("elements gathered per step by stage 2: P", PARAMETERS, gathers[1][2]),
        counted(
            "elements in reduce-scatters, stage 3: P", PARAMETERS, stage3.collectives("reduce-scatter")[1]
        ),
        counted(
            f"elements in {'all-reduces' if deepspeed else 'reduce-scatters'}, stage 2: P",
            PARAMETERS,
            reduced,
        ),
        *([] if deepspeed else [_layers(gathers[0][0], gathers[1][0])]),
    ]


def _layers(calls: float, fewer: float) -> Check:
    return Check("stage 3 gathers its 8 layers twice", f"{calls:g} and {fewer:g} gathers", calls == fewer + 8)


EXERCISE = Exercise(
    name="2a",
    title="ZeRO-2 against ZeRO-3",
    question="What does it cost to free gathered weights after the forward pass?",
    see="all-gathers in forward and in backward, against forward alone",
    expected=(
        "stage 3 gathers each layer twice a step, stage 2 once; both reduce each gradient once",
        "DeepSpeed's stage 2 reduces by all-reduce, as many bytes again as a reduce-scatter sends",
        "stage 3 is worth it where stage 2 does not fit, or where its memory buys a larger microbatch",
    ),
    fix='fully_shard(block, reshard_after_forward=False), or "zero_optimization": {"stage": 2}',
    ranks=2,
    steps=12,
    words=("--model", "mistral-tiny", "--parallel", BACKEND, "--micro-batch-size", "4"),
    sides=(
        ExerciseSide("stage 3: weights are freed after forward"),
        ExerciseSide("stage 2: they stay", ("--stage2",)),
    ),
    check=_check,
)
