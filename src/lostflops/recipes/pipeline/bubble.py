"""Why the stages of a pipeline idle: its schedule, uneven stages, messages, and what is around it."""

from __future__ import annotations

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Share, Text, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.replayed_steps import within
from lostflops.replay.pipeline.bubble import PARTS, WORK, in_three, parts, windows
from lostflops.tables import Kernels

from .made_pipeline import MS, two_microbatches, two_stages


@recipe(
    question="Why do pipeline stages idle: the schedule, uneven stages, messages, or something else?",
    scope="job",
    whole=True,
    plot=Bars(x="pipeline", y=PARTS, stacked=True),
    columns={
        "pipeline": Id("lowest rank of the pipeline"),
        "step": Id("step number"),
        "ranks": Count("its stages"),
        "length": Time("the step, summed over its ranks"),
        "idle": Time("what they do not compute in it; the parts add up to it"),
        "schedule": Time("filling and draining, if all stages and microbatches were alike"),
        "imbalance": Time("more, because stages differ; less than 0 where they help each other"),
        "uneven": Time("more, because passes of one stage differ, as with sequences of different lengths"),
        "point_to_point": Time("more, because messages between stages take time that nothing hides"),
        "inside": Time("within passes, such as communication of tensor or expert groups"),
        "warm_up": Time("before the pipeline's first pass, such as loading data"),
        "tail": Time("from its last pass to the rank's optimizer, such as reducing gradients"),
        "optimizer": Time("from the first kernel of the optimizer to the end of the step"),
        "other": Time("all else: pauses of a host between passes, steps that begin at different times"),
        "bubble_share": Share("(schedule + imbalance + uneven + point_to_point) / length"),
        "untold": Text("why the idle time is not split; null where it is"),
    },
    examples=[
        Example(
            "stage 1 takes 30 ms each way, stage 0 10, a message 2; even stages would fill and drain in 80",
            given=two_stages(),
            expect=[
                {"pipeline": 0, "step": 3, "ranks": 2, "length": 158 * MS, "idle": 78 * MS, "untold": None}
                | {"schedule": 80 * MS, "imbalance": 0, "uneven": 0, "point_to_point": 8 * MS, "inside": 0}
                | {"warm_up": 0, "tail": 0, "optimizer": 0, "other": -10 * MS, "bubble_share": 88 / 158}
            ],
        ),
        Example(
            "even passes of 21 ms would take 126 ms of the 150, uneven stages 144, and messages 4 more",
            given=two_microbatches(),
            expect=[
                {"length": 345 * MS, "idle": 165 * MS, "schedule": 84 * MS, "imbalance": 36 * MS, "uneven": 0}
                | {"point_to_point": 8 * MS, "inside": 2 * MS, "warm_up": 10 * MS, "tail": 9 * MS}
                | {"optimizer": 12 * MS, "other": 4 * MS, "bubble_share": 128 / 345}
            ],
        ),
        Example("without a pipeline nothing is said", given={"ranks": [{"rank": 0}]}, expect=[]),
    ],
)
def pipeline_bubble(
    pipeline_passes: pl.LazyFrame, counted_steps: pl.LazyFrame, device_runs: pl.LazyFrame, kernels: Kernels
) -> pl.LazyFrame:
    """Split what the ranks of each pipeline do not compute in a step by what replaying its passes adds.

    The parts are integers and add up to `idle`. A stage that waits for a slower one waits in receives: that
    is imbalance here, and no transfer. A rank whose step ends before the pipeline's last pass idles less than
    the schedule says, which makes `other` negative.
    """
    found = pipeline_passes.collect()
    columns = pipeline_bubble.columns
    schema = dict.fromkeys(columns, pl.Int64) | {
        "pipeline": pl.Int32, "bubble_share": pl.Float64, "untold": pl.String
    }  # fmt: skip
    if found.is_empty():
        return pl.LazyFrame(schema=schema)
    if found["untold"].null_count() < found.height:
        told = found.group_by(*WORK).agg(ranks=pl.col("rank").n_unique(), untold=pl.col("untold").first())
        return pl.concat([pl.DataFrame(schema=schema), told], how="diagonal_relaxed").sort(WORK).lazy()
    links = found.drop_nulls("after").select(before="after", after="number", transfer="transfer")
    known = windows(found, links)
    if found["schedule"][0] == "zb":
        known = in_three(known, found, int(found["microbatches"][0]))
    split = parts(known, _outside(found, known, counted_steps, device_runs, kernels))
    bubble = pl.sum_horizontal("schedule", "imbalance", "uneven", "point_to_point")
    return (
        split.with_columns(bubble_share=bubble / pl.col("length"), untold=pl.lit(None, pl.String))
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .lazy()
    )


def _outside(
    found: pl.DataFrame,
    known: pl.DataFrame,
    counted_steps: pl.LazyFrame,
    device_runs: pl.LazyFrame,
    kernels: pl.LazyFrame,
) -> pl.DataFrame:
    """By pipeline and step what the ranks take, what they compute, and what they idle around the passes."""
    ranks = found.select("rank", "pipeline").unique()
    steps = (
        counted_steps.collect()
        .join(ranks, on="rank")
        .join(known.select(*WORK, _from="start", _to="end"), on=WORK)
        .sort("rank", "start")
    )
    optimizing = (
        within(kernels.filter(pl.col("phase") == "optimizer"), steps.select("rank", "start", "end"))
        .select("rank", _optimizer="start")
        .collect()
        .sort("_optimizer")
    )
    steps = (
        steps.with_columns(_last=pl.col("_to").clip(pl.col("start"), pl.col("end")))
        .sort("_last")
        .join_asof(
            optimizing,
            left_on="_last",
            right_on="_optimizer",
            by="rank",
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(_begun=pl.col("_optimizer").fill_null(pl.col("end")).clip(None, pl.col("end")))
        .with_columns(_first=pl.col("_from").clip(pl.col("start"), pl.col("end")))
    )
    computing = within(
        device_runs.filter(pl.col("account") == "compute"), steps.select("rank", "start", "end")
    )
    spans = {
        "length": ("start", "end"),
        "warm_up": ("start", "_first"),
        "tail": ("_last", "_begun"),
        "optimizer": ("_begun", "end"),
    }
    rows = pl.concat(
        steps.select(*WORK, "rank", what=pl.lit(what), start=begin, end=end)
        for what, (begin, end) in spans.items()
    )
    busy = intervals.inside(rows.lazy(), intervals.union(computing, ["rank"]), {"compute": pl.lit(True)})
    length = pl.col("end") - pl.col("start")
    whole = pl.col("what") == "length"
    return (
        busy.group_by(*WORK)
        .agg(
            length.filter(whole).sum().alias("length"),
            pl.col("compute").filter(whole).sum(),
            *(
                (length - pl.col("compute")).filter(pl.col("what") == what).sum().alias(what)
                for what in ("warm_up", "tail", "optimizer")
            ),
        )
        .collect()
    )
