"""A thread that runs Python holds up the one that launches, which then pauses under many names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import lostflops
from lostflops.recipe import Rows
from lostflops.report.first_page.page import Page
from lostflops.session import Session
from made_runs import MS, Job, Work, made

TALLY, OTHER_THREAD, STEPS = "/home/me/train.py(3): tally", 9, 5
SLEEP, LOCK = "<built-in function sleep>", "<built-in method acquire of _thread.lock object at 0x7f>"
MANY = [f"/home/me/train.py({n}): part_{n}" for n in range(4)]


def page(
    folder: Path,
    beside: Sequence[tuple[float, float, str]],
    parts: Sequence[str] = MANY,
    kind: str = "gpu",
    python: float = 12,
) -> Page:
    """Steps of 12 ms of Python in `parts` and 40 of compute; `beside` is what another thread does, ms."""
    tables = Job(transfer=0).run([[Work(python=python, frame="MINE")]] * STEPS)
    mine = next(row for row in tables["frames"] if row["name"] == "MINE")
    whole = [row for row in tables["frames"] if row["name"] == "MINE"]
    tables["frames"] = [row for row in tables["frames"] if row["name"] != "MINE"]
    long = (mine["end"] - mine["start"]) // len(parts)
    for row in whole:
        for n, name in enumerate(parts):
            start = row["start"] + n * long
            tables["frames"].append({**row, "start": start, "end": start + long, "name": name})
        for start, end, name in beside:
            at = {"start": row["start"] + round(start * MS), "end": row["start"] + round(end * MS)}
            tables["frames"].append({**row, **at, "thread": OTHER_THREAD, "name": name})
    for row in tables["ranks"]:
        row["device_kind"] = kind
    return lostflops.why(made(folder, tables))


def test_pauses_under_many_names_are_those_of_the_thread_that_runs_beside(tmp_path: Path) -> None:
    first = page(tmp_path, [(0, 12, "/usr/lib/python3.11/threading.py(982): run"), (0, 12, TALLY)]).findings[
        0
    ]
    assert first.claim == (
        "The GPU idles 12.0 ms per step (23.1 %) while another thread runs Python: `tally` (train.py:3)."
    )
    assert first.evidence == ("it runs in 100.0 % of that time, and Python lets one thread run at a time",)
    assert first.next.startswith("Move `tally` (train.py:3) to a process of its own")
    assert (first.gain, first.ns_per_step) == ("at most", 12 * MS)


@pytest.mark.parametrize(
    ("beside", "parts"),
    [
        ([(0, 9, TALLY)], MANY),  # three quarters of it
        ([(0, 12, TALLY), (2, 12, SLEEP)], MANY),  # it sleeps
        ([(0, 12, TALLY), (0, 6, LOCK), (6, 12, SLEEP)], MANY),  # it waits, and sleeps
        ([(0, 12, TALLY)], ["/home/me/train.py(9): preprocess"]),  # the thread that launches does one thing
        ([], MANY),
    ],
)
def test_a_thread_is_not_blamed_that_lets_others_run(
    beside: list[tuple[float, float, str]], parts: list[str], tmp_path: Path
) -> None:
    found = page(tmp_path, beside, parts).findings
    assert found and "python-beside-launches" not in [f.name for f in found]


def test_what_others_wait_for_a_rank_that_is_held_up_is_part_of_the_bound(tmp_path: Path) -> None:
    """A step of 62 ms takes 42 without the pauses, of which a mean rank has 19.8 ms."""
    tables = Job(world_size=2).run([[Work(python=20, frame=TALLY), Work(python=19.6, frame=TALLY)]] * STEPS)
    pauses = [row for row in tables["frames"] if row["name"] == TALLY]
    tables["frames"] = [row for row in tables["frames"] if row["name"] != TALLY]
    for row in pauses:
        tables["frames"].append({**row, "thread": OTHER_THREAD, "name": TALLY})
        quarter = (row["end"] - row["start"]) // len(MANY)
        for n, name in enumerate(MANY):
            at = row["start"] + n * quarter
            tables["frames"].append({**row, "start": at, "end": at + quarter, "name": name})
    first = lostflops.why(made(tmp_path, tables)).findings[0]
    assert (first.name, first.gain) == ("python-beside-launches", "at most")
    assert first.ns_per_step >= 20 * MS


def test_a_processor_s_operators_may_wait_for_the_lock_too(tmp_path: Path) -> None:
    """A job whose pauses are 63 % of its steps ran 50 times as fast without its other thread."""
    first = page(tmp_path, [(0, 12, TALLY)], kind="cpu").findings[0]
    assert first.claim.startswith("Nothing computes for 12.0 ms per step (23.1 %) while another thread runs")
    assert (first.gain, first.ns_per_step) == ("unknown", 0)


@pytest.mark.parametrize(("kind", "told"), [("gpu", True), ("cpu", False)])
def test_a_processor_s_short_pauses_are_told_from_a_larger_share_on(
    tmp_path: Path, kind: str, told: bool
) -> None:
    """6 ms of 46."""
    found = page(tmp_path, [(0, 6, TALLY)], kind=kind, python=6).findings
    assert ("python-beside-launches" in [finding.name for finding in found]) is told


def test_of_several_threads_the_longest_is_told_and_operators_do_not_count(tmp_path: Path) -> None:
    row = {"rank": 0, "start": 0, "end": 100}
    tables: dict[str, Rows] = {
        "frames": [
            {**row, "thread": 1, "name": TALLY},
            {**row, "thread": 2, "name": "logging/__init__.py(3): emit"},
            {**row, "thread": 2, "start": 60, "name": SLEEP},
            {**row, "thread": 7, "name": "train.py(1): main"},
        ],
        "operators": [{**row, "thread": 1, "start": 10, "end": 95, "name": "aten::mm"}],
        "kernels": [{**row, "start": 90, "launch_start": 90, "thread": 7}],
        "steps": [{**row, "step": 0}],
        "ranks": [{"rank": 0, "main_thread": 7, "device_kind": "gpu"}],
    }
    (told,) = Session(made(tmp_path, tables)).run("python_beside").table.rows(named=True)
    assert (told["thread"], told["name"]) == (2, "logging/__init__.py(3): emit")
    assert (told["time"], told["pauses"]) == (60, 90)
