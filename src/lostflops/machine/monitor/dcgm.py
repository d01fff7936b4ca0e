"""What the site's own DCGM exporter says of the GPUs: read from its endpoint, so that nobody counts twice.

Tested with an endpoint that serves recorded text only, not with a real exporter.
"""

from __future__ import annotations

import math
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lostflops.machine.monitor.metrics import MetricValue

PATIENCE = 5.0
MOST = 16 << 20
MIB = 1 << 20
LINE = re.compile(r"(DCGM_FI_\w+)\{(.*)\} +(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# An exporter is on the node itself or near; the proxies of the environment lead out of the site.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# The exporter's name, our metric, and what to multiply with.
PROFILING = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gpu_graphics_active", 100),
    "DCGM_FI_PROF_SM_ACTIVE": ("gpu_sm_active", 100),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("gpu_sm_occupancy", 100),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gpu_tensor_active", 100),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gpu_dram_active", 100),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("gpu_fp64_active", 100),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("gpu_fp32_active", 100),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("gpu_fp16_active", 100),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gpu_pcie_tx_rate", 1),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gpu_pcie_rx_rate", 1),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("gpu_nvlink_tx_rate", 1),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("gpu_nvlink_rx_rate", 1),
}
DEVICE = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilisation", 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gpu_memory_utilisation", 1),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory_used", MIB),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power", 1),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("gpu_energy", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("gpu_sm_clock", 1),
    "DCGM_FI_DEV_MEM_CLOCK": ("gpu_memory_clock", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temperature", 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gpu_memory_temperature", 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("gpu_pcie_replay", 1),
}


class Dcgm:
    """An endpoint, asked in the background: a slow answer delays no other reading.

    `beside` says that the GPUs are read through NVML too, of which only what that lacks is added.
    """

    def __init__(self, url: str, *, beside: bool) -> None:
        self.url = url
        self.wanted = PROFILING if beside else {**DEVICE, **PROFILING}
        self.missing = ""
        self._answer: list[MetricValue] = []
        self._asking = threading.Lock()

    def facts(self) -> Iterable[Mapping[str, Any]]:
        return ()

    def read(self, thorough: bool) -> Iterator[MetricValue]:
        answer, self._answer = self._answer, []
        if self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, daemon=True).start()
        yield from answer

    def _ask(self) -> None:
        try:
            with DIRECT.open(self.url, timeout=PATIENCE) as response:
                text = response.read(MOST).decode(errors="replace")
            self._answer = list(parsed(text, self.wanted))
            self.missing = "" if self._answer else f"{self.url} offers no metric that lostflops knows"
        except (OSError, ValueError, urllib.error.URLError) as error:
            self.missing = f"{self.url} does not answer: {error}"
        finally:
            self._asking.release()


def parsed(text: str, wanted: Mapping[str, tuple[str, int]]) -> Iterator[MetricValue]:
    """The metrics of an exporter's page, of whole GPUs."""
    for line in text.splitlines():
        match = LINE.match(line)
        if not match or match[1] not in wanted:
            continue
        labels = dict(LABEL.findall(match[2]))
        if "GPU_I_ID" in labels or not labels.get("gpu", "").isdigit():
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0:
            metric, factor = wanted[match[1]]
            whole = value.is_integer()
            yield MetricValue(metric, int(labels["gpu"]), None, (int(value) if whole else value) * factor)
