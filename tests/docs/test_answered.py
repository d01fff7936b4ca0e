"""What other tools answer has an answer here, and what answers on request says how to read it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import answered
import pytest

from lostflops.recipes import asked_by_name, of_the_page, recipes

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
EVERY = [(tool, row) for tool, rows in answered.TOOLS.items() for row in rows]


@pytest.mark.parametrize(("tool", "row"), EVERY, ids=lambda known: getattr(known, "theirs", known))
def test_every_name_of_another_tool_has_an_answer_or_a_reason(tool: str, row: answered.Answered) -> None:
    assert bool(row.shown) != bool(row.without), f"{tool}, {row.theirs}: none of {row.ours} exists"
    for ours in row.shown:
        name, *options = ours.split()
        for option in options if name in recipes() else ():
            flag = option.removeprefix("--").replace("-", "_")
            assert not option.startswith("--") or flag in {o.name for o in recipes()[name].options}


def test_no_name_of_the_references_is_left_out() -> None:
    """The recipes, reports and rules that the reference lists: the first column of its tables."""
    page = REFERENCE / "nsys_sqlite.md"
    if not page.is_file():
        pytest.skip("the references are not here")
    section = page.read_text().partition("## 18.")[2].partition("## 19.")[0]
    cells = re.findall(r"^\| (?!recipe|nsys recipe|report|rule|---)([^|]+) \|", section, re.MULTILINE)
    names = {name.strip() for cell in cells for name in re.split(r"[,/]", cell)}
    ours = {name.strip() for tool in list(answered.TOOLS)[:3] for row in answered.TOOLS[tool]
            for name in row.theirs.split(",")}  # fmt: skip
    assert names and names <= ours, f"left out: {sorted(names - ours)}"


def first_cells(file: str, begin: str, end: str) -> set[str]:
    """The first column of a page's tables, from one heading to another."""
    page = REFERENCE / file
    if not page.is_file():
        pytest.skip("the references are not here")
    section = page.read_text().partition(begin)[2].partition(end)[0]
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    return {re.sub(r"[`*]", "", row) for row in rows if not row.startswith(("---", "HTA analysis", "view"))}


def listed(tool: str) -> set[str]:
    return {row.theirs for row in answered.TOOLS[tool]}


# What the reference puts into one row, we name by its parts or in other words.
HTA_OTHERWISE = {
    "TraceAnalysis(...)": "TraceAnalysis(…)",
    "get_queue_length_time_series, _summary": "get_queue_length_time_series, …_summary",
    "get_memory_bw_time_series, _summary": "get_memory_bw_time_series, …_summary",
    "…critical_path_breakdown / summary": "critical_path_breakdown, summary",
    "TraceDiff (compare_traces, ops_diff)": "TraceDiff",
    "trace filter, timeline plot, Perfetto converter": "trace filter",
}
TENSORBOARD_OTHERWISE = {
    "Overview, step time breakdown": "Overview: step time breakdown",
    "Overview, steps": "Overview: steps",
    "GPU utilisation, SM efficiency, occupancy": "GPU utilisation",
}
PARAVER_OTHERWISE = {
    "GPU Active; GPU Active Time (table)": "GPU Active; GPU Active Time",
    "Overlap of computation during communication; Overlap percentage of window time": (
        "Overlap of computation during communication"
    ),
    'CUDA activity % ("kernel time percent")': "CUDA activity %",
}


@pytest.mark.parametrize(
    ("file", "begin", "end", "tool", "otherwise"),
    [
        ("kineto.md", "### HTA", "### TensorBoard", "Holistic Trace Analysis", HTA_OTHERWISE),
        ("kineto.md", "### TensorBoard", "## 24.", "The former TensorBoard plugin", TENSORBOARD_OTHERWISE),
        ("paraver.md", "## 5. Views", "## 6.", "Paraver: public views", PARAVER_OTHERWISE),
    ],
    ids=["HTA", "TensorBoard", "Paraver"],
)
def test_no_analysis_or_view_of_the_references_is_left_out(
    file: str, begin: str, end: str, tool: str, otherwise: dict[str, str]
) -> None:
    names = {otherwise.get(name, name) for name in first_cells(file, begin, end)}
    assert len(names) > 10 and names <= listed(tool), f"left out: {sorted(names - listed(tool))}"
    assert set(otherwise) <= first_cells(file, begin, end), "another spelling is needed no more"
    assert {"timeline plot", "Perfetto converter"} <= listed("Holistic Trace Analysis")


# Recipes whose files are longer than the 250 lines that one should have: none may be added.
def test_at_least_sixty_recipes_answer_a_question_and_none_is_long() -> None:
    asked = {name: known for name, known in recipes().items() if known.page}
    assert all(known.question.endswith("?") for known in asked.values())
    assert len({known.question for known in asked.values()}) == len(asked)
    files = {name: Path(inspect.getfile(known.function)) for name, known in recipes().items()}
    long = {name for name, file in files.items() if len(file.read_text().splitlines()) > 250}
    assert not long, f"a recipe of more than 250 lines: {sorted(long)}"
    assert len(asked) >= 60


@pytest.mark.parametrize("name", asked_by_name())
def test_a_recipe_on_request_says_how_to_read_it_and_where_it_ends(name: str) -> None:
    known = asked_by_name()[name]
    for heading in ("How to read it:", "Limits:", "What to try:"):
        assert f"\n{heading}" in known.doc, f"'{name}' has no paragraph '{heading}'"
    assert not known.declared, "a finding would never be shown: the first page does not ask it"
    assert known.plot is not None and known.page
    file = Path(inspect.getfile(known.function))
    assert len(file.read_text().splitlines()) < 250
    for other in re.findall(r"`lostflops recipe ([\w-]+) ", known.doc):
        assert other.replace("-", "_") in recipes()


def test_the_first_page_loads_none_of_the_recipes_on_request() -> None:
    assert not set(asked_by_name()) & set(of_the_page())
    code = """
import sys
from lostflops.recipes import declared, named, of_the_page
declared(), named("step_ledger"), of_the_page()
print([name for name in sys.modules if ".on_request" in name])
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.strip() == "[]"
