"""Stages of a pipeline with more than one cause, or a pause: each has its own waiting."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import lostflops
from lostflops.finding import Finding
from lostflops.lab.simulate.engine import ran
from lostflops.lab.simulate.faults import faults
from lostflops.lab.simulate.instructions import Busy
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate

MS = 1_000_000
LOADER = ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
HEALTHY = SimulatedJob(strategy("pp4-m8", 4), seed=77, steps=3, warmup=1, layers=4)


def loads(rank: int, ns: int) -> tuple[Planted, ...]:
    return (Planted("input", (Busy(ns, (LOADER,)),), frozenset({rank})),)


def told(folder: Path, job: SimulatedJob) -> tuple[Finding, ...]:
    simulate(job, folder)
    return lostflops.why(folder).findings


def test_a_stage_that_costs_more_than_a_slow_link_comes_first(tmp_path: Path) -> None:
    """A stage of twice the layers needs no slow link to make the others wait."""
    findings = told(tmp_path, replace(HEALTHY, more_layers={1: 1}, slow_links={1: 14.0}))
    assert [(f.name, f.rank) for f in findings] == [("pipeline-bubble", 1), ("slow-link", 1)]
    assert findings[0].claim.startswith("Rank 1 is the slowest pipeline stage")


def test_a_stage_with_more_layers_gains_what_moving_them_does(tmp_path: Path) -> None:
    """As fast as the other, it would gain 157 ms: the other stage has to compute what moves to it."""
    even = SimulatedJob(strategy("pp2-m4", 2), seed=7, steps=2, warmup=1, layers=8, sequence=2048)
    uneven = replace(even, more_layers={0: -1, 1: 1})
    truth = ran(uneven).mean_step(1) - ran(even).mean_step(1)
    (first, *_) = told(tmp_path, uneven)
    assert first.claim.startswith("Rank 1 is the slowest pipeline stage") and first.edit == "even-stages"
    assert first.predicted is not None and first.predicted.ns == pytest.approx(truth, rel=0.05)


def test_what_is_left_beside_a_late_stage_is_the_schedules(tmp_path: Path) -> None:
    """Stages wait in the collective that ends the step, too: "none is late as a rule" was told of that."""
    healthy = SimulatedJob(strategy("pp2-dp2-gpipe-m2", 4), seed=3, steps=3, warmup=1)
    job = replace(healthy, planted=loads(0, 20 * MS))
    found = {f.name: f for f in told(tmp_path, job)}
    assert found.keys() == {"rank-arrives-last", "pipeline-bubble"}
    cost = ran(job).mean_step(1) - ran(healthy).mean_step(1)
    assert found["rank-arrives-last"].rank == 0
    assert found["rank-arrives-last"].size == pytest.approx(cost, rel=0.1)


def test_a_stage_with_more_layers_has_no_slow_device_for_one_beside_it(tmp_path: Path) -> None:
    """Ranks 1 and 2 compute longer, one on a slow GPU, the other half as many layers more."""
    healthy = replace(HEALTHY, strategy=strategy("pp4-m4", 4), layers=8, steps=2)
    first, *rest = told(tmp_path, replace(healthy, more_layers={2: 1}, slow_ranks={1: (1.3, 0)}))
    assert first.rank == 2 and first.claim.startswith("Rank 2 is the slowest pipeline stage")
    assert not any("anks 1 and 2" in f.claim + f.next for f in (first, *rest))
    slow = "rank 1 has a slow device, which moving layers does not mend: its gemm kernels take 1.3 times as"
    assert any(fact.startswith(slow) for fact in first.evidence)
    (alone, *_) = told(tmp_path / "alone", replace(healthy, more_layers={2: 1}))
    assert not any("slow device" in fact for fact in alone.evidence)


def test_a_slow_link_costs_what_other_stages_wait_for_it_too(tmp_path: Path) -> None:
    """Its transfers are 1.7 % of the mean step; without it a step would be 3.1 % shorter."""
    job = replace(HEALTHY, slow_links={3: 6.0})
    gained = ran(job).mean_step(1) - ran(HEALTHY).mean_step(1)
    link, bubble = told(tmp_path, job)
    assert (link.name, link.rank, bubble.name) == ("slow-link", 3, "pipeline-bubble")
    assert link.size == pytest.approx(gained, rel=0.02)


def test_a_slow_stage_is_named_beside_a_rank_that_is_late_for_another_reason(tmp_path: Path) -> None:
    job = replace(HEALTHY, planted=loads(1, 150 * MS), slow_ranks={2: (1.6, 0)})
    late, slow = told(tmp_path, job)
    assert late.rank == 1 and "data loading" in late.claim
    assert slow.claim.startswith("Rank 2 is the slowest pipeline stage") and "GPU clocks" in slow.next
    assert slow.edit == "even-ranks:2"  # which no other stage would have to make up for


def test_nobody_waits_longer_for_a_pause_of_the_first_stage_than_it_lasts(tmp_path: Path) -> None:
    late, bubble = told(tmp_path / "late", replace(HEALTHY, planted=loads(0, 130 * MS)))
    (schedule,) = told(tmp_path / "healthy", HEALTHY)
    assert late.rank == 0 and "the others wait 131 ms for it" in late.claim
    assert late.size == pytest.approx(130 * MS, rel=0.02)
    assert bubble.size == pytest.approx(schedule.size, rel=0.02)


def test_a_pause_that_makes_the_next_to_last_late_too_costs_more_than_their_distance(tmp_path: Path) -> None:
    """Rank 0 saves in two of three steps; rank 1 is slow as well, and is last but one."""
    slow = replace(HEALTHY, slow_ranks={1: (1.6, 0)})
    saving = faults()["checkpoint-pauses"].planted(slow, 268 * MS, Random("checkpoint-pauses/1")).job
    late = told(tmp_path, saving)[0]
    assert late.rank == 0 and 100 * MS < late.size < 150 * MS
    assert "ms of checkpoints; the others wait" in late.claim  # with what they copy
    assert "sequence lengths" not in late.next and "length-grouping" not in (late.remedies or ())


@pytest.mark.parametrize(("text", "ranks"), [("pp4-m8", 4), ("ddp", 4)])
def test_a_pause_after_the_last_step_is_waited_for_by_nobody(tmp_path: Path, text: str, ranks: int) -> None:
    """Rank 0 saves after the first of three steps and after the last: the others wait for one of both."""
    healthy = replace(HEALTHY, strategy=strategy(text, ranks))
    busy = Busy(250 * MS, (("user_annotation", "save_checkpoint"),))
    saving = Planted("closing", (busy,), frozenset({0}), every=2, first=1)
    late = told(tmp_path, replace(healthy, planted=(saving,)))[0]
    # In three steps of four ranks: two pauses on rank 0, and one in which each of the others waits.
    assert late.rank == 0 and late.size == pytest.approx(250 * MS * 5 / 12, rel=0.02)
    assert "167 ms of checkpoints" in late.claim or "166 ms of checkpoints" in late.claim
    waits = re.search(r"the others wait ([\d.]+) ms for it", late.claim)
    assert waits is not None and float(waits[1]) == pytest.approx(250 / 3, rel=0.02)
