"""Write the rows of a rank as torch.profiler 2.13 does: one event after the other, one key a line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from lostflops import run_folder
from lostflops.lab.simulate.jitter import key, one
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.model.blocks import KINDS
from lostflops.lab.simulate.running.recorder import NONE, TraceRows
from lostflops.naming.cards import CARDS

BASE = 1_790_857_026_000_000_000
EARLIEST = 4_359_013_347_061_697  # ns after the base at which jobs begin
AT_ONCE = 4096  # events
LAUNCHES = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def written(job: SimulatedJob, rank: int, rows: TraceRows, folder: Path, *, packed: bool = True) -> Path:
    """The file of one rank. `rows` are on the job's common clock, and in order."""
    name = f"rank{rank:05d}.pt.trace.json{'.gz' if packed else ''}"
    file = folder / name
    temporary = file.with_name(f"{name}{run_folder.UNFINISHED}")
    with _packed(temporary) if packed else temporary.open("w") as out:
        out.write(json.dumps(_head(job, rank), indent=1)[:-2])
        out.write(',\n  "traceEvents": [')
        separator = ""
        for texts in _texts(job, rank, rows):
            out.write(separator + ",".join(texts))
            separator = ","
        out.write(f'\n  ],\n  "traceName": "{name}"\n}}')
    temporary.replace(file)
    if rank in job.cut:
        left = round(job.cut[rank] * file.stat().st_size)
        with file.open("r+b") as opened:
            opened.truncate(left)
    return file


@contextmanager
def _packed(file: Path) -> Generator[TextIO]:
    """Text that is packed into a file without a date or a name, so that a seed gives the same bytes."""
    with (
        file.open("wb") as out,
        gzip.GzipFile("", "wb", 1, out, mtime=0) as inner,
        TextIOWrapper(inner, encoding="utf-8") as text,
    ):
        yield text


def device_name(job: SimulatedJob) -> str:
    """The GPU as its driver calls it."""
    vendor = "AMD" if job.card.startswith("mi") else "NVIDIA"
    return f"{vendor} {CARDS[job.gpu.name].driver.partition('|')[0]}"


def _head(job: SimulatedJob, rank: int) -> dict[str, Any]:
    groups = job.strategy.groups(rank).values()
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": 0, "name": device_name(job), "totalGlobalMem": job.gpu.memory, "computeMajor": 9,
                "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
                "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132,
                "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
                "sharedMemPerMultiprocessor": 233472,
            }
        ],
        "record_shapes": 1, "cuda_runtime_version": 12080, "cuda_driver_version": 12080, "cupti_version": 26,
    }  # fmt: skip
    if job.stacks:
        head["with_stack"] = 1
    if groups:
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": job.ranks,
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": group.name, "pg_desc": group.description, "backend_config": "cuda:nccl",
                    "pg_size": len(group.ranks), "ranks": list(group.ranks),
                }
                for group in groups
            ],
            "nccl_version": "2.27.3",
        }  # fmt: skip
    said = {run_folder.SIMULATED: {"strategy": job.strategy.name, "seed": job.seed}}
    return head | {
        run_folder.IN_TRACE: said,
        "host_name": f"node{job.host(rank)}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE,
    }


def process_of(job: SimulatedJob, rank: int) -> int:
    """The number of a rank's process."""
    return 2_000 + int(4_000_000 * one(key(job.noise, rank, "process")))


def _texts(job: SimulatedJob, rank: int, rows: TraceRows) -> Iterator[list[str]]:
    process, clock = process_of(job, rank), job.clock(rank)
    begin, end = int(rows.start.min()), int(rows.end.max())
    threads = {-1 - number: process + 97 * number for number in range(len(rows.threads))}

    def at(ns: int) -> int:
        return EARLIEST + clock.reads(ns)

    yield list(_described(process, rows, threads, at(begin)))
    starts, ends = EARLIEST + rows.start + clock.offset, rows.end - rows.start
    if clock.drift:
        starts = starts + rows.start * clock.drift // 1_000_000_000
        ends = ends + ends * clock.drift // 1_000_000_000
    columns = (rows.kind, rows.lane, *np.divmod(starts, 1000), *np.divmod(ends, 1000), rows.correlation,
               rows.number)  # fmt: skip
    number = 0
    shapes: dict[tuple[int, int], EventShape] = {}
    for first in range(0, len(rows), AT_ONCE):
        texts: list[str] = []
        lists = [column[first : first + AT_ONCE].tolist() for column in columns]
        for kind, lane, start, start_ns, us, ns, correlation, own in zip(*lists, strict=True):
            number += 1
            shape = shapes.get((kind, lane))
            if shape is None:
                pid, tid = (process, threads[lane]) if lane < 0 else (0, lane)
                shape = shapes[kind, lane] = _shape(kind, pid, tid)
            ts = f"{start}{THOUSANDTHS[start_ns]}"
            text = f'{shape.before}{ts},\n    "dur": {us}{THOUSANDTHS[ns]}{shape.args}'
            if shape.external:
                text += f"{shape.external}{number}"
            if correlation != NONE:
                text += f"{shape.correlation}{correlation}"
            if own != NONE:
                text += f"{shape.number}{own}"
            texts.append(text + CLOSED)
            if shape.flow and correlation != NONE:
                texts.append(f'{shape.flow}{ts},\n    "id": {correlation}{shape.flow_end}')
        yield texts
    yield list(_around(at(begin), at(end)))


CLOSED = "\n    }\n  }"
THOUSANDTHS = [f".{ns:03d}" for ns in range(1000)]


@dataclass(frozen=True, slots=True)
class EventShape:
    """The text of an event around what is its own."""

    before: str
    args: str
    external: str
    correlation: str
    number: str
    flow: str
    flow_end: str


def _shape(kind: int, pid: int, tid: int) -> EventShape:
    category, name, args = KINDS.all[kind]
    place = f'"pid": {pid},\n    "tid": {tid},\n    "ts": '
    before = f'\n  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": {json.dumps(name)},\n    {place}'
    host = category in ("cpu_op", "user_annotation", "python_function")
    inside = f"{args}" if args else '"device": 0' if category in DEVICE else '"Record function id": 0'
    if category in DEVICE and '"stream"' not in args:
        inside += f', "stream": {tid}'
    numbered = "Sequence number"
    if '"Collective name"' in args:
        numbered = "Seq"
    elif category == "cuda_sync":
        numbered = "wait_on_cuda_event_record_corr_id"
    flow = flow_end = ""
    if category in LAUNCHES or category in DEVICE:
        phase = "s" if category in LAUNCHES else "f"
        flow = f'\n  {{\n    "ph": "{phase}",\n    "cat": "ac2g",\n    "name": "ac2g",\n    {place}'
        flow_end = "\n  }" if phase == "s" else ',\n    "bp": "e"\n  }'
    return EventShape(
        before,
        f',\n    "args": {{\n      {inside}',
        ', "External id": ' if host else "",
        ', "correlation": ',
        f', "{numbered}": ',
        flow,
        flow_end,
    )


def _described(process: int, rows: TraceRows, threads: dict[int, int], at: int) -> Iterator[str]:
    """Names of processes and threads."""
    for pid, label in ((process, "CPU"), (0, "GPU 0")):
        yield _event(
            {"ph": "M", "name": "process_name", "ts": at, "pid": pid, "tid": 0, "args": {"name": "python"}}
        )
        yield _event(
            {"ph": "M", "name": "process_labels", "ts": at, "pid": pid, "tid": 0, "args": {"labels": label}}
        )
    for name, tid in zip(rows.threads, threads.values(), strict=True):
        shown = f"thread {tid} ({'python' if name == 'main' else name})"
        yield _event(
            {"ph": "M", "name": "thread_name", "ts": at, "pid": process, "tid": tid, "args": {"name": shown}}
        )


def _around(begin: int, end: int) -> Iterator[str]:
    """The recording's window."""
    spans = {
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": begin,
        "dur": end - begin,
        "args": {"Op count": 0},
    }
    yield _event({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **spans})
    yield _event({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end})


def _event(event: dict[str, Any]) -> str:
    """An event of which there are few."""
    lines = (
        f'"{name}": {f"{value // 1000}.{value % 1000:03d}" if name in ("ts", "dur") else json.dumps(value)}'
        for name, value in event.items()
    )
    return "\n  {\n    " + ",\n    ".join(lines) + "\n  }"
