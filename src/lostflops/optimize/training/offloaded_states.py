"""An optimizer's states in host memory, in chunks that travel in one copy, and the slots that they step in.

The rules. A chunk is copied into a slot on the stream *in*, which waits until what the slot held before is
copied out; the compute stream waits for that copy, steps the chunk's parameters, and the stream *out*, which
waits for the compute stream, copies it back. So one chunk is computed while the next comes and the one before
goes. At the end of a step the host waits for the last copy: whoever reads a state between two steps, by
`state_dict()` or from `optimizer.state`, reads host memory that nobody writes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostflops.optimize.amounts import written
from lostflops.optimize.device import host_share
from lostflops.optimize.device.devices import Device, Event
from lostflops.optimize.device.disk import Staging, Stretch
from lostflops.optimize.device.peak import address_of, is_host_memory, storages_of
from lostflops.optimize.memory_layout import aligned, dense, parts_of, view_of
from lostflops.optimize.refused import Refused
from lostflops.optimize.subclasses import apart

Parts = Iterator[torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Of a plain tensor, in its chunk's memory."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        return view_of(memory, self.offset, self.dtype, self.shape, self.stride)

    def apart_in(self, memory: torch.Tensor) -> torch.Tensor:
        """The same bytes, as a storage of their own: `torch.save` writes the whole of a storage, and none
        that is seen as several dtypes."""
        first = int(memory.storage_offset()) + self.offset
        part: Any = cast("Any", memory.untyped_storage())[first : first + self.nbytes]
        found = cast("Any", torch.empty(0, dtype=self.dtype)).set_(part, 0, self.shape, self.stride)
        is_host_memory(found)
        return found


@dataclass(eq=False)
class OptimizerState:
    """One state of one parameter, such as Adam's `exp_avg`; a DTensor is made of its local tensor."""

    parameter: torch.Tensor
    key: Any
    places: list[Place]
    make: Callable[[Parts], torch.Tensor]
    on_host: torch.Tensor | None = None
    on_device: torch.Tensor | None = None  # while it steps

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        return self.make(place.seen_in(memory) for place in self.places)

    def like(self, value: torch.Tensor) -> bool:
        """Whether the value fits where this one lies."""
        parts = [part for _, part in parts_of(value)]
        return len(parts) == len(self.places) and all(
            (part.dtype, tuple(part.shape)) == (place.dtype, place.shape)
            for part, place in zip(parts, self.places, strict=True)
        )


@dataclass(eq=False)
class Chunk:
    """Parameters that step together, and those of their states that travel."""

    parameters: list[torch.Tensor]
    states: list[OptimizerState] = field(default_factory=list[OptimizerState])
    memory: torch.Tensor | None = None  # the host's, or a view of the disk's
    stretch: Stretch | None = None  # of the disk
    slot: ChunkSlot | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.memory is None else self.memory.numel()


@dataclass(eq=False)
class ChunkSlot:
    """Memory on the device for one chunk at a time, during a step."""

    memory: torch.Tensor
    started: Event = None
    ready: Event = None
    free: Event = None  # what it held is copied out


@dataclass
class Copies:
    """In nanoseconds, bytes and numbers; in one direction."""

    copies: int = 0
    bytes: int = 0
    copying: int = 0
    waited: int = 0


class OffloadedStates:
    """Moves the states of `optimizer`, those of at least `least` bytes, through as many slots."""

    def __init__(
        self,
        optimizer: Any,
        device: Device,
        chunk_bytes: int,
        least: int,
        slots: int,
        host: int | None = None,
        disk: Staging | None = None,
    ) -> None:
        self._host, self.disk = host, disk
        self._optimizer, self._device = optimizer, device
        self._chunk_bytes, self.least, self.slots = chunk_bytes, least, slots
        self._in, self._out = device.new_stream(), device.new_stream()
        self.chunks: list[Chunk] = []
        self._chunk_of: dict[int, Chunk] = {}  # by the parameter's id
        self.into, self.out = Copies(), Copies()
        self._open: list[tuple[Event, Event, Event, Event]] = []  # of copies in, and of waits for them
        self._outgoing: list[tuple[Event, Event]] = []
        self.no_memory: str | None = None  # why states stay that could travel

    @property
    def slot_bytes(self) -> int:
        return max((chunk.nbytes for chunk in self.chunks), default=0)

    # Between steps.

    def know(self, parameters: Iterable[torch.Tensor], bytes_per_element: int = 8) -> None:
        """Divides those that are new into chunks, by what Adam would keep of them."""
        size, new = 0, [each for each in parameters if id(each) not in self._chunk_of]
        for number, parameter in enumerate(new):
            nbytes = bytes_per_element * sum(part.numel() for _, part in parts_of(parameter))
            if not number or size + nbytes > self._chunk_bytes:
                self.chunks.append(Chunk([]))
                size = 0
            size += nbytes
            self.chunks[-1].parameters.append(parameter)
            self._chunk_of[id(parameter)] = self.chunks[-1]

    def adopt(self) -> None:
        """States that are on the device go to host memory."""
        for chunk in self.chunks:
            self._settle(chunk)

    def reload(self, given: dict[int, dict[Any, torch.Tensor]]) -> None:
        """Other states have taken the place of all: those of `given`, by id, were kept from the device."""
        for chunk in self.chunks:
            self._let_go(chunk)
            for parameter in chunk.parameters:
                for key, value in given.get(id(parameter), {}).items():
                    dense_parts = all(dense(part) for _, part in parts_of(value))
                    self._optimizer.state[parameter][key] = value if dense_parts else value.contiguous()
            self._settle(chunk)

    def release(self) -> None:
        """States that travel are on the device again."""
        for chunk in self.chunks:
            for state in chunk.states:
                if self._value(state) is not state.on_host:  # somebody removed it, or gave it another value
                    continue
                memory = cast("torch.Tensor", chunk.memory)
                back = (
                    place.seen_in(memory).to(self._device.torch_device, copy=True) for place in state.places
                )
                self._put(state, state.make(back))
            self._let_go(chunk)
        self._device.synchronize(self._device.record(self._device.current_stream()))

    def kept(self) -> dict[str, int]:
        """Bytes of states that stay on the device, by reason."""
        found: Counter[str] = Counter()
        travels = {(id(state.parameter), state.key) for chunk in self.chunks for state in chunk.states}
        shared = self._shared()
        for parameter, values in self._optimizer.state.items():
            for key, value in _tensors(values):
                if (id(parameter), key) not in travels:
                    if value.layout == torch.strided:
                        nbytes = sum(part.nbytes for _, part in parts_of(value))
                    else:
                        nbytes = sum(storage.nbytes() for storage in storages_of(value))
                    reason = self._why_it_stays(value, shared) or self.no_memory or "not stepped yet"
                    found[reason] += nbytes
        return dict(found)

    # The step.

    def step(self, chunks: Sequence[Chunk], run: Callable[[Chunk], None]) -> None:
        """`run` for each of the chunks in turn, its states on the device."""
        device = self._device
        for chunk in chunks:
            if any(self._value(state) is not state.on_host for state in chunk.states):
                self._settle(chunk)  # somebody gave a state another value
        travelling = [chunk for chunk in chunks if chunk.memory is not None]
        largest = max((chunk.nbytes for chunk in travelling), default=0)
        on_disk = [(chunk.stretch, chunk.nbytes) for chunk in travelling if chunk.stretch is not None]
        if self.disk is not None and on_disk:
            self.disk.fit(max(nbytes for _, nbytes in on_disk))
            self.disk.ask(on_disk)
        number = min(self.slots, len(travelling))
        slots = [ChunkSlot(device.allocate(largest)) for _ in range(number)]
        # The memory may be in use still by what the compute stream did with it before.
        device.wait(self._in, device.record(device.current_stream()))
        fetched, used = 0, 0
        try:
            for chunk in chunks:
                if chunk.memory is not None:
                    while fetched < min(len(travelling), used + number):
                        self._fetch(travelling[fetched], slots[fetched % number])
                        if travelling[fetched].stretch is not None and self.disk is not None:
                            on_disk = on_disk[1:]
                            self.disk.ask(on_disk)
                        fetched += 1
                    self._use(chunk)
                    used += 1
                try:
                    run(chunk)
                finally:
                    self._settle(chunk)
        finally:
            self._end(slots, travelling[used:fetched])

    def _fetch(self, chunk: Chunk, slot: ChunkSlot) -> None:
        device, memory = self._device, cast("torch.Tensor", chunk.memory)
        if chunk.stretch is not None:
            memory = cast("Staging", self.disk).source(chunk.stretch, chunk.nbytes)
        if slot.free is not None:
            device.wait(self._in, slot.free)
        slot.started = device.record(self._in)
        device.copy(slot.memory[: chunk.nbytes], memory, self._in)
        slot.ready = device.record(self._in)
        if chunk.stretch is not None:
            cast("Staging", self.disk).sent(chunk.stretch, slot.ready)
        chunk.slot = slot
        self.into.copies += 1
        self.into.bytes += chunk.nbytes

    def _use(self, chunk: Chunk) -> None:
        device, slot = self._device, cast("ChunkSlot", chunk.slot)
        stream = device.current_stream()
        before = device.record(stream)
        device.wait(stream, slot.ready)
        self._open.append((slot.started, slot.ready, before, device.record(stream)))
        for state in chunk.states:
            state.on_device = state.seen_in(slot.memory)
            self._put(state, state.on_device)

    def _settle(self, chunk: Chunk) -> None:
        """What the step left goes to host memory: states that came, in one copy, and those that are new."""
        known = {(id(state.parameter), state.key): state for state in chunk.states}
        stays: list[OptimizerState] = []
        new: list[tuple[torch.Tensor, Any, torch.Tensor]] = []
        for parameter in chunk.parameters:
            for key, value in _tensors(self._optimizer.state.get(parameter)):
                state = known.get((id(parameter), key))
                if state is None:
                    new.append((parameter, key, value))
                elif value is state.on_device or value is state.on_host:
                    stays.append(state)
                elif state.on_device is not None and state.like(value):  # bound anew
                    with torch.no_grad():
                        for (_, to), (_, part) in zip(
                            parts_of(state.on_device), parts_of(value), strict=True
                        ):
                            to.copy_(part)
                    stays.append(state)
                else:
                    new.append((parameter, key, value))
        if new:
            shared = self._shared()
            new = [one for one in new if self._why_it_stays(one[2], shared) is None]
        if new or len(stays) < len(chunk.states):
            self._lay_out(chunk, stays, new)
        elif chunk.slot is not None:
            self._send(chunk)
        for state in chunk.states:
            state.on_device = None
            self._put(state, cast("torch.Tensor", state.on_host))
        chunk.slot = None

    def _send(self, chunk: Chunk) -> None:
        device, slot, buffer = self._device, cast("ChunkSlot", chunk.slot), None
        target = cast("torch.Tensor", chunk.memory)
        if chunk.stretch is not None:
            buffer = cast("Staging", self.disk).target(chunk.nbytes)
            target = buffer.memory[: chunk.nbytes]
        device.wait(self._out, device.record(device.current_stream()))
        begun = device.record(self._out)
        device.copy(target, slot.memory[: chunk.nbytes], self._out)
        slot.free = device.record(self._out)
        if chunk.stretch is not None and buffer is not None:
            cast("Staging", self.disk).received(buffer, chunk.stretch, chunk.nbytes, slot.free)
        self._outgoing.append((begun, slot.free))
        self.out.copies += 1
        self.out.bytes += chunk.nbytes

    def _lay_out(
        self, chunk: Chunk, stays: list[OptimizerState], new: list[tuple[torch.Tensor, Any, torch.Tensor]]
    ) -> None:
        """Other host memory for the chunk, with what is new in it. The host waits: this is rare."""
        device = self._device
        states: list[OptimizerState] = []
        sources: list[torch.Tensor] = []
        end = 0
        for parameter, key, value in [
            *((each.parameter, each.key, each.on_device if each.on_device is not None else each.on_host)
              for each in stays),
            *new,
        ]:  # fmt: skip
            places: list[Place] = []
            for _, part in parts_of(cast("torch.Tensor", value)):
                places.append(Place(end, part.nbytes, part.dtype, tuple(part.shape), part.stride()))
                end = aligned(end + part.nbytes)
                sources.append(part)
            states.append(OptimizerState(parameter, key, places, maker(cast("torch.Tensor", value))))
        if chunk.stretch is not None:
            cast("Staging", self.disk).finish()  # its bytes may be on their way
        try:
            memory, stretch = self._memory(chunk, end)
        except Refused as refused:
            self.no_memory = refused.reason.split("\n")[0]
            self._give_up(chunk, stays)
            return
        device.wait(self._out, device.record(device.current_stream()))
        for place, source in zip((p for state in states for p in state.places), sources, strict=True):
            there = memory[place.offset : place.offset + place.nbytes]
            if source.device == device.torch_device:
                device.copy(there, _bytes_of(source), self._out)
            else:
                there.copy_(_bytes_of(source))
        copied = device.record(self._out)
        device.synchronize(copied)
        if chunk.slot is not None:
            chunk.slot.free = copied
        self.out.bytes += end
        self._let_go(chunk)
        chunk.states, chunk.memory, chunk.stretch = states, memory if end else None, stretch
        for state in states:
            state.on_host = state.make(place.apart_in(memory) for place in state.places)

    def _give_up(self, chunk: Chunk, stays: list[OptimizerState]) -> None:
        """There is no host memory for more: what travels goes on to, and what is new stays."""
        if len(stays) == len(chunk.states):
            if chunk.slot is not None:
                self._send(chunk)
            return
        for state in stays:  # not even for fewer: then these stay as well
            value = cast("torch.Tensor", state.on_device if state.on_device is not None else state.on_host)
            own = maker(value)(part.to(self._device.torch_device, copy=True) for _, part in parts_of(value))
            self._put(state, own)
        self._let_go(chunk)

    def _memory(self, chunk: Chunk, nbytes: int) -> tuple[torch.Tensor, Stretch | None]:
        """Host memory as far as it is allowed and there, then the disk."""
        held = sum(each.nbytes for each in self.chunks if each.stretch is None and each is not chunk)
        allowed = self._host is None or held + nbytes <= self._host
        if self.disk is None or (allowed and nbytes <= host_share.memory()):
            if not allowed:
                most = written(self._host or 0)
                raise Refused(
                    f"states take {written(held + nbytes)} of host memory, and {most} are allowed",
                    "raise host, or name a disk",
                )
            return host_memory(self._device, nbytes), None
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8), None
        stretch = self.disk.slab.take(nbytes)
        return self.disk.slab.view(stretch, nbytes), stretch

    def _let_go(self, chunk: Chunk) -> None:
        """Of the chunk's memory, and of its place on the disk."""
        if chunk.stretch is not None and self.disk is not None:
            self.disk.finish()
            self.disk.slab.give_back(chunk.stretch)
        chunk.states, chunk.memory, chunk.stretch = [], None, None

    def _end(self, slots: list[ChunkSlot], unused: list[Chunk]) -> None:
        """The host waits for all copies; the device's memory is let go."""
        device = self._device
        ended = device.record(device.current_stream())
        for chunk in unused:  # fetched for a step that raised before their turn
            device.synchronize(cast("ChunkSlot", chunk.slot).ready)
            chunk.slot = None
        for slot in slots:
            if slot.free is not None:
                device.synchronize(slot.free)
        device.synchronize(ended)
        if self.disk is not None:
            self.disk.finish()
        for started, ready, before, after in self._open:
            self.into.copying += max(0, device.elapsed(started, ready))
            self.into.waited += max(0, device.elapsed(before, after))
        for begun, done in self._outgoing:
            self.out.copying += max(0, device.elapsed(begun, done))
        if self._outgoing:
            self.out.waited += max(0, device.elapsed(ended, self._outgoing[-1][1]))
        self._open.clear()
        self._outgoing.clear()

    # What may travel.

    def _value(self, state: OptimizerState) -> torch.Tensor | None:
        return self._optimizer.state.get(state.parameter, {}).get(state.key)

    def _put(self, state: OptimizerState, value: torch.Tensor) -> None:
        self._optimizer.state[state.parameter][state.key] = value

    def _why_it_stays(self, value: torch.Tensor, shared: set[int]) -> str | None:
        if value.layout != torch.strided:
            return "sparse"
        parts = [part for _, part in parts_of(value)]
        nbytes = sum(part.nbytes for part in parts)
        if nbytes < self.least:
            return f"below {written(self.least)}"
        home = self._device.torch_device
        if any(part.device != home and part.device.type != "cpu" for part in parts):
            return "on another device"
        if not all(dense(part) for part in parts):
            return "not dense"
        if any(part.untyped_storage().nbytes() != part.nbytes for part in parts):
            return "part of a larger memory"
        if any(address_of(part.untyped_storage()) in shared for part in parts):
            return "memory that is shared"
        return None

    def _shared(self) -> set[int]:
        """The storages that more than one state uses, or a parameter or a gradient."""
        count: Counter[int] = Counter()
        for parameter, values in self._optimizer.state.items():
            for _, value in _tensors(values):
                count.update({address_of(storage) for storage in storages_of(value)})
            if isinstance(parameter, torch.Tensor):
                for each in (parameter, parameter.grad):
                    count.update({address_of(storage): 2 for storage in storages_of(each)})
        return {address for address, times in count.items() if times > 1}


def maker(value: torch.Tensor) -> Callable[[Parts], torch.Tensor]:
    """What makes a tensor like this one again, from its plain tensors in the order of `parts_of`."""
    if not is_traceable_wrapper_subclass(value):
        return next
    whole = apart(value)
    inner = {name: maker(part) for name, part in whole.tensors.items()}
    kind, others, context = cast("Any", type(value)), whole.others, whole.context
    size, stride = value.size(), value.stride()

    def make(parts: Parts) -> torch.Tensor:
        made = others | {name: one(parts) for name, one in inner.items()}
        return kind.__tensor_unflatten__(made, context, size, stride)

    return make


def host_memory(device: Device, nbytes: int) -> torch.Tensor:
    """As the device gives it; refused in words where there is not so much."""
    available = host_share.memory()
    if nbytes > available:
        raise Refused(
            f"states of {written(nbytes)} are to go to host memory, and {written(available)} are left",
            "raise the container's memory limit, or shard the optimizer over more ranks",
        )
    return device.host_memory(nbytes)


def _tensors(values: Any) -> list[tuple[Any, torch.Tensor]]:
    """A parameter's states by key."""
    if not isinstance(values, dict):
        return []
    every = cast("dict[Any, Any]", values).items()
    return [(key, value) for key, value in every if isinstance(value, torch.Tensor)]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """uint8[nbytes]: a dense tensor that has its storage to itself, or a part of a chunk's memory."""
    alias = cast("Any", torch.empty(0, dtype=torch.uint8, device=tensor.device))
    first = int(tensor.storage_offset()) * tensor.itemsize
    return alias.set_(tensor.untyped_storage(), first, (tensor.nbytes,), (1,))
