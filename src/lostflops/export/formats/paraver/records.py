"""A rank's rows as records of a Paraver trace, in columns: when, in which order, on which row, and what.

Rows are numbered within their task: host threads with the main one first, lanes of streams, accounts. A lane
holds at most one interval at an instant, and ranges of one type nest in their row: otherwise the first end
would close the wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from lostflops.export import lanes
from lostflops.export.selection import RunPart
from lostflops.export.timeline import Drawn, rank_state, without_device
from lostflops.intervals import Int, nest
from lostflops.tables import NAME, UNLISTED_GRAPH

from . import values as v
from .values import EventValues

# At one instant ends come before begins, and records of communication last.
ENDS, BEGINS, SENT = 0, 1, 2
COLUMNS = ("time", "place", "length", "depth", "thread", "pairs", "to", "at", "size", "tag")


@dataclass
class RankRecords:
    """A rank with its rows' labels and what was left out of it."""

    rank: int
    number: int
    labels: list[str] = field(default_factory=list[str])
    records: list[pl.DataFrame] = field(default_factory=list[pl.DataFrame])
    hosts: dict[tuple[int | None, int], int] = field(default_factory=dict[tuple[int | None, int], int])
    streams: set[int] = field(default_factory=set[int])
    zero: int = 0  # rows that take no time
    backwards: int = 0  # work that begins no later than the call that launched it
    accounts: int = 0  # the row of the accounts; 0 where there is none


def task_of(
    selection: RunPart, rank: int, number: int, values: EventValues, drawn: Drawn, *, bare: bool
) -> RankRecords:
    """The records of one rank."""
    task = RankRecords(rank, number)
    calls = _timed(selection, rank, "launches", task, drawn)
    ranges = _timed(selection, rank, "ranges", task, drawn)
    if v.operators_are_ranges(selection):
        ranges = _with_operators(ranges, _timed(selection, rank, "operators", task, drawn))
    _host_rows(selection, task, calls, ranges, values)
    _steps(selection, task, values, drawn)
    if not without_device(selection, rank):
        _device_rows(selection, task, values, drawn, bare)
    if not task.labels:
        task.labels.append(f"THREAD 1.{number}.1")
    if not bare:
        task.labels.append("ACCOUNTS")
        task.accounts = len(task.labels)
        _counters(selection, task, values, drawn)
    return task


def account_records(
    selection: RunPart, task: RankRecords, values: EventValues, start: int, end: int
) -> pl.DataFrame | None:
    """What each instant from `start` to `end` counts as, without a hole."""
    if not task.accounts:
        return None
    state = rank_state(selection, task.rank)
    outside = values.names[v.ACCOUNT][v.OUTSIDE]
    if state is None:
        times, codes = np.array([start, end]), np.array([outside, 0])
    else:
        state = state.select("start", "end", code=values.coded(v.ACCOUNT, pl.col("name")))
        begins, ends = state["start"].to_numpy(), state["end"].to_numpy()
        # Between two runs, before the first and behind the last lies what is in no step.
        holes = np.append(start, ends)
        filled = np.append(begins, end)
        hole = filled > holes
        times = np.concatenate((begins, holes[hole], [end]))
        codes = np.concatenate((state["code"].to_numpy(), np.full(int(hole.sum()), outside), [0]))
        order = np.argsort(times, kind="stable")
        times, codes = times[order], codes[order]
        changed = np.append(True, codes[1:] != codes[:-1])
        times, codes = times[changed], codes[changed]
    rows = pl.DataFrame({"time": times, "code": codes})
    return _records(rows, BEGINS, pl.lit(task.accounts), pl.format(f"{v.ACCOUNT}:{{}}", "code"))


def _timed(selection: RunPart, rank: int, table: str, task: RankRecords, drawn: Drawn) -> pl.DataFrame | None:
    """Rows that take time; Paraver could not show the others."""
    rows = selection.rows(table, rank)
    if rows is None:
        return None
    long = rows.filter(pl.col("end") > pl.col("start"))
    task.zero += rows.height - long.height
    drawn.count(table, long.height)
    return long if long.height else None


def _with_operators(ranges: pl.DataFrame | None, operators: pl.DataFrame | None) -> pl.DataFrame | None:
    if operators is None:
        return ranges
    pushed = operators.select(
        "thread", "start", "end", "name", domain=pl.lit(None, dtype=NAME), nested=pl.lit(True)
    )
    return pushed if ranges is None else pl.concat([ranges.select(pushed.columns), pushed])


def _host_rows(
    selection: RunPart,
    task: RankRecords,
    calls: pl.DataFrame | None,
    ranges: pl.DataFrame | None,
    values: EventValues,
) -> None:
    parts: list[pl.DataFrame] = []
    if calls is not None:
        parts.append(
            calls.select(
                "thread",
                "start",
                "end",
                "correlation",
                kind=pl.lit(v.API),
                code=values.coded(v.API, pl.col("name")),
            )
        )
    if ranges is not None:
        nested = ranges.filter(pl.col("nested").fill_null(False))
        for (domain,), some in nested.partition_by("domain", as_dict=True).items():
            kind = values.domains[domain]
            code = values.coded(kind, pl.col("name"))
            parts.append(some.select("thread", "start", "end", kind=pl.lit(kind), code=code))
        spans = ranges.filter(~pl.col("nested").fill_null(False))
        code = values.coded(v.SPAN, pl.col("name"))
        parts.append(spans.select("thread", "start", "end", kind=pl.lit(v.SPAN), code=code))
    parts = [part for part in parts if part.height]
    if not parts:
        return
    rows = pl.concat(parts, how="diagonal")
    if "correlation" not in rows.columns:
        rows = rows.with_columns(correlation=pl.lit(None, dtype=pl.Int64))
    rows = rows.with_columns(thread_no=pl.col("thread").fill_null(-1))
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    group = rows.select(pl.struct("thread_no", "kind").rank("dense")).to_series().cast(pl.Int64).to_numpy()
    lane = lanes.nested(start, end, group)
    number = _numbered(selection, task, rows, lane)
    forest = nest(start, end, group + lane * (int(group.max()) + 1))
    rows = rows[forest.order].with_columns(
        row=pl.Series(number[forest.order]), depth=pl.Series(forest.depth), parent=pl.Series(forest.parent)
    )
    _intervals(task, rows, forest.parent)


def _numbered(selection: RunPart, task: RankRecords, rows: pl.DataFrame, lane: Int) -> Int:
    """The row of each host row: threads with the main one first, and behind each thread its further lanes."""
    ranks = selection.recorded
    main = (
        ranks.filter(pl.col("rank") == task.rank).select("main_thread").collect()["main_thread"].drop_nulls()
    )
    script = main[0] if len(main) else None
    places = rows.select("thread", lane=pl.Series(lane)).unique().rows()
    for thread, number in sorted(places, key=lambda p: (p[0] != script, p[0] is None, p[0] or 0, p[1])):
        task.labels.append(f"THREAD 1.{task.number}.{len(task.labels) + 1}")
        task.hosts[thread, number] = len(task.labels)
    keys = pl.DataFrame(
        {
            "thread": [k[0] for k in task.hosts],
            "lane": [k[1] for k in task.hosts],
            "row": list(task.hosts.values()),
        },
        schema={"thread": pl.Int64, "lane": pl.Int64, "row": pl.Int64},
    )
    found = rows.select("thread", lane=pl.Series(lane)).join(
        keys, on=["thread", "lane"], how="left", nulls_equal=True, maintain_order="left"
    )
    return found["row"].to_numpy()


def _intervals(task: RankRecords, rows: pl.DataFrame, parent: Int) -> None:
    """Begins and ends of host rows. A call that ends gives way to the call that it was made in."""
    calls = pl.col("kind") == v.API
    outer = np.maximum(parent, 0)
    above = rows.select(
        outer_code=pl.when(pl.Series(parent) >= 0).then(pl.col("code").gather(outer)).otherwise(0),
        outer_link=pl.when(pl.Series(parent) >= 0).then(pl.col("correlation").gather(outer)).otherwise(0),
    )
    rows = rows.hstack(above).with_columns(length=pl.col("end") - pl.col("start"))
    link = pl.format(f":{v.CORRELATION}:{{}}", "correlation").fill_null("")
    back = (
        pl.when(pl.col("correlation").is_null())
        .then(pl.lit(""))
        .otherwise(pl.format(f":{v.CORRELATION}:{{}}", pl.col("outer_link").fill_null(0)))
    )
    code = pl.format("{}:{}", "kind", "code")
    after = pl.when(calls).then(pl.format("{}:{}", "kind", "outer_code")).otherwise(pl.format("{}:0", "kind"))
    begin = rows.with_columns(time="start")
    done = rows.with_columns(time="end")
    both = pl.concat_str([code, pl.when(calls).then(link).otherwise(pl.lit(""))])
    task.records.append(
        _records(begin, BEGINS, pl.col("row"), both, length=-pl.col("length"), depth=pl.col("depth"))
    )
    both = pl.concat_str([after, pl.when(calls).then(back).otherwise(pl.lit(""))])
    task.records.append(
        _records(done, ENDS, pl.col("row"), both, length=pl.col("length"), depth=-pl.col("depth"))
    )


def _records(
    rows: pl.DataFrame,
    place: int,
    thread: pl.Expr,
    pairs: pl.Expr,
    *,
    length: pl.Expr | None = None,
    depth: pl.Expr | None = None,
) -> pl.DataFrame:
    nothing = pl.lit(None, dtype=pl.Int64)
    zero = pl.lit(0, dtype=pl.Int64)
    return rows.select(
        pl.col("time").cast(pl.Int64),
        place=pl.lit(place, dtype=pl.Int8),
        length=(zero if length is None else length).cast(pl.Int64),
        depth=(zero if depth is None else depth).cast(pl.Int64),
        thread=thread.cast(pl.Int64),
        pairs=pairs,
        to=nothing,
        at=nothing,
        size=nothing,
        tag=nothing,
    )


def _steps(selection: RunPart, task: RankRecords, values: EventValues, drawn: Drawn) -> None:
    steps = _timed(selection, task.rank, "steps", task, drawn)
    if steps is None:
        return
    if not task.labels:
        task.labels.append(f"THREAD 1.{task.number}.1")
    steps = steps.with_columns(
        code=values.coded(v.STEP, "step " + pl.col("step").cast(pl.String)),
        length=pl.col("end") - pl.col("start"),
    )
    text = pl.format(f"{v.STEP}:{{}}", "code")
    begin, done = steps.with_columns(time="start"), steps.with_columns(time="end")
    task.records.append(_records(begin, BEGINS, pl.lit(1), text, length=-pl.col("length")))
    task.records.append(_records(done, ENDS, pl.lit(1), pl.lit(f"{v.STEP}:0"), length=pl.col("length")))


def _device_rows(
    selection: RunPart, task: RankRecords, values: EventValues, drawn: Drawn, bare: bool
) -> None:
    parts: list[pl.DataFrame] = []
    kernels = _timed(selection, task.rank, "kernels", task, drawn)
    if kernels is not None:
        parts.append(_kernels(selection, task, kernels, values, bare))
    copies = _timed(selection, task.rank, "copies", task, drawn)
    if copies is not None:
        parts.append(_copies(copies, values))
    if not parts:
        return
    rows = pl.concat(parts, how="diagonal")
    group = rows.select(pl.struct("device", "stream").rank("dense")).to_series().cast(pl.Int64).to_numpy()
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    lane = lanes.flat(start, end, group)
    rows = rows.with_columns(lane=pl.Series(lane))
    first = len(task.labels)
    known = rows.select("device", "stream", "lane").unique().sort("device", "stream", "lane", nulls_last=True)
    for device, stream, number in known.iter_rows():
        more = f"+{number}" if number else ""
        task.labels.append(f"CUDA-D{_said(device)}.S{_said(stream)}{more}")
        task.streams.add(len(task.labels))
    known = known.with_row_index("row", offset=first + 1)
    rows = rows.join(
        known, on=["device", "stream", "lane"], how="left", nulls_equal=True, maintain_order="left"
    )
    rows = rows.with_columns(length=pl.col("end") - pl.col("start"))
    begin, done = rows.with_columns(time="start"), rows.with_columns(time="end")
    row = pl.col("row")
    task.records.append(_records(begin, BEGINS, row, pl.col("opens"), length=-pl.col("length")))
    task.records.append(_records(done, ENDS, row, pl.col("closes"), length=pl.col("length")))
    if "progress" in rows.columns:
        turns = rows.filter((pl.col("progress") > pl.col("start")) & (pl.col("progress") < pl.col("end")))
        text = pl.lit(f"{v.PROGRESS}:{v.TRANSFERS}")
        task.records.append(_records(turns.with_columns(time="progress"), BEGINS, row, text))
    _sent(task, rows, drawn)


def _said(number: int | None) -> str:
    return "?" if number is None else str(number)


def _sent(task: RankRecords, rows: pl.DataFrame, drawn: Drawn) -> None:
    """Records that lead from a call to what it launched, where the call came first."""
    if not task.hosts:
        return
    threads = {thread: row for (thread, lane), row in task.hosts.items() if lane == 0 and thread is not None}
    begun = rows.filter(pl.col("launch_start").is_not_null() & pl.col("thread").is_in(list(threads)))
    ahead = begun.filter(pl.col("launch_start") < pl.col("start"))
    task.backwards += begun.height - ahead.height
    drawn.flow("launch to work", ahead.height)
    task.records.append(
        ahead.select(
            time="launch_start",
            place=pl.lit(SENT, dtype=pl.Int8),
            length=pl.lit(0, dtype=pl.Int64),
            depth=pl.lit(0, dtype=pl.Int64),
            thread=pl.col("thread").replace_strict(threads, return_dtype=pl.Int64),
            pairs=pl.lit(""),
            to=pl.col("row").cast(pl.Int64),
            at="start",
            size=pl.col("size").fill_null(0),
            tag=pl.col("tag").cast(pl.Int64),
        )
    )


def _kernels(
    selection: RunPart, task: RankRecords, kernels: pl.DataFrame, values: EventValues, bare: bool
) -> pl.DataFrame:
    talks = pl.col("family").cast(pl.String) == "communication"
    graph = pl.col("name").cast(pl.String) == UNLISTED_GRAPH
    kind = (
        pl.when(talks)
        .then(pl.lit(v.COMMUNICATION))
        .when(graph)
        .then(pl.lit(v.GRAPH))
        .otherwise(pl.lit(v.KERNEL))
    )
    code = (
        pl.when(talks)
        .then(values.coded(v.COMMUNICATION, pl.col("name")))
        .when(graph)
        .then(values.coded(v.GRAPH, pl.col("name")))
        .otherwise(values.coded(v.KERNEL, pl.col("name")))
    )
    one = pl.lit(1, dtype=pl.Int64)
    shape: dict[int, pl.Expr] = {
        v.GRID: pl.col("grid"), v.GRID_Y: one, v.GRID_Z: one,
        v.BLOCK: pl.col("block"), v.BLOCK_Y: one, v.BLOCK_Z: one,
    }  # fmt: skip
    sized = pl.col("grid").is_not_null() & pl.col("block").is_not_null()
    pairs = {number: pl.when(sized).then(value) for number, value in shape.items()}
    pairs |= {v.REGISTERS: pl.col("registers"), v.CORRELATION: pl.col("correlation")}
    pairs |= {v.GRAPH_NODE: pl.col("graph_node")}
    pairs |= {v.FAMILY: values.coded(v.FAMILY, pl.col("family"))}
    pairs |= {v.PRECISION: values.coded(v.PRECISION, pl.col("precision"))}
    kernels = kernels.with_columns(progress=pl.lit(None, dtype=pl.Int64))
    collectives = _collectives(selection, task.rank, values, bare)
    if collectives is not None:
        keys = ["start", "end", "stream", "correlation", "name"]
        kernels = kernels.drop("progress").join(
            collectives, on=keys, how="left", nulls_equal=True, maintain_order="left"
        )
        pairs |= {number: pl.col(f"_{number}") for number in _OF_COLLECTIVES}
    return _opened(kernels, kind, code, pairs).with_columns(
        size=pl.lit(0, dtype=pl.Int64), tag=pl.lit(v.LAUNCHED)
    )


_OF_COLLECTIVES = (v.NCCL_BYTES, v.COLLECTIVE, v.GROUP, v.BYTES, v.SEQUENCE, v.PROGRESS)


def _collectives(selection: RunPart, rank: int, values: EventValues, bare: bool) -> pl.DataFrame | None:
    rows = selection.rows("collectives", rank)
    if rows is None:
        return None
    keys = ["start", "end", "stream", "correlation", "name"]
    rows = rows.unique(keys, keep="first", maintain_order=True)
    matched = None if bare else selection.answer("communication_matches", rank)
    if matched is not None:
        same = ["end", "stream", "correlation", "name"]
        told = matched.select(*same, "wait", "arrival").cast({key: rows.schema[key] for key in same})
        told = told.unique(same, keep="first", maintain_order=True).rename({"arrival": "_arrival"})
        rows = rows.join(told, on=same, how="left", nulls_equal=True, maintain_order="left")
    else:
        rows = rows.with_columns(wait=pl.lit(None, dtype=pl.Int64), _arrival=pl.lit(None, dtype=pl.Int64))
    known = pl.col("wait").is_not_null()
    progress = pl.when(known).then(pl.col("_arrival") + pl.col("wait"))
    first = pl.when(progress > pl.col("start")).then(pl.lit(v.WAITS)).otherwise(pl.lit(v.TRANSFERS))
    said: dict[int, pl.Expr] = {
        v.NCCL_BYTES: pl.col("bytes_in"),
        v.COLLECTIVE: values.coded(v.COLLECTIVE, pl.col("kind")),
        v.GROUP: values.coded(v.GROUP, pl.col("group")),
        v.BYTES: pl.col("bytes_in"),
        v.SEQUENCE: pl.col("sequence") + 1,
        v.PROGRESS: pl.when(known).then(first),
    }
    return rows.select(
        *keys, *(e.cast(pl.Int64).alias(f"_{number}") for number, e in said.items()), progress=progress
    )


def _copies(copies: pl.DataFrame, values: EventValues) -> pl.DataFrame:
    pairs = {v.COPY_BYTES: pl.col("bytes"), v.CORRELATION: pl.col("correlation")}
    rows = _opened(copies, pl.lit(v.COPY), values.coded(v.COPY, v.direction()), pairs)
    return rows.with_columns(size=pl.col("bytes").fill_null(0), tag=pl.lit(v.COPIED))


def _opened(rows: pl.DataFrame, kind: pl.Expr, code: pl.Expr, pairs: dict[int, pl.Expr]) -> pl.DataFrame:
    """What a record says where an interval begins, and where it ends: the same types, with 0."""
    begins = [pl.format("{}:{}", kind, code)]
    ends = [pl.format("{}:0", kind)]
    for number, value in pairs.items():
        there = (value > 0).fill_null(False)
        begins.append(pl.when(there).then(pl.format(f":{number}:{{}}", value)).otherwise(pl.lit("")))
        ends.append(pl.when(there).then(pl.lit(f":{number}:0")).otherwise(pl.lit("")))
    kept = [c for c in ("start", "end", "device", "stream", "thread", "launch_start", "bytes", "progress")
            if c in rows.columns]  # fmt: skip
    return rows.select(*kept, opens=pl.concat_str(begins), closes=pl.concat_str(ends))


def _counters(selection: RunPart, task: RankRecords, values: EventValues, drawn: Drawn) -> None:
    rows = selection.rows("counters", task.rank)
    if rows is None or not values.counters:
        return
    drawn.samples += rows.height
    kind = v.counter().replace_strict(values.counters, return_dtype=pl.Int64)
    whole = (pl.col("value") * 10**v.PRECISE).round().cast(pl.Int64)
    rows = rows.with_columns(time="start")
    task.records.append(_records(rows, BEGINS, pl.lit(task.accounts), pl.format("{}:{}", kind, whole)))
