"""`lostflops sql` answers one SELECT on a run's tables and recipes, reads nothing else, changes nothing."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

pytest.importorskip("duckdb")

import lostflops
from lostflops.cli import main
from lostflops.report.opened import OpenedRun
from lostflops.report.sql import query as asked
from lostflops.report.sql.query import query
from lostflops.store import trace as stored
from lostflops.store.trace import Trace
from lostflops.tables import TABLES

ROOT = Path(__file__).parents[2]
DDP = str(ROOT / "examples" / "runs" / "ddp")


@pytest.fixture(autouse=True, scope="module")
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(scope="module")
def run(_own_store: None) -> OpenedRun:
    return lostflops.open(DDP)


def told(run: Trace, text: str) -> str:
    with pytest.raises(lostflops.LostflopsError) as refused:
        query(run, text)
    return str(refused.value)


def same_tables(run: Trace) -> None:
    for name in run.manifest.tables:
        frame = run.table(name)
        assert frame is not None
        table = frame.collect()
        of_sql = query(run, f"from {name}")
        if {"start", "end"} <= set(table.columns):
            table = table.with_columns(duration=pl.col("end") - pl.col("start"))
        texts = [c for c, t in table.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
        table = table.with_columns(pl.col(texts).cast(pl.String))
        assert_frame_equal(of_sql, table, check_row_order=False, check_dtypes=True)


def test_a_query_sees_the_tables_as_python_does(run: Trace) -> None:
    same_tables(run)


def test_a_query_sees_some_steps_and_ranks_as_python_does(run: Trace) -> None:
    some = run.select(ranks=frozenset({1, 3}), steps=(4, 5))
    assert query(some, "select distinct rank from kernels order by rank")["rank"].to_list() == [1, 3]
    assert query(some, "select distinct step from steps order by step")["step"].to_list() == [4, 5]
    same_tables(some)


def test_times_are_those_of_aligned_clocks(run: Trace) -> None:
    moved = Trace.open(run.path)
    moved.manifest.offsets = {"1": 17, "3": -5}
    begins = 'select min("start") as begin from kernels group by rank order by rank'
    first, unmoved = (query(one, begins)["begin"].to_list() for one in (moved, run))
    assert [a - b for a, b in zip(first, unmoved, strict=True)] == [
        (moved.manifest.offsets | {"0": 0, "2": 0})[str(rank)] - run.manifest.offsets.get(str(rank), 0)
        for rank in range(4)
    ]
    same_tables(moved)


def test_sums_and_names_are_plain_integers_and_text(
    run: OpenedRun,
) -> None:
    table = run.sql("select family, sum(duration) as total, 0.5 as half from kernels group by all")
    assert table.schema == {"family": pl.String, "total": pl.Int64, "half": pl.Float64}
    kernels = run.table("kernels")
    assert kernels is not None
    by_hand = kernels.select((pl.col("end") - pl.col("start")).sum()).collect().item()
    assert table["total"].sum() == by_hand > 0
    odd = run.sql(
        "select interval 1 day as i, 10::hugeint as h, map {[1]: 2} as m, 'a'::blob as b, null as n"
    )
    assert odd.row(0) == ("1 day", 10, "{[1]=2}", "a", None)
    large = run.sql("select 9223372036854775807::hugeint * 2 as h")["h"]
    assert int(large[0]) == 2 * (2**63 - 1), "what 64 bits do not hold stays exact"


def test_a_recipe_is_a_table(run: Trace) -> None:
    for name in ("kernel_summary", '"kernel-summary"', "Kernel_Summary"):
        found = query(run, f"select rank, name, time from {name} order by rank, name")
        expected = lostflops.ask(run, "kernel_summary").select("rank", pl.col("name").cast(pl.String), "time")
        assert_frame_equal(found, expected.sort("rank", "name"))
    joined = query(
        run, "with k as (from kernels) select count(*) as n from k join step_time s on k.rank = s.rank"
        if "step_time" in lostflops.recipes.recipes() else
        "with k as (from kernels) select count(*) as n from k join communication_wait s on k.rank = s.rank"
    )  # fmt: skip
    assert joined["n"][0] > 0
    own = query(run, "with gpu_gaps as (select 5 as x) select x from gpu_gaps")
    assert own["x"].to_list() == [5], "a name of the query's own hides the recipe"


ONLY = "A query reads the tables of its run and nothing else.|There is no table called"
REFUSED = {
    "": "There is no query.",
    "-- nothing": "There is no query.",
    "select 1; select 2": "One query is answered at a time.",
    "create table x as select 1": "Only SELECT is answered",
    "copy (select 1) to '{free}'": "Only SELECT is answered|reads the tables of its run",
    "copy (select 1) to '{part}'": "Only SELECT is answered|reads the tables of its run",
    "with x as (insert into kernels values (1) returning *) from x": "Only SELECT is answered",
    "set enable_external_access = true": "Only SELECT is answered",
    "attach '{free}' as other": "Only SELECT is answered",
    "install httpfs": "Only SELECT is answered",
    "load httpfs": "Only SELECT is answered",
    "pragma database_list": "Only SELECT is answered",
    "call pragma_version()": "Only SELECT is answered",
    "explain analyze copy (select 1) to '{free}'": "Only SELECT is answered|reads the tables",
    "export database '{free}'": "Only SELECT is answered|reads the tables",
    "from '{secret}'": ONLY,
    "from read_csv('{secret}')": ONLY,
    "from read_text('{secret}')": ONLY,
    "from read_blob('/etc/hostname')": ONLY,
    "from read_parquet('{parquet}')": ONLY,
    "from glob('/etc/*')": ONLY,
    "from sniff_csv('{secret}')": ONLY,
    "from parquet_metadata('{parquet}')": ONLY,
    "from 'http://127.0.0.1:9/x.parquet'": ONLY,
    "from 'https://127.0.0.1:9/x.csv'": ONLY,
    "select getenv('HOME')": "The query cannot be answered",
    "from run": "There is no table called 'run'",  # no variable of Python's
    "from frame": "There is no table called 'frame'",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_query_reads_its_run_and_changes_nothing(run: Trace, text: str, tmp_path: Path) -> None:
    secret, parquet, free = tmp_path / "secret.csv", tmp_path / "other.parquet", tmp_path / "written"
    secret.write_text("word\nsesame\n")
    frame = pl.DataFrame({"word": ["sesame"]})
    frame.write_parquet(parquet)
    part = run.path / run.files("kernels")[0]
    before = {file: file.read_bytes() for file in run.path.rglob("*.parquet")}
    asked_for = text.format(secret=secret, parquet=parquet, free=free, part=part)
    said = told(run, asked_for)
    assert any(words in said for words in REFUSED[text].split("|")), said
    assert "sesame" not in said and not free.exists()
    assert before == {file: file.read_bytes() for file in run.path.rglob("*.parquet")}


SAID = {
    "from kernel": "There is no table called 'kernel'. Did you mean 'kernels'?\nHint: this run has ranks, ",
    "from gpu_gap": "There is no table called 'gpu_gap'. Did you mean 'gpu_gaps'?",
    "from Allocations": "This run has no table 'Allocations': memory events were not recorded; needs ",
    "from memory_timeline": "'memory_timeline' cannot be answered on this trace: memory events were not",
    "select strat from kernels": "There is no column called 'strat'. Did you mean 'start'?\nHint: kernels",
    "select calles from kernel_summary": "There is no column called 'calles'. Did you mean 'calls'?",
    "select k.nam from kernels k": "There is no column called 'nam'. Did you mean 'name'?",
    "select end - start from kernels": 'This is no SQL: syntax error at or near "end".\nHint: write "end"',
    "selec 1": "This is no SQL: syntax error at or near",
    "from kernels k join kernels j using (rank)": "The answer would have two columns called 'start'.",
    "select 'x'::int": "The query cannot be answered: Could not convert string 'x' to INT32.",
    "select name::int from kernels": "The query cannot be answered: Could not convert string '",
    'from "\x1b[31mred"': "There is no table called '\\x1b[31mred'.",
    'select "\x1b[31mred" from kernels': "There is no column called '\\x1b[31mred'.",
    "select '\x1b[31m'::int": "The query cannot be answered: Could not convert string '\\x1b[31m'",
}


@pytest.mark.parametrize("text", SAID)
def test_what_cannot_be_answered_is_told_in_a_sentence(run: Trace, text: str) -> None:
    said = told(run, text)
    assert said.startswith(SAID[text]), said
    assert "\x1b" not in said and "LINE 1" not in said and "Error:" not in said


def test_an_answer_too_large_for_memory_is_refused(run: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MOST_CELLS", 100)
    assert query(run, "from range(100)").height == 100
    assert told(run, "from range(101)").startswith("The answer has more than 100 rows")
    monkeypatch.setattr(asked, "MOST_CELLS", 10**9)
    monkeypatch.setattr(asked, "available", lambda: 512 << 20)
    assert told(run, "from range(1000000000)").startswith("The answer has more than 16,777,216 rows")


def test_ctrl_c_ends_a_query_at_once(run: Trace) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            query(run, "select count(*) from range(100000000000) r where r.range % 7 = 3")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert query(run, "select 1 as x")["x"].to_list() == [1]


def test_the_path_of_a_run_is_no_pattern(tmp_path: Path) -> None:
    place = tmp_path / "rank=7" / "we[i]rd *?'\"{x} name=y"
    assert main(["import", DDP, "--output", str(place)]) == 0
    copied = lostflops.open(place)
    same_tables(copied)
    assert sorted(query(copied, "select distinct rank from kernels")["rank"]) == [0, 1, 2, 3]


def test_a_damaged_run_answers_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["import", DDP, "--output", str(tmp_path / "run")]) == 0
    monkeypatch.setattr(stored, "COMPARED_AT_ONCE", 0)
    damaged = lostflops.open(tmp_path / "run")
    part = damaged.path / damaged.files("kernels")[0]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert "is damaged" in told(damaged, "select count(*) from kernels")
    assert query(damaged, "select count(*) as n from steps")["n"][0] > 0, "another table's is not read"


def test_answers_come_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "select name, sum(duration) as total from kernels group by name order by total desc, name limit 3"
    expected = lostflops.open(DDP).sql(text)
    for form in ("csv", "json", "parquet"):
        target = tmp_path / f"answer.{form}"
        assert main(["sql", DDP, text, "--output", str(target)]) == 0
        read = {"csv": pl.read_csv, "json": pl.read_json, "parquet": pl.read_parquet}[form]
        assert_frame_equal(read(target), expected)
    capsys.readouterr()
    assert main(["sql", DDP, text]) == 0
    said = capsys.readouterr().out
    assert said.split()[:2] == ["name", "total"] and str(expected["total"][0]) in said
    assert main(["sql", DDP, "select 1 as \"a\x1bb\", chr(27) || '=x' as c", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "a\\x1bb,c\n1,\\x1b=x\n"
    assert main(["sql", DDP, "from kernels", "--format", "parquet"]) == 2
    assert main(["sql", DDP, "from kernels", "--output", str(tmp_path / "absent" / "x.csv")]) == 2
    assert main(["sql", DDP, "from kernel", "--output", str(tmp_path / "none.csv")]) == 2
    assert not (tmp_path / "none.csv").exists()


def test_a_query_is_read_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select count(*) as n\nfrom steps"))
    assert main(["sql", DDP, "-", "--steps", "4", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "n\n4\n"


def test_without_duckdb_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["sql", DDP, "select 1"]) == 2
    assert "pip install 'lostflops[sql]'" in capsys.readouterr().err


# What the tables are


def test_the_schema_names_every_table_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    said = capsys.readouterr().out
    for table in TABLES.values():
        assert f"\n{table.name}\n" in f"\n{said}"
        for column in table.columns:
            assert f"  {column.name} " in said and column.meaning in said
    assert main(["schema", "--format", "json"]) == 0
    known = json.loads(capsys.readouterr().out)["tables"]
    assert [table["name"] for table in known] == list(TABLES)
    assert known[2]["columns"][1] == {
        "name": "start", "type": "instant", "unit": "ns", "meaning": "start", "nullable": False,
    }  # fmt: skip
    assert {table["rows"] for table in known} == {None}


def test_the_schema_of_a_run_counts_rows_and_says_what_is_missing(
    run: Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", DDP, "--format", "json"]) == 0
    known = {table["name"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert set(known) == set(TABLES)
    for name, table in known.items():
        frame = run.table(name)
        assert table["rows"] == (None if frame is None else frame.collect().height)
        assert (table["absent"] is None) == run.has(name)
    assert main(["schema", DDP, "allocations"]) == 0
    assert "This run has no allocations" in capsys.readouterr().out
    assert main(["schema", DDP, "steps"]) == 0
    assert capsys.readouterr().out.startswith("steps  16 rows\n")


def test_the_schema_of_one_word_is_that_of_a_table_or_a_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["schema", "kernel-summary"]) == 0
    assert capsys.readouterr().out.startswith("kernel_summary\nWhich kernels take GPU time?\n")
    assert main(["schema", "kernal"]) == 2
    assert "Did you mean 'kernels'?" in capsys.readouterr().err
    assert main(["schema", DDP, "\x1bkernal"]) == 2
    assert "\x1b" not in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").symlink_to(DDP)
    assert main(["schema", "./kernels"]) == 0
    assert "16 rows" in capsys.readouterr().out
