"""Amounts in words: three digits, in the unit that they round to."""

from __future__ import annotations

import pytest

from lostflops.finding import milliseconds


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (9_996, "10.0 µs"),
        (99_951, "100 µs"),
        (999_499, "999 µs"),
        (999_950, "1.00 ms"),
        (-999_950, "-1.00 ms"),
        (999_600_000, "1.00 s"),
        (60_000_000_000, "60.0 s"),
    ],
)
def test_a_duration_has_three_digits_in_the_unit_that_it_rounds_to(ns: float, said: str) -> None:
    assert milliseconds(ns) == said
