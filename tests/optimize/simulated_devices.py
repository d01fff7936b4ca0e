"""Devices for tests of what moves bytes: one looks for races, one copies as late as it may, one has a clock.

All three compute on the CPU, at once; what differs is what they make of streams and events:

- `RaceDevice` tells a race detector who reads and writes what on which stream: torch's own stream sanitizer,
  and vector clocks of ours, which must agree. Memory that is freed is written on the stream that owns it, as
  its next owner may do that at once, and given out again first. (To report it as freed would make the
  sanitizer forget who is still using it, and reuse too early would be invisible.)
- `LazyDevice` runs a copy only when somebody waits for its event, and memory holds NaN before it is written
  and after it is released: order that is wrong becomes a number that is wrong.
- `ClockDevice` has virtual time: operators and copies take as long as it is told, the host too.

    device = RaceDevice()
    with device, optimize.offload(model, device=device):
        ...
    assert device.races == []
"""

from __future__ import annotations

import random
import weakref
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lostflops.optimize.device import peak
from lostflops.optimize.device.peak import address_of, storages_of

GRANULE = 512  # bytes of host memory that are told apart; of device memory, a storage is one thing


@dataclass(eq=False)
class Stream:
    """Compared by identity, and true, as CUDA's are."""

    number: int
    time: int = 0
    queue: deque[Any] = field(default_factory=deque)
    queued: int = 0
    ran: int = 0


@dataclass(eq=False)
class Event:
    number: int
    stream: Stream
    time: int = 0
    position: int = 0


class Simulated:
    """Streams, host memory that is known as such, and operators seen by a dispatch mode while entered."""

    torch_device = torch.device("cpu")
    coherent = False
    looks = True  # at what operators read and write

    def __init__(self) -> None:
        self._numbers = iter(range(1, 1 << 60))
        self._host: dict[int, tuple[int, int]] = {}  # where each begins and ends
        self._places: list[tuple[int, ...]] = []  # the same in order, each with its address
        self._inside = 0  # our own operators are not the program's
        self._mode = _Operators(self)
        self.compute = self.new_stream()
        self._current = self.compute

    def __enter__(self) -> Any:
        self._mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(*exception)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def current_stream(self) -> Stream:
        return self._current

    def new_stream(self) -> Stream:
        return Stream(next(self._numbers))

    def switch(self, stream: Stream) -> None:
        """The program goes on on another stream, which waits for what it did so far."""
        if stream is not self._current:
            self.wait(stream, self.record(self._current))
            self._current = stream

    def is_host(self, tensor: torch.Tensor) -> bool:
        return self._host_of(tensor.untyped_storage()) is not None

    def _host_of(self, storage: torch.UntypedStorage) -> int | None:
        """The host memory that a storage is, or is a part of."""
        address = address_of(storage)
        if address in self._host:
            return address
        try:
            at = storage.data_ptr()
        except RuntimeError:  # that of a wrapper, as of a DTensor: its parts come by themselves
            return None
        before = bisect_right(self._places, (at, 1 << 64))
        if before and at < self._places[before - 1][1]:
            return self._places[before - 1][2]
        return None

    def host_memory(self, nbytes: int) -> torch.Tensor:
        with self.unseen():
            memory = torch.zeros(nbytes, dtype=torch.uint8)
        peak.is_host_memory(memory)
        storage = memory.untyped_storage()
        self._host[address_of(storage)] = (storage.data_ptr(), storage.data_ptr() + nbytes)
        insort(self._places, (*self._host[address_of(storage)], address_of(storage)))
        weakref.finalize(storage, self._host_freed, address_of(storage)).atexit = False
        return memory

    def _host_freed(self, address: int) -> None:
        place = self._host.pop(address, None)
        if place is not None:
            self._places.remove((*place, address))

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None: ...

    def record(self, stream: Stream) -> Event:
        return Event(next(self._numbers), stream)

    def wait(self, stream: Stream, event: Event) -> None: ...

    def operator(
        self, func: Any, read: list[torch.Tensor], written: list[torch.Tensor], made: Any
    ) -> None: ...


# Change what a tensor is, and touch no memory.
_NO_WORK = {torch.ops.aten.set_, torch.ops.aten.set_data, torch.ops.aten.detach_, torch.ops.aten.resize_}


@dataclass(frozen=True)
class _Operator:
    """Whether it touches memory, and the names of its arguments, in order, with whether it writes to each."""

    works: bool
    arguments: dict[str, bool]
    name: str


@cache
def _operator(func: Any) -> _Operator:
    alias = {argument.name: argument.alias_info for argument in func._schema.arguments}
    arguments = {name: info is not None and info.is_write for name, info in alias.items()}
    return _Operator(func.overloadpacket not in _NO_WORK, arguments, str(func))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple | dict):
        return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return []


class _Operators(TorchDispatchMode):
    def __init__(self, device: Simulated) -> None:
        super().__init__()
        self._device = weakref.ref(device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        device = self._device()
        if device is not None and device.looks and not device._inside and _operator(func).works:
            names = _operator(func).arguments
            given = [
                *zip(names.values(), args, strict=False),
                *((writes, kwargs[name]) for name, writes in names.items() if name in kwargs),
            ]
            read: list[torch.Tensor] = []
            written: list[torch.Tensor] = []
            for writes, value in given:
                (written if writes else read).extend(_tensors(value))
            device.operator(func, read, written, _tensors(result))
        return result


# Races


@dataclass(frozen=True)
class Access:
    stream: int
    number: int
    what: str


class VectorClocks:
    """Which accesses to the same memory no event orders: every stream knows how far others are that it
    waited for.
    """

    def __init__(self) -> None:
        self._knows: dict[int, dict[int, int]] = {}
        self._events: dict[int, dict[int, int]] = {}
        self._host: dict[int, int] = {}
        self._count = 0
        self._writes: dict[int, Access] = {}
        self._reads: dict[int, list[Access]] = defaultdict(list)

    def new_stream(self, stream: int) -> None:
        self._knows[stream] = dict(self._host)

    def record(self, event: int, stream: int) -> None:
        self._events[event] = dict(self._knows[stream])

    def wait(self, event: int, stream: int) -> None:
        _learn(self._knows[stream], self._events[event])

    def synchronize(self, event: int) -> None:
        for known in (*self._knows.values(), self._host):
            _learn(known, self._events[event])

    def access(self, stream: int, read: set[int], written: set[int], what: str) -> list[str]:
        """The pairs of accesses that may run at the same time, at least one of them a write."""
        self._count += 1
        self._knows[stream][stream] = self._count
        now = Access(stream, self._count, what)
        found: list[str] = []
        for memory in read - written:
            found += self._conflicts(now, [self._writes.get(memory)])
            self._reads[memory].append(now)
        for memory in written:
            reads = self._reads.pop(memory, [])
            found += self._conflicts(now, reads or [self._writes.get(memory)])
            self._writes[memory] = now
        return found

    def _conflicts(self, now: Access, earlier: list[Access | None]) -> list[str]:
        known = self._knows[now.stream]
        return [
            f"{now.what} (stream {now.stream}) and {before.what} (stream {before.stream})"
            for before in earlier
            if before is not None and known.get(before.stream, -1) < before.number
        ]


def _learn(known: dict[int, int], other: dict[int, int]) -> None:
    for stream, number in other.items():
        known[stream] = max(known.get(stream, -1), number)


class Sanitizer:
    """torch's stream sanitizer behind the same verbs. It is private: a test says when it has changed.

    It takes a stack trace per access, which takes nearly all of its time and is not wanted here.
    """

    def __init__(self) -> None:
        from torch.cuda import _sanitizer

        nothing = SimpleNamespace(extract=lambda *_, **__: [])
        _sanitizer.traceback = SimpleNamespace(StackSummary=nothing, walk_stack=lambda *_: ())
        self._handler = _sanitizer.EventHandler()

    def new_stream(self, stream: int) -> None:
        self._handler._handle_stream_creation(stream)

    def record(self, event: int, stream: int) -> None:
        self._handler._handle_event_creation(event)
        self._handler._handle_event_record(event, stream)

    def wait(self, event: int, stream: int) -> None:
        self._handler._handle_event_wait(event, stream)

    def synchronize(self, event: int) -> None:
        self._handler._handle_event_synchronization(event)

    def access(self, stream: int, read: set[int], written: set[int], what: str) -> list[str]:
        names = {memory: [what] for memory in read | written}
        found: Any = self._handler._handle_kernel_launch(
            stream, read - written, written, written, what, names
        )
        return [
            f"{error.current_access.operator} (stream {error.current_access.stream}) and "
            f"{error.previous_access.operator} (stream {error.previous_access.stream})"
            for error in found
        ]


class RaceDevice(Simulated):
    """`races` are those found, in words.

    `done` says whether an event that is asked about is done: "never" is the device that is furthest behind,
    "always" the one that is never behind, a number is the seed of a coin.
    """

    def __init__(self, done: str | int = "never", detectors: tuple[Any, ...] | None = None) -> None:
        self._detectors = (VectorClocks(), Sanitizer()) if detectors is None else detectors
        self._coin = random.Random(done) if isinstance(done, int) else None
        self._done = done
        self._blocks: dict[int, tuple[int, Stream, int]] = {}  # by address: number, owner, bytes
        self._free: dict[tuple[int, int], list[int]] = defaultdict(list)  # by owner and size
        self._granules: dict[tuple[int, int], int] = {}
        self._host_did = False
        self.races: list[str] = []
        self.disagreements: list[Any] = []
        self.reused = 0  # blocks given out again
        self.copies = 0
        super().__init__()
        self._host_stream = self.new_stream()

    # Streams and events.

    def new_stream(self) -> Stream:
        stream = super().new_stream()
        for detector in self._detectors:
            detector.new_stream(stream.number)
        return stream

    def record(self, stream: Stream) -> Event:
        event = super().record(stream)
        for detector in self._detectors:
            detector.record(event.number, stream.number)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        for detector in self._detectors:
            detector.wait(event.number, stream.number)

    def is_done(self, event: Event) -> bool:
        done = self._coin.random() < 0.5 if self._coin else self._done == "always"
        if done:
            self.synchronize(event)
        return done

    def synchronize(self, event: Event) -> None:
        for detector in self._detectors:
            detector.synchronize(event.number)

    def elapsed(self, start: Event, end: Event) -> int:
        return 1000 * (end.number - start.number)

    # Memory.

    def allocate(self, nbytes: int) -> torch.Tensor:
        with self.unseen():
            memory = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
        self._block(memory.untyped_storage())
        return memory

    def _block(self, storage: torch.UntypedStorage) -> int:
        """The number of the memory behind a storage; a new storage gets what its stream freed last."""
        address = address_of(storage)
        if address not in self._blocks:
            size = -(-storage.nbytes() // GRANULE) * GRANULE
            free = self._free[self._current.number, size]
            self.reused += bool(free)
            number = free.pop() if free else next(self._numbers)
            self._blocks[address] = number, self._current, size
            weakref.finalize(storage, self._freed, address).atexit = False
        return self._blocks[address][0]

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None:
        owner = self._blocks[address_of(memory.untyped_storage())][1]
        if owner is not stream:
            self.wait(owner, self.record(stream))

    def _freed(self, address: int) -> None:
        number, owner, size = self._blocks.pop(address)
        self._launch(owner, set(), {number}, "use by the next owner")
        self._free[owner.number, size].append(number)

    def _host_freed(self, address: int) -> None:
        super()._host_freed(address)
        gone = [key for key in self._granules if key[0] == address]
        self._launch(
            self._host_stream, set(), {self._granules.pop(key) for key in gone}, "free of host memory"
        )

    def _host_of(self, storage: torch.UntypedStorage) -> int | None:
        # What has a block is none of the host's, and most that is asked about has one.
        return None if address_of(storage) in self._blocks else super()._host_of(storage)

    def _memory(self, tensor: torch.Tensor) -> set[int]:
        return self._memory_in(tensor, storages_of(tensor))

    def _memory_in(self, tensor: torch.Tensor, storages: Iterable[torch.UntypedStorage]) -> set[int]:
        found: set[int] = set()
        for storage in storages:
            address = self._host_of(storage)
            if address is None:
                found.add(self._block(storage))
                continue
            start = storage.data_ptr() - self._host[address][0]
            start += tensor.storage_offset() * tensor.element_size()
            end = start + tensor.numel() * tensor.element_size()
            for granule in range(start // GRANULE, -(-end // GRANULE)):
                key = address, granule
                if key not in self._granules:
                    self._granules[key] = next(self._numbers)
                found.add(self._granules[key])
        return found

    # Work.

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with self.unseen():
            target.copy_(source)
        self.copies += 1
        what = "copy out" if self.is_host(target) else "copy in"
        self._launch(stream, self._memory(source), self._memory(target), what)

    def operator(self, func: Any, read: list[torch.Tensor], written: list[torch.Tensor], made: Any) -> None:
        reads, writes, makes = ([(t, [*storages_of(t)]) for t in some] for some in (read, written, made))
        known = {address_of(storage) for _, storages in (*reads, *writes) for storage in storages}
        new = [one for one in makes if any(address_of(storage) not in known for storage in one[1])]
        if made and not new and not written:
            return  # a view
        touched = [tensor for tensor, _ in (*reads, *writes, *new)]
        host = bool(touched) and all(self.is_host(tensor) for tensor in touched)
        memory_read = {memory for one in reads for memory in self._memory_in(*one)}
        memory_written = {memory for one in (*writes, *new) for memory in self._memory_in(*one)}
        self._host_did |= host
        self._launch(
            self._host_stream if host else self._current, memory_read, memory_written, _operator(func).name
        )

    def _launch(self, stream: Stream, read: set[int], written: set[int], what: str) -> None:
        if self._host_did and stream is not self._host_stream:  # a launch comes after what the host has done
            self._host_did = False
            self.synchronize(self.record(self._host_stream))
        found = [sorted(detector.access(stream.number, read, written, what)) for detector in self._detectors]
        self.races += found[0] if found else []
        self.disagreements += [found] if any(other != found[0] for other in found) else []


class LazyDevice(Simulated):
    """Runs copies as late as it may. `lost` counts copies from or to memory that was gone when they ran."""

    looks = False

    def __init__(self, done: str | int = "never") -> None:
        super().__init__()
        self._coin = random.Random(done) if isinstance(done, int) else None
        self._done = done
        self._time = 0
        self.lost: list[str] = []
        self.copies = 0

    def record(self, stream: Stream) -> Event:
        event = super().record(stream)
        event.position = stream.queued
        self._time += 1000
        event.time = self._time
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        if stream is self._current:  # compute runs at once, so whatever it waits for must have run
            self._run(event)
        else:
            self._put(stream, event)

    def switch(self, stream: Stream) -> None:
        super().switch(stream)
        self._run_all(stream)

    def is_done(self, event: Event) -> bool:
        if self._done == "always" or (self._coin and self._coin.random() < 0.5):
            self._run(event)
        return event.stream.ran >= event.position

    def synchronize(self, event: Event) -> None:
        self._run(event)

    def elapsed(self, start: Event, end: Event) -> int:
        return end.time - start.time

    def allocate(self, nbytes: int) -> torch.Tensor:
        with self.unseen():
            return torch.full((nbytes,), 0xFF, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        self.copies += 1
        self._put(stream, (_reference(target), _reference(source)))
        if stream is self._current:
            self._run_all(stream)

    def _put(self, stream: Stream, work: Any) -> None:
        stream.queue.append(work)
        stream.queued += 1

    def _run_all(self, stream: Stream) -> None:
        while stream.queue:
            self._run_next(stream)

    def _run(self, event: Event) -> None:
        while event.stream.ran < event.position:
            self._run_next(event.stream)

    def _run_next(self, stream: Stream) -> None:
        work = stream.queue.popleft()
        if isinstance(work, Event):
            self._run(work)
        else:
            target, source = (_tensor(reference) for reference in work)
            if target is None or source is None:
                self.lost.append("target" if target is None else "source")
            if target is not None:
                with self.unseen(), torch.no_grad():
                    target.fill_(0xFF) if source is None else target.copy_(source)
        stream.ran += 1


def _reference(memory: torch.Tensor) -> Any:
    """Where bytes are, without keeping them."""
    return weakref.ref(memory.untyped_storage()), memory.storage_offset(), memory.numel()


def _tensor(reference: Any) -> torch.Tensor | None:
    storage = reference[0]()
    if storage is None:
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage, reference[1], (reference[2],), (1,))


def bytes_over(bytes_per_ns: float) -> Callable[[Any, int], int]:
    """Operators that take as long as their bytes."""
    return lambda _, nbytes: max(1, round(nbytes / bytes_per_ns))


@dataclass(frozen=True)
class Row:
    name: str
    start: int
    end: int
    nbytes: int


class ClockDevice(Simulated):
    """Virtual nanoseconds. `kernels` and `copies_out`, `copies_in` are what ran when.

    `operator_ns(func, bytes)` says how long an operator takes; the host needs `host_ns` to launch one.
    """

    def __init__(
        self,
        operator_ns: Callable[[Any, int], int],
        out_bytes_per_ns: float,
        in_bytes_per_ns: float,
        launch_ns: int = 0,
        host_ns: int = 0,
    ) -> None:
        super().__init__()
        self._operator_ns = operator_ns
        self._rates = {"out": out_bytes_per_ns, "in": in_bytes_per_ns}
        self._launch_ns = launch_ns
        self._host_ns = host_ns
        self.now = 0
        self.kernels: list[Row] = []
        self.copies: dict[str, list[Row]] = {"out": [], "in": []}

    def record(self, stream: Stream) -> Event:
        event = super().record(stream)
        event.time = stream.time = max(stream.time, self.now)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        stream.time = max(stream.time, event.time)

    def is_done(self, event: Event) -> bool:
        return event.time <= self.now

    def synchronize(self, event: Event) -> None:
        self.now = max(self.now, event.time)

    def elapsed(self, start: Event, end: Event) -> int:
        return end.time - start.time

    def allocate(self, nbytes: int) -> torch.Tensor:
        with self.unseen():
            return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with self.unseen():
            target.copy_(source)
        direction = "out" if self.is_host(target) else "in"
        took = self._launch_ns + max(1, round(source.numel() / self._rates[direction]))
        self.copies[direction].append(self._run(stream, "copy " + direction, took, source.numel()))

    def operator(self, func: Any, read: list[torch.Tensor], written: list[torch.Tensor], made: Any) -> None:
        known = {address_of(storage) for tensor in (*read, *written) for storage in storages_of(tensor)}
        new = [t for t in made if any(address_of(storage) not in known for storage in storages_of(t))]
        if made and not new and not written:
            return  # a view
        nbytes = sum(t.numel() * t.element_size() for t in (*read, *written, *new))
        self.now += self._host_ns
        self.kernels.append(
            self._run(self._current, _operator(func).name, self._operator_ns(func, nbytes), nbytes)
        )
        if "_local_scalar_dense" in _operator(func).name:  # the host reads a number
            self.now = max(self.now, self._current.time)

    def _run(self, stream: Stream, name: str, took: int, nbytes: int) -> Row:
        start = max(stream.time, self.now)
        stream.time = start + took
        return Row(name, start, stream.time, nbytes)


class OnStream(torch.autograd.Function):
    """The identity; what follows runs on `stream`, and the backward of what came before on the one before.

    It copies, and the stream before waits for the copy, as else even a plain program would have to tell the
    allocator that memory of one stream is used on another.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: Simulated, stream: Stream) -> torch.Tensor:
        ctx.device, ctx.before = device, device.current_stream()
        return _crossing(x, device, stream)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _crossing(gradients[0], ctx.device, ctx.before), None, None


def _crossing(x: torch.Tensor, device: Simulated, stream: Stream) -> torch.Tensor:
    before = device.current_stream()
    device.switch(stream)
    copy = x.clone()
    device.wait(before, device.record(stream))
    return copy
