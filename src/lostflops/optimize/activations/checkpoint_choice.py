"""Which modules are recomputed when a plan decides per class of saved tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lostflops.optimize.model_parts import named, repeated_layers
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping


DECISIONS = ("keep", "offload", "recompute")  # of a plan, for a class of saved tensors


def planned_modules(model: torch.nn.Module, plan: Mapping[str, Any]) -> list[torch.nn.Module]:
    """The largest modules below which the plan recomputes every class that it names, in the model's order: a
    layer or less, for several layers recomputed at once are all alive at once.

    Refuses a plan that recomputes a class whose every enclosing module also saves something that it keeps or
    offloads: recomputing works on whole modules.
    """
    classes: dict[str, str] = dict(plan.get("classes", {}))
    if unknown := set(classes.values()).difference(DECISIONS):
        raise Refused(f"the plan says {sorted(unknown)}", f"a class may be one of {list(DECISIONS)}")
    by_path: dict[str, set[str]] = {}
    for name, decision in classes.items():
        path, _, operator = name.rpartition("/")
        if operator != "leaf":  # parameters and inputs: no operator makes them again
            by_path.setdefault(path, set()).add(decision)
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


def _starred(name: str) -> str:
    """As the classes of saved tensors are named: the numbers of layers as `*`."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
