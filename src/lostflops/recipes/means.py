"""Quotients and means weighted by time, the same to the last digit in whatever order the rows come."""

from __future__ import annotations

import polars as pl


def quotient(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """`part / whole` of integers, where `whole` was joined or added up.

    Where one number stands for all rows of it, as of one rank alone, Polars may multiply by its reciprocal,
    and the last digit would tell how many ranks there are. So each row gets a number of its own.
    """
    return part / (whole + 0 * part)


def weighted_mean(value: pl.Expr, weight: pl.Expr, where: pl.Expr | None = None) -> pl.Expr:
    """Sum of `value * weight` / sum of `weight`, of the rows `where`; null where that sum is 0.

    Joins and workers of a cluster bring rows in other orders, and a sum of floats depends on theirs: products
    are added from the least to the greatest.
    """
    products = value * weight
    if where is not None:
        products, weight = products.filter(where), weight.filter(where)
    # A running sum keeps the order: Polars leaves out the sorting before a plain one.
    total = products.drop_nulls().sort().cum_sum().last()
    return pl.when(weight.sum() > 0).then(total / weight.sum())
