"""Saved tensors that host memory has no room for wait on a disk: exact, bounded, and safe when it is full."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from lostflops import optimize
from lostflops.optimize.device import disk, disk_blocks
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.device.disk import Slab
from lostflops.optimize.device.disk_blocks import DiskBlocks
from random_programs import Program, Weights
from simulated_devices import LazyDevice, RaceDevice
from tiny_models import gradients, loss_of

torch.set_num_threads(1)

STEPS = 4


class AtOnce:
    """Reads and writes where it is asked to, so that simulated devices see it."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, work: Any, *arguments: Any) -> Any:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except OSError as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None: ...


def trained(model: Any, retain: bool = False) -> list[dict[str, torch.Tensor]]:
    found = list[Any]()
    for number in range(STEPS):
        loss = loss_of(model, tiny_models.transformer_batch(seed=number))
        if retain:
            loss.backward(retain_graph=True)
        loss.backward()
        found.append(gradients(model))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    return found


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def on_disk(model: Any, folder: Path, host_limit: int = 30_000, **more: Any) -> Any:
    return optimize.offload(
        model,
        plan="everything",
        threshold=1,
        host_limit=host_limit,
        disk=folder,
        **{"device": ThreadedDevice(), **more},
    )


@pytest.mark.parametrize("host_limit", [0, 30_000, 10**9])
@pytest.mark.parametrize("retain", [False, True])
def test_gradients_are_those_without_to_the_bit(host_limit: int, retain: bool, tmp_path: Path) -> None:
    expected = trained(tiny_models.transformer(), retain)
    model = tiny_models.transformer()
    with on_disk(model, tmp_path, host_limit) as engine:
        assert same(trained(model, retain), expected)
    report = engine.report()
    assert report.host_held_bytes <= host_limit
    assert (report.disk_bytes > 0) == (host_limit < 10**9)
    assert report.disk_written_bytes == 0 or "on the disk" in str(report)
    assert list(tmp_path.iterdir()) == [], "the file has a name"


def test_what_is_saved_first_goes_to_the_disk_and_what_is_asked_for_soon_does_not(tmp_path: Path) -> None:
    model = tiny_models.transformer()
    with on_disk(model, tmp_path) as engine:
        trained(model)
        loss = loss_of(model, tiny_models.transformer_batch())
        entries = engine._learner.now.entries
        places = [type(entry.block).__name__ for entry in entries if entry.block is not None]
        turn = places.index("HostBlock")
        assert turn > 0 and set(places[:turn]) == {"DiskBlock"}
        assert places.count("HostBlock") > len(places[turn:]) / 2
        loss.backward()


@pytest.mark.parametrize("seconds", [0.0, 0.004])
def test_a_slow_disk_is_waited_for(seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = Slab.read, Slab.write

    def slowly(move: Any) -> Any:
        def moved(self: Any, stretch: Any, memory: torch.Tensor) -> int:
            time.sleep(seconds)
            done = move(self, stretch, memory)
            time.sleep(seconds)
            return done

        return moved

    monkeypatch.setattr(Slab, "read", slowly(read))
    monkeypatch.setattr(Slab, "write", slowly(write))
    expected = trained(tiny_models.transformer())
    model = tiny_models.transformer()
    with on_disk(model, tmp_path, 0) as engine:
        assert same(trained(model), expected)
    assert engine.report().disk_waited_ns >= 1e9 * seconds


@pytest.mark.parametrize("after", [0, 3, 20])
def test_a_disk_that_is_full_loses_nothing_and_says_so(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is taken before it is used: what finds none stays on the device."""
    allowed = [after]

    def allocate(file: int, offset: int, length: int) -> None:
        allowed[0] -= 1
        if allowed[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(file, offset + length)

    monkeypatch.setattr(disk.os, "posix_fallocate", allocate)
    expected = trained(tiny_models.transformer())
    model = tiny_models.transformer()
    with on_disk(model, tmp_path) as engine:
        assert same(trained(model), expected)
    report = engine.report()
    assert report.kept_bytes["host memory and disk full"] > 0
    assert "No space left on device" in str(report) and "nothing was lost" in str(report)


@pytest.mark.parametrize("after", [0, 5, 40])
def test_a_disk_that_fails_to_write_loses_nothing_and_says_so(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where room was promised and is not there (a quota, a file system that copies on write)."""
    write, left = Slab.write, [after]

    def failing(self: Any, stretch: Any, memory: torch.Tensor) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, stretch, memory)

    monkeypatch.setattr(Slab, "write", failing)
    expected = trained(tiny_models.transformer(), True)
    model = tiny_models.transformer()
    with on_disk(model, tmp_path) as engine:
        assert same(trained(model, True), expected)
    assert "cannot be written to: No space left on device" in str(engine.report())


def test_a_read_that_fails_is_raised_by_the_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.transformer()
    with on_disk(model, tmp_path, 0):
        trained(model)
        loss = loss_of(model, tiny_models.transformer_batch())

        def fails(*_: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Slab, "read", fails)
        with pytest.raises(OSError, match="Input/output error"):
            loss.backward()


@pytest.mark.parametrize("done", ["never", "always", 1])
def test_copies_that_run_as_late_as_they_may_are_right(
    done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_blocks, "ThreadPoolExecutor", AtOnce)
    expected = trained(tiny_models.transformer())
    model, device = tiny_models.transformer(), LazyDevice(done)
    with device, on_disk(model, tmp_path, device=device) as engine:
        assert same(trained(model), expected)
    assert device.lost == [] and engine.report().disk_read_bytes > 0


@pytest.mark.parametrize("left_out", [None, "write", "reuse"])
def test_each_wait_of_the_disk_that_is_left_out_is_a_race(
    left_out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_blocks, "ThreadPoolExecutor", AtOnce)
    read, write = Slab.read, Slab.write
    monkeypatch.setattr(Slab, "read", lambda self, at, memory: read(self, at, memory.fill_(0)))

    def seen(self: Any, at: Any, memory: torch.Tensor) -> int:
        memory.add_(0)  # on the host, as the disk reads it
        return write(self, at, memory)

    monkeypatch.setattr(Slab, "write", seen)
    device = RaceDevice()
    model = tiny_models.transformer()
    with device:
        engine = on_disk(model, tmp_path, 0, device=device)
        schedule, synchronize = engine._schedule, device.synchronize
        skipped = {"write": schedule._out, "reuse": schedule._in}.get(left_out)
        monkeypatch.setattr(
            device, "synchronize", lambda event: None if event.stream is skipped else synchronize(event)
        )
        with engine:
            trained(model)
    assert (device.races == []) == (left_out is None), device.races[:3]


def test_random_programs_have_the_same_gradients_from_a_disk(tmp_path: Path) -> None:
    read = 0
    for seed in range(int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "60")) // 3):
        weights = Weights(seed)
        expected = Program(seed).run(weights)
        engine = on_disk(weights, tmp_path, (0, 8_000)[seed % 2])
        with engine:
            for _ in range(3):
                assert Program(seed).run(weights) == expected, seed
        read += engine.report().disk_read_bytes
    assert read > 0


def test_blocks_are_read_past_the_kernels_cache_where_that_can_be(tmp_path: Path) -> None:
    for direct in (True, False):
        blocks = DiskBlocks(ThreadedDevice(), Slab(tmp_path, direct), buffers=2)
        device = blocks._device
        held = list[Any]()
        for number in range(7):
            block = blocks.take(5000 + number)
            assert block is not None and block.memory is not None
            block.memory.fill_(number)
            blocks.left(block, device.record(device.current_stream()))
            held.append(block)
        blocks.ask(held[2:4])
        for number in (3, 0, 6, 2, 1, 5, 4):
            found = blocks.memory_of(held[number])
            assert len(found) == 5000 + number and found.eq(number).all()
            assert found.data_ptr() % disk.PAGE == 0
            blocks.came(held[number], device.record(device.current_stream()))
        for block in held:
            blocks.give_back(block, device.record(device.current_stream()))
        assert blocks.used_bytes == 0
