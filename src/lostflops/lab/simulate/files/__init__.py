"""What profilers would have written of a simulated job: rows first, then files of each format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from . import kineto, nsys

if TYPE_CHECKING:
    from lostflops.lab.simulate.job import SimulatedJob
    from lostflops.lab.simulate.running.recorder import TraceRows


class Writer(Protocol):
    """A format of traces."""

    def written(
        self, job: SimulatedJob, rank: int, rows: TraceRows, folder: Path, *, packed: bool = True
    ) -> Path: ...


FORMATS: dict[str, Writer] = {"kineto": kineto, "nsys": nsys}
