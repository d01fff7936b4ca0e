"""Where the GPU's peak goes, which operators are far from their roof, and which modules take the time.

What the recording does not tell is said where compute takes most of the step, and left out elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import polars as pl

from lostflops.finding import milliseconds, percent
from lostflops.report.words.amounts import apportion
from lostflops.session import Answer

from .budget import Budget
from .facts import FactLine
from .run import Run

MOST = 3
SHOWN_MODULES = 2  # of a chain, the innermost
WORTH_SAYING = 0.01  # of the step: less of an operator or module is not worth a line
MODEL = "the model"
SHORT = {
    "model FLOPs at the peak": MODEL,
    "recomputation at the peak": "recomputation",
    "matrix kernels below the peak": "matrix kernels below their peak",
}


def lines(run: Run, spent: Budget | None, answers: Mapping[str, Answer]) -> Iterator[FactLine]:
    """Few lines, for a GPU whose steps are known."""
    if spent is None or run.is_whole or run.device_kind != "gpu" or not spent.ns:
        return
    missing: list[str] = []
    yield from _waterfall(answers, missing)
    yield from _below_roof(answers)
    yield from _modules(spent, answers, missing)
    if missing and 2 * spent.of("compute") >= spent.ns:
        yield FactLine("not known", "; ".join(missing))


def _waterfall(answers: Mapping[str, Answer], missing: list[str]) -> Iterator[FactLine]:
    """The peak in tenths of a per cent that add up, where they are known on all ranks."""
    known, parts = (answers.get(name) for name in ("model_flops", "mfu_waterfall"))
    if known is None or parts is None:
        return
    reasons = known.table["unknown"].drop_nulls().unique().sort()
    if reasons.len():
        missing.append(f"MFU: {reasons[0]}")
        return
    ranks = parts.table["rank"].n_unique()
    if not ranks or ranks < known.table.height:
        return
    summed = parts.table.group_by("order", "part").agg(pl.col("time").sum()).sort("order")
    times = summed["time"].to_list()
    whole = sum(times)
    if not whole:
        return
    per_mille = apportion([1000 * time for time in times], whole, 1000)
    told = [
        f"{SHORT.get(part, part)} {share // 10}.{share % 10} %"
        for part, share in zip(summed["part"], per_mille, strict=True)
        if share
    ]
    yield FactLine("peak goes to", " · ".join(told))


def _below_roof(answers: Mapping[str, Answer]) -> Iterator[FactLine]:
    """The operators that would gain most at the roof of their shapes."""
    answer = answers.get("roofline")
    if answer is None:
        return
    lost = pl.col("time") - pl.col("roof_time")
    table = answer.table.filter(pl.col("roof_time").is_not_null() & (lost > 0))
    rows = (
        table.group_by("name", "shapes", "bound")
        .agg(pl.col("time", "roof_time", "calls").sum())
        .sort(lost, "name", "shapes", descending=[True, False, False])
        .head(MOST)
    )
    label = "below roof"
    whole = int(answer.table["time"].sum())
    for name, shapes, bound, time, roof, calls in rows.iter_rows():
        if time - roof < WORTH_SAYING * whole:
            return
        share, each = percent(roof, time), milliseconds(time / calls)
        text = f"{share} of its {bound} roof, {each} a call  {_short(name, shapes)}"
        yield FactLine(label, text, may_be_cut=True)
        label = ""


def _short(name: str, shapes: str | None) -> str:
    """'mm 8944×1024, 1024×2816': the operator, and the shapes of its tensors."""
    try:
        found: list[Any] = json.loads(shapes or "[]")
    except ValueError:
        found = []
    tensors = [cast("list[object]", shape) for shape in found if isinstance(shape, list) and shape]
    told = ["×".join(map(str, shape)) for shape in tensors]
    return f"{name.removeprefix('aten::')} {', '.join(told)}"


def _modules(spent: Budget, answers: Mapping[str, Answer], missing: list[str]) -> Iterator[FactLine]:
    """The classes of modules whose own work takes longest, without those inside them."""
    answer = answers.get("module_summary")
    if answer is None:
        missing.append("modules: no Python frames were recorded, `--what cuda,shapes,python` records them")
        return
    if not answer.table["module"].count():
        missing.append("modules: none is among the recorded Python frames")
        return
    table = answer.table.drop_nulls("per_step")
    ranks = max(1, table["rank"].n_unique())
    last = pl.col("kind").str.split(" > ").list.tail(SHOWN_MODULES).list.join(" > ")
    rows = (
        table.drop_nulls("kind")
        .with_columns(kind=last)
        .group_by("kind")
        .agg(pl.col("per_step").sum())
        .sort("per_step", "kind", descending=[True, False])
        .head(MOST)
    )
    label = "top modules"
    for kind, ns in rows.iter_rows():
        share = ns / ranks * spent.num_windows / spent.ns
        if share < WORTH_SAYING:
            return
        text = f"{milliseconds(ns / ranks)} per step ({percent(share, 1)})  {kind}"
        yield FactLine(label, text, may_be_cut=True)
        label = ""
