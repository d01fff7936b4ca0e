"""The workers of a Dask cluster, as who asks sees them: tasks go out, results come back in order."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lostflops.errors import LostflopsError

from . import tasks
from .errors import (
    ClusterLost,
    NoWorkers,
    OtherLostflops,
    SchedulerGone,
    WorkersKilled,
    WorkerWithoutLostflops,
)
from .tasks import TaskSaid

if TYPE_CHECKING:
    from distributed import Client, Future

Progress = Callable[[str, float], None]
GLANCE = 1.0  # seconds between two looks at whether anybody works
COLLECTED_WITHIN = 300.0  # seconds that one result may take to come here before we look again
# A worker that cannot import what it is sent ends, so all that is sent is of Python itself.
DONE = "__import__('lostflops.cluster.tasks', fromlist=['done']).done(ours, packed, given)"
CAN_IMPORT = "__import__('lostflops.version') and None"
NOTHING: Mapping[str, Sequence[Any] | None] = {}


class Workers:
    """A cluster that does tasks. What it cannot do at all is raised as ClusterLost."""

    def __init__(
        self, client: Client, where: str, tell: Progress | None = None, patience: float | None = None
    ) -> None:
        self.client: Any = client  # many of its methods have no types
        self.where = where
        self._tell = tell
        self._patience = patience  # seconds without a worker; None: a queue decides
        self._ours = tasks.identity()
        self._alone_since: float | None = None
        self._sent = 0
        self._back = list[None]()  # added to by a thread of Dask

    def count(self) -> int:
        """How many tasks run at once, at least 1: workers of a queue may start later."""
        return max(1, sum(self._threads().values()))

    def send(
        self,
        task: Callable[..., Any],
        *words: Any,
        given: Mapping[str, Sequence[Future[Any]] | None] = NOTHING,
    ) -> Future[Any]:
        """Have a task done with these words, and what other tasks gave. It runs again elsewhere when its
        worker dies."""
        self._sent += 1
        key = f"{task.__name__}-{uuid4().hex}"
        packed = pickle.dumps((task, words), protocol=5)
        names = {"ours": self._ours, "packed": packed, "given": dict(given)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            future = self.client.submit(eval, DONE, names, key=key, pure=False)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, future: Future[Any]) -> None:
        self._back.append(None)

    def results(self, futures: Sequence[Future[Any]], what: str) -> list[TaskSaid]:
        """What the tasks said, in their order. Raises ClusterLost."""
        wait: Any = import_module("distributed").wait
        said = dict[int, TaskSaid]()
        waiting = dict(enumerate(futures))
        while waiting:
            for number in [number for number, future in waiting.items() if future.done()]:
                said[number] = self._said(waiting.pop(number))
            self._show(what)
            if waiting:
                try:
                    with self.client.as_current():
                        wait(list(waiting.values()), timeout=GLANCE, return_when="FIRST_COMPLETED")
                except TimeoutError:
                    self._require_a_worker()
        return [said[number] for number in range(len(futures))]

    def _show(self, what: str) -> None:
        if self._tell:
            on = f"{len(self._threads())} workers" if self._alone_since is None else "no worker yet"
            back = len(self._back)
            self._tell(f"{what}, {back:,} of {self._sent:,} tasks, {on}", back / self._sent)

    def _said(self, future: Any) -> TaskSaid:
        from distributed.scheduler import KilledWorker

        while True:
            try:
                said: Any = future.result(timeout=COLLECTED_WITHIN)
            except TimeoutError:
                self._require_a_worker()
            except KilledWorker as error:
                raise ClusterLost(WorkersKilled(error.allowed_failures + 1)) from error
            except CancelledError as error:
                raise ClusterLost(SchedulerGone(self.where)) from error
            except ImportError as error:
                if (error.name or "").partition(".")[0] != "lostflops":
                    raise
                raise ClusterLost(self._estranged()) from error
            else:
                return tasks.unpacked(said)

    def _estranged(self) -> LostflopsError:
        """Why a worker cannot begin with a task."""
        failed: dict[str, Any] = self.client.run(eval, CAN_IMPORT, on_error="return")
        without = [worker for worker, error in failed.items() if error is not None]
        if without:
            more = f", and {len(without) - 1} more," if len(without) > 1 else ""
            return WorkerWithoutLostflops(f"The Dask worker at {without[0]}{more}")
        return OtherLostflops(next(iter(failed), self.where), "an older lostflops", self._ours)

    def _threads(self) -> dict[str, int]:
        try:
            return dict(self.client.nthreads())
        except (OSError, TimeoutError, CancelledError, ValueError) as error:
            raise ClusterLost(SchedulerGone(self.where)) from error

    def _require_a_worker(self) -> None:
        if self._threads():
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if self._patience is not None and now - self._alone_since >= self._patience:
            raise ClusterLost(NoWorkers(self.where, now - self._alone_since))
