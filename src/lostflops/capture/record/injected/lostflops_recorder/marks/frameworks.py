"""Which training frameworks drive the job: those of which an object lives that leads training."""

from __future__ import annotations

import sys
from collections.abc import Iterable

# By the name that remedies know a framework by: modules and a class that only a job has that trains with it.
LEADERS = {
    "torchtitan": (("torchtitan.components.checkpoint", "CheckpointManager"),),
    "bridge": (("megatron.bridge.training.state", "GlobalState"),),
    "megatron": (("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"),),
    "hf": (("transformers.trainer", "Trainer"),),
    "lightning": (
        ("pytorch_lightning.trainer.trainer", "Trainer"),
        ("lightning.pytorch.trainer.trainer", "Trainer"),
        ("lightning_fabric.fabric", "Fabric"),
        ("lightning.fabric.fabric", "Fabric"),
    ),
    "accelerate": (("accelerate.accelerator", "Accelerator"),),
    "deepspeed": (("deepspeed.runtime.engine", "DeepSpeedEngine"),),
}


def driving(objects: Iterable[object]) -> list[str]:
    """The frameworks with a leader among `objects`, of which only the types are looked at."""
    kinds = {type(thing) for thing in objects}
    return [name for name, places in LEADERS.items() if any(map(kinds.__contains__, _subclasses(places)))]


def _subclasses(places: tuple[tuple[str, str], ...]) -> list[type]:
    """The classes at these places, as far as they are imported, and those made from them."""
    found = [getattr(sys.modules.get(module), name, None) for module, name in places]
    kinds = [kind for kind in found if isinstance(kind, type)]
    for kind in kinds:  # grows while it is walked
        kinds += [below for below in type.__subclasses__(kind) if below not in kinds]
    return kinds
