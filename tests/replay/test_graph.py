"""Replay's engine: both forms against the longest path found the naive way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lostflops.replay import graph
from lostflops.replay.graph import Circle, Graph

edges_of = st.integers(1, 12).flatmap(
    lambda points: st.tuples(
        st.just(points),
        st.lists(
            st.tuples(st.integers(0, points - 1), st.integers(0, points - 1), st.integers(-5, 20)).filter(
                lambda edge: edge[0] < edge[1]
            ),
            max_size=30,
        ),
        st.permutations(range(points)),
        st.lists(st.integers(0, 30), min_size=points, max_size=points),
    )
)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many edges this process went through before."""
    monkeypatch.setattr(graph, "COMPILED_FROM", 1 << 62)


def naive(points: int, edges: list[tuple[int, int, int]], earliest: list[int]) -> list[int]:
    times = list(earliest)
    for _ in range(points):
        for source, target, lag in edges:
            times[target] = max(times[target], times[source] + lag)
    return times


def made(job: Any) -> tuple[Graph, list[tuple[int, int, int]], np.ndarray[Any, Any], list[int]]:
    points, edges, names, earliest = job
    edges = [(names[source], names[target], lag) for source, target, lag in edges]
    lags = np.array([lag for *_, lag in edges], np.int64)
    found = Graph.of(points, [s for s, *_ in edges], [t for _, t, _ in edges])
    return found, edges, lags, earliest


@given(edges_of)
def test_each_point_comes_as_early_as_its_edges_allow(job: Any) -> None:
    found, edges, lags, earliest = made(job)
    expected = naive(found.points, edges, earliest)
    assert found.times(lags, np.array(earliest)).tolist() == expected
    both = np.stack([lags, lags + 3], axis=1)
    assert found.times(both, np.array(earliest))[:, 0].tolist() == expected


@given(edges_of)
def test_level_by_level_gives_the_same_as_edge_by_edge(job: Any) -> None:
    few, graph.FEW = graph.FEW, -1
    try:
        narrow, *_ = made(job)
    finally:
        graph.FEW = few
    found, edges, lags, earliest = made(job)
    assert (found.levels is None) == (not edges), "these jobs have few levels"
    assert narrow.levels is None
    assert (narrow.times(lags, np.array(earliest)) == found.times(lags, np.array(earliest))).all()
    levels = found.times(np.stack([lags, 2 * lags], axis=1), np.array(earliest))
    assert levels[:, 0].tolist() == naive(found.points, edges, earliest)
    assert levels[:, 1].tolist() == naive(found.points, [(s, t, 2 * lag) for s, t, lag in edges], earliest)


@given(edges_of, st.data())
def test_less_lag_is_never_later_and_gains_at_most_what_was_taken(job: Any, data: Any) -> None:
    found, _, lags, earliest = made(job)
    taken = np.array([data.draw(st.integers(0, 10)) for _ in lags], np.int64)
    before = found.times(lags, np.array(earliest))
    after = found.times(lags - taken, np.array(earliest))
    assert (after <= before).all()
    assert (before - after <= taken.sum()).all()


@given(edges_of)
def test_a_point_without_slack_lies_on_a_path_that_adds_up(job: Any) -> None:
    found, edges, lags, earliest = made(job)
    times = found.times(lags, np.array(earliest))
    last = int(times.argmax())
    path = found.path(lags, times, last)
    first = edges[path[0]][0] if len(path) else last
    assert times[first] + lags[path].sum() == times[last]
    assert times[first] == earliest[first]
    latest = found.latest(lags, int(times.max()))
    assert (latest >= times).all()
    assert all(latest[edges[edge][1]] == times[edges[edge][1]] for edge in path.tolist())


def test_a_circle_is_named() -> None:
    with pytest.raises(Circle, match="3 points of the dependency graph wait for each other"):
        Graph.of(5, [0, 1, 2, 3, 4], [1, 2, 3, 1, 0])


def test_compiled_and_as_it_stands_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    random = np.random.default_rng(7)
    source = random.integers(0, 900, 4000)
    target = source + random.integers(60, 100, 4000)  # few levels
    lags = random.integers(-5, 100, 4000)
    monkeypatch.setattr(graph, "COMPILED_FROM", 0)
    variants = np.stack([lags, lags - 3, 2 * lags], axis=1)
    earliest = random.integers(0, 50, 1000)
    compiled = Graph.of(1000, source, target)
    assert compiled.levels is None
    found = compiled.times(lags, earliest), compiled.times(variants, earliest)
    monkeypatch.setattr(graph, "COMPILED_FROM", 1 << 62)
    as_it_stands = Graph.of(1000, source, target)
    assert as_it_stands.levels is not None
    assert (as_it_stands.times(lags, earliest) == found[0]).all()
    assert (as_it_stands.times(variants, earliest) == found[1]).all()


def test_loops_are_compiled_once_that_costs_no_more_than_going_through_the_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(graph, "_machine_code", asked.append)  # answers None, as without Numba
    monkeypatch.setattr(graph._Gone, "through", 0)
    monkeypatch.setattr(graph, "COMPILED_FROM", 100)

    def swept(edges: int) -> int:
        source = np.arange(edges)
        graph._sweep(source, source + 1, np.ones(edges, np.int64), np.zeros(edges + 1, np.int64))
        return len(asked)

    # 10 edges, six times, and those that were gone through before.
    assert [swept(10) for _ in range(6)] == [0, 0, 0, 0, 1, 2]
    monkeypatch.setattr(graph._Gone, "through", 0)
    assert swept(17) == 3, "a page goes through a graph six times"


def test_compiled_loops_need_no_place_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    asked = list[bool]()

    def njit(*loops: Any, cache: bool = False) -> Any:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return loops[0]

    monkeypatch.setattr(numba, "njit", njit)
    assert graph._machine_code.__wrapped__(naive) is naive  # pyright: ignore[reportPrivateUsage]
    assert asked == [True, False]
