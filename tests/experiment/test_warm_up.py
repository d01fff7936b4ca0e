"""Which first steps are dropped."""

from __future__ import annotations

import numpy as np
import pytest

from lostflops.experiment.proof.warm_up import common_cut, cut, settled

STEPS = np.arange(60)
LEVEL = 100.0 + STEPS % 3


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (LEVEL, 3),
        (LEVEL + 50 * (STEPS < 12), 15),
        (LEVEL + 60 * np.exp(-STEPS / 6), 30),
        (LEVEL + 900 * (STEPS == 7), 10),
        (LEVEL + 900 * (STEPS == 45), 3),
    ],
    ids=["level", "twelve slow steps", "decaying", "compiled again at step 7", "a stall in the middle"],
)
def test_the_cut_is_where_the_mean_is_known_best(times: np.ndarray, expected: int) -> None:
    assert cut(times) == expected


def test_few_steps_lose_three() -> None:
    assert cut((LEVEL + 50 * (STEPS < 12))[:19]) == 3


def test_all_starts_share_the_larger_median_of_the_sides() -> None:
    slow = LEVEL + 50 * (STEPS < 12)
    assert common_cut([LEVEL, LEVEL, slow], [slow, slow, LEVEL]) == 15
    assert common_cut([LEVEL, LEVEL, slow], [LEVEL, slow, LEVEL]) == 3


def test_a_start_that_still_changes_has_not_settled() -> None:
    steps = np.arange(200)
    noise = np.random.default_rng(0).normal(0, 1, 200)
    assert settled(100 + noise, 3)
    assert not settled(100 + 0.2 * steps + noise, 3)
    assert not settled(100 + noise, 100)
