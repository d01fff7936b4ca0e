"""Which files host threads read and wrote, by number: names of files are not copied in."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import THREAD_BITS, Export, process_of, thread_of
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME


def file_accesses(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """The accesses of a process. Where threads are not numbered globally, only a lone process owns them."""
    rows = export.read("OSRT_FILE_ACCESS_EVENTS").rename({"startedAt": "start", "endedAt": "end"})
    is_global = pl.col("threadId") > THREAD_BITS
    mine = pl.when(is_global).then(process_of("threadId") == process).otherwise(pl.lit(orphans))
    rows = usable(rows.filter(mine).drop_nulls(["start", "end"]), "file accesses", quality)
    kinds = {n: name.rpartition("_")[2].lower() for n, name in _kinds(export).items()}
    return rows.sort("start", maintain_order=True).select(
        "start",
        "end",
        thread=thread_of("threadId"),
        file=pl.col("fileAccessId").fill_null(-1),
        operation=pl.col("eventType")
        .replace_strict(kinds, default="other", return_dtype=pl.String)
        .cast(NAME),
        bytes=pl.when(pl.col("bytesProcessed") >= 0).then("bytesProcessed"),
    )


def _kinds(export: Export) -> dict[int, str]:
    return export.enum("ENUM_OSRT_FILE_ACCESS_EVENT_TYPE", {})
