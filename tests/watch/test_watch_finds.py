"""What a watch finds in made-up step times, and what it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lostflops.watch.detection import Detector, LevelChange
from lostflops.watch.job import Happened, Watch
from lostflops.watch.page import page
from lostflops.watch.steps import ROWS, StepRing

from .growing import MS, Job, Times, even

RANKS, CHANGED_AT = 64, 600


def changes(times: Times) -> list[tuple[int, LevelChange]]:
    """Each change with the step at which it was found."""
    steps, detector = StepRing(), Detector()
    steps.reserve(list(range(times.shape[1])))
    steps.first = 0
    found: list[tuple[int, LevelChange]] = []
    for step, row in enumerate(times):
        steps.duration[step % ROWS] = row
        found += [(step, change) for change in detector.take(steps, steps.take())]
    return found


def seen(run: Path) -> tuple[Watch, list[Happened]]:
    watch = Watch(run)
    return watch, watch.look() + watch.finish()


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_five_percent_on_one_of_64_ranks_is_found_within_30_steps(noise: float) -> None:
    times = even(CHANGED_AT + 40, RANKS, noise=noise)
    times[CHANGED_AT:, 5] *= 1.05
    ((found, change),) = changes(times)
    assert change.column == 5
    assert found < CHANGED_AT + 30
    assert abs(change.step - CHANGED_AT) <= 3
    assert change.ratio == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(("slow", "within"), [(0, 40), (25, 100)])
def test_a_noisy_job_that_becomes_half_as_slow_again_is_found(slow: int, within: int) -> None:
    """One whose first steps were slow learned its own change before that was believed, and said nothing."""
    rng = np.random.default_rng(5)
    noise = 0.15 * rng.standard_normal((400, 1))
    noise[:slow] += 0.25
    times = 27 * MS * np.exp(noise + 0.01 * rng.standard_normal((400, 2)))
    times[150:] *= 1.55
    ((found, change),) = changes(times)
    assert change.column is None and 161 <= found < 150 + within
    assert abs(change.step - 150) <= 3 and change.ratio == pytest.approx(0.55, abs=0.15)


@pytest.mark.parametrize("tails", ["noise of 15 %", "that lasts"])
def test_noise_raises_no_alarm_however_much_there_is(tails: str) -> None:
    rng = np.random.default_rng(7)
    z = rng.standard_normal((5000, 32))
    if tails == "that lasts":
        for step in range(1, len(z)):
            z[step] = 0.8 * z[step - 1] + 0.6 * z[step]
    assert changes(100 * MS * np.exp(0.15 * z)) == []


@pytest.mark.parametrize("tails", ["normal", "heavy", "correlated"])
def test_healthy_noise_raises_no_alarm(tails: str) -> None:
    """5,000 steps here; `benchmarks/watching.py` takes 100,000 of each kind."""
    rng = np.random.default_rng(7)
    shape = (5000, 32)
    z = rng.standard_t(3, shape) / np.sqrt(3) if tails == "heavy" else rng.standard_normal(shape)
    if tails == "correlated":
        for step in range(1, len(z)):
            z[step] = 0.5 * z[step - 1] + np.sqrt(0.75) * z[step]
    assert changes(100 * MS * np.exp(0.02 * z)) == []


def test_what_slows_all_ranks_is_the_jobs_change_and_no_ranks() -> None:
    times = even(CHANGED_AT + 60, 8)
    times[CHANGED_AT:] *= 1.2
    ((_, change),) = changes(times)
    assert change.column is None
    assert change.ratio == pytest.approx(0.2, abs=0.02)


def test_a_few_slow_steps_are_no_change() -> None:
    times = even(CHANGED_AT + 100, 8)
    times[CHANGED_AT : CHANGED_AT + 6, 3] *= 1.6
    assert changes(times) == []


def test_of_two_ranks_the_slower_one_is_named() -> None:
    times = even(CHANGED_AT + 60, 2)
    times[CHANGED_AT:, 1] *= 1.15
    assert [change.column for _, change in changes(times)] == [1]


def test_a_rank_is_told_with_its_node_its_step_and_what_it_waits_for(tmp_path: Path) -> None:
    times = even(400, 6)
    times[300:, 4] += 30 * MS
    data = [{"data": 30 * MS if step >= 300 else 0} for step in range(400)]
    Job(tmp_path, 6).grow(times, {4: data})
    watch, news = seen(tmp_path)
    (told,) = [one for one in news if one.kind == "rank"]
    assert (told.rank, told.node, told.bad) == (4, "node-0002", True)
    assert abs((told.step or 0) - 300) <= 2
    assert "rank 4 (node-0002) is 30 % slower since step" in told.text.replace("29 %", "30 %").replace(
        "31 %", "30 %"
    )
    assert "it waits 30.0 ms longer for data per step" in told.text
    assert watch.slow()[4] == pytest.approx(0.3, abs=0.02)
    assert told.at == pytest.approx(watch.tails.by_rank[4].wall(int(times[:301, 4].sum())), abs=3e9)


def test_where_all_ranks_wait_for_one_the_log_names_it_by_what_it_does(tmp_path: Path) -> None:
    times = even(400, 4, noise=0.004)
    times[300:] += 40 * MS
    collecting = [{"gc": 40 * MS if step >= 300 else 0} for step in range(400)]
    Job(tmp_path, 4).grow(times, {2: collecting})
    _, news = seen(tmp_path)
    (told,) = [one for one in news if one.bad]
    assert told.kind == "job"
    assert "rank 2 (node-0001) collects garbage for 40.0 ms longer per step" in told.text


def test_a_rank_that_is_back_is_said_and_no_longer_behind(tmp_path: Path) -> None:
    times = even(900, 4)
    times[300:600, 1] *= 1.3
    Job(tmp_path, 4).grow(times)
    watch, news = seen(tmp_path)
    assert [one.bad for one in news if one.kind == "rank"] == [True, False]
    assert "rank 1 (node-0000) is as fast as before since step 60" in news[-1].text
    assert watch.slow() == {}


def test_steps_that_are_recorded_in_full_and_the_one_before_are_no_evidence(tmp_path: Path) -> None:
    times = even(400, 4)
    times[299:340, 2] *= 3
    window = [{"window": int(300 <= step < 340)} for step in range(400)]
    Job(tmp_path, 4).grow(times, {2: window})
    _, news = seen(tmp_path)
    assert [one for one in news if one.kind in ("rank", "job")] == []


def test_pauses_that_come_back_are_told_with_their_cause(tmp_path: Path) -> None:
    times = even(400, 4)
    saves = np.arange(400) % 20 == 7
    times[saves] += 60 * MS
    Job(tmp_path, 4).grow(times, {0: [{"checkpoint": 60 * MS * int(now)} for now in saves]})
    watch, news = seen(tmp_path)
    ((pause, cause),) = watch.now().pauses
    assert (pause.period, pause.phase, cause) == (20, 7, "checkpoint")
    assert pause.longer == pytest.approx(60 * MS, rel=0.05)
    assert [one for one in news if one.bad] == []


def test_speed_loss_tokens_and_spread_are_those_of_the_last_50_steps(tmp_path: Path) -> None:
    times = np.full((200, 3), 100.0 * MS)
    times[:, 2] = 110 * MS
    told = [{"loss": 5.0 - step / 100, "tokens": 70, "samples": 7} for step in range(200)]
    Job(tmp_path, 3).grow(times, dict.fromkeys(range(3), told))
    now = seen(tmp_path)[0].now()
    assert now.steps_per_second == pytest.approx(10)
    assert now.tokens_per_second == pytest.approx(2100)
    assert now.samples_per_second == pytest.approx(210)
    assert now.loss == (199, pytest.approx(3.01))
    assert now.loss_before == pytest.approx(5 - 174 / 100)
    assert [rank.longer for rank in now.ranks] == pytest.approx([0, 0, 0.1])
    assert now.world == 3


def test_a_loss_that_is_no_number_is_an_alarm(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    job.grow(even(30, 2))
    job.append(1, job.step(1, 100 * MS, loss="nan"))
    job.append(0, job.step(0, 100 * MS, loss=2.5))
    _, news = seen(tmp_path)
    assert [one.text for one in news if one.bad] == ["the loss is nan since step 30, first on rank 1"]


def told_loss(steps: int, ranks: int, bad: dict[int, range]) -> dict[int, list[dict[str, object]]]:
    """A loss of 2.0 in each step, and of those ranks in those steps one that is no number."""
    return {
        rank: [{"loss": "nan" if step in bad.get(rank, ()) else 2.0} for step in range(steps)]
        for rank in range(ranks)
    }


def test_the_first_loss_that_is_no_number_is_the_earliest_and_not_the_first_that_is_read(
    tmp_path: Path,
) -> None:
    bad = {0: range(200, 600), 3: range(150, 600)}
    Job(tmp_path, 4).grow(even(600, 4), told_loss(600, 4, bad))
    watch, news = seen(tmp_path)
    (told,) = [one for one in news if one.bad]
    assert (told.step, told.rank) == (150, 3)
    assert told.text == "the loss is nan since step 150, first on rank 3"
    # The mean of the ranks whose loss is a number is not the job's.
    assert "loss        not a number at step 599" in page(watch.now(), "run", watch.happened).plain


def test_a_loss_that_was_no_number_once_is_told_as_that_and_wrong_no_longer(tmp_path: Path) -> None:
    Job(tmp_path, 4).grow(even(600, 4), told_loss(600, 4, {2: range(100, 101), 1: range(100, 101)}))
    watch, news = seen(tmp_path)
    assert [one.text for one in news if one.kind == "loss"] == [
        "the loss was nan in step 100, first on ranks 1-2",
        "the loss is a number again since step 101",
    ]
    assert watch.bad_loss is None


def test_where_half_of_the_ranks_are_slower_each_is_told_by_how_much(tmp_path: Path) -> None:
    """The median of the job is the slowest of the other half then: 8 % were told of 10 %."""
    times = even(500, 16)
    times[300:, 8:] *= 1.1
    Job(tmp_path, 16, per_node=8).grow(times)
    watch, news = seen(tmp_path)
    told = {one.rank: one.ratio for one in news if one.bad and one.rank is not None}
    assert sorted(told) == list(range(8, 16))
    assert np.mean(list(told.values())) == pytest.approx(0.1, abs=0.01)
    assert np.mean(list(watch.slow().values())) == pytest.approx(0.1, abs=0.006)


def test_a_rank_that_stays_as_it_was_while_the_others_change_is_told_so(tmp_path: Path) -> None:
    times = even(500, 16)
    times[300:, 2:] *= 1.1
    Job(tmp_path, 16).grow(times)
    _, news = seen(tmp_path)
    by = {one.rank: one.text for one in news}
    assert by.keys() == {None, 0, 1}
    assert by[None] == "the job is 10 % slower since step 300: on ranks 2-15"
    assert re.fullmatch(
        r"rank 0 \(node-0000\) is [89] % faster than the others since step 300: "
        "they changed, its own steps did not",
        by[0],
    )
