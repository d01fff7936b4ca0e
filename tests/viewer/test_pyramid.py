"""Busy time at every zoom is what a loop over the events counts, to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.viewer import pyramid
from lostflops.viewer.pyramid import BUCKETS, Events, Planes, Pyramid

NUM_CATEGORIES = 3


@st.composite
def some_events(draw: st.DrawFn) -> Events:
    """Lanes of events that do not overlap; some take no time, some cover many buckets."""
    first, start, length, category = [0], [], [], []
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(-50, 50))
        for gap, took, what in draw(
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 700), st.integers(0, 2)), max_size=12)
        ):
            start.append(at + gap)
            length.append(took)
            category.append(what)
            at += gap + took
        first.append(len(start))
    wide = draw(st.sampled_from([np.uint32, np.int64]))
    return Events(
        np.array(first, np.int64),
        np.array(start, np.int64),
        np.array(length, wide),
        np.zeros(len(start), np.uint32),
        np.array(category, np.uint16),
    )


def extent(events: Events) -> tuple[int, int]:
    if not len(events.start):
        return 0, 1
    return int(events.start.min()), int(max((events.start + events.length).max(), events.start.max() + 1))


def built(events: Events) -> tuple[Planes, Pyramid]:
    planes = pyramid.planes_of(events, NUM_CATEGORIES)
    new = lambda level, shape, kind: np.zeros(shape, kind)  # noqa: E731
    return planes, pyramid.build(events, planes, *extent(events), new)


def counted(events: Events, lane: int, category: int, begin: int, end: int) -> int:
    """The oracle: too simple to be wrong."""
    busy = 0
    for row in range(int(events.first[lane]), int(events.first[lane + 1])):
        if events.category[row] == category:
            start = int(events.start[row])
            busy += max(0, min(end, start + int(events.length[row])) - max(begin, start))
    return busy


def each_plane(planes: Planes, lanes: list[int]) -> list[tuple[int, int]]:
    return [(lane, int(planes.category[plane])) for lane in lanes for plane in planes.of(lane)]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is worked on at once is small, so that several groups are met; base buckets are wide."""
    monkeypatch.setattr(pyramid, "GROUP_EVENTS", 5)
    monkeypatch.setattr(pyramid, "GROUP_CELLS", 512)
    monkeypatch.setattr(pyramid, "LEAST_CELLS", 2000)


@given(some_events())
def test_a_level_is_the_sum_of_the_one_below(events: Events) -> None:
    _, levels = built(events)
    for below, above in zip(levels.levels, levels.levels[1:], strict=False):
        for bucket in range(above.shape[1]):
            assert (above[:, bucket] == below[:, 4 * bucket : 4 * bucket + 4].sum(axis=1)).all()
    assert levels.levels[-1].shape[1] <= BUCKETS


@given(some_events())
def test_every_level_of_a_lane_adds_up_to_its_exact_busy_time(events: Events) -> None:
    planes, levels = built(events)
    for lane in range(events.num_lanes):
        rows = slice(int(events.first[lane]), int(events.first[lane + 1]))
        exact = int(events.length[rows].sum())
        of = slice(int(planes.first[lane]), int(planes.first[lane + 1]))
        assert int(planes.total[of].sum()) == exact
        for level in levels.levels:
            assert int(level[of].sum()) == exact


@settings(max_examples=150)
@given(some_events(), st.data())
def test_any_bucket_of_any_zoom_is_what_the_events_say(events: Events, data: st.DataObject) -> None:
    planes, levels = built(events)
    level = data.draw(st.integers(levels.finest, levels.coarsest))
    width = 1 << levels.bits(level)
    last = (levels.end - levels.zero - 1) // width
    bucket = data.draw(st.integers(0, last))
    lanes = data.draw(
        st.lists(st.integers(0, max(0, events.num_lanes - 1)), unique=True, max_size=events.num_lanes)
    )
    busy = pyramid.window(levels, events, planes, np.array(lanes, np.int64), level, bucket, 8)
    drawn = pyramid.shares(busy, levels.bits(level))
    for row, (lane, category) in enumerate(each_plane(planes, lanes)):
        for column in range(8):
            begin = levels.zero + (bucket + column) * width
            exact = counted(events, lane, category, begin, begin + width)
            assert busy[row, column] == exact
            share = drawn[row, column]
            assert share == (max(1, (exact * 510 + width) // (2 * width)) if exact else 0)


@settings(max_examples=150)
@given(some_events(), st.integers(-100, 9000), st.integers(0, 9000))
def test_a_range_counts_what_lies_in_it_to_the_nanosecond(events: Events, begin: int, long: int) -> None:
    planes, levels = built(events)
    lanes = list(range(events.num_lanes))
    busy = pyramid.totals(levels, events, planes, np.array(lanes, np.int64), begin, begin + long)
    for row, (lane, category) in enumerate(each_plane(planes, lanes)):
        assert busy[row] == counted(events, lane, category, begin, begin + long)


@given(some_events(), st.integers(-100, 2000), st.integers(0, 900))
def test_events_of_a_window_are_those_that_overlap_it(events: Events, begin: int, long: int) -> None:
    for lane in range(events.num_lanes):
        low, high = events.overlapping(lane, begin, begin + long)
        wanted = [
            row
            for row in range(int(events.first[lane]), int(events.first[lane + 1]))
            for start, took in [(int(events.start[row]), int(events.length[row]))]
            if start < begin + long and (start + took > begin or start >= begin)
        ]
        assert list(range(low, high)) == wanted


def test_times_longer_than_a_double_holds_are_exact() -> None:
    long = (1 << 52) + 1
    events = Events(
        np.array([0, 2]),
        np.array([0, long]),
        np.array([long, 3]),
        np.zeros(2, np.uint32),
        np.zeros(2, np.uint16),
    )
    planes, levels = built(events)
    assert planes.total.tolist() == [long + 3]
    whole: Any = pyramid.totals(levels, events, planes, np.array([0]), 0, long + 3)
    assert whole.tolist() == [long + 3]
    assert levels.levels[0].dtype == np.uint64 and int(levels.levels[0].sum()) == long + 3


def test_the_base_level_and_those_above_it_take_at_most_eight_bytes_per_event() -> None:
    num = 100_000
    events = Events(
        np.array([0, num]),
        np.arange(num) * 1000,
        np.full(num, 700, np.uint32),
        np.zeros(num, np.uint32),
        (np.arange(num) % 3).astype(np.uint16),
    )
    _, levels = built(events)
    assert sum(level.nbytes for level in levels.levels) <= 8 * num
    assert levels.levels[0].shape[1] > 8192, "and not much less"


def test_lanes_in_another_order_are_drawn_in_that_order() -> None:
    """The first is first and the last is last, and those between have changed places."""
    zeros = np.zeros(4, np.uint32)
    events = Events(
        np.arange(5), np.zeros(4, np.int64), np.array([5, 6, 7, 8], np.uint32), zeros, zeros.astype(np.uint16)
    )
    planes, levels = built(events)
    for lanes in ([0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0], [1, 3]):
        busy = pyramid.window(levels, events, planes, np.array(lanes), 0, 0, 8)
        assert busy.sum(axis=1).tolist() == [5 + lane for lane in lanes]
