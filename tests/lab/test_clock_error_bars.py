"""Clocks of a simulated job that disagree and drift: the page says how well waits are known, and is right."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import lostflops
from lab.held_to_truth import steps
from lostflops.lab.simulate.job import HostClock, SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.report.first_page.quality import clocks

MS = 1_000_000
SKEWED = {1: HostClock(offset=3 * MS + 7, drift=20_000)}


def a_job(**knobs: object) -> SimulatedJob:
    return SimulatedJob(strategy("ddp", 16), steps=2, warmup=1, layers=2, **knobs)  # type: ignore[arg-type]


def test_skewed_and_drifting_clocks_have_an_error_bar_per_rank_that_holds_the_truth(tmp_path: Path) -> None:
    simulate(a_job(clocks=SKEWED), tmp_path)
    page = lostflops.why(tmp_path)
    (note,) = [note for note in page.notes if note.startswith("Clocks were up to 3.0")]
    assert "right to within 10.0 µs (ranks 0-15)" in note
    waits = next(a.table for a in page.answers if a.recipe.name == "communication_wait")
    true = steps(tmp_path).group_by("rank").agg(pl.col("wait").sum(), many=pl.len())
    both = waits.join(true.with_columns(pl.col("rank").cast(pl.Int32)), on="rank", suffix="_true")
    assert both.height == 16
    off = both.select((pl.col("in_steps") - pl.col("wait_true")).abs(), "uncertain")
    assert (off["in_steps"] <= off["uncertain"]).all() and (off["in_steps"] > 0).any()


def _ranks(*errors: int | None, moved: int = 0) -> pl.DataFrame:
    return pl.DataFrame(
        {"rank": range(len(errors)), "clock_offset": [moved] * len(errors), "clock_error": errors}
    ).with_columns(pl.when(pl.col("rank") > 0).then("clock_offset").otherwise(0).alias("clock_offset"))


def _waits(per_step: int, uncertain: int) -> pl.DataFrame:
    return pl.DataFrame({"rank": [0, 1], "per_step": [per_step, per_step], "uncertain": [uncertain] * 2})


def test_each_rank_is_named_with_its_own_error() -> None:
    (note,) = clocks(_ranks(12_000, 40_000, 12_000, moved=-5 * MS), _waits(1 * MS, 600_000), steps=4)
    assert note == (
        "Clocks were up to 5.00 ms apart; aligned, they are right to within 40.0 µs (rank 1), 12.0 µs (ranks "
        "0,2): the 1.00 ms of waiting per step may be off by 300 µs, and a wait of less than 80.0 µs is "
        "within their error."
    )


def test_nothing_is_said_where_clocks_agree_or_waits_are_long_beside_their_error() -> None:
    assert not [*clocks(_ranks(10_000, 10_000), _waits(1 * MS, 900_000), steps=2)], "one host's clock"
    assert not [*clocks(_ranks(40_000, 40_000), _waits(10 * MS, 900_000), steps=2)], "long waits"
    assert not [*clocks(_ranks(None, 40_000), _waits(1 * MS, 900_000), steps=2)], "one clock is known"
    assert [*clocks(_ranks(40_000, 40_000), _waits(1 * MS, 900_000), steps=2)]
