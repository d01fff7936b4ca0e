"""Ranks of one group that do not run the same operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lostflops.finding import Finding
from lostflops.session import Session
from made_runs import made


def findings(folder: Path, *per_step: int, group: str | None = "0 [0, 1, 2, 3]") -> tuple[Finding, ...]:
    """Ranks with so many all-reduces in each of three steps of 1,000 ns."""
    ranks = range(len(per_step))
    starts = [(rank, 1000 * step) for rank in ranks for step in range(3)]
    about = {"kind": "all-reduce", "group": group, "group_size": len(per_step), "bytes_in": 8}
    tables: dict[str, Any] = {
        "ranks": [{"rank": rank, "world_size": len(per_step)} for rank in ranks],
        "steps": [
            {"rank": rank, "step": at // 1000, "start": at, "end": at + 1000, "host_start": at}
            for rank, at in starts
        ],
        "kernels": [{"rank": r, "start": at, "end": at + 990, "family": "gemm"} for r, at in starts],
        "collectives": [
            {"rank": r, "start": at + 10 * n, "end": at + 10 * n + 5, "arrival": at + 10 * n, **about}
            for r, at in starts
            for n in range(per_step[r])
        ],
    }
    return Session(made(folder, tables)).run("uneven_calls").findings  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("per_step", "said"),
    [
        ((6, 6, 24, 6), "Rank 2 runs 24 all-reduces per step in group 0 [0, 1, 2, 3], others 6: "),
        ((24, 6, 24, 24), "Rank 1 runs 6 all-reduces per step in group 0 [0, 1, 2, 3], others 24: "),
        ((2, 4), "Rank 1 runs 4 all-reduces per step in group 0 [0, 1, 2, 3], others 2: "),
        ((6, 7, 6, 6), None),  # a recording may lack an operation
        ((1, 2, 1, 1), None),
        ((6, 6, 6, 6), None),
    ],
)
def test_a_rank_that_runs_more_or_fewer_operations_than_its_group_is_named(
    tmp_path: Path, per_step: tuple[int, ...], said: str | None
) -> None:
    told = [finding.claim for finding in findings(tmp_path, *per_step)]
    assert told == ([] if said is None else [f"{said}operations of different steps are paired."])


def test_ranks_of_unknown_groups_are_not_compared(tmp_path: Path) -> None:
    assert findings(tmp_path, 6, 24, group=None) == ()
