"""A disk behind host memory: stretches of a file, read and written on threads through buffers in host memory.

The file has no name from the moment that it is open, so nothing is left of it when the process ends, however
it ends. Its room is taken before it is used, so that a full disk is a refusal and no fault in the middle.
A stretch can also be looked at, mapped into memory: the kernel keeps that and what is read and written alike.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from lostflops.optimize.amounts import written
from lostflops.optimize.device.devices import Device, Event
from lostflops.optimize.refused import Refused

PAGE = mmap.ALLOCATIONGRANULARITY
AT_ONCE = 1 << 30  # bytes of one read or write


@dataclass(frozen=True)
class Stretch:
    """Of a file."""

    first: int
    nbytes: int


class Slab:
    """A file without a name in a folder. `take` and `give_back` on one thread, reads and writes on any."""

    def __init__(self, folder: str | os.PathLike[str], direct: bool = False) -> None:
        """`direct`: past the kernel's cache, which counts as this process's memory, where the file system can
        and both memory and length are whole pages. Such a file is not looked at by `view`."""
        self._folder = Path(folder)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise Refused(
                f"no file can be made in {self._folder}: {error.strerror}", "name a folder on a local disk"
            ) from error
        os.set_inheritable(self._file, False)
        self._direct = _opened_directly(self._file) if direct else -1
        self._end = 0
        self._free: list[Stretch] = []

    @property
    def held_bytes(self) -> int:
        return self._end

    def take(self, nbytes: int) -> Stretch:
        """Room on the disk, refused in words where there is none."""
        room = -(-nbytes // PAGE) * PAGE
        fitting = [each for each in self._free if each.nbytes >= room]
        if fitting:
            found = min(fitting, key=lambda each: each.nbytes)
            self._free.remove(found)
            return found
        try:
            os.posix_fallocate(self._file, self._end, room)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            left = written(shutil.disk_usage(self._folder).free)
            raise Refused(
                f"{written(room)} more do not fit on the disk at {self._folder}, which has {left} left "
                f"({os.strerror(error.errno)})",
                "name a folder on a larger disk, or allow more host memory",
            ) from error
        self._end += room
        return Stretch(self._end - room, room)

    def give_back(self, stretch: Stretch) -> None:
        self._free.append(stretch)

    def view(self, stretch: Stretch, nbytes: int) -> torch.Tensor:
        """uint8[nbytes], mapped: reading it reads the disk, and writing to it writes to the disk."""
        mapped = mmap.mmap(self._file, stretch.nbytes, offset=stretch.first)
        return torch.frombuffer(mapped, dtype=torch.uint8)[:nbytes]

    def read(self, stretch: Stretch, memory: torch.Tensor) -> int:
        self._each(stretch, memory, os.preadv)
        return memory.numel()

    def write(self, stretch: Stretch, memory: torch.Tensor) -> int:
        self._each(stretch, memory, os.pwritev)
        return memory.numel()

    def close(self) -> None:
        for file in (self._file, self._direct):
            if file >= 0:
                os.close(file)
        self._file = self._direct = -1

    def _each(self, stretch: Stretch, memory: torch.Tensor, move: Callable[[int, Any, int], int]) -> None:
        room, done = memoryview(cast("Any", memory.numpy())), 0
        whole = self._direct >= 0 and not (memory.data_ptr() % PAGE or len(room) % PAGE)
        while done < len(room):
            file = self._direct if whole and not done % PAGE else self._file
            moved = move(file, [room[done : done + AT_ONCE]], stretch.first + done)
            if moved <= 0:
                raise OSError(errno.EIO, f"the file in {self._folder} ends before its end")
            done += moved


def _opened_directly(file: int) -> int:
    """The same file once more; -1 where the file system does not read and write past the cache."""
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return -1


@dataclass(eq=False)
class DiskBuffer:
    """Host memory on the way from or to the disk."""

    memory: torch.Tensor
    holds: Stretch | None = None
    work: Future[int] | None = None  # the read into it, or the write from it
    event: Event = None  # of the device's copy from it


class Staging:
    """Host memory through which stretches pass: `reading` buffers one way, as many the other."""

    def __init__(self, device: Device, slab: Slab, buffers: int, threads: Executor | None = None) -> None:
        self._device, self.slab, self._many = device, slab, buffers
        self._threads = threads or ThreadPoolExecutor(2, "disk")
        self._reading: list[DiskBuffer] = []
        self._writing: list[DiskBuffer] = []
        self.read_bytes = self.written_bytes = 0

    @property
    def held_bytes(self) -> int:
        return sum(each.memory.numel() for each in (*self._reading, *self._writing))

    def fit(self, nbytes: int) -> None:
        """Buffers for stretches of so many bytes. Nothing is on its way."""
        if not self._reading or self._reading[0].memory.numel() < nbytes:
            self._reading, self._writing = [], []
            for buffers in (self._reading, self._writing):
                buffers += [DiskBuffer(self._device.host_memory(nbytes)) for _ in range(self._many)]

    def ask(self, stretches: Sequence[tuple[Stretch, int]]) -> None:
        """Begins to read these, soonest first, as far as there are buffers."""
        wanted = [stretch for stretch, _ in stretches]
        for stretch, nbytes in stretches:
            if any(each.holds == stretch for each in self._reading):
                continue
            free = [each for each in self._reading if each.holds not in wanted and self._is_sent(each)]
            if not free:
                return
            self._read(free[0], stretch, nbytes)

    def source(self, stretch: Stretch, nbytes: int) -> torch.Tensor:
        """Its bytes. Waits for them."""
        buffer = next((each for each in self._reading if each.holds == stretch), None)
        if buffer is None:
            free = [each for each in self._reading if self._is_sent(each)]
            buffer = free[0] if free else self._reading[0]
            self._sent(buffer)
            self._read(buffer, stretch, nbytes)
        if buffer.work is not None:
            self.read_bytes += buffer.work.result()
            buffer.work = None
        return buffer.memory[:nbytes]

    def sent(self, stretch: Stretch, event: Event) -> None:
        """The device's copy from `source` is done with the event; what it read is not kept."""
        for buffer in self._reading:
            if buffer.holds == stretch:
                buffer.event, buffer.holds = event, None

    def target(self, nbytes: int) -> DiskBuffer:
        """For a copy from the device. Waits for the write of what was in it."""
        self._writing.append(self._writing.pop(0))
        buffer = self._writing[-1]
        self._finish(buffer)
        return buffer

    def received(self, buffer: DiskBuffer, stretch: Stretch, nbytes: int, event: Event) -> None:
        """The device's copy into it is done with the event; then it is written to the disk."""

        def write() -> int:
            self._device.synchronize(event)
            return self.slab.write(stretch, buffer.memory[:nbytes])

        buffer.work = self._threads.submit(write)

    def finish(self) -> None:
        """Waits for everything; what was read ahead and not used is forgotten."""
        for buffer in self._reading:
            if buffer.work is not None:
                self.read_bytes += buffer.work.result()
            self._sent(buffer)
            buffer.work = buffer.holds = None
        for buffer in self._writing:
            self._finish(buffer)

    def close(self) -> None:
        self.finish()
        self._threads.shutdown()
        self._reading, self._writing = [], []
        self.slab.close()

    def _read(self, buffer: DiskBuffer, stretch: Stretch, nbytes: int) -> None:
        buffer.holds, buffer.event = stretch, None
        buffer.work = self._threads.submit(self.slab.read, stretch, buffer.memory[:nbytes])

    def _is_sent(self, buffer: DiskBuffer) -> bool:
        return buffer.holds is None and (buffer.event is None or self._device.is_done(buffer.event))

    def _sent(self, buffer: DiskBuffer) -> None:
        if buffer.event is not None:
            self._device.synchronize(buffer.event)
        buffer.event = None

    def _finish(self, buffer: DiskBuffer) -> None:
        work, buffer.work = buffer.work, None
        if work is not None:
            self.written_bytes += work.result()
