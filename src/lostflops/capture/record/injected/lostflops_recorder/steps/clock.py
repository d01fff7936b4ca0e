"""Counts the steps of this process: a step ends when the optimizer has returned, or where `stepping` says.

Step 0 ends with the first call. With several optimizers one of them leads: the first that is called twice
while the leader is not called at all takes over, so that an optimizer built anew does not stop the clock.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import compiler, log, run_folder, settings, windows
from ..marks import annotated
from ..rank import Rank, identify
from ..step_log import StepLog, elsewhere
from ..windows import reason
from ..windows.none import NoWindow
from ..windows.reason import Reason
from ..windows.window import Window
from .core_wait import CoreWait
from .told import ToldNumbers

now = time.monotonic_ns
LONG_COLLECTION = 50_000  # ns, from which on a mark costs little of what it marks


class Clock:
    """What this process knows of its steps, its log and its window."""

    def __init__(self) -> None:
        self.on = True
        self.elsewhere = False  # whether something other than optimizers ends the steps
        self.depth = threading.local()
        self.step = 0
        self.log: StepLog | None = None
        self.window: Window | NoWindow | None = None
        self.started: int | None = None  # of the running step; nobody saw the first one start
        self.own = self.optimizer = self.data = self.checkpoint = self.collecting = self.micro_steps = 0
        self.thread = threading.get_ident()  # that ended the last step
        self._core_wait = CoreWait()
        self._told = ToldNumbers()
        self._tells_of_ended: bool | None = None  # None: nothing was told yet
        self._tells_loss = False
        self._collection_began = 0
        self._collection: Any = None  # its range
        self._young = (0, 0)  # how long the last two collections of the youngest objects took
        self._in_backward = False
        self._leader: int | None = None
        self._followers: set[int] = set()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def called(self, optimizer: object, began: int, counts: bool = True) -> None:
        """The outermost call of an optimizer returned."""
        self._passed(id(optimizer), began, counts and not self.elsewhere)

    def passed(self, what: object) -> None:
        """Something that ends steps in the optimizer's place has been passed."""
        if "torch" in sys.modules or settings.log_only():
            self._passed(id(what), None, True)

    def logged(self, loss: Any) -> None:
        """A framework logs the loss of the step that has just ended. What the job itself tells goes before.

        A number rounded to four digits, as versions of the Trainer before 5 log it, would call losses equal
        that are not.
        """
        if self._tells_loss or not isinstance(loss, float):
            return
        if math.isfinite(loss) and loss == round(loss, 4):
            return
        with self._lock:
            self._told.add(max(0, self.step - 1), {"loss": loss})

    def parts(self, losses: Sequence[Any]) -> None:
        """A framework's losses of the batches of the step that has just ended, which add up to the step's.
        What the job itself tells goes before."""
        if self._tells_loss or not losses:
            return
        try:
            with self._lock:
                self._told.add(max(0, self.step - 1), {"loss": sum(losses[1:], losses[0])})
        except Exception as error:
            log.fault("the losses of a framework", error)

    def tell(self, values: dict[str, Any]) -> None:
        """The job says something of a step: of the running one, or of the one that has just ended."""
        try:
            with self._lock:
                if self._tells_of_ended is None:
                    self._tells_of_ended = self.step > 0 and not self.micro_steps
                self._tells_loss |= "loss" in values
                self._told.add(max(0, self.step - self._tells_of_ended), values)
        except Exception as error:  # what was told is not a number: no reason to stop anything for
            log.fault("what the job says of its steps", error)

    def _passed(self, what: int, began: int | None, counts: bool) -> None:
        if not self.on:
            return
        ended = now()
        watched = compiler.watch(None)
        try:
            # Per-parameter optimizers are called from the backward pass's threads.
            with self._lock:
                if began is not None:
                    self.optimizer += ended - began
                if counts and self._leads(what):
                    self._boundary()
        except Exception as error:
            self.stop(error)
        finally:
            compiler.watch(watched)

    def stop(self, error: Exception) -> None:
        """A fault of ours: this process is recorded no further."""
        self.on = False
        log.fault(f"step {self.step}", error)
        try:
            if self.window is not None:
                self.window.drop(Reason(reason.FAULT, f"{type(error).__name__}: {error}"))
        except Exception as second:
            log.fault("closing the window", second)

    def _leads(self, optimizer: int) -> bool:
        if self._leader is None or optimizer in self._followers:
            self._leader = optimizer
        if optimizer == self._leader:
            self._followers.clear()
            return True
        self._followers.add(optimizer)
        return False

    def _boundary(self) -> None:
        ran_and_waited = self._core_wait.end()
        ended = now()
        if self.log is None:
            self._begin()
        assert self.log is not None and self.window is not None
        self.thread = threading.get_ident()
        took = None if self.started is None else ended - self.started
        duration = "null" if took is None else str(took)
        core = ""
        if ran_and_waited is not None and took is not None:
            core = '"core_wait":{1},"on_core":{0},'.format(*ran_and_waited)
        self.log.step(
            self.step,
            ended,
            f'"duration":{duration},{core}"own":{self.own},"micro_steps":{self.micro_steps},'
            f'"optimizer":{self.optimizer},"data":{self.data},"checkpoint":{self.checkpoint},"gc":{self.collecting},"window":{int(self.window.recording)}',
        )
        self._told.write(self.log)
        self.step += 1
        self.optimizer = self.data = self.checkpoint = self.collecting = self.micro_steps = 0
        self.window.boundary(self.step, (took or 0) / 1e9)
        self.started = self._core_wait.begin()
        self.own = self.started - ended

    def backward(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a backward pass. One inside another, as of activation checkpoints, is no pass of its own."""
        # Not by thread: on a GPU the inner ones run on threads of PyTorch's own.
        if not self.on or self._in_backward:
            return function(*args, **kwargs)
        self._in_backward = True
        self.micro_steps += 1
        try:
            if self.window is not None and self.window.ranges.attached:
                return self.window.ranges.named("backward", function, *args, **kwargs)
            return function(*args, **kwargs)
        finally:
            self._in_backward = False

    def _begin(self) -> None:
        rank = identify()
        torch = sys.modules.get("torch")
        try:
            self.log = StepLog(rank)
        except OSError as error:
            why = f"{log.RUN} cannot be written there ({error.strerror})"
            try:
                self.log = StepLog(rank, elsewhere())
            except OSError:
                self.on = False
                sys.stderr.write(f"lostflops: rank {rank.rank} is not recorded: {why}. Training goes on.\n")
                raise
            said = f"{why}; its recording lies in {os.path.dirname(self.log.folder)} on its machine"
            sys.stderr.write(f"lostflops: rank {rank.rank}: {said}.\n")
        self.log.introduce(rank, str(getattr(torch, "__version__", "")))
        if settings.log_only():
            self.window = NoWindow()
        else:
            self.window = self._windows(torch, self.log, rank)
        atexit.register(self._ended)
        gc.callbacks.append(self._collected)
        annotated.first_step()

    def _windows(self, torch: Any, steps: StepLog, rank: Rank) -> Window:
        nsys = sys.modules.get(f"{windows.__name__}.nsys")
        kind: Any = Window
        if nsys is not None and nsys.inside():
            kind = sys.modules[f"{windows.__name__}.nsys_window"].NsysWindow
        return kind(torch, steps, rank, settings.read())

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began = now()
            # Of the youngest objects there are hundreds, most over in microseconds; one may be held up.
            marked = info["generation"] or min(self._young) >= LONG_COLLECTION
            if marked and self.window is not None and self.window.ranges.attached:
                self._collection = self.window.ranges.begin("gc.collect")
        elif self._collection_began:
            if self._collection is not None and self.window is not None:
                self.window.ranges.end(self._collection)
                self._collection = None
            took = now() - self._collection_began
            self.collecting += took
            if not info["generation"]:
                self._young = (self._young[1], took)
            self._collection_began = 0

    def _ended(self) -> None:
        """The interpreter exits: also after an exception, `sys.exit` and Ctrl-C."""
        if not self.on or self.log is None or self.window is None:
            return
        try:
            self.window.close(Reason(reason.JOB_ENDED, "the job ended"))
            marked = annotated.summary()
            if marked:
                self.log.add(kind=run_folder.MARKED, **marked)
            self._told.write(self.log, wait=True)
            self.log.ended(self.step, **_exception())
        except Exception as error:
            self.stop(error)

    def _forked(self) -> None:
        """Loader workers inherit hooks and open files: their lines would land in their parent's log."""
        self.on = False
        if self.window is not None:
            self.window.forked()


def _exception() -> dict[str, str]:
    """The class of the exception that ends the interpreter. Its text may hold anything and stays here."""
    raised = getattr(sys, "last_type", None)
    return {"exception": raised.__name__} if isinstance(raised, type) else {}


CLOCK = Clock()


NESTED: dict[str, threading.local] = {}


def timed(account: str, function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """`function`, with the time of its outermost calls added to an account of the running step: one within
    another function that adds to the same account is no outermost call.

    Only what the main thread calls, or the one that ends steps: on others it runs beside the step. With a
    name they are ranges of recorded steps.
    """
    nested = NESTED.setdefault(account, threading.local())

    def counting(*args: Any, **kwargs: Any) -> Any:
        if not CLOCK.on or getattr(nested, "inside", False):
            return function(*args, **kwargs)
        nested.inside = True
        began = now()
        try:
            if name and CLOCK.window is not None and CLOCK.window.ranges.attached:
                return CLOCK.window.ranges.within(name, function, *args, **kwargs)
            return function(*args, **kwargs)
        finally:
            nested.inside = False
            if threading.get_ident() in (CLOCK.thread, threading.main_thread().ident):
                setattr(CLOCK, account, getattr(CLOCK, account) + now() - began)

    return counting
