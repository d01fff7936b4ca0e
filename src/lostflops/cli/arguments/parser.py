"""An argument parser whose errors say what was asked, what is true and what to do, and show it safely."""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction  # pyright: ignore[reportPrivateUsage]
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from lostflops.errors import shown

KINDS: Mapping[str, str] = {"int": "a whole number", "float": "a number"}


class Parser(ArgumentParser):
    """One that knows what was meant. What was typed never reaches the terminal as it is."""

    def error(self, message: str) -> NoReturn:
        self.refuse(_in_words(self, message))

    def refuse(self, words: str) -> NoReturn:
        """End with what is wrong, and what to do behind a line break where that is something special."""
        said, _, hint = words.partition("\n")
        hint = hint or f"`{self.prog} --help` shows how it is called."
        self.exit(2, f"{said}\nHint: {hint}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        words = sys.argv[1:] if args is None else list(args)
        given, left = self.parse_known_args(words, namespace)
        if left:
            asked = _asked(self, words)
            asked.refuse(_unexpected(asked, left[0]))
        return given

    def _get_values(self, action: Action, arg_strings: list[str]) -> Any:
        # argparse takes the '--' of `--days=--` for the end of the options, and gives a list.
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            self.error(f"argument {_name(action)}: expected one argument")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.refuse(_unknown(self, action, value))


def _asked(parser: Parser, words: Sequence[str]) -> Parser:
    """The parser of the command that the words name."""
    for word in words:
        parser = _below(parser).get(word, parser)
    return parser


def _below(parser: Parser) -> Mapping[str, Parser]:
    """The parsers of a parser's commands, by name."""
    actions: list[Any] = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    return actions[0].choices if actions else {}


def _in_words(parser: Parser, message: str) -> str:
    """What argparse says, in a sentence. It tells what is wrong by its message alone."""
    if found := re.fullmatch(r"the following arguments are required: (.*)", message, re.DOTALL):
        return _missing(parser, found[1].split(", "))
    found = re.fullmatch(r"argument (.+?): (.*)", message, re.DOTALL)
    action = next((a for a in parser._actions if found and _name(a) == found[1]), None)
    if found is None or action is None:
        return f"{shown(message[:1].upper() + message[1:])}."
    name, said = found.groups()
    if said.startswith("expected "):
        return f"{name} needs a value: `{_spelled(action)}`."
    if wrong := re.fullmatch(r"invalid (\w+) value: (.*)", said, re.DOTALL):
        kind = KINDS.get(wrong[1], f"a value of the kind {action.metavar or wrong[1]}")
        return f"{name} takes {kind}, not {shown(wrong[2])}."
    return f"{name}: {shown(said)}."


def _missing(parser: Parser, names: Sequence[str]) -> str:
    below = _below(parser)
    if below and len(names) == 1:
        return f"`{parser.prog}` needs {names[0]}: {_listed(below, 'or')}."
    return f"`{parser.prog}` needs {_listed(names, 'and')}."


def _unexpected(parser: Parser, word: str) -> str:
    if not word.startswith("-"):
        return f"`{parser.prog}` does not take '{shown(word)}'."
    flag = word.partition("=")[0]
    return f"`{parser.prog}` has no option '{shown(flag)}'.{_meant(flag, _flags(parser))}"


def _unknown(parser: Parser, action: Action, value: str) -> str:
    choices = [str(choice) for choice in action.choices or ()]
    meant = _meant(value, choices)
    if not isinstance(action, _SubParsersAction):
        return f"{_name(action)} takes {_listed(choices, 'or')}, not '{shown(value)}'.{meant}"
    if parser.prog == "lostflops":
        return f"There is no command '{shown(value)}'.{meant}{_or_else(value)}"
    return f"`{parser.prog}` has no '{shown(value)}', but {_listed(choices, 'and')}.{meant}"


def _or_else(word: str) -> str:
    """What to do where the word is no command but a run or a recipe."""
    from pathlib import Path

    from .recipe_names import recipe_names

    try:
        if Path(word).exists():
            return f"\n`lostflops why {shown(word)}` shows where its time went."
    except OSError:
        pass
    recipe = word.replace("_", "-")
    if recipe in recipe_names():
        return f"\nit is a recipe: `lostflops recipe {recipe} PATH`."
    return "\n`lostflops --help` lists the commands."


def _meant(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def _flags(parser: Parser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings]


def _name(action: Action) -> str:
    """An argument as argparse calls it."""
    if action.option_strings:
        return "/".join(action.option_strings)
    for name in (action.metavar, action.dest):
        if name not in (None, SUPPRESS):
            return str(name)
    return ""


def _spelled(action: Action) -> str:
    if not action.option_strings:
        return _name(action)
    return f"{action.option_strings[-1]} {action.metavar or action.dest.upper()}"


def _listed(names: Iterable[str], last: str) -> str:
    *most, final = names
    return f"{', '.join(most)} {last} {final}" if most else final
