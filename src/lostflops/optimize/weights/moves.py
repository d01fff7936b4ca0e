"""Moves what does not travel to the device and back; keeps `model.to(...)` away from what does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, cast

import torch

from lostflops.optimize.refused import Refused


def moved(parameter: torch.Tensor, to: torch.device) -> Callable[[], None]:
    """Moves a parameter with its gradient; returns what moves both back."""
    home = parameter.device

    def move(where: torch.device) -> None:
        parameter.data = parameter.data.to(where)
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.to(where)

    move(to)
    return lambda: move(home)


def buffers_of(owner: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return cast("Any", owner)._buffers


def brings_back(owner: torch.nn.Module, key: str, home: torch.device) -> Callable[[], None]:
    def back() -> None:
        buffer = buffers_of(owner).get(key)
        buffers_of(owner)[key] = None if buffer is None else buffer.to(home)

    return back


def guarded(owner: torch.nn.Module, keys: Iterable[str]) -> Callable[[], None]:
    """`model.to(...)` passes by these parameters of the owner; returns what ends that.

    Their place is the slots' business. Another dtype would have to be another copy, so that is refused.
    """
    keys = list(keys)
    had = owner.__dict__.get("_apply")

    def apply(module: Any, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        plain: Any = cast("Any", type(module))._apply if had is None else had.__func__
        if module is not owner:  # a copy of it
            return plain(module, fn, recurse)
        held = {key: module._parameters[key] for key in keys if module._parameters.get(key) is not None}
        for key, parameter in held.items():
            probe = fn(torch.empty(0, dtype=parameter.dtype))
            if probe.dtype != parameter.dtype or probe.device.type == "meta":
                raise Refused(
                    f"'{key}' of a streamed layer is {parameter.dtype} and is to be made {probe.dtype}, "
                    f"{probe.device.type}",
                    "convert the model before it is streamed",
                )
        module._parameters.update(dict.fromkeys(held))
        try:
            return plain(module, fn, recurse)
        finally:
            module._parameters.update(held)

    ours = MethodType(apply, owner)
    owner.__dict__["_apply"] = ours

    def undo() -> None:
        if owner.__dict__.get("_apply") is ours:
            del owner.__dict__["_apply"]
            if had is not None:
                owner.__dict__["_apply"] = had

    return undo
