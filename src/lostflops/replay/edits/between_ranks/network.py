"""Another network between ranks: bytes at another rate, or operations that start faster."""

from __future__ import annotations

import numpy as np

from lostflops.errors import BadOption, shown
from lostflops.units import seconds

from ...dependencies.edges import Int
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...moved_bytes import LIKE, bytes_per_second, started, starts, transfers
from ...recorded import RecordedJob

NONE_HERE = "no transfer between ranks whose bytes are known was matched in the steps"
RING = "bytes are taken to move around a ring over links of one rate"
UNTOLD = "transfers of one size do not tell what each takes to start, which a faster link leaves"


def made_of_rate(typed: Typed) -> Edit:
    if typed.selection or typed.amount is None:
        raise BadOption(f"'{shown(typed.text)}' does not say how fast.", "write 'network=50GB/s'.")
    rate = bytes_per_second(typed.amount, "network=50GB/s")

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        rows = transfers(job, lags, known.matched)
        if not rows.height:
            return Edited(lags, refused=NONE_HERE)
        start, more = started(rows)
        moving = np.rint(1e9 * rows["moved"].to_numpy() / rate).astype(np.int64)
        doubts = (RING, UNTOLD) if more.any() else (RING,)
        return _made(job, lags, known, rows["edge"].to_numpy(), start + moving, more, doubts)

    return Edit(
        typed.text, f"bytes moved between ranks at {typed.amount}", apply, of_communication=True, scales=True
    )


def made_of_start(typed: Typed) -> Edit:
    if typed.selection or typed.amount is None:
        raise BadOption(f"'{shown(typed.text)}' does not say how long.", "write 'network-start=10us'.")
    ns = round(1e9 * seconds(typed.amount))

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        rows = transfers(job, lags, known.matched)
        if not rows.height:
            return Edited(lags, refused=NONE_HERE)
        told = starts(rows)
        if any(key not in told for key in rows.select(LIKE).unique().iter_rows()):
            return Edited(lags, refused="transfers of one size do not tell what each takes to start")
        start, more = started(rows)
        return _made(
            job, lags, known, rows["edge"].to_numpy(), rows["lag"].to_numpy() - start + ns, more, (RING,)
        )

    return Edit(
        typed.text, f"each collective and message took {typed.amount} to start", apply,
        of_communication=True, scales=True,
    )  # fmt: skip


def _made(
    job: RecordedJob, lags: Int, known: Known, edge: Int, ns: Int, more: Int, doubts: tuple[str, ...]
) -> Edited:
    changed, longer = lags.copy(), np.zeros(len(lags), np.int64)
    changed[edge] = ns
    # No start is longer than the whole transfer was.
    longer[edge] = np.minimum(more, np.clip(lags[edge] - ns, 0, None))
    inside = in_steps(job, known.steps, job.edges.target)
    return Edited(
        changed,
        longer=longer if more.any() else None,
        removed=int(np.clip(lags - changed, 0, None)[inside].sum()),
        doubts=doubts,
    )


RATE = EditKind(
    "network",
    "network=RATE",
    "What if bytes moved between ranks at this rate, as a card gives it for one direction?",
    "network=50GB/s",
    made_of_rate,
)
START = EditKind(
    "network-start",
    "network-start=TIME",
    "What if every collective and message took this time to start?",
    "network-start=10us",
    made_of_start,
)
