"""Made-up nodes for the tests of the monitor: trees of /proc and /sys, a stand-in for NVML, files as left."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STAT = """\
cpu  300 20 70 900 11 3 2 5 0 0
cpu0 100 10 30 500 7 1 1 2 0 0
cpu1 200 10 40 400 4 2 1 3 0 0
ctxt 4711
btime 1795279540
"""
MEMINFO = """\
MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    600 kB
Cached:          250 kB
SwapTotal:        50 kB
SwapFree:         20 kB
"""
NET = """\
Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop (and 4 more)  |bytes packets errs drop (and 4 more)
    lo:    9    9    0    0    0    0    0    0    9    9    0    0    0    0    0    0
  eth0: 7001   70    1    2    0    0    0    0 9002   90    3    4    0    0    0    0
"""
DISKS = """\
   8       0 sda 11 0 200 5 7 0 30 9 0 17 14 0 0 0 0
   8       1 sda1 11 0 100 5 7 0 20 9 0 17 14 0 0 0 0
   7       0 loop0 1 0 8 0 0 0 0 0 0 1 0 0 0 0 0
"""
HOST = {
    "proc/stat": STAT,
    "proc/meminfo": MEMINFO,
    "proc/net/dev": NET,
    "proc/diskstats": DISKS,
    "sys/block/sda/size": "1",
    "sys/block/loop0/size": "1",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n",
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/step/memory.current": "4096\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/cpu.stat": "usage_usec 7000000\nuser_usec 1\nthrottled_usec 3000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2100000\n",
}
INFINIBAND = {
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "1000\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "700\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "3\n",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": "17\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/device/numa_node": "1\n",
    "sys/class/infiniband/mlx5_0/device/net/ib0/mtu": "4092\n",
}
EFA = {
    "sys/class/infiniband/rdmap16s27/ports/1/hw_counters/tx_bytes": "5001\n",
    "sys/class/infiniband/rdmap16s27/ports/1/hw_counters/rdma_read_bytes": "6001\n",
    "sys/class/infiniband/rdmap16s27/ports/1/hw_counters/rx_drops": "2\n",
    "sys/class/infiniband/rdmap16s27/ports/1/state": "1: DOWN\n",
}
AMD = {
    "sys/class/drm/card10/device/vendor": "0x1002\n",
    "sys/class/drm/card10/device/gpu_busy_percent": "11\n",
    "sys/class/drm/card2/device/vendor": "0x1002\n",
    "sys/class/drm/card2/device/gpu_busy_percent": "97\n",
    "sys/class/drm/card2/device/mem_info_vram_used": "3000\n",
    "sys/class/drm/card2/device/mem_info_vram_total": "8000\n",
    "sys/class/drm/card2/device/product_name": "Instinct\n",
    "sys/class/drm/card2/device/hwmon/hwmon4/power1_average": "451000000\n",
    "sys/class/drm/card2/device/hwmon/hwmon4/temp1_input": "61500\n",
    "sys/class/drm/card2/device/hwmon/hwmon4/freq1_input": "2100000000\n",
    "sys/class/drm/card0/device/vendor": "0x1a03\n",
    "sys/class/drm/card2-DP-1/status": "connected\n",
}


def tree(root: Path, *files: Mapping[str, str]) -> Path:
    """A root folder with these files."""
    for path, text in (item for mapping in files for item in mapping.items()):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


# An old driver: it knows no instant power, no C2C, and the older spelling of clock reasons. Of GPM it knows
# the multiprocessors; the tensor cores give no number. Energy and NVLink count on with every call.
NVML = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned long long Long;
typedef struct { unsigned field, scope; long long at, took; int type, result; Long value; } Field;
typedef struct { unsigned id; int result; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; void *first, *second; Metric metrics[1]; } Metrics;
typedef struct { unsigned pid; Long used; unsigned gpu, compute; } Process;
static Long calls;
static int pid(void) { const char *p = getenv("STUB_PID"); return p ? atoi(p) : 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) {
    const char *more = getenv("STUB_GPUS");
    *n = more ? atoi(more) : 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *h, char *name, unsigned n) { strncpy(name, "Stub GPU", n); return 0; }
int nvmlDeviceGetUtilizationRates(void *h, unsigned *u) { u[0] = 97; u[1] = 31; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, Long *m) { m[0] = 1000; m[1] = 400; m[2] = 600; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *p) { if (h == (void *)2) return 15; *p = 412500; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, Long *e) { *e = 7000 + 1500 * ++calls; return 0; }
int nvmlDeviceGetClockInfo(void *h, int t, unsigned *c) { *c = t == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetTemperature(void *h, int s, unsigned *t) { *t = 61; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, Long *r) { *r = 4 | 32; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *p) { *p = 700000; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, int t, int c, Long *n) { return 3; }
int nvmlDeviceGetFieldValues(void *h, int n, Field *f) {
    for (int i = 0; i < n; i++) {
        f[i].result = 0;
        f[i].type = 3;
        if (f[i].field == 91) f[i].value = 2;
        else if (f[i].field == 138) f[i].value = (f[i].scope == 0xffffffff ? 10 : 5) + calls;
        else if (f[i].field == 52) f[i].value = 6;
        else f[i].result = 3;
    }
    return 0;
}
int nvmlGpmQueryDeviceSupport(void *h, unsigned *s) { s[1] = h == (void *)1; return 0; }
int nvmlGpmSampleAlloc(void **s) { *s = malloc(8); return 0; }
int nvmlGpmSampleGet(void *h, void *s) { return 0; }
int nvmlGpmMetricsGet(Metrics *m) {
    for (unsigned i = 0; i < m->count; i++) {
        Metric *one = m->metrics + i;
        one->result = one->id == 2 || one->id == 20 || one->id == 5 ? 0 : 3;
        one->value = one->id == 2 ? 12.5 : one->id == 20 ? 2.0 : 0.0 / 0.0;
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) {
    if (h == (void *)2 || !pid()) { *n = 0; return 0; }
    if (!p) { *n = 2; return 7; }
    *n = 2;
    memset(p, 0, 2 * sizeof *p);
    p[0].pid = pid();
    p[1].pid = pid() + 1;
    return 0;
}
const char *nvmlErrorString(int r) { return "stub"; }
"""


def stub_nvml(folder: Path) -> Path | None:
    """A folder with a libnvidia-ml.so.1, for LD_LIBRARY_PATH; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "nvml.c"
    source.write_text(NVML)
    target = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    return folder


Named = tuple[str, int | None, str | None]


def left(
    folder: Path,
    samples: Sequence[tuple[int, int, Mapping[Named, float | None]]],
    *,
    facts: Iterable[Mapping[str, Any]] = (),
    name: str = "tail.jsonl",
    session: int = 0,
) -> Path:
    """The folder of a monitor that took these samples: monotonic and wall clock, and values by name."""
    from lostflops.machine.monitor.metrics import METRICS

    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(named for _, _, values in samples for named in values))
    series = [
        {
            "metric": metric,
            "device": device,
            "instance": instance,
            "unit": METRICS[metric].unit,
            "counts": METRICS[metric].counts,
            "per": METRICS[metric].per,
        }
        for metric, device, instance in names
    ]
    lines: list[dict[str, Any]] = [{"session": session}, {"from": 0, "series": series}]
    lines += [{"m": m, "w": w, "v": [values.get(named) for named in names]} for m, w, values in samples]
    (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    told = [{"kind": "monitor", "format": 1, "host": "abc"}, *facts]
    (folder / "facts.jsonl").write_text("".join(f"{json.dumps(fact)}\n" for fact in told))
    return folder
