"""The command line: one file per command, found by being here.

A command's module says what it does in its docstring, declares its flags in `arguments(parser)` and works in
`run(given)`. Modules import what is heavy only when they run, so that `--help` answers at once. Errors are
caught here and nowhere else.
"""

from __future__ import annotations

import io
import os
import pkgutil
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _SubParsersAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypeAlias

from lostflops.errors import LostflopsError, shown
from lostflops.version import __version__

ANSWERED = 0
CANNOT_ANSWER = 2  # also what argparse exits with
OUR_FAULT = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT
NOBODY_READS = 141  # 128 + SIGPIPE

EPILOG = f"""\
Start with: lostflops why my_traces/

exit status: {ANSWERED} answered, {CANNOT_ANSWER} input or usage that cannot be answered,
{OUR_FAULT} a fault of lostflops
"""


Below: TypeAlias = "_SubParsersAction[ArgumentParser]"


class Command(Protocol):
    """What a module of this package offers."""

    __doc__: str | None

    def arguments(self, parser: ArgumentParser, words: Sequence[str]) -> None:
        """Declare the flags. `words` are what was typed after the command, for flags that depend on it."""
        ...

    def run(self, given: Namespace) -> None: ...


def commands() -> Mapping[str, Command]:
    """Every command by name. A trailing underscore keeps a module's name off Python's keywords."""
    return {name.rstrip("_"): command for name, command in found_in(__name__, __path__).items()}


def found_in(package: str, path: Iterable[str]) -> Mapping[str, Command]:
    """The commands that lie as files in a package, by the names of the files."""
    found = (m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))
    return {name: import_module(f"{package}.{name}") for name in sorted(found)}  # pyright: ignore[reportReturnType]


def declare(below: Below, commands: Mapping[str, Command], words: Sequence[str]) -> None:
    """Give each command a parser of its own; `words` are those typed from the command's name on."""
    for name, command in commands.items():
        one = described(below, name, command.__doc__ or "")
        command.arguments(one, words[1:] if words[:1] == [name] else ())


def described(below: Below, name: str, text: str) -> ArgumentParser:
    """A parser of a command that says what it does in `text`, of which the first line is its short help."""
    text = text.strip()
    return below.add_parser(
        name,
        help=text.partition("\n")[0],
        description=text,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parser(words: Sequence[str] = ()) -> ArgumentParser:
    """The whole command line's parser, as far as it depends on what was typed."""
    top = ArgumentParser(
        prog="lostflops",
        description="Find where your GPU hours go, what to change, and prove that it helped.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lostflops {__version__}")
    below = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    declare(below, commands(), words)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    words = list(sys.argv[1:] if words is None else words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without '█' shows '?', not a traceback
    try:
        given = parser(words).parse_args(words)
        commands()[given.command].run(given)
        sys.stdout.flush()
        return ANSWERED
    except LostflopsError as error:
        print(error, file=sys.stderr)
        return CANNOT_ANSWER
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; that must not complain about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # Polars' panics are no Exceptions
        if os.environ.get("LOSTFLOPS_DEBUG"):
            raise
        print(
            f"lostflops failed on a fault of its own ({type(error).__name__}: {shown(str(error))}).\n"
            "Hint: please report it with the traceback that LOSTFLOPS_DEBUG=1 shows.",
            file=sys.stderr,
        )
        return OUR_FAULT
