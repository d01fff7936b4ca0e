"""Parquet, Arrow and CSV hold what was asked for, cut exactly at its edges."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import BadOption, CannotAnswer, CannotWrite, LostflopsError, NothingExported

RUN = Path(__file__).parents[2] / "examples" / "runs" / "ddp"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_a_table_comes_out_as_it_is(tmp_path: Path, ending: str) -> None:
    trace = lostflops.open(RUN)
    said = lostflops.write(trace, tmp_path / f"t.{ending}", table="operators")
    read = {"parquet": pl.read_parquet, "arrow": pl.read_ipc, "csv": pl.read_csv}[ending]
    found = read(tmp_path / f"t.{ending}")
    table = trace.table("operators")
    assert table is not None
    expected = table.collect()
    assert said.drawn.rows == found.height == expected.height
    for column in ("rank", "start", "end", "name"):
        mine = expected.sort("rank", "start", "end", maintain_order=True)[column]
        mine = mine.cast(pl.String) if column == "name" else mine.cast(pl.Int64)
        assert found[column].cast(mine.dtype).to_list() == mine.to_list()


def test_a_recipe_is_a_table_too(tmp_path: Path) -> None:
    trace = lostflops.open(RUN)
    lostflops.write(trace, tmp_path / "t.parquet", table="step-ledger")
    answer = lostflops.ask(trace, "step_ledger")
    assert pl.read_parquet(tmp_path / "t.parquet").height == answer.height


def test_rows_are_cut_exactly_at_the_window(tmp_path: Path) -> None:
    trace = lostflops.open(RUN)
    low, high = 700_000_001, 701_000_007
    said = lostflops.write(trace, tmp_path / "t.parquet", table="ranges", window=(low, high), ranks=[1, 3])
    found = pl.read_parquet(tmp_path / "t.parquet")
    table = trace.table("ranges")
    assert table is not None
    whole = table.filter(pl.col("rank").is_in([1, 3]), pl.col("start") < high, pl.col("end") > low).collect()
    assert found.height == whole.height > 0
    assert found["start"].min() == low
    assert found["end"].max() == high
    crossing = whole.filter((pl.col("start") < low) | (pl.col("end") > high))
    assert said.cut == crossing.height > 0
    length = whole.select(
        (pl.min_horizontal("end", pl.lit(high)) - pl.max_horizontal("start", pl.lit(low))).sum()
    )
    assert (found["end"] - found["start"]).sum() == length.item()


def test_steps_bound_each_rank_by_its_own(tmp_path: Path) -> None:
    trace = lostflops.open(RUN)
    lostflops.write(trace, tmp_path / "t.parquet", table="operators", steps=(4, 5))
    found = (
        pl.read_parquet(tmp_path / "t.parquet")
        .group_by("rank")
        .agg(pl.col("start").min(), pl.col("end").max())
    )
    steps = trace.table("steps")
    assert steps is not None
    edges = (
        steps.filter(pl.col("step").is_between(4, 5))
        .group_by("rank")
        .agg(pl.col("start").min(), pl.col("end").max())
    )
    both = found.join(edges.collect(), on="rank", suffix="_edge")
    assert both.height == 4
    assert (both["start"] >= both["start_edge"]).all()
    assert (both["end"] <= both["end_edge"]).all()


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"table": "kernel"}, BadOption, "Did you mean 'kernels'"),
        ({}, BadOption, "--table kernels"),
        ({"table": "counters"}, CannotAnswer, "needs"),
        ({"table": "kernels", "ranks": [9]}, BadOption, "it has 0-3"),
        ({"table": "kernels", "window": (10**15, 10**16)}, NothingExported, "recorded from"),
        ({"table": "kernels", "steps": (90, 91)}, LostflopsError, "3 to 6"),
        ({"table": "kernels", "to": "folded"}, BadOption, "not one table"),
        ({"table": "kernels", "to": "parket"}, BadOption, "Did you mean 'parquet'"),
    ],
)
def test_what_cannot_be_had_is_refused_in_words(
    tmp_path: Path, asked: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as told:
        lostflops.write(RUN, tmp_path / "t.parquet", **asked)  # pyright: ignore[reportArgumentType]
    assert said in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("before")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lostflops.export.spreadsheet.spreadsheet_safe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lostflops.write(RUN, tmp_path / "t.csv", table="steps")
    assert [f.name for f in tmp_path.iterdir()] == ["t.csv"]
    assert (tmp_path / "t.csv").read_text() == "before"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite):
        lostflops.write(RUN, tmp_path / "not there" / "t.csv", table="steps")


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(RUN), "--table", "ranges", "--window", "700ms-701ms", "--ranks", "1-2"]
    assert main([*words, "--output", str(tmp_path / "t.csv")]) == 0
    said = capsys.readouterr().out
    assert "exported 5 rows of 2 ranks" in said
    assert "cut at an edge of what was asked for: 5 rows" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "x.pftrace", "--window", "5"], "no stretch of time"),
        (["--output", "x.pftrace", "--window", "5s-2s"], "write `--window 2s-5s`"),
        (["--output", "x.unknown"], "belongs to no format"),
        (["--output", "x.pftrace", "--to", "perfeto"], "Did you mean 'perfetto'"),
    ],
)
def test_the_command_refuses_in_words(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) if "--to" in words else _Nothing():
        assert main(["export", str(RUN), *words]) == 2
    assert said in capsys.readouterr().err


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
