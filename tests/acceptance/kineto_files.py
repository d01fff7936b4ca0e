"""Write what a simulated job did as the files that torch.profiler writes, one a rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from .simulator import MS, Rank, Row

BASE = 1790857026000000000
EARLIEST = 4_359_013_347_061_697 * 1000  # ns after the base at which jobs begin
COLLECTIVE_OF = {"allreduce": "nccl:all_reduce", "send": "nccl:send", "recv": "nccl:recv"}


@dataclass(frozen=True)
class Recording:
    """How a job was recorded: the steps that were, its devices, and what the ranks' clocks show."""

    first_step: int
    steps: int
    world: int = 1
    gpu: str = "NVIDIA H100 80GB HBM3"
    stacks: bool = False
    skews: Sequence[int] = ()  # ns that each rank's clock is ahead
    hosts: Sequence[int] = ()
    distributed: bool = True
    seed: str = ""
    groups: Sequence[Sequence[int]] = field(default_factory=list[Sequence[int]])


def written(rank: Rank, recording: Recording, folder: Path) -> Path:
    """The file of one rank."""
    random = Random(f"{recording.seed}/{rank.rank}")
    pid = random.randrange(2_000, 4_000_000)
    file = folder / f"node{_host(rank, recording)}_{pid}.{1790857026000 + rank.rank}.pt.trace.json"
    texts = [_text(event) for event in _events(rank, recording, pid)]
    head = json.dumps(_head(rank, recording), indent=1)[:-2]
    file.write_text(f'{head},\n  "traceEvents": [{",".join(texts)}\n  ],\n  "traceName": "{file.name}"\n}}')
    return file


def _host(rank: Rank, recording: Recording) -> int:
    return recording.hosts[rank.rank] if recording.hosts else 0


def _head(rank: Rank, recording: Recording) -> dict[str, Any]:
    name = recording.gpu
    device = {
        "id": 0, "name": name, "totalGlobalMem": 85029158912, "computeMajor": 9, "computeMinor": 0,
        "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536,
        "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472,
    }  # fmt: skip
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [device], "record_shapes": 1}
    head |= {"cuda_runtime_version": 12080, "cuda_driver_version": 12080, "cupti_version": 26}
    if recording.stacks:
        head["with_stack"] = 1
    if recording.world > 1 and recording.distributed:
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
                 "pg_size": recording.world, "ranks": list(range(recording.world))}  # fmt: skip
        head["distributedInfo"] = {
            "backend": "nccl", "rank": rank.rank, "world_size": recording.world, "pg_count": 1,
            "pg_config": [group], "nccl_version": "2.27.3",
        }  # fmt: skip
    head |= {
        "host_name": f"node{_host(rank, recording)}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE,
    }
    return head


def _events(rank: Rank, recording: Recording, pid: int) -> Iterator[dict[str, Any]]:
    """The rows of the recorded steps, as the profiler keeps them.

    Host and device rows that began before its start are gone; Python frames that were open are cut.
    """
    rows = rank.rows
    begin = min(
        (r.start for r in rows if r.step == recording.first_step and r.category == "user_annotation"),
        default=0,
    )
    begin -= MS // 2
    end = max(r.end for r in rows)
    skew = EARLIEST + (recording.skews[rank.rank] if recording.skews else 0)
    threads: dict[str, int] = {}
    for number, name in enumerate(dict.fromkeys(r.lane for r in rows if isinstance(r.lane, str))):
        threads[name] = pid + 97 * number
    yield from _named(pid, threads, begin + skew)
    ids = {"Ev Idx": 0}
    for row in sorted(rows, key=lambda r: (r.start, -r.end)):
        if row.start < begin:
            if row.category != "python_function" or row.end <= begin:
                continue
            row = Row(
                row.category, row.name, row.lane, begin, row.end, row.args, row.step, None, row.finished
            )
        if not row.finished and isinstance(row.lane, int):
            continue
        yield from _row(row, pid, threads, skew, ids)
    span = {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
    }
    yield {**span, "ts": begin + skew, "dur": end - begin, "args": {"Op count": 0}}
    yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end + skew}


def _named(pid: int, threads: dict[str, int], at: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "ts": at, "pid": pid, "tid": 0, "args": {"name": "python"}}
    yield {"ph": "M", "name": "process_labels", "ts": at, "pid": pid, "tid": 0, "args": {"labels": "CPU"}}
    yield {"ph": "M", "name": "process_name", "ts": at, "pid": 0, "tid": 0, "args": {"name": "python"}}
    yield {"ph": "M", "name": "process_labels", "ts": at, "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}}
    for name, tid in threads.items():
        shown = "python" if name == "main" else name
        yield {
            "ph": "M", "name": "thread_name", "ts": at, "pid": pid, "tid": tid,
            "args": {"name": f"thread {tid} ({shown})"},
        }  # fmt: skip


def _row(
    row: Row, pid: int, threads: dict[str, int], skew: int, ids: dict[str, int]
) -> Iterator[dict[str, Any]]:
    args = dict(row.args)
    ids["Ev Idx"] += 1
    number = ids["Ev Idx"]
    device = isinstance(row.lane, int)
    if device:
        args = {"device": 0, "context": 1, **args}
        if row.category == "kernel":
            shape = {"grid": [264, 1, 1], "block": [256, 1, 1], "registers per thread": 168}
            args = {"queued": 0, **shape, "shared memory": 0, "blocks per SM": 2.0, **args}
    elif row.category in ("cpu_op", "user_annotation"):
        args = {"External id": number, "Record function id": 0, **args, "Ev Idx": number}
    elif row.category == "python_function":
        args = {"Python id": number, "Python parent id": None, **args, "Ev Idx": number}
    else:
        args = {"cbid": 211, **args}
    if not row.finished:
        args["finished"] = False
    tid = row.lane if device else threads[row.lane]
    process = 0 if device else pid
    at = {"pid": process, "tid": tid, "ts": row.start + skew}
    yield {
        "ph": "X", "cat": row.category, "name": row.name, **at, "dur": row.end - row.start, "args": args,
    }  # fmt: skip
    if device and row.launched is not None:
        yield {"ph": "f", "cat": "ac2g", "name": "ac2g", **at, "id": args["correlation"], "bp": "e"}
    elif row.category in ("cuda_runtime", "cuda_driver"):
        yield {"ph": "s", "cat": "ac2g", "name": "ac2g", **at, "id": args["correlation"]}


def _text(event: dict[str, Any]) -> str:
    """One event in the layout of torch 2.13; times become µs with three decimals."""
    parts: list[str] = []
    for key, value in event.items():
        if key in ("ts", "dur"):
            text = f"{value // 1000}.{value % 1000:03d}"
        else:
            text = WRITTEN.get(type(value), json.dumps)(value)
        parts.append(f'"{key}": {text}')
    return "\n  {\n    " + ",\n    ".join(parts) + "\n  }"


# What most values are: names that come again, and numbers.
WRITTEN: dict[type, Callable[[Any], str]] = {str: cache(json.dumps), int: str}
