# pyright: basic
"""Queries over a table in host memory: the bytes that each needs of it, and the time that it takes.

python -m lostflops.lab.exercises.scripts.workloads.queries --rows 1000000 --columns needed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl

from lostflops.lab.exercises.scripts.workloads.said import parser, say

CUSTOMERS = 10_000


def tables(rows: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sales, and the customers that they are of."""
    rng = np.random.default_rng(0)
    sales = pl.DataFrame(
        {
            "customer": rng.integers(0, CUSTOMERS, rows, dtype=np.int32),
            "day": rng.integers(0, 365, rows, dtype=np.int16),
            "amount": rng.integers(1, 51, rows, dtype=np.int64),
            "price": rng.integers(100, 100_000, rows, dtype=np.int64),  # in cents: sums are exact
            "discount": rng.integers(0, 11, rows, dtype=np.int64),  # per cent
            "tax": rng.integers(0, 9, rows, dtype=np.int64),
            "state": rng.integers(0, 4, rows, dtype=np.int8),
            "note": rng.integers(0, 1 << 40, rows, dtype=np.int64),
        }
    )
    customers = pl.DataFrame(
        {"customer": np.arange(CUSTOMERS, dtype=np.int32), "region": rng.integers(0, 5, CUSTOMERS, np.int8)}
    )
    return sales, customers


# A query: the columns of sales that it needs, Polars, and the same in SQL.
Query = tuple[tuple[str, ...], Callable[[pl.LazyFrame, pl.LazyFrame], pl.LazyFrame], str]
QUERIES: dict[str, Query] = {
    "what a discount costs": (
        ("day", "amount", "price", "discount"),
        lambda sales, _: (
            sales.filter(pl.col("day") < 90, pl.col("discount").is_between(5, 7), pl.col("amount") < 24)
            .select(cost=(pl.col("price") * pl.col("discount")).sum())
        ),
        ("select sum(price * discount)::bigint as cost from sales "
        "where day < 90 and discount between 5 and 7 and amount < 24"),
    ),
    "sums by state": (
        ("state", "amount", "price", "tax"),
        lambda sales, _: (
            sales.group_by("state")
            .agg(
                amount=pl.col("amount").sum(),
                paid=(pl.col("price") * (100 + pl.col("tax"))).sum(),
                sales=pl.len().cast(pl.Int64),
            )
            .sort("state")
        ),
        ("select state, sum(amount)::bigint as amount, sum(price * (100 + tax))::bigint as paid, "
        "count(*) as sales from sales group by state order by state"),
    ),
    "sums by region": (
        ("customer", "price"),
        lambda sales, customers: (
            sales.join(customers, on="customer")
            .group_by("region")
            .agg(paid=pl.col("price").sum())
            .sort("region")
        ),
        ("select region, sum(price)::bigint as paid from sales join customers using (customer) "
        "group by region order by region"),
    ),
}  # fmt: skip


def copied(table: pl.DataFrame) -> pl.DataFrame:
    """Another place in memory, as a copy over a link makes one."""
    return pl.DataFrame({name: table[name].to_numpy().copy() for name in table.columns})


def best(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What it returns, and the shortest of its times in s."""
    times, result = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - began)
    return result, min(times)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=1_000_000)
    made.add_argument("--columns", choices=("all", "needed"), default="needed", help="what is moved")
    made.add_argument("--repeats", type=int, default=3)
    given = made.parse_args()
    sales, customers = tables(given.rows)
    rows = []
    for name, (needed, polars, sql) in QUERIES.items():
        chosen = sales if given.columns == "all" else sales.select(needed)
        moved, copying = best(lambda chosen=chosen: copied(chosen), given.repeats)
        found, took = best(
            lambda moved=moved, polars=polars: polars(moved.lazy(), customers.lazy()).collect(), given.repeats
        )
        con = duckdb.connect()
        for place, table in (("sales", moved), ("customers", customers)):
            con.register(place, {column: table[column].to_numpy() for column in table.columns})
        other, in_sql = best(lambda con=con, sql=sql: con.execute(sql).fetchall(), given.repeats)
        rows.append(
            {
                "query": name, "bytes": sum(moved[column].to_numpy().nbytes for column in moved.columns),
                "copy_s": copying, "polars_s": took, "duckdb_s": in_sql,
                "result": [list(row) for row in found.rows()], "same": found.rows() == other,
            }
        )  # fmt: skip
    say(given, {"queries": rows, "polars": pl.__version__, "duckdb": duckdb.__version__})


if __name__ == "__main__":
    main()
