"""Files of several jobs that were given as one: refused where nothing shows a job, else told aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from kineto_files import head, one_step, trace, written
from lostflops.errors import LostflopsError
from nsys_exports import call, kernel, process, push, sqlite

SEPTEMBER_2026 = 1_790_000_000 * 10**9
SECOND = 10**9
MS = 1_000_000


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def report(
    path: Path, pid: int, length: int, steps: int = 3, reduces: int = 0, begins: int = 0, drift: float = 0
) -> Path:
    """Steps of a process in a report that does not say when it began, each with an all-reduce of 50 µs
    where `reduces` says when."""
    own = process(pid)
    starts = [begins + round(number * length * (1 + drift)) for number in range(steps)]
    rows = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(at + since, at + until, correlationId=at + 1, globalPid=own, demangledName=name)
            for at in starts
            for since, until, name in ((2000, length // 2, 10), (reduces, reduces + 50_000, 11))
            if since
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(at + 100, at + 200, correlationId=at + 1, globalTid=own | 8) for at in starts
        ],
        "NVTX_EVENTS": [push(at, at + length, f"step {at}", globalTid=own | 8) for at in starts],
    }
    return sqlite(path, rows)


def profile(path: Path, rank: int | None, begins: int, pid: int = 1) -> Path:
    events = [{**event, "pid": pid if event["pid"] else 0} for event in one_step()]
    return written(path, trace(events, head(rank, 1, baseTimeNanoseconds=SEPTEMBER_2026 + begins)))


def test_reports_that_share_nothing_are_not_ranks_of_one_job(tmp_path: Path) -> None:
    """They were "2 ranks" with a mean of 12.0 ms, of steps of 10 and 14 ms."""
    reports = [
        report(tmp_path / f"{name}.sqlite", pid, at * MS) for name, pid, at in (("a", 7, 10), ("b", 9, 14))
    ]
    with pytest.raises(LostflopsError, match=r"a.sqlite and b.sqlite share nothing .* no time in common"):
        lostflops.open(reports)
    named = [path.rename(path.with_name(f"rank{rank}.sqlite")) for rank, path in enumerate(reports)]
    assert lostflops.open(named).manifest.num_events == 18


def test_profiles_that_share_nothing_are_not_ranks_of_one_job(tmp_path: Path) -> None:
    first = profile(tmp_path / "a.json", None, 0)
    with pytest.raises(LostflopsError, match="names no rank and has no collectives, and they have no time"):
        lostflops.open([first, profile(tmp_path / "b.json", None, 60 * SECOND)])
    page = lostflops.why([first, profile(tmp_path / "c.json", None, 0)])
    assert (
        "Nothing shows that these files are of one job: a.json names no rank, has no collectives, and was "
        "only recorded at about the time of c.json: if they are of several jobs, give the files of one."
    ) in page.notes


def test_two_processes_of_one_rank_are_two_jobs(tmp_path: Path) -> None:
    """Their steps were counted as 12 of one job, whose kernels became slower."""
    first = profile(tmp_path / "a.json", 0, 0)
    with pytest.raises(LostflopsError, match=r"both rank 0, but of two processes, 1 and 2: of two jobs, or"):
        lostflops.open([first, profile(tmp_path / "b.json", 0, 60 * SECOND, pid=2)])
    on_two = [profile(tmp_path / f"node{pid}_rank0.json", None, 0, pid=pid) for pid in (1, 2)]
    with pytest.raises(
        LostflopsError, match=r"again, or of two machines, whose ranks these names count"
    ) as it:
        lostflops.open(on_two)
    assert "named by the rank in the job, as in 'rank8.json'" in str(it.value.hint)
    once_more = lostflops.open([first, profile(tmp_path / "c.json", 0, 60 * SECOND)])
    (fact,) = [fact for fact in once_more.manifest.quality if fact.name == "steps renumbered"]
    assert fact.level == "warning" and fact.text.endswith("if they are of two jobs, give one")


@pytest.mark.parametrize(("length", "drift", "refused"), [(14 * MS, 0, True), (10 * MS, 1e-4, False)])
def test_reports_whose_all_reduces_never_meet_are_not_ranks_of_one_job(
    tmp_path: Path, length: int, drift: float, refused: bool
) -> None:
    """Both reduce once a step, of 10 and 14 ms: they were "2 ranks" of 12.0 ms a step. Clocks may drift."""
    reports = [
        report(
            tmp_path / f"{name}.sqlite", pid, every, steps=200 if drift else 6,
            reduces=length // 2, begins=shift, drift=more,
        )
        for name, pid, every, shift, more in (("a", 7, 10 * MS, 0, 0), ("b", 9, length, 5 * SECOND, drift))
    ]  # fmt: skip
    if refused:
        with pytest.raises(
            LostflopsError, match=r"a.sqlite, b.sqlite are not ranks of one job: they name no"
        ):
            lostflops.open(reports)
        reports = [path.rename(path.with_name(f"rank{rank}.sqlite")) for rank, path in enumerate(reports)]
    assert lostflops.open(reports).manifest.num_events
