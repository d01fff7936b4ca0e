"""Files of several runs, or of several times, are no one job: it is said, and not that all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.report.first_page.notes.of_one_run import OF_OTHER_TIMES, of_other_times
from lostflops.store.trace import Quality
from made_runs import MS, Job, Work, made

UNKNOWN = "How long ranks wait for each other is not known."
CANNOT = "how long ranks wait for each other is not known from these files."


def notes(folder: Path, job: Job) -> tuple[str, ...]:
    page = lostflops.why(made(folder, job.tables))
    assert page.is_apart == any(UNKNOWN in note for note in page.notes)
    assert not page.is_apart or page.no_finding == CANNOT
    return tuple(note for note in page.notes if UNKNOWN in note)


@pytest.fixture
def job() -> Job:
    job = Job(world_size=3)
    job.run([[Work()] * 3] * 4)
    for at, row in enumerate(job.tables["collectives"]):
        row["sequence"] = at // 3
    return job


def test_one_run_is_not_doubted(tmp_path: Path, job: Job) -> None:
    assert notes(tmp_path, job) == ()


def test_a_rank_of_another_run_is_named(tmp_path: Path, job: Job) -> None:
    for row in job.tables["collectives"]:
        row["kind"] = "all-gather" if row["rank"] == 2 else "all-reduce"
    (note,) = notes(tmp_path, job)
    assert note.startswith("Rank 2 took part in no operation that the other ranks of its groups recorded")


def test_ranks_that_share_nothing_are_told(tmp_path: Path, job: Job) -> None:
    kinds = ("all-gather", "all-reduce", "reduce-scatter")
    for row in job.tables["collectives"]:
        row["kind"] = kinds[row["rank"]]
    (note,) = notes(tmp_path, job)
    assert note.startswith("The ranks recorded no operation together")


def test_times_that_contradict_each_other_throughout_are_told(tmp_path: Path, job: Job) -> None:
    for table in ("steps", "kernels", "collectives"):
        for row in job.tables[table]:
            for column in ("start", "end", "arrival", "launch_start", "launch_end"):
                if row["rank"] == 2 and column in row:
                    row[column] += 300 * MS
    (note,) = notes(tmp_path, job)
    assert note.startswith("The ranks' times contradict each other: some leave before others come")


def test_ranks_that_recorded_other_steps_are_not_said_to_be_of_other_runs(tmp_path: Path) -> None:
    """Each begins a step later than the one before and records as many: their operations have no numbers."""
    job = Job(world_size=3)
    job.run([[Work(loads=8 * (rank == 1)) for rank in range(3)]] * 6)
    for name, rows in job.tables.items():
        if name != "ranks":
            job.tables[name] = [r for r in rows if 0 <= r["start"] // (50 * MS) - r["rank"] < 4]
    (note,) = notes(tmp_path, job)
    assert note.startswith("The ranks recorded other steps, and their operations have no numbers: which of")


def test_operations_without_numbers_that_differ_throughout_are_told(tmp_path: Path, job: Job) -> None:
    for row in job.tables["collectives"]:
        row["sequence"], row["kind"] = None, "all-gather" if row["rank"] == 2 else "all-reduce"
    (note,) = notes(tmp_path, job)
    assert note.startswith("The ranks' operations differ throughout")


def test_groups_that_have_no_rank_in_common_are_of_one_run(tmp_path: Path) -> None:
    """Actors and learners talk among themselves."""
    job = Job(world_size=4)
    job.run([[Work()] * 4] * 4)
    for row in job.tables["collectives"]:
        learns = row["rank"] > 1
        row |= {"group": "learners" if learns else "actors", "group_size": 2}
        row["kind"] = "all-reduce" if learns else "all-gather"
    assert notes(tmp_path, job) == ()


def test_recordings_without_a_common_time_are_told_above_the_numbers() -> None:
    fact = Quality(None, OF_OTHER_TIMES, 1, "rank 2's recording begins 600 s after rank 1's", "warning")
    assert list(of_other_times([fact])) == ["Rank 2's recording begins 600 s after rank 1's."]
