"""Pauses that come back every so many steps, found in nothing but the lengths of steps."""

from __future__ import annotations

import numpy as np
import pytest

from lostflops.recipes.steps.log_pauses import a_pause_was_not_recorded, ordinal, step_log_pauses
from lostflops.recipes.steps.pauses import pauses
from lostflops.testing import on_example

MS = 1_000_000


def lengths(count: int, *pauses: tuple[int, int, int], noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Steps of 40 ms with noise; each pause is (period, phase, ms)."""
    random = np.random.default_rng(seed)
    told = 40 * MS * (1 + noise * random.standard_normal(count))
    steps = np.arange(count)
    for period, phase, longer in pauses:
        told += (steps % period == phase) * longer * MS
    return told.astype(np.int64)


def found(told: np.ndarray) -> list[tuple[int, int]]:
    return [(pause.period, pause.phase) for pause in pauses(np.arange(len(told)), told)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("period", "phase", "count", "longer"),
    [
        (2, 1, 40, 30),
        (3, 0, 60, 30),
        (10, 9, 60, 300),
        (10, 9, 400, 30),
        (50, 49, 400, 1000),
        (500, 7, 4000, 500),
    ],
)
def test_a_pause_is_found(period: int, phase: int, count: int, longer: int, seed: int) -> None:
    told = lengths(count, (period, phase, longer), seed=seed)
    (pause,) = pauses(np.arange(count), told)
    assert (pause.period, pause.phase) == (period, phase)
    assert pause.longer == pytest.approx(longer * MS, rel=0.2)


def test_two_pauses_are_told_apart() -> None:
    assert sorted(found(lengths(600, (10, 9, 300), (25, 3, 90)))) == [(10, 9), (25, 3)]


@pytest.mark.parametrize("seed", range(40))
def test_noise_has_no_period(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert found((40 * MS * random.lognormal(0, 0.5, 30 + 10 * seed)).astype(np.int64)) == []
    spikes = lengths(200, seed=seed)
    spikes[random.choice(200, 8, replace=False)] += 500 * MS
    assert found(spikes) == []


def test_a_job_that_slows_down_has_no_period() -> None:
    assert found((40 * MS * np.linspace(1, 3, 200)).astype(np.int64)) == []
    assert found(np.repeat([40 * MS, 90 * MS], 50)) == []


def test_few_steps_have_no_period() -> None:
    for count in range(12):
        assert found(lengths(count, (10, 9, 300))) == []


def test_long_steps_among_pauses_do_not_hide_them() -> None:
    told = lengths(300, (10, 9, 300))
    told[[17, 63, 64, 150]] += 2000 * MS
    assert found(told) == [(10, 9)]


def test_numbers_are_counted_as_people_do() -> None:
    assert [ordinal(n) for n in (2, 3, 10, 11, 21, 112, 501)] == [
        "2nd", "3rd", "10th", "11th", "21st", "112th", "501st",
    ]  # fmt: skip


def test_a_short_log_full_of_noise_names_no_pause_that_nothing_explains() -> None:
    random = np.random.default_rng(1)
    named = 0
    for log in range(200):
        count = 10 + log % 40
        told = (40 * MS * random.lognormal(0, 1.2, count)).astype(np.int64)
        rows = [{"step": n + 3, "duration": int(ns), "recorded": False} for n, ns in enumerate(told)]
        named += on_example(step_log_pauses, {"step_log": rows}).height
    assert named <= 2  # one log in a hundred


def test_a_checkpoint_in_a_short_log_is_named() -> None:
    rows = [
        {"step": n, "duration": 40 * MS + 90 * MS * (n % 5 == 4), "checkpoint": 90 * MS * (n % 5 == 4)}
        for n in range(3, 21)
    ]
    (pause,) = on_example(step_log_pauses, {"step_log": rows}).to_dicts()
    assert (pause["period"], pause["cause"], pause["longer"]) == (5, "checkpoint", 90 * MS)


def test_a_pause_costs_the_mean_of_its_times_not_the_median() -> None:
    """60 ms after every 5th step, and 300 after every 20th: 24 ms per step, of which 12 were told."""
    rows = [
        {
            "step": n,
            "duration": 40 * MS + (300 if n % 20 == 19 else 60 * (n % 5 == 4)) * MS,
            "recorded": n == 6,
        }
        for n in range(103)
    ]
    table = on_example(step_log_pauses, {"step_log": rows})
    (pause,) = table.to_dicts()
    assert (pause["period"], pause["longer"], pause["typical"]) == (5, 120 * MS, 60 * MS)
    (found,) = a_pause_was_not_recorded(table)
    assert found.claim.startswith(
        "Every 5th step is 120 ms longer on average (half of the times by at most 60.0 ms): "
        "24.0 ms per step, "
    )
