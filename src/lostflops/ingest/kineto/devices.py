"""Accelerators that Kineto has categories of their own for: which rows ran on one, and as what.

MTIA, XPU, HPU, NPU and whatever registers itself as PrivateUse1 write the rows of their devices under names
that are theirs, but in Kineto's way: with a stream, on a process that is the device, with the correlation of
the call that began it. So the rows tell by themselves, and a device that nobody knew when this was written
can be read. What none of it tells stays a range, and is counted.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from lostflops.ingest.kineto.columns import EventColumns

# What a device does that is no work: it waits for another stream, or notes that it got so far.
IDLING = r"(?i)^(?:event|notify)[_ ]?(?:wait|record)|^wait(?:_?on)?_?event|place_?holder|_SQE$"
# What moves data, where no direction says so.
COPYING = r"(?i)^(?:dma|memcpy|memset|mem_?copy|mem_?set|sdma|pcie_dma)|^(?:hto?d|dto?h|dto?d)\b|memcpy_async"
SETTING = r"(?i)mem_?set|fill"
# Categories that are called after a device.
DEVICES = re.compile(
    r"(?i)^(?:mtia|xpu|hpu|npu|tpu|ipu|mlu|musa|maca|gcu|vpu|neuron|privateuse1|accelerator|device)(?:$|[_ ])"
    r"|kernel|(?:^|_)(?:memcpy|memset)$"
)


def named_after_device(category: str) -> bool:
    """Whether a category is called after an accelerator, or after what one runs."""
    return DEVICES.search(category) is not None


def place(reader: EventColumns) -> dict[str, int]:
    """Put the rows of unknown categories where they belong; how many stay unknown, by category.

    A row is a device's when it names its stream, when its process is its device, or when a recorded call has
    its correlation. Waits of a device are no work.
    """
    rows = reader.elsewhere.take()
    if rows is None or rows.is_empty():
        return {}
    called = [frame["correlation"] for frame in reader.calls.frames]
    known = pl.concat(called).drop_nulls().unique() if called else pl.Series([], dtype=pl.Int64)
    own = pl.Series(range(len(reader.names)), dtype=pl.UInt32)
    texts = pl.DataFrame({"name": own, "text": reader.names.categories()})
    rows = (
        rows.join(texts, on="name", how="left", maintain_order="left")
        .join(
            texts.rename({"name": "direction", "text": "way"}),
            on="direction",
            how="left",
            maintain_order="left",
        )
        .join(texts.rename({"name": "task", "text": "what"}), on="task", how="left", maintain_order="left")
        .join(
            texts.rename({"name": "domain", "text": "category"}),
            on="domain",
            how="left",
            maintain_order="left",
        )
        .with_columns(
            device_row=pl.col("placed")
            | (pl.col("correlation").is_not_null() & pl.col("correlation").is_in(known.implode())),
            idling=pl.col("text").str.contains(IDLING) | pl.col("what").str.contains(IDLING),
            copying=(pl.col("way") != "")
            | pl.col("text").str.contains(COPYING)
            | pl.col("what").str.contains(COPYING),
        )
    )
    work = rows.filter(pl.col("device_row") & ~pl.col("idling"))
    _keep_copies(reader, work.filter("copying"))
    _keep_kernels(reader, work.filter(~pl.col("copying")))
    rest = rows.filter(~pl.col("device_row") | pl.col("idling"))
    if rest.height:
        nothing = {
            "shapes": np.full(rest.height, reader.shapes[b""], np.uint32),
            "types": np.full(rest.height, reader.types[b""], np.uint32),
        }
        columns = ("start", "end", "name", "thread", "shapes", "types", "domain")
        reader.ranges.add(rest.with_columns(**{c: pl.Series(v) for c, v in nothing.items()}).select(columns))
    unknown = rest.filter(~pl.col("device_row")).group_by("category").len()
    return dict(unknown.iter_rows())


def _keep_copies(reader: EventColumns, rows: pl.DataFrame) -> None:
    if rows.is_empty():
        return
    # A copy's direction is read off its name.
    full = pl.concat_str("text", "way", separator=" ").str.strip_chars()
    codes = rows.select(full).to_series().to_list()
    reader.copies.add(
        rows.with_columns(
            name=pl.Series(reader.names.of(codes, len(codes))), set=pl.col("text").str.contains(SETTING)
        ).select("start", "end", "name", "device", "stream", "correlation", "bytes", "set")
    )


def _keep_kernels(reader: EventColumns, rows: pl.DataFrame) -> None:
    if rows.is_empty():
        return
    no_extent = pl.lit(reader.extents[b""], dtype=pl.UInt32)
    unknown = pl.lit(None, dtype=pl.Int64)
    reader.kernels.add(
        rows.select(
            "start",
            "end",
            "name",
            "device",
            "stream",
            "correlation",
            grid=no_extent,
            block=no_extent,
            registers=unknown,
            shared_memory=unknown,
            graph_node=unknown,
            meta=pl.lit(-1, dtype=pl.Int64),
        )
    )
