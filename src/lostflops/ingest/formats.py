"""What a trace format is, which ones there are, and which one a file has.

A format says by a file's name whether it is worth opening, by its first bytes whether it is its own, and how
one becomes tables. Documents beside traces, such as step logs, are found in the folders that a user names.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import pkgutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

import polars as pl

from lostflops import ingest
from lostflops.errors import NotATrace, Unreadable
from lostflops.ingest.part import Part
from lostflops.ingest.private import Private
from lostflops.store.installation import entry_points
from lostflops.store.trace import Quality

HEAD = 512  # bytes of a file by which it is told


def _nobody(share: float) -> None:
    """Nobody wants to know how far reading is."""


def _nothing_more(documents: Sequence[Path]) -> Sequence[Path]:
    return ()


def _all_of(paths: Iterable[Path]) -> Iterable[Path]:
    return paths


@dataclass(frozen=True)
class Reading:
    """What a reader is asked: the tables of each rank in `path`, written below `folder`."""

    path: Path
    folder: Path
    salvage: bool = False  # give the whole events of a file that ends too early
    processes: int = 1  # how many it may start to help
    progress: Callable[[float], None] = _nobody  # to be told the share that is done


@dataclass(frozen=True)
class Reader:
    """A format of traces. Whatever it cannot read it refuses with an error of `lostflops.errors`."""

    name: str  # runs that were made of it keep this name
    looked_for: str  # what is said where a folder holds no trace of any format
    looks_like: Callable[[Path], bool]  # whether a file or folder is worth opening, told by its name
    recognises: Callable[[Path, bytes], bool]  # whether it is of this format, by its first bytes too
    read: Callable[[Reading], list[Part]]
    # What it recognises may be another's: it is asked after those with a smaller number.
    asked_late: int = 0
    own_clock: str = ""  # what its times count from, where that is not UTC
    # Which of the files found are left when those that another one holds too are taken out.
    without_doubles: Callable[[Iterable[Path]], Iterable[Path]] = _all_of
    private: Private | None = None  # None: nobody knows what its files say of people and machines


@dataclass(frozen=True)
class Told:
    """What the documents beside the traces of a job tell of it."""

    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict[str, pl.DataFrame])
    notes: Sequence[Quality] = ()
    # The ranks that they tell of by themselves, where no trace does, and the document that names that run.
    parts: Sequence[Part] = ()
    first: Path | None = None


@dataclass(frozen=True)
class Beside:
    """A format of documents that lie beside traces, in the folders that were named."""

    name: str
    documents: Callable[[Iterable[Path]], list[Path]]
    read: Callable[[Sequence[Path]], Told]
    more: Callable[[Sequence[Path]], Sequence[Path]] = _nothing_more  # other files that `read` looks into
    alone: bool = False  # its documents are a run without any trace


@cache
def declared() -> tuple[Reader | Beside, ...]:
    """All formats: ours, by the names of their folders, then those that installed packages offer."""
    found: list[Reader | Beside] = []
    for place in sorted(module.name for module in pkgutil.iter_modules(ingest.__path__) if module.ispkg):
        known = import_module(f"{ingest.__name__}.{place}")
        # Where reading takes many modules, the package itself says what its files look like: loading those
        # takes longer than to answer from a run that was stored.
        if "READER" not in vars(known) and any(
            m.name == "reader" for m in pkgutil.iter_modules(known.__path__)
        ):
            known = import_module(f"{known.__name__}.reader")
        found += [vars(known)[name] for name in ("READER", "BESIDE") if name in vars(known)]
    for point in entry_points(group="lostflops.formats"):
        made = point.load()
        if isinstance(made, (Reader, Beside)) and made.name not in {known.name for known in found}:
            found.append(made)
    return tuple(found)


def readers() -> list[Reader]:
    """The formats of traces, in the order in which they are asked."""
    found = [form for form in declared() if isinstance(form, Reader)]
    return sorted(found, key=lambda reader: reader.asked_late)


def beside() -> list[Beside]:
    """The formats of documents beside traces."""
    return [form for form in declared() if isinstance(form, Beside)]


def named(name: str) -> Reader:
    """The format of that name."""
    return next(reader for reader in readers() if reader.name == name)


def own_clock(name: str) -> str:
    """What the times of sources of a format count from; empty where that is UTC."""
    return next((reader.own_clock for reader in readers() if reader.name == name), "")


def looked_for() -> list[str]:
    """What a folder is searched for."""
    return [reader.looked_for for reader in readers()]


def looks_like_trace(path: Path) -> bool:
    """Whether a name found in a folder is worth opening."""
    return any(reader.looks_like(path) for reader in readers())


def reader_of(path: Path) -> Reader:
    """The format of a file or folder. Raises NotATrace or Unreadable."""
    try:
        _require_kept(path)
        whole = path.is_dir()
        head = b""
        if not whole:
            with path.open("rb") as file:
                head = file.read(HEAD)
        for reader in readers():
            if reader.asked_late and not whole and not head:
                raise NotATrace(path, "it is empty.")
            if reader.recognises(path, head):
                return reader
    except OSError as error:
        raise Unreadable(path, error) from error
    raise NotATrace(path, "its name and its first bytes match no format that lostflops reads.")


def fingerprint(reader: Reader) -> str:
    """What a reader of another package is, as far as its files tell; ours are part of lostflops itself."""
    if reader.read.__module__.startswith(f"{ingest.__name__}."):
        return ""
    stats = [file.stat() for file in sorted(Path(inspect.getfile(reader.read)).parent.glob("*.py"))]
    told = [(known.st_size, known.st_mtime_ns) for known in stats]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


def documents(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The documents in the folders among `paths`, by the name of their format."""
    return {form.name: form.documents(paths) for form in beside()}


def tell_alone(paths: Sequence[Path]) -> bool:
    """Whether the folders among `paths` hold documents that are a run without any trace."""
    return any(form.documents(paths) for form in beside() if form.alone)


def all_read(documents: Mapping[str, Sequence[Path]]) -> Iterator[Path]:
    """Every file that what the documents tell depends on."""
    for form in beside():
        yield from documents[form.name]
        yield from form.more(documents[form.name])


def _require_kept(path: Path) -> None:
    """Raise NotATrace unless this is a file or folder that can be read more than once. Raises OSError."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise NotATrace(path, "its path is not UTF-8.", "rename it.") from error
    try:
        kind = path.stat().st_mode
    except OSError as error:
        if path.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP):
            where = "to nothing" if error.errno == errno.ENOENT else "back to itself"
            raise NotATrace(path, f"it is a link that leads {where}.", "name the file itself.") from error
        raise
    if stat.S_ISFIFO(kind):
        raise NotATrace(path, "it is a pipe, which can be read only once.", "write it to a file first.")
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise NotATrace(path, "it is a device or a socket.", "name a file or a folder.")
