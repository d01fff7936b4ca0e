"""A difference as tables, whose columns say what they hold: what its HTML page sorts and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import polars as pl

from lostflops.columns import Id, Name, Number, Time, Type
from lostflops.recipe import Bars, Plot, Recipe
from lostflops.report.first_page.answer import Shown
from lostflops.session import Answer

from ..pieces import LEVELS
from ..waterfall import Moved

if TYPE_CHECKING:
    from ..compare import Difference

BEFORE, AFTER = Time("time per step before"), Time("time per step after")
CHANGE = Time("after - before")
AMOUNTS: Mapping[str, Type] = {"before": BEFORE, "after": AFTER, "change": CHANGE}


def tables(found: Difference) -> list[Shown]:
    """Those that have rows."""
    return [table for table in _tables(found) if table.num_rows]


def _tables(found: Difference) -> Iterator[Shown]:
    yield _shown(
        "changed_parts",
        "Which parts of the step changed, down to kernels?",
        changed_parts,
        {
            "account": Name("account of the ledger"),
            "kind": Name("family of kernels, kind of collective or copy, or what the CPU was at"),
            "operator": Name("operator that launched it; null when not recorded"),
            "name": Name("kernel", label="kernel"),
            **AMOUNTS,
            "calls_before": Number("how often it began per step before"),
            "calls_after": Number("how often it began per step after"),
        },
        found,
    )
    yield _shown(
        "changed_modules",
        "Which modules' forward pass launched the compute that changed?",
        changed_modules,
        {"module": Name("class of the innermost module; null for none"), **AMOUNTS},
        found,
        Bars(x="module", y=("before", "after")),
    )
    yield _shown(
        "changed_ranks",
        "Which ranks changed?",
        changed_ranks,
        {
            "rank": Id("rank"),
            **AMOUNTS,
            "account": Name("account that changed most on it"),
            "account_change": Time("by how much that changed"),
        },
        found,
    )
    yield _shown(
        "changed_steps",
        "Which steps changed?",
        changed_steps,
        {"step": Id("step number, the same in both runs"), **AMOUNTS},
        found,
    )


def changed_parts(found: Difference) -> pl.LazyFrame:
    """Every part of the step with its time before and after; the changes add up to that of the step."""
    rows = [
        (
            change.path[0],
            *(name or None for name in change.path[1:]),
            *_amounts(change),
            change.before_calls,
            change.after_calls,
        )
        for change in sorted(found.waterfall.leaves(), key=lambda c: (-abs(c.ns), c.path))
    ]
    schema = dict.fromkeys(("account", *LEVELS), pl.String) | dict.fromkeys(AMOUNTS, pl.Int64)
    calls = {"calls_before": pl.Float64, "calls_after": pl.Float64}
    return pl.LazyFrame(rows, schema={**schema, **calls}, orient="row")


def changed_modules(found: Difference) -> pl.LazyFrame:
    """Compute by module class; a backward pass and what is outside of modules has none."""
    rows = [(change.path[0] or None, *_amounts(change)) for change in found.modules]
    return pl.LazyFrame(rows, schema={"module": pl.String, **dict.fromkeys(AMOUNTS, pl.Int64)}, orient="row")


def changed_ranks(found: Difference) -> pl.LazyFrame:
    """The mean step of every rank. One that only one of the runs has is not compared."""
    rows = [
        (one.rank, one.before_ns, one.after_ns, one.ns, one.account or None, one.account_ns)
        for one in found.ranks
    ]
    schema = {"rank": pl.Int64, **dict.fromkeys(AMOUNTS, pl.Int64), "account": pl.String}
    return pl.LazyFrame(rows, schema={**schema, "account_change": pl.Int64}, orient="row")


def changed_steps(found: Difference) -> pl.LazyFrame:
    """The steps that both runs recorded under one number, mean of their ranks."""
    rows = [(one.step, one.before_ns, one.after_ns, one.after_ns - one.before_ns) for one in found.steps]
    return pl.LazyFrame(rows, schema=dict.fromkeys(("step", *AMOUNTS), pl.Int64), orient="row")


def _amounts(change: Moved) -> tuple[int, int, int]:
    return change.before_ns, change.after_ns, change.ns


def _shown(
    name: str,
    question: str,
    function: Callable[[Difference], pl.LazyFrame],
    columns: Mapping[str, Type],
    found: Difference,
    plot: Plot | None = None,
) -> Shown:
    asked = Recipe(
        name=name, question=question, scope="job", columns=columns, plot=plot, examples=(),
        function=function, inputs=(), options=(), page=False, whole=False, apart=False,
    )  # fmt: skip
    return Shown(Answer(asked, function(found).collect(), ()))
