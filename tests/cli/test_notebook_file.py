"""`--notebook F` writes a notebook as running it would leave it; runs and answers show themselves."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_notebook import executed as run_by_jupyter

import lostflops
from kineto_files import Event, head, kernel, one_step, span, trace, written
from lostflops.cli import main
from lostflops.finding import Finding
from lostflops.recipe import Bars, HeatMap, Points
from lostflops.recipes import recipes
from lostflops.report.in_notebook.chart import AMOUNT, COLUMN, MIME, MOST_BARS, MOST_CELLS, ORDER, chart
from lostflops.report.in_notebook.file import Code, Prose, executed
from lostflops.report.in_notebook.shown import shown_finding
from lostflops.session import Answer

ROOT = Path(__file__).parents[2]
DDP = ROOT / "examples" / "runs" / "ddp"
EVIL = "x\x1b[31m</td><script>alert(1)</script>\u202e"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def cells(file: Path) -> list[dict[str, Any]]:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(file, as_version=4))
    return json.loads(file.read_text())["cells"]


def shown(cell: dict[str, Any]) -> dict[str, Any]:
    (output,) = cell["outputs"]
    return output["data"]


def test_a_notebook_holds_what_running_it_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both notebooks, run again by Jupyter: every output is the same."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    shutil.copytree(DDP, tmp_path / "ddp")
    recipe, page = tmp_path / "recipe.ipynb", tmp_path / "page.ipynb"
    words = ["--steps", "4-6"]
    assert main(["recipe", "kernel-summary", str(tmp_path / "ddp"), *words, "--notebook", str(recipe)]) == 0
    assert "Which kernels take GPU time?" in capsys.readouterr().out, "the table is printed as well"
    assert main(["why", str(tmp_path / "ddp"), "--notebook", str(page)]) == 0
    both = nbformat.v4.new_notebook()
    ours: list[Any] = []
    for file in (recipe, page):
        for cell in nbformat.read(file, as_version=4).cells:
            if cell.cell_type == "code":
                both.cells.append(nbformat.v4.new_code_cell(cell.source))
                ours.append(cell.outputs)
    theirs = run_by_jupyter(tmp_path, both)
    assert len(ours) == len(theirs) > 8
    for given, own in zip(theirs, ours, strict=True):
        assert [one.output_type for one in given] == [one.output_type for one in own]
        assert [one.get("data") for one in given] == [one.get("data") for one in own]


def test_a_notebook_of_a_recipe_has_the_run_the_answer_the_plot_and_the_frame(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "k.ipynb"
    file.parent.mkdir()
    shutil.copytree(DDP, tmp_path / "it's a run")
    words = ["recipe", "gpu-utilization-map", str(tmp_path / "it's a run"), "--buckets", "7"]
    assert main([*words, "--notebook", str(file)]) == 0
    first, opened, answered, drawn, _, frame, _ = cells(file)
    assert first["source"].startswith(f"# {recipes()['gpu_utilization_map'].question}")
    assert "run.recipe('gpu_utilization_map', buckets=7)" in answered["source"]
    assert 'run = lostflops.open("../it\'s a run")' in opened["source"], "relative: both can move together"
    assert shown(opened)["text/plain"] == "lostflops run: 4 ranks, steps 3 to 6, 6 tables"
    assert set(shown(answered)) == {"text/plain", "text/html", MIME}
    assert shown(drawn)[MIME]["mark"]["type"] == "rect"
    assert shown(frame)["text/plain"].startswith("shape: (")
    assert [path.name for path in file.parent.iterdir()] == ["k.ipynb"], "nothing is left beside it"


REFUSED = {
    ("--notebook", ""): "--notebook names no file.",
    ("--notebook", "answer.html"): "--notebook names no notebook.",
    ("--notebook", "absent/a.ipynb"): "could not be written: its folder does not exist",
    ("--notebook", "a.ipynb", "--ranks", "0"): "--notebook and --ranks do not go together.",
    ("--notebook", "a.ipynb", "--dask", "local"): "--notebook and --dask do not go together.",
    ("--notebook", "a.ipynb", "--against", str(DDP)): "--notebook and --against do not go together.",
    ("--notebook", "a.ipynb", "--output", "a.ipynb"): "--output and --notebook name one file",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_notebook_that_cannot_be_written_is_refused_before_the_work(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "kernel-summary", str(DDP), *words]) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert not list(tmp_path.glob("*.ipynb"))


def test_what_cannot_be_answered_leaves_an_older_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text("older")
    assert main(["recipe", "memory-timeline", str(DDP), "--notebook", str(file)]) == 2
    assert "cannot be answered" in capsys.readouterr().err and file.read_text() == "older"


def test_cells_are_run_in_order_and_their_errors_are_raised(tmp_path: Path) -> None:
    notebook = [Code("x = 5"), Prose("# text"), Code("print('said')\nx + 1"), Code("x;\nNone")]
    made = json.loads(executed(notebook, tmp_path))["cells"]
    assert [cell.get("outputs") for cell in made] == [
        [],
        None,
        [
            {"name": "stdout", "output_type": "stream", "text": "said\n"},
            {
                "data": {"text/plain": "6"},
                "execution_count": 2,
                "metadata": {},
                "output_type": "execute_result",
            },
        ],
        [],
    ]
    with pytest.raises(ZeroDivisionError):
        executed([Code("1 / 0")], tmp_path)
    assert Path.cwd() != tmp_path


# What shows itself


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def is_safe(html: str) -> None:
    tags = Tags()
    tags.feed(html)
    assert not tags.seen & {"script", "iframe", "img", "object", "style", "link"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)


def test_names_of_a_trace_are_no_markup(tmp_path: Path) -> None:
    events: list[Event] = [*one_step(), kernel(30, 1, 50, EVIL, 20), span("user_annotation", EVIL, 20, 9)]
    run = lostflops.open(written(tmp_path / "evil.json", trace(events, head(0, 1))))
    is_safe(run._repr_html_())
    answer = run.recipe("kernel_summary")
    assert "&lt;script&gt;" in answer._repr_html_()
    is_safe(answer._repr_html_())
    assert "\x1b" not in repr(answer)
    assert answer.chart is not None
    (name,) = [row["name"] for row in answer.chart["data"]["values"] if "script" in row["name"]]
    assert name.isprintable()
    finding = Finding("x", EVIL, "at most", (EVIL,), f"see `{EVIL}`", ns_per_step=5, doubt=EVIL)
    is_safe(shown_finding(finding)._repr_html_())
    assert "\x1b" not in repr(shown_finding(finding))
    file = tmp_path / "evil.ipynb"
    assert main(["recipe", "kernel-summary", str(tmp_path / "evil.json"), "--notebook", str(file)]) == 0
    text = file.read_text()
    assert text.isascii() and "\x1b" not in text
    is_safe(shown(cells(file)[2])["text/html"])


def test_an_opened_run_answers_as_the_functions_do() -> None:
    run = lostflops.open(DDP)
    assert run.recipe("kernel-summary").table.equals(lostflops.ask(DDP, "kernel_summary"))
    page, same = run.why(), lostflops.why(run)
    assert str(page) == str(same) and page.findings == same.findings
    assert "Rank 2" in page.findings[0]._repr_html_()
    some = run.select(steps=(4, 5))
    assert type(some) is type(run) and some.given == run.given
    assert repr(some) == "lostflops run: 4 ranks, steps 4 to 5, 6 tables" and some.whole.steps is None
    with pytest.raises(lostflops.LostflopsError, match="cannot be answered"):
        run.recipe("memory_timeline")
    with pytest.raises(lostflops.LostflopsError, match="There is no recipe called"):
        run.recipe("kernel_sumary")


# Charts


def drawn_columns(spec: dict[str, Any]) -> set[str]:
    fields = {channel["field"] for channel in spec["encoding"].values() if "field" in channel}
    folded = {name for one in spec.get("transform", ()) for name in one.get("fold", ())}
    return (fields - {COLUMN, AMOUNT, ORDER}) | folded


@pytest.mark.parametrize("name", [name for name, known in recipes().items() if known.plot is not None])
def test_the_chart_of_a_recipe_draws_its_plot(name: str) -> None:
    """From the first example that expects rows, in which each column of the plot has its values."""
    known = recipes()[name]
    example = next((one for one in known.examples if one.expect), None)
    if example is None:
        return
    table = pl.DataFrame(
        [{column: row.get(column) for column in known.columns} for row in example.expect],
        infer_schema_length=None,
    ).cast({c: pl.Float64 for c, t in known.columns.items() if t.kind in ("share", "number")}, strict=False)
    made = chart(Answer(known, table, ()))
    plot = known.plot
    named = {
        Bars: lambda p: {p.x, *p.y},
        HeatMap: lambda p: {p.x, p.y, p.value},
        Points: lambda p: {p.x, p.y},
    }
    if made is None:
        assert table.is_empty()
        return
    expected = named[type(plot)](plot)
    assert drawn_columns(made) == expected
    assert all(expected <= set(row) for row in made["data"]["values"])
    assert made["title"]["text"] == known.question
    json.dumps(made, allow_nan=False)


def test_times_are_drawn_in_the_unit_of_the_axis_and_names_never_hide_each_other() -> None:
    known = recipes()["communication_exposed"]
    assert isinstance(known.plot, Bars)
    row = dict.fromkeys(known.columns)
    table = pl.DataFrame(
        [{**row, "rank": rank, **dict.fromkeys(known.plot.y, 2_500_000)} for rank in (0, 1)]
    ).cast({c: t.dtype for c, t in known.columns.items()})
    made = chart(Answer(known, table, ()))
    assert made is not None and len(made["data"]["values"]) == 2
    assert made["data"]["values"][0][known.plot.y[0]] == 2.5
    assert made["encoding"]["x"]["title"] == "amount (ms)" and made["encoding"]["x"]["stack"] == "zero"
    pace = recipes()["kernel_pace"]
    assert isinstance(pace.plot, Bars)
    many = pl.DataFrame(
        [{**dict.fromkeys(pace.columns), "rank": 0, "name": "k", pace.plot.y[0]: n + 1} for n in range(99)]
    ).cast({c: t.dtype for c, t in pace.columns.items()})
    drawn = chart(Answer(pace, many, ()))
    assert drawn is not None
    names = [row[pace.plot.x] for row in drawn["data"]["values"]]
    assert len(set(names)) == len(names) == MOST_BARS
    assert drawn["title"]["subtitle"] == f"{MOST_BARS} of 99 shown"
    assert MOST_CELLS > MOST_BARS
