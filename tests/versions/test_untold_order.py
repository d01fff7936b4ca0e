"""No answer hangs on an order that Polars does not promise: each version may give another."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from lostflops.recipe import Example, Recipe
from lostflops.recipes import named, recipes
from lostflops.testing import on_example


@pytest.mark.usefixtures("turned_round")
def test_what_polars_does_not_promise_comes_the_other_way_round() -> None:
    rows = pl.DataFrame({"key": [1, 1, 2], "value": [5, 6, 7]})
    assert rows.sort("key")["value"].to_list() == [6, 5, 7]
    assert rows.sort("key", maintain_order=True)["value"].to_list() == [5, 6, 7]
    assert rows.group_by("key").agg(pl.col("value").first())["value"].to_list() == [7, 5]
    assert rows.unique("key")["value"].to_list() == [7, 6]
    assert rows.unique("key", keep="first", maintain_order=True)["value"].to_list() == [5, 7]
    assert rows.join(rows.select("key").unique(), on="key")["value"].to_list() == [7, 6, 5]
    assert rows.select(pl.col("value").sort_by("key").first()).item() == 6


@pytest.mark.parametrize(
    ("recipe", "example"),
    [
        pytest.param(recipe, example, id=f"{name}-{i}")
        for name, recipe in recipes().items()
        for i, example in enumerate(recipe.examples)
    ],
)
@pytest.mark.usefixtures("turned_round")
def test_every_example_holds_whatever_the_order(recipe: Recipe, example: Example) -> None:
    got = on_example(recipe, example.given, **example.options)
    expected = pl.DataFrame(
        list(example.expect) or None,
        schema={c: got.schema[c] for c in got.columns if not example.expect or c in example.expect[0]},
    )
    assert_frame_equal(got.select(expected.columns), expected, rel_tol=1e-12)


@pytest.mark.usefixtures("turned_round")
def test_of_two_operators_with_the_same_times_the_inner_one_names_the_idle_time() -> None:
    outer, inner = "TBackward0", "aten::t"
    found = on_example(
        named("idle_causes"),
        {
            "steps": [{"step": 1, "start": 0, "end": 50}],
            "kernels": [{"start": 30, "end": 50, "launch_start": 12, "launch_end": 25, "thread": 7}],
            "operators": [{"start": 3, "end": 25, "thread": 7, "name": name} for name in (outer, inner)],
            "ranks": [{"device_kind": "gpu", "main_thread": 7}],
        },
    )
    assert found.filter(pl.col("start") == 3)["name"].to_list() == [inner]
