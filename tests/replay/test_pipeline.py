"""A pipelined step against the closed forms of its schedules."""

from __future__ import annotations

import numpy as np
import pytest

from lostflops.errors import BadOption
from lostflops.replay.pipeline.both_ways import both_ways_time
from lostflops.replay.pipeline.schedules.dual_pipe import allowed, order
from lostflops.replay.pipeline.split import split
from lostflops.replay.pipeline.step import step_time

F, B, W = 200, 300, 100


def even(stages: int, microbatches: int, **kinds: int) -> dict[str, np.ndarray]:
    return {kind: np.full((stages, microbatches), ns, np.int64) for kind, ns in kinds.items()}


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 2), (4, 4), (4, 12), (8, 16), (3, 2)])
def test_one_forward_one_backward_and_gpipe_wait_p_minus_1_passes(stages: int, microbatches: int) -> None:
    expected = (microbatches + stages - 1) * (F + B)
    for schedule in ("1f1b", "gpipe"):
        assert step_time(schedule, even(stages, microbatches, F=F, B=B)) == expected


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 4, 2), (8, 16, 5)])
def test_chunks_divide_the_bubble(stages: int, microbatches: int, chunks: int) -> None:
    expected = microbatches * (F + B) + (stages - 1) * (F + B) // chunks
    assert step_time("interleaved", even(stages, microbatches, F=F, B=B), chunks=chunks) == expected


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (8, 16)])
def test_weights_passes_fill_the_zero_bubble_schedule(stages: int, microbatches: int) -> None:
    durations = even(stages, microbatches, F=100, B=100, W=100)
    assert step_time("zb", durations) == microbatches * 300 + (stages - 1) * (100 + 200 - 2 * 100)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 10), (8, 16), (8, 32), (16, 32)])
def test_dual_pipe_waits_as_its_report_says(stages: int, microbatches: int) -> None:
    """(p/2 - 1)(F&B + B - 3W), where B is a whole backward pass and F&B takes F + B."""
    forward = inputs = weights = 100
    whole = inputs + weights
    waits = (stages // 2 - 1) * (forward + whole + whole - 3 * weights)
    durations = even(stages, microbatches, F=forward, B=inputs, W=weights)
    assert both_ways_time(durations) == microbatches * (forward + whole) + waits
    assert both_ways_time(durations) < step_time("zb", durations)


def test_dual_pipe_goes_each_way_with_half_of_the_microbatches() -> None:
    for rank in range(6):
        done = [one for together in order(6, rank, 14) for one in together]
        kinds = [(one.kind.replace("I", "B"), one.way, one.microbatch) for one in done if one.kind != "W"]
        assert sorted(kinds) == [(kind, way, n) for kind in "BF" for way in (0, 1) for n in range(7)]
        assert sum(one.kind == "W" for one in done) == sum(one.kind == "I" for one in done) > 0


def test_dual_pipe_evens_out_a_stage_with_the_one_across() -> None:
    durations = even(2, 8, F=100, B=100, W=100)
    durations["F"][0] += 60  # each rank has half of the slow stage
    assert both_ways_time(durations) == pytest.approx(8 * 330, rel=0.06)
    assert both_ways_time(durations) < step_time("1f1b", even(2, 8, F=160, B=200))
    assert both_ways_time(even(2, 8, F=100, B=100, W=100), hop=7) > 8 * 300


def test_dual_pipe_wants_two_microbatches_a_stage_and_even_numbers() -> None:
    assert not allowed(4, 8)
    assert "even number of stages" in allowed(3, 12)
    assert "at least 8 for 4" in allowed(4, 6) and "even number of microbatches" in allowed(4, 9)


def test_a_hop_is_paid_on_the_way_there_and_back() -> None:
    assert step_time("1f1b", even(3, 1, F=F, B=B), hop=7) == 3 * (F + B) + 4 * 7


def test_the_slowest_stage_sets_the_pace() -> None:
    durations = even(4, 16, F=F, B=B)
    durations["F"][3] += 50
    slow, others = F + 50 + B, F + B
    step = step_time("1f1b", durations)
    assert step == 16 * slow + 3 * others
    parts = split(step, (durations["F"] + durations["B"]).sum(axis=1), 16)
    assert (parts.useful, parts.imbalance, parts.schedule, parts.rest) == (
        (3 * 16 * others + 16 * slow) / 4,
        16 * slow - (3 * 16 * others + 16 * slow) / 4,
        3 * others,
        0,
    )


def test_interleaved_stages_want_whole_groups() -> None:
    with pytest.raises(BadOption, match="6 microbatches do not go through 4 interleaved stages"):
        step_time("interleaved", even(4, 6, F=F, B=B), chunks=2)
