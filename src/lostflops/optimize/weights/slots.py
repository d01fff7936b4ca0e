"""A few fixed places on the device in which the weights of many layers take turns.

A layer's bytes lie in host memory for good; `use` brings them into a slot, and asks for the layers that come
next before it waits. Nothing ever travels back. The rules:

- A copy into a slot waits, by events, for every stream that used what the slot held before: its *free*
  events, recorded when the slot is given away, so that they cover all that was queued by then.
- Who uses a slot waits, by its *ready* event, for the copy into it: each stream once.
- A slot is not given away while a layer's forward runs on it, or while any tensor still looks at its memory:
  autograd of somebody else's hooks, or a function that keeps a weight on its `ctx`. That is refused, for it
  would be a wrong gradient without an error.

The order of use is learned from what happened, and followed as long as it is kept. A layer that was not
asked for ahead is copied while the compute stream waits, and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, cast

import torch

from lostflops.optimize.device.devices import Device, Event, Stream
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.sources import Sources

Mode = Literal["training", "backward", "inference"]
CAUSES = ("late", "order missed", "first use")
LATE = 10_000  # ns: a wait shorter than this is the events' own cost
PATIENCE = 100  # times 0.1 ms until a finished copy has let go of its slot


class LayerOrder:
    """Which layers follow: those that followed the last time that it went like now.

    "Like now" is the longest stretch of the past that ends as the present does; while it goes on alike it is
    only followed. Before anything is known, layers are taken to come in the order of the model, backwards in
    a backward, and to turn around at the end unless it is inference.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._path: list[tuple[int, Mode]] = []
        self._places: dict[tuple[int, Mode], deque[int]] = {}  # in the path, the last few
        self._alike: int | None = None  # place in the path that is like its end

    def saw(self, layer: int, mode: Mode) -> None:
        now = (layer, mode)
        path = self._path
        if path and path[-1] == now:
            return
        followed = self._alike is not None and path[self._alike + 1] == now
        path.append(now)
        self._alike = cast("int", self._alike) + 1 if followed else self._most_alike(now)
        self._places.setdefault(now, deque(maxlen=8)).append(len(path) - 1)
        if len(path) > 32 * self._layers + 1000:
            self._forget(len(path) // 2)

    def ahead(self, many: int) -> list[int]:
        """The next layers, soonest first, without the current one."""
        if not self._path:
            return []
        now, mode = self._path[-1]
        found: list[int] = []
        if self._alike is None:
            following = self._unknown(now, many, mode)
        else:
            following = [layer for layer, _ in self._path[self._alike + 1 : self._alike + 8 * many]]
        for layer in following:
            if layer != now and layer not in found and len(found) < many:
                found.append(layer)
        return found

    def _most_alike(self, now: tuple[int, Mode]) -> int | None:
        path, longest, found = self._path, 0, None
        for place in reversed(self._places.get(now, ())):
            length = 1
            while length <= min(place, 4 * self._layers) and path[place - length] == path[-1 - length]:
                length += 1
            if length > longest:
                longest, found = length, place
        return found

    def _unknown(self, now: int, many: int, mode: Mode) -> list[int]:
        step = -1 if mode == "backward" else 1
        found: list[int] = []
        for _ in range(many):
            if not 0 <= now + step < self._layers:
                if mode == "inference":
                    now = -1
                else:
                    step = -step
            now += step
            found.append(now)
        return found

    def _forget(self, many: int) -> None:
        del self._path[:many]
        for now, places in self._places.items():
            self._places[now] = deque((place - many for place in places if place >= many), maxlen=8)
        self._alike = None if self._alike is None or self._alike < many else self._alike - many


@dataclass(eq=False)
class LayerSlot:
    """Memory on the device, the layer that it holds, and since which event."""

    memory: torch.Tensor
    streams: dict[Any, Stream]  # that used it since the last copy into it
    holds: int | None = None
    version: int = 0  # of the host's bytes when they were copied
    cause: str = "late"  # what a wait for the copy under way would be
    started: Event = None
    ready: Event = None
    asked: Event = None  # of the compute stream, when the copy could begin
    pins: int = 0  # forwards that run on it
    used: int = 0  # when last, to find the one that was not used for longest
    counted: bool = True  # its copy is part of the statistics
    parts: set[int] | None = None  # of a layer that comes in parts, those that are there


@dataclass
class Waits:
    """What the copies took, and what the compute stream waited for them. Nanoseconds and bytes.

    `predicted` is the wait that the link's rate leads to: the time of a copy, less the compute since the use
    before, during which it could run.
    """

    copies: int = 0
    copied_bytes: int = 0
    copying: int = 0
    waited: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    stalls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    predicted_copying: float = 0.0
    predicted: float = 0.0


class Slots:
    """`count` slots of `nbytes` for layers whose bytes come from `sources`.

    `version(layer)` counts the writes to a layer's bytes: is it another than at the copy, it is copied again.
    `link`: nanoseconds to launch a copy, and bytes per second.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int,
        count: int,
        sources: Sources,
        version: Callable[[int], int],
        link: tuple[int, float] | None = None,
        in_parts: frozenset[int] = frozenset(),
    ) -> None:
        self._device = device
        self._in_parts = in_parts  # layers that come in parts, by `use_parts`; one slot is theirs
        self._sources = sources
        self._version = version
        self._link = link
        self._ahead = count - 1 - bool(in_parts)
        self._copies = device.new_stream()
        self._order = LayerOrder(len(sources))
        self._clock = 0
        self._waits = Waits()
        self._pending: deque[tuple[str, int, Event, Event, Event, Event, Event]] = deque()
        stream = device.current_stream()
        self.slots = [LayerSlot(device.allocate(nbytes), {_key(stream): stream}) for _ in range(count)]
        if in_parts:  # what does not come is a number, should anybody multiply it by nought
            for slot in self.slots:
                slot.memory.zero_()
        self._by_address = {slot.memory.untyped_storage().data_ptr(): slot for slot in self.slots}
        self._alone = [_references(slot.memory) for slot in self.slots]
        self._latest: dict[Any, LayerSlot] = {}  # one at most
        self.bytes_in = 0
        self.used = [0] * len(sources)  # how often each layer's turn came
        self.lock = threading.RLock()  # autograd's threads bring layers, too

    def at(self, tensor: torch.Tensor) -> LayerSlot | None:
        """The slot that a plain tensor's memory is part of."""
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def use(self, layer: int) -> LayerSlot:
        """The slot that holds the layer, for what the current stream runs from now on. Asks for the next.

        It may be given away as soon as the lock is let go, unless it is pinned or looked at by then.
        """
        with self.lock:
            return self._used_now(layer)

    def join(self, layer: int) -> None:
        """A part of the layer runs, maybe on another stream than the layer around it."""
        with self.lock:
            slot, stream = self._held(layer), self._device.current_stream()
            if slot is not None and _key(stream) not in slot.streams:
                self._wait(slot, stream)

    def _used_now(self, layer: int) -> LayerSlot:
        mode = _mode()
        stream = self._device.current_stream()
        slot = self._latest.get((layer, mode, _key(stream)))
        if slot is not None and slot.holds == layer and slot.version == self._version(layer):
            return slot  # used just now
        first = not any(self.used)
        self._clock += 1
        self.used[layer] += 1
        self._order.saw(layer, mode)
        slot = self._held(layer)
        if slot is None or slot.version != self._version(layer):
            if slot is not None:
                self._end_copy(slot)  # it is fetched ahead, and the layer was written meanwhile
                if self._seen(slot):  # by somebody who does not see what was written
                    self._refuse_seen()
            slot = self._fetch(layer, "first use" if first else "order missed", slot)
            slot.asked = None
        slot.used = self._clock
        asked = self._prefetch(layer)  # before the wait: the link is kept busy
        if _key(stream) not in slot.streams:
            self._wait(slot, stream)
        if asked:
            now = self._device.record(stream)
            for following in asked:
                following.asked = now
        self._latest = {(layer, mode, _key(stream)): slot}
        return slot

    def use_parts(self, layer: int, wanted: dict[int, list[tuple[int, int]]]) -> LayerSlot:
        """The slot that holds these parts of the layer, by number: first bytes and lengths."""
        stream = self._device.current_stream()
        self._clock += 1
        self.used[layer] += 1
        slot = self._held(layer)
        if slot is None or slot.version != self._version(layer):
            # Not those that were fetched ahead: they are used less recently than all others.
            slot = slot or self._free({layer, *self._order.ahead(self._ahead)}) or self._refuse(layer)
            slot.holds, slot.version, slot.parts = layer, self._version(layer), set()
            for other in slot.streams.values():
                self._device.wait(self._copies, self._device.record(other))
            slot.streams.clear()
        slot.used = self._clock
        here = cast("set[int]", slot.parts)
        missing = [part for number, parts in wanted.items() if number not in here for part in parts]
        here.update(wanted)
        if missing:
            self._device.wait(self._copies, self._device.record(stream))
            slot.started = self._device.record(self._copies)
            source = self._sources.get(layer)
            for first, nbytes in missing:
                part = slice(first, first + nbytes)
                self._device.copy(slot.memory[part], source[part], self._copies)
            slot.ready = self._device.record(self._copies)
            slot.cause, slot.counted, slot.asked = "router", False, None
            moved = sum(nbytes for _, nbytes in missing)
            self.bytes_in += moved
            self._wait(slot, stream, moved)
        elif _key(stream) not in slot.streams:
            self._wait(slot, stream)
        return slot

    def forget(self, layer: int) -> None:
        """The host's bytes of the layer have changed: a copy of them is no longer good."""
        self._sources.forget(layer)
        slot = self._held(layer)
        if slot is not None:
            slot.holds = None

    def forget_all(self, layers: Container[int]) -> None:
        """No copy of these is good any more, but for those in use."""
        with self.lock:
            for slot in self.slots:
                if slot.holds is not None and slot.holds in layers and not slot.pins:
                    slot.holds = None
            self._latest.clear()

    def close(self) -> None:
        """Waits for all copies and users, and lets go of the memory."""
        for slot in self.slots:
            self._end_copy(slot)
            for stream in slot.streams.values():
                self._device.synchronize(self._device.record(stream))
        self._resolve()
        self._by_address.clear()
        self.slots.clear()

    def waits(self) -> Waits:
        """Of all copies that were waited for. The host waits for the last."""
        if self._pending:
            self._device.synchronize(self._pending[-1][-1])
        self._resolve()
        return self._waits

    def _held(self, layer: int) -> LayerSlot | None:
        return next((slot for slot in self.slots if slot.holds == layer), None)

    def _prefetch(self, layer: int) -> list[LayerSlot]:
        """Asks for what comes after the layer; the slots that it will come into."""
        wanted = [each for each in self._order.ahead(self._ahead) if each not in self._in_parts]
        asked: list[LayerSlot] = []
        self._sources.ask([*wanted, *self._order.ahead(self._ahead + 1)[self._ahead :]])
        for number, following in enumerate(wanted):
            if self._held(following) is None:
                slot = self._free({layer, *wanted[: number + 1]})
                if slot is None:
                    break
                asked.append(self._fetch(following, "late", slot))
        return asked

    def _free(self, needed: set[int]) -> LayerSlot | None:
        """A slot to give away: one that holds nothing, else the one that was not used for longest."""
        free = [slot for slot in self.slots if not slot.pins and slot.holds not in needed]
        free.sort(key=lambda slot: (slot.holds is not None, slot.used))
        return next((slot for slot in free if not self._seen(slot)), None)

    def _fetch(self, layer: int, cause: str, slot: LayerSlot | None) -> LayerSlot:
        slot = slot or self._free({layer}) or self._refuse(layer)
        for stream in slot.streams.values():
            self._device.wait(self._copies, self._device.record(stream))
        slot.streams.clear()
        version = self._version(layer)  # what another thread writes from here on may be in the copy, or not
        source = self._sources.get(layer)
        nbytes = source.numel()
        slot.holds = None  # should the copy fail
        slot.started = self._device.record(self._copies)
        self._device.copy(slot.memory[:nbytes], source, self._copies)
        slot.ready = self._device.record(self._copies)
        self._sources.sent(layer, slot.ready)
        slot.holds, slot.version, slot.cause, slot.counted = layer, version, cause, False
        self.bytes_in += nbytes
        return slot

    def _wait(self, slot: LayerSlot, stream: Stream, moved: int | None = None) -> None:
        before = self._device.record(stream)
        self._device.wait(stream, slot.ready)
        after = self._device.record(stream)
        slot.streams[_key(stream)] = stream
        if slot.counted or slot.holds is None:
            return
        slot.counted = True
        nbytes = self._sources.nbytes(slot.holds) if moved is None else moved
        self._pending.append((slot.cause, nbytes, slot.started, slot.ready, slot.asked, before, after))
        if len(self._pending) > 100:
            self._resolve()

    def _resolve(self) -> None:
        """Adds up the waits whose events are done."""
        while self._pending and self._device.is_done(self._pending[0][-1]):
            cause, nbytes, started, ready, asked, before, after = self._pending.popleft()
            waited = max(0, self._device.elapsed(before, after))
            waits = self._waits
            waits.copies += 1
            waits.copied_bytes += nbytes
            waits.copying += max(0, self._device.elapsed(started, ready))
            waits.waited[cause] = waits.waited.get(cause, 0) + waited
            waits.stalls[cause] = waits.stalls.get(cause, 0) + (waited > LATE or cause != "late")
            if self._link:
                launch, per_second = self._link
                copying = launch + 1e9 * nbytes / per_second
                meanwhile = self._device.elapsed(asked, before) if asked is not None else 0
                waits.predicted_copying += copying
                waits.predicted += max(0.0, copying - meanwhile)

    def _seen(self, slot: LayerSlot) -> bool:
        """Whether any other tensor looks at its memory. A queued copy does, on a thread, until it is done."""
        alone = self._alone[self.slots.index(slot)]
        if _references(slot.memory) == alone:
            return False
        if slot.ready is None or not self._device.is_done(slot.ready):
            return True
        for _ in range(PATIENCE):
            time.sleep(1e-4)
            if _references(slot.memory) == alone:
                return False
        return True

    def _end_copy(self, slot: LayerSlot) -> None:
        if slot.ready is not None:
            self._device.synchronize(slot.ready)

    def _refuse(self, layer: int) -> LayerSlot:
        for slot in self.slots:  # copies ahead that turned out not to be needed
            self._end_copy(slot)
        slot = self._free({layer})
        if slot is not None:
            return slot
        if all(slot.pins for slot in self.slots):
            raise Refused(
                f"{len(self.slots)} layers run inside one another, and there are {len(self.slots)} slots",
                "raise look_ahead, or stream the outer or the inner layers only (layers=...)",
            )
        return self._refuse_seen()

    def _refuse_seen(self) -> NoReturn:
        raise Refused(
            "the memory of a layer's weights is still looked at after its forward, and would be overwritten: "
            "a function keeps a weight, not by save_for_backward (on `ctx`, or in an attribute)",
            "keep that layer out (layers=...), or let the function save its weight with save_for_backward",
        )


def _mode() -> Mode:
    """A recomputation belongs to the backward that it runs in."""
    task = getattr(cast("Any", torch)._C, "_current_graph_task_id", None)
    if task is not None and task() != -1:
        return "backward"
    return "training" if torch.is_grad_enabled() else "inference"


def _key(stream: Stream) -> Any:
    return None if stream is None else getattr(stream, "cuda_stream", id(stream))


def _references(memory: torch.Tensor) -> int:
    """How many tensors and Python objects hold the storage. 0 where torch does not tell."""
    count = getattr(cast("Any", torch)._C, "_storage_Use_Count", None)
    return cast("int", count(cast("Any", memory.untyped_storage())._cdata)) if count else 0
