"""Whether a run holds its budget: each limit with what was measured, exactly.

A limit that cannot be checked is not held: a recording that lost what the limit is about must not be green.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import polars as pl
from rich.console import Console

from lostflops.columns import Kind
from lostflops.errors import LostflopsError
from lostflops.experiment.difference.compare import Difference, difference
from lostflops.experiment.difference.noise import STARTS, band
from lostflops.experiment.difference.side import Side, side
from lostflops.report.words.safe import as_command
from lostflops.session import Skipped
from lostflops.store.trace import Trace
from lostflops.units import milliseconds, written

from .amounts import UNITS, BudgetAmount
from .limits import STEP, Limit, RecipeLimit, RunBudget

Status = Literal["held", "broken", "unknown"]
WIDTH = 110
# What splits an account that other recordings of the same job do not split.
SPLIT = {"communication.wait", "communication.transfer"}


@dataclass(frozen=True)
class LimitOutcome:
    """What became of one limit: what was measured, what the budget allows, and why that is not all."""

    section: str
    name: str
    status: Status
    measured: str
    allowed: str
    line: int
    why: str = ""
    value: float | None = None  # ns, bytes, a share of 1 or a number

    @property
    def sentence(self) -> str:
        what = f"{self.name} is {self.measured}" if self.measured else f"{self.name} is not known"
        what = (
            f"{self.name} grew by {self.measured}" if self.section == "regression" and self.measured else what
        )
        return f"{what}; the budget allows {self.allowed}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, repr=False)
class Checked:
    """A run held to its budget."""

    run: str
    limits: RunBudget
    outcomes: tuple[LimitOutcome, ...]

    @property
    def held(self) -> bool:
        return all(outcome.status == "held" for outcome in self.outcomes)

    @cached_property
    def failed(self) -> tuple[LimitOutcome, ...]:
        """The limits that are broken or could not be checked."""
        return tuple(outcome for outcome in self.outcomes if outcome.status != "held")

    @property
    def sentence(self) -> str:
        many, failed = len(self.outcomes), len(self.failed)
        if self.held:
            return f"The budget holds: {'its limit' if many == 1 else f'all {many} limits'}."
        broken = sum(outcome.status == "broken" for outcome in self.failed)
        unknown = f"{failed - broken} cannot be checked" if failed - broken else ""
        parts = [
            f"{broken} of {many} limits {'is' if broken == 1 else 'are'} broken" if broken else "",
            unknown,
        ]
        return f"The budget does not hold: {', '.join(filter(None, parts))}."

    def to_json(self) -> dict[str, Any]:
        """All of it; `value` is in ns, bytes, a share of 1, or a plain number."""
        return {
            "held": self.held,
            "sentence": self.sentence,
            "budget": self.limits.path.name,
            "limits": [
                {
                    "section": one.section,
                    "name": one.name,
                    "status": one.status,
                    "measured": one.measured or None,
                    "allowed": one.allowed,
                    "value": one.value,
                    "why": one.why or None,
                    "line": one.line,
                }
                for one in self.outcomes
            ],
        }

    def show(self, console: Console) -> None:
        """Print each limit, what failed first."""
        from .terminal import show

        show(self, console)

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH, force_terminal=False, force_jupyter=False))
        return text.getvalue()

    __repr__ = __str__


def checked(trace: Trace, limits: RunBudget, baseline: Trace | None = None, name: str = "run") -> Checked:
    """Hold a run to limits; `baseline` is the run that regressions are told against."""
    run = side(trace, name)
    outcomes = [_account(run, limit) for limit in limits.accounts]
    with trace.reading():
        outcomes += [_recipe(run, limit) for limit in limits.recipes]
    if limits.regressions and baseline is not None:
        found = difference(baseline, trace, ("the baseline", name))
        outcomes += [_regression(found, limit) for limit in limits.regressions]
    return Checked(name, limits, tuple(outcomes))


def _account(run: Side, limit: Limit) -> LimitOutcome:
    allowed = _allowed(limit)
    if reason := _unknown(run, limit.name):
        return LimitOutcome("limits", limit.name, "unknown", "", allowed, limit.line, reason)
    spent = run.budget
    assert spent is not None
    ns, whole = (spent.ns if limit.name == STEP else spent.of(limit.name)), spent.ns
    mean, share = Fraction(ns, spent.num_windows), Fraction(ns, whole)
    said = milliseconds(round(mean))
    if limit.name != STEP:
        said += f" ({float(100 * share):.1f} %)"
    holds = _holds(limit, {"time": mean, "share": share})
    return LimitOutcome(
        "limits", limit.name, "held" if holds else "broken", said, allowed, limit.line, value=float(mean)
    )


def _unknown(run: Side, account: str) -> str:
    """Why the time of an account is not known; empty where it is."""
    if run.missing:
        return run.missing
    accounts = set(run.ledger["account"].unique())
    if account in SPLIT and "communication.exposed" in accounts:
        return "how much of it is waiting for other ranks is not known: their traces are missing"
    return ""


def _recipe(run: Side, limit: RecipeLimit) -> LimitOutcome:
    allowed, called = _allowed(limit), limit.name + (f" ({limit.of})" if limit.of != "largest" else "")
    if limit.rows:
        called += f" of {', '.join(f'{key} {value}' for key, value in limit.rows.items())}"
    try:
        said = run.session.run(limit.recipe, **limit.options)
    except LostflopsError as error:
        return LimitOutcome("recipes", called, "unknown", "", allowed, limit.line, error.message)
    if isinstance(said, Skipped):
        reason = f"{as_command(said.recipe)}: {said.reason}"
        return LimitOutcome("recipes", called, "unknown", "", allowed, limit.line, reason)
    kind = said.recipe.columns[limit.column].kind
    value = _value(said.table, limit)
    if value is None:
        # No rows hold no amount: nothing is too much, and nothing is enough.
        status: Status = "broken" if limit.at_least else "held"
        return LimitOutcome("recipes", called, status, "", allowed, limit.line, "no row has a value")
    holds = _holds(limit, {UNITS[kind]: value})
    return LimitOutcome(
        "recipes", called, "held" if holds else "broken", _shown(value, kind), allowed, limit.line,
        value=float(value),
    )  # fmt: skip


def _value(table: pl.DataFrame, limit: RecipeLimit) -> Fraction | None:
    """The one number that the limit is about; None without a row that has it."""
    for key, wanted in limit.rows.items():
        column = pl.col(key)
        chosen = column.cast(pl.String) == wanted if isinstance(wanted, str) else column == wanted
        table = table.filter(chosen.fill_null(False))
    values: list[int | float] = table[limit.column].drop_nulls().to_list()
    # A share of 0.4 is 40 %, not the nearest sum of powers of two.
    exact = [Fraction(repr(value)) for value in values if value == value and abs(value) != float("inf")]
    if not exact:
        return None
    match limit.of:
        case "largest":
            return max(exact)
        case "smallest":
            return min(exact)
        case "sum":
            return sum(exact, Fraction())
        case "mean":
            return sum(exact, Fraction()) / len(exact)


def _regression(found: Difference, limit: Limit) -> LimitOutcome:
    """Growth beyond the limit breaks it; whether growth within the noise of the steps does is not known."""
    allowed = _allowed(limit)
    if found.obstacles:
        reason = "; ".join(found.obstacles)
        return LimitOutcome("regression", limit.name, "unknown", "", allowed, limit.line, reason)
    if reason := _unknown(found.before, limit.name) or _unknown(found.after, limit.name):
        return LimitOutcome("regression", limit.name, "unknown", "", allowed, limit.line, reason)
    accounts = [
        change
        for change in found.waterfall.accounts
        if limit.name in (STEP, change.path[0], change.path[0].partition(".")[0])
    ]
    names = [change.path[0] for change in accounts]
    before, after = (sum(getattr(change, of) for change in accounts) for of in ("before_ns", "after_ns"))
    grown = after - before
    said = f"{'−' if grown < 0 else ''}{milliseconds(abs(grown))}"
    said += f" ({float(100 * Fraction(grown, before)):.1f} %)".replace("-", "−") if before else ""
    growth = {"time": Fraction(grown)}
    if before:
        growth["share"] = Fraction(grown, before)
    else:  # any growth from nothing is more than any share of it
        growth["share"] = Fraction(10**9 if grown > 0 else 0)
    noise = _noise(found, limit.name, names)
    status: Status = "held" if _holds(limit, growth) else "broken"
    why = ""
    if status == "broken" and noise is None:
        why = "with one step the noise is not known"
    elif status == "broken" and 0 < grown <= STARTS * found.waterfall.step.before_ns and grown > (noise or 0):
        why = "two starts of one job may differ as much: start it again before you believe it"
    elif status == "broken" and noise is not None and grown <= noise:
        status, why = "unknown", f"the noise of the steps is ±{milliseconds(noise)}: record more of them"
    return LimitOutcome("regression", limit.name, status, said, allowed, limit.line, why, float(grown))


def _noise(found: Difference, name: str, accounts: list[str]) -> int | None:
    if name == STEP:
        return found.waterfall.step.noise_ns
    return band(found.before.spent(*accounts), found.after.spent(*accounts))


def _holds(limit: Limit, measured: dict[Any, Fraction]) -> bool:
    most, least = limit.at_most, limit.at_least
    return (most is None or measured[most.unit] <= most.value) and (
        least is None or measured[least.unit] >= least.value
    )


def _allowed(limit: Limit) -> str:
    return " and ".join(_bounds(limit.at_most, limit.at_least))


def _bounds(most: BudgetAmount | None, least: BudgetAmount | None) -> Iterator[str]:
    if most:
        yield f"at most {most.text}"
    if least:
        yield f"at least {least.text}"


def _shown(value: Fraction, kind: Kind) -> str:
    match kind:
        case "time":
            return milliseconds(round(value))
        case "share":
            return f"{float(100 * value):.1f} %"
        case "bytes":
            return written(round(value))
        case _:
            return f"{float(value):,.6g}"
