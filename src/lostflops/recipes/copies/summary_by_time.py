"""How much time copies between host and device take, and how much of it nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Share, Time
from lostflops.finding import Finding, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.compute.activity import overlaid
from lostflops.recipes.steps.totals import added_up, mean_share, num_ranks, per_step
from lostflops.tables import Copies

from .beside_work import on_every_rank, summed, with_bound
from .cost import PAGES, PINNING, advice, cost, costliest, directions, facts, gain, held, hidden_by_nothing

# Share of the step from which exposed copies are worth a finding (TraceLens: 5 % in one direction).
WORTH_SAYING = 0.05
# Pageable memory also makes the host wait, so a smaller share is worth a look.
PAGEABLE_WORTH_SAYING = 0.01


@recipe(
    question="How much time do copies take, by direction and kind of host memory?",
    scope="rank",
    plot=Bars(x="direction", y=("hidden", "exposed"), stacked=True),
    columns={
        "rank": Id("rank"),
        "direction": Name("from where to where"),
        "host_memory": Name("kind of memory on the host's side"),
        "copies": Count("number of copies, memsets or migrations"),
        "bytes": Bytes("bytes moved, as far as they were recorded; null when none were"),
        "time": Time("durations added up"),
        "bandwidth": Number("bytes / time over the copies with known bytes (a GB is 10⁹ bytes)", unit="GB/s"),
        "hidden": Time("time in which one of them and a kernel or communication runs"),
        "exposed": Time("time in which one of them runs and neither kernel nor communication"),
        "copies_in_steps": Count("number of them that run inside steps, wholly or in part"),
        "values_in_steps": Count("of those, copies of 64 KiB at most to the host, as reading a value makes"),
        "bytes_in_steps": Bytes("bytes of those, as far as they were recorded; null when none were"),
        "bandwidth_in_steps": Number("the bandwidth of those alone", unit="GB/s"),
        "hidden_in_steps": Time("hidden time inside steps"),
        "in_steps": Time("exposed time inside steps"),
        "per_step": Time("exposed time per step"),
        "step_share": Share("share of the rank's step time in which these copies are exposed"),
        "hidden_share": Share("share of the rank's step time in which these copies run beside other work"),
        "idle_in_calls": Time(
            "time inside steps, from a launching call on, in which the device does nothing before the copy "
            "or, up to the call's end, after it; null where a launch was not recorded"
        ),
        "idle_share": Share("idle_in_calls / step time"),
        "idle_per_step": Time("idle_in_calls per step"),
        "held": Time("time inside steps in which a launching call holds the host, the device at other work"),
        "at_most": Time(
            "the most that the rank's steps could lose without these copies and their calls: hidden "
            "copies count too, since other streams and the host may wait behind them"
        ),
        "beside": Time(
            "time inside steps in which the stream with most kernels runs none: what all copies of "
            "the rank cost at most"
        ),
    },
    examples=[
        Example(
            "two pageable batches, whose calls cost 9 ns idle and hold the host for 2; one pinned result",
            given={
                "copies": [
                    {"start": 0, "end": 40, "bytes": 200, "direction": "host to device"}
                    | {"host_memory": "pageable", "launch_start": -9, "launch_end": 43},
                    {"start": 50, "end": 60, "bytes": 70, "direction": "host to device"}
                    | {"host_memory": "pageable", "launch_start": 44, "launch_end": 58},
                    {"start": 70, "end": 74, "bytes": 32, "direction": "device to host"}
                    | {"host_memory": "pinned"},
                ],
                "kernels": [{"start": 1, "end": 3}, {"start": 56, "end": 73}],
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
                    "hidden": 6,
                    "exposed": 44,
                    "copies_in_steps": 2,
                    "bytes_in_steps": 270,
                    "bandwidth_in_steps": 5.4,
                    "hidden_in_steps": 4,
                    "in_steps": 41,
                    "per_step": 20,
                    "step_share": 41 / 95,
                    "idle_in_calls": 9,
                    "idle_share": 9 / 95,
                    "idle_per_step": 4,
                    "held": 2,
                    "at_most": 56,
                    "beside": 78,
                },
                {"rank": 0, "direction": "device to host", "host_memory": "pinned", "copies": 1, "bytes": 32}
                | {"time": 4, "bandwidth": 8.0, "hidden": 3, "exposed": 1, "copies_in_steps": 1}
                | {"values_in_steps": 1, "bytes_in_steps": 32, "bandwidth_in_steps": 8.0, "in_steps": 1}
                | {"hidden_in_steps": 3, "per_step": 0, "step_share": 1 / 95, "beside": 78}
                | dict.fromkeys(("idle_in_calls", "idle_share", "idle_per_step", "held", "at_most")),
            ],
        ),
        Example(
            "two copies at once are exposed once; the one without bytes is not in the bandwidth",
            given={
                "copies": [
                    {"start": 0, "end": 30, "bytes": 600},
                    {"start": 10, "end": 37},
                    {"start": 40, "end": 48, "bytes": 50, "communication": True},
                    {"start": 51, "end": 54, "bytes": 9},
                ],
                "steps": [{"start": 0, "end": 50}],
            },
            expect=[
                {"rank": 0, "direction": "unknown", "host_memory": "unknown", "copies": 3, "bytes": 609}
                | {"time": 60, "bandwidth": 609 / 33, "hidden": 0, "exposed": 40, "copies_in_steps": 2}
                | {"bytes_in_steps": 600, "bandwidth_in_steps": 20.0, "hidden_in_steps": 0, "in_steps": 37}
                | {"per_step": 37, "step_share": 0.74, "idle_in_calls": None, "idle_share": None}
                | {"idle_per_step": None, "held": None, "at_most": None, "beside": 50}
            ],
        ),
        Example(
            "pages of managed memory move beside a kernel, which may wait for them",
            given={
                "copies": [
                    {"start": 20, "end": 33, "direction": "migration to device", "host_memory": "managed"},
                    {"start": 38, "end": 46, "direction": "migration to device", "host_memory": "managed"},
                ],
                "kernels": [{"start": 5, "end": 44}],
                "steps": [{"start": 0, "end": 50}],
            },
            expect=[{"copies": 2, "hidden_in_steps": 19, "hidden_share": 0.38, "in_steps": 2}],
        ),
        Example(
            "no kernels were recorded: nothing hides a copy",
            given={"copies": [{"start": 3, "end": 17}], "steps": [{"start": 0, "end": 20}]},
            expect=[{"copies": 1, "hidden": 0, "exposed": 14, "in_steps": 14, "step_share": 14 / 20}],
        ),
        Example(
            "a rank that copies nothing says so, since the mean rank that a finding is about copies less",
            given={
                "copies": [{"start": 3, "end": 17, "launch_start": 0, "launch_end": 2}],
                "steps": [{"start": 0, "end": 40}, {"rank": 1, "start": 0, "end": 20}],
                "ranks": [{"rank": 0}, {"rank": 1}],
            },
            expect=[
                {"rank": 0, "direction": "unknown", "host_memory": "unknown", "copies": 1, "in_steps": 14}
                | {"per_step": 14, "step_share": 14 / 40, "idle_in_calls": 3, "at_most": 17},
                {"rank": 1, "direction": None, "host_memory": None, "copies": 0, "in_steps": 0}
                | {"per_step": 0, "step_share": 0.0, "hidden_share": 0.0, "idle_in_calls": 0, "at_most": 0},
            ],
        ),
    ],
)
def copy_summary_by_time(
    copies: Copies,
    gpu_activity: pl.LazyFrame | None,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
    busiest_stream: pl.LazyFrame,
) -> pl.LazyFrame:
    """Add up each rank's copies by direction and kind of host memory, the most exposed first.

    Copies that carry a collective are communication and left out. When two kinds of copy are exposed at one
    time, both say so: over all kinds the exposed time can exceed the ledger's. `at_most` bounds what can
    be saved by hiding the copies and by taking their calls off the host's way. A rank with steps that copies
    nothing has one row, without a direction.
    """
    kinds = ["rank", "direction", "host_memory"]
    activity = overlaid(counted_steps, None, None, copies) if gpu_activity is None else gpu_activity
    whole = summed(copies.filter(~pl.col("communication")), activity, kinds)
    every = on_every_rank(with_bound(whole, step_totals, busiest_stream), step_totals)
    return (
        per_step(every, step_totals, "in_steps")
        .select(*copy_summary_by_time.columns)
        .sort("rank", "exposed", *kinds[1:], descending=[False, True, False, False])
    )


@copy_summary_by_time.finding(name="copies-exposed", also=("pinned-copies",))
def copies_cost_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    """One finding for all copies, with advice for the direction that costs most."""
    if mean_share(table, table) >= WORTH_SAYING:
        then, remedies = advice(table, costliest(table))
        yield Finding(
            name="copies-exposed",
            claim=f"Copies that nothing hides cost {cost(table)}, {directions(table)}.",
            evidence=(hidden_by_nothing(table), *facts(table), *held(table), *added_up(table)),
            next=then,
            remedies=remedies,
            shared=True,
            accounts=("copy",),
            **gain(table, table),
        )


@copy_summary_by_time.finding(name="copies-pageable", remedies=("pinned-copies",), edit="pinned")
def pageable_copies_cost_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    pageable = table.filter(pl.col("host_memory") == "pageable")
    idle = float(pageable["idle_share"].sum()) / num_ranks(table)
    if mean_share(pageable, table) + idle >= PAGEABLE_WORTH_SAYING:
        most = costliest(pageable)
        yield Finding(
            name="copies-pageable",
            claim=f"Copies from or to pageable memory cost {cost(pageable, table)}.",
            evidence=(hidden_by_nothing(pageable), *facts(pageable), *held(pageable), *added_up(pageable)),
            next=PINNING.get(most, PINNING["host to device"]),
            remedies=() if most == "device to host" else None,  # a loader's memory is not where they go
            shared=True,
            accounts=("copy",),
            **gain(pageable, table),
        )


@copy_summary_by_time.finding(name="pages-move-beside-kernels", also=("unified-memory",))
def pages_are_missed(table: pl.DataFrame) -> Iterator[Finding]:
    """Pages that move beside kernels cost nothing where a prefetch asked for them, and else kernels' time."""
    pages = table.filter(pl.col("direction").cast(pl.String).str.starts_with("migration"))
    share = float(pages["hidden_share"].sum()) / num_ranks(table)
    if share >= WORTH_SAYING:
        yield Finding(
            name="pages-move-beside-kernels",
            claim=f"Managed memory moves while kernels run, for {percent(share, 1)} of step time: a kernel "
            "that misses a page waits.",
            gain="unknown",
            evidence=facts(pages),
            next=PAGES,
            doubt="Pages that a prefetch moves in time make no kernel wait.",
            shared=True,
        )
