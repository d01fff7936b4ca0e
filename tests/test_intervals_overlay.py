"""Unions, overlays and parts of intervals, against an oracle that looks at every nanosecond."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops import intervals

Drawn = list[tuple[int, int, int]]
# Rank, start, length: lengths may be zero or negative, as in broken traces.
DRAWN = st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 25), st.integers(-2, 9)), max_size=12)


def frame(drawn: Drawn) -> pl.LazyFrame:
    schema = {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    rows = [{"rank": rank, "start": start, "end": start + length} for rank, start, length in drawn]
    return pl.DataFrame(rows, schema=schema).lazy()


def instants(drawn: Drawn) -> list[tuple[int, int]]:
    return [(rank, t) for rank, start, length in drawn for t in range(start, start + length)]


@settings(max_examples=150, deadline=None)
@given(DRAWN)
def test_a_union_holds_each_covered_instant_once_in_the_fewest_pieces(drawn: Drawn) -> None:
    pieces = intervals.union(frame(drawn), by=["rank"]).collect().rows()
    assert pieces == sorted(pieces)
    covered = [(rank, t) for rank, start, end in pieces for t in range(start, end)]
    assert sorted(covered) == sorted(set(instants(drawn)))
    ends = {(rank, end) for rank, _, end in pieces}
    assert not any((rank, start) in ends for rank, start, _ in pieces)


@settings(max_examples=150, deadline=None)
@given(DRAWN, DRAWN)
def test_an_overlay_counts_what_is_open_at_every_instant(a: Drawn, b: Drawn) -> None:
    pieces = intervals.overlay({"a": frame(a), "b": frame(b)}, by=["rank"]).collect()
    got: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, start, end, of_a, of_b in pieces.iter_rows():
        for t in range(start, end):
            assert (rank, t) not in got
            got[rank, t] = (of_a, of_b)
    expected = {at: (instants(a).count(at), instants(b).count(at)) for at in instants(a) + instants(b)}
    assert got == expected


@settings(max_examples=150, deadline=None)
@given(DRAWN, DRAWN, DRAWN)
def test_the_part_inside_pieces_is_counted_row_by_row(rows: Drawn, a: Drawn, b: Drawn) -> None:
    pieces = intervals.overlay({"a": frame(a), "b": frame(b)}, by=["rank"])
    parts = {"only_b": (pl.col("b") > 0) & (pl.col("a") == 0), "twice_a": pl.col("a") >= 2}
    answer = intervals.inside(frame(rows), pieces, parts).collect()
    of_a, of_b = instants(a), instants(b)
    expected = [
        (
            sum(at in of_b and at not in of_a for at in instants([row])),
            sum(of_a.count(at) >= 2 for at in instants([row])),
        )
        for row in rows
    ]
    assert answer.select(*parts).rows() == expected
