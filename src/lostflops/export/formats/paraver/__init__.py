"""Paraver: a trace of records with names and labels, and views that ask the usual questions of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO

import polars as pl

from lostflops import units
from lostflops.errors import BadOption
from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.timeline import Drawn
from lostflops.export.writing import compressed, scratch, writing_all

from . import labels, views
from .records import RankRecords, account_records, task_of
from .values import GROUP, EventValues, values_of

ENDINGS = (".prv", ".prv.gz")
OPENED_BY = "open it with Paraver (`wxparaver F`); the views lie beside it, and `--check` tests the file"
TIMELINE = False
TABLE = False
STACKS = False
# Paraver numbers objects with 16 bits.
MOST_ROWS = 65_535
# Records that are put in order at a time, and as text at a time; and of how many ns they are counted.
SLICE, BLOCK, GRAIN = 2_000_000, 1 << 17, 1 << 20
# Times from September 2001 on are UTC.
EARLIEST_UTC = 10**18


def write(asked: ExportRequest, output: Path) -> Exported:
    """`X.prv` with `X.pcf`, `X.row` and the views `X-*.cfg` beside it."""
    drawn = Drawn()
    name = output.name.removesuffix(".gz").removesuffix(".prv")
    seen = views.views(name)
    targets = [output.with_name(f"{name}{ending}") for ending in (".pcf", ".row", *seen)] + [output]
    with writing_all(targets) as places, scratch(output) as kept:
        pcf, row, *cfgs, prv = places
        trace = _Trace(asked, kept, drawn)
        trace.read()
        with compressed(prv, output) as file:
            trace.write(file)
        pcf.write_text(labels.pcf(trace.values), encoding="utf-8")
        row.write_text(labels.row(trace.tasks, trace.nodes), encoding="utf-8")
        for place, text in zip(cfgs, seen.values(), strict=True):
            place.write_text(text, encoding="utf-8")
    said = asked.exported(output, drawn, targets[:-1])
    said.notes.extend(_notes(trace.tasks))
    return said


def _notes(tasks: list[RankRecords]) -> list[str]:
    """What is not in it."""
    said: list[str] = []
    zero, backwards = sum(t.zero for t in tasks), sum(t.backwards for t in tasks)
    if zero:
        rows = f"{zero:,} rows take" if zero > 1 else "1 row takes"
        said.append(
            f"{rows} no time and {'are' if zero > 1 else 'is'} left out: Paraver cannot show such rows"
        )
    if backwards:
        said.append(
            f"{backwards:,} kernels or copies begin no later than the call that launched them: no line leads "
            "to these"
        )
    return said


class _Trace:
    """The records of all ranks, kept on disk until they are put in order."""

    def __init__(self, asked: ExportRequest, kept: Path, drawn: Drawn) -> None:
        self._asked, self._kept, self._drawn = asked, kept, drawn
        self.values: EventValues = values_of(asked.selection, bare=asked.bare)
        self.tasks: list[RankRecords] = []
        self._files: list[Path] = []
        self._counts: list[pl.DataFrame] = []
        ranks = asked.selection.recorded
        hosts = ranks.select("rank", pl.col("host").fill_null(0)).unique("rank").collect()
        self._host = {rank: host for rank, host in hosts.rows() if rank in asked.selection.ranks}
        self._hosts = sorted(set(self._host.values()))

    @cached_property
    def nodes(self) -> list[list[int]]:
        """The tasks of each node, once all are read."""
        found: dict[int, list[int]] = {host: [] for host in self._hosts}
        for task in self.tasks:
            found[self._host[task.rank]].append(task.number)
        return list(found.values())

    @cached_property
    def _cpus(self) -> dict[int, int]:
        """The GPU of each task: they are numbered over all nodes."""
        return {task: at for at, task in enumerate((one for node in self.nodes for one in node), 1)}

    def read(self) -> None:
        """Every rank's records, to disk."""
        selection = self._asked.selection
        bounds: list[tuple[int, int]] = []
        for number, rank in enumerate(selection.ranks, 1):
            self._asked.tell(f"rank {rank}", (number - 1) / len(selection.ranks))
            task = task_of(selection, rank, number, self.values, self._drawn, bare=self._asked.bare)
            filled = [records for records in task.records if records.height]
            if filled:
                records = pl.concat(filled)
                low, high = records.select(a=pl.col("time").min(), b=pl.col("time").max()).row(0)
                last = records["at"].max()
                bounds.append((low, max(high, last if isinstance(last, int) else high)))
                self._keep(task, records)
            task.records.clear()
            self.tasks.append(task)
        rows = sum(len(task.labels) for task in self.tasks)
        if rows > MOST_ROWS:
            raise BadOption(
                f"This run has {rows:,} rows, and Paraver shows at most {MOST_ROWS:,}.",
                "choose fewer ranks with `--ranks`.",
            )
        self.start = min((low for low, _ in bounds), default=0)
        self.end = max((high for _, high in bounds), default=1)
        for task in self.tasks:
            records = account_records(selection, task, self.values, self.start, self.end)
            if records is not None:
                self._keep(task, records)

    def _keep(self, task: RankRecords, records: pl.DataFrame) -> None:
        file = self._kept / f"{len(self._files)}.arrow"
        records.with_columns(task=pl.lit(task.number, dtype=pl.Int32)).write_ipc(file, compression="lz4")
        self._files.append(file)
        # How many records lie where in time, to cut slices of about one size.
        self._counts.append(
            records.group_by(at=pl.col("time") // GRAIN).len().with_columns(pl.col("len").cast(pl.Int64))
        )

    def write(self, file: IO[bytes]) -> None:
        """The header, then the records in order, slice by slice."""
        file.write(self._header().encode())
        if not self._files:
            return
        everything = pl.concat([pl.scan_ipc(one) for one in self._files])
        order = ("time", "task", "thread", "place", "length", "depth")
        for low, high in self._slices():
            rows = (
                everything.filter(pl.col("time").is_between(low, high, closed="left"))
                .sort(order, maintain_order=True)  # so that two exports are the same bytes
                .collect()
            )
            for block in rows.iter_slices(BLOCK):
                lines = block.select(self._text()).to_series().to_list()
                file.write(("\n".join(lines) + "\n").encode())

    def _slices(self) -> Iterator[tuple[int, int]]:
        many = pl.concat(self._counts).group_by("at").agg(pl.col("len").sum()).sort("at")
        numbered = many.with_columns(slice=(pl.col("len").cum_sum() - pl.col("len")) // SLICE)
        begins = numbered.group_by("slice", maintain_order=True).agg(pl.col("at").first())["at"].to_list()
        edges = [at * GRAIN for at in begins] + [2**62]
        yield from pairwise(edges)

    def _text(self) -> pl.Expr:
        """A record as a line."""
        place = pl.col("task").replace_strict(self._cpus, return_dtype=pl.Int64).cast(pl.String)
        task, thread, to = (pl.col(c).cast(pl.String) for c in ("task", "thread", "to"))
        time, at = ((pl.col(c) - self.start).cast(pl.String) for c in ("time", "at"))
        event = pl.concat_str(["2:" + place, pl.lit("1"), task, thread, time, pl.col("pairs")], separator=":")
        size, tag = (pl.col(c).cast(pl.String) for c in ("size", "tag"))
        sent = pl.concat_str(
            [
                "3:" + place,
                pl.lit("1"),
                task,
                thread,
                time,
                time,
                place,
                pl.lit("1"),
                task,
                to,
                at,
                at,
                size,
                tag,
            ],
            separator=":",
        )
        return pl.when(pl.col("to").is_null()).then(event).otherwise(sent)

    def _header(self) -> str:
        origin = self._asked.selection.trace.manifest.origin_ns
        when = datetime.fromtimestamp(max(origin, 0) // 10**9 if origin >= EARLIEST_UTC else 0, UTC)
        nodes = ",".join(str(len(node)) for node in self.nodes)
        node_of = {task: number for number, node in enumerate(self.nodes, 1) for task in node}
        tasks = ",".join(f"{len(task.labels)}:{node_of[task.number]}" for task in self.tasks)
        lines = _communicators(self.values, self.tasks)
        groups = f",{len(lines)}" if lines else ""
        return (
            f"#Paraver ({when:%d/%m/%Y} at {when:%H:%M}):{self.end - self.start}_ns:"
            f"{len(self.nodes)}({nodes}):1:{len(self.tasks)}({tasks}){groups}\n" + "".join(lines)
        )


def _communicators(values: EventValues, tasks: list[RankRecords]) -> list[str]:
    """The process groups whose members are known, by the numbers that their collectives carry."""
    known = {task.rank: task.number for task in tasks}
    lines: list[str] = []
    for name, number in values.names[GROUP].items():
        _, bracket, members = name.rpartition("[")
        try:
            ranks = units.numbers(members.rstrip("]").replace(" ", "")) if bracket else frozenset[int]()
        except BadOption:
            continue
        here = [known[rank] for rank in sorted(ranks) if rank in known]
        if here:
            lines.append(f"c:1:{number}:{len(here)}:{':'.join(map(str, here))}\n")
    return lines
