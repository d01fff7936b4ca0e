"""What a run keeps of its recipes' answers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from lostflops import recipes
from lostflops.session import Answer, Session, Skipped
from lostflops.store import answers
from lostflops.store.parts import write_part
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest
from lostflops.tables import TABLES
from lostflops.testing import example_table

ROWS = {
    "ranks": [{"start": 0, "end": 90, "main_thread": 7, "device_kind": "gpu"}],
    "steps": [{"step": 3, "start": 0, "end": 40}, {"step": 4, "start": 40, "end": 90}],
    "kernels": [
        {"start": 5, "end": 16, "name": "gemm", "family": "gemm", "launch_start": 1, "thread": 7},
        {"start": 23, "end": 60, "name": "relu", "family": "elementwise", "launch_start": 19, "thread": 7},
    ],
    "operators": [{"start": 17, "end": 21, "thread": 7, "name": "aten::relu"}],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, rows in ROWS.items():
        write_part(tmp_path, name, 0, example_table(TABLES[name], rows).collect())
    write_manifest(
        tmp_path,
        Manifest(
            format=FORMAT,
            lostflops="0",
            clock="a test's",
            origin_ns=0,
            sources=[],
            tables=list(ROWS),
            num_events=5,
            quality=[],
        ),
    )
    return tmp_path


def ask(run: Path | Trace, name: str, **options: object) -> pl.DataFrame:
    said = Session(run if isinstance(run, Trace) else Trace.open(run)).run(name, **options)
    assert isinstance(said, Answer)
    return said.table


def kept(run: Path) -> list[str]:
    return sorted(p.name.partition("-")[0] for p in (run / answers.FOLDER).glob("*"))


def forget_how(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def unable(*_: object, **__: object) -> pl.LazyFrame:
        raise AssertionError("computed again")

    for name in names:
        monkeypatch.setattr(recipes.named(name), "function", unable)
        unable.__module__ = f"lostflops.recipes.{name}"


@pytest.mark.parametrize("name", [n for n, known in recipes.recipes().items() if known.page])
def test_asked_again_a_recipe_says_the_same_without_computing(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Session(Trace.open(run)).run(name)
    forget_how(monkeypatch, name)
    again = Session(Trace.open(run)).run(name)
    if isinstance(first, Skipped):
        assert again == first
        return
    assert isinstance(again, Answer)
    assert_frame_equal(again.table, first.table)
    assert again.findings == first.findings


def test_what_a_kept_answer_was_made_from_is_not_computed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ask(run, "step_ledger")
    forget_how(monkeypatch, "device_runs", "idle_stretches")
    assert_frame_equal(ask(run, "step_ledger"), table)


def test_slices_and_options_are_answered_apart(run: Path) -> None:
    trace = Trace.open(run)
    whole = ask(trace, "step_ledger")
    assert ask(trace.select(steps=(4, 4)), "step_ledger")["step"].unique().to_list() == [4]
    assert_frame_equal(ask(trace, "step_ledger"), whole)
    assert ask(trace, "gpu_gaps")["ns"].to_list() == []
    assert ask(trace, "gpu_gaps", at_least_ns=6)["ns"].to_list() == [30, 7]
    assert ask(trace, "gpu_gaps", at_least_ns=8)["ns"].to_list() == [30]
    assert ask(trace, "gpu_gaps")["ns"].to_list() == []


def test_another_lostflops_computes_anew(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(run, "step_ledger")
    forget_how(monkeypatch, "step_ledger")
    monkeypatch.setattr(answers, "fingerprint", lambda: "edited")
    with pytest.raises(AssertionError, match="computed again"):
        ask(run, "step_ledger")


def test_another_run_in_the_same_place_is_not_answered_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace.open(run)
    ask(trace, "step_ledger")
    forget_how(monkeypatch, "step_ledger")
    trace.manifest.num_events += 1
    with pytest.raises(AssertionError, match="computed again"):
        ask(trace, "step_ledger")


def test_a_damaged_answer_is_computed_anew(run: Path) -> None:
    table = ask(run, "step_ledger")
    for file in (run / answers.FOLDER).iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    assert_frame_equal(ask(run, "step_ledger"), table)
    assert kept(run) == ["step_ledger"]
    assert_frame_equal(ask(run, "step_ledger"), table)


def test_a_run_that_cannot_be_written_to_is_answered(run: Path) -> None:
    (run / answers.FOLDER).touch()
    assert ask(run, "step_ledger").height


def test_what_only_feeds_others_and_what_is_skipped_leave_no_file(run: Path) -> None:
    session = Session(Trace.open(run))
    session.run("step_ledger")
    session.run("device_runs")
    assert isinstance(session.run("communication_summary"), Skipped)
    assert kept(run) == ["step_ledger"]
