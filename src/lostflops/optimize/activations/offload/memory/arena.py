"""Host memory for what leaves the device: as large as needed, used again in every step.

Getting memory that a GPU can copy to costs milliseconds per piece and stops the device, so none is asked for
inside a step: until the needs are known each block is its own piece; `settle` then replaces the pieces by a
slab, between steps. A step that needs more later adds a slab beside the first, larger than what was missing,
so that lengths that grow little by little do not ask again each time.

Where memory cannot be pinned, plain memory takes its place: that is asked for once, and told.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lostflops.optimize.device import peak
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from lostflops.optimize.device.devices import Device, Event

ALIGNMENT = 512  # bytes; what copy engines like, and what CUDA's allocator gives
MOST_PARTS = 1 << 14  # of a slab, that are remembered
HEADROOM = 1 / 4  # of what there is, that a slab is larger than the first at least


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False, slots=True)
class PendingRead:
    """Who may still be reading: done with `event`. Of one `lane`, whose events are done in the order of their
    numbers, only the last counts: else memory that was many blocks would be waited for by all of them."""

    event: Event
    lane: object = None  # None: alone
    number: int = 0


@dataclass(eq=False, slots=True)
class _Slab:
    memory: torch.Tensor
    free: list[tuple[int, int, tuple[PendingRead, ...]]] = field(
        default_factory=list[tuple[int, int, "tuple[PendingRead, ...]"]]
    )  # offset, length, who may still be reading
    parts: dict[tuple[int, int], torch.Tensor] = field(
        default_factory=dict[tuple[int, int], torch.Tensor]
    )  # by offset and bytes: microbatches that are alike ask for the same ones again

    def part(self, offset: int, nbytes: int) -> torch.Tensor:
        found = self.parts.get((offset, nbytes))
        if found is None:
            if len(self.parts) >= MOST_PARTS:
                self.parts.clear()
            found = self.parts[offset, nbytes] = self.memory[offset : offset + nbytes]
        return found


@dataclass(eq=False, slots=True)
class HostBlock:
    """Host memory for one storage. Who writes to it waits for the events in `after` first: reloads by its
    former owner may still be reading."""

    memory: torch.Tensor  # uint8[nbytes]
    offset: int | None  # in the slab; None is memory of its own
    after: tuple[Event, ...] = ()
    slab: _Slab | None = None


class Arena:
    """Blocks of host memory. `limit` is the most that it may hold, in bytes."""

    def __init__(self, device: Device, limit: int) -> None:
        self.limit = limit
        self.allocations = 0  # how often the device was asked for host memory, ever
        self.held_bytes = 0
        self.pageable_bytes = 0  # of those
        self.not_pinned: str | None = None  # why, once it could not be
        self.used_bytes = 0  # now, aligned
        self.most_used_bytes = 0  # since the last `start_counting`, refused ones included
        self.requested_bytes = 0  # now, as asked for
        self.asking: list[tuple[Event, Event]] = []  # from when to when memory was asked for within a step
        self._refused = 0  # since the last `settle`
        self._largest_refused = 0
        self._device = device
        self._slabs: list[_Slab] = []
        self._settled = False
        self._blocks = 0
        # The last reloads may still be reading: the host is ahead of the device when it drops the engine.
        weakref.finalize(self, _wait_for_readers, device, self._slabs)

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def idle(self) -> bool:
        return self._blocks == 0

    def take(self, nbytes: int) -> HostBlock | None:
        """A block, or None when there is no room: in the slabs, or under the limit."""
        length = aligned(nbytes)
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes + self._refused + length)
        block = self._carve(nbytes, length) if self._settled else self._piece(nbytes)
        if block is None:
            self._refused += length
            self._largest_refused = max(self._largest_refused, length)
            return None
        self._blocks += 1
        self.used_bytes += length
        self.requested_bytes += nbytes
        return block

    def _piece(self, nbytes: int) -> HostBlock | None:
        if self.held_bytes + nbytes > self.limit:
            return None
        return HostBlock(self._memory(nbytes), None)

    def _memory(self, nbytes: int) -> torch.Tensor:
        """That copies run fast from and to, or else any."""
        self.allocations += 1
        memory = None
        if self.not_pinned is None:
            begun = None if self._settled else self._device.record(self._device.current_stream())
            try:
                memory = self._device.host_memory(nbytes)
            except Refused as refused:
                self.not_pinned = refused.reason
            if begun is not None:
                self.asking.append((begun, self._device.record(self._device.current_stream())))
        if memory is None:
            memory = peak.host_memory(nbytes)
            self.pageable_bytes += nbytes
        self.held_bytes += nbytes
        return memory

    def _carve(self, nbytes: int, length: int) -> HostBlock | None:
        for slab in self._slabs:
            for number, (offset, room, after) in enumerate(slab.free):
                if room >= length:
                    after = self._pending(after)
                    if room == length:
                        del slab.free[number]
                    else:
                        slab.free[number] = (offset + length, room - length, after)
                    waits = tuple([reader.event for reader in after]) if after else ()
                    return HostBlock(slab.part(offset, nbytes), offset, waits, slab)
        return None

    def give_back(self, block: HostBlock, after: Event | None, lane: object = None, number: int = 0) -> None:
        """The block may be used again once `after` is done: see `PendingRead`."""
        nbytes = block.memory.numel()
        length = aligned(nbytes)
        self._blocks -= 1
        self.used_bytes -= length
        self.requested_bytes -= nbytes
        if block.slab is None or block.offset is None:
            if after is not None:
                self._device.synchronize(after)  # its memory is gone with the next line
            self.held_bytes -= nbytes
            self.pageable_bytes = min(self.pageable_bytes, self.held_bytes)
            return
        free = block.slab.free
        start, end = block.offset, block.offset + length
        readers = () if after is None else (PendingRead(after, lane, number),)
        here = bisect_left(free, (start,))
        if here < len(free) and free[here][0] == end:
            _, room, others = free.pop(here)
            end, readers = end + room, _together(readers, others)
        if here and sum(free[here - 1][:2]) == start:
            start, _, others = free.pop(here - 1)
            here, readers = here - 1, _together(others, readers)
        free.insert(here, (start, end - start, self._pending(readers)))

    def _pending(self, readers: tuple[PendingRead, ...]) -> tuple[PendingRead, ...]:
        if not readers:
            return readers
        return tuple([reader for reader in readers if not self._device.is_done(reader.event)])

    def start_counting(self) -> None:
        self.most_used_bytes = self.used_bytes
        self._refused = self._largest_refused = 0

    def settle(self, nbytes: int) -> bool:
        """Makes the slabs `nbytes` long together, if they are shorter, and at least one of them as long as
        the longest block that found no room. Only while idle; False when it could not."""
        wanted = aligned(nbytes)
        missing = wanted - (self.held_bytes if self._settled else 0)
        if self._settled:
            missing = max(missing, self._largest_refused)
        if missing <= 0 and self._settled:
            return True
        room = self.limit - self.held_bytes if self._settled else self.limit
        if not self.idle or missing > room:
            return False
        if self._settled:
            missing = min(
                room // ALIGNMENT * ALIGNMENT, max(missing, aligned(round(HEADROOM * self.held_bytes)))
            )
        self._settled = True
        self._refused = self._largest_refused = 0
        if missing > 0:
            self._slabs.append(_Slab(self._memory(missing), [(0, missing, ())]))
        return True


def _wait_for_readers(device: Device, slabs: list[_Slab]) -> None:
    with suppress(RuntimeError):  # the device is gone: nobody reads
        for slab in slabs:
            for _, _, after in slab.free:
                for reader in after:
                    device.synchronize(reader.event)


def _together(some: tuple[PendingRead, ...], others: tuple[PendingRead, ...]) -> tuple[PendingRead, ...]:
    """The last of each lane."""
    latest: dict[object, PendingRead] = {}
    for reader in (*some, *others):
        lane = reader.event if reader.lane is None else reader.lane
        if lane not in latest or latest[lane].number < reader.number:
            latest[lane] = reader
    return tuple(latest.values())
