"""Which operators belong to the forward pass, the backward pass, recomputing, or the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from lostflops.ingest.attribution import OperatorTree
from lostflops.tables import PHASE

if TYPE_CHECKING:
    from lostflops.intervals.nesting import Forest

Flags: TypeAlias = npt.NDArray[np.bool_]
# Of the nodes that compute gradients, so many can hold a checkpoint's forward pass: one each of a checkpoint
# around a single operator.
MOST_NODES = 0.5


def phases(tree: OperatorTree, operators: pl.DataFrame, ranges: pl.DataFrame | None) -> pl.Series:
    """Forward, backward, recompute or optimizer, for every operator; null where nothing tells.

    An operator is backward inside an autograd node, forward when autograd numbered it otherwise, and the
    optimizer's inside `Optimizer.step`. Recompute is what runs inside the node of a checkpoint, and what
    autograd numbers inside another node: a backward pass records nothing for a further one, so that its nodes
    number operators only where a checkpoint runs the forward pass again. Gradients of gradients
    (`create_graph=True`) number all they do: where they do, such operators are backward.
    """
    from lostflops.intervals import innermost_at, nest

    forest = tree.forest
    names = operators["name"]
    distinct = names.unique()
    text = distinct.cast(pl.String)
    engine = distinct.filter(text.str.starts_with("autograd::engine::evaluate_function"))
    rerun = distinct.filter(text.str.contains("CheckpointFunctionBackward"))
    unknown, forward, backward, checkpoint, recompute = 0, 1, 2, 3, 4
    own = np.select(
        [
            names.is_in(rerun.implode()).to_numpy(),
            names.is_in(engine.implode()).to_numpy() | operators["backward"].to_numpy(),
            (operators["sequence"].fill_null(-1) >= 0).to_numpy(),
        ],
        [checkpoint, backward, forward],
        unknown,
    )[forest.order].astype(np.int8)
    state = own.copy()
    again = (
        own == forward if _numbers_only_checkpoints(forest, own == forward, own == backward, names) else None
    )
    order = np.argsort(forest.depth, kind="stable")
    bounds = np.searchsorted(forest.depth[order], np.arange(int(forest.depth.max(initial=0)) + 2))
    for level in range(1, len(bounds) - 1):
        rows = order[bounds[level] : bounds[level + 1]]
        above = state[np.maximum(forest.parent[rows], 0)]
        above = np.where(forest.parent[rows] >= 0, above, unknown)
        mine = own[rows]
        inherited = np.where((above == checkpoint) | (above == recompute), recompute, above)
        keeps = (mine == backward) | (mine == checkpoint)
        if again is not None:
            inherited = np.where((above == backward) & again[rows], recompute, inherited)
        state[rows] = np.where(keeps, mine, np.where(inherited == unknown, mine, inherited))
    if ranges is not None:
        optimizer = ranges.filter(pl.col("name").cast(pl.String).str.starts_with("Optimizer.step#"))
        if optimizer.height:
            spans = nest(
                optimizer["start"].to_numpy(),
                optimizer["end"].to_numpy(),
                optimizer["thread"].fill_null(-1).to_numpy(),
            )
            state[innermost_at(spans, forest.start, forest.group) >= 0] = 5
    by_row = np.empty(len(state), dtype=np.int8)
    by_row[forest.order] = state
    words = {
        unknown: None,
        forward: "forward",
        backward: "backward",
        checkpoint: "backward",
        recompute: "recompute",
    }
    return pl.Series(by_row).replace_strict({**words, 5: "optimizer"}, return_dtype=PHASE)


def _numbers_only_checkpoints(forest: Forest, numbered: Flags, nodes: Flags, names: pl.Series) -> bool:
    """Whether operators that autograd numbers inside nodes are checkpoints', not gradients of gradients.

    Those number the products of nearly all nodes of a pass, and operators that only backward passes have. A
    pass lasts until the forward pass goes on.
    """
    inside = numbered & (forest.parent >= 0) & nodes[np.maximum(forest.parent, 0)]
    if not inside.any():
        return False
    around = np.unique(forest.parent[inside])
    engine = names.cast(pl.String).str.starts_with("autograd::engine::").to_numpy()[forest.order]
    distinct = names.gather(forest.order[inside]).unique().cast(pl.String)
    only_backward = bool(distinct.str.contains(r"^aten::\w*_backward").any())
    forward = np.sort(forest.start[numbered & (forest.parent < 0)])
    passes = np.searchsorted(forward, forest.start)
    of_pass = np.bincount(passes[nodes & ~engine], minlength=len(forward) + 1)
    numbering = np.bincount(passes[around], minlength=len(forward) + 1)
    return not only_backward and bool((numbering <= MOST_NODES * of_pass).all())
