"""The one simulator of copies: when saved storages travel, what compute waits for, and what is in memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.copies.link import Link
from lostflops.copies.simulation import Again, Limits, Recorded, Storage, play
from lostflops.plan.train import timeline
from planned import patient
from test_plan_time import TIMELINES


def equal_layers(layers: int, forward: int, backward: int, size: int) -> Recorded:
    """Each layer saves one storage at its end and asks for it when its backward begins."""
    end = layers * forward
    storages = [
        Storage(size, (number + 1) * forward, end + (layers - 1 - number) * backward)
        for number in range(layers)
    ]
    return Recorded(end, layers * backward, storages, [(end + layers * backward, 0)])


@pytest.mark.parametrize("row", TIMELINES)
def test_equal_layers_give_the_reference_table(row: tuple[float, ...]) -> None:
    saved, forward, backward, out, into, count, sync, overlapped, hidden = row
    size, layers = round(saved * 1e9), int(count)
    step = equal_layers(layers, round(forward * 1e6), round(backward * 1e6), size)
    link = Link(out * 1e9, into * 1e9)
    limits = Limits(size, round(backward * 1e6), as_layers=True)
    played = play(step, link, range(layers - 2), limits=limits)
    assert played.step_ns / step.compute == pytest.approx(overlapped, abs=0.006)
    assert 100 * played.hidden == pytest.approx(hidden, abs=0.6)
    assert 1 + (played.out_ns + played.in_ns) / step.compute == pytest.approx(sync, abs=0.01)


RATE = st.floats(1e7, 1e12)
LENGTH = st.integers(1000, 100_000)


def layer_by_layer(
    layers: int, forward: float, backward: float, out: float, into: float, moved: int, sets: int
) -> float:
    """The oracle: three clocks, one loop forward and one backward."""
    left: list[float] = []
    now = 0.0
    for number in range(layers):
        waits = left[number - sets] if sets <= number < moved else 0.0
        now = max(now, waits) + forward
        if number < moved:
            left.append(max(left[-1] if left else 0.0, now) + out)
    ends = [now] * (layers + sets)
    back = 0.0
    for number in reversed(range(layers)):
        if number < moved:
            back = max(back, ends[number + sets], left[number]) + into
            now = max(now, back)
        now += backward
        ends[number] = now
    return now


@settings(patient)
@given(st.integers(2, 30), LENGTH, LENGTH, LENGTH, LENGTH, st.integers(2, 6), st.data())
def test_equal_layers_take_as_long_as_layer_by_layer(
    layers: int, forward: int, backward: int, out: int, into: int, sets: int, data: st.DataObject
) -> None:
    moved = data.draw(st.integers(0, layers - 1))
    expected = layer_by_layer(layers, forward, backward, out, into, moved, sets)
    link = Link(1e12 / out, 1e12 / into)  # 1000 bytes
    limits = Limits((sets - 1) * 1000, (sets - 1) * backward, as_layers=True)
    played = play(equal_layers(layers, forward, backward, 1000), link, range(moved), limits=limits)
    assert played.step_ns == pytest.approx(expected, abs=2)
    seconds = [1e-9 * ns for ns in (forward, backward, out, into)]
    assert timeline.simulate(layers, *seconds, moved, sets).total == pytest.approx(1e-9 * expected)


@st.composite
def steps(draw: st.DrawFn) -> Recorded:
    """Storages of any size, saved in the forward and asked for in the backward, or never."""
    forward, backward = draw(st.integers(1000, 10**6)), draw(st.integers(1000, 10**6))
    count = draw(st.integers(1, 12))
    saved = sorted(draw(st.lists(st.integers(0, forward), min_size=count, max_size=count)))
    storages = [
        Storage(draw(st.integers(1, 10**5)), at, draw(st.none() | st.integers(forward, forward + backward)))
        for at in saved
    ]
    return Recorded(forward, backward, storages, [])


@st.composite
def plays(draw: st.DrawFn) -> tuple[Recorded, list[int], Limits]:
    step = draw(steps())
    numbers = st.integers(0, len(step.storages) - 1)
    moved = draw(st.lists(numbers, unique=True))
    limits = Limits(draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6)))
    return step, moved, limits


@settings(patient)
@given(plays(), RATE, RATE, st.integers(0, 10_000), st.booleans())
def test_a_step_lies_between_compute_alone_and_copies_one_after_the_other(
    played: tuple[Recorded, list[int], Limits], out: float, into: float, launch: int, as_layers: bool
) -> None:
    step, moved, limits = played
    limits = Limits(limits.in_flight_bytes, limits.look_ahead_ns, limits.look_ahead_bytes, as_layers)
    found = play(step, Link(out, into, launch), moved, limits=limits)
    assert step.compute <= found.step_ns <= step.compute + found.out_ns + found.in_ns
    assert found.step_ns >= found.in_ns + step.forward if as_layers or found.in_ns else True
    assert found.step_ns == step.compute + found.out_waits_ns + found.in_waits_ns
    for share in (found.hidden, found.hidden_out, found.hidden_in):
        assert 0 <= share <= 1
    assert found.bytes_in <= found.bytes_out


@settings(patient)
@given(plays(), RATE, RATE, st.floats(1, 100), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    played: tuple[Recorded, list[int], Limits], out: float, into: float, more_out: float, more_in: float
) -> None:
    step, moved, limits = played
    limits = Limits(limits.in_flight_bytes, limits.look_ahead_ns, limits.look_ahead_bytes, as_layers=True)
    slow = play(step, Link(out, into, 100), moved, limits=limits)
    fast = play(step, Link(out * more_out, into * more_in, 100), moved, limits=limits)
    assert fast.step_ns <= slow.step_ns


def test_the_peak_falls_by_what_is_away_and_only_while_it_is() -> None:
    """600 bytes are gone when the next are saved, at 0.5 ms, and fetched after the first request, at 1.4."""
    storages = [Storage(600, 100_000, 1_500_000), Storage(50, 500_000, 1_400_000)]
    highs = [(100_000, 10), (500_000, 610), (1_000_000, 660), (1_400_000, 900), (1_500_000, 720)]
    step = Recorded(1_000_000, 1_000_000, storages, [*highs, (2_000_000, 700)])
    kept = play(step, Link(1e9, 1e9))
    assert (kept.peak_bytes, kept.peak_at) == (900, 1_400_000)
    moved = play(step, Link(1e9, 1e9), [0, 1], limits=Limits(1000, 10**6))
    assert (moved.peak_bytes, moved.peak_at) == (720, 1_500_000)
    slow = play(step, Link(5e5, 1e9), [0, 1], limits=Limits(1000, 10**6))  # has left at 1.3
    assert slow.peak_bytes == 900


def test_what_has_not_left_when_the_backward_begins_is_used_where_it_is() -> None:
    storages = [Storage(100, 10, 150), Storage(100, 90, 110)]
    step = Recorded(100, 100, storages, [(200, 200)])
    found = play(step, Link(1e9, 1e9), [0, 1], limits=Limits(1000, 1000))  # 100 ns each way
    assert found.bytes_out == 200 and found.bytes_in == 100
    assert found.step_ns == 200 + 60  # the first has left at 110, and its copy in ends at 210 instead of 150


def test_compute_waits_for_the_oldest_copy_when_too_much_is_on_its_way() -> None:
    storages = [Storage(100, at, 10_000 - at) for at in (10, 20, 30)]
    step = Recorded(5000, 5000, storages, [(10_000, 300)])
    assert play(step, Link(1e9, 1e9), [0, 1, 2], limits=Limits(300, 5000)).out_waits_ns == 0
    found = play(step, Link(1e9, 1e9), [0, 1, 2], limits=Limits(200, 5000))
    assert found.out_waits_ns == 110 - 30


def test_what_is_computed_again_takes_its_time_once_and_comes_back_together() -> None:
    storages = [Storage(100, 10, 190), Storage(70, 20, 150), Storage(30, 30, 160)]
    highs = [(10, 0), (20, 100), (30, 170), (100, 200), (150, 200), (160, 130), (190, 100), (200, 0)]
    step = Recorded(100, 100, storages, highs)
    found = play(step, Link(1e9, 1e9), again=[Again((1, 2), 40)])
    assert (found.step_ns, found.compute_ns, found.bytes_out) == (240, 240, 0)
    assert found.peak_bytes == 130  # from 150 on


def test_what_has_not_left_stays_only_when_its_turn_has_come() -> None:
    """The third leaves at 550, in the backward, and is fetched when the second is asked for, at 700."""
    storages = [
        Storage(100, 0, 600),
        Storage(100, 10, 700),
        Storage(250, 300, 900),
        Storage(100, 450, 500, movable=False),
    ]
    found = play(Recorded(500, 500, storages), Link(1e9, 1e9), [0, 1, 2], limits=Limits(10_000, 0, 1000))
    assert (found.bytes_out, found.bytes_in) == (450, 450)
    assert found.step_ns == 1000 + 50  # its copy in ends at 950
    soon = play(Recorded(500, 500, storages), Link(1e9, 1e9), [0, 1, 2], limits=Limits(10_000, 300, 1000))
    assert soon.bytes_in == 200 and soon.step_ns == 1000  # its turn came at 500, before it had left


def test_resident_bytes_are_those_of_storages_and_what_is_beside_them() -> None:
    """Moved out by 150, before the third is saved; back from the first request on."""
    storages = [
        Storage(100, 50, 900, beside_at_ask=7),
        Storage(40, 200, 800),
        Storage(30, 400, 700, beside_at_save=500),
    ]
    step = Recorded(500, 500, storages)
    assert play(step, Link(1e9, 1e9)).resident_bytes == 170 + 500
    moved = play(step, Link(1e9, 1e9), [0, 1], limits=Limits(1000, 1000, 1000))
    assert moved.resident_bytes == 40 + 30 + 500  # the second goes with the next copy or request
