"""What the monitor reads of a node: from made-up trees of /proc and /sys, and a DCGM exporter's text."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lostflops.machine.monitor.amd import Amd
from lostflops.machine.monitor.dcgm import DEVICE, PROFILING, Dcgm, parsed
from lostflops.machine.monitor.host import Host
from lostflops.machine.monitor.metrics import METRICS, MetricSource
from lostflops.machine.monitor.nics import Nics
from lostflops.machine.monitor.nvidia import Nvidia
from lostflops.machine.monitor.openmetrics import UNITS
from lostflops.machine.monitor.ranks import Ranks
from monitored import AMD, EFA, HOST, INFINIBAND, STAT, Named, tree

DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",modelName="NVIDIA H100",Hostname="node-name"} 98
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 40
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-1"} 7000
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",pod="a } b"} 0.25
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1",UUID="GPU-2"} 0.125
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-2",GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"} 0.75
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-2"} NaN
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-2"} -1
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-2"} 0
"""


def values(source: MetricSource, thorough: bool = True) -> dict[Named, float]:
    return {reading[:3]: reading.value for reading in source.read(thorough)}


def test_a_host_is_read_from_proc(tmp_path: Path) -> None:
    found = values(Host(tree(tmp_path, HOST)))
    assert found.pop(("monitor_cpu", None, None)) > 0
    assert found == {
        ("cpu_user", None, None): 320,
        ("cpu_system", None, None): 75,
        ("cpu_iowait", None, None): 11,
        ("cpu_steal", None, None): 5,
        ("cpu_busy", None, "0"): 142,
        ("cpu_busy", None, "1"): 253,
        ("cpu_frequency", None, "0"): 2100,
        ("context_switches", None, None): 4711,
        ("memory_total", None, None): 1024000,
        ("memory_available", None, None): 614400,
        ("memory_cached", None, None): 256000,
        ("swap_used", None, None): 30720,
        ("pressure_some", None, "io"): 1500000,
        ("pressure_full", None, "io"): 250000,
        ("cgroup_memory", None, None): 4096,
        ("cgroup_cpu", None, None): 7000000,
        ("cgroup_cpu_throttled", None, None): 3000,
        ("disk_read", None, "sda"): 102400,
        ("disk_written", None, "sda"): 15360,
        ("disk_busy", None, "sda"): 17,
        ("network_received", None, "eth0"): 7001,
        ("network_receive_errors", None, "eth0"): 1,
        ("network_receive_drops", None, "eth0"): 2,
        ("network_sent", None, "eth0"): 9002,
        ("network_send_errors", None, "eth0"): 3,
        ("network_send_drops", None, "eth0"): 4,
    }


def test_clocks_of_cores_are_read_now_and_then_only(tmp_path: Path) -> None:
    assert ("cpu_frequency", None, "0") not in values(Host(tree(tmp_path, HOST)), thorough=False)


def test_what_a_node_does_not_have_is_absent(tmp_path: Path) -> None:
    assert set(values(Host(tmp_path))) == {("monitor_cpu", None, None)}
    assert values(Nics(tmp_path)) == values(Amd(tmp_path)) == {}
    assert Nvidia(tmp_path).missing == "", "no driver, so no GPU is missing"


def test_a_file_of_another_form_costs_its_own_values_only(tmp_path: Path) -> None:
    broken = {
        "proc/stat": STAT.replace("cpu1 200", "cpu1 x"),
        "proc/diskstats": "7\n",
        "proc/meminfo": "\xff:\n",
    }
    found = values(Host(tree(tmp_path, {**HOST, **broken})))
    assert ("cpu_busy", None, "0") in found and ("cpu_busy", None, "1") not in found
    assert ("network_sent", None, "eth0") in found and ("memory_total", None, None) not in found


def test_infiniband_counts_in_words_of_four_bytes(tmp_path: Path) -> None:
    nics = Nics(tree(tmp_path, INFINIBAND))
    often = {("nic_sent", None, "mlx5_0:1"): 4000, ("nic_received", None, "mlx5_0:1"): 2800}
    assert values(nics, thorough=False) == often
    assert values(nics) == {
        **often,
        ("nic_symbol_error", None, "mlx5_0:1"): 3,
        ("nic_out_of_sequence", None, "mlx5_0:1"): 17,
        ("nic_active", None, "mlx5_0:1"): 1,
        ("nic_speed", None, "mlx5_0:1"): 400,
    }
    assert list(nics.facts()) == [
        {
            "kind": "port",
            "port": "mlx5_0:1",
            "state": "ACTIVE",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "interfaces": ["ib0"],
            "numa_node": 1,
        }
    ]


def test_efa_counts_in_bytes(tmp_path: Path) -> None:
    assert values(Nics(tree(tmp_path, EFA))) == {
        ("nic_sent", None, "rdmap16s27:1"): 5001,
        ("nic_rdma_read", None, "rdmap16s27:1"): 6001,
        ("nic_rx_drops", None, "rdmap16s27:1"): 2,
        ("nic_active", None, "rdmap16s27:1"): 0,
    }


def test_amd_gpus_are_numbered_as_their_cards(tmp_path: Path) -> None:
    amd = Amd(tree(tmp_path, AMD))
    assert values(amd) == {
        ("gpu_utilisation", 0, None): 97,
        ("gpu_memory_used", 0, None): 3000,
        ("gpu_memory_total", 0, None): 8000,
        ("gpu_power", 0, None): 451,
        ("gpu_temperature", 0, None): 61.5,
        ("gpu_sm_clock", 0, None): 2100,
        ("gpu_utilisation", 1, None): 11,
    }
    first, second = amd.facts()
    assert (first["gpu"], first["memory"], second["gpu"], second["memory"]) == ("Instinct", 8000, None, None)


def test_ranks_are_read_with_what_they_started(tmp_path: Path) -> None:
    def process(pid: int, times: str, pages: int, tasks: dict[int, str], began: int = 9) -> dict[str, str]:
        stat = f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {times} 20 0 1 0 {began} 7 7"
        files = {f"proc/{pid}/stat": stat, f"proc/{pid}/statm": f"99 {pages} 1 1 0 1 0"}
        return files | {f"proc/{pid}/task/{task}/children": started for task, started in tasks.items()}

    def log(rank: int, pid: int, host: str) -> str:
        return f'{{"kind":"rank","rank":{rank},"pid":{pid},"host":"{host}"}}\n'

    root = tree(
        tmp_path,
        process(70, "100 20 3 1", 10, {70: "80 ", 71: "81"}),
        process(80, "30 2 0 0", 4, {80: ""}),
        process(81, "5 0 0 0", 2, {81: ""}),
        process(90, "7 7 7 7", 1, {90: ""}),
        {
            "run/node-0/steps-00003-a0.jsonl": log(3, 70, "here"),
            "run/node-1/steps-00000-a0.jsonl": log(0, 90, "there"),
        },
        {
            "run/node-0/steps-00004-a0.jsonl": log(4, 12345, "here"),
            "run/node-0/steps-00005-a0.jsonl": '{"kind":"ra',
        },
    )
    page = os.sysconf("SC_PAGE_SIZE")
    ranks = Ranks(root / "run", "here", root)
    assert values(ranks, thorough=False) == {}
    assert values(ranks) == {
        ("rank_resident", None, "3"): 10 * page,
        ("rank_threads", None, "3"): 2,
        ("rank_workers", None, "3"): 2,
        ("rank_workers_resident", None, "3"): 6 * page,
        ("rank_cpu", None, "3"): 161,
    }
    tree(tmp_path, process(70, "1 1 1 1", 10, {70: ""}, began=11))
    assert values(ranks) == {}, "another process of the same number"


def test_an_exporter_of_dcgm_is_read_for_what_nvml_lacks() -> None:
    alone = {reading[:3]: reading.value for reading in parsed(DCGM, {**DEVICE, **PROFILING})}
    assert alone == {
        ("gpu_utilisation", 0, None): 98,
        ("gpu_memory_used", 0, None): 41943040,
        ("gpu_energy", 0, None): 7000,
        ("gpu_sm_active", 0, None): 25.0,
        ("gpu_tensor_active", 1, None): 12.5,
    }
    assert {reading.metric for reading in parsed(DCGM, PROFILING)} == {"gpu_sm_active", "gpu_tensor_active"}


def test_an_exporter_is_asked_in_the_background() -> None:
    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(DCGM.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        exporter = Dcgm(f"http://127.0.0.1:{server.server_address[1]}/metrics", beside=True)
        assert values(exporter) == {}, "the answer has not come yet"
        until = time.monotonic() + 10
        while not (found := values(exporter)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == {("gpu_sm_active", 0, None): 25.0, ("gpu_tensor_active", 1, None): 12.5}
        server.shutdown()


def test_an_exporter_that_does_not_answer_is_said() -> None:
    exporter = Dcgm("http://127.0.0.1:9/metrics", beside=False)
    until = time.monotonic() + 10
    while not exporter.missing and time.monotonic() < until:
        assert values(exporter) == {}
        time.sleep(0.01)
    assert exporter.missing.startswith("http://127.0.0.1:9/metrics does not answer: ")


def test_a_driver_without_its_python_binding_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in Nvidia(tree(tmp_path, {"proc/driver/nvidia/version": ""})).missing


def test_every_unit_has_a_name_for_prometheus() -> None:
    assert {metric.unit for metric in METRICS.values()} == set(UNITS)
    for metric in METRICS.values():
        assert metric.counts or metric.per == 1, "only totals are scaled"


def test_the_sampler_imports_nothing_large() -> None:
    script = "import sys, lostflops.machine.monitor.sampler; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"polars", "numpy", "msgspec", "rich", "torch"} & set(done.stdout.split())


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class FakeNvml(SimpleNamespace):
    """A binding whose every function is missing, but for those given."""

    NVMLError = FakeError

    def __getattr__(self, name: str) -> Any:
        def missing(*given: object) -> None:
            raise FakeError(13)

        return missing


def gpus(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    found = {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 1} | functions
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlDeviceGetHandleByIndex=str, **found))


def test_what_a_gpu_cannot_tell_is_asked_once_and_what_failed_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: dict[str, list[Any]] = {
        "nvmlDeviceGetPowerUsage": [FakeError(15), 412500],
        "nvmlDeviceGetTemperature": [FakeError(3)],
    }

    def function(name: str) -> Any:
        def answer(*given: object) -> Any:
            said = answers[name].pop(0)
            if isinstance(said, FakeError):
                raise said
            return said

        return answer

    gpus(monkeypatch, **{name: function(name) for name in answers})
    nvidia = Nvidia(tmp_path)
    assert values(nvidia) == {}, "the GPU is lost for now, and has no sensor"
    assert values(nvidia) == {("gpu_power", 0, None): 412.5}


@pytest.mark.parametrize(("asked", "mig", "read"), [(True, 0, True), (False, 0, False), (True, 1, False)])
def test_multiprocessors_are_counted_by_one_only_and_of_whole_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: bool, mig: int, read: bool
) -> None:
    supported = SimpleNamespace(isSupportedDevice=1)
    gpus(
        monkeypatch, nvmlGpmQueryDeviceSupport=lambda _: supported, nvmlDeviceGetMigMode=lambda _: [mig, mig]
    )
    (device,) = Nvidia(tmp_path, gpm=asked).devices
    assert bool(device.gpm) == read
