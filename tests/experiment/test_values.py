"""What a start's value is: which steps, which rank, per what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lostflops.errors import NothingThere
from lostflops.experiment.proof import starts, values
from lostflops.experiment.proof.starts import NoStepLog
from lostflops.experiment.proof.values import NotComparable
from run_logs import MS, run

LEVEL = [10.0] * 20


def both(a: Path, b: Path, **given: object) -> values.Values:
    return values.of([starts.read(a)], [starts.read(b)], **given)  # type: ignore[arg-type]


def test_the_value_is_the_mean_without_warm_up_saving_and_recorded_steps(tmp_path: Path) -> None:
    times = [*LEVEL, 99.0, 99.0, 99.0, *LEVEL]  # step 20 prepares the profiler, 21 and 22 are recorded
    window = [int(n in (21, 22)) for n in range(43)]
    saves = [round(4 * MS) if n == 30 else 0 for n in range(43)]
    a = run(
        tmp_path / "a",
        [t + (4 if n == 30 else 0) for n, t in enumerate(times)],
        window=window,
        checkpoint=saves,
    )
    b = run(tmp_path / "b", [2 * t for t in times], window=window)
    found = both(a, b)
    # 43 steps, less the first, three of the window, and three of warm-up.
    assert (found.before, found.after, found.steps, found.dropped) == ((10.0 * MS,), (20.0 * MS,), 36, 3)
    assert found.saving == ((4 * MS, 1), (0, 0))
    assert found.ratios == pytest.approx([np.log(2)])


def test_a_checkpoint_in_each_step_is_a_part_of_it(tmp_path: Path) -> None:
    slow = [n + 4 for n in LEVEL]
    a = run(tmp_path / "a", slow, checkpoint=[round(4 * MS)] * len(slow))
    b = run(tmp_path / "b", LEVEL)
    assert (both(a, b).before, both(a, b).after) == ((14.0 * MS,), (10.0 * MS,))
    assert (both(b, a).before, both(b, a).after) == ((10.0 * MS,), (14.0 * MS,))
    # In a third of the steps it is a pause, of which a short run has too many or too few.
    third = [n % 3 == 0 for n in range(len(LEVEL))]
    c = run(
        tmp_path / "c",
        [10.0 + 4 * saves for saves in third],
        checkpoint=[round(4 * MS) if saves else 0 for saves in third],
    )
    assert (both(c, b).before, both(c, b).saving_counts) == ((10.0 * MS,), False)


def test_only_steps_that_both_sides_have_count(tmp_path: Path) -> None:
    a = run(tmp_path / "a", [*LEVEL, *[50.0] * 20])
    b = run(tmp_path / "b", LEVEL, end=None)
    found = both(a, b)
    assert (found.before, found.after, found.steps) == ((10.0 * MS,), (10.0 * MS,), 16)
    assert found.notes and "16 steps per start are few" in found.notes[0]
    assert starts.read(b).killed and not starts.read(a).killed


def test_of_several_ranks_the_slowest_mean_counts(tmp_path: Path) -> None:
    for name, slow in (("a", 12.0), ("b", 18.0)):
        run(tmp_path / name, LEVEL, rank=0, world=2)
        run(tmp_path / name, [slow if n % 2 else slow - 2 for n in range(20)], rank=1, world=2)
    found = both(tmp_path / "a", tmp_path / "b")
    assert found.before[0] == pytest.approx(11 * MS) and found.after[0] == pytest.approx(17 * MS)


def test_unequal_work_is_measured_per_token(tmp_path: Path) -> None:
    a = run(tmp_path / "a", LEVEL, tokens=[100] * 20)
    b = run(tmp_path / "b", [15.0] * 20, tokens=[200] * 20)
    found = both(a, b)
    assert found.per == "token"
    assert found.before[0] == pytest.approx(0.1 * MS) and found.after[0] == pytest.approx(0.075 * MS)
    assert both(a, b, per="step").after[0] == pytest.approx(15 * MS)
    same = run(tmp_path / "c", LEVEL, tokens=[100] * 20)
    assert both(a, same).per == "step" and both(a, same, per="token").per == "token"


def test_unequal_passes_without_tokens_are_not_compared(tmp_path: Path) -> None:
    a = run(tmp_path / "a", LEVEL)
    b = run(tmp_path / "b", LEVEL, micro_steps=[2] * 20)
    with pytest.raises(NotComparable, match=r"differ in backward passes per step.*\n.*--per step"):
        both(a, b)
    assert both(a, b, per="step").steps == 16
    with pytest.raises(NotComparable, match="does not tell the tokens"):
        both(a, b, per="token")


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    a, b = (run(tmp_path / name, [10.0] * 11) for name in "ab")
    with pytest.raises(NotComparable, match="share 10 steps, and 7 after 3 of warm-up"):
        both(a, b)


def test_a_median_hides_the_stall_that_a_mean_shows(tmp_path: Path) -> None:
    a = run(tmp_path / "a", [20.0 if n % 10 == 9 else 10.0 for n in range(44)])
    b = run(tmp_path / "b", [10.0] * 44)
    found = both(a, b)
    assert found.measure == "mean" and found.before[0] == pytest.approx(11 * MS)
    assert found.others["median"] == ((10.0 * MS,), (10.0 * MS,))
    assert both(a, b, measure="median").before == (10.0 * MS,)


def test_what_is_no_run_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NothingThere):
        starts.read(tmp_path / "nothing")
    with pytest.raises(NoStepLog, match=r"no step log\.\nHint: `lostflops record"):
        starts.read(tmp_path)
    with pytest.raises(NoStepLog, match="no step log with a step"):
        starts.read(run(tmp_path / "a", []))
    damaged = run(tmp_path / "b", [])
    next(damaged.glob("node-*/*")).write_bytes(b"\xff\xfe\n{}")
    with pytest.raises(NoStepLog, match="is not a step log of lostflops"):
        starts.read(damaged)


def test_a_callbacks_output_and_a_single_log_will_do(tmp_path: Path) -> None:
    run(tmp_path / "out" / "lostflops", LEVEL)
    (log,) = (tmp_path / "out").rglob("steps-*.jsonl")
    assert len(starts.read(tmp_path / "out").steps) == len(starts.read(log).steps) == 19
