"""Where a rank's steps are found: the best mark wins, and what was cut is called incomplete."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from lostflops.ingest.steps.marks import find_steps, outside
from lostflops.tables import FAMILY, NAME

Rows = list[tuple[Any, ...]]


def ranges(*rows: tuple[str, int, int], thread: int = 1) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series([r[0] for r in rows], dtype=NAME),
            "start": [r[1] for r in rows],
            "end": [r[2] for r in rows],
            "thread": [thread] * len(rows),
        }
    )


def kernels(*rows: tuple[str, str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series([r[0] for r in rows], dtype=NAME),
            "family": pl.Series([r[1] for r in rows], dtype=FAMILY),
            "start": [r[2] for r in rows],
            "end": [r[3] for r in rows],
            "continued": [False] * len(rows),
        }
    )


def found(
    of_ranges: pl.DataFrame | None = None,
    work: pl.DataFrame | None = None,
    start: int = 0,
    end: int = 1000,
    operators: pl.DataFrame | None = None,
) -> Rows:
    steps = find_steps(of_ranges, operators, work, start, end)
    assert steps["start"].is_sorted()
    assert (steps["end"] > steps["start"]).all()
    assert (steps["start"][1:] >= steps["end"][:-1]).all()
    return steps.select("step", "start", "end", pl.col("source").cast(pl.String), "complete").rows()


def test_a_profiler_step_lasts_until_the_next_one_begins_and_the_last_to_its_own_end() -> None:
    marks = ranges(("ProfilerStep#7", 10, 95), ("ProfilerStep#8", 100, 190))
    assert found(marks) == [(7, 10, 100, "profiler", True), (8, 100, 190, "profiler", True)]


def test_a_long_pause_between_two_recordings_is_in_no_step() -> None:
    marks = ranges(("ProfilerStep#7", 10, 95), ("ProfilerStep#40", 700, 790))
    assert found(marks) == [(7, 10, 95, "profiler", True), (40, 700, 790, "profiler", True)]


def test_what_comes_after_every_mark_is_of_the_step() -> None:
    """Lightning loads the next batch between two ranges around batches, for longer than these last."""
    name = "[pl][profile]run_training_batch"
    marks = ranges(*((name, at, at + 20) for at in (10, 110, 210, 310)))
    steps = found(marks)
    assert [row[1:3] for row in steps] == [(10, 110), (110, 210), (210, 310), (310, 330)]
    assert [row[4] for row in steps] == [True, True, True, False]  # what follows the last is not here


def test_an_evaluation_between_two_steps_is_in_none() -> None:
    name = "[pl][profile]run_training_batch"
    marks = ranges(*((name, at, at + 20) for at in (10, 32, 210, 232, 254)))
    assert [row[1:3] for row in found(marks)] == [(10, 32), (32, 52), (210, 232), (232, 254), (254, 274)]


def test_a_step_that_outlives_the_recording_is_cut_and_incomplete() -> None:
    marks = ranges(("ProfilerStep#7", 10, 95), ("ProfilerStep#8", 100, 190))
    assert found(marks, end=150) == [(7, 10, 100, "profiler", True), (8, 100, 150, "profiler", False)]


def test_profiler_steps_win_over_ranges_that_name_steps_and_these_over_optimizers() -> None:
    of_user = ranges(("step 3", 5, 45), ("step 4", 50, 90))
    updates = ranges(("Optimizer.step#AdamW.step", 40, 44), ("Optimizer.step#AdamW.step", 84, 89))
    both = pl.concat([of_user, updates])
    assert found(both) == [(3, 5, 50, "range", True), (4, 50, 90, "range", True)]
    assert found(pl.concat([both, ranges(("ProfilerStep#9", 6, 91))])) == [(9, 6, 91, "profiler", True)]


@pytest.mark.parametrize(
    "text",
    [
        *("Epoch 0, step {}", "epoch 1/3 iter {}/200", "Epoch: 2 | Batch {} of 90", "Step {}/100", "e"),
        # The page said that the trace marks no steps.
        *("trainer.step {}", "Trainer.train_step({})", "[step {}]", "step[{}]", "run_batch {}"),
        *("train/step/{}", "megatron.train_step", "engine_step", "train_one_batch", "Rank 0: iteration {}"),
    ],
)
def test_a_range_that_names_the_epoch_or_how_many_steps_there_are_names_a_step(text: str) -> None:
    text = "[pl][profile]run_training_batch" if text == "e" else text
    marks = ranges((text.format(6), 5, 45), (text.format(7), 50, 90))
    first = 6 if "{}" in text else 0
    assert found(marks) == [(first, 5, 50, "range", True), (first + 1, 50, 90, "range", True)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("execute_context_0(0)_generation_8(8)", "execute_context_1(512)_generation_8(8)"),
        ("execute_new_0_cached_8", "execute_new_1_cached_7"),
        (
            "execute_32_context_0(sq0sk0)_generation_32(sq32sk9)",
            "execute_9_context_1(sq9sk9)_generation_0(sq0)",
        ),
        ("execute_model", "execute_model"),
        ("step[DECODE bs=32]", "step[EXTEND bs=1 toks=77]"),
    ],
)
def test_a_range_that_a_server_puts_around_a_pass_is_a_step(first: str, second: str) -> None:
    marks = ranges((first, 5, 45), (second, 50, 90))
    assert found(marks) == [(0, 5, 50, "range", True), (1, 50, 90, "range", True)]
    alike = ranges(("execute_command", 5, 45), ("execute_command", 50, 90))
    assert [row[3] for row in found(alike)] == ["whole trace"]


def test_a_range_around_the_optimizers_step_ends_a_step() -> None:
    marks = ranges(("forward", 5, 45), ("optimizer_step", 50, 90), ("optimizer_step", 150, 190))
    assert found(marks, end=190) == [(0, 0, 90, "optimizer", False), (1, 90, 190, "optimizer", True)]


def test_one_range_that_looks_like_a_step_is_not_enough() -> None:
    assert [row[3] for row in found(ranges(("train_step", 5, 45)))] == ["whole trace"]


def test_step_numbers_that_do_not_rise_are_counted_instead() -> None:
    marks = ranges(("batch 3", 10, 20), ("batch 3", 21, 30), ("batch 1", 31, 44))
    assert [row[0] for row in found(marks)] == [0, 1, 2]


def test_a_word_inside_another_names_no_step() -> None:
    marks = ranges(("footstep 1", 10, 20), ("footstep 2", 21, 30), ("my step function", 31, 44))
    others = ("env.step", "scheduler.step", "val_step 3", "micro_step 3", "step 3 fwd")
    marks = pl.concat([marks, *(ranges((one, 50, 60), (one, 70, 90)) for one in others)])
    assert [row[3] for row in found(marks)] == ["whole trace"]


def test_of_two_threads_with_marks_the_one_with_more_time_has_the_steps() -> None:
    main = ranges(("step 1", 10, 60), ("step 2", 61, 120))
    loader = ranges(("step 1", 12, 20), ("step 2", 70, 75), thread=2)
    assert found(pl.concat([loader, main])) == [(1, 10, 61, "range", True), (2, 61, 120, "range", True)]


def test_a_mark_inside_another_is_no_step_of_its_own() -> None:
    marks = ranges(("step 1", 10, 60), ("step 99", 20, 30), ("step 2", 61, 120))
    assert [row[:3] for row in found(marks)] == [(1, 10, 61), (2, 61, 120)]


def test_a_mark_that_ends_too_late_takes_no_steps_away() -> None:
    """The page told of one step that was three times as long."""
    marks = ranges(("step 1", 10, 60), ("step 2", 61, 190), ("step 3", 111, 160), ("step 4", 161, 200))
    bounds = [row[1:3] for row in found(marks, end=300)]
    assert bounds == [(10, 61), (61, 111), (111, 161), (161, 200)]


def test_steps_end_with_the_optimizer_and_those_at_both_edges_are_incomplete() -> None:
    updates = ranges(("Optimizer.step#AdamW.step", 90, 100), ("Optimizer.step#AdamW.step", 190, 205))
    assert found(updates, start=3, end=260) == [
        (0, 3, 100, "optimizer", False),
        (1, 100, 205, "optimizer", True),
        (2, 205, 260, "optimizer", False),
    ]


def test_the_optimizer_that_comes_last_ends_the_step() -> None:
    updates = ranges(
        ("Optimizer.step#Muon.step", 80, 85), ("Optimizer.step#AdamW.step", 90, 100),
        ("Optimizer.step#Muon.step", 180, 186), ("Optimizer.step#AdamW.step", 190, 205),
    )  # fmt: skip
    assert [row[2] for row in found(updates, end=205)] == [100, 205]


def test_bursts_of_optimizer_kernels_end_steps_over_a_few_foreign_kernels() -> None:
    rows = []
    for base in (0, 300):
        rows += [("gemm", "gemm", base + 10 * i, base + 10 * i + 7) for i in range(20)]
        rows += [("adam", "optimizer", base + 210, base + 220), ("norm", "norm", base + 221, base + 223)]
        rows += [("adam", "optimizer", base + 225, base + 231)]
    assert found(work=kernels(*rows), end=531) == [
        (0, 0, 231, "optimizer", False),
        (1, 231, 531, "optimizer", True),
    ]


def repeated(names: list[tuple[str, str]], times: int, length: int = 100) -> pl.DataFrame:
    return kernels(
        *(
            (name, family, length * t + 10 * i, length * t + 10 * i + 8)
            for t in range(times)
            for i, (name, family) in enumerate(names)
        )
    )


MODEL = [("embed", "embedding"), ("a", "gemm"), ("b", "norm"), ("a", "gemm"), ("c", "gemm")]


def test_a_period_that_an_embedding_marks_is_the_step() -> None:
    assert found(work=repeated(MODEL, 4)) == [
        (0, 0, 100, "period", True),
        (1, 100, 200, "period", True),
        (2, 200, 300, "period", True),
        (3, 300, 348, "period", True),
    ]


def test_a_period_without_an_embedding_may_be_the_layers_and_is_no_step() -> None:
    steps = found(work=repeated([("a", "gemm"), ("b", "norm"), ("c", "gemm"), ("d", "gemm")], 6))
    assert steps == [(0, 0, 538, "whole trace", False)]


def test_two_repetitions_are_no_period() -> None:
    long = [*MODEL, *((f"k{i}", "gemm") for i in range(9))]
    assert [row[3] for row in found(work=repeated(long, 2, 200))] == ["whole trace"]
    assert [row[3] for row in found(work=repeated(long, 3, 200))] == ["period"] * 3


def test_without_any_mark_the_whole_trace_is_one_step_from_the_first_work_to_the_last() -> None:
    assert found(work=kernels(("a", "gemm", 31, 44), ("b", "gemm", 50, 77))) == [
        (0, 31, 77, "whole trace", False)
    ]


def test_nothing_recorded_is_no_step() -> None:
    assert found(start=5, end=5) == []


def told(work: list[tuple[int, int]], *copies: tuple[int, int]) -> dict[str, tuple[int, str]]:
    """What is said of work outside a step from 100 to 200 ms."""
    steps = pl.DataFrame({"start": [100_000_000], "end": [200_000_000]})
    rows = [
        pl.DataFrame({"start": [a * 10**6 for a, _ in some], "end": [b * 10**6 for _, b in some]})
        for some in (work, list(copies))
        if some
    ]
    return {fact.name: (fact.count, fact.meaning) for fact in outside(steps, *rows)}


def test_overlapping_work_outside_the_steps_counts_once_and_with_the_tails_of_what_crosses() -> None:
    assert told([(90, 95), (92, 97), (150, 203), (201, 210), (220, 231)], (205, 212), (98, 101)) == {
        "GPU work before the first step": (
            2,
            "of 7; with the ends of others the device is busy there for 9.00 ms, in no account",
        ),
        "GPU work after the last step": (
            3,
            "of 7; with the ends of others the device is busy there for 23.00 ms, in no account",
        ),
    }


def test_a_tail_beyond_the_steps_is_told_when_it_is_long() -> None:
    assert not told([(100, 200)])
    steps = pl.DataFrame({"start": [0], "end": [1000]})
    assert not outside(steps, pl.DataFrame({"start": [990], "end": [1009]}))
    assert [fact.count for fact in outside(steps, pl.DataFrame({"start": [990], "end": [1010]}))] == [0]


def test_two_optimizers_of_one_class_that_take_turns_make_one_step() -> None:
    """A discriminator of two kernels, then a generator of four: the last update ends the step."""
    updates, work, now = [], [], 0
    for _ in range(4):
        for many in (2, 4):
            for _ in range(many):
                work.append(("gemm", "gemm", now, now + 5))
                now += 10
            updates.append(("Optimizer.step#Adam.step", now, now + 5))
            now += 10
    table = kernels(*work).with_columns(launch_start="start")
    steps = found(ranges(*updates), table, end=now)
    assert [(start, end) for _, start, end, _, complete in steps if complete] == [
        (75, 155),
        (155, 235),
        (235, 315),
    ]


def test_updates_of_one_optimizer_each_make_a_step_however_their_work_varies() -> None:
    updates, work, now = [], [], 0
    for many in (2, 4, 3, 4, 2, 4, 2, 3):
        for _ in range(many):
            work.append(("gemm", "gemm", now, now + 5))
            now += 10
        updates.append(("Optimizer.step#Adam.step", now, now + 5))
        now += 10
    steps = found(ranges(*updates), kernels(*work).with_columns(launch_start="start"), end=now)
    assert sum(complete for *_, complete in steps) == 7


def test_each_device_of_a_process_has_the_steps_of_the_thread_that_launches_for_it() -> None:
    mine = ranges(("step 0", 0, 40), ("step 1", 50, 90), thread=3)
    longer = ranges(("step 0", 0, 300), ("step 1", 301, 600), thread=4)
    work = kernels(("gemm", "gemm", 10, 20)).with_columns(thread=3)
    assert [row[:3] for row in found(pl.concat([longer, mine]), work)] == [(0, 0, 50), (1, 50, 90)]
