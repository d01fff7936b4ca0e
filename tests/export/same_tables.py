"""Whether two runs hold the same tables: what a round trip through a file leaves out is named here."""

from __future__ import annotations

import polars as pl

from lostflops.store.trace import Trace

TABLES = (
    "steps",
    "kernels",
    "copies",
    "launches",
    "operators",
    "ranges",
    "frames",
    "allocations",
    "collectives",
)
# Of collectives the source gives what no event carries: shapes of annotations.
SKIPPED = {"collectives": {"evidence"}}


def differences(one: Trace, other: Trace) -> list[str]:
    """What is not the same, in words."""
    found: list[str] = []
    for name in TABLES:
        a, b = (trace.table(name) for trace in (one, other))
        if a is None or b is None:
            if (a is None) != (b is None):
                found.append(f"{name}: only one has it")
            continue
        left, right = (_sorted(table.collect()) for table in (a, b))
        if left.height != right.height:
            found.append(f"{name}: {left.height} rows, then {right.height}")
            continue
        for column in left.columns:
            if column in SKIPPED.get(name, ()):
                continue
            x, y = left[column], right[column]
            different = int((~x.eq_missing(y)).sum())
            if different:
                at = (~x.eq_missing(y)).arg_true()[0]
                found.append(f"{name}.{column}: {different} of {left.height}, as {x[at]!r} and {y[at]!r}")
    return found


def _sorted(table: pl.DataFrame) -> pl.DataFrame:
    texts = [c for c, t in table.schema.items() if isinstance(t, (pl.Categorical, pl.Enum))]
    table = table.with_columns(pl.col(texts).cast(pl.String))
    return table.sort(*(c for c in table.columns if not table.schema[c].is_nested()), maintain_order=True)
