"""`lostflops recipe NAME A --against B`: rows of two runs side by side."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import RowsWithoutCounterpart
from lostflops.experiment.difference.against import against
from lostflops.recipes import recipes
from lostflops.session import Answer, Session

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "runs"
SLOW, FAST = str(RUNS / "lora-workers-0"), str(RUNS / "lora-workers-4")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def test_rows_are_joined_by_what_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "kernel-summary", SLOW, "--against", FAST, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    first, second = (
        dict(lostflops.ask(run, "kernel_summary").select("name", "per_step").iter_rows())
        for run in (SLOW, FAST)
    )
    assert {row["name"] for row in rows} == {*first, *second}
    for row in rows:
        before, after = first.get(row["name"]), second.get(row["name"])
        assert row["per_step_before"] == ("" if before is None else str(before))
        if before is not None and after is not None:
            assert int(row["per_step_change"]) == after - before
    sizes = [abs(int(row["per_step_after"] or 0) - int(row["per_step_before"] or 0)) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


def test_every_recipe_is_joined_with_itself_or_says_that_it_cannot_be() -> None:
    session = Session(lostflops.open(RUNS / "ddp"))
    joined = 0
    for name in recipes():
        said = session.run(name)
        if not isinstance(said, Answer) or said.table.is_empty():
            continue
        try:
            found = against(said, said)
        except RowsWithoutCounterpart:
            continue
        joined += 1
        assert found.table.height == said.table.height, name
        assert set(found.table.columns) == set(found.recipe.columns), name
        for column in found.table.columns:
            if column.endswith("_change") and found.table[column].dtype.is_integer():
                assert not (found.table[column].fill_null(0) != 0).any(), f"{name}.{column}"
    assert joined > 20


def test_single_events_have_no_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "idle-causes", SLOW, "--against", FAST]) == 2
    assert "no counterpart" in capsys.readouterr().err


def test_a_table_against_an_empty_one_keeps_its_rows() -> None:
    said = Session(lostflops.open(SLOW)).run("kernel_summary")
    assert isinstance(said, Answer)
    nothing = Answer(said.recipe, said.table.clear(), ())
    found = against(said, nothing).table
    assert found.height == said.table.height and found["per_step_after"].null_count() == found.height


def test_files_are_written_and_inputs_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.parquet"
    assert main(["recipe", "kernel-families", SLOW, "--against", FAST, "--output", str(out)]) == 0
    assert {"family", "per_step_before", "per_step_after", "per_step_change"} <= set(
        pl.read_parquet(out).columns
    )
    assert main(["recipe", "kernel-families", SLOW, "--against", str(tmp_path / "absent")]) == 2
    assert main(["recipe", "kernel-families", SLOW, "--against", str(out), "--output", str(out)]) == 2
    assert capsys.readouterr().err.count("Hint") == 2
