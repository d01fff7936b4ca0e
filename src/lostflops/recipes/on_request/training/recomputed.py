"""What checkpointing costs: work of the forward pass that runs again in the backward pass."""

from __future__ import annotations

from typing import Any

import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Number, Ratio, Share, Text, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.operators.counted_flops import counted, gap
from lostflops.tables import Kernels, Operators

TERA = 1e12
HIDDEN = "operators of forward passes run in the backward pass, and their phase is unknown"

MM = {"name": "aten::mm", "dtypes": '["c10::BFloat16","c10::BFloat16"]', "thread": 7}
BIG, SMALL = "[[1000,2000],[2000,3000]]", "[[1000,2000],[2000,500]]"
LINEAR = {"family": "gemm", "operator": "aten::mm", "precision": "bf16", "thread": 7}


@recipe(
    question="What does checkpointing cost: how much time and how many FLOPs run again in the backward pass?",
    scope="rank",
    plot=Bars(x="rank", y=("forward", "again")),
    columns={
        "rank": Id("rank"),
        "operators": Count("operators of the recording that run again"),
        "forward": Time("kernels of forward passes per step, without communication"),
        "backward": Time("kernels of backward passes per step, without communication and what runs again"),
        "again": Time("kernels per step of forward work that runs again: most that keeping all would save"),
        "forward_share": Ratio("again / forward: 1 where the whole forward pass runs twice"),
        "step_share": Ratio("again / step time"),
        "model_tflop": Number("FLOPs per step that the model needs; null when unknown", unit="TFLOP"),
        "again_tflop": Number("FLOPs per step that run again; null when unknown", unit="TFLOP"),
        "flops_share": Share("again_tflop / both"),
        "unknown": Text("why no FLOPs are reported; null where they are"),
    },
    examples=[
        Example(
            "two products run forward, the smaller one runs again while weights are gathered",
            given={
                "steps": [{"start": 0, "end": 200, "complete": True}],
                "operators": [
                    MM | {"start": 0, "end": 9, "phase": "forward", "shapes": BIG},
                    MM | {"start": 10, "end": 19, "phase": "forward", "shapes": SMALL},
                    MM | {"start": 20, "end": 29, "phase": "recompute", "shapes": SMALL},
                    MM | {"start": 30, "end": 39, "phase": "backward", "shapes": BIG},
                ],
                "kernels": [
                    LINEAR | {"start": s, "end": e, "phase": phase, "launch_start": at, "launch_end": at + 1}
                    for s, e, phase, at in (
                        (5, 65, "forward", 5),
                        (65, 75, "forward", 15),
                        (75, 86, "recompute", 25),
                        (86, 148, "backward", 35),
                    )
                ]
                + [
                    {"start": s, "end": e, "phase": phase, "family": "communication", "stream": 20}
                    for s, e, phase in ((60, 82, "recompute"), (90, 125, "backward"))
                ],
            },
            expect=[
                {"rank": 0, "operators": 1, "forward": 70, "backward": 62, "again": 11}
                | {"forward_share": 11 / 70, "step_share": 0.055, "model_tflop": 0.026, "again_tflop": 0.002}
                | {"flops_share": 1 / 14, "unknown": None}
            ],
        ),
        Example(
            "nothing runs again, and no shapes were recorded",
            given={
                "steps": [{"rank": 5, "start": 0, "end": 40, "complete": True}],
                "kernels": [{"rank": 5, "start": 0, "end": 20, "phase": "forward", "family": "gemm"}],
                "operators": [{"rank": 5, "start": 0, "end": 9, "phase": "forward", "name": "aten::mm"}],
            },
            expect=[
                {"rank": 5, "operators": 0, "forward": 20, "backward": 0, "again": 0, "forward_share": 0.0}
                | {"step_share": 0.0, "model_tflop": None, "again_tflop": None, "flops_share": None}
                | {"unknown": "1 matrix products or attentions have no shapes"}
            ],
        ),
    ],
)  # fmt: skip
def recompute(
    kernels: Kernels,
    operators: Operators,
    operator_times: pl.LazyFrame,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
) -> pl.LazyFrame:
    """Tell what each rank computes twice because activations were not kept, in time and in FLOPs.

    How to read it: `again` is at most what a step would save if all activations were kept. `forward_share`
    near 1 is full checkpointing; selective checkpointing of attention is a tenth or two. `flops_share` is the
    part of all FLOPs that HFU counts and MFU does not: a quarter for full checkpointing.

    Limits: communication is left out, though ranks that share a layer exchange its parts again. What a fused
    or compiled backward computes again inside one kernel does not show, such as attention in FlashAttention,
    and neither does `torch.compile`'s own recomputation. With gradients of gradients (`create_graph=True`)
    all counts as backward. FLOPs are those of matrix products and attention.

    What to try: `batch-headroom` for memory to keep more, `selective-checkpointing` of cheap operators only;
    `kernel-families` for the kinds of work that run again; `lostflops plan` for what would fit.
    """
    phase = pl.col("phase").cast(pl.String)
    spent = {
        "forward": phase == "forward",
        "backward": phase == "backward",
        "again": phase == "recompute",
    }
    inside = intervals.union(counted_steps, ["rank"])
    work = kernels.filter(pl.col("family") != "communication").select("rank", "start", "end", "phase")
    time = (
        intervals.inside(work, inside, {"_in": pl.lit(True)})
        .group_by("rank")
        .agg(**{name: pl.col("_in").filter(which).sum() for name, which in spent.items()})
    )
    ran = operators.filter(phase == "recompute")
    many = ran.group_by("rank").agg(operators=pl.len().cast(pl.Int64))
    flops = _flops(operator_times, kernels, counted_steps)
    both = pl.col("model_tflop") + pl.col("again_tflop")
    return (
        step_totals.filter(pl.col("step_time") > 0)
        .join(time, on="rank")
        .join(many, on="rank", how="left")
        .join(flops.lazy(), on="rank", how="left")
        .with_columns(
            pl.col("operators").fill_null(0),
            step_share=pl.col("again") / pl.col("step_time"),
            forward_share=pl.when(pl.col("forward") > 0).then(pl.col("again") / pl.col("forward")),
            flops_share=pl.when(both > 0).then(pl.col("again_tflop") / both),
        )
        .with_columns(
            pl.col(*spent) // pl.col("steps"), pl.col("model_tflop", "again_tflop") / pl.col("steps")
        )
        .select(*recompute.columns)
        .sort("rank")
    )


def _flops(times: pl.LazyFrame, kernels: pl.LazyFrame, steps: pl.LazyFrame) -> pl.DataFrame:
    """TFLOP of all steps of each rank, the model's and what ran again; null where nothing is known."""
    rows: list[dict[str, Any]] = []
    for rank, work in counted(times, kernels, steps, False).items():
        why = HIDDEN if work.hidden else gap(work)
        rows.append(
            {"rank": rank, "unknown": why or None}
            | {"model_tflop": work.model / TERA if not why else None}
            | {"again_tflop": work.again / TERA if not why else None}
        )
    schema = {"rank": pl.Int32, "unknown": pl.String, "model_tflop": pl.Float64, "again_tflop": pl.Float64}
    return pl.DataFrame(rows, schema=schema)
