"""From the paths a user gives to the tables of one job: find the sources, read each, put the ranks together.

What was read is kept in a store under the user's cache folder, keyed by the identity of the files, so the
second question about a trace does not read it again.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops import clocks, ingest
from lostflops.errors import (
    CannotWrite,
    DifferentJobs,
    LostflopsError,
    NothingThere,
    NoTraces,
    RanksMissing,
    SameRankTwice,
    Unreadable,
    revived,
    shown,
)
from lostflops.ingest.part import Part
from lostflops.ingest.worker import Reply, Task
from lostflops.installation import fingerprint
from lostflops.tables import RANKS, TABLES
from lostflops.trace import (
    FORMAT,
    MANIFEST,
    Manifest,
    Quality,
    Source,
    Trace,
    write_manifest,
    write_part,
    writing,
)
from lostflops.version import __version__

Progress = Callable[[str, float], None]
PathLike = str | Path
# Starting a process costs about as long as reading this much compressed trace.
WORTH_A_PROCESS = 4 << 20
EDGE = 64 << 10


def open(  # noqa: A001 - the public name
    paths: PathLike | Sequence[PathLike],
    *,
    salvage: bool = False,
    allow_missing_ranks: bool = False,
    output: Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The tables of the job whose traces lie at `paths`: files, folders, globs, or one imported run.

    The first call reads the traces into the store (or into `output`); later ones open what was stored.
    `progress` is told what is being done and the share done. Raises a LostflopsError that says what to do.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if output is None and len(given) == 1 and (Path(given[0]) / MANIFEST).is_file():
        return Trace.open(Path(given[0]))
    sources = find(given)
    identities = [_identity(source) for source in sources]
    stored = output or _cache() / _key(identities, salvage)
    if output is None and (stored / MANIFEST).is_file():
        try:
            trace = Trace.open(stored)
        except LostflopsError:
            shutil.rmtree(stored, ignore_errors=True)
        else:
            _require_ranks(trace, allow_missing_ranks)
            return trace
    with _named_store(output), writing(stored) as folder:
        parts = _read_all(sources, folder / "parts", salvage, progress)
        _assemble(sources, identities, parts, folder, progress)
        shutil.rmtree(folder / "parts")
        _require_ranks(Trace.open(folder), allow_missing_ranks)
    return Trace.open(stored)


@contextmanager
def _named_store(output: Path | None) -> Generator[None]:
    """Say how to choose another store when ours cannot be written."""
    try:
        yield
    except CannotWrite as error:
        if output is None and not error.hint:
            error.hint = "name a folder for the store that can be: LOSTFLOPS_CACHE=/some/folder lostflops …"
        raise


def find(paths: Sequence[PathLike]) -> list[Path]:
    """The sources that the paths name, sorted as a person would sort them.

    Raises NothingThere, NoTraces or Unreadable.
    """
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given).expanduser()
        try:
            if path.is_file() or (path.is_dir() and ingest.looks_like_trace(path)):
                matched = [path]
            elif path.is_dir():
                matched = list(_below(path))
                if not matched:
                    raise NoTraces(path, ingest.LOOKED_FOR)
            else:
                matched = [Path(m) for m in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - absolute globs
                matched = [p for m in matched for p in (_below(m) if m.is_dir() else [m])]
                if not matched:
                    raise NothingThere(given)
        except OSError as error:
            raise Unreadable(path, error) from error
        for match in matched:
            found.setdefault(match.resolve(), match)
    exported = {p.with_suffix("") for p in found if p.suffix == ".sqlite"}
    sources = [
        p
        for real, p in found.items()
        if not (real.suffix == ".nsys-rep" and real.with_suffix("") in exported)
    ]
    return sorted(sources, key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", str(p))])


def _below(folder: Path) -> Iterable[Path]:
    if ingest.looks_like_trace(folder):
        return [folder]
    files: list[Path] = []
    for here, folders, names in os.walk(folder):
        inside = Path(here)
        for name in [f for f in folders if ingest.looks_like_trace(inside / f)]:
            folders.remove(name)
            files.append(inside / name)
        files += [inside / n for n in names if not n.startswith(".") and ingest.looks_like_trace(inside / n)]
    return files


def _identity(source: Path) -> Source:
    """Name, size and a hash of size, time of change, and both ends of the content."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
        total = 0
        for file in files:
            stat = file.stat()
            total += stat.st_size
            digest.update(f"{file.name}|{stat.st_size}|{stat.st_mtime_ns}|".encode())
            with file.open("rb") as content:
                digest.update(content.read(EDGE))
                if stat.st_size > 2 * EDGE:
                    content.seek(-EDGE, os.SEEK_END)
                digest.update(content.read(EDGE))
    except OSError as error:
        raise Unreadable(source, error) from error
    return Source(shown(source.name), total, digest.hexdigest(), ingest.format_of(source))


def _key(sources: list[Source], salvage: bool) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{FORMAT}|{fingerprint()}|{salvage}".encode())
    for source in sources:
        digest.update(f"|{source.name}|{source.bytes}|{source.identity}".encode())
    return digest.hexdigest()


def _cache() -> Path:
    chosen = os.environ.get("LOSTFLOPS_CACHE")
    if chosen:
        return Path(chosen) / "runs"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lostflops" / "runs"


def _read_all(
    sources: list[Path], folder: Path, salvage: bool, progress: Progress | None
) -> list[list[Part]]:
    """The parts of each source, in order, read on as many cores as pay."""
    sizes = [s.stat().st_size if s.is_file() else WORTH_A_PROCESS for s in sources]
    whole = sum(sizes) or 1
    cores = len(os.sched_getaffinity(0))
    workers = min(len(sources), cores, max(1, whole // WORTH_A_PROCESS))
    done = [0.0] * len(sources)

    def tell(number: int, share: float) -> None:
        done[number] = share
        if progress:
            read = sum(d * s for d, s in zip(done, sizes, strict=True))
            progress(f"reading {shown(sources[number].name)}", read / whole)

    if workers <= 1:
        results: list[list[Part]] = []
        for i, source in enumerate(sources):
            results.append(
                ingest.read(
                    source,
                    folder / str(i),
                    salvage=salvage,
                    processes=cores,
                    progress=lambda share, i=i: tell(i, share),
                )
            )
            tell(i, 1.0)
        return results
    return _read_in_processes(sources, sizes, folder, salvage, workers, tell)


def _read_in_processes(
    sources: list[Path],
    sizes: list[int],
    folder: Path,
    salvage: bool,
    workers: int,
    tell: Callable[[int, float], None],
) -> list[list[Part]]:
    waiting = sorted(range(len(sources)), key=lambda i: sizes[i])  # the largest is taken first
    results: dict[int, list[Part]] = {}
    errors: dict[int, LostflopsError] = {}
    lock = threading.Lock()
    environment = {**os.environ, "POLARS_MAX_THREADS": str(max(1, len(os.sched_getaffinity(0)) // workers))}

    def work() -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "lostflops.ingest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None and process.stdout is not None
        number = 0
        try:
            while not errors:
                with lock:
                    if not waiting:
                        return
                    number = waiting.pop()
                task = Task(str(sources[number]), str(folder / str(number)), salvage)
                process.stdin.write(msgspec.json.encode(task) + b"\n")
                process.stdin.flush()
                while True:
                    line = process.stdout.readline()
                    if not line:
                        raise LostflopsError(
                            f"The process reading {shown(sources[number].name)} ended without an answer.",
                            "it may have run out of memory; read fewer files at a time.",
                        )
                    reply = msgspec.json.decode(line, type=Reply)
                    if reply.error is not None:
                        raise revived(*reply.error)
                    if reply.parts is not None:
                        results[number] = reply.parts
                        tell(number, 1.0)
                        break
                    tell(number, reply.progress)
        except (LostflopsError, BrokenPipeError) as error:
            if not isinstance(error, LostflopsError):
                error = LostflopsError(f"The process reading {shown(sources[number].name)} ended early.")
            errors[number] = error
        finally:
            process.stdin.close()
            process.kill()
            process.wait()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(len(sources))]


def _assemble(
    sources: list[Path],
    identities: list[Source],
    parts: list[list[Part]],
    folder: Path,
    progress: Progress | None,
) -> None:
    """Give every part its rank, move its tables into place, align clocks and write the manifest."""
    if progress:
        progress("putting the ranks together", 1.0)
    flat = [(i, part) for i, of_source in enumerate(parts) for part in of_source]
    names = [identities[i].name for i, _ in flat]
    several = len(sources) > 1
    quality: list[Quality] = []
    _require_different_sessions(flat, identities)
    # Reports of one job have clocks of their own, and a moment in UTC at which each began.
    epochs = {
        n: part.epoch_ns or 0 for n, (_, part) in enumerate(flat) if several and part.epoch_ns is not None
    }
    ranks = _numbered([p for _, p in flat], names, epochs, quality)
    hosts = _hosts(flat)
    rows: list[dict[str, Any]] = [{} for _ in flat]
    tables: set[str] = {"ranks"}
    last_step: dict[int, int] = {}
    recordings: dict[int, int] = {}
    # Recordings of one rank follow each other in time, whatever their files are called.
    for number in sorted(range(len(flat)), key=lambda n: flat[n][1].start):
        part, rank = flat[number][1], ranks[number]
        recording = recordings.get(rank, 0)
        recordings[rank] = recording + 1
        for table in part.tables:
            tables.add(table)
            place = folder / table / f"rank={rank}"
            place.mkdir(parents=True, exist_ok=True)
            written = Path(part.folder) / f"{table}.parquet"
            if table == "steps":
                steps = pl.read_parquet(written)
                lowest = steps["step"].min()
                if rank in last_step and isinstance(lowest, int) and lowest <= last_step[rank]:
                    steps = steps.with_columns(pl.col("step") + (last_step[rank] + 1 - lowest))
                    quality.append(
                        Quality(
                            rank,
                            "steps renumbered",
                            steps.height,
                            "its recordings count steps from the same number",
                        )
                    )
                write_part(folder, "steps", rank, steps, recording)
                last_step[rank] = int(steps["step"].max())  # pyright: ignore[reportArgumentType]
            else:
                written.rename(place / f"part-{recording}.parquet")
        quality += [msgspec.structs.replace(q, rank=rank) for q in part.quality]
        rows[number] = {
            **{k: v for k, v in part.facts.items() if k in RANKS.schema},
            "rank": rank,
            "start": part.start,
            "end": part.end,
            "host": hosts[number],
            "world_size": part.world_size,
            "rank_source": part.rank_source,
        }
    first = [row for i, row in enumerate(rows) if ranks[i] not in ranks[:i]]
    for row in first:
        same = [r for i, r in enumerate(rows) if ranks[i] == row["rank"]]
        row["start"] = min(r["start"] for r in same)
        row["end"] = max(r["end"] for r in same)
    offsets = {str(ranks[n]): ns for n, ns in epochs.items()}
    origin = min(row["start"] + offsets.get(str(row["rank"]), 0) for row in first) if first else 0
    manifest = Manifest(
        format=FORMAT,
        lostflops=__version__,
        clock=_clock_name(identities, bool(epochs)),
        origin_ns=origin,
        sources=identities,
        tables=sorted(t for t in TABLES if t in tables),
        num_events=sum(p.num_events for _, p in flat),
        quality=quality,
        offsets=offsets,
        absent={k: v for _, p in flat for k, v in p.absent.items() if k not in tables},
    )
    _write_ranks(folder, first)
    write_manifest(folder, manifest)
    if len(first) > 1 and "collectives" in tables:
        _align(folder, manifest, first)
    write_manifest(folder, manifest)


def _write_ranks(folder: Path, rows: list[dict[str, Any]]) -> None:
    shutil.rmtree(folder / "ranks", ignore_errors=True)
    schema: Any = RANKS.schema
    for row in rows:
        full = {name: row.get(name) for name in RANKS.schema}
        write_part(folder, "ranks", row["rank"], pl.DataFrame([full], schema=schema, strict=False))


def _align(folder: Path, manifest: Manifest, rows: list[dict[str, Any]]) -> None:
    """Measure how far the ranks' clocks are apart, and move those that no noise explains."""
    trace = Trace(folder, manifest)
    collectives, ranks = trace.table("collectives"), trace.table("ranks")
    assert collectives is not None and ranks is not None
    found = {r["rank"]: r for r in clocks.clock_offsets(collectives, ranks).iter_rows(named=True)}
    for row in rows:
        measured = found.get(row["rank"])
        if measured is None:
            continue
        offset = int(measured["offset"])
        row["clock_error"] = int(measured["error"])
        row["clock_offset"] = offset
        if offset:
            key = str(row["rank"])
            manifest.offsets[key] = manifest.offsets.get(key, 0) + offset
            manifest.quality.append(
                Quality(
                    row["rank"],
                    "clock moved",
                    abs(offset),
                    f"by {offset:,} ns, so that collectives end together; "
                    f"{row['clock_error']:,} ns remain uncertain",
                )
            )
    _write_ranks(folder, rows)


def _numbered(
    parts: list[Part], names: list[str], epochs: dict[int, int], quality: list[Quality]
) -> list[int]:
    """The rank of each part. Raises SameRankTwice when two of the same time claim one rank."""
    ranks = [part.rank for part in parts]
    _require_one_job(parts, names)
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for n, (part, rank, name) in enumerate(zip(parts, ranks, names, strict=True)):
        if rank is None:
            continue
        start, end = part.start + epochs.get(n, 0), part.end + epochs.get(n, 0)
        for other_start, other_end, other in spans.get(rank, []):
            if start < other_end and other_start < end:
                raise SameRankTwice(rank, other, name)
        spans.setdefault(rank, []).append((start, end, name))
    taken = {r for r in ranks if r is not None}
    free = (r for r in range(len(parts) + len(taken) + 1) if r not in taken)
    numbered: list[int] = []
    for part, rank, name in zip(parts, ranks, names, strict=True):
        if rank is None:
            rank = next(free)
            text = (
                f"{name} does not say which rank it is; it is shown as rank {rank}"
                if part.rank_source == "assigned"
                else f"{name} does not say which rank this is; it is shown as rank {rank} "
                f"({part.rank_source})"
            )
            quality.append(
                Quality(rank, "rank not recorded", 1, text, "warning" if len(parts) > 1 else "note")
            )
        numbered.append(rank)
    return numbered


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
        same = ("world_size", "host"), ("gpu", "backend", "source")
        if any(getattr(part, k) != getattr(other, k) for k in same[0]) or any(
            part.facts.get(k) != other.facts.get(k) for k in same[1]
        ):
            raise DifferentJobs(
                other_name, name, f"both are rank {part.rank}, but of jobs with other sizes, hosts or devices"
            )


def _hosts(flat: list[tuple[int, Part]]) -> list[int | None]:
    """Hosts as numbers, in the order in which they appear; their names stay behind.

    Ranks of one source were recorded on one host, whether or not the source names it.
    """
    seen: dict[str, int] = {}
    sources = [source for source, _ in flat]
    keys = [p.host or (f"source {s}" if sources.count(s) > 1 else None) for s, p in flat]
    return [None if key is None else seen.setdefault(key, len(seen)) for key in keys]


def _require_different_sessions(flat: list[tuple[int, Part]], identities: list[Source]) -> None:
    sessions: dict[str, int] = {}
    for source, part in flat:
        if part.session is None:
            continue
        other = sessions.setdefault(part.session, source)
        if other != source:
            raise LostflopsError(
                f"{identities[other].name} and {identities[source].name} "
                "are exports of one recording session.",
                "give one of them.",
            )


def _clock_name(identities: list[Source], shifted: bool) -> str:
    if identities and identities[0].format == ingest.NSYS and not shifted:
        return "nanoseconds since the start of the Nsight Systems session"
    return "nanoseconds since the Unix epoch, as the source wrote them"


def _require_ranks(trace: Trace, allow_missing: bool) -> None:
    """One file of many is a rank's own view; several but not all are a job with ranks missing."""
    table = trace.table("ranks")
    if table is None or allow_missing:
        return
    ranks = table.select("rank", "world_size").collect()
    world = ranks["world_size"].max()
    present = set(ranks["rank"].to_list())
    if isinstance(world, int) and 1 < len(present) < world:
        missing = [r for r in range(min(world, 100_000)) if r not in present]
        raise RanksMissing(missing, world, len(present))
