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

# What the user of a machine can change; what its links are like is with its administrator.
REMEDIES = {"process far from its GPU": ("numa-binding",)}
# From near to far, as nvidia-smi calls them.
NEARNESS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
FAR, FARTHEST = 4, 5
MOST_NAMED = 6
GPU = r"^GPU\d+$"

# Claim after the number of subjects (one, several), what to do, and why it may be nothing.
FAULTS = {
    "pair without NVLink": (
        "pair of GPUs has no NVLink, while others have",
        "pairs of GPUs have no NVLink, while others have",
        (
            "Look at `nvidia-smi nvlink -s` and the kernel log for links that are down; keep groups that "
            "talk much, such as tensor-parallel ones, on pairs that have NVLink."
        ),
        "some machines are built so",
    ),
    "fewer NVLinks": (
        "pair of GPUs has fewer NVLinks than others of its machine",
        "pairs of GPUs have fewer NVLinks than others of their machine",
        "Look at `nvidia-smi nvlink -s` for links that are down, and drain the node if they are.",
        "some machines are built so",
    ),
    "NVLink inactive": (
        "NVLink is inactive, while others of its GPU are active",
        "NVLinks are inactive, while others of their GPU are active",
        "Look at `nvidia-smi nvlink -s` and the kernel log, and drain the node.",
        "",
    ),
    "no P2P": (
        "pair of GPUs cannot reach each other's memory: what they exchange goes through the host's",
        "pairs of GPUs cannot reach each other's memory: what they exchange goes through the host's",
        (
            "TNS and CNS come from where the cards sit, DR from a driver setting; PCIe access control (ACS, "
            "IOMMU) in the BIOS can also forbid it."
        ),
        "consumer GPUs cannot do it at all (GNS)",
    ),
    "NIC far": (
        "GPU has no network card near it",
        "GPUs have no network card near them",
        (
            "Its traffic crosses the host's interconnect: use the node's other cards (NCCL_IB_HCA), or let "
            "a GPU with a near card carry what leaves the node."
        ),
        "",
    ),
    "port down": (
        "network port is not active",
        "network ports are not active",
        "Check cable and switch, and that the subnet manager runs.",
        "a port that is not cabled on purpose is no fault",
    ),
    "port slow": (
        "network port is slower than expected",
        "network ports are slower than expected",
        "Check cable, transceiver and switch port: a bad lane halves the rate.",
        "a port for storage or management may be slower on purpose, and ports may be bonded or split",
    ),
    "PCIe lanes missing": (
        "GPU uses fewer PCIe lanes than it has",
        "GPUs use fewer PCIe lanes than they have",
        "Reseat the card or its riser; copies to and from the host run at a fraction of their rate.",
        "some slots are wired with fewer lanes",
    ),
    "process far from its GPU": (
        "process may run on no CPU near its GPU",
        "processes may run on no CPU near their GPU",
        (
            "Bind it: `srun --cpu-bind`, `numactl --cpunodebind`, `torchrun --numa-binding=node` "
            "(`exclusive` leaves loader workers without cores), or `accelerate launch --enable_cpu_affinity`."
        ),
        "",
    ),
}


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
    found = [*_of_devices(topology_devices, expected_rate)]
    if topology_links is not None:
        found += _of_links(topology_links)
    return pl.concat(found).unique().sort("rank", "fault", "subject", "found")


def _faults(
    frame: pl.LazyFrame, fault: str, subject: pl.Expr, found: pl.Expr, expected: pl.Expr
) -> pl.LazyFrame:
    return frame.select("rank", fault=pl.lit(fault), subject=subject, found=found, expected=expected)


def _of_links(links: pl.LazyFrame) -> Iterator[pl.LazyFrame]:
    number = pl.col("device", "peer").str.extract(r"(\d+)$").cast(pl.Int64)
    pair = pl.format("GPU{}-GPU{}", pl.min_horizontal(number), pl.max_horizontal(number))
    between_gpus = pl.all_horizontal(pl.col("device", "peer").str.contains(GPU))
    gpus = links.filter(between_gpus).with_columns(_pair=pair)
    most = pl.col("num_links").max().over("rank")
    paths = gpus.filter(pl.col("matrix") == "path").with_columns(_most=most)
    best = pl.format("NV{}", "_most")
    bare = pl.col("num_links").is_null() & pl.col("_most").is_not_null()
    yield _faults(paths.filter(bare), "pair without NVLink", pl.col("_pair"), pl.col("code"), best)
    fewer = paths.filter(pl.col("num_links") < pl.col("_most"))
    yield _faults(fewer, "fewer NVLinks", pl.col("_pair"), pl.col("code"), best)
    peers = gpus.filter(pl.col("matrix").is_in(["read", "write"]) & (pl.col("code") != "OK"))
    yield _faults(peers, "no P2P", pl.col("_pair"), pl.col("code"), pl.lit("OK"))
    near = pl.col("code").replace_strict(NEARNESS, default=None, return_dtype=pl.Int64)
    cards = (
        links.filter(
            (pl.col("matrix") == "path")
            & pl.col("device").str.contains(GPU)
            & ~pl.col("peer").str.contains(GPU)
        )
        .with_columns(_near=near)
        .filter(pl.col("_near").is_not_null())
        .sort("_near", "peer")
        .group_by("rank", "device")
        .agg(pl.col("_near", "code", "peer").first())
        .with_columns(_best=pl.col("_near").min().over("rank"))
    )
    far = (pl.col("_near") == FARTHEST) | ((pl.col("_near") == FAR) & (pl.col("_best") < FAR))
    code_of = {v: k for k, v in NEARNESS.items()}
    others = pl.format("{}, as others have", pl.col("_best").replace_strict(code_of, return_dtype=pl.String))
    nearer = (
        pl.when(pl.col("_best") < pl.col("_near"))
        .then(others)
        .otherwise(pl.lit("a card on its own memory node"))
    )
    yield _faults(
        cards.filter(far), "NIC far", pl.col("device"), pl.format("{} to {}", "code", "peer"), nearer
    )


def _of_devices(devices: pl.LazyFrame, expected_rate: int) -> Iterator[pl.LazyFrame]:
    active = pl.col("state") == "active"
    ports = devices.filter(pl.col("kind") == "port")
    port = pl.format("{} port {}", "name", "port")
    states = pl.concat_str("state", "physical", separator=", ", ignore_nulls=True)
    yield _faults(ports.filter(~active), "port down", port, states, pl.lit("active"))
    usual = pl.col("rate").max().over("rank", "layer")
    rates = ports.filter(active).with_columns(_usual=pl.lit(float(expected_rate)) if expected_rate else usual)
    slow = rates.filter(pl.col("rate") < pl.col("_usual"))
    yield _faults(slow, "port slow", port, _rate("rate"), _rate("_usual"))
    lanes = devices.filter((pl.col("kind") == "gpu") & (pl.col("lanes") < pl.col("most_lanes")))
    yield _faults(
        lanes,
        "PCIe lanes missing",
        pl.col("name"),
        pl.col("lanes").cast(pl.String),
        pl.col("most_lanes").cast(pl.String),
    )
    down = devices.filter(pl.col("kind") == "nvlink").with_columns(_any=active.any().over("rank", "name"))
    yield _faults(
        down.filter(pl.col("_any") & (pl.col("state") == "inactive")),
        "NVLink inactive",
        pl.format("{} link {}", "name", "port"),
        pl.col("state"),
        pl.lit("active"),
    )
    yield _placed(devices)


def _placed(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Processes that may run on no CPU near their GPU; one that may run anywhere is no fault."""
    processes = devices.filter((pl.col("kind") == "process") & pl.col("port").is_not_null()).select(
        "rank", "cpus", process="name", name=pl.format("GPU{}", "port")
    )
    gpus = devices.filter(pl.col("kind") == "gpu").select("rank", "name", near="cpus")
    both = processes.join(gpus, on=["rank", "name"]).drop_nulls()
    outside = _cpus("cpus").list.set_intersection(_cpus("near")).list.len() == 0
    return _faults(
        both.filter(outside),
        "process far from its GPU",
        pl.col("process"),
        pl.format("CPUs {}", "cpus"),
        pl.format("CPUs {} of {}", "near", "name"),
    )


def _cpus(column: str) -> pl.Expr:
    """'0-2,8' as [0, 1, 2, 8]."""
    ends = pl.element().str.split_exact("-", 1)
    low = ends.struct.field("field_0").cast(pl.Int64, strict=False)
    high = ends.struct.field("field_1").cast(pl.Int64, strict=False).fill_null(low)
    return pl.col(column).str.split(",").list.eval(pl.int_ranges(low, high + 1).explode(empty_as_null=True))


def _rate(column: str) -> pl.Expr:
    whole = pl.col(column).cast(pl.Int64, strict=False)
    exact = (
        pl.when(whole == pl.col(column)).then(whole.cast(pl.String)).otherwise(pl.col(column).cast(pl.String))
    )
    return pl.format("{} Gb/s", exact)


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
