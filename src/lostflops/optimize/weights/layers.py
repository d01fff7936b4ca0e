"""The layers of a model, which of them travel under a budget, and the host memory of a layer's weights."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from lostflops.optimize.amounts import written
from lostflops.optimize.device import peak
from lostflops.optimize.device.devices import Device
from lostflops.optimize.device.written_pages import WrittenPages
from lostflops.optimize.memory_layout import aligned, dense, parts_of, view_of
from lostflops.optimize.model_parts import state_tensors
from lostflops.optimize.refused import Refused

SAMPLED = 32  # bytes of a weight, where the kernel does not tell which pages were written to
SMALL = 4096  # bytes of one of which all are looked at, such as a bias
COMPARED = 1 << 16  # bytes of a layer that are compared in less time than the kernel is asked


@dataclass(eq=False)
class Leaf:
    """A plain tensor of a weight: the weight itself, or one of those that a quantised weight is made of."""

    name: str
    owner: torch.nn.Module
    key: str
    parameter: torch.Tensor
    tensor: torch.Tensor
    nbytes: int
    offset: int = 0  # in its layer's memory
    home: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where it came from
    host: torch.Tensor | None = None  # its part of the layer's host memory, shaped like it
    counts: bool = True  # has a version counter

    def version(self) -> int:
        """Counts what was written to it."""
        return self.tensor._version if self.counts else 0

    def seen_in(self, memory: torch.Tensor) -> torch.Tensor:
        """The weight, in a memory that holds its layer."""
        return view_of(memory, self.offset, self.tensor.dtype, self.tensor.shape, self.tensor.stride())


@dataclass(eq=False)
class Layer:
    """A module whose weights travel together."""

    name: str
    module: torch.nn.Module
    leaves: list[Leaf]
    nbytes: int = 0
    number: int = -1  # among those that travel
    memory: torch.Tensor | None = None
    forwards: int = 0  # of it, or of a part of it by itself, that run now
    thread: int = 0  # on which they run
    watched: set[tuple[bool, bool]] = field(default_factory=set[tuple[bool, bool]])  # kinds of forwards
    writes_unseen: bool = False  # to its own weights, in a forward
    maybe_lost: torch.Tensor | None = None  # whether it did in the last one, on the device
    samples: list[memoryview] = field(default_factory=list[memoryview])  # bytes that are compared
    sampled: list[bytes] = field(default_factory=list[bytes])
    pages: WrittenPages | None = None
    watched_pages: tuple[int, int] = (0, 0)  # addresses
    all_seen: bool = True  # whether a write to any byte of its host memory shows
    rewritten: int = 0  # how often a write was seen that torch did not count

    def version(self) -> int:
        """What torch counts of writes to its weights."""
        return sum(leaf.version() for leaf in self.leaves)

    def writes(self) -> int:
        """The same, and writes through `.data` or NumPy, which torch does not count."""
        now = [sample.tobytes() for sample in self.samples]
        found = self.pages.written(*self.watched_pages) if self.pages is not None else []
        if found or now != self.sampled:
            self.sampled, self.rewritten = now, self.rewritten + 1
        return self.version() + self.rewritten

    def watch(self, pages: WrittenPages | None) -> None:
        """From now on the host memory is watched. Not by torch, whose modes would see it.

        Pages that are the layer's alone are the kernel's to watch, and the bytes before and after are
        compared. Without `pages`, some bytes of each weight are.
        """
        memory = cast("torch.Tensor", self.memory)
        start, nbytes = memory.data_ptr(), memory.numel()
        whole = memoryview((ctypes.c_ubyte * nbytes).from_address(start)).cast("B")
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if nbytes <= COMPARED:
            self.samples = [whole]
        elif pages is not None and _watched(pages, first, end):
            self.pages, self.watched_pages = pages, (first, end)
            self.samples = [whole[: first - start], whole[end - start :]]
        else:
            self.all_seen = False
            self.samples = [
                # An odd step meets all bytes of an element in turn: rounding changes the lowest.
                whole[
                    leaf.offset : leaf.offset + leaf.nbytes : leaf.nbytes // SAMPLED | 1
                    if leaf.nbytes > SMALL
                    else 1
                ]
                for leaf in self.leaves
            ]
        self.sampled = [sample.tobytes() for sample in self.samples]

    def watch_no_more(self) -> None:
        self.pages = None
        self.samples.clear()
        self.sampled.clear()


def _watched(pages: WrittenPages, first: int, end: int) -> bool:
    try:
        pages.watch(first, end)
    except OSError:  # memory of a kind that the kernel does not watch
        return False
    return True


@dataclass(frozen=True)
class Placement:
    """Which layers travel, and what the device holds then, in bytes."""

    travelling: tuple[Layer, ...]
    staying: tuple[Layer, ...]
    slots: int
    slot_bytes: int
    resident_bytes: int  # of weights that never leave

    @property
    def device_bytes(self) -> int:
        return self.resident_bytes + self.slots * self.slot_bytes


def layers_of(
    model: torch.nn.Module, given: Iterable[torch.nn.Module] | None, frozen_only: bool
) -> tuple[list[Layer], int]:
    """The layers with the weights that may travel, and the bytes of the others and of the buffers.

    With `frozen_only`, weights that are trained do not travel, and do not count.

    A weight that two layers share stays, as does one whose memory overlaps another's or has gaps.
    """
    names = {id(module): name for name, module in cast("Any", model).named_modules()}
    modules = list({id(each): each for each in (repeated(model) if given is None else given)}.values())
    if missing := [each for each in modules if id(each) not in names]:
        raise Refused(
            f"a {type(missing[0]).__name__} among the layers is not part of the model", "give its own"
        )
    weights = list(_weights(model, None, {id(module) for module in modules}, set()))
    users: dict[int, set[int]] = {}
    for module, _, _, parameter in weights:
        users.setdefault(id(parameter), set()).add(id(module))
    overlapping = _overlapping(model)
    found = {id(module): Layer(names[id(module)], module, []) for module in modules}
    seen: set[int] = set()
    for module, owner, key, parameter in weights:
        parts = list(parts_of(parameter))
        stays = len(users[id(parameter)]) > 1 or id(parameter) in overlapping
        stays |= frozen_only and parameter.requires_grad
        if module is None or stays or id(parameter) in seen or not all(dense(part) for _, part in parts):
            continue
        seen.add(id(parameter))
        layer = found[id(module)]
        for inner, part in parts:
            name = ".".join(filter(None, (names[id(owner)], key))) + inner
            leaf = Leaf(name, owner, key, parameter, part, part.numel() * part.itemsize, layer.nbytes)
            leaf.counts = not part.is_inference()
            layer.nbytes = aligned(leaf.offset + leaf.nbytes)
            layer.leaves.append(leaf)
    layers = [layer for layer in found.values() if layer.leaves]
    travels = {id(leaf.parameter) for layer in layers for leaf in layer.leaves}
    stay: list[torch.Tensor] = [
        each
        for each in (*model.parameters(), *model.buffers())
        if id(each) not in travels and not (frozen_only and each.requires_grad)
    ]
    total = sum(part.numel() * part.itemsize for each in stay for _, part in parts_of(each))
    if not layers and any(module is not None for module, _, _, p in weights if not p.requires_grad):
        raise Refused(
            "no weight of the layers can travel: each is used by several layers, shares memory with another "
            "weight, buffer or attribute, is quantised by torch, or has gaps",
            "remove attributes that are views of weights, or name other modules: layers=[...]",
        )
    if not layers:
        raise Refused(
            "there is no list of layers with frozen weights in this model",
            "freeze the base model (PEFT does), or name the modules that are called in turn: layers=[...]",
        )
    return layers, total


def repeated(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The members of the outermost lists of modules; of a sequence, those inside its largest if any."""
    if isinstance(model, torch.nn.Sequential):
        sizes = [sum(weight.numel() for weight in each.parameters()) for each in model]
        most = max(sizes, default=0)
        below = list(repeated(model[sizes.index(most)])) if 2 * most > sum(sizes) else []
        yield from below or model
        return
    for child in model.children():
        if isinstance(child, torch.nn.ModuleList):
            for each in child:
                yield from repeated(each) if isinstance(each, torch.nn.ModuleList) else (each,)
        else:
            yield from repeated(child)


def _weights(
    module: torch.nn.Module, layer: torch.nn.Module | None, layers: set[int], seen: set[tuple[int, int]]
) -> Iterator[tuple[torch.nn.Module | None, torch.nn.Module, str, torch.Tensor]]:
    """Layer (the innermost), module, key and parameter of every weight, by every way that leads there."""
    layer = module if id(module) in layers else layer
    if (id(module), id(layer)) in seen:
        return
    seen.add((id(module), id(layer)))
    for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield layer, module, key, parameter
    for child in module.children():
        yield from _weights(child, layer, layers, seen)


def _overlapping(model: torch.nn.Module) -> set[int]:
    """Parameters that share memory with another, tied without being the same, or with a buffer or attribute:
    a view of a weight would no longer see what is written to the weight."""
    spans: list[tuple[str, int, int, int]] = []
    for tensor in (*model.parameters(), *state_tensors(model).values()):
        for _, part in parts_of(tensor):
            if part.layout == torch.strided and part.numel():
                last = sum((n - 1) * stride for n, stride in zip(part.shape, part.stride(), strict=True))
                start = part.data_ptr()
                spans.append((str(part.device), start, start + (last + 1) * part.itemsize, id(tensor)))
    spans.sort()
    found: set[int] = set()
    furthest: tuple[str, int, int, int] | None = None
    for span in spans:
        if furthest and span[0] == furthest[0] and span[1] < furthest[2] and span[3] != furthest[3]:
            found |= {span[3], furthest[3]}
        if furthest is None or span[0] != furthest[0] or span[2] > furthest[2]:
            furthest = span
    return found


def placed(
    layers: Sequence[Layer], outside: int, budget: int | None, look_ahead: int, budget_name: str
) -> Placement:
    """The fewest layers that must travel, evenly between those that stay; without a budget, all that can."""
    slots = look_ahead + 1
    if look_ahead < 1:
        raise Refused(f"look_ahead={look_ahead} hides nothing", "1 copies a layer while another computes")
    places: list[Placement] = []
    for travelling in (0, *range(slots + 1, len(layers) + 1)):
        chosen = {(2 * i + 1) * len(layers) // (2 * travelling) for i in range(travelling)}
        go = tuple(layer for number, layer in enumerate(layers) if number in chosen)
        stay = tuple(layer for number, layer in enumerate(layers) if number not in chosen)
        slot = max((layer.nbytes for layer in go), default=0)
        resident = outside + sum(leaf.nbytes for layer in stay for leaf in layer.leaves)
        places.append(Placement(go, stay, slots if go else 0, slot, resident))
        if budget is not None and places[-1].device_bytes <= budget:
            return places[-1]
    smallest = min(places, key=lambda place: place.device_bytes)
    if budget is None:
        return smallest
    largest = max(layers, key=lambda layer: layer.nbytes)
    raise Refused(
        f"{budget_name} of {written(budget)} is too small: {written(outside)} of weights are outside of the "
        f"layers, and each of {slots} slots takes {written(largest.nbytes)} for '{largest.name}'",
        f"the smallest that works is {smallest.device_bytes} bytes ({written(smallest.device_bytes)})",
    )


@contextmanager
def plainly() -> Generator[None]:
    """Tensors made and written inside are plain ones, also in inference mode and in torch.func's transforms:
    a weight whose memory were a transform's wrapper would crash the process afterwards."""
    with torch.inference_mode(False), torch.no_grad(), cast("Any", torch)._C._DisableFuncTorch():
        yield


def send_to_host(
    layer: Layer,
    device: Device,
    pages: WrittenPages | None,
    read: Callable[[Layer, torch.Tensor], int] | None = None,
) -> int:
    """The layer's weights become host memory, which `pages` watch; the bytes of it. `read` brings them there,
    if they are not copied."""
    layer.memory = device.host_memory(layer.nbytes)
    if read is not None:
        read(layer, layer.memory)
    with plainly():
        for leaf in layer.leaves:
            part = peak.part_of_host_memory(layer.memory, leaf.offset, leaf.nbytes)
            host = view_of(part, 0, leaf.tensor.dtype, leaf.tensor.shape, leaf.tensor.stride())
            if read is None:
                host.copy_(leaf.tensor.data)
            leaf.home, leaf.host = leaf.tensor.device, host
            leaf.tensor.data = host
    layer.watch(pages)
    return layer.nbytes


def stay_in_files(layer: Layer) -> None:
    """The layer's weights are what they are between two turns: views of files."""
    for leaf in layer.leaves:
        leaf.home, leaf.host = leaf.tensor.device, leaf.tensor.data


def bring_home(layer: Layer, device: Device) -> None:
    """The layer's weights are on the device that they came from, and its host memory is let go."""
    layer.watch_no_more()
    with plainly():
        for leaf in layer.leaves:
            host, leaf.host = leaf.host, None
            if layer.memory is None:  # it is a view of a file
                continue
            if host is not None and leaf.tensor.data_ptr() == host.data_ptr():
                leaf.tensor.data = host.to(leaf.home, copy=True)
    device.synchronize(device.record(device.current_stream()))  # with the copies from the memory
    layer.memory = None
