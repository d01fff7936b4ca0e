"""Nsight Systems exports (SQLite, Parquet and Arrow directories, schema 3) and reports to tables.

One export holds every process that ran under nsys, launchers and shells among them. A rank is a process with
GPU work, or one with NCCL calls; a process that keeps several devices busy becomes one rank per device.
Tables are read one after the other, each for one process at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lostflops import run_folder
from lostflops.errors import NotATrace
from lostflops.ingest import processes
from lostflops.ingest.attribution import OperatorTree, apart, attribute, main_thread
from lostflops.ingest.groups.members import COMMUNICATOR
from lostflops.ingest.kineto.phases import phases
from lostflops.ingest.nsys import cuda, nccl
from lostflops.ingest.nsys import host as nsys_host
from lostflops.ingest.nsys.export import Export, opened
from lostflops.ingest.nsys.host_side.files import file_accesses
from lostflops.ingest.nsys.host_side.libraries import library_calls
from lostflops.ingest.nsys.host_side.threads import samples, thread_states
from lostflops.ingest.nsys.network import network_metrics
from lostflops.ingest.nsys.nvtx import Nvtx, nvtx
from lostflops.ingest.nsys.rows import fitting, near
from lostflops.ingest.nsys.target import Devices, NsysRecording, TargetGpu, mpi_ranks, recording
from lostflops.ingest.one_of_several import OnGpu, of_device, ranks
from lostflops.ingest.part import Part, Process, write_tables
from lostflops.ingest.steps.marks import find_steps, outside
from lostflops.ingest.times.overrun import begun_in_order, ended_in_order
from lostflops.naming.classification import kernel_facts
from lostflops.store.trace import ONE_PER_DEVICE, Quality
from lostflops.tables import FAMILY, NAME, TABLES

# A device that a process merely touches is no rank of its own, nor is a process that merely touches a device:
# these are shares of the process's time on devices, and of the busiest process's.
SECOND_DEVICE_SHARE, HELPER_SHARE = 0.05, 0.01
# How long GPU work took without the longest row, where there are others: a broken time may last for hours.
USUAL = pl.col("busy") - pl.when(pl.col("busy") > pl.col("longest")).then("longest").otherwise(0.0)
# With more launches missing than this, what is said of launches is said of a sample.
MANY_LOST = 0.05
HOST_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "SYSCALL")
RECORDED = re.compile(run_folder.A_REPORT)
NO_PROCESS = -1  # for GPU work that names no process
WHY_ABSENT = {
    "frames": "Nsight Systems does not export this",
    "kernels": "this export holds no GPU kernels of this process",
    "steps": "this export holds no GPU work to account for",
    "collectives": "this export holds no communication of this process",
}


def read(path: Path, folder: Path, progress: Callable[[float], None] | None = None) -> list[Part]:
    """The ranks in one export, in the order of their devices, their tables written below `folder`.

    A `.nsys-rep` report is first exported with the user's own nsys. Raises NotATrace, Truncated, Unreadable,
    UnknownSchema, NsysNotFound or ExportFailed where that cannot be read.
    """
    with opened(path, folder) as export:
        machine = _Machine(export)
        _require_durations(path, export)
        homes = _homes(export)
        machine.note_strays(homes)
        machine.note_helpers()
        several = sum(len(home.devices) for home in homes) > 1
        placed: list[tuple[tuple[int, int], OnGpu]] = []
        for number, home in enumerate(homes):

            def tell(share: float, number: int = number) -> None:
                if progress is not None:
                    progress((number + share) / len(homes))

            process = _Process(machine, home, tell)
            for device in home.devices:
                gpu = machine.devices.of(home.process, device)
                order = gpu.gpu_id if gpu.gpu_id is not None else -1 if device is None else device
                part = process.part(folder / str(len(placed)), device, gpu, machine.samples(gpu, several))
                placed.append(((order, home.process), process.on_gpu(part, device, gpu)))
            tell(1.0)
        parts = [*ranks([one for _, one in sorted(placed, key=lambda place: place[0])])]
        _forget_repeated_ranks(parts)
        named = RECORDED.match(path.name)
        if named is not None and len(parts) == 1:  # `lostflops record` knew which rank it put nsys around
            parts[0].rank, parts[0].rank_source = int(named["rank"]), "file name"
        elif len(parts) == 1 and parts[0].rank is None:
            parts[0].rank = processes.rank_in_name(path.name)
            parts[0].rank_source = parts[0].rank_source if parts[0].rank is None else "file name"
        parts[0].quality = [*machine.quality, *parts[0].quality]
        return parts


class _Machine:
    """What holds for every process of an export."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.told: NsysRecording = recording(export)
        self.devices = Devices(export)
        self.mpi_ranks = mpi_ranks(export)
        self.quality = list(self.told.quality)
        self._metrics: pl.DataFrame | None = None
        # Of the machine, not of a rank: the first one has them.
        self.network = network_metrics(export, self.quality)
        self.accountable = True

    def note_strays(self, homes: list[_Home]) -> None:
        """Count GPU work that names no process where several could own it.

        With much of it, what the ranks did is not known: the export is not `accountable`.
        """
        if any(home.orphans for home in homes):
            return
        rows = _gpu_work(self.export)
        strays = int(rows.filter(pl.col("process").is_null())["rows"].sum())
        if strays:
            total = int(rows["rows"].sum())
            text = "which rank's they are is not known: left out"
            self.quality.append(
                Quality(None, "GPU work that names no process", strays, text, "warning", total)
            )
            self.accountable = strays <= MANY_LOST * total

    def note_helpers(self) -> None:
        """Count GPU work of processes that are no ranks."""
        _, helpers = _ranks_and_helpers(self.export, _gpu_work(self.export))
        if helpers.height:
            many, took = int(helpers["rows"].sum()), float(helpers["busy"].sum()) / 1e6
            of = f"{helpers.height} process" + ("es" if helpers.height > 1 else "")
            text = f"{took:,.2f} ms of {of}, less than a hundredth of a rank's: left out"
            self.quality.append(Quality(None, "GPU work of processes that are no ranks", many, text))

    def samples(self, gpu: TargetGpu, several: bool) -> pl.DataFrame | None:
        """The metrics of one GPU; None where they are not there, or where it is not known whose they are."""
        if not self.export.has("GPU_METRICS"):
            return None
        if self._metrics is None:
            self._metrics = nsys_host.gpu_metrics(self.export, self.quality)
        sampled = self._metrics["gpu_id"].unique()
        gpu_id = sampled[0] if gpu.gpu_id is None and sampled.len() == 1 and not several else gpu.gpu_id
        return None if gpu_id is None else self._metrics.filter(pl.col("gpu_id") == gpu_id)


@dataclass(frozen=True)
class _Home:
    """A process that becomes one rank or more.

    `devices` are the CUDA ordinals that it keeps busy, `main` the busiest of them, `touched` how many others
    it merely touches: their work is counted with the main one. `orphans`: rows that name no process are its
    own, because no other process could own them.
    """

    process: int
    devices: tuple[int | None, ...]
    main: int | None
    touched: int
    orphans: bool


def _require_durations(path: Path, export: Export) -> None:
    """Raise NotATrace where no GPU work has a length: what it did would pass for idle."""
    rows, busy = _gpu_work(export).select(pl.col("rows", "busy").sum()).row(0)
    if rows and not busy:
        raise NotATrace(
            path,
            f"none of its {int(rows):,} rows of GPU work has a duration.",
            "export the report again, or record again: this export lost what the GPU did.",
        )


def _homes(export: Export) -> list[_Home]:
    work = _gpu_work(export)
    if work.is_empty():
        return _without_gpu_work(export)
    owners, _ = _ranks_and_helpers(export, work)
    if not owners:
        # GPU work that names no process is that of the only process that made CUDA calls, if there is one.
        callers = export.census("CUPTI_ACTIVITY_KIND_RUNTIME")["process"].drop_nulls().unique().to_list()
        owners = callers if len(callers) == 1 else [NO_PROCESS]
    orphans = len(owners) == 1
    homes: list[_Home] = []
    for owner in owners:
        mine = (pl.col("process") == owner) | (pl.col("process").is_null() & orphans)
        ranked = (
            work.filter(mine)
            .group_by("device")
            .agg(pl.col("rows", "busy").sum(), pl.col("longest").max())
            .sort("busy", "rows", "device", descending=[True, True, False])
        )
        busy = ranked.filter(
            (pl.col("busy") >= SECOND_DEVICE_SHARE * USUAL.sum()) & (pl.col("busy") > 0)
            | (pl.int_range(pl.len()) == 0)
        )
        devices = tuple(busy.sort("device")["device"].to_list())
        homes.append(_Home(owner, devices, ranked["device"][0], ranked.height - len(devices), orphans))
    if owners == [NO_PROCESS]:  # whoever talks is among those whose work this is
        return homes
    return homes + [_Home(owner, (None,), None, 0, False) for owner in _talkers(export, owners)]


def _ranks_and_helpers(export: Export, work: pl.DataFrame) -> tuple[list[int], pl.DataFrame]:
    """The processes whose GPU work makes them ranks, and the work of the others.

    A process that tries a compiled kernel, or a monitor, has a hundredth of a rank's, and talks to no rank.
    One row that lasts for hours, as a broken time makes it, does not make the others helpers.
    """
    of_process = work.drop_nulls("process").group_by("process")
    busy = of_process.agg(pl.col("rows", "busy").sum(), pl.col("longest").max()).sort("process")
    little = busy.filter(pl.col("busy") < HELPER_SHARE * USUAL.max())
    talking = [*mpi_ranks(export), *(_talkers(export, []) if little.height else [])]
    helpers = little.filter(~pl.col("process").is_in(talking))
    return [p for p in busy["process"].to_list() if p not in set(helpers["process"])], helpers


def _gpu_work(export: Export) -> pl.DataFrame:
    """How many rows of GPU work each process and device has, and how long in all."""
    return (
        pl.concat([export.census(table) for table in cuda.GPU_WORK])
        .group_by("process", "device")
        .agg(pl.col("rows", "busy").sum(), pl.col("longest").max())
    )


def _talkers(export: Export, known: list[int]) -> list[int]:
    """Other processes that called NCCL: ranks whose GPU work was lost."""
    others = export.census("NVTX_EVENTS")["process"].drop_nulls().unique().sort()
    return [owner for owner in others if owner not in known and nvtx(export, owner, False, None).nccl.height]


def _without_gpu_work(export: Export) -> list[_Home]:
    """Without GPU work: the processes that made ranges, NCCL's among them; failing that, the most
    talkative one."""
    for table in HOST_TABLES:
        seen = export.census(table).drop_nulls("process").sort("rows", "process", descending=[True, False])
        owners = seen["process"].to_list() if table == "NVTX_EVENTS" else seen["process"].to_list()[:1]
        if owners:
            return [_Home(owner, (None,), None, 0, len(owners) == 1) for owner in sorted(owners)]
    return [_Home(NO_PROCESS, (None,), None, 0, True)]


class _Process:
    """One process: what its host threads did, read once, and the GPU work that they started."""

    def __init__(self, machine: _Machine, home: _Home, tell: Callable[[float], None]) -> None:
        export, process, orphans = machine.export, home.process, home.orphans
        self.machine, self.home = machine, home
        self.steps = dict[int | None, pl.DataFrame]()  # by device, once its part is written
        quality = self.quality = list[Quality]()
        launches = cuda.launches(export, process, orphans, quality)
        kernels = cuda.kernels(export, process, orphans, quality)
        copies = cuda.copies(export, process, orphans, quality)
        # Before ranges left open are closed at the end of these.
        (launches, kernels, copies), far = near([launches, kernels, copies])
        kernels, copies = cuda.own_streams(kernels, copies)
        kernels, copies = ended_in_order(quality, kernels, copies)
        tell(0.4)
        last = max((int(t["end"].max()) for t in (launches, kernels, copies) if t.height), default=None)  # pyright: ignore[reportArgumentType]
        marks = nvtx(export, process, orphans, last)
        quality += marks.quality
        tell(0.7)
        operators, tree = _with_phases(marks)
        calls = nccl.payloads(marks.nccl)
        self.communicators, self._calls = nccl.communicators(calls), calls
        self.talks = calls.height > 0

        self._note_shared_ids(launches)
        launches, (kernels, copies) = apart(launches, kernels, copies)
        kernels = attribute(_with_facts(kernels), launches, tree)
        copies = attribute(copies, launches, tree).drop("phase")
        kernels = begun_in_order(kernels, "kernels", quality)
        copies = begun_in_order(copies, "copies", quality)
        self._note_launches(kernels)
        around = nccl.Surroundings(calls, marks.ranges, operators)
        kernels, by_kernel = nccl.on_kernels(kernels, around)
        copies, by_copy = nccl.on_copies(copies, around)
        self._note_collectives(by_kernel)
        tell(0.8)
        ranges = [
            marks.ranges,
            cuda.synchronisations(export, process, orphans, launches, quality),
            cuda.overheads(export, process, orphans, quality),
        ]
        collectives = pl.concat([by_kernel, by_copy], how="vertical_relaxed").sort(
            "start", maintain_order=True
        )
        tables = {
            "kernels": kernels,
            "copies": copies,
            "launches": launches,
            "operators": operators,
            "ranges": pl.concat(ranges, how="diagonal_relaxed"),
            "os_calls": nsys_host.os_calls(export, process, orphans, quality),
            "allocations": nsys_host.allocations(
                export,
                process,
                orphans,
                pl.concat([t["device", "start"] for t in (kernels, copies)]),
                quality,
            ),
            "page_faults": nsys_host.page_faults(export, process, orphans, quality),
            "library_calls": library_calls(export, process, orphans, quality),
            "file_accesses": file_accesses(export, process, orphans, quality),
            "thread_states": thread_states(export, process, orphans, quality),
            "samples": samples(export, process, orphans, quality),
        }
        kept, further = near(list(tables.values()))
        self.tables = dict(zip(tables, kept, strict=True))
        # They are of the same work as kernels and copies: not counted twice.
        self.tables["collectives"] = _of_work(collectives, self.tables) if further else collectives
        self._note(
            "rows more than ten days from the others", far + further, "left out as corrupted", "warning"
        )
        self._note("devices with little work", home.touched, "counted with the rank's main device")
        if len(home.devices) > 1:
            self._note(
                "devices of one process",
                len(home.devices),
                "each is a rank; what the process's host threads did is repeated for each of them, but for "
                "calls that launch on another",
            )

    def part(self, folder: Path, device: int | None, gpu: TargetGpu, samples: pl.DataFrame | None) -> Part:
        """Write the tables of one device of this process, and tell about it."""
        first = device == self.home.devices[0]
        mine = self._of_device(device)
        start, end = _extent(mine)
        work, beside = mine["kernels"], list[Quality]()
        # What was not recorded, or is another's for all we know, must not pass for idle.
        if self.machine.accountable and (work.height or mine["copies"].height):
            mine["steps"] = find_steps(mine["ranges"], mine["operators"], work, start, end, mine["copies"])
            beside = outside(mine["steps"], work, mine["copies"])
            self.steps[device] = mine["steps"]
        if samples is not None:
            mine["counters"] = samples.with_columns(device=pl.lit(device, dtype=pl.Int64))
        if self.machine.network.height:
            beside_gpu = [mine["counters"]] if samples is not None else []
            mine["counters"] = pl.concat([*beside_gpu, self.machine.network], how="diagonal_relaxed")
            self.machine.network = self.machine.network.clear()
        written = {name: fitting(table, name) for name, table in mine.items() if table.height}
        write_tables(folder, written)
        told = self.machine.told
        rank, rank_source, world_size = self._rank(device)
        return Part(
            folder=str(folder),
            rank=rank,
            rank_source=rank_source,
            start=start,
            end=end,
            num_events=sum(t.height for t in self.tables.values()) if first else 0,
            tables=list(written),
            epoch_ns=told.epoch_ns,
            world_size=world_size,
            host=told.host,
            session=told.session,
            facts={
                **gpu.facts(),
                "device": device,
                "device_kind": "gpu" if work.height or mine["copies"].height else None,
                "backend": "nccl" if self.talks else None,
                "groups": [
                    {"name": nccl.called(name), "description": f"{size} ranks", "ranks": []}
                    for name, size in self._joined(device)
                    .select("communicator", "size")
                    .unique()
                    .sort("communicator")
                    .rows()
                ],
                "versions": told.versions,
                "main_thread": main_thread(*(self.tables[n] for n in ("launches", "operators", "ranges"))),
                "source": "nsys",
            },
            quality=(self.quality if first else []) + beside,
            absent=self._absent(set(written)),
            process=Process(
                number=None if self.home.process == NO_PROCESS else self.home.process >> 24 & 0xFFFFFF,
                host=told.host,
                device=device if gpu.gpu_id is None else gpu.gpu_id,
            ),
            places=nccl.places(self._joined(device), self._calls) if len(self.home.devices) == 1 else {},
            peers_by_place=True,
        )

    def on_gpu(self, part: Part, device: int | None, gpu: TargetGpu) -> OnGpu:
        """The part with what tells whether others share its GPU."""
        mine = self._of_device(device)
        work = pl.concat([mine[name].select("start", "end") for name in ("kernels", "copies")])
        known, steps = None if gpu.is_slice else gpu.gpu_id, self.steps.get(device)
        called = device if gpu.gpu_id is None and not gpu.is_slice else None
        return OnGpu(part, known, self.talks, work, steps, called)

    def _of_device(self, device: int | None) -> dict[str, pl.DataFrame]:
        devices = self.home.devices
        if len(devices) == 1:
            return dict(self.tables)
        found = of_device(self.tables, device, devices, self.home.main)
        return {name: table for name, table in found.items() if table is not None}

    def _rank(self, device: int | None) -> tuple[int | None, str, int | None]:
        """The rank of this process, where it was read, and the size of its world, as far as the export
        tells."""
        if len(self.home.devices) == 1 and self.home.process in self.machine.mpi_ranks:
            return self.machine.mpi_ranks[self.home.process], "MPI_RANKS", None
        # The largest communicator is the job's, as far as this process knows.
        joined = self._joined(device).filter(pl.col("size") == pl.col("size").max())
        ranks = joined["rank"].unique()
        if ranks.len() == 1:
            return ranks[0], COMMUNICATOR, joined["size"][0]
        return None, ONE_PER_DEVICE if len(self.home.devices) > 1 else "device order", None

    def _joined(self, device: int | None) -> pl.DataFrame:
        """The communicators that a device of this process is in."""
        alone = len(self.home.devices) == 1
        return self.communicators if alone else self.communicators.filter(pl.col("device") == device)

    def _absent(self, written: set[str]) -> dict[str, str]:
        told = self.machine.told
        missing = "not in this export" + (", which is a part of a recording" if told.limited else "")
        why = {
            name: WHY_ABSENT.get(name, missing) for name in TABLES if name not in written and name != "ranks"
        }
        if not self.machine.accountable:
            why["kernels"] = why["steps"] = "much GPU work in this export names no process"
        if "allocations" in why and told.off("COLLECT_GPU_MEMORY_USAGE"):
            why["allocations"] = "device memory use was not recorded"
        if (
            "page_faults" in why
            and told.off("COLLECT_UVM_CPU_PAGE_FAULTS")
            and told.off("COLLECT_UVM_GPU_PAGE_FAULTS")
        ):
            why["page_faults"] = "page faults were not recorded"
        if "counters" in why and self.machine.export.has("GPU_METRICS"):
            why["counters"] = "GPU metrics are in this export, but not which rank's GPU they belong to"
        return why

    def _note(self, name: str, count: int, text: str, level: str = "note", of: int | None = None) -> None:
        if count:
            self.quality.append(Quality(None, name, count, text, level, of))

    def _note_launches(self, kernels: pl.DataFrame) -> None:
        lost = kernels["launch_start"].null_count()
        self._note(
            "kernels without their launch",
            lost,
            "launched before the recording, or by calls that were not recorded",
            "warning" if lost > MANY_LOST * kernels.height else "note",
            kernels.height,
        )
        early = kernels.filter(pl.col("start") < pl.col("launch_start"))
        if early.height:
            furthest = int((early["launch_start"] - early["start"]).max())  # pyright: ignore[reportArgumentType]
            self._note(
                "kernels that start before their launch",
                early.height,
                f"by up to {furthest:,} ns: the clocks of host and GPU agree no better",
                "warning",
            )

    def _note_shared_ids(self, launches: pl.DataFrame) -> None:
        ids = launches["correlation"].drop_nulls()
        self._note(
            "launches that share a correlation id",
            ids.len() - ids.n_unique(),
            "GPU work counts as launched by the last of them that began before it",
            "warning",
        )

    def _note_collectives(self, collectives: pl.DataFrame) -> None:
        self._note(
            "collectives without bytes",
            collectives.filter(pl.col("bytes_in").is_null() & pl.col("bytes_out").is_null()).height,
            "record with `-t nccl` and export with `--include-json=true`",
            of=collectives.height,
        )


def _with_phases(marks: Nvtx) -> tuple[pl.DataFrame, OperatorTree | None]:
    if marks.operators.is_empty():
        return marks.operators.drop("backward"), None
    tree = OperatorTree(marks.operators)
    tree.operators = marks.operators.with_columns(phase=phases(tree, marks.operators, marks.ranges)).drop(
        "backward"
    )
    return tree.operators, tree


def _of_work(collectives: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """The collectives whose kernel or copy is among the rank's `tables`."""
    starts = pl.concat([tables[name]["start"] for name in ("kernels", "copies")]).unique()
    return collectives.filter(pl.col("start").is_in(starts.implode()))


def _with_facts(kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with what their names say. A graph of unknown content is unclassified, whatever it is
    called."""
    names = kernels["name"].unique()
    facts = kernel_facts(names.cast(pl.String).to_list()).with_columns(pl.col("name").cast(NAME))
    is_graph = pl.col("name").cast(pl.String) == cuda.GRAPH
    return kernels.join(facts, on="name", how="left", maintain_order="left").with_columns(
        family=pl.when(is_graph).then(pl.lit("unclassified", dtype=FAMILY)).otherwise("family")
    )


def _extent(tables: dict[str, pl.DataFrame]) -> tuple[int, int]:
    """From the first to the last thing that the rank did, as far as calls, GPU work and ranges show it."""
    for names in (
        ("kernels", "copies", "launches", "operators", "ranges"),
        ("os_calls", "allocations", "page_faults"),
    ):
        seen = [tables[name] for name in names if tables[name].height]
        if seen:
            return min(int(t["start"].min()) for t in seen), max(int(t["end"].max()) for t in seen)  # pyright: ignore[reportArgumentType]
    return 0, 0


def _forget_repeated_ranks(parts: list[Part]) -> None:
    """Two ranks of one number are none: a communicator smaller than the job numbers its own members only."""
    known = [part.rank for part in parts if part.rank is not None]
    repeated = {rank for rank in known if known.count(rank) > 1}
    if repeated:
        for part in parts:
            part.rank, part.rank_source, part.world_size = None, "device order", None
