"""3a-tensor: layers split over two ranks, and which of their all-reduces are needed."""

from __future__ import annotations

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted

LAYERS, BATCH, LENGTH, HIDDEN = 4, 8, 64, 128
ACTIVATIONS = BATCH * LENGTH * HIDDEN  # elements of one all-reduce
# Forward: behind attention and behind the feed-forward. Backward: in front of q, k, v, and of gate, up.
ALONE, SHARED = 2 + 3 + 2, 2 + 1 + 1


def _check(alone: Observed, shared: Observed) -> list[Check]:
    (calls, elements, _), (fewer, of_fewer, _) = (
        alone.collectives("all-reduce"),
        shared.collectives("all-reduce"),
    )
    layout = shared.ask("parallelism")
    seen = ", ".join(f"{row['strategy']} of degree {row['degree']}" for row in layout.iter_rows(named=True))
    pairs = zip(alone.truth["losses"], shared.truth["losses"], strict=True)
    apart = max(abs(a - b) / abs(a) for a, b in pairs)
    return [
        counted(
            f"all-reduces per step where each projection reduces alone, {ALONE} a layer",
            ALONE * LAYERS,
            calls,
        ),
        counted(
            f"all-reduces per step where an input's projections share, {SHARED} a layer",
            SHARED * LAYERS,
            fewer,
        ),
        counted(
            "elements per step, 4 x layers x batch x length x hidden", SHARED * LAYERS * ACTIVATIONS, of_fewer
        ),
        counted("and without sharing 7/4 of it", ALONE * LAYERS * ACTIVATIONS, elements),
        Check("`parallelism` names the layout: TP of degree 2", seen, seen == "TP of degree 2"),
        Check("losses are the same but for the order of sums", f"{apart:.1e} apart", apart < 1e-4),
    ]


EXERCISE = Exercise(
    name="3a-tensor",
    title="Tensor parallelism",
    question="Each layer is split over two ranks: how often must they add up what they have?",
    see="all-reduces of one size in both passes; computation waits for each",
    expected=(
        "4 all-reduces a layer and microbatch: behind each half of it, and in front of it in backward",
        "the next operation needs each sum: none is hidden, so tensor ranks belong on the fastest links",
    ),
    fix="one fused matrix for q, k and v, or a shared input (PrepareModuleOutput(use_local_output=False))",
    ranks=2,
    steps=12,
    words=("--parallel", "tensor"),
    sides=(
        ExerciseSide("each projection reduces its input's gradient alone", ("--own-inputs",)),
        ExerciseSide("projections of one input share it"),
    ),
    check=_check,
)
