"""What is wrong with the links of the machines that a job runs on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import polars as pl

from lostflops.columns import Id, Name, Text
from lostflops.finding import Finding
from lostflops.recipe import Example, recipe
from lostflops.tables import TopologyDevices, TopologyLinks

from .fault_words import FAULTS
from .worse_links import of_devices, of_links

# What the user of a machine can change; what its links are like is with its administrator.
REMEDIES = {"process far from its GPU": ("numa-binding",)}
MOST_NAMED = 6


@recipe(
    question="Is a link, a port or a placement worse than the machine allows?",
    scope="job",
    columns={
        "rank": Id("first rank on that machine, 0 when unknown"),
        "fault": Name("what is wrong"),
        "subject": Name("which device, pair or port"),
        "found": Text("what it is"),
        "expected": Text("what its neighbours have, or what was asked for"),
    },
    examples=[
        Example(
            "one pair goes through the CPUs and cannot read each other's memory, one has fewer links",
            given={
                "topology_devices": [{"kind": "gpu", "name": f"GPU{n}"} for n in range(3)],
                "topology_links": [
                    {
                        "matrix": matrix,
                        "device": f"GPU{a}",
                        "peer": f"GPU{b}",
                        "code": code,
                        "num_links": many,
                    }
                    for matrix, a, b, code, many in (
                        ("path", 0, 1, "NV18", 18),
                        ("path", 0, 2, "NV17", 17),
                        ("path", 1, 2, "SYS", None),
                        ("read", 0, 1, "OK", None),
                        ("read", 1, 2, "TNS", None),
                        ("write", 1, 2, "TNS", None),
                    )
                ],
            },
            expect=[
                {
                    "rank": 0,
                    "fault": "fewer NVLinks",
                    "subject": "GPU0-GPU2",
                    "found": "NV17",
                    "expected": "NV18",
                },
                {"rank": 0, "fault": "no P2P", "subject": "GPU1-GPU2", "found": "TNS", "expected": "OK"},
                {
                    "rank": 0,
                    "fault": "pair without NVLink",
                    "subject": "GPU1-GPU2",
                    "found": "SYS",
                    "expected": "NV18",
                },
            ],
        ),
        Example(
            "a port is down, another at half rate; the nearest card of one GPU is across the host",
            given={
                "topology_devices": [
                    {"rank": 8, "kind": "port", "name": f"mlx5_{n}", "port": 1, "layer": "InfiniBand"}
                    | {"state": state, "physical": physical, "rate": rate}
                    for n, state, physical, rate in (
                        (0, "active", "linkup", 400.0),
                        (1, "active", "linkup", 200.0),
                        (2, "down", "polling", 10.0),
                    )
                ],
                "topology_links": [
                    {"rank": 8, "matrix": "path", "device": device, "peer": peer, "code": code}
                    for device, peer, code in (
                        ("GPU0", "mlx5_0", "PXB"),
                        ("GPU0", "mlx5_1", "SYS"),
                        ("GPU1", "mlx5_0", "NODE"),
                        ("GPU1", "mlx5_1", "SYS"),
                    )
                ],
            },
            expect=[
                {
                    "rank": 8,
                    "fault": "NIC far",
                    "subject": "GPU1",
                    "found": "NODE to mlx5_0",
                    "expected": "PXB, as others have",
                },
                {
                    "rank": 8,
                    "fault": "port down",
                    "subject": "mlx5_2 port 1",
                    "found": "down, polling",
                    "expected": "active",
                },
                {
                    "rank": 8,
                    "fault": "port slow",
                    "subject": "mlx5_1 port 1",
                    "found": "200 Gb/s",
                    "expected": "400 Gb/s",
                },
            ],
        ),
        Example(
            "lanes and links that are missing, and a process on the other socket",
            given={
                "topology_devices": [
                    {"kind": "gpu", "name": "GPU0", "lanes": 8, "most_lanes": 16, "cpus": "0-3"},
                    {"kind": "nvlink", "name": "GPU0", "port": 0, "state": "active"},
                    {"kind": "nvlink", "name": "GPU0", "port": 1, "state": "inactive"},
                    {"kind": "nvlink", "name": "GPU1", "port": 0, "state": "inactive"},
                    {"kind": "process", "name": "rank 0", "port": 0, "cpus": "4-7"},
                    {"kind": "process", "name": "rank 1", "port": 0, "cpus": "3-7"},
                ],
            },
            expect=[
                {"rank": 0, "fault": "NVLink inactive", "subject": "GPU0 link 1"}
                | {"found": "inactive", "expected": "active"},
                {"rank": 0, "fault": "PCIe lanes missing", "subject": "GPU0", "found": "8", "expected": "16"},
                {"rank": 0, "fault": "process far from its GPU", "subject": "rank 0"}
                | {"found": "CPUs 4-7", "expected": "CPUs 0-3 of GPU0"},
            ],
        ),
        Example(
            "a stated rate that the fabric does not have",
            given={
                "topology_devices": [
                    {"kind": "port", "name": "mlx5_0", "port": 1, "layer": "Ethernet", "state": "active"}
                    | {"rate": 100.0}
                ]
            },
            options={"expected_rate": 200},
            expect=[
                {"rank": 0, "fault": "port slow", "subject": "mlx5_0 port 1"}
                | {"found": "100 Gb/s", "expected": "200 Gb/s"}
            ],
        ),
    ],
)
def topology_faults(
    topology_devices: TopologyDevices,
    topology_links: TopologyLinks | None,
    *,
    expected_rate: Annotated[int, "Gb/s that each active network port should have; 0: as its neighbours"] = 0,
) -> pl.LazyFrame:
    """List what is worse than its neighbours: pairs of GPUs, network ports, placement.

    A machine is compared with itself, so a fault that all its devices share is seen only when the rate was
    stated. Whether a fault costs anything depends on what the job sends over it.
    """
    found = [*of_devices(topology_devices, expected_rate)]
    if topology_links is not None:
        found += of_links(topology_links)
    return pl.concat(found).unique().sort("rank", "fault", "subject", "found")


def _finding(fault: str) -> str:
    return f"topology-{fault.lower().replace(' ', '-')}"


def links_are_worse_than_they_could_be(table: pl.DataFrame, fault: str) -> Iterator[Finding]:
    """What of a link or device is not as it could be, one finding a kind of fault."""
    kinds = (
        table.filter(pl.col("fault") == fault)
        .sort("fault", "rank", "subject")
        .group_by("fault", maintain_order=True)
        .agg(
            many=pl.struct("rank", "subject").n_unique(),
            said=pl.format("{} is {}, not {}", "subject", "found", "expected").head(MOST_NAMED),
        )
    )
    for row in kinds.iter_rows(named=True):
        one, several, remedy, doubt = FAULTS[fault]
        more = row["many"] - len(row["said"])
        yield Finding(
            name=_finding(fault),
            claim=f"{row['many']} {one if row['many'] == 1 else several}.",
            gain="unknown",
            evidence=(*row["said"], *([f"and {more} more"] if more > 0 else [])),
            next=remedy,
            doubt=doubt,
        )


for _fault in sorted(FAULTS):
    topology_faults.finding(
        name=_finding(_fault),
        also=REMEDIES.get(_fault, ()),
        none_known=""
        if _fault in REMEDIES
        else "It is a matter of the machine: its administrator can change it.",
    )(partial(links_are_worse_than_they_could_be, fault=_fault))
