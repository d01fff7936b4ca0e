"""Small PyTorch profiler traces for tests, in the layouts that torch writes and others write again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def span(cat: str, name: Any, ts: Any, dur: Any, tid: Any = 1, **args: Any) -> Event:
    """An event that lasts; arguments that are no Python names go in `more`."""
    more = args.pop("more", {})
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
        "args": {**args, **more},
    }  # fmt: skip


def step(number: int, ts: float, dur: float) -> Event:
    return span("user_annotation", f"ProfilerStep#{number}", ts, dur)


def operator(name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> Event:
    return span("cpu_op", name, ts, dur, tid, **args)


def call(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel", tid: Any = 1) -> Event:
    return span("cuda_runtime", name, ts, dur, tid, correlation=correlation)


def kernel(
    ts: float,
    dur: float,
    correlation: int,
    name: str = "ampere_sgemm_128x64_nn",
    stream: Any = 7,
    **args: Any,
) -> Event:
    given = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {**span("kernel", name, ts, dur, stream, **given), "pid": 0}


def one_step(shift: float = 0) -> list[Event]:
    """A step of 100 µs: a kernel of 40.25 µs, and 59.75 µs without one."""
    return [
        step(7, 1000 + shift, 100),
        operator("aten::mm", 1010 + shift, 20),
        call(1015 + shift, 5, 1),
        kernel(1030.5 + shift, 40.25, 1),
    ]


def head(rank: int | None = 0, world: int = 1, **more: Any) -> dict[str, Any]:
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    return {"schemaVersion": 1, **info, "deviceProperties": [{"id": 0, "name": "GPU"}], **more}


def event_text(event: Event, layout: str = "torch") -> str:
    """One event; 'torch' has several keys in a line as torch wrote until 2.12, 'lines' one as 2.13 does."""
    args = f'"args": {{\n      {json.dumps(event["args"])[1:-1]}\n    }}' if "args" in event else ""
    first = {k: v for k, v in event.items() if k != "args"}
    if layout == "line":
        return json.dumps(event)
    if layout == "lines":
        keys = [f'"{k}": {json.dumps(v)}' for k, v in first.items()]
        return "\n  {\n    " + ",\n    ".join([*keys, *([args] if args else [])]) + "\n  }"
    early = {k: v for k, v in first.items() if k not in ("ts", "dur")}
    late = {k: v for k, v in first.items() if k in ("ts", "dur")}
    groups = [json.dumps(g)[1:-1] for g in (early, late) if g] + ([args] if args else [])
    return "\n  {\n    " + ",\n    ".join(groups) + "\n  }"


def trace(
    events: Iterable[Event | str],
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    layout: str = "torch",
) -> bytes:
    """A whole file. Events that are text already stand as they are."""
    texts = [e if isinstance(e, str) else event_text(e, layout) for e in events]
    between = ", " if layout == "line" else ","
    opening = json.dumps(head() if before is None else before)[:-1]
    opening += ", " if len(opening) > 1 else ""
    closing = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in (after or {}).items())
    end = "]" if layout == "line" else "\n  ]"
    return f'{opening}"traceEvents": [{between.join(texts)}{end}{closing}}}'.encode()


def written(path: Path, content: bytes, members: Sequence[bytes] | None = None) -> Path:
    """The file, compressed if its name says so."""
    if path.suffix == ".gz":
        content = b"".join(gzip.compress(m, mtime=0) for m in members or [content])
    path.write_bytes(content)
    return path
