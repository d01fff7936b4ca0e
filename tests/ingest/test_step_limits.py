"""Each rule about steps at its limit: the last number for which it holds, and the first beyond."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import polars as pl
import pytest

from lostflops.errors import StepsOverlap
from lostflops.ingest.steps import counted, marks, on_device
from lostflops.tables import FAMILY, LEFT_OUT, NAME


def numbers(*values: int) -> on_device.Int:
    return np.array(values, dtype=np.int64)


# --- a recording's last step


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ((10, 10, 8), True),
        ((10, 10, 9), False),
        ((100, 110, 89), True),  # the same to a tenth
        ((100, 111, 89), False),
        ((100, 111, 49), True),
        ((100, 111, 50), False),
        ((10, 1), True),
        ((10, 2), False),
        ((0, 0), False),
        ((0, 0, 0), False),
        ((5,), False),
        ((), False),
    ],
)
def test_a_stub_holds_less_than_its_share_of_the_least(amount: tuple[int, ...], expected: bool) -> None:
    assert on_device.is_stub(numbers(*amount)) is expected


def test_a_step_winds_down_that_waits_twice_as_long_and_a_tenth_of_a_step_more() -> None:
    length = numbers(90, 100, 110, 50)
    assert not on_device.is_winding_down(length, numbers(1, 5, 4, 20))
    assert on_device.is_winding_down(length, numbers(1, 5, 4, 21))
    assert not on_device.is_winding_down(numbers(100), numbers(100))
    assert on_device.is_winding_down(numbers(100, 100), numbers(1, 13))


def test_moments_are_counted_from_the_first_instant_of_a_step_to_before_its_end() -> None:
    began = numbers(20, 0, 10, 9)
    assert on_device.amounts(numbers(0, 10), numbers(10, 20), began).tolist() == [2, 1]


def test_a_step_is_quiet_since_the_last_that_began_in_it_or_since_it_began() -> None:
    start, end = numbers(0, 10), numbers(10, 20)
    assert on_device.quiet_ends(start, end, numbers(12, 3)).tolist() == [7, 8]
    assert on_device.quiet_ends(start, end, numbers(3)).tolist() == [7, 10]
    assert on_device.quiet_ends(start, end, numbers(10, 20)).tolist() == [10, 10]
    assert on_device.quiet_ends(start, end, numbers()).tolist() == [10, 10]


# --- what the device ran

EARLIEST, LATEST = on_device.EARLIEST, on_device.LATEST


def device_rows(*rows: tuple[int, int, int, int | None, object]) -> pl.DataFrame:
    """Start, end, stream, launch (its call lasts two) and what kind it is."""
    return pl.DataFrame(
        {
            "start": [r[0] for r in rows],
            "end": [r[1] for r in rows],
            "device": 0,
            "stream": [r[2] for r in rows],
            "launch_start": pl.Series([r[3] for r in rows], dtype=pl.Int64),
            "launch_end": pl.Series([None if r[3] is None else r[3] + 2 for r in rows], dtype=pl.Int64),
            **(
                {"communication": [r[4] for r in rows]}
                if isinstance(rows[0][4], bool)
                else {"family": pl.Series([r[4] for r in rows], dtype=FAMILY)}
            ),
        }
    )


def test_work_of_kernels_and_copies_says_when_it_was_launched_and_what_it_decides() -> None:
    """On stream 7 two products, the second without a launch; beside it communication, copies, and nothing."""
    ran = device_rows(
        (0, 10, 7, -5, "gemm"),
        (10, 30, 7, None, "gemm"),
        (5, 9, 9, 1, "communication"),
        (40, 40, 7, 3, "gemm"),
    )
    moved = device_rows((12, 20, 9, 3, False), (21, 25, 11, None, True))
    done = on_device.work(ran, moved)
    assert done.start.tolist() == [0, 5, 10, 12, 21]
    assert done.end.tolist() == [10, 9, 30, 20, 25]
    assert done.launch.tolist() == [-5, 1, -5, 3, 21]
    assert done.returned.tolist() == [-3, 3, LATEST, 5, LATEST]
    assert done.is_launched.tolist() == [True, True, False, True, False]
    assert not done.is_backlog.any()
    assert done.is_copy.tolist() == [False, False, False, True, True]
    assert done.is_main.tolist() == [True, False, True, False, False]
    assert done.is_beside.tolist() == [False, True, False, False, True]
    assert done.is_attributed
    assert not on_device.work(None, None).is_attributed


@pytest.mark.parametrize(("launch", "backlog"), [(-1, True), (0, True), (1, False)])
def test_work_before_the_first_known_launch_was_in_the_queue(launch: int, backlog: bool) -> None:
    done = on_device.work(device_rows((0, 10, 7, None, "gemm"), (10, 20, 7, launch, "gemm")), None)
    assert done.is_backlog.tolist() == [backlog, False]
    assert done.launch.tolist() == [EARLIEST, launch]


def test_tables_that_say_nothing_of_communication_have_none() -> None:
    ran, moved = device_rows((0, 10, 7, 1, "gemm")), device_rows((0, 20, 9, 1, False))
    done = on_device.work(ran.drop("family"), moved.drop("communication"))
    assert sorted(zip(done.is_copy.tolist(), done.is_main.tolist(), strict=True)) == [
        (False, True),
        (True, False),
    ]
    assert not done.is_beside.any()


def test_a_device_is_behind_by_what_was_launched_before_the_first_step_and_not_in_it() -> None:
    def moved(busy_until: int, launch: int | None = None) -> list[tuple[int, int, bool]]:
        rows = (
            (0, busy_until, 7, launch, "gemm"),
            (busy_until, 80, 7, 10, "gemm"),
            (110, 150, 7, 105, "gemm"),
        )
        steps = pl.DataFrame({"start": [0, 100], "end": [100, 200], "begins": [True, True]})
        return (
            on_device.moved(steps, on_device.work(device_rows(*rows), None))
            .select("start", "end", "behind")
            .rows()
        )

    assert moved(50) == [(50, 100, True), (100, 200, False)]
    assert moved(1) == [(1, 100, True), (100, 200, False)]  # a hundredth of the step
    # Its launch was seen: nothing is missing, the host just runs ahead.
    assert moved(50, -5) == [(50, 100, False), (100, 200, False)]


def test_what_is_launched_at_the_first_mark_is_not_launched_before_it() -> None:
    rows = ((0, 20, 7, -5, "gemm"), (20, 50, 7, 0, "gemm"), (50, 80, 7, 10, "gemm"))
    done = on_device.work(device_rows(*rows), None)
    ends = [on_device._launched_end(done, host) for host in (-5, 0, 1)]  # pyright: ignore[reportPrivateUsage]
    assert ends == [on_device.EARLIEST, 20, 50]


def test_a_step_whose_beginning_was_not_recorded_begins_with_the_recording() -> None:
    steps = pl.DataFrame({"start": [0, 100], "end": [100, 200], "begins": [False, True]})
    ran = device_rows((0, 50, 7, None, "gemm"), (50, 80, 7, 10, "gemm"), (110, 150, 7, 105, "gemm"))
    found = on_device.moved(steps, on_device.work(ran, None)).select("start", "end", "behind").rows()
    assert found == [(0, 100, False), (100, 200, False)]


@pytest.mark.parametrize(("end", "behind"), [(202, True), (203, False)])
def test_a_device_is_behind_from_a_hundredth_of_the_step_on(end: int, behind: bool) -> None:
    steps = pl.DataFrame({"start": [0, end], "end": [end, 2 * end], "begins": [True, True]})
    ran = device_rows((0, 2, 7, None, "gemm"), (2, 80, 7, 10, "gemm"), (end + 9, end + 50, 7, end, "gemm"))
    found = on_device.moved(steps, on_device.work(ran, None)).select("start", "end", "behind").rows()
    assert found == [(2, end, behind), (end, 2 * end, False)]


def test_steps_with_pauses_between_end_where_their_own_work_does() -> None:
    starts = (0, 200, 400)
    steps = pl.DataFrame({"start": starts, "end": [100, 300, 500], "begins": [True] * 3})
    ran = device_rows(*((at, at + 80, 7, at, "gemm") for at in starts))
    found = on_device.moved(steps, on_device.work(ran, None)).select("start", "end").rows()
    assert found == [(0, 100), (200, 300), (400, 500)]


@pytest.mark.parametrize(
    ("waits", "usual"),
    [
        ([1000, 2500], 2500),
        ([2500, 1000], 2500),
        ([1000, 1000], 1000),
        ([1000] * 15 + [2500], 2500),
        ([1000] * 16 + [2500], 1000),  # the seventeenth other step is not compared
    ],
)
def test_a_copy_waits_as_long_as_the_longest_of_those_in_other_steps(waits: list[int], usual: int) -> None:
    """Copies from pageable memory, after so many microseconds; the first waits for 3,000 of them."""
    host = 10_000_000 * np.arange(1 + len(waits))
    start = host + 1000 * numbers(3000, *waits)
    rows = device_rows(*((at, at + 9, 7, called, False) for at, called in zip(start, host, strict=True)))
    done = on_device.work(None, rows.with_columns(launch_end="end"))
    found = on_device._unrecorded_end(done, host, host + 10_000_000)  # pyright: ignore[reportPrivateUsage]
    assert (found is not None) is (3000 - usual >= 1000)


def test_half_of_the_launches_are_enough() -> None:
    def attributed(*launches: int | None) -> bool:
        rows = [(10 * k + 1, 10 * k + 9, 7, launch, "gemm") for k, launch in enumerate(launches)]
        return on_device.work(device_rows(*rows), None).is_attributed

    assert attributed(2, None)
    assert not attributed(2, None, None)
    assert attributed(None, 0, None)  # the first waited in the queue


def test_the_main_stream_computes_longest_then_is_busy_longest_then_comes_first() -> None:
    def main(*rows: tuple[int, int, int, int | None, object]) -> list[int]:
        return on_device.work(device_rows(*rows), None).is_main.tolist()

    first, second = (0, 10, 9, 1, "gemm"), (1, 11, 7, 1, "gemm")
    assert main(first, second) == [False, True]
    talk = (20, 25, 9, 1, "communication")
    assert main(first, second, talk) == [True, False, True]
    assert main(first, (1, 12, 7, 1, "gemm"), talk) == [False, True, False]


def test_work_launched_before_an_instant_ends_and_after_it_begins() -> None:
    launch, at = numbers(5, 1, 3), numbers(1, 2, 3, 4, 5, 6)
    last = on_device._last_end(launch, numbers(95, 20, 50), at)  # pyright: ignore[reportPrivateUsage]
    assert last.tolist() == [EARLIEST, 20, 20, 50, 50, 95]
    reached = on_device._last_end(launch, numbers(30, 90, 50), at)  # pyright: ignore[reportPrivateUsage]
    assert reached.tolist() == [EARLIEST, 90, 90, 90, 90, 90]
    first = on_device._first_start(launch, numbers(7, 2, 9), at)  # pyright: ignore[reportPrivateUsage]
    assert first.tolist() == [2, 7, 7, 7, 7, LATEST]
    none = numbers()
    assert on_device._last_end(none, none, at).tolist() == [EARLIEST] * 6  # pyright: ignore[reportPrivateUsage]
    assert on_device._first_start(none, none, at).tolist() == [LATEST] * 6  # pyright: ignore[reportPrivateUsage]


def test_work_beside_decides_until_the_main_stream_has_begun() -> None:
    ends = on_device._Ends(  # pyright: ignore[reportPrivateUsage]
        main=numbers(10, 10, 10), beside=numbers(5, 30, 30), first=numbers(20, 20, 40)
    )
    assert ends.deciding.tolist() == [10, 20, 30]


# --- outliers


def outliers(length: list[int], more: tuple[int, ...] = ()) -> list[int]:
    does_more = np.zeros(len(length), dtype=bool)
    does_more[list(more)] = True
    return np.flatnonzero(counted.outliers(numbers(*length), does_more)).tolist()


def long_at(n: int, *at: int, length: int = 50) -> list[int]:
    return [length if k in at else 10 for k in range(n)]


def test_an_outlier_lasts_more_than_twice_the_median() -> None:
    assert outliers([10, 10, 10, 21, 10]) == [3]
    assert outliers([10, 10, 10, 20, 10]) == []


def test_an_outlier_lasts_more_than_one_and_a_half_times_the_longest_other() -> None:
    assert outliers([10, 10, 10, 14, 22, 10, 10]) == [4]
    assert outliers([10, 10, 10, 14, 21, 10, 10]) == []


def test_three_other_steps_must_remain() -> None:
    assert outliers([10, 10, 10, 40]) == [3]
    assert outliers([10, 10, 40]) == []


def test_at_most_one_step_in_six_is_an_outlier() -> None:
    assert outliers(long_at(12, 4, 5)) == [4, 5]
    assert outliers(long_at(11, 4, 5)) == []
    assert outliers(long_at(18, 4, 5, 9)) == [4, 5, 9]
    assert outliers(long_at(17, 4, 5, 9)) == []


def test_what_may_come_back_all_over_the_recording_is_no_outlier() -> None:
    assert outliers(long_at(14, 2, 8)) == []  # every sixth: five after the last
    assert outliers(long_at(15, 2, 8)) == [2, 8]
    assert outliers(long_at(14, 5, 11)) == []
    assert outliers(long_at(14, 6, 12)) == [6, 12]  # six before the first
    assert outliers(long_at(20, 2, 8, 14)) == []
    assert outliers(long_at(20, 2, 8, 15)) == [2, 8, 15]


def test_a_step_that_does_more_is_an_outlier_where_enough_do_less() -> None:
    assert outliers(long_at(5, 0), more=(0,)) == [0]
    assert outliers(long_at(4, 0), more=(0,)) == []
    assert outliers(long_at(10, 8), more=(8,)) == [8]
    assert outliers(long_at(9, 7), more=(7,)) == []
    assert outliers(long_at(10, 1), more=(1,)) == [1]
    assert outliers(long_at(9, 1), more=(1,)) == []
    assert outliers(long_at(9, 1), more=(2,)) == [1]


def judged(*rows: tuple[int | None, ...], whole: tuple[bool | None, ...] = ()) -> list[str | None]:
    """Why steps (rank, number, start, end, amount) are left out, in the order of ranks and times."""
    table = pl.DataFrame(
        rows,
        schema={"rank": pl.Int32, "step": pl.Int64, "start": pl.Int64, "end": pl.Int64, "amount": pl.Int64},
        orient="row",
    ).with_columns(
        complete=pl.Series(whole or [True] * len(rows), dtype=pl.Boolean), left_out=pl.lit(None, LEFT_OUT)
    )
    return counted.judged(table)["left_out"].cast(pl.String).to_list()


def in_a_row(
    lengths: list[int], amounts: list[int] | None = None, rank: int = 0
) -> list[tuple[int | None, ...]]:
    ends = list(accumulate(lengths))
    many = amounts or [7] * len(lengths)
    return [(rank, k, e - n, e, a) for k, (e, n, a) in enumerate(zip(ends, lengths, many, strict=True))]


def test_of_several_long_steps_the_shortest_must_be_longer_than_the_others() -> None:
    assert outliers([10, 10, 10, 14, 10, 21, 10, 10, 100, *[10] * 5]) == []
    assert outliers([10, 10, 10, 14, 10, 22, 10, 10, 100, *[10] * 5]) == [5, 8]


def test_a_rank_whose_steps_all_hold_nothing_counts_nowhere_beside_one_that_works() -> None:
    one = in_a_row([10] * 3)
    idle, little = in_a_row([10] * 3, [0] * 3, rank=1), in_a_row([10] * 3, [0, 1, 0], rank=1)
    assert judged(*one, *idle) == [None] * 3 + [counted.IDLE_RANK] * 3
    assert judged(*one, *little) == [None] * 6
    assert judged(*in_a_row([10] * 3, [0] * 3), *idle) == [None] * 6
    untold = [(*row[:4], None) for row in idle]
    assert judged(*one, *untold) == [None] * 6
    assert judged(*one, *untold[:1], *idle[1:]) == [None] * 6


def test_a_step_does_more_from_a_tenth_more_than_the_median_on() -> None:
    lengths = [10, 10, 10, 10, 50, 10, 10]
    assert judged(*in_a_row(lengths, [100, 100, 100, 100, 111, 100, 100])) == [None] * 7
    assert judged(*in_a_row(lengths, [100, 100, 100, 100, 110, 100, 100]))[4] == "outlier"


def test_at_most_one_step_in_six_holds_nothing() -> None:
    assert judged(*in_a_row([10] * 12, [0, 0, *[5] * 10]))[:3] == ["nothing in it"] * 2 + [None]
    assert judged(*in_a_row([10] * 11, [0, 0, *[5] * 9])) == [None] * 11
    assert judged(*in_a_row([10] * 3, [5, 0, 5])) == [None, "nothing in it", None]
    assert judged(*in_a_row([10], [0])) == [None]
    assert judged(*in_a_row([10] * 2, [0, 0])) == [None, None]


def test_a_step_that_holds_nothing_is_no_outlier_as_well_and_hides_none() -> None:
    amounts = [5, 5, 5, 0, 5, 5, 5]
    assert judged(*in_a_row([10, 10, 10, 50, 10, 10, 10], amounts)) == [
        *[None] * 3,
        "nothing in it",
        *[None] * 3,
    ]
    found = judged(*in_a_row([10, 10, 10, 50, 10, 60, 10], amounts))
    assert found == [None, None, None, "nothing in it", None, "outlier", None]


def test_a_step_is_as_long_as_on_the_rank_where_it_is_longest_and_empty_where_all_are() -> None:
    one, other = in_a_row([10] * 7), in_a_row([10, 10, 50, 10, 10, 10, 10], [7, 0, 7, 7, 7, 7, 7], rank=1)
    assert judged(*other, *one) == ([None, None, "outlier", *[None] * 4]) * 2


def test_a_step_that_some_rank_lacks_counts_nowhere_unless_none_is_everywhere() -> None:
    one, other = in_a_row([10] * 3), in_a_row([10] * 3, rank=1)
    assert judged(*one, *other[1:]) == ["left out on another rank", *[None] * 4]
    cut = (True, True, True, True, None, False)
    assert judged(*one, *other, whole=cut) == [None, None, "left out on another rank", None, None, None]
    assert judged(*one[:1], *other[1:]) == [None] * 3


def test_what_each_rank_does_is_compared_with_what_it_does_in_its_other_steps() -> None:
    lengths = [10, 10, 10, 10, 50, 10, 10]
    one, other = in_a_row(lengths, [100] * 7), in_a_row(lengths, [10] * 7, rank=1)
    assert judged(*one, *other) == [*[None] * 4, "outlier", None, None] * 2
    # One rank that does more is enough.
    more = in_a_row(lengths, [10, 10, 10, 10, 12, 10, 10], rank=1)
    assert judged(*one, *more) == [None] * 14


def test_a_step_that_does_nothing_does_no_more_than_others_that_do_nothing() -> None:
    lengths = [10, 10, 10, 10, 50, 10, 10]
    assert judged(*in_a_row(lengths, [0] * 7)) == [*[None] * 4, "outlier", None, None]


def test_a_step_of_which_nothing_is_known_is_not_one_that_does_nothing() -> None:
    one = in_a_row([10] * 3)
    unknown = (*one[1][:4], None)
    assert judged(one[0], unknown, one[2]) == [None] * 3
    other = in_a_row([10] * 3, [5, 0, 5], rank=1)
    assert judged(one[0], unknown, one[2], *other) == [None] * 6


def test_ranks_that_do_nothing_are_no_reason_to_keep_a_step_that_others_lack() -> None:
    one, other = in_a_row([10] * 3), in_a_row([10] * 3, rank=1)
    idle = in_a_row([10] * 3, [0] * 3, rank=2)
    assert judged(*one, *other[1:], *idle) == [
        "left out on another rank",
        *[None] * 4,
        *[counted.IDLE_RANK] * 3,
    ]
    # What is known of another rank's steps tells nothing of this one's.
    unknown = (*one[1][:4], None)
    assert judged(one[0], unknown, one[2], *idle) == [None] * 3 + [counted.IDLE_RANK] * 3


def test_a_step_that_is_left_out_on_another_rank_is_left_out_once() -> None:
    one, other = in_a_row([10, 10, 10, 10, 50, 10, 10]), in_a_row([10] * 7, rank=1)
    del other[4]
    assert judged(*one, *other) == [*[None] * 4, "left out on another rank", *[None] * 8]


def test_steps_come_in_any_order_and_may_all_be_cut() -> None:
    one = in_a_row([10] * 3)
    assert judged(*reversed(one)) == [None] * 3
    assert judged(*one, whole=(False,) * 3) == [None] * 3


# --- steps that a log shows to be rare


def rare(length: list[int], logged: list[int]) -> list[int]:
    found = counted.rare(numbers(*length), numbers(*logged))
    assert found.shape == (len(length),) and found.dtype == bool
    return np.flatnonzero(found).tolist()


USUAL = [100] * 28


def test_steps_are_rare_of_which_half_as_much_longer_ones_take_less_than_a_twentieth_of_the_time() -> None:
    """The long step takes 4 times the median: what takes more than 2.5 times as long in the log is alike."""
    assert rare([10, 10, 10, 10, 40], [*USUAL, 250, 250]) == [4]
    assert rare([10, 10, 10, 10, 40], [*USUAL, 251, 251]) == []
    assert rare([*[10] * 9, 40, 90], [*USUAL, 251, 251]) == []
    assert rare([*[10] * 9, 40, 90], [*USUAL, 250, 250]) == [9, 10]
    # 200 beyond the usual 100, of 4,000 in all and of 4,100.
    assert rare([10, 10, 10, 10, 40], [*[100] * 37, 300]) == []
    assert rare([10, 10, 10, 10, 40], [*[100] * 38, 300]) == [4]


def test_only_steps_longer_than_twice_the_median_and_half_as_long_again_as_others_are_rare() -> None:
    assert rare([10, 10, 10, 10, 20], [*USUAL, 100, 100]) == []
    assert rare([10, 10, 10, 10, 21], [*USUAL, 100, 100]) == [4]
    assert rare([20, 20, 20, 28, 42], [*USUAL, 100, 100]) == []
    assert rare([20, 20, 20, 28, 43], [*USUAL, 100, 100]) == [4]
    assert rare([20, 20, 20, 28, 28], [*USUAL, 100, 100]) == []


def test_three_steps_and_a_log_of_29_tell_nothing() -> None:
    assert rare([10, 10, 40], [100] * 30) == []
    assert rare([10, 10, 10, 40], [100] * 30) == [3]
    assert rare([10, 10, 10, 40], [100] * 29) == []
    assert rare([10, 10, 10, 40], [0] * 30) == []


def test_a_log_counts_whole_steps_after_the_third_outside_of_the_recording_on_the_longest_rank() -> None:
    log = pl.DataFrame(
        {
            "rank": [0, 0, 0, 0, 0, 1, 1],
            "step": [2, 3, 4, 5, 6, 3, 4],
            "duration": [11, 12, 13, None, 15, 17, 9],
            "recorded": [False, False, False, False, True, False, False],
        }
    )
    assert sorted(counted._logged(log).tolist()) == [13, 17]  # pyright: ignore[reportPrivateUsage]
    assert counted._logged(None).tolist() == []  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1, 5, 5, 1)],
        [(0, 1, 5, 4, 1)],
        [(0, 1, 0, 10, 1), (0, 2, 9, 20, 1)],
        [(0, 1, 0, 10, 1), (0, 1, 10, 20, 1)],
    ],
)
def test_steps_that_are_none_are_an_error(rows: list[tuple[int, int, int, int, int]]) -> None:
    with pytest.raises(StepsOverlap):
        judged(*rows)


def test_the_first_rank_whose_steps_overlap_is_named() -> None:
    with pytest.raises(StepsOverlap, match="ank 2"):
        judged((0, 1, 0, 10, 1), (2, 1, 0, 10, 1), (2, 2, 9, 20, 1), (3, 1, 0, 10, 1), (3, 2, 9, 20, 1))


def test_steps_that_touch_or_are_of_different_ranks_are_no_error() -> None:
    assert judged((0, 1, 0, 10, 1), (0, 2, 10, 20, 1)) == [None, None]
    assert judged((0, 1, 0, 10, 1), (1, 1, 3, 12, 1)) == [None, None]


# --- marks


def rounds(*work: int) -> int:
    """How many updates end a step where so many launches lie between one update and the next."""
    ends = list(accumulate(work, initial=0))
    return len(marks._last_of_each_round(ends, np.arange(ends[-1])))  # pyright: ignore[reportPrivateUsage]


def test_optimizers_take_turns_that_do_the_same_in_each_turn_to_a_fiftieth() -> None:
    assert rounds(*(100, 50) * 3) == 4
    assert rounds(*(100, 50) * 2, 102, 51) == 4
    assert rounds(*(100, 50) * 2, 103, 50) == 7
    assert rounds(*(1000, 500) * 2, 1020, 500) == 4
    assert rounds(*(1000, 500) * 2, 1021, 500) == 7
    assert rounds(*(100, 50) * 2, 100) == 6  # two rounds and a half
    assert rounds(*(100, 89) * 3) == 4
    assert rounds(*(100, 90) * 3) == 7
    assert rounds(*(100, 50, 70) * 3) == 4
    assert rounds(*(100, 50, 70, 60) * 3) == 4
    assert rounds(*(100, 50, 70, 60, 80) * 3) == 16  # more than take turns
    assert rounds(*(100, 0) * 3) == 7
    assert rounds(*(2, 1) * 3) == 4


def test_the_last_of_each_round_ends_the_step() -> None:
    ends = list(accumulate((50, *(100, 50) * 3), initial=0))
    found = marks._last_of_each_round(ends, np.arange(ends[-1]))  # pyright: ignore[reportPrivateUsage]
    assert found == ends[1::2] and found[-1] == ends[-1]


def kernels(families: list[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series(families, dtype=NAME),
            "family": pl.Series(families, dtype=FAMILY),
            "start": [10 * k for k in range(len(families))],
            "end": [10 * k + 7 for k in range(len(families))],
        }
    )


def bursts(families: list[str]) -> list[int]:
    return marks._optimizer_burst_ends(kernels(families))  # pyright: ignore[reportPrivateUsage]


def test_sixteen_other_kernels_end_a_burst_and_fifteen_do_not() -> None:
    update, other = ["optimizer"], ["gemm"]
    assert bursts([*other * 3, *update, *other * 16, *update * 2]) == [37, 217]
    assert bursts([*other * 3, *update, *other * 15, *update * 2]) == []  # one burst is no step
    assert bursts([*update, *other * 16] * 9) == [170 * k + 7 for k in range(9)]
    assert bursts([]) == []
    turned = kernels([*update, *other * 16] * 9).reverse()
    assert marks._optimizer_burst_ends(turned) == [170 * k + 7 for k in range(9)]  # pyright: ignore[reportPrivateUsage]


def test_a_burst_lasts_until_the_last_of_its_kernels_has_ended() -> None:
    table = kernels(["optimizer", "optimizer", *["gemm"] * 16, "optimizer"])
    table = table.with_columns(end=pl.when(pl.col("start") == 0).then(60).otherwise("end"))
    assert marks._optimizer_burst_ends(table) == [60, 187]  # pyright: ignore[reportPrivateUsage]


def test_kernels_that_start_together_are_taken_in_the_order_of_their_rows() -> None:
    table = kernels(["optimizer", *["gemm"] * 16, "optimizer"])
    table = table.with_columns(start=pl.when(pl.col("start") == 10).then(0).otherwise("start"))
    assert marks._optimizer_burst_ends(table) == [7, 177]  # pyright: ignore[reportPrivateUsage]


def test_steps_between_optimizers_lie_between_their_ends() -> None:
    def between(ends: list[int], end: int) -> list[tuple[int, int, bool]] | None:
        found = marks._between_optimizers(ends, 10, end)  # pyright: ignore[reportPrivateUsage]
        return None if found is None else found.select("start", "end", "complete").rows()

    assert between([12, 20, 30], 30) == [(10, 12, False), (12, 20, True), (20, 30, True)]
    assert between([10, 20, 30], 30) == [(10, 20, False), (20, 30, True)]
    assert between([20, 30, 41], 40) == [(10, 20, False), (20, 30, True), (30, 40, False)]
    assert between([10, 41], 40) is None


def test_step_numbers_are_counted_where_one_comes_twice() -> None:
    def found(*names: str) -> list[int]:
        table = pl.DataFrame(
            {
                "name": pl.Series(list(names), dtype=NAME),
                "start": [10 * k for k in range(len(names))],
                "end": [10 * k + 9 for k in range(len(names))],
                "thread": 1,
            }
        )
        return marks.find_steps(table, None, None, 0, 10 * len(names))["step"].to_list()

    assert found("step 3", "step 3", "step 4") == [0, 1, 2]
    assert found("step 3", "step 5", "step 4") == [0, 1, 2]
    assert found("step 3", "step 5", "step 9") == [3, 5, 9]
    assert found("step 3", "train_step", "step 9") == [0, 1, 2]


def spans(name: str, *rows: tuple[int, int]) -> pl.DataFrame:
    """Ranges or operators of thread 1."""
    table = pl.DataFrame(rows, {"start": pl.Int64, "end": pl.Int64}, orient="row")
    return table.with_columns(name=pl.lit(name, NAME), thread=pl.lit(1, pl.Int64))


def launched(*rows: tuple[int, int, int], family: str = "gemm") -> pl.DataFrame:
    """Kernels of one stream: start, end, when the launch began."""
    table = pl.DataFrame(rows, {"start": pl.Int64, "end": pl.Int64, "launch_start": pl.Int64}, orient="row")
    return table.with_columns(
        device=pl.lit(0, pl.Int64),
        stream=pl.lit(7, pl.Int64),
        launch_end=pl.col("launch_start") + 1,
        thread=pl.lit(1, pl.Int64),
        family=pl.lit(family, FAMILY),
        name=pl.lit(family, NAME),
    )


def test_ranges_that_name_steps_stand_on_the_host() -> None:
    ran = launched((2, 8, 1), (12, 18, 11), (22, 28, 21))
    found = marks.find_steps(spans("train_step", (0, 10), (10, 20), (20, 30)), None, ran, 0, 30)
    assert found.select("host_start", "host_end").rows() == [(0, 10), (10, 20), (20, 30)]


def test_marks_of_no_length_are_points_in_time_from_one_to_the_next() -> None:
    ran = launched((2, 8, 1), (12, 18, 11), (22, 28, 21))
    found = marks.find_steps(spans("train_step", (0, 0), (10, 10), (20, 20)), None, ran, 0, 30)
    assert found.select("host_start", "host_end").rows() == [(0, 10), (10, 20)]


def next_marks(*begins: int, pauses: bool = False, length: int = 10) -> tuple[list[int], bool]:
    """Until when each step lasts whose marks begin there, and whether what comes after marks is of steps."""
    table = pl.DataFrame({"start": begins, "end": [at + length for at in begins]})
    until, tails = marks._next_marks(table, pauses)  # pyright: ignore[reportPrivateUsage]
    return until.to_list(), tails


def test_a_step_lasts_until_the_next_mark_unless_that_comes_later_than_a_step_takes() -> None:
    assert next_marks(0, 10, 30, 40) == ([10, 30, 40, 50], False)
    assert next_marks(0, 10, 31, 41) == ([10, 20, 41, 51], False)  # a pause
    far = (0, 25, 50, 75, 85, 95)  # after three of five
    assert next_marks(*far) == ([25, 50, 75, 85, 95, 105], True)
    assert next_marks(*far, pauses=True) == ([10, 35, 60, 85, 95, 105], False)
    assert next_marks(*far, 105) == ([10, 35, 60, 85, 95, 105, 115], False)  # after three of six
    assert next_marks(0, 25, 50, 60) == ([10, 35, 60, 70], False)  # after two of three
    points = (0, 10, 20, 30, 40)
    assert next_marks(*points, length=0) == ([10, 20, 30, 40, 40], False)


def test_a_row_without_a_name_marks_nothing() -> None:
    nameless = spans("x", (0, 10)).with_columns(name=pl.lit(None, NAME))
    found = marks.find_steps(nameless, nameless, launched((2, 8, 1)), 0, 10)
    assert found.select("start", "end", "source").rows() == [(2, 8, "whole trace")]


def test_a_mark_is_whole_unless_the_recording_says_otherwise() -> None:
    ranges = spans("ProfilerStep#3", (0, 10), (10, 20), (20, 30)).with_columns(
        complete=pl.Series([False, None, True])
    )
    ran = launched((2, 8, 1), (12, 18, 11), (22, 28, 21))
    assert marks.find_steps(ranges, None, ran, 0, 30)["complete"].to_list() == [False, True, True]


def test_marks_outside_of_which_all_was_launched_mark_no_step_and_with_one_launch_inside_they_do() -> None:
    ranges = spans("ProfilerStep#3", (0, 10), (10, 20))
    found = marks.find_steps(ranges, None, launched((110, 115, 109), (120, 125, 119)), 0, 130)
    assert found.select("start", "end", "source").rows() == [(110, 125, "whole trace")]
    found = marks.find_steps(ranges, None, launched((12, 18, 11), (120, 125, 119)), 0, 130)
    assert found["source"].unique().to_list() == ["profiler"]
    # A single kernel counts where it was launched, whatever operators do.
    found = marks.find_steps(ranges, spans("aten::mm", (1, 2), (3, 4), (11, 12)), launched((2, 18, 1)), 0, 20)
    assert found["amount"].to_list()[0] == 1


def test_without_launches_it_is_operators_that_begin() -> None:
    def moments(kernels: pl.DataFrame | None, operators: pl.DataFrame | None) -> list[int]:
        return marks._launched(kernels, operators).tolist()  # pyright: ignore[reportPrivateUsage]

    operators = spans("aten::mm", (11, 19), (1, 9))
    ran = launched((12, 18, 7), (2, 8, 3))
    assert moments(ran, operators) == [3, 7]
    assert moments(ran.drop("launch_start"), operators) == moments(None, operators) == [1, 11]
    assert moments(ran.with_columns(launch_start=pl.lit(None, pl.Int64)), operators) == [1, 11]
    assert moments(None, None) == []


def test_on_a_cpu_an_operator_is_of_the_step_in_which_it_begins() -> None:
    operators = spans("aten::mm", (1, 2), (8, 12), (15, 20))
    found = marks.find_steps(spans("ProfilerStep#3", (0, 10), (10, 20)), operators, None, 0, 20)
    assert found["amount"].to_list() == [2, 1]


def test_a_cpu_waits_at_the_end_of_its_last_step_since_its_last_operator_began() -> None:
    begins = [1000 + 10 * k for k in range(4)]
    ranges = spans("ProfilerStep#3", *((at, at + 10) for at in begins))
    operators = [at + n for at in begins for n in ((1, 2, 3) if at == begins[-1] else (1, 5, 9))]
    found = marks.find_steps(ranges, spans("aten::mm", *((n, n + 1) for n in operators)), None, 1000, 1040)
    assert found["left_out"].cast(pl.String).to_list() == [None] * 3 + ["waits at its end"]


def test_a_device_with_one_kernel_a_step_hangs_where_the_host_has_launched_another() -> None:
    ranges = spans("ProfilerStep#3", *((10 * k, 10 * k + 10) for k in range(3)))
    operators = spans("aten::mm", *((n, n + 1) for n in range(30)))
    found = marks.find_steps(ranges, operators, launched((2, 8, 1), (12, 25, 11)), 0, 30)
    assert found["complete"].to_list() == [True, False, False]
    assert found["left_out"].cast(pl.String).to_list()[:2] == [None, "recording ended in it"]


def test_a_second_step_that_the_recording_cuts_is_cut_at_its_end() -> None:
    ranges = spans("Optimizer.step#Adam.step", (15, 20), (35, 41))
    found = marks.find_steps(ranges, spans("aten::mm", (11, 12), (31, 32)), None, 10, 40)
    assert found.select("start", "end", "complete", pl.col("left_out").cast(pl.String)).rows() == [
        (10, 20, False, "recording began in it"),
        (20, 40, False, "recording ended in it"),
    ]


def test_the_optimizer_that_comes_last_ends_the_step_however_many_there_are() -> None:
    def ends(*rows: tuple[str, int, int]) -> list[int]:
        ranges = pl.concat(spans(f"Optimizer.step#{name}.step", (start, end)) for name, start, end in rows)
        return marks._optimizer_range_ends(ranges, None, [])  # pyright: ignore[reportPrivateUsage]

    turns = [("AB"[n % 2], 10 * n, 10 * n + 5) for n in range(40)]
    assert ends(*turns) == [10 * n + 5 for n in range(1, 40, 2)]
    assert ends(*turns[::-1]) == ends(*turns)
    assert ends(*turns[:5]) == [5, 25, 45]
    assert ends(("A", 15, 20), ("A", 20, 25)) == [20, 25]  # back to back
    assert ends(("A", 15, 20), ("A", 20, 20), ("A", 35, 40)) == [20, 40]
    assert ends(("B", 15, 20), ("A", 15, 18), ("B", 35, 40)) == [20, 40]  # the first calls another


def test_an_optimizer_that_another_calls_is_a_part_of_it_however_rows_stand() -> None:
    inner, outer = "Optimizer.step#SGD.step", "Optimizer.step#Ours.step"
    rows = ((inner, 35, 38), (outer, 35, 40), ("load", 36, 50), (outer, 15, 20), (inner, 15, 18))
    ranges = pl.concat(spans(name, (start, end)) for name, start, end in rows)
    found = marks.find_steps(ranges, spans("aten::mm", (11, 12), (31, 32)), None, 10, 60)
    assert found.select("start", "end", "complete").rows() == [
        (10, 20, False), (20, 40, True), (40, 60, False),
    ]  # fmt: skip


def test_steps_that_kernels_alone_mark_have_no_place_on_the_host_and_are_not_behind() -> None:
    families = [*["gemm"] * 20, "optimizer"] * 4
    rows = pl.concat(
        launched((10 * k, 10 * k + 7, 10 * k - 1), family=family) for k, family in enumerate(families)
    )
    found = marks.find_steps(None, None, rows, 0, 837)
    assert found["source"].unique().to_list() == ["optimizer"]
    assert found["host_start"].null_count() == found.height == 4
    assert found["left_out"].cast(pl.String).to_list() == ["recording began in it", None, None, None]
    names = ["embed", "gemm", "norm", "softmax", "add"] * 8
    rows = pl.concat(
        launched(
            (10 * k, 10 * k + 7, 10 * k - 1), family="embedding" if name == "embed" else "gemm"
        ).with_columns(name=pl.lit(name, NAME), continued=pl.lit(False))
        for k, name in enumerate(names)
    )
    found = marks.find_steps(None, None, rows, 0, 900)
    assert found["source"].unique().to_list() == ["period"]
    assert found["host_start"].null_count() == found.height > 3
    assert "device was behind" not in found["left_out"].cast(pl.String).to_list()


def test_of_threads_with_marks_the_one_with_most_time_then_most_marks_then_the_first_has_them() -> None:
    def thread(*rows: tuple[int | None, int], launching: list[int] | None = None) -> int | None:
        table = pl.DataFrame(
            {
                "thread": pl.Series([of for of, _ in rows], dtype=pl.Int64),
                "start": [100 * k for k in range(len(rows))],
                "end": [100 * k + long for k, (_, long) in enumerate(rows)],
            }
        )
        kept = marks._of_one_thread(table, launching or [])  # pyright: ignore[reportPrivateUsage]
        (only,) = kept["thread"].unique().to_list()
        assert kept.height == sum(of == only for of, _ in rows)
        return only

    assert thread((2, 10), (1, 30), (2, 10)) == 1
    assert thread((1, 20), (2, 10), (2, 10)) == 2
    assert thread((3, 20), (2, 20)) == 2
    assert thread((None, 20), (5, 20)) == 5
    assert thread((None, 21), (5, 20)) is None
    assert thread((1, 30), (4, 10), launching=[4, 6]) == 4
    assert thread((1, 30), (4, 10), launching=[6]) == 1


def test_the_last_step_that_the_device_reaches_hangs_when_the_host_has_launched_another() -> None:
    """Of three steps the host issues ten operators each, then some of a fourth that the device never runs."""

    def cut(last: int, reached: int = 3) -> list[bool]:
        steps = pl.DataFrame({"host_start": [0, 10, 20, 30], "host_end": [10, 20, 30, 40]})
        began = [10 * k + n for k in range(3) for n in range(10)] + [30 + n for n in range(last)]
        ran = np.array([k < reached for k in range(4)])
        operators = pl.DataFrame({"start": began})
        return marks._never_reached(steps, ran, operators).tolist()  # pyright: ignore[reportPrivateUsage]

    assert cut(5) == [False, False, True, False]
    assert cut(4) == [False] * 4
    assert cut(5, reached=4) == [False] * 4
    assert cut(5, reached=0) == [False] * 4
    assert cut(5, reached=1) == [True, False, False, False]


def test_codes_repeat_when_nineteen_of_twenty_do() -> None:
    def period(*codes: int) -> int | None:
        return marks._period(numbers(*codes))  # pyright: ignore[reportPrivateUsage]

    assert period(*(1, 2, 3, 4) * 3) == 4
    assert period(*(1, 2, 3, 4) * 2, 1, 2, 3) is None  # not three of them
    assert period(*(1, 2, 3) * 4) is None  # fewer than four kernels
    assert period(*(1, 2, 3, 4, 5) * 4) == 5
    # One kernel of 24 differs: two of 20 places do not repeat; of 44, two of 40 do not.
    assert period(*(1, 2, 3, 4) * 3, 9, *(2, 3, 4), *(1, 2, 3, 4) * 2) is None
    assert period(*(1, 2, 3, 4) * 5, 9, *(2, 3, 4), *(1, 2, 3, 4) * 5) == 4
    assert period(*range(30)) is None


# --- what one draw of mutants found untested


def test_a_rank_of_which_no_step_was_recorded_whole_is_left_out_where_others_have_whole_ones() -> None:
    def left(*complete: tuple[int, bool | None]) -> list[str | None]:
        ranks, whole = [rank for rank, _ in complete], [is_whole for _, is_whole in complete]
        nobody = pl.Series([None] * len(ranks), dtype=LEFT_OUT)
        steps = pl.DataFrame(
            {"rank": ranks, "complete": pl.Series(whole, dtype=pl.Boolean), "left_out": nobody}
        )
        return counted._without_cut_ranks(steps)["left_out"].cast(pl.String).to_list()  # pyright: ignore[reportPrivateUsage]

    cut = counted.CUT_RANK
    assert left((0, True), (0, False), (1, False), (1, False)) == [None, None, cut, cut]
    assert left((0, True), (1, False), (1, None)) == [None] * 3  # what is not known may be whole
    assert left((0, False), (1, False)) == [None] * 2  # of none is known how long a step is


def test_no_step_is_rare_where_none_is_longer() -> None:
    assert rare([10, 10, 10, 10, 10], [*USUAL, 250, 250]) == []


def test_the_last_step_of_a_device_hung_where_the_host_had_done_as_much_in_the_next() -> None:
    steps = pl.DataFrame({"host_start": [0, 10, 20, 30], "host_end": [10, 20, 30, 40]})
    reached = np.array([True, True, True, False])

    def stuck(*each: int, ran: marks.Flags = reached) -> list[bool]:
        starts = [10 * step + n for step, many in enumerate(each) for n in range(many)]
        operators = pl.DataFrame({"start": starts}, {"start": pl.Int64})
        return marks._never_reached(steps, ran, operators).tolist()  # pyright: ignore[reportPrivateUsage]

    assert stuck(8, 8, 8, 8) == [False, False, True, False]
    assert stuck(8, 8, 8, 0) == [False] * 4
    assert stuck(0, 0, 0, 0) == [False] * 4
    assert stuck(8, 1, 1, 2) == [False, False, True, False]
    assert stuck(2, 10, 10, 4) == [False] * 4
    assert stuck(8, 8, 8, 0, ran=np.array([True, True, False, False])) == [False, True, False, False]


def test_work_between_the_first_step_and_the_last_lies_outside_of_none() -> None:
    steps = pl.DataFrame({"start": [10, 20], "end": [20, 30]})

    def said(*work: tuple[int, int]) -> int:
        return len(
            marks.outside(steps, pl.DataFrame(work, {"start": pl.Int64, "end": pl.Int64}, orient="row"))
        )

    assert (said((12, 14), (22, 24)), said((2, 4)), said((32, 34)), said()) == (0, 1, 1, 0)


def test_work_that_ends_with_the_first_step_s_beginning_lies_wholly_before_it() -> None:
    steps = pl.DataFrame({"start": [10, 20], "end": [20, 30]})
    work = pl.DataFrame({"start": [2, 3, 12, 30, 28], "end": [10, 11, 14, 34, 31]})
    told = [(quality.name, quality.count, quality.of) for quality in marks.outside(steps, work)]
    late = pl.DataFrame({"start": [1000, 1500], "end": [1500, 2000]})
    reaches = pl.DataFrame({"start": [1990], "end": [2010]})  # a hundredth of the steps' time beyond them
    assert [quality.count for quality in marks.outside(late, reaches)] == [0]
    assert marks.outside(late, reaches.with_columns(pl.col("end") - 1)) == []
    assert told == [("GPU work before the first step", 1, 5), ("GPU work after the last step", 1, 5)]


def test_a_step_that_began_before_the_recording_is_cut_and_not_whole() -> None:
    starts, ends = [0, 10, 20, 25, 30, -10], [10, 20, 30, 30, 40, 5]
    steps = pl.DataFrame({"start": starts, "end": ends, "complete": [True] * 6})
    cut = marks._inside(steps, 5, 25)  # pyright: ignore[reportPrivateUsage]
    assert cut.rows() == [(5, 10, False), (10, 20, True), (20, 25, False)]


def test_marks_within_others_are_none_in_whatever_order_they_stand() -> None:
    every = pl.DataFrame({"start": [20, 2, 0, 20], "end": [25, 4, 10, 30]})
    kept = marks._outermost(every)  # pyright: ignore[reportPrivateUsage]
    assert kept.rows() == [(0, 10), (20, 30)]
    every = pl.DataFrame({"start": [0, 4, 10, 12, 18], "end": [10, 10, 10, 20, 22]})
    kept = marks._outermost(every)  # pyright: ignore[reportPrivateUsage]
    assert kept.rows() == [(0, 10), (10, 10), (12, 20), (18, 22)]  # a point, and two that cross


def test_a_kernel_marks_steps_that_runs_in_each_period_and_often_enough() -> None:
    def of(*at: int, length: int = 12) -> list[int] | None:
        family = ["embedding" if n in at else "gemm" for n in range(length)]
        codes = np.array([1 if n in at else 2 for n in range(length)])
        found = marks._marks(pl.DataFrame({"family": family}), codes, 3)  # pyright: ignore[reportPrivateUsage]
        return None if found is None else found.tolist()

    often = marks.FEWEST_PERIODS
    every = tuple(range(0, 3 * often, 3))
    assert of(*every, length=3 * often) == list(every)
    assert of(*every[:-1], length=3 * often) is None
    assert of(*(0, 1), *every[2:], length=3 * often) is None
    assert of(0, 3, 6, 10, length=12) is None


def test_kernels_repeat_in_the_order_of_their_starts_wherever_they_stand() -> None:
    """An embedding and four others, eight times, as two devices' rows stand: one after the other."""
    names = ["embed", "gemm", "norm", "softmax", "add"] * 8
    count = len(names)
    table = pl.DataFrame({"start": range(count), "end": range(1, count + 1), "name": names}).with_columns(
        continued=False,
        name=pl.col("name").cast(pl.Categorical),
        family=pl.when(name="embed").then(pl.lit("embedding")).otherwise(pl.lit("gemm")),
        launch_start=pl.col("start") - 1,
    )
    apart = pl.concat([table.gather_every(2), table.gather_every(2, 1)])
    one, other = marks._periods(table), marks._periods(apart)  # pyright: ignore[reportPrivateUsage]
    assert one is not None and other is not None
    assert one["start"].to_list()[:3] == [0, 5, 10] and one.equals(other)


def periods(
    *names: str, ends: dict[int, int] | None = None, continued: bool = False, together: int | None = None
) -> list[int] | None:
    """Where steps begin by the period of these kernels, which start one after the other."""
    starts = [n - (n == together) for n in range(len(names))]
    table = pl.DataFrame({"start": starts, "name": names}).with_columns(
        end=pl.Series([(ends or {}).get(n, n + 1) for n in range(len(names))]),
        continued=pl.Series([continued, *[False] * (len(names) - 1)]),
        name=pl.col("name").cast(pl.Categorical),
        family=pl.when(name="embed").then(pl.lit("embedding")).otherwise(pl.lit("gemm")),
    )
    found = marks._periods(table)  # pyright: ignore[reportPrivateUsage]
    if found is None:
        return None
    assert found["complete"].to_list()[1:] == [True] * (found.height - 1)
    assert found["complete"][0] is (names[0] == "embed")  # else it began before the recording
    return found["start"].to_list()


def test_three_periods_of_four_kernels_are_enough() -> None:
    step = ("embed", "gemm", "norm", "add")
    assert periods(*step * 3) == [0, 4, 8]
    assert periods(*step * 3, continued=True) is None
    assert periods("add", *step * 3) == [0, 1, 5, 9]
    assert periods(*step * 3, ends={1: 20, 6: 22, 11: 30}) == [0, 4, 8]  # on other streams
    assert periods(*("embed", "gemm", "norm") * 4) is None
    assert periods(*step * 3, together=6) == [0, 4, 8]  # in the order of their rows


def device(
    *rows: tuple[int, int, int | None, int | None], streams: tuple[int | None, ...] = ()
) -> on_device.DeviceWork:
    """Kernels: start, end, when the launch began and returned."""
    kinds = {"start": pl.Int64, "end": pl.Int64, "launch_start": pl.Int64, "launch_end": pl.Int64}
    kernels = pl.DataFrame(rows, kinds, orient="row").with_columns(
        device=pl.lit(0, pl.Int64),
        stream=pl.Series(streams or [7] * len(rows), dtype=pl.Int64),
        family=pl.lit("gemm", FAMILY),
    )
    return on_device.work(kernels, None)


def test_what_begins_before_the_first_known_launch_is_no_backlog_and_what_begins_after_it_is() -> None:
    later = ((10, 20, 5, 6), (30, 40, 25, 26), (45, 50, None, None))
    done = device((8, 10, None, None), *later)
    assert (done.is_backlog.tolist(), done.launch.tolist()) == (
        [True, *[False] * 3],
        [on_device.EARLIEST, 5, 25, 25],
    )
    assert device((4, 10, None, None), *later).is_backlog.tolist() == [False] * 4


def test_of_streams_that_compute_as_long_the_first_that_is_known_is_the_main_one() -> None:
    rows = ((0, 10, 0, 1), (1, 11, 0, 1), (2, 12, 0, 1))
    assert device(*rows, streams=(None, 9, 8)).is_main.tolist() == [False, False, True]
    assert device(*rows, streams=(None, 9, None)).is_main.tolist() == [True, False, True]
    assert device(*rows[:2], streams=(None, 9)).is_main.tolist() == [False, True]


@pytest.mark.parametrize(("begins", "told"), [(1_000_006, True), (1_000_005, False)])
def test_a_device_seems_busy_where_work_begins_a_millisecond_after_its_launch_returned(
    begins: int, told: bool
) -> None:
    done = device((begins, begins + 10, 5, 6), (begins + 20, begins + 30, begins + 18, begins + 19))
    found = on_device._unrecorded_end(done, numbers(0, begins + 15), numbers(begins + 15, begins + 40))  # pyright: ignore[reportPrivateUsage]
    assert (found is not None) is told


def test_a_step_s_first_work_was_launched_from_its_start_to_before_its_end() -> None:
    done = device((12, 13, 10, 11), (22, 23, 20, 21), (32, 33, 30, 31))
    first = on_device._first_work(done, 10, 20)  # pyright: ignore[reportPrivateUsage]
    second = on_device._first_work(done, 20, 30)  # pyright: ignore[reportPrivateUsage]
    assert first is not None and second is not None
    assert (first.start, first.waits, second.start, second.waits) == (12, 1, 22, 1)
    assert on_device._first_work(done, 11, 20) is None  # pyright: ignore[reportPrivateUsage]
    late = device((40, 41, 20, 21), (35, 36, 30, 31))
    found = on_device._first_work(late, 20, 30)  # pyright: ignore[reportPrivateUsage]
    assert found is not None and found.start == 40  # what the next step launched began sooner


def test_steps_go_on_where_calls_are_no_longer_recorded() -> None:
    """All that ran after the last recorded call counted in the step of that call: one step took three."""
    rows = [(10 * n + 1, 10 * n + 9, 10 * n if n < 40 else None, 10 * n + 1) for n in range(60)]
    marks = pl.DataFrame(
        {"start": range(0, 600, 100), "end": range(100, 700, 100), "begins": True},
        {"start": pl.Int64, "end": pl.Int64, "begins": pl.Boolean},
    )
    moved = on_device.moved(marks, device(*rows))
    assert moved["start"].to_list() == [0, 100, 200, 300, 400, 500]
    # One more without a launch, behind all calls, is of the step before it.
    few = device(*rows[:40], (401, 409, None, None))
    assert few.launch.tolist()[-1] == rows[39][2]


@pytest.mark.parametrize(("steps", "main"), [(3, 7), (2, 9)])
def test_what_alone_computes_longer_than_all_else_in_several_steps_makes_no_main_stream(
    steps: int, main: int
) -> None:
    rows = {"start": [0, 10, 20, 5], "end": [9, 19, 29, 34], "stream": [7, 7, 7, 9], "device": [0] * 4}
    done = on_device.work(pl.DataFrame(rows), None, steps)
    assert done.start[done.is_main].tolist() == ([0, 10, 20] if main == 7 else [5])


@pytest.mark.parametrize(
    ("asked", "first", "num_steps", "fills"),
    [
        (30, 60, 5, True),
        (0, 91, 5, False),
        (30, 60, 3, True),
        (30, 60, 2, False),
        (30, 62, 5, False),
        (8, 60, 5, True),
        (7, 60, 5, False),
    ],
)
def test_a_first_step_whose_device_has_no_work_yet_tells_nothing_of_the_others(
    asked: int, first: int, num_steps: int, fills: bool
) -> None:
    """The host takes 40 ns and calls a kernel of 60 after `asked`, the first time one of `first` ns: the wait
    for the first is paid once, and hidden in all other steps."""
    host = np.arange(num_steps) * 40
    length = np.r_[first, np.full(num_steps - 1, 60)]
    end = asked + 1 + np.cumsum(length)
    rows = {"start": end - length, "end": end, "launch_start": host + asked, "launch_end": host + asked}
    done = on_device.work(pl.DataFrame(rows | {"device": 0, "stream": 7}), None, num_steps)
    steps = pl.DataFrame({"start": host, "end": host + 40, "begins": True})
    assert on_device.moved(steps, done)["fills"].to_list() == [fills] + [False] * (num_steps - 1)


@pytest.mark.parametrize(("before", "fills"), [(10, True), (30, False)])
def test_a_first_step_waits_behind_its_first_work_too(before: int, fills: bool) -> None:
    """A batch is copied first, and what the host does then is hidden in all steps but the first: the device
    idles 21 ns there. A kernel that runs for as long leaves it as long as the others."""
    host = np.arange(5) * 40
    launch = np.c_[host + 2, host + 32].ravel()
    length = np.tile([before, 60 - before], 5)
    ends: list[int] = []
    for at, ns in zip(launch, length, strict=True):
        ends.append(max(int(at) + 1, ends[-1] if ends else 0) + int(ns))
    end = np.array(ends)
    rows = {"start": end - length, "end": end, "launch_start": launch, "launch_end": launch}
    done = on_device.work(pl.DataFrame(rows | {"device": 0, "stream": 7}), None, 5)
    steps = pl.DataFrame({"start": host, "end": host + 40, "begins": True})
    assert on_device.moved(steps, done)["fills"].to_list() == [fills] + [False] * 4


def test_a_first_step_waits_for_a_copy_beside_its_kernels() -> None:
    """Batches are copied on a stream of their own, in 50 ns each, and kernels of 30 wait for them: the copies
    follow each other, so that only the first step takes 80 ns."""
    host = np.arange(5) * 10
    copied = 50 * (1 + np.arange(5))
    kernels = {"start": copied, "end": copied + 30, "launch_start": host + 2, "launch_end": host + 3}
    copies = {"start": copied - 50, "end": copied, "launch_start": host, "launch_end": host + 1}
    tables = [
        pl.DataFrame(kernels | {"device": 0, "stream": 7}),
        pl.DataFrame(copies | {"device": 0, "stream": 9}),
    ]
    steps = pl.DataFrame({"start": host, "end": host + 10, "begins": True})
    moved = on_device.moved(steps, on_device.work(*tables, 5))
    assert (moved["end"] - moved["start"]).to_list() == [80, 50, 50, 50, 50]
    assert moved["fills"].to_list() == [True, False, False, False, False]


@pytest.mark.parametrize(("first", "fills"), [(60, True), (61, True), (62, False)])
def test_kernels_of_a_first_step_that_fills_the_device_may_be_a_little_longer(
    first: int, fills: bool
) -> None:
    """The host takes 60 ns per step and so does the device, 30 later: only the first step takes 90."""
    host = np.arange(5) * 60
    length = np.array([first, 60, 60, 60, 60])
    start = np.maximum(host + 30, np.r_[0, (host + 30 + length)[:-1]])
    rows = {"start": start, "end": start + length, "launch_start": host + 29, "launch_end": host + 29}
    done = on_device.work(pl.DataFrame(rows | {"device": 0, "stream": 7}), None, 5)
    steps = pl.DataFrame({"start": host, "end": host + 60, "begins": True})
    moved = on_device.moved(steps, done)
    assert int((moved["end"] - moved["start"])[0]) == 30 + first
    assert moved["fills"].to_list() == [fills] + [False] * 4


@pytest.mark.parametrize(("host", "fills"), [([40, 20, 38, 19, 40], True), ([90, 60, 60, 60, 60], False)])
def test_a_first_step_fills_the_device_however_the_host_s_steps_vary(host: list[int], fills: bool) -> None:
    """The device takes 60 ns per step, and the first time waits for 30: the others hide as much where the
    host is ahead of them by more."""
    until = np.cumsum(host)
    start = until - np.array(host)
    ends = [90]
    for at in start[1:]:
        ends.append(max(int(at) + 1, ends[-1]) + 60)
    end = np.array(ends)
    rows = {"start": end - 60, "end": end, "launch_start": start, "launch_end": start}
    rows["launch_start"] = np.r_[29, start[1:]]
    rows["launch_end"] = rows["launch_start"]
    done = on_device.work(pl.DataFrame(rows | {"device": 0, "stream": 7}), None, 5)
    steps = pl.DataFrame({"start": start, "end": until, "begins": True})
    moved = on_device.moved(steps, done)
    assert int((moved["end"] - moved["start"])[0]) == 90
    assert moved["fills"].to_list() == [fills] + [False] * 4


@pytest.mark.parametrize(("last", "fills"), [(60, True), (66, True), (67, False), (54, False)])
def test_of_three_steps_the_last_is_like_the_second_where_the_first_is_left_out(
    last: int, fills: bool
) -> None:
    host, length = np.arange(3) * 40, np.array([60, 60, last])
    end = 31 + np.cumsum(length)
    rows = {"start": end - length, "end": end, "launch_start": host + 30, "launch_end": host + 30}
    done = on_device.work(pl.DataFrame(rows | {"device": 0, "stream": 7}), None, 3)
    steps = pl.DataFrame({"start": host, "end": host + 40, "begins": True})
    assert on_device.moved(steps, done)["fills"].to_list() == [fills, False, False]
