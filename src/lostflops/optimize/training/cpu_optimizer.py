"""What an optimizer costs that steps on the host, as those of DeepSpeed and torchao do."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from lostflops.optimize.device import host_share
from lostflops.optimize.refused import Refused


def measure_cpu_adam(parameters: int = 4_000_000, *, repeats: int = 5) -> dict[str, Any]:
    """How many parameters this host's fused AdamW in fp32 updates in a second, with torch's threads.

    Bound by memory: 28 bytes for each parameter. The best of `repeats`. `bound_to_cores` is false where the
    process may run on every core of the machine: with several ranks, or several NUMA nodes, bind it.
    """
    if parameters < 1 or repeats < 1:
        raise Refused("nothing to measure", "give at least one parameter and one repeat")
    weight = torch.nn.Parameter(torch.zeros(parameters))
    weight.grad = torch.full((parameters,), 1e-3)
    adam: Any = torch.optim.AdamW([weight], fused=True)
    adam.step()  # makes its state
    times: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        adam.step()
        times.append(time.perf_counter() - began)
    return {
        "parameters": parameters,
        "step_seconds": min(times),
        "slowest_step_seconds": max(times),
        "parameters_per_second": parameters / min(times),
        "bytes_per_second": 28 * parameters / min(times),
        "threads": torch.get_num_threads(),
        "cores": host_share.cores(),
        "bound_to_cores": len(os.sched_getaffinity(0)) < (os.cpu_count() or 1),
    }
