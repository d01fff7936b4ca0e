"""Blocks of bytes that leave for a disk and come back, through a few buffers in host memory.

A block is in a buffer from its leaving on; a thread writes it to the disk meanwhile. The buffer is used again
only when that is done, so a block that is asked for soon never waits for the disk. What could not be written
(a disk that is full after all, one that fails) stays in its buffer for good, and another takes the buffer's
place: nothing is lost, and no more leaves. Asking for a block that is on the disk waits until it is read.
One thread at a time: whoever uses it has a lock.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from lostflops.optimize.device.devices import Device, Event
from lostflops.optimize.device.disk import PAGE, Slab, Stretch
from lostflops.optimize.refused import Refused

BUFFERS = 4


@dataclass(eq=False, slots=True)
class DiskBlock:
    """So many bytes. `memory` is where they leave to, or where they stay if they cannot be written."""

    stretch: Stretch
    memory: torch.Tensor | None
    nbytes: int
    stays: bool = False  # in its memory


@dataclass(eq=False, slots=True)
class _Buffer:
    memory: torch.Tensor
    block: DiskBlock | None = None
    work: Future[int] | None = None  # the read into it, or the write from it
    writing: bool = False
    event: Event = None  # of the device's copy from it or into it
    used: int = 0


class DiskBlocks:
    """`full` says why nothing more can leave, once nothing can."""

    def __init__(
        self, device: Device, slab: Slab, buffers: int = BUFFERS, threads: Executor | None = None
    ) -> None:
        self.full: str | None = None
        self.read_bytes = self.written_bytes = self.waited_ns = 0
        self.used_bytes = self.most_used_bytes = 0
        self._device, self._slab, self._many = device, slab, buffers
        self._threads = threads or ThreadPoolExecutor(2, "disk")
        self._buffers: list[_Buffer] = []
        self._ending: list[tuple[Future[int], Stretch]] = []
        self._clock = 0
        weakref.finalize(self, _close, self._threads, slab)

    @property
    def held_bytes(self) -> int:
        """Host memory of the buffers."""
        return sum(each.memory.numel() for each in self._buffers)

    # Leaving.

    def take(self, nbytes: int) -> DiskBlock | None:
        """A place on the disk and a buffer to leave to, or None when there is no room."""
        self._free_ended()
        if self.full is not None:
            return None
        try:
            stretch = self._slab.take(nbytes)
        except Refused as refused:
            self.full = refused.reason
            return None
        buffer = self._buffer(nbytes)
        if self.full is not None:  # what was in the buffer could not be written
            self._slab.give_back(stretch)
            return None
        buffer.block = block = DiskBlock(stretch, buffer.memory[:nbytes], nbytes)
        self.used_bytes += nbytes
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes)
        return block

    def left(self, block: DiskBlock, event: Event) -> None:
        """The device's copy into the block's memory is done with the event; then it is written."""
        buffer = self._holding(block)
        assert buffer is not None
        memory = buffer.memory[: -(-block.nbytes // PAGE) * PAGE]
        device, slab = self._device, self._slab

        def write() -> int:
            device.synchronize(event)
            return slab.write(block.stretch, memory)

        buffer.event, buffer.writing, block.memory = event, True, None
        buffer.work = self._threads.submit(write)

    # Coming back.

    def ask(self, blocks: Iterable[DiskBlock]) -> None:
        """Begins to read these, soonest first, as far as there are buffers that nobody uses."""
        blocks = list(blocks)
        for block in blocks:
            if block.stays or self._holding(block) is not None:
                continue
            free = [each for each in self._buffers if each.block not in blocks and self._is_free(each)]
            if not free or block.nbytes > free[0].memory.numel():
                return
            self._read(min(free, key=lambda each: each.used), block)

    def memory_of(self, block: DiskBlock) -> torch.Tensor:
        """Its bytes in host memory, for a copy to the device that waits for the one that brought them."""
        if block.stays and block.memory is not None:
            return block.memory
        buffer = self._holding(block)
        begun = time.perf_counter_ns()
        if buffer is None:
            buffer = self._buffer(block.nbytes)
            self._read(buffer, block)
        if buffer.work is not None and not buffer.writing:
            work, buffer.work = buffer.work, None
            try:
                self.read_bytes += work.result()
            except BaseException:
                buffer.block = None
                raise
        self.waited_ns += time.perf_counter_ns() - begun
        self._clock += 1
        buffer.used = self._clock
        return buffer.memory[: block.nbytes]

    def came(self, block: DiskBlock, event: Event) -> None:
        """The device's copy from its memory is done with the event."""
        buffer = self._holding(block)
        if buffer is not None:
            buffer.event = event

    def give_back(self, block: DiskBlock, event: Event) -> None:
        """Nobody asks for it again. The last copy from or to its memory is done with the event."""
        self.used_bytes -= block.nbytes
        buffer = self._holding(block)
        if block.stays:
            self._device.synchronize(event)  # its memory is gone with the next line
            block.memory = None
        if buffer is not None:
            buffer.block = None
            if buffer.work is not None:
                self._ending.append((buffer.work, block.stretch))
                return
        self._slab.give_back(block.stretch)

    # Buffers.

    def _holding(self, block: DiskBlock) -> _Buffer | None:
        return next((each for each in self._buffers if each.block is block), None)

    def _is_free(self, buffer: _Buffer) -> bool:
        if buffer.work is not None and (not buffer.work.done() or buffer.work.exception() is not None):
            return False
        return buffer.event is None or self._device.is_done(buffer.event)

    def _buffer(self, nbytes: int) -> _Buffer:
        """The one that was not used for longest, once nothing needs it."""
        self._clock += 1
        room = max([-(-nbytes // PAGE) * PAGE, *(each.memory.numel() for each in self._buffers)])
        if len(self._buffers) < self._many:
            self._buffers.append(_Buffer(self._memory(room), used=self._clock))
            return self._buffers[-1]
        unused = [each for each in self._buffers if each.block is None and self._is_free(each)]
        buffer = min(unused or self._buffers, key=lambda each: each.used)
        begun = time.perf_counter_ns()
        self._finish(buffer)
        if buffer.event is not None:
            self._device.synchronize(buffer.event)
        self.waited_ns += time.perf_counter_ns() - begun
        if buffer.memory.numel() < room:
            buffer.memory = self._memory(room)
        buffer.block, buffer.event, buffer.used = None, None, self._clock
        return buffer

    def _finish(self, buffer: _Buffer) -> None:
        """Waits for what the disk does with it. What cannot be written keeps the memory."""
        work, buffer.work = buffer.work, None
        if work is None:
            return
        try:
            moved = work.result()
        except OSError as error:
            if not buffer.writing or buffer.block is None:
                return  # nobody wants it
            self.full = f"the disk cannot be written to: {os.strerror(error.errno or 0)}"
            buffer.block.stays = True
            buffer.block.memory = buffer.memory[: buffer.block.nbytes]
            buffer.memory = self._memory(buffer.memory.numel())
            return
        if buffer.writing:
            self.written_bytes += moved
        else:
            self.read_bytes += moved

    def _read(self, buffer: _Buffer, block: DiskBlock) -> None:
        self._finish(buffer)
        self._clock += 1
        buffer.block, buffer.event, buffer.writing, buffer.used = block, None, False, self._clock
        memory = buffer.memory[: -(-block.nbytes // PAGE) * PAGE]
        buffer.work = self._threads.submit(self._slab.read, block.stretch, memory)

    def _memory(self, nbytes: int) -> torch.Tensor:
        """That the disk can be read into without the kernel's own copy: at the beginning of a page."""
        memory = self._device.host_memory(nbytes + PAGE)
        return memory[-memory.data_ptr() % PAGE :][:nbytes]

    def _free_ended(self) -> None:
        ended = [pair for pair in self._ending if pair[0].done()]
        if ended:
            self._ending = [pair for pair in self._ending if not pair[0].done()]
            for _, stretch in ended:
                self._slab.give_back(stretch)


def _close(threads: Executor, slab: Slab) -> None:
    threads.shutdown()
    slab.close()
