"""What a file says around its events: which process wrote it, its rank, groups, devices and versions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from lostflops import run_folder
from lostflops.errors import shown
from lostflops.ingest import processes
from lostflops.ingest.kineto.columns import integer, number, text_of
from lostflops.ingest.kineto.event_texts import UNDECODABLE
from lostflops.ingest.part import Process

VERSIONS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "rocprofiler-sdk_version",
)


class Header:
    """The fields of a file beside its events. One of a form that no profiler writes counts as absent."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path = path
        self.fields = fields
        base = fields.get("baseTimeNanoseconds")
        self.base = base if type(base) is int and 0 <= base < 2**61 else 0
        self.distributed = mapping(fields.get("distributedInfo"))
        self.world_size = number(self.distributed.get("world_size")) or None

    def rank(self, in_events: Collection[int]) -> tuple[int | None, str, str | None]:
        """The rank, where it was read, the content before the name, and what to note where they disagree.

        `in_events` are the ranks that the events name.
        """
        in_name = processes.rank_in_name(self.path.name)
        rank, source = in_name, "file name" if in_name is not None else "assigned"
        if (said := number(self.distributed.get("rank"))) is not None:
            rank, source = said, "distributedInfo"
        elif len(in_events) == 1:
            rank, source = next(iter(in_events)), "record_param_comms"
        elif processes.recorded(self.path, self.fields) is not None:
            rank, source = None, run_folder.ASSUMED  # the name's 0 is what a process without a launcher gets
            in_name = None
        if in_name is None or in_name == rank:
            return rank, source, None
        return rank, source, f"it says {in_name}, the file's content {rank}: the content counts"

    @property
    def is_profilers(self) -> bool:
        """Whether it has what the profiler writes around events, and other programs do not."""
        return not self.fields.keys().isdisjoint(("schemaVersion", "deviceProperties", "distributedInfo"))

    @property
    def simulated(self) -> bool:
        """Whether the job never ran."""
        return run_folder.SIMULATED in mapping(self.fields.get(run_folder.IN_TRACE))

    @property
    def replayed(self) -> str:
        """With which edits a replay gave its times, or nothing where they were measured."""
        return text_of(mapping(self.fields.get(run_folder.IN_TRACE)).get(run_folder.REPLAYED))

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = []
        for entry in items(self.distributed.get("pg_config")):
            group = mapping(entry)
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                try:
                    ranks = msgspec.json.decode(ranks)
                except UNDECODABLE:
                    ranks = None
            members = [r for r in items(ranks) if type(r) is int and 0 <= r < 2**31]
            groups.append(
                {
                    "name": text_of(group.get("pg_name")),
                    "description": text_of(group.get("pg_desc")),
                    "ranks": members,
                }
            )
        return groups

    @cached_property
    def devices(self) -> list[dict[str, Any]]:
        """All devices that the process could see; traces of early 2021 call the list otherwise."""
        listed = self.fields.get("deviceProperties") or self.fields.get("computeProperties")
        return [mapping(entry) for entry in items(listed)]

    def device_facts(self, device: int | None, gpu: bool) -> dict[str, Any]:
        known = self.devices
        chosen: dict[str, Any] = {}
        same = {text_of(p.get("name")) for p in known}
        for entry in known:
            if entry.get("id") == device:
                chosen = entry
        if not chosen and len(same) == 1:  # ROCm numbers devices otherwise than it lists them
            chosen = known[0]
        name = text_of(chosen.get("name")).strip()
        told = [
            f"{key.removesuffix('_version').replace('_', ' ')} {text_of(self.fields[key])[:40]}"
            for key in VERSIONS
            if key in self.fields
        ]
        versions = ", ".join([*told, *processes.packages(self.fields)])
        sms = chosen.get("numSms") or chosen.get("multiProcessorCount")
        return {
            "device": device,
            "device_kind": "gpu" if gpu else "cpu",
            "gpu": shown(name) if gpu and name else None,
            "num_sms": number(sms),
            "memory_bytes": integer(chosen.get("totalGlobalMem")),
            "backend": text_of(self.distributed.get("backend")) or None,
            "versions": versions or None,
            "frameworks": processes.frameworks(self.fields),
            "bf16_units": processes.bf16_units(self.fields),
            "source": "kineto",
        }

    @cached_property
    def host(self) -> str | None:
        host = self.fields.get("host_name")
        return hashlib.sha256(host.encode()).hexdigest() if isinstance(host, str) and host else None

    def absent(self, gpu: bool) -> dict[str, str]:
        never = "the PyTorch profiler does not record this"
        absent = {"os_calls": never, "page_faults": never, "counters": never}
        if not gpu:
            absent["copies"] = absent["launches"] = "no GPU work was recorded"
        if not self.fields.get("with_stack"):
            absent["frames"] = "Python stacks were not recorded"
        if not self.fields.get("profile_memory"):
            absent["allocations"] = "memory events were not recorded"
        return absent

    def process(self, device: int | None, steps: tuple[int, int] | None) -> Process:
        """The process that wrote the file; `steps` are the first and last that its profiler counted."""
        return Process(
            identity=processes.recorded(self.path, self.fields),
            number=processes.number(self.path),
            host=self.host,
            worker=processes.worker(self.path.name),
            device=device,
            steps=steps,
        )


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
