"""The commands: one file each, found by being here, in the sections of `lostflops --help`.

A command's module says what it does in its docstring, declares its flags in `arguments(parser)` and works in
`run(given)`. Modules import what is heavy only when they run, so that `--help` answers at once. A section's
folder has its heading as docstring, and its place among the sections in `ORDER`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _SubParsersAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

Below: TypeAlias = "_SubParsersAction[Any]"


class Command(Protocol):
    """What a module of a section offers."""

    __doc__: str | None

    def arguments(self, parser: ArgumentParser, words: Sequence[str]) -> None:
        """Declare the flags. `words` are what was typed after the command, for flags that depend on it."""
        ...

    def run(self, given: Namespace) -> None: ...


@cache
def sections() -> Mapping[str, Mapping[str, Command]]:
    """The commands of each section by name, the sections by heading and in their order."""
    folders = Path(__file__).parent.glob("*/__init__.py")
    found = [import_module(f"{__name__}.{file.parent.name}") for file in folders]
    ordered = sorted(found, key=lambda section: (section.ORDER, section.__name__))
    return {heading(section): found_in(section) for section in ordered}


def heading(section: ModuleType) -> str:
    return (section.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def commands() -> Mapping[str, Command]:
    """Every command by name."""
    return {name: command for section in sections().values() for name, command in section.items()}


def found_in(package: ModuleType) -> Mapping[str, Command]:
    """The commands that lie as files in a package, by the names of the files.

    A trailing underscore keeps a module's name off Python's keywords.
    """
    # Not by pkgutil, which takes longer to find them than Python does to import them.
    found = sorted(file.stem for file in Path(package.__path__[0]).glob("[!_]*.py"))
    return {name.rstrip("_"): import_module(f"{package.__name__}.{name}") for name in found}  # pyright: ignore[reportReturnType]


def declare(below: Below, commands: Mapping[str, Command], words: Sequence[str]) -> None:
    """Give each command a parser of its own; `words` are those typed from the command's name on."""
    for name, command in commands.items():
        one = described(below, name, command.__doc__ or "")
        command.arguments(one, words[1:] if words[:1] == [name] else ())


def described(below: Below, name: str, text: str) -> ArgumentParser:
    """A parser of a command that says what it does in `text`, of which the first line is its short help."""
    return below.add_parser(
        name,
        help=short(text),
        description=text.strip(),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def short(text: str) -> str:
    """What a command does, in one line of help."""
    return text.strip().partition("\n")[0]
