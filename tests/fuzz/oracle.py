"""What must hold for any input: refused in words and nothing left behind, or answered and it adds up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import lostflops
from lostflops.errors import LostflopsError
from lostflops.recipes import recipes as all_recipes
from lostflops.report.document import document
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace

REFUSED, SKIPPED, ANSWERED = "refused", "no ledger", "answered"
SHARE = re.compile(r"(\d[\d,]*(?:\.\d+)?) % of")
# What a terminal would act upon. A line break ends a line of ours.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Wrong(AssertionError):
    """An answer that cannot be true."""


def require(true: Any, said: str) -> None:
    if not true:
        raise Wrong(said)


def opened(paths: Path | Sequence[Path], store: Path, *, salvage: bool) -> Trace | None:
    """The run that these paths are, or None where they are refused in words and nothing is left behind."""
    try:
        return lostflops.open(paths, salvage=salvage, allow_missing_ranks=True)  # pyright: ignore[reportArgumentType]
    except LostflopsError as error:
        require(error.message, "an error that says nothing")
        require(not CONTROL.search(str(error)), f"control characters in {str(error)!r}")
        left = [p for p in store.rglob("*") if p.is_file()]
        require(not left, f"a refused input left {left[:3]}")
        return None


def answered(trace: Trace, *, page: bool, recipes: bool = False) -> str:
    """How the questions about a run ended. Raises Wrong, or what lostflops did not catch."""
    try:
        ledger = lostflops.ask(trace, "step_ledger")
    except LostflopsError as error:
        require(error.message, "an error that says nothing")
        outcome = SKIPPED
    else:
        steps = trace.table("steps")
        require(steps is not None, "a ledger without steps")
        assert steps is not None
        adds_up(ledger, steps.collect())
        outcome = ANSWERED
    if page:
        for said in page_faults(lostflops.why(trace)):
            raise Wrong(said)
    if recipes:
        for said in table_faults(trace):
            raise Wrong(said)
    return outcome


def commanded(paths: Sequence[Path], *, salvage: bool) -> None:
    """Ask for the page as users do. Raises Wrong unless that ends as a command of ours may."""
    asked = ["--salvage"] * salvage + ["--allow-missing-ranks", "--", *map(str, paths)]
    done = subprocess.run(
        [sys.executable, "-m", "lostflops", "why", *asked],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    out, said = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    require(done.returncode in (0, 2), f"exit status {done.returncode}: {said[-1500:]}")
    require("Traceback" not in said and "panicked" not in said, said[-1500:])
    require(bool(out.strip()) == (done.returncode == 0), f"{done.returncode} with the page {out[:200]!r}")
    require(done.returncode == 0 or said.strip(), "refused without a word")
    if found := CONTROL.search(out + said):
        raise Wrong(f"the terminal gets {found[0]!r}")


def adds_up(ledger: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Every nanosecond of every step is in one account, and no two steps of a rank share one."""
    sums = ledger.group_by("rank", "step").agg(pl.col("ns").sum())
    both = steps.join(sums, on=["rank", "step"], how="full", coalesce=True)
    require((both["end"] - both["start"]).to_list() == both["ns"].to_list(), "the accounts miss their step")
    require((ledger["ns"] > 0).all(), "an account without time")
    for _, mine in steps.sort("start").group_by("rank"):
        require((mine["end"] > mine["start"]).all(), "a step that holds no time")
        require(mine["step"].is_unique().all(), "two steps of one number")
        overlap = mine["start"].slice(1) < mine["end"].slice(0, mine.height - 1)
        require(not overlap.any(), "steps that overlap")


def table_faults(trace: Any) -> Iterator[str]:
    """Columns of any recipe's answer that are not what they are declared to be: a share beyond 1, say."""
    session = Session(trace)
    for name in all_recipes():
        try:
            answer = session.run(name)
        except LostflopsError as error:
            require(error.message, "an error that says nothing")
            continue
        if isinstance(answer, Skipped):
            continue
        for column, declared in answer.recipe.columns.items():
            if wrong := declared.misfit(answer.table[column]):
                yield f"{name}, column {column}: {wrong}"


def page_faults(page: Any) -> Iterator[str]:
    """What on a first page cannot be true."""
    mean = page.budget.mean if page.budget else 0
    for line in page.budget.lines if page.budget else ():
        if not 0 <= line.ns <= line.whole:
            yield f"{line.account} is {line.ns} of {line.whole} ns"
    if page.budget and sum(line.ns for line in page.budget.groups) != page.budget.ns:
        yield "the budget's groups miss the budget"
    for finding in page.findings:
        # Rounded to whole nanoseconds.
        if not 0 <= finding.ns_per_step <= mean + 1:
            yield f"{finding.name} promises {finding.ns_per_step} ns of a step of {mean} ns"
        if not 0 <= finding.size <= mean + 1:
            yield f"{finding.name} costs {finding.size} ns of a step of {mean} ns"
    text = str(page)
    for said in SHARE.findall(text):
        if float(said.replace(",", "")) > 100:
            yield f"'{said} % of' stands on the page: {_around(text, said)}"
    if found := CONTROL.search(text):
        yield f"the page holds {found[0]!r}"
    told = json.loads(document(page), parse_constant=_no_constant)
    for top in told["top"]:
        if not 0 <= top["share"] <= 1:
            yield f"{top['name']} has a share of {top['share']}"


def _no_constant(name: str) -> Any:
    raise Wrong(f"the document holds {name}")


def _around(text: str, said: str) -> str:
    at = text.index(f"{said} % of")
    return " ".join(text[max(0, at - 100) : at + 60].split())
