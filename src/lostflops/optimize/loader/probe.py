"""What one worker of a data loader does for a batch, timed inside that worker.

A `Probe` stands for the dataset of a loader with one worker and no collating of its own: its item is not a
batch, but what making that batch took and showed. So nothing is sent but numbers, and what the dataset keeps
for itself changes in the worker alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from lostflops.optimize.device import host_share
from lostflops.optimize.loader.batches import random_state
from lostflops.optimize.loader.own_state import changed, own_state

WATCHED = 3  # batches whose making is watched for what it changes


@dataclass(frozen=True)
class Seen:
    """One batch as it was made."""

    sample_seconds: tuple[float, ...]  # one for all where the dataset gives a batch's samples in one call
    collate_seconds: float
    cpu_seconds: float  # of the whole process
    batch_bytes: int  # of its tensors
    private_bytes: int  # of the worker
    devices: frozenset[str]  # where its tensors lie
    drew: bool  # from Python's, NumPy's or torch's random numbers
    asked_which_worker: bool  # the dataset or worker_init_fn looked at the worker's number
    changed: str = ""  # what of the dataset or collate_fn making the batch changed
    counted: str = ""  # likewise, where it is a number, random numbers or a tensor: the next batch may differ

    @property
    def seconds(self) -> float:
        return sum(self.sample_seconds) + self.collate_seconds


@dataclass(frozen=True)
class Failed:
    """An error of the dataset or of collating: where, and what it says."""

    where: str
    error: str


_asked = False


class _WorkerInfo(torch_worker.WorkerInfo):
    """Notices that somebody asks which worker this is: how datasets that share their samples know theirs."""

    def __getattribute__(self, name: str) -> Any:
        global _asked
        if name in ("id", "num_workers"):
            _asked = True
        return super().__getattribute__(name)


@dataclass(frozen=True)
class WorkerStart:
    """The loader's `worker_init_fn`, run with the loader's own dataset in the worker's info."""

    dataset: Any
    inner: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        info = cast("Any", torch_worker)._worker_info
        # This class is frozen, and its base has slots: it is made, not changed.
        told = _WorkerInfo(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=self.dataset)
        cast("Any", torch_worker)._worker_info = told
        global _asked
        _asked = False
        if self.inner is not None:
            self.inner(worker)


class Probe:
    """`probe[number]` makes the batch of that number and says what it took; None when there are no more."""

    def __init__(
        self, dataset: Any, batches: list[Any], collate: Callable[[Any], Any], batch_size: int | None
    ) -> None:
        self.dataset, self.batches, self.collate, self.batch_size = dataset, batches, collate, batch_size
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Seen | Failed | None:
        state = own_state(dataset=self.dataset, collate_fn=self.collate) if number < WATCHED else None
        before = random_state()
        cpu = time.process_time()
        samples: list[Any] = []
        times: list[float] = []
        wanted: Any = self.batches[number]
        where = "the first sample"
        try:
            for where, take in self._takes(wanted):  # noqa: B007 - told when taking fails
                began = time.perf_counter()
                samples.append(take())
                times.append(time.perf_counter() - began)
        except StopIteration:
            if not samples:
                return None
        except Exception as error:
            return Failed(where, _said(error))
        began = time.perf_counter()
        try:
            batch = self.collate(self._collected(samples))
        except Exception as error:
            return Failed("collating a batch", _said(error))
        collated = time.perf_counter() - began
        cpu = time.process_time() - cpu
        tensors = list(_tensors(batch))
        return Seen(
            tuple(times),
            collated,
            cpu,
            sum(tensor.nbytes for tensor in tensors),
            host_share.private_memory(),
            frozenset(str(tensor.device) for tensor in tensors),
            before != random_state(),
            _asked,
            *(() if state is None else changed(state, dataset=self.dataset, collate_fn=self.collate)),
        )

    def _takes(self, wanted: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The calls that give the batch's samples, as torch's own loader makes them."""
        dataset = self.dataset
        if isinstance(dataset, IterableDataset):
            if self._iterator is None:
                self._iterator = iter(cast("IterableDataset[Any]", dataset))
            iterator = self._iterator
            for n in range(self.batch_size or 1):
                yield f"sample {n} of a batch", lambda: next(iterator)
        elif self.batch_size is None:  # the sampler's items are no lists of samples
            yield f"sample {wanted!r}", lambda: dataset[wanted]
        elif getattr(dataset, "__getitems__", None):
            yield f"samples {list(wanted)[:4]} …", lambda: dataset.__getitems__(wanted)
        else:
            for index in wanted:
                yield f"sample {index!r}", lambda index=index: dataset[index]

    def _collected(self, samples: list[Any]) -> Any:
        whole = not isinstance(self.dataset, IterableDataset) and getattr(self.dataset, "__getitems__", None)
        return samples[0] if self.batch_size is None or whole else samples


def as_it_is(item: Any) -> Any:
    """In place of collating."""
    return item


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in cast("Mapping[Any, Any]", batch).values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in cast("list[Any]", batch):
            yield from _tensors(value)
