"""What tools print on a machine that does not exist: four GPUs, each with a card near it, two sockets.

Written for these tests after the layouts that the tools document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GPUS = range(4)
CPUS = ("0-15", "16-31")


def paths(codes: Mapping[tuple[int, int], str] | None = None, near: Sequence[str] = ("PXB",) * 4) -> str:
    """`nvidia-smi topo -m`, with tabs, an underlined header, and a line end of another system."""
    codes = codes or {}
    names = [f"GPU{g}" for g in GPUS] + [f"NIC{g}" for g in GPUS]
    head = "\t" + "\t".join(f"\x1b[4m{n}\x1b[0m" for n in names)
    lines = [head + "\t\x1b[4mCPU Affinity\x1b[0m\tNUMA Affinity\tGPU NUMA ID"]
    for a, name in enumerate(names):
        cells = [_path(a, b, codes, near) for b in range(len(names))]
        # As the tool does: an empty cell more before the last column.
        rest = [CPUS[a // 2], str(a // 2), "", "N/A"] if a < 4 else []
        lines.append("\t".join([name, *cells, *rest]))
    legend = [
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Connection between memory nodes",
        "",
        "NIC Legend:",
        "",
    ]
    return "\r\n".join([*lines, *legend, *(f"  NIC{g}: mlx5_{g}" for g in GPUS), ""])


def _path(a: int, b: int, codes: Mapping[tuple[int, int], str], near: Sequence[str]) -> str:
    if a == b:
        return " X "
    low, high = sorted((a, b))
    if high < 4:
        return codes.get((low, high), "NV4")
    if low < 4:
        return near[low] if high - 4 == low else "NODE" if low // 2 == (high - 4) // 2 else "SYS"
    return "NODE"


def peers(codes: Mapping[tuple[int, int], str] | None = None) -> str:
    """`nvidia-smi topo -p2p`"""
    lines = [" \t" + "\t".join(f"GPU{g}" for g in GPUS) + "\t"]
    for a in GPUS:
        cells = ["X" if a == b else (codes or {}).get((min(a, b), max(a, b)), "OK") for b in GPUS]
        lines.append(f" GPU{a}\t" + "\t".join(cells) + "\t")
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok", ""])


def ibstat(ports: Mapping[int, tuple[str, str, int]] | None = None) -> str:
    """Four cards of one port; `ports` says state, physical state and rate where they differ."""
    lines: list[str] = []
    for g in GPUS:
        state, physical, rate = (ports or {}).get(g, ("Active", "LinkUp", 200))
        lines += [
            f"CA 'mlx5_{g}'",
            "\tCA type: MT4123",
            "\tNumber of ports: 1",
            f"\tNode GUID: 0x00000000000000{g:02x}",
            "\tPort 1:",
            f"\t\tState: {state}",
            f"\t\tPhysical state: {physical}",
            f"\t\tRate: {rate}",
            "\t\tBase lid: 7",
            "\t\tLink layer: InfiniBand",
        ]
    return "\n".join(lines) + "\n"


def folder(place: Path, **texts: str) -> Path:
    """A folder for `--from`; names of files with _ for - and without their ending."""
    files = {
        "nvidia_smi_topo_m": ("nvidia-smi-topo-m.txt", paths()),
        "nvidia_smi_topo_p2p_r": ("nvidia-smi-topo-p2p-r.txt", peers()),
        "nvidia_smi_topo_p2p_w": ("nvidia-smi-topo-p2p-w.txt", peers()),
        "nvidia_smi_topo_p2p_n": ("nvidia-smi-topo-p2p-n.txt", peers()),
        "ibstat": ("ibstat.txt", ibstat()),
    }
    place.mkdir(exist_ok=True)
    for key, (name, usual) in files.items():
        (place / name).write_text(texts.get(key, usual))
    return place
