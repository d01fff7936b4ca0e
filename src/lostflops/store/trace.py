"""One job's tables on disk: a folder of Parquet files, opened lazily, sliced by rank and step.

    RUN/run.json                     what was imported, from what, and how good it is
    RUN/<table>/rank=<r>/part-*.parquet, or RUN/<table>/part-0.parquet where a table is small
    RUN/small/<table>.arrow          a very small table once more, read in a tenth of the time

The manifest begins with a checksum of itself and lists every part with its size and checksum: a run that lost
one, or whose bytes changed, is damaged, and says so instead of answering.

Times on disk are the source's own clock, so that ranks can be written independently; opening a trace
subtracts the run's origin and adds each rank's clock offset. Only the copies of very small tables, which are
written last, are on the run's clock. A run appears under its name only when it is
whole: it is written beside its place and renamed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Self

import msgspec
import polars as pl
from polars.exceptions import PanicException, PolarsError

from lostflops.errors import CannotWrite, DamagedStore, NewerStore, NoSuchStep, OutputExists, Unreadable
from lostflops.run_folder import MANIFEST
from lostflops.tables import TABLES

from . import parts
from .parts import StoredPart

FORMAT = 5
# What a host thread does is of the step that the host is in, which the device may still be far from.
ON_HOST = frozenset(
    {"launches", "operators", "ranges", "frames", "allocations", "os_calls", "library_calls"}
    | {"file_accesses", "thread_states", "samples"}
)
# Where the host begins and ends a step: by the marks on the host, and else by the step's own limits.
OPENED, CLOSED = pl.coalesce("host_start", "start"), pl.coalesce("host_end", "end")
# A folder that is being filled. One that has not been touched for a day is what a killed import left.
UNFINISHED = ".importing-"
ABANDONED_AFTER = 86_400
# Checksums of a run of at most so many bytes are compared when it is opened, which takes a fifth of a second;
# of a larger one each table's when it is first read, which takes longer than comparing.
COMPARED_AT_ONCE = 256 << 20
# A table of at most so many bytes on disk stays in memory once it was asked for twice: opening its parts
# again takes longer than most questions about it. A page asks for a very small one a dozen times: it is read
# as a whole at once.
KEPT_AT_MOST = 4 << 20
KEPT_AT_ONCE = 256 << 10
# The manifest's own checksum, in ten digits, taken with zeros in their place.
OWN_CHECKSUM = re.compile(rb'\A\{\s*"crc32": "(\d{10})",')
# How Polars words an error of the operating system.
OS_ERROR = re.compile(r"\(os error (\d+)\)")


Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


# Facts that leave open what bounds a job: its page begins with them.
GPU_WORK_LOST = "GPU work not recorded"
DEVICE_UNKNOWN = "device work not understood"
WINDOW_LOST = "steps not recorded in full"
GPU_SHARED = "another process works on the GPU"
GPU_MAY_BE_SHARED = "another process may work on the GPU"
IMPOSSIBLE = tuple(f"{rows} with a negative duration" for rows in ("kernels", "copies", "GPU rows"))
NO_TIME = "kernels without a duration"
NO_LENGTH = "how long they ran is not known"  # of both
NO_LINK = "files that may be of several jobs"
ONE_PER_DEVICE = "assigned, one per device of the process"  # where a rank's number is from
SIMULATED, MADE_UP = "simulated job", "made by `lostflops lab simulate`, not recorded"
REPLAYED = "replayed by `lostflops whatif`"


class Quality(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fact about how good a rank's recording is: what was counted, and what that means.

    `level` is 'note' or 'warning', `of` how many there are, where `count` is some of them.
    """

    rank: int | None
    name: str
    count: int
    text: str
    level: str = "note"
    of: int | None = None

    @property
    def meaning(self) -> str:
        return self.text if self.of is None else f"of {self.of:,}; {self.text}"


class Source(msgspec.Struct, frozen=True):
    """A file that was imported: name without its folder, size, and a hash that identifies it."""

    name: str
    bytes: int
    identity: str
    format: str


class Manifest(msgspec.Struct):
    """What `run.json` holds."""

    format: int
    lostflops: str
    clock: str  # what the source's own clock counts from
    origin_ns: Nanoseconds
    sources: list[Source]
    tables: list[str]
    num_events: int
    quality: list[Quality]
    offsets: dict[str, Nanoseconds] = {}  # rank -> ns to add
    absent: dict[str, str] = {}  # table -> why this run does not have it
    parts: dict[str, StoredPart] | None = None  # by path below the run; None as an earlier lostflops left it
    copies: dict[str, StoredPart] = {}  # of very small tables, by table


class Trace:
    """The tables of one job.

    `table(name)` gives a lazy frame on the run's clock, or None where the run does not have that table;
    `absence(name)` then says why. A trace sliced with `select` shows only those ranks and steps: an event
    belongs to the slice when some of it lies between the start of the rank's first selected step and the end
    of its last. What a host thread does is held against the host's own start and end of those steps.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        ranks: frozenset[int] | None = None,
        steps: tuple[int, int] | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.ranks = ranks
        self.steps = steps
        self.given: tuple[str, ...] = ()  # the paths that the user named, where somebody did
        self._windows: pl.DataFrame | None = None
        self._compared: set[str] = set()  # tables whose checksums were compared
        self._parts = parts.by_table(manifest.parts or {})
        self._by_rank: dict[str, Mapping[int, list[str]]] = {}  # a table's parts, once they were asked for
        self._small: dict[str, pl.DataFrame | None] = {}  # small tables: None where it was asked for once
        self._clocks = (manifest.origin_ns, dict(manifest.offsets))  # those that copies were written with

    @classmethod
    def open(cls, path: Path, *, just_written: bool = False) -> Trace:
        """Open a stored run. Raises NewerStore or DamagedStore when it cannot be read.

        The checksums of one that was `just_written` were taken a moment ago: they are not compared again.
        """
        try:
            raw = (path / MANIFEST).read_bytes()
            found = msgspec.json.decode(raw, type=dict[str, object]).get("format")
            # Before the checksum: another format may take its own otherwise.
            if found is not None and found != FORMAT:
                raise NewerStore(path, found, FORMAT)
            if not _is_as_written(raw):
                raise DamagedStore(path, f"{MANIFEST} is not what was written.")
            manifest = msgspec.json.decode(raw, type=Manifest)
        except OSError as error:
            raise DamagedStore(path, f"{MANIFEST} is missing or unreadable ({error.strerror}).") from error
        # Text that is not UTF-8 is a ValueError, and brackets without end are a RecursionError.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DamagedStore(path, f"{MANIFEST} is not what lostflops writes.") from error
        opened = cls(path, manifest)
        opened._require_parts()
        if just_written:
            opened._compared.update(manifest.tables)
        elif sum(part.bytes for part in (manifest.parts or {}).values()) <= COMPARED_AT_ONCE:
            for name in manifest.tables:
                opened.compare(name)
        return opened

    @contextmanager
    def reading(self) -> Generator[None]:
        """Raise DamagedStore for an error in the block that comes of what became of the run's files."""
        try:
            yield
        except (PolarsError, PanicException, OSError):  # of a file that got shorter meanwhile Polars panics
            now = Trace.open(self.path)
            for name in now.manifest.tables:
                now.compare(name)
            raise

    def _require_parts(self) -> None:
        """Raise DamagedStore unless exactly the parts that were written are there, as long as they were."""
        written = self.manifest.parts
        present: dict[str, int] = {}
        for name in self.manifest.tables:
            try:
                found = parts.sizes(self.path, name) if name in TABLES else {}
            except OSError as error:
                raise DamagedStore(self.path, f"it cannot be read ({error.strerror}).") from error
            if not found:
                raise DamagedStore(self.path, f"its table '{name}' is missing.")
            present |= found
        if written is None:
            return
        for part in sorted({*present, *written}):
            if part not in present:
                raise DamagedStore(self.path, f"'{part}' is missing.")
            if part not in written:
                raise DamagedStore(self.path, f"'{part}' is no part of it.")
            if present[part] != written[part].bytes:
                raise DamagedStore(self.path, f"'{part}' is not whole.")

    def compare(self, name: str) -> None:
        """Raise DamagedStore when a part of the table is not what was written."""
        if name in self._compared:
            return
        for part, written in self._parts.get(name, {}).items():
            if parts.as_stored(self.path / part) != written:
                raise DamagedStore(self.path, f"'{part}' is not what was written.")
        self._compared.add(name)

    def has(self, name: str) -> bool:
        return name in self.manifest.tables

    def absence(self, name: str) -> str:
        """Why `name` is not here, and how to record it."""
        why = self.manifest.absent.get(name)
        needs = f"needs {TABLES[name].record_with}"
        return f"{why}; {needs}" if why else needs

    def select(self, ranks: frozenset[int] | None = None, steps: tuple[int, int] | None = None) -> Self:
        """The same run, seen through some ranks and an inclusive range of step numbers.

        Raises NoSuchStep when no step of the run lies in that range.
        """
        chosen = type(self)(
            self.path,
            self.manifest,
            self.ranks if ranks is None else ranks,
            self.steps if steps is None else steps,
        )
        chosen._share(self)
        if steps is None:
            chosen._windows = self._windows
        else:
            present = self._whole("steps", self.path / "steps")
            numbers: list[int] = []
            if present is not None:
                numbers = present.select(pl.col("step").unique().sort()).collect()["step"].to_list()
            if not any(steps[0] <= n <= steps[1] for n in numbers):
                listed = f"{numbers[0]} to {numbers[-1]}" if numbers else ""
                raise NoSuchStep(f"{steps[0]}-{steps[1]}", listed)
        return chosen

    def files(self, name: str) -> list[str]:
        """The parts of a table by their paths below the run; `compare` says whether they are whole."""
        return sorted(parts.sizes(self.path, name))

    def table(self, name: str) -> pl.LazyFrame | None:
        files = self._files(name)
        frame = self._whole(name, files)
        if frame is None:
            return None
        if not TABLES[name].times:  # of the machine, not of a moment: a slice does not change it
            return frame
        if name == "steps":
            frame = frame.with_columns(chosen=pl.lit(self.steps is not None))
        with self.reading():  # the columns of a slice are looked at
            # Files that were chosen by rank hold rows of no other.
            alone = isinstance(files, list) and self._small.get(name) is None
            mine = frame if alone else self._of_ranks(frame)
            return mine if name == "ranks" else self._of_steps(mine, name in ON_HOST)

    @property
    def whole(self) -> Self:
        """The run without the slicing."""
        if self.ranks is None and self.steps is None:
            return self
        whole = type(self)(self.path, self.manifest)
        whole._share(self)
        return whole

    def _share(self, other: Trace) -> None:
        """Take over what is known of the run's files, which no slice changes."""
        self.given = other.given
        self._compared, self._by_rank, self._small = other._compared, other._by_rank, other._small

    def cut(self, frame: pl.LazyFrame, on_host: bool = False) -> pl.LazyFrame:
        """Those rows of a frame that lie in this slice: by `rank`, by `step`, or by `start` and `end`.

        Rows with none of these are about all ranks or all steps together, and stay. Where rows say what a
        host thread does (`on_host`), the slice goes from where the host begins the first step to where it
        ends the last.
        """
        return self._of_steps(self._of_ranks(frame), on_host)

    def _of_steps(self, frame: pl.LazyFrame, on_host: bool) -> pl.LazyFrame:
        if self.steps is None:
            return frame
        if not {"step", "start"} & set(frame.collect_schema().names()):  # of all steps together
            return frame
        if "step" in frame.collect_schema().names():
            return frame.filter(pl.col("step").is_between(*self.steps))
        start, end, first, last = (pl.col(c) for c in ("start", "end", "_from", "_to"))
        return (
            frame.join(self.extent(on_host).lazy(), on="rank", how="inner", maintain_order="left")
            # What takes no time lies where it starts.
            .filter((start < last) & ((end > first) | (start >= first)))
            .drop("_from", "_to")
        )

    def _of_ranks(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        if self.ranks is None or "rank" not in frame.collect_schema().names():  # of all ranks together
            return frame
        return frame.filter(pl.col("rank").is_in(sorted(self.ranks)))

    def extent(self, on_host: bool = False) -> pl.DataFrame:
        """From where to where the chosen steps go on each rank, or on its host: `rank`, `_from` and `_to`."""
        if self._windows is None:
            steps = self._whole("steps", self.path / "steps")
            assert steps is not None and self.steps is not None
            self._windows = (
                steps.filter(pl.col("step").is_between(*self.steps))
                .group_by("rank")
                .agg(
                    _from=pl.col("start").min(),
                    _to=pl.col("end").max(),
                    opened=OPENED.min(),
                    closed=CLOSED.max(),
                )
                .collect()
            )
        limits = ("opened", "closed") if on_host else ("_from", "_to")
        return self._windows.select("rank", _from=limits[0], _to=limits[1])

    def _files(self, name: str) -> Path | list[Path]:
        """The folder of a table, or its files that hold the chosen ranks: others are not even opened."""
        if self.ranks is None or not self._parts or not TABLES[name].times:
            return self.path / name
        if name not in self._by_rank:
            self._by_rank[name] = parts.by_rank(name, self._parts.get(name, ()))
        known = self._by_rank[name]
        files = [self.path / file for rank in sorted(self.ranks) for file in known.get(rank, ())]
        return files or self.path / name

    def _whole(self, name: str, files: Path | list[Path]) -> pl.LazyFrame | None:
        if name not in self.manifest.tables:
            return None
        kept = self._small.get(name)
        if kept is not None:
            return kept.lazy()
        self.compare(name)
        size = self._bytes(name)
        if name in self._small or 0 < size <= KEPT_AT_ONCE:
            with self.reading():
                kept = self._copied(name)
                if kept is None:
                    kept = self._scanned(name, self.path / name).collect()
            self._small[name] = kept
            return kept.lazy()
        if 0 < size <= KEPT_AT_MOST:
            self._small[name] = None
        return self._scanned(name, files)

    def _copied(self, name: str) -> pl.DataFrame | None:
        """A very small table from its copy, where that is there and as it was written."""
        written, clocks = self.manifest.copies.get(name), (self.manifest.origin_ns, self.manifest.offsets)
        return (
            None if written is None or clocks != self._clocks else parts.read_copy(self.path, name, written)
        )

    def write_copies(self) -> dict[str, StoredPart]:
        """Copy the very small tables, and say what was written."""
        small = [name for name in self.manifest.tables if 0 < self._bytes(name) <= KEPT_AT_ONCE]
        scanned = [self._scanned(name, self.path / name) for name in small]
        rows = zip(small, pl.collect_all(scanned, engine="in-memory"), strict=True)
        return {name: parts.write_copy(self.path, name, table) for name, table in rows}

    def _bytes(self, name: str) -> int:
        """The size of a table on disk; 0 where the manifest does not say."""
        return sum(part.bytes for part in self._parts.get(name, {}).values())

    def _scanned(self, name: str, files: Path | list[Path]) -> pl.LazyFrame:
        table = TABLES[name]
        # Of a run that is being made the manifest does not say.
        known = self._parts.get(name) or parts.sizes(self.path, name)
        frame = parts.scanned(files, parts.is_joined(name, known)).select(table.stored)
        offsets = {int(rank): ns for rank, ns in self.manifest.offsets.items() if ns}
        shift: pl.Expr = pl.lit(-self.manifest.origin_ns, dtype=pl.Int64)
        if offsets:
            shift = shift + pl.col("rank").replace_strict(offsets, default=0, return_dtype=pl.Int64)
        return frame.with_columns(pl.col(c) + shift for c in table.times)


def _is_as_written(raw: bytes) -> bool:
    """Whether a manifest is what its checksum says. One of an earlier lostflops has none."""
    own = OWN_CHECKSUM.match(raw)
    return own is None or int(own[1]) == zlib.crc32(raw[: own.start(1)] + b"0" * 10 + raw[own.end(1) :])


@contextmanager
def storing(target: Path, folder: Path) -> Generator[None]:
    """Raise CannotWrite for `target` when the block cannot write in `folder`, and Unreadable for any file
    elsewhere that it cannot read."""
    try:
        yield
    except OSError as error:
        # An error of writing to an open file names none.
        name = error.filename
        if isinstance(name, str) and not Path(name).is_relative_to(folder):
            raise Unreadable(Path(name), error) from error
        raise CannotWrite(target, error) from error
    except PolarsError as error:
        number = OS_ERROR.search(str(error))
        if number is None:
            raise
        raise CannotWrite(target, OSError(int(number[1]), os.strerror(int(number[1])))) from error


@contextmanager
def writing(target: Path, *, replace: bool = True) -> Generator[Path]:
    """A folder to fill; it takes `target`'s place only when the block ends without an error.

    A killed import leaves at most a folder beginning with '.importing-', which nothing reads and a later
    import sweeps away. Without `replace`, a run that is there by the end stays and this one is dropped.
    Raises CannotWrite when the place cannot be written, OutputExists when it holds something else.
    """
    try:
        str(target.absolute()).encode()
    except UnicodeEncodeError as error:
        raise CannotWrite(target, OSError(0, "its path is not UTF-8")) from error
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
        if taken and not (target / MANIFEST).is_file():
            raise OutputExists(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=target.parent))
    except OSError as error:
        raise CannotWrite(target, error) from error
    try:
        with storing(target, folder):
            yield folder
        if replace or not (target / MANIFEST).is_file():
            _swap(folder, target)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(folder: Path, target: Path) -> None:
    """Give the folder its name; what bore it goes."""
    aside = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=target.parent)) / "old"
    try:
        if target.exists():
            target.rename(aside)
        try:
            folder.rename(target)
        except OSError:
            if (target / MANIFEST).is_file():  # somebody else imported the same traces meanwhile
                return
            if aside.exists():
                aside.rename(target)
            raise
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what imports that were killed left behind."""
    for left in place.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `run.json`, the last file of a run, with a list of the parts that are there; before, small ones
    become one, and very small tables are copied."""
    for name in manifest.tables:
        parts.join(folder, name)
    written = {
        part: parts.as_stored(folder / part)
        for name in manifest.tables
        for part in sorted(parts.sizes(folder, name))
    }
    manifest = msgspec.structs.replace(manifest, parts=written)
    manifest = msgspec.structs.replace(manifest, copies=Trace(folder, manifest).write_copies())
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    blank = b'{\n "crc32": "%010d",' % 0 + text[1:]
    data = blank.replace(b"0" * 10, b"%010d" % zlib.crc32(blank), 1)
    with (folder / MANIFEST).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
