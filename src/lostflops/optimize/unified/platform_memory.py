"""Which kinds of memory GPU and CPU can share here: asked of CUDA itself, and said in words.

`cudaMalloc` memory lies on the GPU. *Managed* memory (`cudaMallocManaged`) moves page by page to whoever
touches it, and may exceed the GPU's. *System* memory is what `malloc` gives: the GPU reaches it through the
host's own page tables where the hardware does that (ATS: Grace Hopper), or through the Linux kernel's
heterogeneous memory management where driver and kernel do (HMM: an x86 host with the open driver).

CUDA's runtime library is called by ctypes, so that asking needs neither torch's CUDA nor a context.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from lostflops.optimize.amounts import written
from lostflops.optimize.refused import Refused

ATTRIBUTES = {  # cudaDeviceAttr, the same numbers as CUdevice_attribute
    "integrated": 18,
    "managed_memory": 83,
    "pageable_memory_access": 88,
    "concurrent_managed_access": 89,
    "pageable_memory_access_uses_host_page_tables": 100,
    "direct_managed_access_from_host": 101,
}
KINDS = ("device", "managed", "system")
NO_DEVICE = {
    35: "there is no NVIDIA driver, or one older than this CUDA runtime",
    100: "the driver shows no GPU to this process",
}
PARAMETERS = Path("/sys/module/nvidia_uvm/parameters")


@dataclass(frozen=True)
class MemoryCapabilities:
    """What CUDA says of a GPU. None: it did not say, for example because the driver is too old to know."""

    device: int
    asked: str  # the library that answered, or why none did
    gpus: int
    integrated: bool | None = None
    managed_memory: bool | None = None
    concurrent_managed_access: bool | None = None
    pageable_memory_access: bool | None = None
    pageable_memory_access_uses_host_page_tables: bool | None = None
    direct_managed_access_from_host: bool | None = None
    access_counters: bool | None = None  # pages that the GPU often reads from afar migrate to it
    hmm_switched_off: bool | None = None  # by a parameter of the nvidia_uvm module
    host_page_bytes: int = 0

    @property
    def addressing(self) -> str:
        """How the GPU reaches memory of malloc: 'ATS', 'HMM', 'none' or 'unknown'."""
        if self.pageable_memory_access is None:
            return "unknown"
        if not self.pageable_memory_access:
            return "none"
        return "ATS" if self.pageable_memory_access_uses_host_page_tables else "HMM"

    def usable(self, kind: str) -> tuple[bool, str]:
        """Whether 'device', 'managed' or 'system' memory can hold tensors here, and why."""
        if kind not in KINDS:
            raise ValueError(f"there is no kind of memory {kind!r}, only {', '.join(KINDS)}")
        if not self.gpus:
            return False, self.asked
        if kind == "device":
            return True, "cudaMalloc: as large as the GPU's memory, never migrates"
        return self._managed() if kind == "managed" else self._system()

    def _managed(self) -> tuple[bool, str]:
        if self.managed_memory is None or self.concurrent_managed_access is None:
            return False, "the driver does not say whether GPU and CPU may use managed memory at once"
        if not self.managed_memory:
            return False, "the GPU has no managed memory on this system"
        if not self.concurrent_managed_access:
            return False, (
                "without concurrentManagedAccess managed memory cannot exceed the GPU's, "
                "and the CPU may not touch it while a kernel runs"
            )
        return True, "cudaMallocManaged: may exceed the GPU's memory, pages migrate when they are touched"

    def _system(self) -> tuple[bool, str]:
        found = self.addressing
        if found == "ATS":
            return True, "malloc: the GPU uses the host's page tables (ATS), over a coherent link"
        if found == "HMM":
            return (
                True,
                "malloc: the kernel mirrors its page tables for the GPU (HMM), pages migrate on faults",
            )
        if found == "unknown":
            return False, "the driver does not say whether the GPU reaches memory of malloc"
        off = "; nvidia_uvm was loaded with uvm_disable_hmm" if self.hmm_switched_off else ""
        return False, f"the GPU does not reach memory of malloc (neither ATS nor HMM){off}"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        usable = {kind: dict(zip(("usable", "why"), self.usable(kind), strict=True)) for kind in KINDS}
        return {**asdict(self), "addressing": self.addressing, "kinds": usable}

    def __str__(self) -> str:
        if not self.gpus:
            return f"no GPU memory here: {self.asked}"
        head = f"GPU {self.device} (asked {self.asked}): system memory by {self.addressing}"
        if self.integrated:
            head += ", one memory with the host"
        counters = {True: "migrate pages", False: "are off", None: "unknown"}[self.access_counters]
        lines = [f"{head}, access counters {counters}, pages of {written(self.host_page_bytes)} on the host"]
        for kind in KINDS:
            can, why = self.usable(kind)
            lines.append(f"  {kind:<8} {'yes' if can else 'no '}  {why}")
        return "\n".join(lines)


def memory_capabilities(device: int | str | torch.device | None = None) -> MemoryCapabilities:
    """What kinds of memory this machine can give to tensors, and why not the others. Also without a GPU.

    `device`: its number; None is the first, or torch's current one. Starts CUDA's driver but no context;
    processes forked afterwards cannot use the GPU.
    """
    index = _index(device)
    said: list[str] = []
    for name in runtime_libraries():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        found = _ask(library, index)
        if isinstance(found, dict):
            return _capabilities(index, Path(name).name, found)
        said.append(found)
    if torch.version.hip:
        said.append("this torch is built for AMD GPUs, whose unified memory is not supported here")
    return MemoryCapabilities(index, next(iter(said), "there is no CUDA runtime library here"), 0)


def runtime_libraries() -> list[str]:
    """Where libcudart may be: the one that this process has loaded first, then torch's, then the system's."""
    return list(dict.fromkeys(_runtime_libraries()))


def _runtime_libraries() -> Iterator[str]:
    with suppress(OSError):
        for row in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            path = row.split(maxsplit=5)[-1]
            if Path(path).name.startswith("libcudart") and path.startswith("/"):
                yield path
    version = str(torch.version.cuda or "")
    major = version.split(".")[0]
    if not major:
        return
    packages = Path(torch.__file__).parent.parent / "nvidia"
    for folder in (f"cu{major}", "cuda_runtime"):
        file = packages / folder / "lib" / f"libcudart.so.{major}"
        if file.is_file():
            yield str(file)
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        if root and (file := Path(root) / "lib64" / f"libcudart.so.{major}").is_file():
            yield str(file)
    yield f"libcudart.so.{major}"


def _index(device: int | str | torch.device | None) -> int:
    if isinstance(device, int):
        return device
    where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        raise Refused(f"{where} is no GPU", "name a GPU, such as 'cuda:0'")
    given = cast("int | None", where.index)  # torch's own annotation leaves out None
    if given is not None:
        return given
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def _ask(library: ctypes.CDLL, index: int) -> dict[str, bool | int | None] | str:
    """The attributes, and the number of GPUs; or why there are none."""
    many = ctypes.c_int(0)
    try:
        code = library.cudaGetDeviceCount(ctypes.byref(many))
        if code:
            library.cudaGetLastError()
            return NO_DEVICE.get(code, f"CUDA answers with error {code}")
        if not 0 <= index < many.value:
            return f"there is no GPU {index}, only {many.value}"
        found: dict[str, bool | int | None] = {"gpus": many.value}
        for name, number in ATTRIBUTES.items():
            value = ctypes.c_int(0)
            if library.cudaDeviceGetAttribute(ctypes.byref(value), number, index):
                library.cudaGetLastError()
                found[name] = None
            else:
                found[name] = bool(value.value)
    except AttributeError as error:
        return f"this is no CUDA runtime: {error}"
    return found


def _capabilities(index: int, asked: str, found: dict[str, Any]) -> MemoryCapabilities:
    counters = _parameter("uvm_perf_access_counter_migration_enable")
    ats = found["pageable_memory_access_uses_host_page_tables"]
    # -1 leaves it to the driver, which migrates by counters on ATS systems only.
    by_default = bool(ats) if counters == "-1" and ats is not None else None
    return MemoryCapabilities(
        index,
        asked,
        access_counters={"0": False, "1": True}.get(counters or "", by_default),
        hmm_switched_off={"Y": True, "1": True, "N": False, "0": False}.get(
            _parameter("uvm_disable_hmm") or ""
        ),
        host_page_bytes=os.sysconf("SC_PAGE_SIZE"),
        **found,
    )


def _parameter(name: str) -> str | None:
    try:
        return (PARAMETERS / name).read_text(errors="replace").strip()
    except OSError:
        return None
