"""Points in time that wait for each other, and when each comes.

A point is the start or the end of an operation. An edge says that its target comes no earlier than a lag
after its source: `time[target] >= time[source] + lag`. Replay gives every point the earliest time that its
edges allow. Lags may be negative: a call may return before the clock of the device says that its work ended.

Two forms of one sweep. A trace is deep: chains of hundreds of thousands of calls and kernels, a few of them
side by side, so its edges are gone through one by one, compiled where Numba is installed (extra `replay`).
A job of many like ranks and steps is wide: its points are done level by level in NumPy, and many variants of
the lags at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..errors import LostflopsError

Int = npt.NDArray[np.int64]
Index = npt.NDArray[np.int32]

NEVER = np.iinfo(np.int64).min // 4
"""Earlier than any time: a point that nothing holds back and that has no time of its own."""
# From so many points a level on, NumPy's cost for a level is less than that of going through its edges.
WIDE = 64
FEW = 64  # levels that may be narrow
BLOCK = 1 << 20
# Importing Numba and compiling take a second, as long as going through so many edges does without.
COMPILED_FROM = 3_000_000
TIMES = 6  # so often at least a page goes through a graph's edges
WORTH = 32  # lags of variants, done by level, that take as long as one edge by itself


class Circle(LostflopsError):
    """The edges lead from a point back to itself, so none of the points on the way can come first."""

    def __init__(self, points: Int) -> None:
        named = ", ".join(map(str, points[:5].tolist()))
        super().__init__(
            f"{len(points):,} points of the dependency graph wait for each other in a circle: {named}…",
            "report it with the trace, if you may share it: rules that order a recording must not contradict",
        )
        self.points = points


@dataclass(frozen=True, eq=False)
class Graph:
    """`points` points and edges in an order in which every source is done before it is needed.

    `edge` is where each stands in the arrays that the graph was made of, so that lags and kinds of edges may
    be kept in the caller's own order. `levels` is where each level of a wide graph begins.
    """

    points: int
    source: Index
    target: Index
    edge: Int
    levels: Int | None = None

    @classmethod
    def of(cls, points: int, source: npt.ArrayLike, target: npt.ArrayLike, *, variants: int = 1) -> Graph:
        """The graph of these edges; `Circle` when they lead back to where they came from.

        `variants` is about how many sets of lags it will be asked about at once: levels then are wider.
        """
        sources, targets = np.asarray(source, np.int32), np.asarray(target, np.int32)
        # Machine code goes through edges one by one in less time than NumPy takes to find the levels.
        depth = None if _is_compiled(len(sources)) else _depths(points, sources, targets, variants)
        if depth is None:
            edge = np.argsort(_positions(points, sources, targets)[targets], kind="stable")
            return cls(points, sources[edge], targets[edge], edge)
        edge = np.lexsort((targets, depth[targets]))
        levels = depth[targets[edge]]
        begins = np.flatnonzero(np.r_[True, levels[1:] != levels[:-1], True]) if len(edge) else None
        return cls(points, sources[edge], targets[edge], edge, begins)

    def times(self, lags: Int, earliest: Int | int = 0) -> Int:
        """When each point comes, in the unit of the lags.

        `lags` has one row an edge, in the order in which the edges were given; a second axis holds variants,
        and the answer then has it too. `earliest` is when a point may come at best: one for all, or one each.
        """
        variants = lags.shape[1:]
        found = np.empty((self.points, *variants), np.int64)
        each = np.asarray(earliest, np.int64)
        found[...] = each.reshape(each.shape + (1,) * len(variants)) if each.ndim == 1 else each
        ordered = lags.take(self.edge, axis=0)
        if variants and _is_compiled(ordered.size // WORTH):
            sweep = cast(Any, _machine_code(_go_through_variants))
            many = int(np.prod(variants))
            flat = np.ascontiguousarray(ordered.reshape(len(ordered), many))
            sweep(self.source, self.target, flat, found.reshape(self.points, many))
        elif self.levels is not None:
            self._by_level(self.levels, ordered, found)
        elif not variants:
            _sweep(self.source, self.target, ordered, found)
        else:
            for variant in np.ndindex(*variants):
                column = np.ascontiguousarray(found[:, *variant])
                _sweep(self.source, self.target, np.ascontiguousarray(ordered[:, *variant]), column)
                found[:, *variant] = column
        return found

    def latest(self, lags: Int, end: Int | int) -> Int:
        """When each point may come at the latest, so that none comes later than `end`."""
        negative = np.broadcast_to(-np.asarray(end, np.int64), (self.points,)).copy()
        backward = slice(None, None, -1)
        _sweep(self.target[backward], self.source[backward], lags[self.edge][backward], negative)
        return -negative

    def binding(self, lags: Int, times: Int) -> Int:
        """For each point the edge that it waited for longest, as given; -1 where its own time held it."""
        binds = np.flatnonzero(times[self.source] + lags[self.edge] == times[self.target])
        held, first = np.unique(self.target[binds], return_index=True)
        found = np.full(self.points, -1, np.int64)
        found[held] = self.edge[binds[first]]
        return found

    def path(self, lags: Int, times: Int, end: int) -> Int:
        """The edges that lead to point `end` without slack, from first to last: the critical path."""
        binding = self.binding(lags, times)
        came_from = np.empty(len(self.edge), np.int64)
        came_from[self.edge] = self.source
        edges, point = list[int](), end
        while (edge := int(binding[point])) >= 0:
            edges.append(edge)
            point = int(came_from[edge])
        return np.array(edges[::-1], np.int64)

    @cached_property
    def _held(self) -> _Held:
        """The points that each level brings."""
        assert self.levels is not None
        # A point is in one level only, so that where targets change a point begins, whatever its level.
        first = np.flatnonzero(_changes(self.target))
        bounds = np.searchsorted(first, self.levels)
        level = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return _Held(self.target[first], first - self.levels[level], bounds.tolist())

    def _by_level(self, levels: Int, lags: Int, found: Int) -> None:
        held, source, edges = self._held, self.source, levels.tolist()
        for level in range(len(edges) - 1):
            begin, end = edges[level], edges[level + 1]
            low, high = held.bounds[level], held.bounds[level + 1]
            reached = found.take(source[begin:end], axis=0)
            reached += lags[begin:end]
            if high - low < end - begin:
                reached = np.maximum.reduceat(reached, held.first[low:high])
            points = held.points[low:high]
            found[points] = np.maximum(found.take(points, axis=0), reached)


class _Held(NamedTuple):
    """The targets of all levels, each once: `points`, where the edges of each begin in its level, and from
    which to which a level holds."""

    points: Index
    first: Int
    bounds: list[int]


def _changes(ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values differ from the one before them; the first does."""
    changes = np.ones(len(ordered), bool)
    changes[1:] = ordered[1:] != ordered[:-1]
    return changes


def _depths(points: int, source: Index, target: Index, variants: int) -> Index | None:
    """The edges on the longest way to each point, found a level at a time; None where levels are narrow."""
    outgoing, first = _outgoing(points, source, target)
    waits = np.bincount(target, minlength=points)
    depth = np.zeros(points, np.int32)
    ready = np.flatnonzero(waits == 0)
    level = done = 0
    while len(ready):
        depth[ready] = level
        done += len(ready)
        level += 1
        if level * WIDE > done * variants + WIDE * FEW:
            return None
        freed = outgoing[_spans(first[ready], first[ready + 1])]
        np.subtract.at(waits, freed, 1)
        ready = np.unique(freed[waits[freed] == 0])
    if done < points:
        raise Circle(np.flatnonzero(waits > 0))
    return depth


def _spans(begin: Int, end: Int) -> Int:
    """Every number from each `begin` up to its `end`, one span after the other."""
    sizes = end - begin
    before = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    return np.arange(total) + np.repeat(begin - before, sizes)


def _outgoing(points: int, source: Index, target: Index) -> tuple[Int, Int]:
    """The targets of each point's edges, one point after the other, and where each point's begin."""
    outgoing = np.argsort(source, kind="stable")
    first = np.zeros(points + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=points), out=first[1:])
    return target[outgoing].astype(np.int64), first


def _positions(points: int, source: Index, target: Index) -> Index:
    """Where each point stands in an order in which sources come before targets (Kahn's algorithm)."""
    outgoing, first = _outgoing(points, source, target)
    waits = np.bincount(target, minlength=points).astype(np.int64)
    order = np.zeros(points, np.int64)
    number, compiled = _compiled(_number, len(source))
    given = (first, outgoing, waits, order)
    if compiled:
        known = number(*given)
    else:
        lists = tuple(array.tolist() for array in given)
        known = number(*lists)
        order, waits = np.array(lists[3], np.int64), np.array(lists[2], np.int64)
    if known < points:
        raise Circle(np.flatnonzero(waits > 0))
    position = np.empty(points, np.int32)
    position[order] = np.arange(points, dtype=np.int32)
    return position


def _sweep(source: Index, target: Index, lags: Int, times: Int) -> None:
    go_through, compiled = _compiled(_go_through, len(source))
    if compiled:
        go_through(source, target, lags, times)
        return
    known: list[int] = times.tolist()
    for begin in range(0, len(source), BLOCK):
        block = slice(begin, begin + BLOCK)
        go_through(source[block].tolist(), target[block].tolist(), lags[block].tolist(), known)
    times[:] = known


def _number(first: Any, target: Any, waits: Any, order: Any) -> int:
    known = 0
    for point in range(len(waits)):
        if waits[point] == 0:
            order[known] = point
            known += 1
    done = 0
    while done < known:
        point = order[done]
        done += 1
        for waiting in target[first[point] : first[point + 1]]:
            waits[waiting] -= 1
            if waits[waiting] == 0:
                order[known] = waiting
                known += 1
    return known


def _go_through(source: Any, target: Any, lags: Any, times: Any) -> None:
    for begin, end, lag in zip(source, target, lags):  # noqa: B905 - Numba knows no `strict`
        reached = times[begin] + lag
        if reached > times[end]:
            times[end] = reached


def _go_through_variants(source: Any, target: Any, lags: Any, times: Any) -> None:
    for edge in range(len(source)):
        begin, end = source[edge], target[edge]
        for variant in range(lags.shape[1]):
            reached = times[begin, variant] + lags[edge, variant]
            if reached > times[end, variant]:
                times[end, variant] = reached


def _pays(edges: int) -> bool:
    """Whether this process went, or soon will have gone, through as many edges as compiling costs."""
    return _Gone.through + TIMES * edges >= COMPILED_FROM


def _is_compiled(edges: int) -> bool:
    """Whether loops over so many edges run as machine code."""
    return _pays(edges) and _machine_code(_go_through) is not None


def _compiled(loop: Callable[..., Any], edges: int) -> tuple[Callable[..., Any], bool]:
    """The loop as machine code where that pays and Numba is installed; else as it stands, which lists serve
    best."""
    machine_code = _machine_code(loop) if _pays(edges) else None
    _Gone.through += edges
    return (loop, False) if machine_code is None else (machine_code, True)


class _Gone:
    through = 0  # edges, by either loop, in this process


@cache
def _machine_code(loop: Callable[..., Any]) -> Callable[..., Any] | None:
    try:
        njit = cast(Any, import_module("numba")).njit
    except ImportError:
        return None
    try:
        return njit(cache=True)(loop)  # kept beside this file's bytecode, or in the user's cache folder
    except RuntimeError:  # neither can be written
        return njit(loop)
