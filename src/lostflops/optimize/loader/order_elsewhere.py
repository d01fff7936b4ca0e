"""A sampler's order, found out in a process of its own: what it counts in a global stays as it is."""

from __future__ import annotations

import multiprocessing
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch

from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from lostflops.optimize.loader.batches import SampleOrder

PATIENCE = 10.0  # seconds for a sampler's batches at least


class OrderElsewhere:
    """As a `SampleOrder`, until `close`.

    It is asked here instead where processes cannot be forked, and where the sampler fails in one: its own
    error is then the caller's, and one whose numbers lie on a GPU works.
    """

    def __init__(self, order: SampleOrder, seconds: float) -> None:
        self.length, self.own_random = order.length, order.own_random
        self.draws, self.counts = order.draws, order.counts
        self._order, self._seconds = order, max(seconds, PATIENCE)
        self._asking: Any = None
        self._end: Any = None
        self._here = sys.platform != "linux"

    def next(self, number: int) -> list[Any]:
        """So many batches more; fewer where there are none. Raises Refused for a sampler that hangs."""
        found = None if self._here else self._elsewhere(number)
        if found is None:
            self.close()
            self._here = True
            found = self._order.next(number), self._order.draws, self._order.counts
        batches, self.draws, self.counts = found
        return batches

    def close(self) -> None:
        if self._end is not None:
            self._end()

    def _elsewhere(self, number: int) -> tuple[list[Any], bool, str] | None:
        asking = self._asking or self._start()
        try:
            asking.send(number)
            if not asking.poll(self._seconds):
                raise Refused(
                    f"the sampler gave no batch within {self._seconds:g} s",
                    "see what it waits for, or give more seconds=",
                )
            return asking.recv()
        except (OSError, EOFError):
            return None

    def _start(self) -> Any:
        forked = multiprocessing.get_context("fork")
        self._asking, answering = forked.Pipe()
        process = forked.Process(target=_answer, args=(self._order, self._asking, answering), daemon=True)
        process.start()
        answering.close()
        self._end = finalize(self, _end, process, self._asking)
        return self._asking


def _answer(order: SampleOrder, asking: Any, answering: Any) -> None:
    asking.close()  # its end is then seen here
    torch.set_num_threads(1)  # threads are not forked
    with suppress(Exception):  # the caller finds out
        while True:
            batches = order.next(answering.recv())
            answering.send((batches, order.draws, order.counts))


def _end(process: Any, asking: Any) -> None:
    asking.close()
    process.kill()
    process.join()
