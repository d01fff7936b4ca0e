"""A GPU that runs the same kernels slower in some steps is told, and other work is not taken for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lostflops
from made_runs import Job, Work, made

SLOW = Work(computes=60)


def told(folder: Path, *steps: list[Work]) -> list[str]:
    page = lostflops.why(made(folder, Job().run(steps)))
    return [f.claim for f in page.findings if f.name == "kernels-slow-down"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gpu_that_slows_down_is_told_with_its_steps_and_what_it_costs(tmp_path: Path, ranks: int) -> None:
    """Steps of 42 ms, from step 3 on of 62: 8 ms of a mean step of five."""
    run = Job().run([[Work()] * ranks] * 3 + [[SLOW] * ranks] * 2)
    page = lostflops.why(made(tmp_path, run))
    (first,) = page.findings
    assert first.claim == (
        "The same kernels take 1.5 times as long in steps 3 and 4 as in the others, which costs 8.00 ms per "
        "step (16.0 %)."
    )
    assert first.evidence[0] == "those steps take 62.0 ms, the others 42.0 ms"
    assert ("it is so on all ranks" in first.evidence) == (ranks > 1)
    assert (first.gain, first.ns_per_step) == ("at most", 8_000_000)
    assert page.verdict.startswith("Slowed down on the GPU: 16.0 % of the 50.0 ms step is")


def test_a_pause_of_the_gpus_speed_is_told_too(tmp_path: Path) -> None:
    (claim,) = told(tmp_path, *[[Work()]] * 2, *[[SLOW]] * 3, *[[Work()]] * 3)
    assert " in steps 2 to 4 as in the others" in claim


def test_other_work_is_no_slower_gpu(tmp_path: Path) -> None:
    usual, half = [[Work()]] * 3, [[SLOW]] * 2
    assert not told(tmp_path / "larger", *usual, [replace(SLOW, grid=96)], [replace(SLOW, grid=96)])
    assert not told(tmp_path / "more", *usual, [replace(SLOW, calls=6)], [replace(SLOW, calls=6)])
    assert not told(tmp_path / "in turn", [SLOW], *usual[:1], [SLOW], *usual[:2])
    assert not told(tmp_path / "grows", *([Work(computes=40 + 5 * n)] for n in range(5)))
    assert not told(tmp_path / "few", *usual[:1], *half)
    assert not told(tmp_path / "host", *usual, *[[Work(python=20)]] * 2)


def test_one_rank_that_slows_down_is_late_and_no_more(tmp_path: Path) -> None:
    run = Job().run([[Work()] * 3] * 3 + [[Work(), SLOW, Work()]] * 2)
    page = lostflops.why(made(tmp_path, run))
    assert [(f.name, f.rank) for f in page.findings] == [("rank-arrives-last", 1)]
