"""What the GPU computes of a loss over a vocabulary: log-softmax, cross-entropy, and casts of the logits."""

from __future__ import annotations

from math import prod

import polars as pl

from lostflops import intervals
from lostflops.naming.classification import operator_facts
from lostflops.recipes.host_steps import host_steps, in_host_steps
from lostflops.recipes.operators.traffic import extents, types
from lostflops.store.trace import Trace

LOSS = r"^aten::(?:_?log_softmax(?:_backward_data)?|nll_loss(?:_nd|_forward|_backward)?|cross_entropy_loss)$"
CROSS_ENTROPY = r"^aten::(?:nll_loss(?:_nd|_forward)?|cross_entropy_loss)$"
SOFTMAX = r"^aten::_?log_softmax$"
# Of one pass over the logits: labels that are shifted by one leave out a row of each sequence.
ON_LOGITS, MOST_OF_THEM = ("elementwise", "reduction", "copy"), 0.5
FP32 = "float"
LOSSES = pl.Schema(
    {
        "rank": pl.Int32,
        "loss": pl.Int64,
        "beside": pl.Int64,
        "host": pl.Int64,
        "vocabulary": pl.Int64,
        "dtype": pl.String,
    }
)
LANE = ["rank", "thread"]


def loss_work(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long kernels of a cross-entropy run in the steps that count, rank by rank, ns.

    `loss` is in the loss's own operators, forward and backward, and `beside` in others that go through all
    the logits, such as casts, which shapes tell. `host` is the CPU's time in all of these. `vocabulary` is
    the last extent of the logits and `dtype` their type; null where no shapes were recorded. Nothing where
    no cross-entropy of rows is computed.
    """
    operators, kernels, steps = (trace.table(name) for name in ("operators", "kernels", "steps"))
    if operators is None or kernels is None or steps is None:
        return LOSSES.to_frame()
    name = pl.col("name").cast(pl.String)
    names = operators.select(pl.col("name").unique().cast(pl.String)).collect()["name"].drop_nulls()
    of_loss = names.filter(names.str.contains(LOSS))
    if not of_loss.str.contains(CROSS_ENTROPY).any() or not of_loss.str.contains(SOFTMAX).any():
        return LOSSES.to_frame()
    facts = operator_facts(names.to_list()).filter(pl.col("family").is_in(ON_LOGITS))["name"].to_list()
    asked = operators.filter(name.is_in([*of_loss, *facts])).select(
        *LANE, "start", "end", name, pl.col("shapes", "dtypes").cast(pl.String)
    )
    rows = asked.collect()
    told = _logits(rows.filter(pl.col("name").str.contains(SOFTMAX)))
    known = rows.select("shapes").unique().drop_nulls()
    through = [text for text in known["shapes"] if told and _goes_through(text, told[0], told[1])]
    own = pl.col("name").is_in(of_loss.to_list())
    rows = rows.filter(own | pl.col("shapes").is_in(through)).with_columns(own=own)
    spans = {
        kind: intervals.union(some.select(*LANE, "start", "end").lazy(), LANE).sort("start").collect()
        for kind, some in (("loss", rows.filter("own")), ("every", rows))
    }
    windows = host_steps(steps, counted.lazy())
    asked_for = kernels.filter(pl.col("launch_start").is_not_null()).select(
        *LANE, at="launch_start", ns=pl.col("end") - pl.col("start")
    )
    launched = in_host_steps(asked_for, windows, "at").collect()

    def of(kind: str) -> pl.DataFrame:
        held = launched.join_asof(
            spans[kind].rename({"start": "since", "end": "to"}), left_on="at", right_on="since", by=LANE,
            check_sortedness=False,
        )  # fmt: skip
        return held.filter(pl.col("at") < pl.col("to")).group_by("rank").agg(pl.col("ns").sum())

    host = in_host_steps(spans["every"].lazy(), windows).collect()
    each = host.group_by("rank").agg(host=(pl.col("end") - pl.col("start")).sum())
    return (
        of("loss")
        .rename({"ns": "loss"})
        .join(of("every"), on="rank")
        .join(each, on="rank", how="left")
        .with_columns(
            beside=pl.col("ns") - pl.col("loss"),
            vocabulary=pl.lit(told[1] if told else None, pl.Int64),
            dtype=pl.lit(told[2] if told else None, pl.String),
        )
        .select(pl.col(c).cast(t) for c, t in LOSSES.items())
        .sort("rank")
    )


def _logits(rows: pl.DataFrame) -> tuple[int, int, str] | None:
    """How many logits the largest softmax has, over how many words, and of which type."""
    found = [
        (prod(first), first[-1], known[0])
        for shapes, dtypes in rows.select("shapes", "dtypes").unique().drop_nulls().iter_rows()
        if (first := _first(shapes)) and (known := types(dtypes))
    ]
    return max(found, default=None)


def _first(shapes: str) -> tuple[int, ...]:
    """The extents of the first tensor; none where it is not one."""
    return next(iter(extents(shapes)), ())


def _goes_through(shapes: str, logits: int, words: int) -> bool:
    """Whether an operator's first tensor is as good as all logits."""
    first = _first(shapes)
    return bool(first) and first[-1] == words and prod(first) >= MOST_OF_THEM * logits
