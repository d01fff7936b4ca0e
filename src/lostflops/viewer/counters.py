"""Sampled values of a run: GPU and network activity, memory, power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.intervals import Int
from lostflops.store.trace import Trace

from .pyramid import BUCKETS, Array

BY = ("rank", "device", "metric", "instance", "unit")


@dataclass(frozen=True)
class Samples:
    """All samples, counter by counter, in each by time: each value holds from start to end."""

    start: Int
    end: Int
    value: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReadSamples:
    """The samples of a run as they are written, and what counters there are."""

    times: tuple[Int, Int]
    value: npt.NDArray[np.float64]
    counters: list[dict[str, Any]]


def read(trace: Trace) -> ReadSamples:
    parts: list[tuple[dict[str, Any], pl.DataFrame]] = []
    whole = trace.whole
    sampled, memory = whole.table("counters"), whole.table("allocations")
    with whole.reading():
        if sampled is not None:
            parts += _sampled(sampled.select(*BY, "start", "end", "value").collect())
        if memory is not None:
            columns = ("rank", "device", "start", "allocated", "reserved")
            parts += _memory(memory.select(columns).collect())
    parts.sort(key=lambda part: part[0]["rank"])
    counters: list[dict[str, Any]] = []
    at = 0
    for named, rows in parts:
        value = rows["value"]
        bounds = {"first": at, "last": at + rows.height, "least": value.min(), "most": value.max()}
        counters.append({**named, **bounds})
        at += rows.height
    frames = [rows.select("start", "end", "value") for _, rows in parts]
    joined = pl.concat(frames) if frames else pl.DataFrame(schema=_SCHEMA)
    start, end = joined["start"].to_numpy(), joined["end"].to_numpy()
    return ReadSamples((start, np.maximum(start, end)), joined["value"].to_numpy(), counters)


_SCHEMA = pl.Schema({"start": pl.Int64, "end": pl.Int64, "value": pl.Float64})


def _sampled(rows: pl.DataFrame) -> list[tuple[dict[str, Any], pl.DataFrame]]:
    rows = rows.filter(pl.col("value").is_finite()).with_columns(
        pl.col("metric", "instance", "unit").cast(pl.String)
    )
    found: list[tuple[dict[str, Any], pl.DataFrame]] = []
    parts = rows.sort("start", "end").partition_by(BY, as_dict=True)
    for key in sorted(parts, key=lambda key: tuple(str(part) for part in key)):
        rank, device, metric, instance, unit = key
        title = " ".join(filter(None, [metric, f"of GPU {device}" if device is not None else "", instance]))
        named = {"rank": rank, "title": title, "metric": metric, "unit": unit or ""}
        found.append((named, parts[key].select(*_SCHEMA)))
    return found


def _memory(rows: pl.DataFrame) -> list[tuple[dict[str, Any], pl.DataFrame]]:
    """What the allocator held after each event, until the next."""
    found: list[tuple[dict[str, Any], pl.DataFrame]] = []
    parts = rows.sort("start", maintain_order=True).partition_by("rank", "device", as_dict=True)
    for (rank, device), mine in sorted(parts.items(), key=lambda part: tuple(map(str, part[0]))):
        where = "the host" if device is None else f"GPU {device}"
        for column in ("allocated", "reserved"):
            values = mine.select("start", value=pl.col(column).cast(pl.Float64)).drop_nulls()
            if values.height:
                values = values.with_columns(end=pl.col("start").shift(-1).fill_null(pl.col("start") + 1))
                metric = f"memory {column}"
                named = {"rank": rank, "title": f"{metric} on {where}", "metric": metric, "unit": "bytes"}
                found.append((named, values.select(*_SCHEMA)))
    return found


def buckets(samples: Samples, first: int, last: int, begin: int, width: int) -> tuple[Array, Array, Array]:
    """Least, mean by time, and most of a counter in each bucket of a tile; NaN where there is no sample."""
    edges = begin + width * np.arange(BUCKETS + 1)
    stop = begin + width * BUCKETS
    nothing = np.full(BUCKETS, np.nan)
    starts = samples.start[first:last]
    # Samples of one counter follow each other; one that began before the tile may reach into it.
    low = first + max(0, int(np.searchsorted(starts, begin, "right")) - 1)
    high = first + int(np.searchsorted(starts, stop, "left"))
    start, end, value = samples.start[low:high], samples.end[low:high], samples.value[low:high]
    end = np.maximum(end, start + 1)  # one of no length is a point
    inside = (end > begin) & (start < stop)
    start, end, value = start[inside], end[inside], value[inside]
    if not len(start):
        return nothing, nothing, nothing
    a = np.clip((start - begin) // width, 0, BUCKETS - 1)
    b = np.clip((end - 1 - begin) // width, 0, BUCKETS - 1)
    each = b - a + 1
    which = np.repeat(np.arange(len(start)), each)
    bucket = np.repeat(a - (np.cumsum(each) - each), each) + np.arange(len(which))
    held = np.minimum(end[which], edges[bucket + 1]) - np.maximum(start[which], edges[bucket])
    held = np.maximum(held, 1).astype(np.float64)
    values = value[which]
    time = np.bincount(bucket, held, BUCKETS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(bucket, held * values, BUCKETS) / time
    least, most = np.full(BUCKETS, np.inf), np.full(BUCKETS, -np.inf)
    np.minimum.at(least, bucket, values)
    np.maximum.at(most, bucket, values)
    empty = time == 0
    least[empty] = most[empty] = np.nan
    return least, mean, most
