"""Recordings of one job that have no time in common: told aloud, and not taken for clocks that are wrong."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lostflops.ingest import assembly
from lostflops.ingest.part import Part, write_table
from lostflops.intervals.matching import matches
from lostflops.store.trace import Quality, Source, Trace
from synthetic_job import Job

UTC = 1_790_857_026 * 10**9
HOUR = 3600 * 10**9
DAY = 24 * HOUR


def job_of(ranks: int, scatter: int = 2_000) -> Job:
    job = Job(ranks, 7, scatter=scatter)
    for _ in range(20):
        job.run(range(ranks))
    return job


def assembled(
    folder: Path, job: Job, clocks: dict[int, int], *, talk: bool = True, one_source: bool = False
) -> Trace:
    """A run of the job's ranks, each recorded on a clock that shows so much more."""
    collectives = job.tables()[0].collect()
    given: list[tuple[Source, list[Part]]] = []
    for rank, more in clocks.items():
        mine = collectives.filter(pl.col("rank") == rank).with_columns(
            pl.col("start", "end", "arrival") + more
        )
        start, end = int(mine["arrival"].min()), int(mine["end"].max())  # pyright: ignore[reportArgumentType]
        place = folder / f"part{rank}"
        write_table(place, "steps", pl.DataFrame({"start": [start], "end": [end], "step": [3]}))
        if talk:
            write_table(place, "collectives", mine)
        part = Part(
            folder=str(place), rank=rank, rank_source="a test", start=start, end=end, num_events=2,
            tables=["steps", "collectives"] if talk else ["steps"],
        )  # fmt: skip
        if one_source and given:
            given[0][1].append(part)
        else:
            given.append((Source(f"rank{rank}", 1, str(rank), "kineto"), [part]))
    (folder / "run").mkdir()
    assembly.assemble(given, [], folder / "run")
    return Trace.open(folder / "run")


def told(run: Trace) -> list[Quality]:
    return [
        fact for fact in run.manifest.quality if fact.name in ("clock moved", "recordings of different times")
    ]


def waits(run: Trace) -> int:
    """How many rows were split into waiting and transfer."""
    collectives, ranks = run.table("collectives"), run.table("ranks")
    assert collectives is not None and ranks is not None
    return matches(collectives, ranks)["wait"].count()


def test_ranks_recorded_days_apart_are_not_made_one_run(tmp_path: Path) -> None:
    run = assembled(tmp_path, job_of(2), {0: UTC, 1: UTC + 3 * DAY})
    (fact,) = told(run)
    assert (fact.level, fact.count) == ("warning", 1)
    assert "rank 1's recording begins 3.0 days after rank 0's" in fact.text
    assert run.manifest.offsets == {} and waits(run) == 0


def test_ranks_recorded_apart_are_told_without_collectives_too(tmp_path: Path) -> None:
    clocks = {0: UTC, 1: UTC + 1_000_000, 2: UTC - 5 * HOUR, 3: UTC + HOUR}
    (fact,) = told(assembled(tmp_path, job_of(4), clocks, talk=False))
    assert (fact.name, fact.level, fact.count) == ("recordings of different times", "warning", 2)
    assert "rank 2's recording begins 5.0 hours before rank 0's" in fact.text


@pytest.mark.parametrize("apart", [90 * 10**9, 9 * HOUR])
def test_a_host_whose_clock_is_wrong_by_its_time_zone_is_aligned_with_a_warning(
    apart: int, tmp_path: Path
) -> None:
    job = job_of(3)
    (fact,) = told(run := assembled(tmp_path, job, {0: UTC, 1: UTC, 2: UTC + apart}))
    assert (fact.rank, fact.name, fact.level) == (2, "clock moved", "warning")
    assert abs(fact.count - apart) < 100_000 and "check that all are of one run" in fact.text
    assert waits(run) == 60


def test_two_runs_of_one_program_an_hour_apart_are_not_aligned(tmp_path: Path) -> None:
    """Their collectives match, but do not end together as those of one run do."""
    run = assembled(tmp_path, job_of(2, scatter=3_000_000), {0: UTC, 1: UTC + HOUR})
    assert [fact.name for fact in told(run)] == ["recordings of different times"]
    assert waits(run) == 0


def test_clocks_that_count_from_a_boot_are_aligned_however_far_apart(tmp_path: Path) -> None:
    run = assembled(tmp_path, job_of(2), {0: 5 * DAY, 1: 60 * DAY})
    assert [(fact.name, fact.level) for fact in told(run)] == [("clock moved", "note")]
    assert waits(run) == 40


def test_a_clock_that_is_off_by_less_than_the_recording_is_moved_as_ever(tmp_path: Path) -> None:
    job = job_of(2)
    run = assembled(tmp_path, job, {0: UTC, 1: UTC + 5_000_000})
    assert [(fact.name, fact.level) for fact in told(run)] == [("clock moved", "note")]


def test_ranks_that_a_third_one_connects_are_of_one_time(tmp_path: Path) -> None:
    """Profiling windows of ranks may begin one after the other."""
    third = 10**9
    windows = {0: (0, 5), 1: (4, 9), 2: (8, 12)}
    given: list[tuple[Source, list[Part]]] = []
    for rank, (start, end) in windows.items():
        start, end = UTC + start * third, UTC + end * third
        place = tmp_path / f"part{rank}"
        write_table(place, "steps", pl.DataFrame({"start": [start], "end": [end], "step": [3]}))
        part = Part(str(place), rank, "a test", start, end, 2, ["steps"])
        given.append((Source(f"rank{rank}", 1, str(rank), "kineto"), [part]))
    (tmp_path / "run").mkdir()
    assembly.assemble(given, [], tmp_path / "run")
    assert told(Trace.open(tmp_path / "run")) == []


def test_processes_of_one_report_that_ran_one_after_the_other_are_told(tmp_path: Path) -> None:
    run = assembled(tmp_path, job_of(2), {0: 0, 1: HOUR}, talk=False, one_source=True)
    (fact,) = told(run)
    assert "rank 1's recording begins 3,600.000 s after rank 0's" in fact.text
