"""Classes of powers of two, which histograms of durations and sizes have."""

from __future__ import annotations

import polars as pl

from lostflops.recipes.on_request.time_buckets import power_of_two


def test_the_class_of_a_number_is_the_power_of_two_below_it_and_that_of_none_is_none() -> None:
    amounts = pl.DataFrame({"amount": [0, 1, 2, 3, 4, 1023, 1024, 2**62 - 1, 2**62, None]})
    found = amounts.select(power_of_two(pl.col("amount"))).to_series().to_list()
    assert found == [0, 1, 2, 2, 4, 512, 1024, 2**61, 2**62, None]
