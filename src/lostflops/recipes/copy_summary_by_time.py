"""How much time copies between host and device take, and how much of it nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops import intervals
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Copies

from .step_totals import mean_share, per_step

# Share of the step from which exposed copies are worth a finding (TraceLens: 5 % in one direction).
WORTH_SAYING = 0.05
# Pageable memory also makes the host wait, so a smaller share is worth a look.
PAGEABLE_WORTH_SAYING = 0.01


@recipe(
    question="How much time do copies take, by direction and kind of host memory?",
    scope="rank",
    plot=Bars(x="direction", y=("hidden", "exposed"), stacked=True),
    columns={
        "rank": "rank",
        "direction": "from where to where",
        "host_memory": "kind of memory on the host's side",
        "copies": "number of copies, memsets or migrations",
        "bytes": "bytes moved, as far as they were recorded; null when none were",
        "time": "durations added up, ns",
        "bandwidth": "bytes / time over the copies with known bytes, GB/s (10⁹ bytes)",
        "hidden": "time in which one of them and a kernel or communication runs, ns",
        "exposed": "time in which one of them runs and neither kernel nor communication, ns",
        "in_steps": "exposed time inside steps, ns",
        "per_step": "exposed time in a mean step, ns",
        "step_share": "share of the rank's step time in which these copies are exposed",
    },
    examples=[
        Example(
            "a batch is copied from pageable memory before the kernels, a result under them",
            given={
                "copies": [
                    {"start": 0, "end": 40, "bytes": 200, "direction": "host to device"}
                    | {"host_memory": "pageable"},
                    {"start": 50, "end": 60, "bytes": 70, "direction": "host to device"}
                    | {"host_memory": "pageable"},
                    {"start": 70, "end": 74, "bytes": 32, "direction": "device to host"}
                    | {"host_memory": "pinned"},
                ],
                "kernels": [{"start": 56, "end": 73}],
                "steps": [{"start": 5, "end": 60}, {"start": 60, "end": 100}],
            },
            expect=[
                {
                    "rank": 0,
                    "direction": "host to device",
                    "host_memory": "pageable",
                    "copies": 2,
                    "bytes": 270,
                    "time": 50,
                    "bandwidth": 5.4,
                    "hidden": 4,
                    "exposed": 46,
                    "in_steps": 41,
                    "per_step": 20,
                    "step_share": 41 / 95,
                },
                {
                    "rank": 0,
                    "direction": "device to host",
                    "host_memory": "pinned",
                    "copies": 1,
                    "bytes": 32,
                    "time": 4,
                    "bandwidth": 8.0,
                    "hidden": 3,
                    "exposed": 1,
                    "in_steps": 1,
                    "per_step": 0,
                    "step_share": 1 / 95,
                },
            ],
        ),
        Example(
            "two copies at once are exposed once; the one without bytes is not in the bandwidth",
            given={
                "copies": [
                    {"start": 0, "end": 30, "bytes": 600},
                    {"start": 10, "end": 37},
                    {"start": 40, "end": 48, "bytes": 50, "communication": True},
                ],
                "steps": [{"start": 0, "end": 50}],
            },
            expect=[
                {
                    "rank": 0,
                    "direction": "unknown",
                    "host_memory": "unknown",
                    "copies": 2,
                    "bytes": 600,
                    "time": 57,
                    "bandwidth": 20.0,
                    "hidden": 0,
                    "exposed": 37,
                    "in_steps": 37,
                    "per_step": 37,
                    "step_share": 0.74,
                }
            ],
        ),
    ],
)
def copy_summary_by_time(
    copies: Copies, gpu_activity: pl.LazyFrame, step_totals: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's copies by direction and kind of host memory, the most exposed first.

    Copies that carry a collective are communication and left out. When two kinds of copy are exposed at one
    time, both say so: over all kinds the exposed time can exceed the ledger's.
    """
    kinds = ["rank", "direction", "host_memory"]
    moved = copies.filter(~pl.col("communication")).with_columns(_time=pl.col("end") - pl.col("start"))
    known = pl.col("bytes").is_not_null()
    summed = (
        moved.group_by(kinds)
        .agg(
            copies=pl.len().cast(pl.Int64),
            bytes=pl.when(known.any()).then(pl.col("bytes").sum()),
            time=pl.col("_time").sum(),
            _timed=pl.col("_time").filter(known).sum(),
        )
        .with_columns(bandwidth=pl.when(pl.col("_timed") > 0).then(pl.col("bytes") / pl.col("_timed")))
    )
    alone = (pl.col("compute") == 0) & (pl.col("communication") == 0)
    shown = intervals.inside(
        intervals.union(moved, kinds),
        gpu_activity,
        {"hidden": ~alone, "exposed": alone, "in_steps": alone & (pl.col("in_step") > 0)},
    )
    whole = summed.join(
        shown.group_by(kinds).agg(pl.col("hidden", "exposed", "in_steps").sum()), on=kinds, how="left"
    ).with_columns(pl.col("hidden", "exposed", "in_steps").fill_null(0))
    return (
        per_step(whole, step_totals, "in_steps")
        .select(*copy_summary_by_time.columns)
        .sort("rank", "exposed", *kinds[1:], descending=[False, True, False, False])
    )


@copy_summary_by_time.finding
def copies_cost_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    """One finding for all copies, with advice for the direction that costs most; one for pageable memory."""
    if mean_share(table, table) >= WORTH_SAYING:
        most = table.group_by("direction").agg(pl.col("exposed").sum()).sort("exposed", "direction").row(-1)
        yield Finding(
            name="copies-exposed",
            claim=f"{_hidden_by_nothing(table)}, most of it {most[0]}.",
            ns_in_steps=int(table["in_steps"].sum()),
            shared=True,
            gain="at most",
            evidence=_facts(table),
            next=_ADVICE.get(most[0], "Overlap the copies with kernels on a second stream, or avoid them."),
        )
    pageable = table.filter(pl.col("host_memory") == "pageable")
    if mean_share(pageable, table) >= PAGEABLE_WORTH_SAYING:
        yield Finding(
            name="copies-pageable",
            claim=f"{_hidden_by_nothing(pageable)}: pageable host memory.",
            ns_in_steps=int(pageable["in_steps"].sum()),
            shared=True,
            gain="at most",
            evidence=_facts(pageable),
            next="Pin the host's memory: `DataLoader(pin_memory=True)` and `.to(device, non_blocking=True)`; "
            "pageable copies are staged, and make the host wait.",
        )


_ADVICE = {
    "host to device": "Copy ahead on a second stream from pinned memory (`non_blocking=True`), "
    "or keep on the device what is copied again in every step.",
    "device to host": "Look for `.item()`, `.cpu()`, logging or offloading in the step; copy less often, or "
    "on a second stream into pinned memory.",
    "memset": "Look for buffers that are zeroed in every step; `set_to_none=True` spares those of gradients.",
}


def _hidden_by_nothing(rows: pl.DataFrame) -> str:
    exposed, time = rows.select(pl.col("exposed", "time").sum()).row(0)
    return f"{milliseconds(exposed)} of the {milliseconds(time)} of copying hides behind nothing"


def _facts(rows: pl.DataFrame) -> tuple[str, ...]:
    """What was copied and how fast, a line per direction and kind of memory."""
    kinds = rows.group_by("direction", "host_memory").agg(pl.col("copies", "bytes", "time").sum())
    facts: list[str] = []
    by_time = kinds.sort("time", "direction", "host_memory", descending=[True, False, False])
    for row in by_time.head(5).to_dicts():
        fact = f"{row['direction']}, host memory {row['host_memory']}: {row['copies']:,} copies"
        if row["bytes"] and row["time"]:
            fact += f", {row['bytes']:,} bytes at {row['bytes'] / row['time']:.2f} GB/s"
        facts.append(fact)
    return tuple(facts)
