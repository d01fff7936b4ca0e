"""Ranks that are late for an operation each of its own within a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lostflops
from lostflops.report.first_page.page import Page
from made_runs import Job, Work, made


def page_of(folder: Path, *phases: Sequence[Work], steps: int = 5) -> Page:
    """Steps of phases that end with an all-reduce of 2 ms each."""
    tables = Job().run([*phases] * steps)
    last = len(phases) - 1
    ends = {(row["rank"], row["step"]): row["end"] for row in tables["steps"]}
    tables["steps"] = [
        row | {"step": row["step"] // len(phases), "end": ends[row["rank"], row["step"] + last]}
        for row in tables["steps"]
        if row["step"] % len(phases) == 0
    ]
    return lostflops.why(made(folder, tables))


def test_two_ranks_that_are_late_one_after_the_other_both_cost_what_they_do(tmp_path: Path) -> None:
    """Rank 0 loads for 20 ms before the first operation, rank 1 runs Python for 30 before the second. The
    first was told as 6.67 ms, the second as 20.0 for which others wait 37.5, and 8.33 as nobody's."""
    half = Work(computes=20)
    late, loader = page_of(
        tmp_path,
        [Work(computes=20, loads=20), half, half],
        [half, Work(computes=20, python=30), half],
    ).findings
    assert late.claim == (
        "Rank 1 is 30.0 ms late per step (31.9 %): 30.0 ms of Python and other CPU work, `preprocess` "
        "(ddp.py:16); the others wait 30.0 ms for it."
    )
    assert (
        "a step takes 60.7 ms instead of 94.0 ms: rank 1 alone is 60.0 % of the difference"
        in (late.evidence[1])
    )
    assert loader.claim == "The GPU loses 20.0 ms per step (21.3 %) waiting for the data loader."
    assert loader.evidence[0] == "rank 0 comes later because of it: ranks wait 13.3 ms per step for it"


def test_a_rank_that_has_less_to_do_after_it_was_late_is_late(tmp_path: Path) -> None:
    """It loads for 25 ms, and after the first operation computes 15 less than the others: without the loader
    a step takes 44 and not 69. Nobody was late as a rule, and the loader cost 11.7."""
    first = [Work(computes=20, loads=25), *[Work(computes=20)] * 2]
    found = page_of(tmp_path, first, [Work(computes=5), *[Work(computes=20)] * 2]).findings[0]
    assert found.claim == (
        "Rank 0 is 25.0 ms late per step (36.2 %): 25.0 ms of data loading; the others wait 25.0 ms for it."
    )
    assert "a step takes 47.3 ms instead of 69.0 ms" in found.evidence[1]


def test_each_of_three_late_ranks_is_told_by_what_makes_it_late_at_its_place(tmp_path: Path) -> None:
    """Two compute 15 ms longer, each before an operation of its own, and one runs Python for 12 before the
    third: all three were told "to compute longest", and nothing of Python."""
    half, longer, pauses = Work(computes=20), Work(computes=35), Work(computes=20, python=12)
    phases = [[longer if rank == at else half for rank in range(4)] for at in range(2)]
    found = page_of(tmp_path, *phases, [half, half, pauses, half]).findings[0]
    assert found.claim == (
        "Ranks wait 31.5 ms per step (29.2 %) for others: 11.2 ms for rank 0, which computes 15.0 ms longer "
        "than the others; 11.2 ms for rank 1, which computes 15.0 ms longer than the others; 9.00 ms for "
        "rank 2, which has 12.0 ms of Python and other CPU work."
    )
    assert "On rank 2: make `preprocess` (ddp.py:16) cheaper there" in found.next
