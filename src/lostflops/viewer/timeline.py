"""A run's timeline on disk: built at the first view, kept beside the run, opened without reading it.

    RUN/timeline/<hash>/timeline.json    tracks, lanes, categories, counters and the shapes of the rest
    RUN/timeline/<hash>/*.bin            the events as columns, and a file per level of the pyramid

The hash is that of the run's manifest and of this lostflops: a timeline under it is what building it would
give. A run that cannot be written to has its timeline in a temporary folder.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lostflops.errors import CannotServe
from lostflops.intervals import Int
from lostflops.session import Session
from lostflops.store.installation import fingerprint
from lostflops.store.trace import Trace

from . import counters as samples
from .layout import LaidTrack, Progress, RunLayout
from .pyramid import Array, Events, Planes, Pyramid, build, planes_of

FOLDER, DOCUMENT = "timeline", "timeline.json"
LONGEST = 1 << 53  # ns: what JavaScript counts exactly


class DrawnTrack(msgspec.Struct, frozen=True):
    """A row with a title. `key` names it within its rank and kind."""

    rank: int
    kind: str
    title: str
    key: tuple[int | str | None, ...]
    first_lane: int
    num_lanes: int
    group: str | None = None


class Counter(msgspec.Struct, frozen=True):
    """Samples of one quantity: which of them, and what lies between."""

    rank: int
    title: str
    metric: str
    unit: str
    first: int
    last: int
    least: float
    most: float


class KeptTimeline(msgspec.Struct):
    """What `timeline.json` holds."""

    zero: int
    end: int
    base_bits: int
    ranks: list[int]
    tracks: list[DrawnTrack]
    categories: list[str]
    names: list[str]
    counters: list[Counter]
    warnings: list[str]
    files: dict[str, tuple[str, tuple[int, ...]]]  # name -> type and shape


@dataclass(frozen=True)
class RunTimeline:
    """An opened timeline. Its arrays lie in files and are read where they are touched."""

    trace: Trace
    session: Session
    hash: str
    kept: KeptTimeline
    events: Events
    planes: Planes
    pyramid: Pyramid
    lane_track: Int
    samples: samples.Samples
    by_kind: Mapping[tuple[int, str], list[DrawnTrack]]  # rank and kind

    @property
    def num_lanes(self) -> int:
        return self.events.num_lanes

    def track_of(self, lane: int) -> DrawnTrack:
        return self.kept.tracks[int(self.lane_track[lane])]

    def state_lane(self, rank: int) -> int:
        return self.kept.ranks.index(rank)


def content_hash(trace: Trace) -> str:
    """What changes when the run, or this lostflops, does."""
    text = msgspec.json.encode(trace.manifest) + fingerprint().encode()
    return hashlib.blake2b(text, digest_size=10).hexdigest()


def opened(trace: Trace, session: Session, progress: Progress | None = None) -> RunTimeline:
    """The timeline of a run; it is built where none is kept. Raises CannotServe for a run of no use."""
    found = content_hash(trace)
    place = trace.path / FOLDER / found
    known = _read(place)
    if known is None:
        place = _made(trace, session, place, progress)
        known = _read(place)
    if known is None:
        raise CannotServe(
            "The timeline of this run was removed while it was read.", "start the viewer again."
        )
    return _timeline(trace, session, found, known, place)


def _read(place: Path) -> KeptTimeline | None:
    """What is kept, or None where anything of it is missing or not whole."""
    try:
        kept = msgspec.json.decode((place / DOCUMENT).read_bytes(), type=KeptTimeline)
        whole = all(
            (place / f"{name}.bin").stat().st_size == np.dtype(kind).itemsize * int(np.prod(shape))
            for name, (kind, shape) in kept.files.items()
        )
    except (OSError, msgspec.MsgspecError, ValueError, TypeError):
        return None
    return kept if whole else None


def _made(trace: Trace, session: Session, place: Path, progress: Progress | None) -> Path:
    """Build beside its place and rename. Where that cannot be written, a temporary folder holds it."""
    try:
        place.parent.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".making-", dir=place.parent))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="lostflops-timeline-"))
        _TEMPORARY.append(folder)
        place = folder
    try:
        write(folder, RunLayout(trace, session), progress, samples.read(trace))
        if folder is not place:
            if _read(place) is None:
                shutil.rmtree(place, ignore_errors=True)  # what is damaged
            with suppress(OSError):  # somebody else built the same meanwhile
                folder.rename(place)
            for old in place.parent.iterdir():  # of the run as it was, or of another lostflops
                if old != place and not old.name.startswith("."):
                    shutil.rmtree(old, ignore_errors=True)
    finally:
        if folder is not place:
            shutil.rmtree(folder, ignore_errors=True)
    return place


_TEMPORARY: list[Path] = []


def forget() -> None:
    """Remove what had to be built in temporary folders."""
    while _TEMPORARY:
        shutil.rmtree(_TEMPORARY.pop(), ignore_errors=True)


class _Writer:
    """Columns in files that grow track by track."""

    COLUMNS = (("start", np.int64), ("length", np.int64), ("name", np.uint32), ("category", np.uint16))

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = {name: (folder / f"{name}.bin").open("wb") for name, _ in self.COLUMNS}
        self.tracks: list[DrawnTrack] = []
        self.first = [0]
        self.low, self.high, self.longest = LONGEST * 4, -LONGEST * 4, 0

    def add(self, laid: LaidTrack) -> None:
        lanes = int(laid.lane.max(initial=0)) + 1
        track = DrawnTrack(laid.rank, laid.kind, laid.title, laid.key, len(self.first) - 1, lanes, laid.group)
        self.tracks.append(track)
        self.first += (self.first[-1] + np.searchsorted(laid.lane, np.arange(lanes), "right")).tolist()
        columns = {"start": laid.start, "length": laid.length, "name": laid.name, "category": laid.category}
        for name, kind in self.COLUMNS:
            columns[name].astype(kind, copy=False).tofile(self._open[name])
        if len(laid.start):
            self.low = min(self.low, int(laid.start.min()))
            last = max(int((laid.start + laid.length).max()), int(laid.start.max()) + 1)
            self.high = max(self.high, last)
            self.longest = max(self.longest, int(laid.length.max()))

    def close(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The types and shapes of the files. Durations below 4.3 s take four bytes each."""
        count = self.first[-1]
        for file in self._open.values():
            file.close()
        kinds = {name: np.dtype(kind) for name, kind in self.COLUMNS}
        if self.longest < 1 << 32:
            wide = self._folder / "length.bin"
            with wide.open("rb") as source, (self._folder / "narrow").open("wb") as narrow:
                while len(part := np.fromfile(source, np.int64, 1 << 20)):
                    part.astype(np.uint32).tofile(narrow)
            (self._folder / "narrow").replace(wide)
            kinds["length"] = np.dtype(np.uint32)
        return {name: (kind.str, (count,)) for name, kind in kinds.items()}


def write(folder: Path, layout: RunLayout, progress: Progress | None, sampled: samples.ReadSamples) -> None:
    """Lay out a run's events, build the pyramid over them, and write both. Raises CannotServe."""
    writer = _Writer(folder)
    for laid in layout.states():
        writer.add(laid)
    for laid in layout.tracks(progress):
        writer.add(laid)
    files = writer.close()
    times = sampled.times
    low, high = writer.low, writer.high
    if len(times[0]):
        low, high = min(low, int(times[0].min())), max(high, int(times[1].max()))
    if high <= low:
        raise CannotServe("Nothing in this run took any time.", "`lostflops why` says what it holds.")
    if max(abs(low), abs(high), high - low) >= LONGEST:
        raise CannotServe(
            f"The events of this run lie {(high - low) / 86_400e9:,.0f} days apart.",
            "its clocks cannot be right: `lostflops recipe recording-lint` looks into it.",
        )
    _save(folder, files, "first", np.array(writer.first, np.int64))
    for name, values in zip(
        ("sample_start", "sample_end", "sample_value"), (*times, sampled.value), strict=True
    ):
        _save(folder, files, name, values)
    finish(
        folder,
        KeptTimeline(
            low, high, 0, layout.numbers, writer.tracks, layout.categories.texts, layout.names.texts,
            [Counter(**counter) for counter in sampled.counters], layout.warnings, files,
        ),
        progress,
    )  # fmt: skip


def finish(folder: Path, kept: KeptTimeline, progress: Progress | None = None) -> None:
    """Build the pyramid over columns that were written, and write the document, which comes last."""
    if progress:
        progress("adding up", 0.0)
    events = _events(folder, kept)
    planes = planes_of(events, max(1, len(kept.categories)))

    def new(level: int, shape: tuple[int, int], kind: Any) -> Array:
        name = f"level_{level}"
        kept.files[name] = (np.dtype(kind).str, shape)
        if not all(shape):
            (folder / f"{name}.bin").touch()
            return np.zeros(shape, kind)
        return np.memmap(folder / f"{name}.bin", kind, "w+", shape=shape)

    tell: Callable[[float], None] | None = (lambda share: progress("adding up", share)) if progress else None
    pyramid = build(events, planes, kept.zero, kept.end, new, tell)
    kept.base_bits = pyramid.base_bits
    for name, values in (
        ("plane_first", planes.first), ("plane_category", planes.category), ("plane_total", planes.total)
    ):  # fmt: skip
        _save(folder, kept.files, name, values)
    (folder / DOCUMENT).write_bytes(msgspec.json.encode(kept))


def _save(folder: Path, files: dict[str, tuple[str, tuple[int, ...]]], name: str, values: Array) -> None:
    values.tofile(folder / f"{name}.bin")
    files[name] = (values.dtype.str, values.shape)


def _column(folder: Path, kept: KeptTimeline, name: str) -> Array:
    kind, shape = kept.files[name]
    if not all(shape):
        return np.zeros(shape, kind)
    # As a plain array: a view that knows of its file costs microseconds at every use.
    return np.asarray(np.memmap(folder / f"{name}.bin", np.dtype(kind), "r", shape=tuple(shape)))


def _events(folder: Path, kept: KeptTimeline) -> Events:
    columns = ("start", "length", "name", "category")
    first = np.fromfile(folder / "first.bin", np.int64)
    return Events(first, *(_column(folder, kept, name) for name in columns))


def _timeline(trace: Trace, session: Session, found: str, kept: KeptTimeline, folder: Path) -> RunTimeline:
    planes = Planes(
        *(_column(folder, kept, f"plane_{name}") for name in ("first", "category", "total")),
        num_categories=max(1, len(kept.categories)),
    )
    numbers = sorted(int(name[6:]) for name in kept.files if name.startswith("level_"))
    levels = [_column(folder, kept, f"level_{number}") for number in numbers]
    lane_track = np.repeat(np.arange(len(kept.tracks)), [track.num_lanes for track in kept.tracks])
    by_kind: dict[tuple[int, str], list[DrawnTrack]] = {}
    for track in kept.tracks:
        by_kind.setdefault((track.rank, track.kind), []).append(track)
    return RunTimeline(
        trace, session, found, kept, _events(folder, kept), planes,
        Pyramid(kept.zero, kept.end, kept.base_bits, levels), lane_track,
        samples.Samples(*(_column(folder, kept, f"sample_{name}") for name in ("start", "end", "value"))),
        by_kind,
    )  # fmt: skip
