"""Batches of a user's `DataLoader` without touching it: its sampler copied, its errors put into words."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import pickle
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lostflops.optimize.loader.own_state import changed, named_by_code, own_state
from lostflops.optimize.random_places import RandomPlaces, random_state
from lostflops.optimize.refused import Refused

WATCHED = 24  # batches of the sampler that are watched for what asking for them changes


class SampleOrder:
    """What the loader's sampler would give next, from a copy of it; from the start again at its end."""

    def __init__(self, loader: Any) -> None:
        sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if is_its_own_iterator(sampler) or is_its_own_iterator(loader.sampler):
            raise Refused(
                "the sampler is its own iterator: measuring would take batches from it",
                "give the loader a sampler that begins anew, such as a list",
            )
        self._sampler = _copied(sampler, loader.dataset)
        self._iterator: Iterator[Any] | None = None  # none of its code has run
        self._begins = True
        # Both behind an epoch's first batch, and before its end.
        self.draws = False  # from Python's, NumPy's or torch's random numbers
        self.counts = ""  # what of the sampler's own state changes as it is asked
        # Random numbers that it has for itself: a shuffle that ends draws from them for the next epoch.
        kinds = own_state(**self._roots()).items()
        self.own_random = next((path for path, (kind, _) in kinds if kind == "random"), "")
        self._watched = 0
        self.length: int | None = None
        with suppress(TypeError, NotImplementedError):
            self.length = len(sampler)

    def _roots(self) -> dict[str, Any]:
        """Where its state may be: in itself, and in what its code names."""
        return {**named_by_code(self._sampler), "sampler": self._sampler}

    def next(self, number: int) -> list[Any]:
        found = self._taken(number)
        while len(found) < number:
            self._iterator, self._begins = iter(self._sampler), True
            more = self._taken(number - len(found))
            if not more:
                break
            found += more
        return found

    def _taken(self, number: int) -> list[Any]:
        """So many of this epoch. A shuffle draws with its first item; what draws later draws beside steps."""
        if self._iterator is None:
            self._iterator = iter(self._sampler)
        found = list(itertools.islice(self._iterator, 1)) if self._begins else []
        self._begins = False
        before = random_state()
        while len(found) < number and not self.counts and self._watched < WATCHED:
            state = own_state(**self._roots())
            more = list(itertools.islice(self._iterator, 1))
            if not more:
                break
            found += more
            self._watched += 1
            _, self.counts = changed(state, **self._roots())
        found += itertools.islice(self._iterator, number - len(found))
        self.draws |= random_state() != before
        return found


def _copied(sampler: Any, dataset: Any) -> Any:
    """A sampler with its own state and random numbers, also in what it holds; datasets are shared."""
    shared = {id(held): held for held in (dataset, *_datasets(sampler))}
    try:
        return copy.deepcopy(sampler, shared)
    except Exception as error:
        raise Refused(
            f"the sampler cannot be copied, and measuring would take batches from it: {_said(error)}",
            "give the loader a sampler that holds no iterator, file or lock",
        ) from error


def _datasets(thing: Any) -> Iterator[Any]:
    """Datasets that a sampler holds, or a sampler in it: they may be large."""
    held: dict[str, Any] = getattr(thing, "__dict__", {})
    for value in held.values():
        for one in cast("list[Any]", value) if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, Dataset):
                yield one
            elif isinstance(one, Sampler):
                yield from _datasets(one)


class Batches:
    """So many batches of a loader; `close` ends its workers. What goes wrong with them is Refused."""

    def __init__(self, loader: Any, most: int, seconds: float) -> None:
        self._left, self._seconds = most, seconds
        with _quiet():
            try:
                self._iterator: Any = iter(loader)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                raise Refused(
                    f"the dataset cannot be sent to a worker process: {_said(error)}",
                    "define it, collate_fn and worker_init_fn at the top of a module, or start workers with "
                    "multiprocessing_context='fork'",
                ) from error
            except Exception as error:
                raise Refused(f"no worker starts: {_said(error)}", "see what stops processes here") from error

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        self._left -= 1
        with _quiet():
            try:
                return next(self._iterator)
            except StopIteration:
                raise
            except Exception as error:
                if isinstance(error, RuntimeError) and "DataLoader timed out" in str(error):
                    self.end_at_once()
                    raise Refused(
                        f"no batch came within {self._seconds:g} s",
                        "see what the dataset waits for, or give more seconds=",
                    ) from error
                raise Refused(
                    f"loading failed: {_said(error)}", "see whether the loader runs with num_workers=1"
                ) from error

    def end_at_once(self) -> None:
        """In the middle of a batch: closing would wait for it, five seconds at most. Closes nothing yet."""
        for worker in getattr(self._iterator, "_workers", ()):
            worker.terminate()

    def close(self) -> None:
        """Now, not when the garbage collector comes by."""
        end = getattr(self._iterator, "_shutdown_workers", None)
        if end is not None:
            end()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _quiet() -> Generator[None]:
    """Without torch's advice about the number of workers, while several are tried out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def random_numbers_kept(loader: Any) -> Generator[None]:
    """Python's, NumPy's, torch's and the loader's own random numbers are afterwards as before."""
    numbers = RandomPlaces(on_gpus=torch.cuda.is_initialized())
    generator: Any = loader.generator
    own: Any = generator.get_state() if generator is not None else None
    try:
        yield
    finally:
        numbers.restore()
        if generator is not None:
            generator.set_state(own)


def plain(loader: Any) -> None:
    """Refuses what is not exactly torch's DataLoader."""
    kind = cast("type[Any]", type(loader))
    if kind is not DataLoader:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise Refused(
            f"a {name} is no torch.utils.data.DataLoader, and how to build it anew is not known",
            "tune a plain DataLoader over the same dataset, and give the setting's arguments to this class",
        )


def made(loader: Any, **changed: Any) -> DataLoader[Any]:
    """A loader as the given one, but for some arguments."""
    dataset: Any = loader.dataset
    iterable = isinstance(dataset, IterableDataset)
    arguments: dict[str, Any] = {
        name: getattr(loader, name)
        for name in ("collate_fn", "worker_init_fn", "generator", "timeout", "pin_memory_device", "in_order")
        if getattr(loader, name, None) not in (None, "") and name in _parameters()
    }
    if iterable or loader.batch_size is not None:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not iterable:
            arguments["sampler"] = loader.sampler
    elif loader.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": loader.sampler}
    else:
        arguments["batch_sampler"] = loader.batch_sampler
    if "batch_sampler" in changed:
        for name in ("batch_size", "drop_last", "sampler"):
            arguments.pop(name, None)
    if changed["num_workers"]:
        arguments["multiprocessing_context"] = loader.multiprocessing_context
    else:
        arguments["timeout"] = 0  # torch allows none without workers
    with warnings.catch_warnings():
        # The number was chosen with the cores in view, or by the caller.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return cast("Any", DataLoader)(dataset, **{**arguments, **changed})


@functools.lru_cache(maxsize=1)
def _parameters() -> frozenset[str]:
    return frozenset(inspect.signature(cast("Any", DataLoader).__init__).parameters)


def knows_order() -> bool:
    """Whether this torch can hand out batches as they come."""
    return "in_order" in _parameters()


def is_its_own_iterator(thing: Any) -> bool:
    """Whether iterating uses it up. Its code is not run to find out."""
    return inspect.getattr_static(thing, "__next__", None) is not None
