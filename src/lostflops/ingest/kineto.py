"""PyTorch profiler traces (Kineto JSON, plain or gzipped, torch 1.8 to 2.13; CUDA, ROCm, CPU-only) to tables.

One pass over the file: chunks of typed events become columns by category, names become codes of one dictionary,
and everything else is a join on columns. Only what is named here is read: environment, host names, users, paths
and addresses that a trace may carry are never decoded or stay behind.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from ..classification import copy_facts, kernel_facts, operator_facts
from ..errors import NotATrace
from ..tables import NAME, PHASE
from ..trace import Quality
from .attribution import OperatorTree, attribute
from .kineto_collectives import Communication, communication
from .kineto_events import Args, Decoder, Event
from .kineto_stream import EventStream
from .part import Part, write_table
from .steps import find_steps

KERNEL_ROWS = frozenset({"kernel", "Kernel", "xpu_kernel"})
COPY_ROWS = frozenset({"gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
CALL_ROWS = frozenset({"cuda_runtime", "Runtime", "cuda_driver", "xpu_runtime", "xpu_driver"})
OPERATOR_ROWS = frozenset({"cpu_op", "Operator"})
RANGE_ROWS = frozenset({"user_annotation", "overhead", "cuda_sync"})
FRAME_ROWS = frozenset({"python_function"})
DROPPED = frozenset(
    {"ac2g", "async", "async_gpu", "async_cpu_to_gpu", "fwdbwd", "gpu_user_annotation", "cuda_event", "Trace"}
)
DOMAINS = {"user_annotation": "user", "overhead": "overhead", "cuda_sync": "synchronisation"}
# Annotations of the years before annotations had a category of their own.
ANNOTATION = (
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward"
    r"|nccl:|gloo:)"
)
LONGEST_NAME = 1 << 16
LONGEST_DURATION = 10 * 24 * 3600 * 10**9
# A device that a process merely touches is no rank of its own.
SECOND_DEVICE_SHARE = 0.05
VERSIONS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "rocprofiler-sdk_version",
)
RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ ]?(\d{1,6})", re.IGNORECASE)

_NO_ARGS = Args()


class Codes(dict[Any, int]):
    """Distinct values, numbered as they come."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code

    def categories(self) -> pl.Series:
        """The values as text in the order of their codes."""
        return pl.Series([_text(value) for value in self], dtype=pl.String)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME]


def nanoseconds(values: Iterable[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Microseconds as integer nanoseconds, and which of them are usable.

    Splitting off the whole microseconds first makes the conversion exact for every double below 2^43 µs;
    multiplying by 1000 is 1 ns off for a quarter of some files' events.
    """
    given = list(values)
    try:
        exact = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        exact = np.array([_float(v) for v in given], dtype=np.float64)
    good = np.isfinite(exact) & (np.abs(exact) < 2**53)
    exact = np.where(good, exact, 0.0)
    whole = np.floor(exact)
    return whole.astype(np.int64) * 1000 + np.rint((exact - whole) * 1000).astype(np.int64), good


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def integers(values: list[Any]) -> pl.Series:
    """Integers of unstable type: numbers, or text such as '7' and 'stream 7'; null where there is none."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([_integer(v) for v in values], dtype=pl.Int64)


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        digits = re.search(r"-?\d{1,20}$", value)
        value = int(digits[0]) if digits else None
    elif isinstance(value, float):
        value = int(value) if value == value and abs(value) < 2**63 else None
    if not isinstance(value, int):
        return None
    # Ids are bit patterns: one beyond int64 keeps its bits.
    return value if -(2**63) <= value < 2**63 else (value & (2**64 - 1)) - (2**64 if value & 2**63 else 0)


def _product(value: Any) -> int | None:
    if not isinstance(value, list):
        return None
    total = 1
    for factor in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(factor, int):
            return None
        total *= factor
    return total if 0 <= total < 2**62 else None


class Columns:
    """The rows of one kind, as frames per chunk."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def add(self, frame: pl.DataFrame) -> None:
        self.frames.append(frame)

    def take(self) -> pl.DataFrame | None:
        """All rows as one frame; the chunks are let go."""
        frames, self.frames = self.frames, []
        return pl.concat(frames) if frames else None


class Reader:
    """Collects the events of one file into columns."""

    def __init__(self, exact_text: bool = False) -> None:
        self.names = Codes()
        self.shapes = Codes()
        self.types = Codes()
        self.concrete = Codes()
        self.kernels = Columns()
        self.copies = Columns()
        self.calls = Columns()
        self.operators = Columns()
        self.ranges = Columns()
        self.frames_ = Columns()
        self.allocations = Columns()
        self.parameters: list[tuple[Any, ...]] = []
        self.window: list[int] = []
        self.unusable = 0
        self.negative = 0
        self.overlong = 0
        self.forced = 0
        self.device_rows_elsewhere: dict[str, int] = {}
        self.flows = 0
        self.ranks_named: set[int] = set()

    def add(self, events: list[Event]) -> None:
        """Sort a chunk of events by what they are, and keep their columns."""
        by: dict[Any, list[Event]] = {}
        for event in events:
            rows = by.get(event.cat)
            if rows is None:
                by[event.cat] = [event]
            else:
                rows.append(event)
        for cat, rows in by.items():
            if cat in KERNEL_ROWS:
                self._add_kernels(rows)
            elif cat in COPY_ROWS:
                self._add_copies(rows)
            elif cat in CALL_ROWS:
                self._add_calls(rows)
            elif cat in OPERATOR_ROWS:
                self._add_operators(rows)
            elif cat in FRAME_ROWS:
                self._add_spans(rows, self.frames_, None)
            elif cat in RANGE_ROWS:
                self._add_spans(rows, self.ranges, DOMAINS[cat])
            elif cat == "cpu_instant_event" or cat is None:
                self._add_instants(rows)
            elif cat == "Trace":
                self._add_window(rows)
            elif cat in DROPPED:
                self.flows += len(rows)
            else:
                spans = [e for e in rows if e.ph == "X"]
                if spans:
                    self._add_spans(spans, self.ranges, _text(cat)[:64])
                    self.device_rows_elsewhere[_text(cat)[:64]] = self.device_rows_elsewhere.get(
                        _text(cat)[:64], 0
                    ) + len(spans)

    def _times(self, rows: list[Event]) -> tuple[dict[str, Any], pl.Series | None]:
        start, good_start = nanoseconds([e.ts for e in rows])
        length, good_length = nanoseconds([e.dur for e in rows])
        good = good_start & good_length & (length <= LONGEST_DURATION)
        self.overlong += int((length > LONGEST_DURATION).sum())
        self.unusable += int((~(good_start & good_length)).sum())
        self.negative += int((length < 0).sum())
        columns = {"start": start, "end": start + np.maximum(length, 0)}
        return columns, None if good.all() else pl.Series(good)

    def _keep(self, columns: dict[str, Any], good: pl.Series | None, into: Columns) -> None:
        frame = pl.DataFrame(columns)
        into.add(frame if good is None else frame.filter(good))

    def _name_codes(self, rows: list[Event]) -> npt.NDArray[np.uint32]:
        names = self.names
        return np.array([names[e.name] for e in rows], dtype=np.uint32)

    def _add_kernels(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        columns["name"] = self._name_codes(rows)
        columns["device"] = integers(
            [a.device if a.device is not None else e.pid for e, a in zip(rows, args, strict=True)]
        )
        columns["stream"] = integers(
            [a.stream if a.stream is not None else e.tid for e, a in zip(rows, args, strict=True)]
        )
        columns["correlation"] = integers([a.correlation for a in args])
        columns["grid"] = pl.Series([_product(a.grid) for a in args], dtype=pl.Int64)
        columns["block"] = pl.Series([_product(a.block) for a in args], dtype=pl.Int64)
        columns["registers"] = integers([a.registers for a in args])
        columns["shared_memory"] = integers([a.shared_memory for a in args])
        columns["graph_node"] = integers([a.graph_node for a in args])
        columns["meta"] = pl.Series([self._parameters(a) for a in args], dtype=pl.Int64)
        self._keep(columns, good, self.kernels)

    def _parameters(self, a: Args) -> int | None:
        """Keep what a row says of its collective; its number, or null when it says nothing."""
        if a.collective is None:
            return None
        if a.rank is not None and (rank := _integer(a.rank)) is not None:
            self.ranks_named.add(rank)
        self.parameters.append(
            (
                _text(a.collective),
                _integer(a.in_elements),
                _integer(a.out_elements),
                _text(a.dtype),
                _integer(a.group_size),
                None if a.group_name is None and a.group_id is None else _text(a.group_name or a.group_id),
                None if a.group_ranks is None else _text(a.group_ranks),
                None if a.group_description is None else _text(a.group_description),
                _integer(a.sequence_in_group),
                _integer(a.source_rank),
                _integer(a.destination_rank),
            )
        )
        return len(self.parameters) - 1

    def _add_copies(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        columns["name"] = self._name_codes(rows)
        columns["device"] = integers(
            [a.device if a.device is not None else e.pid for e, a in zip(rows, args, strict=True)]
        )
        columns["stream"] = integers(
            [a.stream if a.stream is not None else e.tid for e, a in zip(rows, args, strict=True)]
        )
        columns["correlation"] = integers([a.correlation for a in args])
        columns["bytes"] = integers([a.bytes for a in args])
        columns["set"] = pl.Series(["emset" in (e.cat or "") for e in rows], dtype=pl.Boolean)  # pyright: ignore[reportOperatorIssue]
        self._keep(columns, good, self.copies)

    def _add_calls(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        columns["correlation"] = integers([a.correlation for a in args])
        columns["bytes"] = integers([a.bytes if a.bytes is not None else a.size for a in args])
        self._keep(columns, good, self.calls)

    def _add_operators(self, rows: list[Event]) -> None:
        columns, good = self._times(rows)
        args = [e.args or _NO_ARGS for e in rows]
        shapes, types, concrete = self.shapes, self.types, self.concrete
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        columns["shapes"] = np.array([shapes[bytes(a.dims) or bytes(a.dims_2021)] for a in args], np.uint32)
        columns["types"] = np.array([types[bytes(a.types)] for a in args], np.uint32)
        columns["sequence"] = integers([a.sequence for a in args])
        columns["backward"] = np.array([a.forward_thread not in (None, 0, "0") for a in args], dtype=np.bool_)
        columns["meta"] = pl.Series([self._parameters(a) for a in args], dtype=pl.Int64)
        columns["concrete"] = np.array(
            [
                concrete[bytes(a.concrete)] if type(e.name) is str and e.name.startswith("c10d::") else 0
                for e, a in zip(rows, args, strict=True)
            ],
            np.uint32,
        )
        self._keep(columns, good, self.operators)

    def _add_spans(self, rows: list[Event], into: Columns, domain: str | None) -> None:
        columns, good = self._times(rows)
        columns["name"] = self._name_codes(rows)
        columns["thread"] = integers([e.tid for e in rows])
        if domain is not None:
            args = [e.args or _NO_ARGS for e in rows]
            shapes, types = self.shapes, self.types
            columns["shapes"] = np.array([shapes[bytes(a.dims)] for a in args], np.uint32)
            columns["types"] = np.array([types[bytes(a.types)] for a in args], np.uint32)
            columns["domain"] = np.full(len(rows), self.names[domain], np.uint32)
        self._keep(columns, good, into)

    def _add_window(self, rows: list[Event]) -> None:
        start, good = nanoseconds([e.ts for e in rows])
        length, fine = nanoseconds([e.dur for e in rows])
        both = good & fine & (length >= 0) & (length <= LONGEST_DURATION)
        self.window.extend((start + length)[both].tolist())

    def _add_instants(self, rows: list[Event]) -> None:
        memory = [e for e in rows if e.name == "[memory]" and e.args is not None]
        if memory:
            start, good = nanoseconds([e.ts for e in memory])
            args = [e.args or _NO_ARGS for e in memory]
            kinds = integers([a.device_type for a in args])
            frame = pl.DataFrame(
                {
                    "start": start,
                    "end": start,
                    "thread": integers([e.tid for e in memory]),
                    "device": integers([a.device_id for a in args]),
                    "kind": kinds,
                    "address": integers([a.address for a in args]),
                    "bytes": integers([a.allocation_bytes for a in args]),
                    "allocated": integers([a.total_allocated for a in args]),
                    "reserved": integers([a.total_reserved for a in args]),
                }
            ).with_columns(device=pl.when(pl.col("kind") == 0).then(None).otherwise(pl.col("device")))
            self.allocations.add(frame.filter(pl.Series(good) & pl.col("bytes").is_not_null()).drop("kind"))
        ends = [e.ts for e in rows if e.name == "Record Window End"]
        if ends:
            at, good = nanoseconds(ends)
            self.window.extend(at[good].tolist())


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file may be a Kineto trace, from its name and first bytes."""
    name = path.name.lower()
    return name.endswith((".json", ".json.gz", ".json.tmp", ".json.gz.tmp")) or (
        head[:2] == b"\x1f\x8b" or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    )


def read(
    path: Path,
    folder: Path,
    *,
    salvage: bool = False,
    progress: Callable[[float], None] | None = None,
) -> list[Part]:
    """Read one file into the tables of one rank (or several, when it names several busy devices).

    Raises NotATrace, Truncated or Unreadable; with `salvage`, a truncated file gives its whole events.
    """
    # Events come and go by the hundred thousand without a cycle among them: collecting would only cost.
    collecting = gc.isenabled()
    gc.disable()
    try:
        reader, decoder = Reader(), Decoder()
        stream = EventStream(path, decoder.chunk, decoder.one_by_one, salvage=salvage, progress=progress)
        for events in stream:
            reader.add(events)
        if stream.num_events == 0 and decoder.skipped:
            raise NotATrace(path, "its 'traceEvents' are no events.")
        return Assembly(path, folder, reader, decoder, stream).parts()
    finally:
        if collecting:
            gc.enable()


class Assembly:
    """Turns collected columns into the tables of a rank."""

    def __init__(
        self, path: Path, folder: Path, reader: Reader, decoder: Decoder, stream: EventStream[Event]
    ) -> None:
        self.path = path
        self.folder = folder
        self.reader = reader
        self.stream = stream
        self.quality: list[Quality] = []
        self.frame = {**stream.head, **stream.tail}
        base = self.frame.get("baseTimeNanoseconds")
        self.base = base if isinstance(base, int) and abs(base) < 2**62 else 0
        self.names = reader.names.categories()
        self.distributed: dict[str, Any] = _mapping(self.frame.get("distributedInfo"))
        self._note_decoding(decoder)

    def parts(self) -> list[Part]:
        reader = self.reader
        kernels = self._timed(reader.kernels)
        copies = self._timed(reader.copies)
        calls = self._timed(reader.calls)
        operators, ranges = self._operators_and_ranges()
        frames = self._timed(reader.frames_)
        allocations = self._timed(reader.allocations)
        window = [self.base + w for w in reader.window]
        tree = None
        if operators is not None:
            operators, tree = self._with_phases(operators, ranges)
        gpu = kernels is not None or copies is not None
        if kernels is not None:
            kernels = attribute(self._kernel_facts(kernels), calls, tree)
            self._note_launches(kernels)
        if copies is not None:
            copies = attribute(self._copy_facts(copies, calls), calls, tree).drop("phase")
        talk = communication(
            Communication(
                kernels=kernels,
                copies=copies,
                operators=operators,
                ranges=ranges,
                parameters=reader.parameters,
                shapes=reader.shapes.categories(),
                types=reader.types.categories(),
                concrete=reader.concrete.categories(),
                groups=self._groups(),
                rank=self._rank()[0],
            )
        )
        kernels, copies = talk.kernels, talk.copies
        self.quality += talk.quality
        if not gpu and operators is not None and tree is not None:
            kernels = self._host_kernels(operators, tree)
            self._note_host_only(calls)
        tables = {
            "kernels": kernels,
            "copies": copies,
            "launches": calls,
            "operators": operators,
            "ranges": ranges,
            "collectives": talk.collectives,
            "frames": frames,
            "allocations": allocations,
        }
        # A range may outlive the recording by far, but none begins before it.
        work = [t for t in (kernels, copies, calls, operators) if t is not None and t.height]
        spans = [t for t in (ranges, frames) if t is not None and t.height]
        start = min((_least(t["start"]) for t in work + spans), default=0)
        end = max((*(_most(t["end"]) for t in work or spans), *window), default=0)
        devices = self._devices(kernels if gpu else None, copies)
        parts = [
            self._part(i, device, tables, start, end, calls, gpu, first=i == 0, alone=len(devices) == 1)
            for i, device in enumerate(devices)
        ]
        if len(parts) > 1:
            for part in parts:
                part.rank, part.rank_source = None, "assigned, one per device of the process"
        return parts

    def _part(
        self,
        number: int,
        device: int | None,
        tables: dict[str, pl.DataFrame | None],
        start: int,
        end: int,
        calls: pl.DataFrame | None,
        gpu: bool,
        *,
        first: bool,
        alone: bool,
    ) -> Part:
        folder = self.folder / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        mine = dict(tables)
        if not alone:
            for name in ("kernels", "copies"):
                table = mine[name]
                mine[name] = None if table is None else table.filter(pl.col("device") == device)
            talk = mine["collectives"]
            mine["collectives"] = None if talk is None else talk.filter(pl.col("device") == device)
        work = mine["kernels"]
        steps = find_steps(mine["ranges"], mine["operators"], work if gpu else None, start, end)
        mine["steps"] = steps if steps.height else None
        written = []
        for name, table in mine.items():
            if table is not None and (table.height or name in ("kernels", "operators")):
                write_table(folder, name, table)
                written.append(name)
        rank, rank_source = self._rank()
        return Part(
            folder=str(folder),
            rank=rank,
            rank_source=rank_source,
            start=start,
            end=end,
            num_events=self.stream.num_events if first else 0,
            tables=written,
            world_size=_integer(self.distributed.get("world_size")),
            host=self._host(),
            facts={
                **self._device_facts(device, gpu),
                "main_thread": _main_thread(calls, tables["operators"]),
            },
            quality=self.quality if first else [],
            absent=self._absent(gpu),
        )

    def _timed(self, columns: Columns) -> pl.DataFrame | None:
        """The rows with absolute times and names instead of codes."""
        frame = columns.take()
        if frame is None or frame.is_empty():
            return None
        with_names = [c for c in ("name", "domain") if c in frame.columns]
        return frame.with_columns(
            pl.col("start") + self.base,
            pl.col("end") + self.base,
            *(self._named(frame[c]) for c in with_names),
        )

    def _named(self, codes: pl.Series) -> pl.Series:
        return self.names.cast(NAME).gather(codes).alias(codes.name)

    def _operators_and_ranges(self) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        operators = self._timed(self.reader.operators)
        ranges = self._timed(self.reader.ranges)
        if ranges is not None:
            ranges = ranges.with_columns(
                nested=pl.col("domain") == "user", complete=pl.lit(True), meta=pl.lit(None, dtype=pl.Int64)
            )
        if operators is None:
            return None, ranges
        annotation = operators["name"].unique().cast(pl.String)
        annotation = annotation.filter(annotation.str.contains(ANNOTATION)).to_list()
        if annotation:
            is_range = pl.col("name").cast(pl.String).is_in(annotation)
            moved = operators.filter(is_range).select(
                "start",
                "end",
                "name",
                "thread",
                "shapes",
                "types",
                domain=pl.lit("user", dtype=NAME),
                nested=pl.lit(True),
                complete=pl.lit(True),
                meta=pl.lit(None, dtype=pl.Int64),
            )
            ranges = moved if ranges is None else pl.concat([ranges.select(moved.columns), moved])
            operators = operators.filter(~is_range)
        shapes = self.reader.shapes.categories()
        types = self.reader.types.categories()
        operators = operators.with_columns(
            shape_code=pl.col("shapes"),
            type_code=pl.col("types"),
            shapes=_coded(shapes, operators["shapes"]),
            dtypes=_coded(types, operators["types"]),
        ).drop("types")
        return operators, ranges

    def _with_phases(
        self, operators: pl.DataFrame, ranges: pl.DataFrame | None
    ) -> tuple[pl.DataFrame, OperatorTree]:
        tree = OperatorTree(operators)
        if tree.forest.repaired:
            self._note(
                "operators that outlive their parent",
                tree.forest.repaired,
                "cut at the parent's end for nesting only",
            )
        operators = operators.with_columns(phase=phases(tree, operators, ranges)).drop("backward")
        tree.operators = operators
        return operators, tree

    def _kernel_facts(self, kernels: pl.DataFrame) -> pl.DataFrame:
        names = kernels["name"].unique()
        facts = kernel_facts(names.cast(pl.String).to_list()).with_columns(pl.col("name").cast(NAME))
        swapped = pl.col("block") > 1024  # rocprofiler-sdk: grid and block change places, in work-items
        kernels = kernels.with_columns(
            grid=pl.when(swapped & (pl.col("grid") > 0))
            .then(pl.col("block") // pl.col("grid"))
            .otherwise("grid"),
            block=pl.when(swapped).then(pl.col("grid")).otherwise("block"),
        ).with_columns(block=pl.when(pl.col("block") < 2**31).then(pl.col("block")))
        return kernels.join(facts, on="name", how="left", maintain_order="left").with_columns(
            continued=pl.lit(False)
        )

    def _copy_facts(self, copies: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
        names = copies["name"].unique()
        facts = copy_facts(names.cast(pl.String).to_list()).with_columns(pl.col("name").cast(NAME))
        copies = copies.join(facts, on="name", how="left", maintain_order="left").with_columns(
            direction=pl.when("set").then(pl.lit("memset")).otherwise(pl.col("direction").cast(pl.String)),
            communication=pl.lit(False),
        )
        if calls is not None:  # ROCm puts the size on the call
            sizes = (
                calls.filter(pl.col("bytes").is_not_null() & pl.col("correlation").is_not_null())
                .unique("correlation", keep="first", maintain_order=True)
                .select("correlation", _size="bytes")
            )
            copies = copies.join(sizes, on="correlation", how="left", maintain_order="left").with_columns(
                bytes=pl.coalesce("bytes", "_size")
            )
        return copies

    def _host_kernels(self, operators: pl.DataFrame, tree: OperatorTree) -> pl.DataFrame:
        """The stretches of host operators outside their children, in place of kernels."""
        from ..intervals import self_pieces

        position, start, end = self_pieces(tree.forest)
        row = tree.forest.order[position]
        rows = operators.select("name", "thread", "phase")[row]
        names = rows["name"].unique()
        facts = operator_facts(names.cast(pl.String).to_list()).with_columns(pl.col("name").cast(NAME))
        pieces = rows.with_columns(
            start=pl.Series(start),
            end=pl.Series(end),
            stream=pl.col("thread"),
            operator=pl.col("name"),
            continued=pl.Series(start != tree.forest.start[position]),
        ).join(facts, on="name", how="left", maintain_order="left")
        # What belongs to communication is in `collectives`; a host waiting for it does not compute.
        return pieces.filter(pl.col("family") != "communication").with_columns(
            device=pl.lit(None, dtype=pl.Int32)
        )

    def _devices(self, kernels: pl.DataFrame | None, copies: pl.DataFrame | None) -> list[int | None]:
        work = [t.select("device", "start", "end") for t in (kernels, copies) if t is not None]
        if not work:
            return [None]
        busy = (
            pl.concat(work)
            .group_by("device")
            .agg(busy=(pl.col("end") - pl.col("start")).sum())
            .sort("busy", "device", descending=[True, False])
        )
        total = int(busy["busy"].sum())
        ranked = busy.filter((pl.col("busy") >= SECOND_DEVICE_SHARE * total) | (pl.int_range(pl.len()) == 0))
        if busy.height > ranked.height:
            self._note(
                "devices with little work",
                busy.height - ranked.height,
                "counted with the rank's main device",
            )
        return sorted(ranked["device"].to_list()) if ranked.height > 1 else [ranked["device"][0]]

    def _rank(self) -> tuple[int | None, str]:
        if (rank := _integer(self.distributed.get("rank"))) is not None and rank >= 0:
            return rank, "distributedInfo"
        if len(self.reader.ranks_named) == 1:
            return next(iter(self.reader.ranks_named)), "record_param_comms"
        named = RANK_IN_NAME.findall(self.path.name)
        if len(set(named)) == 1:
            return int(named[0]), "file name"
        return None, "assigned"

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = []
        given = self.distributed.get("pg_config")
        for entry in given if isinstance(given, list) else []:  # pyright: ignore[reportUnknownVariableType]
            group = _mapping(entry)
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                try:
                    ranks = msgspec.json.decode(ranks)
                except msgspec.DecodeError:
                    ranks = None
            members = (
                [r for r in ranks if isinstance(r, int) and 0 <= r < 2**31] if isinstance(ranks, list) else []
            )  # pyright: ignore[reportUnknownVariableType]
            groups.append(
                {
                    "name": _text(group.get("pg_name")),
                    "description": _text(group.get("pg_desc")),
                    "ranks": members,
                }
            )
        return groups

    def _device_facts(self, device: int | None, gpu: bool) -> dict[str, Any]:
        properties = self.frame.get("deviceProperties")
        known = [_mapping(p) for p in properties] if isinstance(properties, list) else []  # pyright: ignore[reportUnknownVariableType]
        chosen: dict[str, Any] = {}
        same = {_text(p.get("name")) for p in known}
        for entry in known:
            if entry.get("id") == device:
                chosen = entry
        if not chosen and len(same) == 1:  # ROCm numbers devices otherwise than it lists them
            chosen = known[0]
        name = _text(chosen.get("name")).strip()
        versions = ", ".join(
            f"{key.removesuffix('_version').replace('_', ' ')} {_text(self.frame[key])[:40]}"
            for key in VERSIONS
            if key in self.frame
        )
        sms = chosen.get("numSms") or chosen.get("multiProcessorCount")
        return {
            "device": device,
            "device_kind": "gpu" if gpu else "cpu",
            "gpu": name if gpu and name else None,
            "num_sms": _integer(sms),
            "memory_bytes": _integer(chosen.get("totalGlobalMem")),
            "backend": _text(self.distributed.get("backend")) or None,
            "groups": self._groups(),
            "versions": versions or None,
            "source": "kineto",
        }

    def _host(self) -> str | None:
        host = self.frame.get("host_name")
        return hashlib.sha256(host.encode()).hexdigest() if isinstance(host, str) and host else None

    def _absent(self, gpu: bool) -> dict[str, str]:
        absent = dict.fromkeys(
            ("os_calls", "page_faults", "counters"), "PyTorch profiler traces do not carry this"
        )
        if not gpu:
            absent["copies"] = absent["launches"] = "this trace holds no GPU work"
        if not self.frame.get("with_stack"):
            absent["frames"] = "Python stacks were not recorded"
        if not self.frame.get("profile_memory"):
            absent["allocations"] = "memory events were not recorded"
        return absent

    def _note(self, name: str, count: int, text: str, level: str = "note") -> None:
        if count:
            self.quality.append(Quality(None, name, count, text, level))

    def _note_decoding(self, decoder: Decoder) -> None:
        reader = self.reader
        self._note(
            "event names repaired", decoder.repaired, "the profiler wrote them without escaping", "warning"
        )
        self._note("events that could not be decoded", decoder.skipped, "left out", "warning")
        self._note("rows without usable times", reader.unusable, "left out", "warning")
        self._note("rows longer than ten days", reader.overlong, "left out as corrupted", "warning")
        self._note("rows with a negative duration", reader.negative, "counted as of no length", "warning")
        for cat, count in sorted(reader.device_rows_elsewhere.items()):
            self._note(
                f"rows of category '{cat}'", count, "kept as ranges; lostflops does not know this category"
            )
        if self.stream.cut:
            self._note("truncated file", 1, f"it ends {self.stream.cut}; what follows is unknown", "warning")
        elif not self.stream.complete_trailer:
            self._note("truncated gzip trailer", 1, "the events are whole", "warning")
        if self.stream.damaged_frame:
            self._note(
                "damaged metadata", 1, "the JSON around the events is broken; some of it was read", "warning"
            )

    def _note_launches(self, kernels: pl.DataFrame) -> None:
        lost = kernels["launch_start"].null_count()
        self._note(
            "kernels without their launch",
            lost,
            f"of {kernels.height:,}; launched before the recording, or not recorded",
        )
        early = kernels.filter(pl.col("start") < pl.col("launch_start")).height
        self._note("kernels that start before their launch", early, "a fault of the clocks", "warning")

    def _note_host_only(self, calls: pl.DataFrame | None) -> None:
        if calls is not None and calls["name"].cast(pl.String).str.contains("Launch").any():
            self._note(
                "GPU work not recorded",
                calls.height,
                "the host made GPU calls, but no GPU work is in this trace: what is shown is host time. "
                "Record with `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`",
                "warning",
            )


def phases(tree: OperatorTree, operators: pl.DataFrame, ranges: pl.DataFrame | None) -> pl.Series:
    """Forward, backward, recompute or optimizer, for every operator; null where nothing tells.

    An operator is backward inside an autograd node, recompute inside the node of a checkpoint, forward when
    autograd numbered it otherwise, and the optimizer's inside `Optimizer.step`.
    """
    from ..intervals import innermost_at, nest

    forest = tree.forest
    names = operators["name"]
    distinct = names.unique()
    text = distinct.cast(pl.String)
    engine = distinct.filter(text.str.starts_with("autograd::engine::evaluate_function"))
    rerun = distinct.filter(text.str.contains("CheckpointFunctionBackward"))
    unknown, forward, backward, checkpoint, recompute = 0, 1, 2, 3, 4
    own = np.select(
        [
            names.is_in(rerun.implode()).to_numpy(),
            names.is_in(engine.implode()).to_numpy() | operators["backward"].to_numpy(),
            (operators["sequence"].fill_null(-1) >= 0).to_numpy(),
        ],
        [checkpoint, backward, forward],
        unknown,
    )[forest.order].astype(np.int8)
    state = own.copy()
    order = np.argsort(forest.depth, kind="stable")
    bounds = np.searchsorted(forest.depth[order], np.arange(int(forest.depth.max(initial=0)) + 2))
    for level in range(1, len(bounds) - 1):
        rows = order[bounds[level] : bounds[level + 1]]
        above = state[np.maximum(forest.parent[rows], 0)]
        above = np.where(forest.parent[rows] >= 0, above, unknown)
        mine = own[rows]
        inherited = np.where((above == checkpoint) | (above == recompute), recompute, above)
        keeps = (mine == backward) | (mine == checkpoint)
        state[rows] = np.where(keeps, mine, np.where(inherited == unknown, mine, inherited))
    if ranges is not None:
        optimizer = ranges.filter(pl.col("name").cast(pl.String).str.starts_with("Optimizer.step#"))
        if optimizer.height:
            spans = nest(
                optimizer["start"].to_numpy(),
                optimizer["end"].to_numpy(),
                optimizer["thread"].fill_null(-1).to_numpy(),
            )
            state[innermost_at(spans, forest.start, forest.group) >= 0] = 5
    by_row = np.empty(len(state), dtype=np.int8)
    by_row[forest.order] = state
    words = {
        unknown: None,
        forward: "forward",
        backward: "backward",
        checkpoint: "backward",
        recompute: "recompute",
    }
    return pl.Series(by_row).replace_strict({**words, 5: "optimizer"}, return_dtype=PHASE)


def _coded(values: pl.Series, codes: pl.Series) -> pl.Series:
    texts = pl.select(pl.when(values != "").then(values)).to_series().cast(NAME)
    return texts.gather(codes)


def _least(values: pl.Series) -> int:
    return int(values.min())  # pyright: ignore[reportArgumentType]


def _most(values: pl.Series) -> int:
    return int(values.max())  # pyright: ignore[reportArgumentType]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _main_thread(calls: pl.DataFrame | None, operators: pl.DataFrame | None) -> int | None:
    for rows in (calls, operators):
        if rows is not None and rows.height:
            return rows.group_by("thread").len().sort("len", "thread")["thread"][-1]
    return None
