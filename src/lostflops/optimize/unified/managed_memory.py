"""Unified memory behind torch's allocator: what does not fit on the GPU may lie in the host's memory.

    with optimize.managed(prefer="gpu") as memory:
        model.to("cuda")                       # allocated in here, by this thread: unified from now on
        for batch in batches:
            model(**batch).loss.backward(); optimizer.step(); optimizer.zero_grad()
    print(memory.report())

The tier of last resort: it makes a model fit at all. Copies that are asked for in time
(`optimize.offload`, `stream_frozen`, `stream_weights`) are faster than pages that move when a kernel stumbles
over them. Not verified on a GPU yet; the C allocator is tested against libraries that play CUDA.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from lostflops.optimize.amounts import written
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy, Report
from lostflops.optimize.unified import managed_allocator
from lostflops.optimize.unified.managed_allocator import HOST, Allocator, Usage
from lostflops.optimize.unified.platform_memory import KINDS, memory_capabilities, runtime_libraries

PREFERENCES = managed_allocator.PREFERENCES
ADVICE = {  # cudaMemoryAdvise
    "read_mostly": 1,
    "unset_read_mostly": 2,
    "preferred_location": 3,
    "unset_preferred_location": 4,
    "accessed_by": 5,
    "unset_accessed_by": 6,
}
PROBE = 2 << 20  # bytes that are taken and given back before anything is promised
RECORDING = (
    "Kineto (torch.profiler) records no unified-memory activity: to see migrations and page faults record "
    "with `nsys profile --cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true`"
)

# torch keeps a bare pointer to a pool's allocator, and calls it when it gives a segment back, maybe at exit:
# these are never freed (pytorch#188170).
_allocators: dict[tuple[Allocator, str, str], Any] = {}
# Pools of contexts that were left while tensors of theirs lived.
_left: list[Any] = []
_inside = threading.local()


@dataclass(frozen=True)
class ManagedReport(Report):
    """What a `managed` context has taken, so far or until it was left.

    Bytes are of whole segments, as torch's cache holds them; what still lives of earlier contexts counts too.
    """

    document = "managed memory report"
    derived = ("memory_kind",)

    kind: str
    prefer: str
    bytes_now: int
    most_bytes: int
    allocations: int
    failures: int  # times that no memory was left; torch then frees what it caches and tries again
    refused_advice: int
    device_bytes: int  # the GPU's memory
    oversubscription: float  # most_bytes as a multiple of device_bytes
    excess_bytes: int  # of most_bytes beyond the GPU's memory; what else lies there comes on top
    remarks: tuple[str, ...]

    @property
    def memory_kind(self) -> str:
        return self.kind

    def record(self) -> dict[str, Any]:
        """The same as `to_json`."""
        return self.to_json()

    def __str__(self) -> str:
        text = (
            f"{self.kind} memory, preferring the {self.prefer.upper()}: {written(self.bytes_now)} now, "
            f"{written(self.most_bytes)} at most, {self.oversubscription:.2f} times the GPU's "
            f"{written(self.device_bytes)}"
        )
        if self.excess_bytes:
            text += f"\n{written(self.excess_bytes)} or more had to lie in the host's memory"
        return "\n".join([text, *self.remarks])


class ManagedMemory(AppliedRemedy):
    """What `managed` and `use_managed_everywhere` return: knows what was allocated, and says so.

    What was allocated stays where it is when this is undone; the next allocations are torch's own again.
    """

    def __init__(
        self,
        allocator: Allocator,
        kind: str,
        prefer: str,
        device: int,
        context: Callable[[ManagedMemory], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.kind, self.prefer, self.device = kind, prefer, device
        self._allocator = allocator
        self._before = self._usage()
        self._after: Usage | None = None
        self._context = context
        self._stack: ExitStack | None = None
        if context is None:
            allocator.forget_peak(kind, prefer, device)

    def apply(self) -> ManagedMemory:
        """From now on this thread allocates in unified memory."""
        if self._context is None or self._stack is not None:
            return self
        super().apply()
        with ExitStack() as stack:
            stack.enter_context(self._context(self))
            self._before = self._usage()
            self._allocator.forget_peak(self.kind, self.prefer, self.device)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._leave()
        if kind is None and self._context is not None and not self.report().allocations:
            raise Refused(
                "nothing was allocated inside managed(): no byte lies in unified memory",
                "move the model to the GPU inside the context, on the thread that entered it",
            )

    def undo(self) -> None:
        if self._context is None:
            raise Refused(
                "use_managed_everywhere() cannot be undone: torch keeps its allocator until the process ends",
                "use managed() instead",
            )
        self._leave()

    def _leave(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            self._undone = True
            stack.close()

    def torch_allocator(self) -> Any:
        """For a pool of torch's."""
        return _torch_allocator(self._allocator, self.kind, self.prefer).allocator()

    def left(self) -> None:
        """What is taken from now on is not this context's."""
        self._after = self._usage()

    def _usage(self) -> Usage:
        return self._allocator.usage(self.kind, self.prefer, self.device)

    def report(self) -> ManagedReport:
        now, before = self._after or self._usage(), self._before
        total = _device_bytes(self.device)
        refused = now.refused_advice - before.refused_advice
        remarks = [RECORDING]
        if refused:
            why = f"CUDA refused advice on {refused} segments (error {now.last_failure})"
            remarks.insert(0, f"{why}: their pages may lie anywhere")
        return ManagedReport(
            kind=self.kind,
            prefer=self.prefer,
            bytes_now=now.bytes_now,
            most_bytes=now.most_bytes,
            allocations=now.allocations - before.allocations,
            failures=now.failures - before.failures,
            refused_advice=refused,
            device_bytes=total,
            oversubscription=now.most_bytes / total,
            excess_bytes=max(0, now.most_bytes - total),
            remarks=tuple(remarks),
        )


def managed(
    prefer: str = "gpu", kind: str = "managed", device: int | str | torch.device | None = None
) -> ManagedMemory:
    """What this thread allocates on the GPU inside lies in unified memory, and stays there after the context.

    prefer: where pages should lie, "gpu" (they move to the host when the GPU is full) or "cpu" (the GPU reads
    them over the link). kind: "managed", "system" (malloc; on ATS and HMM platforms) or "device" (cudaMalloc
    through the same path, to compare with). The backward runs on the calling thread meanwhile: on autograd's
    own threads its allocations would be missed, since torch switches the allocator per thread.

    Refuses what the platform cannot do (`memory_capabilities` tells), expandable segments, a context inside
    another, and a context in which nothing was allocated.
    """
    allocator, index = _ready(prefer, kind, device)
    return ManagedMemory(allocator, kind, prefer, index, _pool)


@contextmanager
def _pool(memory: ManagedMemory) -> Generator[None]:
    """Allocations of this thread come from a pool of the allocator's."""
    if getattr(_inside, "managed", False):
        raise Refused("managed() stands inside another managed()", "leave the first one before")
    _sweep()
    with ExitStack() as leaving:
        leaving.enter_context(torch.cuda.device(memory.device))
        pool = torch.cuda.MemPool(memory.torch_allocator())
        leaving.callback(_left.append, pool)  # outlives its tensors, however the context is left
        leaving.callback(memory.left)
        _inside.managed = True
        leaving.callback(setattr, _inside, "managed", False)
        leaving.enter_context(torch.cuda.use_mem_pool(pool, memory.device))
        leaving.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield
    del pool


def use_managed_everywhere(
    prefer: str = "gpu", kind: str = "managed", device: int | str | torch.device | None = None
) -> ManagedMemory:
    """All GPU memory of this process, of every thread, is unified from now on. Cannot be undone.

    For code whose allocations happen on threads of its own. torch allows it only before its first use of the
    GPU, and then does not cache: every tensor is an allocation, which is slow for small ones, and
    `memory_stats` and CUDA graphs do not work. When no memory is left, torch does not notice: a message on
    stderr says so, and the next kernel fails on an illegal address. Prefer `managed`.
    """
    if torch.cuda.is_initialized():
        raise Refused(
            "torch has used the GPU already: its allocator cannot be changed any more",
            "call use_managed_everywhere() before the first CUDA tensor, or use managed()",
        )
    allocator, index = _ready(prefer, kind, device)
    torch.cuda.memory.change_current_allocator(_torch_allocator(allocator, kind, prefer))
    allocator.say_failures()
    return ManagedMemory(allocator, kind, prefer, index)


def release_managed() -> int:
    """Gives the memory of contexts back whose tensors are all gone. Returns how many still have some."""
    _sweep()
    return len(_left)


def prefetch(tensor: torch.Tensor, device: int | str | torch.device) -> None:
    """Starts moving the tensor's pages to a GPU or to "cpu", on the current stream, without waiting.

    For unified memory; refuses other tensors, in CUDA's words.
    """
    target = _place(device)
    on = tensor.device if target == HOST else torch.device("cuda", target)
    stream = torch.cuda.current_stream(on if on.type == "cuda" else None).cuda_stream
    address, nbytes = _range(tensor)
    _checked(_allocator().prefetch(address, nbytes, target, stream), "moved", tensor)


def advise(tensor: torch.Tensor, advice: str, device: int | str | torch.device | None = None) -> None:
    """Tells CUDA how the tensor will be used: "read_mostly", "preferred_location" or "accessed_by".

    "unset_" before one takes it back. `device` is a GPU or "cpu"; None is the tensor's. Advice holds for
    whole pages, and with torch's cache other tensors may share the first and the last.
    """
    if advice not in ADVICE:
        raise Refused(f"there is no advice {advice!r}", f"choose from {', '.join(ADVICE)}")
    target = _place(tensor.device if device is None else device)
    address, nbytes = _range(tensor)
    _checked(_allocator().advise(address, nbytes, ADVICE[advice], target), "advised", tensor)


def _ready(prefer: str, kind: str, device: int | str | torch.device | None) -> tuple[Allocator, int]:
    """The allocator and the GPU's number, after all that can be refused before the model is touched."""
    if kind not in KINDS:
        raise Refused(f"there is no kind of memory {kind!r}", f"choose from {', '.join(KINDS)}")
    if prefer not in PREFERENCES:
        raise Refused(f"memory cannot prefer {prefer!r}", f"choose from {', '.join(PREFERENCES)}")
    if kind == "device" and prefer == "cpu":
        raise Refused("memory of cudaMalloc lies on the GPU", "use kind='managed', or prefer='gpu'")
    _check_settings()
    can = memory_capabilities(device)
    usable, why = can.usable(kind)
    if not usable:
        others = [each for each in KINDS if each != kind and can.usable(each)[0]]
        instead = f"use kind={others[-1]!r}" if others else "run where memory_capabilities() says that it can"
        raise Refused(f"{kind} memory cannot hold tensors here: {why}", instead)
    allocator = _allocator()
    _probe(allocator, kind, prefer, can.device)
    return allocator, can.device


def _check_settings() -> None:
    """Expandable segments map memory piece by piece, which an allocator of one's own cannot."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        settings = os.environ.get(name, "")
        if re.search(r"\bexpandable_segments\s*:\s*(true|1)\b", settings, re.IGNORECASE):
            raise Refused(
                "unified memory and torch's expandable segments exclude each other",
                f"take expandable_segments out of {name}",
            )
        if re.search(r"\bbackend\s*:\s*cudaMallocAsync\b", settings):
            raise Refused(
                "unified memory needs torch's own caching allocator",
                f"take backend:cudaMallocAsync out of {name}",
            )


def _probe(allocator: Allocator, kind: str, prefer: str, device: int) -> None:
    before = allocator.usage(kind, prefer, device)
    address = allocator.allocate(kind, prefer, PROBE, device)
    after = allocator.usage(kind, prefer, device)
    if address is None:
        raise Refused(
            f"CUDA gives no {kind} memory, not even {written(PROBE)} (error {after.last_failure})",
            "see whether another process holds the GPU, and how much memory the host has left",
        )
    allocator.free(kind, prefer, address, PROBE, device)
    if after.refused_advice > before.refused_advice:
        raise Refused(
            f"CUDA does not take the advice to prefer the {prefer.upper()} (error {after.last_failure})",
            "try the other preference; memory_capabilities() tells what the platform can do",
        )


def _allocator() -> Allocator:
    for name in runtime_libraries():
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return managed_allocator.opened(name)
    raise Refused(
        "there is no CUDA runtime library here", "run with a torch that is built for CUDA, on a GPU"
    )


def _torch_allocator(allocator: Allocator, kind: str, prefer: str) -> Any:
    key = allocator, kind, prefer
    if key not in _allocators:
        made = torch.cuda.memory.CUDAPluggableAllocator(str(allocator.path), *allocator.names(kind, prefer))
        # Not even the end of the interpreter, which clears this module, may free it before the pools.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        _allocators[key] = made
    return _allocators[key]


def _sweep() -> None:
    """Drops the pools in which nothing lives any more; torch gives their segments back with them."""
    _left[:] = [pool for pool in _left if _lives(pool)]


def _lives(pool: Any) -> bool:
    # Blocks whose last reference is gone, but which another stream still uses, are active and not allocated.
    return any(
        max(segment.get("active_size", 0), segment.get("allocated_size", 0)) > 0
        for segment in pool.snapshot()
    )


def _device_bytes(device: int) -> int:
    about = cast("Any", torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType]
    return int(about.total_memory)


def _place(device: int | str | torch.device) -> int:
    if isinstance(device, int):
        return device
    found = torch.device(device)
    if found.type == "cpu":
        return HOST
    if found.type != "cuda":
        raise Refused(f"pages cannot lie on {found}", "name a GPU or 'cpu'")
    given = cast("int | None", found.index)
    return torch.cuda.current_device() if given is None else given


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes from the first to the last element."""
    if not tensor.numel():
        raise Refused("a tensor without elements has no pages", "leave it out")
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _checked(code: int, done: str, tensor: torch.Tensor) -> None:
    if code:
        raise Refused(
            f"CUDA says error {code}: {written(_range(tensor)[1])} on {tensor.device} cannot be {done}",
            "only unified memory can: allocate the tensor inside optimize.managed()",
        )
