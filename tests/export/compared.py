"""What a run's tables say must stand in an export, and what Perfetto's engine found in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.store.trace import Trace
from trace_processor import Rows, TraceProcessor

# Real traces lie beside the repository, or where this says.
BESIDE = Path(__file__).parents[3] / "shared" / "traces"
REAL = Path(os.environ.get("LOSTFLOPS_TRACES", BESIDE))
# The tables whose rows are slices, and the category these have.
CATEGORIES = {
    "steps": "step",
    "kernels": "kernel",
    "copies": "copy",
    "collectives": "collective",
    "frames": "frame",
    "ranges": "range",
    "operators": "operator",
    "launches": "call",
    "os_calls": "system call",
    "page_faults": "page fault",
}
# What the profiler's categories hold; all others are ranges.
OF_PROFILER = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cpu_op": "operator",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "python_function": "frame",
}
NOT_IN_CHROME = {"step", "collective", "system call", "page fault"}
QUERIES = (
    "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0",
    "select category, name, count(*) n, sum(dur) ns from slice group by category, name",
    "select count(*) n from flow",
    "select count(*) n from counter",
)
Amounts = dict[tuple[str, str], tuple[int, int]]


def in_tables(trace: Trace, ranks: Iterable[int] | None = None) -> Amounts:
    """Count and summed duration by category and name."""
    found: Amounts = {}
    known = trace.table("ranks")
    assert known is not None
    on_host = known.filter(pl.col("device_kind") == "cpu").collect()["rank"].to_list()
    for table, category in CATEGORIES.items():
        rows = trace.table(table)
        if rows is None:
            continue
        if table == "kernels":
            rows = rows.filter(~pl.col("rank").is_in(on_host))
        if ranks is not None:
            rows = rows.filter(pl.col("rank").is_in(list(ranks)))
        name = {
            "steps": "step " + pl.col("step").cast(pl.String),
            "collectives": pl.col("kind").cast(pl.String),
            "page_faults": pl.lit("page faults"),
        }.get(table, pl.col("name" if table != "steps" else "step").cast(pl.String))
        length = pl.max_horizontal(pl.col("end") - pl.col("start"), 0)
        amounts = rows.group_by(name.alias("n")).agg(pl.len(), length.sum().alias("ns")).collect()
        found |= {(category, n or ""): (count, ns) for n, count, ns in amounts.iter_rows()}
    return found


def samples_in_tables(trace: Trace) -> int:
    counters, memory = trace.table("counters"), trace.table("allocations")
    found = 0 if counters is None else counters.collect().height
    if memory is not None:
        rows = memory.collect()
        found += sum(rows.height - rows[column].null_count() for column in ("allocated", "reserved"))
    return found


def read_by_perfetto(
    engine: TraceProcessor, trace: bytes, *more: str
) -> tuple[Rows, Amounts, dict[str, Any]]:
    """What the engine complains of, what it read by category and name, and how much of the rest."""
    stats, slices, flows, samples, *others = engine.query(trace, *QUERIES, *more)
    amounts = {
        (row["category"] or "", row["name"] or ""): (row["n"], row["ns"])
        for row in slices
        if row["category"] not in ("account", "finding", "arrival")
    }
    counted = {"flows": flows[0]["n"], "samples": samples[0]["n"], "others": others}
    return stats, amounts, counted


def as_profiled(amounts: Amounts) -> Amounts:
    """What was read of Chrome's JSON, by the tables' categories."""
    found: Amounts = {}
    for (category, name), (count, ns) in amounts.items():
        if category not in ("Trace", "cpu_instant_event"):
            # A domain stands before the text of a range.
            key = (OF_PROFILER.get(category, "range"), re.sub("^lostflops:[^:]*:", "", name))
            before = found.get(key, (0, 0))
            found[key] = (before[0] + count, before[1] + ns)
    return found


def in_profile(amounts: Amounts) -> Amounts:
    """What of the tables the profiler's JSON holds as slices."""
    return {key: value for key, value in amounts.items() if key[0] not in NOT_IN_CHROME}


def differences(expected: Amounts, found: Amounts) -> list[str]:
    """What is not the same, in words."""
    wrong = sorted({*expected, *found})
    return [
        f"{key}: {expected.get(key)} in the tables, {found.get(key)} in Perfetto"
        for key in wrong
        if expected.get(key) != found.get(key)
    ]
