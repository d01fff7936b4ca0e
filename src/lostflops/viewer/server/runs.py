"""The runs that are served: found at start, named by opaque ids, opened when somebody looks at them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.errors import BadOption, shown
from lostflops.session import Session
from lostflops.store.trace import Trace
from lostflops.version import __version__

from .. import overview, timeline
from ..search import Search
from ..timeline import RunTimeline
from .refusal import Refusal, told

Opener = Callable[[Callable[[str, float], None]], Trace]
PATIENCE = 0.25  # seconds that a request waits for what is being built


@dataclass
class _Opened:
    """A run that is open. What asks recipes takes turns: a session computes what several need once."""

    timeline: RunTimeline
    search: Search
    seen: tuple[int, int, int]
    described: dict[str, Any] = field(default_factory=dict[str, Any])
    found: dict[str, Any] = field(default_factory=dict[str, Any])


class ServedRun:
    """One run. `open_` finds and reads its traces; it runs when somebody first asks."""

    def __init__(self, title: str, name: str, open_: Opener) -> None:
        self.title = title
        self.id = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        self._open = open_
        self._opened: _Opened | None = None
        self._error: Exception | None = None
        self._worker: threading.Thread | None = None
        self._starting = threading.Lock()
        self._asking = threading.Lock()
        self._progress = ("opening", 0.0)

    def summary(self) -> dict[str, Any]:
        """The run's line on the index page; what it holds is known once it was opened."""
        known = self._opened
        ranks = None if known is None else len(known.timeline.kept.ranks)
        error = None if self._error is None else told(self._error)
        if known is not None:
            try:
                self._seen_changes(known)
            except Refusal as gone:
                error = gone
        return {
            "id": self.id,
            "title": self.title,
            "ranks": ranks,
            "steps": None if known is None else len(set(known.described["steps"]["step"])),
            "duration_ns": None if known is None else known.timeline.kept.end - known.timeline.kept.zero,
            "num_events": None if known is None else known.described["num_events"],
            "error": None if error is None else error.message,
        }

    def build(self, patience: float = PATIENCE) -> tuple[str, float] | None:
        """Start to open the run unless that was done; what is being done, or None when it is open."""
        with self._starting:
            if self._opened is not None and self._seen_changes(self._opened):
                self._opened = None
            if self._opened is None and self._worker is None:
                self._error = None
                self._worker = threading.Thread(target=self._work, daemon=True)
                self._worker.start()
            worker = self._worker
        if worker is not None:
            worker.join(patience)
        if self._error is not None:
            raise told(self._error)
        return None if self._opened is not None else self._progress

    def _work(self) -> None:
        try:
            self._opened = self._read()
        except Exception as error:  # this thread has nobody above it: the next request says it
            self._error = error
        finally:
            self._worker = None

    def _read(self) -> _Opened:
        trace = self._open(self._tell)
        session = Session(trace.whole)
        opened = timeline.opened(trace.whole, session, self._tell)
        found = _Opened(opened, Search(opened), _identity(trace.path))
        found.described = overview.described(opened, self.id, self.title)
        return found

    def _tell(self, what: str, share: float) -> None:
        self._progress = (what, share)

    def current(self, content: str | None = None) -> _Opened:
        """The run as it is now. Raises Refusal where it changed, vanished, or is not open.

        `content` is the hash that the browser knows.
        """
        known = self._opened
        if known is None:
            if self._error is not None:
                raise told(self._error)
            raise Refusal(409, "run-changed", f"'{self.title}' is being read.", "load the page again.")
        if self._seen_changes(known) or content not in (None, known.timeline.hash):
            raise Refusal(
                409, "run-changed", f"'{self.title}' is not what it was: it was recorded or imported again.",
                "load the page again.",
            )  # fmt: skip
        return known

    def _seen_changes(self, known: _Opened) -> bool:
        """Whether the run on disk is another one. Raises Refusal where it is gone."""
        try:
            return _identity(known.timeline.trace.path) != known.seen
        except OSError:
            raise Refusal(
                410,
                "run-vanished",
                f"'{self.title}' is gone: somebody moved or removed it.",
                "Check its folder.",
            ) from None

    def ask(self, name: str, question: Callable[[RunTimeline], Any]) -> Any:
        """What a question says of the run; it is asked once, and one at a time."""
        known = self.current()
        with self._asking:
            if name not in known.found:
                found = question(known.timeline)
                self.current(known.timeline.hash)  # or it may speak of two runs
                known.found[name] = found
            return known.found[name]

    def turn(self, question: Callable[[RunTimeline], Any], content: str | None = None) -> Any:
        """The same of a question that is not kept."""
        known = self.current(content)
        with self._asking:
            found = question(known.timeline)
        self.current(known.timeline.hash)
        return found


def _identity(path: Path) -> tuple[int, int, int]:
    stat = (path / run_folder.MANIFEST).stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


class ServedRuns:
    """All runs that are served, by id."""

    def __init__(self, runs: Sequence[ServedRun]) -> None:
        self._runs = {run.id: run for run in runs}

    @property
    def only(self) -> ServedRun | None:
        return next(iter(self._runs.values())) if len(self._runs) == 1 else None

    def named(self, number: str) -> ServedRun:
        run = self._runs.get(number)
        if run is None:
            raise Refusal(404, "no-such-run", "No such run is served here.", "`/` lists those that are.")
        return run

    def listed(self) -> dict[str, Any]:
        return {"version": __version__, "runs": [run.summary() for run in self._runs.values()]}


def is_run(folder: Path) -> bool:
    """Whether a folder was written by `lostflops record` or `lostflops import`."""
    return any((folder / name).is_file() for name in (run_folder.RECORDING, run_folder.MANIFEST))


def found(
    paths: Sequence[str], open_: Callable[[Sequence[str], Callable[[str, float], None]], Trace]
) -> ServedRuns:
    """The runs that some paths name: those in a folder of runs; each of several folders; else one job."""
    named = [Path(path).expanduser() for path in paths]
    if len(named) == 1 and named[0].is_dir() and not is_run(named[0]):
        inside = sorted(folder for folder in named[0].iterdir() if is_run(folder))
        if inside:
            return ServedRuns([_served(folder, str(folder), open_) for folder in inside])
    if len(named) > 1 and all(path.is_dir() for path in named):
        return ServedRuns([_served(path, str(path), open_) for path in dict.fromkeys(named)])
    first = named[0]
    title = shown(first.resolve().name if first.is_dir() else "recording")
    run = ServedRun(title, "\0".join(str(path.absolute()) for path in named), lambda tell: open_(paths, tell))
    return ServedRuns([run])


def beside(served: ServedRuns, against: ServedRuns) -> tuple[ServedRuns, str]:
    """Two runs, and the address of the page that draws the second below the first. Raises BadOption."""
    first, second = served.only, against.only
    if first is None or second is None or first.id == second.id:
        raise BadOption("`--against` draws one run below one other.", "name two different runs.")
    return ServedRuns([first, second]), f"/run/{first.id}#with={second.id}"


def _served(
    folder: Path, path: str, open_: Callable[[Sequence[str], Callable[[str, float], None]], Trace]
) -> ServedRun:
    title = shown(folder.resolve().name)
    return ServedRun(title, str(folder.resolve()), lambda tell: open_([path], tell))
