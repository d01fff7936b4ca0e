"""Reads a budget: limits on accounts, on columns of recipes, and on what a baseline may be exceeded by.

    [limits]                                   # per step
    step = "140 ms"                            # at most
    "idle.data_loading" = "2 %"                # of the step
    compute = { at_least = "80 %" }

    [[recipes]]
    recipe = "kernel-summary"
    column = "per_step"
    rows = { name = "aten::mm" }               # all rows, where it is left out
    of = "sum"                                 # largest (which it is otherwise), smallest, mean
    at_most = "12 ms"

    [regression]                               # how much more than the baseline
    baseline = "runs/base"                     # from the folder of the budget
    step = "3 %"

Whatever is wrong with it is found before a run is read, and said with the line and what is known instead.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from lostflops import recipes
from lostflops.accounts import ACCOUNTS
from lostflops.errors import BadBudget, LostflopsError, Unreadable, suggestion
from lostflops.recipe import Recipe
from lostflops.report.first_page.budget import GROUPS
from lostflops.report.words.safe import as_command

from .amounts import EXAMPLES, UNITS, BudgetAmount, amount

STEP = "step"
Of = Literal["largest", "smallest", "sum", "mean"]
HOW: tuple[Of, ...] = ("largest", "smallest", "sum", "mean")
BOUNDS = ("at_most", "at_least")
RECIPE_EXAMPLE = 'as in recipe = "kernel-summary" and column = "per_step"'
SECTIONS = ("limits", "recipes", "regression")
BIGGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Limit:
    """What something may at most, or must at least, be. `line` is where the budget says so."""

    name: str
    line: int
    at_most: BudgetAmount | None = None
    at_least: BudgetAmount | None = None


@dataclass(frozen=True)
class RecipeLimit(Limit):
    """A limit on a column of a recipe: on one number of the rows that have these values."""

    recipe: str = ""
    column: str = ""
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    of: Of = "largest"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class RunBudget:
    """A whole budget."""

    path: Path
    accounts: tuple[Limit, ...]
    recipes: tuple[RecipeLimit, ...]
    regressions: tuple[Limit, ...]
    baseline: str = ""  # as a path from here; empty where none is named

    @property
    def number(self) -> int:
        return len(self.accounts) + len(self.recipes) + len(self.regressions)


def read(path: Path) -> RunBudget:
    """The budget in a file. Raises BadBudget or Unreadable."""
    try:
        with path.open("rb") as file:
            raw = file.read(BIGGEST + 1)
    except OSError as error:
        raise Unreadable(path, error) from error
    if len(raw) > BIGGEST:
        raise BadBudget(path, "it is larger than 1 MiB")
    try:
        text = raw.decode()
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise BadBudget(path, "it is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise BadBudget(path, f"it is not TOML: {error}") from error
    except (RecursionError, ValueError) as error:  # brackets without end; an integer of thousands of digits
        raise BadBudget(path, "it is not TOML that can be read") from error
    found = _Reader(path, text.splitlines()).limits(content)
    if not found.number:
        raise BadBudget(
            path, "it holds no limit", "`lostflops check --init RUN` writes a first budget from a run."
        )
    return found


def known_accounts() -> list[str]:
    """What a limit may be on: the step, groups of accounts, and accounts."""
    return list(dict.fromkeys((STEP, *GROUPS, *ACCOUNTS)))


class _Reader:
    """Turns what the file holds into limits, or says what is wrong where."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path = path
        self._lines = lines

    def limits(self, content: Mapping[str, Any]) -> RunBudget:
        for name in content:
            if name not in SECTIONS:
                self._unknown("section", name, SECTIONS, self._line(name))
        regression = dict(self._table(content.get("regression", {}), "[regression]", "regression"))
        base = regression.pop("baseline", "")
        if not isinstance(base, str) or "\0" in base:
            self._wrong("baseline", "is not a path", self._line("baseline", "regression"))
        given = content.get("recipes", [])
        if not isinstance(given, list):
            self._wrong("recipes", "is not a list of tables: write [[recipes]]", self._line("recipes"))
        return RunBudget(
            self._path,
            tuple(self._accounts(self._table(content.get("limits", {}), "[limits]", "limits"), "limits")),
            tuple(self._recipe(one, i) for i, one in enumerate(cast("list[Any]", given))),
            tuple(self._accounts(regression, "regression")),
            str(self._path.parent / base) if base else "",
        )

    def _accounts(self, table: Mapping[str, Any], section: str) -> Iterator[Limit]:
        for name, said in _flat(table):
            line = self._line(name, section)
            if name not in known_accounts():
                self._unknown("account", name, known_accounts(), line)
            most, least = self._bounds(said, name, line)
            for bound in (most, least):
                if bound is not None and bound.unit not in ("time", "share"):
                    self._wrong(name, "takes a time or a share", line, 'as in "2 ms" or "5 %"')
                if bound is not None and bound.unit == "share" and name == STEP and section == "limits":
                    self._wrong(name, "takes a time: it is what shares are of", line, 'as in "140 ms"')
            if section == "regression" and least is not None:
                self._wrong(name, "takes only what it may grow by at most", line, 'as in "3 %"')
            yield Limit(name, line, most, least)

    def _recipe(self, given: Any, number: int) -> RecipeLimit:
        line = self._nth("recipes", number)
        table = self._table(given, "[[recipes]]", "recipes", line)
        allowed = ("recipe", "column", "rows", "of", "options", *BOUNDS)
        for key in table:
            if key not in allowed:
                self._unknown("key", key, allowed, line)
        name, column = table.get("recipe"), table.get("column")
        for key, value in (("recipe", name), ("column", column)):
            if not isinstance(value, str):
                self._wrong(
                    "[[recipes]]",
                    f"lacks its {key}",
                    line,
                    RECIPE_EXAMPLE,
                )
        known = self._known_recipe(str(name), line)
        if column not in known.columns:
            self._unknown(f"column of {as_command(known.name)}", str(column), list(known.columns), line)
        unit = UNITS.get(known.columns[str(column)].kind)
        if unit is None:
            self._wrong(f"column '{column}'", "holds no amount", line, "limit a column of numbers")
        rows = self._table(table.get("rows", {}), "rows", "recipes", line)
        for key in rows:
            if key not in known.columns:
                self._unknown(f"column of {as_command(known.name)}", key, list(known.columns), line)
        of = table.get("of", HOW[0])
        if of not in HOW:
            self._unknown("way to take one number of several rows", str(of), HOW, line)
        options = self._table(table.get("options", {}), "options", "recipes", line)
        for key in options:
            if key not in (names := [option.name for option in known.options]):
                self._unknown(f"option of {as_command(known.name)}", key, names, line)
        most, least = self._bounds({k: v for k, v in table.items() if k in BOUNDS}, str(name), line)
        for bound in (most, least):
            if bound is not None and bound.unit != unit:
                self._wrong(f"column '{column}'", f"takes {EXAMPLES[unit]}", line)
        return RecipeLimit(
            f"{as_command(known.name)}.{column}",
            line,
            most,
            least,
            recipe=known.name,
            column=str(column),
            rows=rows,
            of=of,
            options=options,
        )

    def _known_recipe(self, name: str, line: int) -> Recipe:
        try:
            return recipes.named(name)
        except LostflopsError as error:
            raise BadBudget(self._path, f"line {line}: {error.message.rstrip('.')}", error.hint) from error

    def _bounds(self, said: Any, name: str, line: int) -> tuple[BudgetAmount | None, BudgetAmount | None]:
        """What a limit says: an amount alone is what there may be at most."""
        table = cast("Mapping[str, Any]", said if isinstance(said, Mapping) else {"at_most": said})
        for key in table:
            if key not in BOUNDS:
                self._unknown("bound", key, BOUNDS, line)
        if not table:
            self._wrong(name, "has no limit", line, 'write at_most = "2 ms", or at_least')
        found: list[BudgetAmount | None] = []
        for key in BOUNDS:
            value = amount(table[key]) if key in table else None
            if key in table and value is None:
                self._wrong(name, f"has a limit that is not an amount: {table[key]!r}", line,
                            'write "2 ms", "5 %", "1 GiB" or a number')  # fmt: skip
            found.append(value)
        most, least = found
        if most and least and most.unit == least.unit and most.value < least.value:
            self._wrong(name, f"must be at least {least.text} and at most {most.text}", line)
        return most, least

    def _table(self, value: Any, what: str, key: str, line: int = 0) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._wrong(what, "is not a table", line or self._line(key))
        return cast("Mapping[str, Any]", value)

    def _unknown(self, what: str, name: str, known: Iterable[str], line: int) -> NoReturn:
        listed = list(known)
        meant = suggestion(name, listed)
        raise BadBudget(
            self._path,
            f"line {line}: there is no {what} called '{name}'.{meant}".rstrip("."),
            f"known are {', '.join(listed)}." if listed else "it has none.",
        )

    def _wrong(self, name: str, what: str, line: int, hint: str = "") -> NoReturn:
        raise BadBudget(self._path, f"line {line}: '{name}' {what}", f"{hint}." if hint else "")

    def _line(self, key: str, section: str = "") -> int:
        """The line of a key, as far as can be told; TOML's reader does not say."""
        last = key.rpartition(".")[2]
        spelled = "|".join(re.escape(word) for word in dict.fromkeys((key, last)))
        here = re.compile(rf"\s*(?:\[+\s*)?[\w.\"' ]*[\"']?(?:{spelled})[\"']?\s*(?:=|\])")
        begins = re.compile(rf"\s*\[+\s*{re.escape(section)}\b") if section else None
        inside = not section
        for number, line in enumerate(self._lines, 1):
            inside = inside or bool(begins and begins.match(line))
            if inside and here.match(line):
                return number
        return 1

    def _nth(self, section: str, number: int) -> int:
        found = [i for i, line in enumerate(self._lines, 1) if re.match(rf"\s*\[\[\s*{section}\s*\]\]", line)]
        return found[number] if number < len(found) else self._line(section)


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Accounts by their full names: `idle.data_loading = …` without quotes is a table in a table."""
    for name, said in table.items():
        if isinstance(said, Mapping):
            inside = cast("Mapping[str, Any]", said)
            bounds = {key: value for key, value in inside.items() if key in BOUNDS}
            rest = {key: value for key, value in inside.items() if key not in BOUNDS}
            if bounds or not rest:
                yield f"{above}{name}", bounds
            yield from _flat(rest, f"{above}{name}.")
        else:
            yield f"{above}{name}", said
