"""What makes a recorded job slow, held against simulated jobs of which the truth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from lab.held_to_truth import truth_of
from lab.test_simulated_truth import STRATEGIES, a_job
from lostflops import run_folder
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.faults import FaultyJob, with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.running.costs import IDEAL, HostCosts
from lostflops.lab.simulate.writing import simulate
from lostflops.session import Session


def told(job: SimulatedJob, folder: Path, fault: FaultyJob | None = None) -> pl.DataFrame:
    simulate(job, folder, fault=fault)
    return table(folder, "stragglers")


def table(folder: Path, recipe: str, **how: bool) -> pl.DataFrame:
    return Session(ingest_job.open(folder, **how)).run(recipe).table  # type: ignore[union-attr]


def faulty(text: str, fault: str, folder: Path, **knobs: object) -> tuple[FaultyJob, pl.DataFrame]:
    planted = with_fault(a_job(text, steps=4, **knobs), fault)
    return planted, told(planted.job, folder, planted)


def true_step(folder: Path) -> float:
    """From where the last rank begins to the last end, over the number of steps."""
    steps = pl.DataFrame(truth_of(folder)["steps"])
    first = steps.group_by("rank").agg(pl.col("start").min())["start"].max()
    return (steps["end"].max() - first) / steps["step"].n_unique()  # type: ignore[operator]


@pytest.mark.parametrize("text", STRATEGIES)
def test_replay_gives_the_step_that_was_recorded_and_a_healthy_job_loses_nothing(
    text: str, tmp_path: Path
) -> None:
    found = told(a_job(text), tmp_path)
    job = found.row(0, named=True)
    assert job["own"] == pytest.approx(true_step(tmp_path), abs=0.5)
    assert 0.995 < job["slowdown"] < 1.01
    assert found["cause"].null_count() == found.height


QUIET = HostCosts(kernel_noise=0, host_noise=0, transfer_noise=0, leave=0)


@pytest.mark.parametrize("text", ["ddp", "fsdp2", "tp2-dp4"])
def test_without_noise_even_ranks_lose_exactly_nothing(text: str, tmp_path: Path) -> None:
    found = told(a_job(text, costs=QUIET), tmp_path)
    assert found["slowdown"].to_list() == pytest.approx([1.0] * found.height, abs=2e-4)


@pytest.mark.parametrize("times", [1.5, 2.0])
def test_slowdown_of_a_slow_rank_without_noise_is_that_of_a_pencil(times: float, tmp_path: Path) -> None:
    """All eight compute c, one of them c * times: the mean is c * (7 + times) / 8."""
    job = replace(a_job("ddp", costs=IDEAL), slow_ranks={5: (times, 0)}, overlap=False)
    found = told(job, tmp_path)
    step, even = found.select("own", "even").row(0)
    computed = found.filter(name="compute")["own"].sum()
    slow = computed * 8 * times / (7 + times)
    assert step - even == pytest.approx(slow - computed, rel=1e-4)
    worst = found.filter(part="rank").row(0, named=True)
    assert (worst["rank"], worst["cause"], worst["since"]) == (5, "slow compute", None)
    assert worst["removal"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("text", ["ddp", "pp4-dp2-m8", "tp2-pp2-dp2-m6", "pp4-dp2-zb-m6"])
def test_a_gpu_that_becomes_slow_is_named_with_its_step(text: str, tmp_path: Path) -> None:
    planted, found = faulty(text, "slow-gpu", tmp_path)
    worst = found.filter(part="rank").row(0, named=True)
    assert (worst["rank"],) == planted.culprit.ranks
    assert (worst["cause"], worst["since"]) == ("slow compute", planted.culprit.since)
    slowest = found.filter(part="slowest ranks").row(0, named=True)
    assert slowest["name"] == str(worst["rank"])
    assert slowest["removal"] > 0.9
    assert slowest["addition"] > 0.9


@pytest.mark.parametrize(
    ("text", "fault", "cause"),
    [
        ("pp4-dp2-m8", "stage-imbalance", "stage imbalance"),
        ("tp2-pp2-dp2-m6", "stage-imbalance", "stage imbalance"),
        ("pp4-dp2-zb-m6", "stage-imbalance", "stage imbalance"),
        ("pp4-dp2-m8", "slow-link", "slow link"),
        ("tp2-pp2-dp2-m6", "slow-link", "slow link"),
        ("ddp", "data-starvation", "idle.data_loading"),
        ("tp2-pp2-dp2-m6", "data-starvation", "idle.data_loading"),
    ],
)
def test_causes_are_told_apart(text: str, fault: str, cause: str, tmp_path: Path) -> None:
    planted, found = faulty(text, fault, tmp_path)
    ranks = found.filter(part="rank", cause=cause)
    assert tuple(sorted(ranks["rank"])) == planted.culprit.ranks
    assert ranks["since"].null_count() == ranks.height
    assert found.filter(part="rank")["cause"].drop_nulls().unique().to_list() == [cause]


@pytest.mark.parametrize("text", ["ddp", "pp4-dp2-m8", "tp2-dp4"])
def test_sequences_of_different_lengths_are_uneven_work_and_no_slow_device(text: str, tmp_path: Path) -> None:
    _, found = faulty(text, "length-imbalance", tmp_path)
    assert found["slowdown"][0] > 1.15
    assert found["cause"].drop_nulls().unique().to_list() == ["uneven work"]


def test_collecting_garbage_by_turns_is_a_kind_and_no_rank(tmp_path: Path) -> None:
    _, found = faulty("pp4-dp2-m8", "garbage-collection", tmp_path)
    kinds = found.filter(part="kind").sort("slowdown", descending=True)
    assert kinds["name"][0] == "idle.garbage_collection"
    assert found.filter(part="slowest ranks")["removal"].item() < 0.5


def test_what_all_ranks_do_alike_is_no_straggler(tmp_path: Path) -> None:
    _, found = faulty("pp4-dp2-m8", "checkpoint-pauses", tmp_path)
    assert found["slowdown"][0] == pytest.approx(1, abs=0.01)
    assert found["removal"].null_count() == found.height


def test_clocks_that_differ_change_little(tmp_path: Path) -> None:
    _, found = faulty("pp4-dp2-m8", "clock-skew", tmp_path)
    assert found["slowdown"][0] == pytest.approx(1, abs=0.01)


def test_with_a_stage_missing_nothing_is_told_but_why(tmp_path: Path) -> None:
    simulate(replace(a_job("pp4-dp2-m8"), missing=frozenset({2, 3})), tmp_path)
    found = table(tmp_path, "stragglers", allow_missing_ranks=True)
    assert found.height == 1
    assert found["slowdown"].null_count() == 1
    assert "ranks that are not known" in found["cause"][0]


def test_several_steps_and_one_give_the_same_ranks(tmp_path: Path) -> None:
    """A rank of two groups, tensor and data, is slow in both: the group of its neighbour is not blamed."""
    planted = with_fault(a_job("tp2-dp4", steps=1), "slow-rank")
    found = told(planted.job, tmp_path, planted)
    worst = found.filter(part="rank").row(0, named=True)
    assert (worst["rank"],) == planted.culprit.ranks
    assert found.filter(part="rank").slice(1)["slowdown"].max() < 1.02  # type: ignore[operator]


@pytest.mark.parametrize("text", ["ddp", "tp2-pp2-dp2-m4", "ep4"])
def test_the_wait_matrix_is_who_came_last_to_the_nanosecond(text: str, tmp_path: Path) -> None:
    simulate(a_job(text), tmp_path)
    shown = table(tmp_path, "wait_matrix")
    calls = pl.read_ndjson(tmp_path / run_folder.TRUTH_OF_CALLS)
    true = calls.explode([c for c in calls.columns if c != "rank"]).with_columns(
        pl.col("rank").cast(pl.Int32)
    )
    matched = table(tmp_path, "communication_matches").with_columns(pl.col("kind").cast(pl.String))
    first = matched["start"].min() - true["start"].min()  # type: ignore[operator]
    both = true.with_columns(pl.col("start") + first).join(matched, on=["rank", "start", "kind"], how="left")
    known = both.filter(pl.col("last_rank_right").is_not_null(), pl.col("wait") > 0)
    sums = known.group_by("rank", waited_for=pl.col("last_rank").cast(pl.Int32)).agg(
        calls=pl.len().cast(pl.Int64), wait=pl.col("wait").sum()
    )
    assert sums.height > 2
    by = ["rank", "waited_for"]
    assert shown.drop_nulls("waited_for").select(*sums.columns).sort(by).equals(sums.sort(by))
    whole = true.group_by("rank").agg(pl.col("wait").sum()).sort("rank")
    assert (
        shown.group_by("rank").agg(pl.col("wait").sum()).sort("rank").equals(whole.filter(pl.col("wait") > 0))
    )
