"""The tables made of simulated traces agree with the truth to the nanosecond, whatever the strategy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lostflops
from lab.held_to_truth import differences, truth_of
from lostflops import cli, run_folder
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.session import Session

STRATEGIES = (
    "ddp", "fsdp2", "zero1", "zero2-m2", "zero3", "tp2-dp4", "ep4", "tp2-pp2-dp2-m4", "pp4-gpipe-dp2-m4",
    "pp4-interleaved-v2-m4", "pp4-zb-m6",
)  # fmt: skip


def a_job(text: str, ranks: int = 8, **knobs: object) -> SimulatedJob:
    model = "qwen3-30b-a3b" if "ep" in text else "llama-3-8b"
    sizes = {"steps": 2, "warmup": 1, "model": model} | knobs
    return SimulatedJob(strategy(text, ranks), **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", STRATEGIES)
def test_steps_accounts_and_waits_are_the_true_ones(text: str, tmp_path: Path) -> None:
    simulate(a_job(text), tmp_path)
    assert list(differences(tmp_path)) == []


def test_a_slow_rank_is_what_the_page_names_first(tmp_path: Path) -> None:
    fault = with_fault(a_job("ddp"), "slow-rank")
    simulate(fault.job, tmp_path, fault=fault)
    page = lostflops.why(tmp_path)
    assert page.findings[0].rank == fault.culprit.ranks[0]
    assert truth_of(tmp_path)["step"] > 1.3 * truth_of(tmp_path)["step_without_fault"]
    assert list(differences(tmp_path)) == []


def test_the_page_says_that_the_job_never_ran(tmp_path: Path) -> None:
    simulate(a_job("ddp", 2), tmp_path)
    shown = lostflops.why(tmp_path)
    assert "Simulated: this job never ran." in str(shown)
    assert shown.run.ranks == (0, 1)
    assert not any("left out" in fact.name for fact in shown.quality)  # the truth is no trace


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_seed_writes_the_same_bytes_and_another_one_others(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(1.0)
    monkeypatch.setattr("time.time", lambda: next(seconds))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(a_job("fsdp2", 2, seed=seed), tmp_path / name, packed=packed)
    files = [path.name for path in sorted((tmp_path / "a").iterdir())]
    assert len(files) == 4
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / files[0]).read_bytes() != (tmp_path / "c" / files[0]).read_bytes()


def test_several_processes_write_what_one_does(tmp_path: Path) -> None:
    job = a_job("tp2-dp2", 4)
    simulate(job, tmp_path / "one", packed=False, processes=1)
    simulate(job, tmp_path / "two", packed=False, processes=2)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_command_writes_traces_and_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "simulate", "--ranks", "4", "--steps", "1", "--fault", "slow-rank", "--output"]
    assert cli.main([*words, str(tmp_path / "run")]) == 0
    assert "without the fault" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        run_folder.TRUTH, run_folder.TRUTH_OF_CALLS, *(f"rank{n:05d}.pt.trace.json.gz" for n in range(4))
    }  # fmt: skip
    truth = json.loads((tmp_path / "run" / run_folder.TRUTH).read_text())
    assert truth["fault"] == "slow-rank"
    assert len(truth["culprit"]["ranks"]) == 1
    assert cli.main([*words, str(tmp_path / "run")]) == 2  # there is something in the folder already
    assert cli.main([*words[:-1], "--strategy", "tp3", "--output", str(tmp_path / "x")]) == 2
    assert "ranks" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["ddp", "tp2-dp2", "fsdp2"])
def test_an_nsight_export_of_the_job_tells_the_same(text: str, tmp_path: Path) -> None:
    simulate(a_job(text, 4), tmp_path, format="nsys")
    assert list(differences(tmp_path)) == []
    page = lostflops.why(tmp_path)
    assert "Simulated: this job never ran." in str(page)
    assert (page.run.ranks, page.run.world_size) == ((0, 1, 2, 3), 4)


@pytest.mark.parametrize("text", ["ddp", "tp2-dp2", "fsdp2"])
def test_both_kinds_of_files_tell_the_same_bytes(text: str, tmp_path: Path) -> None:
    told: list[pl.DataFrame] = []
    for form in ("kineto", "nsys"):
        simulate(a_job(text, 4, steps=1), tmp_path / form, format=form)
        rows = lostflops.open(tmp_path / form).table("collectives")
        assert rows is not None
        kinds = [pl.col("kind").cast(pl.String), "bytes_in", "bytes_out"]
        told.append(rows.select("rank", *kinds).collect().sort("rank", "kind", "bytes_in", "bytes_out"))
    assert_frame_equal(*told)


@pytest.mark.parametrize(
    ("fault", "text", "found"),
    [
        ("garbage-collection", "pp4-dp2-zb-m8", "garbage-collection-inside-step"),
        ("slow-gpu", "pp4-dp2-zb-m8", "rank-arrives-last"),
    ],
)
def test_stages_of_a_pipeline_do_not_hide_why_they_wait(
    fault: str, text: str, found: str, tmp_path: Path
) -> None:
    planted = with_fault(a_job(text, steps=3, layers=4), fault)
    simulate(planted.job, tmp_path, fault=planted)
    first = lostflops.why(tmp_path).findings[0]
    assert first.name == found
    assert not planted.culprit.ranks or first.rank in planted.culprit.ranks


def test_a_healthy_pipeline_waits_for_its_schedule_alone(tmp_path: Path) -> None:
    simulate(a_job("pp4-dp2-zb-m8", steps=3, layers=4), tmp_path)
    names = [finding.name for finding in lostflops.why(tmp_path).findings]
    assert names[:1] == ["pipeline-bubble"]
    assert "communication-waits" not in names


# Nsight Systems knows groups by numbers, and not what they are for.
OF_GROUPS = {"group", "basis", "told_by", "dtype", "parameters", "expected", "excess"}
ANSWERS = ("pipeline_passes", "pipeline_bubble", "parallelism", "communication_waited_for", "step_ledger")


def told(folder: Path, names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Answers to questions on a job, without what groups are called."""
    session = Session(lostflops.open(folder))
    found: dict[str, pl.DataFrame] = {}
    for name in names:
        table = session.run(name).table
        kept = table.select(c for c in table.columns if c not in OF_GROUPS)
        found[name] = kept.sort(c for c in kept.columns if not kept[c].dtype.is_nested())
    return found


@pytest.mark.parametrize(
    ("text", "ranks", "edit"),
    [
        ("pp4-dp2-m8", 8, "schedule=gpipe"),
        ("tp2-pp2-dp2-m6", 8, "microbatches=12"),
        ("pp4-zb-m6", 4, "even-work"),
        ("pp4-interleaved-v2-m4", 4, "schedule=1f1b"),
    ],
)
def test_both_kinds_of_files_tell_the_same_pipeline(text: str, ranks: int, edit: str, tmp_path: Path) -> None:
    found: list[tuple[dict[str, pl.DataFrame], object]] = []
    for form in ("kineto", "nsys"):
        simulate(a_job(text, ranks, layers=8), tmp_path / form, format=form)
        gains = [(p.predicted_ns, p.refused) for p in lostflops.whatif(tmp_path / form, edit).predictions]
        found.append((told(tmp_path / form, ANSWERS), gains))
    (one, gain), (other, also) = found
    assert one["pipeline_bubble"].height and one["parallelism"].height
    for name in ANSWERS:
        assert_frame_equal(one[name], other[name])
    assert gain == also


def test_both_kinds_of_files_tell_the_same_experts(tmp_path: Path) -> None:
    names, found = ("expert_balance", "communication_waited_for"), list[dict[str, pl.DataFrame]]()
    for form in ("kineto", "nsys"):
        simulate(a_job("ep4"), tmp_path / form, format=form)
        found.append(told(tmp_path / form, names))
    assert found[0]["expert_balance"].height == 8
    for name in names:
        assert_frame_equal(found[0][name], found[1][name])
