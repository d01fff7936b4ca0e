"""The interval algebra, against oracles that look at every nanosecond or walk every interval with a stack."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from lostflops import intervals
from lostflops.intervals import Forest, nesting, sets
from lostflops.intervals.order import row_order

# Rank, thread, start, length; lengths may be zero or negative, as in broken traces.
Row = tuple[int, int, int, int]
Drawn = list[Row]
Instant = tuple[int, int, int]
DRAWN = st.lists(
    st.tuples(st.integers(0, 1), st.integers(7, 8), st.integers(-6, 22), st.integers(-2, 9)), max_size=10
)
# Clocks that start anywhere: nanoseconds since 1970 are beyond what a float holds.
ORIGINS = st.sampled_from([0, -3, 1_700_000_000_000_000_001, -(2**61)])
SCHEMA = {"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64}
BY = ["rank", "thread"]
exact = settings(max_examples=120, deadline=None)


def frame(drawn: Drawn, origin: int = 0) -> pl.LazyFrame:
    rows = [(rank, thread, origin + start, origin + start + length) for rank, thread, start, length in drawn]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").lazy()


def columns(rows: pl.LazyFrame) -> list[intervals.Int]:
    return [column.to_numpy() for column in rows.collect().iter_columns()]


def instants(drawn: Drawn, origin: int = 0) -> list[Instant]:
    """Every nanosecond of every interval, once for each interval that covers it."""
    return [
        (rank, thread, origin + t)
        for rank, thread, start, length in drawn
        for t in range(start, start + length)
    ]


def painted(pieces: pl.DataFrame, *columns: str) -> dict[Instant, tuple[object, ...]]:
    """What the pieces say of every nanosecond; no nanosecond may be in two of them."""
    said: dict[Instant, tuple[object, ...]] = {}
    for rank, thread, start, end, *values in pieces.select(*SCHEMA, *columns).iter_rows():
        assert start < end
        for t in range(start, end):
            assert (rank, thread, t) not in said
            said[rank, thread, t] = tuple(values)
    return said


def disjoint(drawn: Drawn) -> Drawn:
    """The rows that touch no nanosecond of an earlier one, as windows must be."""
    taken: set[Instant] = set()
    kept: Drawn = []
    for row in drawn:
        mine = set(instants([row]))
        if not mine & taken:
            kept.append(row)
            taken |= mine
    return kept


@exact
@given(DRAWN, ORIGINS)
def test_a_union_holds_each_covered_instant_once_in_the_fewest_pieces(drawn: Drawn, origin: int) -> None:
    pieces = intervals.union(frame(drawn, origin), by=BY).collect()
    assert set(painted(pieces)) == set(instants(drawn, origin))
    assert pieces.rows() == sorted(pieces.rows())
    ends = {(rank, thread, end) for rank, thread, _, end in pieces.iter_rows()}
    assert not any((rank, thread, start) in ends for rank, thread, start, _ in pieces.iter_rows())
    rank, thread, start, end = columns(frame(drawn, origin))
    first, reach = intervals.united((rank, thread), start, end)
    at_once = zip(*(column[first].tolist() for column in (rank, thread, start)), reach.tolist(), strict=True)
    assert list(at_once) == pieces.rows()


@exact
@given(DRAWN)
def test_a_union_without_groups_joins_all_rows(drawn: Drawn) -> None:
    pieces = intervals.union(frame(drawn)).collect()
    covered = [t for start, end in pieces.iter_rows() for t in range(start, end)]
    assert covered == sorted({t for _, _, t in instants(drawn)})


@exact
@given(DRAWN, DRAWN, DRAWN, DRAWN, ORIGINS)
def test_paint_gives_every_instant_of_a_window_to_the_first_layer_that_covers_it(
    windows: Drawn, a: Drawn, b: Drawn, c: Drawn, origin: int
) -> None:
    windows = disjoint(windows)
    numbered = frame(windows, origin).with_columns(number=pl.int_range(10, pl.len() + 10))
    layers = {"a": a, "b": b, "c": c}
    runs = intervals.paint(
        numbered, {name: frame(drawn, origin) for name, drawn in layers.items()}, by=BY, account="of"
    ).collect()
    covered = {name: set(instants(drawn, origin)) for name, drawn in layers.items()}
    assert painted(runs, "number", "of") == {
        at: (number, next((name for name in layers if at in covered[name]), None))
        for number, window in enumerate(windows, 10)
        for at in instants([window], origin)
    }
    one, other = runs[:-1], runs[1:]
    assert not any(
        left == right
        for left, right in zip(
            one.select(*BY, "number", "of", "end").rows(),
            other.select(*BY, "number", "of", "start").rows(),
            strict=True,
        )
    ), "runs are maximal"


@pytest.mark.parametrize("of_windows", [True, False])
def test_a_group_that_one_side_alone_does_not_know_is_painted(of_windows: bool) -> None:
    known = pl.LazyFrame({"rank": [0, 1], "start": [0, 10], "end": [9, 19]})
    some = known.with_columns(rank=pl.when(pl.col("rank") > 0).then("rank"))
    windows, layer = (some, known) if of_windows else (known, some)
    runs = intervals.paint(windows, {"a": layer}, by=["rank"]).select("start", "end", "rank", "account")
    unknown = (0, 9, None if of_windows else 0, None)
    assert sorted(runs.collect().rows()) == [unknown, (10, 19, 1, "a")]


@exact
@given(DRAWN, DRAWN, DRAWN)
def test_layers_in_one_frame_are_painted_as_if_each_stood_alone(windows: Drawn, a: Drawn, b: Drawn) -> None:
    layers = {"a": frame(a), "b": frame(b)}
    stacked = pl.concat([rows.with_columns(account=pl.lit(name)) for name, rows in layers.items()])
    stacked = pl.concat([stacked, frame(a).with_columns(account=pl.lit("another"))])
    under = frame(disjoint(windows))
    assert_frame_equal(
        intervals.paint_stacked(under, stacked, ["b", "a"], by=BY).collect(),
        (runs := intervals.paint(under, {"b": layers["b"], "a": layers["a"]}, by=BY).collect()),
    )
    below, above = columns(under), columns(pl.concat([layers["b"], layers["a"]]))
    of = np.repeat([0, 1], [len(b), len(a)])
    first, reach = intervals.united((*above[:2], of), *above[2:])
    over = [*(column[first] for column in above[:3]), reach]
    found = intervals.painted(below, over, of[first], 2)
    names = [("b", "a", None)[layer] for layer in found.layer]
    lanes = (column[found.window] for column in below[:2])
    at_once = zip(found.start, found.end, names, *lanes, strict=True)
    assert list(at_once) == runs.select("start", "end", "account", *BY).rows()


@exact
@given(DRAWN, DRAWN)
def test_paint_without_groups_lets_all_rows_meet(windows: Drawn, a: Drawn) -> None:
    windows = disjoint([(0, 0, start, length) for _, _, start, length in windows])
    runs = intervals.paint(frame(windows), {"a": frame(a)}).collect()
    covered = {t for _, _, t in instants(a)}
    assert {at: of for at, (of,) in painted(runs, "account").items()} == {
        at: "a" if at[2] in covered else None for at in instants(windows)
    }


def test_paint_without_layers_gives_the_windows_back() -> None:
    windows = frame([(1, 7, 5, 4), (0, 8, 2, 3), (0, 8, 9, 0)])
    assert intervals.paint(windows, {}, by=BY).select(*SCHEMA, "account").collect().rows() == [
        (0, 8, 2, 5, None),
        (1, 7, 5, 9, None),
    ]


def test_what_is_asked_of_an_answer_is_asked_of_the_whole_answer() -> None:
    """A filter looks at united rows, and a choice of columns takes nothing that the answer is made of."""
    rows = frame([(0, 7, 0, 5), (0, 7, 5, 4), (1, 7, 2, 3)])
    assert intervals.union(rows, BY).filter(pl.col("end") == 9).collect().rows() == [(0, 7, 0, 9)]
    assert intervals.union(rows, BY).select("start").collect().rows() == [(0,), (2,)]
    pieces = intervals.overlay({"a": rows}, BY)
    assert pieces.select("start", "end").collect().rows() == [(0, 5), (5, 9), (2, 5)]
    assert pieces.filter(pl.col("start") > 0).select("start").collect().rows() == [(5,), (2,)]


def test_paint_gives_the_columns_of_the_windows_and_the_account() -> None:
    windows = frame([(0, 7, 5, 4)]).with_columns(number=pl.lit(3))
    runs = intervals.paint(windows, {"a": frame([(0, 7, 6, 1)])}, by=BY, account="of")
    assert sorted(runs.collect_schema().names()) == ["end", "number", "of", "rank", "start", "thread"]


def test_paint_does_not_depend_on_the_order_in_which_windows_stand() -> None:
    windows = frame([(0, 7, 5, 4), (1, 7, 0, 3), (0, 8, 2, 3), (0, 7, 0, 5)]).with_columns(step=pl.col("end"))
    layers = {"a": frame([(0, 7, 3, 4), (0, 8, 0, 9)])}
    assert_frame_equal(
        intervals.paint(windows, layers, by=BY).collect(),
        intervals.paint(windows.reverse(), layers, by=BY).collect(),
    )


@exact
@given(DRAWN, DRAWN, ORIGINS)
def test_an_overlay_counts_what_is_open_at_every_instant(a: Drawn, b: Drawn, origin: int) -> None:
    pieces = intervals.overlay({"a": frame(a, origin), "b": frame(b, origin)}, by=BY).collect()
    of_a, of_b = Counter(instants(a, origin)), Counter(instants(b, origin))
    assert painted(pieces, "a", "b") == {at: (of_a[at], of_b[at]) for at in of_a | of_b}
    assert pieces.rows() == sorted(pieces.rows())


@exact
@given(DRAWN, DRAWN, ORIGINS)
def test_coverage_adds_up_what_only_one_or_both_cover(a: Drawn, b: Drawn, origin: int) -> None:
    of_a, of_b = set(instants(a)), set(instants(b))
    parts = {"only_a": of_a - of_b, "only_b": of_b - of_a, "both": of_a & of_b}
    grouped = intervals.coverage(frame(a, origin), frame(b, origin), by=BY).collect()
    assert {row[:2]: row[2:] for row in grouped.iter_rows()} == {
        group: tuple(sum(at[:2] == group for at in part) for part in parts.values())
        for group in {at[:2] for at in of_a | of_b}
    }
    merged_a, merged_b = {t for _, _, t in of_a}, {t for _, _, t in of_b}
    whole = intervals.coverage(frame(a, origin), frame(b, origin)).collect()
    assert whole.rows(named=True) == [
        {
            "only_a": len(merged_a - merged_b),
            "only_b": len(merged_b - merged_a),
            "both": len(merged_a & merged_b),
        }
    ]


@exact
@given(DRAWN, DRAWN, DRAWN, ORIGINS)
def test_the_part_inside_pieces_is_counted_row_by_row(rows: Drawn, a: Drawn, b: Drawn, origin: int) -> None:
    rows, a, b = ([(rank, 0, *time) for rank, _, *time in drawn] for drawn in (rows, a, b))
    pieces = intervals.overlay({"a": frame(a, origin), "b": frame(b, origin)}, by=["rank"])
    parts = {"only_b": (pl.col("b") > 0) & (pl.col("a") == 0), "twice_a": pl.col("a") >= 2}
    answer = intervals.inside(frame(rows, origin), pieces, parts).collect()
    of_a, of_b = Counter(instants(a)), Counter(instants(b))
    assert answer.select(*SCHEMA).equals(frame(rows, origin).collect())
    assert answer.select(*parts).rows() == [
        (
            sum(of_b[at] > 0 and of_a[at] == 0 for at in instants([row])),
            sum(of_a[at] >= 2 for at in instants([row])),
        )
        for row in rows
    ]


def test_rows_are_cut_in_the_order_in_which_they_stand_and_a_point_has_no_part() -> None:
    """Rows of ranks 4 and 2 in turn, those of 2 without length."""
    rows = pl.DataFrame(
        {"rank": [4, 2] * 60, "start": [3, 6] * 60, "end": [5, 6] * 60, "row": range(120)},
        schema_overrides={"rank": pl.Int32},
    )
    pieces = pl.DataFrame(
        {"rank": [2, 4], "start": [0, 4], "end": [9, 9]}, schema_overrides={"rank": pl.Int32}
    )
    met = intervals.cut(rows, pieces, "rank")
    assert met.select("rank", "start", "end").unique().rows() == [(4, 4, 5)]
    assert met["row"].to_list() == list(range(0, 120, 2))
    longer = intervals.cut(rows.with_columns(end=7), pieces, "rank")
    assert longer["row"].to_list() == list(range(120))


@exact
@given(DRAWN, DRAWN, ORIGINS)
def test_rows_are_cut_by_the_pieces_that_they_meet(rows: Drawn, drawn: Drawn, origin: int) -> None:
    rows, drawn = ([(rank, 0, *time) for rank, _, *time in some] for some in (rows, drawn))
    rows = [row for row in rows if row[3] > 0]
    apart = disjoint([row for row in drawn if row[3] > 0])
    pieces = frame(apart, origin).collect().with_row_index("piece").drop("thread")
    numbered = frame(rows, origin).collect().with_row_index("row")
    met = intervals.cut(numbered, pieces, "rank")
    assert met.columns == [*numbered.columns, "piece"]
    said = Counter(
        (row, piece, t)
        for row, piece, start, end in met.select("row", "piece", "start", "end").iter_rows()
        for t in range(start, end)
    )
    assert said == Counter(
        (i, j, origin + t)
        for i, (rank, _, start, length) in enumerate(rows)
        for j, (other, _, begins, lasts) in enumerate(apart)
        for t in range(max(start, begins), min(start + length, begins + lasts))
        if rank == other
    )


@pytest.mark.parametrize("by", [[], ["rank"], BY])
def test_nothing_in_gives_nothing_out_with_the_same_types(by: list[str]) -> None:
    none, some = frame([]), frame([(0, 7, 0, 4)])
    for operation in (
        lambda f: intervals.union(f, by),
        lambda f: intervals.paint(f, {"a": f}, by),
        lambda f: intervals.overlay({"a": f}, by),
    ):
        empty, full = operation(none).collect(), operation(some).collect()
        assert empty.is_empty()
        assert empty.schema == full.schema
    assert intervals.paint(some, {"a": none}, by).collect()["account"].to_list() == [None]
    assert intervals.inside(none, none, {"part": pl.lit(True)}).collect().is_empty()
    assert intervals.inside(some, none, {"part": pl.lit(True)}).collect()["part"].to_list() == [0]


def test_groups_without_a_name_are_a_group() -> None:
    schema = {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    windows = pl.LazyFrame({"rank": [0, None, 1], "start": 0, "end": 9}, schema)
    layer = pl.LazyFrame({"rank": [None, 1], "start": 3, "end": [4, 7]}, schema)
    assert set(
        intervals.paint(windows, {"a": layer}, by=["rank"])
        .select("rank", "start", "account")
        .collect()
        .rows()
    ) == {
        (None, 0, None),
        (None, 3, "a"),
        (None, 4, None),
        (0, 0, None),
        (1, 0, None),
        (1, 3, "a"),
        (1, 7, None),
    }


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["b", "a"]), pl.Boolean])
def test_groups_may_have_any_type(dtype: pl.DataType) -> None:
    values = [True, False, True, False] if dtype == pl.Boolean else ["b", "a", "b", "a"]
    rows = pl.LazyFrame({"g": pl.Series(values, dtype=dtype), "start": [5, 0, 0, 3], "end": [9, 4, 2, 7]})
    spans = intervals.union(rows, by=["g"]).collect()
    assert sorted(spans.select(pl.col("g").cast(pl.String), "start", "end").rows()) == (
        [("false", 0, 7), ("true", 0, 2), ("true", 5, 9)]
        if dtype == pl.Boolean
        else [("a", 0, 7), ("b", 0, 2), ("b", 5, 9)]
    )
    covered = intervals.coverage(
        rows.filter(pl.col("start") > 0), rows.filter(pl.col("start") == 0), by=["g"]
    )
    assert sorted(covered.select("only_a", "only_b", "both").collect().rows()) == [(3, 3, 1), (4, 2, 0)]


# -- nesting ------------------------------------------------------------------------------------------------

NESTED = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14), st.integers(-1, 12)), max_size=14)
Nested = list[tuple[int, int, int]]


def arrays(drawn: Nested, origin: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group = np.array([g for g, _, _ in drawn], dtype=np.int64)
    start = np.array([s for _, s, _ in drawn], dtype=np.int64) + origin
    length = np.array([n for _, _, n in drawn], dtype=np.int64)
    return start, start + length, group


def walked(drawn: Nested, origin: int = 0) -> list[tuple[int, int, int, int, int]]:
    """(original row, start, cut end, parent's original row or -1, depth), by keeping a stack."""
    start, end, group = arrays(drawn, origin)
    order = sorted(range(len(drawn)), key=lambda i: (group[i], start[i], -end[i]))
    stack: list[tuple[int, int]] = []
    of = None
    result: list[tuple[int, int, int, int, int]] = []
    for i in order:
        if group[i] != of:
            stack, of = [], group[i]
        while stack and stack[-1][1] <= start[i]:
            stack.pop()
        cut = max(end[i], start[i])
        parent = -1
        if stack:
            parent, limit = stack[-1]
            cut = min(cut, limit)
        result.append((i, int(start[i]), int(cut), parent, len(stack)))
        stack.append((i, int(cut)))
    return result


def told(forest: Forest) -> list[tuple[int, int, int, int, int]]:
    parent = (
        np.where(forest.parent < 0, -1, forest.order[forest.parent]) if len(forest.order) else forest.order
    )
    columns = (forest.order, forest.start, forest.end, parent, forest.depth)
    return list(zip(*(c.tolist() for c in columns), strict=True))


# Two that begin alike and one of no length; a chain in which each outlives the last; a tangle of both.
@example([(0, 0, 9), (0, 0, 9), (0, 3, 0), (0, 3, 2), (0, 3, 0)], 0)
@example([(0, i, 12) for i in range(12)], 0)
@example([(0, 0, 5), (0, 1, 9), (0, 2, 9), (0, 4, 9), (0, 5, 1), (0, 5, 0), (1, 0, 3)], 0)
@settings(max_examples=400, deadline=None)
@given(NESTED, ORIGINS)
def test_nesting_equals_a_walk_with_a_stack(drawn: Nested, origin: int) -> None:
    forest = intervals.nest(*arrays(drawn, origin))
    assert told(forest) == walked(drawn, origin)
    cut = sum(
        end < max(start + length, start)
        for (_, start, end, *_), length in zip(
            walked(drawn), (drawn[i][2] for i, *_ in walked(drawn)), strict=True
        )
    )
    assert (forest.repaired > 0) == (cut > 0)


@settings(max_examples=200, deadline=None)
@given(NESTED)
def test_the_way_out_for_tangled_input_gives_the_same_forest(drawn: Nested) -> None:
    start, end, group = arrays(drawn)
    order = np.lexsort((-end, start, group)).astype(np.int64)
    one_by_one = nesting._nest_one_by_one(  # pyright: ignore[reportPrivateUsage]
        order, start[order], np.maximum(end, start)[order], group[order], 0
    )
    fast = intervals.nest(start, end, group)
    assert all(np.array_equal(a, b) for a, b in zip(astuple(fast)[:6], astuple(one_by_one)[:6], strict=True))


def test_more_groups_than_are_ranked_one_by_one_nest_alike() -> None:
    lane = ((0, 9), (1, 3), (2, 5), (4, 5), (9, 1))
    rows = [(group, *interval) for group in range(nesting.MANY_GROUPS + 1) for interval in lane]
    assert told(intervals.nest(*arrays(rows))) == walked(rows)


def test_a_point_of_a_group_without_intervals_is_in_none() -> None:
    none: Nested = []
    for rows, found in ((none, [-1, -1]), ([(0, 0, 10), (0, 2, 2)], [0, -1])):
        point, group = np.array([5, 5]), np.array([0, 2])
        assert intervals.innermost_at(intervals.nest(*arrays(rows)), point, group).tolist() == found


@settings(max_examples=200, deadline=None)
@given(NESTED, st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 27)), max_size=8), ORIGINS)
def test_the_innermost_interval_at_a_point_is_the_deepest_that_contains_it(
    drawn: Nested, points: list[tuple[int, int]], origin: int
) -> None:
    forest = intervals.nest(*arrays(drawn, origin))
    point = np.array([t for _, t in points], dtype=np.int64) + origin
    group = np.array([g for g, _ in points], dtype=np.int64)
    found = intervals.innermost_at(forest, point, group)
    nodes = walked(drawn, origin)
    for at, t, g in zip(found.tolist(), point.tolist(), group.tolist(), strict=True):
        holding = [(depth, i) for i, start, end, _, depth in nodes if drawn[i][0] == g and start <= t < end]
        assert (int(forest.order[at]) if at >= 0 else None) == (max(holding)[1] if holding else None)


def test_what_is_not_of_the_children_is_the_own() -> None:
    """Rows from 0 to 20, in it 2 to 9 and 12 to 15, in the former 3 to 5; beside them 20 to 30."""
    start, end = np.array([12, 0, 3, 2, 20]), np.array([15, 20, 5, 9, 30])
    forest = intervals.nest(start, end, np.zeros(5, dtype=np.int64))
    assert forest.order.tolist() == [1, 3, 2, 0, 4]
    assert intervals.less_children(forest, forest.end - forest.start).tolist() == [10, 5, 2, 3, 10]
    assert intervals.less_children(forest, np.array([1, 0, 7, 2, 4])).tolist() == [-1, -7, 7, 2, 4]


@settings(max_examples=300, deadline=None)
@given(NESTED, ORIGINS)
def test_self_pieces_give_every_instant_to_the_deepest_interval(drawn: Nested, origin: int) -> None:
    forest = intervals.nest(*arrays(drawn, origin))
    position, start, end = intervals.self_pieces(forest)
    owner: dict[tuple[int, int], int] = {}
    for p, first, last in zip(position.tolist(), start.tolist(), end.tolist(), strict=True):
        assert first < last
        for t in range(first, last):
            assert (int(forest.group[p]), t) not in owner
            owner[int(forest.group[p]), t] = int(forest.order[p])
    deepest: dict[tuple[int, int], tuple[int, int]] = {}
    for i, first, last, _, depth in walked(drawn, origin):
        for t in range(first, last):
            at = (drawn[i][0], t)
            deepest[at] = max(deepest.get(at, (-1, -1)), (depth, i))
    assert owner == {at: i for at, (_, i) in deepest.items()}
    order = list(zip(forest.group[position].tolist(), start.tolist(), strict=True))
    assert order == sorted(order)


def test_rows_are_ordered_by_group_and_time_and_equal_ones_stay_as_they_stand() -> None:
    """Integers, names and missing values alike: a missing one comes first."""
    whole = pl.DataFrame({"rank": [1, 0, 1, 0, 0], "start": [7, 9, 7, 4, 9]})
    assert row_order(whole, ["rank", "start"]).tolist() == [3, 1, 4, 0, 2]
    unnamed = whole.with_columns(rank=pl.Series([1, None, 1, 0, None]))
    assert row_order(unnamed, ["rank", "start"]).tolist() == [1, 4, 3, 0, 2]
    words = whole.with_columns(rank=pl.Series(["b", "a", "b", "a", "a"]))
    assert row_order(words, ["rank", "start"]).tolist() == [3, 1, 4, 0, 2]
    # An enum is in the order of its values, and so is a boolean; numbers before a missing time.
    kinds = whole.with_columns(rank=pl.Series(["z", "a", "z", "a", "a"], dtype=pl.Enum(["z", "a"])))
    assert row_order(kinds, ["rank", "start"]).tolist() == [0, 2, 3, 1, 4]
    flags = whole.with_columns(rank=pl.Series([True, False, True, False, False]))
    assert row_order(flags, ["rank", "start"]).tolist() == [3, 1, 4, 0, 2]
    floats = whole.with_columns(start=pl.Series([0.5, 0.25, 0.5, -1.0, 0.25]))
    assert row_order(floats, ["rank", "start"]).tolist() == [3, 1, 4, 0, 2]


def test_combinations_are_numbered_in_order_and_none_of_none() -> None:
    keys = np.array([7, 7, 3, 7, 3]), np.array([2, 1, 9, 2, 9])
    first, of = intervals.numbered(*keys)
    assert [tuple(int(key[row]) for key in keys) for row in first] == [(3, 9), (7, 1), (7, 2)]
    assert of.tolist() == [2, 1, 0, 2, 0]
    assert [len(column) for column in intervals.numbered(np.zeros(0, np.int64))] == [0, 0]


def test_group_ids_number_the_combinations_densely() -> None:
    rows = pl.DataFrame({"rank": [3, None, 3, 1, None], "name": ["x", "y", "x", "x", "y"]})
    ids = intervals.group_ids(rows, ["rank", "name"]).tolist()
    assert sorted(set(ids)) in ([0, 1, 2], [1, 2, 3])
    assert ids[0] == ids[2] and ids[1] == ids[4] and len(set(ids)) == 3
    assert intervals.group_ids(rows, []).tolist() == [0] * 5


def test_a_deep_stack_and_a_long_row_are_no_trouble() -> None:
    deep = 2_000
    start = np.r_[np.arange(deep), np.arange(deep) * 10 + 10_000].astype(np.int64)
    end = np.r_[2 * deep - np.arange(deep), np.arange(deep) * 10 + 10_007].astype(np.int64)
    forest = intervals.nest(start, end, np.zeros(2 * deep, dtype=np.int64))
    assert forest.repaired == 0
    assert forest.depth.tolist() == [*range(deep), *([0] * deep)]
    _, first, last = intervals.self_pieces(forest)
    assert int((last - first).sum()) == 2 * deep + 7 * deep


def proper(drawn: Drawn) -> Drawn:
    """The rows that nest among those before them, as the calls of a real thread do."""
    kept: Drawn = []
    for row in drawn:
        _, _, start, length = row
        crossing = [
            1
            for rank, thread, s, n in kept
            if (rank, thread) == row[:2]
            and (s < start < s + n < start + length or start < s < start + length < s + n)
        ]
        kept += [] if crossing else [row]
    return kept


@exact
@given(DRAWN, DRAWN, ORIGINS, st.sampled_from([0, 1, 32]))
def test_a_point_takes_the_value_of_the_innermost_row_that_covers_it(
    drawn: Drawn, points: Drawn, origin: int, near: int
) -> None:
    """The one that began last, and of those the shortest."""
    drawn = drawn if near == 32 else proper(drawn)
    rows = frame(drawn, origin).with_row_index("row").collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "NEAR", near)
        found = intervals.innermost(frame(points, origin).collect(), rows, by=BY, column="row").to_list()
    for (rank, thread, at, _), row in zip(points, found, strict=True):
        over = [
            (start, -length)
            for r, t, start, length in drawn
            if (r, t) == (rank, thread) and start <= at < start + length
        ]
        assert (row is None) == (not over)
        if row is not None:
            assert drawn[row][:2] == (rank, thread)
            assert (drawn[row][2], -drawn[row][3]) == max(over)


@pytest.mark.parametrize("many", [3, nesting.NEAR - 1, nesting.NEAR, nesting.NEAR + 1, 3 * nesting.NEAR])
def test_a_row_that_began_far_back_is_found_behind_however_many_that_have_ended(many: int) -> None:
    """Two long rows around many short ones, and another thread whose rows cover nothing here."""
    short = [(0, 7, 100 + 10 * k, 5) for k in range(many)]
    until = 100 + 10 * many
    rows = frame([(0, 8, 0, 60), *short, (0, 7, 0, until + 50), (0, 7, 0, until + 90)])
    rows = rows.with_row_index("row").collect()
    inner, outer = many + 1, many + 2
    asked = {
        99: inner,
        100: 1,
        104: 1,
        105: inner,
        until: inner,
        until + 49: inner,
        until + 50: outer,
        until + 89: outer,
        until + 90: None,
        -1: None,
    }
    points = frame([(0, 7, at, 0) for at in asked] + [(0, 8, 59, 0), (0, 8, 60, 0), (1, 7, 100, 0)]).collect()
    found = intervals.innermost(points, rows, by=BY, column="row").to_list()
    assert found == [*asked.values(), 0, None, None]
    turned = intervals.innermost(points, rows.reverse(), by=BY, column="row").to_list()
    assert turned == found


def test_nesting_is_the_same_in_rounds_and_one_by_one() -> None:
    """Staircases stick out of each other in every round."""
    start, end = np.arange(0, 60, 2, dtype=np.int64), np.arange(0, 60, 2, dtype=np.int64) + 21
    group = (start >= 30).astype(np.int64)
    forest = intervals.nest(start, end, group)
    one_by_one = nesting._nest_one_by_one(  # pyright: ignore[reportPrivateUsage]
        np.arange(30), start, end, group, 0
    )
    for found, expected in zip(astuple(forest), astuple(one_by_one), strict=True):
        assert np.array_equal(found, expected)
    assert forest.repaired == one_by_one.repaired > 0


def test_intervals_nest_deeper_than_a_short_integer_counts() -> None:
    n = 33_000
    forest = intervals.nest(np.arange(n), np.arange(3 * n, 2 * n, -1), np.zeros(n, dtype=np.int64))
    assert forest.depth.tolist() == list(range(n))
    assert forest.parent.tolist() == list(range(-1, n - 1))


def test_coverage_stands_in_the_order_of_groups() -> None:
    rows = pl.DataFrame([(n * 37 % 101, 0, n, n + 5) for n in range(101)], SCHEMA, orient="row").lazy()
    assert intervals.coverage(rows, rows, BY).collect()["rank"].to_list() == list(range(101))


def test_two_columns_are_numbers_alike_where_both_are_whole_numbers() -> None:
    whole, lacking = pl.Series([1, 2]), pl.Series([1, None])
    both = sets._both(whole, pl.Series([3]))  # pyright: ignore[reportPrivateUsage]
    assert both is not None and both.tolist() == [1, 2, 3]
    for one, other in ((whole, lacking), (lacking, whole), (lacking, lacking)):
        assert sets._both(one, other) is None  # pyright: ignore[reportPrivateUsage]


def test_intervals_that_touch_are_as_long_together() -> None:
    lane, start, end = (np.array(column) for column in ([1, 1, 2, 1, 1], [4, 0, 8, 7, 12], [7, 3, 9, 8, 13]))
    assert intervals.touching_lengths([lane], start, end).tolist() == [4, 3, 1, 4, 1]
    nothing = np.zeros(0, np.int64)
    assert intervals.touching_lengths([nothing], nothing, nothing).tolist() == []
