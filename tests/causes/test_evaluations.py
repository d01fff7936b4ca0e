"""An evaluation inside the steps: what it takes, and when it is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import eager_jobs
import lostflops
from eager_jobs import Eager, EagerStep, recorded, step_of
from lostflops.finding import Finding
from lostflops.recipes.idle.evaluations import in_evaluations
from made_runs import made

TRAINER = "transformers/trainer.py"


def evaluated(step: EagerStep, frame: str = f"{TRAINER}(4100): evaluate") -> None:
    around = (f"{TRAINER}(2600): _maybe_log_save_evaluate", frame, f"{TRAINER}(4280): evaluation_loop")
    with step.frames(*around, f"{TRAINER}(4480): prediction_step"):
        for _ in range(3):
            step.forward()
            step.item()
    with step.frames(*around, "transformers/trainer_pt_utils.py(100): nested_concat"):
        step.p.work(3000)


def why(folder: Path, job: Eager) -> dict[str, Finding]:
    return {f.name: f for f in lostflops.why(recorded(folder, job)).findings}


@pytest.mark.parametrize("gemm_us", [40, 200])
def test_an_evaluation_in_each_step_is_to_be_made_less_often(tmp_path: Path, gemm_us: float) -> None:
    """The same job without it is faster by what the finding says, and by no more than its bound."""
    job = Eager(gemm_us=gemm_us, after=evaluated, stacks=True, host_us=8, reads=True)
    found = why(tmp_path / "with", job)
    one = found["evaluation-inside-step"]
    assert one.claim.startswith("The Trainer evaluates in each step, which takes ")
    assert "`eval_steps`" in one.next and '`eval_strategy="epoch"`' in one.next
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", replace(job, after=None)))
    assert abs(saved - one.size) < 0.1 * saved and saved <= one.ns_per_step < 1.5 * saved
    assert not {"host-busy-elsewhere", "launch-bound"} & {*found}


LOOP = "lightning/pytorch/loops/evaluation_loop.py"


def validated(step: EagerStep) -> None:
    """As Lightning does where `val_check_interval` is small."""
    loops = ("lightning/pytorch/loops/training_epoch_loop.py(404): on_advance_end", f"{LOOP}(118): run")
    with step.frames(*loops, f"{LOOP}(400): _evaluation_step"):
        for _ in range(3):
            step.forward()
            step.item()
    with step.frames(*loops, "lightning/pytorch/trainer/connectors/logger_connector/result.py(200): update"):
        step.p.work(3000)


def test_a_validation_of_lightning_is_told_in_its_words(tmp_path: Path) -> None:
    job = Eager(gemm_us=40, after=validated, stacks=True, host_us=8, reads=True)
    one = why(tmp_path / "with", job)["evaluation-inside-step"]
    assert one.claim.startswith("Lightning validates in each step, which takes ")
    assert "`val_check_interval`" in one.next and "eval_steps" not in one.next
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", replace(job, after=None)))
    assert abs(saved - one.size) < 0.1 * saved and saved <= one.ns_per_step


def own(step: EagerStep, *frames: str, passes: int = 6) -> None:
    """A function of the job's that runs the model under `no_grad`, which numbers nothing."""
    job, step.in_graph = step.in_graph, dict  # type: ignore[method-assign]
    with step.frames(*(frames or ("train.py(60): evaluate",))):
        for _ in range(passes):
            step.forward()
            step.item()
        step.p.work(3000)
    step.in_graph = job  # type: ignore[method-assign]


def test_an_evaluation_of_the_job_s_own_is_told_by_its_function(tmp_path: Path) -> None:
    """Most of it is compute: what its Python takes, 3 ms, is the smaller part."""
    job = Eager(gemm_us=40, after=own, stacks=True, host_us=8, reads=True)
    found = why(tmp_path / "with", job)
    one = found["evaluation-inside-step"]
    assert one.claim.startswith("`evaluate` runs the model without training it in each step, which takes ")
    assert "`evaluate` (train.py:60)" in one.next and "eval_steps" not in one.next
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", replace(job, after=None)))
    assert abs(saved - one.size) < 0.01 * saved and saved <= one.ns_per_step < 1.5 * saved
    assert "host-busy-elsewhere" not in found and "no_grad" not in one.next


def test_an_evaluation_with_gradients_on_is_to_run_without(tmp_path: Path) -> None:
    def with_gradients(step: EagerStep) -> None:
        with step.frames("train.py(60): evaluate"):
            step.forward()
            step.item()

    job = Eager(gemm_us=40, layers=6, after=with_gradients, stacks=True, host_us=8)
    assert why(tmp_path, job)["evaluation-inside-step"].next.startswith("Run it under `torch.no_grad()`")


def test_a_function_that_is_called_so_and_runs_no_model_is_none(tmp_path: Path) -> None:
    def checks(step: EagerStep) -> None:
        with step.frames("train.py(61): validate_batch"):
            step.operator("aten::isnan", (eager_jobs.SMALL.format("isnan"), 2))
            step.item()
            step.p.work(3000)

    def loss(step: EagerStep) -> None:  # a part of the training pass
        with step.frames("train.py(62): evaluate_loss"):
            step.linear()

    job = Eager(gemm_us=40, stacks=True, host_us=8, layers=6)
    assert "evaluation-inside-step" not in why(tmp_path / "checks", replace(job, after=checks))
    assert "evaluation-inside-step" not in why(tmp_path / "loss", replace(job, loss=loss))


def test_a_long_step_is_told_by_the_evaluation_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_jobs, "STEPS", 6)
    numbers = iter(range(100))
    job = Eager(gemm_us=40, stacks=True, host_us=8, reads=True, layers=6)
    job.after = lambda step: own(step, passes=9) if next(numbers) == 4 else None
    page = lostflops.why(recorded(tmp_path, job))
    (note,) = (note for note in page.notes if "median" in note)
    assert "the others 2.2" in note and ": `evaluate` takes " in note and " of it. It counts" in note
    assert "evaluation-inside-step" not in {found.name for found in page.findings}


def test_an_evaluation_that_comes_again_is_told_though_most_steps_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_jobs, "STEPS", 6)
    numbers = iter(range(100))
    job = Eager(gemm_us=40, stacks=True, host_us=8, reads=True, layers=6)
    job.after = lambda step: own(step, passes=3) if next(numbers) % 3 == 0 else None
    page = lostflops.why(recorded(tmp_path, job))
    assert page.findings[0].name == "evaluation-inside-step"
    assert "without training it in 2 of 6 steps, which takes " in page.findings[0].claim


def test_what_only_has_its_name_is_no_evaluation_of_the_trainer(tmp_path: Path) -> None:
    job = Eager(gemm_us=40, stacks=True, host_us=8)
    ours = replace(job, after=partial(evaluated, frame="metrics.py(9): evaluate"))
    told = why(tmp_path / "ours", ours)["evaluation-inside-step"]
    assert told.claim.startswith("`evaluate` runs") and "eval_steps" not in told.next
    assert "evaluation-inside-step" not in why(tmp_path / "healthy", job)


def test_evaluations_of_several_ranks_hold_the_idle_time_that_lies_in_them(tmp_path: Path) -> None:
    """Both ranks evaluate from 40 to 80 of each 100 ns, rank 1 a little earlier; 3 and 5 ns idle there."""
    tables: dict[str, list[dict[str, object]]] = {"ranks": [], "steps": [], "kernels": [], "frames": []}
    gaps = list[dict[str, object]]()
    for rank, idles, sooner in ((0, 3, 0), (1, 5, 2)):
        tables["ranks"].append({"rank": rank, "end": 300, "main_thread": 7})
        for step in range(3):
            at = 100 * step - sooner
            one: dict[str, object] = {"rank": rank, "start": at + 40, "end": at + 80, "thread": 7}
            tables["steps"].append({"rank": rank, "step": step, "start": at, "end": at + 100})
            tables["frames"].append({**one, "name": f"{TRAINER}(4100): evaluate"})
            tables["kernels"].append({**one, "launch_start": at + 41, "family": "gemm"})
            for start, ns in ((at + 50, idles), (at + 90, 7)):
                gaps.append({"rank": rank, "step": step, "start": start, "end": start + ns})
    stretches = pl.DataFrame(gaps).with_columns(
        pl.col("rank").cast(pl.Int32), account=pl.lit("idle.launch_bound"), name=pl.lit(None, pl.String)
    )
    counted = stretches.select("rank", "step").unique()
    found = in_evaluations(made(tmp_path, tables), counted, stretches)
    told = found.filter(pl.col("account") != "host").select("rank", "account", "ns")
    assert told.rows() == [
        (0, "compute", 120), (0, "idle.launch_bound", 9), (1, "compute", 120), (1, "idle.launch_bound", 15)
    ]  # fmt: skip


def test_one_evaluation_in_the_recording_may_be_rare_in_the_job(tmp_path: Path) -> None:
    numbers = iter(range(100))
    once = Eager(gemm_us=40, stacks=True, host_us=8)
    once.after = lambda step: evaluated(step) if next(numbers) == 3 else None
    assert "evaluation-inside-step" not in why(tmp_path, once)


def test_one_evaluation_in_one_recorded_step_may_be_rare_in_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_jobs, "STEPS", 1)
    page = lostflops.why(recorded(tmp_path, Eager(gemm_us=40, after=evaluated, stacks=True, host_us=8)))
    assert len(page.steps) == 1
    assert "evaluation-inside-step" not in {found.name for found in page.findings}


def test_an_evaluation_on_a_cpu_is_what_its_main_thread_runs_in_it(tmp_path: Path) -> None:
    """`evaluate` runs from 40 to 80 of each 100 ns, products for 30 of them; another thread's are not its."""
    tables: dict[str, list[dict[str, object]]] = {"steps": [], "kernels": [], "frames": [], "operators": []}
    tables["ranks"] = [{"rank": 0, "end": 300, "main_thread": 7, "device_kind": "cpu"}]
    for step in range(3):
        at, rank = 100 * step, {"rank": 0, "thread": 7}
        tables["steps"].append({"rank": 0, "step": step, "start": at, "end": at + 100})
        tables["frames"].append({**rank, "start": at + 40, "end": at + 80, "name": "train.py(60): evaluate"})
        for start, end, thread in ((at + 5, at + 25, 7), (at + 45, at + 75, 7), (at + 70, at + 79, 8)):
            span = {"rank": 0, "start": start, "end": end, "thread": thread}
            tables["kernels"].append({**span, "family": "gemm"})
        for start, phase in ((at + 5, "forward"), (at + 20, "backward")):
            tables["operators"].append(
                {**rank, "start": start, "end": start + 5, "sequence": step, "phase": phase}
            )
    stretches = pl.DataFrame(
        [{"rank": 0, "step": step, "start": 100 * step + 40, "end": 100 * step + 45} for step in range(3)]
    ).with_columns(
        pl.col("rank").cast(pl.Int32), account=pl.lit("idle.other_host_work"), name=pl.lit(None, pl.String)
    )
    counted = stretches.select("rank", "step").unique()
    told = (
        in_evaluations(made(tmp_path, tables), counted, stretches).group_by("account").agg(pl.col("ns").sum())
    )
    assert dict(told.rows()) == {"compute": 90, "host": 120, "idle.other_host_work": 15}


def test_an_evaluation_of_the_trainer_is_known_by_the_mark_of_a_recording_without_stacks(
    tmp_path: Path,
) -> None:
    tables = {
        "ranks": [{"device_kind": "cpu", "main_thread": 7}],
        "steps": [{"step": 0, "host_start": 0, "host_end": 100, "start": 0, "end": 100}],
        "kernels": [{"start": 20, "end": 33, "thread": 7}, {"start": 50, "end": 60, "thread": 7}],
        "operators": [{"start": 20, "end": 33, "thread": 7}],
        "ranges": [{"name": "Trainer.evaluate", "start": 13, "end": 40, "thread": 7}],
    }
    counted = pl.DataFrame({"rank": [0], "step": [0]}, {"rank": pl.Int32, "step": pl.Int64})
    idle = [(0, 0, "idle.unexplained", "x", 10, 20)]
    columns = {"rank": pl.Int32, "step": pl.Int64, "account": pl.String, "name": pl.String}
    stretches = pl.DataFrame(idle, columns | {"start": pl.Int64, "end": pl.Int64}, orient="row")
    told = in_evaluations(made(tmp_path, tables), counted, stretches)
    assert told.select("account", "name", "ns").rows() == [
        ("compute", None, 13), ("host", "Trainer", 27), ("idle.unexplained", "x", 7),
    ]  # fmt: skip
