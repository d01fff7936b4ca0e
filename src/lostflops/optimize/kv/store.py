"""Rows on their way between device and host memory: slots, two copy streams, and who waits for whom.

- A store waits for the compute that gathers its rows, and for loads that still read its slot.
- A load waits for the store that filled its slot, and for compute that may still write where it goes.
- Compute waits for a layer's load when the layer is first touched, and for stores when staging is full.

Each stream runs in order, so its latest event implies its earlier ones. The host waits for nothing.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

from lostflops.optimize.device import peak
from lostflops.optimize.device.devices import Device, Event, Stream
from lostflops.optimize.kv.blocks import Placed, Plan
from lostflops.optimize.kv.past import KeysAndValues
from lostflops.optimize.kv.report import CacheTally
from lostflops.optimize.kv.rows import BlockLayout, checksums, gather, views
from lostflops.optimize.refused import Refused

STAGING = 256 << 20  # bytes of device memory for rows on their way out
CHUNK = 64 << 20  # of one layer at a time
P = ParamSpec("P")
R = TypeVar("R")


def plain_tensors(call: Callable[P, R]) -> Callable[P, R]:
    """Under `torch.inference_mode()` too, tensors that are kept are such as may be written at any time."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return call(*args, **kwargs)

    return called


@dataclass(frozen=True)
class _Mark:
    """The end of some copies, and their number on their stream."""

    number: int
    event: Event


@dataclass(eq=False)
class _Slot:
    """When a slot's bytes were last written and last read."""

    written: _Mark | None = None
    read: _Mark | None = None
    sums: torch.Tensor | None = None  # int64[layers, block_tokens], in verify mode


PIECE_BYTES = 1 << 30  # of host memory, that is taken at a time: pinning takes about a second for three


@dataclass(eq=False)
class _Moving:
    """Device memory that a copy reads or writes, kept until that is over."""

    done: Event
    memory: torch.Tensor
    stream: Stream  # that the memory belongs to


@dataclass
class _Last:
    """The ends of the latest copies, each way."""

    out: Event = None
    into: Event = None


@dataclass(frozen=True)
class Coming:
    """A layer under way: its keys and values, and what makes the current stream wait for them.

    `arrive` says whether it need not be called again, and holds no memory.
    """

    layer: Any  # (shape, keys, values), or None for a layer that keeps nothing
    arrive: Callable[[], bool]


class Store:
    """So many blocks of a layout in host memory, which is taken in pieces, as blocks come to be used."""

    @plain_tensors
    def __init__(
        self,
        on: Device,
        layout: BlockLayout,
        slots: int,
        tally: CacheTally,
        verify: bool,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._lock = lock
        self.on, self.layout, self.verify = on, layout, verify
        self._tally = tally
        self._offsets = layout.offsets
        self._blocks_per_piece = min(slots, max(1, PIECE_BYTES // max(1, self._offsets[-1])))
        self._pieces: dict[int, torch.Tensor] = {}
        self._slots = [_Slot() for _ in range(slots)]
        self._out, self._in = on.new_stream(), on.new_stream()
        self._last = _Last()
        self._marks = 0
        self.leaving: list[_Moving] = []
        self.coming: dict[int, _Moving] = {}
        # All memory outlives the copies that use it, also when the store is dropped in the middle of them.
        weakref.finalize(self, _outlive, on, self._last, self._pieces).atexit = False
        self._piece(0)

    def rows(self, slot: int, layer: int, first: int, last: int) -> torch.Tensor:
        """uint8: rows of one layer of a block in host memory."""
        piece, place = divmod(slot, self._blocks_per_piece)
        start = place * self._offsets[-1] + self._offsets[layer]
        row = self._shape(layer).row_bytes
        return self._piece(piece)[start + first * row : start + last * row]

    @property
    def host_bytes(self) -> int:
        """That are held."""
        return sum(piece.numel() for piece in self._pieces.values())

    def _piece(self, number: int) -> torch.Tensor:
        found = self._pieces.get(number)
        if found is None:
            blocks = min(self._blocks_per_piece, len(self._slots) - number * self._blocks_per_piece)
            try:
                found = self.on.host_memory(blocks * self._offsets[-1])
            except Refused as refused:
                if not self._pieces:
                    raise
                # A dialogue is under way: slower is better than lost.
                warnings.warn(f"{refused.reason}; the cache goes on with pageable memory", stacklevel=2)
                found = peak.host_memory(blocks * self._offsets[-1])
            self._pieces[number] = found
            self._tally.host_allocations += 1
        return found

    def store(self, layers: Sequence[KeysAndValues | None], plan: Plan, gone: int) -> int:
        """Queues the copies of the plan's rows, layer by layer; the number of bytes.

        gone: the first tokens, which layers with a window have no rows of.
        """
        for placed in plan.copies:
            block = placed.block
            if placed.first == 0:
                self._slots[block.slot].sums = self._no_sums() if self.verify else None
            if self.layout.window and gone > block.start + placed.first:
                block.absent = min(gone - block.start, placed.last)
        self._follow(self._out, [self._slots[placed.block.slot].read for placed in plan.copies])
        total = sum(self._store_layer(n, layer, plan.copies) for n, layer in enumerate(layers) if layer)
        if total:
            mark = self._mark(self._last.out)
            for placed in plan.copies:
                self._slots[placed.block.slot].written = mark
        return total

    def load(self, found: Sequence[Placed], length: int) -> list[Coming]:
        """Queues the copies of the rows of `length` tokens into fresh device memory."""
        on = self.on
        compute = on.current_stream()
        places: list[tuple[int, torch.Tensor] | None] = []
        for shape in self.layout.layers:
            begin = max(0, length - shape.window + 1) if shape and shape.window else 0
            # On the compute stream, which it is freed into later.
            places.append((begin, on.allocate((length - begin) * shape.row_bytes)) if shape else None)
        free = on.record(compute)
        on.wait(self._in, free)  # a former owner's work may still write there
        self._follow(self._in, [self._slots[placed.block.slot].written for placed in found])
        coming: list[Coming] = []
        for number, place in enumerate(places):
            if place is None:
                coming.append(Coming(None, lambda: True))
                continue
            begin, memory = place
            self._load_layer(number, begin, memory, found, length)
            done = on.record(self._in)
            self._tally.into.add(free, self._last.into, done, memory.numel())
            self._last.into = done
            moving = _Moving(done, memory, compute)
            self.coming[id(moving)] = moving
            shape = self._shape(number)
            coming.append(Coming((shape, *views(memory, shape)), self._arrival(id(moving), done)))
        mark = self._mark(self._last.into)
        for placed in found:
            self._slots[placed.block.slot].read = mark
        if self.verify:
            self._check(found, places)
        return coming

    def tidy(self) -> None:
        """Lets go of device memory whose copies are over, and of what has been timed."""
        self.leaving = [moving for moving in self.leaving if not self.on.is_done(moving.done)]
        for number in [n for n, moving in self.coming.items() if self.on.is_done(moving.done)]:
            del self.coming[number]
        self._tally.settle(self.on)

    def flush(self) -> None:
        """The host waits for compute and for every copy."""
        self.on.synchronize(self.on.record(self.on.current_stream()))
        _outlive(self.on, self._last, self._pieces)
        self.tidy()

    def trust(self, slot: int) -> None:
        """Takes what lies in host memory now as what is right: it has been read from a file and checked."""
        sums = self._no_sums()
        for number, shape in enumerate(self.layout.layers):
            if shape:
                sums[number] = checksums(self.rows(slot, number, 0, self.layout.block_tokens), shape)
        self._slots[slot].sums = sums

    def _store_layer(self, number: int, layer: KeysAndValues, copies: Sequence[Placed]) -> int:
        on, row, total = self.on, layer.shape.row_bytes, 0
        present = [placed for placed in copies if placed.block.start + placed.last > layer.first]
        for chunk in _chunks(present, row):
            begin = max(chunk[0].block.start + chunk[0].first, layer.first)
            end = chunk[-1].block.start + chunk[-1].last
            memory = self._staging((end - begin) * row)
            gather(memory, layer.shape, layer.keys, layer.values, begin - layer.first)
            compute = on.current_stream()
            ready = on.record(compute)
            on.wait(self._out, ready)
            for placed in chunk:
                start, slot = placed.block.start, placed.block.slot
                first, last = max(start + placed.first, begin), start + placed.last
                source = memory[(first - begin) * row : (last - begin) * row]
                on.copy(self.rows(slot, number, first - start, last - start), source, self._out)
                self._tally.copy(source.numel())
                if (sums := self._slots[slot].sums) is not None:
                    sums[number, first - start : last - start] = checksums(source, layer.shape).cpu()
            done = on.record(self._out)
            self._tally.out.add(ready, self._last.out, done, memory.numel())
            self._last.out = done
            self.leaving.append(_Moving(done, memory, compute))
            total += memory.numel()
        return total

    def _load_layer(
        self, number: int, begin: int, memory: torch.Tensor, found: Sequence[Placed], length: int
    ) -> None:
        """memory: rows of the layer from token `begin` on."""
        row = self._shape(number).row_bytes
        for placed in found:
            start = placed.block.start
            first, last = max(start, begin), min(start + placed.last, length)
            if first < last:
                target = memory[(first - begin) * row : (last - begin) * row]
                source = self.rows(placed.block.slot, number, first - start, last - start)
                self.on.copy(target, source, self._in)
                self._tally.copy(target.numel())

    def _staging(self, nbytes: int) -> torch.Tensor:
        """Device memory for rows on their way out; beyond the allowance, the oldest must be gone first."""
        held = sum(moving.memory.numel() for moving in self.leaving)
        while self.leaving and held + nbytes > STAGING:
            oldest = self.leaving.pop(0)
            held -= oldest.memory.numel()
            self._stall(oldest.done, oldest.stream, "copy-out behind")
        return self.on.allocate(nbytes)

    def _arrival(self, number: int, done: Event) -> Callable[[], bool]:
        waited: list[Stream] = []

        def arrive() -> bool:
            with self._lock:
                return arrived()

        def arrived() -> bool:
            stream = self.on.current_stream()
            if not self.on.is_done(done) and stream not in waited:
                self._stall(done, stream, "copy-in late")
                waited.append(stream)
            moving = self.coming.get(number)
            if moving is not None and moving.done is done and moving.stream == stream:
                del self.coming[number]  # its stream has waited: what it is freed into comes later
            return self.on.is_done(done)

        return arrive

    def _stall(self, done: Event, compute: Stream, cause: str) -> None:
        if self.on.is_done(done):
            return
        before = self.on.record(compute)
        self.on.wait(compute, done)
        self._tally.stall(cause, before, self.on.record(compute))

    def _follow(self, stream: Stream, marks: Sequence[_Mark | None]) -> None:
        """What is queued on the stream from now on comes after these marks, which are of one other stream."""
        last = max((mark for mark in marks if mark), key=lambda mark: mark.number, default=None)
        if last is not None and not self.on.is_done(last.event):
            self.on.wait(stream, last.event)

    def _mark(self, event: Event) -> _Mark:
        self._marks += 1
        return _Mark(self._marks, event)

    def _check(self, found: Sequence[Placed], places: Sequence[tuple[int, torch.Tensor] | None]) -> None:
        """Compares the rows that came with those that left; the host waits for them."""
        self.on.synchronize(self._last.into)
        self.on.wait(self.on.current_stream(), self._last.into)
        for number, place in enumerate(places):
            if place is None:
                continue
            begin, memory = place
            shape = self._shape(number)
            came = checksums(memory, shape).cpu()
            for placed in found:
                start, sums = placed.block.start, self._slots[placed.block.slot].sums
                first, last = max(start, begin), min(start + placed.last, begin + came.numel())
                if sums is None or first >= last:
                    continue
                left = sums[number, first - start : last - start]
                if not torch.equal(left, came[first - begin : last - begin]):
                    raise Refused(
                        f"layer {number}, tokens {first} to {last}: what came back is not what was suspended",
                        "forget this dialogue and compute it again; host memory or copies are at fault",
                    )
                self._tally.verified_bytes += (last - first) * shape.row_bytes

    def _shape(self, layer: int) -> Any:
        return cast("Any", self.layout.layers[layer])

    def _no_sums(self) -> torch.Tensor:
        return torch.zeros(len(self.layout.layers), self.layout.block_tokens, dtype=torch.int64)


def _outlive(on: Device, last: _Last, memory: dict[int, torch.Tensor]) -> None:
    """Keeps host memory until all copies are over."""
    for event in (last.out, last.into):
        if event is not None:
            on.synchronize(event)


def _chunks(copies: Sequence[Placed], row_bytes: int) -> list[list[Placed]]:
    """Runs of copies of at most CHUNK bytes of one layer, at least one copy each."""
    found: list[list[Placed]] = []
    size = 0
    for placed in copies:
        nbytes = (placed.last - placed.first) * row_bytes
        if not found or size + nbytes > CHUNK:
            found.append([])
            size = 0
        found[-1].append(placed)
        size += nbytes
    return found
