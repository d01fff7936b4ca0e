"""The command line: finds the command that was typed, runs it, and catches errors, here and nowhere else."""

from __future__ import annotations

import errno
import io
import os
import sys
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lostflops.errors import CannotWrite, LostflopsError, Unheld, Unreadable, shown
from lostflops.ingest import freed_memory
from lostflops.version import __version__

from . import memory_limit
from .arguments.parser import Parser
from .commands import Command, commands, declare, sections, short

ANSWERED = 0
DOES_NOT_HOLD = 1
CANNOT_ANSWER = 2  # also what argparse exits with
OUR_FAULT = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT
NOBODY_READS = 141  # 128 + SIGPIPE
HELP = ("--help", "-h")
# What is wrong with a place that was named, whoever touches it first.
NOT_OURS = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ESTALE}
    | {errno.EIO, errno.ENOSPC, errno.EDQUOT}
)
# What a write to an open stream fails with when the place behind it takes no more.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})

EPILOG = f"""\
Start with:
  lostflops record -- python train.py    record a few steps of your job
  lostflops why                          see where their time went

`lostflops COMMAND --help` shows a command's options, `lostflops completion --help` how the shell
completes them.

exit status: {ANSWERED} answered, {DOES_NOT_HOLD} what was checked does not hold,
{CANNOT_ANSWER} input or usage that cannot be answered, {OUR_FAULT} a fault of lostflops
"""


class _Help(RawDescriptionHelpFormatter):
    """Help in sections, in which the name of a command and what it does share a line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=18)
        self._action_max_length = 18

    def _format_action(self, action: Action) -> str:
        if not isinstance(action, _SubParsersAction):
            return super()._format_action(action)
        self._indent()
        parts = [f"  {heading}\n" + "".join(self._lines(found)) for heading, found in sections().items()]
        self._dedent()
        return "\n".join(parts)

    def _lines(self, commands: Mapping[str, Command]) -> Iterator[str]:
        for name, command in commands.items():
            yield self._format_action(Action((), name, metavar=name, help=short(command.__doc__ or "")))


def parser(words: Sequence[str] = ()) -> ArgumentParser:
    """The command line's parser for what was typed.

    Where that begins with a command, no other's parser is made; where it asks for help, none is.
    """
    top = Parser(
        prog="lostflops",
        description="Find where your GPU hours go, what to change, and prove that it helped.",
        epilog=EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lostflops {__version__}")
    below = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    known = commands()
    if not words or words[0] not in HELP:
        declare(below, {words[0]: known[words[0]]} if words and words[0] in known else known, words)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    ours = words is None  # nothing else runs in this process
    words = list(sys.argv[1:] if words is None else words)
    reads = ours and bool(words) and words[0] in memory_limit.READING
    limited = reads and memory_limit.limit() is not None
    if ours:
        freed_memory.process_is_ours()
    if reads and not limited:
        freed_memory.keep_columns()
    _open_streams()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could be typed next
        from .arguments.completing import complete

        complete(parser)
    if limited:
        status = memory_limit.answered(lambda: _status(words))
        return _ran_out() if status is None else status
    return _status(words)


def _status(words: Sequence[str]) -> int:
    """Answer, and the exit status; every error is told."""
    try:
        _answer(words)
        return ANSWERED
    except Unheld:
        return DOES_NOT_HOLD
    except LostflopsError as error:
        _complain(str(error))
        return CANNOT_ANSWER
    except KeyboardInterrupt:
        _complain("Interrupted.")
        return INTERRUPTED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Rich's way of ending then
            return NOBODY_READS
        raise
    except GeneratorExit:
        raise
    except BaseException as error:  # Polars' panics are no Exceptions
        status = _unwritten(error)
        if status is not None:
            return status
        if os.environ.get("LOSTFLOPS_DEBUG"):
            raise
        if memory_limit.is_lack(error):
            return _ran_out()
        if isinstance(error, OSError) and error.filename is not None and error.errno in NOT_OURS:
            _complain(str(Unreadable(Path(os.fsdecode(error.filename)), error)))
            return CANNOT_ANSWER
        _complain(
            f"lostflops failed because of a fault of its own ({type(error).__name__}: {shown(str(error))}).\n"
            "Hint: please report it with the traceback that LOSTFLOPS_DEBUG=1 shows."
        )
        return OUR_FAULT


def _ran_out() -> int:
    _complain(str(memory_limit.OutOfMemory()))
    return CANNOT_ANSWER


def _open_streams() -> None:
    """Make standard output and error take all that is printed."""
    # A stream that was closed before we started is None; what is printed to it goes nowhere.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without '█' shows '?', not a traceback


def _answer(words: Sequence[str]) -> None:
    try:
        if not words:
            parser(HELP).print_help()
            return
        given = parser(words).parse_args(words)
        commands()[given.command].run(given)
    finally:  # also after --help, which exits
        sys.stdout.flush()


def _unwritten(error: BaseException) -> int | None:
    """The exit status when an error is that standard output cannot be written, else None.

    Files have errors of their own, from `_output`; that of a write to an open stream names no file.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    if error.errno != errno.EPIPE and error.errno not in UNWRITABLE:
        return None
    # Python flushes stdout once more when it exits; that must not complain again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return NOBODY_READS
    _complain(str(CannotWrite("standard output", error)))
    return CANNOT_ANSWER


def _complain(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
