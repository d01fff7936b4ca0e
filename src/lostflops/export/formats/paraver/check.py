"""A strict reader of Paraver traces: what Paraver would dismiss without a word, and what would show wrong.

Paraver leaves out a bad line, or the second of two intervals that overlap, and goes on. So each rule that a
trace breaks is told with its line and with what would become of it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from . import values as v
from .labels import LARGEST
from .reading import Prv, read

LEVEL = re.compile(r"LEVEL ([A-Z]+) SIZE (\d{1,9})\s*")
SHOWN = 3  # lines told of a rule
MANY_ROWS = 50_000
STACKED_TO = v.RANGE + v.NEXT_DOMAIN * 100
ROW = ["task", "thread"]
ATTRIBUTES = (*v.NUMBERS, v.FAMILY, v.PRECISION, v.COLLECTIVE, v.GROUP)


@dataclass(frozen=True)
class Problem:
    """One rule broken on some lines. A warning shows nothing wrong."""

    lines: int
    first: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        more = f" (and {self.lines - 1:,} lines more)" if self.lines > 1 else ""
        where = f"line {self.first:,}: " if self.first else ""
        return f"{where}{self.text}{more}"


def check(path: Path) -> list[Problem]:
    """What is wrong with a trace, the worst first; empty where it is right.

    Raises Unreadable, NotATrace or Damaged.
    """
    trace = read(path)
    found = list(_header(trace))
    if found:
        return found
    for rule in (_lines, _ids, _times, _order, _flat, _stacked, _attributes, _sent, _names, _rows, _accounts):
        found += rule(trace)
    return sorted(found, key=lambda problem: problem.warning)


def _some(rows: pl.DataFrame, text: str, *, warning: bool = False) -> Iterator[Problem]:
    if rows.height:
        lines = rows["line"].unique().sort()
        yield Problem(lines.len(), int(lines[0]), text, warning)


def _header(trace: Prv) -> Iterator[Problem]:
    if not trace.tasks:
        unit = "" if "_ns:" in trace.header else "; a time without '_ns' counts as microseconds"
        yield Problem(1, 1, f"the header does not have Paraver's form{unit}: the trace does not load")
        return
    if "_ns:" not in trace.header:
        yield Problem(1, 1, "times are not in ns: they show with another unit than they were written in")
    nodes = len(trace.cpus)
    wrong = [node for _, node in trace.tasks if not 1 <= node <= max(nodes, 1)]
    if wrong:
        yield Problem(len(wrong), 1, f"a task is on node {wrong[0]}, and there are {nodes}: it does not load")
    if any(threads < 1 for threads, _ in trace.tasks):
        yield Problem(1, 1, "a task has no row: it does not load")
    if trace.announced != len(trace.communicators):
        yield Problem(
            1, 2, f"{trace.announced} communicators are announced and {len(trace.communicators)} follow"
        )
    for at, line in enumerate(trace.communicators, 2):
        fields = line.split(":")
        members = fields[4:]
        known = all(m.isdecimal() and 1 <= int(m) <= len(trace.tasks) for m in members)
        if len(fields) < 5 or fields[3] != str(len(members)) or not known:
            yield Problem(1, at, "a communicator names tasks that are not there, or not as many as it says")


def _lines(trace: Prv) -> Iterator[Problem]:
    for line, why in trace.unread[:SHOWN]:
        yield Problem(1, line, f"{why}: Paraver leaves the line out")
    if len(trace.unread) > SHOWN:
        yield Problem(len(trace.unread) - SHOWN, trace.unread[SHOWN][0], "more lines like these")
    if trace.truncated:
        yield Problem(1, 0, f"the file is cut off: {trace.truncated}; the last line read is {_last(trace):,}")


def _last(trace: Prv) -> int:
    lines = [int(t["line"].max() or 0) for t in (trace.events, trace.sent, trace.states) if t.height]  # pyright: ignore[reportArgumentType]
    return max(lines, default=1)


def _ids(trace: Prv) -> Iterator[Problem]:
    first = 1
    cpus: dict[int, tuple[int, int]] = {}
    for node, count in enumerate(trace.cpus, 1):
        cpus[node] = (first, first + count - 1)
        first += count
    tasks = pl.DataFrame(
        [(at, threads, *cpus.get(node, (1, 0))) for at, (threads, node) in enumerate(trace.tasks, 1)],
        schema={"task": pl.Int64, "threads": pl.Int64, "low": pl.Int64, "high": pl.Int64},
        orient="row",
    )
    mine = ("line", "cpu", "appl", "task", "thread")
    sides = [records.select(mine) for records in (trace.events, trace.sent, trace.states)]
    to = dict(zip(mine[1:], ("to_cpu", "to_appl", "to_task", "to_thread"), strict=True))
    sides.append(trace.sent.select("line", **to))
    rows = pl.concat(sides).join(tasks, on="task", how="left")
    known = (pl.col("appl") == 1) & pl.col("thread").is_between(1, pl.col("threads")).fill_null(False)
    yield from _some(rows.filter(~known), "there is no such task or row: Paraver leaves the line out")
    there = (pl.col("cpu") == 0) | pl.col("cpu").is_between("low", "high")
    yield from _some(
        rows.filter(known & ~there), "the processor is not on the task's node: Paraver leaves the line out"
    )


def _times(trace: Prv) -> Iterator[Problem]:
    times = pl.concat(
        [
            *(records.select("line", "time") for records in (trace.events, trace.sent, trace.states)),
            *(records.select("line", time="at") for records in (trace.sent, trace.states)),
        ]
    )
    yield from _some(times.filter(pl.col("time") < 0), "a negative time: Paraver leaves the line out")
    yield from _some(times.filter(pl.col("time") > trace.end), "it lies behind the header's end")
    backwards = trace.states.filter(pl.col("at") < pl.col("time"))
    yield from _some(backwards, "a state ends before it begins: Paraver leaves the line out")
    last = times["time"].max()
    if isinstance(last, int) and last < trace.end:
        yield Problem(1, 1, f"the header ends at {trace.end} and the last record lies at {last}")


def _order(trace: Prv) -> Iterator[Problem]:
    times = pl.concat([t.select("line", "time") for t in (trace.events, trace.sent, trace.states)])
    times = times.unique("line").sort("line").with_columns(before=pl.col("time").shift(1))
    yield from _some(
        times.filter(pl.col("time") < pl.col("before")),
        "it is earlier than the line before: tools cut wrongly",
    )


def _of(trace: Prv, kinds: pl.Expr) -> pl.DataFrame:
    return trace.events.filter(kinds)


def _flat(trace: Prv) -> Iterator[Problem]:
    """On a row an interval ends before the next begins, and what ends had begun."""
    for kinds in ([*v.INTERVALS], [v.STEP]):
        rows = _of(trace, pl.col("type").is_in(kinds)).with_columns(
            before=pl.col("value").shift(1).over(ROW), kind=pl.col("type").shift(1).over(ROW)
        )
        opens = pl.col("value") != 0
        yield from _some(
            rows.filter(opens & (pl.col("before") != 0)),
            "an interval begins before the one on its row has ended: the second one's time is lost",
        )
        closed = ~opens & (
            pl.col("before").is_null() | (pl.col("before") == 0) | (pl.col("kind") != pl.col("type"))
        )
        yield from _some(rows.filter(closed), "an interval ends that had not begun: it splits a gap")
        last = rows.group_by(ROW).last().filter(opens)
        yield from _some(last, "an interval never ends: it shows until the end of the trace")
    calls = _of(trace, pl.col("type") == v.API).with_columns(before=pl.col("value").shift(1).over(ROW))
    idle = (pl.col("value") == 0) & (pl.col("before").is_null() | (pl.col("before") == 0))
    yield from _some(calls.filter(idle), "a call ends that had not begun: it splits a gap")
    yield from _some(calls.group_by(ROW).last().filter(pl.col("value") != 0), "a call never ends")


def _stacked(trace: Prv) -> Iterator[Problem]:
    """Ranges push and pop."""
    ranges = pl.col("type").is_between(v.RANGE, STACKED_TO) | (pl.col("type") == v.SPAN)
    rows = _of(trace, ranges & ((pl.col("type") % v.NEXT_DOMAIN == 0) | (pl.col("type") == v.SPAN)))
    step = pl.when(pl.col("value") != 0).then(1).otherwise(-1)
    rows = rows.with_columns(open=step.cum_sum().over([*ROW, "type"]))
    yield from _some(rows.filter(pl.col("open") < 0), "a range ends that had not begun")
    before = pl.col("value").shift(1).over([*ROW, "type", "time"])
    late = rows.filter((pl.col("value") == 0) & (before != 0))
    yield from _some(late, "a range ends behind one that begins at the same time: the wrong one is closed")
    last = rows.group_by([*ROW, "type"]).last().filter(pl.col("open") > 0)
    yield from _some(last, "a range never ends: it shows until the end of the trace")


def _attributes(trace: Prv) -> Iterator[Problem]:
    """What a record says of an interval stands on the lines where it begins and ends."""
    kinds = trace.events.group_by("line").agg(
        whole=pl.col("type").is_in([*v.SHARED, v.STEP]).any(), begins=pl.col("value").first() != 0
    )
    rows = _of(trace, pl.col("type").is_in(list(ATTRIBUTES))).join(kinds, on="line", how="left")
    yield from _some(rows.filter(~pl.col("whole")), "an attribute stands by itself: views read it anywhere")
    rows = rows.filter(pl.col("type") != v.CORRELATION)
    yield from _some(
        rows.filter(pl.col("begins") & (pl.col("value") == 0)), "an attribute begins as 0, which means none"
    )
    rows = rows.with_columns(before=pl.col("value").shift(1).over([*ROW, "type"]).fill_null(0))
    yield from _some(
        rows.filter((pl.col("value") != 0) == (pl.col("before") != 0)),
        "an attribute does not end with its interval: views go on reading it",
    )


def _sent(trace: Prv) -> Iterator[Problem]:
    rows = trace.sent
    yield from _some(rows.filter(~pl.col("tag").is_in([v.LAUNCHED, v.COPIED])), "its tag is unknown")
    yield from _some(
        rows.filter(pl.col("time") >= pl.col("at")),
        "it arrives no later than it leaves: what is on its way does not show it",
    )
    yield from _some(
        rows.filter((pl.col("time") != pl.col("physical")) | (pl.col("at") != pl.col("to_physical"))),
        "its logical and physical times differ",
    )
    kinds = {v.LAUNCHED: [v.KERNEL, v.COMMUNICATION, v.GRAPH], v.COPIED: [v.COPY]}
    for tag, begun in kinds.items():
        begins = trace.events.filter(pl.col("type").is_in(begun) & (pl.col("value") != 0)).select(
            to_task="task", to_thread="thread", at="time"
        )
        mine = rows.filter(pl.col("tag") == tag)
        lost = mine.join(begins.unique(), on=["to_task", "to_thread", "at"], how="anti")
        yield from _some(lost, "nothing begins where it arrives")
    yield from _some(rows.filter(pl.col("task") != pl.col("to_task")), "it leads to another task")


def _beside(trace: Prv, ending: str) -> list[str] | None:
    name = trace.path.name.removesuffix(".gz").removesuffix(".prv")
    try:
        return trace.path.with_name(name + ending).read_text("utf-8", "replace").splitlines()
    except OSError:
        return None


def _names(trace: Prv) -> Iterator[Problem]:
    lines = _beside(trace, ".pcf")
    if lines is None:
        yield Problem(1, 0, "there is no .pcf beside it: types and values show as numbers", True)
        return
    labelled: dict[int, dict[int, str]] = {}
    current: list[int] = []
    section = ""
    for line in lines:
        head = line.strip()
        if head in ("EVENT_TYPE", "VALUES") or (head.isupper() and " " not in head):
            section, current = head, [] if head == "EVENT_TYPE" else current
        elif head and section == "EVENT_TYPE":
            parts = head.split(None, 2)
            if len(parts) >= 2 and parts[1].isdecimal():
                current.append(int(parts[1]))
                labelled.setdefault(int(parts[1]), {})
        elif head and section == "VALUES":
            number, _, label = head.partition(" ")
            for kind in current:
                if number.isdecimal():
                    labelled[kind][int(number)] = label.strip()
    large = [n for kind, names in labelled.items() for n in (kind, *names) if n > LARGEST]
    if large:
        yield Problem(len(large), 0, f"the .pcf names {large[0]}, beyond 32 bits: its label is lost")
    used = trace.events.filter(pl.col("value") != 0).select("line", "type", "value")
    yield from _some(
        used.filter(~pl.col("type").is_in([kind for kind in labelled if kind <= LARGEST])),
        "its type has no label in the .pcf",
    )
    coded = pl.col("type").is_in(list(v.CODED)) | (
        pl.col("type").is_between(v.RANGE, STACKED_TO) & (pl.col("type") % v.NEXT_DOMAIN == 0)
    )
    named = pl.DataFrame(
        [(kind, number) for kind, names in labelled.items() for number in names if number <= LARGEST],
        schema={"type": pl.Int64, "value": pl.Int64},
        orient="row",
    )
    yield from _some(
        used.filter(coded).join(named, on=["type", "value"], how="anti"), "its value has no name"
    )
    shared = [n for kind in v.SHARED for n in labelled.get(kind, {}) if n]
    if sorted(shared) != list(range(1, len(shared) + 1)):
        yield Problem(
            1, 0, "calls, copies, kernels and communication do not number their names together from 1: views "
            "that show them in one window mix them up"
        )  # fmt: skip


def _rows(trace: Prv) -> Iterator[Problem]:
    threads = sum(threads for threads, _ in trace.tasks)
    if threads > MANY_ROWS:
        yield Problem(1, 0, f"{threads:,} rows are close to the most that Paraver shows", True)
    lines = _beside(trace, ".row")
    if lines is None:
        yield Problem(1, 0, "there is no .row beside it: rows show as numbers", True)
        return
    expected = {
        "CPU": sum(trace.cpus), "NODE": len(trace.cpus), "TASK": len(trace.tasks), "THREAD": threads
    }  # fmt: skip
    sizes: dict[str, list[int]] = {}
    level = ""
    for line in lines:
        head = LEVEL.fullmatch(line)
        if head:
            level = head[1]
            sizes[level] = [int(head[2]), 0]
        elif line and level:
            sizes[level][1] += 1
    for level, many in expected.items():
        said = sizes.get(level)
        if said is not None and said != [many, many]:
            yield Problem(1, 0, f"the .row has {said[1]} labels of level {level}, the header {many}")
    if "THREAD" not in sizes:
        yield Problem(1, 0, "the .row has no labels of level THREAD: rows show as numbers", True)


def _accounts(trace: Prv) -> Iterator[Problem]:
    rows = _of(trace, pl.col("type") == v.ACCOUNT)
    if rows.is_empty():
        return
    first, last = rows.group_by(ROW).first(), rows.group_by(ROW).last()
    yield from _some(first.filter(pl.col("time") != 0), "the accounts begin later than the trace")
    ends = (pl.col("value") == 0) & (pl.col("time") == trace.end)
    yield from _some(last.filter(~ends), "the accounts do not end with the trace")
    inside = rows.join(last.select("line", *ROW), on=["line", *ROW], how="anti")
    yield from _some(inside.filter(pl.col("value") == 0), "the accounts have a hole")
