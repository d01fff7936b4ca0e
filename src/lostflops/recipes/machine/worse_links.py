"""Links, ports and placements that are worse than their neighbours: rows of `topology_faults`."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

# From near to far, as nvidia-smi calls them.
NEARNESS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
FAR, FARTHEST = 4, 5
GPU = r"^GPU\d+$"


def _faults(
    frame: pl.LazyFrame, fault: str, subject: pl.Expr, found: pl.Expr, expected: pl.Expr
) -> pl.LazyFrame:
    return frame.select("rank", fault=pl.lit(fault), subject=subject, found=found, expected=expected)


def of_links(links: pl.LazyFrame) -> Iterator[pl.LazyFrame]:
    number = pl.col("device", "peer").str.extract(r"(\d+)$").cast(pl.Int64)
    pair = pl.format("GPU{}-GPU{}", pl.min_horizontal(number), pl.max_horizontal(number))
    between_gpus = pl.all_horizontal(pl.col("device", "peer").str.contains(GPU))
    gpus = links.filter(between_gpus).with_columns(_pair=pair)
    most = pl.col("num_links").max().over("rank")
    paths = gpus.filter(pl.col("matrix") == "path").with_columns(_most=most)
    best = pl.format("NV{}", "_most")
    bare = pl.col("num_links").is_null() & pl.col("_most").is_not_null()
    yield _faults(paths.filter(bare), "pair without NVLink", pl.col("_pair"), pl.col("code"), best)
    fewer = paths.filter(pl.col("num_links") < pl.col("_most"))
    yield _faults(fewer, "fewer NVLinks", pl.col("_pair"), pl.col("code"), best)
    peers = gpus.filter(pl.col("matrix").is_in(["read", "write"]) & (pl.col("code") != "OK"))
    yield _faults(peers, "no P2P", pl.col("_pair"), pl.col("code"), pl.lit("OK"))
    near = pl.col("code").replace_strict(NEARNESS, default=None, return_dtype=pl.Int64)
    cards = (
        links.filter(
            (pl.col("matrix") == "path")
            & pl.col("device").str.contains(GPU)
            & ~pl.col("peer").str.contains(GPU)
        )
        .with_columns(_near=near)
        .filter(pl.col("_near").is_not_null())
        .sort("_near", "peer")
        .group_by("rank", "device")
        .agg(pl.col("_near", "code", "peer").first())
        .with_columns(_best=pl.col("_near").min().over("rank"))
    )
    far = (pl.col("_near") == FARTHEST) | ((pl.col("_near") == FAR) & (pl.col("_best") < FAR))
    code_of = {v: k for k, v in NEARNESS.items()}
    others = pl.format("{}, as others have", pl.col("_best").replace_strict(code_of, return_dtype=pl.String))
    nearer = (
        pl.when(pl.col("_best") < pl.col("_near"))
        .then(others)
        .otherwise(pl.lit("a card on its own memory node"))
    )
    yield _faults(
        cards.filter(far), "NIC far", pl.col("device"), pl.format("{} to {}", "code", "peer"), nearer
    )


def of_devices(devices: pl.LazyFrame, expected_rate: int) -> Iterator[pl.LazyFrame]:
    active = pl.col("state") == "active"
    ports = devices.filter(pl.col("kind") == "port")
    port = pl.format("{} port {}", "name", "port")
    states = pl.concat_str("state", "physical", separator=", ", ignore_nulls=True)
    yield _faults(ports.filter(~active), "port down", port, states, pl.lit("active"))
    usual = pl.col("rate").max().over("rank", "layer")
    rates = ports.filter(active).with_columns(_usual=pl.lit(float(expected_rate)) if expected_rate else usual)
    slow = rates.filter(pl.col("rate") < pl.col("_usual"))
    yield _faults(slow, "port slow", port, _rate("rate"), _rate("_usual"))
    lanes = devices.filter((pl.col("kind") == "gpu") & (pl.col("lanes") < pl.col("most_lanes")))
    yield _faults(
        lanes,
        "PCIe lanes missing",
        pl.col("name"),
        pl.col("lanes").cast(pl.String),
        pl.col("most_lanes").cast(pl.String),
    )
    down = devices.filter(pl.col("kind") == "nvlink").with_columns(_any=active.any().over("rank", "name"))
    yield _faults(
        down.filter(pl.col("_any") & (pl.col("state") == "inactive")),
        "NVLink inactive",
        pl.format("{} link {}", "name", "port"),
        pl.col("state"),
        pl.lit("active"),
    )
    yield _placed(devices)


def _placed(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Processes that may run on no CPU near their GPU; one that may run anywhere is no fault."""
    processes = devices.filter((pl.col("kind") == "process") & pl.col("port").is_not_null()).select(
        "rank", "cpus", process="name", name=pl.format("GPU{}", "port")
    )
    gpus = devices.filter(pl.col("kind") == "gpu").select("rank", "name", near="cpus")
    both = processes.join(gpus, on=["rank", "name"]).drop_nulls()
    outside = _cpus("cpus").list.set_intersection(_cpus("near")).list.len() == 0
    return _faults(
        both.filter(outside),
        "process far from its GPU",
        pl.col("process"),
        pl.format("CPUs {}", "cpus"),
        pl.format("CPUs {} of {}", "near", "name"),
    )


def _cpus(column: str) -> pl.Expr:
    """'0-2,8' as [0, 1, 2, 8]."""
    ends = pl.element().str.split_exact("-", 1)
    low = ends.struct.field("field_0").cast(pl.Int64, strict=False)
    high = ends.struct.field("field_1").cast(pl.Int64, strict=False).fill_null(low)
    return pl.col(column).str.split(",").list.eval(pl.int_ranges(low, high + 1).explode(empty_as_null=True))


def _rate(column: str) -> pl.Expr:
    whole = pl.col(column).cast(pl.Int64, strict=False)
    exact = (
        pl.when(whole == pl.col(column)).then(whole.cast(pl.String)).otherwise(pl.col(column).cast(pl.String))
    )
    return pl.format("{} Gb/s", exact)
