"""queries: an analytical query set over a table in host memory, against what a link can carry."""

from __future__ import annotations

from typing import Any

from lostflops.lab.exercises.exercise import Check, Exercise, ExerciseSide, Observed, counted
from lostflops.plan.hardware import link

ROWS = 1_000_000
# Bytes of a row: all columns of `sales`, and those that each query needs.
ROW = {"customer": 4, "day": 2, "amount": 8, "price": 8, "discount": 8, "tax": 8, "state": 1, "note": 8}
NEEDED = {
    "what a discount costs": ("day", "amount", "price", "discount"),
    "sums by state": ("state", "amount", "price", "tax"),
    "sums by region": ("customer", "price"),
}
LINKS = {"PCIe 5": link("pcie5").into, "NVLink-C2C": link("c2c").into}


def _bytes(seen: Observed) -> int:
    return sum(row["bytes"] for row in seen.truth["queries"])


def _against_links(row: dict[str, Any]) -> str:
    """How fast it reads here, and what each link would take for its bytes."""
    fastest = min(row["polars_s"], row["duckdb_s"])
    links = ", ".join(f"{1e3 * row['bytes'] / rate:.2f} ms over {name}" for name, rate in LINKS.items())
    return (
        f"{row['query']}: {row['bytes'] / 1e6:.0f} MB; Polars {1e3 * row['polars_s']:.1f} ms, DuckDB "
        f"{1e3 * row['duckdb_s']:.1f} ms, {row['bytes'] / fastest / 1e9:.1f} GB/s; its bytes alone {links}"
    )


def _check(whole: Observed, needed: Observed) -> list[Check]:
    rows: list[dict[str, Any]] = [*whole.truth["queries"], *needed.truth["queries"]]
    same = sum(bool(row["same"]) for row in rows)
    equal = [
        a["result"] == b["result"]
        for a, b in zip(whole.truth["queries"], needed.truth["queries"], strict=True)
    ]
    least = sum(ROW[column] for columns in NEEDED.values() for column in columns)
    return [
        Check("Polars and DuckDB agree in every row", f"{same} of {len(rows)} queries", same == len(rows)),
        Check("both sides answer the same", f"{sum(equal)} of {len(equal)}", all(equal) and len(equal) == 3),
        counted("bytes moved with all columns", 3 * ROWS * sum(ROW.values()), _bytes(whole)),
        counted("bytes moved with those that a query needs", ROWS * least, _bytes(needed)),
        *(
            Check("a query is bound by the slower of link and engine; not graded", _against_links(row), True)
            for row in needed.truth["queries"]
        ),
    ]


EXERCISE = Exercise(
    name="queries",
    title="Queries over data in host memory",
    question="A table lies in host memory: how much of it must each query move over the link?",
    see="bytes per query, the rate at which engines read them here, and the time that links take for them",
    expected=(
        f"a row has {sum(ROW.values())} bytes, of which queries need 12 to 26",
        "a GPU answers no faster than the link delivers: bytes over bandwidth",
    ),
    fix="select the columns before they are moved: scan(...).select(...), and filters in the same query",
    script="workloads.queries",
    sides=(
        ExerciseSide("whole rows are moved", ("--columns", "all")),
        ExerciseSide("the columns that a query needs", ("--columns", "needed")),
    ),
    check=_check,
    recorded=False,
    needs=("duckdb",),
)
