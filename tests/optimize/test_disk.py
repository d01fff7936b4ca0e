"""A disk behind host memory: exact, bounded, gone with the process, and refused in words when it is full."""

from __future__ import annotations

import errno
import io
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lostflops import optimize
from lostflops.optimize.device import disk
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.device.disk import Slab, Staging
from lostflops.optimize.refused import Refused
from simulated_devices import LazyDevice, RaceDevice
from test_optimizer_offload import OPTIMIZERS, Model, all_of, expected, groups, train

torch.set_num_threads(1)


class AtOnce:
    """Reads and writes where it is asked to, so that simulated devices see it."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, work: Any, *arguments: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("host", [0, 6000])
@pytest.mark.parametrize("name", ["AdamW", "Adam amsgrad", "SGD"])
def test_states_on_the_disk_are_those_without_to_the_bit(name: str, host: int, tmp_path: Path) -> None:
    model = Model()
    optimizer = OPTIMIZERS[name](groups(model))
    way: dict[str, Any] = {"chunk": 3000, "least": 1, "host": host, "disk": tmp_path}
    with optimize.optimizer_offload(optimizer, device=ThreadedDevice(), **way) as offloaded:
        train(model, optimizer)
        assert all_of(model, optimizer) == expected(name)
        report = offloaded.report()
        assert report.disk_bytes > 0 and report.host_bytes <= host
        assert report.read_bytes > 0 and report.written_bytes > 0 and "on the disk" in str(report)
    assert all_of(model, optimizer) == expected(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left_out", [None, "write", "read"])
def test_the_disk_waits_for_the_device_and_the_device_for_the_disk(
    left_out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "ThreadPoolExecutor", AtOnce)
    read, write = Slab.read, Slab.write
    monkeypatch.setattr(Slab, "read", lambda self, at, memory: read(self, at, memory.fill_(0)))

    def seen(self: Any, at: Any, memory: torch.Tensor) -> int:
        memory.sum()
        return write(self, at, memory)

    monkeypatch.setattr(Slab, "write", seen)
    device = RaceDevice()
    model = Model()
    optimizer = OPTIMIZERS["AdamW"](groups(model))
    offloaded = optimize.optimizer_offload(
        optimizer, device=device, chunk=3000, least=1, host=0, disk=tmp_path
    )
    synchronize, states = device.synchronize, offloaded._states
    skipped = {"write": states._out, "read": states._in}.get(left_out)
    monkeypatch.setattr(device, "synchronize", lambda e: None if e.stream is skipped else synchronize(e))
    if left_out == "read":
        monkeypatch.setattr(Staging, "_is_sent", lambda self, buffer: buffer.holds is None)
    with device:
        train(model, optimizer)
    assert all_of(model, optimizer) == expected("AdamW")
    assert bool(device.races) == (left_out is not None)


def test_late_copies_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "ThreadPoolExecutor", AtOnce)
    device, model = LazyDevice(), Model()
    optimizer = OPTIMIZERS["AdamW"](groups(model))
    with device:
        optimize.optimizer_offload(optimizer, device=device, chunk=3000, least=1, host=0, disk=tmp_path)
        train(model, optimizer)
    assert all_of(model, optimizer) == expected("AdamW") and device.lost == []


def test_state_dicts_and_what_is_written_into_states_go_to_the_disk_too(tmp_path: Path) -> None:
    found: list[Any] = []
    for way in (False, True):
        model = Model()
        optimizer = OPTIMIZERS["AdamW"](groups(model))
        if way:
            optimize.optimizer_offload(
                optimizer, device=ThreadedDevice(), chunk=3000, least=1, host=0, disk=tmp_path
            )
        train(model, optimizer, 2)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        optimizer.state[model.first.weight]["exp_avg"].mul_(-1)
        train(model, optimizer, 1, 2)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        train(model, optimizer, 2, 3)
        found.append(all_of(model, optimizer))
    assert found[0] == found[1]


def test_a_step_that_raises_leaves_the_disk_whole(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    offloaded = optimize.optimizer_offload(
        optimizer, device=ThreadedDevice(), chunk=2048, least=1, host=0, disk=tmp_path
    )
    for _ in range(2):
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    plain, runs = offloaded._plain, list[int]()

    def third_raises(optimizer: Any) -> None:
        runs.append(1)
        if len(runs) == 3:
            raise KeyboardInterrupt
        plain(optimizer)

    offloaded._plain = third_raises
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    offloaded._plain = plain
    optimizer.step()
    offloaded.undo()
    assert [float(optimizer.state[p]["step"]) for p in model.parameters()] == [4, 4, 3, 3, 3, 3]
    assert all(bool(optimizer.state[p]["exp_avg"].isfinite().all()) for p in model.parameters())


def test_nothing_is_left_of_it_when_the_process_is_killed(tmp_path: Path) -> None:
    program = f"""
        import torch, time
        from lostflops import optimize
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        device = optimize.ThreadedDevice()
        optimize.optimizer_offload(optimizer, device=device, host=0, disk={str(tmp_path)!r})
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        print("ready", flush=True)
        time.sleep(60)
    """
    running = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None and running.stdout.readline() == "ready\n"
    files = [str(each.readlink()) for each in Path(f"/proc/{running.pid}/fd").iterdir()]
    assert any(str(tmp_path) in each and "deleted" in each for each in files)
    running.send_signal(signal.SIGKILL)
    running.wait(10)
    time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_refused_in_words_or_states_stay_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    way: dict[str, Any] = {"chunk": 3000, "least": 1, "host": 0, "disk": tmp_path}
    model = Model()
    optimizer = OPTIMIZERS["AdamW"](groups(model))
    train(model, optimizer, 1)
    before = all_of(model, optimizer)
    monkeypatch.setattr(disk.os, "posix_fallocate", full)
    with pytest.raises(Refused, match=r"do not fit on the disk at .*, which has .* left \(No space"):
        optimize.optimizer_offload(optimizer, device=ThreadedDevice(), **way)
    assert all_of(model, optimizer) == before
    fresh = Model()
    optimizer = OPTIMIZERS["AdamW"](groups(fresh))
    offloaded = optimize.optimizer_offload(optimizer, device=ThreadedDevice(), **way)
    train(fresh, optimizer)
    assert all_of(fresh, optimizer) == expected("AdamW")
    assert any("do not fit on the disk" in reason for reason in offloaded.report().kept_bytes)
    offloaded.undo()
    with pytest.raises(Refused, match=r"no file can be made in .*nowhere: No such file"):
        optimize.optimizer_offload(optimizer, device=ThreadedDevice(), disk=tmp_path / "nowhere")


def test_a_limit_of_the_system_is_met_before_any_byte_is_written() -> None:
    """A real one, on the size of files."""
    program = """
        import resource, signal, tempfile
        from lostflops.optimize.device.disk import Slab
        from lostflops.optimize.refused import Refused
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        slab = Slab(tempfile.gettempdir())
        slab.take(1 << 19)
        try:
            slab.take(1 << 20)
        except Refused as refused:
            print(slab.held_bytes, refused.reason)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert ran.stdout.startswith(f"{1 << 19} 1 MiB more do not fit") and "File too large" in ran.stdout, ran


def test_stretches_are_given_again_and_what_is_mapped_is_what_is_written(tmp_path: Path) -> None:
    slab = Slab(tmp_path)
    first, second = slab.take(10), slab.take(5000)
    assert slab.held_bytes == first.nbytes + second.nbytes == 3 * disk.PAGE
    slab.give_back(first)
    assert slab.take(100) == first and slab.held_bytes == 3 * disk.PAGE
    memory = torch.arange(5000).to(torch.uint8)
    assert slab.write(second, memory) == 5000
    view = slab.view(second, 5000)
    assert torch.equal(view, memory)
    view[7] = 99
    found = torch.empty(5000, dtype=torch.uint8)
    slab.read(second, found)
    assert found[7] == 99 and found[8] == 8
    slab.close()
    assert view[7] == 99, "what is mapped stays"
