"""Ranks that are late in turn, or since a step: ledgers of a few rows, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from by_hand import given
from lostflops.causes.lateness import chain, late_rank, late_when, next_late
from lostflops.causes.one_rank.held_up import HeldUp
from lostflops.causes.one_rank.late import Excess, Late
from lostflops.causes.own_time.together import late_together, takes_turns, turns

BUBBLE = "idle.pipeline_bubble"
DATA, PYTHON, SAVING = "idle.data_loading", "idle.other_host_work", "idle.checkpoint_logging"
WAIT, TRANSFER, SYNCHRONISING = "communication.wait", "communication.transfer", "idle.host_synchronisation"
Rows = list[tuple[int, int, str, int]]


def own(*ranks: Sequence[int], account: str = DATA) -> Rows:
    """What each rank has of its own in each step, beside 100 ns of compute."""
    rows = [(r, s, "compute", 100) for r, steps in enumerate(ranks) for s in range(len(steps))]
    return rows + [(r, s, account, ns) for r, steps in enumerate(ranks) for s, ns in enumerate(steps) if ns]


STAGES = {"communication_wait": pl.DataFrame({"rank": [0], "in_pairs": [1]})}


def late(
    by_account: dict[str, int] | None = None, *, rank: int = 1, ns: int = 90, table: Any = None, **more: Any
) -> Late:
    excess = Excess(rank, by_account or {DATA: 90}, (), 90)
    return Late(
        rank, ns, ns, excess, None, 3, 0, False, table or {"last": 1, "collectives": 9}, ns, ns, **more
    )


# --- turns


def test_ranks_that_take_turns_are_told_in_order_whenever_each_is_late() -> None:
    found = turns(
        given(own((0, 9, 0, 0, 0), (0, 0, 0, 0, 9), (0, 0, 0, 9, 0), (9, 0, 0, 0, 0), (0, 0, 9, 0, 0)))
    )
    assert found is not None and found.ranks == (0, 1, 2, 3, 4)
    assert found.explained == 7  # 9 ns beyond a mean of 9 / 5


def test_ranks_that_take_turns_are_told_by_their_numbers() -> None:
    ranks = (812, 3, 407, 95, 640, 11, 228)
    rows: Rows = [(rank, step, "compute", 100) for rank in ranks for step in range(len(ranks))]
    found = turns(given(rows + [(rank, step, DATA, 9) for step, rank in enumerate(ranks)]))
    assert found is not None and found.ranks == tuple(sorted(ranks))


def turn(*each: dict[str, int], ranks: int = 4) -> Any:
    """Turns in which the n-th rank is late in step n, with so much of each account."""
    rows: Rows = [(r, s, "compute", 100) for r in range(ranks) for s in range(len(each))]
    rows += [(n, n, account, ns) for n, parts in enumerate(each) for account, ns in parts.items()]
    found = turns(given(rows))
    assert found is not None
    return found


def test_each_of_few_ranks_that_take_turns_has_a_cause_of_its_own() -> None:
    found = turn({DATA: 60}, {SAVING: 40})
    assert (found.account, found.share) == (DATA, 0.6)
    assert found.apart == ((0, DATA, 60), (1, SAVING, 40))
    # Four fifths in one account are that account's.
    assert turn({DATA: 80}, {SAVING: 20}).apart == ()
    assert turn({DATA: 79}, {SAVING: 21}).apart == ((0, DATA, 79), (1, SAVING, 21))
    # One that holds less than a tenth of all is not told, nor are more than three.
    assert turn({DATA: 40}, {SAVING: 51}, {PYTHON: 9}).apart == ((0, DATA, 40), (1, SAVING, 51))
    assert turn({DATA: 40}, {SAVING: 50}, {PYTHON: 10}).apart[2] == (2, PYTHON, 10)
    assert turn({DATA: 30}, {SAVING: 30}, {PYTHON: 20}, {DATA: 20}, ranks=5).apart == ()
    # All of one account is no difference.
    assert turn({DATA: 40, PYTHON: 30}, {DATA: 30}).apart == ()


def test_of_accounts_that_a_rank_has_as_much_of_the_first_name_is_its_cause() -> None:
    found = turn({SAVING: 30, DATA: 30}, {PYTHON: 40})
    assert found.account == PYTHON
    assert found.apart == ((0, SAVING, 30), (1, PYTHON, 40))
    found = turn({SAVING: 30, DATA: 30}, {PYTHON: 30})
    assert (found.account, found.share) == (SAVING, 30 / 90)


def test_others_take_turns_with_a_late_rank_where_they_are_late_half_as_much_as_it() -> None:
    def takes(*ranks: Sequence[int], **tables: pl.DataFrame) -> bool:
        return takes_turns(late(), given(own(*ranks), **tables))

    assert takes((0, 10, 0), (10, 0, 10), (0, 0, 0))
    assert not takes((0, 9, 0), (10, 0, 10), (0, 0, 0))
    assert not takes((0, 10, 0), (10, 0, 10), (0, 0, 0), **STAGES)  # they pass lateness on
    assert takes_turns(late(), given([(0, 0, DATA, 9)])) is False  # no step that two ranks have
    # Rank 0 is late by 10 in a step in which rank 1 is late by 20: that is no turn of its own.
    assert not takes((10, 0), (20, 0), (0, 0))


def test_what_the_last_rank_waits_is_nothing_that_it_does() -> None:
    rows = [
        *own((0, 0), (9, 9), (0, 0)),
        *((1, step, account, 70) for step in (0, 1) for account in (WAIT, BUBBLE)),
    ]
    found = turns(given(rows))
    assert found is not None and (found.account, found.share, found.explained) == (DATA, 1.0, 6)


def test_ranks_that_meet_others_are_not_compared() -> None:
    """Ranks 0 and 1 wait for each other; ranks 2 and 3 have parts of their own in the job."""
    rows = [*own((9, 0), (0, 9), (500, 500), (0, 800)), (0, 1, WAIT, 9), (1, 0, WAIT, 9)]
    known = replace(given(rows), meeting=(frozenset({2, 3}), frozenset({0, 1})))
    found = turns(known)
    assert found is not None and (found.ranks, found.explained) == ((0, 1), 4)


# --- who is next


def test_the_next_late_rank_is_told_where_it_is_why_little_is_gained() -> None:
    """Rank 1 has 100 ns more than the median of the others; rank 2 has 60 or less."""

    def after(second: int, ns: int, **tables: pl.DataFrame) -> tuple[int, int] | None:
        known = given(own((0,), (100,), (second,), (0,), (0,)), **tables)
        found = next_late(late({DATA: 100}, ns=ns), known)
        return (found.rank, found.ns) if found else None

    assert after(60, 40) == (2, 60)
    assert after(30, 40) == (2, 30)  # half of the 60 that are missing
    assert after(29, 40) is None
    assert after(60, 79) == (2, 60)
    assert after(60, 80) is None  # four fifths of its lateness are gained
    assert after(60, 40, **STAGES) is None
    assert after(0, 40) is None


def test_of_ranks_that_are_late_next_the_latest_is_told() -> None:
    known = given(own((0,), (100,), (50,), (60,), (0,), (0,), (0,)))
    found = next_late(late({DATA: 100}, ns=40), known)
    assert found is not None and (found.rank, found.ns) == (3, 60)


# --- when


@pytest.mark.parametrize(
    ("late_by", "said"),
    [
        ((0, 9, 9, 9), "all of it since step 1"),
        ((9, 9, 9, 0), "all of it up to step 2"),
        ((9, 9, 9, 0, 9, 0), ""),
        ((0, 9, 9), ""),  # two in a row are none
        ((0, 100, 100, 50, 150), "all of it since step 1"),  # half of the mean
        ((0, 100, 100, 49, 151), ""),
        ((10, 100, 100, 100), "nearly all of it since step 1"),  # a tenth of the mean
        ((11, 100, 100, 100), ""),
        ((0, 0, 0, 0), ""),
        ((0, 0, 9, 9, 9, 9), "all of it since step 2"),
        ((1, 200, 200, 200), "all of it since step 1"),  # a thousandth
    ],
)
def test_a_rank_is_late_since_a_step_or_up_to_one(late_by: tuple[int, ...], said: str) -> None:
    even = (0,) * len(late_by)
    assert late_when(late(), given(own(even, late_by, even))) == said


@pytest.mark.parametrize(
    ("late_by", "told"),
    [
        ((0, 0, 9, 9, 1, 9, 1, 9, 9), True),
        ((1, 0, 9, 9, 1, 9, 1, 9, 9), True),  # half a nanosecond before, 6.7 after
        ((1, 1, 9, 9, 1, 9, 1, 9, 9), False),
        ((1, 1, 13, 13, 1, 13, 4, 13, 13), True),  # 1 before, 10 after: a tenth
        ((5, 5, 9, 9, 1, 9, 1, 9, 9), False),
    ],
)
def test_a_replay_tells_since_when_where_it_was_not_late_before(late_by: tuple[int, ...], told: bool) -> None:
    even = (0,) * len(late_by)
    kinds = {
        "part": pl.String,
        "rank": pl.Int64,
        "own": pl.Int64,
        "even": pl.Int64,
        "removal": pl.Float64,
        "steps": pl.Int64,
    }
    rows = [
        {"part": "job", "own": 100, "even": 60, "steps": 5},
        {"part": "rank", "rank": 1, "removal": 0.9, "since": 2},
    ]
    table = pl.DataFrame(rows, kinds | {"name": pl.String, "since": pl.Int64})
    said = list(chain(late(), given(own(even, late_by, even), stragglers=table)))
    assert ("it is late since step 2" in said) is told


def replayed(*rows: dict[str, Any], **more: Any) -> list[str]:
    kinds = {
        "part": pl.String,
        "rank": pl.Int64,
        "own": pl.Int64,
        "even": pl.Int64,
        "removal": pl.Float64,
        "steps": pl.Int64,
    }
    table = pl.DataFrame(rows, kinds | {"name": pl.String, "since": pl.Int64})
    known = replace(given(own((0,) * 9, (0, 0, 9, 9, 1, 9, 1, 9, 9), (0,) * 9), stragglers=table), **more)
    return list(chain(late(), known))


def test_a_replay_is_told_where_all_ranks_meet() -> None:
    whole, mine = (
        {"part": "job", "own": 100, "even": 60, "steps": 5},
        {"part": "rank", "rank": 1, "removal": 0.9, "since": 2},
    )
    other = {"part": "stage", "rank": 1, "removal": 0.3, "since": 5}
    even = (
        "replayed with all work spread evenly over ranks the last rank is done with the last 5 steps after "
        "300 ns instead of 500 ns"
    )
    told = [f"{even}: rank 1 alone is 90.0 % of the difference", "it is late since step 2"]
    assert replayed(whole, other, mine) == told
    assert replayed(whole, mine, meeting=(frozenset({0, 1, 2}),)) == told
    assert replayed(whole, mine, meeting=(frozenset({0, 1}), frozenset({2, 3}))) == []


# --- what it waits for


CALLS = ("cudaStreamSynchronize", "cudaLaunchKernel")


def waiting(mine: tuple[int, int], others: tuple[int, int]) -> Late:
    rows = [
        (r, s, account, ns)
        for s in range(2)
        for r in range(3)
        for account, ns in (
            (("compute", 100), (SYNCHRONISING, 15), ("idle.launch_bound", 25))
            if r == 1
            else (("compute", 100), (WAIT, 40))
        )
    ]
    columns = {"rank": [r for r in range(3) for _ in CALLS], "name": [*CALLS] * 3}
    counts = [n for r in range(3) for n in (mine if r == 1 else others)]
    told = {"at_most": 30, "per_step": 20, "blame_share": 0.9, "unmatched": 0, "collectives": 9, "last": 8}
    known = given(
        rows,
        api_call_summary=pl.DataFrame({**columns, "calls_in_steps": counts}),
        communication_imbalance=pl.DataFrame([{"rank": r, **told, "assumed": False} for r in (1, 0, 2)]),
    )
    found = late_rank(known)
    assert found is not None
    return found


def test_only_calls_that_wait_are_counted_as_waits() -> None:
    assert waiting((8, 100), (2, 100)).excess.waits == 0
    often = waiting((8 * 2, 100), (2, 100)).excess
    assert (often.waits, often.account, often.by_account) == (
        8,
        SYNCHRONISING,
        {SYNCHRONISING: 40, "compute": 0},
    )
    assert waiting((2, 1000), (2, 100)).excess.waits == 0  # it launches more, and waits no more often


# --- what it gains


def blamed(*idle: int, own: int = 140, lead: int = 30, names: Sequence[Any] = ()) -> Late:
    """Rank 1 comes so much later than the next; the others wait so long, and transfer the rest of 40 ns."""
    rows = [(1, 0, "compute", own)]
    for rank, waits in zip((0, 2), idle, strict=True):
        rows += [(rank, 0, "compute", 100), (rank, 0, TRANSFER, 40 - waits)]
        rows += [(rank, 0, WAIT, waits)] if waits else []
    told = {
        "at_most": lead,
        "per_step": min(20, lead),
        "blame_share": 0.9,
        "unmatched": 0,
        "collectives": 9,
        "last": 8,
    }
    table = pl.DataFrame([{"rank": r, **told, "assumed": False} for r in (1, 0, 2)])
    found = late_rank(given(rows, names=names, communication_imbalance=table))
    assert found is not None
    return found


def test_what_others_transfer_is_none_of_what_they_wait_for() -> None:
    assert blamed(15, 15).ns == 30  # half of it they wait: a lead of 30
    assert blamed(14, 14).ns == 14  # they wait less than half of it, and are no sooner done
    assert blamed(25, 14).ns == blamed(14, 25).ns == 14  # one is no sooner done
    assert blamed(25, 0).ns == blamed(0, 25).ns == 0  # one never waits


def test_a_nanosecond_of_work_explains_two_of_lateness() -> None:
    found = blamed(40, 40, own=101, lead=2)
    # It is no later than it has more of its own.
    assert (found.ns, found.excess.by_account, found.excess.waits) == (1, {"compute": 1}, 0)


def test_names_are_those_of_the_account_that_makes_it_late() -> None:
    names = [(1, account, name, 30) for account, name in (("compute", "mm"), ("idle.launch_bound", "launch"))]
    assert blamed(40, 40, names=names).excess.parts == (("`mm`", 30),)


# --- what goes with it


def test_the_evidence_names_what_else_it_has_a_tenth_of_its_lateness_in() -> None:
    def beside(**of: int) -> list[str]:
        parts = {DATA: 90, **{f"idle.{name}": ns for name, ns in of.items()}}
        known = given(own((0,), (1,)))
        return [line.partition(":")[0] for line in chain(late(parts), known) if "more per step" in line]

    assert beside(garbage_collection=9, checkpoint_logging=8) == ["garbage collection"]
    # What explains a fifth beside its largest account is told with that.
    told = beside(garbage_collection=19, checkpoint_logging=18)
    assert "garbage collection" not in told
    assert beside(other_host_work=12, garbage_collection=11, checkpoint_logging=10) == [
        "other host work",
        "garbage collection",
    ]
    assert beside(no_such_account=12) == []


@pytest.mark.parametrize(("last", "told"), [(5, True), (4, False), (10, True)])
def test_that_it_arrives_last_is_said_of_half_of_the_collectives(last: int, told: bool) -> None:
    said = chain(late(table={"last": last, "collectives": 10}), given(own((0,), (1,))))
    assert list(said) == ([f"it arrives last in {last} of 10 collectives"] if told else [])


@pytest.mark.parametrize(("account", "told"), [(PYTHON, True), (DATA, False)])
def test_another_thread_that_runs_is_said_of_python(account: str, told: bool) -> None:
    thread = HeldUp("`f`", 9, 10)
    slow = late({account: 90})
    slow = replace(slow, excess=replace(slow.excess, thread=thread))
    said = "that thread runs in 90.0 % of its pauses, and Python lets one thread run at a time"
    assert (said in list(chain(slow, given(own((0,), (1,)))))) is told


def test_ranks_that_are_late_together_are_compared_with_the_others_alone() -> None:
    """Ranks 1 and 3 load data for 100 ns, the others for 10 and 30: 80 more than these."""
    found = late_together(given(own((10, 10), (100, 100), (30, 30), (100, 100))))
    assert found is not None and (found.more, found.main) == (70, 80)


def test_each_of_few_that_are_late_together_has_the_most_of_its_cause() -> None:
    rows = [
        *own(*[(0, 0)] * 4),
        *((1, s, account, ns) for s in range(2) for account, ns in ((SAVING, 100), (PYTHON, 5))),
        *((3, s, account, 30) for s in range(2) for account in (DATA, "idle.compilation", PYTHON, SAVING)),
    ]
    found = late_together(given(rows))
    assert found is not None and found.apart == ((1, SAVING, 100), (3, PYTHON, 30))


def test_ranks_that_are_late_together_for_causes_of_their_own_say_so() -> None:
    rows = own(*[(0, 0)] * 4) + [(1, s, DATA, 50) for s in range(2)] + [(3, s, PYTHON, 40) for s in range(2)]
    found = late_together(given(rows))
    assert found is not None
    assert (found.ranks, found.more, found.account, found.main) == ((1, 3), 40, DATA, 25)
    assert found.apart == ((1, DATA, 50), (3, PYTHON, 40))
    rows = own(*[(0, 0)] * 4) + [(r, s, DATA, 50) for s in range(2) for r in (1, 3)]
    found = late_together(given(rows))
    assert found is not None and (found.main, found.apart) == (50, ())


def test_who_comes_a_little_after_a_late_rank_in_its_turn_is_no_later_than_that() -> None:
    """Rank 1 loads 20 in each step. In one it takes 44, in the others another takes 24 in all."""
    steps = [[24 if step % 3 == rank else 0 for step in range(6)] for rank in range(3)]
    steps[1] = [ns + 20 for ns in steps[1]]
    assert not takes_turns(late({DATA: 20}, rank=1, ns=15), given(own(*steps)))
    steps[1] = [ns - 20 for ns in steps[1]]
    assert takes_turns(late({DATA: 8}, rank=1, ns=8), given(own(*steps)))
