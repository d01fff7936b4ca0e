"""What an exercise is: a question, a job with a fault and without, and what must be seen in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from lostflops.errors import CannotAnswer
from lostflops.finding import Finding
from lostflops.ingest import job
from lostflops.report.first_page.page import Page, page
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace

WINDOW = (4, 8)  # steps that are recorded in full
STEPS = 20
# Another process of this machine took the cores: no fault of the job.
OF_THE_MACHINE = ("waits-for-a-core", "recorded-steps-unlike-others")


@dataclass(frozen=True)
class ExerciseSide:
    """One variant of the job: what it is in words, and the script's options."""

    what: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One expected observation, beside what was observed."""

    expected: str
    observed: str
    passed: bool


@dataclass(frozen=True)
class Observed:
    """A side that ran: its run folder, and what the script says is true of it."""

    run: Path
    truth: Mapping[str, Any]

    @cached_property
    def trace(self) -> Trace:
        return job.open(self.run)

    @cached_property
    def page(self) -> Page:
        return page(self.trace, Session(self.trace))

    def table(self, name: str) -> pl.DataFrame:
        """A table of the recording; empty where it has none."""
        found = self.trace.table(name)
        return pl.DataFrame() if found is None else found.collect()

    def ask(self, recipe: str) -> pl.DataFrame:
        """A recipe's table. Raises CannotAnswer where the recording lacks what it needs."""
        answer = Session(self.trace).run(recipe)
        if isinstance(answer, Skipped):
            raise CannotAnswer(recipe, answer.reason)
        return answer.table

    def finding(self, *names: str) -> Finding | None:
        """The costliest finding of these names."""
        return next((found for found in self.page.findings if found.name in names), None)

    @property
    def first(self) -> Finding | None:
        """The first finding, but for those that the machine and not the job caused."""
        return next((f for f in self.page.findings if f.name not in OF_THE_MACHINE), None)

    def account(self, *names: str) -> float:
        """Milliseconds per step in these accounts of the ledger, mean over the steps and ranks that count."""
        ledger = self.page.ledger
        steps = ledger.select("rank", "step").n_unique()
        total = int(ledger.filter(pl.col("account").cast(pl.String).is_in(names))["ns"].sum())
        return total / max(1, steps) / 1e6

    @property
    def page_step_ms(self) -> float:
        """A recorded step, as the ledger adds it up."""
        ledger = self.page.ledger
        return int(ledger["ns"].sum()) / max(1, ledger.select("rank", "step").n_unique()) / 1e6

    @property
    def input_ms(self) -> float:
        """What the script itself measured in its input, per recorded step."""
        first, last = WINDOW
        measured: list[float] = self.truth["inputs_ms"][first : last + 1]
        return sum(measured) / len(measured)

    @property
    def core_wait(self) -> str:
        """What the page says of cores that others used; empty where it says nothing of it."""
        return next((f.claim for f in self.page.findings if f.name == OF_THE_MACHINE[0]), "")

    @property
    def step_ms(self) -> float:
        """The median step that was not recorded in full, of the rank in the middle."""
        medians = self.ask("step_log_summary")["median"].drop_nulls().sort()
        return float(medians[len(medians) // 2]) / 1e6 if len(medians) else 0.0

    def collectives(self, kind: str) -> tuple[float, float, float]:
        """Per step of rank 0: how many of that kind, and elements of 4 bytes in their inputs and outputs."""
        rows = self.table("collectives")
        steps = self.table("steps").filter(pl.col("rank") == 0).height or 1
        rows = rows.filter((pl.col("rank") == 0) & (pl.col("kind").cast(pl.String) == kind))
        taken, given = (float(rows[name].sum()) / 4 / steps for name in ("bytes_in", "bytes_out"))
        return rows.height / steps, taken, given


@dataclass(frozen=True)
class Exercise:
    """As its file declares it. `ranks` processes run `script` with `words` and those of a side."""

    name: str
    title: str
    question: str
    see: str  # what to look for on the two pages
    expected: Sequence[str]
    fix: str  # what a user types to go from the first side to the second
    script: str = "train"
    ranks: int = 1
    words: tuple[str, ...] = ()
    sides: tuple[ExerciseSide, ExerciseSide] | None = None
    check: Callable[[Observed, Observed], list[Check]] | None = None
    # In the place of sides: commands of lostflops, and what their documents must hold.
    commands: Sequence[tuple[str, ...]] = ()
    check_documents: Callable[[Sequence[Any]], list[Check]] | None = None
    steps: int = STEPS
    recorded: bool = True  # False: the script measures itself, and nothing records it
    needs: tuple[str, ...] = ()  # packages besides torch


def near(value: float, target: float, share: float) -> bool:
    """Whether a value is within that share of the target."""
    return abs(value - target) <= share * abs(target)


def counted(what: str, expected: float, observed: float) -> Check:
    """A count that has to be exact."""
    return Check(f"{what}: {expected:,.0f}", f"{observed:,.0f}", expected == observed)
