"""What copies cost, could save at most and move, in the words of a finding; and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import polars as pl

from lostflops.finding import Gain, milliseconds, percent
from lostflops.recipes.steps.totals import num_ranks

PINNING = {
    "host to device": "Pin the host's memory: `DataLoader(pin_memory=True)` and "
    "`.to(device, non_blocking=True)`; pageable copies are staged, and make the host wait.",
    "device to host": "Copy into pinned memory with `non_blocking=True`, and read it once an event says that "
    "it is there; pageable copies, as of `.item()`, `.cpu()` and saving, make the host wait.",
}

PAGES = (
    "Managed memory moves page by page, when it is missed: prefetch it before it is needed "
    "(`cudaMemPrefetchAsync`), and keep no more of it in use than the GPU holds, or pages leave and come "
    "back."
)
ADVICE = {
    "migration to device": PAGES,
    "migration to host": PAGES,
    "host to device": "Copy ahead on a second stream from pinned memory (`non_blocking=True`), "
    "or keep on the device what is copied again in every step.",
    "device to host": "Look for `.item()`, `.cpu()`, saving, logging or offloading in the step; copy less "
    "often, or on a second stream into pinned memory.",
    "memset": "Look for buffers that are zeroed in every step: `torch.zeros`, gradients that are zeroed in "
    "place for a CUDA graph, a framework's flat gradient buffers.",
}


BESIDE = (
    "They run beside other work already, and last longer than it: start them earlier, move fewer bytes (a "
    "narrower dtype), or keep on the device what is copied again in every step."
)
ALL_THE_TIME = (
    "They run all the time, beside other work, so that to start them earlier does not help: move fewer bytes "
    "(a narrower dtype), or keep on the device what is copied again in every step."
)
FILLED_FROM = 0.85  # of the steps, in which copies run: a recording lacks some at its ends
MOST = 0.6  # of what copies cost, from which on it is most of that
HIDDEN_FROM = 0.25  # of the time that copies take, from which on they run beside other work


class _Gain(TypedDict):
    ns_in_steps: int
    cost_per_step: int
    gain: Gain
    doubt: str


def hidden_by_nothing(rows: pl.DataFrame) -> str:
    exposed, hidden, copies = rows.select(pl.col("in_steps", "hidden_in_steps", "copies_in_steps").sum()).row(
        0
    )
    whose = f"{copies:,} copies take" if copies > 1 else "one copy takes"
    said = f"nothing hides {milliseconds(exposed)} of the {milliseconds(exposed + hidden)} that {whose}"
    idle = int(rows["idle_in_calls"].sum())
    return f"{said}, and the GPU idles another {milliseconds(idle)} in calls that copy" if idle else said


def cost(rows: pl.DataFrame, table: pl.DataFrame | None = None) -> str:
    """What the copies cost now, per step of a mean rank and as a share."""
    ranks = max(1, (rows if table is None else table)["rank"].n_unique())
    share = (float(rows["step_share"].sum()) + float(rows["idle_share"].sum())) / ranks
    return f"{milliseconds(_now(rows, ranks))} per step ({percent(min(1.0, share), 1)})"


def _now(rows: pl.DataFrame, ranks: int) -> int:
    """Exposed time and idle time in calls per step, mean of ranks, ns."""
    return (int(rows["per_step"].sum()) + int(rows["idle_per_step"].sum())) // ranks


def costliest(rows: pl.DataFrame) -> str:
    """The direction in which copies and their calls cost most inside steps."""
    return _by_direction(rows)[0][0]


def directions(rows: pl.DataFrame) -> str:
    """In which direction most of what copies and their calls cost is; where none has most, in which."""
    by = _by_direction(rows)
    whole = sum(ns for _, ns in by)
    if by[0][1] >= MOST * whole:
        return f"most of it {by[0][0]}"
    return " and ".join(direction for direction, ns in by if ns >= (1 - MOST) / 2 * whole)


def _by_direction(rows: pl.DataFrame) -> list[tuple[str, int]]:
    by = rows.group_by("direction").agg(pl.col("in_steps").sum() + pl.col("idle_in_calls").sum())
    return by.sort("in_steps", "direction", descending=True).rows()


def pinning_helps(rows: pl.DataFrame, direction: str) -> bool:
    """Whether copies of a direction touch the host's memory, and may make the host wait for it.

    A pinned batch does where it is copied without `non_blocking=True`; a pinned result is there when it is.
    """
    memory = rows.filter(pl.col("direction") == direction)["host_memory"].cast(pl.String)
    return direction == "host to device" or (
        direction == "device to host" and bool((memory != "pinned").any())
    )


def advice(rows: pl.DataFrame, direction: str) -> tuple[str, tuple[str, ...] | None]:
    """What to do about copies of a direction, and the remedies: None for those that the finding declares."""
    if _run_beside(rows, direction):
        return ALL_THE_TIME if _fill_steps(rows, direction) else BESIDE, ()
    other = "Overlap the copies with kernels on a second stream, or avoid them."
    return ADVICE.get(direction, other), None if pinning_helps(rows, direction) else ()


def _run_beside(rows: pl.DataFrame, direction: str) -> bool:
    """Whether copies of a direction are from or to pinned memory, and other work hides much of them."""
    mine = rows.filter(pl.col("direction") == direction)
    hidden, exposed = mine.select(pl.col("hidden_in_steps", "in_steps").sum()).row(0)
    pinned = (mine["host_memory"].cast(pl.String) == "pinned").all()
    return bool(pinned) and hidden >= HIDDEN_FROM * (hidden + exposed)


def _fill_steps(rows: pl.DataFrame, direction: str) -> bool:
    """Whether copies of a direction run for as long as steps take."""
    mine = rows.filter(pl.col("direction") == direction)
    hidden, exposed, share = mine.select(pl.col("hidden_in_steps", "in_steps", "step_share").sum()).row(0)
    return exposed > 0 and share / num_ranks(mine) * (hidden + exposed) / exposed >= FILLED_FROM


def gain(rows: pl.DataFrame, table: pl.DataFrame) -> _Gain:
    """What these copies cost now, and at most, which only recorded launches tell."""
    now = _now(rows, num_ranks(table))
    if rows["at_most"].null_count():
        doubt = "Launches of some copies were not recorded: the cost of their calls is not known."
        if (rows.filter(pl.col("at_most").is_null())["host_memory"].cast(pl.String) == "managed").all():
            doubt = "Managed memory moves without a call: what waits for it is not known."
        return {"ns_in_steps": 0, "cost_per_step": now, "gain": "unknown", "doubt": doubt}
    by_rank = rows.group_by("rank").agg(pl.col("at_most").sum(), pl.col("beside").max())
    bound = by_rank.select(pl.min_horizontal("at_most", "beside").sum()).item()
    return {"ns_in_steps": int(bound), "cost_per_step": now, "gain": "at most", "doubt": ""}


def facts(rows: pl.DataFrame) -> tuple[str, ...]:
    """What was copied inside steps and how fast, a line per direction and kind of memory."""
    of = "copies_in_steps", "bytes_in_steps", "in_steps", "hidden_in_steps", "_timed"
    rate = pl.col("bandwidth_in_steps")
    timed = pl.when(rate > 0).then(pl.col("bytes_in_steps") / rate).alias("_timed")
    kinds = rows.with_columns(timed).group_by("direction", "host_memory").agg(pl.col(of).sum())
    facts: list[str] = []
    shown = kinds.filter(pl.col("copies_in_steps") > 0).sort(
        pl.col("in_steps") + pl.col("hidden_in_steps"),
        "direction",
        "host_memory",
        descending=[True, False, False],
    )
    for row in shown.head(5).to_dicts():
        memory = "" if row["host_memory"] == "none" else f", host memory {row['host_memory']}"
        fact = f"{row['direction']}{memory}: {row['copies_in_steps']:,} copies"
        if row["bytes_in_steps"] and row["_timed"]:
            fact += f", {row['bytes_in_steps']:,} bytes at {row['bytes_in_steps'] / row['_timed']:.2f} GB/s"
        facts.append(fact)
    return tuple(facts)


def held(rows: pl.DataFrame) -> Iterator[str]:
    """What the calls may cost elsewhere."""
    held = int(rows["held"].sum())
    if held:
        yield f"their calls hold the host for {milliseconds(held)} while the device does other work"
