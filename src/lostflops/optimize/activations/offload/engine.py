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
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

import torch

from lostflops.optimize import claims
from lostflops.optimize.activations import saved_views
from lostflops.optimize.activations.bypassed import held_by_selective_checkpoints
from lostflops.optimize.activations.checkpoint_choice import DECISIONS
from lostflops.optimize.activations.checkpointing import checkpoint
from lostflops.optimize.activations.checksum import Fingerprint, fingerprint
from lostflops.optimize.activations.offload.arena import Arena, aligned
from lostflops.optimize.activations.offload.choice import (
    EVERYTHING,
    Learned,
    Plan,
    Watched,
    check_found,
    choose,
    learn,
)
from lostflops.optimize.activations.offload.device_memory import Metered, PeakMeter, static_bytes
from lostflops.optimize.activations.offload.proof import Proof, prove
from lostflops.optimize.activations.offload.report import OffloadReport, OneWay
from lostflops.optimize.activations.offload.schedule import (
    DIRECTION_OF,
    Direction,
    Entry,
    Handle,
    Limits,
    Schedule,
    State,
)
from lostflops.optimize.activations.offload.selection import Link, Selection
from lostflops.optimize.activations.offload.tally import ASSUMED_RATE, LAUNCH_NS, Tally
from lostflops.optimize.activations.saved_views import View, restored, view_of, whole_view
from lostflops.optimize.activations.tensor_class import ModulePaths, operator_of, tensor_class
from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device import host_share
from lostflops.optimize.device.devices import Device, Event, Stream, device_named, device_of
from lostflops.optimize.device.link_card import rate
from lostflops.optimize.device.peak import address_of, storages_of
from lostflops.optimize.refused import Refused
from lostflops.optimize.subclasses import Rebuilt, apart

FIRST_SHARE = 0.8  # of the budget that may fill before anything moves, as long as the peak is not known

T = TypeVar("T")

_TORCH: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def offload(
    model: torch.nn.Module,
    budget: int | str | None = None,
    *,
    plan: Plan | Literal["everything"] | None = None,
    link: Mapping[str, Any] | None = None,
    threshold: int | str | None = None,
    device: Device | torch.device | str | int | None = None,
    verify: Literal["first step"] | None = "first step",
    host_limit: int | str | None = None,
) -> Engine:
    """A context in which what the model saves for its backward may wait in host memory.

    Enter it around training steps, as they are; it may be entered again, not nested.

    budget      the most device memory of this process, "70 GiB" or bytes. As few bytes as needed move; none
                when all fits. Without a budget as much moves as hides behind compute.
    plan        a plan record that says per tensor class what moves and what is computed again (`lostflops
                plan offload` makes them), or "everything" for all that can move, whatever it costs.
    link        a link card (`measure_link`); without, the rates of the first microbatch are used.
    threshold   storages below this stay; without, what the link carries while one copy is launched, and
                with a plan nothing: it has decided.
    device      how to copy, or a GPU by its name; without, the GPU that the model is on. `ThreadedDevice()`
                tries it out on a CPU.
    verify      "first step": in the first microbatch, and in the first after each choice of more to move,
                every tensor that the backward gets is compared with the one that was saved, before the
                optimizer sees a gradient. Reads both once more on the device and keeps 8 bytes of each;
                later microbatches pay nothing. None: nothing is compared.
    host_limit  the most host memory; without, what this process may use by its container's limits.

    Raises Refused, here, on entering, or in a step, when it cannot do what was asked.
    """
    if budget is not None and plan is not None:
        raise Refused("a budget and a plan were given", "a plan has its budget: leave out one of the two")
    if isinstance(plan, Mapping):
        _check(plan)
    elif plan not in (None, EVERYTHING):
        raise Refused(f"{plan!r} is no plan", 'give a plan record, or "everything"')
    card = None if link is None else _link(link)
    if threshold is not None:
        least = bytes_of(threshold)
    else:
        least = 1 if isinstance(plan, Mapping) else _threshold(card)
    return Engine(
        model,
        None if budget is None else bytes_of(budget),
        plan,
        card,
        least,
        device_named(device) if isinstance(device, str | int | torch.device) else device or device_of(model),
        verify is not None,
        host_share.memory() if host_limit is None else bytes_of(host_limit),
    )


def _check(plan: Plan) -> None:
    if plan.get("kind") != "offload plan" or plan.get("schema") != 1:
        raise Refused("this is no offload plan of schema 1", "make it with `lostflops plan`")
    if plan.get("refused"):
        raise Refused(
            f"the plan is a refusal: {plan['refused']}", "plan with another budget or another method"
        )
    wrong = [f"{name}: {what}" for name, what in plan["classes"].items() if what not in DECISIONS]
    if wrong:
        raise Refused(
            f"the engine keeps, offloads and recomputes, the plan wants more ({wrong[0]})",
            "make it with `lostflops plan offload`",
        )


def _link(card: Mapping[str, Any]) -> Link:
    out_launch, out_rate = rate(card, "device_to_host")
    in_launch, in_rate = rate(card, "host_to_device")
    return Link(out_rate, in_rate, max(out_launch, in_launch))


def _threshold(link: Link | None) -> int:
    """Below this a copy takes mostly its launch."""
    if link is None:
        return round(LAUNCH_NS * ASSUMED_RATE / 1e9)
    return round(link.launch_ns * link.out_bytes_per_second / 1e9)


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

    __slots__ = ("_engine", "handle", "microbatch", "print", "version", "view")

    def __init__(
        self,
        engine: Engine,
        microbatch: Watched,
        handle: Handle,
        tensor: torch.Tensor,
        view: View,
        print_: Fingerprint | None,
    ) -> None:
        self._engine = engine
        self.print = print_
        self.microbatch = microbatch
        self.handle = handle
        self.view = view
        self.version = claims.Version(tensor)

    def unpack(self) -> torch.Tensor:
        return self._engine.unpack(self)

    def __del__(self) -> None:
        # Any thread, in the middle of anything: the engine takes note, and acts when it can.
        self._engine.dropped(self.handle)


# Hooks see what all models save, so one engine at a time.
_entered: list[Engine] = []


class Engine:
    """See `offload`."""

    def __init__(
        self,
        model: torch.nn.Module,
        budget: int | None,
        plan: Plan | str | None,
        card: Link | None,
        threshold: int,
        device: Device,
        verify: bool,
        host_limit: int,
    ) -> None:
        self.model = model
        self.device = device
        self._budget = budget
        self._plan = plan
        self._decisions = (
            frozenset(plan["classes"].values()) if isinstance(plan, Mapping) else frozenset[str]()
        )
        self._card = card
        self._threshold = threshold
        self._verify = verify
        self._arena = Arena(device, host_limit)
        self._schedule = Schedule(device, self._arena)
        self._meter = PeakMeter(device)
        self._tally = Tally()
        self._lock = threading.Lock()  # not reentrant: a finalizer that finds it taken leaves a note instead
        self._dropped: deque[Handle] = deque()
        self._open: dict[tuple[Any, ...], tuple[Entry, weakref.ref[torch.UntypedStorage]]] = {}
        self._known: dict[Entry, tuple[tuple[Any, ...], Watched]] = {}
        self._own: set[int] = set()
        self._now: Watched | None = None
        self._learned: Learned | None = None
        self._selection: Selection | None = None
        self._to_watch = 2  # microbatches: much is done once, in the first, so the second is timed again
        self._slab_bytes = 0  # that the selection needs
        self._in_use_at_choice = 0
        self._resting = False  # nothing is to move: the engine only looks up once per forward
        self._off: str | None = None  # why nothing moves any more
        self._stack: ExitStack | None = None
        self._paths: ModulePaths | None = None
        self._verify_wanted = verify
        self._checks: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._check_streams: set[Stream] = set()
        self._callback_queued = False
        self._checked = 0
        self._checked_numbers: set[int] = set()  # of entries
        self._bypassed_bytes = 0
        self._peak_bytes = 0  # measured, since the choice
        self._warm_allocations: int | None = None
        self._notes: dict[str, None] = {}

    # The context.

    def __enter__(self) -> Engine:
        self._refuse_here()
        stack = ExitStack()
        if self.recomputes:
            stack.enter_context(checkpoint(self.model, plan=cast("Plan", self._plan)))
        try:
            if self._learned is None:
                self._paths = stack.enter_context(ModulePaths(self.model))
            stack.callback(self.model.register_forward_pre_hook(self._forward_begins).remove)
            stack.callback(claims.register(self._claim, last=True))
            stack.enter_context(claims.hooks())
        except RuntimeError as error:
            stack.close()
            raise Refused(
                f"saved-tensor hooks cannot be installed here ({error})", "enter the engine outside"
            ) from error
        _entered.append(self)
        self._stack = stack
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        stack, self._stack = self._stack, None
        _entered.remove(self)
        assert stack is not None
        try:
            stack.__exit__(kind, error, trace)
        finally:
            self._paths = None
            with self._lock:
                if kind is None:
                    self._end()
                else:
                    self._now = None  # a backward that broke off teaches nothing

    def _refuse_here(self) -> None:
        if _entered:
            raise Refused("an offload engine is entered already", "enter one engine, around the whole step")
        if torch.compiler.is_compiling():
            raise Refused("the context is being traced", "enter it outside of what torch.compile compiles")
        top = _TORCH._autograd._top_saved_tensors_default_hooks(True)
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
        for name, parameter in self.model.named_parameters():
            if parameter.device != self.device.torch_device and id(parameter) not in claims.travelling:
                raise Refused(
                    f"{name} is on {parameter.device}, the engine works on {self.device.torch_device}",
                    "move the model, or pass the device that it is on",
                )

    @property
    def entered(self) -> bool:
        return self._stack is not None

    @property
    def recomputes(self) -> bool:
        """Whether the plan computes something again, beside what it moves."""
        return "recompute" in self._decisions and self._off is None

    def predicted_slower(self) -> float:
        """By how much copies and what is computed again make a microbatch longer, as a share of it."""
        learned, chosen = self._learned, self._selection
        copies = chosen.exposed_ns / max(1, learned.compute_ns) if learned and chosen else 0.0
        again = 0.0
        if self.recomputes and isinstance(self._plan, Mapping) and "predicted" in self._plan:
            predicted = self._plan["predicted"]
            again = predicted["recompute_ns"] / max(1, predicted["without"]["step_ns"])
        return (1 + copies) * (1 + again) - 1

    def switch_off(self, why: str) -> None:
        """From now on everything stays. What has left comes back when asked for."""
        self._off = why

    # Saving.

    def _claim(self, tensor: torch.Tensor) -> claims.Packed | None:
        if torch.compiler.is_compiling():
            raise Refused(
                "a saved tensor is being traced", "compile the model's layers, not the engine's context"
            )
        if self._resting:
            return None
        begun = time.perf_counter_ns()
        with self._lock:
            packed = self._pack(self._microbatch(), tensor)
        self._collect()
        if self._learned is not None:
            stays = isinstance(packed, _Stays)
            self._tally.took("keep" if stays else "pack", time.perf_counter_ns() - begun)
        return packed

    def _microbatch(self) -> Watched:
        """The one that is going on; a new one when a backward has run since."""
        now = self._now
        if _inside_backward():
            now = now or self._begin()
        elif now is None or now.unpacks:
            self._end()
            now = self._begin()
            self._tally.microbatches += 1
        elif now.entries and not now.live:
            now = self._begin()  # a forward that was given up: again from the start
        now.packs += 1
        return now

    def _pack(self, now: Watched, tensor: torch.Tensor) -> claims.Packed:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return self._take_apart(now, tensor)
        reason = self._why_it_stays(tensor)
        if reason is not None:
            return self._stay(now, tensor, reason)
        storage = tensor.untyped_storage()
        version = None if tensor.is_inference() else tensor._version
        key = (address_of(storage), storage.data_ptr(), storage.nbytes(), version)
        view, entry = whole_view(tensor), self._find(key)
        if entry is None:
            part = view_of(tensor)
            if part is not None:
                view, key = part, (*key, *part.key)
                entry = self._find(key)
        if entry is not None:
            self._tally.shared_bytes += tensor.numel() * tensor.element_size()
        elif storage.nbytes() < self._threshold:  # what is freed, even where less travels
            return self._stay(now, tensor, "below the threshold")
        elif _inside_backward():
            return self._stay(now, tensor, "saved during the backward")
        else:
            entry = self._admit(now, key, tensor, view)
        print_ = fingerprint(tensor) if self._verify else None
        return _Travels(self, self._known[entry][1], self._schedule.add_handle(entry), tensor, view, print_)

    def _take_apart(self, now: Watched, tensor: torch.Tensor) -> claims.Packed:
        if hasattr(tensor, "trigger_wait"):  # a collective may still be writing: what uses it would wait, too
            return self._pack(now, cast("Any", tensor).trigger_wait())
        kinds = {kind.__name__ for kind in type(tensor).__mro__}
        if kinds & {"FakeTensor", "FunctionalTensor"}:
            raise Refused(
                f"a saved {type(tensor).__name__} is being traced",
                "enter the engine outside of what is traced",
            )
        if tensor.is_nested:  # the size of a jagged dimension is known by the very tensor of its offsets
            return self._stay(now, tensor, "nested")
        if not hasattr(tensor, "__tensor_flatten__"):
            return self._stay(now, tensor, f"a {type(tensor).__name__}, which cannot be taken apart")
        whole = apart(tensor)
        parts = {name: self._pack(now, value) for name, value in whole.tensors.items()}
        if all(isinstance(part, _Stays) for part in parts.values()):
            return _Stays(self, tensor)
        return Rebuilt(tensor, whole, parts)

    def _why_it_stays(self, tensor: torch.Tensor) -> str | None:
        if self._off is not None:
            return "the engine is off"
        if tensor.device != self.device.torch_device:
            return "on another device"
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return "not strided"
        if tensor.is_conj() or tensor.is_neg():
            return "conjugated lazily"
        if address_of(tensor.untyped_storage()) in self._own or _is_own(tensor):
            return "parameter or buffer"
        if tensor.numel() == 0:
            return "empty"
        return "host and device share memory" if self.device.coherent else None

    def _stay(self, now: Watched, tensor: torch.Tensor, reason: str) -> _Stays:
        for storage in storages_of(tensor):
            if address_of(storage) not in now.counted:
                now.counted.add(address_of(storage))
                self._tally.keeps(reason, storage.nbytes())
        if self._learned is None:
            now.stayed.setdefault(self._class_of(tensor), reason)
        return _Stays(self, tensor)

    def _class_of(self, tensor: torch.Tensor) -> str:
        return tensor_class(self._paths.innermost if self._paths else "", operator_of(tensor))

    def _find(self, key: tuple[Any, ...]) -> Entry | None:
        """An entry of the same memory and version. A storage whose reference is dead is another one, at an
        address that is used again."""
        found = self._open.get(key)
        return None if found is None or found[1]() is None else found[0]

    def _admit(self, now: Watched, key: tuple[Any, ...], tensor: torch.Tensor, view: View) -> Entry:
        if self.device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Refused("a CUDA graph is being captured", "capture outside of the engine")
        source = saved_views.bytes_of(tensor, view)
        entry = self._schedule.admit(now, source)
        self._open[key] = entry, weakref.ref(tensor.untyped_storage())
        self._known[entry] = key, now
        now.live += 1
        if self._to_watch:
            now.saved_events.append(self._record())
            self._see_memory(now, entry, asked=False)
        if self._learned is None:
            now.classes.append(self._class_of(tensor))
            several = 4 if self._budget is None else 1  # while the peak is unknown, no more than must be
            self._schedule.limits = Limits(
                in_flight_bytes=max(several * entry.nbytes, self._schedule.limits.in_flight_bytes or 0),
                look_ahead_bytes=max(2 * entry.nbytes, self._schedule.limits.look_ahead_bytes),
            )
        self._decide(now, entry)
        return entry

    def _decide(self, now: Watched, entry: Entry) -> None:
        chosen = self._selection
        if chosen is not None:
            known = entry.number < len(chosen.moves)
            if (
                chosen.moves[entry.number]
                if known
                else chosen.bytes_out and not isinstance(self._plan, Mapping)
            ):
                self._send(now, entry)
            else:
                self._keep(entry, "by the plan" if self._plan else "not needed, or not hidden")
        elif isinstance(self._plan, Mapping):
            if self._plan["classes"].get(now.classes[entry.number]) == "offload":
                self._send(now, entry)
            else:
                self._keep(entry, "by the plan")
        elif self._budget is None:
            self._send(now, entry)
        else:
            self._relieve(now, self._budget)

    def _relieve(self, now: Watched, budget: int) -> None:
        """In the first microbatch, whose peak nobody knows: sends the oldest once the device fills up."""
        excess = self._in_use() - self._schedule.leaving_bytes - FIRST_SHARE * budget
        for entry in now.entries:
            if excess <= 0:
                return
            if entry.state is State.RESIDENT and not entry.sent and entry.handles:
                self._send(now, entry)
                excess -= entry.nbytes

    def _send(self, now: Watched, entry: Entry) -> None:
        if self._schedule.send(entry):
            now.sent += 1
            self._tally.moved += 1
        else:
            self._tally.keeps("host memory full", entry.nbytes)

    def _see_memory(self, now: Watched, entry: Entry, asked: bool) -> None:
        """What there is besides the saved storages: what the backward makes is part of the peak."""
        if self._learned is None and self._budget is not None:
            in_use = self._in_use()
            now.most_in_use = max(now.most_in_use, in_use)
            beside = in_use - now.base_bytes - self._schedule.resident_bytes
            now.beside[entry.number, asked] = max(beside, now.beside.get((entry.number, asked), 0))

    def _keep(self, entry: Entry, reason: str) -> None:
        self._schedule.keep(entry, reason)
        self._tally.keeps(reason, entry.nbytes)

    # Asking.

    def backward_runs(self) -> None:
        now = self._now
        if now is not None:
            if self._learned is None and not now.unpacks:
                self._bypassed_bytes = held_by_selective_checkpoints(self.device.torch_device)
            now.unpacks += 1

    def unpack(self, saved: _Travels) -> torch.Tensor:
        begun = time.perf_counter_ns()
        saved.version.check()
        entry, microbatch = saved.handle.entry, saved.microbatch
        self.backward_runs()
        with self._lock:
            if microbatch is not self._now:
                microbatch.unpacks += 1
            memory = self._schedule.hand_out(microbatch, saved.handle, _backward())
            if self._to_watch or (microbatch.order and entry.number == microbatch.order[-1]):
                microbatch.end = self._record()
            self._see_memory(microbatch, entry, asked=True)
            microbatch.asked.setdefault(entry.number, microbatch.end)
            tensor = restored(saved.view, memory)
            if saved.print is not None and (entry.sent or saved.view.gathered):
                self._check(entry, saved.print, tensor)
        self._collect()
        if self._learned is not None:
            self._tally.took("unpack", time.perf_counter_ns() - begun)
        return tensor

    def dropped(self, handle: Handle) -> None:
        self._dropped.append(handle)
        self._collect()

    def _collect(self) -> None:
        """Drops what finalizers have left, unless somebody is at it: they do so when they are done."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._drop_all()
            finally:
                self._lock.release()

    def _drop_all(self) -> None:
        while self._dropped:
            handle = self._dropped.popleft()
            entry = handle.entry
            self._schedule.drop(handle)
            if not entry.handles:
                key, microbatch = self._known.pop(entry)
                found = self._open.get(key)
                if found is not None and found[0] is entry:
                    self._open.pop(key, None)
                microbatch.live -= 1

    # Checking.

    def _check(self, entry: Entry, saved: Fingerprint, tensor: torch.Tensor) -> None:
        microbatch = self._known[entry][1]
        classes = self._learned.classes if self._learned is not None else microbatch.classes
        name = classes[entry.number] if entry.number < len(classes) else "a saved tensor"
        self._checks.append((name, saved.sums, fingerprint(tensor, saved.order).sums))
        self._check_streams |= {entry.stream, self.device.current_stream()}
        self._checked_numbers.add(entry.number)
        microbatch.checked = True
        if not self._callback_queued and _inside_backward():
            self._callback_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # pyright: ignore

    def _backward_ends(self) -> None:
        """Raises out of the backward itself, so that no optimizer gets what is wrong."""
        self._callback_queued = False
        with self._lock:
            self._compare()

    def _compare(self) -> None:
        checks, self._checks = self._checks, []
        if not checks:
            return
        for stream in self._check_streams:  # on which sums were made
            self.device.synchronize(self.device.record(stream))
        self._check_streams.clear()
        equal = torch.cat([before for _, before, _ in checks]) == torch.cat([after for _, _, after in checks])
        found = cast("list[bool]", equal.tolist())  # pyright: ignore[reportUnknownMemberType]
        self.device.synchronize(self._record())  # the sums go back to the streams that they are from
        for (name, _, _), same in zip(checks, found, strict=True):
            if not same:
                self._off = f"switched off: {name} changed between its save and its use"
                raise Refused(
                    f"{name} changed between its save and its use: this backward's gradients are wrong, or "
                    "differ from those without the engine",
                    "if a kernel, or a write through .data, changes saved memory unseen by autograd, have "
                    "the plan keep its class; if not, this is a fault of the engine: please report it",
                )
        self._checked += len(checks)
        self._verify = False

    # Between microbatches.

    def _record(self) -> Event:
        return self.device.record(self.device.current_stream())

    def _begin(self) -> Watched:
        # Anew each time, as wrapping a model replaces them. By storage: what is saved is a view of any shape.
        own: list[torch.Tensor] = [*self.model.parameters(), *self.model.buffers()]
        self._own = {address_of(storage) for tensor in own for storage in storages_of(tensor)}
        self._tally.harvest(self._schedule, self.device, wait=False)
        now = Watched(begin=self._record())
        self._now = now
        self._callback_queued = False  # a backward that broke off does not call
        if self._learned is None:
            now.base_bytes = self._in_use()
            self._meter.start(anew=self._budget is not None)
        else:
            self._adapt(self._learned)
            now.expected = len(self._learned.saved)
            now.order = list(self._learned.order)
            now.due_ns = list(self._learned.due_ns)
        if self._tally.microbatches == 2 and self._warm_allocations is None:
            self._warm_allocations = self._arena.allocations
        return now

    def _end(self) -> None:
        """Learns from the first microbatch, and chooses what the next ones move."""
        self._drop_all()
        now = self._now
        if now is None or not now.unpacks:
            return
        self._now = None
        if self._checks:
            self._compare()
        if self._off is not None:
            return
        if self._learned is None and isinstance(self._plan, Mapping):
            self._refusing(lambda: check_found(cast("Plan", self._plan), now.classes, now.stayed))
        moves = self._plan == EVERYTHING or "offload" in self._decisions
        asked_to = moves or (self._selection is not None and self._selection.bytes_out)
        if asked_to and not self._tally.moved:
            stayed = ", ".join(f"{written(n)} {why}" for why, n in self._tally.kept_bytes.items()) or "none"
            self._off = "switched off: nothing could be moved"
            raise Refused(
                f"tensors were to be moved and none was; those that stayed: {stayed}",
                "lower the threshold, enter the engine around the forward, or raise host_limit",
            )
        learned = self._learned
        if learned is None:
            if now.asked:
                self._learn(now)
            return
        if now.end is not None and not self._to_watch:
            self._tally.steps.append((now.begin, now.end))
        if now.expected == len(now.entries) and len(now.asked) == len(learned.order):
            if self._to_watch and now.checked:
                pass  # checking takes time: the next one is timed
            elif self._to_watch:
                self._learn_again(now, learned)
            else:
                self._learned = replace(learned, order=list(now.asked))
        elif now.entries:
            self._notes["microbatches do not all save the same: some copies are not foreseen"] = None
            if self._to_watch and self._selection is not None:
                self._to_watch = 0
                self._resting = not self._selection.bytes_out

    def _learn(self, now: Watched) -> None:
        schedule = self._schedule
        schedule.finish()
        stalls = [(stall.start, stall.end) for stall in schedule.stalls] + self._arena.asking
        self._arena.asking = []
        link = self._card or self._tally.measured_link(schedule, self.device)
        peak = self._meter.peak()
        if self._budget is not None and peak is None and isinstance(self.device, Metered):
            self._notes[
                "memory was higher before the first microbatch, so its own peak is not known: what the step "
                "takes for a moment only is not in the budget until it exceeds it"
            ] = None
        self._learned = learn(now, stalls, self.device, link, peak)
        self._to_watch -= 1
        if self._paths is not None:
            self._paths.__exit__()
        self._choose(self._learned)

    def _learn_again(self, now: Watched, learned: Learned) -> None:
        """What is saved is known; when, anew. What moves can only become less: its host memory is there."""
        self._schedule.finish()
        stalls = [(stall.start, stall.end) for stall in self._schedule.stalls] + self._arena.asking
        self._arena.asking = []
        timed = learn(now, stalls, self.device, learned.link, None)
        saved = [
            replace(one, saved_ns=again.saved_ns, asked_ns=again.asked_ns)
            for one, again in zip(learned.saved, timed.saved, strict=True)
        ]
        self._learned = replace(timed, saved=saved, classes=learned.classes, other_bytes=learned.other_bytes)
        self._to_watch -= 1
        self._choose(self._learned)

    def _adapt(self, learned: Learned) -> None:
        """Chooses again when a step needs more than was foreseen: it has optimizer states, a higher peak."""
        budget, chosen = self._budget, self._selection
        peak = self._meter.peak()
        self._meter.start()
        if budget is not None and chosen is not None and self._off is None:
            if peak is not None and peak > budget:
                self._learned = learned = replace(learned, other_bytes=learned.other_bytes + peak - budget)
            if self._in_use() + learned.other_bytes + chosen.resident_bytes > budget:
                self._choose(learned)
        if self._arena.idle:
            self._arena.settle(max(self._slab_bytes, self._arena.most_used_bytes))

    def _choose(self, learned: Learned) -> None:
        in_use, among = self._in_use(), self._selection
        chosen = self._refusing(
            lambda: choose(learned, self._plan, self._budget, in_use, among and among.moves)
        )
        moved = (one.nbytes for one, moves in zip(learned.saved, chosen.moves, strict=True) if moves)
        self._slab_bytes = sum(aligned(nbytes) for nbytes in moved)
        if self._slab_bytes > self._arena.limit:
            if self._plan is not None or self._budget is not None:
                self._off = "switched off: too little host memory"
                raise Refused(
                    f"{written(self._slab_bytes)} would have to wait in host memory, of which there are "
                    f"{written(self._arena.limit)} for this process",
                    "allow the container more memory, pass host_limit, or move less",
                )
            self._slab_bytes = self._arena.limit
        new = any(moves and n not in self._checked_numbers for n, moves in enumerate(chosen.moves))
        self._verify = self._verify or (self._verify_wanted and new)
        self._selection = chosen
        self._in_use_at_choice = in_use
        self._schedule.limits = Limits(chosen.in_flight_bytes, chosen.look_ahead_bytes, chosen.look_ahead_ns)
        self._schedule.most_resident_bytes = self._schedule.resident_bytes
        self._arena.start_counting()
        if self._arena.idle:
            self._arena.settle(self._slab_bytes)
        self._resting = not chosen.bytes_out and not self._to_watch

    def _forward_begins(self, *_: Any) -> None:
        if self._resting and torch.is_grad_enabled() and not _inside_backward() and self._learned is not None:
            with self._lock:
                self._tally.microbatches += 1
                self._now = None  # what began as the last before the rest
                self._adapt(self._learned)

    def _refusing(self, decide: Callable[[], T]) -> T:
        """A refusal in the middle of training switches the engine off: the caller may go on without it."""
        try:
            return decide()
        except Refused as refused:
            self._off = f"switched off: {refused.reason}"
            raise

    def _in_use(self) -> int:
        """Bytes of device memory now: by the device's own count where it has one, else what is known here."""
        if isinstance(self.device, Metered):
            return self.device.allocated_bytes() + self.device.outside_bytes()
        return static_bytes(self.model) + self._schedule.resident_bytes

    # Telling.

    def prove(self, step: Any, pairs: int = 3) -> Proof:
        """Runs `step` (a forward and backward, no optimizer) with and without the engine, in turns, and
        compares gradients, time and peak. Switches the engine off when it does harm, and says so."""
        return prove(self, step, pairs)

    def report(self) -> OffloadReport:
        """What happened so far. Waits for the copies under way."""
        with self._lock:
            self._drop_all()
            if self._checks:
                self._compare()
            self._tally.harvest(self._schedule, self.device, wait=True)
        tally, card, arena = self._tally, self._card, self._arena

        def one_way(direction: Direction) -> OneWay:
            way = tally.ways[direction]
            stalled = sum(ns for cause, ns in tally.stalls_ns.items() if DIRECTION_OF[cause] == direction)
            speed = card and (card.out_bytes_per_second if direction == "out" else card.in_bytes_per_second)
            return OneWay(way.bytes, way.copies, way.nanoseconds, stalled, speed)

        warm = arena.allocations if self._warm_allocations is None else self._warm_allocations
        predicted, measured = self._foreseen()
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
            bypassed_bytes=self._bypassed_bytes,
            host_used_bytes=arena.most_used_bytes,
            host_held_bytes=arena.held_bytes,
            host_allocations=arena.allocations,
            host_allocations_after_warm_up=arena.allocations - warm,
            pack_ns=tally.mean_ns("pack"),
            keep_ns=tally.mean_ns("keep"),
            unpack_ns=tally.mean_ns("unpack"),
            predicted=predicted,
            measured=measured,
            verified=f"{self._checked} times, bytes were those that had been saved"
            if self._checked
            else None,
            notes=(*self._notes, *self._of_host_memory()),
        )

    def _of_host_memory(self) -> list[str]:
        arena = self._arena
        if arena.not_pinned is None:
            return []
        pageable = f"{written(arena.pageable_bytes)} of the host memory are pageable"
        return [f"{arena.not_pinned}: {pageable}, and copies to and from there are slower"]

    def _foreseen(self) -> tuple[dict[str, int], dict[str, int]]:
        learned, chosen = self._learned, self._selection
        if learned is None or chosen is None:
            return {}, {}
        predicted = {"step_ns": chosen.step_ns, "saved_on_device_bytes": chosen.resident_bytes}
        measured = {"saved_on_device_bytes": self._schedule.most_resident_bytes}
        step_ns = self._tally.step_ns()
        if step_ns is not None:
            measured["step_ns"] = step_ns
        if isinstance(self.device, Metered) and self._budget is not None:
            predicted["peak_bytes"] = self._in_use_at_choice + learned.other_bytes + chosen.resident_bytes
            measured["peak_bytes"] = self.device.most_allocated_bytes() + self.device.outside_bytes()
        return predicted, measured

    def _state(self) -> str:
        if self._off is not None:
            return self._off
        if self._selection is None:
            return "watching the first microbatch"
        again = " and computing again" if self.recomputes else ""
        if self._selection.bytes_out:
            return f"moving{again}"
        if self._decisions:
            return f"nothing is moved{again}, by the plan"
        if self._budget is not None:
            return "everything fits: nothing is moved"
        return "no copy would hide behind compute: nothing is moved"


def _is_own(tensor: torch.Tensor) -> bool:
    """A parameter that the model does not list, or a view of one: a weight gathered by FSDP."""
    return isinstance(tensor._base if tensor._is_view() else tensor, torch.nn.Parameter)


def _backward() -> int:
    """Autograd's number of the backward that this thread works for, -1 outside."""
    return _TORCH._current_graph_task_id()


def _inside_backward() -> bool:
    return _backward() != -1
