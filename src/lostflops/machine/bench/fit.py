"""Latency and bandwidth from times at several sizes: t = t0 + bytes / B."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

ENOUGH = 3  # sizes
FLAT = 1e-6  # of the start: what the line rises up to the largest size is less than the arithmetic can tell


def fits(bandwidths: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Per group, the line that lies nearest to the times by relative error.

    `latency` is t0 in ns and not below 0, `bandwidth` B in GB/s, `half_size` the bytes at which half of B is
    reached, `spread` the median relative distance of the times from the line. A group of fewer than three
    sizes, or whose time does not grow, has no line. Least squares with weights 1 / t².
    """
    x, y = pl.col("bytes").cast(pl.Float64), pl.col("time").cast(pl.Float64)
    weight = 1 / (y * y)
    rows = bandwidths.filter((pl.col("time") > 0) & (pl.col("bytes") > 0))
    # Around the weighted means: sums of squares that nearly cancel would leave nothing but rounding.
    all_weight = weight.sum()
    dx, dy = x - (weight * x).sum() / all_weight, y - (weight * y).sum() / all_weight
    sums = rows.group_by(by, maintain_order=True).agg(
        _n=pl.col("bytes").n_unique(),
        _largest=x.max(),
        _x=(weight * x).sum() / all_weight,
        _y=(weight * y).sum() / all_weight,
        _slope=(weight * dx * dy).sum() / (weight * dx * dx).sum(),
        _through_zero=(weight * x * y).sum() / (weight * x * x).sum(),
    )
    lines = (
        sums.filter(pl.col("_n") >= ENOUGH)
        .with_columns(_start=pl.col("_y") - pl.col("_slope") * pl.col("_x"))
        # A line that would begin below 0 begins at 0.
        .with_columns(
            _slope=pl.when(pl.col("_start") < 0).then("_through_zero").otherwise("_slope"),
            _start=pl.col("_start").clip(0),
        )
        .filter(
            pl.col("_slope").is_finite() & (pl.col("_slope") * pl.col("_largest") > FLAT * pl.col("_start"))
        )
    )
    distance = ((pl.col("_start") + pl.col("_slope") * x) / y - 1).abs()
    spread = (
        rows.join(lines, on=list(by), how="inner", nulls_equal=True)
        .group_by(by)
        .agg(spread=distance.median())
    )
    return lines.join(spread, on=list(by), how="left", nulls_equal=True, maintain_order="left").select(
        *by,
        latency=pl.col("_start").round().cast(pl.Int64),
        bandwidth=1 / pl.col("_slope"),
        half_size=(pl.col("_start") / pl.col("_slope")).round().cast(pl.Int64),
        spread="spread",
    )
