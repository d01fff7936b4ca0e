"""The rank that the others wait for, by numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import by_hand
from lostflops.causes.given import Given
from lostflops.causes.idle.named import names_of
from lostflops.causes.lateness import (
    SYNCHRONISING,
    Even,
    _only_step,  # pyright: ignore[reportPrivateUsage]
    chain,
    in_words,
    late_rank,
    names_beyond,
    stages,
)
from lostflops.causes.longer_compute import slower_compute
from lostflops.causes.one_rank.held_up import HeldUp
from lostflops.causes.one_rank.late import Excess, Late, says
from lostflops.causes.own_time.spent import like_others_at_most
from lostflops.causes.own_time.together import LateTogether, late_together, turns
from lostflops.recipes.compute.of_ranks import WORK

DATA, PYTHON, WAIT = "idle.data_loading", "idle.other_host_work", "communication.wait"
MS = 1_000_000
# Rank 1 waits for its loader while the others wait for it: three steps of 140 ns.
LEDGER = [
    (rank, step, account, ns)
    for step in range(3)
    for rank in range(3)
    for account, ns in (("compute", 100), (DATA if rank == 1 else WAIT, 40))
]
WORST = {
    "rank": 1, "at_most": 38, "per_step": 20, "blame_share": 0.9, "unmatched": 1, "collectives": 9, "last": 8,
    "assumed": None,
}  # fmt: skip
OTHERS = [{**WORST, "rank": rank, "at_most": 0, "per_step": 0, "blame_share": 0.05} for rank in (0, 2)]


def given(
    ledger: list[tuple[int, int, str, int]] = LEDGER,
    worst: dict[str, Any] | None = None,
    first: list[dict[str, Any]] | None = None,
    names: list[tuple[int, str, str | None, int]] = [],  # noqa: B006
    **more: Any,
) -> Given:
    rows = [*(first or []), WORST | (worst or {}), *OTHERS]
    table = pl.DataFrame(rows, infer_schema_length=None)
    return replace(by_hand.given(ledger, names=names, communication_imbalance=table), **more)


def test_the_late_rank_is_told_with_what_it_has_more_of() -> None:
    names = [
        (1, DATA, "one", 3),
        (1, DATA, "also", 3),
        (1, DATA, "none", 2),
        (1, DATA, "next", 90),
        (1, DATA, "read", 30),
        (0, DATA, "next", 15),
        (1, DATA, None, 7),
    ]
    names += [(2, DATA, "next", 21), (0, DATA, "read", 60), (2, DATA, "read", 66), (1, PYTHON, "f", 999)]
    late = late_rank(given(names=names))
    assert late is not None
    assert (late.rank, late.ns, late.waited, late.only_step, late.steps) == (1, 38, 30, None, 3)
    assert (late.unmatched, late.assumed, late.cause) == (1, False, DATA)
    excess = late.excess
    assert dict(excess.by_account) == {DATA: 40, "compute": 0}
    assert (excess.rank, excess.ns, excess.main, excess.own) == (1, 40, 40, 40)
    # A mean step of rank 1 has 30 ns of `next`, of the others 5 and 7; of `read` it has less than they.
    assert excess.parts == (("`next`", 24), ("`also`", 1), ("`one`", 1))


def test_work_that_belongs_to_no_rank_is_not_late() -> None:
    nobody = {**WORST, "rank": None, "at_most": 10**6, "per_step": 10**6}
    late = late_rank(given(first=[nobody]))
    assert late is not None and late.rank == 1


@pytest.mark.parametrize(
    ("worst", "told"),
    [
        ({"blame_share": 0.5}, True),
        ({"blame_share": 0.4999}, False),
        ({"blame_share": None}, False),
        ({"unmatched": 9}, True),
        ({"unmatched": 10}, False),
        ({"at_most": 11}, True),
        ({"at_most": 10}, False),  # a third of the 30 ns that another rank waits
        ({"at_most": None, "per_step": None}, False),
        ({"at_most": 80}, True),
        ({"at_most": 81}, False),  # its own work explains 40
        ({"rank": 7}, False),  # not in the ledger
        ({"assumed": True}, True),
    ],
)
def test_a_rank_is_late_from_these_numbers_on(worst: dict[str, Any], told: bool) -> None:
    late = late_rank(given(worst=worst))
    assert (late is not None) == told
    if late is not None:
        assert late.assumed == bool(worst.get("assumed"))


def test_of_two_ranks_one_can_be_late() -> None:
    two = given([row for row in LEDGER if row[0] != 2])
    two.answers["communication_imbalance"].table = pl.DataFrame([WORST, OTHERS[0]])  # type: ignore[misc]
    late = late_rank(two)
    assert late is not None and late.waited == 40


def test_one_rank_is_late_for_nobody() -> None:
    alone = given()
    alone.answers["communication_imbalance"].table = pl.DataFrame([WORST])  # type: ignore[misc]
    assert late_rank(alone) is None
    assert late_rank(Given(answers={}, ledger=alone.ledger)) is None
    mine = [row for row in LEDGER if row[0] == 1]
    assert late_rank(given(mine)) is None


def test_a_rank_with_no_more_than_the_others_is_not_late() -> None:
    even = [(rank, step, "compute", 100) for rank in range(3) for step in range(3)]
    assert late_rank(given(even)) is None


def test_of_accounts_with_as_much_the_first_name_counts() -> None:
    tied = [*LEDGER, *((1, step, "copy", 40) for step in range(3))]
    late = late_rank(given(tied))
    assert late is not None
    assert list(late.excess.by_account) == ["copy", DATA, "compute"]


def by_step(late: tuple[int, ...], *, other: int = 5) -> Given:
    rows = [(1, step, DATA, other + ns) for step, ns in enumerate(late)]
    rows += [(rank, step, "compute", other) for step in range(len(late)) for rank in (0, 2)]
    rows += [(rank, step, WAIT, 1000) for step in range(len(late)) for rank in (0, 1, 2)]
    rows += [(rank, step, "communication.transfer", 900) for step in range(len(late)) for rank in (0, 2)]
    rows += [(0, 99, DATA, 5000)]  # no other rank has this step
    return given(rows)


@pytest.mark.parametrize(
    ("late", "step"),
    [
        ((10, 80, 10), 1),
        ((11, 79, 10), None),
        ((0, 50), None),
        ((0, 50, 0), 1),
        ((-5, -5, 2, -5), 2),  # earlier than the others is not late
    ],
)
def test_a_rank_is_late_once_where_one_step_has_four_fifths(late: tuple[int, ...], step: int | None) -> None:
    assert _only_step(by_step(late), 1) == step


def test_lateness_is_beyond_the_other_ranks_alone() -> None:
    rows = [(rank, step, DATA, own) for step in range(3) for rank, own in ((0, 5), (2, 25))]
    # The others' median is 15: rank 1 is 11, 79 and 10 late.
    assert _only_step(given([*rows, (1, 0, DATA, 26), (1, 1, DATA, 94), (1, 2, DATA, 25)]), 1) is None


def test_steps_in_which_a_rank_is_early_make_up_for_none_in_which_it_is_late() -> None:
    assert _only_step(by_step((80, 21, -5, -5)), 1) is None
    assert _only_step(by_step((80, 20, -5, -5)), 1) == 0
    rows = [(0, 0, "compute", 20), (1, 0, "compute", 10), (1, 0, PYTHON, 40)]
    found = turns(given(rows))
    assert found is not None and (found.account, found.share) == (PYTHON, 1.0)


def test_a_rank_that_nothing_is_known_of_but_its_waiting_is_not_late() -> None:
    assert (
        late_rank(given([row for row in LEDGER if row[2] == WAIT and row[0] != 1] + [(1, 0, WAIT, 1)]))
        is None
    )
    late = late_rank(given(worst={"per_step": None}))
    assert late is not None and (late.waited, late.explains) == (0, 0)


def test_names_that_cost_as_much_stand_in_their_order() -> None:
    late = late_rank(given(names=[(1, DATA, name, 30) for name in "gbdfaec"]))
    assert late is not None and [name for name, _ in late.excess.parts] == [f"`{name}`" for name in "abcdefg"]


def test_a_nanosecond_of_saving_is_saving() -> None:
    saving = "idle.checkpoint_logging"
    rows = [(r, s, saving if a == DATA else a, ns) for r, s, a, ns in LEDGER]
    late = late_rank(given(rows, names=[(1, saving, "torch.save", 3)]))
    assert late is not None and late.excess.saved_or_logged == "checkpoints"
    assert late.excess.parts == (("`torch.save`", 1),)


def together(*own: tuple[int, ...], waits: int = 0) -> tuple[tuple[int, ...], int, str, int] | None:
    """Who is late together, by how much, and of which account how much.

    Ranks have so much time of their own in each step: 100 ns of it compute, the rest data loading.
    """
    rows = [
        row
        for rank, steps in enumerate(own)
        for step, ns in enumerate(steps)
        for row in (
            (rank, step, "compute", min(ns, 100)),
            (rank, step, DATA, max(ns - 100, 0)),
            (rank, step, WAIT, waits * rank),
        )
    ]
    found = late_together(given(rows))
    return None if found is None else (found.ranks, found.more, found.account, found.main)


def test_ranks_are_late_together_by_the_gap_to_the_others() -> None:
    late, other = (130, 130), (100, 100)
    assert together(other, late, other, late) == ((1, 3), 30, DATA, 30)
    assert together(other, late, other, late, waits=500) == ((1, 3), 30, DATA, 30)
    assert together(other, (134, 134), other, late) == ((1, 3), 30, DATA, 32)
    assert together(late, late, other) is None  # three ranks
    assert together(late, late, late, other) is None  # most of them
    assert together((180, 180), late, other, other) is None  # one of them
    five = (other, late, other, late, other)
    assert together(*five) == ((1, 3), 30, DATA, 30)
    six = [(ns, ns) for ns in (140, 135, 130, 100, 100, 98)]
    assert together(*six) == ((0, 1, 2), 30, DATA, 35)
    six = [(ns, ns) for ns in (140, 138, 100, 99, 98, 97)]
    assert together(*six) == ((0, 1), 38, DATA, 39)
    six = [(ns, ns) for ns in (130, 130, 110, 100, 100, 100)]
    assert together(*six) == ((0, 1), 20, DATA, 30)
    assert together() is None


def test_ranks_that_differ_as_much_from_each_other_are_not_late_together() -> None:
    assert together(*((ns, ns) for ns in (160, 130, 100, 100))) is None
    assert together(*((ns, ns) for ns in (159, 130, 100, 100))) == ((0, 1), 30, DATA, 44)
    assert together(*((ns, ns) for ns in (130, 130, 100, 70))) is None
    assert together(*((ns, ns) for ns in (130, 130, 100, 71))) == ((0, 1), 30, DATA, 30)


def test_ranks_are_late_together_in_four_of_five_steps() -> None:
    always, never = (150,) * 5, (100,) * 5
    for exceptions, told in ((1, True), (2, False)):
        seldom = (150,) * (5 - exceptions) + (100,) * exceptions
        assert (together(always, never, seldom, never) is not None) == told


def test_a_step_that_a_rank_lacks_tells_nothing_of_ranks_that_are_late_together() -> None:
    """Ranks 0 and 1 are late in steps 0 to 2; steps 3 and 4, in which they are not, rank 3 lacks."""
    seldom = (150,) * 3 + (100,) * 2
    assert together(seldom, seldom, (100,) * 5, (100,) * 3) == ((0, 1), 50, DATA, 30)


def test_of_accounts_with_as_much_the_last_by_name_is_a_ranks_own() -> None:
    alike = sorted((PYTHON, DATA, "idle.launch_bound", "idle.checkpoint_logging", "copy"))
    for order in (alike, alike[::-1], alike[2:] + alike[:2]):
        rows = [(rank, 0, "compute", 100) for rank in range(4)]
        rows += [*((0, 0, account, 12) for account in order), (1, 0, "compute", 60)]
        found = late_together(given(rows))
        assert found is not None and found.apart == ((0, PYTHON, 12), (1, "compute", 60))


def test_many_ranks_are_named_by_the_first() -> None:
    ranks = tuple(range(8))
    assert LateTogether(ranks, 1, DATA, 1).called == "ranks 0 to 7"
    assert LateTogether((0, 1, 3, 4), 1, DATA, 1).called == "ranks 0, 1, 3 and 4"
    assert LateTogether((1, 2, 3), 1, DATA, 1).called == "ranks 1, 2 and 3"
    assert LateTogether((*ranks, 9), 1, DATA, 1).called == "ranks 0, 1, 2, …"


def test_ranks_that_are_late_in_turn_say_of_what() -> None:
    rows = [(0, 0, DATA, 20), (0, 0, "compute", 10), (1, 0, "compute", 10)]
    rows += [(0, 1, "compute", 10), (1, 1, "compute", 13), (1, 1, PYTHON, 40), (0, 1, WAIT, 500)]
    rows += [(0, 2, DATA, 700)]  # no other rank has this step
    found = turns(given(rows))
    assert found is not None
    # 30 and 10 ns in the first step, 10 and 53 in the second: beyond the mean (30 - 20 + 53 - 31.5) / 2.
    assert (found.explained, found.account, found.ranks) == (15, PYTHON, (0, 1))
    assert found.share == 40 / (40 + 20 + 3)


def test_the_same_rank_twice_is_one_rank() -> None:
    rows = [(0, step, DATA, 20) for step in (0, 1)] + [(1, step, "compute", 1) for step in (0, 1)]
    found = turns(given(rows))
    assert found is not None and found.ranks == (0,)


def test_ranks_that_do_the_same_take_no_turns() -> None:
    assert turns(given([(rank, 0, "compute", 10) for rank in (0, 1)])) is None
    assert turns(given([(0, 0, "compute", 10)])) is None


def late(by_account: dict[str, int], own: int, parts: tuple[tuple[str, int], ...] = (), **more: Any) -> Late:
    known: dict[str, Any] = {"rank": 1, "ns": 10 * MS, "waited": 9, "only_step": None, "steps": 3}
    return Late(
        **known | {"unmatched": 0, "assumed": False, "table": WORST} | more,
        excess=Excess(1, by_account, parts, own),
    )


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (late({"compute": 8 * MS}, 90 * MS), "it computes 8.00 ms longer than the others"),
        (late({DATA: 7 * MS}, 7 * MS), "7.00 ms of data loading"),
        (
            late({DATA: 18 * MS}, 20 * MS),
            "20.0 ms of data loading, against 2.00 ms on the others",
        ),
        (late({DATA: 18 * MS + 1}, 20 * MS), "20.0 ms of data loading"),
        (
            late({PYTHON: 8 * MS}, 8 * MS, (("`f` (a.py:3)", 4 * MS), ("`g`", MS))),
            "8.00 ms of Python and other CPU work, `f` (a.py:3)",
        ),
        (
            late({PYTHON: 8 * MS}, 8 * MS, (("`f` (a.py:3)", 4 * MS - 1),)),
            "8.00 ms of Python and other CPU work",
        ),
        (late({PYTHON: 8 * MS}, 8 * MS, (("`f`", 8 * MS),)), "8.00 ms of Python and other CPU work"),
    ],
)
def test_what_makes_it_late_is_said(late: Late, said: str) -> None:
    assert says(late) == said


def test_the_evidence_says_how_often_and_what_else() -> None:
    also = {DATA: 9 * MS, "copy": MS, "compute": MS - 1, PYTHON: 5 * MS}
    (often, copies, unmatched) = chain(late(also, 9 * MS, unmatched=1200), given())
    assert often == "it arrives last in 8 of 9 collectives"
    assert copies.endswith(": 1.00 ms more per step than on the others")
    assert unmatched == "not in this: 1,200 of its collectives that could not be matched"
    assert len(list(chain(late({DATA: 9 * MS, "nothing of ours": 9 * MS}, 9 * MS), given()))) == 1


def work(*rows: tuple[int, str, str, int, int], **more: Any) -> Given:
    """Ranks that ran these kernels in their steps, three or as many as `ledger` says."""
    steps: Any = {"ledger": [*LEDGER, *((3, step, "compute", 140) for step in range(3))]} | more
    return given(work=pl.DataFrame(rows, WORK, orient="row"), **steps)


THERE = "times as long as the same kernels there"
MORE = "it runs other or larger kernels than they do: it has more work, such as longer sequences"
SAME = ((0, "gemm", "a 64", 6, 100), (2, "gemm", "a 64", 6, 110))
SLOWER = late({"compute": 8}, 8)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        # The others' median is 105.
        ([*SAME, (1, "gemm", "a 64", 6, 126)], (f"its gemm kernels take 1.2 {THERE}", True)),
        ([*SAME, (1, "gemm", "a 64", 6, 110)], None),
        ([*SAME, (1, "gemm", "a 64", 12, 210)], ("it runs 2 times as many kernels per step", False)),
        ([*SAME, (1, "gemm", "b 64", 6, 126)], (MORE, False)),
        ([*SAME], None),
        ([*SAME, (1, "gemm", "a 64", 6, 113)], (f"its gemm kernels take 1.08 {THERE}", True)),
        # Four fifths of its time are the same work; then a little less.
        ([*SAME, (1, "gemm", "a 64", 6, 200), (1, "gemm", "c", 1, 50)],
         (f"its gemm kernels take 1.9 {THERE}", True)),
        ([*SAME, (1, "gemm", "a 64", 6, 200), (1, "gemm", "c", 1, 51)],
         ("it runs 1.17 times as many kernels per step", False)),
        # Another family keeps its pace.
        ([*SAME, (1, "gemm", "a 64", 6, 210), *((rank, "norm", "n", 3, 1000) for rank in range(3))],
         (f"its gemm kernels take 2 {THERE}", True)),
        # One other rank of three runs it: what the others run it does not.
        ([(rank, "gemm", "a" if rank < 2 else "b", 6, 100) for rank in range(4)],
         (MORE, False)),
        ([(0, "gemm", "a 64", 0, 100), (1, "gemm", "b", 3, 100)], (MORE, False)),
        ([(0, "gemm", "a 64", 0, 100), (1, "gemm", "b", 6, 100)],
         ("it runs 2 times as many kernels per step", False)),
        ([(1, "gemm", "a 64", 6, 126)], None),
        # A grouped product is given more to do on the same grid: not a slower device.
        ([(rank, "gemm", "grouped_gemm", 6, ns) for rank, ns in ((0, 100), (2, 110), (1, 210))],
             (f"the kernels of its experts take 2 {THERE}", False)),
    ],
)  # fmt: skip
def test_why_a_rank_computes_longer(rows: Any, told: tuple[str, bool] | None) -> None:
    assert slower_compute(1, work(*rows)) == told


def test_a_slower_device_is_blamed_where_nearly_all_kernels_are_slower() -> None:
    def of(slow: int, kept: int) -> tuple[str, bool] | None:
        both = [(rank, "gemm", "a", 6, slow) for rank in (0, 2)]
        both += [(rank, "gemm", "b", 6, kept) for rank in (0, 2)]
        return slower_compute(1, work(*both, (1, "gemm", "a", 6, 2 * slow), (1, "gemm", "b", 6, kept)))

    assert of(80, 20) == (f"its gemm kernels take 1.8 {THERE}", True)
    near = [(rank, "gemm", name, 6, ns) for rank in (0, 2) for name, ns in (("a", 700), ("b", 300))]
    assert slower_compute(1, work(*near, (1, "gemm", "a", 6, 1400), (1, "gemm", "b", 6, 312))) == (
        f"its gemm kernels take 1.7 {THERE}",
        False,
    )  # 4 % more is no slower kernel
    assert of(79, 21) == (f"its gemm kernels take 1.8 {THERE}", False)


def test_calls_within_two_percent_are_the_same_work() -> None:
    others = [(rank, "gemm", "a", 100, 100) for rank in (0, 2)]
    assert slower_compute(1, work(*others, (1, "gemm", "a", 102, 200))) == (
        f"its gemm kernels take 2 {THERE}",
        True,
    )
    assert slower_compute(1, work(*others, (1, "gemm", "a", 50, 200))) == (MORE, False)
    many = [(rank, "gemm", "a", 1000, 100) for rank in (0, 2)]
    assert slower_compute(1, work(*many, (1, "gemm", "a", 1022, 200))) == (MORE, False)
    assert slower_compute(1, work(*others, (1, "gemm", "a", 103, 200))) == (
        MORE,
        False,
    )
    assert slower_compute(1, work(*others, (1, "gemm", "a", 111, 200))) == (
        "it runs 1.11 times as many kernels per step",
        False,
    )


def test_calls_are_counted_per_step() -> None:
    ledger = [(rank, step, "compute", 100) for rank in range(3) for step in range(rank + 1)]
    rows = [(0, "gemm", "a 64", 6, 100), (1, "gemm", "b 64", 36, 210), (2, "gemm", "a 64", 18, 110)]
    told = slower_compute(1, work(*rows, ledger=ledger))
    assert told == ("it runs 3 times as many kernels per step", False)
    alone = [(rank, 0, "compute", 100) for rank in range(3)]
    told = slower_compute(1, work(*rows[:2], ledger=alone))
    assert told == ("it runs 6 times as many kernels per step", False)


def test_what_shows_because_the_host_waits_often_is_part_of_the_waits() -> None:
    between = "idle.unexplained"
    ledger = [
        (rank, step, account, ns)
        for step in range(3)
        for rank in range(3)
        for account, ns in (
            (("compute", 100), (SYNCHRONISING, 15), (between, 25))
            if rank == 1
            else (("compute", 100), (WAIT, 40))
        )
    ]
    known = given(ledger)
    assert (late := late_rank(known)) is not None and late.cause == between
    for often, cause in ((12, SYNCHRONISING), (11, between)):
        calls = {"rank": [1, 0], "name": ["cudaStreamSynchronize"] * 2, "calls": [99, 0]}
        calls = pl.DataFrame({**calls, "calls_in_steps": [often, 0]})
        answers = {**known.answers, "api_call_summary": SimpleNamespace(table=calls, findings=())}
        late = late_rank(replace(known, answers=answers))  # pyright: ignore[reportArgumentType]
        assert late is not None and late.cause == cause
        assert late.excess.own == (40 if cause == SYNCHRONISING else 25)
        # Another thread runs beside all of its pauses: that tells why a host pauses that has no waits to say.
        known_beside = pl.DataFrame({"rank": [1], "name": ["tally"], "time": [75], "pauses": [75]})
        beside = replace(known, answers=answers, beside=known_beside)  # pyright: ignore[reportArgumentType]
        late = late_rank(beside)
        assert late is not None and late.cause == (SYNCHRONISING if often == 12 else PYTHON)
        assert late.excess.thread == (None if often == 12 else HeldUp("`tally`", 75, 75))


def test_a_rank_has_the_names_of_one_account_and_of_launching_where_it_waits_for_its_device() -> None:
    launching = "idle.launch_bound"
    names = [
        (1, SYNCHRONISING, "cudaStreamSynchronize", 30),
        (1, launching, "aten::mm", 60),
        (1, DATA, "f", 9),
    ]
    known = given(names=names)
    assert names_beyond(known, 1, SYNCHRONISING, refills=False) == [("cudaStreamSynchronize", 10)]
    refilled = names_beyond(known, 1, SYNCHRONISING, refills=True)
    assert sorted(refilled) == [("aten::mm", 20), ("cudaStreamSynchronize", 10)]
    assert names_beyond(known, 1, DATA, refills=True) == [("f", 3)]


def test_of_accounts_with_as_much_more_the_first_by_name_is_the_cause() -> None:
    alike = sorted((PYTHON, DATA, "idle.launch_bound", "idle.unexplained", "idle.checkpoint_logging", "copy"))
    for order in (alike, alike[::-1], alike[2:] + alike[:2]):
        late = [(1, 0, account, 10) for account in order] + [(1, 0, "compute", 100)]
        others = [(r, 0, account, ns) for r in (0, 2) for account, ns in (("compute", 100), (WAIT, 60))]
        found = late_rank(given(late + others))
        assert found is not None and list(found.excess.by_account) == [*alike, "compute"]


def test_on_a_cpu_operators_are_counted() -> None:
    found = slower_compute(1, work(*SAME, (1, "gemm", "a 64", 12, 210), on_host=True))
    assert found == ("it runs 2 times as many operators per step", False)


LARGER = (
    "the inputs of its operators are 1.9 times as large as theirs: it has more work, such as longer sequences"
)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        # 6 x (512 + 64) elements against 6 x (1,024 + 64).
        ("mm|[[128, 8], [8, 8]]", (LARGER, False)),
        ("mm|[[8, 64], [8, 8]]", ("it takes longer for inputs that are no larger than theirs", True)),
        (
            "mm|[[64, 8], [8, 8]]",
            (f"its gemm operators take 2 {THERE.replace('kernels', 'operators')}", True),
        ),
    ],
)
def test_on_a_cpu_operators_are_the_same_where_their_shapes_are(kernel: str, told: tuple[str, bool]) -> None:
    others = [(rank, "gemm", "mm|[[64, 8], [8, 8]]", 6, ns) for rank, ns in ((0, 100), (2, 110))]
    assert slower_compute(1, work(*others, (1, "gemm", kernel, 6, 210), on_host=True)) == told


def test_without_shapes_only_names_are_compared() -> None:
    found = slower_compute(1, work(*SAME, (1, "gemm", "a 64", 6, 210), on_host=True))
    assert found == ("its gemm operators take 2 times as long as operators of the same names there", True)


SAVING = "idle.checkpoint_logging"


@pytest.mark.parametrize(
    ("name", "what"),
    [("torch.save", "checkpoints"), ("logging/__init__.py(1529): info", "logging")],
)
def test_a_rank_that_only_saves_does_not_log(name: str, what: str) -> None:
    ledger = [(rank, step, SAVING if a == DATA else a, ns * MS) for rank, step, a, ns in LEDGER]
    told = [f"40.0 ms of {what}", "40.0 ms of checkpoints or logging"]
    for names, said in zip(([(1, SAVING, name, 90 * MS)], []), told, strict=True):
        found = late_rank(given(ledger, {"at_most": 38 * MS}, names=names))
        assert found is not None and says(found).partition(",")[0] == said


def test_the_family_that_costs_most_is_named() -> None:
    rows = [(rank, "norm", "n", 3, 10) for rank in (0, 2)] + [*SAME]
    rows += [(1, "norm", "n", 3, 40), (1, "gemm", "a 64", 6, 145)]
    assert slower_compute(1, work(*rows)) == (
        f"its gemm kernels take 1.4 {THERE}",
        True,
    )


def test_names_of_idle_time_are_those_of_its_account() -> None:
    names = [(0, DATA, "next", 30), (1, DATA, "next", 6), (1, DATA, "also", 36), (1, PYTHON, "f", 99)]
    page: Any = SimpleNamespace(given=given(names=[*names, (0, DATA, None, 50)]))
    # Of nine steps on three ranks.
    assert names_of(page, DATA) == [("also", 4), ("next", 4)]
    assert names_of(page, PYTHON) == [("f", 11)]


# Rank 1 computes longer. Rank 0 waits for it and is late for rank 2, and is blamed for that.
PASSED_ON = [
    (rank, step, account, ns)
    for step in range(3)
    for rank in range(4)
    for account, ns in (("compute", 131 if rank == 1 else 100), (WAIT, 9 if rank == 1 else 40))
]


def passed_on(ledger: list[tuple[int, int, str, int]], in_pairs: int) -> Given:
    blamed = {**WORST, "rank": 0, "blame_share": 0.37, "at_most": 0, "unmatched": 0}
    least = {"rank": 1, "blame_share": 0.3, "at_most": 0, "per_step": 5, "unmatched": 0}
    known = given(ledger, least, [blamed])
    table = pl.DataFrame({"rank": [0], "in_pairs": [in_pairs]})
    waits = {"communication_wait": SimpleNamespace(table=table, findings=())}
    return replace(known, answers={**known.answers, **waits})  # pyright: ignore[reportArgumentType]


def test_lateness_that_stages_pass_on_is_told_of_the_rank_that_waits_least() -> None:
    late = late_rank(passed_on(PASSED_ON, in_pairs=7))
    assert late is not None
    assert (late.rank, late.ns, late.waited, late.cause) == (1, 31, 31, "compute")
    assert late.explains == 31 * 3 // 4
    assert late_rank(passed_on(PASSED_ON, in_pairs=0)) is None  # nobody passes anything on


@pytest.mark.parametrize(("led", "ns"), [(None, 30), (14, 30), (15, 15), (40, 40)])
def test_a_lead_of_half_of_what_it_waits_less_is_what_it_is_late_by(led: int | None, ns: int) -> None:
    ledger = [(r, s, a, 10 if a == WAIT and r == 1 else t) for r, s, a, t in PASSED_ON]
    known = passed_on(ledger, in_pairs=7)
    table = known.answers["communication_imbalance"].table
    told = table.with_columns(at_most=pl.when(pl.col("rank") == 1).then(pl.lit(led)).otherwise("at_most"))
    known.answers["communication_imbalance"].table = told  # type: ignore[misc]
    late = late_rank(known)
    assert late is not None and (late.ns, late.waited) == (ns, 30)


def test_a_stage_that_waits_least_is_late_from_three_hundredths_of_the_step_on() -> None:
    for waits, told in ((3, True), (2, False)):
        ledger = [
            (rank, step, account, ns)
            for step in range(3)
            for rank in range(4)
            for account, ns in (
                [("compute", 100)] if rank == 1 else [("compute", 100 - waits), (WAIT, waits)]
            )
        ]
        assert (late_rank(passed_on(ledger, in_pairs=7)) is not None) == told


def test_a_stage_that_waits_least_without_more_work_is_not_late() -> None:
    even = [(r, s, account, 100 if account == "compute" else ns) for r, s, account, ns in PASSED_ON]
    assert late_rank(passed_on(even, in_pairs=7)) is None


def test_a_thread_without_a_core_says_so_where_that_is_half_of_its_lateness() -> None:
    """The others' median is 3 ms, of counted steps alone; the rank is 10 ms late."""

    def told(mine: int, others: bool = True) -> list[str]:
        rows = [(1, mine * MS, True), (1, 99 * MS, False)]
        rows += [(0, 2 * MS, True), (2, 4 * MS, True)] if others else []
        waits = pl.DataFrame(rows, ["rank", "lost", "counted"], orient="row")
        answers: Any = {"step_log_core_waits": SimpleNamespace(table=waits, findings=())}
        return list(chain(late({DATA: 9 * MS}, 9 * MS), Given(answers, given().ledger)))[1:]

    assert told(8) == ["its thread waits 5.00 ms per step longer for a processor core than the others"]
    assert told(7) == told(20, others=False) == []


def test_a_rank_late_by_its_compute_says_how_its_kernels_differ() -> None:
    known = work(*SAME, (1, "gemm", "a 64", 6, 126))
    assert list(chain(late({"compute": 9 * MS}, 9 * MS), known))[1:] == [f"its gemm kernels take 1.2 {THERE}"]
    assert list(chain(late({DATA: 9 * MS}, 9 * MS), known))[1:] == []


def test_what_only_the_others_have_counts_against_it() -> None:
    rows = [*LEDGER, *((rank, step, "copy", 5) for rank in (0, 2) for step in range(3))]
    late = late_rank(given(rows))
    assert late is not None and dict(late.excess.by_account) == {DATA: 40, "compute": 0, "copy": -5}


def test_a_nanosecond_more_is_more() -> None:
    rows = [(rank, step, account, 1 if account == DATA else ns) for rank, step, account, ns in LEDGER]
    late = late_rank(given(rows, {"at_most": 2, "per_step": 3}))
    assert late is not None and (late.excess.main, late.waited) == (1, 4)


STRAGGLERS = {
    "part": ["job", "stage", *["rank"] * 3, "slowest ranks"],
    "rank": [None, 9, 0, 1, 2, None],
    "name": ["", "", "", "", "", "1"],
    "stage": [None, 7, 0, 1, 0, None],
    "own": [100 * MS, *[None] * 5],
    "even": [60 * MS, *[None] * 5],
    "removal": [None, None, None, 0.7, None, 0.2],
    "since": [None, None, None, 2, None, None],
    "steps": [3, *[None] * 5],
}


def replayed() -> Given:
    table = SimpleNamespace(table=pl.DataFrame(STRAGGLERS), findings=())
    known = given([row for row in LEDGER if row[:3] not in ((1, 0, DATA), (1, 1, DATA))])  # late in step 2
    return replace(known, answers={**known.answers, "stragglers": table})  # pyright: ignore[reportArgumentType]


def test_stages_are_those_of_the_ranks() -> None:
    assert stages(replayed()) == {0: (0, 2), 1: (1,)}
    assert stages(given()) == {}


def test_the_evidence_says_what_even_ranks_would_gain_and_since_when() -> None:
    _, gained, since = chain(late({DATA: 9 * MS}, 9 * MS), replayed())
    assert gained == (
        "replayed with all work spread evenly over ranks the last rank is done with the 3 steps after 180 ms "
        "instead of 300 ms: "
        "rank 1 alone is 70.0 % of the difference"
    )
    assert since == "it is late since step 2"


def test_a_replayed_step_is_told_as_the_length_that_the_page_gives_it() -> None:
    """Two ranks have two steps of 100 ns each; the last rank may be done later than that."""
    known = by_hand.given([(rank, step, "compute", 100) for rank in range(2) for step in range(2)])

    def told(own: int, even: int, steps: int) -> str:
        return in_words(Even(own, even, steps), known).removeprefix(
            "replayed with all work spread evenly over ranks "
        )

    assert told(100, 60, 2) == "a step takes 60 ns instead of 100 ns"
    assert told(101, 50, 2) == "a step takes 50 ns instead of 100 ns"
    assert told(102, 50, 2) == "the last rank is done with the 2 steps after 100 ns instead of 204 ns"
    assert told(100, 60, 1) == "the last rank is done with the last step after 60 ns instead of 100 ns"


def test_becoming_like_the_others_gains_at_most_what_each_can_give() -> None:
    # The others wait 40 of 140 ns; rank 1 waits for nobody and has 40 ns of its own beyond them.
    assert like_others_at_most(given(), 1) == 40
    # A rank of which nothing is known, and all of them.
    assert like_others_at_most(given(), 1, 7) == 0
    assert like_others_at_most(given(), 0, 1, 2) == 0


@pytest.mark.parametrize(("unnamed", "told"), [(5 * MS, "5.00 ms"), (5 * MS - 1, None), (9 * MS, "9.00 ms")])
def test_what_a_late_rank_did_after_it_waited_may_not_be_recorded(unnamed: int, told: str | None) -> None:
    """Of 10 ms that its synchronising seems to cost in each of three steps no row tells some."""
    names = [(1, SYNCHRONISING, None, 3 * unnamed), (1, SYNCHRONISING, "cudaStreamSynchronize", MS)]
    facts = list(chain(late({SYNCHRONISING: 10 * MS}, 9 * MS), given(names=names)))
    said = "of it only call stacks would tell what the CPU did after the wait"
    assert [fact for fact in facts if said in fact] == ([f"for {told} {said}"] if told else [])
    others = list(chain(late({DATA: 9 * MS}, 9 * MS), given(names=names)))
    assert not [fact for fact in others if said in fact]
