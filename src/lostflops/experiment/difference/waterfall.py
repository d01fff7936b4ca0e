"""The change of a mean step as the sum of the changes of its parts, down from accounts to kernels.

Sums over all steps are whole nanoseconds, means are not: each run's mean step is shared out over its parts in
whole nanoseconds by largest remainders, level by level, as the ledger's page does it. So the parts of each
run add up to its mean step and the changes to the change, exactly, at every level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from lostflops.report.first_page.budget import in_order
from lostflops.report.words.amounts import apportion

from . import noise
from .pieces import LEVELS
from .side import Side

Path = tuple[str, ...]  # account, kind, operator, kernel; "" where that is not known


@dataclass(frozen=True)
class Moved:
    """A part of the step in both runs, ns per step.

    `calls` are how often its kernels begin per step; `noise_ns` is what chance may change, where steps tell.
    """

    path: Path
    before_ns: int
    after_ns: int
    noise_ns: int | None = None
    before_calls: float | None = None
    after_calls: float | None = None

    @property
    def ns(self) -> int:
        return self.after_ns - self.before_ns

    @property
    def is_beyond_noise(self) -> bool:
        """Whether steps that scatter as these do would seldom differ so much by chance."""
        return self.noise_ns is not None and abs(self.ns) > self.noise_ns


@dataclass(frozen=True)
class Waterfall:
    """All parts of the step in both runs; the empty path is the step itself.

    `noise_of` has the noise of groups of accounts, such as idle, ns, where the steps tell.
    """

    parts: Mapping[Path, Moved]
    below: Mapping[Path, tuple[Path, ...]] = field(repr=False)
    noise_of: Mapping[str, int | None] = field(default_factory=dict[str, int | None])

    @property
    def step(self) -> Moved:
        return self.parts[()]

    @property
    def accounts(self) -> tuple[Moved, ...]:
        """The accounts in the order of the ledger."""
        return tuple(self.parts[path] for path in self.below[()])

    def of(self, path: Path) -> list[Moved]:
        """What a part consists of, the largest change first."""
        return sorted(
            (self.parts[p] for p in self.below.get(path, ())),
            key=lambda c: (-abs(c.ns), -max(c.before_ns, c.after_ns), c.path),
        )

    def leaves(self) -> Iterator[Moved]:
        """The smallest parts, which add up to all others."""
        return (self.parts[path] for path in self.parts if path and path not in self.below)


def waterfall(before: Side, after: Side) -> Waterfall:
    """Both runs' mean steps, part by part."""
    first, second = _shared_out(before), _shared_out(after)
    paths = {**first, **second}
    below: dict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        if path:
            below[path[:-1]].append(path)
    below[()] = [(name,) for name in in_order(path[0] for path in below[()])]
    parts: dict[Path, Moved] = {}
    for path in paths:
        parts[path] = Moved(
            path,
            first.get(path, 0),
            second.get(path, 0),
            _noise(path, before, after, len(below[()])),
            *_calls(path, before, after),
        )
    groups: dict[str, list[str]] = {}
    for (name,) in below[()]:
        groups.setdefault(name.partition(".")[0], []).append(name)
    return Waterfall(
        parts,
        {path: tuple(found) for path, found in below.items()},
        {
            group: noise.band(before.spent(*names), after.spent(*names), len(below[()]))
            for group, names in groups.items()
        },
    )


def _shared_out(side: Side) -> dict[Path, int]:
    """Each part's share of the mean step, whole ns."""
    keys = ["account", *LEVELS]
    sums: dict[Path, int] = defaultdict(int)
    below: dict[Path, dict[Path, None]] = defaultdict(dict)
    leaves = side.pieces.group_by(pl.col(name).fill_null("") for name in keys).agg(pl.col("ns").sum())
    for *names, ns in leaves.sort(keys).iter_rows():
        path = tuple(names)
        for depth in range(len(path) + 1):
            sums[path[:depth]] += ns
            if depth:
                below[path[: depth - 1]][path[:depth]] = None
    size = max(side.num_windows, 1)
    shared: dict[Path, int] = {(): apportion([sums[()]], size)[0]}
    pending: list[Path] = [()]
    while pending:
        path = pending.pop()
        inside = list(below[path])
        amounts = apportion([sums[p] for p in inside], size, shared[path])
        shared.update(zip(inside, amounts, strict=True))
        pending += [p for p in inside if len(p) < len(keys)]
    return shared


def _noise(path: Path, before: Side, after: Side, rows: int) -> int | None:
    """Of the step, and of each account as one of `rows`."""
    if not path:
        return noise.band(list(before.lengths.values()), list(after.lengths.values()))
    return noise.band(before.spent(path[0]), after.spent(path[0]), rows) if len(path) == 1 else None


def _calls(path: Path, before: Side, after: Side) -> tuple[float | None, float | None]:
    """How often the kernels of a part begin: of computing, where kinds of work are kinds of kernels."""
    if len(path) < 2 or path[0] != "compute":
        return None, None
    return before.calls.get(path[1:], 0.0), after.calls.get(path[1:], 0.0)
