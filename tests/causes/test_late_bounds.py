"""*At most* is a bound: no job gains more from a late rank becoming like another than the page offers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lostflops.causes.given import Given
from lostflops.causes.own_time.spent import like_others_at_most

TRANSFER = 7
Computes = list[list[int]]  # of each rank, ns before each collective and after the last
Spent = dict[str, int]


def run(ranks: Computes) -> tuple[list[Spent], int]:
    """What each rank's step holds of each account, and its length. Collectives run beside computing, one
    after the other, each when all ranks came to it and it follows what was computed before."""
    buckets = len(ranks[0]) - 1
    reached = [[sum(parts[: n + 1]) for n in range(buckets)] for parts in ranks]
    ended, free = list[int](), 0
    starts = [[0] * buckets for _ in ranks]
    begins = list[int]()
    for n in range(buckets):
        for r, mine in enumerate(starts):
            mine[n] = max(reached[r][n], free)
        begins.append(max(mine[n] for mine in starts))
        free = begins[n] + TRANSFER
        ended.append(free)
    length = max(free, *(sum(parts) for parts in ranks))
    accounts = list[Spent]()
    for r, parts in enumerate(ranks):
        busy = sum(parts)
        waits = [(starts[r][n], begins[n]) for n in range(buckets)]
        wait = sum(max(0, end - max(begin, busy)) for begin, end in waits)
        moving = sum(max(0, end - max(end - TRANSFER, busy)) for end in ended)
        accounts.append(
            {
                "compute": busy,
                "communication.wait": wait,
                "communication.transfer": moving,
                "idle.dependency": length - busy - wait - moving,
            }
        )
    return accounts, length


def bound(accounts: list[Spent], rank: int) -> int:
    rows: list[Any] = [
        {"rank": r, "step": 0, "start": 0, "account": account, "ns": ns}
        for r, held in enumerate(accounts)
        for account, ns in held.items()
    ]
    answers: Any = {"communication_imbalance": SimpleNamespace(table=None, findings=())}
    return like_others_at_most(Given(answers, pl.DataFrame(rows)), rank)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda buckets: st.lists(
            st.lists(st.integers(0, 30), min_size=buckets + 1, max_size=buckets + 1), min_size=2, max_size=4
        )
    )
)
# The slow rank holds up every bucket, and then all of their transfers follow the others' computing.
@example([[30, 30, 30, 0], [10, 10, 10, 0], [10, 10, 10, 0]])
def test_no_job_gains_more_from_a_rank_becoming_like_another_than_the_bound_says(ranks: Computes) -> None:
    accounts, length = run(ranks)
    late = max(range(len(ranks)), key=lambda r: sum(ranks[r]))
    offered = bound(accounts, late)
    for other in range(len(ranks)):
        if other != late:
            like = [ranks[other] if r == late else parts for r, parts in enumerate(ranks)]
            assert offered >= length - run(like)[1]


def test_the_bound_is_no_wider_than_what_the_others_spend_on_waiting_and_moving() -> None:
    accounts, length = run([[30, 30, 30, 0], [10, 10, 10, 0], [10, 10, 10, 0]])
    assert bound(accounts, 0) == length - 30 == 67
    # Of two ranks the one that is nearly as long leaves little to gain.
    accounts, length = run([[30, 30, 30, 0], [10, 10, 10, 0], [30, 30, 20, 0]])
    assert bound(accounts, 0) == length - 80
