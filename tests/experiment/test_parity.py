"""Losses and memory on both sides of a change."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lostflops.experiment.proof import paired, parity, starts
from lostflops.experiment.proof.proven import Proven
from lostflops.experiment.proof.shown import sentences
from lostflops.experiment.proof.starts import JobStart
from lostflops.experiment.tune import deciding
from run_logs import run

FALLING = [6.4 * math.exp(-n / 240) for n in range(120)]


def start(folder: Path, loss: list[Any], **given: Any) -> JobStart:
    return starts.read(run(folder, [10.0] * len(loss), loss=loss, **given))


def test_equal_losses_are_identical_to_the_bit(tmp_path: Path) -> None:
    a, b = (start(tmp_path / name, FALLING) for name in "ab")
    found = parity.losses([a], [b])
    assert (found.parity, found.steps, found.noise) == ("bit-identical", 120, None)


@pytest.mark.parametrize(
    ("change", "said", "first"),
    [
        ([0.0005] * 120, "rounding", None),
        ([0.005] * 120, "close", None),
        ([0.04 if 24 <= n < 48 else 0.0 for n in range(120)], "apart", 24),
    ],
)
def test_the_worst_window_decides(change: list[float], said: str, first: int | None, tmp_path: Path) -> None:
    a = start(tmp_path / "a", FALLING)
    b = start(tmp_path / "b", [loss * (1 + by) for loss, by in zip(FALLING, change, strict=True)])
    found = parity.losses([a], [b])
    assert (found.parity, found.first) == (said, first)
    assert found.worst == pytest.approx(max(change), rel=0.01)


def test_a_wrong_beginning_is_seen_though_the_end_is_right(tmp_path: Path) -> None:
    slow = [6.4 * math.exp(-max(0, n - 8) / 240) for n in range(120)]
    a, b = start(tmp_path / "a", FALLING), start(tmp_path / "b", slow[:40] + FALLING[40:])
    assert parity.losses([a], [b]).parity == "apart"


def test_a_loss_that_is_no_number_any_more_has_diverged(tmp_path: Path) -> None:
    a = start(tmp_path / "a", FALLING)
    b = start(tmp_path / "b", [*FALLING[:70], *["nan"] * 50])
    found = parity.losses([a], [b])
    assert (found.parity, found.first) == ("diverged", 70) and parity.is_bad(found)
    both = parity.losses([b], [b])
    assert (both.parity, both.first) == ("not finite", 70)  # nan is not equal to nan
    assert parity.losses([b], [a]).parity == "not finite"


def test_what_starts_of_one_command_differ_by_is_allowed(tmp_path: Path) -> None:
    a = [start(tmp_path / f"a{n}", [x * (1 + 0.001 * n) for x in FALLING]) for n in range(2)]
    b = [start(tmp_path / f"b{n}", [x * (1.0015 + 0.001 * n) for x in FALLING]) for n in range(2)]
    assert parity.losses(a[:1], b[:1]).parity == "close"
    found = parity.losses(a, b)
    assert found.parity == "rounding" and found.noise == pytest.approx(0.001)
    seeds = [start(tmp_path / f"s{n}", [x * (1 + 0.008 * n) for x in FALLING]) for n in range(2)]
    assert parity.losses(seeds, b).parity == "not comparable"


def test_ranks_are_compared_each_with_its_own(tmp_path: Path) -> None:
    for name, losses in (("a", ([1.0] * 20, [2.0] * 20)), ("b", ([2.0] * 20, [1.0] * 20))):
        for rank, loss in enumerate(losses):
            run(tmp_path / name, [10.0] * 20, rank=rank, world=2, loss=loss)
    a, b = (starts.read(tmp_path / name) for name in "ab")
    assert parity.losses([a], [b]).parity == "rounding"  # the sums are equal, the numbers are not
    assert parity.losses([a], [a]).parity == "bit-identical"


def test_without_losses_nothing_is_said_and_where_the_change_lost_them_that_is_said(tmp_path: Path) -> None:
    a, none = start(tmp_path / "a", FALLING), starts.read(run(tmp_path / "b", [10.0] * 20))
    assert parity.losses([none], [none]).parity == parity.losses([], []).parity == "unknown"
    assert parity.losses([none], [a]).parity == "unknown"
    lost = parity.losses([a, a], [a, none])
    assert lost.parity == "untold" and parity.is_bad(lost)
    estimate = paired.estimate([-0.2, -0.21, -0.19], 0.05)
    faster = Proven("faster", estimate, 0.01, "95 %", finished=3)
    assert faster.expected("faster", 0.0) and deciding.decided(faster, "bit-identical")[0]
    untold = replace(faster, loss=lost)
    assert not untold.expected("faster", 0.0)
    assert deciding.decided(untold, "changes convergence") == (
        False, "taken back: the job tells a loss, and with it tells none",
    )  # fmt: skip


def test_losses_of_unlike_steps_are_not_comparable(tmp_path: Path) -> None:
    even, odd = (
        start(tmp_path / name, [x if n % 2 == turn else None for n, x in enumerate(FALLING)])
        for turn, name in enumerate(("even", "odd"))
    )
    found = parity.losses([even], [odd])
    assert found.parity == "not comparable" and "unlike steps" in sentences.loss(found)


def test_peaks_are_equal_by_the_measure_of_each(tmp_path: Path) -> None:
    def peaks(name: str, allocated: int, reserved: int, resident: int) -> JobStart:
        told = {"peak_allocated": allocated, "peak_reserved": reserved, "peak_resident": resident}
        return start(tmp_path / name, FALLING, end=told)

    a = peaks("a", 1000 << 20, 2000 << 20, 1000 << 20)
    b = peaks("b", (1000 << 20) + 512, 2030 << 20, 1100 << 20)
    by_name = {found.kind.name: found for found in parity.memory([a], [b])}
    assert [found.equal for found in by_name.values()] == [False, True, False]
    assert by_name["peak_allocated"].low == by_name["peak_allocated"].high == 512
    assert [found.is_more for found in by_name.values()] == [False, False, True]
    assert parity.memory([a], [start(tmp_path / "c", FALLING)]) == []


def test_windows_hold_ten_steps_and_the_last_takes_the_rest() -> None:
    steps = np.arange(25)
    found = parity._windows(steps, np.ones((25, 1)), np.ones((25, 1)) + (steps >= 20)[:, None])
    assert found == [(0.0, 0), (pytest.approx(5 / 15), 10)]
