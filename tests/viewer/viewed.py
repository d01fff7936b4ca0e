"""A small job with all that a timeline draws, and a server of it, for tests."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import uvicorn
from starlette.testclient import TestClient

from lostflops.session import Session
from lostflops.store.parts import write_parts
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest
from lostflops.tables import TABLES
from lostflops.version import __version__
from lostflops.viewer import timeline
from lostflops.viewer.server import app, runs
from lostflops.viewer.server.guard import Keys
from lostflops.viewer.timeline import RunTimeline

Rows = Sequence[Mapping[str, Any]]
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"
GROUPS = [
    {"name": "0", "description": "default_pg", "ranks": [0, 1]},
    {"name": "1", "description": "tensor_parallel", "ranks": [0]},
]


def job() -> dict[str, list[dict[str, Any]]]:
    """Two ranks, two steps of 100 ns. Rank 1 comes 20 ns late to the all-reduce."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for rank, late in ((0, 0), (1, 20)):
        found["ranks"].append(
            {"rank": rank, "start": 0, "end": 230, "host": rank, "device": 0, "device_kind": "gpu",
             "gpu": "H100", "world_size": 2, "groups": GROUPS, "main_thread": 7, "clock_error": 1}
        )  # fmt: skip
        for step in (0, 1):
            at = 10 + 100 * step
            found["steps"].append(
                {"rank": rank, "step": step + 3, "start": at, "end": at + 100, "source": "profiler",
                 "complete": True, "amount": 3}
            )  # fmt: skip
            kernel = {"rank": rank, "device": 0, "thread": 7}
            found["kernels"] += [
                {**kernel, "start": at + 10, "end": at + 40 + late, "stream": 7, "name": HOSTILE,
                 "family": "gemm", "correlation": 10 * step + 1, "launch_start": at + 3,
                 "launch_end": at + 5, "operator": "aten::mm"},
                {**kernel, "start": at + 35, "end": at + 43, "stream": 7, "name": "add",
                 "family": "elementwise", "correlation": 10 * step + 2, "launch_start": at + 6,
                 "launch_end": at + 7},
                {**kernel, "start": at + 40 + late, "end": at + 80, "stream": 9, "name": "ncclAllReduce",
                 "family": "communication", "correlation": 10 * step + 3, "launch_start": at + 8,
                 "launch_end": at + 9},
            ]  # fmt: skip
            found["copies"].append(
                {"rank": rank, "start": at + 82, "end": at + 90, "device": 0, "stream": 11, "name": "Memcpy",
                 "direction": "host to device", "host_memory": "pageable", "bytes": 4096,
                 "communication": False}
            )  # fmt: skip
            found["collectives"].append(
                {"rank": rank, "start": at + 40 + late, "end": at + 80, "arrival": at + 40 + late,
                 "kind": "all-reduce", "library": "NCCL", "group": "0 [0, 1]", "group_size": 2,
                 "bytes_in": 64, "evidence": 1, "name": "ncclAllReduce", "stream": 9, "sequence": step}
            )  # fmt: skip
            thread = {"rank": rank, "thread": 7}
            found["operators"] += [
                {**thread, "start": at + 2, "end": at + 6, "name": "aten::mm", "sequence": step,
                 "phase": "forward"},
                {**thread, "start": at + 20, "end": at + 25, "name": "MmBackward0", "sequence": step,
                 "phase": "backward"},
            ]  # fmt: skip
            found["launches"] += [
                {
                    **thread,
                    "start": at + a,
                    "end": at + b,
                    "name": "cudaLaunchKernel",
                    "correlation": 10 * step + n,
                }
                for n, a, b in ((1, 3, 5), (2, 6, 7), (3, 8, 9))
            ]
            found["ranges"] += [
                {**thread, "start": at, "end": at + 50, "domain": "user", "name": "forward", "nested": True},
                {
                    "rank": rank,
                    "start": at + 30,
                    "end": at + 60,
                    "domain": "app",
                    "name": "epoch",
                    "nested": False,
                },
                {
                    "rank": rank,
                    "start": at + 40,
                    "end": at + 70,
                    "domain": "app",
                    "name": "batch",
                    "nested": False,
                },
            ]
        found["counters"] += [
            {"rank": rank, "start": 10 * n, "end": 10 * n + 10, "device": 0, "metric": "SM active",
             "value": float(n % 4), "unit": "%"}
            for n in range(20)
        ]  # fmt: skip
        found["allocations"] += [
            {"rank": rank, "start": t, "end": t, "device": 0, "bytes": b, "allocated": a, "reserved": 4096}
            for t, b, a in ((20, 512, 512), (60, 512, 1024), (90, -512, 512))
        ]
    return {name: rows for name, rows in found.items() if rows}


def stored(folder: Path, tables: Mapping[str, Rows] | None = None) -> Trace:
    """A stored run with these rows; what a row leaves out is null."""
    tables = job() if tables is None else tables
    for name, rows in tables.items():
        table = TABLES[name]
        shutil.rmtree(folder / name, ignore_errors=True)  # of a run that was stored here before
        full = [{column: row.get(column) for column in table.stored} for row in rows]
        schema = {column: table.schema[column] for column in table.stored}
        of_ranks = pl.DataFrame(full, schema=schema).partition_by("rank", as_dict=True).items()
        write_parts(folder, name, [(rank, 0, table.conform(some)) for (rank,), some in of_ranks])
    count = sum(map(len, tables.values()))
    write_manifest(folder, Manifest(FORMAT, __version__, "made up", 0, [], sorted(tables), count, []))
    return Trace.open(folder)


def laid_out(folder: Path, tables: Mapping[str, Rows] | None = None) -> RunTimeline:
    trace = stored(folder, tables)
    return timeline.opened(trace, Session(trace))


def served(*folders: Path, keys: Keys | None = None, host: str = "localhost:8000") -> TestClient:
    """A browser without a session at a server of some runs."""
    found = runs.found([str(folder) for folder in folders], lambda paths, tell: Trace.open(Path(paths[0])))
    keys = keys or Keys(8000)
    guarded = app.application(found, keys, frozenset({"127.0.0.1"}), False)
    return TestClient(guarded, base_url=f"http://{host}", follow_redirects=False)


@contextmanager
def at_work(keys: Keys, *folders: Path) -> Generator[int]:
    """The port of a server of some runs, as `lostflops view` starts it."""
    found = runs.found([str(folder) for folder in folders], lambda paths, tell: Trace.open(Path(paths[0])))
    guarded = app.application(found, keys, frozenset({"127.0.0.1"}), False)
    server = uvicorn.Server(uvicorn.Config(guarded, log_level="critical", ws="none", server_header=False))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield int(listening.getsockname()[1])
        server.should_exit = True
        thread.join()


def browsing(*folders: Path) -> tuple[TestClient, dict[str, Any]]:
    """A browser with a session, and what the page knows of the first run."""
    keys = Keys(8000)
    browser = served(*folders, keys=keys)
    assert browser.get(f"/?token={keys.token()}").status_code == 303
    run = browser.get("/api/runs").json()["runs"][0]["id"]
    while (answer := browser.get(f"/api/run/{run}")).status_code == 202:
        pass
    assert answer.status_code == 200, answer.text
    return browser, answer.json()


def planes(content: bytes) -> dict[tuple[int, int], list[int]]:
    """A tile by lane and category."""
    magic, count, buckets = struct.unpack_from("<4sII", content)
    assert magic in (b"LFT1", b"LFO1") and buckets == 256
    heads = [struct.unpack_from("<IHH", content, 32 + 8 * n) for n in range(count)]
    each = 256 * (2 if magic == b"LFO1" else 1)
    data = np.frombuffer(content, np.uint8, offset=32 + 8 * count).reshape(count, each)
    assert len(content) == 32 + count * (8 + each)
    return {(lane, category): data[n].tolist() for n, (lane, category, _) in enumerate(heads)}


def listed(content: bytes) -> tuple[dict[str, Any], list[tuple[int, int, int, str, int]]]:
    """What an answer of events says of itself, and each event: start, duration, row, name, category."""
    magic, size = struct.unpack_from("<4sI", content)
    assert magic == b"LFE1" and size % 8 == 0
    head = msgspec.json.decode(content[8 : 8 + size], type=dict[str, Any])
    at, n, columns = 8 + size, head["count"], []
    for kind, width in (("<f8", 8), ("<f8", 8), ("<u4", 4), ("<u4", 4), ("<u2", 2)):
        columns.append(np.frombuffer(content, kind, n, at).tolist())
        at += n * width
    assert at == len(content)
    start, took, row, name, category = columns
    names = [head["names"][str(number)] for number in name]
    return head, list(zip(start, took, row, names, category, strict=True))
