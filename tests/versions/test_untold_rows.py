"""Rows of an answer that nearly agree stand in one order, whatever order Polars gives them in."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from lostflops.recipes import named
from lostflops.recipes.operators.roofline import roofline
from lostflops.tables import RANKS
from lostflops.testing import example_table, on_example

CALL = {"start": 1, "end": 4, "thread": 7, "name": "cudaLaunchKernel"}


def test_calls_that_differ_by_their_number_alone_stand_in_its_order(turned_round: None) -> None:
    calls = [CALL | {"correlation": number} for number in (5, 6, 7)]
    found = on_example(named("api_call_trace"), {"launches": calls})
    assert found["correlation"].to_list() == [5, 6, 7]


@pytest.mark.parametrize("step", [1, -1])
def test_operators_that_differ_by_their_types_alone_stand_by_their_bytes(step: int) -> None:
    row: dict[str, Any] = {"rank": 0, "name": "aten::sub", "shapes": "[[],[1,2048],[]]", "precision": "fp64"}
    row |= {"calls": 8, "device_total": 24_000, "calls_in_steps": 8, "in_steps": 24_000}
    types = ['["double","float","Scalar"]', '["double","double","Scalar"]'][::step]
    times = pl.LazyFrame([row | {"dtypes": t} for t in types])
    found = roofline.function(times, example_table(RANKS, [{"gpu": "NVIDIA H100"}])).collect()
    assert found.height == 2 and found["bytes"].is_sorted()
