"""What is what in a model that we did not write: its repeated layers, its output head, modules by pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch.nn.parameter import is_lazy

from lostflops.optimize.refused import Refused


def repeated_layers(model: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """The model's stacks of layers, outermost ones only: decoder layers, not the experts inside of them.

    A stack is the part of a ModuleList or Sequential that is of the class with the most parameters, when that
    occurs at least twice and has submodules. Encoder and decoder are two stacks, each in order.
    """
    stacks: list[list[torch.nn.Module]] = []
    inside: set[int] = set()
    for _, module in named(model):
        if id(module) in inside or not isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        by_class: dict[type, list[torch.nn.Module]] = {}
        for child in module.children():
            if next(child.children(), None) is not None:
                by_class.setdefault(type(child), []).append(child)
        several = [group for group in by_class.values() if len(group) > 1]
        if several:
            stacks.append(max(several, key=lambda group: sum(map(_parameter_count, group))))
            inside.update(id(part) for layer in stacks[-1] for part in layer.modules())
    return stacks


def refuse_lazy(model: torch.nn.Module, where: str = "") -> None:
    """Refuses parameters that have no memory yet; `where` is how the name of each begins."""
    if lazy := next((name for name, parameter in model.named_parameters() if is_lazy(parameter)), None):
        raise Refused(
            f"'{where}{lazy}' has no shape yet: a lazy module gets it in its first forward",
            "run the model once before",
        )


def is_output_head(model: torch.nn.Module, name: str, linear: torch.nn.Module) -> bool:
    """What the model says is its head, what shares the embedding's weight, or goes by one of the usual
    names."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if linear is head or name.rpartition(".")[2] in ("lm_head", "head", "output_head", "classifier", "score"):
        return True
    embeddings = (module for _, module in named(model) if isinstance(module, torch.nn.Embedding))
    return any(linear.weight is embedding.weight for embedding in embeddings)


def ends_like(name: str, pattern: str) -> bool:
    """Whether the last parts of a dotted name are like the pattern's; `*` stands for one part, or some of
    it."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts[-len(wanted) :], wanted))


def named(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return list(cast("Any", module).named_modules())


def state_tensors(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers, and tensors that are attributes: what a forward may write to. By their names."""
    found: dict[str, torch.Tensor] = dict(cast("Any", layer).named_buffers())
    for name, module in named(layer):
        attributes: dict[str, Any] = vars(module)
        for key, value in attributes.items():
            if isinstance(value, torch.Tensor):
                found[f"{name}.{key}".lstrip(".")] = value
    return found


def wrapper_in(model: torch.nn.Module, *kinds: str) -> torch.nn.Module | None:
    """The outermost module that is one of these, by the names of their classes: DDP, FSDP1, FSDP2."""
    wrappers = {"DDP": "DistributedDataParallel", "FSDP1": "FullyShardedDataParallel", "FSDP2": "FSDPModule"}
    wanted = {wrappers[kind] for kind in kinds}
    for module in model.modules():
        if any(kind.__name__ in wanted for kind in type(module).__mro__):
            return module
    return None


def refuse_wrapped(model: torch.nn.Module, *kinds: str, breaks: str, instead: str) -> None:
    """For what has to come before the model is wrapped for several ranks."""
    if (wrapper := wrapper_in(model, *kinds)) is not None:
        raise Refused(f"the model is wrapped already ({type(wrapper).__name__}), and {breaks}", instead)


def _parameter_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
