"""NVTX events of an Nsight Systems export: framework operators, ranges, and NCCL's calls with what they say.

A message stands in `text` or, for registered strings, in `textId`; which one may differ from row to row.
Domains are numbered per process, and the events that name them are points near the process's start, which a
window cut from a longer recording no longer has.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lostflops.ingest.annotations import by_domain
from lostflops.ingest.nsys.export import Export, thread_of
from lostflops.ingest.nsys.rows import near, usable
from lostflops.naming.step_marks import NO_TEXT
from lostflops.store.trace import Quality
from lostflops.tables import NAME

CATEGORY, MARK, THREAD_NAME, PUSH_POP, START_END, DOMAIN = 33, 34, 39, 59, 60, 75
NCCL_DOMAINS = ("NCCL", "RCCL")
JOINED = r"(?i)^(?:p?nccl)?CommInit"

# What PyTorch's `emit_nvtx` appends to a name, in this order.
_IDS = (
    r"(?s)^(?<name>.*?)(?:, seq = (?<sequence>\d{1,18}))?(?<op>, op_id = \d+)?"
    r"(?:, sizes = (?<shapes>\[.*?\]))?(?:, input_op_ids = \[.*\])?$"
)
# `emit_nvtx` marks operators and `record_function` annotations alike: operators are in a lower-case
# namespace, take part in autograd and so have a sequence number, or are among the profiler's own few.
_OPERATOR = r"^(?:[a-z_][a-z0-9_]*::|record_param_comms$|detach_?$)|Backward\d*$"
# PyTorch names the threads on which its autograd engine runs the backward pass.
_AUTOGRAD_THREAD = r"^pt_autograd_\d+$"


@dataclass(frozen=True)
class Nvtx:
    """The NVTX events of one process.

    `operators` has besides its table's columns `backward`: whether autograd ran it. `nccl` are the calls of
    the communication library: start, end, thread, name, payload (JSON text, null where none was exported).
    """

    operators: pl.DataFrame
    ranges: pl.DataFrame
    nccl: pl.DataFrame
    num_events: int
    quality: list[Quality]


def nvtx(export: Export, process: int, orphans: bool, last: int | None) -> Nvtx:
    """The NVTX events of a process. Ranges left open are closed at `last`, the end of its other events."""
    quality: list[Quality] = []
    events = export.read(
        "NVTX_EVENTS",
        process=process,
        orphans=orphans,
    )
    num_events = events.height
    events = export.named(events, "textId", "registered")
    events = export.named(events, "jsonTextId", "json").select(
        "start",
        "end",
        "eventType",
        "color",
        thread=thread_of("globalTid"),
        domain_id=pl.col("domainId").fill_null(0),
        text=pl.coalesce("text", "registered"),
        payload=pl.coalesce("jsonText", "json"),
    )
    domains = _domains(events)
    spans = events.filter(pl.col("eventType").is_in([PUSH_POP, START_END, MARK]))
    if num_events and spans.is_empty():
        quality.append(
            Quality(
                None,
                "NVTX without ranges",
                num_events,
                "only names of domains, categories and threads arrived: ranges were filtered out or lost",
                "warning",
            )
        )
    spans, open_ranges = _closed(spans, last)
    if open_ranges:
        quality.append(
            Quality(None, "ranges left open", open_ranges, "closed at the end of the recording", "warning")
        )
    spans = usable(spans, "NVTX ranges", quality).with_columns(pl.col("text").fill_null(NO_TEXT))
    spans = spans.with_columns(
        domain=pl.col("domain_id").replace_strict(
            domains, default="domain " + pl.col("domain_id").cast(pl.String), return_dtype=pl.String
        )
    )
    is_nccl = pl.col("domain").is_in(NCCL_DOMAINS)
    emitted, plain = _emitted(spans.filter(pl.col("domain_id") == 0))
    named = pl.concat([plain, spans.filter(pl.col("domain_id") != 0)], how="diagonal")
    operators, annotations = _operators(export, emitted, process)
    ranges = pl.concat([named, annotations], how="diagonal_relaxed").select(
        "start",
        "end",
        "thread",
        pl.col("domain").cast(NAME),
        pl.col("text").cast(NAME).alias("name"),
        "color",
        "complete",
        nested=pl.col("eventType") == PUSH_POP,
    )
    # That a communicator was joined stands at a point where NCCL is traced on its own.
    joined = (pl.col("eventType") == MARK) & pl.col("text").str.contains(JOINED)
    nccl = spans.filter(is_nccl, (pl.col("eventType") == PUSH_POP) | joined).select(
        "start", "end", "thread", "payload", name="text"
    )
    return Nvtx(operators, by_domain(ranges), nccl, num_events, quality)


def _domains(events: pl.DataFrame) -> dict[int, str]:
    """The name of each domain of one process."""
    stated = events.filter(pl.col("eventType") == DOMAIN, pl.col("text").is_not_null())
    domains = {0: "default", **dict(stated.select("domain_id", "text").rows())}
    spans = events.filter(pl.col("eventType") == PUSH_POP, ~pl.col("domain_id").is_in(list(domains)))
    # Where the event that names a domain is gone, NCCL's still shows by what it calls its ranges.
    by_message = (
        spans.group_by("domain_id")
        .agg(pl.col("text").str.contains(r"^p?nccl[A-Z]").fill_null(False).all())
        .filter(pl.col("text"))
    )
    return {**domains, **dict.fromkeys(by_message["domain_id"].to_list(), "NCCL")}


def _closed(spans: pl.DataFrame, last: int | None) -> tuple[pl.DataFrame, int]:
    """Spans with an end: a mark's is its start, an open range's is the end of the recording."""
    is_open = pl.col("end").is_null() & (pl.col("eventType") != MARK)
    opened = spans.filter(is_open)
    # A broken time is no end of the recording.
    whole = spans.filter(~is_open).with_columns(end=pl.coalesce("end", "start"))
    known, _ = near([usable(table, "", []) for table in (whole, opened.with_columns(end="start"))])
    ends = [last, *(table["end"].max() for table in known)]
    bound = max((end for end in ends if isinstance(end, int)), default=0)
    closed = spans.with_columns(
        complete=~is_open,
        end=pl.when(pl.col("end").is_not_null())
        .then("end")
        .when(pl.col("eventType") == MARK)
        .then("start")
        .otherwise(pl.lit(bound, dtype=pl.Int64)),
    )
    return closed, opened.height


def _emitted(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The ranges that PyTorch emitted, taken apart into `text`, `sequence` and `shapes`; and the others."""
    parts = spans.with_columns(_parts=pl.col("text").str.extract_groups(_IDS)).unnest("_parts")
    parts = parts.with_columns(
        pl.col("sequence").cast(pl.Int64),
        _ids=pl.col("sequence").is_not_null() | pl.col("op").is_not_null() | pl.col("shapes").is_not_null(),
    ).with_columns(operator=pl.col("sequence").is_not_null() | pl.col("name").str.contains(_OPERATOR))
    by_torch = (pl.col("_ids") | pl.col("operator")) & (pl.col("eventType") == PUSH_POP)
    emitted = parts.filter(by_torch).drop("text", "op").rename({"name": "text"})
    return emitted, parts.filter(~by_torch).select(spans.columns)


def _operators(export: Export, emitted: pl.DataFrame, process: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operators, and the annotations that a training script or framework made with `record_function`."""
    autograd = _autograd_threads(export, process)
    operators = emitted.filter("operator").select(
        "start",
        "end",
        "thread",
        "sequence",
        pl.col("text").cast(NAME).alias("name"),
        pl.col("shapes").cast(NAME),
        backward=pl.col("text").str.contains(r"Backward\d*$|^torch::autograd::AccumulateGrad$")
        | pl.col("thread").is_in(autograd).fill_null(False),
    )
    annotations = emitted.filter(~pl.col("operator")).with_columns(domain=pl.lit("user"))
    return operators, annotations.drop("operator", "sequence", "shapes", "_ids")


def _autograd_threads(export: Export, process: int) -> list[int]:
    names = export.named(export.read("ThreadNames", process=process), "nameId", "name")
    found = names.filter(pl.col("name").str.contains(_AUTOGRAD_THREAD))
    return found.select(thread_of("globalTid"))["globalTid"].unique().to_list()
