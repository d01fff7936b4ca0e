"""Dialogues that are suspended and resumed: the same bits, the same answers, no race, no stranger's keys."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import re
import stat
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from lostflops import optimize
from lostflops.copies import kv_resume
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.kv import files as kv_files
from lostflops.optimize.kv import past as kv_past
from lostflops.optimize.kv import store
from lostflops.optimize.kv.cache import DialogueCache
from lostflops.optimize.kv.rows import LayerShape, checksums, fitting_block, gather, views
from lostflops.optimize.refused import Refused
from simulated_devices import RaceDevice

torch.set_num_threads(1)
HEADS, SIZE, VALUE = 2, 3, 5  # of the made-up caches
POISON = 0xDD


def made_up(tokens: list[int], layers: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values as a model would: those of a token depend on all tokens up to it, and on nothing
    else.
    """
    found = []
    for layer in range(layers):
        state, keys, values = float(layer + 1), [], []
        for token in tokens:
            state = (state * 1.7 + token + 0.1) % 97
            keys.append(state + torch.arange(HEADS * SIZE).view(HEADS, SIZE) / 8)
            values.append(state - torch.arange(HEADS * VALUE).view(HEADS, VALUE) / 8)
        pair = [torch.stack(rows, 1)[None].float() for rows in (keys, values)]
        found.append((pair[0], pair[1]))
    return found


def slot_bytes(block_tokens: int, layers: int = 2) -> int:
    row = HEADS * (SIZE + VALUE) * 4
    return layers * -(-block_tokens * row // 512) * 512


def small(blocks: int = 8, block_tokens: int = 4, device: Any = None, **changes: Any) -> DialogueCache:
    """Room for so many blocks of the made-up caches."""
    return DialogueCache(
        blocks * slot_bytes(block_tokens),
        device=device or ThreadedDevice(),
        block_tokens=block_tokens,
        **changes,
    )


def same(past: Any, tokens: list[int]) -> bool:
    """Whether a plain cache holds exactly what belongs to these tokens."""
    return all(
        torch.equal(got[0], keys) and torch.equal(got[1], values)
        for got, (keys, values) in zip(past, made_up(tokens), strict=True)
    )


# Keys and values of made-up dialogues.


def test_what_was_suspended_comes_back_bit_for_bit() -> None:
    tokens = list(range(11))
    cache = small()
    assert cache.suspend("a", made_up(tokens), tokens).copied_tokens == 11
    assert same(cache.resume("a", plain=True), tokens)
    report = cache.report()
    assert report.stored_bytes == report.restored_bytes == 11 * report.bytes_per_token > 0


def test_the_past_may_be_overwritten_as_soon_as_suspend_returns() -> None:
    tokens = list(range(9))
    cache, past = small(), made_up(tokens)
    cache.suspend("a", past, tokens)
    for keys, values in past:
        keys.fill_(-1), values.fill_(-1)
    assert same(cache.resume("a", plain=True), tokens)


def test_only_new_tokens_are_copied_at_the_next_suspend() -> None:
    tokens = list(range(30))
    cache = small(12)
    sizes = [cache.suspend("a", made_up(tokens[:n]), tokens[:n]) for n in (6, 7, 17, 17)]
    assert [each.copied_tokens for each in sizes] == [6, 1, 10, 0]
    assert [each.kept_tokens for each in sizes] == [0, 6, 7, 17]
    assert [each.copied_bytes for each in sizes] == [
        n * cache.report().bytes_per_token for n in (6, 1, 10, 0)
    ]
    assert same(cache.resume("a", plain=True), tokens[:17])


def test_dialogues_with_the_same_beginning_store_it_once() -> None:
    system = list(range(9))
    one, two = [*system, 20, 21, 22], [*system, 30, 31]
    cache = small(12)
    cache.suspend("a", made_up(one), one)
    second = cache.suspend("b", made_up(two), two)
    assert (second.shared_tokens, second.copied_tokens) == (8, 3)
    assert cache.report().held_tokens == 15  # 12 and 11, 8 of them once
    assert same(cache.resume("a", plain=True), one)
    assert same(cache.resume("b", plain=True), two)
    assert cache.forget("a") == 4
    assert same(cache.resume("b", plain=True), two)
    assert cache.forget("b") == 11
    assert cache.report().held_tokens == 0 == cache.report().occupied_bytes


def test_the_longest_shared_beginning_is_resumed_even_inside_a_block() -> None:
    tokens = list(range(11))
    cache = small()
    cache.suspend("a", made_up(tokens), tokens)
    for shared in (1, 4, 6, 8, 10):
        asked = [*tokens[:shared], 50, 51]
        assert same(cache.resume(tokens=asked, plain=True), tokens[:shared])
    assert cache.resume(tokens=[50, 0, 1, 2]) is None
    assert same(
        cache.resume(tokens=torch.tensor([tokens]), plain=True), tokens[:10]
    )  # one is left to start from


def test_an_answer_that_is_written_anew_replaces_the_former_one() -> None:
    first, second = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 9]
    cache = small()
    cache.suspend("a", made_up(first), first)
    cache.suspend("a", made_up(second), second)
    assert same(cache.resume("a", plain=True), second)
    assert cache.report().held_tokens == 6


def test_the_same_words_at_another_place_are_other_rows() -> None:
    for first, second in (([0, 1, 2, 3, 5, 6], [5, 6, 7]), ([5, 6], [0, 1, 2, 3, 5, 6, 7])):
        cache = small()
        cache.suspend("a", made_up(first), first)
        assert cache.suspend("a", made_up(second), second).kept_tokens == 0
        assert same(cache.resume("a", plain=True), second)


def test_two_dialogues_may_grow_from_the_same_unfinished_block() -> None:
    start = [0, 1, 2, 3, 4, 5]
    cache = small()
    for key in "ab":
        cache.suspend(key, made_up(start), start)
    for key, more in (("a", [6, 7, 8]), ("b", [16, 17, 18])):
        cache.suspend(key, made_up(start + more), start + more)
    assert same(cache.resume("a", plain=True), [*start, 6, 7, 8])
    assert same(cache.resume("b", plain=True), [*start, 16, 17, 18])


def test_the_last_token_of_an_answer_is_in_no_cache_and_a_part_may_be_stored() -> None:
    tokens = list(range(8))
    cache = small()
    assert cache.suspend("a", made_up(tokens[:7]), tokens).tokens == 7
    assert cache.suspend("a", made_up(tokens), tokens[:5]).tokens == 5
    assert same(cache.resume("a", plain=True), tokens[:5])


def test_the_least_recently_used_dialogue_goes_first_and_from_its_end() -> None:
    dialogues = {key: [n * 20 + i for i in range(11)] for n, key in enumerate("abc")}
    cache = small(blocks=7)
    cache.suspend("a", made_up(dialogues["a"]), dialogues["a"])
    cache.suspend("b", made_up(dialogues["b"]), dialogues["b"])
    cache.resume("a")
    cache.suspend("c", made_up(dialogues["c"]), dialogues["c"])
    assert cache.dialogues == {"a": 11, "b": 4, "c": 11}
    for key, length in cache.dialogues.items():
        assert same(cache.resume(key, plain=True), dialogues[key][:length])
    assert cache.report().evicted_bytes == 7 * cache.report().bytes_per_token


def test_a_shared_beginning_outlives_the_dialogue_that_stored_it() -> None:
    shared, cache = [0, 1, 2, 3], small(blocks=3)
    for key, last in (("old", 10), ("new", 20), ("newer", 30)):
        cache.suspend(key, made_up([*shared, last]), [*shared, last])
    assert cache.dialogues == {"old": 4, "new": 5, "newer": 5}
    assert same(cache.resume("new", plain=True), [*shared, 20])


def test_a_dialogue_never_evicts_its_own_beginning() -> None:
    tokens, cache = list(range(16)), small(blocks=4)
    cache.suspend("a", made_up(tokens[:8]), tokens[:8])
    cache.suspend("b", made_up([90] * 8), [90] * 8)
    cache.suspend("a", made_up(tokens), tokens)
    assert cache.dialogues == {"a": 16}
    assert same(cache.resume("a", plain=True), tokens)


def test_a_dialogue_larger_than_the_budget_is_refused_and_nothing_is_lost() -> None:
    cache = small(blocks=3)
    cache.suspend("a", made_up([7, 8, 9]), [7, 8, 9])
    with pytest.raises(Refused, match="13 tokens need 4 blocks"):
        cache.suspend("b", made_up(list(range(13))), list(range(13)))
    assert cache.dialogues == {"a": 3}
    assert same(cache.resume("a", plain=True), [7, 8, 9])


def test_host_memory_is_taken_once_and_exactly() -> None:
    taken: list[int] = []

    class Counting(ThreadedDevice):
        def host_memory(self, nbytes: int) -> torch.Tensor:
            taken.append(nbytes)
            return super().host_memory(nbytes)

    cache = small(blocks=5, device=Counting())
    for turn in range(1, 9):
        tokens = [turn] * (2 * turn)
        cache.suspend(f"dialogue {turn % 3}", made_up(tokens), tokens)
        cache.resume(f"dialogue {turn % 3}")
    assert taken == [5 * slot_bytes(4)]
    assert cache.report().host_allocations == 1
    assert cache.report().evicted_bytes > 0


def test_host_memory_is_taken_in_pieces_as_blocks_come_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is 100 GiB, and a first dialogue has a few."""
    monkeypatch.setattr(store, "PIECE_BYTES", 2 * slot_bytes(4) + 1)
    taken: list[int] = []

    class Counting(ThreadedDevice):
        def host_memory(self, nbytes: int) -> torch.Tensor:
            taken.append(nbytes)
            if len(taken) == 3:
                raise Refused("cannot be pinned", "ulimit -l unlimited")
            return super().host_memory(nbytes)

    cache = small(blocks=5, device=Counting())
    first, second, third = list(range(1, 5)), list(range(11, 19)), list(range(31, 39))
    cache.suspend("first", made_up(first), first)
    assert taken == [2 * slot_bytes(4)] and cache.report().host_allocations == 1
    cache.suspend("second", made_up(second), second)
    assert len(taken) == 2
    with pytest.warns(UserWarning, match="goes on with pageable memory"):
        cache.suspend("third", made_up(third), third)
    assert taken == [2 * slot_bytes(4)] * 2 + [slot_bytes(4)]
    for name, tokens in (("first", first), ("second", second), ("third", third)):
        assert same(cache.resume(name, plain=True), tokens)


def test_blocks_are_so_many_tokens_that_a_layer_has_a_mebibyte() -> None:
    assert (
        fitting_block([LayerShape(8, 128, 128, "bfloat16")]) == 256
    )  # Llama 3 8B: 4 KiB per token and layer
    assert fitting_block([LayerShape(32, 128, 128, "float16"), None]) == 64
    assert fitting_block([LayerShape(1, 8, 8, "float32")]) == 512  # never more


def test_rows_may_have_keys_and_values_of_different_sizes_and_any_strides() -> None:
    shape = LayerShape(HEADS, SIZE, VALUE, "float32")
    keys = torch.randn(1, 7, HEADS, SIZE).transpose(1, 2)
    values = torch.randn(1, HEADS, 7, 2 * VALUE)[..., ::2]
    rows = torch.empty(4 * shape.row_bytes, dtype=torch.uint8)
    gather(rows, shape, keys, values, 3)
    got = views(rows, shape)
    assert torch.equal(got[0], keys[:, :, 3:])
    assert torch.equal(got[1], values[:, :, 3:])


@pytest.mark.parametrize("row", [24, 28])
def test_a_checksum_tells_any_flipped_bit_and_swapped_words(row: int) -> None:
    shape = LayerShape(1, row // 4, row // 4, "float16")
    rows = torch.randint(0, 256, (3 * row,), dtype=torch.uint8)
    before = checksums(rows, shape)
    for place in range(row, 2 * row, 7):
        changed = rows.clone()
        changed[place] ^= 0x10
        assert (checksums(changed, shape) != before).tolist() == [False, True, False]
    swapped = rows.clone().view(3, row)
    swapped[0, :8], swapped[0, 8:16] = swapped[0, 8:16].clone(), swapped[0, :8].clone()
    assert (checksums(swapped.flatten(), shape) != before).tolist() == [True, False, False]


def test_damaged_host_memory_is_found_when_verifying_and_only_then() -> None:
    tokens = list(range(10))
    for verify in (True, False):
        cache = small(verify=verify)
        cache.suspend("a", made_up(tokens[:7]), tokens[:7])
        cache.suspend("a", made_up(tokens), tokens)
        assert same(cache.resume("a", plain=True), tokens)
        assert (cache.report().verified_bytes > 0) == verify
        cache._store.rows(1, 1, 0, 4)[9] ^= 1
        if verify:
            with pytest.raises(Refused, match="layer 1"):
                cache.resume("a")
        else:
            assert not same(cache.resume("a", plain=True), tokens)


Turns = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(["suspend", "resume", "forget", "ask"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=14),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(Turns, st.integers(4, 9), st.integers(1, 4))
def test_whatever_happens_what_is_resumed_belongs_to_its_tokens(turns: Any, blocks: int, size: int) -> None:
    cache = small(blocks=-(-14 // size) + blocks, block_tokens=size, verify=True)
    said: dict[str, list[int]] = {}
    for key, action, tokens in turns:
        if action == "suspend":
            said[key] = tokens
            cache.suspend(key, made_up(tokens), tokens)
            assert cache.dialogues[key] == len(tokens)
        elif action == "forget":
            cache.forget(key)
        elif action == "resume":
            past = cache.resume(key, plain=True)
            held = cache.dialogues.get(key, 0)
            assert past is None if held == 0 else same(past, said[key][:held])
        else:
            past = cache.resume(tokens=tokens, plain=True)
            best = max(
                (_common(said[name][:held], tokens[:-1]) for name, held in cache.dialogues.items()), default=0
            )
            assert (0 if past is None else past[0][0].shape[2]) == best
            assert past is None or same(past, tokens[:best])
    if cache.dialogues:
        blocks_ = cache._blocks
        assert {block for chain in blocks_.dialogues.values() for block in chain} == blocks_.held
        used = [block.slot for block in blocks_.held]
        assert sorted([*used, *blocks_.free]) == list(range(blocks_.slots))


def _common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# Order: a device that does everything as late or as early as it may.


Wait = tuple[str, int]  # which stream after which, and the how many-th of these


class Lazy:
    """Streams whose work waits in queues. Compute is run when someone waits for it; the copy streams in
    `eager` ("out", "in") run at once, as far as their waits let them, the others as late as they may.

    Memory comes with a write of its former owner pending on the compute stream, and is written by its next
    owner on that stream as soon as it is let go. `skip`: a wait that is left out."""

    def __init__(self, eager: str = "", skip: Wait | None = None) -> None:
        self.torch_device, self.coherent = torch.device("cpu"), False
        self.eager, self.skip, self.waits = eager, skip, list[Wait]()
        self.compute = LazyStream("compute")
        self.made: list[LazyStream] = []
        self.memory: dict[int, numpy.ndarray[Any, Any]] = {}
        self.reused: set[int] = set()

    def current_stream(self) -> LazyStream:
        return self.compute

    def new_stream(self) -> LazyStream:
        self.made.append(LazyStream("out" if not self.made else "in"))
        return self.made[-1]

    def record(self, stream: LazyStream) -> tuple[LazyStream, int]:
        return stream, len(stream.work)

    def wait(self, stream: LazyStream, event: tuple[LazyStream, int]) -> None:
        kind = f"{stream.name} after {event[0].name}"
        self.waits.append((kind, sum(kind == before for before, _ in self.waits)))
        if self.waits[-1] != self.skip:
            stream.work.append(lambda: self.synchronize(event))

    def is_done(self, event: tuple[LazyStream, int]) -> bool:
        return event[0].done >= event[1]

    def synchronize(self, event: tuple[LazyStream, int]) -> None:
        stream, place = event
        while stream.done < place:
            stream.done += 1
            stream.work[stream.done - 1]()

    def elapsed(self, start: Any, end: Any) -> int:
        return 1

    def allocate(self, nbytes: int) -> torch.Tensor:
        base = numpy.zeros(nbytes, dtype=numpy.uint8)
        handle = base.view(Handle)
        memory = torch.from_numpy(handle)
        place = memory.data_ptr()
        self.memory[place] = base
        self.compute.work.append(lambda: base.fill(POISON))
        weakref.finalize(handle, self.compute.work.append, lambda: self._next_owner(place))
        return memory

    def _next_owner(self, place: int) -> None:
        self.memory[place].fill(POISON)
        self.reused.add(place)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), POISON, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: LazyStream) -> None:
        ends = [self._bytes(tensor) for tensor in (target, source)]  # keeps no tensor alive

        def run() -> None:
            for place, _ in ends:
                assert place not in self.reused, "a copy with memory that has another owner"
            ends[0][1][:] = ends[1][1]

        stream.work.append(run)
        if stream.name in self.eager:
            self.synchronize(self.record(stream))

    def _bytes(self, tensor: torch.Tensor) -> tuple[int, Any]:
        start, length = tensor.data_ptr(), tensor.numel()
        for place, base in self.memory.items():
            if place <= start < place + base.size:
                return place, base[start - place : start - place + length]
        return -1, tensor.numpy()

    def finish(self) -> None:
        for stream in (self.compute, *self.made):
            self.synchronize(self.record(stream))


class LazyStream:
    def __init__(self, name: str) -> None:
        self.name, self.work, self.done = name, list[Callable[[], None]](), 0


class Handle(numpy.ndarray):  # type: ignore[type-arg]
    """Can be watched, which plain arrays cannot."""


def two_dialogues_in_room_for_one(device: Lazy) -> bool:
    """Turns in which slots, staging and device memory are all used again while copies are under way; whether
    every number is right. Reads each layer right after it is first touched, as a model does."""
    a, b = list(range(7)), [40 + n for n in range(8)]
    cache = small(blocks=2, device=device)
    read: list[tuple[torch.Tensor, torch.Tensor]] = []

    def used(past: Any, tokens: list[int]) -> None:
        for number, (keys, values) in enumerate(made_up(tokens)):
            layer = past.layers[number]
            got = layer.keys, layer.values
            for have, want in zip(got, (keys, values), strict=True):
                device.compute.work.append(lambda have=have, want=want: read.append((have.clone(), want)))

    cache.suspend("a", made_up(a), a)
    first = cache.resume("a")
    cache.suspend("b", made_up(b), b)  # takes the slots of a
    used(first, a)
    second = cache.resume("b")
    cache.suspend("a", made_up(a), a)
    used(second, b)
    used(cache.resume("a"), a)
    device.finish()
    return len(read) == 12 and all(torch.equal(have, want) for have, want in read)


@pytest.fixture
def lazily(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lazy]:
    """Devices on which gathering rows is work of the compute stream, with staging for one layer at a time."""
    device: list[Lazy] = []

    def later(rows: torch.Tensor, *rest: Any) -> None:
        place, _ = device[-1]._bytes(rows)
        base = device[-1].memory[place]
        device[-1].compute.work.append(lambda: gather(torch.from_numpy(base), *rest))

    monkeypatch.setattr(store, "gather", later)
    monkeypatch.setattr(store, "STAGING", 1)

    def new(eager: str, skip: Wait | None = None) -> Lazy:
        device.append(Lazy(eager, skip))
        return device[-1]

    return new


ORDERS = ("", "out", "in", "out and in")
# Where a naive version is dropped, its copies end, and fail, in a finalizer.
dropped_too_early = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("eager", ORDERS)
def test_copies_may_run_as_late_or_as_early_as_the_waits_allow(lazily: Any, eager: str) -> None:
    assert two_dialogues_in_room_for_one(lazily(eager))


@dropped_too_early
def test_every_wait_is_needed(lazily: Any) -> None:
    """The naive versions: each leaves out one wait, and some order of the copies makes it wrong."""
    counted = lazily("")
    two_dialogues_in_room_for_one(counted)
    unneeded = []
    for skip in counted.waits:
        right = []
        for eager in ORDERS:
            try:
                right.append(two_dialogues_in_room_for_one(lazily(eager, skip)))
            except AssertionError:
                right.append(False)
        if all(right):
            unneeded.append(skip)
    # Only these two are implied: by then compute has waited for staging that was stored after these loads.
    assert unneeded == [("compute after in", 2), ("compute after in", 3)]
    assert {kind for kind, _ in counted.waits} == {
        "out after compute",  # a store after the gathering of its rows
        "out after in",  # a store after the load that still reads its slot
        "in after out",  # a load after the store that filled its slot
        "in after compute",  # a load after whoever had its memory before
        "compute after in",  # a layer after its load
        "compute after out",  # staging that is used again
    }


def turns_on(device: RaceDevice) -> int:
    """Dialogues in room for one and a half, read and dropped in every order; how many copies that were."""
    said = {"a": list(range(7)), "b": [40 + n for n in range(8)]}
    with device:
        cache = small(blocks=3, device=device)
        kept = []
        for turn in range(4):
            for key, tokens in said.items():
                past = cache.resume(key)
                if past is not None and turn % 2:
                    kept = [layer.keys + layer.values.sum() for layer in past.layers]
                cache.suspend(key, [(k + 0, v + 0) for k, v in made_up(tokens)], tokens)
                past = cache.resume(key)
                cache.suspend(key, [(k + 0, v + 0) for k, v in made_up([*tokens, turn])], [*tokens, turn])
                kept += [layer.values * 2 for layer in past.layers]
        del past, kept
        cache.forget("a")
    return device.copies


@pytest.mark.parametrize("done", ["never", "always", 3])
def test_torchs_stream_sanitizer_finds_no_race(monkeypatch: pytest.MonkeyPatch, done: Any) -> None:
    monkeypatch.setattr(store, "STAGING", 1000)
    device = RaceDevice(done)
    assert turns_on(device) > 50
    assert device.reused > 0
    assert device.races == device.disagreements == []


KINDS = (
    ("out", "compute"),
    ("out", "in"),
    ("in", "out"),
    ("in", "compute"),
    ("compute", "in"),
    ("compute", "out"),
)


@pytest.mark.parametrize("kind", KINDS, ids=" after ".join)
def test_it_finds_one_without_the_waits_of_a_kind(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    class Without(RaceDevice):
        def wait(self, stream: Any, event: Any) -> None:
            names = {self.compute: "compute", cache_streams[-2]: "out", cache_streams[-1]: "in"}
            if (names[stream], names[event.stream]) != kind:
                super().wait(stream, event)

        def new_stream(self) -> Any:
            cache_streams.append(super().new_stream())
            return cache_streams[-1]

    cache_streams: list[Any] = []
    monkeypatch.setattr(store, "STAGING", 1000)
    device = Without()
    turns_on(device)
    assert device.races
    assert not device.disagreements


def test_another_stream_may_touch_a_layer_and_drop_it() -> None:
    device, tokens = RaceDevice(), list(range(7))
    with device:
        cache = small(device=device)
        cache.suspend("a", made_up(tokens), tokens)
        past = cache.resume("a")
        device.switch(device.new_stream())
        assert all(layer.keys is not None for layer in past.layers)
        del past  # into the memory of the first stream, which has not waited for the load
        cache.flush()
    assert device.races == []


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_model_generates_without_a_race(request: Any, name: str) -> None:
    model, device = request.getfixturevalue(name), RaceDevice()
    with device:
        cache = for_model(3 * 3 * 4 * 1024, device=device, block_tokens=4, verify=False)
        ids = {key: questions(number, 9) for number, key in enumerate("ab")}
        for turn in range(2):
            for key in ids:
                answer = answered(model, cache, ids[key], key, max_new_tokens=3)
                ids[key] = torch.cat([answer, questions(turn, 2)], 1)
    assert device.races == []
    assert cache.report().hits == 2
    assert device.copies > 30


@pytest.mark.parametrize("window", [0, 6])
def test_long_dialogues_travel_in_parts(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(store, "CHUNK", 9 * HEADS * (SIZE + VALUE) * 4)  # two blocks and a row
    tokens, cache = list(range(31)), small(verify=True)
    layers = [(LayerShape(HEADS, SIZE, VALUE, "float32", window), k, v) for k, v in made_up(tokens)]
    first = max(0, len(tokens) - window + 1) if window else 0
    past = kv_past.cache_of([(shape, k[:, :, first:], v[:, :, first:]) for shape, k, v in layers], 31)
    cache.suspend("a", past, tokens)
    back = cache.resume("a")
    for layer, (_, keys, values) in zip(back.layers, layers, strict=True):
        assert torch.equal(layer.keys, keys[:, :, first:])
        assert torch.equal(layer.values, values[:, :, first:])
    if not window:
        assert len(cache._store.leaving) == 0 or cache.report().copies == 2 * 2 * 8


def test_saving_waits_for_stores_under_way(lazily: Any, tmp_path: Path) -> None:
    tokens = list(range(11))
    cache = small(device=lazily(""))
    cache.suspend("a", made_up(tokens), tokens)
    cache.save(tmp_path)
    assert same(load(tmp_path).resume("a", plain=True), tokens)


def test_suspending_and_resuming_do_not_make_the_host_wait(lazily: Any) -> None:
    device, a, b = lazily(""), list(range(7)), [40 + n for n in range(8)]
    cache = small(blocks=2, device=device)
    for _ in range(3):
        for key, tokens in (("a", a), ("b", b)):
            cache.suspend(key, made_up(tokens), tokens)
            assert [layer.keys.shape[2] for layer in cache.resume(key).layers] == [len(tokens)] * 2
    assert device.compute.done == 0
    assert all(stream.done == 0 for stream in device.made)


@dropped_too_early
def test_a_resumed_cache_may_be_dropped_while_it_loads(lazily: Any) -> None:
    tokens = list(range(7))
    for forgetful in (False, True):
        device = lazily("")
        cache = small(device=device)
        cache.suspend("a", made_up(tokens), tokens)
        past = cache.resume("a")
        if forgetful:  # the naive version
            cache._store.coming.clear()
        del past
        device.synchronize(device.record(device.compute))  # its next owner writes
        if forgetful:
            with pytest.raises(AssertionError, match="another owner"):
                device.finish()
        else:
            device.finish()


def test_device_memory_of_copies_that_are_over_is_let_go() -> None:
    tokens = list(range(7))
    cache = small()
    cache.suspend("a", made_up(tokens), tokens)
    past = cache.resume("a")
    kept = [weakref.ref(layer.keys.untyped_storage()) for layer in past.layers]
    cache.flush()
    assert not cache._store.leaving
    assert not cache._store.coming
    for layer in past.layers:
        layer.update(torch.zeros(1, HEADS, 1, SIZE), torch.zeros(1, HEADS, 1, VALUE))
        assert layer.arrive is None
    assert past.get_seq_length() == 8
    assert len(kept) == 2


# Models.


def answered(
    model: Any, cache: DialogueCache | None, ids: torch.Tensor, key: str, **changes: Any
) -> torch.Tensor:
    asked = {"max_new_tokens": 5, "do_sample": False, "use_cache": True, "pad_token_id": 0, **changes}
    if cache is None:
        return model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
    return cache.generate(model, ids, key, **asked)


def questions(seed: int, length: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(1, tiny_models.VOCABULARY, (1, length))


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_models.llama().eval()


@pytest.fixture(scope="module")
def mistral() -> Any:
    """Attends to the last 12 tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(5)
    config = MistralConfig(
        vocab_size=tiny_models.VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=12,
        max_position_embeddings=256,
    )
    return MistralForCausalLM(config).eval()


def for_model(host: int | str = "1 MiB", **changes: Any) -> DialogueCache:
    usual = {"device": ThreadedDevice(), "block_tokens": 8, "verify": True}
    return DialogueCache(host, **{**usual, **changes})


def dialogue(model: Any, cache: DialogueCache, key: str, first: torch.Tensor, turns: int = 3) -> torch.Tensor:
    """Every answer is the same with and without the cache."""
    ids = first
    for turn in range(turns):
        with_cache = answered(model, cache, ids, key)
        assert torch.equal(with_cache, answered(model, None, ids, key))
        ids = torch.cat([with_cache, questions(turn, 3)], 1)
    return ids


def test_answers_are_the_same_with_and_without_for_two_dialogues(llama: Any) -> None:
    cache, system = for_model(), questions(1, 17)
    for number, key in enumerate(("alice", "bob")):
        dialogue(llama, cache, key, torch.cat([system, questions(number, 4)], 1))
    report = cache.report()
    assert report.hits == 5
    assert report.misses == 1
    # Of what was asked, all but each first question and each last token had been held.
    assert report.hit_tokens > report.asked_tokens / 2
    assert report.shared_bytes == 16 * report.bytes_per_token
    assert report.verified_bytes == report.restored_bytes > 0


def test_answers_are_the_same_when_the_other_dialogue_was_evicted(llama: Any) -> None:
    cache = for_model(host=5 * 8 * 512)
    a, b = questions(1, 15), questions(2, 15)
    for _ in range(3):
        a, b = dialogue(llama, cache, "a", a, turns=1), dialogue(llama, cache, "b", b, turns=1)
    assert cache.report().evicted_tokens > 0
    assert cache.report().hits > 0


def test_the_bits_are_those_of_a_cache_that_stayed(llama: Any) -> None:
    ids, cache = questions(3, 20), for_model()
    with torch.no_grad():
        stayed = llama(ids, use_cache=True).past_key_values
    cache.suspend("a", stayed, ids)
    back = cache.resume("a")
    for layer, other in zip(back.layers, stayed.layers, strict=True):
        assert torch.equal(layer.keys, other.keys)
        assert torch.equal(layer.values, other.values)
    more = questions(4, 6)
    with torch.no_grad():
        resumed = llama(more, past_key_values=back, use_cache=True).logits
        assert torch.equal(resumed, llama(more, past_key_values=stayed, use_cache=True).logits)
    assert back.get_seq_length() == 26


def test_a_word_that_is_also_the_padding_is_attended_to_like_any_other(llama: Any) -> None:
    ids, cache = questions(3, 12), for_model()
    word = int(ids[0, 5])
    both = [answered(llama, each, ids, "a", pad_token_id=word) for each in (cache, None)]
    assert torch.equal(*both)


def test_a_resumed_cache_can_be_cropped_repeated_and_copied(llama: Any) -> None:
    ids, cache = questions(3, 10), for_model()
    cache.suspend("a", llama(ids, use_cache=True).past_key_values, ids)  # of a forward with gradients
    past = cache.resume("a")
    twin = copy.deepcopy(past)
    past.crop(-4)
    past.batch_repeat_interleave(2)
    assert past.layers[0].keys.shape[:3] == (2, 2, 6)
    assert twin.get_seq_length() == 10


@pytest.fixture(scope="module")
def gemma() -> Any:
    """Every other layer attends to the last 12 tokens, the others to all."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(5)
    config = Gemma2Config(
        vocab_size=tiny_models.VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=12,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("first", [5, 9, 40])
@pytest.mark.parametrize("name", ["mistral", "gemma"])
def test_a_model_with_a_sliding_window_answers_the_same(request: Any, name: str, first: int) -> None:
    cache = for_model(block_tokens=4)
    dialogue(request.getfixturevalue(name), cache, "a", questions(first, first), turns=5)
    report = cache.report()
    assert report.hits == 4
    assert cache.dialogues["a"] > 2 * 12
    assert report.hit_share is not None
    assert report.hit_share > 0.5


def test_what_a_window_left_behind_is_not_resumed(mistral: Any) -> None:
    ids, cache = questions(1, 40), for_model(block_tokens=4)
    with torch.no_grad():
        cache.suspend("a", mistral(ids, use_cache=True).past_key_values, ids)
    assert cache.resume("a").get_seq_length() == 40
    # Tokens 29 to 39 are there: enough for what comes after all 40, and not for what comes after fewer.
    other = torch.cat([ids[:, :36], questions(2, 4)], 1)
    assert cache.resume(tokens=other) is None
    with pytest.raises(Refused, match="sliding window"):
        cache.resume("a", plain=True)


def test_what_lies_before_a_gap_in_a_window_is_resumed(mistral: Any) -> None:
    ids, cache = questions(1, 40), for_model(block_tokens=4)
    with torch.no_grad():
        for length in (9, 40):  # the second one leaves tokens 9 to 28 behind
            past = mistral(ids[:, :length], use_cache=True).past_key_values
            cache.suspend("a", past, ids[:, :length])
    assert cache.resume("a").get_seq_length() == 40
    other = torch.cat([ids[:, :20], questions(2, 4)], 1)
    assert cache.resume(tokens=other).get_seq_length() == 8
    cache._model, cache._watched = "mistral", "mistral"  # suspended above without a name
    assert torch.equal(answered(mistral, cache, other, "b"), answered(mistral, None, other, "b"))


def test_rows_inside_a_window_are_shared_with_who_leaves_the_dialogue_there(mistral: Any) -> None:
    ids, cache = questions(1, 9), for_model(block_tokens=4)
    long = dialogue(mistral, cache, "a", ids, turns=4)
    other = torch.cat([long[:, :22], questions(2, 4)], 1)
    assert torch.equal(answered(mistral, cache, other, "b"), answered(mistral, None, other, "b"))
    assert cache.report().hits == 4


def test_inference_mode_may_come_and_go(llama: Any) -> None:
    cache, ids = for_model(), questions(6, 11)
    with torch.inference_mode():
        ids = torch.cat([answered(llama, cache, ids, "a"), questions(7, 3)], 1)
    ids = torch.cat([answered(llama, cache, ids, "a"), questions(8, 3)], 1)
    with torch.inference_mode():
        got = answered(llama, cache, ids, "a")
    assert torch.equal(got, answered(llama, None, ids, "a"))
    assert cache.report().hits == 2
    layer = cache.resume("a", model=llama).layers[0]
    layer.keys.add_(1)
    llama(ids, past_key_values=cache.resume(tokens=ids, model=llama)).logits.sum().backward()
    llama.zero_grad()


def test_a_static_cache_can_be_suspended_and_comes_back_as_a_dynamic_one(llama: Any) -> None:
    from transformers import StaticCache

    ids, cache = questions(3, 10), for_model()
    past = StaticCache(config=llama.config, max_cache_len=32)
    with torch.no_grad():
        llama(ids, past_key_values=past, use_cache=True)
    cache.suspend("a", past, ids)
    back = cache.resume("a")
    assert type(back).__name__ == "DynamicCache"
    assert torch.equal(back.layers[3].keys, past.layers[3].keys[:, :, :10])


# Refusals.


def test_what_cannot_be_cut_at_a_token_is_refused_by_name(llama: Any) -> None:
    from transformers import DynamicCache
    from transformers.cache_utils import (
        DynamicIndexedLayer,
        EncoderDecoderCache,
        Fp8QuantizedLayer,
        LinearAttentionLayer,
        QuantoQuantizedLayer,
        StaticSlidingWindowLayer,
    )

    cache = for_model()
    for kind, said in (
        (QuantoQuantizedLayer, "a code of its own"),
        (Fp8QuantizedLayer, "a code of its own"),
        (LinearAttentionLayer, "running state"),
        (StaticSlidingWindowLayer, "in a circle"),
        (DynamicIndexedLayer, "an index"),
    ):
        past = DynamicCache()
        past.layers = [kind.__new__(kind)]
        with pytest.raises(Refused, match=f"{kind.__name__}.*{said}"):
            cache.suspend("a", past, [1])
    with pytest.raises(Refused, match="encoder"):
        cache.suspend("a", EncoderDecoderCache(DynamicCache(), DynamicCache()), [1])
    offloaded = DynamicCache(config=llama.config)
    offloaded.offloading = True
    with pytest.raises(Refused, match="host memory already"):
        cache.suspend("a", offloaded, [1])
    with pytest.raises(Refused, match="no cache"):
        cache.suspend("a", 3, [1])
    with pytest.raises(Refused, match="nothing to suspend"):
        cache.suspend("a", DynamicCache(), [1])


def test_layers_that_do_not_belong_together_are_refused() -> None:
    def cache_of(*layers: tuple[int, int]) -> Any:
        """Of so many tokens and such windows."""
        rows = [made_up(list(range(n)), 1)[0] for n, _ in layers]
        shapes = [LayerShape(HEADS, SIZE, VALUE, "float32", window) for _, window in layers]
        made = [(shape, *pair) for shape, pair in zip(shapes, rows, strict=True)]
        return kv_past.cache_of(made, layers[0][0])

    uneven = made_up([1, 2, 3])[:1] + made_up([1, 2])[1:]
    for past, said in (
        (cache_of((5, 0), (4, 0)), "have seen 4, 5 tokens"),
        (cache_of((5, 8), (5, 16)), "windows of 8 and 16"),
        (uneven, "2, 3"),
        ([made_up([1, 2])[0][0]], "no pair"),
        ([(k[0], v[0]) for k, v in made_up([1, 2])], "no pair"),
        ([(k, v.half()) for k, v in made_up([1, 2])], "belong together"),
        ([(k.to("meta"), v) for k, v in made_up([1], 1)] + made_up([1], 1), "lie on cpu and meta"),
    ):
        with pytest.raises(Refused, match=said):
            small().suspend("a", past, [1, 2, 3, 4, 5])


def test_a_batch_of_dialogues_is_refused(llama: Any) -> None:
    ids, cache = torch.cat([questions(1, 6), questions(2, 6)]), for_model()
    past = llama(ids, use_cache=True).past_key_values
    with pytest.raises(Refused, match="batch of 2"):
        cache.suspend("a", past, ids[0])
    with pytest.raises(Refused, match="one dialogue"):
        cache.generate(llama, ids, "a")
    one = [(layer.keys[1:], layer.values[1:]) for layer in past.layers]
    assert cache.suspend("b", one, ids[1]).tokens == 6


def test_a_cache_of_another_shape_is_refused() -> None:
    cache = small()
    cache.suspend("a", made_up([1, 2, 3]), [1, 2, 3])
    for past, said in (
        (made_up([1, 2], layers=3), "3 layers"),
        ([(k.half(), v.half()) for k, v in made_up([1, 2])], "float16"),
        ([(k[:, :1], v[:, :1]) for k, v in made_up([1, 2])], "1 heads"),
        ([(k[..., :2], v) for k, v in made_up([1, 2])], "2\\+5"),
    ):
        with pytest.raises(Refused, match=said):
            cache.suspend("b", past, [1, 2])
    with pytest.raises(Refused, match="int8"):
        cache.suspend("b", [(k.to(torch.int8), v.to(torch.int8)) for k, v in made_up([1, 2])], [1, 2])
    assert cache.dialogues == {"a": 3}


def test_another_model_of_the_same_shape_is_refused(llama: Any) -> None:
    other, cache = tiny_models.llama(seed=9).eval(), for_model()
    ids = questions(1, 9)
    answered(llama, cache, ids, "a")
    for name in (other, "another name"):
        with pytest.raises(Refused, match="another model"):
            cache.resume("a", model=name)
    with pytest.raises(Refused, match="none is named"):
        cache.resume("a")
    with pytest.raises(Refused, match="another model"):
        answered(other, cache, ids, "a")
    assert cache.resume("a", model=llama).get_seq_length() == 13
    cache.clear()
    answered(other, cache, ids, "a")
    assert cache.dialogues == {"a": 13}


def test_training_between_turns_makes_it_another_model() -> None:
    model = tiny_models.llama().eval()
    cache, ids = for_model(model=model), questions(1, 9)
    cache.suspend("a", model(ids, use_cache=True).past_key_values, ids)
    assert cache.resume("a").get_seq_length() == 9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tiny_models.loss_of(model, tiny_models.llama_batch()).backward()
    optimizer.step()
    with pytest.raises(Refused, match="another model"):
        cache.resume("a")


def test_weights_written_behind_the_back_of_autograd_make_it_another_model() -> None:
    """As swaps for averaged weights do: `parameter.data.copy_(...)` counts as no write."""
    model = tiny_models.lora().eval()
    cache, ids = for_model(model=model), questions(1, 9)
    cache.suspend("a", model(ids, use_cache=True).past_key_values, ids)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data.mul_(1.01)
    with pytest.raises(Refused, match="another model"):
        cache.resume("a")


class OptimizedModule(torch.nn.Module):
    """As torch.compile wraps a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "_orig_mod" else getattr(self._orig_mod, name)


@pytest.mark.parametrize("what", ["a buffer", "FP8"])
def test_buffers_and_kinds_of_layers_are_the_models_too(what: str) -> None:
    model = tiny_models.llama().eval()
    cache, ids = for_model(model=model), questions(1, 9)
    cache.suspend("a", model(ids, use_cache=True).past_key_values, ids)
    assert cache.resume("a", model=OptimizedModule(model)) is not None, "the same one, compiled"
    if what == "FP8":
        optimize.to_fp8(model, emulate=True, small=True)
    else:
        model.model.rotary_emb.inv_freq.mul_(0.5)
    with pytest.raises(Refused, match="another model"):
        cache.resume("a")


def test_threads_take_turns() -> None:
    """Of many dialogues, which evict one another: what comes back is right, or gone."""
    cache, wrong = small(12, device=ThreadedDevice()), list[str]()

    def use(number: int) -> None:
        tokens = [number]
        try:
            for turn in range(12):
                tokens = [*tokens, turn, number]
                cache.suspend(str(number), made_up(tokens), tokens)
                found = cache.resume(str(number))
                if found is None:
                    continue
                expected = made_up(tokens[: found.get_seq_length()])
                if not all(
                    torch.equal(layer.keys, keys) and torch.equal(layer.values, values)
                    for layer, (keys, values) in zip(found.layers, expected, strict=True)
                ):
                    wrong.append(f"{number} in turn {turn}")
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_resumed_can_be_copied_and_pickled(llama: Any) -> None:
    cache, ids = for_model(model=llama), questions(1, 9)
    cache.suspend("a", llama(ids, use_cache=True).past_key_values, ids)
    past = cache.resume("a")
    others = copy.deepcopy(cache.resume("a")), pickle.loads(pickle.dumps(cache.resume("a")))
    logits = [llama(ids[:, :2], past_key_values=each, use_cache=True).logits for each in (past, *others)]
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


def test_what_was_undone_is_refused_before_anything_is_computed(llama: Any) -> None:
    cache = for_model()
    cache.undo()
    for use in (lambda: cache.resume("a"), lambda: cache.generate(None, questions(1, 9), "a")):
        with pytest.raises(Refused, match="has been undone"):
            use()


def test_a_name_stands_for_a_model_whose_weights_are_streamed() -> None:
    model = tiny_models.llama().eval()
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    cache, ids = for_model(model="tiny llama"), questions(1, 9)
    expected = answered(model, None, ids, "a")
    with optimize.stream_weights(model, int(0.7 * size), device=ThreadedDevice()):
        first = answered(model, cache, ids, "a")
    assert torch.equal(first, expected)
    assert torch.equal(answered(model, cache, first, "a"), answered(model, None, first, "a"))
    assert cache.report().hits == 1
    with pytest.raises(Refused, match="another model"):
        cache.resume("a", model="another")


def test_an_empty_cache_takes_another_model_unless_one_is_bound(llama: Any) -> None:
    other, ids = tiny_models.llama(seed=9).eval(), questions(1, 9)
    cache = for_model()
    assert cache.resume("a", model=llama) is None
    assert answered(other, cache, ids, "a").shape == (1, 14)
    bound = for_model(model=llama)
    with pytest.raises(Refused, match="another model"):
        answered(other, bound, ids, "a")


def test_switching_an_adapter_off_makes_it_another_model() -> None:
    model = tiny_models.lora().eval()
    cache, ids = for_model(), questions(1, 9)
    answered(model, cache, ids, "a")
    with pytest.raises(Refused, match="another model"), model.disable_adapter():
        answered(model, cache, ids, "a")
    assert cache.resume("a", model=model).get_seq_length() == 13


def test_hooks_and_forwards_that_are_replaced_make_it_another_model() -> None:
    """A steering vector, say: the same weights compute other keys and values."""
    model, ids = tiny_models.llama().eval(), questions(1, 9)
    cache, layer = for_model(), model.model.layers[0]
    answered(model, cache, ids, "a")

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return type(layer.mlp).forward(layer.mlp, x) + 0.1

    def twice(*given: Any) -> Any:
        return None if len(given) == 2 else given[2] * 2

    for change in (
        lambda: layer.mlp.register_forward_hook(twice).remove,
        lambda: layer.mlp.register_forward_hook(functools.partial(twice)).remove,
        lambda: layer.mlp.register_forward_pre_hook(twice).remove,
        lambda: (setattr(layer.mlp, "forward", shifted), lambda: delattr(layer.mlp, "forward"))[1],
        lambda: optimize.autocast(model).undo,
    ):
        back = change()
        with pytest.raises(Refused, match="another model"):
            answered(model, cache, ids, "a")
        back()
        assert cache.resume("a", model=model).get_seq_length() == 13
    engine = optimize.offload(model, plan="everything", threshold=1, device=ThreadedDevice())
    with engine:  # whose hooks only look
        assert cache.resume("a", model=model).get_seq_length() == 13


def test_what_is_not_one_dialogue_of_tokens_is_refused_before_it_is_computed(llama: Any) -> None:
    ids, cache = questions(1, 9), for_model()
    for changes, said in (
        ({"num_beams": 2}, "num_beams=2"),
        ({"num_return_sequences": 3}, "num_return_sequences"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"past_key_values": []}, "past_key_values"),
        ({"inputs_embeds": torch.zeros(1, 9, 32)}, "inputs_embeds"),
        ({"use_cache": False}, "use_cache=False"),
        ({"attention_mask": torch.tensor([[0] + [1] * 8])}, "attention_mask"),
        ({"adapter_names": ["b"]}, "depend on adapter_names"),  # of PEFT, in a batch of several
        ({"custom_generate": "somebody/theirs"}, "depend on custom_generate"),
    ):
        with pytest.raises(Refused, match=said):
            answered(llama, cache, ids, "a", **changes)
    assert cache.report().suspends == cache.report().misses == 0
    with pytest.raises(Refused, match="no GPU"):
        DialogueCache("1 MiB").generate(llama, ids, "a", use_cache=True)


def test_autocast_around_generate_makes_it_another_model_and_dropout_is_refused(llama: Any) -> None:
    ids, cache = questions(1, 9), for_model()
    with torch.autocast("cpu", torch.bfloat16):
        answered(llama, cache, ids, "a")
        answered(llama, cache, ids, "a", logits_to_keep=1)
    with pytest.raises(Refused, match="another model"):
        answered(llama, cache, ids, "b")
    with pytest.raises(Refused, match="attention_dropout drops out"):
        answered(tiny_models.llama(attention_dropout=0.1), for_model(), ids, "a")


def test_keys_that_depend_on_the_length_of_the_dialogue_are_refused() -> None:
    model = tiny_models.llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ).eval()
    with pytest.raises(Refused, match="'dynamic'"):
        answered(model, for_model(), questions(1, 9), "a")


def test_wrong_names_tokens_and_budgets_are_refused() -> None:
    past = made_up([1, 2])
    for call, said in (
        (lambda: small().resume(), "neither"),
        (lambda: small().resume(torch.tensor([1, 2])), "named by text"),
        (lambda: small().suspend("", past, [1, 2]), "named by text"),
        (lambda: small().suspend("a", past, torch.ones(2, 2).long()), "one dialogue"),
        (lambda: small().suspend("a", past, [1.0, 2.0]), "whole numbers"),
        (lambda: small().suspend("a", past, [1 << 63, 2]), "whole numbers"),
        (lambda: small(block_tokens=0), "hold nothing"),
        (lambda: DialogueCache(1 << 60), "this process can get"),
        (
            lambda: DialogueCache(99, device=ThreadedDevice()).suspend("a", past, [1, 2]),
            "do not hold one block",
        ),
        (lambda: DialogueCache("1 MiB").suspend("a", past, [1, 2]), "no GPU memory to spare"),
        (lambda: small().suspend("a", [(past[0][0], past[1][1][:, :, :1])], [1, 2]), "do not belong"),
    ):
        with pytest.raises(Refused, match=said):
            call()


def test_a_store_that_fails_half_way_leaves_no_dialogue_behind() -> None:
    class Failing(ThreadedDevice):
        left = 3

        def copy(self, target: Any, source: Any, stream: Any) -> None:
            self.left -= 1
            if not self.left:
                raise RuntimeError("the device is gone")
            super().copy(target, source, stream)

    cache, tokens = small(device=Failing()), list(range(10))
    with pytest.raises(RuntimeError, match="gone"):
        cache.suspend("a", made_up(tokens), tokens)
    assert cache.dialogues == {}
    assert cache.resume("a") is None
    cache.suspend("a", made_up(tokens), tokens)
    assert same(cache.resume("a", plain=True), tokens)


def test_an_answer_beyond_the_budget_is_stored_as_far_as_it_fits(llama: Any) -> None:
    cache, ids = for_model(host=2 * 8 * 512), questions(1, 13)
    dialogue(llama, cache, "a", ids, turns=2)
    assert cache.dialogues == {"a": 16}
    assert cache.report().left_out_tokens == 1 + 9
    assert "did not fit" in str(cache.report())


# On disk.


def saved(folder: Path) -> DialogueCache:
    cache = small(12)
    for key, tokens in (("a", [0, 1, 2, 3, 4, 5]), ("b", [0, 1, 2, 3, 9]), ("c", [7])):
        cache.suspend(key, made_up(tokens), tokens)
    cache.save(folder)
    return cache


def load(folder: Path, **changes: Any) -> DialogueCache:
    return DialogueCache.load(
        folder, 8 * slot_bytes(4), **{"device": ThreadedDevice(), "verify": True, **changes}
    )


def test_dialogues_outlive_the_process(tmp_path: Path) -> None:
    saved(tmp_path / "dialogues")
    cache = load(tmp_path / "dialogues")
    assert cache.dialogues == {"a": 6, "b": 5, "c": 1}
    assert same(cache.resume("a", plain=True), [0, 1, 2, 3, 4, 5])
    assert same(cache.resume(tokens=[0, 1, 2, 3, 9, 9], plain=True), [0, 1, 2, 3, 9])
    assert cache.report().verified_bytes == cache.report().restored_bytes
    grown = [0, 1, 2, 3, 9, 10, 11, 12, 13]
    assert cache.suspend("b", made_up(grown), grown).copied_tokens == 4
    assert same(cache.resume("b", plain=True), grown)


def test_the_order_of_use_outlives_the_process_too(tmp_path: Path) -> None:
    saved(tmp_path)
    cache = load(tmp_path)
    cache.suspend("d", made_up(list(range(50, 62))), list(range(50, 62)))
    cache.suspend("e", made_up(list(range(70, 77))), list(range(70, 77)))
    assert cache.dialogues == {"a": 4, "b": 5, "c": 1, "d": 12, "e": 7}


def test_saving_again_replaces_what_was_there_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    cache = saved(tmp_path)
    cache.forget("a")
    cache.save(tmp_path)
    assert load(tmp_path).dialogues == {"b": 5, "c": 1}
    assert len(list(tmp_path.iterdir())) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_save_that_fails_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = saved(tmp_path)
    cache.suspend("d", made_up([5, 6]), [5, 6])
    for name in ("fsync", "fdopen"):
        with monkeypatch.context() as broken:
            broken.setattr(kv_files.os, name, _full)
            with pytest.raises(OSError, match="no space"):
                cache.save(tmp_path)
        assert load(tmp_path).dialogues == {"a": 6, "b": 5, "c": 1}
        assert len(list(tmp_path.iterdir())) == 2


def _full(*_: Any) -> None:
    raise OSError("no space")


def test_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    index, rows = tmp_path / "index.json", next(tmp_path.glob("rows-*"))
    first, body = index.read_bytes().split(b"\n")
    data = rows.read_bytes()

    def written_index(change: Callable[[Any], Any]) -> bytes:
        """With a digest that is right, as someone who means harm would write it."""
        header = json.loads(body)
        change(header)
        text = json.dumps(header).encode()
        return json.dumps({"sha256": kv_files.hashlib.sha256(text).hexdigest()}).encode() + b"\n" + text

    def twice(header: Any) -> None:
        number = len(header["blocks"])
        header["blocks"].append(next(block for block in header["blocks"] if len(block["tokens"]) == 4))
        header["dialogues"]["z"] = [number]

    for change, said in (
        (lambda: index.write_bytes(first), "no index"),
        (lambda: index.write_bytes(b"{}"), "no index"),
        (lambda: index.write_bytes(b"\x80\x04pickle"), "no index"),
        (lambda: index.write_bytes(first + b"\n" + body.replace(b'"absent":0', b'"absent":1', 1)), "digest"),
        (lambda: index.write_bytes(written_index(lambda h: h.update(format=2))), "format 2"),
        (lambda: index.write_bytes(written_index(lambda h: h.update(rows="../rows"))), "fit together"),
        (lambda: index.write_bytes(written_index(lambda h: h["blocks"][0].update(before=0))), "fit together"),
        (
            lambda: index.write_bytes(written_index(lambda h: h["blocks"][0].update(tokens=[1] * 9))),
            "fit together",
        ),
        (lambda: index.write_bytes(written_index(lambda h: h["dialogues"].update(a=[77]))), "fit together"),
        (
            lambda: index.write_bytes(written_index(lambda h: h["layout"]["layers"][0].update(heads=0))),
            "fit together",
        ),
        (lambda: index.write_bytes(written_index(lambda h: h["layout"].update(layers=3))), "fit together"),
        (lambda: index.write_bytes(written_index(lambda h: h["blocks"][0].update(tokens=[1 << 70]))), "fit"),
        (
            lambda: index.write_bytes(written_index(lambda h: h["dialogues"].update(z=h["dialogues"]["a"]))),
            "tail",
        ),
        (lambda: index.write_bytes(written_index(twice)), "twice"),
        (lambda: rows.write_bytes(data[:-1]), "instead of"),
        (lambda: rows.write_bytes(data[:50] + b"x" + data[51:]), "its digest"),
        (lambda: rows.unlink(), "missing"),
        (lambda: index.unlink(), "no saved"),
    ):
        change()
        with pytest.raises(Refused, match=said):
            load(tmp_path)
        index.write_bytes(first + b"\n" + body), rows.write_bytes(data)
    assert load(tmp_path).dialogues
    with pytest.raises(Refused, match="the budget holds"):
        DialogueCache.load(tmp_path, 2 * slot_bytes(4), device=ThreadedDevice())
    with pytest.raises(Refused, match="no dialogue"):
        small().save(tmp_path / "empty")
    (tmp_path / "index.json").write_text("someone else's")
    with pytest.raises(Refused, match="not ours"):
        saved(tmp_path)


def test_saved_dialogues_are_of_one_model(llama: Any, tmp_path: Path) -> None:
    cache, ids = for_model(), questions(1, 9)
    first = answered(llama, cache, ids, "a")
    cache.save(tmp_path)
    for model in (None, tiny_models.llama(seed=9), "llama"):
        with pytest.raises(Refused, match="model"):
            DialogueCache.load(tmp_path, "1 MiB", device=ThreadedDevice(), model=model)
    again = DialogueCache.load(tmp_path, "1 MiB", device=ThreadedDevice(), model=tiny_models.llama().eval())
    assert torch.equal(answered(llama, again, first, "a"), answered(llama, None, first, "a"))
    assert again.report().hits == 1


def test_a_sliding_window_survives_the_disk(mistral: Any, tmp_path: Path) -> None:
    cache = for_model(block_tokens=4)
    ids = dialogue(mistral, cache, "a", questions(1, 40), turns=2)
    cache.save(tmp_path)
    again = DialogueCache.load(tmp_path, "1 MiB", device=ThreadedDevice(), model=mistral)
    dialogue(mistral, again, "a", ids, turns=2)
    assert again.report().hits == 2


# Whether it pays.


LLAMA_2_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 32000,
}
LLAMA_2_7B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def test_the_published_arithmetic_of_reload_and_recomputation() -> None:
    for config, kib, reload_ms, us in ((LLAMA_2_70B, 320, 24.4, 307), (LLAMA_2_7B, 512, 39.0, 30)):
        found = kv_resume.kv_prediction(config, 4096, 55e9)
        assert found["bytes_per_token"] == kib * 1024
        assert found["reload_ms"] == pytest.approx(reload_ms, rel=0.01)
        assert found["recompute_us_per_token"] == pytest.approx(us, rel=0.03)
        assert found["worth_it"]
        assert found["gain_ms"] == pytest.approx(found["recompute_ms"] - found["reload_ms"])
    json.dumps(found)


def test_the_gain_is_hit_share_times_prefill_share_of_the_first_token_less_the_reload() -> None:
    found = kv_resume.kv_prediction(LLAMA_2_70B, 1000, 55e9, hit_share=0.6, prefill_share=0.8)
    without = found["first_token_ms"]
    assert without == pytest.approx(found["recompute_ms"] / 0.8)
    assert found["gain_ms"] == pytest.approx(0.6 * 0.8 * without - found["reload_ms"])
    assert found["hit_tokens"] == 600
    card = {
        "device_to_host": {"pinned": {"launch_ns": 9000, "bytes_per_second": 50e9}},
        "host_to_device": {"pinned": {"launch_ns": 8000, "bytes_per_second": 55e9}},
    }
    launched = kv_resume.kv_prediction(LLAMA_2_70B, 1000, card, hit_share=0.6)
    assert launched["reload_ms"] == pytest.approx(found["reload_ms"] + 240 * 0.008)


def test_a_slow_link_no_hits_and_small_blocks_are_no_gain() -> None:
    slow = kv_resume.kv_prediction(LLAMA_2_7B, 4096, 10e9)
    assert not slow["worth_it"]
    assert "computing it again" in slow["reasons"][0]
    assert not kv_resume.kv_prediction(LLAMA_2_7B, 4096, 55e9, hit_share=0)["worth_it"]
    tiny = {**LLAMA_2_7B, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 40960}
    assert "launch cost" in kv_resume.kv_prediction(tiny, 4096, 55e9)["reasons"][-1]
    for wrong in ({"tokens": 0}, {"hit_share": 1.5}, {"link": 0}, {"bytes_each": 1}, {"model_config": {}}):
        with pytest.raises(Refused):
            kv_resume.kv_prediction(**{"model_config": LLAMA_2_7B, "tokens": 5, "link": 1e9, **wrong})
    with pytest.raises(Refused, match="active_parameters"):
        kv_resume.kv_prediction({**LLAMA_2_7B, "num_local_experts": 8}, 5, 55e9)


def test_the_prediction_of_a_model_counts_what_is_really_stored(llama: Any) -> None:
    cache, ids = for_model(), questions(1, 9)
    cache.suspend("a", llama(ids, use_cache=True).past_key_values, ids)
    assert kv_resume.kv_prediction(llama, 9, 1e9, bytes_each=4)["bytes"] == cache.report().stored_bytes


def test_advice_says_when_not_to() -> None:
    cache = small(blocks=4)
    tokens = list(range(10))
    cache.suspend("a", made_up(tokens), tokens)
    told = " ".join(cache.advice("1 GiB"))
    assert "fit into the 1 GiB" in told
    assert "launch cost" in told
    assert "fit into" not in " ".join(cache.advice(10))
    assert "fit into" not in " ".join(cache.advice())
    for start in range(100, 200, 20):
        other = list(range(start, start + 10))
        assert cache.resume(tokens=other) is None
        cache.suspend(str(start), made_up(other), other)
    assert "nothing is shared" in " ".join(cache.advice())
    cache.resume(tokens=[100, 101])
    cache.resume("180")
    assert "too small" in " ".join(cache.advice())


def test_advice_says_when_blocks_are_too_long_for_the_dialogues() -> None:
    cache = small(blocks=3, block_tokens=16)
    for first in range(0, 50, 10):
        cache.suspend(str(first), made_up([first, 1, 2]), [first, 1, 2])
    assert "fewer block_tokens than 16" in " ".join(cache.advice())


def test_the_report_is_json_with_units() -> None:
    cache = small()
    assert json.loads(json.dumps(cache.report().to_json()))["host_bytes"] == 0
    cache.suspend("a", made_up([1, 2, 3]), [1, 2, 3])
    cache.resume("a")
    found = json.loads(json.dumps(cache.report().to_json()))
    assert found["stored_bytes"] == found["filled_bytes"] == found["restored_bytes"]
    assert found["occupied_bytes"] == slot_bytes(4)
    assert found["host_bytes"] == 8 * slot_bytes(4)
    assert found["out_bytes_per_second"] > 0
    assert found["in_bytes_per_second"] > 0
    assert "1 dialogue, 3 tokens" in str(cache.report())


# The page.


PAGE = (Path(__file__).parents[2] / "docs" / "optimize/kv-cache.md").read_text()


def test_the_example_of_the_page_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    expected = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(examples[0], scope)
    printed = re.sub(r"stalls.*\n", "", capsys.readouterr().out)  # times are not the page's
    assert re.sub(r"at [\d.]+ GB/s", "at ... GB/s", printed) == expected[0]
    exec(examples[1], scope)
    exec(examples[2], scope)
    assert capsys.readouterr().out == expected[1]


def test_the_predictions_of_the_page_are_those_of_the_code() -> None:
    llama_3_8b = {**LLAMA_2_7B, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    for name, config in (("2-7B", LLAMA_2_7B), ("3-8B", llama_3_8b), ("2-70B", LLAMA_2_70B)):
        slow, fast = (kv_resume.kv_prediction(config, 4096, rate) for rate in (55e9, 375e9))
        ratios = [f"{each['recompute_ms'] / each['reload_ms']:.2g}x" for each in (slow, fast)]
        row = (
            f"| Llama-{name} | {slow['bytes_per_token'] // 1024} KiB | {slow['bytes'] / 1e9:.2f} GB "
            f"| {slow['reload_ms']:.1f} ms | {fast['reload_ms']:.1f} ms | {slow['recompute_ms']:,.0f} ms "
            f"| {', '.join(ratios)} |"
        )
        assert row.replace("3.5e+02", "350") in PAGE
