"""What ranks wait for belongs to its cause, and a harmless cause takes nothing from the schedule."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.finding import Finding
from lostflops.lab.simulate.instructions import (
    COMPUTE,
    Busy,
    Close,
    HostCopy,
    Instruction,
    Open,
    Synchronise,
)
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from made_runs import Job, Work, made

MS = 1_000_000
# The host reads one value from the device.
READ: tuple[Instruction, ...] = (
    Open("cpu_op", "aten::item"),
    HostCopy("DtoH", "Pinned", 4, 2_000),
    Synchronise("cudaStreamSynchronize", COMPUTE, 2_000),
    Close(),
)


def collects(ns: int) -> tuple[Instruction, ...]:
    return (Busy(ns, (("user_annotation", "gc.collect"),)),)


def job(text: str, ranks: int, **more: Any) -> SimulatedJob:
    spread = strategy(text, ranks)
    chunks = spread.pipeline * spread.chunks
    layers = chunks if chunks > 1 else 4
    return SimulatedJob(spread, **{"seed": 77, "steps": 3, "warmup": 1, "layers": layers, **more})


TRUTHS: dict[str, dict[str, Any]] = {}


def truth(simulated: SimulatedJob) -> dict[str, Any]:
    """What is known of a job whose page nobody asks for: several tests need that of the same job."""
    if repr(simulated) not in TRUTHS:
        with tempfile.TemporaryDirectory() as folder:
            TRUTHS[repr(simulated)] = simulate(simulated, Path(folder))
    return TRUTHS[repr(simulated)]


def why(folder: Path, simulated: SimulatedJob) -> tuple[tuple[Finding, ...], float]:
    """The findings of the job's page, and how much longer its step is than without what was planted."""
    healthy = replace(simulated, planted=(), reads_per_layer=0, slow_links={})
    known = simulate(simulated, folder / "job")
    cost = known["step"] - (truth(healthy)["step"] if healthy != simulated else 0)
    return lostflops.why(folder / "job").findings, cost


def test_turns_that_readings_lengthen_are_the_readings_loss(tmp_path: Path) -> None:
    findings, cost = why(tmp_path, job("pp4-m8", 4, tokens=1024, layers=16, reads_per_layer=25))
    first, bubble = findings[:2]
    assert first.name == "host-waits-for-device" and "The GPU loses" in first.claim
    assert 0.8 * cost < first.size < 1.2 * cost <= first.ns_per_step
    assert any("waiting for other ranks" in fact for fact in first.evidence)
    bare = truth(job("pp4-m8", 4, tokens=1024, layers=16))
    waits = sum(bare["steps"]["wait"]) / len(bare["steps"]["wait"])
    assert bubble.name == "pipeline-bubble" and abs(bubble.size - waits) < 0.1 * waits


@pytest.mark.parametrize(
    "planted",
    [
        Planted("closing", READ),
        Planted("forward", READ * 3),
        Planted("forward", READ * 3, every=3),
        Planted("closing", READ * 20, ranks=frozenset({2})),
    ],
    ids=["one at the end", "three before the forward pass", "every third step", "on one rank, at the end"],
)
def test_harmless_readings_take_nothing_from_the_schedules_bubble(tmp_path: Path, planted: Planted) -> None:
    findings, _ = why(tmp_path, job("pp4-m8", 4, planted=(planted,)))
    assert findings[0].name == "pipeline-bubble"
    bare = truth(job("pp4-m8", 4))
    waits = sum(bare["steps"]["wait"]) / len(bare["steps"]["wait"])
    assert abs(findings[0].size - waits) < 0.03 * waits


def test_ranks_that_collect_garbage_in_turn_show_what_all_lose(tmp_path: Path) -> None:
    planted = tuple(
        Planted("closing", collects(30 * MS), frozenset({rank}), every=3, first=rank % 3) for rank in range(4)
    )
    findings, cost = why(tmp_path, job("ddp", 4, steps=6, planted=planted))
    first = findings[0]
    assert first.name == "garbage-collection-inside-step"
    assert abs(first.size - cost) < 0.15 * cost
    assert not any(f.name in ("communication-waits", "rank-arrives-last") for f in findings)


def test_a_pause_of_one_stage_is_its_ranks(tmp_path: Path) -> None:
    planted = Planted("closing", collects(60 * MS), frozenset({1}))
    findings, cost = why(tmp_path, job("pp4-m8", 4, planted=(planted,)))
    assert findings[0].rank == 1 and "garbage collection" in findings[0].claim
    assert abs(findings[0].size - cost) < 0.25 * cost


def test_gathers_that_readings_hold_back_are_the_readings_loss(tmp_path: Path) -> None:
    findings, cost = why(tmp_path, job("fsdp2", 4, tokens=1024, layers=8, reads_per_layer=25))
    first = findings[0]
    assert first.name == "host-waits-for-device"
    assert abs(first.size - cost) < 0.2 * cost
    assert any("issued them late" in fact for fact in first.evidence)


@pytest.mark.parametrize("text", ["fsdp2", "zero1", "zero3"])
def test_a_reading_before_the_optimizer_holds_no_gather_back(tmp_path: Path, text: str) -> None:
    # What ZeRO gathers after the step is what the optimizer wrote: it could not have come earlier.
    read = Planted("backward", READ)
    findings, _ = why(tmp_path, job(text, 4, tokens=1024, layers=8, planted=(read, Planted("closing", READ))))
    assert not any("issued them late" in fact for f in findings for fact in f.evidence)


@pytest.mark.parametrize(("text", "ranks", "slow"), [("pp4-m8", 4, 1), ("pp4-m8", 4, 3), ("tp2-dp4", 8, 5)])
def test_a_slow_link_is_told_before_what_it_lengthens(
    tmp_path: Path, text: str, ranks: int, slow: int
) -> None:
    findings, cost = why(tmp_path, job(text, ranks, slow_links={slow: 15.0}))
    first = findings[0]
    assert first.name == "slow-link" and first.rank == slow
    assert f"with rank {slow} " in first.claim
    assert first.ns_per_step > cost  # it says at most


@pytest.mark.parametrize("text", ["pp4-m8", "pp2-dp2-gpipe-m6", "pp2-dp2-zb-m4"])
def test_what_stages_wait_for_a_slow_link_is_the_links_and_the_rest_the_schedules(
    tmp_path: Path, text: str
) -> None:
    slow = job(text, 4, slow_links={1: 15.0})
    findings, cost = why(tmp_path / "slow", slow)
    healthy, _ = why(tmp_path / "healthy", replace(slow, slow_links={}))
    costs = {f.name: f.size for f in findings}
    assert [*costs] == ["slow-link", "pipeline-bubble"] or [*costs] == ["pipeline-bubble", "slow-link"]
    assert costs["slow-link"] == pytest.approx(cost, rel=0.05)
    assert costs["pipeline-bubble"] == pytest.approx(healthy[0].size, rel=0.05)
    assert not any("A faster network does not help" in f.next for f in findings)


@pytest.mark.parametrize(("text", "ranks"), [("pp4-dp4-m6", 16), ("tp2-dp8", 16), ("pp4-dp2-zb-m8", 8)])
def test_ranks_on_other_nodes_have_no_slow_link(tmp_path: Path, text: str, ranks: int) -> None:
    findings, _ = why(tmp_path, job(text, ranks))
    assert not any(f.name == "slow-link" for f in findings)


def test_a_file_that_was_cut_is_in_no_mean(tmp_path: Path) -> None:
    simulate(job("ddp", 4, cut={2: 0.6}), tmp_path / "job")
    page = lostflops.why(lostflops.open(tmp_path / "job", salvage=True))
    assert "The recording of rank 2 holds no whole step: it is in no mean." in page.notes
    assert page.budget is not None and page.budget.num_windows == 3 * 3
    assert [f.name for f in page.findings] == ["few-whole-steps"]


def test_missing_stages_make_a_bubble_that_may_be_transfer(tmp_path: Path) -> None:
    simulate(job("pp4-m8", 4, missing=frozenset({2})), tmp_path / "job")
    page = lostflops.why(lostflops.open(tmp_path / "job", allow_missing_ranks=True))
    first = page.findings[0]
    assert first.name == "pipeline-bubble" and "wait or transfer" in first.claim
    assert any("the other ends were not recorded" in fact for fact in first.evidence)
    assert not any(f.name == "communication-exposed" for f in page.findings)


@pytest.mark.parametrize(("each", "told"), [(250_000, True), (2 * MS, False)])
def test_more_workers_do_not_hand_a_batch_over_faster(tmp_path: Path, each: int, told: bool) -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    planted = Planted("input", (Busy(each, (("user_annotation", loader),)),))
    small = job("ddp", 1, tokens=256, layers=1, model="llama-3.2-1b", planted=(planted,))
    findings, _ = why(tmp_path, small)
    starved = next(f for f in findings if f.name == "data-loading-starves-device")
    assert ("handing over a batch" in starved.next) == told
    assert ("worker" in starved.next) and ("too slow" in starved.next) != told


def test_ranks_of_a_starved_node_are_named_with_their_remedy(tmp_path: Path) -> None:
    """Ranks 2 and 3 load 25 and 26 ms: none of them has more than the others have."""
    steps = [[Work(loads=0.1), Work(loads=0.1), Work(loads=25), Work(loads=26)]] * 4
    (first,) = lostflops.why(made(tmp_path, Job().run(steps))).findings
    assert first.next.startswith("On ranks 2 and 3: give the loader worker processes")
    assert first.evidence[0] == (
        "ranks 2 and 3 idle 25.5 ms per step for it, the others 100 µs; ranks wait 13.2 ms per step for them"
    )
    assert not any("more of it than the others" in fact for fact in first.evidence)


def test_waiting_for_pauses_in_turn_beside_a_slow_loader_is_not_passed_on_from_another_step(
    tmp_path: Path,
) -> None:
    """Each rank collects garbage in its turn, and rank 1 loads for 20 ms in every step: without the garbage
    steps take 62 ms and not 72.7. As both others wait for rank 1 in its turn, all that they wait for each
    other in theirs was passed on to it: "the others wait 22.7 ms for it", and garbage cost 8.00 ms."""
    steps = [
        [Work(collects=24 * (step % 3 == rank), loads=20 * (rank == 1)) for rank in range(3)]
        for step in range(6)
    ]
    late, garbage = lostflops.why(made(tmp_path, Job().run(steps))).findings
    assert late.rank == 1 and late.claim.endswith("20.0 ms of data loading; the others wait 20.0 ms for it.")
    assert garbage.claim == "The GPU loses 10.7 ms per step (14.7 %) while Python collects garbage."
