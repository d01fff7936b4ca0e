"""Reasons to try a change where the first page has no finding: compute is no loss, and may be needless.

Work that runs again in the backward pass, and matrix products in fp32 on processors that multiply bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from lostflops.finding import Finding, percent
from lostflops.session import Session, Skipped
from lostflops.units import milliseconds

AGAIN, FP32 = "activations-computed-again", "fp32-on-processor"
NO_RECOMPUTE = "no-recompute"
PRODUCTS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_convolution",
    "aten::convolution_backward",
)  # fmt: skip
FLOAT = '["float"'
# What /proc/cpuinfo calls instructions that multiply bf16.
UNITS = {"avx512_bf16", "amx_bf16", "bf16"}
CPUINFO = Path("/proc/cpuinfo")


def reasons(session: Session, on_device: bool) -> Iterator[Finding]:
    """Findings of this kind, without a size that is worth nothing."""
    totals = session.run("step-totals")
    if isinstance(totals, Skipped) or totals.table.is_empty():
        return
    steps = totals.table.lazy().filter(pl.col("steps") > 0)
    times = session.run("operator-times")
    again = _again_on_device(session) if on_device else _again(times, steps)
    whole = _mean(steps.select(ns=pl.col("step_time") / pl.col("steps")))
    if again:
        yield Finding(
            AGAIN,
            f"Work of the forward pass runs again in the backward pass for {milliseconds(again)} per step "
            f"({percent(again, whole)}): activations are computed again instead of kept.",
            "at most",
            (),
            "Keep the activations of some layers or of all, as far as the memory allows.",
            ns_per_step=again,
            remedies=("selective-checkpointing",),
            edit=NO_RECOMPUTE,
        )
    if not on_device and multiplies_bf16() and (products := _products(times, steps)):
        yield Finding(
            FP32,
            f"Matrix products in fp32 take {milliseconds(products)} per step ({percent(products, whole)}), "
            "and this processor multiplies bf16.",
            "at most",
            (),
            'Train in bf16: `torch.autocast("cpu", dtype=torch.bfloat16)`.',
            ns_per_step=products,
            remedies=("bf16",),
        )


def multiplies_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor here has instructions for products of bf16; False where that is not known."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return False
    told = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(UNITS.intersection(told.partition(":")[2].split()))


def _again_on_device(session: Session) -> int:
    found = session.run("recompute")
    return 0 if isinstance(found, Skipped) else _mean(found.table.lazy().select(ns=pl.col("again")))


def _again(times: object, steps: pl.LazyFrame) -> int:
    return _per_step(times, steps, pl.col("phase") == "recompute")


def _products(times: object, steps: pl.LazyFrame) -> int:
    in_fp32 = pl.col("dtypes").str.starts_with(FLOAT)
    return _per_step(times, steps, pl.col("name").is_in(PRODUCTS) & in_fp32)


def _per_step(times: object, steps: pl.LazyFrame, which: pl.Expr) -> int:
    """Time of these operators alone in a mean step of a mean rank, ns."""
    table = getattr(times, "table", None)
    if table is None:
        return 0
    text = table.lazy().with_columns(pl.col("name", "phase", "dtypes").cast(pl.String))
    inside = pl.col("host_self") * (pl.col("in_steps") / pl.col("host_total")).fill_nan(0)
    of_ranks = text.filter(which).group_by("rank").agg(ns=inside.sum())
    return _mean(
        steps.join(of_ranks, on="rank", how="left").select(ns=pl.col("ns").fill_null(0) / pl.col("steps"))
    )


def _mean(ns: pl.LazyFrame) -> int:
    found = ns.select(pl.col("ns").mean()).collect().item()
    return 0 if found is None else round(found)
