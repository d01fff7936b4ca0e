"""What went wrong in other offloaders: one test per bug, each shown to fail on the code that had it.

The numbers are those of the table of public bugs that the engine was written against; `ELSEWHERE` names the
tests of the ones that live with the schedule, the arena, the links and the frozen weights.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint

import tiny_models
from lostflops.copies.link import Link
from lostflops.copies.simulation import Storage
from lostflops.optimize import offload
from lostflops.optimize.activations.offload.memory.arena import Arena, aligned
from lostflops.optimize.activations.offload.moved_storages import Selection, foresee, select
from lostflops.optimize.device import numa
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from simulated_devices import LazyDevice, RaceDevice
from test_gradients import CASES, differences, expected, selective, trained
from test_races import Forgetful, on_three_streams, raced, small
from tiny_models import loss_of

torch.set_num_threads(1)

ELSEWHERE = {
    2: "test_races.test_a_current_stream_read_inside_the_copy_streams_context_is_found",
    6: "test_races.test_each_wait_that_the_engine_forgets_is_found",
    7: "test_races.test_host_memory_is_not_written_while_the_step_before_still_reads_it",
    8: "test_races.test_copies_are_hidden_and_gradients_right_at_the_same_time",
    13: "test_gradients.test_tensor_parallel_training_is_the_same_with_and_without",
    28: "test_frozen.test_frozen_weights_are_never_copied_back",
}


@pytest.mark.parametrize("number", ELSEWHERE)
def test_bugs_that_are_tested_elsewhere_are(number: int) -> None:
    module, name = ELSEWHERE[number].split(".")
    assert callable(getattr(import_module(module), name))


def everything(model: nn.Module, **options: Any) -> Any:
    return offload(model, **({"plan": "everything", "threshold": 64, "device": ThreadedDevice()} | options))


class Naive:
    """Copies every saved tensor at once, and keeps its own account; subclasses do what was done wrong."""

    def __init__(self) -> None:
        self.moved = 0
        self.held: dict[Any, Any] = {}

    def pack(self, tensor: torch.Tensor) -> Any:
        self.moved += tensor.numel() * tensor.element_size()
        return tensor.detach().clone()

    def unpack(self, packed: Any) -> torch.Tensor:
        return packed

    def hooks(self) -> Any:
        return saved_tensors_hooks(self.pack, self.unpack)


# 1


def test_1_a_plan_that_moves_nothing_is_an_error_and_no_pass() -> None:
    """The switch was accepted, all tensors were below the threshold, and equal was compared with equal."""

    class Thresholded(Naive):
        def pack(self, tensor: torch.Tensor) -> Any:
            return super().pack(tensor) if tensor.numel() > 1 << 20 else tensor.detach()

    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()
    naive = Thresholded()
    with naive.hooks():
        loss_of(model, batch).backward()
    assert naive.moved == 0  # and nobody said so
    with pytest.raises(Refused, match="none was"), everything(model, threshold=1 << 20):
        for _ in range(3):
            loss_of(model, batch).backward()


# 3


class Cached(Forgetful):
    """What an engine sees that asked for the compute stream once."""

    def current_stream(self) -> Any:
        return self.compute if self._asked_by_engine() else super().current_stream()

    def _asked_by_engine(self) -> bool:
        import sys

        return sys._getframe(2).f_globals["__name__"].startswith("lostflops.optimize")


def test_3_the_compute_stream_is_the_one_of_now() -> None:
    device = Cached(None)
    raced(device, small(tiny_models.transformer), on_three_streams(device))
    assert any("copy" in race for race in device.races)
    device = Forgetful(None)
    raced(device, small(tiny_models.transformer), on_three_streams(device))
    assert device.races == []


# 4


def test_4_a_part_is_gathered_before_the_copy_is_allowed_to_start() -> None:
    """The event was recorded, then the view was made contiguous, then the copy waited for the event."""
    model: Any = nn.Linear(8, 8)

    def step(_: Any, number: int) -> None:
        y = model(tiny_models.mlp_batch(rows=64, hidden=8, seed=number)).exp()
        y[::4, ::4].square().sum().backward()

    def with_event_first(device: RaceDevice) -> None:
        out = device.new_stream()
        x = torch.arange(4096.0).view(64, 64) * 2
        ready = device.record(device.compute)
        part = x[::4, ::4].clone()
        device.wait(out, ready)
        host = device.host_memory(1024)
        device.copy(host, part.view(-1).view(torch.uint8), out)
        device.synchronize(device.record(out))

    naive = RaceDevice()
    with naive:
        with_event_first(naive)
    (race,) = naive.races
    assert "copy out" in race and "clone" in race
    device = RaceDevice()
    report = raced(device, model, step)
    assert device.races == []
    assert report.out.bytes > 0


# 5


class Boasting(LazyDevice):
    """Says that every copy is done, and has run none: what is freed then is freed too early."""

    def is_done(self, event: Any) -> bool:
        return True


def test_5_a_source_freed_while_it_is_copied_is_found() -> None:
    build, step = CASES["views"]
    device, model = Boasting(), build()
    with device, everything(model, device=device, verify=None):  # the check would tell before the end
        found = trained(model, step, 3)
    assert "source" in device.lost
    assert differences(expected("views"), found)


def test_5_a_source_lives_until_it_has_been_copied() -> None:
    build, step = CASES["views"]
    device, model = LazyDevice(), build()
    with device, everything(model, device=device):
        found = trained(model, step, 3)
    assert device.lost == []
    assert differences(expected("views"), found) == []


# 9


def many_saves(model: nn.Module) -> tuple[torch.Tensor, bool]:
    """The gradient of the last of many terms; and whether it was saved at an address that had been used.
    All are of one size."""
    x = torch.linspace(0.5, 2, 4096)
    weight = next(model.parameters())
    weight.grad = None
    addresses: list[int] = []
    for number in range(30):
        term = (weight * x + number).sin()
        addresses.append(term.data_ptr())
        loss = (term * term).sum()
    loss.backward()
    assert weight.grad is not None
    return weight.grad, addresses[-1] in addresses[:-1]


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4096))


def test_9_memory_at_the_same_address_is_not_the_same_memory() -> None:
    class ByAddress(Naive):
        def __init__(self) -> None:
            super().__init__()
            self.room = list(torch.empty(100, 4096))

        def pack(self, tensor: torch.Tensor) -> Any:
            if tensor.data_ptr() not in self.held:
                self.held[tensor.data_ptr()] = self.room.pop().copy_(tensor)
            return self.held[tensor.data_ptr()]

    model = Weight()
    right, _ = many_saves(model)
    went_wrong = False
    for _ in range(20):  # it is the allocator's to use an address again
        with ByAddress().hooks():
            wrong, again = many_saves(model)
        went_wrong |= again and not torch.equal(right, wrong)
    assert went_wrong
    kept = all_terms(model)
    with everything(model):
        for _ in range(5):
            found, _ = many_saves(model)
            assert torch.equal(found, right)
            assert torch.equal(all_terms(model), kept)


def all_terms(model: nn.Module) -> torch.Tensor:
    """The same with all terms in the loss: the engine lets go of each storage, and is asked for it later."""
    weight = next(model.parameters())
    weight.grad = None
    loss = torch.zeros(())
    for number in range(30):
        term = (weight * torch.linspace(0.5, 2, 4096) + number).sin()
        loss = loss + (term * term).sum()
        del term
    loss.backward()
    assert weight.grad is not None
    return weight.grad


# 10


def test_10_a_view_may_be_all_that_is_left_of_a_storage() -> None:
    class WithoutViews(Naive):
        def pack(self, tensor: torch.Tensor) -> Any:
            return tensor if tensor._is_view() else super().pack(tensor)

    model = Weight()

    def step() -> None:
        x = model.weight.view(64, 64) + 1
        kept = x[:, 1:]
        del x
        (kept * kept).sum().backward()

    naive = WithoutViews()
    with naive.hooks():
        step()
    assert naive.moved == 0
    with everything(model) as engine:
        step()
    assert engine.report().out.bytes == 4096 * 4


# 11


def test_11_what_is_never_asked_for_is_let_go() -> None:
    """A branch that nobody goes back through, and a forward that ends with an exception."""

    class UntilUnpacked(Naive):
        def pack(self, tensor: torch.Tensor) -> Any:
            self.held[len(self.held)] = tensor.detach().clone()
            return len(self.held) - 1

        def unpack(self, packed: Any) -> torch.Tensor:
            return self.held.pop(packed)

    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()

    def half_used() -> None:
        unused = model(batch).square().mean()
        loss_of(model, 2 * batch).backward()
        del unused

    def given_up() -> None:
        with pytest.raises(ValueError, match="midway"):
            y = model(batch)
            raise ValueError(f"midway through {tuple(y.shape)}")

    naive = UntilUnpacked()
    with naive.hooks():
        half_used()
        given_up()
    assert sum(tensor.numel() for tensor in naive.held.values()) > 10_000
    with everything(model) as engine:
        for _ in range(3):
            half_used()
            given_up()
            gc.collect()
            engine.report()
            engine._schedule.finish()
            assert engine._schedule.resident_bytes == 0
            assert engine._arena.idle and engine._arena.used_bytes == 0
    assert engine.report().into.bytes > 0


# 12


def test_12_an_engine_does_not_nest_and_is_entered_again_after_an_exception() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()
    outer, inner = Naive(), Naive()
    with outer.hooks(), inner.hooks():
        loss_of(model, batch)
    assert (outer.moved > 0, inner.moved > 0) == (False, True)  # the inner one has switched the outer one off
    engine = everything(model)
    with engine:
        with pytest.raises(Refused, match="entered already"), everything(model):
            pass
        with pytest.raises(Refused, match="entered already"), engine:
            pass
        loss_of(model, batch).backward()
    with pytest.raises(ValueError, match="in the step"), engine:
        loss_of(model, batch)
        raise ValueError("in the step")
    before = engine.report().out.bytes
    with engine:
        loss_of(model, batch).backward()
    assert engine.report().out.bytes > before > 0


# 14


def test_14_a_saved_tensor_comes_back_to_where_it_was() -> None:
    class ToTheDevice(Naive):
        def unpack(self, packed: Any) -> torch.Tensor:
            return packed.to("meta")

    model = nn.Linear(4, 4, device="meta")  # stands for a GPU
    x = torch.linspace(0, 1, 64, requires_grad=True)

    def step() -> torch.Tensor:
        x.grad = None
        (x * x.exp()).sum().backward()
        assert x.grad is not None
        return x.grad

    right = step().clone()
    with pytest.raises(RuntimeError), ToTheDevice().hooks():
        step()
    with offload(model, threshold=64, device=ThreadedDevice(torch.device("meta"))) as engine:
        assert torch.equal(step(), right)
    assert engine.report().kept_bytes["on another device"] > 0


# 15


class Counting(ThreadedDevice):
    def __init__(self) -> None:
        super().__init__()
        self.allocations = 0

    def host_memory(self, nbytes: int) -> torch.Tensor:
        self.allocations += 1
        return super().host_memory(nbytes)


def test_15_no_host_memory_is_asked_for_after_the_second_step() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()
    naive, device = Counting(), Counting()
    counts: list[int] = []
    for _ in range(3):
        with saved_tensors_hooks(lambda t: (naive.host_memory(t.numel()), t)[1].detach(), lambda t: t):
            loss_of(model, batch).backward()
        counts.append(naive.allocations)
    assert counts[0] < counts[1] < counts[2]
    counts.clear()
    with everything(model, device=device) as engine:
        for _ in range(4):
            loss_of(model, batch).backward()
            counts.append(device.allocations)
    report = engine.report()
    assert 0 < counts[1] == counts[2] == counts[3]
    assert report.host_allocations_after_warm_up == 0
    assert report.out.copies >= 4


# 16


def test_16_host_memory_is_as_large_as_what_it_holds() -> None:
    sizes = [12_000, 5, 3_000_001]
    rounded = sum(1 << (size - 1).bit_length() for size in sizes)
    assert rounded > 1.3 * sum(sizes)  # what an allocator of powers of two holds
    arena = Arena(ThreadedDevice(), limit=10**9)
    assert arena.settle(sum(map(aligned, sizes)))
    assert all(arena.take(size) for size in sizes)
    assert sum(sizes) <= arena.held_bytes < sum(sizes) + 512 * len(sizes)


# 17


def test_17_host_memory_is_taken_on_the_gpus_own_node(tmp_path: Path) -> None:
    """Memory goes to the node of whoever touches it first, which is any."""
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for slot, node in (("0000:17:00.0", 1), ("0000:18:00.0", -1)):
        (tmp_path / "bus/pci/devices" / slot).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / slot / "numa_node").write_text(f"{node}\n")
    first_touched_by = next(node for node, cpus in numa.nodes(tmp_path).items() if 2 in cpus)
    assert first_touched_by == 0
    assert numa.node_at("0000:17:00.0", tmp_path) == 1
    assert numa.node_at("0000:18:00.0", tmp_path) is None  # the machine does not say


# 18


def test_18_no_copy_goes_through_pageable_memory_unnoticed() -> None:
    """Where pinned memory ran out, others fell back to pageable memory: half as fast, and nobody was told."""
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()

    class FallingBack(Naive):
        pinned, pageable = 20_000, 0

        def pack(self, tensor: torch.Tensor) -> Any:
            nbytes = tensor.numel() * tensor.element_size()
            self.pageable += nbytes if nbytes > self.pinned else 0
            self.pinned -= min(nbytes, self.pinned)
            return super().pack(tensor)

    naive = FallingBack()
    with naive.hooks():
        loss_of(model, batch).backward()
    assert naive.pageable > 0
    with pytest.raises(Refused, match="host memory"), everything(model, host_limit=20_000) as engine:
        for _ in range(3):
            loss_of(model, batch).backward()
    assert engine.report().host_held_bytes <= 20_000


# 19


def test_19_what_is_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled layers inside of the engine are among the gradients' cases."""
    assert "compiled" in CASES
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch()
    with everything(model):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        with pytest.raises(Refused, match="traced"):
            loss_of(model, batch)
        monkeypatch.undo()


# 20


def test_20_hooks_inside_a_checkpointed_function_are_refused() -> None:
    model, batch = tiny_models.mlp(), tiny_models.mlp_batch().requires_grad_()
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))

    def run(hooks: Callable[[], Any]) -> Any:
        def layers(x: torch.Tensor) -> torch.Tensor:
            with hooks():
                return model(x)

        return checkpoint.checkpoint(layers, batch, use_reentrant=False).sum().backward()

    run(Naive().hooks)
    assert len(calls) == 1  # checkpointing is off: nothing was recomputed
    calls.clear()
    with pytest.raises(Refused, match="nothing recomputed"):
        run(lambda: everything(model))
    with everything(model) as engine:
        checkpoint.checkpoint(model, batch, use_reentrant=False).sum().backward()
    assert len(calls) >= 2
    assert engine.report().out.bytes == batch.numel() * 4  # the input


# 21


def test_21_what_selective_checkpointing_hides_from_hooks_is_told() -> None:
    model = selective(tiny_models.transformer(layers=2))
    batch = tiny_models.transformer_batch()
    naive = Naive()
    with naive.hooks():
        loss = loss_of(model, batch)
    held = {id(v): v for v in gc.get_objects() if type(v).__name__ == "_VersionWrapper"}
    assert sum(wrapper.val.numel() for wrapper in held.values()) * 4 > naive.moved  # more than hooks saw
    del loss, held
    with everything(model) as engine:
        for _ in range(2):
            loss_of(model, batch).backward()
    assert engine.report().bypassed_bytes > 0


# 22


def test_22_more_memory_is_never_slower_nor_refused() -> None:
    """Moving was taken to save memory in proportion. Over a slow link what is under way takes more."""
    saved = [Storage(100, 10 * n, 200 - 10 * n) for n in range(10)]
    link = Link(1e9, 1e9, 0)  # 100 ns for each, and the whole step is 200 ns
    total = sum(one.bytes for one in saved)

    def naive(room: int) -> Selection:
        """By bisection, as if more moves always took less room."""
        low, high = 0, len(saved)
        while low < high:
            middle = (low + high) // 2
            moves = [n < middle for n in range(len(saved))]
            fits = foresee(saved, moves, 200, link).resident_bytes <= room
            low, high = (low, middle) if fits else (middle + 1, high)
        return foresee(saved, [n < low for n in range(len(saved))], 200, link)

    times = [select(saved, 200, link, room).step_ns for room in range(100, total + 1, 50)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 200 < times[0]
    assert naive(600).resident_bytes > 600 >= select(saved, 200, link, 600).resident_bytes


# 23


def test_23_where_everything_fits_nothing_moves() -> None:
    build, step = CASES["full fine-tune"]
    naive, model = Naive(), build()
    with naive.hooks():
        trained(model, step, 3)
    assert naive.moved > 0
    model = build()
    with everything(model, plan=None, budget="1 GiB") as engine:
        trained(model, step, 3)
    report = engine.report()
    assert report.out.bytes == 0
    assert "fits" in report.state


# 24


def test_24_a_write_after_the_save_raises() -> None:
    weight = Weight()

    def step() -> None:
        y = weight.weight * 2
        loss = (y * y).sum()
        y.mul_(3)
        loss.backward()

    with pytest.raises(RuntimeError, match="inplace"):
        step()
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        step()  # a wrong gradient, and no error
    for options in ({}, {"threshold": "1 GiB", "plan": None}):
        with pytest.raises(RuntimeError, match="inplace"), everything(weight, **options):
            step()


# 25


@contextmanager
def identity() -> Iterator[None]:
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        yield


def test_25_an_operators_own_output_is_freed_with_it() -> None:
    """Who keeps the very tensor that was saved makes a cycle, which not even the garbage collector frees."""
    model = Weight()

    def freed(after: Callable[[], None] = lambda: None) -> bool:
        y = model.weight.sigmoid()
        alive = weakref.ref(y.untyped_storage())
        del y
        after()
        return alive() is None

    with identity():
        assert not freed(lambda: (gc.collect(), None)[1])
    engine = everything(model, plan=None, threshold="1 GiB")
    with engine:
        assert freed()
    engine = everything(model)
    with engine, pytest.raises(StopIteration):
        assert freed(engine._schedule.finish)  # once its copy is done
        raise StopIteration


def test_every_bug_has_its_test() -> None:
    here = {name.split("_")[1] for name in globals() if name.startswith("test_") and name[5].isdigit()}
    assert {int(number) for number in here} | set(ELSEWHERE) == {*range(1, 26), 28}
