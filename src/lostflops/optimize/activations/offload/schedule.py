"""When each storage travels to the host and back, and what waits for what. Knows nothing of autograd.

Where a storage is, and what may happen to it there, is the table `NEXT`. Two streams copy, one each way; the
compute stream is the one that is current where the verb is called.

What waits for what:

send      the copy waits for the compute stream as of now, and for whoever reads its host memory; where that
          is full it goes to a buffer of the disk's, which the host has waited for
settle    the source is let go when its copy is done, or when the compute stream waits for the copy; the
          stream that its memory goes back to waits for the compute stream as of then
fetch     the destination is allocated on the compute stream; its copy waits for that stream as of now, as the
          block's former owner may still be writing, and for the copy out
hand_out  the compute stream waits for the copy in
drop      host memory goes back with the event after which it may be written

Every wait of the compute stream that found its copy unfinished is a stall, timed by an event on either side.
One thread at a time: whoever uses it has a lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Literal

import torch

from lostflops.optimize.device.disk_blocks import DiskBlock
from lostflops.optimize.device.peak import address_of

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.memory.arena import Arena, HostBlock
    from lostflops.optimize.device.devices import Device, Event, Stream
    from lostflops.optimize.device.disk_blocks import DiskBlocks

READ_AHEAD = 2  # blocks of a disk

Direction = Literal["out", "in"]
Cause = Literal["copy-out behind", "copy-in late", "order missed"]
DIRECTION_OF: dict[Cause, Direction] = {"copy-out behind": "out", "copy-in late": "in", "order missed": "in"}


class StorageState(StrEnum):
    RESIDENT = "resident"  # on the device, where it was saved
    COPYING_OUT = "copying out"
    HOST = "host"
    COPYING_IN = "copying in"
    READY = "ready"  # on the device again
    KEPT = "kept"  # never moves
    RELEASED = "released"  # nobody can ask for it again


# What may happen to a storage, and where it is then. What is not in the table cannot happen there.
NEXT: dict[str, dict[StorageState, StorageState]] = {
    "kept": {StorageState.RESIDENT: StorageState.KEPT},
    "sent": {StorageState.RESIDENT: StorageState.COPYING_OUT},
    # Its copy is done, or waited for by the compute stream.
    "left": {StorageState.COPYING_OUT: StorageState.HOST},
    # Asked for before it has left: it stays while others will ask for it, and leaves when all have it.
    "stopped": {StorageState.COPYING_OUT: StorageState.RESIDENT},
    "leaves after all": {StorageState.RESIDENT: StorageState.COPYING_OUT},
    "left after all": {StorageState.RESIDENT: StorageState.HOST},
    "fetched": {StorageState.HOST: StorageState.COPYING_IN},
    "handed out": {StorageState.COPYING_IN: StorageState.READY, StorageState.READY: StorageState.READY},
    "all have it": {StorageState.COPYING_IN: StorageState.HOST, StorageState.READY: StorageState.HOST},
    "released": {
        StorageState.RESIDENT: StorageState.RELEASED,
        StorageState.KEPT: StorageState.RELEASED,
        StorageState.COPYING_OUT: StorageState.RELEASED,
        StorageState.HOST: StorageState.RELEASED,
    },
}
_KEPT, _SENT, _LEFT, _STOPPED = NEXT["kept"], NEXT["sent"], NEXT["left"], NEXT["stopped"]
_LEAVES_AFTER_ALL, _LEFT_AFTER_ALL = NEXT["leaves after all"], NEXT["left after all"]
_FETCHED, _HANDED_OUT = NEXT["fetched"], NEXT["handed out"]
_ALL_HAVE_IT, _RELEASED = NEXT["all have it"], NEXT["released"]


@dataclass(eq=False, slots=True)
class Entry:
    """One storage, or the part of one that was saved, as bytes."""

    source: torch.Tensor | None  # uint8[nbytes] on the device, while it is there
    nbytes: int
    stream: Stream  # compute stream at the save: most likely the one that the source was allocated on
    number: int = 0  # in the order of saving, from 0 in each microbatch
    state: StorageState = StorageState.RESIDENT
    reason: str | None = None  # why it is kept
    block: HostBlock | DiskBlock | None = None
    out_done: Event = None
    destination: torch.Tensor | None = None
    destination_stream: Stream = None
    in_done: Event = None
    sent: bool = False  # a copy out was queued, ever
    leaving: bool = False  # its source is held until that copy is done
    handles: int = 0  # that may still be unpacked
    waiting: int = 0  # of those, the ones not unpacked in this round
    round: int = 0  # of unpacking; retain_graph makes several
    prefetched: bool = False
    copy_number: int = 0  # of its latest copy, in the order of queuing


@dataclass(eq=False, slots=True)
class Handle:
    """Somebody who may ask for an entry."""

    entry: Entry
    seen: int = -1  # the round in which it was last unpacked


@dataclass(eq=False, slots=True)
class Copy:
    direction: Direction
    nbytes: int
    start: Event
    end: Event


@dataclass(eq=False, slots=True)
class Stall:
    cause: Cause
    start: Event
    end: Event


@dataclass
class ScheduleLimits:
    in_flight_bytes: int | None = None  # sources held by copies out; None: as many as there are
    look_ahead_bytes: int = 0  # fetched and not yet asked for; one is always allowed
    look_ahead_ns: int | None = None  # by the compute time between the askings, where that is known


@dataclass
class Microbatch:
    """The entries of one forward, and the order in which its backward is expected to ask for them."""

    entries: list[Entry] = field(default_factory=list[Entry])
    expected: int | None = None  # how many entries there are, if `order` is to be used
    order: list[int] = field(
        default_factory=list[int]
    )  # numbers of entries; else the reverse of their saving
    due_ns: list[int] | None = None  # by place in the order: when it was asked for, in compute time
    cursor: int = 0  # next place in the order to fetch
    place: dict[int, int] | None = None  # of each number in the order
    on_disk_bytes: int = 0
    backwards: int = 0  # through this graph so far
    backward: int = -1  # autograd's number of the latest


class CopySchedule:
    def __init__(
        self,
        device: Device,
        arena: Arena,
        limits: ScheduleLimits | None = None,
        disk: DiskBlocks | None = None,
    ) -> None:
        self.device = device
        self.arena = arena
        self.disk = disk
        self.to_disk_bytes = 0  # of what a microbatch sends; what is saved first is asked for last
        self.limits = limits or ScheduleLimits()
        self.copies: list[Copy] = []
        self.stalls: list[Stall] = []
        self.missed = 0  # asked for before it was fetched
        self.resident_bytes = 0  # that entries hold on the device
        self.most_resident_bytes = 0
        self._copies = 0
        self._out = device.new_stream()
        self._in = device.new_stream()
        self._leaving: deque[Entry] = deque()  # sent, the source still held
        self.leaving_bytes = 0
        self._ahead_bytes = 0  # fetched and not yet asked for

    # Forward.

    def admit(self, microbatch: Microbatch, source: torch.Tensor) -> Entry:
        entry = Entry(source, source.numel(), self.device.current_stream(), len(microbatch.entries))
        microbatch.entries.append(entry)
        self._resident(entry.nbytes)
        return entry

    def stays(self, microbatch: Microbatch, source: torch.Tensor, nbytes: int, reason: str) -> Entry:
        """Admits an entry that is known to be kept, asked for by one who has the source. It takes its number,
        as those that move go by theirs."""
        entry = Entry(source, nbytes, None, len(microbatch.entries), StorageState.KEPT, reason)
        entry.handles = 1
        microbatch.entries.append(entry)
        self.resident_bytes += nbytes
        if self.resident_bytes > self.most_resident_bytes:
            self.most_resident_bytes = self.resident_bytes
        return entry

    def keep(self, entry: Entry, reason: str) -> None:
        entry.state = _KEPT[entry.state]
        entry.reason = reason

    def send(self, entry: Entry, microbatch: Microbatch | None = None) -> bool:
        """Queues the copy out of a resident entry. False, and it is kept, when nothing has room for it."""
        assert entry.state is StorageState.RESIDENT and entry.source is not None
        if entry.source.untyped_storage().nbytes() < entry.nbytes:
            self.keep(entry, "resized since")
            return False
        block = self._room(microbatch or Microbatch(), entry.nbytes)
        if block is None:
            self.keep(entry, "host memory full" if self.disk is None else "host memory and disk full")
            return False
        ready = self.device.record(entry.stream)
        self.device.wait(self._out, ready)
        if not isinstance(block, DiskBlock):
            for event in block.after:
                self.device.wait(self._out, event)
        start = self.device.record(self._out)
        assert block.memory is not None
        self.device.copy(block.memory, entry.source, self._out)
        entry.out_done = self.device.record(self._out)
        if isinstance(block, DiskBlock):
            assert self.disk is not None
            self.disk.left(block, entry.out_done)
        self._copies += 1
        entry.copy_number = self._copies
        entry.block = block
        entry.state = _SENT[entry.state]
        entry.sent = True
        self.copies.append(Copy("out", entry.nbytes, start, entry.out_done))
        entry.leaving = True
        self._leaving.append(entry)
        self.leaving_bytes += entry.nbytes
        self.settle()
        return True

    def _room(self, microbatch: Microbatch, nbytes: int) -> HostBlock | DiskBlock | None:
        disk = self.disk
        block = None
        if disk is None or microbatch.on_disk_bytes >= self.to_disk_bytes:
            block = self.arena.take(nbytes)
        if block is None and disk is not None:
            block = disk.take(nbytes)
            if block is not None:
                microbatch.on_disk_bytes += nbytes
            elif microbatch.on_disk_bytes < self.to_disk_bytes:  # the disk is full, the host was not asked
                block = self.arena.take(nbytes)
        return block

    def settle(self) -> None:
        """Lets go of sources whose copies are done, and of more when too many bytes are under way."""
        cap = self.limits.in_flight_bytes
        while self._leaving:
            entry = self._leaving[0]
            if not self.device.is_done(entry.out_done):
                # The newest always may be under way, else nothing would overlap.
                if cap is None or self.leaving_bytes <= cap or len(self._leaving) == 1:
                    return
                self._wait(entry.stream, entry.out_done, "copy-out behind")
            self._leaving.popleft()
            entry.leaving = False
            self.leaving_bytes -= entry.nbytes
            if entry.state is StorageState.COPYING_OUT:
                entry.state = _LEFT[entry.state]
            if entry.state is StorageState.HOST or entry.state is StorageState.RELEASED:
                self._let_source_go(entry)

    def before_resize(self, storage: torch.UntypedStorage) -> None:
        """What is queued from now on, and whoever gets its memory, comes after the copies of it."""
        for entry in self._leaving:
            if entry.source is not None and address_of(entry.source.untyped_storage()) == address_of(storage):
                for stream in (entry.stream, self.device.current_stream()):
                    self.device.wait(stream, entry.out_done)

    def _let_source_go(self, entry: Entry) -> None:
        if entry.source is not None:
            # Autograd would have held it until the backward. Given up now, it goes back to the stream that it
            # was allocated on, which may know nothing of what the one that saved it still does with it.
            if entry.sent:
                self.device.before_reuse(entry.source, entry.stream)
            entry.source = None
            self.resident_bytes -= entry.nbytes

    # Backward.

    def hand_out(self, microbatch: Microbatch, handle: Handle, backward: int = 0) -> torch.Tensor:
        """The bytes on the device, for work that is queued on the current stream from now on.

        `backward` is a number that grows from one backward to the next."""
        entry = handle.entry
        stream = self.device.current_stream()
        self._begin(microbatch, backward)
        bytes_ = self._present(entry, stream)
        if handle.seen != entry.round:
            handle.seen = entry.round
            entry.waiting -= 1
            if entry.waiting == 0:
                self._end_round(entry)
        self.settle()
        self._fetch_ahead(microbatch, entry)
        return bytes_

    def passes(self, microbatch: Microbatch, entry: Entry, backward: int) -> None:
        """The backward is at an entry that is kept: what comes after it is fetched ahead."""
        if backward > microbatch.backward or microbatch.place is None:
            self._begin(microbatch, backward)
        if self._leaving:
            self.settle()
        self._fetch_ahead(microbatch, entry)

    def _present(self, entry: Entry, stream: Stream) -> torch.Tensor:
        if entry.source is not None:
            if entry.state is StorageState.COPYING_OUT:
                entry.state = _STOPPED[entry.state]
            return entry.source
        if entry.destination is None or entry.destination_stream != stream:
            # A block of another stream's pool may be given away while this stream still reads it.
            self.missed += 1
            self._forget_destination(entry)
            self._fetch(entry)
            self._wait(stream, entry.in_done, "order missed")
        else:
            self._wait(stream, entry.in_done, "copy-in late")
        self._count_as_asked_for(entry)
        entry.state = _HANDED_OUT[entry.state]
        assert entry.destination is not None
        return entry.destination

    def _begin(self, microbatch: Microbatch, backward: int) -> None:
        if backward > microbatch.backward:
            microbatch.backward = backward
            microbatch.backwards += 1
            microbatch.cursor = 0
        if microbatch.place is None:
            if microbatch.expected != len(microbatch.entries):
                microbatch.order = list(reversed(range(len(microbatch.entries))))
                microbatch.due_ns = None
            microbatch.place = {number: place for place, number in enumerate(microbatch.order)}

    def _fetch_ahead(self, microbatch: Microbatch, entry: Entry) -> None:
        order, places = microbatch.order, microbatch.place
        assert places is not None
        here = places.get(entry.number)
        if here is None:  # saved after the backward began, or not expected to be asked for
            return None
        if microbatch.due_ns is not None:  # what is due before this one is not expected any more
            microbatch.cursor = max(microbatch.cursor, here + 1)
        due, limits = microbatch.due_ns, self.limits
        # The next chance to fetch is when the next one is asked for: what would be late then is fetched now.
        next_ns = due[min(here + 1, len(due) - 1)] if due else 0
        while microbatch.cursor < len(order):
            entry = microbatch.entries[order[microbatch.cursor]]
            wanted = entry.handles and entry.round < microbatch.backwards
            if wanted and entry.state is StorageState.COPYING_OUT:
                entry.state = _STOPPED[entry.state]
            elif wanted and entry.state is StorageState.HOST:
                if self._ahead_bytes:
                    if self._ahead_bytes + entry.nbytes > limits.look_ahead_bytes:
                        return self._read_ahead(microbatch)
                    far = limits.look_ahead_ns
                    if due and far is not None and due[microbatch.cursor] - next_ns > far:
                        return self._read_ahead(microbatch)
                self._fetch(entry)
                entry.prefetched = True
                self._ahead_bytes += entry.nbytes
            microbatch.cursor += 1
        return None

    def _read_ahead(self, microbatch: Microbatch) -> None:
        """What the disk has of the entries that will be fetched next."""
        if self.disk is not None and microbatch.on_disk_bytes:
            following = (microbatch.entries[number] for number in microbatch.order[microbatch.cursor :])
            blocks = (e.block for e in following if e.state is StorageState.HOST and e.handles)
            on_disk = (block for block in blocks if isinstance(block, DiskBlock))
            self.disk.ask(islice(on_disk, READ_AHEAD))

    def _fetch(self, entry: Entry) -> None:
        block, disk = entry.block, self.disk
        assert block is not None
        source = block.memory
        if isinstance(block, DiskBlock) and disk is not None:
            source = disk.memory_of(block)
        assert source is not None
        stream = self.device.current_stream()
        entry.destination = self.device.allocate(entry.nbytes)
        entry.destination_stream = stream
        self.device.wait(self._in, self.device.record(stream))
        self.device.wait(self._in, entry.out_done)
        start = self.device.record(self._in)
        self.device.copy(entry.destination, source, self._in)
        entry.in_done = self.device.record(self._in)
        if isinstance(block, DiskBlock) and disk is not None:
            disk.came(block, entry.in_done)
        self._copies += 1
        entry.copy_number = self._copies
        entry.state = _FETCHED[entry.state]
        self._resident(entry.nbytes)
        self.copies.append(Copy("in", entry.nbytes, start, entry.in_done))

    def _wait(self, stream: Stream, event: Event, cause: Cause) -> None:
        if self.device.is_done(event):
            self.device.wait(stream, event)  # orders the streams, costs nothing
            return
        start = self.device.record(stream)
        self.device.wait(stream, event)
        self.stalls.append(Stall(cause, start, self.device.record(stream)))

    def _count_as_asked_for(self, entry: Entry) -> None:
        if entry.prefetched:
            entry.prefetched = False
            self._ahead_bytes -= entry.nbytes

    # Afterwards.

    def add_handle(self, entry: Entry) -> Handle:
        entry.handles += 1
        entry.waiting += 1
        return Handle(entry)

    def drop(self, handle: Handle) -> None:
        """Nobody can unpack the handle any more."""
        entry = handle.entry
        entry.handles -= 1
        if handle.seen != entry.round:
            entry.waiting -= 1
        if entry.handles == 0:
            self._release(entry)
        elif entry.waiting == 0:
            self._end_round(entry)

    def drop_kept(self, entry: Entry) -> None:
        """One of those who could ask for an entry that is kept is gone."""
        entry.handles -= 1
        if not entry.handles:
            entry.state = _RELEASED[entry.state]
            entry.source = None
            self.resident_bytes -= entry.nbytes

    def _end_round(self, entry: Entry) -> None:
        """All have it: what was handed out lives as long as they hold it, and the host has it still."""
        entry.round += 1
        entry.waiting = entry.handles
        if entry.destination is not None:
            self._forget_destination(entry)
        if entry.sent and entry.source is not None and entry.state is StorageState.RESIDENT:
            if entry.leaving:
                entry.state = _LEAVES_AFTER_ALL[entry.state]
            else:
                self._let_source_go(entry)
                entry.state = _LEFT_AFTER_ALL[entry.state]

    def _forget_destination(self, entry: Entry) -> None:
        if entry.destination is None:
            return
        if (
            entry.state is StorageState.COPYING_IN
        ):  # its memory goes back to a stream that has not waited for the copy
            self.device.wait(entry.destination_stream, entry.in_done)
        self._count_as_asked_for(entry)
        entry.destination = None
        entry.state = _ALL_HAVE_IT[entry.state]
        self.resident_bytes -= entry.nbytes

    def _release(self, entry: Entry) -> None:
        self._forget_destination(entry)
        if isinstance(entry.block, DiskBlock):
            assert self.disk is not None
            self.disk.give_back(entry.block, entry.in_done if entry.in_done is not None else entry.out_done)
            entry.block = None
        elif entry.block is not None:
            # Copies out of the next owner are queued behind ours; only reloads are on another stream.
            if entry.in_done is not None:
                self.arena.give_back(entry.block, entry.in_done, self._in, entry.copy_number)
            else:
                self.arena.give_back(entry.block, entry.out_done, self._out, entry.copy_number)
            entry.block = None
        entry.state = _RELEASED[entry.state]
        if not entry.leaving:
            self._let_source_go(entry)

    def _resident(self, nbytes: int) -> None:
        self.resident_bytes += nbytes
        self.most_resident_bytes = max(self.most_resident_bytes, self.resident_bytes)

    def finish(self) -> None:
        """The host waits for all copies."""
        for stream in (self._out, self._in):
            self.device.synchronize(self.device.record(stream))
        self.settle()
