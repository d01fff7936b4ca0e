"""What the page says of a late rank where other ranks of the job were not recorded."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lostflops
from by_hand import MS, finding, given
from lostflops.causes.between_ranks.exposed import exposed_communication
from lostflops.causes.page_findings import PageFindings
from lostflops.report.first_page.page import Page
from made_runs import Job, Work, made


def page_of(folder: Path, *ranks: Work, world_size: int = 4, steps: int = 4) -> Page:
    return lostflops.why(made(folder, Job(world_size=world_size).run([list(ranks)] * steps)))


@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_late_rank_is_named_though_another_was_not_recorded(tmp_path: Path, others: int) -> None:
    page = page_of(tmp_path, Work(), Work(loads=25), *[Work()] * (others - 1), world_size=5)
    first = page.findings[0]
    assert first.rank == 1
    assert first.claim == (
        "Rank 1 is 25.0 ms late per step (37.3 %): 25.0 ms of data loading; the others here wait 25.0 ms for "
        "it."
    )
    assert "its steps hold 2.00 ms of exposed communication, those of the others here 27.0 ms" in (
        first.evidence
    )
    assert first.doubt == "Ranks of the job that were not recorded may be later still."
    rest = [f for f in page.findings if f.name == "communication-exposed"]
    assert [f.size for f in rest] in ([], [2_000_000])
    assert page.verdict.startswith("Waiting for rank 1")


def test_ranks_that_were_recorded_are_not_late_for_one_that_was_not(tmp_path: Path) -> None:
    page = page_of(tmp_path, Work(computes=40), Work(computes=40.3), Work(computes=40))
    assert not any(f.rank is not None for f in page.findings)


def test_a_rank_that_hides_more_of_the_transfer_is_not_late(tmp_path: Path) -> None:
    """All are in the all-reduce for as long; rank 1 computes 20 ms of it away."""
    tables = Job(world_size=4, transfer=30).run([[Work()] * 3] * 4)
    for row in [row for row in tables["kernels"] if row["rank"] == 1 and row["stream"] == 20]:
        longer = {"end": row["start"] + 20_000_000, "family": "gemm", "name": "sm90_gemm", "stream": 7}
        tables["kernels"].append(row | longer)
    page = lostflops.why(made(tmp_path, tables))
    assert [f.name for f in page.findings] == ["communication-exposed"]


def test_a_late_rank_is_named_though_no_step_was_recorded_on_all(tmp_path: Path) -> None:
    """Rank 0 recorded steps 0 to 3, ranks 1 and 2 steps 4 to 7."""
    tables = Job().run([[Work(), Work(loads=25), Work()]] * 8)
    middle = tables["steps"][4 * 3]["start"]
    for name in ("steps", "kernels", "collectives", "ranges"):
        tables[name] = [r for r in tables[name] if (r["start"] < middle) == (r["rank"] == 0)]
    page = lostflops.why(made(tmp_path, tables))
    first = page.findings[0]
    assert first.rank == 1 and first.claim.endswith(
        "25.0 ms of data loading; the others wait 25.0 ms for it."
    )
    assert first.doubt == "Most collectives could not be matched: ranks recorded other steps."
    assert page.notes[-1].startswith(
        "No step was recorded on all ranks: rank 0 has steps 0 to 3 and ranks 1 and 2 have steps 4 to 7."
    )


def test_why_collectives_could_not_be_matched_is_told_as_it_is(tmp_path: Path) -> None:
    """RCCL has one kernel for everything: all recorded the same steps, and nothing says what each does."""
    tables = Job(kind="unknown").run([[Work(), Work(loads=25), Work()]] * 4)
    for row in tables["collectives"]:
        row |= {"group": None, "group_size": None}
    first = lostflops.why(made(tmp_path, tables)).findings[0]
    assert first.rank == 1 and first.doubt == (
        "Most collectives could not be matched: what most of their group's operations do is unknown."
    )


@pytest.mark.parametrize(("late", "doubted"), [(25, True), (0, False)])
def test_waiting_for_a_rank_that_is_not_here_is_doubted_to_be_transfer(
    tmp_path: Path, late: float, doubted: bool
) -> None:
    """Rank 0 alone was recorded; in every other step another comes 25 ms after it. Alike they take 6 ms."""
    tables = Job(world_size=2, transfer=6).run(
        [[Work(), Work(loads=late if step % 2 else 0)] for step in range(8)]
    )
    for name in tables:
        tables[name] = [row for row in tables[name] if row["rank"] == 0]
    page = lostflops.why(made(tmp_path, tables))
    (exposed,) = (f for f in page.findings if f.name == "communication-exposed")
    assert ("12.5 ms of it is longer than the same takes at its fastest" in exposed.doubt) == doubted


def in_turn(late: Work, ranks: int = 3, steps: int = 6) -> list[list[Work]]:
    return [[late if step % ranks == rank else Work() for rank in range(ranks)] for step in range(steps)]


def test_ranks_here_that_collect_garbage_in_turn_are_waited_for_whoever_is_missing(tmp_path: Path) -> None:
    page = lostflops.why(made(tmp_path, Job(world_size=4).run(in_turn(Work(collects=24)))))
    (first,) = page.findings
    assert first.claim == "The GPU loses 24.0 ms per step (36.4 %) while Python collects garbage."
    assert first.evidence[0] == (
        "ranks 0, 1 and 2 take turns being late because of it: ranks wait 16.0 ms per step for each other"
    )


def test_ranks_here_that_compute_longer_in_turn_are_waited_for_whoever_is_missing(tmp_path: Path) -> None:
    page = lostflops.why(made(tmp_path, Job(world_size=4).run(in_turn(Work(computes=64, grid=96)))))
    (first,) = page.findings
    assert first.claim.startswith(
        "Ranks wait 16.0 ms per step (24.2 %) for each other: ranks 0, 1 and 2 take turns being late"
    )
    assert first.doubt == "Ranks of the job that were not recorded may be later still."


@pytest.mark.parametrize(("left", "longer", "waiting"), [(2, "18.8", "6.25"), (4, "12.5", "12.5")])
def test_waiting_for_a_rank_whose_file_was_cut_is_doubted_to_be_transfer(
    tmp_path: Path, left: int, longer: str, waiting: str
) -> None:
    """Rank 1 is 25 ms late in every step; of its file so many are left, in which it transfers for 6 ms."""
    tables = Job(transfer=6).run([[Work(), Work(loads=25), Work()]] * 8)
    cut = tables["steps"][left * 3]["start"]
    for name in ("steps", "kernels", "collectives", "ranges"):
        tables[name] = [row for row in tables[name] if row["rank"] != 1 or row["start"] < cut]
    for row in tables["steps"]:
        row |= {"complete": False, "left_out": "no whole step on its rank"} if row["rank"] == 1 else {}
    page = lostflops.why(made(tmp_path, tables))
    (exposed,) = (f for f in page.findings if f.name == "communication-exposed")
    assert f"{longer} ms of it is longer than the same takes at its fastest" in exposed.doubt
    assert exposed.claim.endswith(
        f"{waiting} ms of it waiting for rank 1, of which no step was recorded whole."
    )


@pytest.mark.parametrize(
    ("late", "told"),
    [
        ((Work(loads=20), Work(computes=65)), "rank 1 has 20.0 ms of data loading and rank 2 has 25.0 ms"),
        ((Work(computes=64.9), Work(computes=65)), "which compute 24.9 ms longer than the others in nearly"),
    ],
)
def test_ranks_here_that_are_late_together_are_named_though_others_are_missing(
    tmp_path: Path, late: tuple[Work, Work], told: str
) -> None:
    """Until the last of both comes, the four others wait 25 ms; those that are not here may come later."""
    first = page_of(tmp_path, Work(), *late, *[Work()] * 3, world_size=8).findings[0]
    assert first.claim.startswith("The others here wait 25.0 ms per step (37.3 %) for ranks 1 and 2, which ")
    assert told in first.claim
    assert first.doubt == "Ranks of the job that were not recorded may be later still."


def test_ranks_that_hide_more_of_the_transfer_together_are_not_late(tmp_path: Path) -> None:
    """All six are in the all-reduce for as long; ranks 1 and 2 compute 20 ms of it away."""
    tables = Job(world_size=8, transfer=30).run([[Work()] * 6] * 4)
    for row in [row for row in tables["kernels"] if row["rank"] in (1, 2) and row["stream"] == 20]:
        longer = {"end": row["start"] + 20_000_000, "family": "gemm", "name": "sm90_gemm", "stream": 7}
        tables["kernels"].append(row | longer)
    page = lostflops.why(made(tmp_path, tables))
    assert [f.name for f in page.findings] == ["communication-exposed"]


def test_a_late_rank_is_named_though_the_file_of_another_was_cut(tmp_path: Path) -> None:
    """Of rank 1 no step is whole, and all operations of its first four are there: they tell half of it."""
    tables = Job(transfer=6).run([[Work(), Work(), Work(computes=65), Work()]] * 8)
    middle = tables["steps"][4 * 4]["start"]
    for name in ("steps", "kernels", "collectives"):
        tables[name] = [row for row in tables[name] if row["rank"] != 1 or row["start"] < middle]
    for row in tables["steps"]:
        row |= {"complete": False, "left_out": "no whole step on its rank"} if row["rank"] == 1 else {}
    page = lostflops.why(made(tmp_path, tables))
    first = page.findings[0]
    assert first.rank == 2 and first.claim.endswith(
        "it computes 25.0 ms longer than the others; the others here wait 25.0 ms for it."
    )
    assert first.doubt == "Ranks of the job that were not recorded may be later still."
    assert [f.size for f in page.findings if f.name == "communication-exposed"] in ([], [6_000_000])


def test_what_a_rank_without_a_whole_step_comes_late_by_is_not_told_per_step() -> None:
    """Of 158 ms steps rank 2 was told to come 246 ms per step after the others: the sum of its six."""
    rows = [(rank, step, "communication.exposed", 158 * MS) for rank in (0, 1, 3) for step in range(6)]
    table = pl.DataFrame(
        {"rank": [2], "blame_share": [0.9], "lead": [246 * MS], "per_step": [1], "last": [9]}
    )
    page = PageFindings(given(rows, communication_imbalance=table.with_columns(collectives=pl.lit(9))))
    exposed_communication(page, finding("communication-exposed", "communication.exposed", 158), 9 * MS, 0)
    (found,) = page.all()
    assert not any("after the others" in fact for fact in found.evidence)
