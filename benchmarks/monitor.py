"""What a monitor costs: the share of a core that its process takes, as Linux counts it.

    python benchmarks/monitor.py [SECONDS]

On this machine at the default interval and at the shortest, and on a made-up node of 192 cores, 8 InfiniBand
ports and 8 GPUs: its files lie on disk and a stand-in for NVML answers at once, so what the kernel and a real
driver take is not in it. Start-up and packing are left out, and said apart.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from lostflops.machine.monitor import process as monitor

sys.path.append(str(Path(__file__).parent.parent / "tests" / "machine"))
import monitored

TICK = 1 / os.sysconf("SC_CLK_TCK")
TARGET = 0.01  # of a core, at the default interval
CORES, PORTS, GPUS = 192, 8, 8


def node(root: Path) -> Path:
    """A large node's files."""
    stat = monitored.STAT.splitlines()
    cores = [f"cpu{n} {stat[1].partition(' ')[2]}" for n in range(CORES)]
    files = {**monitored.HOST, "proc/stat": "\n".join([stat[0], *cores, *stat[3:]])}
    for core in range(CORES):
        files[f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"] = "2100000\n"
    for port in range(PORTS):
        files |= {k.replace("mlx5_0", f"mlx5_{port}"): v for k, v in monitored.INFINIBAND.items()}
    return monitored.tree(root, files)


def core_time(pid: int) -> float:
    """Seconds of a core that a process has taken, in itself."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * TICK


def measure(name: str, seconds: float, interval: float, root: Path = Path("/")) -> float:
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        running = monitor.start(monitor.Sampling(Path(folder), interval=interval, root=root))
        running.wait_ready()
        ready = time.perf_counter() - began
        start, first = time.perf_counter(), core_time(running.process.pid)
        time.sleep(seconds)
        share = (core_time(running.process.pid) - first) / (time.perf_counter() - start)
        running.stop()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))
    samples, series = running.ending["samples"], running.beginning["series"]
    own = running.ending["cpu"] / max(1, samples - 1)
    apart = whole - running.ending["cpu"]
    print(
        f"{name:34} {share:8.2%} of a core  {own * 1e3:6.2f} ms a sample of {series} values  "
        f"{size / samples / 1e3:5.2f} kB  (ready after {ready:.2f} s, start and packing {apart:.1f} s)"
    )
    return running.ending["cpu"] / running.ending["took"]


def main(seconds: float) -> None:
    measured = measure("this machine, every second", seconds, 1.0)
    measure("this machine, every 100 ms", seconds, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        root = node(Path(folder) / "root")
        stub = monitored.stub_nvml(Path(folder) / "stub")
        if stub is not None:
            os.environ |= {"LD_LIBRARY_PATH": str(stub), "STUB_GPUS": str(GPUS)}
        large = measure("a large node, every second", seconds, 1.0, root)
    worst = max(measured, large)
    print(f"target: at most {TARGET:.0%} of a core every second: {'met' if worst <= TARGET else 'missed'}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
