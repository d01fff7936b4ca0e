"""Whether something held the GPUs' clocks down."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Id, Number, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.tables import Counters

# What holds clocks down, in the words of the driver. Idling and clocks that were chosen do no harm.
HEAT = ("software thermal", "hardware thermal")
POWER = ("power cap",)
HARDWARE = ("hardware slowdown", "power brake")
SOME = 0.05


@recipe(
    question="Did heat, power or hardware lower the GPUs' clocks?",
    scope="rank",
    columns={
        "rank": Id("rank"),
        "device": Id("GPU, as its node counts them"),
        "sampled": Time("time for which the reasons were sampled"),
        "heat": Time("of it, held down for the temperature of chip or memory"),
        "power": Time("held down by the power limit"),
        "hardware": Time("held down by the board: slowdown or power brake"),
        "clock": Number("mean clock of the multiprocessors", unit="MHz"),
        "highest": Number("highest clock that was read", unit="MHz"),
        "temperature": Number("highest temperature of the chip; null when not read", unit="°C"),
    },
    plot=Bars(x="device", y=("heat", "power", "hardware")),
    examples=[
        Example(
            "a GPU grows too hot for a quarter of the time, after a while at its power limit",
            given={
                "counters": [
                    {
                        "device": 2,
                        "metric": "gpu_clock_reason",
                        "instance": reason,
                        "start": start,
                        "end": end,
                        "value": reason in held,
                    }
                    for start, end, held in (
                        (0, 20, ()),
                        (20, 27, ("power cap",)),
                        (27, 30, ("power cap", "hardware slowdown")),
                        (30, 40, ("software thermal", "hardware thermal")),
                    )
                    for reason in ("power cap", "software thermal", "hardware thermal", "hardware slowdown")
                ]
                + [
                    {"device": 2, "metric": "gpu_sm_clock", "start": s, "end": e, "value": v}
                    for s, e, v in ((0, 30, 1980), (30, 40, 1200))
                ]
                + [{"device": 2, "metric": "gpu_temperature", "start": 30, "end": 40, "value": 88}]
            },
            expect=[
                {
                    "rank": 0,
                    "device": 2,
                    "sampled": 40,
                    "heat": 10,
                    "power": 10,
                    "hardware": 3,
                    "clock": 1785.0,
                    "highest": 1980.0,
                    "temperature": 88.0,
                }
            ],
        ),
        Example(
            "a GPU at its power limit all the time",
            given={
                "counters": [
                    {"metric": "gpu_clock_reason", "instance": "power cap", "device": 0, "end": 5, "value": 1}
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "device": 0,
                    "sampled": 5,
                    "heat": 0,
                    "power": 5,
                    "hardware": 0,
                    "clock": None,
                    "highest": None,
                    "temperature": None,
                }
            ],
        ),
    ],
)
def gpu_clocks(counters: Counters) -> pl.LazyFrame:
    """Add up for how long each reason held a GPU's clocks down.

    Several reasons may hold at once, so the columns do not add up. A GPU that trains at its power limit is
    used as it was meant; one that is slowed down for its heat is not.
    """
    gpu, value = ["rank", "device"], pl.col("value")
    named = counters.with_columns(
        pl.col("metric", "instance").cast(pl.String), _ns=pl.col("end") - pl.col("start")
    )
    reason, metric, ns = pl.col("instance"), pl.col("metric"), pl.col("_ns")

    def held(reasons: tuple[str, ...]) -> pl.Expr:
        return (reason.is_in(list(reasons)) & (value > 0)).any()

    # Reasons of one sample are several rows of one time.
    samples = (
        named.filter(metric == "gpu_clock_reason")
        .group_by(*gpu, "start", "end")
        .agg(ns.first(), heat=held(HEAT), power=held(POWER), hardware=held(HARDWARE))
        .group_by(gpu)
        .agg(
            sampled=ns.sum(),
            **{kind: ns.filter(pl.col(kind)).sum() for kind in ("heat", "power", "hardware")},
        )
    )
    clock = metric == "gpu_sm_clock"
    levels = named.group_by(gpu).agg(
        clock=weighted_mean(value, ns, clock),
        highest=value.filter(clock).max(),
        temperature=value.filter(metric == "gpu_temperature").max(),
    )
    return (
        samples.join(levels, on=gpu, how="left", nulls_equal=True)
        .select(*gpu, "sampled", "heat", "power", "hardware", "clock", "highest", "temperature")
        .sort(gpu)
    )


@gpu_clocks.finding(name="gpu-clocks-held-down", also=("rank-exclusion",))
def clocks_are_held_down(table: pl.DataFrame) -> Iterator[Finding]:
    """What should not happen to a GPU that is cooled and fed as it should be."""
    slowed = table.with_columns(_lost=pl.max_horizontal("heat", "hardware")).filter(
        pl.col("_lost") > SOME * pl.col("sampled")
    )
    if slowed.is_empty():
        return
    worst = slowed.sort("_lost", "rank", "device", descending=[True, False, False]).row(0, named=True)
    why = "heat" if worst["heat"] >= worst["hardware"] else "the board's own protection"
    evidence = [f"{milliseconds(worst['_lost'])} of the {milliseconds(worst['sampled'])} that were sampled"]
    if worst["clock"] is not None:
        evidence.append(f"mean clock {worst['clock']:.0f} MHz, highest {worst['highest']:.0f} MHz")
    if worst["temperature"] is not None:
        evidence.append(f"the chip reached {worst['temperature']:.0f} °C")
    if slowed.height > 1:
        evidence.append(f"{slowed.height} GPUs in all are held down")
    yield Finding(
        name="gpu-clocks-held-down",
        claim=f"GPU {worst['device']} of rank {worst['rank']} was slowed down by {why} for "
        f"{percent(worst['_lost'], worst['sampled'])} of the time.",
        gain="unknown",
        evidence=tuple(evidence),
        next="Have the node's cooling and power supply looked at, or leave it out: in a job of many ranks "
        "the others wait for it.",
    )
