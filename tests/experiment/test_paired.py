"""The interval of pairs, its looks and its verdict: worked examples, and coverage in simulated noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lostflops.experiment.proof.paired import (
    Estimate,
    PairPlan,
    estimate,
    more_pairs,
    none_larger,
    pairs_for,
    stops,
    verdict,
)
from lostflops.experiment.proof.quantiles import chi_squared_above, t_one_sided, t_two_sided


def percent(log: float) -> float:
    return round(100 * math.expm1(log), 3)


@pytest.mark.parametrize("freedom", [*range(1, 12), 19, 40, 99, 150])
def test_critical_values_are_those_of_scipy(freedom: int) -> None:
    from scipy import stats  # takes a second

    for p in (0.0025, 0.005, 0.025, 0.05, 0.4):
        assert t_two_sided(p, freedom) == pytest.approx(stats.t.isf(p / 2, freedom), rel=1e-9)
    assert t_one_sided(0.8, freedom) == pytest.approx(stats.t.ppf(0.8, freedom), rel=1e-9)
    for p in (0.25, 0.75):
        assert chi_squared_above(p, freedom) == pytest.approx(stats.chi2.isf(p, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (3, {3: 4.303}),
        (4, {4: 3.182}),
        (5, {3: 11.113, 4: 5.472, 5: 3.495}),
        (6, {3: 11.113, 5: 4.367, 6: 3.163}),
        (8, {3: 14.089, 4: 6.322, 6: 3.850, 8: 2.841}),
        (10, {3: 14.089, 5: 4.908, 7: 3.555, 10: 2.685}),
        (20, {6: 4.773, 10: 3.390, 14: 2.917, 20: 2.433}),
    ],
)
def test_each_look_has_its_own_critical_value(pairs: int, expected: dict[int, float]) -> None:
    looks = PairPlan(pairs).looks
    assert {look.pairs: round(t_two_sided(look.level, look.pairs - 1), 3) for look in looks} == expected


def test_without_early_stop_there_is_one_look_of_95_per_cent() -> None:
    (look,) = PairPlan(10, early_stop=False).looks
    assert (look.pairs, round(t_two_sided(look.level, 9), 3)) == (10, 2.262)


def test_each_extension_has_half_the_level_of_the_one_before() -> None:
    first, second = PairPlan(10, more=(5, 7)).extensions
    assert (first.pairs, first.level, second.pairs, second.level) == (15, 0.005, 22, 0.0025)


FASTER = [-0.1405, -0.1372, -0.1431, -0.1389, -0.1366]
NONE = [0.004, -0.011, 0.007, -0.002, 0.009]
SMALL = [-0.031, -0.012, -0.055, -0.024, -0.040]


def test_a_clear_gain_stops_at_the_first_look() -> None:
    at_three = estimate(FASTER[:3], 0.008)
    assert (round(at_three.difference, 6), round(at_three.half, 6)) == (-0.140267, 0.018972)
    assert [percent(x) for x in (at_three.difference, at_three.low, at_three.high)] == [
        -13.087,
        -14.721,
        -11.423,
    ]
    assert stops(at_three) and verdict(at_three) == "faster"
    at_five = estimate(FASTER, 0.025)
    assert [percent(x) for x in (at_five.difference, at_five.low, at_five.high)] == [-13.0, -13.357, -12.641]
    plain = estimate(FASTER, 0.05)
    assert round(plain.half, 6) == 0.003269
    assert [percent(plain.low), percent(plain.high)] == [-13.284, -12.715]


def test_no_difference_says_how_large_one_it_would_have_seen_and_how_many_pairs_more() -> None:
    assert [round(estimate(NONE[:n], level).half, 6) for n, level in ((3, 0.008), (4, 0.012))] == [
        0.061875,
        0.021715,
    ]
    assert not any(stops(estimate(NONE[:n], level)) for n, level in ((3, 0.008), (4, 0.012)))
    end = estimate(NONE, 0.025)
    assert (round(end.difference, 6), round(end.half, 6)) == (0.0014, 0.012632)
    assert [percent(x) for x in (end.difference, end.low, end.high)] == [0.14, -1.117, 1.413]
    assert verdict(end) == "no difference" and none_larger(end) == 0.015
    assert round(end.resolution or 0, 4) == 0.0160
    more = more_pairs(end)
    assert more is not None and (more.pairs, more.low, more.high) == (9 - 5, 8 - 5, 16 - 5)
    assert pairs_for(end.spread, math.log(1.02)) == 5


def test_a_small_gain_takes_all_pairs() -> None:
    at_four = estimate(SMALL[:4], 0.012)
    assert round(at_four.half, 6) == 0.049574 and not stops(at_four)
    end = estimate(SMALL, 0.025)
    assert [percent(x) for x in (end.difference, end.low, end.high)] == [-3.188, -5.617, -0.696]
    assert verdict(end) == "faster"


def test_who_only_decides_stops_when_a_difference_is_shown_however_wide_its_interval() -> None:
    wide = Estimate(7, 0.0156, -0.25, 0.15, math.inf, (-0.47, -0.11))
    assert verdict(wide) == "faster"
    assert not PairPlan(10, drawn=True).stops(wide)
    assert PairPlan(10, drawn=True, decides=True).stops(wide)
    assert not PairPlan(10, drawn=True, decides=True, early_stop=False).stops(wide)
    untold = Estimate(7, 0.0156, -0.25, 0.15, math.inf, (-0.47, 0.01))
    assert not PairPlan(10, drawn=True, decides=True).stops(untold)
    too_small = Estimate(7, 0.0156, -0.004, 0.15, math.inf, (-0.03, -0.001))
    assert verdict(too_small) == "cannot tell"
    assert not PairPlan(10, drawn=True, decides=True).stops(too_small)


def test_pairs_without_any_difference_are_no_division_by_zero() -> None:
    found = estimate([0.0] * 5, 0.025)
    assert (found.half, verdict(found), none_larger(found)) == (0.0, "no difference", 0.001)
    more = more_pairs(found)
    assert more is not None and more.pairs == 1


def test_one_pair_has_no_interval() -> None:
    found = estimate([0.1], 0.05)
    assert found.half == math.inf and verdict(found) == "cannot tell"
    assert found.resolution is None and more_pairs(found) is None and not stops(found)


def test_a_real_difference_that_does_not_matter_is_none() -> None:
    assert verdict(Estimate(10, 0.025, 0.004, 0.001, 0.001)) == "no difference"
    assert verdict(Estimate(10, 0.025, 0.006, 0.001, 0.001)) == "slower"


def test_noise_beyond_a_hundred_pairs_is_said() -> None:
    more = more_pairs(estimate([0.1, -0.12, 0.09, -0.1, 0.05], 0.025))
    assert more is not None and more.pairs is None


# Noise of a shared machine: starts that differ by 1 % with heavy tails, a drift of 2 % over about three
# starts, steps that follow one another (0.6), and spikes without a variance.
def values(rng: np.random.Generator, experiments: int, pairs: int, steps: int = 60) -> np.ndarray:
    """The mean step of each start, in the order they ran."""
    starts = 2 * pairs
    start = 0.01 * rng.standard_t(3, (experiments, starts, 1)) / np.sqrt(3)
    drift = 0.02 * following(rng.standard_normal((experiments, starts)), 0.7)[..., None]
    walk = 0.04 * following(rng.standard_normal((experiments, starts, steps)), 0.6)
    shape = (experiments, starts, steps)
    spike = 1 + (rng.random(shape) < 0.02) * 0.3 * np.minimum(rng.pareto(2, shape) + 1, 100)
    return (np.exp(start + drift + walk) * spike).mean(axis=-1)


def following(noise: np.ndarray, by: float) -> np.ndarray:
    """Each value is `by` of the one before and some of its own, along the last axis."""
    made = np.empty_like(noise)
    last = np.zeros(noise.shape[:-1])
    for at in range(noise.shape[-1]):
        last = made[..., at] = by * last + math.sqrt(1 - by**2) * noise[..., at]
    return made


def log_ratios(starts: np.ndarray, effect: float) -> np.ndarray:
    """Of pairs that ran A B, B A, A B, and so on."""
    first, second = np.log(starts[:, 0::2]), np.log(starts[:, 1::2])
    turn = np.where(np.arange(first.shape[1]) % 2 == 0, 1, -1)
    return turn * (second - first) + math.log1p(effect)


def experiment(ratios: np.ndarray, plan: PairPlan) -> Estimate:
    for look in plan.looks:
        found = estimate(ratios[: look.pairs], look.level)
        if stops(found, plan.see):
            break
    return found


def test_the_interval_covers_the_truth_in_heavy_tailed_noise_that_follows_itself() -> None:
    pairs = log_ratios(values(np.random.default_rng(20260), 200, 10), 0.05)
    truth = math.log(1.05)
    plain = [estimate(one, 0.05) for one in pairs]
    assert sum(e.low <= truth <= e.high for e in plain) == 193  # 96.5 %
    found = [experiment(one, PairPlan(10)) for one in pairs]
    covered = sum(e.low <= truth <= e.high for e in found)
    assert covered == 195  # 97.5 %, at the moment of stopping
    assert covered >= 0.93 * len(found)
    assert sum(verdict(e) == "slower" for e in found) == 189
    assert round(float(np.mean([e.pairs for e in found])), 2) == 9.95


def test_two_equal_commands_are_rarely_told_apart() -> None:
    pairs = log_ratios(values(np.random.default_rng(40), 2000, 10), 0.0)
    for planned, expected in ((10, 0.025), (5, 0.025)):
        alarms = [
            verdict(experiment(one[:planned], PairPlan(planned))) in ("faster", "slower") for one in pairs
        ]
        assert np.mean(alarms) == expected
    # What is left out: an interval of 95 % that is looked at after every pair.
    peeked = [any(estimate(one[:n], 0.05).shown for n in range(3, 11)) for one in pairs]
    assert round(float(np.mean(peeked)), 3) == 0.163


def test_a_slowdown_of_13_per_cent_is_found_and_one_of_1_per_cent_is_not() -> None:
    shown = {
        effect: [
            100 * float(np.mean([verdict(experiment(one, PairPlan(n))) == "slower" for one in ratios]))
            for n in (5, 10)
            for ratios in [log_ratios(values(np.random.default_rng(41), 1000, n), effect)]
        ]
        for effect in (0.01, 0.05, 0.13)
    }
    assert shown == {
        0.01: [pytest.approx(4.3), pytest.approx(8.5)],
        0.05: [pytest.approx(58.0), pytest.approx(93.6)],
        0.13: [pytest.approx(98.1), pytest.approx(99.8)],
    }
