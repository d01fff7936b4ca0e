"""The command line: what it answers, how it fails, and that it answers at once when asked for help."""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import pytest

from lostflops import cli, recipes, units
from lostflops.cli import main, parser
from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.safe import printable_json
from lostflops.errors import BadOption, CannotWrite, LostflopsError, NoRun
from lostflops.export import spreadsheet
from lostflops.export.spreadsheet import spreadsheet_safe
from lostflops.recipe import Example, Recipe, recipe
from lostflops.tables import Steps

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "runs"
DDP = str(RUNS / "ddp")
LORA = str(RUNS / "lora-workers-0")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOSTFLOPS_DEBUG", raising=False)


def child(*words: str, code: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a user starts it."""
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "lostflops", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


@pytest.fixture
def slow_recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe with an option of each kind."""

    @recipe(question="Which steps are slow?", scope="rank", columns={}, examples=[])
    def slow(
        steps: Steps,
        *,
        top: Annotated[int, "how many, at most 100 %"] = 3,
        above: Annotated[float | None, "only those above"] = None,
        last: Annotated[bool, "count the last step"] = True,
    ) -> pl.LazyFrame:
        """Steps."""
        return steps.head(top).select("step", above=pl.lit(above), last=pl.lit(last))

    monkeypatch.setattr(recipes, "recipes", lambda: {"slow": slow})
    return slow


def test_help_answers_at_once() -> None:
    spent: list[float] = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert child("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.2


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in cli.commands())])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from lostflops.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "print('heavy', sorted({'polars', 'numpy', 'rich', 'msgspec', 'asyncio'} & set(sys.modules)))"
    )
    assert child(code=code).stdout.endswith("heavy []\n")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert {"explain", "import", "launch", "recipe", "recipes", "record", "why"} <= set(cli.commands())
    assert all(f"    {name} " in printed for name in cli.commands())
    assert (
        printed.index("Record a job")
        < printed.index("    record ")
        < printed.index("Ask where the time went")
    )


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: lostflops ") and "lostflops record -- python train.py" in printed


LISTS = "Hint: `lostflops --help` lists the commands."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["whi"], f"There is no command 'whi'. Did you mean 'why'?\n{LISTS}"),
        (["zzz"], f"There is no command 'zzz'.\n{LISTS}"),
        ([DDP], f"There is no command '{DDP}'.\nHint: `lostflops why {DDP}` shows where its time went."),
        (
            ["gpu_gaps"],
            "There is no command 'gpu_gaps'.\nHint: it is a recipe: `lostflops recipe gpu-gaps PATH`.",
        ),
        (["why", "--stes", "3", DDP], "`lostflops why` has no option '--stes'. Did you mean '--steps'?"),
        (["why", "--htlm=x.html", DDP], "`lostflops why` has no option '--htlm'. Did you mean '--html'?"),
        (["recipe"], "`lostflops recipe` needs NAME and PATH."),
        (["explain", "idle", "more"], "`lostflops explain` does not take 'more'."),
        (["recipe", "kernel_summary", DDP, "--ranks"], "--ranks needs a value: `--ranks A,B-C`."),
        (
            ["recipe", "--format", "cvs", "kernel_summary", DDP],
            "--format takes table, csv, json or parquet, not 'cvs'. Did you mean 'csv'?",
        ),
        (["bench", "links", "--repeats", "many"], "--repeats takes a whole number, not 'many'."),
        (["plan"], "`lostflops plan` needs WHAT: train, serve or offload."),
        (
            ["plan", "trian"],
            "`lostflops plan` has no 'trian', but train, serve and offload. Did you mean 'train'?",
        ),
    ],
)
def test_a_slip_of_the_keyboard_is_answered_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(said + "\n")
    assert re.search(r"^Hint: .+\.$", printed.err, re.M)


EVIL = "x\x1b[31mred\x9b\u202e\nnext\ttab"


@pytest.mark.parametrize(
    "words",
    [
        [EVIL],
        ["why", f"--{EVIL}", DDP],
        ["recipe", "--format", EVIL, "kernel_summary", DDP],
        ["bench", "links", "--repeats", EVIL],
        ["explain", "idle", EVIL],
        ["plan", EVIL],
    ],
)
def test_what_was_typed_reaches_the_terminal_without_its_controls(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    said = capsys.readouterr().err
    assert "x\\x1b[31mred\\x9b\\u202e\\nnext\\ttab" in said.replace("\\\\", "\\")
    assert all(line.isprintable() for line in said.splitlines())


def a_run(folder: Path, marker: str, made: int) -> None:
    folder.mkdir(parents=True)
    (folder / marker).touch()
    os.utime(folder / marker, (made, made))


def test_without_a_path_why_takes_the_newest_run_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(LORA, tmp_path / "runs" / "older")
    shutil.copytree(LORA, tmp_path / "runs" / "it's new")
    for name, made in (("older", 1000), ("it's new", 2000)):
        marker = tmp_path / "runs" / name / "recording.jsonl"
        marker.touch()
        os.utime(marker, (made, made))
    monkeypatch.chdir(tmp_path)
    assert main(["why"]) == 0
    said = capsys.readouterr()
    assert said.err == "lostflops: the newest run is runs/it's new\n"
    assert "lostflops recipe idle-summary 'runs/it'\"'\"'s new'" in said.out


def test_the_newest_run_is_looked_for_where_recordings_go(tmp_path: Path) -> None:
    with pytest.raises(NoRun, match="no recorded run in runs/ or in this folder"):
        traces.newest_run(tmp_path)
    shutil.copy(next(Path(LORA).glob("*.json.gz")), tmp_path)
    assert traces.newest_run(tmp_path) == str(tmp_path)
    shutil.copytree(LORA, tmp_path / "runs" / "only traces")
    assert traces.newest_run(tmp_path) == str(tmp_path / "runs" / "only traces")
    a_run(tmp_path / "imported", "run.json", 1000)
    assert traces.newest_run(tmp_path) == str(tmp_path / "imported")
    a_run(tmp_path / "runs" / "recorded", "recording.jsonl", 2000)
    assert traces.newest_run(tmp_path) == str(tmp_path / "runs" / "recorded")
    a_run(tmp_path / "runs" / ".hidden", "recording.jsonl", 3000)
    assert traces.newest_run(tmp_path) == str(tmp_path / "runs" / "recorded")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("lostflops wh", {"whatif", "why"}),
        ("lostflops recipe", {"recipe", "recipes"}),
        ("lostflops why --al", {"--all", "--allow-missing-ranks"}),
        ("lostflops recipe gpu-g", {"gpu-gaps"}),
        ("lostflops recipe kernel-summary x --form", {"--format"}),
        ("lostflops explain idle.data", {"idle.data_loading"}),
        ("lostflops completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_a_shell_completes_commands_options_and_names(typed: str, offered: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    said = tmp_path / "said"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(said),
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
        "COMP_TYPE": "9",
    }
    assert child("", env={**os.environ, **asked}).returncode == 0
    assert {word.strip() for word in said.read_text().splitlines()} - {"--help", "-h"} == offered


def test_a_command_that_is_typed_makes_its_own_parser_alone() -> None:
    known = {name: parser([name]) for name in ("why", "lab")}
    assert [_below(known["why"]), _below(known["lab"])] == [["why"], ["lab"]]
    for words in ((), ("wh",), ("--version",)):
        assert {"why", "lab", "record"} <= set(_below(parser(words)))
    assert _below(parser(["--help"])) == []


def _below(made: ArgumentParser) -> list[str]:
    return [name for action in made._actions for name in action.choices or ()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_taught_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("argcomplete")
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "_ARGCOMPLETE" in printed and "lostflops" in printed
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=printed, text=True).returncode == 0


def test_a_csv_holds_no_formula_and_no_control_character() -> None:
    texts = ["=1+1", "+cmd|'x'!A0", "-2+3", "@SUM(A1)", "\tx", "\r=x", "plain", "-3.5", "+1e-3", "a=b", None]
    texts += ["\x1b[31mred", "line\nbreak", "\u202egnp.exe", "=\x9bx", "näme · µs"]
    table = pl.DataFrame({"name": texts, "time": [-n for n in range(len(texts))]})
    safe = spreadsheet_safe(table)
    assert safe["time"].equals(table["time"])
    assert safe["name"].to_list() == [
        "'=1+1", "'+cmd|'x'!A0", "'-2+3", "'@SUM(A1)", "'\\tx", "'\\r=x", "plain", "-3.5", "+1e-3", "a=b",
        None,
        "\\x1b[31mred", "line\\nbreak", "\\u202egnp.exe", "'=\\x9bx", "näme · µs",
    ]  # fmt: skip
    kinds = table.select(pl.col("name").cast(pl.Categorical))
    assert spreadsheet_safe(kinds).equals(safe.select("name"))


def test_json_for_a_terminal_says_the_same_without_controls() -> None:
    text = json.dumps(EVIL + "\x7f\u2066", ensure_ascii=False)
    safe = printable_json(text.encode()).decode()
    assert safe.isprintable() and json.loads(safe) == json.loads(text)


def test_names_in_a_csv_are_neutralised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @recipe(question="Which?", scope="rank", columns={}, examples=[])
    def names(steps: Steps) -> pl.LazyFrame:
        """Names."""
        return steps.head(1).select(name=pl.lit("=cmd\x1b[31m"), ns=pl.lit(-5), many=pl.lit("=x").implode())

    monkeypatch.setattr(recipes, "recipes", lambda: {"names": names})
    assert main(["recipe", "names", LORA, "--format", "csv"]) == 0
    assert capsys.readouterr().out == 'name,ns,many\n\'=cmd\\x1b[31m,-5,"[""=x""]"\n'


def test_an_error_says_what_is_true_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "comunication-exposed", DDP]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "There is no recipe called 'comunication-exposed'. Did you mean 'communication_exposed'?\n"
        "Hint: `lostflops recipes` lists them.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["whi"],
        ["why", "--stes", "3", DDP],
        ["recipe"],
        ["recipe", "--format", "xml", "kernel_summary", DDP],
        ["import", DDP],
    ],
)
def test_usage_that_makes_no_sense_exits_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["why", "no/such/trace.json"],
        ["why", ""],
        ["why", "--steps", "7-3", DDP],
        ["why", "--steps", "two", DDP],
        ["why", "--steps", "900", DDP],
        ["why", "--html", "no/such/folder/page.html", DDP],
        ["why", "--html", ".", DDP],
        ["recipe", "kernel_summary", "--format", "parquet", DDP],
        ["recipe", "kernel_summary", "--ranks", "zero", DDP],
        ["recipe", "gpu_utilization_map", "--buckets", "999999999999", DDP],
        ["recipe", "step_ledger", "--ranks", "0,4", DDP],
        ["explain", "nothing_like_it"],
    ],
)
def test_what_cannot_be_answered_exits_with_2_and_a_message(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err and "Traceback" not in said.err


def test_a_trace_is_never_overwritten_by_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "rank-0.json"
    trace.write_text("{}")
    assert main(["why", str(trace), "--html", str(trace)]) == 2
    assert trace.read_text() == "{}"
    assert "it would be overwritten" in capsys.readouterr().err


def _raising(error: BaseException) -> Any:
    def run(_: object) -> None:
        raise error

    return run


def test_a_fault_of_ours_is_one_short_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.commands()["recipes"], "run", _raising(ZeroDivisionError("a\nb")))
    assert main(["recipes"]) == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError: a\\nb" in said and "LOSTFLOPS_DEBUG=1" in said and "Traceback" not in said
    monkeypatch.setenv("LOSTFLOPS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["recipes"])


def test_an_interrupt_exits_as_shells_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.commands()["recipes"], "run", _raising(KeyboardInterrupt()))
    assert main(["recipes"]) == 130


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lostflops", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


STATUS = "import sys; from lostflops.cli import main; sys.exit(main(sys.argv[1:]))"
EVERY_FORMAT = [
    ["why", LORA],
    ["why", LORA, "--json", "-"],
    *(["recipe", "step-ledger", LORA, "--format", form] for form in ("table", "csv", "json")),
]


@pytest.mark.parametrize("words", EVERY_FORMAT, ids=lambda words: " ".join(map(str, words[2:])) or "page")
def test_every_output_ends_quietly_when_its_reader_goes_away(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", STATUS, *words], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", EVERY_FORMAT, ids=lambda words: " ".join(map(str, words[2:])) or "page")
def test_a_full_disk_behind_standard_output_is_said(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", STATUS, *words], stdout=full, stderr=subprocess.PIPE)
    said = b"'standard output' could not be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_a_full_disk_behind_a_file_is_said(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "step-ledger", LORA, "--format", form, "--output", "/dev/full"]) == 2
    assert capsys.readouterr().err == "'/dev/full' could not be written: No space left on device.\n"


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    recipe = [sys.executable, "-m", "lostflops", "recipe", "step-ledger", LORA]
    for words in (recipe, [*recipe, "--output", str(target)]):
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (0, b"")
    assert target.read_text().startswith("rank,step,")


def test_a_table_of_many_rows_is_one_csv(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["recipe", "step-ledger", DDP, "--format", "csv"]
    assert main(words) == 0
    whole = capsysbinary.readouterr().out
    monkeypatch.setattr(spreadsheet, "ROWS", 3)
    assert main(words) == 0
    assert capsysbinary.readouterr().out == whole
    assert whole.count(b"rank,step,") == 1 and whole.count(b"\n") > 7


def test_a_terminal_without_the_letters_shows_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["explain", "idle.data_loading"]) == 0
    stream.flush()
    assert b"enumerate(DataLoader)#?__next__" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_slip_is_answered_where_the_locale_has_no_utf_8() -> None:
    """Names of recipes are looked for in their sources, which hold letters that ASCII lacks."""
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = subprocess.run(
        [sys.executable, "-m", "lostflops", "kernel-sumary"], env=ascii_only, capture_output=True
    )
    assert said.returncode == 2
    assert said.stderr.startswith(b"There is no command 'kernel-sumary'")


def test_why_a_file_cannot_be_written_is_said_without_the_system_s_number() -> None:
    """Polars tells it in the words of Rust."""
    said = CannotWrite("k.arrow", OSError("File too large (os error 27)"))
    assert str(said) == "'k.arrow' could not be written: File too large."


def test_spans_of_steps_are_read_exactly() -> None:
    assert units.span("3-7") == (3, 7)
    assert units.span(" 5 ") == (5, 5)
    assert units.numbers("0,2-4") == {0, 2, 3, 4}
    for bad in ("", "-3", "3-", "3-4-5", "7-3", "1e3", "٣", "1,", "0-99999999999"):
        with pytest.raises(LostflopsError):
            units.numbers(bad)


def test_an_output_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    with pytest.raises(RuntimeError), files.replacing(target) as file:
        file.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    with files.replacing(target) as file:
        file.write_text("new")
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("page.html", "new")]


def test_an_output_may_be_a_device() -> None:
    with files.replacing(Path(os.devnull)) as file:
        file.write_text("x")
    assert not Path(os.devnull).is_file()


def test_an_output_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="is a folder"):
        files.check(tmp_path, [])
    with pytest.raises(CannotWrite, match="does not exist"):
        files.check(tmp_path / "a" / "b", [])
    with pytest.raises(BadOption, match="overwritten"):
        files.check(tmp_path / "a", [str(tmp_path / "a")])


def test_options_of_a_recipe_are_flags(slow_recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "slow", LORA, "--top", "2", "--above", "0.5", "--no-last", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "step,above,last\n3,0.5,false\n4,0.5,false\n"
    assert main(["recipe", "--format", "csv", "slow", "--steps", "6", LORA]) == 0
    assert capsys.readouterr().out == "step,above,last\n6,,true\n"
    with pytest.raises(SystemExit):
        main(["recipe", "slow", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--top INT how many, at most 100 % (default: 3)" in printed
    with pytest.raises(SystemExit):
        main(["recipe", "slow", LORA, "--top", "many"])


@pytest.mark.parametrize("name", recipes.recipes())
def test_no_option_of_a_recipe_hides_a_flag_of_the_command(name: str) -> None:
    cli.parser(["recipe", name, "trace.json"])


@pytest.mark.parametrize("name", recipes.recipes())
def test_every_recipe_can_be_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name.replace("_", "-")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    known = recipes.named(name)
    assert known.question in printed
    for name, column in known.columns.items():
        assert f"{name} {column.said} {column.meaning}" in printed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("idle.launch_bound", "what to do"),
        ("idle.launch-bound", "what to do"),
        ("communication-exposed", "hidden behind compute?"),
        ("kernels", "one row is a kernel execution"),
        ("idle-data-loading", "what to do"),
        ("rank-arrives-last", "a finding of communication-imbalance"),
    ],
)
def test_what_stands_on_the_page_can_be_explained(
    name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 0
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("run", ["ddp", "fsdp2", "lora-workers-0", "lora-workers-4"])
def test_the_ledger_of_every_example_adds_up(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(RUNS / run), "--json", "-"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["schema"] == 1
    steps = {(s["rank"], s["step"]): s["end"] - s["start"] for s in page["steps"]}
    spent = dict.fromkeys(steps, 0)
    for row in page["ledger"]:
        assert row["ns"] > 0
        spent[row["rank"], row["step"]] += row["ns"]
    assert spent == steps
    assert len(steps) == 4 * len(list((RUNS / run).glob("*.json.gz")))


def test_the_page_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, document = tmp_path / "page.html", tmp_path / "page.json"
    assert main(["why", LORA, "--html", str(html), "--json", str(document)]) == 0
    printed = capsys.readouterr().out
    assert "data loading" in printed
    assert html.read_text().startswith("<!doctype html>")
    assert json.loads(document.read_text())["findings"]


def commands_of(page: str) -> list[str]:
    """The commands that a page prints, as they stand there."""
    lines = (line.partition("show     lostflops ") for line in page.splitlines())
    return [command for before, found, command in lines if found and not before.strip()]


@pytest.mark.parametrize("left_out", ["rank-2.json.gz", "none"])
def test_every_printed_command_answers_for_the_same_steps_of_the_same_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: str
) -> None:
    folder = tmp_path / ("a folder that isn't short " * 4)
    shutil.copytree(DDP, folder, ignore=lambda *_: [left_out])
    words = ["why", str(folder), "--allow-missing-ranks", "--steps", "4-5"]
    assert main(words) == 0
    printed = commands_of(capsys.readouterr().out)
    assert main([*words, "--json", "-"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert len(printed) == len(page["findings"]) > 0
    for command, finding in zip(printed, page["findings"], strict=True):
        assert main([*shlex.split(command), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == page["recipes"][finding["recipe"]]["rows"]


def test_what_is_typed_again_survives_a_shell() -> None:
    paths = ["plain.json", "it's a trace.json", "-x.json", "new\nline\\and\x1b[31m'quote'.json", "*.json"]
    given = Namespace(salvage=True, allow_missing_ranks=False)
    typed = traces.again(paths, given, (3, 3))
    assert typed.isprintable()
    echoed = subprocess.run(["bash", "-c", f"printf '%s\\0' {typed}"], capture_output=True, text=True)
    paths[2] = "./-x.json"
    assert echoed.stdout.split("\0") == [*paths, "--salvage", "--steps", "3", ""]


def test_an_imported_run_answers_like_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["import", LORA, "--output", str(run)]) == 0
    assert capsys.readouterr().out.startswith("imported ")
    pages: list[Any] = []
    for path in (LORA, str(run)):
        assert main(["why", path, "--json", "-"]) == 0
        pages.append(json.loads(capsys.readouterr().out))
    assert pages[0] == pages[1]


def test_a_table_comes_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables: list[pl.DataFrame] = []
    for form in ("csv", "json", "parquet"):
        target = tmp_path / f"table.{form}"
        assert main(["recipe", "step-ledger", DDP, "--output", str(target)]) == 0
        read = {"csv": pl.read_csv, "json": pl.read_json, "parquet": pl.read_parquet}[form]
        tables.append(read(target).cast({"rank": pl.Int32}))
    assert tables[0].equals(tables[1]) and tables[1].equals(tables[2])
    capsys.readouterr()
    assert main(["recipe", "step-ledger", DDP, "--ranks", "1,3", "--format", "csv"]) == 0
    some = pl.read_csv(io.StringIO(capsys.readouterr().out)).cast({"rank": pl.Int32})
    assert some.equals(tables[0].filter(pl.col("rank").is_in([1, 3])))


def test_a_question_the_trace_cannot_answer_says_how_to_record_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipe", "copy-summary-by-time", LORA]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "copy_summary_by_time" in said.err and "needs `activities=" in said.err


def test_examples_are_read_without_a_store_that_can_be_written(tmp_path: Path) -> None:
    store = tmp_path / "cache"
    store.write_text("a file where a folder should be")
    done = child("why", LORA, env={**os.environ, "XDG_CACHE_HOME": str(store)})
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr and "fault of its own" not in done.stderr


def test_every_example_option_is_an_option() -> None:
    for known in recipes.recipes().values():
        example: Example
        for example in known.examples:
            assert set(example.options) <= {option.name for option in known.options}


def test_importing_everything_takes_none_of_pythons_own_names() -> None:
    names: dict[str, object] = {}
    exec("from lostflops import *", names)
    assert "why" in names and not names.keys() & vars(builtins).keys() - {"__builtins__"}
