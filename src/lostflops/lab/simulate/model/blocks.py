"""Runs of operators as columns: when each launches, what it launches, and what rows that leaves on the host.

Everything in a block is relative to its start, so that running it is adding a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lostflops.lab.simulate.jitter import Times

US = 1_000


class RowKind(NamedTuple):
    """What rows of one kind share: category, name, and their arguments as JSON without the braces."""

    category: str
    name: str
    args: str = ""


class Kinds:
    """Numbers for kinds of rows."""

    def __init__(self) -> None:
        self.all: list[RowKind] = []
        self._numbers: dict[RowKind, int] = {}

    def number(self, kind: RowKind) -> int:
        known = self._numbers.get(kind)
        if known is None:
            known = self._numbers[kind] = len(self.all)
            self.all.append(kind)
        return known


KINDS = Kinds()  # one for the process: blocks are compiled once for all ranks


def row_kind(category: str, name: str, args: Mapping[str, Any] | None = None) -> int:
    """The number of a kind of row."""
    return KINDS.number(RowKind(category, name, json.dumps(args)[1:-1] if args else ""))


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel: how long it runs, and on how many blocks of threads."""

    name: str
    ns: int
    grid: int = 264

    @property
    def api(self) -> str:
        return "cuLaunchKernelEx" if self.name.startswith("nvjet") else "cudaLaunchKernel"


@dataclass(frozen=True)
class HostOperator:
    """An operator on the host, and what it calls: other operators and kernels."""

    name: str
    calls: tuple[HostOperator | LaunchedKernel, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    number: int | None = None  # autograd's, counted from the block's
    category: str = "cpu_op"


@dataclass(frozen=True)
class HostPace:
    """What the host takes, ns: for an operator that launches, and for Python between the blocks."""

    dispatch: int = 16 * US
    python: int = 40 * US


class OperatorBlock:
    """Operators one after the other, compiled to columns."""

    def __init__(self, operators: Sequence[HostOperator], pace: HostPace) -> None:
        compiler = _Compiler(pace)
        for operator in operators:
            compiler.operator(operator)
        self.host_ns = compiler.now
        self.launch = _column(compiler.launched)  # when a launch reaches the device, but for the way there
        self.ns = _column(compiler.kernels)
        self.kernel_kind = _column(compiler.kernel_kinds)
        self.kernel_launch_start = _column(compiler.launch_starts)
        rows = np.array(compiler.rows, dtype=np.int64).reshape(-1, 5)
        rows = rows[np.lexsort((-rows[:, 2], rows[:, 1]))]
        # Of the host's rows: kind, start, end, number of the kernel a call launches (-1: none), autograd's.
        self.row_kind, self.row_start, self.row_end, self.row_kernel, self.row_number = rows.T
        # Of those that launch, and of those that have a number, the places.
        self.calls, self.numbered = np.flatnonzero(self.row_kernel >= 0), np.flatnonzero(self.row_number >= 0)
        self.row_numbers = 1 + max((int(n) for n in self.row_number), default=-1)

    @property
    def num_kernels(self) -> int:
        return len(self.ns)


def _column(values: Sequence[int]) -> Times:
    return np.array(values, dtype=np.int64)


class _Compiler:
    """Lays operators out in time."""

    def __init__(self, pace: HostPace) -> None:
        self.pace = pace
        self.now = pace.python
        self.launched: list[int] = []
        self.launch_starts: list[int] = []
        self.kernels: list[int] = []
        self.kernel_kinds: list[int] = []
        self.rows: list[tuple[int, int, int, int, int]] = []

    def operator(self, given: HostOperator) -> None:
        start = self.now
        for call in given.calls:
            if isinstance(call, LaunchedKernel):
                self.now += self.pace.dispatch // 2
                self._launch(call)
                self.now += self.pace.dispatch // 5
            else:
                self.operator(call)
        if not given.calls:
            self.now += self.pace.dispatch // 4
        number = -1 if given.number is None else given.number
        self.rows.append((row_kind(given.category, given.name, given.args), start, self.now, -1, number))

    def _launch(self, kernel: LaunchedKernel) -> None:
        cost = 3 * self.pace.dispatch // 10
        category = "cuda_driver" if kernel.api.startswith("cuL") else "cuda_runtime"
        call = row_kind(category, kernel.api, {"cbid": 652 if category == "cuda_driver" else 211})
        self.rows.append((call, self.now, self.now + cost, len(self.kernels), -1))
        self.launch_starts.append(self.now)
        self.launched.append(self.now + cost // 2)
        self.kernels.append(kernel.ns)
        self.kernel_kinds.append(kernel_kind(kernel.name, kernel.grid))
        self.now += cost


@cache
def kernel_kind(name: str, grid: int) -> int:
    """The kind of a kernel's rows; grids are all that tells calls of one name apart."""
    return row_kind(
        "kernel",
        name,
        {
            "queued": 0, "device": 0, "context": 1, "registers per thread": 168, "shared memory": 0,
            "blocks per SM": round(grid / 132, 6), "grid": [grid, 1, 1], "block": [256, 1, 1],
        },
    )  # fmt: skip
