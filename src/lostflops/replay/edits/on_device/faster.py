"""Kernels that take less time: another precision, a better kernel, work that goes away."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown
from lostflops.tables import FAMILIES, PHASES, PRECISIONS

from ...dependencies.edges import Int, Kind
from ...dependencies.operations import STRETCH
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...recorded import RecordedJob

OVERLAPPING = 0.10


def made(typed: Typed) -> Edit:
    factor = typed.factor()
    if not typed.selection:
        raise BadOption(f"'{shown(typed.text)}' does not say which kernels.", "name them: 'faster:gemm=2'.")

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        chosen = selected(job, typed.selection)
        if not chosen.any():
            return Edited(lags, refused=f"no kernel is called or classified '{shown(typed.selection)}'")
        edges = job.edges
        whole = (edges.kind == Kind.DEVICE) | (edges.kind == Kind.OWN) | (edges.kind == Kind.CONTENDED)
        own = whole & chosen[job.operation_of(edges.source)]
        shorter = lags.copy()
        shorter[own] = np.rint(lags[own] / factor).astype(np.int64)
        inside = own & in_steps(job, known.steps, edges.source)
        return Edited(
            shorter,
            removed=int((lags - shorter)[inside].sum()),
            doubts=_doubts(job, chosen),
        )

    return Edit(typed.text, f"'{typed.selection}' {factor:g} times as fast", apply, scales=True)


def selected(job: RecordedJob, selection: str) -> np.ndarray:
    """Kernels of a family, precision or phase by that name, or else those whose name holds the text.

    The optimizer is a phase, whatever its kernels do, and the family of kernels that do all of its update.
    """
    operations = job.operations
    computes = pl.col("on_device") | (pl.col("what") == STRETCH)
    if selection in FAMILIES and selection in PHASES:
        chosen = (pl.col("family") == selection) | (pl.col("phase") == selection)
    elif selection in FAMILIES:
        chosen = pl.col("family") == selection
    elif selection in PRECISIONS:
        chosen = pl.col("precision") == selection
    elif selection in PHASES:
        chosen = pl.col("phase") == selection
    else:
        chosen = pl.col("name").str.contains(selection, literal=True)
    is_work = computes & ~pl.col("communication").fill_null(False)
    return operations.select((chosen & is_work).fill_null(False)).to_series().to_numpy()


def _doubts(job: RecordedJob, chosen: np.ndarray) -> tuple[str, ...]:
    """Rows that run beside others of their device slow each other down, which no lag tells."""
    rows = job.operations.filter(pl.col("on_device")).select("rank", "device", "start", "end")
    mine = job.operations.filter(pl.Series(chosen) & pl.col("on_device"))
    if not mine.height:
        return ()
    reached = rows.sort("rank", "device", "start").with_columns(
        before=pl.col("end").cum_max().shift(1).over("rank", "device")
    )
    beside = (reached["before"] - reached["start"]).clip(0).fill_null(0).sum()
    busy = int((mine["end"] - mine["start"]).sum())
    if busy and int(beside) > OVERLAPPING * busy:
        return ("kernels that run beside others slow each other down, which the replay does not know",)
    return ()


FASTER = EditKind(
    "faster",
    "faster:KERNELS=FACTOR",
    "What if these kernels took 1/FACTOR of their time? "
    "KERNELS is a family, precision, phase, or part of a name.",
    "faster:gemm=2",
    made,
)
