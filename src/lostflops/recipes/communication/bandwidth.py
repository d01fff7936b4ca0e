"""Size and bandwidth of an operation as nccl-tests counts them, and the time that was measured at a size."""

from __future__ import annotations

import polars as pl

GATHERS = ["all-gather", "gather"]
SCATTERS = ["reduce-scatter", "scatter"]
STRAIGHT = ["broadcast", "reduce", "send", "receive", "send-receive"]


def counted_bytes(kind: pl.Expr, size: pl.Expr) -> pl.Expr:
    """nccl-tests' size of an operation among `size` ranks, from `bytes_in` and `bytes_out`.

    One rank's buffer for all-reduce, and the whole result or input over all ranks where each rank holds only
    its part of one side.
    """
    sent, received = pl.col("bytes_in"), pl.col("bytes_out")
    return (
        pl.when(kind.is_in(GATHERS))
        .then(pl.coalesce(received, sent * size))
        .when(kind.is_in(SCATTERS))
        .then(pl.coalesce(sent, received * size))
        .otherwise(pl.coalesce(sent, received))
    )


def bus_factor(kind: pl.Expr, size: pl.Expr) -> pl.Expr:
    """nccl-tests' factor from algorithm to bus bandwidth; null for operations that it does not define."""
    return (
        pl.when(kind == "all-reduce")
        .then(2 * (size - 1) / size)
        .when(kind.is_in([*GATHERS, *SCATTERS, "all-to-all"]))
        .then((size - 1) / size)
        .when(kind.is_in(STRAIGHT))
        .then(1.0)
    )


def with_bandwidth(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of `bytes`, `latency`, `_factor` and `_reason` with their bandwidths, or why there are none."""
    latency = pl.col("latency")
    return rows.with_columns(
        algorithm_bandwidth=pl.when(latency > 0).then(pl.col("bytes") / latency)
    ).with_columns(
        bus_bandwidth=pl.col("algorithm_bandwidth") * pl.col("_factor"),
        no_bandwidth=pl.when(pl.col("bytes").is_null())
        .then(pl.lit("its size was not recorded"))
        .when(latency.is_null())
        .then("_reason")
        .when(latency <= 0)
        .then(pl.lit("it takes less time than the clock resolves"))
        .when(pl.col("_factor").is_null())
        .then(pl.lit("nccl-tests defines no bus bandwidth for it")),
    )


def measured_times(rows: pl.LazyFrame, bandwidths: pl.LazyFrame) -> pl.LazyFrame:
    """The measured time at each row's size, as a real number of ns."""
    by = ["backend", "operation", "group_size"]
    points = (
        bandwidths.filter((pl.col("time") > 0) & (pl.col("bytes") > 0) & pl.col("correct").fill_null(True))
        .with_columns(pl.col("group_size", "hosts").cast(pl.Int64))
        # Of several ways to measure the same, the fastest shows what can be reached.
        .group_by(*by, "hosts", _size="bytes")
        .agg(_time=pl.col("time").min().cast(pl.Float64), _hosts=pl.col("hosts").first())
        .drop("hosts")
    )
    same_hosts = (
        pl.col("hosts").is_null() | pl.col("_hosts").is_null() | (pl.col("hosts") == pl.col("_hosts"))
    )
    size, time, wanted = pl.col("_size"), pl.col("_time"), pl.col("bytes")
    low, high = size <= wanted, size >= wanted
    around = (
        rows.select("_row", "bytes", "hosts", *by)
        .join(points, on=by, how="inner")
        .filter(same_hosts)
        .group_by("_row", "bytes")
        .agg(
            _ambiguous=pl.col("_hosts").n_unique() > 1,
            _x0=size.filter(low).max().cast(pl.Float64),
            _t0=time.filter(low).sort_by(size.filter(low)).last(),
            _x1=size.filter(high).min().cast(pl.Float64),
            _t1=time.filter(high).sort_by(size.filter(high)).first(),
        )
    )
    x0, x1, t0, t1 = (pl.col(c) for c in ("_x0", "_x1", "_t0", "_t1"))
    along = (wanted / x0).log() / (x1 / x0).log()
    expected = (
        pl.when(pl.col("_ambiguous"))
        .then(None)
        .when(x0.is_null())
        .then(t1)
        .when(x1.is_null())
        .then(t0 * wanted / x0)
        .when(x0 == x1)
        .then(t0)
        .otherwise(t0 * (t1 / t0).pow(along))
    )
    return around.select("_row", "_ambiguous", expected=expected)
