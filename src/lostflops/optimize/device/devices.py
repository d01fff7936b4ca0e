"""The few verbs of streams, events, memory and copies that moving bytes needs: CUDA's, and threads on a CPU.

Everything that moves bytes is written against `Device`, so that tests can put a simulated one in its place:
one that checks for races, one that copies as late as it may, one whose time is a number.

The rules of the streams, for all who use this. Work on a stream runs in order; streams know of each other
only through events. `current_stream` is read anew at every use: autograd runs the backward on a thread of its
own and on the stream of the matching forward. Memory belongs to the stream that was current when it was
allocated: its block is given to the next tensor of that stream as soon as the last reference goes, so whoever
copies on another stream keeps a reference until an event says that the copy is done, or makes the owning
stream wait for it.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, cast

import torch

from lostflops.optimize import claims
from lostflops.optimize.device import numa, peak, pinned
from lostflops.optimize.refused import Refused

Stream = Any  # what the device made: opaque to its users
Event = Any
T = TypeVar("T")


OWNERS_AGE = 16  # how often one may ask whose memory this is before the allocator's count of frees is read
CONTEXT_BYTES = 1 << 30  # that a process's CUDA context and libraries take at most


class Device(Protocol):
    """Where storages live, and how their bytes travel to host memory and back."""

    torch_device: torch.device
    coherent: bool  # host and device share one memory: moving frees nothing

    def current_stream(self) -> Stream:
        """The compute stream of the calling thread, now."""
        ...

    def new_stream(self) -> Stream:
        """For copies; make it once."""
        ...

    def record(self, stream: Stream) -> Event:
        """Done when all that is queued on the stream so far has run. Events can be timed."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """What is queued on the stream from now on runs after the event. The host does not wait."""
        ...

    def is_done(self, event: Event) -> bool: ...

    def synchronize(self, event: Event) -> None:
        """The host waits."""
        ...

    def elapsed(self, start: Event, end: Event) -> int:
        """Nanoseconds on the device between two events that are done."""
        ...

    def allocate(self, nbytes: int) -> torch.Tensor:
        """uint8[nbytes] on the device, owned by the calling thread's current stream, contents undefined."""
        ...

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """uint8[nbytes] in host memory that the device can copy to asynchronously: exactly that much, slow to
        get, so get it once."""
        ...

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None:
        """Memory about to be let go is given to nobody before all that is queued on the stream so far has
        run. If that is the stream that it goes back to, nothing is to be done."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queues a copy of bytes, uint8[n] to uint8[n], on the stream. The caller keeps both alive."""
        ...


class CudaDevice:
    """A CUDA (or ROCm) device. Not verified on a GPU yet."""

    def __init__(self, torch_device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise Refused(f"there is no GPU here for {torch_device}", "run where torch.cuda.is_available()")
        given = cast("int | None", torch_device.index)  # torch's own annotation leaves out None
        index = torch.cuda.current_device() if given is None else given
        self.torch_device = torch.device("cuda", index)
        properties = cast("Any", torch.cuda.get_device_properties(index))  # pyright: ignore[reportUnknownMemberType]
        self.coherent = bool(properties.is_integrated)
        self._node = numa.node_of_gpu(self.torch_device)
        self._owners = _Owners(index)

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device)

    def most_allocated_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_most_allocated(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def outside_bytes(self) -> int:
        """What the driver holds for this process, at most: other processes on the device count too."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        used = total - free - torch.cuda.memory_reserved(self.torch_device)
        return min(max(0, used), CONTEXT_BYTES)

    def current_stream(self) -> Stream:
        return torch.cuda.current_stream(self.torch_device)

    def new_stream(self) -> Stream:
        return torch.cuda.Stream(self.torch_device)

    def record(self, stream: Stream) -> Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def is_done(self, event: Event) -> bool:
        return event.query()

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def elapsed(self, start: Event, end: Event) -> int:
        return round(1e6 * start.elapsed_time(end))

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        runtime = cast("Any", torch.cuda.cudart())  # pyright: ignore[reportUnknownMemberType]
        with torch.cuda.device(self.torch_device):
            return pinned.pinned(nbytes, runtime, self._clear_error, self._node)

    def _clear_error(self) -> None:
        """A call of CUDA's that failed is raised by the next kernel that is launched. This is the next."""
        with suppress(RuntimeError):
            torch.ones(1, device=self.torch_device)

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None:
        owner = self._owners.of(memory.data_ptr())
        if owner is None:
            memory.record_stream(stream)
        elif owner != stream.cuda_stream:
            torch.cuda.ExternalStream(owner, device=self.torch_device).wait_event(self.record(stream))

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        if stream == torch.cuda.current_stream(self.torch_device):
            target.copy_(source, non_blocking=True)
            return
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)


class _Owners:
    """The stream that each stretch of the allocator's memory belongs to. `record_stream` would do without,
    but keeps memory back for as long as the host is ahead of the device."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._starts: list[int] = []
        self._stretches: list[tuple[int, int]] = []  # end, stream
        self._frees = -1
        self._age = -1

    def of(self, address: int) -> int | None:
        self._age += 1
        if self._age % OWNERS_AGE == 0:
            frees = torch.cuda.memory_stats(self._index).get("num_device_free", -1)
            if frees != self._frees:  # what is known may be another stream's now
                self._frees = frees
                self._look()
        owner = self._known(address)
        if owner is None:
            self._look()
            owner = self._known(address)
        return owner

    def _known(self, address: int) -> int | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._stretches[place][0]:
            return None
        return self._stretches[place][1]

    def _look(self) -> None:
        found = sorted(
            (part["address"], part["address"] + part["total_size"], part["stream"])
            for part in cast("Any", torch.cuda).memory_snapshot()
            if part["device"] == self._index
        )
        self._starts = [start for start, _, _ in found]
        self._stretches = [(end, stream) for _, end, stream in found]


class _Done:
    """When a stream of a CPU has come so far, and what was raised there. A future would do, at ten times the
    cost: one is made for every tensor that moves, and more."""

    __slots__ = ("_raised", "_running", "at")

    def __init__(self) -> None:
        self.at = 0
        self._raised: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def set(self, raised: BaseException | None = None) -> None:
        self._raised = raised
        self.at = time.perf_counter_ns()
        self._running.release()

    def done(self) -> bool:
        return self.at != 0

    def result(self) -> int:
        """Waits."""
        if not self.at:
            with self._running:
                pass
        if self._raised is not None:
            raise self._raised
        return self.at


class _Now:
    """An event that is done as it is made: of a thread that has nothing queued."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = time.perf_counter_ns()

    def done(self) -> bool:
        return True

    def result(self) -> int:
        return self.at


class _Thread:
    """A stream: a thread that runs what is queued, in order, and ends when nobody holds the stream."""

    def __init__(self) -> None:
        self.last: _Done | _Now = _Now()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_run, args=(self._queue,), daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def put(self, work: Any) -> None:
        done = self.last = _Done()
        self._queue.put((work, done))


def _run(queue: SimpleQueue[Any]) -> None:
    while (queued := queue.get()) is not None:
        work, done = queued
        try:
            work()
        except BaseException as error:  # raised where the event is waited for
            done.set(error)
        else:
            done.set()
        del work, done, queued  # keeps nothing alive while it waits


class ThreadedDevice:
    """A CPU that plays both device and host: computes on the caller's thread, copies on a thread per stream.

    For trying out and for tests: order, overlap and stalls are real and timed, but no memory is gained. Its
    compute stream is whatever thread calls, so `wait` on it blocks that thread.
    """

    def __init__(self, torch_device: torch.device | None = None) -> None:
        self.torch_device = torch_device or torch.device("cpu")
        self.coherent = False

    def current_stream(self) -> Stream:
        return None

    def new_stream(self) -> Stream:
        return _Thread()

    def record(self, stream: Stream) -> Event:
        if stream is None or stream.last.done():  # an idle stream's event is of now, not of its last work
            return _Now()
        return stream.last

    def wait(self, stream: Stream, event: Event) -> None:
        if stream is None:
            event.result()
        elif not event.done():
            stream.put(event.result)

    def is_done(self, event: Event) -> bool:
        return event.done()

    def synchronize(self, event: Event) -> None:
        event.result()

    def elapsed(self, start: Event, end: Event) -> int:
        return end.result() - start.result()

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        peak.is_host_memory(memory)
        return memory

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None:
        """Nothing: all memory belongs to the one compute stream."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        if stream is None:
            target.copy_(source)
        else:
            stream.put(lambda: target.copy_(source))


def over(
    device: Device, pending: Iterable[T], end: Callable[[T], Event], *, wait: bool = False
) -> tuple[list[T], list[T]]:
    """Those whose end is done, and those that still run; with `wait`, the host waits until all are done."""
    done: list[T] = []
    running: list[T] = []
    for one in pending:
        if wait:
            device.synchronize(end(one))
        (done if wait or device.is_done(end(one)) else running).append(one)
    return done, running


def device_named(where: torch.device | str | int) -> CudaDevice:
    """A GPU by its name or number."""
    try:
        found = torch.device(where)
    except RuntimeError as error:
        raise Refused(f"{where!r} names no device", 'name a GPU: "cuda", "cuda:1" or its number') from error
    if found.type != "cuda":
        raise Refused(
            f"{found} is no GPU", "name a GPU, or pass device=ThreadedDevice() to try it out on a CPU"
        )
    return CudaDevice(found)


def device_of(model: torch.nn.Module) -> Device:
    """The device of the parameters that do not travel. Refuses a model on the CPU, or on several devices."""
    found = {each.device for each in model.parameters() if id(each) not in claims.travelling}
    kinds = {device.type for device in found}
    if kinds == {"cuda"} and len(found) == 1:
        return CudaDevice(found.pop())
    if len(found) > 1:
        places = ", ".join(sorted(str(device) for device in found))
        raise Refused(
            f"the model lies on {places}", "give each process the part of the model on its own device"
        )
    where = next(iter(kinds), "no device")
    raise Refused(
        f"the model lies on {where}: there is no GPU memory to spare",
        "move it to a GPU, or pass device=ThreadedDevice() to try it out on a CPU",
    )
