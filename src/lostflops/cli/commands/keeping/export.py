"""Write a run for another tool: Perfetto, Chrome, Paraver, speedscope, a spreadsheet, …

Ranks lie on one clock. What an edge of --steps or --window cuts, it cuts exactly, and the command says how
much that was. Unless --bare is given, a timeline also shows what each instant counts as in the ledger, and
the findings.

  lostflops export RUN --output run.pftrace                    all ranks, for https://ui.perfetto.dev
  lostflops export RUN --steps 10-11 --ranks 0,8 --output run.pftrace.gz
  lostflops export RUN --window 1.2s-1.5s --output run.pftrace
  lostflops export RUN --ranks 3 --output rank3.json.gz        as the PyTorch profiler writes it
  lostflops export RUN --to chrome --output folder             the same, a file per rank
  lostflops export RUN --output run.prv                        with names, labels and views beside it
  lostflops export run.prv --check                             does a Paraver trace keep its rules?
  lostflops export RUN --weight device --output run.folded     a flame graph of what launched GPU time
  lostflops export RUN --table kernels --output kernels.parquet
"""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lostflops.cli.arguments import traces
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting
from lostflops.errors import BadOption

if TYPE_CHECKING:
    from lostflops.export import Exported

FORMATS = ("perfetto", "chrome", "paraver", "speedscope", "folded", "parquet", "arrow", "csv", "otlp")
MANY = 2_000_000  # slices; a browser opens so many in half a minute


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_paths(parser)
    parser.add_argument(
        "--to", choices=FORMATS, help="the format; the default is the one that F's ending belongs to"
    )
    parser.add_argument(
        "--output",
        metavar="F",
        type=Path,
        help="the file to write; '.gz' behind it compresses",
    )
    traces.add_steps(parser)
    parser.add_argument("--ranks", metavar="A,B-C", help="only these ranks")
    parser.add_argument(
        "--window", metavar="A-B", help="only from A to B on the run's clock, as in 1.2s-1.5s or 0-300ms"
    )
    parser.add_argument(
        "--table", metavar="NAME", help="for parquet, arrow and csv: the table or recipe to write"
    )
    parser.add_argument(
        "--weight",
        choices=("host", "device", "exposed"),
        default="host",
        help="for speedscope and folded: the host's own time, that of the GPU work launched there, or how "
        "much of that ran alone (default: %(default)s)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="instead test PATH, a Paraver trace, as strictly as Paraver is lax",
    )
    parser.add_argument(
        "--bare", action="store_true", help="only what was recorded: no ledger and no findings"
    )


def run(given: Namespace) -> None:
    if given.check:
        _check(given.paths)
        return
    if given.output is None:
        raise BadOption(
            "`lostflops export` needs a file to write.", "add `--output run.pftrace`, or another ending."
        )
    files.check(given.output, given.paths)
    from lostflops import export, units
    from lostflops.errors import shown
    from lostflops.export import formats, selection
    from lostflops.export.writing import require_outside
    from lostflops.store.trace import REPLAYED

    require_outside(given.output, given.paths)
    to = given.to or formats.of_ending(given.output.name)
    if to is None:
        raise BadOption(
            "The ending of --output belongs to no format.", f"add `--to` and one of {', '.join(FORMATS)}."
        )
    window = None if given.window is None else selection.window(given.window)
    ranks = None if given.ranks is None else units.numbers(given.ranks, "--ranks", "ranks")
    with _terminable(), waiting() as tell:
        trace = traces.opened(given, tell)
        findings = ()
        if not given.bare and formats.named(to).TIMELINE:
            from lostflops.report.first_page.page import page
            from lostflops.session import Session

            findings = tuple(page(trace, Session(trace)).findings)
        said = export.export(
            trace,
            to,
            given.output,
            ranks=ranks,
            window=window,
            bare=given.bare,
            table=given.table,
            weight=given.weight,
            findings=findings,
            progress=tell,
        )
    _tell(said, formats.named(to).OPENED_BY)
    if made := next((fact.text for fact in trace.manifest.quality if fact.name == REPLAYED), ""):
        print(f"predicted: replayed with {shown(made)}, these times were not measured")


@contextmanager
def _terminable() -> Generator[None]:
    """SIGTERM, a batch system's way of ending a job, is an interruption here: nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check(paths: Sequence[str]) -> None:
    """Say what is wrong with Paraver traces. Raises BrokenTrace where anything is."""
    from lostflops.errors import BrokenTrace, shown
    from lostflops.export.formats.paraver.check import check

    for path in paths:
        problems = check(Path(path))
        for problem in problems:
            print(f"{shown(path)}: {'warning: ' if problem.warning else ''}{shown(str(problem))}")
        wrong = sum(not problem.warning for problem in problems)
        if wrong:
            raise BrokenTrace(path, wrong)
        print(f"{shown(path)}: every rule holds")


def _tell(said: Exported, opened_by: str) -> None:
    from lostflops.errors import shown

    amounts = [*said.amounts]
    listed = f"{', '.join(amounts[:-1])} and {amounts[-1]}" if len(amounts) > 1 else "".join(amounts)
    ranks = f"{said.num_ranks:,} rank{'s' * (said.num_ranks != 1)}"
    print(f"exported {listed} of {ranks} -> {shown(said.files[0])}  ({said.num_bytes / 1e6:.1f} MB)")
    if said.cut:
        print(f"cut at an edge of what was asked for: {said.cut:,} rows")
    for note in said.notes:
        print(note)
    if said.num_slices > MANY:
        print(
            f"a browser may run out of memory with more than {MANY:,} slices: --steps, --ranks and --window "
            "leave fewer"
        )
    print(opened_by)
