"""A rank that computes longer while the others' transfers pass in the open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lostflops
from acceptance.cases import Played, played
from acceptance.training import Job

SIZES = {"layers": 6, "kernel_us": 120.0, "buckets": 6, "transfer_us": 1500.0}
JOB = Job(seed="delays", steps=3, skip=2, world=4, sync=False, **SIZES)  # type: ignore[arg-type]


def _costs(run: Played) -> dict[str, int]:
    return {found.name: found.size for found in lostflops.why(run.folder).findings}


def test_transfers_that_begin_late_for_a_slow_rank_are_its_doing(tmp_path: Path) -> None:
    """They pass in the open on the others, which have nothing left to compute; hidden on the rank itself."""
    slow = played(replace(JOB, per_rank={2: {"speed": 1.3}}), tmp_path / "slow")
    twin = played(JOB, tmp_path / "twin")
    lost, costs = slow.step - twin.step, _costs(slow)
    assert abs(costs["rank-arrives-last"] - lost) <= 0.05 * lost
    # What communication itself costs is what it costs without the slow rank.
    without = _costs(twin).get("communication-exposed", 0.05 * slow.step)
    assert costs.get("communication-exposed", 0) <= 1.1 * without


def test_transfers_that_keep_the_network_busy_are_not_for_a_slow_rank(tmp_path: Path) -> None:
    """They follow each other however early each rank comes: a faster rank would not shorten the steps."""
    busy = replace(JOB, transfer_us=8000.0)
    slow = played(replace(busy, per_rank={2: {"speed": 1.1}}), tmp_path / "slow")
    twin = played(busy, tmp_path / "twin")
    lost, costs = slow.step - twin.step, _costs(slow)
    assert costs.get("rank-arrives-last", 0) <= 1.2 * lost + 0.01 * slow.step
    assert costs["communication-exposed"] >= 0.9 * _costs(twin)["communication-exposed"]


def test_where_all_ranks_take_part_in_each_no_link_can_be_told(tmp_path: Path) -> None:
    """Whether the network as a whole is slow, or one link of one rank, looks the same."""
    slow = played(replace(JOB, transfer_us=6000.0, hosts=(0, 0, 1, 1)), tmp_path / "slow")
    (exposed,) = [f for f in lostflops.why(slow.folder).findings if f.name == "communication-exposed"]
    told = "all 4 ranks take part in each all-reduce, so only `lostflops bench collectives` tells whether "
    # A page shows two facts beside the names.
    assert any(told in fact for fact in exposed.evidence[:2])
