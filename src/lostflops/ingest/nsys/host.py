"""OS calls, device memory, page faults and GPU metrics of an Nsight Systems export."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.cuda import MEM_KIND
from lostflops.ingest.nsys.export import Export, thread_of
from lostflops.ingest.nsys.rows import near, usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME

ACCESS = {
    1: "CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_READ",
    2: "CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE",
    3: "CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC",
    4: "CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_PREFETCH",
}
# Two samples further apart than so many times the usual have lost others between them.
WITHOUT_LOSS = 1.5


def os_calls(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """The outermost OS runtime calls of a process, and its system calls, which may lie inside those."""
    found: list[pl.DataFrame] = []
    for table in ("OSRT_API", "SYSCALL"):
        rows = export.read(table, process=process, orphans=orphans)
        if "nestingLevel" in rows.columns:  # a call made by a call has its time already
            rows = rows.filter(pl.col("nestingLevel").fill_null(0) == 0)
        rows = export.named(usable(rows, "OS calls", quality), "nameId", "name")
        found.append(
            rows.select(
                "start",
                "end",
                thread=thread_of("globalTid"),
                name=pl.col("name").fill_null("(name not in this export)").cast(NAME),
                system_call=pl.lit(table == "SYSCALL"),
            )
        )
    return pl.concat(found)


def allocations(
    export: Export, process: int | None, orphans: bool, work: pl.DataFrame, quality: list[Quality]
) -> pl.DataFrame:
    """Device and pinned memory as the CUDA driver gave it out: a caching allocator's own use is not
    visible.

    How much is allocated in all is known where the recording saw a device from its first allocation on:
    `work` (device, start) is what ran there.
    """
    rows = export.read("CUDA_GPU_MEMORY_USAGE_EVENTS", process=process, orphans=orphans)
    rows = usable(rows.with_columns(end=pl.col("start")), "memory events", quality).sort(
        "start", maintain_order=True
    )
    memory = export.enum("ENUM_CUDA_MEM_KIND", MEM_KIND)
    on_host = [
        number for number, name in memory.items() if name.rpartition("_KIND_")[2] in ("PAGEABLE", "PINNED")
    ]
    freed = pl.col("memoryOperationType") == 1
    before = pl.col("memoryOperationType").shift(1).over("address")
    # A free repeats the size or says 0: what counts is the size of the allocation at that address.
    given = pl.when(~freed).then("bytes").forward_fill().over("address")
    signed = pl.when(freed).then(-given.fill_null(pl.col("bytes"))).otherwise("bytes")
    first = work.group_by("device").agg(_worked=pl.col("start").min())
    known = (
        rows.filter(pl.col("bytes").is_between(0, 2**60), pl.col("memoryOperationType").is_in([0, 1]))
        .with_columns(device=pl.when(~pl.col("memKind").fill_null(2).is_in(on_host)).then("deviceId"))
        .with_columns(bytes=signed, _older=freed & before.is_null(), _again=freed & (before == 1))
        .filter(~pl.col("_again").fill_null(False))
        .join(first, on="device", how="left", maintain_order="left")
    )
    late = (pl.col("_worked") < pl.col("start").min()).any()
    whole = ~(pl.col("_older").any() | late).over("device")
    told = known.with_columns(allocated=pl.when(whole).then(pl.col("bytes").cum_sum().over("device")))
    unknown = told["allocated"].null_count()
    if unknown:
        text = "memory was given out before the recording began: how much is allocated in all is not known"
        quality.append(Quality(None, "memory events without totals", unknown, text, "note", told.height))
    return told.select("start", "end", "device", "address", "bytes", "allocated")


def page_faults(export: Export, process: int | None, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """Managed-memory faults of the CPU (points) and the GPU (with a duration)."""
    access = {
        number: name.rpartition("_TYPE_")[2].lower()
        for number, name in export.enum("ENUM_CUDA_UNIF_MEM_ACCESS_TYPE", ACCESS).items()
    }
    cpu = export.read("CUDA_UM_CPU_PAGE_FAULT_EVENTS", process=process, orphans=orphans)
    gpu = export.read("CUDA_UM_GPU_PAGE_FAULT_EVENTS", process=process, orphans=orphans)
    rows = pl.concat(
        [
            cpu.select("start", "address", end="start", faults=pl.lit(1, dtype=pl.Int64)),
            gpu.select(
                "start",
                "address",
                "end",
                device="deviceId",
                faults="numberOfPageFaults",
                access=pl.col("faultAccessType")
                .replace_strict(access, default=None, return_dtype=pl.String)
                .cast(NAME),
            ),
        ],
        how="diagonal",
    )
    return usable(rows, "page faults", quality).sort("start", maintain_order=True)


def gpu_metrics(export: Export, quality: list[Quality]) -> pl.DataFrame:
    """Samples of all GPUs of the machine, each holding since the one before it, with `gpu_id`.

    Where samples were lost, the next one holds for the usual time between two. The unit stands in brackets at
    the end of a metric's name.
    """
    names = export.read("TARGET_INFO_GPU_METRICS").unique(["typeId", "metricId"], keep="first")
    taken = export.read("GPU_METRICS").drop_nulls()
    timed = usable(taken.with_columns(start="timestamp", end="timestamp"), "GPU metrics", quality)
    (kept,), far = near([timed])
    if far:
        quality.append(
            Quality(None, "GPU metrics more than ten days from the others", far, "left out", "warning")
        )
    samples = (
        kept.drop("start", "end")
        .join(names, on=["typeId", "metricId"], how="left", maintain_order="left")
        .sort("typeId", "metricId", "timestamp", maintain_order=True)
    )
    before = pl.col("timestamp").shift(1).over("typeId", "metricId")
    period = pl.col("timestamp").diff().median().over("typeId", "metricId").cast(pl.Int64)
    near_enough = pl.col("timestamp") - before <= WITHOUT_LOSS * period
    name = pl.col("metricName").fill_null(pl.format("metric {}", "metricId"))
    return (
        samples.with_columns(
            name.str.extract_groups(r"(?s)^(?<metric>.*?)\s*(?:\[(?<unit>[^\[\]]*)\])?$").alias("_name")
        )
        .unnest("_name")
        .select(
            start=pl.when(near_enough).then(before).otherwise(pl.col("timestamp") - period),
            end="timestamp",
            gpu_id=pl.col("typeId") & 0xFF,
            metric=pl.col("metric").cast(NAME),
            value=pl.col("value").cast(pl.Float64),
            unit=pl.col("unit").cast(NAME),
        )
        # A lone sample says nothing about a stretch of time.
        .drop_nulls("start")
    )
