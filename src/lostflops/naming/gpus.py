"""What a GPU's matrix units can compute with, by the name that its driver gives it."""

from __future__ import annotations

import re
from collections.abc import Sequence

NONE: frozenset[str] = frozenset()
FP16 = frozenset({"fp16"})
AMPERE = frozenset({"fp16", "bf16", "tf32"})
HOPPER = AMPERE | {"fp8"}
INSTINCT = frozenset({"fp16", "bf16"})
MI300 = INSTINCT | {"fp8"}
RDNA3 = INSTINCT
RDNA4 = MI300
# The first that matches counts. Cards without matrix units come before those that are named alike.
UNITS: Sequence[tuple[str, frozenset[str]]] = (
    (r"\bGTX\b|GeForce (?:9|7|6)\d\d|TITAN X|TITAN Z|\bT(?:400|600|1000|1200)\b|\bMX\d{3}\b", NONE),
    (r"\b(?:P100|P40|P4|P6|GP10\d|M60|M40|M4|K80|K40|K20)\w*\b|Quadro (?:P|M|K)\d", NONE),
    (r"V100|\bGV100\b|TITAN V\b|Xavier", FP16),
    (r"Tesla T4\b|\bT4G?$|Quadro RTX|TITAN RTX|GeForce RTX 20\d\d|RTX [3458]000$", FP16),
    (r"\bA(?:2|10|10G|16|30|40|100|800)\b|RTX A\d{3,4}|GeForce RTX 3\d{3}|Orin", AMPERE),
    (r"\bL(?:4|20|40|40S)\b|GeForce RTX [45]\d{3}|RTX \d{4} Ada", HOPPER),
    (r"\bH(?:20|100|200|800)\b|\bGH200\b|\bG?B(?:100|200|300)\b|RTX PRO|Thor", HOPPER),
    (r"\bMI3\d{2}\w?\b", MI300),
    (r"Radeon.*\b(?:RX [456]\d{3}\w*|(?:RX )?Vega|VII|(?:Pro )?W[56]\d{3}\w?)\b", NONE),
    (r"Radeon.*\b(?:RX 9\d{3}\w*|R9[67]00\w?)\b", RDNA4),
    (r"Radeon.*\b(?:RX 7\d{3}\w*|W7\d{3}\w?|8[04][56]0S)\b", RDNA3),
    (r"Instinct MI(?:[123]\d{2}\w?)\b|\bMI(?:100|2\d{2}\w?|3\d{2}\w?)\b", INSTINCT),
    # Others of AMD's, as 'AMD Radeon Graphics' of a processor: words about NVIDIA's cards do not fit them.
    (r"\bAMD\b|Radeon|\bgfx\d", INSTINCT),
)


def matrix_units(gpu: str | None) -> frozenset[str] | None:
    """The precisions that a GPU's matrix units take beside fp32 and fp64; None where it is not known.

    >>> sorted(matrix_units("AMD Radeon RX 7900 XTX")), sorted(matrix_units("AMD Radeon RX 6800 XT"))
    (['bf16', 'fp16'], [])
    """
    for pattern, takes in UNITS:
        if gpu and re.search(pattern, gpu):
            return takes
    return None
