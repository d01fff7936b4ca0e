"""Open an Nsight Systems export in any of its forms, and read from it only what is on the allow-list.

An export also holds the whole environment of the profiled process, its command line, its output and its
paths. What is not named in `INTEGERS`, `TEXTS` or `KEYS` cannot be asked for here, so it cannot reach a
report.

Tables and columns are discovered at run time and bound by name: a table that is not there has no rows, a
column that is not there is null. Every integer comes as Int64; an unsigned id keeps its bit pattern.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import polars as pl

from lostflops import run_folder
from lostflops.errors import NotATrace, UnknownSchema
from lostflops.ingest.nsys import report
from lostflops.ingest.nsys.folder import TableFolder
from lostflops.ingest.nsys.sqlite import SqliteFile

KNOWN_MAJOR = "3"

_GPU_ROW = "start end deviceId contextId streamId correlationId globalPid"
INTEGERS = {
    "StringIds": "id",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_GPU_ROW} demangledName shortName mangledName registersPerThread "
    "gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _GPU_ROW,
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_GPU_ROW} bytes copyKind srcKind dstKind srcDeviceId dstDeviceId "
    "copyCount migrationCause",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU_ROW} bytes memKind",
    "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS": f"{_GPU_ROW} sourceBytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start end correlationId globalPid syncType deprecatedSyncType",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end globalTid overheadType",
    "CUPTI_ACTIVITY_KIND_JIT": "start end globalTid",
    "PROFILER_OVERHEAD": "start end globalTid overheadType",
    "NVTX_EVENTS": "start end eventType color globalTid textId domainId jsonTextId",
    "OSRT_API": "start end globalTid nameId nestingLevel",
    "SYSCALL": "start end globalTid nameId",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid threadState threadBlock",
    "COMPOSITE_EVENTS": "id start cpu globalTid cpuCycles",
    "SAMPLING_CALLCHAINS": "id stackDepth symbol module",
    "OSRT_FILE_ACCESS_EVENTS": "fileAccessId threadId startedAt endedAt eventType bytesProcessed",
    "CUDA_GRAPH_NODE_EVENTS": "start globalTid graphNodeId originalGraphNodeId",
    "MPI_P2P_EVENTS": "start end globalTid textId commUid remoteRank size",
    "MPI_COLLECTIVES_EVENTS": "start end globalTid textId commUid rootRank size recvSize",
    "MPI_START_WAIT_EVENTS": "start end globalTid textId",
    "MPI_OTHER_EVENTS": "start end globalTid textId",
    "UCP_SUBMIT_EVENTS": "start end globalTid textId packedSize",
    "UCP_PROGRESS_EVENTS": "start end globalTid textId packedSize",
    "UCP_EVENTS": "start end globalTid textId",
    **dict.fromkeys(
        (
            "CUBLAS_EVENTS",
            "CUDNN_EVENTS",
            *(f"OPENMP_EVENT_KIND_{kind}" for kind in ("PARALLEL", "TASK_SCHEDULE", "WORKSHARE")),
            *(f"OPENMP_EVENT_KIND_SYNC_REGION{wait}" for wait in ("", "_WAIT")),
            *(f"CUPTI_ACTIVITY_KIND_OPENACC_{kind}" for kind in ("DATA", "LAUNCH", "OTHER")),
            *(f"NVVIDEO_{kind}_API" for kind in ("ENCODER", "DECODER", "JPEG")),
        ),
        "start end globalTid nameId",
    ),
    **dict.fromkeys(
        ("NET_NIC_METRIC", "NET_IB_SWITCH_METRIC", "NET_ETH_SWITCH_METRIC"),
        "start end globalId portId metricsListId metricsIdx value",
    ),
    "TARGET_INFO_NETWORK_METRICS": "metricsListId metricsIdx",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId metricId",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId address bytes memKind memoryOperationType",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "start globalPid address",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start end globalPid deviceId address numberOfPageFaults "
    "faultAccessType",
    "MPI_RANKS": "globalTid rank",
    "ThreadNames": "globalTid nameId",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid numMultiprocessors",
    "TARGET_INFO_GPU": "id totalMemory smCount",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "ANALYSIS_DETAILS": "duration",
    "DIAGNOSTIC_EVENT": "severity",
    "ENUM_CUDA_MEMCPY_OPER": "id",
    "ENUM_CUDA_MEM_KIND": "id",
    "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE": "id",
    "ENUM_CUPTI_SYNC_TYPE": "id",
    "ENUM_CUDA_UNIF_MEM_MIGRATION": "id",
    "ENUM_SAMPLING_THREAD_STATE": "id",
    "ENUM_SCHEDULING_THREAD_BLOCK": "id",
    "ENUM_OSRT_FILE_ACCESS_EVENT_TYPE": "id",
}
TEXTS = {
    "StringIds": "value",
    "NVTX_EVENTS": "text jsonText",
    "TARGET_INFO_GPU_METRICS": "metricName",
    "TARGET_INFO_NETWORK_METRICS": "name unit",
    "TARGET_INFO_GPU": "name",
    "ENUM_CUDA_MEMCPY_OPER": "name",
    "ENUM_CUDA_MEM_KIND": "name",
    "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE": "name",
    "ENUM_CUPTI_SYNC_TYPE": "name",
    "ENUM_CUDA_UNIF_MEM_MIGRATION": "name",
    "ENUM_SAMPLING_THREAD_STATE": "name",
    "ENUM_SCHEDULING_THREAD_BLOCK": "name",
    "ENUM_OSRT_FILE_ACCESS_EVENT_TYPE": "name",
}
# These tables hold names and values, the environment among them: only values of these names are read.
KEYS = {
    "META_DATA_EXPORT": (
        "EXPORT_PRODUCT_VERSION",
        "EXPORT_SCHEMA_VERSION",
        "EXPORT_PARAM_TIME_NORMALIZE",
        "EXPORT_PARAM_TIME_SHIFT",
        "EXPORT_CONFIG_TIME_SHIFT",
        "EXPORT_PARAM_TIMES_TO_EXPORT",
        "EXPORT_PARAM_TABLES_TO_EXPORT",
        "DERIVED_WINDOW_NS",
    ),
    "META_DATA_CAPTURE": (
        "CAPTURE_EVENT_TYPE",
        "COLLECT_GPU_MEMORY_USAGE",
        "COLLECT_UVM_CPU_PAGE_FAULTS",
        "COLLECT_UVM_GPU_PAGE_FAULTS",
        "CUDA_SKIP_SOME_API_CALLS",
        "PROFILING_SESSION_UUID",
        run_folder.SIMULATED_EXPORT,
    ),
    "TARGET_INFO_SYSTEM_ENV": ("CudaDriverVersion", "NvDriverVersion", "Hostname"),
}

READ = frozenset((*INTEGERS, *KEYS))

# The lowest 24 bits of a global thread id are the thread, the others the process.
THREAD_BITS = 0xFFFFFF


def thread_of(column: str) -> pl.Expr:
    return pl.col(column) & pl.lit(THREAD_BITS, dtype=pl.Int64)


def process_of(column: str) -> pl.Expr:
    return pl.col(column) & pl.lit(~THREAD_BITS, dtype=pl.Int64)


class TableSource(Protocol):
    """Where an export's tables lie. `Export` alone calls it, with names that are on the allow-list."""

    # Of each table; of one that is not on the allow-list it may name none.
    columns: dict[str, frozenset[str]]

    def read(
        self,
        table: str,
        integers: Sequence[str],
        texts: Sequence[str],
        within: tuple[str, int, int, bool] | None,
    ) -> pl.DataFrame:
        """Those columns, all of which exist. `within` keeps the rows whose column lies between two values,
        and,
        with True, the rows where it is null."""
        ...

    def values(self, table: str, keys: Sequence[str]) -> pl.DataFrame:
        """`name` and `value` of the rows whose name is one of `keys`."""
        ...

    def counts(self, table: str, by: Sequence[str]) -> pl.DataFrame:
        """How many `rows` there are of each combination of `by`, and how long in all (`busy`, ns as a
        float) and at most (`longest`)."""
        ...

    def close(self) -> None: ...


class Export:
    """One export, open for reading."""

    def __init__(self, path: Path, source: TableSource) -> None:
        self.path = path
        self._source = source
        self._strings: pl.DataFrame | None = None
        self.version = _schema_version(path, source, self.values("META_DATA_EXPORT"))

    def has(self, table: str) -> bool:
        return table in self._source.columns

    def read(
        self,
        table: str,
        *,
        only: Iterable[str] | None = None,
        process: int | None = None,
        orphans: bool = False,
    ) -> pl.DataFrame:
        """The allowed columns of a table, or only some of them; those the export lacks are null.

        `process` keeps the rows of one process; `orphans` adds those that name none.
        """
        wanted = None if only is None else frozenset(only)
        present = self._source.columns.get(table, frozenset[str]())
        integers = [c for c in INTEGERS[table].split() if wanted is None or c in wanted]
        texts = [c for c in TEXTS.get(table, "").split() if wanted is None or c in wanted]
        schema: dict[str, pl.DataType] = {
            **dict.fromkeys(integers, pl.Int64()),
            **dict.fromkeys(texts, pl.String()),
        }
        if not present & schema.keys():
            return pl.DataFrame(schema=schema)
        within: tuple[str, int, int, bool] | None = None
        if process is not None:
            if "globalPid" in present:
                within = ("globalPid", process, process, orphans)
            elif "globalTid" in present:
                within = ("globalTid", process, process + THREAD_BITS, orphans)
            elif not orphans:
                return pl.DataFrame(schema=schema)
        found = self._source.read(
            table, [c for c in integers if c in present], [c for c in texts if c in present], within
        )
        return found.select(
            pl.col(name).cast(dtype) if name in found.columns else pl.lit(None, dtype=dtype).alias(name)
            for name, dtype in schema.items()
        )

    def values(self, table: str) -> dict[str, list[str]]:
        """The allowed keys of a table of names and values; a key may occur several times."""
        if not {"name", "value"} <= self._source.columns.get(table, frozenset[str]()):
            return {}
        found: dict[str, list[str]] = {}
        for name, value in self._source.values(table, KEYS[table]).rows():
            found.setdefault(name, []).append(value)
        return found

    def census(self, table: str) -> pl.DataFrame:
        """How many `rows` of a table each `process` and `device` has, `busy`, their duration in all, and
        `longest`, that of the longest one, ns.

        Process and device are null where the table does not say.
        """
        whole, part = pl.Int64(), pl.Float64()
        schema = {"process": whole, "device": whole, "rows": whole, "busy": part, "longest": part}
        if not self.has(table):
            return pl.DataFrame(schema=schema)
        present = self._source.columns[table] & set(INTEGERS[table].split())
        owner = next((c for c in ("globalPid", "globalTid") if c in present), None)
        by = [c for c in (owner, "deviceId") if c is not None and c in present]
        nothing = pl.lit(None, dtype=pl.Int64)
        return (
            self._source.counts(table, by)
            .select(
                pl.col("rows").cast(pl.Int64),
                pl.col("busy", "longest").cast(pl.Float64),
                process=process_of(owner) if owner else nothing,
                device=pl.col("deviceId") if "deviceId" in by else nothing,
            )
            .group_by("process", "device")
            .agg(pl.col("rows", "busy").sum(), pl.col("longest").max())
            .filter(pl.col("rows") > 0)
            .select(list(schema))
        )

    def named(self, frame: pl.DataFrame, column: str, name: str) -> pl.DataFrame:
        """`frame` with a column `name`: the string that the id in `column` stands for."""
        if self._strings is None:
            self._strings = (
                self.read("StringIds").filter(pl.col("id").is_not_null()).unique("id", keep="first")
            )
        strings = self._strings.rename({"id": column, "value": name})
        return frame.join(strings, on=column, how="left", maintain_order="left")

    def enum(self, table: str, documented: dict[int, str]) -> dict[int, str]:
        """The names of an enumeration: the export's own where it has them, else the documented ones."""
        own = self.read(table).drop_nulls()
        return {**documented, **dict(own.select("id", "name").rows())}


@contextmanager
def opened(path: Path, scratch: Path) -> Generator[Export]:
    """The export at `path`; a report is exported first, into `scratch`.

    Raises NotATrace, Truncated, Unreadable or UnknownSchema where it cannot be read.
    """
    if path.name.endswith(report.SUFFIXES):
        with report.as_database(path, scratch) as database, opened(database, scratch) as export:
            export.path = path
            yield export
        return
    source: TableSource = TableFolder(path, READ) if path.is_dir() else SqliteFile(path, READ)
    try:
        yield Export(path, source)
    finally:
        source.close()


def _schema_version(path: Path, source: TableSource, stated: dict[str, list[str]]) -> str | None:
    """The version of the export's layout, None where an old export does not state it."""
    if not any(
        t in source.columns for t in ("StringIds", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME")
    ):
        why = "none of its tables is an Nsight Systems table." if source.columns else "it has no tables."
        raise NotATrace(path, why, "export the report with `nsys export --type sqlite …`.")
    version = next(iter(stated.get("EXPORT_SCHEMA_VERSION", [])), None)
    if version is not None and version.split(".")[0] != KNOWN_MAJOR:
        raise UnknownSchema(path, version, f"{KNOWN_MAJOR}.x")
    return version
