"""Ranks that count one job's steps from different numbers, as after resuming, have one number a step."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

import lostflops
from acceptance.cases import played
from acceptance.training import Job
from lostflops.ingest.steps.numbering import alike

DISTANT = 200


def steps(rank: int, *numbers: int, since: int = 0, length: int = 100) -> pl.DataFrame:
    """Steps of one length, one after the other."""
    at = [since + length * n for n in range(len(numbers))]
    return pl.DataFrame(
        {"step": numbers, "start": at, "end": [start + length for start in at]},
        schema_overrides={"step": pl.Int64},
    ).with_columns(rank=pl.lit(rank, pl.Int32))


def numbers(*ranks: pl.DataFrame, offsets: dict[int, int] | None = None) -> list[list[int]]:
    known = dict.fromkeys(range(len(ranks)), 0) if offsets is None else offsets
    found, told = alike(pl.concat(ranks), known)
    assert [fact.rank for fact in told] == sorted(
        n for n, mine in enumerate(ranks) if found.filter(rank=n)["step"].to_list() != mine["step"].to_list()
    )
    return [found.filter(rank=n)["step"].to_list() for n in range(len(ranks))]


def test_a_rank_takes_the_numbers_of_the_first() -> None:
    assert numbers(steps(0, 3, 4, 5), steps(1, 7, 8, 9), steps(2, 1, 2, 3)) == [[3, 4, 5]] * 3
    assert numbers(steps(0, 3, 4, 5), steps(1, 7, 8, since=125)) == [[3, 4, 5], [4, 5]]


def test_steps_of_one_number_and_about_one_time_keep_it() -> None:
    assert numbers(steps(0, 3, 4, 5), steps(1, 4, 5, since=74)) == [[3, 4, 5], [4, 5]]
    # One is at the time of the next, by three quarters of it and a quarter of its own.
    assert numbers(steps(0, 3, 4, 5), steps(1, 3, 4, 5, since=75)) == [[3, 4, 5], [4, 5, 6]]
    assert numbers(steps(0, 3, 4, 5), steps(1, 3, 4, 5, since=74)) == [[3, 4, 5], [3, 4, 5]]


def test_what_one_distance_does_not_explain_keeps_its_numbers() -> None:
    assert numbers(steps(0, 3, 4, 5), steps(1, 7, 8, 10)) == [[3, 4, 5], [7, 8, 10]]
    assert numbers(steps(0, 3, 4, 5), steps(1, 7)) == [[3, 4, 5], [7]]
    assert numbers(steps(0, 3, 4, 5), steps(1, 7, 8, since=900)) == [[3, 4, 5], [7, 8]]


def test_clocks_are_compared_with_their_offsets_or_not_at_all() -> None:
    late = steps(1, 7, 8, 9, since=5000)
    assert numbers(steps(0, 3, 4, 5), late, offsets={0: 0, 1: -5000}) == [[3, 4, 5]] * 2
    assert numbers(steps(0, 3, 4, 5), late, offsets={0: 0}) == [[3, 4, 5], [7, 8, 9]]


@pytest.mark.parametrize("by", [1, DISTANT])
def test_a_rank_that_counts_from_another_number_leaves_no_step_out(by: int, tmp_path: Path) -> None:
    job = Job(steps=4, skip=2, layers=1, world=3, kernel_us=300)
    played(job, tmp_path)
    file = sorted(tmp_path.iterdir(), key=lambda path: path.name.rpartition("_")[2].split(".")[1])[1]
    file.write_text(re.sub(r"(?<=ProfilerStep#)\d+", lambda m: str(int(m[0]) + by), file.read_text()))
    page = lostflops.why(tmp_path)
    assert str(page).splitlines()[0].startswith("3 ranks · 4 steps")
    assert "Left out" not in str(page) and "mean of 4 steps on 3 ranks" in str(page)
