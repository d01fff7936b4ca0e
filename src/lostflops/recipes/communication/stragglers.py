"""How much longer steps take because ranks do not do the same in the same time, and which rank, stage or
kind of operation that is."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Id, Name, Ratio, Text, Time
from lostflops.finding import percent
from lostflops.recipe import Example, Rows, recipe
from lostflops.replay.graph import Circle
from lostflops.replay.stragglers.blame import SCHEMA, blame
from lostflops.replay.stragglers.recorded import recorded
from lostflops.tables import Kernels

PHASES = ("forward", "backward", "recompute", "optimizer")
SPLIT = ("communication.wait", "communication.transfer")
MOST_STEPS = 8
MOST_OPERATIONS = 1_000_000  # parts of ranks in collectives and messages that are replayed at once
UNKNOWN = 0.05  # of the steps: with more in operations whose other ranks are not known, nothing is told
MS = 1_000_000


def _two_ranks() -> dict[str, Rows]:
    """Both compute 20 ms and then reduce for 5; in step 2 rank 1 computes 60 ms."""
    spans = {0: ((0, 20, 25), (25, 45, 90)), 1: ((0, 20, 25), (25, 85, 90))}
    each = [(rank, step, *span) for rank, two in spans.items() for step, span in enumerate(two, 1)]
    return {
        "steps": [{"rank": r, "step": n, "start": a * MS, "end": c * MS} for r, n, a, _, c in each],
        "kernels": [{"rank": r, "start": a * MS, "end": b * MS, "family": "gemm"} for r, _, a, b, _ in each],
        "collectives": [
            {"rank": r, "start": b * MS, "end": c * MS, "kind": "all-reduce", "bytes_in": 8}
            for r, _, _, b, c in each
        ],
        "ranks": [{"rank": rank, "world_size": 2} for rank in spans],
    }


def _two_stages() -> dict[str, Rows]:
    """Stage 1 takes 30 ms forward and back, stage 0 10 ms; a message travels for 2."""
    kernels = [
        (0, 0, 10, "forward"),
        (1, 12, 42, "forward"),
        (1, 42, 72, "backward"),
        (0, 74, 84, "backward"),
    ]
    messages = [
        (0, 10, 12, "send", 1, 6), (1, 0, 12, "receive", 0, 7), (1, 72, 74, "send", 0, 6),
        (0, 12, 74, "receive", 1, 7),
    ]  # fmt: skip
    return {
        "steps": [
            {"rank": 0, "step": 3, "start": 0, "end": 84 * MS},
            {"rank": 1, "step": 3, "start": 0, "end": 74 * MS},
        ],
        "kernels": [
            {"rank": r, "start": a * MS, "end": b * MS, "family": "gemm", "phase": phase}
            for r, a, b, phase in kernels
        ],
        "collectives": [
            {"rank": r, "start": a * MS, "end": b * MS, "kind": kind, "peer": peer, "stream": stream}
            | {"bytes_in": 8, "bytes_out": 8}
            for r, a, b, kind, peer, stream in messages
        ],
        "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
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
            "what its ranks do themselves per step, and how long what they share takes; of the job, the step"
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
            "what the rank has most more of than its equals: slow compute (in every step), uneven work (in "
            "some), stage imbalance, slow link, or an account of idle time; of the job, why nothing is told"
        ),
        "since": Id("step from which on it has that; null when it did in the first step already"),
    },
    examples=[
        Example(
            "in step 2 rank 1 computes 60 ms instead of 20: at the mean, 30, steps take 35 ms and not 45",
            given=_two_ranks(),
            expect=[
                {"part": part, "name": name, "rank": rank, "stage": None, "own": own * MS, "even": even * MS}
                | {
                    "slowdown": slowdown,
                    "removal": removal,
                    "addition": addition,
                    "cause": cause,
                    "since": since,
                }
                for part, name, rank, own, even, slowdown, removal, addition, cause, since in (
                    ("job", "", None, 45, 35, 45 / 35, None, None, None, None),
                    ("kind", "all-reduce", None, 5, 5, 1.0, 0.0, 0.0, None, None),
                    ("kind", "compute", None, 30, 30, 45 / 35, 1.0, 1.0, None, None),
                    ("slowest ranks", "1", None, 45, 35, 50 / 35, 1.0, 1.5, None, None),
                    ("rank", "rank 1", 1, 45, 35, 50 / 35, 1.0, 1.5, "slow compute", 2),
                    ("rank", "rank 0", 0, 25, 35, 1.0, -0.5, 0.0, None, None),
                )
            ],
        ),
        Example(
            "of two stages the second takes thrice as long; with one microbatch a step is as long as both",
            given=_two_stages(),
            expect=[
                {"part": part, "name": name, "rank": rank, "stage": stage, "own": own * MS, "even": even * MS}
                | {"slowdown": slowdown / 84, "cause": cause}
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

    The last steps that all ranks have are replayed, eight at most. Where ranks are missing, or operations
    could not be matched, ranks wait for what is not known, and the row of the job says so instead.
    """
    nothing = pl.LazyFrame(schema=SCHEMA)
    steps, matches = _replayed(counted_steps.collect(), communication_matches.collect())
    if steps["rank"].n_unique() < 2 or not matches["instance"].count():
        return nothing
    windows = steps.group_by("rank").agg(pl.col("start").min(), pl.col("end").max())
    pieces = pieces_of(windows, device_runs, idle_stretches, kernels)
    untold = _untold(steps, pieces)
    if untold:
        return pl.LazyFrame(
            [dict.fromkeys(SCHEMA) | {"part": "job", "name": "", "cause": untold}], schema=SCHEMA
        )
    launches = _within(kernels, windows).select(
        "rank", "start", "end", "stream", "correlation", "family", "launch_start"
    )
    try:
        job = recorded(steps, pieces, matches, launches.collect())
    except Circle:
        job = None
    return nothing if job is None else blame(job).lazy()


def _replayed(counted: pl.DataFrame, matches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The last steps that all ranks have, one after the other, and the operations in them."""
    ranks = counted["rank"].n_unique()
    shared = (
        counted.group_by("step")
        .agg(_on=pl.col("rank").n_unique())
        .filter(pl.col("_on") == ranks)
        .sort("step")
        .with_columns(_run=(pl.col("step").diff() != 1).fill_null(True).cum_sum())
        .filter(pl.col("_run") == pl.col("_run").max())
    )
    each = max(1, matches.height // max(1, counted["step"].n_unique()))
    steps = shared["step"].tail(max(1, min(MOST_STEPS, MOST_OPERATIONS // each)))
    chosen = counted.filter(pl.col("step").is_in(steps.to_list()))
    return chosen.sort("rank", "start"), matches


def _within(rows: pl.LazyFrame, windows: pl.DataFrame) -> pl.LazyFrame:
    """What lies, at least in part, within the windows of its rank."""
    bounds = windows.lazy().select("rank", _from="start", _to="end")
    return (
        rows.join(bounds, on="rank")
        .filter((pl.col("end") > pl.col("_from")) & (pl.col("start") < pl.col("_to")))
        .drop("_from", "_to")
    )


def pieces_of(
    windows: pl.DataFrame, device_runs: pl.LazyFrame, idle_stretches: pl.LazyFrame, kernels: pl.LazyFrame
) -> pl.DataFrame:
    """What each rank does at every instant of its window: rank, start, end, kind.

    Computing by phase, idle time and copies by account; null while it waits for others or transfers.
    """
    runs = _within(device_runs, windows)
    computing = _within(kernels.filter(pl.col("family") != "communication"), windows)
    phases = intervals.paint(
        runs.filter(pl.col("account") == "compute").select("rank", "start", "end"),
        {phase: computing.filter(pl.col("phase") == phase) for phase in PHASES},
        by=["rank"],
        account="kind",
    ).with_columns(pl.col("kind").fill_null("compute"))
    others = runs.filter(pl.col("account").ne_missing("compute") & pl.col("account").is_not_null())
    kind = pl.when(~pl.col("account").is_in(SPLIT)).then("account")
    columns = ("rank", "start", "end", "kind")
    parts = [
        phases.select(columns),
        others.with_columns(kind=kind).select(columns),
        _within(idle_stretches, windows).with_columns(kind="account").select(columns),
    ]
    return pl.concat(parts).sort("rank", "start").collect()


def _untold(steps: pl.DataFrame, pieces: pl.DataFrame) -> str:
    """Why ranks cannot be held against each other; empty where they can."""
    length = pl.col("end") - pl.col("start")
    whole = int(steps.select(length.sum()).item())
    unknown = int(pieces.filter(kind="communication.exposed").select(length.sum()).item() or 0)
    if unknown <= UNKNOWN * whole:
        return ""
    return f"{percent(unknown, whole)} of the steps pass in communication with ranks that are not known"
