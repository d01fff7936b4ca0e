"""Open a timeline of every rank in the browser.

Zooms from the whole job to a single kernel. The first line printed is an address that works once and for this
user alone. PATH may be a folder of runs, or several runs: the page then lists them and can lay one beside
another. The first view of a run adds up its events and keeps the sums beside it.

  lostflops view runs/base
  lostflops view runs/base --against runs/new          two runs, one below the other, step by step
  lostflops view runs --no-browser --port 8123         on a login node, for `ssh -L 8123:localhost:8123`
  lostflops view runs/base --notebook                  a notebook that shows the run
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.errors import BadOption, MissingExtra, NothingThere, shown

if TYPE_CHECKING:
    from lostflops.store.trace import Trace


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_paths(parser, newest=True)
    parser.add_argument(
        "--against",
        metavar="RUN",
        default="",
        help="draw this run below PATH, moved so that a step of both begins at the same place",
    )
    parser.add_argument(
        "--notebook",
        metavar="FILE",
        nargs="?",
        const="view.ipynb",
        help="serve nothing: write a notebook that shows the run (default: %(const)s)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--port", metavar="N", type=int, default=0, help="listen there (default: a free port)"
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="listen there, for others to reach it: whoever has the token reads the run, unencrypted "
        "(default: %(default)s, this machine alone)",
    )


def run(given: Namespace) -> None:
    if not 0 <= given.port < 1 << 16:
        raise BadOption(
            f"There is no port {given.port}.", "choose one from 1024 to 65535, or leave --port out."
        )
    paths = given.paths or [traces.newest_run(Path())]
    for path in [*paths, *([given.against] if given.against else [])]:
        if not path or (not Path(path).expanduser().exists() and not set("*?[") & set(path)):
            raise NothingThere(path)
    if given.notebook:
        written(Path(given.notebook), paths)
        return
    try:
        from lostflops.viewer.server import runs, serving
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        raise MissingExtra("`lostflops view`", "view") from error

    def opened(some: Sequence[str], tell: Callable[[str, float], None]) -> Trace:
        return traces.opened(Namespace(**{**vars(given), "paths": list(some)}), tell)

    served = runs.found(paths, opened)
    begins = "/"
    if given.against:
        served, begins = runs.beside(served, runs.found([given.against], opened))
    serving.serve(
        served,
        begins=begins,
        host=given.host,
        port=given.port,
        browser=not given.no_browser,
        say=lambda line: print(line, flush=True),
    )


def written(target: Path, paths: Sequence[str]) -> None:
    """Write a notebook of the runs. Raises BadOption where one stands there, or CannotWrite."""
    import json

    cells = [
        ["import lostflops"],
        *[[f"run = lostflops.open({str(Path(path).absolute())!r})", "lostflops.view(run)"] for path in paths],
        ["lostflops.why(run)"],
        ['lostflops.ask(run, "step_ledger")'],
    ]
    document: dict[str, Any] = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            {
                "id": f"cell-{number}", "cell_type": "code", "metadata": {}, "outputs": [],
                "execution_count": None, "source": "\n".join(lines),
            }
            for number, lines in enumerate(cells)
        ],
    }  # fmt: skip
    if target.exists():
        raise BadOption(f"'{shown(str(target))}' already exists.", "name another: --notebook FILE.")
    with files.replacing(target) as beside:
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written: {shown(str(target))}")
    print(f"open it with `jupyter lab {shown(str(target))}`; it needs `pip install 'lostflops[notebook]'`")
