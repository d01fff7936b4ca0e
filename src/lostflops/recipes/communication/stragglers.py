"""How much longer steps take because ranks do not do the same in the same time, and which rank, stage or
kind of operation that is."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Count, Id, Name, Ratio, Text, Time
from lostflops.recipe import Bars, Example, Rows, recipe
from lostflops.recipes.pipeline.made_pipeline import two_stages
from lostflops.recipes.replayed_steps import replayed_steps
from lostflops.replay.stragglers.blame import SCHEMA, blame
from lostflops.tables import Kernels

MS = 1_000_000


def _four_ranks() -> dict[str, Rows]:
    """All compute 20 ms and then reduce for 5; in step 2 ranks 2 and 3 compute 80 ms."""
    spans = [(rank, 80 if rank > 1 else 20) for rank in range(4)]
    each = [(rank, step, *span) for rank, long in spans
            for step, span in enumerate(((0, 20, 25), (25, 25 + long, 110)), 1)]  # fmt: skip
    return {
        "steps": [{"rank": r, "step": n, "start": a * MS, "end": c * MS} for r, n, a, _, c in each],
        "kernels": [{"rank": r, "start": a * MS, "end": b * MS, "family": "gemm"} for r, _, a, b, _ in each],
        "collectives": [
            {"rank": r, "start": b * MS, "end": c * MS, "kind": "all-reduce", "bytes_in": 8}
            for r, _, _, b, c in each
        ],
        "ranks": [{"rank": rank, "world_size": 4} for rank, _ in spans],
    }


@recipe(
    question="How much slower are steps because ranks do not do the same in the same time, and who is it?",
    scope="job",
    whole=True,
    columns={
        "part": Name("what the row is about: job, kind, stage, pipeline, rank, slowest ranks, last stage"),
        "name": Text("kind of operation, stage or ranks"),
        "rank": Id("rank; of a pipeline its lowest"),
        "stage": Id("pipeline stage, counted from 0; null without a pipeline"),
        "own": Time(
            "what its ranks do themselves per step, and how long what they share takes; of the job, "
            "the step: from where the last rank begins to where the last one ends, over the steps"
        ),
        "even": Time("the same where everybody takes the mean of its kind, and the median of transfers"),
        "slowdown": Ratio(
            "the replayed step with this part as it is and all else even, over the even step: S of the job, "
            "S_t of a kind, and S_w of a rank, the smaller of its pipeline's and its stage's; null for ranks "
            "with so little of their own that they were not replayed"
        ),
        "removal": Ratio(
            "share of the slowdown that goes when this part alone is even (M_W of the slowest 3 % of ranks, "
            "M_S of the last stage); it may lie beyond 0 and 1, and shares do not add up; null where nothing "
            "is lost"
        ),
        "addition": Ratio("share of the slowdown that comes back when this part alone is as it was"),
        "cause": Text(
            "what the rank has most more of than its equals: slow compute (in all steps, or the last three "
            "or more), uneven work (in some), stage imbalance, slow link, or an account of idle time; of the "
            "job, why nothing is told"
        ),
        "since": Id("step from which on it has that; null when it did in the first step already"),
        "steps": Count("of the job, how many steps were replayed: the last ones that all ranks have"),
    },
    plot=Bars(x="name", y=("slowdown",)),
    examples=[
        Example(
            "in step 2 ranks 2 and 3 compute 80 ms and not 20: at the mean, 50, a step takes 40 and not 55",
            given=_four_ranks(),
            expect=[
                {"part": part, "name": name, "rank": rank, "stage": None, "own": own * MS, "even": even * MS}
                | {
                    "slowdown": slowdown,
                    "removal": removal,
                    "addition": addition,
                    "cause": cause,
                    "since": since,
                    "steps": 2 if part == "job" else None,
                }
                for part, name, rank, own, even, slowdown, removal, addition, cause, since in (
                    ("job", "", None, 55, 40, 55 / 40, None, None, None, None),
                    ("kind", "all-reduce", None, 5, 5, 1.0, 0.0, 0.0, None, None),
                    ("kind", "compute", None, 35, 35, 55 / 40, 1.0, 1.0, None, None),
                    ("slowest ranks", "2", None, 55, 40, 55 / 40, 0.0, 1.0, None, None),
                    ("rank", "rank 2", 2, 55, 40, 55 / 40, 0.0, 1.0, "uneven work", None),
                    ("rank", "rank 3", 3, 55, 40, 55 / 40, 0.0, 1.0, "uneven work", None),
                    ("rank", "rank 0", 0, 25, 40, 1.0, 0.0, 0.0, None, None),
                    ("rank", "rank 1", 1, 25, 40, 1.0, 0.0, 0.0, None, None),
                )
            ],
        ),
        Example(
            "of two stages the second takes thrice as long; with one microbatch a step is as long as both",
            given=two_stages(),
            expect=[
                {"part": part, "name": name, "rank": rank, "stage": stage, "own": own * MS, "even": even * MS}
                | {"slowdown": slowdown / 84, "cause": cause, "steps": 1 if part == "job" else None}
                for part, name, rank, stage, own, even, slowdown, cause in (
                    ("job", "", None, None, 84, 84, 84, None),
                    ("kind", "backward", None, None, 20, 20, 84, None),
                    ("kind", "forward", None, None, 20, 20, 84, None),
                    ("kind", "send and receive", None, None, 4, 4, 84, None),
                    ("stage", "stage 0", None, 0, 24, 44, 64, None),
                    ("stage", "stage 1", None, 1, 64, 44, 104, None),
                    ("pipeline", "0, 1", 0, None, 44, 44, 84, None),
                    ("slowest ranks", "1", None, None, 64, 44, 104, None),
                    ("last stage", "stage 1", None, 1, 64, 44, 104, None),
                    ("rank", "rank 1", 1, 1, 64, 44, 84, "stage imbalance"),
                    ("rank", "rank 0", 0, 0, 24, 44, 64, None),
                )
            ],
        ),
        Example(
            "what ranks do in operations that were not matched tells nothing of others",
            given={
                "steps": [{"rank": 0, "step": 1, "start": 0, "end": 30}],
                "kernels": [{"rank": 0, "start": 0, "end": 9, "family": "gemm"}],
                "collectives": [{"rank": 0, "start": 9, "end": 30, "kind": "all-reduce"}],
                "ranks": [{"rank": 0, "world_size": 2}],
            },
            expect=[],
        ),
    ],
)
def stragglers(
    counted_steps: pl.LazyFrame,
    device_runs: pl.LazyFrame,
    idle_stretches: pl.LazyFrame,
    communication_matches: pl.LazyFrame,
    kernels: Kernels,
) -> pl.LazyFrame:
    """Replay the steps with every rank doing the same in the same time, and parts of the job as they were.

    What all ranks do in some steps, such as a checkpoint, stays in those.
    The last steps that all ranks have are replayed, eight at most. Where ranks are missing, or operations
    could not be matched, ranks wait for what is not known, and the row of the job says so instead.
    """
    told = replayed_steps(counted_steps, device_runs, idle_stretches, communication_matches, kernels)
    if isinstance(told, str):
        untold = dict.fromkeys(SCHEMA) | {"part": "job", "name": "", "cause": told}
        return pl.LazyFrame([untold] if told else [], schema=SCHEMA)
    return blame(told.job).lazy()
