"""What runs on a worker: reading one source, and answering one recipe for some ranks or for all.

A worker gets paths, names and options, and the tables of other recipes that a recipe reads; it opens traces
and runs by itself. What it cannot do comes back as words, as an error's own class might not.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import polars as pl

from lostflops.errors import LostflopsError, revived
from lostflops.ingest import formats
from lostflops.ingest.part import Part
from lostflops.ingest.sources import read_all
from lostflops.recipes import named
from lostflops.run_folder import MANIFEST
from lostflops.session import Session, batches, is_small
from lostflops.store.at_once import in_memory
from lostflops.store.installation import entry_points
from lostflops.store.trace import Trace, storing
from lostflops.tables import TABLES
from lostflops.version import __version__

from . import errors


@dataclass(frozen=True)
class TaskSaid:
    """What a task gave: a value, or an error of lostflops as its class, message and hint."""

    value: Any = None
    error: tuple[str, str, str] | None = None

    def got(self) -> Any:
        """The value. Raises the error."""
        if self.error is None:
            return self.value
        made = getattr(errors, self.error[0], None)
        error = revived(*self.error)
        if made is not None:
            error.__class__ = made
            raise errors.ClusterLost(error)
        raise error


Given = Mapping[str, Sequence[TaskSaid] | None]
"""What other tasks gave, by the name of the recipe, in parts; None where a recipe is not answered."""


@cache
def identity() -> str:
    """Which lostflops this is: the same one gives the same bytes."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=4)
    for file in sorted(root.rglob("*.py")):
        digest.update(f"|{file.relative_to(root)}|".encode())
        digest.update(file.read_bytes())
    points = (*entry_points(group="lostflops.recipes"), *entry_points(group="lostflops.formats"))
    others = sorted({f", {p.dist.name} {p.dist.version}" for p in points if p.dist is not None})
    return f"lostflops {__version__} ({digest.hexdigest()}) with Polars {pl.__version__}{''.join(others)}"


def here() -> str:
    """The address of the worker that this runs on."""
    from distributed import get_worker

    return str(get_worker().address)


def done(ours: str, packed: bytes, given: Mapping[str, Sequence[bytes] | None]) -> bytes:
    """What a task gives, packed, on a worker that is the same as who asks.

    `packed` are the task and what it is called with; `given` is what other tasks gave that it reads.
    """
    try:
        if identity() != ours:
            raise errors.OtherLostflops(here(), identity(), ours)
        task, words = pickle.loads(packed)
        said = TaskSaid(
            task(*words, {name: parts and list(map(unpacked, parts)) for name, parts in given.items()})
        )
    except (LostflopsError, errors.ClusterLost) as raised:
        error = raised.error if isinstance(raised, errors.ClusterLost) else raised
        said = TaskSaid(error=(type(error).__name__, error.message, error.hint))
    return pickle.dumps(said, protocol=5)


def unpacked(said: bytes) -> TaskSaid:
    return pickle.loads(said)


def kept(value: Any, given: Given) -> Any:
    """A value that several tasks need, sent once. A worker that dies does not lose it."""
    return value


@dataclass(frozen=True)
class SeenFile:
    """A file as who asks sees it."""

    path: str
    bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> SeenFile:
        stat = path.stat()
        return cls(str(path.absolute()), stat.st_size, stat.st_mtime_ns)

    def require(self) -> None:
        """Raise UnseenByWorker unless the worker sees the same."""
        try:
            found = SeenFile.of(Path(self.path))
        except OSError as error:
            raise errors.UnseenByWorker(here(), self.path) from error
        # Clocks and sizes of folders differ between file systems; those of a shared file do not.
        if not Path(self.path).is_dir() and (found.bytes, found.changed_ns) != (self.bytes, self.changed_ns):
            raise errors.UnseenByWorker(here(), self.path, "sees another file at")


@dataclass(frozen=True)
class Unread:
    """A source to read, its format, and the folder for what is read, in which lies the file `mark`."""

    source: SeenFile
    form: str
    folder: str
    mark: SeenFile
    salvage: bool


def read(task: Unread, given: Given) -> bytes:
    """The parts of a source as JSON, in a folder of its own: a task that is done twice disturbs nobody."""
    task.source.require()
    task.mark.require()
    path, folder = Path(task.source.path), Path(task.folder) / uuid4().hex
    with storing(folder, folder):
        (outcome,) = read_all({path: formats.named(task.form)}, folder, salvage=task.salvage)
    assert not isinstance(outcome, LostflopsError)  # which only an optional source gives
    return msgspec.json.encode(outcome)


def parts_of(said: TaskSaid) -> list[Part]:
    """What `read` gave. Raises what it raised."""
    return msgspec.json.decode(said.got(), type=list[Part])


@dataclass(frozen=True)
class Slice:
    """A run on disk, and the part of it that a question is about."""

    path: str
    manifest: str  # digest
    ranks: frozenset[int] | None
    steps: tuple[int, int] | None

    @classmethod
    def of(cls, trace: Trace) -> Slice:
        return cls(str(trace.path.absolute()), _digest(trace.path), trace.ranks, trace.steps)

    def opened(self) -> Trace:
        """The trace. Raises UnseenByWorker or DamagedStore."""
        trace = _opened(self.path, self.manifest)
        whole = self.ranks is None and self.steps is None
        return trace if whole else trace.select(self.ranks, self.steps)


def _digest(run: Path) -> str:
    return hashlib.blake2b((run / MANIFEST).read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=2)
def _opened(path: str, manifest: str) -> Trace:
    run = Path(path)
    try:
        found = _digest(run)
    except OSError as error:
        raise errors.UnseenByWorker(here(), run) from error
    if found != manifest:
        raise errors.UnseenByWorker(here(), run, "sees another run at")
    return Trace.open(run)


@dataclass(frozen=True)
class Question:
    """A recipe with its options, for the ranks of a group or, where that is None, for all together."""

    of: Slice
    recipe: str
    options: Mapping[str, Any]
    group: tuple[int, ...] | None


def answer(question: Question, given: Given) -> pl.DataFrame:
    """The recipe's table. `given` has those of the recipes that it reads.

    The run's own tables are read here: of each only the columns that the recipe needs.
    """
    wanted, group = named(question.recipe), question.group
    known: batches.Given = {i.name: None for i in wanted.inputs}
    for name, parts in given.items():
        known[name] = _tables(name, parts)
    trace = question.of.opened()
    with in_memory() if is_small(trace) else nullcontext():
        return batches.answered(wanted, trace, known, group, question.options)


def _tables(name: str, parts: Sequence[TaskSaid] | None) -> list[pl.DataFrame] | None:
    """A recipe's table in parts, none where it is not answered; None for a table of the run."""
    if parts is None:
        return None if name in TABLES else []
    return [part.got() for part in parts]


def predict(of: Slice, edits: Sequence[str], given: Given) -> pl.DataFrame:
    """What each of the edits gains, by a replay of the whole job on this worker."""
    return Session(of.opened()).predicted_table(edits)
