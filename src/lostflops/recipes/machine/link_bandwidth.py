"""How much of what a link could give was measured on it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lostflops.columns import Id, Name, Number, Ratio, Share
from lostflops.finding import Finding, percent
from lostflops.recipe import Bars, Example, recipe
from lostflops.tables import Bandwidths, TopologyDevices, TopologyLinks

# What a healthy link gives of its raw rate at least; headers and flow control take the rest.
ENOUGH = {"host link": 0.8, "GPU pair": 0.7, "GPUs of a machine": 0.7, "network": 0.7}
SAID = {
    "host link": "its PCIe link",
    "GPU pair": "the NVLinks between them",
    "GPUs of a machine": "the GPUs' NVLinks",
    "network": "the machine's network ports",
}
COPIES = ["host to device", "device to host"]
GB_PER_GBIT = 1 / 8
GPU = r"^GPU\d+$"


@recipe(
    question="Do the links reach their nominal bandwidth?",
    scope="job",
    plot=Bars(x="subject", y=("measured", "raw")),
    columns={
        "rank": Id("first rank on the machine, 0 when unknown"),
        "link": Name("host link, GPU pair, GPUs of a machine, or network"),
        "subject": Name("which GPU, pair, or group of ranks"),
        "operation": Name("what was measured"),
        "measured": Number("best that was measured; of collectives the bus bandwidth", unit="GB/s"),
        "raw": Number("raw rate of the link in one direction", unit="GB/s"),
        "share": Ratio("the first as a share of the second"),
        "enough": Share("share that a healthy link reaches at least"),
    },
    examples=[
        Example(
            "a GPU on half of its lanes, and pairs of which one is slow",
            given={
                "topology_devices": [
                    {"kind": "gpu", "name": "GPU0", "rate": 256.0},
                    *(
                        {
                            "kind": "nvlink",
                            "name": f"GPU{gpu}",
                            "port": port,
                            "state": "active",
                            "rate": 200.0,
                        }
                        for gpu in range(2)
                        for port in range(4)
                    ),
                ],
                "topology_links": [
                    {"matrix": "path", "device": "GPU0", "peer": "GPU1", "code": "NV4", "num_links": 4},
                    {"matrix": "path", "device": "GPU1", "peer": "GPU0", "code": "NV4", "num_links": 4},
                ],
                "bandwidths": [
                    {"operation": operation, "device": device, "peer": peer, "host_memory": memory}
                    | {"algorithm_bandwidth": rate, "both": both}
                    for operation, device, peer, memory, rate, both in (
                        ("host to device", "GPU0", None, "pinned", 12.0, False),
                        ("host to device", "GPU0", None, "pinned", 24.0, False),
                        ("host to device", "GPU0", None, "pinned", 27.0, True),
                        ("host to device", "GPU0", None, "pageable", 28.0, False),
                        ("peer to peer", "GPU0", "GPU1", None, 90.0, None),
                        ("peer to peer", "GPU1", "GPU0", None, 25.0, None),
                    )
                ],
            },
            expect=[
                {"rank": 0, "link": "GPU pair", "subject": "GPU1 to GPU0", "operation": "peer to peer"}
                | {"measured": 25.0, "raw": 100.0, "share": 0.25, "enough": 0.7},
                {"rank": 0, "link": "host link", "subject": "GPU0", "operation": "host to device"}
                | {"measured": 24.0, "raw": 32.0, "share": 0.75, "enough": 0.8},
                {"rank": 0, "link": "GPU pair", "subject": "GPU0 to GPU1", "operation": "peer to peer"}
                | {"measured": 90.0, "raw": 100.0, "share": 0.9, "enough": 0.7},
            ],
        ),
        Example(
            "all-reduce inside a machine goes over NVLink, across machines over its ports that are up",
            given={
                "topology_devices": [
                    *(
                        {"rank": 4, "kind": "nvlink", "name": f"GPU{gpu}", "port": port}
                        | {"state": "active", "rate": 200.0}
                        for gpu, ports in ((0, 4), (1, 3))
                        for port in range(ports)
                    ),
                    {"rank": 4, "kind": "port", "name": "mlx5_0", "state": "active", "rate": 400.0},
                    {"rank": 4, "kind": "port", "name": "mlx5_1", "state": "down", "rate": 400.0},
                ],
                "bandwidths": [
                    {"rank": 4, "operation": "all-reduce", "backend": "nccl", "group_size": size}
                    | {"hosts": hosts, "bytes": 1000, "bus_bandwidth": rate}
                    for size, hosts, rate in ((2, 1, 30.0), (2, 1, 60.0), (4, 2, 10.0), (2, 2, 11.0))
                ],
            },
            expect=[
                {"rank": 4, "link": "network", "subject": "4 ranks on 2 hosts", "operation": "all-reduce"}
                | {"measured": 10.0, "raw": 50.0, "share": 0.2, "enough": 0.7},
                {"rank": 4, "link": "GPUs of a machine", "subject": "2 ranks on 1 host"}
                | {"operation": "all-reduce", "measured": 60.0, "raw": 75.0, "share": 0.8, "enough": 0.7},
            ],
        ),
    ],
)
def link_bandwidth(
    bandwidths: Bandwidths, topology_devices: TopologyDevices, topology_links: TopologyLinks | None
) -> pl.LazyFrame:
    """Compare the best measured bandwidth of each link with the link's raw rate, the worst first.

    NVLinks and network ports count at the rate their tools tell, PCIe at that of its lanes and generation. In
    a group that spans machines several ranks of each one share its ports. In-network reduction and links that
    no tool told of can make a share exceed 1.
    """
    rows = [_host_links(bandwidths, topology_devices), *_groups(bandwidths, topology_devices)]
    if topology_links is not None:
        rows.append(_pairs(bandwidths, topology_devices, topology_links))
    return (
        pl.concat(rows)
        .filter((pl.col("raw") > 0) & (pl.col("measured") > 0))
        .with_columns(
            share=pl.col("measured") / pl.col("raw"),
            enough=pl.col("link").replace_strict(ENOUGH, return_dtype=pl.Float64),
        )
        .select(*link_bandwidth.columns)
        .sort("share", "rank", "link", "subject", "operation")
    )


def _row(frame: pl.LazyFrame, link: str, subject: pl.Expr) -> pl.LazyFrame:
    names = ("rank", "link", "subject", "operation", "measured", "raw")
    return frame.with_columns(link=pl.lit(link), subject=subject).select(*names)


def _host_links(bandwidths: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    raw = devices.filter(kind="gpu").select("rank", device="name", raw=pl.col("rate") * GB_PER_GBIT)
    alone = ~pl.col("both").fill_null(False)
    best = (
        bandwidths.filter(pl.col("operation").is_in(COPIES) & (pl.col("host_memory") == "pinned") & alone)
        .group_by("rank", "device", "operation")
        .agg(measured=pl.col("algorithm_bandwidth").max())
    )
    return _row(best.join(raw, on=["rank", "device"]), "host link", pl.col("device"))


def _nvlinks(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Per GPU the rate of one of its active NVLinks, and of all of them, GB/s."""
    rate = pl.col("rate") * GB_PER_GBIT
    return (
        devices.filter((pl.col("kind") == "nvlink") & (pl.col("state") == "active"))
        .group_by("rank", device="name")
        .agg(_one=rate.mean(), _all=rate.sum())
    )


def _pairs(bandwidths: pl.LazyFrame, devices: pl.LazyFrame, links: pl.LazyFrame) -> pl.LazyFrame:
    paths = links.filter((pl.col("matrix") == "path") & pl.col("num_links").is_not_null())
    raw = paths.join(_nvlinks(devices), on=["rank", "device"]).select(
        "rank", "device", "peer", raw=pl.col("num_links") * pl.col("_one")
    )
    best = (
        bandwidths.filter(pl.col("operation") == "peer to peer")
        .group_by("rank", "device", "peer", "operation")
        .agg(measured=pl.col("algorithm_bandwidth").max())
    )
    joined = best.join(raw, on=["rank", "device", "peer"])
    return _row(joined, "GPU pair", pl.format("{} to {}", "device", "peer"))


def _groups(bandwidths: pl.LazyFrame, devices: pl.LazyFrame) -> Iterator[pl.LazyFrame]:
    best = (
        bandwidths.filter((pl.col("operation") == "all-reduce") & (pl.col("backend") == "nccl"))
        .group_by("rank", "group_size", "hosts", "operation")
        .agg(measured=pl.col("bus_bandwidth").max())
    )
    ranks = pl.format("{} ranks on {} host", "group_size", "hosts")
    inside = _nvlinks(devices).group_by("rank").agg(raw=pl.col("_all").min())
    here = best.filter((pl.col("hosts") == 1) & (pl.col("group_size") > 1)).join(inside, on="rank")
    yield _row(here, "GPUs of a machine", ranks)
    ports = (
        devices.filter((pl.col("kind") == "port") & (pl.col("state") == "active"))
        .group_by("rank")
        .agg(raw=pl.col("rate").sum() * GB_PER_GBIT)
    )
    # One rank of a machine alone does not use all of its ports.
    across = best.filter((pl.col("hosts") > 1) & (pl.col("group_size") > pl.col("hosts"))).join(
        ports, on="rank"
    )
    yield _row(across, "network", pl.format("{}s", ranks))


@link_bandwidth.finding(name="link-below-its-rate", also=("numa-binding",))
def links_give_less_than_they_could(table: pl.DataFrame) -> Iterator[Finding]:
    for row in table.filter(pl.col("share") < pl.col("enough")).head(3).to_dicts():
        yield Finding(
            name="link-below-its-rate",
            claim=f"{row['operation'].capitalize()} of {row['subject']} reached {percent(row['share'], 1)} "
            f"of the raw rate of {SAID[row['link']]}.",
            gain="unknown",
            evidence=(
                f"{row['measured']:.1f} GB/s were measured, {row['raw']:.1f} GB/s is the raw rate",
                f"a healthy one reaches {percent(row['enough'], 1)} at least",
            ),
            next="See what `lostflops topology` warns of; check that buffers lay on the GPU's memory node, "
            "that P2P and GPUDirect RDMA are on, and that nothing else used the link.",
        )
