"""Errors that GPUs, links and network cards counted during the run."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Count, Id, Instant, Name, Time
from lostflops.finding import Finding, milliseconds
from lostflops.recipe import Bars, Example, Shows, recipe
from lostflops.tables import Counters

# What each costs: work that is lost or wrong, or time.
GRAVE = ("gpu_ecc_uncorrected", "nic_link_downed")
ERRORS = (
    *GRAVE,
    "gpu_ecc_corrected",
    "gpu_pcie_replay",
    "gpu_nvlink_errors",
    "nic_symbol_error",
    "nic_link_error_recovery",
    "nic_local_link_integrity_errors",
    "nic_excessive_buffer_overrun_errors",
    "nic_port_rcv_errors",
    "nic_port_xmit_discards",
    "nic_out_of_sequence",
    "nic_packet_seq_err",
    "nic_local_ack_timeout_err",
    "nic_rnr_nak_retry_err",
    "nic_retrans_timeout_events",
    "nic_rx_drops",
    "nic_impaired_remote_conn_events",
    "nic_unresponsive_remote_events",
    "network_receive_errors",
    "network_send_errors",
)


@recipe(
    question="Did GPUs, links or network cards report errors?",
    scope="job",  # the worst of all ranks comes first
    columns={
        "rank": Id("rank; of a network card the first of its node"),
        "device": Id("GPU; null for network cards"),
        "metric": Name("which error, as the monitor names it"),
        "instance": Name("link, port or interface; null for a GPU as a whole"),
        "errors": Count("how many were added"),
        "start": Instant("start of the first interval in which one was"),
        "end": Instant("end of the last"),
        "sampled": Time("time for which it was watched"),
    },
    plot=Bars(x="metric", y=("errors",)),
    examples=[
        Example(
            "a port went down once, a GPU replayed packets, and another counted nothing",
            given={
                "counters": [
                    {"metric": "nic_link_downed", "instance": "mlx5_0:1", "start": s, "end": e, "value": v}
                    for s, e, v in ((0, 10, 0), (10, 21, 1), (21, 30, 0))
                ]
                + [
                    {"metric": "gpu_pcie_replay", "device": 3, "start": s, "end": e, "value": v}
                    for s, e, v in ((1, 11, 4), (11, 22, 5))
                ]
                + [{"metric": "gpu_pcie_replay", "device": 4, "start": 0, "end": 9, "value": 0}]
            },
            expect=[
                {
                    "rank": 0,
                    "device": None,
                    "metric": "nic_link_downed",
                    "instance": "mlx5_0:1",
                    "errors": 1,
                    "start": 10,
                    "end": 21,
                    "sampled": 30,
                },
                {
                    "rank": 0,
                    "device": 3,
                    "metric": "gpu_pcie_replay",
                    "instance": None,
                    "errors": 9,
                    "start": 1,
                    "end": 22,
                    "sampled": 21,
                },
            ],
        ),
    ],
)
def hardware_errors(counters: Counters) -> pl.LazyFrame:
    """List every error counter that counted something while the monitor ran, the gravest first.

    Only what was added counts: a card may have been up for months. What no monitor read is not here.
    """
    of = ["rank", "device", "metric", "instance"]
    happened = pl.col("value") > 0
    return (
        counters.with_columns(pl.col("metric", "instance").cast(pl.String))
        .filter(pl.col("metric").is_in(list(ERRORS)))
        .group_by(of)
        .agg(
            errors=pl.col("value").sum().round().cast(pl.Int64),
            start=pl.col("start").filter(happened).min(),
            end=pl.col("end").filter(happened).max(),
            sampled=(pl.col("end") - pl.col("start")).sum(),
        )
        .filter(pl.col("errors") > 0)
        .sort(~pl.col("metric").is_in(list(GRAVE)), *of)
    )


@hardware_errors.finding(name="grave-hardware-errors", also=("rank-exclusion",))
def hardware_loses_work(table: pl.DataFrame) -> Iterator[Finding]:
    if table["metric"].is_in(list(GRAVE)).any():
        yield _counted("grave-hardware-errors", table)


@hardware_errors.finding(
    name="hardware-errors",
    also=("rank-exclusion",),
    examples=[
        Shows(
            "a link that had to resend 17 packets",
            rows=[{"rank": 3, "device": 1, "metric": "gpu_pcie_replay", "errors": 17, "sampled": 2_000_000}],
            claim="GPU 1 of rank 3's node counted 17 × gpu_pcie_replay in 2.00 ms.",
        )
    ],
)
def hardware_counts_errors(table: pl.DataFrame) -> Iterator[Finding]:
    if not table["metric"].is_in(list(GRAVE)).any():
        yield _counted("hardware-errors", table)


def _counted(name: str, table: pl.DataFrame) -> Finding:
    """Errors that lose work or time, one finding for all."""
    first = table.row(0, named=True)
    where = f"GPU {first['device']}" if first["device"] is not None else "a network card"
    instance = f" ({first['instance']})" if first["instance"] else ""
    evidence = tuple(
        f"rank {row['rank']}, {'host' if row['device'] is None else 'GPU ' + str(row['device'])}: "
        f"{row['metric']}{' of ' + row['instance'] if row['instance'] else ''} {row['errors']:,}"
        for row in table.head(5).iter_rows(named=True)
    )
    return Finding(
        name=name,
        claim=f"{where[0].upper()}{where[1:]}{instance} of rank {first['rank']}'s node counted "
        f"{first['errors']:,} × {first['metric']} in {milliseconds(first['sampled'])}.",
        gain="unknown",
        evidence=evidence,
        next="Look whether the same device counts on in other runs: a link that resends costs every rank "
        "that waits for it. Errors of memory that were not corrected call for another GPU.",
    )
