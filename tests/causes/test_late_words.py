"""What a late rank has more of than the others, in words: numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from by_hand import given
from lostflops.causes.between_ranks.advice import for_one
from lostflops.causes.lateness import chain
from lostflops.causes.longer_compute import outside_alone
from lostflops.causes.one_rank.held_up import HeldUp
from lostflops.causes.one_rank.late import Excess, Late, also, more_of, says
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.needless.outside_passes import OUTSIDE

MS = 1_000_000
DATA, PYTHON, SAVING, SYNC = (
    f"idle.{name}"
    for name in ("data_loading", "other_host_work", "checkpoint_logging", "host_synchronisation")
)
THREAD = HeldUp("`poll` (m.py:7)", 9 * MS, 9 * MS)
WAITS_3 = "its CPU waits for the GPU 3 times per step, which costs"
BESIDE = "in which another thread runs Python, `poll` (m.py:7)"


def late(by: dict[str, float], ms: float = 10, own: float | None = None, **excess: Any) -> Late:
    """A rank with so many milliseconds more of each account, late by `ms`."""
    parts = {account: round(more * MS) for account, more in by.items()}
    largest = next(iter(parts.values()))
    has = largest if own is None else round(own * MS)
    told = Excess(1, parts, excess.pop("parts", ()), has, **excess)
    return Late(1, round(ms * MS), 0, told, None, 3, 0, False, {})


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (late({SYNC: 10}, waits=3), f"{WAITS_3} 10.0 ms"),
        (late({SYNC: 10}), "10.0 ms of waiting for the device"),
        (late({SYNC: 10}, thread=THREAD), "10.0 ms of waiting for the device"),
        (late({DATA: 10}, waits=3), "10.0 ms of data loading"),
        (late({PYTHON: 10}, thread=THREAD), f"10.0 ms {BESIDE}"),
        (late({PYTHON: 10}, waits=3), "10.0 ms of Python and other CPU work"),
        (late({DATA: 10}, thread=THREAD), "10.0 ms of data loading"),
        (late({SAVING: 10}), "10.0 ms of checkpoints or logging"),
        (late({SAVING: 10}, saved_or_logged="logging"), "10.0 ms of logging"),
        (late({"idle.graph_capture": 10}), "10.0 ms of graph capture"),
        (late({SYNC: 9}, own=12, waits=3), f"{WAITS_3} 12.0 ms, against 3.00 ms on the others"),
        (late({"compute": 9}, own=12), "it computes 9.00 ms longer than the others"),
    ],
)  # fmt: skip
def test_the_account_that_makes_a_rank_late_is_said_alone(rank: Late, said: str) -> None:
    assert also(rank) == ()
    assert says(rank) == said


@pytest.mark.parametrize(
    ("second", "excess", "said"),
    [
        (SYNC, {"waits": 3}, f"{WAITS_3} 4.00 ms"),
        (SYNC, {}, "4.00 ms of waiting for the device"),
        (SYNC, {"thread": THREAD}, "4.00 ms of waiting for the device"),
        (PYTHON, {"thread": THREAD}, f"4.00 ms {BESIDE}"),
        (PYTHON, {}, "4.00 ms of Python and other CPU work"),
        (PYTHON, {"waits": 3}, "4.00 ms of Python and other CPU work"),
        ("compute", {"waits": 3, "thread": THREAD}, "4.00 ms more computing"),
        ("idle.graph_capture", {}, "4.00 ms of graph capture"),
    ],
)
def test_a_second_account_is_said_beside_it(second: str, excess: dict[str, Any], said: str) -> None:
    rank = late({DATA: 6, second: 4}, **excess)
    assert says(rank) == f"6.00 ms of data loading, and {said}"


def test_three_accounts_are_said_and_no_fourth() -> None:
    rank = late({DATA: 4, PYTHON: 3, SYNC: 3, "compute": 3}, 13)
    assert also(rank) == (PYTHON, SYNC)
    assert says(rank) == (
        "4.00 ms of data loading, 3.00 ms of Python and other CPU work, and 3.00 ms of waiting for the device"
    )


def test_a_second_account_counts_from_a_fifth_of_the_lateness_where_the_first_is_less_than_four_fifths() -> (
    None
):
    assert also(late({DATA: 6, PYTHON: 2})) == (PYTHON,)
    assert also(late({DATA: 6, PYTHON: 1.9})) == ()
    assert also(late({DATA: 7.9, PYTHON: 2})) == (PYTHON,)
    assert also(late({DATA: 8, PYTHON: 2})) == ()
    assert also(late({DATA: 12, PYTHON: 3.1})) == (PYTHON,)  # of 15.1 that both are
    assert also(late({DATA: 12, PYTHON: 3})) == ()
    assert also(late({DATA: 5, "a part of another job": 4, PYTHON: 3})) == (PYTHON,)


def test_what_is_not_said_of_a_late_rank_is_nothing() -> None:
    rank = late({DATA: 10})
    assert (rank.excess.waits, rank.excess.thread, rank.cause) == (0, None, DATA)
    assert (rank.explains, rank.delays, rank.at_most, rank.seen) == (0, 0, 0, "")
    assert (rank.excess.ns, rank.excess.main) == (10 * MS, 10 * MS)
    assert more_of("idle.initialisation") == "of first-call initialisation"


def test_a_rank_that_evaluates_alone_is_not_to_be_given_like_batches() -> None:
    """Rank 0 computes 38 ms longer, 37 of them outside of passes that train; of 100 ms they are no reason."""

    def knowing(longer: int) -> PageFindings:
        rows = [(r, s, "compute", (9 + (longer if r == 0 else 0)) * MS) for r in range(3) for s in range(2)]
        outside = pl.DataFrame(
            [(0, "operator", "aten::addmm", 74 * MS), (1, "operator", "aten::normal_", 8)],
            OUTSIDE,
            orient="row",
        )
        return PageFindings(replace(given(rows), outside=outside, on_host=True))

    told = for_one(knowing(38), 0, "compute")
    assert told.on("rank 0").startswith(
        "On rank 0: share what it alone runs outside of passes that train, such as an evaluation (37.0 ms"
    )
    assert told.remedies == ()
    assert [outside_alone(rank, knowing(38).given) for rank in range(3)] == [37 * MS - 2, 0, 0]
    assert outside_alone(0, knowing(100).given) == 0
    table = {"last": 0, "collectives": 4}
    first = next(chain(replace(late({"compute": 38}), rank=0, table=table), knowing(38).given))
    assert first == "37.0 ms of it are operators outside of passes that train"
