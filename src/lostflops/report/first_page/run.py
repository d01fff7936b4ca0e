"""What was recorded: ranks, steps, device, clock and sources, as the page tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from msgspec import structs

from lostflops.store.trace import (
    DEVICE_UNKNOWN,
    GPU_WORK_LOST,
    ONE_PER_DEVICE,
    REPLAYED,
    SIMULATED,
    Quality,
    Trace,
)


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
    num_counted_steps: int  # those that a mean step is the mean of
    num_counted_windows: int
    num_counted_ranks: int  # ranks with such a step
    selected_steps: tuple[int, int] | None
    num_events: int
    sources: tuple[dict[str, Any], ...]  # without file names: profilers put the host's name in them
    versions: str | None
    simulated: bool = False  # nobody recorded it: the job never ran
    replayed: str = ""  # the edits with which `whatif` replayed it: these times were never measured
    in_one_process: bool = False  # its ranks are the devices of one process
    lost: Quality | None = None  # why the host's side is all there is, when the device had work

    @property
    def formats(self) -> set[str]:
        """What kinds of sources there are."""
        return {str(source["format"]) for source in self.sources}

    @property
    def on_host(self) -> bool:
        """Whether host operators stand in for kernels."""
        return self.device_kind == "cpu"

    @property
    def is_whole(self) -> bool:
        """Whether no steps were found, and each rank's time counts as one."""
        return self.step_source == "whole trace"

    @property
    def span(self) -> str:
        """What the page calls the time that it divides."""
        return "first to last GPU work" if self.bounds else "recording" if self.is_whole else "step"

    @property
    def bounds(self) -> str:
        """Between what that time lies, where it is neither a step nor all that was recorded."""
        return "from the first to the last GPU work" if self.is_whole and not self.on_host else ""

    @property
    def device(self) -> str | None:
        """What the work ran on, in words."""
        return self.gpu or (self.lost.name if self.lost else "CPU only" if self.on_host else None)

    @property
    def extent(self) -> str:
        """How many ranks and steps, in words."""
        if self.world_size in (None, len(self.ranks)):
            return f"{_count(len(self.ranks), 'rank')} · {self._steps}"
        return f"{len(self.ranks)} of {_count(self.world_size, 'rank')} · {self._steps}"

    @property
    def windows(self) -> str:
        """What a mean is taken over, in words."""
        on = _count(self.num_counted_ranks, "rank")
        if self.is_whole:
            return f"of {on}"
        if self.num_counted_windows != self.num_counted_steps * self.num_counted_ranks:
            return f"of {self.num_counted_windows} steps on {on}"
        return f"of {_count(self.num_counted_steps, 'step')}{self._chosen} on {on}"

    @property
    def _steps(self) -> str:
        if self.is_whole:
            return self.bounds or "whole recording"
        return _count(self.num_steps, "step") + self._chosen

    @property
    def _chosen(self) -> str:
        return f" ({self.selected_steps[0]} to {self.selected_steps[1]})" if self.selected_steps else ""


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"


def recorded(trace: Trace, steps: pl.DataFrame, ledger: pl.DataFrame) -> Run:
    """`ledger` holds the steps that count in a mean."""
    manifest = trace.manifest
    table = trace.table("ranks")
    ranks = None if table is None else table.collect()
    present = ledger["rank"] if ranks is None else ranks["rank"]
    counted = ledger.unique(("rank", "step", "start", "end"))
    windows = steps if steps.height else counted
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
        num_counted_steps=counted["step"].n_unique(),
        num_counted_windows=counted.height,
        num_counted_ranks=counted["rank"].n_unique(),
        selected_steps=trace.steps,
        num_events=manifest.num_events,
        sources=tuple(
            {"format": source.format, "bytes": source.bytes, "identity": source.identity}
            for source in manifest.sources
        ),
        versions=None if ranks is None else _one(ranks["versions"]),
        in_one_process=ranks is not None
        and ranks.height > 1
        and len(manifest.sources) == 1
        and (ranks["rank_source"].cast(pl.String) == ONE_PER_DEVICE).all(),
        simulated=any(fact.name == SIMULATED for fact in manifest.quality),
        replayed=next((fact.text for fact in manifest.quality if fact.name == REPLAYED), ""),
        lost=_lost(manifest.quality, present),
    )


def _lost(quality: Sequence[Quality], ranks: pl.Series) -> Quality | None:
    """The fact, added up over ranks, that says that the device did what the trace does not show."""
    for name in (GPU_WORK_LOST, DEVICE_UNKNOWN):
        found = [fact for fact in quality if fact.name == name and (fact.rank is None or fact.rank in ranks)]
        if found:
            return structs.replace(found[0], count=sum(fact.count for fact in found))
    return None


def _largest(column: pl.Series) -> int | None:
    return column.max()  # pyright: ignore[reportReturnType]


def _one(column: pl.Series, several: str = "") -> str | None:
    """The value that all rows share; several are joined, unless `several` says what to call them."""
    values: list[str] = column.drop_nulls().unique().sort().to_list()
    if len(values) > 1:
        return several or ", ".join(values)
    return values[0] if values else None
