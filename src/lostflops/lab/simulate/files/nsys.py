"""Write the rows of a rank as `nsys export --type sqlite` does, in schema 3.25.

Operators and ranges stand as NVTX ranges, as under `torch.autograd.profiler.emit_nvtx()`; NCCL's calls have
the payloads that its own ranges carry. Times count from the start of the session.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from lostflops import run_folder
from lostflops.lab.simulate.instructions import Members
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.model.blocks import KINDS, RowKind
from lostflops.lab.simulate.running.recorder import ELEMENT, NONE, TraceRows

from .kineto import BASE, device_name, process_of

GPU_ROW = "deviceId contextId streamId correlationId globalPid"
# Every column is an INTEGER but those marked with * (TEXT).
TABLES = {
    "StringIds": "id value*",
    "META_DATA_EXPORT": "name* value*",
    "META_DATA_CAPTURE": "name* value*",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName* name* nameEnum value*",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime* localTime* systemClockNs",
    "TARGET_INFO_GPU": "vmId id name* busLocation* totalMemory smCount uuid* chipName* cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid* numMultiprocessors",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "PROCESSES": "globalPid pid name*",
    "ThreadNames": "nameId priority globalTid",
    "ENUM_CUDA_MEMCPY_OPER": "id name* label*",
    "ENUM_CUDA_MEM_KIND": "id name* label*",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"start end {GPU_ROW} demangledName shortName registersPerThread gridX "
    "gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"start end {GPU_ROW} bytes copyKind srcKind dstKind copyCount",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "NVTX_EVENTS": "start end eventType color text* globalTid textId domainId jsonText*",
}
PUSH_POP, DOMAIN, NCCL_DOMAIN = 59, 75, 1
COPIES = {"HtoD": 1, "DtoH": 2}
MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}
NCCL = {
    "allreduce": "ncclAllReduce",
    "_allgather_base": "ncclAllGather",
    "_reduce_scatter_base": "ncclReduceScatter",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
HARDWARE = 1 << 48  # a virtual machine, in the high bits of global ids


def written(job: SimulatedJob, rank: int, rows: TraceRows, folder: Path, *, packed: bool = True) -> Path:
    """The export of one rank. SQLite files are never packed."""
    file = folder / f"rank{rank:05d}.sqlite"
    temporary = file.with_name(f"{file.name}{run_folder.UNFINISHED}")
    temporary.unlink(missing_ok=True)
    with sqlite3.connect(temporary) as database:
        for name, described in NsysExport(job, rank, rows).tables():
            _store(database, name, described)
    database.close()
    temporary.replace(file)
    if rank in job.cut:
        with file.open("r+b") as opened:
            opened.truncate(round(job.cut[rank] * file.stat().st_size))
    return file


def _store(database: sqlite3.Connection, name: str, rows: Iterable[Sequence[Any]]) -> None:
    columns = [
        (word.rstrip("*"), "TEXT" if word.endswith("*") else "INTEGER") for word in TABLES[name].split()
    ]
    database.execute(f'CREATE TABLE "{name}" ({", ".join(f"{column} {kind}" for column, kind in columns)})')
    database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" for _ in columns)})', rows)


class NsysExport:
    """The tables of one rank's export."""

    def __init__(self, job: SimulatedJob, rank: int, rows: TraceRows) -> None:
        self.job, self.rank = job, rank
        pid = process_of(job, rank)
        self.process = HARDWARE | pid << 24
        self.threads = [self.process | (pid + 97 * n) & 0xFFFFFF for n in range(len(rows.threads))]
        self.names: dict[str, int] = {}
        self.begin = int(rows.start.min())
        self.end = int(rows.end.max())
        clock = job.clock(rank)
        self.start = clock.reads(self.begin)
        self.found: dict[str, list[Sequence[Any]]] = {
            name: [] for name in TABLES if name.startswith(("CUPTI", "NVTX"))
        }
        columns = (rows.kind, rows.lane, rows.start, rows.end, rows.correlation, rows.number)
        lists: list[list[int]] = [column.tolist() for column in columns]
        each: tuple[int, ...]
        for each in zip(*lists, strict=True):
            kind, lane, start, end, correlation, number = each
            at, until = clock.reads(start) - self.start, clock.reads(end) - self.start
            self._row(KINDS.all[kind], lane, at, until, correlation, number)

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names) + 1)

    def _row(self, kind: RowKind, lane: int, start: int, end: int, correlation: int, number: int) -> None:
        match kind.category:
            case "kernel":
                args = json.loads(f"{{{kind.args}}}")
                name = self._name(kind.name)
                gpu = (0, 1, lane, correlation, self.process)
                shape = (name, name, args["registers per thread"], *args["grid"], *args["block"], 0, 0, None)
                self.found["CUPTI_ACTIVITY_KIND_KERNEL"].append((start, end, *gpu, *shape))
            case "gpu_memcpy":
                _, direction, *ends = kind.name.replace("(", "").replace(")", "").split()
                gpu = (0, 1, lane, correlation, self.process)
                size = json.loads(f"{{{kind.args}}}")["bytes"]
                copied = (size, COPIES[direction], MEMORY[ends[0]], MEMORY[ends[-1]], 1)
                self.found["CUPTI_ACTIVITY_KIND_MEMCPY"].append((start, end, *gpu, *copied))
            case "cuda_runtime" | "cuda_driver":
                thread = self.threads[-1 - lane]
                own = 0 if correlation == NONE else correlation
                call = (start, end, 0, thread, own, self._name(kind.name), 0)
                self.found["CUPTI_ACTIVITY_KIND_RUNTIME"].append(call)
            case "cpu_op" | "user_annotation":
                thread = self.threads[-1 - lane]
                if kind.name == "record_param_comms":
                    self._nccl(json.loads(f"{{{kind.args}}}"), thread, start, end)
                    return
                told = f"{kind.name}, seq = {number}" if number != NONE else kind.name
                self._range(start, end, told, thread)
            case _:
                pass  # what Kineto alone records

    def _range(
        self, start: int, end: int, text: str, thread: int, domain: int = 0, more: str | None = None
    ) -> None:
        row = (start, end, PUSH_POP, None, text, thread, None, domain, more)
        self.found["NVTX_EVENTS"].append(row)

    def _nccl(self, about: Mapping[str, Any], thread: int, start: int, end: int) -> None:
        # NCCL calls the count that it is called with its message: of a reduce-scatter that is what comes out.
        counted = "Out msg nelems" if about["Collective name"] == "_reduce_scatter_base" else "In msg nelems"
        size = ELEMENT[about["dtype"]] * max(about[counted], 0)
        group = self._group(about)
        payload = {"NCCL communicator ID": self._communicator(group), "Message size [bytes]": size}
        if about["Collective name"] == "all_to_allv":
            self._parts(payload, len(group.ranks), thread, start, end)
            return
        if "Src Rank" in about:
            ends = {about["Src Rank"], about["Dst Rank"]} - {self.rank}
            payload["Peer rank"] = group.ranks.index(ends.pop())
        self._range(start, end, NCCL[about["Collective name"]], thread, NCCL_DOMAIN, json.dumps(payload))

    def _parts(self, payload: Mapping[str, int], ranks: int, thread: int, start: int, end: int) -> None:
        """An all-to-all as PyTorch asks for it: a part for each rank and one from it, launched together."""
        whole = payload["Message size [bytes]"]
        parts = [(whole + peer) // ranks for peer in range(ranks)]  # they add up to it
        told = [
            {**payload, "Message size [bytes]": size, "Peer rank": peer} for peer, size in enumerate(parts)
        ]
        calls = [(NCCL[name], json.dumps(part)) for part in told for name in ("send", "recv")]
        # The launch comes when five sixths of the time are over.
        each = (end - start) * 8 // 10 // (len(calls) + 1)
        self._range(start, start + each, "ncclGroupStart", thread, NCCL_DOMAIN)
        for number, (name, part) in enumerate(calls, start=1):
            at = start + number * each
            self._range(at, at + each, name, thread, NCCL_DOMAIN, part)
        self._range(start + (len(calls) + 1) * each, end, "ncclGroupEnd", thread, NCCL_DOMAIN)

    def _group(self, about: Mapping[str, Any]) -> Members:
        groups = self.job.strategy.groups(self.rank).values()
        return next(group for group in groups if group.name == about["Process Group Name"])

    def _communicator(self, group: Members) -> int:
        """A number for a group: its name and ranks."""
        return 1 + crc32(repr((group.name, group.ranks)).encode())

    # -- the tables that say what was recorded ------------------------------------------------------------

    def tables(self) -> Iterator[tuple[str, Iterable[Sequence[Any]]]]:
        """All of them by name."""
        self._joined()
        self.found["NVTX_EVENTS"].append(
            (0, None, DOMAIN, None, "NCCL", self.threads[0], None, NCCL_DOMAIN, None)
        )
        pid = process_of(self.job, self.rank)
        names = [("python" if n == 0 else "pt_autograd_0", thread) for n, thread in enumerate(self.threads)]
        labels = [(self._name(name), 0, thread) for name, thread in names]
        yield from self.found.items()
        yield "ThreadNames", labels
        yield "StringIds", [(number, text) for text, number in self.names.items()]
        yield "META_DATA_EXPORT", [
            ("EXPORT_SCHEMA_VERSION", "3.25.0"), ("EXPORT_PRODUCT_VERSION", "2026.2.1.210"),
        ]  # fmt: skip
        said = json.dumps({"strategy": self.job.strategy.name, "seed": self.job.seed})
        yield "META_DATA_CAPTURE", [(run_folder.SIMULATED_EXPORT, said)]
        yield "TARGET_INFO_SYSTEM_ENV", [(HARDWARE, "", "Hostname", 0, f"node{self.job.host(self.rank)}")]
        yield "TARGET_INFO_SESSION_START_TIME", [(BASE + self.start, "", "", 0)]
        memory = self.job.gpu.memory
        yield (
            "TARGET_INFO_GPU",
            [(0, 0, device_name(self.job), "", memory, 132, "", "", 0)],
        )
        yield "TARGET_INFO_CUDA_DEVICE", [(0, 0, pid, "", 132)]
        yield "ANALYSIS_DETAILS", [(HARDWARE, self.end - self.begin, 0, self.end - self.begin)]
        yield "PROCESSES", [(self.process, pid, "python")]
        yield "ENUM_CUDA_MEMCPY_OPER", [(1, "HtoD", "Host-to-Device"), (2, "DtoH", "Device-to-Host")]
        yield (
            "ENUM_CUDA_MEM_KIND",
            [(0, "Pageable", "Pageable"), (1, "Pinned", "Pinned"), (2, "Device", "Device")],
        )

    def _joined(self) -> None:
        """How the process joined its communicators, before all else."""
        for group in self.job.strategy.groups(self.rank).values():
            payload = {
                "NCCL communicator ID": self._communicator(group),
                "No. of ranks": len(group.ranks),
                "Rank": group.ranks.index(self.rank),
                "CUDA device": 0,
            }
            self._range(0, 1, "ncclCommInitRank", self.threads[0], NCCL_DOMAIN, json.dumps(payload))
