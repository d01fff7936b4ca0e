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
from lostflops.optimize.loader.own_state import changed, own_state
from lostflops.optimize.random_places import RandomPlaces, random_state

WATCHED = 3  # batches whose making is watched for what it changes
UNSEEN = "what its samples are made of (the same batch, made again, is another)"


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
    again_seconds: float = 0.0  # it was made once more

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
        before, numbers = random_state(), RandomPlaces()
        cpu = time.process_time()
        times: list[float] = []
        made = self._made(number, times)
        if made is None or isinstance(made, Failed):
            return made
        batch, collated = made
        cpu = time.process_time() - cpu
        tensors = list(_tensors(batch))
        drew = before != random_state()
        found = ("", "") if state is None else changed(state, dataset=self.dataset, collate_fn=self.collate)
        began = time.perf_counter()
        if not number and not found[1] and not self._comes_again(batch, numbers):
            found = found[0] or UNSEEN, UNSEEN
        again = time.perf_counter() - began
        return Seen(
            tuple(times),
            collated,
            cpu,
            sum(tensor.nbytes for tensor in tensors),
            host_share.private_memory(),
            frozenset(str(tensor.device) for tensor in tensors),
            drew,
            _asked,
            *found,
            again,
        )

    def _made(self, number: int, times: list[float]) -> tuple[Any, float] | Failed | None:
        """The batch of that number, and how long collating took; adds what its samples took to `times`."""
        samples: list[Any] = []
        where = "the first sample"
        try:
            for where, take in self._takes(self.batches[number]):  # noqa: B007 - told when taking fails
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
            return self.collate(self._collected(samples)), time.perf_counter() - began
        except Exception as error:
            return Failed("collating a batch", _said(error))

    def _comes_again(self, batch: Any, numbers: RandomPlaces) -> bool:
        """Whether the same random numbers make the first batch again: if not, it is made of something that
        making it changes, wherever that is (a global, an attribute of the class, an iterator)."""
        self._iterator = None  # a stream that begins anew gives the same, and goes on
        after = RandomPlaces()
        numbers.restore()
        again = self._made(0, [])
        after.restore()
        return isinstance(again, tuple) and same(again[0], batch)

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


def same(one: Any, other: Any, depth: int = 8) -> bool:
    """To the bit, as far as it can be told: things of unknown kinds are the same, and what lies deep in
    them."""
    if type(one) is not type(other):
        return False
    if not depth:
        return True
    if isinstance(one, torch.Tensor):
        if one.layout != torch.strided or one.is_meta or one.is_quantized:
            return True
        return one.shape == other.shape and bool(torch.equal(one, other) or _same_bytes(one, other))
    if isinstance(one, Mapping):
        mine, others = cast("Mapping[Any, Any]", one), cast("Mapping[Any, Any]", other)
        return mine.keys() == others.keys() and all(same(mine[key], others[key], depth - 1) for key in mine)
    if isinstance(one, (list, tuple)):
        some, more = cast("list[Any]", one), cast("list[Any]", other)
        return len(some) == len(more) and all(same(*pair, depth - 1) for pair in zip(some, more, strict=True))
    if type(one).__module__ == "numpy" and hasattr(one, "tobytes"):
        return one.dtype.hasobject or one.tobytes() == other.tobytes()
    if isinstance(one, (int, float, complex, str, bytes)):
        return bool(one == other or (one != one and other != other))
    held, more = (getattr(each, "__dict__", None) for each in (one, other))
    return not isinstance(held, dict) or same(held, more, depth - 1)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """What is not a number is not equal to itself."""
    some, more = (each.detach().cpu().contiguous().view(-1) for each in (one, other))
    return bool(torch.equal(some.view(torch.uint8), more.view(torch.uint8)))


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in cast("Mapping[Any, Any]", batch).values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in cast("list[Any]", batch):
            yield from _tensors(value)
