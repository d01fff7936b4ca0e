"""Data loaders get worker processes, or pinned memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Note = Callable[[str], None]


def workers(module: Any, note: Note, workers: int) -> None:
    """Loaders of a data set with an order get so many worker processes, where they have fewer.

    The others are left alone: an `IterableDataset` that does not shard by worker would repeat its data. So
    are samplers that are their own iterator, or have a state that is saved: workers ask ahead, and a loop
    that breaks off, or goes on from a checkpoint, skips batches.
    Workers start in each epoch: where they live on, torch draws one number less and shuffles otherwise.
    """

    def change(dataset: Any, given: dict[str, Any]) -> None:
        has = given.get("num_workers", 0)
        if isinstance(dataset, module.IterableDataset) or has >= workers:
            return
        samplers = [given.get(name) for name in ("sampler", "batch_sampler")]
        samplers.append(getattr(samplers[1], "sampler", None))
        if any(hasattr(one, name) for one in samplers for name in ("__next__", "state_dict")):
            return
        given["num_workers"] = workers
        note(f"num_workers {has} -> {workers}")

    _changed(module, change)


def pinned(module: Any, note: Note) -> None:
    """Batches come from page-locked memory, where there is a GPU that they may be copied to."""

    def change(dataset: Any, given: dict[str, Any]) -> None:
        if not given.get("pin_memory") and sys.modules["torch"].cuda.is_available():
            given["pin_memory"] = True
            note("pin_memory=True")

    _changed(module, change)


def _changed(module: Any, change: Callable[[Any, dict[str, Any]], None]) -> None:
    cls = module.DataLoader
    init = cls.__init__
    # In the order in which they may be given without their names.
    names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")

    @functools.wraps(init)
    def changed(self: Any, dataset: Any, *args: Any, **given: Any) -> None:
        named = dict(zip(names, args, strict=False))
        more = args[len(names) :]
        if not more:
            given |= named
            args = ()
            change(dataset, given)
        init(self, dataset, *args, **given)

    cls.__init__ = changed
