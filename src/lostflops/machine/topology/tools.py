"""How the devices of a machine are linked, asked of its tools or read from what they printed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from lostflops import run_folder
from lostflops.errors import (
    BadOption,
    CannotWrite,
    LostflopsError,
    NothingThere,
    OutputExists,
    Unreadable,
    shown,
)
from lostflops.machine.topology import sysfs as topology_sysfs
from lostflops.machine.topology import texts
from lostflops.machine.topology.texts import Reader, Row, ToolOutput
from lostflops.tables import TOPOLOGY_DEVICES, TOPOLOGY_LINKS
from lostflops.units import written_spans
from lostflops.version import __version__

PATIENCE = 30  # seconds; a driver in trouble lets its tools hang
LONGEST = 16 << 20  # bytes of one tool's output


@dataclass(frozen=True)
class Tool:
    """A tool, the file in which its output is kept for `--from`, and its reader."""

    file: str
    command: Sequence[str]
    read: Reader


# In the order in which they are believed where two tell of one device; sysfs comes before all.
TOOLS = (
    Tool(
        "nvidia-smi-gpus.csv",
        (
            "nvidia-smi",
            f"--query-gpu={','.join(texts.NVIDIA_GPUS)}",
            "--format=csv,noheader,nounits",
        ),
        texts.nvidia_gpus,
    ),
    Tool("nvidia-smi-topo-m.txt", ("nvidia-smi", "topo", "-m"), texts.nvidia_paths),
    *(
        Tool(
            f"nvidia-smi-topo-p2p-{letter}.txt",
            ("nvidia-smi", "topo", "-p2p", letter),
            texts.nvidia_peers(letter),
        )
        for letter in texts.MATRICES
    ),
    Tool("nvidia-smi-nvlink-s.txt", ("nvidia-smi", "nvlink", "-s"), texts.nvidia_nvlinks),
    Tool("rocm-smi-showtopo.txt", ("rocm-smi", "--showtopo"), texts.rocm_paths),
    Tool("ibstat.txt", ("ibstat",), texts.ibstat),
    Tool("ibdev2netdev.txt", ("ibdev2netdev",), texts.ibdev2netdev),
    Tool("lstopo.xml", ("lstopo-no-graphics", "--of", "xml"), texts.lstopo),
    Tool("numactl-hardware.txt", ("numactl", "--hardware"), texts.numactl),
)
# What is not known without a tool.
TELLS = {
    "nvidia-smi": "NVIDIA GPUs, their links and P2P are not shown",
    "rocm-smi": "AMD GPUs and their links are not shown",
    "ibstat": "InfiniBand ports are read from sysfs only",
    "ibdev2netdev": "network interfaces of ports are read from sysfs only",
    "lstopo-no-graphics": "memory nodes of devices are read from sysfs only",
    "numactl": "memory nodes are read from sysfs only",
}


@dataclass(frozen=True)
class Topology:
    """The machine's devices and links; who could not be asked, and what could not be understood."""

    devices: pl.DataFrame
    links: pl.DataFrame
    absent: Mapping[str, str] = field(default_factory=dict[str, str])
    remarks: Sequence[str] = ()


def here(sysfs: Path = Path("/sys")) -> Topology:
    """This machine's."""
    absent: dict[str, str] = {}
    asked: list[tuple[str, ToolOutput]] = [("sysfs", topology_sysfs.read(sysfs))]
    for tool in TOOLS:
        program = tool.command[0]
        if program in absent:
            continue
        if shutil.which(program) is None:
            absent[program] = f"not on the PATH; {TELLS[program]}"
            continue
        text, trouble = _ask(tool.command)
        if trouble:
            asked.append((" ".join(tool.command[:4]), ToolOutput(remarks=[trouble])))
        else:
            asked.append((tool.file, tool.read(text)))
    for maker, many in topology_sysfs.gpus(sysfs).items():
        if {"NVIDIA": "nvidia-smi", "AMD": "rocm-smi"}[maker] in absent:
            tool = {"NVIDIA": "nvidia-smi", "AMD": "rocm-smi"}[maker]
            said = f"{many} {maker} GPU{'s' * (many != 1)} on the PCI bus, but {tool} is not on the PATH"
            asked.append(("sysfs", ToolOutput(remarks=[said])))
    bound = _this_process()
    if bound is not None:
        asked.append(("this process", ToolOutput(devices=[bound])))
    return _merged(asked, absent)


def recorded(folder: Path) -> Topology:
    """Another machine's, from what its tools printed into files of the documented names.

    Raises NothingThere, Unreadable, or an error when there is none of these files.
    """
    if not folder.is_dir():
        raise NothingThere(folder)
    asked: list[tuple[str, ToolOutput]] = []
    if (folder / "sys").is_dir():
        asked.append(("sys", topology_sysfs.read(folder / "sys")))
    for tool in TOOLS:
        file = folder / tool.file
        if not file.exists():
            continue
        try:
            with file.open("rb") as content:
                text = content.read(LONGEST).decode(errors="replace")
        except OSError as error:
            raise Unreadable(file, error) from error
        asked.append((tool.file, tool.read(text)))
    if not asked:
        raise LostflopsError(
            f"'{shown(folder)}' holds no output of a tool that lostflops reads.",
            "it looks for " + ", ".join(["sys/", *(tool.file for tool in TOOLS)]) + ".",
        )
    read = {name for name, _ in asked}
    absent = {tool.file: "not in the folder" for tool in TOOLS if tool.file not in read}
    return _merged(asked, absent)


def _ask(command: Sequence[str]) -> tuple[str, str]:
    """What a tool prints, or why it does not."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return "", f"did not answer within {PATIENCE} s"
    except OSError as error:
        return "", f"could not be started: {error.strerror}"
    text = done.stdout[:LONGEST].decode(errors="replace")
    if done.returncode:
        said = (done.stderr.decode(errors="replace") or text).strip().splitlines()
        return "", f"ended with status {done.returncode}" + (f": {said[0][:200]}" if said else "")
    return text, ""


def _this_process() -> Row | None:
    """Where a rank of a job may run and which GPU it has, when this process is placed as one."""
    rank, local = os.environ.get("RANK", ""), _local_rank()
    if local is None:
        return None
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = seen[0] if len(seen) == 1 else seen[local] if local < len(seen) else ""
    return {
        "kind": "process",
        "name": f"rank {rank}" if rank.isdecimal() else f"local rank {local}",
        "port": int(number) if number.isdecimal() else None if number else local,
        "cpus": written_spans(sorted(os.sched_getaffinity(0))),
        "tool": "this process",
    }


def place(run: Path) -> Path:
    """The recording that something is to be kept in. Raises OutputExists or BadOption for other things."""
    if (run / run_folder.MANIFEST).is_file():
        raise BadOption(
            f"'{shown(run)}' is an imported run: nothing can be added to it.",
            "give the folder of the recording, and import that again.",
        )
    if run.exists() and not run.is_dir():
        raise OutputExists(run)
    return run


def file_name() -> str:
    """One file per node, or per rank where a launcher starts this: each rank tells its own placement."""
    return run_folder.topology(_local_rank())


def _local_rank() -> int | None:
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "")
    return int(local) if local.isdecimal() else None


def node(run: Path) -> str:
    """The folder of this machine in a run: its index in the job, or a hash where nobody numbers it."""
    for name in ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"):
        number = os.environ.get(name, "")
        if number.isdecimal():
            return run_folder.node(int(number))
    there = sorted(run.glob(f"{run_folder.NODES}/"))
    if len(there) == 1:  # the one machine of the job, whatever its launcher called it
        return there[0].name
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return run_folder.node_of(boot + platform.node())


def _merged(asked: Sequence[tuple[str, ToolOutput]], absent: Mapping[str, str]) -> Topology:
    """One row per device: of each fact, what the first tool says that knows it."""
    rows = [{"rank": 0, **row} for _, found in asked for row in found.devices]
    devices = (
        pl.DataFrame(rows, schema=TOPOLOGY_DEVICES.schema, strict=False)
        .group_by("kind", "name", "port", maintain_order=True)
        .agg(pl.all().drop_nulls().first())
        .select(list(TOPOLOGY_DEVICES.schema))
    )
    rows = [{"rank": 0, **row} for _, found in asked for row in found.links]
    links = pl.DataFrame(rows, schema=TOPOLOGY_LINKS.schema, strict=False).unique(
        ["matrix", "device", "peer"], keep="first", maintain_order=True
    )
    remarks = [f"{name}: {remark}" for name, found in asked for remark in found.remarks]
    return Topology(devices, links, absent, remarks)


def document(topology: Topology, node: str) -> dict[str, Any]:
    """What is kept in a run, as one JSON object. Names no machine and no hardware id."""
    return {
        "kind": "topology",
        "format": 1,
        "lostflops": __version__,
        "measured_at": time.time_ns(),
        "node": node,
        "absent": dict(topology.absent),
        "remarks": list(topology.remarks),
        "topology_devices": said(topology.devices),
        "topology_links": said(topology.links),
    }


def said(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows without what is unknown."""
    return [{k: v for k, v in row.items() if v is not None} for row in frame.iter_rows(named=True)]


def keep(content: Mapping[str, Any], file: Path) -> None:
    """Write a document whole, as one line. Raises CannotWrite."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise CannotWrite(file, error) from error
    finally:
        beside.unlink(missing_ok=True)
