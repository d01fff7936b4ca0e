"""Layers whose weights lie in host memory and come to the device in their turn, to train or to infer.

Between its turns a layer's weights *are* its host memory, so that `state_dict`, `load_state_dict` and a
checkpoint see all of the model. While its forward runs they are views of a slot (slots.py). What autograd
saves of them is brought back for the backward (saves.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from threading import RLock, get_ident
from types import MethodType
from typing import Any, cast
from weakref import WeakMethod, finalize

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostflops.copies.link_card import rate
from lostflops.optimize import claims
from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device.devices import CudaDevice, Device, device_named, device_of
from lostflops.optimize.device.written_pages import MappedLayers, WrittenPages, watching
from lostflops.optimize.forwards import Forwards
from lostflops.optimize.own_hooks import OwnHook
from lostflops.optimize.own_operators import own_operators
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy
from lostflops.optimize.weights.experts import Experts, Parts, modules_of_experts
from lostflops.optimize.weights.layers import (
    Layer,
    bring_home,
    layers_of,
    placed,
    plainly,
    repeated,
    send_to_host,
    stay_in_files,
)
from lostflops.optimize.weights.moves import brings_back, buffers_of, guarded, moved
from lostflops.optimize.weights.own_writes import OwnWrites, refuse_lost
from lostflops.optimize.weights.report import StreamingReport
from lostflops.optimize.weights.safetensors_files import FileModel
from lostflops.optimize.weights.saves import SavedWeight, asked_first, asking, rebuilt
from lostflops.optimize.weights.slots import Slots
from lostflops.optimize.weights.sources import FileSources, HostSources
from lostflops.optimize.weights.streamable import STREAMED, check_host, check_model, check_not_recorded


@dataclass(frozen=True)
class Technique:
    name: str
    budget_name: str
    frozen_only: bool  # else all weights travel, and no gradients can be asked for


PATIENCE = 60  # seconds, for another thread's turn
TRAINING = Technique("frozen weights in training", "resident", frozen_only=True)
INFERENCE = Technique("weights in inference", "budget", frozen_only=False)


class Streaming(AppliedRemedy):
    """A model whose weights come to the device when they are needed, from its making until `undo`.

    A context manager: leaving it, also by an exception, gives the model its weights back as they were.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        technique: Technique,
        budget: int | str | None,
        device: Device | torch.device | str | None,
        link: Mapping[str, Any] | None,
        layers: Iterable[torch.nn.Module] | None,
        look_ahead: int,
        files: str | os.PathLike[str] | None = None,
        host: int | str | None = None,
        experts: bool = False,
    ) -> None:
        self.model = model
        self._technique = technique
        self._device = _device(model, device)
        if host is not None and files is None:
            raise Refused("host= is for weights in files", "give files=..., or leave host out")
        if experts and files is not None:
            raise Refused(
                "experts come one by one from host memory, and from files layers come as a whole",
                "leave out experts or files",
            )
        self._files = None if files is None else FileModel(model, files)
        self._modules_of_experts = modules_of_experts(model) if experts else []
        try:
            self._begin(budget, link, layers, look_ahead, None if host is None else bytes_of(host))
        except BaseException:
            if self._files is not None:
                self._files.undo()
            raise

    def _begin(
        self,
        budget: int | str | None,
        link: Mapping[str, Any] | None,
        layers: Iterable[torch.nn.Module] | None,
        look_ahead: int,
        host: int | None,
    ) -> None:
        model, technique = self.model, self._technique
        self._turns, self._process = RLock(), os.getpid()
        self._link = rate(link, "host_to_device") if link is not None else None
        check_model(model, self._device, technique.frozen_only)
        in_parts = self._modules_of_experts
        if in_parts:
            layers = [*(repeated(model) if layers is None else layers), *in_parts]
        found, outside = layers_of(model, layers, technique.frozen_only)
        given = None if budget is None else bytes_of(budget)
        # A slot more: experts are used while the layer around them is, and another one comes.
        ahead = look_ahead + bool(in_parts)
        self.placement = placed(found, outside, given, ahead, technique.budget_name)
        self._budget = self.placement.device_bytes if given is None else given
        self._travelling = list(self.placement.travelling)
        self._forwards = Forwards()
        self._undoing: list[Callable[[], None]] = []
        self._slots: Slots | None = None
        self._pages: WrittenPages | None = None
        self._mapped: MappedLayers | None = None
        self._held = 0
        self._sources: FileSources | None = None
        self._buffers = look_ahead + 2  # one goes to the device, one comes from the file, and what is ahead
        self._in_files = self._layers_in_files(host)
        check_host([layer for layer in self._travelling if layer not in self._in_files], self._buffer_bytes)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._undone

    def synchronize(self) -> None:
        """The host waits for what the device computes."""
        self._device.synchronize(self._device.record(self._device.current_stream()))

    def refresh(self) -> None:
        """The weights' values were written through `.data`, which torch does not count: copy them anew.

        Needed only where the kernel does not tell which pages were written to (Linux before 6.7, a container
        that forbids it): for few elements, as a write to all of a weight shows in bytes that are compared,
        and for weights in files.
        """
        if self._slots:
            for layer in self._travelling:
                self._changed(layer)

    def report(self) -> StreamingReport:
        """What travelled so far, and what it cost."""
        if self._slots:
            self._last_waits, self._bytes_in = self._slots.waits(), self._slots.bytes_in
            self._used = list(self._slots.used)
        place = self.placement
        waits = self._last_waits
        travelling = self._travelling
        return StreamingReport(
            technique=self._technique.name,
            budget_bytes=self._budget,
            layers_streamed=len(travelling),
            layers_resident=len(place.staying),
            layers_never_used=[layer.name for layer in travelling if not self._used[layer.number]],
            streamed_bytes=sum(layer.nbytes for layer in travelling),
            resident_bytes=place.resident_bytes,
            slots=place.slots,
            slot_bytes=place.slot_bytes,
            device_bytes_max=place.device_bytes,
            pinned_requested_bytes=self._buffer_bytes
            + sum(
                leaf.nbytes for layer in travelling if layer not in self._in_files for leaf in layer.leaves
            ),
            pinned_held_bytes=self._held,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            copies=waits.copies if waits else 0,
            copied_bytes=waits.copied_bytes if waits else 0,
            copying_ns=waits.copying if waits else 0,
            stalls=dict(waits.stalls) if waits else {},
            stalled_ns=dict(waits.waited) if waits else {},
            link_bytes_per_second=self._link[1] if self._link else None,
            predicted_copying_ns=round(waits.predicted_copying) if waits and self._link else None,
            predicted_stalled_ns=round(waits.predicted) if waits and self._link else None,
            layers_in_files=len(self._in_files),
            read_bytes=self._sources.read_bytes if self._sources else 0,
            read_waited_ns=self._sources.waited_ns if self._sources else 0,
        )

    def close(self) -> None:
        """The same as `undo`."""
        self.undo()

    def _take_back(self) -> None:
        """Everything as it was, with the values that the weights have now."""
        if self._slots:
            self.report()
            self._slots.close()
        if self._sources:
            self._sources.close()
        self._slots = None
        self._forwards.restore()
        for layer in reversed(self._travelling):
            STREAMED.discard(layer.module)
            bring_home(layer, self._device)
        while self._undoing:
            self._undoing.pop()()
        if self._pages:
            self._pages.close()
        if self._files:
            self._files.undo()
        for layer in self._travelling:
            refuse_lost(layer)

    _last_waits: Any = None
    _bytes_in = _bytes_out = 0

    def _start(self) -> None:
        travels = {id(leaf.parameter) for layer in self._travelling for leaf in layer.leaves}
        claims.travelling.update(travels)
        finalize(self, claims.travelling.difference_update, travels)
        self._undoing.append(lambda: claims.travelling.difference_update(travels))
        self._used = [0] * len(self._travelling)
        self._leaves = {
            id(leaf.parameter): (layer, leaf)
            for layer in self._travelling
            for leaf in layer.leaves
            if leaf.tensor is leaf.parameter
        }
        self._leave_device()
        self._move_rest(travels)
        if not self._travelling:
            return
        place = self.placement
        experts = {id(module) for module in self._modules_of_experts}
        here = [layer for layer in self._travelling if id(layer.module) in experts]
        self._experts = {layer.number: Experts(layer) for layer in here}
        self._slots = Slots(
            self._device,
            place.slot_bytes,
            place.slots,
            self._sources_of_layers(),
            self._writes,
            self._link,
            frozenset(self._experts),
        )
        self._undoing.append(_registered(self, self._claim))
        modules = {id(layer.module) for layer in self._travelling}
        for layer in self._travelling:
            for module in _inside(layer.module, modules):
                self._forwards.replace(module, self._around(layer, module))
            self._keep_in_place(layer)
        self._undoing.append(self.model.register_forward_hook(OwnHook(_ran(self.model, self._slots))).remove)
        unseen = {layer.number for layer in self._travelling if not layer.all_seen}
        if unseen:
            begins = OwnHook(_begins(self.model, self._slots, unseen))
            self._undoing.append(self.model.register_forward_pre_hook(begins).remove)

    def _leave_device(self) -> None:
        """The layers that travel go to host memory, or stay in files, and the kernel watches both."""
        self._pages = watching() if self._travelling else None
        for number, layer in enumerate(self._travelling):
            layer.number = number
            STREAMED.add(layer.module)
            if layer in self._in_files:
                stay_in_files(layer)
            else:
                read = self._read if self._files else None
                self._held += send_to_host(layer, self._device, self._pages, read)
        if self._pages and self._in_files:
            places = {
                layer.number: [
                    (leaf.tensor.data_ptr(), leaf.tensor.data_ptr() + leaf.nbytes) for leaf in layer.leaves
                ]
                for layer in self._in_files
            }
            with suppress(OSError):  # a file system whose pages the kernel does not watch
                self._mapped = MappedLayers(self._pages, places)

    def _layers_in_files(self, host: int | None) -> list[Layer]:
        """Of those that travel, the ones that host memory has no room for, evenly between the others."""
        self._buffer_bytes = 0
        if self._files is None or not self._travelling:
            return []
        travelling, many = self._travelling, len(self._travelling)
        buffer = max(layer.nbytes for layer in travelling)
        for staying in range(many if host is not None else 0, -1, -1):
            chosen = {(2 * i + 1) * many // (2 * staying) for i in range(staying)}
            rest = [layer for number, layer in enumerate(travelling) if number not in chosen]
            self._buffer_bytes = self._buffers * buffer if rest else 0
            needed = self._buffer_bytes + sum(travelling[number].nbytes for number in chosen)
            if host is None or needed <= host:
                return rest
        given = written(cast("int", host))
        raise Refused(
            f"host={given} is too small for {self._buffers} buffers of {written(buffer)}",
            f"the smallest that works is {self._buffers * buffer} bytes ({written(self._buffers * buffer)})",
        )

    def _sources_of_layers(self) -> HostSources | FileSources:
        memories = [layer.memory for layer in self._travelling]
        if not self._in_files:
            return HostSources([memory for memory in memories if memory is not None])
        self._sources = FileSources(
            self._device,
            [layer.nbytes for layer in self._travelling],
            memories,
            lambda number, memory: self._read(self._travelling[number], memory),
            self._writes,
            self._buffers,
        )
        self._held += self._buffer_bytes
        return self._sources

    def _read(self, layer: Layer, memory: torch.Tensor) -> int:
        """The layer's weights from their files; on any thread."""
        files = cast("FileModel", self._files)
        with torch.inference_mode(False), torch.no_grad():
            return sum(
                files.read(
                    leaf.tensor,
                    leaf.tensor.data if leaf.host is None else leaf.host,
                    memory[leaf.offset : leaf.offset + leaf.nbytes],
                )
                for leaf in layer.leaves
            )

    def _writes(self, number: int) -> int:
        """Counts what was written to a layer's weights, by whatever way."""
        for other in self._mapped.written(number) if self._mapped else ():
            self._travelling[other].rewritten += 1
            self._not_as_in_files(self._travelling[other])
        return self._travelling[number].writes()

    def _not_as_in_files(self, layer: Layer) -> None:
        for leaf in layer.leaves:
            cast("FileModel", self._files).changed(leaf.tensor)

    def _changed(self, layer: Layer) -> None:
        """Weights were written to without torch's counting."""
        if layer in self._in_files:
            self._not_as_in_files(layer)
        cast("Slots", self._slots).forget(layer.number)

    def _move_rest(self, travels: set[int]) -> None:
        """Whatever does not travel goes to the device, if it is not there."""
        to = self._device.torch_device
        for owner in self.model.modules():
            for parameter in owner.parameters(recurse=False):
                if parameter.device != to and id(parameter) not in travels:
                    self._undoing.append(moved(parameter, to))
            for key, buffer in owner.named_buffers(recurse=False):
                if buffer.device != to:
                    buffers_of(owner)[key] = buffer.to(to)
                    self._undoing.append(brings_back(owner, key, buffer.device))

    def _around(self, layer: Layer, own: torch.nn.Module) -> Callable[..., Any]:
        """For the layer's forward, and those of the modules inside of it.

        A part of a layer also runs by itself: a checkpoint inside of the layer's forward recomputes it.
        """

        def around(forward: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module is not own or self._slots is None:  # a copy of the model; after the end
                return forward(module, *args, **kwargs)
            if torch.compiler.is_compiling() and layer.forwards:  # a part of a layer that is compiled
                return forward(module, *args, **kwargs)
            inside = layer.forwards > 0 and layer.thread == get_ident()
            if inside:
                with own_operators():
                    self._slots.join(layer.number)
            if inside and asked_first(self._claim):
                return forward(module, *args, **kwargs)
            experts = self._experts.get(layer.number)
            with own_operators():
                wanted = experts.chosen(module, args, kwargs) if experts and module is layer.module else None
            with nullcontext() if inside else self._in_slot(layer, wanted), asking(self._claim):
                return forward(module, *args, **kwargs)

        return around

    @contextmanager
    def _in_slot(self, layer: Layer, wanted: dict[int, Parts] | None) -> Generator[None]:
        """The layer's weights are views of a slot meanwhile; of experts, only those that are wanted."""
        slots = cast("Slots", self._slots)
        check_not_recorded(self._device)
        with self._turn():
            number = layer.number
            with own_operators(), slots.lock:
                refuse_lost(layer)
                self._adopt(layer)
                slot = slots.use(number) if wanted is None else slots.use_parts(number, wanted)
                slot.pins += 1
            layer.forwards, layer.thread = layer.forwards + 1, get_ident()
            own: OwnWrites | None = None
            try:
                with own_operators(), plainly():
                    for leaf in layer.leaves:
                        leaf.tensor.data = leaf.seen_in(slot.memory)
                    own = OwnWrites(layer, slot.memory)
                yield
            finally:
                try:
                    with own_operators():
                        if own is not None and own.taken(whole=wanted is None):
                            self._bytes_out += layer.nbytes
                            self._changed(layer)
                finally:
                    with own_operators(), plainly():
                        for leaf in layer.leaves:
                            leaf.tensor.data = cast("torch.Tensor", leaf.host)
                    layer.forwards -= 1
                    slot.pins -= 1

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One thread at a time runs a layer: all of them see its weights where they lie then."""
        if os.getpid() != self._process:
            raise Refused(
                "a model whose weights are streamed runs in a process that was forked meanwhile",
                "use it in the process that streams it, or fork (start the loader's workers) before",
            )
        if not self._turns.acquire(timeout=PATIENCE):
            raise Refused(
                f"another thread has been in a streamed layer for {PATIENCE} s",
                "run the model on one thread at a time",
            )
        try:
            yield
        finally:
            self._turns.release()

    def _adopt(self, layer: Layer) -> None:
        """A weight that was given other memory meanwhile (`weight.data = ...`) has that value from now on."""
        for leaf in layer.leaves:
            host = cast("torch.Tensor", leaf.host)
            trained = leaf.parameter.requires_grad and torch.is_grad_enabled()
            if trained and not self._technique.frozen_only:
                raise Refused(
                    f"'{leaf.name}' is streamed for inference, and gradients are on",
                    "run it under torch.no_grad(), or train adapters and optimize.stream_frozen",
                )
            if trained or getattr(leaf.owner, leaf.key, None) is not leaf.parameter:
                what = "trained" if trained else "replaced by another parameter"
                raise Refused(
                    f"'{leaf.name}' is streamed, and is to be {what}",
                    "close the streaming, change the model, and stream it again",
                )
            if leaf.tensor.data_ptr() == host.data_ptr():
                continue
            if leaf.tensor.shape != host.shape or leaf.tensor.dtype != host.dtype:
                raise Refused(
                    f"'{leaf.name}' is streamed as {host.dtype}{list(host.shape)}, and was made "
                    f"{leaf.tensor.dtype}{list(leaf.tensor.shape)} meanwhile",
                    "close the streaming, change the model, and stream it again",
                )
            with plainly():
                host.copy_(leaf.tensor.data)
                leaf.tensor.data = host
            self._changed(layer)

    def _claim(self, tensor: torch.Tensor) -> claims.Packed | None:
        """For a saved tensor that looks at a slot: where in which layer it looks."""
        if self._slots is None:
            return None
        if is_traceable_wrapper_subclass(tensor):
            return rebuilt(tensor, self._claim)
        if tensor.layout != torch.strided or not tensor.numel() or cast("Any", tensor)._is_zerotensor():
            return None  # of forward derivatives: zeros without memory
        if (known := self._leaves.get(id(tensor))) is not None:  # wherever it lies now
            return SavedWeight(self._bring, *known, 0, tensor)
        slot = self._slots.at(tensor)
        if slot is None or slot.holds is None:
            return None
        if tensor.is_conj() or tensor.is_neg():
            return claims.Kept(tensor.resolve_conj().resolve_neg())
        layer = self._travelling[slot.holds]
        at = int(tensor.storage_offset()) * tensor.itemsize
        leaf = max((leaf for leaf in layer.leaves if leaf.offset <= at), key=lambda leaf: leaf.offset)
        return SavedWeight(self._bring, layer, leaf, at - leaf.offset, tensor)

    def _bring(self, layer: Layer, look: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
        """What `look` sees in the slot that holds the layer now; None when its weights are back in the
        model."""
        if self._slots is None:
            return None
        with self._slots.lock:  # until it is looked at, nobody else is to be given the slot
            return look(self._slots.use(layer.number).memory)

    def _keep_in_place(self, layer: Layer) -> None:
        """`model.to(...)` and the like do not reach the layer's weights; another dtype is refused."""
        keys: dict[torch.nn.Module, list[str]] = {}
        for leaf in layer.leaves:
            keys.setdefault(leaf.owner, []).append(leaf.key)
        for owner in keys:
            self._undoing.append(guarded(owner, dict.fromkeys(keys[owner])))


def _registered(streaming: Streaming, claim: claims.Claim) -> Callable[[], None]:
    """Asks its method `claim` as long as it is there, without keeping it; returns what ends that."""
    asked = WeakMethod(cast("MethodType", claim))

    def ask(tensor: torch.Tensor) -> claims.Packed | None:
        claim = asked()
        return claim(tensor) if claim else None

    withdraw = claims.register(ask)
    finalize(streaming, withdraw)
    return withdraw


def _inside(module: torch.nn.Module, layers: set[int]) -> Iterator[torch.nn.Module]:
    """The module and those inside of it, without the insides of other layers; each once."""
    found = {id(module): module}
    waiting = [module]
    while waiting:
        for child in waiting.pop().children():
            if id(child) not in found and id(child) not in layers:
                found[id(child)] = child
                waiting.append(child)
    yield from found.values()


def _ran(model: torch.nn.Module, slots: Slots) -> Callable[..., None]:
    """A forward hook that refuses when bytes were to move and none did. Knows a copy of the model."""

    def ran(module: torch.nn.Module, *_: Any) -> None:
        if module is model and not any(slots.used):
            raise Refused(
                f"the model ran, and none of its {len(slots.used)} streamed layers was called",
                "give the modules that are called, one after the other, as layers=[...]",
            )

    return ran


def _begins(model: torch.nn.Module, slots: Slots, layers: set[int]) -> Callable[..., None]:
    """A forward pre-hook: between two passes anybody may have written to weights, and it may not show."""

    def begins(module: torch.nn.Module, *_: Any) -> None:
        if module is model:
            slots.forget_all(layers)

    return begins


def _device(model: torch.nn.Module, given: Device | torch.device | str | None) -> Device:
    if given is None:
        on_cuda = [each for each in model.parameters() if each.device.type == "cuda"]
        if on_cuda:
            return CudaDevice(on_cuda[0].device)
        return CudaDevice(torch.device("cuda")) if torch.cuda.is_available() else device_of(model)
    if not isinstance(given, torch.device | str):
        return given
    return device_named(given)
