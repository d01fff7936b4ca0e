"""Clocks that differ are put right by the collectives their ranks left together, with an honest error."""

from __future__ import annotations

import polars as pl
import pytest

from lostflops.ingest.clocks import SAME_HOST_ERROR, clock_offsets
from lostflops.intervals.matching import matches
from synthetic_job import Job

Told = dict[int, tuple[int, int]]


def told(tables: tuple[pl.LazyFrame, pl.LazyFrame]) -> Told:
    """Per rank the offset to add, and its error."""
    return {rank: (offset, error) for rank, offset, error in clock_offsets(*tables).iter_rows()}


def aligned(tables: tuple[pl.LazyFrame, pl.LazyFrame]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """The tables with the measured offsets added and the errors written down, as an import does."""
    collectives, ranks = tables
    found = clock_offsets(collectives, ranks).lazy()
    moved = collectives.join(found, on="rank", how="left", maintain_order="left").with_columns(
        pl.col("start", "end", "arrival") + pl.col("offset").fill_null(0)
    )
    known = ranks.drop("clock_error").join(
        found.select("rank", clock_error="error"), on="rank", how="left", maintain_order="left"
    )
    return moved.drop("offset", "error"), known


def job_of(ranks: int, seed: int, calls: int = 20, **more: int) -> Job:
    job = Job(ranks, seed, **more)
    for _ in range(calls):
        job.run(range(ranks))
    return job


@pytest.mark.parametrize("drift", [0.0, 2e-5])
@pytest.mark.parametrize("calls", [4, 20])
def test_offsets_are_recovered_within_their_error_in_19_of_20_trials(calls: int, drift: float) -> None:
    trials, within = 0, 0
    for seed in range(16):
        job = job_of(4, seed, calls, scatter=20_000)
        offsets = {r: int(job.random.integers(-50_000_000, 50_000_000)) for r in range(4)}
        drifts = {r: float(job.random.uniform(-drift, drift)) for r in range(4)}
        found = told(job.tables(offsets, drifts))
        for rank in range(1, 4):
            true = offsets[0] - offsets[rank]
            measured = found[rank][0] - found[0][0]
            trials += 1
            within += abs(measured - true) <= found[rank][1] + found[0][1]
    assert within >= 0.95 * trials


def test_waits_do_not_depend_on_the_clocks_once_they_are_aligned() -> None:
    job = job_of(5, seed=1)
    plain = matches(*aligned(job.tables()))
    for offsets in (
        {1: 40_000_000, 3: -7_000_000},
        {r: 10**15 * r for r in range(5)},
        {4: 1_754_000_000 * 10**9},
    ):
        table = matches(*aligned(job.tables(offsets)))
        assert table["instance"].equals(plain["instance"])
        worst = (table["wait"] - plain["wait"]).abs().max()
        assert isinstance(worst, int) and worst <= 2 * job.scatter
        assert table["latency"].equals(plain["latency"])


def test_a_clock_in_the_middle_is_right_and_few_are_moved() -> None:
    offsets = {
        rank: (offset, error) for rank, (offset, error) in told(job_of(5, 2).tables({3: 9_000_000})).items()
    }
    assert [rank for rank, (offset, _) in offsets.items() if offset] == [3]
    assert abs(offsets[3][0] + 9_000_000) <= offsets[3][1] + offsets[0][1]


def test_what_scatter_explains_moves_no_clock_and_counts_as_error() -> None:
    found = told(job_of(3, 3).tables({1: 15_000}))
    assert [offset for offset, _ in found.values()] == [0, 0, 0]
    assert found[1][1] >= 13_000
    noisy = told(job_of(3, 3, scatter=9_000_000).tables({1: 4_000_000}))
    assert noisy[1][0] == 0
    assert noisy[1][1] >= 1_000_000


@pytest.mark.parametrize("apart", [30_000, 200_000, 900_000])
def test_clocks_that_time_servers_keep_close_are_aligned_too(apart: int) -> None:
    """A fraction of a millisecond is as long as many collectives last: left alone, it would be waiting."""
    offsets = told(job_of(3, 3).tables({1: apart}))
    assert [rank for rank, (offset, _) in offsets.items() if offset] == [1]
    assert abs(offsets[1][0] + apart) <= offsets[1][1] + offsets[0][1] < apart / 2


def test_ranks_of_one_host_share_a_clock() -> None:
    job = job_of(4, 4, scatter=9_000_000)
    everywhere = dict.fromkeys(range(4), (0, SAME_HOST_ERROR))
    assert told(job.tables(hosts=dict.fromkeys(range(4), 0))) == everywhere
    two = told(job_of(4, 4).tables({2: 30_000_000, 3: 30_000_000}, hosts={0: 0, 1: 0, 2: 1, 3: 1}))
    assert two[0] == two[1] and two[2] == two[3]
    assert abs(two[2][0] - two[0][0] + 30_000_000) <= two[2][1] + two[0][1]


def test_offsets_are_carried_over_groups_that_share_ranks() -> None:
    """Tensor-parallel groups within hosts, data-parallel ones across: most see no offset."""
    job = Job(6, seed=5)
    groups = {
        "1 [0, 1]": (0, 1),
        "2 [2, 3]": (2, 3),
        "3 [4, 5]": (4, 5),
        "4 [0, 2, 4]": (0, 2, 4),
        "5 [1, 3, 5]": (1, 3, 5),
    }
    for _ in range(8):
        for name, ranks in groups.items():
            for _ in range(4 if len(ranks) == 2 else 1):  # most collectives say nothing of the hosts
                job.run(ranks, group=name)
    true = {0: 0, 1: 0, 2: 20_000_000, 3: 20_000_000, 4: -70_000_000, 5: -70_000_000}
    found = told(job.tables(true))
    for rank in range(1, 6):
        assert abs((found[rank][0] - found[0][0]) + true[rank]) <= found[rank][1] + found[0][1]


def test_groups_that_share_no_ranks_are_aligned_apart() -> None:
    job = Job(4, seed=6)
    for _ in range(9):
        job.run((0, 1), group="a [0, 1]")
        job.run((2, 3), group="b [2, 3]")
    found = told(job.tables({1: 5_000_000, 2: 900_000_000, 3: 907_000_000}))
    assert abs(found[1][0] - found[0][0] + 5_000_000) <= found[1][1] + found[0][1]
    assert abs(found[3][0] - found[2][0] + 7_000_000) <= found[3][1] + found[2][1]


def test_one_collective_gives_an_offset_as_rough_as_it_is_long() -> None:
    found = told(job_of(2, 7, calls=1).tables({1: 80_000_000}))
    assert abs(found[1][0] - found[0][0] + 80_000_000) <= 20_000
    assert min(error for _, error in found.values()) >= 90_000


def test_ranks_that_share_no_collective_are_absent() -> None:
    assert told(Job(2).tables()) == {}
    alone = Job(2)
    alone.run((0,), group="1 [0]")
    alone.run((1,), group="2 [1]")
    assert told(alone.tables()) == {}
    loose = Job(2)
    loose.run((0, 1), "broadcast")
    assert told(loose.tables()) == {}
