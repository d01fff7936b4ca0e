"""What autograd saves between a model's forward and backward: which memory, how much, when, made by what.

Memory is counted once however many tensors share it: one by one, a Llama's layer looks 11 to 43 % larger.
"""

from __future__ import annotations

import time
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lostflops.optimize.activations.tensor_class import ModulePaths, operator_of, tensor_class
from lostflops.optimize.device import peak
from lostflops.optimize.device.peak import address_of, storages_of
from lostflops.optimize.random_places import RandomPlaces
from lostflops.optimize.refused import Refused
from lostflops.optimize.subclasses import apart

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

SCHEMA = 1


def saved_tensors(model: torch.nn.Module, batch_or_closure: Any) -> dict[str, Any]:
    """The profile of one forward and backward, as plain data: one row per storage, in the order of saving.

    `batch_or_closure` is what the model is called with (a dict by name, a tuple by position, or one value),
    or a function that returns the loss. The loss of a batch is the output's `loss`, else the sum of its
    first tensor. It runs twice, the first time slower; gradients, buffers and random numbers are as before
    afterwards.

    Times are in nanoseconds since the forward began, on the device's clock. A row with a `kept_reason` is
    nothing that could be moved. `bytes` is the storage's whole size, `covered_fraction` the share of it
    that the largest of its saved views spans, `unpack_ns` the first time that the backward asked for it
    (None: never), `recompute_ns` the time of the operators that wrote it. `static_bytes` was alive before:
    on a GPU all that was allocated, on a CPU parameters and buffers. `one_by_one_bytes` is what counting
    every saved tensor would give. `highs` is memory over time: pairs of an instant and the most bytes since
    the one before, at every save and request; None if the two passes did not save alike.

    Refuses a loss without a gradient, and a model on several devices.
    """
    device = _device(model)
    run = batch_or_closure if callable(batch_or_closure) else lambda: _called(model, batch_or_closure)
    with as_it_was(model, device) as rewind:
        first = _Pass(model, device, watched=True)
        first.run(run)
        rewind()
        second = _Pass(model, device, watched=False)
        second.run(run)
    rows = second.rows()
    # The second pass is timed undisturbed; what was only seen in the first is joined by the order of saving.
    if [(row["order"], row["bytes"]) for row in rows] == [(r["order"], r["bytes"]) for r in first.rows()]:
        for row, seen in zip(rows, first.rows(), strict=True):
            row["recompute_ns"] = seen["recompute_ns"]
    return {
        "schema": SCHEMA,
        "kind": "saved-tensor profile",
        "model": type(model).__name__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "forward_ns": second.forward_ns,
        "backward_ns": second.backward_ns,
        "static_bytes": second.static_bytes,
        "peak_bytes": second.peak_bytes if device.type == "cuda" else first.peak_bytes,
        "one_by_one_bytes": second.one_by_one_bytes,
        "highs": _highs(first, second),
        "rows": rows,
    }


def _highs(watched: _Pass, timed: _Pass) -> list[list[int]] | None:
    """Memory was read in the one pass, the time in the other."""
    if len(watched.highs) != len(timed.highs):
        return None
    return [[at, high] for (at, _), (_, high) in zip(timed.highs, watched.highs, strict=True)]


def _device(model: torch.nn.Module) -> torch.device:
    found = sorted({str(parameter.device) for parameter in model.parameters()}) or ["cpu"]
    if len(found) > 1:
        raise Refused(f"the model lies on {', '.join(found)}", "profile the part of the model on one device")
    return torch.device(found[0])


def _called(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**cast("dict[str, Any]", batch))
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def _loss(output: Any) -> torch.Tensor:
    """A scalar to run backward from. Summing saves nothing, so that the profile is the model's own."""
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)  # pyright: ignore
    if found is None:
        found = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)), None)
    if not isinstance(found, torch.Tensor) or not found.requires_grad:
        raise Refused(
            "the model's result has no gradient, so nothing is saved for a backward",
            "pass a closure that returns the loss, outside of torch.no_grad, with trainable parameters",
        )
    return found if found.numel() == 1 else found.sum()


@contextmanager
def as_it_was(model: torch.nn.Module, device: torch.device) -> Generator[Callable[[], None]]:
    """Puts gradients aside, and gives a function that restores buffers and random numbers."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    places = RandomPlaces(on_gpus=device.type == "cuda")

    def rewind() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        places.restore()

    for parameter in parameters:
        parameter.grad = None
    try:
        yield rewind
    finally:
        rewind()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


@dataclass
class _Row:
    storage: int
    order: int
    bytes: int
    dtype: str
    covered_fraction: float
    saves: int
    module: str
    tensor_class: str
    operator: str
    is_output: bool
    kept_reason: str | None
    pack_ns: Any  # an instant of the clock until the pass is over
    unpack_ns: Any
    recompute_ns: int | None


class _Handle:
    """What autograd keeps in place of a saved tensor: an alias without the graph, so without a cycle."""

    def __init__(self, tensor: torch.Tensor, rows: list[_Row]) -> None:
        self.tensor = tensor.detach()
        self.version = tensor._version
        self.rows = rows


class _Pass:
    """One forward and backward with hooks on what is saved."""

    def __init__(self, model: torch.nn.Module, device: torch.device, *, watched: bool) -> None:
        self._device = device
        self._paths = ModulePaths(model)
        self._clock = _CudaClock(device) if device.type == "cuda" else _Clock()
        self._operators = _Operators(self._clock) if watched else None
        own: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
        self._own = {address_of(s): s.nbytes() for tensor in own for s in storages_of(tensor)}
        self._meter = peak.measured(device, own) if watched or device.type == "cuda" else None
        self._open: dict[int, tuple[_Row, list[int]]] = {}
        self._rows: list[_Row] = []
        self._order = 0
        self._instants: list[tuple[Any, int, int]] = []  # and the most bytes, and those found until then
        self._watched = watched
        self.highs: list[tuple[int, int]] = []
        self.one_by_one_bytes = 0
        self.static_bytes = 0
        self.peak_bytes = 0
        self.forward_ns = self.backward_ns = 0

    def run(self, forward: Callable[[], Any]) -> None:
        if self._device.type == "cuda":
            self.static_bytes = torch.cuda.memory_allocated(self._device)
        else:
            self.static_bytes = sum(self._own.values())
        with ExitStack() as stack:
            if self._meter is not None:
                stack.enter_context(self._meter)
            begin = self._clock.now()
            with self._paths, ExitStack() as inner:
                inner.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
                if self._operators is not None:
                    inner.enter_context(self._operators)
                loss = _loss(forward())
            middle = self._clock.now()
            self._note(middle)
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            end = self._clock.now()
            self._note(end)
            del loss
        self.forward_ns = self._clock.ns(begin, middle)
        self.backward_ns = self._clock.ns(middle, end)
        for row in self._rows:
            row.pack_ns = self._clock.ns(begin, row.pack_ns)
            row.unpack_ns = None if row.unpack_ns is None else self._clock.ns(begin, row.unpack_ns)
        if self._meter is not None:
            self.peak_bytes = self._meter.peak_bytes
        found = self._meter.found_bytes if self._meter is not None else 0
        self.highs = [
            (self._clock.ns(begin, instant), high + found - before)
            for instant, high, before in self._instants
        ]

    def _note(self, instant: Any) -> None:
        """Reading an allocator takes longer than saving a tensor: only where time does not count."""
        if self._watched and self._meter is not None:
            self._instants.append((instant, self._meter.high_bytes(), self._meter.found_bytes))
        else:
            self._instants.append((instant, 0, 0))

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self._rows]

    def _pack(self, tensor: torch.Tensor) -> _Handle:
        order, self._order = self._order, self._order + 1
        self._note(self._clock.now())
        rows: list[_Row] = []
        handle = _Handle(tensor, rows)
        for part in _parts(tensor):
            storage = part.untyped_storage()
            self.one_by_one_bytes += (
                0 if address_of(storage) in self._own else part.numel() * part.element_size()
            )
            row, live = self._open.get(address_of(storage)) or self._new(tensor, part, order)
            row.saves += 1
            row.covered_fraction = max(row.covered_fraction, _covered(part))
            row.is_output |= _is_output(tensor)
            # An address means this storage for as long as a handle keeps it alive, and no longer.
            live[0] += 1
            weakref.finalize(handle, self._let_go, address_of(storage), live).atexit = False
            rows.append(row)
        return handle

    def _new(self, tensor: torch.Tensor, part: torch.Tensor, order: int) -> tuple[_Row, list[int]]:
        storage = part.untyped_storage()
        operator, path = operator_of(tensor), self._paths.innermost
        row = _Row(
            storage=len(self._rows),
            order=order,
            bytes=storage.nbytes(),
            dtype=str(part.dtype).removeprefix("torch."),
            covered_fraction=0.0,
            saves=0,
            module=path,
            tensor_class=tensor_class(path, operator),
            operator=operator,
            is_output=False,
            kept_reason=self._kept_reason(part, storage),
            pack_ns=self._instants[-1][0],
            unpack_ns=None,
            recompute_ns=self._operators.ns(storage) if self._operators is not None else None,
        )
        self._rows.append(row)
        self._open[address_of(storage)] = row, [0]
        return self._open[address_of(storage)]

    def _kept_reason(self, part: torch.Tensor, storage: torch.UntypedStorage) -> str | None:
        if address_of(storage) in self._own:
            return "parameter"
        if part.device != self._device:
            return "not on the device"
        return None if storage.nbytes() else "empty"

    def _let_go(self, address: int, live: list[int]) -> None:
        live[0] -= 1
        if not live[0]:
            self._open.pop(address, None)

    def _unpack(self, handle: _Handle) -> torch.Tensor:
        # With hooks, autograd itself no longer notices that a saved tensor was written to.
        if handle.tensor._version != handle.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: {list(handle.tensor.shape)} is at version {handle.tensor._version}; "
                f"expected version {handle.version} instead"
            )
        now = self._clock.now()
        self._note(now)
        for row in handle.rows:
            if row.unpack_ns is None:
                row.unpack_ns = now
        return handle.tensor


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a subclass is made of, or the tensor itself."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        yield tensor
    elif hasattr(tensor, "__tensor_flatten__"):
        for inner in apart(tensor).tensors.values():
            yield from _parts(inner)
    else:
        yield tensor


def _covered(part: torch.Tensor) -> float:
    """The share of its storage that a view spans. A dimension without a stride is one element."""
    elements = 1
    for size, stride in zip(part.shape, part.stride(), strict=True):
        elements *= size if stride or not size else 1
    whole = part.untyped_storage().nbytes()
    return min(elements * part.element_size() / whole, 1.0) if whole else 0.0


def _is_output(tensor: torch.Tensor) -> bool:
    """Whether the operator that saves it also made it: then that is the autograd node made last."""
    node = cast("Any", tensor.grad_fn)
    newest = cast("Any", torch.autograd)._get_sequence_nr() - 1
    return node is not None and node._sequence_nr() == newest


class _Clock:
    def now(self) -> Any:
        return time.perf_counter_ns()

    def ns(self, start: Any, end: Any) -> int:
        return end - start


class _CudaClock(_Clock):
    """Events on the current stream. Not verified on a GPU yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def ns(self, start: Any, end: Any) -> int:
        end.synchronize()
        return round(1e6 * start.elapsed_time(end))


class _Operators(TorchDispatchMode):
    """How long the operators took that wrote each storage."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._clock = clock
        self._written: dict[int, list[tuple[Any, Any]]] = {}

    def ns(self, storage: torch.UntypedStorage) -> int | None:
        spans = self._written.get(address_of(storage))
        return sum(self._clock.ns(*span) for span in spans) if spans else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        start = self._clock.now()
        result = func(*args, **(kwargs or {}))
        span = start, self._clock.now()
        for value in tree_leaves(result):
            for storage in storages_of(value):
                if address_of(storage) not in self._written:
                    self._written[address_of(storage)] = [span]
                    weakref.finalize(storage, self._written.pop, address_of(storage), None).atexit = False
                elif func._schema.is_mutable:
                    self._written[address_of(storage)].append(span)
        return result
