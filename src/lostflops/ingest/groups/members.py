"""Tell who is in which communicator, once all files of a job are read.

A process knows its place in each communicator that it joined, and how many are in it. Which rank of the job
stands at another place, only the file of that rank says. A recording that began later does not show how
communicators were joined: then what the members send to which place and receive from which tells where each
of them stands, if there is one way only in which all of it fits together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lostflops.ingest import processes
from lostflops.ingest.part import Part, PlaceInGroup
from lostflops.tables import NAME

COMMUNICATOR = "NCCL communicator"  # where a rank was read
LARGEST = 1 << 20  # ranks: no job has more, and what says so is damaged
# The ranks of each communicator by their places, of those that are known, and how many it has.
Members = Mapping[str, tuple[int, Mapping[int, int]]]


def forget_smaller_worlds(parts: Sequence[Part], names: Sequence[str]) -> None:
    """Take back ranks and sizes that are of a communicator which is not the job's.

    Each process took the largest communicator that it joined for that of all ranks. Where those of several
    processes are not one, or where a rank is told that has no place there, the job is larger. `names` are of
    the files.
    """
    told = [
        (part, _largest(part), _named(name, names))
        for part, name in zip(parts, names, strict=True)
        if part.world_size is not None and _largest(part)
    ]
    if not told:
        return
    common = set[str].intersection(*(set(largest) for _, largest, _ in told))
    size = min((told[0][1][name] for name in common), default=0)
    named = [rank for _, _, rank in told if rank is not None]
    apart = len(set(named)) == len(named) == len(told)
    claimed = [part.rank for part in parts if part.rank is not None] + (named if apart else [])
    if all(rank < size for rank in claimed):
        return
    for part, _, rank in told:
        part.world_size = None
        if part.rank_source == COMMUNICATOR:
            part.rank, part.rank_source = rank, "device order" if rank is None else "file name"


def _named(name: str, names: Sequence[str]) -> int | None:
    """The rank in the name of a file that is one process's alone."""
    return processes.rank_in_name(name) if names.count(name) == 1 else None


def _largest(part: Part) -> dict[str, int]:
    """The largest communicators that a process joined, with their size."""
    sizes = {name: told.size for name, told in part.places.items() if told.size is not None}
    return {name: size for name, size in sizes.items() if size == max(sizes.values())}


def members(parts: Sequence[Part], ranks: Sequence[int]) -> Members:
    """Who stands where in each communicator, as far as it is certain."""
    told: dict[str, list[tuple[int, PlaceInGroup]]] = {}
    numbering: set[str] = set()
    for part, rank in zip(parts, ranks, strict=True):
        for name, place in part.places.items():
            told.setdefault(name, []).append((rank, place))
            if part.rank_source == COMMUNICATOR and place.size == part.world_size:
                numbering.add(name)
    found = {name: _stated(mine, name in numbering) or _fitting(mine) for name, mine in told.items()}
    return {name: known for name, known in found.items() if known is not None}


def _stated(told: Sequence[tuple[int, PlaceInGroup]], numbers: bool) -> tuple[int, Mapping[int, int]] | None:
    """The ranks by the places that they say they have; None where none does, or two say the same.

    In a communicator that `numbers` the ranks, places are ranks, whoever is here.
    """
    sizes = {place.size for _, place in told if place.size is not None}
    at: dict[int, int] = {}
    for rank, place in told:
        if place.place is not None and at.setdefault(place.place, rank) != rank:
            return None
    if len(sizes) > 1 or not at:
        return None
    size = max(sizes, default=0)  # 0: not known
    if size > LARGEST:
        return None
    if numbers and all(place == rank for place, rank in at.items()):
        return size, {place: place for place in range(size)}
    return size, at


def _fitting(told: Sequence[tuple[int, PlaceInGroup]]) -> tuple[int, Mapping[int, int]] | None:
    """The only way in which the ranks can stand where what they send arrives; None where there are others.

    Whoever stands at a place receives from all that send to it, and sends to all that receive from it. Places
    that cannot be are struck off until nothing changes.
    """
    if any(place.place is not None or place.size is not None for _, place in told):
        return None
    sends = {rank: place.sends for rank, place in told}
    receives = {rank: place.receives for rank, place in told}
    size = len(sends)
    if len(told) != size or any(peer >= size for rank in sends for peer in sends[rank] | receives[rank]):
        return None
    to = [{rank for rank in sends if place in sends[rank]} for place in range(size)]
    by = [{rank for rank in sends if place in receives[rank]} for place in range(size)]
    may = {rank: set(range(size)) - sends[rank] - receives[rank] for rank in sends}

    def fits(rank: int, place: int) -> bool:
        return all(
            len(ranks) == len(places)
            and all(may[other] & places for other in ranks)
            and all(any(at in may[other] for other in ranks) for at in places)
            for ranks, places in ((to[place], receives[rank]), (by[place], sends[rank]))
        )

    changed = True
    while changed:
        left = {rank: {place for place in places if fits(rank, place)} for rank, places in may.items()}
        taken = {rank: next(iter(places)) for rank, places in left.items() if len(places) == 1}
        left = {
            rank: {place for place in places if rank in taken or place not in taken.values()}
            for rank, places in left.items()
        }
        changed, may = left != may, left
    at = {places.pop(): rank for rank, places in may.items() if len(places) == 1}
    return (size, at) if len(at) == size > 1 else None


def told(groups: Sequence[Mapping[str, Any]] | None, known: Members) -> list[dict[str, Any]] | None:
    """The groups of a rank with their ranks, where all of them are known."""
    if groups is None:
        return None
    return [{**group, "ranks": _ranks(group["name"], known) or group["ranks"]} for group in groups]


def joined(collectives: pl.DataFrame, known: Members) -> tuple[pl.DataFrame, int]:
    """Operations with the ranks in the names of their groups, and peers as ranks; null where not known, and
    how often that is so.

    Until here a peer is a place in its communicator.
    """
    group = pl.col("group").cast(pl.String)
    here = [name for name in collectives.select(group.unique())["group"].to_list() if name in known]
    ranks = {name: f"{name} {listed}" for name in here if (listed := _ranks(name, known))}
    places = pl.DataFrame(
        [(name, place, rank) for name in here for place, rank in known[name][1].items()],
        schema={"_group": pl.String, "peer": pl.Int32, "_rank": pl.Int32},
        orient="row",
    )
    told = (
        collectives.with_columns(_group=group)
        .join(places, on=["_group", "peer"], how="left", maintain_order="left")
        .with_columns(peer="_rank", group=group.replace(ranks).cast(NAME))
        .select(collectives.columns)
    )
    return told, told["peer"].null_count() - collectives["peer"].null_count()


def _ranks(name: str, known: Members) -> list[int]:
    """The ranks of a communicator in the order of their places; empty where some are not known."""
    size, at = known.get(name, (0, {}))
    return [at[place] for place in range(size)] if len(at) == size and set(at) == set(range(size)) else []
