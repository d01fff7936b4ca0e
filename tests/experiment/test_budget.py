"""`lostflops check`: limits hold or break exactly, and a budget that is wrong says what is known instead."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lostflops
from kineto_files import call, head, kernel, operator, step, trace, written
from lostflops.accounts import ACCOUNTS
from lostflops.cli import main
from lostflops.errors import BadBudget, LostflopsError, NoBaseline
from lostflops.experiment.budget.amounts import amount
from lostflops.experiment.budget.junit import github, junit
from lostflops.experiment.budget.limits import read
from lostflops.recipes import recipes
from lostflops.session import Session, Skipped

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "runs"
SLOW, FAST = RUNS / "lora-workers-0", RUNS / "lora-workers-4"
EVIL = "x\x1b[31mred\x9b‮"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def budget(folder: Path, text: str) -> Path:
    file = folder / "budget.toml"
    file.write_text(text)
    return file


def run_of(folder: Path, *lengths: float, name: str = "run.json") -> Path:
    """Steps of 100 µs with a product of so many µs; the last ends with its kernel's step mark."""
    events = []
    for i, length in enumerate(lengths):
        at = 1000 + 100 * i
        events += [
            step(i, at, 100),
            operator("aten::mm", at + 5, 10),
            call(at + 8, 4, i + 1),
            kernel(at + 15, length, i + 1),
        ]
    return written(folder / name, trace(events, head(0, 1)))


def statuses(run: Path, file: Path, **more: Any) -> list[str]:
    return [one.status for one in lostflops.check(run, file, **more).outcomes]


@pytest.mark.parametrize(
    ("limit", "holds"),
    [
        ('compute = "40 us"', True),
        ('compute = "39.999 us"', False),
        ('compute = { at_least = "40 us" }', True),
        ('compute = { at_least = "40.001 us" }', False),
        ('compute = { at_least = "30 us", at_most = "40 us" }', True),
        ('idle = "60 us"', True),
        ('idle = "59.9 us"', False),
        ('idle = "60 %"', True),
        ('idle = "59.99 %"', False),
        ('step = "100 us"', True),
        ('step = "99.99 us"', False),
        ('copy = "0 ns"', True),
        ('"idle.data_loading" = "0 ms"', True),
        ('idle.data_loading = "0 ms"', True),
        ('communication.wait.at_most = "1 ms"', True),
    ],
)
def test_a_limit_holds_to_the_nanosecond(tmp_path: Path, limit: str, holds: bool) -> None:
    run = run_of(tmp_path, 40, 40, 40)
    found = lostflops.check(run, budget(tmp_path, f"[limits]\n{limit}\n"))
    assert found.held is holds, found


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('of = "sum"\nat_most = "40 us"', True),
        ('of = "sum"\nat_most = "39.9 us"', False),
        ('rows = { name = "ampere_sgemm_128x64_nn" }\nat_least = "40 us"', True),
        ('rows = { name = "another" }\nat_most = "0 ns"', True),
        ('rows = { name = "another" }\nat_least = "1 ns"', False),
    ],
)
def test_a_column_of_a_recipe_has_a_limit(tmp_path: Path, text: str, holds: bool) -> None:
    run = run_of(tmp_path, 40, 40, 40)
    head = '[[recipes]]\nrecipe = "kernel-summary"\ncolumn = "per_step"\n'
    assert lostflops.check(run, budget(tmp_path, head + text)).held is holds


def test_shares_counts_and_options_of_recipes(tmp_path: Path) -> None:
    run = run_of(tmp_path, 40, 40, 40)
    text = """
        [[recipes]]
        recipe = "kernel_summary"
        column = "step_share"
        at_most = "40 %"
        [[recipes]]
        recipe = "kernel-summary"
        column = "calls"
        of = "mean"
        at_most = 2
    """
    assert statuses(run, budget(tmp_path, text)) == ["held", "broken"]


def test_a_regression_is_told_against_a_baseline(tmp_path: Path) -> None:
    base, worse = run_of(tmp_path, 40, 40, 40, name="base.json"), run_of(tmp_path, 50, 50, 50, name="b.json")
    text = f'[regression]\nbaseline = "{base.name}"\n'
    assert statuses(worse, budget(tmp_path, text + 'compute = "24 %"\n')) == ["broken"]
    assert statuses(worse, budget(tmp_path, text + 'compute = "25 %"\n')) == ["held"]
    assert statuses(worse, budget(tmp_path, text + 'compute = "9 us"\nidle = "0 ns"\n')) == ["broken", "held"]
    assert statuses(base, budget(tmp_path, text + 'compute = "0 ns"\n')) == ["held"]
    # What is named on the command line goes before what the budget names.
    assert statuses(worse, budget(tmp_path, text + 'compute = "0 ns"\n'), baseline=worse) == ["held"]


def test_growth_that_another_start_may_have_is_said_to_be(tmp_path: Path) -> None:
    run_of(tmp_path, 40, 40, 40, name="base.json")
    text = '[regression]\nbaseline = "base.json"\ncompute = "1 us"\n'
    little, much = run_of(tmp_path, 43, 43, 43, name="l.json"), run_of(tmp_path, 50, 50, 50, name="m.json")
    for worse, said in ((little, True), (much, False)):
        (one,) = lostflops.check(worse, budget(tmp_path, text)).outcomes
        assert one.status == "broken" and ("two starts of one job may differ" in one.why) is said


def test_growth_within_the_noise_is_neither_held_nor_broken(tmp_path: Path) -> None:
    base = run_of(tmp_path, 40, 60, 20, name="base.json")
    worse = run_of(tmp_path, 45, 65, 25, name="b.json")
    found = lostflops.check(
        worse, budget(tmp_path, '[regression]\nbaseline = "base.json"\ncompute = "1 us"\n')
    )
    assert [one.status for one in found.outcomes] == ["unknown"] and not found.held
    assert "record more" in found.outcomes[0].why
    assert base.exists()


def test_what_cannot_be_checked_does_not_hold(tmp_path: Path) -> None:
    run = run_of(tmp_path, 40, 40, 40)
    session = Session(lostflops.open(run))
    name, column = next(
        (name, column)
        for name, known in recipes().items()
        if isinstance(session.run(name), Skipped)
        for column, holds in known.columns.items()
        if holds.kind == "integer"
    )
    text = f'[[recipes]]\nrecipe = "{name}"\ncolumn = "{column}"\nat_most = 0\n'
    found = lostflops.check(run, budget(tmp_path, text))
    assert [one.status for one in found.outcomes] == ["unknown"] and not found.held
    assert "cannot be checked" in found.sentence and found.outcomes[0].why


WRONG = {
    "[limit]\nstep='1 ms'": ("line 1", "there is no section called 'limit'", "limits"),
    "[limits]\nidel='1 ms'": ("line 2", "Did you mean 'idle'", "idle.data_loading"),
    "[limits]\n'idle.sleeping'='1 ms'": ("line 2", "idle.sleeping", "idle.data_loading"),
    "[limits]\nidle='often'": ("line 2", "not an amount", "2 ms"),
    "[limits]\nidle='12'": ("line 2", "not an amount", "2 ms"),
    "[limits]\nidle=12": ("line 2", "takes a time or a share", "2 ms"),
    "[limits]\nidle=true": ("line 2", "not an amount", "2 ms"),
    "[limits]\nidle=nan": ("line 2", "not an amount", "2 ms"),
    "[limits]\nidle='1 GiB'": ("line 2", "takes a time or a share", "2 ms"),
    "[limits]\nidle={}": ("line 2", "has no limit", "at_most"),
    "[limits]\nstep='5 %'": ("line 2", "takes a time", "140 ms"),
    "[limits]\nidle={at_most='1 ms', at_least='2 ms'}": ("line 2", "at least 2 ms and at most 1 ms", ""),
    "limits=3": ("line 1", "not a table", ""),
    "[limits]\nidle='1 ms'\n[regression]\nbaseline=3": ("line 4", "not a path", ""),
    "[regression]\nstep={at_least='1 ms'}": ("line 2", "grow by at most", "3 %"),
    "recipes=3": ("line 1", "list of tables", ""),
    "[[recipes]]\ncolumn='x'": ("line 1", "lacks its recipe", "kernel-summary"),
    "[[recipes]]\nrecipe='kernel-sumary'\ncolumn='x'": ("line 1", "Did you mean 'kernel_summary'", "recipes"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='tim'\nat_most='1 s'": ("line 1", "'tim'", "per_step"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='name'\nat_most=1": ("line 1", "no amount", "numbers"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='time'\nat_most=1": ("line 1", "takes a time", "2 ms"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='time'\nat_most='1 s'\nrow={}": ("line 1", "'row'", "rows"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='time'\nat_most='1 s'\nof='most'": ("", "'most'", "sum"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='time'\nat_most='1 s'\nrows={x=1}": ("", "'x'", "family"),
    "[[recipes]]\nrecipe='kernel-summary'\ncolumn='time'": ("line 1", "has no limit", "at_most"),
    "": ("", "no limit", "--init"),
    "[limits": ("", "not TOML", ""),
    "[limits]\nx=" + "[" * 5000: ("", "not TOML", ""),
    "[limits]\nx=" + "9" * 5000: ("", "TOML", ""),
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:60].replace("\n", " "))
def test_a_wrong_budget_says_where_and_what_is_known(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadBudget) as said:
        read(budget(tmp_path, text))
    for part in WRONG[text]:
        assert part in str(said.value), str(said.value)
    assert "?." not in str(said.value)


def test_every_account_can_have_a_limit(tmp_path: Path) -> None:
    text = "[limits]\n" + "".join(f'"{name}" = "1 h"\n' for name in ACCOUNTS)
    assert len(read(budget(tmp_path, text)).accounts) == len(ACCOUNTS)


def test_other_files_are_no_budget(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "b", tmp_path / "absent", tmp_path):
        with pytest.raises(LostflopsError):
            read(path)


def test_a_regression_needs_a_baseline(tmp_path: Path) -> None:
    with pytest.raises(NoBaseline):
        lostflops.check(tmp_path / "absent", budget(tmp_path, '[regression]\nstep = "3 %"\n'))


@given(st.integers(0, 10**9), st.sampled_from(["ns", "us", "ms", "s", "h"]))
def test_times_are_read_exactly(number: int, unit: str) -> None:
    read_as = amount(f"{number} {unit}")
    scale = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "h": 3600 * 10**9}[unit]
    assert read_as is not None and read_as.value == number * scale


def test_amounts_keep_their_fractions() -> None:
    for text, value in (("0.1 %", Fraction(1, 1000)), ("1.5 GiB", Fraction(3 << 29)), (0.1, Fraction(1, 10))):
        found = amount(text)
        assert found is not None and found.value == value


def test_the_command_exits_with_1_where_the_budget_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--init", str(FAST)]) == 0
    assert main(["check", str(FAST)]) == 0
    assert "The budget holds" in capsys.readouterr().out
    assert main(["check", str(SLOW), "--github", "--junit", "j.xml", "--json", "c.json"]) == 1
    said = capsys.readouterr().out
    assert "The budget does not hold" in said and "broken  step" in said
    line = next(line for line in said.splitlines() if line.startswith("::error"))
    assert line.startswith("::error file=budget.toml,line=6,title=lostflops%3A step::step is 132 ms")
    suite = ElementTree.parse("j.xml").getroot()
    document = json.loads(Path("c.json").read_text())
    assert not document["held"]
    assert int(suite.get("failures", 0)) == sum(one["status"] == "broken" for one in document["limits"]) > 0
    assert len(suite.findall(".//testcase")) == len(document["limits"])


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "lora-workers-0", "lora-workers-4"])
def test_a_run_holds_the_budget_that_was_written_from_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(RUNS / name), tmp_path / "b.toml"
    assert main(["check", "--init", run, "--budget", str(file)]) == 0
    assert main(["check", run, "--budget", str(file)]) == 0
    before = file.read_text()
    assert main(["check", "--init", run, "--budget", str(file)]) == 2, "it replaces no budget"
    assert file.read_text() == before
    capsys.readouterr()
    assert main(["check", "--init", run, "--budget", "-"]) == 0
    assert capsys.readouterr().out == before


def test_errors_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(budget(tmp_path, '[limits]\nstep = "1 h"\n'))
    for words in (
        [str(tmp_path / "absent"), "--budget", good, "--junit", str(tmp_path / "j.xml")],
        [str(FAST), "--budget", str(tmp_path / "absent")],
        [str(FAST), "--budget", good, "--junit", good],
        [str(FAST), "--budget", good, "--json", good],
        [str(FAST), "--init", "--budget", str(tmp_path / "no" / "b.toml")],
        [str(FAST), "--init", "--junit", "x", "--budget", str(tmp_path / "b.toml")],
        [str(FAST), "--budget", good, "--junit", str(tmp_path / "x"), "--json", str(tmp_path / "x")],
    ):
        assert main(["check", *words]) == 2, words
        assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["budget.toml"]


def test_hostile_names_do_not_reach_a_log(tmp_path: Path) -> None:
    run = run_of(tmp_path, 40, 40)
    text = (
        '[[recipes]]\nrecipe = "kernel-summary"\ncolumn = "per_step"\nat_least = "1 h"\n'
        'rows = { name = "a\\u001b[31m\\n::error::b%,:" }\n'
    )
    found = lostflops.check(run, budget(tmp_path, text))
    lines = list(github(found, "a,b:c.toml"))
    assert len(lines) == 1 and "\x1b" not in lines[0] and "file=a%2Cb%3Ac.toml," in lines[0]
    assert "\x1b" not in str(found) and b"\x1b" not in junit(found)
    ElementTree.fromstring(junit(found))
