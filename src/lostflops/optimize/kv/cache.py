"""The keys and values of dialogues, kept in host memory between turns and brought back instead of recomputed.

    cache = optimize.DialogueCache(host="100 GiB")
    answer = cache.generate(model, input_ids, "alice", max_new_tokens=200)   # the whole dialogue so far

    past = cache.resume(tokens=input_ids)                  # or in two steps, around a generate of your own
    output = model.generate(input_ids, past_key_values=past, ...)
    cache.suspend("alice", past, output)

What comes back are the very bits that left. Against a prefill of everything at once they may differ as far as
the model's own rounding differs between a prefill and token-by-token decoding, cache or no cache.

Compute waits for a layer's load when it first touches that layer, so that the first layers run while the last
ones are under way; `kv_store` says who else waits for whom. On CUDA not verified on a GPU yet.

One model and one device; threads take turns. For serving many users at once, see `kv_gain.ALTERNATIVES`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import nn

from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device import host_share
from lostflops.optimize.device.devices import CudaDevice, Device, device_of
from lostflops.optimize.kv import files as kv_files
from lostflops.optimize.kv import past as kv_past
from lostflops.optimize.kv.blocks import Blocks, usable
from lostflops.optimize.kv.model import Identity
from lostflops.optimize.kv.report import CacheTally, KvReport, advice
from lostflops.optimize.kv.rows import BlockLayout, fitting_block
from lostflops.optimize.kv.store import Store, plain_tensors
from lostflops.optimize.model_parts import named
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy

Tokens = torch.Tensor | Sequence[int]
P = ParamSpec("P")
R = TypeVar("R")


def _in_turn(call: Callable[Concatenate[DialogueCache, P], R]) -> Callable[Concatenate[DialogueCache, P], R]:
    """One thread at a time."""

    @wraps(call)
    def called(self: DialogueCache, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:  # pyright: ignore[reportPrivateUsage]
            return call(self, *args, **kwargs)

    return called


@dataclass(frozen=True)
class Suspended:
    """What one `suspend` did: tokens held now, and how many of them had to be copied."""

    tokens: int
    copied_tokens: int
    kept_tokens: int
    shared_tokens: int
    copied_bytes: int


class DialogueCache(AppliedRemedy):
    """Keys and values of dialogues in at most `host` bytes of host memory.

    The memory is taken in pieces, as blocks come to be used, and given back by `undo` alone; on CUDA it is
    pinned, which makes the suspend slow that needs a new piece. `block_tokens`: tokens that are stored and
    shared together; by default so many that one layer's are 1 MiB (16 to 512). `model`: refuses anything of
    another model, of other weights or with other adapters; or a name for it, where weights cannot be read.
    `device`: by default that of the first cache. `verify` compares checksums of every row at each resume,
    and waits for it.
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
        self._store: Store | None = None
        self._tally = CacheTally()
        self._told: KvReport | None = None  # since it was undone
        self._lock = threading.RLock()

    @_in_turn
    def _take_back(self) -> None:
        """Drops all dialogues, and gives their host memory back once no copy uses it any more."""
        self._told = self.report()
        self._store = None
        self._model = None

    # What users call.

    @_in_turn
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
        store = self._bind(layers)
        store.tidy()
        gone = max((layer.first for layer in layers if layer), default=0)
        plan = self._blocks.place(key, ids)
        self._tally.evicted_tokens += plan.evicted
        try:
            copied = store.store(layers, plan, gone)
        except BaseException:
            self._blocks.forget(key)  # its rows are not all there
            raise
        fresh = len(ids) - plan.kept - plan.shared
        if fresh and not copied and gone < len(ids):
            raise Refused("tokens were stored and no byte moved", "report this: it is a fault of lostflops")
        self._tally.suspends += 1
        self._tally.stored_tokens += fresh
        self._tally.kept_bytes += plan.kept * store.layout.token_bytes
        self._tally.shared_bytes += plan.shared * store.layout.token_bytes
        return Suspended(len(ids), fresh, plan.kept, plan.shared, copied)

    @_in_turn
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
        self.apply()
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
        store = self._store
        if store is None:
            self._tally.misses += 1
            return None
        store.tidy()
        found = self._blocks.of(cast("str", key)) if ids is None else self._blocks.matching(ids[:-1])
        if ids is None:
            self._tally.asked_tokens += sum(placed.last for placed in found)
        length = usable(found, store.layout.window)
        if plain and length and store.layout.window:
            raise Refused(
                "layers with a sliding window have fewer rows than the others: a plain list cannot say so",
                "resume without plain=True",
            )
        if not length:
            self._tally.misses += 1
            return None
        self._blocks.touch([placed.block for placed in found])
        self._tally.hits += 1
        self._tally.hit_tokens += length
        coming = store.load(found, length)
        if plain:
            for each in coming:
                each.arrive()
            return [each.layer[1:] for each in coming if each.layer]
        past = kv_past.cache_of([each.layer for each in coming], length)
        for number, each in enumerate(coming):
            if each.layer:
                kv_past.when_touched(past, number, each.arrive)
        return past

    def generate(self, model: Any, input_ids: torch.Tensor, key: str, **kwargs: Any) -> Any:
        """`model.generate(input_ids, **kwargs)` with what is held resumed before and suspended after.

        input_ids [1, n]: the whole dialogue so far, its history included. Returns what `generate` returns.
        All tokens are attended to, one that equals the padding's too, which `generate` hides where it is
        given no attention_mask. Refuses what generates several sequences, or from more than tokens. An answer
        that grows beyond the budget is stored as far as it fits, and the report counts the rest.
        """
        self.apply()
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
        self._suspend_what_fits(key, past, ids, named)
        return output

    @_in_turn
    def _suspend_what_fits(self, key: str, past: Any, ids: tuple[int, ...], model: Any) -> None:
        layers, seen = kv_past.layers_of(past)
        self._bind(layers)
        room = self._blocks.slots * self._blocks.size
        self._tally.left_out_tokens += max(0, min(seen, len(ids)) - room)
        self.suspend(key, past, ids[:room], model=model)

    @_in_turn
    def forget(self, key: str) -> int:
        """Drops a dialogue, and returns how many of its tokens no other one holds. Its bytes are not
        wiped.
        """
        return self._blocks.forget(key) if self._store else 0

    @_in_turn
    def clear(self) -> None:
        """Drops all dialogues; the memory stays, for the same model with other weights too."""
        for key in self.dialogues:
            self._blocks.forget(key)
        self._model = None

    @property
    def dialogues(self) -> dict[str, int]:
        """Tokens held of each, from its beginning."""
        if self._store is None:
            return {}
        return {key: chain[-1].end for key, chain in self._blocks.dialogues.items()}

    @property
    def capacity_tokens(self) -> int | None:
        """Of one dialogue alone; None before the first suspend."""
        return self._blocks.slots * self._blocks.size if self._store else None

    @_in_turn
    def flush(self) -> None:
        """Waits until compute and every copy under way are done."""
        if self._store is not None:
            self._store.flush()

    @_in_turn
    def report(self) -> KvReport:
        """What moved, what that saved, and what it cost, so far. Waits as `flush` does."""
        if self._store is None:
            return self._told or self._tally.report(self.host_bytes)
        self._store.flush()
        return self._tally.report(self.host_bytes, self._store.layout, self._blocks, self._store.host_bytes)

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

    @_in_turn
    def save(self, folder: str | Path) -> None:
        """Writes all dialogues into a folder, or nothing: what was there before stays valid until all is
        written.

        Token ids and keys and values lie there as they are, readable by the owner only.
        """
        if self._store is None or not self._blocks.held:
            raise Refused("no dialogue is held", "suspend one before saving")
        self._store.flush()
        kv_files.save(Path(folder), self._store.layout, self._blocks, self._store.rows, self._model)

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
        store = cache._take(device, saved.layout)
        kv_files.restore(saved, cache._blocks, store.rows)
        for block in cache._blocks.held if verify else ():
            store.trust(block.slot)
        return cache

    # How it is done.

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

    def _bind(self, layers: Sequence[kv_past.KeysAndValues | None]) -> Store:
        """Takes the memory at first; then refuses other layers than those."""
        self.apply()
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
        if self._store is None:
            layout = BlockLayout(shapes, self._block_tokens or fitting_block(shapes))
            self._store = self._take(self._device, layout)
        if differs := self._store.layout.differs(shapes):
            raise Refused(
                f"this cache is of another model: it has {differs}", "use one DialogueCache per model"
            )
        return self._store

    def _take(self, device: Device, layout: BlockLayout) -> Store:
        """Exactly as many blocks as the budget holds. Their memory is taken as they come to be used."""
        slot_bytes = layout.offsets[-1]
        slots = self.host_bytes // slot_bytes
        if not slots:
            raise Refused(
                f"{written(self.host_bytes)} do not hold one block of {layout.block_tokens} tokens "
                f"({written(slot_bytes)})",
                f"give host='{-(-slot_bytes // (1 << 20))} MiB' or more, or fewer block_tokens",
            )
        self._blocks = Blocks(layout.block_tokens, slots, self._model or "")
        self._store = Store(device, layout, slots, self._tally, self.verify, self._lock)
        return self._store


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


OTHER_GENERATE = ("custom_generate", "inputs")
ONE_SEQUENCE = ("num_beams", "num_return_sequences", "num_beam_groups")
NOT_TOKENS = ("embeds", "pixel", "image", "video", "audio", "input_features", "position_ids", "token_type")
OWN_CACHE = ("past_key_values", "cache_implementation", "assistant_model", "prompt_lookup_num_tokens")
# Of the model's own arguments, those on which its keys and values do not depend; the mask is looked at.
OF_NO_EFFECT = ("attention_mask", "logits_to_keep", "num_logits_to_keep", "return_dict", "labels")


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
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's takes all
    arguments = inspect.signature(inner.generate).parameters
    known = {*arguments, *cast("dict[str, Any]", getattr(config, "__dict__", {})), *OF_NO_EFFECT}
    for name in kwargs:
        if kwargs[name] is not None and (name not in known or name in OTHER_GENERATE):
            raise Refused(
                f"it is not known whether keys and values depend on {name}",
                "leave it out, or use it without a DialogueCache",
            )
    if (dropout := _dropout(model)) is not None:
        raise Refused(
            f"the model is in training mode, and {dropout} drops out at random: its keys would be of chance",
            "model.eval() first",
        )
    if asked("use_cache") is False:
        raise Refused("use_cache=False keeps no keys and values", "generate(..., use_cache=True)")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise Refused(
            "attention_mask hides tokens, which the cache would keep", "give the dialogue without padding"
        )


def _dropout(model: Any) -> str | None:
    """What drops out as the model is now. Attention does so by a probability in the configuration."""
    if not getattr(model, "training", False):
        return None
    for name, module in named(model):
        if module.training and isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p:  # pyright: ignore[reportPrivateUsage]
            return f"'{name}'"
    config: dict[str, Any] = getattr(getattr(model, "config", None), "__dict__", {})
    chance = (n for n, v in config.items() if "dropout" in n and isinstance(v, float) and v)
    return next(chance, None)
