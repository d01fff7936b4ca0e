"""Steps are as long as their work: where their boundaries lie when the host runs ahead of the device, which
of them count in means, and that they tile whatever was marked and launched."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nsys_exports
from kineto_files import call, head, kernel, operator, step, trace, written
from lostflops.errors import StepsOverlap
from lostflops.ingest import job
from lostflops.ingest.steps import counted
from lostflops.ingest.steps.marks import find_steps
from lostflops.report.first_page.page import Page, page
from lostflops.session import Session
from lostflops.tables import FAMILY, LEFT_OUT, NAME

Row = dict[str, Any]
MS = 1_000_000


def marks(*rows: tuple[str, int, int], thread: int = 1) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series([r[0] for r in rows], dtype=NAME),
            "start": pl.Series([r[1] for r in rows], dtype=pl.Int64),
            "end": pl.Series([r[2] for r in rows], dtype=pl.Int64),
            "thread": [thread] * len(rows),
        }
    )


def profiled(*starts: int) -> pl.DataFrame:
    """Profiler steps that follow each other; the last number is where the last one ends."""
    return marks(*((f"ProfilerStep#{n}", a, b) for n, (a, b) in enumerate(pairwise(starts))))


def ran(start: int, end: int, launch: int | None, stream: int = 7, **more: Any) -> Row:
    returned = None if launch is None else launch + 2
    return {
        "start": start,
        "end": end,
        "launch_start": launch,
        "launch_end": returned,
        "stream": stream,
        **more,
    }


def kernels(*rows: Row) -> pl.DataFrame:
    full = [
        {"family": "gemm", "name": "k", "continued": False, "device": 0, "thread": 1, **row} for row in rows
    ]
    ints = dict.fromkeys(
        ("start", "end", "launch_start", "launch_end", "stream", "device", "thread"), pl.Int64
    )
    return pl.DataFrame(full, schema={**ints, "family": FAMILY, "name": NAME, "continued": pl.Boolean})


def copies(*rows: Row) -> pl.DataFrame:
    full = [{"communication": False, "device": 0, **row} for row in rows]
    ints = dict.fromkeys(("start", "end", "launch_start", "launch_end", "stream", "device"), pl.Int64)
    return pl.DataFrame(full, schema={**ints, "communication": pl.Boolean})


def found(
    ranges: pl.DataFrame,
    work: pl.DataFrame | None,
    moved: pl.DataFrame | None = None,
    end: int = 10_000,
    operators: pl.DataFrame | None = None,
    start: int = 0,
) -> pl.DataFrame:
    steps = find_steps(ranges, operators, work, start, end, moved)
    assert (steps["end"] > steps["start"]).all()
    assert (steps["start"][1:] >= steps["end"][:-1]).all()
    assert steps["step"].is_unique().all()
    return steps


def spans(steps: pl.DataFrame) -> list[tuple[int, int]]:
    return steps.select("start", "end").rows()


def why(steps: pl.DataFrame) -> list[str | None]:
    return steps["left_out"].cast(pl.String).to_list()


# --- where boundaries lie
# ------------------------------------------------------------------------------------------


def test_a_host_that_waits_for_the_device_has_the_devices_steps() -> None:
    work = kernels(ran(12, 90, 10), ran(115, 190, 110))
    steps = found(profiled(0, 100, 200), work)
    assert spans(steps) == [(0, 100), (100, 200)]
    assert steps.select("host_start", "host_end").rows() == spans(steps)
    assert steps["amount"].to_list() == [1, 1]


def test_steps_of_a_host_that_runs_ahead_last_as_long_as_their_work() -> None:
    """Graphs of 1010 ns that are replayed every 11: the host is done before the second begins."""
    rows = [ran(5 + 1010 * n, 1015 + 1010 * n, 2 + 11 * n) for n in range(4)]
    steps = found(profiled(0, 11, 22, 33, 44), kernels(*rows))
    assert spans(steps) == [(0, 1015), (1015, 2025), (2025, 3035), (3035, 4045)]
    assert (steps["host_end"] - steps["host_start"]).to_list() == [11] * 4
    assert steps["complete"].all() and why(steps) == [None] * 4


def test_the_last_step_ends_with_its_work_and_no_later_than_the_recording() -> None:
    work = kernels(ran(10, 80, 5), ran(80, 150, 60), ran(150, 230, 90))
    assert spans(found(profiled(0, 50, 100), work))[-1] == (80, 230)
    assert spans(found(profiled(0, 50, 100), work, end=220))[-1] == (80, 220)


def test_work_belongs_to_the_step_in_which_another_thread_launched_it() -> None:
    work = kernels(ran(10, 60, 5), ran(60, 140, 40, thread=2), ran(140, 190, 105))
    assert spans(found(profiled(0, 100, 200), work)) == [(0, 140), (140, 200)]


def test_work_before_a_second_recording_in_the_file_is_no_step_s_before_the_pause() -> None:
    marked = marks(("ProfilerStep#1", 0, 100), ("ProfilerStep#2", 5000, 5100))
    work = kernels(ran(10, 90, 5), ran(4950, 5005, None), ran(5020, 5080, 5010))
    assert spans(found(marked, work)) == [(0, 100), (5005, 5100)]


def test_a_launch_that_begins_in_a_step_and_returns_in_the_next_is_of_the_first() -> None:
    late = {**ran(120, 130, 99), "launch_end": 125}
    assert spans(found(profiled(0, 100, 200), kernels(ran(10, 90, 5), late, ran(140, 190, 135)))) == [
        (0, 130),
        (130, 200),
    ]


@pytest.mark.parametrize("until", [130, 400, 5_000])
def test_a_copy_on_a_stream_of_its_own_drags_no_boundary(until: int) -> None:
    """A checkpoint drains to the host while the next steps compute."""
    work = kernels(ran(10, 110, 5), ran(125, 210, 105), ran(215, 300, 205))
    drains = copies(ran(111, until, 99, stream=20))
    assert spans(found(profiled(0, 100, 200, 300), work, drains)) == [(0, 110), (110, 210), (210, 300)]


def test_a_copy_on_the_stream_that_computes_decides_as_a_kernel_does() -> None:
    work = kernels(ran(10, 90, 5), ran(150, 195, 105))
    assert spans(found(profiled(0, 100, 200), work, copies(ran(90, 140, 80)))) == [(0, 140), (140, 200)]


def test_communication_that_runs_under_the_next_steps_compute_is_cut_at_its_beginning() -> None:
    talks = {"stream": 20, "family": "communication"}
    work = [
        row
        for n in range(3)
        for row in (
            ran(10 + 100 * n, 105 + 100 * n, 5 + 100 * n),
            ran(100 * n + 60, 100 * n + 170, 100 * n + 50, **talks),
        )
    ]
    steps = found(profiled(0, 100, 200, 300), kernels(*work))
    assert spans(steps) == [(0, 110), (110, 210), (210, 305)]


def test_communication_that_the_next_step_waits_for_belongs_to_the_step_that_launched_it() -> None:
    talks = {"stream": 20, "family": "communication"}
    work = [
        row
        for n in range(3)
        for row in (
            ran(50 + 100 * n, 110 + 100 * n, 5 + 50 * n),
            ran(100 * n + 110, 100 * n + 148, 50 * n + 7, **talks),
        )
    ]
    assert spans(found(profiled(0, 50, 100, 150), kernels(*work))) == [(0, 148), (148, 248), (248, 348)]


def test_work_without_a_launch_is_of_its_predecessors_step() -> None:
    work = kernels(ran(10, 90, 5), ran(90, 130, None), ran(135, 190, 104), ran(190, 210, None))
    assert spans(found(profiled(0, 100, 200), work)) == [(0, 130), (130, 210)]


def test_where_most_launches_are_missing_the_hosts_marks_stay() -> None:
    work = kernels(ran(10, 130, 5), ran(130, 170, None), ran(170, 250, None))
    steps = found(profiled(0, 100, 200), work)
    assert spans(steps) == [(0, 100), (100, 200)]
    assert steps["amount"].to_list() == [1, 2]  # by where they begin


def test_work_that_waited_in_the_queue_when_the_recording_began_lacks_no_launches() -> None:
    backlog = [ran(100 * n, 100 * n + 100, None) for n in range(9)]
    own = [ran(900, 1000, 5), ran(1000, 1100, 15), ran(1100, 1200, 25)]
    steps = found(profiled(0, 10, 20, 30), kernels(*backlog, *own), end=1200)
    assert spans(steps) == [(900, 1000), (1000, 1100), (1100, 1200)]
    assert steps["amount"].to_list() == [1, 1, 1]


def test_work_that_ran_before_the_first_known_launch_is_no_backlog() -> None:
    rows = [ran(100 * n, 100 * n + 90, None) for n in range(9)]
    steps = found(profiled(0, 300, 600, 1000), kernels(*rows, ran(910, 1000, 905)), end=1000)
    assert spans(steps) == [(0, 300), (300, 600), (600, 1000)]


def test_a_main_stream_without_launches_is_busy_with_the_step_in_which_it_runs() -> None:
    rows = [ran(100 * n + 10, 100 * n + 90, None) for n in range(3)]
    beside = [
        ran(100 * n + 10 * m, 100 * n + 10 * m + 5, 100 * n + 5, stream=8) for n in range(3) for m in (2, 4)
    ]
    steps = found(profiled(0, 100, 200, 300), kernels(*rows, *beside))
    assert spans(steps) == [(0, 100), (100, 200), (200, 300)]


def test_steps_in_which_nothing_was_launched_stay_where_the_host_was() -> None:
    work = kernels(ran(10, 90, 5), ran(215, 290, 205))
    assert spans(found(profiled(0, 100, 200, 300), work)) == [(0, 100), (100, 200), (200, 300)]


def test_a_step_that_holds_nothing_while_the_device_is_behind_takes_no_time() -> None:
    work = kernels(ran(10, 250, 5), ran(250, 290, 205))
    steps = found(profiled(0, 100, 200, 300), work)
    assert spans(steps) == [(0, 250), (250, 300)] and steps["step"].to_list() == [0, 2]


def test_optimizers_ends_on_the_host_are_moved_to_where_the_device_gets_there() -> None:
    updates = marks(*(("Optimizer.step#AdamW.step", 90 + 100 * n, 100 + 100 * n) for n in range(3)))
    work = kernels(*(ran(20 + 130 * n, 150 + 130 * n, 5 + 100 * n) for n in range(3)), ran(420, 440, 310))
    steps = found(updates, work, start=3, end=440)
    assert spans(steps) == [(3, 150), (150, 280), (280, 410), (410, 440)]
    assert steps["complete"].to_list() == [False, True, True, False]
    assert why(steps) == ["recording began in it", None, None, "recording ended in it"]


# --- the device was behind when the recording began
# ------------------------------------------------------------------------------------------


def test_the_first_step_begins_when_what_was_launched_before_the_recording_has_ended() -> None:
    work = kernels(
        ran(1, 40, None), ran(40, 70, None), ran(70, 170, 5), ran(170, 270, 55), ran(270, 370, 105)
    )
    steps = found(profiled(0, 50, 100, 150), work)
    assert spans(steps) == [(70, 170), (170, 270), (270, 370)]
    assert why(steps) == ["device was behind", None, None] and steps["complete"].all()


def test_rows_of_the_last_microseconds_before_a_step_make_it_no_less_of_one() -> None:
    work = kernels(ran(1, 3, None), ran(10, 900, 5), ran(1_010, 1_900, 1_005))
    steps = found(profiled(0, 1_000, 2_000), work)
    assert spans(steps) == [(3, 1_000), (1_000, 2_000)] and why(steps) == [None, None]


def test_work_that_waits_a_millisecond_for_nothing_waits_for_work_that_was_not_recorded() -> None:
    work = kernels(ran(3 * MS, 4 * MS, 5), ran(4 * MS, 5 * MS, 2 * MS + 5), ran(5 * MS, 6 * MS, 3 * MS))
    steps = found(profiled(0, 2 * MS, 3 * MS - 5, 4 * MS), work, end=9 * MS)
    assert spans(steps)[0] == (3 * MS, 4 * MS) and why(steps)[0] == "device was behind"
    sooner = kernels(ran(MS, 4 * MS, 5), ran(4 * MS, 5 * MS, 2 * MS + 5))
    assert spans(found(profiled(0, 2 * MS, 4 * MS), sooner, end=9 * MS))[0] == (0, 4 * MS)


def test_work_that_waits_as_long_in_every_step_waits_for_none_that_was_not_recorded() -> None:
    """Pages of managed memory come before each kernel, and no call moves them."""
    work = kernels(*(ran((a + 6) * MS, (a + 50) * MS, a * MS + 5) for a in (0, 100, 200)))
    steps = found(profiled(0, 100 * MS, 200 * MS, 300 * MS), work, end=300 * MS)
    assert spans(steps)[0] == (0, 100 * MS) and why(steps) == [None] * 3


def test_a_first_copy_that_blocks_its_caller_as_in_no_other_step_tells_that_the_device_was_behind() -> None:
    def first(at: int, takes: int) -> Row:
        return {**ran(at + takes, at + takes + 1_000, at), "launch_end": at + takes + 1_500}

    rows = copies(first(MS, 36 * MS), first(101 * MS, MS), first(201 * MS, 2 * MS))
    work = kernels(*(ran(a * MS, (a + 50) * MS, a * MS - 9) for a in (40, 140, 240)))
    steps = found(profiled(0, 100 * MS, 200 * MS, 300 * MS), work, rows, end=400 * MS)
    assert spans(steps)[0] == (0, 100 * MS)  # since when it was free is not known
    assert why(steps) == ["device was behind", None, None]
    always = copies(*(first(a + MS, 36 * MS) for a in (0, 100 * MS, 200 * MS)))
    assert why(found(profiled(0, 100 * MS, 200 * MS, 300 * MS), work, always, end=400 * MS)) == [None] * 3


# --- marks that do not tile
# ------------------------------------------------------------------------------------------

UPDATE = "Optimizer.step#Adam.step"


def ends(*rows: tuple[str, int, int], more: pl.DataFrame | None = None, end: int = 300) -> list[int]:
    ranges = marks(*rows) if more is None else pl.concat([marks(*rows), more])
    return found(ranges, None, end=end)["end"].to_list()


def test_an_optimizer_that_calls_its_parents_step_ends_one_step() -> None:
    mine = "Optimizer.step#Mine.step"
    nested = [(mine, 80, 100), (UPDATE, 82, 97), (mine, 180, 200), (UPDATE, 182, 197)]
    assert ends(*nested) == [100, 200, 300]
    twice = [(UPDATE, 80, 100), (UPDATE, 82, 88), (UPDATE, 90, 97), (UPDATE, 180, 200)]
    assert ends(*twice) == [100, 200, 300]


def test_updates_that_cross_or_have_one_name_or_no_length_end_one_step_each() -> None:
    assert ends((UPDATE, 80, 95), (UPDATE, 90, 100), (UPDATE, 180, 200)) == [100, 200, 300]
    assert ends((UPDATE, 80, 100), (UPDATE, 80, 100), (UPDATE, 180, 200)) == [100, 200, 300]
    assert ends((UPDATE, 100, 100), (UPDATE, 100, 100), (UPDATE, 200, 200)) == [100, 200, 300]


def test_updates_of_another_thread_end_no_steps() -> None:
    others = marks((UPDATE, 85, 90), (UPDATE, 150, 151), thread=2)
    assert ends((UPDATE, 80, 100), (UPDATE, 180, 200), more=others) == [100, 200, 300]


def test_marks_of_no_length_last_to_the_next_one() -> None:
    steps = found(marks(("step 3", 10, 10), ("step 4", 110, 110), ("step 5", 215, 215)), None, end=300)
    assert spans(steps) == [(10, 110), (110, 215)]


def test_of_marks_that_cross_each_begins_a_step() -> None:
    steps = found(marks(("step 3", 10, 120), ("step 4", 100, 230), ("step 5", 200, 290)), None, end=300)
    assert spans(steps) == [(10, 100), (100, 200), (200, 290)]


def test_marks_with_one_name_on_two_threads_are_those_of_one() -> None:
    one = marks(("train_step", 10, 100), ("train_step", 100, 200))
    two = marks(("train_step", 12, 99), ("train_step", 103, 201), thread=2)
    assert spans(found(pl.concat([two, one]), None, end=300)) == [(10, 100), (100, 200)]


def test_steps_that_overlap_or_share_a_number_are_an_error() -> None:
    def judged(*rows: tuple[int, int, int]) -> None:
        counted.judged(table(*({"step": n, "start": a, "end": b} for n, a, b in rows)))

    judged((1, 0, 10), (2, 10, 20))
    for wrong in (
        [(1, 0, 10), (2, 9, 20)],
        [(1, 0, 10), (1, 10, 20)],
        [(1, 0, 10), (2, 10, 10)],
    ):
        with pytest.raises(StepsOverlap, match="steps of rank 0 overlap or share a number"):
            judged(*wrong)


# --- a last step that is none
# ------------------------------------------------------------------------------------------


def layers(step_starts: list[int], many: int, length: int = 8) -> list[Row]:
    return [
        ran(a + 10 * i + 2, a + 10 * i + 2 + length, a + 10 * i) for a in step_starts for i in range(many)
    ]


def test_a_step_in_which_the_job_ended_is_a_stub() -> None:
    rows = layers([0, 100, 200], 9) + layers([300], 2)
    steps = found(profiled(0, 100, 200, 300, 325), kernels(*rows))
    assert why(steps) == [None, None, None, "job ended in it"]
    assert steps["complete"].to_list() == [True, True, True, False]


def test_two_whole_steps_and_a_stub_are_told_apart() -> None:
    rows = layers([0, 100], 9) + layers([200], 1)
    assert why(found(profiled(0, 100, 200, 204), kernels(*rows))) == [None, None, "job ended in it"]
    ops = pl.DataFrame({"start": [*range(0, 200, 10), 201], "end": [*range(8, 208, 10), 203], "thread": 1})
    of_host = find_steps(profiled(0, 100, 200, 204), ops.with_columns(name=pl.lit("op")), None, 0, 204)
    assert why(of_host) == [None, None, "job ended in it"]
    assert of_host["amount"].to_list() == [10, 10, 1]


def test_a_step_after_one_that_warms_up_is_no_stub() -> None:
    assert why(found(profiled(0, 400, 500), kernels(*layers([0], 30), *layers([400], 9)))) == [None, None]


def test_a_last_step_that_does_less_each_time_is_a_step() -> None:
    rows = layers([0], 9) + layers([100], 5) + layers([200], 9) + layers([300], 5)
    assert why(found(profiled(0, 100, 200, 300, 400), kernels(*rows))) == [None] * 4


def test_a_last_step_that_waits_at_its_end_was_cut() -> None:
    rows = layers([0, 100, 200], 9)
    assert why(found(profiled(0, 100, 200, 300), kernels(*rows))) == [None] * 3
    steps = found(profiled(0, 100, 200, 420), kernels(*rows))
    assert why(steps) == [None, None, "waits at its end"] and not steps["complete"][2]


def test_a_collective_that_hangs_when_another_rank_has_died_is_in_no_mean() -> None:
    rows = layers([0, 100, 200], 9)
    rows.append(ran(291, 5_000, 280, stream=20, family="communication"))
    assert why(found(profiled(0, 100, 200, 4_990), kernels(*rows)))[-1] == "waits at its end"


@pytest.mark.parametrize(
    ("many", "reason"), [(5, "recording ended in it"), (4, None)], ids=["another step", "the end of a job"]
)
def test_a_step_in_which_the_device_hangs_while_the_host_launches_the_next_is_cut(
    many: int, reason: str | None
) -> None:
    """Ten operators a step; the device never gets to those of the last."""
    rows = [ran(100 * n + 10 * m, 100 * n + 10 * m + 9, 20 * n + m) for n in range(3) for m in range(10)]
    calls = [20 * n + m for n in range(3) for m in range(10)] + [60 + m for m in range(many)]
    operators = pl.DataFrame(
        {"start": calls, "end": [at + 1 for at in calls], "name": ["aten::mm"] * len(calls)}
    )
    steps = found(profiled(0, 20, 40, 60, 80), kernels(*rows), end=5_000, operators=operators)
    assert steps["step"].to_list() == [0, 1, 2] and why(steps) == [None, None, reason]
    hanging = found(profiled(0, 20, 40, 60, 4_000), kernels(*rows), end=5_000, operators=operators)
    assert why(hanging)[:3] == [None, None, reason] and not hanging["complete"][3]


def test_a_mark_that_was_open_when_the_recording_ended_is_incomplete() -> None:
    ranges = profiled(0, 100, 200, 290).with_columns(complete=pl.Series([True, True, False]))
    assert why(found(ranges, kernels(*layers([0, 100, 200], 9)))) == [None, None, "recording ended in it"]


# --- outliers
# ------------------------------------------------------------------------------------------


def table(*rows: Row) -> pl.DataFrame:
    full = [{"rank": 0, "complete": True, "left_out": None, "amount": 50, **row} for row in rows]
    return pl.DataFrame(full, schema_overrides={"rank": pl.Int32, "left_out": LEFT_OUT, "amount": pl.Int64})


def lasting(*lengths: int, rank: int = 0, amounts: dict[int, int] | None = None) -> list[Row]:
    to = np.cumsum(lengths).tolist()
    return [
        {"rank": rank, "step": n, "start": b - a, "end": b, "amount": (amounts or {}).get(n, 50)}
        for n, (a, b) in enumerate(zip(lengths, to, strict=True))
    ]


def out(*lengths: int, **more: Any) -> list[int]:
    judged = counted.judged(table(*lasting(*lengths, **more)))
    return judged.filter(pl.col("left_out").is_not_null())["step"].to_list()


def test_one_step_of_240_among_steps_of_14_to_17_is_an_outlier_wherever_it_stands() -> None:
    usual = [14, 15, 17, 16, 15, 14]
    for at in range(7):
        assert out(*usual[:at], 240, *usual[at:]) == [at]
    assert out(15, 16, 240, 14, 17) == [2]


def test_steps_of_many_lengths_have_no_outlier() -> None:
    assert out(10, 14, 19, 12, 31, 11, 22, 16) == []
    assert out(10, 11, 12, 13, 21) == []


@pytest.mark.parametrize("period", [2, 3, 4, 8, 10])
def test_what_comes_back_is_what_the_job_costs(period: int) -> None:
    for first in range(period):
        assert out(*(90 if n % period == first else 10 for n in range(4 * period))) == []


def test_a_loader_that_stalls_every_fourth_step_is_the_disease_and_no_outlier() -> None:
    assert out(10, 370, 10, 11, 10, 365, 12, 10) == []
    assert out(370, 10, 10, 11, 365) == []


def test_an_update_after_some_micro_batches_is_no_outlier_of_a_short_recording() -> None:
    assert out(10, 11, 10, 35, amounts={3: 90}) == []
    assert out(10, 11, 10, 35, 10, 11, amounts={3: 90}) == []
    assert out(*[10] * 9, 35, *[11] * 9, amounts={9: 90}) == [9]


def test_a_first_step_that_warms_up_is_an_outlier_where_enough_follow() -> None:
    assert out(900, 10, 11, 10, 12, amounts={0: 400}) == [0]
    assert out(900, 10, 11, amounts={0: 400}) == []


def logged(*durations: int, recorded: range = range(0)) -> pl.DataFrame:
    steps = range(len(durations))
    return pl.DataFrame(
        {"rank": 0, "step": n, "duration": durations[n], "recorded": n in recorded} for n in steps
    )


@pytest.mark.parametrize(
    ("log", "left_out"),
    [
        (logged(*[10] * 200), [2]),
        (logged(*[10] * 20), []),  # too short to tell
        (logged(*[10] * 200, 100), [2]),  # 90 of 2,100 ms
        (logged(*[10, 10, 10, 10, 100] * 40), []),  # what the job costs
        (None, []),
    ],
    ids=["none as long", "a short log", "one as long", "many as long", "no log"],
)
def test_the_step_log_tells_whether_a_long_step_that_does_more_is_rare(
    log: pl.DataFrame | None, left_out: list[int]
) -> None:
    """The third of five steps holds an evaluation, so it does more than the others."""
    steps = table(*lasting(10, 11, 100, 10, 11, amounts={2: 500}))
    judged = counted.judged(steps, log)
    assert judged.filter(pl.col("left_out") == "outlier")["step"].to_list() == left_out


@pytest.mark.parametrize(("usual", "left_out"), [(22, []), (21, [3])])
def test_a_step_as_long_as_those_that_were_not_recorded_is_no_outlier(
    usual: int, left_out: list[int]
) -> None:
    """Four of five took batches that workers had ready when the recording began; a third of the job's other
    steps are as long as the fifth."""
    steps = table(*lasting(7, 6, 7, 22, 7))
    judged = counted.judged(steps, logged(*[1, 2, 3, *[usual, 5, 5] * 10]))
    assert judged.filter(pl.col("left_out") == "outlier")["step"].to_list() == left_out


def test_steps_that_are_long_too_often_are_no_outliers() -> None:
    assert out(10, 90, 11, 10, 95, 10, 12, 99, 10, 11) == []
    assert out(*[10] * 5, 90, *[11] * 3, 95, *[10] * 6) == [5, 9]


def test_a_step_in_which_nothing_was_launched_is_left_out() -> None:
    assert out(10, 11, 2, 12, 10, 11, amounts={2: 0}) == [2]
    half = dict.fromkeys(range(0, 8, 2), 0)
    assert out(1, 10, 1, 10, 1, 10, 1, 10, amounts=half) == []


def test_ranks_leave_out_the_same_steps() -> None:
    cut = lasting(10, 10, 11, 10, 11, 12, rank=1)
    cut[0] |= {"complete": False, "left_out": "recording began in it"}
    judged = counted.judged(table(*lasting(10, 11, 12, 240, 10, 11), *cut))
    reasons = judged.select("rank", "step", pl.col("left_out").cast(pl.String)).drop_nulls().rows()
    assert reasons == [
        (0, 0, "left out on another rank"),
        (0, 3, "outlier"),
        (1, 0, "recording began in it"),
        (1, 3, "outlier"),
    ]


def test_a_rank_that_died_takes_its_last_step_from_all() -> None:
    judged = counted.judged(table(*lasting(10, 11, 12), *lasting(10, 11, rank=1)))
    assert judged.filter(pl.col("left_out").is_not_null()).select("rank", "step").rows() == [(0, 2)]


def test_ranks_that_were_recorded_at_other_steps_are_judged_by_themselves() -> None:
    late = [{**row, "step": row["step"] + 40} for row in lasting(10, 11, 300, 12, 10, rank=1)]
    judged = counted.judged(table(*lasting(10, 11, 12), *late))
    assert judged.filter(pl.col("left_out").is_not_null()).select("rank", "step").rows() == [(1, 42)]


# --- whole traces
# ------------------------------------------------------------------------------------------


def ahead(rank: int, work: float, steps: int = 6, host: float = 1500.0) -> list[Row]:
    """A rank that runs ahead: each step computes for `work` µs, then all-reduces until all are there."""
    events: list[Row] = []
    slowest, correlation = 15_000.0, 0
    for n in range(steps):
        at = 1000 + n * host
        events += [step(n, at, host), operator("aten::mm", at + 10, 100)]
        begin = 1000 + n * slowest + 200
        for begins, lasts, name in (
            (begin, work, "ampere_sgemm_128x64_nn"),
            (
                begin + work,
                slowest - work,
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
            ),
        ):
            correlation += 1
            events.append(call(at + 20 + 30 * (correlation % 2), 5, correlation))
            events.append(kernel(begins, lasts, correlation, name, stream=7))
    return events


def opened(folder: Path, *ranks: list[Row]) -> Page:
    files = [
        written(folder / f"rank{n}.json", trace(events, head(n, len(ranks))))
        for n, events in enumerate(ranks)
    ]
    shown = job.open(files, output=folder / "run")
    return page(shown, Session(shown))


def test_ranks_that_run_ahead_wait_for_the_one_that_is_slower(tmp_path: Path) -> None:
    """What it looks like by the host's marks: compute-bound steps of 1.5 ms."""
    shown = opened(tmp_path, *(ahead(rank, 14_500 if rank == 3 else 9_700) for rank in range(4)))
    assert shown.budget is not None
    lengths = (shown.steps["end"] - shown.steps["start"]).unique().sort().to_list()
    assert lengths[-2:] == [15_000_000, 15_200_000]
    assert shown.budget.mean == pytest.approx(15_000_000, rel=0.003)
    exposed = shown.budget.of("communication") / shown.budget.ns
    assert exposed == pytest.approx((3 * 5_300 + 500) / (4 * 15_000), abs=0.003)
    assert any(
        note.startswith("On average a step takes the CPU 1.50 ms and the GPU 15.0 ms") for note in shown.notes
    )
    assert shown.ledger["ns"].sum() == (shown.steps["end"] - shown.steps["start"]).sum()


def test_one_step_says_both_lengths(tmp_path: Path) -> None:
    shown = opened(tmp_path, ahead(0, 9_700, steps=1))
    (note,) = (note for note in shown.notes if "takes the CPU" in note)
    assert note.startswith("Step 0 takes the CPU 1.50 ms and the GPU 15.2 ms.")
    assert "other steps may be longer or shorter" in note
    assert not rates(shown)


def rates(shown: Page) -> list[str]:
    return [fact.name for fact in shown.facts.numbers if fact.name == "steps_per_second"]


def test_a_rate_is_told_of_steps_that_show_how_long_one_takes(tmp_path: Path) -> None:
    """Of several, of one in which host and device agree; not of one that the device was late in."""
    assert rates(opened(tmp_path, ahead(0, 9_700)))
    alone = [step(0, 1000, 15_000), call(1010, 5, 1), kernel(1050, 14_900, 1)]
    (tmp_path / "alone").mkdir()
    assert rates(opened(tmp_path / "alone", alone))
    (tmp_path / "behind").mkdir()
    behind = [step(0, 1000, 40_000), call(1010, 5, 1), kernel(100, 29_000, 7), kernel(29_200, 11_700, 1)]
    shown = opened(tmp_path / "behind", behind)
    assert any("still busy with earlier work" in note for note in shown.notes)
    assert not rates(shown)


def test_hosts_and_devices_that_agree_are_not_told(tmp_path: Path) -> None:
    shown = opened(tmp_path, ahead(0, 9_700, host=15_000))
    assert not [note for note in shown.notes if "takes the CPU" in note]


def pausing(*, at: int | None, steps: int = 8) -> list[Row]:
    """A host that waits for its device, steps of 15 ms, and one of 240 in which it does nothing."""
    events: list[Row] = []
    now = 1000.0
    for n in range(steps):
        lasts = 240_000.0 if n == at else 15_000.0
        events.append(step(n, now, lasts))
        events.append(operator("aten::mm", now + lasts - 15_000 + 10, 100))
        events.append(call(now + lasts - 15_000 + 20, 5, n + 1))
        events.append(kernel(now + lasts - 15_000 + 30, 14_900, n + 1))
        now += lasts
    return events


def test_an_outlier_is_named_with_its_cause_and_kept_out_of_the_mean(tmp_path: Path) -> None:
    shown = opened(tmp_path, pausing(at=3))
    assert shown.budget is not None and shown.budget.mean == 15_000_000
    assert shown.verdict.startswith("Bound by fp32 compute: 99.3 % of the 15.0 ms step")  # an sgemm
    (found,) = (f for f in shown.findings if f.name == "outlier-step")
    assert found.claim.startswith("Step 3 took 240 ms, 16 times the others; most of it is ")
    assert found.claim.endswith("It is left out of the mean.")
    assert found.size == 0 and found.gain == "unknown"
    assert (
        "Left out of the mean: step 3 (240 ms, 16 times the others). `--steps 0-7` counts them."
        in shown.notes
    )
    assert shown.ledger.filter(pl.col("step") == 3)["ns"].sum() == 240_000_000


def test_a_healthy_run_has_no_outlier(tmp_path: Path) -> None:
    shown = opened(tmp_path, pausing(at=None))
    assert not [f for f in shown.findings if f.name == "outlier-step"]
    assert not [note for note in shown.notes if "Left out" in note]


@pytest.mark.parametrize("form", [nsys_exports.sqlite, nsys_exports.folder])
def test_each_process_of_an_export_has_its_own_steps_on_the_devices_clock(form: Any, tmp_path: Path) -> None:
    """One process replays work of 10 times the host's step, the other waits for its device."""
    tables: dict[str, list[Row]] = {"CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": []}
    tables["NVTX_EVENTS"] = []
    for pid, pace, work in ((7, 100, 1_000), (8, 2_000, 1_900)):
        owner, correlation = nsys_exports.process(pid), 100 * pid
        for n in range(4):
            at, thread = 1_000 + pace * n, {"globalTid": owner | 8}
            begins = 1_020 + max(pace, work) * n
            tables["NVTX_EVENTS"].append(nsys_exports.push(at, at + pace - 1, f"step {n}", **thread))
            tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
                nsys_exports.call(at + 10, at + 15, correlationId=correlation + n, **thread)
            )
            tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                nsys_exports.kernel(
                    begins, begins + work, correlationId=correlation + n, globalPid=owner, deviceId=pid - 7
                )
            )
    path = tmp_path / ("two.sqlite" if form is nsys_exports.sqlite else "two_pqtdir")
    steps = job.open([form(path, tables)]).table("steps")
    assert steps is not None
    starts = dict(steps.sort("rank", "start").collect().group_by("rank").agg("start").iter_rows())
    first = starts[0][0]
    assert [at - first for at in starts[0]] == [0, 1_020, 2_020, 3_020]
    assert [at - first for at in starts[1]] == [0, 2_000, 4_000, 6_000]


# --- whatever was marked and launched
# ------------------------------------------------------------------------------------------


@st.composite
def recordings(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    starts = np.cumsum([0, *draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))]).tolist()
    rows: list[Row] = []
    for stream in (7, 20):
        free, launch = draw(st.integers(0, 40)), draw(st.integers(-20, 40))
        for _ in range(draw(st.integers(0, 12))):
            launch += draw(st.integers(0, 30))
            begins = max(free, launch) + draw(st.integers(0, 9))
            free = begins + draw(st.integers(0, 70))
            family = draw(st.sampled_from(["gemm", "communication"])) if stream == 20 else "gemm"
            known = draw(st.integers(0, 9)) > 1
            rows.append(ran(begins, free, launch if known else None, stream, family=family))
    side = [
        ran(a, a + b, a - 3, 30)
        for a, b in draw(st.lists(st.tuples(st.integers(3, 200), st.integers(0, 300)), max_size=3))
    ]
    return profiled(*starts), kernels(*rows), copies(*side)


# One kernel computes longer than all else. Even so, a stream that only communicates is not the main one.
ONE_COMPUTES = [
    ran(1, 2, 0, 7, family="gemm"),
    ran(1, 3, None, 20, family="communication"),
]


@settings(deadline=None, max_examples=200)
@given(recordings())
@example((profiled(0, 1, 2, 3), kernels(*ONE_COMPUTES), copies()))
def test_steps_tile_and_hold_what_they_launched(
    recorded: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    ranges, work, moved = recorded
    end = max(int(t["end"].max() or 0) for t in (ranges, work, moved))  # pyright: ignore[reportArgumentType]
    steps = found(ranges, work, moved, end=end)
    if steps.is_empty():
        return
    if steps["source"].to_list() == ["whole trace"]:  # where marks hold no work they mark no step
        return
    assert (steps["start"][1:] == steps["end"][:-1]).all()  # they tile
    assert steps["start"][0] >= ranges["start"][0]
    assert steps["end"][-1] >= ranges["end"][-1]
    assert (steps["start"] >= steps["host_start"]).all()
    counted.judged(steps.with_columns(rank=pl.lit(0, pl.Int32)))
    launched = work.filter(
        pl.col("launch_start").is_between(ranges["start"][0], ranges["end"][-1], closed="left"),
        pl.col("end") > pl.col("start"),
        pl.col("family") == "gemm",
        pl.col("stream") == 7,
    )
    everything = pl.concat(
        [work.select("launch_start", "end", "start"), moved.select("launch_start", "end", "start")]
    )
    everything = everything.filter(pl.col("end") > pl.col("start"))
    main = work.filter(pl.col("family") == "gemm", pl.col("end") > pl.col("start"))
    alone = main["stream"].unique().to_list() == [7]
    if alone and 2 * everything["launch_start"].null_count() <= everything.height and launched.height:
        assert launched["end"].max() <= steps["end"][-1]
        for row in steps.iter_rows(named=True):
            mine = launched.filter(
                pl.col("launch_start").is_between(row["host_start"], row["host_end"], closed="left")
            )
            assert mine.is_empty() or (
                mine["end"].max() <= row["end"] and mine["start"].min() >= row["start"]
            )
