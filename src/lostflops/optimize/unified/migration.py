"""How fast pages of unified memory move when somebody touches them: the rate that unified memory lives by.

Far below the link's own, and different by page size, platform and access pattern; so it is measured, with a
kernel and a loop that walk through memory that lies on the other side.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from lostflops.optimize.unified.managed_memory import managed, prefetch


class Pages(Protocol):
    """Unified memory that can be sent to either side and touched from the other."""

    def send(self, nbytes: int, to_host: bool) -> None:
        """Moves the first bytes there, and waits until they are."""
        ...

    def touch(self, nbytes: int, on_host: bool) -> int:
        """Nanoseconds until one side has walked through the first bytes."""
        ...


def migrations(pages: Pages, sizes: Sequence[int], repeats: int) -> dict[str, list[list[int]]]:
    """Nanoseconds of each migration, by direction, size and repeat. What is touched was elsewhere before."""
    found: dict[str, list[list[int]]] = {"device_to_host": [], "host_to_device": []}
    for nbytes in sizes:
        for way, to_host in (("device_to_host", True), ("host_to_device", False)):
            times: list[int] = []
            for _ in range(repeats + 1):  # the first is a warm-up
                pages.send(nbytes, to_host=not to_host)
                times.append(max(1, pages.touch(nbytes, on_host=to_host)))
            found[way].append(times[1:])
    return found


class CudaPages:
    """On a GPU. Not verified on one yet."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.device = device
        with managed(prefer="gpu", device=device):
            self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        seen: Any = (ctypes.c_uint8 * nbytes).from_address(self.memory.data_ptr())
        self.on_host = torch.frombuffer(seen, dtype=torch.uint8)

    def send(self, nbytes: int, to_host: bool) -> None:
        prefetch(self.memory[:nbytes], "cpu" if to_host else self.device)
        torch.cuda.synchronize(self.device)

    def touch(self, nbytes: int, on_host: bool) -> int:
        if on_host:
            start = time.perf_counter_ns()
            self.on_host[:nbytes].bitwise_not_()
            return time.perf_counter_ns() - start
        stream = torch.cuda.current_stream(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        self.memory[:nbytes].bitwise_not_()
        end.record(stream)
        end.synchronize()
        return round(1e6 * begin.elapsed_time(end))
