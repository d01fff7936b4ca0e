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
    """The file of one rank, in the layout of torch 2.13."""
    random = Random(f"{recording.seed}/{rank.rank}")
    pid = random.randrange(2_000, 4_000_000)
    file = folder / f"node{_host(rank, recording)}_{pid}.{1790857026000 + rank.rank}.pt.trace.json"
    head = json.dumps(_head(rank, recording), indent=1)[:-2]
    events = ",".join(_events(rank, recording, pid))
    file.write_text(f'{head},\n  "traceEvents": [{events}\n  ],\n  "traceName": "{file.name}"\n}}')
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


def _events(rank: Rank, recording: Recording, pid: int) -> Iterator[str]:
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
    kept = [r for r in rows if r.start >= begin or (r.category == "python_function" and r.end > begin)]
    kept = [r for r in kept if r.finished or isinstance(r.lane, str)]
    kept.sort(key=lambda r: (r.start, -r.end))
    for number, row in enumerate(kept, 1):
        yield from _row(row, max(row.start, begin), number, pid, threads, skew)
    yield _text(
        ph="X", cat="Trace", name="PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler",
        ts=begin + skew, dur=end - begin, args={"Op count": 0},
    )  # fmt: skip
    yield _text(ph="i", s="g", name="Record Window End", pid="", tid="", ts=end + skew)


def _named(pid: int, threads: dict[str, int], at: int) -> Iterator[str]:
    for process, label in ((pid, "CPU"), (0, "GPU 0")):
        yield _text(ph="M", name="process_name", ts=at, pid=process, tid=0, args={"name": "python"})
        yield _text(ph="M", name="process_labels", ts=at, pid=process, tid=0, args={"labels": label})
    for name, tid in threads.items():
        shown = "python" if name == "main" else name
        yield _text(
            ph="M", name="thread_name", ts=at, pid=pid, tid=tid, args={"name": f"thread {tid} ({shown})"}
        )


def _text(**event: Any) -> str:
    """One of the few events beside the rows; times become µs with three decimals."""
    lines = [
        f'"{key}": {_us(value) if key in ("ts", "dur") else json.dumps(value)}'
        for key, value in event.items()
    ]
    return "\n  {\n    " + ",\n    ".join(lines) + "\n  }"


def _row(row: Row, start: int, number: int, pid: int, threads: dict[str, int], skew: int) -> Iterator[str]:
    """A row, and the arrow between a launch and its work."""
    category, given = row.category, row.args
    device = isinstance(row.lane, int)
    args: dict[str, object]
    if device:
        args = {"device": 0, "context": 1, **given}
        if category == "kernel":
            args = {**SHAPE, **args}
    elif category in ("cpu_op", "user_annotation"):
        args = {"External id": number, "Record function id": 0, **given, "Ev Idx": number}
    elif category == "python_function":
        args = {"Python id": number, "Python parent id": None, **given, "Ev Idx": number}
    else:
        args = {"cbid": 211, **given}
    if not row.finished:
        args["finished"] = False
    process, tid = (0, row.lane) if device else (pid, threads[row.lane])
    at = f'"pid": {process},\n    "tid": {tid},\n    "ts": {_us(start + skew)}'
    said = ", ".join([_key(key) + WRITTEN.get(type(value), json.dumps)(value) for key, value in args.items()])
    yield (
        f'\n  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": {_quoted(row.name)},\n    {at},'
        f'\n    "dur": {_us(row.end - start)},\n    "args": {{{said}}}\n  }}'
    )
    arrow = '"cat": "ac2g",\n    "name": "ac2g"'
    if device and row.launched is not None:
        ends = f'"id": {args["correlation"]},\n    "bp": "e"'
        yield f'\n  {{\n    "ph": "f",\n    {arrow},\n    {at},\n    {ends}\n  }}'
    elif category in ("cuda_runtime", "cuda_driver"):
        yield f'\n  {{\n    "ph": "s",\n    {arrow},\n    {at},\n    "id": {args["correlation"]}\n  }}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@cache
def _quoted(text: str) -> str:
    return json.dumps(text)


@cache
def _key(name: str) -> str:
    return f"{json.dumps(name)}: "


SHAPE = {
    "queued": 0, "grid": [264, 1, 1], "block": [256, 1, 1], "registers per thread": 168, "shared memory": 0,
    "blocks per SM": 2.0,
}  # fmt: skip


def _listed(values: list[Any]) -> str:
    said = LISTS.get(shown := repr(values))
    if said is None:
        said = LISTS[shown] = json.dumps(values)
    return said


LISTS: dict[str, str] = {}
# What most values are: names and lists that come again, and numbers.
WRITTEN: dict[type, Callable[[Any], str]] = {str: _quoted, int: str, list: _listed, float: repr}
