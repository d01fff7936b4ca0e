"""What is made ahead comes in its order; what it raises is raised where it is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import polars as pl
import pytest

from lostflops.export.ahead import ahead
from lostflops.export.formats.perfetto.encoder import Interned


def test_items_come_in_order_and_few_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    enough = threading.Event()

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            if item == 5:
                enough.set()
            yield item

    some = ahead(items(), 3)
    assert [next(some) for _ in range(3)] == [0, 1, 2] and enough.wait(10) and len(made) == 6
    assert list(some) == [*range(3, 100)]


def test_an_error_is_raised_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    some = ahead(items(), 5)
    assert next(some) == 1
    with pytest.raises(ZeroDivisionError):
        next(some)


def test_who_stops_asking_leaves_no_thread() -> None:
    before = threading.active_count()
    some = ahead(iter(range(1000)), 3)
    next(some)
    some.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert threading.active_count() == before


def test_names_are_numbered_as_they_are_met_whatever_codes_a_column_has() -> None:
    texts = ["late", "early", "late", "first"]
    for order in (["first", "late", "early"], ["early", "late", "first"]):
        names = Interned(2)
        column = pl.Series(texts, dtype=pl.Enum(order))
        assert names.codes(column).tolist() == [1, 2, 1, 3]
