"""Remedies for training and inference code: one call each on the model as it is, and a report of what it did.

    from lostflops import optimize

    with optimize.offload(model, budget="70 GiB") as engine:
        for batch in batches:
            model(**batch).loss.backward()
            optimizer.step(); optimizer.zero_grad()
    print(engine.report())

Needs torch, and of lostflops nothing of the stack: what the planner and the recipes exchange with it is plain
data, and what both predict comes from `lostflops.copies`.
What cannot be done raises `Refused`, with what to do instead; nothing is ignored silently.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lostflops.copies.host_optimizer import exposed_optimizer_seconds as exposed_optimizer_seconds
    from lostflops.copies.kv_resume import kv_prediction as kv_prediction
    from lostflops.copies.migrated_pages import managed_prediction as managed_prediction
    from lostflops.copies.streamed_weights import streaming_knee as streaming_knee
    from lostflops.copies.streamed_weights import streaming_prediction as streaming_prediction
    from lostflops.copies.streamed_weights import streaming_sweep as streaming_sweep
    from lostflops.optimize.activations.checkpointing import checkpoint as checkpoint
    from lostflops.optimize.activations.offload.engine import Engine as Engine
    from lostflops.optimize.activations.offload.engine import offload as offload
    from lostflops.optimize.activations.offload.report import OffloadReport as OffloadReport
    from lostflops.optimize.activations.saved import saved_tensors as saved_tensors
    from lostflops.optimize.device.devices import CudaDevice as CudaDevice
    from lostflops.optimize.device.devices import Device as Device
    from lostflops.optimize.device.devices import ThreadedDevice as ThreadedDevice
    from lostflops.optimize.kv.cache import DialogueCache as DialogueCache
    from lostflops.optimize.kv.generation import kv_offload as kv_offload
    from lostflops.optimize.link import measure_link as measure_link
    from lostflops.optimize.loader.workers import LoaderSetting as LoaderSetting
    from lostflops.optimize.loader.workers import tune_loader as tune_loader
    from lostflops.optimize.refused import Refused as Refused
    from lostflops.optimize.training.adapters import lora as lora
    from lostflops.optimize.training.cpu_optimizer import measure_cpu_adam as measure_cpu_adam
    from lostflops.optimize.training.fp8 import to_fp8 as to_fp8
    from lostflops.optimize.training.optimizer_offloading import optimizer_offload as optimizer_offload
    from lostflops.optimize.training.parity import loss_parity as loss_parity
    from lostflops.optimize.training.precision import autocast as autocast
    from lostflops.optimize.training.precision import to_bf16 as to_bf16
    from lostflops.optimize.training.precision import to_fp16 as to_fp16
    from lostflops.optimize.unified.managed_memory import ManagedReport as ManagedReport
    from lostflops.optimize.unified.managed_memory import advise as advise
    from lostflops.optimize.unified.managed_memory import managed as managed
    from lostflops.optimize.unified.managed_memory import prefetch as prefetch
    from lostflops.optimize.unified.managed_memory import release_managed as release_managed
    from lostflops.optimize.unified.managed_memory import use_managed_everywhere as use_managed_everywhere
    from lostflops.optimize.unified.platform_memory import memory_capabilities as memory_capabilities
    from lostflops.optimize.weights.frozen import stream_frozen as stream_frozen
    from lostflops.optimize.weights.report import StreamingReport as StreamingReport
    from lostflops.optimize.weights.safetensors_files import without_weights as without_weights
    from lostflops.optimize.weights.streaming import Streaming as Streaming
    from lostflops.optimize.weights.whole_model import stream_weights as stream_weights

# Which file knows what; each is imported when one of its names is first asked for.
_FILES = {
    "training.adapters": ("lora",),
    "unified.managed_memory": (
        "ManagedReport",
        "advise",
        "managed",
        "prefetch",
        "release_managed",
        "use_managed_everywhere",
    ),
    "unified.platform_memory": ("memory_capabilities",),
    "activations.offload.engine": ("Engine", "offload"),
    "activations.offload.report": ("OffloadReport",),
    "device.devices": ("CudaDevice", "Device", "ThreadedDevice"),
    "loader.workers": ("LoaderSetting", "tune_loader"),
    "activations.checkpointing": ("checkpoint",),
    "kv.cache": ("DialogueCache",),
    "kv.generation": ("kv_offload",),
    "link": ("measure_link",),
    "training.fp8": ("to_fp8",),
    "training.parity": ("loss_parity",),
    "training.precision": ("autocast", "to_bf16", "to_fp16"),
    "training.cpu_optimizer": ("measure_cpu_adam",),
    "training.optimizer_offloading": ("optimizer_offload",),
    "refused": ("Refused",),
    "activations.saved": ("saved_tensors",),
    "weights.frozen": ("stream_frozen",),
    "weights.safetensors_files": ("without_weights",),
    "weights.streaming": ("Streaming",),
    "weights.report": ("StreamingReport",),
    "weights.whole_model": ("stream_weights",),
}
# Predictions, which need no torch.
_PREDICTIONS = {
    "host_optimizer": ("exposed_optimizer_seconds",),
    "kv_resume": ("kv_prediction",),
    "migrated_pages": ("managed_prediction",),
    "streamed_weights": ("streaming_knee", "streaming_prediction", "streaming_sweep"),
}
_WHERE = {
    name: f"lostflops.{floor}.{file}"
    for floor, files in (("optimize", _FILES), ("copies", _PREDICTIONS))
    for file, names in files.items()
    for name in names
}

__all__ = [*_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
