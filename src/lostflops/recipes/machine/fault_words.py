"""How each fault of a machine's links is told, what to do about it, and why it may be none."""

from __future__ import annotations

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
