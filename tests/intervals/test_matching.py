"""Collectives of different ranks are put together by group and order, or the reason is said why not."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from lostflops.intervals.matching import DIFFER, ONE_RANK, SEVERAL, WORLD, matches
from lostflops.tables import COLLECTIVES, RANKS
from lostflops.testing import example_table
from synthetic_job import Job

TIMES = ("start", "arrival", "end")


def matched(
    rows: list[dict[str, Any]], ranks: int | list[dict[str, Any]] = 2, **options: Any
) -> pl.DataFrame:
    """The matches of some rows in a job of so many ranks."""
    known = [{"rank": r, "world_size": ranks} for r in range(ranks)] if isinstance(ranks, int) else ranks
    return matches(example_table(COLLECTIVES, rows), example_table(RANKS, known), **options)


def row(rank: int, start: int, end: int, kind: str = "all-reduce", **more: Any) -> dict[str, Any]:
    return {"rank": rank, "start": start, "end": end, "kind": kind, "bytes_in": 8, **more}


def reasons(table: pl.DataFrame) -> set[str]:
    return set(table["reason"].to_list())


def assert_true_instances(table: pl.DataFrame) -> None:
    """The instances are the calls that the job really made, numbered densely by first arrival."""
    known = table.filter(pl.col("instance").is_not_null())
    assert known.height > 0
    pairs = known.select("call", "instance").unique()
    assert pairs.height == pairs["call"].n_unique() == pairs["instance"].n_unique()
    numbers = known["instance"].unique().sort().to_list()
    assert numbers == list(range(len(numbers)))
    first = known.group_by("instance").agg(pl.col("arrival").min()).sort("instance")
    assert first["arrival"].is_sorted()
    for _, of_one in known.group_by("call"):
        assert of_one["last_arrival"].to_list() == [of_one["arrival"].max()] * of_one.height
        assert of_one["latency"].to_list() == [(of_one["end"] - of_one["arrival"]).min()] * of_one.height
        assert of_one["members"].to_list() == [of_one.height] * of_one.height
    split = known.filter(pl.col("wait").is_not_null())
    assert (split["wait"] >= 0).all()
    assert (split["wait"] + split["transfer"]).equals(split["end"] - split["arrival"])
    assert table.filter(pl.col("wait").is_null() == (pl.col("reason") == "")).is_empty()


def queued(late: int, bytes_in: int = 80, threads: int = 2) -> list[dict[str, Any]]:
    """12 all-reduces of two ranks on threads that share a queue, the second of other bytes. On rank 1
    its thread is held up, so that it begins after the next `late`."""
    rows: list[dict[str, Any]] = []
    for rank in (0, 1):
        for n in range(12):
            odd = n == 1
            start = 100 * n + rank + (100 * late + 50 if odd and rank else 0)
            lane = {"stream": 10 * rank + n % threads, "group": "0 [0, 1]"}
            rows.append(row(rank, start, 2000 + n, bytes_in=bytes_in if odd else 8, **lane))
    return rows


def test_threads_that_share_a_queue_may_begin_operations_in_another_order() -> None:
    """One that began after the next kept all operations of its group from being matched."""
    for late in (0, 1, 8):
        table = matched(queued(late))
        assert reasons(table) == {""}, late
        pairs = table.sort("instance", "rank").group_by("instance", maintain_order=True)
        assert all(both["bytes_in"].n_unique() == 1 and both["rank"].to_list() == [0, 1] for _, both in pairs)
        held = table.filter(bytes_in=80)
        assert held["wait"].max() == 100 * late + 51
    # So far off, on one thread, or with bytes that the other rank has not, it is another order.
    for rows in (queued(9), queued(1, threads=1)):
        assert reasons(matched(rows)) == {DIFFER}
    other = [one | {"bytes_in": 81} if one["rank"] and one["bytes_in"] == 80 else one for one in queued(1)]
    assert reasons(matched(other)) == {DIFFER}


def test_the_last_arrival_splits_wait_from_transfer() -> None:
    table = matched([row(0, 10, 52), row(1, 40, 51), row(2, 33, 57)], 3)
    shared = table.select("instance", "members", "last_arrival", "last_rank", "lead", "latency")
    assert shared.unique().rows() == [(0, 3, 40, 1, 7, 11)]
    assert table.select("wait", "transfer").rows() == [(30, 12), (0, 11), (7, 17)]


def test_an_instance_needs_all_ranks_of_its_group() -> None:
    """Of three members the last to come may be the one whose row is missing."""
    rows = [row(r, 10 * r, 60, group="0 [0, 1, 2]", group_size=3, sequence=s) for r in (0, 1) for s in (4,)]
    rows += [row(r, 100 + r, 160, group="0 [0, 1, 2]", group_size=3, sequence=5) for r in (0, 1, 2)]
    table = matched(rows, 3)
    assert table.filter(pl.col("sequence") == 4)["wait"].null_count() == 2
    assert "2 ranks recorded it, of the 3 in its group" in reasons(table)
    assert table.filter(pl.col("sequence") == 5)["wait"].to_list() == [2, 1, 0]


def test_the_size_of_a_group_counts_where_its_ranks_are_not_listed() -> None:
    """Two tensor-parallel groups of one name are not one group of four."""
    rows = [row(r, 10 * r, 60 + r, group="tp", group_size=2, sequence=1) for r in range(4)]
    assert reasons(matched(rows, 4)) == {"4 ranks recorded it, of the 2 in its group"}
    assert reasons(matched(rows[:2], 4)) == {""}
    assert reasons(matched(rows[:1], 4)) == {"no other rank recorded it"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("numbered", [True, False])
def test_tensor_and_data_parallel_groups_keep_apart(seed: int, numbered: bool) -> None:
    job = Job(4, seed)
    groups = {"1 [0, 1]": (0, 1), "2 [2, 3]": (2, 3), "3 [0, 2]": (0, 2), "4 [1, 3]": (1, 3)}
    count = dict.fromkeys(groups, 0)
    for _ in range(6):
        for name, ranks in groups.items():
            for _ in range(1 + (ranks[1] - ranks[0] == 1)):
                count[name] += 1
                job.run(ranks, group=name, group_size=2, sequence=count[name] if numbered else None)
    table = matches(*job.tables())
    assert reasons(table) == {""}
    assert_true_instances(table)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(
        st.sampled_from(["all-reduce", "all-gather", "broadcast", "all-to-all"]), min_size=1, max_size=9
    ),
    st.integers(0, 99),
    st.randoms(use_true_random=False),
)
def test_matching_depends_on_neither_row_order_nor_the_clock_s_start(
    ranks: int, kinds: list[str], seed: int, random: Any
) -> None:
    job = Job(ranks, seed)
    for kind in kinds:
        job.run(range(ranks), kind)
    collectives, known = job.tables()
    table = matches(collectives, known)
    assert reasons(table) == {""}
    assert_true_instances(table)
    order = list(range(table.height))
    random.shuffle(order)
    shuffled = matches(collectives.collect()[order].lazy(), known)
    assert_frame_equal(shuffled, table[order])
    origin = 1_700_000_000_000_000_001
    later = matches(collectives.with_columns(pl.col(TIMES) + origin), known)
    assert_frame_equal(later.with_columns(pl.col(*TIMES, "last_arrival") - origin), table)


def test_the_number_in_the_group_finds_the_place_when_recordings_begin_apart() -> None:
    job = Job(2, seed=3)
    for n in range(9):
        job.run((0, 1), group="0 [0, 1]", sequence=n)
    collectives, ranks = job.tables()
    cut = collectives.filter((pl.col("rank") == 0) | pl.col("call").is_between(2, 6))
    table = matches(cut, ranks)
    assert_true_instances(table)
    assert table.filter(pl.col("instance").is_null())["call"].to_list() == [0, 1, 7, 8]
    assert reasons(table) == {"", "no other rank recorded it"}


@pytest.mark.parametrize("cut", [(0, 5), (3, 9)])
def test_unequal_counts_line_up_at_the_end_that_the_times_allow(cut: tuple[int, int]) -> None:
    job = Job(2, seed=4)
    for _ in range(10):
        job.run((0, 1), bytes_in=64)  # no bytes or kinds tell one from the next
    collectives, ranks = job.tables(clock_error=2_000)
    table = matches(collectives.filter((pl.col("rank") == 0) | pl.col("call").is_between(*cut)), ranks)
    assert_true_instances(table)
    assert table["instance"].n_unique() - 1 == cut[1] - cut[0] + 1


def test_unequal_counts_that_line_up_nowhere_are_left_alone() -> None:
    job = Job(2, seed=4)
    for _ in range(10):
        job.run((0, 1), bytes_in=64)
    collectives, ranks = job.tables(clock_error=2_000)
    middle = collectives.filter((pl.col("rank") == 0) | pl.col("call").is_between(2, 7))
    assert reasons(matches(middle, ranks)) == {
        "its group is unknown; ranks recorded between 6 and 10 operations of none"
    }


def test_unequal_counts_are_not_lined_up_without_a_common_clock() -> None:
    """A clock two steps ahead and a recording that began two steps late look alike."""
    job = Job(3, seed=5)
    for _ in range(10):
        job.run((0, 1, 2), bytes_in=64)
    collectives, ranks = job.tables()
    late = collectives.filter((pl.col("rank") != 1) | (pl.col("call") >= 2))
    table = matches(late, ranks, trust_clocks=False)
    assert table["instance"].null_count() == table.height
    assert matches(collectives, ranks, trust_clocks=False)["instance"].null_count() == 0


def test_ranks_that_disagree_are_not_matched() -> None:
    text = "the ranks' collectives differ in kind, bytes or order"
    other_bytes = [row(0, 0, 40), {**row(1, 9, 41), "bytes_in": 16}]
    assert reasons(matched(other_bytes)) == {text}
    assert reasons(matched([{**r, "sequence": 3} for r in other_bytes])) == {text}
    assert reasons(matched([row(0, 0, 40), row(1, 9, 41, "all-gather")])) == {text}
    uneven = [{**r, "kind": "all-to-all"} for r in other_bytes]
    assert reasons(matched(uneven)) == {""}
    unsaid = [row(0, 0, 40), {**row(1, 9, 41), "bytes_in": None}]
    assert reasons(matched(unsaid)) == {""}


def test_what_one_call_issues_together_shares_a_number() -> None:
    rows = [row(r, at + r, at + 30, sequence=7, group="0 [0, 1]") for r in (0, 1) for at in (0, 40, 80)]
    table = matched(rows)
    assert reasons(table) == {""}
    assert table.sort("start")["instance"].to_list() == [0, 0, 1, 1, 2, 2]
    short = matched(rows[:-1])
    assert short["instance"].null_count() == 5, "which of three belongs to which of two?"


def test_what_arrives_together_counts_in_the_order_of_its_end_and_then_of_the_rows() -> None:
    # One call issues three operations: of those that arrive together, the shorter one is the earlier.
    of = {"sequence": 4, "group": "0 [0, 1]", "arrival": 10}
    rows = [row(0, 10, 30, bytes_in=3), row(0, 10, 20, bytes_in=2), row(0, 10, 30, bytes_in=4)]
    rows += [row(1, 10, 20, bytes_in=2), row(1, 10, 30, bytes_in=3), row(1, 10, 30, bytes_in=4)]
    table = matched([{**one, **of} for one in rows])
    assert reasons(table) == {""}
    pairs = table.group_by("instance").agg(pl.col("bytes_in"), pl.col("rank").n_unique()).sort("instance")
    assert sorted(map(tuple, pairs["bytes_in"].to_list())) == [(2, 2), (3, 3), (4, 4)]
    assert pairs["rank"].to_list() == [2, 2, 2]


def test_operations_of_two_kinds_that_share_a_number_are_counted_apart() -> None:
    of = {"sequence": 4, "group": "0 [0, 1]"}
    rows = [row(0, 10, 30), row(0, 40, 60, "all-gather"), row(1, 12, 60, "all-gather"), row(1, 25, 30)]
    table = matched([{**one, **of} for one in rows])
    assert reasons(table) == {""}
    assert table.group_by("instance").agg(pl.col("kind").n_unique())["kind"].to_list() == [1, 1]


def test_operations_of_two_groups_that_share_a_number_are_counted_apart() -> None:
    rows = [row(0, 10, 30, group="0 [0, 1]"), row(0, 40, 60, group="1 [0, 1]")]
    rows += [row(1, 12, 60, group="1 [0, 1]"), row(1, 25, 30, group="0 [0, 1]")]
    table = matched([{**one, "sequence": 4} for one in rows])
    assert reasons(table) == {""}
    groups = table.group_by("instance").agg(pl.col("group").cast(pl.String).n_unique())
    assert groups["group"].to_list() == [1, 1]


def test_times_that_contradict_each_other_are_refused() -> None:
    rows = [row(0, 0, 40), row(1, 50, 90)]
    contradiction = "the ranks' times contradict each other: one leaves before another has come"
    for given_rows in (rows, [{**r, "sequence": 1} for r in rows]):
        table = matched(given_rows, [{"rank": r, "world_size": 2, "clock_error": 4} for r in (0, 1)])
        assert table["wait"].null_count() == 2
        assert reasons(table) == {contradiction}
        known = [{"rank": r, "world_size": 2, "clock_error": 5 * r} for r in (0, 1)]
        assert reasons(matched(given_rows, known)) == {""}, "no more than the clocks' error"
    numbered = [{**r, "sequence": 1} for r in rows]
    assert reasons(matched(numbered)) == {contradiction}
    assert reasons(matched(numbered, trust_clocks=False)) == {""}


def test_the_root_of_a_broadcast_does_not_wait_for_the_last() -> None:
    table = matched([row(0, 0, 12, "broadcast"), row(1, 31, 45, "broadcast"), row(2, 4, 40, "broadcast")], 3)
    assert table["instance"].to_list() == [0, 0, 0]
    assert table.select("wait", "transfer").rows() == [(None, None), (0, 14), (27, 9)]
    assert reasons(table[:1]) == {"it left before the last rank came, so it did not wait for that"}


def test_the_last_rank_is_unknown_within_the_clock_error() -> None:
    rows = [row(0, 0, 40), row(1, 9, 42), row(2, 9, 41), row(0, 100, 150), row(1, 111, 153), row(2, 125, 149)]
    for error, last in ((None, [None, 2]), (13, [None, 2]), (14, [None, None])):
        known = [{"rank": r, "world_size": 3, "clock_error": error} for r in range(3)]
        table = matched(rows, known)
        assert table["wait"].to_list() == [9, 0, 0, 25, 14, 0]
        assert table.sort("start").gather_every(3)["last_rank"].to_list() == last


def test_sends_meet_their_receives() -> None:
    rows = [
        row(0, 0, 30, "send", peer=1),
        row(1, 20, 32, "receive", peer=0),
        row(1, 40, 44, "send", peer=0),
        row(0, 35, 47, "receive", peer=1),
        row(0, 60, 71, "send", peer=1),
        row(1, 50, 70, "receive", peer=0),
    ]
    table = matched(rows)
    assert table["instance"].to_list() == [0, 0, 1, 1, 2, 2]
    assert table["wait"].to_list() == [20, 0, 0, 5, 0, 10]
    assert table["last_rank"].to_list() == [1, 1, 1, 1, 0, 0]


def test_a_receive_cannot_end_before_its_send_began() -> None:
    rows = [row(0, 50, 60, "send", peer=1), row(1, 0, 45, "receive", peer=0)]
    known = [{"rank": r, "world_size": 2, "clock_error": 1} for r in (0, 1)]
    assert matched(rows, known)["wait"].null_count() == 2
    buffered = [row(0, 0, 6, "send", peer=1), row(1, 40, 45, "receive", peer=0)]
    assert matched(buffered, known).select("wait", "transfer").rows() == [(None, None), (0, 5)]


def test_sends_are_counted_per_direction_group_and_peer() -> None:
    job = Job(3, seed=8)

    def send(source: int, target: int, group: str) -> None:
        job.run((source, target), "send", group=group)
        job.rows[-1] |= {"kind": "receive", "peer": source}
        job.rows[-2] |= {"peer": target}

    for _ in range(5):
        send(0, 1, "pp")
        send(1, 2, "pp")
        send(2, 1, "pp")
        send(1, 0, "pp")
        send(0, 1, "other")
    table = matches(*job.tables())
    assert reasons(table) == {""}
    assert_true_instances(table)


def test_a_send_alone_says_why() -> None:
    assert reasons(matched([row(0, 0, 30, "send")])) == {"its peer is unknown"}
    assert reasons(matched([row(0, 0, 30, "send-receive"), row(1, 0, 30, "send-receive")])) == {
        "its messages are sent and received in one launch, which shows one time for all"
    }
    assert reasons(matched([row(0, 0, 30, "send", peer=1)])) == {"no other rank recorded it"}
    assert reasons(matched([row(0, 0, 30, "send", peer=5), row(1, 0, 9)])) == {
        "rank 5, its peer, is not here",
        "no other rank recorded it",
    }


def test_receives_recorded_from_a_later_step_on_are_not_shifted() -> None:
    """A receive may end long after its send, so times tell less here; sizes do."""
    job = Job(2, seed=9)
    for call in range(8):
        job.run((0, 1), "send", bytes_in=64 + (call == 4))
        job.rows[-1] |= {"kind": "receive", "peer": 0}
        job.rows[-2] |= {"peer": 1}
    collectives, ranks = job.tables(clock_error=2_000)
    late = collectives.filter((pl.col("rank") == 0) | (pl.col("call") >= 3))
    assert_true_instances(matches(late, ranks))
    assert matches(late, ranks, trust_clocks=False)["instance"].null_count() == 13
    alike = matches(late.with_columns(bytes_in=pl.lit(64)), ranks)
    assert alike["instance"].null_count() == 13


@pytest.mark.parametrize(
    ("rows", "ranks", "reason"),
    [
        ([row(0, 0, 9)], [{"rank": 0, "world_size": 2}], ONE_RANK),
        ([row(0, 0, 9)], [{"rank": 0}], ONE_RANK),
        ([row(0, 0, 9, group="tp")], [{"rank": 0}], ONE_RANK),
        (
            [row(0, 0, 9), row(1, 0, 9)],
            [{"rank": 0, "world_size": 8}, {"rank": 1, "world_size": 8}],
            "only 2 of 8 ranks are here and its group is unknown",
        ),
        (
            [row(0, 0, 9, group="0 [0, 2, 7]")],
            [{"rank": 0, "world_size": 8}, {"rank": 1, "world_size": 8}],
            "ranks 2, 7 of its group are not here",
        ),
        (
            [row(0, 0, 9, "unknown"), row(1, 0, 9, "unknown")],
            2,
            "what most of its group's operations do is unknown",
        ),
        ([row(0, 0, 9, "layout"), row(1, 0, 9, "layout")], 2, "it takes part in nothing with other ranks"),
        ([row(0, 0, 9)], 2, "no other rank recorded it"),
    ],
)
def test_the_reason_is_said(rows: list[dict[str, Any]], ranks: Any, reason: str) -> None:
    table = matched(rows, ranks)
    assert reasons(table) == {reason}
    assert table.select(
        "instance", "members", "last_arrival", "last_rank", "latency", "wait", "transfer"
    ).unique().rows() == [(None,) * 7]


def test_a_group_is_only_guessed_when_the_job_has_no_other() -> None:
    rows = [row(0, 0, 9), row(1, 4, 9), row(0, 20, 29, group="a [0, 1]"), row(1, 23, 29, group="a [0, 1]")]
    assert matched(rows)["wait"].to_list() == [4, 0, 3, 0]
    rows += [row(0, 40, 49, group="b [0, 1]"), row(1, 47, 49, group="b [0, 1]")]
    table = matched(rows)
    assert table["wait"].to_list() == [None, None, 3, 0, 7, 0]
    assert reasons(table[:2]) == {"its group is unknown and the job has several"}


@pytest.mark.parametrize(("apart", "told"), [(50, SEVERAL), (12, "")])
@pytest.mark.parametrize("drift", [0, 3])
def test_what_ranks_leave_too_far_apart_is_not_of_one_group_of_all(apart: int, told: str, drift: int) -> None:
    """Two pairs, as of tensor parallelism, whose steps vary: of an Nsight export that names no groups.

    The second clock is 300 us ahead, and drifts; a group is left alike however far it is.
    """
    us, rows = 1000, []
    for n in range(9):
        for rank in range(4):
            end = (200 * n + (apart if rank > 1 and n % 2 else 0) + (300 + drift * n if rank > 1 else 0)) * us
            rows.append(row(rank, end - 60 * us, end))
    clocks = [{"rank": rank, "clock_error": 400 * us} for rank in range(4)]
    assert reasons(matched(rows, clocks)) == {told}
    assert reasons(matched(rows[: 8 * 4], clocks)) == {""}, "so few do not tell"
    two = [{**one, "rank": one["rank"] // 2} for one in rows if one["rank"] % 2]
    assert reasons(matched(two, clocks[:2])) == {""}, "two ranks can only meet each other"
    named = [{**one, "group": "0 [0, 1, 2, 3]"} for one in rows]
    assert reasons(matched(named, clocks)) == {""}


def test_groups_that_the_job_lists_keep_operations_without_a_group_apart() -> None:
    """gloo's operations name no group: in a job of two pairs, whose they are cannot be told."""

    def grouped(*groups: list[int]) -> list[dict[str, Any]]:
        listed = [{"name": str(n), "description": "", "ranks": ranks} for n, ranks in enumerate(groups)]
        return [{"rank": r, "world_size": 2, "groups": listed} for r in range(2)]

    rows = [row(0, 0, 9), row(1, 4, 9)]
    assert matched(rows, grouped([0, 1], [1, 0], [0], []))["wait"].to_list() == [4, 0]
    assert reasons(matched(rows, grouped([0, 1], [0, 2]))) == {"its group is unknown and the job has several"}


def in_pairs(late: int = 40, ends: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ranks 0 and 1, 2 and 3 reduce five times, 100 us apart; in each rank 1 comes `late` us after rank 0.
    The second pair leaves `ends` us later. Both list their pair and the group of all."""
    us, rows = 1000, []
    for n in range(5):
        for rank in range(4):
            came = late if rank == 1 else 0
            left = late + 9 if rank < 2 else 9 + ends
            rows.append(row(rank, (100 * n + came) * us, (100 * n + left) * us))
    listed = [
        [("0", [0, 1, 2, 3]), (str(1 + rank // 2), [rank // 2 * 2, rank // 2 * 2 + 1])] for rank in range(4)
    ]
    known = [
        {"rank": rank, "world_size": 4, "clock_error": 0}
        | {"groups": [{"name": name, "description": "", "ranks": ranks} for name, ranks in of_rank]}
        for rank, of_rank in enumerate(listed)
    ]
    return rows, known


def test_the_group_of_operations_that_name_none_is_the_only_one_that_times_allow() -> None:
    """Ranks 2 and 3 leave long before rank 1 comes: not all ranks are in it."""
    rows, known = in_pairs()
    table = matched(rows, known)
    assert reasons(table) == {""}
    assert table.sort("rank")["group"].unique(maintain_order=True).to_list() == ["1 [0, 1]", "2 [2, 3]"]
    waited = dict(table.group_by("rank").agg(pl.col("wait").sum()).iter_rows())
    assert waited == {0: 200_000, 1: 0, 2: 0, 3: 0}
    several = {"its group is unknown and the job has several"}
    assert reasons(matched(rows[:12], known)) == several, "three may agree by chance"
    without = matched(rows[:-1], known)  # one of rank 3's
    assert reasons(without.filter(pl.col("rank") > 1)) == several
    assert reasons(without.filter(pl.col("rank") < 2)) == {""}
    assert reasons(matched(rows, known, trust_clocks=False)) == several


def test_operations_that_all_ranks_leave_together_are_of_all_and_else_of_nobody_knows_whom() -> None:
    rows, known = in_pairs(late=0)
    assert set(matched(rows, known)["group"].to_list()) == {"0 [0, 1, 2, 3]"}
    rows, known = in_pairs(late=0, ends=30)
    assert reasons(matched(rows, known)) == {"its group is unknown and the job has several"}


def test_pairs_that_leave_together_by_chance_are_told_by_whom_they_wait_for() -> None:
    """Each takes 4 ms, and rank 1 comes 40 to 280 us late: the second pair leaves no later for it. With all
    four it does; and where it does by half, or is late by as much each time, nobody knows whose they are."""
    _, known = in_pairs()

    def of(moved: float, lates: tuple[int, ...]) -> set[str]:
        us, rows = 1000, []
        for n, late in enumerate(lates):
            for rank in range(4):
                left = 4000 + (late if rank < 2 else round(moved * late))
                came = late if rank == 1 else 0
                rows.append(row(rank, (9000 * n + came) * us, (9000 * n + left) * us))
        return set(matched(rows, known)["group"].to_list())

    lates = (40, 280, 90, 150, 210, 60)
    assert of(0, lates) == {"1 [0, 1]", "2 [2, 3]"}
    assert of(1, lates) == {"0 [0, 1, 2, 3]"}
    assert of(0.5, lates) == of(0, 6 * (100,)) == {"1 [0, 1]", None}
    assert of(1, 6 * (100,)) == {"0 [0, 1, 2, 3]"}


def test_ranks_below_the_highest_are_missed_where_no_world_size_is_known() -> None:
    table = matched([row(2, 0, 9), row(3, 4, 9)], [{"rank": 2}, {"rank": 3}])
    assert reasons(table) == {"only 2 of at least 4 ranks are here and its group is unknown"}


def test_it_is_said_where_the_ranks_here_were_taken_for_all() -> None:
    rows = [row(0, 0, 9), row(1, 4, 9)]
    unknown = [{"rank": 0}, {"rank": 1}]
    assert matched(rows, unknown)["assumed"].to_list() == [True, True]
    assert matched(rows)["assumed"].to_list() == [False, False]
    for group, size, assumed in (("a", None, True), ("a", 2, False), ("a [0, 1]", None, False)):
        of_group = [{**one, "group": group, "group_size": size} for one in rows]
        assert matched(of_group, unknown)["assumed"].to_list() == [assumed, assumed]


def test_what_lost_its_description_matches_by_its_neighbours_and_its_name() -> None:
    rows = [row(0, 0, 9), row(1, 4, 9), row(0, 20, 29), row(1, 23, 29)]
    first = [
        {**r, "kind": "unknown", "bytes_in": None, "name": "nccl"} for r in (row(0, -20, -8), row(1, -13, -9))
    ]
    assert matched([*first, *rows])["wait"].to_list() == [7, 0, 4, 0, 3, 0]
    half = [first[0], {**first[1], "kind": "broadcast"}]
    assert matched([*half, *rows])["instance"].to_list() == [0, 0, 1, 1, 2, 2]
    other = [first[0], {**first[1], "name": "another"}]
    assert matched([*other, *rows])["instance"].null_count() == 6


def test_a_group_of_one_waits_for_nobody() -> None:
    assert matched([row(0, 0, 9)], 1).select("members", "last_rank", "wait", "transfer").rows() == [
        (1, None, 0, 9)
    ]
    table = matched([row(1, 0, 9, group="3 [1]"), row(0, 2, 9, group="2", group_size=1)])
    assert table.select("wait", "transfer").rows() == [(0, 9), (0, 7)]


def test_numbers_of_instances_have_no_holes() -> None:
    rows = [row(0, 0, 9), row(1, 4, 9), row(0, 20, 29, "layout"), row(0, 40, 49), row(1, 47, 49)]
    assert matched(rows)["instance"].to_list() == [0, 0, None, 1, 1]


@pytest.mark.parametrize("name", ["[²]", "0 [" + "9" * 5000 + "]", "x]", "[", "0 [1, 0]"])
def test_any_text_may_name_a_group(name: str) -> None:
    table = matched([row(0, 0, 9, group=name), row(1, 4, 9, group=name)])
    assert table.height == 2


def test_nothing_to_match_gives_the_same_columns() -> None:
    some, none = matched([row(0, 0, 9), row(1, 4, 9)]), matched([])
    assert none.schema == some.schema
    assert none.is_empty()


# -- at the limits of the rules -----------------------------------------------------------------------------

CONTRADICTION = "the ranks' times contradict each other: one leaves before another has come"
UNCLEAR = "its group is unknown; ranks recorded between {} and {} operations of none"


def sure(clock_error: int, ranks: int = 2) -> list[dict[str, Any]]:
    return [{"rank": r, "world_size": ranks, "clock_error": clock_error} for r in range(ranks)]


def at_times(rank: int, *starts: int) -> list[dict[str, Any]]:
    """All-reduces of a rank, each 50 ns long."""
    return [row(rank, start, start + 50) for start in starts]


def test_operations_without_a_number_that_arrive_together_count_in_the_order_of_their_ends() -> None:
    rows = [row(0, 0, 30, bytes_in=3), row(0, 5, 20, bytes_in=2)]
    rows += [row(1, 0, 20, bytes_in=2), row(1, 5, 30, bytes_in=3)]
    assert reasons(matched([{**one, "arrival": 10} for one in rows])) == {""}


def test_more_than_half_of_the_operations_must_tell_what_they_do() -> None:
    def with_unknown(known: int, unknown: int) -> pl.DataFrame:
        return matched(
            [
                row(r, 100 * n + r, 100 * n + 50, "all-reduce" if n < known else "unknown")
                for r in (0, 1)
                for n in range(known + unknown)
            ]
        )

    assert reasons(with_unknown(1, 1)) == {"what most of its group's operations do is unknown"}
    assert reasons(with_unknown(3, 2)) == {""}
    # It is enough that one rank tells it.
    lost = {"kind": "unknown", "bytes_in": None}
    assert matched([row(0, 0, 9) | lost, row(1, 7, 9)])["wait"].to_list() == [7, 0]
    assert reasons(matched([row(0, 0, 9, "unknown", group="a")])) == {"no other rank recorded it"}


def test_more_than_half_of_the_operations_must_be_possible_where_they_are_counted_from_the_start() -> None:
    def of(*second: int) -> pl.DataFrame:
        first = [1000 * n for n in range(len(second))]
        return matched([*at_times(0, *first), *at_times(1, *second)], sure(0))

    assert reasons(of(0, 1100)) == {CONTRADICTION}
    table = of(0, 1000, 2000, 3100, 4100)
    assert table["reason"].to_list() == ([""] * 3 + [CONTRADICTION] * 2) * 2
    # One more at the end of one rank: counted from there, nothing would be possible.
    rows = [*at_times(0, 0, 1000, 2000, 3000, 4000, 5000), *at_times(1, 0, 1000, 2000, 3100, 4100)]
    assert matched(rows, sure(0))["reason"].to_list()[6:] == [""] * 3 + [CONTRADICTION] * 2


def test_more_than_half_of_the_operations_must_be_possible_where_they_are_counted_from_the_end() -> None:
    def of(*second: int) -> pl.DataFrame:
        first = [1000 * n for n in range(len(second) + 1)]
        return matched([*at_times(0, *first), *at_times(1, *second)], sure(0))

    assert reasons(of(1000, 2000, 3100, 4100)) == {UNCLEAR.format(4, 5)}
    table = of(1000, 2000, 3000, 4100, 5100)[6:]
    assert table["reason"].to_list() == [""] * 3 + [CONTRADICTION] * 2


def test_times_may_differ_by_the_error_of_both_clocks() -> None:
    """Of two operations one is 20 ns off: twice the error of 10 is possible, 1 ns more is not."""
    for second, told in ((70, {""}), (71, {CONTRADICTION})):
        rows = [*at_times(0, 0, 1000), *at_times(1, second, 1000)]
        assert reasons(matched(rows, sure(10))) == told
    # A number in the group tells which belong together; without a measured error any contradiction counts.
    for second, told in ((50, {""}), (51, {CONTRADICTION})):
        rows = [{**one, "sequence": 3} for one in (*at_times(0, 0), *at_times(1, second))]
        assert reasons(matched(rows)) == told


def test_only_places_that_all_ranks_have_tell_whether_times_are_possible() -> None:
    rows = at_times(0, 0, 1000, 2000, 3000)
    rows += [row(0, 4000, 4050, "all-gather"), *at_times(1, 500, 1500)]
    assert reasons(matched(rows, sure(0))) == {UNCLEAR.format(2, 5)}


def test_without_a_common_clock_all_operations_must_agree() -> None:
    rows = [row(r, 100 * n, 100 * n + 50) for r in (0, 1) for n in range(3)]
    rows[4]["kind"] = "all-gather"
    table = matched(rows, trust_clocks=False)
    assert reasons(table) == {"the ranks' collectives differ in kind, bytes or order"}


def test_one_that_lost_its_description_cannot_leave_before_the_others_of_its_name_come() -> None:
    lost = {"kind": "unknown", "bytes_in": None}
    rows = [row(0, 0, 9) | lost, row(1, 12, 20), *at_times(0, 100, 200), *at_times(1, 100, 200)]
    assert matched(rows, sure(1))["reason"].to_list() == [CONTRADICTION] * 2 + [""] * 4
    assert reasons(matched(rows, sure(2))) == {""}


def test_bytes_are_compared_where_all_say_what_they_do() -> None:
    """What an operation of unknown kind counts as its bytes is unknown too."""
    assert reasons(matched([row(0, 0, 9, "unknown"), row(1, 4, 9) | {"bytes_in": 16}])) == {""}


def test_the_largest_size_that_a_member_tells_of_its_group_counts() -> None:
    rows = [row(0, 0, 9, group="tp", group_size=3), row(1, 4, 9, group="tp")]
    assert reasons(matched(rows)) == {"2 ranks recorded it, of the 3 in its group"}


def test_what_was_not_matched_takes_no_number() -> None:
    rows = [row(0, 0, 9, "layout"), row(1, 1, 9, "layout"), row(0, 20, 29), row(1, 23, 29)]
    assert matched(rows)["instance"].to_list() == [None, None, 0, 0]


def test_who_leaves_a_broadcast_by_no_more_than_the_clocks_error_before_the_last_waited_for_it() -> None:
    for last, split in ((22, (12, 0)), (23, (None, None))):
        table = matched([row(0, 0, 12, "broadcast"), row(1, last, 40, "broadcast")], sure(5))
        assert table.select("wait", "transfer").rows() == [split, (0, 40 - last)]


def test_the_ranks_of_a_group_that_are_not_here_are_listed_up_to_six() -> None:
    for group, text in (
        ("0 [0, 2, 3, 4, 5, 6, 7]", "2, 3, 4, 5, 6, 7"),
        ("0 [0, 2, 3, 4, 5, 6, 7, 8]", "2, 3, 4, 5, 6, 7, …"),
    ):
        table = matched([row(0, 0, 9, group=group)], sure(0))
        assert reasons(table) == {f"ranks {text} of its group are not here"}


def test_times_of_clocks_without_a_known_error_may_differ_by_a_millisecond() -> None:
    """Of two operations one is 1 ms off, which may be, or 1 ns more: then the other is not matched either."""
    for second, told in ((1_000_050, [CONTRADICTION, ""] * 2), (1_000_051, [CONTRADICTION] * 4)):
        rows = [*at_times(0, 0, 9_000_000), *at_times(1, second, 9_000_000)]
        assert matched(rows)["reason"].to_list() == told


def test_pairs_assume_nothing_and_are_told_apart_by_ranks_and_group() -> None:
    """Ranks 0 and 1 in group '1' are not ranks 0 and 11 in none."""
    known = [{"rank": rank} for rank in range(12)]
    rows = [row(0, 0, 9, "send", peer=1, group="1"), row(11, 5, 9, "receive", peer=0)]
    assert reasons(matched(rows, known)) == {"no other rank recorded it"}
    pair = [row(0, 0, 9, "send", peer=1), row(1, 5, 9, "receive", peer=0)]
    assert matched(pair, known)["assumed"].to_list() == [False, False]


@pytest.mark.parametrize(
    ("kind", "synchronises", "same_bytes"),
    [
        ("all-reduce", True, True),
        ("all-gather", True, True),
        ("reduce-scatter", True, True),
        ("all-to-all", True, False),
        ("barrier", True, False),
        ("broadcast", False, True),
        ("reduce", False, True),
        ("gather", False, False),
    ],
)
def test_what_is_known_of_each_kind(kind: str, synchronises: bool, same_bytes: bool) -> None:
    apart = [{**row(0, 0, 10, kind), "sequence": 1}, {**row(1, 20, 30, kind), "sequence": 1}]
    assert (reasons(matched(apart)) == {CONTRADICTION}) == synchronises
    uneven = [row(0, 0, 30, kind), {**row(1, 20, 30, kind), "bytes_in": 16}]
    assert (reasons(matched(uneven)) == {""}) != same_bytes


def test_a_rank_that_is_told_of_twice_is_one_rank() -> None:
    known = [{"rank": rank, "world_size": 2, "clock_error": error} for error in (1, 5) for rank in (0, 1)]
    table = matched([row(0, 0, 9), row(1, 4, 9)], known)
    assert table["wait"].to_list() == [4, 0] and table["clock_error"].to_list() == [1, 1]


def test_what_a_send_puts_in_is_what_its_receive_puts_out() -> None:
    send = row(0, 0, 9, "send", peer=1) | {"bytes_in": 64, "bytes_out": 1}
    receive = row(1, 4, 9, "receive", peer=0) | {"bytes_in": 2, "bytes_out": 64}
    assert reasons(matched([send, receive])) == {""}
    assert reasons(matched([send | {"bytes_in": 65}, receive])) == {
        "the ranks' collectives differ in kind, bytes or order"
    }


def test_ranks_that_no_table_names_are_matched_with_nothing() -> None:
    table = matched([row(0, 0, 5), row(1, 2, 5)], [])
    assert table.height == 2 and table["instance"].null_count() == 2
    assert None not in reasons(table)


def test_a_group_of_unknown_size_has_the_ranks_that_are_in_it() -> None:
    unknown = [{"rank": rank} for rank in range(3)]
    rows = [row(rank, 10 * n + rank, 10 * n + 9, group="a") for rank in range(3) for n in range(2)]
    table = matched(rows, unknown)
    assert table.sort("start")["instance"].to_list() == [0, 0, 0, 1, 1, 1]
    assert table["assumed"].to_list() == [True] * 6


def test_a_rank_beyond_those_of_the_table_is_none_of_them() -> None:
    table = matched([row(0, 0, 5), row(7, 2, 5)], [{"rank": 0, "world_size": 2}])
    assert table.height == 2 and table["instance"].null_count() == 2


def test_instances_that_arrive_at_once_are_numbered_by_their_names_whenever_that_is() -> None:
    rows = [
        row(rank, at, at + 50, group=group)
        for group, at in (("x", 0), ("b", 900), ("a", 900))
        for rank in (0, 1)
    ]
    table = matched(rows)
    numbers = dict(table.select(pl.col("group").cast(pl.String), "instance").iter_rows())
    assert numbers == {"x": 0, "a": 1, "b": 2}


def test_an_operation_without_a_group_is_one_of_the_group_of_all_ranks() -> None:
    table = matched([row(0, 0, 9), row(1, 7, 9, group=WORLD)])
    assert table["instance"].to_list() == [0, 0] and table["wait"].to_list() == [7, 0]


def test_of_several_sizes_of_the_job_the_largest_counts() -> None:
    known = [{"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 4}]
    (said,) = reasons(matched([row(0, 0, 9), row(1, 3, 9)], known))
    assert said == "only 2 of 4 ranks are here and its group is unknown"


def test_a_lane_that_began_apart_lines_up_at_its_end_beside_one_that_did_not() -> None:
    """Both ranks recorded three operations of `a`, and of `b` rank 1 one more, before the others."""
    a, b = {"group": "a [0, 1]", "group_size": 2}, {"group": "b [0, 1]", "group_size": 2}
    rows = [row(r, 100 * n + 10 * r, 100 * n + 30, **a) for r in (0, 1) for n in range(1, 4)]
    rows += [row(r, 100 * n + 50 + 10 * r, 100 * n + 80, **b) for r in (0, 1) for n in range(1 - r, 4)]
    table = matched(rows, sure(0))
    assert table.filter(pl.col("wait").is_null()).select("rank", "start").rows() == [(1, 60)]
    assert table.filter(pl.col("wait").is_not_null()).group_by("rank", "wait").len().sort("rank").rows() == [
        (0, 10, 6), (1, 0, 6),
    ]  # fmt: skip


def test_one_that_is_alone_in_its_group_leads_by_nothing() -> None:
    rows = [row(0, start, start + 9, group="0 [0]", group_size=1, sequence=start) for start in (100, 300)]
    assert matched(rows).select("lead", "wait").rows() == [(0, 0), (0, 0)]


def on_two_streams(calls: dict[str, int]) -> list[dict[str, Any]]:
    """Gathers on stream 24, a scatter on stream 20: on rank 1 the gather launched after it overtakes it."""
    gather, scatter = {"kind": "all-gather", "stream": 24}, {"kind": "reduce-scatter", "stream": 20}
    ids = [{"correlation": call} for call in calls.values()]
    return [
        row(0, 10, 30, **gather, **ids[0]),
        row(0, 32, 48, **scatter, **ids[1]),
        row(0, 35, 55, **gather, **ids[2]),
        row(1, 12, 31, **gather, **ids[0]),
        row(1, 38, 49, **scatter, **ids[1]),
        row(1, 33, 56, **gather, **ids[2]),
    ]


def test_what_two_streams_of_a_group_run_counts_in_the_order_of_its_launches() -> None:
    table = matched(on_two_streams({"first": 5, "scatter": 7, "next": 9}))
    assert table["instance"].to_list() == [0, 1, 2, 0, 1, 2]
    assert table["wait"].to_list() == [2, 6, 0, 0, 0, 2]


@pytest.mark.parametrize(
    "calls", [{"first": 9, "scatter": 7, "next": 5}, {"first": 0, "scatter": 0, "next": 0}]
)
def test_ids_that_do_not_rise_along_a_stream_tell_no_order(calls: dict[str, int]) -> None:
    assert reasons(matched(on_two_streams(calls))) == {
        "the ranks' collectives differ in kind, bytes or order",
    }
