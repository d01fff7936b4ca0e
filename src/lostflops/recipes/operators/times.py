"""Host and device time of every kind of operator: what the questions about operators add up."""

from __future__ import annotations

import json

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.columns import Count, Id, Name, Number, Text, Time
from lostflops.recipe import Example, recipe
from lostflops.recipes.host_steps import while_on_host
from lostflops.recipes.operators.launched import added, launched, numbered, with_children, with_device
from lostflops.tables import Copies, Frames, Kernels, Operators, Ranks

KINDS = ["rank", "name", "shapes", "dtypes", "phase", "called_from"]
# Frames that are no line of the user's own code.
FOREIGN = (
    r"^<|^nn\.Module: |^torch/|/torch/|^autograd/|site-packages/|dist-packages/"
    r"|^(?:threading|contextlib|runpy|multiprocessing)\b"
)

MM = {"name": "aten::mm", "thread": 7, "shapes": "[[7, 5],\n [5, 3]]", "dtypes": '["float", "float"]'}


@recipe(
    question="How long did each kind of operator take, on the host and on the device, inside and alone?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "name": Name("operator"),
        "shapes": Text("input shapes, as compact JSON; null where none were recorded"),
        "dtypes": Text("input types, as compact JSON; null where none were recorded"),
        "phase": Name("forward, backward, recompute or optimizer; null when unknown"),
        "called_from": Name("innermost line of the user's own code that calls it; null without frames"),
        "calls": Count("how often it ran"),
        "host_self": Time("host time in it and in no operator inside it"),
        "host_total": Time("host time in it"),
        "device_self": Time("kernels and copies that it launched itself; null without a device"),
        "device_total": Time("kernels and copies launched in it; null without a device"),
        "in_steps": Time(
            "the part of `device_total` inside steps that count; of `host_total` without a device"
        ),
        "calls_in_steps": Number(
            "how often it ran in steps that count; of a call that reaches out of them, the part of its time "
            "that lies inside",
            unit="calls",
        ),
        "precision": Name("precision of most kernel time that it launched itself; null when none says"),
    },
    examples=[
        Example(
            "a linear layer that multiplies: the product launches, and one kernel reaches out of the step",
            given={
                "operators": [
                    {"start": 0, "end": 20, "name": "aten::linear", "thread": 7, "phase": "forward"},
                    {"start": 3, "end": 14, "phase": "forward"} | MM,
                ],
                "kernels": [
                    {"start": 30, "end": 47, "thread": 7, "launch_start": 9, "launch_end": 12, "device": 0}
                    | {"precision": "bf16"}
                ],
                "copies": [{"start": 50, "end": 52, "thread": 7, "launch_start": 15, "launch_end": 16}],
                "steps": [{"start": 0, "end": 40}],
                "frames": [
                    {"start": 0, "end": 60, "name": "train.py(9): step", "thread": 7},
                    {"start": 0, "end": 59, "name": "torch/nn/modules/linear.py(1): forward", "thread": 7},
                ],
                "ranks": [{"device_kind": "gpu"}],
            },
            expect=[
                {"rank": 0, "name": "aten::linear", "shapes": None, "dtypes": None, "phase": "forward"}
                | {"called_from": "train.py(9): step", "calls": 1, "host_self": 9, "host_total": 20}
                | {"device_self": 2, "device_total": 19, "in_steps": 10, "calls_in_steps": 10 / 19}
                | {"precision": None},
                {"rank": 0, "name": "aten::mm", "shapes": "[[7,5],[5,3]]", "dtypes": '["float","float"]'}
                | {"phase": "forward", "called_from": "train.py(9): step", "calls": 1, "host_self": 11}
                | {"host_total": 11, "device_self": 17, "device_total": 17, "in_steps": 10}
                | {"calls_in_steps": 10 / 17, "precision": "bf16"},
            ],
        ),
        Example(
            "a call that launches outside of steps counts by that, one that launches nothing by the host",
            given={
                "operators": [{"start": at, "end": at + 8} | MM for at in (0, 20, 36)],
                "kernels": [
                    {"start": at + 9, "end": at + 9 + time, "thread": 7, "launch_start": at + 3, "device": 0}
                    for at, time in ((0, 500), (20, 4))
                ],
                "steps": [{"start": 12, "end": 40, "step": 3}],
                "ranks": [{"device_kind": "gpu"}],
            },
            expect=[{"name": "aten::mm", "calls": 3, "device_total": 504, "in_steps": 32}
                    | {"calls_in_steps": 28 / 500 + 1 + 4 / 8}],
        ),
        Example(
            "an operator that outlasts the one around it has own time up to that end: none is below zero",
            given={
                "operators": [
                    {"start": 0, "end": 10, "name": "outer", "thread": 7},
                    {"start": 1, "end": 6, "name": "inner", "thread": 7},
                    {"start": 5, "end": 13, "name": "late", "thread": 7},
                ],
                "steps": [{"start": 0, "end": 40}],
            },
            expect=[
                {"name": "inner", "calls": 1, "host_self": 4, "host_total": 5},
                {"name": "late", "calls": 1, "host_self": 1, "host_total": 8},
                {"name": "outer", "calls": 1, "host_self": 5, "host_total": 10},
            ],
        ),
    ],
)  # fmt: skip
def operator_times(
    operators: Operators,
    kernels: Kernels | None,
    copies: Copies | None,
    frames: Frames | None,
    counted_steps: pl.LazyFrame,
    ranks: Ranks | None,
) -> pl.LazyFrame:
    """Add up operators by rank, name, shapes, types, phase and the line that calls them.

    Operators nest within their thread. Device time is that of the kernels and copies, communication
    included, whose launch lies in the operator; kernels that run at the same time each count. An operator
    that does nothing but call another of its name is one with it.
    """
    rows = operators.select("rank", "thread", "start", "end", *KINDS[1:5]).collect()
    lanes = rows.select("rank", "thread").unique().with_row_index("lane")
    rows = numbered(rows, lanes)
    forest = intervals.nest(*(rows[c].to_numpy() for c in ("start", "end", "lane")))
    rows = rows[forest.order].with_columns(length=pl.col("end") - pl.col("start"))
    steps = intervals.union(counted_steps, ["rank"])
    work = numbered(launched(kernels, copies, steps), lanes)
    once = _once(forest, rows["name"].to_physical().to_numpy())
    deepest = intervals.innermost_at(forest, work["launch_start"].to_numpy(), work["lane"].to_numpy())
    at = np.where(deepest >= 0, once[deepest], -1)
    device, inside = (added(at, work[name].to_numpy(), rows.height) for name in ("time", "in_steps"))
    kept = once == np.arange(rows.height)
    # By pieces, not as length less children: an operator may end after the one around it.
    piece, begins, stops = intervals.self_pieces(forest)
    known = pl.lit(False) if ranks is None else pl.col("rank").is_in(with_device(ranks))
    each = (
        intervals.inside(rows.lazy(), while_on_host(counted_steps), {"host_inside": pl.lit(True)})
        .collect()
        .with_columns(
            _callers(rows, frames),
            host_self=pl.Series(added(once[piece], stops - begins, rows.height)),
            device_self=pl.when(known).then(pl.Series(device)),
            device_total=pl.when(known).then(pl.Series(with_children(forest, device))),
            in_steps=pl.when(known).then(pl.Series(with_children(forest, inside))).otherwise("host_inside"),
            position=pl.int_range(pl.len(), dtype=pl.Int64),
        )
        .with_columns(calls_in_steps=_share_inside())
    )
    summed = (
        each.filter(pl.Series(kept, dtype=pl.Boolean))
        .group_by(KINDS)
        .agg(
            pl.col("host_self", "in_steps", "calls_in_steps").sum(),
            calls=pl.len().cast(pl.Int64),
            host_total=pl.col("length").sum(),
            device_self=_sum_or_null("device_self"),
            device_total=_sum_or_null("device_total"),
        )
    )
    return (
        summed.join(_precisions(each, at, work), on=KINDS, how="left", nulls_equal=True)
        .pipe(_compact)
        .select(*operator_times.columns)
        .sort(KINDS, nulls_last=True)
        .lazy()
    )


def _once(forest: intervals.Forest, name: intervals.Int) -> intervals.Int:
    """Per operator the one that it counts as: where it is all that one of its name calls, that one."""
    inner = forest.parent >= 0
    children = np.bincount(forest.parent[inner], minlength=len(name))
    again = np.zeros(len(name), dtype=np.bool_)
    again[inner] = (name[forest.parent] == name)[inner] & (children[forest.parent] == 1)[inner]
    counts_as = np.arange(len(name), dtype=np.int64)
    while len(name) and again[counts_as].any():
        counts_as = np.where(again[counts_as], forest.parent[counts_as], counts_as)
    return counts_as


def _callers(rows: pl.DataFrame, frames: pl.LazyFrame | None) -> pl.Series:
    """Per operator the innermost of the user's own frames around it."""
    unknown = pl.Series("called_from", [None] * rows.height, dtype=pl.String)
    if frames is None:
        return unknown
    name = pl.col("name").cast(pl.String)
    named = frames.select("name").unique().collect().filter(~name.str.contains(FOREIGN))
    own = frames.filter(pl.col("name").is_in(named["name"].to_list())).collect()
    if own.is_empty():
        return unknown
    lane = ["rank", pl.col("thread").fill_null(-1), "start", "end"]
    points = rows.select(lane)
    return intervals.innermost(points, own.select(*lane, name), ("rank", "thread"), "name").alias(
        "called_from"
    )


def _share_inside() -> pl.Expr:
    """The part of each call that lies inside steps: of what it launched, or of its own time where that is
    nothing."""
    launches = pl.col("device_total").fill_null(0) > 0
    part = pl.when(launches).then("in_steps").otherwise("host_inside")
    whole = pl.when(launches).then("device_total").otherwise("length")
    return pl.when(whole > 0).then(part / whole).otherwise(0.0)


def _sum_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _precisions(each: pl.DataFrame, at: intervals.Int, work: pl.DataFrame) -> pl.DataFrame:
    """The precision that most of the time has that each kind of operator launched itself, where one says."""
    said = work.select("time", "precision", position=pl.Series(at)).drop_nulls("precision")
    return (
        said.join(each.select(*KINDS, "position"), on="position")
        .group_by(*KINDS, "precision")
        .agg(pl.col("time").sum())
        .sort("time", "precision", descending=[True, False])
        .unique(KINDS, keep="first", maintain_order=True)
        .drop("time")
    )


def _compact(rows: pl.DataFrame) -> pl.DataFrame:
    """Shapes and types without the blanks in which sources differ, and null where they hold nothing."""
    told: list[pl.Series] = []
    for column in ("shapes", "dtypes"):
        texts = rows[column].cast(pl.String)
        known = {text: compact(text) for text in texts.unique().drop_nulls()}
        told.append(texts.replace_strict(known, default=None, return_dtype=pl.String).alias(column))
    plain = pl.col("name", "phase", "precision", "called_from").cast(pl.String)
    return rows.with_columns(plain).with_columns(told)


def compact(text: str) -> str | None:
    """JSON without blanks; None where it is not a list, or an empty one."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) and value else None
