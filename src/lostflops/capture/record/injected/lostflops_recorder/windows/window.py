"""The steps that are recorded in full: sessions of torch.profiler, opened and closed between steps."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from .. import log, on_demand, run_folder
from ..free_space import room
from ..marks.ranges import Ranges
from ..rank import Rank, identity
from ..settings import RecorderSettings
from ..step_log import StepLog, resident
from . import reason
from .memory import History
from .reason import Lost, Reason
from .schedule import StepSpan, WindowSchedule
from .sessions import SESSIONS

SMALLEST_TRACE = 200  # bytes; what PyTorch writes of an empty session is longer
GROW_BY = 2 << 30
# What a remedy's spelling depends on; only what the job has imported is asked for its version.
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "lightning", "torchtitan")
# What Linux calls instructions that multiply bf16, and how much of its list is sure to hold the first core.
BF16_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}
CPU_INFO = 16 << 10  # bytes
# Libraries that allocate memory in place of glibc where they are loaded before it.
ALLOCATOR = re.compile(r"lib(jemalloc|tcmalloc|mimalloc)[\w-]*\.so(?:\.(\d+))?")
LATER, WARMING, RECORDING, DONE = "later", "warming", "recording", "done"


class Window:
    """The windows of one rank, in turn. Call `boundary` after each step, on the thread that ended it."""

    def __init__(self, torch: Any, steps: StepLog, rank: Rank, wanted: RecorderSettings) -> None:
        self._torch, self._log, self._rank, self._wanted = torch, steps, rank, wanted
        self.state = LATER
        self.ranges = Ranges(torch)
        self._schedule = WindowSchedule(rank, wanted)
        self._span: StepSpan | None = None
        self._number = 0
        self._history = History(torch)
        self._session: Any = None
        self._range: Any = None
        self._thread = 0
        self._pid = os.getpid()
        self._first = self._step = 0
        self._since = 0.0
        self._held: int | None = None
        self._grow = wanted.grow or min(GROW_BY, _memory() // 20 or GROW_BY)
        self._handler: Any = None
        self._writing = self._ends_after = False
        self._hindrance: Reason | None = None

    @property
    def recording(self) -> bool:
        return self.state == RECORDING

    def boundary(self, step: int, step_seconds: float) -> None:
        """The step before `step` has ended; it took `step_seconds`."""
        if self.state == DONE:
            return
        self._step = step
        if self.state == LATER:
            span = self._span = self._schedule.current(step, step_seconds)
            if span is None or step < span.first - 1:
                return
            if span.last is not None and step > span.last:
                self._say(
                    run_folder.LOST, self._hindrance or Reason(reason.OTHER_WINDOW, "another window was open")
                )
                self._over()
                return
            if not self._free_to_open():
                return
            self._prepare()
        if threading.get_ident() != self._thread or self._span is None:
            return
        if self.state == WARMING:
            if step < self._span.first:
                return
            self._start()
        elif self.state == RECORDING:
            self._leave_range()
            grown = (resident() or 0) - (self._held or 0)
            last = self._schedule.last_of(self._span, step, self._since)
            if last is not None and step > last:
                self._stop()
                return
            if grown > self._grow:
                self._stop(Reason(reason.MEMORY, f"the process grew by {grown >> 20} MB while recording"))
                return
        self._enter_range()

    def _over(self) -> None:
        """This window is: wait for the next one."""
        self._schedule.done()
        self._hindrance = None
        self._span = None
        self._number += 1
        self.state = LATER

    def close(self, why: Reason) -> None:
        """End an open window before its time, keeping what it has."""
        if self.state == RECORDING and self._step > self._first:
            self._leave_range()
            self._stop(why)
        elif self.state in (WARMING, RECORDING):
            self.drop(why.before_a_step)
            self._over()
        elif self.state == LATER and self._hindrance:
            self._say(run_folder.LOST, self._hindrance)
            self._over()

    def drop(self, why: Reason) -> None:
        """End the session and write nothing of it. There is no other window after a fault of ours."""
        state, self.state = self.state, DONE
        if state in (WARMING, RECORDING):
            self._leave_range()
            try:
                self._end_session(warming=state == WARMING)
            finally:
                self._default_signal()
            self._history.stop()
            self._session = None
            self._say(run_folder.LOST, why)

    def forked(self) -> None:
        """In a child of the process that records: write nothing, and die of SIGTERM as it would have."""
        self.state = DONE
        SESSIONS.yield_window = None
        self._default_signal()

    def _free_to_open(self) -> bool:
        current = threading.current_thread()
        if isinstance(current, threading._DummyThread):  # pyright: ignore[reportPrivateUsage]
            self._hindrance = Reason(
                reason.OWN_THREADS, "the optimizer runs inside the backward pass, on PyTorch's own threads"
            )
            return False
        if SESSIONS.others or self._torch._C._autograd._profiler_type().name != "NONE":
            self._hindrance = Reason(reason.OWN_PROFILER, "the job's own profiler was running")
            return False
        if on_demand.recording():
            self._hindrance = Reason(reason.ON_DEMAND, "a trace was being recorded on demand")
            return False
        return True

    def _prepare(self) -> None:
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        # Nsight Systems and Kineto both want CUPTI, and only one can have it.
        if self._wanted.cuda and not os.environ.get("NSYS_PROFILING_SESSION_ID"):
            activities = list(profiler.supported_activities())
        self._thread = threading.get_ident()
        SESSIONS.ours.working = True
        try:
            self._session = profiler._KinetoProfile(
                activities=activities,
                record_shapes=self._wanted.shapes,
                with_stack=self._wanted.python,
                profile_memory=self._wanted.memory,
                experimental_config=self._lean(),
            )
            self._session.prepare_trace()
            self.state = WARMING
        finally:
            SESSIONS.ours.working = False
        SESSIONS.yield_window = self._make_way
        self.ranges.attach()

    def _lean(self) -> Any:
        """Leave out the Python copy of the events, which nobody reads: it doubles the time to stop."""
        if self._wanted.python:
            return None
        try:
            return self._torch._C._profiler._ExperimentalConfig(trace_only=True)
        except (AttributeError, TypeError):
            return None

    def _start(self) -> None:
        SESSIONS.ours.working = True
        try:
            self._held = resident()
            if self._wanted.memory:
                self._history.start()
            self._session.start_trace()
            self.state = RECORDING
        finally:
            SESSIONS.ours.working = False
        self._first = self._step
        self._since = time.monotonic()
        self._name_rank()
        self._take_signal()

    def _name_rank(self) -> None:
        """Without a process group PyTorch does not write which rank this is; the launcher said it."""
        distributed = self._torch.distributed
        if self._rank.source == run_folder.ASSUMED or (
            distributed.is_available() and distributed.is_initialized()
        ):
            return
        known = {"rank": self._rank.rank, "world_size": self._rank.world}
        self._session.add_metadata_json(
            "distributedInfo", json.dumps({k: v for k, v in known.items() if v is not None})
        )

    def _name_steps(self) -> None:
        """Say which steps the window holds from end to end, and what all windows of this process share.

        Where no launcher told the rank, that must do: two such processes of a job would both be rank 0.
        """
        said: dict[str, Any] = {"first": self._first, "last": self._step - 1}
        distributed = self._torch.distributed
        if self._rank.source == run_folder.ASSUMED and not (
            distributed.is_available() and distributed.is_initialized()
        ):
            said["process"] = identity()
        said["versions"] = _versions() | allocator()
        said["frameworks"] = self.ranges.frameworks
        said["bf16_units"] = bf16_units()
        self._session.add_metadata_json(run_folder.IN_TRACE, json.dumps(said))

    def _enter_range(self) -> None:
        if self.state == RECORDING:
            self._range = self._torch.autograd.profiler.record_function(f"ProfilerStep#{self._step}")
            self._range.__enter__()

    def _leave_range(self) -> None:
        if self._range is not None:
            entered, self._range = self._range, None
            entered.__exit__(None, None, None)

    def _end_session(self, warming: bool = False) -> None:
        SESSIONS.yield_window = None
        self.ranges.detach()
        SESSIONS.ours.working = True
        try:
            if self._session is not None and warming:
                self._session.start_trace()  # a session that was only prepared cannot be stopped
            if self._session is not None:
                self._session.stop_trace()
        finally:
            SESSIONS.ours.working = False

    def _stop(self, why: Reason | None = None) -> None:
        """Stop and write the window once: plain JSON, because compressing here would hold the job up."""
        self.state = DONE  # first: whatever goes wrong below, this is not tried again
        self._writing = True
        try:
            self._write(why)
        finally:
            self._writing = False
            self._default_signal()
        self._over()
        if self._ends_after:
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self, why: Reason | None) -> None:
        began = time.monotonic_ns()
        grown = max(0, (resident() or 0) - (self._held or 0))
        self._name_steps()
        self._end_session()
        name = run_folder.trace(self._log.name, self._number)
        target = os.path.join(self._log.folder, name)
        beside = os.path.join(self._log.folder, f".{name}{run_folder.UNFINISHED}")
        snapshot = run_folder.memory(self._log.name, self._number)
        try:
            free = room(self._log.folder, self._wanted.keep_free)
            if free < grown + self._wanted.keep_free:
                raise Lost(reason.DISK_FULL, f"only {free >> 20} MB are free on the disk")
            self._session.export_chrome_trace(beside)
            if not _whole(beside):
                raise Lost(reason.NOT_WRITTEN, "the trace could not be written completely")
            size = os.stat(beside).st_size
            os.replace(beside, target)
            dumped = self._history.dump(os.path.join(self._log.folder, snapshot))
        except Exception as error:
            self._remove(beside)
            self._history.stop()
            self._session = None
            self._say(run_folder.LOST, reason.of(error))
        else:
            self._session = None
            took = time.monotonic_ns() - began
            more = {"memory": snapshot} if dumped else {}
            # The step that runs when the window is closed early is not whole.
            self._say(
                run_folder.PARTIAL if why else run_folder.COMPLETE,
                why,
                first=self._first,
                last=self._step - 1,
                file=name,
                bytes=size,
                took=took,
                **more,
            )

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError:
            pass

    def _say(self, state: str, why: Reason | None, **more: Any) -> None:
        asked = {"request": self._span.request} if self._span is not None and self._span.request else {}
        self._log.add(
            kind=run_folder.WINDOW, number=self._number, state=state, **reason.fields(why), **asked, **more
        )

    def _make_way(self) -> bool:
        """The job starts a profiler of its own. False when this is the wrong thread to close ours."""
        if os.getpid() != self._pid or self.state not in (WARMING, RECORDING):
            return True
        if threading.get_ident() != self._thread:
            return False
        self.close(Reason(reason.OWN_PROFILER, "the job's own profiler was started"))
        return True

    def _take_signal(self) -> None:
        """Keep the window when a scheduler ends the job, unless the job looks after SIGTERM itself."""
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._handler = self._terminated
                signal.signal(signal.SIGTERM, self._handler)

    def _default_signal(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        # Schedulers send it more than once, and a window half written would be lost.
        if self._writing:
            self._ends_after = True
            return
        try:
            if os.getpid() == self._pid:
                self.close(Reason(reason.JOB_ENDED, "the job was terminated"))
        except Exception as error:
            log.fault("closing the window on SIGTERM", error)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _versions() -> dict[str, str]:
    """The versions of the training packages that the job uses."""
    imported = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in PACKAGES)
    return {name: str(version) for name, version in imported if version is not None}


def allocator(loaded: str = "/proc/self/maps") -> dict[str, str]:
    """What was preloaded to allocate memory in place of glibc, with the version in its file's name."""
    found = ALLOCATOR.search(os.environ.get("LD_PRELOAD", ""))
    try:
        with open(loaded, encoding="utf-8", errors="replace") as file:
            held = found is not None and f"lib{found[1]}" in file.read()
    except OSError:
        return {}
    return {found[1]: found[2] or "0"} if found is not None and held else {}


def bf16_units(listed: str = "/proc/cpuinfo") -> list[str]:
    """The instructions of the CPU that multiply bf16, as Linux lists them for its first core."""
    try:
        with open(listed, "rb", buffering=0) as file:
            said = file.read(CPU_INFO).decode(errors="replace")
    except OSError:
        return []
    lines = (line for line in said.splitlines() if line.lower().startswith(("flags", "features")))
    return sorted(BF16_UNITS.intersection(next(lines, "").partition(":")[2].split()))


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _whole(path: str) -> bool:
    """Whether a JSON document was written to its end: PyTorch does not say when the disk was full."""
    size = os.stat(path).st_size
    if size < SMALLEST_TRACE:
        return False
    with open(path, "rb") as file:
        file.seek(-64, os.SEEK_END)
        return file.read().rstrip().endswith(b"}")
