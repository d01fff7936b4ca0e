"""The pipeline of a run, as data: one step's passes, why stages idle, and what other schedules would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from lostflops.finding import milliseconds, percent
from lostflops.session import Answer

MOST_PASSES = 4096  # of one step that are drawn
WORTH_SAYING = 0.001  # of the step
LABELS = {
    "schedule": "filling and draining",
    "imbalance": "uneven stages",
    "uneven": "uneven microbatches",
    "point_to_point": "messages between stages",
    "inside": "within passes",
    "warm_up": "before the first pass",
    "tail": "from the last pass to the optimizer",
    "optimizer": "optimizer",
    "other": "other",
}
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved", "zb": "zero bubble (ZB-H1)"}


@dataclass(frozen=True)
class Pipeline:
    """`passes` are those of one step of one pipeline; `parts` what a mean stage idles in a mean step, ns."""

    passes: pl.DataFrame
    step: int
    ranks: tuple[int, ...]
    schedule: str
    length: int
    idle: int
    parts: tuple[tuple[str, int], ...]
    replayed: str
    predicted: tuple[str, ...]

    @property
    def begin(self) -> int:
        return min(self.passes["start"].to_list())

    @property
    def end(self) -> int:
        return max(self.passes["end"].to_list())


def pipeline(answers: Mapping[str, Answer], passes: pl.DataFrame | None) -> Pipeline | None:
    """The pipeline to draw: the one of the lowest rank, in the last step; None where there is none."""
    bubble = answers.get("pipeline_bubble")
    if bubble is None or passes is None or passes.is_empty() or bubble.table["idle"].null_count():
        return None
    last = passes.filter(pl.col("step") == pl.col("step").max())
    drawn = last.filter(pl.col("pipeline") == pl.col("pipeline").min()).sort("stage", "start")
    if drawn.height > MOST_PASSES:
        return None
    sums = bubble.table.select(pl.col("ranks", "length", "idle", *LABELS).sum()).row(0, named=True)
    steps, known = sums["ranks"], drawn.row(0, named=True)
    of_a_step = {name: int(sums[name]) // steps for name in ("length", "idle", *LABELS)}
    said = SCHEDULES.get(known["schedule"], "of an unknown schedule")
    many = f", {known['chunks']} chunks per stage" if (known["chunks"] or 1) > 1 else ""
    return Pipeline(
        passes=drawn,
        step=known["step"],
        ranks=tuple(drawn.select("rank", "stage").unique().sort("stage")["rank"].to_list()),
        schedule=f"{said}, {known['microbatches']} microbatches{many}",
        length=of_a_step["length"],
        idle=of_a_step["idle"],
        parts=tuple(
            (label, of_a_step[name])
            for name, label in LABELS.items()
            if abs(of_a_step[name]) >= WORTH_SAYING * of_a_step["length"]
        ),
        replayed=_replayed(answers.get("pipeline_schedules")),
        predicted=tuple(_predicted(answers.get("pipeline_schedules"))),
    )


def _replayed(answer: Answer | None) -> str:
    """What is compared with what, and how sure that is."""
    if answer is None or answer.table.is_empty():
        return ""
    row = answer.table.row(0, named=True)
    off = f"replay misses that by {percent(abs(row['error']), 1)}"
    if row["predicted"] is None:
        off = f"{off}, which is too much to predict other schedules by it."
    else:
        off = f"{off}. Predicted by the same replay:"
    return (
        f"From the first pass to the last the recorded schedule takes {milliseconds(row['pipeline'])}; {off}"
    )


def _predicted(answer: Answer | None) -> list[str]:
    """What other schedules would give, one a line."""
    if answer is None or answer.table.is_empty():
        return []
    rows = list(answer.table.iter_rows(named=True))
    if rows[0]["predicted"] is None:
        return []
    found: list[str] = []
    for row in rows[1:]:
        change = row["predicted"] - row["replayed"]
        what = SCHEDULES.get(row["schedule"], row["schedule"])
        chunks = f" with {row['chunks']} chunks per stage" if row["chunks"] > 1 else ""
        less = f"{percent(abs(change), row['replayed'])} {'less' if change < 0 else 'more'}"
        found.append(
            f"{what}{chunks}, {row['microbatches']} microbatches: {milliseconds(row['predicted'])} ({less}), "
            f"if {row['assumes']}"
        )
    return found
