"""Which counters are of network cards and switches, which of NVLink, and which mean congestion."""

from __future__ import annotations

import polars as pl

from lostflops.tables import Counters

# Nsight Systems' ports are called so by our reader; the others are of `lostflops monitor`.
PORTS = r"^(?:nic|switch)\d+ port "
NETWORK = r"^(?:network|nic)_"
NVLINK = r"(?i)nvlink"
CONGESTED = r"(?i)wait|congest|pause|\bcnp|_cnp|ecn|out_of_sequence|retrans|retry|drop|discard"


def of_network(counters: Counters) -> pl.LazyFrame:
    """Samples of network ports with a `rate`: what is added per second, a level as it is."""
    named, instance = pl.col("metric").cast(pl.String), pl.col("instance").cast(pl.String)
    return with_rate(
        counters.filter(named.str.contains(NETWORK) | instance.str.contains(PORTS).fill_null(False))
    )


def with_rate(counters: pl.LazyFrame) -> pl.LazyFrame:
    ns, added = pl.col("end") - pl.col("start"), pl.col("added").fill_null(False)
    rate = pl.when(added).then(1e9 * pl.col("value") / ns).otherwise("value")
    return counters.filter(ns > 0).with_columns(
        pl.col("metric", "instance", "unit").cast(pl.String), rate=rate
    )
