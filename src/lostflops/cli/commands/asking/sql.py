"""Query a run's tables with SQL.

`lostflops schema RUN` prints the tables; the name of a recipe is a table, too, with its answer. QUERY is one
SELECT, '-' reads it from standard input. Times are ns; what has start and end also has duration:

  lostflops sql runs/base "select name, sum(duration) as total from kernels group by name order by total desc"

A query reads the run and nothing else, and changes nothing. It needs `pip install 'lostflops[sql]'`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lostflops.cli.arguments import traces
from lostflops.cli.output import files, formats
from lostflops.cli.output.formats.table import SHOWN_ROWS
from lostflops.cli.output.waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_path(parser, "RUN")
    parser.add_argument("query", metavar="QUERY", help="one SELECT in quotes, or '-' to read it")
    traces.add_steps(parser)
    parser.add_argument(
        "--format",
        choices=formats.names(),
        help="how to write the answer; the default is the ending of --output, else 'table', for reading, "
        f"which stops after {SHOWN_ROWS} rows",
    )
    parser.add_argument("--output", metavar="F", type=Path, help="write to the file F")


def run(given: Namespace) -> None:
    given.paths = [given.path]
    form = formats.asked(given.format, given.output)
    if given.output is not None:
        files.check(given.output, given.paths)
    text = sys.stdin.read() if given.query == "-" else given.query
    with waiting() as tell:
        trace = traces.opened(given, tell)
        if tell:
            tell("query", 1.0)
        from lostflops.report.sql.query import query

        table = query(trace, text)
    formats.put(form, None, table, given.output, given.paths)
