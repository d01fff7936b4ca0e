"""What can be streamed: refuses models, hosts and moments in which travelling weights break something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostflops.optimize.amounts import written
from lostflops.optimize.device import host_share
from lostflops.optimize.device.devices import Device
from lostflops.optimize.model_parts import refuse_lazy
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.layers import Layer

_FUNCTORCH: Any = cast("Any", torch)._C._functorch
STREAMED: WeakSet[torch.nn.Module] = WeakSet()  # layers whose weights travel now


def check_model(model: torch.nn.Module, device: Device, frozen_only: bool) -> None:
    """Refuses what streaming would break. FSDP2 may shard what is trained, and must leave the rest alone."""
    if device.coherent:
        raise Refused(
            f"{device.torch_device} shares the host's memory: moving weights frees none",
            "run the model as it is",
        )
    refuse_lazy(model)
    if any(module in STREAMED for module in model.modules()):
        raise Refused("the model is streamed already", "close the other streaming first")
    for module in model.modules():
        kind = type(module)
        second = any(c.__name__ == "FSDPModule" for c in kind.__mro__)
        if kind.__name__ == "FullyShardedDataParallel" or (second and not frozen_only):
            raise Refused(
                f"the model is sharded by FSDP ({kind.__name__})", "FSDP's own CPU offload does this there"
            )
        if isinstance(module, torch.nn.DataParallel):
            raise Refused("DataParallel copies the weights at every step", "use one process for each GPU")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if type(tensor).__name__ == "DTensor" or hasattr(tensor, "_local_tensor"):
            if frozen_only and tensor.requires_grad:
                continue
            raise Refused(
                f"'{name}' is a DTensor, sharded over processes",
                "leave the frozen weights out of it: fully_shard(layer, ignored_params={each for each in "
                "layer.parameters() if not each.requires_grad}); or use FSDP's own CPU offload",
            )
        if tensor.device.type == "meta":
            raise Refused(
                f"'{name}' is on the meta device: it has no values",
                "load the weights to the CPU first (from_pretrained without device_map)",
            )
        if tensor.device == device.torch_device:
            continue
        if tensor.device.type != "cpu":
            raise Refused(
                f"'{name}' lies on {tensor.device}, not on {device.torch_device}", "one GPU at a time"
            )
        if is_traceable_wrapper_subclass(tensor):
            raise Refused(
                f"'{name}' is a {type(tensor).__name__} on the CPU",
                f"move the model to {device.torch_device}",
            )


def check_host(travelling: Sequence[Layer], buffers: int) -> None:
    on_host = [layer.nbytes for layer in travelling if layer.leaves[0].tensor.device.type == "cpu"]
    # A layer that is in host memory already is copied and let go, one after the other.
    more = sum(layer.nbytes for layer in travelling) - sum(on_host) + max(on_host, default=0) + buffers
    available = host_share.memory()
    if more > available:
        raise Refused(
            f"the layers that travel take {written(more)} of host memory, and {written(available)} are left",
            "raise the budget so that fewer travel, or the container's memory limit",
        )


def check_not_recorded(device: Device) -> None:
    """A recording of what runs would leave the copies out; what torch.func wraps has no memory to copy."""
    if torch.compiler.is_compiling():
        raise Refused(
            "a model whose weights are streamed is being compiled",
            "compile its layers, before they are streamed: layers[n] = torch.compile(layers[n])",
        )
    if device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise Refused("a model whose weights are streamed is captured as a CUDA graph", "run it without one")
    transform = _FUNCTORCH.peek_interpreter_stack()
    if transform is not None and transform.key() != _FUNCTORCH.TransformType.Vmap:
        raise Refused(
            "a model whose weights are streamed runs inside torch.func.jvp, grad or the like",
            "use torch.autograd, or leave the weights on the device",
        )
