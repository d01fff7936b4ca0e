"""A rank that is late for several causes, ranks that are so in turn for unlike ones: what each is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import lostflops
from lostflops.recipe import Rows
from lostflops.report.first_page.page import Page
from made_runs import MS, Job, Work, made

STEPS, TALLY, OTHER_THREAD = 5, "/home/me/train.py(3): tally", 9
EVEN, LOADS, COLLECTS = Work(), Work(loads=20), Work(collects=20)


def why(folder: Path, steps: Sequence[Sequence[Work]]) -> Page:
    return lostflops.why(made(folder, Job().run(steps)))


def test_each_cause_of_a_late_rank_is_told_with_what_to_do_about_it_once(tmp_path: Path) -> None:
    """Without the loader alone a step gets 20 ms shorter, as predicted for both it is 35."""
    (only,) = why(tmp_path, [[EVEN, EVEN, Work(loads=20, collects=15), EVEN]] * STEPS).findings
    assert only.claim.startswith(
        "Rank 2 is 35.0 ms late per step (45.5 %): 20.0 ms of data loading, and 15.0 ms of garbage collection"
    )
    assert only.next.startswith("On rank 2: give the loader worker processes")
    assert "On rank 2, too: after the start call `gc.collect()`" in only.next
    assert {"loader-workers", "gc-freeze"} <= set(only.remedies or ())


def test_three_causes_of_a_late_rank_are_told(tmp_path: Path) -> None:
    three = Work(loads=12, collects=10, python=9)
    (only,) = why(tmp_path, [[EVEN, EVEN, three, EVEN]] * STEPS).findings
    assert "12.0 ms of data loading, 10.0 ms of garbage collection, and 9.00 ms of Python" in only.claim
    assert only.next.endswith(
        "On rank 2, too: make `preprocess` (ddp.py:16) cheaper there, or take it out of the step."
    )


def test_what_all_ranks_have_keeps_its_finding_beside_a_late_rank(tmp_path: Path) -> None:
    more = Work(loads=30, collects=15)
    found = why(tmp_path, [[LOADS, LOADS, more, LOADS]] * STEPS).findings
    assert [f.name for f in found] == ["rank-arrives-last", "data-loading-starves-device"]


def test_ranks_that_are_late_in_turn_for_unlike_causes_have_one_each(tmp_path: Path) -> None:
    """Ranks 1 and 3 each make the other three wait 20 ms in half of the steps: 7.5 of a mean rank's step."""
    turns = [[EVEN, LOADS, EVEN, EVEN], [EVEN, EVEN, EVEN, COLLECTS]] * 3
    found = {f.name: f for f in why(tmp_path, turns).findings}
    collects, waits = found["garbage-collection-inside-step"], found["communication-waits"]
    assert collects.claim == "The GPU loses 10.0 ms per step (16.1 %) while Python collects garbage."
    assert "rank 3 is late in its turn because of it: ranks wait 7.50 ms per step for it" in collects.evidence
    assert waits.claim == (
        "Ranks wait 7.50 ms per step (12.1 %) for rank 1: it is late in its turn, mostly by data loading."
    )
    assert waits.next.startswith("On rank 1: give the loader worker processes")
    assert waits.edit == "even-ranks:1"
    assert sum(f.size for f in (collects, waits)) <= (10 + 7.5) * MS


def test_what_a_checkpoint_makes_others_wait_is_counted_once_and_in_the_claim(tmp_path: Path) -> None:
    """Rank 1 always computes 20 ms longer; in every other step rank 0 saves for 30 ms, and 3.75 ms of a mean
    rank's step are that. Ranks wait 16.25 ms for the two."""
    saves = Work(saves=30, copies=6, direction="device to host")
    slow = Work(computes=60)
    found = {
        f.name: f for f in why(tmp_path, [[EVEN, slow, EVEN, EVEN], [saves, slow, EVEN, EVEN]] * 3).findings
    }
    checkpoint, waits = found["checkpoint-inside-step"], found["communication-waits"]
    assert checkpoint.claim == (
        "Checkpoints keep ranks from work for 12.6 ms per step (18.8 %), copies and waiting included."
    )
    assert checkpoint.size + waits.size == round((3.75 + 16.25) * MS) - 1  # of shares in whole ns


def test_waiting_that_a_pause_has_already_is_no_share_of_it_twice(tmp_path: Path) -> None:
    """In every other step rank 0 saves for 60 ms: the others wait 20 ms while it does, 40 while it computes
    then. In the steps between they wait 40 ms for rank 1. Together that is 37.5 ms of a mean rank's step, and
    saving is 7.5."""
    saves, slow = Work(saves=60, copies=6, direction="device to host"), Work(computes=80)
    turns = [[EVEN, slow, EVEN, EVEN], [saves, EVEN, EVEN, EVEN]] * 3
    found = {f.name: f for f in why(tmp_path, turns).findings}
    checkpoint, waits = found["checkpoint-inside-step"], found["communication-waits"]
    assert checkpoint.claim.startswith("Checkpoints keep ranks from work for 29.0 ms per step (31.6 %)")
    assert checkpoint.size + waits.size == round((7.5 + 37.5) * MS) - 1  # of shares in whole ns


def held_up(ranks: int, late: Sequence[int]) -> dict[str, list[dict[str, object]]]:
    """These ranks pause for 15 ms under four names, while another thread runs Python."""
    work = [Work(python=15, frame="PAUSE") if rank in late else EVEN for rank in range(ranks)]
    tables = Job().run([work] * STEPS)
    frames: list[dict[str, object]] = []
    for row in tables["frames"]:
        quarter = (row["end"] - row["start"]) // 4
        for n in range(4):
            at = row["start"] + n * quarter
            frames.append({**row, "start": at, "end": at + quarter, "name": f"train.py({n}): part_{n}"})
        frames.append({**row, "thread": OTHER_THREAD, "name": TALLY})
    return {**tables, "frames": frames}


@pytest.mark.parametrize(("ranks", "late"), [(4, 2), (8, 5), (2, 1)])
def test_a_thread_that_holds_up_one_rank_is_what_makes_it_late(ranks: int, late: int, tmp_path: Path) -> None:
    tables: dict[str, Rows] = dict(held_up(ranks, [late]))
    (only,) = lostflops.why(made(tmp_path, tables)).findings
    assert only.claim.startswith(f"Rank {late} is 15.0 ms late per step (26.3 %): ")
    assert "15.0 ms in which another thread runs Python, `tally` (train.py:3);" in only.claim
    assert only.next.startswith(f"On rank {late}: move `tally` (train.py:3) to a process of its own")


def test_a_thread_that_holds_up_half_of_the_ranks_is_told_with_these(tmp_path: Path) -> None:
    tables: dict[str, Rows] = dict(held_up(4, [2, 3]))
    (only,) = lostflops.why(made(tmp_path, tables)).findings
    assert only.claim == (
        "The GPU loses 15.0 ms per step (26.3 %) while another thread runs Python: `tally` (train.py:3)."
    )
    assert only.evidence[0].startswith("ranks 2 and 3 idle 15.0 ms per step for it")
    assert only.next.startswith("On ranks 2 and 3: move `tally`")


@pytest.mark.parametrize("late", [STEPS, 1])
def test_a_rank_that_comes_late_to_what_the_others_hide_is_told_with_what_is_exposed(
    tmp_path: Path, late: int
) -> None:
    """Ranks 0 and 2 ask 10 ms into 40 of compute, rank 1 at the end of them; 5 ms of transfer follow. Where
    that is so in the first step alone, nothing is told of what it does in others."""
    tables = Job(transfer=5).run([[EVEN, EVEN, EVEN]] * STEPS)
    of_it = [row for row in tables["kernels"] if row["family"] == "communication"] + tables["collectives"]
    for row in of_it:
        if row["rank"] != 1 and row["start"] < late * 45 * MS:
            for time in {"start", "arrival", "launch_start", "launch_end"} & set(row):
                row[time] -= 30 * MS
    (only,) = lostflops.why(made(tmp_path, tables)).findings
    assert only.claim == "Communication that no computation hides costs 5.00 ms per step (11.1 %)."
    said = "rank 1 comes 30.0 ms after the others, which compute meanwhile: last in 5 of 5 collectives"
    assert (only.evidence[0] == said) == (late == STEPS)
    assert any("which compute meanwhile" in fact for fact in only.evidence) == (late == STEPS)


def test_waiting_in_turn_is_owed_to_each_cause_by_which_the_last_rank_is_late(tmp_path: Path) -> None:
    """Each rank collects for 28 ms in its turn, and rank 1 loads for 20 in every step: in its own turn ranks
    wait 48 ms for it, 20 of which are for the loader, 3.75 of a mean rank's step."""
    steps = [[Work(loads=20 * (r == 1), collects=28 * (r == k % 4)) for r in range(4)] for k in range(4)]
    collects, loads = why(tmp_path, steps).findings
    assert collects.claim == "The GPU loses 24.2 ms per step (32.3 %) while Python collects garbage."
    assert collects.evidence[0].endswith("ranks wait 17.2 ms per step for each other")
    assert loads.claim == "The GPU loses 8.75 ms per step (11.7 %) waiting for the data loader."
    assert collects.size + loads.size == 33 * MS  # all that ranks idle and wait
