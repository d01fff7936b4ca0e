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
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lostflops.errors import (
    CannotWrite,
    LostflopsError,
    NotATrace,
    NothingThere,
    NoTraces,
    RanksMissing,
    RunAmongTraces,
    Unreadable,
    shown,
)
from lostflops.ingest import formats
from lostflops.ingest.part import holding
from lostflops.ingest.sources import ReadAll, is_small, read_all
from lostflops.ingest.step_log import attempts
from lostflops.run_folder import MANIFEST
from lostflops.store import object_store
from lostflops.store.at_once import at_once
from lostflops.store.installation import fingerprint
from lostflops.store.trace import FORMAT, Quality, Source, Trace, writing

Progress = Callable[[str, float], None]
PathLike = str | Path
EDGE = 64 << 10


def open(  # noqa: A001 - the public name
    paths: PathLike | Sequence[PathLike],
    *,
    salvage: bool = False,
    allow_missing_ranks: bool = False,
    output: Path | None = None,
    progress: Progress | None = None,
    read_with: ReadAll | None = None,
) -> Trace:
    """The tables of the job whose traces lie at `paths`: files, folders, globs, or one imported run.

    The first call reads the traces into the store (or into `output`); later ones open what was stored.
    `progress` is told what is being done and the share done; `read_with` reads the sources elsewhere. Raises
    a LostflopsError that says what to do.
    """
    named = [paths] if isinstance(paths, (str, Path)) else paths
    given = [Path(object_store.fetched(p, _cache().parent, progress)).expanduser() for p in named]
    if output is None and len(given) == 1 and _is_run(given[0]):
        return Trace.open(given[0])
    sources, earlier = attempts.last(find(given), given)
    # A folder or a pattern may hold other files than traces; what was named itself has to be one.
    readers, left_out = _formats(sources, given)
    names = {source: reader.name for source, reader in readers.items()}
    identities = {source: _identity(source, names.get(source, "")) for source in sources}
    documents = formats.documents(given)
    known_by = [*identities.values(), *(_identity(file, "") for file in formats.all_read(documents))]
    stored = output or _cache() / _key(known_by, salvage, readers.values())
    if output is None and os.path.lexists(stored):
        try:
            return _with_all_ranks(Trace.open(stored), allow_missing_ranks)
        except RanksMissing:
            raise
        except LostflopsError:
            _discard(stored)
    # Loading it takes longer than to open what was stored.
    from lostflops.ingest import assembly

    def write(folder: Path) -> None:
        optional = {source for source in readers if source not in given}
        outcomes = (read_with or read_all)(
            readers, folder / "parts", salvage=salvage, optional=optional, progress=progress
        )
        if progress:
            progress("putting the ranks together", 1.0)
        read = [
            (identities[source], parts)
            for source, parts in zip(readers, outcomes, strict=True)
            if isinstance(parts, list)
        ]
        errors = left_out | {s: o for s, o in zip(readers, outcomes, strict=True) if isinstance(o, NotATrace)}
        refused = [errors[source] for source in sources if source in errors]
        told = {form.name: form.read(documents[form.name]) for form in formats.beside()}
        alone = all(part.beside for _, parts in read for part in parts)
        for name, found in told.items():
            if alone and found.parts and found.first is not None:
                read.append((_identity(found.first, name), list(found.parts)))
        if not read and not refused:
            raise NoTraces(given[0], formats.looked_for())
        if not read:
            raise refused[0]
        notes = [Quality(None, "file left out", 1, error.message, "warning") for error in refused]
        notes += [Quality(None, "earlier attempt left out", 1, text) for text in earlier]
        notes += [note for found in told.values() for note in found.notes]
        assembly.assemble(
            read, notes, folder, {k: t for found in told.values() for k, t in found.tables.items()}
        )
        shutil.rmtree(folder / "parts", ignore_errors=True)
        if output is not None:
            _with_all_ranks(Trace.open(folder, just_written=True), allow_missing_ranks)

    with _named_store(output), holding(), writing(stored, replace=output is not None) as folder:
        if read_with is None and is_small(readers):
            at_once(lambda: write(folder))
        else:
            write(folder)
    return _with_all_ranks(Trace.open(stored, just_written=True), allow_missing_ranks)


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

    Raises NothingThere, NoTraces, RunAmongTraces or Unreadable.
    """
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given).expanduser()
        try:
            if _is_run(path):
                raise RunAmongTraces(path)
            if path.is_file() or (path.is_dir() and formats.looks_like_trace(path)):
                matched = [path]
            elif path.is_dir():
                matched = list(_below(path))
                if not matched and not formats.tell_alone([path]):
                    raise NoTraces(path, formats.looked_for())
            else:
                matched = [Path(m) for m in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - absolute globs
                matched = [p for m in matched for p in (_below(m) if m.is_dir() else [m])]
                if not matched:
                    raise NothingThere(given)
        except OSError as error:
            raise Unreadable(Path(error.filename or path), error) from error
        for match in matched:
            found.setdefault(_real(match), match)
    if paths and not found and not formats.tell_alone([Path(given).expanduser() for given in paths]):
        raise NoTraces(Path(paths[0]), formats.looked_for())
    kept: Iterable[Path] = found
    for reader in formats.readers():
        kept = reader.without_doubles(kept)
    sources = [found[real] for real in kept]
    return sorted(sources, key=lambda p: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", str(p))])


def _below(folder: Path) -> Iterable[Path]:
    """What may be a trace in a folder and the folders in it, imported runs apart."""
    if formats.looks_like_trace(folder):
        return [folder]
    files: list[Path] = []
    for here, folders, names in os.walk(folder, onerror=_unlisted):
        inside = Path(here)
        folders[:] = [f for f in folders if not f.startswith(".") and not (inside / f / MANIFEST).is_file()]
        for name in [f for f in folders if formats.looks_like_trace(inside / f)]:
            folders.remove(name)
            files.append(inside / name)
        files += [inside / n for n in names if not n.startswith(".") and formats.looks_like_trace(inside / n)]
    return files


def _unlisted(error: OSError) -> None:
    """A folder in which ranks may lie unseen."""
    raise error


def reads(file: Path, paths: Sequence[PathLike]) -> bool:
    """Whether a file is one of those that the paths name, or lies in a run or an export that they name."""
    given = [Path(p).expanduser() for p in paths]
    sources = [path for path in given if _is_run(path)]
    with suppress(LostflopsError, OSError):  # who asks about the paths says what is wrong with them
        sources += formats.all_read(formats.documents(given))
        sources += find([path for path in given if path not in sources])
    used = {_real(source) for source in sources}
    return not used.isdisjoint([_real(file), *_real(file).parents])


def _is_run(path: Path) -> bool:
    try:
        return (path / MANIFEST).is_file()
    except OSError:
        return False


def _real(path: Path) -> Path:
    """The path without links; one whose links lead round in a circle as far as they lead."""
    return Path(os.path.realpath(path))


def _discard(stored: Path) -> None:
    """Remove a store, or what lies in its place."""
    if stored.is_dir() and not stored.is_symlink():
        shutil.rmtree(stored, ignore_errors=True)
    else:
        with suppress(OSError):
            stored.unlink()


def _formats(
    sources: Sequence[Path], given: Sequence[Path]
) -> tuple[dict[Path, formats.Reader], dict[Path, NotATrace]]:
    """The format of each source that has one, and why the others are left out.

    Raises Unreadable, or NotATrace for one that was named itself.
    """
    found: dict[Path, formats.Reader] = {}
    left_out: dict[Path, NotATrace] = {}
    for source in sources:
        try:
            found[source] = formats.reader_of(source)
        except NotATrace as error:
            if source in given:
                raise
            left_out[source] = error
    return found, left_out


def _identity(source: Path, form: str) -> Source:
    """Name, size and a hash of size, time of change, and both ends of the content. Raises Unreadable."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        total = 0
        for file in filter(Path.is_file, files):  # opening a pipe would wait for who fills it
            stat = file.stat()
            total += stat.st_size
            digest.update(os.fsencode(f"{file.name}|{stat.st_size}|{stat.st_mtime_ns}|"))
            with file.open("rb") as content:
                digest.update(content.read(EDGE))
                if stat.st_size > 2 * EDGE:
                    content.seek(-EDGE, os.SEEK_END)
                digest.update(content.read(EDGE))
    except OSError as error:
        raise Unreadable(source, error) from error
    return Source(shown(source.name), total, digest.hexdigest(), form)


def _key(sources: list[Source], salvage: bool, readers: Iterable[formats.Reader]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{FORMAT}|{fingerprint()}|{salvage}".encode())
    for reader in dict.fromkeys(readers):
        digest.update(f"|{formats.fingerprint(reader)}".encode())
    for source in sources:
        digest.update(f"|{source.name}|{source.bytes}|{source.identity}".encode())
    return digest.hexdigest()


def _cache() -> Path:
    chosen = os.environ.get("LOSTFLOPS_CACHE")
    if chosen:
        return Path(chosen) / "runs"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Without a home folder `~` stays as it is, and writing there says what to do.
    return Path(os.path.expanduser(base)) / "lostflops" / "runs"  # noqa: PTH111


def place_of(url: str) -> Path:
    """Where a run that is to be written to an object store is made."""
    return object_store.place_of(url, _cache().parent)


def _with_all_ranks(trace: Trace, allow_missing: bool) -> Trace:
    """The trace, unless ranks are missing: one file of many is a rank's own view, several are a job.

    What became of a rank that has a step log is known.
    """
    table, log = trace.table("ranks"), trace.table("step_log")
    if table is not None and not allow_missing:
        ranks = table.select("rank", "world_size").collect()
        world = ranks["world_size"].max()
        present = set(ranks["rank"].to_list())
        known = present if log is None else present.union(log.select("rank").unique().collect()["rank"])
        if isinstance(world, int) and len(present) > 1 and len(known) < world:
            missing = [r for r in range(min(world, 100_000)) if r not in known]
            raise RanksMissing(missing, world, len(known))
    return trace
