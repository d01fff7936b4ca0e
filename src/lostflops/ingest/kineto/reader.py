"""PyTorch profiler traces (Kineto JSON, plain or gzipped, torch 1.8 to 2.13; CUDA, ROCm, CPU-only) to tables.

One pass over the file: chunks of typed events become columns by category, names become codes of one
dictionary, and everything else is a join on columns. Only what is named here is read: environment, host
names, users, paths and addresses that a trace may carry are never decoded or stay behind.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path

from lostflops.errors import Damaged, NotATrace, NothingRecorded, Truncated
from lostflops.ingest import freed_memory
from lostflops.ingest.kineto.assembly import Assembly
from lostflops.ingest.kineto.columns import EventColumns
from lostflops.ingest.kineto.events import Decoder, Event
from lostflops.ingest.kineto.other_forms.halves import Halves, HalvesError
from lostflops.ingest.kineto.parallel import FailedError, PlainPool, Pool
from lostflops.ingest.kineto.stream import EventStream
from lostflops.ingest.part import Part
from lostflops.ingest.times.microseconds import CoarseTimesError

# Starting processes pays from about this many bytes of JSON on.
WORTH_PROCESSES = 96 << 20


def read(
    path: Path,
    folder: Path,
    *,
    salvage: bool = False,
    processes: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Part]:
    """Read one file into the tables of one rank (or several, when it names several busy devices).

    A large file is decoded by `processes` processes. Raises NotATrace, NothingRecorded, Truncated, Damaged or
    Unreadable; with `salvage`, a truncated file gives its whole events, and no step of it counts as complete.
    """
    # Events come and go by the hundred thousand without a cycle among them: collecting would only cost.
    collecting = gc.isenabled()
    gc.disable()
    try:
        exact = halves = False
        while True:
            try:
                several = 1 if exact or halves else processes
                return _read(path, folder, salvage, several, progress, exact=exact, halves=halves)
            except CoarseTimesError:
                exact = True
            except HalvesError:
                halves = True
    finally:
        if collecting:
            gc.enable()


def _read(
    path: Path,
    folder: Path,
    salvage: bool,
    processes: int,
    progress: Callable[[float], None] | None,
    *,
    exact: bool,
    halves: bool,
) -> list[Part]:
    freed_memory.keep()
    apart = Halves(exact) if halves else None
    reader, decoder = EventColumns(exact, apart), Decoder(exact, halves)
    stream = None
    packed = processes > 1 and _is_packed(path)
    if processes > 1 and path.stat().st_size > (WORTH_PROCESSES // 12 if packed else WORTH_PROCESSES):
        stream = _read_in_parallel(path, packed, folder / "chunks", reader, decoder, processes, progress)
        if stream is None:  # something in the file needs care
            reader, decoder = EventColumns(exact), Decoder(exact)
    if stream is None:
        stream = EventStream(path, decoder.chunk, decoder.one_by_one, salvage=salvage, progress=progress)
        for events in stream:
            reader.add(events)
    if apart is not None:
        reader.add(apart.whole())
    if stream.num_events == 0:
        if decoder.skipped:
            raise NotATrace(path, "its list holds something that is not an event.")
        raise NothingRecorded(path, "there are no events")
    return Assembly(path, folder, reader, decoder, stream).parts()


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _read_in_parallel(
    path: Path,
    packed: bool,
    folder: Path,
    reader: EventColumns,
    decoder: Decoder,
    processes: int,
    progress: Callable[[float], None] | None,
) -> EventStream[Event] | None:
    """The exhausted stream, its events in `reader`; None when the file cannot be read without care."""
    try:
        with Pool(folder, processes) if packed else PlainPool(path, folder, processes, progress) as pool:
            stream = EventStream(
                path,
                decoder.chunk,
                decoder.one_by_one,
                progress=progress if packed else None,
                ship=pool.ship if isinstance(pool, Pool) else None,
                skip=pool.skip if isinstance(pool, PlainPool) else None,
            )
            for events in stream:
                reader.add(events)
            stream.num_events += pool.finish(reader)
    except (FailedError, Truncated, Damaged):
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None if decoder.skipped or decoder.repaired else stream
