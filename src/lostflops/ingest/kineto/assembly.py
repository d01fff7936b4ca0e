"""Tables of each rank of a file, from the columns of its events."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from lostflops.errors import NothingRecorded, Truncated, shown
from lostflops.ingest import processes
from lostflops.ingest.annotations import by_domain
from lostflops.ingest.attribution import OperatorTree, attribute
from lostflops.ingest.broken_times import surroundings
from lostflops.ingest.host_compute import serving
from lostflops.ingest.kineto.collectives import Communication, communication
from lostflops.ingest.kineto.columns import KINDS, Columns, EventColumns, integer, number, product, text_of
from lostflops.ingest.kineto.devices import named_after_device, place
from lostflops.ingest.kineto.event_texts import UNDECODABLE
from lostflops.ingest.kineto.events import Decoder, Event
from lostflops.ingest.kineto.phases import phases
from lostflops.ingest.kineto.stream import EventStream
from lostflops.ingest.part import Part, Process, write_table
from lostflops.ingest.steps.marks import find_steps, outside
from lostflops.naming.classification import copy_facts, kernel_facts, operator_facts
from lostflops.naming.host_causes import captures
from lostflops.store.trace import DEVICE_UNKNOWN, GPU_WORK_LOST, Quality
from lostflops.tables import NAME

# Annotations of the years before annotations had a category of their own.
ANNOTATION = (
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward"
    r"|nccl:|gloo:|lostflops:)"
)


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


# Operators that run others, or hooks, and compute nothing themselves.
HOST_WRAPPER = r"^(?:autograd::engine::evaluate_function|RegisterPostBackwardFunction)"


# Calls after which a GPU has something to do.
STARTS_GPU_WORK = (
    r"^(?:cu|hip|musa|cnrt|mc).*(?:Launch|Memcpy|Memset)|^(?:ur|pi|ze|acl|syn)\w*(?:Launch|Memcpy|MemcpyAsync)"
    r"|^AscendCL@aclnn|^enqueueCommand |^runFunction"
)


# So many tables are written at a time; most are small.
WRITERS = 2


# No GPU runs larger blocks.
MOST_THREADS = 1024


DROPPED_RECORDS = re.compile(r"(?i)dropped\s+(\d{1,12})\s+activity records")


# rocprofiler-sdk names the kernel's descriptor.
KD_SUFFIX = r"(?: \[clone \.kd\]|\.kd)$"


class Assembly:
    """Turns collected columns into the tables of a rank."""

    def __init__(
        self, path: Path, folder: Path, reader: EventColumns, decoder: Decoder, stream: EventStream[Event]
    ) -> None:
        self.path = path
        self.folder = folder
        self.reader = reader
        self.stream = stream
        self.quality: list[Quality] = []
        self.frame = {**stream.head, **stream.tail}
        base = self.frame.get("baseTimeNanoseconds")
        self.base = base if isinstance(base, int) and 0 <= base < 2**61 else 0
        self.not_understood = place(reader)
        self.names = reader.names.categories()
        self.distributed: dict[str, Any] = _mapping(self.frame.get("distributedInfo"))
        self._note_decoding(decoder)
        self.rank, self.rank_source = self._rank()

    def parts(self) -> list[Part]:
        reader = self.reader
        self._drop_far_away()
        kernels = self._timed(reader.kernels)
        copies = self._timed(reader.copies)
        calls = self._timed(reader.calls)
        operators, ranges = self._operators_and_ranges()
        ranges = None if ranges is None else by_domain(ranges)
        frames = self._timed(reader.frames)
        allocations = self._timed(reader.allocations)
        if allocations is not None:  # what an address is for is to tell blocks apart
            allocations = allocations.with_columns(pl.col("address").rank("dense").cast(pl.Int64))
        window = [self.base + w for w in reader.window]
        tree = None
        if operators is not None:
            operators, tree = self._with_phases(operators, ranges)
        gpu = kernels is not None or copies is not None
        self._require_work(gpu, calls, operators, ranges, frames, allocations)
        if kernels is not None:
            kernels = attribute(self._kernel_facts(kernels), calls, tree)
            self._note_launches(kernels)
        if copies is not None:
            copies = attribute(self._copy_facts(copies, calls), calls, tree).drop("phase")
        if calls is not None:
            self._note_captured(calls, kernels, copies)
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
                rank=self.rank,
            )
        )
        kernels, copies = talk.kernels, talk.copies
        self.quality += talk.quality
        if not gpu and operators is not None and tree is not None:
            kernels = self._host_kernels(operators, tree, ranges, frames)
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
        # A range may outlive the recording by far where it says when it ended, but none begins before it.
        work = [t for t in (kernels, copies, calls, operators) if t is not None and t.height]
        spans = [t for t in (ranges, frames) if t is not None and t.height]
        start = min((_least(t["start"]) for t in work + spans), default=0)
        reach = work if work and window else work + spans
        end = max((*(_most(t["end"]) for t in reach), *window), default=0)
        devices, busiest = self._devices(kernels if gpu else None, copies)
        parts: list[Part] = []
        for device in devices:
            mine = tables if len(devices) == 1 else _on_device(tables, device, devices, busiest)
            parts.append(self._part(len(parts), device, mine, calls, start, end, gpu))
        if len(parts) > 1:
            for part in parts:
                part.rank, part.rank_source = None, "assigned, one per device of the process"
        return parts

    def _part(
        self,
        place: int,
        device: int | None,
        tables: dict[str, pl.DataFrame | None],
        calls: pl.DataFrame | None,
        start: int,
        end: int,
        gpu: bool,
    ) -> Part:
        folder = self.folder / str(place)
        folder.mkdir(parents=True, exist_ok=True)
        first = place == 0
        mine = dict(tables)
        work = mine["kernels"]
        steps = find_steps(
            mine["ranges"], mine["operators"], work if gpu else None, start, end, mine["copies"]
        )
        if not self.stream.events_whole:
            steps = steps.with_columns(complete=pl.lit(False))
        last = processes.last_step(self.frame)
        if last is not None:  # the job ended, or was ended, in the step after it
            steps = steps.with_columns(complete=pl.col("complete") & (pl.col("step") <= last))
        mine["steps"] = steps if steps.height else None
        on_device = [t for t in (mine["kernels"], mine["copies"]) if gpu and t is not None]
        told = [*_without_length(on_device), *outside(steps, *on_device)]
        found = {
            name: table
            for name, table in mine.items()
            if table is not None and (table.height or name in ("kernels", "operators"))
        }
        with ThreadPoolExecutor(WRITERS) as pool:
            for done in [pool.submit(write_table, folder, *one) for one in found.items()]:
                done.result()
        return Part(
            folder=str(folder),
            rank=self.rank,
            rank_source=self.rank_source,
            start=start,
            end=end,
            num_events=self.stream.num_events if first else 0,
            tables=list(found),
            world_size=number(self.distributed.get("world_size")) or None,
            host=self._host(),
            facts={
                **self._device_facts(device, gpu),
                "main_thread": _main_thread(calls, tables["operators"]),
            },
            quality=(self.quality if first else []) + told,
            absent=self._absent(gpu),
            process=self._process(device, steps),
        )

    def _process(self, device: int | None, steps: pl.DataFrame) -> Process:
        """What the file tells of the process that wrote it."""
        counted = steps.filter(pl.col("source").cast(pl.String) == "profiler")["step"]
        return Process(
            identity=processes.recorded(self.path, self.frame),
            number=processes.number(self.path),
            host=self._host(),
            worker=processes.worker(self.path.name),
            device=device,
            steps=(_least(counted), _most(counted)) if counted.len() else None,
        )

    def _drop_far_away(self) -> None:
        """Leave out rows that a broken clock put days away from all others: they would be all one sees."""
        reader = self.reader
        kinds: list[Columns] = [getattr(reader, kind) for kind in KINDS]
        starts = [frame["start"] for kind in kinds for frame in kind.frames if frame.height]
        near = surroundings(starts, reader.window)
        if near is None:
            return
        low, high = near
        lost = 0
        for kind in kinds:
            kept = [f.filter(pl.col("start").is_between(low, high)) for f in kind.frames]
            lost += sum(f.height for f in kind.frames) - sum(f.height for f in kept)
            kind.frames = kept
        reader.window = [w for w in reader.window if low <= w <= high]
        self._note("rows more than ten days from the others", lost, "left out as corrupted", "warning")

    def _require_work(self, gpu: bool, *host: pl.DataFrame | None) -> None:
        """Raise NothingRecorded or Truncated where nothing, or only half of the picture, could be shown."""
        if not gpu and all(table is None for table in host):
            raise NothingRecorded(self.path, "no event is work, or has a usable time")
        cut = not self.stream.events_whole
        if cut and not gpu and (self._listed_devices() or host[0] is not None):
            raise Truncated(
                self.path,
                f"ends {self.stream.cut}, before any GPU work",
                "record again: the profiler writes GPU work last, and none is in this file.",
            )

    def _timed(self, columns: Columns) -> pl.DataFrame | None:
        """The rows with absolute times and names instead of codes."""
        frame = columns.take()
        if frame is None or frame.is_empty():
            return None
        with_names = [c for c in ("name", "domain") if c in frame.columns]
        if "meta" in frame.columns:
            frame = frame.with_columns(pl.when(pl.col("meta") >= 0).then("meta"))
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
        written = kernels["name"].unique()
        plain = written.cast(pl.String).str.replace(KD_SUFFIX, "")
        facts = kernel_facts(plain.unique().to_list()).with_columns(pl.col("name").cast(NAME))
        facts = pl.DataFrame({"name": written, "_plain": plain.cast(NAME)}).join(
            facts, left_on="_plain", right_on="name", how="left"
        )
        products = [product(text) for text in self.reader.extents]
        extent = pl.Series(products, dtype=pl.Int64)
        kernels = kernels.with_columns(
            grid=extent.gather(kernels["grid"]), block=extent.gather(kernels["block"])
        )
        if bool((kernels["block"] > MOST_THREADS).any()) and bool((kernels["grid"] <= MOST_THREADS).all()):
            # rocprofiler-sdk writes a block's threads as the grid, and all threads, not blocks, as the block.
            kernels = kernels.with_columns(
                grid=pl.when(pl.col("grid") > 0).then(pl.col("block") // pl.col("grid")), block="grid"
            )
        return (
            kernels.with_columns(block=pl.when(pl.col("block") <= MOST_THREADS).then("block"))
            .join(facts, on="name", how="left", maintain_order="left")
            .with_columns(name="_plain", continued=pl.lit(False))
            .drop("_plain")
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

    def _host_kernels(
        self,
        operators: pl.DataFrame,
        tree: OperatorTree,
        ranges: pl.DataFrame | None,
        frames: pl.DataFrame | None,
    ) -> pl.DataFrame:
        """The stretches of host operators outside their children, in place of kernels.

        What operators do inside a loader, a checkpoint or a compiler, they do for it: that is no compute.
        """
        from lostflops.intervals import self_pieces

        position, start, end = self_pieces(tree.forest)
        own = ~serving(tree, operators, ranges, frames)[position]
        position, start, end = position[own], start[own], end[own]
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
        # What belongs to communication is in `collectives`; a host waiting for it does not compute, nor does
        # the autograd engine around a node, where hooks of FSDP wait for their shards.
        waits = pl.col("name").cast(pl.String).str.contains(HOST_WRAPPER)
        return pieces.filter((pl.col("family") != "communication") & ~waits).with_columns(
            device=pl.lit(None, dtype=pl.Int32)
        )

    def _devices(
        self, kernels: pl.DataFrame | None, copies: pl.DataFrame | None
    ) -> tuple[list[int | None], int | None]:
        """The devices that did a fair share of the process's work, and the busiest of them."""
        work = [t.select("device", "start", "end") for t in (kernels, copies) if t is not None]
        if not work:
            return [None], None
        busy = (
            pl.concat(work)
            .group_by("device")
            .agg(busy=(pl.col("end") - pl.col("start")).sum())
            .sort("busy", "device", descending=[True, False])
        )
        total = int(busy["busy"].sum())
        known = busy.drop_nulls("device")
        ranked = known.filter((pl.col("busy") >= SECOND_DEVICE_SHARE * total) | (pl.int_range(pl.len()) == 0))
        if known.height > ranked.height:
            self._note(
                "devices with little work",
                known.height - ranked.height,
                "counted with the busiest device",
            )
        chosen: list[int | None] = ranked["device"].to_list() or [None]
        return sorted(chosen, key=lambda device: device or 0), chosen[0]

    def _rank(self) -> tuple[int | None, str]:
        """The rank and where it was read, the content before the name; a note where they disagree."""
        in_name = processes.rank_in_name(self.path.name)
        rank, source = in_name, "file name" if in_name is not None else "assigned"
        if (said := number(self.distributed.get("rank"))) is not None:
            rank, source = said, "distributedInfo"
        elif len(self.reader.ranks_named) == 1:
            rank, source = next(iter(self.reader.ranks_named)), "record_param_comms"
        elif processes.recorded(self.path, self.frame) is not None:
            rank, source = None, processes.ASSUMED  # the name's 0 is what a process without a launcher gets
            in_name = None
        if in_name is not None and in_name != rank:
            self._note(
                "rank in the file's name",
                1,
                f"it says {in_name}, the file's content {rank}: the content counts",
                "warning",
            )
        return rank, source

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = []
        for entry in _list(self.distributed.get("pg_config")):
            group = _mapping(entry)
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                try:
                    ranks = msgspec.json.decode(ranks)
                except UNDECODABLE:
                    ranks = None
            members = [r for r in _list(ranks) if isinstance(r, int) and 0 <= r < 2**31]
            groups.append(
                {
                    "name": text_of(group.get("pg_name")),
                    "description": text_of(group.get("pg_desc")),
                    "ranks": members,
                }
            )
        return groups

    def _listed_devices(self) -> list[dict[str, Any]]:
        """All devices that the process could see; traces of early 2021 call them otherwise."""
        listed = self.frame.get("deviceProperties") or self.frame.get("computeProperties")
        return [_mapping(entry) for entry in _list(listed)]

    def _device_facts(self, device: int | None, gpu: bool) -> dict[str, Any]:
        known = self._listed_devices()
        chosen: dict[str, Any] = {}
        same = {text_of(p.get("name")) for p in known}
        for entry in known:
            if entry.get("id") == device:
                chosen = entry
        if not chosen and len(same) == 1:  # ROCm numbers devices otherwise than it lists them
            chosen = known[0]
        name = text_of(chosen.get("name")).strip()
        told = [
            f"{key.removesuffix('_version').replace('_', ' ')} {text_of(self.frame[key])[:40]}"
            for key in VERSIONS
            if key in self.frame
        ]
        versions = ", ".join([*told, *processes.packages(self.frame)])
        sms = chosen.get("numSms") or chosen.get("multiProcessorCount")
        return {
            "device": device,
            "device_kind": "gpu" if gpu else "cpu",
            "gpu": shown(name) if gpu and name else None,
            "num_sms": number(sms),
            "memory_bytes": integer(chosen.get("totalGlobalMem")),
            "backend": text_of(self.distributed.get("backend")) or None,
            "groups": self._groups(),
            "versions": versions or None,
            "source": "kineto",
        }

    def _host(self) -> str | None:
        host = self.frame.get("host_name")
        return hashlib.sha256(host.encode()).hexdigest() if isinstance(host, str) and host else None

    def _absent(self, gpu: bool) -> dict[str, str]:
        never = "the PyTorch profiler does not record this"
        absent = {"os_calls": never, "page_faults": never, "counters": never}
        if not gpu:
            absent["copies"] = absent["launches"] = "no GPU work was recorded"
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
        self._note(
            "events with text that is no JSON",
            decoder.mended,
            "control characters, bad UTF-8 or NaN: repaired; NaN counts as missing",
            "warning",
        )
        self._note("events that could not be decoded", decoder.skipped, "left out", "warning")
        self._note("rows without usable times", reader.unusable, "left out", "warning")
        self._note("rows longer than ten days", reader.overlong, "left out as corrupted", "warning")
        self._note("rows with a negative duration", reader.negative, "counted with length zero", "warning")
        for cat, count in sorted(self.not_understood.items()):
            self._note(
                f"rows of category '{cat}'", count, "kept as ranges; lostflops does not know this category"
            )
        dropped = [
            int(n)
            for line in _list(self.frame.get("WARNING"))
            for n in DROPPED_RECORDS.findall(text_of(line))
        ]
        self._note(
            "activity records dropped by the profiler",
            sum(dropped),
            "they are missing from this trace",
            "warning",
        )
        if not self.stream.events_whole:
            self._note(
                "truncated file",
                1,
                f"it ends {self.stream.cut}. The profiler writes events by kind, not by time: any step may "
                "lack some of its work, and lost work is shown as idle",
                "warning",
            )
        elif self.stream.cut:
            self._note("truncated file", 1, f"it ends {self.stream.cut}; the events are whole", "warning")
        elif self.stream.damage:
            self._note("damaged file", 1, f"{self.stream.damage}; some events may be wrong", "warning")
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
        self._note(
            "kernels that start before their launch", early, "the clocks of host and GPU disagree", "warning"
        )

    def _note_captured(self, calls: pl.DataFrame, *work: pl.DataFrame | None) -> None:
        """Launches without GPU work, because they became part of a graph."""
        names = calls["name"].unique().cast(pl.String).drop_nulls().to_list()
        during = captures(calls.lazy(), names, by=["thread"]).sort("start").collect()
        if during.is_empty():
            return
        launches = calls.filter(pl.col("name").is_in([n for n in names if "Launch" in n]))
        found = [table.select("correlation") for table in work if table is not None]
        ran = pl.concat(found) if found else launches.select("correlation").clear()
        captured = (
            launches.sort("start")
            .join_asof(
                during.select("thread", "start", _until="end"),
                on="start",
                by="thread",
                strategy="backward",
                check_sortedness=False,
            )
            .filter(pl.col("start") < pl.col("_until"))
            .join(ran, on="correlation", how="anti")
        )
        self._note(
            "launches captured into a graph",
            captured.height,
            f"of {launches.height:,}; they run when the graph is replayed",
        )

    def _note_host_only(self, calls: pl.DataFrame | None) -> None:
        """Why the host's time may be only half of the picture."""
        host_only = "the page shows CPU time only"
        if calls is not None:
            started = calls.filter(pl.col("name").cast(pl.String).str.contains(STARTS_GPU_WORK))
            if started.height:
                self._note(
                    GPU_WORK_LOST,
                    started.height,
                    f"launches and copies by the CPU, but no GPU work in this trace: {host_only}. "
                    "Record with `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`",
                    "warning",
                )
                return
        unknown = self.not_understood
        # A trace that lists a device, or whose host calls a device's runtime, is no CPU-only job's.
        if unknown and (self._listed_devices() or calls is not None or any(map(named_after_device, unknown))):
            self._note(
                DEVICE_UNKNOWN,
                sum(unknown.values()),
                f"rows of categories that lostflops does not know ({', '.join(sorted(unknown))}), probably "
                f"work of a device: counted as ranges; {host_only}",
                "warning",
            )


def _without_length(work: list[pl.DataFrame]) -> list[Quality]:
    """How many rows of the device are shorter than the profiler's clock tells."""
    rows = sum(t.height for t in work)
    nothing = sum(t.filter(pl.col("start") == pl.col("end")).height for t in work)
    text = f"of {rows:,}; shorter than the clock tells"
    return [Quality(None, "GPU rows of no length", nothing, text)] if nothing else []


def _on_device(
    tables: dict[str, pl.DataFrame | None],
    device: int | None,
    devices: list[int | None],
    busiest: int | None,
) -> dict[str, pl.DataFrame | None]:
    """What one of several devices did; the busiest gets what belongs to none of them."""
    home = pl.when(pl.col("device").is_in(devices)).then("device").otherwise(busiest)
    return {
        name: table.filter(home == device)
        if table is not None and name in ("kernels", "copies", "collectives")
        else table
        for name, table in tables.items()
    }


def _coded(values: pl.Series, codes: pl.Series) -> pl.Series:
    texts = pl.select(pl.when(values != "").then(values)).to_series().cast(NAME)
    return texts.gather(codes)


def _least(values: pl.Series) -> int:
    return int(values.min())  # pyright: ignore[reportArgumentType]


def _most(values: pl.Series) -> int:
    return int(values.max())  # pyright: ignore[reportArgumentType]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _main_thread(calls: pl.DataFrame | None, operators: pl.DataFrame | None) -> int | None:
    for rows in (calls, operators):
        if rows is not None and rows.height:
            return rows.group_by("thread").len().sort("len", "thread")["thread"][-1]
    return None
