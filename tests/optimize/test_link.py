"""Link cards: the line through the times, devices of known speed, and the planner reading the cards."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_torch import python_with_gpus
from lostflops import cli, optimize
from lostflops.copies import link_card
from lostflops.errors import BadCard
from lostflops.machine.bench import fit, links, ranks
from lostflops.optimize import Refused, link
from lostflops.optimize.device import numa, pinned
from lostflops.optimize.device.devices import CudaDevice, ThreadedDevice
from lostflops.optimize.unified import migration
from lostflops.plan import hardware

torch.set_num_threads(1)
SIZES = (50_000, 200_000, 800_000)
MB = 1e6
LAUNCH = {"device_to_host": 2_000_000, "host_to_device": 3_000_000}  # ns
RATE = {"device_to_host": 100 * MB, "host_to_device": 40 * MB}
SHARED = 0.5  # of host to device, as long as the other direction runs
UNDER_GEMM = 0.7


class Timed(ThreadedDevice):
    """Its time is a number: a copy takes LAUNCH and bytes / RATE, by direction, and 2 % more or less.

    Host to device is slower as long as the other direction runs, and both are under matrix products. What is
    queued gets its times when somebody waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_device: list[torch.Tensor] = []
        self.queued: dict[str, list[tuple[int, Mark]]] = {way: [] for way in link_card.DIRECTIONS}
        self.now = 0.0
        self.noise = random.Random(5)

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.on_device.append(super().allocate(nbytes))
        return self.on_device[-1]

    def new_stream(self) -> Any:
        return Lane()

    def way(self, source: torch.Tensor) -> str:
        from_device = any(each.data_ptr() == source.data_ptr() for each in self.on_device)
        return link_card.DIRECTIONS[0] if from_device else link_card.DIRECTIONS[1]

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        target.copy_(source)
        stream.last = Mark()
        self.queued[self.way(source)].append((len(source), stream.last))

    def record(self, stream: Any) -> Any:
        return Mark(self.now, compute=True) if stream is None else stream.last

    def wait(self, stream: Any, event: Any) -> None:
        pass

    def is_done(self, event: Any) -> bool:
        return event.at is not None

    def elapsed(self, start: Any, end: Any) -> int:
        return round(end.at - start.at)

    def synchronize(self, event: Any) -> None:
        slower = UNDER_GEMM if event.compute else 1.0
        ends = [self.now]
        for way, rows in self.queued.items():  # device to host first: nothing slows it
            at = self.now
            for nbytes, mark in rows:
                at += LAUNCH[way] * self.noise.uniform(0.98, 1.02)
                rate = RATE[way] * slower * self.noise.uniform(0.98, 1.02) / 1e9
                meanwhile = min(nbytes, max(0.0, max(ends) - at) * rate * SHARED)
                at += meanwhile / (rate * SHARED) + (nbytes - meanwhile) / rate
                mark.at = at
            rows.clear()
            ends.append(at)
        self.now = max(ends)


class Mark:
    def __init__(self, at: float | None = None, compute: bool = False) -> None:
        self.at, self.compute = at, compute


class Lane:
    last: Mark


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return optimize.measure_link(Timed(), SIZES, repeats=9)


@pytest.mark.parametrize("way", link_card.DIRECTIONS)
@pytest.mark.parametrize("kind", ["pinned", "pageable"])
def test_launch_and_rate_of_a_throttled_device_are_recovered(
    card: dict[str, Any], way: str, kind: str
) -> None:
    launch, per_second = link_card.rate(card, way, kind)
    assert per_second == pytest.approx(RATE[way], rel=0.05)
    assert launch == pytest.approx(LAUNCH[way], rel=0.05)
    found = card[way][kind]
    assert found["spread"] < 0.05
    assert found["half_size_bytes"] == pytest.approx(LAUNCH[way] * RATE[way] / 1e9, rel=0.1)
    assert [each["bytes"] for each in found["sizes"]] == list(SIZES)
    assert {each["repeats"] for each in found["sizes"]} == {9}


def test_both_directions_at_once_are_measured_while_both_run(card: dict[str, Any]) -> None:
    # The faster direction ends first; what the slower one did afterwards, alone, must not count.
    both = card["both_directions"]
    assert link_card.rate(both, "host_to_device")[1] == pytest.approx(20 * MB, rel=0.05)
    assert link_card.rate(both, "device_to_host")[1] == pytest.approx(100 * MB, rel=0.05)


def test_copies_are_timed_under_matrix_products_too(card: dict[str, Any]) -> None:
    for way in link_card.DIRECTIONS:
        assert link_card.rate(card["under_gemm"], way)[1] == pytest.approx(UNDER_GEMM * RATE[way], rel=0.05)


def test_copies_by_threads_are_timed_for_real() -> None:
    class Sleepy(ThreadedDevice):
        def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
            stream.put(lambda: (target.copy_(source), time.sleep(0.002 + len(source) / 100e6)))

    found = optimize.measure_link(Sleepy(), SIZES, 3, memory=("pinned",), under_gemm=False)
    for way in link_card.DIRECTIONS:
        launch, per_second = link_card.rate(found, way)
        # Sleeping takes at least as long as asked, on a busy machine longer. What of it is launch and what is
        # rate a busy machine may tell apart badly, so what both say of a copy is looked at.
        for size in (SIZES[0], SIZES[-1]):
            told, asked = launch / 1e9 + size / per_second, 0.002 + size / 100e6
            assert 0.95 * asked < told < 4 * asked, way
        assert 50e6 < per_second < 130e6


def test_a_card_says_what_was_measured_and_names_no_machine(card: dict[str, Any]) -> None:
    assert set(card) >= {"gpu", "host", "numa_node", "measured_on", "torch", "driver", "remarks"}
    assert card["kind"] == link.KIND and card["torch"] == torch.__version__
    assert card["measured_on"] == time.strftime("%Y-%m-%d", time.gmtime())
    assert os.uname().nodename not in json.dumps(card)
    text = link.described(card)
    assert (
        "pinned host to device: 0.04 GB/s" in text
        and "both ways at once" in text
        and "matrix products" in text
    )


def test_durations_count_only_while_the_other_direction_runs() -> None:
    # Ends at 10, 30, 50, 60, 70; the other direction ended at 52, and from then on copies took half.
    assert link.overlapping([10, 30, 50, 60, 70], 52) == [20, 20]
    assert link.overlapping([10, 90, 130], 52) == [80]
    naive = [b - a for a, b in zip([10, 30, 50, 60, 70], [30, 50, 60, 70], strict=False)]
    assert statistics.median(naive) == 15, "a plain median would have mixed them"


def test_a_card_goes_through_a_file_into_a_plan(
    card: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card))
    found = hardware.link(str(file))
    assert (found.out, found.into) == (
        card["device_to_host"]["pinned"]["bytes_per_second"],
        card["host_to_device"]["pinned"]["bytes_per_second"],
    )
    assert found.latency_ns == card["host_to_device"]["pinned"]["launch_ns"]
    assert found.migration == found.into / 5 and found.status.endswith("; migration assumed")
    words = ["plan", "train", "--model", "llama-3-8b", "--gpu", "h200", "--link", str(file), "--json", "-"]
    assert cli.main(words) == 0
    assert "measured on 2" in capsys.readouterr().out


def test_the_bench_writes_a_card_of_the_same_form_as_optimize(card: dict[str, Any], tmp_path: Path) -> None:
    wanted = links.settings((4096, 65536, 1 << 20), 3, tmp_path)
    lines = ranks.alone(python_with_gpus(tmp_path), "links.py", wanted)
    bench = links.slowest(links.link_cards(links.measured(lines), links.under_load(lines)))

    def form(value: Any, name: str = "") -> Any:
        if name in ("sizes", "by_node", "remarks"):
            return sorted(value[0]) if name == "sizes" else "list"
        return {key: form(each, key) for key, each in value.items()} if isinstance(value, dict) else "value"

    assert form(bench) == form(card)


def test_a_measured_migration_is_taken(card: dict[str, Any], tmp_path: Path) -> None:
    managed = card["host_to_device"]["pinned"] | {"bytes_per_second": 7e6}
    changed = card | {"host_to_device": card["host_to_device"] | {"managed": managed}}
    (tmp_path / "card.json").write_text(json.dumps(changed))
    found = hardware.link(str(tmp_path / "card.json"))
    assert found.migration == 7e6 and "assumed" not in found.status


@pytest.mark.parametrize(
    "change",
    [
        {"device_to_host": {}},
        {"host_to_device": {"pageable": {"bytes_per_second": 1e9}}},
        {"device_to_host": {"pinned": {"bytes_per_second": 0}}},
        {"device_to_host": {"pinned": {"bytes_per_second": "fast"}}},
        {"host_to_device": 5},
    ],
)
def test_a_card_without_pinned_rates_is_refused_by_planner_and_engine(
    card: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "card.json").write_text(json.dumps(card | change))
    with pytest.raises(BadCard):
        hardware.link(str(tmp_path / "card.json"))
    with pytest.raises(Refused):
        for way in link_card.DIRECTIONS:
            link_card.rate(card | change, way)


# The line


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 1 << 30), min_size=3, max_size=8, unique=True),
    st.lists(st.integers(1, 10**9), min_size=8, max_size=8),
)
def test_the_line_is_the_one_that_bench_links_fits(sizes: list[int], times: list[int]) -> None:
    rows = pl.DataFrame({"by": ["a"] * len(sizes), "bytes": sizes, "time": times[: len(sizes)]})
    ours = link_card.line(sizes, times[: len(sizes)])
    theirs = fit.fits(rows, ["by"]).to_dicts()
    assert (ours is None) == (not theirs)
    if ours is not None:
        assert ours["bytes_per_second"] == pytest.approx(theirs[0]["bandwidth"] * 1e9, rel=1e-6)
        assert ours["launch_ns"] == pytest.approx(theirs[0]["latency"], rel=1e-6, abs=2)
        assert ours["spread"] == pytest.approx(theirs[0]["spread"], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("sizes", "times"), [([1, 2, 4044], [2693] * 3), ([1, 2, 3], [39, 1, 39]), ([1, 2, 3], [7, 1, 7])]
)
def test_times_that_do_not_grow_are_no_line(sizes: list[int], times: list[int]) -> None:
    # Rounding made lines of 1e21 bytes per second of these.
    assert link_card.line(sizes, times) is None
    assert fit.fits(pl.DataFrame({"by": ["a"] * 3, "bytes": sizes, "time": times}), ["by"]).is_empty()


def test_a_line_is_found_through_six_decades() -> None:
    sizes = [4096 * 4**n for n in range(10)]
    found = link_card.line(sizes, [7_000 + n / 55 for n in sizes])
    assert found is not None
    assert found["launch_ns"] == 7000 and found["bytes_per_second"] == pytest.approx(55e9, rel=1e-9)
    # An unweighted line through a 3 % slower largest copy would say nothing of the launch.
    late = link_card.line(sizes, [*(7_000 + n / 55 for n in sizes[:-1]), 1.03 * (7000 + sizes[-1] / 55)])
    assert late is not None and late["launch_ns"] == pytest.approx(7000, rel=0.02)


def test_without_a_line_the_best_rate_stands_alone() -> None:
    assert link_card.line([1, 2], [1, 2]) is None
    assert link_card.line([1, 2, 4], [9, 5, 1]) is None
    flat = link._rate([100, 200, 400], [[50], [25], [20]])  # pyright: ignore[reportPrivateUsage]
    assert flat["launch_ns"] is None and flat["bytes_per_second"] == pytest.approx(20e9)


# Refusals


def test_a_device_whose_copies_do_nothing_is_refused() -> None:
    class Idle(ThreadedDevice):
        def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
            stream.put(lambda: None)

    with pytest.raises(Refused, match="left other bytes than it should"):
        optimize.measure_link(Idle(), SIZES, repeats=1)


class Lazy(Timed):
    """Leaves out the copies for which `skips` says so: told how many there were, and if others wait."""

    def __init__(self, skips: Callable[[str, int, bool], bool]) -> None:
        super().__init__()
        self.skips, self.copies = skips, 0

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        way = self.way(source)
        beside = any(rows for other, rows in self.queued.items() if other != way)
        skip = self.skips(way, self.copies, beside)
        self.copies += 1
        super().copy(target.clone() if skip else target, source, stream)


@pytest.mark.parametrize(
    ("skips", "said"),
    [
        (lambda way, copies, beside: way == "host_to_device", "host to device left other bytes"),
        (lambda way, copies, beside: way == "device_to_host", "device to host left other bytes"),
        # What an earlier copy left must not pass for this one's.
        (lambda way, copies, beside: copies > 3, "left other bytes"),
    ],
    ids=["one way", "the other", "after the first"],
)
def test_a_device_that_leaves_copies_out_is_refused(
    skips: Callable[[str, int, bool], bool], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        optimize.measure_link(Lazy(skips), SIZES, 1, memory=("pageable",))


def test_copies_both_ways_at_once_are_checked_too() -> None:
    naughty = Lazy(lambda way, copies, beside: way == "host_to_device" and beside)
    with pytest.raises(Refused, match="host to device left other bytes"):
        optimize.measure_link(naughty, SIZES, 3, memory=("pinned",))


def test_a_product_runs_already_when_the_first_copy_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    real = torch.mm

    class Told(Timed):
        def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
            told.append("copy")
            super().copy(target, source, stream)

        def synchronize(self, event: Any) -> None:
            told.append("wait")
            super().synchronize(event)

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        told.append("product")
        return real(a, b)

    monkeypatch.setattr(torch, "mm", mm)
    optimize.measure_link(Told(), SIZES, 1, memory=("pinned",))
    assert " ".join(told).count("product wait product copy copy product wait") == 2 * len(SIZES)


@pytest.mark.parametrize(
    "given",
    [
        {"sizes": (8, 16)},
        {"sizes": (0, 8, 16)},
        {"repeats": 0},
        {"memory": ("managed",)},
        {"memory": ("disk",)},
    ],
)
def test_what_makes_no_line_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        optimize.measure_link(ThreadedDevice(), **{"sizes": SIZES, **given})


def test_migration_is_timed_from_where_the_pages_are_not() -> None:
    class Played:
        """Pages move at 4 bytes per ns to the host and 10 to the GPU; the first migration is slow."""

        def __init__(self) -> None:
            self.at_host, self.cold = 0, True

        def send(self, nbytes: int, to_host: bool) -> None:
            self.at_host = nbytes if to_host else 0

        def touch(self, nbytes: int, on_host: bool) -> int:
            missing = nbytes - self.at_host if on_host else self.at_host
            self.at_host = nbytes if on_host else 0
            late, self.cold = (10**9 if self.cold else 0), False
            return late + 30_000 + missing // (4 if on_host else 10)

    sizes = (4096, 65536, 1 << 20)
    found = migration.migrations(Played(), sizes, 3)
    assert {way: len(times) for way, times in found.items()} == dict.fromkeys(link_card.DIRECTIONS, 3)
    assert found["device_to_host"][2] == [30_000 + (1 << 18)] * 3
    assert found["host_to_device"][0] == [30_000 + 409] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_and_without_a_device_it_is_refused() -> None:
    with pytest.raises(Refused, match="there is no GPU here"):
        optimize.measure_link()
    with pytest.raises(Refused, match="there is no GPU here for cuda:1"):
        optimize.measure_link("cuda:1")
    with pytest.raises(Refused, match="cpu is no GPU"):
        optimize.measure_link(torch.device("cpu"))


# Memory nodes


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """GPUs on node 1, node 0 and nowhere. Node 0 has CPUs that we may not use, node 1 the last of ours."""
    cpus = {0: "4000-4003", 1: str(max(os.sched_getaffinity(0))), 2: ""}
    for node, text in cpus.items():
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
    for slot, node in (("0000:17:00.0", 1), ("0000:ab:00.0", 0), ("0000:cd:00.0", -1)):
        folder = tmp_path / f"bus/pci/devices/{slot}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_a_gpus_memory_node_is_read_from_its_slot(two_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [numa.node_at(slot, two_nodes) for slot in ("0000:17:00.0", "0000:AB:00.0")] == [1, 0]
    assert numa.node_at("0000:cd:00.0", two_nodes) is None, "-1 is not a node"
    assert numa.node_at("0000:ee:00.0", two_nodes) is None
    about = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0x17, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert numa.node_of_gpu(0, two_nodes) == 1
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace())
    assert numa.node_of_gpu(0, two_nodes) is None, "an older torch does not tell the slot"
    assert numa.node_of_gpu(torch.device("cpu"), two_nodes) is None


def test_one_memory_node_is_no_choice(tmp_path: Path) -> None:
    folder = tmp_path / "devices/system/node/node0"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("0-3\n")
    slot = tmp_path / "bus/pci/devices/0000:17:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("0\n")
    assert numa.node_at("0000:17:00.0", tmp_path) is None
    assert numa.nodes(tmp_path) == {0: frozenset(range(4))}


def test_a_thread_runs_on_the_node_meanwhile_and_is_put_back(two_nodes: Path) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), numa.on_node(1, two_nodes) as moved:
        assert moved and os.sched_getaffinity(0) == {max(before)}
        raise KeyError
    assert os.sched_getaffinity(0) == before
    for node in (0, 2, 7, None):
        with numa.on_node(node, two_nodes) as moved:
            assert not moved and os.sched_getaffinity(0) == before


def test_torch_uses_one_thread_while_memory_is_placed(two_nodes: Path) -> None:
    torch.set_num_threads(3)
    try:
        with numa.on_node(1, two_nodes):
            assert torch.get_num_threads() == 1, "its others run on CPUs of any node"
        assert torch.get_num_threads() == 3
        with numa.on_node(None, two_nodes):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_a_gpus_host_memory_is_touched_on_its_node(two_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchtitan#3489: pinned memory on the other node."""
    near = {max(os.sched_getaffinity(0))}
    touched: list[set[int]] = []
    guarded: list[torch.device] = []
    real = pinned._touch

    def touch(part: torch.Tensor) -> None:
        touched.append(os.sched_getaffinity(0))
        real(part)

    def guard(device: torch.device) -> Any:
        guarded.append(device)
        return nullcontext()

    about = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0x17, pci_device_id=0, is_integrated=False)
    runtime = types.SimpleNamespace(cudaHostRegister=lambda *a: 0, cudaHostUnregister=lambda *a: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    known = numa.nodes(two_nodes)
    monkeypatch.setattr(numa, "nodes", lambda sysfs: known)
    monkeypatch.setattr(numa, "node_at", lambda slot, sysfs: {"0000:17:00.0": 1}[slot])
    device = CudaDevice(torch.device("cuda", 0))
    monkeypatch.setattr(pinned, "_touch", touch)
    monkeypatch.setattr(pinned, "AT_ONCE", 4096)
    monkeypatch.setattr(torch.cuda, "device", guard)
    assert device.host_memory(3 * 4096).numel() == 3 * 4096
    assert touched == [near] * 3
    assert guarded == [torch.device("cuda", 0)]  # another may be the current one
    assert os.sched_getaffinity(0) >= near


def test_memory_on_another_node_than_the_gpus_is_said(tmp_path: Path) -> None:
    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    at = tensor.data_ptr()
    maps = tmp_path / "numa_maps"
    maps.write_text(
        f"{at - 8192:x} default anon=2 dirty=2 N0=2 kernelpagesize_kB=4\n"
        f"{at - 64:x} default anon=256 dirty=256 N0=200 N1=56 kernelpagesize_kB=4\n"
        f"{at + (1 << 20):x} default file=/usr/lib/x N1=900 kernelpagesize_kB=4\n"
    )
    assert numa.pages(tensor, maps) == {0: 200, 1: 56}
    assert numa.elsewhere(tensor, 0, maps) is None
    said = numa.elsewhere(tensor, 1, maps)
    assert said is not None and "lies on memory node 0, the GPU hangs on node 1" in said
    assert "numactl --cpunodebind=1" in said
    assert numa.elsewhere(tensor, None, maps) is None
    assert numa.elsewhere(tensor, 1, tmp_path / "absent") is None, "unknown is not elsewhere"


def test_measuring_warns_of_memory_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "node_of_gpu", lambda device, sysfs: 1)
    monkeypatch.setattr(numa, "pages", lambda tensor, maps: {0: 9})
    with pytest.warns(UserWarning, match="lies on memory node 0"):
        found = optimize.measure_link(
            ThreadedDevice(), (64, 256, 1024), 1, memory=("pinned",), under_gemm=False
        )
    assert found["numa_node"] == 1 and "memory node 0" in found["remarks"][0]
    assert found["under_gemm"] is None and "pageable" not in found["host_to_device"]


def test_the_drivers_version_is_read_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert link._driver(file) == "580.95.05"  # pyright: ignore[reportPrivateUsage]
    assert link._driver(tmp_path / "absent") is None  # pyright: ignore[reportPrivateUsage]
