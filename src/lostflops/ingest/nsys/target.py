"""What an Nsight Systems export says of itself: tools, clock, host, devices, and what was recorded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import polars as pl

from lostflops import run_folder
from lostflops.errors import shown
from lostflops.ingest.nsys.export import Export, process_of
from lostflops.store.trace import MADE_UP, SIMULATED, Quality

_VERSION = re.compile(r"\d+(?:\.\d+)*")
_UUID = re.compile(r"[0-9a-fA-F-]{8,64}")


@dataclass(frozen=True)
class NsysRecording:
    """The facts that hold for every process of one export.

    `epoch_ns` added to a time of this export makes it comparable with other exports; None where it is
    unknown.
    """

    versions: str
    epoch_ns: int | None
    host: str | None
    session: str | None
    duration: int | None
    captured: dict[str, list[str]]
    limited: bool  # the user exported only some tables, or a window
    quality: tuple[Quality, ...]

    def off(self, key: str) -> bool:
        """True only where the capture's settings say that this was not recorded."""
        values = self.captured.get(key, [])
        return bool(values) and all(v.lower() in ("false", "0", "off") for v in values)


def recording(export: Export) -> NsysRecording:
    stated = export.values("META_DATA_EXPORT")
    captured = export.values("META_DATA_CAPTURE")
    system = export.values("TARGET_INFO_SYSTEM_ENV")
    quality: list[Quality] = []
    epoch = _epoch(export, stated, quality)
    window = any(
        v not in ("", "0")
        for k in ("EXPORT_PARAM_TIMES_TO_EXPORT", "DERIVED_WINDOW_NS")
        for v in stated.get(k, [])
    )
    tables = any(stated.get("EXPORT_PARAM_TABLES_TO_EXPORT", []))
    if window:
        quality.append(
            Quality(
                None,
                "window cut from a longer recording",
                1,
                "some GPU work has no call, and some calls no GPU work",
            )
        )
    if run_folder.SIMULATED_EXPORT in captured:
        quality.append(Quality(None, SIMULATED, 1, MADE_UP))
    if tables:
        quality.append(
            Quality(None, "tables left out", 1, "only some tables were exported (`--tables`)", "warning")
        )
    quality += _diagnostics(export)
    hostname = next(iter(system.get("Hostname", [])), "")
    session = next((v for v in captured.get("PROFILING_SESSION_UUID", []) if _UUID.fullmatch(v)), None)
    duration = export.read("ANALYSIS_DETAILS")["duration"].max()
    return NsysRecording(
        versions=_versions(stated, system, export.version),
        epoch_ns=epoch,
        host=sha256(hostname.encode()).hexdigest() if hostname else None,
        session=session.lower() if session else None,
        duration=duration if isinstance(duration, int) and 0 <= duration < 2**62 else None,
        captured=captured,
        limited=window or tables,
        quality=tuple(quality),
    )


def _versions(stated: dict[str, list[str]], system: dict[str, list[str]], schema: str | None) -> str:
    product = _version(*stated.get("EXPORT_PRODUCT_VERSION", []))
    cuda, driver = (
        _version(*system.get("CudaDriverVersion", [])),
        _version(*system.get("NvDriverVersion", [])),
    )
    layout = _version(schema or "")
    parts = [f"Nsight Systems {product}" if product else "Nsight Systems, version not stated"]
    parts += [f"export schema {layout}"] if layout else []
    # 13000 is CUDA 13.0.
    parts += [f"CUDA driver API {int(cuda) // 1000}.{int(cuda) % 1000 // 10}"] if cuda.isdigit() else []
    parts += [f"driver {driver}"] if driver else []
    return ", ".join(parts)


def _version(*texts: str) -> str:
    """The first text as far as it looks like a version."""
    found = _VERSION.match(texts[0][:40]) if texts else None
    return found[0] if found else ""


def _epoch(export: Export, stated: dict[str, list[str]], quality: list[Quality]) -> int | None:
    """What turns this export's times into nanoseconds since 1970, with the exporter's own shift taken out."""
    shifts = {
        int(value)
        for key in ("EXPORT_PARAM_TIME_SHIFT", "EXPORT_CONFIG_TIME_SHIFT")
        for value in stated.get(key, [])
        if re.fullmatch(r"-?\d{1,18}", value) and int(value) != 0
    }
    if len(shifts) > 1:
        quality.append(
            Quality(
                None,
                "two time shifts",
                2,
                "which one is right is not known: times cannot be compared with other exports",
                "warning",
            )
        )
        return None
    shift = next(iter(shifts), 0)
    if any(v.lower() in ("true", "1") for v in stated.get("EXPORT_PARAM_TIME_NORMALIZE", [])):
        return -shift
    epoch = export.read("TARGET_INFO_SESSION_START_TIME")["utcEpochNs"].drop_nulls()
    return int(epoch[0]) - shift if epoch.len() and abs(int(epoch[0])) < 2**61 else None


def _diagnostics(export: Export) -> list[Quality]:
    """nsys's own warnings, counted: their text may hold paths, so it is not repeated."""
    severity = export.read("DIAGNOSTIC_EVENT")["severity"]
    found: list[Quality] = []
    for level, what in ((2, "warning"), (3, "error")):
        count = int((severity == level).sum())
        if count:
            found.append(
                Quality(
                    None,
                    f"nsys {what}s",
                    count,
                    "reported while recording: lost events would show in the report's diagnostics",
                    "warning",
                )
            )
    return found


@dataclass(frozen=True)
class TargetGpu:
    """What is known of the GPU behind one CUDA ordinal of one process; None for what is not."""

    gpu_id: int | None = None
    name: str | None = None
    num_sms: int | None = None
    memory_bytes: int | None = None
    is_slice: bool = False  # of it (MIG): what others run on the rest is not here

    def facts(self) -> dict[str, Any]:
        gpu = None if self.name is None else shown(self.name)
        return {"gpu": gpu, "num_sms": self.num_sms, "memory_bytes": self.memory_bytes}


class Devices:
    """GPUs by process and CUDA ordinal: the ordinal is the process's own count, not the machine's."""

    def __init__(self, export: Export) -> None:
        self._by_process = export.read("TARGET_INFO_CUDA_DEVICE")
        self._gpus = export.read("TARGET_INFO_GPU")

    def of(self, process: int, ordinal: int | None) -> TargetGpu:
        seen = self._by_process.filter(
            pl.col("cudaId").eq_missing(ordinal), pl.col("pid") == (process >> 24) & 0xFFFFFF
        )
        gpu_id = _only(seen["gpuId"])
        # Without the mapping, what all GPUs of the machine have in common still holds for this one.
        gpus = self._gpus if gpu_id is None else self._gpus.filter(pl.col("id") == gpu_id)
        sms, of_gpu = _only(seen["numMultiprocessors"]), _only(gpus["smCount"])
        name, memory = _only(gpus["name"]), _only(gpus["totalMemory"])
        is_slice = sms is not None and of_gpu is not None and sms < of_gpu
        if is_slice:  # has less of all
            name, memory = name and f"{name}, {sms} of {of_gpu} SMs", None
        return TargetGpu(gpu_id, name, of_gpu if sms is None else sms, memory, is_slice)


def _only(values: pl.Series) -> Any:
    distinct = values.drop_nulls().unique()
    return distinct[0] if distinct.len() == 1 else None


def mpi_ranks(export: Export) -> dict[int, int]:
    """The MPI rank of each process that has exactly one."""
    rows = (
        export.read("MPI_RANKS")
        .drop_nulls()
        .filter(pl.col("rank").is_between(0, 2**31 - 1))
        .group_by(process=process_of("globalTid"))
        .agg(pl.col("rank").unique())
        .filter(pl.col("rank").list.len() == 1)
    )
    return dict(rows.select("process", pl.col("rank").list.first()).rows())
