"""Files that do not say which rank they are: ranks of a job only where they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kineto_files import head, one_step, trace, written
from lostflops.errors import DifferentJobs
from lostflops.ingest import job
from lostflops.store.trace import Trace

SEPTEMBER_2026 = 1_790_000_000 * 10**9
DAY = 24 * 3600 * 10**9


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def asked(folder: Path, *given: tuple[int | None, int], world: int = 2) -> Trace:
    """A job of files that say their rank, or nothing, recorded so many nanoseconds after the first."""
    paths = [
        written(
            folder / f"{name}.json",
            trace(one_step(), before=head(rank, world, baseTimeNanoseconds=SEPTEMBER_2026 + at)),
        )
        for name, (rank, at) in zip("abc", given, strict=False)
    ]
    return job.open(paths)


def test_recordings_of_two_days_are_two_jobs(tmp_path: Path) -> None:
    with pytest.raises(DifferentJobs, match=r"a.json and b.json .* recorded 3.0 days apart, and a.json does"):
        asked(tmp_path, (None, 0), (None, 3 * DAY))
    with pytest.raises(DifferentJobs, match=r"b.json does not say which rank it is"):
        asked(tmp_path, (0, 0), (None, 3 * DAY))


def test_more_files_than_ranks_are_of_two_jobs(tmp_path: Path) -> None:
    with pytest.raises(DifferentJobs, match=r"one has 2 ranks, and with the other there are 3"):
        asked(tmp_path, (0, 0), (1, 0), (None, 0))


def test_ranks_that_were_recorded_together_are_numbered(tmp_path: Path) -> None:
    ranks = asked(tmp_path, (None, 0), (1, 0)).table("ranks")
    assert ranks is not None and ranks.collect()["rank"].to_list() == [0, 1]


def test_a_named_rank_may_be_recorded_on_another_day(tmp_path: Path) -> None:
    ranks = asked(tmp_path, (0, 0), (1, 3 * DAY)).table("ranks")
    assert ranks is not None and ranks.collect().height == 2
