"""What only a page of a CPU job asks of its recording reaches the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lostflops
from lostflops.finding import Finding
from made_runs import MS, made

Rows = Sequence[tuple[str, int, int]]
ADAM = ("torch/optim/adam.py(347): _single_tensor_adam", 62, 90)
KERNELS = [
    ("aten::rot90", 1, 20),
    ("aten::linear", 31, 40),
    ("AddmmBackward0", 40, 48),
    ("SlowBackward", 48, 62),
    ("aten::neg", 83, 89),
    ("aten::sqrt", 90, 99),
]
BACKWARD = ("torch/_tensor.py(570): backward", 40, 62)


def step(begin: int, frames: Rows, kernels: Rows) -> dict[str, list[tuple[str, int, int]]]:
    """A step of 100 ms: names with start and end, ms."""
    rows = {
        "ranges": [
            ("enumerate(DataLoader)#start of 2 worker processes", 21, 31),
            ("forward#Net", 31, 40),
            ("backward", 40, 62),
            ("Optimizer.step#Adam.step", 90, 100),
        ],
        "frames": [("a.py(3): augment", 0, 21), BACKWARD, *frames],
        "kernels": kernels,
    }
    return {kind: [(name, begin + s, begin + e) for name, s, e in told] for kind, told in rows.items()}


def why(folder: Path, frames: Rows, kernels: Rows = KERNELS) -> tuple[str, dict[str, Finding]]:
    """The first sentence and the findings about three such steps."""
    told = [step(100 * n, frames, kernels) for n in range(3)]
    rows: dict[str, list[dict[str, Any]]] = {
        kind: [
            {"name": name, "start": s * MS, "end": e * MS, "thread": 7}
            for each in told
            for name, s, e in each[kind]
        ]
        for kind in told[0]
    }
    phases = {"aten::linear": "forward", "AddmmBackward0": "backward", "SlowBackward": "backward"}
    phases |= {"aten::sqrt": "optimizer", "aten::neg": "optimizer"}
    tables: dict[str, Any] = {
        **rows,
        "operators": [
            row
            | {"shapes": "[[200000,64]]", "dtypes": '["float"]'}  # 51.2 MB
            | {
                "phase": phases.get(row["name"]),
                "sequence": n // len(kernels) if row["name"] in list(phases)[:3] else -1,
            }
            for n, row in enumerate(rows["kernels"])
        ],
        "kernels": [row | {"launch_start": row["start"]} for row in rows["kernels"]],
        "ranks": [{"start": 0, "end": 300 * MS, "world_size": 1, "device_kind": "cpu", "main_thread": 7}],
        "steps": [
            {"step": n, "complete": True, "source": "profiler"}
            | {
                f"{of}{at}": 100 * MS * (n + k)
                for of in ("", "host_")
                for k, at in enumerate(("start", "end"))
            }
            for n in range(3)
        ],
    }
    page = lostflops.why(made(folder, tables))
    return page.verdict, {finding.name: finding for finding in page.findings}


def test_what_is_known_of_a_cpu_alone_is_asked_for_and_told(tmp_path: Path) -> None:
    _, found = why(tmp_path, [ADAM])
    assert "mostly in `augment`" in found["operators-outside-passes"].claim
    assert found["own-autograd-function"].claim.startswith("`Slow`, an autograd function")
    assert "the CPU frees memory of large tensors" in found["host-busy-elsewhere"].claim
    assert "starts 2 worker processes" in found["data-loading-starves-device"].claim
    _, found = why(tmp_path, [("a.py(5): tally", 62, 90)])
    python = found["host-busy-elsewhere"]
    assert python.evidence[0].startswith("`tally` (a.py:5) takes 28.0 ms per step with operators")
    _, found = why(tmp_path, [("a.py(5): closure", 40, 90)])
    assert found["host-busy-elsewhere"].next.startswith("`closure` (a.py:5) holds a backward pass")
    busy = [("aten::linear", 0, 50), ("AddmmBackward0", 50, 90), ("SlowBackward", 90, 99)]
    said, found = why(tmp_path, [], busy)
    # Whether those compute is not known.
    assert said.startswith(
        "Operators and autograd functions of the job's own run for 99.0 % of the 100 ms step"
    )
    assert found["own-autograd-function"].evidence[0].startswith("it counts as compute, 9.00 ms")
    said, _ = why(tmp_path, [], [("aten::linear", 0, 50), ("AddmmBackward0", 50, 98)])
    assert said.startswith("Compute-bound: operators run for 98.0 % of the 100 ms step")
