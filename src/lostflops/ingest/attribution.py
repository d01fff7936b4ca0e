"""Give GPU work the call that launched it and the operator that made that call.

Two joins hold in every trace seen, so nothing else is used: GPU work to its call by correlation id, and a
call to the deepest operator that contains its start on its thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.intervals import Forest
from lostflops.tables import NAME, PHASE

UNKNOWN_THREAD = -(2**62)
Rows = TypeVar("Rows", pl.DataFrame, pl.DataFrame | None)


class OperatorTree:
    """The operators of one rank, nested per thread."""

    def __init__(self, operators: pl.DataFrame) -> None:
        self.operators = operators
        self.forest: Forest = intervals.nest(
            operators["start"].to_numpy(),
            operators["end"].to_numpy(),
            operators["thread"].fill_null(UNKNOWN_THREAD).to_numpy(),
        )

    def at(self, moments: pl.Series, threads: pl.Series) -> pl.Series:
        """The row number of the deepest operator at each moment on each thread; null where there is none."""
        rows = np.full(len(moments), -1, dtype=np.int64)
        if len(self.forest.order):
            known: slice | npt.NDArray[np.bool_] = slice(None)
            if moments.null_count() or threads.null_count():
                known = (moments.is_not_null() & threads.is_not_null()).to_numpy()
                moments, threads = moments.fill_null(0), threads.fill_null(0)
            found = intervals.innermost_at(self.forest, moments.to_numpy()[known], threads.to_numpy()[known])
            rows[known] = np.where(found >= 0, self.forest.order[np.maximum(found, 0)], -1)
        numbers = pl.Series(rows)
        return numbers.set(numbers < 0, None) if (rows < 0).any() else numbers


def attribute(
    work: pl.DataFrame, launches: pl.DataFrame | None, operators: pl.DataFrame | OperatorTree | None
) -> pl.DataFrame:
    """`work` (kernels or copies of one rank) with launch_start, launch_end, thread, operator and phase.

    They are null where the launch was not recorded. One call may own many rows, as a graph launch does; of
    several calls that share an id, the first counts, or of those the longest: it contains the others.
    """
    work = work.drop("launch_start", "launch_end", "thread", "operator", "phase", strict=False)
    if launches is None or launches.is_empty():
        return work.with_columns(
            pl.lit(None, dtype=pl.Int64).alias(c) for c in ("launch_start", "launch_end", "thread")
        ).with_columns(operator=pl.lit(None, dtype=NAME), phase=pl.lit(None, dtype=PHASE))
    calls = (
        launches.lazy()
        .filter(pl.col("correlation").is_not_null())
        .join(work.lazy().select("correlation").unique(), on="correlation", how="semi")
        .sort("start", "end", descending=[False, True])
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", "thread", launch_start="start", launch_end="end")
        .collect()
    )
    work = work.join(calls, on="correlation", how="left", maintain_order="left")
    if operators is None or (isinstance(operators, pl.DataFrame) and operators.is_empty()):
        return work.with_columns(operator=pl.lit(None, dtype=NAME), phase=pl.lit(None, dtype=PHASE))
    tree = operators if isinstance(operators, OperatorTree) else OperatorTree(operators)
    rows = tree.at(work["launch_start"], work["thread"])
    phase = (
        tree.operators["phase"].gather(rows)
        if "phase" in tree.operators.columns
        else pl.Series([None] * work.height, dtype=PHASE)
    )
    return work.with_columns(operator=tree.operators["name"].gather(rows), phase=phase)


def apart(launches: pl.DataFrame, *work: Rows) -> tuple[pl.DataFrame, list[Rows]]:
    """Calls and GPU work with a correlation id of its own for each call that work comes from.

    An id may be used again, by another recording in the same file or as a counter begins anew. Work is then
    the last such call's that began before it. Calls within each other share an id rightly.
    """
    ids = launches["correlation"]
    if ids.n_unique() == len(ids):
        return launches, list(work)
    shared = (
        launches.lazy()
        .select("correlation", "start", "end", row=pl.int_range(pl.len(), dtype=pl.Int64))
        .filter(pl.col("correlation").is_not_null() & pl.col("correlation").is_duplicated())
        .sort("correlation", "start", pl.col("end"), descending=[False, False, True])
        .with_columns(reach=pl.col("end").cum_max().shift().over("correlation"))
        .with_columns(use=(pl.col("start") >= pl.col("reach")).fill_null(False).cum_sum().over("correlation"))
        .filter(pl.col("use").max().over("correlation") > 0)
        .collect()
    )
    if shared.is_empty():
        return launches, list(work)
    uses = shared.group_by("correlation", "use").agg(pl.col("start").min()).sort("correlation", "use")
    first = _free([t["correlation"] for t in (launches, *work) if t is not None], uses.height)
    uses = uses.with_columns(
        new=pl.when(pl.col("use") > 0).then(first + pl.int_range(pl.len())).otherwise("correlation")
    )
    own = shared.join(uses.select("correlation", "use", "new"), on=["correlation", "use"]).select(
        "row", "new"
    )
    numbered = launches.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    launches = (
        numbered.join(own, on="row", how="left", maintain_order="left")
        .with_columns(correlation=pl.coalesce("new", "correlation"))
        .drop("row", "new")
    )
    return launches, [cast("Rows", None if rows is None else _by_last(rows, uses)) for rows in work]


def _free(ids: Iterable[pl.Series], many: int) -> int:
    """The first of so many ids in a row that nothing has: behind the highest where there is room."""
    used = pl.concat(ids).drop_nulls().unique().sort()
    highest, least, most = int(used[-1]), -(2**63), 2**63 - 1
    if highest <= most - many:
        return highest + 1
    used = pl.concat([pl.Series([least]), used]).cast(pl.Int128)
    return int(used[used.diff().arg_max() - 1]) + 1  # pyright: ignore[reportOptionalOperand]


def _by_last(rows: pl.DataFrame, uses: pl.DataFrame) -> pl.DataFrame:
    """Work with the id of the last of the `uses` of its own id that began before it."""
    known = uses.select("correlation", "start", "new").sort("start")
    placed = rows.with_row_index("_row").sort("start", maintain_order=True)
    found = placed.join_asof(known, on="start", by="correlation", strategy="backward", check_sortedness=False)
    return found.sort("_row").with_columns(correlation=pl.coalesce("new", "correlation")).drop("_row", "new")


# What frameworks write on the thread that runs the script, whichever thread does most of the work.
SCRIPT = r"^(?:ProfilerStep[#*]|Optimizer\.(?:step|zero_grad)#)"


def main_thread(
    launches: pl.DataFrame | None, operators: pl.DataFrame | None, ranges: pl.DataFrame | None
) -> int | None:
    """The thread that runs the job's script: the one that marks steps, else the one that launches most.

    A backward pass launches more than a forward pass, from a thread of autograd's own. None where no thread
    does anything.
    """
    marks = None
    if ranges is not None:
        marks = ranges.filter(pl.col("name").cast(pl.String).str.contains(SCRIPT).fill_null(False))
    for rows in (marks, launches, operators):
        threads = None if rows is None else rows["thread"].drop_nulls()
        if threads is not None and threads.len():
            return threads.value_counts().sort("count", "thread")["thread"][-1]
    return None
