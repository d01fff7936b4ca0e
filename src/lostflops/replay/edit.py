"""What an edit is: a change to the lags and edges of a recorded job's graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from lostflops import intervals
from lostflops.errors import BadOption, shown

from .dependencies.edges import Edges, Int
from .graph import NEVER
from .recorded import RecordedJob
from .step_times import StepPoints

REMOVED = NEVER
"""The lag of an edge that an edit removes: nothing waits for it any more."""


@dataclass(frozen=True)
class Typed:
    """An edit as it was typed, and its pieces; `amount` is None where none was given."""

    text: str
    selection: str = ""
    amount: str | None = None

    def factor(self) -> float:
        """The amount as a number above 0: '2', '1.5x'."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)x?", self.amount or "")
        if found and float(found[1]) > 0:
            return float(found[1])
        raise BadOption(
            f"'{shown(self.text)}' needs a factor above 0.", "write it after an equals sign: '=2'."
        )

    def none(self) -> None:
        """Raise BadOption if an amount was given where none has a meaning."""
        if self.amount is not None:
            raise BadOption(f"'{shown(self.text)}' takes no amount.", "leave the equals sign out.")


@dataclass(frozen=True, eq=False)
class Known:
    """What edits may look at beside the graph: the steps that count, all steps, and tables of recipes, None
    where the trace cannot give them. `named` gives the spans (rank, thread, start, end) of ranges, operators
    and frames whose name holds a text, `stages` the pipeline stage of each rank where that is known, and
    `passes` the table `pipeline_passes`. `gpus` are the drivers' names of the GPUs,
    `again` gives the spans in which hosts compute activations again, and
    `modules` gives the module of the model that threads were in at moments (rank, thread, start)."""

    steps: StepPoints
    every_step: StepPoints
    host_spans: pl.DataFrame | None = None
    matched: pl.DataFrame | None = None
    named: Callable[[str], pl.DataFrame] | None = None
    stages: Callable[[], Mapping[int, int]] = dict
    passes: Callable[[], pl.DataFrame | None] = lambda: None
    gpus: tuple[str, ...] = ()
    again: Callable[[], pl.DataFrame] | None = None
    modules: Callable[[pl.DataFrame], pl.Series] | None = None


Retime = Callable[[Int], list[Int]]
"""From when points come, by how much each counted step is longer, ns: the likeliest first, then the extremes.
"""


@dataclass(frozen=True, eq=False)
class Edited:
    """A job's lags with an edit made, and edges that it adds, each with its lag.

    `points` is how many points it adds, numbered in its edges from the job's last one on. `longer` is by how
    much each lag may come out longer than given, ns, and `retimed` says by how much steps change beyond that.
    `removed` is the time that can no longer be waited for, added up over the job, ns: no replay gains more.
    `refused` says why the edit cannot be made here, `doubts` what its replay does not know, and
    `may_gain_nothing` that this leaves open whether there is a gain at all.
    """

    lags: Int
    added: tuple[Edges, ...] = ()
    points: int = 0
    longer: Int | None = None
    retimed: Retime | None = None
    removed: int = 0
    refused: str = ""
    doubts: tuple[str, ...] = ()
    may_gain_nothing: bool = False


Apply = Callable[[RecordedJob, Int, Known], Edited]


@dataclass(frozen=True, eq=False)
class Edit:
    """One edit that can be made: what was typed, what that means, and what it does to lags."""

    text: str
    says: str
    apply: Apply
    on_host: bool = False  # whether it takes host time away, which needs to know what that is
    of_communication: bool = False  # whether it changes what passes between ranks, which all have to show
    scales: bool = False  # whether it only makes what was recorded shorter, wherever steps begin and end
    then: Callable[[Apply, Apply], Apply] | None = None  # makes two that count from the recording one


def as_one(edits: Sequence[Edit]) -> list[Edit]:
    """The edits, with those that would each count from the recording made one after the other."""
    found = list[Edit]()
    for edit in edits:
        like = [n for n, one in enumerate(found) if edit.then is not None and one.then is edit.then]
        if edit.then is None or not like:
            found.append(edit)
        else:
            earlier = found[like[0]]
            found[like[0]] = replace(earlier, apply=edit.then(earlier.apply, edit.apply))
    return found


@dataclass(frozen=True, eq=False)
class EditKind:
    """A kind of edit: its name, how it is typed, what it asks, and how what was typed becomes an edit."""

    name: str
    typed: str
    asks: str
    example: str
    made: Callable[[Typed], Edit] = field(repr=False)


def in_steps(job: RecordedJob, steps: StepPoints, points: Int) -> np.ndarray:
    """Which points came while their rank's counted steps lasted.

    On the device that is from the begin of the first to the end of the last; the host begins earlier, for
    what it launches for a step runs later.
    """
    if not len(steps.rank):
        return np.zeros(len(points), bool)
    ranks, of = np.unique(steps.rank, return_inverse=True)
    begin, host, end = (np.full(len(ranks), far) for far in (-NEVER, -NEVER, NEVER))
    np.minimum.at(begin, of, steps.begins(job.measured))
    np.minimum.at(host, of, np.minimum(steps.begins(job.measured), steps.host_begin))
    np.maximum.at(end, of, steps.ends(job.measured))
    operation = job.operation_of(points)
    rank = job.ranks[operation]
    place = np.minimum(np.searchsorted(ranks, rank), len(ranks) - 1)
    first = np.where(job.on_device[operation], begin[place], host[place])
    at = job.measured[points]
    return (ranks[place] == rank) & (at >= first) & (at <= end[place])


def step_of(job: RecordedJob, steps: StepPoints, points: Int) -> Int:
    """For each point the row of its step in `steps`, by when it came, or -1 outside of all.

    A device's point belongs to the step in which it ran, a host's to the one that the host was at.
    """
    found = np.full(len(points), -1)
    operation, at = job.operation_of(points), job.measured[points]
    rank, on_device = job.ranks[operation], job.on_device[operation]
    begins, ends = steps.begins(job.measured), steps.ends(job.measured)
    if not len(steps.rank):
        return found
    rows = np.lexsort((begins, steps.rank))
    hosts = intervals.running_most(steps.host_begin[rows], steps.rank[rows])
    for device, since in ((True, begins[rows]), (False, hosts)):
        mine = np.flatnonzero(on_device == device)
        sought, asked = intervals.one_axis((steps.rank[rows], since), (rank[mine], at[mine]))
        place = np.searchsorted(sought, asked, "right") - 1
        row = rows[np.maximum(place, 0)]
        inside = (place >= 0) & (steps.rank[row] == rank[mine]) & (at[mine] <= ends[row])
        found[mine] = np.where(inside, row, -1)
    return found
