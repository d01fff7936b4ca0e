"""How collectives compare with what `lostflops bench collectives` measured on the same machines."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Bytes, Count, Name, Number, Ratio, Text, Time, Typical
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipe import Example, Points, Rows, recipe
from lostflops.tables import Bandwidths, Ranks

from .bandwidth import bus_factor, measured_times

# Slower than this share of the measured bandwidth, for this share of the step, is worth a finding.
SLOW = 0.8
WORTH_SAYING = 0.01
BACKENDS = {"NCCL": "nccl", "RCCL": "nccl", "gloo": "gloo"}


def _job(sent: int, ends: tuple[int, ...]) -> dict[str, Rows]:
    """An all-reduce over two ranks of one host for each end, each begun 100 ns after the one before."""
    return {
        "collectives": [
            {"rank": rank, "start": 100 * n + 7 * rank, "end": 100 * n + end, "kind": "all-reduce"}
            | {"bytes_in": sent, "group": "dp", "group_size": 2, "library": "NCCL", "dtype": "bf16"}
            for n, end in enumerate(ends)
            for rank in range(2)
        ],
        "ranks": [{"rank": rank, "world_size": 2, "host": 0} for rank in range(2)],
        "steps": [{"rank": rank, "start": 0, "end": 100 * len(ends)} for rank in range(2)],
    }


def _measured(*points: tuple[int, int], hosts: int = 1) -> Rows:
    return [
        {"operation": "all-reduce", "backend": "nccl", "group_size": 2, "hosts": hosts, "correct": True}
        | {"bytes": size, "time": time}
        for size, time in points
    ]


@recipe(
    question="Do collectives reach the bandwidth that was measured on these machines?",
    scope="job",
    plot=Points(x="bytes", y="reached_share", log=True),
    columns={
        "group": Name("process group; null when unknown"),
        "kind": Name("operation"),
        "library": Name("library that ran it"),
        "dtype": Name("element type; null when unknown"),
        "bytes": Bytes("size as nccl-tests counts it"),
        "group_size": Count("ranks that take part"),
        "hosts": Count("machines that they ran on; null when unknown"),
        "calls": Count("executions, each rank's counted"),
        "latency": Typical("median over operations of their shortest stay on any rank"),
        "expected": Typical(
            "what was measured at that size; between two measured sizes on the line that joins their "
            "logarithms"
        ),
        "bus_bandwidth": Number("reached", unit="GB/s"),
        "expected_bandwidth": Number("measured", unit="GB/s"),
        "reached_share": Ratio("the first as a share of the second"),
        "no_expectation": Text("why there is nothing to compare"),
        "lost_per_step": Time("transfer per step beyond what was measured, mean of ranks"),
        "step_share": Ratio("the same as a share of step time"),
    },
    examples=[
        Example(
            "an all-reduce takes twice as long as it was measured between the sizes around it",
            given={**_job(4000, (67,)), "bandwidths": _measured((1000, 15), (16000, 60), (64000, 240))},
            expect=[
                {
                    "group": "dp",
                    "kind": "all-reduce",
                    "library": "NCCL",
                    "dtype": "bf16",
                    "bytes": 4000,
                    "group_size": 2,
                    "hosts": 1,
                    "calls": 2,
                    "latency": 60,
                    "expected": 30,
                    "bus_bandwidth": 4000 / 60,
                    "expected_bandwidth": 4000 / 30,
                    "reached_share": 0.5,
                    "no_expectation": None,
                    "lost_per_step": 30,
                    "step_share": 0.3,
                }
            ],
        ),
        Example(
            "what is larger than all that was measured is expected at the bandwidth of the largest",
            given={**_job(8000, (67, 47)), "bandwidths": _measured((500, 3), (2000, 10))},
            expect=[
                {"latency": 50, "expected": 40, "reached_share": 0.8, "lost_per_step": 20, "step_share": 0.1}
            ],
        ),
        Example(
            "what was measured across machines says nothing of ranks on one",
            given={**_job(8000, (67,)), "bandwidths": _measured((500, 3), hosts=2)},
            expect=[
                {
                    "expected": None,
                    "reached_share": None,
                    "no_expectation": "all-reduce among 2 ranks on 1 host was not measured with nccl",
                    "lost_per_step": None,
                }
            ],
        ),
        Example(
            "what is smaller than all that was measured is expected to take as long as the smallest",
            given={**_job(10, (9,)), "bandwidths": _measured((500, 3), (2000, 10))},
            expect=[{"latency": 2, "expected": 3, "reached_share": 1.5, "lost_per_step": 0}],
        ),
    ],
)
def communication_expected(
    communication_summary: pl.LazyFrame,
    bandwidths: Bandwidths,
    communication_matches: pl.LazyFrame,
    ranks: Ranks,
) -> pl.LazyFrame:
    """Compare what collectives took with the measured time at their size, group size and number of machines.

    The measurement ran alone: while a step computes, communication shares the GPU's multiprocessors and
    memory with it, and a little less is no fault. A measurement whose result was wrong is not used.
    """
    kinds = ["group", "kind", "library", "dtype", "bytes", "group_size"]
    texts = {c: pl.col(c).cast(pl.String) for c in ("group", "kind", "library")}
    rows = (
        communication_summary.filter(pl.col("bytes") > 0)
        .with_columns(_mean=pl.col("step_share"))
        .drop("step_share")
        .join(_hosts(communication_matches, ranks), on=["group", "group_size"], how="left", nulls_equal=True)
        .with_columns(
            backend=texts["library"].replace_strict(BACKENDS, default=None, return_dtype=pl.String),
            operation=pl.when(texts["kind"].is_in(["send", "receive"]))
            .then(pl.lit("send-receive"))
            .otherwise(texts["kind"]),
        )
        .with_row_index("_row")
    )
    expected = measured_times(rows, bandwidths)
    reached = pl.col("expected") / pl.col("latency")
    lost = (1 - pl.col("reached_share")).clip(0)
    where = pl.format("{} among {} ranks", "operation", "group_size")
    hosts = pl.when(pl.col("hosts") == 1).then(pl.lit("1 host")).otherwise(pl.format("{} hosts", "hosts"))
    return (
        rows.join(expected, on="_row", how="left")
        .with_columns(
            reached_share=pl.when(pl.col("latency") > 0).then(reached),
            expected_bandwidth=pl.when(pl.col("expected") > 0).then(
                pl.col("bytes") / pl.col("expected") * bus_factor(pl.col("operation"), pl.col("group_size"))
            ),
        )
        .with_columns(
            expected=pl.col("expected").round().cast(pl.Int64),
            lost_per_step=(pl.col("per_step") * lost).round().cast(pl.Int64),
            step_share=pl.col("_mean") * lost,
            no_expectation=pl.when(pl.col("backend").is_null())
            .then(
                pl.format("lostflops does not measure {}", texts["library"].fill_null("an unknown library"))
            )
            .when(pl.col("_ambiguous").fill_null(False))
            .then(pl.lit("it was measured on one machine and across several, and where this ran is unknown"))
            .when(pl.col("expected").is_null())
            .then(
                pl.format(
                    "{}{} was not measured with {}",
                    where,
                    pl.concat_str(pl.lit(" on "), hosts).fill_null(""),
                    "backend",
                )
            )
            .when(pl.col("latency").is_null())
            .then("no_bandwidth"),
        )
        .select(*communication_expected.columns)
        .sort("lost_per_step", *kinds, descending=[True] + [False] * len(kinds), nulls_last=True)
    )


def _hosts(matches: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.LazyFrame:
    """On how many machines the members of each group ran; null when one of them is not here."""
    host = pl.col("host")
    return (
        matches.select("rank", "group", group_size=pl.coalesce("group_size", "members").cast(pl.Int64))
        .unique()
        .join(ranks.select("rank", "host").unique("rank", keep="first"), on="rank", how="left")
        .group_by("group", "group_size")
        .agg(
            # Ranks of several groups of one name are counted together: then there are more of them.
            hosts=pl.when(
                host.is_not_null().all() & (pl.len() >= pl.col("group_size").first().fill_null(1))
            ).then(host.n_unique().cast(pl.Int64))
        )
    )


@communication_expected.finding(name="communication-slower-than-measured", also=("node-placement",))
def collectives_are_slower_than_measured(table: pl.DataFrame) -> Iterator[Finding]:
    slow = table.filter((pl.col("reached_share") < SLOW) & (pl.col("step_share") >= WORTH_SAYING))
    for row in slow.sort("lost_per_step", descending=True, maintain_order=True).head(3).to_dicts():
        where = f" in group {row['group']}" if row["group"] else ""
        yield Finding(
            name="communication-slower-than-measured",
            claim=f"{str(row['kind']).capitalize()} of {row['bytes']:,} bytes among {row['group_size']} ranks"
            f"{where} reaches {percent(row['reached_share'], 1)} of the bandwidth that was measured for it.",
            ns_per_step=row["lost_per_step"],
            gain="at most",
            evidence=(
                f"it takes {milliseconds(row['latency'])}, and {milliseconds(row['expected'])} were measured",
                f"{row['bus_bandwidth']:.1f} of {row['expected_bandwidth']:.1f} GB/s bus bandwidth",
            ),
            next="Measure again on the nodes of this job; if they still give it, look for other traffic, for "
            "compute that starves the communication kernels, and for NCCL settings that differ.",
            doubt="the measurement ran alone, and maybe on another day",
        )
