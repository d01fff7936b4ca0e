"""Weights that autocast turns into another type, again in each forward pass."""

from __future__ import annotations

import polars as pl

from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.operators.traffic import extents
from lostflops.store.trace import Trace

# Under autocast each of these is called with fp32 weights, casts them, and calls itself with the copies.
WEIGHED = r"^aten::(?:linear|conv[123]d)$"
CAST, BACK, FP32 = "aten::to", "ToCopyBackward0", "float"
CASTS = pl.Schema({"rank": pl.Int32, "ns": pl.Int64, "back": pl.Int64, "host": pl.Int64, "calls": pl.Int64})
LANE = ["rank", "thread"]


def weight_casts(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long the GPU casts weights of fp32 inside the operators that use them, rank by rank, in all steps.

    A cast inside of an operator is of its weight where it has the shape of that, and no operator has an input
    of that shape. `ns` is the kernels' time, `back` that of casting the weights' gradients back, `host` the
    CPU's time in both, and `calls` how often a weight is cast. Nothing where no shapes were recorded.
    """
    operators, kernels, steps = (trace.table(name) for name in ("operators", "kernels", "steps"))
    if operators is None or kernels is None or steps is None:
        return CASTS.to_frame()
    name, texts = pl.col("name").cast(pl.String), pl.col("shapes", "dtypes").cast(pl.String)
    asked = name.str.contains(WEIGHED) | name.is_in([CAST, BACK])
    rows = operators.filter(asked).select(*LANE, "start", "end", name, texts).sort("start").collect()
    weighed = rows.filter(pl.col("name").str.contains(WEIGHED)).drop_nulls("shapes")
    shapes = {text: extents(text) for text in rows["shapes"].unique().drop_nulls()}
    called = [shapes[text] for text in weighed["shapes"].unique() if len(shapes[text]) > 1]
    weights = {told[1] for told in called} - {told[0] for told in called} - {()}
    of_weights = [text for text, told in shapes.items() if told and told[0] in weights]
    casts = rows.filter(pl.col("name") == CAST, pl.col("shapes").is_in(of_weights))
    if casts.is_empty():
        return CASTS.to_frame()
    is_fp32 = pl.col("dtypes").str.contains(rf'^\["{FP32}"')
    around = [
        (casts.filter(is_fp32), weighed, "ns"),
        (casts.filter(~is_fp32), rows.filter(pl.col("name") == BACK), "back"),
    ]
    found = [_inside(some, outer).with_columns(kind=pl.lit(kind)) for some, outer, kind in around]
    held = pl.concat(found).sort("start").with_row_index("cast")
    launched = kernels.filter(pl.col("launch_start").is_not_null()).select(
        *LANE, at="launch_start", runs=pl.col("end") - pl.col("start")
    )
    each = (
        in_host_steps(launched, host_steps(steps, counted.lazy()), "at")
        .collect()
        .join_asof(held, left_on="at", right_on="start", by=LANE, check_sortedness=False, coalesce=False)
        .filter(pl.col("at") < pl.col("end"))
        .group_by("rank", "cast", "kind")
        .agg(pl.col("runs").sum(), host=(pl.col("end") - pl.col("start")).first())
    )
    forward = pl.col("kind") == "ns"
    return (
        each.group_by("rank")
        .agg(
            ns=pl.col("runs").filter(forward).sum(),
            back=pl.col("runs").filter(~forward).sum(),
            host=pl.col("host").sum(),
            calls=forward.sum(),
        )
        .select(pl.col(c).cast(t) for c, t in CASTS.items())
        .sort("rank")
    )


def _inside(casts: pl.DataFrame, outer: pl.DataFrame) -> pl.DataFrame:
    """The casts that lie inside one of these operators: rank, thread, start, end."""
    around = outer.select(*LANE, "start", until="end").sort("start")
    held = casts.sort("start").join_asof(around, on="start", by=LANE, check_sortedness=False)
    return held.filter(pl.col("end") <= pl.col("until")).select(*LANE, "start", "end")
