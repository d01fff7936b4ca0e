"""Calls of libraries on the host: MPI, UCX, cuBLAS, cuDNN, OpenMP, OpenACC and video codecs."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import Export, thread_of
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME

# Each table with the library and the kind of its calls.
TABLES = {
    "MPI_P2P_EVENTS": ("MPI", "point to point"),
    "MPI_COLLECTIVES_EVENTS": ("MPI", "collective"),
    "MPI_START_WAIT_EVENTS": ("MPI", "wait"),
    "MPI_OTHER_EVENTS": ("MPI", "other"),
    "UCP_SUBMIT_EVENTS": ("UCX", "point to point"),
    "UCP_PROGRESS_EVENTS": ("UCX", "wait"),
    "UCP_EVENTS": ("UCX", "other"),
    "CUBLAS_EVENTS": ("cuBLAS", "other"),
    "CUDNN_EVENTS": ("cuDNN", "other"),
    "OPENMP_EVENT_KIND_PARALLEL": ("OpenMP", "other"),
    "OPENMP_EVENT_KIND_SYNC_REGION": ("OpenMP", "wait"),
    "OPENMP_EVENT_KIND_SYNC_REGION_WAIT": ("OpenMP", "wait"),
    "OPENMP_EVENT_KIND_TASK_SCHEDULE": ("OpenMP", "other"),
    "OPENMP_EVENT_KIND_WORKSHARE": ("OpenMP", "other"),
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": ("OpenACC", "other"),
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": ("OpenACC", "other"),
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": ("OpenACC", "other"),
    "NVVIDEO_ENCODER_API": ("video", "other"),
    "NVVIDEO_DECODER_API": ("video", "other"),
    "NVVIDEO_JPEG_API": ("video", "other"),
}
RECEIVES = r"(?i)recv|irecv"  # the size of these is of what they take


def library_calls(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """Calls that have an end; one that was open when the recording ended is left out and counted."""
    found: list[pl.DataFrame] = []
    for table, (library, kind) in TABLES.items():
        if not export.has(table):
            continue
        rows = export.read(table, process=process, orphans=orphans)
        named = "textId" if "textId" in rows.columns else "nameId"
        rows = export.named(rows, named, "name")
        unended = rows.filter(pl.col("end").is_null()).height
        if unended:
            quality.append(Quality(None, f"{library} calls without an end", unended, "left out"))
        rows = usable(rows.drop_nulls(["start", "end"]), f"{library} calls", quality)
        found.append(_described(rows, library, kind))
    if not found:
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    return pl.concat(found, how="diagonal_relaxed").sort("start", maintain_order=True)


def _described(rows: pl.DataFrame, library: str, kind: str) -> pl.DataFrame:
    def column(name: str) -> pl.Expr:
        return pl.col(name) if name in rows.columns else pl.lit(None, dtype=pl.Int64)

    name = pl.col("name").fill_null("(name not in this export)")
    size = pl.coalesce(column("size"), column("packedSize"))
    peer = pl.coalesce(column("remoteRank"), column("rootRank"))
    takes = name.str.contains(RECEIVES) & pl.lit(kind == "point to point")
    return rows.select(
        "start",
        "end",
        thread=thread_of("globalTid"),
        library=pl.lit(library).cast(NAME),
        kind=pl.lit(kind).cast(NAME),
        name=name.cast(NAME),
        peer=pl.when(peer >= 0).then(peer),  # below 0 MPI means any rank, or none
        communicator=column("commUid"),
        sent=pl.when(~takes & (size >= 0)).then(size),
        received=pl.when(takes & (size >= 0)).then(size).otherwise(column("recvSize")),
    )
