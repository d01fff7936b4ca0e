"""What the offload engine costs the host for each tensor that autograd saves: kept, too small, or moved.

    python benchmarks/hook_cost.py                   on the CPU, in under a minute; prints a table
    python benchmarks/hook_cost.py --json FILE       and writes every single time down

A step of some hundred small operators that save one tensor each, in turns: without hooks, with hooks that do
nothing (what torch takes to call Python), with `torch.autograd.graph.save_on_cpu`, and with the engine. Times
are of the CPU of the thread that trains, a tensor's share, less that of the step without hooks. "Nothing is
copied" is a device whose verbs do nothing, so that the engine's own work is left; the other row is the CPU
that plays a device, with what its verbs cost and copies that other threads make.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice

SIDE = 32  # of the tensors: 4 KiB each, so that no operator takes long
TARGETS = {"packed": 30.0, "unpacked": 30.0, "kept": 5.0}  # microseconds
KEEP_SINES = {
    "kind": "offload plan",
    "schema": 1,
    "classes": {"MmBackward0": "offload", "SinBackward0": "keep"},
}


class Sines(torch.nn.Module):
    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(SIDE, SIDE))
        self.tensors = tensors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        for _ in range(self.tensors):
            y = y.sin()
        return y.sum()


class NoDevice(ThreadedDevice):
    """Every event is done, and bytes stay where they are: right only in what it costs."""

    def record(self, stream: Any) -> Any:
        return None

    def wait(self, stream: Any, event: Any) -> None: ...

    def is_done(self, event: Any) -> bool:
        return True

    def synchronize(self, event: Any) -> None: ...

    def elapsed(self, start: Any, end: Any) -> int:
        return 1000

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None: ...


def contexts(model: Sines) -> dict[str, Callable[[], Any]]:
    """What runs around a step, by its name in the table."""

    def engine(device: ThreadedDevice, **how: Any) -> Callable[[], Any]:
        made = optimize.offload(model, device=device, verify=None, **how)
        return lambda: made

    def nothing(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    return {
        "no hooks": nullcontext,
        "hooks that do nothing": lambda: torch.autograd.graph.saved_tensors_hooks(nothing, lambda t: t),
        "save_on_cpu": torch.autograd.graph.save_on_cpu,
        "offload, below the threshold": engine(NoDevice(), threshold="1 MiB"),
        "offload, everything fits": engine(NoDevice(), budget="1 GiB", threshold=1),
        "offload, kept by the plan": engine(NoDevice(), plan=KEEP_SINES, threshold=1),
        "offload, moved, nothing is copied": engine(NoDevice(), plan="everything", threshold=1),
        "offload, moved by threads": engine(ThreadedDevice(), plan="everything", threshold=1),
    }


def measured(tensors: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of CPU per tensor of each step, forward and backward, by context. In turns, as the machine
    is not the same all the time."""
    model, x = Sines(tensors), torch.randn(SIDE, SIDE)
    around = contexts(model)
    times: dict[str, dict[str, list[float]]] = {name: {"forward": [], "backward": []} for name in around}
    for round_ in range(rounds + 4):  # an engine learns in its first steps
        for name, context in around.items():
            with context():
                start = time.thread_time_ns()
                loss = model(x)
                middle = time.thread_time_ns()
                loss.backward()
                end = time.thread_time_ns()
            if round_ >= 4:
                times[name]["forward"].append((middle - start) / 1e3 / tensors)
                times[name]["backward"].append((end - middle) / 1e3 / tensors)
    return times


def rows(times: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Medians of the differences to the step without hooks of the same round."""
    plain = times["no hooks"]
    found: list[dict[str, Any]] = []
    for name, both in times.items():
        if name == "no hooks":
            continue
        row: dict[str, Any] = {"name": name}
        for way, values in both.items():
            row[way] = statistics.median(a - b for a, b in zip(values, plain[way], strict=True))
        found.append(row)
    return found


def targets(name: str) -> tuple[float, float] | None:
    """Of the forward and the backward."""
    if not name.startswith("offload"):
        return None
    return (TARGETS["packed"], TARGETS["unpacked"]) if "moved" in name else (TARGETS["kept"],) * 2


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| per saved tensor | forward, µs | backward, µs | targets, µs |", "| --- | --- | --- | --- |"]
    for row in found:
        aims = targets(row["name"])
        aim = "" if aims is None else f"{aims[0]:.0f}, {aims[1]:.0f}"
        lines.append(f"| {row['name']} | {row['forward']:.1f} | {row['backward']:.1f} | {aim} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=300, help="that a step saves (default 300)")
    parser.add_argument("--rounds", type=int, default=30, help="of every context in turn (default 30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single time here")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    times = measured(given.tensors, given.rounds)
    found = rows(times)
    print(table(found))
    if given.json:
        record = {
            "kind": "hook cost benchmark",
            "format": 1,
            "machine": platform.machine(),
            "torch": str(torch.__version__),
            "tensors": given.tensors,
            "rows": found,
            "microseconds": times,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
