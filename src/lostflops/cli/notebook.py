"""`%%lostflops` and `%lostflops` in a notebook: record a cell and show its first page in place."""

from __future__ import annotations

import ast
import atexit
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lostflops import units
from lostflops.cli.arguments import traces
from lostflops.cli.arguments.parser import Parser
from lostflops.errors import BadOption, CannotWrite, LostflopsError, NothingRecorded, OutputExists, shown

if TYPE_CHECKING:
    from lostflops.capture.record.cell import RecordedCell
    from lostflops.finding import Finding
    from lostflops.store.trace import Trace

CELL = "cell"  # as a PATH: the cell that was recorded last
LOWEST, HIGHEST = 100, 10_000  # pixels
COLUMNS = "100"
FEWEST = 3  # steps that make a mean
# What advises to record other kinds of rows; in a notebook nothing of it is a command.
RECORD_WHAT = re.compile(r"`lostflops record (--what \S+) -- COMMAND`")


class HelpShown(Exception):
    """Help was asked for and has been printed."""


class _Parser(Parser):
    """One that raises: a notebook's Python is not to be left."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if not status:
            raise HelpShown
        said, _, hint = (message or "").strip().partition("\nHint: ")
        raise BadOption(said, hint)


def cell_parser() -> ArgumentParser:
    """The options of `%%lostflops`."""
    parser = _Parser(
        prog="%%lostflops", description="Record this cell and show where its time went.", allow_abbrev=False
    )
    parser.add_argument(
        "--what",
        metavar="LIST",
        default="cuda,shapes",
        help="what to record: cuda, shapes, python (call stacks), memory (default cuda,shapes)",
    )
    _add_shown(parser)
    parser.add_argument("--as", dest="name", metavar="NAME", help="also give the trace to a variable")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="keep the trace, in a folder that this makes"
    )
    return parser


def line_parser() -> ArgumentParser:
    """The options of `%lostflops why`."""
    parser = _Parser(
        prog="%lostflops why",
        description="Show the first page of a run, or of the cell that was recorded last.",
        epilog="`%lostflops COMMAND ...` runs any other command; the PATH `cell` is the cell recorded last.",
        allow_abbrev=False,
    )
    traces.add_paths(parser)
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] - the one way to change it
        if action.dest == "paths":
            action.nargs, action.default, action.required = "*", [CELL], False
    _add_shown(parser)
    return parser


def _add_shown(parser: ArgumentParser) -> None:
    traces.add_steps(parser)
    parser.add_argument("--height", metavar="PIXELS", type=int, help="height of the page that is shown")


def for_a_cell(finding: Finding) -> Finding:
    """The finding with the advice to record more of a job as what to write above the cell."""
    return replace(finding, next=RECORD_WHAT.sub(r"`%%lostflops \1`", finding.next))


class Magics:
    """The magics of one notebook, and the cells that they recorded.

    Traces of cells are removed when the notebook's Python ends, unless `--output` keeps them.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._cells = 0
        self._last: Path | None = None  # the run of the cell that was recorded last

    def cell(self, line: str, cell: str) -> None:
        """Record the cell and show its first page. `%%lostflops --help` lists the options."""
        __tracebackhide__ = True
        with _usage():
            try:
                given = cell_parser().parse_args(_words(line))
            except HelpShown:
                return
            from lostflops.capture.record.recording import what

            kinds = what(given.what)
            self._check(given, cell)
            folder = self._place()
            kept = folder if given.output is None else _made(given.output)
        _import_torch(self._transformed(cell))
        from lostflops.capture.record import cell as capture

        result: Any = None

        def work() -> None:
            nonlocal result
            result = self._run(cell)

        recorded = capture.record(work, kept, kinds)
        error: BaseException | None = result.error_before_exec or result.error_in_exec
        if error is None or isinstance(error, KeyboardInterrupt):
            self._show_cell(recorded, folder, given)
        if result.error_before_exec is not None:
            raise result.error_before_exec.with_traceback(None)
        if error is not None:
            raise error

    def line(self, line: str) -> None:
        """Show the page of a run or of the last recorded cell, or run another command of lostflops."""
        __tracebackhide__ = True
        from lostflops.cli.commands import commands

        with _usage():
            words = _words(line)
            if words and words[0] in commands() and words[0] != "why":
                self._command(words)
                return
            if words and words[0] not in ("why",) and not words[0].startswith("-"):
                raise BadOption(
                    f"There is no command '{shown(words[0])}'.",
                    f"`%lostflops why PATH` shows a run's page; there are also {', '.join(commands())}.",
                )
            try:
                given = line_parser().parse_args(words[words[:1] == ["why"] :])
            except HelpShown:
                return
            self._check(given)
            asked, given.paths = given.paths, self._named(given.paths)
            self._show(traces.opened(given), asked, given)

    def _check(self, given: Namespace, cell: str = "") -> None:
        """Raise before the cell runs what would be wrong after it."""
        if given.steps:
            units.span(given.steps, "--steps", "steps")
        if given.height is not None and not LOWEST <= given.height <= HIGHEST:
            raise BadOption(f"--height takes {LOWEST} to {HIGHEST:,} pixels.")
        name = getattr(given, "name", None)
        if name is not None and not name.isidentifier():
            raise BadOption(f"'{shown(name)}' is not a variable name.", "as in `%%lostflops --as run`.")
        if cell and self._shell.should_run_async(cell, transformed_cell=self._transformed(cell)):
            raise BadOption(
                "A cell with `await` at its top level cannot be recorded: other code runs while it waits.",
                "put the code into a script, and `lostflops record --` in front of it.",
            )

    def _transformed(self, cell: str) -> str:
        """The cell as Python, without the shell's own syntax; nothing when it is not to be read."""
        try:
            return self._shell.transform_cell(cell)
        except SyntaxError:  # running it will tell
            return ""

    def _place(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="lostflops-", ignore_cleanup_errors=True)
            atexit.register(self._folder.cleanup)
        self._cells += 1
        place = Path(self._folder.name) / f"cell-{self._cells}"
        place.mkdir()
        return place

    def _run(self, cell: str) -> Any:
        """Run the cell in the user's namespace. Its error is shown once, by whoever called the magic."""
        silenced = ("showtraceback", "showsyntaxerror", "showindentationerror")
        for name in silenced:
            setattr(self._shell, name, lambda *_, **__: None)  # pyright: ignore[reportUnknownLambdaType]
        try:
            return self._shell.run_cell(cell)
        finally:
            for name in silenced:
                delattr(self._shell, name)

    def _show_cell(self, recorded: RecordedCell, folder: Path, given: Namespace) -> None:
        try:
            trace = _read(recorded, folder / "run")
            self._last = folder / "run"
            if given.name:
                from lostflops.report.opened import OpenedRun

                self._shell.user_ns[given.name] = OpenedRun.of(trace)
            if recorded.reason:
                print(
                    f"lostflops recorded the first {recorded.seconds:.1f} s of {recorded.worked:.1f} s: "
                    f"{recorded.reason}."
                )
            self._show(_whole_steps(trace, given.steps), [CELL], given)
        except LostflopsError as error:  # the cell itself has done its work
            print(f"lostflops: {error}")

    def _show(self, trace: Trace, paths: Sequence[str], given: Namespace) -> None:
        from lostflops.report import notebook
        from lostflops.report.first_page.page import page
        from lostflops.session import Session

        made = page(trace, Session(trace))
        if paths == [CELL]:
            made = replace(made, findings=tuple(map(for_a_cell, made.findings)))
        typed = traces.again(paths, given, trace.steps)
        self._shell.display_pub.publish(notebook.bundle(made, typed, given.height or notebook.HEIGHT))

    def _named(self, words: Sequence[str]) -> list[str]:
        """The words, with the last recorded cell's folder for `cell`."""
        if CELL not in words or Path(CELL).exists():
            return list(words)
        if self._last is None:
            raise BadOption(
                "No cell has been recorded yet.",
                "begin one with `%%lostflops`, or name a run: `%lostflops why PATH`.",
            )
        return [str(self._last) if word == CELL else word for word in words]

    def _command(self, words: Sequence[str]) -> None:
        """Run another command as a terminal would; its output appears as it comes."""
        words = self._named(words)
        running = subprocess.Popen(
            [sys.executable, "-m", "lostflops", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": COLUMNS, "PYTHONUTF8": "1"},
            encoding="utf-8",
            errors="replace",
        )
        assert running.stdout is not None
        try:
            for said in running.stdout:
                print(said, end="")
        except KeyboardInterrupt:
            running.send_signal(signal.SIGINT)
            raise
        finally:
            status = running.wait()
        if status:
            raise BadOption(f"`lostflops {shown(words[0])}` ended with status {status}.")


def load(shell: Any) -> None:
    """Offer the magics in this shell."""
    magics = Magics(shell)
    shell.register_magic_function(magics.cell, "cell", "lostflops")
    shell.register_magic_function(magics.line, "line", "lostflops")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadOption(f"'{shown(line)}' cannot be read: {error}.") from error


@contextmanager
def _usage() -> Generator[None]:
    """Say what is wrong with a request without a traceback."""
    __tracebackhide__ = True
    from IPython.core.error import UsageError

    try:
        yield
    except LostflopsError as error:
        raise UsageError(str(error)) from None


def _made(folder: Path) -> Path:
    """A folder to keep a trace in, made now. Raises OutputExists or CannotWrite."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputExists(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(folder, error) from error
    return folder


def _import_torch(cell: str) -> None:
    """Import PyTorch before the recording where the cell itself does: it must be there to record."""
    if "torch" in sys.modules:
        return
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(cell)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.partition(".")[0] == "torch" for name in names):
                with suppress(Exception):  # the cell will meet it too
                    importlib.import_module("torch")
                return


def _read(recorded: RecordedCell, run: Path) -> Trace:
    """The trace of a cell, in tables. Raises LostflopsError when there is nothing to show."""
    from lostflops.ingest import job

    if recorded.trace is None:
        raise LostflopsError(f"this cell was not recorded: {recorded.reason}.")
    trace = None
    with suppress(NothingRecorded):
        trace = job.open(recorded.trace, output=run)
    if trace is None or not any(map(trace.has, ("operators", "kernels", "copies", "launches"))):
        until = f" before {recorded.reason}" if recorded.reason else " in this cell"
        raise LostflopsError(f"there is nothing to show: no PyTorch operator ran{until}.")
    return trace


def _whole_steps(trace: Trace, asked: str | None) -> Trace:
    """The steps that were asked for, or else the whole ones: a cell does more than steps, at both ends."""
    if asked:
        return trace.select(steps=units.span(asked, "--steps", "steps"))
    steps = trace.table("steps")
    if steps is None:
        return trace
    rows = steps.select("step", "source", "complete").sort("step").collect()
    whole = rows.filter("complete")["step"]
    if whole.len() < FEWEST or whole.len() == rows.height or rows["source"].cast(str)[0] != "optimizer":
        return trace
    print(
        f"lostflops shows the {whole.len()} whole steps of this cell; what came before and after is in "
        f"`%lostflops --steps {rows['step'][0]}-{rows['step'][-1]}`."
    )
    return trace.select(steps=(whole[0], whole[-1]))
