"""The notebooks that `--notebook F` writes: which cells they have, and what cannot be in one."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lostflops.cli.output import files
from lostflops.errors import BadOption

if TYPE_CHECKING:
    from lostflops.finding import Finding
    from lostflops.recipe import Recipe
    from lostflops.report.first_page.page import Page
    from lostflops.report.in_notebook.file import Code, Prose

ENDING = ".ipynb"
GIVES = "also write an executed notebook to F, to go on from"
# Options of which a notebook's cells would need another way.
NOT_IN_ONE = {"dask": "--dask", "against": "--against", "ranks": "--ranks"}
MOST_FINDINGS = 12


def add(parser: ArgumentParser) -> None:
    parser.add_argument("--notebook", metavar="F", help=GIVES)


def check(given: Namespace) -> None:
    """Raise early for a notebook that cannot be written."""
    if given.notebook is None:
        return
    files.check_named("notebook", given.notebook, given.paths)
    if not given.notebook.endswith(ENDING):
        raise BadOption("--notebook names no notebook.", f"give the file the ending {ENDING}.")
    for name, option in NOT_IN_ONE.items():
        if getattr(given, name, None) is not None:
            raise BadOption(
                f"--notebook and {option} do not go together.",
                "leave one out; in the notebook, `answer.table` can be cut and joined.",
            )


def of_recipe(given: Namespace, recipe: Recipe, options: Mapping[str, Any]) -> bytes:
    """The notebook of one recipe's answer: the run, the table, the plot, and the frame to go on from."""
    from lostflops.report.in_notebook.file import Code, Prose, executed

    lead = " ".join(recipe.doc.partition("\n\n")[0].split())
    cells = [
        Prose(f"# {recipe.question}\n\n{lead}"),
        Code(_opening(given)),
        Code(f"answer = {_asked(recipe.name, options)}\nanswer"),
        *([] if recipe.plot is None else [Code("answer.chart")]),
        Prose(
            "The same as a Polars frame: times are whole nanoseconds. `answer.chart` is a Vega-Lite dict, "
            "`altair.Chart.from_dict(answer.chart)` makes an Altair chart of it."
        ),
        Code("answer.table"),
        Prose(_more(recipe)),
    ]
    return executed(cells, _folder(given))


def of_page(given: Namespace, page: Page) -> bytes:
    """The notebook of the first page: the page, and each finding with the table and the plot behind it."""
    from lostflops.report.in_notebook.file import Code, Prose, executed

    cells = [
        Prose("# Where each step's time goes, and what to change"),
        Code(_opening(given)),
        Code("page = run.why()\npage"),
        *([Prose("## Findings, costliest first")] if page.findings else []),
        *_findings(
            page.findings[:MOST_FINDINGS], {answer.recipe.name: answer.recipe for answer in page.answers}
        ),
        Prose(
            "`run.recipe(NAME)` asks any question that `lostflops recipes` lists, and "
            '`run.sql("select ...")` the tables that `lostflops schema` prints.'
        ),
    ]
    return executed(cells, _folder(given))


def _findings(found: Sequence[Finding], known: Mapping[str, Recipe]) -> Iterator[Prose | Code]:
    from lostflops.report.in_notebook.file import Code

    seen: set[str] = set()
    for number, finding in enumerate(found):
        yield Code(f"page.findings[{number}]")
        if finding.recipe not in known or finding.recipe in seen:
            continue
        seen.add(finding.recipe)
        name = finding.recipe
        yield Code(f"{name} = {_asked(name, {})}\n{name}")
        if known[name].plot is not None:
            yield Code(f"{name}.chart")


def _opening(given: Namespace) -> str:
    """The cell that opens the run: by a path from the notebook's folder, so that both can move together."""
    from lostflops import units

    folder = _folder(given)
    paths = [os.path.relpath(Path(path).expanduser(), folder) for path in given.paths]
    flags = "".join(f", {name}=True" for name in ("salvage", "allow_missing_ranks") if getattr(given, name))
    named = repr(paths[0] if len(paths) == 1 else paths)
    opened = f"lostflops.open({named}{flags})"
    if given.steps is not None:
        first, last = units.span(given.steps, "--steps", "steps")
        opened += f".select(steps=({first}, {last}))"
    return f"import lostflops\n\nrun = {opened}\nrun"


def _folder(given: Namespace) -> Path:
    return Path(os.path.realpath(given.notebook)).parent


def _asked(name: str, options: Mapping[str, Any]) -> str:
    return f"run.recipe({', '.join([repr(name), *(f'{key}={value!r}' for key, value in options.items())])})"


def _more(recipe: Recipe) -> str:
    options = ", ".join(f"`{option.name}={option.default!r}`" for option in recipe.options)
    with_options = f" `run.recipe({recipe.name!r})` takes {options}." if options else ""
    return (
        f"`run.recipe(NAME)` asks any question that `lostflops recipes` lists.{with_options} "
        '`run.sql("select ...")` asks the tables that `lostflops schema` prints.'
    )
