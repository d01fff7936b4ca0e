"""What ran on devices, who launched it, and the calls that return when what they launched has ended."""

from __future__ import annotations

import polars as pl

from lostflops.naming.classification import moves_by_itself

Frame = pl.LazyFrame | None
CALLS = pl.Schema({"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64})


def launched_work(kernels: Frame, copies: Frame) -> Frame:
    """What ran on the devices for any time, and who launched it; pages of memory that move by themselves
    nobody did."""
    columns = ("rank", "start", "launch_start", "launch_end", "thread")
    holding = pl.col("end") > pl.col("start")
    if copies is not None:
        copies = copies.filter(~moves_by_itself())
    work = [table.filter(holding).select(columns) for table in (kernels, copies) if table is not None]
    return pl.concat(work) if work else None


def blocking_reads(copies: Frame) -> pl.DataFrame:
    """The calls that copy to the host and return when the copy has ended, and with it all before it on its
    stream: they wait for the device, whatever they are called, as `cudaMemcpyAsync` into pageable memory."""
    if copies is None:
        return CALLS.to_frame()
    back = pl.col("direction").cast(pl.String) == "device to host"
    held = (pl.col("launch_start") < pl.col("start")) & (pl.col("launch_end") >= pl.col("end"))
    calls = copies.filter(back, held, pl.col("thread").is_not_null()).select(
        "rank", "thread", start="launch_start", end="launch_end"
    )
    return calls.select(pl.col(c).cast(t) for c, t in CALLS.items()).collect()
