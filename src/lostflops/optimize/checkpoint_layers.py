"""Which modules of a model are checkpointed: the repeated layers, or those that a plan recomputes as a
whole."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

import torch

from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def planned_modules(model: torch.nn.Module, plan: Mapping[str, Any]) -> list[torch.nn.Module]:
    """The largest modules below which the plan recomputes every class that it names, in the model's order: a
    layer or less, for several layers recomputed at once are all alive at once.

    Refuses a plan that recomputes a class whose every enclosing module also saves something that it keeps or
    offloads: recomputing works on whole modules.
    """
    classes: dict[str, str] = dict(plan.get("classes", {}))
    known = {"keep", "offload", "recompute"}
    if unknown := {decision for decision in classes.values() if decision not in known}:
        raise Refused(f"the plan says {sorted(unknown)}", f"a class may be one of {sorted(known)}")
    by_path: dict[str, set[str]] = {}
    for name, decision in classes.items():
        by_path.setdefault(name.rpartition("/")[0], set()).add(decision)
    wanted = {path for path, decisions in by_path.items() if "recompute" in decisions}
    layers = {id(layer) for stack in repeated_layers(model) for layer in stack}
    chosen: list[torch.nn.Module] = []
    covered: set[str] = set()
    inside: set[int] = set()
    for name, module in named(model):
        path = _starred(name)
        below = {other for other in by_path if other == path or other.startswith(f"{path}.")}
        runs = not isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)
        frees = not isinstance(module, torch.nn.Linear)  # its input is all that it saves, and stays
        several = any(id(part) in layers for part in module.modules() if part is not module)
        if not (below and runs and frees) or several or any(by_path[one] != {"recompute"} for one in below):
            continue
        covered |= below
        if id(module) not in inside:
            chosen.append(module)
            inside.update(id(part) for part in module.modules())
    if missed := sorted(wanted - covered):
        raise Refused(
            f"the plan recomputes something in '{missed[0]}', but no module around it as a whole",
            "decide the same for all classes of a module, or that module is not in this model",
        )
    if not chosen:
        raise Refused("the plan recomputes nothing", "apply it with optimize.offload alone")
    return chosen


def ends_like(name: str, pattern: str) -> bool:
    """Whether the last parts of a dotted name are like the pattern's; `*` stands for one part, or some of
    it."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts[-len(wanted) :], wanted))


def named(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return list(cast("Any", module).named_modules())


def _parameter_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _starred(name: str) -> str:
    """As the classes of saved tensors are named: the numbers of layers as `*`."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
