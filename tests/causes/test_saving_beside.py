"""A thread that saves a checkpoint slows the training where it holds Python's lock, and only there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.report.first_page.page import Page
from made_runs import MS, Job, Work, made

SAVE = "torch/serialization.py(943): save"
OTHER_THREAD = 9
STEPS = 8


def page(folder: Path, slow: Mapping[int, float], saving: tuple[int, ...], **job: Any) -> Page:
    """One rank whose Python takes 1 ms per step or what `slow` says, and one that saves."""
    tables = Job(transfer=0, **job).run([[Work(python=slow.get(n, 1))] for n in range(STEPS)])
    tables["frames"] += [
        {**{key: row[key] for key in ("rank", "start", "end")}, "thread": OTHER_THREAD, "name": SAVE}
        for row in tables["steps"]
        if row["step"] in saving
    ]
    return lostflops.why(made(folder, tables))


def test_pauses_in_just_the_steps_in_which_another_thread_saves_are_the_savings(tmp_path: Path) -> None:
    found = page(tmp_path, dict.fromkeys((3, 4, 5), 25), (3, 4, 5)).findings
    first = found[0]
    assert first.name == "saving-slows-launches" and len(found) == 1
    assert first.claim.startswith("The GPU idles 9.00 ms per step (18.0 %)")  # 24 ms in 3 of 8 steps
    assert first.size == 9 * MS <= first.ns_per_step
    assert "pauses between launches take 25.0 ms in a step beside it, 1.00 ms in the others" in first.evidence
    assert "the other thread is in `save` (serialization.py:943)" in first.evidence
    assert first.remedies == ("async-checkpoint",) and "AsyncCheckpointerType.PROCESS" in first.next


def test_what_the_other_steps_pause_as_well_keeps_its_finding(tmp_path: Path) -> None:
    slow = {n: 26 if n in (3, 4, 5) else 8 for n in range(STEPS)}
    first, second = page(tmp_path, slow, (3, 4, 5)).findings
    assert [first.name, second.name] == ["host-busy-elsewhere", "saving-slows-launches"]
    assert second.size == 6.75 * MS and first.size == 8 * MS
    assert first.claim.startswith("The GPU idles 8.00 ms per step")


@pytest.mark.parametrize(
    ("slow", "saving"),
    [
        (dict.fromkeys(range(STEPS), 26), (3, 4, 5)),  # as slow in the others
        (dict.fromkeys((3, 4, 5), 26), tuple(range(STEPS))),  # nothing to compare with
        (dict.fromkeys((3, 4, 5), 26), ()),
        (dict.fromkeys((3, 4, 5), 26), (0, 1, 2)),  # others are slow
        (dict.fromkeys(range(STEPS), 9) | dict.fromkeys((3, 4, 5), 18), (3, 4, 5)),  # twice as long at most
    ],
)
def test_a_thread_that_saves_is_not_blamed_without_steps_that_show_it(
    slow: dict[int, float], saving: tuple[int, ...], tmp_path: Path
) -> None:
    assert "saving-slows-launches" not in [f.name for f in page(tmp_path, slow, saving).findings]
