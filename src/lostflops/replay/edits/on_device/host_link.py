"""Another link between host and device: an x86 node's PCIe run as Grace Hopper's NVLink-C2C."""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.copies.link_card import line
from lostflops.errors import BadOption, shown

from ...dependencies.edges import Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, in_steps
from ...moved_bytes import APART, bytes_per_second
from ...recorded import RecordedJob

WAYS = ("host to device", "device to host")
SMALL = 64 << 10  # bytes up to which a copy takes little more than its start
PAGEABLE = "copies from and to pageable memory stay as they are: staging them on the host limits those"
BESIDE = "copies in both directions at once, and kernels that read the host's memory, are not slowed down"


def made(typed: Typed) -> Edit:
    ways = {"": WAYS, "in": WAYS[:1], "out": WAYS[1:]}.get(typed.selection)
    if ways is None or typed.amount is None:
        raise BadOption(
            f"'{shown(typed.text)}' does not say how fast.",
            "write 'host-link=400GB/s', or 'host-link:in=' or 'host-link:out=' for one direction.",
        )
    rate = bytes_per_second(typed.amount, "host-link=400GB/s")

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        between = job.operations.filter(
            pl.col("on_device") & pl.col("copy") & pl.col("direction").is_in(ways) & (pl.col("bytes") > 0)
        )
        pageable = (pl.col("host_memory") == "pageable").fill_null(False)
        copies = between.filter(~pageable)
        if not copies.height:
            return Edited(
                lags, refused="no copy between host and device that its link limits is in the steps"
            )
        edge = np.full(job.operations.height, -1, np.int64)
        own = np.flatnonzero(job.edges.kind == Kind.DEVICE)
        edge[job.edges.source[own] // 2] = own
        changed = lags.copy()
        for (_,), part in copies.group_by("direction"):
            which = edge[part["operation"].to_numpy()]
            start = np.minimum(_start(part), lags[which])
            moving = 1e9 * part["bytes"].to_numpy() / rate
            changed[which] = np.rint(start + moving).astype(np.int64)
        inside = in_steps(job, known.steps, job.edges.source)
        doubts = (PAGEABLE, BESIDE) if between.height > copies.height else (BESIDE,)
        removed = int(np.clip(lags - changed, 0, None)[inside].sum())
        return Edited(changed, removed=removed, doubts=doubts)

    return Edit(typed.text, f"copies {' and '.join(ways)} moved at {typed.amount}", apply, scales=True)


def _start(copies: pl.DataFrame) -> float:
    """What a copy takes to start, ns: told from sizes, or by the shortest small one; else taken for none."""
    length = (pl.col("end") - pl.col("start")).median()
    times = copies.group_by("bytes").agg(ns=length).sort("bytes")
    sizes, ns = times["bytes"].to_list(), times["ns"].to_list()
    if sizes[-1] >= APART * sizes[0] and (told := line(sizes, ns)):
        return told["launch_ns"]
    return min(ns) if sizes[0] <= SMALL else 0.0


HOST_LINK = EditKind(
    "host-link",
    "host-link[:in|out]=RATE",
    "What if pinned copies between host and device moved at this rate, as over NVLink-C2C instead of PCIe?",
    "host-link=400GB/s",
    made,
)
