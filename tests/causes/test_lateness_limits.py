"""Where lateness begins and ends, and the most that it can gain: numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from by_hand import given
from lostflops.causes.given import WAITED, Given, has_stages
from lostflops.causes.lateness import (
    _all_waiting,  # pyright: ignore[reportPrivateUsage]
    _alone,  # pyright: ignore[reportPrivateUsage]
    _longer_steps,  # pyright: ignore[reportPrivateUsage]
    chain,
    explained_by_work,
    late_by_own,
    late_rank,
    replayed_even,
    shares_lateness,
    stages,
)
from lostflops.causes.longer_compute import slower_compute
from lostflops.causes.names import EITHER
from lostflops.causes.one_rank.late import Excess, Late
from lostflops.causes.own_time.spent import (
    excess_by_step,
    faster_links_at_most,
    like_others_at_most,
    like_the_least_at_most,
    shared_at_most,
)
from lostflops.causes.own_time.together import LateTogether, explained_by_own
from lostflops.causes.waiting import SLOW_LINK

DATA, WAIT, BUBBLE = "idle.data_loading", "communication.wait", "idle.pipeline_bubble"
TRANSFER = "communication.transfer"
MS = 1_000_000
Row = tuple[int, int, str, int]


def stragglers(*rows: dict[str, Any]) -> pl.DataFrame:
    kinds = {"part": pl.String, "rank": pl.Int64, "name": pl.String, "stage": pl.Int64, "own": pl.Int64,
             "even": pl.Int64, "removal": pl.Float64, "since": pl.Int64, "steps": pl.Int64}  # fmt: skip
    return pl.DataFrame([dict.fromkeys(kinds) | row for row in rows], kinds)


def pairs(count: int) -> pl.DataFrame:
    return pl.DataFrame({"rank": [0], "in_pairs": [count]})


# The others run `a`; so does a rank on a slower device, and one with other work runs `b`.
OTHER_WORK = [(rank, "gemm", "b" if rank in (1, 3) else "a", 6, 100) for rank in range(5)]
SLOWER_DEVICE = [(rank, "gemm", "a", 6, 200 if rank == 1 else 100) for rank in range(5)]


def late(ns: int = 90, cause: str = "compute", rank: int = 1) -> Late:
    return Late(rank, ns, ns, Excess(rank, {cause: ns}, (), ns), None, 3, 0, False, {}, ns, ns)


def computing(*own: tuple[int, ...], cause: str = "compute") -> list[Row]:
    """Ranks that have 100 ns of their own in each step, and so much more."""
    rows = [(r, s, "compute", 100) for r, steps in enumerate(own) for s in range(len(steps))]
    return rows + [(r, s, cause, ns) for r, steps in enumerate(own) for s, ns in enumerate(steps) if ns]


def test_a_rank_shares_its_lateness_where_its_least_is_half_of_its_mean_at_most() -> None:
    def shares(*late_by: int, **of: Any) -> bool:
        even = (0,) * len(late_by)
        return shares_lateness(late(**of), given(computing(even, late_by, even), OTHER_WORK[:3]))

    assert shares(0, 0, 30)
    assert not shares(0, 0, 30, cause=DATA)
    assert not shares(10, 30)  # twice 10 is the mean of 20
    assert shares(10, 31)
    assert not shares(30, 30, 30)
    alone = [(rank, rank, "compute", 100) for rank in range(3)]  # no step that two ranks have
    assert not shares_lateness(late(), given(alone, OTHER_WORK[:3]))


def test_a_slower_device_is_not_shared_nor_is_what_no_kernel_tells() -> None:
    rows = computing((0, 0), (0, 30), (0, 0))
    assert shares_lateness(late(), given(rows, OTHER_WORK[:3]))
    assert not shares_lateness(late(), given(rows, SLOWER_DEVICE[:3]))
    assert not shares_lateness(late(), given(rows))


def test_a_rank_that_is_four_fifths_of_a_replays_gain_shares_nothing() -> None:
    rows = computing((0, 0), (0, 30), (0, 0))

    def shares(removal: float | None) -> bool:
        table = stragglers({"part": "rank", "rank": 1, "removal": removal})
        return shares_lateness(late(), given(rows, OTHER_WORK[:3], stragglers=table))

    assert shares(None) and shares(0.79)
    assert not shares(0.8) and not shares(0.9)


def test_ranks_that_are_late_together_share_it_by_how_much_they_are_so() -> None:
    """Ranks 1 and 3 are late by 40 and 50 ns: 45 in a mean step."""
    both = computing((0, 0), (40, 50), (0, 0), (40, 50), (0, 0))
    assert shares_lateness(late(90), given(both, OTHER_WORK))
    assert not shares_lateness(late(91), given(both, OTHER_WORK))
    reading = computing((0, 0), (40, 50), (0, 0), (40, 50), (0, 0), cause=DATA)
    assert not shares_lateness(late(90), given(reading, OTHER_WORK))
    unlike = [(rank, "gemm", "b" if rank == 0 else "a", 6, 100) for rank in range(5)]
    assert not shares_lateness(late(90, rank=0), given(both, unlike))


def test_a_stage_that_is_late_by_as_much_in_every_step_has_more_layers() -> None:
    def shares(*late_by: int, in_pairs: int) -> bool:
        even = (0,) * len(late_by)
        rows = computing(even, late_by, even, late_by, even)
        return shares_lateness(late(80), given(rows, OTHER_WORK, communication_wait=pairs(in_pairs)))

    assert shares(40, 50, in_pairs=0)
    assert not shares(40, 50, in_pairs=1)  # five quarters of 40
    assert shares(40, 51, in_pairs=1)


def test_a_replay_says_of_a_rank_what_it_alone_is_or_of_the_slowest() -> None:
    def alone(*rows: dict[str, Any]) -> float | None:
        return _alone(1, given([], stragglers=stragglers(*rows)))

    other = {"part": "stage", "rank": 1, "name": "1", "removal": 0.95}
    mine = {"part": "rank", "rank": 1, "removal": 0.5}
    slowest = {"part": "slowest ranks", "name": "1", "removal": 0.9}
    assert alone(other, {**mine, "rank": 0, "removal": 0.1}, slowest, mine) == 0.5
    assert alone(other, {**mine, "removal": None}, {**slowest, "name": "0", "removal": 0.2}, slowest) == 0.9
    assert alone(other, {**mine, "name": "1", "rank": 0}) is None
    assert alone({**mine, "removal": None}, {**slowest, "removal": None}) is None
    assert _alone(1, given([])) is None


def test_a_replays_step_is_that_of_the_job() -> None:
    stage, unknown = {"part": "stage", "own": 9, "even": 8}, {"part": "job", "own": 7}
    first, second = {"part": "job", "own": 100, "even": 60}, {"part": "job", "own": 30, "even": 20}
    found = replayed_even(given([], stragglers=stragglers(stage, unknown, first, second)))
    assert found is not None and (found.own, found.even) == (100, 60)
    found = (
        replayed_even(given([], stragglers=stragglers(stage, unknown, {"part": "job", "even": 7}))) is None
    )
    assert replayed_even(given([])) is None


def test_uneven_work_explains_what_a_replay_gains_or_what_the_longest_exceed_the_mean_by() -> None:
    taking_turns = [(0, 0, "compute", 10), (1, 0, "compute", 40)]  # 40 is 15 above the mean

    def explained(rows: list[Row], *steps: int) -> int:
        table = stragglers({"part": "job", "own": steps[0], "even": steps[1]}) if steps else stragglers()
        return explained_by_work(given(rows, stragglers=table))

    assert explained(taking_turns, 100, 60) == 40
    assert explained(taking_turns, 10, 6) == 15
    assert explained(taking_turns) == 15
    assert explained([], 100, 60) == 40
    assert explained([]) == 0
    assert (explained_by_own(given([])), explained_by_own(given(taking_turns))) == (0, 15)


def test_stages_hold_their_ranks_in_order() -> None:
    rows = [
        {"part": "rank", "rank": rank, "stage": stage} for rank, stage in ((3, 1), (2, 0), (0, 0), (1, 1))
    ]
    unknown = [
        {"part": "rank", "rank": 4},
        {"part": "rank", "stage": 1},
        {"part": "job", "rank": 5, "stage": 0},
    ]
    assert stages(given([], stragglers=stragglers(*rows, *unknown))) == {0: (0, 2), 1: (1, 3)}


def test_stages_are_known_by_pairs_alone() -> None:
    assert has_stages(given([], communication_wait=pairs(1)))
    assert not has_stages(given([], communication_wait=pairs(0)))
    assert not has_stages(given([], communication_wait=pairs(1).drop("in_pairs")))
    assert has_stages(given([])) is False


def spent(*ranks: tuple[int, int], account: str = WAIT) -> Given:
    """Ranks with so much of their own, and so much waiting, in each of as many steps as their number says."""
    return given(
        [
            (rank, step, name, ns)
            for rank, (own, waits) in enumerate(ranks)
            for step in range(rank + 1)
            for name, ns in (("compute", own), (account, waits))
        ]
    )


def test_becoming_like_another_gains_no_more_than_what_each_waits() -> None:
    known = spent((50, 30), (80, 5), (60, 25))
    assert like_others_at_most(known, 1) == 25
    assert like_others_at_most(known, 1, 2) == 30
    assert like_others_at_most(known, 2) == 5
    assert (
        like_others_at_most(spent((50, 30), (60, 3), (60, 25)), 1) == 13
    )  # its own 10 more, and what it waits
    assert like_others_at_most(spent((50, 30), (60, 3), (70, 25)), 1) == 13
    assert like_others_at_most(spent((50, 30), (40, 3), (60, 25)), 1) == 3  # it has least already
    assert like_others_at_most(known) == 0
    assert like_others_at_most(known, 1, 7) == 0
    assert like_others_at_most(known, 0, 1, 2) == 0


def test_sharing_work_or_faster_links_gain_no_more_than_is_waited() -> None:
    known = spent((50, 30), (80, 5), (60, 25))
    assert (shared_at_most(known), faster_links_at_most(known)) == (20, 5)
    assert shared_at_most(spent((50, 30))) == 30
    assert (shared_at_most(given([])), faster_links_at_most(given([]))) == (0, 0)


WAITING = (WAIT, "communication.transfer", "communication.exposed", BUBBLE, "idle.other_device")


@pytest.mark.parametrize("account", [*WAITING, "idle.host_synchronisation", "idle.dependency"])
def test_what_a_rank_may_spend_on_others_can_be_gained(account: str) -> None:
    known = spent((50, 30), (80, 5), account=account)
    assert faster_links_at_most(known) == 5
    # What its own work is says the same of all of these but the two that its host or its device may cause.
    own = excess_by_step(0, given([(0, 0, "compute", 50), (0, 0, account, 30), (1, 0, "compute", 50)]))
    assert own == [0 if account in WAITING else 30]


def test_lateness_in_a_step_is_of_its_own_accounts_and_never_below_0() -> None:
    rows = [
        (0, 0, "compute", 7),
        (0, 1, "compute", 7),
        (1, 0, "compute", 9),
        (1, 1, "compute", 3),
        (1, 2, DATA, 5),
    ]
    rows += [(0, 0, WAIT, 40), (0, 0, BUBBLE, 40)]
    assert excess_by_step(1, given(rows)) == [2, 0]
    assert excess_by_step(0, given(rows)) == [0, 4]


def imbalance(*ranks: int, **worst: Any) -> pl.DataFrame:
    first = {
        "at_most": 30,
        "per_step": 20,
        "blame_share": 0.9,
        "unmatched": 0,
        "collectives": 9,
        "last": 8,
        "assumed": False,
    }
    rest = {**first, "at_most": 0, "per_step": 0, "blame_share": 0.05}
    rows = [first | worst, *[rest] * (len(ranks) - 1)]
    return pl.DataFrame(
        [{"rank": rank} | row for rank, row in zip(ranks, rows, strict=True)], infer_schema_length=None
    )


def test_a_late_rank_says_what_its_being_like_the_others_gains() -> None:
    rows = [
        (r, 0, a, ns)
        for r in range(3)
        for a, ns in (("compute", 140 if r == 1 else 100), (WAIT, 0 if r == 1 else 40))
    ]
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, 2)))
    assert told is not None and (told.ns, told.at_most, told.steps) == (30, 40, 1)
    # It comes 70 ns after the next in several collectives, of which the others wait 40.
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, 2, at_most=70)))
    assert told is not None and (told.ns, told.at_most) == (40, 40)


@pytest.mark.parametrize(
    ("at_most", "per_step", "ns", "explains", "waited"),
    [
        (15, 20, 15, 20, 30),  # half of the 30 ns that others wait for it
        (14, 20, 30, 20, 30),  # less: the next to last is late for it, too
        (21, 40, 21, 26, 40),  # they wait 60 ns, of which 40 are what it lasts longer: two of three wait that
    ],
)
def test_a_stage_passes_on_what_is_more_than_twice_its_lead(
    at_most: int, per_step: int, ns: int, explains: int, waited: int
) -> None:
    rows = [
        (r, 0, a, ns)
        for r in range(3)
        for a, ns in (("compute", 140 if r == 1 else 100), (WAIT, 0 if r == 1 else 40))
    ]
    table = imbalance(1, 0, 2, at_most=at_most, per_step=per_step)
    told = late_rank(given(rows, communication_imbalance=table, communication_wait=pairs(1)))
    assert told is not None and (told.ns, told.explains, told.waited) == (ns, explains, waited)


@pytest.mark.parametrize("per_step", [1, None])
def test_a_lead_that_is_not_known_is_none_of_a_rank_that_is_blamed(per_step: int | None) -> None:
    rows = [(r, 0, "compute", 140 if r == 1 else 100) for r in range(3)]
    table = imbalance(1, 0, 2, at_most=None, per_step=per_step)
    assert late_rank(given(rows, communication_imbalance=table)) is None


def test_steps_are_longer_than_the_median_of_those_that_it_meets_in_steps_that_all_have() -> None:
    steps = {0: (90, 110), 1: (160, 130, 900), 2: (140, 100), 3: (500, 500, 500)}
    rows = [(rank, step, "compute", ns) for rank, each in steps.items() for step, ns in enumerate(each)]
    known = replace(given(rows), meeting=(frozenset({0, 1, 2}),))
    assert _longer_steps(known, 1) == 35  # 145 in a mean step, the others 100 and 120
    assert _longer_steps(known, 0) == 0
    assert _longer_steps(replace(given(rows[:2]), meeting=(frozenset({0, 1}),)), 1) == 0  # has no steps
    assert _longer_steps(given(rows[:2]), 0) == 0  # meets nobody
    assert _longer_steps(given([(0, 0, "compute", 9), (1, 1, "compute", 7)]), 0) == 0  # no step of both


@pytest.mark.parametrize(
    ("own", "waits", "ns", "waited", "explains"),
    [
        (170, 0, 40, 40, 26),  # of the 70 ns that it computes longer, its own step is longer by 30
        (120, 80, 20, 0, 0),  # its step is longer by 60, of which no other rank waits a moment
    ],
)
def test_nobody_waits_for_what_makes_a_late_ranks_own_steps_longer(
    own: int, waits: int, ns: int, waited: int, explains: int
) -> None:
    rows = [
        (r, 0, a, spent)
        for r in range(3)
        for a, spent in (("compute", own if r == 1 else 100), (WAIT, waits if r == 1 else 40))
    ]
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, 2, per_step=40)))
    assert told is not None and (told.ns, told.waited, told.explains) == (ns, waited, explains)


def all_waiting(
    *own: int, on: int = 1, waits: int = 60, meeting: str = "", in_pairs: int = 0, more: int = 120
) -> int:
    """What ranks with so much of their own wait for rank 1, which has `more` beyond the others."""
    rows = [(r, 0, a, ns) for r, of in enumerate(own) for a, ns in (("compute", of), (WAIT, waits))]
    known = given(rows, communication_wait=pairs(in_pairs))
    seen = {"rank": [0], "step": [0], "on": [on], "account": ["compute"], "in_pair": [False], "time": [40]}
    links = (SimpleNamespace(name=meeting),) if meeting else ()
    other = (SimpleNamespace(name="other"),)
    told: Any = dict(known.answers) | {"a": SimpleNamespace(table=None, findings=other + links)}
    known = replace(known, waited=pl.DataFrame(seen, WAITED), answers=told)
    return _all_waiting(known, Excess(1, {"compute": more}, (), more))


def test_all_that_is_waited_is_a_late_ranks_up_to_its_share_of_its_lateness() -> None:
    assert all_waiting(100, 220, 100, 100) == 60
    assert all_waiting(100, 220, 100, 100, waits=100) == 90  # three of four ranks wait 120
    assert all_waiting(100, 220, 100, 100, waits=0) == 0


def test_waiting_that_another_cause_explains_is_not_all_a_late_ranks() -> None:
    assert all_waiting(100, 220, 100, 112) == 60  # a tenth of 120 more than the median
    assert all_waiting(100, 220, 100, 113) == 0
    assert all_waiting(220, 220, 100, 100) == 0
    assert all_waiting(10, 220, 100, 100) == 60  # who has less makes nobody wait
    assert all_waiting(100, 220, 100, 100, on=2) == 0  # nobody knows that it is waited for
    assert all_waiting(100, 220, 100, 100, in_pairs=1) == 0
    assert all_waiting(100, 220, 100, 100, meeting=SLOW_LINK) == 0
    assert all_waiting(100, 220, 100, 100, meeting="another") == 60


def test_a_rank_that_is_blamed_may_not_be_known_to_be_waited_for() -> None:
    rows = [(r, 0, "compute", 140 if r == 1 else 100) for r in range(3)]
    rows += [(r, 0, WAIT, 40) for r in (0, 2)]
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, 2, at_most=30, per_step=None)))
    assert told is not None and (told.ns, told.waited, told.explains) == (30, 0, 0)


@pytest.mark.parametrize(("copied", "account"), [(90, "idle.checkpoint_logging"), (89, "copy")])
def test_nine_tenths_of_copies_that_checkpoints_make_are_the_checkpoints(copied: int, account: str) -> None:
    rows = [(r, 0, "compute", 100) for r in range(3)] + [(1, 0, "copy", 100)]
    rows += [(r, 0, WAIT, 100) for r in (0, 2)]
    known = given(rows, communication_imbalance=imbalance(1, 0, 2, at_most=90, per_step=60))
    told = late_rank(replace(known, in_checkpoints=copied))
    assert told is not None and told.cause == account


def test_a_name_that_one_of_the_others_lacks_counts_as_no_time_of_it() -> None:
    rows = [
        (r, 0, a, ns)
        for r in range(3)
        for a, ns in ((DATA, 60 if r == 1 else 20), (WAIT, 0 if r == 1 else 40))
    ]
    names = [(1, DATA, "next", 50), (0, DATA, "next", 6), (9, DATA, "next", 70)]
    told = late_rank(given(rows, names=names, communication_imbalance=imbalance(1, 0, 2)))
    assert told is not None and told.excess.parts == (("`next`", 47),)


def pipeline(*ranks: tuple[int, int], told: tuple[int, ...] = (0, 1, 2), **of: Any) -> Late | None:
    """Rank 0 has the second row: it is blamed for nothing, so that who waits least decides."""
    rows = [
        (r, 0, a, ns)
        for r, (own, waits) in enumerate(ranks)
        for a, ns in (("compute", own), (WAIT, waits))
        if ns
    ]
    table = imbalance(*told, blame_share=0.1, at_most=None, **of)
    return late_rank(given(rows, communication_imbalance=table, communication_wait=pairs(1)))


def test_of_three_stages_the_one_that_waits_least_is_late() -> None:
    found = pipeline((140, 0), (100, 40), (110, 30))
    assert found is not None
    # The others wait 35 at the median, and have 105 of their own.
    assert (found.rank, found.waited, found.ns, found.excess.ns, found.explains) == (0, 35, 35, 35, 23)
    assert pipeline((140, 0), (100, 40)) is None
    assert pipeline((140, 0), (100, 40), told=(0, 1, 7)) is None  # one of three is not in the ledger


def test_of_stages_that_wait_as_little_the_lower_is_told() -> None:
    found = pipeline((100, 40), (140, 0), (140, 0), (100, 40), told=(0, 1, 2, 3))
    assert found is not None and (found.rank, found.waited) == (1, 40)


def test_its_own_work_explains_half_of_what_a_stage_waits_less() -> None:
    assert pipeline((120, 0), (100, 40), (100, 40)) is not None
    assert pipeline((119, 0), (100, 40), (100, 40)) is None


def test_a_stage_with_as_many_unmatched_collectives_as_matched_is_told() -> None:
    ranks = ((140, 0), (100, 40), (100, 40))
    assert pipeline(*ranks, unmatched=9) is not None
    assert pipeline(*ranks, unmatched=10) is None


def test_a_lead_that_is_not_known_is_none() -> None:
    found = pipeline((52, 0), (50, 2), (50, 2))
    assert found is not None and found.ns == 2


def test_as_many_ranks_as_a_line_holds_are_listed() -> None:
    assert LateTogether((0, 1, 2, 3), 1, DATA, 1).called == "ranks 0 to 3"
    assert LateTogether((0, 1, 2, 3, 4, 5, 6, 9), 1, DATA, 1).called == "ranks 0, 1, 2, 3, 4, 5, 6 and 9"


@pytest.mark.parametrize(
    ("delayed", "stages", "ns", "delays", "waited"),
    [
        (5, 0, 37, 4, 15),  # 7 ns of each of the two others
        (10, 0, 40, 10, 15),  # 15 of each, but a step gets no shorter than by the 40 that it has beyond them
        (40, 0, 40, 16, 15),
        (None, 0, 30, 0, 15),
        (10, 1, 30, 0, 30),  # stages transfer by their schedule, and wait as long as a step gets longer
    ],
)
def test_transfers_that_begin_late_for_a_rank_count_up_to_what_it_has_more_of(
    delayed: int | None, stages: int, ns: int, delays: int, waited: int
) -> None:
    rows = [
        (r, 0, a, spent)
        for r in range(3)
        for a, spent in ((("compute", 140),) if r == 1 else (("compute", 100), (WAIT, 20), (TRANSFER, 20)))
    ]
    table = imbalance(1, 0, 2, per_step=10, delayed=delayed)
    told = late_rank(given(rows, communication_imbalance=table, communication_wait=pairs(stages)))
    assert told is not None and (told.ns, told.delays, told.waited) == (ns, delays, waited)


def test_transfers_that_begin_late_count_of_two_ranks_and_not_where_all_of_it_is_waited() -> None:
    rows = [(0, 0, "compute", 100), (0, 0, WAIT, 20), (0, 0, TRANSFER, 20), (1, 0, "compute", 140)]
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, per_step=10, delayed=9)))
    assert told is not None and (told.waited, told.delays) == (20, 9)
    told = late_rank(given(rows, communication_imbalance=imbalance(1, 0, per_step=21, delayed=9)))
    assert told is not None and (told.ns, told.waited, told.delays) == (30, 42, 0)


def evidence(**of: Any) -> list[str]:
    table = {"last": 3, "collectives": 4}
    told = Late(1, 10 * MS, 9, Excess(1, {DATA: 9 * MS}, (), 9 * MS), None, 3, 0, False, table, 1, 1)
    rows = [{"part": "job", "own": 100 * MS, "even": 60 * MS, "steps": 1}, {"part": "rank", "rank": 1} | of]
    return list(chain(told, given([(0, 0, "compute", 100 * MS)], stragglers=stragglers(*rows))))[1:]


@pytest.mark.parametrize(
    ("removal", "said"), [(0.996, "all"), (1.5, "all"), (0.995, "99.5 %"), (0.0, "0.0 %")]
)
def test_nearly_all_is_all(removal: float, said: str) -> None:
    (told,) = evidence(removal=removal)
    whole = "replayed with all work spread evenly over ranks a step takes 60.0 ms instead of 100 ms"
    assert told == f"{whole}: rank 1 alone is {said} of the difference"
    assert evidence() == []


def test_a_rank_is_late_since_a_step_where_a_replay_knows() -> None:
    assert evidence(removal=0.9, since=0)[1:] == ["it is late since step 0"]


GROUPED = (
    "GroupedGemm",
    "group_gemm",
    "grouped_problem",
    "GroupProblemVisitor",
    "group_mm",
    "ptr_array",
    "ptrArray",
    "moe_x",
    "fused_moe",
)


@pytest.mark.parametrize("kernel", GROUPED)
def test_kernels_whose_grid_says_nothing_blame_no_device(kernel: str) -> None:
    rows = computing((0,), (0,), (0,))
    told = slower_compute(1, given(rows, [(r, "gemm", kernel, 6, 200 if r == 1 else 100) for r in range(3)]))
    assert told is not None and told[1] is False


SAVING = "idle.checkpoint_logging"


def test_a_name_without_a_nanosecond_in_a_mean_step_is_not_what_a_rank_does() -> None:
    spends = [
        (r, s, a, ns)
        for r in range(3)
        for s in range(3)
        for a, ns in ((SAVING, 60 if r == 1 else 20), (WAIT, 0 if r == 1 else 40))
    ]
    names = [(1, SAVING, "logging/__init__.py(1529): info", 2)]  # of three steps
    told = late_rank(given(spends, names=names, communication_imbalance=imbalance(1, 0, 2)))
    assert told is not None and told.excess.saved_or_logged == EITHER


@pytest.mark.parametrize(("mine", "theirs"), [("mm|[[8, 8]]", "mul"), ("mul", "mm|[[8, 8]]")])
def test_inputs_whose_shapes_one_side_lacks_are_not_compared(mine: str, theirs: str) -> None:
    work = [(r, "gemm", mine if r == 1 else theirs, 6, 100) for r in range(3)]
    known = replace(given(computing((0,), (0,), (0,)), work), on_host=True)
    told = "it runs other or larger operators than they do: it has more work, such as longer sequences"
    assert slower_compute(1, known) == (told, False)


def test_ranks_that_are_few_are_late_by_what_their_own_work_explains_half_of() -> None:
    """Rank 1 computes 20 ns longer than the other, in a step."""
    known = given([(0, 0, "compute", 100), (0, 0, WAIT, 20), (1, 0, "compute", 120)])
    for lead, waited, told in ((40, 40, True), (41, 41, False), (20, 59, True), (20, 60, False)):
        found = late_by_own(known, 1, lead=lead, waited=waited, explains=lead, seen="s")
        assert (found is not None) is told, (lead, waited)
    found = late_by_own(known, 1, lead=40, waited=40, explains=40, seen="s")
    assert found is not None and (found.rank, found.seen, found.unmatched) == (1, "s", 0)
    assert found.assumed is False


def test_becoming_like_the_least_in_each_step_gains_the_rest_of_the_mean() -> None:
    """Ranks have 60 and 90 of 100 ns of their own, and then 80 and 70: 40 and 30 ns are left."""
    owns = ((60, 80), (90, 70))
    rows = [
        (rank, step, account, ns)
        for rank, steps in enumerate(owns)
        for step, own in enumerate(steps)
        for account, ns in (("compute", own), (WAIT, 100 - own))
    ]
    assert like_the_least_at_most(given(rows)) == 35
    assert like_the_least_at_most(given([])) == 0
