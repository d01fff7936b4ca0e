"""Host time that goes away or changes: a loader with workers, no collection, no checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import polars as pl

from lostflops.accounts import IDLE
from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int
from ...edit import REMOVED, Edit, Edited, EditKind, Known, Typed
from ...host_time import copies_within, per_step, within
from ...recorded import RecordedJob
from .syncs import queue, spent_waiting, waits_within

PREFIX = "idle."
UNITS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
# Not time that a thread spends at something: what it waits for, or what nothing is known of.
NOT_SPENT = ("host_synchronisation", "dependency", "unrecorded")
# What is copied for these is copied for nothing else.
WITH_COPIES = ("checkpoint_logging",)
# What waits for the device only because it frees or maps its memory.
WITH_WAITS = ("memory_allocator",)
WORKERS = (
    "workers that run beside the job take processor time from it, up to a tenth of the host's, "
    "which the replay does not know"
)


Spans = Callable[[Known], pl.DataFrame | None]


def made(typed: Typed) -> Edit:
    cause = typed.selection.replace("-", "_")
    if cause not in _causes():
        known = ", ".join(c.replace("_", "-") for c in _causes())
        raise BadOption(
            f"'{shown(typed.text)}' does not say which host time.",
            f"name it: 'host:data-loading=0ms'; known are {known}.",
        )
    return _edit(typed, cause.replace("_", " "), _of_cause(cause), cause)


def made_of_loader(typed: Typed) -> Edit:
    if typed.selection:
        raise BadOption(f"'{shown(typed.text)}' takes no selection.", "write 'loader=0ms'.")
    return _edit(typed, "data loading", _of_cause("data_loading"), "data_loading")


def made_of_range(typed: Typed) -> Edit:
    if not typed.selection:
        raise BadOption(
            f"'{shown(typed.text)}' does not say which range.",
            "name a part of its name: 'range:tokenise=0ms'.",
        )

    def spans(known: Known) -> pl.DataFrame | None:
        return known.named(typed.selection) if known.named else None

    return _edit(typed, f"what '{typed.selection}' names", spans)


def _of_cause(cause: str) -> Spans:
    def spans(known: Known) -> pl.DataFrame | None:
        every = known.host_spans
        return None if every is None else every.filter(pl.col("account") == PREFIX + cause)

    return spans


def _edit(typed: Typed, label: str, spans: Spans, cause: str = "") -> Edit:
    share, ns = _amount(typed)

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        mine = spans(known)
        if mine is None or not mine.height:
            return Edited(lags, refused=f"the host spent no time on {label} in this recording")
        inside = within(job, lags, mine)
        now = per_step(job, known.steps, inside)
        kept = share if share is not None else (ns or 0) / now if now else 1.0
        less = np.rint(inside * (1 - kept)).astype(np.int64)
        if cause in WITH_COPIES:
            less += np.rint(copies_within(job, lags, mine) * (1 - kept)).astype(np.int64)
        without, waited, held = lags - less, 0, ()
        if cause in WITH_WAITS and kept == 0:  # calls that are not made wait for nothing
            gone = waits_within(job, mine)
            without[gone] = REMOVED
            waited, held = spent_waiting(job, lags, gone, known), (queue(job),) if gone.any() else ()
        return Edited(
            without,
            held,
            removed=max(0, int(per_step(job, known.steps, less) * len(known.steps.step))) + waited,
            doubts=(WORKERS,) if cause == "data_loading" else (),
        )

    says = (
        f"{label} took {100 * share:.0f} % of its time"
        if share is not None
        else f"{label} took {typed.amount} a step"
    )
    return Edit(typed.text, says, apply, on_host=True)


def _amount(typed: Typed) -> tuple[float | None, float | None]:
    """The share of its time that is kept, or how many ns a step it takes then."""
    text = typed.amount if typed.amount is not None else "0%"
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s)?", text)
    if not found or (found[2] is None and float(found[1]) != 0):
        raise BadOption(
            f"'{shown(typed.text)}' needs a time a step or a share.", "such as '=0ms', '=12.5ms' or '=50%'."
        )
    if found[2] in ("%", None):
        return float(found[1]) / 100, None
    return None, float(found[1]) * UNITS[found[2]]


def _causes() -> list[str]:
    every = [account.name.removeprefix(PREFIX) for account in IDLE]
    return [cause for cause in every if cause not in NOT_SPENT]


HOST = EditKind(
    "host",
    "host:CAUSE=TIME",
    "What if the host spent so much time a step on this, an idle account of the ledger? Also a share: 50%.",
    "host:garbage-collection=0ms",
    made,
)
LOADER = EditKind(
    "loader",
    "loader=TIME",
    "What if the loader handed a batch over in this time?",
    "loader=0ms",
    made_of_loader,
)
RANGE = EditKind(
    "range",
    "range:NAME=TIME",
    "What if host ranges, operators and frames whose name holds NAME took so much time a step?",
    "range:tokenise=0ms",
    made_of_range,
)
