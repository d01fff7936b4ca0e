"""A rank that launches as much as the others and takes longer for it has a slow CPU, not a slow program."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from made_runs import MS, Job, Work, made


@pytest.mark.parametrize(("calls", "slow"), [(4, True), (8, False)])
def test_a_slow_cpu_is_told_from_a_program_that_launches_more(tmp_path: Path, calls: int, slow: bool) -> None:
    work = [Work(), Work(python=20, calls=calls), Work()]
    tables = Job().run([work] * 4)
    tables["operators"] = [
        {**row, "name": "aten::linear", "start": at, "end": at + MS // 2}
        for row in tables.pop("frames")
        for at in range(row["start"], row["end"], MS // 2)
    ]
    first = lostflops.why(made(tmp_path, tables)).findings[0]
    assert first.rank == 1 and "of launching" in first.claim
    assert ("its CPU is slower" in first.next) == slow and ("torch.compile" in first.next) != slow
