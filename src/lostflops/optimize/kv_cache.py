"""The keys and values of dialogues, kept in host memory between turns and brought back instead of recomputed.

    cache = optimize.DialogueCache(host="100 GiB")
    answer = cache.generate(model, input_ids, "alice", max_new_tokens=200)   # the whole dialogue so far

    past = cache.resume(tokens=input_ids)                  # or in two steps, around a generate of your own
    output = model.generate(input_ids, past_key_values=past, ...)
    cache.suspend("alice", past, output)

What comes back are the very bits that left. Against a prefill of everything at once they may differ as far as
the model's own rounding differs between a prefill and token-by-token decoding, cache or no cache.

Streams: one for copies out, one for copies in. A store waits for the compute that writes what it reads, and
for loads that still read its slot; a load waits for the store that filled its slot, and for the compute that
may still write where it goes; compute waits for a layer's load when it first touches that layer, so that the
first layers run while the last ones are under way. On CUDA not verified on a GPU yet.

One model, one device, one thread. For serving many users at once, see `kv_gain.ALTERNATIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import nn

from lostflops.optimize import host_share, kv_files, kv_past
from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device import CudaDevice, Device, Event, device_of
from lostflops.optimize.kv_blocks import Blocks, Placed, Plan, usable
from lostflops.optimize.kv_model import Identity
from lostflops.optimize.kv_report import KvReport, Tally, advice
from lostflops.optimize.kv_rows import Layout, checksums, fitting_block, gather, views
from lostflops.optimize.refused import Refused

STAGING = 256 << 20  # bytes of device memory for rows on their way out
CHUNK = 64 << 20  # of one layer at a time
Tokens = torch.Tensor | Sequence[int]
P = ParamSpec("P")
R = TypeVar("R")


def plain_tensors(call: Callable[P, R]) -> Callable[P, R]:
    """Under `torch.inference_mode()` too, tensors that are kept are such as may be written at any time."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return call(*args, **kwargs)

    return called


@dataclass(frozen=True)
class Suspended:
    """What one `suspend` did: tokens held now, and how many of them had to be copied."""

    tokens: int
    copied_tokens: int
    kept_tokens: int
    shared_tokens: int
    copied_bytes: int


@dataclass(frozen=True)
class _Mark:
    """The end of some copies, and their number: a stream's later marks imply its earlier ones."""

    number: int
    event: Event


@dataclass(eq=False)
class _Slot:
    """When a slot's bytes were last written and last read."""

    written: _Mark | None = None
    read: _Mark | None = None
    sums: torch.Tensor | None = None  # int64[layers, block_tokens], in verify mode


@dataclass(eq=False)
class _Moving:
    """Device memory that a copy reads or writes, kept until that is over."""

    done: Event
    memory: torch.Tensor
    stream: Any  # that the memory belongs to


class DialogueCache:
    """Keys and values of dialogues in at most `host` bytes of host memory.

    The memory is taken at the first suspend, at once and exactly, and never again: on CUDA, pinning takes a
    few tenths of a second per GiB. `block_tokens`: tokens that are stored and shared together; by default so
    many that one layer's are 1 MiB (16 to 512). `model`: refuses anything of another model, of other weights
    or with other adapters; or a name for it, where weights cannot be read. `device`: by default that of the
    first cache. `verify` compares checksums of every row at each resume, and waits for it.
    """

    def __init__(
        self,
        host: int | str = "100 GiB",
        *,
        device: Device | None = None,
        model: nn.Module | str | None = None,
        verify: bool = False,
        block_tokens: int | None = None,
    ) -> None:
        self.host_bytes = bytes_of(host)
        _refuse_more_than_there_is(self.host_bytes)
        if block_tokens is not None and block_tokens < 1:
            raise Refused(f"blocks of {block_tokens} tokens hold nothing", "give 1 or more, or leave it out")
        self.verify = verify
        self._block_tokens = block_tokens
        self._identity = Identity()
        self._model = self._identity.of(model) if model is not None else None
        self._watched = model
        self._device = device
        self._layout: Layout | None = None
        self._tally = Tally()
        self._leaving: list[_Moving] = []
        self._coming: dict[int, _Moving] = {}

    # What users call.

    @plain_tensors
    def suspend(
        self, key: str, past: Any, tokens: Tokens, *, model: nn.Module | str | None = None
    ) -> Suspended:
        """Stores what `past` holds of `tokens` as dialogue `key`, and copies only what is not stored yet.

        past: a Cache of transformers, or a list of (keys, values) per layer, [1, heads, tokens, size] each;
        it may be changed or dropped as soon as this returns. tokens: the dialogue's ids from the first on, as
        `generate` returned them, [1, n] or [n]. They may be more than `past` has seen (the last token of an
        answer is in no cache yet), or fewer: then only those are stored. Refuses, with nothing changed, what
        does not fit into the budget even alone.
        """
        _refuse_while_recorded()
        layers, seen = kv_past.layers_of(past)
        ids = token_ids(tokens)[:seen]
        if not ids:
            raise Refused(
                "there is nothing to suspend: no tokens, or an empty cache", "suspend after a forward"
            )
        self._is_key(key)
        self._same_model(model)
        layout = self._bind(layers)
        self._tidy()
        gone = max((layer.first for layer in layers if layer), default=0)
        plan = self._blocks.place(key, ids)
        self._tally.evicted_tokens += plan.evicted
        try:
            copied = self._store(layers, plan, gone) if plan.copies else 0
        except BaseException:
            self._blocks.forget(key)  # its rows are not all there
            raise
        fresh = len(ids) - plan.kept - plan.shared
        if fresh and not copied and gone < len(ids):
            raise Refused("tokens were stored and no byte moved", "report this: it is a fault of lostflops")
        self._tally.suspends += 1
        self._tally.stored_tokens += fresh
        self._tally.kept_bytes += plan.kept * layout.token_bytes
        self._tally.shared_bytes += plan.shared * layout.token_bytes
        return Suspended(len(ids), fresh, plan.kept, plan.shared, copied)

    @plain_tensors
    def resume(
        self,
        key: str | None = None,
        tokens: Tokens | None = None,
        *,
        model: nn.Module | str | None = None,
        plain: bool = False,
    ) -> Any:
        """The cache of a dialogue, or of the longest beginning of `tokens` that any dialogue has; None if
        there is none.

        Given tokens, it has one token less than those at most, so that `generate(tokens,
        past_key_values=...)` has one to start from; its `get_seq_length()` says how many it has. It is yours:
        use it, change it. `plain` gives a list of (keys, values), strided, instead of a DynamicCache.
        """
        _refuse_while_recorded()
        if key is not None:
            self._is_key(key)
        if key is None and tokens is None:
            raise Refused(
                "neither a dialogue nor tokens are named", "resume('alice') or resume(tokens=input_ids)"
            )
        self._same_model(model)
        ids = None if tokens is None else token_ids(tokens)
        if ids is not None:
            self._tally.asked_tokens += len(ids)
        if self._layout is None:
            self._tally.misses += 1
            return None
        self._tidy()
        found = self._blocks.of(cast("str", key)) if ids is None else self._blocks.matching(ids[:-1])
        if ids is None:
            self._tally.asked_tokens += sum(placed.last for placed in found)
        length = usable(found, self._layout.window)
        if plain and length and self._layout.window:
            raise Refused(
                "layers with a sliding window have fewer rows than the others: a plain list cannot say so",
                "resume without plain=True",
            )
        if not length:
            self._tally.misses += 1
            return None
        found = [placed for placed in found if placed.block.start < length]
        self._blocks.touch([placed.block for placed in found])
        self._tally.hits += 1
        self._tally.hit_tokens += length
        return self._load(found, length, plain)

    def generate(self, model: Any, input_ids: torch.Tensor, key: str, **kwargs: Any) -> Any:
        """`model.generate(input_ids, **kwargs)` with what is held resumed before and suspended after.

        input_ids [1, n]: the whole dialogue so far, its history included. Returns what `generate` returns.
        Refuses what generates several sequences, or from more than tokens. An answer that grows beyond the
        budget is stored as far as it fits, and the report counts the rest.
        """
        _refuse_unlike_dialogue(model, input_ids, kwargs)
        self._is_key(key)
        if self._device is None:
            self._device = device_of(model)
        named = None if isinstance(self._watched, str) else model  # a name given once stands for the model
        past = self.resume(key, input_ids, model=named)
        if past is None:
            past = kv_past.empty(model)
            kv_past.layers_of(past)  # refuses before anything is computed
        # Left to itself, generate hides every token that equals the padding's.
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones_like(input_ids)
        output = model.generate(input_ids, past_key_values=past, **kwargs)
        ids = token_ids(output if isinstance(output, torch.Tensor) else output.sequences)
        layers, seen = kv_past.layers_of(past)
        layout = self._bind(layers)
        room = self._blocks.slots * layout.block_tokens
        self._tally.left_out_tokens += max(0, min(seen, len(ids)) - room)
        self.suspend(key, past, ids[:room], model=named)
        return output

    def forget(self, key: str) -> int:
        """Drops a dialogue, and returns how many of its tokens no other one holds. Its bytes are not
        wiped.
        """
        return self._blocks.forget(key) if self._layout else 0

    def clear(self) -> None:
        """Drops all dialogues; the memory stays, for the same model with other weights too."""
        for key in self.dialogues:
            self._blocks.forget(key)
        self._model = None

    @property
    def dialogues(self) -> dict[str, int]:
        """Tokens held of each, from its beginning."""
        if self._layout is None:
            return {}
        return {key: chain[-1].end for key, chain in self._blocks.dialogues.items()}

    @property
    def capacity_tokens(self) -> int | None:
        """Of one dialogue alone; None before the first suspend."""
        return self._blocks.slots * self._blocks.size if self._layout else None

    def flush(self) -> None:
        """Waits until every copy under way is done."""
        for last in (self._last_out, self._last_in) if self._layout else ():
            if last is not None:
                self._on.synchronize(last)
        self._tidy()

    def report(self) -> KvReport:
        """What moved, what that saved, and what it cost, so far. Waits for compute and copies under way."""
        if self._layout is None:
            return self._tally.report(self.host_bytes)
        self._on.synchronize(self._on.record(self._on.current_stream()))
        self.flush()
        return self._tally.report(self.host_bytes, self._layout, self._blocks, self._host.numel())

    def advice(self, gpu_free: int | str | None = None) -> list[str]:
        """Reasons not to use this here, in words; empty when there are none.

        gpu_free: memory that the GPU could spare for caches; by default what is free on it now.
        """
        if gpu_free is not None:
            spare: int | None = bytes_of(gpu_free)
        elif isinstance(self._device, CudaDevice):
            spare = torch.cuda.mem_get_info(self._device.torch_device)[0]
        else:
            spare = None
        coherent = self._device is not None and self._device.coherent
        return advice(self.report(), spare, coherent)

    def save(self, folder: str | Path) -> None:
        """Writes all dialogues into a folder, or nothing: what was there before stays valid until all is
        written.

        Token ids and keys and values lie there as they are, readable by the owner only.
        """
        if self._layout is None or not self._blocks.held:
            raise Refused("no dialogue is held", "suspend one before saving")
        self.flush()
        kv_files.save(Path(folder), self._layout, self._blocks, self._rows_of, self._model)

    @classmethod
    @plain_tensors
    def load(
        cls,
        folder: str | Path,
        host: int | str = "100 GiB",
        *,
        device: Device | None = None,
        model: nn.Module | str | None = None,
        verify: bool = False,
    ) -> DialogueCache:
        """What `save` wrote. Refuses what is damaged, foreign, of another model, or larger than `host`."""
        if device is None:
            device = device_of(model) if isinstance(model, nn.Module) else CudaDevice(torch.device("cuda"))
        saved = kv_files.read(Path(folder))
        cache = cls(host, device=device, model=model, verify=verify, block_tokens=saved.layout.block_tokens)
        if saved.model is not None and cache._model is None:
            raise Refused(
                "these dialogues were saved with the name of their model, and none is given to compare",
                "DialogueCache.load(folder, model=model)",
            )
        if saved.model is not None and saved.model != cache._model:
            raise Refused(
                "these dialogues are of another model, of other weights, or of other adapters",
                "load the model that they were saved with, or start with an empty DialogueCache",
            )
        cache._take(saved.layout)
        kv_files.restore(saved, cache._blocks, cache._rows_of)
        if verify:
            for block in cache._blocks.held:
                cache._slots[block.slot].sums = cache._sums_in_host(block.slot)
        return cache

    # How it is done.

    @property
    def _on(self) -> Device:
        assert self._device is not None
        return self._device

    def _is_key(self, key: Any) -> None:
        if not isinstance(key, str) or not key:
            raise Refused(
                f"a dialogue is named by text, not by {type(key).__name__ if key != '' else 'nothing'}",
                "suspend('alice', past, tokens), resume('alice'), resume(tokens=input_ids)",
            )

    def _same_model(self, model: nn.Module | str | None) -> None:
        """Refuses another model than that of what is held; the one given at first becomes it."""
        given = self._watched if model is None else model
        if given is None:
            if self._model is not None and self.dialogues:
                raise Refused(
                    "the dialogues held name their model, and here none is named to compare",
                    "give model= here too, or at DialogueCache(model=...) once",
                )
            return
        name = self._identity.of(given)
        if not self.dialogues and self._watched in (None, given):
            self._model = name
        elif self._model is None:
            raise Refused(
                "the dialogues held were suspended without naming their model, so it cannot be compared",
                "name the model at every suspend, or at DialogueCache(model=...)",
            )
        elif name != self._model:
            raise Refused(
                "this is another model than that of the dialogues held: its configuration, weights or "
                "adapters differ",
                "use one DialogueCache per model; after training, clear() it",
            )

    def _bind(self, layers: Sequence[kv_past.Layer | None]) -> Layout:
        """Takes the memory at first; then refuses other layers than those."""
        place = next(layer.keys.device for layer in layers if layer)
        if self._device is None:
            if place.type != "cuda":
                raise Refused(
                    f"this cache lies on {place}: there is no GPU memory to spare",
                    "generate on a GPU, or pass device=ThreadedDevice() to try it out on a CPU",
                )
            self._device = CudaDevice(place)
        if place != self._device.torch_device:
            raise Refused(
                f"this cache lies on {place}, and the DialogueCache serves {self._device.torch_device}",
                "use one DialogueCache per device",
            )
        shapes = tuple(layer.shape if layer else None for layer in layers)
        if self._layout is None:
            self._take(Layout(shapes, self._block_tokens or fitting_block(shapes)))
        assert self._layout is not None
        if differs := self._layout.differs(shapes):
            raise Refused(
                f"this cache is of another model: it has {differs}", "use one DialogueCache per model"
            )
        return self._layout

    @plain_tensors
    def _take(self, layout: Layout) -> None:
        """The host memory, exactly as many blocks as the budget holds, and the streams."""
        slot_bytes = layout.offsets[-1]
        slots = self.host_bytes // slot_bytes
        if not slots:
            raise Refused(
                f"{written(self.host_bytes)} do not hold one block of {layout.block_tokens} tokens "
                f"({written(slot_bytes)})",
                f"give host='{-(-slot_bytes // (1 << 20))} MiB' or more, or fewer block_tokens",
            )
        self._host = self._on.host_memory(slots * slot_bytes)
        self._tally.host_allocations += 1
        self._slots = [_Slot() for _ in range(slots)]
        self._blocks = Blocks(layout.block_tokens, slots, self._model or "")
        self._out, self._in = self._on.new_stream(), self._on.new_stream()
        self._last_out: Event = None
        self._last_in: Event = None
        self._layout = layout
        self._offsets = layout.offsets

    def _rows_of(self, slot: int, layer: int, first: int, last: int) -> torch.Tensor:
        """uint8: rows of one layer of a block in host memory."""
        assert self._layout is not None
        shape = self._layout.layers[layer]
        assert shape is not None
        start = slot * self._offsets[-1] + self._offsets[layer]
        return self._host[start + first * shape.row_bytes : start + last * shape.row_bytes]

    def _store(self, layers: Sequence[kv_past.Layer | None], plan: Plan, gone: int) -> int:
        """Queues the copies of the plan's rows, layer by layer; the number of bytes."""
        on, layout, total = self._on, cast("Layout", self._layout), 0
        for placed in plan.copies:
            slot = self._slots[placed.block.slot]
            if placed.first == 0:
                placed.block.absent = 0
                if self.verify:
                    slot.sums = torch.zeros(len(layers), layout.block_tokens, dtype=torch.int64)
            if layout.window and gone > placed.block.start + placed.first:
                placed.block.absent = min(gone - placed.block.start, placed.last)
        self._follow(self._out, [self._slots[placed.block.slot].read for placed in plan.copies])
        for number, layer in enumerate(layers):
            if layer is None:
                continue
            present = [p for p in plan.copies if p.block.start + p.last > layer.first]
            for chunk in _chunks(present, layer.shape.row_bytes):
                begin = max(chunk[0].block.start + chunk[0].first, layer.first)
                end = chunk[-1].block.start + chunk[-1].last
                rows = self._staging((end - begin) * layer.shape.row_bytes)
                gather(rows, layer.shape, layer.keys, layer.values, begin - layer.first)
                compute = on.current_stream()
                ready = on.record(compute)
                on.wait(self._out, ready)
                for placed in chunk:
                    start = placed.block.start
                    first, last = max(start + placed.first, begin), start + placed.last
                    source = rows[
                        (first - begin) * layer.shape.row_bytes : (last - begin) * layer.shape.row_bytes
                    ]
                    target = self._rows_of(placed.block.slot, number, first - start, last - start)
                    on.copy(target, source, self._out)
                    self._tally.copy(source.numel())
                    if self.verify:
                        sums = cast("torch.Tensor", self._slots[placed.block.slot].sums)
                        sums[number, first - start : last - start] = checksums(source, layer.shape).cpu()
                done = on.record(self._out)
                self._tally.out.add(ready, self._last_out, done, rows.numel())
                self._last_out = done
                self._leaving.append(_Moving(done, rows, compute))
                total += rows.numel()
        mark = _Mark(self._tally.suspends, self._last_out)
        for placed in plan.copies if total else ():
            self._slots[placed.block.slot].written = mark
        return total

    def _follow(self, stream: Any, marks: Sequence[_Mark | None]) -> None:
        """What is queued on the stream from now on comes after these marks, which are of one other stream."""
        last = max((mark for mark in marks if mark), key=lambda mark: mark.number, default=None)
        if last is not None and not self._on.is_done(last.event):
            self._on.wait(stream, last.event)

    def _staging(self, nbytes: int) -> torch.Tensor:
        """Device memory for rows on their way out; beyond the allowance, compute waits for the oldest to be
        gone.
        """
        held = sum(moving.memory.numel() for moving in self._leaving)
        while self._leaving and held + nbytes > STAGING:
            oldest = self._leaving.pop(0)
            held -= oldest.memory.numel()
            self._stall(oldest.done, "copy-out behind")
        return self._on.allocate(nbytes)

    def _load(self, found: Sequence[Placed], length: int, plain: bool) -> Any:
        """Queues the copies of these rows into fresh device memory, and returns the cache that they will
        be.
        """
        on, layout = self._on, cast("Layout", self._layout)
        compute = on.current_stream()
        places: list[tuple[int, torch.Tensor] | None] = []
        for shape in layout.layers:
            first = max(0, length - shape.window + 1) if shape and shape.window else 0
            # On the compute stream, which it is freed into later.
            places.append((first, on.allocate((length - first) * shape.row_bytes)) if shape else None)
        free = on.record(compute)
        on.wait(self._in, free)  # a former owner's work may still write there
        self._follow(self._in, [self._slots[placed.block.slot].written for placed in found])
        layers: list[Any] = []
        arrivals: list[Callable[[], bool]] = []
        for number, (shape, place) in enumerate(zip(layout.layers, places, strict=True)):
            if shape is None or place is None:
                layers.append(None)
                arrivals.append(_nothing)
                continue
            begin, memory = place
            for placed in found:
                start = placed.block.start
                first, last = max(start, begin), min(start + placed.last, length)
                if first < last:
                    target = memory[(first - begin) * shape.row_bytes : (last - begin) * shape.row_bytes]
                    on.copy(
                        target,
                        self._rows_of(placed.block.slot, number, first - start, last - start),
                        self._in,
                    )
                    self._tally.copy(target.numel())
            done = on.record(self._in)
            self._tally.into.add(free, self._last_in, done, memory.numel())
            self._last_in = done
            moving = _Moving(done, memory, compute)
            self._coming[id(moving)] = moving
            layers.append((shape, *views(memory, shape)))
            arrivals.append(self._arrival(id(moving), done))
        mark = _Mark(self._tally.hits, self._last_in)
        for placed in found:
            self._slots[placed.block.slot].read = mark
        if self.verify:
            self._check(found, places)
        if plain:
            for arrive in arrivals:
                arrive()
            return [layer[1:] for layer in layers if layer]
        past = kv_past.cache_of(layers, length)
        for number, arrive in enumerate(arrivals):
            if layers[number]:
                kv_past.when_touched(past, number, arrive)
        return past

    def _arrival(self, number: int, done: Event) -> Callable[[], bool]:
        """Makes the stream current at the call wait for a load; says whether that was the last time it
        had to. Holds no memory.
        """
        waited: list[Any] = []  # streams

        def arrive() -> bool:
            on = self._on
            stream = on.current_stream()
            if not on.is_done(done) and stream not in waited:
                self._stall(done, "copy-in late")
                waited.append(stream)
            moving = self._coming.get(number)
            if moving is not None and moving.done is done and moving.stream == stream:
                del self._coming[number]  # its stream has waited: what it is freed into comes later
            return on.is_done(done)

        return arrive

    def _stall(self, done: Event, cause: str) -> None:
        on = self._on
        compute = on.current_stream()
        if on.is_done(done):
            return
        before = on.record(compute)
        on.wait(compute, done)
        self._tally.stall(cause, before, on.record(compute))

    def _check(self, found: Sequence[Placed], places: Sequence[tuple[int, torch.Tensor] | None]) -> None:
        on, layout = self._on, cast("Layout", self._layout)
        on.synchronize(self._last_in)
        on.wait(on.current_stream(), self._last_in)
        for number, (shape, place) in enumerate(zip(layout.layers, places, strict=True)):
            if shape is None or place is None:
                continue
            begin, memory = place
            came = checksums(memory, shape).cpu()
            for placed in found:
                start, sums = placed.block.start, self._slots[placed.block.slot].sums
                first, last = max(start, begin), min(start + placed.last, begin + came.numel())
                if sums is None or first >= last:
                    continue
                if not torch.equal(
                    sums[number, first - start : last - start], came[first - begin : last - begin]
                ):
                    raise Refused(
                        f"layer {number}, tokens {first} to {last}: what came back is not what was suspended",
                        "forget this dialogue and compute it again; host memory or copies are at fault",
                    )
                self._tally.verified_bytes += (last - first) * shape.row_bytes

    def _sums_in_host(self, slot: int) -> torch.Tensor:
        layout = cast("Layout", self._layout)
        sums = torch.zeros(len(layout.layers), layout.block_tokens, dtype=torch.int64)
        for number, shape in enumerate(layout.layers):
            if shape:
                sums[number] = checksums(self._rows_of(slot, number, 0, layout.block_tokens), shape)
        return sums

    def _tidy(self) -> None:
        """Lets go of device memory whose copies are over, and of what has been timed."""
        self._leaving = [moving for moving in self._leaving if not self._on.is_done(moving.done)]
        for number in [n for n, moving in self._coming.items() if self._on.is_done(moving.done)]:
            del self._coming[number]
        self._tally.settle(self._on)


def token_ids(tokens: Tokens) -> tuple[int, ...]:
    """Token ids of one dialogue, from a tensor [n] or [1, n] or a sequence of whole numbers."""
    if isinstance(tokens, torch.Tensor):
        if tokens.ndim == 2 and tokens.shape[0] == 1:
            tokens = tokens[0]
        if tokens.ndim != 1 or tokens.is_floating_point():
            raise Refused(
                f"{list(tokens.shape)} {tokens.dtype} are not the token ids of one dialogue",
                "give whole numbers [n] or [1, n]; dialogues of a batch one at a time",
            )
        return tuple(cast("Any", tokens).tolist())
    found = tuple(tokens)
    if not all(type(token) is int and -(1 << 63) <= token < 1 << 63 for token in found):
        raise Refused("token ids are whole numbers", "give a tensor [n] or [1, n], or a list of ints")
    return found


def _refuse_while_recorded() -> None:
    if torch.compiler.is_compiling() or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    ):
        raise Refused(
            "copies to and from host memory cannot be part of a compiled or captured graph",
            "suspend and resume outside of it, between the turns",
        )


def _refuse_more_than_there_is(nbytes: int) -> None:
    available = host_share.memory()
    if nbytes > available:
        raise Refused(
            f"{written(nbytes)} of host memory were asked for, and this process can get {written(available)} "
            "(of its share of the host, and of its container)",
            "give host= less, or raise the container's limit",
        )


def _nothing() -> bool:
    """For a layer that keeps nothing."""
    return True


def _chunks(copies: Sequence[Placed], row_bytes: int) -> list[list[Placed]]:
    """Runs of copies of at most CHUNK bytes of one layer, at least one copy each."""
    found: list[list[Placed]] = []
    size = 0
    for placed in copies:
        nbytes = (placed.last - placed.first) * row_bytes
        if not found or size + nbytes > CHUNK:
            found.append([])
            size = 0
        found[-1].append(placed)
        size += nbytes
    return found


ONE_SEQUENCE = ("num_beams", "num_return_sequences", "num_beam_groups")
NOT_TOKENS = ("embeds", "pixel", "image", "video", "audio", "input_features", "position_ids", "token_type")
OWN_CACHE = ("past_key_values", "cache_implementation", "assistant_model", "prompt_lookup_num_tokens")


def _refuse_unlike_dialogue(model: Any, input_ids: Any, kwargs: dict[str, Any]) -> None:
    if not isinstance(input_ids, torch.Tensor) or input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise Refused("input_ids are not one dialogue, [1, n]", "generate for one dialogue at a time")
    config: Any = kwargs.get("generation_config") or getattr(model, "generation_config", None)

    def asked(name: str) -> Any:
        return kwargs[name] if name in kwargs else getattr(config, name, None)

    for name in ONE_SEQUENCE:
        if (asked(name) or 1) != 1:
            raise Refused(
                f"{name}={asked(name)} makes several sequences of one", "generate greedily or by sampling"
            )
    for name in OWN_CACHE:
        if asked(name) is not None:
            raise Refused(
                f"{name} brings a cache of its own",
                "leave it out: the DialogueCache gives generate its cache",
            )
    for name in kwargs:
        if any(part in name for part in NOT_TOKENS) and kwargs[name] is not None:
            raise Refused(
                f"{name}: keys and values would depend on more than the token ids",
                "use it without a DialogueCache",
            )
    if asked("use_cache") is False:
        raise Refused("use_cache=False keeps no keys and values", "generate(..., use_cache=True)")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise Refused(
            "attention_mask hides tokens, which the cache would keep", "give the dialogue without padding"
        )
