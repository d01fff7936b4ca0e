"""Read the sources of a job, several at a time where that pays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec

from lostflops.errors import LostflopsError, NotATrace, revived, shown
from lostflops.ingest.formats import Reader, Reading
from lostflops.ingest.nsys.folder import is_export
from lostflops.ingest.part import Part
from lostflops.ingest.worker import Reply, Task

# Starting a process costs about as long as reading this much compressed trace.
WORTH_A_PROCESS = 4 << 20
UNPACKED = 12  # bytes of plain text that are read in the time of one that is packed

Progress = Callable[[str, float], None]
Outcome = list[Part] | NotATrace


class ReadAll(Protocol):
    """What `read_all` is, wherever the reading is done."""

    def __call__(
        self,
        formats: Mapping[Path, Reader],
        folder: Path,
        *,
        salvage: bool,
        optional: Collection[Path] = (),
        progress: Progress | None = None,
    ) -> list[Outcome]: ...


def read_all(
    formats: Mapping[Path, Reader],
    folder: Path,
    *,
    salvage: bool,
    optional: Collection[Path] = (),
    progress: Progress | None = None,
) -> list[Outcome]:
    """The parts of each source, each of its format, in order, written below `folder`.

    An optional source that is no trace gives the error that says so; any other error is raised, the first
    source's first.
    """
    sources = list(formats)
    sizes = [*map(_size, sources)]
    whole = sum(sizes) or 1
    cores = len(os.sched_getaffinity(0))
    workers = min(len(sources), cores, max(1, whole // WORTH_A_PROCESS))
    done = [0.0] * len(sources)
    outcomes: dict[int, Outcome] = {}
    failed: dict[int, LostflopsError] = {}

    def tell(number: int, share: float) -> None:
        done[number] = share
        if progress:
            read = sum(d * s for d, s in zip(done, sizes, strict=True))
            progress(f"reading {shown(sources[number].name)}", read / whole)

    def settle(number: int, read: Callable[[], list[Part]]) -> None:
        try:
            outcomes[number] = read()
        except LostflopsError as error:
            if isinstance(error, NotATrace) and sources[number] in optional:
                outcomes[number] = error
            else:
                failed[number] = error
        tell(number, 1.0)

    def here(number: int) -> list[Part]:
        source, place = sources[number], folder / str(number)
        if _needs_a_process(source):
            with _Process(threads=cores) as process:
                task = Task(str(source), str(place), salvage, formats[source].name)
                return process.read(task, lambda share: tell(number, share))
        asked = Reading(source, place, salvage, cores, lambda share: tell(number, share))
        return formats[source].read(asked)

    waiting = sorted(range(len(sources)), key=lambda i: sizes[i])  # the largest is taken first
    lock = threading.Lock()

    def next_source() -> int | None:
        with lock:
            return waiting.pop() if waiting and not failed else None

    def with_a_process() -> None:
        with _Process(threads=max(1, cores // workers)) as reader:
            while (number := next_source()) is not None:
                source = sources[number]
                task = Task(str(source), str(folder / str(number)), salvage, formats[source].name)
                settle(number, lambda n=number, t=task: reader.read(t, lambda share: tell(n, share)))

    if workers <= 1:
        for number in range(len(sources)):
            settle(number, lambda n=number: here(n))
            if failed:
                break
    else:
        with ThreadPoolExecutor(workers) as pool:
            for finished in [pool.submit(with_a_process) for _ in range(workers)]:
                finished.result()
    if failed:
        raise failed[min(failed)]
    return [outcomes[number] for number in range(len(sources))]


def is_small(sources: Iterable[Path]) -> bool:
    """Whether they are read here, one after the other."""
    return sum(map(_size, sources)) < 2 * WORTH_A_PROCESS


def _size(source: Path) -> int:
    """What there is to read, in bytes of a compressed trace."""
    if not source.is_file():
        return WORTH_A_PROCESS
    size = source.stat().st_size
    return size // UNPACKED if source.suffix == ".json" else size


def _needs_a_process(path: Path) -> bool:
    """Whether reading it can end the process that does: Polars aborts on some damaged tables."""
    return is_export(path)


class _Process:
    """A process of `lostflops.ingest.worker`."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lostflops.ingest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LOSTFLOPS_DEBUG") else subprocess.DEVNULL,
            env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self, task: Task, tell: Callable[[float], None]) -> list[Part]:
        """What the process answers to a task. Raises what it raised, or that it ended."""
        take, give = self._process.stdout, self._process.stdin
        assert take is not None and give is not None
        try:
            give.write(msgspec.json.encode(task) + b"\n")
            give.flush()
            for line in take:
                reply = msgspec.json.decode(line, type=Reply)
                if reply.error is not None:
                    raise revived(*reply.error)
                if reply.parts is not None:
                    return reply.parts
                tell(reply.progress)
        except (BrokenPipeError, msgspec.MsgspecError):
            pass
        if _needs_a_process(Path(task.path)):
            raise NotATrace(
                Path(task.path),
                "reading it ended the process that did: one of its tables is damaged, or memory ran out.",
                "export the report again.",
            )
        raise LostflopsError(
            f"The process reading {shown(Path(task.path).name)} ended without an answer.",
            "it may have run out of memory: read fewer files at a time. LOSTFLOPS_DEBUG=1 shows what it "
            "said.",
        )
