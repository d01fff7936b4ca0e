"""Whether `torch.autograd.set_detect_anomaly(True)` was left on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from lostflops.columns import Count, Flag, Id, Time
from lostflops.finding import Finding, Verdict, milliseconds
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.recipes.accounting import HOST_ONLY
from lostflops.recipes.host_steps import in_host_steps
from lostflops.tables import Operators, Ranks

# What it asks of each gradient: `grad.isnan()._is_any_true().item()`.
LOOKS, CHECKS, READS = "aten::isnan", "aten::_is_any_true", "aten::item"
FEWEST = 3  # checks per step: a hook that looks at a gradient or two is none of it


def _pass(start: int, *names: str, phase: str = "backward") -> list[dict[str, Any]]:
    return [
        {"rank": 1, "start": start + 10 * n, "end": start + 10 * n + 2 + n, "name": name, "thread": 7}
        | {"phase": phase}
        for n, name in enumerate(names)
    ]


@recipe(
    question="Is autograd's anomaly detection on?",
    scope="rank",
    plot=Bars(x="rank", y=("per_step",)),
    columns={
        "rank": Id("rank"),
        "steps": Count("steps that count"),
        "checks": Count("gradients that the backward passes of these steps check for NaN"),
        "per_step": Time("what the operators that check take on the host, per step"),
        "on_host": Flag("the rank has no GPU: that time is computing"),
    },
    examples=[
        Example(
            "three gradients in two steps, checked in 2 + 3 + 4 ns each; one of the loss is none",
            given={
                "steps": [
                    {"rank": 1, "step": n, "start": 100 * n, "end": 100 * n + 100, "complete": True}
                    for n in range(2)
                ],
                "ranks": [{"rank": 1, "device_kind": "cpu"}],
                "kernels": [{"rank": 1, "start": 0, "end": 190}],
                "operators": [
                    *_pass(0, LOOKS, CHECKS, READS, phase="forward"),
                    *(row for at in (40, 110, 140) for row in _pass(at, LOOKS, CHECKS, READS)),
                ],
            },
            expect=[{"rank": 1, "steps": 2, "checks": 3, "per_step": 13, "on_host": True}],
        ),
        Example(
            "a hook that looks for NaN in another way",
            given={
                "steps": [{"rank": 1, "step": 0, "start": 0, "end": 100, "complete": True}],
                "ranks": [{"rank": 1, "device_kind": "cpu"}],
                "kernels": [{"rank": 1, "start": 0, "end": 90}],
                "operators": _pass(10, LOOKS, "aten::any", READS),
            },
            expect=[],
        ),
    ],
)
def anomaly_detection(operators: Operators, counted_steps: pl.LazyFrame, ranks: Ranks) -> pl.LazyFrame:
    """Count the checks of gradients inside backward passes, and what their operators take on the host.

    On a GPU each check makes the host wait for it. The mode also keeps a traceback of each forward operator.
    """
    name = pl.col("name").cast(pl.String)
    asked = operators.filter(
        name.is_in([LOOKS, CHECKS, READS]), pl.col("phase").cast(pl.String) == "backward"
    )
    rows = in_host_steps(asked.select("rank", "start", "end", name=name), counted_steps)
    of = counted_steps.group_by("rank").agg(steps=pl.len().cast(pl.Int64))
    kind = ranks.group_by("rank").agg(on_host=HOST_ONLY.all())
    return (
        rows.group_by("rank")
        .agg(
            checks=(pl.col("name") == CHECKS).sum().cast(pl.Int64),
            _looks=(pl.col("name") == LOOKS).sum().cast(pl.Int64),
            _took=(pl.col("end") - pl.col("start")).sum(),
        )
        .filter(pl.col("checks") > 0, pl.col("checks") <= pl.col("_looks"))
        .join(of, on="rank")
        .join(kind, on="rank")
        .with_columns(per_step=pl.col("_took") // pl.col("steps"))
        .select(*anomaly_detection.columns)
        .sort("rank")
    )


@anomaly_detection.finding(
    name="anomaly-detection-on",
    none_known="It is one call in the job's own code: `torch.autograd.set_detect_anomaly(False)`.",
    verdict=Verdict("Slowed by anomaly detection", "checking gradients for NaN"),
    examples=[
        Shows(
            "24 gradients in each of 5 steps, on a CPU",
            rows=[{"rank": 0, "steps": 5, "checks": 120, "per_step": 3_000_000, "on_host": True}],
            claim="Anomaly detection checks 24 gradients per step for NaN, which takes 3.00 ms.",
        ),
        Shows(
            "the same on a GPU",
            rows=[{"rank": 0, "steps": 5, "checks": 120, "per_step": 3_000_000, "on_host": False}],
            claim="Anomaly detection checks 24 gradients per step for NaN, and waits for the GPU each time.",
        ),
    ],
)
def anomaly_detection_is_on(table: pl.DataFrame) -> Iterator[Finding]:
    """On a GPU the waits have a finding of their own, which takes this one in."""
    on = table.filter(pl.col("checks") >= FEWEST * pl.col("steps"))
    if on.is_empty():
        return
    row = on.sort("checks", "rank", descending=[True, False]).row(0, named=True)
    each, per_step = row["checks"] // row["steps"], int(on["per_step"].sum()) // on.height
    costs = (
        f", which takes {milliseconds(per_step)}" if row["on_host"] else ", and waits for the GPU each time"
    )
    yield Finding(
        name="anomaly-detection-on",
        claim=f"Anomaly detection checks {each:,} gradients per step for NaN{costs}.",
        gain="unknown",
        cost_per_step=per_step if row["on_host"] else 0,
        evidence=("it keeps a traceback of each operator of the forward pass, too",),
        next="Turn it off: `torch.autograd.set_detect_anomaly(True)` and `with "
        "torch.autograd.detect_anomaly():` are for finding a NaN (Lightning: `detect_anomaly=False`).",
    )
