"""The most memory that was alive at once: by the allocator's counters on a GPU, by watching tensors on a CPU.

    with peak.measured(device) as meter:
        train_one_step()
    meter.peak_bytes

On a CPU every operator is watched, which makes it slow. Memory counts from the operator that made it until
its last tensor, view or autograd node lets go. What an operator needs inside is not seen; on a GPU it is.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lostflops.optimize.subclasses import apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Storages that play host memory in a test on a CPU, by address: they are no memory of the device.
_HOST: set[int] = set()
_METERS: list[_Watched] = []  # that are entered


def is_host_memory(memory: torch.Tensor) -> None:
    """The storage, just made, counts for no peak: it stands for host memory where a CPU plays the device."""
    storage = memory.untyped_storage()
    address = address_of(storage)
    _HOST.add(address)
    weakref.finalize(storage, _HOST.discard, address).atexit = False
    for meter in _METERS:
        meter.forget(address)


def part_of_host_memory(memory: torch.Tensor, first: int, nbytes: int) -> torch.Tensor:
    """uint8[nbytes] of the memory with a storage of its own, which keeps all of it. Tensors of several dtypes
    in one storage cannot be saved."""
    start = int(memory.storage_offset()) + first
    part: Any = cast("Any", memory.untyped_storage())[start : start + nbytes]
    found = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(part)  # pyright: ignore[reportUnknownMemberType]
    if address_of(memory.untyped_storage()) in _HOST:
        is_host_memory(found)
    return found


def host_memory(nbytes: int) -> torch.Tensor:
    """uint8[nbytes] of zeros that stand for host memory."""
    memory = torch.zeros(nbytes, dtype=torch.uint8)
    is_host_memory(memory)
    return memory


def address_of(storage: torch.UntypedStorage) -> int:
    """What is the same for all tensors of one storage. Given to another one when this one is gone."""
    return cast("Any", storage)._cdata


_BY_ROW = ("crow_indices", "col_indices", "values")
_BY_COLUMN = ("ccol_indices", "row_indices", "values")
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _BY_ROW,
    torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}


def storages_of(value: Any) -> Iterator[torch.UntypedStorage]:
    """The storages behind a tensor; of a subclass, those of the tensors that it is made of."""
    if not isinstance(value, torch.Tensor):
        return
    if type(value) is not torch.Tensor and hasattr(value, "__tensor_flatten__"):
        for inner in apart(value).tensors.values():
            yield from storages_of(inner)
        return
    if value.layout in _PARTS:  # sparse tensors have no storage of their own
        for part in _PARTS[value.layout]:
            yield from storages_of(getattr(torch.Tensor, part)(value.detach()))
        return
    try:
        yield value.untyped_storage()
    except NotImplementedError:  # MKL-DNN's
        return


def measured(device: torch.device | str, existing: Iterable[torch.Tensor] = ()) -> _Allocator | _Watched:
    """A context that knows `peak_bytes` of the device while entered and afterwards.

    Counts what was alive before as well: on a GPU all of it, on a CPU `existing` (say, the model's
    parameters) and whatever the watched code touches. On a GPU it resets
    `torch.cuda.max_memory_allocated()`.
    """
    device = torch.device(device)
    return _Allocator(device) if device.type == "cuda" else _Watched(device, existing)


class _Allocator:
    """CUDA's allocator counts by itself. Not verified on a GPU yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak: int | None = None
        self._most = 0  # before the counter was reset
        self.found_bytes = 0

    @property
    def peak_bytes(self) -> int:
        if self._peak is not None:
            return self._peak
        return max(self._most, torch.cuda.max_memory_allocated(self._device))

    def high_bytes(self) -> int:
        """The most since the last call."""
        high = torch.cuda.max_memory_allocated(self._device)
        self._most = max(self._most, high)
        torch.cuda.reset_peak_memory_stats(self._device)
        return high

    def __enter__(self) -> _Allocator:
        torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *exception: object) -> None:
        self._peak = self.peak_bytes


class _Watched(TorchDispatchMode):
    """Storages alive, by watching what goes into and comes out of every operator."""

    def __init__(self, device: torch.device, existing: Iterable[torch.Tensor]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._device = device
        self._existing = list(existing)
        self._alive: dict[int, int] = {}  # bytes by the address of the storage
        self._freed: deque[int] = deque()
        self._watches: dict[int, Any] = {}
        self.live_bytes = 0
        self.found_bytes = 0  # of what was there before it was first seen
        self._peak = 0  # up to the operator before
        self._high = 0

    @property
    def peak_bytes(self) -> int:
        return max(self._peak, self.live_bytes)

    def high_bytes(self) -> int:
        """The most since the last call, without what was there but is only found later (`found_bytes`)."""
        self._see((), was_there=False)
        high, self._high = self._high, self.live_bytes
        return high

    def forget(self, address: int) -> None:
        """What the last operator made is none of the device's."""
        self.live_bytes -= self._alive.pop(address, 0)
        if address in self._watches:
            self._watches.pop(address).detach()

    def __enter__(self) -> _Watched:
        self._see(self._existing, was_there=True)
        self._existing.clear()
        super().__enter__()
        _METERS.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # pyright: ignore[reportUnknownMemberType]
        _METERS.remove(self)
        for watch in self._watches.values():
            watch.detach()
        self._watches.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A tensor made from Python's numbers is first seen going into lift_fresh: it is new.
        self._see(tree_leaves((args, kwargs)), was_there=func is not torch.ops.aten.lift_fresh.default)
        result = func(*args, **(kwargs or {}))
        self._see(tree_leaves(result), was_there=False)
        return result

    def _see(self, values: Iterable[Any], was_there: bool) -> None:
        # A storage may be freed in the middle of anything, by another thread or the garbage collector: that
        # is noted, and taken off before anything is added. The peak is at an addition, so it is exact.
        self._peak = self.peak_bytes
        self._high = max(self._high, self.live_bytes)
        while self._freed:
            address = self._freed.popleft()
            self.live_bytes -= self._alive.pop(address)
            del self._watches[address]
        for value in values:
            for storage in storages_of(value):
                self._add(storage, was_there)

    def _add(self, storage: torch.UntypedStorage, was_there: bool) -> None:
        address = address_of(storage)
        if address in _HOST or storage.device != self._device:
            return
        known = address in self._watches
        if not known:
            self._watches[address] = weakref.finalize(storage, self._freed.append, address)
        more = storage.nbytes() - self._alive.get(address, 0)  # it may have been resized
        self._alive[address] = storage.nbytes()
        self.live_bytes += more
        if was_there and not known:  # it was there at all earlier times, too: the peak rises with it
            self._peak += more
            self.found_bytes += more
            self._high += more
