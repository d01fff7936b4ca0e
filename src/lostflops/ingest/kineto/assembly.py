"""Tables of each rank of a file, from the columns of its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from lostflops.errors import NotATrace, NothingRecorded, Truncated
from lostflops.ingest import processes
from lostflops.ingest.annotations import by_domain
from lostflops.ingest.attribution import OperatorTree, apart, attribute, main_thread
from lostflops.ingest.host_compute import host_kernels
from lostflops.ingest.kineto.collectives import Communication, Found, communication, described, groups_named
from lostflops.ingest.kineto.columns import KINDS, Columns, EventColumns, product, text_of
from lostflops.ingest.kineto.devices import place
from lostflops.ingest.kineto.events import Decoder, Event
from lostflops.ingest.kineto.header import Header
from lostflops.ingest.kineto.notes import Notes, without_length
from lostflops.ingest.kineto.other_forms.programs import another_program
from lostflops.ingest.kineto.phases import phases
from lostflops.ingest.kineto.stream import EventStream
from lostflops.ingest.one_of_several import of_device
from lostflops.ingest.part import Part, write_tables
from lostflops.ingest.steps.marks import find_steps, outside
from lostflops.ingest.times.broken_times import surroundings
from lostflops.ingest.times.overrun import begun_in_order, ended_in_order
from lostflops.naming.classification import copy_facts, kernel_facts
from lostflops.store.trace import ONE_PER_DEVICE
from lostflops.tables import NAME

# Annotations of the years before annotations had a category of their own.
ANNOTATION = (
    r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.forward"
    r"|nccl:|gloo:|mpi:|ucc:|lostflops:)"
)

# A device that a process merely touches is no rank of its own.
SECOND_DEVICE_SHARE = 0.05

# A row or two with a process number of their own are damaged; a process that was merged into a file has more,
# and a fair share of what the busiest has.
FEWEST_MERGED, MERGED_SHARE = 3, 0.05

# So few rows of a device may all be shorter than a clock tells that counts microseconds.
FEW_ROWS, COARSE = 10, 1000

NO_TIMES = (
    "each event has to tell when it ran, as `export_chrome_trace` writes it: `ph` 'X', with `ts` and `dur` "
    "in microseconds; or 'B' and 'E' of one `pid` and `tid`, each with its `ts`."
)

# No GPU runs larger blocks.
MOST_THREADS = 1024

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
        self.header = Header(path, {**stream.head, **stream.tail})
        self.not_understood = place(reader)
        self.names = reader.names.categories()
        self.notes = Notes()
        self.notes.reading(reader, decoder, self.not_understood)
        self.notes.completeness(stream, self.header)
        self.notes.origin(self.header)
        self.rank, self.rank_source, differs = self.header.rank(reader.ranks_named)
        self.parameters = described(reader.parameters)
        self.groups = groups_named(self.parameters, self.header.groups)
        if differs:
            self.notes.add("rank in the file's name", 1, differs, "warning")

    def parts(self) -> list[Part]:
        reader = self.reader
        self._require_one_process()
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
        tree = None
        if operators is not None:
            operators, tree = self._with_phases(operators, ranges)
        gpu = kernels is not None or copies is not None
        self._require_work(gpu, calls, operators, ranges, frames, allocations)
        if calls is not None:
            calls, (kernels, copies) = apart(calls, kernels, copies)
        self._require_durations(kernels, copies)
        kernels, copies = ended_in_order(self.notes.rows, kernels, copies)
        if kernels is not None:
            self.notes.no_time(kernels, reader.negative_on_device)
            kernels = attribute(self._kernel_facts(kernels), calls, tree)
            kernels = begun_in_order(kernels, "kernels", self.notes.rows)
            self.notes.launches(kernels)
        if copies is not None:
            copies = attribute(self._copy_facts(copies, calls), calls, tree).drop("phase")
            copies = begun_in_order(copies, "copies", self.notes.rows)
        if calls is not None:
            self.notes.captured(calls, kernels, copies)
        talk = self._communication(kernels, copies, operators, ranges)
        kernels, copies = talk.kernels, talk.copies
        self.notes.rows += talk.quality
        if not gpu and operators is not None and tree is not None:
            kernels = host_kernels(operators, tree, ranges, frames)
            self.notes.host_only(calls, self.not_understood, self.header)
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
        start, end = self._extent((kernels, copies, calls, operators), (ranges, frames))
        devices, busiest = self._devices(kernels if gpu else None, copies)
        parts: list[Part] = []
        for device in devices:
            mine = tables if len(devices) == 1 else of_device(tables, device, devices, busiest)
            parts.append(self._part(len(parts), device, mine, calls, start, end, gpu))
        if len(parts) > 1:
            for part in parts:
                # The size that the trace tells counts processes.
                part.rank, part.rank_source, part.world_size = None, ONE_PER_DEVICE, None
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
        ).with_columns(complete=self._whole())
        if not self.stream.events_whole:
            steps = _until_cut(steps, [t for t in (work, mine["copies"]) if gpu and t is not None])
        mine["steps"] = steps if steps.height else None
        on_device = [t for t in (mine["kernels"], mine["copies"]) if gpu and t is not None]
        told = [*without_length(on_device), *outside(steps, *on_device)]
        found = {
            name: table
            for name, table in mine.items()
            if table is not None and (table.height or name in ("kernels", "operators"))
        }
        write_tables(folder, found)
        return Part(
            folder=str(folder),
            rank=self.rank,
            rank_source=self.rank_source,
            start=start,
            end=end,
            num_events=self.stream.num_events if first else 0,
            tables=list(found),
            world_size=self.header.world_size,
            host=self.header.host,
            facts={
                **self.header.device_facts(device, gpu),
                "groups": self.groups,
                "main_thread": main_thread(calls, tables["operators"], tables["ranges"]),
            },
            quality=(self.notes.rows if first else []) + told,
            absent=self.header.absent(gpu),
            process=self.header.process(device, _counted(steps)),
        )

    def _whole(self) -> pl.Expr:
        """Which steps were recorded to their end."""
        if not self.stream.events_whole:
            return pl.lit(False)
        last = processes.last_step(self.header.fields)
        if last is None:
            return pl.col("complete")
        return pl.col("complete") & (
            pl.col("step") <= last
        )  # the job ended, or was ended, in the step after it

    def _extent(
        self, work: Sequence[pl.DataFrame | None], spans: Sequence[pl.DataFrame | None]
    ) -> tuple[int, int]:
        """From when to when the recording goes."""
        # A range may outlive the recording by far where it says when it ended, but none begins before it.
        window = [self.header.base + w for w in self.reader.window]
        worked = [t for t in work if t is not None and t.height]
        every = worked + [t for t in spans if t is not None and t.height]
        start = min((_least(t["start"]) for t in every), default=0)
        reach = worked if worked and window else every
        return start, max((*(_most(t["end"]) for t in reach), *window), default=0)

    def _communication(
        self,
        kernels: pl.DataFrame | None,
        copies: pl.DataFrame | None,
        operators: pl.DataFrame | None,
        ranges: pl.DataFrame | None,
    ) -> Found:
        return communication(
            Communication(
                kernels=kernels,
                copies=copies,
                operators=operators,
                ranges=ranges,
                parameters=self.parameters,
                shapes=self.reader.shapes.categories(),
                types=self.reader.types.categories(),
                concrete=self.reader.concrete.categories(),
                groups=self.groups,
                rank=self.rank,
            )
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
        self.notes.add("rows more than ten days from the others", lost, "left out as corrupted", "warning")

    def _require_one_process(self) -> None:
        """Raise NotATrace where files of several processes were merged: their ids and devices collide."""
        for pids in (self.reader.callers, self.reader.annotators):
            rows = Counter[str]()
            for pid, count in pids.items():
                rows[text_of(pid)] += count
            del rows[""]
            fewest = max(FEWEST_MERGED, MERGED_SHARE * max(rows.values(), default=0))
            many = sum(count >= fewest for count in rows.values())
            if many > 1:
                raise NotATrace(
                    self.path,
                    f"it holds the rows of {many:,} processes: files of several ranks were merged into one.",
                    "give the files that the profiler wrote, one per rank.",
                )

    def _require_durations(self, *work: pl.DataFrame | None) -> None:
        """Raise NotATrace where the device's durations are gone: what it did would pass for idle."""
        rows = next((table for table in work if table is not None and table.height), None)
        if rows is None or (rows["end"] > rows["start"]).any():
            return
        many, is_coarse = rows.height, (rows["start"] % COARSE == 0).all()
        if many > FEW_ROWS or not is_coarse:
            raise NotATrace(
                self.path,
                f"none of its {many:,} rows of GPU work has a duration.",
                "record again, or give the file as the profiler wrote it: this one lost what the GPU did.",
            )

    def _require_work(self, gpu: bool, *host: pl.DataFrame | None) -> None:
        """Raise where nothing, or only half of the picture, could be shown.

        NotATrace, NothingRecorded or Truncated.
        """
        if not gpu and not self.reader.categories and not self.header.is_profilers:
            by, instead = another_program(self.path)
            raise NotATrace(
                self.path,
                f"none of its {self.stream.num_events:,} events is the PyTorch profiler's: another program "
                f"wrote it{by}.",
                instead,
            )
        if not gpu and all(table is None for table in host):
            what, halves = "no event is work, or has a usable time", self.reader.halves
            lost = self.reader.unusable + (halves.unended if halves else 0)
            if lost:
                what += f": {lost:,} do not tell when they began or how long they took"
            raise NothingRecorded(self.path, what, NO_TIMES if lost else "")
        cut = not self.stream.events_whole
        if cut and not gpu and (self.header.devices or host[0] is not None):
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
            pl.col("start") + self.header.base,
            pl.col("end") + self.header.base,
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
            self.notes.add(
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
            self.notes.add(
                "devices with little work",
                known.height - ranked.height,
                "counted with the busiest device",
            )
        chosen: list[int | None] = ranked["device"].to_list() or [None]
        return sorted(chosen, key=lambda device: device or 0), chosen[0]


def _coded(values: pl.Series, codes: pl.Series) -> pl.Series:
    texts = pl.select(pl.when(values != "").then(values)).to_series().cast(NAME)
    return texts.gather(codes)


def _until_cut(steps: pl.DataFrame, device: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The steps of a file that was cut, with those marked that last longer than what the device did is in it.

    The profiler writes marks and operators first: they go on where the device seems to do nothing.
    """
    last = max((_most(work["end"]) for work in device if work.height), default=None)
    if last is None or steps.is_empty() or _least(steps["end"]) > last:
        return steps
    cut = pl.lit("recording ended in it", steps.schema["left_out"])
    return steps.with_columns(left_out=pl.when(pl.col("end") > last).then(cut).otherwise("left_out"))


def _counted(steps: pl.DataFrame) -> tuple[int, int] | None:
    """The first and last step that the profiler counted."""
    counted = steps.filter(pl.col("source").cast(pl.String) == "profiler")["step"]
    return (_least(counted), _most(counted)) if counted.len() else None


def _least(values: pl.Series) -> int:
    return int(values.min())  # pyright: ignore[reportArgumentType]


def _most(values: pl.Series) -> int:
    return int(values.max())  # pyright: ignore[reportArgumentType]
