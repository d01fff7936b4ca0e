"""Polars with every order that it does not promise turned round.

A sort without `maintain_order` may leave equal rows in any order; a join, a `group_by` and a `unique` without
it may give their rows in any. Which one a version gives is its own affair, so no answer may hang on it:
`reverse()` gives the opposite of the usual ones for the rest of the process.
"""

from __future__ import annotations

from typing import Any

import polars as pl

TURNED: tuple[tuple[Any, str], ...] = (
    *((frame, method) for frame in (pl.DataFrame, pl.LazyFrame) for method in ("sort", "unique")),
    (pl.LazyFrame, "join"),
    (pl.LazyFrame, "group_by"),
    (pl.Expr, "sort_by"),
)


def reverse() -> None:
    """From now on what this Polars may order as it likes comes the other way round."""
    for frame in (pl.DataFrame, pl.LazyFrame):
        _sorts(frame)
        _uniques(frame)
    # A DataFrame joins and groups as a LazyFrame.
    _joins(pl.LazyFrame)
    _groups(pl.LazyFrame)
    _sorted_by()


def _sorts(frame: Any) -> None:
    plain = frame.sort

    def sort(self: Any, *by: Any, maintain_order: bool = False, **options: Any) -> Any:
        # A sort that keeps what was before, of what was turned round.
        return plain(self if maintain_order else self.reverse(), *by, maintain_order=True, **options)

    frame.sort = sort


def _joins(frame: Any) -> None:
    plain = frame.join

    def join(self: Any, *given: Any, maintain_order: Any = None, **options: Any) -> Any:
        if maintain_order not in (None, "none"):
            return plain(self, *given, maintain_order=maintain_order, **options)
        return plain(self, *given, **options).reverse()

    frame.join = join


def _uniques(frame: Any) -> None:
    plain = frame.unique

    def unique(
        self: Any, *given: Any, keep: str = "any", maintain_order: bool = False, **options: Any
    ) -> Any:
        kept = "last" if keep == "any" else keep
        found = plain(self, *given, keep=kept, maintain_order=True, **options)
        return found if maintain_order else found.reverse()

    frame.unique = unique


def _groups(frame: Any) -> None:
    plain = frame.group_by

    def group_by(self: Any, *by: Any, maintain_order: bool = False, **named: Any) -> Any:
        groups = plain(self, *by, maintain_order=True, **named)
        if not maintain_order:
            agg = groups.agg
            groups.agg = lambda *aggs, **more: agg(*aggs, **more).reverse()
        return groups

    frame.group_by = group_by


def _sorted_by() -> None:
    plain = pl.Expr.sort_by

    def sort_by(self: Any, by: Any, *more: Any, maintain_order: bool = False, **options: Any) -> Any:
        if maintain_order:
            return plain(self, by, *more, maintain_order=True, **options)
        keys = [by, *more] if not isinstance(by, (list, tuple)) else [*by, *more]
        turned = [(pl.col(key) if isinstance(key, str) else key).reverse() for key in keys]
        return plain(self.reverse(), turned, maintain_order=True, **options)

    pl.Expr.sort_by = sort_by
