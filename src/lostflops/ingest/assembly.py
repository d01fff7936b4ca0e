"""Put what was read of each source into one run: ranks numbered, recordings in order, clocks aligned."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops import run_folder
from lostflops.errors import DifferentJobs, LostflopsError, NothingRecorded, SameRankTwice
from lostflops.ingest import formats, processes
from lostflops.ingest.groups import members
from lostflops.ingest.part import Part, held_table
from lostflops.ingest.steps import counted, numbering
from lostflops.ingest.times import clocks
from lostflops.store.parts import write_part, write_parts
from lostflops.store.trace import FORMAT, NO_LINK, Manifest, Quality, Source, Trace, write_manifest
from lostflops.tables import RANKS, TABLES
from lostflops.version import __version__

LARGEST_RANK = 2**31 - 1
# Times from September 2001 on are taken for UTC; clocks that count from a boot or a session are below.
EARLIEST_UTC = 10**18
# A host's clock may be wrong by its time zone. What is further away was recorded on another day.
LARGEST_CORRECTION = 24 * 3600 * 10**9
# Clocks drift by less than this, and ranks leave a collective within that; no two runs are so alike.
DRIFT_OF_ONE_RUN, LARGEST_SCATTER = 1e-4, 50_000
# Ranks that begin to record at one step have no more time between their recordings.
LONGEST_PAUSE = 10 * 10**9
UNNAMED = "rank not recorded"
UNKNOWN_PEERS = "messages to or from unknown ranks"
WHY_UNKNOWN = (
    "the recording numbers the members of each communicator: give the files of all of them, or record from "
    "where communicators are made"
)

# Per rank its recordings: on which clock, from when to when.
Spans = Mapping[int, Sequence[tuple[str, int, int]]]
# By table its rows that no file holds yet: rank, number of the recording, and the rows.
Held = dict[str, list[tuple[int, int, pl.DataFrame]]]


def assemble(
    read: Sequence[tuple[Source, list[Part]]],
    notes: Sequence[Quality],
    folder: Path,
    machine: Mapping[str, pl.DataFrame] | None = None,
) -> None:
    """Give every part its rank, move its tables into `folder`, align clocks and write the manifest.

    `notes` go into the manifest with what the parts say of themselves, `machine` holds tables of what the job
    ran on. Raises SameRankTwice, DifferentJobs or NothingRecorded.
    """
    every = [(source, part) for source, parts in read for part in parts]
    if not every:
        raise NothingRecorded(Path(read[0][0].name), "no process left anything")
    # What a monitor saw is all there is, or it comes beside what else tells of the ranks.
    flat = [(source, part) for source, part in every if not part.beside] or every
    beside = [part for _, part in every if part.beside and len(flat) < len(every)]
    sources = [source for source, _ in read]
    parts = [part for _, part in flat]
    names = [source.name for source, _ in flat]
    quality = [*notes]
    _require_different_sessions(flat)
    epochs = _epochs(flat, quality) if len(sources) > 1 else [0] * len(flat)
    members.forget_smaller_worlds(parts, names)
    ranks = _numbered(flat, names, epochs, quality)
    hosts = _hosts(flat)
    recordings: dict[int, list[int]] = {}
    # Recordings of one rank follow each other in time, whatever their files are called.
    for number in sorted(range(len(flat)), key=lambda n: parts[n].start + epochs[n]):
        recordings.setdefault(ranks[number], []).append(number)
    rows: list[dict[str, Any]] = []
    steps: list[pl.DataFrame] = []
    held: Held = {}
    joined = members.members(parts, ranks)
    for rank in dict.fromkeys(ranks):
        mine = recordings[rank]
        # A run moves the times of a rank by one offset, that of its first recording.
        shifts = [epochs[n] - epochs[mine[0]] for n in mine]
        recorded = [(parts[n], shift) for n, shift in zip(mine, shifts, strict=True)]
        steps += _place(folder, rank, recorded, held, joined, quality)
        part = parts[mine[0]]
        rows.append(
            {
                **{k: v for k, v in part.facts.items() if k in RANKS.schema},
                "groups": members.told(part.facts.get("groups"), joined),
                "rank": rank,
                "start": part.start,
                "end": max(parts[n].end + shift for n, shift in zip(mine, shifts, strict=True)),
                "host": hosts[mine[0]],
                "world_size": part.world_size,
                "rank_source": part.rank_source,
            }
        )
    offsets = {rank: epochs[mine[0]] for rank, mine in recordings.items()}
    known = list(zip(ranks, parts, strict=True))
    parts = [*parts, *_place_beside(folder, _comparable(flat, beside), known, offsets, quality)]
    for name, frames in held.items():
        write_parts(folder, name, frames)
    tables = {"ranks", *(table for part in parts for table in part.tables), *(machine or {})}
    for name, frame in (machine or {}).items():
        by_rank = frame.partition_by("rank", as_dict=True).items()
        write_parts(folder, name, [(rank, 0, rows_of_rank) for (rank,), rows_of_rank in by_rank])
    manifest = Manifest(
        format=FORMAT,
        lostflops=__version__,
        clock=_clock_name(flat[0][0], moved=any(epochs)),
        origin_ns=min(row["start"] + offsets[row["rank"]] for row in rows),
        sources=sources,
        tables=sorted(tables, key=list(TABLES).index),
        num_events=sum(part.num_events for part in parts),
        quality=quality,
        offsets={str(rank): ns for rank, ns in offsets.items() if ns},
        absent={k: v for part in parts for k, v in part.absent.items() if k not in tables},
    )
    _write_ranks(folder, rows)
    if len(rows) > 1:
        spans = _spans(flat, ranks, epochs)
        moved = _align(folder, manifest, rows, spans) if "collectives" in tables else {}
        quality += _different_times(spans, moved)
    _place_steps(folder, steps, (machine or {}).get("step_log"), manifest, rows)
    write_manifest(folder, manifest)


def _epochs(flat: list[tuple[Source, Part]], quality: list[Quality]) -> list[int]:
    """What to add to each part's times to compare them with the others': when its own clock began, in UTC.

    Sources of some formats have clocks of their own; the others count from UTC already.
    """
    unknown = [
        source.name for source, part in flat if formats.own_clock(source.format) and part.epoch_ns is None
    ]
    if unknown:
        text = f"{unknown[0]} does not say when its clock began; only their collectives can align the reports"
        quality.append(Quality(None, "clocks unrelated", len(set(unknown)), text, "warning"))
        return [0] * len(flat)
    return [part.epoch_ns or 0 for _, part in flat]


def _place(
    folder: Path,
    rank: int,
    recordings: list[tuple[Part, int]],
    held: Held,
    joined: members.Members,
    quality: list[Quality],
) -> list[pl.DataFrame]:
    """Move the tables of a rank's recordings into the run, or to those `held` in memory, their times shifted.

    Their steps, numbered on, are given back: which of them count is known when those of all ranks are.
    """
    last_step: int | None = None
    steps: list[pl.DataFrame] = []
    for number, (part, shift) in enumerate(recordings):
        for name in part.tables:
            written, frame = Path(part.folder) / f"{name}.parquet", held_table(part, name)
            by_place = name == "collectives" and part.peers_by_place
            if name != "steps" and not shift and not by_place:
                if frame is not None:
                    held.setdefault(name, []).append((rank, number, frame))
                    continue
                place = folder / name / f"rank={rank}"
                place.mkdir(parents=True, exist_ok=True)
                written.rename(place / f"part-{number}.parquet")
                continue
            large = frame is None
            frame = pl.read_parquet(written, glob=False) if frame is None else frame
            if by_place:
                frame, unknown = members.joined(frame, joined)
                quality += [Quality(rank, UNKNOWN_PEERS, unknown, WHY_UNKNOWN)] if unknown else []
            frame = frame.with_columns(pl.col(TABLES[name].times) + shift)
            if name == "steps" and frame.height:
                lowest = int(frame["step"].min())  # pyright: ignore[reportArgumentType]
                if last_step is not None and lowest <= last_step:
                    frame = frame.with_columns(pl.col("step") + (last_step + 1 - lowest))
                    text = (
                        "its recordings count steps from the same number: if they are of two jobs, give one"
                    )
                    quality.append(Quality(rank, "steps renumbered", frame.height, text, "warning"))
                last_step = int(frame["step"].max())  # pyright: ignore[reportArgumentType]
            if name == "steps":
                steps.append(frame.with_columns(rank=pl.lit(rank, pl.Int32), recording=number))
            elif large:
                write_part(folder, name, rank, frame, number)
            else:
                held.setdefault(name, []).append((rank, number, frame))
        quality += [msgspec.structs.replace(fact, rank=rank) for fact in part.quality]
    return steps


def _place_steps(
    folder: Path,
    steps: list[pl.DataFrame],
    step_log: pl.DataFrame | None,
    manifest: Manifest,
    rows: list[dict[str, Any]],
) -> None:
    """Write the steps of all ranks, and which of them count. Raises StepsOverlap."""
    if not steps:
        return
    every = pl.concat(steps)
    if step_log is None:  # which counts for all ranks
        compared = [row["rank"] for row in rows if row.get("clock_error") is not None]
        offsets = {rank: manifest.offsets.get(str(rank), 0) for rank in compared}
        every, told = numbering.alike(every, offsets)
        manifest.quality += told
    judged = counted.judged(every, step_log)
    apart = judged.partition_by("rank", "recording", as_dict=True).items()
    write_parts(folder, "steps", [(rank, number, mine.drop("recording")) for (rank, number), mine in apart])


def _comparable(flat: list[tuple[Source, Part]], beside: list[Part]) -> list[Part]:
    """Those of `beside`, unless a recording does not say when its clock began: then where they belong is not
    known."""
    dated = all(not formats.own_clock(source.format) or part.epoch_ns is not None for source, part in flat)
    return beside if dated else []


def _place_beside(
    folder: Path,
    beside: Sequence[Part],
    known: Sequence[tuple[int, Part]],
    offsets: Mapping[int, int],
    quality: list[Quality],
) -> list[Part]:
    """Move the tables of parts that only add to ranks into the run, and give those that had a place.

    Their times are UTC; a rank's are on its recording's own clock.
    """
    placed: list[Part] = []
    homes: dict[str, int] = {}
    for rank, part in known:
        if part.host is not None:
            homes[part.host] = min(rank, homes.get(part.host, rank))
    for number, part in enumerate(beside, start=len(known)):
        rank = part.rank if part.rank is not None else homes.get(part.host or "")
        if rank is None or rank not in offsets:
            text = "no rank here ran on its node" if rank is None else f"no trace here is of rank {rank}"
            quality.append(Quality(None, "monitor left out", 1, text, "warning"))
            continue
        for name in part.tables:
            place = folder / name / f"rank={rank}"
            place.mkdir(parents=True, exist_ok=True)
            frame = pl.scan_parquet(Path(part.folder) / f"{name}.parquet", glob=False)
            frame.with_columns(pl.col(TABLES[name].times) - offsets[rank]).sink_parquet(
                place / f"part-{number}.parquet", compression="lz4", statistics=False
            )
        spans = [(p.start + offsets[r], p.end + offsets[r]) for r, p in known if r == rank]
        if not any(start < part.end and part.start < end for start, end in spans):
            text = "the monitor's samples and the rank's trace are of different times"
            quality.append(Quality(rank, "monitor elsewhere", 1, text, "warning"))
        quality += [msgspec.structs.replace(fact, rank=rank) for fact in part.quality]
        placed.append(part)
    return placed


def _write_ranks(folder: Path, rows: list[dict[str, Any]]) -> None:
    schema: Any = RANKS.schema
    shutil.rmtree(folder / "ranks", ignore_errors=True)
    told: list[tuple[int, int, pl.DataFrame]] = []
    for row in rows:
        full = {name: _fitting(row.get(name), dtype) for name, dtype in schema.items()}
        told.append((row["rank"], 0, pl.DataFrame([full], schema=schema, strict=False)))
    write_parts(folder, "ranks", told)


def _fitting(value: Any, dtype: Any) -> Any:
    """The value, or None for a number that its column cannot hold."""
    if not isinstance(value, int) or not dtype.is_integer():
        return value
    return (
        pl.Series([value], dtype=pl.Int128).cast(dtype, strict=False).item() if abs(value) < 2**127 else None
    )


def _spans(flat: list[tuple[Source, Part]], ranks: list[int], epochs: list[int]) -> Spans:
    spans: dict[int, list[tuple[str, int, int]]] = {}
    for (source, part), rank, epoch in zip(flat, ranks, epochs, strict=True):
        start, end = part.start + epoch, part.end + epoch
        clock = "UTC" if start >= EARLIEST_UTC else f"source {id(source)}"
        if part.tables:
            spans.setdefault(rank, []).append((clock, start, end))
    return spans


def _align(folder: Path, manifest: Manifest, rows: list[dict[str, Any]], spans: Spans) -> dict[int, int]:
    """Measure how far the ranks' clocks are apart, move those that no noise explains, and give by how much.

    A clock that counts from UTC is not moved to what another recording did.
    """
    moved: dict[int, int] = {}
    trace = Trace(folder, manifest)
    collectives, ranks = trace.table("collectives"), trace.table("ranks")
    assert collectives is not None and ranks is not None
    unnamed = {fact.rank for fact in manifest.quality if fact.name == UNNAMED}
    clocks.require_meetings(collectives, ranks, unnamed, [source.name for source in manifest.sources])
    found = {r["rank"]: r for r in clocks.clock_offsets(collectives, ranks).iter_rows(named=True)}
    for row in rows:
        measured = found.get(row["rank"])
        if measured is None:
            continue
        offset, error = int(measured["offset"]), int(measured["error"])
        length = _length([span for span in spans.get(row["rank"], ()) if span[0] == "UTC"])
        far = length is not None and abs(offset) > length
        exact = length is not None and error <= LARGEST_SCATTER + DRIFT_OF_ONE_RUN * length
        if far and not (exact and abs(offset) <= LARGEST_CORRECTION):
            continue  # another recording, in which the same was done
        row["clock_error"] = error
        row["clock_offset"] = offset
        if offset:
            moved[row["rank"]] = offset
            key = str(row["rank"])
            manifest.offsets[key] = manifest.offsets.get(key, 0) + offset
            text = f"by {offset:,} ns, so that collectives end together; {error:,} ns remain uncertain"
            if far:
                text += "; that is longer than its recording lasts: check that all are of one run"
            level = "warning" if far else "note"
            manifest.quality.append(Quality(row["rank"], "clock moved", abs(offset), text, level))
    _write_ranks(folder, rows)
    return moved


def _length(spans: Sequence[tuple[str, int, int]]) -> int | None:
    if not spans:
        return None
    return max(end for *_, end in spans) - min(start for _, start, _ in spans)


def _different_times(spans: Spans, moved: Mapping[int, int]) -> list[Quality]:
    """A warning where ranks on one clock were never recorded at the same time, nor at that of a third."""
    clocks: dict[str, list[tuple[int, int, int]]] = {}
    for rank, mine in spans.items():
        for clock, start, end in mine:
            clocks.setdefault(clock, []).append((start + moved.get(rank, 0), end + moved.get(rank, 0), rank))
    told: list[Quality] = []
    for recordings in clocks.values():
        together = sorted(_together(recordings), key=len, reverse=True)
        if len(together) == 1:
            continue
        begin = {rank: start for start, _, rank in sorted(recordings, reverse=True)}
        first = min(together[0], key=lambda rank: (begin[rank], rank))
        others = [rank for ranks in together[1:] for rank in ranks]
        apart = {rank: begin[rank] - begin[first] for rank in others}
        furthest = max(others, key=lambda rank: abs(apart[rank]))
        side = "after" if apart[furthest] > 0 else "before"
        text = (
            f"rank {furthest}'s recording begins {_long(abs(apart[furthest]))} {side} rank {first}'s, and "
            "they have no time in common: who waited for whom is not known. Give recordings of the same steps"
        )
        told.append(Quality(None, "recordings of different times", len(others), text, "warning"))
    return told


def _together(recordings: list[tuple[int, int, int]]) -> list[set[int]]:
    """Ranks that some of their recordings, given as start, end and rank, connect."""
    groups: list[set[int]] = []
    until: int | None = None
    for start, end, rank in sorted(recordings):
        if until is None or start > until:
            groups.append(set())
        groups[-1].add(rank)
        until = end if until is None else max(until, end)
    connected: list[set[int]] = []
    for group in groups:
        apart = [known for known in connected if known.isdisjoint(group)]
        connected = [*apart, group.union(*(known for known in connected if not known.isdisjoint(group)))]
    return connected


def _long(ns: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600)):
        if ns >= 2 * length * 10**9:
            return f"{ns / (length * 10**9):,.1f} {unit}"
    return f"{ns / 10**9:,.3f} s"


def _numbered(
    flat: list[tuple[Source, Part]], names: list[str], epochs: list[int], quality: list[Quality]
) -> list[int]:
    """The rank of each part. Raises SameRankTwice when two of the same time claim one rank."""
    parts = [part for _, part in flat]
    first = processes.one(parts, epochs)
    _share_what_is_told(parts, first)
    ranks = [part.rank if part.rank is not None and part.rank <= LARGEST_RANK else None for part in parts]
    _require_one_job(parts, names)
    _require_one_day(parts, names, epochs, first)
    _require_a_link(flat, names, epochs, first, quality)
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for part, rank, name, epoch in zip(parts, ranks, names, epochs, strict=True):
        if rank is None:
            continue
        start, end = part.start + epoch, part.end + epoch
        for other_start, other_end, other in spans.get(rank, []):
            if start < other_end and other_start < end:
                raise SameRankTwice(rank, other, name)
        spans.setdefault(rank, []).append((start, end, name))
    taken = {r for r in ranks if r is not None}
    free = (r for r in range(len(parts) + len(taken) + 1) if r not in taken)
    numbered: list[int] = []
    for place, (part, rank, name) in enumerate(zip(parts, ranks, names, strict=True)):
        if rank is None and first[place] != place:
            rank = numbered[first[place]]
        elif rank is None and part.beside:  # samples of a node are of no rank
            rank = next(free)
        elif rank is None:
            rank = next(free)
            text = f"{name} does not say which rank it is: assumed to be rank {rank}"
            if len(parts) > 1:
                several = names.count(name) > 1
                text = (
                    f"{name} names no ranks: they are numbered in the order of its devices"
                    if several
                    else "the files do not say: numbered in the order of the files"
                )
            # The devices of one process are told apart for certain; which is which does not matter.
            level = "warning" if len(set(first)) > 1 and len(set(names)) > 1 else "note"
            quality.append(Quality(rank, UNNAMED, 1, text, level))
        numbered.append(rank)
    _require_room(parts, names, numbered)
    return numbered


def _require_room(parts: list[Part], names: list[str], numbered: list[int]) -> None:
    """A job has no more ranks than its files say, however few of them say which they are."""
    sized = next(
        ((part.world_size, name) for part, name in zip(parts, names, strict=True) if part.world_size), None
    )
    unnamed = [name for part, name in zip(parts, names, strict=True) if part.rank is None and not part.beside]
    if sized is not None and unnamed and len(set(numbered)) > sized[0]:
        text = f"one has {sized[0]} ranks, and with the other there are {len(set(numbered))}"
        raise DifferentJobs(sized[1], unnamed[-1], text)


def _require_one_day(parts: list[Part], names: list[str], epochs: list[int], first: list[int]) -> None:
    """Files that name no rank are ranks of one job only where they were recorded together, or nearly."""
    dated = [
        (part.start + epoch, part.end + epoch, process, part.rank, name)
        for part, name, epoch, process in zip(parts, names, epochs, first, strict=True)
        if part.start + epoch >= EARLIEST_UTC and not part.beside
    ]
    for start, end, process, rank, name in dated:
        others = [
            (max(a - end, start - b), n) for a, b, other, _, n in dated if other != process and n != name
        ]
        if rank is not None or not others:
            continue
        apart, nearest = min(others)
        if apart > LARGEST_CORRECTION:
            text = f"they were recorded {_long(apart)} apart, and {name} does not say which rank it is"
            raise DifferentJobs(name, nearest, text)


def _require_a_link(
    flat: list[tuple[Source, Part]],
    names: list[str],
    epochs: list[int],
    first: list[int],
    quality: list[Quality],
) -> None:
    """Raise where nothing shows that a file which names no rank is of the job of any other.

    Ranks of a job talk to each other, or were recorded in one session or at one time, as far as their clocks
    can be compared. Where they have the time in common and nothing else, that is told.
    """
    every = [
        (source, part, epoch, name, process)
        for (source, part), epoch, name, process in zip(flat, epochs, names, first, strict=True)
        if not part.beside
    ]
    for source, part, epoch, name, process in every:
        others = [other for other in every if other[4] != process and other[0] is not source]
        if part.rank is not None or "collectives" in part.tables or part.places or not others:
            continue
        if any(other[0] is source and other[1] is not part for other in every):
            continue  # one of several ranks of its file
        if part.session is not None and any(part.session == other.session for _, other, *_ in others):
            continue
        if part.process is not None and part.process.identity is not None:
            continue  # `lostflops record` saw the job's processes start
        start, end = part.start + epoch, part.end + epoch
        together = [
            theirs
            for their_source, other, their_epoch, theirs, _ in others
            if _has_one_clock((source, part), (their_source, other))
            and max(start - other.end - their_epoch, other.start + their_epoch - end) <= LONGEST_PAUSE
        ]
        if not together:
            raise LostflopsError(
                f"{name} and {others[0][3]} share nothing that ranks of one job do: {name} names no rank and "
                "has no collectives, and they have no time in common.",
                "give the files of one job. If these are, begin their names with `rank0`, `rank1` and so on.",
            )
        text = (
            f"{name} names no rank, has no collectives, and was only recorded at about the time of "
            f"{together[0]}: if they are of several jobs, give the files of one"
        )
        quality.append(Quality(None, NO_LINK, 1, text, "warning"))
        return


def _has_one_clock(*two: tuple[Source, Part]) -> bool:
    """Whether the times of both are counted from one moment, as far as is known."""
    return all(part.epoch_ns is not None or not formats.own_clock(source.format) for source, part in two)


def _share_what_is_told(parts: list[Part], first: list[int]) -> None:
    """Give all parts of a process the rank and size that one of them tells.

    A process that no launcher told of a rank, and that `record` saw alone, is the whole job.
    """
    told = {first[place]: part for place, part in enumerate(parts) if part.rank is not None}
    alone = len(set(first)) == 1
    for place, part in enumerate(parts):
        known = told.get(first[place])
        if part.rank is None and known is not None:
            part.rank, part.rank_source, part.world_size = known.rank, known.rank_source, known.world_size
        elif part.rank is None and alone and part.rank_source == run_folder.ASSUMED:
            part.rank, part.rank_source, part.world_size = 0, "the only process", 1


def _require_one_job(parts: list[Part], names: list[str]) -> None:
    """Ranks of one job agree on how many they are, and several recordings of one rank on more than that."""
    sized = [(part.world_size, name) for part, name in zip(parts, names, strict=True) if part.world_size]
    for size, name in sized[1:]:
        if size != sized[0][0]:
            raise DifferentJobs(sized[0][1], name, f"one has {sized[0][0]} ranks, the other {size}")
    known: dict[int, tuple[Part, str]] = {}
    for part, name in zip(parts, names, strict=True):
        if part.rank is None:
            continue
        other, other_name = known.setdefault(part.rank, (part, name))
        numbers = {p.process.number for p in (part, other) if p.process is not None} - {None}
        if len(numbers) > 1:
            first, second = (p.process and p.process.number for p in (other, part))
            by_name = part.rank_source == other.rank_source == "file name"
            local = ", or of two machines, whose ranks these names count apart" if by_name else ""
            raise LostflopsError(
                f"{other_name} and {name} are both rank {part.rank}, but of two processes, {first} and "
                f"{second}: of two jobs, or of one that was started again{local}.",
                "give the files of one start of one job"
                + (", named by the rank in the job, as in 'rank8.json'." if local else "."),
            )
        same = ("world_size", "host"), ("gpu", "backend", "source")
        if any(getattr(part, k) != getattr(other, k) for k in same[0]) or any(
            part.facts.get(k) != other.facts.get(k) for k in same[1]
        ):
            raise DifferentJobs(
                other_name, name, f"both are rank {part.rank}, but of jobs with other sizes, hosts or devices"
            )


def _hosts(flat: list[tuple[Source, Part]]) -> list[int | None]:
    """Hosts as numbers, in the order in which they appear; their names stay behind.

    Ranks of one source were recorded on one host, whether or not the source names it.
    """
    seen: dict[str, int] = {}
    sources = [id(source) for source, _ in flat]
    keys = [p.host or (f"source {id(s)}" if sources.count(id(s)) > 1 else None) for s, p in flat]
    return [None if key is None else seen.setdefault(key, len(seen)) for key in keys]


def _require_different_sessions(flat: list[tuple[Source, Part]]) -> None:
    """Raise where two sources are of one session and time; it may be recorded in several reports."""
    sessions: dict[str, list[tuple[int, int, Source]]] = {}
    for source, part in flat:
        if part.session is None:
            continue
        start, end = (time + (part.epoch_ns or 0) for time in (part.start, part.end))
        others = sessions.setdefault(part.session, [])
        for begins, ends, other in others:
            if other is not source and start < ends and begins < end:
                raise LostflopsError(
                    f"{other.name} and {source.name} are exports of one recording session.",
                    "give one of them.",
                )
        others.append((start, end, source))


def _clock_name(source: Source, *, moved: bool) -> str:
    if not moved and (since := formats.own_clock(source.format)):
        return f"nanoseconds since {since}"
    return "nanoseconds since the Unix epoch, as the source wrote them"
