"""Activations that leave for the host in the forward pass and come back for the backward pass.

Each layer's share of them is copied out when the layer is done, and back while the layer before it runs
backward, on streams of their own, one copy at a time each way. A layer's backward pass waits for its copy.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from lostflops.errors import BadOption, shown
from lostflops.units import size as bytes_in_text

from ...blocks import block_ends
from ...dependencies.edges import Edges, Int, Kind
from ...edit import Edit, Edited, EditKind, Known, Typed, step_of
from ...moved_bytes import bytes_per_second
from ...recorded import RecordedJob

EVENLY = "every layer keeps the same amount, and its copies take no bandwidth from kernels"
NO_LAYERS = "the kernels of the passes do not repeat, so no layers can be told that would be copied apart"
LEAST = 2  # layers


def made(typed: Typed) -> Edit:
    if not typed.selection or typed.amount is None:
        raise BadOption(
            f"'{shown(typed.text)}' does not say how much, and how fast the link is.",
            "write 'offload:25GB/s=8GiB': the rate of the link each way, and the bytes per step and rank.",
        )
    rate = bytes_per_second(typed.selection, "offload:25GB/s=8GiB")
    amount = bytes_in_text(typed.amount)

    def apply(job: RecordedJob, lags: Int, known: Known) -> Edited:
        layers = _layers(job, known)
        if isinstance(layers, str):
            return Edited(lags, refused=layers)
        each = round(1e9 * amount / len(layers[0]) / rate)
        first, points, edges = len(job.measured), 0, list[tuple[int, int, int]]()
        for step in layers:
            edges += _copies(step, first + points, each)
            points += 2 * len(step)
        columns = np.array(edges, np.int64).T
        kind = np.full(len(edges), Kind.EVENT, np.int8)
        added = Edges(columns[0], columns[1], columns[2], kind)
        return Edited(lags, (added,), points=points, doubts=(EVENLY,))

    return Edit(
        typed.text,
        f"{typed.amount} of activations left for the host and came back, at {typed.selection} each way",
        apply,
    )


Layer = tuple[int, int]
"""The points at which a layer's forward pass ends and its backward pass begins."""


def _copies(layers: list[Layer], point: int, each: int) -> list[tuple[int, int, int]]:
    """The edges of a step's copies, (source, target, lag). Layer k's end at point + 2k and + 2k + 1."""
    found = list[tuple[int, int, int]]()
    for k, (done, begin) in enumerate(layers):
        out, back = point + 2 * k, point + 2 * k + 1
        found += [(done, out, each), (out, back, each), (back, begin, 0)]
        if k:
            found.append((out - 2, out, each))
        if k + 1 < len(layers):
            # It comes back while the next layer, whose turn is before, runs backward; and after its copy.
            found += [(back + 2, back, each), (layers[k + 1][1], back, each)]
    return found


def _layers(job: RecordedJob, known: Known) -> list[list[Layer]] | str:
    """The layers of each counted step of each rank, in the order of the forward pass; or why not."""
    computes = pl.col("on_device") & ~pl.col("communication").fill_null(False)
    rows = job.operations.filter(computes & pl.col("phase").is_in(["forward", "backward"])).select(
        "operation", "start", "end", "phase", name=pl.col("name").rank("dense").cast(pl.Int64)
    )
    step = step_of(job, known.every_step, 2 * rows["operation"].to_numpy())
    rows = rows.with_columns(step=pl.Series(step)).filter(pl.col("step") >= 0).sort("step", "start")
    found = list[list[Layer]]()
    for part in rows.partition_by("step", maintain_order=True):
        forward, backward = part.filter(phase="forward"), part.filter(phase="backward")
        if not forward.height or not backward.height:
            return "the phases of the kernels are not known in every step"
        if forward["end"].max() > backward["start"].min():  # type: ignore[operator]
            return "forward and backward passes of several microbatches alternate in a step"
        there, back = (block_ends(each["name"].fill_null(0).to_numpy()) for each in (forward, backward))
        if len(there) != len(back) or len(there) < LEAST:
            return NO_LAYERS
        size = int(np.median(np.diff(back)))
        begins = np.r_[max(0, int(back[0]) - size + 1), back[:-1] + 1]
        done = 2 * forward["operation"].to_numpy()[there] + 1
        operation = backward["operation"].to_numpy()
        found.append(list(zip(done.tolist(), (2 * operation[begins])[::-1].tolist(), strict=True)))
    if not found or len({len(each) for each in found}) > 1:
        return NO_LAYERS
    return found


OFFLOAD = EditKind(
    "offload",
    "offload:RATE=SIZE",
    "What if so many bytes of activations per step and rank left for the host and came back, over a link of "
    "this rate each way?",
    "offload:25GB/s=8GiB",
    made,
)
