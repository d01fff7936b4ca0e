"""The optimizer's state and step moved to the host, through torchao; and what of that step is not hidden.

torchao copies each gradient to the host while the backward runs, lets a CPU optimizer work on it, and copies
the new weights back. Not verified on a GPU yet. For several GPUs use DeepSpeed's ZeRO-Offload.

Two traps of it are closed here. What changes a gradient after the backward has made it (clipping, a
GradScaler's unscaling) changes a tensor that has been copied already, so it would have no effect: the step
raises. And with `offload_gradients` every backward overwrites what the one before it gave.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, cast

import torch

from lostflops.optimize.device import host_share
from lostflops.optimize.refused import Refused, needs

DEVICES = ("cuda", "xpu")  # where torchao's works


def optimizer_offload(
    parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
    optimizer_class: type[torch.optim.Optimizer] = torch.optim.AdamW,
    *,
    offload_gradients: bool = False,
    minimal_size: int = 4096,
    accumulation_steps: int = 1,
    max_grad_norm: float | None = None,
    **arguments: Any,
) -> torch.optim.Optimizer:
    """An optimizer for these parameters, or parameter groups, whose state lies in host memory.

    `offload_gradients` also frees each gradient as soon as it is copied. Parameters of fewer than
    `minimal_size` elements stay with an optimizer on the device. `arguments` go to `optimizer_class`.
    `accumulation_steps` and `max_grad_norm` say what the training loop does, and are refused where it cannot.
    """
    # Once only: it may be a generator.
    given = cast("list[Any]", list(parameters))
    groups: list[Any] = [one["params"] if isinstance(one, dict) else [one] for one in given]
    trained: list[torch.nn.Parameter] = [p for group in groups for p in group if p.requires_grad]
    if not trained:
        raise Refused("there is nothing to train", "give parameters that require a gradient")
    if max_grad_norm:
        raise Refused(
            f"clipping to {max_grad_norm} has no effect here: gradients are copied to the host before it",
            "train without clipping, or keep the optimizer on the device",
        )
    if offload_gradients and accumulation_steps > 1:
        raise Refused(
            f"of {accumulation_steps} backward passes only the last one's gradients would count",
            "leave offload_gradients out, or do not accumulate",
        )
    elsewhere = sorted({str(p.device) for p in trained if p.device.type not in DEVICES})
    if elsewhere:
        raise Refused(
            f"parameters lie on {', '.join(elsewhere)}: there is no device memory to free",
            "move the model to a GPU first",
        )
    if len({p.device for p in trained}) > 1 or _world() > 1:
        raise Refused(
            "this works for one GPU: gradients would be copied before they are reduced over the others",
            "use DeepSpeed with offload_optimizer in its ZeRO settings",
        )
    try:
        from torchao.optim import CPUOffloadOptimizer
    except ImportError as error:
        raise needs("torchao", error) from error
    made = cast("Any", CPUOffloadOptimizer)(
        given, optimizer_class, offload_gradients=offload_gradients, minimal_size=minimal_size, **arguments
    )
    if not offload_gradients:
        guard(made, [p for p in trained if p.numel() >= minimal_size])
    return made


def guard(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Have the step raise Refused when a gradient was changed after the backward that made it."""
    watched = list(parameters)
    copied: dict[int, tuple[int, int]] = {}

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            copied[id(parameter)] = parameter.grad.data_ptr(), parameter.grad._version

    for parameter in watched:
        cast("Any", parameter).register_post_accumulate_grad_hook(note)
    step: Any = optimizer.step

    def checked(*args: Any, **kwargs: Any) -> Any:
        for parameter in watched:
            grad = parameter.grad
            if grad is not None and copied.get(id(parameter)) != (grad.data_ptr(), grad._version):
                raise Refused(
                    "a gradient was changed after it had been copied to the host, so that has no effect",
                    "leave out clipping and GradScaler, or keep the optimizer on the device",
                )
        copied.clear()
        return step(*args, **kwargs)

    cast("Any", optimizer).step = checked


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


def _world() -> int:
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1
