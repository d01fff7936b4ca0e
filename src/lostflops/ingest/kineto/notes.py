"""What a reader of the page should know about a file: repaired, left out, lost, or not recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from lostflops.ingest.kineto.columns import EventColumns, text_of
from lostflops.ingest.kineto.devices import named_after_device
from lostflops.ingest.kineto.events import Decoder, Event
from lostflops.ingest.kineto.header import Header, items
from lostflops.ingest.kineto.stream import EventStream
from lostflops.naming.host_causes import captures
from lostflops.store.trace import (
    DEVICE_UNKNOWN,
    GPU_WORK_LOST,
    MADE_UP,
    NO_LENGTH,
    NO_TIME,
    REPLAYED,
    SIMULATED,
    Quality,
)

DROPPED_RECORDS = re.compile(r"(?i)dropped\s+(\d{1,12})\s+activity records")
# Calls after which a GPU has something to do.
STARTS_GPU_WORK = (
    r"^(?:cu|hip|musa|cnrt|mc).*(?:Launch|Memcpy|Memset)|^(?:ur|pi|ze|acl|syn)\w*(?:Launch|Memcpy|MemcpyAsync)"
    r"|^AscendCL@aclnn|^enqueueCommand |^runFunction"
)


class Notes:
    """The notes on one file."""

    def __init__(self) -> None:
        self.rows: list[Quality] = []

    def add(self, name: str, count: int, text: str, level: str = "note", of: int | None = None) -> None:
        if count:
            self.rows.append(Quality(None, name, count, text, level, of))

    def reading(self, reader: EventColumns, decoder: Decoder, unknown: Mapping[str, int]) -> None:
        """What was read otherwise than it was written. `unknown` counts rows by category."""
        self.add(
            "event names repaired", decoder.repaired, "the profiler wrote them without escaping", "warning"
        )
        self.add(
            "events with text that is no JSON",
            decoder.mended,
            "control characters, bad UTF-8 or NaN: repaired; NaN counts as missing",
            "warning",
        )
        self.add("events that could not be decoded", decoder.skipped, "left out", "warning")
        self.add("rows without usable times", reader.unusable, "left out", "warning")
        if reader.halves is not None:
            without = "left out: what it did, and for how long, is not known"
            self.add("begins ('B') without an end", reader.halves.unended, without, "warning")
            self.add("ends ('E') without a begin", reader.halves.unbegun, without, "warning")
        self.add("rows longer than ten days", reader.overlong, "left out as corrupted", "warning")
        self.add("rows with a negative duration", reader.negative, "counted with length zero", "warning")
        self.add(
            "GPU rows with a negative duration",
            reader.negative_on_device,
            NO_LENGTH,
            "warning",
            reader.on_device,
        )
        for cat, count in sorted(unknown.items()):
            self.add(
                f"rows of category '{cat}'", count, "kept as ranges; lostflops does not know this category"
            )

    def origin(self, header: Header) -> None:
        """That nobody recorded it, or not with these times."""
        if header.simulated:
            self.add(SIMULATED, 1, MADE_UP)
        if header.replayed:
            self.add(REPLAYED, 1, header.replayed, "warning")

    def completeness(self, stream: EventStream[Event], header: Header) -> None:
        """What is missing from the file."""
        dropped = [
            int(n)
            for line in items(header.fields.get("WARNING"))
            for n in DROPPED_RECORDS.findall(text_of(line))
        ]
        self.add(
            "activity records dropped by the profiler",
            sum(dropped),
            "they are missing from this trace",
            "warning",
        )
        if not stream.events_whole:
            self.add(
                "truncated file",
                1,
                f"it ends {stream.cut}. The profiler writes events by kind, not by time: any step may "
                "lack some of its work, and lost work is shown as idle",
                "warning",
            )
        elif stream.cut:
            self.add("truncated file", 1, f"it ends {stream.cut}; the events are whole", "warning")
        elif stream.damage:
            self.add("damaged file", 1, f"{stream.damage}; some events may be wrong", "warning")
        elif not stream.complete_trailer:
            self.add("truncated gzip trailer", 1, "the events are whole", "warning")
        if stream.damaged_frame:
            self.add(
                "damaged metadata", 1, "the JSON around the events is broken; some of it was read", "warning"
            )

    def no_time(self, kernels: pl.DataFrame, negative: int) -> None:
        """Kernels that end as they begin, where times are of nanoseconds: each takes hundreds of those."""
        timeless = kernels.filter(pl.col("start") == pl.col("end")).height - negative
        if timeless > 0 and bool((kernels["start"] % 1000 != 0).any()):
            self.add(NO_TIME, timeless, NO_LENGTH, "warning", kernels.height)

    def launches(self, kernels: pl.DataFrame) -> None:
        lost = kernels["launch_start"].null_count()
        self.add(
            "kernels without their launch",
            lost,
            "launched before the recording, or not recorded",
            of=kernels.height,
        )
        early = kernels.filter(pl.col("start") < pl.col("launch_start")).height
        self.add(
            "kernels that start before their launch", early, "the clocks of host and GPU disagree", "warning"
        )

    def captured(self, calls: pl.DataFrame, *work: pl.DataFrame | None) -> None:
        """Launches without GPU work, because they became part of a graph."""
        names = calls["name"].unique().cast(pl.String).drop_nulls().to_list()
        during = captures(calls.lazy(), names, by=["thread"]).sort("start").collect()
        if during.is_empty():
            return
        launches = calls.filter(pl.col("name").is_in([n for n in names if "Launch" in n]))
        found = [table.select("correlation") for table in work if table is not None]
        ran = pl.concat(found) if found else launches.select("correlation").clear()
        captured = (
            launches.sort("start")
            # On any thread: a backward pass that is captured launches on one of its own.
            .join_asof(
                during.select("start", _until=pl.col("end").cum_max()),
                on="start",
                strategy="backward",
                check_sortedness=False,
            )
            .filter(pl.col("start") < pl.col("_until"))
            .join(ran, on="correlation", how="anti")
        )
        self.add(
            "launches captured into a graph",
            captured.height,
            "they run when the graph is replayed",
            of=launches.height,
        )

    def host_only(self, calls: pl.DataFrame | None, unknown: Mapping[str, int], header: Header) -> None:
        """Why the host's time may be only half of the picture."""
        host_only = "the page shows CPU time only"
        if calls is not None:
            started = calls.filter(pl.col("name").cast(pl.String).str.contains(STARTS_GPU_WORK))
            if started.height:
                self.add(
                    GPU_WORK_LOST,
                    started.height,
                    f"launches and copies by the CPU, but no GPU work in this trace: {host_only}. "
                    "Record with `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`",
                    "warning",
                )
                return
        # A trace that lists a device, or whose host calls a device's runtime, is no CPU-only job's.
        if unknown and (header.devices or calls is not None or any(map(named_after_device, unknown))):
            self.add(
                DEVICE_UNKNOWN,
                sum(unknown.values()),
                f"rows of categories that lostflops does not know ({', '.join(sorted(unknown))}), probably "
                f"work of a device: counted as ranges; {host_only}",
                "warning",
            )


def without_length(work: Sequence[pl.DataFrame]) -> list[Quality]:
    """How many rows of the device are shorter than the profiler's clock tells."""
    rows = sum(t.height for t in work)
    nothing = sum(t.filter(pl.col("start") == pl.col("end")).height for t in work)
    if not nothing:
        return []
    return [Quality(None, "GPU rows of no length", nothing, "shorter than the clock tells", of=rows)]
