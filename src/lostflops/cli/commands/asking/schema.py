"""Print the tables, their columns, types, units and meanings.

With RUN, what that run has: how many rows, and of what is missing how to record it. TABLE is one of them, or
a recipe, whose answer `lostflops sql` can query like a table. One word that names a table is no run: write
`./kernels` for a folder of that name.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops.cli.arguments import traces
from lostflops.cli.arguments.recipe_names import recipe_names
from lostflops.errors import BadOption, shown, suggestion

if TYPE_CHECKING:
    from lostflops.report.sql.schema import Known
    from lostflops.store.trace import Trace


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("path", metavar="RUN", nargs="?", help="a recorded run, or traces")
    table = parser.add_argument("table", metavar="TABLE", nargs="?", help="a table or a recipe")
    setattr(table, "completer", _names)  # noqa: B010 - argcomplete looks for it
    traces.add_leniency(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="how to write it")


def run(given: Namespace) -> None:
    path, name = _split(given.path, given.table)
    from lostflops.report.sql import schema

    if name is not None and _known(name) is None:
        raise BadOption(
            f"There is no table or recipe called '{shown(name)}'.{_close(name)}",
            "`lostflops schema` lists the tables.",
        )
    trace: Trace | None = None
    if path is not None:
        given.paths = [path]
        trace = traces.opened(given)
    tables = schema.tables(trace) if name is None else [schema.described(name, trace)]
    if given.format == "json":
        from lostflops.cli.output.safe import printable_json

        sys.stdout.write(printable_json(schema.document(tables)).decode())
        return
    from rich.console import Console

    schema.show(tables, Console() if sys.stdout.isatty() else Console(width=10_000))


def _names(**_: object) -> list[str]:
    from lostflops.tables import TABLES

    return [*TABLES, *recipe_names()]


def _split(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """The run and the table that were named."""
    if first is None or second is not None:
        return first, second
    is_table = _known(first) or (_close(first) and not Path(first).exists())
    return (None, first) if is_table else (first, None)


def _close(name: str) -> str:
    """A table or recipe that may have been meant, in a sentence."""
    from lostflops.recipes import recipes
    from lostflops.tables import TABLES

    return suggestion(name, TABLES) or suggestion(name, recipes())


def _known(name: str) -> Known | None:
    from lostflops.report.sql import schema

    return schema.named(name)
