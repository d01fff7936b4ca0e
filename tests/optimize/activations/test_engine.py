"""The offload engine on a CPU: what moves when, what it refuses, and that it leaves no trace."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import checkpoint

import tiny_models
from lostflops import optimize
from lostflops.copies.link import Link
from lostflops.copies.simulation import Storage
from lostflops.optimize import claims
from lostflops.optimize.activations import saved_views
from lostflops.optimize.activations.checksum import checksum
from lostflops.optimize.activations.offload.memory.arena import Arena
from lostflops.optimize.activations.offload.moved_storages import foresee, select
from lostflops.optimize.activations.offload.schedule import (
    CopySchedule,
    Microbatch,
    ScheduleLimits,
    StorageState,
)
from lostflops.optimize.device import peak
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from simulated_devices import LazyDevice
from tiny_models import gradients, loss_of

torch.set_num_threads(1)

# The schedule alone, on a device that writes down what it is told.


class Script:
    torch_device = torch.device("cpu")
    coherent = False

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.compute = "compute"
        self.done: set[str] = set()
        self.events = 0
        self.streams = iter(("out", "in"))

    def current_stream(self) -> str:
        return self.compute

    def new_stream(self) -> str:
        return next(self.streams)

    def record(self, stream: str) -> str:
        self.events += 1
        self.lines.append(f"record {stream}")
        return f"{stream}@{self.events}"

    def wait(self, stream: str, event: str) -> None:
        self.lines.append(f"{stream} waits for {event.split('@')[0]}")

    def is_done(self, event: str) -> bool:
        return event in self.done or event.split("@")[0] in self.done

    def synchronize(self, event: str) -> None:
        self.done.add(event)

    def elapsed(self, start: str, end: str) -> int:
        return 1

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.lines.append(f"allocate {nbytes} on {self.compute}")
        return torch.zeros(nbytes, dtype=torch.uint8)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def before_reuse(self, memory: torch.Tensor, stream: str) -> None: ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: str) -> None:
        self.lines.append(f"copy {source.numel()} on {stream}")
        target.copy_(source)

    def told(self) -> list[str]:
        lines, self.lines = [line for line in self.lines if not line.startswith("record")], []
        return lines


def scripted(limits: ScheduleLimits | None = None) -> tuple[Script, CopySchedule, Microbatch]:
    device = Script()
    arena = Arena(device, 10**6)
    arena.settle(10**5)
    return device, CopySchedule(device, arena, limits), Microbatch()


def sent(schedule: CopySchedule, microbatch: Microbatch, nbytes: int) -> Any:
    entry = schedule.admit(microbatch, torch.full((nbytes,), nbytes % 251, dtype=torch.uint8))
    handle = schedule.add_handle(entry)
    assert schedule.send(entry)
    return handle


def test_a_storage_travels_there_and_back_and_each_stream_waits_for_what_it_must() -> None:
    device, schedule, microbatch = scripted()
    handle = sent(schedule, microbatch, 700)
    assert device.told() == ["out waits for compute", "copy 700 on out"]
    assert handle.entry.state is StorageState.COPYING_OUT
    device.done.add("out")
    schedule.settle()
    assert (handle.entry.state, handle.entry.source) == (StorageState.HOST, None)
    bytes_ = schedule.hand_out(microbatch, handle)
    assert device.told() == [
        "allocate 700 on compute",
        "in waits for compute",
        "in waits for out",
        "copy 700 on in",
        "compute waits for in",
    ]
    assert bytes_.tolist() == [700 % 251] * 700
    schedule.drop(handle)
    assert handle.entry.state is StorageState.RELEASED
    assert schedule.arena.idle
    assert schedule.resident_bytes == 0


def test_a_source_is_held_until_its_copy_is_done_or_compute_waits_for_it() -> None:
    device, schedule, microbatch = scripted(ScheduleLimits(in_flight_bytes=1000))
    first, second = sent(schedule, microbatch, 400), sent(schedule, microbatch, 500)
    assert first.entry.source is not None
    assert not schedule.stalls
    third = sent(schedule, microbatch, 300)  # 1,200 bytes: too many under way
    assert first.entry.source is None
    assert second.entry.source is not None
    assert device.told()[-1] == "compute waits for out"
    assert [stall.cause for stall in schedule.stalls] == ["copy-out behind"]
    schedule.drop(third)  # given up while it is copied
    assert third.entry.source is not None
    device.done.add("out")
    schedule.settle()
    assert third.entry.source is None
    assert len(schedule.stalls) == 1
    assert schedule.resident_bytes == 0


def test_what_is_asked_for_while_it_leaves_is_not_copied_back() -> None:
    device, schedule, microbatch = scripted()
    handle, other = sent(schedule, microbatch, 40), sent(schedule, microbatch, 50)
    device.told()
    assert schedule.hand_out(microbatch, other).numel() == 50
    assert schedule.hand_out(microbatch, handle).numel() == 40
    assert device.told() == []
    for one in (handle, other):
        schedule.drop(one)
    device.done.add("out")
    schedule.settle()
    assert schedule.resident_bytes == 0


def test_copies_back_are_queued_in_the_learned_order_as_far_ahead_as_allowed() -> None:
    device, schedule, microbatch = scripted(ScheduleLimits(look_ahead_bytes=600))
    handles = [sent(schedule, microbatch, n) for n in (100, 200, 300, 400)]
    device.done.add("out")
    schedule.settle()
    microbatch.expected, microbatch.order, microbatch.due_ns = 4, [2, 3, 0, 1], [10, 20, 30, 40]
    device.told()
    schedule.hand_out(microbatch, handles[2])  # 300, then as many as fit into 600: 400 and 100
    assert [line for line in device.told() if line.startswith("copy")] == [
        "copy 300 on in",
        "copy 400 on in",
        "copy 100 on in",
    ]
    assert [stall.cause for stall in schedule.stalls] == ["order missed"]
    schedule.hand_out(microbatch, handles[3])
    assert [line for line in device.told() if line.startswith("copy")] == ["copy 200 on in"]
    assert schedule.missed == 1


def test_what_would_be_late_at_the_next_chance_is_fetched_now() -> None:
    """The 100 are due 5 ns after the 200, and need 8: they are fetched a millisecond before."""
    device, schedule, microbatch = scripted(ScheduleLimits(look_ahead_bytes=10**6, look_ahead_ns=8))
    handles = [sent(schedule, microbatch, n) for n in (50, 100, 200, 300)]
    device.done.add("out")
    schedule.settle()
    microbatch.expected, microbatch.order = 4, [3, 2, 1, 0]
    microbatch.due_ns = [0, 10**6, 10**6 + 5, 2 * 10**6]
    device.told()
    schedule.hand_out(microbatch, handles[3])
    copied = [line for line in device.told() if line.startswith("copy")]
    assert copied == ["copy 300 on in", "copy 200 on in", "copy 100 on in"]


def test_what_comes_out_of_order_is_fetched_at_once_and_counted() -> None:
    device, schedule, microbatch = scripted()
    handles = [sent(schedule, microbatch, n) for n in (10, 20, 30)]
    device.done.add("out")
    schedule.settle()
    for number in (0, 2, 1):
        assert schedule.hand_out(microbatch, handles[number]).numel() == 10 * (number + 1)
    assert schedule.missed == 1 + (device.told().count("copy 10 on in") > 1)


def test_a_second_backward_gets_the_same_bytes_from_the_host_again() -> None:
    device, schedule, microbatch = scripted()
    handles = [sent(schedule, microbatch, n) for n in (10, 20)]
    device.done.update(("out", "in"))
    schedule.settle()
    for backward in (1, 2):
        for handle in reversed(handles):
            assert set(schedule.hand_out(microbatch, handle, backward).tolist()) == {handle.entry.nbytes}
        assert [handle.entry.state for handle in handles] == [StorageState.HOST, StorageState.HOST]
        assert device.told().count("copy 20 on in") == 1


def test_a_block_of_one_streams_pool_is_not_read_on_another_stream() -> None:
    device, schedule, microbatch = scripted()
    first, second = sent(schedule, microbatch, 10), sent(schedule, microbatch, 20)
    device.done.add("out")
    schedule.settle()
    schedule.hand_out(microbatch, second)  # fetches the first ahead, on "compute"
    device.told()
    device.compute = "another"
    schedule.hand_out(microbatch, first)
    assert device.told() == [
        "compute waits for in",  # before its pool gets the block back
        "allocate 10 on another",
        "in waits for another",
        "in waits for out",
        "copy 10 on in",
        "another waits for in",
    ]


def test_what_was_fetched_and_not_wanted_is_given_back_after_its_copy() -> None:
    device, schedule, microbatch = scripted()
    first, second = sent(schedule, microbatch, 10), sent(schedule, microbatch, 20)
    device.done.add("out")
    schedule.settle()
    schedule.hand_out(microbatch, second)
    assert first.entry.state is StorageState.COPYING_IN
    device.told()
    schedule.drop(first)
    assert device.told() == ["compute waits for in"]
    schedule.drop(second)
    assert schedule.resident_bytes == 0


# Which bytes travel.


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=3),
    st.integers(0, 40),
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.complex64]),
)
def test_any_view_comes_back_as_it_was(
    elements: int, dimensions: list[tuple[int, int]], offset: int, dtype: torch.dtype
) -> None:
    base = torch.randint(0, 2, (elements,)).to(dtype)
    extent = sum((size - 1) * stride for size, stride in dimensions if size) + 1
    if offset + extent > elements or any(size == 0 for size, _ in dimensions):
        return
    view = base.as_strided([s for s, _ in dimensions], [s for _, s in dimensions], offset)
    part = saved_views.view_of(view) or saved_views.whole_view(view)
    moved = saved_views.bytes_of(view, part).clone()
    assert moved.numel() == part.nbytes <= base.untyped_storage().nbytes()
    again = saved_views.restored(part, moved)
    assert torch.equal(again, view)
    assert (again.shape, again.dtype) == (view.shape, view.dtype)
    assert all(
        n == o for n, o, s in zip(again.stride(), view.stride(), view.shape, strict=True) if o == 0 and s
    )


def test_a_small_part_travels_alone_and_an_expanded_one_once() -> None:
    rows = torch.arange(1000.0).reshape(100, 10)
    few, column, wide = rows[3:5], rows[:, 2], rows[:1].expand(50, 10)
    sizes = [(saved_views.view_of(view), view) for view in (few, column, wide)]
    assert [part and part.nbytes for part, _ in sizes] == [80, 400, 40]
    assert [part and part.gathered for part, _ in sizes] == [False, True, False]
    assert saved_views.view_of(rows[:, 4:]) is None  # more than half: the whole storage


def test_a_checksum_sees_changed_and_exchanged_bytes() -> None:
    memory = torch.arange(4001, dtype=torch.int64).to(torch.uint8)
    sums = {int(checksum(memory))}
    for change in ((0, 1), (4000, 7), (2048, 3)):
        other = memory.clone()
        other[change[0]] += change[1]
        sums.add(int(checksum(other)))
    words = memory[:4000].view(torch.int64).clone()
    words[[3, 40]] = words[[40, 3]]
    sums.add(int(checksum(torch.cat([words.view(torch.uint8), memory[4000:]]))))
    sums.add(int(checksum(memory[:4000])))
    assert len(sums) == 6
    assert int(checksum(memory[8:])) == int(checksum(memory[8:].clone()))
    assert int(checksum(memory[3:])) == int(checksum(memory[3:].clone()))


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 16, 24, 31, 32, 40, 64, 71, 128, 136, 4001])
def test_a_checksum_is_that_of_words_in_a_square(nbytes: int) -> None:
    """Of any length: most tensors leave some of the sums empty."""
    memory = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))
    given = bytes(memory.tolist())
    words = [int.from_bytes(given[at : at + 8], "little") for at in range(0, nbytes - nbytes % 8, 8)]
    side = 1
    while side * side <= len(words):
        side *= 2
    square = [words[at : at + side] for at in range(0, len(words) - len(words) % side, side)]
    columns = [sum(column) for column in zip(*square, strict=True)]
    rows, rest = [sum(row) for row in square], words[len(square) * side :]
    total = nbytes
    for sums in (columns, rows, rest, given[8 * len(words) :]):
        total = total * 31 + sum(one * (2 * at + 1) * 0x9E3779B1 for at, one in enumerate(sums))
    assert int(checksum(memory)) % (1 << 64) == total % (1 << 64)


# What is worth moving.


@st.composite
def steps(draw: Any) -> tuple[list[Storage], int]:
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=12))
    gaps = draw(st.lists(st.integers(0, 10**6), min_size=2 * len(sizes), max_size=2 * len(sizes)))
    times = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    saved = [
        Storage(size, times[number], times[-1 - number], draw(st.booleans()))
        for number, size in enumerate(sizes)
    ]
    return saved, times[-1] + draw(st.integers(1, 10**6))


@settings(max_examples=80, deadline=None)
@given(steps(), st.integers(10**8, 10**11))
def test_what_hides_hides_and_all_kept_costs_nothing(step: tuple[list[Storage], int], speed: int) -> None:
    saved, compute_ns = step
    link = Link(speed, 2 * speed, 3000)
    chosen = select(saved, compute_ns, link)
    assert chosen.exposed_ns <= 0.005 * compute_ns
    assert all(one.movable for one, moves in zip(saved, chosen.moves, strict=True) if moves)
    nothing = foresee(saved, [False] * len(saved), compute_ns, link)
    assert (nothing.exposed_ns, nothing.bytes_out) == (0, 0)
    assert nothing.resident_bytes <= sum(one.bytes for one in saved)
    everything = foresee(saved, [True] * len(saved), compute_ns, link)
    copies = sum(link.out_ns(one.bytes) + link.in_ns(one.bytes) for one in saved)
    assert 0 <= everything.exposed_ns <= copies


@settings(max_examples=80, deadline=None)
@given(steps(), st.integers(10**8, 10**11), st.integers(0, 10**8), st.integers(0, 10**8))
def test_more_room_is_never_slower(step: tuple[list[Storage], int], speed: int, room: int, more: int) -> None:
    saved, compute_ns = step
    link = Link(speed, speed, 10_000)
    tight, wide = (select(saved, compute_ns, link, r) for r in (room, room + more))
    if tight.resident_bytes <= room:
        assert wide.exposed_ns <= max(tight.exposed_ns, 0.005 * compute_ns)
        assert wide.resident_bytes <= room + more
    least = foresee(saved, [False] * len(saved), compute_ns, link).resident_bytes
    assert select(saved, compute_ns, link, least).bytes_out == 0


# The engine.


def everything(model: nn.Module, **more: Any) -> Any:
    more.setdefault("plan", "everything")
    return optimize.offload(
        model, threshold=more.pop("threshold", 1), device=more.pop("device", ThreadedDevice()), **more
    )


def step(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    loss_of(model, batch).backward()
    found = gradients(model)
    model.zero_grad()
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_llama_trains_to_the_bit_and_memory_is_asked_for_in_the_first_step_only() -> None:
    model, batch = tiny_models.llama(), tiny_models.llama_batch()
    expected = step(model, batch)
    asked: list[int] = []

    class Counting(ThreadedDevice):
        def host_memory(self, nbytes: int) -> torch.Tensor:
            asked.append(nbytes)
            return super().host_memory(nbytes)

    counts: list[int] = []
    with everything(model, device=Counting(), verify="first step") as engine:
        for _ in range(4):
            assert same(step(model, batch), expected)
            counts.append(len(asked))
    assert counts[1:] == [counts[0] + 1] * 3  # the slab, when the first step was known
    report = engine.report()
    assert report.state == "moving"
    assert report.microbatches == 4
    assert report.out.bytes > 4 * 400_000
    assert report.out.bytes % 4 == 0
    assert report.moved == report.out.copies
    for way in (report.out, report.into):
        assert way.hidden is not None
        assert 0 <= way.hidden <= 1
    assert report.host_allocations_after_warm_up == 0
    assert 0 <= report.host_held_bytes - report.out.bytes // 4 < 512 * report.moved // 4
    assert report.shared_bytes > 0
    assert report.verified is not None
    assert set(report.kept_bytes) == {"parameter or buffer"}
    record = json.loads(json.dumps(report.to_json()))
    assert record["out"]["hidden"] == report.out.hidden
    page = str(report)
    assert "0 allocations after the second microbatch" in page
    assert all(len(line) < 140 for line in page.splitlines())
    assert engine._saver.known == {}
    assert engine._schedule.resident_bytes == 0


def test_gradients_accumulate_over_microbatches_and_each_is_one() -> None:
    model = tiny_models.transformer()
    batches = [tiny_models.transformer_batch(seed=seed) for seed in range(3)]
    for batch in batches:
        loss_of(model, batch).backward()
    expected = gradients(model)
    model.zero_grad()
    with everything(model) as engine:
        for batch in batches:
            loss_of(model, batch).backward()
    assert same(gradients(model), expected)
    assert engine.report().microbatches == 3


class Small(ThreadedDevice):
    """A device that counts what is alive on it, and holds more besides when told."""

    def __init__(self, meter: Any) -> None:
        super().__init__()
        self.meter = meter
        self.besides = 0

    def allocated_bytes(self) -> int:
        return self.meter.live_bytes + self.besides

    def most_allocated_bytes(self) -> int:
        return self.meter.peak_bytes + self.besides

    def outside_bytes(self) -> int:
        return 0


def test_where_everything_fits_nothing_moves_until_it_no_longer_does() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch(sequence=100)

    def one_step() -> None:
        loss_of(model, batch).backward()
        model.zero_grad()

    one_step()
    with peak.measured("cpu", list(model.parameters())) as meter:
        one_step()
        device = Small(meter)
        budget = 2 * meter.peak_bytes
        with optimize.offload(model, budget, threshold=1, device=device) as engine:
            for _ in range(3):
                one_step()
            fits = engine.report()
            device.besides = meter.peak_bytes + 400_000  # an optimizer's states
            for _ in range(3):
                one_step()
    assert fits.state == "everything fits: nothing is moved"
    assert fits.out.bytes == 0
    assert fits.host_held_bytes == 0
    report = engine.report()
    assert report.state == "moving"
    assert report.out.bytes // 3 >= 100_000
    assert report.predicted["peak_bytes"] <= budget


class Resettable(Small):
    def reset_most_allocated(self) -> None:
        self.meter.high_bytes()  # which takes off what has been freed
        self.meter._peak = self.meter.live_bytes


@pytest.mark.parametrize(("share", "earlier"), [(0.35, False), (0.6, False), (0.6, True)])
def test_a_budget_is_kept_and_no_more_moves_than_it_takes(share: float, earlier: bool) -> None:
    """Also where there was more memory in use before, as when a model is loaded."""
    model = tiny_models.transformer(layers=6)
    batch = tiny_models.transformer_batch(sequence=200)
    loss_of(model, batch).backward()
    model.zero_grad()
    static = list(model.parameters())

    def one_step() -> None:
        loss_of(model, batch).backward()
        model.zero_grad()

    with peak.measured("cpu", static) as meter:
        one_step()
    plain, least = meter.peak_bytes, meter.live_bytes
    budget = round(least + share * (plain - least))
    with peak.measured("cpu", static) as meter:
        if earlier:
            torch.ones(plain).sum()
        with optimize.offload(model, budget, threshold=1, device=Resettable(meter)) as engine:
            for _ in range(3):
                one_step()
    report = engine.report()
    assert report.out.bytes > 0
    assert meter.peak_bytes <= 1.05 * budget < plain  # the error that peaks are predicted with
    assert report.predicted["peak_bytes"] <= budget
    assert report.predicted["peak_bytes"] == pytest.approx(report.measured["peak_bytes"], rel=0.15)
    if share == 0.6:
        assert report.kept_bytes["not needed, or not hidden"] > 0


def test_a_peak_that_an_earlier_one_hides_is_told() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    with peak.measured("cpu", list(model.parameters())) as meter:
        torch.ones(10**7).sum()
        with optimize.offload(model, "1 GiB", threshold=1, device=Small(meter)) as engine:
            step(model, batch)
    assert any("its own peak is not known" in note for note in engine.report().notes)


def test_what_cannot_be_pinned_travels_through_plain_memory_and_is_told_once() -> None:
    asked: list[int] = []

    class Unpinnable(ThreadedDevice):
        def host_memory(self, nbytes: int) -> torch.Tensor:
            asked.append(nbytes)
            raise Refused(f"{nbytes} bytes of host memory cannot be pinned", "ulimit -l unlimited")

    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    with everything(model, device=Unpinnable()) as engine:
        for _ in range(4):
            assert same(step(model, batch), expected)
    report = engine.report()
    assert len(asked) == 1
    assert report.state == "moving" and report.out.bytes > 0
    assert report.host_held_bytes == engine._arena.pageable_bytes < 1.1 * report.out.bytes / 4 + 512 * 400
    (note,) = report.notes
    assert "cannot be pinned" in note and "pageable" in note


def test_an_engine_that_lives_until_the_end_ends_quietly() -> None:
    program = """
import torch
from lostflops import optimize
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Sigmoid(), torch.nn.Linear(64, 64))
engine = optimize.offload(model, plan="everything", threshold=1, device=optimize.ThreadedDevice())
with engine:
    for _ in range(3):
        loss = model(torch.ones(64, 64)).square().sum()
        loss.backward()
    kept = model(torch.ones(64, 64))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_written_after_its_save_raises_as_it_does_without_the_engine() -> None:
    model = tiny_models.mlp()
    x = torch.randn(64, 64, requires_grad=True)
    for threshold in (1, 10**9):  # moved, and kept
        with everything(model, threshold=threshold, plan=None):
            y = x * 2
            z = (y * y).sum()
            y.mul_(3)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.backward()


def test_a_write_behind_autograds_back_is_told() -> None:
    model = tiny_models.mlp()
    told = pytest.raises(Refused, match="changed between its save and its use")
    with told, everything(model, verify="first step"):
        y = model(tiny_models.mlp_batch())
        z = y.exp()
        first = z * z.detach()  # saves z; no version tells what comes next
        z.data.mul_(2)
        (first + z.sin()).sum().backward()


def test_a_storage_lives_no_longer_than_without_the_engine() -> None:
    model = tiny_models.mlp()
    with everything(model) as engine:
        y = model(tiny_models.mlp_batch()).sigmoid().exp()
        assert len(engine._saver.known) > 4
        gc.disable()
        try:
            del y  # a cycle through a saved output would need more than this
            assert engine._saver.known == {}
            assert engine._arena.used_bytes == 0
        finally:
            gc.enable()
        step(model, tiny_models.mlp_batch())


def test_memory_that_comes_again_at_the_same_address_is_not_taken_for_the_old() -> None:
    model = tiny_models.mlp()
    weight = torch.randn(1000, requires_grad=True)
    with everything(model) as engine:
        parts: list[torch.Tensor] = []
        for number in range(20):
            temporary = torch.full((1000,), float(number))
            parts.append((weight * temporary).sum())
            del temporary
            engine._schedule.finish()  # its copy is done, so its memory is free for the next
        sum(parts).backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((1000,), 190.0))


def test_the_engine_is_left_without_a_trace_also_by_an_exception() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    engine = everything(model)
    with pytest.raises(ValueError, match="in the middle"), engine:
        loss = loss_of(model, batch)
        raise ValueError("in the middle")
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    loss.backward()  # what has left comes back outside, too
    assert same(gradients(model), expected)
    model.zero_grad()
    with engine:
        assert same(step(model, batch), expected)
        assert same(step(model, batch), expected)
    assert engine.report().out.bytes > 0


def test_a_backward_that_breaks_off_teaches_nothing() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)

    def stop(gradient: torch.Tensor) -> None:
        raise ValueError("half-way")

    engine = everything(model, plan=None)
    handle = model.blocks[2].norm.weight.register_hook(stop)
    with pytest.raises(ValueError, match="half-way"), engine:
        loss_of(model, batch).backward()
    handle.remove()
    model.zero_grad()
    with engine:
        for _ in range(3):
            assert same(step(model, batch), expected)
    assert engine._learner.learned is not None
    assert all(one.asked is not None for one in engine._learner.learned.saved)
    assert engine.report().out.bytes > 0


def test_microbatches_that_save_differently_are_right_and_told() -> None:
    model = tiny_models.transformer()
    x = tiny_models.transformer_batch()
    whole = step(model, x)

    def first_block() -> dict[str, torch.Tensor]:
        model.blocks[0](x).square().mean().backward()
        found = gradients(model)
        model.zero_grad()
        return found

    part = first_block()
    with everything(model) as engine:
        for _ in range(2):
            assert same(step(model, x), whole)
            assert same(first_block(), part)
    report = engine.report()
    assert report.microbatches == 4
    assert any("do not all save the same" in note for note in report.notes)


def test_who_claims_a_tensor_gets_it_before_the_engine() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()
    expected = step(model, batch)
    mine: list[torch.Size] = []

    class Held:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor.detach().clone()
            mine.append(tensor.shape)

        def unpack(self) -> torch.Tensor:
            return self.tensor

    with everything(model) as engine:
        withdraw = claims.register(
            lambda tensor: Held(tensor) if tensor.ndim == 2 and len(mine) < 3 else None
        )
        try:
            assert same(step(model, batch), expected)
        finally:
            withdraw()
    assert len(mine) == 3
    assert engine.report().out.bytes > 0


def offload_plan(**classes: str) -> dict[str, Any]:
    named = {name.replace("__", "/"): action for name, action in classes.items()}
    return {"schema": 1, "kind": "offload plan", "classes": named, "refused": None}


def classes_of(model: nn.Module, batch: Any) -> list[str]:
    rows = optimize.saved_tensors(model, batch)["rows"]
    return [row["tensor_class"] for row in rows if not row["kept_reason"]]


def test_a_plan_moves_its_classes_and_no_other() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    rows = [row for row in optimize.saved_tensors(model, batch)["rows"] if not row["kept_reason"]]
    moved = "blocks.*.mlp.2/AddmmBackward0"
    nbytes = sum(row["bytes"] for row in rows if row["tensor_class"] == moved)
    if not nbytes:
        moved = max(
            {row["tensor_class"] for row in rows},
            key=lambda name: [r["tensor_class"] for r in rows].count(name),
        )
        nbytes = sum(row["bytes"] for row in rows if row["tensor_class"] == moved)
    plan = {"schema": 1, "kind": "offload plan", "classes": {moved: "offload"}, "refused": None}
    engine = optimize.offload(model, plan=plan, device=ThreadedDevice())
    with engine:
        for _ in range(3):
            assert same(step(model, batch), expected)
    assert engine.report().out.bytes == 3 * nbytes
    assert engine.report().kept_bytes["by the plan"] > 0


def test_a_plan_moves_and_computes_again_with_one_call() -> None:
    model, batch = tiny_models.llama(), tiny_models.llama_batch()
    expected = step(model, batch)
    before = [module.forward for module in model.modules()]
    plan = offload_plan(
        **{
            "model.layers.*.mlp.act_fn__MmBackward0": "recompute",
            "model.layers.*.mlp__SiluBackward0": "recompute",
            "model.layers.*.mlp.down_proj__MulBackward0": "recompute",
            "model.layers.*.input_layernorm__MulBackward0": "offload",
        }
    )
    engine = optimize.offload(model, plan=plan, device=ThreadedDevice(), verify="first step")
    for _ in range(2):  # entered again, it computes again
        with engine:
            for _ in range(3):
                assert same(step(model, batch), expected)
    assert [module.forward for module in model.modules()] == before
    report = engine.report()
    assert report.state == "moving and computing again" and report.out.bytes > 0
    proof = engine.prove(lambda: tiny_models.loss_of(model, batch).backward())
    assert proof.gradients == "equal bit for bit" and proof.with_engine_peak_bytes < proof.plain_peak_bytes


def inside_a_checkpoint(model: nn.Module) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with everything(model):
            return model(x)

    checkpoint.checkpoint(forward, tiny_models.mlp_batch().requires_grad_(), use_reentrant=False)


def under_other_hooks(model: nn.Module) -> None:
    with torch.autograd.graph.save_on_cpu(), everything(model):
        pass


def nested(model: nn.Module) -> None:
    with everything(model), everything(model):
        pass


def trained(model: nn.Module, **how: Any) -> None:
    with everything(model, **how):
        for _ in range(2):
            step(model, tiny_models.mlp_batch())


def gradient_of_a_function(model: nn.Module) -> None:
    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (tiny_models.mlp_batch(),)).square().sum()

    with everything(model):
        torch.func.grad(loss)(dict(model.named_parameters()))


def moves_all(model: nn.Module) -> dict[str, Any]:
    return offload_plan() | {"classes": dict.fromkeys(classes_of(model, tiny_models.mlp_batch()), "offload")}


REFUSALS: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "a model on the CPU": (optimize.offload, "there is no GPU memory to spare"),
    "two engines": (nested, "entered already"),
    "inside a checkpoint": (inside_a_checkpoint, "inside a checkpointed function"),
    "hooks of others": (under_other_hooks, r"save_on_cpu"),
    "budget and plan": (lambda m: everything(m, budget=1), "a budget and a plan"),
    "no amount": (lambda m: everything(m, plan=None, budget="lots"), "no amount of memory"),
    "no plan": (lambda m: everything(m, plan="all"), "'all' is no plan"),
    "another record": (lambda m: everything(m, plan={"kind": "link card"}), "no offload plan"),
    "a refused plan": (lambda m: everything(m, plan=offload_plan() | {"refused": "it fits"}), "it fits"),
    "a plan that recomputes what is not there": (
        lambda m: trained(m, plan=offload_plan(decoder__MulBackward0="recompute")),
        "recomputes something in 'decoder', but no module",
    ),
    "another decision": (
        lambda m: everything(m, plan=offload_plan(a="compress")),
        "wants more .a: compress",
    ),
    "another model": (
        lambda m: trained(m, plan=offload_plan(**{"blocks.*__Mul": "offload"})),
        "does not save",
    ),
    "nothing moved": (
        lambda m: trained(m, threshold=10**9),
        "none was; those that stayed: .*below the thres",
    ),
    "planned, too small": (
        lambda m: trained(m, plan=moves_all(m), threshold=10**9),
        "which stays: below the",
    ),
    "little host memory": (lambda m: trained(m, plan=moves_all(m), host_limit=9000), "host memory, of which"),
    "a budget out of reach": (lambda m: trained(m, plan=None, budget=20_000), "19.5 KiB cannot be reached"),
    "a device that is no GPU": (lambda m: optimize.offload(m, device="cpu"), "cpu is no GPU"),
    "no such device": (lambda m: optimize.offload(m, device="gpu"), "'gpu' names no device"),
    "torch.func.grad inside": (gradient_of_a_function, "no saved-tensor hooks work there"),
    "another device": (lambda m: trained(m.to("meta")), "0.weight is on meta, the engine works on cpu"),
    "a bad card": (lambda m: everything(m, link={"gpu": "H200"}), "link card has no rate"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_done_is_refused_in_words_and_leaves_no_trace(name: str) -> None:
    model = tiny_models.mlp()
    action, words = REFUSALS[name]
    with pytest.raises(Refused, match=words) as told:
        action(model)
    assert told.value.hint
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not any(module._forward_pre_hooks for module in model.modules())
    if name != "another device":
        with everything(model):
            step(model, tiny_models.mlp_batch())


def test_a_proof_compares_gradients_time_and_peak() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    loss_of(model, batch).backward()
    before = gradients(model)
    engine = everything(model)
    for _ in range(3):  # on a busy processor copies may end too late for what they free to lower the peak
        proof = engine.prove(lambda: loss_of(model, batch).backward(), pairs=2)
        assert same(gradients(model), before)  # the proof's own are not left behind
        assert proof.gradients == "equal bit for bit"
        assert proof.bytes_out > 0
        if proof.with_engine_peak_bytes < proof.plain_peak_bytes:
            break
    assert proof.with_engine_peak_bytes < proof.plain_peak_bytes
    assert json.loads(json.dumps(proof.to_json()))["slower"] == proof.slower
    assert proof.harm is None or "longer" in proof.harm  # a busy CPU may well be slower


def test_an_engine_that_changes_gradients_switches_itself_off() -> None:
    class Broken(ThreadedDevice):
        def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
            super().copy(target, source + 1 if source.numel() > 9000 else source, stream)

    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    engine = everything(model, device=Broken(), verify=None)
    proof = engine.prove(lambda: loss_of(model, batch).backward(), pairs=2)
    assert proof.harm is not None
    assert "the gradient of" in proof.harm
    with engine:
        assert same(step(model, batch), expected)
    assert engine.report().state == proof.harm


def test_wrong_bytes_are_told_by_the_backward_itself_before_an_optimizer_sees_them() -> None:
    class Broken(ThreadedDevice):
        def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
            super().copy(target, source + 1 if source.numel() > 9000 else source, stream)

    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    with everything(model, device=Broken()) as engine:
        loss = loss_of(model, batch)
        with pytest.raises(Refused, match="gradients are wrong"):
            loss.backward()
        model.zero_grad()
        assert same(step(model, batch), expected)  # from now on everything stays
    assert engine.report().state.startswith("switched off: ")


def test_the_check_costs_nothing_once_it_is_over() -> None:
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    with everything(model) as engine:
        counts: list[str | None] = []
        for _ in range(4):
            step(model, batch)
            counts.append(engine.report().verified)
    assert counts[0] is not None and counts == [counts[0]] * 4
    with everything(model, verify=None) as unchecked:
        step(model, batch)
    assert unchecked.report().verified is None


def sparse(layout: torch.layout) -> Callable[[nn.Module], torch.Tensor]:
    def loss(layer: nn.Module) -> torch.Tensor:
        y = layer(torch.ones(64, 64)).sigmoid()
        matrix = torch.eye(64).to_sparse(layout=layout) * 2
        return (matrix @ y).square().sum() + torch.sparse.mm(y.to_sparse(), y).sum()

    return loss


def nested_layers(layout: torch.layout) -> Callable[[nn.Module], torch.Tensor]:
    def loss(layer: nn.Module) -> torch.Tensor:
        rows = torch.nested.nested_tensor([torch.ones(5, 64), torch.ones(7, 64) / 3], layout=layout)
        y = layer(rows)
        y = y.sin().values() if layout == torch.jagged else torch.nested.to_padded_tensor(y, 0.0)
        return y.square().sum()

    return loss


LAYOUTS = {
    "COO": (sparse(torch.sparse_coo), "not strided"),
    "CSR": (sparse(torch.sparse_csr), "not strided"),
    "nested": (nested_layers(torch.strided), "not strided"),
    "jagged": (nested_layers(torch.jagged), "nested"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_other_layouts_stay_and_are_told(layout: str) -> None:
    loss, reason = LAYOUTS[layout]
    model = nn.Linear(64, 64)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        loss(model).backward()
        return cast("torch.Tensor", model.weight.grad)

    expected = gradient()
    for how in ({}, {"threshold": 10**9, "plan": None}):
        with everything(model, **how) as engine:
            for _ in range(3):
                assert torch.equal(gradient(), expected)
        assert engine.report().kept_bytes[reason] > 0


def test_functional_calls_and_vmap_work_inside() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()

    def one_step() -> dict[str, torch.Tensor]:
        weights = dict(model.named_parameters())
        y = torch.func.functional_call(model, weights, (batch,)) + torch.func.vmap(model)(batch)
        y.square().mean().backward()
        found = gradients(model)
        model.zero_grad()
        return found

    expected = one_step()
    with everything(model) as engine:
        for _ in range(3):
            assert same(one_step(), expected)
    assert engine.report().out.bytes > 0


@pytest.mark.parametrize("alias", ["data", "numpy"])
def test_a_write_that_no_counter_sees_between_two_saves_is_told_in_the_first_step(alias: str) -> None:
    model = tiny_models.mlp()

    def one_step() -> None:
        y = model(tiny_models.mlp_batch()).exp()
        first = (y * y.detach()).sum()
        if alias == "data":
            y.data.mul_(2)
        else:
            y.detach().numpy()[:] *= 2
        (first + y.sin().sum()).backward()

    with everything(model), pytest.raises(Refused, match="a fault of the engine"):
        one_step()
    with everything(model, threshold=10**9, plan=None):  # what stays is what it is without the engine
        one_step()


def test_what_selective_checkpointing_holds_is_told() -> None:
    model = tiny_models.mlp()

    def save_products(context: Any, operator: Any, *_: Any, **__: Any) -> checkpoint.CheckpointPolicy:
        kept = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        policies = checkpoint.CheckpointPolicy
        return policies.MUST_SAVE if kept else policies.PREFER_RECOMPUTE

    x = tiny_models.mlp_batch().requires_grad_()
    with everything(model) as engine:
        y = checkpoint.checkpoint(
            model,
            x,
            use_reentrant=False,
            context_fn=lambda: checkpoint.create_selective_checkpoint_contexts(save_products),
        )
        y.square().mean().backward()
    rows, width = x.shape
    assert engine.report().bypassed_bytes == tiny_models.LAYERS * rows * width * 4
    assert "held by selective checkpointing" in str(engine.report())


def test_without_selective_checkpointing_no_object_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(gc, "get_referrers", lambda *of: looked.append(of) or [])
    model, x = tiny_models.mlp(), tiny_models.mlp_batch()
    with everything(model) as engine:
        model(x).square().mean().backward()
    assert engine.report().bypassed_bytes == 0
    assert not looked


class Counted(ThreadedDevice):
    """Its clock counts events, so that which copies hide does not depend on how busy the machine is.

    A copy takes `copy_ticks` of them."""

    def __init__(self, copy_ticks: int = 1) -> None:
        super().__init__()
        self._ticks = itertools.count()
        self._copy_ticks = copy_ticks
        self._copied: dict[Any, int] = {}

    def record(self, stream: Any) -> Any:
        late = 0 if stream is None else self._copied.get(stream, 0)
        return super().record(stream), next(self._ticks) + late

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        super().copy(target, source, stream)
        self._copied[stream] = self._copied.get(stream, 0) + self._copy_ticks

    def wait(self, stream: Any, event: Any) -> None:
        super().wait(stream, event[0])

    def is_done(self, event: Any) -> bool:
        self.synchronize(event)  # never behind
        return True

    def synchronize(self, event: Any) -> None:
        super().synchronize(event[0])

    def elapsed(self, start: Any, end: Any) -> int:
        return 1000 * (end[1] - start[1])


def printed_by_the_page(blocks: list[tuple[str, str]]) -> list[str]:
    scope: dict[str, object] = {}
    printed: list[str] = []
    for kind, text in blocks:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, scope)
            printed.append(stream.getvalue())
    return printed


def page_on_offloading() -> str:
    return (Path(__file__).parents[3] / "docs" / "optimize/offloading.md").read_text().split("\n## ")[1]


def test_the_page_shows_what_its_code_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all copies hide, as the page says: labels, and what is no time."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", page_on_offloading(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "text"] * 2
    monkeypatch.setattr(optimize, "ThreadedDevice", Counted)
    shown = [text for kind, text in blocks if kind == "text"]
    sure = ("state", "microbatches", "a microbatch", "saved twice", "stayed", "host memory")
    for now, then in zip(printed_by_the_page(blocks), shown, strict=True):
        lines, told = ([line for line in text.splitlines() if line.startswith(sure)] for text in (now, then))
        assert lines == told
        labels, known = ({line.split("  ")[0] for line in text.splitlines()} for text in (now, then))
        varying = {"not fetched ahead"}
        assert {x for x in labels ^ known if not x.startswith("waited")} <= varying


def test_the_page_names_what_stays_where_copies_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_on_offloading()
    blocks = re.findall(r"```(python|text)\n(.*?)```", page, re.DOTALL)[:2]
    monkeypatch.setattr(optimize, "ThreadedDevice", lambda: Counted(copy_ticks=30))
    (printed,) = printed_by_the_page(blocks)
    reasons = re.findall(r"^stayed: (.*?)  ", printed, re.MULTILINE)
    assert "not needed, or not hidden" in reasons
    assert all(reason in page for reason in reasons)


class WritesInBackward(torch.autograd.Function):
    """Uses up what it has saved, as fused losses do with their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(gradients[0])


@pytest.mark.parametrize("threshold", [1, 10**9], ids=["moved", "kept"])
@pytest.mark.parametrize("verify", [None, "first step"])
def test_what_a_backward_writes_to_saved_memory_raises_where_it_is_asked_for_again(
    threshold: int, verify: Any
) -> None:
    model = tiny_models.mlp()
    x = torch.randn(64, 64, requires_grad=True)
    modified = pytest.raises(RuntimeError, match="modified by an inplace operation")
    for device in (ThreadedDevice(), LazyDevice()):  # copies that are done soon, and as late as they may be
        around = device if isinstance(device, LazyDevice) else contextlib.nullcontext()
        with around, everything(model, threshold=threshold, plan=None, device=device, verify=verify):
            for _ in range(3):
                y = (x * 2).sin()
                once = WritesInBackward.apply(y).sum()  # type: ignore[attr-defined]
                other = y.sin().sum()
                (expected,) = torch.autograd.grad(once, x, retain_graph=True)  # alone it is as good as plain
                assert torch.equal(expected, 8 * (x * 2).sin() * (x * 2).cos() / 2)
                with modified:
                    other.backward()
                with modified:
                    once.backward()


def test_forward_derivatives_work_inside() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()

    def one_step() -> dict[str, torch.Tensor]:
        _, slope = torch.func.jvp(model, (batch,), (torch.ones_like(batch),))
        slope.square().mean().backward()
        found = gradients(model)
        model.zero_grad()
        return found

    expected = one_step()
    with everything(model, plan=None):
        for _ in range(3):
            assert same(one_step(), expected)


def test_a_model_can_be_copied_while_the_engine_is_entered() -> None:
    """As moving averages and reference models are made."""
    model, batch = tiny_models.transformer(), tiny_models.transformer_batch()
    expected = step(model, batch)
    with everything(model) as engine:
        assert same(step(model, batch), expected)
        other = copy.deepcopy(model)
        assert same(step(other, batch), expected)
        assert same(step(model, batch), expected)
    assert engine.report().out.bytes > 0


def test_a_model_that_is_compiled_as_a_whole_goes_on_when_the_engines_hooks_go() -> None:
    """What was compiled with them asked for those that were gone: StopIteration, in the second step."""
    torch._dynamo.reset()
    model, x = tiny_models.mlp(2, 8), tiny_models.mlp_batch(4, 8)
    compiled, found = torch.compile(model, backend="eager"), []
    engine = optimize.offload(model, plan="everything", threshold=1, device=LazyDevice()).apply()
    for number in range(4):
        if number == 3:
            engine.undo()
        model.zero_grad()
        compiled(x).square().sum().backward()
        found.append([p.grad.tolist() for p in model.parameters()])
    assert all(each == found[0] for each in found) and engine.report().moved
