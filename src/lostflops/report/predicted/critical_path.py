"""The critical path as text, as an HTML section and as JSON: what it is made of, and what else has slack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lostflops.accounts import ACCOUNTS
from lostflops.errors import shown
from lostflops.finding import percent
from lostflops.replay.critical_path import BY, CriticalPath
from lostflops.units import milliseconds

MOST = 8  # rows of each table
LEAST = 0.005  # of the path, or of what its steps take off it, from which on a row is shown
HEADINGS = ("on it", "share", "elsewhere", "slack")
NONE_OF = {"operator": "no operator", "module": "no module", "account": "unknown", "rank": "unknown"}
READ = (
    "Times are per step, elsewhere of all ranks together. What is elsewhere can take longer by its slack "
    "before the job does; making it alone faster gains nothing."
)


def tables(path: CriticalPath) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """What the path is told apart by, and a row of texts for each part: its name, then under each heading."""
    steps = max(1, path.steps)
    for by in BY:
        rows = path.of(by)
        if rows.height < 2 and rows["what"].null_count():
            continue  # nothing of the kind was recorded
        whole = max(1, int(rows["time"].sum()))
        shown_rows = [
            row
            for row in rows.iter_rows(named=True)
            if row["path"] >= LEAST * path.length or row["time"] - row["path"] >= LEAST * whole
        ]
        yield (
            by,
            [
                (
                    _name(by, row["what"]),
                    milliseconds(row["path"] / steps) if row["path"] else "",
                    percent(row["path"], path.length) if row["path"] else "",
                    milliseconds((row["time"] - row["path"]) / steps) if row["time"] > row["path"] else "",
                    milliseconds(row["slack"]) if row["slack"] is not None else "",
                )
                for row in shown_rows[:MOST]
            ],
        )


def lead(path: CriticalPath) -> str:
    """A sentence on how long the path is and which ranks it runs through."""
    ranks = [row["what"] for row in path.of("rank").iter_rows(named=True) if row["path"]]
    of = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    steps = "1 step" if path.steps == 1 else f"{path.steps} steps"
    return f"The critical path of {steps}, {milliseconds(path.length)}, runs through {of}. {READ}"


def to_json(path: CriticalPath) -> dict[str, Any]:
    """All rows, times in ns over all steps that count."""
    return {"ns": path.length, "steps": path.steps, "by": {by: _rows(path, by) for by in BY}}


def _rows(path: CriticalPath, by: str) -> list[Mapping[str, Any]]:
    return [
        {
            by: int(row["what"]) if by == "rank" else row["what"],
            "path_ns": row["path"],
            "share": row["path"] / path.length if path.length else 0.0,
            "time_ns": row["time"],
            "slack_ns": row["slack"],
        }
        for row in path.of(by).iter_rows(named=True)
    ]


def _name(by: str, what: str | None) -> str:
    if what is None:
        return NONE_OF[by]
    if by == "account":
        return ACCOUNTS[what].label if what in ACCOUNTS else what
    return f"rank {what}" if by == "rank" else shown(what)
