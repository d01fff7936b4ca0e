"""Activations wait in host memory between forward and backward, and most of the travelling costs no time.

    with optimize.offload(model, budget="70 GiB") as engine:
        for batch in batches:
            model(**batch).loss.backward()
            optimizer.step(); optimizer.zero_grad()
    print(engine.report())

Autograd hands every tensor that it saves to the engine and asks for it in the backward. Whether a tensor may
move and what is handed back is known here; which bytes travel, in `saved_views`; when, in `schedule`; what is
worth moving, in `selection`. The first microbatch (one forward with its backward) is watched: what is saved,
when, and how fast copies are. From the second on the engine moves what it has chosen, into host memory that
it got between the two.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lostflops.optimize import claims, host_share, saved_views
from lostflops.optimize.amounts import bytes_of
from lostflops.optimize.arena import Arena, aligned
from lostflops.optimize.checksum import checksum
from lostflops.optimize.device import Device, Event, device_of
from lostflops.optimize.link import rate
from lostflops.optimize.offload_report import OffloadReport, OneWay
from lostflops.optimize.offload_tally import ASSUMED_RATE, LAUNCH_NS, Tally
from lostflops.optimize.peak import address_of, storages_of
from lostflops.optimize.refused import Refused
from lostflops.optimize.saved_views import View, restored, view_of, whole_view
from lostflops.optimize.schedule import (
    DIRECTION_OF,
    Direction,
    Entry,
    Handle,
    Limits,
    Microbatch,
    Schedule,
    State,
)
from lostflops.optimize.selection import Link, Saved, Selection, select
from lostflops.optimize.tensor_class import ModulePaths, operator_of, tensor_class

FIRST_SHARE = 0.8  # of the budget that may fill before anything moves, as long as the peak is not known
EVERYTHING = "everything"

Plan = Mapping[str, Any]

_AUTOGRAD: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def offload(
    model: torch.nn.Module,
    budget: int | str | None = None,
    *,
    plan: Plan | Literal["everything"] | None = None,
    link: Mapping[str, Any] | None = None,
    threshold: int | str | None = None,
    device: Device | None = None,
    verify: Literal["first step"] | None = None,
    host_limit: int | str | None = None,
) -> Engine:
    """A context in which what the model saves for its backward may wait in host memory.

    Enter it around training steps, as they are; it may be entered again, not nested.

    budget      the most device memory of this process, "70 GiB" or bytes. As few bytes as needed move; none
                when all fits. Without a budget as much moves as hides behind compute.
    plan        a plan record that says per tensor class what moves (lostflops.plan makes them), or
                "everything" for all that can, whatever it costs.
    link        a link card (`measure_link`); without, the rates of the first microbatch are used.
    threshold   storages below this stay; without, what the link carries while one copy is launched.
    device      how to copy; without, the GPU that the model is on. `ThreadedDevice()` tries it out on a CPU.
    verify      "first step": checksums of everything that moved in the first microbatch.
    host_limit  the most host memory; without, what this process may use by its container's limits.

    Raises Refused, here, on entering, or in a step, when it cannot do what was asked.
    """
    if budget is not None and plan is not None:
        raise Refused("a budget and a plan were given", "a plan has its budget: leave out one of the two")
    if isinstance(plan, Mapping):
        _check(plan)
    elif plan not in (None, EVERYTHING):
        raise Refused(f"{plan!r} is no plan", 'give a plan record, or "everything"')
    return Engine(
        model,
        None if budget is None else bytes_of(budget),
        plan,
        link,
        None if threshold is None else bytes_of(threshold),
        device or device_of(model),
        verify is not None,
        None if host_limit is None else bytes_of(host_limit),
    )


def _check(plan: Plan) -> None:
    if plan.get("kind") != "offload plan" or plan.get("schema") != 1:
        raise Refused("the plan is no offload plan of schema 1", "make it with lostflops.plan")
    if plan.get("refused"):
        raise Refused(
            f"the plan is a refusal: {plan['refused']}", "plan with another budget or another method"
        )
    wrong = [f"{name}: {what}" for name, what in plan["classes"].items() if what not in ("keep", "offload")]
    if wrong:
        raise Refused(
            f"the engine keeps and offloads, the plan wants more ({wrong[0]})",
            "apply `optimize.checkpoint` for what is to be recomputed, then plan what it still saves",
        )


# Hooks see what all models save, so one engine at a time.
_entered: list[Engine] = []


class _Stays(claims.Kept):
    """A saved tensor that the engine leaves where it is."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self._engine = engine

    def unpack(self) -> torch.Tensor:
        self._engine.backward_runs()
        return super().unpack()


class _Travels:
    """A saved tensor whose bytes are an entry's: everything of it but its memory."""

    __slots__ = ("_engine", "handle", "microbatch", "version", "view")

    def __init__(
        self, engine: Engine, microbatch: _Watched, handle: Handle, tensor: torch.Tensor, view: View
    ) -> None:
        self._engine = engine
        self.microbatch = microbatch
        self.handle = handle
        self.view = view
        self.version = claims.Version(tensor)

    def unpack(self) -> torch.Tensor:
        return self._engine.unpack(self)

    def __del__(self) -> None:
        # Any thread, in the middle of anything: the engine takes note, and acts when it can.
        self._engine.dropped(self.handle)


class _Assembled:
    """A tensor subclass, taken apart into what it is made of."""

    __slots__ = ("_context", "_kind", "_parts", "_size", "_stride")

    def __init__(self, tensor: torch.Tensor, parts: dict[str, claims.Packed], context: Any) -> None:
        self._kind = cast("Any", type(tensor))
        self._parts = parts
        self._context = context
        self._size = tensor.size()
        self._stride = tensor.stride()

    def unpack(self) -> torch.Tensor:
        parts = {name: part.unpack() for name, part in self._parts.items()}
        return self._kind.__tensor_unflatten__(parts, self._context, self._size, self._stride)


@dataclass
class _Watched(Microbatch):
    """A microbatch with what is measured of it."""

    number: int = 0
    begin: Event = None
    asked: list[int] = field(
        default_factory=list[int]
    )  # numbers of entries, in the order of their first unpacking
    unpacks: int = 0
    packs: int = 0
    live: int = 0  # entries with handles
    missed: int = 0
    # Only when watched closely:
    classes: list[str] = field(default_factory=list[str])
    saved_events: list[Event] = field(default_factory=list[Event])
    asked_events: dict[int, Event] = field(default_factory=dict[int, Event])
    last_event: Event = None


@dataclass(frozen=True)
class _Learned:
    """What the first microbatch showed, by the order of saving."""

    saved: list[Saved]
    classes: list[str]
    order: list[int]
    due_ns: list[int]
    compute_ns: int
    link: Link
    base_bytes: int  # on the device before the forward
    peak_bytes: int
    resident_bytes: int  # the most that entries held at once


class Engine:
    """See `offload`."""

    def __init__(
        self,
        model: torch.nn.Module,
        budget: int | None,
        plan: Plan | str | None,
        link: Mapping[str, Any] | None,
        threshold: int | None,
        device: Device,
        verify: bool,
        host_limit: int | None,
    ) -> None:
        self._model = model
        self._budget = budget
        self._plan = plan
        self._card = None if link is None else _link(link)
        self._device = device
        self._threshold = _threshold(self._card) if threshold is None else threshold
        self._verify = verify
        self._arena = Arena(device, host_share.memory() if host_limit is None else host_limit)
        self._schedule = Schedule(device, self._arena)
        self._lock = threading.Lock()  # not reentrant: a finalizer that finds it taken leaves a note instead
        self._dropped: deque[Handle] = deque()
        self._open: dict[tuple[Any, ...], tuple[Entry, StorageWeakRef]] = {}
        self._keys: dict[Entry, tuple[Any, ...]] = {}
        self._owners: dict[Entry, _Watched] = {}
        self._own: set[int] = set()
        self._seen_own: dict[int, StorageWeakRef] = {}
        self._now: _Watched | None = None
        self._learned: _Learned | None = None
        self._selection: Selection | None = None
        self._off: str | None = None  # why nothing moves any more
        self._stack: ExitStack | None = None
        self._paths: ModulePaths | None = None
        self._checks: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._sums: dict[Entry, torch.Tensor] = {}
        self._checked = 0
        self._tally = Tally()
        self._warm_allocations: int | None = None

    # The context.

    def __enter__(self) -> Engine:
        self._refuse_here()
        stack = ExitStack()
        try:
            self._collect_own()
            if self._learned is None:
                self._paths = stack.enter_context(ModulePaths(self._model))
            stack.callback(claims.register(self._claim, last=True))
            stack.enter_context(claims.hooks())
        except BaseException:
            stack.close()
            raise
        _entered.append(self)
        self._stack = stack
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        stack, self._stack = self._stack, None
        _entered.remove(self)
        assert stack is not None
        stack.close()
        self._paths = None
        if kind is None:
            with self._lock:
                self._end()

    def _refuse_here(self) -> None:
        if _entered:
            raise Refused("an offload engine is entered already", "enter one engine, around the whole step")
        if torch.compiler.is_compiling():
            raise Refused("the context is being traced", "enter it outside of what torch.compile compiles")
        top = _AUTOGRAD._autograd._top_saved_tensors_default_hooks(True)
        if top is not None and top[0] is not claims.packed:
            name = f"{top[0].__module__}.{top[0].__qualname__}"
            if top[0].__module__ == "torch.utils.checkpoint":
                raise Refused(
                    f"this is inside a checkpointed function ({name}): the engine's hooks would win, "
                    "everything would be saved and nothing recomputed",
                    "enter the engine around the model: it then moves the inputs of what is checkpointed",
                )
            raise Refused(
                f"other saved-tensor hooks are active ({name}): the engine's would switch them off",
                "leave them out, or enter them inside of the engine where they shall win",
            )
        wrong = next((p for p in self._model.parameters() if p.device != self._device.torch_device), None)
        if wrong is not None:
            raise Refused(
                f"a parameter is on {wrong.device}, the engine works on {self._device.torch_device}",
                "move the model, or pass the device that it is on",
            )

    def _collect_own(self) -> None:
        """Parameters and buffers by their storages: what autograd saves of them is a view of any shape.

        Anew in each microbatch, as wrapping replaces them; storages that modules had while they ran (FSDP's
        gathered weights) count as long as they exist, by weak references, as addresses are used again.
        """
        own: list[torch.Tensor] = [*self._model.parameters(), *self._model.buffers()]
        gone = [address for address, alive in self._seen_own.items() if alive.expired()]
        for address in gone:
            del self._seen_own[address]
        self._own = {address_of(storage) for tensor in own for storage in storages_of(tensor)} | set(
            self._seen_own
        )

    # Saving.

    def _claim(self, tensor: torch.Tensor) -> claims.Packed | None:
        if torch.compiler.is_compiling():
            raise Refused(
                "a saved tensor is being traced", "compile the model's layers, not the engine's context"
            )
        begun = time.perf_counter_ns()
        with self._lock:
            microbatch = self._microbatch()
            packed = self._pack(microbatch, tensor)
        self._collect()
        self._tally.took("keep" if isinstance(packed, _Stays) else "pack", time.perf_counter_ns() - begun)
        return packed

    def _microbatch(self) -> _Watched:
        """The one that is going on; a new one when a backward has run since."""
        now = self._now
        inside = _inside_backward()
        if now is None or (now.unpacks and not inside):
            self._end()
            now = self._begin()
        elif now.packs and not now.live and not inside and not now.unpacks and now.entries:
            now = self._begin(again=True)  # a forward that was given up
        now.packs += 1
        return now

    def _pack(self, microbatch: _Watched, tensor: torch.Tensor) -> claims.Packed:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return self._take_apart(microbatch, tensor)
        reason = self._why_it_stays(tensor)
        if reason is not None:
            return self._stay(tensor, reason)
        storage = tensor.untyped_storage()
        version = None if tensor.is_inference() else tensor._version
        key = (address_of(storage), storage.data_ptr(), version)
        view, entry = whole_view(tensor), self._find(key)
        if entry is None:
            part = view_of(tensor)
            if part is not None:
                view, key = part, (*key, *part.key)
                entry = self._find(key)
        if entry is not None:
            self._tally.shared_bytes += tensor.numel() * tensor.element_size()
            if entry in self._sums:
                now = checksum(saved_views.bytes_of(tensor, view))
                self._checks.append((self._class_name(self._owners[entry], entry), self._sums[entry], now))
            return self._travels(entry, tensor, view)
        if storage.nbytes() < self._threshold:  # what is freed, even where less travels
            return self._stay(tensor, "below the threshold")
        if _inside_backward():
            return self._stay(tensor, "saved during the backward")
        return self._travels(self._admit(microbatch, key, tensor, view), tensor, view)

    def _take_apart(self, microbatch: _Watched, tensor: torch.Tensor) -> claims.Packed:
        if _is_traced(tensor):
            raise Refused(
                f"a saved {type(tensor).__name__} is being traced",
                "enter the engine outside of what is traced",
            )
        if not hasattr(tensor, "__tensor_flatten__"):
            return self._stay(tensor, f"a {type(tensor).__name__}, which cannot be taken apart")
        names, context = cast("Any", tensor).__tensor_flatten__()
        parts = {name: self._pack(microbatch, getattr(tensor, name)) for name in names}
        if all(isinstance(part, _Stays) for part in parts.values()):
            return _Stays(self, tensor)
        return _Assembled(tensor, parts, context)

    def _why_it_stays(self, tensor: torch.Tensor) -> str | None:
        if self._off is not None:
            return "the engine is off"
        if tensor.device != self._device.torch_device:
            return "on another device"
        if tensor.layout != torch.strided or tensor.is_quantized:
            return "not strided"
        if tensor.is_conj() or tensor.is_neg():
            return "conjugated lazily"
        if address_of(tensor.untyped_storage()) in self._own or _is_own(tensor):
            return "parameter or buffer"
        if tensor.numel() == 0:
            return "empty"
        return "host and device share memory" if self._device.coherent else None

    def _stay(self, tensor: torch.Tensor, reason: str) -> _Stays:
        self._tally.keeps(reason, tensor.numel() * tensor.element_size())
        return _Stays(self, tensor)

    def _find(self, key: tuple[Any, ...]) -> Entry | None:
        """An entry of the same memory and version. The weak reference keeps the storage's address from being
        used again, so a key means one storage, alive or not."""
        found = self._open.get(key)
        if found is None:
            return None
        entry, alive = found
        if alive.expired() or not entry.handles:
            del self._open[key]
            return None
        return entry

    def _admit(
        self,
        microbatch: _Watched,
        key: tuple[Any, ...],
        tensor: torch.Tensor,
        view: View,
    ) -> Entry:
        source = saved_views.bytes_of(tensor, view)
        entry = self._schedule.admit(microbatch, source)
        self._open[key] = entry, StorageWeakRef(tensor.untyped_storage())
        self._keys[entry] = key
        self._owners[entry] = microbatch
        microbatch.live += 1
        name = self._note(microbatch, tensor) if self._learned is None else self._class_of(entry)
        if self._verify and not self._checked:
            self._sums[entry] = checksum(source)
        reason = self._why_not_sent(entry, name)
        if reason is None:
            if self._schedule.send(entry):
                self._tally.moved += 1
        elif reason:
            self._schedule.keep(entry, reason)
        if entry.state is State.KEPT and entry.reason is not None:
            self._tally.keeps(entry.reason, entry.nbytes)
        if self._learned is None and self._budget is not None:
            self._relieve(microbatch, self._budget)
        return entry

    def _why_not_sent(self, entry: Entry, name: str) -> str | None:
        """None: it is sent. "": it waits, resident, until memory runs short."""
        if isinstance(self._plan, Mapping):
            action = self._plan["classes"].get(name)
            if action != "offload":
                return "by the plan" if action else "not in the plan"
        if self._selection is not None:
            moves = self._selection.moves
            return None if entry.number >= len(moves) or moves[entry.number] else "not needed, or not hidden"
        if self._learned is None and self._budget is not None:
            return ""
        return None

    def _relieve(self, microbatch: _Watched, budget: int) -> None:
        """In the first microbatch, whose peak nobody knows: sends the oldest once the device fills up."""
        excess = self._in_use() - self._schedule.leaving_bytes - FIRST_SHARE * budget
        for entry in microbatch.entries:
            if excess <= 0:
                return
            if entry.state is State.RESIDENT and not entry.sent and entry.handles:
                if self._schedule.send(entry):
                    self._tally.moved += 1
                excess -= entry.nbytes

    def _note(self, microbatch: _Watched, tensor: torch.Tensor) -> str:
        name = tensor_class(self._paths.innermost if self._paths else "", operator_of(tensor))
        microbatch.classes.append(name)
        microbatch.saved_events.append(self._record())
        largest = max(entry.nbytes for entry in microbatch.entries)
        self._schedule.limits = Limits(4 * largest, 2 * largest)
        return name

    def _class_of(self, entry: Entry) -> str:
        assert self._learned is not None
        classes = self._learned.classes
        return classes[entry.number] if entry.number < len(classes) else ""

    def _travels(self, entry: Entry, tensor: torch.Tensor, view: View) -> _Travels:
        return _Travels(self, self._owners[entry], self._schedule.add_handle(entry), tensor, view)

    # Asking.

    def backward_runs(self) -> None:
        if self._now is not None:
            self._now.unpacks += 1

    def unpack(self, saved: _Travels) -> torch.Tensor:
        begun = time.perf_counter_ns()
        saved.version.check()
        entry, microbatch = saved.handle.entry, saved.microbatch
        with self._lock:
            if self._now is not None:
                self._now.unpacks += 1
            microbatch.unpacks += 1
            before = self._schedule.missed
            present = self._schedule.hand_out(microbatch, saved.handle, _backward())
            microbatch.missed += self._schedule.missed - before
            if entry.number not in microbatch.asked_events:
                microbatch.asked.append(entry.number)
                microbatch.asked_events[entry.number] = None
                if self._learned is None:
                    microbatch.asked_events[entry.number] = self._record()
            if self._learned is None:
                microbatch.last_event = self._record()
            if entry.sent and entry in self._sums:
                self._checks.append(
                    (self._class_name(microbatch, entry), self._sums[entry], checksum(present))
                )
        result = restored(saved.view, present)
        self._collect()
        self._tally.took("unpack", time.perf_counter_ns() - begun)
        return result

    def _class_name(self, microbatch: _Watched, entry: Entry) -> str:
        return microbatch.classes[entry.number] if entry.number < len(microbatch.classes) else "a storage"

    def dropped(self, handle: Handle) -> None:
        self._dropped.append(handle)
        self._collect()

    def _collect(self) -> None:
        """Drops what finalizers have left, unless somebody is at it: they do so when they are done."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                while self._dropped:
                    self._drop(self._dropped.popleft())
            finally:
                self._lock.release()

    def _drop(self, handle: Handle) -> None:
        entry = handle.entry
        self._schedule.drop(handle)
        if not entry.handles:
            key = self._keys.pop(entry)
            if key in self._open and self._open[key][0] is entry:
                del self._open[key]
            self._owners.pop(entry).live -= 1
            self._sums.pop(entry, None)

    # Between microbatches.

    def _record(self) -> Event:
        return self._device.record(self._device.current_stream())

    def _begin(self, again: bool = False) -> _Watched:
        self._collect_own()
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Refused("a CUDA graph is being captured", "capture outside of the engine")
        self._tally.microbatches += not again
        self._tally.harvest(self._schedule, self._device, wait=False)
        if self._tally.microbatches == 3 and self._warm_allocations is None:
            self._warm_allocations = self._arena.allocations
        now = _Watched(number=self._tally.microbatches)
        learned = self._learned
        if learned is not None:
            now.order = list(learned.order)
            now.due_ns = list(learned.due_ns)
        now.begin = self._record()
        self._now = now
        return now

    def _end(self) -> None:
        """Learns from the first microbatch, and makes room for the next."""
        while self._dropped:
            self._drop(self._dropped.popleft())
        now = self._now
        if now is None or not now.unpacks:
            return
        if self._checks:
            self._compare()
        if self._learned is None and now.asked:
            self._learn(now)

    def _learn(self, now: _Watched) -> None:
        device, schedule = self._device, self._schedule
        schedule.finish()
        device.synchronize(now.last_event)
        stalls = [
            (device.elapsed(now.begin, one.start), device.elapsed(one.start, one.end))
            for one in schedule.stalls
        ]

        def compute_ns(event: Event) -> int:
            at = device.elapsed(now.begin, event)
            return max(0, at - sum(lasted for start, lasted in stalls if start < at))

        saved = [
            Saved(entry.nbytes, compute_ns(event), asked and compute_ns(asked))
            for entry, event, asked in zip(
                now.entries,
                now.saved_events,
                (now.asked_events.get(n) for n in range(len(now.entries))),
                strict=True,
            )
        ]
        missing = [number for number in range(len(saved)) if number not in now.asked_events]
        order = [*now.asked, *missing]
        total = compute_ns(now.last_event)
        self._tally.harvest(schedule, device, wait=True)
        self._learned = _Learned(
            saved=saved,
            classes=now.classes,
            order=order,
            due_ns=[total if (asked := saved[number].asked_ns) is None else asked for number in order],
            compute_ns=total,
            link=self._card or self._tally.link(),
            base_bytes=0,
            peak_bytes=0,
            resident_bytes=schedule.most_resident_bytes,
        )
        self._choose()

    def _choose(self) -> None:
        learned = self._learned
        assert learned is not None
        if self._plan is None:
            room = None
            if self._budget is not None:
                room = self._budget - self._static_bytes()
            self._selection = select(learned.saved, learned.compute_ns, learned.link, room)
            chosen = self._selection
            self._schedule.limits = Limits(
                chosen.in_flight_bytes, chosen.look_ahead_bytes, chosen.look_ahead_ns
            )
            moved = [one.nbytes for one, moves in zip(learned.saved, chosen.moves, strict=True) if moves]
        else:
            moved = [
                one.nbytes
                for one, name in zip(learned.saved, learned.classes, strict=True)
                if self._plan == EVERYTHING or cast("Plan", self._plan)["classes"].get(name) == "offload"
            ]
        self._arena.settle(sum(aligned(nbytes) for nbytes in moved))

    def _static_bytes(self) -> int:
        own: list[torch.Tensor] = [*self._model.parameters(), *self._model.buffers()]
        own += [p.grad for p in self._model.parameters() if p.grad is not None]
        sizes = {address_of(storage): storage.nbytes() for tensor in own for storage in storages_of(tensor)}
        return sum(sizes.values())

    def _in_use(self) -> int:
        """Bytes of device memory: by the allocator on a GPU; on a CPU what the engine knows of."""
        if self._device.torch_device.type == "cuda":
            return torch.cuda.memory_allocated(self._device.torch_device)
        return self._static_bytes() + self._schedule.resident_bytes

    def _compare(self) -> None:
        checks, self._checks = self._checks, []
        for name, before, after in checks:
            if not torch.equal(before, after):
                self._off = f"switched off: {name} came back changed"
                raise Refused(
                    f"{name} came back from host memory with other bytes than it left with",
                    "a kernel writes into saved memory behind autograd's back; have the plan keep its class",
                )
        self._checked += len(checks)

    # Telling.

    def report(self) -> OffloadReport:
        """What happened so far. Waits for the copies under way."""
        with self._lock:
            while self._dropped:
                self._drop(self._dropped.popleft())
            if self._checks:
                self._compare()
            self._tally.harvest(self._schedule, self._device, wait=True)
        tally = self._tally

        def one_way(direction: Direction) -> OneWay:
            stalled = sum(ns for cause, ns in tally.stalls_ns.items() if DIRECTION_OF[cause] == direction)
            card = self._card
            speed = card and (card.out_bytes_per_second if direction == "out" else card.in_bytes_per_second)
            way = tally.ways[direction]
            return OneWay(way.bytes, way.copies, way.nanoseconds, stalled, speed)

        allocations = self._arena.allocations
        return OffloadReport(
            state=self._state(),
            microbatches=tally.microbatches,
            budget_bytes=self._budget,
            threshold_bytes=self._threshold,
            out=one_way("out"),
            into=one_way("in"),
            stalls_ns={str(cause): ns for cause, ns in tally.stalls_ns.items()},
            order_missed=self._schedule.missed,
            shared_bytes=tally.shared_bytes,
            moved=tally.moved,
            kept_bytes=dict(tally.kept_bytes),
            bypassed_bytes=0,
            pageable_bytes=0,
            host_requested_bytes=self._arena.most_used_bytes,
            host_held_bytes=self._arena.held_bytes,
            host_allocations=allocations,
            host_allocations_after_warm_up=0
            if self._warm_allocations is None
            else allocations - self._warm_allocations,
            pack_ns=tally.mean_ns("pack"),
            keep_ns=tally.mean_ns("keep"),
            unpack_ns=tally.mean_ns("unpack"),
            predicted={},
            measured={},
            verified=f"{self._checked} storages came back bit for bit" if self._checked else None,
        )

    def _state(self) -> str:
        if self._off is not None:
            return self._off
        if self._learned is None:
            return "watching the first microbatch"
        if self._selection is not None and not any(self._selection.moves):
            if self._budget is not None:
                return "everything fits: nothing is moved"
            return "no copy would hide behind compute: nothing is moved"
        return "moving"


def _is_own(tensor: torch.Tensor) -> bool:
    """A parameter that the model did not list, or a view of one: a gathered weight of FSDP."""
    base = tensor._base if tensor._is_view() else tensor
    return isinstance(base, torch.nn.Parameter)


def _is_traced(tensor: torch.Tensor) -> bool:
    names = {kind.__name__ for kind in type(tensor).__mro__}
    return bool(names & {"FakeTensor", "FunctionalTensor"})


def _backward() -> int:
    """Autograd's number of the backward that this thread works for, -1 outside."""
    return _AUTOGRAD._current_graph_task_id()


def _inside_backward() -> bool:
    return _backward() != -1


def _link(card: Mapping[str, Any]) -> Link:
    out_launch, out_rate = rate(card, "device_to_host")
    in_launch, in_rate = rate(card, "host_to_device")
    return Link(out_rate, in_rate, max(out_launch, in_launch))


def _threshold(link: Link | None) -> int:
    """Below this a copy takes mostly its launch."""
    if link is None:
        return round(LAUNCH_NS * ASSUMED_RATE / 1e9)
    return round(link.launch_ns * link.out_bytes_per_second / 1e9)
