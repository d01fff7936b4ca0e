"""A run as tracks of slices and counters: what every timeline format draws, before its own bytes.

One rank is read at a time. Each of its tracks holds rows of one or several tables; columns of the tables
become arguments of the slices, so that nothing that was recorded is lost on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from lostflops.intervals import Int
from lostflops.store.trace import REPLAYED
from lostflops.tables import NAME

from . import lanes
from .selection import RunPart

# Those of a slice itself, and what its track or another slice says already.
OWN = frozenset({"rank", "start", "end", "name", "device", "stream", "thread", "launch_start", "launch_end"})
# The order of tracks within a rank.
STEPS, STATE, STREAMS, GROUPS, HOST, SPANS, COUNTERS = range(0, 7_000, 1_000)
FLOWS = ("flow_from", "flow_to", "flow", "arrives", "correlation_id")
# Flows are numbered apart per rank and kind; those between ranks stand beyond all of these.
LAUNCHING, BACKWARD = 0, 1 << 38
RANK_BITS = 40
ACROSS = 1 << 62


@dataclass(frozen=True)
class Track:
    """Slices in lanes: in each some of the rows, by their places. `arguments` are columns that they show."""

    name: str
    order: int
    rows: pl.DataFrame
    lanes: list[Int]
    nests: bool
    arguments: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])  # columns that all its rows share


@dataclass(frozen=True)
class CounterTrack:
    """Values that hold from `start` on."""

    name: str
    order: int
    rows: pl.DataFrame  # start, value
    unit: str = ""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Drawn:
    """What the tracks of a run held, by table; and the flows between them."""

    slices: dict[str, int] = field(default_factory=dict[str, int])
    samples: int = 0
    rows: int = 0  # of a table
    stacks: int = 0
    flows: dict[str, int] = field(default_factory=dict[str, int])
    met: set[int] = field(default_factory=set[int])  # operations that a rank was drawn of
    backwards: int = 0  # work that began before the call that launched it: no flow

    def count(self, table: str, rows: int) -> None:
        self.slices[table] = self.slices.get(table, 0) + rows

    def meet(self, instances: Sequence[int]) -> None:
        """Operations of a rank: each is joined to those of the ranks before, where one took part."""
        self.flow("collective on several ranks", len(self.met.intersection(instances)))
        self.met.update(instances)

    def flow(self, kind: str, number: int) -> None:
        if number:
            self.flows[kind] = self.flows.get(kind, 0) + number


def label(selection: RunPart, rank: int) -> str:
    """'rank 12 (node 1, GPU 4)', with 'predicted' of a replayed run: no name of a machine."""
    row = selection.recorded
    known = row.filter(pl.col("rank") == rank).select("host", "device").unique().sort("device").collect()
    host = known["host"].drop_nulls()
    devices = known["device"].drop_nulls().to_list()
    said = [f"node {host[0]}"] if len(host) else []
    said += [f"GPU {', '.join(map(str, devices))}"] if devices else []
    said += ["predicted"] * any(fact.name == REPLAYED for fact in selection.trace.manifest.quality)
    return f"rank {rank}" + (f" ({', '.join(said)})" if said else "")


def tracks(selection: RunPart, rank: int, drawn: Drawn, *, bare: bool) -> Iterator[Track | CounterTrack]:
    """The tracks of one rank, from top to bottom. `bare` leaves out what lostflops computed."""
    steps = selection.rows("steps", rank)
    if steps is not None:
        named = steps.with_columns(name="step " + pl.col("step").cast(pl.String)).drop("chosen")
        yield _flat("steps", STEPS, named, "step", drawn)
    if not bare:
        state = rank_state(selection, rank)
        if state is not None:
            yield _flat("GPU time by account", STATE, state, "account", drawn)
    calls = selection.rows("launches", rank)
    flows = Launching(calls)
    yield from _on_device(selection, rank, drawn, flows)
    yield from _collectives(selection, rank, drawn, bare)
    calls = flows.calls(rank, drawn)
    yield from _on_host(selection, rank, calls, drawn)
    yield from _counters(selection, rank, drawn)


def without_device(selection: RunPart, rank: int) -> bool:
    """Whether host operators stand in for kernels on a rank; they are drawn as operators."""
    ranks = selection.recorded
    kinds = ranks.filter(pl.col("rank") == rank).select("device_kind").collect()["device_kind"]
    return "cpu" in kinds.to_list()


def rank_state(selection: RunPart, rank: int) -> pl.DataFrame | None:
    """What each instant of each step counts as in the ledger."""
    runs = selection.answer("device_runs", rank)
    if runs is None:
        return None
    idle = selection.answer("idle_stretches", rank)
    columns = ("start", "end", "step", "account")
    found = runs.filter(pl.col("account").is_not_null()).select(columns)
    if idle is not None:
        found = pl.concat([found, idle.select(columns)], how="vertical_relaxed")
    state = found.filter(pl.col("end") > pl.col("start")).sort("start").rename({"account": "name"})
    return state if state.height else None


class Launching:
    """Which call began which work of a rank."""

    def __init__(self, calls: pl.DataFrame | None) -> None:
        self._calls = None if calls is None else calls.with_row_index("_call")
        self._begun: list[pl.DataFrame] = []

    def work(self, work: pl.DataFrame) -> pl.DataFrame:
        """Work of the device with the number of the flow that leads to it; of a graph's only the first."""
        known = self._calls
        if known is None or not work["correlation"].is_not_null().any():
            return work
        first = self._first_at_once(work)
        if first is None:
            first = self._first_of_each(work, known)
        for others in self._begun:  # a call leads to one kernel or copy
            first = first.join(others, on="_call", how="anti")
        self._begun.append(first.select("_call", ahead=pl.col("launch_start") < pl.col("start")))
        ahead = first.filter(pl.col("launch_start") < pl.col("start"))
        flow = np.zeros(work.height, np.uint64)
        flow[ahead["_row"].to_numpy()] = ahead["_call"].to_numpy().astype(np.uint64) + 1
        return work.with_columns(flow_to=pl.Series(flow))

    def _first_at_once(self, work: pl.DataFrame) -> pl.DataFrame | None:
        """What `_first_of_each` gives where no correlation stands twice, or None."""
        assert self._calls is not None
        calls = self._calls.select("correlation", "start").to_numpy() if self._plain() else None
        if calls is None or work["correlation"].null_count() or work["launch_start"].null_count():
            return None
        mine, begun = work["correlation"].to_numpy(), work["launch_start"].to_numpy()
        if not (np.diff(mine) > 0).all():
            return None
        at = np.searchsorted(calls[:, 0], mine).clip(max=len(calls) - 1)
        found = (calls[at, 0] == mine) & (calls[at, 1] == begun)
        columns = {"_row": np.flatnonzero(found), "_call": at[found], "launch_start": begun[found]}
        schema = {"_row": pl.UInt32, "_call": pl.UInt32, "launch_start": pl.Int64}
        found = pl.DataFrame(columns, schema=schema)
        return found.with_columns(start=work["start"].gather(found["_row"]))

    def _plain(self) -> bool:
        """Whether the calls stand in the order of their correlations, each once."""
        assert self._calls is not None
        known = self._calls["correlation"]
        return bool(len(known)) and not known.null_count() and bool((known.diff().drop_nulls() > 0).all())

    def _first_of_each(self, work: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """For each call that led to work: the first row of it."""
        return (
            work.lazy()
            .with_row_index("_row")
            .filter(pl.col("correlation").is_not_null() & pl.col("launch_start").is_not_null())
            .sort("start", "_row")
            .unique("correlation", keep="first", maintain_order=True)
            .join(
                known.lazy()
                .select("_call", "correlation", launch_start="start")
                .unique(["correlation", "launch_start"], keep="first", maintain_order=True),
                on=["correlation", "launch_start"],
                how="inner",
            )
            .select("_row", "_call", "start", "launch_start")
            .collect()
        )

    def calls(self, rank: int, drawn: Drawn) -> pl.DataFrame | None:
        """The calls with the numbers of the flows that lead from them."""
        if self._calls is None:
            return None
        calls = self._calls.drop("_call")
        if not self._begun:
            return calls
        begun = pl.concat(self._begun)
        led = begun.filter("ahead")["_call"]
        drawn.backwards += begun.height - led.len()
        drawn.flow("launch to work", led.len())
        flow = np.zeros(calls.height, np.uint64)
        flow[led.to_numpy()] = led.to_numpy().astype(np.uint64) + 1
        return calls.with_columns(flow_from=pl.Series(flow))


def _on_device(
    selection: RunPart, rank: int, drawn: Drawn, flows: Launching
) -> Iterator[Track | CounterTrack]:
    """Streams with kernels and copies, each in as many lanes as overlap needs."""
    if without_device(selection, rank):
        return
    place = STREAMS
    work = [
        flows.work(rows).with_columns(category=pl.lit(category, dtype=NAME))
        for name, category in (("kernels", "kernel"), ("copies", "copy"))
        if (rows := selection.rows(name, rank)) is not None and _counted(drawn, name, rows)
    ]
    if not work:
        return
    rows = work[0] if len(work) == 1 else pl.concat(work, how="diagonal_relaxed")
    del work
    several = rows["device"].n_unique() > 1
    for (device, stream), places in _parted(rows, "device", "stream"):
        name = "no stream" if stream is None else f"stream {stream}"
        about = {"device": device, "stream": stream}
        yield _track(f"GPU {device} {name}" if several else name, place, rows, False, places, about)
        place += 1


def _collectives(selection: RunPart, rank: int, drawn: Drawn, bare: bool) -> Iterator[Track]:
    """Per process group. One number names an operation on all of its ranks."""
    rows = selection.rows("collectives", rank)
    if rows is None:
        return
    drawn.count("collectives", rows.height)
    matched = None if bare else selection.answer("communication_matches", rank)
    if matched is not None:
        rows = _with_instances(rows, matched, drawn)
    name = pl.col("kind").cast(pl.String)
    rows = rows.with_columns(
        carried_by="name", carried_on="stream", name=name, category=pl.lit("collective", dtype=NAME)
    )
    for place, ((group,), places) in enumerate(_parted(rows, "group")):
        of = "an unknown group" if group is None else f"group {group}"
        yield _track(f"collectives of {of}", GROUPS + place, rows, False, places)


def _with_instances(rows: pl.DataFrame, matched: pl.DataFrame, drawn: Drawn) -> pl.DataFrame:
    keys = ["end", "correlation", "name", "stream", "kind"]
    told = matched.select(*keys, "instance", "wait", "transfer", "last_rank").cast(
        {key: rows.schema[key] for key in keys}
    )
    told = told.unique(keys, keep="first", maintain_order=True)
    rows = rows.join(told, on=keys, how="left", nulls_equal=True, maintain_order="left")
    number = pl.col("instance").cast(pl.UInt64) + 1
    # A receive mostly begins before its send, and ends after that: an arrow leads to where it ends.
    receives = pl.col("kind").cast(pl.String).eq_missing("receive")
    flow, none = (number + ACROSS).fill_null(0), pl.lit(0, pl.UInt64)
    rows = rows.with_columns(
        flow=pl.when(receives).then(none).otherwise(flow),
        arrives=pl.when(receives & (pl.col("transfer") > 0)).then(flow).otherwise(none),
        correlation_id=number.fill_null(0),
    )
    led = (pl.col("flow") > 0) | (pl.col("arrives") > 0)
    drawn.meet(rows.filter(led)["instance"].to_list())
    return rows


def _on_host(selection: RunPart, rank: int, calls: pl.DataFrame | None, drawn: Drawn) -> Iterator[Track]:
    """Threads, on which calls lie in operators, these in ranges, these in frames; and spans of their own."""
    operators = selection.rows("operators", rank)
    ranges = selection.rows("ranges", rank)
    inside = None if ranges is None else ranges.filter(_inside_thread())
    apart = None if ranges is None else ranges.filter(~_inside_thread())
    if operators is not None:
        operators = with_backward(operators, drawn)
    tables: list[tuple[str, str, pl.DataFrame | None]] = [
        ("frames", "frame", selection.rows("frames", rank)),
        ("ranges", "range", inside),
        ("operators", "operator", operators),
        ("launches", "call", calls),
        ("os_calls", "system call", selection.rows("os_calls", rank)),
    ]
    work = [
        rows.with_columns(category=pl.lit(category, dtype=NAME))
        for name, category, rows in tables
        if rows is not None and rows.height and _counted(drawn, name, rows)
    ]
    del tables, operators, ranges, inside, calls
    if work:
        yield from _threads(selection, rank, pl.concat(work, how="diagonal_relaxed"))
    if apart is not None and apart.height:
        drawn.count("ranges", apart.height)
        rows = apart.with_columns(on_thread="thread", category=pl.lit("range", dtype=NAME))
        for place, ((domain,), places) in enumerate(_parted(rows, "domain")):
            yield _track(f"ranges: {domain or 'others'}", SPANS + place, rows, True, places)
    faults = selection.rows("page_faults", rank)
    if faults is not None:
        drawn.count("page_faults", faults.height)
        rows = faults.with_columns(
            of_device="device", name=pl.lit("page faults"), category=pl.lit("page fault", dtype=NAME)
        )
        yield _track("page faults", SPANS + 999, rows, True)


def _inside_thread() -> pl.Expr:
    return pl.col("nested").fill_null(False) & pl.col("thread").is_not_null()


def _threads(selection: RunPart, rank: int, rows: pl.DataFrame) -> Iterator[Track]:
    ranks = selection.recorded
    main = ranks.filter(pl.col("rank") == rank).select("main_thread").collect()["main_thread"].drop_nulls()
    script = main[0] if len(main) else None
    threads = _parted(rows, "thread")
    threads.sort(key=lambda found: found[0][0] != script)
    for place, ((thread,), places) in enumerate(threads):
        name = "thread unknown" if thread is None else f"thread {thread}"
        shown = f"{name} (main)" if thread == script and thread is not None else name
        yield _track(shown, HOST + place, rows, True, places, {"thread": thread})


def with_backward(operators: pl.DataFrame, drawn: Drawn) -> pl.DataFrame:
    """Flows from each forward operator to the first operator of its backward."""
    known = (
        operators.lazy()
        .with_row_index("_row")
        .filter(pl.col("sequence").is_not_null() & (pl.col("sequence") >= 0))
        .select("_row", "sequence", "start", phase=pl.col("phase").cast(pl.String))
        .sort("start", "_row")
    )
    forward = known.filter(pl.col("phase") == "forward").unique("sequence", keep="last", maintain_order=True)
    backward = known.filter(pl.col("phase") == "backward").unique("sequence", maintain_order=True)
    pairs = (
        forward.join(backward, on="sequence", how="inner", suffix="_back", maintain_order="left")
        .filter(pl.col("start") < pl.col("start_back"))
        .select("_row", "_row_back")
        .collect()
    )
    if pairs.is_empty():
        return operators
    drawn.flow("forward to backward", pairs.height)
    out, into = np.zeros(operators.height, np.uint64), np.zeros(operators.height, np.uint64)
    number = np.arange(pairs.height, dtype=np.uint64) + np.uint64(BACKWARD + 1)
    out[pairs["_row"].to_numpy()] = number
    into[pairs["_row_back"].to_numpy()] = number
    return operators.with_columns(flow_from=pl.Series(out), flow_to=pl.Series(into))


def _counters(selection: RunPart, rank: int, drawn: Drawn) -> Iterator[CounterTrack]:
    rows = selection.rows("counters", rank)
    place = COUNTERS
    if rows is not None:
        by = ["device", "metric", "instance", "unit"]
        groups = rows.sort("start", maintain_order=True).partition_by(by, as_dict=True)
        for key in sorted(groups, key=lambda key: tuple(str(part) for part in key)):
            device, metric, instance, unit = key
            part = groups[key].select("start", "value")
            named = [str(metric), f"of GPU {device}" if device is not None else "", str(instance or "")]
            drawn.samples += part.height
            about = {"device": device, "metric": metric, "instance": instance, "unit": unit}
            yield CounterTrack(" ".join(filter(None, named)), place, part, str(unit or ""), about)
            place += 1
    memory = selection.rows("allocations", rank)
    if memory is not None:
        memory = memory.sort("start", maintain_order=True)
        for (device,), part in sorted(
            memory.partition_by("device", as_dict=True).items(), key=lambda item: str(item[0][0])
        ):
            where = "host" if device is None else f"GPU {device}"
            for column in ("allocated", "reserved"):
                values = part.select("start", value=pl.col(column).cast(pl.Float64)).drop_nulls()
                if values.height:
                    drawn.samples += values.height
                    yield CounterTrack(f"memory {column} on {where}", place, values, "bytes")
                    place += 1


def _counted(drawn: Drawn, table: str, rows: pl.DataFrame) -> bool:
    drawn.count(table, rows.height)
    return True


def _flat(name: str, order: int, rows: pl.DataFrame, table: str, drawn: Drawn) -> Track:
    drawn.count({"step": "steps", "account": "accounts"}[table], rows.height)
    rows = rows.with_columns(category=pl.lit(table, dtype=NAME))
    return _track(name, order, rows, False)


def _arguments(rows: pl.DataFrame) -> tuple[str, ...]:
    """The columns that slices show as arguments: those in which anything stands."""
    hidden = {*OWN, *FLOWS, "category", "lane", "instance"}
    return tuple(c for c in rows.columns if c not in hidden and rows[c].null_count() < rows.height)


def _parted(rows: pl.DataFrame, *by: str) -> list[tuple[tuple[Any, ...], Int | None]]:
    """The places of the rows that share values of some columns, in the order of those; null comes last."""
    groups = rows.select(by).with_row_index("_row").group_by(by, maintain_order=True).agg("_row")
    found = [(tuple(row[:-1]), row[-1]) for row in groups.with_columns(pl.col("_row").list.len()).iter_rows()]
    if len(found) == 1:
        return [(found[0][0], None)]
    places = [(key, groups["_row"][at].to_numpy().astype(np.int64)) for at, (key, _) in enumerate(found)]
    return sorted(places, key=lambda part: tuple((v is None, v if v is not None else 0) for v in part[0]))


def _track(
    name: str,
    order: int,
    rows: pl.DataFrame,
    nests: bool,
    places: Int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Track:
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    mine = np.arange(rows.height) if places is None else places
    if places is not None:
        start, end = start[places], end[places]
    group = np.zeros(len(start), np.int64)
    lane = lanes.nested(start, end, group) if nests else lanes.flat(start, end, group)
    count = int(lane.max(initial=0)) + 1
    found = [mine] if count == 1 else [mine[lane == number] for number in range(count)]
    return Track(name, order, rows, found, nests, _arguments(rows), about or {})
