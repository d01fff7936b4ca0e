"""Pipelines of simulated jobs: passes, why they idle, and what other schedules would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lab.held_to_truth import truth_of
from lab.test_simulated_truth import a_job
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.running.costs import HostCosts
from lostflops.lab.simulate.writing import simulate
from lostflops.recipes.pipeline.bubble import PARTS
from lostflops.report.html import html
from lostflops.session import Session

QUIET = HostCosts(kernel_noise=0, host_noise=0, transfer_noise=0, leave=0)
SCHEDULES = [
    ("pp4-dp2-m8", 8, "1f1b", 8, 1),
    ("pp4-gpipe-dp2-m4", 8, "gpipe", 4, 1),
    ("pp4-dp2-interleaved-v2-m8", 8, "interleaved", 8, 2),
    ("pp4-dp2-zb-m6", 8, "zb", 6, 1),
    ("pp2-interleaved-v2-m4", 2, "interleaved", 4, 2),
    ("tp2-pp2-dp2-m6", 8, "1f1b", 6, 1),
    ("pp2-ep2-dp2-m4", 4, "1f1b", 4, 1),
]  # fmt: skip


def asked(job: SimulatedJob, folder: Path, **how: bool) -> Session:
    simulate(job, folder)
    return Session(ingest_job.open(folder, **how))


def table(session: Session, recipe: str) -> pl.DataFrame:
    return session.run(recipe).table  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "ranks", "schedule", "microbatches", "chunks"), SCHEDULES)
def test_schedules_are_recognised_and_idle_time_adds_up_to_the_true_one(
    text: str, ranks: int, schedule: str, microbatches: int, chunks: int, tmp_path: Path
) -> None:
    session = asked(a_job(text, ranks), tmp_path)
    passes, bubble = table(session, "pipeline_passes"), table(session, "pipeline_bubble")
    assert passes.select("schedule", "microbatches", "chunks").unique().rows() == [
        (schedule, microbatches, chunks)
    ]
    forward = passes.filter(kind="F").group_by("rank", "step").agg("microbatch", "chunk")
    every = {(m, c) for m in range(microbatches) for c in range(chunks)}
    assert all(
        set(zip(m, c, strict=True)) == every for m, c in forward.select("microbatch", "chunk").iter_rows()
    )
    steps = pl.DataFrame(truth_of(tmp_path)["steps"])
    true = steps.select(idle=pl.col("end") - pl.col("start") - pl.col("compute"))["idle"].sum()
    assert bubble["idle"].sum() == true
    assert (bubble.select(pl.sum_horizontal(PARTS)).to_series() == bubble["idle"]).all()
    small = bubble.select(pl.col("imbalance", "uneven", "other").abs() / pl.col("length")).max().row(0)
    assert max(small) < 0.03


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 8)])
def test_the_schedule_of_even_stages_is_the_closed_form(
    stages: int, microbatches: int, tmp_path: Path
) -> None:
    """Each of p stages idles (p - 1) passes forward and back."""
    session = asked(a_job(f"pp{stages}-m{microbatches}", stages, costs=QUIET), tmp_path)
    passes, bubble = table(session, "pipeline_passes"), table(session, "pipeline_bubble")
    span = pl.col("end") - pl.col("start")
    there, back = (passes.filter(kind=kind).select(span.mean()).item() for kind in "FB")
    expected = stages * (stages - 1) * (there + back)
    assert bubble["schedule"].to_list() == pytest.approx([expected] * bubble.height, rel=1e-3)


def test_a_stage_that_has_more_to_do_is_imbalance_and_no_schedule(tmp_path: Path) -> None:
    job = a_job("pp4-m8", 4, costs=QUIET)
    even = table(asked(job, tmp_path / "even"), "pipeline_bubble")
    more = table(asked(replace(job, more_layers={2: 1}), tmp_path / "more"), "pipeline_bubble")
    length = (more["length"] - even["length"]).sum()
    extra = (more["length"] - more["idle"] - even["length"] + even["idle"]).sum()
    assert more["imbalance"].sum() + more["schedule"].sum() - even["schedule"].sum() == pytest.approx(
        length - extra, rel=0.03
    )
    assert more["imbalance"].sum() > 0.5 * (length - extra)


def test_unequal_microbatches_of_a_pipeline_are_of_the_replicas_and_wait_in_the_tail(tmp_path: Path) -> None:
    planted = with_fault(a_job("pp4-dp2-m8", steps=2), "length-imbalance")
    bubble = table(asked(planted.job, tmp_path), "pipeline_bubble")
    assert bubble["tail"].sum() > 0.1 * bubble["length"].sum()
    assert abs(bubble["imbalance"].sum()) < 0.01 * bubble["length"].sum()


def test_a_host_that_pauses_does_not_hide_a_pass(tmp_path: Path) -> None:
    planted = with_fault(a_job("pp4-dp2-m8", steps=3), "garbage-collection")
    session = asked(planted.job, tmp_path)
    assert table(session, "pipeline_bubble")["untold"].null_count() > 0
    assert table(session, "pipeline_passes")["schedule"].unique().to_list() == ["1f1b"]


@pytest.mark.parametrize("text", ["ddp", "tp2-dp4"])
def test_without_a_pipeline_nothing_is_said(text: str, tmp_path: Path) -> None:
    session = asked(a_job(text), tmp_path)
    for recipe in ("pipeline_passes", "pipeline_bubble", "pipeline_schedules"):
        assert table(session, recipe).is_empty()


def test_with_a_stage_missing_nothing_is_said(tmp_path: Path) -> None:
    session = asked(replace(a_job("pp4-dp2-m8"), missing=frozenset({2})), tmp_path, allow_missing_ranks=True)
    for recipe in ("pipeline_passes", "pipeline_bubble", "pipeline_schedules"):
        assert table(session, recipe).is_empty()


def test_other_schedules_are_predicted_as_the_simulator_runs_them(tmp_path: Path) -> None:
    texts = {("1f1b", 1): "pp4-m8", ("interleaved", 2): "pp4-interleaved-v2-m8", ("zb", 1): "pp4-zb-m8"}
    told = {
        key: table(asked(a_job(text, 4, layers=8), tmp_path / str(n)), "pipeline_schedules")
        for n, (key, text) in enumerate(texts.items())
    }
    for key, found in told.items():
        assert found["assumes"][0] == "as recorded"
        assert abs(found["error"][0]) < 0.01
        for schedule, chunks in texts:
            predicted = found.filter(schedule=schedule, chunks=chunks, microbatches=8)["predicted"].item()
            assert predicted == pytest.approx(told[schedule, chunks]["pipeline"][0], rel=0.02), key


def test_the_report_draws_every_pass_of_a_step_and_says_what_it_assumes(tmp_path: Path) -> None:
    simulate(a_job("pp4-dp2-m8"), tmp_path / "run")
    page = lostflops.why(tmp_path / "run")
    drawn = html(page).partition('id="pipeline"')[2].partition("</section>")[0]
    assert drawn.count("<rect ") == 4 * 2 * 8
    for said in ("1F1B, 8 microbatches", "forward of microbatch 7: ", "stage 3", "cost nothing more"):
        assert said in drawn
