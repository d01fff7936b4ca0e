"""The finding about matrix work in a precision that other units, or a smaller one, would run faster."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.steps.totals import mean_share, num_ranks

WORTH_SAYING = 0.05  # of the step


def slow_matrix_work(
    table: pl.DataFrame, precision: str, then: str, *, off: bool = True
) -> Iterator[Finding]:
    """The finding about matrix work of a precision, off matrix units or not known to be off them."""
    matrix, unknown = table.select(
        pl.col("in_steps").sum(), unknown=pl.col("in_steps").filter(pl.col("precision").is_null()).sum()
    ).row(0)
    known_off = ~pl.col("tensor_cores").fill_null(True)
    slow = table.filter((pl.col("precision") == precision) & (known_off if off else ~known_off))
    if mean_share(slow, table) < WORTH_SAYING:
        return
    time = int(slow["in_steps"].sum())
    share = min(1.0, mean_share(slow, table))
    of_sort = slow.group_by("rank", "tensor_cores").agg(pl.col("span").max(), pl.col("per_step").sum())
    spans = of_sort.group_by("rank").agg(pl.col("span", "per_step").sum())
    per_step = int(spans["per_step"].sum()) // num_ranks(table)
    doubt = f"{percent(unknown, matrix)} of this matrix work does not say its precision." if unknown else ""
    yield Finding(
        name=f"{precision}-{'without-tensor-cores' if off else 'matrix-work'}",
        claim=f"Matrix work in {precision}{' without tensor cores' if off else ''} takes "
        f"{milliseconds(per_step)} per step ({percent(share, 1)}).",
        ns_in_steps=int(spans["span"].sum()),
        cost_per_step=per_step,
        shared=True,
        gain="at most",
        evidence=(
            f"{percent(time, matrix)} of the matrix work inside steps",
            *_by_family(slow, num_ranks(table)),
        ),
        next=then,
        doubt=doubt,
        accounts=("compute",),
    )


def _by_family(rows: pl.DataFrame, ranks: int) -> Iterator[str]:
    by = rows.group_by("family").agg(pl.col("per_step").sum()).filter(pl.col("per_step") > 0).sort("family")
    for family, time in by.iter_rows():
        yield f"{family}: {milliseconds(time // ranks)} per step"
