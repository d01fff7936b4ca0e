"""The rows that a profiler would see of one rank, as columns, while the rank runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lostflops.lab.simulate.instructions import (
    COMPUTE,
    Collective,
    Compute,
    HostCopy,
    Members,
    StreamWait,
    Synchronise,
)
from lostflops.lab.simulate.jitter import Times
from lostflops.lab.simulate.model.blocks import OperatorBlock, row_kind
from lostflops.lab.simulate.model.kernel_names import CALLED, COLLECTIVES
from lostflops.lab.simulate.running.calls import Call

NONE = -1
# Of what a collective costs the host, where its rows begin and end, in twentieths.
OPERATOR, PARAMETERS, RANGE, RECORD, WAIT, LAUNCH = (0, 20), (2, 20), (8, 19), (10, 12), (12, 14), (17, 19)
ELEMENT = {"BFloat16": 2, "Float": 4}
MOST_LISTED = 30  # ranks of a group that PyTorch writes out


@dataclass(frozen=True)
class TraceRows:
    """Columns: kind, lane, start, end, correlation, number, step.

    Lanes below zero are threads (-1 the main one), others streams. `number` is autograd's, the collective's
    in its group, or for a wait of a stream the correlation of the record it waits for.
    """

    kind: Times
    lane: Times
    start: Times
    end: Times
    correlation: Times
    number: Times
    step: Times
    threads: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def of(cls, columns: Iterable[Times], threads: tuple[str, ...]) -> TraceRows:
        kind, lane, start, end, correlation, number, step = columns
        return cls(kind, lane, start, end, correlation, number, step, threads)

    @property
    def columns(self) -> tuple[Times, ...]:
        return (self.kind, self.lane, self.start, self.end, self.correlation, self.number, self.step)

    def where(self, mask: NDArray[np.bool_]) -> TraceRows:
        return TraceRows.of((column[mask] for column in self.columns), self.threads)

    def in_order(self) -> TraceRows:
        """By start, enclosing rows first."""
        order = np.lexsort((-self.end, self.start))
        return TraceRows.of((column[order] for column in self.columns), self.threads)


@dataclass(frozen=True, slots=True)
class CallPart:
    """A rank's part in a collective or a message."""

    step: int
    kind: str
    group: str
    ranks: tuple[int, ...]
    ordinal: int
    peer: int | None
    start: int
    end: int
    last: int
    last_rank: int


class Recorder:
    """Takes down what a rank does, in the steps from `first` on and the one before."""

    def __init__(self, rank: int, first: int, *, waits: bool = False) -> None:
        self.rank, self.first, self.waits = rank, first, waits
        self.step = NONE
        self.threads: dict[str, int] = {"main": -1}
        self.parts: list[NDArray[np.int64]] = []
        self.single: list[tuple[int, int, int, int, int, int, int]] = []
        self.calls: list[CallPart] = []
        self.counted: dict[str, int] = {}
        self.computed: list[tuple[Times, Times]] = []
        self.copied: list[tuple[int, int]] = []
        self.records: dict[int, int] = {}  # stream -> correlation of the last event recorded there

    @property
    def _keeps(self) -> bool:
        return self.step >= self.first - 1

    def _thread(self, name: str) -> int:
        return self.threads.setdefault(name, -1 - len(self.threads))

    def _row(
        self, kind: int, lane: int, start: int, end: int, correlation: int = NONE, number: int = NONE
    ) -> None:
        if self._keeps:
            self.single.append((kind, lane, start, end, correlation, number, self.step))

    def rows(self) -> TraceRows:
        """All rows that were kept."""
        singles = np.array(self.single, dtype=np.int64).reshape(-1, 7).T
        whole = np.concatenate([singles, *self.parts], axis=1)
        return TraceRows.of(whole, tuple(self.threads))

    # -- what a running rank tells ----------------------------------------------------------------------

    def host(
        self,
        category: str,
        name: str,
        thread: str,
        start: int,
        end: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        self._row(row_kind(category, name, args or None), self._thread(thread), start, end)

    def block(
        self,
        thread: str,
        block: OperatorBlock,
        given: Compute,
        begin: int,
        stall: int,
        slower: float,
        start: Times,
        end: Times,
        correlation: int,
    ) -> None:
        """Operators with their launches, and the kernels; a host that waits does so in the first launch."""
        if not self._keeps:
            return
        self.computed.append((start, end))
        first = int(block.kernel_launch_start[0] * slower) if block.num_kernels else 0
        opened, closed = (
            (block.row_start * slower).astype(np.int64),
            (block.row_end * slower).astype(np.int64),
        )
        if stall:
            opened, closed = opened + stall * (opened > first), closed + stall * (closed > first)
        host = len(opened)
        part = np.empty((7, host + block.num_kernels), np.int64)
        kind, lane, starts, ends, own, numbers, steps = part
        kind[:host], kind[host:] = block.row_kind, block.kernel_kind
        lane[:host], lane[host:] = self._thread(thread), COMPUTE
        starts[:host], starts[host:] = begin + opened, start
        ends[:host], ends[host:] = begin + closed, end
        own.fill(NONE)
        own[block.calls] = correlation + block.row_kernel[block.calls]
        own[host:] = correlation + np.arange(block.num_kernels)
        numbers.fill(NONE)
        numbers[block.numbered] = given.sequence + block.row_number[block.numbered]
        steps.fill(self.step)
        self.parts.append(part)

    def collective(
        self, thread: str, given: Collective, begin: int, cost: int, start: int, call: Call, correlation: int
    ) -> None:
        own = self._thread(thread)
        lane = f"{given.group.name} {given.kind} {given.peer}"
        ordinal = self.counted[lane] = self.counted.get(lane, -1) + 1
        if not self._keeps:
            return
        operator, parameters, around, kernel = _kinds_of(
            given.kind, given.group, given.size, given.peer, given.dtype, self.rank
        )
        end = call.end(self.rank)

        def row(kind: int, part: tuple[int, int], correlation: int = NONE, number: int = NONE) -> None:
            self._row(
                kind, own, begin + cost * part[0] // 20, begin + cost * part[1] // 20, correlation, number
            )

        if given.label:
            row(row_kind("user_annotation", given.label), OPERATOR)
        row(operator, OPERATOR)
        row(parameters, PARAMETERS, NONE, ordinal)
        row(around, RANGE)
        if given.after is not None:
            row(RECORD_EVENT, RECORD, correlation)
            row(WAIT_EVENT, WAIT, correlation + 1)
            self._waited(
                given.stream, given.after, begin + cost * WAIT[0] // 20, correlation + 1, correlation
            )
        row(LAUNCH_EXTENDED, LAUNCH, correlation + 2)
        self._row(kernel, given.stream, start, end, correlation + 2, ordinal)
        self.calls.append(
            CallPart(
                self.step, given.kind, given.group.name, given.group.ranks, ordinal, given.peer, start, end,
                call.last, call.last_rank,
            )
        )  # fmt: skip

    def stream_wait(self, thread: str, given: StreamWait, begin: int, ns: int, correlation: int) -> None:
        own, half = self._thread(thread), begin + ns // 2
        self._row(RECORD_EVENT, own, begin, half, correlation)
        self._row(WAIT_EVENT, own, half, begin + ns, correlation + 1)
        self._waited(given.stream, given.on, half, correlation + 1, correlation)

    def _waited(self, stream: int, on: int, at: int, correlation: int, record: int) -> None:
        if self.waits:
            kind = row_kind(
                "cuda_sync",
                "Stream Wait Event",
                {"cuda_sync_kind": "Stream Wait Event", "stream": stream, "device": 0, "context": 1,
                 "wait_on_stream": on, "wait_on_cuda_event_id": on},
            )  # fmt: skip
            self._row(kind, stream, at, at + 1_000, correlation, record)

    def copy(
        self, thread: str, given: HostCopy, begin: int, left: int, start: int, end: int, correlation: int
    ) -> None:
        if not self._keeps:
            return
        own = self._thread(thread)
        for name in ("aten::to", "aten::_to_copy", "aten::copy_"):
            self._row(row_kind("cpu_op", name), own, begin, left)
        self._row(COPY_CALL, own, begin + (left - begin) // 8, left, correlation)
        kind = _copy_kind(given.direction, given.memory, given.size, given.stream, end - start)
        self._row(kind, given.stream, start, end, correlation)
        self.copied.append((start, end))

    def synchronised(self, thread: str, given: Synchronise, begin: int, end: int, correlation: int) -> None:
        self._row(
            row_kind("cuda_runtime", given.api, {"cbid": 165}), self._thread(thread), begin, end, correlation
        )
        if self.waits and given.api.endswith("Synchronize"):
            stream = NONE if given.stream is None else given.stream
            name = "Context Sync" if given.stream is None else "Stream Sync"
            kind = row_kind(
                "cuda_sync", name, {"cuda_sync_kind": name, "stream": stream, "device": 0, "context": 1}
            )
            self._row(kind, 1_000_000 + max(stream, 0), begin, end, correlation)


RECORD_EVENT = row_kind("cuda_runtime", "cudaEventRecord", {"cbid": 135})
WAIT_EVENT = row_kind("cuda_runtime", "cudaStreamWaitEvent", {"cbid": 147})
LAUNCH_EXTENDED = row_kind("cuda_runtime", "cudaLaunchKernelExC", {"cbid": 430})
COPY_CALL = row_kind("cuda_runtime", "cudaMemcpyAsync", {"cbid": 41})


@lru_cache(maxsize=4096)
def _kinds_of(
    kind: str, group: Members, size: int, peer: int | None, dtype: str, rank: int
) -> tuple[int, int, int, int]:
    """Of the operator, its parameters, the range around the launch, and the kernel."""
    operator, name, around = CALLED[kind]
    count, whole = len(group.ranks), size // ELEMENT[dtype]
    inside = whole // count if kind == "all-gather" else whole
    outside = whole // count if kind == "reduce-scatter" else whole
    ranks = group.ranks
    listed = str(list(ranks)) if count <= MOST_LISTED else f"[{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}]"
    about: dict[str, Any] = {
        "Collective name": name, "In msg nelems": inside, "Out msg nelems": outside, "Group size": count,
        "dtype": dtype, "In split size": "[]", "Out split size": "[]", "Process Group Name": group.name,
        "Process Group Description": group.description, "Process Group Ranks": listed,
    }  # fmt: skip
    if peer is not None:
        ends = (rank, peer) if kind == "send" else (peer, rank)
        about |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
        around = f"{around} {ends[0]}->{ends[1]}"
    device = {
        "queued": 0, "device": 0, "context": 1, "registers per thread": 96, "shared memory": 91136,
        "blocks per SM": 0.181818, "grid": [24, 1, 1], "block": [544, 1, 1],
    }  # fmt: skip
    return (
        row_kind("cpu_op", operator),
        row_kind("cpu_op", "record_param_comms", about | {"Rank": rank}),
        row_kind("user_annotation", around),
        row_kind("kernel", COLLECTIVES[kind], device | about),
    )


@lru_cache(maxsize=1024)
def _copy_kind(direction: str, memory: str, size: int, stream: int, ns: int) -> int:
    ends = f"{memory} -> Device" if direction == "HtoD" else f"Device -> {memory}"
    rate = round(size / ns, 6) if ns else 0
    args = {"device": 0, "context": 1, "stream": stream, "bytes": size, "memory bandwidth (GB/s)": rate}
    return row_kind("gpu_memcpy", f"Memcpy {direction} ({ends})", args)
