"""Matrix products in another precision, at a ratio that was measured or that the card's peaks give."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown
from lostflops.naming.cards import peak
from lostflops.tables import PRECISIONS

from ...dependencies.edges import Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...recorded import RecordedJob

PRODUCTS = ("gemm", "convolution")
CASTS = "casts to and from the other precision, and their kernels, are not counted"
PEAKS = "the ratio is that of the card's peaks, which small products do not reach: measure it, and give it"


def made(typed: Typed) -> Edit:
    before, _, after = typed.selection.partition("-")
    if before not in PRECISIONS or after not in PRECISIONS or before == after:
        raise BadOption(
            f"'{shown(typed.text)}' does not name two precisions.",
            f"write 'precision:bf16-fp8=1.6'; known are {', '.join(PRECISIONS)}.",
        )
    given = None if typed.amount is None else typed.factor()

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        mine = pl.col("family").is_in(PRODUCTS) & (pl.col("precision") == before)
        chosen = job.operations.select((pl.col("on_device") & mine).fill_null(False)).to_series().to_numpy()
        if not chosen.any():
            return Edited(lags, refused=f"no matrix product runs in {before}")
        factor = given or _of_peaks(known.gpus, before, after)
        if isinstance(factor, str):
            return Edited(lags, refused=factor)
        edges = job.edges
        own = np.isin(edges.kind, [Kind.DEVICE, Kind.CONTENDED]) & chosen[job.operation_of(edges.source)]
        faster = lags.copy()
        faster[own] = np.rint(lags[own] / factor).astype(np.int64)
        inside = own & in_steps(job, known.steps, edges.source)
        removed = int(np.clip(lags - faster, 0, None)[inside].sum())
        return Edited(
            faster,
            removed=removed,
            doubts=(CASTS,) if given else (CASTS, PEAKS),
            may_gain_nothing=given is None,
        )

    ratio = f"{given:g} times as fast" if given else "as much faster as the card's peaks say"
    return Edit(typed.text, f"matrix products in {before} ran in {after}, {ratio}", apply, scales=True)


def _of_peaks(gpus: tuple[str, ...], before: str, after: str) -> float | str:
    """How many times the peak in one precision is of that in the other, or why that is not known."""
    peaks = {(peak(gpu, before), peak(gpu, after)) for gpu in gpus}
    own, other = peaks.pop() if len(peaks) == 1 else (None, None)
    if own is None or other is None:
        named = shown(", ".join(gpus)) or "unknown"
        return (
            f"the peaks of the GPU ({named}) in {before} and {after} are not known: give a measured ratio, "
            f"'precision:{before}-{after}=1.6'"
        )
    return other / own


PRECISION = EditKind(
    "precision",
    "precision:FROM-TO[=FACTOR]",
    "What if matrix products in one precision ran in another, FACTOR times as fast? That is measured; "
    "without it the ratio of the card's peaks counts.",
    "precision:bf16-fp8=1.6",
    made,
)
