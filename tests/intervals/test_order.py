"""Rows in order, numbered, and on one axis: against what a loop over the rows says."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.intervals import order

LOWEST, HIGHEST = -(2**63), 2**63 - 1
GROUPS = st.lists(st.integers(-2, 3), max_size=12)
VALUES = st.one_of(st.integers(-3, 9), st.sampled_from([-(2**62), 2**62, 1_700_000_000_000_000_001]))
PAIRS = st.lists(st.tuples(st.integers(-2, 3), VALUES), max_size=12)


def array(values: list[int]) -> order.Int:
    return np.array(values, dtype=np.int64)


def apart(pairs: list[tuple[int, int]]) -> tuple[order.Int, order.Int]:
    return array([one for one, _ in pairs]), array([other for _, other in pairs])


def test_what_is_not_known_is_the_lowest_of_all_whole_numbers() -> None:
    assert LOWEST == order.NEVER
    rows = pl.DataFrame(
        {"a": [2**60 + 1, None, 5], "b": pl.Series([1, 2, 3], dtype=pl.Int32), "c": [None, None, None]}
    )
    found = order.filled(rows.with_columns(pl.col("c").cast(pl.UInt8)), ["a", "b", "c"])
    assert [column.tolist() for column in found] == [[2**60 + 1, LOWEST, 5], [1, 2, 3], [LOWEST] * 3]
    assert {column.dtype for column in found} == {np.dtype(np.int64)}
    assert order.filled(rows, []) == []


@pytest.mark.parametrize(
    ("values", "dtype", "numbers"),
    [
        ([4, 2], pl.Int16, [4, 2]),
        ([True, False], pl.Boolean, [1, 0]),
        (["b", "a"], pl.Enum(["b", "a"]), [0, 1]),
        ([4, None], pl.Int16, None),
        ([4.0, 2.0], pl.Float64, None),
        (["b", "a"], pl.String, None),
        (["b", "a"], pl.Categorical(), None),
    ],
)
def test_whole_numbers_that_stand_for_values_in_their_order(
    values: list[object], dtype: pl.DataType, numbers: list[int] | None
) -> None:
    found = order.plain(pl.Series(values, dtype=dtype))
    assert (None if found is None else [int(one) for one in found]) == numbers


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical(), pl.Enum(["c", "a", "b"])])
@pytest.mark.parametrize("values", [["b", None, "a", "b", None], ["b", "a", "b"], [None, None], ["c"], []])
def test_each_row_has_one_of_the_distinct_names(values: list[str | None], dtype: pl.DataType) -> None:
    pl.Series(["c", "a", "b"], dtype=dtype)  # names have codes of their own in every order
    names, place = order.by_name(pl.Series(values, dtype=dtype))
    assert [names[at] for at in place] == [value or "" for value in values]
    assert sorted(names) == sorted({value or "" for value in values})


def test_a_row_is_known_by_the_first_that_has_its_name() -> None:
    names, place = order.by_name(pl.Series(["a", "b", "a", "b"]).slice(1))
    assert [names[at] for at in place] == ["b", "a", "b"]


@settings(max_examples=100, deadline=None)
@given(GROUPS)
def test_runs_are_rows_that_follow_each_other_and_are_alike(groups: list[int]) -> None:
    walked = [[at for at, _ in run] for _, run in groupby(enumerate(groups), key=lambda pair: pair[1])]
    assert [run.tolist() for run in order.runs(array(groups))] == walked
    assert order.changes_of(array(groups)).tolist() == [
        at == 0 or groups[at - 1] != g for at, g in enumerate(groups)
    ]


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_the_largest_so_far_is_that_of_the_group(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    group, values = apart(pairs)
    most = [max(v for g, v in pairs[: at + 1] if g == pairs[at][0]) for at in range(len(pairs))]
    assert order.running_most(values, group).tolist() == most


@pytest.mark.parametrize("low", [0, -5, LOWEST, LOWEST + 1])
def test_the_largest_so_far_of_numbers_as_far_apart_as_there_are(low: int) -> None:
    values, group = array([low, 5, 3, low, 4, HIGHEST]), array([0, 0, 0, 1, 1, 2])
    before = values.tolist()
    assert order.running_most(values, group).tolist() == [low, 5, 5, low, 4, HIGHEST]
    assert values.tolist() == before
    empty = array([])
    assert order.running_most(empty, empty).tolist() == [] and order.running_most(empty, empty) is not empty


def test_groups_whose_numbers_lie_far_apart_fit_on_one_axis() -> None:
    groups, instants = array([0, 1, 2**62]), array([9, 0, 5])
    (places,) = order.one_axis((groups, instants))
    assert sorted(places.tolist()) == places.tolist() and len(set(places.tolist())) == 3


@settings(max_examples=200, deadline=None)
@given(PAIRS, PAIRS)
def test_on_one_axis_pairs_of_a_group_and_an_instant_keep_their_order(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    first, second = order.one_axis(apart(one), apart(other))
    both, places = [*one, *other], [*first.tolist(), *second.tolist()]
    for a, at_a in zip(both, places, strict=True):
        for b, at_b in zip(both, places, strict=True):
            assert (at_a < at_b) == (a < b)


@pytest.mark.parametrize("groups", [(0, 1), (0, 2**40), (-(2**40), 2**40)])
def test_an_axis_serves_groups_and_instants_however_far_apart(groups: tuple[int, int]) -> None:
    near, far = groups
    of = [(near, 0), (near, 2**33), (far, 0), (far, 1)]
    (found,) = order.one_axis(apart(of))
    assert np.argsort(found).tolist() == [0, 1, 2, 3] and len(set(found.tolist())) == 4
    assert [side.tolist() for side in order.one_axis((array([]), array([])))] == [[]]


@settings(max_examples=100, deadline=None)
@given(PAIRS, PAIRS)
def test_how_many_pairs_stand_at_or_below_a_pair(
    pairs: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    pairs = sorted(pairs)
    found = order.at_most(*apart(pairs), *apart(asked))
    assert found.tolist() == [sum(pair <= one for pair in pairs) for one in asked]


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_combinations_are_numbered_in_their_order(pairs: list[tuple[int, int]]) -> None:
    first, of = order.numbered(*apart(pairs))
    distinct = sorted(set(pairs))
    assert [pairs[at] for at in first] == distinct
    assert of.tolist() == [distinct.index(pair) for pair in pairs]


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_rows_are_sorted_by_their_first_key_and_then_the_next_and_equal_ones_stay(
    pairs: list[tuple[int, int]],
) -> None:
    told = sorted(range(len(pairs)), key=lambda at: pairs[at])
    assert order.sorted_by(*apart(pairs)).tolist() == told
    assert order.positions([None, array([1])]) is None
    assert order.positions([None]) is None
    frame = pl.DataFrame(pairs, {"a": pl.Int64, "b": pl.Int64}, orient="row")
    for rows in (frame, frame.with_columns(pl.col("a").cast(pl.String).replace("-1", "0"))):
        keys = rows.rows()
        assert order.row_order(rows, ["a", "b"]).tolist() == sorted(range(len(keys)), key=lambda at: keys[at])


@pytest.mark.parametrize("with_others", [False, True])
def test_numbers_beyond_63_bits_are_sorted_too(with_others: bool) -> None:
    beyond = np.array([2**63 + 5, 2**63 + 1, 2**63 + 9, 2**63], np.uint64)
    keys = (np.zeros(4, np.int64), beyond) if with_others else (beyond,)
    assert order.sorted_by(*keys).tolist() == [3, 1, 0, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 4)), max_size=8))
def test_each_place_of_each_row_stands_behind_that_of_the_row_before(drawn: list[tuple[int, int]]) -> None:
    low, many = apart(drawn)
    row, place = order.each_of(low, low + many)
    places = [(n, at) for n, (least, length) in enumerate(drawn) for at in range(least, least + length)]
    assert list(zip(row.tolist(), place.tolist(), strict=True)) == places


@pytest.mark.parametrize(("changes", "stand_apart"), [(0, False), (2, False), (3, True)])
def test_rows_of_a_group_stand_apart_where_the_group_changes_more_often_than_every_64_rows(
    changes: int, stand_apart: bool
) -> None:
    group = np.repeat(np.arange(changes + 1), 128 // (changes + 1) + 1)[:128]
    assert order.scattered(group) is stand_apart
    assert order.scattered(array([])) is False


@pytest.mark.parametrize("ordered", [False, True])
def test_a_group_begins_where_any_of_its_columns_changes(ordered: bool) -> None:
    columns = {"a": [1, 1, 1, 2, 2], "b": ["x", "x", None, None, "x"]}
    rows = pl.DataFrame(columns)
    turn = array([4, 3, 2, 1, 0]) if ordered else None
    told = [True, True, True, True, False] if ordered else [True, False, True, True, True]
    assert order.changes(rows, ["a", "b"], turn).tolist() == told
    assert order.changes(rows.clear(), ["a", "b"]).tolist() == []
    assert order.group_ids(rows, []).tolist() == [0] * 5
