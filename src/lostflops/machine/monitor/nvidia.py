"""NVIDIA GPUs, through NVML. GPM and C2C values are not verified on a GPU that has them.

Every value is asked for by itself: what a GPU, a driver or the permissions do not give is absent, and is not
asked for again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from lostflops.machine.monitor.metrics import MetricValue

MIB = 1 << 20
KIB = 1 << 10
ALL_LINKS = 0xFFFF_FFFF
GPM_APART = 0.09  # s; the two samples that GPM compares have to lie 100 ms apart
PROCESSES_EVERY = 1.0

# Errors of NVML that will be there next time too: invalid argument, not supported, no permission, not found,
# function not found, version mismatch, deprecated.
FOR_GOOD = {2, 3, 4, 6, 13, 25, 26}

REASONS = {
    1: "idle",
    2: "application clocks",
    4: "power cap",
    8: "hardware slowdown",
    16: "sync boost",
    32: "software thermal",
    64: "hardware thermal",
    128: "power brake",
    256: "display",
}


@dataclass(frozen=True)
class Field:
    """A value of `nvmlDeviceGetFieldValues`; what is read times `factor` is the metric's."""

    number: int
    metric: str
    factor: float = 1
    scope: int = 0
    instance: str | None = None
    thorough: bool = False


POWER = Field(186, "gpu_power", 1e-3)
FIELDS = (
    POWER,
    Field(82, "gpu_memory_temperature"),
    Field(138, "gpu_nvlink_tx", KIB, ALL_LINKS),
    Field(139, "gpu_nvlink_rx", KIB, ALL_LINKS),
    Field(197, "gpu_pcie_tx"),
    Field(198, "gpu_pcie_rx"),
    Field(94, "gpu_pcie_replay", thorough=True),
    Field(38, "gpu_nvlink_errors", instance="flow control CRC", thorough=True),
    Field(45, "gpu_nvlink_errors", instance="data CRC", thorough=True),
    Field(52, "gpu_nvlink_errors", instance="replay", thorough=True),
    Field(59, "gpu_nvlink_errors", instance="recovery", thorough=True),
    Field(170, "gpu_c2c_links", thorough=True),
)
NVLINKS, C2C_LINKS, C2C_STATUS = 91, 170, 171
UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# GPM's own numbers; rates come in MiB/s.
GPM = {
    1: ("gpu_graphics_active", 1),
    2: ("gpu_sm_active", 1),
    3: ("gpu_sm_occupancy", 1),
    5: ("gpu_tensor_active", 1),
    6: ("gpu_tensor_fp64_active", 1),
    7: ("gpu_tensor_half_active", 1),
    9: ("gpu_tensor_integer_active", 1),
    10: ("gpu_dram_active", 1),
    11: ("gpu_fp64_active", 1),
    12: ("gpu_fp32_active", 1),
    13: ("gpu_fp16_active", 1),
    20: ("gpu_pcie_tx_rate", MIB),
    21: ("gpu_pcie_rx_rate", MIB),
    60: ("gpu_nvlink_rx_rate", MIB),
    61: ("gpu_nvlink_tx_rate", MIB),
    100: ("gpu_c2c_tx_rate", MIB),
    101: ("gpu_c2c_rx_rate", MIB),
    102: ("gpu_c2c_data_tx_rate", MIB),
    103: ("gpu_c2c_data_rx_rate", MIB),
}


@dataclass
class NvidiaCard:
    """A GPU, and what has been learned of it."""

    index: int
    handle: Any
    fields: list[Field]
    never: set[str] = field(default_factory=set[str])
    pids: set[int] = field(default_factory=set[int])
    strangers: set[int] = field(default_factory=set[int])  # of other users, or numbers of other containers
    gpm: list[int] = field(default_factory=list[int])  # metrics that this GPU may have
    sample: Any = None  # GPM's, of the reading before
    spare: Any = None
    sampled: float = 0.0


class Nvidia:
    """The GPUs of a node that NVML shows. `missing` says why there are none, where there should be some.

    Without `gpm` the counters of the multiprocessors are left to somebody else, who reads them already.
    """

    def __init__(self, root: Path = Path("/"), *, gpm: bool = True) -> None:
        self.root = root
        self._gpm_wanted = gpm
        self.devices: list[NvidiaCard] = []
        self.missing = ""
        self._processes_due = 0.0
        driver = (root / "proc/driver/nvidia").exists()
        try:
            self.nvml: Any = import_module("pynvml")
        except ImportError:
            if driver:
                self.missing = "GPUs are not monitored: `pip install nvidia-ml-py` (or lostflops[monitor])"
            return
        try:
            self.nvml.nvmlInit()
            count = self.nvml.nvmlDeviceGetCount()
        except self.nvml.NVMLError as error:
            if driver:
                self.missing = f"GPUs are not monitored: {error}"
            return
        for index in range(count):
            with suppress(self.nvml.NVMLError):
                self.devices.append(self._device(index))

    def _device(self, index: int) -> NvidiaCard:
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        device = NvidiaCard(index, handle, list(FIELDS))
        for link in range(int(self._one(device, NVLINKS) or 0)):
            for number, metric in ((138, "gpu_nvlink_link_tx"), (139, "gpu_nvlink_link_rx")):
                device.fields.append(Field(number, metric, KIB, link, str(link), True))
        for link in range(int(self._one(device, C2C_LINKS) or 0)):
            device.fields.append(Field(C2C_STATUS, "gpu_c2c_link_active", 1, link, str(link), True))
        mode = self._ask(device, "mig", lambda: self.nvml.nvmlDeviceGetMigMode(handle))
        supported = self._ask(device, "gpm", lambda: self.nvml.nvmlGpmQueryDeviceSupport(handle))
        # The slices of a GPU have calls of their own; of the whole GPU, GPM says nothing then.
        there = supported is not None and supported.isSupportedDevice and not (mode and mode[0])
        if there and self._gpm_wanted:
            device.gpm = list(GPM)
        for _ in self._fields(device, thorough=True):
            pass  # drops those that this GPU does not have, so that the first sample is like the others
        return device

    def facts(self) -> Iterator[Mapping[str, Any]]:
        for device in self.devices:
            handle = device.handle
            name = self._ask(device, "name", lambda h=handle: self.nvml.nvmlDeviceGetName(h))
            memory = self._ask(device, "memory", lambda h=handle: self.nvml.nvmlDeviceGetMemoryInfo(h))
            yield {
                "kind": "device",
                "device": device.index,
                "vendor": "nvidia",
                "gpu": name.decode(errors="replace") if isinstance(name, bytes) else name,
                "memory": None if memory is None else int(memory.total),
            }
            if device.pids:
                yield {"kind": "processes", "device": device.index, "pids": sorted(device.pids)}

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        now = time.monotonic()
        ask_processes = now >= self._processes_due
        if ask_processes:
            self._processes_due = now + PROCESSES_EVERY
        for device in self.devices:
            yield from self._common(device)
            yield from self._fields(device, thorough)
            if thorough:
                yield from self._slow(device)
            if device.gpm:
                yield from self._gpm(device)
            if ask_processes:
                running = self._ask(
                    device,
                    "processes",
                    lambda h=device.handle: self.nvml.nvmlDeviceGetComputeRunningProcesses(h),
                )
                for pid in {process.pid for process in running or ()} - device.pids - device.strangers:
                    (device.pids if self._ours(pid) else device.strangers).add(pid)

    def _common(self, device: NvidiaCard) -> Iterator[MetricValue]:
        nvml, handle, index = self.nvml, device.handle, device.index
        rates = self._ask(device, "utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        if rates is not None:
            yield MetricValue("gpu_utilisation", index, None, rates.gpu)
            yield MetricValue("gpu_memory_utilisation", index, None, rates.memory)
        memory = self._ask(device, "memory", lambda: self._memory(handle))
        if memory is not None:
            yield MetricValue("gpu_memory_used", index, None, memory.used)
        if POWER not in device.fields:
            power = self._ask(device, "power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
            if power is not None:
                yield MetricValue("gpu_power", index, None, power / 1000)
        for metric, call in (
            ("gpu_energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            ("gpu_sm_clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, 1)),
            ("gpu_memory_clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, 2)),
            ("gpu_temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, 0)),
        ):
            value = self._ask(device, metric, call)
            if value is not None:
                yield MetricValue(metric, index, None, value)
        # Drivers before 535 know the second spelling only.
        bits = self._ask(device, "events", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if bits is None:
            bits = self._ask(
                device, "throttle", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            )
        if bits is not None:
            for bit, reason in REASONS.items():
                yield MetricValue("gpu_clock_reason", index, reason, int(bool(bits & bit)))

    def _memory(self, handle: Any) -> Any:
        # The first version counts what the driver keeps for itself as used.
        try:
            return self.nvml.nvmlDeviceGetMemoryInfo(handle, version=self.nvml.nvmlMemory_v2)
        except (self.nvml.NVMLError, AttributeError, TypeError):
            return self.nvml.nvmlDeviceGetMemoryInfo(handle)

    def _slow(self, device: NvidiaCard) -> Iterator[MetricValue]:
        nvml, handle = self.nvml, device.handle
        calls: tuple[tuple[str, Callable[[], float]], ...] = (
            ("gpu_power_limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            ("gpu_memory_total", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            ("gpu_ecc_corrected", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0)),
            ("gpu_ecc_uncorrected", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)),
            ("gpu_pcie_generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            ("gpu_pcie_width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        )
        for metric, call in calls:
            value = self._ask(device, metric, call)
            if value is not None:
                yield MetricValue(metric, device.index, None, value)

    def _fields(self, device: NvidiaCard, thorough: bool) -> Iterator[MetricValue]:
        asked = [wanted for wanted in device.fields if thorough or not wanted.thorough]
        if not asked:
            return
        found = self._ask(
            device,
            "fields",
            lambda: self.nvml.nvmlDeviceGetFieldValues(device.handle, [(f.number, f.scope) for f in asked]),
        )
        if found is None:
            if "fields" in device.never:
                device.fields = []
            return
        for wanted, value in zip(asked, found, strict=True):
            if value.nvmlReturn in FOR_GOOD:
                device.fields.remove(wanted)
            elif value.nvmlReturn == 0 and value.valueType in UNION:
                number = getattr(value.value, UNION[value.valueType])
                yield MetricValue(wanted.metric, device.index, wanted.instance, number * wanted.factor)

    def _one(self, device: NvidiaCard, number: int) -> float | None:
        found = self._ask(
            device, f"field {number}", lambda: self.nvml.nvmlDeviceGetFieldValues(device.handle, [number])
        )
        if not found or found[0].nvmlReturn != 0 or found[0].valueType not in UNION:
            return None
        return getattr(found[0].value, UNION[found[0].valueType])

    def _gpm(self, device: NvidiaCard) -> Iterator[MetricValue]:
        """What happened between the sample before and one of now."""
        nvml, now = self.nvml, time.monotonic()
        if device.sample is not None and now - device.sampled < GPM_APART:
            return
        try:
            taken = device.spare or nvml.nvmlGpmSampleAlloc()
            device.spare = None
            nvml.nvmlGpmSampleGet(device.handle, taken)
            before, device.sample, device.sampled = device.sample, taken, now
            if before is None:
                return
            device.spare = before
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.sample1, request.sample2 = before, taken
            request.numMetrics = len(device.gpm)
            for place, number in enumerate(device.gpm):
                request.metrics[place].metricId = number
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError as error:
            if error.value in FOR_GOOD:
                device.gpm = []
            return
        for metric in request.metrics[: request.numMetrics]:
            if metric.nvmlReturn in FOR_GOOD:
                device.gpm.remove(metric.metricId)
            elif metric.nvmlReturn == 0 and math.isfinite(metric.value):
                name, factor = GPM[metric.metricId]
                yield MetricValue(name, device.index, None, metric.value * factor)

    def _ours(self, pid: int) -> bool:
        """Whether that number is a process that uses a GPU here too: a driver outside of a container does not
        count processes as those in it do."""
        with suppress(OSError):
            for file in (self.root / "proc" / str(pid) / "fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    if str(file.readlink()).startswith("/dev/nvidia"):
                        return True
        return False

    def _ask(self, device: NvidiaCard, what: str, call: Callable[[], Any]) -> Any:
        """What NVML answers, or None."""
        if what in device.never:
            return None
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value in FOR_GOOD:
                device.never.add(what)
        except (AttributeError, TypeError):  # an old binding, which does not know the function
            device.never.add(what)
        return None
