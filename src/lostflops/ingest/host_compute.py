"""Which operators of a CPU-only rank compute, and which serve a loader, a checkpoint or a compiler."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops import intervals
from lostflops.ingest.attribution import UNKNOWN_THREAD, OperatorTree
from lostflops.naming.classification import operator_facts
from lostflops.naming.host_causes import COMPILED, Row, cause_of
from lostflops.tables import NAME

Bool = npt.NDArray[np.bool_]
# What operators run for, and do not compute. Tracing runs them with tensors that hold nothing, tuning to see
# how long they take.
SERVED = ("data_loading", "checkpoint_logging", "compilation")
# Operators that run others, or hooks, and compute nothing themselves.
HOST_WRAPPER = r"^(?:autograd::engine::evaluate_function|RegisterPostBackwardFunction)"


def serving(
    tree: OperatorTree, operators: pl.DataFrame, ranges: pl.DataFrame | None, frames: pl.DataFrame | None
) -> Bool:
    """For each place of the tree whether its operator serves something that is no compute.

    The innermost row around an operator decides: code that was compiled before computes, also where the
    program around it is being compiled.
    """
    forest = tree.forest
    inside = _within(tree, ranges, "range") | _within(tree, frames, "frame")
    names = operators["name"].gather(forest.order)
    distinct = names.unique()
    texts = distinct.cast(pl.String)
    proving = cause_of(texts.to_list(), "operator").filter(pl.col("cause").is_in(SERVED))["name"].to_list()
    starts = names.is_in(distinct.filter(texts.is_in(proving)).implode()).to_numpy()
    ends = names.is_in(distinct.filter(texts.str.contains(COMPILED)).implode()).to_numpy()
    if not starts.any():
        return inside
    state = np.zeros(len(names), dtype=np.bool_)
    order = np.argsort(forest.depth, kind="stable")
    levels = np.searchsorted(forest.depth[order], np.arange(int(forest.depth.max(initial=0)) + 2))
    for low, high in itertools.pairwise(levels.tolist()):
        at = order[low:high]
        above = forest.parent[at]
        inherited = (above >= 0) & state[np.maximum(above, 0)]
        state[at] = (starts[at] | inherited) & ~ends[at]
    return inside | state


def _within(tree: OperatorTree, rows: pl.DataFrame | None, row: Row) -> Bool:
    """Which operators begin inside a row of that kind, on their thread, that proves what they serve."""
    forest = tree.forest
    if rows is None:
        return np.zeros(len(forest.start), dtype=np.bool_)
    names = rows["name"].unique()
    causes = cause_of(names.cast(pl.String).drop_nulls().to_list(), row)
    proving = causes.filter(pl.col("cause").is_in(SERVED))["name"].to_list()
    here = rows.filter(pl.col("name").is_in(proving), pl.col("end") > pl.col("start"))
    spans = intervals.union(here.lazy().with_columns(pl.col("thread").fill_null(UNKNOWN_THREAD)), ["thread"])
    found = spans.collect()
    if found.is_empty():
        return np.zeros(len(forest.start), dtype=np.bool_)
    around = intervals.nest(found["start"].to_numpy(), found["end"].to_numpy(), found["thread"].to_numpy())
    return intervals.innermost_at(around, forest.start, forest.group) >= 0


def host_kernels(
    operators: pl.DataFrame,
    tree: OperatorTree,
    ranges: pl.DataFrame | None,
    frames: pl.DataFrame | None,
) -> pl.DataFrame:
    """The stretches of host operators outside their children, in place of kernels.

    What operators do inside a loader, a checkpoint or a compiler, they do for it: that is no compute.
    """
    position, start, end = intervals.self_pieces(tree.forest)
    own = ~serving(tree, operators, ranges, frames)[position]
    position, start, end = position[own], start[own], end[own]
    row = tree.forest.order[position]
    rows = operators.select("name", "thread", "phase")[row]
    names = rows["name"].unique()
    facts = operator_facts(names.cast(pl.String).to_list()).with_columns(pl.col("name").cast(NAME))
    pieces = rows.with_columns(
        start=pl.Series(start),
        end=pl.Series(end),
        stream=pl.col("thread"),
        operator=pl.col("name"),
        continued=pl.Series(start != tree.forest.start[position]),
    ).join(facts, on="name", how="left", maintain_order="left")
    # What belongs to communication is in `collectives`; a host waiting for it does not compute, nor does
    # the autograd engine around a node, where hooks of FSDP wait for their shards.
    waits = pl.col("name").cast(pl.String).str.contains(HOST_WRAPPER)
    return pieces.filter((pl.col("family") != "communication") & ~waits).with_columns(
        device=pl.lit(None, dtype=pl.Int32)
    )
