"""What a monitor can read: every metric, its unit and its meaning; the documentation is generated from it.

A metric that counts is read as a running total and kept as one, so that what happened between two readings
is their difference, whenever they were taken. Every other metric is a level. What a node does not offer is
absent, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class MetricValue(NamedTuple):
    """One value as it was read: a running total in the source's own integers, or a level in its unit."""

    metric: str
    device: int | None
    instance: str | None
    value: float


class MetricSource(Protocol):
    """Something of the node that can be read again and again."""

    def facts(self) -> Iterable[Mapping[str, Any]]:
        """What does not change while the monitor runs: names, sizes, limits."""
        ...

    def read(self, thorough: bool) -> Iterable[MetricValue]:
        """The values of now; those that cost much or change slowly only when `thorough`."""
        ...


@dataclass(frozen=True)
class Metric:
    """One documented metric. A total divided by `per` is in `unit`."""

    name: str
    unit: str | None
    meaning: str
    counts: bool = False
    per: int = 1
    label: str = ""  # what the instances are, where a device or host has several


def _level(name: str, unit: str | None, meaning: str, label: str = "") -> Metric:
    return Metric(name, unit, meaning, label=label)


def _count(name: str, unit: str | None, meaning: str, per: int = 1, label: str = "") -> Metric:
    return Metric(name, unit, meaning, counts=True, per=per, label=label)


GPU = (
    _level("gpu_utilisation", "%", "time in which any kernel ran, one that only waits included"),
    _level("gpu_memory_utilisation", "%", "time in which device memory was read or written"),
    _level("gpu_memory_used", "B", "device memory in use"),
    _level("gpu_memory_total", "B", "device memory in total"),
    _level("gpu_power", "W", "power drawn: the instant's where the driver gives it, else the driver's mean"),
    _level("gpu_power_limit", "W", "power limit in force"),
    _count("gpu_energy", "J", "energy drawn", per=1000),
    _level("gpu_sm_clock", "MHz", "clock of the multiprocessors"),
    _level("gpu_memory_clock", "MHz", "clock of the memory"),
    _level("gpu_temperature", "°C", "temperature of the chip"),
    _level("gpu_memory_temperature", "°C", "temperature of the memory"),
    _level("gpu_clock_reason", None, "1 while this reason lowers the clocks, else 0", label="reason"),
    _count("gpu_ecc_corrected", None, "corrected memory errors"),
    _count("gpu_ecc_uncorrected", None, "uncorrected memory errors"),
    _count("gpu_pcie_replay", None, "PCIe packets that were sent again"),
    _level("gpu_pcie_generation", None, "PCIe generation at which the link runs now"),
    _level("gpu_pcie_width", None, "PCIe lanes in use now"),
    _count("gpu_pcie_tx", "B", "bytes sent over PCIe"),
    _count("gpu_pcie_rx", "B", "bytes received over PCIe"),
    _level("gpu_pcie_tx_rate", "B/s", "mean rate sent over PCIe since the reading before"),
    _level("gpu_pcie_rx_rate", "B/s", "mean rate received over PCIe since the reading before"),
    _count("gpu_nvlink_tx", "B", "payload sent over all NVLinks"),
    _count("gpu_nvlink_rx", "B", "payload received over all NVLinks"),
    _count("gpu_nvlink_link_tx", "B", "payload sent over one NVLink", label="link"),
    _count("gpu_nvlink_link_rx", "B", "payload received over one NVLink", label="link"),
    _count("gpu_nvlink_errors", None, "NVLink errors of one kind, all links", label="error"),
    _level("gpu_nvlink_tx_rate", "B/s", "mean rate sent over all NVLinks since the reading before"),
    _level("gpu_nvlink_rx_rate", "B/s", "mean rate received over all NVLinks since the reading before"),
    _level("gpu_c2c_links", None, "links between GPU and Grace"),
    _level("gpu_c2c_link_active", None, "1 while a link between GPU and Grace is up, else 0", label="link"),
    _level("gpu_c2c_tx_rate", "B/s", "mean rate sent to Grace since the reading before"),
    _level("gpu_c2c_rx_rate", "B/s", "mean rate received from Grace since the reading before"),
    _level("gpu_c2c_data_tx_rate", "B/s", "the same, payload alone"),
    _level("gpu_c2c_data_rx_rate", "B/s", "the same, payload alone"),
    _level("gpu_graphics_active", "%", "time in which any engine for compute or graphics was active"),
    _level("gpu_sm_active", "%", "share of multiprocessors that were busy, mean over time"),
    _level("gpu_sm_occupancy", "%", "resident warps as a share of the maximum, mean over time"),
    _level("gpu_tensor_active", "%", "time in which tensor cores worked, mean over multiprocessors"),
    _level("gpu_tensor_fp64_active", "%", "the same, double precision alone"),
    _level("gpu_tensor_half_active", "%", "the same, 16-bit floating point alone"),
    _level("gpu_tensor_integer_active", "%", "the same, integers alone"),
    _level("gpu_dram_active", "%", "bandwidth of device memory in use, as a share of the peak"),
    _level("gpu_fp64_active", "%", "time of double-precision arithmetic outside tensor cores"),
    _level("gpu_fp32_active", "%", "time of single-precision arithmetic outside tensor cores"),
    _level("gpu_fp16_active", "%", "time of half-precision arithmetic outside tensor cores"),
)

HOST = (
    _count("cpu_busy", "s", "time in which a core was busy", per=100, label="core"),
    _count("cpu_user", "s", "core time in programs, all cores", per=100),
    _count("cpu_system", "s", "core time in the kernel and in interrupts, all cores", per=100),
    _count("cpu_iowait", "s", "core time idle while waiting for a disk, all cores", per=100),
    _count("cpu_steal", "s", "core time that the hypervisor gave to other machines, all cores", per=100),
    _level("cpu_frequency", "MHz", "clock of a core", label="core"),
    _count("context_switches", None, "changes from one thread to another"),
    _level("memory_total", "B", "memory of the host"),
    _level("memory_available", "B", "memory that programs could still get without swapping"),
    _level("memory_cached", "B", "memory that caches files"),
    _level("swap_used", "B", "swap in use"),
    _count(
        "pressure_some",
        "s",
        "time in which at least one task waited for the resource",
        per=1_000_000,
        label="resource",
    ),
    _count(
        "pressure_full",
        "s",
        "time in which all tasks waited for the resource",
        per=1_000_000,
        label="resource",
    ),
    _level(
        "cgroup_memory", "B", "memory of the monitor's control group, which is the job's on most clusters"
    ),
    _level("cgroup_memory_peak", "B", "largest memory of that control group so far"),
    _level("cgroup_memory_limit", "B", "memory limit of that control group"),
    _count("cgroup_cpu", "s", "core time of that control group", per=1_000_000),
    _count(
        "cgroup_cpu_throttled",
        "s",
        "time in which that control group was throttled by its quota",
        per=1_000_000,
    ),
    _count("disk_read", "B", "bytes read from a disk", label="disk"),
    _count("disk_written", "B", "bytes written to a disk", label="disk"),
    _count("disk_busy", "s", "time in which a disk was busy", per=1000, label="disk"),
    _count("network_received", "B", "bytes received on an interface", label="interface"),
    _count("network_sent", "B", "bytes sent on an interface", label="interface"),
    _count("network_receive_errors", None, "packets received with an error", label="interface"),
    _count("network_receive_drops", None, "packets received and dropped", label="interface"),
    _count("network_send_errors", None, "packets not sent because of an error", label="interface"),
    _count("network_send_drops", None, "packets dropped before they were sent", label="interface"),
    _level("rank_resident", "B", "resident memory of a recorded rank's process", label="rank"),
    _level("rank_threads", None, "threads of the rank's process", label="rank"),
    _level("rank_workers", None, "processes that the rank started, such as loader workers", label="rank"),
    _level(
        "rank_workers_resident",
        "B",
        "resident memory of those processes; shared memory counts in each",
        label="rank",
    ),
    _count("rank_cpu", "s", "core time of the rank and its workers", per=100, label="rank"),
    _count("monitor_cpu", "s", "core time of the monitor itself", per=1_000_000_000),
)

NIC = (
    _count("nic_sent", "B", "bytes sent by an InfiniBand, RoCE or EFA port", label="port"),
    _count("nic_received", "B", "bytes received by a port", label="port"),
    _level("nic_active", None, "1 while a port is up, else 0", label="port"),
    _level("nic_speed", "Gb/s", "rate of a port", label="port"),
    _count("nic_rdma_read", "B", "EFA: bytes read from other nodes", label="port"),
    _count("nic_rdma_written", "B", "EFA: bytes written to other nodes", label="port"),
    _count("nic_rdma_write_received", "B", "EFA: bytes that other nodes wrote here", label="port"),
    _count("nic_retransmitted", "B", "EFA: bytes that were sent again", label="port"),
)

# Counters of ports that keep the name of their file; all count events.
PORT_COUNTERS = (
    "port_xmit_wait",
    "port_xmit_discards",
    "port_rcv_errors",
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "retrans_timeout_events",
    "rx_drops",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
)
_COUNTED = tuple(
    _count(f"nic_{name}", None, f"the port's counter `{name}`", label="port")
    for name in (*PORT_COUNTERS, *HARDWARE_COUNTERS)
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*GPU, *HOST, *NIC, *_COUNTED)}
