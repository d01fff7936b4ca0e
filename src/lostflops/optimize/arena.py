"""Host memory for what leaves the device: one slab, exactly as large as needed, used again in every step.

Getting memory that a GPU can copy to costs milliseconds per piece and stops the device, so none is asked for
inside a step: until the needs are known each block is its own piece; `settle` then replaces the pieces by one
slab, between steps.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lostflops.optimize.device import Device, Event

ALIGNMENT = 512  # bytes; what copy engines like, and what CUDA's allocator gives


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class Block:
    """Host memory for one storage. Who writes to it waits for the events in `after` first: reloads by its
    former owner may still be reading."""

    memory: torch.Tensor  # uint8[nbytes]
    offset: int | None  # in the slab; None is memory of its own
    after: tuple[Event, ...] = ()
    pageable: bool = False


class Arena:
    """Blocks of host memory. `limit` is the most that it may hold, in bytes."""

    def __init__(self, device: Device, limit: int) -> None:
        self.limit = limit
        self.allocations = 0  # how often the device was asked for host memory, ever
        self.held_bytes = 0
        self.used_bytes = 0  # now, aligned
        self.most_used_bytes = 0  # since the last `start_counting`, refused ones included
        self.requested_bytes = 0  # now, as asked for
        self._refused = 0
        self._device = device
        self._slab: torch.Tensor | None = None
        self._free: list[tuple[int, int, tuple[Event, ...]]] = []  # offset, length, who may still be reading
        self._blocks = 0

    @property
    def settled(self) -> bool:
        return self._slab is not None

    @property
    def idle(self) -> bool:
        return self._blocks == 0

    def take(self, nbytes: int) -> Block | None:
        """A block, or None when there is no room: in the slab, or under the limit."""
        length = aligned(nbytes)
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes + self._refused + length)
        block = self._piece(nbytes) if self._slab is None else self._carve(self._slab, nbytes, length)
        if block is None:
            self._refused += length
            return None
        self._blocks += 1
        self.used_bytes += length
        self.requested_bytes += nbytes
        return block

    def _piece(self, nbytes: int) -> Block | None:
        if self.held_bytes + nbytes > self.limit:
            return None
        self.allocations += 1
        self.held_bytes += nbytes
        return Block(self._device.host_memory(nbytes), None)

    def _carve(self, slab: torch.Tensor, nbytes: int, length: int) -> Block | None:
        for number, (offset, room, after) in enumerate(self._free):
            if room >= length:
                if room == length:
                    del self._free[number]
                else:
                    self._free[number] = (offset + length, room - length, after)
                return Block(slab[offset : offset + nbytes], offset, self._pending(after))
        return None

    def give_back(self, block: Block, after: Event | None) -> None:
        """The block may be used again once `after` is done."""
        nbytes = block.memory.numel()
        length = aligned(nbytes)
        self._blocks -= 1
        self.used_bytes -= length
        self.requested_bytes -= nbytes
        if block.offset is None:
            if after is not None:
                self._device.synchronize(after)  # its memory is gone with the next line
            self.held_bytes -= nbytes
            return
        start, end, events = block.offset, block.offset + length, () if after is None else (after,)
        here = bisect_left(self._free, (start,))
        if here < len(self._free) and self._free[here][0] == end:
            _, room, others = self._free.pop(here)
            end, events = end + room, events + others
        if here and sum(self._free[here - 1][:2]) == start:
            start, _, others = self._free.pop(here - 1)
            here, events = here - 1, others + events
        self._free.insert(here, (start, end - start, self._pending(events)))

    def _pending(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(event for event in events if not self._device.is_done(event))

    def start_counting(self) -> None:
        self.most_used_bytes = self.used_bytes
        self._refused = 0

    def settle(self, nbytes: int) -> bool:
        """Makes the slab `nbytes` long, if it is shorter. Only while idle; False when it could not."""
        wanted = aligned(nbytes)
        if self._slab is not None and self._slab.numel() >= wanted:
            return True
        if not self.idle or wanted > self.limit:
            return False
        self._let_go()
        self.allocations += wanted > 0
        self._slab = self._device.host_memory(wanted) if wanted else torch.empty(0, dtype=torch.uint8)
        self.held_bytes = wanted
        self._free = [(0, wanted, ())] if wanted else []
        return True

    def __del__(self) -> None:
        # The last reloads may still be reading: the host is ahead of the device when it drops the engine.
        if not sys.is_finalizing():
            self._let_go()

    def _let_go(self) -> None:
        for _, _, after in self._free:
            for event in after:
                self._device.synchronize(event)
        self._free = []
        self._slab = None
        self.held_bytes = 0
