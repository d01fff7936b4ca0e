"""Whether GPUs that look busy draw the power of ones that work."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Id, Number, Time
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.means import weighted_mean
from lostflops.tables import Counters

BUSY = 90  # % utilisation
IDLE_WITHIN = 1.15  # of the power at which the same GPU idles
LITTLE = 0.6  # of the power limit
FEW_SMS = 50  # % of the multiprocessors
# A finding needs this share of the busy time.
SOME, MOST = 0.05, 0.5
SAMPLED = {
    "gpu_utilisation": "utilisation",
    "gpu_power": "power",
    "gpu_sm_active": "sm_active",
    "gpu_tensor_active": "tensor_active",
}


@recipe(
    question="Do busy GPUs draw the power of GPUs that compute?",
    scope="rank",
    columns={
        "rank": Id("rank"),
        "device": Id("GPU, as its node counts them"),
        "sampled": Time("time for which both utilisation and power were sampled"),
        "busy": Time("of it, with a utilisation of at least 90 %"),
        "like_idle": Time(
            "busy time with the power at which this GPU idles, within 15 %, and fewer than half of "
            "the multiprocessors busy where that was measured; null when it was never seen idle"
        ),
        "little": Time(
            "other busy time below 60 % of the power limit, or with fewer than half of the "
            "multiprocessors busy; null when neither is known"
        ),
        "utilisation": Number("mean utilisation", unit="%"),
        "power": Number("mean power", unit="W"),
        "busy_power": Number("mean power while busy", unit="W"),
        "idle_power": Number("median power of samples in which no kernel ran; null without such", unit="W"),
        "power_limit": Number("lowest power limit", unit="W"),
        "sm_active": Number(
            "mean share of multiprocessors busy while the GPU was; null when not measured", unit="%"
        ),
        "tensor_active": Number(
            "mean activity of tensor cores while the GPU was busy; null when not measured", unit="%"
        ),
        "energy": Number("energy by the GPU's own counter", unit="J"),
    },
    plot=Bars(x="device", y=("like_idle", "little")),
    examples=[
        Example(
            "a GPU idles at 100 W, waits at 110 W with full utilisation, works at 400 and at 650 W",
            given={
                "counters": [
                    {"device": 3, "metric": metric, "start": start, "end": end, "value": value}
                    for start, end, utilisation, power in (
                        (0, 10, 0, 100),
                        (10, 40, 100, 110),
                        (40, 45, 99, 400),
                        (45, 65, 95, 650),
                    )
                    for metric, value in (("gpu_utilisation", utilisation), ("gpu_power", power))
                ]
                + [
                    {"device": 3, "metric": "gpu_power_limit", "start": 0, "end": 65, "value": 700},
                    {"device": 3, "metric": "gpu_energy", "start": 0, "end": 65, "value": 23},
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "device": 3,
                    "sampled": 65,
                    "busy": 55,
                    "like_idle": 30,
                    "little": 5,
                    "utilisation": 5395 / 65,
                    "power": 19300 / 65,
                    "busy_power": 18300 / 55,
                    "idle_power": 100.0,
                    "power_limit": 700.0,
                    "sm_active": None,
                    "tensor_active": None,
                    "energy": 23.0,
                }
            ],
        ),
        Example(
            "where multiprocessors are counted, few of them tell waiting from work at low power",
            given={
                "counters": [
                    {"device": 0, "metric": metric, "start": start, "end": end, "value": value}
                    for start, end, *values in ((0, 40, 100, 300, 12, 4), (40, 50, 97, 310, 80, 44))
                    for metric, value in zip(
                        ("gpu_utilisation", "gpu_power", "gpu_sm_active", "gpu_tensor_active"),
                        values,
                        strict=True,
                    )
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "device": 0,
                    "sampled": 50,
                    "busy": 50,
                    "like_idle": None,
                    "little": 40,
                    "utilisation": 99.4,
                    "power": 302.0,
                    "busy_power": 302.0,
                    "idle_power": None,
                    "power_limit": None,
                    "sm_active": 25.6,
                    "tensor_active": 12.0,
                    "energy": None,
                }
            ],
        ),
    ],
)
def gpu_power(counters: Counters) -> pl.LazyFrame:
    """Compare each GPU's utilisation with its power, sample by sample.

    Utilisation is the time in which some kernel ran, and one that spins in a collective runs. Power tells it
    from work: by the level at which the same GPU idles, as far as the samples hold it, and by its limit.
    """
    gpu = ["rank", "device"]
    named = counters.with_columns(pl.col("metric").cast(pl.String))
    samples = (
        named.filter(pl.col("metric").is_in(list(SAMPLED)))
        .group_by(*gpu, "start", "end")
        .agg(pl.col("value").filter(pl.col("metric") == m).first().alias(c) for m, c in SAMPLED.items())
        .filter(pl.col("utilisation").is_not_null() & pl.col("power").is_not_null())
        .with_columns(_ns=pl.col("end") - pl.col("start"))
    )
    idle = samples.filter(pl.col("utilisation") == 0).group_by(gpu).agg(idle_power=pl.col("power").median())
    facts = named.group_by(gpu).agg(
        power_limit=pl.col("value").filter(pl.col("metric") == "gpu_power_limit").min(),
        energy=pl.when((pl.col("metric") == "gpu_energy").any()).then(
            pl.col("value").filter(pl.col("metric") == "gpu_energy").sum()
        ),
    )
    power, limit, sm, ns = (pl.col(c) for c in ("power", "power_limit", "sm_active", "_ns"))
    busy = pl.col("utilisation") >= BUSY
    few = (sm < FEW_SMS).fill_null(False)
    like_idle = (
        busy & (power <= IDLE_WITHIN * pl.col("idle_power")) & (sm.is_null() | (sm < FEW_SMS))
    ).fill_null(False)
    little = busy & ~like_idle & (few | (power < LITTLE * limit).fill_null(False))
    return (
        samples.join(idle, on=gpu, how="left", nulls_equal=True)
        .join(facts, on=gpu, how="left", nulls_equal=True)
        .group_by(gpu)
        .agg(
            sampled=ns.sum(),
            busy=ns.filter(busy).sum(),
            like_idle=pl.when(pl.col("idle_power").is_not_null().any()).then(ns.filter(like_idle).sum()),
            little=pl.when(limit.is_not_null().any() | sm.is_not_null().any()).then(ns.filter(little).sum()),
            utilisation=_mean("utilisation", pl.lit(True)),
            power=_mean("power", pl.lit(True)),
            busy_power=_mean("power", busy),
            idle_power=pl.col("idle_power").first(),
            power_limit=limit.first(),
            sm_active=_mean("sm_active", busy),
            tensor_active=_mean("tensor_active", busy),
            energy=pl.col("energy").first(),
        )
        .sort(gpu)
    )


def _mean(column: str, of: pl.Expr) -> pl.Expr:
    """The mean over time of those samples that have a value; null without any."""
    chosen = of & pl.col(column).is_not_null()
    return weighted_mean(pl.col(column), pl.col("_ns"), chosen)


@gpu_power.finding(
    name="busy-but-idle-power",
    none_known="The GPU waits or spins there: the accounts of the ledger say for what.",
)
def busy_gpus_idle(table: pl.DataFrame) -> Iterator[Finding]:
    return _no_work(table, "like_idle", "busy-but-idle-power", SOME, "drew the power of idle ones")


@gpu_power.finding(name="busy-but-little-work", also=("batch-size", "compile"))
def busy_gpus_do_little(table: pl.DataFrame) -> Iterator[Finding]:
    says = "drew little power or kept few multiprocessors busy"
    return _no_work(table, "little", "busy-but-little-work", MOST, says)


def _no_work(table: pl.DataFrame, column: str, name: str, least: float, says: str) -> Iterator[Finding]:
    """Utilisation that is not work."""
    known = table.filter(pl.col(column).is_not_null())
    busy, lost = int(known["busy"].sum()), int(known[column].sum())
    if not busy or lost < least * busy:
        return
    worst = known.sort(column, "rank", "device", descending=[True, False, False]).row(0, named=True)
    gpu = f"GPU {worst['device']} of rank {worst['rank']}"
    part = f"{milliseconds(worst[column])} of {milliseconds(worst['busy'])} busy"
    evidence = [f"{gpu}: {part}, at {worst['busy_power']:.0f} W on average"]
    if worst["idle_power"] is not None:
        evidence.append(f"it idles at {worst['idle_power']:.0f} W")
    if worst["power_limit"] is not None:
        evidence.append(f"its limit is {worst['power_limit']:.0f} W")
    if worst["sm_active"] is not None:
        evidence.append(f"{worst['sm_active']:.0f} % of its multiprocessors were busy on average")
    yield Finding(
        name=name,
        claim=f"For {percent(lost, busy)} of the time in which GPUs look busy they {says}.",
        gain="unknown",
        evidence=tuple(evidence),
        next="Utilisation counts kernels that only wait: look at communication-wait and "
        "communication-imbalance, then at kernel-summary for small kernels.",
        doubt=""
        if worst["sm_active"] is not None
        else "Activity of multiprocessors was not measured; work that waits for memory draws little too.",
    )
