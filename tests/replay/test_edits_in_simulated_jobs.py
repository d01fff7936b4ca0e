"""Edits against the simulator, which runs the same job with the change made."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.test_simulated_truth import a_job
from lostflops.errors import BadOption, Refused
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.writing import simulate
from lostflops.replay.edits import edit
from lostflops.replay.timeline import replayed_run
from lostflops.replay.whatif import PredictedStep
from lostflops.session import Session

CLOSE = 0.02  # the issue asks for 0.05; the worst of these is off by 0.9 %
MIB = 1 << 20
SIZES: dict[str, Any] = {"layers": 4, "steps": 2, "sequence": 2048}


@pytest.fixture(scope="module", autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.mktemp("store")))
        yield


@cache
def _session(text: str, ranks: int, folder: Path, *knobs: tuple[str, Any]) -> Session:
    place = folder / f"{text}-{len(list(folder.iterdir()))}"
    simulate(_job(text, ranks, *knobs), place)
    return Session(ingest_job.open(place))


def _job(text: str, ranks: int, *knobs: tuple[str, Any]) -> SimulatedJob:
    return a_job(text, ranks, **(SIZES | dict(knobs)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def close(answer: PredictedStep, truth: float, within: float = CLOSE) -> None:
    assert answer.predicted_ns is not None, answer.refused
    assert answer.low_ns is not None and answer.high_ns is not None and answer.bound_ns is not None
    assert answer.predicted_ns == pytest.approx(truth, rel=within)
    assert answer.low_ns <= truth <= answer.high_ns
    assert answer.bound_ns <= answer.predicted_ns


@pytest.mark.parametrize(
    ("text", "asked", "then", "knobs"),
    [
        ("pp2-m4", "schedule=zb", "pp2-zb-m4", {}),
        ("pp2-m4", "schedule=interleaved-v2", "pp2-interleaved-v2-m4", {}),
        ("pp2-m4", "microbatches=8", "pp2-m8", {"tokens": 4096}),
        ("pp2-m4", "microbatches=2", "pp2-m2", {"tokens": 16384}),
        ("pp2-m4", "microbatches=8,schedule=zb", "pp2-zb-m8", {"tokens": 4096}),
        ("pp2-zb-m4", "schedule=1f1b", "pp2-m4", {}),
        ("pp2-interleaved-v2-m4", "schedule=gpipe", "pp2-gpipe-m4", {}),
    ],
)
def test_another_order_of_passes_takes_what_the_simulator_takes(
    text: str, asked: str, then: str, knobs: dict[str, Any], folder: Path
) -> None:
    answer = _session(text, 2, folder).replay().predicted([edit(one) for one in asked.split(",")])
    truth = simulate(_job(then, 2, *knobs.items()), folder / f"{text}-{asked}")
    close(answer, truth["step"])
    assert any("memory" in doubt for doubt in answer.doubts)


def test_another_order_goes_with_other_edits_and_names_what_it_cannot_do(folder: Path) -> None:
    session = _session("pp2-m4", 2, folder)
    found = session.replay()
    both = found.predicted([edit("faster:gemm=2"), edit("schedule=zb")])
    again = found.predicted([edit("schedule=zb"), edit("faster:gemm=2")])
    alone = found.predicted([edit("faster:gemm=2")])
    assert both.predicted_ns is not None and alone.predicted_ns is not None
    assert both.predicted_ns == again.predicted_ns < alone.predicted_ns
    assert "is the recorded schedule" in found.predicted([edit("schedule=1f1b")]).refused
    assert "have 4 microbatches" in found.predicted([edit("microbatches=4")]).refused
    dual = found.predicted([edit("schedule=dualpipe")])
    bubbles = found.predicted([edit("schedule=zb")])
    assert dual.predicted_ns is not None and bubbles.predicted_ns is not None and dual.bound_ns is not None
    assert dual.bound_ns <= dual.predicted_ns < bubbles.predicted_ns
    assert any("weights of two stages" in doubt for doubt in dual.doubts)
    twice = found.predicted([edit("schedule=zb"), edit("schedule=dualpipe")])
    assert twice.predicted_ns == dual.predicted_ns
    interleaved = _session("pp2-interleaved-v2-m4", 2, folder).replay()
    assert "whole groups" in interleaved.predicted([edit("microbatches=3")]).refused
    with pytest.raises(Refused, match="nothing says when each kernel would run"):
        replayed_run(found, [edit("schedule=zb")], session.trace, folder / "never")


@pytest.mark.parametrize("text", ["ddp", "tp2-dp2", "ep4"])
def test_another_network_takes_what_the_simulator_takes(text: str, folder: Path) -> None:
    """All ranks on nodes of their own, over links an eighth as fast as NVLink, then half as fast."""
    job = _job(text, 4)
    network = replace(job.network, node=1, near_start=8_000)
    slow = replace(job, given_network=replace(network, near=network.near / 8, far=network.near / 8))
    place = folder / f"network-{text}"
    simulate(slow, place)
    rate = round(network.near / 2)
    fast = replace(job, given_network=replace(network, near=rate, far=rate))
    truth = simulate(fast, folder / f"network-{text}-fast")["step"]
    found = Session(ingest_job.open(place)).replay()
    close(found.predicted([edit(f"network={rate}B/s")]), truth)
    own = found.predicted([edit(f"network={round(network.near / 8)}B/s")])
    assert own.predicted_ns == pytest.approx(found.trust.measured_ns, rel=0.02)


def test_gathers_a_layer_ahead_take_what_the_simulator_takes(folder: Path) -> None:
    job = _job("fsdp2", 2, ("overlap", False))
    network = replace(job.network, node=1)
    slow = replace(job, given_network=replace(network, near=network.near / 4, far=network.near / 4))
    place, then = folder / "gathered", folder / "prefetched"
    simulate(slow, place)
    truth = simulate(replace(slow, prefetches=True), then)["step"]
    found = Session(ingest_job.open(place)).replay()
    answer, there, back = (
        found.predicted([edit(text)]) for text in ("prefetch=1", "prefetch:forward=1", "prefetch:backward=1")
    )
    close(answer, truth, within=0.005)
    assert truth < 0.9 * found.trust.measured_ns
    assert there.predicted_ns is not None and back.predicted_ns is not None
    gains = [found.trust.measured_ns - each for each in (there.predicted_ns, back.predicted_ns)]
    assert min(gains) > 0.2 * (found.trust.measured_ns - truth)
    assert sum(gains) == pytest.approx(found.trust.measured_ns - truth, rel=0.05)
    assert any("memory" in doubt for doubt in answer.doubts)
    again = Session(ingest_job.open(then)).replay().predicted([edit("prefetch=1")])
    close(again, truth, within=0.001)


def test_without_gathered_weights_there_is_nothing_to_ask_for_earlier(folder: Path) -> None:
    answer = _session("ddp", 2, folder).replay().predicted([edit("prefetch=1")])
    assert "no gather here is awaited" in answer.refused
    for typed in ("prefetch", "prefetch=0", "prefetch:sideways=1", "prefetch=much"):
        with pytest.raises(BadOption, match="how many layers ahead"):
            edit(typed)


def test_shared_work_takes_what_it_sends_with_it(folder: Path) -> None:
    """Longer sequences send more, too: over a slow network that is a good part of what they cost."""
    job = _job("tp2-dp2", 4, ("steps", 3))
    network = replace(job.network, node=1)
    slow = replace(job, given_network=replace(network, near=network.near / 8, far=network.near / 8))
    place = folder / "uneven"
    simulate(replace(slow, lengths=0.6), place)
    truth = simulate(slow, folder / "even")["step"]
    found = Session(ingest_job.open(place)).replay()
    close(found.predicted([edit("even-work")]), truth)
    assert truth < 0.9 * found.trust.measured_ns


@pytest.mark.parametrize(
    ("text", "ranks", "more"),
    [("pp2-m4", 2, {0: -1, 1: 1}), ("pp2-dp2-m4", 4, {0: -1, 1: 1}), ("pp4-zb-m4", 4, {3: 1, 0: -1})],
)
def test_layers_that_move_are_computed_by_the_stages_they_move_to(
    text: str, ranks: int, more: dict[int, int], folder: Path
) -> None:
    """As fast as the others, the slowest stage would have less to do, and nobody more."""
    even = _job(text, ranks, ("layers", 8), ("steps", 2))
    place = folder / f"{text}-stages"
    simulate(replace(even, more_layers=more), place)
    truth = simulate(even, folder / f"{text}-even")["step"]
    found = Session(ingest_job.open(place)).replay()
    close(found.predicted([edit("even-stages")]), truth)
    assert truth < 0.95 * found.trust.measured_ns


def test_recomputation_dropped_takes_what_the_job_without_takes(folder: Path) -> None:
    for text in ("ddp", "tp2-dp2"):
        truth = simulate(_job(text, 4), folder / f"kept-{text}")["step"]
        found = _session(text, 4, folder, ("recomputes", True)).replay()
        close(found.predicted([edit("no-recompute")]), truth)
        assert truth < 0.9 * found.trust.measured_ns


@pytest.mark.parametrize("rate", [100_000_000_000, 25_000_000_000])
def test_activations_that_leave_and_come_back_take_what_the_simulator_takes(rate: int, folder: Path) -> None:
    knobs = {"offloads": 256 * MIB, "host_link": float(rate)}
    truth = simulate(_job("ddp", 2, *knobs.items()), folder / f"offloaded-{rate}")["step"]
    found = _session("ddp", 2, folder).replay()
    answer = found.predicted([edit(f"offload:{rate}B/s=1GiB")])
    close(answer, truth)
    assert truth > 1.02 * found.trust.measured_ns
    together = found.predicted([edit(f"offload:{rate}B/s=1GiB")] * 2)
    assert together.predicted_ns is not None and answer.predicted_ns is not None
    assert together.predicted_ns >= answer.predicted_ns  # each has streams of its own


def test_another_link_to_the_host_takes_what_the_simulator_takes(folder: Path) -> None:
    """PCIe to NVLink-C2C: activations travel at 25 GB/s, then at 100."""
    slow = _session("ddp", 2, folder, ("offloads", 256 * MIB))
    fast = simulate(_job("ddp", 2, ("offloads", 256 * MIB), ("host_link", 100e9)), folder / "c2c")
    found = slow.replay()
    close(found.predicted([edit("host-link=100GB/s")]), fast["step"])
    own = found.predicted([edit("host-link=25GB/s")])
    assert own.predicted_ns == pytest.approx(found.trust.measured_ns, rel=0.001)


def test_a_pipeline_has_no_layers_that_copies_could_be_fitted_to(folder: Path) -> None:
    answer = _session("pp2-m4", 2, folder).replay().predicted([edit("offload:25GB/s=1GiB")])
    assert "several microbatches alternate" in answer.refused
