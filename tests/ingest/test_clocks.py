"""Clocks that differ are put right by the collectives their ranks left together, with an honest error."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from lostflops.ingest.times.clocks import SAME_HOST_ERROR, clock_offsets
from lostflops.intervals.matching import matches
from lostflops.tables import COLLECTIVES, RANKS
from lostflops.testing import example_table
from synthetic_job import Job

Told = dict[int, tuple[int, int]]


def told(tables: tuple[pl.LazyFrame, pl.LazyFrame]) -> Told:
    """Per rank the offset to add, and its error."""
    found = clock_offsets(*tables)
    assert found["rank"].is_sorted()
    return {rank: (offset, error) for rank, offset, error in found.iter_rows()}


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


def exact(rows: dict[str, dict[int, list[int]]], *facts: dict[str, Any]) -> Told:
    """What is told of collectives whose ends are given per group and rank, each 40,000 ns long."""
    calls = [
        {"rank": rank, "group": group, "kind": "all-reduce", "bytes_in": 8}
        | {"start": end - 40_000, "arrival": end - 40_000, "end": end}
        for group, of_group in rows.items()
        for rank, ends in of_group.items()
        for end in ends
    ]
    ranks = {rank for of_group in rows.values() for rank in of_group}
    known = list(facts) or [{"rank": rank, "world_size": len(ranks)} for rank in sorted(ranks)]
    return told((example_table(COLLECTIVES, calls), example_table(RANKS, known)))


def three(calls: int, apart: int, *late: int) -> Told:
    """Ranks 0 and 2 leave together, rank 1's clock shows `apart` more and the last calls `late` more yet."""
    true = [1_000_000 * n for n in range(1, calls + 1)]
    more = [*(0,) * (calls - len(late)), *late]
    ahead = [t + apart + m for t, m in zip(true, more, strict=True)]
    return exact({"g [0, 1, 2]": {0: true, 1: ahead, 2: true}})


def test_three_calls_leave_an_error_as_long_as_they_last_and_four_only_their_scatter() -> None:
    assert three(3, 200_001) == {0: (0, 40_000), 1: (-200_001, 40_000), 2: (0, 40_000)}
    assert three(3, 215_001, 3_000) == {0: (0, 40_000), 1: (-215_001, 43_000), 2: (0, 40_000)}
    assert three(3, 215_000, 3_000)[1] == (0, 215_000)
    assert three(4, 200_001, 3_000) == {0: (0, 0), 1: (-200_001, 3_000), 2: (0, 0)}


def test_a_clock_is_moved_when_it_is_off_by_more_than_20_us_and_by_more_than_five_errors() -> None:
    assert three(4, 20_001) == {0: (0, 0), 1: (-20_001, 0), 2: (0, 0)}
    assert three(4, 20_000) == {0: (0, 0), 1: (0, 20_000), 2: (0, 0)}
    assert three(4, 50_001, 10_000)[1] == (-50_001, 10_000)
    assert three(4, 50_000, 10_000)[1] == (0, 50_000)
    assert three(4, -50_001, 10_000)[1] == (50_001, 10_000)


def test_the_scatter_is_the_largest_of_few_and_a_spread_of_many() -> None:
    """Six calls 100 ns early and six late: 1.4826 times 100, rounded up; of eleven the largest counts."""
    assert three(12, 60_000, *(-100, 100) * 6)[1] == (-60_000, 149)
    assert three(11, 60_000, 0, *(-100, 100) * 5)[1] == (-60_000, 100)


def test_offsets_and_errors_add_up_over_a_shared_clock() -> None:
    """Rank 1 is 100 us ahead of rank 0, once 2 us more; rank 2 is 60 us ahead of it, once 4 us more.

    Each lies half of it from the middle of two; what is carried over rank 1 has the errors of both groups,
    of the second twice. The clock in the middle is right.
    """
    early, late = [1_000_000 * n for n in range(1, 6)], [1_000_000 * n for n in range(11, 16)]
    found = exact(
        {
            "a [0, 1]": {0: early, 1: [t + 100_000 for t in early[:4]] + [early[4] + 102_000]},
            "b [1, 2]": {1: late, 2: [t + 60_000 for t in late[:4]] + [late[4] + 64_000]},
        }
    )
    assert found == {0: (100_000, 1_000), 1: (0, 1_000), 2: (-60_000, 5_000)}


def test_the_nearer_of_two_ways_between_groups_counts() -> None:
    """Ranks 0 and 3 are joined by rank 1 exactly and by rank 2 with a scatter of 30 us."""
    at = [[1_000_000 * (10 * k + n) for n in range(1, 6)] for k in range(4)]
    loose = [*(t + 90_000 for t in at[1][:4]), at[1][4] + 150_000]
    found = exact(
        {
            "a [0, 1]": {0: at[0], 1: at[0]},
            "b [0, 2]": {0: at[1], 2: loose},
            "c [2, 3]": {2: [t + 90_000 for t in at[2]], 3: [t + 500_000 for t in at[2]]},
            "d [1, 3]": {1: at[3], 3: [t + 500_000 for t in at[3]]},
        }
    )
    assert found == {0: (0, 0), 1: (0, 0), 2: (-90_000, 0), 3: (-500_000, 0)}


def test_ranks_of_one_host_are_moved_together_and_never_surer_than_their_conversion() -> None:
    true = [1_000_000 * n for n in range(1, 5)]
    known = [{"rank": r, "world_size": 4, "host": r // 2} for r in range(4)]
    ends = {r: [t + (0, 0, 70_000, 70_000)[r] for t in true] for r in range(4)}
    found = exact({"g [0, 1, 2, 3]": ends}, *reversed(known))
    assert found == {r: ((0, -70_000)[r // 2], 10_000) for r in range(4)}
    # A rank that two files tell of is where the first says.
    told_twice = [*({**rank, "host": 0} for rank in known), {"rank": 3, "world_size": 4, "host": 1}]
    assert exact({"g [0, 1, 2, 3]": ends}, *told_twice) == dict.fromkeys(range(4), (0, SAME_HOST_ERROR))


def test_a_host_alone_is_as_sure_as_its_conversion() -> None:
    assert exact({"g [0]": {0: [50_000]}}, {"rank": 0, "world_size": 1, "host": 0}) == {0: (0, 10_000)}


def test_the_middle_of_far_clocks_is_taken_again_once_they_are_aligned() -> None:
    """Rank 2 is 1 ms ahead, rank 1 by turns 100 ns early and late.

    Beside a clock that is far ahead the middle of three is the later of the other two, which would share rank
    1's scatter with rank 0: 50 ns each.
    """
    true = [1_000_000 * n for n in range(1, 5)]
    turns = [t + (-100, 100)[n % 2] for n, t in enumerate(true)]
    found = exact({"g [0, 1, 2]": {0: true, 1: turns, 2: [t + 1_000_000 for t in true]}})
    assert found == {0: (0, 0), 1: (0, 100), 2: (-1_000_000, 0)}


def test_an_exact_group_counts_though_its_clocks_are_far_apart() -> None:
    """Two groups disagree on rank 1: one scatters by 30 us around 5 us, the other says 140 us every time."""
    at = [[1_000_000 * (10 * k + n) for n in range(1, 6)] for k in range(2)]
    loose = [*(t + 5_000 for t in at[0][:4]), at[0][4] + 35_000]
    found = exact(
        {
            "a [0, 1, 2]": {0: at[0], 1: loose, 2: at[0]},
            "b [0, 1]": {0: at[1], 1: [t + 140_000 for t in at[1]]},
        }
    )
    assert found == {0: (0, 0), 1: (-140_000, 0), 2: (0, 0)}


def test_errors_are_counted_from_the_largest_group() -> None:
    """Rank 3 shares a group with rank 2 alone, which scatters by 2 us, 1 us on either side."""
    at = [[1_000_000 * (10 * k + n) for n in range(1, 6)] for k in range(2)]
    found = exact(
        {
            "a [2, 3]": {2: at[0], 3: [*(t + 80_000 for t in at[0][:4]), at[0][4] + 82_000]},
            "b [0, 1, 2]": {0: at[1], 1: at[1], 2: at[1]},
        }
    )
    assert found == {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (-80_000, 2_000)}


def test_collectives_without_a_group_are_those_of_all_ranks() -> None:
    job = Job(2, seed=5)
    for _ in range(5):
        job.run((0, 1))
        job.run((0, 1), group="a [0, 1]")
    found = clock_offsets(*job.tables({1: 700_000}))
    assert found["rank"].to_list() == [0, 1]
    assert abs(found["offset"][1] + 700_000) <= 40_000


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


@pytest.mark.parametrize(
    ("apart", "numbered", "offset"),
    [
        (5_000_000, True, -5_000_000),
        (-5_000_000, True, 5_000_000),
        (100_001, True, -100_001),
        (100_000, True, 0),
        (5_000_000, False, 0),
    ],
)
def test_ranks_of_one_host_whose_numbered_collectives_end_apart_have_clocks_of_their_own(
    apart: int, numbered: bool, offset: int
) -> None:
    """Containers may share a host's name. Without numbers, a clock may seem off by a step."""
    calls = [
        {"rank": rank, "group": "g [0, 1, 2]", "kind": "all-reduce", "bytes_in": 8}
        | {"sequence": n if numbered else None}
        | {"start": end - 40_000, "arrival": end - 40_000, "end": end}
        for rank in range(3)
        for n in range(1, 6)
        for end in [9_000_000 * n + (apart if rank == 1 else 0)]
    ]
    ranks = [{"rank": rank, "world_size": 3, "host": 5} for rank in range(3)]
    found = told((example_table(COLLECTIVES, calls), example_table(RANKS, ranks)))
    assert found[1][0] == offset and found[0][0] == found[2][0] == 0
    if not offset:
        assert {error for _, error in found.values()} == {SAME_HOST_ERROR}


def test_the_middle_of_clocks_is_rounded_to_the_nearest_nanosecond() -> None:
    """Two ranks leave 100,001 and 100,002 ns apart in turn: each is told to 0.75 ns off its middle."""
    calls = [
        {"rank": rank, "group": "g [0, 1]", "kind": "all-reduce", "bytes_in": 8, "sequence": n}
        | {"start": end - 40_000, "arrival": end - 40_000, "end": end}
        for rank in range(2)
        for n in range(20)
        for end in [9_000_000 * n + (100_001 + n % 2) * rank]
    ]
    ranks = [{"rank": rank, "world_size": 2, "host": 5 + rank} for rank in range(2)]
    found = told((example_table(COLLECTIVES, calls), example_table(RANKS, ranks)))
    assert found[0][0] - found[1][0] == 100_002


def test_only_collectives_of_several_ranks_of_a_host_tell_whether_they_share_a_clock() -> None:
    """Ranks 0 and 1 of one host meet four times, 5 ms apart, and ranks of other hosts nine times each."""
    groups = {"a [0, 1]": (0, 1, 4), "b [0, 2]": (0, 2, 9), "c [1, 3]": (1, 3, 9)}
    calls = [
        {"rank": rank, "group": group, "kind": "all-reduce", "bytes_in": 8, "sequence": n}
        | {"start": end - 40_000, "arrival": end - 40_000, "end": end}
        for group, (one, other, times) in groups.items()
        for rank in (one, other)
        for n in range(1, times + 1)
        for end in [9_000_000 * n + (5_000_000 if rank in (1, 3) else 0)]
    ]
    ranks = [{"rank": rank, "world_size": 4, "host": (5, 5, 6, 7)[rank]} for rank in range(4)]
    found = told((example_table(COLLECTIVES, calls), example_table(RANKS, ranks)))
    assert found[1][0] - found[0][0] == -5_000_000


SHARED = dict.fromkeys(range(3), (0, SAME_HOST_ERROR))


def on_one_host(*apart: int, ranks: int = 3, unnumbered: int = 0) -> Told:
    """Offsets and errors of ranks of a host. The last leaves each collective so much later, and those of a
    second group, which have no number, 5 ms later."""
    every = [(n, late) for n, late in enumerate(apart)]
    every += [(None, 5_000_000)] * unnumbered
    calls = [
        {
            "rank": rank,
            "group": f"{'g' if number is not None else 'h'} {list(range(ranks))}",
            "kind": "all-reduce",
            "bytes_in": 8,
            "sequence": number,
        }
        | {"start": end - 40_000, "arrival": end - 40_000, "end": end}
        for rank in range(ranks)
        for at, (number, late) in enumerate(every)
        for end in [9_000_000 * at + (late if rank == ranks - 1 else 0)]
    ]
    known = [{"rank": rank, "world_size": ranks, "host": 5} for rank in range(ranks)]
    return told((example_table(COLLECTIVES, calls), example_table(RANKS, known)))


def test_two_ranks_of_a_host_may_have_clocks_of_their_own() -> None:
    found = on_one_host(*[5_000_000] * 5, ranks=2)
    assert found[1][0] - found[0][0] == -5_000_000


def test_ends_that_scatter_show_no_clock_of_its_own() -> None:
    assert [offset for offset, _ in on_one_host(*[1_000_000] * 5).values()] == [0, 0, -1_000_000]
    assert on_one_host(1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_500_000) == SHARED


def test_collectives_without_a_number_show_no_clock_of_its_own() -> None:
    assert on_one_host(0, 0, 0, 0, unnumbered=9) == SHARED
