"""Which operators take time, on the host and on the device, alone and with what they call."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Count, Id, Name, Share, Text, Time
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import shares

LAUNCHED = {"thread": 7, "device": 0}
GIVEN = {
    "operators": [
        {"start": 0, "end": 20, "name": "aten::linear", "thread": 7, "shapes": "[[2,5],[3,5]]"},
        {"start": 3, "end": 14, "name": "aten::mm", "thread": 7, "shapes": "[[2,5],[5,3]]"},
        {"start": 30, "end": 36, "name": "aten::mm", "thread": 7, "shapes": "[[2, 5], [5, 3]]"},
        {"start": 40, "end": 43, "name": "aten::mm", "thread": 7, "shapes": "[[9,5],[5,3]]"},
    ],
    "kernels": [
        {"start": 30, "end": 47, "launch_start": 9} | LAUNCHED,
        {"start": 50, "end": 54, "launch_start": 17} | LAUNCHED,
        {"start": 60, "end": 90, "launch_start": 31} | LAUNCHED,
        {"start": 90, "end": 92, "launch_start": 41} | LAUNCHED,
    ],
    "frames": [
        {"start": 0, "end": 29, "name": "model.py(9): forward", "thread": 7},
        {"start": 29, "end": 60, "name": "loss.py(4): loss", "thread": 7},
    ],
    "ranks": [{"device_kind": "gpu"}],
}


@recipe(
    question="Which operators take time, on the host and on the device?",
    scope="rank",
    plot=Bars(x="name", y=("host_self", "device_self")),
    columns={
        "rank": Id("rank"),
        "name": Name("operator"),
        "shapes": Text("input shapes; null where none were recorded, or rows of all shapes were joined"),
        "calls": Count("how often it ran"),
        "host_self": Time("host time in it and in no operator inside it"),
        "host_total": Time("host time in it; one inside another of its name counts in both"),
        "host_share": Share("host_self / that of all operators of the rank"),
        "device_self": Time("kernels and copies that it launched itself; null without a device"),
        "device_total": Time("kernels and copies launched in it; null without a device"),
        "device_share": Share("device_self / that of all operators of the rank"),
        "called_from": Name("the line of the user's own code that calls most of it; null without frames"),
    },
    examples=[
        Example(
            "the product inside a linear layer is its child, and launches for itself",
            given=GIVEN,
            expect=[
                {"rank": 0, "name": "aten::mm", "shapes": "[[2,5],[5,3]]", "calls": 2}
                | {"host_self": 17, "host_total": 17, "host_share": 17 / 29, "device_self": 47}
                | {"device_total": 47, "device_share": 47 / 53, "called_from": "model.py(9): forward"},
                {"rank": 0, "name": "aten::linear", "shapes": "[[2,5],[3,5]]", "calls": 1}
                | {"host_self": 9, "host_total": 20, "host_share": 9 / 29, "device_self": 4}
                | {"device_total": 21, "device_share": 4 / 53, "called_from": "model.py(9): forward"},
                {"rank": 0, "name": "aten::mm", "shapes": "[[9,5],[5,3]]", "calls": 1}
                | {"host_self": 3, "host_total": 3, "host_share": 3 / 29, "device_self": 2}
                | {"device_total": 2, "device_share": 2 / 53, "called_from": "loss.py(4): loss"},
            ],
        ),
        Example(
            "without a device, and with all shapes of a name in one row",
            given={"operators": GIVEN["operators"]},
            options={"by_shape": False},
            expect=[
                {"rank": 0, "name": name, "shapes": None, "calls": calls, "host_self": own}
                | {"host_total": own + inside, "device_self": None, "device_total": None}
                for name, calls, own, inside in (("aten::mm", 3, 20, 0), ("aten::linear", 1, 9, 11))
            ],
        ),
    ],
)  # fmt: skip
def operator_summary(
    operator_times: pl.LazyFrame,
    *,
    by_shape: Annotated[bool, "a row per operator and shape; without, per operator"] = True,
) -> pl.LazyFrame:
    """List each rank's operators, as `key_averages()` of a PyTorch profiler does.

    Self time adds up to the time in operators; total time counts what is inside several times. Device time
    is that of launched kernels and copies, added up, communication included: it is no busy time. Work that a
    CUDA graph holds belongs to the operator that launches the graph.
    """
    kinds = ["rank", "name", "shapes"]
    rows = operator_times if by_shape else operator_times.with_columns(shapes=pl.lit(None, pl.String))
    times = ("host_self", "host_total")
    on_device = ("device_self", "device_total")
    callers = (
        rows.drop_nulls("called_from")
        .group_by(*kinds, "called_from")
        .agg(pl.col("host_total").sum())
        .sort("host_total", "called_from", descending=[True, False])
        .unique(kinds, keep="first", maintain_order=True)
        .select(*kinds, "called_from")
    )
    return (
        rows.group_by(kinds)
        .agg(
            pl.col("calls", *times).sum(),
            **{c: pl.when(pl.col(c).count() > 0).then(pl.col(c).sum()) for c in on_device},
        )
        .pipe(shares, host_share="host_self", device_share="device_self")
        .join(callers, on=kinds, how="left", nulls_equal=True)
        .select(*operator_summary.columns)
        .sort(
            "rank",
            pl.max_horizontal(pl.col("device_self").fill_null(0), "host_self"),
            "name",
            "shapes",
            descending=[False, True, False, False],
        )
    )
