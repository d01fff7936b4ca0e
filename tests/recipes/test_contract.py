"""Every recipe keeps what recipes promise; the promises are in `lostflops.testing`, for others too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from lostflops.columns import Count, Id, Time
from lostflops.finding import Finding
from lostflops.recipe import Bars, Example, Recipe, Shows, recipe
from lostflops.recipes import declared, named, recipes
from lostflops.tables import Kernels
from lostflops.testing import Promise, check, promises


@pytest.mark.parametrize("promise", [p for known in recipes().values() for p in promises(known)], ids=str)
def test_every_recipe_keeps_what_recipes_promise(promise: Promise) -> None:
    promise.check()


GIVEN = {"kernels": [{"rank": 1, "start": 3, "end": 10}, {"rank": 0, "start": 2, "end": 7}]}
ROWS = [{"rank": 0, "kernels": 1, "busy": 5}, {"rank": 1, "kernels": 1, "busy": 7}]


def made(
    answer: Callable[[pl.LazyFrame], pl.LazyFrame],
    claim: str = "Kernels run for {} ns.",
    shown: Sequence[Shows] = (),
    **more: Any,
) -> Recipe:
    """A recipe that answers what a function of the kernels does."""

    def kernel_time(kernels: Kernels) -> pl.LazyFrame:
        """How long kernels run."""
        return answer(kernels)

    said: dict[str, Any] = {
        "question": "How long do kernels run?",
        "scope": "rank",
        "plot": Bars(x="rank", y=("busy",)),
        "columns": {"rank": Id("rank"), "kernels": Count("how many"), "busy": Time("how long")},
        "examples": [Example("two ranks of one kernel each", given=GIVEN, expect=ROWS)],
    }
    asked = recipe(**said | more)(kernel_time)

    @asked.finding(name="kernels-run", examples=shown)
    def kernels_run(table: pl.DataFrame) -> Iterator[Finding]:  # pyright: ignore[reportUnusedFunction]
        if table.height:
            yield Finding("kernels-run", claim.format(table["busy"].sum()), "unknown", (), "Run fewer.")

    return asked


def right(kernels: pl.LazyFrame) -> pl.LazyFrame:
    length = pl.col("end") - pl.col("start")
    counted = kernels.group_by("rank").agg(kernels=pl.len().cast(pl.Int64), busy=length.sum())
    return counted.sort("rank")


def test_a_recipe_of_ones_own_keeps_them() -> None:
    check(made(right))


def changed(**columns: pl.Expr) -> Recipe:
    return made(lambda kernels: right(kernels).with_columns(**columns))


BROKEN = {
    "says_what_it_answers": made(right, question="How long kernels run"),
    "reads_tables_or_recipes": replace(made(right), inputs=(replace(made(right).inputs[0], name="kernel"),)),
    "examples_hold": changed(busy=pl.col("busy") + 1),
    "documents_every_column": changed(more=pl.lit(1)),
    "holds_what_its_types_say": changed(busy=pl.col("busy").cast(pl.Float64)),
    "row_order_does_not_matter": made(
        lambda k: (
            k.with_columns(length=pl.col("end") - pl.col("start"))
            .group_by("rank", maintain_order=True)
            .agg(kernels=pl.len().cast(pl.Int64), busy=pl.col("length").sum())
        )
    ),
    "the_clock_may_start_anywhere": made(
        lambda k: right(k.with_columns(start=pl.when(pl.col("start") < 100).then("start").otherwise("end")))
    ),
    "ranks_are_independent_where_the_scope_says_so": made(
        lambda k: right(k).with_columns(busy=pl.col("busy") + pl.col("busy").max() - 7)
    ),
    "an_empty_trace_gives_an_empty_table_and_no_findings": made(
        lambda k: (
            pl.concat([right(k), pl.LazyFrame(ROWS[:1], schema_overrides={"rank": pl.Int32})])
            .unique()
            .sort("rank")
        )
    ),
    "types_do_not_depend_on_the_rows": made(
        lambda k: right(k).with_columns(pl.col("busy").cast(pl.Int32 if k.collect().height else pl.Int64))
    ),
    "the_plot_names_columns_that_exist": made(right, plot=Bars(x="rank", y=("length",))),
    "findings_have_a_claim_with_its_number": made(right, claim="Kernels run."),
    "examples_show_every_finding": made(
        right, examples=[Example("no kernel", given={"kernels": []}, expect=[])]
    ),
    "examples_of_findings_hold": made(
        right, shown=[Shows("one rank that ran for 5 ns", rows=ROWS[:1], claim="Kernels run for 7 ns.")]
    ),
    "columns_stand_in_the_order_of_their_documentation": made(
        lambda k: right(k).select("rank", "busy", "kernels")
    ),
    "examples_show_every_column": made(
        right,
        examples=[Example("one", given=GIVEN, expect=[{"rank": row["rank"], "busy": 5} for row in ROWS])],
    ),
    "no_two_columns_could_be_swapped_unseen": changed(busy=pl.col("kernels")),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_recipe_that_breaks_a_promise_is_told_which(promise: str) -> None:
    broken = BROKEN[promise]
    kept = next(p for p in promises(broken) if p.keep.__name__ == promise)
    with pytest.raises(AssertionError) as told:
        kept.check()
    assert len(str(told.value)) > 20, "it says what to change"


def test_a_finding_is_declared_once() -> None:
    made = replace(named("gpu_gaps"), declared={})
    made.finding(name="one-more")(lambda table: iter(()))
    with pytest.raises(ValueError, match="declares the finding 'one-more' twice"):
        made.finding(name="one-more")(lambda table: iter(()))
    assert list(made.declared) == ["one-more"]


def test_two_recipes_never_declare_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"one": replace(named("gpu_gaps"), name="one"), "two": replace(named("gpu_gaps"), name="two")}
    monkeypatch.setattr("lostflops.recipes.of_the_page", lambda: both)
    with pytest.raises(ValueError, match="'one' and 'two' declare one finding"):
        declared()
