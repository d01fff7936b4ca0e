"""What was recorded: ranks, steps, device, clock and sources, as the page tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from lostflops.trace import Trace


@dataclass(frozen=True)
class Run:
    """What was recorded."""

    clock: str
    clock_origin_ns: int
    clock_offsets: dict[int, int]  # rank -> ns added to its times to align its clock with the others'
    clock_error_ns: int | None  # the largest of the ranks'; None when no rank's could be told
    ranks: tuple[int, ...]
    world_size: int | None
    device_kind: str | None  # 'gpu', 'cpu', 'mixed', or None when nothing ran
    gpu: str | None
    step_source: str | None
    num_steps: int  # different step numbers
    num_windows: int  # (rank, step) pairs
    selected_steps: tuple[int, int] | None
    num_events: int
    sources: tuple[dict[str, Any], ...]  # without file names: profilers put the host's name in them
    versions: str | None

    @property
    def on_host(self) -> bool:
        """Whether host operators stand in for kernels."""
        return self.device_kind == "cpu"

    @property
    def extent(self) -> str:
        """How many ranks and steps, in words."""
        if self.world_size in (None, len(self.ranks)):
            return f"{_count(len(self.ranks), 'rank')} · {self._steps}"
        return f"{len(self.ranks)} of {_count(self.world_size, 'rank')} · {self._steps}"

    @property
    def windows(self) -> str:
        """What a mean is taken over, in words."""
        if self.step_source == "whole trace":
            return f"of {_count(len(self.ranks), 'rank')}"
        if self.num_windows != self.num_steps * len(self.ranks):
            return f"of {self.num_windows} steps on {_count(len(self.ranks), 'rank')}"
        return f"of {self._steps} on {_count(len(self.ranks), 'rank')}"

    @property
    def _steps(self) -> str:
        if self.step_source == "whole trace":
            return "whole recording"
        chosen = f" ({self.selected_steps[0]} to {self.selected_steps[1]})" if self.selected_steps else ""
        return _count(self.num_steps, "step") + chosen


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"


def recorded(trace: Trace, steps: pl.DataFrame, ledger: pl.DataFrame) -> Run:
    manifest = trace.manifest
    table = trace.table("ranks")
    ranks = None if table is None else table.collect()
    present = ledger["rank"] if ranks is None else ranks["rank"]
    windows = steps if steps.height else ledger.unique(("rank", "step", "start", "end"))
    return Run(
        clock=manifest.clock,
        clock_origin_ns=manifest.origin_ns,
        clock_offsets={int(rank): ns for rank, ns in manifest.offsets.items() if ns},
        clock_error_ns=None if ranks is None else _largest(ranks["clock_error"]),
        ranks=tuple(present.unique().sort().to_list()),
        world_size=None if ranks is None else _largest(ranks["world_size"]),
        device_kind=None if ranks is None else _one(ranks["device_kind"], "mixed"),
        gpu=None if ranks is None else _one(ranks["gpu"]),
        step_source=_one(steps["source"].cast(pl.String)) if steps.height else None,
        num_steps=windows["step"].n_unique(),
        num_windows=windows.height,
        selected_steps=trace.steps,
        num_events=manifest.num_events,
        sources=tuple(
            {"format": source.format, "bytes": source.bytes, "identity": source.identity}
            for source in manifest.sources
        ),
        versions=None if ranks is None else _one(ranks["versions"]),
    )


def _largest(column: pl.Series) -> int | None:
    return column.max()  # pyright: ignore[reportReturnType]


def _one(column: pl.Series, several: str = "") -> str | None:
    """The value that all rows share; several are joined, unless `several` says what to call them."""
    values: list[str] = column.drop_nulls().unique().sort().to_list()
    if len(values) > 1:
        return several or ", ".join(values)
    return values[0] if values else None
