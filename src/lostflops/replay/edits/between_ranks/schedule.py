"""Another order of a pipeline's passes, or another number of microbatches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int
from ...edit import Apply, Edit, Edited, EditKind, Known, Typed
from ...pipeline.predicted import APART, BOTH_WAYS, DUAL, HALVES, LARGER, SAME, SMALLER, Variant
from ...pipeline.retimed import Asked, rescheduled
from ...pipeline.schedules import dual_pipe
from ...recorded import RecordedJob

MOST = 1_000_000  # microbatches and chunks
ORDERS = r"(1f1b|gpipe|zb|dualpipe)|interleaved-v([1-9]\d{0,5})"


def made_of_order(typed: Typed) -> Edit:
    found = re.fullmatch(ORDERS, typed.amount or "")
    if typed.selection or not found:
        raise BadOption(
            f"'{shown(typed.text)}' names no schedule.",
            "write 'schedule=1f1b', 'schedule=gpipe', 'schedule=zb', 'schedule=dualpipe' or "
            "'schedule=interleaved-v2'.",
        )
    name, chunks = found[1] or "interleaved", int(found[2] or 1)

    def other(own: Variant, stages: int) -> Variant | str:
        if (name, chunks) == (own.schedule, own.chunks):
            return f"this is the recorded schedule, {own.schedule}"
        if name == "interleaved" and own.microbatches % stages:
            return _uneven(own.microbatches, stages)
        if name == DUAL and (why := dual_pipe.allowed(stages, own.microbatches)):
            return why
        assumes = HALVES if chunks > 1 else {"zb": APART, DUAL: BOTH_WAYS}.get(name, SAME)
        return Variant(name, chunks, own.microbatches, own.divided, assumes)

    says = f"the pipeline's stages worked in the order {typed.amount}"
    return Edit(typed.text, says, Reordered(other), of_communication=True, then=_then)


def made_of_number(typed: Typed) -> Edit:
    if typed.selection or not re.fullmatch(r"[1-9]\d{0,5}", typed.amount or ""):
        raise BadOption(
            f"'{shown(typed.text)}' does not say how many microbatches.", "write 'microbatches=32'."
        )
    many = int(typed.amount or 1)

    def other(own: Variant, stages: int) -> Variant | str:
        if many == own.microbatches:
            return f"the recorded steps have {many} microbatches"
        if own.schedule == "interleaved" and many % stages:
            return _uneven(many, stages)
        by = many / own.microbatches
        return own._replace(microbatches=many, divided=by * own.divided, assumes=_scaled(by))

    says = f"each step's batch passed the pipeline in {many} microbatches"
    return Edit(typed.text, says, Reordered(other), of_communication=True, then=_then)


@dataclass(frozen=True)
class Reordered:
    """Makes an edit of a pipeline: `asked` says what becomes of its order."""

    asked: Asked

    def __call__(self, job: RecordedJob, lags: Int, known: Known) -> Edited:
        return rescheduled(job, lags, known, self.asked)


def _then(first: Apply, second: Apply) -> Apply:
    assert isinstance(first, Reordered) and isinstance(second, Reordered)

    def both(own: Variant, stages: int) -> Variant | str:
        between = first.asked(own, stages)
        if isinstance(between, str):
            return between
        found = second.asked(between, stages)
        if isinstance(found, str):
            return found
        told = dict.fromkeys([between.assumes, found.assumes])
        return found._replace(
            assumes="; ".join(one for one in told if one and (one != SAME or len(told) == 1))
        )

    return Reordered(both)


def _scaled(divided: float) -> str:
    if divided == 2:
        return SMALLER
    if divided == 0.5:
        return LARGER
    fits = "" if divided > 1 else ", and one that is larger fits into memory"
    return f"a microbatch takes as long as its share of the batch says{fits}"


def _uneven(microbatches: int, stages: int) -> str:
    return f"{microbatches} microbatches do not go through {stages} interleaved stages in whole groups"


SCHEDULE = EditKind(
    "schedule",
    "schedule=ORDER",
    "What if pipeline stages worked in this order: 1f1b, gpipe, zb (zero bubble), dualpipe, or "
    "interleaved-vN, which is N chunks a stage?",
    "schedule=interleaved-v2",
    made_of_order,
)
MICROBATCHES = EditKind(
    "microbatches",
    "microbatches=N",
    "What if a step's batch, as large as it is, passed the pipeline in N microbatches?",
    "microbatches=32",
    made_of_number,
)
