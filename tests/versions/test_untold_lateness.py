"""Of ranks and steps that are late alike one is told, whatever order Polars gives them in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from lostflops.causes.lateness import _only_step  # pyright: ignore[reportPrivateUsage]
from lostflops.causes.own_time.together import turns


def ledger(*rows: tuple[int, int, str, int]) -> Any:
    names = pl.DataFrame(rows, schema=["rank", "step", "account", "ns"], orient="row")
    return SimpleNamespace(ledger=names, most_waiting=frozenset(names["rank"]))


TIED = ledger(
    *((0, step, "idle.data_loading", 10) for step in range(2)),
    *((1, step, "idle.other_host_work", 10) for step in range(2)),
    *((2, step, "idle.other_host_work", 2) for step in range(2)),
)


@pytest.mark.usefixtures("turned_round")
def test_of_ranks_that_are_late_alike_the_higher_is_the_last_of_the_step() -> None:
    found = turns(TIED)
    assert found is not None
    assert (found.account, found.ranks) == ("idle.other_host_work", (1,))


@pytest.mark.usefixtures("turned_round")
def test_of_steps_that_are_late_alike_the_first_is_told() -> None:
    rows = [(rank, step, "idle.data_loading", 0) for rank in (0, 1) for step in range(3)]
    given = ledger(*(r for r in rows if r[:2] != (1, 2)), (1, 2, "idle.data_loading", 9))
    assert _only_step(given, 1) == 2
    assert _only_step(ledger(*rows), 1) == 0
