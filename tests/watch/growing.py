"""Step logs as a job writes them, of times that a test chooses."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lostflops import run_folder

MS = 1_000_000
Times = npt.NDArray[np.float64]


@dataclass
class Job:
    """The logs of a job that grow when told to. Nodes have two ranks."""

    run: Path
    ranks: int
    attempt: int = 0
    per_node: int = 2
    began: int = field(default_factory=time.time_ns)
    steps: dict[int, int] = field(default_factory=dict[int, int])
    ends: dict[int, int] = field(default_factory=dict[int, int])

    def path(self, rank: int) -> Path:
        name = run_folder.step_log(run_folder.log_name(rank, self.attempt))
        return self.run / run_folder.node(rank // self.per_node) / name

    def introduce(self, rank: int) -> None:
        path = self.path(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        who = {
            "kind": run_folder.RANK, "format": 1, "rank": rank, "world": self.ranks, "attempt": self.attempt,
            "source": "environment", "pid": 100 + rank, "monotonic": 1000 * (rank + 1), "wall": self.began,
        }  # fmt: skip
        path.write_text(json.dumps(who) + "\n")
        self.steps[rank], self.ends[rank] = 0, 1000 * (rank + 1)

    def step(self, rank: int, duration: float, **more: Any) -> str:
        """The line of a rank's next step."""
        if rank not in self.steps:
            self.introduce(rank)
        number = self.steps[rank]
        self.steps[rank] += 1
        self.ends[rank] += int(duration)
        line = {
            "step": number, "end": self.ends[rank], "duration": int(duration) if number else None,
            "core_wait": 0, "own": 10, "micro_steps": 1, "optimizer": 1000, "data": 0, "checkpoint": 0,
            "gc": 0, "window": 0, **more,
        }  # fmt: skip
        return json.dumps(line) + "\n"

    def append(self, rank: int, text: str) -> None:
        with self.path(rank).open("a") as file:
            file.write(text)

    def grow(self, times: Times, more: Mapping[int, Sequence[Mapping[str, Any]]] | None = None) -> None:
        """Steps of all ranks, a column each, in ns. `more` has fields of a rank's steps."""
        for rank in range(times.shape[1]):
            fields: Sequence[Mapping[str, Any]] = (more or {}).get(rank) or [{}] * len(times)
            lines = [self.step(rank, one, **at) for one, at in zip(times[:, rank], fields, strict=True)]
            self.append(rank, "".join(lines))

    def end(self, rank: int) -> None:
        self.append(rank, json.dumps({"kind": run_folder.END, "steps": self.steps[rank]}) + "\n")


def even(steps: int, ranks: int, seed: int = 0, noise: float = 0.01, ms: float = 100) -> Times:
    """Times of a healthy job."""
    rng = np.random.default_rng(seed)
    return ms * MS * np.exp(noise * rng.standard_normal((steps, ranks)))
