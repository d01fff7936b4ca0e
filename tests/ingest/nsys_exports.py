"""Build small Nsight Systems exports by hand: the tables as NVIDIA documents them, with the rows a test
needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

_GPU_ROW = "deviceId contextId greenContextId streamId correlationId globalPid"
# Every column is an INTEGER but those marked with * (TEXT). 'name>=minor' and 'name<minor' bound the schema
# version.
DEFINITIONS = {
    "StringIds": "id value*",
    "META_DATA_EXPORT": "name* value*",
    "META_DATA_CAPTURE": "name* value*",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName* name* nameEnum value*",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime* localTime* systemClockNs>=24",
    "TARGET_INFO_GPU": "vmId id name* busLocation* totalMemory smCount uuid* chipName* cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid* numMultiprocessors",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "ANALYSIS_FILE": "id filename* contentId globalPid",
    "ProcessStreams": "globalPid filenameId contentId",
    "PROCESSES": "globalPid pid name*",
    "ThreadNames": "nameId priority globalTid",
    "MPI_RANKS": "globalTid rank",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text* globalPid",
    "ENUM_CUDA_MEMCPY_OPER": "id name* label*",
    "ENUM_CUDA_MEM_KIND": "id name* label*",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"start end {_GPU_ROW} demangledName shortName mangledName launchType "
    "cacheConfig "
    "registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory gridId "
    "graphNodeId graphId>=7 tensorSizeMinusOneElements*>=25",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"start end {_GPU_ROW} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"start end {_GPU_ROW} bytes copyKind srcKind dstKind srcDeviceId "
    "dstDeviceId "
    "migrationCause graphNodeId virtualAddress copyCount>=20",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"start end {_GPU_ROW} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue "
    "callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"start end {_GPU_ROW} syncType eventId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "CUPTI_ACTIVITY_KIND_JIT": "start end eventClass globalTid overheadType cachePath*",
    "PROFILER_OVERHEAD": "start end globalTid nameId returnValue<24 overheadType>=24",
    "NVTX_EVENTS": "start end eventType rangeId category color text* globalTid endGlobalTid textId domainId "
    "uint64Value int64Value jsonTextId jsonText* binaryData* eventId>=28",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx type name* description*",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "OSRT_CALLCHAINS": "id stackDepth symbol module",
    "OSRT_FILE_ACCESS_EVENTS": "fileAccessId threadId startedAt endedAt eventType apiCallId bytesProcessed "
    "context* filePath*",
    "SYSCALL": "start end eventClass globalTid nameId callchainId",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid threadState threadBlock",
    "COMPOSITE_EVENTS": "id start cpu threadState globalTid cpuCycles",
    "SAMPLING_CALLCHAINS": "id symbol module kernelMode unresolved originalIP stackDepth",
    "ENUM_SAMPLING_THREAD_STATE": "id name* label*",
    "ENUM_SCHEDULING_THREAD_BLOCK": "id name* label*",
    "ENUM_OSRT_FILE_ACCESS_EVENT_TYPE": "id name* label*",
    "MPI_P2P_EVENTS": "start end globalTid textId commHandle commUid tag remoteRank size requestHandle",
    "MPI_COLLECTIVES_EVENTS": "start end globalTid textId commHandle commUid rootRank size recvSize "
    "requestHandle",
    "CUBLAS_EVENTS": "start end eventClass globalTid nameId",
    "NET_NIC_METRIC": "start end globalId portId metricsListId metricsIdx value",
    "NET_IB_SWITCH_METRIC": "start end globalId portId metricsListId metricsIdx value",
    "NET_ETH_SWITCH_METRIC": "start end globalId portId metricsListId metricsIdx value",
    "TARGET_INFO_NETWORK_METRICS": "metricsListId metricsIdx name* description* unit*",
    "CUDA_GRAPH_NODE_EVENTS": "start end eventClass globalTid nameId graphNodeId originalGraphNodeId",
    "GPU_METRICS": "rawTimestamp timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName* metricId metricName*",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId contextId address pc bytes memKind "
    "memoryOperationType name*",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "start globalPid address CpuInstruction module sourceFile",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start end globalPid deviceId address numberOfPageFaults "
    "faultAccessType",
}


def process(pid: int, hardware: int = 0) -> int:
    """A globalPid: hardware id, virtual machine 1, process id, no thread; signed as SQLite keeps it."""
    bits = hardware << 56 | 1 << 48 | pid << 24
    return bits - 2**64 if bits >= 2**63 else bits


def columns(table: str, minor: int) -> dict[str, str]:
    """The columns of a table in schema 3.<minor>, with their SQLite types."""
    found: dict[str, str] = {}
    for word in DEFINITIONS[table].split():
        name, _, since = word.partition(">=")
        name, _, until = name.partition("<")
        if (since and minor < int(since)) or (until and minor >= int(until)):
            continue
        found[name.rstrip("*")] = "TEXT" if name.endswith("*") else "INTEGER"
    return found


def kernel(start: int, end: int, **more: Any) -> dict[str, Any]:
    """A kernel row of process 7, device 0, stream 7, called 'gemm' unless `more` says otherwise."""
    return {
        "start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process(7),
        "demangledName": 10, "gridX": 2, "gridY": 3, "gridZ": 5, "blockX": 32, "blockY": 4, "blockZ": 1,
        "registersPerThread": 40, "staticSharedMemory": 100, "dynamicSharedMemory": 24, **more,
    }  # fmt: skip


def copy(start: int, end: int, **more: Any) -> dict[str, Any]:
    """A copy row of process 7, device 0, stream 7: 64 bytes from pinned memory to the device."""
    return {
        "start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process(7),
        "bytes": 64, "copyKind": 1, "srcKind": 1, "dstKind": 2, "copyCount": 1, **more,
    }  # fmt: skip


def call(start: int, end: int, **more: Any) -> dict[str, Any]:
    """A runtime call of process 7, thread 8: cudaLaunchKernel."""
    return {
        "start": start,
        "end": end,
        "globalTid": process(7) | 8,
        "nameId": 20,
        "eventClass": 0,
        "returnValue": 0,
        **more,
    }


def push(start: int, end: int | None, text: str | None = None, **more: Any) -> dict[str, Any]:
    """A push/pop range of process 7, thread 8, in the default domain."""
    return {
        "start": start, "end": end, "eventType": 59, "text": text, "globalTid": process(7) | 8, "domainId": 0,
        **more,
    }  # fmt: skip


STRINGS = {
    10: "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    11: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    12: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    20: "cudaLaunchKernel_v7000",
    21: "cudaMemcpyAsync_v3020",
    22: "cudaStreamSynchronize_v3020",
}


def complete(
    tables: Tables, minor: int = 25, schema: str | None = None, **export: str
) -> dict[str, list[Row]]:
    """`tables` with the strings above and what every export says of itself."""
    full = {name: list(rows) for name, rows in tables.items()}
    own = {row["id"] for row in full.get("StringIds", [])}
    full["StringIds"] = [
        *full.get("StringIds", []),
        *({"id": i, "value": v} for i, v in STRINGS.items() if i not in own),
    ]
    told = {
        "EXPORT_SCHEMA_VERSION": schema or f"3.{minor}.0",
        "EXPORT_PRODUCT_VERSION": "2026.2.1.210",
        **export,
    }
    full["META_DATA_EXPORT"] = [
        *full.get("META_DATA_EXPORT", []),
        *({"name": k, "value": v} for k, v in told.items()),
    ]
    return full


def sqlite(path: Path, tables: Tables, minor: int = 25, **more: Any) -> Path:
    """Write an export in schema 3.<minor>; a table that is not given does not exist, as nsys does it."""
    with sqlite3.connect(path) as database:
        for name, rows in complete(tables, minor, **more).items():
            types = columns(name, minor)
            listed = ", ".join(f'"{c}" {t}' for c, t in types.items())
            database.execute(f'CREATE TABLE "{name}" ({listed})')
            _insert(database, name, list(types), rows)
    database.close()
    return path


def _insert(database: sqlite3.Connection, name: str, names: list[str], rows: Iterable[Row]) -> None:
    marks = ", ".join("?" for _ in names)
    database.executemany(
        f'INSERT INTO "{name}" VALUES ({marks})', [[row.get(c) for c in names] for row in rows]
    )


def folder(path: Path, tables: Tables, minor: int = 25, *, arrow: str | None = None, **more: Any) -> Path:
    """Write an export as one Parquet file a table, or with `arrow` one Arrow 'file' or 'stream' a table."""
    path.mkdir()
    unsigned = {"globalPid", "globalTid"}
    for name, rows in complete(tables, minor, **more).items():
        types = columns(name, minor)
        schema: Any = {
            c: pl.UInt64 if c in unsigned else pl.Int64 if t == "INTEGER" else pl.String
            for c, t in types.items()
        }
        values = [{c: _unsigned(row.get(c)) if c in unsigned else row.get(c) for c in types} for row in rows]
        frame = pl.DataFrame(values, schema=schema)
        if arrow is None:
            frame.write_parquet(path / f"{name}.parquet")
        elif arrow == "file":
            frame.write_ipc(path / f"{name}.arrow")
        else:
            frame.write_ipc_stream(path / f"{name}.arrow")
    return path


def _unsigned(value: int | None) -> int | None:
    return None if value is None else value & (2**64 - 1)
