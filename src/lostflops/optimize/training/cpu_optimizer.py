"""What an optimizer costs that steps on the host, as those of DeepSpeed and torchao do."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from lostflops.optimize.device import host_share
from lostflops.optimize.refused import Refused


def exposed_optimizer_seconds(
    cpu_step_seconds: float,
    moved_bytes: int,
    host_to_device_bytes_per_second: float,
    window_seconds: float,
) -> float:
    """What a step is longer than its backward: max(0, t_cpu + bytes / B_in - window), predicted.

    `window_seconds`: how long the backward goes on while gradients already are on the host. The hidden part
    grows with the tokens of a step, because the window does and the other two do not.
    """
    for name, value in (("cpu_step_seconds", cpu_step_seconds), ("moved_bytes", moved_bytes),
                        ("window_seconds", window_seconds)):  # fmt: skip
        if value < 0:
            raise Refused(f"{name} cannot be {value}", "give 0 or more")
    if host_to_device_bytes_per_second <= 0:
        raise Refused(
            "a link without speed", "give host_to_device_bytes_per_second as measure_link measured it"
        )
    return max(0.0, cpu_step_seconds + moved_bytes / host_to_device_bytes_per_second - window_seconds)


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
