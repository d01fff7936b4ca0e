"""Cards of GPUs by the names that drivers give them: peaks, memory and its bandwidth, from data sheets.

Peaks are dense, in TFLOP/s, and sums are kept in fp32: vendors print twice as much for sparse matrices, and
for consumer cards for sums in fp16. fp32 is without matrix units on NVIDIA's. A name is matched whole: a card
of another form, a slice of one (MIG) and one whose clocks a vendor changed are other cards, and have no peak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TERA = 10**12
# AMD's whole card as a virtual function, and its module form: what computes is the same.
WHOLE = r"(?: VF| OAM)?"


@dataclass(frozen=True, slots=True)
class Card:
    """A card: `tera` is its dense peak by precision, `mib` its memory as the driver shows it."""

    name: str
    driver: str  # a pattern of the driver's whole names, without the vendor's
    tera: Mapping[str, float]
    mib: int | None = None
    bandwidth: float | None = None  # TB/s


def _peaks(half: float, **others: float) -> Mapping[str, float]:
    """Peaks of matrix units that take both 16-bit formats alike."""
    return {"fp16": half, "bf16": half, **others}


AMPERE = _peaks(312, fp64=19.5, fp32=19.5, tf32=156)
# Exported under limits: the same in every precision but fp64.
LIMITED_HOPPER = _peaks(989.4, fp64=1, fp32=67, tf32=494.7, fp8=1978.9)
HOPPER = {**LIMITED_HOPPER, "fp64": 67}
H20 = _peaks(148, fp64=1, fp32=44, tf32=74, fp8=296)
HOPPER_NVL = _peaks(835.5, fp32=60, tf32=417.5, fp8=1671)
HOPPER_PCIE = _peaks(756, fp32=51.2, tf32=378, fp8=1513)
BLACKWELL = _peaks(2250, tf32=1125, fp8=4500)
GRACE_BLACKWELL = _peaks(2500, tf32=1250, fp8=5000)
CDNA3 = _peaks(1307.4, fp32=163.4, tf32=653.7, fp8=2614.9)
# CDNA 4 has no tf32. 256 units of 4,096 FLOPs in 16 bits each clock, at 2.4 GHz, at 2.2 where air cools it.
CDNA4 = _peaks(2516.6, fp8=5033.2)
CDNA4_AIR = _peaks(2306.9, fp8=4613.7)

CARDS: Mapping[str, Card] = {
    card.name: card
    for card in (
        Card("v100", r"V100-(?:SXM[23]|DGXS)-\d+GB", {"fp32": 15.7, "fp16": 125}),
        Card("v100-pcie", r"V100-PCIE-\d+GB", {"fp32": 14, "fp16": 112}),
        Card("t4", "T4", {"fp32": 8.1, "fp16": 65}),
        Card("a100", "A100-SXM4-80GB", AMPERE, 81920, 2.039),
        Card("a100-others", r"A100-SXM4-40GB|A100-PCIE-40GB|A100 80GB PCIe|A100-PG\d+-\d+", AMPERE),
        Card("a800", r"A800-SXM4-[48]0GB|A800 80GB PCIe", AMPERE),
        Card("a10", "A10", _peaks(125, fp32=31.2, tf32=62.5), 23028, 0.6),
        Card("h100", r"H100 80GB HBM3|H100 SXM5 80GB", HOPPER, 81559, 3.35),
        Card("h100-96gb", r"H100 96GB HBM3|H100 SXM5 96GB", HOPPER),
        Card("h100-pcie", "H100 PCIe", HOPPER_PCIE),
        Card("h100-nvl", "H100 NVL", HOPPER_NVL),
        Card("h800", "H800", LIMITED_HOPPER, 81559, 3.35),
        Card("h20", "H20", H20, 97871, 4.0),
        Card("h20-3e", "H20-3e", H20, bandwidth=4.8),
        Card("h200", "H200", HOPPER, 143771, 4.8),
        Card("h200-nvl", "H200 NVL", HOPPER_NVL),
        # The size is that of the processor's memory, where no kind of memory stands beside it.
        Card("gh200", r"GH200 (?:120GB|480GB|96GB HBM3)", HOPPER, 97871, 4.0),
        Card("gh200-144gb", "GH200 144G HBM3e", HOPPER, bandwidth=4.9),
        Card("b200", "B200", BLACKWELL, 183359, 8.0),
        Card("b300", r"B300(?: SXM6(?: AC)?)?", BLACKWELL, 275040, 8.0),
        Card("gb200", "GB200", GRACE_BLACKWELL, 189471, 8.0),
        Card("gb300", "GB300", GRACE_BLACKWELL),
        Card("l4", "L4", _peaks(121, fp32=30.3, tf32=60, fp8=242), 23034, 0.3),
        Card("l40s", "L40S", _peaks(362, fp32=91.6, tf32=183, fp8=733), 46068, 0.864),
        Card("rtx-4090", "GeForce RTX 4090", _peaks(165.2, fp32=82.6, tf32=82.6, fp8=330.3), 24564, 1.008),
        Card("mi210", "Instinct MI210", _peaks(181, fp32=45.3), 65520, 1.6384),
        # Of a die, which is a device: a card has two.
        Card("mi250x", "Instinct MI250X", _peaks(191.5, fp32=47.9), 65520, 1.6384),
        Card("mi300a", "Instinct MI300A", _peaks(980.6, fp32=122.6, tf32=490.3, fp8=1961.2)),
        Card("mi300x", f"Instinct MI300X{WHOLE}", CDNA3, 196592, 5.3),
        Card("mi325x", f"Instinct MI325X{WHOLE}", CDNA3, 262128, 6.0),
        Card("mi350x", f"Instinct MI350X{WHOLE}", CDNA4_AIR),
        Card("mi355x", f"Instinct MI355X{WHOLE}", CDNA4, 294896, 8.0),
    )
}
# Of the peak, the best large 16-bit matrix products that were measured (stas00/ml-engineering); in a job that
# runs for days clocks fall with the power limit, and not every product is large.
ACHIEVABLE = {
    "a100": 0.869, "h100": 0.803, "h800": 0.803, "h200": 0.803, "gh200": 0.838, "gh200-144gb": 0.838,
    "b200": 0.776, "b300": 0.786, "gb200": 0.729, "mi250x": 0.767, "mi300x": 0.511,
    "mi325x": 0.600, "mi355x": 0.622,
}  # fmt: skip
# Links of cards to their hosts: their names, and bytes per second of large copies from pinned host memory.
LINK_NAMES = {"pcie3": "PCIe 3", "pcie4": "PCIe 4", "pcie5": "PCIe 5", "c2c": "NVLink-C2C"}
HOST_LINKS = {"pcie3": 12e9, "pcie4": 25e9, "pcie5": 55e9, "c2c": 375e9}
# Which of them cards usually have.
ON_LINK: Mapping[str, tuple[str, ...]] = {
    "pcie3": ("v100", "v100-pcie", "t4"),
    "pcie4": ("a100", "a100-others", "a800", "a10", "l4", "l40s", "rtx-4090", "mi210", "mi250x"),
    "pcie5": (
        "h100", "h100-96gb", "h100-pcie", "h100-nvl", "h800", "h20", "h20-3e", "h200", "h200-nvl", "b200",
        "b300", "mi300x", "mi325x", "mi350x", "mi355x",
    ),
    "c2c": ("gh200", "gh200-144gb"),
}  # fmt: skip


def link_of(card: str) -> str | None:
    """Which of `HOST_LINKS` a card usually has; None where it is not known."""
    return next((link for link, cards in ON_LINK.items() if card in cards), None)


def host_link(gpu: str) -> tuple[str, float] | None:
    """The link that a GPU usually has to its host, and its bytes per second; None where it is not known."""
    found = card(gpu)
    link = link_of(found.name) if found is not None else None
    return None if link is None else (LINK_NAMES[link], HOST_LINKS[link])


def card(gpu: str) -> Card | None:
    """The card that a driver calls `gpu`; None where no such name is known."""
    name = re.sub(r"^(?:NVIDIA|AMD) ", "", gpu.strip()).removeprefix("Tesla ")
    return next((card for card in CARDS.values() if re.fullmatch(card.driver, name)), None)


def peak(gpu: str, precision: str) -> float | None:
    """Dense FLOP/s of a GPU, by its driver's name, in a precision; None where either is not known."""
    found = card(gpu)
    rate = None if found is None else found.tera.get(precision)
    return None if rate is None else rate * TERA


def bandwidth(gpu: str) -> float | None:
    """Bytes per second of a GPU's memory, by its driver's name; None where it is not known."""
    found = card(gpu)
    return None if found is None or found.bandwidth is None else found.bandwidth * TERA


def achievable(gpu: str) -> float | None:
    """The share of its 16-bit peak that the best matrix product reaches; None where nobody measured it."""
    found = card(gpu)
    return None if found is None else ACHIEVABLE.get(found.name)
