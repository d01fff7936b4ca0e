"""0: what the machine's links are, and what collectives reach on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lostflops.lab.exercises.exercise import Check, Exercise

SIZES = "4K,256K,4M"
# Bytes that each rank sends over its link, as a multiple of the size, for two ranks.
BUS = {"all-reduce": 1.0, "all-gather": 0.5}


def _check(documents: Sequence[Any]) -> list[Check]:
    (bench,) = documents
    rows = [row for row in bench["bandwidths"] if row["algorithm_bandwidth"]]
    ratios = {row["operation"]: row["bus_bandwidth"] / row["algorithm_bandwidth"] for row in rows}
    wrong = sum(not row["correct"] for row in rows)
    largest = {row["operation"]: row["bus_bandwidth"] for row in sorted(rows, key=lambda row: row["bytes"])}
    return [
        Check("every result is right", f"{wrong} of {len(rows)} are wrong", wrong == 0 < len(rows)),
        *(
            Check(
                f"{name}: the link carries {expected:g} times its size over time, on 2 ranks",
                f"{ratios[name]:.3f} times; {largest[name]:.2f} GB/s at the largest size",
                abs(ratios[name] - expected) < 0.01,
            )
            for name, expected in BUS.items()
        ),
    ]


EXERCISE = Exercise(
    name="0",
    title="Topology and collectives",
    question="How are this machine's devices linked, and how fast are collectives between two processes?",
    see="the links, best first, and size over time beside bus bandwidth: what a link has to carry",
    expected=(
        "an all-reduce of n ranks moves 2(n-1)/n times its size over each link, an all-gather (n-1)/n times",
    ),
    fix="none: this is what the machine has; `lostflops why` names links that are worse than the others",
    commands=(
        ("topology",),
        (
            *("bench", "collectives", "--ranks", "2", "--backend", "gloo", "--sizes", SIZES),
            *("--repeats", "5", "--operations", "all_reduce,all_gather"),
        ),
    ),
    check_documents=_check,
)
