"""What is read next while what was read is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Iterator[Item], most: int) -> Iterator[Item]:
    """The same items in their order, at most so many of them made before they are asked for.

    All are made on one other thread, and what they raise is raised here.
    """
    pool = ThreadPoolExecutor(1)
    try:
        coming = deque(pool.submit(next, items, _END) for _ in range(most))
        while (item := coming.popleft().result()) is not _END:
            coming.append(pool.submit(next, items, _END))
            yield item  # pyright: ignore[reportReturnType]
    finally:
        pool.shutdown(cancel_futures=True)
