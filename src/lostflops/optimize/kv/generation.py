"""Keys and values of a generation that goes on, of any batch: those of some layers wait in host memory.

    with optimize.kv_offload(model, budget="20 GiB") as offloaded:
        model.generate(**inputs, past_key_values=offloaded.past)
        print(offloaded.report())

All layers begin on the device. When their keys and values outgrow the budget, layers move to host memory,
evenly between those that stay. The keys and values of such a layer come to the device while the layer before
computes. Only what is new goes out: each token's are copied out once, and in for every later token. The
attention gets tensors of the same values and strides as from a DynamicCache.

The rules. A fetch waits, on the stream *in*, for the copy out of what is new since the last one, and for all
that used its memory before. The layer waits for the fetch. What goes out waits for who made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch

from lostflops.optimize.activations.offload.report import OneWay
from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device import host_share
from lostflops.optimize.device.devices import Device, Event, device_of
from lostflops.optimize.kv.past import as_plain
from lostflops.optimize.kv.store import plain_tensors
from lostflops.optimize.memory_layout import view_of
from lostflops.optimize.refused import Refused, needs
from lostflops.optimize.remedy import AppliedRemedy, Report

PIECE = 4 << 20  # bytes of host memory that a layer takes at a time, at least


def kv_offload(
    model: torch.nn.Module,
    budget: int | str,
    *,
    host: int | str | None = None,
    device: Device | None = None,
) -> KvOffload:
    """A cache for `generate` whose keys and values take `budget` bytes of the device, until `undo`.

    Give `past` of what is returned as `past_key_values`: for one generation; `past.reset()` begins another.
    `host`: the most to take of host memory, by default all that is left. Three times the largest layer's
    bytes are for layers in their turn, so a smaller budget is exceeded, and the report says so. Layers with a
    sliding window stay. Not verified on a GPU yet.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise Refused(
            f"a {type(model).__name__} has no configuration of Hugging Face's",
            "give a model of transformers",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise Refused(
            f"a {type(model).__name__} keeps keys of its encoder's output too, in a cache of their own",
            "generate as it is, or use a decoder-only model",
        )
    if getattr(getattr(model, "generation_config", None), "use_cache", None) is False:
        raise Refused(
            "the model's generation_config says use_cache=False: generate would give every token to the "
            "cache again at each step, and answer with others",
            "model.generation_config.use_cache = True",
        )
    on = device_of(model) if device is None else device
    if on.coherent:
        raise Refused(f"{on.torch_device} shares the host's memory: moving frees none", "generate as it is")
    most = host_share.memory() if host is None else bytes_of(host)
    return KvOffload(config, bytes_of(budget), most, on)


@dataclass(frozen=True)
class KvOffloadReport(Report):
    """Of one or more generations. Times are of the device's clock; `into` is host to device."""

    document = "kv offload report"

    budget_bytes: int
    most_device_bytes: int  # of keys and values, with those that were in their turn
    layers: int
    layers_in_host: int  # at most at once
    tokens: int  # of every sequence, now
    batch: int
    host_bytes: int  # at most
    into: OneWay
    out: OneWay

    def __str__(self) -> str:
        within = "within" if self.most_device_bytes <= self.budget_bytes else "OVER"
        lines = [
            f"keys and values: {self.layers_in_host} of {self.layers} layers in host memory",
            f"  sequences       {self.batch} of {self.tokens} tokens",
            f"  on the device   {written(self.most_device_bytes)}, {within} the budget of "
            + written(self.budget_bytes),
            f"  in host memory  {written(self.host_bytes)}",
        ]
        for name, way in (("in", self.into), ("out", self.out)):
            line = f"  {name:<15} {written(way.bytes)} in {way.copies} copies"
            if way.hidden is not None and way.bytes_per_second is not None:
                line += f", {way.bytes_per_second / 1e9:.3g} GB/s, {way.hidden:.0%} hidden"
            lines.append(line)
        return "\n".join(lines)


@dataclass(frozen=True)
class TokenRow:
    """A token's keys and values of one layer, of all sequences, as they lie together."""

    batch: int
    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return self.batch * self.heads * (self.key_size + self.value_size)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def seen_in(self, memory: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [batch, heads, tokens, size], as views of rows."""
        found: list[torch.Tensor] = []
        offset = 0
        for size in (self.key_size, self.value_size):
            strides = (self.heads * size, size, self.elements, 1)
            shape = (self.batch, self.heads, tokens, size)
            found.append(view_of(memory, offset, self.dtype, shape, strides))
            offset += self.batch * self.heads * size * self.dtype.itemsize
        return found[0], found[1]


@dataclass(eq=False)
class Rows:
    """A layer's tokens in host memory, in pieces of equally many."""

    row: TokenRow
    piece_tokens: int
    pieces: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    tokens: int = 0
    sent: Event = None  # the last copy out
    fetched: tuple[torch.Tensor, int, Event, Event] | None = None  # memory, tokens, started, ready

    @property
    def held_bytes(self) -> int:
        return sum(piece.numel() for piece in self.pieces)

    def parts(self, first: int, last: int) -> list[tuple[torch.Tensor, int, int]]:
        """Memory of the tokens from first to last, with the bytes among them where each part begins and
        ends."""
        found: list[tuple[torch.Tensor, int, int]] = []
        nbytes, at = self.row.nbytes, first
        while at < last:
            piece, inside = divmod(at, self.piece_tokens)
            end = min(last, (piece + 1) * self.piece_tokens)
            memory = self.pieces[piece][inside * nbytes : (inside + end - at) * nbytes]
            found.append((memory, (at - first) * nbytes, (end - first) * nbytes))
            at = end
        return found


class KvOffload(AppliedRemedy):
    """`past` is a cache whose layers move to host memory when they outgrow the budget, until `undo()`."""

    def __init__(self, config: Any, budget: int, host: int, device: Device) -> None:
        classes = _classes()
        self.budget_bytes, self._host_most, self._device = budget, host, device
        self._in, self._out = device.new_stream(), device.new_stream()
        self.past: Any = classes["DynamicCache"](config=config)
        self._layers: list[Any] = []
        for number, layer in enumerate(self.past.layers):
            if type(layer) is classes["DynamicLayer"]:
                self.past.layers[number] = layer = classes["Offloaded"]()
                layer.offload_engine = self
                self._layers.append(layer)
        if not self._layers:
            kinds = ", ".join(sorted({type(layer).__name__ for layer in self.past.layers})) or "no layers"
            raise Refused(
                f"the model's cache has {kinds}, and only the keys and values of a DynamicLayer are moved",
                "generate as it is",
            )
        many = len(self._layers)
        order = sorted(range(many), key=lambda n: f"{n:032b}"[::-1])  # far from each other first
        self._victims = [self._layers[number] for number in order]
        self._held: deque[tuple[torch.Tensor, Event]] = deque()  # memory, until copies from or to it are done
        self._pending: deque[tuple[str, Event, Event, Event, Event]] = deque()
        self._ways = {"in": [0, 0, 0, 0], "out": [0, 0, 0, 0]}  # bytes, copies, copying, waited
        self._most = self._most_host = self._most_layers = 0
        self._seen = (0, 0)

    def report(self) -> KvOffloadReport:
        self._resolve(wait=True)
        into, out = (OneWay(*self._ways[way]) for way in ("in", "out"))
        tokens, batch = self._seen
        return KvOffloadReport(
            budget_bytes=self.budget_bytes,
            most_device_bytes=self._most,
            layers=len(self.past.layers),
            layers_in_host=self._most_layers,
            tokens=tokens,
            batch=batch,
            host_bytes=self._most_host,
            into=into,
            out=out,
        )

    def _take_back(self) -> None:
        """All keys and values are on the device, and stay there."""
        for layer in self._layers:
            if layer.rows is not None:
                self.bring_home(layer)
        self._device.synchronize(self._device.record(self._device.current_stream()))

    # What layers ask for.

    def update(
        self, layer: Any, plain: Callable[..., Any], keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of the layer, with the new ones; these are kept."""
        if torch.compiler.is_compiling():
            raise Refused("a cache that is offloaded is being compiled", "generate without compiling")
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise Refused("keys are to be trained through an offloaded cache", "run it under torch.no_grad()")
        return self._updated(layer, plain, keys, values)

    @plain_tensors
    def _updated(
        self, layer: Any, plain: Callable[..., Any], keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer.rows is not None and layer.rows.row != _row_of(keys, values):
            self.bring_home(layer)  # other sequences: torch says what does not fit
        if layer.rows is None:
            whole = plain(keys, values)
        else:
            old = self._arrive(layer)
            self._fetch_next(layer)
            whole = tuple(_joined(one, new) for one, new in zip(old, (keys, values), strict=True))
            self._device.before_reuse(old[0], self._device.current_stream())
            self._send(layer, keys, values)
        self._seen = int(whole[0].shape[-2]), int(whole[0].shape[0])
        if not self._undone:
            self._make_room()
        return cast("tuple[torch.Tensor, torch.Tensor]", whole)

    @plain_tensors
    def load(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Its keys and values on the device, for whoever looks at them."""
        keys, values = (_joined(one, None) for one in self._arrive(layer))
        return keys, values

    def bring_home(self, layer: Any) -> None:
        keys, values = self.load(layer)
        self.drop(layer)
        layer.__dict__.update(_keys=keys, _values=values)

    def drop(self, layer: Any) -> None:
        """The layer's rows are nobody's any more."""
        rows, layer.rows = layer.rows, None
        if rows is not None:
            self.stale(rows)
            for stream in (self._in, self._out):  # host memory is let go
                self._device.synchronize(self._device.record(stream))

    def stale(self, rows: Rows) -> None:
        """What was fetched ahead is no longer what the rows are."""
        if rows.fetched is not None:
            memory, _, _, ready = rows.fetched
            self._held.append((memory, ready))
            self._device.wait(self._out, ready)  # it may still read what is to be written over
            rows.fetched = None

    # Copies.

    def _arrive(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the rows on the device, which the current stream waits for."""
        device, rows = self._device, cast("Rows", layer.rows)
        if not rows.tokens:
            memory = device.allocate(rows.row.nbytes)
            return rows.row.seen_in(memory, 0)
        if rows.fetched is None or rows.fetched[1] != rows.tokens:
            self.stale(rows)
            self._fetch(rows)
        memory, tokens, started, ready = cast("Any", rows.fetched)
        rows.fetched = None
        stream = device.current_stream()
        before = device.record(stream)
        device.wait(stream, ready)
        self._pending.append(("in", started, ready, before, device.record(stream)))
        self._resolve()
        return rows.row.seen_in(memory, tokens)

    def _fetch(self, rows: Rows) -> None:
        device = self._device
        # Whole pieces, so that the allocator can give the same memory again as tokens are added.
        room = len(rows.pieces) * rows.piece_tokens * rows.row.nbytes
        memory = device.allocate(room)
        device.wait(self._in, device.record(device.current_stream()))
        if rows.sent is not None:
            device.wait(self._in, rows.sent)
        started = device.record(self._in)
        for source, first, last in rows.parts(0, rows.tokens):
            device.copy(memory[first:last], source, self._in)
            self._ways["in"][1] += 1
        rows.fetched = memory, rows.tokens, started, device.record(self._in)
        self._ways["in"][0] += rows.tokens * rows.row.nbytes

    def _fetch_next(self, layer: Any) -> None:
        number, many = self._layers.index(layer), len(self._layers)
        for step in range(1, many):
            rows = self._layers[(number + step) % many].rows
            if rows is not None and rows.tokens:
                if rows.fetched is None:
                    self._fetch(rows)
                return

    def _send(self, layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        """New tokens of a layer that is in host memory."""
        device, rows = self._device, cast("Rows", layer.rows)
        tokens = keys.shape[-2]
        if not tokens:
            return
        self._take_host_memory(rows, rows.tokens + tokens)
        memory = device.allocate(tokens * rows.row.nbytes)
        for view, new in zip(rows.row.seen_in(memory, tokens), (keys, values), strict=True):
            view.copy_(new)
        device.wait(self._out, device.record(device.current_stream()))
        started = device.record(self._out)
        for target, first, last in rows.parts(rows.tokens, rows.tokens + tokens):
            device.copy(target, memory[first:last], self._out)
            self._ways["out"][1] += 1
        rows.sent = device.record(self._out)
        self._held.append((memory, rows.sent))
        self._pending.append(("out", started, rows.sent, rows.sent, rows.sent))
        self._ways["out"][0] += tokens * rows.row.nbytes
        rows.tokens += tokens

    def _take_host_memory(self, rows: Rows, tokens: int) -> None:
        while len(rows.pieces) * rows.piece_tokens < tokens:
            nbytes = rows.piece_tokens * rows.row.nbytes
            held = sum(layer.rows.held_bytes for layer in self._layers if layer.rows) + nbytes
            if held > self._host_most:
                most = written(self._host_most)
                raise Refused(
                    f"keys and values would take {written(held)} of host memory, and {most} are allowed",
                    "raise host or the budget, or generate fewer tokens or sequences at a time",
                )
            rows.pieces.append(self._device.host_memory(nbytes))
            self._most_host = max(self._most_host, held)

    # The budget.

    def _make_room(self) -> None:
        while (held := self._device_bytes()) > self.budget_bytes:
            stay = (each for each in self._victims if each.rows is None and each.get_seq_length())
            victim = next(stay, None)
            if victim is None:
                break
            keys, values = victim.keys, victim.values
            row = _row_of(keys, values)
            victim.rows = Rows(row, max(1, -(-PIECE // row.nbytes)))
            try:
                self._send(victim, keys, values)
            except BaseException:
                victim.rows = None
                raise
            victim.__dict__.update(_keys=None, _values=None)
        self._most = max(self._most, held)
        self._most_layers = max(self._most_layers, sum(each.rows is not None for each in self._layers))

    def _device_bytes(self) -> int:
        """Of layers that stay, and three times the largest in host memory: in its turn a layer is there as it
        came and joined with what is new, and the next one comes."""
        stays = sum(
            tensor.nbytes
            for layer in self.past.layers
            if getattr(layer, "rows", None) is None and getattr(layer, "is_initialized", False)
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if tensor is not None
        )
        away = [each.rows.tokens * each.rows.row.nbytes for each in self._layers if each.rows is not None]
        return stays + 3 * max(away, default=0)

    def _resolve(self, wait: bool = False) -> None:
        device = self._device
        while self._pending and (wait or device.is_done(self._pending[0][-1])):
            way, started, ready, before, after = self._pending.popleft()
            if wait:
                device.synchronize(ready)
                device.synchronize(after)
            self._ways[way][2] += max(0, device.elapsed(started, ready))
            self._ways[way][3] += max(0, device.elapsed(before, after))
        while self._held and device.is_done(self._held[0][1]):
            self._held.popleft()


def _row_of(keys: torch.Tensor, values: torch.Tensor) -> TokenRow:
    return TokenRow(keys.shape[0], keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)


def _joined(old: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    """As `torch.cat` gives them to a DynamicCache: contiguous."""
    batch, heads, tokens, size = old.shape
    more = 0 if new is None else new.shape[-2]
    whole = torch.empty((batch, heads, tokens + more, size), dtype=old.dtype, device=old.device)
    whole[:, :, :tokens].copy_(old)
    if new is not None:
        whole[:, :, tokens:].copy_(new)
    return whole


@cache
def _classes() -> dict[str, Any]:
    try:
        from transformers.cache_utils import DynamicCache, DynamicLayer
    except ImportError as error:
        raise needs("transformers", error) from error

    def seen(name: str) -> Any:
        def get(self: Any) -> Any:
            if self.rows is not None:
                return self.offload_engine.load(self)[name == "values"]
            return self.__dict__.get(f"_{name}")

        def put(self: Any, tensor: Any) -> None:
            if self.rows is not None:  # both are to be somebody's: on the device, until there is no room
                self.offload_engine.bring_home(self)
            self.__dict__[f"_{name}"] = tensor

        return property(get, put)

    class OffloadedLayer(DynamicLayer):
        rows: Rows | None = None
        offload_engine: Any = None
        keys: Any = seen("keys")
        values: Any = seen("values")

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            plain = cast("Callable[..., Any]", super().update)
            return self.offload_engine.update(self, plain, key_states, value_states)

        def get_seq_length(self) -> int:
            return self.rows.tokens if self.rows is not None else super().get_seq_length()

        def reset(self) -> None:
            self.offload_engine.drop(self)
            super().reset()

        def crop(self, tokens_to_remove: int) -> None:
            if self.rows is None or tokens_to_remove > 0:
                super().crop(tokens_to_remove)
                return
            self.offload_engine.stale(self.rows)
            self.rows.tokens = max(0, self.rows.tokens - abs(tokens_to_remove))

        def __reduce__(self) -> Any:
            """A copy is a layer of its own, on the device: it has no part in the budget."""
            return as_plain(self, DynamicLayer, ("_keys", "_values", "rows", "offload_engine"))

    return {"DynamicCache": DynamicCache, "DynamicLayer": DynamicLayer, "Offloaded": OffloadedLayer}
