"""Ranks of a job whose others were not recorded, or not the same steps of them."""

from __future__ import annotations

import polars as pl

from lostflops.causes.between_ranks.few_ranks import waited_in_turn
from lostflops.causes.given import Given

BARE = "communication.exposed"
Row = tuple[int, int, str, int]


def waited(*rows: Row) -> int:
    schema = {"rank": pl.Int64, "step": pl.Int64, "account": pl.String, "ns": pl.Int64}
    ledger = pl.DataFrame(rows, schema, orient="row").with_columns(start=1000 * pl.col("step"))
    return waited_in_turn(Given({}, ledger, missing_ranks=True))


def test_ranks_without_a_step_in_common_wait_for_nobody() -> None:
    assert waited((0, 1, "compute", 30), (0, 1, BARE, 20), (1, 2, "compute", 10), (1, 2, BARE, 40)) == 0


def test_in_turn_ranks_wait_for_the_one_that_has_most_of_its_own() -> None:
    turns = [
        (rank, step, account, ns)
        for step in (1, 2)
        for rank in (0, 1)
        for account, ns in (
            ("compute", 30 if rank == step % 2 else 10),
            (BARE, 20 if rank == step % 2 else 40),
        )
    ]
    assert waited(*turns) == 40 // 4
