"""Counters of network cards and switches: bytes, packets and waiting ticks per port."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import Export
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME

# Tables of samples, and what the name of a device begins with: its real name may say where it stands.
SOURCES = {"NET_NIC_METRIC": "nic", "NET_IB_SWITCH_METRIC": "switch", "NET_ETH_SWITCH_METRIC": "switch"}


def network_metrics(export: Export, quality: list[Quality]) -> pl.DataFrame:
    """Samples of every port that the export holds, as counters.

    A value with a unit per time is a level, any other was added between its start and its end. Devices are
    numbered in the order of their ids: their names are the site's.
    """
    names = export.read("TARGET_INFO_NETWORK_METRICS").unique(["metricsListId", "metricsIdx"], keep="first")
    found: list[pl.DataFrame] = []
    for table, kind in SOURCES.items():
        if not export.has(table):
            continue
        rows = usable(export.read(table).drop_nulls(["start", "end", "value"]), "network metrics", quality)
        device = pl.col("globalId").rank("dense").cast(pl.Int64) - 1
        rows = rows.with_columns(
            instance=pl.format(kind + "{} port {}", device, pl.col("portId").fill_null(0))
        )
        found.append(
            rows.join(names, on=["metricsListId", "metricsIdx"], how="left", maintain_order="left").select(
                "start",
                "end",
                metric=pl.col("name").fill_null(pl.format("metric {}", "metricsIdx")).cast(NAME),
                instance=pl.col("instance").cast(NAME),
                value=pl.col("value").cast(pl.Float64),
                unit=pl.col("unit").cast(NAME),
                added=~pl.col("unit").str.contains(r"(?i)/\s*m?s\b|per m?s|/ ?sec").fill_null(False),
            )
        )
    if not found:
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    return pl.concat(found)
