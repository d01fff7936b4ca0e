"""What an export is asked for, and what it says when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from lostflops.finding import Finding

from .selection import RunPart
from .timeline import Drawn, rank_state


def _nobody(what: str, share: float) -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True)
class Mark:
    """A finding at an instant where its time is lost."""

    at: int
    name: str
    claim: str
    next: str
    cost: int
    rank: int | None
    account: str | None


@dataclass
class ExportRequest:
    """A part of a run. `bare` leaves out what lostflops computed; `table` names a table or a recipe."""

    selection: RunPart
    bare: bool = False
    findings: Sequence[Finding] = ()
    table: str | None = None
    weight: str = "host"  # what the stacks of a flame graph are weighted by
    tell: Callable[[str, float], None] = _nobody
    marks: list[Mark] = field(init=False)

    def __post_init__(self) -> None:
        self.marks = [] if self.bare else _marks(self.selection, self.findings)

    def exported(self, output: Path, drawn: Drawn, also: Sequence[Path] = ()) -> Exported:
        notes: list[str] = []
        if drawn.backwards:
            notes.append(
                f"{drawn.backwards:,} kernels or copies begin before the call that launched them: "
                "no flow leads to these"
            )
        return Exported([output, *also], drawn, self.selection.cut, len(self.selection.ranks), notes)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: list[Path]
    drawn: Drawn
    cut: int
    num_ranks: int
    notes: list[str] = field(default_factory=list[str])

    @property
    def num_slices(self) -> int:
        return sum(self.drawn.slices.values())

    @property
    def amounts(self) -> list[str]:
        """What was written, in words."""
        counted = {
            "slice": self.num_slices,
            "flow": sum(self.drawn.flows.values()),
            "sample": self.drawn.samples,
            "row": self.drawn.rows,
            "stack": self.drawn.stacks,
        }
        return [f"{number:,} {noun}{'s' * (number != 1)}" for noun, number in counted.items() if number]

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files if file.is_file())


def _marks(selection: RunPart, findings: Sequence[Finding]) -> list[Mark]:
    """Each finding where most of its time is lost at once; what has no accounts, where its rank begins."""
    if not findings:
        return []
    steps = selection.answer("counted_steps")
    begun = {} if steps is None else dict(steps.group_by("rank").agg(pl.col("start").min()).iter_rows())
    states = [
        state.select("start", "end", "name", rank=pl.lit(rank, dtype=pl.Int64))
        for rank in selection.ranks
        if (state := rank_state(selection, rank)) is not None
    ]
    state = pl.concat(states) if states else None
    marks: list[Mark] = []
    for finding in findings:
        said = (finding.name, finding.claim, finding.next, finding.size)
        longest = _longest(state, finding)
        if longest is not None:
            at, account, rank = longest
            marks.append(Mark(at, *said, rank, account))
            continue
        if finding.rank is not None and finding.rank not in selection.ranks:
            continue
        at = begun.get(finding.rank, min(begun.values(), default=None)) if begun else None
        if at is not None:
            marks.append(Mark(at, *said, finding.rank, None))
    return marks


def _longest(state: pl.DataFrame | None, finding: Finding) -> tuple[int, str, int] | None:
    """The longest stretch of the accounts that a finding is about: on its rank, or else on any."""
    if state is None or not finding.accounts:
        return None
    about = state.filter(pl.col("name").is_in(list(finding.accounts)))
    own = about if finding.rank is None else about.filter(pl.col("rank") == finding.rank)
    rows = own if own.height else about
    if rows.is_empty():
        return None
    longest = rows.sort(pl.col("end") - pl.col("start"), descending=True).row(0, named=True)
    return longest["start"], longest["name"], longest["rank"]
