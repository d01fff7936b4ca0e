"""What autograd saves and asks for, one tensor at a time: whether it may move, and what is handed back.

Every saved tensor of a step passes here, so that each line counts: a step of many small tensors must not wait
for its host. `benchmarks/hook_cost.py` measures it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from lostflops.optimize import claims
from lostflops.optimize.activations import saved_views
from lostflops.optimize.activations.bypassed import held_by_selective_checkpoints
from lostflops.optimize.activations.checksum import Fingerprint, fingerprint
from lostflops.optimize.activations.offload.phases import Phase
from lostflops.optimize.activations.offload.schedule import CopySchedule, Entry, Handle, StorageState
from lostflops.optimize.activations.saved_views import View, restored, view_of, whole_view
from lostflops.optimize.activations.tensor_class import operator_of, tensor_class
from lostflops.optimize.device.peak import address_of, storages_of
from lostflops.optimize.refused import Refused
from lostflops.optimize.subclasses import Rebuilt, apart

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.asked import Asked
    from lostflops.optimize.activations.offload.checking import Checker
    from lostflops.optimize.activations.offload.choice import Watched
    from lostflops.optimize.activations.offload.learning import Learner
    from lostflops.optimize.activations.offload.sending import Sender
    from lostflops.optimize.activations.offload.tally import OffloadTally
    from lostflops.optimize.device.devices import Device

_TORCH: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_backward = _TORCH._current_graph_task_id  # autograd's number of the backward of this thread, -1 outside
_now = time.perf_counter_ns


class _Stays(claims.Kept):
    """A saved tensor that is none of the schedule's: it may not move."""

    __slots__ = ("_saver",)

    def __init__(self, saver: Saver, tensor: torch.Tensor) -> None:
        claims.Kept.__init__(self, tensor)
        self._saver = saver

    def unpack(self) -> torch.Tensor:
        self._saver.backward_runs()
        return claims.Kept.unpack(self)


class _Remains(claims.Kept):
    """A saved tensor whose entry is kept: on the device all the time, and asked for like those that move."""

    __slots__ = ("_saver", "entry", "microbatch")

    def __init__(self, saver: Saver, microbatch: Watched, entry: Entry, tensor: torch.Tensor) -> None:
        claims.Kept.__init__(self, tensor)
        self._saver = saver
        self.microbatch = microbatch
        self.entry = entry

    def unpack(self) -> torch.Tensor:
        tensor = claims.Kept.unpack(self)
        self._saver.asked(self.microbatch, self.entry)
        return tensor

    def __del__(self) -> None:
        self._saver.dropped(self.entry)


class _Travels:
    """A saved tensor whose bytes are an entry's: everything of it but its memory."""

    __slots__ = ("_saver", "handle", "microbatch", "print", "version", "view")

    def __init__(
        self,
        saver: Saver,
        microbatch: Watched,
        handle: Handle,
        tensor: torch.Tensor,
        view: View,
        print_: Fingerprint | None,
    ) -> None:
        self._saver = saver
        self.print = print_
        self.microbatch = microbatch
        self.handle = handle
        self.view = view
        self.version = claims.Version(tensor)

    def unpack(self) -> torch.Tensor:
        return self._saver.unpack(self)

    def __del__(self) -> None:
        # Any thread, in the middle of anything: note is taken, and acted on when that can be.
        self._saver.dropped(self.handle)


@dataclass(eq=False, slots=True)
class _Given:
    """What was handed out for an entry, and its count of writes. Once it is gone and unchanged nothing is
    left to be watched."""

    tensor: weakref.ref[torch.Tensor]
    version: claims.Version


@dataclass(eq=False, slots=True)
class _Open:
    """An entry that others may share who have the same memory, at the same version of the same counter."""

    entry: Entry
    storage: weakref.ref[torch.UntypedStorage]
    owner: weakref.ref[torch.Tensor]  # of the counter


class Saver:
    """`claim` is asked for each tensor that autograd saves.

    `lock` guards all that the engine knows. It is not reentrant: a finalizer that finds it taken leaves a
    note.
    """

    def __init__(
        self,
        device: Device,
        asked: Asked,
        learner: Learner,
        sender: Sender,
        checker: Checker,
        schedule: CopySchedule,
        tally: OffloadTally,
        lock: threading.Lock,
    ) -> None:
        self.bypassed_bytes: int | None = None  # of the first microbatch
        self._device = device
        self._torch_device = device.torch_device
        self._coherent = device.coherent
        self._threshold = asked.threshold
        self._names_count = asked.classes is not None
        self._learner = learner
        self._sender = sender
        self._checker = checker
        self._schedule = schedule
        self._tally = tally
        self._lock = lock
        self._dropped: deque[Handle | Entry] = deque()
        self._open: dict[tuple[Any, ...], _Open] = {}
        self.known: dict[Entry, tuple[tuple[Any, ...], Watched]] = {}  # entries that somebody may ask for
        self._given: dict[Entry, list[_Given]] = {}

    # Saving.

    def claim(self, tensor: torch.Tensor) -> claims.Packed | None:
        if torch.compiler.is_compiling():
            raise Refused(
                "a saved tensor is being traced", "compile the model's layers, not the engine's context"
            )
        learner = self._learner
        if learner.phase is Phase.RESTING:
            return None
        begun = _now()
        with self._lock:
            packed = self._pack(self._microbatch(), tensor)
        if self._dropped:
            self._collect()
        if learner.learned is not None:
            self._tally.took("pack" if type(packed) is _Travels else "keep", _now() - begun)
        return packed

    def _microbatch(self) -> Watched:
        """The one that is going on; a new one when a backward has run since."""
        learner = self._learner
        now = learner.now
        if _backward() != -1:
            return now or learner.begin()
        if now is None or now.unpacks:
            self.drop_all()
            learner.end()
            now = learner.begin()
            self._tally.microbatches += 1
        elif now.entries and not now.live:
            now = learner.begin()  # a forward that was given up: again from the start
        return now

    def _pack(self, now: Watched, tensor: torch.Tensor) -> claims.Packed:
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            return self._take_apart(now, tensor)
        reason = self._why_it_stays(tensor)
        if reason is not None:
            return self._stay(now, tensor, reason)
        learner, storage = self._learner, tensor.untyped_storage()
        address, nbytes = cast("Any", storage)._cdata, storage.nbytes()
        owner = cast("torch.Tensor", tensor._base) if tensor._is_view() else tensor
        if address in learner.own or (type(owner) is not torch.Tensor and _is_own(owner)):
            return self._stay(now, tensor, "parameter or buffer")
        if tensor.numel() == 0:
            return self._stay(now, tensor, "empty")
        if self._coherent:
            return self._stay(now, tensor, "host and device share memory")
        if nbytes < self._threshold:  # what is freed, even where less travels
            if address in now.counted and not self._names_count:
                return _Stays(self, tensor)
            return self._stay(now, tensor, "below the threshold")
        version = None if tensor.is_inference() else tensor._version
        key = (address, storage.data_ptr(), nbytes, version)
        entry, view = self._find(key, owner), None
        if entry is None:
            view = view_of(tensor)
            if view is not None:
                key = (*key, *view.key)
                entry = self._find(key, owner)
        if entry is not None:
            self._tally.shared_bytes += tensor.numel() * tensor.element_size()
        elif _backward() != -1:
            return self._stay(now, tensor, "saved during the backward")
        elif view is None and learner.phase is Phase.MOVING and not self._sender.sends(len(now.entries)):
            return self._remain(now, key, storage, tensor, owner)
        else:
            entry = self._admit(now, key, tensor, owner, view or whole_view(tensor))
        microbatch = self.known[entry][1]
        if view is None and entry.state is StorageState.KEPT:
            entry.handles += 1
            return _Remains(self, microbatch, entry, tensor)
        handle = self._schedule.add_handle(entry)
        print_ = fingerprint(tensor) if self._checker.on else None
        return _Travels(self, microbatch, handle, tensor, view or whole_view(tensor), print_)

    def _remain(
        self,
        now: Watched,
        key: tuple[Any, ...],
        storage: torch.UntypedStorage,
        tensor: torch.Tensor,
        owner: torch.Tensor,
    ) -> _Remains:
        """What is neither to move nor to be timed is admitted without what that would take."""
        because = self._sender.kept_because
        entry = self._schedule.stays(now, tensor.detach(), key[2], because)
        self._open[key] = _Open(entry, weakref.ref(storage), weakref.ref(owner))
        self.known[entry] = key, now
        now.live += 1
        self._tally.keeps(because, key[2])
        return _Remains(self, now, entry, tensor)

    def _why_it_stays(self, tensor: torch.Tensor) -> str | None:
        if self._learner.phase is Phase.OFF:
            return "the engine is off"
        if tensor.device != self._torch_device:
            return "on another device"
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return "not strided"
        if tensor.is_conj() or tensor.is_neg():
            return "conjugated lazily"
        if cast("Any", tensor)._is_zerotensor():  # of torch.func.jvp
            return "zeros without memory"
        return None

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

    def _stay(self, now: Watched, tensor: torch.Tensor, reason: str) -> _Stays:
        for storage in storages_of(tensor):
            if address_of(storage) not in now.counted:
                now.counted.add(address_of(storage))
                self._tally.keeps(reason, storage.nbytes())
        if self._names_count and self._learner.learned is None:
            now.stayed.setdefault(self._class_of(tensor), reason)
        return _Stays(self, tensor)

    def _class_of(self, tensor: torch.Tensor) -> str:
        paths = self._learner.paths
        return tensor_class(paths.innermost if paths else "", operator_of(tensor))

    def _find(self, key: tuple[Any, ...], owner: torch.Tensor) -> Entry | None:
        """An entry of the same memory and version. A storage whose reference is dead is another one, at an
        address that is used again. Two tensors of one storage may count their writes apart, as those of
        `unsafe_chunk` do: then equal versions say nothing."""
        found = self._open.get(key)
        if found is None or found.storage() is None:
            return None
        other = found.owner()
        return (
            found.entry if other is owner or (other is not None and _count_together(other, owner)) else None
        )

    def _admit(
        self, now: Watched, key: tuple[Any, ...], tensor: torch.Tensor, owner: torch.Tensor, view: View
    ) -> Entry:
        if self._torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Refused("a CUDA graph is being captured", "capture outside of the engine")
        entry = self._schedule.admit(now, saved_views.bytes_of(tensor, view))
        self._open[key] = _Open(entry, weakref.ref(tensor.untyped_storage()), weakref.ref(owner))
        self.known[entry] = key, now
        now.live += 1
        self._sender.saved(now, entry, None if self._learner.learned else self._class_of(tensor))
        return entry

    # Asking.

    def backward_runs(self) -> None:
        now = self._learner.now
        if now is not None:
            now.unpacks += 1
            if self.bypassed_bytes is None:
                self.bypassed_bytes = held_by_selective_checkpoints(self._torch_device)

    def asked(self, microbatch: Watched, entry: Entry) -> None:
        """For what has remained: the backward is there, so that others are fetched ahead."""
        begun = _now()
        self.backward_runs()
        with self._lock:
            self._schedule.passes(microbatch, entry, _backward())
            self._note(microbatch, entry)
        if self._dropped:
            self._collect()
        if self._learner.learned is not None:
            self._tally.took("keep, asked for", _now() - begun)

    def unpack(self, saved: _Travels) -> torch.Tensor:
        begun = _now()
        saved.version.check()
        entry, microbatch = saved.handle.entry, saved.microbatch
        self.backward_runs()
        with self._lock:
            for given in self._given.get(entry, ()):
                given.version.check()
            tensor = restored(saved.view, self._schedule.hand_out(microbatch, saved.handle, _backward()))
            self._gives(entry, tensor)
            self._note(microbatch, entry)
            if saved.print is not None and (entry.sent or saved.view.gathered):
                microbatch.checked = True
                self._checker.add(self._name(entry), entry, saved.print, tensor, _backward() != -1)
        if self._dropped:
            self._collect()
        if self._learner.learned is not None:
            self._tally.took("unpack", _now() - begun)
        return tensor

    def _gives(self, entry: Entry, tensor: torch.Tensor) -> None:
        """Who gets it may write to it, as to the tensor that was saved: nobody may have it afterwards."""
        given = [one for one in self._given.get(entry, ()) if one.tensor() is not None]
        self._given[entry] = [*given, _Given(weakref.ref(tensor), claims.Version(tensor))]

    def _note(self, microbatch: Watched, entry: Entry) -> None:
        """When it was asked for."""
        if microbatch is not self._learner.now:
            microbatch.unpacks += 1
        number, order = entry.number, microbatch.order
        if self._learner.timing or (order and number == order[-1]):
            microbatch.end = self._device.record(self._device.current_stream())
            self._sender.see_memory(microbatch, entry, asked=True)
        if number not in microbatch.asked:
            microbatch.asked[number] = microbatch.end

    def _name(self, entry: Entry) -> str:
        """Of what it was saved for, for people."""
        learned = self._learner.learned
        classes = self.known[entry][1].classes if learned is None else learned.classes
        return classes[entry.number] if entry.number < len(classes) else "a saved tensor"

    # Afterwards.

    def before_resize(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            self._schedule.before_resize(storage)

    def dropped(self, gone: Handle | Entry) -> None:
        self._dropped.append(gone)
        self._collect()

    def _collect(self) -> None:
        """Drops what finalizers have left, unless somebody is at it: they do so when they are done."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self.drop_all()
            finally:
                self._lock.release()

    def drop_all(self) -> None:
        while self._dropped:
            gone = self._dropped.popleft()
            if type(gone) is Entry:
                entry = gone
                self._schedule.drop_kept(entry)
            else:
                entry = cast("Handle", gone).entry
                self._schedule.drop(cast("Handle", gone))
            if not entry.handles:
                key, microbatch = self.known.pop(entry)
                self._given.pop(entry, None)
                found = self._open.get(key)
                if found is not None and found.entry is entry:
                    self._open.pop(key, None)
                microbatch.live -= 1


def _is_own(owner: torch.Tensor) -> bool:
    """A parameter that the model does not list: a weight gathered by FSDP."""
    return isinstance(owner, torch.nn.Parameter)


def _count_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to the one is counted as a write to the other, which torch tells nobody: the one's
    count is another for a moment. Where that cannot be asked they are taken as apart, which is right, and
    moves bytes twice."""
    set_versions = getattr(_TORCH._autograd, "_unsafe_set_version_counter", None)
    if set_versions is None or one.is_inference() or other.is_inference():
        return False
    version = one._version
    if other._version != version:
        return False
    try:
        set_versions((one,), (version + 1,))
        return other._version != version
    finally:
        set_versions((one,), (version,))
