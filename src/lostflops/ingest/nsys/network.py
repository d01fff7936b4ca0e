"""Counters of network cards and switches: bytes, packets and waiting ticks per port."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import Export
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME

# Tables of samples, and what the name of a device begins with: its real name may say where it stands.
SOURCES = {"NET_NIC_METRIC": "nic", "NET_IB_SWITCH_METRIC": "switch", "NET_ETH_SWITCH_METRIC": "switch"}

# Units of what holds as it is: an amount per time, or a part of a whole.
LEVEL = r"(?i)/\s*(?:[mµun]?s\b|sec)|\bper\s*(?:milli|micro|nano|[mµun])?s|[a-z]bps\b|%|percent|\bratio\b"


def network_metrics(export: Export, quality: list[Quality]) -> pl.DataFrame:
    """Samples of every port that the export holds, as counters.

    A value with a unit per time, or of a share, is a level; one with another unit was added between its start
    and its end; without a unit neither is known. Devices are numbered in the order of their ids: their names
    are the site's.
    """
    names = export.read("TARGET_INFO_NETWORK_METRICS").unique(["metricsListId", "metricsIdx"], keep="first")
    found: list[pl.DataFrame] = []
    devices = dict.fromkeys(SOURCES.values(), 0)
    for table, kind in SOURCES.items():
        if not export.has(table):
            continue
        rows = usable(export.read(table).drop_nulls(["start", "end", "value"]), "network metrics", quality)
        # Switches of both kinds are numbered on.
        device = pl.col("globalId").rank("dense").cast(pl.Int64) - 1 + devices[kind]
        devices[kind] += rows["globalId"].drop_nulls().n_unique()
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
                added=~pl.col("unit").str.contains(LEVEL),
            )
        )
    if not found:
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    return pl.concat(found)
