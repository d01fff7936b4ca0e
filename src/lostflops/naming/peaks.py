"""What GPUs can compute at most, by the names that drivers give them: dense FLOP/s of data sheets.

A name that is not here has no peak: a card of another form or power limit is another card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

TERA = 10**12
HOPPER_SXM = {"fp64": 67, "fp32": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9}
BLACKWELL = {"tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500}
MI300X = {"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9}
# The first that matches counts. TFLOP/s, fp32 without matrix units on NVIDIA's.
PEAKS: Sequence[tuple[str, Mapping[str, float]]] = (
    (r"H100 PCIe", {"fp32": 51.2, "tf32": 378, "fp16": 756, "bf16": 756, "fp8": 1513}),
    (r"H100 NVL|H200 NVL", {"fp32": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1671}),
    (r"H100.* HBM3$|H800$|\bH200$|GH200", HOPPER_SXM),
    (r"A100-(?:SXM4|SXM|PCIE|PG\d+)", {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312}),
    (r"\bGB200\b", {"tf32": 1250, "fp16": 2500, "bf16": 2500, "fp8": 5000}),
    (r"\bB200\b", BLACKWELL),
    (r"V100-SXM", {"fp32": 15.7, "fp16": 125}),
    (r"NVIDIA L40S", {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362, "fp8": 733}),
    (r"NVIDIA L4$", {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242}),
    (r"MI300X", MI300X),
)


def peak(gpu: str, precision: str) -> float | None:
    """Dense FLOP/s of a GPU in a precision; None where either is not known."""
    for pattern, rates in PEAKS:
        if re.search(pattern, gpu):
            rate = rates.get(precision)
            return None if rate is None else rate * TERA
    return None
