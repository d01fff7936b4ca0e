"""Records a piece of work of this very process with torch.profiler: a cell of a notebook.

The work runs in any case. There is never a second profiler beside another: one that already runs is left
alone, and one that the work starts takes the place of ours.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostflops.capture.record.injected.lostflops_recorder.step_log import resident

TRACE = "cell.pt.trace.json"
ALONE = '{"rank": 0, "world_size": 1}'
LOOK_EVERY = 0.2  # seconds between looks at the memory that the process holds
GROW_BY = 2 << 30
PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass
class RecordedCell:
    """What came of it. `reason` says why there is no trace, or why it ends before the work did."""

    trace: Path | None = None
    reason: str = ""
    seconds: float = 0.0  # that were recorded
    worked: float = 0.0  # that the work took


def record(work: Callable[[], None], folder: Path, what: Sequence[str]) -> RecordedCell:
    """Do the work and record it into `folder`. What the work raises is raised."""
    torch: Any = sys.modules.get("torch")
    recorded = RecordedCell()
    if torch is None:
        work()
        recorded.reason = (
            "the cell imported PyTorch while it ran, too late to be recorded: run it again"
            if "torch" in sys.modules
            else "it does not use PyTorch"
        )
        return recorded
    if _busy(torch):
        recorded.reason = "your own profiler is running, and a second one would break it"
        work()
        return recorded
    session = _Session(torch, what, recorded)
    began = time.monotonic()
    try:
        session.start()
    except Exception as error:  # whatever PyTorch raises: the cell is to run all the same
        recorded.reason = f"PyTorch's profiler could not be started: {error}"
        work()
        return recorded
    try:
        with session.making_way(), session.watching():
            work()
    finally:
        session.stop("")
        recorded.worked = time.monotonic() - began
    session.write(folder / TRACE)
    return recorded


def _busy(torch: Any) -> bool:
    """Whether a profiler session lives in this process. PyTorch does not tell of one that warms up."""
    if torch._C._autograd._profiler_type().name != "NONE":
        return True
    sessions = torch.autograd.profiler.profile
    return any(
        type(found) is sessions and found.enabled and found.entered and found.kineto_results is None
        for found in gc.get_objects()
    )


class _Session:
    """Our session, opened and closed on one thread."""

    def __init__(self, torch: Any, what: Sequence[str], recorded: RecordedCell) -> None:
        self._torch, self._what, self._recorded = torch, what, recorded
        self._thread = threading.get_ident()
        self._profiler: Any = None
        self._began = 0.0
        self._working = False
        self.open = False

    def start(self) -> None:
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        # Nsight Systems and Kineto both want CUPTI, and only one can have it.
        if "cuda" in self._what and not os.environ.get("NSYS_PROFILING_SESSION_ID"):
            activities = list(profiler.supported_activities())
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profiler = profiler._KinetoProfile(
            activities=activities,
            record_shapes="shapes" in self._what,
            with_stack="python" in self._what,
            profile_memory="memory" in self._what,
            experimental_config=self._lean(),
        )
        self._profiler.prepare_trace()
        self._profiler.start_trace()
        distributed = self._torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            self._profiler.add_metadata_json("distributedInfo", ALONE)
        self._began = time.monotonic()
        self.open = True

    def _lean(self) -> Any:
        """Leave out the Python copy of the events, which nobody reads: it doubles the time to stop."""
        if "python" in self._what:
            return None
        try:
            return self._torch._C._profiler._ExperimentalConfig(trace_only=True)
        except (AttributeError, TypeError):
            return None

    def stop(self, reason: str) -> None:
        if not self.open or threading.get_ident() != self._thread:
            return
        self.open = False
        self._recorded.seconds = time.monotonic() - self._began
        self._recorded.reason = reason
        self._working = True
        try:
            self._profiler.stop_trace()
        finally:
            self._working = False

    def write(self, target: Path) -> None:
        try:
            self._profiler.export_chrome_trace(str(target))
        except (
            Exception
        ) as error:  # whatever PyTorch raises: the cell's work is done and must not fail for it
            self._recorded.reason = f"its trace could not be written: {error}"
            return
        finally:
            self._profiler = None
        self._recorded.trace = target

    @contextmanager
    def making_way(self) -> Generator[None]:
        """End our session before one that the work starts."""
        module = self._torch.autograd.profiler
        places = [(module.profile, "_prepare_trace"), (module.profile, "_start_trace")]
        places += [(cls, "__enter__") for cls in (module.emit_nvtx, module.emit_itt)]
        before = [(cls, name, getattr(cls, name)) for cls, name in places]

        def first(start: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(start)
            def noticed(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(profiler, "enabled", True):
                    self.stop("the cell started a profiler of its own")
                return start(profiler, *args, **kwargs)

            return noticed

        for cls, name, start in before:
            setattr(cls, name, first(start))
        try:
            yield
        finally:
            for cls, name, start in before:
                setattr(cls, name, start)

    @contextmanager
    def watching(self) -> Generator[None]:
        """End our session when the process has grown too much: events are held in memory until then.

        A session can only be ended on its own thread, so the thread that watches asks Python to have the main
        thread do it between two of its instructions.
        """
        limit = min(GROW_BY, _memory() // 20 or GROW_BY)
        held = resident()
        if held is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        over = threading.Event()

        def end(_: Any) -> int:
            grown = ((resident() or held) - held) >> 20
            try:
                self.stop(f"the process grew by {grown:,} MB while it was recorded")
            except Exception as error:
                self._recorded.reason = f"the recording could not be ended: {error}"
            return 0

        ending = PENDING(end)

        def watch() -> None:
            while not over.wait(LOOK_EVERY):
                if (resident() or 0) - held > limit:
                    ctypes.pythonapi.Py_AddPendingCall(ending, None)
                    return

        watcher = threading.Thread(target=watch, name="lostflops", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
