"""How much time copies between host and device take, and how much of it nothing hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import polars as pl

from lostflops import intervals
from lostflops.columns import Bytes, Count, Id, Name, Number, Share, Time
from lostflops.finding import Finding, Gain, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.steps.totals import added_up, mean_share, nothing_elsewhere, num_ranks, per_step
from lostflops.tables import Copies

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
        "bytes_in_steps": Bytes("bytes of those, as far as they were recorded; null when none were"),
        "bandwidth_in_steps": Number("the bandwidth of those alone", unit="GB/s"),
        "hidden_in_steps": Time("hidden time inside steps"),
        "in_steps": Time("exposed time inside steps"),
        "per_step": Time("exposed time per step"),
        "step_share": Share("share of the rank's step time in which these copies are exposed"),
        "idle_in_calls": Time(
            "time inside steps in which the device does nothing from the start of a launching call to "
            "its end, or to the copy's start if later; null where a launch was not recorded"
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
                    "copies_in_steps": 1,
                    "bytes_in_steps": 32,
                    "bandwidth_in_steps": 8.0,
                    "hidden_in_steps": 3,
                    "in_steps": 1,
                    "per_step": 0,
                    "step_share": 1 / 95,
                    "idle_in_calls": None,
                    "idle_share": None,
                    "idle_per_step": None,
                    "held": None,
                    "at_most": None,
                    "beside": 78,
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
                    {"start": 51, "end": 54, "bytes": 9},
                ],
                "steps": [{"start": 0, "end": 50}],
            },
            expect=[
                {
                    "rank": 0,
                    "direction": "unknown",
                    "host_memory": "unknown",
                    "copies": 3,
                    "bytes": 609,
                    "time": 60,
                    "bandwidth": 609 / 33,
                    "hidden": 0,
                    "exposed": 40,
                    "copies_in_steps": 2,
                    "bytes_in_steps": 600,
                    "bandwidth_in_steps": 20.0,
                    "hidden_in_steps": 0,
                    "in_steps": 37,
                    "per_step": 37,
                    "step_share": 0.74,
                    "idle_in_calls": None,
                    "idle_share": None,
                    "idle_per_step": None,
                    "held": None,
                    "at_most": None,
                    "beside": 50,
                }
            ],
        ),
        Example(
            "a rank that copies nothing says so, since the mean rank that a finding is about copies less",
            given={
                "copies": [{"start": 3, "end": 17, "launch_start": 0, "launch_end": 2}],
                "steps": [{"start": 0, "end": 40}, {"rank": 1, "start": 0, "end": 20}],
                "ranks": [{"rank": 0}, {"rank": 1}],
            },
            expect=[
                {
                    "rank": 0,
                    "direction": "unknown",
                    "host_memory": "unknown",
                    "copies": 1,
                    "in_steps": 14,
                    "per_step": 14,
                    "step_share": 14 / 40,
                    "idle_in_calls": 3,
                    "at_most": 17,
                },
                {
                    "rank": 1,
                    "direction": None,
                    "host_memory": None,
                    "copies": 0,
                    "in_steps": 0,
                    "per_step": 0,
                    "step_share": 0.0,
                    "idle_in_calls": 0,
                    "at_most": 0,
                },
            ],
        ),
    ],
)
def copy_summary_by_time(
    copies: Copies, gpu_activity: pl.LazyFrame, step_totals: pl.LazyFrame, busiest_stream: pl.LazyFrame
) -> pl.LazyFrame:
    """Add up each rank's copies by direction and kind of host memory, the most exposed first.

    Copies that carry a collective are communication and left out. When two kinds of copy are exposed at one
    time, both say so: over all kinds the exposed time can exceed the ledger's. `at_most` bounds what can
    be saved by hiding the copies and by taking their calls off the host's way. A rank with steps that copies
    nothing has one row, without a direction.
    """
    kinds = ["rank", "direction", "host_memory"]
    moved = _marked(copies.filter(~pl.col("communication")), gpu_activity)
    summed = moved.group_by(kinds).agg(
        copies=pl.len().cast(pl.Int64),
        bytes=_known_bytes(pl.lit(True)),
        time=_length().sum(),
        _timed=_length().filter(pl.col("bytes").is_not_null()).sum(),
        _timed_in_steps=_length().filter(pl.col("bytes").is_not_null() & pl.col("_in_step")).sum(),
        copies_in_steps=pl.col("_in_step").sum().cast(pl.Int64),
        bytes_in_steps=_known_bytes(pl.col("_in_step")),
        _launched=(pl.col("launch_start").is_not_null() | ~pl.col("_in_step")).all(),
    )
    alone = (pl.col("compute") == 0) & (pl.col("communication") == 0)
    inside, idle = pl.col("in_step") > 0, alone & (pl.col("copies") == 0)
    begin, end = pl.col("launch_start"), pl.col("launch_end")
    ran = {"hidden": ~alone, "exposed": alone, "hidden_in_steps": ~alone & inside, "in_steps": alone & inside}
    spans = (
        (pl.col("start"), pl.col("end"), ran),
        (begin, pl.max_horizontal(end, "start"), {"idle_in_calls": idle & inside}),
        (begin, end, {"_busy": ~idle & inside}),
        # In its own call a copy is exposed, not other work.
        (pl.max_horizontal(begin, "start"), pl.min_horizontal(end, "end"), {"_own": alone & inside}),
    )
    whole = summed
    for first, last, parts in spans:
        span = intervals.union(moved.with_columns(start=first, end=last), kinds)
        sums = intervals.inside(span, gpu_activity, parts).group_by(kinds).agg(pl.col(list(parts)).sum())
        whole = whole.join(sums, on=kinds, how="left").with_columns(pl.col(list(parts)).fill_null(0))
    nothing = ("copies", "bytes", "time", "hidden", "exposed", "copies_in_steps", "bytes_in_steps", "held",
               "hidden_in_steps", "in_steps", "idle_in_calls", "idle_per_step", "at_most")  # fmt: skip
    bounded = _with_bound(whole, step_totals, busiest_stream)
    every = nothing_elsewhere(bounded, step_totals, nothing).with_columns(
        idle_share=pl.when(pl.col("copies") == 0).then(0.0).otherwise("idle_share")
    )
    return (
        per_step(every, step_totals, "in_steps")
        .select(*copy_summary_by_time.columns)
        .sort("rank", "exposed", *kinds[1:], descending=[False, True, False, False])
    )


def _marked(copies: pl.LazyFrame, activity: pl.LazyFrame) -> pl.LazyFrame:
    """The copies, and whether each runs inside a step; one of no length is where it starts."""
    last = pl.max_horizontal("end", pl.col("start") + 1)
    touched = copies.with_columns(_end=pl.col("end"), end=last)
    return (
        intervals.inside(touched, activity, {"_in_step": pl.col("in_step") > 0})
        .with_columns(pl.col("_in_step") > 0, end=pl.col("_end"))
        .drop("_end")
    )


def _length() -> pl.Expr:
    return pl.col("end") - pl.col("start")


def _known_bytes(which: pl.Expr) -> pl.Expr:
    known = which & pl.col("bytes").is_not_null()
    return pl.when(known.any()).then(pl.col("bytes").filter(known).sum())


def _with_bound(whole: pl.LazyFrame, totals: pl.LazyFrame, busiest: pl.LazyFrame) -> pl.LazyFrame:
    """The rates, and what would be saved if all copies hid and their calls took no time.

    A chain of events that wait for each other gets shorter by no more than the copies and the calls on it,
    hidden or not: what hides a copy need not be what waits for it. The work of the busiest stream remains.
    """
    calls = ("idle_in_calls", "held")
    return (
        whole.join(busiest.select("rank", beside="beside_kernels"), on="rank", how="left")
        .join(totals, on="rank", how="left")
        .with_columns(
            bandwidth=pl.when(pl.col("_timed") > 0).then(pl.col("bytes") / pl.col("_timed")),
            bandwidth_in_steps=pl.when(pl.col("_timed_in_steps") > 0).then(
                pl.col("bytes_in_steps") / pl.col("_timed_in_steps")
            ),
            held=pl.max_horizontal(pl.col("_busy") - pl.col("_own"), 0),
        )
        .with_columns(pl.when("_launched").then(pl.col(calls)))
        .with_columns(
            idle_share=pl.when(pl.col("step_time") > 0).then(pl.col("idle_in_calls") / pl.col("step_time")),
            idle_per_step=pl.when(pl.col("steps") > 0).then(pl.col("idle_in_calls") // pl.col("steps")),
            # Null where the calls are: the least of two numbers would be the other.
            at_most=pl.when("_launched").then(
                pl.min_horizontal(
                    pl.col("in_steps") + pl.col("hidden_in_steps") + pl.col("idle_in_calls") + pl.col("held"),
                    "beside",
                )
            ),
        )
        .drop("steps", "step_time")
    )


@copy_summary_by_time.finding(name="copies-exposed", also=("pinned-copies",))
def copies_cost_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    """One finding for all copies, with advice for the direction that costs most."""
    if mean_share(table, table) >= WORTH_SAYING:
        most = _costliest(table)
        yield Finding(
            name="copies-exposed",
            claim=f"Copies that nothing hides cost {_cost(table)}, most of it {most}.",
            evidence=(_hidden_by_nothing(table), *_facts(table), *_held(table), *added_up(table)),
            next=_ADVICE.get(most, "Overlap the copies with kernels on a second stream, or avoid them."),
            shared=True,
            accounts=("copy",),
            **_gain(table, table),
        )


@copy_summary_by_time.finding(name="copies-pageable", remedies=("pinned-copies",), edit="pinned")
def pageable_copies_cost_step_time(table: pl.DataFrame) -> Iterator[Finding]:
    pageable = table.filter(pl.col("host_memory") == "pageable")
    idle = float(pageable["idle_share"].sum()) / num_ranks(table)
    if mean_share(pageable, table) + idle >= PAGEABLE_WORTH_SAYING:
        yield Finding(
            name="copies-pageable",
            claim=f"Copies from or to pageable memory cost {_cost(pageable, table)}.",
            evidence=(_hidden_by_nothing(pageable), *_facts(pageable), *_held(pageable), *added_up(pageable)),
            next=_PINNING.get(_costliest(pageable), _PINNING["host to device"]),
            shared=True,
            accounts=("copy",),
            **_gain(pageable, table),
        )


_PINNING = {
    "host to device": "Pin the host's memory: `DataLoader(pin_memory=True)` and "
    "`.to(device, non_blocking=True)`; pageable copies are staged, and make the host wait.",
    "device to host": "Copy into pinned memory with `non_blocking=True`, and read it once an event says that "
    "it is there; pageable copies, as of `.item()` and `.cpu()`, make the host wait.",
}

_ADVICE = {
    "host to device": "Copy ahead on a second stream from pinned memory (`non_blocking=True`), "
    "or keep on the device what is copied again in every step.",
    "device to host": "Look for `.item()`, `.cpu()`, logging or offloading in the step; copy less often, or "
    "on a second stream into pinned memory.",
    "memset": "Look for buffers that are zeroed in every step: `torch.zeros`, gradients that are zeroed in "
    "place for a CUDA graph, a framework's flat gradient buffers.",
}


class _Gain(TypedDict):
    ns_in_steps: int
    cost_per_step: int
    gain: Gain
    doubt: str


def _hidden_by_nothing(rows: pl.DataFrame) -> str:
    exposed, hidden, copies = rows.select(pl.col("in_steps", "hidden_in_steps", "copies_in_steps").sum()).row(
        0
    )
    whose = f"{copies:,} copies take" if copies > 1 else "one copy takes"
    said = f"nothing hides {milliseconds(exposed)} of the {milliseconds(exposed + hidden)} that {whose}"
    idle = int(rows["idle_in_calls"].sum())
    return f"{said}, and the GPU idles another {milliseconds(idle)} in calls that copy" if idle else said


def _cost(rows: pl.DataFrame, table: pl.DataFrame | None = None) -> str:
    """What the copies cost now, per step of a mean rank and as a share."""
    ranks = max(1, (rows if table is None else table)["rank"].n_unique())
    share = (float(rows["step_share"].sum()) + float(rows["idle_share"].sum())) / ranks
    return f"{milliseconds(_now(rows, ranks))} per step ({percent(min(1.0, share), 1)})"


def _now(rows: pl.DataFrame, ranks: int) -> int:
    """Exposed time and idle time in calls per step, mean of ranks, ns."""
    return (int(rows["per_step"].sum()) + int(rows["idle_per_step"].sum())) // ranks


def _costliest(rows: pl.DataFrame) -> str:
    """The direction in which copies and their calls cost most inside steps."""
    by = rows.group_by("direction").agg(pl.col("in_steps").sum() + pl.col("idle_in_calls").sum())
    return by.sort("in_steps", "direction").row(-1)[0]


def _gain(rows: pl.DataFrame, table: pl.DataFrame) -> _Gain:
    """What these copies cost now, and at most, which only recorded launches tell."""
    now = _now(rows, num_ranks(table))
    if rows["at_most"].null_count():
        doubt = "Launches of some copies were not recorded: the cost of their calls is not known."
        return {"ns_in_steps": 0, "cost_per_step": now, "gain": "unknown", "doubt": doubt}
    by_rank = rows.group_by("rank").agg(pl.col("at_most").sum(), pl.col("beside").max())
    bound = by_rank.select(pl.min_horizontal("at_most", "beside").sum()).item()
    return {"ns_in_steps": int(bound), "cost_per_step": now, "gain": "at most", "doubt": ""}


def _facts(rows: pl.DataFrame) -> tuple[str, ...]:
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
        fact = f"{row['direction']}, host memory {row['host_memory']}: {row['copies_in_steps']:,} copies"
        if row["bytes_in_steps"] and row["_timed"]:
            fact += f", {row['bytes_in_steps']:,} bytes at {row['bytes_in_steps'] / row['_timed']:.2f} GB/s"
        facts.append(fact)
    return tuple(facts)


def _held(rows: pl.DataFrame) -> Iterator[str]:
    """What the calls may cost elsewhere."""
    held = int(rows["held"].sum())
    if held:
        yield f"their calls hold the host for {milliseconds(held)} while the device does other work"
