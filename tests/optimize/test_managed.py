"""Unified memory: what platforms can do, the C allocator on libraries that play CUDA, and torch's side."""

from __future__ import annotations

import contextlib
import ctypes
import doctest
import gc
import json
import shutil
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_cudart import CONCURRENT, HOST_TABLES, MANAGED, PAGEABLE, Cudart
from lostflops import optimize
from lostflops.optimize import Refused
from lostflops.optimize.unified import managed_allocator, platform_memory
from lostflops.optimize.unified import managed_memory as subject
from lostflops.optimize.unified.managed_allocator import Allocator

torch.set_num_threads(1)
MIB = 1 << 20


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The allocator, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        try:
            return managed_allocator.built()
        except Refused as refused:
            pytest.skip(refused.reason)


@pytest.fixture
def cache(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one's own: a copy of the allocator, whose counts begin at zero."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "lostflops"
    folder.mkdir(mode=0o700, parents=True)
    shutil.copy(built, folder)
    return folder


@pytest.fixture
def cuda(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Cudart:
    found = Cudart(tmp_path)
    monkeypatch.setattr(platform_memory, "runtime_libraries", lambda: [str(found.path)])
    monkeypatch.setattr(subject, "runtime_libraries", lambda: [str(found.path)])
    monkeypatch.setattr(platform_memory, "PARAMETERS", tmp_path / "nvidia_uvm")
    return found


@pytest.fixture
def allocator(cuda: Cudart) -> Allocator:
    return managed_allocator.opened(str(cuda.path))


# What a platform can do


def parameter(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "nvidia_uvm").mkdir(exist_ok=True)
    (tmp_path / "nvidia_uvm" / name).write_text(value + "\n")


@pytest.mark.parametrize(
    ("platform", "addressing", "kinds"),
    [
        ("gh200", "ATS", {"device": True, "managed": True, "system": True}),
        ("x86 with HMM", "HMM", {"device": True, "managed": True, "system": True}),
        ("pcie", "none", {"device": True, "managed": True, "system": False}),
        ("wsl", "none", {"device": True, "managed": False, "system": False}),
    ],
)
def test_a_platform_tells_which_memory_it_can_give(
    cuda: Cudart, platform: str, addressing: str, kinds: dict[str, bool]
) -> None:
    cuda.become(platform)
    found = optimize.memory_capabilities(1)
    assert (found.device, found.gpus, found.addressing) == (1, 2, addressing)
    assert {kind: found.usable(kind)[0] for kind in kinds} == kinds
    assert found.asked == "libcudart.so.fake" and found.host_page_bytes in (4096, 16384, 65536)
    text = str(found)
    assert f"system memory by {addressing}" in text and "device   yes" in text
    record = json.loads(json.dumps(found.record()))
    assert record["kinds"]["managed"]["usable"] is kinds["managed"] and record["addressing"] == addressing


def test_reasons_are_in_words(cuda: Cudart, tmp_path: Path) -> None:
    assert "neither ATS nor HMM" in optimize.memory_capabilities().usable("system")[1]
    parameter(tmp_path, "uvm_disable_hmm", "Y")
    assert "uvm_disable_hmm" in optimize.memory_capabilities().usable("system")[1]
    cuda.become("wsl")
    assert "without concurrentManagedAccess" in optimize.memory_capabilities().usable("managed")[1]
    cuda.become("gh200")
    assert "host's page tables (ATS)" in optimize.memory_capabilities().usable("system")[1]
    with pytest.raises(ValueError, match="no kind of memory 'host'"):
        optimize.memory_capabilities().usable("host")


def test_a_driver_that_does_not_know_a_question_is_not_taken_for_a_no(cuda: Cudart) -> None:
    for which in (PAGEABLE, HOST_TABLES, CONCURRENT):
        cuda.library.fake_attribute(which, -1)
    found = optimize.memory_capabilities()
    assert found.pageable_memory_access is None and found.concurrent_managed_access is None
    assert found.managed_memory is True and found.addressing == "unknown"
    assert "does not say" in found.usable("managed")[1] and not found.usable("managed")[0]
    assert cuda.library.fake_error() == 0, "the error was taken away: torch must not find it"


@pytest.mark.parametrize(("many", "code", "said"), [(0, 100, "shows no GPU"), (0, 35, "no NVIDIA driver")])
def test_without_a_gpu_the_reason_is_said(cuda: Cudart, many: int, code: int, said: str) -> None:
    cuda.library.fake_devices(many, code)
    found = optimize.memory_capabilities()
    assert found.gpus == 0 and said in str(found)
    assert [found.usable(kind)[0] for kind in ("device", "managed", "system")] == [False] * 3
    assert cuda.library.fake_error() == 0


def test_a_gpu_that_does_not_exist_is_not_described(cuda: Cudart) -> None:
    assert "there is no GPU 7, only 2" in str(optimize.memory_capabilities(7))
    assert "no GPU 2" in str(optimize.memory_capabilities(torch.device("cuda", 2)))
    assert optimize.memory_capabilities("cuda:1").device == 1
    with pytest.raises(Refused, match="cpu is no GPU"):
        optimize.memory_capabilities("cpu")


def test_without_a_runtime_library_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform_memory, "runtime_libraries", lambda: [str(tmp_path / "absent")])
    assert "no CUDA runtime library" in str(optimize.memory_capabilities())
    monkeypatch.setattr(platform_memory, "runtime_libraries", lambda: ["libc.so.6"])
    assert "this is no CUDA runtime" in str(optimize.memory_capabilities())


@pytest.mark.parametrize(
    ("platform", "value", "expected"),
    [("gh200", "-1", True), ("pcie", "-1", False), ("pcie", "1", True), ("gh200", "0", False)],
)
def test_access_counters_follow_the_driver(
    cuda: Cudart, tmp_path: Path, platform: str, value: str, expected: bool
) -> None:
    cuda.become(platform)
    assert optimize.memory_capabilities().access_counters is None
    parameter(tmp_path, "uvm_perf_access_counter_migration_enable", value)
    assert optimize.memory_capabilities().access_counters is expected


def test_the_loaded_runtime_is_asked_first(cuda: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = platform_memory.runtime_libraries()
    assert str(cuda.path) in found, "this process has loaded it"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert platform_memory.runtime_libraries()[-1] == "libcudart.so.12"


# The C allocator


@pytest.mark.parametrize(
    ("kind", "prefer", "expected"),
    [
        (
            "managed",
            "gpu",
            ["managed 4096 flags 1 on 1", "advise v2 4096 3 at 1:1", "advise v2 4096 5 at 2:0"],
        ),
        (
            "managed",
            "cpu",
            ["managed 4096 flags 1 on 1", "advise v2 4096 3 at 2:0", "advise v2 4096 5 at 1:1"],
        ),
        ("system", "gpu", ["advise v2 4096 3 at 1:1", "advise v2 4096 5 at 2:0"]),
        ("system", "cpu", ["advise v2 4096 3 at 2:0", "advise v2 4096 5 at 1:1"]),
        ("device", "gpu", ["malloc 4096 flags 0 on 1"]),
    ],
)
def test_memory_is_taken_then_its_home_is_advised_then_who_reaches_it(
    cuda: Cudart, allocator: Allocator, kind: str, prefer: str, expected: list[str]
) -> None:
    address = allocator.allocate(kind, prefer, 4096, device=1)
    assert address is not None and cuda.calls() == expected
    ctypes.memset(address, 7, 4096)
    allocator.free(kind, prefer, address, 4096, device=1)
    # free() does not wait for kernels, as cudaFree does.
    assert cuda.calls() == (["synchronize"] if kind == "system" else ["free"])
    now = allocator.usage(kind, prefer, 1)
    assert (now.bytes_now, now.most_bytes, now.allocations, now.releases) == (0, 4096, 1, 1)
    assert allocator.usage(kind, prefer, 0).allocations == 0, "counted on its own GPU"


@pytest.mark.parametrize(
    ("version", "advice", "prefetches"),
    [
        (11080, ["old 4096 3 at 0:0", "old 4096 5 at 0:-1"], ["old 64 to 0:1", "old 64 to 0:-1"]),
        (12010, ["old 4096 3 at 0:0", "old 4096 5 at 0:-1"], ["old 64 to 0:1", "old 64 to 0:-1"]),
        (12020, ["v2 4096 3 at 1:0", "v2 4096 5 at 2:0"], ["v2 64 to 1:1", "v2 64 to 2:0"]),
        (13000, ["13 4096 3 at 1:0", "13 4096 5 at 2:0"], ["13 64 to 1:1", "13 64 to 2:0"]),
    ],
)
def test_places_are_numbers_or_structs_as_this_cuda_takes_them(
    tmp_path: Path, cache: Path, version: int, advice: list[str], prefetches: list[str]
) -> None:
    cuda = Cudart(tmp_path, version)
    allocator = managed_allocator.opened(str(cuda.path))
    assert allocator.takes_location is (version >= 12020)
    address = allocator.allocate("managed", "gpu", 4096, 0)
    assert address is not None
    assert cuda.calls()[1:] == [f"advise {each}" for each in advice]
    assert allocator.prefetch(address, 64, 1, 0xABC) == 0
    assert allocator.prefetch(address, 64, -1, 0xABC) == 0
    assert cuda.calls() == [f"prefetch {each} flags 0 stream 0xabc" for each in prefetches]


def test_no_memory_is_null_and_leaves_no_error_behind(cuda: Cudart, allocator: Allocator) -> None:
    cuda.library.fake_left(5000)
    assert allocator.allocate("managed", "gpu", 4096, 0) is not None
    assert allocator.allocate("managed", "gpu", 4096, 0) is None
    now = allocator.usage("managed", "gpu", 0)
    assert (now.failures, now.last_failure, now.bytes_now, now.allocations) == (1, 2, 4096, 1)
    assert cuda.library.fake_error() == 0
    assert cuda.calls()[-1] == "managed 4096 flags 1 on 0", "no advice for what is not there"
    for odd in (0, -1):
        assert allocator.allocate("managed", "gpu", odd, 0) is None
    assert (
        allocator.allocate("managed", "gpu", 8, 64) is None
        and allocator.allocate("device", "gpu", 8, -1) is None
    )
    allocator.free("managed", "gpu", 0, 4096, 0)
    assert allocator.usage("managed", "gpu", 0).releases == 0
    with pytest.raises(Refused, match="GPU 64 is beyond"):
        allocator.usage("managed", "gpu", 64)


def test_refused_advice_is_counted_and_the_memory_is_good_all_the_same(
    cuda: Cudart, allocator: Allocator
) -> None:
    cuda.library.fake_refuse(801, 0)
    assert allocator.allocate("managed", "gpu", 4096, 0) is not None
    now = allocator.usage("managed", "gpu", 0)
    assert (now.allocations, now.refused_advice, now.last_failure) == (1, 1, 801)
    assert cuda.library.fake_error() == 0


def test_the_current_gpu_is_put_back(cuda: Cudart, allocator: Allocator) -> None:
    current = ctypes.c_int(5)
    allocator.allocate("device", "gpu", 64, 1)
    cuda.library.cudaGetDevice(ctypes.byref(current))
    assert current.value == 0 and cuda.library.fake_set_devices() == 2
    allocator.allocate("device", "gpu", 64, 0)
    assert cuda.library.fake_set_devices() == 2, "nothing to set where it is current already"


def test_threads_do_not_lose_a_byte(cuda: Cudart, allocator: Allocator) -> None:
    threads, rounds = 4, 100_000
    library: Any = ctypes.CDLL(str(allocator.path))
    take, give = (ctypes.cast(library[name], ctypes.c_void_p) for name in allocator.names("managed", "gpu"))
    cuda.library.fake_hammer(take, give, threads, rounds)
    now = allocator.usage("managed", "gpu", 0)
    assert (now.allocations, now.releases, now.bytes_now) == (threads * rounds, threads * rounds, 0)
    assert 64 <= now.most_bytes <= threads * 70


def test_the_peak_can_be_started_anew(allocator: Allocator) -> None:
    first = allocator.allocate("managed", "gpu", 300, 0)
    second = allocator.allocate("managed", "gpu", 50, 0)
    assert first is not None and second is not None
    allocator.free("managed", "gpu", first, 300, 0)
    assert allocator.usage("managed", "gpu", 0).most_bytes == 350
    allocator.forget_peak("managed", "gpu", 0)
    assert allocator.usage("managed", "gpu", 0).most_bytes == 50


def test_it_is_compiled_once_into_a_folder_of_the_user(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = managed_allocator.built()
    assert library.parent == tmp_path / "lostflops" and library.name == built.name
    assert library.parent.stat().st_mode & 0o077 == 0
    assert [each.name for each in library.parent.iterdir()] == [library.name], "nothing half-made lies about"
    monkeypatch.setattr(subprocess, "run", lambda *words, **how: pytest.fail("compiled again"))
    assert managed_allocator.built() == library


def test_a_folder_that_others_can_write_to_is_not_loaded_from(cache: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(Refused, match="can be written by others"):
        managed_allocator.built()


def test_without_a_compiler_or_with_a_broken_one_it_is_refused_in_words(
    cuda: Cudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Refused, match="needs a C compiler"):
        managed_allocator.built()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(Refused, match="broken: no such header"):
        managed_allocator.built()


def test_a_library_without_the_functions_is_refused(cuda: Cudart) -> None:
    with pytest.raises(Refused, match="it has no cudaMallocManaged"):
        managed_allocator.opened("libc.so.6")
    managed_allocator.opened(str(cuda.path))  # and another may be tried


def test_failures_can_be_said_aloud(cuda: Cudart, tmp_path: Path) -> None:
    told = f"""
import ctypes
from lostflops.optimize.unified import managed_allocator
allocator = managed_allocator.opened({str(cuda.path)!r})
library = ctypes.CDLL({str(cuda.path)!r})
library.fake_left.argtypes = [ctypes.c_size_t]
library.fake_left(10)
allocator.allocate("managed", "gpu", 77, 0)
allocator.say_failures()
allocator.allocate("managed", "gpu", 99, 1)
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stderr == "lostflops: no unified memory for 99 bytes on GPU 1 (CUDA error 2)\n"


# torch's side


class Dangling(RuntimeError):
    pass


class Plugged:
    """torch's CUDAPluggableAllocator, whose functions are called for real, as long as it lives."""

    def __init__(self, path: str, alloc: str, free: str) -> None:
        library: Any = ctypes.CDLL(path)
        self.alloc, self.free = library[alloc], library[free]
        self.alloc.restype = ctypes.c_void_p
        self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self) -> Plugged:
        return self


class Pool:
    """torch's MemPool: segments that it caches, and no more than a bare pointer to its allocator."""

    def __init__(self, allocator: Plugged) -> None:
        self.pointer = weakref.ref(allocator)
        self.segments: dict[int, int] = {}
        self.device = FakeTorch.current

    def call(self) -> Plugged:
        found = self.pointer()
        if found is None:
            raise Dangling("a function of an allocator that is gone")
        return found

    def take(self, nbytes: int) -> int:
        address = self.call().alloc(nbytes, self.device, None)
        if not address:
            raise torch.OutOfMemoryError(f"tried to allocate {nbytes}")
        self.segments[address] = nbytes
        return address

    def give_back(self, address: int) -> None:
        self.call().free(address, self.segments.pop(address), self.device, None)

    def snapshot(self) -> list[dict[str, int]]:
        return [{"allocated_size": n, "active_size": n} for n in self.segments.values()]


class FakeTorch:
    """What of torch.cuda `managed` uses, per thread where torch is per thread."""

    current = 0

    def __init__(self) -> None:
        self.inside = threading.local()
        self.changed: Any = None
        self.initialized = False

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, FakeTorch.current = FakeTorch.current, index
        yield
        FakeTorch.current = before

    @contextlib.contextmanager
    def use_mem_pool(self, pool: Pool, device: int) -> Iterator[None]:
        assert device == pool.device
        self.inside.pool = pool
        try:
            yield
        finally:
            self.inside.pool = None

    def allocate(self, nbytes: int) -> int | None:
        """As a tensor would; None when it went to ordinary memory."""
        pool = getattr(self.inside, "pool", None)
        return pool.take(nbytes) if pool else None


@pytest.fixture
def fake(cuda: Cudart, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    found = FakeTorch()
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", found.use_mem_pool)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: found.initialized)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=80 * MIB)
    )
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Plugged)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", lambda a: setattr(found, "changed", a))
    monkeypatch.setattr(subject, "_left", [])
    yield found
    FakeTorch.current = 0


def test_what_is_allocated_inside_is_managed_and_counted(cuda: Cudart, fake: FakeTorch) -> None:
    with optimize.managed(device=1) as memory:
        first, second = fake.allocate(60 * MIB), fake.allocate(40 * MIB)
        assert first is not None and second is not None
        fake.inside.pool.give_back(first)
        third = fake.allocate(20 * MIB)
    assert fake.allocate(MIB) is None and third is not None
    report = memory.report()
    assert (report.bytes_now, report.most_bytes, report.allocations) == (60 * MIB, 100 * MIB, 3)
    assert report.oversubscription == pytest.approx(1.25) and report.excess_bytes == 20 * MIB
    text = str(report)
    assert "60 MiB now, 100 MiB at most, 1.25 times the GPU's 80 MiB" in text
    assert (
        "Kineto (torch.profiler) records no unified-memory activity" in text
        and "nsys profile --cuda-um" in text
    )
    assert json.loads(json.dumps(report.record()))["excess_bytes"] == 20 * MIB
    calls = [each for each in cuda.calls() if each.startswith("managed")]
    assert calls == [f"managed {n * MIB} flags 1 on 1" for n in (2, 60, 40, 20)], "2 MiB tried it out"


def test_a_second_context_counts_anew(fake: FakeTorch) -> None:
    with optimize.managed() as first:
        fake.allocate(9 * MIB)
    with optimize.managed() as second:
        fake.allocate(5 * MIB)
        fake.allocate(3 * MIB)
    assert (first.report().allocations, second.report().allocations) == (1, 2)
    assert (first.report().most_bytes, second.report().most_bytes) == (9 * MIB, 17 * MIB)


def test_the_backwards_allocations_are_not_missed(fake: FakeTorch) -> None:
    # autograd's own threads do not see a pool of the calling thread: torch.cuda.use_mem_pool says so.
    ran_on: list[tuple[int, bool]] = []

    class Grows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            ran_on.append((threading.get_ident(), fake.allocate(MIB) is not None))
            return gradient * 2

    assert torch.autograd.is_multithreading_enabled()
    with optimize.managed():
        assert not torch.autograd.is_multithreading_enabled()
        Grows.apply(torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.autograd.is_multithreading_enabled()
    assert ran_on == [(threading.get_ident(), True)]


def test_memory_outlives_its_context_and_the_allocator_its_memory(fake: FakeTorch) -> None:
    """pytorch#188170: callbacks that were freed before the tensors of their pool."""

    def naive() -> tuple[Pool, int]:
        allocator = managed_allocator.opened(subject.runtime_libraries()[0])
        pool = Pool(Plugged(str(allocator.path), *allocator.names("managed", "gpu")).allocator())
        return pool, 0

    pool, address = naive()
    gc.collect()
    with pytest.raises(Dangling):
        pool.take(64)

    with optimize.managed():
        address = fake.allocate(64)
        pool = fake.inside.pool
    alive = weakref.ref(pool)
    assert address is not None
    del pool
    gc.collect()
    assert optimize.release_managed() == 1, "a tensor of it lives"
    found = alive()
    assert found is not None
    found.give_back(address)
    del found
    assert optimize.release_managed() == 0
    gc.collect()
    assert alive() is None, "and now its segments are given back"


def test_the_allocator_survives_the_end_of_the_interpreter(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_allocators", {})
    with optimize.managed():
        fake.allocate(64)
        pool = fake.inside.pool
    subject._allocators.clear()  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    assert pool.call(), "the module that knew it is cleared at exit, before the pools are"


def test_an_exception_leaves_no_trace_but_the_memory(fake: FakeTorch) -> None:
    with pytest.raises(KeyError), optimize.managed():
        fake.allocate(64)
        raise KeyError
    assert torch.autograd.is_multithreading_enabled() and fake.allocate(1) is None
    assert FakeTorch.current == 0 and optimize.release_managed() == 1
    with optimize.managed():  # and it can be entered again
        fake.allocate(64)


def test_by_call_it_is_applied_undone_once_and_reported_on_afterwards(cuda: Cudart, fake: FakeTorch) -> None:
    memory = optimize.managed()
    assert fake.allocate(MIB) is None, "not in force before it is applied"
    assert memory.apply() is memory.apply() is memory
    kept = fake.allocate(7 * MIB)
    memory.undo()
    assert kept is not None and fake.allocate(MIB) is None
    said = memory.report()
    assert (said.allocations, said.bytes_now) == (1, 7 * MIB)
    memory.undo()
    assert memory.report() == said
    with pytest.raises(Refused, match="has been undone"):
        memory.apply()


def test_what_was_never_applied_is_undone_without_harm(cuda: Cudart, fake: FakeTorch) -> None:
    memory = optimize.managed()
    memory.undo()
    assert memory.report().allocations == 0
    with memory:
        fake.allocate(64)
    with pytest.raises(Refused, match="cannot be undone"):
        optimize.use_managed_everywhere().undo()


def test_a_context_in_which_nothing_was_allocated_is_an_error(fake: FakeTorch) -> None:
    with pytest.raises(Refused, match="nothing was allocated inside"), optimize.managed():
        worker = threading.Thread(target=lambda: fake.allocate(MIB))  # another thread's goes elsewhere
        worker.start()
        worker.join()


def test_a_context_inside_another_is_refused(fake: FakeTorch) -> None:
    with optimize.managed():
        fake.allocate(64)
        with pytest.raises(Refused, match="inside another"), optimize.managed(prefer="cpu"):
            pass
        fake.allocate(64)
        found: list[str] = []

        def work() -> None:
            with optimize.managed(prefer="cpu") as memory:
                fake.allocate(33)
                found.append(memory.report().prefer)

        other = threading.Thread(target=work)
        other.start()
        other.join()
        assert found == ["cpu"], "another thread may"


def test_out_of_memory_is_torchs_error(cuda: Cudart, fake: FakeTorch) -> None:
    with optimize.managed() as memory:
        fake.allocate(64)
        cuda.library.fake_left(MIB)
        with pytest.raises(torch.OutOfMemoryError):
            fake.allocate(2 * MIB)
    assert memory.report().failures == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "host"}, "no kind of memory 'host'"),
        ({"prefer": "disk"}, "cannot prefer 'disk'"),
        ({"kind": "device", "prefer": "cpu"}, "lies on the GPU"),
        ({"kind": "system"}, "does not reach memory of malloc"),
        ({"device": 2}, "there is no GPU 2"),
    ],
)
def test_what_cannot_be_done_is_refused(fake: FakeTorch, given: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said), optimize.managed(**given):
        pass
    with pytest.raises(Refused, match=said):
        optimize.use_managed_everywhere(**given)


def test_a_refusal_names_the_kind_that_would_do(cuda: Cudart, fake: FakeTorch) -> None:
    with pytest.raises(Refused, match="use kind='managed'"), optimize.managed(kind="system"):
        pass
    cuda.library.fake_attribute(MANAGED, 0)
    with pytest.raises(Refused, match="use kind='device'"), optimize.managed():
        pass


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("expandable_segments:True", "expandable segments exclude"),
        ("max_split_size_mb:64, expandable_segments : true", "expandable segments exclude"),
        ("backend:cudaMallocAsync", "own caching allocator"),
        ("expandable_segments:False,backend:native", None),
    ],
)
def test_settings_that_exclude_it_are_refused(
    fake: FakeTorch, monkeypatch: pytest.MonkeyPatch, name: str, settings: str, said: str | None
) -> None:
    monkeypatch.setenv(name, settings)
    if said is None:
        with optimize.managed():
            fake.allocate(64)
        return
    with pytest.raises(Refused, match=said), optimize.managed():
        pass


def test_a_platform_that_takes_no_advice_is_refused_before_anything_is_moved(
    cuda: Cudart, fake: FakeTorch
) -> None:
    cuda.library.fake_refuse(101, 0)
    with pytest.raises(Refused, match="does not take the advice to prefer the GPU"), optimize.managed():
        pass
    cuda.library.fake_refuse(0, 0)
    cuda.library.fake_left(MIB)
    with pytest.raises(Refused, match="gives no managed memory, not even 2 MiB"), optimize.managed():
        pass
    assert cuda.library.fake_live() == 0


def test_advice_refused_later_is_in_the_report(cuda: Cudart, fake: FakeTorch) -> None:
    with optimize.managed() as memory:
        cuda.library.fake_refuse(801, 0)
        fake.allocate(64)
    assert memory.report().refused_advice == 1
    assert "refused advice on 1 segments (error 801)" in str(memory.report())


def test_the_whole_process_can_be_changed_before_torch_used_the_gpu(cuda: Cudart, fake: FakeTorch) -> None:
    memory = optimize.use_managed_everywhere(prefer="cpu")
    address = fake.changed.alloc(3 * MIB, 0, None)
    assert memory.report().bytes_now == 3 * MIB and address
    fake.initialized = True
    with pytest.raises(Refused, match="has used the GPU already"):
        optimize.use_managed_everywhere()


# Prefetch and advice


class Stream:
    cuda_stream = 0x51


@pytest.fixture
def streams(fake: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or Stream())
    return asked


def test_a_view_is_fetched_from_its_first_to_its_last_element(cuda: Cudart, streams: list[Any]) -> None:
    whole = torch.zeros(10, 6)
    optimize.prefetch(whole[2:5, 1:3], "cuda:1")
    optimize.prefetch(whole, "cpu")
    optimize.prefetch(whole.t(), 0)
    optimize.prefetch(whole[0].expand(4, 6), torch.device("cuda"))
    assert cuda.calls() == [
        f"prefetch v2 {n} to {place} flags 0 stream 0x51"
        for n, place in ((4 * 14, "1:1"), (240, "2:0"), (240, "1:0"), (24, "1:1"))
    ]
    assert streams == [torch.device("cuda", 1), None, torch.device("cuda", 0), torch.device("cuda", 1)]


def test_advice_is_passed_on_by_name(cuda: Cudart, streams: list[Any]) -> None:
    tensor = torch.zeros(10)
    for advice in ("read_mostly", "preferred_location", "unset_accessed_by"):
        optimize.advise(tensor, advice, 1)
    optimize.advise(tensor, "accessed_by")
    assert cuda.calls() == [f"advise v2 40 {n} at {place}" for n, place in
                            ((1, "1:1"), (3, "1:1"), (6, "1:1"), (5, "2:0"))]  # fmt: skip


def test_other_memory_and_other_words_are_refused(cuda: Cudart, streams: list[Any]) -> None:
    tensor = torch.zeros(10)
    with pytest.raises(Refused, match="no advice 'mostly_read'"):
        optimize.advise(tensor, "mostly_read")
    with pytest.raises(Refused, match="no pages"):
        optimize.prefetch(torch.zeros(0), "cpu")
    with pytest.raises(Refused, match="cannot lie on meta"):
        optimize.prefetch(tensor, "meta")
    cuda.library.fake_refuse(1, 1)
    with pytest.raises(Refused, match=r"error 1: 40 B on cpu cannot be moved\nHint: only unified memory"):
        optimize.prefetch(tensor, "cuda:0")
    with pytest.raises(Refused, match="cannot be advised"):
        optimize.advise(tensor, "read_mostly", 0)
    assert cuda.library.fake_error() == 0


# What it would cost

CARD = {
    way: {"pinned": {"launch_ns": 9000, "bytes_per_second": rate}}
    for way, rate in (("device_to_host", 50e9), ("host_to_device", 55e9))
}


def test_migrations_cost_the_excess_at_the_migration_rate_twice_when_written() -> None:
    found = optimize.managed_prediction("3 GB", 12e9, written_to=False)
    assert (found["migration_ns"], found["migrated_bytes"]) == (250_000_000, 3_000_000_000)
    found = optimize.managed_prediction("3 GB", 12e9, step_ns=4_500_000_000)
    assert found["migration_ns"] == 500_000_000 and found["share_of_step"] == pytest.approx(0.1)
    assert found["worth_it"] is False and found["status"] == "predicted"
    assert optimize.managed_prediction("3 GB", 12e9, step_ns=25_000_000_000)["worth_it"] is True
    assert optimize.managed_prediction(0, 12e9, step_ns=0)["share_of_step"] == 0


def test_a_card_without_a_measured_migration_is_not_taken_at_link_rate() -> None:
    found = optimize.managed_prediction("1 GB", CARD)
    assert found["bytes_per_second"] == 10e9 and found["rate_is"].startswith("assumed")
    measured = CARD | {"host_to_device": CARD["host_to_device"] | {"managed": {"launch_ns": None,
                                                                  "bytes_per_second": 7e9}}}  # fmt: skip
    found = optimize.managed_prediction("1 GB", measured)
    assert found["bytes_per_second"] == 7e9 and found["rate_is"] == "measured"
    for odd in ({}, 0.0, -1.0):
        with pytest.raises(Refused):
            optimize.managed_prediction("1 GB", odd)


def test_the_documentation_shows_what_is_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "optimize/unified-memory.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted == 5 and found.failed == 0
