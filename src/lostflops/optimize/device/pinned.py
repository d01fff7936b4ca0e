"""Host memory that a GPU can copy to: exactly as long as asked for, near the GPU, and left out of forks.

torch's pinned allocator rounds up to powers of two, and memory of malloc's shares pages with what else there
is. This is a mapping of its own, so that it can be advised on:

- Forked children (workers of a data loader) do not get it: of tens of gigabytes that a device writes to, the
  kernel would have to copy every page, and a device may go on writing to the wrong one.
- Huge pages make it quicker to touch and to pin.
- Pages lie on the memory node of the CPU that first touches them: several threads do, on the GPU's node, as
  one would need seconds for what takes them one.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from lostflops.optimize.device import numa
from lostflops.optimize.refused import Refused

AT_ONCE = (
    1 << 26
)  # bytes that a thread touches with one operator, few enough for torch to use no other thread
THREADS = 8
ADVICE = ("MADV_DONTFORK", "MADV_HUGEPAGE")


def mapped(nbytes: int, node: int | None = None) -> torch.Tensor:
    """uint8[nbytes] of zeros, all pages of them there, on the memory node if the machine has several."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ADVICE:
        with suppress(OSError, AttributeError):  # a kernel that cannot
            memory.madvise(getattr(mmap, advice))
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    with numa.on_node(node), ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))) as threads:
        # Threads that begin here are bound as this one is.
        list(threads.map(_touch, tensor.split(AT_ONCE)))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return tensor


def _touch(part: torch.Tensor) -> None:
    part[:: mmap.PAGESIZE].zero_()


def pinned(
    nbytes: int, runtime: Any, clear_error: Callable[[], None], node: int | None = None
) -> torch.Tensor:
    """Mapped and registered with CUDA's `runtime` for the current device, until it is freed. A refusal leaves
    no error behind that the next launch would raise: `clear_error` takes it away."""
    memory = mapped(nbytes, node)
    if not nbytes:
        return memory
    code = runtime.cudaHostRegister(memory.data_ptr(), nbytes, 0)
    if int(code) != 0:
        clear_error()
        raise Refused(
            f"{nbytes} bytes of host memory cannot be pinned (cudaHostRegister: {code})",
            "raise the limit of locked memory (ulimit -l unlimited), or ask for less",
        )
    # At the end of the process the driver lets go by itself, after the copies that are under way.
    weakref.finalize(
        memory.untyped_storage(), _unregister, runtime, memory.data_ptr(), os.getpid()
    ).atexit = False
    return memory


def _unregister(runtime: Any, address: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has no such memory
        runtime.cudaHostUnregister(address)
